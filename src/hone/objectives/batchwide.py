"""Statistics over all rows of an optimizer step that a loss takes as data, computed before the micro-batch split.

Functions of whole detached columns (numpy), as in `selection.py`, that return a column. The same statistic over each
micro-batch would make the gradient depend on the split. With several ranks the columns are those of all ranks.
"""

from dataclasses import dataclass

import numpy as np

from hone.core.state import State, array, integer
from hone.objectives.selection import Column, Floats


def kto_baseline(mismatched: Column) -> Floats:
    """z0 = max(0, mean of log pi / pi_ref over prompts with *another* prompt's answer) for `unpaired.kto` (Ethayarajh
    et al., 2024): an estimate of KL(policy || reference). `mismatched` in nats; the result is one number at every row.

    NaN marks a prompt without such an answer and is left out; without any, z0 is 0. The estimate is biased, as the
    paper states. TRL takes the mean of each rank and then the mean of ranks, HALOs leaves out scores of exactly 0; here
    it is one mean over all, clamped after averaging as in both.
    """
    known = np.asarray(mismatched, np.float64)
    known = known[~np.isnan(known)]
    mean = float(known.mean()) if len(known) else 0.0
    return np.full(len(mismatched), max(0.0, mean))


@dataclass
class RunningShift:
    """BCO's shift (Jung et al., 2024): the mean implicit reward of all answers since the start of the run, in nats.

    It continues from step to step, so it is part of a run's state.
    """

    mean: float = 0.0
    count: int = 0

    def update(self, scores: Column) -> Floats:
        """Include the `scores` of all answers of an optimizer step; returns the mean since the start, at every row.

        NaN, an unknown score, does not count.
        """
        known = np.asarray(scores, np.float64)
        known = known[~np.isnan(known)]
        self.count += len(known)
        if len(known):
            self.mean += float((known - self.mean).sum()) / self.count
        return np.full(len(scores), self.mean)

    def state(self) -> State:
        """The mean and the number of scores, for a checkpoint."""
        return {"mean": np.array([self.mean]), "count": self.count}

    def restore(self, state: State) -> None:
        """Load a state that `state` returned."""
        self.mean, self.count = float(array(state, "mean")[0]), integer(state, "count")


def same_rank(scores: Column, others: Column) -> Floats:
    """Match by rank: for each of `scores` the entry of `others` with the same rank; ties in the order of the rows."""
    partners = np.empty(len(others))
    partners[np.argsort(scores, kind="stable")] = np.sort(others)
    return partners


def aot_partners(margin: Column, reference_margin: Column) -> Floats:
    """The reference's margin of the same rank as each policy margin, in nats, for `preference.aot` (Melnyk et al.,
    2024).

    `margin` = log pi(y_w) - log pi(y_l), `reference_margin` the same for the reference.
    """
    return same_rank(margin, reference_margin)


def q_value_scale(worth: Column, *, alpha: float = 2.5) -> Floats:
    """alpha / mean of |Q| for `td3_bc_actor_loss` (TD3+BC, Fujimoto and Gu, 2021), at every row."""
    mean = float(np.abs(worth, dtype=np.float64).mean()) if len(worth) else 0.0
    return np.full(len(worth), alpha / max(mean, 1e-8))
