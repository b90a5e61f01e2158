"""`deltaci import`: convert GitHub workflows to pipeline files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from deltaci.cli.workflows import read_workflow, workflows_in
from deltaci.pipeline import model
from deltaci.pipeline.github import WORKFLOW_FOLDER, ParsedWorkflow
from deltaci.pipeline.parse import reader
from deltaci.pipeline.parse.printer import format_pipeline
from deltaci.pipeline.parse.problems import Problem, format_with_source
from deltaci.pipeline.parse.yaml import MAX_BYTES

MAX_FILES: Final = 1000
OURS: Final = ".deltaci"
GOOD, OUTSIDE, USAGE = 0, 1, 2

app = typer.Typer(add_completion=False)


class ConvertedWorkflow(msgspec.Struct, kw_only=True):
    """A GitHub workflow and the pipeline file into which it was converted."""

    source: str
    content: str
    workflow: ParsedWorkflow
    pipeline: model.Pipeline | None
    target: str = ""
    text: str = ""
    refused: list[str] = []  # what the linter would say of the file


@app.command("import")
def import_command(
    path: Annotated[
        str,
        typer.Argument(
            metavar="[FILE|FOLDER]", help=f"A workflow file or a folder of them. Default: {WORKFLOW_FOLDER}."
        ),
    ] = WORKFLOW_FOLDER,
    out: Annotated[
        str,
        typer.Option(
            "--out",
            "-o",
            metavar="PATH",
            help=f"The output: a file for one workflow (- is standard output), a folder for several. "
            f"None: {reader.DEFAULT_FILE} for one, {OURS}/NAME.yml for several.",
        ),
    ] = "",
    partial: Annotated[
        bool,
        typer.Option("--partial", help="Write the supported jobs even if other jobs of the workflow are unsupported."),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> None:
    """Convert GitHub workflows to pipeline files and report which jobs are supported.

    A workflow with an unsupported job is not written, unless you pass --partial. Exits with 0 if all were written,
    1 if something is unsupported, and 2 if nothing was done.

    Examples:

      deltaci import

      deltaci import .github/workflows/test.yml -o .deltaci/test.yml
    """
    imports = [_import(source, partial) for source in _sources(path)]
    written = [each for each in imports if each.pipeline is not None]
    _name(imports, out)
    if out == "-" and json:
        _fail("the file and the report would both go to standard output; choose one of them")
    if not force:
        for each in written:
            if each.target != "-" and Path(each.target).exists():
                _fail(f"{each.target} already exists; nothing was written; use --force to overwrite it")
    for each in written:
        _write(each)
    told = sys.stderr if out == "-" else sys.stdout
    if json:
        print(_as_json(imports))
    else:
        for each in imports:
            print("\n".join(_told(each)), file=told)
    raise typer.Exit(GOOD if all(each.workflow.pipeline is not None for each in imports) else OUTSIDE)


def _sources(path: str) -> list[Path]:
    where = Path(path)
    if where.is_dir():
        found = workflows_in(where)
        if not found:
            _fail(f"there is no workflow in {path}; give the path of one")
        if len(found) > MAX_FILES:
            _fail(f"there are {len(found)} workflows in {path}, at most {MAX_FILES} at once; name one of them")
        return found
    return [where]


def _import(source: Path, partial: bool) -> ConvertedWorkflow:
    try:
        with source.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        _fail(f"{source} cannot be read: {error.strerror}; give the path of a workflow")
        raise AssertionError from error
    workflow = read_workflow(content, str(source))
    pipeline = workflow.supported_pipeline if partial else workflow.pipeline
    made = ConvertedWorkflow(
        source=str(source), content=content.decode("utf-8", "replace"), workflow=workflow, pipeline=pipeline
    )
    if pipeline is not None:
        made.text = _text(made, pipeline)
    return made


def _text(made: ConvertedWorkflow, pipeline: model.Pipeline) -> str:
    """The file. What nothing starts here can be started by hand, as a pipeline must say what starts it."""
    if pipeline.on == model.On():
        pipeline = msgspec.structs.replace(pipeline, on=model.On(manual=model.Manual()))
    head = [f"# From {Path(made.source).name}, by 'deltaci import'."]
    head += [f"# Left out, as it cannot run here: {job}" for job in made.workflow.unsupported_jobs]
    text = "\n".join(head) + "\n" + format_pipeline(pipeline)
    problems = [problem for problem in reader.parse_pipeline(text).problems if not problem.is_warning]
    if problems:  # What the linter would refuse, such as an axis that no matrix has, must not be written.
        made.pipeline, made.workflow = None, msgspec.structs.replace(made.workflow, pipeline=None)
        made.refused = [format_with_source(problem, text) for problem in problems]
    return text


def _name(imports: list[ConvertedWorkflow], out: str) -> None:
    is_folder = len(imports) > 1 or out.endswith("/") or (bool(out) and Path(out).is_dir())
    if len(imports) > 1 and (out == "-" or Path(out).is_file()):
        _fail(f"there are {len(imports)} workflows; give a folder with -o, or name one workflow")
    for each in imports:
        if is_folder:
            each.target = str(Path(out or OURS) / f"{Path(each.source).stem}.yml")
        else:
            each.target = out or reader.DEFAULT_FILE
    targets = [each.target for each in imports]
    if len(set(targets)) < len(targets):
        _fail("two workflows have names that differ only after the dot; import them one by one")


def _write(made: ConvertedWorkflow) -> None:
    if made.target == "-":
        print(made.text, end="")
        return
    try:
        Path(made.target).parent.mkdir(parents=True, exist_ok=True)
        Path(made.target).write_text(made.text, "utf-8")
    except OSError as error:
        _fail(f"{made.target} cannot be written: {error.strerror}; choose another path with -o")


def _told(made: ConvertedWorkflow) -> list[str]:
    """The report of one workflow: what became of it, then job by job."""
    workflow = made.workflow
    supported = len(workflow.job_ids) - len(workflow.unsupported_jobs)
    if made.pipeline is not None and made.target != "-":
        head = f"{made.source}: written to {made.target}, {supported} of {len(workflow.job_ids)} jobs"
    else:
        head = f"{made.source}: {'written' if made.pipeline is not None else 'not written'}, "
        runnable = supported if workflow.supported_pipeline is not None else 0
        head += f"{runnable} of {len(workflow.job_ids)} jobs can run here"
    lines = [head]
    for job in workflow.job_ids:
        is_unsupported = job in workflow.unsupported_jobs or workflow.supported_pipeline is None
        lines.append(f"  {job}: {'unsupported' if is_unsupported else 'supported'}")
    lines += [format_with_source(problem, made.content) for problem in workflow.problems]
    if made.refused:
        lines.append("  it can run unconverted, but 'deltaci lint' would reject the converted file:")
    return lines + made.refused


def _as_json(imports: list[ConvertedWorkflow]) -> str:
    told = {
        "good": all(each.workflow.pipeline is not None for each in imports),
        "files": [
            {
                "file": each.source,
                "written": each.target if each.pipeline is not None else None,
                "jobs": [_job(job, each.workflow) for job in each.workflow.job_ids],
                "problems": each.workflow.problems,
                "refused": each.refused,
            }
            for each in imports
        ],
    }
    return msgspec.json.encode(told).decode()


def _job(job: str, workflow: ParsedWorkflow) -> dict[str, object]:
    reasons: tuple[Problem, ...] = workflow.unsupported_jobs.get(job, ())
    return {
        "job": job,
        "inside": job not in workflow.unsupported_jobs and workflow.supported_pipeline is not None,
        "reasons": reasons,
    }


def _fail(message: str) -> None:
    print(f"deltaci import: {message}", file=sys.stderr)
    raise typer.Exit(USAGE)
