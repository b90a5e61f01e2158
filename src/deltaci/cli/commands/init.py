"""`deltaci init`: inspect a repository and write a pipeline file for it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from deltaci.cli.worktree import files_of, text_of
from deltaci.pipeline.detect import Proposal, ProposedJob, files_to_read, propose
from deltaci.pipeline.detect.render import render_pipeline_file
from deltaci.pipeline.parse.printer import to_plain
from deltaci.pipeline.parse.reader import DEFAULT_FILE

GOOD, NOTHING, USAGE = 0, 1, 2
WORKFLOWS: Final = ".github/workflows/"
FOLDER: Final = ".deltaci/"
MARKS: Final = {"sure": "+", "likely": "~", "unsure": "?"}
LOOKED_FOR: Final = "Python, Node, Go, Rust, Java, .NET, Ruby, PHP, C and C++, Elixir, Make, just, task and others"

app = typer.Typer(add_completion=False)


@app.command("init")
def init_command(
    path: Annotated[Path, typer.Argument(metavar="[PATH]", help="The root of the repository.")] = Path(),
    print_: Annotated[bool, typer.Option("--print", help="Print the file without writing it.")] = False,
    force: Annotated[bool, typer.Option("--force", help=f"Overwrite an existing {DEFAULT_FILE}.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as one JSON document.")] = False,
) -> None:
    """Inspect a repository and write a pipeline file for it.

    Prints each finding with its evidence and confidence: + sure, ~ likely, ? unsure. Unsure findings are
    written as comments, which run nothing. Exits with 0 if something was found, 1 if nothing was, and 2
    if the file cannot be written.

    Examples:

      deltaci init

      deltaci init --print path/to/repository
    """
    if not path.is_dir():
        _fail(f"{path} is not a folder; name the root of a repository")
    paths = files_of(path)
    proposal = propose(paths, {name: text_of(path, name) for name in files_to_read(paths)})
    text = render_pipeline_file(proposal)
    target = path / DEFAULT_FILE
    is_kept = (target.exists() or target.is_symlink()) and not force
    is_written = bool(proposal.proposed_jobs) and not print_ and not is_kept
    if is_written:
        _write(target, text)
    if json:
        print(_as_json(proposal, text, paths, target if is_written else None))
    elif print_:
        print(text if proposal.proposed_jobs else "", end="")
    else:
        _tell(proposal, paths)
    if not proposal.proposed_jobs:
        _complain(f"found nothing to build, test or lint; looked for {LOOKED_FOR}")
        raise typer.Exit(NOTHING)
    if is_kept and not print_:
        _fail(f"{target} already exists; --force overwrites it, --print shows the new file without writing it")
    if is_written and not json:
        print(f"\n{target} was written; check it with `deltaci lint`.")


def _write(target: Path, text: str) -> None:
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        _fail(f"{target} cannot be written: {error.strerror or error}")


def _tell(proposal: Proposal, paths: list[str]) -> None:
    for finding in proposal.proposed_jobs:
        where = f" in {finding.folder}" if finding.folder else ""
        doubt = f": {finding.uncertainty}" if finding.uncertainty else ""
        print(f"{MARKS[finding.confidence]} {finding.id}: {finding.title}{where} ({finding.confidence}{doubt})")
        for each in (*finding.evidence, *finding.hints):
            print(f"    {each}")
    if proposal.unclear:
        print("Also found:")
        for each in proposal.unclear:
            print(f"    {each}")
    if told := _others(paths):
        print(told)


def _others(paths: list[str]) -> str:
    """What stands beside discovery: files that would be taken first."""
    if any(path.startswith(FOLDER) and path.endswith((".yml", ".yaml")) for path in paths):
        return f"\nThere are pipeline files in {FOLDER} already: they run in addition to {DEFAULT_FILE}."
    workflows = sum(path.startswith(WORKFLOWS) and path.endswith((".yml", ".yaml")) for path in paths)
    if not workflows:
        return ""
    files = f"{workflows} file{'s' if workflows > 1 else ''}"
    return (
        f"\nThere {'are' if workflows > 1 else 'is'} {files} in {WORKFLOWS}: without a {DEFAULT_FILE} they run as they "
        "are, and `deltaci import` converts them exactly. What is proposed here would run instead of them."
    )


def _as_json(proposal: Proposal, text: str, paths: list[str], target: Path | None) -> str:
    told = {
        "findings": [_finding(finding) for finding in proposal.proposed_jobs],
        "unclear": proposal.unclear,
        "workflows": sorted(path for path in paths if path.startswith(WORKFLOWS)),
        "file": text if proposal.proposed_jobs else None,
        "written": None if target is None else str(target),
    }
    return msgspec.json.encode(told).decode()


def _finding(finding: ProposedJob) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(finding)
    return told | {"job": to_plain(finding.job), "runs": finding.is_included}


def _complain(message: str) -> None:
    print(f"deltaci init: {message}", file=sys.stderr)


def _fail(message: str) -> None:
    _complain(message)
    raise typer.Exit(USAGE)
