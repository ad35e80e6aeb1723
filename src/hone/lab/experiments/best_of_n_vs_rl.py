"""Best of n against reinforcement learning by the same reward model, at equal distance from the base.

Strings of letters: a pair of neighbours pays its hidden weight twice, and costs 1 at every further repeat. The reward
model, learnt from compared pairs of the base's strings, has a weight for each pair and has hardly seen repeats. The
policy is a table of one letter after another, so that its divergence from the base is exact.
"""

from collections.abc import Mapping
from functools import partial

import torch

from hone.lab.finding import (
    BoundedClaim,
    Experiment,
    ExperimentResult,
    at_least,
    at_most,
)
from hone.lab.letter_rewards import (
    SIZE,
    OptimisedPoint,
    at_nats,
    kl_panels,
    learn_rewards,
    mean_path,
    optimise,
    select,
    weighted_counts,
)

_PAIRS, _PROBLEMS = 1000, 4
_PRICE = 0.3
"""Reward that a nat of divergence costs, where it costs any."""
RL, PRICED, BEST = "RL", f"RL, {_PRICE} per nat", "best of n"
_NATS = 3.0
"""Divergence at which the ways are compared."""


def claims_of(paths: Mapping[str, list[OptimisedPoint]]) -> list[BoundedClaim]:
    """Claims on the paths of the three ways, each from the base on."""
    free, priced, best = (paths[name] for name in (RL, PRICED, BEST))
    peak = max(point.truth for point in free)
    return [
        at_least("proxy of RL at the end minus the base", free[-1].proxy - free[0].proxy, 3.0),
        at_most("truth of RL at the end minus its own peak", free[-1].truth - peak, -2.0),
        at_least("truth of best of n minus RL's end", best[-1].truth - free[-1].truth, 1.0),
        at_least(
            f"truth of best of n minus RL, both at {_NATS:g} nats",
            at_nats(best, _NATS).truth - at_nats(free, _NATS).truth,
            -2.0,
        ),
        at_least("truth of RL with a price at the end minus RL's end", priced[-1].truth - free[-1].truth, 1.5),
    ]


def _row(name: str, path: list[OptimisedPoint]) -> tuple[str, ...]:
    numbers = (path[-1].nats, path[-1].proxy, path[-1].truth, at_nats(path, _NATS).truth, max(p.truth for p in path))
    return name, *(f"{number:.1f}" for number in numbers)


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    steps, batch, pool = (40, 128, 512) if quick else (60, 256, 2048)
    base, optimised = torch.zeros(SIZE, SIZE), dict[str, list[list[OptimisedPoint]]]({RL: [], PRICED: [], BEST: []})
    for problem in (_PROBLEMS * seed + number for number in range(_PROBLEMS)):
        weights = learn_rewards(base, problem, pairs=_PAIRS)
        for name, price in ((RL, 0.0), (PRICED, _PRICE)):
            path = optimise(
                base, partial(weighted_counts, weights), seed=problem, steps=steps, batch=batch, price=price
            )
            optimised[name].append(path)
        optimised[BEST].append(select(base, weights, seed=problem, pool=pool))
    paths = {name: mean_path(some) for name, some in optimised.items()}
    peak = max(paths[RL], key=lambda point: point.truth)
    end, best = paths[RL][-1], paths[BEST][-1]
    return ExperimentResult(
        header=("way", "nats at the end", "proxy", "truth", f"truth at {_NATS:g} nats", "best truth on the way"),
        rows=[_row(name, path) for name, path in paths.items()],
        panels=kl_panels(paths),
        verdict=(
            f"At {_NATS:g} nats from the base both have about the same true reward, "
            f"{at_nats(paths[BEST], _NATS).truth:.1f} and {at_nats(paths[RL], _NATS).truth:.1f}. RL goes on: the "
            f"reward model's score rises to {end.proxy:.1f} at {end.nats:.0f} nats, while the true reward falls from "
            f"{peak.truth:.1f} to {end.truth:.1f}. Best of n ends at {best.nats:.1f} nats with {best.truth:.1f}, and a "
            f"price of {_PRICE} for each nat keeps RL at {paths[PRICED][-1].truth:.1f}."
        ),
        claims=claims_of(paths),
    )


EXPERIMENT = Experiment(
    title="best of n against RL",
    question="Does RL lose more of the true reward than best of n by the same reward model, at equal KL?",
    run=_run,
    source="Gao et al., 2022",
)
