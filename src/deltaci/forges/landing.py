"""Land commits through a forge's API, so that branch protection applies and the forge shows a merge.

The commit is pushed to a temporary branch, the forge is asked to fast-forward the base branch to it, and the temporary
branch is deleted. Afterwards the position of the base branch is read from the repository itself, so a lost response or
a step that was done before a crash has no effect. The base branch ends at exactly the tested commit, or stays.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Final, Protocol

from deltaci.core.errors import Unreachable
from deltaci.forges.fast_forward import FAST_FORWARDERS, BranchMove, FastForwarder, FastForwardError, RepositoryApi
from deltaci.forges.github_app import AppTokens
from deltaci.forges.http import ForgeHttpClient, NotAllowed
from deltaci.forges.projects import ForgeProject, ForgeProjects
from deltaci.git.command import GitFailed
from deltaci.git.commit_builder import BRANCH_REFS, BranchMoved, CommitBuilder
from deltaci.git.mirrors import TEMPORARY_BRANCH_PREFIX, Repository
from deltaci.storage.blobs.store import BlobStoreUnavailable

LOGGER: Final = logging.getLogger(__name__)


class Landing(Protocol):
    """Moves a branch of a repository to a tested commit."""

    async def land(
        self, project: Repository, builder: CommitBuilder, branch: str, commit: str, expected_tip: str
    ) -> None:
        """Move the branch from exactly `expected_tip` to the commit, which descends from it.

        Repeating the call after success has no effect. Raises `BranchMoved` if the branch is at another commit, and
        `GitFailed` if it cannot be moved now; in both cases the branch was not moved.
        """


class PushLanding:
    """Moves the branch by a push, which the repository refuses if its branch is not at `expected_tip`."""

    async def land(
        self, project: Repository, builder: CommitBuilder, branch: str, commit: str, expected_tip: str
    ) -> None:
        """Push the commit to the branch."""
        await builder.push(branch, commit, expected_tip)


class ForgeLanding:
    """Lands through the forge if the project has a token and the forge supports it, else through `fallback`."""

    def __init__(
        self,
        projects: ForgeProjects,
        client: ForgeHttpClient,
        fallback: Landing,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._projects = projects
        self._client = client
        self._fallback = fallback
        self._sleep = sleep
        self._app_tokens = AppTokens(client)

    async def land(
        self, project: Repository, builder: CommitBuilder, branch: str, commit: str, expected_tip: str
    ) -> None:
        """Move the branch from exactly `expected_tip` to the commit, which descends from it.

        Raises `BranchMoved` if the branch is at another commit, and `GitFailed` if it cannot be moved now.
        """
        forge_project = await self._forge_project(project)
        has_access = forge_project is not None and forge_project.api_token and forge_project.repository
        forwarder = FAST_FORWARDERS.get(forge_project.forge) if forge_project is not None and has_access else None
        if forge_project is None or forwarder is None:
            await self._fallback.land(project, builder, branch, commit, expected_tip)
            return
        branch_move = BranchMove(branch, commit, temporary_branch(branch, commit))
        try:
            api = await self._repository_api(forge_project, forwarder)
            is_supported = await forwarder.is_supported(api)
        except (FastForwardError, NotAllowed, Unreachable) as error:
            raise self._git_error(forge_project, branch, error) from None
        if is_supported:
            await self._land(forwarder, api, builder, branch_move, expected_tip)
        else:
            await self._fallback.land(project, builder, branch, commit, expected_tip)

    async def _land(
        self,
        forwarder: FastForwarder,
        api: RepositoryApi,
        builder: CommitBuilder,
        branch_move: BranchMove,
        expected_tip: str,
    ) -> None:
        tip = await _branch_tip(builder, branch_move.branch)
        if tip not in (branch_move.commit, expected_tip):
            raise BranchMoved(tip)
        try:
            if tip != branch_move.commit:
                await builder.push(branch_move.source_branch, branch_move.commit, "")
                await self._move(forwarder, api, builder, branch_move, expected_tip)
        except GitFailed as error:
            if not error.is_transient:  # The next try uses the branch and the pull request.
                await self._clean_up(forwarder, api, branch_move)
            raise
        except BranchMoved:
            await self._clean_up(forwarder, api, branch_move)
            raise
        await self._clean_up(forwarder, api, branch_move)

    async def _move(
        self,
        forwarder: FastForwarder,
        api: RepositoryApi,
        builder: CommitBuilder,
        branch_move: BranchMove,
        expected_tip: str,
    ) -> None:
        forge_error: GitFailed | None = None
        try:
            await forwarder.move(api, branch_move)
        except (FastForwardError, NotAllowed, Unreachable) as error:
            forge_error = self._git_error(api.project, branch_move.branch, error)
        # The forge may have moved the branch although its response was an error or was lost.
        tip = await _branch_tip(builder, branch_move.branch)
        if tip == branch_move.commit:
            return
        if tip != expected_tip:
            raise BranchMoved(tip)
        raise forge_error or GitFailed(
            f"{api.project.forge} reported that {branch_move.branch!r} was moved, but it was not", is_transient=True
        )

    async def _clean_up(self, forwarder: FastForwarder, api: RepositoryApi, branch_move: BranchMove) -> None:
        try:
            await forwarder.clean_up(api, branch_move)
        except (FastForwardError, NotAllowed, Unreachable) as error:
            LOGGER.warning(
                "project %s: cannot delete the branch %s: %s", api.project.name, branch_move.source_branch, error
            )

    async def _forge_project(self, project: Repository) -> ForgeProject | None:
        try:
            forge_project = await self._projects.find(project.tenant, project.name)
        except BlobStoreUnavailable as error:
            raise GitFailed(f"the token for the forge cannot be read now: {error}", is_transient=True) from None
        if forge_project is not None and forge_project.problem:
            raise GitFailed(f"the token for the forge cannot be used: {forge_project.problem}")
        return forge_project

    async def _repository_api(self, forge_project: ForgeProject, forwarder: FastForwarder) -> RepositoryApi:
        project = await self._app_tokens.with_token(forge_project)
        repository_url, headers = forwarder.repository_url_and_headers(project)
        return RepositoryApi(self._client, project, headers, repository_url, self._sleep)

    def _git_error(self, forge_project: ForgeProject, branch: str, error: Exception) -> GitFailed:
        if isinstance(error, Unreachable):
            return GitFailed(f"{forge_project.forge} cannot be reached: {error}", is_transient=True)
        if isinstance(error, FastForwardError) and error.is_transient:
            return GitFailed(f"{forge_project.forge} cannot move {branch!r} now: {error}", is_transient=True)
        self._app_tokens.forget(forge_project)  # The cause may be an App's token that is no longer valid.
        return GitFailed(
            f"{forge_project.forge} does not move {branch!r}: {error}; "
            "let the owner of the project's token merge to this branch by fast-forward, past its protection"
        )


def temporary_branch(branch: str, commit: str) -> str:
    """Return the name of the temporary branch for moving `branch` to `commit`, the same on every server."""
    suffix = blake2b(f"{branch}\n{commit}".encode(), digest_size=10).hexdigest()
    return f"{TEMPORARY_BRANCH_PREFIX}{suffix}"


async def _branch_tip(builder: CommitBuilder, branch: str) -> str:
    return (await builder.mirror.ls_remote()).refs.get(f"{BRANCH_REFS}{branch}", "")
