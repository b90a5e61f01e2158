"""Detect targets with the usual names in the files of make, just and task.

A target is used only for tasks that no detected ecosystem provides.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from deltaci.pipeline.detect.proposals import LIKELY, UNSURE, JobDraft, Project
from deltaci.pipeline.detect.tree import Folder

ECOSYSTEM: Final = "tasks"
MAKEFILES: Final = ("GNUmakefile", "Makefile", "makefile")
JUSTFILES: Final = ("justfile", "Justfile", ".justfile")
TASKFILES: Final = ("Taskfile.yml", "Taskfile.yaml", "taskfile.yml", "taskfile.yaml")
TARGET_NAMES: Final = {
    "build": ("build", "all", "compile"),
    "test": ("test", "check", "tests", "unit", "unittest", "test-unit", "unit-test"),
    "lint": ("lint", "linters", "format-check", "fmt-check", "checkstyle"),
}
MAX_PREREQUISITES: Final = 30
MAX_LINE_CHARS: Final = 2000
_MAKE_TARGET: Final = re.compile(r"^([A-Za-z0-9_.][\w. -]*?)\s*::?(?!=)(.*)$")
_JUST_RECIPE: Final = re.compile(r"^@?([A-Za-z_][\w-]*)(?:\s+[^:=]*)?:(?!=)")
# Marks a file that another tool generated: its targets are not those of the project.
_GENERATED: Final = re.compile(r"(?i)generated (?:automatically )?(?:by|from)\b")


class TaskFile(Struct, frozen=True, kw_only=True):
    """The targets of a Makefile, justfile or Taskfile."""

    tool: str
    file: str
    targets: tuple[str, ...]
    default_target: str = ""  # The default target.


def reads_file(file_name: str, folder: str) -> bool:
    """Return whether the detection of targets reads this file."""
    return file_name in (*MAKEFILES, *JUSTFILES, *TASKFILES)


def read_task_file(folder: Folder) -> TaskFile | None:
    """Return the first Makefile, justfile or Taskfile that is not generated, or None."""
    for tool, file_names in (("make", MAKEFILES), ("just", JUSTFILES), ("task", TASKFILES)):
        file_name = folder.find_file(*file_names)
        text = folder.text(file_name) if file_name else ""
        if file_name and text and not _GENERATED.search(text[:300]):
            targets = {"make": _make_targets, "just": _just_recipes, "task": _taskfile_tasks}[tool](text)
            if tool == "make" and ".DEFAULT" in targets and folder.find_file("src/Makefile"):
                targets += [target for target in _make_targets(folder.text("src/Makefile")) if target not in targets]
            default_target = next((target for target in targets if not target.startswith(".")), "")
            return TaskFile(tool=tool, file=file_name, targets=tuple(targets), default_target=default_target)
    return None


def _make_targets(makefile_text: str) -> list[str]:
    makefile_lines = makefile_text.replace("\\\n", " ").splitlines()
    rule_targets = [
        target_match[1].split()
        for line in makefile_lines
        if (target_match := _MAKE_TARGET.match(line[:MAX_LINE_CHARS])) and "=" not in target_match[1]
    ]
    phony = [line.partition(":")[2].split() for line in makefile_lines if line.startswith(".PHONY")]
    return list(dict.fromkeys(target for targets in (*rule_targets, *phony) for target in targets if "$" not in target))


def _just_recipes(justfile_text: str) -> list[str]:
    return [recipe_match[1] for line in justfile_text.splitlines() if (recipe_match := _JUST_RECIPE.match(line))]


def _taskfile_tasks(taskfile_text: str) -> list[str]:
    _, _, tasks_text = taskfile_text.partition("\ntasks:")
    return re.findall(r"""(?m)^  ["']?([A-Za-z_][\w-]*)["']?:\s*(?:$|[\[{#&'"a-z])""", tasks_text)


def test_recipe(folder: Folder) -> str:
    """Return the prerequisites and recipes of the make target `test` and of its prerequisites, or an empty string."""
    file_name = folder.find_file(*MAKEFILES)
    makefile_text = folder.text(file_name) if file_name else ""
    unvisited_targets, visited, recipe = ["test"], set[str](), ""
    while unvisited_targets and len(visited) < MAX_PREREQUISITES:
        target = unvisited_targets.pop(0)
        visited.add(target)
        rule_start = rf"(?m)^(?:[\w.-]+ ){{0,20}}{re.escape(target)}(?: [\w.-]+){{0,20}}[ \t]*::?(?!=)"
        if rule := re.search(rf"{rule_start}(.*)\n((?:\t.*\n?|[ \t]*\n)*)", makefile_text):
            prerequisites = rule[1].partition("#")[0].split()
            recipe += f"{' '.join(prerequisites)}\n{rule[2]}"
            unvisited_targets += [
                target for target in prerequisites if re.fullmatch(r"[\w./-]+", target) and target not in visited
            ]
    return recipe.strip()


def find(folder: Folder, provided_purposes: frozenset[str], is_alone: bool) -> Project | None:
    """Return a project with jobs for purposes that have a target and are not in `provided_purposes`.

    `provided_purposes` are those of the jobs that ecosystems propose. `is_alone` states that no ecosystem builds or
    tests the folder. Return None if there is no file with targets.
    """
    task_file = read_task_file(folder)
    if task_file is None:
        return None
    chosen_targets = {
        purpose: next((name for name in target_names if name in task_file.targets), None)
        for purpose, target_names in TARGET_NAMES.items()
        if purpose not in provided_purposes
    }
    drafts = []
    if chosen_targets.get("test"):
        # The test target may depend on a build that it does not declare, so the default target runs first.
        builds_first = (
            is_alone
            and task_file.tool == "make"
            and task_file.default_target not in ("help", "test", "check", "usage", "")
        )
        configure_steps = ("sh ./configure",) if builds_first and folder.find_file("configure") else ()
        drafts.append(
            _draft(task_file, "test", chosen_targets["test"] or "", (*configure_steps, "make") if builds_first else ())
        )
    if chosen_targets.get("lint"):
        drafts.append(_draft(task_file, "lint", chosen_targets["lint"] or "", (), is_guess=not is_alone))
    if not drafts and is_alone and (chosen_targets.get("build") or task_file.tool == "make"):
        # A project with a Kconfig file needs a configuration before it can be built.
        drafts.append(
            _draft(
                task_file, "build", chosen_targets.get("build") or "", (), is_guess=bool(folder.find_file("Kconfig"))
            )
        )
    unclear: tuple[str, ...] = ()
    if "test" in provided_purposes and "test" in task_file.targets:
        unclear = (
            f"{task_file.file} has a target 'test' too; it is not used, as the ecosystem has a standard test command",
        )
    return Project(ecosystem=task_file.tool, folder=folder.path, drafts=tuple(drafts), unclear=unclear)


def _draft(
    task_file: TaskFile, purpose: str, target: str, steps_before: tuple[str, ...], *, is_guess: bool = False
) -> JobDraft:
    is_guess = is_guess or (purpose == "build" and not target)
    evidence = f"{task_file.file} has the target {target!r}" if target else f"there is {task_file.file}"
    return JobDraft(
        purpose=purpose,
        title=f"{task_file.tool} {target}".strip(),
        confidence=UNSURE if is_guess else LIKELY,
        evidence=(evidence,),
        uncertainty="the effect of the default target is unknown"
        if not target
        else "the requirements of the target are not declared",
        steps=(*steps_before, f"{task_file.tool} {target}".strip()),
    )
