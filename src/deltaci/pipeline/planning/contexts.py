"""The contexts `github`, `inputs` and `strategy` that expressions can reference when a run is planned.

They have GitHub's keys, without those that only a runner knows: `github.workspace`, `github.token`, `runner`, `job`,
`steps`, `secrets`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite, nan
from typing import Any, Final

from deltaci.pipeline import model
from deltaci.pipeline.change import Change

# GitHub's names of events, where they differ from ours.
GITHUB_EVENT_NAMES: Final = {"manual": "workflow_dispatch"}
REF_PREFIXES: Final = ("refs/heads/", "refs/tags/", "refs/pull/", "refs/merge-requests/", "refs/")


def github_context(
    change: Change, *, workflow: str, file: str = "", server: str = "", run_id: str = "", run_number: int = 0
) -> dict[str, Any]:
    """Return the context `github` for a change. `workflow` is the name of the pipeline, `server` the URL of the forge.

    If `run_id` is empty, the context has the commit in its place, because concurrency groups may contain it.
    """
    is_pull_request = change.event == "pull_request"
    ref = change.ref or (f"refs/tags/{change.tag}" if change.tag else f"refs/heads/{change.branch}")
    return {
        "event_name": GITHUB_EVENT_NAMES.get(change.event, change.event),
        "sha": change.commit,
        "ref": ref,
        "ref_name": _short_ref(ref),
        "ref_type": "tag" if change.tag else "branch",
        "head_ref": change.head if is_pull_request else "",
        "base_ref": change.branch if is_pull_request else "",
        "repository": change.repository,
        "repository_owner": change.repository.rpartition("/")[0],
        "actor": change.actor,
        "triggering_actor": change.actor,
        "workflow": workflow,
        "workflow_ref": f"{change.repository}/{file}@{ref}",
        "server_url": server,
        "run_id": run_id or change.commit,
        "run_number": str(run_number) if run_number else "",
        "run_attempt": "1",
        "event": _merge(_event_context(change), change.payload),
    }


def _short_ref(ref: str) -> str:
    """Return a git ref without its prefix, such as `refs/heads/`."""
    return next((ref.removeprefix(prefix) for prefix in REF_PREFIXES if ref.startswith(prefix)), ref)


def _event_context(change: Change) -> dict[str, Any]:
    """Return the keys of `github.event` that are known for every forge."""
    owner, _, repository_name = change.repository.rpartition("/")
    event_fields: dict[str, Any] = {
        "repository": {
            "full_name": change.repository,
            "name": repository_name,
            "owner": {"login": owner},
            "default_branch": change.default_branch,
        },
        "sender": {"login": change.actor},
    }
    match change.event:
        case "push":
            ref = change.ref or (f"refs/tags/{change.tag}" if change.tag else f"refs/heads/{change.branch}")
            message = change.message or change.title
            event_fields |= {"ref": ref, "before": change.before, "after": change.commit}
            event_fields["head_commit"] = {"id": change.commit, "message": message}
        case "pull_request":
            event_fields |= {"action": change.action, "number": change.number}
            event_fields["pull_request"] = {
                "number": change.number,
                "title": change.title,
                "body": change.message,
                "head": {"ref": change.head, "sha": change.commit, "repo": {"fork": change.is_fork}},
                "base": {"ref": change.branch, "sha": change.base},
                "user": {"login": change.actor},
            }
        case "schedule":
            event_fields["schedule"] = change.cron
        case _:
            event_fields["inputs"] = {
                input_name: _input_text(input_value) for input_name, input_value in change.inputs.items()
            }
    return event_fields


def _merge(defaults: dict[str, Any], payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the payload in which missing keys, also in nested objects, have their values of `defaults`."""
    merged: dict[str, Any] = {**defaults, **payload}
    for key, value in payload.items():
        if isinstance(value, dict) and isinstance(defaults.get(key), dict):
            merged[key] = _merge(defaults[key], value)
    return merged


def _input_text(value: object) -> str:
    """Return the value of an input as text; booleans are `true` and `false`."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def strategy_context(index: int, total: int, *, is_fail_fast: bool, max_parallel: int | None) -> dict[str, Any]:
    """Return the context `strategy` of the job at `index` of the `total` jobs of a matrix."""
    return {
        "fail-fast": is_fail_fast,
        "job-index": index,
        "job-total": total,
        "max-parallel": max_parallel or total,
    }


class InputError(Exception):
    """An input of a manual start is unknown, is missing, or has a value that the file does not allow."""

    def __init__(self, name: str, found: str, expected: str) -> None:
        super().__init__(f"{found}; {expected}")
        self.name = name
        self.found = found
        self.expected = expected


def inputs_context(pipeline: model.Pipeline, change: Change) -> dict[str, Any]:
    """Return the context `inputs`: the typed inputs of a manual start, empty for other events. Raise `InputError`."""
    if change.event != "manual":
        return {}
    declared_inputs = pipeline.on.manual.inputs if pipeline.on.manual is not None else {}
    for name in sorted(set(change.inputs) - set(declared_inputs)):
        expected = f"expected one of: {', '.join(sorted(declared_inputs)) or 'none'}"
        raise InputError(name, f"the unknown input {name!r}", expected)
    return dict(_typed_inputs(declared_inputs, change.inputs))


def _typed_inputs(declared_inputs: Mapping[str, model.Input], values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield each declared input with its given or default value, converted to its type. Raise `InputError`."""
    for name, declaration in declared_inputs.items():
        value = values.get(name, declaration.default)
        if value is None:
            if declaration.required:
                raise InputError(
                    name, f"no value for the input {name!r}", declaration.description or "a value is required"
                )
            value = {"boolean": False, "number": 0}.get(declaration.type, "")
        yield name, _typed_value(name, declaration, value)


def _typed_value(name: str, declaration: model.Input, value: Any) -> Any:
    """Return the value of an input converted to its declared type. Raise `InputError` if it is invalid."""
    value_text = _input_text(value)
    match declaration.type:
        case "boolean":
            if value_text not in ("true", "false"):
                raise InputError(name, f"{value_text[:80]!r} for the input {name!r}", "expected true or false")
            return value_text == "true"
        case "number":
            try:
                number = float(value_text)
            except ValueError:
                number = nan
            if not isfinite(number):
                raise InputError(name, f"{value_text[:80]!r} for the input {name!r}", "expected a number")
            return int(number) if number.is_integer() else number
        case "choice":
            allowed = [_input_text(option) for option in declaration.options]
            if value_text not in allowed:
                raise InputError(
                    name, f"{value_text[:80]!r} for the input {name!r}", f"expected one of: {', '.join(allowed)}"
                )
            return value_text
        case _:
            return value_text
