"""Routes of a mixture of experts: recorded with the pages, whatever becomes of a request."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from engines import by_name, engine, request, same

from hone.core.errors import DivergedError
from hone.core.generation import generate
from hone.engine.canary import WeightCanary
from hone.engine.engine import EmbeddedEngine
from hone.engine.native.library import load_library
from hone.engine.native.runner import NativeRunner
from hone.engine.protocol import RunnerChoice
from hone.engine.scheduler import SchedulerLimits
from hone.engine.session import TokenizerRules
from hone.engine.torch_runner import TorchRunner
from hone.models.language.config import ModelConfig
from hone.models.language.expert_config import ExpertsConfig
from hone.models.language.init import new_model
from hone.models.packing import pack_rows

CONFIG = ModelConfig(
    family="qwen3_moe", vocab_size=24, hidden_size=32, intermediate_size=48, layers=2, heads=4, kv_heads=2, head_dim=16,
    max_positions=512, experts=ExpertsConfig(count=6, per_token=2, width=24),
)  # fmt: skip
KINDS = ("torch", "native")


@pytest.fixture(scope="module")
def model():
    return new_model(CONFIG, seed=0)


def trainer_routes(model, asked, done) -> np.ndarray:
    """The trainer's own choice for a whole text."""
    text = np.concatenate([asked.prompt, done.tokens[:-1]])
    with torch.no_grad():
        return model.states(pack_rows([text])).routing.chosen().numpy()


def requests():
    return [request(number, samples=2, max_tokens=40) for number in range(4)]


def answers(model, kind, **changes):
    return by_name(generate(engine(model, kind=kind, **changes), requests()))


def equal(found, expected) -> bool:
    keys = found.keys() == expected.keys()
    return keys and all(
        same(found[key], expected[key]) and np.array_equal(found[key].routing, expected[key].routing) for key in found
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_completion_has_the_routes_of_its_prompt_and_its_tokens(model, kind):
    found, asked = answers(model, kind), {one.id: one for one in requests()}
    for (name, _), done in found.items():
        assert done.routing.dtype == np.uint8
        assert done.routing.shape == (len(asked[name].prompt) + len(done.tokens) - 1, 2, 2)
        assert np.array_equal(done.routing, trainer_routes(model, asked[name], done))


@pytest.mark.parametrize("kind", KINDS)
def test_routes_do_not_depend_on_batch_mates_chunks_or_preemption(model, kind):
    expected = answers(model, kind)
    assert equal(answers(model, kind, slots=1), expected)
    assert equal(answers(model, kind, pass_tokens=16), expected)
    squeezed = engine(model, kind=kind, slots=8, pages=14)
    assert equal(by_name(generate(squeezed, requests())), expected)
    assert squeezed.stats.preempted > 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_prefix_hit_brings_the_routes_with_the_keys(model, kind):
    busy = engine(model, kind=kind)
    first = by_name(generate(busy, [request(7, length=70)]))
    again = by_name(generate(busy, [request(7, length=70)], round=0))
    assert busy.stats.cached_tokens > 0
    assert equal(again, first)


@pytest.mark.parametrize("kind", KINDS)
def test_a_kept_turn_brings_its_routes(model, kind):
    busy, asked = engine(model, kind=kind), replace(request(7, length=20, max_tokens=5), keep_s=60.0)
    (done,) = generate(busy, [asked])
    text = np.concatenate([asked.prompt, done.tokens, np.array([3, 4], np.int32)])
    second = replace(asked, prompt=text, turn=1, after=asked.id)
    (warm,) = generate(busy, [second])
    assert busy.stats.prefill_tokens == 3
    (cold,) = generate(engine(model, kind=kind), [second])
    assert same(warm, cold)
    assert np.array_equal(warm.routing, cold.routing)


def test_a_preempted_request_keeps_the_routes_with_which_its_tokens_were_drawn(model):
    """New weights send tokens elsewhere: those that were drawn before keep the routes of then."""
    other = new_model(CONFIG, seed=0)
    asked = request(3, length=20, max_tokens=12)
    busy = engine(other, on_publish="recompute", eos=())
    busy.submit([asked])
    for _ in range(5):
        busy._step()
    drawn = busy._scheduler.table.samples[0]
    with torch.no_grad():
        for layer in other.layers:
            layer.router.weight.neg_()
    busy.publish(1)
    known = drawn.routing.copy()
    done = busy.next_completion()
    assert 20 < len(known) < 32
    assert np.array_equal(done.routing[: len(known)], known)
    assert np.array_equal(known, trainer_routes(model, asked, done)[: len(known)])
    assert np.array_equal(done.routing[len(known) :], trainer_routes(other, asked, done)[len(known) :])
    assert not np.array_equal(done.routing, trainer_routes(other, asked, done))


def test_more_than_255_experts_take_16_bits():
    config = ModelConfig(
        family="qwen3_moe", vocab_size=24, hidden_size=8, intermediate_size=8, layers=1, heads=1, head_dim=8,
        experts=ExpertsConfig(count=300, per_token=2, width=2),
    )  # fmt: skip
    wide = new_model(config, seed=0)
    asked = request(2, length=60)
    (done,) = generate(engine(wide), [asked])
    assert done.routing.dtype == np.uint16
    assert done.routing.max() > 255
    assert np.array_equal(done.routing, trainer_routes(wide, asked, done))


SHAPES = {
    "qwen3_moe": {"head_dim": 16, "intermediate_size": 80, "experts": ExpertsConfig(count=6, per_token=2, width=40)},
    "qwen3_moe-biased": {
        "head_dim": 16, "intermediate_size": 80,
        "experts": ExpertsConfig(count=33, per_token=3, width=20, normalise_gates=False, selection_bias=True),
    },
    "mixtral": {"head_dim": 20, "intermediate_size": 40, "experts": ExpertsConfig(count=4, per_token=2, width=40)},
    "olmoe": {
        "head_dim": 12, "intermediate_size": 40,
        "experts": ExpertsConfig(count=300, per_token=2, width=40, normalise_gates=False),
    },
}  # fmt: skip


@pytest.mark.parametrize("isa", load_library().instruction_sets())
@pytest.mark.parametrize("name", SHAPES)
def test_the_compiled_runner_has_the_trainers_routes_and_log_probabilities(name, isa):
    config = ModelConfig(
        family=name.partition("-")[0], vocab_size=24, hidden_size=48, layers=2, heads=4, kv_heads=2, **SHAPES[name]
    )
    trainer = new_model(config, seed=1)
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in (*trainer.parameters(), *(layer.selection_bias for layer in trainer.layers)):
            if parameter is not None and parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=draws) / 20)
    if isa not in load_library().useful_sets("float32") + load_library().useful_sets("bfloat16"):
        pytest.skip("it multiplies codes only")
    low = isa in ("avx512_bf16", "amx")
    asked = [request(number, samples=2, max_tokens=20) for number in range(3)]
    by_threads = []
    for threads in (1, 2):
        dtype = "bfloat16" if low else "float32"
        runner = NativeRunner(trainer, vocab_used=24, threads=threads, isa=isa, dtype=dtype)
        limits = SchedulerLimits(slots=4, pages=40, page_tokens=runner.page_tokens, sequence_tokens=100)
        chosen = RunnerChoice(runner=runner, own_weights=True)
        busy = EmbeddedEngine(chosen, TokenizerRules(eos=(0,), vocab=24, decode=None), limits=limits, seed=0)
        by_threads.append(by_name(generate(busy, asked)))
    assert equal(*by_threads)
    prompts = {one.id: one.prompt for one in asked}
    for (name, _), done in by_threads[0].items():
        text = np.concatenate([prompts[name], done.tokens])
        packed = replace(pack_rows([text[:-1]]), routing=torch.from_numpy(done.routing.astype(np.int64)))
        with torch.no_grad():
            states, free = trainer.states(packed), trainer.states(replace(packed, routing=None))
            logp = torch.log_softmax(trainer.logits(states.hidden), dim=-1)[len(prompts[name]) - 1 :]
        expected = logp.gather(1, torch.from_numpy(done.tokens.astype(np.int64))[:, None])[:, 0].numpy()
        np.testing.assert_allclose(done.logp, expected, rtol=0, atol=0.1 if low else 1e-5)
        differ = (free.routing.chosen().numpy() != done.routing).mean()
        assert differ < 0.2 if low else differ == 0


class FlippingRunner(TorchRunner):
    """A runner that computes with routers of its own: every token may go elsewhere."""

    def run(self, work):
        routers = [layer.router.weight for layer in self.model.layers]
        with torch.no_grad():
            for weight in routers:
                weight.neg_()
            found = super().run(work)
            for weight in routers:
                weight.neg_()
        return found


def test_a_flipped_route_is_no_wrong_weight_for_the_canary():
    model = new_model(CONFIG, seed=0)
    exact = TorchRunner(model, vocab_used=24)
    exact.reserve(1)
    before = WeightCanary(model, vocab=24).check(0, exact, page=0)
    assert before.mean_gap_nats < 1e-5
    wrong = TorchRunner(new_model(CONFIG, seed=1), vocab_used=24)
    wrong.reserve(1)
    with pytest.raises(DivergedError, match="does not sample from the weights"):
        WeightCanary(model, vocab=24).check(0, wrong, page=0)
    flipping = FlippingRunner(model, vocab_used=24)
    flipping.reserve(1)
    gap = WeightCanary(model, vocab=24, tolerance=2.0).check(0, flipping, page=0).mean_gap_nats
    assert gap < np.abs(before.mean_logp)
