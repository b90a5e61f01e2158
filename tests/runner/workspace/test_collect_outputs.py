"""Outputs of a job are collected, or the log says why not; against a real server."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deltaci.core.errors import Unreachable
from deltaci.protocol import messages as wire
from deltaci.protocol.reports import junit
from deltaci.runner import transfers
from deltaci.runner.result import resource_usage, shrink_to_limit
from deltaci.runner.sandbox import Exit
from deltaci.runner.transfers import JobStopped
from deltaci.runner.workspace import collect_outputs
from deltaci.runner.workspace.collect_outputs import CollectedOutputs, OutputCollector
from deltaci.storage.blobs import keys
from tests.contract.backends import on_loop
from tests.runner.leased_job import TENANT, LeasedJob, running_server


async def collect(leased_job: LeasedJob) -> CollectedOutputs:
    """Collect the outputs of the job."""
    collector = OutputCollector(leased_job.transfers, leased_job.workspace, leased_job.log)
    await collector.collect(leased_job.spec)
    return collector.collected


def stored_artifacts(leased_job: LeasedJob) -> dict[str, bytes]:
    """Return the artifacts that the server has."""
    attempt = (TENANT, leased_job.lease_id.split(".")[0], 1)
    blobs = leased_job.service.blobs
    return {
        artifact.path: b"".join(keys.read_artifact(blobs, *attempt, artifact.path))
        for artifact in keys.artifacts(blobs, *attempt)
    }


# -- output


@pytest.mark.proves("PRO-X4")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON"),
        (b"", "not JSON"),
        (b'"\xff"', "not UTF-8"),
        (b"NaN", "not JSON"),
        (b"[" * 100_000, "nested too deep"),
        (b"[" * 102 + b"]" * 102, "nested more than 100 deep"),
        (b"9" * 30, "JSON"),
        (b'"' + b"x" * wire.MAX_OUTPUT_BYTES + b'"', "at most"),
    ],
)
@on_loop
async def test_an_invalid_output_is_explained(tmp_path: Path, content: bytes, message: str) -> None:
    """One line says what to change."""
    async with running_server(tmp_path) as job_server:
        leased_job = await job_server.lease_job(output_path="out.json")
        (leased_job.workspace / "out.json").write_bytes(content)

        found = await collect(leased_job)

        assert (found.error_code, found.output) == ("OUTPUT", None)
        assert message in found.summary
        assert leased_job.log_lines == [found.summary]


@pytest.mark.parametrize("path", ["/etc/hostname", "../secret.json", "link.json", "folder", "*.json", "pipe", "a\0b"])
@on_loop
async def test_an_output_is_only_read_inside_the_workspace(tmp_path: Path, path: str) -> None:
    """Not through `..`, a link, or a FIFO without a writer."""
    async with running_server(tmp_path) as job_server:
        leased_job = await job_server.lease_job(output_path=path)
        (leased_job.folder / "secret.json").write_text('"hush"')
        (leased_job.workspace / "link.json").symlink_to("../secret.json")
        (leased_job.workspace / "folder").mkdir()
        (leased_job.workspace / "folder" / "a.json").write_text("1")
        (leased_job.workspace / "b.json").write_text("1")
        os.mkfifo(leased_job.workspace / "pipe")

        found = await collect(leased_job)

        assert (found.error_code, found.output) == ("OUTPUT", None)


@on_loop
async def test_an_output_is_json_without_secrets(tmp_path: Path) -> None:
    """Secrets are masked in texts; where that is impossible, there is no output."""
    async with running_server(tmp_path) as job_server:
        values: list[Any] = [{"a": ["x hunter2secret", {"hunter2secret": 1}]}, None, {"n": 12345678}]
        found = []
        for value in values:
            leased_job = await job_server.lease_job(output_path="./sub/out.json")
            (leased_job.workspace / "sub").mkdir()
            (leased_job.workspace / "sub" / "out.json").write_text(json.dumps(value))
            leased_job.log.add_secrets(["hunter2secret", "12345678"])
            found.append(await collect(leased_job))

        assert [artifact.output for artifact in found] == [{"a": ["x ***", {"***": 1}]}, None, None]
        assert [artifact.error_code for artifact in found] == ["", "", "OUTPUT"]


# -- artifacts


@on_loop
async def test_exceeding_a_limit_fails_the_job_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By number, by size, by the size of the result, and a secret in a name."""
    async with running_server(tmp_path) as job_server:
        for rules, files, message in (
            (["**"], [f"f{n}" for n in range(wire.MAX_ARTIFACTS + 1)], "more than 999 artifacts"),
            (["/etc/*"], ["a"], "is absolute"),
            (["a*"], ["a", "a\nb"], "cannot be printed"),
            (["a*"], ["a", "a" + "x" * 230], "more than 200 bytes"),
            (["a*"], ["a", "a-hunter2secret"], "contains a secret"),
        ):
            leased_job = await job_server.lease_job(artifacts=[{"path_glob": rule} for rule in rules])
            leased_job.log.add_secrets(["hunter2secret"])
            for name in files:
                (leased_job.workspace / name).write_text("x")

            found = await collect(leased_job)

            assert found.error_code == "ARTIFACTS"
            assert message in found.summary
            assert found.summary in leased_job.log_lines
            assert "\n" not in found.summary
            assert "hunter2secret" not in "".join(leased_job.log_lines)
        leased_job = await job_server.lease_job(artifacts=[{"path_glob": "*"}])
        with (leased_job.workspace / "a").open("wb") as file:
            file.truncate(wire.MAX_ARTIFACT_BYTES + 1)
        assert "split it" in (await collect(leased_job)).summary
        with monkeypatch.context() as patch:
            patch.setattr(collect_outputs, "MAX_LISTED_BYTES", 100)
            leased_job = await job_server.lease_job(artifacts=[{"path_glob": "*"}])
            for name in ("a", "b", "c"):
                (leased_job.workspace / name).write_text("x")
            found = await collect(leased_job)
        assert (found.error_code, len(found.artifacts)) == ("ARTIFACTS", 1)


@on_loop
async def test_artifacts_are_uploaded_only_under_a_live_lease(tmp_path: Path) -> None:
    """No upload after the lease is lost or the job is to stop."""
    async with running_server(tmp_path) as job_server:
        leased_job = await job_server.lease_job(artifacts=[{"path_glob": "**"}])
        large = os.urandom(3 * 1024 * 1024 + 1)
        (leased_job.workspace / "large").write_bytes(large)
        (leased_job.workspace / "empty %2e").write_bytes(b"")

        found = await collect(leased_job)

        assert stored_artifacts(leased_job) == {"empty %2e": b"", "large": large}
        assert [(artifact.name, artifact.bytes) for artifact in found.artifacts] == [
            ("empty %2e", 0),
            ("large", len(large)),
        ]
        leased_job.is_stopped = True
        with pytest.raises(JobStopped):
            await collect(leased_job)
        leased_job.is_stopped = False
        leased_job.transfers._lease_id = leased_job.lease_id[:-1] + ("1" if leased_job.lease_id[-1] == "0" else "0")
        with pytest.raises(JobStopped):
            await collect(leased_job)


@on_loop
async def test_an_upload_is_retried_and_then_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A short outage does no harm; a long one is not the job's fault."""
    async with running_server(tmp_path) as job_server:
        leased_job = await job_server.lease_job(artifacts=[{"path_glob": "a"}])
        (leased_job.workspace / "a").write_text("x")
        send, tries = job_server.client.upload, []

        def unreachable(*words: Any) -> Any:
            tries.append(1)
            if len(tries) == 1:
                raise Unreachable("away")
            return send(*words)

        monkeypatch.setattr(job_server.client, "upload", unreachable)
        monkeypatch.setattr(transfers, "FIRST_PAUSE_SECONDS", 0.0)

        assert [artifact.name for artifact in (await collect(leased_job)).artifacts] == ["a"]
        assert len(tries) == 2

        tries.clear()
        monkeypatch.setattr(collect_outputs, "PATIENCE_SECONDS", -1.0)
        found = await collect(leased_job)
        assert (found.error_code, found.artifacts) == ("UPLOAD", [])


# -- test reports


@pytest.mark.proves("PRO-X4")
@on_loop
async def test_reports_are_summed_up_and_invalid_ones_are_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes, entities and control characters in reports are not trusted."""
    async with running_server(tmp_path) as job_server:
        leased_job = await job_server.lease_job(artifacts=[{"path_glob": "*.xml", "type": "junit"}])
        said = f'<failure message="hunter2secret&#10;{"m" * 900}"/>'
        bad = "".join(f'<testcase classname="c" name="t{n:03}&#x202e;">{said}</testcase>' for n in range(60))
        (leased_job.workspace / "a.xml").write_text(f"<testsuite>{bad}<testcase name='ok' time='2'/></testsuite>")
        (leased_job.workspace / "b.xml").write_text('<!DOCTYPE x [<!ENTITY a "b">]><testsuite/>')
        (leased_job.workspace / "c.xml").write_text("<testsuite>" + " " * 60_000 + "</testsuite>")
        monkeypatch.setattr(junit, "MAX_REPORT_BYTES", 59_999 + 30_000)
        monkeypatch.setattr(collect_outputs, "MAX_REPORTS_BYTES", 100_000)
        leased_job.log.add_secrets(["hunter2secret"])

        tests = (await collect(leased_job)).tests

        assert tests is not None
        assert (tests.total, tests.passed, tests.failed, tests.seconds) == (61, 1, 60, 2.0)
        assert len(tests.failures) == wire.MAX_FAILED_TESTS
        assert tests.failures[0].name == "c.t000\N{REPLACEMENT CHARACTER}"
        assert tests.failures[0].message.startswith("*** mmm")
        assert len(tests.failures[0].message) == collect_outputs.MAX_MESSAGE_CHARS
        message = "\n".join(leased_job.log_lines)
        assert "b.xml, line 1, has a document type" in message
        assert "c.xml is too large" in message
        assert sorted(stored_artifacts(leased_job)) == ["a.xml", "b.xml", "c.xml"]


@on_loop
async def test_unreadable_reports_give_no_totals(tmp_path: Path) -> None:
    """That differs from zero tests."""
    async with running_server(tmp_path) as job_server:
        leased_job = await job_server.lease_job(artifacts=[{"path_glob": "*", "type": "junit"}])
        (leased_job.workspace / "a.trx").write_text("<TestRun/>")

        found = await collect(leased_job)

        assert (found.tests, found.error_code) == (None, "")


# -- the message


def test_a_result_always_fits_into_a_message() -> None:
    """A result that is refused as too large would be lost."""
    step = wire.StepResult(index=0, exit_code=0, seconds=1.0, name="\N{GRINNING FACE}" * 2000)
    case = wire.FailedTest(name="n" * 500, message="\N{GRINNING FACE}" * 500)
    said = wire.Complete(
        lease_id="l",
        runner_id="r",
        status="FAILED",
        steps=[step] * 1000,
        log_tail=["\N{GRINNING FACE}" * 2000] * 40,
        tests=wire.TestTotals(total=50, failures=[case] * 50),
        output="x" * wire.MAX_OUTPUT_BYTES,
    )

    assert len(wire.encode(said)) > wire.MAX_MESSAGE_BYTES
    assert len(wire.encode(shrink_to_limit(said))) <= wire.MAX_MESSAGE_BYTES
    small = msgspec.structs.replace(said, steps=[], log_tail=[])
    assert shrink_to_limit(small) is small


def test_unmeasured_values_are_not_in_the_cost() -> None:
    """A zero would be wrong."""
    used = Exit(0, None, 1.0, cpu_seconds=0.25, peak_memory_bytes=10)

    assert resource_usage(2.0, used, 5, 6) == {
        "wall_seconds": 2.0,
        "cpu_seconds": 0.25,
        "peak_memory_bytes": 10,
        "log_bytes": 5,
        "artifact_bytes": 6,
    }
    assert resource_usage(2.0, Exit(0, None, 1.0), 5, 0).keys() == {"wall_seconds", "log_bytes", "artifact_bytes"}
