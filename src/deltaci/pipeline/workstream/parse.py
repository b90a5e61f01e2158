"""Parses workstream files, and workstreams given as JSON values, to a `Workstream` or all problems.

Uses the reader of pipeline files, so that unknown keys, wrong types and misspelt words are reported in the same way.
Workstream files have no expressions: `${{ … }}` is refused everywhere.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.pipeline.parse import checks, validation_rules
from deltaci.pipeline.parse.parse_result import Path
from deltaci.pipeline.parse.problems import Position, Problem, ProblemList, quote
from deltaci.pipeline.parse.reader import parse_node
from deltaci.pipeline.parse.shapes import NOUNS, Vocabulary, reachable_types
from deltaci.pipeline.parse.yaml import (
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
    YamlError,
    child,
    decode_utf8,
    items,
    parse_yaml,
)
from deltaci.pipeline.workstream.model import Branch, Workstream

DEFAULT_FILE: Final = "workstream.yml"
VALUES_FILE: Final = "spec"  # the file name in problems of values that are not from a file
MAX_INTEGER_BITS: Final = 59
EMPTY_FILE_HINT: Final = "expected at least: workstream, and tasks with name and run"

# Keys of pipelines and other CI systems, and what to write instead.
KEY_HINTS: Final = {
    "jobs": "a workstream has 'tasks', a list; pipelines have jobs",
    "steps": "write the commands as 'run'",
    "script": "write the commands as 'run'",
    "command": "write it as 'run'",
    "commands": "write them as 'run'",
    "cmd": "write it as 'run'",
    "id": "write 'name'",
    "depends_on": "write 'needs'",
    "dependencies": "write 'needs'",
    "after": "write 'needs'",
    "allow_failure": "write 'critical: false'",
    "continue-on-error": "write 'critical: false'",
    "required": "write 'critical: true'",
    "validate": "write 'post_execution' for a task, 'validation' for the whole",
    "rules": "write 'post_execution' for a task, 'validation' for the whole",
    "on": "a workstream is started by a person, not by an event: remove it",
    "if": "a workstream has no conditions: remove it",
    "branch": "write 'base' for the branch that it starts from; its own branch is created for it",
    "target": "write 'base' for the branch that it is merged to",
    "variables": "write them as 'env'",
    "environment": "write variables as 'env'",
    "tags": "write 'runs-on' for the labels of the worker",
    "timeout": "write 'timeout-minutes', a number",
    "timeout_seconds": "write 'timeout-minutes', a number",
    "retries": "write 'retry', the number of attempts",
    "max_retries": "write 'retry', the number of attempts",
    "container": "write 'image' for the container image",
    "strategy": "a workstream has no matrix: write each task",
}
VOCABULARY: Final = Vocabulary(
    {cls: cls.noun or NOUNS[cls].removesuffix(" of 'validate'") for cls in reachable_types(Workstream)}, KEY_HINTS
)

_WORKSTREAM_KEYS: Final = re.compile(r"""^(?:\{\s*)?["']?(?:workstream|tasks)["']?\s*:""", re.MULTILINE)
_PIPELINE_KEYS: Final = re.compile(r"^jobs\s*:", re.MULTILINE)
# What git refuses in branch names, beyond single characters, which the model checks.
_INVALID_BRANCH: Final = re.compile(r"\.\.|@\{|//|/\.|^[./-]|[./]$|\.lock(?:/|$)|^@$")


class ParsedWorkstream(msgspec.Struct, frozen=True, kw_only=True):
    """The result of parsing a workstream file. `workstream` is None if a problem is more than a warning."""

    file: str
    workstream: Workstream | None
    problems: tuple[Problem, ...] = ()


def is_workstream(content: bytes) -> bool:
    """Return whether the content of a file has keys of a workstream and not of a pipeline, even if it is invalid."""
    file_text = content[:MAX_BYTES].decode("utf-8", "replace").removeprefix("\ufeff")
    return _WORKSTREAM_KEYS.search(file_text) is not None and _PIPELINE_KEYS.search(file_text) is None


def parse_file(content: str | bytes, file: str = DEFAULT_FILE) -> ParsedWorkstream:
    """Parse the content of a workstream file. `file` is its name, for messages."""
    problems = ProblemList(file)
    try:
        file_text = decode_utf8(content, problems) if isinstance(content, bytes) else content
        if all(not line.strip() or line.lstrip().startswith("#") for line in file_text.splitlines()):
            problems.add(Position(), "an empty file", EMPTY_FILE_HINT)
            raise YamlError
        root_node = parse_yaml(file_text, problems)
    except YamlError:
        return ParsedWorkstream(file=file, workstream=None, problems=problems.in_order())
    return ParsedWorkstream(
        file=file, workstream=_read_workstream(root_node, file_text, problems), problems=problems.in_order()
    )


def parse_values(json_value: Any) -> tuple[Workstream | None, tuple[str, ...]]:
    """Return the workstream that JSON values describe, or None, and the problems as messages.

    Each message begins with the path of the value, e.g. `tasks[0].run`.
    """
    problems = ProblemList(VALUES_FILE)
    builder = _NodeBuilder(problems)
    try:
        root_node = builder.build(json_value, (), 1)
        workstream = _read_workstream(root_node, "", problems)
    except YamlError:
        workstream = None
    return workstream, tuple(builder.describe(problem) for problem in problems.in_order())


def _read_workstream(root_node: Node, file_text: str, problems: ProblemList) -> Workstream | None:
    """Convert the root node of a workstream and run all checks. Return None if there are errors."""
    parsed_node = parse_node(root_node, Workstream, (), problems, VOCABULARY)
    for expression in parsed_node.expressions:
        hint = "expressions are not evaluated in a workstream: write the text itself, or use a script"
        problems.add(expression.position, f"an expression, {quote(expression.text)}", hint)
    task_nodes = items(child(root_node, "tasks"))
    _check_names(task_nodes, problems)
    for task_node in task_nodes:
        checks.check_retry(child(task_node, "retry"), problems.add)
        validation_rules.check_rules(child(task_node, "post_execution"), file_text, problems, is_workstream=True)
    validation_rules.check_rules(child(root_node, "validation"), file_text, problems, is_workstream=True)
    _check_base(child(root_node, "base"), problems)
    return parsed_node.value if isinstance(parsed_node.value, Workstream) and not problems.has_errors else None


def _check_names(task_nodes: list[Node], problems: ProblemList) -> None:
    """Report task names that are not unique, and needs that are unknown, repeated or cyclic."""
    name_node_by_name: dict[str, Node] = {}
    need_nodes_by_name: dict[str, list[Node]] = {}
    for task_node in task_nodes:
        name_node = child(task_node, "name")
        if name_node is None or name_node.kind != TEXT:
            continue
        if name_node.value in name_node_by_name:
            first_position = name_node_by_name[name_node.value].position
            is_from_file = problems.file != VALUES_FILE
            hint = f"the task in line {first_position.line} has it" if is_from_file else "another task has it"
            problems.add(name_node.position, f"the name {quote(name_node.value)} a second time", hint)
            continue
        name_node_by_name[name_node.value] = name_node
        need_nodes_by_name[name_node.value] = [
            need_node for need_node in items(child(task_node, "needs")) if need_node.kind == TEXT
        ]
    if len(name_node_by_name) == len(task_nodes):  # A task without a valid name may be the one that is needed.
        checks.check_needs(need_nodes_by_name, problems, "task")


def parse_branch_name(branch_name: str) -> str:
    """Return a branch name that was not read from a file. Raise Refused if it is not valid."""
    problems = ProblemList(VALUES_FILE)
    parsed_node = parse_node(
        Node(TEXT, Position(), branch_name, branch_name, '"'), Branch, ("base",), problems, VOCABULARY
    )
    _check_base(Node(TEXT, Position(), branch_name, branch_name), problems)
    for problem in problems.in_order():
        raise Refused("bad_request", f"base: {str(problem).split(': ', 1)[1]}")
    return str(parsed_node.value)


def _check_base(base_node: Node | None, problems: ProblemList) -> None:
    """Report a base that git would refuse as the name of a branch."""
    if base_node is None or base_node.kind != TEXT or not base_node.value:
        return
    branch = base_node.value
    if branch.startswith("refs/"):
        problems.add(
            base_node.position,
            f"{quote(branch)} as a branch",
            "expected its name alone",
            branch.removeprefix("refs/heads/"),
        )
    elif _INVALID_BRANCH.search(branch):
        problems.add(base_node.position, f"{quote(branch)} as a branch", "expected a name that git allows, e.g. 'main'")


class _NodeBuilder:
    """Converts JSON values to nodes. Each node has its own line number, from which `describe` derives its path."""

    def __init__(self, problems: ProblemList) -> None:
        self._problems = problems
        self._paths: list[Path] = []
        self._character_count = 0

    def build(self, value: Any, path: Path, depth: int) -> Node:
        """Convert a value at a path to a node with a line number of its own, recursively.

        Report a problem and raise `YamlError` if it exceeds a limit.
        """
        path_position = self._new_line(path)
        self._character_count += len(value) if isinstance(value, str) else 0
        for actual_count, limit, unit in (
            (depth, MAX_DEPTH, "nested levels"),
            (len(self._paths), MAX_NODES, "values and keys"),
            (self._character_count, MAX_BYTES, "characters"),
        ):
            if actual_count > limit:
                self._problems.add(path_position, f"more than {limit:,} {unit}", "a workstream needs fewer")
                raise YamlError
        match value:
            case None:
                return Node(NULL, path_position)
            case bool():
                return Node(BOOL, path_position, value, str(value).lower())
            case int() if value.bit_length() > MAX_INTEGER_BITS:  # As in a file: so many digits are a text.
                return Node(TEXT, path_position, str(value), str(value), '"')
            case int() | float():
                return Node(NUMBER, path_position, value, str(value))
            case list():
                children = [self.build(item_value, (*path, index), depth + 1) for index, item_value in enumerate(value)]
                return Node(LIST, path_position, children)
            case dict():
                return Node(
                    OBJECT,
                    path_position,
                    [self._build_pair(key, item_value, path, depth) for key, item_value in value.items()],
                )
            case _:
                return Node(TEXT, path_position, str(value), str(value), '"')

    def _build_pair(self, key: Any, value: Any, path: Path, depth: int) -> tuple[Node, Node]:
        inner_path = (*path, str(key))
        key_node = Node(TEXT, self._new_line(inner_path), str(key), str(key), '"')
        return key_node, self.build(value, inner_path, depth + 1)

    def _new_line(self, path: Path) -> Position:
        """Return a position on a new line, which stands for this path."""
        self._paths.append(path)
        return Position(len(self._paths), 1)

    def describe(self, problem: Problem) -> str:
        """Return the message of a problem with the path of its value instead of file, line and column."""
        path = self._paths[problem.line - 1] if problem.line <= len(self._paths) else ()
        location = "".join(
            f"[{path_part}]" if isinstance(path_part, int) else f".{path_part}" for path_part in path
        ).removeprefix(".")
        message = str(problem).split(": ", 1)[1]
        return f"{location[:200] or VALUES_FILE}: {message}"
