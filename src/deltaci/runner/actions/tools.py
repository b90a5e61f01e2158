"""What `setup-python` and `setup-node` share: looking, inside of the job's cell, for what is there.

Nothing is downloaded: a version that the machine or the image does not have is a mistake that says which there are.
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
from deltaci.runner.actions.versions import Version, fits, version_of
from deltaci.runner.sandbox import Exit
from deltaci.runner.workspace.folders import open_folder, open_parent

LOOK_SECONDS: Final = 120.0
MAX_HEARD_BYTES: Final = 256 * 1024
MAX_VERSION_FILE: Final = 256 * 1024
CODE: Final = "BAD_SPEC"
MARK: Final = "deltaci-found"


class Tool(msgspec.Struct, frozen=True, order=True):
    """One that is there."""

    version: Version
    path: str

    @property
    def told(self) -> str:
        """Its version, as people write it."""
        return ".".join(map(str, self.version))


def places(own: Sequence[str], home: Path) -> list[str]:
    """Patterns of files, for a shell; those of the runner's own home begin with `~`."""
    return [shlex.quote(f"{home}") + each[1:] if each.startswith("~") else each for each in own]


async def look(job: JobContext, names: Sequence[str], patterns: Sequence[str], ask: str) -> list[Tool]:
    """All of these programs that run in the cell, the newest first; of one version the one that was named first."""
    inner = " ".join(f'"$d"/{name}' for name in names)
    script = f"""
try() {{
  case "$1" in */shims/*) return ;; esac
  [ -x "$1" ] && [ ! -d "$1" ] && v=$("$1" {ask} 2>/dev/null </dev/null) && printf '{MARK}\\t%s\\t%s\\n' "$1" "$v"
}}
IFS=:; for d in $PATH; do unset IFS; for p in {inner}; do try "$p"; done; done
for p in {" ".join(patterns)}; do try "$p"; done
true
"""
    ended, said = await in_cell(job, script, LOOK_SECONDS)
    found: dict[Version, Tool] = {}
    for line in said.splitlines():
        mark, _, rest = line.partition("\t")
        path, _, told = rest.partition("\t")
        version = version_of(told)
        if mark == MARK and version is not None and path.startswith("/"):
            found.setdefault(version, Tool(version, path))
    if ended.exit_code != 0 and not found:
        raise StepFailed(f"looking for programs failed: {said.strip()[-300:]}", "RUNNER_STARTUP")
    return sorted(found.values(), reverse=True)


async def in_cell(job: JobContext, script: str, seconds: float) -> tuple[Exit, str]:
    """Run something of our own in the job's cell; what it said."""
    heard = bytearray()

    def hear(data: bytes) -> None:
        if len(heard) < MAX_HEARD_BYTES:
            heard.extend(data)

    ended = await job.cell.run(
        script,
        env={name: value for name, value in job.env.items() if name in ("PATH", "HOME")},
        workdir=job.layout.workspace,
        timeout_seconds=seconds,
        on_output=hear,
        shell=("sh", "-c"),
    )
    return ended, heard.decode("utf-8", "replace")


def choose(what: str, wanted: str, there: Sequence[Tool]) -> Tool:
    """The newest that fits, or what there is instead."""
    for each in there:
        if fits(wanted, each.version):
            return each
    known = ", ".join(each.told for each in there) or "none at all"
    raise StepFailed(f"{what} {wanted!r} is not here; there are: {known}. Install it, or ask for one of them", CODE)


def read_file(job: JobContext, path: str) -> str:
    """A small file of the workspace that names a version; no link is followed."""
    inner = job.layout.resolve(path)
    try:
        with open_folder(job.layout.root) as top, open_parent(top, inner) as (folder, name):
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
            with os.fdopen(descriptor, "rb") as file:
                return file.read(MAX_VERSION_FILE).decode("utf-8", "replace")
    except OSError as error:
        raise Refused("bad_spec", f"the file {path[:80]!r} cannot be read: {error.strerror}") from None
