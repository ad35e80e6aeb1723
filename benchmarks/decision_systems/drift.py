"""Drift: a service keeps its reward when the world changes, recognises regimes that come back, and cries wolf rarely.

The world has logistic rewards, 5 arms and 6 features (10 and 10 where regimes recur, so that learning takes longer).
Every policy is LinUCB with a floor of 1%; rewards are shares of the best arm's. Settings are chosen on seeds below 100.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np

from decision_systems import AcceptanceLine, cpu_seconds
from hone.core.random import generator
from hone.envs.services.drifting import DriftingArms, DriftPhase, abrupt_changes
from hone.estimators.drift.adaptive_window import AdaptiveWindow
from hone.estimators.drift.detector import BlockMeans, DriftDetector
from hone.estimators.drift.e_detector import ConformalDetector, MeanDetector
from hone.estimators.drift.page_hinkley import PageHinkley
from hone.lab.drifting_service import serve_continually, serve_plainly
from hone.serve.monitor.config import MonitorConfig

TITLE = "Drift and continual learning"
SEED = 100
ARL = 2000.0
SHARED = {"spread": 3.0}
"""Settings of every world."""


def two_changes(seeds: range, rounds: int) -> Iterator[AcceptanceLine]:
    """Two abrupt changes: the monitored service, a reset at the known changes, and a frozen version."""
    worlds = [
        DriftingArms(rounds=rounds, phases=abrupt_changes(rounds, [0, 1, 2]), seed=seed, **SHARED) for seed in seeds
    ]
    changes = [phase.start for phase in worlds[0].phases[1:]]
    with cpu_seconds() as spent:
        runs = [serve_continually(world, MonitorConfig()) for world in worlds]
    shares = np.array([run.share for run in runs])
    counts = [len(run.learner.alarms) for run in runs if run.learner is not None]
    yield AcceptanceLine(
        figure="two changes, share of the best", value=float(shares.mean()), at_least=0.94, seeds=len(seeds),
        cpu_s=spent.spent,
        words=f"{rounds} rounds, worst seed {shares.min():.3f}, alarms {min(counts)} to {max(counts)}",
    )  # fmt: skip
    known = np.array([serve_plainly(world, resets=changes).share for world in worlds])
    yield AcceptanceLine(
        figure="two changes, share of a reset at the known changes", value=float(shares.mean() / known.mean()),
        at_least=0.97, seeds=len(seeds), words=f"known {known.mean():.3f}, worst seed {(shares / known).min():.3f}",
    )  # fmt: skip
    frozen = np.array([serve_plainly(world, freeze=changes[0]).share for world in worlds])
    yield AcceptanceLine(
        figure="two changes, the first version served on", value=float(frozen.mean()), at_most=0.75, negative=True,
        seeds=len(seeds), words=f"best seed {frozen.max():.3f}",
    )  # fmt: skip


def calm(seeds: range, rounds: int) -> Iterator[AcceptanceLine]:
    """No change: the reward that the monitor costs."""
    worlds = [DriftingArms(rounds=rounds, phases=abrupt_changes(rounds, [0]), seed=seed, **SHARED) for seed in seeds]
    with cpu_seconds() as spent:
        losses = [1 - serve_continually(world, MonitorConfig()).share / serve_plainly(world).share for world in worlds]
    yield AcceptanceLine(
        figure="no change, reward lost to the monitor", value=float(np.mean(losses)), at_most=0.01, seeds=len(seeds),
        cpu_s=spent.spent, words=f"{rounds} rounds, worst seed {max(losses):.4f}",
    )  # fmt: skip


def gradual(seeds: range, rounds: int) -> Iterator[AcceptanceLine]:
    """A change over a sixth of the rounds: the monitored service beside one that goes on learning."""
    phases = (DriftPhase(start=0, regime=0), DriftPhase(start=rounds // 3, regime=1, blend=rounds // 6))
    worlds = [DriftingArms(rounds=rounds, phases=phases, seed=seed, **SHARED) for seed in seeds]
    with cpu_seconds() as spent:
        shares = [serve_continually(world, MonitorConfig()).share for world in worlds]
    plain = [serve_plainly(world).share for world in worlds]
    yield AcceptanceLine(
        figure="gradual change, share of the best", value=float(np.mean(shares)), at_least=0.94, seeds=len(seeds),
        cpu_s=spent.spent,
        words=f"worst seed {min(shares):.3f}; a learner without a monitor {np.mean(plain):.3f}",
    )  # fmt: skip


def recurring(seeds: range, rounds: int) -> Iterator[AcceptanceLine]:
    """Two regimes by turns: the share of returns at which the version of that regime is recalled within 300 rounds."""
    regimes = [0, 1, 0, 1, 0]
    recalled, shares, anew, wrong = 0, list[float](), list[float](), 0
    with cpu_seconds() as spent:
        for seed in seeds:
            world = DriftingArms(
                rounds=rounds, phases=abrupt_changes(rounds, regimes), seed=seed, arms=10, features=10, **SHARED
            )
            run = serve_continually(world, MonitorConfig(act="recall"))
            assert run.learner is not None
            shares.append(run.share)
            anew.append(serve_continually(world, MonitorConfig()).share)
            recalls = [int(action.evidence.at_s) for action in run.learner.actions if action.kind == "recall"]
            returns = [phase.start for phase in world.phases[2:]]
            recalled += sum(any(start < at <= start + 300 for at in recalls) for start in returns)
            wrong += sum(not any(start < at <= start + 400 for start in returns) for at in recalls)
    yield AcceptanceLine(
        figure="recurring drift, returns recalled within 300 rounds", value=recalled / (3 * len(seeds)), at_least=0.7,
        seeds=len(seeds), cpu_s=spent.spent,
        words=f"{wrong} recalls at other times; share of the best {np.mean(shares):.3f}, anew each time "
        f"{np.mean(anew):.3f}, worst seed {min(shares):.3f}",
    )  # fmt: skip


DETECTORS: dict[str, Callable[[], DriftDetector]] = {
    "ADWIN": lambda: AdaptiveWindow(delta=32 / ARL),
    "Page-Hinkley": lambda: PageHinkley(arl=ARL),
    "conformal": lambda: ConformalDetector(arl=ARL),
    "known mean": lambda: MeanDetector(arl=ARL, mean=0.3, low=0.0, high=1.0),
}


def run_lengths(seeds: range, count: int) -> Iterator[AcceptanceLine]:
    """Alarms on rewards of 30% without a change, as a share of those that the declared run length allows."""
    for name, make in DETECTORS.items():
        alarms = 0
        with cpu_seconds() as spent:
            for seed in seeds:
                stream = (generator(seed, "calm rewards").random(count) < 0.3).astype(np.float64).tolist()
                alarms += sum(map(make().update, stream))
        allowed = len(seeds) * count / ARL
        yield AcceptanceLine(
            figure=f"{name}: false alarms over those declared", value=alarms / allowed,
            at_most=1 + 3 / math.sqrt(allowed), seeds=len(seeds), cpu_s=spent.spent,
            words=f"{alarms} in {len(seeds)} x {count} rewards, {allowed:.0f} declared; "
            f"{spent.spent / len(seeds) / count * 1e6:.1f} us each",
        )  # fmt: skip


def correlated(seeds: range, count: int) -> Iterator[AcceptanceLine]:
    """Rewards that keep 0.8 of the last one: blocks of 40 keep the declared run length, single rewards do not."""
    found = {1: 0, 40: 0}
    with cpu_seconds() as spent:
        for seed in seeds:
            shocks, last, stream = generator(seed, "shocks").standard_normal(count).tolist(), 0.0, list[float]()
            for shock in shocks:
                last = 0.8 * last + shock
                stream.append(last)
            for block in found:
                inner = ConformalDetector(arl=ARL / block, seed=seed)
                detector = inner if block == 1 else BlockMeans(inner, block)
                found[block] += sum(map(detector.update, stream))
    allowed = len(seeds) * count / ARL
    yield AcceptanceLine(
        figure="correlated rewards in blocks: false alarms over those declared", value=found[40] / allowed,
        at_most=1 + 3 / math.sqrt(allowed), seeds=len(seeds), cpu_s=spent.spent, words=f"{found[40]} of {allowed:.0f}",
    )  # fmt: skip
    yield AcceptanceLine(
        figure="correlated rewards one by one: false alarms over those declared", value=found[1] / allowed,
        at_least=2.0, negative=True, seeds=len(seeds), words=f"{found[1]} of {allowed:.0f}",
    )  # fmt: skip


def acceptance(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Figures of the system; the fast form has fewer seeds and rounds."""
    few, rounds = range(SEED, SEED + (1 if fast else 20)), 6000 if fast else 9000
    yield from two_changes(few, rounds)
    yield from calm(few, rounds)
    yield from gradual(few, rounds)
    yield from recurring(range(SEED, SEED + (1 if fast else 10)), 9000)
    yield from run_lengths(range(SEED, SEED + (1 if fast else 30)), 20_000)
    yield from correlated(range(SEED, SEED + (1 if fast else 10)), 20_000)
