"""Routes of a mixture of experts: recorded with the pages, whatever becomes of a request."""

import numpy as np
import pytest
import torch
from engines import by_name, engine, request, same

from hone.core.generation import generate
from hone.models.language.config import ModelConfig
from hone.models.language.expert_config import ExpertsConfig
from hone.models.language.init import new_model
from hone.models.packing import pack_rows

CONFIG = ModelConfig(
    family="qwen3_moe", vocab_size=24, hidden_size=32, intermediate_size=48, layers=2, heads=4, kv_heads=2, head_dim=16,
    max_positions=512, experts=ExpertsConfig(count=6, per_token=2, width=24),
)  # fmt: skip
KINDS = ("torch",)


@pytest.fixture(scope="module")
def model():
    return new_model(CONFIG, seed=0)


def trainer_routes(model, asked, done) -> np.ndarray:
    """The trainer's own choice for a whole text."""
    text = np.concatenate([asked.prompt, done.tokens[:-1]])
    with torch.no_grad():
        return model.states(pack_rows([text])).routing.chosen().numpy()


def requests():
    return [request(number, samples=3, max_tokens=40) for number in range(5)]


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
