"""Whether a change starts a pipeline: what `on` says, by GitHub's rules, and why. Unsure means yes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from deltaci.core.errors import Refused
from deltaci.pipeline import model
from deltaci.pipeline.change import Change
from deltaci.pipeline.planning.select import SelectableJob, select
from deltaci.protocol.path_patterns import BadPattern, branch_filter


def check_triggers(pipeline: model.Pipeline, change: Change, changed: Collection[str] | None) -> tuple[bool, str]:
    """Whether a pipeline runs for a change, and why. `changed` are the paths of the diff; None: they are not known."""
    try:
        return _wanted(pipeline.on, change, changed)
    except (BadPattern, Refused) as bad:  # The reader finds these; a pipeline may have been made in another way.
        return True, f"what it says of when it runs cannot be read, so it does ({bad})"


def _wanted(on: model.On, change: Change, changed: Collection[str] | None) -> tuple[bool, str]:
    match change.event:
        case "push":
            return _push(on.push, change, changed) if on.push is not None else _not_named("pushes")
        case "pull_request":
            found = on.pull_request
            return _pull_request(found, change, changed) if found is not None else _not_named("pull requests")
        case "schedule":
            return _schedule(on.schedule, change) if on.schedule is not None else _not_named("schedules")
        case _:
            return (True, "it was started by hand") if on.manual is not None else _not_named("starts by hand")


def _not_named(events: str) -> tuple[bool, str]:
    return False, f"it does not run on {events}"


def _push(push: model.Push, change: Change, changed: Collection[str] | None) -> tuple[bool, str]:
    has_branches = push.branches is not None or push.branches_ignore is not None
    has_tags = push.tags is not None or push.tags_ignore is not None
    if change.tag:
        if has_branches and not has_tags:
            return False, f"the tag {change.tag} was pushed, and it runs on branches only"
        # As on GitHub, a tag has no diff: paths do not matter.
        return _named("tag", change.tag, push.tags, push.tags_ignore)
    if has_tags and not has_branches:
        return False, f"the branch {change.branch} was pushed, and it runs on tags only"
    is_on, reason = _named("branch", change.branch, push.branches, push.branches_ignore)
    return _paths(reason, push.paths, push.paths_ignore, changed) if is_on else (False, reason)


def _pull_request(asked: model.PullRequest, change: Change, changed: Collection[str] | None) -> tuple[bool, str]:
    if change.action and change.action not in asked.types:
        return False, f"the pull request was {change.action}, and it runs when one is {', '.join(asked.types)}"
    is_on, reason = _named("branch", change.branch, asked.branches, asked.branches_ignore, "the pull request goes into")
    return _paths(reason, asked.paths, asked.paths_ignore, changed) if is_on else (False, reason)


def _schedule(schedules: Sequence[model.Schedule], change: Change) -> tuple[bool, str]:
    for schedule in schedules:
        if change.cron and schedule.cron != change.cron:
            continue
        if schedule.branches is not None:
            is_meant = not change.branch or branch_filter(schedule.branches).matches(change.branch)
        else:
            is_meant = not change.branch or not change.default_branch or change.branch == change.default_branch
        if is_meant:
            return True, f"it is time: {schedule.cron}"
    return False, f"none of its schedules is {change.cron or 'meant'} on the branch {change.branch}"


def _named(
    kind: str,
    name: str,
    wanted: Sequence[str] | None,
    unwanted: Sequence[str] | None,
    happened: str = "somebody pushed",
) -> tuple[bool, str]:
    """Whether a branch or tag is meant. Both lists are never there together."""
    if wanted is not None:
        decided = branch_filter(wanted).decided_by(name)
        if decided is None:
            return False, f"the {kind} {name} matches none of: {', '.join(wanted)}"
        if decided.is_negative:
            return False, f"the {kind} {name} is taken away by {decided.text}"
        return True, f"{happened} the {kind} {name}, which matches {decided.text}"
    if unwanted is not None:
        decided = branch_filter(unwanted).decided_by(name)
        if decided is not None and not decided.is_negative:
            return False, f"the {kind} {name} is left out by {decided.text}"
    return True, f"{happened} the {kind} {name}"


def _paths(
    reason: str, wanted: Sequence[str] | None, unwanted: Sequence[str] | None, changed: Collection[str] | None
) -> tuple[bool, str]:
    if wanted is None and unwanted is None:
        return True, reason
    patterns = tuple(wanted) if wanted is not None else ("**", *map(_turned, unwanted or ()))
    [choice] = select([SelectableJob(name="on", paths=patterns)], changed, always=())
    if choice.is_kept and (wanted is not None or not choice.path):
        return True, f"{reason}; {choice.reason}"
    if choice.is_kept:
        return True, f"{reason}; {choice.path} changed, which is not in what it leaves out"
    if wanted is not None:
        return False, f"no changed file matches its paths: {', '.join(wanted)}"
    return False, f"every changed file is in what it leaves out: {', '.join(unwanted or ())}"


def _turned(pattern: str) -> str:
    return pattern[1:] if pattern.startswith("!") else f"!{pattern}"
