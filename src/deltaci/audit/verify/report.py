"""What a verification says: how much was read, and every step that was not legal."""

from __future__ import annotations

from typing import Final

import msgspec

MAX_KEPT: Final = 1000  # Violations that are kept with their text; the rest is only counted.

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
    """One thing that is not legal: where, by which rule, what was found, and what would have been legal."""

    line: int
    rule: str
    found: str
    legal: str

    @property
    def document(self) -> str:
        """The document that the rule belongs to."""
        return _DOCUMENTS[self.rule.partition("-")[0]]

    @property
    def page(self) -> str:
        """Where to read the rule."""
        return f"docs/spec/{_PAGES[self.rule.partition('-')[0]]}.md"

    def __str__(self) -> str:
        return f"line {self.line}: {self.rule} (document {self.document}): {self.found}; legal: {self.legal}"


class Report(msgspec.Struct):
    """The outcome of one verification."""

    format: str
    lines: int = 0
    entities: int = 0
    count: int = 0
    violations: list[Violation] = []

    @property
    def is_legal(self) -> bool:
        """Whether nothing was wrong."""
        return self.count == 0

    def add(self, line: int, rule: str, found: str, legal: str) -> None:
        """Note a violation."""
        self.count += 1
        if len(self.violations) < MAX_KEPT:
            self.violations.append(Violation(line, rule, found, legal))

    def summary(self) -> str:
        """One line for people."""
        read = f"{self.lines:,} lines of {self.format}, {self.entities:,} entities"
        wrong = "1 violation" if self.count == 1 else f"{self.count:,} violations"
        return f"legal: {read}" if self.is_legal else f"not legal: {wrong} in {read}"


class Recent:
    """The ids of what ended lately, only to name a mistake better: a bounded memory."""

    def __init__(self, limit: int = 1024) -> None:
        self._limit = limit
        self._ids: dict[str, None] = {}

    def __contains__(self, id: str) -> bool:
        return id in self._ids

    def add(self, id: str) -> None:
        """Remember the id, and forget the oldest one if there are too many."""
        self._ids[id] = None
        if len(self._ids) > self._limit:
            del self._ids[next(iter(self._ids))]
