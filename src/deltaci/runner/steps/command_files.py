"""The files by which a step says something to the runner: outputs, variables, folders of programs, a summary.

Each step has its own, in the job's folder for what does not last. The job may write whatever it likes into them, or put
something else in their place: nothing here follows a link, and only so much is read.
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
# What the runner tells a job, a job does not tell itself.
OURS: Final = ("DELTACI_", "GITHUB_", "RUNNER_")
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a step said."""

    outputs: dict[str, str] = {}
    env: dict[str, str] = {}
    paths: list[str] = []
    summary: str = ""


class CommandFiles:
    """The files of one step."""

    def __init__(self, layout: Layout, index: int) -> None:
        self._layout = layout
        self._folder = layout.temp / f"step-{index}"

    def make(self) -> dict[str, str]:
        """Empty ones, and the variables that name them."""
        inner = self._folder.relative_to(self._layout.root).as_posix()
        named: dict[str, str] = {}
        for name, variable in KINDS.items():
            path = write_file(self._layout.root, f"{inner}/{name}", "", mode=0o666)
            named[f"GITHUB_{variable}"] = named[f"DELTACI_{variable}"] = str(path)
        return named

    def read(self) -> StepReport:
        """What is in them. Refused if it makes no sense."""
        outputs = values("the outputs", self._text("output"))
        env = values("the variables", self._text("env"))
        for name in outputs:
            if not OUTPUT_NAME.fullmatch(name):
                raise _bad(f"{name[:80]!r} is no name for an output; give letters, digits, '-' and '_'")
        for name in env:
            check_variable(name)
        # A line may have several, as PATH itself has them.
        paths = [each for line in self._text("path").splitlines() for each in line.split(":") if each.strip()]
        if len(paths) > MAX_VALUES or any("\0" in path for path in paths):
            raise _bad(f"folders for PATH are at most {MAX_VALUES}, and have no NUL")
        summary = self._text("summary")[:MAX_SUMMARY_CHARACTERS]
        return StepReport(outputs=outputs, env=env, paths=paths, summary=summary)

    def _text(self, name: str) -> str:
        path = (self._folder / name).relative_to(self._layout.root).as_posix()
        try:
            with open_folder(self._layout.root) as top, open_parent(top, path) as (folder, last):
                file = os.open(last, _READ, dir_fd=folder)
        except FileNotFoundError:
            return ""  # Removed: then nothing is said.
        except OSError as error:
            raise _bad(f"the file for {name} cannot be read: {error.strerror}; append to it") from None
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise _bad(f"the file for {name} is none any more; append to the one that is there")
            data = b""
            while len(data) <= MAX_FILE_BYTES and (part := os.read(file, MAX_FILE_BYTES + 1 - len(data))):
                data += part
        finally:
            os.close(file)
        if len(data) > MAX_FILE_BYTES and name != "summary":
            raise _bad(f"the file for {name} has more than {MAX_FILE_BYTES} bytes; say less")
        try:
            return data[:MAX_FILE_BYTES].decode("utf-8-sig", "replace" if name == "summary" else "strict")
        except UnicodeDecodeError:
            raise _bad(f"the file for {name} is not UTF-8") from None


def values(what: str, text: str) -> dict[str, str]:
    """`name=value`, or `name<<END` and the lines up to one that is `END`."""
    found: dict[str, str] = {}
    lines = iter(text.split("\n"))
    for line in (each.removesuffix("\r") for each in lines):
        if not line.strip():
            continue
        equals, heredoc = line.find("="), line.find("<<")
        if heredoc >= 0 and (equals < 0 or heredoc < equals):
            name, end = line[:heredoc], line[heredoc + 2 :]
            if not end:
                raise _bad(f"{what}: {line[:80]!r} has no word after '<<'")
            inner: list[str] = []
            for each in lines:
                if each.removesuffix("\r") == end:
                    break
                inner.append(each)
            else:
                raise _bad(f"{what}: no line is {end[:80]!r}, which should end {name[:80]!r}")
            value = "\n".join(inner)
        elif equals >= 0:
            name, value = line[:equals], line[equals + 1 :]
        else:
            raise _bad(f"{what}: {line[:80]!r} is neither 'name=value' nor 'name<<END'")
        if not 0 < len(name) <= MAX_NAME or "\0" in value or "\0" in name:
            raise _bad(f"{what}: {name[:80]!r} is no name, or its value has a NUL")
        found[name] = value
        if len(found) > MAX_VALUES:
            raise _bad(f"{what}: more than {MAX_VALUES}")
    return found


def check_variable(name: str) -> None:
    """Refuse a variable that a job cannot set for its later steps."""
    if not VARIABLE_NAME.fullmatch(name):
        raise _bad(f"{name[:80]!r} is no name for a variable")
    if name.upper().startswith(OURS):
        raise _bad(f"{name[:80]!r} cannot be set: what begins with {', '.join(OURS)} is said by the runner")


def _bad(why: str) -> Refused:
    return Refused("bad_request", why)
