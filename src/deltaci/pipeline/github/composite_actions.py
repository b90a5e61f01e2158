"""Actions of the same repository that are made of steps: their steps take the place of the one that uses them.

What an action calls `inputs.x` becomes what was given for it, its steps get ids of their own, and its outputs are set
by a last step under the id of the one that used it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final, NamedTuple

from deltaci.pipeline.expressions import (
    STATUS_FUNCTIONS,
    Expression,
    ExpressionSyntaxError,
    function_names,
    parse,
    parse_template,
)
from deltaci.pipeline.expressions.printer import format_expression
from deltaci.pipeline.expressions.references import replace_nodes
from deltaci.pipeline.expressions.templates import CLOSE, OPEN
from deltaci.pipeline.expressions.tree import And, Call, Compare, Context, Index, Literal, Or
from deltaci.pipeline.expressions.values import to_text
from deltaci.pipeline.github.converter import Desk, keyed, listed, made
from deltaci.pipeline.github.runs_on import as_expression
from deltaci.pipeline.parse.problems import Place, Problem, Problems, shown
from deltaci.pipeline.parse.yaml import LIST, NULL, OBJECT, TEXT, Node, NotYaml, read_yaml

MAX_DEPTH: Final = 10  # Of actions that use actions, as on GitHub.
MAX_STEPS: Final = 300  # Of one step that uses an action, with all that it uses.
MAX_COST: Final = 5_000  # Of all uses in a workflow: their steps, and one for every 500 characters.
NAMES: Final = ("action.yml", "action.yaml")
PATH: Final = "GITHUB_ACTION_PATH"
END: Final = "_deltaci_end_of_output_"
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
MAY_FAIL, LIMIT = "continue-on-error", "timeout-minutes"


class Actions:
    """The actions of a repository, each read once, and how much of them one workflow may still use."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files
        self._left = MAX_COST
        self._read: dict[str, tuple[Node | None, tuple[Problem, ...]]] = {}

    def root(self, path: str, desk: Desk) -> Node | None:
        """What a file says; what is wrong with it is said every time."""
        if path not in self._read:
            problems = Problems(path)
            try:
                self._read[path] = read_yaml(self.files[path], problems), problems.in_order()
            except NotYaml:
                self._read[path] = None, problems.in_order()
        root, found = self._read[path]
        for each in found:
            desk.outside(Place(each.line, each.column), each.found, each.expected, each.nearest)
        return root

    def can_use(self, steps: int, characters: int) -> bool:
        """Whether one more use is not too much: actions that use actions could be endless work otherwise."""
        self._left -= steps + characters // 500
        return self._left >= 0


class Uses(NamedTuple):
    """A step that uses an action of the repository."""

    node: Node  # the step
    uses: Node
    number: int  # of the step in its job: ids follow from it
    actions: Actions
    depth: int = 0
    moves: bool = False  # whether the job's steps run in a folder of their own, which is not the action's

    def key(self, name: str) -> Node | None:
        """The value of a key of the step."""
        found = next((value for key, value in self.node.value if key.written == name), None)
        return None if found is None or found.kind == NULL else found


def is_local(uses: Node) -> bool:
    """Whether an action is in the same repository."""
    return uses.kind == TEXT and uses.value.strip().startswith("./")


def inlined(asked: Uses, desk: Desk, step: Callable[[Node, Desk, Uses], list[Node]]) -> list[Node]:
    """The steps of an action as steps of the job; none, if it was said why not."""
    folder = asked.uses.value.strip().removeprefix("./").strip("/")
    files = asked.actions.files
    path = next((path for name in NAMES if (path := f"{folder}/{name}".lstrip("/")) in files), "")
    what = f"the action {shown(asked.uses.value)}"
    if not path:
        desk.outside(asked.uses.at, what, f"there is no {folder}/{NAMES[0]} to read it from")
        return []
    if asked.depth >= MAX_DEPTH:
        desk.outside(asked.uses.at, what, f"expected at most {MAX_DEPTH} actions that use each other")
        return []
    own = Desk(path, files[path])
    steps = _Action(asked, folder, own).steps(step)
    for problem in own.problems.in_order():
        told = f"{what}: {problem.file}:{problem.line}:{problem.column}: {problem.found}"
        if problem.is_warning:
            desk.note(asked.uses.at, told, problem.expected)
        else:
            desk.outside(asked.uses.at, told, problem.expected, problem.nearest)
    for name in own.secrets:
        desk.secrets.setdefault(name)
    return [moved(each, asked.uses.at) for each in steps]


def moved(node: Node, at: Place) -> Node:
    """A node, and all that is in it, at another place."""
    if node.kind == LIST:
        return listed(at, [moved(each, at) for each in node.value])
    if node.kind == OBJECT:
        return Node(OBJECT, at, [(moved(key, at), moved(each, at)) for key, each in node.value])
    return Node(node.kind, at, node.value, node.written, node.style)


class _Action:
    """One action while its steps become those of a job."""

    def __init__(self, asked: Uses, folder: str, desk: Desk) -> None:
        self.asked, self.folder, self.desk = asked, folder, desk
        own = asked.key("id")
        self.prefix = f"{own.written}__" if own is not None else f"_step{asked.number}__"
        self.given: dict[str, Expression] = {}
        self.ids: dict[str, str] = {}

    def steps(self, step: Callable[[Node, Desk, Uses], list[Node]]) -> list[Node]:
        """All steps, the one that sets outputs included."""
        root = self.asked.actions.root(self.desk.problems.file, self.desk)
        if root is None:
            return []
        parts = {key.written: value for key, value in root.value} if root.kind == OBJECT else {}
        runs = {key.written: value for key, value in _pairs(parts.get("runs"))}
        using = runs["using"].written if "using" in runs else ""
        if using.lower() != "composite":
            at = runs["using"].at if "using" in runs else root.at
            found = f"an action that is made with {shown(using)}" if using else "an action without 'runs.using'"
            self.desk.outside(at, found, "only actions that are made of steps can be read: 'using: composite'")
            return []
        inner = runs.get("steps")
        if inner is None or inner.kind != LIST or not inner.value or len(inner.value) > MAX_STEPS:
            self.desk.outside(runs["using"].at, "an action without steps", f"expected 1 to {MAX_STEPS}")
            return []
        if not self.asked.actions.can_use(len(inner.value), len(self.desk.source)):
            self.desk.outside(inner.at, "more uses of actions than one workflow may have", "use fewer of them")
            return []
        self._take_inputs(parts.get("inputs"))
        self._name(inner.value)
        outputs = self._outputs(parts.get("outputs"))
        asked = [self._asked(each) for each in inner.value]
        own = self.asked.key("id")
        if not self._can_be_split(inner.value, asked):
            return []
        told: list[Node] = []
        for position, each in enumerate(inner.value):
            changed = self._changed(each, position, asked)
            told += step(changed, self.desk, self.asked._replace(node=changed, depth=self.asked.depth + 1))
        if own is not None:
            told += step(self._last(own, outputs, asked), self.desk, self.asked)
        if len(told) > MAX_STEPS:
            self.desk.outside(inner.at, f"{len(told)} steps in all", f"expected at most {MAX_STEPS}")
            return []
        return told

    # -- names

    def _take_inputs(self, node: Node | None) -> None:
        with_ = {key.written.lower(): value for key, value in _pairs(self.asked.key("with"))}
        for name, rules in _pairs(node):
            default = next((value for key, value in _pairs(rules) if key.written == "default"), None)
            given = with_.pop(name.written.lower(), None)
            self.given[name.written.lower()] = _as_text(given or default)
        for unknown in with_:
            self.desk.note(Place(), f"{shown(unknown)}, which this action does not ask for", "it has no effect")

    def _name(self, steps: list[Node]) -> None:
        for position, each in enumerate(steps):
            own = next((value for key, value in _pairs(each) if key.written == "id"), None)
            name = own.written if own is not None else f"_{position}"
            self.ids[name.lower()] = f"{self.prefix}{name}"

    def _change(self, part: Expression) -> Expression | None:
        match part:
            case Index(Context(context), Literal(str(name))):
                lowered = context.lower()
                if lowered == "inputs":
                    return self.given.get(name.lower(), Literal(""))
                if lowered == "steps" and name.lower() in self.ids:
                    return Index(Context("steps"), Literal(self.ids[name.lower()]))
                if lowered == "github" and name.lower() == "action_path":
                    return self._path()
            case Context(context) if context.lower() == "inputs":
                self.desk.outside(Place(), "all inputs of an action at once", "name them: inputs.NAME")
            case _:
                pass
        return None

    def _path(self) -> Expression:
        return Call("format", (Literal(f"{{0}}/{self.folder}"), Index(Context("github"), Literal("workspace"))))

    # -- steps

    def _asked(self, node: Node) -> Expression | None:
        written = next((value for key, value in _pairs(node) if key.written == "if"), None)
        return None if written is None or not written.written.strip() else self._condition(written, self._change)

    def _condition(self, written: Node, change: Callable[[Expression], Expression | None]) -> Expression | None:
        plain = written.written.strip()
        if plain.startswith(OPEN) and plain.endswith(CLOSE) and plain.count(OPEN) == 1:
            plain = plain[len(OPEN) : -len(CLOSE)]
        try:
            return replace_nodes(parse(plain), change)
        except ExpressionSyntaxError as refused:
            self.desk.outside(written.at, refused.problem.found, f"expected {refused.problem.expected}")
            return None

    @cached_property
    def _outer(self) -> Expression | None:
        written = self.asked.key("if")
        return None if written is None or not written.written.strip() else self._condition(written, lambda _: None)

    def _may_fail(self) -> bool:
        """Whether the job goes on when the action failed."""
        value = self.asked.key(MAY_FAIL)
        return value is not None and value.written != "false"

    def _can_be_split(self, steps: list[Node], asked: list[Expression | None]) -> bool:
        """Whether its steps one by one do what it does as a whole."""
        outer, at = self._outer, steps[0].at
        if self.asked.key(LIMIT) is not None and len(steps) > 1:
            self.desk.outside(at, f"{shown(LIMIT)} of an action with several steps", "give it to a command")
            return False
        has_status = [each is not None and _asks_status(each) for each in asked]
        if (self._may_fail() or (outer is not None and _asks_status(outer))) and any(has_status):
            told = "steps that ask how things went, in an action that may fail, or whose own 'if' asks for it as well"
            self.desk.outside(at, told, "ask in one of both")
            return False
        if any(has_status[1:]) and asked[0] is not None:
            told = "a step that asks how things went, in an action whose first step has an 'if'"
            self.desk.outside(at, told, "ask in the workflow")
            return False
        return True

    def _when(self, own: Expression | None, position: int) -> Node | None:
        """When a step of the action runs: if the action does, and nothing in it failed, unless it says otherwise."""
        outer = self._outer
        first = next(iter(self.ids.values()))
        parts: list[Expression] = []
        if own is not None and _asks_status(own):
            parts.append(Call("success") if position == 0 else _result(first, "!=", "skipped"))
        elif self._may_fail() or (outer is not None and _asks_status(outer)):
            kind = "outcome" if self._may_fail() else "conclusion"
            parts += [_result(name, "!=", "failure", kind) for name in list(self.ids.values())[:position]]
        if outer is not None and not (own is not None and _asks_status(own) and position):
            parts.insert(0, outer)
        if own is not None:
            parts.append(own)
        if not parts:
            return None
        return made(Place(), format_expression(parts[0] if len(parts) == 1 else And(tuple(parts))))

    def _changed(self, node: Node, position: int, asked: list[Expression | None]) -> Node:
        """A step with its expressions in the words of the job, as GitHub would write it."""
        if node.kind != OBJECT:
            return node
        told: list[tuple[Node, Node]] = []
        for key, value in node.value:
            if key.written not in ("if", "id", "env"):
                told.append((key, self._rewritten(value)))
        told.append((made(node.at, "id"), made(node.at, list(self.ids.values())[position])))
        if (when := self._when(asked[position], position)) is not None:
            told.append((made(node.at, "if"), made(node.at, when.value)))
        for name in (MAY_FAIL, LIMIT):
            if (outer := self.asked.key(name)) is not None and all(key.written != name for key, _ in told):
                told.append((made(node.at, name), outer))
        if env := self._env(node):
            told.append((made(node.at, "env"), Node(OBJECT, node.at, env)))
        is_command = any(key.written == "run" for key, _ in told)
        if is_command and self.asked.moves and all(key.written != "working-directory" for key, _ in told):
            told.append((made(node.at, "working-directory"), made(node.at, ".")))
        return Node(OBJECT, node.at, told)

    def _env(self, node: Node) -> list[tuple[Node, Node]]:
        own = next((value for key, value in _pairs(node) if key.written == "env"), None)
        merged = {key.written: (key, value) for key, value in _pairs(self.asked.key("env"))}
        merged |= {key.written: (key, self._rewritten(value)) for key, value in _pairs(own)}
        command = next((value for key, value in _pairs(node) if key.written == "run"), None)
        if command is not None and PATH in command.written:
            merged[PATH] = (made(node.at, PATH), made(node.at, f"{OPEN} {format_expression(self._path())} {CLOSE}"))
        return [*merged.values()]

    def _rewritten(self, node: Node) -> Node:
        if node.kind == LIST:
            return listed(node.at, [self._rewritten(each) for each in node.value])
        if node.kind == OBJECT:
            return Node(OBJECT, node.at, [(key, self._rewritten(each)) for key, each in node.value])
        if node.kind != TEXT or OPEN not in node.value:
            return node
        changed = replace_in_template(node.value, self._change)
        return Node(TEXT, node.at, changed, changed, node.style or '"')

    def _last(self, own: Node, outputs: dict[str, str], asked: list[Expression | None]) -> Node:
        """A step that stands for the action under its id: it sets its outputs, and fails if one of its steps did."""
        kind = "outcome" if self._may_fail() else "conclusion"
        results = [_result(name, "==", "failure", kind) for name in self.ids.values()]
        first = next(iter(self.ids.values()))
        entered = And((_result(first, "!=", "skipped"), Call("always")))
        when = made(own.at, format_expression(entered)) if asked[0] is None else self._when(None, len(asked))
        failed = format_expression(results[0] if len(results) == 1 else Or(tuple(results)))
        env = {"FAILED": made(own.at, f"{OPEN} {failed} {CLOSE}")}
        lines = []
        for number, (name, value) in enumerate(outputs.items()):
            env[f"OUTPUT_{number}"] = made(own.at, value)
            lines.append(
                f"printf '%s<<%s\\n%s\\n%s\\n' '{name}' {END} \"$OUTPUT_{number}\" {END} >> \"$GITHUB_OUTPUT\""
            )
        parts: dict[str, Node | None] = {
            "id": made(own.at, own.written),
            "name": made(own.at, f"End of {own.written}"),
            "if": when,
            "shell": made(own.at, "sh"),
            "env": keyed(own.at, dict(env)),
            "run": made(own.at, "\n".join([*lines, 'test "$FAILED" != true']) + "\n"),
            MAY_FAIL: self.asked.key(MAY_FAIL),
        }
        return keyed(own.at, parts)

    def _outputs(self, node: Node | None) -> dict[str, str]:
        found = {}
        for name, rules in _pairs(node):
            value = next((value for key, value in _pairs(rules) if key.written == "value"), None)
            if not _NAME.fullmatch(name.written):
                self.desk.outside(name.at, f"the output {shown(name.written)}", "expected letters, digits, '_' and '-'")
            elif value is not None and value.kind == TEXT:
                found[name.written] = replace_in_template(value.value, self._change)
        return found


def _result(step: str, operator: str, word: str, kind: str = "conclusion") -> Expression:
    return Compare(operator, Index(Index(Context("steps"), Literal(step)), Literal(kind)), Literal(word))


def _asks_status(expression: Expression) -> bool:
    return bool(function_names(expression) & STATUS_FUNCTIONS)


def _as_text(node: Node | None) -> Expression:
    """What was given for an input. On GitHub it is always a text."""
    if node is None or node.kind in (NULL, LIST, OBJECT):
        return Literal("")
    if node.kind != TEXT or OPEN not in node.value:
        return Literal(to_text(node.value))
    try:
        template = parse_template(node.value)
        if template.single_expression is not None:
            return Call("format", (Literal("{0}"), template.single_expression))
        return parse(as_expression(template))
    except ExpressionSyntaxError:
        return Literal("")  # What is wrong with it is said of the step.


def _pairs(node: Node | None) -> list[tuple[Node, Node]]:
    return node.value if node is not None and node.kind == OBJECT else []


def replace_in_template(template: str, replacement: Callable[[Expression], Expression | None]) -> str:
    """Replace nodes in all expressions of a template. A template that cannot be parsed is returned unchanged."""
    if OPEN not in template:
        return template
    try:
        parts = parse_template(template).parts
    except ExpressionSyntaxError:
        return template
    return "".join(part if isinstance(part, str) else _as_template(replace_nodes(part, replacement)) for part in parts)


def _as_template(expression: Expression) -> str:
    if isinstance(expression, Literal) and isinstance(expression.value, str) and OPEN not in expression.value:
        return expression.value
    return f"{OPEN} {format_expression(expression)} {CLOSE}"
