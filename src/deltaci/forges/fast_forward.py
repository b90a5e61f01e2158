"""Move a branch to exactly one commit through a forge's API, always by a fast-forward.

A merge commit or a squash by the forge would be a commit that was never tested. The commit has already been pushed to
a temporary branch. Every step may be repeated: a server may have done it before a crash.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from deltaci.forges import github, gitlab
from deltaci.forges.http import ForgeHttpClient
from deltaci.forges.projects import ForgeProject
from deltaci.forges.status_decisions import ForgeRequest, ForgeResponse

MAX_POLLS: Final = 20  # How often a forge is asked whether it has finished checking a new pull request.
POLL_SECONDS: Final = 0.5
TITLE: Final = "Merge tested commits"
DESCRIPTION: Final = (
    "Created by Delta CI to move the branch to exactly the commit that was tested. It is merged or closed at once."
)

T = TypeVar("T")


class FastForwardError(Exception):
    """The forge did not move the branch. `is_transient`: a later try may succeed."""

    def __init__(self, message: str, *, is_transient: bool) -> None:
        super().__init__(message)
        self.is_transient = is_transient


class BranchMove(msgspec.Struct, frozen=True):
    """Move `branch` to `commit`, to which the temporary branch `source_branch` points."""

    branch: str
    commit: str
    source_branch: str


class RepositoryApi:
    """The forge API of one repository, with the project's token."""

    def __init__(
        self,
        client: ForgeHttpClient,
        project: ForgeProject,
        headers: dict[str, str],
        repository_url: str,
        sleep: Callable[[float], Any],
    ) -> None:
        self._client = client
        self._headers = headers
        self._repository_url = repository_url
        self._sleep: Callable[[float], Awaitable[None]] = sleep
        self.project = project

    async def request(
        self, method: str, subpath: str, body: dict[str, Any] | None = None
    ) -> tuple[ForgeResponse, bytes]:
        """Send a request for a path below the repository's URL in the API, and return the response of any status.

        Raise `NotAllowed` if it must not be sent, `Unreachable` if there is no response.
        """
        return await self._client.send_and_read(
            ForgeRequest(method, f"{self._repository_url}{subpath}", self._headers, body or {})
        )

    async def pause(self) -> None:
        """Wait `POLL_SECONDS` before the next poll."""
        await self._sleep(POLL_SECONDS)


class FastForwarder(Protocol):
    """Moves branches on one kind of forge."""

    def repository_url_and_headers(self, project: ForgeProject) -> tuple[str, dict[str, str]]:
        """Return the URL of the repository in the forge's API, and the headers with the token."""
        ...

    async def is_supported(self, api: RepositoryApi) -> bool:
        """Return whether the repository is configured to merge by fast-forward."""
        ...

    async def move(self, api: RepositoryApi, move: BranchMove) -> None:
        """Move the branch to the commit. Raises `FastForwardError` if the forge does not."""
        ...

    async def clean_up(self, api: RepositoryApi, move: BranchMove) -> None:
        """Close an open pull request and delete the temporary branch, if they exist."""
        ...


def is_success(response: ForgeResponse) -> bool:
    """Return whether the status is 2xx."""
    return 200 <= response.status < 300


def unexpected_response(response: ForgeResponse) -> FastForwardError:
    """Return the error for an unsuccessful response. Overload, rate limits and server errors are transient."""
    is_transient = response.status >= 500 or response.status in (408, 425, 429) or bool(response.retry_after_seconds)
    return FastForwardError(f"it answered {response.status}: {response.text}", is_transient=is_transient)


def decode_response(body: bytes, type: type[T]) -> T:
    """Decode a JSON response. Raises a transient `FastForwardError` if it is invalid."""
    try:
        return msgspec.json.decode(body, type=type)
    except msgspec.DecodeError as error:
        raise FastForwardError(f"its answer is not as expected: {error}", is_transient=True) from None


async def delete_branch(api: RepositoryApi, path: str, missing_branch_status: int = 404) -> None:
    """Delete a branch. `missing_branch_status` is the status of a response that says that there is no such branch."""
    response, _ = await api.request("DELETE", path)
    if not is_success(response) and response.status != missing_branch_status:
        raise unexpected_response(response)


# -- GitHub


class GitHubFastForwarder:
    """Updates the branch's ref without force; GitHub refuses any other move than a fast-forward."""

    def repository_url_and_headers(self, project: ForgeProject) -> tuple[str, dict[str, str]]:
        headers = {
            "Authorization": f"Bearer {project.api_token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": github.API_VERSION,
        }
        return f"{project.api_root(github.API)}/repos/{_owner_and_name(project)}", headers

    async def is_supported(self, _api: RepositoryApi) -> bool:
        return True

    async def move(self, api: RepositoryApi, move: BranchMove) -> None:
        ref_path = f"/git/refs/heads/{quote(move.branch)}"
        response, _ = await api.request("PATCH", ref_path, {"sha": move.commit, "force": False})
        if not is_success(response):
            raise unexpected_response(response)

    async def clean_up(self, api: RepositoryApi, move: BranchMove) -> None:
        await delete_branch(api, f"/git/refs/heads/{quote(move.source_branch)}", missing_branch_status=422)


# -- Gitea and Forgejo


class _PullRequestResponse(msgspec.Struct, frozen=True):
    number: int


class GiteaFastForwarder:
    """Opens a pull request and merges it by fast-forward only."""

    def repository_url_and_headers(self, project: ForgeProject) -> tuple[str, dict[str, str]]:
        headers = {"Authorization": f"token {project.api_token}"}
        return f"{project.api_root()}/repos/{_owner_and_name(project)}", headers

    async def is_supported(self, _api: RepositoryApi) -> bool:
        """Return True; a repository that does not allow fast-forwards refuses the merge."""
        return True

    async def move(self, api: RepositoryApi, move: BranchMove) -> None:
        """Open the pull request unless it exists, and merge it as soon as the forge has checked it."""
        pull_number = await self._open_pull_request(api, move)
        for _ in range(MAX_POLLS):
            merge_fields = {"Do": "fast-forward-only", "head_commit_id": move.commit}
            response, _body = await api.request("POST", f"/pulls/{pull_number}/merge", merge_fields)
            if is_success(response):
                return
            if response.status != 405 or "try again later" not in response.text.lower():
                raise unexpected_response(response)
            await api.pause()
        raise FastForwardError("it is still checking the pull request", is_transient=True)

    async def _open_pull_request(self, api: RepositoryApi, move: BranchMove) -> int:
        pull_fields = {"base": move.branch, "head": move.source_branch, "title": TITLE, "body": DESCRIPTION}
        response, body = await api.request("POST", "/pulls", pull_fields)
        if is_success(response):
            return decode_response(body, _PullRequestResponse).number
        pull_number = await self._find_pull_request(api, move) if response.status == 409 else None
        if pull_number is None:
            raise unexpected_response(response)
        return pull_number

    async def _find_pull_request(self, api: RepositoryApi, move: BranchMove) -> int | None:
        pull_path = f"/pulls/{quote(move.branch, safe='')}/{quote(move.source_branch, safe='')}"
        response, body = await api.request("GET", pull_path)
        return decode_response(body, _PullRequestResponse).number if is_success(response) else None

    async def clean_up(self, api: RepositoryApi, move: BranchMove) -> None:
        pull_number = await self._find_pull_request(api, move)
        if pull_number is not None:
            await api.request("PATCH", f"/pulls/{pull_number}", {"state": "closed"})
        await delete_branch(api, f"/branches/{quote(move.source_branch, safe='')}")


# -- GitLab


class _ProjectResponse(msgspec.Struct, frozen=True):
    merge_method: str = ""
    squash_option: str = ""


class _MergeRequestResponse(msgspec.Struct, frozen=True):
    iid: int
    detailed_merge_status: str = ""


_CHECKING_STATUSES: Final = ("unchecked", "checking", "preparing", "approvals_syncing", "ci_still_running")


class GitLabFastForwarder:
    """Opens a merge request and accepts it, if the project merges by fast-forward and does not squash."""

    def repository_url_and_headers(self, project: ForgeProject) -> tuple[str, dict[str, str]]:
        repository_url = f"{project.api_root(gitlab.API)}/projects/{quote(project.repository, safe='')}"
        return repository_url, {"PRIVATE-TOKEN": project.api_token}

    async def is_supported(self, api: RepositoryApi) -> bool:
        """Return whether the project merges by fast-forward and does not always squash.

        Any other configuration would create an untested commit.
        """
        response, body = await api.request("GET", "")
        if not is_success(response):
            raise unexpected_response(response)
        project = decode_response(body, _ProjectResponse)
        return project.merge_method == "ff" and project.squash_option != "always"

    async def move(self, api: RepositoryApi, move: BranchMove) -> None:
        """Open the merge request unless it exists, wait until the forge has checked it, and accept it."""
        merge_request_iid = await self._open_merge_request(api, move)
        for _ in range(MAX_POLLS):
            response, body = await api.request("GET", f"/merge_requests/{merge_request_iid}")
            if not is_success(response):
                raise unexpected_response(response)
            merge_status = decode_response(body, _MergeRequestResponse).detailed_merge_status
            if merge_status not in _CHECKING_STATUSES:
                break
            await api.pause()
        else:
            raise FastForwardError(f"it is still checking the merge request: {merge_status}", is_transient=True)
        merge_fields = {"sha": move.commit, "squash": False, "should_remove_source_branch": True}
        response, _ = await api.request("PUT", f"/merge_requests/{merge_request_iid}/merge", merge_fields)
        if not is_success(response):
            status_text = f" ({merge_status})" if merge_status not in ("", "mergeable") else ""
            error = unexpected_response(response)
            raise FastForwardError(f"{error}{status_text}", is_transient=error.is_transient)

    async def _open_merge_request(self, api: RepositoryApi, move: BranchMove) -> int:
        merge_request_iid = await self._find_merge_request(api, move)
        if merge_request_iid is not None:
            return merge_request_iid
        merge_request_fields = {
            "source_branch": move.source_branch,
            "target_branch": move.branch,
            "title": TITLE,
            "description": DESCRIPTION,
            "remove_source_branch": True,
            "squash": False,
        }
        response, body = await api.request("POST", "/merge_requests", merge_request_fields)
        if is_success(response):
            return decode_response(body, _MergeRequestResponse).iid
        merge_request_iid = await self._find_merge_request(api, move) if response.status == 409 else None
        if merge_request_iid is None:
            raise unexpected_response(response)
        return merge_request_iid

    async def _find_merge_request(self, api: RepositoryApi, move: BranchMove) -> int | None:
        quoted_source, quoted_target = quote(move.source_branch, safe=""), quote(move.branch, safe="")
        list_path = f"/merge_requests?state=opened&source_branch={quoted_source}&target_branch={quoted_target}"
        response, body = await api.request("GET", list_path)
        if not is_success(response):
            raise unexpected_response(response)
        merge_requests = decode_response(body, list[_MergeRequestResponse])
        return merge_requests[0].iid if merge_requests else None

    async def clean_up(self, api: RepositoryApi, move: BranchMove) -> None:
        merge_request_iid = await self._find_merge_request(api, move)
        if merge_request_iid is not None:
            await api.request("PUT", f"/merge_requests/{merge_request_iid}", {"state_event": "close"})
        await delete_branch(api, f"/repository/branches/{quote(move.source_branch, safe='')}")


def _owner_and_name(project: ForgeProject) -> str:
    owner, _, name = project.repository.partition("/")
    return f"{quote(owner, safe='')}/{quote(name, safe='')}"


# By the forge name of a project.
FAST_FORWARDERS: Final[dict[str, FastForwarder]] = {
    "github": GitHubFastForwarder(),
    "gitlab": GitLabFastForwarder(),
    "gitea": GiteaFastForwarder(),
    "forgejo": GiteaFastForwarder(),
}
