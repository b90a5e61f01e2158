"""Extract messages about lines of files from a job's log and test report, which the forge shows as annotations.

A job controls its log and its test report, so everything is bounded: the length of a line, of a message and of a path,
and the number of annotations. A path that leads out of the repository is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, Literal

from deltaci.core.text import plain_line
from deltaci.forges.status_decisions import Annotation

MAX_ANNOTATIONS: Final = 50
MAX_LINE: Final = 2000
MAX_MESSAGE: Final = 1000
MAX_PATH: Final = 500
MAX_LINE_NUMBER: Final = 10_000_000

Level = Literal["failure", "warning", "notice"]
_LEVELS: Final[dict[str, Level]] = {"error": "failure", "warning": "warning", "notice": "notice"}
# `::error file=src/a.py,line=3,col=5,title=Oh::it is wrong`
_COMMAND: Final = re.compile(r"^::(error|warning|notice)(?: ([^:]*(?::(?!:)[^:]*)*))?::(.*)$")
# `src/a.c:3:5: error: it is wrong`, `src/a.ts(3,5): error TS2304: …`; a test's `tests/test_a.py:12: AssertionError`
_COMPILER: Final = re.compile(r"^([^\s:()][^:()]*):(\d{1,8})(?::(\d{1,8}))?: (?:fatal )?(error|warning)\b:?\s*(.*)$")
_PARENTHESES: Final = re.compile(r"^([^\s:()][^:()]*)\((\d{1,8})(?:,(\d{1,8}))?\): (error|warning)\b:?\s*(.*)$")
_FILE_POSITION: Final = re.compile(r"(?<![\w./-])([\w.-][\w./-]*\.\w{1,10}):(\d{1,8})\b")
_ESCAPES: Final = (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%"))


def from_log(log_text: str) -> Iterator[Annotation]:
    """Yield an annotation for each workflow command and compiler message of a log."""
    for log_line in log_text.splitlines():
        annotation = _parse_line(plain_line(log_line, MAX_LINE)) if ":" in log_line else None
        if annotation is not None:
            yield annotation


def from_test_failures(failures: Iterable[Any]) -> Iterator[Annotation]:
    """Yield an annotation for each failed test whose message or name contains a file and a line."""
    for failure in failures:
        if not isinstance(failure, dict):
            continue
        test_name, message = str(failure.get("name", "")), str(failure.get("message", ""))
        position_match = _FILE_POSITION.search(message) or _FILE_POSITION.search(test_name)
        if (
            position_match is not None
            and (file_path := _repository_path(position_match[1]))
            and (line_number := _number(position_match[2]))
        ):
            yield Annotation(
                path=file_path,
                line=line_number,
                message=plain_line(message or test_name, MAX_MESSAGE),
                title=plain_line(test_name, 200),
            )


def most_severe(annotations: Iterable[Annotation], max_count: int = MAX_ANNOTATIONS) -> tuple[Annotation, ...]:
    """Return up to `max_count` annotations, failures first, without duplicates.

    Stops reading after 20 × `max_count` different annotations.
    """
    annotation_by_position: dict[tuple[str, int, str], Annotation] = {}
    for annotation in annotations:
        annotation_by_position.setdefault((annotation.path, annotation.line, annotation.message), annotation)
        if len(annotation_by_position) >= 20 * max_count:
            break
    levels = ("failure", "warning", "notice")
    return tuple(
        sorted(annotation_by_position.values(), key=lambda annotation: levels.index(annotation.level))[:max_count]
    )


def _parse_line(log_line: str) -> Annotation | None:
    """Return the annotation for a workflow command or compiler message in a line of a log, or None."""
    if log_line.startswith("::"):
        return _parse_command(log_line)
    message_match = _COMPILER.match(log_line) or _PARENTHESES.match(log_line)
    if message_match is None:
        return None
    file_path, line_number = _repository_path(message_match[1]), _number(message_match[2])
    if not file_path or not line_number:
        return None
    message = plain_line(message_match[5] or log_line, MAX_MESSAGE)
    return Annotation(
        path=file_path,
        line=line_number,
        column=_number(message_match[3] or ""),
        message=message,
        level=_LEVELS[message_match[4]],
    )


def _parse_command(log_line: str) -> Annotation | None:
    """Return the annotation for a workflow command, such as `::error file=a.py,line=3::message`, or None."""
    command_match = _COMMAND.match(log_line)
    if command_match is None:
        return None
    properties = dict(
        parameter_text.strip().split("=", 1)
        for parameter_text in (command_match[2] or "").split(",")
        if "=" in parameter_text
    )
    path = _repository_path(_unescape(properties.get("file", "")))
    if not path:
        return None
    return Annotation(
        path=path,
        line=_number(properties.get("line", "1")) or 1,
        column=_number(properties.get("col", "")),
        message=plain_line(_unescape(command_match[3]), MAX_MESSAGE) or "no message",
        title=plain_line(_unescape(properties.get("title", "")), 200),
        level=_LEVELS[command_match[1]],
    )


def _unescape(text: str) -> str:
    for escape, character in _ESCAPES:
        text = text.replace(escape, character)
    return text


def _repository_path(text: str) -> str:
    """Return the text as a path inside the repository, or an empty string if it is not one."""
    plain_path = text.strip().replace("\\", "/").removeprefix("./")
    path_parts = plain_path.split("/")
    is_outside = plain_path.startswith("/") or "://" in plain_path or ".." in path_parts or "" in path_parts
    if is_outside or len(plain_path) > MAX_PATH or not any(map(str.isalpha, plain_path)):
        return ""
    return plain_path


def _number(text: str) -> int:
    """Return the number, or `MAX_LINE_NUMBER` if it is greater. Return 0 for a text that is not 1 to 8 digits."""
    text = text.strip()
    if not (text.isascii() and text.isdecimal()) or len(text) > 8:
        return 0
    return min(int(text), MAX_LINE_NUMBER)
