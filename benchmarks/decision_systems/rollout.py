"""Staged rollout: versions that are worse go back, versions that are as good do not, and every unit stays where it is.

Rollouts through 1, 5, 25 and 50% with 5,000 requests a stage and a level of 5%, looked at after every unit. A false
rollback is an alarm of the guardrail or of the sample ratio. Settings were chosen on seeds below 100; every figure is
of seeds from 100.
"""

import json
import math
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from peers import require_peer
from tables import Row

from decision_systems import AcceptanceLine, cpu_seconds, slack
from hone.core.decisions import Bools, Floats
from hone.core.random import generator
from hone.decide.estimators.sequential import asymptotic_width, ratio_paths
from hone.decide.rollout.controller import ROLLED_BACK, begin, no_evidence
from hone.decide.rollout.plan import RolloutPlan, stage_name
from hone.decide.rollout.router import BUCKETS, ExposureBatch, RolloutRouter, RolloutSlice, make_router
from hone.decide.simulators.drifting import StagedTraffic
from hone.estimators.means import wilson_interval
from hone.lab.experiments.peeking import EVERY, z_of_losses

TITLE = "Staged rollout"
SEED = 100
ALPHA = 0.05
PLAN = RolloutPlan(name="r", service="shop", version="new", control="old", alpha=ALPHA)
OUTCOMES = {
    "reward": StagedTraffic(),
    "conversions of 30%": StagedTraffic(kind="conversion", rate=0.3),
    "conversions of 2%": StagedTraffic(kind="conversion", rate=0.02),
}
POWER = (
    ("reward", -0.05, 0.95, 14_000.0),
    ("reward", -0.10, 0.995, None),
    ("conversions of 30%", -0.10, 0.82, None),
    ("conversions of 2%", -0.50, 0.90, None),
)
"""Outcome, its change, the least share that is found, and the most requests at the median."""


def acceptance(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Figures of the system."""
    yield ratio_line(runs=60 if fast else 400)
    yield controller_line(runs=10 if fast else 50)
    yield from assignment_lines(units=3_000 if fast else 100_000)
    yield routing_line(units=20_000 if fast else 400_000, fast=fast)
    yield from peeking_lines(runs=80 if fast else 2000)
    for outcome, change, share, requests in POWER:
        yield from power_lines(outcome, change, share, requests, runs=100 if fast else 1000, fast=fast)
    for outcome in OUTCOMES:
        yield from false_alarm_lines(outcome, runs=200 if fast else 2000)
    yield from covariate_lines(runs=100 if fast else 500)


def changed(traffic: StagedTraffic, change: float) -> StagedTraffic:
    """The same traffic with another new version."""
    return StagedTraffic(kind=traffic.kind, rate=traffic.rate, change=change)


def rolled_back_at(traffic: StagedTraffic, random: np.random.Generator) -> float:
    """Requests until one rollout is rolled back; infinite: it reaches 100%."""
    requests, is_new = traffic.exposures(random)
    e_values = evidence_path(traffic.values(is_new, random), is_new)
    ratios = ratio_paths(is_new.astype(np.int64), (0.5, 0.5))
    alarms = (e_values >= -math.log(PLAN.guardrail_alpha)) | (ratios >= -math.log(PLAN.ratio_alpha))
    first = np.flatnonzero(alarms)
    return float(requests[first[0]]) + 1 if len(first) else math.inf


def evidence_path(values: Floats, is_new: Bools, covariates: Floats | None = None) -> Floats:
    """log e of one rollout after each exposed unit `[n]`."""
    (begun,) = no_evidence(PLAN).guardrails
    _, scores = begun.arms.advance(values, is_new, covariates)
    return begun.process.advance(scores)[1]


def explained_rollouts(change: float, runs: int, *, slope: float) -> tuple[float, float]:
    """Share of rollouts of 30% conversions that are rolled back, and the part of the variance that a covariate of the
    unit explains: the rate is that of a logistic curve of it."""
    back, explained = 0, list[float]()
    for run in range(runs):
        random = generator(SEED, "rollout", "covariate", f"{change:g} {slope:g}", run)
        _, is_new = OUTCOMES["conversions of 30%"].exposures(random)
        covariate = random.standard_normal(len(is_new))
        odds = 1 / (1 + np.exp(slope * covariate + 0.85 * np.sqrt(1 + slope**2 / 3)))
        values = (random.random(len(is_new)) < odds * np.where(is_new, 1 + change, 1.0)).astype(np.float64)
        explained.append(float(np.corrcoef(covariate, values)[0, 1] ** 2))
        path = evidence_path(values, is_new, covariate[:, None])
        back += bool((path >= -math.log(PLAN.guardrail_alpha)).any())
    return back / runs, float(np.mean(explained))


def covariate_lines(*, runs: int) -> Iterator[AcceptanceLine]:
    """Conversions of 30% with a covariate in the units' contexts: equal versions, and one that is worse."""
    for change, slope in ((0.0, 1.5), (-0.1, 1.5), (-0.1, 0.0)):
        with cpu_seconds() as spent:
            share, explained = explained_rollouts(change, runs, slope=slope)
        name = "equal versions rolled back" if not change else f"conversions of 30% {change:+.0%} found"
        yield AcceptanceLine(
            figure=f"{name}, a covariate explains {explained:.0%} of the variance", value=share, seeds=runs,
            at_most=None if change else ALPHA + 2 * math.sqrt(ALPHA / runs),
            at_least=None if not change else 0.9 if slope else 0.8, cpu_s=spent.spent,
        )  # fmt: skip


def rollouts(outcome: str, change: float, runs: int) -> Floats:
    """Requests until each of `runs` rollouts is rolled back `[runs]`."""
    traffic = changed(OUTCOMES[outcome], change)
    streams = (generator(SEED, "rollout", outcome, f"{change:g}", run) for run in range(runs))
    return np.array([rolled_back_at(traffic, random) for random in streams])


def false_alarm_lines(outcome: str, *, runs: int) -> Iterator[AcceptanceLine]:
    """Share of rollouts of equal versions that are rolled back, and its upper limit."""
    with cpu_seconds() as spent:
        back = int(np.isfinite(rollouts(outcome, 0.0, runs)).sum())
    limit = 0.062 if runs >= 2000 else 0.1
    yield AcceptanceLine(
        figure=f"equal versions rolled back, {outcome}", value=back / runs, at_most=ALPHA, seeds=runs, cpu_s=spent.spent
    )
    yield AcceptanceLine(
        figure=f"equal versions rolled back, {outcome}, upper limit of 99%",
        value=wilson_interval(back, runs, level=0.99).high, at_most=limit, seeds=runs,
        words="" if runs >= 2000 else "wider for fewer runs",
    )  # fmt: skip


def power_lines(
    outcome: str, change: float, share: float, requests: float | None, *, runs: int, fast: bool
) -> Iterator[AcceptanceLine]:
    """Share of worse versions that are found, and the requests at the median."""
    with cpu_seconds() as spent:
        when = rollouts(outcome, change, runs)
    # two standard errors of the fewer runs
    least = share - (2 * math.sqrt(share * (1 - share) / runs) if fast else 0.0)
    yield AcceptanceLine(
        figure=f"{outcome} {change:+.0%} found", value=float(np.isfinite(when).mean()), at_least=least, seeds=runs,
        cpu_s=spent.spent, words=f"bar {share:g}, less two standard errors of fewer runs" if fast else "",
    )  # fmt: skip
    if requests is not None:
        yield AcceptanceLine(
            figure=f"{outcome} {change:+.0%}, median requests", value=float(np.median(when)),
            at_most=requests * (1.03 if fast else 1), seeds=runs, words="bar 14,000, 3% wider" if fast else "",
        )  # fmt: skip


def ratio_line(*, runs: int) -> AcceptanceLine:
    """Share of assignments of 52 to 48 that the sample-ratio test finds within 25,000 exposed units."""
    with cpu_seconds() as spent:
        random = generator(SEED, "rollout", "ratio")
        arms = (random.random((runs, 25_000)) < 0.52).astype(np.int64)
        paths = ratio_paths(arms, (0.5, 0.5))
        alarms = paths >= -math.log(PLAN.ratio_alpha)
        when = np.where(alarms.any(axis=1), alarms.argmax(axis=1) + 1.0, math.inf)
    return AcceptanceLine(
        figure="sample ratio of 52 to 48 found", value=float(np.isfinite(when).mean()),
        at_least=0.97 if runs >= 400 else 0.93, seeds=runs, cpu_s=spent.spent,
        words=f"within 25,000 exposed units, median {np.median(when):,.0f}",
    )  # fmt: skip


def controller_line(*, runs: int) -> AcceptanceLine:
    """Share of rollouts in which the controller, stage by stage, decides as the formulas above."""
    with cpu_seconds() as spent:
        same = 0
        for run, change in ((run, change) for run in range(runs) for change in (0.0, -0.1)):
            stream = generator(SEED, "rollout", "reward", f"{change:g}", run)
            when = rolled_back_at(changed(OUTCOMES["reward"], change), stream)
            stream = generator(SEED, "rollout", "reward", f"{change:g}", run)
            same += controlled(changed(OUTCOMES["reward"], change), stream) == (
                ROLLED_BACK if when < math.inf else "100%"
            )
    return AcceptanceLine(
        figure="the controller decides as the formulas", value=same / (2 * runs), at_least=1.0, seeds=runs,
        cpu_s=spent.spent,
    )  # fmt: skip


def controlled(traffic: StagedTraffic, random: np.random.Generator) -> str:
    """Last stage of a rollout that the controller drives, in looks of 500 requests."""
    requests, is_new = traffic.exposures(random)
    values = traffic.values(is_new, random)
    stages = np.array([stage_name(share) for share in traffic.stages])[requests // traffic.requests]
    state, looks = begin(PLAN, 0.0), np.searchsorted(requests, np.arange(500, 20_001, 500))
    for first, last in zip([0, *looks[:-1]], looks, strict=True):
        while (transition := state.next_transition(PLAN, 0.0)) is not None:
            state = state.after(transition)
        rows = slice(first, last)
        counted = int((stages[rows] == state.stage).sum())
        batch = ExposureBatch(is_new=is_new[rows], values=values[rows, None], in_stage=counted)
        state = state.look(PLAN, batch, float(last), int(last))
    # the number of exposed units is random: the last stage may want a few more than there were
    transition = state.next_transition(PLAN, 0.0)
    return ROLLED_BACK if ROLLED_BACK in (state.stage, transition.after if transition else "") else "100%"


def router_at(share: float, *, name: str = "a", first: int = 0, last: int = BUCKETS) -> RolloutRouter:
    """Router of one rollout."""
    part = RolloutSlice(rollout=name, version="new", stage=stage_name(share), share=share, first=first, last=last)
    return make_router(live="old", salt="shop", slices=[part])


def assignment_lines(*, units: int) -> Iterator[AcceptanceLine]:
    """Shares of units that stay where they are, and units in two rollouts of a layer."""
    names = [f"user-{number}" for number in range(units)]
    with cpu_seconds() as spent:
        arms = [[router_at(share).route("t", name).arm for name in names] for share in (*PLAN.stages, 1.0)]
        again = [router_at(PLAN.stages[1]).route("t", name).arm for name in names]
        sticky = sum(one == other for one, other in zip(arms[1], again, strict=True)) / units
        kept = sum(stays_in_the_canary(stages) for stages in zip(*arms, strict=True))
        sides = [router_at(0.5, name="a", last=BUCKETS // 2), router_at(0.5, name="b", first=BUCKETS // 2)]
        both = sum(all(side.route("t", name).arm != "live" for side in sides) for name in names)
    yield AcceptanceLine(
        figure="sticky assignment", value=sticky, at_least=1.0, cpu_s=spent.spent, words=f"{units:,} units"
    )
    yield AcceptanceLine(figure="in the canary for good once in it", value=kept / units, at_least=1.0)
    yield AcceptanceLine(figure="units in two rollouts of a layer", value=both, at_most=0.0)


def stays_in_the_canary(arms: tuple[str, ...]) -> bool:
    """True if a unit's arms, stage by stage to 100%, never leave the canary after the first time."""
    return set(arms[arms.index("canary") :]) == {"canary"}


def routing_line(*, units: int, fast: bool) -> AcceptanceLine:
    """Processor time of a route."""
    router = router_at(0.25)
    names = [f"user-{number}" for number in range(units)]
    begin_s = time.process_time()
    for name in names:
        router.route("default", name)
    spent = time.process_time() - begin_s
    return AcceptanceLine(
        figure="a route, microseconds of processor time",
        value=1e6 * spent / units,
        cpu_s=spent,
        at_most=2.0 * slack(fast=fast),
    )


def peeking_lines(*, runs: int) -> Iterator[AcceptanceLine]:
    """Negative controls: a z-test that is looked at every 100 requests, and a canary without a control slice."""
    with cpu_seconds() as spent:
        back = sum(peeked(OUTCOMES["reward"], generator(SEED, "rollout", "peeking", run)) for run in range(runs))
    yield AcceptanceLine(
        figure="equal versions rolled back by a z-test with peeking", value=back / runs, at_least=0.2, negative=True,
        seeds=runs, cpu_s=spent.spent,
    )  # fmt: skip
    with cpu_seconds() as spent:
        back = sum(unmatched(0.02, generator(SEED, "rollout", "unmatched", run)) for run in range(runs))
    yield AcceptanceLine(
        figure="equal versions rolled back beside all other traffic, conversions of 2%", value=back / runs,
        at_least=0.1, negative=True, seeds=runs, cpu_s=spent.spent, words="asymptotic sequence, no control slice",
    )  # fmt: skip


def peeked(traffic: StagedTraffic, random: np.random.Generator) -> bool:
    """True if a z-test of 5%, looked at every 100 requests, rolls one rollout back."""
    requests, is_new = traffic.exposures(random)
    ends = np.searchsorted(requests, np.arange(EVERY, len(traffic.stages) * traffic.requests + 1, EVERY))
    return bool(np.any(z_of_losses(traffic.values(is_new, random), is_new, ends) > 1.6449))


def unmatched(rate: float, random: np.random.Generator) -> bool:
    """True if an asymptotic sequence of 5%, canary of at least 100 units against all others, rolls it back."""
    shares = np.repeat(PLAN.stages, PLAN.requests)
    is_new = random.random(len(shares)) < shares
    values = (random.random(len(shares)) < rate).astype(np.float64)
    looks = np.arange(EVERY, len(shares) + 1, EVERY)
    counts = [np.cumsum(arm)[looks - 1] for arm in (is_new, ~is_new)]
    means = [
        np.cumsum(values * arm)[looks - 1] / np.maximum(n, 1) for arm, n in zip((is_new, ~is_new), counts, strict=True)
    ]
    variance = sum(mean * (1 - mean) / np.maximum(n, 1) for mean, n in zip(means, counts, strict=True))
    half = np.sqrt(looks * variance) * np.array([asymptotic_width(int(look), 2 * ALPHA) for look in looks])
    return bool(np.any((counts[0] >= 100) & (means[1] - means[0] > half)))


PEER = "ville"
PEER_PROGRAM = """
import json, sys, time
import numpy as np
import ville
from ville.ab import AsymptoticABTest, BettingABTest
alarms, spent = {}, {}
for name, make in (("betting", lambda: BettingABTest(alpha=0.1)), ("asymptotic", lambda: AsymptoticABTest(alpha=0.1))):
    found, begin = [], time.process_time()
    for path in sys.argv[1:]:
        runs = np.load(path)
        lengths = runs["lengths"]
        starts = np.concatenate([[0], np.cumsum(lengths)])
        hits = 0
        for first, last in zip(starts[:-1], starts[1:]):
            test = make()
            test.fit(runs["values"][first:last], runs["is_new"][first:last])
            hits += bool(np.any(np.asarray(test.upper_) < 0))
        found.append(hits / len(lengths))
    alarms[name], spent[name] = found, time.process_time() - begin
print(json.dumps({"alarms": alarms, "spent": spent}))
"""


def peers() -> Iterator[Row]:
    """The same rollouts looked at by another library's sequential tests."""
    runs = 60
    cases = (("reward", 0.0), ("reward", -0.05), ("conversions of 30%", -0.1))
    with tempfile.TemporaryDirectory() as folder:
        with cpu_seconds() as spent:
            ours = [float(np.isfinite(rollouts(outcome, change, runs)).mean()) for outcome, change in cases]
        paths = [write_runs(Path(folder) / f"{number}.npz", *case, runs) for number, case in enumerate(cases)]
        command = [str(require_peer(PEER)), "-c", PEER_PROGRAM, *map(str, paths)]
        told = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    for name in ("betting", "asymptotic"):
        for (outcome, change), mine, theirs in zip(cases, ours, told["alarms"][name], strict=True):
            yield Row(
                row=f"Staged rollout: {outcome} {change:+.0%}, rolled back; {name} test",
                value=mine, unit="", seeds=runs, peer=PEER, peer_value=theirs,
            )  # fmt: skip
        yield Row(
            row=f"Staged rollout: {3 * runs} rollouts looked at after each unit; {name} test",
            value=spent.spent, unit="CPU s", seeds=runs, peer=PEER, peer_value=told["spent"][name],
            ratio=told["spent"][name] / spent.spent,
        )  # fmt: skip


def write_runs(path: Path, outcome: str, change: float, runs: int) -> Path:
    """Write the exposed units of the same rollouts, for a peer."""
    traffic = changed(OUTCOMES[outcome], change)
    lengths: list[int] = []
    values: list[Floats] = []
    arms: list[np.ndarray] = []
    for run in range(runs):
        random = generator(SEED, "rollout", outcome, f"{change:g}", run)
        _, is_new = traffic.exposures(random)
        values.append(traffic.values(is_new, random))
        arms.append(is_new)
        lengths.append(len(is_new))
    np.savez(path, lengths=lengths, values=np.concatenate(values), is_new=np.concatenate(arms))
    return path
