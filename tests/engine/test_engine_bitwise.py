"""`exactness = "bitwise"`: what the trainer finds is what was recorded, to the last bit."""

import numpy as np
import pytest
import torch
from engines import CONFIG, VOCAB, by_name, engine, request
from shared_prompts import pack_shared_prompts

from hone.core.errors import ConfigError, DataError
from hone.core.generation import generate
from hone.engine.open_engine import choose_runner
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.init import new_model
from hone.models.packing import pack_rows

ASKED = [
    request(0, samples=6, max_tokens=70),
    request(1, samples=3, length=1, max_tokens=40),
    request(2, samples=2, length=100, max_tokens=33),
    request(3, samples=4, length=31, max_tokens=5),
]
PLAIN = ModelConfig(  # as many key heads as query heads, biases, and a vocabulary padded beyond its tokenizer
    family="qwen2", vocab_size=48, hidden_size=40, intermediate_size=36, layers=2, heads=2, kv_heads=2, head_dim=20
)
SINGLE = ModelConfig(
    family="llama", vocab_size=VOCAB, hidden_size=24, intermediate_size=40, layers=2, heads=1, kv_heads=1, head_dim=24
)


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def exact_model(config: ModelConfig = CONFIG) -> Decoder:
    model = new_model(config, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():  # sharper than a new model, and with biases
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(parameter)))
    model.use_bitwise_arithmetic()
    return model


def trained_logp(model: Decoder, packed, targets, temperature: float = 1.0) -> np.ndarray:
    hidden = model.hidden(packed)[targets.at]
    return model.token_logprobs(hidden, targets.chosen, temperature, vocab_size_used=VOCAB).logp.detach().numpy()


@pytest.mark.parametrize(
    ("config", "threads", "slots", "temperature"),
    [
        pytest.param(CONFIG, 1, 3, 0.7, id="grouped"),
        pytest.param(PLAIN, 1, 16, 1.0, id="plain"),
        pytest.param(SINGLE, 1, 5, 1.3, id="one head"),
        pytest.param(CONFIG, 2, 16, 1.0, id="two threads", marks=pytest.mark.slow),  # which wait for each other
    ],
)
def test_recomputed_equals_recorded_to_the_bit(config, threads, slots, temperature):
    torch.set_num_threads(threads)
    model = exact_model(config)
    asked = [type(one)(**{**fields(one), "sampling": sampling(one, temperature)}) for one in ASKED]
    done = by_name(generate(engine(model, slots=slots), asked))
    answers = [[done[one.id, place] for place in range(one.samples)] for one in asked]
    groups = [(one.prompt, [answer.tokens for answer in group]) for one, group in zip(asked, answers, strict=True)]
    recorded = np.concatenate([answer.logp for group in answers for answer in group])
    assert len(recorded) > 200
    packed, targets = pack_shared_prompts(groups)
    assert np.array_equal(trained_logp(model, packed, targets, temperature), recorded)
    parts = [pack_shared_prompts([(prompt, [tokens])]) for prompt, group in groups for tokens in group]
    alone = [trained_logp(model, *part, temperature) for part in parts]
    assert np.array_equal(np.concatenate(alone), recorded)


def fields(one) -> dict:
    return {"id": one.id, "prompt": one.prompt, "samples": one.samples}


def sampling(one, temperature: float):
    return type(one.sampling)(max_tokens=one.sampling.max_tokens, temperature=temperature)


def test_a_weight_that_moved_by_one_bit_is_seen():
    """The test above can fail."""
    model = exact_model()
    done = by_name(generate(engine(model, slots=16), ASKED[:1]))
    group = [done["p0", place] for place in range(6)]
    packed, targets = pack_shared_prompts([(ASKED[0].prompt, [one.tokens for one in group])])
    recorded = np.concatenate([one.logp for one in group])
    assert np.array_equal(trained_logp(model, packed, targets), recorded)
    weight = model.layers[0].qkv.weight
    with torch.no_grad():
        weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0))
    gap = trained_logp(model, packed, targets) - recorded
    assert 0 < np.abs(gap).max() < 1e-4


@pytest.mark.parametrize("config", [CONFIG, PLAIN], ids=["grouped", "plain"])
def test_gradients_are_those_of_the_usual_arithmetic(config):
    rng = np.random.default_rng(0)
    groups = [
        (rng.integers(1, VOCAB, n).astype(np.int32), [rng.integers(1, VOCAB, k).astype(np.int32) for k in (9, 70, 33)])
        for n in (5, 40)
    ]
    packed, targets = pack_shared_prompts(groups)
    exact, usual = exact_model(config), exact_model(config)
    usual.exactness = "parity"
    weight = torch.from_numpy(rng.normal(size=len(targets.at)).astype(np.float32)) / len(targets.at)
    found = []
    for model in (exact, usual):
        look = model.token_logprobs(
            model.hidden(packed)[targets.at], targets.chosen, 0.8, entropy=True, vocab_size_used=VOCAB
        )
        ((look.logp + 0.1 * look.entropy) * weight).sum().backward()
        found.append((look.logp.detach(), [parameter.grad for parameter in model.parameters()]))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=1e-5)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        assert (one - other).abs().max() <= 1e-5 * max(1.0, float(other.abs().max()))
    assert max(float(one.abs().max()) for one in found[0][1]) > 1e-3


def test_a_checkpointed_layer_gives_the_same_bits():
    packed = pack_rows([np.arange(1, 40, dtype=np.int32) % VOCAB])
    exact = exact_model()
    plain = exact.hidden(packed)
    exact.checkpoint_activations = True
    again = exact.hidden(packed)
    assert torch.equal(plain, again)
    again.sum().backward()
    assert exact.embedding.weight.grad is not None


def test_where_it_cannot_be_had_is_said():
    low = new_model(CONFIG, seed=1)
    low.set_compute_dtype("bfloat16")
    with pytest.raises(DataError, match="need float32 on a CPU, not bfloat16 on cpu"):
        low.use_bitwise_arithmetic()
    model = exact_model()
    assert choose_runner("auto", model, vocab_used=VOCAB).runner.name == "torch float32 (cpu)"
    with pytest.raises(ConfigError, match='exactness = "bitwise" takes the torch runner'):
        choose_runner("native", model, vocab_used=VOCAB)
