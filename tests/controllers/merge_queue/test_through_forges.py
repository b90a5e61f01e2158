"""The merge queue in front of forges: what was tested lands through their APIs, and nothing is left there."""

from __future__ import annotations

import msgspec
import pytest

from deltaci.forges.http import ForgeHttpClient
from deltaci.forges.landing import ForgeLanding, PushLanding
from deltaci.forges.projects import ForgeProject
from tests.contract.backends import on_loop
from tests.controllers.merge_queue.conftest import Opened
from tests.controllers.merge_queue.site import Streams
from tests.forges.merging_forge import NAME, TOKEN, MergingForge
from tests.forges.test_landing import FORGES, OneProject, no_sleep


@pytest.mark.parametrize("kind", FORGES)
@on_loop
async def test_a_batch_lands_through_the_forge_without_who_is_bad(site: Opened, streams: Streams, kind: str) -> None:
    """Each place of the base is one that was tested, and the forge moved it there."""
    async with MergingForge(streams.upstream.bare) as forge:
        told = {"tenant": "acme", "name": "shop", "forge": kind, "repository": NAME, "api_url": forge.url}
        known = msgspec.convert({**told, "api_token": TOKEN}, ForgeProject)
        client = ForgeHttpClient([forge.host], timeout_seconds=5.0)
        try:
            async with site(landing=ForgeLanding(OneProject(known), client, PushLanding(), sleep=no_sleep)) as here:
                good = [streams.made(f"w{n}", {f"{n}.txt": "good\n"}) for n in range(2)]
                await here.enter(*good, streams.made("bad", {"bad.txt": "BAD\n"}))
                await here.settle()

                assert here.files() == {"0.txt", "1.txt"}
                assert here.merged() == {"w0", "w1"}
                assert set(here.places()) <= here.tester.good
                assert forge.leftovers == []
                assert [each for each in forge.received if "sha" in each.body or "head_commit_id" in each.body]
        finally:
            await client.close()


@on_loop
async def test_a_forge_that_says_no_costs_nobody_their_place(site: Opened, streams: Streams) -> None:
    """The line waits and says why; nothing is merged, and nobody is told that it failed."""
    async with MergingForge(streams.upstream.bare) as forge:
        forge.protected = True
        known = ForgeProject(
            tenant="acme", name="shop", forge="github", repository=NAME, api_url=forge.url, api_token=TOKEN
        )
        client = ForgeHttpClient([forge.host], timeout_seconds=5.0)
        try:
            async with site(landing=ForgeLanding(OneProject(known), client, PushLanding(), sleep=no_sleep)) as here:
                await here.enter(streams.made("w", {"a.txt": "good\n"}))
                await here.settle()

                assert here.told == {}
                assert here.tip == streams.upstream.first
                assert (await here.view()).problem.startswith("github does not move 'main': it answered 422")
        finally:
            await client.close()
