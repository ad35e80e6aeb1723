"""The answer that a completion states: in the last box, between tags, or on the last line."""

import re

from hone.rewards.mathematics.limits import MAX_CHARS

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
