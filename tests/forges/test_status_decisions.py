"""Statuses are sent in order: whatever fails and however two servers interleave, a forge ends with the newest one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltaci.core import run
from deltaci.core.errors import Unreachable
from deltaci.forges.http import ForgeHttpClient
from deltaci.forges.status_decisions import (
    CheckLater,
    ForgeRequest,
    ForgeResponse,
    RunVersion,
    SendStatus,
    StatusDone,
    StatusReport,
    StatusRetryPolicy,
    StatusState,
    after_failure,
    after_success,
    next_action,
    retry_delay_seconds,
)
from deltaci.storage.memory import MemoryStore
from tests.contract.backends import Backend
from tests.forges.reporting_server import ReportingServer, let_others_run, reporting
from tests.support.lab import TENANT, Lease

ORDER = ("waiting to start", "under way")


class UnreliableClient(ForgeHttpClient):
    """A client that is slow and loses requests and responses. `effects` are the statuses that the forge received."""

    def __init__(self, random: Random, effects: list[tuple[str, str]]) -> None:
        super().__init__()
        self._random = random
        self._effects = effects

    async def send(self, request: ForgeRequest) -> ForgeResponse:
        """Deliver the request and the response, each only with some probability."""
        await let_others_run(self._random.randrange(20))
        chance = self._random.random()
        if chance < 0.15:
            raise Unreachable("the request is lost")
        if chance < 0.25:
            return ForgeResponse(503)
        self._effects.append((request.body["target_url"].rpartition("/")[2], request.body["description"]))
        await let_others_run(self._random.randrange(20))
        if chance < 0.4:
            raise Unreachable("the response is lost")
        return ForgeResponse(201)


async def history(random: Random, folder: Path) -> tuple[list[tuple[str, str]], dict[str, str], list[str]]:
    """Report some runs of one commit from two servers.

    Returns the statuses that the forge received, how the reporting of each run ended, and the ids of the runs.
    """
    backend = Backend("memory", lambda _: shared)
    shared = MemoryStore(clock=backend.now)
    effects: list[tuple[str, str]] = []
    quick = StatusRetryPolicy(initial_seconds=0.001, max_seconds=0.005, claim_seconds=30)
    clients = [UnreliableClient(random, effects), UnreliableClient(random, effects)]
    async with (
        reporting(backend, folder, retry_policy=quick, client=clients[0]) as one,
        reporting(backend, folder, retry_policy=quick, client=clients[1]) as two,
    ):
        await one.project_documents.add("p", "github", TENANT, repository="o/h", api_url="https://x", api_token="t")
        ids: list[str] = []
        held: list[Lease] = []
        for _ in range(random.randrange(1, 10)):
            at = random.choice((one, two))
            await let_others_run(random.randrange(60))
            await _happen(random, at, ids, held)
        if not ids:
            await one.start_run("r0")
            ids.append("r0")
        for id in ids:
            if not run.is_over(await one.server.find(id, run.Run)):
                await one.server.do(run.Cancel(id=id, actor="user:ada"))
        while held:
            await one.finish_job(held.pop())
        outcomes = {id: str((await one.reported_event(id)).metadata.get("told")) for id in ids}
        return effects, outcomes, ids


async def _happen(random: Random, at: ReportingServer, ids: list[str], held: list[Lease]) -> None:
    match random.choice(("begin", "work", "end")):
        case "begin":
            ids.append(f"r{len(ids)}")
            await at.start_run(ids[-1])
        case "work":
            for claimed in await at.server.claim("w1"):
                held.append(Lease("w1", claimed.lease_id))
                await at.server.do(at.start_command(held[-1]))
        case "end" if held:
            await at.finish_job(held.pop(random.randrange(len(held))), ok=random.random() < 0.5)


@pytest.mark.parametrize("seed", range(25))
def test_a_forge_never_goes_back_and_ends_up_with_the_truth(seed: int, tmp_path: Path) -> None:
    """Time is real here, so a seed does not repeat a history exactly; but each is another one."""
    effects, outcomes, ids = asyncio.run(asyncio.wait_for(history(Random(seed), tmp_path), 30))

    steps = [
        (ids.index(id), ORDER.index(description) if description in ORDER else len(ORDER)) for id, description in effects
    ]
    assert steps == sorted(steps)
    assert steps[-1] == (len(ids) - 1, len(ORDER))
    for index, id in enumerate(ids):
        is_sent = (index, len(ORDER)) in steps
        assert is_sent or outcomes[id].startswith("superseded"), (id, outcomes[id], effects)


# -- the pure functions

POLICY = StatusRetryPolicy()
REPORT = StatusReport(run_id="r1", commit="c", context="deltaci", state="running", description="under way")
NEWER_RUN = RunVersion(True, 2, "r2", 1)
FORK_RUN = RunVersion(False, 3, "r3", 1)


def rev(number: int) -> RunVersion:
    """Return run r1 at a revision."""
    return RunVersion(True, 1, "r1", number)


def running(sent: RunVersion, attempted: RunVersion | None = None) -> StatusState:
    """Return the state of a context whose sent status equals REPORT."""
    state = StatusState(sent=sent, state="running", description="under way")
    return msgspec.structs.replace(state, attempted=attempted) if attempted is not None else state


@pytest.mark.parametrize(
    ("state", "version", "action"),
    [
        (StatusState(), rev(3), SendStatus),
        (StatusState(sent=rev(2), state="pending"), rev(3), SendStatus),
        (StatusState(sent=rev(3), state="running"), rev(3), StatusDone),
        (StatusState(sent=rev(4), state="success"), rev(3), StatusDone),
        (StatusState(sent=NEWER_RUN, state="pending"), rev(3), StatusDone),
        (StatusState(sent=NEWER_RUN, state="pending", is_unsure=True), rev(3), StatusDone),
        (StatusState(sent=rev(2), attempted=NEWER_RUN), rev(3), StatusDone),
        (StatusState(sent=rev(2), attempted=NEWER_RUN), NEWER_RUN, SendStatus),
        (StatusState(sent=NEWER_RUN), FORK_RUN, StatusDone),
        (StatusState(sent=FORK_RUN), NEWER_RUN, SendStatus),
        (StatusState(sent=rev(3), state="running", is_unsure=True), rev(3), SendStatus),
        (running(sent=rev(2)), rev(3), StatusDone),
        (running(sent=RunVersion(True, 1, "r0", 2)), rev(3), SendStatus),
        (running(sent=rev(1), attempted=rev(2)), rev(3), SendStatus),
        (StatusState(claimed_by="other", claimed_until=101.0), rev(3), CheckLater),
        (StatusState(claimed_by="other", claimed_until=100.0), rev(3), SendStatus),
        (StatusState(claimed_by="me", claimed_until=101.0), rev(3), SendStatus),
        (StatusState(failing=rev(3), retry_at=101.0), rev(3), CheckLater),
        (StatusState(failing=rev(2), retry_at=101.0), rev(3), SendStatus),
        (StatusState(failing=rev(3), is_abandoned=True), rev(3), StatusDone),
    ],
)
def test_the_next_action_depends_on_what_was_sent_before(state: StatusState, version: RunVersion, action: type) -> None:
    assert isinstance(next_action(state, version, REPORT, "me", 100.0, POLICY), action)


def test_a_server_claims_the_context_before_it_sends() -> None:
    """The claim lasts longer than a request can take, and ends with success."""
    action = next_action(StatusState(), rev(1), REPORT, "me", 100.0, POLICY)

    assert isinstance(action, SendStatus)
    assert (action.claimed.claimed_by, action.claimed.claimed_until) == ("me", 100.0 + POLICY.claim_seconds)
    assert not after_success(action.claimed, rev(1), REPORT, "7").claimed_by


def test_another_version_has_its_own_count_of_failures() -> None:
    """What kept one status from being accepted need not keep the next one."""
    state = StatusState()
    for now in range(POLICY.max_refusals):
        state = after_failure(state, rev(1), "no", is_refused=True, delay_seconds=1.0, now=float(now), policy=POLICY)
    assert state.is_abandoned

    state = after_failure(state, rev(2), "no", is_refused=True, delay_seconds=1.0, now=99.0, policy=POLICY)

    assert (state.tries, state.refusals, state.failing_since, state.is_abandoned) == (1, 1, 99.0, False)


@given(tries=st.integers(0, 10_000), random=st.floats(0, 1), requested=st.floats(0, 1e9))
def test_retry_delays_are_bounded(tries: int, random: float, requested: float) -> None:
    delay = retry_delay_seconds(tries, ForgeResponse(503, retry_after_seconds=requested), random, POLICY)

    assert POLICY.initial_seconds / 2 <= delay <= max(POLICY.max_seconds, POLICY.max_retry_after_seconds)
    assert delay >= min(requested, POLICY.max_retry_after_seconds)
