"""Retraining: frozen views, evidence, poisoned candidates, a killed process; two drifts with a real `hone train`."""

import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from manual_clock import ManualClock

from hone.core.clock import SystemClock
from hone.core.decisions import ActionSet, Choice, Decision, DecisionPolicy, Evidence, Floats, Outcome
from hone.core.errors import ConfigError
from hone.core.random import generator
from hone.decide.bandits.greedy import LinUcbPolicy
from hone.decide.bandits.learning import BanditLearner
from hone.decide.bandits.models import LinearGaussianPosterior
from hone.decide.bandits.policy import BanditPolicy
from hone.decide.bandits.saving import open_decision_policy, save_policy
from hone.decide.joins.columns import log_columns
from hone.decide.joins.join import build_view
from hone.decide.joins.parquet import frozen_hash, view_hash
from hone.decide.joins.view import DecisionView, JoinConfig
from hone.decide.log.opening import open_decision_log
from hone.decide.monitor import retraining
from hone.decide.monitor.config import MonitorConfig, RetrainConfig
from hone.decide.monitor.monitor import ServiceMonitor
from hone.decide.monitor.response import DriftAction, DriftResponder
from hone.decide.monitor.retraining import (
    JobQueue,
    RetrainParts,
    TrainingEnd,
    candidate_evidence,
    refusal_words,
    run_training,
    split_view,
)
from hone.decide.registry import StageMove, VersionOrigin, VersionRegistry, open_registry
from hone.decide.simulators.drifting import DriftingArms, abrupt_changes
from hone.run.store.folder import create_run
from hone.run.store.manifest import RunMetadata

ARMS, FEATURES, EPSILON = 3, 4, 0.5
TRAIN = """
recipe = "linucb"
name = "retrained"
steps = 1

[log]
path = "view"
"""


def world(rounds: int, regimes: list[int], seed: int = 3) -> DriftingArms:
    return DriftingArms(
        rounds=rounds, phases=abrupt_changes(rounds, regimes), seed=seed, arms=ARMS, features=FEATURES, spread=3.0
    )


def explored(policy: DecisionPolicy, context: Floats, actions: ActionSet, draws: np.random.Generator) -> Choice:
    """A choice of the policy, or one at random in a share of `EPSILON`."""
    own = policy.act(context, actions, 0)
    action = int(draws.integers(len(actions))) if draws.random() < EPSILON else own.action
    share = EPSILON / len(actions) + (1 - EPSILON) * (action == own.action)
    return Choice(action=action, logp=float(np.log(share)), scores=own.scores)


def serve(of: DriftingArms, policy: DecisionPolicy, rounds: range, version: str = "v") -> list[Decision | Outcome]:
    """Records of a service in the world, a decision a second."""
    records: list[Decision | Outcome] = []
    for t in rounds:
        choice = explored(policy, of.contexts[t], of.actions, generator(of.seed, "explore", t))
        records.append(Decision(
            id=f"d{t}", tenant="shop", unit=f"u{t}", at_s=float(t), context=of.contexts[t], actions=of.actions,
            choice=choice, executed=choice.action, executed_logp=choice.logp, version=version, source="gate", seq=2 * t,
        ))  # fmt: skip
        value = float(of.rewards[t, choice.action])
        records.append(Outcome(
            decision_id=f"d{t}", tenant="shop", value=value, at_s=t + 0.5, source="gate", seq=2 * t + 1
        ))  # fmt: skip
    return records


def fitted(of: DriftingArms, regime: int) -> LinUcbPolicy:
    """A policy that knows a regime, by the true rates of many contexts."""
    model = LinearGaussianPosterior(ARMS, FEATURES)
    rates = of.regime_rates(regime)
    learner = BanditLearner(LinUcbPolicy(model, 0.0), model, of.actions)
    for arm in range(ARMS):
        learner.observe(of.contexts, np.full(of.rounds, arm), rates[:, arm])
    return LinUcbPolicy(model, 0.0)


def view_of(records: list[Decision | Outcome], as_of_s: float) -> DecisionView:
    return build_view(records, as_of_s=as_of_s, join=JoinConfig(window_s=1.0))


OLD = world(4800, [0, 1, 1, 1])
RECORDS = serve(OLD, fitted(OLD, 0), range(4800))


def parts_of(folder: Path, registry: VersionRegistry, clock: ManualClock | SystemClock) -> RetrainParts:
    (folder / "train.toml").write_text(TRAIN, encoding="utf-8")
    return RetrainParts(
        service="shop", config=RetrainConfig(config=str(folder / "train.toml"), log_key="log.path"), folder=folder,
        registry=registry, view=lambda tenant: view_of(RECORDS, 4900.0), clock=clock,
    )  # fmt: skip


@pytest.fixture
def shop(tmp_path: Path) -> tuple[JobQueue, RetrainParts]:
    """A queue with one job, for the rewards since the change at second 1200."""
    registry = open_registry(tmp_path / "registry", create=True)
    queue, clock = JobQueue(tmp_path / "jobs.db"), ManualClock(4900.0)
    evidence = Evidence(kind="monitor", verdict="weak", words="drift", made_by="monitor", at_s=0.0)
    action = DriftAction(kind="retrain", tenant="shop", evidence=evidence, count=3600, since_s=1200.0)
    assert queue.submit_retraining(action, service="shop", at_s=4900.0)
    return queue, parts_of(tmp_path, registry, clock)


def stand_in(monkeypatch: pytest.MonkeyPatch, policy: BanditPolicy) -> None:
    """Let training end at once with a policy."""

    def train(arguments: tuple[str, ...], **_: object) -> TrainingEnd:
        save_policy(policy, Path(arguments[2]) / "candidate")
        return TrainingEnd(state="finished", words="finished", seconds=0.0)

    monkeypatch.setattr(retraining, "run_training", train)
    monkeypatch.setattr(retraining, "_policy_folder", lambda run, clock: run)


def test_a_good_candidate_comes_back_with_evidence(
    shop: tuple[JobQueue, RetrainParts], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, parts = shop
    stand_in(monkeypatch, fitted(OLD, 1))
    job = parts.work_once(queue, worker="w")
    assert job is not None and parts.work_once(queue, worker="w") is None
    (done,) = queue.jobs()
    assert (done.state, done.result["refused"]) == ("done", "no"), done.result
    version = parts.registry.version(done.result["version"])
    rows = parts.registry.evidence(version.id)
    assert [(row.kind, row.verdict) for row in rows] == [("sound", "ok"), ("offline", "ok"), ("paired", "ok")]
    assert rows[2].low > 0 and "candidate is better than" in rows[2].words
    assert version.origin.view and version.origin.config == TRAIN


@pytest.mark.parametrize("poison", ["worse", "constant", "nan"])
def test_a_poisoned_candidate_is_refused_by_evidence(
    shop: tuple[JobQueue, RetrainParts], monkeypatch: pytest.MonkeyPatch, poison: str
) -> None:
    queue, parts = shop
    policy = fitted(OLD, 0) if poison != "constant" else LinUcbPolicy(LinearGaussianPosterior(ARMS, FEATURES), 0.0)
    if poison == "worse":
        model = policy.model
        assert isinstance(model, LinearGaussianPosterior)
        right = fitted(OLD, 1).model
        assert isinstance(right, LinearGaussianPosterior)
        model.tables.coefficients[:] = -right.tables.coefficients
    stand_in(monkeypatch, policy)
    if poison == "nan":
        broken = _BrokenPolicy()
        monkeypatch.setattr(retraining, "open_decision_policy", lambda path: broken)
    parts.work_once(queue, worker="w")
    (done,) = queue.jobs()
    assert (done.state, done.result["refused"]) == ("done", "yes")
    version = done.result["version"]
    wanted = {
        "worse": "paired: ",
        "constant": "sound: the candidate has the same",
        "nan": "cannot be judged",
    }
    assert wanted[poison] in done.result["words"]
    with pytest.raises(ConfigError):
        move = StageMove(version=version, stage="live", needs=("sound", "offline", "paired"))
        parts.registry.move("shop", move, at_s=1.0, made_by="ship")


class _BrokenPolicy:
    """A policy after an update that was NaN."""

    def logp(self, context: Floats, actions: ActionSet) -> Floats:
        return np.full(len(actions), np.nan)

    def logp_rows(self, contexts: Floats, actions: ActionSet) -> Floats:
        return np.full((len(contexts), len(actions)), np.nan)

    def act(self, context: Floats, actions: ActionSet, draw_key: int) -> Choice:
        return Choice(action=0, logp=0.0)


def test_judged_units_are_never_trained_on() -> None:
    trained, judged = split_view(view_of(RECORDS, 4900.0), since_s=1200.0)
    assert not set(trained.table.units) & set(judged.table.units)
    assert len(trained.table) + len(judged.table) == 3600
    assert 0.45 < len(judged.table) / 3600 < 0.55
    assert min(*trained.table.at_s, *judged.table.at_s) == 1200.0


def test_evidence_of_the_log_itself_is_no_gain() -> None:
    table = view_of(RECORDS, 4900.0).closed()
    rows = candidate_evidence(table, fitted(OLD, 0), minimum_gain=0.5, made_by="test", at_s=0.0)
    assert rows[2].verdict == "refuse"
    assert "at least +0.5 is wanted" in refusal_words(rows)


def test_too_few_decisions_are_named(shop: tuple[JobQueue, RetrainParts]) -> None:
    queue, parts = shop
    replace(parts, view=lambda tenant: view_of(RECORDS[:4], 2.0)).work_once(queue, worker="w")
    (done,) = queue.jobs()
    assert done.state == "failed" and "too few" in done.result["words"]


def test_a_training_that_fails_or_hangs_is_the_result_of_its_job(tmp_path: Path) -> None:
    end = run_training((str(tmp_path / "absent.toml"),), timeout_s=60.0, clock=SystemClock())
    assert end.state == "failed" and "exit code" in end.words and "absent.toml" in end.words
    late = run_training((str(tmp_path / "absent.toml"),), timeout_s=0.01, clock=SystemClock())
    assert late.state == "late" and "no answer within 0.01 s" in late.words


def test_an_abandoned_training_is_killed_with_its_descendants(tmp_path: Path) -> None:
    asked: list[bool] = []

    def abandoned() -> bool:
        asked.append(True)
        return len(asked) > 3

    end = run_training((str(tmp_path / "absent.toml"),), timeout_s=60.0, clock=SystemClock(), abandoned=abandoned)
    assert asked
    assert end.state == "failed"


@pytest.mark.slow
def test_two_drifts_end_to_end_with_a_real_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Service, log, monitor, queue, `hone train`, evidence, registry: two changes, and two new versions in service."""
    monkeypatch.chdir(tmp_path)
    of = world(12_000, [0, 1, 2])
    registry, queue = open_registry(tmp_path / "registry", create=True), JobQueue(tmp_path / "jobs.db")
    save_policy(fitted(of, 0), tmp_path / "first")
    live = registry.add(tmp_path / "first", VersionOrigin(), at_s=0.0, made_by="test").id
    registry.move("shop", StageMove(version=live, stage="live"), at_s=0.0, made_by="test")
    policy: DecisionPolicy = open_decision_policy(registry.policy_folder(live))
    config = MonitorConfig(
        settle=100, act="retrain",
        retrain=RetrainConfig(config=str(tmp_path / "train.toml"), log_key="log.path", minimum_rewards=2800),
    )  # fmt: skip
    responder = DriftResponder(config)
    monitor = ServiceMonitor(config, responder)
    log = open_decision_log(tmp_path / "decisions.db")
    parts = parts_of(tmp_path, registry, SystemClock())
    shipped: list[int] = []
    for t in range(of.rounds):
        records = serve(of, policy, range(t, t + 1), version=live)
        log.append(records)
        for record in records:
            monitor.observe(record)
        for action in responder.step(monitor, float(t)):
            assert queue.submit_retraining(action, service="shop", at_s=float(t))
            now = t + 2.0
            tools = replace(parts, view=lambda tenant, now=now: build_view(
                log_columns(log, tenant=tenant), as_of_s=now, join=JoinConfig(window_s=1.0)))  # fmt: skip
            tools.work_once(queue, worker="w")
            done = queue.jobs()[-1]
            if done.state == "done" and done.result["refused"] == "no":
                live = done.result["version"]
                move = StageMove(version=live, stage="live", needs=("sound", "offline", "paired"))
                registry.move("shop", move, at_s=float(t), made_by="test")
                policy = open_decision_policy(registry.policy_folder(live))
                shipped.append(t)
    assert len(shipped) >= 2, [job.result for job in queue.jobs()]
    assert 4000 < shipped[0] < 8000 < shipped[-1] < 11_500
    late = range(11_500, 12_000)
    chosen = [policy.act(of.contexts[t], of.actions, 0).action for t in late]
    share = of.rates[late, chosen].sum() / of.rates[late].max(axis=1).sum()
    assert share > 0.9
    assert len(registry.lineage(live)) == len(shipped) + 1


@pytest.mark.slow
def test_a_worker_that_is_killed_leaves_a_job_that_another_finishes(
    shop: tuple[JobQueue, RetrainParts], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, parts = shop
    child = os.fork()
    if child == 0:  # the first worker, killed while it trains
        parts.work_once(queue, worker="first")
        os._exit(0)
    time.sleep(1.0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert [job.state for job in queue.jobs()] == ["leased"]
    parts.clock.advance(60.0)  # type: ignore[attr-defined]
    stand_in(monkeypatch, fitted(OLD, 1))
    job = parts.work_once(queue, worker="second")
    assert job is not None and job.attempt == 2
    assert [one.state for one in queue.jobs()] == ["done"]


def test_a_worker_that_stops_leaves_a_run_that_the_next_goes_on_with(
    shop: tuple[JobQueue, RetrainParts], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, parts = shop

    def stopped(arguments: tuple[str, ...], **_: object) -> TrainingEnd:
        with create_run(
            Path(arguments[2]), "candidate", config={}, metadata=RunMetadata(hone_version="0"), clock=parts.clock
        ) as run:
            run.checkpoints().save(1, {})
        raise KeyboardInterrupt

    monkeypatch.setattr(retraining, "run_training", stopped)
    with pytest.raises(KeyboardInterrupt):
        parts.work_once(queue, worker="first")
    assert isinstance(parts.clock, ManualClock)
    assert parts.work_once(queue, worker="second") is None  # the lease holds
    parts.clock.advance(60.0)
    stand_in(monkeypatch, fitted(OLD, 1))
    finish, asked = retraining.run_training, list[tuple[str, ...]]()

    def resumed(arguments: tuple[str, ...], **more: object) -> TrainingEnd:
        asked.append(arguments)
        run = Path(arguments[2]) / "candidate"
        assert (run / "checkpoints" / "step_00000001").is_dir()
        shutil.rmtree(run)  # the stand-in writes a policy there, and no run
        return finish(arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(retraining, "run_training", resumed)
    later = replace(parts, view=lambda tenant: view_of(RECORDS[:-200], 4900.0))  # it trains on the view of the first
    job = later.work_once(queue, worker="second")
    assert job is not None
    (done,) = queue.jobs()
    assert (done.state, done.attempt) == ("done", 2)
    assert asked[0][-1] == "--resume"
    view = parts.folder / done.id / "view"
    assert f"log.path={view}" in asked[0]
    trained, _ = split_view(view_of(RECORDS, 4900.0), since_s=1200.0)
    assert frozen_hash(view) == view_hash(trained)
