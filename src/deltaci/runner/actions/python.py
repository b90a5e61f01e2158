"""`uses: setup-python`: creates a virtual environment with an installed Python and puts it first on the job's PATH."""

from __future__ import annotations

import os
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

from deltaci.core.errors import Refused
from deltaci.runner.actions.context import JobContext, StepFailed, check_inputs, non_empty_lines
from deltaci.runner.actions.tools import Tool, choose_tool, expand_home, find_tools, read_version_file, run_in_cell
from deltaci.runner.workspace.safe_fs import create_folder

INPUTS: Final = (
    *("python-version", "python-version-file", "cache", "cache-dependency-path", "architecture", "check-latest"),
    *("token", "update-environment", "allow-prereleases", "freethreaded", "pip-version", "pip-install"),
)
NAMES: Final = ("python3", "python3.[0-9]", "python3.[0-9][0-9]", "python")
PRINT_VERSION: Final = (
    """-c 'import sys; print("%d.%d.%d" % sys.version_info[:3] * (sys.implementation.name == "cpython"))'"""
)
CREATE_SECONDS: Final = 300.0
VARIABLES: Final = ("pythonLocation", "Python_ROOT_DIR", "Python3_ROOT_DIR")


async def setup(job: JobContext, value_by_input: dict[str, str]) -> dict[str, str]:
    """Create a virtual environment for each requested version and put them on the PATH, the last version first.

    Return the step's outputs.
    """
    check_inputs(value_by_input, INPUTS)
    installed_tools = await find_tools(job, NAMES, expand_home(_patterns(), Path.home()), PRINT_VERSION)
    version_specs = _version_specs(job, value_by_input)
    tools = [choose_tool("Python", version_spec, installed_tools) for version_spec in version_specs]
    if value_by_input.get("cache", "").strip():
        job.log.write_line("setup-python: 'cache' is ignored; use a step 'cache', or 'caches' of the job")
    environment_folder = ""
    for tool in tools:
        environment_folder = await _create_environment(job, tool)
        job.paths = [f"{environment_folder}/bin", *job.paths]
        job.log.write_line(f"Python {tool.version_text}: {tool.path}")
    job.set_env = {
        **job.set_env,
        **dict.fromkeys(("pythonLocation", "Python_ROOT_DIR", "Python3_ROOT_DIR"), environment_folder),
    }
    return {
        "python-version": tools[-1].version_text,
        "python-path": f"{environment_folder}/bin/python",
        "cache-hit": "false",
    }


def _patterns() -> list[str]:
    """Return glob patterns of the paths at which version managers install Python."""
    pyenv_root = os.environ.get("PYENV_ROOT", "")
    return [
        "/opt/hostedtoolcache/Python/*/*/bin/python3",
        *([f"{shlex.quote(pyenv_root)}/versions/*/bin/python3"] if pyenv_root.startswith("/") else []),
        "~/.pyenv/versions/*/bin/python3",
        "~/.local/share/uv/python/*/bin/python3",
        "/opt/python/*/bin/python3",
        "/usr/local/bin/python3.[0-9]*[0-9]",
        f"{shlex.quote(sys.base_prefix)}/bin/python3",
    ]


def _version_specs(job: JobContext, value_by_input: dict[str, str]) -> list[str]:
    """Return the versions that the inputs, or a version file, request; `*` if there are none."""
    version_specs = non_empty_lines(value_by_input.get("python-version", ""))
    file_path = value_by_input.get("python-version-file", "").strip()
    if not version_specs and not file_path and (job.layout.workspace / ".python-version").is_file():
        file_path = ".python-version"
    if not version_specs and file_path:
        version_specs = parse_version_file(file_path, read_version_file(job, file_path))
    return [_normalize_version_spec(version_spec) for version_spec in version_specs] or ["*"]


def parse_version_file(file_name: str, text: str) -> list[str]:
    """Return the versions that a file such as `.python-version` or `pyproject.toml` requests."""
    if file_name.endswith(".toml"):
        try:
            document: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise Refused("bad_spec", f"the file {file_name[:80]!r} is not TOML: {error}") from None
        project = document.get("project")
        requires_python = project.get("requires-python") if isinstance(project, dict) else None
        return [requires_python] if isinstance(requires_python, str) else []
    if file_name.endswith(".tool-versions"):
        return [
            line.split()[1] for line in non_empty_lines(text) if line.split()[0] == "python" and len(line.split()) > 1
        ]
    return [line for line in non_empty_lines(text) if not line.startswith("#")][:1]


def _normalize_version_spec(version_spec: str) -> str:
    """Return the spec without the suffixes of `3.13-dev` and `3.14t`.

    Raise `StepFailed` for implementations other than CPython.
    """
    if re.match(r"(pypy|graalpy|jython)", version_spec, re.IGNORECASE):
        raise StepFailed(f"{version_spec[:80]!r} is not CPython; setup-python finds only CPython", "BAD_SPEC")
    return re.sub(r"(?<=\d)(-dev|t)$", "", version_spec.removeprefix("python-"))


async def _create_environment(job: JobContext, tool: Tool) -> str:
    """Create a virtual environment in the job's folders, unless it exists, and return its path.

    The job installs packages into it: the installation of the interpreter may be read-only or shared.
    """
    layout = job.layout
    folder = create_folder(layout.root, layout.relative(layout.tools)) / f"python-{tool.version_text}"
    quoted_path, quoted_python = shlex.quote(str(folder)), shlex.quote(tool.path)
    script = (
        f"[ -x {quoted_path}/bin/pip ] || {quoted_python} -m venv {quoted_path} || "
        f"{{ rm -rf {quoted_path}; virtualenv -q -p {quoted_python} {quoted_path}; }}"
    )
    script_exit, script_output = await run_in_cell(
        job, script, min(CREATE_SECONDS, job.timeout_seconds or CREATE_SECONDS)
    )
    if script_exit.exit_code != 0:
        reason = " ".join(script_output.split())[-300:]
        message = f"Python {tool.version_text}: cannot create an environment with {tool.path}: {reason}"
        raise StepFailed(message, "BAD_SPEC")
    return str(folder)
