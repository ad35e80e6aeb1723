"""Uses of collected answers: pairs, labelled answers, outcomes, answers with labelled steps, examples to imitate.

All of them choose among the answers of each prompt, in the order of their collection, and tell what they left out.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Literal, TypeAlias

import numpy as np

from hone.core.errors import DataError
from hone.text.tasks.dataset import Example, ExampleDataset, build_examples
from hone.text.tasks.scored_rows import ScoredAnswer

AnswerKind: TypeAlias = Literal["preference", "unpaired", "outcome", "stepwise", "imitation", "experience"]
"""Pairs; answers labelled 1 or 0; answers with any score; answers with labelled steps; good answers to imitate; all
answers, each once, whatever their score."""
PairRule: TypeAlias = Literal["best_worst", "all"]
"""Pairs of a prompt's answers: the best with the worst, or every two with different scores."""


def select_answers(
    collected: ExampleDataset,
    kind: AnswerKind,
    *,
    min_score: float,
    pairs: PairRule = "best_worst",
    max_per_prompt: int | None = None,
) -> ExampleDataset:
    """Examples of one kind from all collected answers.

    An answer is right from `min_score` on (`unpaired`, `imitation`). `imitation` takes right answers that ended by
    themselves, each once, and at most `max_per_prompt` for a prompt. Raises DataError when nothing is left.
    """
    scored = [replace(one, answers=_scored(one)) for one in collected]
    total, missing = _count(collected), _count(collected) - _count(scored)
    choose: dict[AnswerKind, Callable[[Example], Iterator[Example]]] = {
        "preference": lambda example: _pairs(example, pairs),
        "unpaired": lambda example: _relabelled(example, lambda score: float(score >= min_score)),
        "outcome": lambda example: _relabelled(example, float),
        "stepwise": _with_steps,
        "imitation": lambda example: _to_imitate(example, min_score, max_per_prompt),
        "experience": lambda example: _to_learn_from(example, max_per_prompt),
    }
    chosen = [one for example in scored for one in choose[kind](example)]
    notes = [f"{collected.source}: {missing} of {total} answers have no score and are left out"] if missing else []
    left = sum(1 for example in scored if not any(choose[kind](example)))
    if left:
        notes.append(f"{collected.source}: {left} of {len(collected)} prompts have {_LACKING[kind]}")
    if not chosen:
        raise DataError(*notes, f"{collected.source}: no {_WANTED[kind]} in {total} answers")
    told = f"{collected.source}: {len(chosen)} {_WANTED[kind]} from {total} answers to {len(collected)} prompts"
    notes.append(f"{told}{_passed_over(scored, min_score, len(chosen)) if kind == 'imitation' else ''}")
    dataset = build_examples(chosen, source=collected.source, warnings=[*collected.warnings, *notes])
    return replace(dataset, vocabulary=collected.vocabulary)


_WANTED: dict[AnswerKind, str] = {
    "preference": "pairs",
    "unpaired": "labelled answers",
    "outcome": "scored answers",
    "stepwise": "answers with labelled steps",
    "imitation": "answers to imitate",
    "experience": "different answers",
}
_LACKING: dict[AnswerKind, str] = {
    "preference": "one score for all answers: no pair",
    "unpaired": "no scored answer",
    "outcome": "no scored answer",
    "stepwise": "no labelled step",
    "imitation": "no right answer: unsolved",
    "experience": "no scored answer",
}


def _passed_over(examples: Sequence[Example], min_score: float, kept: int) -> str:
    """What became of the other right answers."""
    right = [one.tokens for example in examples for one in example.answers if one.score >= min_score]
    cut = sum(tokens is None or tokens.truncated for tokens in right)
    rest = len(right) - cut - kept
    return f" ({len(right)} are right; {cut} of them were cut off, {rest} are repeated or beyond the cap)"


def _count(examples: "Sequence[Example] | ExampleDataset") -> int:
    return sum(len(example.answers) for example in examples)


def _scored(example: Example) -> tuple[ScoredAnswer, ...]:
    return tuple(answer for answer in example.answers if not np.isnan(answer.score))


def _numbered(example: Example, answers: Sequence[tuple[ScoredAnswer, ...]]) -> Iterator[Example]:
    """One example for each of `answers`, with ids of their own from the second on."""
    for number, chosen in enumerate(answers, start=1):
        yield replace(example, id=example.id if number == 1 else f"{example.id}#{number}", answers=chosen)


def _pairs(example: Example, rule: PairRule) -> Iterator[Example]:
    answers = example.answers
    if not answers:
        return
    if rule == "best_worst":
        best, worst = max(answers, key=lambda one: one.score), min(answers, key=lambda one: one.score)
        found = [(best, worst)]
    else:
        found = list(product(answers, answers))
    yield from _numbered(example, [pair for pair in found if pair[0].score > pair[1].score])


def _relabelled(example: Example, label: Callable[[float], float]) -> Iterator[Example]:
    answers = tuple(replace(one, score=label(one.score)) for one in example.answers)
    yield from _numbered(example, [(one,) for one in answers])


def _with_steps(example: Example) -> Iterator[Example]:
    labelled = [one for one in example.answers if one.tokens is not None and not np.isnan(one.tokens.labels).all()]
    yield from _numbered(example, [(one,) for one in labelled])


def _to_imitate(example: Example, min_score: float, most: int | None) -> Iterator[Example]:
    right = [
        one for one in example.answers if one.score >= min_score and one.tokens is not None and not one.tokens.truncated
    ]
    yield from _numbered(example, [(one,) for one in _distinct(right)][:most])


def _to_learn_from(example: Example, most: int | None) -> Iterator[Example]:
    yield from _numbered(example, [(one,) for one in _distinct(example.answers)][:most])


def _distinct(answers: Sequence[ScoredAnswer]) -> list[ScoredAnswer]:
    """Answers that were collected as tokens, each once, in their order."""
    distinct = {one.tokens.tokens.tobytes(): one for one in reversed(answers) if one.tokens is not None}
    return list(distinct.values())[::-1]
