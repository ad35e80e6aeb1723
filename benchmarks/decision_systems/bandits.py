"""Bandits that say their probability: speed of a decision, accuracy of the probabilities, reward on worlds not ours.

Times are processor time, medians over blocks of 100 calls, so that a busy machine tells the same as a quiet one.
"""

import importlib.util
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from peers import require_peer
from tables import Row

from decision_systems import FAST_SLACK, AcceptanceLine, cpu_seconds, slack
from hone.core.decisions import decision_key
from hone.core.random import generator, permutation
from hone.decide.bandits.greedy import (
    BoltzmannPolicy,
    GaussianThompsonPolicy,
    LinUcbPolicy,
    SquareCbPolicy,
    normal_best,
)
from hone.decide.bandits.models import BanditModel, LinearGaussianPosterior
from hone.decide.bandits.policy import BanditPolicy, numbered_actions
from hone.decide.bandits.wrappers import ActionRange, Clipped, EpsilonFloor, ForbiddenActions, Masked

TITLE = "Bandits"
ARMS, FEATURES, ROUNDS = 10, 8, 10_000
ACTIONS = numbered_actions(ARMS)
SEEDS = (100, 101, 102, 103, 104)
PASSES = 5
"""Factor of the bars of times in the fast form, which runs among other tests on any processor."""
Floats = NDArray[np.float64]
Rule = Callable[[BanditModel], BanditPolicy]


@dataclass(frozen=True, kw_only=True)
class BanditStream:
    """Contexts in their order, the expected reward of every arm, and the chance of each round."""

    contexts: Floats
    expected: Floats
    chance: Floats

    def reward(self, row: int, arm: int) -> float:
        """Reward 1 or 0 of an arm in a round: the same whoever pulls it."""
        return float(self.chance[row] < self.expected[row, arm])


def logistic_stream(seed: int, rounds: int = ROUNDS) -> BanditStream:
    """Ten arms whose rewards are 1 with a probability that is logistic in eight features."""
    draws = generator(seed, "logistic world")
    contexts, theta = draws.standard_normal((rounds, FEATURES)), draws.standard_normal((ARMS, FEATURES))
    expected = 1.0 / (1.0 + np.exp(-(contexts @ theta.T)))
    return BanditStream(contexts=contexts, expected=expected, chance=draws.random(rounds))


def digits_stream(seed: int) -> BanditStream:
    """scikit-learn's 1,797 images of digits, ten classes as arms, five passes in orders of their own."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - where it is installed

    images, labels = load_digits(return_X_y=True)
    order = np.concatenate([permutation(seed, "digits", one, count=len(images)) for one in range(PASSES)])
    expected = np.eye(ARMS)[labels[order]]
    return BanditStream(contexts=images[order] / 16.0, expected=expected, chance=np.full(len(order), 0.5))


def play(stream: BanditStream, rule: Rule, seed: int) -> tuple[Floats, float]:
    """Decide and learn round by round -> expected rewards `[n]` of the arms pulled, microseconds a round."""
    model = LinearGaussianPosterior(ARMS, stream.contexts.shape[1])
    policy, gained, one = rule(model), np.zeros(len(stream.contexts)), np.ones(1)
    begin = time.process_time()
    for row, context in enumerate(stream.contexts):
        arm = policy.act(context, ACTIONS, decision_key(seed, "bandits", str(row))).action
        gained[row] = stream.expected[row, arm]
        model.observe(context[None], np.array([arm]), np.array([stream.reward(row, arm)]), one, ACTIONS)
    return gained, (time.process_time() - begin) / len(gained) * 1e6


def microseconds(call: Callable[[int], object], blocks: int) -> float:
    """Median processor time of one call, over blocks of 100 calls."""
    spent: list[float] = []
    for _ in range(blocks + 1):
        begin = time.process_time_ns()
        for place in range(100):
            call(place)
        spent.append((time.process_time_ns() - begin) / 100e3)
    return float(np.median(spent[1:]))


def learnt_model(seed: int = 100) -> LinearGaussianPosterior:
    """A model that has learnt 500 rounds of uniform arms."""
    stream, model = logistic_stream(seed, 500), LinearGaussianPosterior(ARMS, FEATURES)
    arms = generator(seed, "arms").integers(0, ARMS, 500)
    rewards = np.array([stream.reward(row, arm) for row, arm in enumerate(arms)])
    model.observe(stream.contexts, arms, rewards, np.ones(500), ACTIONS)
    return model


def bar_words(*, fast: bool) -> str:
    """What a reader must know of a time's bar."""
    return f"bar widened {FAST_SLACK:g} times, as tests share their cores" if fast else "processor time"


def speed(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Time of a decision, of the quadrature, and of the probabilities of 100,000 logged rows."""
    blocks, model = (20 if fast else 100), learnt_model()
    contexts = generator(100, "contexts").standard_normal((100, FEATURES))
    keys = [decision_key(100, "bandits", str(place)) for place in range(100)]
    alone, words = LinUcbPolicy(model, 1.0), f"{blocks} blocks of 100 calls; {bar_words(fast=fast)}"
    served = EpsilonFloor(alone, 0.02)
    stack = Clipped(Masked(served, ForbiddenActions(("3",))), ActionRange(0, 8))
    for name, policy, bar in (
        ("a decision of LinUCB, 10 arms, us", alone, 20.0),
        ("the same with its floor, us", served, 20.0),
        ("the same, masked and clipped, us", stack, None),
        ("a decision of Thompson sampling with a floor, us", EpsilonFloor(GaussianThompsonPolicy(model), 0.02), None),
    ):
        with cpu_seconds() as cpu:
            value = microseconds(lambda place, one=policy: one.act(contexts[place], ACTIONS, keys[place]), blocks)
        yield AcceptanceLine(
            figure=name, value=value, at_most=bar and bar * slack(fast=fast), cpu_s=cpu.spent, words=words
        )
    mean, variance = model.estimate(contexts[0], ACTIONS)
    with cpu_seconds() as cpu:
        value = microseconds(lambda _: normal_best(mean, variance), blocks)
    yield AcceptanceLine(
        figure="quadrature, 10 arms, us", value=value, at_most=106.0 * slack(fast=fast), cpu_s=cpu.spent, words=words
    )
    rows = np.tile(contexts, (1000, 1))
    for name, policy in (("LinUCB", served), ("SquareCB", SquareCbPolicy(model))):
        with cpu_seconds() as cpu:
            policy.logp_rows(rows, ACTIONS)
        yield AcceptanceLine(
            figure=f"log-probabilities of 100,000 rows, {name}, s",
            value=cpu.spent,
            at_most=slack(fast=fast),
            cpu_s=cpu.spent,
        )
    few = rows[: 2000 if fast else 20_000]
    with cpu_seconds() as cpu:
        GaussianThompsonPolicy(model).logp_rows(few, ACTIONS)
    yield AcceptanceLine(
        figure="log-probabilities of 100,000 rows, Thompson sampling, s", value=cpu.spent * len(rows) / len(few),
        at_most=12.0 * slack(fast=fast), cpu_s=cpu.spent, words=f"one integral a row; measured on {len(few)} rows",
    )  # fmt: skip


def probabilities(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Accuracy of the quadrature against draws, and the bias of a wrong log-probability."""
    draws, cases = generator(100, "quadrature"), 10 if fast else 40
    worst, count = 0.0, 100_000 if fast else 1_000_000
    with cpu_seconds() as cpu:
        for case in range(cases):
            mean, spread = draws.standard_normal(ARMS), np.exp(draws.standard_normal(ARMS))
            spread[0] = 1e-6 if case % 2 else spread[0]
            best = (mean + spread * draws.standard_normal((count, ARMS))).argmax(axis=1)
            seen, expected = np.bincount(best, minlength=ARMS) / count, normal_best(mean, spread**2)
            error = np.sqrt(expected * (1 - expected) / count) + 1e-4
            worst = max(worst, float((np.abs(seen - expected) / error).max()))
    yield AcceptanceLine(
        figure="quadrature against draws, standard errors", value=worst, at_most=4.5, cpu_s=cpu.spent,
        words=f"worst arm of {cases} sets of 10, {count:,} draws each, every second set with an arm of width 1e-6",
    )  # fmt: skip
    for truthful in (True, False):
        with cpu_seconds() as cpu:
            bias, share = override_bias(truthful=truthful)
        yield AcceptanceLine(
            figure=f"bias of importance weighting where {share:.0%} of the actions are overridden", value=bias,
            at_most=1e-9 if truthful else None, at_least=None if truthful else 0.1, negative=not truthful,
            cpu_s=cpu.spent, words="exact expectation" if truthful else "logged with the chooser's probability",
        )  # fmt: skip


def override_bias(*, truthful: bool) -> tuple[float, float]:
    """Relative bias of importance weighting by enumeration, and the share of overridden actions.

    The log has the wrapper's probability of the executed action, or the chooser's.
    """
    model = learnt_model()
    contexts = generator(101, "contexts").standard_normal((2000, FEATURES))
    chooser = EpsilonFloor(BoltzmannPolicy(model, 0.3), 0.1)
    served = Clipped(chooser, ActionRange(0, 7))
    target = Masked(BoltzmannPolicy(learnt_model(101), 0.3), ForbiddenActions(("8", "9")))
    worth = 1.0 / (1.0 + np.exp(-(contexts @ generator(100, "worth").standard_normal((FEATURES, ARMS)))))
    executed, wanted = np.exp(served.logp_rows(contexts, ACTIONS)), np.exp(target.logp_rows(contexts, ACTIONS))
    chosen = np.exp(chooser.logp_rows(contexts, ACTIONS))
    logged, overridden = executed if truthful else chosen, float(chosen[:, 8:].sum(axis=1).mean())
    weight = np.divide(wanted, logged, out=np.zeros_like(wanted), where=wanted > 0)
    return abs(float((executed * weight * worth).sum() / (wanted * worth).sum()) - 1.0), overridden


def rewards(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Reward of LinUCB on the logistic world, and on the digits where scikit-learn is installed."""
    seeds = SEEDS[:1] if fast else SEEDS
    with cpu_seconds() as cpu:
        streams = {seed: logistic_stream(seed) for seed in seeds}
        shares = [
            float(play(streams[seed], lucb(0.5), seed)[0].mean() / streams[seed].expected.max(axis=1).mean())
            for seed in seeds
        ]
    yield AcceptanceLine(
        figure="LinUCB on the logistic world, share of the best", value=float(np.mean(shares)), at_least=0.93,
        seeds=len(seeds), cpu_s=cpu.spent, words=f"{ROUNDS:,} rounds, worst seed {min(shares):.3f}",
    )  # fmt: skip
    if importlib.util.find_spec("sklearn") is not None:
        yield from digits(seeds[:3], fast=fast)


def digits(seeds: tuple[int, ...], *, fast: bool) -> Iterator[AcceptanceLine]:
    """Five passes over the digits."""
    with cpu_seconds() as cpu:
        played = [play(digits_stream(seed), lucb(0.2), seed) for seed in seeds]
    right = np.array([gained.reshape(PASSES, -1).mean(axis=1) for gained, _ in played])
    words = f"{PASSES} passes; worst seed {right.mean(axis=1).min():.3f}, its last pass {right[:, -1].min():.3f}"
    times = [time_us for _, time_us in played]
    for name, value, low, high in (
        ("mean of all passes", float(right.mean()), 0.945, None),
        ("last pass", float(right[:, -1].mean()), 0.98, None),
        ("processor time of a round, us", float(np.median(times)), None, 46.0 * slack(fast=fast)),
    ):
        yield AcceptanceLine(
            figure=f"LinUCB on the digits, {name}", value=value, at_least=low, at_most=high, seeds=len(seeds),
            cpu_s=cpu.spent / 3, words=words,
        )  # fmt: skip


def lucb(alpha: float) -> Rule:
    """LinUCB of one width; 0.5 and 0.2 were chosen on seeds below 100."""
    return lambda model: LinUcbPolicy(model, alpha)


def acceptance(*, fast: bool) -> Iterator[AcceptanceLine]:
    """All figures."""
    yield from speed(fast=fast)
    yield from probabilities(fast=fast)
    yield from rewards(fast=fast)


def peers() -> Iterator[Row]:
    """MABWiser's LinUCB and Vowpal Wabbit's SquareCB on the same worlds and chance."""
    python, script = require_peer("bandits"), Path(__file__).resolve().parents[1] / "bandits_peer.py"
    for world, make, alpha in (("logistic", logistic_stream, 0.5), ("digits", digits_stream, 0.2)):
        streams = [make(seed) for seed in SEEDS[:3]]
        with tempfile.TemporaryDirectory() as folder:
            for place, one in enumerate(streams):
                path = Path(folder) / f"{place}.npz"
                np.savez(path, contexts=one.contexts, expected=one.expected, chance=one.chance)
            command = [str(python), str(script), folder, str(alpha)]
            answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found = {line["policy"]: line for line in map(json.loads, answer.splitlines())}
        best = [one.expected.max(axis=1).mean() for one in streams]
        for name, rule, peer in (
            ("LinUCB", lucb(alpha), "mabwiser_linucb"), ("SquareCB", SquareCbPolicy, "vw_squarecb"),
        ):  # fmt: skip
            played = [play(one, rule, seed) for one, seed in zip(streams, SEEDS, strict=False)]
            shares = [gained.mean() / top for (gained, _), top in zip(played, best, strict=True)]
            others = [value / top for value, top in zip(found[peer]["means"], best, strict=True)]
            yield Row(
                row=f"{name} on the {world} world, share of the best (worst seed {min(shares):.3f})",
                value=float(np.mean(shares)), unit="", seeds=3, peer=found[peer]["version"],
                peer_value=float(np.mean(others)), ratio=float(np.mean(shares) / np.mean(others)),
                bar="the peer's - 0.01", met=bool(np.mean(shares) >= np.mean(others) - 0.01),
            )  # fmt: skip
            us = float(np.median([time_us for _, time_us in played]))
            yield Row(
                row=f"{name} on the {world} world, one round", value=us, unit="us", seeds=3,
                peer=found[peer]["version"], peer_value=found[peer]["us"], ratio=found[peer]["us"] / us,
                bar="the peer's", met=us <= found[peer]["us"],
            )  # fmt: skip
