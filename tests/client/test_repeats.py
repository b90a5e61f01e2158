"""When a request is sent again, and when not: decided without a clock and without a socket."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from deltaci.client import calls, operations
from deltaci.client.calls import Call
from deltaci.client.effects import (
    EmitItem,
    GetRetryPolicy,
    HttpResponse,
    OpenStream,
    OperationDriver,
    ReadChunk,
    SendRequest,
    Sleep,
)
from deltaci.client.errors import UNEXPECTED, ApiError, Unreachable
from deltaci.client.retry import Patience

PATIENCE = Patience(first_seconds=1, most_seconds=4, give_up_seconds=30)
ME = msgspec.json.encode(
    {
        **{"tenant": "t", "person": "ada", "scopes": ["read"], "roles": [], "key_id": "k"},
        **{"expires_at": None, "is_operator": False},
    }
)
GOOD = HttpResponse(200, {}, ME)
GONE = Unreachable("the line broke")
UNHEARD = Unreachable("nobody there", is_unheard=True)


def problem(status: int, code: str, **headers: str) -> HttpResponse:
    """A refusal as servers send it."""
    told = {"type": "about:blank", "title": "no", "status": status, "code": code, "message": "because"}
    body = {**told, "hint": "do this", "request_id": "abc", "detail": "because"}
    return HttpResponse(
        status, {name.replace("_", "-"): value for name, value in headers.items()}, msgspec.json.encode(body)
    )


def told(
    call: Call[Any], answers: Iterable[HttpResponse | Exception], patience: Patience = PATIENCE
) -> tuple[Any, list[float]]:
    """What comes of these answers, and how long was waited before each repeat."""
    drive = OperationDriver(operations.repeated("http://server", call, patience))
    left, pauses = list(answers), []
    try:
        while (step := drive.step()) is not None:
            match step:
                case SendRequest():
                    answer = left.pop(0)
                    drive.fail(answer) if isinstance(answer, Exception) else drive.give(answer)
                case Sleep(seconds):
                    pauses.append(seconds)
                    drive.give(None)
    except (ApiError, Unreachable) as error:
        return error, pauses
    assert not left
    return drive.result, pauses


def test_a_read_is_repeated_until_there_is_an_answer() -> None:
    """Longer waits each time, and never the same as everybody else's."""
    found, pauses = told(
        calls.me(), [GONE, UNHEARD, problem(503, "unavailable"), HttpResponse(502, {}, b"<html>"), GOOD]
    )

    assert found.person == "ada"
    assert all(low / 2 <= pause <= low for low, pause in zip([1, 2, 4, 4], pauses, strict=True))


def test_retry_after_is_obeyed() -> None:
    """Never sooner than the server says."""
    found, pauses = told(calls.me(), [problem(429, "too_many_requests", retry_after="7"), GOOD])

    assert found.person == "ada"
    assert 7 <= pauses[0] <= 8


def test_patience_has_an_end_and_the_last_trouble_is_told() -> None:
    """A server that is gone for good must not hold its callers for ever."""
    found, pauses = told(calls.me(), [GONE] * 100)

    assert found is GONE
    assert sum(pauses) <= PATIENCE.give_up_seconds


def test_a_wait_longer_than_the_patience_is_not_begun() -> None:
    """Whoever asks is told at once."""
    found, pauses = told(calls.me(), [problem(503, "overloaded", retry_after="3600")])

    assert (found.code, pauses) == ("overloaded", [])


def test_what_is_not_safe_is_not_repeated_once_it_may_have_been_heard() -> None:
    """A second version of a template would be wrong; one that was never heard is no second."""
    save = calls.save_template("t", {"jobs": []})

    assert told(save, [GONE]) == (GONE, [])
    assert told(save, [problem(503, "unavailable")])[0].code == "unavailable"
    found, pauses = told(save, [UNHEARD, problem(422, "bad_message")])
    assert (found.code, len(pauses)) == ("bad_message", 1)


@pytest.mark.parametrize("call", [calls.start(template="t"), calls.rerun("r"), calls.cancel("r"), calls.approve("r")])
def test_what_is_safe_to_repeat_is_repeated(call: Call[Any]) -> None:
    """It carries a key, or a second time changes nothing."""
    found, pauses = told(call, [GONE, problem(503, "unavailable"), problem(404, "not_found")])

    assert (found.code, len(pauses)) == ("not_found", 2)


@pytest.mark.parametrize("code", ["over_quota", "unreadable"])
def test_what_lasts_is_not_asked_again(code: str) -> None:
    """A full quota is still full a second later."""
    found, pauses = told(calls.me(), [problem(503, code)])

    assert (found.code, pauses) == (code, [])


def test_a_refusal_tells_everything_that_the_server_told() -> None:
    """What was found, what to do, and what to search for in the server's log."""
    found, _ = told(calls.me(), [problem(403, "missing_scope")])

    assert (found.status, found.code, found.message) == (403, "missing_scope", "because")
    assert (found.hint, found.request_id, str(found)) == ("do this", "abc", "missing_scope: because")


@pytest.mark.parametrize(
    "answer",
    [
        HttpResponse(404, {"content-type": "text/html; charset=utf-8"}, b"<html>\x1b[31mnginx</html>"),
        HttpResponse(200, {"content-type": "text/html"}, b"<html>sign in</html>"),
        HttpResponse(200, {}, b""),
        HttpResponse(302, {"location": "https://elsewhere"}, b""),
        HttpResponse(400, {"content-type": "application/json"}, b'{"error": "other API"}'),
        HttpResponse(500, {}, b"\xff\xfe"),
    ],
    ids=["proxy page", "login page", "empty", "redirect", "other API", "binary"],
)
def test_an_answer_that_is_none_of_ours_is_called_that(answer: HttpResponse) -> None:
    """The most common mistake is the wrong address."""
    found, _ = told(calls.me(), [answer])

    assert found.code == UNEXPECTED
    assert "http://server" in found.message
    assert "\x1b" not in found.message
    assert "URL" in found.hint


def test_a_file_goes_on_where_the_line_broke() -> None:
    """What was read is not read again, and nothing of another file is put behind it."""
    drive = OperationDriver(operations.artifact_bytes("r", "j", 1, "f"))
    read: list[Any] = [b"one", GONE, b"two", None]
    ranges, got = [], b""

    while (step := drive.step()) is not None:
        match step:
            case GetRetryPolicy():
                drive.give(PATIENCE)
            case OpenStream(call):
                ranges.append(call.headers.get("Range"))
                drive.give(HttpResponse(206 if ranges[-1] else 200, {}, b""))
            case ReadChunk():
                part = read.pop(0)
                drive.fail(part) if isinstance(part, Exception) else drive.give(part)
            case EmitItem(item):
                got += item
                drive.give(None)
            case Sleep():
                drive.give(None)

    assert (got, ranges) == (b"onetwo", [None, "bytes=3-"])
