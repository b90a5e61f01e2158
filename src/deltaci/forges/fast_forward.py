"""How each forge moves a branch to exactly one commit, by its API. The commit is there already, on a branch of ours.

github.py gitlab.py gitea.py say how forges are heard and told; here is how they are asked to merge: always by a
fast-forward, so that nothing is made that nobody tested. Each step may have been done before, by somebody who did not
live to see it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from deltaci.forges import github, gitlab
from deltaci.forges.http import Outlet
from deltaci.forges.projects import ForgeProject
from deltaci.forges.status_state import Answer, Call

TRIES: Final = 20  # So often a forge is asked that first looks at what it was given,
PAUSE_SECONDS: Final = 0.5  # so long after each other.
TITLE: Final = "Merge tested commits"
TEXT: Final = (
    "Made by Delta CI to move the branch to exactly the commit that was tested. It is merged or closed at once."
)

T = TypeVar("T")


class Refusal(Exception):
    """The forge did not do it. `is_passing`: another time it may."""

    def __init__(self, message: str, *, is_passing: bool) -> None:
        super().__init__(message)
        self.is_passing = is_passing


class Move(msgspec.Struct, frozen=True):
    """What is to be done: `branch` is to be at `commit`, which `source`, a branch of ours, is at."""

    branch: str
    commit: str
    source: str


class Api:
    """One project's forge, spoken to with its token."""

    def __init__(
        self, outlet: Outlet, project: ForgeProject, headers: dict[str, str], root: str, sleep: Callable[[float], Any]
    ) -> None:
        self._outlet = outlet
        self._headers = headers
        self._root = root
        self._sleep: Callable[[float], Awaitable[None]] = sleep
        self.project = project

    async def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[Answer, bytes]:
        """One request, below the repository's own address. Raises what the outlet raises."""
        return await self._outlet.ask(Call(method, f"{self._root}{path}", self._headers, body or {}))

    async def rest(self) -> None:
        """Leave it alone for a moment."""
        await self._sleep(PAUSE_SECONDS)


class Mover(Protocol):
    """One kind of forge."""

    def at(self, project: ForgeProject) -> tuple[str, dict[str, str]]:
        """Where the repository's API is, and what to show there."""
        ...

    async def can(self, api: Api) -> bool:
        """Whether it would move a branch by a fast-forward, as it is configured."""
        ...

    async def move(self, api: Api, move: Move) -> None:
        """Do it, or raise `Refusal`."""
        ...

    async def tidy(self, api: Api, move: Move) -> None:
        """Leave nothing of it behind; what is gone already is no error."""
        ...


def is_good(answer: Answer) -> bool:
    """Whether it was done."""
    return 200 <= answer.status < 300


def refused(answer: Answer) -> Refusal:
    """What an answer that is none of the usual ones means."""
    is_passing = answer.status >= 500 or answer.status in (408, 425, 429) or bool(answer.wait_seconds)
    return Refusal(f"it answered {answer.status}: {answer.text}", is_passing=is_passing)


def read(body: bytes, type: type[T]) -> T:
    """An answer; one that makes no sense may make some another time."""
    try:
        return msgspec.json.decode(body, type=type)
    except msgspec.DecodeError as error:
        raise Refusal(f"it answered something else than expected: {error}", is_passing=True) from None


async def remove(api: Api, path: str, gone: int = 404) -> None:
    """Remove a branch; one that is not there is no error."""
    answer, _ = await api.ask("DELETE", path)
    if not is_good(answer) and answer.status != gone:
        raise refused(answer)


# -- GitHub


class GitHubMover:
    """By its refs: a move that is not a fast-forward is refused there."""

    def at(self, project: ForgeProject) -> tuple[str, dict[str, str]]:
        """As for statuses."""
        headers = {
            "Authorization": f"Bearer {project.api_token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": github.VERSION,
        }
        return f"{project.api(github.API)}/repos/{_owned(project)}", headers

    async def can(self, _api: Api) -> bool:
        """Always."""
        return True

    async def move(self, api: Api, move: Move) -> None:
        """One request."""
        path = f"/git/refs/heads/{quote(move.branch)}"
        answer, _ = await api.ask("PATCH", path, {"sha": move.commit, "force": False})
        if not is_good(answer):
            raise refused(answer)

    async def tidy(self, api: Api, move: Move) -> None:
        """Our branch."""
        await remove(api, f"/git/refs/heads/{quote(move.source)}", gone=422)


# -- Gitea and Forgejo


class _Pull(msgspec.Struct, frozen=True):
    number: int


class GiteaMover:
    """By a pull request that is merged with a fast-forward, or not at all."""

    def at(self, project: ForgeProject) -> tuple[str, dict[str, str]]:
        """As for statuses."""
        return f"{project.api()}/repos/{_owned(project)}", {"Authorization": f"token {project.api_token}"}

    async def can(self, _api: Api) -> bool:
        """Always; where the repository does not allow it, the forge says so."""
        return True

    async def move(self, api: Api, move: Move) -> None:
        """Open it, unless it is open, and merge it once the forge has looked at it."""
        number = await self._opened(api, move)
        for _ in range(TRIES):
            body = {"Do": "fast-forward-only", "head_commit_id": move.commit}
            answer, _text = await api.ask("POST", f"/pulls/{number}/merge", body)
            if is_good(answer):
                return
            if answer.status != 405 or "try again later" not in answer.text.lower():
                raise refused(answer)
            await api.rest()
        raise Refusal("it still looks at the pull request", is_passing=True)

    async def _opened(self, api: Api, move: Move) -> int:
        body = {"base": move.branch, "head": move.source, "title": TITLE, "body": TEXT}
        answer, text = await api.ask("POST", "/pulls", body)
        if is_good(answer):
            return read(text, _Pull).number
        known = await self._known(api, move) if answer.status == 409 else None
        if known is None:
            raise refused(answer)
        return known

    async def _known(self, api: Api, move: Move) -> int | None:
        answer, text = await api.ask("GET", f"/pulls/{quote(move.branch, safe='')}/{quote(move.source, safe='')}")
        return read(text, _Pull).number if is_good(answer) else None

    async def tidy(self, api: Api, move: Move) -> None:
        """The pull request, if it is still open, and our branch."""
        number = await self._known(api, move)
        if number is not None:
            await api.ask("PATCH", f"/pulls/{number}", {"state": "closed"})
        await remove(api, f"/branches/{quote(move.source, safe='')}")


# -- GitLab


class _Project(msgspec.Struct, frozen=True):
    merge_method: str = ""
    squash_option: str = ""


class _MergeRequest(msgspec.Struct, frozen=True):
    iid: int
    detailed_merge_status: str = ""


_LOOKING: Final = ("unchecked", "checking", "preparing", "approvals_syncing", "ci_still_running")


class GitLabMover:
    """By a merge request, where the project merges by fast-forward and squashes nothing."""

    def at(self, project: ForgeProject) -> tuple[str, dict[str, str]]:
        """As for statuses."""
        root = f"{project.api(gitlab.API)}/projects/{quote(project.repository, safe='')}"
        return root, {"PRIVATE-TOKEN": project.api_token}

    async def can(self, api: Api) -> bool:
        """Only with the merge method `ff`: any other would make a commit that nobody tested."""
        answer, text = await api.ask("GET", "")
        if not is_good(answer):
            raise refused(answer)
        told = read(text, _Project)
        return told.merge_method == "ff" and told.squash_option != "always"

    async def move(self, api: Api, move: Move) -> None:
        """Open it, unless it is open, wait until the forge has looked at it, and accept it."""
        iid = await self._opened(api, move)
        for _ in range(TRIES):
            answer, text = await api.ask("GET", f"/merge_requests/{iid}")
            if not is_good(answer):
                raise refused(answer)
            status = read(text, _MergeRequest).detailed_merge_status
            if status not in _LOOKING:
                break
            await api.rest()
        else:
            raise Refusal(f"it still looks at the merge request: {status}", is_passing=True)
        body = {"sha": move.commit, "squash": False, "should_remove_source_branch": True}
        answer, _ = await api.ask("PUT", f"/merge_requests/{iid}/merge", body)
        if not is_good(answer):
            why = f" ({status})" if status not in ("", "mergeable") else ""
            refusal = refused(answer)
            raise Refusal(f"{refusal}{why}", is_passing=refusal.is_passing)

    async def _opened(self, api: Api, move: Move) -> int:
        known = await self._known(api, move)
        if known is not None:
            return known
        body = {
            "source_branch": move.source,
            "target_branch": move.branch,
            "title": TITLE,
            "description": TEXT,
            "remove_source_branch": True,
            "squash": False,
        }
        answer, text = await api.ask("POST", "/merge_requests", body)
        if is_good(answer):
            return read(text, _MergeRequest).iid
        known = await self._known(api, move) if answer.status == 409 else None
        if known is None:
            raise refused(answer)
        return known

    async def _known(self, api: Api, move: Move) -> int | None:
        asked = f"state=opened&source_branch={quote(move.source, safe='')}&target_branch={quote(move.branch, safe='')}"
        answer, text = await api.ask("GET", f"/merge_requests?{asked}")
        if not is_good(answer):
            raise refused(answer)
        found = read(text, list[_MergeRequest])
        return found[0].iid if found else None

    async def tidy(self, api: Api, move: Move) -> None:
        """The merge request, if it is still open, and our branch."""
        iid = await self._known(api, move)
        if iid is not None:
            await api.ask("PUT", f"/merge_requests/{iid}", {"state_event": "close"})
        await remove(api, f"/repository/branches/{quote(move.source, safe='')}")


def _owned(project: ForgeProject) -> str:
    owner, _, name = project.repository.partition("/")
    return f"{quote(owner, safe='')}/{quote(name, safe='')}"


# By the name that a project gives its forge.
MOVERS: Final[dict[str, Mover]] = {
    "github": GitHubMover(),
    "gitlab": GitLabMover(),
    "gitea": GiteaMover(),
    "forgejo": GiteaMover(),
}
