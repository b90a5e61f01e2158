"""Static checks of expressions, made when a file is read."""

from __future__ import annotations

from collections.abc import Iterable

from deltaci.core.text import nearest
from deltaci.pipeline.expressions.errors import ExpressionProblem, quote
from deltaci.pipeline.expressions.functions import SIGNATURES, argument_problem
from deltaci.pipeline.expressions.tokenizer import KEYWORDS
from deltaci.pipeline.expressions.tree import Call, Context, Expression, walk


def check_expression(
    expression: Expression, contexts: Iterable[str], functions: Iterable[str]
) -> list[ExpressionProblem]:
    """Return the unknown contexts, unknown functions and invalid arguments of an expression, in source order.

    `contexts` and `functions` are the names that are available where the expression stands.
    """
    context_names = {context_name.lower(): context_name for context_name in contexts}
    function_names = {context_name.lower(): context_name for context_name in functions}
    problems = []
    for node, _ in walk(expression):
        match node:
            case Context(context_name) if context_name.lower() not in context_names:
                problems.append(_unknown_context(node, context_names.values(), function_names))
            case Call(context_name) if context_name.lower() not in function_names:
                problems.append(_unknown_function(node, function_names.values()))
            case Call():
                if problem := argument_problem(node):
                    problems.append(problem)
            case _:
                pass
    return problems


def _unknown_context(
    context: Context, available: Iterable[str], spelling_by_function: dict[str, str]
) -> ExpressionProblem:
    expected = ", ".join(sorted(available)) or "no context, because none is available here"
    if context.name.lower() in spelling_by_function:
        return ExpressionProblem(context.column, quote(context.name), "a context", quote(f"{context.name}()"))
    suggestion = nearest(context.name, [*available, *KEYWORDS])
    return ExpressionProblem(
        context.column, f"the context {quote(context.name)}", expected, suggestion and quote(suggestion)
    )


def _unknown_function(call: Call, available: Iterable[str]) -> ExpressionProblem:
    call_text = f"the function {quote(call.name)}"
    signature = SIGNATURES.get(call.name.lower())
    if signature is not None:
        return ExpressionProblem(call.column, call_text, f"one that is available here: {', '.join(sorted(available))}")
    suggestion = nearest(call.name, available)
    return ExpressionProblem(
        call.column,
        call_text,
        ", ".join(sorted(available)) or "no function, because none is available here",
        suggestion and quote(suggestion),
    )
