"""`deltaci artifacts`, `outputs` and `costs`: show and download the results of runs."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Annotated, Final

import msgspec
import typer
from rich.text import Text

from deltaci.api.schemas import records as api
from deltaci.cli import arguments
from deltaci.cli.completers import complete_job, complete_run
from deltaci.cli.output import TableOutput, console, safe
from deltaci.cli.session import CommandSession, command
from deltaci.core.text import format_size

app = typer.Typer(add_completion=False)
artifacts_app = typer.Typer(
    name="artifacts", add_completion=False, help="List and download artifacts.", no_args_is_help=True
)
app.add_typer(artifacts_app)

MAX_SHOWN: Final = 100_000

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The run's id.", autocompletion=complete_run)]
IdArgument = Annotated[
    str,
    typer.Argument(metavar="RUN[/JOB[.N]]", help="A run, a job or an attempt.", autocompletion=complete_job),
]


def _artifacts(session: CommandSession, id: str) -> list[api.RunArtifact]:
    """Those of all that the id names."""
    run_id, _, rest = id.partition("/")
    found = session.client.artifacts(run_id).artifacts
    return [each for each in found if not rest or rest in (each.job, f"{each.job}.{each.attempt}")]


@command(artifacts_app, "list")
def list_command(session: CommandSession, id: IdArgument) -> None:
    """List the artifacts of a run, a job or an attempt.

    Example:

      deltaci artifacts list r4c1d
    """
    found = _artifacts(session, id)
    if session.is_json:
        session.print_json(found)
        return
    rows = TableOutput("JOB", "#TRY", "#SIZE", "~PATH")
    for each in found:
        rows.add(each.job, each.attempt, format_size(each.bytes), each.path)
    rows.print("no artifacts")


@command(artifacts_app, "get")
def get_command(
    session: CommandSession,
    id: IdArgument,
    paths: Annotated[
        list[str] | None, typer.Argument(metavar="[PATH]…", help="Patterns of paths, with * and ?. Default: all.")
    ] = None,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="The folder to write to, as JOB.N/PATH.")
    ] = Path("artifacts"),
) -> None:
    """Download artifacts. Each file is written completely or not at all.

    Example:

      deltaci artifacts get r4c1d/build 'dist/*' -o out
    """
    wanted = [each for each in _artifacts(session, id) if not paths or any(fnmatchcase(each.path, p) for p in paths)]
    if not wanted:
        raise ValueError(f"{id} has no matching artifacts; list them with 'deltaci artifacts list {id}'")
    kept = []
    for each in wanted:
        to = output / f"{each.job}.{each.attempt}" / _inside(each.path)
        to.parent.mkdir(parents=True, exist_ok=True)
        session.client.download(arguments.run_only(id.partition("/")[0]), each.job, each.attempt, each.path, to)
        kept.append({"job": each.job, "attempt": each.attempt, "path": each.path, "file": str(to)})
        if not session.is_json:
            print(safe(to, 2000), flush=True)
    if session.is_json:
        session.print_json(kept)


def _inside(path: str) -> PurePosixPath:
    """The path, if it stays below the folder: it was a job that chose it."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or not path.isprintable():
        raise ValueError(f"the path {safe(path)!r} leads out of the folder; it was skipped")
    return pure


@command(app, "outputs")
def outputs_command(session: CommandSession, run: RunArgument) -> None:
    """Show the outputs of the jobs of a run.

    Example:

      deltaci outputs r4c1d --json
    """
    found = session.client.outputs(arguments.run_only(run)).outputs
    if session.is_json:
        session.print_json(found)
        return
    out = console()
    for name, value in found.items():
        out.print(Text(safe(name), style="bold"))
        text = msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
        for line in text.splitlines():
            out.print(f"  {safe(line, MAX_SHOWN)}", soft_wrap=True)
    if not found:
        out.print("no outputs")


@command(app, "costs")
def costs_command(session: CommandSession, run: RunArgument) -> None:
    """Show the resource usage of a run, per attempt and in total.

    Example:

      deltaci costs r4c1d
    """
    found = session.client.costs(arguments.run_only(run))
    if session.is_json:
        session.print_json(found)
        return
    names = sorted({name for each in found.attempts for name in each.cost})
    rows = TableOutput("JOB", "#TRY", *(f"#{safe(name)}" for name in names))
    for each in found.attempts:
        rows.add(each.job, each.attempt, *(_amount(name, each.cost.get(name)) for name in names))
    if len(found.attempts) > 1:
        rows.add(Text("total", style="bold"), "", *(_amount(name, found.total.get(name)) for name in names))
    rows.print("no usage was reported")


def _amount(name: str, value: object) -> str:
    if not isinstance(value, int | float):
        return "" if value is None else str(value)
    if name.endswith("_bytes"):
        return format_size(int(value))
    return f"{value:,.3f}".rstrip("0").rstrip(".")
