"""The expression language of GitHub Actions: `${{ … }}` in texts, and conditions.

Text in, values out. Nothing here reads files, and nothing is ever run by Python: an expression is read into a tree,
checked against what there is in its place, and evaluated over contexts that the caller gives, within named limits.
Whatever an expression says, only `ExpressionRefused` is raised.
"""

from deltaci.pipeline.expressions.availability import PLACES, Place
from deltaci.pipeline.expressions.check import check
from deltaci.pipeline.expressions.errors import (
    BadExpression,
    ExpressionRefused,
    FailedExpression,
    Mistake,
    line_and_column,
)
from deltaci.pipeline.expressions.evaluator import Contexts, Functions, evaluate
from deltaci.pipeline.expressions.functions import SIGNATURES, STATUS, Function
from deltaci.pipeline.expressions.parser import parse
from deltaci.pipeline.expressions.printer import printed
from deltaci.pipeline.expressions.reducer import Known, Remains, reduce
from deltaci.pipeline.expressions.templates import (
    RemainingText,
    Template,
    check_template,
    condition,
    holds,
    interpolate,
    mentions_status,
    read,
    reduce_text,
)
from deltaci.pipeline.expressions.tree import Expression, contexts_of, functions_of
from deltaci.pipeline.expressions.values import Value, truthy

__all__ = [
    "PLACES",
    "SIGNATURES",
    "STATUS",
    "BadExpression",
    "Contexts",
    "Expression",
    "ExpressionRefused",
    "FailedExpression",
    "Function",
    "Functions",
    "Known",
    "Mistake",
    "Place",
    "RemainingText",
    "Remains",
    "Template",
    "Value",
    "check",
    "check_template",
    "condition",
    "contexts_of",
    "evaluate",
    "functions_of",
    "holds",
    "interpolate",
    "line_and_column",
    "mentions_status",
    "parse",
    "printed",
    "read",
    "reduce",
    "reduce_text",
    "truthy",
]
