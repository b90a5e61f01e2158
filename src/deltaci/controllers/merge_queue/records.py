"""The inputs, outcomes and views of the merge queue."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

NONE: Final = "none"  # The method of those who are only tested.
METHODS: Final = ("merge", "squash", "fast-forward", NONE)


class MergeEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A validated workstream to merge: `head` is the commit to merge, `base_commit` the commit it started from."""

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


class MergeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one entry. `commit` is the new commit of the base; `details` says why it was not merged.

    An entry that is only tested is `is_merged` without a commit if its rules hold.
    """

    id: str
    tenant: str
    is_merged: bool
    commit: str = ""
    details: str = ""


# Told until it does not raise: after a crash perhaps once more.
Told = Callable[[MergeOutcome], Awaitable[None]]


class EntryView(msgspec.Struct, frozen=True, kw_only=True):
    """A queue entry for display. `batch` is the number of its batch, or 0."""

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
    """A batch for display. `commit` is the commit the base would get; `run_id` is its test run."""

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


class BatchSplit(msgspec.Struct, frozen=True, kw_only=True):
    """A failed batch: the halves that it was split into, and the result of its test."""

    number: int
    first: tuple[str, ...]
    second: tuple[str, ...]
    problem: str = ""


class QueueView(msgspec.Struct, frozen=True, kw_only=True):
    """The queue of one base branch for display: entries in order, and batches under test."""

    project: str
    base: str
    entries: tuple[EntryView, ...] = ()
    batches: tuple[BatchView, ...] = ()
    splits: tuple[BatchSplit, ...] = ()
    problem: str = ""
    tries: int = 0
    not_before: int = 0
