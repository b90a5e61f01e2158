"""Handle changes: start one run for each pipeline file that a change triggers. Every step can be repeated.

The id of a run is derived from its change and its file, so that another server can continue after a crash. Servers
agree by a claim in the document of the change; a claim expires if it is not renewed.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

from msgspec.structs import replace

from deltaci.controllers.projects import Project, Projects
from deltaci.controllers.repositories.change_records import (
    HANDLED,
    PUT_ASIDE,
    WAITING,
    ChangeRecord,
    ChangeRecords,
    FileOutcome,
    digest,
)
from deltaci.controllers.repositories.comparison import HEADS, compared
from deltaci.controllers.repositories.pipelines import pipelines_at
from deltaci.controllers.repositories.supersede import SupersedeController
from deltaci.controllers.work_queue import KeyedWorkQueue
from deltaci.core.backoff import backoff_seconds
from deltaci.core.cascade import NewRecord
from deltaci.core.errors import Refused
from deltaci.core.instants import SECOND
from deltaci.core.run import PLANNING_SECONDS, Origin, Run
from deltaci.engine.engine import Engine
from deltaci.engine.requests import Overloaded
from deltaci.forges.credentials import repository_path
from deltaci.git.command import GitFailed
from deltaci.git.mirrors import Mirror, Mirrors
from deltaci.git.repository import is_commit
from deltaci.pipeline.repository import PipelineFile, check_file_triggers
from deltaci.storage.port import Conflict, Store, Unavailable

RESYNC_SECONDS: Final = 5.0
PRUNE_SECONDS: Final = 3600.0
CLAIM_SECONDS: Final = 600
FIRST_WAIT_SECONDS: Final = 5
MAX_WAIT_SECONDS: Final = 640
MAX_TRIES: Final = 8  # For an error that waiting does not mend; some minutes.
MAX_TRANSIENT_TRIES: Final = 140  # While the repository cannot be reached; about a day.
REPORTED_TRIES: Final = 3  # So many failures are reported to the forge.
SETTLE_SECONDS: Final = 3600  # How long it is tried to read a repository for superseded runs.
# Of runs that no person started: their commits were fetched before, and a repository that is down may recover.
UNATTENDED_PLANNING_SECONDS: Final = 3600
MAX_REASON: Final = 1000
MAX_FILES: Final = 200
RUN_ID_BYTES: Final = 10

# In the last commit's message, as at GitHub.
SKIPS: Final = re.compile(r"\[(skip ci|ci skip|no ci|skip actions|actions skip)\]", re.IGNORECASE)
SKIP_TRAILER: Final = re.compile(r"^skip-checks:\s*true\s*$", re.IGNORECASE | re.MULTILINE)
SKIPPABLE: Final = ("push", "pull_request")

LOGGER: Final = logging.getLogger(__name__)


Listener = Callable[[Project, ChangeRecord], Awaitable[None]]
FailureListener = Callable[[ChangeRecord], None]


class NothingToRunError(Exception):
    """The change starts no run. The message is the reason."""


class ChangeHandler:
    """Handles waiting changes: starts their runs and stores the outcome.

    Accepted changes are announced to it, but the stored list of waiting changes is authoritative.
    """

    def __init__(
        self, store: Store, engine: Engine, projects: Projects, changes: ChangeRecords, mirrors: Mirrors, owner: str
    ) -> None:
        self._store = store
        self._engine = engine
        self._projects = projects
        self._changes = changes
        self._mirrors = mirrors
        self._owner = owner
        self._superseding = SupersedeController(store, engine, changes, mirrors)
        self.work_queue = KeyedWorkQueue("changes", self._work, resync=self._look, resync_seconds=RESYNC_SECONDS)
        self._listeners: list[Listener] = []
        self._failure_listeners: list[FailureListener] = []
        self._pruned_at = 0.0
        changes.tell(self.work_queue.add)

    def tell(self, listener: Listener) -> None:
        """Call `listener` with each change after it was handled."""
        self._listeners.append(listener)

    def on_failures(self, listener: FailureListener) -> None:
        """Call `listener` with each change that fails repeatedly, after each try and after it was handled at last."""
        self._failure_listeners.append(listener)

    async def _look(self) -> None:
        await self.resync()
        loop = asyncio.get_running_loop()
        if loop.time() - self._pruned_at > PRUNE_SECONDS:
            self._pruned_at = loop.time()
            while await self._changes.prune():
                pass
            await self._changes.forget_past()

    async def resync(self) -> None:
        """Add all waiting changes to the work queue."""
        async for name in self._changes.all_waiting():
            self.work_queue.add(name)

    async def _work(self, name: str) -> None:
        record = await self._changes.named(name)
        if record is not None and record.status == WAITING:
            before, record = record, await self._next(record)
            if record is before:
                return  # Another server works on it, or it is not time yet.
        if record is not None and record.is_failure_reported:
            for listener in self._failure_listeners:
                listener(record)
        if record is not None and record.status == WAITING:
            return  # It failed, or another server was faster.
        if record is not None and record.status == HANDLED:
            try:
                await self._settle(record)
            except GitFailed as error:
                LOGGER.warning("project %s: cannot look for superseded runs: %s", record.project, error)
                if await self._store.now() - record.updated_at < SETTLE_SECONDS * SECOND:
                    return  # The next resync tries again.
        await self._changes.done(name)

    async def _next(self, record: ChangeRecord) -> ChangeRecord:
        """Claim the change and handle it once, unless another server has claimed it or it must wait.

        Return its new record.
        """
        now = await self._store.now()
        is_claimed = record.owner != "" and record.not_before > now
        # An earlier process of this machine has stopped, so that its claims are void.
        is_ours = record.owner.partition("/")[0] == self._owner.partition("/")[0]
        if record.not_before > now and not (is_claimed and is_ours):
            return record
        try:
            if not is_claimed or record.owner != self._owner:
                claimed = replace(
                    record,
                    owner=self._owner,
                    not_before=now + CLAIM_SECONDS * SECOND,
                    tries=record.tries + 1,
                    lost_claims=record.lost_claims + (record.owner != ""),
                )
                record = await self._changes.put(claimed)
            return await self._changes.put(await self._tried(record))
        except Conflict:
            return record  # Another server was faster.

    async def _settle(self, kept: ChangeRecord) -> None:
        """Cancel the runs that a handled change supersedes, and notify the listeners."""
        project = await self._projects.find(kept.tenant, kept.project)
        if project is None:
            return
        superseded = await self._superseding.settled(kept, project)
        if superseded:
            with suppress(Conflict):  # Only told to people.
                await self._changes.put(replace(kept, superseded=tuple(superseded)))
        for listener in self._listeners:
            await listener(project, kept)

    async def _tried(self, record: ChangeRecord) -> ChangeRecord:
        """Try to handle the change. Return its record with the outcome, or with the time of the next try."""
        try:
            if record.lost_claims >= MAX_TRIES:
                raise GitFailed("every server that processed it stopped before finishing")
            return await self._handled(record)
        except (Unavailable, Conflict, Overloaded):
            raise
        except NothingToRunError as outcome:
            return _done(record, str(outcome)[:MAX_REASON], ())
        except GitFailed as error:
            reason, max_tries = str(error), MAX_TRANSIENT_TRIES if error.is_transient else MAX_TRIES
        except Refused as refused:
            reason, max_tries = refused.message, MAX_TRIES
        except Exception as error:
            LOGGER.exception("change %s of %s: internal error", record.id, record.project)
            reason = f"internal error: {type(error).__name__}: {error}; see the server log"
            max_tries = MAX_TRIES
        current = await self._changes.find(record.tenant, record.id)
        if current is None or current.owner != self._owner:
            raise Conflict((record.id,))
        failed = replace(
            current,
            reason=reason[:MAX_REASON],
            owner="",
            not_before=0,
            is_failure_reported=current.is_failure_reported or current.tries >= REPORTED_TRIES,
        )
        if current.tries >= max_tries or current.lost_claims >= MAX_TRIES:
            LOGGER.warning(
                "change %s of %s is parked after %d attempts: %s", failed.id, failed.project, failed.tries, reason
            )
            return replace(failed, status=PUT_ASIDE, is_failure_reported=True)
        wait = backoff_seconds(current.tries - 1, FIRST_WAIT_SECONDS, MAX_WAIT_SECONDS) * SECOND
        return replace(failed, not_before=await self._store.now() + wait)

    # -- one change

    async def _handled(self, kept: ChangeRecord) -> ChangeRecord:
        project = await self._projects.find(kept.tenant, kept.project)
        if project is None:
            raise NothingToRunError("the project no longer exists")
        change = kept.change
        if not is_commit(change.commit):
            raise NothingToRunError(
                "the branch or tag was deleted" if set(change.commit) <= {"0"} else "it names no commit"
            )
        mirror = self._mirrors.for_project(project)
        await mirror.ensure_commit(change.commit, change.ref, f"{HEADS}{change.head or change.branch}")
        commit = await mirror.resolve_commit(change.commit)  # Of a tag with a message, what it is about.
        about = await mirror.commit_details(commit)
        if change.event in SKIPPABLE and (SKIPS.search(about.message) or SKIP_TRAILER.search(about.message)):
            return _done(kept, "the commit message asks to skip CI", ())
        filled = replace(
            change,
            commit=commit,
            repository=change.repository or repository_path(project.url),
            message=change.message or about.message[:10_000],
            title=change.title or about.title,
            actor=change.actor or about.author,
            default_branch=change.default_branch or await default_branch(project, mirror),
        )
        # Before any run exists: the planner finds what happened in this document.
        kept = await self._changes.put(replace(kept, change=filled))
        files = await self._files(kept, project, mirror)
        return _done(kept, _told(files), files)

    async def _files(self, kept: ChangeRecord, project: Project, mirror: Mirror) -> tuple[FileOutcome, ...]:
        change = kept.change
        found = await pipelines_at(mirror, change.commit, kept.file)
        if not found:
            return ()
        diff = await compared(mirror, change, change.default_branch)
        outcomes: list[FileOutcome] = []
        for file in found[:MAX_FILES]:
            is_on, why = check_file_triggers(file, change, diff.changed)
            run_id = await self._born(kept, project, file) if is_on else ""
            outcomes.append(FileOutcome(file.result.file, run_id, why[:MAX_REASON]))
        return tuple(outcomes)

    async def _born(self, kept: ChangeRecord, project: Project, file: PipelineFile) -> str:
        id = run_id(kept.id, file.result.file)
        record = run_of(id, kept, project, file.result.file)
        await self._engine.do(NewRecord(id=id, record=record, or_existing=True))
        return id


def run_id(change_id: str, file: str) -> str:
    """Return the id of the run of a change for a file, which is the same each time the change is handled."""
    return f"r{digest(change_id, file, size=RUN_ID_BYTES)}"


def run_of(
    id: str, kept: ChangeRecord, project: Project, file: str, *, fingerprint: str = "", labels: Sequence[str] = ()
) -> Run:
    """Return a new run without a plan for a change and a pipeline file."""
    change = kept.change
    origin = Origin(
        project=project.name,
        branch=change.branch,
        repository=project.url,
        commit=change.commit,
        title=change.title or file,
        labels=tuple(dict.fromkeys((f"event:{change.event}", *labels))),
        inputs={name: _shown(value) for name, value in change.inputs.items()},
        event=change.event,
        file=file,
        ref=change.ref,
        number=change.number,
        change=kept.id,
        is_fork=change.is_fork,
        is_on_branch=bool(change.branch) and change.event in ("push", "schedule") and not change.is_fork,
    )
    return Run(
        id=id,
        run_id=id,
        tenant=kept.tenant,
        started_by=change.actor,
        origin=origin,
        planning_seconds=PLANNING_SECONDS if change.event == "manual" else UNATTENDED_PLANNING_SECONDS,
        request_fingerprint=fingerprint,
    )


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


async def default_branch(project: Project, mirror: Mirror) -> str:
    """Return the project's default branch, or else that of its repository."""
    if project.default_branch:
        return project.default_branch
    return (await mirror.ls_remote()).head.removeprefix(HEADS)


def _told(files: Sequence[FileOutcome]) -> str:
    if not files:
        return "the commit has no pipeline files"
    made = sum(bool(each.run_id) for each in files)
    return f"{made} of {len(files)} pipeline files started a run" if made else "no pipeline file runs for it"


def _done(kept: ChangeRecord, reason: str, files: Sequence[FileOutcome]) -> ChangeRecord:
    return replace(kept, status=HANDLED, reason=reason, files=tuple(files), owner="", not_before=0)
