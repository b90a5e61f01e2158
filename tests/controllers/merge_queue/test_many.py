"""Many at once, with everything that can be wrong with them: the base ends with exactly the good ones."""

from __future__ import annotations

from random import Random

import pytest

from deltaci.core.failures import Facts
from tests.contract.backends import Backend, within
from tests.controllers.merge_queue.conftest import Opened
from tests.controllers.merge_queue.site import GOOD, Streams
from tests.support.upstream import git

COUNT = 14
METHODS = ("merge", "merge", "merge", "squash", "fast-forward")


@pytest.mark.parametrize("seed", [1])
@within(180)
async def test_the_base_ends_with_exactly_the_good_ones(
    site: Opened, streams: Streams, backend: Backend, seed: int
) -> None:
    """Bad ones, conflicts, lost tests and a base that others push to; every place of the base was tested."""
    random = Random(seed)
    upstream = streams.upstream
    together = {"run": "together LEFT RIGHT"}
    async with site() as here:
        entries, bad, conflicting, side = [], set[str](), set[str](), set[str]()
        for number in range(COUNT):
            id, text, files = f"w{number}", "good\n", dict[str, str | None]()
            if number % 5 == 3:
                bad.add(id)
                text = "BAD\n"
            if number in (4, 8, 11):
                conflicting.add(id)
                files["shared"] = f"{id}\n"
            if number in (6, 12):
                text = "LEFT\n" if number == 6 else "RIGHT\n"  # Only one of the two can be there.
            rules = [GOOD, together]
            method = random.choice(METHODS)
            entries.append(streams.made(id, {id: text, **files}, {f"{id}.more": "1\n"}, method=method, rules=rules))
        random.shuffle(entries)
        for number, each in enumerate(entries):
            await here.enter(each)
            if number % 4 == 1:
                await here.calm()
                here.tester.troubles += [Facts(error_code="RUNNER_STARTUP")] * random.randrange(3)
                await here.tester.work()
                git(upstream.tree, "fetch", "-q", "origin", "main")
                upstream.switch("main", "FETCH_HEAD")
                side.add(upstream.push({f"side{number}": "1\n"}))
        for _ in range(60):
            await here.settle()
            if len(here.told) == COUNT:
                break
            backend.after(700)
            while await here.engine.tick():
                pass

        merged = here.merged()
        names = {entry.id for entry in entries}
        assert set(here.told) == names
        assert not merged & bad
        assert len(merged & conflicting) == 1
        assert len(merged & {"w6", "w12"}) == 1
        assert merged >= names - bad - conflicting - {"w6", "w12"}
        found = {file for file in here.files() if file.startswith("w")}
        assert found == merged | {f"{id}.more" for id in merged}
        tested = {here.told[id].commit for id in merged}
        assert tested <= here.tester.good
        inner = set(git(upstream.bare, "rev-list", f"^{upstream.first}", "main").split()) - tested - side
        heads = {commit for entry in entries for commit in git(upstream.tree, "rev-list", entry.head).split()}
        messages = git(upstream.bare, "log", "--format=%H %s", "--no-walk", *inner).split("\n") if inner else []
        assert all(line[:40] in heads or ", part 1" in line for line in messages), "a commit that nobody made"
