"""Hypothesis strategies for expressions: trees of all node types, and texts that resemble expressions."""

import math

from hypothesis import strategies as st

from deltaci.pipeline.expressions import Expression, Value, format_expression
from deltaci.pipeline.expressions.functions import SIGNATURES
from deltaci.pipeline.expressions.tree import (
    COMPARISONS,
    And,
    Call,
    Compare,
    Context,
    Filter,
    Index,
    Literal,
    Not,
    Or,
)

EARLY: dict[str, Value] = {
    "matrix": {"os": "linux", "n": 3, "list": ["a", 1, None], "deep": [{"a": [1]}, {"A": "b"}], "zero": 0, "": "x"},
    "env": {"A": "it's", "json": '{"a": [1, 2]}', "empty": ""},
}
LATE: dict[str, Value] = {
    "steps": {"a": "b", "n": 1, "list": [True, "n"], "none": None},
    "needs": {"a": {"result": "success"}, "b": False},
}
PROPERTIES = ["a", "A", "n", "os", "list", "deep", "none", "json", "result", "-", "x y", "", "it's", "true"]

numbers = st.one_of(
    st.integers(-5, 5).map(float),
    st.floats(allow_nan=False),
    st.sampled_from([math.nan, math.inf, -math.inf, -0.0, 1e15, 1e-7, 0.1, 2.0**53]),
)
literals = st.one_of(
    st.none(), st.booleans(), numbers, st.text(max_size=8), st.sampled_from([*PROPERTIES, "[1, 2]", "{0}", "{{"])
).map(Literal)
contexts = st.sampled_from(["matrix", "env", "steps", "needs", "MATRIX", "Steps"]).map(Context)
keys = st.sampled_from(PROPERTIES).map(Literal)


def _within(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    operands = st.lists(inner, min_size=2, max_size=4).map(tuple)
    names = st.sampled_from([signature.name for signature in SIGNATURES.values()] + ["FORMAT", "unknown"])
    return st.one_of(
        st.builds(Index, inner, keys | inner),
        st.builds(Filter, inner),
        st.builds(Call, names, st.lists(inner, max_size=5).map(tuple)),
        st.builds(Not, inner),
        st.builds(Compare, st.sampled_from(sorted(COMPARISONS)), inner, inner),
        st.builds(And, operands),
        st.builds(Or, operands),
    )


leaves: st.SearchStrategy[Expression] = literals | contexts | st.builds(Index, contexts, keys)
trees: st.SearchStrategy[Expression] = st.recursive(leaves, _within, max_leaves=16)

# Plain parts and values of templates that could form an expression when they are joined carelessly.
plain = st.sampled_from(["", "$", "{", "{{", "}}", "'", " ", "x", "$ {{"])
tricks = st.sampled_from(["env.trick", "env.dollar", "env.open", "matrix.none"]).map(lambda name: f"${{{{ {name} }}}}")
TRICKS: dict[str, Value] = {"trick": "${{ needs.b }}", "dollar": "$", "open": "{{ 'a", "A": "it's"}
templates = st.lists(plain | tricks | trees.map(lambda tree: f"${{{{ {format_expression(tree)} }}}}"), max_size=6).map(
    "".join
)

words = st.sampled_from(
    [
        *("${{", "}}", "'", "''", "(", ")", "[", "]", ".", "*", ",", "!", "=", "==", "!=", "<", ">=", "&&", "||", "&"),
        *("github", "matrix", "a", "true", "null", "NaN", "0xff", "1.5", "-", "+", ".5", " ", "\n", '"', "{0}", "{"),
        *("contains(", "format('{0}', ", "fromJSON('[", "case(", "toJSON(", "hashFiles(", "success()", "é", "\x00"),
    ]
)
scraps = st.lists(words | st.text(max_size=3), max_size=25).map("".join) | st.text(max_size=60)
