"""What is wrong with an expression, said when the file is read and not when it runs."""

from __future__ import annotations

from collections.abc import Iterable

from deltaci.core.nearest import nearest
from deltaci.pipeline.expressions.errors import Mistake, shown
from deltaci.pipeline.expressions.functions import SIGNATURES, wrong_arguments
from deltaci.pipeline.expressions.tokenizer import WORDS
from deltaci.pipeline.expressions.tree import Call, Context, Expression, walk


def check(expression: Expression, contexts: Iterable[str], functions: Iterable[str]) -> list[Mistake]:
    """Every mistake, in the order of the text: contexts and functions that there are not here, and wrong arguments."""
    known_contexts = {name.lower(): name for name in contexts}
    known_functions = {name.lower(): name for name in functions}
    mistakes = []
    for node, _ in walk(expression):
        match node:
            case Context(name) if name.lower() not in known_contexts:
                mistakes.append(_unknown_context(node, known_contexts.values(), known_functions))
            case Call(name) if name.lower() not in known_functions:
                mistakes.append(_unknown_function(node, known_functions.values()))
            case Call():
                if wrong := wrong_arguments(node):
                    mistakes.append(wrong)
            case _:
                pass
    return mistakes


def _unknown_context(context: Context, known: Iterable[str], functions: dict[str, str]) -> Mistake:
    listed = ", ".join(sorted(known)) or "no context at all here"
    if context.name.lower() in functions:
        return Mistake(context.at, shown(context.name), "a context", shown(f"{context.name}()"))
    hint = nearest(context.name, [*known, *WORDS])
    return Mistake(context.at, f"the context {shown(context.name)}", listed, hint and shown(hint))


def _unknown_function(call: Call, known: Iterable[str]) -> Mistake:
    found = f"the function {shown(call.name)}"
    signature = SIGNATURES.get(call.name.lower())
    if signature is not None:
        return Mistake(call.at, found, f"one that can be used here: {', '.join(sorted(known))}")
    hint = nearest(call.name, known)
    return Mistake(call.at, found, ", ".join(sorted(known)) or "no function at all here", hint and shown(hint))
