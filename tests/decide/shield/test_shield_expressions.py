"""Expressions of shields: the grammar refuses everything else, values agree with Python's, z3 reads the same tree."""

import ast

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.core.errors import ConfigError
from hone.decide.shield.model import parse_expression

NUMBERS = st.integers(-9, 9).map(float)


def _texts() -> st.SearchStrategy[str]:
    leaves = st.sampled_from(["a", "b", "2", "0.5", "-3"])
    numbers = st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.tuples(inner, st.sampled_from(["+", "-", "*"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
            st.tuples(st.sampled_from(["min", "max"]), inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
            inner.map(lambda one: f"abs({one})"),
            inner.map(lambda one: f"({one})**2"),
            st.tuples(inner, inner, inner).map(lambda t: f"({t[0]} if {t[1]} <= {t[2]} else a)"),
        ),
        max_leaves=6,
    )
    return st.tuples(numbers, st.sampled_from(["<", "<=", ">", "==", "!="]), numbers).map(" ".join)


@examples(80)
@given(_texts(), NUMBERS, NUMBERS)
def test_values_are_those_of_python_one_at_a_time_and_in_arrays(text: str, a: float, b: float) -> None:
    expression = parse_expression(text, place="rule")
    python = eval(text, {"__builtins__": {}, "min": min, "max": max, "abs": abs}, {"a": a, "b": b})
    assert expression.holds({"a": a, "b": b}) == python
    rows = expression.over({"a": np.array([a, a + 1]), "b": np.array([b, b - 1])})
    assert np.broadcast_to(np.asarray(rows), (2,))[0] == python


@examples(40)
@given(_texts(), NUMBERS, NUMBERS)
def test_z3_decides_the_same_truth(text: str, a: float, b: float) -> None:
    z3 = pytest.importorskip("z3")
    from hone.decide.shield.invariant import translate_expression

    expression = parse_expression(text, place="rule")
    names = {"a": z3.RealVal(repr(a)), "b": z3.RealVal(repr(b))}
    formula = z3.simplify(translate_expression(z3, expression.tree, names))
    assert z3.is_true(formula) == expression.holds({"a": a, "b": b})


@pytest.mark.parametrize(
    "text",
    ["__import__('os').system('true')", "a.real", "a[0]", "lambda: 1", "[a]", "f(a)", "a @ b", "a ** b", "a ** 9",
     "a is b", "a in b", "'a' < 'b'", "True", "a := 1", "min()", "min(a, key=b)",
     "a <", "1e999 > a", "x" * 3000, "(" * 300 + "a",
     "-" * 90 + "a", "abs(" * 70 + "a" + ")" * 70, "a if b", "*a", "f'{a}'", "a\x00"],
)  # fmt: skip
def test_everything_outside_the_grammar_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(ConfigError, match=r"rules\[3\]"):
        parse_expression(text, place="rules[3]")


def test_an_unknown_name_is_told_with_the_nearest_known_one() -> None:
    with pytest.raises(ConfigError, match="unknown name 'spede'; did you mean speed"):
        parse_expression("gap > spede", place="safe", known=frozenset({"gap", "speed"}))


def test_a_division_by_zero_is_no_answer_but_in_a_branch_that_is_left_out() -> None:
    assert parse_expression("1 if a == 0 else 1 / a", place="x").holds({"a": 0.0})
    with pytest.raises(FloatingPointError):
        parse_expression("1 / a > 2", place="x").holds({"a": 0.0})


def test_powers_and_signs_bind_as_in_python() -> None:
    for text in ("-2**2 == -4", "2 - 3 - 4 == -5", "1 < 2 < 3 and not 3 < 2", "7 / 2 / 2 == 1.75"):
        assert ast.unparse(ast.parse(text))
        assert parse_expression(text, place="x").holds({})
