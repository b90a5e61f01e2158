"""A workstream becomes the jobs of its run, and the stages of its execution plan. Pure: same inputs, same jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from deltaci.core.job import JobSpec
from deltaci.core.worker import queue_key
from deltaci.pipeline import jobs, model
from deltaci.pipeline.expressions.values import to_text
from deltaci.pipeline.rules import wire_rules
from deltaci.pipeline.workstream.model import Task, Workstream
from deltaci.protocol import messages as wire

GROUP: Final = "workstream:"


def planned(stream: Workstream, *, id: str, source: wire.Source, branch: str) -> tuple[JobSpec, ...]:
    """The jobs of a workstream, in the order of its file. `source.commit` is where its branch begins.

    Tasks that share the tree are a group: one of them is under way at a time. Raises ValidationError of msgspec for
    what no runner would take.
    """
    return tuple(_job(stream, task, id, source, branch) for task in stream.tasks)


def graph(stream: Workstream) -> tuple[tuple[str, ...], ...]:
    """The tasks by levels: whatever a task needs is in an earlier one. In each, the order of the file."""
    return levels([(task.name, task.needs) for task in stream.tasks])


def levels(needs: Sequence[tuple[str, Sequence[str]]]) -> tuple[tuple[str, ...], ...]:
    """Names by levels; what is needed and not named counts as done. What waits for itself is left out."""
    known = {name for name, _ in needs}
    open = {name: {need for need in wanted if need in known} for name, wanted in needs}
    found: list[tuple[str, ...]] = []
    while level := tuple(name for name, wanted in open.items() if not wanted):
        found.append(level)
        open = {name: wanted.difference(level) for name, wanted in open.items() if name not in level}
    return tuple(found)


def _job(stream: Workstream, task: Task, id: str, source: wire.Source, branch: str) -> JobSpec:
    is_own = task.worktree == "own"
    env = _env({**stream.env, **task.env})
    work, _ = jobs.checked(
        wire.JobSpec(
            name=task.name,
            image=task.image or stream.image,
            steps=[wire.Step(run=command) for command in task.run],
            env=env,
            artifacts=[wire.ArtifactRule(path_glob=each.path, type=each.type) for each in task.artifacts],
            executor=task.executor or stream.executor,
            network=task.network or stream.network,
            limits=jobs.limits(task.limits),
            output_path=task.output_path or "",
            secrets=list(task.secrets),
            rules=wire_rules(task.post_execution),
            needs=list(task.needs),
            tree=wire.Worktree(
                stream=id,
                source=source,
                branch=branch,
                own=task.name if is_own else "",
                message=task.message or task.name,
                author=stream.author or "",
            ),
        )
    )
    return JobSpec(
        name=task.name,
        needs=task.needs,
        is_required=task.critical,
        has_validation=True,
        timeout_seconds=jobs.seconds(task.timeout_minutes),
        queue_key=queue_key(labels(stream, task)),
        group="" if is_own else f"{GROUP}{id}",
        work=work,
        **_retries(task.retry),
    )


def labels(stream: Workstream, task: Task | None = None) -> list[str]:
    """What a worker must have: for a task, or for what is tested before the merge."""
    return list(dict.fromkeys([*stream.runs_on, *(task.runs_on if task is not None else ())]))


def how_tested(stream: Workstream) -> dict[str, Any]:
    """How to look at what would be merged: what the specification of that job has beside its tree and its rules."""
    work = wire.JobSpec(image=stream.image, executor=stream.executor, network=stream.network, env=_env(stream.env))
    found: dict[str, Any] = msgspec.to_builtins(work)
    return found


def _env(env: Mapping[str, Any]) -> dict[str, str]:
    return {name: to_text(value) for name, value in env.items()}


def _retries(retry: model.Retry | None) -> dict[str, Any]:
    if retry is None:
        return {}
    return {
        "max_attempts": retry.max_attempts,
        "base_delay_seconds": retry.delay_seconds,
        "max_delay_seconds": retry.max_delay_seconds,
        "jitter": retry.jitter,
        "retry_on": tuple(retry.on),
    }
