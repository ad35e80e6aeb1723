"""Checks of preference data before a run: what a loss on them would learn that nobody meant, as warnings of the plan.

Belongs here: what the rows say of each other (contradictions, sides that hardly differ, one label only). Does not:
whether a row can be read (`text.tasks.scored_rows`), nor how it becomes tokens.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from hone.text.open_text import TextInputs
from hone.text.tasks.collection import AnswerKind
from hone.text.tasks.dataset import Example, prompt_key
from hone.text.tasks.scored_rows import PromptContent

ROWS_SHOWN: Final = 5
NEAR_EQUAL: Final = 0.02
"""Share of its characters in which the longer side of a pair differs from the other at most to count as near-equal."""
NEAR_TIE: Final = 0.01
"""Share of the widest margin up to which the scores of a pair count as a near tie."""
LENGTH_PAIRS: Final = 50
"""Fewest pairs of which lengths are judged."""
LENGTH_SHARE: Final = 0.9
"""Share of pairs in which one side is the longer one, from which on length alone tells them apart."""
RARE_LABEL: Final = 0.1
"""Share below which a label counts as rare."""


def data_warnings(inputs: TextInputs[Any], kind: AnswerKind) -> list[str]:
    """What speaks against learning from a run's answers, one line for each finding, with its rows; nothing where an
    earlier stage is yet to collect them.

    `kind` is what the recipe learns from: `preference` (pairs), `unpaired` (good or bad), `outcome` (any score) or
    `stepwise` (labelled steps).
    """
    if inputs.waits_for_answers:
        return []
    lines = [line for check in _CHECKS.get(kind, ()) for line in check(inputs.examples.rows)]
    return [f"{inputs.examples.source}: {line}" for line in lines]


# ---------------------------------------------------------------------------------------------------------------- pairs


def _contradictions(rows: Sequence[Example]) -> Iterable[str]:
    """Rows that prefer in a circle: a over b and b over a, or a over b over c over a, to one prompt."""
    by_prompt: defaultdict[str, list[tuple[str, str, int]]] = defaultdict(list)
    for pair in _pairs(rows):
        better, worse = pair.answers
        edge = (_answer_key(better.content), _answer_key(worse.content), pair.row)
        by_prompt[prompt_key(pair.prompt)].append(edge)
    circular = [row for edges in by_prompt.values() for row in _circular(edges)]
    if circular:
        yield (
            f"{len(circular)} of {len(rows)} pairs contradict each other: {_shown(sorted(circular))}. To one prompt, "
            "they prefer an answer to another and, directly or through others, the other to it; their gradients work "
            "against each other. Keep the right ones"
        )


def _circular(edges: Sequence[tuple[str, str, int]]) -> list[int]:
    """Rows of the edges (better, worse, row) that lie on a circle."""
    while True:  # an answer that nothing beats, or that beats nothing, is on no circle
        beating, beaten = {one for one, _, _ in edges}, {one for _, one, _ in edges}
        kept = [edge for edge in edges if edge[0] in beaten and edge[1] in beating]
        if len(kept) == len(edges):
            break
        edges = kept
    below: defaultdict[str, set[str]] = defaultdict(set)
    for better, worse, _ in edges:
        below[better].add(worse)
    return [row for better, worse, row in edges if better in _reached(worse, below)]


def _reached(start: str, below: Mapping[str, set[str]]) -> set[str]:
    """The answers that lie below `start`, itself among them."""
    seen, waiting = {start}, [start]
    while waiting:
        fresh = below.get(waiting.pop(), set()) - seen
        seen |= fresh
        waiting += fresh
    return seen


def _near_equal(rows: Sequence[Example]) -> Iterable[str]:
    """Pairs whose sides say the same, or nearly."""
    spelling: list[int] = []
    few: list[int] = []
    for pair in _pairs(rows):
        one, other = (_text(answer.content) for answer in pair.answers)
        if _spoken(one) == _spoken(other):
            spelling.append(pair.row)
            continue
        begin = _shared(one, other)
        end = _shared(one[begin:][::-1], other[begin:][::-1])
        longer = max(len(one), len(other))
        if longer - begin - end <= NEAR_EQUAL * longer:
            few.append(pair.row)
    if spelling:
        yield (
            f"the sides of {len(spelling)} of {len(rows)} pairs differ only in case, spaces, quotes or a final stop: "
            f"{_shown(spelling)}. The loss raises and lowers the same words; leave them out unless spelling is meant"
        )
    if few:
        yield (
            f"the sides of {len(few)} of {len(rows)} pairs differ in at most {NEAR_EQUAL:.0%} of their characters: "
            f"{_shown(few)}. Their shared tokens cancel in the margin, and losses such as DPO then lower the "
            "probability of both sides; see that the difference is the one you mean, or hold the chosen side up "
            '(recipe = "rpo")'
        )


def _near_ties(rows: Sequence[Example]) -> Iterable[str]:
    """Pairs whose scores are nearly equal, where the data have scores."""
    margins = {pair.row: abs(pair.answers[0].score - pair.answers[1].score) for pair in _pairs(rows)}
    widest = max(margins.values(), default=0.0)
    near = [row for row, margin in margins.items() if margin <= NEAR_TIE * widest]
    if near:
        yield (
            f"{len(near)} of {len(rows)} pairs are near ties, with scores within {NEAR_TIE:.0%} of the widest margin "
            f"({widest:g}): {_shown(near)}. A loss without margins learns them like any other; leave them out, or take "
            "one that reads the scores"
        )


def _length_bias(rows: Sequence[Example]) -> Iterable[str]:
    """Data in which one side is nearly always the longer one."""
    lengths = [tuple(len(_text(answer.content)) for answer in pair.answers) for pair in _pairs(rows)]
    if len(lengths) < LENGTH_PAIRS:
        return
    chosen, rejected = (sum(column) / len(lengths) for column in zip(*lengths, strict=True))
    for side, share in (
        ("chosen", sum(one > other for one, other in lengths) / len(lengths)),
        ("rejected", sum(one < other for one, other in lengths) / len(lengths)),
    ):
        if share >= LENGTH_SHARE:
            yield (
                f"the {side} side is the longer one in {share:.0%} of {len(lengths)} pairs (mean {chosen:.0f} "
                f"characters chosen, {rejected:.0f} rejected): the loss can be met by length alone. Balance the "
                "lengths, or take a loss that is normalised by length (algorithm.length_normalised, simpo)"
            )


# --------------------------------------------------------------------------------------------------- labelled answers


def _one_label(rows: Sequence[Example]) -> Iterable[str]:
    """Data in which all answers have one label, or nearly all."""
    labels = [answer.score for row in rows for answer in row.answers]
    good = sum(score > 0 for score in labels)
    rare, count = min((("good", good), ("bad", len(labels) - good)), key=lambda one: one[1])
    if count == 0:
        other = "bad" if rare == "good" else "good"
        instead = 'imitate them (recipe = "sft")' if other == "good" else "add answers that are better"
        yield (
            f"all {len(labels)} answers are labelled {other}, none {rare}: there is nothing to tell them from, so that "
            f"the loss only moves all of them one way until it is saturated; add {rare} answers, or {instead}"
        )
    elif count < RARE_LABEL * len(labels):
        yield (
            f"{count} of {len(labels)} answers are labelled {rare} ({count / len(labels):.1%}): the others outweigh "
            f"them {(len(labels) - count) / count:.0f} to 1; the weights of the loss (kto: algorithm.loss."
            "desirable_weight, undesirable_weight) can balance them"
        )


def _both_labels(rows: Sequence[Example]) -> Iterable[str]:
    """Answers that are labelled more than one way."""
    by_answer: defaultdict[tuple[str, str], dict[float, int]] = defaultdict(dict)
    for row in rows:
        for answer in row.answers:
            by_answer[prompt_key(row.prompt), _answer_key(answer.content)].setdefault(answer.score, row.row)
    torn = [sorted(labels.values()) for labels in by_answer.values() if len(labels) > 1]
    if torn:
        places = "; ".join(" and ".join(map(str, numbers)) for numbers in torn[:ROWS_SHOWN])
        yield (
            f"{len(torn)} answers have two labels: rows {places}{'; ...' if len(torn) > ROWS_SHOWN else ''}. To one "
            "prompt, the same answer counts as good and as bad; keep the right label"
        )


def _one_value(rows: Sequence[Example]) -> Iterable[str]:
    """Data in which all answers have one score, or all steps one label."""
    answers = [answer for row in rows for answer in row.answers]
    steps = {label for answer in answers for label in answer.labels}
    values = steps or {answer.score for answer in answers}
    if len(values) == 1:
        what = "steps have the label" if steps else "answers have the score"
        yield f"all {what} {values.pop():g}: a model learns a constant from them"


# ----------------------------------------------------------------------------------------------------------------- text


_CHECKS: Final[Mapping[str, Sequence[Callable[[Sequence[Example]], Iterable[str]]]]] = {
    "preference": (_contradictions, _near_equal, _near_ties, _length_bias),
    "unpaired": (_one_label, _both_labels),
    "outcome": (_one_value, _both_labels),
    "stepwise": (_one_value,),
}


def _pairs(rows: Sequence[Example]) -> list[Example]:
    """The rows of two answers."""
    return [row for row in rows if len(row.answers) == 2]


def _shown(rows: Sequence[int]) -> str:
    """Row numbers, the first few."""
    more = ", ..." if len(rows) > ROWS_SHOWN else ""
    return f"row{'s' if len(rows) > 1 else ''} {', '.join(map(str, rows[:ROWS_SHOWN]))}{more}"


def _text(content: PromptContent) -> str:
    """The text of an answer; of messages their contents, and calls of tools as JSON."""
    if isinstance(content, str):
        return content
    turns = [str(turn.get("content") or "") + json.dumps(turn.get("tool_calls", ""), default=str) for turn in content]
    return "\n".join(turns)


def _shared(one: str, other: str) -> int:
    """Characters with which both texts begin."""
    size = min(len(one), len(other))
    codes = [np.frombuffer(text[:size].encode("utf-32-le", "surrogatepass"), np.uint32) for text in (one, other)]
    differ = np.flatnonzero(codes[0] != codes[1])
    return int(differ[0]) if len(differ) else size


def _answer_key(content: PromptContent) -> str:
    """Key by which answers are compared: their text, spaces and case aside."""
    return " ".join(_text(content).split()).casefold()


def _spoken(text: str) -> str:
    """The text as it would be read out: without case, spaces, quotes, emphasis and a final stop."""
    return re.sub(r"[\s\"'`*_\u2018-\u201f]+", "", text.casefold()).rstrip(".!,;:")
