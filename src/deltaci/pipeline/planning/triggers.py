"""Decide whether a change starts a pipeline, by the rules of `on`, which are GitHub's. In case of doubt, it does."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from deltaci.core.errors import Refused
from deltaci.pipeline import model
from deltaci.pipeline.change import Change
from deltaci.pipeline.planning.select import SelectableJob, select
from deltaci.protocol.patterns.path_patterns import BadPattern, branch_filter


class TriggerCheck(NamedTuple):
    """Whether a change starts a pipeline, and the reason."""

    is_triggered: bool
    reason: str


def check_triggers(pipeline: model.Pipeline, change: Change, changed: Collection[str] | None) -> TriggerCheck:
    """Check whether a change starts a pipeline. `changed` are the changed paths, None if unknown."""
    try:
        return _check_event(pipeline.on, change, changed)
    except (BadPattern, Refused) as error:
        # The parser reports these errors, but the caller may pass a pipeline that was not parsed.
        return TriggerCheck(True, f"it runs, because its triggers are invalid ({error})")


def _check_event(on: model.On, change: Change, changed: Collection[str] | None) -> TriggerCheck:
    match change.event:
        case "push":
            return _check_push(on.push, change, changed) if on.push is not None else _not_triggered("pushes")
        case "pull_request":
            trigger = on.pull_request
            return (
                _check_pull_request(trigger, change, changed)
                if trigger is not None
                else _not_triggered("pull requests")
            )
        case "schedule":
            return _check_schedule(on.schedule, change) if on.schedule is not None else _not_triggered("schedules")
        case _:
            return (
                TriggerCheck(True, "it was started manually")
                if on.manual is not None
                else _not_triggered("manual starts")
            )


def _not_triggered(events: str) -> TriggerCheck:
    return TriggerCheck(False, f"it does not run on {events}")


def _check_push(push: model.Push, change: Change, changed: Collection[str] | None) -> TriggerCheck:
    """Return whether a push of a branch or tag starts the pipeline, and the reason."""
    has_branches = push.branches is not None or push.branches_ignore is not None
    has_tags = push.tags is not None or push.tags_ignore is not None
    if change.tag:
        if has_branches and not has_tags:
            return TriggerCheck(False, f"the tag {change.tag} was pushed, and it runs on branches only")
        # As on GitHub, paths do not matter for a tag, which has no diff.
        return _check_name("tag", change.tag, push.tags, push.tags_ignore)
    if has_tags and not has_branches:
        return TriggerCheck(False, f"the branch {change.branch} was pushed, and it runs on tags only")
    name_check = _check_name("branch", change.branch, push.branches, push.branches_ignore)
    return (
        _check_paths(name_check.reason, push.paths, push.paths_ignore, changed)
        if name_check.is_triggered
        else name_check
    )


def _check_pull_request(trigger: model.PullRequest, change: Change, changed: Collection[str] | None) -> TriggerCheck:
    if change.action and change.action not in trigger.types:
        return TriggerCheck(
            False, f"the pull request was {change.action}, and it runs when one is {', '.join(trigger.types)}"
        )
    name_check = _check_name(
        "branch", change.branch, trigger.branches, trigger.branches_ignore, "the pull request targets"
    )
    return (
        _check_paths(name_check.reason, trigger.paths, trigger.paths_ignore, changed)
        if name_check.is_triggered
        else name_check
    )


def _check_schedule(schedules: Sequence[model.Schedule], change: Change) -> TriggerCheck:
    """Return whether one of the schedules is due on the branch of the change, and the reason."""
    for schedule in schedules:
        if change.cron and schedule.cron != change.cron:
            continue
        if schedule.branches is not None:
            matches = not change.branch or branch_filter(schedule.branches).matches(change.branch)
        else:
            matches = not change.branch or not change.default_branch or change.branch == change.default_branch
        if matches:
            return TriggerCheck(True, f"its schedule is due: {schedule.cron}")
    return TriggerCheck(False, f"none of its schedules is {change.cron or 'due'} on the branch {change.branch}")


def _check_name(
    kind: str,
    name: str,
    patterns: Sequence[str] | None,
    ignored_patterns: Sequence[str] | None,
    event: str = "somebody pushed",
) -> TriggerCheck:
    """Return whether a branch or tag passes a filter, and the reason. At most one of the two lists is given.

    `event` is the beginning of the reason.
    """
    if patterns is not None:
        deciding_pattern = branch_filter(patterns).decided_by(name)
        if deciding_pattern is None:
            return TriggerCheck(False, f"the {kind} {name} matches none of: {', '.join(patterns)}")
        if deciding_pattern.is_negative:
            return TriggerCheck(False, f"the {kind} {name} is excluded by {deciding_pattern.text}")
        return TriggerCheck(True, f"{event} the {kind} {name}, which matches {deciding_pattern.text}")
    if ignored_patterns is not None:
        deciding_pattern = branch_filter(ignored_patterns).decided_by(name)
        if deciding_pattern is not None and not deciding_pattern.is_negative:
            return TriggerCheck(False, f"the {kind} {name} is ignored by {deciding_pattern.text}")
    return TriggerCheck(True, f"{event} the {kind} {name}")


def _check_paths(
    reason: str, paths: Sequence[str] | None, ignored_patterns: Sequence[str] | None, changed: Collection[str] | None
) -> TriggerCheck:
    """Return whether the changed paths pass a filter, and the reason. `reason` is that of the filter before."""
    if paths is None and ignored_patterns is None:
        return TriggerCheck(True, reason)
    patterns = tuple(paths) if paths is not None else ("**", *map(_negated, ignored_patterns or ()))
    [choice] = select([SelectableJob(name="on", paths=patterns)], changed, always=())
    if choice.is_kept and (paths is not None or not choice.path):
        return TriggerCheck(True, f"{reason}; {choice.reason}")
    if choice.is_kept:
        return TriggerCheck(True, f"{reason}; {choice.path} changed, which none of the ignored paths matches")
    if paths is not None:
        return TriggerCheck(False, f"no changed file matches its paths: {', '.join(paths)}")
    return TriggerCheck(False, f"every changed file matches its ignored paths: {', '.join(ignored_patterns or ())}")


def _negated(pattern: str) -> str:
    """Return a pattern with `!` added at its beginning, or removed from it."""
    return pattern[1:] if pattern.startswith("!") else f"!{pattern}"
