"""Writes the tables of docs/github-workflows.md, from what the code takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from deltaci.pipeline.github.builtin_actions import ACTIONS, DROPPED, HARMLESS
from deltaci.pipeline.github.converter import OF_GITHUB
from deltaci.pipeline.github.events import INSIDE, NEVER, UNSAFE, UNSAFE_WHY
from deltaci.pipeline.github.keys import KEYS, Rule
from deltaci.pipeline.github.rust_toolchain import TOOLCHAIN, TOOLCHAIN_INPUTS
from scripts.docgen.pages import replace_below_mark

WORDS: Final = {"inside": "yes", "note": "no effect", "outside": "**outside**"}


def page(text: str) -> str:
    """The page with its tables as they should be; what stands before the mark is written by hand."""
    return replace_below_mark(text, _lines())


def _lines() -> Iterator[str]:
    yield "## Events\n"
    yield "| event |  |\n|---|---|"
    for event in INSIDE:
        yield f"| `{event}` | yes{', as a start by hand' if event == 'workflow_dispatch' else ''} |"
    yield f"| `{UNSAFE}` | starts nothing: {UNSAFE_WHY} |"
    yield f"| {', '.join(f'`{event}`' for event in NEVER)} | never happen here; they start nothing |"
    yield "\n## Keys"
    for part, rules in KEYS.items():
        yield f"\n### {part[0].upper()}{part[1:]}\n".replace("'", "`")
        yield from _table("key", rules)
    yield "\n## The context `github`\n"
    yield f"It has {_listed(OF_GITHUB)}. Anything else in it is empty, which is told."
    yield "The variables that say the same, such as `GITHUB_SHA`, are there as well; those of the run, such as"
    yield "`GITHUB_RUN_ID`, if a command in the file names them."
    yield "\n## Actions\n"
    yield "At any version or commit. Any other action of GitHub or of anybody else is outside, but for two kinds:\n"
    yield f"- `{TOOLCHAIN}` becomes the commands that it is made of, with {_listed(TOOLCHAIN_INPUTS)};"
    yield "  `rustup` must be installed where the job runs."
    for name, why in DROPPED.items():
        yield f"- `{name}` has no effect: {why}."
    for name, action in ACTIONS.items():
        yield f"\n### {name}\n"
        yield from _table("input", action.inputs)
    yield "\nWithout a word, because they ask for what happens anyway: "
    yield ", ".join(f"`{name}: {value}`" for name, value in sorted(HARMLESS)) + "."


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(what: str, rules: dict[str, Rule]) -> Iterator[str]:
    yield f"| {what} |  |  |\n|---|---|---|"
    for name, rule in rules.items():
        yield f"| `{name}` | {WORDS[rule.kind]} | {rule.why} |"
