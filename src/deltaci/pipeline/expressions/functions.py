"""The functions of the language: how many arguments each takes, and what it gives.

Those that depend on files or on how a job goes come from the caller: they are in the table of arguments, not here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from msgspec import Struct

from deltaci.pipeline.expressions.errors import FailedExpression, Mistake, shown
from deltaci.pipeline.expressions.json_text import NoJson, parsed, pretty
from deltaci.pipeline.expressions.limits import MAX_ARGUMENTS, MAX_TEXT, Budget, check_text
from deltaci.pipeline.expressions.tree import Call, Literal
from deltaci.pipeline.expressions.values import Value, equal, fold, is_list, is_primitive, kind, text

Function: TypeAlias = Callable[[Sequence[Value]], Value]
_Builtin: TypeAlias = Callable[[Call, Sequence[Value], Budget], Value]


class Signature(Struct, frozen=True):
    """How a function is written, and how many arguments it takes."""

    name: str
    fewest: int
    most: int

    @property
    def told(self) -> str:
        """The number of arguments, as a message says it."""
        if self.fewest == self.most:
            return f"{self.fewest} argument{'' if self.fewest == 1 else 's'}"
        return f"{self.fewest} to {self.most} arguments"


STATUS: Final = frozenset({"success", "failure", "always", "cancelled"})
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


def wrong_arguments(call: Call) -> Mistake | None:
    """What is wrong with the arguments of a function that is known, as far as the text alone shows it."""
    signature = SIGNATURES.get(call.name.lower())
    if signature is None:
        return None
    count = len(call.arguments)
    if not signature.fewest <= count <= signature.most:
        return Mistake(call.at, f"{count} in {call.name}()", signature.told)
    if signature.name == "case" and count % 2 == 0:
        return Mistake(call.at, f"{count} in {call.name}()", "pairs of a condition and a value, and one last value")
    if signature.name == "format" and isinstance(pattern := call.arguments[0], Literal):
        return _wrong_pattern(text(pattern.value), count - 1, pattern.at)
    return None


def _wrong_pattern(pattern: str, count: int, at: int) -> Mistake | None:
    for found in _PLACEHOLDER.finditer(pattern):
        if found[1] is not None and int(found[1]) >= count:
            given = f"{count} argument{'' if count == 1 else 's'} after it"
            return Mistake(at, f"{shown(found[0])} in a format with {given}", "an argument for every number, from {0}")
        if found[0] in ("{", "}"):
            return Mistake(at, f"a single {shown(found[0])} in a format", "{0} for an argument, {{ or }} for a bracket")
    return None


def builtin(call: Call, arguments: Sequence[Value], budget: Budget) -> Value:
    """The value of a function that needs nothing but its arguments."""
    return _BUILTINS[call.name.lower()](call, arguments, budget)


def is_builtin(name: str) -> bool:
    """Does the function need nothing but its arguments?"""
    return name.lower() in _BUILTINS


def find(functions: Mapping[str, Function], name: str) -> Function | None:
    """A function that the caller gave; names are the same in capitals and in small letters."""
    lowered = name.lower()
    return next((function for given, function in functions.items() if given.lower() == lowered), None)


def _texts(call: Call, arguments: Sequence[Value], budget: Budget) -> tuple[str, str] | None:
    """Two texts to compare, or nothing if one of them is an array or an object."""
    left, right = arguments
    if not is_primitive(left) or not is_primitive(right):
        return None
    written = text(left), text(right)
    budget.text(call.at, len(written[0]) + len(written[1]))
    return fold(written[0]), fold(written[1])


def _contains(call: Call, arguments: Sequence[Value], budget: Budget) -> Value:
    search, item = arguments
    if is_list(search):
        for each in search:
            budget.step(call.at)
            budget.text(call.at, sum(len(side) for side in (each, item) if isinstance(side, str)))
            if equal(each, item):
                return True
        return False
    texts = _texts(call, arguments, budget)
    return texts is not None and texts[1] in texts[0]


def _starts_with(call: Call, arguments: Sequence[Value], budget: Budget) -> Value:
    texts = _texts(call, arguments, budget)
    return texts is not None and texts[0].startswith(texts[1])


def _ends_with(call: Call, arguments: Sequence[Value], budget: Budget) -> Value:
    texts = _texts(call, arguments, budget)
    return texts is not None and texts[0].endswith(texts[1])


def _joined(call: Call, parts: Iterator[str], budget: Budget) -> str:
    """Parts as one text; refused at the first part that makes it too long."""
    kept: list[str] = []
    length = 0
    for part in parts:
        length += len(part)
        budget.step(call.at)
        check_text(call.at, length)
        budget.text(call.at, len(part))
        kept.append(part)
    return "".join(kept)


def _format(call: Call, arguments: Sequence[Value], budget: Budget) -> Value:
    pattern = text(arguments[0])
    budget.text(call.at, len(pattern))
    if wrong := _wrong_pattern(pattern, len(arguments) - 1, call.at):
        raise FailedExpression(wrong)
    given = [text(argument) for argument in arguments[1:]]

    def parts() -> Iterator[str]:
        end = 0
        for found in _PLACEHOLDER.finditer(pattern):
            yield pattern[end : found.start()]
            yield given[int(found[1])] if found[1] is not None else found[0][0]
            end = found.end()
        yield pattern[end:]

    return _joined(call, parts(), budget)


def _join(call: Call, arguments: Sequence[Value], budget: Budget) -> Value:
    items = arguments[0]
    if not is_list(items):
        return text(items) if is_primitive(items) else ""
    separator = text(arguments[1]) if len(arguments) > 1 and is_primitive(arguments[1]) else ","

    def parts() -> Iterator[str]:
        for index, item in enumerate(items):
            if index:
                yield separator
            yield text(item)

    return _joined(call, parts(), budget)


def _to_json(call: Call, arguments: Sequence[Value], budget: Budget) -> Value:
    budget.text(call.at, 0)
    try:
        printed = pretty(arguments[0])
    except NoJson as why:
        budget.text(call.at, MAX_TEXT)  # it was work, though nothing came of it
        raise FailedExpression(Mistake(call.at, str(why), "a smaller value; take only what is needed")) from None
    budget.text(call.at, len(printed))
    return printed


def _from_json(call: Call, arguments: Sequence[Value], budget: Budget) -> Value:
    if not is_primitive(arguments[0]):
        raise FailedExpression(Mistake(call.at, f"an {kind(arguments[0]).lower()}", "a text with JSON in it"))
    written = text(arguments[0])
    budget.text(call.at, len(written))
    try:
        return parsed(written)
    except NoJson as why:
        raise FailedExpression(Mistake(call.at, str(why), "JSON, such as '[1, 2]' or 'true'")) from None


_BUILTINS: Final[dict[str, _Builtin]] = {
    "contains": _contains,
    "startswith": _starts_with,
    "endswith": _ends_with,
    "format": _format,
    "join": _join,
    "tojson": _to_json,
    "fromjson": _from_json,
}
