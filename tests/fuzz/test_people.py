"""What people and programs send to the API: plans, templates, queries, cursors, keys and headers of any kind.

Whatever comes, the answer is one of the documented ones and comes soon; and the log of all that was started is legal.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import strategies as st

from deltaci.api.routes import REFUSALS, ROOT, ROUTES
from deltaci.app import Server
from deltaci.core.errors import Refused
from deltaci.engine import feed
from deltaci.server.rest.http import query_parameters, ranges
from deltaci.server.rest.http.cursors import encode_cursor
from deltaci.server.rest.streams.live import prefers_stream
from tests.contract.backends import Backend, legal
from tests.fuzz.json_texts import ODD_TEXTS, mutated
from tests.fuzz.profile import fuzzed

T = TypeVar("T")

MAX_SECONDS: Final = 10.0  # For one request.
MAX_BYTES: Final = 2_000_000  # Of one answer to anything that is asked here.
LISTS: Final = ("/runs", "/runs/{run}/jobs", "/templates", "/templates/t/versions", "/queue", "/workers", "/keys")
QUERIES: Final = sorted({route.query for route in ROUTES if route.query is not None}, key=lambda each: each.__name__)
FIELDS: Final = sorted({name for kind in QUERIES for name in kind.__struct_fields__})


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """As what it is."""
        return json.loads(self.body)


class Desk:
    """The real application, asked by an administrator unless somebody else is named."""

    def __init__(self, loop: asyncio.Runner, service: Server) -> None:
        self._loop = loop
        self.service = service
        self.token = service.signer.sign("operate", "root", "default", 3600)
        self.token = str(self.ask("POST", "/keys", {"person": "ada", "scopes": ["admin"]}).json["token"])
        self.run = str(self.ask("POST", "/runs", {"plan": {"jobs": [job("a"), job("b")]}}).json["id"])
        assert self.ask("PUT", "/templates/t", {"plan": {"jobs": [job("a")]}}).status == 200

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """On the loop of the service, and not for long."""
        return self._loop.run(asyncio.wait_for(work, MAX_SECONDS))

    def ask(
        self, method: str, path: str, body: Any = b"", query: bytes = b"", headers: dict[str, bytes] | None = None
    ) -> Answer:
        """One request, from somebody who hangs up as soon as there is nothing more to read."""
        sent: list[dict[str, Any]] = []
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        coming = [{"type": "http.request", "body": raw, "more_body": False}]

        async def receive() -> dict[str, Any]:
            return coming.pop() if coming else {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)

        told = {"authorization": f"Bearer {self.token}".encode()} | (headers or {})
        scope = {
            **{"type": "http", "method": method, "path": f"{ROOT}{path}", "query_string": query},
            "headers": [(name.encode(), value) for name, value in told.items()],
        }
        self.do(self.service.app(scope, receive, send))
        head = {name.decode(): value.decode("latin-1") for name, value in sent[0]["headers"]}
        return judged(Answer(sent[0]["status"], head, b"".join(each.get("body", b"") for each in sent[1:])))

    def newest(self) -> str:
        """The run that was started last."""
        return str(self.ask("GET", "/runs", query=b"limit=1").json["runs"][0]["id"])


def judged(answer: Answer) -> Answer:
    """One of the answers that the API has."""
    assert answer.status < 500, answer
    assert len(answer.body) < MAX_BYTES
    assert answer.headers["cache-control"] == "no-store"
    if answer.status >= 400:
        told = answer.json
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.status == told["status"] == REFUSALS[told["code"]].status
        assert told["request_id"] == answer.headers["delta-request-id"]
    return answer


@pytest.fixture
def desk(backend: Backend, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Desk]:
    """The application over each of the stores; at the end its log is legal and it has nothing to complain about."""

    @asynccontextmanager
    async def whole() -> AsyncIterator[Server]:
        async with Server(backend.store(), tmp_path) as service:
            yield service
            legal(await feed.read(service.store, 0, 1_000_000))

    with asyncio.Runner() as loop:
        entered = whole()
        found = Desk(loop, loop.run(entered.__aenter__()))
        yield found
        loop.run(entered.__aexit__(None, None, None))
    assert not [record for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]


def job(name: str, **fields: Any) -> dict[str, Any]:
    """A job for a worker."""
    return {"name": name, "work": {"steps": ["true"]}, **fields}


# -- plans and templates

NAMES: Final = ("a", "b", "c", "(x)", "a.1", "a b", "_", "x" * 100, "a:b=c@d+e,f", "..")
TEXTS: Final = st.text(max_size=8) | st.sampled_from(ODD_TEXTS[:11])
WORDS: Final = st.text(max_size=8).filter(str.isprintable) | st.sampled_from(("", "\u202e", "%00", ".."))
SECONDS: Final = st.sampled_from((0, 1, 60, 10 * 365 * 24 * 3600))
POSITIVE: Final = st.sampled_from((1, 60, 10 * 365 * 24 * 3600))
NEEDS: Final = st.none() | st.lists(st.sampled_from(NAMES[:4]), max_size=2)
WORK: Final = st.fixed_dictionaries(
    {},
    optional={
        "steps": st.lists(TEXTS, max_size=3),
        "env": st.dictionaries(st.sampled_from(("A", "INPUT_X", "a b", "=")), TEXTS, max_size=2),
        "name": TEXTS,
        "image": TEXTS,
        "secrets": st.lists(st.sampled_from(("s", "s/t", "..")), max_size=2),
        "cache_scope": TEXTS,
    },
)
TASKS: Final[st.SearchStrategy[Any]] = st.fixed_dictionaries(
    {"name": st.sampled_from(NAMES), "work": WORK},
    optional={
        "needs": NEEDS,
        "runs_on": st.lists(st.sampled_from(("x", "y", "a=b", "ü")), max_size=3),
        "allow_failure": st.booleans(),
        "timeout_seconds": POSITIVE,
        "priority": st.sampled_from((-1000, 0, 1000)),
        "retry": st.fixed_dictionaries(
            {"max_attempts": st.sampled_from((1, 100))},
            optional={"base_delay_seconds": SECONDS, "max_delay_seconds": SECONDS, "jitter": st.floats(0, 1)},
        ),
    },
)
GATES: Final[st.SearchStrategy[Any]] = st.fixed_dictionaries(
    {"name": st.sampled_from(NAMES), "kind": st.just("approval")},
    optional={
        "needs": NEEDS,
        "approval": st.fixed_dictionaries(
            {}, optional={"role": WORDS, "approvers": st.sampled_from((1, 2, 100)), "expires_seconds": SECONDS}
        ),
    },
)
PLANS: Final[st.SearchStrategy[Any]] = st.fixed_dictionaries(
    {"jobs": st.lists(TASKS | GATES, min_size=1, max_size=5, unique_by=lambda each: each["name"])},
    optional={"fail_fast": st.booleans(), "timeout_seconds": SECONDS | POSITIVE},
)
RUNS: Final = st.fixed_dictionaries(
    {"plan": PLANS},
    optional={
        **dict.fromkeys(("project", "branch", "repository", "commit", "title"), WORDS),
        "labels": st.lists(st.sampled_from(("x", "~", "a/b", "=")), max_size=3),
    },
)
READS: Final = ("", "/plan", "/explain", "/jobs", "/events", "/artifacts", "/outputs", "/costs", "/timeline")
WHOLE: Final = {
    "plan": {
        "jobs": [job("a", needs=[], retry={"max_attempts": 2}), {"name": "g", "kind": "approval", "needs": ["a"]}]
    },
    **{"project": "p", "branch": "b", "title": "t", "labels": ["x"]},
}


@fuzzed(60, asked=RUNS, said=TEXTS)
def test_a_plan_is_refused_or_becomes_a_run_that_can_be_read_and_stopped(desk: Desk, asked: Any, said: str) -> None:
    """Whatever the types let through: nothing that exists may be beyond reading."""
    before = desk.newest()

    started = desk.ask("POST", "/runs", asked)

    if started.status != 201:
        assert desk.newest() == before
        return
    id = started.json["id"]
    for read in READS:
        assert desk.ask("GET", f"/runs/{id}{read}").status == 200
    for job_record in asked["plan"]["jobs"]:
        assert desk.ask("GET", f"/runs/{id}/jobs/{job_record['name']}/explain").status == 200
    if asked.get("branch"):
        found = desk.ask("GET", "/runs", query=b"limit=200&branch=" + quote(asked["branch"]).encode())
        assert id in [run["id"] for run in found.json["runs"]]
    assert desk.ask("POST", f"/runs/{id}/approve", {"comment": said}).status in (200, 403, 409, 422)
    assert desk.ask("POST", f"/runs/{id}/cancel", {"reason": said}).status in (200, 409, 422)
    assert desk.ask("POST", f"/runs/{id}/rerun", {"failed_only": not said}).status in (201, 409)
    for read in READS:
        assert desk.ask("GET", f"/runs/{id}{read}").status == 200


@fuzzed(80, body=mutated(WHOLE))
def test_a_run_that_is_nearly_right(desk: Desk, body: bytes) -> None:
    """A careless program, or an evil one."""
    before = desk.newest()

    if desk.ask("POST", "/runs", body).status != 201:
        assert desk.newest() == before


@fuzzed(
    50,
    rules=st.dictionaries(
        st.sampled_from(("x", "X", "region", "_", "y" * 100)),
        st.fixed_dictionaries(
            {},
            optional={
                "required": st.booleans(),
                "default": TEXTS,
                "choices": st.lists(TEXTS, max_size=3),
                "description": TEXTS,
            },
        ),
        max_size=3,
    ),
    given=st.dictionaries(st.sampled_from(("x", "X", "region", "_", "other")), TEXTS, max_size=3),
    version=st.none() | st.integers(1, 40) | st.just(2**31),
)
def test_a_template_is_refused_or_can_be_started(desk: Desk, rules: Any, given: Any, version: int | None) -> None:
    """What it asks for is checked; what it is given reaches the job, and nothing else does."""
    saved = desk.ask("PUT", "/templates/t", {"plan": {"jobs": [job("a")]}, "inputs": rules})

    started = desk.ask("POST", "/runs", {"template": "t", "inputs": given, "version": version})

    assert saved.status in (200, 400, 422)
    if saved.status == 200 and started.status == 201 and version is None:
        env = desk.ask("GET", f"/runs/{started.json['id']}/plan").json["jobs"][0]["work"].get("env", {})
        assert set(env) == {f"INPUT_{name.upper()}" for name in rules}
        assert all(env[f"INPUT_{name.upper()}"] == value for name, value in given.items())


# -- keys

ODD_KEYS: Final = st.binary(max_size=12) | st.sampled_from((b"", b" ", b"a", b"\xc3\xbc", b"k" * 200, b"k" * 201))


@fuzzed(50, key=ODD_KEYS, title=st.sampled_from(("", "x")))
def test_an_idempotency_key_is_refused_or_makes_one_run(desk: Desk, key: bytes, title: str) -> None:
    """Once for all repeats; for something else, never."""
    body = {"plan": {"jobs": [job("a")]}, "title": title}
    told = {"idempotency-key": key}

    first = desk.ask("POST", "/runs", body, headers=told)
    again = desk.ask("POST", "/runs", body, headers=told)

    if first.status in (200, 201):
        assert (again.status, again.json["id"]) == (200, first.json["id"])
    else:
        assert (again.status, again.json["code"]) == (first.status, first.json["code"])


@fuzzed(80, data=st.data())
def test_a_token_that_was_changed_lets_nobody_in(desk: Desk, data: st.DataObject) -> None:
    """In any letter, or in what is around it."""
    good = f"Bearer {desk.token}".encode()
    at = data.draw(st.integers(0, len(good)))
    new = good[:at] + data.draw(st.binary(max_size=3)) + good[at + data.draw(st.integers(0, 2)) :]

    answer = desk.ask("GET", "/me", headers={"authorization": new})

    assert answer.status == (200 if new.lower()[:7] == b"bearer " and new[7:] == good[7:] else 401)


# -- queries, cursors and headers


@fuzzed(
    300,
    kind=st.sampled_from(QUERIES),
    query=st.binary(max_size=30)
    | st.lists(
        st.tuples(
            st.sampled_from((*FIELDS, "x")), TEXTS | st.sampled_from(("1", "-1", "1e3", "null", "true", "9" * 25))
        )
    ).map(lambda pairs: "&".join(f"{name}={quote(text)}" for name, text in pairs).encode()),
)
def test_a_query_is_read_or_refused(kind: Any, query: bytes) -> None:
    """And what was read would be read again."""
    try:
        found = query_parameters.parse_query(query, kind)
    except (Refused, msgspec.ValidationError):
        return

    assert isinstance(found, kind)
    assert msgspec.convert(msgspec.to_builtins(found), kind) == found


TIMES: Final = st.datetimes(timezones=st.timezones()).map(lambda at: at.isoformat()) | st.sampled_from(
    ("0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59.999999-23:59", "1970-01-01T00:00:00Z", "2026-02-30T00:00:00Z")
)


@fuzzed(
    60,
    asked=st.fixed_dictionaries(
        {},
        optional={
            **{"since": TIMES, "until": TIMES, "limit": st.integers(-1, 300).map(str)},
            **dict.fromkeys(("branch", "project", "label", "person", "template"), TEXTS),
            **{"state": st.sampled_from(("REPORTED", "x")), "status": st.sampled_from(("PENDING", "null"))},
        },
    ),
)
def test_a_search_finds_something_or_nothing(desk: Desk, asked: dict[str, str]) -> None:
    """By any values, in any combination."""
    query = "&".join(f"{name}={quote(text)}" for name, text in asked.items())

    assert desk.ask("GET", "/runs", query=query.encode()).status in (200, 422)


CURSORS: Final = st.one_of(
    st.text(max_size=20),
    st.text(max_size=20).map(encode_cursor),
    st.tuples(st.integers(-5, 10**20), TEXTS).map(lambda pair: encode_cursor(f"{pair[0]} {pair[1]}")),
)


@fuzzed(60, path=st.sampled_from(LISTS), cursor=CURSORS)
def test_a_cursor_is_a_place_in_the_list_or_refused(desk: Desk, path: str, cursor: str) -> None:
    """Somebody may have made it up."""
    query = b"limit=1&cursor=" + quote(cursor, errors="replace").encode()

    assert desk.ask("GET", path.format(run=desk.run), query=query).status in (200, 400, 422)


@fuzzed(
    60,
    told=st.binary(max_size=10) | st.integers(0, 10**17).map(lambda n: str(n).encode()),
    accept=st.sampled_from((b"text/event-stream", b"*/*", b"text/event-stream;q=0", b"\xff", b"text/event-stream;q=9")),
    is_run=st.booleans(),
)
def test_a_stream_begins_where_it_is_told_or_not_at_all(desk: Desk, told: bytes, accept: bytes, is_run: bool) -> None:
    """A client that comes back says where it was, if it knows."""
    path = f"/runs/{desk.run}/events" if is_run else "/events"

    assert desk.ask("GET", path, headers={"last-event-id": told, "accept": accept}).status in (200, 400)


@fuzzed(150, accept=st.text(max_size=40) | st.text("textevn-sram/;q=0.19, *", max_size=60))
def test_what_a_client_accepts_is_understood_or_ignored(accept: str) -> None:
    """A stream only for those who ask for one by its name."""
    assert not prefers_stream(accept) or "text/event-stream" in accept.lower()


@fuzzed(300, header=st.text(max_size=20) | st.text("bytes= 0123456789-,", max_size=30), size=st.integers(0, 50))
def test_a_range_is_a_part_of_the_file(header: str, size: int) -> None:
    """Never beyond its end, and never nothing, unless there is nothing."""
    try:
        found = ranges.requested_range(header, size)
    except ranges.BadRange:
        return

    assert 0 <= found.start <= found.stop <= size
    assert found.is_part or (found.start, found.stop) == (0, size)
    assert found.start < found.stop or not size


@fuzzed(30, header=st.binary(max_size=12) | st.sampled_from((b"bytes=0-", b"bytes=5-4", b"bytes=-0", b"bytes=9" * 99)))
def test_a_range_of_a_log_is_answered(desk: Desk, header: bytes) -> None:
    """Of a log that is still empty, too."""
    path = f"/runs/{desk.run}/jobs/a/log"

    assert desk.ask("GET", path, headers={"range": header}).status in (200, 416)


@fuzzed(
    100,
    method=st.sampled_from(("GET", "POST", "PUT", "DELETE", "HEAD", "TRACE", "QUERY", "get", "X" * 50)),
    parts=st.lists(
        st.sampled_from(
            ("runs", "jobs", "attempts", "artifacts", "1", "a", "templates", "t", "keys", "tokens", "workers")
        )
        | TEXTS,
        max_size=9,
    ),
)
def test_an_address_of_any_kind_is_one_or_none(desk: Desk, method: str, parts: list[str]) -> None:
    """Whoever tries doors."""
    path = "/" + "/".join(desk.run if part == "a" else part for part in parts)

    answer = desk.ask(method, path, b"{}")

    if answer.status == 405:
        assert method not in answer.headers["allow"].split(", ")
