"""A fake forge that merges: HTTP in front of a real bare repository, with the needed part of each API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote

from tests.support.listener import Listener
from tests.support.upstream import git

TOKEN = "t0k3n"
NAME = "acme/shop"
TEMPORARY_BRANCHES = "deltaci/merge/"


class ApiRequest(NamedTuple):
    """A request to the forge's API."""

    method: str
    path: str
    query: dict[str, list[str]]
    body: dict[str, Any]


Response = tuple[int, Any]  # Status and body.


class MergingForge(Listener):
    """A forge whose pull requests are merged in a real repository.

    `stop_at` is the request, counted from 0, at which it hangs: before its effect, or after it with `stop_after`.
    """

    def __init__(self, bare: Path) -> None:
        super().__init__()
        self.bare = bare
        self.received: list[ApiRequest] = []
        self.requests: dict[int, dict[str, Any]] = {}  # Pull or merge requests.
        self.protected = False
        self.checks_before_merge = 1  # How often it reports that it is still checking.
        self.project = {"merge_method": "ff", "squash_option": "default_off"}
        self.before_request: Callable[[ApiRequest], None] = lambda _: None  # Called just before a request takes effect.
        self.stop_at: int | None = None
        self.stop_after = False
        self.is_stopped = asyncio.Event()
        self.status_overrides: dict[int, int] = {}  # By the number of the request.

    @property
    def host(self) -> str:
        """Its host and port, as in the list of allowed hosts."""
        return self.url.removeprefix("http://")

    @property
    def branches(self) -> dict[str, str]:
        """The branches of the repository with their commits."""
        lines = git(self.bare, "for-each-ref", "--format=%(refname:lstrip=2) %(objectname)", "refs/heads").splitlines()
        return dict(line.split(" ") for line in lines)

    @property
    def leftovers(self) -> list[str]:
        """The temporary branches and open pull requests that were not cleaned up."""
        names = [name for name in self.branches if name.startswith(TEMPORARY_BRANCHES)]
        return names + [str(number) for number, request in self.requests.items() if request["state"] == "open"]

    async def handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        path, _, query = target.partition("?")
        request = ApiRequest(method, path, parse_qs(query), json.loads(body) if body else {})
        number = len(self.received)
        self.received.append(request)
        if number == self.stop_at and not self.stop_after:
            await self._hang()
        token = headers.get("authorization", "").rpartition(" ")[2] or headers.get("private-token", "")
        status, payload = (401, {"message": "Bad credentials"}) if token != TOKEN else self._respond(request)
        if number == self.stop_at:
            await self._hang()
        response = json.dumps(payload).encode()
        status = self.status_overrides.get(number, status)
        writer.write(
            f"HTTP/1.1 {status} So\r\nContent-Type: application/json\r\nContent-Length: {len(response)}\r\n"
            "Connection: close\r\n\r\n".encode()
            + response
        )
        await writer.drain()
        writer.write_eof()
        await reader.read()

    async def _hang(self) -> None:
        self.is_stopped.set()
        await asyncio.get_running_loop().create_future()

    def _respond(self, request: ApiRequest) -> Response:
        self.before_request(request)
        parts = [unquote(part) for part in request.path.strip("/").split("/")]
        if parts[0] == "projects":
            return self._gitlab(request, parts[2:])
        rest = parts[3:]
        return self._github(request, rest[1:]) if rest[0] == "git" else self._gitea(request, rest)

    def _fast_forward(self, branch: str, commit: str) -> bool:
        """Move a branch if that is a fast-forward."""
        tip = self.branches.get(branch, "")
        if not tip or git(self.bare, "merge-base", tip, commit) != tip:
            return False
        git(self.bare, "update-ref", f"refs/heads/{branch}", commit, tip)
        return True

    def _delete(self, branch: str) -> bool:
        if branch not in self.branches:
            return False
        git(self.bare, "update-ref", "-d", f"refs/heads/{branch}")
        return True

    # -- GitHub

    def _github(self, request: ApiRequest, parts: list[str]) -> Response:
        branch = "/".join(parts[2:])
        if request.method == "DELETE":
            return (204, {}) if self._delete(branch) else (422, {"message": "Reference does not exist"})
        assert (request.method, request.body["force"]) == ("PATCH", False)
        if branch not in self.branches:
            return 422, {"message": "Reference does not exist"}
        if self.protected:
            return 422, {"message": 'Required status check "review" is expected.'}
        commit = request.body["sha"]
        if not self._fast_forward(branch, commit):
            return 422, {"message": "Update is not a fast forward"}
        return 200, {"object": {"sha": commit}}

    # -- Gitea

    def _find_open(self, head: str, base: str) -> int | None:
        numbers = (n for n, request in self.requests.items() if (request["head"], request["base"]) == (head, base))
        return next((n for n in numbers if self.requests[n]["state"] == "open"), None)

    def _create(self, head: str, base: str) -> int:
        self.requests[number := len(self.requests) + 1] = {"head": head, "base": base, "state": "open", "checks": 0}
        return number

    def _gitea(self, request: ApiRequest, parts: list[str]) -> Response:
        match request.method, parts:
            case "POST", ["pulls"]:
                head, base = request.body["head"], request.body["base"]
                if self._find_open(head, base):
                    return 409, {"message": "pull request already exists for these targets"}
                return 201, {"number": self._create(head, base)}
            case "GET", ["pulls", base, head]:
                number = self._find_open(head, base)
                return (200, {"number": number}) if number else (404, {"message": "not found"})
            case "PATCH", ["pulls", number]:
                self.requests[int(number)]["state"] = request.body["state"]
                return 201, {"number": int(number)}
            case "POST", ["pulls", number, "merge"]:
                return self._merge_gitea(self.requests[int(number)], request.body)
            case "DELETE", ["branches", name]:
                return (204, {}) if self._delete(name) else (404, {"message": "not found"})
        raise AssertionError(request)

    def _merge_gitea(self, request: dict[str, Any], body: dict[str, Any]) -> Response:
        assert body["Do"] == "fast-forward-only"
        request["checks"] += 1
        if request["checks"] <= self.checks_before_merge:
            return 405, {"message": "Please try again later"}
        if self.protected:
            return 405, {"message": "User not allowed to merge PR"}
        if self.branches.get(request["head"]) != body["head_commit_id"]:
            return 409, {"message": "head out of date"}
        if not self._fast_forward(request["base"], body["head_commit_id"]):
            return 409, {"message": "Merge is not fast forward"}
        request["state"] = "merged"
        return 200, {}

    # -- GitLab

    def _gitlab(self, request: ApiRequest, parts: list[str]) -> Response:
        match request.method, parts:
            case "GET", []:
                return 200, self.project
            case "GET", ["merge_requests"]:
                [head], [base] = request.query["source_branch"], request.query["target_branch"]
                iid = self._find_open(head, base)
                return 200, [{"iid": iid, "detailed_merge_status": "unchecked"}] if iid else []
            case "POST", ["merge_requests"]:
                return 201, {"iid": self._create(request.body["source_branch"], request.body["target_branch"])}
            case "GET", ["merge_requests", number]:
                merge_request = self.requests[int(number)]
                merge_request["checks"] += 1
                checked = "not_approved" if self.protected else "mergeable"
                is_checking = merge_request["checks"] <= self.checks_before_merge
                status = "checking" if is_checking else checked
                return 200, {"iid": int(number), "detailed_merge_status": status}
            case "PUT", ["merge_requests", number]:
                self.requests[int(number)]["state"] = "closed"
                return 200, {"iid": int(number)}
            case "PUT", ["merge_requests", number, "merge"]:
                return self._merge_gitlab(self.requests[int(number)], request.body)
            case "DELETE", ["repository", "branches", name]:
                return (204, {}) if self._delete(name) else (404, {"message": "404 Branch Not Found"})
        raise AssertionError(request)

    def _merge_gitlab(self, request: dict[str, Any], body: dict[str, Any]) -> Response:
        if self.protected:
            return 405, {"message": "405 Method Not Allowed"}
        if self.branches.get(request["head"]) != body["sha"]:
            return 409, {"message": "SHA does not match HEAD of source branch"}
        if not self._fast_forward(request["base"], body["sha"]):
            return 422, {"message": "Branch cannot be merged"}
        request["state"] = "merged"
        self._delete(request["head"])
        return 200, {}
