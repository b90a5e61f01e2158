"""Landing through a forge: whatever fails, the base ends at exactly the tested commit, or stays."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from deltaci.controllers.projects import Project
from deltaci.forges.http import ForgeHttpClient
from deltaci.forges.landing import ForgeLanding, temporary_branch
from deltaci.forges.projects import ForgeProject
from deltaci.forges.webhook_event import IgnoredEvent, PullRequest, Push, pull_request_change, push_change
from deltaci.git.command import GitFailed
from deltaci.git.commit_builder import BranchMoved, CommitBuilder, Signature
from deltaci.git.mirrors import Repository
from tests.contract.backends import on_loop
from tests.forges.merging_forge import NAME, TOKEN, ApiRequest, MergingForge
from tests.git.test_mirrors import mirrors
from tests.support.upstream import ZEROS, Upstream

FORGES = ("github", "gitea", "gitlab")
STEPS = {"github": 2, "gitea": 5, "gitlab": 8}  # So many requests a landing makes.
# Before each request, and after the last one. After any other request, the forge is as it is before the next one.
CRASHES = [
    *((kind, step, False) for kind in FORGES for step in range(STEPS[kind])),
    *((kind, STEPS[kind] - 1, True) for kind in FORGES),
]
UPSTREAM, DATA, MIRROR = "upstream", "data", "mirror.git"  # Folders of a site.


class CountingPush:
    """The fallback of the landing: a plain push, counted."""

    def __init__(self) -> None:
        self.count = 0

    async def land(self, project: Repository, builder: CommitBuilder, branch: str, commit: str, expected: str) -> None:
        self.count += 1
        await builder.push(branch, commit, expected)


class OneProject:
    """A lookup that always returns the same project."""

    def __init__(self, forge: ForgeProject | None) -> None:
        self.forge = forge

    async def find(self, tenant: str, project: str) -> ForgeProject | None:
        return self.forge


class Site(NamedTuple):
    """A repository, its forge, and a tested commit."""

    upstream: Upstream
    forge: MergingForge
    project: Project
    forge_project: ForgeProject
    builder: CommitBuilder
    base: str
    commit: str
    pushing: CountingPush

    async def land(self, **changes: str) -> None:
        """Land the commit from a new server."""
        forge_project = msgspec.structs.replace(self.forge_project, **changes)
        client = ForgeHttpClient([self.forge.host], timeout_seconds=5.0)
        landing = ForgeLanding(OneProject(forge_project), client, self.pushing, sleep=no_sleep)
        try:
            await landing.land(self.project, self.builder, "main", self.commit, self.base)
        finally:
            await client.close()

    @property
    def main(self) -> str:
        """The commit of the base branch."""
        return self.forge.branches["main"]

    def move_on(self) -> str:
        """Push another commit to the base branch."""
        self.upstream.switch("main", self.base)
        return self.upstream.push({"other": "1\n"}, "a concurrent push")


async def no_sleep(_seconds: float) -> None:
    """Return at once; the fake forges need no time."""


class Template(NamedTuple):
    """A repository with a branch, its mirror, and a commit that merges the branch. Each test copies the folder."""

    folder: Path
    base: str
    commit: str


def project_of(folder: Path, kind: str) -> Project:
    """Return the project of the repository in this folder."""
    url = f"file://{folder / UPSTREAM / 'shop.git'}"
    return Project(name="shop", tenant="t", url=url, forge=kind, api_token="TOKEN")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Template:
    """Create the repository once: it takes more CPU than a landing."""
    folder = tmp_path_factory.mktemp("template")
    upstream = Upstream(folder / UPSTREAM)
    upstream.switch("work")
    head = upstream.push({"new": "1\n"}, "some work", branch="work")

    async def merge() -> tuple[str, str]:
        mirror = mirrors(folder / DATA).for_project(project_of(folder, "github"))
        builder = CommitBuilder(mirror)
        base = await builder.fetch_branch("main")
        await builder.fetch_branch("work")
        signature = Signature("Delta CI", "ci@example.org", 10**15)
        commit = await builder.merge(base, [head], "Merge some work", signature)
        mirror.folder.rename(folder / MIRROR)  # The name of a mirror depends on the repository's path.
        return base, commit

    return Template(folder, *asyncio.run(merge()))


@asynccontextmanager
async def site(template: Template, folder: Path, kind: str) -> AsyncIterator[Site]:
    """Copy the repository, and start its forge."""
    shutil.copytree(template.folder, folder, dirs_exist_ok=True)
    upstream = Upstream.opened(folder / UPSTREAM)
    project = project_of(folder, kind)
    mirror = mirrors(folder / DATA).for_project(project)
    (folder / MIRROR).rename(mirror.folder)
    builder = CommitBuilder(mirror)
    base, commit = template.base, template.commit
    async with MergingForge(upstream.bare) as forge:
        fields = {
            "tenant": "t",
            "name": "shop",
            "forge": kind,
            "repository": NAME,
            "api_url": forge.url,
            "api_token": TOKEN,
        }
        forge_project = msgspec.convert(fields, ForgeProject)
        yield Site(upstream, forge, project, forge_project, builder, base, commit, CountingPush())


@pytest.mark.parametrize("kind", FORGES)
@on_loop
async def test_a_tested_commit_becomes_the_base_and_nothing_is_left_behind(
    template: Template, tmp_path: Path, kind: str
) -> None:
    """Moved by the forge and not by a push; the temporary branch is deleted."""
    async with site(template, tmp_path, kind) as here:
        await here.land()

        assert here.main == here.commit
        assert here.forge.leftovers == []
        assert sorted(here.forge.branches) == ["main", "work"]
        assert here.pushing.count == 0
        assert len(here.forge.received) == STEPS[kind]


@pytest.mark.parametrize("kind", FORGES)
@on_loop
async def test_a_base_that_moved_before_is_left_there(template: Template, tmp_path: Path, kind: str) -> None:
    """Before the forge is asked: the result would be an untested commit."""
    async with site(template, tmp_path, kind) as here:
        found = here.move_on()

        with pytest.raises(BranchMoved) as moved:
            await here.land()

        assert moved.value.tip == here.main == found
        assert here.forge.leftovers == []


@pytest.mark.parametrize("kind", FORGES)
@on_loop
async def test_a_base_that_moves_meanwhile_is_left_there(template: Template, tmp_path: Path, kind: str) -> None:
    """The forge refuses, because it is no fast-forward any more."""
    async with site(template, tmp_path, kind) as here:
        moves: list[str] = []

        def meanwhile(asked: ApiRequest) -> None:
            if not moves and ("sha" in asked.body or "head_commit_id" in asked.body):
                moves.append(here.move_on())

        here.forge.before_request = meanwhile
        with pytest.raises(BranchMoved) as moved:
            await here.land()

        assert moved.value.tip == here.main == moves[0]
        assert here.forge.leftovers == []


@pytest.mark.parametrize("kind", FORGES)
@on_loop
async def test_a_protected_branch_is_a_permanent_error(template: Template, tmp_path: Path, kind: str) -> None:
    """The message says what the forge answered and what to do."""
    async with site(template, tmp_path, kind) as here:
        here.forge.protected = True

        with pytest.raises(GitFailed) as failed:
            await here.land()

        assert not failed.value.is_transient
        assert str(failed.value).startswith(f"{kind} does not move 'main': it answered 4")
        assert "past its protection" in str(failed.value)
        assert here.main == here.base
        assert here.forge.leftovers == []


@pytest.mark.parametrize("kind", FORGES)
@on_loop
async def test_an_invalid_token_changes_nothing(template: Template, tmp_path: Path, kind: str) -> None:
    """The message names it as the reason but does not show it."""
    async with site(template, tmp_path, kind) as here:
        with pytest.raises(GitFailed) as failed:
            await here.land(api_token="wrong-one")

        assert not failed.value.is_transient
        assert "401: " in str(failed.value)
        assert "wrong-one" not in str(failed.value)
        assert here.main == here.base


@pytest.mark.parametrize(("kind", "step", "is_after"), CRASHES)
@on_loop
async def test_another_server_completes_a_landing_after_a_crash_at_any_request(
    template: Template, tmp_path: Path, kind: str, step: int, *, is_after: bool
) -> None:
    """The request was either not received, or done without its response being received."""
    async with site(template, tmp_path, kind) as here:
        here.forge.stop_at, here.forge.stop_after = step, is_after
        first = asyncio.create_task(here.land())
        await here.forge.is_stopped.wait()
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first
        assert here.main in (here.base, here.commit)

        here.forge.stop_at = None
        await here.land()

        assert here.main == here.commit
        assert here.forge.leftovers == []
        assert here.pushing.count == 0


@pytest.mark.parametrize(("kind", "step"), [(kind, step) for kind in FORGES for step in range(STEPS[kind])])
@on_loop
async def test_a_server_error_of_the_forge_is_transient(
    template: Template, tmp_path: Path, kind: str, step: int
) -> None:
    """An effect in spite of status 502 counts; without one, the next try lands."""
    async with site(template, tmp_path, kind) as here:
        here.forge.status_overrides = {step: 502}

        try:
            await here.land()
        except GitFailed as failed:
            assert failed.is_transient  # noqa: PT017
            assert here.main == here.base
        here.forge.status_overrides = {}
        await here.land()

        assert here.main == here.commit
        assert here.forge.leftovers == []


@pytest.mark.parametrize("kind", ["gitea", "gitlab"])
@on_loop
async def test_a_forge_that_checks_for_too_long_is_a_transient_error(
    template: Template, tmp_path: Path, kind: str
) -> None:
    """The next try continues with the same pull request."""
    async with site(template, tmp_path, kind) as here:
        here.forge.checks_before_merge = 25

        with pytest.raises(GitFailed, match="still checking") as failed:
            await here.land()
        assert failed.value.is_transient
        assert here.main == here.base
        await here.land()

        assert here.main == here.commit
        assert len(here.forge.requests) == 1
        assert here.forge.leftovers == []


@pytest.mark.parametrize(("name", "value"), [("merge_method", "merge"), ("squash_option", "always")])
@on_loop
async def test_gitlab_is_not_used_if_it_would_create_another_commit(
    template: Template, tmp_path: Path, name: str, value: str
) -> None:
    """That commit would be untested; the tested one is pushed instead."""
    async with site(template, tmp_path, "gitlab") as here:
        here.forge.project[name] = value

        await here.land()

        assert here.main == here.commit
        assert here.pushing.count == 1
        assert here.forge.requests == {}


@on_loop
async def test_a_project_without_a_token_is_pushed_to(template: Template, tmp_path: Path) -> None:
    async with site(template, tmp_path, "github") as here:
        await here.land(api_token="")

        assert (here.main, here.pushing.count, here.forge.received) == (here.commit, 1, [])


@on_loop
async def test_an_unreadable_token_is_an_error_and_no_reason_to_push(template: Template, tmp_path: Path) -> None:
    """The message says why it cannot be used."""
    async with site(template, tmp_path, "github") as here:
        with pytest.raises(GitFailed, match="there is no secret 'TOKEN'"):
            await here.land(api_token="", problem="there is no secret 'TOKEN'")

        assert (here.main, here.pushing.count) == (here.base, 0)


@on_loop
async def test_no_request_is_sent_to_a_forge_that_is_not_allowed(template: Template, tmp_path: Path) -> None:
    """A project must not make the server send requests to arbitrary hosts."""
    async with site(template, tmp_path, "github") as here:
        with pytest.raises(GitFailed, match="without TLS") as failed:
            await here.land(api_url=here.forge.url.replace("127.0.0.1", "localhost"))

        assert not failed.value.is_transient
        assert (here.main, here.forge.received) == (here.base, [])


@on_loop
async def test_an_unreachable_forge_is_a_transient_error(template: Template, tmp_path: Path) -> None:
    async with site(template, tmp_path, "github") as here:
        client = ForgeHttpClient(["127.0.0.1"], timeout_seconds=2.0)
        gone = ForgeProject(
            tenant="t", name="shop", forge="github", repository=NAME, api_url="http://127.0.0.1:1", api_token=TOKEN
        )
        landing = ForgeLanding(OneProject(gone), client, here.pushing)

        with pytest.raises(GitFailed) as failed:
            await landing.land(here.project, here.builder, "main", here.commit, here.base)
        await client.close()

        assert failed.value.is_transient
        assert here.main == here.base


def test_temporary_branches_of_the_merge_queue_cause_no_change() -> None:
    """No pipeline runs for them. A branch of that name in a fork is not ours."""
    name = temporary_branch("main", "a" * 40)
    pushed = Push(ref=f"refs/heads/{name}", before=ZEROS, after="a" * 40, commit="a" * 40)
    asked = PullRequest(
        action="opened",
        number=1,
        ref="refs/pull/1/head",
        commit="a" * 40,
        base_branch="main",
        head_branch=name,
        is_fork=False,
    )

    assert isinstance(push_change(pushed), IgnoredEvent)
    assert isinstance(pull_request_change(asked), IgnoredEvent)
    assert not isinstance(pull_request_change(msgspec.structs.replace(asked, is_fork=True)), IgnoredEvent)
