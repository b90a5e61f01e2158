"""Converts `runs-on`: GitHub's runner names become labels of our runners, e.g. `ubuntu-latest` becomes `linux`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from deltaci.pipeline.expressions import ExpressionError, Resolved, Template, parse_template, reduce_template
from deltaci.pipeline.expressions.printer import format_expression
from deltaci.pipeline.expressions.references import ANY_KEY, context_references
from deltaci.pipeline.expressions.templates import CLOSE, OPEN
from deltaci.pipeline.expressions.tree import Literal
from deltaci.pipeline.expressions.values import Value
from deltaci.pipeline.github.converter import Converter, list_node, text_node
from deltaci.pipeline.github.keys import read_entries
from deltaci.pipeline.parse.problems import quote
from deltaci.pipeline.parse.yaml import OBJECT, Node, items

SYSTEM_LABELS: Final = {"ubuntu-": "linux", "macos-": "macos", "windows-": "windows"}
KNOWN_LABELS: Final = {"linux": "linux", "macos": "macos", "windows": "windows", "x64": "x64", "arm64": "arm64"}
ARM_SUFFIX, ARM_LABEL = "-arm", "arm64"
ANY_RUNNER: Final = "self-hosted"
WAITS_FOR_LABEL: Final = "the job waits for a runner that has it"

Combinations = Sequence[Mapping[str, Value]]


class RunsOn:
    """The labels that a job's runner must have, and whether the job runs on Windows."""

    def __init__(self) -> None:
        self.labels: list[Node] = []
        self.is_windows = False
        self.windows_if = ""  # an expression for `is_windows`, if that is known only when a run is planned

    def add(self, node: Node) -> None:
        """Add a label, unless it has been added before."""
        if all(label_node.value != node.value for label_node in self.labels):
            self.labels.append(node)


def convert_runs_on(
    node: Node, combinations: Combinations | None, unknown_axes: frozenset[str], converter: Converter
) -> RunsOn:
    """Convert `runs-on`. `combinations` are the known matrix combinations; they have no values for `unknown_axes`."""
    runs_on = RunsOn()
    labels_node = node
    if node.kind == OBJECT:
        labels_entry = read_entries(node, "'runs-on'", converter).get("labels")
        labels_node = labels_entry.value if labels_entry else list_node(node.position, [])
    for label_node in items(labels_node):
        label_text = converter.convert_text(label_node, "jobs.runs-on", "runs-on")
        if label_text is None:
            continue
        if OPEN in label_text.value:
            _convert_expression(label_text, combinations, unknown_axes, runs_on, converter)
        elif label_text.value.strip():
            for label in _convert_runner_name(label_text.value.strip()):
                runs_on.add(text_node(label_text.position, label))
            _note_unusual_label(label_text, label_text.value.strip(), runs_on, converter)
    return runs_on


def label_list(node: Node, runs_on: RunsOn) -> Node | None:
    """Return a list node with the labels, or None if the job can run on any runner."""
    return list_node(node.position, runs_on.labels) if runs_on.labels else None


def _convert_runner_name(runner_name: str) -> list[str]:
    """Return the labels that stand for one of GitHub's runner names; any other name is a label itself."""
    lower_name = runner_name.lower()
    if lower_name == ANY_RUNNER:
        return []
    for system_prefix, label in SYSTEM_LABELS.items():
        if lower_name.startswith(system_prefix):
            return [label, ARM_LABEL] if lower_name.endswith(ARM_SUFFIX) else [label]
    return [KNOWN_LABELS.get(lower_name, runner_name)]


def _note_unusual_label(node: Node, runner_name: str, runs_on: RunsOn, converter: Converter) -> None:
    """Warn about a Windows runner (and set `is_windows`), and about a name that GitHub does not provide."""
    lower_name = runner_name.lower()
    if lower_name.startswith("windows"):
        runs_on.is_windows = True
        converter.warn(node.position, "a job for Windows", "the job waits for a runner with the label 'windows'")
    elif (
        not lower_name.startswith(tuple(SYSTEM_LABELS)) and lower_name not in KNOWN_LABELS and lower_name != ANY_RUNNER
    ):
        converter.warn(node.position, f"{quote(runner_name)}, a label that is not one of GitHub's", WAITS_FOR_LABEL)


def _convert_expression(
    node: Node, combinations: Combinations | None, unknown_axes: frozenset[str], runs_on: RunsOn, converter: Converter
) -> None:
    """Add the labels for a runner name that contains expressions.

    If all combinations give the same labels, add those. Otherwise add an expression that maps GitHub's runner names to
    labels when a run is planned.
    """
    try:
        template = parse_template(node.value)
    except ExpressionError:
        return  # Reported already.
    label_values = _evaluate_combinations(template, combinations, unknown_axes)
    if label_values is not None and any(not isinstance(value, str) for value in label_values):
        message = "labels that are not texts, or a computed list of labels"
        converter.report_unsupported(
            node.position, message, "expected one label: write a list of labels, each of which may be an expression"
        )
        return
    runner_names = None if label_values is None else [str(value) for value in label_values]
    if runner_names is not None and len(labels := {tuple(_convert_runner_name(name)) for name in runner_names}) == 1:
        for label in labels.pop():
            runs_on.add(text_node(node.position, label))
        _note_unusual_label(node, runner_names[0], runs_on, converter)
        return
    if runner_names is None:
        message = "labels that are computed when a run is planned"
        converter.warn(
            node.position, message, "a runner name of GitHub is converted then; a list of names is used as it is"
        )
    name_expression = as_expression(template)
    system_prefixes = [
        prefix
        for prefix in SYSTEM_LABELS
        if runner_names is None or any(name.lower().startswith(prefix) for name in runner_names)
    ]
    may_be_custom_label = runner_names is None or any(
        not name.lower().startswith(tuple(SYSTEM_LABELS)) for name in runner_names
    )
    mappings = [f"startsWith({name_expression}, '{prefix}') && '{SYSTEM_LABELS[prefix]}'" for prefix in system_prefixes]
    default = name_expression if may_be_custom_label else f"'{SYSTEM_LABELS[system_prefixes[-1]]}'"
    expression = " || ".join([*(mappings if may_be_custom_label else mappings[:-1]), default])
    runs_on.add(text_node(node.position, f"{OPEN} {expression} {CLOSE}"))
    if runner_names is None or any(name.lower().endswith(ARM_SUFFIX) for name in runner_names):
        runs_on.add(
            text_node(
                node.position,
                f"{OPEN} endsWith({name_expression}, '{ARM_SUFFIX}') && '{ARM_LABEL}' || {expression} {CLOSE}",
            )
        )
    if runner_names is None or any(name.lower().startswith("windows") for name in runner_names):
        runs_on.windows_if = f"startsWith({name_expression}, 'windows')"
    for name in dict.fromkeys(runner_names or ()):
        if name.lower().startswith("windows") or not name.lower().startswith(tuple(SYSTEM_LABELS)):
            converter.warn(
                node.position,
                f"the label {quote(_convert_runner_name(name)[0] if _convert_runner_name(name) else name)}",
                WAITS_FOR_LABEL,
            )


def _evaluate_combinations(
    template: Template, combinations: Combinations | None, unknown_axes: frozenset[str]
) -> list[Value] | None:
    """Return the value of a template for each combination of the matrix.

    Return None if there are no combinations, or if a value is not known yet or cannot be computed.
    """
    values: list[Value] = []
    for reference in (reference for expression in template.expressions for reference in context_references(expression)):
        axis = (reference.keys or (ANY_KEY,))[0]
        if reference.context == "matrix" and unknown_axes and axis in {*unknown_axes, ANY_KEY}:
            return None
    for value_by_axis in combinations if combinations is not None else ():
        try:
            reduced = reduce_template(template, {"matrix": dict(value_by_axis)})
        except ExpressionError:
            return None
        if not isinstance(reduced, Resolved):
            return None
        values.append(reduced.value)
    return values or None


def as_condition(node: Node) -> str:
    """Return the source of the expression if a text is a single `${{ … }}`, else an empty string."""
    try:
        template = parse_template(node.value)
    except ExpressionError:
        return ""
    return as_expression(template) if template.single_expression is not None else ""


def as_expression(template: Template) -> str:
    """Return the source of an expression that is equivalent to the template."""
    if template.single_expression is not None:
        expression_text = format_expression(template.single_expression)
        return (
            expression_text
            if expression_text.replace(".", "").replace("-", "").replace("_", "").isalnum()
            else f"({expression_text})"
        )
    format_pattern = "".join(
        part.replace("{", "{{").replace("}", "}}") if isinstance(part, str) else f"{{{placeholder_number}}}"
        for part, placeholder_number in zip(template.parts, _placeholder_numbers(template), strict=True)
    )
    arguments = [format_expression(part) for part in template.expressions]
    return f"format({', '.join([format_expression(Literal(format_pattern)), *arguments])})"


def _placeholder_numbers(template: Template) -> list[int]:
    """Return for each part of a template the number of expressions before it."""
    return [
        sum(not isinstance(part, str) for part in template.parts[:part_index])
        for part_index in range(len(template.parts))
    ]
