"""Numbers that a scorer gives to held-out answers, beside their labels."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hone.core.conversation import text_after_prompt
from hone.core.episodes import Episodes
from hone.core.ragged import Ints
from hone.credit.grouping import episode_ends
from hone.models.language.scalar_head import TokenScorer
from hone.rewards.answers import extract_answer
from hone.text.evaluate.scorer_selection import HeldOutKind, HeldOutScores


def held_out_scores(
    scorer: TokenScorer,
    episodes: Episodes,
    *,
    kind: HeldOutKind,
    answer_pattern: str,
    micro_batch_tokens: int,
) -> HeldOutScores:
    """Ask the scorer about every labelled token of the answers: the last one, or the last of each step."""
    seen = episodes.transcript
    marks = ~np.isnan(episodes.reward) if kind == "steps" else episode_ends(episodes)
    owner = episodes.owner[marks]
    logits = labelled_scores(scorer, episodes.keep_decisions(marks), micro_batch_tokens=micro_batch_tokens)
    weakest = np.full(len(episodes), np.inf)
    np.minimum.at(weakest, owner, logits)
    texts = [text for text, _ in text_after_prompt(episodes, scorer.tokenizer.decode)]
    return HeldOutScores(
        kind=kind,
        logits=logits,
        labels=(episodes.reward[marks] if kind == "steps" else episodes.score).astype(np.float64),
        values=weakest,
        truth=episodes.score,
        lengths=np.diff(seen.offsets) - _prompt_lengths(episodes),
        group=episodes.group,
        prompt=_prompt_numbers(episodes),
        final_answers=[extract_answer(text, answer_pattern) for text in texts],
    )


def scores_of_answers(
    values: NDArray[np.float64],
    episodes: Episodes,
    *,
    decode: Callable[[NDArray[np.int32]], str],
    answer_pattern: str,
) -> HeldOutScores:
    """Logits `[E]` of whole answers, beside their labels."""
    texts = [text for text, _ in text_after_prompt(episodes, decode)]
    return HeldOutScores(
        kind="outcomes",
        logits=values,
        labels=episodes.score,
        values=values,
        truth=episodes.score,
        lengths=np.diff(episodes.transcript.offsets) - _prompt_lengths(episodes),
        group=episodes.group,
        prompt=_prompt_numbers(episodes),
        final_answers=[extract_answer(text, answer_pattern) for text in texts],
    )


def labelled_scores(scorer: TokenScorer, episodes: Episodes, *, micro_batch_tokens: int) -> NDArray[np.float64]:
    """`[N]` number of the scorer at the token of every decision."""
    seen = episodes.transcript
    places = np.split(seen.at - seen.offsets[:-1][episodes.owner], episodes.offsets[1:-1])
    sequences = np.split(seen.tokens, seen.offsets[1:-1])
    return scorer.model.score_tokens(sequences, places, micro_batch_tokens=micro_batch_tokens)


def _prompt_lengths(episodes: Episodes) -> Ints:
    """`[E]` tokens before the first decision of each answer."""
    seen = episodes.transcript
    return seen.at[episodes.offsets[:-1]] - seen.offsets[:-1]


def _prompt_numbers(episodes: Episodes) -> Ints:
    """`[E]` number of each answer's question: answers with the same tokens before them have the same."""
    seen, numbers = episodes.transcript, dict[bytes, int]()
    starts, ends = seen.offsets[:-1], seen.offsets[:-1] + _prompt_lengths(episodes)
    keys = [seen.tokens[start:end].tobytes() for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
