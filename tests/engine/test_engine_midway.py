"""Weights handed over by another thread, in the middle of answers: who waits for whom, and which weights drew what."""

import copy
import threading
import time

import numpy as np
import pytest
import torch
from engines import CONFIG, VOCAB, by_name, engine, request, same

from hone.core.errors import DivergedError
from hone.core.generation import ScoreRequest, generate
from hone.engine.canary import WeightCanary
from hone.engine.engine import EmbeddedEngine
from hone.engine.open_engine import choose_runner
from hone.engine.scheduler import Scheduler
from hone.engine.torch_runner import TorchRunner
from hone.models.language.init import new_model

ASKED = [request(0, max_tokens=20), request(1, max_tokens=40, samples=3), request(2, max_tokens=40, length=50)]
SLOTS = 3
"""Fewer than answers: some have not been begun when the weights change."""


@pytest.fixture
def model():
    return new_model(CONFIG, seed=1)


def stepped(model, factor=1.3) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)


class Held(TorchRunner):
    """Weights of its own; one pass of another thread than the main one waits for the test."""

    def __init__(self, model, *, at: int = 1 << 30) -> None:
        super().__init__(copy.deepcopy(model), vocab_used=VOCAB, page_tokens=16, source_model=model)
        self.at, self.passes = at, 0
        self.there, self.go = threading.Event(), threading.Event()

    def run(self, work):
        if threading.current_thread() is not threading.main_thread():
            self.passes += 1
            if self.passes == self.at:
                self.there.set()
                assert self.go.wait(300)
        return super().run(work)


def held_engine(model, runner, **changes):
    made = engine(model, eos=(), slots=SLOTS, **changes)
    made.runner, made.own_weights = runner, True
    made.publish(0)
    return made


def until(ready) -> None:
    end = time.monotonic() + 300
    while not ready():
        assert time.monotonic() < end, "it never came so far"
        time.sleep(0.001)


def published_in_the_middle(model, on_publish, *, at=12):
    """Answers, of which version 1 takes over while pass `at` runs; and the engine that wrote them."""
    runner = Held(model, at=at)
    made = held_engine(model, runner, on_publish=on_publish)
    done = []
    writer = threading.Thread(target=lambda: done.extend(generate(made, ASKED)))
    writer.start()
    assert runner.there.wait(300)
    stepped(model)  # while a pass runs: it reads a copy
    publisher = threading.Thread(target=made.publish, args=(1,))
    publisher.start()
    until(made._door.locked)
    runner.go.set()
    publisher.join(300)
    writer.join(300)
    return by_name(done), made


@pytest.mark.parametrize("on_publish", ["recompute", "keep"])
def test_the_next_pass_is_already_of_the_new_weights(model, on_publish):
    """However fast passes follow one another: who hands weights over goes first."""
    done, _ = published_in_the_middle(model, on_publish)
    before = {name: int((one.version == 0).sum()) for name, one in done.items()}
    assert len(done) == 5
    mixed = {name for name, one in done.items() if set(one.version.tolist()) == {0, 1}}
    assert len(mixed) == SLOTS, "those that were being written"
    assert all(before[name] <= 12 for name in mixed)
    assert all((np.diff(one.version) >= 0).all() for one in done.values())
    assert sum(count == 0 for count in before.values()) == 2, "the others began under the new weights"


def segments(done):
    """Each answer's tokens by version: (request, tokens before, tokens, log-probabilities)."""
    asked = {one.id: one for one in ASKED}
    for one in done.values():
        for version in (0, 1):
            mine = one.version == version
            if mine.any():
                start = int(mine.argmax())
                yield version, asked[one.request_id], one.tokens[:start], one.tokens[mine], one.logp[mine], start


def test_each_segment_scores_as_recorded_under_the_weights_that_drew_it(model):
    old = copy.deepcopy(model)
    done, made = published_in_the_middle(model, "recompute")
    by_version = {0: engine(old, eos=()), 1: engine(model, eos=())}
    found = 0
    for version, asked, before, tokens, logp, start in segments(done):
        text = np.concatenate([asked.prompt, before]).astype(np.int32)  # a fresh prefill of all that came before
        (scored,) = by_version[version].score([ScoreRequest(prompt=text, tokens=tokens, sampling=asked.sampling)])
        assert np.array_equal(scored.logp, logp)
        found += start > 0
    assert found == SLOTS
    assert made.stats.stale_tokens == 0


def test_kept_keys_are_counted_and_the_first_segment_is_the_old_weights(model):
    old = copy.deepcopy(model)
    done, made = published_in_the_middle(model, "keep")
    before_engine, after_engine = engine(old, eos=()), engine(model, eos=())
    stale, gaps = 0, []
    for version, asked, before, tokens, logp, start in segments(done):
        text = np.concatenate([asked.prompt, before]).astype(np.int32)
        score = (before_engine if version == 0 else after_engine).score
        (scored,) = score([ScoreRequest(prompt=text, tokens=tokens, sampling=asked.sampling)])
        if start == 0:
            assert np.array_equal(scored.logp, logp)
        else:
            stale += len(tokens)
            gaps.append(np.abs(scored.logp - logp).max())
    assert made.stats.stale_tokens == stale > 0
    assert max(gaps) > 1e-3, "recorded as it was drawn, over old keys: neither policy alone"


def test_finish_returns_when_what_ran_has_ended_and_mixes_nothing(model):
    old = by_name(generate(engine(copy.deepcopy(model), eos=(), slots=SLOTS), ASKED))
    done, _ = published_in_the_middle(model, "finish")
    new = by_name(generate(engine(model, eos=(), slots=SLOTS), ASKED))
    versions = {name: set(one.version.tolist()) for name, one in done.items()}
    assert sorted(map(min, versions.values())) == [0, 0, 0, 0, 1], "one more had been read, and waited for a row"
    assert all(len(found) == 1 for found in versions.values())
    assert all(same(one, (old if versions[name] == {0} else new)[name]) for name, one in done.items())


def test_weights_that_a_finishing_engine_took_up_may_change_at_once(model):
    """`publish` has read them when it returns, however much is still to be written."""
    runner = Held(model)
    made = held_engine(model, runner, on_publish="finish")
    stream = generate(made, ASKED)
    done = [next(stream)]
    stepped(model)
    new = copy.deepcopy(model)
    made.publish(1)
    stepped(model, 0.5)  # the learner goes on
    done += list(stream)
    expected = by_name(generate(engine(new, eos=(), slots=SLOTS), ASKED))
    late = {name: one for name, one in by_name(done).items() if one.version[0] == 1}
    assert late
    assert all(same(one, expected[name]) for name, one in late.items())


@pytest.mark.parametrize("kind", ["torch", "auto"])
def test_an_engine_apart_draws_from_what_was_published_and_nothing_else(model, kind):
    """With torch or compiled code: the learner steps in place, and no pass sees half of it."""
    chosen = choose_runner(kind, model, vocab_used=VOCAB, threads=1, copy_weights=True)
    assert chosen.own_weights
    made = engine(model, eos=(), page_tokens=chosen.runner.page_tokens)
    made.runner, made.own_weights = chosen.runner, True
    made.publish(0)
    whole = by_name(generate(made, ASKED))
    stream = generate(made, ASKED)
    done = [next(stream)]
    stepped(model, 3.0)
    done += list(stream)
    assert all(same(one, whole[name]) for name, one in by_name(done).items())
    made.publish(1)
    assert not all(same(one, whole[name]) for name, one in by_name(generate(made, ASKED)).items())


def test_a_thread_that_writes_hears_that_its_weights_were_refused(model):
    runner = Held(model, at=5)
    made = held_engine(model, runner, canary=WeightCanary(model, vocab=VOCAB))
    said = []

    def write() -> None:
        try:
            list(generate(made, ASKED))
        except DivergedError as error:
            said.append(str(error))

    writer = threading.Thread(target=write)
    writer.start()
    assert runner.there.wait(300)
    with torch.no_grad():
        model.norm.weight[0] = torch.nan
    threading.Timer(0.05, runner.go.set).start()
    with pytest.raises(DivergedError, match="version 1"):
        made.publish(1)
    writer.join(300)
    assert "version 1" in said[0]
    with torch.no_grad():
        model.norm.weight[0] = 1.0
    made.publish(2)
    assert len(list(generate(made, ASKED))) == 5


@pytest.fixture
def drawn_out(monkeypatch):
    """The moments of a publication in which an answer has left its row and stands nowhere else last a while."""

    def late(original):
        def wrapped(*arguments):
            if threading.current_thread().name == "publisher":
                time.sleep(0.05)
            return original(*arguments)

        return wrapped

    step = EmbeddedEngine._step

    def slow_step(engine):
        step(engine)
        time.sleep(0.01)  # so that the writer looks about while the publisher is at work

    monkeypatch.setattr(EmbeddedEngine, "_step", slow_step)
    monkeypatch.setattr(EmbeddedEngine, "_hand_out", late(EmbeddedEngine._hand_out))
    monkeypatch.setattr(Scheduler, "add", late(Scheduler.add))


@pytest.mark.usefixtures("drawn_out")
@pytest.mark.parametrize("on_publish", ["recompute", "finish"])
def test_nobody_who_writes_takes_the_middle_of_a_publication_for_the_end(model, on_publish):
    asked = [request(3, max_tokens=12)]
    (alone,) = generate(engine(model, eos=()), asked)
    runner = Held(model, at=5)
    made = held_engine(model, runner, on_publish=on_publish)
    done = []
    writer = threading.Thread(target=lambda: done.extend(generate(made, asked)))
    publisher = threading.Thread(target=made.publish, args=(1,), name="publisher")  # the same weights
    writer.start()
    assert runner.there.wait(300)
    publisher.start()
    until(made._door.locked)
    runner.go.set()
    publisher.join(300)
    writer.join(300)
    (one,) = done
    assert np.array_equal(one.tokens, alone.tokens)
