"""The expression language of GitHub Actions: `${{ … }}` in texts, and conditions (`if:`).

Pure: no file access, and no Python code is ever executed. An expression is parsed to a tree, checked against the
contexts and functions that are available where it stands, and evaluated over given contexts within limits. The content
of an expression raises no other error than `ExpressionError`. Imports only `core`. Start with `templates`, then
`evaluator`.
"""

from deltaci.pipeline.expressions.availability import AVAILABILITY, Availability
from deltaci.pipeline.expressions.check import check_expression
from deltaci.pipeline.expressions.errors import (
    EvaluationError,
    ExpressionError,
    ExpressionProblem,
    ExpressionSyntaxError,
    line_and_column,
)
from deltaci.pipeline.expressions.evaluator import Contexts, Functions, evaluate
from deltaci.pipeline.expressions.functions import SIGNATURES, STATUS_FUNCTIONS, Function
from deltaci.pipeline.expressions.parser import parse
from deltaci.pipeline.expressions.printer import format_expression
from deltaci.pipeline.expressions.reducer import Residual, Resolved, reduce_expression
from deltaci.pipeline.expressions.templates import (
    ResidualText,
    Template,
    check_template,
    evaluate_condition,
    interpolate,
    parse_condition,
    parse_template,
    reduce_template,
    uses_status_function,
)
from deltaci.pipeline.expressions.tree import Expression, context_names, function_names
from deltaci.pipeline.expressions.values import Value, is_truthy

__all__ = [
    "AVAILABILITY",
    "SIGNATURES",
    "STATUS_FUNCTIONS",
    "Availability",
    "Contexts",
    "EvaluationError",
    "Expression",
    "ExpressionError",
    "ExpressionProblem",
    "ExpressionSyntaxError",
    "Function",
    "Functions",
    "Residual",
    "ResidualText",
    "Resolved",
    "Template",
    "Value",
    "check_expression",
    "check_template",
    "context_names",
    "evaluate",
    "evaluate_condition",
    "format_expression",
    "function_names",
    "interpolate",
    "is_truthy",
    "line_and_column",
    "parse",
    "parse_condition",
    "parse_template",
    "reduce_expression",
    "reduce_template",
    "uses_status_function",
]
