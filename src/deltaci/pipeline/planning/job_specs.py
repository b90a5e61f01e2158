"""Build the job specification that a runner gets from one job of a pipeline file.

The texts of steps, variables, outputs, services, caches, artifacts and rules keep their expressions: the runner
evaluates them. Every other text is evaluated here. The field `contexts` of the specification has the known values that
these texts and the conditions reference, and the keys of `github` that steps get as variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from deltaci.pipeline import model
from deltaci.pipeline.expressions import Expression, ExpressionError
from deltaci.pipeline.expressions.references import ANY_KEY, ContextReference, context_references
from deltaci.pipeline.expressions.values import to_text
from deltaci.pipeline.parse.parse_result import Path
from deltaci.pipeline.parse.validation_rules import evaluated_texts, protocol_rules
from deltaci.pipeline.planning import conditions
from deltaci.pipeline.planning.interpolate import Interpolator
from deltaci.protocol import messages as wire

UNIT_BYTES: Final = {"K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
SENT_CONTEXTS: Final = ("github", "inputs", "vars", "matrix", "strategy")
# The keys of `github` that the runner sets as variables, such as GITHUB_SHA, which any command may read. The run's id
# and number are sent only to jobs that mention them: otherwise equal plans of different runs would differ.
VARIABLE_KEYS: Final = (
    *("actor", "base_ref", "event_name", "head_ref", "job", "ref", "ref_name", "ref_type", "repository"),
    *("repository_owner", "server_url", "sha", "triggering_actor", "workflow", "workflow_ref"),
)
_VARIABLE_REFERENCES: Final = tuple(ContextReference("github", (key,)) for key in VARIABLE_KEYS)
RUN_KEYS: Final = ("run_id", "run_number", "run_attempt")


class SpecInputs(Struct, frozen=True, kw_only=True):
    """The values for the specifications of all jobs of a plan: pipeline, source, cache scope, and access to secrets."""

    pipeline: model.Pipeline
    source: wire.Source | None = None
    cache_scope: str = ""  # the cache scope of an untrusted change; empty: the change is trusted
    has_default_retry: bool = True  # whether jobs without `retry` are retried once
    grants_mentioned_secrets: bool = False  # as on GitHub: jobs get each secret that their expressions reference


class JobInstance(Struct, frozen=True, kw_only=True):
    """One job of the run: the job of the file, its path in the file, and the values of its contexts."""

    path: Path
    job: model.Job
    contexts: Mapping[str, Any]  # github, inputs, vars, matrix, strategy
    condition: Expression | None = None
    needs: tuple[str, ...] = ()  # names of the jobs whose results it can read
    title: str = ""


class BuiltSpec(Struct, frozen=True, kw_only=True):
    """The specification of one job for the runner, and the values of the contexts that its texts really read."""

    work: wire.JobSpec
    read_contexts: dict[str, Any]


def build_job_spec(spec_inputs: SpecInputs, instance: JobInstance, interpolator: Interpolator) -> BuiltSpec:
    """Return the specification of one job for the runner. Add problems to `interpolator.problems`."""
    builder = _SpecBuilder(spec_inputs, instance, interpolator)
    return BuiltSpec(work=builder.build(), read_contexts=builder.read_contexts())


def minutes_to_seconds(minutes: float) -> int:
    """Return minutes as seconds, rounded up to a whole number of at least 1."""
    return max(1, ceil(minutes * 60))


class _SpecBuilder:
    """Builds the specification of one job, and collects the context references of its texts."""

    def __init__(self, spec_inputs: SpecInputs, instance: JobInstance, interpolator: Interpolator) -> None:
        self._spec_inputs = spec_inputs
        self._instance = instance
        self._job = instance.job
        self._interpolator = interpolator
        self._references: list[ContextReference] = []

    def build(self) -> wire.JobSpec:
        job, is_trusted = self._job, not self._spec_inputs.cache_scope
        env = {variable: to_text(value) for variable, value in {**self._spec_inputs.pipeline.env, **job.env}.items()}
        condition = self._format_condition(self._instance.condition, job.if_, ("if",))
        steps = list(self._build_steps())
        services, artifacts, caches = (
            list(self._build_services()),
            list(self._build_artifacts()),
            list(self._build_caches()),
        )
        rules = self._build_rules()
        self._add_references(("env",), env.values())
        self._add_references(("outputs",), job.outputs.values())
        has_checkout = any(step.uses == "checkout" for step in steps)
        return wire.JobSpec(
            name=self._instance.title,
            image=self._evaluate_text("image", job.image or ""),
            steps=steps,  # type: ignore[arg-type]  # list is invariant: the field also allows texts.
            env=env,
            artifacts=artifacts,
            caches=caches,
            executor=job.executor if is_trusted or job.executor != "process" else None,
            network=job.network,
            limits=parse_limits(job.limits),
            output_path=self._evaluate_text("output-path", job.output_path or ""),
            secrets=list(job.secrets) if is_trusted else [],
            optional_secrets=self._select_optional_secrets() if is_trusted else [],
            cache_scope=self._spec_inputs.cache_scope,
            source=self._build_source() if has_checkout else None,
            services=services,
            rules=rules,
            needs=list(self._instance.needs),
            contexts=self._select_contexts([*_VARIABLE_REFERENCES, *self._references]),
            condition=condition,
            outputs=dict(job.outputs),
        )

    # -- texts

    def _evaluate_text(self, *path: str | int) -> str:
        """Return a text with its expressions evaluated.

        The last argument is the text, the others its path in the job.
        """
        *keys, text = path
        return self._interpolator.text((*self._instance.path, *keys), text, self._instance.contexts)

    def _add_references(self, path: Path, texts: Iterable[str]) -> None:
        """Collect the context references that the runner needs to evaluate these texts."""
        for text in texts:
            self._references += self._interpolator.references((*self._instance.path, *path), text)
            if "GITHUB_" in text:
                self._references += [
                    ContextReference("github", (key,))
                    for key in (*VARIABLE_KEYS, *RUN_KEYS)
                    if f"GITHUB_{key.upper()}" in text
                ]

    def _format_condition(self, expression: Expression | None, original: str | None, path: Path) -> str:
        """Return a condition as text, "" for None. Report one that is too long, and collect its references."""
        if expression is None:
            return ""
        text_and_expression = conditions.format_condition(expression, original)
        if text_and_expression is None:
            expected = (
                f"expected at most {conditions.MAX_CONDITION:,} characters: set an output before, and test that output"
            )
            self._interpolator.report((*self._instance.path, *path), "a condition that is too long", expected)
            return ""
        text, chosen_expression = text_and_expression
        self._references += context_references(chosen_expression)
        return text

    def read_contexts(self) -> dict[str, Any]:
        """Return the values of the known contexts that the texts of the job read, also as variables in commands."""
        return self._select_contexts(self._references)

    def _select_contexts(self, references: Sequence[ContextReference]) -> dict[str, Any]:
        """Return the values of the known contexts that these references read."""
        selected_contexts = {}
        for context_name in SENT_CONTEXTS:
            key_paths = [reference.keys for reference in references if reference.context == context_name]
            if key_paths:
                selected_contexts[context_name] = select_keys(self._instance.contexts[context_name], key_paths)
        return selected_contexts

    # -- steps

    def _build_steps(self) -> Iterator[wire.Step]:
        """Yield the steps of the job, after a checkout step unless the job has one or disables it."""
        steps = self._job.steps or ()
        checkout = self._job.checkout
        has_checkout_step = any(
            step.uses == "checkout" and not {"path", "repository"} & set(step.with_) for step in steps
        )
        if checkout is not False and self._spec_inputs.source is not None and not has_checkout_step:
            yield wire.Step(uses="checkout", name="checkout")
        for step_index, step in enumerate(steps):
            yield self._build_step(step, ("steps", step_index))

    def _build_step(self, step: model.Step, path: Path) -> wire.Step:
        value_by_context, full_path = self._instance.contexts, (*self._instance.path, *path)
        run_defaults = (self._job.defaults.run, self._spec_inputs.pipeline.defaults.run)
        env = {variable: to_text(value) for variable, value in step.env.items()}
        value_by_input = {input_name: to_text(input_value) for input_name, input_value in step.with_.items()}
        shell = workdir = ""
        if step.run is not None:
            shell = (
                step.shell or next((run_default.shell for run_default in run_defaults if run_default.shell), None) or ""
            )
            shell = self._interpolator.text((*full_path, "shell"), shell, value_by_context)
            workdirs = (step.working_directory, *(run_default.working_directory for run_default in run_defaults))
            workdir = next((candidate for candidate in workdirs if candidate), "")
        self._add_references(path, (step.name, step.run or "", workdir, *env.values(), *value_by_input.values()))
        timeout_minutes = step.timeout_minutes
        timeout_path = (*full_path, "timeout-minutes")
        return wire.Step(
            run=step.run or "",
            name=step.name,
            env=env,
            workdir=workdir,
            timeout_seconds=0
            if timeout_minutes is None
            else minutes_to_seconds(
                self._interpolator.number(timeout_path, timeout_minutes, value_by_context, maximum=model.MAX_MINUTES)
            ),
            continue_on_error=self._interpolator.boolean(
                (*full_path, "continue-on-error"), step.continue_on_error, value_by_context
            ),
            uses=step.uses,
            inputs=value_by_input,
            id=step.id or "",
            condition=self._format_step_condition(step.if_, (*path, "if")),
            shell=shell,
        )

    def _format_step_condition(self, original: str | None, path: Path) -> str:
        """Return the `if` of a step, reduced by the known contexts, as text. Report an invalid one."""
        try:
            parsed = self._interpolator.condition(original)
            expression = conditions.step_condition(parsed, self._instance.contexts, self._interpolator.budget)
        except ExpressionError as error:
            self._interpolator.report_expression((*self._instance.path, *path), original or "", error.problem)
            return ""
        return self._format_condition(expression, original, path)

    # -- other fields

    def _build_source(self) -> wire.Source | None:
        """Return the repository and commit to check out, with the depth that the job sets; None without any."""
        checkout, source = self._job.checkout, self._spec_inputs.source
        if source is None or isinstance(checkout, bool):
            return source
        return replace(source, depth=checkout)

    def _build_services(self) -> Iterator[wire.Service]:
        for service_name, service in sorted(self._job.services.items()):
            env = {key: to_text(value) for key, value in service.env.items()}
            self._add_references(("services", service_name, "env"), env.values())
            self._add_references(("services", service_name, "image"), (service.image,))
            yield wire.Service(
                name=service_name,
                image=service.image,
                env=env,
                ports=[str(port) for port in service.ports],
                command=self._evaluate_text("services", service_name, "command", service.command or ""),
                health=self._evaluate_text("services", service_name, "health", service.health or ""),
            )

    def _build_artifacts(self) -> Iterator[wire.ArtifactRule]:
        for artifact_index, artifact in enumerate(self._job.artifacts):
            self._add_references(("artifacts", artifact_index, "path"), (artifact.path,))
            yield wire.ArtifactRule(path_glob=artifact.path, type=artifact.type)

    def _build_caches(self) -> Iterator[wire.CacheRule]:
        for cache_index, cache in enumerate(self._job.caches):
            path = ("caches", cache_index)
            self._add_references(path, (cache.key, *cache.paths))
            yield wire.CacheRule(
                key=cache.key,
                paths=list(cache.paths),
                type=cache.type,
                lock_files=[
                    self._evaluate_text(*path, "lock-files", index, lock_file)
                    for index, lock_file in enumerate(cache.lock_files or ())
                ],
            )

    def _build_rules(self) -> list[wire.ValidationRule]:
        for rule_index, rule in enumerate(self._job.validate):
            self._add_references(("validate", rule_index), evaluated_texts(rule))
        return protocol_rules(
            self._job.validate, lambda rule_index, name: self._evaluate_text("validate", rule_index, "name", name)
        )

    def _select_optional_secrets(self) -> list[str]:
        """Return the secrets that the job references without declaring them, if references grant secrets; else none.

        As on GitHub, such a secret is empty if it does not exist.
        """
        if not self._spec_inputs.grants_mentioned_secrets:
            return []
        referenced_secrets = {
            reference.keys[0] for reference in self._references if reference.context == "secrets" and reference.keys
        }
        return sorted(referenced_secrets - set(self._job.secrets) - {ANY_KEY})


def select_keys(value: Any, key_paths: Sequence[tuple[str, ...]]) -> Any:
    """Return a context value reduced to the parts that any of the key paths reads. Keys are case-insensitive."""
    if not isinstance(value, Mapping) or any(not key_path or key_path[0] == ANY_KEY for key_path in key_paths):
        return value
    inner_paths: dict[str, list[tuple[str, ...]]] = {}
    for key, *inner_path in key_paths:
        inner_paths.setdefault(key.lower(), []).append(tuple(inner_path))
    return {
        key_name: select_keys(inner_value, inner_paths[key_name.lower()])
        for key_name, inner_value in value.items()
        if key_name.lower() in inner_paths
    }


def parse_limits(limits: model.Limits) -> wire.Limits:
    """Convert the limits of a job to numbers for the runner protocol; 0 means no limit."""
    memory = limits.memory or 0
    if isinstance(memory, str):
        memory = int(memory.rstrip("KMGT")) * UNIT_BYTES.get(memory[-1], 1)
    return wire.Limits(memory_bytes=memory, processes=limits.processes or 0, cpus=limits.cpus or 0.0)


def validate_spec(spec: wire.JobSpec) -> tuple[dict[str, Any], int]:
    """Return the specification as builtin types, and its size in bytes as JSON.

    Raise `msgspec.ValidationError` if a runner would reject it.
    """
    encoded: dict[str, Any] = msgspec.to_builtins(spec)
    msgspec.convert(encoded, wire.JobSpec)
    return encoded, len(msgspec.json.encode(encoded))
