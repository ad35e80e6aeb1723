"""Verdicts of estimates: coverage of what is judged `ok`, by kind of reward, and faults of a log that are found.

Logs of a softmax policy over four actions with two features. Rewards are the action's mean times a draw of mean 1. With
fair propensities weights reach about 4; with harsh ones, of a floor of 2%, about 30. Settings of the rules were chosen
on other worlds and seeds.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from decision_systems import AcceptanceLine, cpu_seconds
from hone.core.decisions import Floats
from hone.core.random import generator
from hone.decide.estimators.estimate import EstimateSettings, EstimatorName, estimate_values
from hone.decide.estimators.terms import LoggedFeedback
from hone.decide.evaluate.off_policy import logged_feedback
from hone.decide.simulators.logged_choices import LoggedChoiceWorld, logged_choice_world

TITLE = "Verdicts of estimates"
ESTIMATORS: tuple[EstimatorName, ...] = ("ips", "snips", "dr")
FIRST = 300
ACTIONS = 4
SIZES = (2000, 8000)
MEANS = np.array([0.6, 1.0, 1.4, 0.8])
Draw = Callable[[np.random.Generator, int], Floats]


def _bernoulli(rate: float) -> Draw:
    return lambda random, n: (random.random(n) < rate) / rate


def _lognormal(sigma: float) -> Draw:
    return lambda random, n: np.exp(sigma * random.standard_normal(n) - sigma**2 / 2)


def _pareto(index: float) -> Draw:
    return lambda random, n: (random.pareto(index, n) + 1) * (index - 1) / index


def _zero_inflated(share: float, draw: Draw) -> Draw:
    return lambda random, n: (random.random(n) < share) * draw(random, n) / share


def _mixture(share: float, times: float) -> Draw:
    def drawn(random: np.random.Generator, n: int) -> Floats:
        large = np.where(random.random(n) < share, times, 1.0)
        return large * (1 + 0.2 * random.standard_normal(n)) / (1 + share * (times - 1))

    return drawn


KINDS: dict[str, dict[str, Draw]] = {
    "Bernoulli": {f"rate {rate:g}": _bernoulli(rate) for rate in (0.4, 0.15, 0.06)},
    "Gaussian": {f"sd {sd:g}": lambda random, n, sd=sd: 1 + sd * random.standard_normal(n) for sd in (0.3, 1.5)},
    "Student t": {f"df {df:g}": lambda random, n, df=df: 1 + 0.5 * random.standard_t(df, n) for df in (2.5, 4)},
    "exponential": {f"shape {k:g}": lambda random, n, k=k: random.gamma(k, 1 / k, n) for k in (2, 1, 0.4)},
    "lognormal": {f"sigma {sigma:g}": _lognormal(sigma) for sigma in (0.4, 0.7, 1.2, 1.8)},
    "Pareto": {f"index {index:g}": _pareto(index) for index in (1.6, 2.2, 2.8, 6)},
    "zero-inflated": {
        "80% zero, exponential": _zero_inflated(0.2, lambda random, n: random.exponential(1.0, n)),
        "93% zero, lognormal 0.8": _zero_inflated(0.07, _lognormal(0.8)),
        "85% zero, Pareto 2.2": _zero_inflated(0.15, _pareto(2.2)),
    },
    "mixture": {"8% times 6": _mixture(0.08, 6), "2% times 30": _mixture(0.02, 30), "1% times 80": _mixture(0.01, 80)},
}
PROPENSITIES = {"fair": (0.5, 0.10, 0.6, 0.05), "harsh": (1.4, 0.02, 1.1, 0.02)}
"""Slope and floor of the log's policy and of the target."""
LIGHT = (("Bernoulli", "rate 0.4"), ("Gaussian", "sd 0.3"), ("Gaussian", "sd 1.5"), ("exponential", "shape 2"))


def acceptance(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Figures of the system."""
    yield from coverage_lines(logs=2 if fast else 60)
    yield from fault_lines(logs=10 if fast else 100)


def reward_log(draw: Draw, slopes: tuple[float, float, float, float], n: int, *names: str | int) -> LoggedFeedback:
    """A log of n decisions."""
    random = generator(FIRST, "estimate verdicts", n, *names)
    steep, floor, target_steep, target_floor = slopes
    contexts = random.standard_normal((n, 2))
    behaviour = _softmax(steep * contexts[:, :1] * np.array([1, -1, 0.5, -0.5]), floor)
    target = _softmax(target_steep * contexts[:, 1:] * np.array([-0.5, 0.5, 1, -1]) + [0, 0.2, 0.8, 0], target_floor)
    action = (behaviour.cumsum(axis=1) < random.random((n, 1))).sum(axis=1).clip(0, ACTIONS - 1)
    return LoggedFeedback(
        contexts=contexts, action=action, logp=np.log(behaviour[np.arange(n), action]),
        reward=MEANS[action] * draw(random, n), target_logp=np.log(target), unit=np.arange(n),
    )  # fmt: skip


def _softmax(scores: Floats, floor: float) -> Floats:
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    return (1 - floor * ACTIONS) * odds / odds.sum(axis=1, keepdims=True) + floor


def true_value(slopes: tuple[float, float, float, float]) -> float:
    """Expected reward of the target, by quadrature over its one feature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    target = _softmax(slopes[2] * nodes[:, None] * np.array([-0.5, 0.5, 1, -1]) + [0, 0.2, 0.8, 0], slopes[3])
    return float(weights @ (target @ MEANS) / weights.sum())


@dataclass(slots=True)
class Tally:
    """Estimates of a family."""

    judged: int = 0
    ok: int = 0
    covered: int = 0
    all_covered: int = 0

    def add(self, *, ok: bool, inside: bool) -> None:
        """Count one estimate."""
        self.judged += 1
        self.ok += ok
        self.covered += ok and inside
        self.all_covered += inside


def coverage_lines(*, logs: int) -> Iterator[AcceptanceLine]:
    """Coverage of what is judged `ok`, its share, and the coverage of all intervals, by kind of reward."""
    light = Tally()
    for kind, family in KINDS.items():
        with cpu_seconds() as cpu:
            cells = {(name, how, n): _tally(draw, how, n, kind, name, logs=logs)
                     for name, draw in family.items() for how in PROPENSITIES for n in SIZES}  # fmt: skip
        whole = sum_tallies(list(cells.values()))
        shares = [sum_tallies([one for (own, _, _), one in cells.items() if own == name]) for name in family]
        members = "; ".join(f"{name} {one.ok / one.judged:.0%}" for name, one in zip(family, shares, strict=True))
        light = sum_tallies([light, *(one for (name, how, n), one in cells.items()
                                      if how == "fair" and n == SIZES[-1] and (kind, name) in LIGHT)])  # fmt: skip
        yield AcceptanceLine(
            figure=f"coverage of estimates judged ok, {kind} rewards", value=whole.covered / max(whole.ok, 1),
            at_least=0.93 if whole.ok >= max(200, whole.judged / 10) else None,
            seeds=4 * len(family) * logs, cpu_s=cpu.spent,
            words=f"ok: {whole.ok:,} of {whole.judged:,} ({members}); coverage of all "
            f"{whole.all_covered / whole.judged:.1%}",
        )  # fmt: skip
    yield uncovered_line(logs=max(60, logs))
    yield AcceptanceLine(
        figure="share judged ok: light tails, fair propensities", value=light.ok / light.judged, at_least=0.95,
        seeds=light.judged, words=f"{SIZES[-1]:,} rows",
    )  # fmt: skip


def _tally(draw: Draw, how: str, n: int, kind: str, name: str, *, logs: int) -> Tally:
    """Verdicts and coverage of all estimators on logs of one family."""
    tally, slopes = Tally(), PROPENSITIES[how]
    truth = true_value(slopes)
    for log in range(logs):
        logged = reward_log(draw, slopes, n, kind, name, how, log)
        for one in estimate_values(logged, ESTIMATORS, EstimateSettings()).values():
            found = one.estimate
            tally.add(ok=found.verdict == "ok", inside=found.low <= truth <= found.high)
    return tally


def sum_tallies(tallies: list[Tally]) -> Tally:
    """Counts of several families together."""
    return Tally(
        *(sum(one) for one in zip(*((t.judged, t.ok, t.covered, t.all_covered) for t in tallies), strict=True))
    )


def uncovered_line(*, logs: int) -> AcceptanceLine:
    """Negative control: coverage of all intervals of a heavy tail, whatever their verdict."""
    slopes, covered = PROPENSITIES["fair"], 0
    truth = true_value(slopes)
    for log in range(logs):
        logged = reward_log(_pareto(1.3), slopes, 2000, "uncovered", log)
        found = estimate_values(logged, ["ips"], EstimateSettings())["ips"].estimate
        covered += found.low <= truth <= found.high
    return AcceptanceLine(
        figure="coverage of all IPS intervals of Pareto 1.3",
        value=covered / logs,
        at_most=0.9,
        negative=True,
        seeds=logs,
    )


# ------------------------------------------------------------------------------------------- faults


def fault_lines(*, logs: int) -> Iterator[AcceptanceLine]:
    """Share of logs with a fault that are not judged `ok` for it, and of sound ones."""
    world = logged_choice_world(2)
    rules = {"calibration", "support", "target"}
    for (name, fault, least), n in ((one, n) for one in FAULTS for n in SIZES):
        with cpu_seconds() as cpu:
            found = 0
            for log in range(logs):
                reasons = EstimateSettings().rules.audit_weights(fault(world, n, FIRST + log))[0]
                found += any(one.rule in rules for one in reasons)
        yield AcceptanceLine(
            figure=f"found in {n:,} rows: {name}", value=found / logs, seeds=logs, cpu_s=cpu.spent,
            at_least=least if n == SIZES[-1] and least else None, at_most=None if least else 0.05,
        )  # fmt: skip


def _sound(world: LoggedChoiceWorld, n: int, seed: int) -> LoggedFeedback:
    return logged_feedback(world.log(n, seed=seed), world.target)


def _too_small(world: LoggedChoiceWorld, n: int, seed: int) -> LoggedFeedback:
    """All logged probabilities are 10% too small."""
    logged = _sound(world, n, seed)
    return replace(logged, logp=logged.logp + np.log(0.9))


def _half_too_small(world: LoggedChoiceWorld, n: int, seed: int) -> LoggedFeedback:
    """Those of every second row are 20% too small."""
    logged = _sound(world, n, seed)
    return replace(logged, logp=logged.logp + np.log(0.8) * (np.arange(n) % 2))


def _missing_mass(world: LoggedChoiceWorld, n: int, seed: int) -> LoggedFeedback:
    """The target puts 5% on an action that the log's policy never takes."""
    bare = world.behaviour.logp_rows(world.contexts, world.actions)
    bare[:, 7] = -np.inf
    bare -= np.log(np.exp(bare).sum(axis=1, keepdims=True))
    logged = logged_feedback(world.log(n, seed=seed, logp=bare), world.target)
    target = logged.target.copy()
    target[:, 7] = 0.0
    target *= 0.95 / target.sum(axis=1, keepdims=True)
    target[:, 7] = 0.05
    return replace(logged, target_logp=np.log(target))


def _wrong_support(world: LoggedChoiceWorld, n: int, seed: int) -> LoggedFeedback:
    """In a fifth of the contexts, by a feature, the log's policy never takes the target's best action."""
    bare = world.behaviour.logp_rows(world.contexts, world.actions)
    best = world.target.logp_rows(world.contexts, world.actions).argmax(axis=1)
    without = np.flatnonzero(world.contexts[:, 0] > np.quantile(world.contexts[:, 0], 0.8))
    bare[without, best[without]] = -np.inf
    bare -= np.log(np.exp(bare).sum(axis=1, keepdims=True))
    return logged_feedback(world.log(n, seed=seed, logp=bare), world.target)


FAULTS: tuple[tuple[str, Callable[[LoggedChoiceWorld, int, int], LoggedFeedback], float], ...] = (
    ("none", _sound, 0.0),
    ("propensities too small by 10%", _too_small, 0.95),
    ("every second propensity too small by 20%", _half_too_small, 0.95),
    ("5% of the target's mass on an action that is never taken", _missing_mass, 0.95),
    ("no support of the best action in a fifth of the contexts", _wrong_support, 0.9),
)
