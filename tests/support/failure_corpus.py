"""The labelled corpus of failure logs in `tests/core/failure_corpus`, and the measures of a classifier on it.

A case begins with a line `=== id | tool and version | fact | label | exit code`, followed by the tail of its log. The
facts are from public issue reports and manuals; the texts are worded anew, in the form in which the tool prints them.
The label is `infra` or `tooling` for a failure that another attempt may well survive, and `user` for all others.

A hash of its id assigns each case to one of two halves. Rules are written with the tuning half; the measuring half is
only measured.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from deltaci.core.failures import Facts, Failure

FOLDER = Path(__file__).parents[1] / "core" / "failure_corpus"
MARK = "=== "


class Case(NamedTuple):
    """One failure: what is known of it, and how it should be classified."""

    id: str
    tool: str
    fact: str
    label: str
    exit_code: int
    log_tail: tuple[str, ...]

    @property
    def is_transient(self) -> bool:
        return self.label != "user"

    @property
    def is_for_measuring(self) -> bool:
        return bool(hashlib.sha256(self.id.encode()).digest()[0] & 1)

    @property
    def facts(self) -> Facts:
        return Facts(exit_code=self.exit_code, log_tail=self.log_tail)


class Measures(NamedTuple):
    """How well a classifier decides about retries."""

    transient_count: int
    user_count: int
    missed: tuple[str, ...]  # The ids of transient failures that are not retried.
    retried: tuple[str, ...]  # The ids of other failures that are retried.

    @property
    def recall(self) -> float:
        return 1 - len(self.missed) / self.transient_count

    @property
    def false_retry_rate(self) -> float:
        return len(self.retried) / self.user_count


def read_corpus() -> list[Case]:
    """Return all cases, in the order of their files."""
    return [case for path in sorted(FOLDER.glob("*.txt")) for case in _cases(path.read_text(encoding="utf-8"))]


def _cases(text: str) -> Iterator[Case]:
    for block in text.removeprefix(MARK).split(f"\n{MARK}"):
        header, *lines = block.rstrip("\n").split("\n")
        id, tool, fact, label, exit_code = header.split(" | ")
        yield Case(id, tool, fact, label, int(exit_code), tuple(lines))


def measure(classify: Callable[[Facts], Failure], cases: Iterable[Case]) -> Measures:
    """Return how often the classifier decides rightly about a retry of these failures."""
    decided = [(case, classify(case.facts).is_retryable) for case in cases]
    return Measures(
        transient_count=sum(case.is_transient for case, _ in decided),
        user_count=sum(not case.is_transient for case, _ in decided),
        missed=tuple(case.id for case, is_retryable in decided if case.is_transient and not is_retryable),
        retried=tuple(case.id for case, is_retryable in decided if is_retryable and not case.is_transient),
    )
