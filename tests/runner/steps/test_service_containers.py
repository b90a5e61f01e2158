"""Services through a container tool that writes down what it is asked for: started, waited for, always removed."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from deltaci.core.errors import Refused
from deltaci.protocol.messages import JobSpec, Limits, Service
from deltaci.runner.actions.context import JobContext, StepFailed
from deltaci.runner.sandbox import container, process_tree
from deltaci.runner.sandbox.container import ContainerCell
from deltaci.runner.sandbox.zygote import Zygote
from deltaci.runner.steps import service_containers as module
from deltaci.runner.steps.service_containers import ServiceContainers
from tests.contract.backends import on_loop
from tests.runner.leased_job import LeasedJob
from tests.runner.scenarios import run_scenario

TOOL = """#!/bin/sh
echo "$@ [$TOKEN]" >> FOLDER/calls
case "$1" in
  run) case "$*" in *broken*) echo "no such image" >&2; exit 125 ;; esac ;;
  inspect) if [ -e FOLDER/dead ]; then echo false; else echo true; fi ;;
  exec) echo tried >> FOLDER/tries; [ "$(wc -l < FOLDER/tries)" -ge 3 ] || { echo "not yet" >&2; exit 1; } ;;
  port) echo "127.0.0.1:49153" ;;
  logs) echo "it says hello" ;;
esac
"""
POSTGRES = {
    "name": "db",
    "image": "postgres:16",
    "env": {"TOKEN": "hunter2"},
    "ports": ["5432"],
    "health": "pg_isready",
}


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tool that is the only one; where it writes down what it is asked for."""
    tool = tmp_path / "bin" / "podman"
    tool.parent.mkdir()
    tool.write_text(TOOL.replace("FOLDER", str(tmp_path)))
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(module, "working_tool", lambda: (str(tool), ""))
    monkeypatch.setattr(module, "POLL_SECONDS", 0.001)
    return tmp_path / "calls"


def asked(calls: Path) -> list[str]:
    """The first words of every call."""
    return [line.split()[0] for line in calls.read_text().splitlines()]


@on_loop
async def test_a_service_is_started_awaited_and_taken_away(calls: Path, tmp_path: Path) -> None:
    """And its values are in no command line, which everybody on the machine can read."""

    async def scenario(job: JobContext, leased_job: LeasedJob) -> None:
        services = ServiceContainers(job.spec, job.cell, job.log)
        told = await services.start(job.expressions, 60)
        await services.close()
        await services.close()

        assert told["db"]["ports"] == {"5432": "49153"}
        assert asked(calls) == ["run", "inspect", "exec", "inspect", "exec", "inspect", "exec", "port", "rm"]
        started = calls.read_text().splitlines()[0]
        assert "--publish 127.0.0.1::5432 --env TOKEN" in started
        assert started.endswith(f"--env {process_tree.MARKER_VARIABLE}={job.cell.handle.marker} postgres:16 [hunter2]")
        assert "service db: ready" in leased_job.log_lines

    await run_scenario(tmp_path, scenario, services=[POSTGRES])


@on_loop
async def test_one_that_does_not_start_says_why_and_leaves_nothing(calls: Path, tmp_path: Path) -> None:
    async def scenario(job: JobContext, leased_job: LeasedJob) -> None:
        services = ServiceContainers(job.spec, job.cell, job.log)
        with pytest.raises(Refused, match=r"service bad did not start: no such image.*check the name 'broken'"):
            await services.start(job.expressions, 60)
        await services.close(is_failed=True)

        assert asked(calls)[-2:] == ["rm", "rm"]
        assert "service db: it says hello" in leased_job.log_lines

    await run_scenario(tmp_path, scenario, services=[POSTGRES, {"name": "bad", "image": "broken"}])


@on_loop
async def test_one_that_ends_before_it_is_ready_is_told(calls: Path, tmp_path: Path) -> None:
    (tmp_path / "dead").touch()

    async def scenario(job: JobContext, _desk: LeasedJob) -> None:
        services = ServiceContainers(job.spec, job.cell, job.log)
        with pytest.raises(StepFailed, match="ended before it was ready") as failed:
            await services.start(job.expressions, 60)
        assert failed.value.code == "SERVICE"
        await services.close()

    await run_scenario(tmp_path, scenario, services=[POSTGRES])


@on_loop
async def test_without_a_tool_there_are_no_services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "working_tool", lambda: ("", "podman is not installed"))

    async def scenario(job: JobContext, _desk: LeasedJob) -> None:
        services = ServiceContainers(job.spec, job.cell, job.log)
        with pytest.raises(StepFailed, match="need podman or docker on the runner: podman is not installed"):
            await services.start(job.expressions, 60)

    await run_scenario(tmp_path, scenario, services=[POSTGRES])


@pytest.mark.parametrize(
    ("service", "why"),
    [
        (Service(name="a", image="-v/:/host"), "is not an image"),
        (Service(name="a", image="i", ports=["x"]), "is not a port"),
        (Service(name="a", image="i", ports=["0.0.0.0:1:1"]), "is not a port"),
        (Service(name="a", image="i", ports=["1/icmp"]), "is not a port"),
        (Service(name="a", image="i", env={"A=B": "x"}), "is not a valid name of a variable"),
    ],
)
@on_loop
async def test_what_the_tool_would_misunderstand_is_refused(service: Service, why: str, tmp_path: Path) -> None:
    async def scenario(job: JobContext, _desk: LeasedJob) -> None:
        services = ServiceContainers(JobSpec(services=[service]), job.cell, job.log)
        with pytest.raises(Refused, match=why):
            services.command(service, service.image, service.env)

    await run_scenario(tmp_path, scenario)


@on_loop
async def test_a_job_in_a_container_shares_a_network_with_its_services(calls: Path, tmp_path: Path) -> None:
    """There it calls them by their names."""
    assert container.TOOLS

    async def scenario(job: JobContext, _desk: LeasedJob) -> None:
        cell = ContainerCell("podman", Zygote(), workspace=tmp_path, limits=Limits(), has_network=True, image="debian")
        services = ServiceContainers(job.spec, cell, job.log)
        told = await services.start(job.expressions, 60)
        network = told["cache"]["network"]

        assert f"--network {network}" in " ".join(cell.start_command())
        assert f"--network {network} --network-alias cache" in calls.read_text()
        await services.close()
        assert calls.read_text().splitlines()[-1].startswith(f"network rm {network}")

    await run_scenario(tmp_path, scenario, services=[{"name": "cache", "image": "redis"}])
