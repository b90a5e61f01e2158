"""What the expressions of a job see on a runner, and what they are worth just before something is done with them.

Without `contexts` in its specification a job has no expressions in its texts: every text is what it is, and only
conditions are evaluated.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from deltaci.core.errors import Refused
from deltaci.pipeline import expressions
from deltaci.pipeline.expressions.templates import OPEN
from deltaci.pipeline.expressions.values import Value, to_text
from deltaci.protocol.messages import ArtifactRule, JobSpec, Source
from deltaci.protocol.responses import NeededJob
from deltaci.runner.workspace.artifacts import SearchLimits, find_files, open_file
from deltaci.runner.workspace.layout import Layout, is_pipeline_job

SUCCESS: Final = "success"
FAILURE: Final = "failure"
SKIPPED: Final = "skipped"
CANCELLED: Final = "cancelled"
EVENT_FILE: Final = "event.json"
MAX_HASHED: Final = SearchLimits(files=100_000, bytes=4 * 1024**3)
_PART: Final = 1024 * 1024
_SYSTEMS: Final = {"linux": "Linux", "darwin": "macOS", "windows": "Windows"}
_MACHINES: Final = {"x86_64": "X64", "amd64": "X64", "aarch64": "ARM64", "arm64": "ARM64", "i686": "X86"}
# What of the context `github` is a variable, too.
_VARIABLES: Final = (
    *("sha", "ref", "ref_name", "ref_type", "head_ref", "base_ref", "repository", "repository_owner", "actor"),
    *("triggering_actor", "event_name", "workflow", "workflow_ref", "job", "run_id", "run_number", "run_attempt"),
    *("server_url", "api_url", "graphql_url"),
)


class JobExpressions:
    """What is known while one job goes on. `env`, `status`, `steps` and `job` change with its steps."""

    def __init__(
        self,
        spec: JobSpec,
        layout: Layout,
        *,
        runner: str = "",
        secrets: Mapping[str, str] | None = None,
        needs: Mapping[str, NeededJob] | None = None,
    ) -> None:
        self.is_pipeline_job = is_pipeline_job(spec)
        self._has_expressions = spec.contexts is not None
        self._given: dict[str, Any] = dict(spec.contexts or {})
        self._source = spec.source
        self._layout = layout
        self._secrets = dict(secrets or {})
        told = self._given.get("needs")
        self._needs = _grouped(needs or {}, told if isinstance(told, dict) else {})
        self._runner = {
            "name": runner,
            "os": _SYSTEMS.get(platform.system().lower(), platform.system()),
            "arch": _MACHINES.get(platform.machine().lower(), platform.machine().upper()),
            "temp": str(layout.temp),
            "tool_cache": str(layout.tools),
            "workspace": str(layout.workspace.parent),
            "environment": "self-hosted",
            "debug": "",
        }
        self.env: dict[str, str] = {}
        self.steps: dict[str, dict[str, Any]] = {}
        self.job: dict[str, Any] = {}
        self.status = SUCCESS

    @property
    def github(self) -> dict[str, Any]:
        """The context `github`, with what only a runner knows."""
        given = self._given.get("github")
        return {**(given if isinstance(given, dict) else {}), "workspace": str(self._layout.workspace)}

    def variables(self) -> dict[str, str]:
        """What every step of a pipeline finds in its environment, beside what it asks for."""
        if not self.is_pipeline_job:
            return {}
        layout, runner = self._layout, self._runner
        told = {
            "CI": "true",
            "DELTACI": "true",
            "HOME": str(layout.home),
            "RUNNER_TEMP": runner["temp"],
            "RUNNER_TOOL_CACHE": runner["tool_cache"],
            "RUNNER_WORKSPACE": runner["workspace"],
            "RUNNER_OS": runner["os"],
            "RUNNER_ARCH": runner["arch"],
            "RUNNER_NAME": runner["name"],
            "RUNNER_ENVIRONMENT": runner["environment"],
            "GITHUB_WORKSPACE": str(layout.workspace),
            "DELTACI_WORKSPACE": str(layout.workspace),
        }
        github = {**_of_source(self._source), **self.github}
        for name in _VARIABLES:
            value = github.get(name)
            if isinstance(value, str | int | float) and "\0" not in str(value):
                told[f"GITHUB_{name.upper()}"] = to_text(value)
        if github.get("event") is not None:
            told["GITHUB_EVENT_PATH"] = str(layout.temp / EVENT_FILE)
        if ".github/workflows/" in str(github.get("workflow_ref", "")):
            told["GITHUB_ACTIONS"] = "true"
        return told

    def text(self, template: str, env: Mapping[str, str] | None = None) -> str:
        """A text with the values of its expressions in it."""
        if not self._has_expressions or OPEN not in template:
            return template
        return to_text(expressions.interpolate(template, self._contexts(env), self._functions()))

    def texts(self, templates: Mapping[str, str], env: Mapping[str, str] | None = None) -> dict[str, str]:
        """Variables: one that is written later may mention those before it."""
        found: dict[str, str] = {}
        for name, template in templates.items():
            found[name] = self.text(template, {**(self.env if env is None else env), **found})
        return found

    def inputs(self, templates: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
        """What a built-in step is told."""
        return {name: self.text(template, env) for name, template in templates.items()}

    def holds(self, condition: str, env: Mapping[str, str] | None = None) -> bool:
        """Whether a step is to run."""
        return expressions.evaluate_condition(
            expressions.parse_condition(condition), self._contexts(env), self._functions()
        )

    def job_holds(self, condition: str) -> bool:
        """Whether the job is to do anything: `success()` and the others are about its needs."""
        results = [each["result"] for each in self._needs.values() if each["is_there"]]
        functions: expressions.Functions = {
            "success": lambda _: all(result == SUCCESS for result in results),
            "failure": lambda _: FAILURE in results,
            "cancelled": lambda _: False,
            "always": lambda _: True,
        }
        return expressions.evaluate_condition(expressions.parse_condition(condition), self._contexts({}), functions)

    def told(self, id: str, outcome: str, conclusion: str, outputs: Mapping[str, str]) -> None:
        """A step ended, or was left out."""
        if id:
            self.steps[id] = {"outputs": dict(outputs), "outcome": outcome, "conclusion": conclusion}

    def _contexts(self, env: Mapping[str, str] | None) -> expressions.Contexts:
        return {
            **self._given,
            "github": self.github,
            "needs": {name: {"result": n["result"], "outputs": n["outputs"]} for name, n in self._needs.items()},
            "secrets": self._secrets,
            "steps": self.steps,
            "job": {**self.job, "status": self.status},
            "runner": self._runner,
            "env": dict(self.env if env is None else env),
        }

    def _functions(self) -> expressions.Functions:
        return {
            "success": lambda _: self.status == SUCCESS,
            "failure": lambda _: self.status == FAILURE,
            "cancelled": lambda _: False,  # A cancel ends everything at once: nobody is left to ask.
            "always": lambda _: True,
            "hashFiles": self._hash_files,
        }

    def _hash_files(self, arguments: Sequence[Value]) -> Value:
        return hash_files(self._layout.workspace, [to_text(argument) for argument in arguments])


def _of_source(source: Source | None) -> dict[str, Any]:
    """What the sources tell, where nobody said it: `contexts` only has what is mentioned."""
    if source is None:
        return {}
    kind, _, name = source.ref.removeprefix("refs/").partition("/")
    path = source.url.removesuffix(".git").replace(":", "/").split("/")
    known = {"sha": source.commit, "ref": source.ref, "ref_name": name}
    return {
        **{key: value for key, value in known.items() if value},
        **({"ref_type": "tag" if kind == "tags" else "branch"} if name else {}),
        **({"repository": "/".join(path[-2:])} if "://" in source.url and len(path) > 4 else {}),
    }


def hash_files(workspace: Path, patterns: Sequence[str]) -> str:
    """The SHA-256 of the files' SHA-256s, in the order of their paths; empty if no file matches."""
    wanted: list[ArtifactRule] = []
    unwanted: list[ArtifactRule] = []
    for pattern in (line.strip() for each in patterns for line in each.splitlines()):
        if pattern and not pattern.startswith("#"):
            kind = unwanted if pattern.startswith("!") else wanted
            plain = pattern.lstrip("!").strip().removeprefix(f"{workspace}/")
            kind.append(ArtifactRule(path_glob=plain))
    try:
        without = {each.path for each in find_files(workspace, unwanted, MAX_HASHED)} if unwanted else set()
        found = [each for each in find_files(workspace, wanted, MAX_HASHED) if each.path not in without]
        total = hashlib.sha256()
        for each in found:
            one = hashlib.sha256()
            with open_file(workspace, each) as file:
                while part := file.read(_PART):
                    one.update(part)
            total.update(one.digest())
    except Refused as refused:
        raise Refused("bad_spec", f"hashFiles: {refused.message}") from None
    except OSError as error:
        raise Refused("bad_spec", f"hashFiles: a file cannot be read: {error.strerror}") from None
    return total.hexdigest() if found else ""


def _grouped(needs: Mapping[str, NeededJob], told: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The results by the name that a pipeline knows; those of a matrix are one: as bad as the worst of them.

    What was told when the run was planned is of jobs that are not in it, or says which jobs a name stands for.
    """
    found: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}
    for name, each in told.items():
        if isinstance(each, dict) and "result" in each:
            outputs = each.get("outputs")
            known = {"result": each["result"], "outputs": outputs if isinstance(outputs, dict) else {}}
            found[name] = {**known, "is_there": False}
        elif isinstance(each, dict) and isinstance(each.get("jobs"), list):
            names |= {str(job): name for job in each["jobs"]}
    for name, need in needs.items():
        matrix = name.partition(" (")[0] if name.endswith(")") else ""
        key = names.get(name) or need.family or matrix or name
        before = found.get(key)
        if before is not None and not need.exists:
            continue  # What was told of it is all there is.
        if before is None or not before["is_there"]:
            before = found[key] = {"result": need.result, "outputs": {}, "is_there": need.exists}
        before["outputs"].update(need.outputs)
        before["result"] = min(before["result"], need.result, key=_WORST.index)
    return found


_WORST: Final = (FAILURE, CANCELLED, SUCCESS, SKIPPED)
