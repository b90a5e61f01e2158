"""The plans of what is here: which pipelines there are, whether the change starts them, and what they make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.local.tree import Snapshot, Tree
from deltaci.pipeline.change import Change, EventName
from deltaci.pipeline.files import pipeline_files
from deltaci.pipeline.plan import Plan
from deltaci.pipeline.problems import Problem
from deltaci.pipeline.reader import Found, read
from deltaci.wire.messages import Source

EVERYTHING: Final = "all of it was asked for"


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody wants to see planned."""

    event: EventName = "push"
    inputs: Mapping[str, Any] = {}
    base: str = ""
    is_all: bool = False
    files: Sequence[str] = ()
    jobs: Sequence[str] = ()
    matrix: Mapping[str, str] = {}


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline: its plan, or why there is none."""

    file: str
    text: str = ""
    is_triggered: bool = False
    why: str = ""
    plan: Plan | None = None
    problems: tuple[Problem, ...] = ()


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """All pipelines that are here, for the change that is here."""

    change: Change
    snapshot: Snapshot
    compared: str
    planned: list[Planned]


def seen(tree: Tree, wish: Wish) -> Seen:
    """Look at everything. A file with problems has no plan, and says which."""
    snapshot = tree.snapshot()
    base, called = ("", EVERYTHING) if wish.is_all else tree.base(wish.base, snapshot)
    changed = tree.changed(base, snapshot.commit) if base else None
    change = change_here(tree, snapshot, wish, base)
    source = Source(url=str(tree.store), commit=snapshot.commit, ref=HERE)
    planned = [
        _planned(found, change, changed, called, source, wish, is_named=bool(wish.files))
        for found in pipelines(tree, snapshot.commit, wish.files)
    ]
    compared = f"{len(changed)} changed since {called}" if changed is not None else f"every path counts: {called}"
    return Seen(change=change, snapshot=snapshot, compared=compared, planned=planned)


def change_here(tree: Tree, snapshot: Snapshot, wish: Wish, base: str) -> Change:
    """What is here, as what somebody would push."""
    branch = tree.branch()
    is_request = wish.event == "pull_request"
    return Change(
        event=wish.event,
        commit=snapshot.commit,
        repository=tree.repository(),
        ref=f"refs/heads/{branch}" if branch else "",
        branch=tree.default_branch() if is_request else branch,
        head=branch if is_request else "",
        before="" if is_request else base,
        base=base if is_request else "",
        action="synchronize" if is_request else "",
        title=tree.subject(),
        message=tree.subject(),
        actor=tree.person(),
        default_branch=tree.default_branch(),
        inputs=dict(wish.inputs),
    )


def pipelines(tree: Tree, commit: str, named: Sequence[str]) -> list[Read]:
    """The pipelines that are here, or those that were named."""
    files = pipeline_files(tree.paths(commit))
    kinds = {path: files.kind for path in files.paths}
    for path in named:
        kinds.setdefault(path, kind_of(path))
    chosen = sorted(named) if named else list(files.paths)
    found = []
    for path in chosen:
        content = tree.read(commit, path)
        if content is None:
            raise Refused("not_found", f"there is no file {path!r} in {tree.root}; name it from there on")
        found.append(read_pipeline(kinds[path], path, content))
    if not found:
        raise Refused(
            "not_found", f"there is no pipeline in {tree.root}: no {DEFAULT_FILE}, nothing in .deltaci/; write one"
        )
    return found
