"""Advantages of two answers to one question, the second one after a nudge: self-correction (SCoRe).

Scores of both answers are in `episodes.reward` at their last decisions, as scores that add up: the first answer's, and
the second's minus the first's, which is the progress. An episode of one turn, whose first answer a limit cut, has no
second.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.ragged import Ints, offsets_of, row_sums
from hone.core.state import State, integer
from hone.credit.grouping import DecisionColumn, behaviour_logp, centred, checked_column, group_deviation, turn_ends

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class AnswerTurns:
    """The T turns of E episodes, and their scores."""

    offsets: Ints
    """`[T+1]` decisions of each turn."""
    episode: Ints
    """`[T]` episode of each turn."""
    second: NDArray[np.bool_]
    """`[T]` True for a second answer."""
    first_score: Floats
    """`[E]` score of the first answer; NaN where it is missing."""
    second_score: Floats
    """`[E]` score of the second answer; NaN where it is missing or there is none."""


def answer_turns(episodes: Episodes) -> AnswerTurns:
    """Turns of episodes of one or two answers, with the scores of both."""
    ends = np.flatnonzero(turn_ends(episodes))
    offsets = offsets_of(np.diff(ends, prepend=-1))
    episode = episodes.owner[ends]
    second = np.diff(episode, prepend=-1) == 0
    paid = row_sums(episodes.reward, offsets)
    first, progress = np.full((2, len(episodes)), np.nan)
    first[episode[~second]] = paid[~second]
    progress[episode[second]] = paid[second]
    first[~episodes.scored] = np.nan
    return AnswerTurns(offsets, episode, second, first, first + progress)


class SelfCorrectionCredit:
    """A = the pay of a decision's own answer, standardised within its group (SCoRe, Kumar et al., 2024, 2409.12917; the
    group's mean stands in place of a learned baseline).

    In the first `first_stage_steps` batches the second answer alone is paid, with its score, and each token of the
    first has A_t = -first_stage_kl * (log pi - log pi_ref), which holds it to the reference. Later both are paid with
    their scores, the second with `progress_weight` times its progress as well: s2 + w (s2 - s1), of which w s1 is
    settled before the second answer begins and is its baseline, so that 1 + w times the second's standardised score is
    left. No answer is paid for the other one, or the first would learn to be wrong. The number of batches is part of a
    run's state.
    """

    def __init__(
        self,
        *,
        first_stage_steps: int,
        first_stage_kl: float,
        progress_weight: float,
        reference: DecisionColumn,
        current: DecisionColumn = behaviour_logp,
        right_from: float = 1.0,
    ) -> None:
        """`right_from`: least score of a right answer, for the metrics."""
        self.first_stage_steps, self.first_stage_kl = first_stage_steps, first_stage_kl
        self.progress_weight, self.right_from = progress_weight, right_from
        self.reference, self.current = reference, current
        self.steps = 0

    def __call__(self, episodes: Episodes, values: Values) -> Credits:
        del values
        turns = answer_turns(episodes)
        first, second = turns.first_score, turns.second_score
        stage = 1 if self.steps < self.first_stage_steps else 2
        self.steps += 1
        metrics = {"correction/stage": float(stage), **correction_metrics(first, second, self.right_from)}
        paid = np.where(turns.second, second[turns.episode], np.nan if stage == 1 else first[turns.episode])
        pay = standardised_turns(paid, episodes.group[turns.episode], second=turns.second)
        pay[turns.second] *= 1.0 if stage == 1 else 1.0 + self.progress_weight
        advantage = np.repeat(pay, np.diff(turns.offsets))
        if stage == 1 and self.first_stage_kl:
            # log pi - log pi_ref of each decision `[N]`, nats
            now = checked_column(self.current, episodes, "the policy's log-probability")
            nats = now - checked_column(self.reference, episodes, "the reference's log-probability")
            held = np.repeat(~turns.second & episodes.scored[turns.episode], np.diff(turns.offsets))
            advantage -= self.first_stage_kl * np.where(held, nats, 0.0)
            metrics["correction/first_kl_nats"] = float(row_sums(nats, turns.offsets)[~turns.second].mean())
        return Credits(advantage=advantage.astype(np.float32), metrics=metrics)

    def state(self) -> State:
        return {"steps": self.steps}

    def restore(self, state: State) -> None:
        self.steps = integer(state, "steps")


def standardised_turns(paid: Floats, group: Ints, *, second: NDArray[np.bool_], epsilon: float = 1e-6) -> Floats:
    """`[T]` (pay - mean) / (std + epsilon) among the first answers, and among the second, to one question (ddof 1); 0
    without pay (NaN), and where fewer than two or equal ones are compared."""
    there = np.isfinite(paid)
    standardised = np.zeros(len(paid))
    if there.any():
        numbers = np.unique(2 * group[there] + second[there], return_inverse=True)[1].astype(np.int64)
        deviation, dead = group_deviation(paid[there], numbers)
        normal = centred(paid[there], numbers) / (deviation[numbers] + epsilon)
        standardised[there] = np.where(dead[numbers], 0.0, normal)
    return standardised


def correction_metrics(first: Floats, second: Floats, right_from: float) -> dict[str, float]:
    """Mean scores of both answers `[E]`, and the shares of episodes that went from wrong to right and from right to
    wrong, over those with both scores; {} without any."""
    both = np.isfinite(first) & np.isfinite(second)
    if not both.any():
        return {}
    before, after = first[both] >= right_from, second[both] >= right_from
    return {
        "correction/first_score": float(first[both].mean()),
        "correction/second_score": float(second[both].mean()),
        "correction/wrong_to_right": float((~before & after).mean()),
        "correction/right_to_wrong": float((before & ~after).mean()),
    }
