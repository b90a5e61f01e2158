"""Version specs as they are written for Python and Node: `3.11`, `3.x`, `>=3.10 <3.13`, `^18`."""

from __future__ import annotations

import re
from typing import Final

from deltaci.core.errors import Refused

Version = tuple[int, int, int]
_WILDCARDS: Final = frozenset({"", "*", "x", "X"})
_COMPARISON: Final = re.compile(
    r"(?P<op>>=|<=|==|=|!=|~=|~>|~|\^|>|<)?\s*v?(?P<version>[0-9xX*]+(?:\.[0-9xX*]+){0,2})(?:-[\w.]+)?"
)
MAX_SPEC_CHARACTERS: Final = 200


def parse_version(text: str) -> Version | None:
    """Return a version such as `v18.2.1` as numbers, or None if the text is not a version."""
    match = re.fullmatch(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?.*", text.strip())
    return (int(match[1]), int(match[2]), int(match[3] or 0)) if match else None


def version_matches(version_spec: str, version: Version) -> bool:
    """Return whether the version matches one of the alternatives, separated by `||`.

    Raise `Refused` if the version spec is not valid.
    """
    if len(version_spec) > MAX_SPEC_CHARACTERS:
        raise Refused("bad_spec", f"the version {version_spec[:80]!r}… is too long")
    return any(_matches_all(alternative, version) for alternative in version_spec.split("||"))


def _matches_all(version_spec: str, version: Version) -> bool:
    """Return whether the version matches a range `1.2 - 3.4`, or every comparison in a list."""
    version_range = re.fullmatch(r"\s*v?([0-9.xX*]+)\s+-\s+v?([0-9.xX*]+)\s*", version_spec)
    if version_range:
        return _satisfies(">=", version_range[1], version) and _satisfies("<=", version_range[2], version)
    remaining = version_spec.replace(",", " ").strip()
    is_match = True
    while remaining:
        comparison = _COMPARISON.match(remaining)
        if comparison is None:
            message = f"the version {version_spec.strip()[:80]!r} cannot be read; expected e.g. 3.11, 3.x or >=3.10"
            raise Refused("bad_spec", message)
        is_match = is_match and _satisfies(comparison["op"] or "=", comparison["version"], version)
        remaining = remaining[comparison.end() :].strip()
    return is_match


def _satisfies(operator: str, operand: str, version: Version) -> bool:
    """Return whether a version satisfies one comparison, such as `>=` and `3.10`."""
    parts = [int(part) for part in _leading_numbers(operand)]
    first_covered = tuple([*parts, 0, 0, 0][:3])
    first_above = _next_version(parts) if parts else None  # The first version above all that `operand` covers.
    match operator:
        case "=" | "==":
            return version >= first_covered and (first_above is None or version < first_above)
        case "!=":
            return not (version >= first_covered and (first_above is None or version < first_above))
        case ">=":
            return version >= first_covered
        case ">":
            return first_above is not None and version >= first_above
        case "<":
            return version < first_covered
        case "<=":
            return first_above is None or version < first_above
        case "^":
            first_nonzero = next((index for index, part in enumerate(parts) if part), len(parts) - 1)
            return version >= first_covered and (not parts or version < _next_version(parts[: 1 + first_nonzero]))
        case "~" | "~>":
            return version >= first_covered and (not parts or version < _next_version(parts[:2]))
    return version >= first_covered and (len(parts) < 2 or version < _next_version(parts[:-1]))  # `~=`


def _leading_numbers(text: str) -> list[str]:
    """Return the numbers of a version as text, up to the first wildcard."""
    numbers: list[str] = []
    for part in text.split("."):
        if part in _WILDCARDS:
            break
        if not part.isdecimal() or len(part) > 6:
            raise Refused("bad_spec", f"the version {text[:80]!r} cannot be read; expected e.g. 3.11 or 3.x")
        numbers.append(part)
    return numbers


def _next_version(parts: list[int]) -> Version:
    """Return the lowest version above all that begin with these parts: 3.12.0 for 3.11."""
    numbers = [*parts[:-1], parts[-1] + 1, 0, 0][:3]
    return (numbers[0], numbers[1], numbers[2])
