"""Ranks that share a batch: each one's own token mean, averaged, against weights of the whole batch.

The ranks are parts of one batch here, whose gradients are added as a sum over processes adds them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor, float64

from hone.core.ragged import Ints
from hone.core.reduction import Array, whole_batch
from hone.lab.exact import gradient, relative_distance
from hone.lab.finding import (
    BoundedClaim,
    Experiment,
    ExperimentResult,
    at_least,
    at_most,
    error_bound,
    plot_by_step,
)
from hone.lab.puzzles import Floats
from hone.lab.stopping_answers import StoppingAnswers, initial_logits, mean_lengths, sample_stopping
from hone.objectives.weights import sequence_mean, token_mean
from hone.report.html import format_number

RATE = 12.0
RANKS = 2


@dataclass(frozen=True, slots=True)
class KnownLengths:
    """Reduction of one rank that knows the lengths of all: the only column that a weighting scheme asks for."""

    rank: int
    lengths: Sequence[Ints]

    def gather(self, column: Array) -> Sequence[Array]:
        assert np.array_equal(column, self.lengths[self.rank])
        return self.lengths


Division = Callable[[Ints, int], list[Ints]]
"""Lengths of the answers and a number of ranks -> the answers of each rank."""
Weighing = Callable[[int, Sequence[Ints]], Floats]
"""A rank and the lengths of all ranks' answers -> weight of each of its answers."""


def as_drawn(lengths: Ints, ranks: int) -> list[Ints]:
    """Equally many answers a rank, in the order in which they were sampled."""
    return np.array_split(np.arange(len(lengths)), ranks)


def by_length(lengths: Ints, ranks: int) -> list[Ints]:
    """Answers of similar length on one rank, the shortest on rank 0: no padding, and no balance."""
    return np.array_split(np.argsort(lengths, kind="stable"), ranks)


def dealt(lengths: Ints, ranks: int) -> list[Ints]:
    """The longest answers dealt out in turn: nearly equally many tokens a rank."""
    order = np.argsort(-lengths, kind="stable")
    return [order[rank::ranks] for rank in range(ranks)]


def own_mean(rank: int, lengths: Sequence[Ints]) -> Floats:
    """The mean over the rank's own tokens, whose gradient is averaged over ranks."""
    return token_mean(lengths[rank]) / len(lengths)


def global_mean(rank: int, lengths: Sequence[Ints]) -> Floats:
    """The mean over the tokens of all ranks, whose gradients are summed."""
    return whole_batch(token_mean, KnownLengths(rank, lengths))(lengths[rank])


CASES: dict[str, tuple[Division, Weighing]] = {
    "own means, as drawn": (as_drawn, own_mean),
    "own means, sorted by length": (by_length, own_mean),
    "own means, dealt out by length": (dealt, own_mean),
    "global weights, sorted by length": (by_length, global_mean),
}
DRAWN, SORTED, DEALT, GLOBAL = CASES
ONE = "one process"


def ranks_gradient(logits: Tensor, sampled: StoppingAnswers, case: str, ranks: int) -> Tensor:
    """Sum of the gradients of all ranks."""
    divide, weigh = CASES[case]
    parts = divide(sampled.lengths, ranks)
    lengths = [sampled.lengths[part] for part in parts]
    table = logits.clone().requires_grad_(True)
    slopes = [gradient(sampled.take(part).loss(table, weigh(rank, lengths)), table) for rank, part in enumerate(parts)]
    return sum(slopes[1:], start=slopes[0])


def one_gradient(logits: Tensor, sampled: StoppingAnswers, scheme: Callable[[Ints], Floats] = token_mean) -> Tensor:
    """Gradient of one process."""
    table = logits.clone().requires_grad_(True)
    return gradient(sampled.loss(table, scheme(sampled.lengths)), table)


def token_ratio(sampled: StoppingAnswers, case: str) -> float:
    """Weight of a token on the first of two ranks over that of one on the second."""
    divide, weigh = CASES[case]
    lengths = [sampled.lengths[part] for part in divide(sampled.lengths, RANKS)]
    return float(weigh(0, lengths)[0] / weigh(1, lengths)[0])


def train_lengths(case: str, *, seed: int, steps: int, answers: int) -> Floats:
    """Mean length of wrong and right answers over the steps `[steps + 1, 2]`, by plain gradient descent."""
    logits = initial_logits(float64)
    result = [mean_lengths(logits)]
    for step in range(steps):
        sampled = sample_stopping(logits, answers, seed=seed, step=step)
        slope = one_gradient(logits, sampled) if case == ONE else ranks_gradient(logits, sampled, case, RANKS)
        logits = logits - RATE * slope
        result.append(mean_lengths(logits))
    return np.array(result)


def claims_of(
    off: dict[str, float], ratio: dict[str, float], single: float, ends: dict[str, Floats]
) -> list[BoundedClaim]:
    """Claims on gradients (relative to those of one process), the weights of tokens on two ranks, the gradient of one
    answer a rank, and the final lengths over the initial ones (wrong, right)."""
    return [
        at_most("error over the true gradient, global weights", off[GLOBAL], 1e-12),
        at_least("error over the true gradient, own means, sorted by length", off[SORTED], 3.0),
        at_least("weight of a token on the rank of short answers, own means", ratio[SORTED], 3.0),
        at_most("error, own means, dealt out over sorted", off[DEALT] / off[SORTED], 0.1),
        at_most("one answer a rank, own means: off from the sequence mean", single, 1e-12),
        at_least("wrong answers grow by a factor, own means, sorted", float(ends[SORTED][0]), 1.05),
        at_most("right answers shrink to a share, own means, sorted", float(ends[SORTED][1]), 0.97),
        at_most(
            "trained lengths off from one process, global weights", float(abs(ends[GLOBAL] - ends[ONE]).max()), 1e-9
        ),
    ]


def run(seed: int, *, quick: bool = False) -> ExperimentResult:
    """Run the experiment."""
    steps, answers = (20, 1024) if quick else (60, 2048)
    logits = initial_logits(float64)
    sampled = sample_stopping(logits, answers, seed=seed, step=0)
    whole = one_gradient(logits, sampled)
    off = {case: relative_distance(ranks_gradient(logits, sampled, case, RANKS), whole) for case in CASES}
    ratio = {case: token_ratio(sampled, case) for case in CASES}
    few = sampled.take(np.arange(64))
    single = relative_distance(ranks_gradient(logits, few, DRAWN, 64), one_gradient(logits, few, sequence_mean))
    paths = {case: train_lengths(case, seed=seed, steps=steps, answers=answers) for case in (ONE, SORTED, GLOBAL)}
    ends = {case: path[-1] / path[0] for case, path in paths.items()}
    return ExperimentResult(
        header=("two ranks", "weight of a token, rank 0 over rank 1", "error over the length of the true gradient"),
        rows=[(case, format_number(ratio[case]), format_number(off[case])) for case in CASES],
        panels=[
            plot_by_step(
                f"mean length of {kind} answers, tokens", {case: path[:, row] for case, path in paths.items()}, first=0
            )
            for row, kind in enumerate(("wrong", "right"))
        ],
        verdict=(
            f"Two ranks that average their own token means compute another loss. With the answers sorted by length a "
            f"token on the rank of the short ones counts {ratio[SORTED]:.1f} times one on the other, and the error is "
            f"{off[SORTED]:.0f} times as long as the true gradient: in {steps} steps wrong answers grow to "
            f"{ends[SORTED][0]:.2f} times their length and right ones shrink to {ends[SORTED][1]:.2f}, though length "
            f"has nothing to do with the score. Dealt out evenly the fault hides ({off[DEALT]:.1g} of the gradient); "
            f"one answer a rank is the sequence mean. With weights of the whole batch two ranks have the gradient of "
            f"one process, to {error_bound(off[GLOBAL])}."
        ),
        claims=claims_of(off, ratio, single, ends),
    )


EXPERIMENT = Experiment(
    title="Two ranks",
    question="Is the mean of two ranks' token means the mean over all tokens?",
    run=run,
)
