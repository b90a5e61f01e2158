"""Programs that take work from the queue without being runners: they use document 004's words, and some of them die.

They have a label that no runner has, so some of the work is theirs alone. Like runners they stop when they can no
longer prove their lease; what really executes is written down by the world.
"""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import Any, Final

from deltaci.core import attempt, ids
from deltaci.core.attempt import Attempt, LeasedCommand
from deltaci.core.cascade import NewRecord
from deltaci.core.decide import CancelJob, Decision
from deltaci.core.events import worker_actor
from deltaci.core.failures import Facts
from deltaci.core.ids import LeaseRef
from deltaci.core.worker import Worker
from deltaci.engine.engine import Claim, ClaimedAttempt, Engine
from deltaci.simulation.checker.executions import Truth
from deltaci.simulation.checker.facts import AttemptFacts
from deltaci.simulation.checker.history_checker import Checker
from deltaci.simulation.client import Orders
from deltaci.simulation.runner import TENANT
from deltaci.simulation.scenario import Mix
from deltaci.simulation.virtual_time import VirtualLoop

LABEL: Final = "gpu"
PLACES: Final = 3
KNOWN: Final = ("p0", "p1")  # Registered, with so many places.
UNKNOWN: Final = "q0"  # Never registered: the plain queue also serves those.

DEATHS: Final = ("LEASED", "STARTING", "RUNNING", "UPLOADING", "lingers", "hands back", "deaf")
DEAF_SECONDS: Final = 3600.0  # One that hears no cancel goes on for long.
FAILURES: Final = (
    Facts(exit_code=1),
    Facts(exit_code=127),
    Facts(error_code="CACHE_FETCH"),
    Facts(exit_code=2, log_tail=("No space left on device",)),
    Facts(exit_code=1, failed_tests=("a",), flaky_tests=("a",)),
    Facts(signal=9),
)


class Programs:
    """All of them."""

    def __init__(self, mix: Mix, loop: VirtualLoop, orders: Orders, checker: Checker, truth: Truth) -> None:
        self._mix = mix
        self._loop = loop
        self._orders = orders
        self._checker = checker
        self._truth = truth
        self._names = list(KNOWN) if mix.seed % 2 else []

    def see_queued(self, it: AttemptFacts, random: Random) -> None:
        """Something waits that only a program can take, or a program may as well."""
        if it.labels or random.random() < 0.3:
            wait = max(0, it.run_at - it.at) / 1e6 + random.choice((1.0, 60.0)) * random.random()
            self._orders.later(wait, lambda: self._take(it, random))

    async def _take(self, it: AttemptFacts, random: Random) -> None:
        """Ask for it until somebody has it."""
        while it.state == "QUEUED":
            name = await self._known(random)
            rivals = self._rivals(name)
            claim = Claim(
                tenant=TENANT,
                worker_id=name,
                labels=(LABEL,),
                limit=1,
                ttl_seconds=self._mix.ttl_seconds,
                accept_seconds=30,
                only_ids=(it.id,),
                other_worker_labels=tuple(tuple(sorted(labels)) for labels in rivals.values()),
                other_worker_ids=tuple(rivals),
            )
            said_at, seen, now = self._loop.now, self._revs(it, name), self._orders.wall()
            answer = await self._orders.insist(partial(_claimed, claim=claim), random, said_at + 60)
            if isinstance(answer, list) and answer:
                self._orders.given(it.id, name, rivals)
                await self._work(answer[0], said_at, random)
                return
            if answer == [] and seen == self._revs(it, name) and not self._mix.has_jumps:
                self._orders.withheld(it.id, name, rivals, now)
            if not it.labels:
                return  # A runner will.
            await asyncio.sleep(random.choice((5.0, 60.0)))

    async def _known(self, random: Random) -> str:
        """The name of a program that may take work. One that was sent away comes back under another name."""
        if not self._names:
            return UNKNOWN
        place = random.randrange(len(self._names))
        it = self._checker.workers.get(self._names[place])
        if it is not None and it.state == "SHUTDOWN":
            self._names[place], it = f"{self._names[place]}+", None
        name = self._names[place]
        if it is None:
            record = Worker(id=name, tenant=TENANT, labels=(LABEL,), max_concurrent_tasks=PLACES)
            await self._orders.do("birth", NewRecord(id=name, record=record, request_id=f"{name} come"), random)
        return name

    def _revs(self, it: AttemptFacts, name: str) -> tuple[int, int]:
        """What changes when one of the two does."""
        worker = self._checker.workers.get(name)
        return it.rev, worker.rev if worker is not None else 0

    def _rivals(self, name: str) -> dict[str, frozenset[str]]:
        """The other programs that could take work now, with their labels."""
        others = {each: self._checker.workers.get(each) for each in self._names if each != name}
        return {id: it.labels for id, it in others.items() if it is not None and it.is_free}

    def reclaim(self, id: str, wait: float, random: Random) -> None:
        """Take what is stale without waiting for it to be queued again."""
        self._orders.later(wait, lambda: self._reclaim(id, random))

    async def _reclaim(self, id: str, random: Random) -> None:
        it = self._checker.known.get(id)
        if not isinstance(it, AttemptFacts):
            return
        number = it.claims + 1
        token = ids.lease_id(id, number, f"{random.getrandbits(128):032x}")
        grant = attempt.Grant(
            id=id,
            actor=worker_actor(UNKNOWN),
            fingerprint=ids.lease_fingerprint(token),
            labels=(LABEL,),
            ttl_seconds=self._mix.ttl_seconds,
        )
        said_at = self._loop.now
        answer = await self._orders.insist(lambda engine: engine.do(grant), random, said_at + 10)
        record = answer.record if isinstance(answer, Decision) else None
        if isinstance(record, Attempt) and record.lease is not None and record.lease.number == number:
            await self._work(ClaimedAttempt(record, token), said_at, random)

    async def _work(self, claimed: ClaimedAttempt, said_at: float, random: Random) -> None:
        held = claimed.attempt.lease
        assert held is not None
        work = _Work(self._orders, self._loop, claimed, held.worker_id, said_at, self._mix.ttl_seconds, random)
        seconds, code = (float(part) for part in claimed.attempt.spec["steps"][0].split())
        death = random.choice(DEATHS) if self._orders.does("program dies", random) else ""
        if death == "LEASED":
            return
        if random.random() < 0.5 and not await work.say(attempt.Ack if random.random() < 0.5 else attempt.Extend):
            return
        if death == "STARTING" or not await work.say(attempt.Start):
            return
        if death == "deaf":
            work.is_deaf, seconds = True, DEAF_SECONDS
            self._cancel(claimed.attempt, random)
        self._truth.began(work.ref.attempt_id, work.ref.number, work.who)
        is_leaving = death in ("RUNNING", "hands back")
        is_done = await work.keep(seconds / 2 if is_leaving else seconds)
        exit_code = int(code) if is_done and not is_leaving else None
        self._truth.ended(work.ref.attempt_id, work.ref.number, work.who, exit_code)
        if work.is_canceled and not work.is_deaf:
            await work.say(attempt.CancelAck)
        elif death == "hands back" and is_done:
            await self._orders.hand_back(work.who, claimed.lease_id, random)
        elif exit_code is not None:
            await self._finish(work, exit_code, death, random)

    def _cancel(self, it: Attempt, random: Random) -> None:
        """Somebody wants it to stop."""
        if it.job_id:
            cancel = CancelJob(id=it.job_id, actor="user:u", request_id=f"{it.id} deaf")
            self._orders.later(300 * random.random(), partial(self._orders.do, "cancel", cancel, random))

    async def _finish(self, work: _Work, exit_code: int, death: str, random: Random) -> None:
        if random.random() < 0.7 or death:
            if not await work.say(attempt.BeginUpload) or death == "UPLOADING":
                return
            if not await work.keep(7200 if death == "lingers" else 40 * random.random()):
                if work.is_canceled:
                    await work.say(attempt.CancelAck)
                return
        facts = random.choice(FAILURES) if exit_code else Facts()
        verdict = None if exit_code else self._looked_at(work)
        await work.say(attempt.Finish, is_success=exit_code == 0, facts=facts, verdict=verdict)

    def _looked_at(self, work: _Work) -> attempt.Verdict | None:
        """What a program finds when it looks at the rules, which takes it no time."""
        for rule in work.rules:
            self._truth.ended(work.ref.attempt_id, work.ref.number, work.who, int(rule["run"].split()[1]), is_rule=True)
        codes = self._truth.judged.get((work.ref.attempt_id, work.ref.number))
        return attempt.Verdict(is_passed=not any(codes), details="1" if any(codes) else "") if codes else None


async def _claimed(engine: Engine, claim: Claim) -> list[ClaimedAttempt]:
    return await engine.claim(claim)


class _Work:
    """One lease in the hands of a program."""

    def __init__(
        self,
        orders: Orders,
        loop: VirtualLoop,
        claimed: ClaimedAttempt,
        who: str,
        said_at: float,
        ttl_seconds: float,
        random: Random,
    ) -> None:
        self._orders = orders
        self._loop = loop
        self._random = random
        self._ttl = ttl_seconds
        self._margin = min(10.0, ttl_seconds / 4)
        self._proved_until = said_at + ttl_seconds - self._margin
        self.ref: LeaseRef = ids.lease_ref(claimed.lease_id)
        self.who = who
        self.rules: list[dict[str, str]] = (claimed.attempt.spec or {}).get("rules", [])
        self.is_canceled = self.is_deaf = False

    async def say(self, message: type[LeasedCommand], **fields: Any) -> bool:
        """Whether it was heard and stands. A renewed lease runs anew from when it was said."""
        said = message(id=self.ref.attempt_id, actor=worker_actor(self.who), lease=self.ref, tenant=TENANT, **fields)
        said_at = self._loop.now

        async def do(engine: Engine) -> Decision:
            nonlocal said_at
            said_at = self._loop.now
            return await engine.do(said)

        answer = await self._orders.insist(do, self._random, self._proved_until)
        if not isinstance(answer, Decision) or not isinstance(answer.record, Attempt):
            return False
        if answer.events and answer.record.lease is not None:
            self._proved_until = said_at + self._ttl - self._margin
        self.is_canceled = answer.record.state == attempt.CANCEL_REQUESTED
        return self.is_deaf or not self.is_canceled

    async def keep(self, seconds: float) -> bool:
        """Go on for so long, and prove the lease meanwhile. False: it has to stop, or cannot be proved."""
        end = self._loop.now + seconds
        while (left := end - self._loop.now) > 0:
            if self._loop.now >= self._proved_until:
                return False
            await asyncio.sleep(min(left, self._ttl / 3, max(0.1, self._proved_until - self._loop.now)))
            if self._loop.now < end and not await self.say(attempt.Extend):
                return False
        return self._loop.now < self._proved_until
