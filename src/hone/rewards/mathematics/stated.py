"""The answer that a completion states: its last box, its tags, or its last line without introduction and markup."""

import re
from collections.abc import Iterator

from hone.rewards.mathematics.tree import MAX_CHARS

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])\s*(?P<brace>\{)?")
_BARE = re.compile("[-+(\\\\\\d.√\u2212]|[A-Za-z](?![A-Za-z])")
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
_EMPHASIS = re.compile(r"(?<![\w)}*])([*_]{1,3})(?=[^\s*_])([^*_]*[^\s*_])\1(?![\w({*])")
_HALF_EMPHASIS = re.compile(r"(?<![\w)}])\*\*|\*\*(?![\w({])")


def has_box(text: str) -> bool:
    r"""Whether a text has a `\boxed{`, closed or not, or a `\boxed 5` without braces."""
    return any(True for _ in _boxes(text))


def last_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}`, braces balanced, or of the last `\boxed 5`; None when there is none, or
    when it is not closed. A box inside of another one is a part of it."""
    boxes = list(_boxes(text))
    return None if not boxes or boxes[-1] is None else _BOX.sub(lambda box: box["brace"] or "", boxes[-1])


def _boxes(text: str) -> Iterator[str | None]:
    """Contents of the outermost boxes; None for one that is not closed."""
    place = 0
    while match := _BOX.search(text, place):
        place = match.end()
        if match["brace"]:
            end = _closing_brace(text, place)
            yield None if end is None else text[place:end]
            place = place if end is None else end
        elif _BARE.match(text, place):
            yield _without_braces(text, match.start(), place)


def _closing_brace(text: str, begin: int) -> int | None:
    """Place of the brace that closes the one in front of `begin`; None where there is none."""
    depth, index = 0, begin
    while index < len(text):
        letter = text[index]
        if letter == "\\":
            index += 1  # an escaped brace is no bracket
        elif letter == "{":
            depth += 1
        elif letter == "}" and depth == 0:
            return index
        elif letter == "}":
            depth -= 1
        index += 1
    return None


def _without_braces(text: str, start: int, begin: int) -> str:
    r"""The content of `\boxed 5`: up to the end of the formula that it stands in, or of the word in a text."""
    before, line = text[:start].rpartition("\n")[2], text[begin:].partition("\n")[0]
    if before.count("$") % 2 and "$" in line:
        return line.partition("$")[0].strip()
    for opening, closing in ((r"\(", r"\)"), (r"\[", r"\]")):
        if before.rfind(opening) > before.rfind(closing) and closing in line:
            return line.partition(closing)[0].strip()
    depth = 0
    for place, letter in enumerate(line):
        depth += (letter in "{[(") - (letter in "}])")
        if depth < 0 or (depth == 0 and letter.isspace()):
            line = line[:place]
            break
    return line.rstrip(".,;:!?*$")


def stated_answer(text: str) -> list[str]:
    """Readings of the stated answer, the literal one first; empty for a completion that states nothing. An unclosed
    last box states nothing: the completion was cut off."""
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
    rest = _CLOSING_WORDS.sub("", _HALF_EMPHASIS.sub("", _EMPHASIS.sub(r"\2", line)))
    while (shorter := _LEAD_IN.sub("", rest, count=1).strip()) != rest and shorter:
        rest = shorter
    return [line] if rest == line else [line, rest]


def _tagged(text: str) -> str:
    """The content of `<answer>...</answer>` at the end; empty where there is none."""
    text = text.rstrip()
    if not text.lower().endswith("</answer>"):
        return ""
    begin = text.lower().rfind("<answer>")
    return text[begin + len("<answer>") : -len("</answer>")].strip() if begin >= 0 else ""
