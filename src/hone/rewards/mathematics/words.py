"""Answers in words, compared as words and never as products of letters; choices by letter; dates and times as text."""

import re

_DATE_OR_TIME = re.compile(
    r"(?i)\d{4}-\d{1,2}-\d{1,2}|\d{1,2}/\d{1,2}/\d{2,4}|\d{1,2}\.\d{1,2}\.\d{4}|\d{1,2}:\d{2}(?::\d{2})?(?:\s*[ap]\.?\s?m\.?)?"
)
_CHOICE = re.compile(r"[A-J]|\(\s*[A-Ja-j]\s*\)")
_CHOSEN = re.compile(r"(?:\(\s*([A-Za-z])\s*\)|([A-Za-z])[).:]|([A-Za-z]))(?:\s+(\S.*))?")
_LETTERS = re.compile(r"[A-Za-z](?:[A-Za-z ]*[A-Za-z])?")
_LABEL = re.compile(r"\(\s*[A-J]\s*\)\s+(?=\S)")
_OTHER_LABEL = re.compile(r"\(\s*[A-Za-z]\s*\)|\b[A-J][).:]|\b[B-J]\b")
_HEDGE = re.compile(
    r"(?i)^[\^_*+!]|\\pm\b|\b(?:or|and|not|nor|either|neither|maybe|both|isn't|unless)\b|[,;/?=<>&|]|\\(?:lor|neg|lnot|neq)\b"
)


def word_key(text: str) -> str:
    """The words of a text: without case, and without punctuation at the ends."""
    text = re.sub(r"(?i)\b([ap])\.\s?m\b\.?", r"\1m", text.casefold())
    text = re.sub(r"(?<=\d)(?=[^\W\d])", " ", text)
    text = re.sub(r"\s*([:,;/-])\s*", r"\1", text)
    return " ".join(text.split()).strip(" .!\"'")


def same_letters(reference: str, given: str) -> bool | None:
    """Whether two runs of letters are the same word; None when one is no such run. `ab` is not `ba`, nor `no` `on`."""
    if not _LETTERS.fullmatch(reference) or not _LETTERS.fullmatch(given) or len(reference) == 1:
        return None
    return reference.replace(" ", "").casefold() == given.replace(" ", "").casefold()


def is_constant(text: str) -> bool:
    """Whether letters name a constant: `pi`, `inf`, `infinity`."""
    return text.casefold() in ("pi", "inf", "infinity", "infty")


def is_words(text: str) -> bool:
    """Whether a text without a mathematical value has no LaTeX, and so is compared as text."""
    return "\\" not in text and any(letter.isalnum() for letter in text)


def is_date_or_time(text: str) -> bool:
    """Whether a text is a date, a time or a ratio, not a difference or quotient."""
    return _DATE_OR_TIME.fullmatch(text) is not None


def choice_letter(reference: str) -> str:
    """The letter of a reference that names a choice, `B` or `(B)`; empty for any other reference."""
    return reference.strip("() ").upper() if _CHOICE.fullmatch(reference) else ""


def same_choice(letter: str, given: str) -> bool:
    """Whether an answer chooses this letter, and no second one: `B`, `(b)`, `B. Paris`."""
    match = _CHOSEN.fullmatch(given)
    if match is None:
        return False
    bracketed, marked, bare, rest = match.groups()
    chosen = bracketed or marked or bare
    if chosen.upper() != letter or (bare and rest):
        return False
    return rest is None or (_HEDGE.search(rest) is None and _OTHER_LABEL.search(rest) is None)


def without_label(given: str) -> str:
    """An answer without the label of a choice before it: `(B) 42` is 42."""
    return _LABEL.sub("", given, count=1) if _LABEL.match(given) else given
