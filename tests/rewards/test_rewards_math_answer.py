"""Mathematical answers: the whole table of right and wrong ones, random spellings, options, and hostile texts."""

import math
from fractions import Fraction
from typing import Any, TypeAlias

import pytest
import sympy
from counted_calls import count_calls
from examples import examples
from hypothesis import assume, example, given
from hypothesis import strategies as st
from math_table import AnswerCase, read_table

from hone.rewards.math_answer import math_answer

TABLES = (
    "math_answers.txt", "math_answers_held_out.txt", "math_answers_held_out_2.txt", "math_answers_kinds.txt",
    "math_answers_held_out_3.txt", "math_answers_held_out_4.txt", "math_answers_kinds_2.txt",
    *(f"math_answers_held_out_{number}.txt" for number in range(5, 11)),
)  # fmt: skip
CASES = [case for name in TABLES for case in read_table(name)]


def score(answer: str, reference: object, **options: Any) -> object:
    return math_answer(f"\\boxed{{{answer}}}", reference, **options)["score"]


def faults(cases: list[AnswerCase]) -> list[str]:
    """Cases that are scored otherwise than the table says."""
    return [
        f"[{case.family}] {text!r} for {case.reference!r}: {result['score']} ({result['reason']})"
        for case in cases
        for text in case.completions
        if (result := math_answer(text, case.reference))["score"] != case.score
    ]


@pytest.mark.parametrize("family", dict.fromkeys(case.family for case in CASES))
def test_every_answer_of_the_table_gets_its_score(family: str) -> None:
    assert faults([case for case in CASES if case.family == family]) == []


def test_the_table_is_large_and_says_what_is_missed() -> None:
    assert len(CASES) >= 400
    assert len({(case.reference, case.answer) for case in CASES}) == len(CASES), "a case twice"
    right = [case for case in CASES if case.right]
    assert 0.3 < len(right) / len(CASES) < 0.7


numbers = st.integers(-(10**12), 10**12)
fractions = st.fractions(max_denominator=1000).filter(lambda value: value.denominator > 1)
layouts = st.sampled_from(
    ["{}", " {} ", "${}$", r"\left({}\right)", r"\displaystyle {}", r"{}\,", r"\!{}", "{}.", "x = {}", r"\mathbf{{{}}}"]
)


def integer_spellings(value: int) -> list[str]:
    grouped = f"{value:,}"
    return [str(value), f"{value}.0", grouped, grouped.replace(",", "{,}"), grouped.replace(",", r"\,"), f"{value}e0"]


def fraction_spellings(value: Fraction) -> list[str]:
    sign, over, under = "-" * (value < 0), abs(value.numerator), value.denominator
    whole, rest = divmod(over, under)
    mixed = [rf"{sign}{whole}\frac{{{rest}}}{{{under}}}", f"{sign}{whole} {rest}/{under}"] if whole else []
    plain = [f"{sign}{over}/{under}", rf"{sign}\frac{{{over}}}{{{under}}}", rf"\dfrac{{{sign}{over}}}{{{under}}}"]
    return [*plain, rf"\tfrac{{{sign}{2 * over}}}{{{2 * under}}}", f"{{{sign}{over}}}/{{{under}}}", *mixed]


@given(numbers, st.data())
def test_an_integer_equals_itself_in_every_spelling_and_no_other(value: int, data: st.DataObject) -> None:
    layout, spelling = data.draw(layouts), data.draw(st.sampled_from(integer_spellings(value)))
    spelling = layout.format(str(value) if "(" in layout else spelling)  # (1,000) is a pair
    assert score(spelling, str(value)) == 1.0
    other = data.draw(numbers.filter(lambda one: one != value))
    assert score(spelling, str(other)) == 0.0
    assert score(f"{spelling} or {other}", str(value)) == 0.0
    assert score(f"{value}+0", str(value)) == score(f"{value - 1}+1", str(value)) == 0.0


@given(fractions, st.data())
def test_a_fraction_equals_itself_in_every_spelling_and_no_decimal(value: Fraction, data: st.DataObject) -> None:
    one, other = (data.draw(st.sampled_from(fraction_spellings(value))) for _ in range(2))
    assert score(data.draw(layouts).format(one), other) == 1.0
    assert score(one, str(value + Fraction(1, 10**9))) == score(one, str(-value)) == 0.0
    rounded = round(value, 6)
    whole, rest = divmod(abs(int(rounded * 10**6)), 10**6)
    assert score(f"{'-' * (rounded < 0)}{whole}.{rest:06d}", other) == float(rounded == value)


@given(st.integers(1, 50), st.integers(2, 200), st.integers(-9, 9).filter(bool))
def test_a_surd_equals_itself_as_one_root_and_is_no_decimal(outer: int, inner: int, added: int) -> None:
    value = rf"{added}+{outer}\sqrt{{{inner}}}"
    if int(inner**0.5 + 0.5) ** 2 == inner:
        assert score(value, str(added + outer * int(inner**0.5 + 0.5))) == 0.0  # a root that can be drawn
        return
    assert score(rf"\sqrt{{{outer**2 * inner}}} + {added}".replace("+ -", "- "), value) == 1.0
    assert score(rf"{added}+{outer}\sqrt{{{inner + 1}}}", value) == 0.0
    assert score(f"{added + outer * inner**0.5:.8f}", value) == 0.0


@given(st.lists(st.integers(-99, 99), min_size=2, max_size=6, unique=True))
def test_sets_have_no_order_and_tuples_have_one(items: list[int]) -> None:
    shuffled = sorted(items, key=lambda item: (item * 7919) % 101)
    text, other = ", ".join(map(str, items)), ", ".join(map(str, shuffled))
    assert score(rf"\{{{other}\}}", rf"\{{{text}\}}") == score(other, text) == 1.0
    assert score(f"({other})", f"({text})") == float(items == shuffled)
    assert score(rf"\{{{text}, 100\}}", rf"\{{{text}\}}") == score(f"({text})", rf"\{{{text}\}}") == 0.0
    assert score(str(items[0]), text) == 0.0


@given(st.integers(-20, 20), st.integers(-20, 20), st.integers(-20, 20))
def test_a_quadratic_equals_its_factors_up_to_order(a: int, b: int, c: int) -> None:
    assume(a * b != 0 and a + b not in (-1, 0, 1))  # 0x and 1x are work left
    expanded = f"x^2 + {(a + b)}x + {a * b}".replace("+ -", "- ")
    factors = [f"(x + {one})".replace("+ -", "- ") for one in (a, b)]
    assert score("".join(factors), expanded) == score(expanded, "".join(reversed(factors))) == 1.0
    assert score(expanded.replace("x", "y"), "".join(factors)) == 0.0
    if c not in (a, b):
        assert score(f"{factors[0]}(x + {c})".replace("+ -", "- "), expanded) == 0.0


@given(st.text(st.sampled_from("abcdefghijklmnopqrstuvwxyz"), min_size=3, max_size=8), st.permutations(range(8)))
def test_a_word_is_no_anagram(word: str, order: list[int]) -> None:
    shuffled = "".join(word[place] for place in order if place < len(word))
    if word not in ("inf",) and shuffled not in ("inf",):
        assert score(shuffled, word) == float(shuffled == word)


ALPHABET = [
    *r"0123456789.,+-*/^_=<>()[]{}|!%&~ abcexyzπ√½²\$",
    *[
        r"\frac",
        r"\sqrt",
        r"\boxed{",
        r"\left(",
        r"\right)",
        r"\text{",
        r"\begin{pmatrix}",
        r"\end{pmatrix}",
        r"\\",
        r"\pm",
        r"\{",
        r"\}",
        r"...",
        r"x=",
        r"e9",
        r"km",
        r"10^",
    ],
    *[r"\infty", r"\sin", r"\log", r"\cup", r"\overline{", r"\cap", r"\setminus", r"\neq", r"\mid", r"\in", ":"],
    *[r"\mathbb{R}", r",k\in\mathbb{Z}", "k", r"\boxed ", "C", "^{1/3}", "^{-3}", r"\log_{10}"],
    *(" or ", "\n"),
]


REFERENCES = [
    "3", "x+1", "cat", r"\{1,2\}", r"x \neq 3", r"(0,1)\cup[2,\infty)", r"k\pi, k \in \mathbb{Z}", "y = 2x+1",
    r"C_1 e^x + C_2 e^{-x}", r"\sqrt[3]{x^2}",
]  # fmt: skip


@examples(600)
@given(st.lists(st.sampled_from(ALPHABET), max_size=40).map("".join), st.sampled_from(REFERENCES))
@example("9e9999", "3")
@example("x" * 1999, "x")
@example("1," * 999, "1")
@example("(" * 49 + "9" + ")^9" * 49, "3")
@example(r"\sin(9e999)", "x")
@example("e^{e^{e^{e^{x}}}}", "x")
@example("((((9^{999})^{999})^{999})^{999})^{999}", "3")
@example("x^{999x^{999}}", "x")
@example("2^{" * 24 + "x" + "}" * 24, "x")
@example(r"\cup".join(f"({n},{n}.5)" for n in range(150)), r"\mathbb{R}\setminus\{1\}")
@example(r"\cup".join(rf"\{{a_{n}\}}" for n in range(9)) * 12, r"\{a,b\}")
@example(r"\{" * 40 + r"1\}\cup\{2" + r"\}" * 40, r"\{1,2\}")
@example(r"k\pi/7," * 200 + r"k\in\mathbb{Z}", r"k\pi, k \in \mathbb{Z}")
@example(r"99999999k,k/99999999,k\in\mathbb{Z}", r"k\pi, k \in \mathbb{Z}")
@example("C_1C_2C_3C_4C_5C_6x", "C_1e^x+C_2e^{-x}+C_3x")
def test_no_text_raises_or_takes_much_work(text: str, reference: str) -> None:
    for completion in (text, f"\\boxed{{{text}}}"):
        result, calls = count_calls(math_answer, completion, reference)
        assert calls < 1_000_000  # the worst of these takes 150,000, a tenth of a second
        assert result["score"] in (0.0, 1.0)
        assert math_answer(completion, text)["score"] in (0.0, 1.0, None)


@given(st.text(max_size=60))
def test_no_unicode_text_raises(text: str) -> None:
    assert math_answer(text, "3")["score"] in (0.0, 1.0)
    assert math_answer("3", text)["score"] in (0.0, 1.0, None)


Terms: TypeAlias = list[tuple[int, int, int]]
terms = st.lists(
    st.tuples(st.integers(-9, 9).filter(bool), st.integers(0, 3), st.integers(0, 3)),
    min_size=1, max_size=4, unique_by=lambda term: term[1:],
)  # fmt: skip


@examples(60)
@given(terms, terms)
def test_sympy_agrees_on_polynomials_and_their_factors(
    one: list[tuple[int, int, int]], other: list[tuple[int, int, int]]
) -> None:
    """An independent witness: sympy expands, factors and prints; its identity decides."""
    x, y = sympy.symbols("x y")
    left, right = (sum(c * x**a * y**b for c, a, b in items) for items in (one, other))
    expanded, factored = sympy.expand(left), sympy.factor(left)
    assert score(sympy.latex(expanded), sympy.latex(factored)) == 1.0
    assert score(sympy.latex(right), sympy.latex(expanded)) == float(sympy.expand(left - right) == 0)


@examples(60)
@given(st.integers(-9, 9), st.integers(1, 9), st.integers(2, 30), st.integers(1, 9), st.sampled_from("+-"))
def test_sympy_agrees_on_surds(whole: int, outer: int, inner: int, under: int, sign: str) -> None:
    value = (whole + (1 if sign == "+" else -1) * outer * sympy.sqrt(inner)) / under
    forms = [sympy.nsimplify(value), sympy.expand(value), sympy.together(value), sympy.radsimp(value)]
    for form in forms:
        assert score(sympy.latex(form), sympy.latex(value)) == 1.0, form
        assert score(sympy.latex(form + sympy.Rational(1, 1000)), sympy.latex(value)) == 0.0


ends = st.integers(-6, 6)
intervals = st.tuples(ends, ends, st.booleans(), st.booleans()).filter(lambda one: one[0] < one[1])
points = st.sets(ends, min_size=1, max_size=3)
pieces = st.one_of(
    intervals.map(lambda one: sympy.Interval(*one)), points.map(lambda numbers: sympy.FiniteSet(*numbers))
)
number_sets = st.lists(pieces, min_size=1, max_size=4)


def set_text(one: Any) -> str:
    if isinstance(one, sympy.FiniteSet):
        return r"\{" + ", ".join(map(str, one.args)) + r"\}"
    return f"{'(' if one.left_open else '['}{one.start}, {one.end}{')' if one.right_open else ']'}"


@examples(30)
@given(number_sets, number_sets, st.sampled_from([r"\cup", r"\cap", r"\setminus"]))
def test_sympy_agrees_on_unions_intersections_and_differences(one: list[Any], other: list[Any], operation: str) -> None:
    """The union as it is written, with overlaps, against sympy's; and an operation against its result."""
    left, right = sympy.Union(*one), sympy.Union(*other)
    texts = [r" \cup ".join(map(set_text, items)) for items in (one, other)]
    assert score(texts[0], texts[1]) == float(left == right)
    result = {r"\cup": left + right, r"\cap": left & right, r"\setminus": left - right}[operation]
    wanted = r"\emptyset" if result.is_empty else sympy.latex(result)
    expression = rf"({texts[0]}) {operation} ({texts[1]})"
    assert score(expression, wanted) == 1.0, (expression, wanted)
    changed = result - sympy.FiniteSet(7) if 7 in result else result + sympy.FiniteSet(7)
    assert score(expression, sympy.latex(changed)) == 0.0


steps = st.sampled_from([Fraction(step) for step in ("1/2", "2/3", "1", "3/2", "2", "3")])
offsets = st.fractions(min_value=-3, max_value=3, max_denominator=6)


families = st.lists(st.tuples(offsets, steps), min_size=1, max_size=3)


def family_text(family: list[Any], index: str, numbers: str = "Z") -> str:
    values = ", ".join(rf"({offset})\pi + ({step})\pi {index}" for offset, step in family)
    return rf"{values}, {index} \in \mathbb{{{numbers}}}"


def family_members(family: list[Any]) -> set[Fraction]:
    """Members between -20 and 20, in units of pi: a common period of any two steps fits in."""
    values = (offset + step * index for offset, step in family for index in range(-100, 100))
    return {value for value in values if abs(value) <= 20}


@examples(40)
@given(families, families)
def test_families_are_equal_when_their_members_are(one: list[Any], other: list[Any]) -> None:
    wanted = family_text(one, "k")
    equal = family_members(one) == family_members(other)
    assert score(family_text(other, "n"), wanted, form="any") == float(equal)
    doubled = [(offset + part * step, 2 * step) for offset, step in one for part in (0, 1)]
    assert score(family_text(doubled, "n"), wanted, form="any") == 1.0
    assert score(family_text(one, "k", "N"), wanted, form="any") == 0.0


@examples(40)
@given(st.integers(2, 12), st.sampled_from([3, 5, 7, 9]), st.sampled_from(["x", "(x-1)", "(2x+3)"]))
def test_an_odd_root_is_a_fractional_power(above: int, degree: int, base: str) -> None:
    root = rf"\sqrt[{degree}]{{{base}^{{{above}}}}}"
    assume(math.gcd(above, degree) == 1)
    for power in (rf"{base}^{{{above}/{degree}}}", rf"{base}^{{\frac{{{above}}}{{{degree}}}}}"):
        assert score(power, root) == score(root, power) == 1.0
    assert score(rf"{base}^{{{above + 1}/{degree}}}", root) == score(rf"-{base}^{{{above}/{degree}}}", root) == 0.0
    inverse = rf"\frac{{1}}{{{root}}}"
    assert score(rf"{base}^{{-{above}/{degree}}}", inverse) == 1.0
    assert score(rf"{base}^{{{above}/{degree}}}", inverse) == 0.0


def test_a_log_without_base_is_natural() -> None:
    """`\\log 3` equals one of ln 3 and log10 3; two of them are equal under either base."""
    assert score(r"\ln 3", r"\log 3") == score(r"\log 3", r"\ln 3") == 1.0
    assert score(r"\log_{10} 3", r"\log 3") == score(r"\log 3", r"\log_{10} 3") == score(r"\lg 3", r"\log 3") == 0.0
    assert score(r"1 - \log 5", r"\log 2") == score(r"\log 3", r"\log 3") == 1.0
    assert score(r"\log 100", "2", form="any") == 0.0
    assert score(r"\log e", "1", form="any") == 1.0


def test_the_form_is_an_option() -> None:
    assert score("123*456", "56088") == 0.0
    assert score("123*456", "56088", form="any") == score(r"\sqrt{16}", "4", form="any") == 1.0
    assert score("5 or 6", "5", form="any") == 0.0
    factored = "(x+1)(x+2)"
    assert score("x^2+3x+2", factored) == 1.0
    assert score("x^2+3x+2", factored, form="same") == score(factored, "x^2+3x+2", form="same") == 0.0
    assert score("(2+x)(1+x)", factored, form="same") == score("2+x*3+x^2", "x^2+3x+2", form="same") == 1.0
    assert score(r"\frac{x}{2}", r"\frac12 x", form="same") == 1.0
    with pytest.raises(ValueError, match="form 'finall' is not final, any or same"):
        math_answer("1", "1", form="finall")  # pyright: ignore[reportArgumentType]


def test_units_and_tolerance_are_options() -> None:
    assert score("18", r"\$18") == score("5", "5 km") == 0.0
    assert score("18", r"\$18", units="ignored") == score("5", "5 km", units="ignored") == 1.0
    assert score("6", "5 km", units="ignored") == 0.0
    assert score("3.14", "3.14159") == score("101", "100") == 0.0
    assert score("3.14", "3.14159", relative_tolerance=0.01) == score("101", "100", relative_tolerance=0.01) == 1.0
    assert score("0.0000004", "0.0000002", relative_tolerance=0.01) == 0.0
    assert score(r"3.14", r"\pi", relative_tolerance=0.001) == 1.0
    assert score("103", "100", relative_tolerance=0.01) == 0.0


def test_a_reference_that_cannot_be_read_is_a_missing_value() -> None:
    for reference in ("", None, "  ", r"\frac{1}{", "9^{9^9}", "x" * 5000):
        result = math_answer(r"\boxed{3}", reference)
        assert result["score"] is None, reference
        assert "the reference answer" in str(result["reason"])


def test_references_of_other_types_are_read() -> None:
    assert score("true", True) == score("0.5", 0.5) == score("7", 7) == score(r"\frac{1}{2}", Fraction(1, 2)) == 1.0
    assert score("1", True) == 0.0


def test_reasons_say_what_is_wrong() -> None:
    reasons = {
        "123*456": "it has a product that the reference lacks",
        r"\int_0^1 x": "an integral",
        "9^{9^9}": "a power of a power",
        "5 6": "'6' in this place",
        "7": "another number",
    }
    for answer, reason in reasons.items():
        assert reason in str(math_answer(f"\\boxed{{{answer}}}", "56088")["reason"])
