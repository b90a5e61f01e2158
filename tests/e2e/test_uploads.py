"""Artifacts, test reports, output, cost, caches and secrets, through real processes."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from deltaci.app import registration_token
from deltaci.core.attempt import Attempt
from deltaci.core.errors import Refused
from deltaci.protocol import messages as wire
from deltaci.runner.client import RunnerClient
from deltaci.runner.log.sections import sections
from deltaci.server.auth.credentials import load_server_key
from deltaci.server.secrets import Secrets
from deltaci.storage.blobs import keys, open_blob_store
from deltaci.storage.blobs.store import BlobStore, FolderBlobStore
from tests.e2e.deployment import LONG_TTL_SECONDS, Deployment, deployed, on_loop
from tests.e2e.proxy import Cut, Exchange, Held
from tests.storage.blobs.s3 import KEYS, served

REPORT = """<testsuite name="s"><testcase classname="c" name="good" time="1.5"/>
<testcase classname="c" name="bad&#155;31m"><failure message="expected 1 &lt;script&gt;"/></testcase></testsuite>"""


async def job(place: Deployment, *steps: str, **spec: Any) -> Attempt:
    """Run a job to its end."""
    enqueued = await place.queue.enqueue({"steps": list(steps), "executor": "process", **spec})
    return await place.outcome(enqueued.id)


def artifacts(blobs: BlobStore, record: Attempt) -> dict[str, bytes]:
    """What the job left, as the store has it."""
    assert record.ended_lease is not None
    at = (record.tenant, record.id, record.ended_lease.number)
    return {kept.path: b"".join(keys.read_artifact(blobs, *at, kept.path)) for kept in keys.artifacts(blobs, *at)}


@pytest.mark.proves("PRO-C4", "PRO-X4")
@on_loop
async def test_what_a_job_leaves_behind_arrives(tmp_path: Path) -> None:
    """Files, what the tests said, the output and the cost; and what a job writes is a text, never a command."""
    async with deployed(tmp_path) as place:
        place.start_runner("r1")
        record = await job(
            place,
            "mkdir out; echo built > out/program; printf more > out/more; ln -s /etc/passwd out/leak",
            f"cat > report.xml <<'END'\n{REPORT}\nEND",
            """printf '{"version": "1.2"}' > result.json; seq 1 200000 | md5sum""",
            artifacts=[
                {"path_glob": "out/**"},
                {"path_glob": "*.xml", "type": "junit"},
                {"path_glob": "missing/*"},
            ],
            output_path="result.json",
        )

        assert record.state == "SUCCEEDED", place.log_of(record)
        kept = {"out/more": b"more", "out/program": b"built\n", "report.xml": f"{REPORT}\n".encode()}
        assert artifacts(FolderBlobStore(tmp_path / "blobs"), record) == kept
        log, *files = record.report["artifacts"]
        assert [(file["type"], file["name"], file["bytes"]) for file in files] == [
            ("junit" if name.endswith(".xml") else "file", name, len(content)) for name, content in kept.items()
        ]
        assert log["type"] == "log"
        assert record.report["tests"] == {
            "total": 2,
            "passed": 1,
            "failed": 1,
            "seconds": 1.5,
            "failures": [{"name": "c.bad", "message": "expected 1 <script>"}],
        }
        assert record.result == {"version": "1.2"}
        cost = record.report["cost"]
        assert cost["artifact_bytes"] == sum(map(len, kept.values()))
        assert cost["log_bytes"] == len(place.log_of(record))
        assert 0 < cost["cpu_seconds"] < 60
        assert cost["wall_seconds"] > 0
        assert cost["peak_memory_bytes"] > 100_000
        text = place.log_of(record)
        assert "artifacts: no file matches 'missing/*'" in text.splitlines()
        assert [section.name for section in sections(text.encode())][-1] == "upload artifacts"


async def lose_upload_report(exchange: Exchange) -> bytes:
    """Lose the report that uploads begin; let everything else pass."""
    if b"uploading" in exchange.body:
        raise Cut
    return await exchange.forward()


@pytest.mark.proves("ORC-A5")
@pytest.mark.parametrize("is_lost", [False, True])
def test_an_attempt_is_uploading_while_its_artifacts_are_sent(tmp_path: Path, is_lost: bool) -> None:
    """The runner reports it before the first upload; if that report is lost, the job succeeds nevertheless."""

    @on_loop
    async def story() -> None:
        async with deployed(tmp_path, ttl_seconds=LONG_TTL_SECONDS) as place:
            way = await place.way()
            upload = way.on("artifacts", Held("request"))
            if is_lost:
                way.on("Heartbeat", lose_upload_report, 1_000_000)
            place.start_runner("r1", way=way)
            enqueued = await place.queue.enqueue(
                {"steps": ["echo built > app"], "executor": "process", "artifacts": [{"path_glob": "app"}]}
            )
            await upload.came.wait()

            uploading = await place.store.find(enqueued.id)
            upload.go()
            done = await place.outcome(enqueued.id)

            assert uploading is not None
            assert (uploading.state == "UPLOADING") == (not is_lost)
            assert done.state == "SUCCEEDED"

    story()


@on_loop
async def test_a_job_that_failed_leaves_its_artifacts_too(tmp_path: Path) -> None:
    """They are needed most then; but no cache is made of what is half done."""
    async with deployed(tmp_path) as place:
        place.start_runner("r1")
        record = await job(
            place,
            "mkdir deps; echo why > trace; exit 3",
            artifacts=[{"path_glob": "trace"}],
            caches=[{"key": "k", "paths": ["deps"]}],
            output_path="none.json",
        )

        assert record.state == "FAILED"
        assert record.error is not None
        assert "exit code 3" in record.error.message
        blobs = FolderBlobStore(tmp_path / "blobs")
        assert artifacts(blobs, record) == {"trace": b"why\n"}
        assert blobs.list("caches/") == []


@on_loop
async def test_a_success_whose_output_is_none_is_a_failure(tmp_path: Path) -> None:
    """Whoever waits for the output must not be told that all is well."""
    async with deployed(tmp_path) as place:
        place.start_runner("r1")
        record = await job(place, "echo '{' > result.json", output_path="result.json")

        assert record.state == "FAILED"
        assert record.error is not None
        assert (record.error.code, record.error.is_retryable) == ("OUTPUT", False)
        assert "output 'result.json': it is not JSON" in record.error.message


@on_loop
async def test_the_second_job_finds_what_the_first_one_cached(tmp_path: Path) -> None:
    """In S3 this time; and a fork reads it, and never writes it."""
    with served() as s3, pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        url = s3.url("e2e")
        async with deployed(tmp_path, "--blobs", url) as place:
            place.start_runner("r1")
            make = (
                "test -e deps/lib && echo hit || { echo miss; mkdir -p deps; echo $RANDOM > deps/lib; }; cat deps/lib"
            )
            spec = {"caches": [{"key": "deps:{lock_hash}/1", "paths": ["~/deps"]}]}

            first, second = await job(place, make, **spec), await job(place, make, **spec)
            fork = await job(place, make, "echo evil > deps/lib", **spec, cache_scope="fork")
            third = await job(place, make, **spec)

            said = [place.log_of(record).splitlines() for record in (first, second, fork, third)]
            assert [record.state for record in (first, second, fork, third)] == ["SUCCEEDED"] * 4
            assert ["miss" in said[0], *("hit" in lines for lines in said[1:])] == [True] * 4
            made = said[0][said[0].index("miss") + 1]
            assert all(lines[lines.index("hit") + 1] == made for lines in said[1:])
            [cache] = open_blob_store(url).list("caches/")
            assert cache.key.startswith("caches/default/trusted/")


SECRET = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqh/+kiG9w0BAQEFAASC\nBKcwggSjAgEAAoIBAQC7\n-----END KEY-----"


@pytest.mark.proves("PRO-X4")
@on_loop
async def test_no_stored_byte_gives_a_secret_away(tmp_path: Path) -> None:
    """A job prints it whole, in two writes, line by line and encoded, names a step after it and puts it out."""
    async with deployed(tmp_path) as place:
        Secrets(FolderBlobStore(tmp_path / "blobs"), load_server_key(tmp_path / "server.key")).set(
            "default", "KEY", SECRET
        )
        place.start_runner("r1")
        record = await job(
            place,
            'echo "$KEY"; test "${#KEY}" = ' + str(len(SECRET)),
            'printf %s "${KEY:0:40}"; printf %s "${KEY:40}"; echo',
            'printf %s "$KEY" | base64 -w0; echo; printf %s "$KEY" | base64',
            'echo "$KEY" >&2; printf "{\\"k\\": \\"%s\\"}" "$(printf %s "$KEY" | base64 -w0)" > out.json',
            'echo "last: $KEY"; exit 1',
            secrets=["KEY"],
            output_path="out.json",
        )

        assert record.state == "FAILED"
        assert record.error is not None
        assert place.log_of(record).count("***") >= 6
        await place.stop()
        stored = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        lines = [line.encode() for line in SECRET.splitlines() if "KEY-----" not in line]
        wanted = [SECRET.encode(), *lines, *(base64.b64encode(line)[:24] for line in lines)]
        wanted.append(base64.b64encode(SECRET.encode())[:60])
        assert len(stored) > 5
        assert not [(path.name, form) for path, content in stored.items() for form in wanted if form in content]


@on_loop
async def test_a_secret_that_is_not_there_fails_the_job_before_its_first_step(tmp_path: Path) -> None:
    """With its name, and what to do."""
    async with deployed(tmp_path) as place:
        place.start_runner("r1")
        record = await job(place, "echo never", secrets=["NOPE"])

        assert record.error is not None
        assert record.error.code == "SECRETS"
        assert "no secret 'NOPE'" in record.error.message
        assert "never" not in place.log_of(record).splitlines()


@pytest.mark.proves("PRO-F2")
@on_loop
async def test_a_zombies_uploads_are_refused(tmp_path: Path) -> None:
    """Its lease ran out: neither its artifact nor its cache, its log or its wish for secrets counts any more."""
    async with deployed(tmp_path) as place:
        loop, line = asyncio.get_running_loop(), ThreadPoolExecutor(1)  # One thread, so that it has one connection.
        client = RunnerClient(f"http://127.0.0.1:{place.port}")

        async def ask(call: Callable[..., Any], *words: Any) -> Any:
            return await loop.run_in_executor(line, call, *words)

        registered = await ask(client.register, registration_token(tmp_path, "z1", "default"), [], 1)
        client.token = registered.credential
        id = await place.enqueue("true")
        [granted] = await ask(client.lease, wire.LeaseRequest(runner_id="z1", wait_seconds=20))
        lease_id = granted.lease_id
        now = datetime.now(UTC)
        await ask(client.send, wire.AckLease(lease_id=lease_id, runner_id="z1", job_id=granted.job_id, accepted_at=now))
        await ask(client.upload, lease_id, "artifacts/early", [b"x"], 1)
        await place.until(id, lambda event: event.to == "STALE")

        for call, *words in (
            (client.upload, lease_id, "artifacts/late", [b"x"], 1),
            (client.upload, lease_id, "caches/late", [b"x"], 1),
            (client.append_log, lease_id, 0, b"late"),
            (client.secrets, lease_id),
        ):
            with pytest.raises(Refused, match="the lease is no longer valid: LEASE_EXPIRED"):
                await ask(call, *words)
        await ask(client.close)
        line.shutdown()
        runner = place.start_runner("r1")
        record = await place.outcome(id)
        runner.terminate()  # It leaves once its result is answered: by then the server has tidied up.
        await asyncio.to_thread(runner.wait, 30)

        assert record.state == "SUCCEEDED"
        assert FolderBlobStore(tmp_path / "blobs").list() == []  # Also what was sent in time: nobody refers to it.
        assert [artifact["type"] for artifact in record.report["artifacts"]] == ["log"]
