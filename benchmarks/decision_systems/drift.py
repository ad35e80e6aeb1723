"""Drift: a service keeps its reward when the world changes, recognises regimes that come back, and cries wolf rarely.

The world has logistic rewards, 5 arms and 6 features (10 and 10 where regimes recur, so that learning takes longer).
Every policy is LinUCB with a floor of 1%; rewards are shares of the best arm's. Settings are chosen on seeds below 100.
"""

import json
import math
import subprocess
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from peers import require_peer
from tables import Row

from decision_systems import AcceptanceLine, cpu_seconds
from hone.core.random import generator, permutation
from hone.decide.estimators.drift.detector import (
    AdaptiveWindow,
    BlockMeans,
    ConformalDetector,
    DriftDetector,
    MeanDetector,
    PageHinkley,
)
from hone.decide.monitor.config import MonitorConfig
from hone.decide.simulators.drifting import DriftingArms, DriftPhase, abrupt_changes
from hone.lab.drifting_service import serve_continually, serve_plainly, serve_table, serve_windows

TITLE = "Drift and continual learning"
SEED = 100
ARL = 2000.0
PASSES = 5
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


def windows(seeds: range, rounds: int) -> Iterator[AcceptanceLine]:
    """Two abrupt changes without a monitor: an ensemble of windows beside one learner, and what it costs in calm."""
    phases = abrupt_changes(rounds, [0, 1, 2]), abrupt_changes(rounds, [0])
    changing, still = (
        [DriftingArms(rounds=rounds, phases=own, seed=seed, **SHARED) for seed in seeds] for own in phases
    )
    lengths = (200, 1000, 0)
    with cpu_seconds() as spent:
        shares = np.array([serve_windows(world, lengths).share for world in changing])
    plain = np.array([serve_plainly(world).share for world in changing])
    alone = np.mean([serve_windows(world, (200,)).share for world in changing])
    calm_shares = [np.mean([serve_windows(world, own).share for world in still]) for own in (lengths, (200,))]
    calm_plain = np.mean([serve_plainly(world).share for world in still])
    yield AcceptanceLine(
        figure="two changes, gain of an ensemble of windows over one learner", value=float((shares - plain).mean()),
        at_least=0.01, seeds=len(seeds), cpu_s=spent.spent,
        words=f"{shares.mean():.3f} beside {plain.mean():.3f}, worst seed {(shares - plain).min():+.3f}; a window of "
        f"200 alone {alone:.3f}; without a change {calm_shares[0]:.3f}, {calm_plain:.3f} and {calm_shares[1]:.3f}",
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


def digits(seeds: range) -> Iterator[AcceptanceLine]:
    """Images of digits as contexts, classes as arms; after five passes every label means the next class."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - where it is installed

    images, labels = load_digits(return_X_y=True)
    contexts = np.column_stack([images / 16.0, np.ones(len(images))])
    ratios: dict[bool, list[float]] = {True: [], False: []}
    with cpu_seconds() as spent:
        for seed in seeds:
            order = np.concatenate([permutation(seed, "digits", one, count=len(images)) for one in range(2 * PASSES)])
            arm = np.where(np.arange(len(order)) < PASSES * len(images), labels[order], (labels[order] + 1) % 10)
            for watched in ratios:
                right = serve_table(contexts[order], arm, seed, watched=watched).reshape(2 * PASSES, -1).mean(axis=1)
                ratios[watched].append(float(right[-1] / right[PASSES - 1]))
    yield AcceptanceLine(
        figure="digits with exchanged labels, last pass over the last pass before", value=float(np.mean(ratios[True])),
        at_least=0.95, seeds=len(seeds), cpu_s=spent.spent, words=f"worst seed {min(ratios[True]):.3f}",
    )  # fmt: skip
    yield AcceptanceLine(
        figure="digits with exchanged labels, without a monitor", value=float(np.mean(ratios[False])), at_most=0.75,
        negative=True, seeds=len(seeds), words=f"best seed {max(ratios[False]):.3f}",
    )  # fmt: skip


def delays(stream: Sequence[float], alarms: Sequence[int], change: int) -> tuple[int, int]:
    """Values from the change to the first alarm after it, and the number of alarms before it."""
    after = [place - change for place in alarms if place >= change]
    return (after[0] if after else len(stream) - change), sum(place < change for place in alarms)


def stagger_rows(count: int) -> Iterator[Row]:
    """STAGGER: errors of a served naive Bayes model when the concept changes, beside ADWIN of River."""
    answer = river_alarms({"stagger": list(range(SEED, SEED + count))})
    own, peer = list[tuple[int, int]](), list[tuple[int, int]]()
    for stream, (change,), alarms in zip(answer["streams"], answer["changes"], answer["alarms"], strict=True):
        detector = ConformalDetector(arl=20_000.0)
        own.append(delays(stream, [place for place, value in enumerate(stream) if detector.update(value)], change))
        peer.append(delays(stream, [place for place, _ in alarms], change))
    delay, false = np.mean([one for one, _ in own]), sum(count for _, count in own)
    other, other_false = np.mean([one for one, _ in peer]), sum(count for _, count in peer)
    yield Row(
        row=f"STAGGER: delay of `conformal`, false alarms {false} (River {other_false})", value=float(delay),
        unit="rows", seeds=count, peer="River ADWIN", peer_value=float(other), ratio=float(delay / other),
        bar="<= peer", met=bool(delay <= other and false <= other_false),
    )  # fmt: skip


def occupancy_rows() -> Iterator[Row]:
    """Occupancy's four sensors: our ADWIN raises River's alarms; `page_hinkley` is sooner and raises more."""
    answer = river_alarms({"occupancy": True})
    same, late, soon, extra = 0, list[int](), list[int](), 0
    for stream, changes, alarms in zip(answer["streams"], answer["changes"], answer["alarms"], strict=True):
        window, sums = AdaptiveWindow(), PageHinkley(arl=20_000.0)
        same += [place for place, value in enumerate(stream) if window.update(value)] == [place for place, _ in alarms]
        found = [place for place, value in enumerate(stream) if sums.update(value)]
        late += [delays(stream, [place for place, _ in alarms], change)[0] for change in changes]
        soon += [delays(stream, found, change)[0] for change in changes]
        extra += len(found) - len(alarms)
    yield Row(
        row="occupancy: sensors with the alarms of River's ADWIN", value=same, unit="of 4", bar="4", met=same == 4
    )
    yield Row(
        row=f"occupancy: delay of `page_hinkley`, {extra} more alarms in all", value=float(np.mean(soon)), unit="rows",
        peer="River ADWIN", peer_value=float(np.mean(late)), ratio=float(np.mean(soon) / np.mean(late)),
    )  # fmt: skip


def river_alarms(request: dict[str, object]) -> dict[str, list]:
    """Ask River, in its own environment."""
    command = [str(require_peer("river")), str(Path(__file__).parents[1] / "drift_alarms.py")]
    answer = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=True)
    return json.loads(answer.stdout)


def peers() -> Iterator[Row]:
    """Detectors beside River's, on streams that nobody here made."""
    yield from stagger_rows(20)
    yield from occupancy_rows()


def acceptance(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Figures of the system; the fast form has fewer seeds and rounds."""
    few, rounds = range(SEED, SEED + (1 if fast else 20)), 6000 if fast else 9000
    yield from two_changes(few, rounds)
    yield from calm(few, rounds)
    yield from gradual(few, rounds)
    yield from recurring(range(SEED, SEED + (1 if fast else 10)), 9000)
    yield from run_lengths(range(SEED, SEED + (1 if fast else 30)), 20_000)
    yield from correlated(range(SEED, SEED + (1 if fast else 10)), 20_000)
    if not fast:
        yield from windows(few, rounds)
    if not fast and find_spec("sklearn") is not None:
        yield from digits(range(SEED, SEED + 3))
