"""Which executor a job gets. What it asked for is never replaced by something weaker."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaci.core.errors import Refused
from deltaci.protocol.messages import Limits
from deltaci.runner.sandbox import Executors, bubblewrap, container, process_tree
from deltaci.runner.sandbox.container import ContainerCell, ContainerExecutor


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without bubblewrap, podman and docker."""
    monkeypatch.setattr(bubblewrap, "probe", lambda: "bubblewrap is not installed")
    monkeypatch.setattr(container, "working_tool", lambda: ("", "podman is not installed; docker is not installed"))


@pytest.mark.usefixtures("nothing_installed")
@pytest.mark.parametrize(("wanted", "image"), [("sandbox", ""), ("container", "debian"), (None, "debian")])
def test_one_that_is_not_there_is_refused(wanted: str | None, image: str) -> None:
    """A job that asked for walls must not run without them."""
    with pytest.raises(Refused, match=r"not installed.*can provide: process") as refusal:
        Executors().choose(wanted, image)

    assert refusal.value.code == "no_executor"


@pytest.mark.parametrize(("wanted", "image"), [("rocket", ""), ("container", ""), ("process", "debian")])
def test_a_wish_that_makes_no_sense_is_refused(wanted: str, image: str) -> None:
    """Better than to guess which half of it was meant."""
    with pytest.raises(Refused) as refusal:
        Executors().choose(wanted, image)

    assert refusal.value.code == "no_executor"


@pytest.mark.usefixtures("nothing_installed")
def test_without_a_wish_the_best_one_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sandbox where there is one, else plain processes."""
    assert Executors().choose(None).name == "process"

    monkeypatch.setattr(bubblewrap, "probe", lambda: "")
    assert Executors().choose(None).name == "sandbox"
    assert Executors().choose("process").name == "process"


def test_a_tool_that_does_not_answer_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Installed is not the same as working."""
    (tmp_path / "docker").write_text("#!/bin/sh\necho the daemon sleeps >&2\nexit 1\n")
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    container.working_tool.cache_clear()

    assert (
        ContainerExecutor().unavailable_reason() == "podman is not installed; docker does not work (the daemon sleeps)"
    )
    container.working_tool.cache_clear()


def test_a_secret_is_not_in_the_containers_commands(tmp_path: Path) -> None:
    """Every user of the machine can read the arguments of a command."""
    limits = Limits(memory_bytes=1 << 28, processes=9, cpus=0.5)
    cell = ContainerCell("/bin/podman", workspace=tmp_path, limits=limits, has_network=False, image="debian")

    step = cell.step_command("make", {"TOKEN": "hunter2", "HOME": "/w"}, tmp_path, ("sh", "-c"))
    start = " ".join(cell.start_command())

    assert step == [
        *("/bin/podman", "exec", "--workdir", str(tmp_path), "--env", "TOKEN", "--env", "HOME=/w"),
        *(f"deltaci-{cell.handle.marker}", "sh", "-c", "make"),
    ]
    assert "--network none --memory 268435456 --pids-limit 9 --cpus 0.5" in start
    assert f"--env {process_tree.MARKER_VARIABLE}={cell.handle.marker}" in start
