"""Options and error handling shared by `deltaci plan` and `deltaci run`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final, get_args

import typer

from deltaci.core.errors import Refused
from deltaci.core.text import nearest
from deltaci.local.plans import LocalPlans, PlannedPipeline, PlanRequest, plan_folder
from deltaci.local.tree import WorkingTree
from deltaci.pipeline.change import EventName
from deltaci.pipeline.parse.problems import format_with_source

STATE: Final = ".state"
FOLDER: Final = "local"
USAGE: Final = 2

FolderOption = Annotated[
    Path, typer.Argument(metavar="[FOLDER]", help="The repository, or a folder in it.", file_okay=False, exists=True)
]
FileOption = Annotated[
    list[str] | None,
    typer.Option("--file", help="Only this pipeline file, relative to the root. May be repeated."),
]
EventOption = Annotated[
    str, typer.Option("--event", help="The event to simulate: push, pull_request, schedule or manual.")
]
InputOption = Annotated[
    list[str] | None, typer.Option("--input", metavar="NAME=VALUE", help="Inputs for a manual run.")
]
BaseOption = Annotated[
    str, typer.Option("--base", help="The commit to compare with. Default: the merge base with the default branch.")
]
AllOption = Annotated[bool, typer.Option("--all", help="Run all jobs, regardless of what changed.")]
JobOption = Annotated[
    list[str] | None, typer.Option("--job", help="Only this job and the jobs it needs. May be repeated.")
]
MatrixOption = Annotated[
    list[str] | None, typer.Option("--matrix", metavar="AXIS=VALUE", help="Only these entries of a matrix.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]


@contextmanager
def failing(command: str) -> Iterator[None]:
    """Print an error of a command as one line on stderr and exit."""
    try:
        yield
    except Refused as refused:
        print(f"deltaci {command}: {refused.message}", file=sys.stderr)
        raise typer.Exit(USAGE) from None
    except OSError as error:
        print(f"deltaci {command}: {error.filename or ''}: {error.strerror or error}", file=sys.stderr)
        raise typer.Exit(USAGE) from None


def state_folder(tree_root: Path) -> Path:
    """Return the folder for local data inside the repository, which git ignores. It is created if missing."""
    state = tree_root / STATE
    state.mkdir(exist_ok=True)
    ignore = state / ".gitignore"
    if not ignore.exists():
        ignore.write_text("*\n", "utf-8")
    return state / FOLDER


def opened(folder: Path) -> WorkingTree:
    """Return the working tree of a folder."""
    tree = WorkingTree(folder)
    tree.set_git_dir(state_folder(tree.root) / "here.git")
    return tree


def looked_at(
    tree: WorkingTree,
    *,
    files: Sequence[str] | None,
    event: str,
    inputs: Sequence[str] | None,
    base: str,
    is_all: bool,
    jobs: Sequence[str] | None,
    matrix: Sequence[str] | None,
) -> LocalPlans:
    """Return the plans of the working tree for these options."""
    request = PlanRequest(
        event=_event(event),
        inputs=_pairs("--input", inputs),
        base=base,
        is_all=is_all,
        files=files or (),
        jobs=jobs or (),
        matrix=_pairs("--matrix", matrix),
    )
    return plan_folder(tree, request)


def tell_problems(each: PlannedPipeline) -> None:
    """Print each problem with its source line."""
    for problem in each.problems:
        print(format_with_source(problem, each.text))


def _event(word: str) -> EventName:
    for known in get_args(EventName):
        if word == known:
            return known  # type: ignore[no-any-return]
    near = nearest(word, get_args(EventName))
    hint = f"; did you mean {near!r}?" if near else ""
    raise Refused("bad_request", f"unknown event {word!r}; expected {', '.join(get_args(EventName))}{hint}")


def _pairs(option: str, given: Sequence[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in given or ():
        name, is_pair, value = each.partition("=")
        if not is_pair or not name:
            raise Refused("bad_request", f"{option} {each!r}: expected NAME=VALUE")
        if name in found:
            raise Refused("bad_request", f"{option} {name!r} was given twice; give it once")
        found[name] = value
    return found
