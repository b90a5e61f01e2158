"""What no single key shows: jobs that need each other, keys that exclude each other, times that never come.

Looks at the nodes, not at the model, so that it finds its problems beside all others in one pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from deltaci.core.graph import find_cycle
from deltaci.core.text import nearest
from deltaci.pipeline.parse.action_inputs import check_action_inputs
from deltaci.pipeline.parse.aliases import FOREIGN_KEYS
from deltaci.pipeline.parse.nodes import child, entry, items, pairs
from deltaci.pipeline.parse.problems import Position, ProblemList, join_words, quote
from deltaci.pipeline.parse.yaml import OBJECT, TEXT, Node

FOR_RUNNERS: Final = (
    *("steps", "strategy", "runs-on", "image", "services", "secrets", "defaults", "outputs", "output-path", "retry"),
    *("artifacts", "caches", "validate", "executor", "network", "limits", "env", "timeout-minutes", "concurrency"),
)
CRON_FIELDS: Final = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MAX_CYCLES: Final = 20
MAX_SHOWN_JOBS: Final = 12
MAX_CRON_CHARS: Final = 200
DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_CRON_PART: Final = re.compile(r"(?:\*|(\w+)(?:-(\w+))?)(?:/([0-9]+))?")

Add = Callable[..., None]


def check_nodes(root: Node, problems: ProblemList) -> None:
    """Everything that is about more than one key."""
    jobs = [(key, job) for key, job in pairs(child(root, "jobs")) if job.kind == OBJECT]
    for key, job in jobs:
        _check_work(key, job, problems.add)
        _check_steps(job, problems.add)
        check_action_inputs(job, problems.add)
        _check_matrix(child(child(job, "strategy"), "matrix"), problems)
        check_retry(child(job, "retry"), problems.add)
    check_needs({key.raw: list(needs_of(job)) for key, job in pairs(child(root, "jobs"))}, problems)
    on = child(root, "on")
    if on is not None and on.kind == OBJECT and not on.value:
        problems.add(
            on.position, "nothing that starts this pipeline", "expected push, pull_request, schedule or manual"
        )
    for name in ("push", "pull_request"):
        _check_both(child(on, name), problems.add)
    for schedule in items(child(on, "schedule")):
        check_cron(child(schedule, "cron") if schedule.kind == OBJECT else schedule, problems.add)
    for key, one in pairs(child(child(on, "manual"), "inputs")):
        _check_input(key, one, problems.add)


# -- jobs


def _check_work(key: Node, job: Node, add: Add) -> None:
    steps, approval = entry(job, "steps"), entry(job, "approval")
    if steps is None and approval is None and not any(_is_meant_as_work(each.raw) for each, _ in pairs(job)[:50]):
        add(
            key.position,
            f"the job {quote(key.raw)} without 'steps'",
            "expected steps for a runner, or an approval for people",
        )
    if approval is not None:
        for name in FOR_RUNNERS:
            if other := entry(job, name):
                told = f"{quote(name)} in the job {quote(key.raw)}, which is an approval"
                add(other[0].position, told, "people do not run anything: make it a job of its own that needs this one")


def _is_meant_as_work(key: str) -> bool:
    """Whether the reader has already said that this key should be `steps` or `approval`."""
    return "'steps'" in FOREIGN_KEYS.get(key, "") or bool(nearest(key, ("steps", "approval")))


def _check_steps(job: Node, add: Add) -> None:
    seen: dict[str, Position] = {}
    for step in items(child(job, "steps")):
        _check_step(step, add)
        name = child(step, "id")
        if name is None or name.kind != TEXT:
            continue
        if name.value in seen:
            add(
                name.position,
                f"the id {quote(name.value)} a second time",
                f"the step in line {seen[name.value].line} has it",
            )
        seen.setdefault(name.value, name.position)


def _check_step(step: Node, add: Add) -> None:
    if step.kind != OBJECT:
        return
    run, uses = entry(step, "run"), entry(step, "uses")
    if run is None and uses is None and not any(_is_meant_as_run(key.raw) for key, _ in pairs(step)[:50]):
        add(step.position, "a step without 'run'", "expected 'run': the command, for the shell")
    if run is not None and uses is not None:
        add(uses[0].position, "'uses' beside 'run'", "a step does one of both: make it two steps")
    for name in ("shell", "working-directory") if uses is not None and run is None else ():
        if other := entry(step, name):
            add(other[0].position, f"{quote(name)} in a step that runs no command", "remove it")
    if (given := entry(step, "with")) and uses is None:
        add(given[0].position, "'with' in a step without 'uses'", "use 'env' for a command")


def _is_meant_as_run(key: str) -> bool:
    """Whether the reader has already said that this key should be `run` or `uses`."""
    return "'run'" in FOREIGN_KEYS.get(key, "") or nearest(key, ("run", "uses")) not in ("", key)


def needs_of(job: Node) -> Iterator[Node]:
    """The names of the jobs that a job needs."""
    for need in items(child(job, "needs")):
        name = child(need, "job") if need.kind == OBJECT else need
        if name is not None and name.kind == TEXT:
            yield name


def check_needs(needs: Mapping[str, Sequence[Node]], problems: ProblemList, noun: str = "job") -> None:
    """What each of them needs, by name: others that there are, each once, and never each other."""
    graph: dict[str, dict[str, Position]] = {name: {} for name in needs}
    for name, wanted in needs.items():
        for need in wanted:
            if need.value == name:
                problems.add(need.position, f"the {noun} {quote(name)} needs itself", "remove this need")
            elif need.value in graph[name]:
                problems.add(need.position, f"the need {quote(need.value)} a second time", f"name each {noun} once")
            elif need.value in needs:
                graph[name][need.value] = need.position
            elif not problems.is_full:
                others = [other for other in needs if other != name]
                near = nearest(need.value, others)
                known = f"expected one of: {', '.join(others[:12])}" if others else "there is no other one to need"
                problems.add(need.position, f"there is no {noun} {quote(need.value)}", "" if near else known, near)
    for _ in range(MAX_CYCLES):  # What closes a cycle is taken out, so that each is told once.
        cycle = find_cycle({name: list(found) for name, found in graph.items()})
        if not cycle:
            break
        path = cycle if len(cycle) <= MAX_SHOWN_JOBS else [*cycle[: MAX_SHOWN_JOBS - 2], "…", cycle[-1]]
        told = f"{noun}s that wait for each other: {' → '.join(path)}"
        problems.add(graph[cycle[-2]].pop(cycle[-1]), told, "remove one of these needs")


def _check_matrix(matrix: Node | None, problems: ProblemList) -> None:
    axes = {key.raw: None for key, _ in pairs(matrix) if key.raw not in ("include", "exclude")}
    if matrix is not None and matrix.kind == OBJECT and not axes and child(matrix, "include") is None:
        problems.add(
            matrix.position, "a matrix without axes", 'expected at least one, such as \'python: ["3.12", "3.13"]\''
        )
    for row in items(child(matrix, "exclude")) if axes else []:
        for key, _ in pairs(row):
            if key.raw not in axes and not problems.is_full:
                near = nearest(key.raw, axes)
                wanted = f"expected {join_words([*axes][:MAX_SHOWN_JOBS])}"
                problems.add(key.position, f"{quote(key.raw)}, which is no axis of this matrix", wanted, near)


def check_retry(retry: Node | None, add: Add) -> None:
    """That the first wait is not longer than the longest."""
    first, most = child(retry, "delay-seconds"), child(retry, "max-delay-seconds")
    delay, limit = first and first.value, most and most.value
    if first is not None and isinstance(delay, int) and isinstance(limit, int) and delay > limit:
        add(first.position, f"a first delay of {delay} s", f"expected at most 'max-delay-seconds', {limit}")


# -- events


def _check_both(event: Node | None, add: Add) -> None:
    for name in ("branches", "tags", "paths"):
        if entry(event, name) and (other := entry(event, f"{name}-ignore")):
            told = f"'{name}' and '{name}-ignore' together"
            add(other[0].position, told, f"use one of them; '{name}' may have patterns that begin with '!'")


def _check_input(key: Node, one: Node, add: Add) -> None:
    kind, choices, default = child(one, "type"), child(one, "options"), child(one, "default")
    is_choice = kind is not None and kind.value == "choice"
    if is_choice and not items(choices):
        add(
            key.position, f"the input {quote(key.raw)}, a choice without 'options'", "expected a list of what it may be"
        )
    if not is_choice and choices is not None:
        add(choices.position, "'options' of an input that is no choice", "add 'type: choice'")
    if is_choice and default is not None and choices is not None:
        allowed = [each.raw for each in items(choices)]
        if allowed and default.raw not in allowed:
            add(
                default.position,
                default.describe(),
                f"expected one of: {', '.join(allowed)}",
                nearest(default.raw, allowed),
            )


def check_cron(cron: Node | None, add: Add) -> None:
    """The times of a schedule."""
    parts = cron.value.split() if cron is not None and cron.kind == TEXT else []
    if cron is None or len(parts) != len(CRON_FIELDS) or len(cron.value) > MAX_CRON_CHARS:
        return  # The shape of the text is the model's.
    for part, (name, low, high) in zip(parts, CRON_FIELDS, strict=True):
        for each in part.split(","):
            if not _is_cron(each, name, low, high):
                add(cron.position, f"{quote(each)} as the {name}", f"expected {low} to {high}, '*', 'a-b' or '*/n'")


def _is_cron(part: str, name: str, low: int, high: int) -> bool:
    match = _CRON_PART.fullmatch(part)
    if match is None:
        return False
    names = {"month": MONTHS, "weekday": DAYS}.get(name, ())
    bounds = [_cron_number(each, names, low) for each in match.group(1, 2) if each is not None]
    step = match[3]
    is_in_range = all(bound is not None and low <= bound <= high for bound in bounds)
    is_in_order = len(bounds) < 2 or not is_in_range or (bounds[0] or 0) <= (bounds[1] or 0)
    return is_in_range and is_in_order and (step is None or (len(step) < 4 and int(step) > 0))


def _cron_number(word: str, names: tuple[str, ...], low: int) -> int | None:
    if word.isascii() and word.isdigit() and len(word) < 4:
        return int(word)
    return names.index(word.lower()) + low if word.lower() in names else None
