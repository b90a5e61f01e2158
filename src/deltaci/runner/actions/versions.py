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
    version_match = re.fullmatch(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?.*", text.strip())
    return (int(version_match[1]), int(version_match[2]), int(version_match[3] or 0)) if version_match else None


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
    remaining_text = version_spec.replace(",", " ").strip()
    is_match = True
    while remaining_text:
        comparison = _COMPARISON.match(remaining_text)
        if comparison is None:
            message = f"the version {version_spec.strip()[:80]!r} cannot be read; expected e.g. 3.11, 3.x or >=3.10"
            raise Refused("bad_spec", message)
        is_match = is_match and _satisfies(comparison["op"] or "=", comparison["version"], version)
        remaining_text = remaining_text[comparison.end() :].strip()
    return is_match


def _satisfies(operator: str, operand: str, version: Version) -> bool:
    """Return whether a version satisfies one comparison, such as `>=` and `3.10`."""
    operand_numbers = [int(operand_number) for operand_number in _leading_numbers(operand)]
    lowest_covered = tuple([*operand_numbers, 0, 0, 0][:3])
    # The first version above all that `operand` covers.
    lowest_above = _next_version(operand_numbers) if operand_numbers else None
    match operator:
        case "=" | "==":
            return version >= lowest_covered and (lowest_above is None or version < lowest_above)
        case "!=":
            return not (version >= lowest_covered and (lowest_above is None or version < lowest_above))
        case ">=":
            return version >= lowest_covered
        case ">":
            return lowest_above is not None and version >= lowest_above
        case "<":
            return version < lowest_covered
        case "<=":
            return lowest_above is None or version < lowest_above
        case "^":
            first_nonzero_index = next(
                (index for index, operand_number in enumerate(operand_numbers) if operand_number),
                len(operand_numbers) - 1,
            )
            return version >= lowest_covered and (
                not operand_numbers or version < _next_version(operand_numbers[: 1 + first_nonzero_index])
            )
        case "~" | "~>":
            return version >= lowest_covered and (not operand_numbers or version < _next_version(operand_numbers[:2]))
    # The operator is `~=`.
    return version >= lowest_covered and (len(operand_numbers) < 2 or version < _next_version(operand_numbers[:-1]))


def _leading_numbers(text: str) -> list[str]:
    """Return the numbers of a version as text, up to the first wildcard."""
    numbers: list[str] = []
    for version_part in text.split("."):
        if version_part in _WILDCARDS:
            break
        if not version_part.isdecimal() or len(version_part) > 6:
            raise Refused("bad_spec", f"the version {text[:80]!r} cannot be read; expected e.g. 3.11 or 3.x")
        numbers.append(version_part)
    return numbers


def _next_version(version_numbers: list[int]) -> Version:
    """Return the lowest version above all that begin with these parts: 3.12.0 for 3.11."""
    next_numbers = [*version_numbers[:-1], version_numbers[-1] + 1, 0, 0][:3]
    return (next_numbers[0], next_numbers[1], next_numbers[2])
