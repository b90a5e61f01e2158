"""The write path: no caller is answered before the commit, and no command affects another one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from deltaci.core import attempt, run
from deltaci.core.attempt import Attempt
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import Decision, Plan
from deltaci.core.errors import InvariantBroken, Refused
from deltaci.core.machine import Command
from deltaci.core.run import Run
from deltaci.engine import engine, shard
from deltaci.storage.port import Conflict, Store, Transaction, Unavailable, Write
from tests.contract.backends import Backend, T, Wrapped, in_memory, legal, new_attempt, on_loop, refused, runner_message
from tests.support.lab import TENANT, task


class Poison(Command, frozen=True, kw_only=True):
    """An order that no machine takes: a bug of ours."""


class Failing(Wrapped):
    """A store that breaks just before its commit, or just after it."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.is_before = False
        self.is_after = False
        self.tries = 0

    async def transact(self, work: Callable[[], Transaction[T]]) -> T:
        self.tries += 1
        answer = await self.inner.transact(self._breaking(work) if self.is_before else work)
        if self.is_after:
            raise Unavailable("the connection broke after the commit")
        return answer

    @staticmethod
    def _breaking(work: Callable[[], Transaction[T]]) -> Callable[[], Transaction[T]]:
        def broken() -> Transaction[T]:
            inner, answer = work(), None
            try:
                while True:
                    request = inner.send(answer)
                    if isinstance(request, Write):
                        raise Unavailable("the connection broke before the commit")
                    answer = yield request
            except StopIteration as end:
                result: T = end.value
                return result

        return broken


class Contested(Wrapped):
    """A store in which another writer always, or a number of times, is a little faster."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.conflicts = 0
        self.seen = 0

    async def transact(self, work: Callable[[], Transaction[T]]) -> T:
        if self.seen < self.conflicts:
            self.seen += 1
            raise Conflict(("somebody",))
        return await self.inner.transact(work)


class Slow(Wrapped):
    """A store whose commit waits until the test releases it."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.is_reached = asyncio.Event()
        self.may_go = asyncio.Event()

    async def transact(self, work: Callable[[], Transaction[T]]) -> T:
        self.is_reached.set()
        await self.may_go.wait()
        return await self.inner.transact(work)


async def outcomes(*asked: Any) -> list[Any]:
    """Return the result or the exception of each call."""
    return list(await asyncio.gather(*asked, return_exceptions=True))


# -- answers


@in_memory
@on_loop
async def test_a_failed_commit_is_reported_and_nothing_is_visible(backend: Backend) -> None:
    """An answer is a promise; without a commit nothing can be promised."""
    async with backend.server(Failing) as server:
        store = server.store
        assert isinstance(store, Failing)
        store.is_before = True

        found = await outcomes(server.do(new_attempt("x/1")), server.do(new_attempt("x/2")))

        assert [type(each) for each in found] == [Unavailable] * 2
        assert await store.find("x/1") is None
        assert await server.log() == []

        store.is_before = False
        assert (await server.enqueue("x/1")).rev == 1
        assert [event.entity_id for event in await server.verified()] == ["x/1"]


@in_memory
@on_loop
async def test_a_command_is_repeated_with_the_same_request_id_after_a_lost_answer(backend: Backend) -> None:
    """The caller does not know whether the commit happened; the repeat finds out and changes nothing."""
    async with backend.server(Failing) as server:
        store = server.store
        assert isinstance(store, Failing)
        store.is_after = True
        with pytest.raises(Unavailable):
            await server.do(new_attempt("a", request_id="once"))
        store.is_after = False

        again = await server.do(new_attempt("a", request_id="once"))

        assert again.events == []
        assert again.record == await store.find("a")
        assert len(await server.verified()) == 1


@in_memory
@on_loop
async def test_an_unavailable_store_is_not_called_once_for_each_command(backend: Backend) -> None:
    """Single retries of each command would overload a store that is down."""
    async with backend.server(Failing) as server:
        store = server.store
        assert isinstance(store, Failing)
        store.is_before = True

        found = await outcomes(*(server.do(new_attempt(f"x/{n}")) for n in range(50)))

        assert {type(each) for each in found} == {Unavailable}
        assert store.tries <= 2


@on_loop
async def test_no_caller_is_answered_before_the_commit(backend: Backend) -> None:
    """A crash in between must look like a lost answer, never like a broken promise."""
    async with backend.server(Slow) as server:
        store = server.store
        assert isinstance(store, Slow)
        asking = asyncio.ensure_future(server.do(new_attempt("a")))
        await store.is_reached.wait()

        is_early = asking.done()
        store.may_go.set()
        await asking

        assert not is_early
        assert await store.find("a") is not None


@in_memory
@on_loop
async def test_callers_that_wait_when_the_engine_stops_get_an_error(backend: Backend) -> None:
    """A caller that will not be answered must not wait for ever."""
    async with backend.server(Slow) as server:
        store = server.store
        assert isinstance(store, Slow)
        waiting = [asyncio.ensure_future(server.do(new_attempt(f"x/{n}"))) for n in range(2)]
        await store.is_reached.wait()
        late = asyncio.ensure_future(server.do(new_attempt("x/3")))

        await server.engine.stop()
        found = await outcomes(*waiting, late)

        assert all(isinstance(each, asyncio.CancelledError) for each in found), found


@in_memory
@on_loop
async def test_a_cancelled_caller_affects_no_other_command(backend: Backend) -> None:
    """Clients disconnect all the time."""
    async with backend.server(Slow) as server:
        store = server.store
        assert isinstance(store, Slow)
        gone = asyncio.ensure_future(server.do(new_attempt("x/1")))
        stays = asyncio.ensure_future(server.do(new_attempt("x/2")))
        await store.is_reached.wait()

        gone.cancel()
        store.may_go.set()
        await stays

        assert [type(answer) for answer in await outcomes(gone)] == [asyncio.CancelledError]
        assert await store.find("x/2") is not None
        assert (await server.enqueue("x/3")).rev == 1


@in_memory
@on_loop
async def test_a_full_inbox_refuses_at_once(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every queue has a limit: it is better to refuse a command than to store it without end."""
    monkeypatch.setattr(shard, "MAX_WAITING", 3)
    async with backend.server(Slow) as server:
        store = server.store
        assert isinstance(store, Slow)
        waiting = [asyncio.ensure_future(server.do(new_attempt(f"x/{n}"))) for n in range(5)]
        await store.is_reached.wait()

        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert {type(each.exception()) for each in done} == {engine.Overloaded}

        store.may_go.set()
        found = await outcomes(*waiting)
        assert sum(isinstance(each, Decision) for each in found) == 3


# -- neighbours


@on_loop
async def test_commands_of_one_batch_see_each_other(backend: Backend) -> None:
    """Two commands that one caller sends in order are applied in order, in one batch or two."""
    async with backend.server() as server:
        new = Run(id="r1", run_id="r1", tenant=TENANT)

        found = await server.engine.do_all(
            [
                NewRecord(id="r1", record=new),
                run.BeginPlanning(id="r1"),
                Plan(id="r1", jobs=(task("a"), task("b", "a"))),
                run.Cancel(id="r1", actor="user:ada"),
                run.Report(id="r1", actor="reporter"),
            ]
        )

        assert not [each for each in found if isinstance(each, Refused)]
        assert await server.state("r1") == run.REPORTED
        assert await server.state("r1/b") == "CANCELED"
        assert len({event.at for event in await server.verified()}) == 1


@in_memory
@on_loop
async def test_an_attempt_that_is_enqueued_and_canceled_in_one_batch_is_over(backend: Backend) -> None:
    """A record may be created and finished in one transaction; it is stored only as a finished one."""
    async with backend.server() as server:
        await outcomes(
            server.do(new_attempt("a")),
            server.do(attempt.Cancel(id="a", reason="CANCELED")),
            server.do(new_attempt("b")),
        )

        assert await server.state("a") == attempt.CANCELED
        assert [claimed.attempt.id for claimed in await server.claim(limit=9)] == ["b"]
        await server.verified()


@in_memory
@on_loop
async def test_a_refused_command_does_not_disturb_its_neighbours(backend: Backend) -> None:
    """A batch is how we write, not a fate that callers share."""
    async with backend.server() as server:
        await server.enqueue("x/0")

        found = await server.engine.do_all(
            [
                new_attempt("x/1"),
                new_attempt("x/0"),
                attempt.Stall(id="x/1"),
                attempt.Cancel(id="nobody", reason="CANCELED"),
                attempt.Cancel(id="x/0", reason="CANCELED", expected_rev=7),
                new_attempt("x/2"),
            ]
        )

        codes = [each.code if isinstance(each, Refused) else "" for each in found]
        assert codes == ["", "bad_request", "wrong_state", "not_found", "stale_rev", ""]
        assert sorted(event.entity_id for event in await server.verified()) == ["x/0", "x/1", "x/2"]


@in_memory
@on_loop
async def test_a_poisonous_command_fails_alone(backend: Backend) -> None:
    """Our own bug in one corner must not stop the whole deployment."""
    async with backend.server() as server:
        found = await outcomes(
            server.do(new_attempt("x/1")),
            server.do(Poison(id="x/1")),
            server.do(new_attempt("x/2")),
            server.do(new_attempt("x/1")),
        )

        assert [type(each) for each in found] == [Decision, InvariantBroken, Decision, Refused]
        assert (await server.enqueue("x/3")).rev == 1
        assert [event.entity_id for event in await server.verified()] == ["x/1", "x/2", "x/3"]


@in_memory
@on_loop
async def test_more_commands_than_fit_one_batch_are_all_applied(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of a batch bounds a transaction, not the number of commands of a caller."""
    monkeypatch.setattr(engine, "MAX_BATCH", 10)
    monkeypatch.setattr(shard, "MAX_BATCH", 10)
    async with backend.server() as server:
        found = await server.engine.do_all([new_attempt(f"x/{n}") for n in range(57)])
        singles = await outcomes(*(server.do(new_attempt(f"y/{n}")) for n in range(57)))

        assert [each.record.id for each in found if isinstance(each, Decision)] == [f"x/{n}" for n in range(57)]
        assert [single.record.id for single in singles] == [f"y/{n}" for n in range(57)]
        assert len(await server.verified()) == 114


@in_memory
@on_loop
async def test_more_records_than_fit_the_cache_are_still_right(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache only saves time."""
    monkeypatch.setattr(shard, "MAX_CACHED", 5)
    async with backend.server() as server:
        for n in range(12):
            await server.enqueue(f"x/{n}")
        for n in range(12):
            await server.do(attempt.Cancel(id=f"x/{n}", reason="CANCELED", expected_rev=1))

        assert {await server.state(f"x/{n}") for n in range(12)} == {attempt.CANCELED}
        await server.verified()


# -- somebody else was faster


@on_loop
async def test_a_command_is_decided_again_after_a_conflict(backend: Backend) -> None:
    """That another writer was first is not the caller's concern."""
    async with backend.server(Contested) as server:
        store = server.store
        assert isinstance(store, Contested)
        await server.enqueue("a")
        store.conflicts = 5

        canceled = await server.do(attempt.Cancel(id="a", reason="CANCELED", request_id="c"))

        assert store.seen == 5
        assert canceled.record.state == attempt.CANCELED
        await server.verified()


@in_memory
@on_loop
async def test_a_conflict_without_end_is_reported(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every retry has a limit."""
    monkeypatch.setattr(shard, "MAX_CONFLICTS", 3)
    async with backend.server(Contested) as server:
        store = server.store
        assert isinstance(store, Contested)
        store.conflicts = 1000

        with pytest.raises(Conflict):
            await server.do(new_attempt("a"))

        assert store.seen == 3
        store.conflicts = 0
        assert (await server.enqueue("a")).rev == 1


@on_loop
async def test_a_repeat_is_answered_like_the_first_time(backend: Backend) -> None:
    """Success without change: the same record, no event, whichever way the message took."""
    async with backend.server() as server:
        await server.enqueue("a")
        lease = await server.take()
        first = await server.do(runner_message(attempt.Start, lease, request_id="s"))
        before = await server.log()

        again = await server.do(runner_message(attempt.Start, lease, request_id="s"))

        assert again.record == first.record
        assert (again.events, again.changed) == ([], {})
        assert legal(await server.log()) == before


@in_memory
@on_loop
async def test_a_message_of_a_finished_attempt_still_gets_its_answer(backend: Backend) -> None:
    """The record has left the hot table, and its runner's last answer may have been lost."""
    async with backend.server() as server:
        await server.enqueue("a")
        lease = await server.take()
        done = await server.send(attempt.Complete, lease, is_success=True, exit_code=0, result={"n": 1})

        again = await server.send(attempt.Complete, lease, is_success=True, exit_code=0, result={"n": 1})
        late = await refused(server.do(runner_message(attempt.Heartbeat, lease)), "stale_lease")

        assert again == done
        assert isinstance(await server.store.find("a"), Attempt)
        assert "COMPLETED" in late.message
        await server.verified()


@on_loop
async def test_a_queue_that_closes_in_the_middle_of_a_batch_closes(backend: Backend) -> None:
    """A cancellation that a library swallows must not leave a caller waiting for ever."""
    for turns in range(30):
        async with backend.queue() as queue:
            asked = asyncio.create_task(queue.claim_next("w1", wait_seconds=60))
            for _ in range(turns):
                came = asyncio.Event()
                asyncio.get_running_loop().call_soon(came.set)
                await came.wait()
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
