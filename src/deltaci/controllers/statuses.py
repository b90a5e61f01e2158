"""Report the state of runs to forges. Each project has its own queue, so that a slow forge delays only its project.

Runs of a project are reported one after the other, so that statuses cannot overtake each other. What was reported is
stored (`forges/status_decisions.py`) together with a claim of the server that is about to report. Servers take turns,
and a server that restarts repeats a report that may have been sent, which changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from deltaci.controllers.repositories.change_records import HANDLED, ChangeRecord
from deltaci.core import run
from deltaci.core.errors import Unreachable
from deltaci.engine.event_loop import cancel_and_wait
from deltaci.engine.requests import Overloaded
from deltaci.forges import STATUS_APIS, delivery_dedupe
from deltaci.forges.github_app import AppTokens
from deltaci.forges.http import ForgeHttpClient, NotAllowed
from deltaci.forges.projects import ForgeProject, ForgeProjects, OriginTargets, StatusTarget, StatusTargets
from deltaci.forges.reports import ReportBuilder
from deltaci.forges.status_decisions import (
    MAX_PROBLEM,
    CheckLater,
    ForgeResponse,
    RunVersion,
    StatusApi,
    StatusDone,
    StatusReport,
    StatusRetryPolicy,
    StatusState,
    after_failure,
    after_success,
    document_name,
    existing_check_id,
    is_refusal,
    next_action,
    retry_delay_seconds,
)
from deltaci.storage.blobs.store import BlobStoreUnavailable
from deltaci.storage.port import Conflict, Document, Store, Unavailable

AT_ONCE: Final = 32  # So many requests are under way at once, at most one of each project.
MAX_WAITING: Final = 10_000  # Of one project. What is left out is found again by the next sweep, once it is over.
RETRY_SECONDS: Final = 1.0
MAX_CONFLICTS: Final = 20
COMMIT: Final = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")

LOGGER: Final = logging.getLogger(__name__)

Finish = Callable[[run.Run, str], Awaitable[None]]  # The run is over, and that is how its forge was told.
_TROUBLES: Final = (Unavailable, Conflict, Overloaded, BlobStoreUnavailable)


class ForgeAccess(msgspec.Struct, frozen=True):
    """The dependencies of a `StatusReporter`: projects, HTTP client, report builder, retry policy and clock."""

    projects: ForgeProjects
    client: ForgeHttpClient
    reports: ReportBuilder
    subjects: StatusTargets = OriginTargets()
    patience: StatusRetryPolicy = StatusRetryPolicy()
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    dice: Callable[[], float] = random.random


class _ProjectQueue:
    """The runs of one project that wait to be reported, each with the time at which to report it."""

    def __init__(self) -> None:
        self.waiting: dict[str, float] = {}
        self.is_changed = asyncio.Event()
        self.tries = 0  # How often in a row the forge could not be told.
        self.rests_until = 0.0
        self.task: asyncio.Task[None] | None = None


class StatusReporter:
    """Sends the statuses of runs to the forges of their projects, and retries until they are accepted."""

    def __init__(self, store: Store, forges: ForgeAccess, finish: Finish) -> None:
        self._store = store
        self._forges = forges
        self._finish = finish
        self._who = secrets.token_hex(8)
        self._lines: dict[tuple[str, str], _ProjectQueue] = {}
        self._room = asyncio.Semaphore(AT_ONCE)
        self._apps = AppTokens(forges.client, forges.clock)
        self._change_reports: dict[str, tuple[StatusReport, RunVersion]] = {}  # By the id of the change.

    async def take(self, record: run.Run) -> bool:
        """Schedule reporting the run to its forge. Return False if it has no forge to report to."""
        subject = await self._subject(record)
        if subject is None:
            return False
        try:
            project = await self._forges.projects.find(record.tenant, subject.project)
            if project is None or (_speaker(project) is None and not project.problem):
                return False
        except Unavailable:
            raise
        except Exception as error:  # Whatever it is with one project, others are told. Its line says what it is.
            LOGGER.warning("cannot load project %s: %s", subject.project, error)
        self._put(record.tenant, subject.project, record.id, 0.0)
        return True

    def take_change(self, change: ChangeRecord) -> None:
        """Schedule reporting a change that failed repeatedly: an error, or its outcome after it was handled at last.

        The report is only in memory: a change that still fails is reported again after its next try.
        """
        if not COMMIT.fullmatch(change.change.commit):
            return
        is_failed = change.status != HANDLED
        report = self._forges.reports.build_for_change(change.id, change.change.commit, change.reason, is_failed)
        version = RunVersion(not change.change.is_fork, change.created_at, change.id, change.version)
        self._change_reports[change.id] = report, version
        self._put(change.tenant, change.project, change.id, 0.0)

    async def stop(self) -> None:
        """Stop reporting and close the connections to forges."""
        for line in list(self._lines.values()):
            if line.task is not None:
                await cancel_and_wait(line.task)
        self._lines.clear()
        await self._forges.client.close()

    def _put(self, tenant: str, project: str, run_id: str, at: float) -> None:
        line = self._lines.setdefault((tenant, project), _ProjectQueue())
        if run_id not in line.waiting and len(line.waiting) >= MAX_WAITING:
            LOGGER.warning("project %s: %d runs wait to be reported; dropping one", project, MAX_WAITING)
            return
        line.waiting[run_id] = at
        line.is_changed.set()
        if line.task is None:
            line.task = asyncio.create_task(self._work((tenant, project), line), name=f"forge of {project}")

    async def _work(self, key: tuple[str, str], line: _ProjectQueue) -> None:
        """Report the due runs of one project one after the other, until none waits."""
        while line.waiting:
            line.is_changed.clear()
            now = self._forges.clock()
            due = next((id for id, at in line.waiting.items() if at <= now), None)
            if line.rests_until > now:
                await self._forges.sleep(line.rests_until - now)
            elif due is None:
                await self._rest(line, min(line.waiting.values()) - now)
            else:
                await self._one(key, line, due)
        del self._lines[key]

    async def _rest(self, line: _ProjectQueue, seconds: float) -> None:
        """Wait for these seconds, or until another run of the project waits."""
        waits = [
            asyncio.ensure_future(self._forges.sleep(seconds)),
            asyncio.ensure_future(line.is_changed.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _one(self, key: tuple[str, str], line: _ProjectQueue, run_id: str) -> None:
        asked = line.waiting[run_id] = self._forges.clock()
        try:
            later = await self._tell(key, line, run_id)
        except _TROUBLES as error:
            LOGGER.warning("cannot report run %s to its forge: %s; retrying", run_id, error)
            later = self._forges.clock() + RETRY_SECONDS
        except Exception:
            LOGGER.exception("run %s: internal error while reporting to its forge; retrying later", run_id)
            later = self._forges.clock() + self._forges.patience.max_seconds
        if line.waiting.get(run_id) != asked:
            return  # It has changed meanwhile.
        if later is None:
            del line.waiting[run_id]
        else:
            line.waiting[run_id] = later

    async def _tell(self, key: tuple[str, str], line: _ProjectQueue, run_id: str) -> float | None:
        """Report the present state of a run or a change. Return when to try again, or None if nothing is left to do."""
        project = await self._forges.projects.find(*key)
        speaker = _speaker(project) if project is not None else None
        record: run.Run | None = None
        if run_id in self._change_reports:
            report, mark = self._change_reports[run_id]
            if project is None or speaker is None:
                self._change_reports.pop(run_id)
                return None
        else:
            stored_run = await self._store.find(run_id)
            if not isinstance(stored_run, run.Run):
                return None
            record = stored_run
            subject = await self._subject(record)
            if subject is None or project is None or speaker is None:
                problem = project.problem if project is not None else ""
                await self._end(record, f"exhausted: {problem}"[:MAX_PROBLEM] if problem else "")
                return None
            report = await self._forges.reports.build(record, subject, project)
            mark = RunVersion(not record.origin.is_fork, record.created_at, record.id, record.rev)
        name = document_name(project.name, report.commit, report.context)
        for _ in range(MAX_CONFLICTS):
            found = await delivery_dedupe.find(self._store, delivery_dedupe.STATUS_KIND, project.tenant, name)
            told = _read(found)
            step = next_action(told, mark, report, self._who, self._forges.clock(), self._forges.patience)
            if isinstance(step, StatusDone):
                if record is not None:
                    await self._end(record, step.outcome)
                elif self._change_reports.get(run_id) == (report, mark):
                    del self._change_reports[run_id]
                return None
            if isinstance(step, CheckLater):
                return step.at
            version = found.version if found is not None else 0
            held = delivery_dedupe.new_document(
                delivery_dedupe.STATUS_KIND, project.tenant, name, msgspec.json.encode(step.claimed), version
            )
            try:
                await self._store.put_documents([held])
            except Conflict:
                continue
            after = await self._say(line, project, speaker, report, mark, step.claimed)
            await self._remember(key, held, after)
        return self._forges.clock() + RETRY_SECONDS

    async def _say(
        self,
        line: _ProjectQueue,
        project: ForgeProject,
        speaker: StatusApi,
        report: StatusReport,
        mark: RunVersion,
        told: StatusState,
    ) -> StatusState:
        """Send one status request. Return the state to store after it."""
        forges = self._forges
        answer: ForgeResponse | None = None
        is_refused = False
        try:
            async with self._room:
                opened = await self._apps.with_token(project)
                answer = await forges.client.send(
                    speaker.build_request(opened, report, existing_check_id(told, report))
                )
            if (id := speaker.accepted_id(answer)) is not None:
                line.tries = 0
                return after_success(told, mark, report, id)
            problem = f"the forge answered {answer.status}: {answer.text}"
            is_refused = is_refusal(answer)
            if answer.status == 401:
                self._apps.forget(project)
        except NotAllowed as error:
            problem, is_refused = f"not allowed: {error}", True
        except Unreachable as error:
            problem = f"the forge cannot be reached: {error}"
        tries = told.tries if told.failing == mark else 0
        wait = retry_delay_seconds(max(tries, line.tries), answer, forges.dice(), forges.patience)
        now = forges.clock()
        if not is_refused:  # What is wrong with one run need not be wrong with another.
            line.tries += 1
            line.rests_until = now + wait
        LOGGER.warning(
            "project %s: %s of run %s is not reported: %s", project.name, report.state, report.run_id, problem
        )
        return after_failure(
            told, mark, problem, is_refused=is_refused, delay_seconds=wait, now=now, policy=forges.patience
        )

    async def _remember(self, key: tuple[str, str], held: Document, after: StatusState) -> None:
        """Store the state after a request. If the claim was lost meanwhile, let the newest status be sent again."""
        try:
            await self._store.put_documents(
                [msgspec.structs.replace(held, version=held.version + 1, body=msgspec.json.encode(after))]
            )
        except Conflict:
            await self._doubt(key, held)

    async def _doubt(self, key: tuple[str, str], held: Document) -> None:
        """Mark the stored state as unsure and report its run again: two servers sent a status at the same time."""
        for _ in range(MAX_CONFLICTS):
            found = await self._store.find_document(held.kind, held.name, held.tenant)
            if found is None:
                return
            told = _read(found)
            body = msgspec.json.encode(msgspec.structs.replace(told, is_unsure=True))
            try:
                await self._store.put_documents([msgspec.structs.replace(found, body=body)])
            except Conflict:
                continue
            if told.sent.run_id:
                self._put(*key, told.sent.run_id, 0.0)
            return

    async def _subject(self, record: run.Run) -> StatusTarget | None:
        """Return the commit and context of the run's status, or None if it has no full commit hash."""
        subject = await self._forges.subjects.target_of(record)
        return subject if subject is not None and COMMIT.fullmatch(subject.commit) else None

    async def _end(self, record: run.Run, how: str) -> None:
        if run.MACHINE.changes(record.state, run.Report):
            await self._finish(record, how)


def _speaker(project: ForgeProject) -> StatusApi | None:
    if not project.api_token or not project.repository or project.reports == "nothing":
        return None
    return STATUS_APIS.get(project.forge)


def _read(found: Document | None) -> StatusState:
    if found is None:
        return StatusState()
    try:
        return msgspec.json.decode(found.body, type=StatusState)
    except msgspec.DecodeError:
        return StatusState()  # Written by a version that we do not know: tell it anew.
