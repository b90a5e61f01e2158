"""Every page of the web interface, asked for anything, and sent anything, by somebody who is signed in.

Whatever comes, the answer is a page, a way to one or a file, never an accident; and nothing that was sent, or that
stands in a record, becomes markup, a header or a way elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote, unquote, urlencode

import msgspec
import pytest
from hypothesis import strategies as st

from deltaci.api.routes import ROOT
from deltaci.app import Server
from deltaci.core.instants import SECOND
from deltaci.server.web import routes
from deltaci.server.web.app import SAFE
from deltaci.server.web.auth.sessions import SessionGrant
from deltaci.server.web.page_route import PageRoute
from deltaci.storage import open_store
from tests.fuzz.json_texts import ODD_TEXTS
from tests.fuzz.profile import fuzzed

MARK: Final = "<x-probe a=\"'"
MAX_SECONDS: Final = 20.0  # For one request, on a busy machine.
NAMES: Final = (
    *(
        "at",
        "attempt",
        "base",
        "branch",
        "comment",
        "cursor",
        "description",
        "draft",
        "expires_seconds",
        "file",
        "from",
    ),
    *("failed_only", "first", "input", "inputs", "job", "kind", "key", "label", "limit", "name", "order", "outcome"),
    *("person", "plan", "plan_hash", "project", "q", "query", "reason", "role", "roles", "run", "scope", "scopes"),
    *("state", "status", "template", "tenant", "text", "to", "url", "value", "version", "view", "only", "once", "csrf"),
)
TEXTS: Final = st.sampled_from((MARK, *ODD_TEXTS, "/\\x", "//x", "on", "1", "-1", "FAILED", "{", "[]", "é\r\nA: b"))
FIELDS: Final = st.dictionaries(st.sampled_from(NAMES) | TEXTS, TEXTS | st.text(max_size=12), max_size=5)


class Beholder:
    """The real application, and what it is asked."""

    def __init__(self, loop: asyncio.Runner, service: Server) -> None:
        self._loop = loop
        self.service = service
        self.known: dict[str, str] = {}

    def do(self, work: Any) -> Any:
        """On the loop of the service, and not for long."""
        return self._loop.run(asyncio.wait_for(work, MAX_SECONDS))

    def ask(
        self, method: str, path: str, *, query: str = "", body: bytes = b"", **headers: str
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """One request, from somebody who hangs up as soon as there is nothing more to read."""
        sent: list[dict[str, Any]] = []
        coming = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive() -> dict[str, Any]:
            return coming.pop() if coming else {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        told = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
        scope = {
            **{"type": "http", "method": method, "path": path, "query_string": query.encode()},
            "headers": [(b"host", b"here"), (b"accept", b"text/html"), *told],
        }
        self.do(self.service.app(scope, receive, send))
        head = [(name.decode(), value.decode("latin-1")) for name, value in sent[0]["headers"]]
        return sent[0]["status"], head, b"".join(each.get("body", b"") for each in sent[1:])

    def session(self, *, may_all: bool) -> tuple[str, str]:
        """Somebody signed in anew: the cookie, and the token for forms."""
        sessions = self.service.control_plane.web._sessions
        expires_at = int((sessions.now() + 3600) * SECOND)
        grant = SessionGrant(tenant="default", person="root", is_operator=True, expires_at=expires_at)
        if not may_all:
            grant = SessionGrant(tenant="default", person="reader", key_id=self.known["reader"])
        session = self.do(sessions.begin([grant], None))
        return sessions.cookie(session, is_secure=False).partition(";")[0], sessions.csrf(session)

    def fill(self) -> None:
        """Something to look at, with the mark in every text that people can write."""
        job = {"name": "a", "work": {"steps": [MARK], "env": {"A": MARK}}, "runs_on": ["nobody"]}
        gate = {"name": "g", "kind": "approval", "needs": [], "approval": {}}
        run = {"plan": {"jobs": [job, gate]}, "title": MARK, "project": MARK, "branch": MARK, "labels": ["<x-probe>"]}
        self.known["run"] = self._made("POST", "/runs", run)["id"]
        self._made("PUT", "/templates/t", {"plan": {"jobs": [job]}, "description": MARK})
        self._made(
            "PUT", "/projects/p", {"url": f"https://127.0.0.1/{quote(MARK)}.git", "policies": {"schedules": False}}
        )
        self._made("PUT", "/secrets/S", {"value": MARK})
        key = {"person": "ada", "scopes": ["run"], "description": MARK, "roles": ["<x-probe"]}
        self.known["key"] = self._made("POST", "/keys", key)["id"]
        self.known["reader"] = self._made("POST", "/keys", {**key, "person": "reader", "scopes": ["read"]})["id"]
        self.known |= {"job": "a", "template": "t", "version": "1", "project": "p", "secret": "S", "worker": "w"}

    def _made(self, method: str, path: str, body: Any) -> Any:
        token = self.service.signer.sign("operate", "root", "default", 3600)
        status, _, answer = self.ask(
            method, f"{ROOT}{path}", body=msgspec.json.encode(body), authorization=f"Bearer {token}"
        )
        assert status < 300, answer
        return msgspec.json.decode(answer)


@pytest.fixture(scope="module")
def beholder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beholder]:
    """The application with something in it."""
    with asyncio.Runner() as loop:
        service = Server(open_store("memory:"), tmp_path_factory.mktemp("pages"))
        found = Beholder(loop, loop.run(service.__aenter__()))
        found.fill()
        yield found
        loop.run(service.__aexit__(None, None, None))


def judge(what: str, status: int, head: list[tuple[str, str]], body: bytes) -> None:
    """No accident, everything that keeps browsers safe, nowhere else, and the mark only as text."""
    headers = dict(head)
    assert status < 500, (what, status, body[-2000:])
    assert not any(ord(letter) < 32 for _, value in head for letter in value), (what, head)
    if headers["content-type" if "content-type" in headers else "location"].startswith("text/html"):
        assert {name: headers.get(name.lower()) for name in SAFE} == SAFE, what
        assert b"<x-probe" not in body, (what, body[body.index(b"<x-probe") - 200 :][:400])
        assert b'x-probe a="' not in body, what
    else:
        assert "nosniff" in headers.get("x-content-type-options", ""), (what, head)
    if "location" in headers:
        to = headers["location"]
        assert to.startswith("/"), (what, to)
        assert not to.startswith(("//", "/\\")), (what, to)


def _address(beholder: Beholder, route: PageRoute, params: list[str | None]) -> str:
    """The page's address, with what is there, or with something else."""
    given = iter(params)
    parts = []
    for part in route.path.split("/"):
        name = part.strip("{}")
        parts.append(part if part == name else next(given, None) or beholder.known.get(name, "none"))
    return "/".join(parts)


@fuzzed(
    250,
    route=st.sampled_from(routes.PAGES),
    params=st.lists(st.none() | TEXTS, max_size=3),
    query=FIELDS,
    may_all=st.booleans(),
    is_live=st.booleans(),
)
def test_a_page_that_is_looked_at(
    beholder: Beholder, route: PageRoute, params: list[str | None], query: dict[str, str], may_all: bool, is_live: bool
) -> None:
    """By address and query."""
    cookie, _ = beholder.session(may_all=may_all)
    path = _address(beholder, route, params)

    answer = beholder.ask("GET", path, query=_encoded(query), cookie=cookie, delta_live="1" if is_live else "")

    judge(f"GET {path!r} {query!r}", *answer)


@fuzzed(
    250,
    route=st.sampled_from([page for page in routes.PAGES if page.post or page.enter_post]),
    params=st.lists(st.none() | TEXTS, max_size=3),
    form=FIELDS,
    may_all=st.booleans(),
    referer=TEXTS,
)
def test_a_form_that_is_sent(
    beholder: Beholder, route: PageRoute, params: list[str | None], form: dict[str, str], may_all: bool, referer: str
) -> None:
    """With the right token, so that it is read."""
    cookie, csrf = beholder.session(may_all=may_all)
    path = _address(beholder, route, params)

    answer = beholder.ask(
        "POST",
        path,
        body=_encoded({**form, "csrf": csrf}).encode(),
        cookie=cookie,
        origin="http://here",
        referer=f"http://here/runs/{quote(referer)}",
        content_type="application/x-www-form-urlencoded",
    )

    judge(f"POST {path!r} {form!r}", *answer)
    told = [unquote(value) for name, value in answer[1] if name == "set-cookie" and value.startswith("deltaci_said=")]
    for said in told:  # And it is text on the page that says it.
        status, head, body = beholder.ask("GET", "/runs", cookie=f"{cookie}; deltaci_said={quote(said[13:600])}")
        judge(f"said {said!r}", status, head, body)


def test_everything_that_is_there_was_looked_at(beholder: Beholder) -> None:
    """The pages show what was made for them, with the mark as text: else nothing above says anything."""
    cookie, _ = beholder.session(may_all=True)
    shown = 0
    for route in routes.PAGES:
        if route.get is None or route.path == "/live":
            continue
        path = _address(beholder, route, [])
        status, head, body = beholder.ask("GET", path, cookie=cookie)
        judge(path, status, head, body)
        shown += b"&lt;x-probe" in body
    assert shown >= 5


def _encoded(fields: dict[str, str]) -> str:
    return urlencode(fields, errors="replace")
