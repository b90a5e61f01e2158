"""The validation rules that the server checks itself: changed paths, and mergeability with the base.

The caller provides the changed paths and the conflicts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from deltaci.protocol.messages import RuleResult, ValidationRule
from deltaci.protocol.patterns.path_patterns import BadPattern, path_filter

MAX_SHOWN: Final = 5
MAX_PATH_CHARS: Final = 80
MERGEABLE: Final = "mergeable"


def outside(paths_changed: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """The paths that none of the patterns means, sorted, each once; raises BadPattern.

    A file that was moved has changed under both of its names.
    """
    meant = path_filter(patterns)
    return sorted({path for path in paths_changed if not meant.matches(path)})


def within(rule: ValidationRule, paths_changed: Iterable[str]) -> RuleResult:
    """Whether nothing was changed but what the rule allows."""
    meant = _listed(rule.within)
    name, wanted = rule.name or meant, f"only {meant}"
    try:
        strays = outside(paths_changed, rule.within)
    except BadPattern as bad:
        return RuleResult(rule=name, is_passed=False, actual=f"a pattern with {bad.found}", expected=wanted)
    return RuleResult(rule=name, is_passed=not strays, actual=_listed(strays), expected=wanted)


def mergeable(rule: ValidationRule, base: str, conflicts: Sequence[str]) -> RuleResult:
    """Whether the base, a branch by its name, can be merged as it is now; `conflicts` are the paths where it cannot."""
    wanted = f"no conflicts with the current {base}; merge it and resolve them"
    found = f"conflicts in {_listed(conflicts)}" if conflicts else ""
    return RuleResult(rule=rule.name or MERGEABLE, is_passed=not conflicts, actual=found, expected=wanted)


def _listed(texts: Sequence[str]) -> str:
    shown = [text if len(text) <= MAX_PATH_CHARS else f"{text[:MAX_PATH_CHARS]}…" for text in texts[:MAX_SHOWN]]
    more = f" and {len(texts) - MAX_SHOWN} more" if len(texts) > MAX_SHOWN else ""
    return ", ".join(shown) + more
