"""Recorded interleaving: a run whose weights were published midway at random moments, replayed bit for bit."""

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from tiny_runs import hone, lay_out, lines_of

from hone.core.generation import Request
from hone.engine.engine import EmbeddedEngine
from hone.engine.torch_runner import TorchRunner
from hone.engine.work import ForwardBatch, SamplerOutput
from hone.run.store.interleaving import read_interleaving

RUN = [
    "rollout.runner=torch", "rollout.max_tokens=16", "rollout.max_concurrent=4", "learner.epochs=1",
    "learner.minibatches=1", "learner.lr=0.1", "run.certify=false", "run.checkpoint_every=99",
]  # fmt: skip


@dataclass
class RandomMoments:
    """Publication v comes in the middle of batch v + 1, after a number of its passes that a seed has drawn."""

    moments: list[int]
    batch: int = 0
    passes: int = 0
    meeting: threading.Barrier = field(default_factory=lambda: threading.Barrier(2, timeout=120))

    def install(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(EmbeddedEngine, "submit", self.submit(EmbeddedEngine.submit))
        patch.setattr(EmbeddedEngine, "publish", self.publish(EmbeddedEngine.publish))
        patch.setattr(TorchRunner, "run", self.run(TorchRunner.run))

    def submit(self, original: Callable) -> Callable:
        def wrapped(engine: EmbeddedEngine, requests: list[Request], *, round: int = 0) -> object:
            if threading.current_thread().name.startswith("ahead"):
                self.batch, self.passes = self.batch + 1, 0
            return original(engine, requests, round=round)

        return wrapped

    def publish(self, original: Callable) -> Callable:
        def wrapped(engine: EmbeddedEngine, version: int) -> None:
            if 0 < version <= len(self.moments):
                self.engine = engine
                self.meeting.wait()
            original(engine, version)

        return wrapped

    def run(self, original: Callable) -> Callable:
        def wrapped(runner: TorchRunner, work: ForwardBatch) -> SamplerOutput:
            if threading.current_thread().name.startswith("ahead"):
                self.passes += 1
                if 2 <= self.batch <= len(self.moments) + 1 and self.passes == self.moments[self.batch - 2]:
                    self.meeting.wait()
                    while not self.engine._door.locked():
                        time.sleep(0.001)
            return original(runner, work)

        return wrapped


def policy_sha256(run: Path) -> str:
    newest = max((run / "checkpoints").iterdir())
    return hashlib.sha256((newest / "policy" / "model.safetensors").read_bytes()).hexdigest()


def asked(on_publish: str, rest: str) -> str:
    return f'rollout.max_staleness={{steps=1, on_publish="{on_publish}", {rest}}}'


def recorded(folder: Path, patch: pytest.MonkeyPatch, on_publish: str, *, steps: int) -> Path:
    patch.chdir(folder)
    lay_out(folder)
    moments = np.random.default_rng(7).integers(2, 5, size=steps).tolist()
    with patch.context() as inner:
        RandomMoments(moments).install(inner)
        record = asked(on_publish, "interleaving='record'")
        assert hone("train", "grpo.toml", record, *RUN, f"steps={steps}", "name=first") == 0
    return folder / "runs" / "first"


def require_equal(run: Path, first: Path) -> None:
    assert policy_sha256(run) == policy_sha256(first)
    assert len(lines_of(run)) == len(lines_of(first))
    samples = [sorted((one / "rollouts").iterdir()) for one in (run, first)]
    assert [path.read_bytes() for path in samples[0]] == [path.read_bytes() for path in samples[1]]


def check_replays(folder: Path, patch: pytest.MonkeyPatch, on_publish: str, *, steps: int, replays: int) -> None:
    first = recorded(folder, patch, on_publish, steps=steps)
    record = read_interleaving(first / "interleaving.jsonl")
    assert record.batches >= steps
    found = [one for batch in range(2, steps + 1) for one in record.read_batch(batch).versions.values()]
    assert {version for one in found for version in one.versions} >= set(range(steps - 1))
    assert any(len(one.versions) > 1 for one in found) == (on_publish != "finish")
    for number in range(replays):
        replay = asked(on_publish, 'interleaving="runs/first"')
        assert hone("train", "grpo.toml", replay, *RUN, f"steps={steps}", f"name=again{number}") == 0
        require_equal(folder / "runs" / f"again{number}", first)


def test_a_run_with_publications_at_random_moments_is_replayed_to_the_bit_and_other_runs_are_refused(
    tmp_path, monkeypatch, capsys
):
    check_replays(tmp_path, monkeypatch, "keep", steps=3, replays=1)
    replay = asked("keep", 'interleaving="runs/first"')
    path = tmp_path / "runs" / "first" / "interleaving.jsonl"
    names = count()
    capsys.readouterr()

    def refused(exit_code: int, *words: str, change: str = "seed=0") -> None:
        assert hone("train", "grpo.toml", replay, *RUN, "steps=3", f"name=other{next(names)}", change) == exit_code
        said = capsys.readouterr().err
        assert [word for word in words if word not in said] == [], said

    refused(2, "the recorded run had other settings", "learner.lr: 0.1 -> 0.2", change="learner.lr=0.2")
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    refused(3, f"interleaving.jsonl:{len(whole.splitlines())}: the line is cut off", "`head -n")
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: [b'"requests"' in line for line in lines].index(True) + 1]))
    refused(3, "the record ends after batch 1, and the replay asks for batch 2")
    path.write_bytes(whole.replace(b'"digest": "', b'"digest": "0'))
    refused(6, "came out otherwise: answers to 4 of 4 requests differ")
    path.unlink()
    refused(3, "the run recorded no versions")


@pytest.mark.slow  # four runs for each treatment of answers
@pytest.mark.parametrize("on_publish", ["finish", "recompute", "keep"])
def test_a_longer_run_is_replayed_three_times(tmp_path, monkeypatch, on_publish):
    check_replays(tmp_path, monkeypatch, on_publish, steps=8, replays=3)


def test_there_is_nothing_to_record_where_nothing_depends_on_time(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    for table in ("steps=1, interleaving='record'", 'steps=0, on_publish="keep", interleaving="record"'):
        assert hone("train", "grpo.toml", f"rollout.max_staleness={{{table}}}", "--dry-run") == 2
        assert "has nothing to record; leave it out" in capsys.readouterr().err


@pytest.mark.slow  # three runs
def test_a_run_that_was_resumed_is_replayed_as_one(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    table = 'steps=2, on_publish="recompute"'
    record = [f"rollout.max_staleness={{{table}, interleaving='record'}}", *RUN, "rollout.runner=auto"]
    assert hone("train", "grpo.toml", *record, "name=first", "steps=3") == 0
    assert hone("train", "grpo.toml", *record, "name=first", "steps=6", "--resume") == 0
    replay = [f'rollout.max_staleness={{{table}, interleaving="runs/first"}}', *RUN, "rollout.runner=auto"]
    assert hone("train", "grpo.toml", *replay, "name=again", "steps=6") == 0
    require_equal(tmp_path / "runs" / "again", tmp_path / "runs" / "first")
    capsys.readouterr()
    assert hone("train", "grpo.toml", *replay, "name=again", "steps=7", "--resume") == 2
    assert "a replay cannot be resumed" in capsys.readouterr().err
