"""New weights in the middle, the stream that rewards are computed beside, pauses, and the canary."""

import asyncio
import copy

import numpy as np
import pytest
import torch
from engines import CONFIG, VOCAB, by_name, engine, request, same
from shared_prompts import pack_shared_prompts

from hone.core.errors import DivergedError
from hone.core.generation import GenerationEngine, SamplingParams, ScoreRequest, generate
from hone.engine.canary import WeightCanary, _hash_weights
from hone.engine.native.library import unavailable_reason
from hone.engine.native.runner import NativeRunner
from hone.engine.torch_runner import TorchRunner
from hone.models.language.init import new_model
from hone.process.machine_memory import resident_bytes


@pytest.fixture
def model():
    return new_model(CONFIG, seed=1)


class Copying(TorchRunner):
    """A runner with weights of its own, like compiled ones: they change on `publish` only, if at all."""

    def __init__(self, model, *, deaf=False) -> None:
        self.trainer, self.deaf = model, deaf
        super().__init__(copy.deepcopy(model), vocab_used=VOCAB, page_tokens=16)

    def publish(self) -> None:
        if not self.deaf:
            self.model.load_state_dict(self.trainer.state_dict())


def with_runner(model, runner, **changes):
    made = engine(model, **changes)
    made.runner, made.own_weights = runner, True
    return made


def stepped(model, factor=1.3) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)


def trainer_logp(model, asked, done):
    packed, targets = pack_shared_prompts([(asked.prompt, [done.tokens])])
    with torch.no_grad():
        return model.token_logprobs(model.hidden(packed)[targets.at], targets.chosen).logp.numpy()


ASKED = [request(0, max_tokens=4), request(1, max_tokens=40, samples=3), request(2, max_tokens=40, length=50)]


def test_an_engine_is_what_clients_of_servers_are_too(model):
    asked: GenerationEngine = engine(model)  # the protocol
    assert asked.version == 0


@pytest.mark.parametrize("change_first", [True, False])
def test_recompute_is_as_if_the_text_so_far_had_been_a_prompt(model, change_first):
    runner = engine(model, eos=(), slots=5, on_publish="recompute")
    stream = generate(runner, ASKED)
    done = [next(stream)]
    stepped(model)
    runner.publish(1)
    done += list(stream)
    asked = {one.id: one for one in ASKED}
    for one in done[1:]:
        assert {0, 1} == set(one.version.tolist())
        before = int((one.version == 0).sum())
        text = np.concatenate([asked[one.request_id].prompt, one.tokens[:before]])
        (scored,) = runner.score(
            [ScoreRequest(prompt=text, tokens=one.tokens[before:], sampling=asked[one.request_id].sampling)]
        )
        assert np.array_equal(scored.logp, one.logp[before:])
    assert runner.stats.stale_tokens == 0


def test_keep_goes_on_over_old_keys_and_counts_them(model):
    runner = engine(model, eos=(), slots=5, on_publish="keep")
    stream = generate(runner, ASKED)
    done = [next(stream)]
    stepped(model)
    runner.publish(1)
    done += list(stream)
    asked = {one.id: one for one in ASKED}
    new = sum(int((one.version == 1).sum()) for one in done)
    assert runner.stats.stale_tokens == new > 50
    gaps = [np.abs(one.logp - trainer_logp(model, asked[one.request_id], one))[one.version == 1] for one in done[1:]]
    assert np.concatenate(gaps).max() > 1e-3, "neither policy alone drew these"
    fresh = by_name(generate(runner, ASKED))
    clean = by_name(generate(engine(model, eos=(), slots=5), ASKED))
    assert all(same(one, clean[name]) for name, one in fresh.items()), "old keys reach nothing that begins later"
    assert runner.stats.stale_tokens == 0


def test_finish_ends_what_runs_under_the_weights_that_it_began_with(model):
    runner = with_runner(model, Copying(model), eos=(), slots=2, on_publish="finish")
    old = by_name(generate(engine(copy.deepcopy(model), eos=(), slots=2), ASKED))
    stream = generate(runner, ASKED)
    done = [next(stream)]
    stepped(model)
    runner.publish(1)
    done += list(stream)
    new = by_name(generate(engine(model, eos=(), slots=2), ASKED))
    versions = {name: set(one.version.tolist()) for name, one in by_name(done).items()}
    assert {0} in versions.values()
    assert {1} in versions.values()
    for name, one in by_name(done).items():
        assert len(versions[name]) == 1
        assert same(one, (old if versions[name] == {0} else new)[name])


def test_finish_with_shared_weights_needs_a_drain(model):
    runner = engine(model, eos=(), slots=2, on_publish="finish")
    stream = generate(runner, ASKED)
    done = [next(stream)]
    with pytest.raises(RuntimeError, match="drain"):
        runner.publish(1)
    runner.drain()
    stepped(model)
    runner.publish(1)
    done += list(stream)
    assert len(done) == 5
    assert all(len(set(one.version.tolist())) == 1 for one in done)


def test_a_prompt_read_by_older_weights_is_read_again(model):
    runner = engine(model, eos=())
    long = request(3, length=64, max_tokens=2)
    list(generate(runner, [long]))
    list(generate(runner, [long], round=1))
    assert runner.stats.cached_tokens == 48
    stepped(model)
    runner.publish(1)
    found = by_name(generate(runner, [long], round=1))
    assert runner.stats.cached_tokens == 0
    assert all(
        same(one, by_name(generate(engine(model, eos=()), [long], round=1))[name]) for name, one in found.items()
    )


def test_rewards_run_while_others_are_still_being_written(model):
    runner = engine(model, eos=(), slots=4)
    tokens_when_scored: list[int] = []

    async def collect() -> list[str]:
        runner.submit([request(0, max_tokens=2), request(1, max_tokens=60), request(2, max_tokens=60)])
        names: list[str] = []
        async for done in runner.stream():
            await asyncio.sleep(0)  # a reward
            tokens_when_scored.append(runner.stats.tokens)
            names.append(done.request_id)
            if len(names) == 1:
                runner.submit([request(3, max_tokens=3)])  # another turn, while the others run
        return names

    names = asyncio.run(collect())
    assert names == ["p0", "p3", "p1", "p2"]
    assert tokens_when_scored[0] < tokens_when_scored[-1] / 2
    alone = by_name(generate(engine(model, eos=()), [request(3, max_tokens=3)]))
    assert len(alone) == 1


def test_a_pause_stops_passes_and_a_stream_waits(model):
    runner = engine(model, eos=(), slots=4)
    runner.submit([request(1, max_tokens=30)])
    runner.pause()
    with pytest.raises(RuntimeError, match="paused"):
        runner.score(
            [ScoreRequest(prompt=ASKED[0].prompt, tokens=ASKED[0].prompt, sampling=SamplingParams(max_tokens=1))]
        )

    async def collect() -> list[int]:
        async def later() -> None:
            await asyncio.sleep(0.03)
            assert runner.stats.tokens == 0
            runner.resume()

        waiting = asyncio.create_task(later())
        lengths = [len(done.tokens) async for done in runner.stream()]
        await waiting
        return lengths

    assert asyncio.run(collect()) == [30]


def test_a_copy_that_is_out_of_date_stops_the_run(model):
    made = with_runner(model, Copying(model, deaf=True), canary=WeightCanary(model, vocab=VOCAB))
    made.publish(0)
    assert made.fingerprints[0].weight_hash == _hash_weights(model)
    assert made.fingerprints[0].mean_gap_nats < 1e-5
    stepped(model, 1.05)
    with pytest.raises(DivergedError, match="does not sample from the weights of version 1"):
        made.publish(1)
    assert list(made.fingerprints) == [0]


def test_a_fingerprint_follows_the_weights(model):
    made = engine(model, canary=WeightCanary(model, vocab=VOCAB))
    for version, factor in enumerate((1.0, 1.01, 1.0)):
        stepped(model, factor)
        made.publish(version)
    first, second, third = made.fingerprints.values()
    assert first.weight_hash != second.weight_hash == third.weight_hash
    assert first.mean_logp != second.mean_logp == third.mean_logp


def test_weights_that_are_no_numbers_are_refused_on_publish(model):
    made = engine(model, canary=WeightCanary(model, vocab=VOCAB))
    with torch.no_grad():
        model.norm.weight[0] = torch.nan
    with pytest.raises(DivergedError, match="not finite"):
        made.publish(1)


@pytest.mark.parametrize("compiled", [False, True])
def test_an_engine_that_slept_answers_with_the_same_bits(model, compiled):
    """Pages and packed weights are freed, unless requests are in progress; a pass or a publication brings them back."""
    awake, slept = engine(model), engine(model)
    if compiled:
        if unavailable_reason() is not None:
            pytest.skip("no compiler here")
        for one in (awake, slept):
            one.runner = NativeRunner(model, vocab_used=VOCAB, threads=1)
    before = by_name(generate(awake, ASKED))
    stream = generate(slept, ASKED)
    found = by_name([next(stream)])
    slept.release_memory()
    assert slept._opened, "answers are being written"
    found |= by_name(stream)
    slept.release_memory()
    assert not slept._opened
    again = by_name(generate(slept, ASKED))
    assert all(same(one[name], before[name]) for one in (found, again) for name in before)
    stepped(model)
    slept.release_memory()
    for one in (awake, slept):
        one.publish(1)
    after, then = by_name(generate(slept, ASKED)), by_name(generate(awake, ASKED))
    assert all(same(after[name], then[name]) for name in then)


def test_a_compiled_engine_keeps_sealed_weights_and_takes_pages_as_they_are_written(model):
    with pytest.raises(RuntimeError, match="have to stay"):
        engine(model).seal()
    if unavailable_reason() is not None:
        pytest.skip("no compiler here")
    made = engine(model, kind="native", pages=1 << 16)
    before = resident_bytes()
    made.publish(1)
    assert made.runner.page_bytes << 16 > 1 << 28
    assert resident_bytes() - before < 1 << 26
    expected = by_name(generate(made, ASKED))
    made.seal()
    for parameter in model.parameters():
        parameter.data = torch.empty(0)
    made.release_memory()
    again = by_name(generate(made, ASKED))
    assert all(same(again[name], expected[name]) for name in expected)
