"""Peeking: a rollout that is looked at every 100 requests, by a z-test and by an e-process."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from hone.core.random import generator
from hone.decide.estimators.sequential import matched_scores, mixture_paths
from hone.decide.simulators.drifting import StagedTraffic
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, bar_plot, line_plot

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

ALPHA = 0.05
EVERY = 100
"""Requests between two looks."""
Z_TEST, ONE_LOOK, E_PROCESS = "z-test, each look", "z-test, last look", "e-process, each look"


def z_of_losses(values: Floats, is_new: Bools, ends: Ints) -> Floats:
    """z statistic of "the new mean is lower" after each number of units `ends` `[L]`; 0 with fewer than 10 an arm.

    The level of a z-test holds for one look that was planned before.
    """

    def sums(of: Floats) -> Floats:
        return np.concatenate([[0.0], np.cumsum(of)])[ends]

    parts: list[tuple[Floats, Floats, Floats]] = []
    for arm in (is_new, ~is_new):
        count = sums(arm.astype(np.float64))
        mean = sums(values * arm) / np.maximum(count, 1)
        parts.append((count, mean, sums(values**2 * arm) / np.maximum(count, 1) - mean**2))
    (new_count, new_mean, new_variance), (old_count, old_mean, old_variance) = parts
    enough = (new_count >= 10) & (old_count >= 10)
    error = np.sqrt(new_variance / np.maximum(new_count, 1) + old_variance / np.maximum(old_count, 1))
    return np.where(enough & (error > 0), (old_mean - new_mean) / np.where(error > 0, error, 1.0), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedAt:
    """Alarms of one rollout: the requests after which each test rolls back; infinite: never."""

    z_test: float
    one_look: float
    e_process: float


def look_at(traffic: StagedTraffic, random: np.random.Generator, alpha: float = ALPHA) -> LookedAt:
    """Simulate one rollout and look at it every 100 requests."""
    requests, is_new = traffic.exposures(random)
    values = traffic.values(is_new, random)
    looks = np.arange(EVERY, len(traffic.stages) * traffic.requests + 1, EVERY)
    ends = np.searchsorted(requests, looks)
    z = z_of_losses(values, is_new, ends)
    limit = NormalDist().inv_cdf(1 - alpha)
    path = mixture_paths(matched_scores(values, is_new))
    highest = np.concatenate([[0.0], np.maximum.accumulate(path)])[ends]
    return LookedAt(
        z_test=_first(z > limit, looks),
        one_look=float(looks[-1]) if z[-1] > limit else math.inf,
        e_process=_first(highest >= -math.log(alpha), looks),
    )


def _first(alarms: Bools, looks: Ints) -> float:
    places = np.flatnonzero(alarms)
    return float(looks[places[0]]) if len(places) else math.inf


def alarms_of(seed: int, runs: int, change: float) -> dict[str, Floats]:
    """Requests until each test rolls back, `[runs]` by test; infinite: never."""
    traffic = StagedTraffic(change=change)
    found = [look_at(traffic, generator(seed, "lab/peeking", f"{change:g}", run)) for run in range(runs)]
    return {
        Z_TEST: np.array([one.z_test for one in found]),
        ONE_LOOK: np.array([one.one_look for one in found]),
        E_PROCESS: np.array([one.e_process for one in found]),
    }


def claims_of(false: dict[str, float], power: float) -> list[BoundedClaim]:
    """Claims on the false rollbacks by test, and on the e-process' power."""
    return [
        at_least("false rollbacks by a z-test at each look", false[Z_TEST], 0.2),
        at_most("false rollbacks by a z-test at the last look", false[ONE_LOOK], 0.1),
        at_most("false rollbacks by an e-process at each look", false[E_PROCESS], 0.06),
        at_least("losses of 5% that the e-process finds", power, 0.85),
    ]


def run(seed: int, *, quick: bool = False) -> ExperimentResult:
    """Run the experiment."""
    runs = 300 if quick else 1000
    alike, worse = alarms_of(seed, runs, 0.0), alarms_of(seed, runs // 5, -0.05)
    looks = np.arange(0, 20_001, 500)
    false = {name: float(np.isfinite(when).mean()) for name, when in alike.items()}
    found = {name: float(np.isfinite(when).mean()) for name, when in worse.items()}
    half = {name: float(np.median(when)) for name, when in worse.items()}
    return ExperimentResult(
        header=("test", "equal versions rolled back", "5% worse found", "requests, median"),
        rows=[(name, f"{false[name]:.1%}", f"{found[name]:.1%}", f"{half[name]:,.0f}") for name in alike],
        panels=[
            line_plot(
                "equal versions rolled back so far",
                "requests",
                looks,
                {name: [float((when <= at).mean()) for at in looks] for name, when in alike.items()},
            ),
            bar_plot("versions that are 5% worse: share found", found),
        ],
        verdict=(
            f"Looked at every {EVERY} requests, a z-test at 5% rolls back {false[Z_TEST]:.0%} of versions that are as "
            f"good as the live one; an e-process rolls back {false[E_PROCESS]:.1%}, and finds {found[E_PROCESS]:.1%} "
            f"of those that are 5% worse, after {half[E_PROCESS]:,.0f} requests."
        ),
        claims=claims_of(false, found[E_PROCESS]),
        figures={"runs": float(runs)},
    )


EXPERIMENT = Experiment(
    title="Peeking at a rollout",
    question="A rollout is looked at again and again until a test says stop: how often does it stop for nothing?",
    run=run,
    source="Johari et al., 2017; Waudby-Smith and Ramdas, 2020",
)
