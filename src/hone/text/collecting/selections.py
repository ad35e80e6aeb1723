"""Selections of sampled answers to be imitated: the right ones, or the best of each group."""

from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.ragged import Ints
from hone.learner.round_source import Selection


def right_answers(episodes: Episodes, *, min_score: float, max_per_problem: int | None) -> Selection:
    """Answers with a score of at least `min_score` that ended by themselves, each once, and of one problem at most
    `max_per_problem`, in the order in which they were drawn (Zelikman et al., STaR, 2022; Singh et al., ReST-EM, 2024).

    A problem is its prompt's tokens. Raises DataError if no answer is left.
    """
    right = episodes.scored & (np.nan_to_num(episodes.score, nan=-np.inf) >= min_score) & ~episodes.truncated
    problems = _problems(episodes)
    seen: set[tuple[int, bytes]] = set()
    taken: Counter[int] = Counter()
    kept: list[int] = []
    repeated = 0
    for place in np.flatnonzero(right).tolist():
        problem = int(problems[place])
        answer = (problem, _answer(episodes, place))
        if answer in seen:
            repeated += 1
        elif max_per_problem is None or taken[problem] < max_per_problem:
            kept.append(place)
            taken[problem] += 1
        seen.add(answer)
    count, solved = len(np.unique(problems)), len(taken)
    note = (
        f"{len(kept)} of {len(episodes)} answers are imitated: {int(right.sum())} are right, {repeated} of them repeat "
        f"another, {int(right.sum()) - repeated - len(kept)} are beyond {max_per_problem or 'the cap'} of a problem; "
        f"{count - solved} of {count} problems are unsolved"
    )
    if not kept:
        best = np.nanmax(episodes.score, initial=-np.inf)
        raise DataError(
            f"no answer can be imitated: none of {len(episodes)} answers to {count} problems has a score of at least "
            f"{min_score:g} and ended by itself (best score {best:g}). Begin with easier problems, a better policy or "
            "more samples; imitation of wrong answers would teach them"
        )
    metrics = {
        "rounds/answers": float(len(episodes)),
        "rounds/kept_answers": float(len(kept)),
        "rounds/right_answers": float(right.sum()),
        "rounds/repeated_answers": float(repeated),
        "rounds/unsolved_problems": float(count - solved),
    }
    return _selection(episodes, np.array(kept, np.int64), metrics, note)


def best_answers(episodes: Episodes) -> Selection:
    """The answer with the highest score of each group; the first of equal ones (Dong et al., RAFT, 2023).

    A group without a score is left out. Raises DataError if none has one.
    """
    kept: list[int] = []
    gains: list[float] = []
    groups = np.unique(episodes.group)
    for group in groups:
        own = np.flatnonzero((episodes.group == group) & episodes.scored)
        if len(own):
            kept.append(int(own[np.argmax(episodes.score[own])]))
            gains.append(float(episodes.score[kept[-1]] - episodes.score[own].mean()))
    if not kept:
        raise DataError(f"no answer can be imitated: none of {len(episodes)} answers has a score")
    metrics = {
        "rounds/answers": float(len(episodes)),
        "rounds/kept_answers": float(len(kept)),
        "rounds/best_score": float(episodes.score[kept].mean()),
        "rounds/gain_of_the_best": float(np.mean(gains)),
    }
    note = (
        f"the best of each of {len(groups)} groups is imitated: score {metrics['rounds/best_score']:.4g}, "
        f"{metrics['rounds/gain_of_the_best']:.4g} above the groups' mean"
    )
    return _selection(episodes, np.array(sorted(kept), np.int64), metrics, note)


def _selection(episodes: Episodes, kept: Ints, metrics: dict[str, float], note: str) -> Selection:
    """The kept episodes, each decision worth 1."""
    chosen = episodes.take(kept)
    return Selection(episodes=replace(chosen, reward=np.ones_like(chosen.reward)), metrics=metrics, note=note)


def _problems(episodes: Episodes) -> NDArray[np.int64]:
    """`[E]` number of each episode's problem: episodes with equal prompts have one."""
    seen = episodes.transcript
    firsts = seen.at[episodes.offsets[:-1]]
    prompts = [
        seen.tokens[start:end].tobytes() for start, end in zip(seen.offsets[:-1].tolist(), firsts.tolist(), strict=True)
    ]
    numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
    return np.array([numbers[prompt] for prompt in prompts], np.int64)


def _answer(episodes: Episodes, place: int) -> bytes:
    seen = episodes.transcript
    first = int(seen.at[episodes.offsets[place]])
    return seen.tokens[first : int(seen.offsets[place + 1])].tobytes()
