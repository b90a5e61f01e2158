"""Translate errors of the YAML parser, which name only the expected token, to messages that help users."""

from __future__ import annotations

from typing import Final

from ruamel.yaml.error import MarkedYAMLError

from deltaci.pipeline.parse.problems import Position, quote

# A part of the parser's message, `found` and `expected` of the problem (if empty, see HINT_BY_FRAGMENT), and whether to
# report the position at which the construct starts.
EXPLANATIONS: Final[tuple[tuple[str, str, str, bool], ...]] = (
    ("found character '\\t'", "a tab", "YAML is indented with spaces only: replace it", False),
    ("mapping values are not allowed", "a ':' where no key can be", "", False),
    ("could not find expected ':'", "a line without ':'", "expected 'key: value' or '- item'", True),
    ("expected <block end>", "a line that is indented unlike those around it", "", False),
    ("found unexpected end of stream", "a quote that never ends", "close it where the text ends", True),
    ("expected ',' or ']'", "a list that is not closed", "expected ',' or ']' before the next line", True),
    ("expected ',' or '}'", "an object that is not closed", "expected ',' or '}' before the next line", True),
    ("found unknown escape", "a '\\' that begins no escape", "write '\\\\', or use single quotes", False),
    ("expected chomping or indentation", "a text directly after '|' or '>'", "begin it on the next line", False),
    ("expected the node content", "a closing sign without an opening one", "remove it, or quote the text", False),
    ("found undefined tag handle", "a tag", "tags are not allowed; quote the text if the '!' belongs to it", False),
    ("found duplicate anchor", "an anchor's name a second time", "give it another name", False),
)
HINT_BY_FRAGMENT: Final = {
    "mapping values": "quote the text if the ':' belongs to it, or indent the line like its neighbours",
    "expected <block end>": "indent it like its neighbours; the content of a key is indented by two more spaces",
}


def explain_yaml_error(error: MarkedYAMLError, file_text: str) -> tuple[Position, str, str]:
    """Return position, `found` and `expected` of the problem for an error of the YAML parser."""
    problem_text = str(error.problem or error.context or "something that is not YAML")
    mark, start_mark = error.problem_mark or error.context_mark, error.context_mark
    for message_part, message, hint, uses_start in EXPLANATIONS:
        if message_part in problem_text:
            expected = hint or next(hint for fragment, hint in HINT_BY_FRAGMENT.items() if fragment in message_part)
            return (
                _position(start_mark if uses_start and start_mark is not None else mark, file_text),
                message,
                expected,
            )
    position = _position(mark, file_text)
    if "cannot start any token" in problem_text:
        character = _character_at(position, file_text)
        return position, f"{quote(character)} at the beginning of a text", "put the text in quotes"
    return position, problem_text.replace("'\\x00'", "the end"), "expected YAML"


def _position(mark: object, file_text: str) -> Position:
    line, column = int(getattr(mark, "line", 0)), int(getattr(mark, "column", 0))
    file_lines = file_text.split("\n")
    if line >= len(file_lines):  # The end of the file is reported as the end of its last line.
        line, column = len(file_lines) - 1, len(file_lines[-1])
    return Position(line + 1, column + 1)


def _character_at(position: Position, file_text: str) -> str:
    return file_text.split("\n")[position.line - 1][position.column - 1 :][:1]
