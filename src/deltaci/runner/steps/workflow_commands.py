"""Workflow commands: lines of a step's output that begin with `::`, as GitHub's tools write them.

`::add-mask::`, `::set-output name=…::` and `::stop-commands::` take effect; other commands do not. Only a line
that begins with two colons is held back, and only until its end, so the rest of the log is not delayed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from deltaci.runner.steps.command_files import MAX_VALUES, OUTPUT_NAME

MAX_LINE_BYTES: Final = 64 * 1024
MAX_MASKS: Final = 200
_COMMAND: Final = re.compile(
    r"::(?P<name>[a-z-]+)(?: (?P<parameters>[^:]*(?::(?!:)[^:]*)*))?::(?P<value>.*)", re.DOTALL
)


class WorkflowCommandInterpreter:
    """Passes all output of one step to the log and executes its commands `add-mask`, `set-output` and `stop-commands`.

    Only the value of a mask is left out of the log.
    """

    def __init__(self, write_output: Callable[[bytes], None], add_secrets: Callable[[list[str]], None]) -> None:
        self._write_output = write_output
        self._add_secrets = add_secrets
        self._pending_line = b""
        self._is_at_line_start = True
        self._resume_token = ""  # After `stop-commands`: the command that resumes the execution of commands.
        self._mask_count = 0
        self.outputs: dict[str, str] = {}

    def feed(self, data: bytes) -> None:
        """Process the next part of the output. A part may end within a line."""
        data = self._pending_line + data
        self._pending_line = b""
        written_until = 0  # The data before this position has been written.
        position = 0
        while position < len(data):
            if self._is_at_line_start and b"::".startswith(data[position : position + 2]):
                end = data.find(b"\n", position)
                if end < 0 and len(data) - position <= MAX_LINE_BYTES:
                    self._write(data[written_until:position])
                    self._pending_line = data[position:]
                    return
                end = len(data) if end < 0 else end + 1
                if end - position <= MAX_LINE_BYTES:
                    self._write(data[written_until:position])
                    self._execute(data[position:end])
                    written_until = end
                self._is_at_line_start = data[end - 1 : end] == b"\n"
                position = end
                continue
            end = data.find(b"\n", position)
            self._is_at_line_start = end >= 0
            position = len(data) if end < 0 else end + 1
        self._write(data[written_until:])

    def finish(self) -> None:
        """Process the last line if it has no newline. Call it at the end of the output."""
        line, self._pending_line = self._pending_line, b""
        self._is_at_line_start = True
        if line:
            self._execute(line)

    def _write(self, data: bytes) -> None:
        if data:
            self._write_output(data)

    def _execute(self, line: bytes) -> None:
        """Execute a line if it is a workflow command. Then write it to the log, without the value of a new mask."""
        text = line.decode("utf-8", "replace").rstrip("\r\n")
        match = _COMMAND.fullmatch(text)
        name, value = (match["name"], _unescape(match["value"])) if match else ("", "")
        if self._resume_token:
            if text == f"::{self._resume_token}::":
                self._resume_token = ""
        elif name == "stop-commands" and value:
            self._resume_token = value
        elif name == "add-mask" and value.strip() and self._mask_count < MAX_MASKS:
            self._mask_count += 1
            self._add_secrets([value])
            line = b"::add-mask::***\n"
        elif name == "set-output" and match is not None:
            parameters = dict(part.partition("=")[::2] for part in (match["parameters"] or "").split(","))
            if OUTPUT_NAME.fullmatch(parameters.get("name", "")) and len(self.outputs) < MAX_VALUES:
                self.outputs[parameters["name"]] = value
        self._write_output(line)


def _unescape(value: str) -> str:
    """Return a command's value with its escaped line breaks and percent signs restored."""
    return value.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")
