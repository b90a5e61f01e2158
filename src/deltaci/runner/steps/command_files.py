"""Command files: files in which a step reports outputs, variables, PATH entries and a summary (as in GITHUB_OUTPUT).

Each step has its own files, in the job's temporary folder. The job may write anything into them or replace them by
something else, so they are read without following links and only up to a limit.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.runner.workspace.folders import open_folder, open_parent
from deltaci.runner.workspace.layout import Layout
from deltaci.runner.workspace.safe_fs import write_file

MAX_FILE_BYTES: Final = 1024 * 1024
MAX_SUMMARY_CHARACTERS: Final = 16_000
MAX_VALUES: Final = 1000
MAX_NAME: Final = 200
KINDS: Final = {"output": "OUTPUT", "env": "ENV", "path": "PATH", "summary": "STEP_SUMMARY", "state": "STATE"}
OUTPUT_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# Variables with these prefixes are set by the runner only.
RESERVED_PREFIXES: Final = ("DELTACI_", "GITHUB_", "RUNNER_")
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What one step wrote into its command files: outputs, variables, PATH entries and a summary."""

    outputs: dict[str, str] = {}
    env: dict[str, str] = {}
    paths: list[str] = []
    summary: str = ""


class CommandFiles:
    """The command files of one step."""

    def __init__(self, layout: Layout, step_index: int) -> None:
        self._layout = layout
        self._folder = layout.temp / f"step-{step_index}"

    def create(self) -> dict[str, str]:
        """Create the empty files. Return the environment variables that contain their paths."""
        relative_folder = self._folder.relative_to(self._layout.root).as_posix()
        variables: dict[str, str] = {}
        for kind, variable in KINDS.items():
            file_path = write_file(self._layout.root, f"{relative_folder}/{kind}", "", mode=0o666)
            variables[f"GITHUB_{variable}"] = variables[f"DELTACI_{variable}"] = str(file_path)
        return variables

    def read(self) -> StepReport:
        """Return what the step wrote into the files. Raise `Refused` if one is not valid."""
        value_by_output = parse_assignments("the outputs", self._read_text("output"))
        value_by_variable = parse_assignments("the variables", self._read_text("env"))
        for name in value_by_output:
            if not OUTPUT_NAME.fullmatch(name):
                raise _invalid(f"{name[:80]!r} is not a valid name of an output; use letters, digits, '-' and '_'")
        for name in value_by_variable:
            check_variable(name)
        # A line may contain several folders separated by colons, as PATH itself does.
        added_folders = [
            added_folder
            for line in self._read_text("path").splitlines()
            for added_folder in line.split(":")
            if added_folder.strip()
        ]
        if len(added_folders) > MAX_VALUES or any("\0" in added_folder for added_folder in added_folders):
            raise _invalid(f"at most {MAX_VALUES} folders can be added to PATH, and none with a NUL character")
        summary = self._read_text("summary")[:MAX_SUMMARY_CHARACTERS]
        return StepReport(outputs=value_by_output, env=value_by_variable, paths=added_folders, summary=summary)

    def _read_text(self, kind: str) -> str:
        """Return the text of the file of this kind; empty if the job removed it.

        Raise `Refused` if it cannot be read.
        """
        relative_path = (self._folder / kind).relative_to(self._layout.root).as_posix()
        try:
            with (
                open_folder(self._layout.root) as root_fd,
                open_parent(root_fd, relative_path) as (parent_fd, file_name),
            ):
                descriptor = os.open(file_name, _READ_FLAGS, dir_fd=parent_fd)
        except FileNotFoundError:
            return ""  # The job removed the file: the same as an empty one.
        except OSError as error:
            raise _invalid(f"the file for {kind} cannot be read: {error.strerror}; append to it") from None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise _invalid(f"the file for {kind} is no longer a regular file; append to it instead of replacing it")
            content = b""
            while len(content) <= MAX_FILE_BYTES and (chunk := os.read(descriptor, MAX_FILE_BYTES + 1 - len(content))):
                content += chunk
        finally:
            os.close(descriptor)
        if len(content) > MAX_FILE_BYTES and kind != "summary":
            raise _invalid(f"the file for {kind} has more than {MAX_FILE_BYTES} bytes; write less")
        try:
            return content[:MAX_FILE_BYTES].decode("utf-8-sig", "replace" if kind == "summary" else "strict")
        except UnicodeDecodeError:
            raise _invalid(f"the file for {kind} is not UTF-8") from None


def parse_assignments(file_description: str, text: str) -> dict[str, str]:
    """Return the values by name from lines `name=value`, or `name<<END`, lines of the value and a line `END`.

    `file_description` names the file in error messages.
    """
    assignments: dict[str, str] = {}
    remaining_lines = iter(text.split("\n"))
    for assignment in (raw_line.removesuffix("\r") for raw_line in remaining_lines):
        if not assignment.strip():
            continue
        equals, heredoc = assignment.find("="), assignment.find("<<")
        if heredoc >= 0 and (equals < 0 or heredoc < equals):
            assigned_name, delimiter = assignment[:heredoc], assignment[heredoc + 2 :]
            if not delimiter:
                raise _invalid(f"{file_description}: {assignment[:80]!r} has no delimiter after '<<'")
            value_lines: list[str] = []
            for value_line in remaining_lines:
                if value_line.removesuffix("\r") == delimiter:
                    break
                value_lines.append(value_line)
            else:
                raise _invalid(
                    f"{file_description}: found no line {delimiter[:80]!r}, which should end {assigned_name[:80]!r}"
                )
            value = "\n".join(value_lines)
        elif equals >= 0:
            assigned_name, value = assignment[:equals], assignment[equals + 1 :]
        else:
            raise _invalid(f"{file_description}: {assignment[:80]!r} is neither 'name=value' nor 'name<<END'")
        if not 0 < len(assigned_name) <= MAX_NAME or "\0" in value or "\0" in assigned_name:
            raise _invalid(
                f"{file_description}: {assigned_name[:80]!r} is not a valid name, or its value has a NUL character"
            )
        assignments[assigned_name] = value
        if len(assignments) > MAX_VALUES:
            raise _invalid(f"{file_description}: more than {MAX_VALUES}")
    return assignments


def check_variable(variable_name: str) -> None:
    """Raise `Refused` if a step may not set this variable for later steps."""
    if not VARIABLE_NAME.fullmatch(variable_name):
        raise _invalid(f"{variable_name[:80]!r} is not a valid name of a variable")
    if variable_name.upper().startswith(RESERVED_PREFIXES):
        raise _invalid(
            f"{variable_name[:80]!r} cannot be set: {', '.join(RESERVED_PREFIXES)} are reserved for the runner"
        )


def _invalid(message: str) -> Refused:
    return Refused("bad_request", message)
