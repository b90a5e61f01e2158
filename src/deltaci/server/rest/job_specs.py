"""Convert the plan of a request to job specifications. An invalid plan is refused as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from deltaci.api.schemas.inputs import GateInput, InputRule, JobInput, PlanInput
from deltaci.core import job
from deltaci.core.approvals import Gate
from deltaci.core.errors import Refused
from deltaci.core.job import JobSpec
from deltaci.core.json_values import json_copy
from deltaci.core.plan import dependents, resolve_needs
from deltaci.core.worker import queue_key


def specs(plan: PlanInput, env: Mapping[str, str] | None = None) -> tuple[JobSpec, ...]:
    """Return the specifications of the jobs of a plan. Raise Refused if the plan is invalid.

    `env` is added to the environment of every task; the task's own variables take precedence.
    """
    job_specs = tuple(
        _spec(job_input, needs, env or {}) for job_input, needs in zip(plan.jobs, needs_of(plan), strict=True)
    )
    dependents(job_specs)  # Raises Refused for unknown dependencies and cycles.
    return job_specs


def needs_of(plan: PlanInput) -> tuple[tuple[str, ...], ...]:
    """Return the dependencies of each job, including the implicit ones."""
    # A job with `after` and without `needs` has no implicit dependencies.
    return resolve_needs([(job.name, () if job.needs is None and job.after else job.needs) for job in plan.jobs])


def _spec(job_input: JobInput, needs: tuple[str, ...], env: Mapping[str, str]) -> JobSpec:
    common_fields: dict[str, Any] = {
        "name": job_input.name,
        "kind": job_input.kind,
        "needs": needs,
        "after": tuple(job_input.after),
    }
    common_fields["is_required"] = not job_input.allow_failure
    if job_input.kind == job.APPROVAL:
        if job_input.work is not None or job_input.runs_on or job_input.group:
            raise Refused(
                "bad_request", f"job {job_input.name!r} is an approval; it has neither 'work' nor 'runs_on' nor 'group'"
            )
        gate = job_input.approval or GateInput()
        return JobSpec(
            **common_fields,
            approval_seconds=gate.expires_seconds,
            gate=Gate(role=gate.role, approvers=gate.approvers, not_by_starter=gate.not_by_starter),
        )
    if job_input.approval is not None:
        raise Refused(
            "bad_request", f"job {job_input.name!r} is a task; only a job of kind 'approval' has an 'approval'"
        )
    if job_input.work is None:
        raise Refused(
            "bad_request", f"job {job_input.name!r} has no 'work'; say what its worker does, see docs/jobs.md"
        )
    if job_input.work.tree is not None:
        raise Refused("bad_request", f"job {job_input.name!r} has a 'tree'; only the tasks of workstreams have one")
    json_copy(f"'contexts' of job {job_input.name!r}", job_input.work.contexts)
    runner_spec: dict[str, Any] = msgspec.to_builtins(job_input.work)
    if env:
        runner_spec["env"] = {**env, **runner_spec.get("env", {})}
    return JobSpec(
        **common_fields,
        max_attempts=job_input.retry.max_attempts,
        base_delay_seconds=job_input.retry.base_delay_seconds,
        max_delay_seconds=job_input.retry.max_delay_seconds,
        jitter=job_input.retry.jitter,
        timeout_seconds=job_input.timeout_seconds,
        queue_key=queue_key(job_input.runs_on),
        priority=job_input.priority,
        retry_on=tuple(job_input.retry.on),
        group=job_input.group,
        work=runner_spec,
    )


def resolve_inputs(
    declaration_by_input: Mapping[str, InputRule], requested_value_by_input: Mapping[str, str]
) -> dict[str, str]:
    """Return the value of every input of a template. Raise Refused for an unknown, missing or invalid input."""
    unknown_names = sorted(set(requested_value_by_input) - set(declaration_by_input))
    if unknown_names:
        joined_names = ", ".join(sorted(declaration_by_input)) or "none"
        raise Refused("bad_request", f"the template has no input {unknown_names[0]!r}; it has {joined_names}")
    resolved_inputs: dict[str, str] = {}
    for input_name, declaration in declaration_by_input.items():
        if input_name not in requested_value_by_input and declaration.required:
            raise Refused(
                "bad_request", f"the template needs the input {input_name!r}; {declaration.description or 'give it'}"
            )
        value = requested_value_by_input.get(input_name, declaration.default)
        if (
            declaration.choices
            and value not in declaration.choices
            and (input_name in requested_value_by_input or declaration.default)
        ):
            raise Refused(
                "bad_request", f"the input {input_name!r} is {value[:80]!r}; it may be {', '.join(declaration.choices)}"
            )
        resolved_inputs[input_name] = value
    return resolved_inputs


def as_env(value_by_input: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that contain the inputs."""
    return {f"INPUT_{input_name.upper()}": value for input_name, value in value_by_input.items()}
