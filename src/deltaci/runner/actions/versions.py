"""Which versions somebody wants, as people write that for Python and Node: `3.11`, `3.x`, `>=3.10 <3.13`, `^18`."""

from __future__ import annotations

import re
from typing import Final

from deltaci.core.errors import Refused

Version = tuple[int, int, int]
_ANY: Final = frozenset({"", "*", "x", "X"})
_ONE: Final = re.compile(
    r"(?P<op>>=|<=|==|=|!=|~=|~>|~|\^|>|<)?\s*v?(?P<version>[0-9xX*]+(?:\.[0-9xX*]+){0,2})(?:-[\w.]+)?"
)
MAX_WANTED: Final = 200


def version_of(text: str) -> Version | None:
    """A version as numbers; None if it is none."""
    found = re.fullmatch(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?.*", text.strip())
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else None


def fits(wanted: str, version: Version) -> bool:
    """Whether a version is one of those that are wanted. Refuses what cannot be read."""
    if len(wanted) > MAX_WANTED:
        raise Refused("bad_spec", f"the version {wanted[:80]!r}… is too long to be one")
    return any(_fits_all(each, version) for each in wanted.split("||"))


def _fits_all(wanted: str, version: Version) -> bool:
    between = re.fullmatch(r"\s*v?([0-9.xX*]+)\s+-\s+v?([0-9.xX*]+)\s*", wanted)
    if between:
        return _fits(">=", between[1], version) and _fits("<=", between[2], version)
    rest = wanted.replace(",", " ").strip()
    is_fit = True
    while rest:
        found = _ONE.match(rest)
        if found is None:
            raise Refused(
                "bad_spec", f"the version {wanted.strip()[:80]!r} cannot be read; say e.g. 3.11, 3.x or >=3.10"
            )
        is_fit = is_fit and _fits(found["op"] or "=", found["version"], version)
        rest = rest[found.end() :].strip()
    return is_fit


def _fits(operator: str, text: str, version: Version) -> bool:
    parts = [int(part) for part in _known(text)]
    low = tuple([*parts, 0, 0, 0][:3])
    high = _after(parts) if parts else None  # The first that is no longer meant by it.
    match operator:
        case "=" | "==":
            return version >= low and (high is None or version < high)
        case "!=":
            return not (version >= low and (high is None or version < high))
        case ">=":
            return version >= low
        case ">":
            return high is not None and version >= high
        case "<":
            return version < low
        case "<=":
            return high is None or version < high
        case "^":
            upto = _after(parts[: 1 + next((at for at, part in enumerate(parts) if part), len(parts) - 1)])
            return version >= low and (not parts or version < upto)
        case "~" | "~>":
            return version >= low and (not parts or version < _after(parts[:2]))
    return version >= low and (len(parts) < 2 or version < _after(parts[:-1]))  # `~=`


def _known(text: str) -> list[str]:
    """The numbers up to the first that may be any."""
    known: list[str] = []
    for part in text.split("."):
        if part in _ANY:
            break
        if not part.isdecimal() or len(part) > 6:
            raise Refused("bad_spec", f"the version {text[:80]!r} cannot be read; say e.g. 3.11 or 3.x")
        known.append(part)
    return known


def _after(parts: list[int]) -> Version:
    whole = [*parts[:-1], parts[-1] + 1, 0, 0][:3]
    return (whole[0], whole[1], whole[2])
