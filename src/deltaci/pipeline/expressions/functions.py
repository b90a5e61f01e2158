"""The functions of the language: all signatures, and implementations of the functions that need only arguments.

Functions that depend on files or on the status of the job (`hashFiles`, `success`, …) are passed in by the caller; only
their signatures are here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from deltaci.pipeline.expressions.errors import EvaluationError, ExpressionProblem, quote
from deltaci.pipeline.expressions.json_text import JsonError, format_json, parse_json
from deltaci.pipeline.expressions.limits import MAX_ARGUMENTS, MAX_TEXT, Budget, check_length
from deltaci.pipeline.expressions.tree import Call, Literal
from deltaci.pipeline.expressions.values import Value, fold_case, is_equal, is_list, is_primitive, to_text, type_name

Function: TypeAlias = Callable[[Sequence[Value]], Value]
_Builtin: TypeAlias = Callable[[Call, Sequence[Value], Budget], Value]


class Signature(Struct, frozen=True):
    """The name of a function in its usual spelling, and how many arguments it takes."""

    name: str
    min_arguments: int
    max_arguments: int

    @property
    def expected_count_text(self) -> str:
        """The accepted number of arguments as text for messages, e.g. `1 to 2 arguments`."""
        if self.min_arguments == self.max_arguments:
            return f"{self.min_arguments} argument{'' if self.min_arguments == 1 else 's'}"
        return f"{self.min_arguments} to {self.max_arguments} arguments"


STATUS_FUNCTIONS: Final = frozenset({"success", "failure", "always", "cancelled"})
SIGNATURES: Final = {
    signature.name.lower(): signature
    for signature in (
        Signature("contains", 2, 2),
        Signature("startsWith", 2, 2),
        Signature("endsWith", 2, 2),
        Signature("format", 1, MAX_ARGUMENTS),
        Signature("join", 1, 2),
        Signature("toJSON", 1, 1),
        Signature("fromJSON", 1, 1),
        Signature("case", 3, MAX_ARGUMENTS),
        Signature("hashFiles", 1, MAX_ARGUMENTS),
        Signature("success", 0, 0),
        Signature("failure", 0, 0),
        Signature("always", 0, 0),
        Signature("cancelled", 0, 0),
    )
}

_PLACEHOLDER: Final = re.compile(r"\{\{|\}\}|\{([0-9]{1,3})\}|[{}]")


def argument_problem(call: Call) -> ExpressionProblem | None:
    """Return the problem of a call with a wrong number of arguments or an invalid format string, else None.

    The arguments are not evaluated. Calls of unknown functions are not checked.
    """
    signature = SIGNATURES.get(call.name.lower())
    if signature is None:
        return None
    argument_count = len(call.arguments)
    if not signature.min_arguments <= argument_count <= signature.max_arguments:
        return ExpressionProblem(call.column, f"{argument_count} in {call.name}()", signature.expected_count_text)
    if signature.name == "case" and argument_count % 2 == 0:
        return ExpressionProblem(
            call.column, f"{argument_count} in {call.name}()", "pairs of a condition and a value, and one last value"
        )
    if signature.name == "format" and isinstance(format_argument := call.arguments[0], Literal):
        return _format_problem(to_text(format_argument.value), argument_count - 1, format_argument.column)
    return None


def _format_problem(format_pattern: str, argument_count: int, column: int) -> ExpressionProblem | None:
    """Return the first invalid placeholder of a pattern of format(), or None."""
    for placeholder in _PLACEHOLDER.finditer(format_pattern):
        if placeholder[1] is not None and int(placeholder[1]) >= argument_count:
            available = f"{argument_count} argument{'' if argument_count == 1 else 's'} after it"
            return ExpressionProblem(
                column,
                f"{quote(placeholder[0])} in a format with {available}",
                "an argument for every number, counting from {0}",
            )
        if placeholder[0] in ("{", "}"):
            return ExpressionProblem(
                column, f"a single {quote(placeholder[0])} in a format", "{0} for an argument, {{ or }} for a bracket"
            )
    return None


def call_builtin(call: Call, arguments: Sequence[Value], budget: Budget) -> Value:
    """Return the result of a builtin function for evaluated arguments."""
    return _BUILTINS[call.name.lower()](call, arguments, budget)


def is_builtin(function_name: str) -> bool:
    """Return whether this is a function that depends only on its arguments, and so is implemented here."""
    return function_name.lower() in _BUILTINS


def find_function(function_by_name: Mapping[str, Function], name: str) -> Function | None:
    """Return the function of this name from `function_by_name`, ignoring case, or None."""
    lowered_name = name.lower()
    return next(
        (function for function_name, function in function_by_name.items() if function_name.lower() == lowered_name),
        None,
    )


def _folded_texts(call: Call, arguments: Sequence[Value], budget: Budget) -> tuple[str, str] | None:
    """Return both arguments as strings folded for comparison, or None if one is an array or an object."""
    left, right = arguments
    if not is_primitive(left) or not is_primitive(right):
        return None
    argument_texts = to_text(left), to_text(right)
    budget.use_characters(call.column, len(argument_texts[0]) + len(argument_texts[1]))
    return fold_case(argument_texts[0]), fold_case(argument_texts[1])


def _contains(call: Call, arguments: Sequence[Value], budget: Budget) -> Value:
    container, searched_item = arguments
    if is_list(container):
        for candidate in container:
            budget.use_steps(call.column)
            budget.use_characters(
                call.column, sum(len(operand) for operand in (candidate, searched_item) if isinstance(operand, str))
            )
            if is_equal(candidate, searched_item):
                return True
        return False
    folded_texts = _folded_texts(call, arguments, budget)
    return folded_texts is not None and folded_texts[1] in folded_texts[0]


def _starts_with(call: Call, arguments: Sequence[Value], budget: Budget) -> Value:
    folded_texts = _folded_texts(call, arguments, budget)
    return folded_texts is not None and folded_texts[0].startswith(folded_texts[1])


def _ends_with(call: Call, arguments: Sequence[Value], budget: Budget) -> Value:
    folded_texts = _folded_texts(call, arguments, budget)
    return folded_texts is not None and folded_texts[0].endswith(folded_texts[1])


def _concatenate(call: Call, pieces: Iterator[str], budget: Budget) -> str:
    """Return the pieces as one string. Raise EvaluationError at the first piece that makes it too long."""
    accepted_pieces: list[str] = []
    length = 0
    for piece in pieces:
        length += len(piece)
        budget.use_steps(call.column)
        check_length(call.column, length)
        budget.use_characters(call.column, len(piece))
        accepted_pieces.append(piece)
    return "".join(accepted_pieces)


def _format(call: Call, arguments: Sequence[Value], budget: Budget) -> Value:
    format_pattern = to_text(arguments[0])
    budget.use_characters(call.column, len(format_pattern))
    if problem := _format_problem(format_pattern, len(arguments) - 1, call.column):
        raise EvaluationError(problem)
    argument_texts = [to_text(argument) for argument in arguments[1:]]

    def generate_pieces() -> Iterator[str]:
        text_start = 0
        for placeholder in _PLACEHOLDER.finditer(format_pattern):
            yield format_pattern[text_start : placeholder.start()]
            yield argument_texts[int(placeholder[1])] if placeholder[1] is not None else placeholder[0][0]
            text_start = placeholder.end()
        yield format_pattern[text_start:]

    return _concatenate(call, generate_pieces(), budget)


def _join(call: Call, arguments: Sequence[Value], budget: Budget) -> Value:
    joined_items = arguments[0]
    if not is_list(joined_items):
        return to_text(joined_items) if is_primitive(joined_items) else ""
    separator = to_text(arguments[1]) if len(arguments) > 1 and is_primitive(arguments[1]) else ","

    def generate_pieces() -> Iterator[str]:
        for index, item in enumerate(joined_items):
            if index:
                yield separator
            yield to_text(item)

    return _concatenate(call, generate_pieces(), budget)


def _to_json(call: Call, arguments: Sequence[Value], budget: Budget) -> Value:
    budget.use_characters(call.column, 0)
    try:
        json_text = format_json(arguments[0])
    except JsonError as error:
        budget.use_characters(call.column, MAX_TEXT)  # the failed attempt counts as work, too
        raise EvaluationError(
            ExpressionProblem(call.column, str(error), "a smaller value; take only what is needed")
        ) from None
    budget.use_characters(call.column, len(json_text))
    return json_text


def _from_json(call: Call, arguments: Sequence[Value], budget: Budget) -> Value:
    if not is_primitive(arguments[0]):
        raise EvaluationError(
            ExpressionProblem(call.column, f"an {type_name(arguments[0]).lower()}", "a text with JSON in it")
        )
    text = to_text(arguments[0])
    budget.use_characters(call.column, len(text))
    try:
        return parse_json(text)
    except JsonError as error:
        raise EvaluationError(ExpressionProblem(call.column, str(error), "JSON, such as '[1, 2]' or 'true'")) from None


_BUILTINS: Final[dict[str, _Builtin]] = {
    "contains": _contains,
    "startswith": _starts_with,
    "endswith": _ends_with,
    "format": _format,
    "join": _join,
    "tojson": _to_json,
    "fromjson": _from_json,
}
