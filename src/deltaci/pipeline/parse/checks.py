"""Checks that concern more than one key: needs of jobs, keys that exclude each other, and times that never occur.

The checks run on the nodes, not on the typed model, so that their problems are reported together with all others even
if the model cannot be built.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from deltaci.core.graph import find_cycle
from deltaci.core.text import nearest
from deltaci.pipeline.parse.action_inputs import check_action_inputs
from deltaci.pipeline.parse.aliases import FOREIGN_KEYS
from deltaci.pipeline.parse.problems import Position, ProblemList, join_words, quote
from deltaci.pipeline.parse.yaml import OBJECT, TEXT, Node, child, entry, items, pairs

# The keys of a job that an approval cannot have.
RUNNER_KEYS: Final = (
    *("steps", "strategy", "runs-on", "image", "services", "secrets", "defaults", "outputs", "output-path", "retry"),
    *("artifacts", "caches", "validate", "executor", "network", "limits", "env", "timeout-minutes", "concurrency"),
)
CRON_FIELDS: Final = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))
MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
MAX_CYCLES: Final = 20
MAX_LISTED_JOBS: Final = 12
MAX_CRON_CHARS: Final = 200
DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_CRON_PART: Final = re.compile(r"(?:\*|(\w+)(?:-(\w+))?)(?:/([0-9]+))?")

AddProblem = Callable[..., None]
"""The type of `ProblemList.add`."""


def check_nodes(root_node: Node, problems: ProblemList) -> None:
    """Report problems of the jobs and events of a pipeline file, except problems with single values."""
    job_entries = [(key_node, job) for key_node, job in pairs(child(root_node, "jobs")) if job.kind == OBJECT]
    for key_node, job in job_entries:
        _check_steps_or_approval(key_node, job, problems.add)
        _check_steps(job, problems.add)
        check_action_inputs(job, problems.add)
        _check_matrix(child(child(job, "strategy"), "matrix"), problems)
        check_retry(child(job, "retry"), problems.add)
    check_needs({key_node.raw: list(needs_of(job)) for key_node, job in pairs(child(root_node, "jobs"))}, problems)
    on = child(root_node, "on")
    if on is not None and on.kind == OBJECT and not on.value:
        problems.add(on.position, "'on' without events", "expected push, pull_request, schedule or manual")
    for event_name in ("push", "pull_request"):
        _check_ignore_lists(child(on, event_name), problems.add)
    for schedule in items(child(on, "schedule")):
        check_cron(child(schedule, "cron") if schedule.kind == OBJECT else schedule, problems.add)
    for key_node, declaration in pairs(child(child(on, "manual"), "inputs")):
        _check_input(key_node, declaration, problems.add)


# -- jobs


def _check_steps_or_approval(key_node: Node, job_node: Node, add_problem: AddProblem) -> None:
    steps_entry, approval_entry = entry(job_node, "steps"), entry(job_node, "approval")
    if (
        steps_entry is None
        and approval_entry is None
        and not any(_replaces_steps(key_name.raw) for key_name, _ in pairs(job_node)[:50])
    ):
        add_problem(
            key_node.position,
            f"the job {quote(key_node.raw)} without 'steps'",
            "expected steps for a runner, or an approval for people",
        )
    if approval_entry is not None:
        for key_name in RUNNER_KEYS:
            if runner_entry := entry(job_node, key_name):
                message = f"{quote(key_name)} in the job {quote(key_node.raw)}, which is an approval"
                add_problem(
                    runner_entry[0].position,
                    message,
                    "an approval runs nothing: make it a job of its own that needs this one",
                )


def _replaces_steps(key: str) -> bool:
    """Return whether the reader refuses this key with a suggestion to write `steps` or `approval` instead."""
    return "'steps'" in FOREIGN_KEYS.get(key, "") or bool(nearest(key, ("steps", "approval")))


def _check_steps(job_node: Node, add_problem: AddProblem) -> None:
    id_positions: dict[str, Position] = {}
    for step_node in items(child(job_node, "steps")):
        _check_step(step_node, add_problem)
        id_node = child(step_node, "id")
        if id_node is None or id_node.kind != TEXT:
            continue
        if id_node.value in id_positions:
            add_problem(
                id_node.position,
                f"the id {quote(id_node.value)} a second time",
                f"the step in line {id_positions[id_node.value].line} has it",
            )
        id_positions.setdefault(id_node.value, id_node.position)


def _check_step(step_node: Node, add_problem: AddProblem) -> None:
    if step_node.kind != OBJECT:
        return
    run_entry, uses_entry = entry(step_node, "run"), entry(step_node, "uses")
    if (
        run_entry is None
        and uses_entry is None
        and not any(_replaces_run(key_node.raw) for key_node, _ in pairs(step_node)[:50])
    ):
        add_problem(step_node.position, "a step without 'run'", "expected 'run': the command, for the shell")
    if run_entry is not None and uses_entry is not None:
        add_problem(uses_entry[0].position, "'uses' beside 'run'", "a step has only one of them: make it two steps")
    for key_name in ("shell", "working-directory") if uses_entry is not None and run_entry is None else ():
        if command_entry := entry(step_node, key_name):
            add_problem(command_entry[0].position, f"{quote(key_name)} in a step that runs no command", "remove it")
    if (with_entry := entry(step_node, "with")) and uses_entry is None:
        add_problem(with_entry[0].position, "'with' in a step without 'uses'", "use 'env' for a command")


def _replaces_run(key: str) -> bool:
    """Return whether the reader refuses this key with a suggestion to write `run` or `uses` instead."""
    return "'run'" in FOREIGN_KEYS.get(key, "") or nearest(key, ("run", "uses")) not in ("", key)


def needs_of(job_node: Node) -> Iterator[Node]:
    """Yield the nodes with the ids of the jobs that a job needs."""
    for need in items(child(job_node, "needs")):
        name_node = child(need, "job") if need.kind == OBJECT else need
        if name_node is not None and name_node.kind == TEXT:
            yield name_node


def check_needs(need_nodes_by_job: Mapping[str, Sequence[Node]], problems: ProblemList, noun: str = "job") -> None:
    """Report needs that are unknown, repeated or cyclic. `needs` has the nodes of each job's needs, by job id."""
    graph: dict[str, dict[str, Position]] = {job_id: {} for job_id in need_nodes_by_job}
    for job_id, need_nodes in need_nodes_by_job.items():
        for need_node in need_nodes:
            if need_node.value == job_id:
                problems.add(need_node.position, f"the {noun} {quote(job_id)} needs itself", "remove this need")
            elif need_node.value in graph[job_id]:
                problems.add(
                    need_node.position, f"the need {quote(need_node.value)} a second time", f"name each {noun} once"
                )
            elif need_node.value in need_nodes_by_job:
                graph[job_id][need_node.value] = need_node.position
            elif not problems.is_full:
                other_job_names = [other_name for other_name in need_nodes_by_job if other_name != job_id]
                suggestion = nearest(need_node.value, other_job_names)
                joined_names = ", ".join(other_job_names[:12])
                expected = f"expected one of: {joined_names}" if other_job_names else f"there is no other {noun}"
                message = f"there is no {noun} {quote(need_node.value)}"
                problems.add(need_node.position, message, "" if suggestion else expected, suggestion)
    for _ in range(MAX_CYCLES):  # The edge that closes a cycle is removed, so that each cycle is reported once.
        cycle = find_cycle({job_id: list(edges) for job_id, edges in graph.items()})
        if not cycle:
            break
        listed_jobs = cycle if len(cycle) <= MAX_LISTED_JOBS else [*cycle[: MAX_LISTED_JOBS - 2], "…", cycle[-1]]
        message = f"{noun}s that wait for each other: {' → '.join(listed_jobs)}"
        problems.add(graph[cycle[-2]].pop(cycle[-1]), message, "remove one of these needs")


def _check_matrix(matrix: Node | None, problems: ProblemList) -> None:
    axes = {key_node.raw: None for key_node, _ in pairs(matrix) if key_node.raw not in ("include", "exclude")}
    if matrix is not None and matrix.kind == OBJECT and not axes and child(matrix, "include") is None:
        problems.add(
            matrix.position, "a matrix without axes", 'expected at least one, such as \'python: ["3.12", "3.13"]\''
        )
    for combination in items(child(matrix, "exclude")) if axes else []:
        for key_node, _ in pairs(combination):
            if key_node.raw not in axes and not problems.is_full:
                suggestion = nearest(key_node.raw, axes)
                expected = f"expected {join_words([*axes][:MAX_LISTED_JOBS])}"
                message = f"{quote(key_node.raw)}, which is not an axis of this matrix"
                problems.add(key_node.position, message, expected, suggestion)


def check_retry(retry: Node | None, add_problem: AddProblem) -> None:
    """Report a first delay of `retry` that is longer than its maximum delay."""
    delay_node, max_delay_node = child(retry, "delay-seconds"), child(retry, "max-delay-seconds")
    delay, max_delay = delay_node and delay_node.value, max_delay_node and max_delay_node.value
    if delay_node is not None and isinstance(delay, int) and isinstance(max_delay, int) and delay > max_delay:
        add_problem(
            delay_node.position, f"a first delay of {delay} s", f"expected at most 'max-delay-seconds', {max_delay}"
        )


# -- events


def _check_ignore_lists(event_node: Node | None, add_problem: AddProblem) -> None:
    for key_name in ("branches", "tags", "paths"):
        if entry(event_node, key_name) and (ignore_entry := entry(event_node, f"{key_name}-ignore")):
            message = f"'{key_name}' and '{key_name}-ignore' together"
            add_problem(
                ignore_entry[0].position,
                message,
                f"use one of them; '{key_name}' may have patterns that begin with '!'",
            )


def _check_input(key_node: Node, declaration: Node, add_problem: AddProblem) -> None:
    type_node, options_node, default_node = (
        child(declaration, "type"),
        child(declaration, "options"),
        child(declaration, "default"),
    )
    is_choice = type_node is not None and type_node.value == "choice"
    if is_choice and not items(options_node):
        add_problem(
            key_node.position,
            f"the input {quote(key_node.raw)}, a choice without 'options'",
            "expected the list of its possible values",
        )
    if not is_choice and options_node is not None:
        add_problem(options_node.position, "'options' of an input that is not a choice", "add 'type: choice'")
    if is_choice and default_node is not None and options_node is not None:
        allowed_values = [choice.raw for choice in items(options_node)]
        if allowed_values and default_node.raw not in allowed_values:
            add_problem(
                default_node.position,
                default_node.describe(),
                f"expected one of: {', '.join(allowed_values)}",
                nearest(default_node.raw, allowed_values),
            )


def check_cron(cron: Node | None, add_problem: AddProblem) -> None:
    """Report invalid values in the five fields of a schedule. A wrong number of fields is reported by the reader."""
    field_texts = cron.value.split() if cron is not None and cron.kind == TEXT else []
    if cron is None or len(field_texts) != len(CRON_FIELDS) or len(cron.value) > MAX_CRON_CHARS:
        return  # The reader reports this.
    for field_text, (field_name, low, high) in zip(field_texts, CRON_FIELDS, strict=True):
        for part_text in field_text.split(","):
            if not _is_cron_part(part_text, field_name, low, high):
                add_problem(
                    cron.position,
                    f"{quote(part_text)} as the {field_name}",
                    f"expected {low} to {high}, '*', 'a-b' or '*/n'",
                )


def _is_cron_part(part_text: str, field_name: str, lowest: int, highest: int) -> bool:
    """Return whether a part of a cron field is valid: `*`, `a` or `a-b`, each maybe with a step, such as `*/5`."""
    part_match = _CRON_PART.fullmatch(part_text)
    if part_match is None:
        return False
    word_names = {"month": MONTHS, "weekday": DAYS}.get(field_name, ())
    bounds = [_cron_number(bound, word_names, lowest) for bound in part_match.group(1, 2) if bound is not None]
    step_text = part_match[3]
    is_in_range = all(bound is not None and lowest <= bound <= highest for bound in bounds)
    is_in_order = len(bounds) < 2 or not is_in_range or (bounds[0] or 0) <= (bounds[1] or 0)
    return is_in_range and is_in_order and (step_text is None or (len(step_text) < 4 and int(step_text) > 0))


def _cron_number(word: str, names: tuple[str, ...], lowest: int) -> int | None:
    """Return the number of a word, which is digits or one of the names, counted from `lowest`; else None."""
    if word.isascii() and word.isdigit() and len(word) < 4:
        return int(word)
    return names.index(word.lower()) + lowest if word.lower() in names else None
