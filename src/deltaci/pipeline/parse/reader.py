"""Text in, a typed pipeline or all of its problems out. Every problem is found at once, and nothing is ignored."""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import Struct, inspect

from deltaci.core.text import nearest
from deltaci.pipeline import model
from deltaci.pipeline.parse import checks, references, validation_rules
from deltaci.pipeline.parse.nodes import child, pairs
from deltaci.pipeline.parse.parse_result import ParseResult, Path, SourceExpression
from deltaci.pipeline.parse.problems import Position, ProblemList, join_words, quote
from deltaci.pipeline.parse.shapes import (
    PIPELINE_VOCABULARY,
    Option,
    Shape,
    Vocabulary,
    describe_option,
    describe_options,
    field_description,
    options,
    shape,
)
from deltaci.pipeline.parse.yaml import (
    BOOL,
    LIST,
    NULL,
    NUMBER,
    OBJECT,
    REJECTED,
    TEXT,
    Node,
    YamlError,
    decode_utf8,
    parse_yaml,
)

__all__ = ["DEFAULT_FILE", "ParseResult", "ParsedNode", "Path", "SourceExpression", "parse_node", "parse_pipeline"]

DEFAULT_FILE: Final = ".deltaci.yml"
MAX_LISTED_KEYS: Final = 12

TRUTHS: Final = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
_LEADING_ZERO: Final = re.compile(r"[-+]?0[0-9_]+")
_BAD: Final = object()  # Something was wrong here, and was said.


class ParsedNode(Struct, frozen=True):
    """What a part of a file says; no value, if it has problems."""

    value: Any
    expressions: tuple[SourceExpression, ...]
    positions: dict[Path, Position]


def parse_node(
    node: Node, type: Any, path: Path, problems: ProblemList, words: Vocabulary = PIPELINE_VOCABULARY
) -> ParsedNode:
    """Read one part that is YAML already: for files that say the same in other words, or something else."""
    reader = _Reader(problems, words)
    value = reader.value(node, type, path, node.position)
    return ParsedNode(None if value is _BAD else value, tuple(reader.expressions), reader.positions)


def parse_pipeline(content: str | bytes, file: str = DEFAULT_FILE) -> ParseResult:
    """Read a whole pipeline file."""
    problems = ProblemList(file)
    try:
        text = decode_utf8(content, problems) if isinstance(content, bytes) else content
        root = parse_yaml(text, problems)
    except YamlError:
        return ParseResult(file=file, pipeline=None, problems=problems.in_order())
    reader = _Reader(problems)
    pipeline = reader.value(root, model.Pipeline, (), root.position)
    checks.check_nodes(root, problems)
    for _, job in pairs(child(root, "jobs")):
        validation_rules.check_rules(child(job, "validate"), text, problems, is_stream=False)
    references.check_patterns(root, text, problems)
    references.check_expressions(root, reader.expressions, text, problems)
    is_good = isinstance(pipeline, model.Pipeline) and not problems.has_errors
    if is_good:
        is_good = references.check_pipeline(pipeline, reader.positions, problems)
    return ParseResult(
        file=file,
        pipeline=pipeline if is_good else None,
        problems=problems.in_order(),
        expressions=tuple(reader.expressions),
        positions=reader.positions,
        source=text,
    )


class _Reader:
    """Walks nodes and model side by side. A method returns the value, or `_BAD` after it said why."""

    def __init__(self, problems: ProblemList, words: Vocabulary = PIPELINE_VOCABULARY) -> None:
        self.problems = problems
        self.words = words
        self.positions: dict[Path, Position] = {}
        self.expressions: list[SourceExpression] = []

    def value(self, node: Node, type: Any, path: Path, owner: Position) -> Any:
        """What a node says, as the type wants it; `owner` is where a missing key is missed."""
        self.positions[path] = node.position
        if node.style == REJECTED:
            return _BAD
        allowed = options(type)
        for option in allowed:
            if self._fits(node, option):
                return self._read(node, option, allowed, path, owner)
        return self._mismatch(node, allowed, path, owner)

    def _fits(self, node: Node, option: Option) -> bool:
        match option.type:
            case inspect.StrType():
                return node.kind == TEXT or (node.kind == BOOL and "condition" in option.extra)
            case inspect.LiteralType(values=(bool() as only,)):
                return node.kind == BOOL and node.value is only
            case inspect.LiteralType():
                return node.kind in (TEXT, BOOL, NUMBER)
            case inspect.BoolType():
                return node.kind == BOOL
            case inspect.IntType():
                return node.kind == NUMBER and isinstance(node.value, int)
            case inspect.FloatType():
                return node.kind == NUMBER
            case inspect.AnyType():
                return node.kind in (LIST, OBJECT)
            case inspect.VarTupleType():
                return node.kind == LIST or (bool(option.extra.get("one")) and node.kind != NULL)
            case inspect.StructType():
                cls = option.type.cls
                assert issubclass(cls, model.FileStruct)
                is_short = bool(cls.shorthand) and self._is_short(node, cls)
                is_named = cls.accepts_key_names and node.kind in (TEXT, LIST)
                return node.kind == OBJECT or is_short or is_named or (cls.accepts_null and node.kind == NULL)
            case _:
                return node.kind == OBJECT

    def _is_short(self, node: Node, cls: type[model.FileStruct]) -> bool:
        return any(self._fits(node, each) for each in options(shape(cls).fields[cls.shorthand].type))

    def _read(self, node: Node, option: Option, allowed: list[Option], path: Path, owner: Position) -> Any:
        match option.type:
            case inspect.StrType():
                return self._text(node, option, allowed, path)
            case inspect.LiteralType(values=values):
                if (node.raw in values and node.kind == TEXT) or values == (node.value,):
                    return node.value
                near = nearest(node.raw, map(str, values))
                self.problems.add(node.position, node.describe(), f"expected {describe_option(option)}", near)
                return _BAD
            case inspect.IntType() | inspect.FloatType():
                return self._number(node, option, allowed)
            case inspect.BoolType():
                return node.value
            case inspect.AnyType():
                return self._nested(node, path)
            case inspect.VarTupleType():
                return self._list(node, option, path, owner)
            case inspect.StructType(cls=cls):
                return self._struct(node, shape(cls), path, owner)
            case _:
                return self._dict(node, option, path)

    # -- single values

    def _text(self, node: Node, option: Option, allowed: list[Option], path: Path) -> Any:
        type, extra = option.type, option.extra
        text = node.value if node.kind == TEXT else node.raw.lower()  # `if: true` is a condition, too.
        is_scalar = any(isinstance(each.type, inspect.IntType) for each in allowed) and not type.pattern
        if len(text) > (type.max_length or model.MAX_TEXT):
            return self._wrong(
                node, f"a text of {len(text):,} characters", f"expected at most {type.max_length or model.MAX_TEXT:,}"
            )
        is_filled_in = "${{" in text and bool(extra.get("expressions"))  # What it will be is not known yet.
        if type.pattern and not re.search(type.pattern, text) and not is_filled_in:
            near = TRUTHS.get(text.lower(), "") if self._is_truth(allowed) else ""
            hint = "; remove the quotes" if node.style and self._is_number(allowed) and _numeric(text) else ""
            return self._wrong(node, node.describe(), f"expected {describe_options(allowed)}{hint}", near)
        if len(text) < (type.min_length or 0):
            return self._wrong(node, "an empty text", f"expected {describe_options(allowed)}")
        is_evaluated = extra.get("expressions") or extra.get("condition") or type.pattern == model.EXPRESSION
        if "${{" in text and not is_evaluated:
            return self._wrong(
                node, f"an expression, {quote(text)}", "nothing is evaluated here: write the text itself"
            )
        if extra.get("condition") or "${{" in text:
            is_condition = bool(extra.get("condition"))
            self.expressions.append(
                SourceExpression(path=path, text=text, position=node.position, is_condition=is_condition)
            )
        if is_scalar and node.is_plain and text.lower() in TRUTHS:
            told = f"'{text}' is a text here, though other readers of YAML take it as {TRUTHS[text.lower()]}"
            hint = f"put it in quotes, or write {TRUTHS[text.lower()]}"
            self.problems.add(node.position, told, hint, is_warning=True)
        return text

    def _number(self, node: Node, option: Option, allowed: list[Option]) -> Any:
        type, number = option.type, node.value
        has_text = any(isinstance(each.type, inspect.StrType) and not each.type.pattern for each in allowed)
        if _LEADING_ZERO.fullmatch(node.raw):
            hint = f"put it in quotes: '{node.raw}'" if has_text else f"write {number}"
            return self._wrong(node, f"the number {node.raw}, which some read as octal", hint)
        if has_text and (node.raw != str(number) or (isinstance(number, float) and number.is_integer())):
            told = f"the number {node.raw}, which is {_plainly(number)} once it is read"
            return self._wrong(node, told, f"put it in quotes: '{node.raw}'")
        too_low = (type.ge is not None and number < type.ge) or (type.gt is not None and number <= type.gt)
        if too_low or (type.le is not None and number > type.le):
            return self._wrong(node, node.describe(), f"expected {describe_options(allowed)}")
        return float(number) if isinstance(type, inspect.FloatType) else number

    def _wrong(self, node: Node, found: str, wanted: str, near: str = "") -> Any:
        self.problems.add(node.position, found, wanted, near)
        return _BAD

    def _is_truth(self, allowed: list[Option]) -> bool:
        return any(isinstance(each.type, inspect.BoolType) for each in allowed)

    def _is_number(self, allowed: list[Option]) -> bool:
        return any(isinstance(each.type, inspect.IntType | inspect.FloatType) for each in allowed)

    def _mismatch(self, node: Node, allowed: list[Option], path: Path, owner: Position) -> Any:
        found, wanted, near = node.describe(), f"expected {describe_options(allowed)}", ""
        if not path:
            found = f"{found} instead of keys"
        elif isinstance(path[-1], str):
            found = f"{found} as {quote(path[-1])}"
        if node.kind == NULL:
            key = quote(str(path[-1])) if path and isinstance(path[-1], str) else ""
            found = f"nothing after {key}" if key else "nothing"
            self.problems.add(owner, found, wanted)
            return _BAD
        is_text = any(isinstance(each.type, inspect.StrType) for each in allowed)
        if node.kind in (NUMBER, BOOL) and is_text and not self._is_truth(allowed) and not self._is_number(allowed):
            wanted += f"; put it in quotes: '{node.raw}'"
        if node.kind == TEXT:
            near = TRUTHS.get(node.value.lower(), "") if self._is_truth(allowed) else ""
            if node.style and self._is_number(allowed) and _numeric(node.value):
                wanted += "; remove the quotes"
        return self._wrong(node, found, wanted, near)

    # -- lists and objects

    def _list(self, node: Node, option: Option, path: Path, owner: Position) -> Any:
        type, items = option.type, node.value if node.kind == LIST else [node]
        if len(items) < (type.min_length or 0):
            return self._wrong(
                node, "an empty list", f"expected at least one: {describe_options(options(type.item_type))}"
            )
        if type.max_length is not None and len(items) > type.max_length:
            return self._wrong(node, f"a list of {len(items):,}", f"expected at most {type.max_length:,}")
        read = [
            self.value(item, type.item_type, (*path, position), item.position if node.kind == LIST else owner)
            for position, item in enumerate(items)
        ]
        return _BAD if _BAD in read else tuple(read)

    def _nested(self, node: Node, path: Path) -> Any:
        """A list or an object, whatever is in it. Nothing there is evaluated, so that expressions are refused."""
        self.positions[path] = node.position
        if node.kind == LIST:
            read = [self._nested(each, (*path, position)) for position, each in enumerate(node.value)]
            return _BAD if _BAD in read else read
        if node.kind == OBJECT:
            named = {key.raw: self._nested(each, (*path, key.raw)) for key, each in node.value}
            return _BAD if any(each is _BAD for each in named.values()) else named
        if node.kind == TEXT and "${{" in node.value:
            told = "nothing is evaluated inside of a list or an object here: give the whole as an expression"
            return self._wrong(node, f"an expression, {quote(node.value)}", told)
        return node.value

    def _dict(self, node: Node, option: Option, path: Path) -> Any:
        type, read = option.type, {}
        if len(node.value) < (type.min_length or 0):
            what = "jobs" if path == ("jobs",) else "keys"
            return self._wrong(node, f"an object without {what}", "expected at least one")
        if type.max_length is not None and len(node.value) > type.max_length:
            return self._wrong(node, f"an object of {len(node.value):,} keys", f"expected at most {type.max_length:,}")
        for key, value in node.value:
            name = self._key(key, type.key_type)
            read[name] = self.value(value, type.value_type, (*path, key.raw), key.position)
        return _BAD if _BAD in read or _BAD in read.values() else read

    def _key(self, key: Node, type: Any) -> Any:
        [option] = options(type)
        limits = option.type
        if re.search(limits.pattern, key.raw) and len(key.raw) <= limits.max_length:
            return key.raw
        self.problems.add(key.position, f"the name {quote(key.raw)}", f"expected {describe_option(option)}")
        return _BAD

    def _struct(self, node: Node, of: Shape, path: Path, owner: Position) -> Any:
        if node.kind != OBJECT:
            return self._without_keys(node, of, path, owner)
        read: dict[str, Any] = {}
        rest: dict[str, Any] = {}
        meant: set[str] = set()  # What unknown keys were probably meant to be: these are not missing, too.
        for key, value in node.value:
            place = (*path, key.raw)
            if field := of.fields.get(key.raw):
                read[field.name] = self.value(value, field.type, place, key.position)
            elif of.rest is not None:
                [every] = options(of.rest.type)
                rest[self._key(key, every.type.key_type)] = self.value(
                    value, every.type.value_type, place, key.position
                )
            else:
                meant.add(self._unknown(key, of))
        missing = [name for name, field in of.fields.items() if field.required and field.name not in read]
        for name in set(missing) - meant:
            what = field_description(of.fields[name])
            self.problems.add(owner, f"{self.words.noun(of)} without {quote(name)}", f"expected {quote(name)}: {what}")
        if meant or missing or _BAD in rest or any(each is _BAD for each in (*read.values(), *rest.values())):
            return _BAD
        return of.cls(**read, **({of.rest.name: rest} if of.rest is not None else {}))

    def _without_keys(self, node: Node, of: Shape, path: Path, owner: Position) -> Any:
        if node.kind == NULL:
            return of.cls()
        if of.cls.accepts_key_names:
            names = node.value if node.kind == LIST else [node]
            if not names:
                return self._wrong(node, "an empty list", f"expected {join_words(list(of.fields))}")
            empty = [(name, Node(NULL, name.position)) for name in names]
            wrong = next((name for name in names if name.kind != TEXT), None)
            if wrong is not None:
                return self._wrong(wrong, wrong.describe(), f"expected {join_words(list(of.fields))}")
            seen: set[str] = set()
            for name in names:
                if name.raw in seen:
                    self.problems.add(name.position, f"{quote(name.raw)} a second time", "name each once")
                seen.add(name.raw)
            return self._struct(Node(OBJECT, node.position, empty), of, path, owner)
        field = of.fields[of.cls.shorthand]
        read = self.value(node, field.type, (*path, of.cls.shorthand), owner)
        return _BAD if read is _BAD else of.cls(**{field.name: read})

    def _unknown(self, key: Node, of: Shape) -> str:
        name = key.raw
        if self.problems.is_full:
            return ""
        found, near = f"the key {quote(name)}, which {self.words.noun(of)} does not have", nearest(name, of.fields)
        wanted, meant = "", ""
        if name in self.words.foreign:
            wanted, near = self.words.foreign[name], ""
            meant = next(iter(re.findall(r"'([\w-]+)'", wanted)), "")
        elif name in self.words.homes:
            wanted, near = f"it belongs to {join_words(self.words.homes[name])}", near if near != name else ""
        elif not near:
            known = sorted(of.fields)
            more = " …" if len(known) > MAX_LISTED_KEYS else ""
            wanted = f"expected one of: {', '.join(known[:MAX_LISTED_KEYS])}{more}"
        self.problems.add(key.position, found, wanted, near)
        return near or meant


def _numeric(text: str) -> bool:
    return re.fullmatch(r"[-+]?[0-9]+(\.[0-9]+)?", text) is not None


def _plainly(number: int | float) -> str:
    return str(int(number)) if number == int(number) else str(number)
