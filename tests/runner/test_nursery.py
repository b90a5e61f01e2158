"""Cells are forked from one warm process; each of them must be as much on its own as if it had been started alone."""

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


def in_nursery(tell: Callable[[Zygote], Coroutine[Any, Any, None]]) -> None:
    """Tell a story about one nursery, which is closed whatever happens."""

    async def told() -> None:
        nursery = Zygote()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await tell(nursery)
        finally:
            await nursery.close()

    asyncio.run(told())


def cell_of(nursery: Zygote, workspace: Path) -> SupervisedCell:
    """A cell without walls and without groups."""
    workspace.mkdir(exist_ok=True)
    executor = ProcessExecutor(nursery, use_cgroups=False)
    return executor.cell(workspace=workspace, limits=Limits(), network=True, image="")


def test_a_cell_carries_its_own_mark_and_no_others(tmp_path: Path) -> None:
    """A forked process shows its parent's environment; whoever has only the handle must find it nevertheless."""

    async def story(nursery: Zygote) -> None:
        one, other = cell_of(nursery, tmp_path / "1"), cell_of(nursery, tmp_path / "2")
        await asyncio.gather(one.open(), other.open())

        found = [set(process_tree.members(cell.handle)) for cell in (one, other)]

        roots = [set(cell.handle.root_pids) for cell in (one, other)]
        assert roots[0] < found[0], (roots, found)
        assert roots[1] < found[1], (roots, found)
        assert not found[0] & found[1]
        assert process_tree.kill_all(one.handle) == []
        assert set(process_tree.members(other.handle)) == found[1]
        await one.close()  # It proves nothing: somebody else may have killed the guard first.
        assert await other.close()

    in_nursery(story)


def test_many_cells_at_once(tmp_path: Path) -> None:
    """None of them holds up another, and none is left."""

    async def story(nursery: Zygote) -> None:
        cells = [cell_of(nursery, tmp_path / str(n)) for n in range(20)]
        benches = [Bench(cell, tmp_path) for cell in cells]

        exits = await asyncio.gather(*(bench.run(f"echo {n}; exit {n}") for n, bench in enumerate(benches)))

        assert [exit.exit_code for exit in exits] == list(range(20))
        assert [bytes(bench.output) for bench in benches] == [f"{n}\n".encode() for n in range(20)]
        assert all(await asyncio.gather(*(cell.close() for cell in cells)))
        assert not [pid for cell in cells for pid in cell.handle.root_pids if is_alive(pid)]

    in_nursery(story)


def test_a_nursery_that_dies_takes_its_cells_along_and_the_next_cell_gets_a_new_one(tmp_path: Path) -> None:
    """Somebody may kill it; the runner must be able to go on."""

    async def story(nursery: Zygote) -> None:
        cell = cell_of(nursery, tmp_path)
        bench = Bench(cell, tmp_path)
        step = bench.start("echo up; exec tail -f /dev/null")
        await bench.until(b"up")
        files = {pid: os.pidfd_open(pid) for pid in process_tree.members(cell.handle)}
        mother = int(Path(f"/proc/{cell.handle.root_pids[0]}/stat").read_text().rpartition(")")[2].split()[1])

        os.kill(mother, signal.SIGKILL)

        assert (await step).signal == signal.SIGKILL
        await cell.close()  # Whether it proves anything is another matter: nobody saw how its guard ended.
        assert await_deaths(files) == []
        again = cell_of(nursery, tmp_path)
        assert (await Bench(again, tmp_path).run("exit 3")).exit_code == 3
        assert await again.close()

    in_nursery(story)


def test_a_group_that_is_gone_ends_the_cell_before_anything_runs() -> None:
    """Nothing of a job may run outside of its groups."""

    async def story(nursery: Zygote) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            guard = await nursery.fork_supervisor("f" * 32, ["/no/such/group/cgroup.procs"], theirs)
            theirs.close()
            assert await guard.wait() == 125
            assert ours.recv(1000).startswith(b"failed [Errno 2] No such file or directory")

    in_nursery(story)


def test_a_nursery_that_cannot_start_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not the job's fault: another runner may do better."""
    monkeypatch.setattr("deltaci.runner.sandbox.zygote.SCRIPT", tmp_path / "gone.py")

    async def story(nursery: Zygote) -> None:
        cell = cell_of(nursery, tmp_path)
        with pytest.raises(CellFailed, match="did not start"):
            await cell.open()
        assert await cell.close()

    in_nursery(story)


@pytest.mark.parametrize(("script", "env"), [("echo \0", {}), ("true", {"A": "\0"})])
def test_a_text_that_no_command_can_have_is_refused(script: str, env: dict[str, str], tmp_path: Path) -> None:
    """It would end the text too early, and the rest would be taken for something else."""

    async def story(nursery: Zygote) -> None:
        cell = cell_of(nursery, tmp_path)
        with pytest.raises(Refused, match="NUL"):
            await Bench(cell, tmp_path).run(script, env=env)
        assert await cell.close()

    in_nursery(story)


def test_a_program_that_is_not_on_the_path_is_not_taken_from_the_workspace(tmp_path: Path) -> None:
    """A repository must not be able to bring its own shell."""
    (tmp_path / "fish").write_text("#!/bin/sh\necho mine\n")
    (tmp_path / "fish").chmod(0o755)

    async def story(nursery: Zygote) -> None:
        cell = cell_of(nursery, tmp_path)
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

    in_nursery(story)
