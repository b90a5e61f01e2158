"""`deltaci lint`: check pipeline and workstream files."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from deltaci.cli.workflows import read_workflow
from deltaci.pipeline.github import WORKFLOW_FOLDER, ParsedWorkflow, is_workflow_path
from deltaci.pipeline.parse.problems import MAX_PROBLEMS, Problem, format_with_source
from deltaci.pipeline.parse.reader import DEFAULT_FILE, ParseResult, parse_pipeline
from deltaci.pipeline.parse.yaml import MAX_BYTES
from deltaci.pipeline.workstream.parse import ParsedWorkstream, is_workstream
from deltaci.pipeline.workstream.parse import parse_file as parse_workstream_file

FOLDER: Final = ".deltaci"
MAX_FILES: Final = 1000
GOOD, BAD, USAGE = 0, 1, 2

app = typer.Typer(add_completion=False)


@app.command("lint")
def lint_command(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE]...", help=f"Files; - reads standard input. Default: {DEFAULT_FILE} and {FOLDER}/*.yml."
        ),
    ] = None,
    github: Annotated[
        bool,
        typer.Option("--github", help=f"Read the files as GitHub workflows, as in {WORKFLOW_FOLDER}."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Check pipeline files and report every problem with its position and a suggestion.

    Workstream files are recognized by their key 'workstream'. For GitHub workflows, reports what is unsupported and
    what has no effect. Exits with 0 if all files are valid (warnings are not problems), 1 if one is not, and 2 if one
    cannot be read.

    Examples:

      deltaci lint

      deltaci lint .deltaci/nightly.yml --json
    """
    contents = [(name, _content(name)) for name in files or _usual_files()]
    checked = [(_read(content, name, github or is_workflow_path(name)), content) for name, content in contents]
    if json:
        print(_as_json([found for found, _ in checked]))
    else:
        for found, content in checked:
            _tell(found, content)
    raise typer.Exit(GOOD if all(_is_good(found) for found, _ in checked) else BAD)


def _read(content: bytes, name: str, as_workflow: bool) -> ParseResult | ParsedWorkstream:
    if as_workflow:
        return read_workflow(content, name)
    return parse_workstream_file(content, name) if is_workstream(content) else parse_pipeline(content, name)


def _is_good(found: ParseResult | ParsedWorkstream) -> bool:
    return (found.workstream if isinstance(found, ParsedWorkstream) else found.pipeline) is not None


def _usual_files() -> list[str]:
    found = [name for name in (DEFAULT_FILE,) if Path(name).exists()]
    found += sorted(str(path) for pattern in ("*.yml", "*.yaml") for path in Path(FOLDER).glob(pattern))
    if not found:
        _fail(f"there is no {DEFAULT_FILE} and nothing in {FOLDER}/ here; name a file")
    if len(found) > MAX_FILES:
        _fail(f"there are {len(found)} files in {FOLDER}/, at most {MAX_FILES} are checked at once; name a subset")
    return found


def _content(name: str) -> bytes:
    try:
        if name == "-":
            return sys.stdin.buffer.read(MAX_BYTES + 1)
        with Path(name).open("rb") as file:
            return file.read(MAX_BYTES + 1)  # One more than is allowed is enough to be refused.
    except (OSError, ValueError) as error:
        _fail(f"{name} cannot be read: {getattr(error, 'strerror', None) or error}; give the path of a pipeline file")
        raise AssertionError from error


def _tell(found: ParseResult | ParsedWorkstream, content: bytes) -> None:
    tell_problems(found.problems, content)
    bad = sum(not problem.is_warning for problem in found.problems)
    warnings = len(found.problems) - bad
    told = [f"{count} {word}{'' if count == 1 else 's'}" for count, word in ((bad, "problem"), (warnings, "warning"))]
    counts = ", ".join(each for each in told if not each.startswith("0 "))
    if has := _has(found):
        counts = f"ok, {has}" + (f", {counts}" if counts else "")
    elif isinstance(found, ParsedWorkflow) and found.supported_pipeline is not None:
        counts += f"; {len(found.supported_pipeline.jobs)} of {len(found.job_ids)} jobs can run here"
    more = "; more problems were omitted" if len(found.problems) >= MAX_PROBLEMS else ""
    print(f"{found.file}: {counts}{more}")


def tell_problems(problems: Iterable[Problem], content: bytes) -> None:
    """Each with the line that it is about."""
    source = content.decode("utf-8", "replace")
    for problem in problems:
        print(format_with_source(problem, source))


def _has(found: ParseResult | ParsedWorkstream) -> str:
    """What is in a good file; nothing for others."""
    if isinstance(found, ParsedWorkstream):
        count, word = len(found.workstream.tasks) if found.workstream is not None else 0, "task"
    else:
        count, word = len(found.pipeline.jobs) if found.pipeline is not None else 0, "job"
    return f"{count} {word}{'' if count == 1 else 's'}" if count else ""


def _as_json(checked: list[ParseResult | ParsedWorkstream]) -> str:
    told = {
        "good": all(_is_good(found) for found in checked),
        "files": [{"file": found.file, "good": _is_good(found), "problems": found.problems} for found in checked],
    }
    return msgspec.json.encode(told).decode()


def _fail(message: str) -> None:
    print(f"deltaci lint: {message}", file=sys.stderr)
    raise typer.Exit(USAGE)
