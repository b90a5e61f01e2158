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

    def __init__(self, text_by_path: Mapping[str, str]) -> None:
        self.files = text_by_path
        self._remaining_cost = MAX_COST
        self._parsed: dict[str, tuple[Node | None, tuple[Problem, ...]]] = {}

    def parse_action(self, action_path: str, converter: Converter) -> Node | None:
        """Return the root node of an action file, or None if it is not valid YAML. Report all of its problems."""
        if action_path not in self._parsed:
            action_problems = ProblemList(action_path)
            try:
                self._parsed[action_path] = (
                    parse_yaml(self.files[action_path], action_problems),
                    action_problems.in_order(),
                )
            except YamlError:
                self._parsed[action_path] = None, action_problems.in_order()
        root_node, file_problems = self._parsed[action_path]
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

    def value(self, key_name: str) -> Node | None:
        """Return the value of a key of the using step, or None if it is absent or null."""
        value_node = child(self.node, key_name)
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
    text_by_path = use.actions.files
    action_path = next(
        (
            action_path
            for file_name in ACTION_FILES
            if (action_path := f"{action_folder}/{file_name}".lstrip("/")) in text_by_path
        ),
        "",
    )
    action_text = f"the action {quote(use.uses.value)}"
    if not action_path:
        converter.report_unsupported(
            use.uses.position, action_text, f"there is no {action_folder}/{ACTION_FILES[0]} to read it from"
        )
        return []
    if use.depth >= MAX_DEPTH:
        converter.report_unsupported(
            use.uses.position, action_text, f"expected at most {MAX_DEPTH} actions that use each other"
        )
        return []
    action_converter = Converter(action_path, text_by_path[action_path])
    step_nodes = _ActionInliner(use, action_folder, action_converter).inline_steps(convert_step)
    for problem in action_converter.problems.in_order():
        message = f"{action_text}: {problem.file}:{problem.line}:{problem.column}: {problem.found}"
        if problem.is_warning:
            converter.warn(use.uses.position, message, problem.expected)
        else:
            converter.report_unsupported(use.uses.position, message, problem.expected, problem.nearest)
    for secret in action_converter.secrets:
        converter.secrets.setdefault(secret)
    return [move_node(step, use.uses.position) for step in step_nodes]


def move_node(node: Node, at: Position) -> Node:
    """Return a copy of a node in which the node and all nodes within it have the position `at`."""
    if node.kind == LIST:
        return list_node(at, [move_node(item_node, at) for item_node in node.value])
    if node.kind == OBJECT:
        return Node(
            OBJECT, at, [(move_node(key_node, at), move_node(value_node, at)) for key_node, value_node in node.value]
        )
    return Node(node.kind, at, node.value, node.raw, node.style)


class _ActionInliner:
    """Converts the steps of one use of an action to steps of the job."""

    def __init__(self, use: ActionUse, folder: str, converter: Converter) -> None:
        self.use, self.folder, self.converter = use, folder, converter
        use_id = use.value("id")
        self.id_prefix = f"{use_id.raw}__" if use_id is not None else f"_step{use.number}__"
        self.expression_by_input: dict[str, Expression] = {}
        self.inlined_id_by_id: dict[str, str] = {}  # In the order of the steps, by lower-case id in the action.

    def inline_steps(self, convert_step: StepConverter) -> list[Node]:
        """Return the converted steps of the action, with the final step that sets its outputs.

        Report a problem and return an empty list if the action is unsupported.
        """
        root_node = self.use.actions.parse_action(self.converter.problems.file, self.converter)
        if root_node is None:
            return []
        action_keys = {key_node.raw: value_node for key_node, value_node in pairs(root_node)}
        runs_entries = {key_node.raw: value_node for key_node, value_node in pairs(action_keys.get("runs"))}
        runtime_name = runs_entries["using"].raw if "using" in runs_entries else ""
        if runtime_name.lower() != "composite":
            position = runs_entries["using"].position if "using" in runs_entries else root_node.position
            message = f"an action that uses {quote(runtime_name)}" if runtime_name else "an action without 'runs.using'"
            self.converter.report_unsupported(
                position, message, "only composite actions are supported: 'using: composite'"
            )
            return []
        steps_node = runs_entries.get("steps")
        if steps_node is None or steps_node.kind != LIST or not steps_node.value or len(steps_node.value) > MAX_STEPS:
            self.converter.report_unsupported(
                runs_entries["using"].position, "an action without steps", f"expected 1 to {MAX_STEPS}"
            )
            return []
        if not self.use.actions.count_use(len(steps_node.value), len(self.converter.source)):
            self.converter.report_unsupported(
                steps_node.position, "more uses of actions than a workflow may have", "use fewer of them"
            )
            return []
        self._collect_inputs(action_keys.get("inputs"))
        self._assign_ids(steps_node.value)
        outputs = self._convert_outputs(action_keys.get("outputs"))
        conditions = [self._parse_step_condition(step_node) for step_node in steps_node.value]
        use_id = self.use.value("id")
        if not self._can_inline(steps_node.value, conditions):
            return []
        converted_steps: list[Node] = []
        for step_index, step_node in enumerate(steps_node.value):
            rewritten_step = self._rewrite_step(step_node, step_index, conditions)
            inner_use = self.use._replace(node=rewritten_step, depth=self.use.depth + 1)
            converted_steps += convert_step(rewritten_step, self.converter, inner_use)
        if use_id is not None:
            converted_steps += convert_step(
                self._build_final_step(use_id, outputs, conditions), self.converter, self.use
            )
        if len(converted_steps) > MAX_STEPS:
            self.converter.report_unsupported(
                steps_node.position, f"{len(converted_steps)} steps in all", f"expected at most {MAX_STEPS}"
            )
            return []
        return converted_steps

    # -- inputs, ids and outputs

    def _collect_inputs(self, inputs_node: Node | None) -> None:
        """Set the expression of each declared input: the value in the using step, else the default.

        Report values for inputs that the action does not declare.
        """
        values_by_input = {key_node.raw.lower(): value_node for key_node, value_node in pairs(self.use.value("with"))}
        for name_node, declaration in pairs(inputs_node):
            value_node = values_by_input.pop(name_node.raw.lower(), None)
            self.expression_by_input[name_node.raw.lower()] = _build_input_expression(
                value_node or child(declaration, "default")
            )
        for unknown_input in values_by_input:
            self.converter.warn(
                Position(), f"{quote(unknown_input)}, which is not an input of this action", "it has no effect"
            )

    def _assign_ids(self, step_nodes: list[Node]) -> None:
        """Give each step of the action an id that is unique in the job."""
        for step_index, step_node in enumerate(step_nodes):
            step_id = child(step_node, "id")
            id_text = step_id.raw if step_id is not None else f"_{step_index}"
            self.inlined_id_by_id[id_text.lower()] = f"{self.id_prefix}{id_text}"

    def _convert_outputs(self, outputs_node: Node | None) -> dict[str, str]:
        """Return the declared outputs of the action: templates over the steps of the job, by name."""
        templates = {}
        for name_node, declaration in pairs(outputs_node):
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
                    return self.expression_by_input.get(name.lower(), Literal(""))
                if lower_context == "steps" and name.lower() in self.inlined_id_by_id:
                    return Index(Context("steps"), Literal(self.inlined_id_by_id[name.lower()]))
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

    def _parse_step_condition(self, step_node: Node) -> Expression | None:
        condition = child(step_node, "if")
        if condition is None or not condition.raw.strip():
            return None
        return self._parse_condition(condition, self._find_replacement)

    def _parse_condition(self, condition_node: Node, find_replacement: FindReplacement) -> Expression | None:
        """Return the parsed `if` with nodes replaced. Report a problem and return None if it is invalid."""
        condition_text = condition_node.raw.strip()
        if condition_text.startswith(OPEN) and condition_text.endswith(CLOSE) and condition_text.count(OPEN) == 1:
            condition_text = condition_text[len(OPEN) : -len(CLOSE)]
        try:
            return replace_nodes(parse(condition_text), find_replacement)
        except ExpressionSyntaxError as error:
            self.converter.report_unsupported(
                condition_node.position, error.problem.found, f"expected {error.problem.expected}"
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
        value_node = self.use.value(CONTINUE_ON_ERROR)
        return value_node is not None and value_node.raw != "false"

    def _runs_after_failure(self) -> bool:
        """Return whether the action may run after a failed step, or the job may continue after the action failed."""
        return _uses_status(self._use_condition) or self._continues_on_error()

    def _can_inline(self, step_nodes: list[Node], conditions: list[Expression | None]) -> bool:
        """Return whether the inlined steps behave like the action on GitHub. Report a problem if they do not."""
        position, runs_after_failure = step_nodes[0].position, self._runs_after_failure()
        if self.use.value(TIMEOUT) is not None and len(step_nodes) > 1:
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

    def _combine_conditions(self, condition: Expression | None, step_index: int) -> Node | None:
        """Return the `if` of the step at `step_index` in the job, or None if it needs none.

        A step runs if the action runs, no earlier step of the action failed, and its own `condition` holds. If that
        uses a status function, the step also runs after failures within the action.
        """
        use_condition, uses_status = self._use_condition, _uses_status(condition)
        first_id = next(iter(self.inlined_id_by_id.values()))
        conditions: list[Expression] = []
        if uses_status:
            conditions.append(Call("success") if step_index == 0 else _compare_result(first_id, "!=", "skipped"))
        elif self._runs_after_failure():
            result_property = "outcome" if self._continues_on_error() else "conclusion"
            conditions += [
                _compare_result(step_id, "!=", "failure", result_property)
                for step_id in list(self.inlined_id_by_id.values())[:step_index]
            ]
        if use_condition is not None and not (uses_status and step_index):
            conditions.insert(0, use_condition)
        if condition is not None:
            conditions.append(condition)
        if not conditions:
            return None
        return text_node(
            Position(), format_expression(conditions[0] if len(conditions) == 1 else And(tuple(conditions)))
        )

    # -- steps

    def _rewrite_step(self, step_node: Node, step_index: int, conditions: list[Expression | None]) -> Node:
        """Return the step of the action at `step_index`, rewritten as a step of the job."""
        if step_node.kind != OBJECT:
            return step_node
        rewritten_entries: list[tuple[Node, Node]] = []
        for key_node, value_node in step_node.value:
            if key_node.raw not in ("if", "id", "env"):
                rewritten_entries.append((key_node, self._rewrite_value(value_node)))
        rewritten_entries.append(
            (
                text_node(step_node.position, "id"),
                text_node(step_node.position, list(self.inlined_id_by_id.values())[step_index]),
            )
        )
        if (condition := self._combine_conditions(conditions[step_index], step_index)) is not None:
            rewritten_entries.append(
                (text_node(step_node.position, "if"), text_node(step_node.position, condition.value))
            )
        for key_name in (CONTINUE_ON_ERROR, TIMEOUT):
            if (value_node := self.use.value(key_name)) is not None and all(
                key_node.raw != key_name for key_node, _ in rewritten_entries
            ):
                rewritten_entries.append((text_node(step_node.position, key_name), value_node))
        if env := self._merge_env(step_node):
            rewritten_entries.append((text_node(step_node.position, "env"), Node(OBJECT, step_node.position, env)))
        key_names = {key_node.raw for key_node, _ in rewritten_entries}
        if "run" in key_names and self.use.has_working_directory and "working-directory" not in key_names:
            rewritten_entries.append(
                (text_node(step_node.position, "working-directory"), text_node(step_node.position, "."))
            )
        return Node(OBJECT, step_node.position, rewritten_entries)

    def _merge_env(self, step_node: Node) -> list[tuple[Node, Node]]:
        """Return the variables of an inlined step: those of the using step and of the step in the action.

        Add GITHUB_ACTION_PATH if the command of the step uses it.
        """
        merged_env = {key_node.raw: (key_node, value_node) for key_node, value_node in pairs(self.use.value("env"))}
        merged_env |= {
            key_node.raw: (key_node, self._rewrite_value(value_node))
            for key_node, value_node in pairs(child(step_node, "env"))
        }
        command_node = child(step_node, "run")
        if command_node is not None and ACTION_PATH_VARIABLE in command_node.raw:
            path_node = text_node(step_node.position, f"{OPEN} {format_expression(self._action_path())} {CLOSE}")
            merged_env[ACTION_PATH_VARIABLE] = (text_node(step_node.position, ACTION_PATH_VARIABLE), path_node)
        return [*merged_env.values()]

    def _rewrite_value(self, node: Node) -> Node:
        """Return a copy of a value of a step with the expressions in its texts replaced for the job."""
        if node.kind == LIST:
            return list_node(node.position, [self._rewrite_value(item_node) for item_node in node.value])
        if node.kind == OBJECT:
            return Node(
                OBJECT, node.position, [(key_node, self._rewrite_value(value)) for key_node, value in node.value]
            )
        if node.kind != TEXT or OPEN not in node.value:
            return node
        rewritten_text = replace_in_template(node.value, self._find_replacement)
        return Node(TEXT, node.position, rewritten_text, rewritten_text, node.style or '"')

    def _build_final_step(
        self, use_id: Node, template_by_output: dict[str, str], conditions: list[Expression | None]
    ) -> Node:
        """Return a step with the id of the using step, which sets the outputs and fails if the action failed."""
        position = use_id.position
        result_property = "outcome" if self._continues_on_error() else "conclusion"
        failure_checks = [
            _compare_result(id, "==", "failure", result_property) for id in self.inlined_id_by_id.values()
        ]
        first_id = next(iter(self.inlined_id_by_id.values()))
        has_run = And((_compare_result(first_id, "!=", "skipped"), Call("always")))
        condition = (
            text_node(position, format_expression(has_run))
            if conditions[0] is None
            else self._combine_conditions(None, len(conditions))
        )
        has_failed = format_expression(failure_checks[0] if len(failure_checks) == 1 else Or(tuple(failure_checks)))
        env = {"FAILED": text_node(position, f"{OPEN} {has_failed} {CLOSE}")}
        script_lines = []
        for output_index, (output_name, output_value) in enumerate(template_by_output.items()):
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


def _compare_result(step_id: str, operator: str, step_result: str, property: str = "conclusion") -> Expression:
    """Return the expression `steps.ID.PROPERTY OPERATOR 'RESULT'`."""
    return Compare(operator, Index(Index(Context("steps"), Literal(step_id)), Literal(property)), Literal(step_result))


def _uses_status(condition: Expression | None) -> bool:
    return condition is not None and uses_status_function(condition)


def _build_input_expression(value_node: Node | None) -> Expression:
    """Return an expression for the value of an input, as a string: on GitHub, inputs of actions are always strings."""
    if value_node is None or value_node.kind in (NULL, LIST, OBJECT):
        return Literal("")
    if value_node.kind != TEXT or OPEN not in value_node.value:
        return Literal(to_text(value_node.value))
    try:
        template = parse_template(value_node.value)
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
