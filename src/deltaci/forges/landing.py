"""Landing through a forge: a base is moved by the forge's API, so that its rules are asked and its people see it.

The commit is pushed to a branch of ours, the forge is asked to move the base there by a fast-forward, and our branch is
removed. What the base is afterwards, the repository itself says: an answer that was lost, and a step that somebody did
before a crash, change nothing. A base ends at exactly the commit that was tested, or where it was.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Final

from deltaci.controllers.merge_queue.landing import Landing
from deltaci.controllers.projects import Project
from deltaci.forges.fast_forward import MOVERS, Api, Move, Mover, Refusal
from deltaci.forges.github_app import Apps
from deltaci.forges.http import NotAllowed, Outlet, Unreachable
from deltaci.forges.projects import ForgeProject, Projects
from deltaci.git.command import GitFailed
from deltaci.git.commit_builder import BRANCH_REFS, BranchMoved, CommitBuilder
from deltaci.git.mirrors import TEMPORARY_BRANCH_PREFIX
from deltaci.storage.blobs.store import BlobStoreUnavailable

LOGGER: Final = logging.getLogger(__name__)


class ForgeLanding:
    """Lands through the forge where a project has a token for it, and as `otherwise` does where it has none."""

    def __init__(
        self,
        projects: Projects,
        outlet: Outlet,
        otherwise: Landing,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._projects = projects
        self._outlet = outlet
        self._otherwise = otherwise
        self._sleep = sleep
        self._apps = Apps(outlet)

    async def land(self, project: Project, builder: CommitBuilder, branch: str, commit: str, expected: str) -> None:
        """Move the branch from exactly `expected` to the commit, which stands on it; raises `Moved`.

        `GitFailed` says whether it may go well another time. A repeat is no error, wherever the one before it ended.
        """
        forge = await self._forge(project)
        mover = MOVERS.get(forge.forge) if forge is not None and forge.api_token and forge.repository else None
        if forge is None or mover is None:
            await self._otherwise.land(project, builder, branch, commit, expected)
            return
        move = Move(branch, commit, source_of(branch, commit))
        try:
            api = await self._api(forge, mover)
            is_possible = await mover.can(api)
        except (Refusal, NotAllowed, Unreachable) as error:
            raise self._failed(forge, branch, error) from None
        if is_possible:
            await self._land(mover, api, builder, move, expected)
        else:
            await self._otherwise.land(project, builder, branch, commit, expected)

    async def _land(self, mover: Mover, api: Api, builder: CommitBuilder, move: Move, expected: str) -> None:
        found = await _where(builder, move.branch)
        if found not in (move.commit, expected):
            raise BranchMoved(found)
        try:
            if found != move.commit:
                await builder.push(move.source, move.commit, "")
                await self._move(mover, api, builder, move, expected)
        except GitFailed as error:
            if not error.is_transient:  # Otherwise it is tried again, and what is there is of use.
                await self._tidy(mover, api, move)
            raise
        except BranchMoved:
            await self._tidy(mover, api, move)
            raise
        await self._tidy(mover, api, move)

    async def _move(self, mover: Mover, api: Api, builder: CommitBuilder, move: Move, expected: str) -> None:
        problem: GitFailed | None = None
        try:
            await mover.move(api, move)
        except (Refusal, NotAllowed, Unreachable) as error:
            problem = self._failed(api.project, move.branch, error)
        # Whatever it said, and whether it was heard: the repository knows.
        found = await _where(builder, move.branch)
        if found == move.commit:
            return
        if found != expected:
            raise BranchMoved(found)
        raise problem or GitFailed(
            f"{api.project.forge} said that {move.branch!r} was moved, but it was not", is_transient=True
        )

    async def _tidy(self, mover: Mover, api: Api, move: Move) -> None:
        try:
            await mover.tidy(api, move)
        except (Refusal, NotAllowed, Unreachable) as error:
            LOGGER.warning("project %s: the branch %s is left behind: %s", api.project.name, move.source, error)

    async def _forge(self, project: Project) -> ForgeProject | None:
        try:
            forge = await self._projects.forge_of(project.tenant, project.name)
        except BlobStoreUnavailable as error:
            raise GitFailed(f"the token for the forge cannot be read now: {error}", is_transient=True) from None
        if forge is not None and forge.problem:
            raise GitFailed(f"the token for the forge cannot be had: {forge.problem}")
        return forge

    async def _api(self, forge: ForgeProject, mover: Mover) -> Api:
        opened = await self._apps.opened(forge)
        root, headers = mover.at(opened)
        return Api(self._outlet, opened, headers, root, self._sleep)

    def _failed(self, forge: ForgeProject, branch: str, error: Exception) -> GitFailed:
        if isinstance(error, Unreachable):
            return GitFailed(f"{forge.forge} cannot be reached: {error}", is_transient=True)
        if isinstance(error, Refusal) and error.is_passing:
            return GitFailed(f"{forge.forge} cannot move {branch!r} now: {error}", is_transient=True)
        self._apps.forget(forge)  # If it was the token of an App that is not good any more, the next is a new one.
        return GitFailed(
            f"{forge.forge} does not move {branch!r}: {error}; "
            "let the owner of the project's token merge to this branch by fast-forward, past its protection"
        )


def source_of(branch: str, commit: str) -> str:
    """Our branch for this move: the same one for everybody who tries it, and for nothing else."""
    asked = f"{branch}\n{commit}".encode()
    return f"{TEMPORARY_BRANCH_PREFIX}{blake2b(asked, digest_size=10).hexdigest()}"


async def _where(builder: CommitBuilder, branch: str) -> str:
    return (await builder.mirror.ls_remote()).refs.get(f"{BRANCH_REFS}{branch}", "")
