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

    def feed(self, chunk: bytes) -> None:
        """Process the next part of the output. A part may end within a line."""
        chunk = self._pending_line + chunk
        self._pending_line = b""
        written_end = 0  # The data before this position has been written.
        start_offset = 0
        while start_offset < len(chunk):
            if self._is_at_line_start and b"::".startswith(chunk[start_offset : start_offset + 2]):
                end_position = chunk.find(b"\n", start_offset)
                if end_position < 0 and len(chunk) - start_offset <= MAX_LINE_BYTES:
                    self._write(chunk[written_end:start_offset])
                    self._pending_line = chunk[start_offset:]
                    return
                end_position = len(chunk) if end_position < 0 else end_position + 1
                if end_position - start_offset <= MAX_LINE_BYTES:
                    self._write(chunk[written_end:start_offset])
                    self._execute(chunk[start_offset:end_position])
                    written_end = end_position
                self._is_at_line_start = chunk[end_position - 1 : end_position] == b"\n"
                start_offset = end_position
                continue
            end_position = chunk.find(b"\n", start_offset)
            self._is_at_line_start = end_position >= 0
            start_offset = len(chunk) if end_position < 0 else end_position + 1
        self._write(chunk[written_end:])

    def finish(self) -> None:
        """Process the last line if it has no newline. Call it at the end of the output."""
        line, self._pending_line = self._pending_line, b""
        self._is_at_line_start = True
        if line:
            self._execute(line)

    def _write(self, chunk: bytes) -> None:
        if chunk:
            self._write_output(chunk)

    def _execute(self, line: bytes) -> None:
        """Execute a line if it is a workflow command. Then write it to the log, without the value of a new mask."""
        command_text = line.decode("utf-8", "replace").rstrip("\r\n")
        command_match = _COMMAND.fullmatch(command_text)
        command_name, command_value = (
            (command_match["name"], _unescape(command_match["value"])) if command_match else ("", "")
        )
        if self._resume_token:
            if command_text == f"::{self._resume_token}::":
                self._resume_token = ""
        elif command_name == "stop-commands" and command_value:
            self._resume_token = command_value
        elif command_name == "add-mask" and command_value.strip() and self._mask_count < MAX_MASKS:
            self._mask_count += 1
            self._add_secrets([command_value])
            line = b"::add-mask::***\n"
        elif command_name == "set-output" and command_match is not None:
            parameters = dict(
                parameter_text.partition("=")[::2] for parameter_text in (command_match["parameters"] or "").split(",")
            )
            if OUTPUT_NAME.fullmatch(parameters.get("name", "")) and len(self.outputs) < MAX_VALUES:
                self.outputs[parameters["name"]] = command_value
        self._write_output(line)


def _unescape(value: str) -> str:
    """Return a command's value with its escaped line breaks and percent signs restored."""
    return value.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")
