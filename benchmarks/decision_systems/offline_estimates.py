"""Offline estimates: the value of a policy before it is deployed, from the log of another one.

Coverage and error of doubly robust estimates on 400 logs of a world with known values, refusal where support is
missing, the order of six policies, trajectories beside exact dynamic programming, parity with Open Bandit Pipeline, and
speed.
The settings were chosen on seeds below 100; every figure is of seeds from 100.
"""

import json
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from golden_off_policy import golden_table
from peers import require_peer
from tables import Row

from decision_systems import AcceptanceLine, cpu_seconds
from hone.control.finite.build import garnet_mdp
from hone.control.finite.model import FiniteMdp
from hone.control.finite.solve import evaluate_policy, finite_horizon_value
from hone.control.finite.world import FiniteWorld
from hone.control.tables.tables import FixedPolicyActor
from hone.core.decisions import Floats
from hone.decide.estimators import terms as forms
from hone.decide.estimators.estimate import EstimateSettings, OffPolicyEstimate, estimate_values
from hone.decide.estimators.terms import LoggedFeedback, normal_interval
from hone.decide.estimators.trajectories import (
    LoggedTrajectories,
    TabularTransitions,
    doubly_robust_trajectories,
    per_decision,
    tabular_fitted_q,
)
from hone.decide.evaluate.off_policy import estimate_parquet, estimate_policies, logged_feedback
from hone.decide.simulators.logged_choices import LinearChoicePolicy, LoggedChoiceWorld, logged_choice_world
from hone.estimators.calibration import rank_correlation

TITLE = "Offline estimates"
WORLD_SEED, FIRST = 1, 100
ROWS, LOGS, LARGE = 2_000, 400, 10_000_000
GOLDEN = Path(__file__).resolve().parents[2] / "tests" / "fixtures" / "off_policy" / "obp.json"
OPEN_BANDIT = {"men": (0.00566, 0.00274), "women": (0.00581, 0.00236), "all": (0.00504, 0.00251)}
"""Value and half width of IPS, as measured with the peer's formulas."""
BARE_SHARE = 0.42


def acceptance(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Figures of the system."""
    world = logged_choice_world(WORLD_SEED)
    yield golden_line()
    yield from refusal_lines(world, logs=5 if fast else 200)
    yield from trajectory_lines(logs=30 if fast else 400)
    yield from coverage_lines(world, logs=150 if fast else LOGS)
    yield ranking_line(world, logs=4 if fast else 100)
    yield speed_line(world)
    if not fast:
        yield large_line(world)
        yield from open_bandit_lines()
        yield from stitching_lines()


def coverage_lines(world: LoggedChoiceWorld, *, logs: int) -> Iterator[AcceptanceLine]:
    """Coverage and relative error of DR, and the negative control: the direct method alone."""
    truth, values, covered, refused = world.value(world.target), list[float](), {"dr": 0, "dm": 0}, 0
    with cpu_seconds() as cpu:
        for seed in range(FIRST, FIRST + logs):
            logged = logged_feedback(world.log(ROWS, seed=seed), world.target)
            found = estimate_values(logged, ["dr", "dm"], EstimateSettings(seed=seed))
            values.append(found["dr"].estimate.value)
            refused += found["dr"].estimate.verdict == "refuse"
            for name in ("dr", "dm"):
                covered[name] += found[name].estimate.low <= truth <= found[name].estimate.high  # type: ignore[index]
    error = float(np.sqrt(np.mean((np.array(values) - truth) ** 2))) / truth
    worst = max(abs(value - truth) for value in values) / truth
    words = f"{logs} logs of {ROWS:,} decisions"
    yield AcceptanceLine(
        figure="coverage of doubly robust 95% intervals", value=covered["dr"] / logs, at_least=0.925, at_most=0.97,
        seeds=logs, cpu_s=cpu.spent, words=words,
    )  # fmt: skip
    yield AcceptanceLine(
        figure="relative root mean square error of doubly robust", value=error, at_most=0.032, seeds=logs,
        words=f"{words}, worst {worst:.3f}",
    )  # fmt: skip
    yield AcceptanceLine(
        figure="coverage of the direct method alone", value=covered["dm"] / logs, at_most=0.20, negative=True,
        seeds=logs, words=words,
    )  # fmt: skip
    yield AcceptanceLine(
        figure="share of good logs that are refused", value=refused / logs, at_most=0.02, seeds=logs, words=words
    )


def sine_log(rows: int) -> tuple[LoggedFeedback, Floats]:
    """The table of sines that `golden_off_policy.py` gives the peer, and its model of the reward `[n, K]`."""
    table, row = golden_table(rows), np.arange(rows)
    logged = LoggedFeedback(
        contexts=np.zeros((rows, 0)), action=table["chosen"], reward=table["reward"], unit=row,
        logp=np.log(table["behaviour"][row, table["chosen"]]), target_logp=np.log(table["target"]),
    )  # fmt: skip
    return logged, table["predicted"]


def six_values(logged: LoggedFeedback, model: Floats, max_weight: float) -> dict[str, float]:
    """Values of the six estimators that the peer has too."""
    return {
        "ips": forms.inverse_propensity(logged).value, "snips": forms.self_normalised(logged).value,
        "dm": forms.direct_method(logged, model).value, "dr": forms.doubly_robust(logged, model).value,
        "sndr": forms.self_normalised_doubly_robust(logged, model).value,
        "switch": forms.switch_doubly_robust(logged, model, max_weight=max_weight).value,
    }  # fmt: skip


def golden_line() -> AcceptanceLine:
    """Largest distance of six estimators from the golden values of Open Bandit Pipeline."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    made = six_values(*sine_log(golden["rows"]), golden["max_weight"])
    apart = max(abs(made[name] - value) for name, value in golden["values"].items())
    return AcceptanceLine(
        figure="distance from the golden values of Open Bandit Pipeline", value=apart, at_most=1e-12,
        words=", ".join(made),
    )  # fmt: skip


def peers() -> Iterator[Row]:
    """Open Bandit Pipeline's estimators on 100,000 rows, with a given model of the reward."""
    script, rows = Path(__file__).resolve().parents[1] / "golden_off_policy.py", 100_000
    command = [str(require_peer("obp")), str(script), "--rows", str(rows)]
    peer = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    logged, model = sine_log(rows)
    with cpu_seconds() as cpu:
        made = six_values(logged, model, 1.5)
    apart = max(abs(made[name] - value) for name, value in peer["values"].items())
    yield Row(
        row=f"distance of six estimators from the peer's on {rows:,} rows", value=apart, unit="", peer=peer["source"],
        peer_value=0.0, bar="<= 1e-12", met=apart <= 1e-12,
    )  # fmt: skip
    yield Row(
        row=f"six estimators on {rows:,} rows, the model given", value=1000 * cpu.spent, unit="CPU ms",
        peer=peer["source"], peer_value=1000 * peer["cpu_s"], ratio=peer["cpu_s"] / cpu.spent,
    )  # fmt: skip


def refusal_lines(world: LoggedChoiceWorld, *, logs: int) -> Iterator[AcceptanceLine]:
    """Share of logs that are refused where 42% of the contexts lack support of the target's best action."""
    with np.errstate(divide="ignore"):
        bare = world.behaviour.logp_rows(world.contexts, world.actions)
    best = world.target.logp_rows(world.contexts, world.actions).argmax(axis=1)
    without = np.arange(round(BARE_SHARE * len(bare)))
    bare[without, best[without]] = -np.inf
    bare -= np.log(np.exp(bare).sum(axis=1, keepdims=True))
    for rows, known, least in ((ROWS, True, 1.0), (5_000, False, 0.95)):
        with cpu_seconds() as cpu:
            found = [_bare_estimate(world, bare, rows, seed, known=known) for seed in range(FIRST, FIRST + logs)]
        refused = [("support", "refuse") in {(one.rule, one.verdict) for one in each.reasons} for each in found]
        overlap = float(np.mean([each.overlap for each in found]))
        how = "the log's policy is known" if known else "by executed propensities alone"
        yield AcceptanceLine(
            figure=f"refused where 42% of the contexts lack support, {how}", value=float(np.mean(refused)),
            at_least=least, seeds=logs, cpu_s=cpu.spent, words=f"{rows:,} rows, mean overlap {overlap:.2f}",
        )  # fmt: skip


def _bare_estimate(world: LoggedChoiceWorld, bare: Floats, rows: int, seed: int, *, known: bool) -> OffPolicyEstimate:
    """Estimate of the target on a log of probabilities `bare` `[M, K]`."""
    table = world.log(rows, seed=seed, logp=bare)
    logged = logged_feedback(table, world.target)
    if known:
        place = {context.tobytes(): number for number, context in enumerate(world.contexts)}
        logged = replace(logged, behaviour_logp=bare[[place[context.tobytes()] for context in table.contexts]])
    return estimate_values(logged, ["dr"], EstimateSettings(seed=seed))["dr"].estimate


def candidates(world: LoggedChoiceWorld) -> dict[str, LinearChoicePolicy]:
    """Six policies, from a worse one than the behaviour policy to the target."""
    other = np.roll(world.target.weights, 1, axis=1)
    shares = {"a": 0.0, "b": 0.3, "c": 0.45, "d": 0.6, "e": 0.8, "f": 1.0}
    return {
        name: LinearChoicePolicy(
            weights=share * world.target.weights + (1 - share) * other, temperature=0.7, floor=0.05
        )
        for name, share in shares.items()
    }


def ranking_line(world: LoggedChoiceWorld, *, logs: int) -> AcceptanceLine:
    """Rank correlation of estimated and true order of six policies."""
    policies = candidates(world)
    truth = np.array([world.value(policy) for policy in policies.values()])
    found: list[float] = []
    with cpu_seconds() as cpu:
        for seed in range(FIRST, FIRST + logs):
            report = estimate_policies(world.log(ROWS, seed=seed), policies, estimators=["dr"])
            values = np.array([one.deciding.value for one in report.policies])
            found.append(rank_correlation(values, truth))
    return AcceptanceLine(
        figure="rank correlation of six policies", value=float(np.mean(found)), at_least=0.9, seeds=logs,
        cpu_s=cpu.spent, words=f"worst log {min(found):.2f}",
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- trajectories

STATES, ACTIONS, HORIZON, EPISODES = 6, 3, 8, 400


class BehaviourActor(FixedPolicyActor):
    """Behaviour policy of the trajectories."""

    version = 0


def trajectory_lines(*, logs: int) -> Iterator[AcceptanceLine]:
    """Coverage of trajectory estimators of the exact value, and fitted Q evaluation against exact values."""
    mdp = garnet_mdp(states=STATES, actions=ACTIONS, branching=3, seed=WORLD_SEED, discount=0.9)
    random = np.random.default_rng(WORLD_SEED)
    behaviour = random.dirichlet(np.full(ACTIONS, 4.0), STATES)
    target = 0.6 * behaviour + 0.4 * random.dirichlet(np.ones(ACTIONS), STATES)
    truth = float(mdp.start_distribution @ finite_horizon_value(mdp, target, HORIZON))
    covered = {"per decision": 0, "doubly robust": 0}
    errors = {name: list[float]() for name in covered}
    with cpu_seconds() as cpu:
        for seed in range(FIRST, FIRST + logs):
            for name, parts in _trajectory_estimates(mdp, behaviour, target, seed).items():
                interval = normal_interval(parts.influence, np.arange(EPISODES), level=0.95)
                covered[name] += interval.low <= truth <= interval.high
                errors[name].append(parts.value - truth)
    for name, count in covered.items():
        error = float(np.sqrt(np.mean(np.square(errors[name]))))
        yield AcceptanceLine(
            figure=f"coverage of {name} estimates of trajectories", value=count / logs, at_least=0.90, at_most=0.99,
            seeds=logs, cpu_s=cpu.spent / 2, words=f"{EPISODES} episodes of {HORIZON} steps, error {error:.3f}",
        )  # fmt: skip
    yield _fitted_q_line(mdp, target)


def _trajectory_estimates(
    mdp: FiniteMdp, behaviour: Floats, target: Floats, seed: int
) -> dict[str, forms.EstimatorTerms]:
    world = FiniteWorld(mdp=replace(mdp, step_limit=HORIZON), steps=HORIZON, seed=seed, copies=EPISODES)
    episodes = world.rollout(BehaviourActor(probability=behaviour))
    state, action = episodes.observations.astype(np.int64), episodes.chosen.astype(np.int64)
    logged = LoggedTrajectories(
        offsets=episodes.offsets, logp=np.log(behaviour[state, action]), target_logp=np.log(target[state, action]),
        reward=episodes.reward.astype(np.float64), discount=mdp.discount,
    )  # fmt: skip
    q, value = _model_values(mdp, target)
    step = np.arange(len(state)) % HORIZON
    robust = doubly_robust_trajectories(
        logged, q=q[step, state, action], value=value[step, state], final_value=np.zeros(EPISODES)
    )
    return {"per decision": per_decision(logged), "doubly robust": robust}


def _model_values(mdp: FiniteMdp, target: Floats) -> tuple[Floats, Floats]:
    """Values of a wrong model, whose rewards are half of the true ones `[T, S, A]`, `[T, S]`."""
    q, value = np.zeros((HORIZON, STATES, ACTIONS)), np.zeros((HORIZON + 1, STATES))
    transitions, paid = mdp.dense()
    for step in reversed(range(HORIZON)):
        q[step] = 0.5 * paid + mdp.discount * transitions @ value[step + 1]
        value[step] = (target * q[step]).sum(axis=1)
    return q, value[:-1]


def _fitted_q_line(mdp: FiniteMdp, target: Floats) -> AcceptanceLine:
    times = np.round(100_000 * mdp.probability).astype(np.int64)
    outcome = np.repeat(np.arange(len(times)), times)
    state, action = np.divmod(mdp.pair_of_outcome[outcome], mdp.actions)
    log = TabularTransitions(
        state=state, action=action, reward=mdp.reward[outcome], next_state=mdp.next_state[outcome],
        terminated=mdp.terminates[outcome],
    )  # fmt: skip
    with cpu_seconds() as cpu:
        found = tabular_fitted_q(log, target, discount=mdp.discount)
    exact = evaluate_policy(mdp, target)
    apart = float(np.abs((target * found.q).sum(axis=1) - exact).max())
    return AcceptanceLine(
        figure="distance of fitted Q evaluation from exact values", value=apart, at_most=1e-3, cpu_s=cpu.spent,
        words=f"{len(outcome):,} transitions by their probabilities, rounded to 1e-5",
    )  # fmt: skip


# ------------------------------------------------------------------------------------------- speed, real data


def speed_line(world: LoggedChoiceWorld) -> AcceptanceLine:
    """Processor seconds of a whole report on 100,000 rows."""
    table = world.log(100_000, seed=FIRST)
    with cpu_seconds() as cpu:
        estimate_policies(table, {"target": world.target}, estimators=["dr"])
    return AcceptanceLine(
        figure="100,000 rows: estimate, verdict and segments, CPU s", value=cpu.spent, at_most=1.0, cpu_s=cpu.spent
    )


def large_line(world: LoggedChoiceWorld) -> AcceptanceLine:
    """Processor seconds for ten million rows of parquet, read by DuckDB; the interval must hold the true value."""
    from large_view import write_large_view  # noqa: PLC0415 - beside this script

    with tempfile.TemporaryDirectory() as folder:
        paths = write_large_view(world, Path(folder), rows=LARGE, seed=FIRST)
        with cpu_seconds() as cpu:
            found = estimate_parquet(paths, world.target, estimators=["dr", "snips", "ips"])["dr"]
    apart = abs(found.value - world.value(world.target)) / found.standard_error
    return AcceptanceLine(
        figure=f"{LARGE:,} rows of parquet by DuckDB, CPU s", value=cpu.spent, at_most=60.0, cpu_s=cpu.spent,
        words=f"{apart:.1f} standard errors from the true value, verdict {found.verdict}",
    )  # fmt: skip


def open_bandit_lines() -> Iterator[AcceptanceLine]:
    """IPS of Thompson sampling on real logs of the uniform policy, beside the policy's own log."""
    from open_bandit import downloaded_samples  # noqa: PLC0415 - beside this script, and needs a package index

    with tempfile.TemporaryDirectory() as folder:
        samples = downloaded_samples(Path(folder))
    for sample in samples:
        with cpu_seconds() as cpu:
            found = estimate_values(sample.logged, ["ips"], EstimateSettings())["ips"].estimate
        value, half = OPEN_BANDIT[sample.campaign]
        apart = max(abs(found.value - value), abs((found.high - found.low) / 2 - half))
        inside = found.low <= sample.on_policy <= found.high
        yield AcceptanceLine(
            figure=f"Open Bandit sample `{sample.campaign}`: distance from the measured IPS value and half width",
            value=apart if inside else 1.0, at_most=1e-5, cpu_s=cpu.spent,
            words=f"{found.value:.5f} +- {(found.high - found.low) / 2:.5f}, verdict {found.verdict}, the policy's own "
            f"log {sample.on_policy:.4f}",
        )  # fmt: skip


def stitching_lines() -> Iterator[AcceptanceLine]:
    """Worst seed of recipe `cql` on the stitching grid; without conservatism as the control, the same figure."""
    from stitching_grid import shares_of_optimum  # noqa: PLC0415 - torch

    seeds = range(FIRST, FIRST + 5)
    for conservatism, figure in ((1.0, "conservative Q-learning"), (0.0, "plain Q-learning")):
        with cpu_seconds() as cpu:
            shares = [shares_of_optimum(seed=seed, conservatism=conservatism) for seed in seeds]
        learnt = [share for _, share in shares]
        words = f"the log's policies {shares[0][0]:.2f}; " + ", ".join(f"{share:.2f}" for share in learnt)
        control = conservatism == 0
        yield AcceptanceLine(
            figure=f"stitching grid, worst share of the optimum by {figure}", value=min(learnt),
            at_least=None if control else 0.9, at_most=0.9 if control else None, negative=control, seeds=len(seeds),
            cpu_s=cpu.spent, words=words,
        )  # fmt: skip
