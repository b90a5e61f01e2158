"""What may be mentioned where, as GitHub documents it."""

import pytest

from deltaci.pipeline.expressions import AVAILABILITY, check_expression, parse

ALLOWED = [
    ("jobs.if", "always() && needs.build.result == 'success' && github.ref && inputs.x && vars.y"),
    ("jobs.strategy", "fromJSON(needs.plan.outputs.matrix)"),
    ("jobs.runs-on", "matrix.os || format('x-{0}', strategy.job-index)"),
    ("jobs.env", "secrets.TOKEN"),
    ("jobs.outputs", "steps.a.outputs.b || toJSON(job) || runner.os || env.x"),
    ("steps.if", "failure() && hashFiles('**/*.lock') != '' && steps.a.outcome == 'failure'"),
    ("steps.run", "secrets.TOKEN || hashFiles('x') || matrix.os"),
    ("concurrency", "github.ref"),
]
REFUSED = [
    ("jobs.if", "matrix.os == 'linux'", "the context 'matrix'"),
    ("jobs.if", "secrets.TOKEN != ''", "the context 'secrets'"),
    ("jobs.if", "hashFiles('x')", "the function 'hashFiles'"),
    ("jobs.strategy", "matrix.os", "the context 'matrix'"),
    ("jobs.runs-on", "env.RUNNER", "the context 'env'"),
    ("steps.if", "secrets.TOKEN", "the context 'secrets'"),
    ("steps.run", "success()", "the function 'success'"),
    ("env", "env.other", "the context 'env'"),
]


@pytest.mark.parametrize(("key", "expression"), ALLOWED)
def test_availability_follows_the_documentation_of_github(key: str, expression: str) -> None:
    assert check_expression(parse(expression), AVAILABILITY[key].contexts, AVAILABILITY[key].functions) == []


@pytest.mark.parametrize(("key", "expression", "found"), REFUSED)
def test_an_unavailable_context_or_function_is_a_problem(key: str, expression: str, found: str) -> None:
    problems = check_expression(parse(expression), AVAILABILITY[key].contexts, AVAILABILITY[key].functions)

    assert [problem.found for problem in problems] == [found]
