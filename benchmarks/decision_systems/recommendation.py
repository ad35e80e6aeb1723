"""Recommendation with delayed rewards: a service that decides, logs, joins late clicks and learns from them.

LinUCB with a floor beside the best item of each visitor, with clicks at once and with clicks that are late, lost or
sent twice; the log's probabilities and joined rewards beside the truth; estimates of another policy from the run's own
log; digits of a scanner as contexts. Settings were chosen on seeds below 100; every figure is of seeds from 100.
"""

import importlib.util
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from decision_systems import AcceptanceLine, cpu_seconds
from hone.core.decisions import ActionSet, DecisionTable, Floats, decision_key
from hone.decide.bandits.greedy import LinUcbPolicy
from hone.decide.bandits.models import LinearGaussianPosterior
from hone.decide.bandits.policy import BanditPolicy
from hone.decide.bandits.saving import copy_policy
from hone.decide.bandits.wrappers import EpsilonFloor
from hone.decide.estimators.estimate import EstimateSettings, OffPolicyEstimate, estimate_values
from hone.decide.evaluate.off_policy import logged_feedback
from hone.decide.gateway.opening import OpenedService, open_service
from hone.decide.joins.columns import DECISIONS, OUTCOMES, RecordColumns
from hone.decide.joins.join import build_view
from hone.decide.joins.parquet import LargeJoin
from hone.decide.joins.view import DecisionView, JoinConfig, take_decisions
from hone.decide.simulators.recommendation import DeliveryConfig, RecommendationWorld, SimulatedClock

TITLE = "Recommendation"
FIRST, ROUNDS, FLOOR, ALPHA = 100, 10_000, 0.02, 0.5
ESTIMATE_FLOOR = 0.1
"""Floor of a log from which other policies are estimated: each of 10 items has a probability of 0.01."""
DELAYED = DeliveryConfig(mean_delay_s=200.0, lost=0.1, twice=0.05)
WINDOW_S = 800.0
SERVICE = """
[service]
features = [{features}]
actions = [{actions}]
seed = {seed}

[policy]
kind = "linucb"
alpha = {alpha}
floor = {floor}

[join]
window_s = {window}
rule = "first"
"""


def acceptance(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Figures of the system."""
    yield from prompt_lines(runs=1 if fast else 20)
    yield from coverage_lines(runs=2 if fast else 40)
    yield from delayed_lines(seeds=1 if fast else 5)
    yield greedy_line(rounds=2_000)
    if not fast and importlib.util.find_spec("sklearn"):
        yield from digits_lines()
    if not fast and importlib.util.find_spec("duckdb"):
        yield from speed_lines()


# ---------------------------------------------------------------------------------------------- clicks at once


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnedRun:
    """A run of a policy that learns from each reward before its next decision."""

    table: DecisionTable
    rates: Floats
    """`[n]` true rate of each executed action."""
    halfway: BanditPolicy
    """The policy after half of the rounds."""


def learned_run(world: RecommendationWorld, policy: BanditPolicy, model: LinearGaussianPosterior) -> LearnedRun:
    """Decide and learn, a visitor after another."""
    count, actions, halfway = world.rounds, world.actions, policy
    executed, logp = np.zeros(count, np.int64), np.zeros(count)
    for number in range(count):
        if number == count // 2:
            halfway = copy_policy(policy)
        choice = policy.act(world.contexts[number], actions, decision_key(world.seed, "shop", str(number)))
        arm = executed[number : number + 1]
        arm[0], logp[number] = choice.action, choice.logp
        model.observe(world.contexts[number : number + 1], arm, world.clicks[number, arm], np.ones(1), actions)
    rows = np.arange(count)
    table = DecisionTable(
        contexts=world.contexts, action_sets=(actions,), action_set=np.zeros(count, np.int64), executed=executed,
        logp=logp, reward=world.clicks[rows, executed], known=np.ones(count, np.bool_), at_s=rows.astype(np.float64),
        ids=tuple(f"d{row}" for row in rows), units=tuple(f"u{row}" for row in rows), versions=("live",) * count,
    )  # fmt: skip
    return LearnedRun(table=table, rates=world.rates[rows, executed], halfway=halfway)


def linucb(items: int, features: int, *, alpha: float = ALPHA) -> tuple[LinUcbPolicy, LinearGaussianPosterior]:
    """LinUCB without a floor, and its model."""
    model = LinearGaussianPosterior(items, features, noise=1.0, prior_precision=1.0)
    return LinUcbPolicy(model, alpha), model


def second_half_estimate(run: LearnedRun, world: RecommendationWorld) -> tuple[OffPolicyEstimate, float]:
    """Estimate of the halfway policy from the second half of the log, and its true value there."""
    half = take_decisions(run.table, np.arange(world.rounds // 2, world.rounds))
    found = estimate_values(logged_feedback(half, run.halfway), ["dr"], EstimateSettings(seed=world.seed))
    p = np.exp(run.halfway.logp_rows(half.contexts, world.actions))
    return found["dr"].estimate, float((p * world.rates[world.rounds // 2 :]).sum(axis=1).mean())


def prompt_lines(runs: int) -> Iterator[AcceptanceLine]:
    """Share of the oracle's clicks without delay, and probabilities of the decisions."""
    shares, unsound = list[float](), 0
    with cpu_seconds() as cpu:
        for seed in range(FIRST, FIRST + runs):
            world = RecommendationWorld(rounds=ROUNDS, seed=seed)
            policy, model = linucb(world.items, world.features)
            run = learned_run(world, EpsilonFloor(policy, FLOOR), model)
            shares.append(float(run.rates.mean()) / world.oracle)
            unsound += int((~np.isfinite(run.table.logp) | (run.table.logp > 0)).sum())
    words = f"LinUCB, floor {FLOOR:g}, {ROUNDS:,} rounds"
    yield AcceptanceLine(
        figure="share of the oracle's clicks without delay", value=float(np.mean(shares)), at_least=0.95, seeds=runs,
        cpu_s=cpu.spent, words=f"{words}; worst {min(shares):.3f}",
    )  # fmt: skip
    yield AcceptanceLine(
        figure="decisions with a probability of 0 or above 1", value=unsound, at_most=0, seeds=runs, words=words
    )


def coverage_lines(runs: int) -> Iterator[AcceptanceLine]:
    """Coverage of estimates of another policy from a run's own log."""
    covered, refused, widths = 0, 0, list[float]()
    with cpu_seconds() as cpu:
        for seed in range(FIRST, FIRST + runs):
            world = RecommendationWorld(rounds=ROUNDS, seed=seed)
            policy, model = linucb(world.items, world.features)
            found, truth = second_half_estimate(learned_run(world, EpsilonFloor(policy, ESTIMATE_FLOOR), model), world)
            refused += found.verdict == "refuse"
            covered += found.low <= truth <= found.high
            widths.append((found.high - found.low) / 2)
    words = f"the policy of halfway from the second half, doubly robust, floor {ESTIMATE_FLOOR:g}"
    yield AcceptanceLine(
        figure="share of 95% intervals from the run's own log that hold the true value", value=covered / runs,
        at_least=0.9 if runs >= 20 else 0.5, seeds=runs, cpu_s=cpu.spent,
        words=f"{words}; mean half width {np.mean(widths):.3f}" + ("" if runs >= 20 else "; bar widened for few runs"),
    )  # fmt: skip
    yield AcceptanceLine(
        figure="share of these estimates that are refused", value=refused / runs, at_most=0.1, seeds=runs, words=words
    )


# ---------------------------------------------------------------------------------------------- clicks that come late


def open_shop(world: RecommendationWorld, folder: Path, clock: SimulatedClock) -> OpenedService:
    """A service for the world's visitors."""
    features, actions = (
        ", ".join(f'"{name}"' for name in names) for names in (world.feature_names, world.actions.names)
    )
    text = SERVICE.format(
        features=features, actions=actions, seed=world.seed, alpha=ALPHA, floor=FLOOR, window=WINDOW_S
    )
    (folder / "shop.toml").write_text(text, encoding="utf-8")
    return open_service(folder / "shop.toml", clock=clock, tell=list[str]().append)


def shop_run(world: RecommendationWorld) -> tuple[DecisionView, Floats]:
    """Serve every visitor, tell outcomes as they arrive -> the log's view, and the true rates of what was shown."""
    clock, shown = SimulatedClock(), np.zeros(world.rounds, np.int64)
    waiting = iter(world.deliveries())
    following = next(waiting, None)
    with tempfile.TemporaryDirectory() as folder:
        shop = open_shop(world, Path(folder), clock)
        for number in range(world.rounds):
            clock.time_s = clock.begin_s + number
            decided = shop.service.decide(f"u{number % 500}", world.visitor(number), id=f"d{number}")
            shown[number] = world.actions.names.index(decided.action)
            while following is not None and following.at_s < number + 1:
                clock.time_s = clock.begin_s + following.at_s
                value = float(world.clicks[following.round, shown[following.round]])
                shop.service.reward(f"d{following.round}", value, at_s=clock.begin_s + following.happened_s)
                following = next(waiting, None)
        view = shop.view(as_of_s=clock.begin_s + world.rounds)
        shop.close()
    return view, world.rates[np.arange(world.rounds), shown]


def wrong_rewards(view: DecisionView, world: RecommendationWorld) -> int:
    """Rows whose reward or state is not that of the world."""
    clicked = world.clicks[np.arange(world.rounds), view.table.executed]
    reward = np.where(world.delays_s <= WINDOW_S, clicked, view.join.default)
    open_rows = np.arange(world.rounds) + WINDOW_S > world.rounds
    right = np.where(open_rows, ~view.table.known, view.table.reward == reward)
    return world.rounds - int(right.sum())


def delayed_lines(seeds: int) -> Iterator[AcceptanceLine]:
    """Share of the oracle's clicks with delays, losses and copies, through a service and its log."""
    shares, wrong, counted, p = list[float](), 0, 0, list[float]()
    with cpu_seconds() as cpu:
        for seed in range(FIRST, FIRST + seeds):
            world = RecommendationWorld(rounds=ROUNDS, seed=seed, delivery=DELAYED)
            view, rates = shop_run(world)
            shares.append(float(rates.mean()) / world.oracle)
            wrong += wrong_rewards(view, world)
            counted += view.counts.decisions
            p.append(float(np.exp(view.table.logp.min())))
    words = "delays of 200 rounds on average, 10% lost, 5% sent twice"
    yield AcceptanceLine(
        figure="share of the oracle's clicks with delays", value=float(np.mean(shares)), at_least=0.90, seeds=seeds,
        cpu_s=cpu.spent, words=f"{words}; worst {min(shares):.3f}; through the service and its log",
    )  # fmt: skip
    yield AcceptanceLine(
        figure="joined rewards that are not the world's", value=wrong, at_most=0, seeds=seeds,
        words=f"{counted:,} decisions; {words}",
    )  # fmt: skip
    yield AcceptanceLine(
        figure="smallest logged probability over that of the floor", value=min(p) / (FLOOR / 10), at_least=1 - 1e-9,
        seeds=seeds, words=f"floor {FLOOR:g} over 10 items",
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- negative control


def greedy_line(rounds: int) -> AcceptanceLine:
    """The same without a floor and without a bonus: its log supports no other policy, so an estimate is refused."""
    world = RecommendationWorld(rounds=rounds, seed=FIRST)
    greedy, model = linucb(world.items, world.features, alpha=0.0)
    with cpu_seconds() as cpu:
        run = learned_run(world, greedy, model)
        asked = EpsilonFloor(run.halfway, 0.5)
        logged = logged_feedback(run.table, asked)
        found = estimate_values(logged, ["dr"], EstimateSettings(seed=FIRST))["dr"].estimate
    return AcceptanceLine(
        figure="an estimate from a greedy log without a floor is refused", value=float(found.verdict == "refuse"),
        at_least=1, negative=True, cpu_s=cpu.spent, words=f"{rounds:,} rounds; {found.reasons[0].words}",
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------- many rows


def speed_lines(rows: int = 10**6, large: int = 10**7) -> Iterator[AcceptanceLine]:
    """Processor time of the join in memory, and wall time of the join of parquet files by DuckDB."""
    join, words = JoinConfig(window_s=10_000.0), "8 features, outcomes of 40%, shuffled"
    columns = decision_columns(0, rows)
    shuffled = columns.decisions.take(pa.array(np.random.default_rng(FIRST).permutation(rows)))
    with cpu_seconds() as cpu:
        view = build_view(replace(columns, decisions=shuffled), as_of_s=0.0864 * rows, join=join)
    yield AcceptanceLine(
        figure=f"seconds of processor time to join {rows:,} decisions in memory", value=cpu.spent, at_most=10.0,
        cpu_s=cpu.spent, words=f"{words}; {view.counts.joined:,} joined",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for day in range(0, large, 10**6):
            write_day(decision_columns(day, min(10**6, large - day)), Path(folder) / "shop" / f"day-{day}")
        job = LargeJoin(folder=Path(folder), tenant="shop", as_of_s=0.0864 * large, join=join, memory="3GB", threads=2)
        begin = time.monotonic()
        with cpu_seconds() as cpu:
            counts = job.write(Path(folder) / "view.parquet")
        spent = time.monotonic() - begin
    yield AcceptanceLine(
        figure=f"seconds to join {large:,} decisions from parquet by DuckDB", value=spent, at_most=60.0,
        cpu_s=cpu.spent, words=f"two threads, 3 GB of memory; {counts.joined:,} joined",
    )  # fmt: skip


def decision_columns(first: int, count: int) -> RecordColumns:
    """Decisions and outcomes by their numbers, as columns."""
    chance, numbers = np.random.default_rng([FIRST, first]), np.arange(first, first + count)
    at_s, ids = numbers * 0.0864, pa.array([f"d{number:09d}" for number in numbers])
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * 8)
    told = chance.random(count) < 0.4
    decisions = {
        "tenant": ["shop"] * count, "id": ids, "unit": ids, "at_s": at_s,
        "context": pa.ListArray.from_arrays(offsets, pa.array(chance.standard_normal(8 * count).round(3))),
        "action_set": np.zeros(count, np.int64), "executed": np.zeros(count, np.int64), "logp": np.full(count, -1.0),
        "version": ["v"] * count, "route": [""] * count, "schema": [""] * count, "source": ["gateway"] * count,
        "seq": numbers,
    }  # fmt: skip
    some = int(told.sum())
    outcomes = {
        "tenant": ["shop"] * some, "decision_id": ids.filter(pa.array(told)), "kind": ["reward"] * some,
        "value": np.ones(some), "at_s": at_s[told] + chance.exponential(3000.0, some), "source": ["clicks"] * some,
        "seq": numbers[told],
    }  # fmt: skip
    return RecordColumns(
        decisions=pa.table(decisions, schema=DECISIONS), outcomes=pa.table(outcomes, schema=OUTCOMES),
        action_sets=(ActionSet(names=("a", "b")),),
    )  # fmt: skip


def write_day(columns: RecordColumns, folder: Path) -> None:
    """The columns as the parquet files of one day of an export, with the columns that a join reads."""
    folder.mkdir(parents=True)
    table, count = columns.decisions, columns.decisions.num_rows
    names = pa.array(list(columns.action_sets[0].names)).take(pa.array(np.tile(np.arange(2), count)))
    sets = pa.ListArray.from_arrays(pa.array(np.arange(count + 1, dtype=np.int32) * 2), names)
    table = table.rename_columns([{"logp": "executed_logp"}.get(name, name) for name in table.column_names])
    table = table.append_column("action_names", sets)
    table = table.append_column("action_features", pa.nulls(count, pa.list_(pa.float64())))
    table = table.append_column("action_width", pa.nulls(count, pa.int64()))
    pq.write_table(table, folder / "decisions.parquet", compression="zstd", row_group_size=100_000)
    pq.write_table(columns.outcomes, folder / "outcomes.parquet", compression="zstd", row_group_size=100_000)


# ---------------------------------------------------------------------------------------------- digits


def digits_lines(passes: int = 5, seeds: int = 3) -> Iterator[AcceptanceLine]:
    """Handwritten digits as contexts (1,797 images, 10 classes as arms): the share of right guesses."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - only where it is installed

    data = load_digits()
    images, labels = np.asarray(data.data, np.float64) / 16.0, np.asarray(data.target, np.int64)
    contexts = np.concatenate([images, np.ones((len(images), 1))], axis=1)
    means, lasts = list[float](), list[float]()
    with cpu_seconds() as cpu:
        for seed in range(FIRST, FIRST + seeds):
            right = digits_run(contexts, labels, seed=seed, passes=passes)
            means.append(float(right.mean()))
            lasts.append(float(right[-1].mean()))
    rounds, words = passes * seeds * len(labels), f"LinUCB, {passes} passes over {len(labels):,} images"
    yield AcceptanceLine(
        figure="right digits, all passes", value=float(np.mean(means)), at_least=0.945, seeds=seeds, cpu_s=cpu.spent,
        words=f"{words}; worst {min(means):.3f}; {1e6 * cpu.spent / rounds:.0f} us of processor time a round",
    )  # fmt: skip
    yield AcceptanceLine(
        figure="right digits, last pass", value=float(np.mean(lasts)), at_least=0.98, seeds=seeds,
        words=f"{words}; worst {min(lasts):.3f}",
    )  # fmt: skip


def digits_run(contexts: Floats, labels: np.ndarray, *, seed: int, passes: int) -> Floats:
    """1.0 for each right guess `[passes, n]`; the images of each pass in another order."""
    policy, model = linucb(10, contexts.shape[1], alpha=0.2)
    actions, right = ActionSet(names=tuple(map(str, range(10)))), np.zeros((passes, len(labels)))
    for turn in range(passes):
        order = np.random.default_rng([seed, turn]).permutation(len(labels))
        for place, row in enumerate(order):
            action = policy.act(contexts[row], actions, decision_key(seed, "digits", f"{turn} {place}")).action
            right[turn, place] = action == labels[row]
            arm = np.array([action])
            model.observe(contexts[row : row + 1], arm, right[turn, place : place + 1], np.ones(1), actions)
    return right
