"""Shells by name and as commands; what is none is refused with the names of those that are."""

from __future__ import annotations

from pathlib import Path

import pytest

from deltaci.core.errors import Refused
from deltaci.protocol.messages import JobSpec
from deltaci.runner.sandbox.cell import SHELL
from deltaci.runner.steps.shells import MAX_ARGUMENT_BYTES, shell_command
from deltaci.runner.workspace.layout import layout_for
from tests.runner.cells import Bench, in_cell


@pytest.mark.parametrize("shell", ["cmd", "powershell", "fish", "bash -e", "sh 'x {0}", "x\0{0}"])
def test_one_that_is_not_known_is_refused(shell: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="the shell") as refused:
        shell_command(shell, "true", layout_for(JobSpec(contexts={}), tmp_path), 0)

    assert refused.value.code == "bad_spec"


def test_without_a_wish_it_is_as_ever(tmp_path: Path) -> None:
    """Jobs of the plain queue must not notice anything."""
    begun = shell_command("", "echo $0", layout_for(JobSpec(), tmp_path), 0)

    assert (begun.script, begun.shell) == ("echo $0", SHELL)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("shell", "script", "wanted"),
    [
        ("bash", "false | true; echo no", (1, b"")),
        ("bash", 'echo "it\'s {0} $-"', (0, b"it's {0} ehB\n")),
        ("sh", "false; echo no", (1, b"")),
        ("python3 {0}", "import sys; print(len(sys.argv)); sys.exit(4)", (4, b"1\n")),
        ("python3 -u {0} 'a b'", "import sys; print(sys.argv[1])", (0, b"a b\n")),
        ("cat {0}", "just text", (0, b"just text")),
        ("", "# " + "x" * MAX_ARGUMENT_BYTES + "\necho large", (0, b"large\n")),
    ],
)
def test_a_script_runs_in_its_shell(shell: str, script: str, wanted: tuple[int, bytes], tmp_path: Path) -> None:
    layout = layout_for(JobSpec(contexts={}), tmp_path)
    layout.create()

    async def story(bench: Bench) -> None:
        begun = shell_command(shell, script, layout, 3)
        ended = await bench.cell.run(
            begun.script,
            env={},
            workdir=tmp_path,
            timeout_seconds=30,
            on_output=bench.hear,
            shell=begun.shell,
        )
        assert (ended.exit_code, bytes(bench.output)) == wanted

    in_cell("process", tmp_path, story)
