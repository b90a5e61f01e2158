"""What the merge queue is told, what it keeps, and what it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

NONE: Final = "none"  # The method of those who are only tested.
METHODS: Final = ("merge", "squash", "fast-forward", NONE)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A validated workstream that is to be merged: `head` is the commit to merge, `base_commit` where it began."""

    id: str  # the workstream's run
    tenant: str
    project: str
    base: str
    head: str
    base_commit: str
    method: str  # merge, squash or fast-forward; none: it is only tested
    title: str
    message: str = ""
    author: str = ""
    rules: list[dict[str, Any]] = []  # wire.Rule as plain values: what must hold of the merged tree
    labels: tuple[str, ...] = ()  # that a worker must have to test it
    work: dict[str, Any] = {}  # wire.JobSpec as plain values: how to test it, beside the tree and the rules
    at: int = 0  # when it came, by the store's clock


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How it went, for one of them. `commit` is what the base has now; `details` says why not, and where.

    One that is only tested is `is_merged` without a commit: what must hold of it holds.
    """

    id: str
    tenant: str
    is_merged: bool
    commit: str = ""
    details: str = ""


# Told until it does not raise: after a crash perhaps once more.
Told = Callable[[Outcome], Awaitable[None]]


class EntryView(msgspec.Struct, frozen=True, kw_only=True):
    """One in the line, for people. `batch` is the number of the one that it is in; 0: none yet."""

    id: str
    title: str
    method: str
    head: str
    at: int
    batch: int = 0
    problem: str = ""
    tries: int = 0
    not_before: int = 0


class BatchView(msgspec.Struct, frozen=True, kw_only=True):
    """Some that are tested together, for people. `commit` is what the base would get; `run_id` tests it."""

    number: int
    method: str
    members: tuple[str, ...]
    doing: str  # building, testing, waiting (for those before it), landing
    start: str = ""
    commit: str = ""
    run_id: str = ""
    is_good: bool | None = None
    problem: str = ""
    tries: int = 0
    not_before: int = 0


class Split(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that was bad, for people to see: the halves that it was split into, and what its test said."""

    number: int
    first: tuple[str, ...]
    second: tuple[str, ...]
    problem: str = ""


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """The line before one base, for people: who waits, in order, and which batches are under way."""

    project: str
    base: str
    entries: tuple[EntryView, ...] = ()
    batches: tuple[BatchView, ...] = ()
    splits: tuple[Split, ...] = ()
    problem: str = ""
    tries: int = 0
    not_before: int = 0
