"""What expressions can ask of a change: the contexts `github`, `inputs` and `strategy`, in GitHub's words.

What only a runner knows is not in them: `github.workspace`, `github.token`, `runner`, `job`, `steps`, `secrets`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite, nan
from typing import Any, Final

from deltaci.pipeline import model
from deltaci.pipeline.change import Change

# GitHub's words for events, where they are not ours.
EVENTS: Final = {"manual": "workflow_dispatch"}
REFS: Final = ("refs/heads/", "refs/tags/", "refs/pull/", "refs/merge-requests/", "refs/")


def github_context(
    change: Change, *, workflow: str, file: str = "", server: str = "", run_id: str = "", run_number: int = 0
) -> dict[str, Any]:
    """The context `github` of a change. Without a run's id, the commit stands for it: groups are named after both."""
    is_request = change.event == "pull_request"
    ref = change.ref or (f"refs/tags/{change.tag}" if change.tag else f"refs/heads/{change.branch}")
    return {
        "event_name": EVENTS.get(change.event, change.event),
        "sha": change.commit,
        "ref": ref,
        "ref_name": _short(ref),
        "ref_type": "tag" if change.tag else "branch",
        "head_ref": change.head if is_request else "",
        "base_ref": change.branch if is_request else "",
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
        "event": _merged(_event(change), change.payload),
    }


def _short(ref: str) -> str:
    return next((ref.removeprefix(prefix) for prefix in REFS if ref.startswith(prefix)), ref)


def _event(change: Change) -> dict[str, Any]:
    """`github.event`, from what is known of every forge's."""
    owner, _, name = change.repository.rpartition("/")
    told: dict[str, Any] = {
        "repository": {
            "full_name": change.repository,
            "name": name,
            "owner": {"login": owner},
            "default_branch": change.default_branch,
        },
        "sender": {"login": change.actor},
    }
    match change.event:
        case "push":
            ref = change.ref or (f"refs/tags/{change.tag}" if change.tag else f"refs/heads/{change.branch}")
            message = change.message or change.title
            told |= {"ref": ref, "before": change.before, "after": change.commit}
            told["head_commit"] = {"id": change.commit, "message": message}
        case "pull_request":
            told |= {"action": change.action, "number": change.number}
            told["pull_request"] = {
                "number": change.number,
                "title": change.title,
                "body": change.message,
                "head": {"ref": change.head, "sha": change.commit, "repo": {"fork": change.is_fork}},
                "base": {"ref": change.branch, "sha": change.base},
                "user": {"login": change.actor},
            }
        case "schedule":
            told["schedule"] = change.cron
        case _:
            told["inputs"] = {name: _said(value) for name, value in change.inputs.items()}
    return told


def _merged(ours: dict[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """What the forge said, and what is known anyway where it said nothing."""
    whole: dict[str, Any] = {**ours, **theirs}
    for key, value in theirs.items():
        if isinstance(value, dict) and isinstance(ours.get(key), dict):
            whole[key] = _merged(ours[key], value)
    return whole


def _said(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def strategy_context(index: int, total: int, *, is_fail_fast: bool, max_parallel: int | None) -> dict[str, Any]:
    """The context `strategy` of one job of a matrix."""
    return {
        "fail-fast": is_fail_fast,
        "job-index": index,
        "job-total": total,
        "max-parallel": max_parallel or total,
    }


class InputError(Exception):
    """What was given for an input is not what the file asks for."""

    def __init__(self, name: str, found: str, expected: str) -> None:
        super().__init__(f"{found}; {expected}")
        self.name = name
        self.found = found
        self.expected = expected


def inputs_context(pipeline: model.Pipeline, change: Change) -> dict[str, Any]:
    """The context `inputs` of a start by hand, each as its type says; of anything else there are none."""
    if change.event != "manual":
        return {}
    asked = pipeline.on.manual.inputs if pipeline.on.manual is not None else {}
    for name in sorted(set(change.inputs) - set(asked)):
        raise InputError(name, f"the input {name!r}", f"there are: {', '.join(sorted(asked)) or 'none'}")
    return dict(_inputs(asked, change.inputs))


def _inputs(asked: Mapping[str, model.Input], given: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, rule in asked.items():
        value = given.get(name, rule.default)
        if value is None:
            if rule.required:
                raise InputError(name, f"no value for the input {name!r}", rule.description or "it must be given")
            value = {"boolean": False, "number": 0}.get(rule.type, "")
        yield name, _typed(name, rule, value)


def _typed(name: str, rule: model.Input, value: Any) -> Any:
    text = _said(value)
    match rule.type:
        case "boolean":
            if text not in ("true", "false"):
                raise InputError(name, f"{text[:80]!r} for the input {name!r}", "expected true or false")
            return text == "true"
        case "number":
            try:
                number = float(text)
            except ValueError:
                number = nan
            if not isfinite(number):
                raise InputError(name, f"{text[:80]!r} for the input {name!r}", "expected a number")
            return int(number) if number.is_integer() else number
        case "choice":
            allowed = [_said(option) for option in rule.options]
            if text not in allowed:
                raise InputError(
                    name, f"{text[:80]!r} for the input {name!r}", f"expected one of: {', '.join(allowed)}"
                )
            return text
        case _:
            return text
