"""Inlines composite actions of the same repository: their steps replace the step that uses them.

In the steps of an action,

1. `inputs.NAME` is replaced by the value that the using step gives, or the default;
2. step ids get a prefix that is unique in the job, and `steps.ID` is replaced accordingly;
3. `if` is combined with the condition of the using step, and `env` with its environment.

If the using step has an id, a final step with this id sets the outputs of the action, and fails if a step of it failed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final, NamedTuple

from deltaci.pipeline.expressions import (
    Expression,
    ExpressionSyntaxError,
    parse,
    parse_template,
    uses_status_function,
)
from deltaci.pipeline.expressions.printer import format_expression
from deltaci.pipeline.expressions.references import replace_nodes
from deltaci.pipeline.expressions.templates import CLOSE, OPEN
from deltaci.pipeline.expressions.tree import And, Call, Compare, Context, Index, Literal, Or
from deltaci.pipeline.expressions.values import to_text
from deltaci.pipeline.github.converter import Converter, list_node, object_node, text_node
from deltaci.pipeline.github.runs_on import as_expression
from deltaci.pipeline.parse.problems import Position, Problem, ProblemList, quote
from deltaci.pipeline.parse.yaml import LIST, NULL, OBJECT, TEXT, Node, YamlError, child, pairs, parse_yaml

MAX_DEPTH: Final = 10  # actions that use actions, as on GitHub
MAX_STEPS: Final = 300  # of one use of an action, including the actions that it uses
MAX_COST: Final = 5_000  # of all uses in a workflow: one for each step and for every 500 characters
ACTION_FILES: Final = ("action.yml", "action.yaml")
ACTION_PATH_VARIABLE: Final = "GITHUB_ACTION_PATH"
END_OF_OUTPUT: Final = "_deltaci_end_of_output_"
CONTINUE_ON_ERROR, TIMEOUT = "continue-on-error", "timeout-minutes"
_OUTPUT_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")

FindReplacement = Callable[[Expression], Expression | None]


class RepositoryActions:
    """The composite actions of a repository. Parses each action file once, and limits their use in one workflow."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.files = files
        self._remaining_cost = MAX_COST
        self._parsed: dict[str, tuple[Node | None, tuple[Problem, ...]]] = {}

    def parse_action(self, path: str, converter: Converter) -> Node | None:
        """Return the root node of an action file, or None if it is not valid YAML. Report all of its problems."""
        if path not in self._parsed:
            action_problems = ProblemList(path)
            try:
                self._parsed[path] = parse_yaml(self.files[path], action_problems), action_problems.in_order()
            except YamlError:
                self._parsed[path] = None, action_problems.in_order()
        root_node, file_problems = self._parsed[path]
        for problem in file_problems:
            converter.report_unsupported(
                Position(problem.line, problem.column), problem.found, problem.expected, problem.nearest
            )
        return root_node

    def count_use(self, step_count: int, character_count: int) -> bool:
        """Subtract the cost of one use of an action from the limit of the workflow.

        Return False if that is exceeded.
        """
        self._remaining_cost -= step_count + character_count // 500
        return self._remaining_cost >= 0


class ActionUse(NamedTuple):
    """A step that uses a composite action of the repository."""

    node: Node  # the step
    uses: Node
    number: int  # of the step in its job; becomes part of the generated step ids
    actions: RepositoryActions
    depth: int = 0
    has_working_directory: bool = False  # whether the job sets a default, which does not apply to the action's steps

    def value(self, key: str) -> Node | None:
        """Return the value of a key of the using step, or None if it is absent or null."""
        value_node = child(self.node, key)
        return None if value_node is None or value_node.kind == NULL else value_node


StepConverter = Callable[[Node, Converter, ActionUse], list[Node]]


def is_local_action(uses: Node) -> bool:
    """Return whether the value of `uses` names an action in the same repository: a path that begins with `./`."""
    return uses.kind == TEXT and uses.value.strip().startswith("./")


def inline_action(use: ActionUse, converter: Converter, convert_step: StepConverter) -> list[Node]:
    """Return the steps of an action, converted to steps of the job, at the position of the using step.

    Report problems and return an empty list if the action is unsupported.
    """
    action_folder = use.uses.value.strip().removeprefix("./").strip("/")
    files = use.actions.files
    path = next(
        (path for file_name in ACTION_FILES if (path := f"{action_folder}/{file_name}".lstrip("/")) in files), ""
    )
    action_text = f"the action {quote(use.uses.value)}"
    if not path:
        converter.report_unsupported(
            use.uses.position, action_text, f"there is no {action_folder}/{ACTION_FILES[0]} to read it from"
        )
        return []
    if use.depth >= MAX_DEPTH:
        converter.report_unsupported(
            use.uses.position, action_text, f"expected at most {MAX_DEPTH} actions that use each other"
        )
        return []
    action_converter = Converter(path, files[path])
    steps = _ActionInliner(use, action_folder, action_converter).inline_steps(convert_step)
    for problem in action_converter.problems.in_order():
        message = f"{action_text}: {problem.file}:{problem.line}:{problem.column}: {problem.found}"
        if problem.is_warning:
            converter.warn(use.uses.position, message, problem.expected)
        else:
            converter.report_unsupported(use.uses.position, message, problem.expected, problem.nearest)
    for secret in action_converter.secrets:
        converter.secrets.setdefault(secret)
    return [move_node(step, use.uses.position) for step in steps]


def move_node(node: Node, at: Position) -> Node:
    """Return a copy of a node in which the node and all nodes within it have the position `at`."""
    if node.kind == LIST:
        return list_node(at, [move_node(item, at) for item in node.value])
    if node.kind == OBJECT:
        return Node(OBJECT, at, [(move_node(key, at), move_node(value, at)) for key, value in node.value])
    return Node(node.kind, at, node.value, node.raw, node.style)


class _ActionInliner:
    """Converts the steps of one use of an action to steps of the job."""

    def __init__(self, use: ActionUse, folder: str, converter: Converter) -> None:
        self.use, self.folder, self.converter = use, folder, converter
        use_id = use.value("id")
        self.prefix = f"{use_id.raw}__" if use_id is not None else f"_step{use.number}__"
        self.inputs: dict[str, Expression] = {}
        self.ids: dict[str, str] = {}  # ids in the job, by lower-case id in the action, in the order of the steps

    def inline_steps(self, convert_step: StepConverter) -> list[Node]:
        """Return the converted steps of the action, with the final step that sets its outputs.

        Report a problem and return an empty list if the action is unsupported.
        """
        root_node = self.use.actions.parse_action(self.converter.problems.file, self.converter)
        if root_node is None:
            return []
        action_keys = {key.raw: value for key, value in pairs(root_node)}
        runs_entries = {key.raw: value for key, value in pairs(action_keys.get("runs"))}
        runtime_name = runs_entries["using"].raw if "using" in runs_entries else ""
        if runtime_name.lower() != "composite":
            position = runs_entries["using"].position if "using" in runs_entries else root_node.position
            message = f"an action that uses {quote(runtime_name)}" if runtime_name else "an action without 'runs.using'"
            self.converter.report_unsupported(
                position, message, "only composite actions are supported: 'using: composite'"
            )
            return []
        steps = runs_entries.get("steps")
        if steps is None or steps.kind != LIST or not steps.value or len(steps.value) > MAX_STEPS:
            self.converter.report_unsupported(
                runs_entries["using"].position, "an action without steps", f"expected 1 to {MAX_STEPS}"
            )
            return []
        if not self.use.actions.count_use(len(steps.value), len(self.converter.source)):
            self.converter.report_unsupported(
                steps.position, "more uses of actions than a workflow may have", "use fewer of them"
            )
            return []
        self._collect_inputs(action_keys.get("inputs"))
        self._assign_ids(steps.value)
        outputs = self._convert_outputs(action_keys.get("outputs"))
        conditions = [self._parse_step_condition(step) for step in steps.value]
        use_id = self.use.value("id")
        if not self._can_inline(steps.value, conditions):
            return []
        converted_steps: list[Node] = []
        for index, step in enumerate(steps.value):
            rewritten_step = self._rewrite_step(step, index, conditions)
            inner_use = self.use._replace(node=rewritten_step, depth=self.use.depth + 1)
            converted_steps += convert_step(rewritten_step, self.converter, inner_use)
        if use_id is not None:
            converted_steps += convert_step(
                self._build_final_step(use_id, outputs, conditions), self.converter, self.use
            )
        if len(converted_steps) > MAX_STEPS:
            self.converter.report_unsupported(
                steps.position, f"{len(converted_steps)} steps in all", f"expected at most {MAX_STEPS}"
            )
            return []
        return converted_steps

    # -- inputs, ids and outputs

    def _collect_inputs(self, inputs: Node | None) -> None:
        """Set the expression of each declared input: the value in the using step, else the default.

        Report values for inputs that the action does not declare.
        """
        values_by_input = {key_node.raw.lower(): value_node for key_node, value_node in pairs(self.use.value("with"))}
        for name_node, declaration in pairs(inputs):
            value_node = values_by_input.pop(name_node.raw.lower(), None)
            self.inputs[name_node.raw.lower()] = _build_input_expression(value_node or child(declaration, "default"))
        for unknown_input in values_by_input:
            self.converter.warn(
                Position(), f"{quote(unknown_input)}, which is not an input of this action", "it has no effect"
            )

    def _assign_ids(self, steps: list[Node]) -> None:
        """Give each step of the action an id that is unique in the job."""
        for index, step in enumerate(steps):
            step_id = child(step, "id")
            id_text = step_id.raw if step_id is not None else f"_{index}"
            self.ids[id_text.lower()] = f"{self.prefix}{id_text}"

    def _convert_outputs(self, outputs: Node | None) -> dict[str, str]:
        """Return the declared outputs of the action: templates over the steps of the job, by name."""
        templates = {}
        for name_node, declaration in pairs(outputs):
            value_node = child(declaration, "value")
            if not _OUTPUT_NAME.fullmatch(name_node.raw):
                self.converter.report_unsupported(
                    name_node.position, f"the output {quote(name_node.raw)}", "expected letters, digits, '_' and '-'"
                )
            elif value_node is not None and value_node.kind == TEXT:
                templates[name_node.raw] = replace_in_template(value_node.value, self._find_replacement)
        return templates

    def _find_replacement(self, node: Expression) -> Expression | None:
        """Return the expression that replaces a node of an expression of the action in the job, or None to keep it."""
        match node:
            case Index(Context(context), Literal(str(name))):
                lower_context = context.lower()
                if lower_context == "inputs":
                    return self.inputs.get(name.lower(), Literal(""))
                if lower_context == "steps" and name.lower() in self.ids:
                    return Index(Context("steps"), Literal(self.ids[name.lower()]))
                if lower_context == "github" and name.lower() == "action_path":
                    return self._action_path()
            case Context(context) if context.lower() == "inputs":
                self.converter.report_unsupported(
                    Position(), "all inputs of an action at once", "name them: inputs.NAME"
                )
            case _:
                pass
        return None

    def _action_path(self) -> Expression:
        """Return an expression for the folder of the action in the workspace."""
        return Call("format", (Literal(f"{{0}}/{self.folder}"), Index(Context("github"), Literal("workspace"))))

    # -- conditions

    def _parse_step_condition(self, step: Node) -> Expression | None:
        condition = child(step, "if")
        if condition is None or not condition.raw.strip():
            return None
        return self._parse_condition(condition, self._find_replacement)

    def _parse_condition(self, condition: Node, find_replacement: FindReplacement) -> Expression | None:
        """Return the parsed `if` with nodes replaced. Report a problem and return None if it is invalid."""
        source = condition.raw.strip()
        if source.startswith(OPEN) and source.endswith(CLOSE) and source.count(OPEN) == 1:
            source = source[len(OPEN) : -len(CLOSE)]
        try:
            return replace_nodes(parse(source), find_replacement)
        except ExpressionSyntaxError as error:
            self.converter.report_unsupported(
                condition.position, error.problem.found, f"expected {error.problem.expected}"
            )
            return None

    @cached_property
    def _use_condition(self) -> Expression | None:
        """The parsed `if` of the step that uses the action; None if it has none or an invalid one."""
        condition = self.use.value("if")
        if condition is None or not condition.raw.strip():
            return None
        return self._parse_condition(condition, lambda _: None)

    def _continues_on_error(self) -> bool:
        """Return whether the using step has `continue-on-error`, so that the job continues if the action fails."""
        value = self.use.value(CONTINUE_ON_ERROR)
        return value is not None and value.raw != "false"

    def _runs_after_failure(self) -> bool:
        """Return whether the action may run after a failed step, or the job may continue after the action failed."""
        return _uses_status(self._use_condition) or self._continues_on_error()

    def _can_inline(self, steps: list[Node], conditions: list[Expression | None]) -> bool:
        """Return whether the inlined steps behave like the action on GitHub. Report a problem if they do not."""
        position, runs_after_failure = steps[0].position, self._runs_after_failure()
        if self.use.value(TIMEOUT) is not None and len(steps) > 1:
            self.converter.report_unsupported(
                position, f"{quote(TIMEOUT)} of an action with several steps", "set it for a command"
            )
            return False
        status_flags = [_uses_status(condition) for condition in conditions]
        if runs_after_failure and any(status_flags):
            message = "steps with a status function, in an action that may fail or whose own 'if' has a status function"
            self.converter.report_unsupported(position, message, "use such a function in only one of them")
            return False
        if any(status_flags[1:]) and conditions[0] is not None:
            message = "a step with a status function, in an action whose first step has an 'if'"
            self.converter.report_unsupported(position, message, "use it in the workflow")
            return False
        return True

    def _combine_conditions(self, condition: Expression | None, index: int) -> Node | None:
        """Return the `if` of the step at `index` in the job, or None if it needs none.

        A step runs if the action runs, no earlier step of the action failed, and its own `condition` holds. If that
        uses a status function, the step also runs after failures within the action.
        """
        use_condition, uses_status = self._use_condition, _uses_status(condition)
        first_id = next(iter(self.ids.values()))
        conditions: list[Expression] = []
        if uses_status:
            conditions.append(Call("success") if index == 0 else _compare_result(first_id, "!=", "skipped"))
        elif self._runs_after_failure():
            result_property = "outcome" if self._continues_on_error() else "conclusion"
            conditions += [
                _compare_result(id, "!=", "failure", result_property) for id in list(self.ids.values())[:index]
            ]
        if use_condition is not None and not (uses_status and index):
            conditions.insert(0, use_condition)
        if condition is not None:
            conditions.append(condition)
        if not conditions:
            return None
        return text_node(
            Position(), format_expression(conditions[0] if len(conditions) == 1 else And(tuple(conditions)))
        )

    # -- steps

    def _rewrite_step(self, step: Node, index: int, conditions: list[Expression | None]) -> Node:
        """Return the step of the action at `index`, rewritten as a step of the job."""
        if step.kind != OBJECT:
            return step
        rewritten_entries: list[tuple[Node, Node]] = []
        for key_node, value_node in step.value:
            if key_node.raw not in ("if", "id", "env"):
                rewritten_entries.append((key_node, self._rewrite_value(value_node)))
        rewritten_entries.append(
            (text_node(step.position, "id"), text_node(step.position, list(self.ids.values())[index]))
        )
        if (condition := self._combine_conditions(conditions[index], index)) is not None:
            rewritten_entries.append((text_node(step.position, "if"), text_node(step.position, condition.value)))
        for key_name in (CONTINUE_ON_ERROR, TIMEOUT):
            if (value_node := self.use.value(key_name)) is not None and all(
                key_node.raw != key_name for key_node, _ in rewritten_entries
            ):
                rewritten_entries.append((text_node(step.position, key_name), value_node))
        if env := self._merge_env(step):
            rewritten_entries.append((text_node(step.position, "env"), Node(OBJECT, step.position, env)))
        key_names = {key_node.raw for key_node, _ in rewritten_entries}
        if "run" in key_names and self.use.has_working_directory and "working-directory" not in key_names:
            rewritten_entries.append((text_node(step.position, "working-directory"), text_node(step.position, ".")))
        return Node(OBJECT, step.position, rewritten_entries)

    def _merge_env(self, step: Node) -> list[tuple[Node, Node]]:
        """Return the variables of an inlined step: those of the using step and of the step in the action.

        Add GITHUB_ACTION_PATH if the command of the step uses it.
        """
        merged_env = {key_node.raw: (key_node, value_node) for key_node, value_node in pairs(self.use.value("env"))}
        merged_env |= {
            key_node.raw: (key_node, self._rewrite_value(value_node))
            for key_node, value_node in pairs(child(step, "env"))
        }
        command_node = child(step, "run")
        if command_node is not None and ACTION_PATH_VARIABLE in command_node.raw:
            path_node = text_node(step.position, f"{OPEN} {format_expression(self._action_path())} {CLOSE}")
            merged_env[ACTION_PATH_VARIABLE] = (text_node(step.position, ACTION_PATH_VARIABLE), path_node)
        return [*merged_env.values()]

    def _rewrite_value(self, node: Node) -> Node:
        """Return a copy of a value of a step with the expressions in its texts replaced for the job."""
        if node.kind == LIST:
            return list_node(node.position, [self._rewrite_value(item) for item in node.value])
        if node.kind == OBJECT:
            return Node(OBJECT, node.position, [(key, self._rewrite_value(value)) for key, value in node.value])
        if node.kind != TEXT or OPEN not in node.value:
            return node
        rewritten_text = replace_in_template(node.value, self._find_replacement)
        return Node(TEXT, node.position, rewritten_text, rewritten_text, node.style or '"')

    def _build_final_step(self, use_id: Node, outputs: dict[str, str], conditions: list[Expression | None]) -> Node:
        """Return a step with the id of the using step, which sets the outputs and fails if the action failed."""
        position = use_id.position
        result_property = "outcome" if self._continues_on_error() else "conclusion"
        failure_checks = [_compare_result(id, "==", "failure", result_property) for id in self.ids.values()]
        first_id = next(iter(self.ids.values()))
        has_run = And((_compare_result(first_id, "!=", "skipped"), Call("always")))
        condition = (
            text_node(position, format_expression(has_run))
            if conditions[0] is None
            else self._combine_conditions(None, len(conditions))
        )
        has_failed = format_expression(failure_checks[0] if len(failure_checks) == 1 else Or(tuple(failure_checks)))
        env = {"FAILED": text_node(position, f"{OPEN} {has_failed} {CLOSE}")}
        script_lines = []
        for output_index, (output_name, output_value) in enumerate(outputs.items()):
            env[f"OUTPUT_{output_index}"] = text_node(position, output_value)
            printf_arguments = f"'{output_name}' {END_OF_OUTPUT} \"$OUTPUT_{output_index}\" {END_OF_OUTPUT}"
            script_lines.append(f"printf '%s<<%s\\n%s\\n%s\\n' {printf_arguments} >> \"$GITHUB_OUTPUT\"")
        step_keys: dict[str, Node | None] = {
            "id": text_node(position, use_id.raw),
            "name": text_node(position, f"End of {use_id.raw}"),
            "if": condition,
            "shell": text_node(position, "sh"),
            "env": object_node(position, dict(env)),
            "run": text_node(position, "\n".join([*script_lines, 'test "$FAILED" != true']) + "\n"),
            CONTINUE_ON_ERROR: self.use.value(CONTINUE_ON_ERROR),
        }
        return object_node(position, step_keys)


def _compare_result(id: str, operator: str, result: str, property: str = "conclusion") -> Expression:
    """Return the expression `steps.ID.PROPERTY OPERATOR 'RESULT'`."""
    return Compare(operator, Index(Index(Context("steps"), Literal(id)), Literal(property)), Literal(result))


def _uses_status(condition: Expression | None) -> bool:
    return condition is not None and uses_status_function(condition)


def _build_input_expression(value: Node | None) -> Expression:
    """Return an expression for the value of an input, as a string: on GitHub, inputs of actions are always strings."""
    if value is None or value.kind in (NULL, LIST, OBJECT):
        return Literal("")
    if value.kind != TEXT or OPEN not in value.value:
        return Literal(to_text(value.value))
    try:
        template = parse_template(value.value)
        if template.single_expression is not None:
            return Call("format", (Literal("{0}"), template.single_expression))
        return parse(as_expression(template))
    except ExpressionSyntaxError:
        return Literal("")  # Reported for the step.


def replace_in_template(template: str, find_replacement: FindReplacement) -> str:
    """Return a template with nodes of its expressions replaced, unchanged if it cannot be parsed."""
    if OPEN not in template:
        return template
    try:
        parts = parse_template(template).parts
    except ExpressionSyntaxError:
        return template
    return "".join(
        part if isinstance(part, str) else _as_template(replace_nodes(part, find_replacement)) for part in parts
    )


def _as_template(expression: Expression) -> str:
    """Return an expression as a part of a template: a string literal as plain text, anything else in `${{ }}`."""
    if isinstance(expression, Literal) and isinstance(expression.value, str) and OPEN not in expression.value:
        return expression.value
    return f"{OPEN} {format_expression(expression)} {CLOSE}"
