"""Runners that come in by certificates and by OIDC, as real processes; and that none of their secrets gets out."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

import msgspec
import pytest

from deltaci.app import registration_token
from deltaci.core.worker import Worker
from tests.e2e.deployment import TTL_SECONDS, Deployment, deployed, on_loop
from tests.support.certificates import HERE, Authority, uri
from tests.support.oidc_issuer import AUDIENCE, tiny_issuer
from tests.support.processes import command_line

LONG: Final = f"sleep {TTL_SECONDS + 1}"  # Longer than a lease without a heartbeat.

# The same program, with everything that any library might want to say.
LOUD: Final = (
    "-X",
    "dev",
    "-c",
    "import logging; logging.basicConfig(level=0); from deltaci.cli.app import main; main()",
)


def children(pid: int) -> list[int]:
    """Its own processes, and theirs."""
    try:
        found = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
    return found + [grandchild for each in found for grandchild in children(each)]


def seen_by_ps(*processes: subprocess.Popen[bytes]) -> str:
    """Every command line of these processes and of all that they started."""
    pids = [pid for process in processes for pid in (process.pid, *children(process.pid))]
    return "\n".join(command_line(pid).decode().replace("\0", " ") for pid in pids)


@pytest.mark.proves("PRO-X3")
@on_loop
async def test_over_mutual_tls_a_job_is_done(tmp_path: Path) -> None:
    """Certificate and nothing else; the keeper of its leases shows it too."""
    servers, runners = Authority(tmp_path / "tls", "servers"), Authority(tmp_path / "tls", "runners")
    cert, key = servers.issue(HERE)
    own = runners.issue(uri("deltaci:default/r1"))
    async with deployed(
        tmp_path,
        *("--tls-cert", str(cert), "--tls-key", str(key), "--client-ca", str(runners.pem), "--require-client-cert"),
    ) as place:
        assert place.url.startswith("https://127.0.0.1:")
        place.start_runner(
            *("r1", "--ca", str(servers.pem), "--client-cert", str(own.cert), "--client-key", str(own.key)),
            *("--labels", "linux", "--slots", "2"),
            token="",
        )
        id = await place.enqueue(LONG, "echo done")

        record = await place.outcome(id)

        assert record.state == "SUCCEEDED"  # Without heartbeats it would have been stopped in its first step.
        assert "done" in place.log_of(record).splitlines()
        worker = await place.store.find("r1")
        assert isinstance(worker, Worker)
        assert (worker.labels, worker.max_concurrent_tasks) == (("linux",), 2)
        assert not (tmp_path / "r1" / "credential.json").exists()


@pytest.mark.proves("PRO-X3")
@on_loop
async def test_with_an_oidc_token_a_job_is_done_and_a_restart_needs_none(tmp_path: Path) -> None:
    """The issuer's keys are fetched by the server; the runner only shows what it was given."""
    with tiny_issuer() as tiny:
        async with deployed(tmp_path, "--oidc-issuer", tiny.url, "--oidc-audience", AUDIENCE) as place:
            file = tmp_path / "oidc-token"
            file.write_text(tiny.token(sub="r1"))
            first = place.start_runner("r1", "--oidc-token-file", str(file), "--once", token="")
            assert (await place.outcome(await place.enqueue("echo one"))).state == "SUCCEEDED"
            assert first.wait(60) == 0

            place.start_runner("r1", "--labels", "gpu", token="")
            id = await place.enqueue("echo two", labels=["gpu"])

            assert (await place.outcome(id)).state == "SUCCEEDED"
            worker = await place.store.find("r1/2")  # It left, and came back.
            assert isinstance(worker, Worker)
            assert worker.labels == ("gpu",)


@pytest.mark.proves("PRO-X1", "PRO-X2")
@on_loop
async def test_no_secret_is_in_any_log_or_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of who comes in nor of who is kept out, with every library as loud as it can be."""
    monkeypatch.setattr(Deployment, "interpreter_words", LOUD)
    servers = Authority(tmp_path / "tls", "servers")
    cert, key = servers.issue(HERE)
    with tiny_issuer() as tiny:
        async with deployed(
            tmp_path,
            *("--tls-cert", str(cert), "--tls-key", str(key), "--client-ca", str(servers.pem)),
            *("--oidc-issuer", tiny.url, "--oidc-audience", AUDIENCE),
        ) as place:
            trust = ("--ca", str(servers.pem))
            token, used = (registration_token(tmp_path, name, "default") for name in ("r1", "r2"))
            oidc, wrong = tiny.token(sub="r2"), tiny.token(sub="r3", aud="somebody else")
            own = servers.issue(uri("deltaci:default/r4"))
            runner = place.start_runner("r1", *trust, "--labels", "r1", token=token)
            files = ("--client-cert", str(own.cert), "--client-key", str(own.key))
            with_certificate = place.start_runner("r4", *trust, *files, "--labels", "r4", token="")
            by_issuer = place.start_runner("r2", *trust, "--labels", "r2", token="", DELTACI_OIDC_TOKEN=oidc)
            refused = [
                place.start_runner("r5", *trust, token=used + "x"),
                place.start_runner("r6", *trust, token=token[:-9]),
                place.start_runner("r3", *trust, token="", DELTACI_OIDC_TOKEN=wrong),
                place.start_runner("r7", *trust, token=used + ".x" + used),
            ]
            ids = [await place.enqueue(LONG, "env", labels=labels) for labels in (["r1"], ["r4"], ["r2"])]
            for id in ids:
                await place.until(id, lambda event: event.to == "RUNNING")
            assert place.server is not None
            shown = seen_by_ps(place.server, runner, with_certificate, by_issuer)
            records = [await place.outcome(id) for id in ids]
            assert [process.wait(60) for process in refused] == [1, 1, 1, 1]
            kept = [msgspec.json.decode((tmp_path / name / "credential.json").read_bytes()) for name in ("r1", "r2")]

        assert shown.count("deltaci.runner.lease.keeper") == 3
        assert [record.state for record in records] == ["SUCCEEDED"] * 3
        jobs = "".join(place.log_of(record) for record in records)
        logs = {path.name: path.read_text() for path in tmp_path.glob("*.log")}
        assert set(logs) == {"server0.log", *(f"r{n}.log" for n in range(1, 8))}
        assert all(
            f"INFO:deltaci.runner.agent:job {id}" in logs[f"r{n}.log"] for id, n in zip(ids, (1, 4, 2), strict=True)
        )
        secrets = [token, used, oidc, wrong, *(each["credential"] for each in kept)]
        secrets += [part for path in (key, own.key) for part in path.read_text().splitlines()[1:-1]]
        for where, text in {**logs, "ps": shown, "jobs": jobs}.items():
            assert not [secret for secret in secrets if secret in text], where
            assert not [secret for secret in secrets if secret.rpartition(".")[2][:40] in text], where
            for id in ids:
                assert not re.search(rf"{re.escape(id)}\.\d+\.[\w-]{{8,}}", text), where
