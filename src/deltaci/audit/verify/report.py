"""The result of a verification: how many lines and entities were read, and the violations."""

from __future__ import annotations

from typing import Final

import msgspec

MAX_VIOLATIONS: Final = 1000  # Violations beyond this number are counted without their text.

_DOCUMENTS: Final = {"ORC": "000", "PRO": "001", "STP": "002", "WST": "003", "QUE": "004", "MOD": "model"}
_PAGES: Final = {
    "ORC": "orchestration",
    "PRO": "runner-protocol",
    "STP": "steps",
    "WST": "workstreams",
    "QUE": "queue",
    "MOD": "model",
}


class Violation(msgspec.Struct, frozen=True):
    """A broken rule: the line number, the rule's id, what the log says (`found`) and what would be legal."""

    line: int
    rule: str
    found: str
    legal: str

    @property
    def document(self) -> str:
        """The number of the specification document that contains the rule."""
        return _DOCUMENTS[self.rule.partition("-")[0]]

    @property
    def page(self) -> str:
        """The path of the documentation page that contains the rule."""
        return f"docs/spec/{_PAGES[self.rule.partition('-')[0]]}.md"

    def __str__(self) -> str:
        return f"line {self.line}: {self.rule} (document {self.document}): {self.found}; legal: {self.legal}"


class Report(msgspec.Struct):
    """The result of one verification. `violations` has only the first MAX_VIOLATIONS."""

    format: str
    event_count: int = 0
    entity_count: int = 0
    violation_count: int = 0
    violations: list[Violation] = []

    @property
    def is_legal(self) -> bool:
        """Whether the log has no violation."""
        return self.violation_count == 0

    def add(self, line: int, rule: str, problem: str, legal: str) -> None:
        """Add a violation. Beyond MAX_VIOLATIONS, only count it."""
        self.violation_count += 1
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(Violation(line, rule, problem, legal))

    def summary(self) -> str:
        """Return the result as one line of text."""
        size_text = f"{self.event_count:,} lines of {self.format}, {self.entity_count:,} entities"
        violations_text = "1 violation" if self.violation_count == 1 else f"{self.violation_count:,} violations"
        return f"legal: {size_text}" if self.is_legal else f"not legal: {violations_text} in {size_text}"


class RecentIds:
    """The ids of the entities that ended last, at most `max_ids`.

    They let a message say that an entity has ended instead of that it was never created.
    """

    def __init__(self, max_ids: int = 1024) -> None:
        self._max_ids = max_ids
        self._ids: dict[str, None] = {}

    def __contains__(self, id: str) -> bool:
        return id in self._ids

    def add(self, id: str) -> None:
        """Add the id. If there are more than `max_ids`, drop the oldest one."""
        self._ids[id] = None
        if len(self._ids) > self._max_ids:
            del self._ids[next(iter(self._ids))]
