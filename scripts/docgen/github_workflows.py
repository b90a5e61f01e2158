"""Generates the tables of docs/github-workflows.md."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from deltaci.pipeline.github.builtin_actions import ACTIONS, DEFAULT_INPUTS, IGNORED_ACTIONS
from deltaci.pipeline.github.converter import GITHUB_CONTEXT_KEYS
from deltaci.pipeline.github.events import IGNORED_EVENTS, SUPPORTED_EVENTS, UNSAFE_EVENT, UNSAFE_EVENT_REASON
from deltaci.pipeline.github.keys import KEY_RULES, KeyRule
from deltaci.pipeline.github.rust_toolchain import TOOLCHAIN, TOOLCHAIN_INPUTS
from scripts.docgen.pages import replace_below_mark

KIND_LABELS: Final = {"supported": "yes", "ignored": "no effect", "unsupported": "**unsupported**"}


def page(text: str) -> str:
    """Return the page with current tables. Text before the mark is written by hand."""
    return replace_below_mark(text, _lines())


def _lines() -> Iterator[str]:
    yield "## Events\n"
    yield "| event |  |\n|---|---|"
    for event in SUPPORTED_EVENTS:
        yield f"| `{event}` | yes{', as a manual start' if event == 'workflow_dispatch' else ''} |"
    yield f"| `{UNSAFE_EVENT}` | starts nothing: {UNSAFE_EVENT_REASON} |"
    yield f"| {', '.join(f'`{event}`' for event in IGNORED_EVENTS)} | never happen here; they start nothing |"
    yield "\n## Keys"
    for part, rules in KEY_RULES.items():
        yield f"\n### {part[0].upper()}{part[1:]}\n".replace("'", "`")
        yield from _table("key", rules)
    yield "\n## The context `github`\n"
    yield f"It has {_listed(GITHUB_CONTEXT_KEYS)}. Any other key is empty, with a warning."
    yield "The corresponding variables, such as `GITHUB_SHA`, are set as well; those of the run, such as"
    yield "`GITHUB_RUN_ID`, if a command in the file names them."
    yield "\n## Actions\n"
    yield "At any version or commit. All other actions are unsupported, except:\n"
    yield f"- `{TOOLCHAIN}` becomes the commands that it consists of, with the inputs {_listed(TOOLCHAIN_INPUTS)};"
    yield "  `rustup` must be installed where the job runs."
    for name, reason in IGNORED_ACTIONS.items():
        yield f"- `{name}` has no effect: {reason}."
    for name, action in ACTIONS.items():
        yield f"\n### {name}\n"
        yield from _table("input", action.inputs)
    yield "\nAccepted silently, because they are the default: "
    yield ", ".join(f"`{name}: {value}`" for name, value in sorted(DEFAULT_INPUTS)) + "."


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(title: str, rules: dict[str, KeyRule]) -> Iterator[str]:
    yield f"| {title} |  |  |\n|---|---|---|"
    for name, rule in rules.items():
        yield f"| `{name}` | {KIND_LABELS[rule.kind]} | {rule.reason} |"
