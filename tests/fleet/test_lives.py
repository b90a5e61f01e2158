"""Lives: what is over stays over, and whoever went by itself comes back as somebody new under the same name."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from deltaci.core import worker
from deltaci.core.ids import first_incarnation_id, incarnation_id, worker_name
from deltaci.core.worker import DRAINED, IDLE, PRESUMED_GONE, QUARANTINED, SHUTDOWN
from deltaci.fleet.health import HEALTH_SECONDS, MAX_SILENT_SECONDS
from deltaci.fleet.incarnations import Incarnations
from deltaci.server.auth.credentials import REGISTRATION_SECONDS
from tests.contract.places import on_loop
from tests.fleet.site import FleetSite, OpenFleet
from tests.lab import TENANT
from tests.server.site import Reply, Runner

OWN = "a random text that this runner made"


async def renewed(runner: Runner, **fields: Any) -> Runner:
    """The runner, as it is called after it renewed its credential."""
    reply = await runner.ask("POST", "renew", json.dumps(fields).encode())
    assert reply.status == 200, reply
    runner.site.secrets.add(reply.body["credential"])
    return Runner(runner.site, reply.body["runner_id"], reply.body["credential"])


async def presumed_gone(site: FleetSite, id: str = "w1") -> None:
    """Nobody has heard of it for too long."""
    await site.server.do(worker.Shutdown(id=id, reason=PRESUMED_GONE))
    await site.hear()


def token(site: FleetSite, *, again: bool) -> str:
    """A new token for w1."""
    made = site.signer.sign("register", "w1", TENANT, REGISTRATION_SECONDS, again=again)
    site.secrets.add(made)
    return made


async def refused(site: FleetSite, shown: str, **fields: Any) -> str:
    """Why somebody was not let in."""
    reply: Reply = await site.refused(lambda: site.register(shown, **fields))
    assert reply.code == "bad_credential", reply
    return reply.message


def test_a_life_is_called_by_its_name_and_number() -> None:
    """The first one has the name itself. What else stands behind a slash is somebody who shares a credential."""
    assert [incarnation_id("w", number) for number in (1, 2, 10)] == ["w", "w/2", "w/10"]
    assert [worker_name(id) for id in ("w", "w/2", "host/a")] == ["w", "w", "host"]
    assert [first_incarnation_id(id) for id in ("w", "w/2", "w/10")] == ["w"] * 3
    assert [first_incarnation_id(id) for id in ("w/1", "w/02", "w/a", "w/", "w/²")] == [
        "w/1",
        "w/02",
        "w/a",
        "w/",
        "w/²",
    ]


@on_loop
async def test_who_was_removed_stays_out_until_there_is_a_new_token(fleet: OpenFleet) -> None:
    """Neither its credential nor any token of before lets it in."""
    async with fleet() as here:
        runner = await here.runner("w1")
        here.place.after(5)
        spares = [token(here, again=again) for again in (True, False)]
        await here.server.do(worker.Shutdown(id="w1", reason=worker.REMOVED, actor="user:ada"))
        await here.hear()
        here.place.after(5)

        reply = await here.refused(lambda: runner.ask("POST", "renew"))
        assert (reply.code, "was shut down" in reply.message) == ("bad_credential", True)
        reply = await here.refused(lambda: runner.ask("POST", "lease", b'{"type": "Lease", "runner_id": "w1"}'))
        assert (reply.code, "REMOVED" in reply.message) == ("shut_down", True)
        for spare in spares:
            await refused(here, spare)
        back = await here.register(token(here, again=True))

        assert (back.status, back.body["runner_id"]) == (200, "w1/2")
        here.secrets.add(back.body["credential"])
        assert (await here.state("w1"), await here.state("w1/2")) == (SHUTDOWN, IDLE)


@on_loop
async def test_who_was_gone_already_can_be_removed_as_well(fleet: OpenFleet) -> None:
    """Somebody does not want it back: then it does not come back by itself."""
    async with fleet() as here:
        runner = await here.runner("w1")
        await presumed_gone(here)
        life = await here.lives.latest(TENANT, "w1")
        assert life.may_return
        for by in ("user:ada", "user:bob"):
            await here.lives.mark_removed(TENANT, life, by, here.place.now())

        assert (await here.refused(lambda: runner.ask("POST", "renew"))).code == "bad_credential"
        here.place.after(5)
        back = await here.register(token(here, again=False))

        here.secrets.add(back.body["credential"])
        assert back.body["runner_id"] == "w1/2"
        await presumed_gone(here, "w1/2")
        assert (await renewed(Runner(here, "w1/2", back.body["credential"]))).id == "w1/3"


@on_loop
async def test_one_that_was_presumed_gone_learns_it_when_it_asks_and_goes_on(fleet: OpenFleet) -> None:
    """Its machine only slept. It offers what it offered, unless it says otherwise, and gets work."""
    async with fleet() as here:
        runner = await here.runner("w1", capabilities=["gpu"], slots=3)
        await here.quiet(MAX_SILENT_SECONDS + HEALTH_SECONDS)
        assert await here.state() == SHUTDOWN
        await here.plan(queue_key="gpu")

        asked = b'{"type": "Lease", "runner_id": "w1", "capabilities": ["gpu"]}'
        assert (await runner.ask("POST", "lease", asked)).code == "shut_down"
        back = await renewed(runner)
        await here.hear()
        held = await back.take(capabilities=["gpu"])
        assert (await held.say("AckLease")).status == 200

        known = await here.worker("w1/2")
        assert (back.id, known.labels, known.max_concurrent_tasks, known.tasks) == ("w1/2", ("gpu",), 3, ("r1/a.1",))
        assert (await renewed(back, capabilities=["cpu"])).id == "w1/2"
        assert (await here.worker("w1/2")).labels == ("cpu",)


@on_loop
async def test_many_who_come_back_at_once_are_one(fleet: OpenFleet) -> None:
    """A new life begins once, whoever asks for it and at which server."""
    async with fleet() as here, fleet() as beside:
        runner = await here.runner("w1")
        await presumed_gone(here)

        found = await asyncio.gather(*(renewed(each.known(runner)) for each in (here, beside, here, beside)))

        assert {each.id for each in found} == {"w1/2"}
        assert [word for word, _ in await here.steps("w1/2")] == ["registered", "registration_complete"]


@on_loop
async def test_a_life_that_was_not_counted_is_found_all_the_same(
    fleet: OpenFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server was killed between the birth and the count."""
    async with fleet() as here:
        runner = await here.runner("w1")
        await presumed_gone(here)

        async def killed(*_: Any) -> None:
            return None

        monkeypatch.setattr(Incarnations, "count_next", killed)
        assert (await renewed(runner)).id == "w1/2"
        assert (await renewed(runner)).id == "w1/2"
        await presumed_gone(here, "w1/2")
        assert (await renewed(runner)).id == "w1/3"
        monkeypatch.undo()

        assert (await here.lives.latest(TENANT, "w1")).number == 3
        await presumed_gone(here, "w1/3")
        assert (await renewed(runner)).id == "w1/4"


@on_loop
async def test_a_token_is_good_once_over_all_lives(fleet: OpenFleet) -> None:
    """Not for the next life either; and a lost answer is answered again, with the same life."""
    async with fleet() as here:
        here.secrets.add(OWN)
        first = here.token("w1")
        reply = await here.register(first, request_id=OWN)
        here.secrets.add(reply.body["credential"])
        here.place.after(5)
        await presumed_gone(here)
        here.place.after(5)
        second = token(here, again=True)

        assert "registered" in await refused(here, first, request_id="a thief's")
        back = [await here.register(second, request_id=OWN) for _ in range(2)]
        here.secrets |= {each.body["credential"] for each in back}
        await refused(here, second, request_id="a thief's")
        await presumed_gone(here, "w1/2")

        await refused(here, second, request_id="a thief's")
        assert {each.body["runner_id"] for each in back} == {"w1/2"}
        assert (await renewed(Runner(here, "w1/2", back[0].body["credential"]))).id == "w1/3"
        await refused(here, second, request_id="a thief's")


@on_loop
async def test_nobody_escapes_what_was_decided_about_it_by_coming_back(fleet: OpenFleet) -> None:
    """One that was drained stays drained. One that lost trust is trusted again when it was set up anew."""
    async with fleet() as here:
        drained, distrusted = await here.runner("w1"), await here.runner("w2")
        await here.server.do(worker.Drain(id="w1", reason="new disk", actor="user:ada"))
        await here.server.do(worker.Quarantine(id="w2", reason="odd"))
        for id in ("w1", "w2"):
            await presumed_gone(here, id)
        here.place.after(5)

        assert [(await renewed(each)).id for each in (drained, distrusted)] == ["w1/2", "w2/2"]
        first, second = await here.worker("w1/2"), await here.worker("w2/2")
        assert (first.hold, first.hold_reason) == (DRAINED, "new disk")
        assert (second.hold, second.hold_reason) == (QUARANTINED, "from its previous incarnation: odd")
        await here.server.do(worker.Resume(id="w1/2", actor="user:ada"))
        assert (await renewed(drained)).id == "w1/2"
        assert (await here.worker("w1/2")).hold == ""
        await presumed_gone(here, "w2/2")
        here.place.after(5)
        anew = await here.register(here.signer.sign("register", "w2", TENANT, 60, again=True))
        here.secrets.add(anew.body["credential"])

        assert (await here.worker("w2/3")).hold == ""


@on_loop
async def test_another_tenants_runner_of_the_same_name_has_no_part_in_it(fleet: OpenFleet) -> None:
    """Names are one tenant's; whose they are nobody is told."""
    async with fleet() as here:
        await here.runner("w1")
        await presumed_gone(here)
        stranger = Runner(here, "w1", here.signer.sign("run", "w1", "another", 900))
        here.secrets.add(stranger.credential)

        assert (await here.refused(lambda: stranger.ask("POST", "renew"))).code == "bad_credential"
        assert await here.server.store.find("w1/2") is None
