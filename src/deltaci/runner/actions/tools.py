"""Finds installed versions of a program inside the job's cell, for `setup-python` and `setup-node`.

Nothing is downloaded: if the machine or the image does not have a version, the step fails and lists the installed ones.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from deltaci.core.errors import Refused
from deltaci.runner.actions.context import JobContext, StepFailed
from deltaci.runner.actions.versions import Version, parse_version, version_matches
from deltaci.runner.sandbox import Exit
from deltaci.runner.workspace.folders import open_folder, open_parent

FIND_SECONDS: Final = 120.0
MAX_OUTPUT_BYTES: Final = 256 * 1024
MAX_VERSION_FILE_BYTES: Final = 256 * 1024
CODE: Final = "BAD_SPEC"
MARKER: Final = "deltaci-found"


class Tool(msgspec.Struct, frozen=True, order=True):
    """An installed version of a program."""

    version: Version
    path: str

    @property
    def version_text(self) -> str:
        """The version as text, as 3.11.7."""
        return ".".join(map(str, self.version))


def expand_home(path_patterns: Sequence[str], home_folder: Path) -> list[str]:
    """Return shell patterns in which a leading `~` is replaced by the home of the runner's user, not of the job."""
    return [
        shlex.quote(f"{home_folder}") + pattern[1:] if pattern.startswith("~") else pattern for pattern in path_patterns
    ]


async def find_tools(
    job: JobContext, program_names: Sequence[str], path_patterns: Sequence[str], version_arguments: str
) -> list[Tool]:
    """Return the programs with these names on the PATH of the cell, or at these glob patterns, with their versions.

    The newest version is first. If a version is installed twice, only the program that was found first is returned.
    """
    joined_candidates = " ".join(f'"$d"/{name}' for name in program_names)
    script = f"""
try() {{
  case "$1" in */shims/*) return ;; esac
  [ -x "$1" ] && [ ! -d "$1" ] && v=$("$1" {version_arguments} 2>/dev/null </dev/null) \\
    && printf '{MARKER}\\t%s\\t%s\\n' "$1" "$v"
}}
IFS=:; for d in $PATH; do unset IFS; for p in {joined_candidates}; do try "$p"; done; done
for p in {" ".join(path_patterns)}; do try "$p"; done
true
"""
    script_exit, script_output = await run_in_cell(job, script, FIND_SECONDS)
    tools: dict[Version, Tool] = {}
    for output_line in script_output.splitlines():
        marker, _, path_and_version = output_line.partition("\t")
        program_path, _, version_text = path_and_version.partition("\t")
        version = parse_version(version_text)
        if marker == MARKER and version is not None and program_path.startswith("/"):
            tools.setdefault(version, Tool(version, program_path))
    if script_exit.exit_code != 0 and not tools:
        raise StepFailed(f"the search for installed versions failed: {script_output.strip()[-300:]}", "RUNNER_STARTUP")
    return sorted(tools.values(), reverse=True)


async def run_in_cell(job: JobContext, script: str, timeout_seconds: float) -> tuple[Exit, str]:
    """Run a script of the runner in the job's cell. Return its exit and the beginning of its output."""
    output_bytes = bytearray()

    def on_output(chunk: bytes) -> None:
        if len(output_bytes) < MAX_OUTPUT_BYTES:
            output_bytes.extend(chunk)

    script_exit = await job.cell.run(
        script,
        env={variable: value for variable, value in job.env.items() if variable in ("PATH", "HOME")},
        workdir=job.layout.workspace,
        timeout_seconds=timeout_seconds,
        on_output=on_output,
        shell=("sh", "-c"),
    )
    return script_exit, output_bytes.decode("utf-8", "replace")


def choose_tool(program_name: str, version_spec: str, installed_tools: Sequence[Tool]) -> Tool:
    """Return the newest installed version that matches. Raise `StepFailed` if none does."""
    for tool in installed_tools:
        if version_matches(version_spec, tool.version):
            return tool
    listed_versions = ", ".join(tool.version_text for tool in installed_tools) or "none"
    message = (
        f"{program_name} {version_spec!r} is not installed; found: {listed_versions}. Install it, or use one of them"
    )
    raise StepFailed(message, CODE)


def read_version_file(job: JobContext, path: str) -> str:
    """Return the text of a small file of the workspace, read without following links. Raise `Refused` if impossible."""
    relative_path = job.layout.resolve(path)
    try:
        with open_folder(job.layout.root) as root_fd, open_parent(root_fd, relative_path) as (parent_fd, file_name):
            descriptor = os.open(
                file_name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=parent_fd
            )
            with os.fdopen(descriptor, "rb") as file:
                return file.read(MAX_VERSION_FILE_BYTES).decode("utf-8", "replace")
    except OSError as error:
        raise Refused("bad_spec", f"the file {path[:80]!r} cannot be read: {error.strerror}") from None
