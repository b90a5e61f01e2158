"""`deltaci verify` and the validator script: what people see and what programs get."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from deltaci.cli.app import app
from deltaci.cli.commands.verify import MAX_LINE_BYTES
from tests.support.lab import Lab, gate, task

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "validate" / "validate_state_transitions.py"


@pytest.fixture
def lab() -> Lab:
    """A finished run."""
    lab = Lab().plan(task("a"), gate("ok", "a"), task("b", "ok"))
    lab.register("w1")
    lab.after(1).work("a")
    lab.after(1).approve("ok")
    lab.after(1).work("b")
    lab.after(1).report()
    return lab


def written(path: Path, lines: list[bytes]) -> str:
    """The path of a file with these lines."""
    path.write_bytes(b"\n".join(lines) + b"\n")
    return str(path)


def deltaci(*arguments: str, text: str | None = None) -> Result:
    """The command line, called."""
    return CliRunner().invoke(app, ["verify", *arguments], input=text)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"not json\n", "the first line is not JSON"),
        (b"\xff\xfe\n", "the first line is not JSON"),
        (b'{"hello": 1}\n', "not an event in a known format"),
        (b"[1, 2]\n", "not an event in a known format"),
        (b"[" * 100_000 + b"\n", "the first line is not JSON"),
        (b"{" + b"x" * (MAX_LINE_BYTES + 10), "line 1 is longer than 16 MiB"),
    ],
    ids=["text", "binary", "other object", "list", "deep", "endless line"],
)
def test_what_is_no_log_is_refused_with_the_reason(tmp_path: Path, content: bytes, expected: str) -> None:
    """Whoever gives us the wrong file must learn that at once, and never see a traceback."""
    (tmp_path / "log").write_bytes(content)

    result = deltaci(str(tmp_path / "log"))

    assert result.exit_code == 2
    assert expected in result.stderr
    assert "Traceback" not in result.output


def test_an_empty_log_is_legal(tmp_path: Path) -> None:
    """A new deployment has no events yet."""
    result = deltaci(written(tmp_path / "log", []))

    assert result.exit_code == 0
    assert result.stdout.startswith("legal: 0 lines")


def test_a_file_that_is_not_there_is_refused_with_its_name(tmp_path: Path) -> None:
    """The most common mistake deserves the clearest message."""
    result = deltaci(str(tmp_path / "missing.jsonl"))

    assert result.exit_code == 2
    assert "missing.jsonl cannot be read: No such file or directory" in result.stderr


def test_an_unknown_format_is_refused_with_those_that_exist(tmp_path: Path, lab: Lab) -> None:
    """A typo must not be taken for a format."""
    result = deltaci("--format", "yaml", written(tmp_path / "log", lab.canonical()))

    assert result.exit_code == 2
    assert "expected one of: canonical, transitions, job-events" in result.stderr


@pytest.mark.parametrize("form", ["canonical", "transitions", "job_events"])
def test_each_form_of_a_legal_log_is_found_out_and_passes(tmp_path: Path, lab: Lab, form: str) -> None:
    """Nobody should have to say which of the three formats a file is in."""
    path = written(tmp_path / "log", getattr(lab, form)())

    result = deltaci(path)

    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 1
    assert result.stdout.startswith("legal: ")


def test_a_violation_names_line_rule_document_and_what_was_legal(tmp_path: Path, lab: Lab) -> None:
    """A message that does not say what to do is half a message."""
    lines = lab.canonical()
    event = msgspec.json.decode(lines[-1])
    lines[-1] = msgspec.json.encode({**event, "to": "RUNNING"})

    result = deltaci(written(tmp_path / "log", lines))

    assert result.exit_code == 1
    assert f"line {len(lines)}: ORC-O1 (document 000)" in result.stdout
    assert "SUCCESS → RUNNING by statuses_published" in result.stdout
    assert "legal: from SUCCESS: REPORTED by statuses_published" in result.stdout


def test_a_damaged_line_is_one_violation_with_its_number(tmp_path: Path, lab: Lab) -> None:
    """A torn write at the end of a file must not hide the rest."""
    lines = [*lab.transitions(), b'{"timestamp": "2026-0']

    result = deltaci(written(tmp_path / "log", lines))

    assert result.exit_code == 1
    assert f"line {len(lines)}: WST-V3 (document 003): the line cannot be read" in result.stdout


def test_json_output_is_one_object_for_programs(tmp_path: Path, lab: Lab) -> None:
    """Scripts need the same facts without the prose."""
    lines = lab.canonical()

    result = deltaci("--json", written(tmp_path / "log", [*lines, lines[-1]]))

    told = msgspec.json.decode(result.stdout)
    assert (told["legal"], told["violations"], told["lines"]) == (False, len(told["found"]), len(lines) + 1)
    assert {"line", "rule", "document", "page", "found", "legal"} == set(told["found"][0])


def test_limit_cuts_the_list_and_says_so(tmp_path: Path, lab: Lab) -> None:
    """A log that is wrong everywhere must not flood the terminal."""
    lines = lab.canonical()

    result = deltaci("--limit", "1", written(tmp_path / "log", [*lines, *lines]))

    assert result.exit_code == 1
    assert "more (--limit shows more)" in result.stdout


def test_a_log_can_come_from_standard_input(lab: Lab) -> None:
    """Logs are piped."""
    result = deltaci("-", text="\n".join(line.decode() for line in lab.canonical()))

    assert result.exit_code == 0


@pytest.mark.proves("WST-V1", "WST-V2", "WST-V3", "WST-V4", "WST-V6")
def test_the_validator_script_accepts_a_legal_file_and_refuses_an_illegal_one(tmp_path: Path, lab: Lab) -> None:
    """Document 003 names the script and its file; both work as named."""
    lines = lab.transitions()
    good, bad = written(tmp_path / "transitions.jsonl", lines), written(tmp_path / "bad.jsonl", lines[1:])

    results = [
        subprocess.run([sys.executable, str(SCRIPT), path], capture_output=True, text=True, check=False)
        for path in (good, bad)
    ]

    assert [result.returncode for result in results] == [0, 1]
    assert "legal: " in results[0].stdout
    assert not results[1].stderr
