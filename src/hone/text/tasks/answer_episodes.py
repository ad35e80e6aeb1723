"""Scored answers as episodes of a log, for reward models and preference losses.

Answers of one example have one `group`: of a pair the episode with the higher `score` is preferred. The reward stands
at an answer's last token; of an answer with labelled steps each label stands at the last token of its step, and every
other reward is NaN: no label.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Episodes, Transcript
from hone.core.ragged import offsets_of
from hone.text.tasks.scored_rows import AnswerTokens


def answer_tokens(
    prompt: NDArray[np.int32],
    answer: NDArray[np.int32],
    *,
    step_ends: Sequence[int] = (),
    step_labels: Sequence[float] = (),
) -> AnswerTokens:
    """Tokens of an encoded answer, whose log-probabilities nobody knows. `step_ends` `[k]` are places in `answer` of
    the last token of each step, and `step_labels` `[k]` the steps' labels."""
    labels = np.full(len(answer), np.nan, np.float32)
    labels[np.asarray(step_ends, np.int64)] = step_labels
    return AnswerTokens(
        tokens=np.concatenate([prompt, answer]).astype(np.int32),
        at=np.arange(len(prompt), len(prompt) + len(answer), dtype=np.int64),
        logp=np.full(len(answer), np.nan, np.float32),
        labels=labels,
    )


def answer_episodes(
    answers: Sequence[AnswerTokens], *, scores: Sequence[float], groups: Sequence[int], steps: bool = False
) -> Episodes:
    """Episodes of scored answers `[E]`, in their order. `steps`: rewards are the labels of steps, NaN where there is
    none; otherwise each answer is rewarded with its score at its last token."""
    lengths = np.array([len(one.at) for one in answers], np.int64)
    sizes = np.array([len(one.tokens) for one in answers], np.int64)
    offsets, starts = offsets_of(lengths), offsets_of(sizes)
    tokens = np.concatenate([one.tokens for one in answers]).astype(np.int32)
    at = np.concatenate([one.at for one in answers]) + np.repeat(starts[:-1], lengths)
    truncated = np.array([one.truncated for one in answers], np.bool_)
    score = np.array(scores, np.float64)
    if steps:
        reward = np.concatenate([one.labels for one in answers]).astype(np.float32)
    else:
        reward = np.zeros(len(at), np.float32)
        reward[offsets[1:] - 1] = score
    return Episodes(
        offsets=offsets,
        seen=Transcript(tokens=tokens, offsets=starts, at=at),
        chosen=tokens[at],
        logp=np.concatenate([one.logp for one in answers]).astype(np.float32),
        version=np.zeros(len(at), np.int32),
        reward=reward,
        group=np.array(groups, np.int64),
        terminated=~truncated,
        truncated=truncated,
        score=score,
    )
