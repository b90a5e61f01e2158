"""Everything that can be asked has a method, in both clients, with the same parameters."""

from __future__ import annotations

import inspect
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

import deltaci
from deltaci.api.routes import ROUTES
from deltaci.client import AsyncClient, Client, calls, history, workstreams
from deltaci.client.run_refs import RunRef, parse_refs


def test_every_route_has_a_call() -> None:
    """An address that the client does not know is one that people must write by hand."""
    source = "".join(Path(inspect.getfile(each)).read_text("utf-8") for each in (calls, history, workstreams))

    assert set(re.findall(r'_call\(\s*"(\w+)"', source)) == {route.id for route in ROUTES}


def test_both_clients_have_the_same_methods_with_the_same_parameters() -> None:
    """Whoever knows one knows the other."""

    def methods(kind: type) -> dict[str, object]:
        found = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
        return {name: list(inspect.signature(each).parameters.values())[1:] for name, each in found.items()}

    found = methods(Client)
    other = methods(AsyncClient)

    assert set(found) == set(other)
    shared = set(found) - {"finish", "stream"}
    assert {name: str(found[name]) for name in shared} == {name: str(other[name]) for name in shared}


def test_the_clients_are_where_programs_look_for_them() -> None:
    """`from deltaci import Client`."""
    assert deltaci.Client is Client
    assert deltaci.AsyncClient is AsyncClient
    assert issubclass(deltaci.ApiError, Exception)


def test_what_is_left_out_is_not_sent() -> None:
    """The server has its own defaults, and another version of it may have others."""
    assert calls.cancel("r1").body == b"{}"
    assert calls.runs(branch="main", limit=5).query == (("branch", "main"), ("limit", "5"))


def test_what_is_given_is_sent_as_the_server_reads_it() -> None:
    """Lists are repeated, times have a zone, yes is true."""
    asked = calls.runs(labels=["a", "b"], since=datetime(2026, 1, 31, tzinfo=UTC))

    assert asked.query[:3] == (("label", "a"), ("label", "b"), ("since", "2026-01-31T00:00:00+00:00"))
    assert calls.workers(gone=True).query[0] == ("gone", "true")
    assert calls.template("t", 0).path.endswith("/templates/t/versions/0")


def test_a_name_never_leaves_its_place_in_the_address() -> None:
    """A slash or a question mark in an id must not lead somewhere else."""
    assert calls.run("a/b?c#d").path == "/api/v1/runs/a%2Fb%3Fc%23d"
    assert calls.artifact("r", "j (1)", 1, "a b/c?.txt").path.endswith(
        "/jobs/j%20%281%29/attempts/1/artifacts/a%20b/c%3F.txt"
    )


def test_starting_makes_a_key_so_that_it_is_safe_to_repeat() -> None:
    """Nobody forgets what happens by itself."""
    first, second = calls.start(template="t"), calls.start(template="t")

    assert first.is_repeatable
    assert first.headers["Idempotency-Key"] != second.headers["Idempotency-Key"]
    assert calls.start(template="t", idempotency_key="k").headers == {"Idempotency-Key": "k"}
    assert not calls.save_template("t", {}).is_repeatable


@pytest.mark.parametrize("key", ["a\nb", "ä", "x" * 201])
def test_a_key_that_no_header_can_hold_is_refused_at_once(key: str) -> None:
    """A newline would be another header."""
    with pytest.raises(ValueError, match="idempotency key"):
        calls.start(template="t", idempotency_key=key)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("r1", (RunRef("r1"),)),
        ("r1/build", (RunRef("r1", "build"),)),
        ("r1/build.2", (RunRef("r1", "build", 2), RunRef("r1", "build.2"))),
        ("r1/py3.11", (RunRef("r1", "py3", 11), RunRef("r1", "py3.11"))),
        ("r1/a.0", (RunRef("r1", "a.0"),)),
        ("r1/.2", (RunRef("r1", ".2"),)),
    ],
)
def test_a_name_is_read_as_what_it_may_mean(text: str, expected: tuple[RunRef, ...]) -> None:
    """Job names may have dots, so some names have two readings."""
    assert parse_refs(text) == expected


@pytest.mark.parametrize("text", ["", "/", "r1/", "/build", "r1/a/b"])
def test_what_names_nothing_is_refused(text: str) -> None:
    """Before a server is asked."""
    with pytest.raises(ValueError, match="not a valid name"):
        parse_refs(text)
