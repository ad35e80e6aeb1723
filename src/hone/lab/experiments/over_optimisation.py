"""Over-optimisation of a reward model: how far its score can be trusted, by what it learnt from.

Strings of letters: a pair of neighbours pays its hidden weight twice, and costs 1 at every further repeat. Reward
models learn from compared strings of the base, which seldom repeat a pair; RL then asks for nothing else. An ensemble
knows where its members have seen too little: they disagree there.
"""

from collections.abc import Mapping
from functools import partial

import numpy as np
import torch

from hone.lab.finding import (
    BoundedClaim,
    Experiment,
    ExperimentResult,
    Floats,
    at_least,
    at_most,
)
from hone.lab.letter_rewards import SIZE, OptimisedPoint, kl_panels, learn_rewards, mean_path, optimise, weighted_counts

_PAIRS, _PROBLEMS = (250, 1000, 4000), 8
_MEMBERS, _PESSIMISM = 5, 3.0
"""Models of a fifth of 1,000 pairs each; their standard deviation is subtracted so many times."""
FEW, SOME, MANY = (f"{count:,} pairs" for count in _PAIRS)
_MEAN, PESSIMISTIC = f"{_MEMBERS} models, mean", f"{_MEMBERS} models, mean - {_PESSIMISM:g} sd"


def _lower_bound(members: Floats, counts: Floats) -> Floats:
    """`[n]` mean less `_PESSIMISM` standard deviations of the scores by `members` `[K, SIZE * SIZE]`."""
    each = counts @ members.T
    return each.mean(axis=1) - _PESSIMISM * each.std(axis=1, ddof=1)


def _fall(path: list[OptimisedPoint]) -> float:
    """True reward at the end less the best on the way."""
    return path[-1].truth - _best_truth(path)


def _best_truth(path: list[OptimisedPoint]) -> float:
    """Best true reward on the way."""
    return max(point.truth for point in path)


def claims_of(paths: Mapping[str, list[OptimisedPoint]]) -> list[BoundedClaim]:
    """Claims on the paths of RL, each from the base on."""
    few, some, many = (paths[name] for name in (FEW, SOME, MANY))
    return [
        at_least(f"proxy at the end minus the base, {FEW}", few[-1].proxy - few[0].proxy, 5.0),
        at_most(f"truth at the end minus its own peak, {FEW}", _fall(few), -3.0),
        at_most(f"truth at the end minus its own peak, {MANY}", _fall(many), -2.0),
        at_least(
            f"truth at the end, {PESSIMISTIC} minus {SOME} in one model",
            paths[PESSIMISTIC][-1].truth - some[-1].truth,
            1.5,
        ),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    steps, batch, problems = 60, 64 if quick else 256, _PROBLEMS // 2 if quick else _PROBLEMS
    base = torch.zeros(SIZE, SIZE)
    measured: dict[str, list[list[OptimisedPoint]]] = {}
    for problem in (_PROBLEMS * seed + number for number in range(problems)):
        share = _PAIRS[1] // _MEMBERS
        members = np.stack([learn_rewards(base, problem, pairs=share, member=1 + place) for place in range(_MEMBERS)])
        models = {f"{count:,} pairs": learn_rewards(base, problem, pairs=count) for count in _PAIRS}
        models[_MEAN] = members.mean(axis=0)
        scores = {name: partial(weighted_counts, weights) for name, weights in models.items()}
        scores[PESSIMISTIC] = partial(_lower_bound, members)
        for name, score in scores.items():
            path = optimise(base, score, seed=problem, steps=steps, batch=batch)
            measured.setdefault(name, []).append(path)
    paths = {name: mean_path(some) for name, some in measured.items()}
    few, some, careful = paths[FEW], paths[SOME], paths[PESSIMISTIC]
    return ExperimentResult(
        header=("reward model", "nats at the end", "its score", "true reward", "best on the way"),
        rows=[
            (name, *(f"{x:.1f}" for x in (path[-1].nats, path[-1].proxy, path[-1].truth, _best_truth(path))))
            for name, path in paths.items()
        ],
        panels=kl_panels(paths),
        verdict=(
            f"The score rises to the end, whatever the model learnt from; the true reward falls from "
            f"{_best_truth(few):.1f} to {few[-1].truth:.1f} with {FEW}, and from {_best_truth(paths[MANY]):.1f} to "
            f"{paths[MANY][-1].truth:.1f} with {MANY}: more pairs do not stop the fall. {_MEMBERS} "
            f"models of {SOME} in all, less {_PESSIMISM:g} times their disagreement, end at {careful[-1].truth:.1f} "
            f"instead of {some[-1].truth:.1f}; their mean alone, at {paths[_MEAN][-1].truth:.1f}."
        ),
        claims=claims_of(paths),
    )


EXPERIMENT = Experiment(
    title="over-optimisation of a reward model",
    question="Does a reward model's score still mean what it meant, after RL has climbed it?",
    run=_run,
    source="Gao et al., 2022; Coste et al., 2023",
)
