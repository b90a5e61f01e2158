"""Compiles a workstream to the job specs of its run, and groups its tasks by level. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from deltaci.core.job import JobSpec
from deltaci.core.worker import queue_key
from deltaci.pipeline import model
from deltaci.pipeline.expressions.values import to_text
from deltaci.pipeline.parse.validation_rules import protocol_rules
from deltaci.pipeline.planning import job_specs
from deltaci.pipeline.workstream.model import Task, Workstream
from deltaci.protocol import messages as wire

SHARED_WORKTREE_GROUP: Final = "workstream:"  # prefix of the concurrency group of tasks that share a worktree


def compile_jobs(
    workstream: Workstream, *, workstream_id: str, source: wire.Source, branch: str
) -> tuple[JobSpec, ...]:
    """Return the job spec of each task, in the order of the file. `source.commit` is the start of the branch.

    Tasks that share the worktree form a concurrency group, so that one of them runs at a time. Raise
    `msgspec.ValidationError` if a spec violates the runner protocol.
    """
    return tuple(_compile_job(workstream, task, workstream_id, source, branch) for task in workstream.tasks)


def task_levels(workstream: Workstream) -> tuple[tuple[str, ...], ...]:
    """Return the task names grouped by level, as `dependency_levels` does. A level has the order of the file."""
    return dependency_levels([(task.name, task.needs) for task in workstream.tasks])


def dependency_levels(needs: Sequence[tuple[str, Sequence[str]]]) -> tuple[tuple[str, ...], ...]:
    """Group names by level, so that each name is in a later level than all names that it needs.

    `needs` has each name with the names that it needs. Needs that are not among the names are ignored. Names in a
    cycle, and names that need them, are left out.
    """
    all_names = {name for name, _ in needs}
    open_needs_by_name = {name: {need for need in needed_names if need in all_names} for name, needed_names in needs}
    levels: list[tuple[str, ...]] = []
    while level := tuple(name for name, needed_names in open_needs_by_name.items() if not needed_names):
        levels.append(level)
        open_needs_by_name = {
            name: needed_names.difference(level)
            for name, needed_names in open_needs_by_name.items()
            if name not in level
        }
    return tuple(levels)


def _compile_job(workstream: Workstream, task: Task, workstream_id: str, source: wire.Source, branch: str) -> JobSpec:
    has_own_worktree = task.worktree == "own"
    env = _env_texts({**workstream.env, **task.env})
    runner_spec, _ = job_specs.validate_spec(
        wire.JobSpec(
            name=task.name,
            image=task.image or workstream.image,
            steps=[wire.Step(run=command) for command in task.run],
            env=env,
            artifacts=[wire.ArtifactRule(path_glob=artifact.path, type=artifact.type) for artifact in task.artifacts],
            executor=task.executor or workstream.executor,
            network=task.network or workstream.network,
            limits=job_specs.parse_limits(task.limits),
            output_path=task.output_path or "",
            secrets=list(task.secrets),
            rules=protocol_rules(task.post_execution),
            needs=list(task.needs),
            tree=wire.Worktree(
                stream=workstream_id,
                source=source,
                branch=branch,
                private_name=task.name if has_own_worktree else "",
                message=task.message or task.name,
                author=workstream.author or "",
            ),
        )
    )
    return JobSpec(
        name=task.name,
        needs=task.needs,
        is_required=task.critical,
        has_validation=True,
        timeout_seconds=job_specs.minutes_to_seconds(task.timeout_minutes),
        queue_key=queue_key(required_labels(workstream, task)),
        group="" if has_own_worktree else f"{SHARED_WORKTREE_GROUP}{workstream_id}",
        work=runner_spec,
        **_retry_settings(task.retry),
    )


def required_labels(workstream: Workstream, task: Task | None = None) -> list[str]:
    """Return the labels that a worker must have for a task or, without a task, for the validation before the merge."""
    return list(dict.fromkeys([*workstream.runs_on, *(task.runs_on if task is not None else ())]))


def validation_job_spec(workstream: Workstream) -> dict[str, Any]:
    """Return the job spec of the validation before the merge as plain values. The caller adds worktree and rules."""
    job_spec = wire.JobSpec(
        image=workstream.image,
        executor=workstream.executor,
        network=workstream.network,
        env=_env_texts(workstream.env),
    )
    spec_fields: dict[str, Any] = msgspec.to_builtins(job_spec)
    return spec_fields


def _env_texts(value_by_variable: Mapping[str, Any]) -> dict[str, str]:
    return {variable: to_text(value) for variable, value in value_by_variable.items()}


def _retry_settings(retry: model.Retry | None) -> dict[str, Any]:
    """Return the fields of a job spec for `retry` of a task; none without it."""
    if retry is None:
        return {}
    return {
        "max_attempts": retry.max_attempts,
        "base_delay_seconds": retry.delay_seconds,
        "max_delay_seconds": retry.max_delay_seconds,
        "jitter": retry.jitter,
        "retry_on": tuple(retry.on),
    }
