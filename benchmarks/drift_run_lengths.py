"""False alarms of the monitor beside those that its run length declares, and delays of real changes, by simulation.

    python benchmarks/drift_run_lengths.py [--seeds 4] [--rewards 40000] [--arl 2000]
    python benchmarks/drift_run_lengths.py --cycle-s 0 --per-day 20000 --before 10000    a service without a daily cycle

Streams without a change go through the monitor of a service, as decisions with scores and rewards: independent rewards
of many distributions, residuals of learners that learn while they serve, and rewards that follow the time of day. The
second table has the median number of rewards from a change to its alarm.
"""

import argparse
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hone.core.decisions import ActionSet, Choice, Decision, Outcome
from hone.core.random import generator
from hone.decide.monitor.alarms import MonitorAlarm
from hone.decide.monitor.config import MonitorConfig
from hone.decide.monitor.monitor import ServiceMonitor

Floats = NDArray[np.float64]
ACTIONS = ActionSet(names=("only",))
DAY_S = 86_400.0
FAMILIES: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "normal": lambda draws, n: draws.standard_normal(n),
    "rewards of 30%": lambda draws, n: (draws.random(n) < 0.3) * 1.0,
    "rewards of 10%": lambda draws, n: (draws.random(n) < 0.1) * 1.0,
    "rewards of 2%": lambda draws, n: (draws.random(n) < 0.02) * 1.0,
    "rewards of 0.5%": lambda draws, n: (draws.random(n) < 0.005) * 1.0,
    "exponential": lambda draws, n: draws.exponential(size=n),
    "log-normal, sigma 1": lambda draws, n: np.exp(draws.standard_normal(n)),
    "log-normal, sigma 2": lambda draws, n: np.exp(2 * draws.standard_normal(n)),
    "zero but for 5% exponential": lambda draws, n: (draws.random(n) < 0.05) * draws.exponential(size=n),
    "zero but for 1% log-normal": lambda draws, n: (draws.random(n) < 0.01) * np.exp(draws.standard_normal(n)),
    "Pareto 2.2": lambda draws, n: draws.pareto(2.2, n),
    "Student t 3": lambda draws, n: draws.standard_t(3, n),
    "Cauchy": lambda draws, n: draws.standard_cauchy(n),
}


def ridge_residuals(draws: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Rewards, linear in five features, and predictions of a ridge regression that has learnt from those before."""
    contexts, truth = draws.standard_normal((n, 5)), draws.standard_normal(5)
    rewards = contexts @ truth + draws.standard_normal(n)
    inverse, weights, predicted = np.eye(5), np.zeros(5), np.zeros(n)
    for k, row in enumerate(contexts):
        predicted[k] = row @ weights
        gain = inverse @ row / (1 + row @ inverse @ row)
        weights = weights + gain * (rewards[k] - predicted[k])
        inverse -= np.outer(gain, row @ inverse)
    return rewards, predicted


def slow_residuals(draws: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Rewards of 40%, and predictions that come 1/500 of the way nearer to each of them, from 0 on."""
    rewards, predicted = (draws.random(n) < 0.4) * 1.0, np.zeros(n)
    for k in range(1, n):
        predicted[k] = predicted[k - 1] + (rewards[k - 1] - predicted[k - 1]) / 500
    return rewards, predicted


def bandit_residuals(draws: np.random.Generator, n: int) -> tuple[Floats, Floats]:
    """Rewards of 10 arms under epsilon-greedy by their means, which are the predictions."""
    rates, sums, counts = draws.uniform(0.05, 0.5, 10), np.full(10, 1.0), np.full(10, 2.0)
    rewards, predicted = np.zeros(n), np.zeros(n)
    for k in range(n):
        arm = int(draws.integers(10)) if draws.random() < 0.05 else int((sums / counts).argmax())
        predicted[k], rewards[k] = sums[arm] / counts[arm], draws.random() < rates[arm]
        sums[arm] += rewards[k]
        counts[arm] += 1
    return rewards, predicted


LEARNERS = {
    "a ridge regression that learns": ridge_residuals,
    "a mean that learns slowly": slow_residuals,
    "a bandit of 10 arms that learns": bandit_residuals,
}
SHAPES: dict[str, Callable[[Floats], Floats]] = {
    "sine": np.sin,
    "day and night": lambda angle: np.sign(np.sin(angle)),
    "rush hour": lambda angle: 2 * np.exp(-(((angle % (2 * math.pi) - 2) / 0.4) ** 2)) - 0.45,
}


def alarms_of(
    rewards: Floats, config: MonitorConfig, *, predicted: Floats | None = None, at_s: Floats | None = None
) -> list[MonitorAlarm]:
    """Alarms of a monitor on these rewards."""
    heard: list[MonitorAlarm] = []

    class Ear:
        def alarm(self, alarm: MonitorAlarm) -> None:
            heard.append(alarm)

    monitor = ServiceMonitor(config, Ear())
    context, times = np.zeros(0), np.arange(len(rewards)) * 1.0 if at_s is None else at_s
    scores = np.zeros(len(rewards)) if predicted is None else predicted
    for number, value in enumerate(rewards.tolist()):
        choice = Choice(action=0, logp=0.0, scores=None if predicted is None else scores[number : number + 1])
        name, time_s = str(number), float(times[number])
        monitor.observe(Decision(
            id=name, tenant="shop", unit=name, at_s=time_s, context=context, actions=ACTIONS, choice=choice, executed=0,
            executed_logp=0.0, version="v", source="gate", seq=2 * number,
        ))  # fmt: skip
        monitor.observe(Outcome(decision_id=name, tenant="shop", value=value, at_s=time_s, source="gate",
                                seq=2 * number + 1))  # fmt: skip
    return heard


def daily(shape: str, per_day: int, n: int, draws: np.random.Generator, noise: str) -> tuple[Floats, Floats]:
    """Rewards whose mean follows the day by half a standard deviation, and their times."""
    at_s = np.sort(draws.random(n)) * n / per_day * DAY_S
    wave = 0.5 * SHAPES[shape](2 * math.pi * at_s / DAY_S)
    if noise == "normal":
        return wave + draws.standard_normal(n), at_s
    return (draws.random(n) < 0.3 + wave * 0.45) * 1.0, at_s


def false_alarms(seeds: int, n: int, arl: float, cycle_s: float, detectors: Sequence[str]) -> None:
    """Print alarms on streams without a change, as shares of those declared."""
    print("| stream | " + " | ".join(detectors) + " |\n|---|" + "--:|" * len(detectors))
    rows: dict[str, Callable[[np.random.Generator], dict[str, Floats]]] = {
        name: lambda draws, make=make: {"rewards": make(draws, n)} for name, make in FAMILIES.items()
    }
    for name, learn in LEARNERS.items():
        rows[f"residual of {name}"] = lambda draws, learn=learn: dict(
            zip(("rewards", "predicted"), learn(draws, n), strict=True)
        )
    for shape in SHAPES if cycle_s else ():
        for noise in ("normal", "30%"):
            rows[f"daily cycle, {shape}, {noise}"] = lambda draws, shape=shape, noise=noise: dict(
                zip(("rewards", "at_s"), daily(shape, 2000, n, draws, noise), strict=True)
            )
    for name, make in rows.items():
        shares: list[str] = []
        for detector in detectors:
            config = MonitorConfig(arl=arl, detector=detector, feature_window=0, cycle_s=cycle_s)  # type: ignore[arg-type]
            streams = [make(generator(seed, "run lengths")) for seed in range(seeds)]
            heard = [alarm.signal for stream in streams for alarm in alarms_of(config=config, **stream)]
            refused = " (refused)" if "refused" in heard else ""
            shares.append(f"{len(heard) / (seeds * n / arl):.2f}{refused}")
        print(f"| {name} | " + " | ".join(shares) + " |", flush=True)


CHANGES = {
    "normal, by 0.5 sigma": ("normal", lambda x: x + 0.5),
    "normal, by 1 sigma": ("normal", lambda x: x + 1.0),
    "normal, by -0.3 sigma": ("normal", lambda x: x - 0.3),
    "exponential, by half": ("exponential", lambda x: x * 1.5),
    "exponential, to half": ("exponential", lambda x: x * 0.5),
    "log-normal, by half": ("log-normal, sigma 1", lambda x: x * 1.5),
    "zero but for 5% exponential, doubled": ("zero but for 5% exponential", lambda x: 2 * x),
}
RATES = {"rewards of 30% to 50%": (0.3, 0.5), "rewards of 30% to 20%": (0.3, 0.2), "rewards of 5% to 10%": (0.05, 0.1),
         "rewards of 2% to 4%": (0.02, 0.04)}  # fmt: skip


def changed(name: str, draws: np.random.Generator, before: int) -> Floats:
    """`before` rewards before a change and 6,000 after it."""
    count = before + 6000
    if name in RATES:
        return (draws.random(count) < np.repeat(RATES[name], (before, 6000))) * 1.0
    family, change = CHANGES[name]
    stream = FAMILIES[family](draws, count)
    stream[before:] = change(stream[before:])
    return stream


def delays(seeds: int, arl: float, cycle_s: float, per_day: float, before: int, detectors: Sequence[str]) -> None:
    """Print the median delay of a change after `before` rewards."""
    print(f"\n| change after {before:,} rewards | " + " | ".join(detectors) + " |\n|---|" + "--:|" * len(detectors))
    for name in (*CHANGES, *RATES):
        cells: list[str] = []
        for detector in detectors:
            config = MonitorConfig(arl=arl, detector=detector, feature_window=0, cycle_s=cycle_s)  # type: ignore[arg-type]
            waited: list[float] = []
            for seed in range(seeds):
                rewards = changed(name, generator(seed, "delays"), before)
                alarms = alarms_of(rewards, config, at_s=np.arange(len(rewards)) * DAY_S / per_day)
                counts = [alarm.count - before for alarm in alarms]
                waited.append(next((count for count in counts if count > 0), math.inf))
            middle = float(np.median(waited))
            cells.append(f"{middle:.0f}" if math.isfinite(middle) else "> 6000")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--rewards", type=int, default=40_000)
    parser.add_argument("--arl", type=float, default=2000.0)
    parser.add_argument("--change-seeds", type=int, default=9)
    parser.add_argument("--cycle-s", type=float, default=DAY_S, help="cycle_s of the monitor")
    parser.add_argument("--per-day", type=float, default=DAY_S, help="rewards a day, of the second table")
    parser.add_argument("--before", type=int, default=3000, help="rewards before the change")
    parser.add_argument("--detectors", nargs="+", default=["page_hinkley", "adwin", "conformal"])
    parser.add_argument("--quick", action="store_true", help="one seed and 2,000 rewards")
    asked = parser.parse_args()
    if asked.quick:
        asked.seeds, asked.rewards, asked.change_seeds = 1, 2000, 1
    false_alarms(asked.seeds, asked.rewards, asked.arl, asked.cycle_s, asked.detectors)
    delays(asked.change_seeds, 20_000.0, asked.cycle_s, asked.per_day, asked.before, asked.detectors)


if __name__ == "__main__":
    main()
