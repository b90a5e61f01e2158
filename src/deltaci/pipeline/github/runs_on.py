"""`runs-on`: GitHub's names of machines become labels that runners have here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from deltaci.pipeline.expressions import ExpressionError, Resolved, Template, parse_template, reduce_template
from deltaci.pipeline.expressions.printer import format_expression
from deltaci.pipeline.expressions.references import ANY_KEY, context_references
from deltaci.pipeline.expressions.templates import CLOSE, OPEN
from deltaci.pipeline.expressions.tree import Literal
from deltaci.pipeline.expressions.values import Value
from deltaci.pipeline.github.converter import Desk, items, listed, made
from deltaci.pipeline.github.keys import keys
from deltaci.pipeline.parse.problems import shown
from deltaci.pipeline.parse.yaml import OBJECT, Node

SYSTEMS: Final = {"ubuntu-": "linux", "macos-": "macos", "windows-": "windows"}
PLAIN: Final = {"linux": "linux", "macos": "macos", "windows": "windows", "x64": "x64", "arm64": "arm64"}
ARM, ARM_LABEL = "-arm", "arm64"
DROPPED: Final = "self-hosted"
WAITS: Final = "it waits for a runner that has it"

Values = Sequence[Mapping[str, Value]]


class Machines:
    """Where a job runs: its labels, and whether its commands are for Windows."""

    def __init__(self) -> None:
        self.labels: list[Node] = []
        self.is_windows = False
        self.windows_if = ""  # an expression that tells, if only some jobs of the matrix are

    def add(self, node: Node) -> None:
        """One more label, once."""
        if all(each.value != node.value for each in self.labels):
            self.labels.append(node)


def machines(node: Node, combinations: Values | None, unknown: frozenset[str], desk: Desk) -> Machines:
    """The labels that `runs-on` stands for; `combinations` are those of the matrix, but for axes that are unknown."""
    found = Machines()
    wanted = node
    if node.kind == OBJECT:
        labels = keys(node, "'runs-on'", desk).get("labels")
        wanted = labels[1] if labels else listed(node.at, [])
    for each in items(wanted):
        text = desk.text(each, "jobs.runs-on", "runs-on")
        if text is None:
            continue
        if OPEN in text.value:
            _worked_out(text, combinations, unknown, found, desk)
        elif text.value.strip():
            for label in _labels(text.value.strip()):
                found.add(made(text.at, label))
            _told(text, text.value.strip(), found, desk)
    return found


def as_list(at: Node, found: Machines) -> Node | None:
    """The labels as a list; none, if any runner will do."""
    return listed(at.at, found.labels) if found.labels else None


def _labels(word: str) -> list[str]:
    lowered = word.lower()
    if lowered == DROPPED:
        return []
    for start, label in SYSTEMS.items():
        if lowered.startswith(start):
            return [label, ARM_LABEL] if lowered.endswith(ARM) else [label]
    return [PLAIN.get(lowered, word)]


def _told(at: Node, word: str, found: Machines, desk: Desk) -> None:
    lowered = word.lower()
    if lowered.startswith("windows"):
        found.is_windows = True
        desk.note(at.at, "a job for Windows", "it waits for a runner with the label 'windows'")
    elif not lowered.startswith(tuple(SYSTEMS)) and lowered not in PLAIN and lowered != DROPPED:
        desk.note(at.at, f"{shown(word)}, a label that is not one of GitHub's", WAITS)


def _worked_out(node: Node, combinations: Values | None, unknown: frozenset[str], found: Machines, desk: Desk) -> None:
    """An expression: it stays one, and says what GitHub's names stand for."""
    try:
        template = parse_template(node.value)
    except ExpressionError:
        return  # It was said.
    values = _values(template, combinations, unknown)
    if values is not None and any(not isinstance(value, str) for value in values):
        bad = "labels that are no texts, or a list of them that is worked out"
        desk.outside(node.at, bad, "expected one label: write a list of labels, each of which may be an expression")
        return
    words = None if values is None else [str(value) for value in values]
    if words is not None and len(labels := {tuple(_labels(word)) for word in words}) == 1:
        for label in labels.pop():
            found.add(made(node.at, label))
        _told(node, words[0], found, desk)
        return
    if words is None:
        told = "labels that are worked out when a run is planned"
        desk.note(node.at, told, "one name of GitHub's is understood then; a list of them is taken as it is")
    inner = as_expression(template)
    seen = [start for start in SYSTEMS if words is None or any(word.lower().startswith(start) for word in words)]
    rest = words is None or any(not word.lower().startswith(tuple(SYSTEMS)) for word in words)
    choices = [f"startsWith({inner}, '{start}') && '{SYSTEMS[start]}'" for start in seen]
    last = inner if rest else f"'{SYSTEMS[seen[-1]]}'"
    whole = " || ".join([*(choices if rest else choices[:-1]), last])
    found.add(made(node.at, f"{OPEN} {whole} {CLOSE}"))
    if words is None or any(word.lower().endswith(ARM) for word in words):
        found.add(made(node.at, f"{OPEN} endsWith({inner}, '{ARM}') && '{ARM_LABEL}' || {whole} {CLOSE}"))
    if words is None or any(word.lower().startswith("windows") for word in words):
        found.windows_if = f"startsWith({inner}, 'windows')"
    for word in dict.fromkeys(words or ()):
        if word.lower().startswith("windows") or not word.lower().startswith(tuple(SYSTEMS)):
            desk.note(node.at, f"the label {shown(_labels(word)[0] if _labels(word) else word)}", WAITS)


def _values(template: Template, combinations: Values | None, unknown: frozenset[str]) -> list[Value] | None:
    """What it is for every job of the matrix; None if that is not known yet."""
    found: list[Value] = []
    for mention in (each for expression in template.expressions for each in context_references(expression)):
        if mention.context == "matrix" and unknown and (mention.keys or (ANY_KEY,))[0] in {*unknown, ANY_KEY}:
            return None
    for values in combinations if combinations is not None else ():
        try:
            reduced = reduce_template(template, {"matrix": dict(values)})
        except ExpressionError:
            return None
        if not isinstance(reduced, Resolved):
            return None
        found.append(reduced.value)
    return found or None


def worked_out(node: Node) -> str:
    """A text that is one expression, to be part of another: it may turn out to be empty. Of any other text nothing."""
    try:
        template = parse_template(node.value)
    except ExpressionError:
        return ""
    return as_expression(template) if template.single_expression is not None else ""


def as_expression(template: Template) -> str:
    """A text with expressions in it as one expression."""
    if template.single_expression is not None:
        written = format_expression(template.single_expression)
        return written if written.replace(".", "").replace("-", "").replace("_", "").isalnum() else f"({written})"
    pattern = "".join(
        part.replace("{", "{{").replace("}", "}}") if isinstance(part, str) else f"{{{number}}}"
        for part, number in zip(template.parts, _numbers(template), strict=True)
    )
    arguments = [format_expression(part) for part in template.expressions]
    return f"format({', '.join([format_expression(Literal(pattern)), *arguments])})"


def _numbers(template: Template) -> list[int]:
    """For every part, how many expressions stand before it."""
    return [sum(not isinstance(each, str) for each in template.parts[:place]) for place in range(len(template.parts))]
