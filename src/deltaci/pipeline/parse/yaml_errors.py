"""What is wrong with a text that is not YAML, in plain words: parsers tell what they wanted, people need what to do."""

from __future__ import annotations

from typing import Final

from ruamel.yaml.error import MarkedYAMLError

from deltaci.pipeline.parse.problems import Position, quote

# A part of the parser's message: what was found, what to do, and whether it is about where the thing began.
EXPLANATIONS: Final[tuple[tuple[str, str, str, bool], ...]] = (
    ("found character '\\t'", "a tab", "YAML is indented with spaces only: replace it", False),
    ("mapping values are not allowed", "a ':' where no key can be", "", False),
    ("could not find expected ':'", "a line without ':'", "expected 'key: value' or '- item'", True),
    ("expected <block end>", "a line that is indented unlike those around it", "", False),
    ("found unexpected end of stream", "a quote that never ends", "close it where the text ends", True),
    ("expected ',' or ']'", "a list that is not closed", "expected ',' or ']' before the next line", True),
    ("expected ',' or '}'", "an object that is not closed", "expected ',' or '}' before the next line", True),
    ("found unknown escape", "a '\\' that begins no escape", "write '\\\\', or use single quotes", False),
    ("expected chomping or indentation", "a text right behind '|' or '>'", "begin it on the next line", False),
    ("expected the node content", "a sign that closes what was not opened", "remove it, or quote the text", False),
    ("found undefined tag handle", "a tag", "tags are not allowed; quote the text if the '!' belongs to it", False),
    ("found duplicate anchor", "an anchor's name a second time", "give it another name", False),
)
HINTS: Final = {
    "mapping values": "quote the text if the ':' belongs to it, or indent the line like its neighbours",
    "expected <block end>": "indent it like its neighbours; what is inside a key stands two spaces further right",
}


def explain_yaml_error(error: MarkedYAMLError, text: str) -> tuple[Position, str, str]:
    """Where, what was found, what is expected."""
    problem = str(error.problem or error.context or "something that is not YAML")
    mark, began = error.problem_mark or error.context_mark, error.context_mark
    for part, found, expected, is_begin in EXPLANATIONS:
        if part in problem:
            what = expected or next(hint for name, hint in HINTS.items() if name in part)
            return _place(began if is_begin and began is not None else mark, text), found, what
    at = _place(mark, text)
    if "cannot start any token" in problem:
        sign = _sign(at, text)
        return at, f"{quote(sign)} at the beginning of a text", "put the text in quotes"
    return at, problem.replace("'\\x00'", "the end"), "expected YAML"


def _place(mark: object, text: str) -> Position:
    line, column = int(getattr(mark, "line", 0)), int(getattr(mark, "column", 0))
    lines = text.split("\n")
    if line >= len(lines):  # The end of the file is shown as the end of its last line.
        line, column = len(lines) - 1, len(lines[-1])
    return Position(line + 1, column + 1)


def _sign(at: Position, text: str) -> str:
    return text.split("\n")[at.line - 1][at.column - 1 :][:1]
