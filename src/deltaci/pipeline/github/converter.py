"""Converts scalars, expressions and conditions of a workflow, and collects problems and secrets on the way."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from deltaci.pipeline.expressions import (
    AVAILABILITY,
    Expression,
    ExpressionProblem,
    ExpressionSyntaxError,
    check_expression,
    context_names,
    parse_condition,
    parse_template,
    uses_status_function,
)
from deltaci.pipeline.expressions.templates import CLOSE, OPEN
from deltaci.pipeline.expressions.tree import Context, Index, Literal, walk
from deltaci.pipeline.expressions.values import to_text
from deltaci.pipeline.parse.problems import Position, ProblemList, position_within, quote
from deltaci.pipeline.parse.yaml import BOOL, LIST, NULL, NUMBER, OBJECT, REJECTED, TEXT, Node

GITHUB_TOKEN: Final = "GITHUB_TOKEN"
# Contexts that are known when a run is planned, and the keys that are evaluated then.
PLANNING_CONTEXTS: Final = frozenset({"github", "inputs", "vars", "matrix", "strategy"})
PLANNED_KEYS: Final = frozenset(
    {
        *("jobs.name", "jobs.runs-on", "jobs.image", "jobs.services", "jobs.concurrency", "jobs.strategy"),
        *("jobs.timeout-minutes", "jobs.continue-on-error", "steps.timeout-minutes", "steps.continue-on-error"),
    }
)
# The supported keys of the context `github`; docs/github-workflows.md lists them.
GITHUB_CONTEXT_KEYS: Final = (
    *("actor", "base_ref", "event", "event_name", "head_ref", "job", "ref", "ref_name", "ref_type", "repository"),
    *("repository_owner", "run_attempt", "run_id", "run_number", "server_url", "sha", "triggering_actor", "workflow"),
    *("workflow_ref", "workspace"),
)
ALWAYS, TRUE = "always()", "true"


class Converter:
    """Converts the values of one part of a workflow file (the file itself, one job, or one composite action).

    A method that cannot convert a value records a problem and returns None. `availability_key` is the key in
    AVAILABILITY with the contexts that the value may use; `value_name` is the key of the value, for messages.
    `secrets` collects the names of the used secrets.
    """

    def __init__(self, file: str, file_text: str) -> None:
        self.problems = ProblemList(file)
        self.source = file_text
        self.secrets: dict[str, None] = {}

    def report_unsupported(self, at: Position, found: str, reason: str = "", nearest_word: str = "") -> None:
        """Record an error: `found` is not supported here, and `reason` is the cause or the expected value."""
        self.problems.add(at, found, reason, nearest_word)

    def warn(self, at: Position, found: str, reason: str = "") -> None:
        """Record a warning: the workflow runs, but `found` differs from GitHub or has no effect. `reason` says why."""
        self.problems.add(at, found, reason, is_warning=True)

    # -- texts and numbers

    def convert_scalar(self, node: Node, availability_key: str, value_name: str = "") -> Node | None:
        """Convert a text, number or boolean as GitHub reads it; null becomes an empty text.

        Report lists and objects, and return None for them.
        """
        if node.kind in (LIST, OBJECT):
            message = f"{node.describe()} as {quote(value_name)}" if value_name else node.describe()
            self.report_unsupported(node.position, message, "expected a text, a number, true or false")
            return None
        if node.style == REJECTED:
            return None
        if node.kind == NULL:
            return text_node(node.position, "")
        if node.kind == NUMBER:
            return self._convert_plain_number(node)
        if node.kind == BOOL:
            return Node(BOOL, node.position, node.value, "true" if node.value else "false")
        self.parse_expressions(node, availability_key)
        return Node(TEXT, node.position, node.value, node.value, node.style or '"')

    def convert_text(self, node: Node, availability_key: str, value_name: str = "") -> Node | None:
        """Convert a text, number or boolean to a text; None as for `convert_scalar`."""
        scalar = self.convert_scalar(node, availability_key, value_name)
        if scalar is None or scalar.kind == TEXT:
            return scalar
        return text_node(scalar.position, scalar.raw)

    def convert_line(self, node: Node, availability_key: str, value_name: str = "") -> Node | None:
        """Convert a text, number or boolean to a text on one line, with single spaces; None as for `convert_scalar`."""
        scalar = self.convert_text(node, availability_key, value_name)
        return None if scalar is None else text_node(scalar.position, " ".join(scalar.value.split()))

    def convert_boolean(self, node: Node, availability_key: str, value_name: str) -> Node | None:
        """Convert a boolean, a text `true` or `false`, or an expression. Report any other value and return None."""
        scalar = self.convert_scalar(node, availability_key, value_name)
        if scalar is None or scalar.kind == BOOL or is_expression(scalar):
            return scalar
        if scalar.kind == TEXT and scalar.value.strip().lower() in ("true", "false"):
            return Node(BOOL, scalar.position, scalar.value.strip().lower() == "true", scalar.value.strip().lower())
        self.report_unsupported(
            node.position, f"{node.describe()} as {quote(value_name)}", "expected true, false or an expression ${{ … }}"
        )
        return None

    def convert_number(self, node: Node, availability_key: str, value_name: str) -> Node | None:
        """Convert a number, a text of digits, or an expression. Report any other value and return None."""
        scalar = self.convert_scalar(node, availability_key, value_name)
        if scalar is None or scalar.kind == NUMBER or is_expression(scalar):
            return scalar
        if scalar.kind == TEXT and scalar.value.strip().isascii() and scalar.value.strip().isdigit():
            return Node(NUMBER, scalar.position, int(scalar.value[:18]), str(int(scalar.value[:18])))
        self.report_unsupported(
            node.position, f"{node.describe()} as {quote(value_name)}", "expected a number or an expression ${{ … }}"
        )
        return None

    def _convert_plain_number(self, node: Node) -> Node:
        value = node.value
        if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
            value = int(value)
        if (read_as := to_text(value)) != node.raw:
            message = f"the number {node.raw[:40]}, which is read as {read_as}, as on GitHub"
            self.warn(node.position, message, f"put it in quotes if it is a text: '{node.raw[:40]}'")
        return Node(NUMBER, node.position, value, str(value))

    # -- expressions

    def parse_expressions(self, node: Node, availability_key: str) -> tuple[Expression, ...]:
        """Return the expressions of a text. Report syntax errors, and contexts and functions that are unavailable."""
        if OPEN not in node.value:
            return ()
        try:
            expressions = parse_template(node.value).expressions
        except ExpressionSyntaxError as error:
            self._report_problems(node, [error.problem])
            return ()
        for expression in expressions:
            self._check_expression(node, expression, availability_key)
        return expressions

    def convert_condition(self, node: Node, availability_key: str) -> Node | None:
        """Convert an `if`. Return None if it is empty or cannot be converted.

        If it mixes `${{ }}` with other text, it is always true, as on GitHub; that is reported.
        """
        if node.kind in (LIST, OBJECT) or node.style == REJECTED:
            if node.style != REJECTED:
                self.report_unsupported(node.position, f"{node.describe()} as 'if'", "expected an expression")
            return None
        condition_text = to_text(node.value) if node.kind in (BOOL, NUMBER) else str(node.value or "")
        if not condition_text.strip():
            return None
        try:
            expression = parse_condition(condition_text)
        except ExpressionSyntaxError as error:
            return self._convert_text_condition(node, condition_text, availability_key, error)
        self._check_expression(node, expression, availability_key)
        return text_node(node.position, condition_text)

    def _convert_text_condition(
        self, node: Node, condition_text: str, availability_key: str, error: ExpressionSyntaxError
    ) -> Node | None:
        """Convert an `if` that mixes `${{ }}` with other text to a true condition.

        Report `error` for any other text.
        """
        try:
            template = parse_template(condition_text.strip())
        except ExpressionSyntaxError:
            template = None
        if template is None or template.single_expression is not None or not template.expressions:
            self._report_problems(node, [error.problem])
            return None
        for expression in template.expressions:
            self._check_expression(node, expression, availability_key)
        uses_status = any(uses_status_function(expression) for expression in template.expressions)
        message = f"{OPEN} {CLOSE} around a part of a condition: it is a text, which is always true, as on GitHub"
        self.warn(node.position, message, f"put {OPEN} {CLOSE} around all of it, or nowhere")
        return text_node(node.position, ALWAYS if uses_status else TRUE)

    def _check_expression(self, node: Node, expression: Expression, availability_key: str) -> None:
        """Report contexts and functions of an expression that are unavailable there, or known only when the job runs.

        Collect the secrets that it uses.
        """
        available = AVAILABILITY[availability_key]
        self._report_problems(node, check_expression(expression, available.contexts, available.functions))
        unknown_contexts = (
            sorted((context_names(expression) - PLANNING_CONTEXTS) & available.contexts)
            if availability_key in PLANNED_KEYS
            else []
        )
        if unknown_contexts:
            message = f"{quote(unknown_contexts[0])}, which is not known when a run is planned"
            self.report_unsupported(
                self._position_of(node, unknown_contexts[0]), message, "write the value itself, or use it in a command"
            )
        self._note_context_use(node, expression)

    def _note_context_use(self, node: Node, expression: Expression) -> None:
        """Collect the names of secrets that an expression uses.

        Warn about values of `github` and `secrets` that are empty here, and report `secrets` without a name or with a
        computed one as unsupported.
        """
        named_columns: set[int] = set()
        for subexpression, _ in walk(expression):
            match subexpression:
                case Index(Context(context_name, column), Literal(str(key))) if context_name.lower() == "secrets":
                    named_columns.add(column)
                    self._collect_secret(node, column, key)
                case Index(Context(context_name, column), Literal(str(key))) if context_name.lower() == "github":
                    if key.lower() == "token":
                        self.warn(
                            self._position_at(node, column),
                            "'github.token' is empty here",
                            "jobs get no token of the forge",
                        )
                    elif key.lower() not in GITHUB_CONTEXT_KEYS:
                        message = f"'github.{key[:40]}' is empty here"
                        self.warn(
                            self._position_at(node, column), message, f"available: {', '.join(GITHUB_CONTEXT_KEYS)}"
                        )
                case Context(context_name, column) if context_name.lower() == "secrets" and column not in named_columns:
                    message = "all secrets at once, or a secret with a computed name"
                    self.report_unsupported(
                        self._position_at(node, column), message, "a job gets secrets by name: write secrets.NAME"
                    )
                case _:
                    pass

    def _collect_secret(self, node: Node, column: int, secret_name: str) -> None:
        if secret_name.upper() == GITHUB_TOKEN:
            self.warn(
                self._position_at(node, column),
                f"'secrets.{GITHUB_TOKEN}' is empty here",
                "jobs get no token of the forge",
            )
        else:
            self.secrets.setdefault(secret_name.upper())

    def _report_problems(self, node: Node, problems: Iterable[ExpressionProblem]) -> None:
        for problem in problems:
            nearest_word = problem.nearest.strip("'")
            self.report_unsupported(
                self._position_at(node, problem.column), problem.found, f"expected {problem.expected}", nearest_word
            )

    def _position_at(self, node: Node, column: int) -> Position:
        text = node.value if isinstance(node.value, str) else node.raw
        return position_within(self.source, node.position, text, max(0, column - 1))

    def _position_of(self, node: Node, word: str) -> Position:
        return position_within(self.source, node.position, node.value, max(0, node.value.find(word)))


def text_node(at: Position, text: str) -> Node:
    """Return a node for a quoted text, which is never read as another type."""
    return Node(TEXT, at, text, text, '"')


def list_node(at: Position, item_nodes: list[Node]) -> Node:
    return Node(LIST, at, item_nodes)


def object_node(at: Position, value_node_by_key: dict[str, Node | None]) -> Node:
    """Return a node for an object, without the keys whose value is None."""
    return Node(
        OBJECT,
        at,
        [
            (text_node(value_node.position, key), value_node)
            for key, value_node in value_node_by_key.items()
            if value_node is not None
        ],
    )


def is_expression(node: Node) -> bool:
    """Return whether a node is a text that begins with `${{` and ends with `}}`."""
    return node.kind == TEXT and node.value.strip().startswith(OPEN) and node.value.strip().endswith(CLOSE)
