"""Poll repositories without webhooks, and turn moved refs into changes.

Servers take turns: the one that first stores the time of a poll does it. The first poll only records the refs.
"""

from __future__ import annotations

from typing import Final

import msgspec

from deltaci.controllers.projects import Project, of
from deltaci.controllers.repositories.change_records import ChangeRecords
from deltaci.core.instants import SECOND
from deltaci.core.listing import ALL_TENANTS
from deltaci.git.mirrors import Mirrors, RemoteRefs
from deltaci.pipeline.change import Change
from deltaci.storage.port import Conflict, Document, Store

KIND: Final = "poll"
HEADS: Final = "refs/heads/"
TAGS: Final = "refs/tags/"
MAX_NEWS: Final = 100  # Of one look; the others are news at the next one.
MAX_REFS: Final = 20_000
NEVER: Final = 3600.0


class PollState(msgspec.Struct, frozen=True):
    """The time of a project's last poll and the refs that were seen then; None before the first poll."""

    at: int = 0
    refs: dict[str, str] | None = None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(PollState).decode


def push(ref: str, before: str, commit: str, *, actor: str = "", default_branch: str = "") -> Change:
    """Return the change for a push to a repository without a forge."""
    return Change(
        event="push",
        ref=ref,
        branch=ref.removeprefix(HEADS) if ref.startswith(HEADS) else "",
        tag=ref.removeprefix(TAGS) if ref.startswith(TAGS) else "",
        before=before if before.strip("0") else "",
        commit=commit,
        actor=actor,
        default_branch=default_branch,
    )


class Poller:
    """Polls the repositories of projects that have a poll interval, and creates changes for moved refs."""

    def __init__(self, store: Store, changes: ChangeRecords, mirrors: Mirrors) -> None:
        self._store = store
        self._changes = changes
        self._mirrors = mirrors

    async def look(self, project: Project) -> float:
        """Poll the repository if it is time. Return the seconds until the next poll."""
        every = project.policies.poll_seconds
        if not every:
            return NEVER
        name, now = of(project.tenant, project.name), await self._store.now()
        document = await self._store.find_document(KIND, name, ALL_TENANTS)
        seen = _decode(document.body) if document is not None else PollState()
        if seen.at and now - seen.at < every * SECOND:
            return every - (now - seen.at) / SECOND
        version = document.version if document is not None else 0
        try:
            await self._put(name, version, PollState(now, seen.refs))
        except Conflict:
            return float(every)  # Another server looks now.
        remote = await self._mirrors.for_project(project).ls_remote()
        refs = await self._told(project, seen.refs, remote, f"{version + 1}")
        try:
            await self._put(name, version + 1, PollState(now, refs))
        except Conflict:
            return float(every)
        return float(every)

    async def _told(
        self, project: Project, old: dict[str, str] | None, remote: RemoteRefs, number: str
    ) -> dict[str, str]:
        """Create a change for each moved ref. Return the refs up to which changes were created."""
        if old is None or len(remote.refs) > MAX_REFS:
            return remote.refs if len(remote.refs) <= MAX_REFS else {}
        known = {ref: commit for ref, commit in old.items() if ref in remote.refs}
        moved = [(ref, commit) for ref, commit in sorted(remote.refs.items()) if old.get(ref) != commit]
        default = project.default_branch or remote.head.removeprefix(HEADS)
        for ref, commit in moved[:MAX_NEWS]:
            change = push(ref, old.get(ref, ""), commit, default_branch=default)
            delivery = f"{number} {ref} {commit}"
            await self._changes.accept(project.tenant, project.name, change, delivery, source="poll")
            known[ref] = commit
        return known

    async def forget(self, project: Project) -> None:
        """Delete the stored state of a project."""
        name = of(project.tenant, project.name)
        found = await self._store.find_document(KIND, name, ALL_TENANTS)
        if found is not None:
            await self._store.delete_document(KIND, ALL_TENANTS, name, found.version)

    async def _put(self, name: str, version: int, seen: PollState) -> None:
        await self._store.put_documents([Document(KIND, ALL_TENANTS, name, version, 0, _encode(seen))])
