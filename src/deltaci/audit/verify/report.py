"""The result of a verification: how much was read, and the violations found."""

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
    """A broken rule: the line, the rule's id, what the log says, and what the rule would have allowed."""

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
        """The path of the documentation page that describes the rule."""
        return f"docs/spec/{_PAGES[self.rule.partition('-')[0]]}.md"

    def __str__(self) -> str:
        return f"line {self.line}: {self.rule} (document {self.document}): {self.found}; legal: {self.legal}"


class Report(msgspec.Struct):
    """The result of one verification. `count` includes the violations that `violations` has no room for."""

    format: str
    lines: int = 0
    entities: int = 0
    count: int = 0
    violations: list[Violation] = []

    @property
    def is_legal(self) -> bool:
        """True if the log has no violation."""
        return self.count == 0

    def add(self, line: int, rule: str, problem: str, legal: str) -> None:
        """Count a violation, and keep it if there is room."""
        self.count += 1
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(Violation(line, rule, problem, legal))

    def summary(self) -> str:
        """Return the result as one line of text."""
        size = f"{self.lines:,} lines of {self.format}, {self.entities:,} entities"
        violations = "1 violation" if self.count == 1 else f"{self.count:,} violations"
        return f"legal: {size}" if self.is_legal else f"not legal: {violations} in {size}"


class RecentIds:
    """A bounded set of the ids that ended last. It lets a message say "is over" instead of "was never created"."""

    def __init__(self, limit: int = 1024) -> None:
        self._limit = limit
        self._ids: dict[str, None] = {}

    def __contains__(self, id: str) -> bool:
        return id in self._ids

    def add(self, id: str) -> None:
        """Add the id, and drop the oldest one if there are more than `limit`."""
        self._ids[id] = None
        if len(self._ids) > self._limit:
            del self._ids[next(iter(self._ids))]
