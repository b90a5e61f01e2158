"""Cells are forked from the zygote; each must behave as if it had been started alone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from deltaci.core.errors import Refused
from deltaci.protocol.messages import Limits
from deltaci.runner.sandbox import process_tree
from deltaci.runner.sandbox.cell import CellFailed
from deltaci.runner.sandbox.process import ProcessExecutor
from deltaci.runner.sandbox.supervised_cell import SupervisedCell
from deltaci.runner.sandbox.zygote import Zygote
from tests.runner.cells import PATIENCE_SECONDS, Bench, await_deaths, is_alive


def with_zygote(test: Callable[[Zygote], Coroutine[Any, Any, None]]) -> None:
    """Run a test with a zygote, and close it."""

    async def run() -> None:
        zygote = Zygote()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await test(zygote)
        finally:
            await zygote.close()

    asyncio.run(run())


def make_cell(zygote: Zygote, workspace: Path) -> SupervisedCell:
    """Return a cell without isolation and cgroups."""
    workspace.mkdir(exist_ok=True)
    executor = ProcessExecutor(zygote, use_cgroups=False)
    return executor.cell(workspace=workspace, limits=Limits(), network=True, image="")


def test_each_cell_has_only_its_own_marker(tmp_path: Path) -> None:
    """A forked process shows its parent's environment; it must still be found by its handle."""

    async def check(zygote: Zygote) -> None:
        one, other = make_cell(zygote, tmp_path / "1"), make_cell(zygote, tmp_path / "2")
        await asyncio.gather(one.open(), other.open())

        pids = [set(process_tree.members(cell.handle)) for cell in (one, other)]

        roots = [set(cell.handle.root_pids) for cell in (one, other)]
        assert roots[0] < pids[0], (roots, pids)
        assert roots[1] < pids[1], (roots, pids)
        assert not pids[0] & pids[1]
        assert process_tree.kill_all(one.handle) == []
        assert set(process_tree.members(other.handle)) == pids[1]
        await one.close()  # It proves nothing: somebody else may have killed the guard first.
        assert await other.close()

    with_zygote(check)


def test_many_cells_run_at_once(tmp_path: Path) -> None:
    """They do not delay each other, and none is left."""

    async def check(zygote: Zygote) -> None:
        cells = [make_cell(zygote, tmp_path / str(n)) for n in range(20)]
        benches = [Bench(cell, tmp_path) for cell in cells]

        exits = await asyncio.gather(*(bench.run(f"echo {n}; exit {n}") for n, bench in enumerate(benches)))

        assert [exit.exit_code for exit in exits] == list(range(20))
        assert [bytes(bench.output) for bench in benches] == [f"{n}\n".encode() for n in range(20)]
        assert all(await asyncio.gather(*(cell.close() for cell in cells)))
        assert not [pid for cell in cells for pid in cell.handle.root_pids if is_alive(pid)]

    with_zygote(check)


def test_cells_die_with_their_zygote_and_the_next_cell_starts_a_new_one(tmp_path: Path) -> None:
    """A killed zygote must not stop the runner."""

    async def check(zygote: Zygote) -> None:
        cell = make_cell(zygote, tmp_path)
        bench = Bench(cell, tmp_path)
        step = bench.start("echo up; exec tail -f /dev/null")
        await bench.until(b"up")
        pidfds = {pid: os.pidfd_open(pid) for pid in process_tree.members(cell.handle)}
        zygote_pid = int(Path(f"/proc/{cell.handle.root_pids[0]}/stat").read_text().rpartition(")")[2].split()[1])

        os.kill(zygote_pid, signal.SIGKILL)

        assert (await step).signal == signal.SIGKILL
        await cell.close()  # Whether it proves anything is another matter: nobody saw how its guard ended.
        assert await_deaths(pidfds) == []
        new_cell = make_cell(zygote, tmp_path)
        assert (await Bench(new_cell, tmp_path).run("exit 3")).exit_code == 3
        assert await new_cell.close()

    with_zygote(check)


def test_a_cell_that_cannot_join_its_cgroup_ends_before_any_step() -> None:
    """No process of a job may run outside of its cgroups."""

    async def check(zygote: Zygote) -> None:
        runner_socket, cell_socket = socket.socketpair()
        with runner_socket, cell_socket:
            guard = await zygote.fork_supervisor("f" * 32, ["/no/such/group/cgroup.procs"], cell_socket)
            cell_socket.close()
            assert await guard.wait() == 125
            assert runner_socket.recv(1000).startswith(b"failed [Errno 2] No such file or directory")

    with_zygote(check)


def test_a_zygote_that_cannot_start_fails_the_cell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It is not the job's fault: another runner may succeed."""
    monkeypatch.setattr("deltaci.runner.sandbox.zygote.SCRIPT", tmp_path / "gone.py")

    async def check(zygote: Zygote) -> None:
        cell = make_cell(zygote, tmp_path)
        with pytest.raises(CellFailed, match="did not start"):
            await cell.open()
        assert await cell.close()

    with_zygote(check)


@pytest.mark.parametrize(("script", "env"), [("echo \0", {}), ("true", {"A": "\0"})])
def test_a_step_with_a_nul_character_is_refused(script: str, env: dict[str, str], tmp_path: Path) -> None:
    """It would end the text in an order, and the rest would be misread."""

    async def check(zygote: Zygote) -> None:
        cell = make_cell(zygote, tmp_path)
        with pytest.raises(Refused, match="NUL"):
            await Bench(cell, tmp_path).run(script, env=env)
        assert await cell.close()

    with_zygote(check)


def test_a_shell_is_not_searched_in_the_workspace(tmp_path: Path) -> None:
    """A repository must not be able to replace the shell."""
    (tmp_path / "fish").write_text("#!/bin/sh\necho mine\n")
    (tmp_path / "fish").chmod(0o755)

    async def check(zygote: Zygote) -> None:
        cell = make_cell(zygote, tmp_path)
        bench = Bench(cell, tmp_path)
        ended = await cell.run(
            "true",
            env={"PATH": "/no/such/folder"},
            workdir=tmp_path,
            timeout_seconds=10,
            on_output=bench.hear,
            shell=("fish", "-c"),
        )
        assert ended.exit_code == 127
        assert b"no such program on the search path" in bench.output
        assert await cell.close()

    with_zygote(check)
