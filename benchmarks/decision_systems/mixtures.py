"""Mixtures in a service: learners over several time windows with weights, and traffic by a bandit between versions.

Both run through the service and its log, on arms with logistic rewards. Every decision must be logged with the
mixture's probability: with the probability under the part that was drawn, estimates from the log are wrong. Settings
are chosen on seeds below 100.
"""

import math
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from decision_systems import AcceptanceLine, cpu_seconds
from hone.core.decisions import Decision, DecisionTable, Floats, draw_action
from hone.core.random import generator
from hone.decide.bandits.greedy import EpsilonGreedyPolicy
from hone.decide.bandits.models import LinearGaussianPosterior
from hone.decide.bandits.policy import BanditPolicy
from hone.decide.bandits.saving import load_policy, save_policy
from hone.decide.bandits.wrappers import Routed
from hone.decide.estimators.estimate import EstimateSettings, estimate_values
from hone.decide.evaluate.off_policy import logged_feedback
from hone.decide.gateway.opening import OpenedService, open_service, pages
from hone.decide.simulators.drifting import DriftingArms, abrupt_changes
from hone.decide.simulators.recommendation import SimulatedClock
from hone.run.store.codec import state_bytes

TITLE = "Mixtures of policies in a service"
FIRST = 100
VERSION_ROWS = {"old": 30, "new": 3_000}
"""Rewards that the old and the new version were learnt from."""
HEAD = """
[service]
features = [{features}]
actions = [{actions}]
seed = {seed}

[join]
rule = "first"
low = 0.0
high = 1.0

[policy]
publish_every = 20
"""
LEARNER = """kind = "linucb"
alpha = 0.5
floor = 0.01
"""
WINDOWS = (
    LEARNER
    + """
[policy.windows]
lengths = [200, 1000, 0]
"""
)
TRAFFIC = """kind = "traffic"
floor = 0.0
share_floor = {share_floor}

[policy.versions]
old = "old"
new = "new"
"""


def acceptance(*, fast: bool) -> Iterator[AcceptanceLine]:
    """Figures of both."""
    yield from window_lines(range(FIRST, FIRST + (1 if fast else 10)), 1_200 if fast else 3_000)
    yield from traffic_lines(range(FIRST, FIRST + (3 if fast else 20)), 400 if fast else 1_500)


# ---------------------------------------------------------------------------------------------- a service of a world


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRun:
    """Decisions of a run, as the log has them, and what was found beside them."""

    world: DriftingArms
    decisions: list[Decision]
    table: DecisionTable
    folder: Path
    restarts: int
    """Restarts in the middle whose learner was not the running one, bit for bit."""

    @property
    def share(self) -> float:
        """Expected reward as a share of the best arms'."""
        return self.world.share_of_best(np.array([one.executed for one in self.decisions]))

    def mixture(self, decision: Decision) -> Routed:
        """The policy that made a decision, as the service kept it."""
        policy = load_policy(self.folder / "shop" / "versions" / decision.version)
        assert isinstance(policy, Routed)
        return policy


def open_shop(world: DriftingArms, policy: str, folder: Path) -> OpenedService:
    """The service of a world, in a folder with the versions of its policy."""
    features = ", ".join(f'"x{k}"' for k in range(world.features))
    actions = ", ".join(f'"{name}"' for name in world.actions.names)
    text = HEAD.format(features=features, actions=actions, seed=world.seed) + policy
    (folder / "shop.toml").write_text(text, encoding="utf-8")
    return open_service(folder / "shop.toml", clock=SimulatedClock(), tell=list[str]().append)


def serve(world: DriftingArms, policy: str, folder: Path, *, restarts: int = 0) -> ServedRun:
    """Serve every round, its reward before the next; in the middle, open the service again from a copy of its log."""
    shop, differing = open_shop(world, policy, folder), 0
    for t in range(world.rounds):
        decided = shop.decide(f"u{t}", world.contexts[t], id=f"d{t}")
        shop.reward(decided.id, float(world.rewards[t, decided.index]))
        if restarts and t % (world.rounds // restarts) == world.rounds // restarts // 2:
            differing += restarted_differently(world, policy, folder, shop)
    decisions = [one.record for one in pages(shop.log) if isinstance(one.record, Decision)]
    table = shop.view(as_of_s=shop.clock.now_s() + shop.config.join.window_s).table
    shop.close()
    return ServedRun(world=world, decisions=decisions, table=table, folder=folder, restarts=differing)


def restarted_differently(world: DriftingArms, policy: str, folder: Path, shop: OpenedService) -> bool:
    """True if a service that begins with a copy of the log, as after a kill, has another learner."""
    copy = folder / "killed"
    (copy / "shop").mkdir(parents=True)
    for name in ("old", "new"):
        if (folder / name).is_dir():
            shutil.copytree(folder / name, copy / name)
    with closing(sqlite3.connect(folder / "shop" / "decisions.db")) as log:
        log.execute(f"vacuum into '{copy / 'shop' / 'decisions.db'}'")
    again = open_shop(world, policy, copy)
    states = [one.policies.tenants["default"].learning for one in (shop, again)]
    differs = len({state_bytes(one.learner.state()).tobytes() for one in states if one is not None}) != 1
    again.close()
    shutil.rmtree(copy)
    return differs


def probability_errors(run: ServedRun) -> tuple[float, int]:
    """Largest distance of a logged probability from the sum of share times probability, and replays that differ."""
    largest, differing = 0.0, 0
    for one in run.decisions[:: max(1, len(run.decisions) // 300)]:
        mixture = run.mixture(one)
        mass = sum(
            share * math.exp(policy.logp(one.context, run.world.actions)[one.executed])
            for share, policy in zip(mixture.shares, mixture.policies, strict=True)
        )
        largest = max(largest, abs(math.exp(one.executed_logp) - mass))
        choice = mixture.act(one.context, run.world.actions, one.draw_key)
        differing += (choice.action, choice.logp) != (one.executed, one.executed_logp)
    return largest, differing


# ---------------------------------------------------------------------------------------------- windows


def exactness_lines(
    policy: str, largest: float, differing: int, restarts: int, seeds: range, *, restarts_a_run: int
) -> Iterator[AcceptanceLine]:
    """Logged probabilities against those of the mixture, replays against the log, restarts against their runs."""
    count = len(seeds)
    yield AcceptanceLine(
        figure=f"{policy}, largest error of a logged probability", value=largest, at_most=1e-12, seeds=count
    )
    yield AcceptanceLine(figure=f"{policy}, replays that differ", value=differing, at_most=0, seeds=count)
    yield AcceptanceLine(
        figure=f"{policy}, restarts from the log with another learner", value=restarts, at_most=0, seeds=count,
        words=f"{restarts_a_run * count} restarts",
    )  # fmt: skip


def window_lines(seeds: range, rounds: int) -> Iterator[AcceptanceLine]:
    """Two abrupt changes: windows of several lengths beside one learner, both through the service."""
    shares, plain, largest, differing, restarts = list[float](), list[float](), 0.0, 0, 0
    with cpu_seconds() as cpu:
        for seed in seeds:
            world = DriftingArms(rounds=rounds, phases=abrupt_changes(rounds, [0, 1, 2]), seed=seed, spread=3.0)
            with tempfile.TemporaryDirectory() as folder:
                run = serve(world, WINDOWS, Path(folder), restarts=3)
                error, wrong = probability_errors(run)
            largest, differing, restarts = max(largest, error), differing + wrong, restarts + run.restarts
            shares.append(run.share)
            with tempfile.TemporaryDirectory() as folder:
                plain.append(serve(world, LEARNER, Path(folder)).share)
    words = f"LinUCB, two abrupt changes in {rounds:,} rounds, windows of 200, 1,000 and all"
    gains = np.array(shares) - np.array(plain)
    yield AcceptanceLine(
        figure="windows, share of the best reward", value=float(np.mean(shares)),
        at_least=0.88 if rounds >= 3_000 else 0.80, seeds=len(seeds), cpu_s=cpu.spent,
        words=f"{words}; worst seed {min(shares):.3f}; wider for fewer rounds",
    )  # fmt: skip
    yield AcceptanceLine(
        figure="windows, share of the best gained over one learner", value=float(gains.mean()),
        at_least=0.03 if rounds >= 3_000 else 0.015, seeds=len(seeds),
        words=f"one learner {np.mean(plain):.3f}, least gain {gains.min():.3f}; wider for fewer rounds",
    )  # fmt: skip
    yield from exactness_lines("windows", largest, differing, restarts, seeds, restarts_a_run=3)


# ---------------------------------------------------------------------------------------------- traffic


def version(world: DriftingArms, rows: int) -> BanditPolicy:
    """The greedy policy of a model that was learnt from `rows` decisions at random."""
    random = generator(world.seed, "version", rows)
    model = LinearGaussianPosterior(world.arms, world.features)
    contexts = random.standard_normal((rows, world.features))
    contexts[:, 0] = 1.0
    chosen = random.integers(0, world.arms, rows)
    weights = generator(world.seed, "drifting regime", 0).standard_normal((world.arms, world.features))
    rates = 1 / (1 + np.exp(-world.spread * (contexts * weights[chosen]).sum(axis=1)))
    model.observe(contexts, chosen, (random.random(rows) < rates).astype(np.float64), np.ones(rows), world.actions)
    return EpsilonGreedyPolicy(model, 0.0)


def drawn_logp(run: ServedRun) -> Floats:
    """Log-probabilities `[n]` of the executed actions under the versions that were drawn: 0, as each is greedy."""
    logp = np.zeros(len(run.decisions))
    mixtures: dict[str, Routed] = {}
    for row, one in enumerate(run.decisions):
        mixture = mixtures.setdefault(one.version, run.mixture(one))
        place = draw_action(np.log(mixture.shares), one.draw_key)
        logp[row] = mixture.policies[place].logp(one.context, run.world.actions)[one.executed]
    return logp


def intervals_that_hold(run: ServedRun, versions: Mapping[str, BanditPolicy]) -> tuple[int, int]:
    """95% intervals of the versions' values that hold the truth: by logged probabilities, and by those of the version
    that was drawn."""
    table, world = run.table, run.world
    conditional, counts = drawn_logp(run), [0, 0]
    for policy in versions.values():
        p = np.exp(policy.logp_rows(world.contexts, world.actions))
        truth = float((p * world.rates).sum(axis=1).mean())
        for place, logp in enumerate((table.logp, conditional)):
            feedback = logged_feedback(replace(table, logp=logp), policy)
            estimate = estimate_values(feedback, ["ips"], EstimateSettings(seed=world.seed))["ips"].estimate
            counts[place] += estimate.low <= truth <= estimate.high
    return counts[0], counts[1]


@contextmanager
def versions_run(world: DriftingArms, versions: Mapping[str, BanditPolicy], share_floor: float) -> Iterator[ServedRun]:
    """A run of traffic between versions, with restarts in the middle; its files are there within the block."""
    with tempfile.TemporaryDirectory() as folder:
        for name, one in versions.items():
            save_policy(one, Path(folder) / name)
        yield serve(world, TRAFFIC.format(share_floor=share_floor), Path(folder), restarts=2)


def traffic_lines(seeds: range, rounds: int) -> Iterator[AcceptanceLine]:
    """Two versions of which one is better: what traffic earns, and estimates of both from its log."""
    earned, equal, held = list[float](), list[float](), np.zeros(2, np.int64)
    largest, differing, restarts = 0.0, 0, 0
    with cpu_seconds() as cpu:
        for seed in seeds:
            world = DriftingArms(rounds=rounds, phases=abrupt_changes(rounds, [0]), seed=seed, spread=3.0)
            versions = {name: version(world, rows) for name, rows in VERSION_ROWS.items()}
            chosen = [one.logp_rows(world.contexts, world.actions).argmax(axis=1) for one in versions.values()]
            best = max(map(world.share_of_best, chosen))
            with versions_run(world, versions, share_floor=0.1) as run:
                error, wrong = probability_errors(run)
                largest, differing, restarts = max(largest, error), differing + wrong, restarts + run.restarts
                held += intervals_that_hold(run, versions)
                earned.append(run.share / best)
            with versions_run(world, versions, share_floor=1.0) as run:
                equal.append(run.share / best)
    words = f"two greedy versions, learnt from 30 and 3,000 rewards; {rounds:,} rounds"
    gain = float(np.mean(earned) - np.mean(equal))
    yield AcceptanceLine(
        figure="traffic, reward as a share of the better version's", value=float(np.mean(earned)), at_least=0.95,
        seeds=len(seeds), cpu_s=cpu.spent, words=f"{words}; worst seed {min(earned):.3f}",
    )  # fmt: skip
    yield AcceptanceLine(
        figure="traffic, share gained over an equal split", value=gain, at_least=0.01, seeds=len(seeds),
        words=f"equal split {np.mean(equal):.3f}",
    )  # fmt: skip
    yield from exactness_lines("traffic", largest, differing, restarts, seeds, restarts_a_run=2)
    yield AcceptanceLine(
        figure="traffic, share of 95% intervals of the versions' values that hold the truth",
        value=float(held[0]) / (2 * len(seeds)), at_least=0.75 if len(seeds) < 10 else 0.85, seeds=len(seeds),
        words="inverse propensity weighting from the log of the traffic; wider for few seeds",
    )  # fmt: skip
    yield AcceptanceLine(
        figure="the same by the probability under the version that was drawn", value=float(held[1]) / (2 * len(seeds)),
        at_most=0.3, negative=True, seeds=len(seeds),
    )  # fmt: skip
