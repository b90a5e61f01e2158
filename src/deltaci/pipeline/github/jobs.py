"""Converts a job of a workflow to a job of a pipeline file (as nodes, which the pipeline reader then reads)."""

from __future__ import annotations

from typing import Final

from deltaci.pipeline.expressions import context_names
from deltaci.pipeline.github.composite_actions import RepositoryActions
from deltaci.pipeline.github.containers import JobContainer, convert_container, convert_env, convert_services
from deltaci.pipeline.github.converter import PLANNING_CONTEXTS, Converter, list_node, object_node, text_node
from deltaci.pipeline.github.keys import Entries, has_key, read_entries
from deltaci.pipeline.github.runs_on import RunsOn, as_condition, convert_runs_on, label_list
from deltaci.pipeline.github.shells import CONTAINER_SHELL, DEFAULT_SHELL, WINDOWS_DEFAULT_SHELL, convert_shell
from deltaci.pipeline.github.steps import convert_steps
from deltaci.pipeline.github.strategy import Strategy, convert_strategy
from deltaci.pipeline.parse.problems import quote
from deltaci.pipeline.parse.yaml import BOOL, NUMBER, OBJECT, TEXT, Node, child, items

NAMED_BY_ID: Final = "the job is named by its id"
JOB_TIMEOUT_MINUTES: Final = 360  # GitHub's default


def convert_job(key: Node, node: Node, defaults: Entries, converter: Converter, actions: RepositoryActions) -> Node:
    """Convert a job to that of a pipeline file. Report its unsupported keys and values.

    `defaults` are the entries of the workflow's `defaults.run`, `actions` the composite actions of the repository.
    """
    entries = read_entries(node, "a job", converter)
    nodes_by_key: dict[str, Node | None] = {}
    calls_workflow = node.kind == OBJECT and any(name.raw == "uses" for name, _ in node.value)
    if "name" in entries:
        nodes_by_key["name"] = _convert_job_name(entries["name"].value, converter)
    if "needs" in entries:
        nodes_by_key["needs"] = convert_needs(entries["needs"].value, converter)
    if "if" in entries:
        nodes_by_key["if"] = converter.convert_condition(entries["if"].value, "jobs.if")
    strategy = convert_strategy(entries["strategy"].value, converter) if "strategy" in entries else Strategy(None, [{}])
    nodes_by_key["strategy"] = strategy.node
    runs_on = RunsOn()
    if "runs-on" in entries:
        runs_on = convert_runs_on(entries["runs-on"].value, strategy.combinations, strategy.unknown_axes, converter)
        nodes_by_key["runs-on"] = label_list(entries["runs-on"].value, runs_on)
    elif not calls_workflow and node.kind == OBJECT:
        converter.report_unsupported(
            key.position, f"the job {quote(key.raw)} without 'runs-on'", "expected it, e.g. ubuntu-latest"
        )
    job_container = (
        convert_container(entries["container"].value, converter) if "container" in entries else JobContainer(None, None)
    )
    nodes_by_key["image"] = job_container.image
    if "services" in entries:
        nodes_by_key["services"] = convert_services(entries["services"].value, converter)
    nodes_by_key["env"] = _convert_job_env(entries, job_container, converter)
    nodes_by_key["defaults"] = _convert_run_defaults(key, entries, defaults, runs_on, job_container, converter)
    _convert_settings(key, entries, nodes_by_key, converter)
    if "steps" in entries:
        has_working_directory = has_key(child(nodes_by_key["defaults"], "run"), "working-directory")
        nodes_by_key["steps"] = convert_steps(
            *entries["steps"], converter, actions, has_working_directory=has_working_directory
        )
    elif not calls_workflow and node.kind == OBJECT:
        converter.report_unsupported(key.position, f"the job {quote(key.raw)} without 'steps'", "expected steps")
    nodes_by_key["checkout"] = Node(BOOL, key.position, False, "false")
    nodes_by_key["network"] = Node(BOOL, key.position, True, "true")
    if node.kind == OBJECT and any(name.raw == "environment" for name, _ in node.value):
        # It deploys: only its author knows whether that can be repeated.
        nodes_by_key["retry"] = Node(NUMBER, key.position, 1, "1")
    return object_node(node.position, nodes_by_key)


def _convert_job_name(node: Node, converter: Converter) -> Node | None:
    """Convert the job's name. Warn and return None if it uses contexts that are not known when a run is planned."""
    if node.kind == TEXT:
        unknown_contexts = {
            context_name
            for expression in converter.parse_expressions(node, "jobs.env")
            for context_name in context_names(expression)
        } - PLANNING_CONTEXTS
        if unknown_contexts:
            converter.warn(
                node.position,
                f"a name with {quote(min(unknown_contexts))}, which is not known when a run is planned",
                NAMED_BY_ID,
            )
            return None
    return converter.convert_line(node, "jobs.name", "name")


def convert_needs(node: Node, converter: Converter) -> Node:
    """Convert `needs` to a list of job ids."""
    return list_node(
        node.position,
        [
            job_id_node
            for need_node in items(node)
            if (job_id_node := converter.convert_text(need_node, "run-name", "needs")) is not None
        ],
    )


def convert_concurrency(node: Node, availability_key: str, converter: Converter) -> Node | None:
    """Convert `concurrency` of a workflow or job. Return None if it names no group."""
    if node.kind != OBJECT:
        group_node = converter.convert_text(node, availability_key, "concurrency")
        return (
            object_node(node.position, {"group": group_node}) if group_node is not None and group_node.value else None
        )
    entries = read_entries(node, "'concurrency'", converter)
    if "group" not in entries:
        converter.report_unsupported(node.position, "'concurrency' without 'group'", "expected the group's name")
        return None
    nodes_by_key: dict[str, Node | None] = {
        "group": converter.convert_text(entries["group"].value, availability_key, "group")
    }
    if "cancel-in-progress" in entries:
        nodes_by_key["cancel-in-progress"] = converter.convert_boolean(
            entries["cancel-in-progress"].value, availability_key, "cancel-in-progress"
        )
    return object_node(node.position, nodes_by_key)


def read_run_defaults(node: Node, converter: Converter) -> Entries:
    """Return the supported entries of `run` in a `defaults` node; none if it has no `run`."""
    entries = read_entries(node, "'defaults'", converter)
    return read_entries(entries["run"].value, "'defaults.run'", converter) if "run" in entries else {}


def _convert_job_env(entries: Entries, job_container: JobContainer, converter: Converter) -> Node | None:
    """Convert the variables of the job and its container; those of the job win. Return None if neither has any."""
    job_env = convert_env(entries["env"].value, "jobs.env", converter) if "env" in entries else None
    if job_container.env is None:
        return job_env
    container_env = convert_env(job_container.env, "jobs.services.env", converter)
    merged = {
        name_node.raw: (name_node, value_node)
        for env in (container_env, job_env)
        if env
        for name_node, value_node in env.value
    }
    return Node(OBJECT, job_container.env.position, [*merged.values()])


def _convert_run_defaults(
    key: Node,
    entries: Entries,
    workflow_defaults: Entries,
    runs_on: RunsOn,
    job_container: JobContainer,
    converter: Converter,
) -> Node:
    """Return the converted `defaults` of a job.

    They always name a shell, because GitHub's default differs from ours.
    """
    run_entries = {
        **workflow_defaults,
        **(read_run_defaults(entries["defaults"].value, converter) if "defaults" in entries else {}),
    }
    nodes_by_key: dict[str, Node | None] = {}
    if "shell" in run_entries:
        nodes_by_key["shell"] = convert_shell(run_entries["shell"].value, converter, "jobs.defaults")
    elif job_container.image is not None and (condition := as_condition(job_container.image)):
        nodes_by_key["shell"] = text_node(
            key.position, f"${{{{ {condition} && '{CONTAINER_SHELL}' || '{DEFAULT_SHELL}' }}}}"
        )
    elif job_container.image is not None:
        nodes_by_key["shell"] = text_node(key.position, CONTAINER_SHELL)
    elif runs_on.windows_if:
        nodes_by_key["shell"] = text_node(
            key.position, f"${{{{ {runs_on.windows_if} && '{WINDOWS_DEFAULT_SHELL}' || '{DEFAULT_SHELL}' }}}}"
        )
    else:
        nodes_by_key["shell"] = text_node(key.position, WINDOWS_DEFAULT_SHELL if runs_on.is_windows else DEFAULT_SHELL)
    if "working-directory" in run_entries:
        nodes_by_key["working-directory"] = converter.convert_text(
            run_entries["working-directory"].value, "jobs.defaults", "working-directory"
        )
    return object_node(key.position, {"run": object_node(key.position, nodes_by_key)})


def _convert_settings(key: Node, entries: Entries, nodes_by_key: dict[str, Node | None], converter: Converter) -> None:
    """Add the timeout, `continue-on-error`, concurrency and outputs of a job to its converted keys."""
    nodes_by_key["timeout-minutes"] = Node(NUMBER, key.position, JOB_TIMEOUT_MINUTES, str(JOB_TIMEOUT_MINUTES))
    if "timeout-minutes" in entries:
        nodes_by_key["timeout-minutes"] = converter.convert_number(
            entries["timeout-minutes"].value, "jobs.timeout-minutes", "timeout-minutes"
        )
    if "continue-on-error" in entries:
        allow_failure = converter.convert_boolean(
            entries["continue-on-error"].value, "jobs.continue-on-error", "continue-on-error"
        )
        nodes_by_key["allow_failure"] = allow_failure
    if "concurrency" in entries:
        nodes_by_key["concurrency"] = convert_concurrency(entries["concurrency"].value, "jobs.concurrency", converter)
    if "outputs" in entries:
        nodes_by_key["outputs"] = _convert_outputs(entries["outputs"].value, converter)


def _convert_outputs(node: Node, converter: Converter) -> Node | None:
    if node.kind != OBJECT:
        converter.report_unsupported(node.position, f"{node.describe()} as 'outputs'", "expected names with texts")
        return None
    output_pairs = []
    for name_node, output_node in node.value:
        converted_output = converter.convert_text(output_node, "jobs.outputs", name_node.raw)
        if converted_output is not None and converted_output.kind == TEXT and converted_output.value:
            output_pairs.append((name_node, converted_output))
    return Node(OBJECT, node.position, output_pairs)
