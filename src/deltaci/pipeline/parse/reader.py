"""Parse a pipeline file into a typed pipeline, or report all of its problems at once. No key is ignored silently.

`parse_pipeline` parses the YAML into nodes with positions, converts the nodes to the types of `model.py`, and then runs
the checks that concern more than one key: `checks.py`, `validation_rules.py` and `references.py`.
"""

from __future__ import annotations

import re
from typing import Any, Final

from msgspec import Struct, inspect

from deltaci.core.text import nearest
from deltaci.pipeline import model
from deltaci.pipeline.parse import checks, references, validation_rules
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
    get_shape,
    list_options,
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
    child,
    decode_utf8,
    pairs,
    parse_yaml,
)

__all__ = ["DEFAULT_FILE", "ParseResult", "ParsedNode", "Path", "SourceExpression", "parse_node", "parse_pipeline"]

DEFAULT_FILE: Final = ".deltaci.yml"
MAX_LISTED_KEYS: Final = 12

# Texts that YAML 1.1 reads as booleans.
BOOLEAN_WORDS: Final = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}
_LEADING_ZERO: Final = re.compile(r"[-+]?0[0-9_]+")
_INVALID: Final = object()  # The result of reading an invalid value, whose problem was reported.


class ParsedNode(Struct, frozen=True):
    """A node converted to a model type: the value (None if invalid), its expressions, and the position of each path."""

    value: Any
    expressions: tuple[SourceExpression, ...]
    positions: dict[Path, Position]


def parse_node(
    node: Node, type: Any, path: Path, problems: ProblemList, vocabulary: Vocabulary = PIPELINE_VOCABULARY
) -> ParsedNode:
    """Convert a node to a value of a model type. Add its problems to `problems`.

    For files other than pipelines, and for nodes that were converted from another format. `path` is that of the node.
    """
    reader = _Reader(problems, vocabulary)
    value = reader.read_value(node, type, path, node.position)
    return ParsedNode(None if value is _INVALID else value, tuple(reader.expressions), reader.positions)


def parse_pipeline(content: str | bytes, file: str = DEFAULT_FILE) -> ParseResult:
    """Parse the content of a pipeline file, and run all checks. `file` is its name, for messages."""
    problems = ProblemList(file)
    try:
        text = decode_utf8(content, problems) if isinstance(content, bytes) else content
        root_node = parse_yaml(text, problems)
    except YamlError:
        return ParseResult(file=file, pipeline=None, problems=problems.in_order())
    reader = _Reader(problems)
    pipeline = reader.read_value(root_node, model.Pipeline, (), root_node.position)
    checks.check_nodes(root_node, problems)
    for _, job_node in pairs(child(root_node, "jobs")):
        validation_rules.check_rules(child(job_node, "validate"), text, problems, is_workstream=False)
    references.check_patterns(root_node, text, problems)
    references.check_expressions(root_node, reader.expressions, text, problems)
    is_valid = isinstance(pipeline, model.Pipeline) and not problems.has_errors
    if is_valid:
        is_valid = references.check_pipeline(pipeline, reader.positions, problems)
    return ParseResult(
        file=file,
        pipeline=pipeline if is_valid else None,
        problems=problems.in_order(),
        expressions=tuple(reader.expressions),
        positions=reader.positions,
        source=text,
    )


class _Reader:
    """Converts nodes to values of model types. Methods return the value, or `_INVALID` after reporting a problem."""

    def __init__(self, problems: ProblemList, vocabulary: Vocabulary = PIPELINE_VOCABULARY) -> None:
        self.problems = problems
        self.vocabulary = vocabulary
        self.positions: dict[Path, Position] = {}
        self.expressions: list[SourceExpression] = []

    def read_value(self, node: Node, type: Any, path: Path, owner: Position) -> Any:
        """Convert a node to a value of `type`. Return `_INVALID` after reporting a problem if the node does not fit.

        `owner` is the position at which missing keys and values are reported.
        """
        self.positions[path] = node.position
        if node.style == REJECTED:
            return _INVALID
        allowed = list_options(type)
        for option in allowed:
            if self._fits(node, option):
                return self._read_option(node, option, allowed, path, owner)
        return self._report_mismatch(node, allowed, path, owner)

    def _fits(self, node: Node, option: Option) -> bool:
        """Return whether a node is of the kind of an option, such as a text or a list.

        Its value may still be invalid.
        """
        match option.type:
            case inspect.StrType():
                return node.kind == TEXT or (node.kind == BOOL and "condition" in option.extra)
            case inspect.LiteralType(values=(bool() as constant,)):
                return node.kind == BOOL and node.value is constant
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
                is_shorthand = bool(cls.shorthand) and self._fits_shorthand(node, cls)
                is_key_list = cls.accepts_key_names and node.kind in (TEXT, LIST)
                return node.kind == OBJECT or is_shorthand or is_key_list or (cls.accepts_null and node.kind == NULL)
            case _:
                return node.kind == OBJECT

    def _fits_shorthand(self, node: Node, cls: type[model.FileStruct]) -> bool:
        """Return whether a node is of a kind that the shorthand key of a struct allows."""
        return any(self._fits(node, option) for option in list_options(get_shape(cls).fields[cls.shorthand].type))

    def _read_option(self, node: Node, option: Option, allowed: list[Option], path: Path, owner: Position) -> Any:
        """Convert a node that fits an option. `allowed` are all options of the value, for messages."""
        match option.type:
            case inspect.StrType():
                return self._read_text(node, option, allowed, path)
            case inspect.LiteralType(values=values):
                if (node.raw in values and node.kind == TEXT) or values == (node.value,):
                    return node.value
                suggestion = nearest(node.raw, map(str, values))
                self.problems.add(node.position, node.describe(), f"expected {describe_option(option)}", suggestion)
                return _INVALID
            case inspect.IntType() | inspect.FloatType():
                return self._read_number(node, option, allowed)
            case inspect.BoolType():
                return node.value
            case inspect.AnyType():
                return self._read_nested(node, path)
            case inspect.VarTupleType():
                return self._read_list(node, option, path, owner)
            case inspect.StructType(cls=cls):
                return self._read_struct(node, get_shape(cls), path, owner)
            case _:
                return self._read_dict(node, option, path)

    # -- scalars

    def _read_text(self, node: Node, option: Option, allowed: list[Option], path: Path) -> Any:
        text_type, option_extra = option.type, option.extra
        text = node.value if node.kind == TEXT else node.raw.lower()  # `if: true` is a condition, too.
        allows_any_scalar = (
            any(isinstance(allowed_option.type, inspect.IntType) for allowed_option in allowed)
            and not text_type.pattern
        )
        if len(text) > (text_type.max_length or model.MAX_TEXT):
            return self._report(
                node,
                f"a text of {len(text):,} characters",
                f"expected at most {text_type.max_length or model.MAX_TEXT:,}",
            )
        is_interpolated = "${{" in text and bool(option_extra.get("expressions"))  # The final text is not known yet.
        if text_type.pattern and not re.search(text_type.pattern, text) and not is_interpolated:
            suggestion = BOOLEAN_WORDS.get(text.lower(), "") if self._allows_boolean(allowed) else ""
            hint = "; remove the quotes" if node.style and self._allows_number(allowed) and _is_numeric(text) else ""
            return self._report(node, node.describe(), f"expected {describe_options(allowed)}{hint}", suggestion)
        if len(text) < (text_type.min_length or 0):
            return self._report(node, "an empty text", f"expected {describe_options(allowed)}")
        is_evaluated = (
            option_extra.get("expressions") or option_extra.get("condition") or text_type.pattern == model.EXPRESSION
        )
        if "${{" in text and not is_evaluated:
            return self._report(
                node, f"an expression, {quote(text)}", "nothing is evaluated here: write the text itself"
            )
        if option_extra.get("condition") or "${{" in text:
            is_condition = bool(option_extra.get("condition"))
            self.expressions.append(
                SourceExpression(path=path, text=text, position=node.position, is_condition=is_condition)
            )
        if allows_any_scalar and node.is_plain and text.lower() in BOOLEAN_WORDS:
            message = f"'{text}' is a text here, but a boolean, {BOOLEAN_WORDS[text.lower()]}, for YAML 1.1 readers"
            hint = f"put it in quotes, or write {BOOLEAN_WORDS[text.lower()]}"
            self.problems.add(node.position, message, hint, is_warning=True)
        return text

    def _read_number(self, node: Node, option: Option, allowed: list[Option]) -> Any:
        number_type, number = option.type, node.value
        allows_text = any(
            isinstance(allowed_option.type, inspect.StrType) and not allowed_option.type.pattern
            for allowed_option in allowed
        )
        if _LEADING_ZERO.fullmatch(node.raw):
            hint = f"put it in quotes: '{node.raw}'" if allows_text else f"write {number}"
            return self._report(node, f"the number {node.raw}, which some YAML readers take as octal", hint)
        if allows_text and (node.raw != str(number) or (isinstance(number, float) and number.is_integer())):
            message = f"the number {node.raw}, which is read as {_format_number(number)}"
            return self._report(node, message, f"put it in quotes: '{node.raw}'")
        is_too_low = (number_type.ge is not None and number < number_type.ge) or (
            number_type.gt is not None and number <= number_type.gt
        )
        if is_too_low or (number_type.le is not None and number > number_type.le):
            return self._report(node, node.describe(), f"expected {describe_options(allowed)}")
        return float(number) if isinstance(number_type, inspect.FloatType) else number

    def _report(self, node: Node, found: str, expected: str, suggestion: str = "") -> Any:
        """Report a problem at a node. Return `_INVALID`."""
        self.problems.add(node.position, found, expected, suggestion)
        return _INVALID

    def _allows_boolean(self, allowed: list[Option]) -> bool:
        return any(isinstance(option.type, inspect.BoolType) for option in allowed)

    def _allows_number(self, allowed: list[Option]) -> bool:
        return any(isinstance(option.type, inspect.IntType | inspect.FloatType) for option in allowed)

    def _report_mismatch(self, node: Node, allowed: list[Option], path: Path, owner: Position) -> Any:
        """Report a node whose kind fits none of the allowed options. Return `_INVALID`."""
        message, expected, suggestion = node.describe(), f"expected {describe_options(allowed)}", ""
        if not path:
            message = f"{message} instead of keys"
        elif isinstance(path[-1], str):
            message = f"{message} as {quote(path[-1])}"
        if node.kind == NULL:
            key_text = quote(str(path[-1])) if path and isinstance(path[-1], str) else ""
            message = f"nothing after {key_text}" if key_text else "nothing"
            self.problems.add(owner, message, expected)
            return _INVALID
        allows_text = any(isinstance(option.type, inspect.StrType) for option in allowed)
        if (
            node.kind in (NUMBER, BOOL)
            and allows_text
            and not self._allows_boolean(allowed)
            and not self._allows_number(allowed)
        ):
            expected += f"; put it in quotes: '{node.raw}'"
        if node.kind == TEXT:
            suggestion = BOOLEAN_WORDS.get(node.value.lower(), "") if self._allows_boolean(allowed) else ""
            if node.style and self._allows_number(allowed) and _is_numeric(node.value):
                expected += "; remove the quotes"
        return self._report(node, message, expected, suggestion)

    # -- lists and objects

    def _read_list(self, node: Node, option: Option, path: Path, owner: Position) -> Any:
        list_type, item_nodes = option.type, node.value if node.kind == LIST else [node]
        if len(item_nodes) < (list_type.min_length or 0):
            return self._report(
                node, "an empty list", f"expected at least one: {describe_options(list_options(list_type.item_type))}"
            )
        if list_type.max_length is not None and len(item_nodes) > list_type.max_length:
            return self._report(node, f"a list of {len(item_nodes):,}", f"expected at most {list_type.max_length:,}")
        values = [
            self.read_value(
                item_node, list_type.item_type, (*path, index), item_node.position if node.kind == LIST else owner
            )
            for index, item_node in enumerate(item_nodes)
        ]
        return _INVALID if _INVALID in values else tuple(values)

    def _read_nested(self, node: Node, path: Path) -> Any:
        """Convert a node of any kind to builtin values. Report expressions, because nothing inside it is evaluated."""
        self.positions[path] = node.position
        if node.kind == LIST:
            items = [self._read_nested(item_node, (*path, index)) for index, item_node in enumerate(node.value)]
            return _INVALID if _INVALID in items else items
        if node.kind == OBJECT:
            value_by_key = {
                key_node.raw: self._read_nested(value, (*path, key_node.raw)) for key_node, value in node.value
            }
            return _INVALID if any(value is _INVALID for value in value_by_key.values()) else value_by_key
        if node.kind == TEXT and "${{" in node.value:
            hint = "nothing is evaluated inside a list or an object here: write the whole value as an expression"
            return self._report(node, f"an expression, {quote(node.value)}", hint)
        return node.value

    def _read_dict(self, node: Node, option: Option, path: Path) -> Any:
        dict_type, value_by_key = option.type, {}
        if len(node.value) < (dict_type.min_length or 0):
            noun = "jobs" if path == ("jobs",) else "keys"
            return self._report(node, f"an object without {noun}", "expected at least one")
        if dict_type.max_length is not None and len(node.value) > dict_type.max_length:
            return self._report(
                node, f"an object of {len(node.value):,} keys", f"expected at most {dict_type.max_length:,}"
            )
        for key_node, value_node in node.value:
            key = self._read_key(key_node, dict_type.key_type)
            value_by_key[key] = self.read_value(
                value_node, dict_type.value_type, (*path, key_node.raw), key_node.position
            )
        return _INVALID if _INVALID in value_by_key or _INVALID in value_by_key.values() else value_by_key

    def _read_key(self, key_node: Node, type: Any) -> Any:
        """Return the text of a key, or report that it violates the limits of `type`."""
        [option] = list_options(type)
        text_type = option.type
        if re.search(text_type.pattern, key_node.raw) and len(key_node.raw) <= text_type.max_length:
            return key_node.raw
        self.problems.add(key_node.position, f"the name {quote(key_node.raw)}", f"expected {describe_option(option)}")
        return _INVALID

    def _read_struct(self, node: Node, struct_shape: Shape, path: Path, owner: Position) -> Any:
        """Convert a node to a struct. Report unknown and missing keys."""
        if node.kind != OBJECT:
            return self._read_struct_without_keys(node, struct_shape, path, owner)
        field_values: dict[str, Any] = {}
        extra_values: dict[str, Any] = {}
        intended: set[str] = set()  # Keys that were probably intended by unknown keys: not reported as missing as well.
        for key_node, value_node in node.value:
            key_path = (*path, key_node.raw)
            if field := struct_shape.fields.get(key_node.raw):
                field_values[field.name] = self.read_value(value_node, field.type, key_path, key_node.position)
            elif struct_shape.extra_keys is not None:
                [option] = list_options(struct_shape.extra_keys.type)
                missing_key = self._read_key(key_node, option.type.key_type)
                extra_values[missing_key] = self.read_value(
                    value_node, option.type.value_type, key_path, key_node.position
                )
            else:
                intended.add(self._report_unknown_key(key_node, struct_shape))
        missing_keys = [
            missing_key
            for missing_key, field in struct_shape.fields.items()
            if field.required and field.name not in field_values
        ]
        for missing_key in set(missing_keys) - intended:
            message = f"{self.vocabulary.noun(struct_shape)} without {quote(missing_key)}"
            description = field_description(struct_shape.fields[missing_key])
            self.problems.add(owner, message, f"expected {quote(missing_key)}: {description}")
        if (
            intended
            or missing_keys
            or _INVALID in extra_values
            or any(value_node is _INVALID for value_node in (*field_values.values(), *extra_values.values()))
        ):
            return _INVALID
        extra_fields = {struct_shape.extra_keys.name: extra_values} if struct_shape.extra_keys is not None else {}
        return struct_shape.cls(**field_values, **extra_fields)

    def _read_struct_without_keys(self, node: Node, struct_shape: Shape, path: Path, owner: Position) -> Any:
        """Read a struct that is not written as an object: null, one key name, a list of key names, or its shorthand."""
        cls = struct_shape.cls
        if node.kind == NULL:
            return cls()
        if cls.accepts_key_names:
            name_nodes = node.value if node.kind == LIST else [node]
            if not name_nodes:
                return self._report(node, "an empty list", f"expected {join_words(list(struct_shape.fields))}")
            empty_values = [(name_node, Node(NULL, name_node.position)) for name_node in name_nodes]
            non_text = next((name_node for name_node in name_nodes if name_node.kind != TEXT), None)
            if non_text is not None:
                expected = f"expected {join_words(list(struct_shape.fields))}"
                return self._report(non_text, non_text.describe(), expected)
            seen_names: set[str] = set()
            for name_node in name_nodes:
                if name_node.raw in seen_names:
                    self.problems.add(name_node.position, f"{quote(name_node.raw)} a second time", "name each once")
                seen_names.add(name_node.raw)
            return self._read_struct(Node(OBJECT, node.position, empty_values), struct_shape, path, owner)
        field = struct_shape.fields[cls.shorthand]
        value = self.read_value(node, field.type, (*path, cls.shorthand), owner)
        return _INVALID if value is _INVALID else cls(**{field.name: value})

    def _report_unknown_key(self, key_node: Node, struct_shape: Shape) -> str:
        """Report an unknown key. Return the key that was probably intended, or an empty string."""
        key_name = key_node.raw
        if self.problems.is_full:
            return ""
        message = f"the key {quote(key_name)}, which {self.vocabulary.noun(struct_shape)} does not have"
        suggestion = nearest(key_name, struct_shape.fields)
        expected, intended = "", ""
        if key_name in self.vocabulary.foreign_keys:
            expected, suggestion = self.vocabulary.foreign_keys[key_name], ""
            intended = next(iter(re.findall(r"'([\w-]+)'", expected)), "")
        elif key_name in self.vocabulary.owners:
            expected = f"it belongs to {join_words(self.vocabulary.owners[key_name])}"
            suggestion = suggestion if suggestion != key_name else ""
        elif not suggestion:
            allowed_keys = sorted(struct_shape.fields)
            ellipsis = " …" if len(allowed_keys) > MAX_LISTED_KEYS else ""
            expected = f"expected one of: {', '.join(allowed_keys[:MAX_LISTED_KEYS])}{ellipsis}"
        self.problems.add(key_node.position, message, expected, suggestion)
        return suggestion or intended


def _is_numeric(text: str) -> bool:
    return re.fullmatch(r"[-+]?[0-9]+(\.[0-9]+)?", text) is not None


def _format_number(number: int | float) -> str:
    return str(int(number)) if number == int(number) else str(number)
