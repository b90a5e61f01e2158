"""`deltaci verify` on any file: an exit code of 0, 1 or 2 and one line that says why, never a traceback."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec
from hypothesis import strategies as st
from typer.testing import CliRunner

from deltaci.cli.app import app
from tests.fuzz.json_texts import mutated
from tests.fuzz.profile import fuzzed
from tests.support.lab import Lab, gate, task


def logs() -> dict[str, list[bytes]]:
    """A legal log in each vocabulary."""
    lab = Lab().plan(task("a", max_attempts=2), gate("ok", "a"), task("b", "ok"))
    lab.register("w1", labels=("linux",))
    lab.after(1).fail(lab.claim(lab.attempt("a")))
    lab.after(60).cancel_run()
    return {"canonical": lab.canonical(), "transitions": lab.transitions(), "job-events": lab.job_events()}


LOGS: Final = logs()


def verified(content: bytes, *words: str) -> int:
    """The exit code. Whatever it says ends in a line that people can read."""
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(content)
        result = CliRunner().invoke(app, ["verify", *words, file.name])
    assert result.exit_code in (0, 1, 2), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    assert (result.stderr if result.exit_code == 2 else result.stdout).strip()
    return result.exit_code


@fuzzed(15, content=st.binary(max_size=200), words=st.sampled_from(((), ("--json",), ("--format", "transitions"))))
def test_a_file_of_any_bytes(content: bytes, words: tuple[str, ...]) -> None:
    """The wrong file."""
    assert verified(content, *words) != 0 or not content.strip()


@fuzzed(15, name=st.sampled_from(sorted(LOGS)), data=st.data())
def test_a_log_in_which_something_was_changed(name: str, data: st.DataObject) -> None:
    """Lines that were edited, cut, doubled, swapped, and bytes that a disk forgot."""
    lines = list(LOGS[name])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(lines) - 1))
        document: Any = msgspec.json.decode(LOGS[name][min(at, len(LOGS[name]) - 1)])
        how = data.draw(st.sampled_from(("changed", "doubled", "dropped", "swapped")))
        if how == "changed":
            lines[at] = data.draw(mutated(document))
        elif how == "doubled":
            lines.insert(at, lines[at])
        elif how == "dropped" and len(lines) > 1:
            del lines[at]
        else:
            lines[0], lines[at] = lines[at], lines[0]
    whole = b"\n".join(lines)
    end = data.draw(st.integers(0, len(whole))) if data.draw(st.booleans()) else len(whole)

    verified(whole[:end], *data.draw(st.sampled_from(((), ("--json",), ("--format", name), ("--limit", "0")))))
