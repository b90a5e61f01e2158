"""Make, just and task: targets with the usual names. They are taken where no ecosystem says how the tests are run."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

from deltaci.pipeline.detect.findings import LIKELY, UNSURE, Draft, Project
from deltaci.pipeline.detect.tree import Place

ECOSYSTEM: Final = "tasks"
MAKE: Final = ("GNUmakefile", "Makefile", "makefile")
JUST: Final = ("justfile", "Justfile", ".justfile")
TASK: Final = ("Taskfile.yml", "Taskfile.yaml", "taskfile.yml", "taskfile.yaml")
NAMES: Final = {
    "build": ("build", "all", "compile"),
    "test": ("test", "check", "tests", "unit", "unittest", "test-unit", "unit-test"),
    "lint": ("lint", "linters", "format-check", "fmt-check", "checkstyle"),
}
MAX_PREREQUISITES: Final = 30
MAX_LINE: Final = 2000
_TARGET: Final = re.compile(r"^([A-Za-z0-9_.][\w. -]*?)\s*::?(?!=)(.*)$")
_RECIPE: Final = re.compile(r"^@?([A-Za-z_][\w-]*)(?:\s+[^:=]*)?:(?!=)")
# What other tools write: its text says nothing about the project.
_MADE: Final = re.compile(r"(?i)generated (?:automatically )?(?:by|from)\b")


class Tasks(Struct, frozen=True, kw_only=True):
    """The targets of a file, and the tool that it is for."""

    tool: str
    file: str
    targets: tuple[str, ...]
    first: str = ""  # what it does without being told what to do


def wants(name: str, folder: str) -> bool:
    """Whether a file has targets."""
    return name in (*MAKE, *JUST, *TASK)


def tasks_of(place: Place) -> Tasks | None:
    """The first such file that there is."""
    for tool, names in (("make", MAKE), ("just", JUST), ("task", TASK)):
        file = place.has(*names)
        text = place.text(file) if file else ""
        if file and text and not _MADE.search(text[:300]):
            found = {"make": _make, "just": _just, "task": _task}[tool](text)
            if tool == "make" and ".DEFAULT" in found and place.has("src/Makefile"):
                found += [name for name in _make(place.text("src/Makefile")) if name not in found]
            first = next((name for name in found if not name.startswith(".")), "")
            return Tasks(tool=tool, file=file, targets=tuple(found), first=first)
    return None


def _make(text: str) -> list[str]:
    lines = text.replace("\\\n", " ").splitlines()
    found = [match[1].split() for line in lines if (match := _TARGET.match(line[:MAX_LINE])) and "=" not in match[1]]
    phony = [line.partition(":")[2].split() for line in lines if line.startswith(".PHONY")]
    return list(dict.fromkeys(name for names in (*found, *phony) for name in names if "$" not in name))


def _just(text: str) -> list[str]:
    return [match[1] for line in text.splitlines() if (match := _RECIPE.match(line))]


def _task(text: str) -> list[str]:
    _, _, rest = text.partition("\ntasks:")
    return re.findall(r"""(?m)^  ["']?([A-Za-z_][\w-]*)["']?:\s*(?:$|[\[{#&'"a-z])""", rest)


def test_recipe(place: Place) -> str:
    """What `make test` and all that it needs do, as it is written; nothing, if there is no such target."""
    file = place.has(*MAKE)
    text = place.text(file) if file else ""
    waiting, seen, told = ["test"], set[str](), ""
    while waiting and len(seen) < MAX_PREREQUISITES:
        name = waiting.pop(0)
        seen.add(name)
        start = rf"(?m)^(?:[\w.-]+ ){{0,20}}{re.escape(name)}(?: [\w.-]+){{0,20}}[ \t]*::?(?!=)"
        if found := re.search(rf"{start}(.*)\n((?:\t.*\n?|[ \t]*\n)*)", text):
            needed = found[1].partition("#")[0].split()
            told += f"{' '.join(needed)}\n{found[2]}"
            waiting += [each for each in needed if re.fullmatch(r"[\w./-]+", each) and each not in seen]
    return told.strip()


def find(place: Place, known: frozenset[str], is_alone: bool) -> Project | None:
    """Targets for what nobody else proposes: `known` are the tasks that ecosystems have already."""
    tasks = tasks_of(place)
    if tasks is None:
        return None
    chosen = {
        job: next((name for name in names if name in tasks.targets), None)
        for job, names in NAMES.items()
        if job not in known
    }
    drafts = []
    if chosen.get("test"):
        # What the target needs to have been built, it builds itself, or it is built by the target without a name.
        builds = is_alone and tasks.tool == "make" and tasks.first not in ("help", "test", "check", "usage", "")
        configures = ("sh ./configure",) if builds and place.has("configure") else ()
        drafts.append(_draft(tasks, "test", chosen["test"] or "", (*configures, "make") if builds else ()))
    if chosen.get("lint"):
        drafts.append(_draft(tasks, "lint", chosen["lint"] or "", (), is_guess=not is_alone))
    if not drafts and is_alone and (chosen.get("build") or tasks.tool == "make"):
        # Where there is a Kconfig, somebody has to configure it first.
        drafts.append(_draft(tasks, "build", chosen.get("build") or "", (), is_guess=bool(place.has("Kconfig"))))
    unclear: tuple[str, ...] = ()
    if "test" in known and "test" in tasks.targets:
        unclear = (f"{tasks.file} has a target 'test' too; it is not used, as the ecosystem's own way is known",)
    return Project(ecosystem=tasks.tool, folder=place.folder, drafts=tuple(drafts), unclear=unclear)


def _draft(tasks: Tasks, job: str, target: str, before: tuple[str, ...], *, is_guess: bool = False) -> Draft:
    is_guess = is_guess or (job == "build" and not target)
    told = f"{tasks.file} has the target {target!r}" if target else f"there is {tasks.file}"
    return Draft(
        task=job,
        what=f"{tasks.tool} {target}".strip(),
        confidence=UNSURE if is_guess else LIKELY,
        evidence=(told,),
        reason="what it does without a target is not to be seen"
        if not target
        else "what the target needs is not declared",
        steps=(*before, f"{tasks.tool} {target}".strip()),
    )
