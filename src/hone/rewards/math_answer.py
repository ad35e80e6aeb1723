"""Mathematical equality of an answer and a reference. Imported by workers only: math-verify takes a second to import.

An answer is one value in final form. It is compared as text, as a plain number, and as a tree
(`hone.rewards.mathematics`), behind limits of length, nesting and size. math-verify reads the references that the
grammar does not.

An answer beyond the limits scores 0 with its reason: were it a missing value, a policy could buy itself out of every
hard problem. A *reference* that cannot be read is a missing value: the policy has no say in it.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Literal

from math_verify import parse, verify

from hone.rewards.functions import completion_text, extract_answer
from hone.rewards.mathematics.equality import EqualityRules, same_answer
from hone.rewards.mathematics.final_form import lacks
from hone.rewards.mathematics.grammar import parse_answer
from hone.rewards.mathematics.spelling import one_spelling
from hone.rewards.mathematics.stated import (
    choice_letter,
    has_box,
    is_constant,
    is_date_or_time,
    is_words,
    last_boxed,
    same_choice,
    same_letters,
    stated_answer,
    without_label,
    word_key,
)
from hone.rewards.mathematics.tokens import read_number, tokens_of
from hone.rewards.mathematics.tree import MAX_CHARS, MathNode, MathSyntaxError, why_too_large

_ALARM_S = 3

_PLAIN_NUMBER = re.compile(r"[+-]?\d{1,200}(?:\.\d{1,200})?", re.ASCII)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_UNDONE = re.compile(r"\\(?:i*int|oint|sum|prod|lim|det|max|min|gcd|b?mod|pmod)(?![A-Za-z])")
_COMMANDS = re.compile(r"\\[A-Za-z]+")
_RIGHT: dict[str, object] = {"score": 1.0, "reason": ""}


def math_answer(
    completion: object,
    answer: object,
    pattern: str = "",
    form: Literal["final", "any", "same"] = "final",
    units: Literal["kept", "ignored"] = "kept",
    relative_tolerance: float = 0.0,
) -> dict[str, object]:
    """`{"score", "reason"}`: 1.0 when the completion's answer is the value of the column `answer`, else 0.0.

    The answer is the last `\\boxed{...}`; what `extract_answer(completion, pattern)` finds where a pattern is given;
    the last line, without words such as "the answer is", where nothing is boxed.

    `form`: with `final` an answer has no undone operation (`123*456`, `\\sqrt{16}`) unless the reference has one of
    this kind; `any` accepts every expression of equal value; `same` wants the reference's expression up to the order
    of terms and factors. `units = "ignored"` accepts an answer without the reference's unit. `relative_tolerance`
    accepts numbers this close to the reference. The score is None when the reference itself cannot be read.

    Raises ValueError for an unknown option.
    """
    rules = _rules(form, units, relative_tolerance)
    text, gold = completion_text(completion), _reference_text(answer)
    if not gold:
        return _missing("the reference answer is empty")
    if reason := why_too_large(gold):
        return _missing(f"the reference answer is refused: {reason}")
    if pattern:
        found = extract_answer(text, pattern)
        readings = stated_answer(found) if has_box(found) else [found] if found else []
    else:
        readings = stated_answer(text)
    if not readings:
        return _wrong("no answer found")
    results = [_compare(gold, reading, rules) for reading in readings]
    return next((result for result in results if result["score"] == 1.0), results[-1])


@lru_cache(maxsize=64)
def _rules(form: str, units: str, relative_tolerance: float) -> EqualityRules:
    """The options, checked. Raises ValueError with all faults."""
    faults = [
        fault
        for fault, present in (
            (f"form {form!r} is not final, any or same", form not in ("final", "any", "same")),
            (f"units {units!r} is not kept or ignored", units not in ("kept", "ignored")),
            (f"relative_tolerance {relative_tolerance!r} is no number in [0, 1)", not _is_share(relative_tolerance)),
        )
        if present
    ]
    if faults:
        raise ValueError(f"options of math_answer: {'; '.join(faults)}")
    return EqualityRules(
        ignore_units=units == "ignored",
        relative_tolerance=relative_tolerance,
        same_form=form == "same",
        any_form=form != "final",
    )


def _is_share(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1


def _missing(reason: str) -> dict[str, object]:
    return {"score": None, "reason": reason}


def _wrong(reason: str) -> dict[str, object]:
    return {"score": 0.0, "reason": reason}


def _reference_text(answer: object) -> str:
    """The reference in one spelling: the content of its box, or what follows `####` as in GSM8K."""
    if answer is None:
        return ""
    text = str(answer)
    if _PLAIN_NUMBER.fullmatch(text) or len(text) > MAX_CHARS:
        return text
    return _spelled_reference(text)


@lru_cache(maxsize=4096)
def _spelled_reference(text: str) -> str:
    boxed = last_boxed(text)
    if boxed is None and "####" in text:
        boxed = text.rpartition("####")[2]
    return one_spelling(text if boxed is None else boxed)


def _compare(gold: str, reading: str, rules: EqualityRules) -> dict[str, object]:
    """Score of a reading of the answer; the reference is in one spelling."""
    if len(reading) > MAX_CHARS:
        return _wrong(f"the answer is refused: {why_too_large(reading)}")
    given = reading if _PLAIN_NUMBER.fullmatch(reading) else one_spelling(reading)
    if not given:
        return _wrong("no answer found")
    same = _same_text_or_number(gold, given)
    if same is not None and not (rules.relative_tolerance and not same):
        return _RIGHT if same else _wrong("another number")
    if letter := choice_letter(gold):
        return _RIGHT if same_choice(letter, given) else _wrong(f"not the choice {letter}")
    if reason := why_too_large(given):
        return _wrong(f"the answer is refused: {reason}")
    try:
        return _compare_values(gold, without_label(given), rules)
    except RecursionError:
        return _wrong("the answer is refused: too deeply nested")


def _compare_values(gold: str, given: str, rules: EqualityRules) -> dict[str, object]:
    """Score of an answer within the limits that is not the reference's text."""
    wanted = _tree(gold)
    if isinstance(wanted, str):
        if is_words(gold):
            return _RIGHT if word_key(gold) == word_key(given) else _wrong("other words")
        if _UNDONE.search(gold):
            return _by_math_verify(gold, given)
        if _same_tokens(gold, given):
            return _RIGHT
        return _missing(f"the reference answer cannot be read: {gold[:80]}: {wanted}")
    if same_letters(gold, given) is False and not is_constant(gold):
        return _wrong("other letters")
    answer = _tree(_with_decimal_point(given, gold))
    if isinstance(answer, str):
        return _wrong(f"not a value in final form: {answer}")
    if not rules.any_form and (undone := lacks(answer, wanted)):
        return _wrong(f"not in final form: it has a {min(undone)} that the reference lacks")
    return _RIGHT if same_answer(wanted, answer, rules) else _wrong("another value")


def _same_text_or_number(gold: str, given: str) -> bool | None:
    """Equality of texts or of plain numbers. None when neither decides."""
    if gold == given:
        return True
    if not (_PLAIN_NUMBER.fullmatch(gold) and _PLAIN_NUMBER.fullmatch(given)):
        return None
    if Fraction(gold) == Fraction(given):
        return True
    return None if "." in gold and read_number(gold).digits else False


def _with_decimal_point(given: str, gold: str) -> str:
    """`3,14` as 3.14 where the reference is a decimal: nobody answers a decimal with two numbers."""
    if "." in gold and _PLAIN_NUMBER.fullmatch(gold) and _DECIMAL_COMMA.fullmatch(given):
        whole, _, rest = given.partition(",")
        return given if len(rest) == 3 else f"{whole}.{rest}"
    return given


@lru_cache(maxsize=4096)
def _tree(text: str) -> MathNode | str:
    """The value of a text, or the reason why it has none."""
    if is_date_or_time(text):
        return "a date or time"
    try:
        return parse_answer(text)
    except MathSyntaxError as error:
        return str(error)


def _same_tokens(gold: str, given: str) -> bool:
    """Whether two texts differ in spaces only."""
    try:
        return [token.text for token in tokens_of(gold)] == [token.text for token in tokens_of(given)]
    except MathSyntaxError:
        return False


def _by_math_verify(gold: str, given: str) -> dict[str, object]:
    """math-verify's judgement, for a reference that the grammar does not read.

    The answer must be a value in final form, or use no command that the reference does not.
    """
    wanted = parse(f"${gold}$", parsing_timeout=_ALARM_S, fallback_mode="no_fallback")
    if not wanted:
        return _missing(f"the reference answer cannot be read: {gold[:80]}")
    answer = _tree(given)
    if isinstance(answer, str) and not set(_COMMANDS.findall(given)) <= set(_COMMANDS.findall(gold)):
        return _wrong(f"not a value in final form: {answer}")
    found = parse(f"${given}$", parsing_timeout=_ALARM_S, fallback_mode="no_fallback")
    if not found:
        return _wrong("the answer cannot be read as mathematics")
    return {"score": float(verify(wanted, found, timeout_seconds=_ALARM_S)), "reason": ""}
