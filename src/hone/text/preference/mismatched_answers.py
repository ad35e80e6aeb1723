"""Answers beside prompts that they do not belong to: KTO's baseline is the mean log-ratio of such pairs."""

from dataclasses import replace

import numpy as np

from hone.core.episodes import Episodes, ScoreStatus, concatenate
from hone.text.tasks.answer_episodes import answer_episodes, answer_tokens


def with_mismatched_answers(log: Episodes, context: int) -> Episodes:
    """The log, in which each answer's group has the next answer of another prompt as well, to this answer's prompt.

    Such an answer has no score. It is cut where it would not fit in the `context`; where all prompts are the same,
    there is none.
    """
    seen, count = log.transcript, len(log)
    ends = seen.at[log.offsets[:-1]]
    prompts = [seen.tokens[begin:end] for begin, end in zip(seen.offsets[:-1], ends, strict=True)]
    answers = [seen.tokens[begin:end] for begin, end in zip(ends, seen.offsets[1:], strict=True)]
    names = np.unique([prompt.tobytes() for prompt in prompts], return_inverse=True)[1]
    nexts = _next_of_another(names)
    kept = np.flatnonzero((nexts >= 0) & (np.array([len(prompt) for prompt in prompts]) < context))
    if not len(kept):
        return log
    pairs = [answer_tokens(prompts[row], answers[nexts[row]][: context - len(prompts[row])]) for row in kept]
    others = answer_episodes(pairs, scores=[np.nan] * len(kept), groups=log.group[kept].tolist())
    others = replace(
        others,
        reward=np.zeros(others.decisions, np.float32),
        status=np.full(len(kept), ScoreStatus.UNSCORABLE, np.uint8),
    )
    whole = concatenate([log, others])
    order = np.argsort(np.append(np.arange(count), kept + 0.5), kind="stable")
    return whole.take(order)


def _next_of_another(names: np.ndarray) -> np.ndarray:
    """`[E]`: the next row, from the end on from the first, with another name; -1 where all have one name."""
    count = len(names)
    if len(set(names.tolist())) < 2:
        return np.full(count, -1)
    result = np.empty(count, np.int64)
    following = 0
    twice = np.append(names, names)
    for row in reversed(range(2 * count)):
        if row + 1 < 2 * count and twice[row + 1] != twice[row]:
            following = (row + 1) % count
        if row < count:
            result[row] = following
    return result
