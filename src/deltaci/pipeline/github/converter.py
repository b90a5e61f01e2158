"""What is collected while one part of a workflow is read: what is outside, notes, and the secrets that it mentions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from deltaci.pipeline.expressions import (
    AVAILABILITY,
    STATUS_FUNCTIONS,
    Expression,
    ExpressionProblem,
    ExpressionSyntaxError,
    check_expression,
    context_names,
    function_names,
    parse_condition,
    parse_template,
)
from deltaci.pipeline.expressions.templates import CLOSE, OPEN
from deltaci.pipeline.expressions.tree import Context, Index, Literal, walk
from deltaci.pipeline.expressions.values import to_text
from deltaci.pipeline.parse.problems import Place, Problems, inside, shown
from deltaci.pipeline.parse.yaml import BOOL, LIST, NULL, NUMBER, OBJECT, REFUSED, TEXT, Node

TOKEN: Final = "GITHUB_TOKEN"
# Decided when a run is planned: then there are no outputs, and nothing that only a runner knows.
KNOWN: Final = frozenset({"github", "inputs", "vars", "matrix", "strategy"})
PLANNED: Final = frozenset(
    {
        *("jobs.name", "jobs.runs-on", "jobs.image", "jobs.services", "jobs.concurrency", "jobs.strategy"),
        *("jobs.timeout-minutes", "jobs.continue-on-error", "steps.timeout-minutes", "steps.continue-on-error"),
    }
)
# Of the context `github`, what there is here. `docs/github-workflows.md` has the list.
OF_GITHUB: Final = (
    *("actor", "base_ref", "event", "event_name", "head_ref", "job", "ref", "ref_name", "ref_type", "repository"),
    *("repository_owner", "run_attempt", "run_id", "run_number", "server_url", "sha", "triggering_actor", "workflow"),
    *("workflow_ref", "workspace"),
)
ALWAYS, TRUE = "always()", "true"


class Desk:
    """One part of a workflow while it is read. What a method cannot take, it says, and returns None."""

    def __init__(self, file: str, source: str) -> None:
        self.problems = Problems(file)
        self.source = source
        self.secrets: dict[str, None] = {}

    def outside(self, at: Place, found: str, why: str = "", near: str = "") -> None:
        """Say why this part cannot run here."""
        self.problems.add(at, found, why, near)

    def note(self, at: Place, found: str, why: str = "") -> None:
        """Say what is different here, though it can run."""
        self.problems.add(at, found, why, is_warning=True)

    # -- texts and numbers

    def scalar(self, node: Node, place: str, what: str = "") -> Node | None:
        """A text, number or truth, as GitHub reads it; nothing at all is an empty text."""
        if node.kind in (LIST, OBJECT):
            told = f"{node.described()} as {shown(what)}" if what else node.described()
            self.outside(node.at, told, "expected a text, a number, true or false")
            return None
        if node.style == REFUSED:
            return None
        if node.kind == NULL:
            return made(node.at, "")
        if node.kind == NUMBER:
            return self._number(node)
        if node.kind == BOOL:
            return Node(BOOL, node.at, node.value, "true" if node.value else "false")
        self.expressions(node, place)
        return Node(TEXT, node.at, node.value, node.value, node.style or '"')

    def text(self, node: Node, place: str, what: str = "") -> Node | None:
        """The same as a text, whatever it was."""
        found = self.scalar(node, place, what)
        if found is None or found.kind == TEXT:
            return found
        return made(found.at, found.written)

    def line(self, node: Node, place: str, what: str = "") -> Node | None:
        """The same on one line: for names."""
        found = self.text(node, place, what)
        return None if found is None else made(found.at, " ".join(found.value.split()))

    def truth(self, node: Node, place: str, what: str) -> Node | None:
        """True, false or an expression."""
        found = self.scalar(node, place, what)
        if found is None or found.kind == BOOL or is_expression(found):
            return found
        if found.kind == TEXT and found.value.strip().lower() in ("true", "false"):
            return Node(BOOL, found.at, found.value.strip().lower() == "true", found.value.strip().lower())
        self.outside(node.at, f"{node.described()} as {shown(what)}", "expected true, false or an expression ${{ … }}")
        return None

    def number(self, node: Node, place: str, what: str) -> Node | None:
        """A number or an expression."""
        found = self.scalar(node, place, what)
        if found is None or found.kind == NUMBER or is_expression(found):
            return found
        if found.kind == TEXT and found.value.strip().isascii() and found.value.strip().isdigit():
            return Node(NUMBER, found.at, int(found.value[:18]), str(int(found.value[:18])))
        self.outside(node.at, f"{node.described()} as {shown(what)}", "expected a number or an expression ${{ … }}")
        return None

    def _number(self, node: Node) -> Node:
        value = node.value
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        if (read_as := to_text(value)) != node.written:
            told = f"the number {node.written[:40]}, which is {read_as} once it is read, on GitHub as well"
            self.note(node.at, told, f"put it in quotes if it is a text: '{node.written[:40]}'")
        return Node(NUMBER, node.at, value, str(value))

    # -- expressions

    def expressions(self, node: Node, place: str) -> tuple[Expression, ...]:
        """The expressions of a text, checked for their place."""
        if OPEN not in node.value:
            return ()
        try:
            found = parse_template(node.value).expressions
        except ExpressionSyntaxError as refused:
            self._mistaken(node, [refused.problem])
            return ()
        for expression in found:
            self._checked(node, expression, place)
        return found

    def condition(self, node: Node, place: str) -> Node | None:
        """What an `if` says. A text around an expression is as true here as it is on GitHub."""
        if node.kind in (LIST, OBJECT) or node.style == REFUSED:
            if node.style != REFUSED:
                self.outside(node.at, f"{node.described()} as 'if'", "expected an expression")
            return None
        written = to_text(node.value) if node.kind in (BOOL, NUMBER) else str(node.value or "")
        if not written.strip():
            return None
        try:
            expression = parse_condition(written)
        except ExpressionSyntaxError as refused:
            return self._text_condition(node, written, place, refused)
        self._checked(node, expression, place)
        return made(node.at, written)

    def _text_condition(self, node: Node, written: str, place: str, refused: ExpressionSyntaxError) -> Node | None:
        try:
            template = parse_template(written.strip())
        except ExpressionSyntaxError:
            template = None
        if template is None or template.single_expression is not None or not template.expressions:
            self._mistaken(node, [refused.problem])
            return None
        for expression in template.expressions:
            self._checked(node, expression, place)
        has_status = any(function_names(expression) & STATUS_FUNCTIONS for expression in template.expressions)
        told = f"{OPEN} {CLOSE} around a part of a condition: it is a text then, and so it is always true, as on GitHub"
        self.note(node.at, told, f"put {OPEN} {CLOSE} around all of it, or nowhere")
        return made(node.at, ALWAYS if has_status else TRUE)

    def _checked(self, node: Node, expression: Expression, place: str) -> None:
        known = AVAILABILITY[place]
        self._mistaken(node, check_expression(expression, known.contexts, known.functions))
        late = sorted((context_names(expression) - KNOWN) & known.contexts) if place in PLANNED else []
        if late:
            told = f"{shown(late[0])}, which is not known when a run is planned"
            self.outside(self._place(node, late[0]), told, "write the value itself, or use it in a command")
        self._mentioned(node, expression)

    def _mentioned(self, node: Node, expression: Expression) -> None:
        """Secrets are given by name."""
        named: set[int] = set()
        for part, _ in walk(expression):
            match part:
                case Index(Context(context, at), Literal(str(name))) if context.lower() == "secrets":
                    named.add(at)
                    self._secret(node, at, name)
                case Index(Context(context, at), Literal(str(name))) if context.lower() == "github":
                    if name.lower() == "token":
                        self.note(self._at(node, at), "'github.token' is empty here", "there is no token of the forge")
                    elif name.lower() not in OF_GITHUB:
                        told = f"'github.{name[:40]}' is empty here"
                        self.note(self._at(node, at), told, f"there are: {', '.join(OF_GITHUB)}")
                case Context(context, at) if context.lower() == "secrets" and at not in named:
                    told = "all secrets at once, or one whose name is worked out"
                    self.outside(self._at(node, at), told, "a job gets secrets by name: write secrets.NAME")
                case _:
                    pass

    def _secret(self, node: Node, at: int, name: str) -> None:
        if name.upper() == TOKEN:
            self.note(self._at(node, at), f"'secrets.{TOKEN}' is empty here", "there is no token of the forge")
        else:
            self.secrets.setdefault(name.upper())

    def _mistaken(self, node: Node, mistakes: Iterable[ExpressionProblem]) -> None:
        for mistake in mistakes:
            near = mistake.nearest.strip("'")
            self.outside(self._at(node, mistake.column), mistake.found, f"expected {mistake.expected}", near)

    def _at(self, node: Node, column: int) -> Place:
        text = node.value if isinstance(node.value, str) else node.written
        return inside(self.source, node.at, text, max(0, column - 1))

    def _place(self, node: Node, word: str) -> Place:
        return inside(self.source, node.at, node.value, max(0, node.value.find(word)))


def made(at: Place, text: str) -> Node:
    """A text that nobody takes for anything else."""
    return Node(TEXT, at, text, text, '"')


def listed(at: Place, items: list[Node]) -> Node:
    """A list."""
    return Node(LIST, at, items)


def keyed(at: Place, pairs: dict[str, Node | None]) -> Node:
    """An object of what there is."""
    return Node(OBJECT, at, [(made(value.at, name), value) for name, value in pairs.items() if value is not None])


def is_expression(node: Node) -> bool:
    """Whether a node is one expression and nothing else."""
    return node.kind == TEXT and node.value.strip().startswith(OPEN) and node.value.strip().endswith(CLOSE)


def items(node: Node) -> list[Node]:
    """The items of a list; something single is a list of one."""
    if node.kind == NULL:
        return []
    return node.value if node.kind == LIST else [node]
