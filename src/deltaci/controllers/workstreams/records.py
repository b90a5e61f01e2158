"""Stored records of workstreams: the branch, and the commits that each task added.

The store and the blob store are authoritative: any server can rebuild the commits from the repository and the bundles.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from deltaci.protocol.messages import RuleResult
from deltaci.storage.documents import TypedDocuments
from deltaci.storage.port import Store

KIND: Final = "workstream"
OPEN: Final = "workstream-open"  # One for each that is not archived yet, for whoever looks through all tenants.


class IntegratedTask(msgspec.Struct, frozen=True, kw_only=True):
    """The commits of one task: its bundle contains what `head` has and `start` has not."""

    task: str
    attempt_id: str
    bundle: str  # the blob's key; empty: it changed nothing
    start: str
    head: str
    tip: str  # of the branch, once it was joined


class Workstream(msgspec.Struct, frozen=True, kw_only=True):
    """One workstream. `id` is the id of its run; `spec` is its file as plain values."""

    id: str
    tenant: str
    name: str
    project: str
    base: str  # the branch that it is merged to; empty until it is planned: the default one
    spec: dict[str, Any]
    created_by: str = ""
    created_at: int = 0
    base_commit: str = ""  # where it began
    branch: str = ""  # its own, e.g. `ws/login-3f9a2c`
    joined: tuple[IntegratedTask, ...] = ()
    place: str = ""  # where its worktree is, as the last runner said
    merged_as: str = ""  # the commit by which the base has it
    problem: str = ""  # why it was not merged
    # What did not hold when the server looked, by task; under "" what did not hold of the whole.
    verdicts: dict[str, tuple[RuleResult, ...]] = {}

    @property
    def tip(self) -> str:
        """Where its branch is."""
        return self.joined[-1].tip if self.joined else self.base_commit


class OpenWorkstream(msgspec.Struct, frozen=True):
    """Marks a workstream as not archived, with its tenant."""

    tenant: str
    id: str


class WorkstreamRecords:
    """Stores workstreams by id. `opened` lists the open ones of all tenants, stored under ALL_TENANTS."""

    def __init__(self, store: Store) -> None:
        self.kept = TypedDocuments(store, KIND, Workstream)
        self.opened = TypedDocuments(store, OPEN, OpenWorkstream)

    async def find(self, tenant: str, id: str) -> Workstream | None:
        """The tenant's workstream of this id."""
        return await self.kept.find(tenant, id)
