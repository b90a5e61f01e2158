"""A workstream file: text in, a typed workstream or all of its problems out; the same for plain values from the API.

Reads with the reader of pipeline files, so that unknown keys, wrong kinds and misspelt words are told in the same way.
Nothing is evaluated in these files, and nobody should believe that it is: `${{ … }}` is refused wherever it stands.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.pipeline import checks, rules
from deltaci.pipeline.found import Path
from deltaci.pipeline.nodes import child, items
from deltaci.pipeline.problems import Place, Problem, Problems, shown
from deltaci.pipeline.reader import read_part
from deltaci.pipeline.shapes import NOUNS, Words, reachable
from deltaci.pipeline.workstream.model import Branch, Workstream
from deltaci.pipeline.yaml import (
    BOOL,
    LIST,
    MAX_BYTES,
    MAX_DEPTH,
    MAX_NODES,
    NULL,
    NUMBER,
    OBJECT,
    TEXT,
    Node,
    NotYaml,
    decoded,
    read_yaml,
)

DEFAULT_FILE: Final = "workstream.yml"
SPEC: Final = "spec"  # In place of a file's name, where plain values are read.
MAX_BITS: Final = 59
EMPTY: Final = "expected at least: workstream, and tasks with name and run"

# What people write who know pipelines or other systems, and how the same is said here.
FOREIGN: Final = {
    "jobs": "a workstream has 'tasks', a list; pipelines have jobs",
    "steps": "write the commands as 'run'",
    "script": "write the commands as 'run'",
    "command": "write it as 'run'",
    "commands": "write them as 'run'",
    "cmd": "write it as 'run'",
    "id": "say 'name'",
    "depends_on": "say 'needs'",
    "dependencies": "say 'needs'",
    "after": "say 'needs'",
    "allow_failure": "say 'critical: false'",
    "continue-on-error": "say 'critical: false'",
    "required": "say 'critical: true'",
    "validate": "say 'post_execution' for a task, 'validation' for the whole",
    "rules": "say 'post_execution' for a task, 'validation' for the whole",
    "on": "a workstream is started by somebody, not by an event: remove it",
    "if": "nothing is evaluated in a workstream: remove it",
    "branch": "say 'base' for the branch that it begins at; its own is made for it",
    "target": "say 'base' for the branch that it is merged to",
    "variables": "write them as 'env'",
    "environment": "write variables as 'env'",
    "tags": "say 'runs-on' for the labels of the worker",
    "timeout": "say 'timeout-minutes', a number",
    "timeout_seconds": "say 'timeout-minutes', a number",
    "retries": "say 'retry', the number of attempts",
    "max_retries": "say 'retry', the number of attempts",
    "container": "say 'image' for the container image",
    "strategy": "a workstream has no matrix: write each task",
}
WORDS: Final = Words(
    {cls: cls.noun or NOUNS[cls].removesuffix(" of 'validate'") for cls in reachable(Workstream)}, FOREIGN
)

_OURS: Final = re.compile(r"""^(?:\{\s*)?["']?(?:workstream|tasks)["']?\s*:""", re.MULTILINE)
_THEIRS: Final = re.compile(r"^jobs\s*:", re.MULTILINE)
# What git has against the name of a branch, beyond single characters: those are the model's.
_BAD_BRANCH: Final = re.compile(r"\.\.|@\{|//|/\.|^[./-]|[./]$|\.lock(?:/|$)|^@$")


class FoundWorkstream(msgspec.Struct, frozen=True, kw_only=True):
    """What a file says, unless it has problems; warnings alone do not stand in its way."""

    file: str
    workstream: Workstream | None
    problems: tuple[Problem, ...] = ()


def is_workstream(content: bytes) -> bool:
    """Whether somebody meant this as a workstream file, however broken it is."""
    text = content[:MAX_BYTES].decode("utf-8", "replace").removeprefix("\ufeff")
    return _OURS.search(text) is not None and _THEIRS.search(text) is None


def read(content: str | bytes, file: str = DEFAULT_FILE) -> FoundWorkstream:
    """Read a whole file."""
    problems = Problems(file)
    try:
        text = decoded(content, problems) if isinstance(content, bytes) else content
        if all(not line.strip() or line.lstrip().startswith("#") for line in text.splitlines()):
            problems.add(Place(), "an empty file", EMPTY)
            raise NotYaml
        root = read_yaml(text, problems)
    except NotYaml:
        return FoundWorkstream(file=file, workstream=None, problems=problems.in_order())
    return FoundWorkstream(file=file, workstream=_workstream(root, text, problems), problems=problems.in_order())


def read_plain(value: Any) -> tuple[Workstream | None, tuple[str, ...]]:
    """Read what a program sent as plain values; each problem begins with the path where it was found."""
    problems = Problems(SPEC)
    plain = _Plain(problems)
    try:
        root = plain.node(value, (), 1)
        found = _workstream(root, "", problems)
    except NotYaml:
        found = None
    return found, tuple(plain.told(each) for each in problems.in_order())


def _workstream(root: Node, text: str, problems: Problems) -> Workstream | None:
    part = read_part(root, Workstream, (), problems, WORDS)
    for expression in part.expressions:
        told = "nothing is evaluated in a workstream: write the text itself, or put it into a script"
        problems.add(expression.at, f"an expression, {shown(expression.text)}", told)
    tasks = items(child(root, "tasks"))
    _check_names(tasks, problems)
    for task in tasks:
        checks.check_retry(child(task, "retry"), problems.add)
        rules.check(child(task, "post_execution"), text, problems, is_stream=True)
    rules.check(child(root, "validation"), text, problems, is_stream=True)
    _check_base(child(root, "base"), problems)
    return part.value if isinstance(part.value, Workstream) and not problems.is_bad else None


def _check_names(tasks: list[Node], problems: Problems) -> None:
    """Every name once, and every need one of them."""
    seen: dict[str, Node] = {}
    needs: dict[str, list[Node]] = {}
    for task in tasks:
        name = child(task, "name")
        if name is None or name.kind != TEXT:
            continue
        if name.value in seen:
            first = seen[name.value].at
            where = f"the task in line {first.line} has it" if problems.file != SPEC else "another task has it"
            problems.add(name.at, f"the name {shown(name.value)} a second time", where)
            continue
        seen[name.value] = name
        needs[name.value] = [each for each in items(child(task, "needs")) if each.kind == TEXT]
    if len(seen) == len(tasks):  # Whoever has no name, or a wrong one, may be the one that is needed.
        checks.check_needs(needs, problems, "task")


def branch(name: str) -> str:
    """The name of a branch that somebody gave beside the file. Refused if git would not take it."""
    problems = Problems(SPEC)
    part = read_part(Node(TEXT, Place(), name, name, '"'), Branch, ("base",), problems, WORDS)
    _check_base(Node(TEXT, Place(), name, name), problems)
    for problem in problems.in_order():
        raise Refused("bad_request", f"base: {str(problem).split(': ', 1)[1]}")
    return str(part.value)


def _check_base(base: Node | None, problems: Problems) -> None:
    if base is None or base.kind != TEXT or not base.value:
        return
    name = base.value
    if name.startswith("refs/"):
        problems.add(base.at, f"{shown(name)} as a branch", "expected its name alone", name.removeprefix("refs/heads/"))
    elif _BAD_BRANCH.search(name):
        problems.add(base.at, f"{shown(name)} as a branch", "expected a name that git allows, e.g. 'main'")


class _Plain:
    """Plain values as nodes: for each its own line, by which the path is found again that it stood at."""

    def __init__(self, problems: Problems) -> None:
        self._problems = problems
        self._paths: list[Path] = []
        self._chars = 0

    def node(self, value: Any, path: Path, depth: int) -> Node:
        """A value with all that is in it; raises `NotYaml` after it said that this is too much."""
        at = self._place(path)
        self._chars += len(value) if isinstance(value, str) else 0
        for found, most, what in (
            (depth, MAX_DEPTH, "levels inside each other"),
            (len(self._paths), MAX_NODES, "values and keys"),
            (self._chars, MAX_BYTES, "characters"),
        ):
            if found > most:
                self._problems.add(at, f"more than {most:,} {what}", "a workstream needs fewer")
                raise NotYaml
        match value:
            case None:
                return Node(NULL, at)
            case bool():
                return Node(BOOL, at, value, str(value).lower())
            case int() if value.bit_length() > MAX_BITS:  # As in a file, where so many digits are a text.
                return Node(TEXT, at, str(value), str(value), '"')
            case int() | float():
                return Node(NUMBER, at, value, str(value))
            case list():
                inner = [self.node(each, (*path, number), depth + 1) for number, each in enumerate(value)]
                return Node(LIST, at, inner)
            case dict():
                return Node(OBJECT, at, [self._pair(name, each, path, depth) for name, each in value.items()])
            case _:
                return Node(TEXT, at, str(value), str(value), '"')

    def _pair(self, name: Any, value: Any, path: Path, depth: int) -> tuple[Node, Node]:
        inner = (*path, str(name))
        return Node(TEXT, self._place(inner), str(name), str(name), '"'), self.node(value, inner, depth + 1)

    def _place(self, path: Path) -> Place:
        self._paths.append(path)
        return Place(len(self._paths), 1)

    def told(self, problem: Problem) -> str:
        """A problem with its path instead of a line."""
        path = self._paths[problem.line - 1] if problem.line <= len(self._paths) else ()
        where = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
        said = str(problem).split(": ", 1)[1]
        return f"{where[:200] or SPEC}: {said}"
