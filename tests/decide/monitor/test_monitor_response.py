"""Answers to drift: recall of the version that explains the rewards, retraining, a log line; and the queue of jobs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from drift_streams import bernoulli
from monitor_records import ACTIONS, AlarmList, decision, reward

from hone.core.decisions import ActionSet, Choice, DecisionPolicy, Floats, draw_action
from hone.core.errors import DataError, ResourceError
from hone.decide.monitor.alarms import AlarmSink
from hone.decide.monitor.config import MonitorConfig, RetrainConfig
from hone.decide.monitor.monitor import RewardedDecision, ServiceMonitor
from hone.decide.monitor.response import LOOKS, DriftAction, DriftResponder, RegistryLibrary, fit_versions
from hone.decide.monitor.retraining import JobQueue
from hone.decide.registry import StageMove, VersionOrigin, open_registry


class ScoredCoin:
    """A policy that draws evenly and expects `slope` times the first feature more than `expected` of every action; with
    None it has no scores."""

    def __init__(self, expected: float | None, slope: float = 0.0) -> None:
        self.expected, self.slope = expected, slope

    def logp(self, context: Floats, actions: ActionSet) -> Floats:
        return np.full(len(actions), -np.log(len(actions)))

    def logp_rows(self, contexts: Floats, actions: ActionSet) -> Floats:
        return np.tile(self.logp(contexts, actions), (len(contexts), 1))

    def act(self, context: Floats, actions: ActionSet, draw_key: int) -> Choice:
        logp = self.logp(context, actions)
        action = draw_action(logp, draw_key)
        scores = None if self.expected is None else np.full(len(actions), self.expected + self.slope * context[0])
        return Choice(action=action, logp=float(logp[action]), scores=scores)


class Shelf:
    """Older versions in a dictionary."""

    def __init__(self, policies: Mapping[str, DecisionPolicy]) -> None:
        self.policies = policies

    def older(self, tenant: str) -> Sequence[str]:
        return list(self.policies)

    def policy(self, version: str) -> DecisionPolicy:
        return self.policies[version]


def play(config: MonitorConfig, shelf: Shelf | None, rewards: Sequence[float], then: AlarmSink | None = None
         ) -> list[tuple[int, DriftAction]]:  # fmt: skip
    """Actions with the number of rewards before each."""
    responder = DriftResponder(config, shelf, then)
    monitor = ServiceMonitor(config, responder)
    found: list[tuple[int, DriftAction]] = []
    for number, value in enumerate(rewards):
        monitor.observe(decision(number, context=(value,)))
        monitor.observe(reward(number, value))
        found += [(number, action) for action in responder.step(monitor, float(number))]
    return found


CHANGE = bernoulli([0.2, 0.7], 500, 3).tolist()
RECALL = MonitorConfig(settle=50, act="recall")
RETRAIN = RetrainConfig(config="retrain.toml", minimum_rewards=40)


def test_the_version_that_explains_the_rewards_is_recalled() -> None:
    heard = AlarmList()
    shelf = Shelf({"spring": ScoredCoin(0.2), "summer": ScoredCoin(0.05, 0.9), "blind": ScoredCoin(None)})
    ((number, action),) = play(RECALL, shelf, CHANGE, heard)
    assert (action.kind, action.version, action.tenant) == ("recall", "summer", "shop")
    assert 500 + LOOKS[0] - 20 <= number < 600
    assert action.evidence.verdict == "ok" and "version summer predicts the last" in action.evidence.words
    assert json.loads(action.line())["act"] == "recall"
    assert heard.signals == ["residual"]


def test_without_a_better_version_the_answer_is_a_job_or_a_line() -> None:
    shelf = Shelf({"spring": ScoredCoin(0.2)})
    config = RECALL.model_copy(update={"retrain": RETRAIN})
    ((number, action),) = play(config, shelf, CHANGE)
    assert action.kind == "retrain" and 500 + LOOKS[-1] - 20 <= number < 840
    assert [action.kind for _, action in play(RECALL, shelf, CHANGE)] == ["alert"]
    assert [action.kind for _, action in play(RECALL, None, CHANGE)] == ["alert"]
    now = MonitorConfig(settle=50, act="retrain", retrain=RETRAIN)
    ((number, action),) = play(now, shelf, CHANGE)
    assert action.kind == "retrain" and number < 560 and 1 <= action.count < 100


def test_fits_worked_out_by_hand() -> None:
    """Rewards 1, 0, 1, 0 that the feature tells; served scores of 0.5 have errors 0.25, and so has the mean. A version
    with the scores 0.8 and 0.2 has errors 0.04; one that expects the opposite has 0.64; one that expects 0.9, 0.41."""
    rows = [RewardedDecision(decision=decision(k, context=(1.0 - k % 2,)), reward=1.0 - k % 2, predicted=0.5)
            for k in range(4)]  # fmt: skip
    shelf = Shelf({"high": ScoredCoin(0.9), "right": ScoredCoin(0.2, 0.6), "wrong": ScoredCoin(0.8, -0.6)})
    right, *others = fit_versions(rows, shelf, "shop", alpha=0.1)
    assert (right.version, right.explains) == ("right", True)
    assert (right.error, right.served, right.constant, right.high) == pytest.approx((0.04, -0.21, -0.21, -0.21))
    assert [(fit.version, fit.explains) for fit in others] == [("high", False), ("wrong", False)]
    assert [fit.error for fit in others] == pytest.approx([0.41, 0.64])
    assert fit_versions(rows[:1], shelf, "shop") == ()


def test_needless_recalls_are_rare() -> None:
    """Rewards that no version knows: no look takes one of nine that expect something."""
    rng = np.random.default_rng(5)
    shelf = Shelf({f"v{k}": ScoredCoin(0.5, 0.1 * k) for k in range(1, 10)})
    taken = 0
    for _ in range(60):
        rows = [RewardedDecision(decision=decision(k), reward=float(rng.random() < 0.5), predicted=0.5)
                for k in range(60)]  # fmt: skip
        taken += fit_versions(rows, shelf, "shop")[0].explains
    assert taken <= 3


def test_versions_come_from_the_registry(tmp_path: Path) -> None:
    registry = open_registry(tmp_path / "registry", create=True)
    numbers = []
    for name in ("a", "b", "c"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "policy.json").write_text(name, encoding="utf-8")
        version = registry.add(folder, VersionOrigin(), at_s=0.0, made_by="test")
        registry.move("shop", StageMove(version=version.id, stage="live"), at_s=len(numbers), made_by="test")
        numbers.append(version.id)
    opened: list[Path] = []

    def load(folder: Path) -> DecisionPolicy:
        opened.append(folder)
        return ScoredCoin(0.5)

    library = RegistryLibrary(registry, "shop", load)
    assert list(library.older("any")) == [numbers[1], numbers[0]]
    assert library.policy(numbers[0]) is library.policy(numbers[0])
    assert len(opened) == 1
    assert registry.live("shop") == numbers[2]
    assert len(ACTIONS) == 2


@pytest.fixture
def queue(tmp_path: Path) -> JobQueue:
    return JobQueue(tmp_path / "jobs.db")


def test_a_tenant_has_one_unfinished_job(queue: JobQueue) -> None:
    assert queue.submit("one", tenant="shop", work={"config": "x.toml"}, at_s=1.0)
    assert not queue.submit("one", tenant="shop", work={}, at_s=2.0)
    assert not queue.submit("two", tenant="shop", work={}, at_s=2.0)
    assert queue.submit("three", tenant="bank", work={}, at_s=0.5)
    first = queue.claim("w", now_s=3.0, lease_s=10.0)
    assert first is not None and first.id == "three"
    queue.finish(first, {"verdict": "ok"})
    assert queue.submit("four", tenant="bank", work={}, at_s=4.0)
    assert [(job.id, job.state) for job in queue.jobs()] == [("three", "done"), ("one", "queued"), ("four", "queued")]


def test_a_lease_that_ran_out_is_taken_and_the_late_worker_writes_nothing(queue: JobQueue) -> None:
    queue.submit("one", tenant="shop", work={"config": "x.toml"}, at_s=1.0)
    slow = queue.claim("slow", now_s=0.0, lease_s=10.0)
    assert slow is not None and queue.claim("fast", now_s=9.0, lease_s=10.0) is None
    queue.renew(slow, until_s=20.0)
    assert queue.claim("fast", now_s=15.0, lease_s=10.0) is None
    fast = queue.claim("fast", now_s=21.0, lease_s=10.0)
    assert fast is not None and fast.attempt == 2 and fast.work == {"config": "x.toml"}
    with pytest.raises(DataError, match=r"no longer held by 'slow' \(claim 1\)"):
        queue.finish(slow, {"verdict": "zombie"})
    queue.finish(fast, {"verdict": "ok"}, failed=True)
    (job,) = queue.jobs()
    assert (job.state, job.result) == ("failed", {"verdict": "ok"})
    with pytest.raises(DataError, match="its lease ran out"):
        queue.renew(fast, until_s=99.0)


def test_a_killed_writer_leaves_a_whole_queue(queue: JobQueue) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom hone.decide.monitor.retraining import JobQueue\n"
        "queue = JobQueue(Path(sys.argv[1]))\n"
        "for k in range(100000):\n"
        "    queue.submit(f'j{k}', tenant=f't{k}', work={}, at_s=k)\n    print(k, flush=True)\n"
    )
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, str(queue.path)]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=here)
    assert writer.stdout is not None
    acked = [int(writer.stdout.readline()) for _ in range(20)][-1]
    os.kill(writer.pid, signal.SIGKILL)
    rest = writer.stdout.read().split()
    writer.wait()
    writer.stdout.close()
    acked = int(rest[-1]) if rest else acked
    kept = [job.id for job in queue.jobs()]
    assert kept == [f"j{k}" for k in range(len(kept))]
    assert len(kept) >= acked + 1


def test_a_queue_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "jobs.db").write_bytes(b"not a database, but long enough to be read as one" * 20)
    with pytest.raises(ResourceError, match="cannot use the queue"):
        JobQueue(tmp_path / "jobs.db").jobs()
    with pytest.raises(ResourceError, match="cannot open the queue"):
        JobQueue(tmp_path / "absent" / "jobs.db").jobs()
