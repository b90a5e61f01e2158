"""What a step says to the runner in its output: lines that begin with `::`, as GitHub's tools write them.

`::add-mask::` is obeyed, `::set-output name=…::` too; everything else is text. Only a line that begins with two colons
is ever kept back, and only up to its end, so a log is as live as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from deltaci.runner.steps.command_files import MAX_VALUES, OUTPUT_NAME

MAX_LINE_BYTES: Final = 64 * 1024
MAX_MASKS: Final = 200
_COMMAND: Final = re.compile(r"::(?P<name>[a-z-]+)(?: (?P<words>[^:]*(?::(?!:)[^:]*)*))?::(?P<value>.*)", re.DOTALL)


class WorkflowCommandFilter:
    """One step's output on its way to the log."""

    def __init__(self, show: Callable[[bytes], None], hide: Callable[[list[str]], None]) -> None:
        self._show = show
        self._hide = hide
        self._line = b""
        self._is_at_start = True
        self._until = ""  # A word that must be said before commands are heard again.
        self._masks = 0
        self.outputs: dict[str, str] = {}

    def hear(self, data: bytes) -> None:
        """Some of the output."""
        data = self._line + data
        self._line = b""
        shown = 0  # Up to here everything is on its way.
        at = 0
        while at < len(data):
            if self._is_at_start and b"::".startswith(data[at : at + 2]):
                end = data.find(b"\n", at)
                if end < 0 and len(data) - at <= MAX_LINE_BYTES:
                    self._pass(data[shown:at])
                    self._line = data[at:]
                    return
                end = len(data) if end < 0 else end + 1
                if end - at <= MAX_LINE_BYTES:
                    self._pass(data[shown:at])
                    self._command(data[at:end])
                    shown = end
                self._is_at_start = data[end - 1 : end] == b"\n"
                at = end
                continue
            end = data.find(b"\n", at)
            self._is_at_start = end >= 0
            at = len(data) if end < 0 else end + 1
        self._pass(data[shown:])

    def end(self) -> None:
        """Nothing more comes."""
        line, self._line = self._line, b""
        self._is_at_start = True
        if line:
            self._command(line)

    def _pass(self, data: bytes) -> None:
        if data:
            self._show(data)

    def _command(self, line: bytes) -> None:
        said = line.decode("utf-8", "replace").rstrip("\r\n")
        found = _COMMAND.fullmatch(said)
        name, value = (found["name"], _plain(found["value"])) if found else ("", "")
        if self._until:
            if said == f"::{self._until}::":
                self._until = ""
        elif name == "stop-commands" and value:
            self._until = value
        elif name == "add-mask" and value.strip() and self._masks < MAX_MASKS:
            self._masks += 1
            self._hide([value])
            line = b"::add-mask::***\n"
        elif name == "set-output" and found is not None:
            words = dict(each.partition("=")[::2] for each in (found["words"] or "").split(","))
            if OUTPUT_NAME.fullmatch(words.get("name", "")) and len(self.outputs) < MAX_VALUES:
                self.outputs[words["name"]] = value
        self._show(line)


def _plain(value: str) -> str:
    """A value as it was before it had to fit in one line."""
    return value.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")
