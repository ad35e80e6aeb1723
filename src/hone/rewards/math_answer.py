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

from hone.rewards.functions import completion_text, extract_answer, word_key
from hone.rewards.mathematics.conventions import pieces_of, same_pieces
from hone.rewards.mathematics.equality import EqualityRules, same_answer
from hone.rewards.mathematics.final_form import lacks
from hone.rewards.mathematics.grammar import parse_answer
from hone.rewards.mathematics.readings import further_readings, same_times
from hone.rewards.mathematics.spelling import number_in_words, one_spelling
from hone.rewards.mathematics.stated import has_box, last_boxed, stated_answer
from hone.rewards.mathematics.tokens import read_number, tokens_of
from hone.rewards.mathematics.tree import MAX_CHARS, MAX_DIGITS, MathNode, MathSyntaxError, why_too_large

_ALARM_S = 3

_PLAIN_NUMBER = re.compile(r"[+-]?\d{1,200}(?:\.\d{1,200})?", re.ASCII)
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_UNDONE = re.compile(r"\\(?:i*int|oint|sum|prod|lim|det|max|min|gcd|b?mod|pmod)(?![A-Za-z])")
_INDEX = re.compile(r"\\(?:sum|prod)\s*_\s*\{?\s*([a-z])\s*=")
_FACTORIAL_OF_BRACKETS = re.compile(r"[)}\]]\s*!")
_COMMANDS = re.compile(r"\\[A-Za-z]+")
_RIGHT: dict[str, object] = {"score": 1.0, "reason": ""}
_DATE_OR_TIME = re.compile(
    r"(?i)\d{4}-\d{1,2}-\d{1,2}|\d{1,2}/\d{1,2}/\d{2,4}|\d{1,2}\.\d{1,2}\.\d{4}|\d{1,2}:\d{2}(?::\d{2})?(?:\s*[ap]\.?\s?m\.?)?"
)
_CHOICE = re.compile(r"[A-J]|\(\s*[A-Ja-j]\s*\)")
_CHOSEN = re.compile(
    r"(?:(?i:the )?(?i:correct )?(?i:option|choice|answer)(?i: is|:)? )?"
    r"(?:\(\s*([A-Za-z])\s*\)|([A-Za-z])[).:]|([A-Za-z]))(?:\s+(\S.*))?"
)
_LETTERS = re.compile(r"[A-Za-z](?:[A-Za-z ]*[A-Za-z])?")
_LABEL = re.compile(r"\(\s*[A-J]\s*\)\s+(?=\S)")
_OTHER_LABEL = re.compile(r"\(\s*[A-Za-z]\s*\)|\b[A-J][).:]|\b[B-J]\b")
_HEDGE = re.compile(
    r"(?i)^[\^_*+!]|\\pm\b|\b(?:or|and|not|nor|either|neither|maybe|both|isn't|unless)\b|[,;/?=<>&|]|\\(?:lor|neg|lnot|neq)\b"
)


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
    text, gold = completion_text(completion), "" if answer is None else str(answer)
    if not _PLAIN_NUMBER.fullmatch(gold) and len(gold) <= MAX_CHARS:
        gold = _spelled_reference(gold)
    if not gold:
        return _missing("the reference answer is empty")
    if reason := why_too_large(gold):
        return _missing(f"the reference answer is refused: {reason}")
    if pattern:
        extracted = extract_answer(text, pattern)
        readings = stated_answer(extracted) if has_box(extracted) else [extracted] if extracted else []
    else:
        readings = stated_answer(text)
    if not readings:
        return _wrong("no answer found")
    results = [_compare(gold, reading, rules) for reading in readings]
    return next((result for result in results if result["score"] == 1.0), results[-1])


@lru_cache(maxsize=64)
def _rules(form: str, units: str, relative_tolerance: float) -> EqualityRules:
    """The options, checked. Raises ValueError with all faults."""
    number = isinstance(relative_tolerance, int | float) and not isinstance(relative_tolerance, bool)
    faults = [f"form {form!r} is not final, any or same"] * (form not in ("final", "any", "same"))
    faults += [f"units {units!r} is not kept or ignored"] * (units not in ("kept", "ignored"))
    if not number or not 0 <= relative_tolerance < 1:
        faults.append(f"relative_tolerance {relative_tolerance!r} is no number in [0, 1)")
    if faults:
        raise ValueError(f"options of math_answer: {'; '.join(faults)}")
    return EqualityRules(
        ignore_units=units == "ignored",
        relative_tolerance=relative_tolerance,
        same_form=form == "same",
        any_form=form != "final",
    )


def _missing(reason: str) -> dict[str, object]:
    return {"score": None, "reason": reason}


def _wrong(reason: str) -> dict[str, object]:
    return {"score": 0.0, "reason": reason}


@lru_cache(maxsize=4096)
def _spelled_reference(text: str) -> str:
    """The reference in one spelling: the content of its box, or what follows `####` as in GSM8K."""
    boxed = last_boxed(text)
    if boxed is None and "####" in text:
        boxed = text.rpartition("####")[2]
    return one_spelling(text if boxed is None else boxed)


def _compare(gold: str, reading: str, rules: EqualityRules) -> dict[str, object]:
    """Score of a reading of the answer; the reference is in one spelling."""
    if len(reading) > MAX_CHARS:
        return _wrong(f"the answer is refused: {why_too_large(reading)}")
    answer = reading if _PLAIN_NUMBER.fullmatch(reading) else one_spelling(reading)
    if not answer:
        return _wrong("no answer found")
    same = _same_text_or_number(gold, answer)
    if same is not None and not (rules.relative_tolerance and not same):
        return _RIGHT if same else _wrong("another number")
    wanted, counted = _whole_number(gold), _whole_number(answer)
    if wanted is not None and counted is not None and not (gold.isdecimal() and answer.isdecimal()):
        return _RIGHT if wanted == counted else _wrong("another number")
    if _CHOICE.fullmatch(gold):
        letter = gold.strip("() ").upper()
        return _RIGHT if _chooses(answer, letter) else _wrong(f"not the choice {letter}")
    if option := _LABEL.match(gold):  # an option of a test with its value: (C) 12
        letter, value = gold[1 : gold.index(")")].strip(), gold[option.end() :]
        chosen = _CHOSEN.fullmatch(answer)
        if chosen and any(part and part.upper() == letter for part in chosen.groups()[:3]):
            return _compare(value, chosen[4], rules) if chosen[4] else _RIGHT
        return _wrong(f"not the choice {letter}") if _LABEL.match(answer) else _compare(value, answer, rules)
    if reason := why_too_large(answer):
        return _wrong(f"the answer is refused: {reason}")
    label = _LABEL.match(answer)
    try:
        return _compare_readings(gold, answer[label.end() :] if label else answer, rules)
    except RecursionError:
        return _wrong("the answer is refused: too deeply nested")


def _compare_readings(gold: str, given: str, rules: EqualityRules) -> dict[str, object]:
    """Score of an answer as it is written, by cases, as a time or ratio, or by a further reading of it."""
    if (pieces := pieces_of(gold)) is not None:
        others = pieces_of(given)
        same = others is not None and same_pieces(
            pieces, others, lambda one, other: _compare_values(one, other, rules)["score"] == 1.0
        )
        return _RIGHT if same else _wrong("other cases")
    if (same := same_times(gold, given)) is not None:
        return _RIGHT if same else _wrong("another time")
    first = _compare_values(gold, given, rules)
    if first["score"] != 0.0 or rules.same_form:
        return first
    results = (_compare_values(gold, other, rules) for other in further_readings(given, gold, _tree(gold)))
    return next((result for result in results if result["score"] == 1.0), first)


def _whole_number(text: str) -> Fraction | None:
    """The value of a whole number in digits, or of a number in words."""
    digits = text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS
    return Fraction(int(text)) if digits else number_in_words(text)


def _chooses(given: str, letter: str) -> bool:
    """Whether an answer chooses this letter, and no second one: `B`, `(b)`, `B. Paris`."""
    match = _CHOSEN.fullmatch(given)
    if match is None:
        return False
    bracketed, marked, bare, rest = match.groups()
    chosen = bracketed or marked or bare
    if chosen.upper() != letter or (bare and rest):
        return False
    return rest is None or (_HEDGE.search(rest) is None and _OTHER_LABEL.search(rest) is None)


def _compare_values(gold: str, given: str, rules: EqualityRules) -> dict[str, object]:
    """Score of an answer within the limits that is not the reference's text."""
    wanted = _tree(gold)
    if isinstance(wanted, str):
        if "\\" not in gold and any(letter.isalnum() for letter in gold):  # words
            return _RIGHT if word_key(gold) == word_key(given) else _wrong("other words")
        if _UNDONE.search(gold):
            return _by_math_verify(gold, given)
        if _same_tokens(gold, given):
            return _RIGHT
        return _missing(f"the reference answer cannot be read: {gold[:80]}: {wanted}")
    words = [text.replace(" ", "").casefold() for text in (gold, given) if _LETTERS.fullmatch(text)]
    if len(set(words)) == 2 and len(gold) > 1 and gold.casefold() not in ("pi", "inf", "infinity", "infty"):
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
    if _DATE_OR_TIME.fullmatch(text):  # not a difference or quotient
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
    """math-verify's judgement, for a reference that the grammar does not read. The answer must be a value in final
    form, or use no command that the reference does not."""
    unreadable = f"the reference answer cannot be read: {gold[:80]}"
    if _FACTORIAL_OF_BRACKETS.search(gold):  # sympy would multiply it out
        return _missing(unreadable)
    if _FACTORIAL_OF_BRACKETS.search(given):
        return _wrong("the answer is refused: a factorial of an expression")
    wanted = parse(f"${gold}$", parsing_timeout=_ALARM_S, fallback_mode="no_fallback")
    if not wanted:
        return _missing(unreadable)
    text = given
    named, index = _INDEX.search(gold), _INDEX.search(given)
    if named and index and not re.search(rf"(?<![A-Za-z\\]){named[1]}(?![A-Za-z])", given):
        # The reference's name for the index of a sum
        text = re.sub(rf"(?<![A-Za-z\\]){index[1]}(?![A-Za-z])", named[1], given)
    answer = _tree(text)
    if isinstance(answer, str) and not set(_COMMANDS.findall(text)) <= set(_COMMANDS.findall(gold)):
        return _wrong(f"not a value in final form: {answer}")
    parsed = parse(f"${text}$", parsing_timeout=_ALARM_S, fallback_mode="no_fallback")
    if not parsed:
        return _wrong("the answer cannot be read as mathematics")
    return {"score": float(verify(wanted, parsed, timeout_seconds=_ALARM_S)), "reason": ""}
