"""What the merge queue is told, what it keeps, and what it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A validated workstream that is to be merged: `head` is the commit to merge, `base_commit` where it began."""

    id: str  # the workstream's run
    tenant: str
    project: str
    base: str
    head: str
    base_commit: str
    method: str  # merge, squash or fast-forward
    title: str
    message: str = ""
    author: str = ""
    rules: list[dict[str, Any]] = []  # wire.Rule as plain values: what must hold of the merged tree
    labels: tuple[str, ...] = ()  # that a worker must have to test it
    at: int = 0  # when it came, by the store's clock


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How it went, for one of them. `commit` is what the base has now; `details` says why not, and where."""

    id: str
    tenant: str
    is_merged: bool
    commit: str = ""
    details: str = ""


# Told until it does not raise: after a crash perhaps once more.
Told = Callable[[Outcome], Awaitable[None]]
