"""Choosing the executor of a job: a requested one is never replaced by a weaker one."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaci.core.errors import Refused
from deltaci.protocol.messages import Limits
from deltaci.runner.sandbox import Executors, bubblewrap, container, process_tree
from deltaci.runner.sandbox.container import ContainerCell, ContainerExecutor
from deltaci.runner.sandbox.zygote import Zygote


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulate a machine without bubblewrap, podman and docker."""
    monkeypatch.setattr(bubblewrap, "probe", lambda: "bubblewrap is not installed")
    monkeypatch.setattr(container, "working_tool", lambda: ("", "podman is not installed; docker is not installed"))


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(("requested", "image"), [("sandbox", ""), ("container", "debian"), (None, "debian")])
def test_an_unavailable_executor_is_refused(requested: str | None, image: str) -> None:
    """A job that requests isolation must not run without it."""
    with pytest.raises(Refused, match=r"not installed.*can provide: process") as refusal:
        Executors().choose(requested, image)

    assert refusal.value.code == "no_executor"


@pytest.mark.parametrize(("requested", "image"), [("rocket", ""), ("container", ""), ("process", "debian")])
def test_contradictory_requests_are_refused(requested: str, image: str) -> None:
    """The runner must not guess which part was meant."""
    with pytest.raises(Refused) as refusal:
        Executors().choose(requested, image)

    assert refusal.value.code == "no_executor"


@pytest.mark.usefixtures("nothing_installed")
def test_without_a_request_the_first_usable_executor_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sandbox if it works, else plain processes."""
    assert Executors().choose(None).name == "process"

    monkeypatch.setattr(bubblewrap, "probe", lambda: "")
    assert Executors().choose(None).name == "sandbox"
    assert Executors().choose("process").name == "process"


def test_the_error_of_a_broken_tool_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An installed tool does not always work."""
    (tmp_path / "docker").write_text("#!/bin/sh\necho the daemon sleeps >&2\nexit 1\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    container.working_tool.cache_clear()

    assert (
        ContainerExecutor(Zygote()).unavailable_reason()
        == "podman is not installed; docker does not work (the daemon sleeps)"
    )
    container.working_tool.cache_clear()


def test_a_secret_is_not_in_the_arguments_of_the_container_tool(tmp_path: Path) -> None:
    """Every user of the machine can read the arguments of a command."""
    limits = Limits(memory_bytes=1 << 28, processes=9, cpus=0.5)
    cell = ContainerCell("/bin/podman", Zygote(), workspace=tmp_path, limits=limits, has_network=False, image="debian")

    step = cell.step_command("make", {"TOKEN": "hunter2", "HOME": "/w"}, tmp_path, ("sh", "-c"))
    start = " ".join(cell.start_command())

    assert step == [
        *("/bin/podman", "exec", "--workdir", str(tmp_path), "--env", "TOKEN", "--env", "HOME=/w"),
        *(f"deltaci-{cell.handle.marker}", "sh", "-c", "make"),
    ]
    assert "--network none --memory 268435456 --pids-limit 9 --cpus 0.5" in start
    assert f"--env {process_tree.MARKER_VARIABLE}={cell.handle.marker}" in start
