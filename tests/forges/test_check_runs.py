"""Check runs of GitHub: created by an App, one for each run, with annotations."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from deltaci.forges import check_annotations
from deltaci.forges.status_decisions import Annotation
from tests.contract.backends import Backend, on_loop
from tests.forges.fake_forge import FakeForge, PlannedResponse
from tests.forges.reporting_server import COMMIT, JumpingClock, reporting
from tests.forges.test_reporter import add_project
from tests.support.lab import task

LOG = b"""::log 1 nonce=5f0c5f0c5f0c5f0c5f0c5f0c5f0c5f0c
\x1b[31msrc/gate.c:3:5: error: it does not close\x1b[0m
::error file=src/gate.py,line=12,col=4,title=Gate::left%0Aopen
::warning file=docs/gate.md,line=1::a long sentence
::error file=../../etc/passwd,line=1::outside
plain words: nothing
"""


@on_loop
async def test_a_check_run_is_created_once_and_then_updated(memory: Backend, tmp_path: Path) -> None:
    async with FakeForge() as forge, reporting(memory, tmp_path, hosts=(forge.host,)) as at:
        await add_project(at, forge, reports="checks")
        await at.start_run(jobs=(task("unit tests"), task("deploy", "unit tests")))
        await forge.accepted_bodies(1)
        lease = await at.start_job()
        await forge.accepted_bodies(2)
        at.logs.append(lease.ref.attempt_id, lease.ref.number, 0, LOG)
        failures = [{"name": "tests.test_gate::test_close", "message": "tests/test_gate.py:9: AssertionError"}]
        await at.finish_job(lease, ok=False, report={"tests": {"total": 3, "failed": 1, "failures": failures}})
        await at.reported_event()

        first, second, third = forge.accepted
        assert (first.method, first.path) == ("POST", "/repos/octo/hello/check-runs")
        assert {(each.method, each.path) for each in (second, third)} == {("PATCH", "/repos/octo/hello/check-runs/1")}
        assert [each.body["status"] for each in forge.accepted] == ["queued", "in_progress", "completed"]
        assert (first.body["head_sha"], first.body["name"], first.body["external_id"]) == (
            COMMIT,
            "deltaci/build",
            "r1",
        )
        body = third.body
        assert (body["conclusion"], body["details_url"]) == ("failure", "https://ci.example.org/runs/r1")
        assert "| unit tests | failed |" in body["output"]["summary"]
        shown = [
            (annotation["path"], annotation["start_line"], annotation["message"])
            for annotation in body["output"]["annotations"]
        ]
        assert shown == [
            ("tests/test_gate.py", 9, "tests/test_gate.py:9: AssertionError"),
            ("src/gate.c", 3, "it does not close"),
            ("src/gate.py", 12, "left open"),
            ("docs/gate.md", 1, "a long sentence"),
        ]


@on_loop
async def test_each_run_of_a_commit_has_its_own_check_run(memory: Backend, tmp_path: Path) -> None:
    async with FakeForge() as forge, reporting(memory, tmp_path, hosts=(forge.host,)) as at:
        await add_project(at, forge, reports="checks")
        for id in ("r1", "r2"):
            await at.start_run(id)
            await at.finish_job(await at.start_job())
            await at.reported_event(id)

        made = [each.body["external_id"] for each in forge.accepted if each.method == "POST"]
        assert made == ["r1", "r2"]


# -- Apps


def decode_jwt(word: str) -> tuple[bytes, bytes, Any]:
    """Return the signed text, the signature and the claims of a JSON Web Token."""
    head, claims, signature = (each + "=" * (-len(each) % 4) for each in word.split("."))
    assert json.loads(urlsafe_b64decode(head)) == {"alg": "RS256", "typ": "JWT"}
    return word.rpartition(".")[0].encode(), urlsafe_b64decode(signature), json.loads(urlsafe_b64decode(claims))


@on_loop
async def test_an_app_authenticates_and_gets_a_token(memory: Backend, tmp_path: Path) -> None:
    """The token is requested once, and again after GitHub refused it."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    ).decode()
    clock = JumpingClock()
    given = [PlannedResponse(201, body={"token": f"ghs_{n}", "expires_at": "2026-01-04T09:00:00Z"}) for n in (1, 2)]
    plan = [given[0], PlannedResponse(), PlannedResponse(401), given[1]]
    async with (
        FakeForge(*plan) as forge,
        reporting(memory, tmp_path, hosts=(forge.host,), clock=clock) as at,
    ):
        app = {"app_id": "1234", "installation_id": "77"}
        await add_project(at, forge, api_token=pem, reports="checks", **app)
        await at.start_run()
        await forge.accepted_bodies(2)
        await at.finish_job(await at.start_job())
        await at.reported_event()

        asked = [each for each in forge.received if each.path == "/app/installations/77/access_tokens"]
        assert len(asked) == 2
        signed, signature, claims = decode_jwt(asked[0].headers["authorization"].removeprefix("Bearer "))
        key.public_key().verify(signature, signed, padding.PKCS1v15(), hashes.SHA256())
        assert (claims["iss"], claims["exp"] - claims["iat"]) == ("1234", 600)
        used = [each.headers["authorization"] for each in forge.accepted if "check-runs" in each.path]
        assert used[0] == "Bearer ghs_1"
        assert used[-1] == "Bearer ghs_2"


@pytest.mark.parametrize("pem", ["no key at all", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----"])
@on_loop
async def test_an_invalid_app_key_is_reported_without_being_shown(memory: Backend, tmp_path: Path, pem: str) -> None:
    async with (
        FakeForge() as forge,
        reporting(memory, tmp_path, hosts=(forge.host,), clock=JumpingClock()) as at,
    ):
        await add_project(at, forge, api_token=pem, app_id="1234", installation_id="77")
        await at.start_run()
        await at.finish_job(await at.start_job())

        outcome = (await at.reported_event()).metadata["told"]

        assert outcome.startswith("exhausted: not allowed: the token of a project with an App must be the App's")
        assert not forge.received


# -- notes


@pytest.mark.parametrize(
    ("line", "note"),
    [
        ("a/b.rs:7:3: warning: unused", Annotation(path="a/b.rs", line=7, column=3, message="unused", level="warning")),
        ("main.c:7: fatal error: no", Annotation(path="main.c", line=7, message="no")),
        ("src/a.ts(3,5): error TS2304: no", Annotation(path="src/a.ts", line=3, column=5, message="TS2304: no")),
        ("./a.py:1: error: no", Annotation(path="a.py", line=1, message="no")),
        ("::error file=a.py::no line", Annotation(path="a.py", line=1, message="no line")),
        ("::notice file=a%2Cb.py,line=2::x", Annotation(path="a,b.py", line=2, message="x", level="notice")),
        ("::error file=a.py,line=2,endLine=9::x::y", Annotation(path="a.py", line=2, message="x::y")),
        ("::error::no file", None),
        ("::error file=/etc/passwd,line=1::x", None),
        ("/usr/include/a.h:1:1: error: x", None),
        ("a/../../b.c:1:1: error: x", None),
        ("http://example.org:80: error: x", None),
        ("12:30:01: error: the clock", None),
        ("note: a.c:1: something else", None),
        ("a.c:0:1: error: x", None),
        ("::add-mask::secret", None),
        ("::step 5f0c end index=0 exit=0", None),
    ],
)
def test_log_lines_become_annotations(line: str, note: Annotation | None) -> None:
    assert list(check_annotations.from_log(line)) == ([note] if note is not None else [])


def test_annotations_are_limited_and_unique_with_failures_first() -> None:
    many = [Annotation(path="a", line=n, message="w", level="warning") for n in range(1, 100)]
    failures = [Annotation(path="b", line=n, message="f") for n in (1, 1, 2)]

    found = check_annotations.most_severe([*many, *failures])

    assert len(found) == check_annotations.MAX_ANNOTATIONS
    assert [each.path for each in found[:3]] == ["b", "b", "a"]


def test_parsing_any_log_takes_linear_time() -> None:
    """Long lines, and lines that only look like paths."""
    hostile = "\n".join(
        ["a:" * 200_000, "::error file=" + "x," * 100_000, "(" * 100_000, "a/" * 50_000 + ".c:1: error"]
    )

    assert list(check_annotations.from_log(hostile)) == []
    assert list(check_annotations.from_test_failures([None, 3, {"name": 7, "message": "a." * 1000 + ":9"}, {}])) == []
