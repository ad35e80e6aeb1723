"""Ranks that share a batch: each one's own token mean, averaged, against weights of the whole batch.

The ranks are two processes: this one and a child, which meet as those of `run.ranks` do.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor, float64, set_num_threads

from hone.core.ragged import Ints
from hone.core.reduction import Reduction, whole_batch
from hone.lab.exact import relative_distance
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
from hone.learner.share import BatchShare
from hone.objectives.weights import sequence_mean, token_mean
from hone.parallel.group import RankMeeting, joined, open_meeting
from hone.parallel.ranked_job import READY, LocalLauncher, RankTask, rank_tasks
from hone.process.parent import connect_to_parent
from hone.run.report.html import format_number

_PATIENCE_S = 120.0
_PEER = "hone.lab.experiments.two_ranks"
"""Run as a command it is the second rank: its task is a line of JSON."""


@contextmanager
def _second_rank(asked: Mapping[str, int]) -> Iterator[BatchShare]:
    """The share of rank 0 of two, while a child process calls `measure` with `asked`. The child is
    gone afterwards. Raises ResourceError where it cannot be started."""
    meeting = RankMeeting(rank=0, ranks=2, virtual=0, patience_s=_PATIENCE_S, device="cpu")
    place, port = open_meeting(meeting)
    meeting = replace(meeting, port=port)
    tasks = rank_tasks(meeting, recipe="two-ranks", config=json.dumps(dict(asked)))
    ranks = LocalLauncher(module=_PEER, threads=1).launch(tasks)
    try:
        ranks.wait_ready("started")
        with joined(meeting, place) as group:
            yield group.share()
    finally:
        ranks.close()


_RATE = 12.0
_RANKS = 2


_Division = Callable[[Ints, int], list[Ints]]
"""Lengths of the answers and a number of ranks -> the answers of each rank."""
_Weighing = Callable[[Reduction, Ints], Floats]
"""The ranks and the lengths of this one's answers -> weight of each of them."""


def _by_length(lengths: Ints, ranks: int) -> list[Ints]:
    """Answers of similar length on one rank, the shortest on rank 0: no padding, and no balance."""
    return np.array_split(np.argsort(lengths, kind="stable"), ranks)


def _dealt(lengths: Ints, ranks: int) -> list[Ints]:
    """The longest answers dealt out in turn: nearly equally many tokens a rank."""
    order = np.argsort(-lengths, kind="stable")
    return [order[rank::ranks] for rank in range(ranks)]


def _own_mean(ranks: Reduction, lengths: Ints) -> Floats:
    """The mean over the rank's own tokens, whose gradient is averaged over ranks."""
    del ranks
    return token_mean(lengths) / _RANKS


_CASES: dict[str, tuple[_Division, _Weighing]] = {
    "own means, as drawn": (lambda lengths, ranks: np.array_split(np.arange(len(lengths)), ranks), _own_mean),
    "own means, sorted by length": (_by_length, _own_mean),
    "own means, dealt out by length": (_dealt, _own_mean),
    "global weights, sorted by length": (_by_length, lambda ranks, lengths: whole_batch(token_mean, ranks)(lengths)),
}
_DRAWN, SORTED, DEALT, GLOBAL = _CASES
ONE = "one process"


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankFindings:
    """What the ranks measure together; `claims_of` explains the numbers."""

    off: dict[str, float]
    ratio: dict[str, float]
    single: float
    paths: dict[str, Floats]
    """Mean length of wrong and right answers over the steps `[steps + 1, 2]`."""

    @property
    def ends(self) -> dict[str, Floats]:
        """Final mean lengths over the initial ones."""
        return {case: path[-1] / path[0] for case, path in self.paths.items()}


def _ranks_gradient(logits: Tensor, sampled: StoppingAnswers, case: str, share: BatchShare) -> Tensor:
    """Sum of the gradients of all ranks, of which this one computes its part."""
    divide, weigh = _CASES[case]
    own = sampled.take(divide(sampled.lengths, share.ranks)[share.reduction.rank])
    slope = own.slope(logits, weigh(share.reduction, own.lengths))
    share.add(slope)
    return slope


def _token_ratio(sampled: StoppingAnswers, case: str, share: BatchShare) -> float:
    """Weight of a token on the first of two ranks over that of one on the second."""
    divide, weigh = _CASES[case]
    own = sampled.lengths[divide(sampled.lengths, share.ranks)[share.reduction.rank]]
    first, second = share.reduction.gather(weigh(share.reduction, own))
    return float(first[0]) / float(second[0])


def _train_lengths(case: str, share: BatchShare, *, seed: int, steps: int, answers: int) -> Floats:
    """Mean length of wrong and right answers over the steps `[steps + 1, 2]`, by plain gradient descent."""
    logits = initial_logits(float64)
    result = [mean_lengths(logits)]
    for step in range(steps):
        sampled = sample_stopping(logits, answers, seed=seed, step=step)
        slope = (
            sampled.slope(logits, token_mean(sampled.lengths))
            if case == ONE
            else _ranks_gradient(logits, sampled, case, share)
        )
        logits = logits - _RATE * slope
        result.append(mean_lengths(logits))
    return np.array(result)


def measure(share: BatchShare, *, seed: int, steps: int, answers: int) -> _RankFindings:
    """Measure as one of two ranks, which all call this with equal arguments."""
    logits = initial_logits(float64)
    sampled = sample_stopping(logits, answers, seed=seed, step=0)
    whole, pair = sampled.slope(logits, token_mean(sampled.lengths)), sampled.take(np.arange(_RANKS))
    alone = pair.slope(logits, sequence_mean(pair.lengths))
    return _RankFindings(
        off={case: relative_distance(_ranks_gradient(logits, sampled, case, share), whole) for case in _CASES},
        ratio={case: _token_ratio(sampled, case, share) for case in _CASES},
        single=relative_distance(_ranks_gradient(logits, pair, _DRAWN, share), alone),
        paths={
            case: _train_lengths(case, share, seed=seed, steps=steps, answers=answers) for case in (ONE, SORTED, GLOBAL)
        },
    )


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


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    steps, answers = (20, 1024) if quick else (60, 2048)
    with _second_rank({"seed": seed, "steps": steps, "answers": answers}) as share:
        measured = measure(share, seed=seed, steps=steps, answers=answers)
    off, ratio, ends = measured.off, measured.ratio, measured.ends
    return ExperimentResult(
        header=("two ranks", "weight of a token, rank 0 over rank 1", "error over the length of the true gradient"),
        rows=[(case, format_number(ratio[case]), format_number(off[case])) for case in _CASES],
        panels=[
            plot_by_step(
                f"mean length of {kind} answers, tokens",
                {case: path[:, row] for case, path in measured.paths.items()},
                first=0,
            )
            for row, kind in enumerate(("wrong", "right"))
        ],
        verdict=(
            "Two processes that average their own token means compute another loss. With the answers sorted by "
            f"length a token on the rank of the short ones counts {ratio[SORTED]:.1f} times one on the other, and the "
            f"error is {off[SORTED]:.0f} times as long as the true gradient: in {steps} steps wrong answers grow to "
            f"{ends[SORTED][0]:.2f} times their length and right ones shrink to {ends[SORTED][1]:.2f}, though length "
            f"has nothing to do with the score. Dealt out evenly the fault hides ({off[DEALT]:.1g} of the gradient); "
            f"one answer a rank is the sequence mean. With weights of the whole batch two ranks have the gradient of "
            f"one process, to {error_bound(off[GLOBAL])}."
        ),
        claims=claims_of(off, ratio, measured.single, ends),
    )


EXPERIMENT = Experiment(
    title="Two ranks",
    question="Is the mean of two ranks' token means the mean over all tokens?",
    run=_run,
)


def _follow() -> None:
    """The child: measure with the parent until it has what it needs."""
    channel = connect_to_parent()
    task = RankTask.from_json(next(channel.lines()))
    set_num_threads(1)
    channel.reply(READY)
    with joined(task.meeting) as group:
        measure(group.share(), **json.loads(task.config))


if __name__ == "__main__":
    _follow()
