"""A fake forge that merges: HTTP in front of a real bare repository, with the needed part of each API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote

from tests.listener import Listener
from tests.repositories.upstream import git

TOKEN = "t0k3n"
NAME = "acme/shop"
OWN = "deltaci/merge/"


class Asked(NamedTuple):
    """One request."""

    method: str
    path: str
    query: dict[str, list[str]]
    body: dict[str, Any]


Said = tuple[int, Any]


class MergingForge(Listener):
    """`held` is the request, counted from 0, at which it stops: before it did it, or `is_after` it did."""

    def __init__(self, bare: Path) -> None:
        super().__init__()
        self.bare = bare
        self.asked: list[Asked] = []
        self.requests: dict[int, dict[str, Any]] = {}  # Pull or merge requests.
        self.protected = False
        self.looking = 1  # So often it says that it still looks at a request.
        self.project = {"merge_method": "ff", "squash_option": "default_off"}
        self.meanwhile: Callable[[Asked], None] = lambda _: None  # What others do just before it does something.
        self.held: int | None = None
        self.is_after = False
        self.is_held = asyncio.Event()
        self.broken: dict[int, int] = {}  # By the number of the request: it answers with this instead.

    @property
    def host(self) -> str:
        """As the server's configuration allows it."""
        return self.url.removeprefix("http://")

    @property
    def branches(self) -> dict[str, str]:
        """What the repository has."""
        lines = git(self.bare, "for-each-ref", "--format=%(refname:lstrip=2) %(objectname)", "refs/heads").splitlines()
        return dict(line.split(" ") for line in lines)

    @property
    def left(self) -> list[str]:
        """What nobody tidied up: branches of ours, and open requests."""
        names = [name for name in self.branches if name.startswith(OWN)]
        return names + [str(number) for number, each in self.requests.items() if each["state"] == "open"]

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, target, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        path, _, query = target.partition("?")
        asked = Asked(method, path, parse_qs(query), json.loads(body) if body else {})
        number = len(self.asked)
        self.asked.append(asked)
        if number == self.held and not self.is_after:
            await self._hold()
        shown = headers.get("authorization", "").rpartition(" ")[2] or headers.get("private-token", "")
        status, said = (401, {"message": "Bad credentials"}) if shown != TOKEN else self._done(asked)
        if number == self.held:
            await self._hold()
        answer = json.dumps(said).encode()
        status = self.broken.get(number, status)
        writer.write(
            f"HTTP/1.1 {status} So\r\nContent-Type: application/json\r\nContent-Length: {len(answer)}\r\n"
            "Connection: close\r\n\r\n".encode()
            + answer
        )
        await writer.drain()
        writer.write_eof()
        await reader.read()

    async def _hold(self) -> None:
        self.is_held.set()
        await asyncio.get_running_loop().create_future()

    def _done(self, asked: Asked) -> Said:
        self.meanwhile(asked)
        parts = [unquote(each) for each in asked.path.strip("/").split("/")]
        if parts[0] == "projects":
            return self._gitlab(asked, parts[2:])
        rest = parts[3:]
        return self._github(asked, rest[1:]) if rest[0] == "git" else self._gitea(asked, rest)

    def _forward(self, branch: str, commit: str) -> bool:
        """Move it, if that is a fast-forward."""
        now = self.branches.get(branch, "")
        if not now or git(self.bare, "merge-base", now, commit) != now:
            return False
        git(self.bare, "update-ref", f"refs/heads/{branch}", commit, now)
        return True

    def _delete(self, branch: str) -> bool:
        if branch not in self.branches:
            return False
        git(self.bare, "update-ref", "-d", f"refs/heads/{branch}")
        return True

    # -- GitHub

    def _github(self, asked: Asked, parts: list[str]) -> Said:
        branch = "/".join(parts[2:])
        if asked.method == "DELETE":
            return (204, {}) if self._delete(branch) else (422, {"message": "Reference does not exist"})
        assert (asked.method, asked.body["force"]) == ("PATCH", False)
        if branch not in self.branches:
            return 422, {"message": "Reference does not exist"}
        if self.protected:
            return 422, {"message": 'Required status check "review" is expected.'}
        commit = asked.body["sha"]
        if not self._forward(branch, commit):
            return 422, {"message": "Update is not a fast forward"}
        return 200, {"object": {"sha": commit}}

    # -- Gitea

    def _open(self, head: str, base: str) -> int | None:
        found = (n for n, each in self.requests.items() if (each["head"], each["base"]) == (head, base))
        return next((n for n in found if self.requests[n]["state"] == "open"), None)

    def _made(self, head: str, base: str) -> int:
        self.requests[number := len(self.requests) + 1] = {"head": head, "base": base, "state": "open", "looks": 0}
        return number

    def _gitea(self, asked: Asked, parts: list[str]) -> Said:
        match asked.method, parts:
            case "POST", ["pulls"]:
                head, base = asked.body["head"], asked.body["base"]
                if self._open(head, base):
                    return 409, {"message": "pull request already exists for these targets"}
                return 201, {"number": self._made(head, base)}
            case "GET", ["pulls", base, head]:
                found = self._open(head, base)
                return (200, {"number": found}) if found else (404, {"message": "not found"})
            case "PATCH", ["pulls", number]:
                self.requests[int(number)]["state"] = asked.body["state"]
                return 201, {"number": int(number)}
            case "POST", ["pulls", number, "merge"]:
                return self._merged(self.requests[int(number)], asked.body)
            case "DELETE", ["branches", name]:
                return (204, {}) if self._delete(name) else (404, {"message": "not found"})
        raise AssertionError(asked)

    def _merged(self, request: dict[str, Any], body: dict[str, Any]) -> Said:
        assert body["Do"] == "fast-forward-only"
        request["looks"] += 1
        if request["looks"] <= self.looking:
            return 405, {"message": "Please try again later"}
        if self.protected:
            return 405, {"message": "User not allowed to merge PR"}
        if self.branches.get(request["head"]) != body["head_commit_id"]:
            return 409, {"message": "head out of date"}
        if not self._forward(request["base"], body["head_commit_id"]):
            return 409, {"message": "Merge is not fast forward"}
        request["state"] = "merged"
        return 200, {}

    # -- GitLab

    def _gitlab(self, asked: Asked, parts: list[str]) -> Said:
        match asked.method, parts:
            case "GET", []:
                return 200, self.project
            case "GET", ["merge_requests"]:
                [head], [base] = asked.query["source_branch"], asked.query["target_branch"]
                found = self._open(head, base)
                return 200, [{"iid": found, "detailed_merge_status": "unchecked"}] if found else []
            case "POST", ["merge_requests"]:
                return 201, {"iid": self._made(asked.body["source_branch"], asked.body["target_branch"])}
            case "GET", ["merge_requests", number]:
                request = self.requests[int(number)]
                request["looks"] += 1
                ready = "not_approved" if self.protected else "mergeable"
                return 200, {
                    "iid": int(number),
                    "detailed_merge_status": "checking" if request["looks"] <= self.looking else ready,
                }
            case "PUT", ["merge_requests", number]:
                self.requests[int(number)]["state"] = "closed"
                return 200, {"iid": int(number)}
            case "PUT", ["merge_requests", number, "merge"]:
                return self._accepted(self.requests[int(number)], asked.body)
            case "DELETE", ["repository", "branches", name]:
                return (204, {}) if self._delete(name) else (404, {"message": "404 Branch Not Found"})
        raise AssertionError(asked)

    def _accepted(self, request: dict[str, Any], body: dict[str, Any]) -> Said:
        if self.protected:
            return 405, {"message": "405 Method Not Allowed"}
        if self.branches.get(request["head"]) != body["sha"]:
            return 409, {"message": "SHA does not match HEAD of source branch"}
        if not self._forward(request["base"], body["sha"]):
            return 422, {"message": "Branch cannot be merged"}
        request["state"] = "merged"
        self._delete(request["head"])
        return 200, {}
