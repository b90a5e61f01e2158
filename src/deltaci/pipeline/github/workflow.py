"""Parses a workflow file to a pipeline, or to the reasons why it is not supported, job by job."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from deltaci.core.graph import find_cycle
from deltaci.core.text import nearest
from deltaci.pipeline import model
from deltaci.pipeline.github.composite_actions import RepositoryActions
from deltaci.pipeline.github.containers import convert_env
from deltaci.pipeline.github.converter import Converter, list_node, text_node
from deltaci.pipeline.github.events import convert_events
from deltaci.pipeline.github.jobs import convert_concurrency, convert_job, convert_needs, read_run_defaults
from deltaci.pipeline.github.keys import Entries, read_entries
from deltaci.pipeline.parse.parse_result import ParseResult, Path, SourceExpression
from deltaci.pipeline.parse.problems import Position, Problem, ProblemList, quote
from deltaci.pipeline.parse.reader import ParsedNode, parse_node
from deltaci.pipeline.parse.yaml import OBJECT, TEXT, Node, YamlError, child, decode_utf8, parse_yaml

WORKFLOW_FOLDER: Final = ".github/workflows"
_JOB_ID: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,99}")
RUN_TIMEOUT_MINUTES: Final = 35 * 24 * 60  # as on GitHub


class ParsedWorkflow(ParseResult, frozen=True, kw_only=True):
    """The result of parsing a workflow. `pipeline` is None unless all jobs are supported.

    `supported_pipeline` has only the jobs that are supported together with all their needs; it is used for runs that
    request jobs by name. `unsupported_jobs` has the reasons why each other job is unsupported.
    """

    job_ids: tuple[str, ...] = ()
    supported_pipeline: model.Pipeline | None = None
    unsupported_jobs: dict[str, tuple[Problem, ...]] = msgspec.field(default_factory=dict)

    @property
    def notes(self) -> tuple[Problem, ...]:
        """The problems that are only warnings: for example, keys without effect here."""
        return tuple(problem for problem in self.problems if problem.is_warning)


def is_workflow_path(path: str) -> bool:
    """Return whether GitHub treats a file at this path as a workflow."""
    folder, _, file_name = path.replace("\\", "/").rpartition("/")
    is_workflow_folder = folder == WORKFLOW_FOLDER or folder.endswith(f"/{WORKFLOW_FOLDER}")
    return is_workflow_folder and file_name.endswith((".yml", ".yaml"))


def parse_workflow(content: str | bytes, file: str, text_by_path: Mapping[str, str] | None = None) -> ParsedWorkflow:
    """Parse a workflow and convert it to a pipeline, or to the reasons why it is not supported.

    `text_by_path` are the texts of the other files of the repository, by path, for composite actions.
    """
    problems = ProblemList(file)
    try:
        file_text = decode_utf8(content, problems) if isinstance(content, bytes) else content
        root_node = parse_yaml(file_text, problems)
    except YamlError:
        source = content if isinstance(content, str) else content.decode("utf-8", "replace")
        return ParsedWorkflow(file=file, pipeline=None, problems=problems.in_order(), source=source)
    return _WorkflowReader(file, file_text, root_node, problems, {} if text_by_path is None else text_by_path).convert()


class _WorkflowReader:
    """Converts one workflow: first the top-level keys, then each job."""

    def __init__(
        self, file: str, file_text: str, root_node: Node, problems: ProblemList, text_by_path: Mapping[str, str]
    ) -> None:
        self.file, self.text, self.actions = file, file_text, RepositoryActions(text_by_path)
        self.converter = Converter(file, file_text)
        self.converter.problems = problems
        self.positions: dict[Path, Position] = {(): root_node.position}
        self.source_expressions: list[SourceExpression] = []
        self.jobs: dict[str, model.Job] = {}
        self.unsupported_jobs: dict[str, tuple[Problem, ...]] = {}
        self.job_converters: dict[str, Converter] = {}
        self.entries: Entries = read_entries(root_node, "the workflow", self.converter)
        self.defaults: Entries = (
            read_run_defaults(self.entries["defaults"].value, self.converter) if "defaults" in self.entries else {}
        )
        if root_node.kind == OBJECT:
            for key in ("on", "jobs"):
                if key not in self.entries:
                    self.converter.report_unsupported(
                        root_node.position, f"a workflow without {quote(key)}", f"expected {quote(key)}"
                    )

    def convert(self) -> ParsedWorkflow:
        """Convert the whole file and return the result. To be called once."""
        pipeline = self._read_pipeline()
        job_entries = self._read_job_entries()
        needs_graph = self._build_needs_graph(job_entries)
        for key_node, job_node in job_entries:
            self._read_job(key_node, job_node)
        self._mark_dependents_unsupported(needs_graph)
        supported_pipeline = None
        if pipeline is not None and self.jobs and not self.converter.problems.has_errors:
            supported_pipeline = msgspec.structs.replace(pipeline, jobs=self.jobs)
        all_problems = [*self.converter.problems.in_order()]
        all_problems += [
            problem for converter in self.job_converters.values() for problem in converter.problems.in_order()
        ]
        return ParsedWorkflow(
            file=self.file,
            pipeline=supported_pipeline if not self.unsupported_jobs else None,
            problems=tuple(sorted(set(all_problems))),
            expressions=tuple(self.source_expressions),
            positions=self.positions,
            source=self.text,
            job_ids=tuple(key_node.raw for key_node, _ in job_entries),
            supported_pipeline=supported_pipeline,
            unsupported_jobs=self.unsupported_jobs,
        )

    def _read_pipeline(self) -> model.Pipeline | None:
        """Return the pipeline with everything but the jobs (instead, one empty job), or None if there are errors."""
        converter, entries = self.converter, self.entries
        converted_node_and_type_by_key: dict[str, tuple[Node, Any]] = {}
        if "on" in entries:
            converted_node_and_type_by_key["on"] = (convert_events(*entries["on"], converter), model.On)
        if "env" in entries and (env := convert_env(entries["env"].value, "env", converter)) is not None:
            converted_node_and_type_by_key["env"] = (env, model.Env)
        if "concurrency" in entries:
            concurrency = convert_concurrency(entries["concurrency"].value, "concurrency", converter)
            if concurrency is not None:
                converted_node_and_type_by_key["concurrency"] = (concurrency, model.Concurrency)
        if (
            "name" in entries
            and (name_node := converter.convert_line(entries["name"].value, "run-name", "name")) is not None
        ):
            converted_node_and_type_by_key["name"] = (text_node(name_node.position, name_node.value), model.Line)
        field_values: dict[str, Any] = {}
        for key, (converted_node, model_type) in converted_node_and_type_by_key.items():
            field_values[key] = self._read_node(converted_node, model_type, (key,), converter.problems)
        if converter.problems.has_errors:
            return None
        placeholder_jobs = {"job": model.Job()}
        return model.Pipeline(**field_values, jobs=placeholder_jobs, timeout_minutes=RUN_TIMEOUT_MINUTES)

    def _read_node(self, converted_node: Node, model_type: Any, path: Path, problems: ProblemList) -> Any:
        """Read a node that has the form of a pipeline file as a value of a model type.

        Add its positions and expressions to those of the workflow.
        """
        parsed: ParsedNode = parse_node(converted_node, model_type, path, problems)
        self.positions.update(parsed.positions)
        self.source_expressions += parsed.expressions
        return parsed.value

    def _read_job_entries(self) -> list[tuple[Node, Node]]:
        """Return ids and nodes of the jobs. Report invalid ids, and too many jobs."""
        if "jobs" not in self.entries:
            return []
        key_node, jobs_node = self.entries["jobs"]
        self.positions["jobs",] = jobs_node.position
        if jobs_node.kind != OBJECT or not jobs_node.value:
            self.converter.report_unsupported(
                key_node.position, f"{jobs_node.describe()} as 'jobs'", "expected at least one job"
            )
            return []
        if len(jobs_node.value) > model.MAX_JOBS:
            self.converter.report_unsupported(
                key_node.position, f"{len(jobs_node.value):,} jobs", f"expected at most {model.MAX_JOBS:,}"
            )
        job_entries = list(jobs_node.value)[: model.MAX_JOBS]
        for id_node, _ in job_entries:
            if not _JOB_ID.fullmatch(id_node.raw):
                expected = "expected letters, digits, '_' and '-', beginning with a letter or '_'"
                self.converter.report_unsupported(id_node.position, f"the job {quote(id_node.raw)}", expected)
        return job_entries

    def _read_job(self, key_node: Node, job_node: Node) -> None:
        """Convert a job and add it to `jobs`, or its problems to `unsupported_jobs`."""
        converter = self.job_converters[key_node.raw] = Converter(self.file, self.text)
        converted_node = convert_job(key_node, job_node, self.defaults, converter, self.actions)
        secrets = [*dict.fromkeys([*self.converter.secrets, *converter.secrets])]
        if secrets:
            secret_list = list_node(
                key_node.position, [text_node(key_node.position, secret_name) for secret_name in secrets]
            )
            converted_node.value.append((text_node(key_node.position, "secrets"), secret_list))
        job = None
        if not converter.problems.has_errors:
            job = self._read_node(converted_node, model.Job, ("jobs", key_node.raw), converter.problems)
        if isinstance(job, model.Job):
            self.jobs[key_node.raw] = job
        else:
            self.unsupported_jobs[key_node.raw] = _collect_errors(converter)

    # -- needs of jobs

    def _build_needs_graph(self, job_entries: list[tuple[Node, Node]]) -> dict[str, dict[str, Node]]:
        """Return the needs of each job with their nodes, by job id. Report unknown needs and cycles."""
        job_ids = [key_node.raw for key_node, _ in job_entries]
        needs_graph: dict[str, dict[str, Node]] = {id: {} for id in job_ids}
        for key_node, job_node in job_entries:
            needs_node = child(job_node, "needs")
            for need_node in (
                convert_needs(needs_node, Converter(self.file, self.text)).value if needs_node is not None else ()
            ):
                job_id = {id.lower(): id for id in job_ids}.get(need_node.value.lower())
                if job_id is None or job_id == key_node.raw:
                    nearest_word = nearest(need_node.value, job_ids) if job_id is None else ""
                    self.converter.report_unsupported(
                        need_node.position, f"there is no other job {quote(need_node.value)}", "", nearest_word
                    )
                elif need_node.kind == TEXT:
                    needs_graph[key_node.raw][job_id] = need_node
        if cycle := find_cycle({id: list(job_needs) for id, job_needs in needs_graph.items()}):
            position = needs_graph[cycle[-2]][cycle[-1]].position
            self.converter.report_unsupported(
                position, f"jobs that wait for each other: {' → '.join(cycle[:12])}", "remove one of these needs"
            )
        return needs_graph

    def _mark_dependents_unsupported(self, needs_graph: dict[str, dict[str, Node]]) -> None:
        """Move each job that needs an unsupported job, directly or indirectly, to the unsupported jobs."""
        has_changed = True
        while has_changed:
            has_changed = False
            for job_id in [*self.jobs]:
                for needed_id, need_node in needs_graph[job_id].items():
                    if needed_id in self.unsupported_jobs:
                        converter = self.job_converters[job_id]
                        converter.report_unsupported(
                            need_node.position,
                            f"it needs {quote(needed_id)}, which is unsupported",
                            "see the problems of that job",
                        )
                        self.unsupported_jobs[job_id] = _collect_errors(converter)
                        self.jobs.pop(job_id, None)
                        has_changed = True


def _collect_errors(converter: Converter) -> tuple[Problem, ...]:
    return tuple(problem for problem in converter.problems.in_order() if not problem.is_warning)
