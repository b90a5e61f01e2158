"""`uses: setup-python`: an interpreter that is there, as an environment of the job's own, first on its PATH."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

from deltaci.core.errors import Refused
from deltaci.runner.actions.context import JobContext, StepFailed, known, lines
from deltaci.runner.actions.tools import Tool, choose, in_cell, look, places, read_file
from deltaci.runner.workspace.safe_fs import create_folder

INPUTS: Final = (
    *("python-version", "python-version-file", "cache", "cache-dependency-path", "architecture", "check-latest"),
    *("token", "update-environment", "allow-prereleases", "freethreaded", "pip-version", "pip-install"),
)
NAMES: Final = ("python3", "python3.[0-9]", "python3.[0-9][0-9]", "python")
ASK: Final = """-c 'import sys; print("%d.%d.%d" % sys.version_info[:3] * (sys.implementation.name == "cpython"))'"""
MAKE_SECONDS: Final = 300.0
VARIABLES: Final = ("pythonLocation", "Python_ROOT_DIR", "Python3_ROOT_DIR")


async def setup(job: JobContext, inputs: dict[str, str]) -> dict[str, str]:
    """Find each version that is wanted; the last one is `python`."""
    known(inputs, INPUTS)
    there = await look(job, NAMES, places(_everywhere(), Path.home()), ASK)
    wanted = _wanted(job, inputs)
    chosen = [choose("Python", each, there) for each in wanted]
    if inputs.get("cache", "").strip():
        job.log.write_line("setup-python: 'cache' is not done here; use a step 'cache', or 'caches' of the job")
    folder = ""
    for each in chosen:
        folder = await _environment(job, each)
        job.paths = [f"{folder}/bin", *job.paths]
        job.log.write_line(f"Python {each.told}: {each.path}")
    job.set_env = {
        **job.set_env,
        **dict.fromkeys(("pythonLocation", "Python_ROOT_DIR", "Python3_ROOT_DIR"), folder),
    }
    return {"python-version": chosen[-1].told, "python-path": f"{folder}/bin/python", "cache-hit": "false"}


def _everywhere() -> list[str]:
    root = os.environ.get("PYENV_ROOT", "")
    return [
        "/opt/hostedtoolcache/Python/*/*/bin/python3",
        *([f"{shlex.quote(root)}/versions/*/bin/python3"] if root.startswith("/") else []),
        "~/.pyenv/versions/*/bin/python3",
        "~/.local/share/uv/python/*/bin/python3",
        "/opt/python/*/bin/python3",
        "/usr/local/bin/python3.[0-9]*[0-9]",
        f"{shlex.quote(sys.base_prefix)}/bin/python3",
    ]


def _wanted(job: JobContext, inputs: dict[str, str]) -> list[str]:
    found = lines(inputs.get("python-version", ""))
    file = inputs.get("python-version-file", "").strip()
    if not found and not file and (job.layout.workspace / ".python-version").is_file():
        file = ".python-version"
    if not found and file:
        found = versions_in(file, read_file(job, file))
    return [_plain(each) for each in found] or ["*"]


def versions_in(name: str, text: str) -> list[str]:
    """The versions that a file names."""
    if name.endswith(".toml"):
        try:
            read: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise Refused("bad_spec", f"the file {name[:80]!r} is no TOML: {error}") from None
        project = read.get("project")
        told = project.get("requires-python") if isinstance(project, dict) else None
        return [told] if isinstance(told, str) else []
    if name.endswith(".tool-versions"):
        return [line.split()[1] for line in lines(text) if line.split()[0] == "python" and len(line.split()) > 1]
    return [line for line in lines(text) if not line.startswith("#")][:1]


def _plain(wanted: str) -> str:
    """`3.13-dev` and `3.14t` are asked for by their numbers; another implementation is another thing."""
    if re.match(r"(pypy|graalpy|jython)", wanted, re.IGNORECASE):
        raise StepFailed(f"{wanted[:80]!r} is not CPython, which is all that setup-python finds here", "BAD_SPEC")
    return re.sub(r"(?<=\d)(-dev|t)$", "", wanted.removeprefix("python-"))


async def _environment(job: JobContext, tool: Tool) -> str:
    """One made with this interpreter: the job may install into it, and into nothing else."""
    layout = job.layout
    folder = create_folder(layout.root, layout.relative(layout.tools)) / f"python-{tool.told}"
    made, python = shlex.quote(str(folder)), shlex.quote(tool.path)
    script = (
        f"[ -x {made}/bin/pip ] || {python} -m venv {made} || {{ rm -rf {made}; virtualenv -q -p {python} {made}; }}"
    )
    ended, said = await in_cell(job, script, min(MAKE_SECONDS, job.timeout_seconds or MAKE_SECONDS))
    if ended.exit_code != 0:
        why = " ".join(said.split())[-300:]
        raise StepFailed(f"Python {tool.told}: no environment can be made with {tool.path}: {why}", "BAD_SPEC")
    return str(folder)
