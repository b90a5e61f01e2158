"""Write `docs/machines.md`: the machines, the cascade and the views, from the tables that the program executes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from deltaci.audit.projections import VIEWS
from deltaci.core import attempt, job, lease, resource, run, worker
from deltaci.core.cascade import CASCADE
from deltaci.core.machine import Machine, Rule, Target
from deltaci.core.status.view import LEFT_OUT, SAME, View
from scripts.docgen.pages import table

MACHINES: Final[tuple[Machine[Any], ...]] = (
    *(run.MACHINE, job.MACHINE, attempt.MACHINE, lease.MACHINE, worker.MACHINE),
    resource.MACHINE,
)

_HEAD: Final = """# The machines

Generated from the tables that run by `make fix`; do not edit.
The rules named in the last column are on the pages of [`docs/spec/`](spec/model.md).
"""
_VIEWS_HEAD: Final = """# The views

What each document of the specification sees of the machines above. A step that a document does not know is
legal only as one of the extensions listed with its view.
"""
_CASCADE_HEAD: Final = """# Cascade

The commands that follow from a transition are applied in the same decision: a reader sees all changes or none.
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD, *(_machine(machine) for machine in MACHINES), _CASCADE_HEAD, _cascade()]
    parts += [_VIEWS_HEAD, *(_view(view) for view in VIEWS)]
    return "\n".join(parts)


def _machine(machine: Machine[Any]) -> str:
    lines = [f"## {machine.name.capitalize()}", ""]
    lines += _diagram((rule.source, to.state, to.trigger) for rule, to in machine.edges())
    lines += table(
        ("from", "command", "to", "event", "severity", "owner", "asked by", "why", "rules"),
        (
            (*_step(rule, to), rule.owner, ", ".join(sorted(rule.command.by)), rule.why, ", ".join(rule.cites))
            for rule in machine.rules
            for to in rule.targets or (None,)
        ),
    )
    if machine.implied_steps:
        lines += ["Steps that a command implies, recorded before its own:", ""]
        lines += table(
            ("in", "command", "first does", "why"),
            (
                (row.source, f"`{row.command.__name__}`", f"`{row.first.__name__}`", row.why + _when(row.when))
                for row in machine.implied_steps
            ),
        )
    return "\n".join(lines)


def _step(rule: Rule, to: Target | None) -> tuple[str, ...]:
    command = f"`{rule.command.__name__}`"
    if to is None:
        return rule.source, command, rule.source, "none: a repeat", ""
    return rule.source or "(birth)", command, to.state, f"`{to.trigger}`", to.severity


def _when(when: object) -> str:
    return " (only while its lease is not acknowledged)" if when else ""


def _diagram(edges: Iterable[tuple[str | None, str, str]]) -> list[str]:
    known = list(edges)
    words: dict[tuple[str, str], list[str]] = {}
    for source, target, word in known:
        words.setdefault((source or "[*]", target), []).append(word)
    lines = ["```mermaid", "stateDiagram-v2"]
    for (source, target), labels in words.items():
        text = " / ".join(dict.fromkeys(label for label in labels if label))
        lines.append(f"    {source} --> {target}" + (f": {text}" if text else ""))
    leaving = {source for source, target, _ in known if source != target}
    ends = dict.fromkeys(target for _, target, _ in known if target not in leaving)
    return [*lines, *(f"    {end} --> [*]" for end in ends), "```", ""]


def _cascade() -> str:
    rows = ((row.entity, " or ".join((*row.states, *row.triggers)), row.why) for row in CASCADE)
    return "\n".join(table(("when a", "becomes, or records", "then"), rows))


def _view(view: View) -> str:
    shown = {LEFT_OUT: "left out", SAME: "as before"}
    lines = [f"## {view.name}: document {view.document} on a {view.entity}", ""]
    lines += _diagram((edge.source, edge.target, " or ".join(edge.triggers)) for edge in view.edges)
    lines += table(
        ("our state", "is shown as"), ((ours, shown.get(word, word)) for ours, word in view.state_map.items())
    )
    edges = ((edge.source or "(birth)", edge.target, edge.cite) for edge in view.edges)
    lines += table(("from", "to", "rule"), edges)
    if view.extensions:
        lines += ["Extensions:", ""]
        rows = ((e.source, e.target, e.demanded_by, e.why) for e in view.extensions)
        lines += table(("from", "to", "demanded by", "why"), rows)
    return "\n".join(lines)
