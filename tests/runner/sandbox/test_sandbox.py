"""The isolation of the sandbox."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from deltaci.protocol.messages import Limits
from deltaci.runner.sandbox import bubblewrap
from deltaci.runner.sandbox.cell import Exit
from deltaci.runner.sandbox.environment import interpreter
from deltaci.runner.sandbox.zygote import Zygote
from tests.runner.cells import Bench, executor_of, in_cell


def test_missing_bubblewrap_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An administrator must learn what to install."""
    monkeypatch.setenv("PATH", str(tmp_path))
    bubblewrap.probe.cache_clear()

    assert "install" in bubblewrap.SandboxExecutor().unavailable_reason()
    bubblewrap.probe.cache_clear()


def test_the_error_of_bubblewrap_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Many machines have it installed and forbid what it needs."""
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho no namespaces for you >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    bubblewrap.probe.cache_clear()

    assert "no namespaces for you" in bubblewrap.SandboxExecutor().unavailable_reason()
    bubblewrap.probe.cache_clear()


@pytest.mark.parametrize(
    "place", ["/", "/usr", "/etc", "/etc/ssh", "/var", "/root", str(interpreter().parent), "{workspace}/.."]
)
def test_nothing_outside_can_be_written(place: str, tmp_path: Path) -> None:
    """Only the workspace outlives the job; besides it, only /tmp is writable."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()

    async def check(bench: Bench) -> None:
        target = place.format(workspace=workspace)
        await bench.run(f"touch {target}/deltaci-was-here")

        assert not Path(target, "deltaci-was-here").exists()

    in_cell("sandbox", workspace, check)


def test_the_workspace_and_a_private_tmp_can_be_written(tmp_path: Path) -> None:
    """At the same path as outside, so that messages name existing files."""

    async def check(bench: Bench) -> None:
        first = await bench.run("echo kept > kept; echo private > /tmp/deltaci-private; echo null > /dev/null; pwd")
        second = await bench.run("cat /tmp/deltaci-private")

        assert (first.exit_code, second.exit_code) == (0, 0)
        assert bench.output == f"{tmp_path}\nprivate\n".encode()
        assert (tmp_path / "kept").read_text() == "kept\n"
        assert not Path("/tmp/deltaci-private").exists()

    in_cell("sandbox", tmp_path, check)


def test_the_runners_files_and_processes_cannot_be_seen(tmp_path: Path) -> None:
    """Its token may be in a file, its environment or its arguments."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    (tmp_path / "token").write_text("hunter2")

    async def check(bench: Bench) -> None:
        hidden = ("/etc/shadow", str(tmp_path / "token"), "/sys/fs/cgroup", "/proc/1/root/etc/shadow")
        for path in hidden:
            await bench.run(f"cat {path} || ls {path}")
        await bench.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")

        assert b"hunter2" not in bench.output
        assert b"root:" not in bench.output
        assert b"pytest" not in bench.output.replace(str(workspace).encode(), b"").replace(str(tmp_path).encode(), b"")

    in_cell("sandbox", workspace, check)


def test_it_has_no_capabilities(tmp_path: Path) -> None:
    """Not even over its own namespaces."""

    async def check(bench: Bench) -> None:
        await bench.run("grep -E 'Cap(Prm|Eff|Bnd)' /proc/self/status | grep -v 0000000000000000 || echo none")

        assert bench.output == b"none\n"

    in_cell("sandbox", tmp_path, check)


async def connect(bench: Bench, port: int) -> Exit:
    """Try to connect to the runner's machine."""
    return await bench.run(f"exec 3<>/dev/tcp/127.0.0.1/{port}")


def test_the_network_is_unreachable_unless_requested(tmp_path: Path) -> None:
    """A job without network cannot send secrets away."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        async def without_network(bench: Bench) -> None:
            assert (await connect(bench, port)).exit_code == 1
            await bench.run("tail -n +3 /proc/net/dev | grep -v lo: || echo alone")
            assert bench.output.endswith(b"alone\n")

        async def with_network(_: Bench) -> None:
            cell = executor_of("sandbox", Zygote()).cell(workspace=tmp_path, limits=Limits(), network=True, image="")
            assert (await connect(Bench(cell, tmp_path), port)).exit_code == 0
            assert await cell.close()

        in_cell("sandbox", tmp_path, without_network)
        in_cell("sandbox", tmp_path, with_network)
