"""One job of a pipeline file as what a runner is told.

Texts of steps, variables, outputs, services, caches, artifacts and rules stay as they are written: the runner fills
them in. What else has `${{ … }}` is filled in here. `contexts` has as much of what is known as these texts and the
conditions mention, and of `github` what steps find as variables.
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

UNITS: Final = {"K": 1024, "M": 1024**2, "G": 1024**3, "T": 1024**4}
SENT_CONTEXTS: Final = ("github", "inputs", "vars", "matrix", "strategy")
# What the runner makes variables of, such as GITHUB_SHA: any command may read them. The run's own name and number
# would make plans differ that do the same: they are told only to those who mention them.
VARIABLE_KEYS: Final = (
    *("actor", "base_ref", "event_name", "head_ref", "job", "ref", "ref_name", "ref_type", "repository"),
    *("repository_owner", "server_url", "sha", "triggering_actor", "workflow", "workflow_ref"),
)
RUN_KEYS: Final = ("run_id", "run_number", "run_attempt")


class PlanSettings(Struct, frozen=True, kw_only=True):
    """What holds for all jobs of a plan."""

    pipeline: model.Pipeline
    source: wire.Source | None = None
    cache_scope: str = ""  # not empty: the change is not trusted
    adds_secrets: bool = False  # whether a secret need only be mentioned, as on GitHub


class JobInstance(Struct, frozen=True, kw_only=True):
    """One job of the run: where it stands in the file, and what is known of it."""

    path: Path
    job: model.Job
    known: Mapping[str, Any]  # github, inputs, vars, matrix, strategy
    condition: Expression | None = None
    needs: tuple[str, ...] = ()  # names of jobs whose results it can read
    title: str = ""


def build_job_spec(setting: PlanSettings, member: JobInstance, filling: Interpolator) -> wire.JobSpec:
    """What the runner is told; what is wrong with it is in `filling.problems`."""
    return _Work(setting, member, filling).spec()


def minutes_to_seconds(minutes: float) -> int:
    """Minutes as whole seconds, at least one."""
    return max(1, ceil(minutes * 60))


class _Work:
    def __init__(self, setting: PlanSettings, member: JobInstance, filling: Interpolator) -> None:
        self._setting = setting
        self._member = member
        self._job = member.job
        self._filling = filling
        self._mentions = [ContextReference("github", (name,)) for name in VARIABLE_KEYS]

    def spec(self) -> wire.JobSpec:
        job, is_trusted = self._job, not self._setting.cache_scope
        env = {name: to_text(value) for name, value in {**self._setting.pipeline.env, **job.env}.items()}
        condition = self._condition(self._member.condition, job.if_, ("if",))
        steps = list(self._steps())
        services, artifacts, caches = list(self._services()), list(self._artifacts()), list(self._caches())
        rules = self._rules()
        self._look_at(("env",), env.values())
        self._look_at(("outputs",), job.outputs.values())
        has_checkout = any(step.uses == "checkout" for step in steps)
        return wire.JobSpec(
            name=self._member.title,
            image=self._text("image", job.image or ""),
            steps=steps,  # type: ignore[arg-type]  # A list of steps is one of texts or steps.
            env=env,
            artifacts=artifacts,
            caches=caches,
            executor=job.executor if is_trusted or job.executor != "process" else None,
            network=job.network,
            limits=parse_limits(job.limits),
            output_path=self._text("output-path", job.output_path or ""),
            secrets=list(job.secrets) if is_trusted else [],
            optional_secrets=self._optional_secrets() if is_trusted else [],
            cache_scope=self._setting.cache_scope,
            source=self._source() if has_checkout else None,
            services=services,
            rules=rules,
            needs=list(self._member.needs),
            contexts=self._contexts(),
            condition=condition,
            outputs=dict(job.outputs),
        )

    # -- texts

    def _text(self, *path: str | int) -> str:
        *inner, written = path
        return self._filling.text((*self._member.path, *inner), written, self._member.known)

    def _look_at(self, path: Path, texts: Iterable[str]) -> None:
        """Remember what the runner will have to know for these."""
        for text in texts:
            self._mentions += self._filling.references((*self._member.path, *path), text)
            if "GITHUB_RUN_" in text:
                self._mentions += [
                    ContextReference("github", (name,)) for name in RUN_KEYS if f"GITHUB_{name.upper()}" in text
                ]

    def _condition(self, expression: Expression | None, written: str | None, path: Path) -> str:
        if expression is None:
            return ""
        found = conditions.format_condition(expression, written)
        if found is None:
            wanted = f"expected at most {conditions.MAX_CONDITION:,} characters: set an output before, and ask for that"
            self._filling.report((*self._member.path, *path), "a condition that is too long", wanted)
            return ""
        line, said = found
        self._mentions += context_references(said)
        return line

    def _contexts(self) -> dict[str, Any]:
        shipped = {}
        for name in SENT_CONTEXTS:
            keys = [each.keys for each in self._mentions if each.context == name]
            if keys:
                shipped[name] = select_keys(self._member.known[name], keys)
        return shipped

    # -- steps

    def _steps(self) -> Iterator[wire.Step]:
        steps = self._job.steps or ()
        depth = self._job.checkout
        has_own = any(step.uses == "checkout" and not {"path", "repository"} & set(step.with_) for step in steps)
        if depth is not False and self._setting.source is not None and not has_own:
            yield wire.Step(uses="checkout", name="checkout")
        for position, step in enumerate(steps):
            yield self._step(step, ("steps", position))

    def _step(self, step: model.Step, path: Path) -> wire.Step:
        known, whole = self._member.known, (*self._member.path, *path)
        defaults = (self._job.defaults.run, self._setting.pipeline.defaults.run)
        env = {name: to_text(value) for name, value in step.env.items()}
        inputs = {name: to_text(value) for name, value in step.with_.items()}
        shell = workdir = ""
        if step.run is not None:
            shell = step.shell or next((each.shell for each in defaults if each.shell), None) or ""
            shell = self._filling.text((*whole, "shell"), shell, known)
            folders = (step.working_directory, *(each.working_directory for each in defaults))
            workdir = next((each for each in folders if each), "")
        self._look_at(path, (step.name, step.run or "", workdir, *env.values(), *inputs.values()))
        minutes = step.timeout_minutes
        limit = (*whole, "timeout-minutes")
        return wire.Step(
            run=step.run or "",
            name=step.name,
            env=env,
            workdir=workdir,
            timeout_seconds=0
            if minutes is None
            else minutes_to_seconds(self._filling.number(limit, minutes, known, most=model.MAX_MINUTES)),
            continue_on_error=self._filling.boolean((*whole, "continue-on-error"), step.continue_on_error, known),
            uses=step.uses,
            inputs=inputs,
            id=step.id or "",
            condition=self._step_condition(step.if_, (*path, "if")),
            shell=shell,
        )

    def _step_condition(self, written: str | None, path: Path) -> str:
        try:
            asked = self._filling.condition(written)
            expression = conditions.step_condition(asked, self._member.known, self._filling.budget)
        except ExpressionError as refused:
            self._filling.report_expression((*self._member.path, *path), written or "", refused.problem)
            return ""
        return self._condition(expression, written, path)

    # -- what else it has

    def _source(self) -> wire.Source | None:
        depth, source = self._job.checkout, self._setting.source
        if source is None or isinstance(depth, bool):
            return source
        return replace(source, depth=depth)

    def _services(self) -> Iterator[wire.Service]:
        for name, service in sorted(self._job.services.items()):
            env = {key: to_text(value) for key, value in service.env.items()}
            self._look_at(("services", name, "env"), env.values())
            self._look_at(("services", name, "image"), (service.image,))
            yield wire.Service(
                name=name,
                image=service.image,
                env=env,
                ports=[str(port) for port in service.ports],
                command=self._text("services", name, "command", service.command or ""),
                health=self._text("services", name, "health", service.health or ""),
            )

    def _artifacts(self) -> Iterator[wire.ArtifactRule]:
        for position, each in enumerate(self._job.artifacts):
            self._look_at(("artifacts", position, "path"), (each.path,))
            yield wire.ArtifactRule(path_glob=each.path, type=each.type)

    def _caches(self) -> Iterator[wire.CacheRule]:
        for position, each in enumerate(self._job.caches):
            at = ("caches", position)
            self._look_at(at, (each.key, *each.paths))
            yield wire.CacheRule(
                key=each.key,
                paths=list(each.paths),
                type=each.type,
                lock_files=[
                    self._text(*at, "lock-files", number, path) for number, path in enumerate(each.lock_files or ())
                ],
            )

    def _rules(self) -> list[wire.ValidationRule]:
        for position, rule in enumerate(self._job.validate):
            self._look_at(("validate", position), evaluated_texts(rule))
        return protocol_rules(self._job.validate, lambda position, name: self._text("validate", position, "name", name))

    def _optional_secrets(self) -> list[str]:
        """Those that are only mentioned, where that is enough: as on GitHub, one that is not there is empty."""
        if not self._setting.adds_secrets:
            return []
        told = {each.keys[0] for each in self._mentions if each.context == "secrets" and each.keys}
        return sorted(told - set(self._job.secrets) - {ANY_KEY})


def select_keys(value: Any, keys: Sequence[tuple[str, ...]]) -> Any:
    """Only what is mentioned of a value. Names are the same in capitals and in small letters."""
    if not isinstance(value, Mapping) or any(not each or each[0] == ANY_KEY for each in keys):
        return value
    wanted: dict[str, list[tuple[str, ...]]] = {}
    for first, *rest in keys:
        wanted.setdefault(first.lower(), []).append(tuple(rest))
    return {name: select_keys(inner, wanted[name.lower()]) for name, inner in value.items() if name.lower() in wanted}


def parse_limits(limits: model.Limits) -> wire.Limits:
    """What it may use at most, as numbers."""
    memory = limits.memory or 0
    if isinstance(memory, str):
        memory = int(memory.rstrip("KMGT")) * UNITS.get(memory[-1], 1)
    return wire.Limits(memory_bytes=memory, processes=limits.processes or 0, cpus=limits.cpus or 0.0)


def validate_spec(spec: wire.JobSpec) -> tuple[dict[str, Any], int]:
    """The specification as plain values, and its bytes; raises ValidationError of msgspec for what no runner takes."""
    plain: dict[str, Any] = msgspec.to_builtins(spec)
    msgspec.convert(plain, wire.JobSpec)
    return plain, len(msgspec.json.encode(plain))
