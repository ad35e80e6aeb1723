"""Reward models of letter pairs, exactly: learnt from compared strings, then optimised by selection or by RL.

The policy is a table of one letter after another, so that its divergence from the base is exact; the reward model has a
weight for each pair of neighbours.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hone.core.credit import NO_VALUES
from hone.core.ragged import Ints
from hone.core.random import generator
from hone.credit.group import group_relative
from hone.lab.exact import gradient, scored_episodes
from hone.lab.finding import Floats, LinePlot, PlotSeries
from hone.lab.policies import sample_rows
from hone.lab.tasks.letter_pairs import LETTERS, first_is_preferred, true_reward
from hone.objectives.policy import reinforce_loss
from hone.objectives.reward_model import bradley_terry
from hone.text.search import estimates

SIZE, _LENGTH, _RATE = len(LETTERS), 16, 8.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimisedPoint:
    """Where a way of optimising stands."""

    nats: float
    """KL(policy | base) of a string."""
    proxy: float
    """Mean score by the reward model."""
    truth: float
    """Mean true reward."""


def _draw_strings(logits: Tensor, count: int, *, seed: int, stream: str, number: int = 0) -> Ints:
    """`[count, LENGTH]` strings of a table policy `[SIZE, SIZE]`, as numbers of letters; the first one is uniform."""
    random = generator(seed, f"lab/{stream}", number)
    chances = torch.softmax(logits, dim=1).numpy()
    strings = np.empty((count, _LENGTH), np.int64)
    strings[:, 0] = random.integers(0, SIZE, count)
    for place in range(1, _LENGTH):
        strings[:, place] = sample_rows(chances[strings[:, place - 1]], random.random(count))
    return strings


def _pair_counts(strings: Ints) -> Floats:
    """`[n, SIZE * SIZE]` how often each pair of neighbours occurs."""
    pairs = strings[:, :-1] * SIZE + strings[:, 1:]
    return np.stack([np.bincount(row, minlength=SIZE * SIZE) for row in pairs]).astype(np.float64)


def _truths(strings: Ints, seed: int) -> Floats:
    """`[n]` true rewards."""
    return np.array([true_reward("".join(LETTERS[letter] for letter in row), seed=seed) for row in strings.tolist()])


def weighted_counts(weights: Floats, counts: Floats) -> Floats:
    """`[n]` scores of counted pairs `[n, SIZE * SIZE]` by one model."""
    return counts @ weights


def learn_rewards(base: Tensor, seed: int, *, pairs: int, member: int = 0) -> Floats:
    """`[SIZE * SIZE]` weights of a Bradley-Terry model of `pairs` compared pairs of the base's strings; each `member`
    of an ensemble has its own."""
    names = ("first", "second")
    first, second = (_draw_strings(base, pairs, seed=seed, stream=name, number=member) for name in names)
    won = first_is_preferred(_truths(first, seed), _truths(second, seed), seed=seed)
    gap = np.where(won[:, None], 1.0, -1.0) * (_pair_counts(first) - _pair_counts(second))
    rows = torch.from_numpy(gap)
    weights = torch.zeros(SIZE * SIZE, dtype=torch.float64, requires_grad=True)
    for _ in range(200):
        score = rows @ weights
        loss = bradley_terry(score, torch.zeros_like(score)).loss.mean() + 1e-3 * weights.square().sum()
        weights = (weights - 1.0 * gradient(loss, weights)).detach().requires_grad_(True)
    return weights.detach().numpy()


def _divergence(logits: Tensor, base: Tensor) -> float:
    """KL of a string's distribution from the base's, nats: the sum over places of the mean divergence of a row."""
    mine, theirs = torch.log_softmax(logits.double(), 1), torch.log_softmax(base.double(), 1)
    rows = (mine.exp() * (mine - theirs)).sum(dim=1)
    share, total = torch.full((SIZE,), 1 / SIZE, dtype=torch.float64), 0.0
    for _ in range(_LENGTH - 1):
        total += float(share @ rows)
        share = share @ mine.exp()
    return total


def optimise(
    base: Tensor, scores: Callable[[Floats], Floats], *, seed: int, steps: int, batch: int, price: float = 0.0
) -> list[OptimisedPoint]:
    """REINFORCE on the `scores` `[n]` of counted pairs `[n, SIZE * SIZE]`, less `price` for each nat of a string's
    log-ratio to the base."""
    logits, points = base.clone(), list[OptimisedPoint]()
    for step in range(steps + 1):
        strings = _draw_strings(logits, batch, seed=seed, stream="rl", number=step)
        counts = _pair_counts(strings)
        proxy = scores(counts)
        points.append(
            OptimisedPoint(
                nats=_divergence(logits, base), proxy=float(proxy.mean()), truth=float(_truths(strings, seed).mean())
            )
        )
        ratio = torch.log_softmax(logits, 1) - torch.log_softmax(base, 1)
        paid = proxy - price * counts @ ratio.double().flatten().numpy()
        credits = group_relative(scored_episodes(paid, np.zeros(batch, np.int64)), NO_VALUES)
        table = logits.clone().requires_grad_(True)
        logp = torch.from_numpy(counts).float() @ torch.log_softmax(table, 1).flatten()
        loss = reinforce_loss(logp, torch.from_numpy(credits.advantage)).loss.mean() / (_LENGTH - 1)
        logits = logits - _RATE * gradient(loss, table)
    return points


def select(base: Tensor, weights: Floats, *, seed: int, pool: int) -> list[OptimisedPoint]:
    """Best of n for n = 1, 2, 4 ...: means over all subsets of a pool, at ln n - (n - 1) / n nats from the base."""
    strings = _draw_strings(base, pool, seed=seed, stream="pool")
    proxy, truth = (_pair_counts(strings) @ weights)[None], _truths(strings, seed)[None]
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


def kl_panels(paths: Mapping[str, list[OptimisedPoint]]) -> list[LinePlot]:
    """The reward model's score and the true reward over the distance from the base, a line for each path."""
    return [
        LinePlot(
            title=title,
            x_label="KL from the base, nats",
            series=[
                PlotSeries(
                    label=name,
                    x=[point.nats for point in path],
                    y=[point.truth if is_true else point.proxy for point in path],
                )
                for name, path in paths.items()
            ],
        )
        for title, is_true in (("score by the reward model", False), ("true reward", True))
    ]


def at_nats(points: list[OptimisedPoint], nats: float) -> OptimisedPoint:
    """The first point as far from the base as `nats`, or the last one."""
    return next((point for point in points if point.nats >= nats), points[-1])
