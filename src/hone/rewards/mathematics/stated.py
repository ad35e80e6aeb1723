"""The answer that a completion states: in the last box, between tags, or on the last line."""

import re

from hone.rewards.mathematics.tree import MAX_CHARS

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*\{")
_LEAD_IN = re.compile(
    r"""(?ix) ^ (?: \s* (?:
        [#]{2,} | [*:,=]+
        | so | thus | therefore | hence | then | and\ so | finally | (?:we|i)\ (?:get|have|find|obtain)
        | (?:which|that|this)\ gives | it\ (?:is|equals)
        | (?:the|my|our)? \s* (?:final|correct|right|required|desired)? \s*
          (?:answer|ans|result|solution|value|total|option|choice) (?: \s of \s \$? [a-z] \$? )?
          \s* (?: : | = | (?:is|equals) (?: \s (?:therefore|thus|then|option|choice) )? | \b)
        | is \b (?= \s* : )
    ) (?![A-Za-z]) )+ \s* """
)
_CLOSING_WORDS = re.compile(r"(?i)\.?\s*I hope (?:it|this) is correct\.?$")
_EMPHASIS = re.compile(r"(?<![\w)}])\*\*|\*\*(?![\w({])")


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}`, braces balanced; None when there is none, or when it is not closed."""
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return None
    begin = boxes[-1].end()
    depth, index = 0, begin
    while index < len(text):
        letter = text[index]
        if letter == "\\":
            index += 1  # an escaped brace is no bracket
        elif letter == "{":
            depth += 1
        elif letter == "}" and depth == 0:
            return text[begin:index]
        elif letter == "}":
            depth -= 1
        index += 1
    return None


def has_box(text: str) -> bool:
    """Whether a box begins in the text."""
    return _BOX.search(text) is not None


def _tagged(text: str) -> str:
    """The content of `<answer>...</answer>` at the end; empty where there is none."""
    text = text.rstrip()
    if not text.lower().endswith("</answer>"):
        return ""
    begin = text.lower().rfind("<answer>")
    return text[begin + len("<answer>") : -len("</answer>")].strip() if begin >= 0 else ""


def stated_answer(text: str) -> list[str]:
    """Readings of the stated answer, the literal one first; empty for a completion that states nothing.

    An unclosed last box states nothing: the completion was cut off.
    """
    boxed = last_boxed(text)
    if boxed is not None:
        return [boxed.strip()] if boxed.strip() else []
    if has_box(text):
        return []
    line = _tagged(text) or text.strip().rpartition("\n")[2].strip()
    if not line:
        return []
    if len(line) > MAX_CHARS:
        return [line]
    rest = _CLOSING_WORDS.sub("", _EMPHASIS.sub("", line))
    while (shorter := _LEAD_IN.sub("", rest, count=1).strip()) != rest and shorter:
        rest = shorter
    return [line] if rest == line else [line, rest]


# ---------------------------------------------------------------------------------------------------------------- words


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
