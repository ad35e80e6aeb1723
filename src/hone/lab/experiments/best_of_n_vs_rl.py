"""Best of n against reinforcement learning by the same reward model, at equal distance from the base.

Strings of letters: a pair of neighbours pays its hidden weight twice, and costs 1 at every further repeat. The reward
model, learnt from compared pairs of the base's strings, has a weight for each pair and has hardly seen repeats. The
policy is a table of one letter after another, so that its divergence from the base is exact.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hone.core.credit import NO_VALUES
from hone.core.ragged import Ints
from hone.core.random import generator
from hone.credit.group import group_relative
from hone.lab.exact import gradient, scored_episodes
from hone.lab.finding import (
    BoundedClaim,
    Experiment,
    ExperimentResult,
    Floats,
    LinePlot,
    PlotSeries,
    at_least,
    at_most,
)
from hone.lab.policies import sample_rows
from hone.lab.tasks.letter_pairs import LETTERS, first_is_preferred, true_reward
from hone.objectives.policy import reinforce_loss
from hone.objectives.reward_model import bradley_terry
from hone.search import estimates

SIZE, LENGTH, PAIRS, RATE, PROBLEMS = len(LETTERS), 16, 1000, 8.0, 4
PRICE = 0.3
"""Reward that a nat of divergence costs, where it costs any."""
RL, PRICED, BEST = "RL", f"RL, {PRICE} per nat", "best of n"
NATS = 3.0
"""Divergence at which the ways are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimisedPoint:
    """Where a way of optimising stands."""

    nats: float
    """KL(policy | base) of a string."""
    proxy: float
    """Mean score by the reward model."""
    truth: float
    """Mean true reward."""


def draw_strings(logits: Tensor, count: int, *, seed: int, stream: str, number: int = 0) -> Ints:
    """`[count, LENGTH]` strings of a table policy `[SIZE, SIZE]`, as numbers of letters; the first one is uniform."""
    random = generator(seed, f"lab/{stream}", number)
    chances = torch.softmax(logits, dim=1).numpy()
    strings = np.empty((count, LENGTH), np.int64)
    strings[:, 0] = random.integers(0, SIZE, count)
    for place in range(1, LENGTH):
        strings[:, place] = sample_rows(chances[strings[:, place - 1]], random.random(count))
    return strings


def pair_counts(strings: Ints) -> Floats:
    """`[n, SIZE * SIZE]` how often each pair of neighbours occurs."""
    pairs = strings[:, :-1] * SIZE + strings[:, 1:]
    return np.stack([np.bincount(row, minlength=SIZE * SIZE) for row in pairs]).astype(np.float64)


def truths(strings: Ints, seed: int) -> Floats:
    """`[n]` true rewards."""
    return np.array([true_reward("".join(LETTERS[letter] for letter in row), seed=seed) for row in strings.tolist()])


def learn_rewards(base: Tensor, seed: int) -> Floats:
    """`[SIZE * SIZE]` weights of a Bradley-Terry model of `PAIRS` compared pairs of the base's strings."""
    first, second = (draw_strings(base, PAIRS, seed=seed, stream=name) for name in ("first", "second"))
    won = first_is_preferred(truths(first, seed), truths(second, seed), seed=seed)
    gap = np.where(won[:, None], 1.0, -1.0) * (pair_counts(first) - pair_counts(second))
    rows = torch.from_numpy(gap)
    weights = torch.zeros(SIZE * SIZE, dtype=torch.float64, requires_grad=True)
    for _ in range(200):
        score = rows @ weights
        loss = bradley_terry(score, torch.zeros_like(score)).loss.mean() + 1e-3 * weights.square().sum()
        weights = (weights - 1.0 * gradient(loss, weights)).detach().requires_grad_(True)
    return weights.detach().numpy()


def divergence(logits: Tensor, base: Tensor) -> float:
    """KL of a string's distribution from the base's, nats: the sum over places of the mean divergence of a row."""
    mine, theirs = torch.log_softmax(logits.double(), 1), torch.log_softmax(base.double(), 1)
    rows = (mine.exp() * (mine - theirs)).sum(dim=1)
    share, total = torch.full((SIZE,), 1 / SIZE, dtype=torch.float64), 0.0
    for _ in range(LENGTH - 1):
        total += float(share @ rows)
        share = share @ mine.exp()
    return total


def optimise(base: Tensor, weights: Floats, *, seed: int, steps: int, batch: int, price: float) -> list[OptimisedPoint]:
    """REINFORCE on the reward model's scores, less `price` for each nat of a string's log-ratio to the base."""
    logits, points = base.clone(), list[OptimisedPoint]()
    for step in range(steps + 1):
        strings = draw_strings(logits, batch, seed=seed, stream="rl", number=step)
        counts = pair_counts(strings)
        proxy = counts @ weights
        points.append(
            OptimisedPoint(
                nats=divergence(logits, base), proxy=float(proxy.mean()), truth=float(truths(strings, seed).mean())
            )
        )
        ratio = torch.log_softmax(logits, 1) - torch.log_softmax(base, 1)
        paid = proxy - price * counts @ ratio.double().flatten().numpy()
        credits = group_relative(scored_episodes(paid, np.zeros(batch, np.int64)), NO_VALUES)
        table = logits.clone().requires_grad_(True)
        logp = torch.from_numpy(counts).float() @ torch.log_softmax(table, 1).flatten()
        loss = reinforce_loss(logp, torch.from_numpy(credits.advantage)).loss.mean() / (LENGTH - 1)
        logits = logits - RATE * gradient(loss, table)
    return points


def select(base: Tensor, weights: Floats, *, seed: int, pool: int) -> list[OptimisedPoint]:
    """Best of n for n = 1, 2, 4 ...: means over all subsets of a pool, at ln n - (n - 1) / n nats from the base."""
    strings = draw_strings(base, pool, seed=seed, stream="pool")
    proxy, truth = (pair_counts(strings) @ weights)[None], truths(strings, seed)[None]
    sizes = [1 << power for power in range((pool // 4).bit_length())]
    return [
        OptimisedPoint(
            nats=float(np.log(n) - (n - 1) / n),
            proxy=float(estimates.best_of(proxy, proxy, n)[0]),
            truth=float(estimates.best_of(proxy, truth, n)[0]),
        )
        for n in sizes
    ]


def mean_path(paths: list[list[OptimisedPoint]]) -> list[OptimisedPoint]:
    """The mean over problems, point by point."""
    return [
        OptimisedPoint(
            nats=float(np.mean([point.nats for point in points])),
            proxy=float(np.mean([point.proxy for point in points])),
            truth=float(np.mean([point.truth for point in points])),
        )
        for points in zip(*paths, strict=True)
    ]


def at_nats(points: list[OptimisedPoint], nats: float) -> OptimisedPoint:
    """The first point as far from the base as `nats`, or the last one."""
    return next((point for point in points if point.nats >= nats), points[-1])


def claims_of(paths: Mapping[str, list[OptimisedPoint]]) -> list[BoundedClaim]:
    """Claims on the paths of the three ways, each from the base on."""
    free, priced, best = (paths[name] for name in (RL, PRICED, BEST))
    peak = max(point.truth for point in free)
    return [
        at_least("proxy of RL at the end minus the base", free[-1].proxy - free[0].proxy, 3.0),
        at_most("truth of RL at the end minus its own peak", free[-1].truth - peak, -2.0),
        at_least("truth of best of n minus RL's end", best[-1].truth - free[-1].truth, 1.0),
        at_least(
            f"truth of best of n minus RL, both at {NATS:g} nats",
            at_nats(best, NATS).truth - at_nats(free, NATS).truth,
            -2.0,
        ),
        at_least("truth of RL with a price at the end minus RL's end", priced[-1].truth - free[-1].truth, 1.5),
    ]


def _row(name: str, path: list[OptimisedPoint]) -> tuple[str, ...]:
    numbers = (path[-1].nats, path[-1].proxy, path[-1].truth, at_nats(path, NATS).truth, max(p.truth for p in path))
    return name, *(f"{number:.1f}" for number in numbers)


def run(seed: int, *, quick: bool = False) -> ExperimentResult:
    """Run the experiment."""
    steps, batch, pool = (40, 128, 512) if quick else (60, 256, 2048)
    base, found = torch.zeros(SIZE, SIZE), dict[str, list[list[OptimisedPoint]]]({RL: [], PRICED: [], BEST: []})
    for problem in (PROBLEMS * seed + number for number in range(PROBLEMS)):
        weights = learn_rewards(base, problem)
        for name, price in ((RL, 0.0), (PRICED, PRICE)):
            found[name].append(optimise(base, weights, seed=problem, steps=steps, batch=batch, price=price))
        found[BEST].append(select(base, weights, seed=problem, pool=pool))
    paths = {name: mean_path(some) for name, some in found.items()}
    peak = max(paths[RL], key=lambda point: point.truth)
    end, best = paths[RL][-1], paths[BEST][-1]
    return ExperimentResult(
        header=("way", "nats at the end", "proxy", "truth", f"truth at {NATS:g} nats", "best truth on the way"),
        rows=[_row(name, path) for name, path in paths.items()],
        panels=[
            LinePlot(
                title=title,
                x_label="KL from the base, nats",
                series=[
                    PlotSeries(
                        label=name,
                        x=[point.nats for point in path],
                        y=[point.proxy if title.startswith("score") else point.truth for point in path],
                    )
                    for name, path in paths.items()
                ],
            )
            for title in ("score by the reward model", "true reward")
        ],
        verdict=(
            f"At {NATS:g} nats from the base both have about the same true reward, "
            f"{at_nats(paths[BEST], NATS).truth:.1f} and {at_nats(paths[RL], NATS).truth:.1f}. RL goes on: the reward "
            f"model's score rises to {end.proxy:.1f} at {end.nats:.0f} nats, while the true reward falls from "
            f"{peak.truth:.1f} to {end.truth:.1f}. Best of n ends at {best.nats:.1f} nats with {best.truth:.1f}, and a "
            f"price of {PRICE} for each nat keeps RL at {paths[PRICED][-1].truth:.1f}."
        ),
        claims=claims_of(paths),
    )


EXPERIMENT = Experiment(
    title="best of n against RL",
    question="Does RL lose more of the true reward than best of n by the same reward model, at equal KL?",
    run=run,
    source="Gao et al., 2022",
)
