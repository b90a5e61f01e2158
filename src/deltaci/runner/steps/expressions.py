"""Evaluates the expressions of a job on the runner, each just before its value is needed.

If the job spec has no `contexts`, the job's texts contain no expressions: they are used unchanged, and only conditions
are evaluated.
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
_PART_BYTES: Final = 1024 * 1024
_SYSTEMS: Final = {"linux": "Linux", "darwin": "macOS", "windows": "Windows"}
_MACHINES: Final = {"x86_64": "X64", "amd64": "X64", "aarch64": "ARM64", "arm64": "ARM64", "i686": "X86"}
# The fields of the context `github` that steps also find in variables, as GITHUB_SHA.
_GITHUB_VARIABLES: Final = (
    *("sha", "ref", "ref_name", "ref_type", "head_ref", "base_ref", "repository", "repository_owner", "actor"),
    *("triggering_actor", "event_name", "workflow", "workflow_ref", "job", "run_id", "run_number", "run_attempt"),
    *("server_url", "api_url", "graphql_url"),
)


class JobExpressions:
    """Evaluates the expressions of one job. `env`, `status`, `steps` and `job` change while its steps run."""

    def __init__(
        self,
        spec: JobSpec,
        layout: Layout,
        *,
        runner_name: str = "",
        secrets: Mapping[str, str] | None = None,
        needs: Mapping[str, NeededJob] | None = None,
    ) -> None:
        self.is_pipeline_job = is_pipeline_job(spec)
        self._has_expressions = spec.contexts is not None
        self._spec_contexts: dict[str, Any] = dict(spec.contexts or {})
        self._source = spec.source
        self._layout = layout
        self._secrets = dict(secrets or {})
        planned_needs = self._spec_contexts.get("needs")
        self._needs = _group_needs(needs or {}, planned_needs if isinstance(planned_needs, dict) else {})
        self._runner = {
            "name": runner_name,
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
        """The context `github` of the job spec, with the path of the workspace on this runner."""
        github = self._spec_contexts.get("github")
        return {**(github if isinstance(github, dict) else {}), "workspace": str(self._layout.workspace)}

    def variables(self) -> dict[str, str]:
        """Return the environment variables that every step of a pipeline job gets; empty for other jobs."""
        if not self.is_pipeline_job:
            return {}
        layout, runner = self._layout, self._runner
        variables = {
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
        github = {**_github_of_source(self._source), **self.github}
        for property_name in _GITHUB_VARIABLES:
            property_value = github.get(property_name)
            if isinstance(property_value, str | int | float) and "\0" not in str(property_value):
                variables[f"GITHUB_{property_name.upper()}"] = to_text(property_value)
        if github.get("event") is not None:
            variables["GITHUB_EVENT_PATH"] = str(layout.temp / EVENT_FILE)
        if ".github/workflows/" in str(github.get("workflow_ref", "")):
            variables["GITHUB_ACTIONS"] = "true"
        return variables

    def interpolate(self, template: str, env: Mapping[str, str] | None = None) -> str:
        """Return the text with its expressions replaced by their values; unchanged if the job has no expressions."""
        if not self._has_expressions or OPEN not in template:
            return template
        return to_text(expressions.interpolate(template, self._contexts(env), self._functions()))

    def interpolate_all(
        self, template_by_variable: Mapping[str, str], env: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Return the interpolated variables. Each may refer to the variables before it in the context `env`."""
        texts_by_name: dict[str, str] = {}
        for variable, template in template_by_variable.items():
            texts_by_name[variable] = self.interpolate(
                template, {**(self.env if env is None else env), **texts_by_name}
            )
        return texts_by_name

    def interpolate_inputs(self, template_by_input: Mapping[str, str], env: Mapping[str, str]) -> dict[str, str]:
        """Return the interpolated inputs of an action."""
        return {input_name: self.interpolate(template, env) for input_name, template in template_by_input.items()}

    def step_condition_holds(self, condition: str, env: Mapping[str, str] | None = None) -> bool:
        """Return whether a step may run. `success()` and `failure()` in its condition refer to the earlier steps."""
        return expressions.evaluate_condition(
            expressions.parse_condition(condition), self._contexts(env), self._functions()
        )

    def job_condition_holds(self, condition: str) -> bool:
        """Return whether the job may run. `success()` and `failure()` in its condition refer to the needed jobs."""
        need_results = [need["result"] for need in self._needs.values() if need["exists"]]
        functions: expressions.Functions = {
            "success": lambda _: all(result == SUCCESS for result in need_results),
            "failure": lambda _: FAILURE in need_results,
            "cancelled": lambda _: False,
            "always": lambda _: True,
        }
        return expressions.evaluate_condition(expressions.parse_condition(condition), self._contexts({}), functions)

    def record_step(self, step_id: str, outcome: str, conclusion: str, outputs: Mapping[str, str]) -> None:
        """Add an ended or skipped step to the context `steps`, unless its id is empty."""
        if step_id:
            self.steps[step_id] = {"outputs": dict(outputs), "outcome": outcome, "conclusion": conclusion}

    def _contexts(self, env: Mapping[str, str] | None) -> expressions.Contexts:
        """Return all contexts with their current values; `env` replaces the context of this name."""
        return {
            **self._spec_contexts,
            "github": self.github,
            "needs": {
                need_name: {"result": need["result"], "outputs": need["outputs"]}
                for need_name, need in self._needs.items()
            },
            "secrets": self._secrets,
            "steps": self.steps,
            "job": {**self.job, "status": self.status},
            "runner": self._runner,
            "env": dict(self.env if env is None else env),
        }

    def _functions(self) -> expressions.Functions:
        """Return the functions that refer to the state of this job."""
        return {
            "success": lambda _: self.status == SUCCESS,
            "failure": lambda _: self.status == FAILURE,
            "cancelled": lambda _: False,  # A cancel ends the job at once: no step runs afterwards.
            "always": lambda _: True,
            "hashFiles": self._hash_files,
        }

    def _hash_files(self, arguments: Sequence[Value]) -> Value:
        return hash_files(self._layout.workspace, [to_text(argument) for argument in arguments])


def _github_of_source(source: Source | None) -> dict[str, Any]:
    """Return the fields of the context `github` that can be derived from the source.

    The contexts of a job spec have only the fields that its expressions mention, but steps get all variables.
    """
    if source is None:
        return {}
    ref_kind, _, ref_name = source.ref.removeprefix("refs/").partition("/")
    url_parts = source.url.removesuffix(".git").replace(":", "/").split("/")
    github_fields = {"sha": source.commit, "ref": source.ref, "ref_name": ref_name}
    return {
        **{key: value for key, value in github_fields.items() if value},
        **({"ref_type": "tag" if ref_kind == "tags" else "branch"} if ref_name else {}),
        **({"repository": "/".join(url_parts[-2:])} if "://" in source.url and len(url_parts) > 4 else {}),
    }


def hash_files(workspace: Path, patterns: Sequence[str]) -> str:
    """Return one SHA-256 over the SHA-256 digests of all matching files, ordered by path; empty if no file matches.

    A pattern may have several lines; a line with `!` excludes files, one with `#` is a comment.
    """
    included_rules: list[ArtifactRule] = []
    excluded_rules: list[ArtifactRule] = []
    for stripped_pattern in (
        stripped_pattern.strip() for pattern in patterns for stripped_pattern in pattern.splitlines()
    ):
        if stripped_pattern and not stripped_pattern.startswith("#"):
            rules = excluded_rules if stripped_pattern.startswith("!") else included_rules
            path_glob = stripped_pattern.lstrip("!").strip().removeprefix(f"{workspace}/")
            rules.append(ArtifactRule(path_glob=path_glob))
    try:
        excluded_paths = (
            {matching_file.path for matching_file in find_files(workspace, excluded_rules, MAX_HASHED)}
            if excluded_rules
            else set()
        )
        matching_files = [
            matching_file
            for matching_file in find_files(workspace, included_rules, MAX_HASHED)
            if matching_file.path not in excluded_paths
        ]
        combined_hash = hashlib.sha256()
        for matching_file in matching_files:
            file_hash = hashlib.sha256()
            with open_file(workspace, matching_file) as opened_file:
                while chunk := opened_file.read(_PART_BYTES):
                    file_hash.update(chunk)
            combined_hash.update(file_hash.digest())
    except Refused as refused:
        raise Refused("bad_spec", f"hashFiles: {refused.message}") from None
    except OSError as error:
        raise Refused("bad_spec", f"hashFiles: a file cannot be read: {error.strerror}") from None
    return combined_hash.hexdigest() if matching_files else ""


def _group_needs(
    needed_job_by_name: Mapping[str, NeededJob], planned_need_by_name: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return the results and outputs of needed jobs by the names that expressions use.

    The jobs of a matrix become one entry, with the worst of their results. `planned_need_by_name` is the context
    `needs` of the job spec: it has the results of jobs that are not in this run, and lists the jobs of each name.
    """
    contexts_by_key: dict[str, dict[str, Any]] = {}
    key_by_job: dict[str, str] = {}
    for need_name, planned_need in planned_need_by_name.items():
        if isinstance(planned_need, dict) and "result" in planned_need:
            outputs = planned_need.get("outputs")
            need_context = {"result": planned_need["result"], "outputs": outputs if isinstance(outputs, dict) else {}}
            contexts_by_key[need_name] = {**need_context, "exists": False}
        elif isinstance(planned_need, dict) and isinstance(planned_need.get("jobs"), list):
            key_by_job |= {str(job_name): need_name for job_name in planned_need["jobs"]}
    for job_name, need in needed_job_by_name.items():
        matrix_name = job_name.partition(" (")[0] if job_name.endswith(")") else ""
        need_key = key_by_job.get(job_name) or need.family or matrix_name or job_name
        need_group = contexts_by_key.get(need_key)
        if need_group is not None and not need.exists:
            continue  # Its result is in `planned_need_by_name`.
        if need_group is None or not need_group["exists"]:
            need_group = contexts_by_key[need_key] = {"result": need.result, "outputs": {}, "exists": need.exists}
        need_group["outputs"].update(need.outputs)
        need_group["result"] = min(need_group["result"], need.result, key=_WORST_FIRST.index)
    return contexts_by_key


_WORST_FIRST: Final = (FAILURE, CANCELLED, SUCCESS, SKIPPED)
