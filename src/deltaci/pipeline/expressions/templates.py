"""Texts with `${{ … }}` in them, and conditions, which need none."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, TypeAlias

from msgspec import Struct

from deltaci.pipeline.expressions.check import check
from deltaci.pipeline.expressions.errors import BadExpression, FailedExpression, Mistake, shown
from deltaci.pipeline.expressions.evaluator import Contexts, Evaluator, Functions, evaluate
from deltaci.pipeline.expressions.functions import STATUS
from deltaci.pipeline.expressions.limits import MAX_EXPRESSIONS, MAX_TEMPLATE, Budget, check_text
from deltaci.pipeline.expressions.parser import check_depth, parse
from deltaci.pipeline.expressions.reducer import Known, Reducer, Remains, reduce_with
from deltaci.pipeline.expressions.tree import And, Call, Expression, Literal, functions_of
from deltaci.pipeline.expressions.values import Value, text, truthy

OPEN: Final = "${{"
CLOSE: Final = "}}"
MAX_QUOTED: Final = 10_000  # characters of plain text in one expression: half of what fits, if all of it is quotes
_QUOTE_OR_CLOSE: Final = re.compile(r"'|\}\}")

Part: TypeAlias = str | Expression


class Template(Struct, frozen=True):
    """A text that was read: plain parts and expressions, in their order. Columns are those of the whole text."""

    parts: tuple[Part, ...]

    @property
    def single(self) -> Expression | None:
        """The expression that the text is, with nothing around it; its value keeps its type."""
        return self.parts[0] if len(self.parts) == 1 and not isinstance(self.parts[0], str) else None

    @property
    def expressions(self) -> tuple[Expression, ...]:
        """All expressions of the text."""
        return tuple(part for part in self.parts if not isinstance(part, str))


class RemainingText(Struct, frozen=True):
    """A text that waits for something that is not known yet, with `${{ … }}` only where it does."""

    text: str


def read(template: str) -> Template:
    """The parts of a text. Refuses an expression that does not end or is none."""
    if len(template) > MAX_TEMPLATE:
        raise BadExpression(Mistake(1, f"a text of {len(template)} characters", f"at most {MAX_TEMPLATE}"))
    parts: list[Part] = []
    end = 0
    for start, closing in _holes(template):
        if start > end:
            parts.append(template[end:start])
        inner = start + len(OPEN)
        if not template[inner:closing].strip():
            raise BadExpression(Mistake(inner + 1, "nothing", f"an expression between {OPEN} and {CLOSE}"))
        parts.append(parse(template[inner:closing], inner))
        end = closing + len(CLOSE)
    if end < len(template):
        parts.append(template[end:])
    return Template(tuple(parts))


def _holes(template: str) -> Iterator[tuple[int, int]]:
    """Where each expression opens and closes. Brackets in a quoted text close nothing."""
    start = template.find(OPEN)
    for _ in range(MAX_EXPRESSIONS):
        if start < 0:
            return
        closing, in_text = -1, False
        for found in _QUOTE_OR_CLOSE.finditer(template, start + len(OPEN)):
            if found[0] == "'":
                in_text = not in_text
            elif not in_text:
                closing = found.start()
                break
        if closing < 0:
            expected = "a single quote and then }}" if in_text else "}} at its end"
            raise BadExpression(Mistake(start + 1, shown(template[start:]), expected))
        yield start, closing
        start = template.find(OPEN, closing + len(CLOSE))
    if start >= 0:
        raise BadExpression(Mistake(start + 1, "one more expression", f"at most {MAX_EXPRESSIONS} in one text"))


def check_template(template: Template, contexts: Iterable[str], functions: Iterable[str]) -> list[Mistake]:
    """Every mistake in the expressions of a text."""
    known_contexts, known_functions = tuple(contexts), tuple(functions)
    return [
        mistake for expression in template.expressions for mistake in check(expression, known_contexts, known_functions)
    ]


def interpolate(
    template: str | Template, contexts: Contexts, functions: Functions | None = None, whole: Budget | None = None
) -> Value:
    """A text with the values of its expressions; the value itself, if the text is one expression and nothing else."""
    read_template = read(template) if isinstance(template, str) else template
    if read_template.single is not None:
        return evaluate(read_template.single, contexts, functions, whole)
    evaluator = Evaluator(contexts, functions or {}, whole)  # one for all: the limits are those of the whole text
    return _join(
        (part, 1) if isinstance(part, str) else (text(evaluator.value(part)), part.at) for part in read_template.parts
    )


def _join(parts: Iterable[tuple[str, int]]) -> str:
    kept: list[str] = []
    length = 0
    for part, at in parts:
        length += len(part)
        check_text(at, length)
        kept.append(part)
    return "".join(kept)


def reduce_text(
    template: str | Template, known: Contexts, functions: Functions | None = None, whole: Budget | None = None
) -> Known | RemainingText:
    """The value of a text as far as these contexts tell it, or the text that remains, to be read again later."""
    read_template = read(template) if isinstance(template, str) else template
    reducer = Reducer(known, functions or {}, whole)
    if read_template.single is not None:
        reduced = reduce_with(reducer, read_template.single)
        return reduced if isinstance(reduced, Known) else RemainingText(_hole(reduced))
    parts = [part if isinstance(part, str) else reduce_with(reducer, part) for part in read_template.parts]
    written = [text(part.value) if isinstance(part, Known) else part for part in parts]
    remaining = [part for part in written if isinstance(part, Remains)]
    plain = [(part, 1) for part in written if isinstance(part, str) and part]
    if not remaining:
        return Known(_join(plain))
    _join(plain)
    if not plain and len(remaining) == 1:
        # Alone it would keep its type, and it was part of a text before.
        return RemainingText(_hole(remaining[0]) + _hole(Remains(Literal(""))))
    merged = "".join(_merged(written))
    if len(merged) > MAX_TEMPLATE:
        raise FailedExpression(Mistake(1, f"a text of {len(merged)} characters", f"at most {MAX_TEMPLATE}"))
    return RemainingText(merged)


def _merged(parts: list[str | Remains]) -> Iterator[str]:
    """The parts as one text. Plain text that looks like an expression is quoted, or it would be one when read again."""
    plain = ""
    for part in [*parts, None]:
        if isinstance(part, str):
            plain += part
            continue
        yield plain if OPEN not in plain else _quoted(plain)
        plain = ""
        if part is not None:
            yield _hole(part)


def _quoted(plain: str) -> str:
    pieces = [plain[start : start + MAX_QUOTED] for start in range(0, len(plain), MAX_QUOTED)]
    return "".join(_hole(Remains(Literal(piece))) for piece in pieces)


def _hole(remains: Remains) -> str:
    return f"{OPEN} {remains.text} {CLOSE}"


def mentions_status(expression: Expression) -> bool:
    """Does it ask how things went? Then it also decides what happens after a failure."""
    return bool(functions_of(expression) & STATUS)


def condition(written: str) -> Expression:
    """What an `if:` says, with or without `${{ }}` around it. Without a status function it also asks for success().

    This is for what people wrote. What remains of a condition is read with `parse`: it has its success() already.
    """
    found = asked(written)
    if found is None:
        return Call("success")
    if mentions_status(found):
        return found
    both = And((Call("success"), found))
    check_depth(both)
    return both


def asked(written: str) -> Expression | None:
    """Just what an `if:` says, without the success() that goes without saying; nothing if it is empty."""
    stripped = written.strip()
    if not stripped:
        return None
    before = len(written) - len(written.lstrip())
    if OPEN not in stripped:
        return parse(stripped, before)
    try:
        template = read(stripped)
    except BadExpression as refused:
        raise refused.moved(before) from None
    if template.single is None:
        # As a text it would be true whatever the expressions in it say.
        raise BadExpression(
            Mistake(before + 1, f"{OPEN} {CLOSE} around a part of a condition", "it around all of it, or nowhere")
        )
    return parse(stripped[len(OPEN) : -len(CLOSE)], before + len(OPEN))


def holds(expression: Expression, contexts: Contexts, functions: Functions | None = None) -> bool:
    """Is a condition true?"""
    return truthy(evaluate(expression, contexts, functions))
