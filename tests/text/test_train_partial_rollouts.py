"""Partial rollouts: a policy that is handed to answers being written, the bound on age, and what a resume keeps."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from scripted_episodes import episodes_of
from tiny_runs import hone, lay_out, lines_of

from hone.core.episodes import Episodes
from hone.core.generation import Request
from hone.core.state import State, integer
from hone.engine.engine import EmbeddedEngine
from hone.engine.torch_runner import TorchRunner
from hone.engine.work import ForwardBatch, SamplerOutput
from hone.run.loop import Source
from hone.sources.asynchronous import AsyncSource
from hone.sources.live import LiveSource


@dataclass
class Actor:
    version: int = -1

    def publish(self, policy: None, version: int) -> None:
        self.version = version


@dataclass
class World:
    """One batch of two episodes, numbered on; each decision is by whatever version the actor has when it is taken."""

    pauses_s: list[float] = field(default_factory=lambda: [0.0])
    told: int = 0

    def rollout(self, actor: Actor) -> Episodes:
        self.told += 1
        versions: list[int] = []
        for place in range(6):
            time.sleep(self.pauses_s[(self.told + place) % len(self.pauses_s)])
            versions.append(actor.version)
        plain = episodes_of([2, 4], first=2 * self.told)
        columns = {name: getattr(plain, name) for name in Episodes.__dataclass_fields__}
        return Episodes(**{**columns, "version": np.array(versions, np.int32)})

    def state(self) -> State:
        return {"told": self.told}

    def restore(self, state: State) -> None:
        self.told = integer(state, "told")


def source_of(most: int, *, midway: bool = True, pauses_s: tuple[float, ...] = (0.0,)) -> AsyncSource[None]:
    live = LiveSource[None](World(list(pauses_s)), Actor())
    return AsyncSource[None](live, max_staleness=most, in_background=True, partial_rollouts=midway)


def walk(source: Source[None], steps: int) -> list[tuple[int, list[int]]]:
    """Of each step: the batch's number, and the version of each decision."""
    found: list[tuple[int, list[int]]] = []
    for _ in range(steps):
        episodes = source.collect()
        found.append((int(episodes.group[0]) // 2, episodes.version.tolist()))
        source.publish(None)
    return found


PAUSES = st.lists(st.sampled_from([0.0, 0.0005, 0.002]), min_size=1, max_size=5)


@examples(20)
@given(most=st.integers(0, 3), pauses=PAUSES, learner=PAUSES)
def test_however_fast_anybody_is_nothing_is_older_than_the_bound_out_of_order_or_dropped(most, pauses, learner):
    source = source_of(most, pauses_s=tuple(pauses))
    source.publish(None)
    for step in range(1, 13):
        episodes = source.collect()
        assert int(episodes.group[0]) // 2 == step
        assert (np.diff(episodes.version) >= 0).all()
        age = source.version - episodes.version
        assert age.min() >= 0
        assert age.max() <= most
        told = source.metrics()
        assert told["async/dropped"] == 0
        assert told["async/staleness_max"] == age.max()
        turned = [len(set(part.tolist())) > 1 for part in np.split(episodes.version, [2])]
        assert told["async/several_versions"] == np.mean(turned)
        time.sleep(learner[step % len(learner)])
        source.publish(None)
    source.close()


def test_with_no_step_ahead_it_is_the_synchronous_run():
    alone = LiveSource[None](World(), Actor())
    alone.publish(None)
    source = source_of(0, pauses_s=(0.001,))
    source.publish(None)
    assert walk(source, 6) == walk(alone, 6)
    source.close()


def test_what_is_being_collected_is_part_of_the_state_and_no_batch_is_lost_or_asked_for_twice():
    source = source_of(2, pauses_s=(0.001, 0.003))
    source.publish(None)
    found = walk(source, 4)
    state = source.state()
    assert integer(state, "count") == 3, "what was under way is waited for"
    source.close()
    again = source_of(2)
    again.restore(state)
    again.publish(None)
    found += walk(again, 5)
    again.close()
    assert [number for number, _ in found] == list(range(1, 10))
    for step, (_, versions) in enumerate(found):
        assert max(0, step - 2) <= min(versions) <= max(versions) <= step


def test_a_failure_of_the_thread_is_heard_at_the_next_step():
    class Broken(World):
        def rollout(self, actor: Actor) -> Episodes:
            if self.told == 2:
                raise ValueError("the world ended")
            return super().rollout(actor)

    source = AsyncSource[None](
        LiveSource[None](Broken(), Actor()), max_staleness=1, in_background=True, partial_rollouts=True
    )
    source.publish(None)
    with pytest.raises(ValueError, match="the world ended"):
        walk(source, 4)
    source.close()


# --------------------------------------------------------------------------------------- a run, with a barrier


@dataclass
class Barrier:
    """Pass `at` of the second batch and the publication of version 1 meet; the pass ends once the other waits."""

    at: int
    batches: int = 0
    passes: int = 0
    both: threading.Barrier = field(default_factory=lambda: threading.Barrier(2, timeout=120))

    def submit(self, original: Callable) -> Callable:
        def wrapped(engine: EmbeddedEngine, requests: list[Request], *, round: int = 0) -> object:
            self.batches, self.passes = self.batches + 1, 0
            return original(engine, requests, round=round)

        return wrapped

    def publish(self, original: Callable) -> Callable:
        def wrapped(engine: EmbeddedEngine, version: int) -> None:
            if version == 1:
                self.engine = engine
                self.both.wait()
            original(engine, version)

        return wrapped

    def run(self, original: Callable) -> Callable:
        def wrapped(runner: TorchRunner, work: ForwardBatch) -> SamplerOutput:
            if threading.current_thread().name.startswith("ahead") and self.batches == 2:
                self.passes += 1
                if self.passes == self.at:
                    self.both.wait()
                    while not self.engine._door.locked():
                        time.sleep(0.001)
            return original(runner, work)

        return wrapped


RUN = [
    "rollout.runner=torch", "rollout.max_tokens=16", "rollout.max_concurrent=4", "learner.epochs=1",
    "learner.minibatches=1",
    "learner.lr=0.1", "steps=3",
]  # fmt: skip


def run_with_a_barrier(folder, monkeypatch, on_publish: str) -> list[dict]:
    monkeypatch.chdir(folder)
    lay_out(folder)
    barrier = Barrier(at=9)
    monkeypatch.setattr(EmbeddedEngine, "submit", barrier.submit(EmbeddedEngine.submit))
    monkeypatch.setattr(EmbeddedEngine, "publish", barrier.publish(EmbeddedEngine.publish))
    monkeypatch.setattr(TorchRunner, "run", barrier.run(TorchRunner.run))
    asked = f'rollout.max_staleness={{steps=1, on_publish="{on_publish}"}}'
    assert hone("train", "grpo.toml", asked, *RUN, "name=midway") == 0
    return [json.loads(line) for line in (folder / "runs" / "midway" / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("on_publish", ["finish", "recompute", "keep"])
def test_a_run_hands_its_new_weights_to_answers_that_are_being_written(tmp_path, monkeypatch, capsys, on_publish):
    first, second, third = run_with_a_barrier(tmp_path, monkeypatch, on_publish)
    assert first["async/staleness_max"] == 0
    assert 0 < second["async/staleness"] < 1, "some of the second batch is by the first policy, some by the second"
    assert second["async/staleness_max"] == 1
    assert third["async/staleness_max"] <= 1
    assert [line["async/dropped"] for line in (first, second, third)] == [0, 0, 0]
    assert (second["async/several_versions"] > 0) == (on_publish != "finish")
    if on_publish == "keep":
        assert 0 < second["rollout/stale_keys"] < 1
    else:
        assert "rollout/stale_keys" not in second
    assert f'on_publish = "{on_publish}": which weights drew which token depends on time' in capsys.readouterr().out


def test_no_step_ahead_is_the_same_run_to_the_bit_whatever_becomes_of_answers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    for name, asked in (("plain", "0"), ("table", '{steps=0, on_publish="keep"}')):
        assert hone("train", "grpo.toml", f"rollout.max_staleness={asked}", *RUN, f"name={name}") == 0
    assert lines_of(tmp_path / "runs" / "plain") == lines_of(tmp_path / "runs" / "table")
    assert "depends on time" not in capsys.readouterr().out


def test_a_run_in_two_goes_keeps_the_bound_and_every_batch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    asked = ['rollout.max_staleness={steps=2, on_publish="recompute"}', "rollout.runner=auto", *RUN[1:-1], "name=parts"]
    assert hone("train", "grpo.toml", *asked, "steps=4") == 0
    assert hone("train", "grpo.toml", *asked, "steps=8", "--resume") == 0
    figures = [json.loads(line) for line in (tmp_path / "runs" / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in figures] == list(range(1, 9))
    assert max(line["async/staleness_max"] for line in figures) <= 2
    assert all(line["async/dropped"] == 0 for line in figures)


def test_a_server_is_refused_with_what_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    asked = 'rollout.max_staleness={steps=1, on_publish="keep"}'
    server = 'rollout.runner={kind="vllm", url="http://127.0.0.1:9"}'
    assert hone("train", "grpo.toml", asked, server, "--dry-run") == 2
    assert 'rollout.max_staleness.on_publish = "keep"' in capsys.readouterr().err
