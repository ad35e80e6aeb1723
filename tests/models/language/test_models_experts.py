"""Mixtures of experts: parity with transformers, gradients, replayed routes, and what is refused."""

import dataclasses

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from hone.core.errors import DataError
from hone.models.language.config import ModelConfig, model_config_from_hf
from hone.models.language.expert_config import ExpertsConfig
from hone.models.language.hf_checkpoint import load_model, save_model
from hone.models.language.init import new_model
from hone.models.packing import pack_rows

SIZES = {
    "vocab_size": 50, "hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 128, "initializer_range": 0.1, "num_experts_per_tok": 2, "pad_token_id": None,
}  # fmt: skip
FAMILIES = {
    "qwen3_moe": transformers.Qwen3MoeConfig(
        **SIZES, intermediate_size=80, moe_intermediate_size=24, num_experts=6, norm_topk_prob=True, head_dim=16
    ),
    "qwen3_moe-raw": transformers.Qwen3MoeConfig(
        **SIZES | {"num_experts_per_tok": 3}, intermediate_size=80, moe_intermediate_size=24, num_experts=6,
        norm_topk_prob=False, attention_bias=True, tie_word_embeddings=True,
    ),
    "mixtral": transformers.MixtralConfig(**SIZES, intermediate_size=40, num_local_experts=5, head_dim=16),
    "olmoe": transformers.OlmoeConfig(**SIZES, intermediate_size=40, num_experts=8, eos_token_id=0),
}  # fmt: skip


def theirs(name: str) -> transformers.PreTrainedModel:
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(FAMILIES[name]).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) / 4)
            elif "gate.weight" in name:
                parameter.copy_(torch.randn_like(parameter) / 4)
    return model


def rows() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 50, size=n).astype(np.int32) for n in (70, 1, 33, 64)]


def their_logits(model: transformers.PreTrainedModel) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat([model(torch.from_numpy(row[None].astype(np.int64))).logits[0] for row in rows()])


def our_logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model.logits(model.hidden(pack_rows(rows())))


@pytest.mark.parametrize("name", FAMILIES)
def test_logits_equal_those_of_transformers_both_ways(name, tmp_path):
    reference = theirs(name)
    reference.save_pretrained(tmp_path / "theirs")
    model = load_model(tmp_path / "theirs")
    expected = their_logits(reference)
    assert expected.std() > 0.3
    torch.testing.assert_close(our_logits(model), expected, rtol=0, atol=1e-5)
    save_model(model, tmp_path / "ours", tokenizer_from=None)
    reloaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours").eval()
    torch.testing.assert_close(their_logits(reloaded), expected, rtol=0, atol=1e-5)
    mine, original = load_file(tmp_path / "ours/model.safetensors"), load_file(tmp_path / "theirs/model.safetensors")
    assert mine.keys() == original.keys()
    assert all(torch.equal(mine[key], original[key]) for key in mine)


SMALL = {"vocab_size": 20, "hidden_size": 16, "layers": 2, "heads": 2, "kv_heads": 1, "head_dim": 8}


def small(family: str = "qwen3_moe", *, dtype: str = "float64", seed: int = 0, **changes):
    experts = ExpertsConfig(**{"count": 5, "per_token": 2, "width": 12} | changes)
    config = ModelConfig(family=family, intermediate_size=12, experts=experts, **SMALL)
    return new_model(config, seed=seed, dtype=dtype)


def slow_mlp(layer, x: torch.Tensor, chosen: torch.Tensor | None) -> torch.Tensor:
    """sum_i gate_i expert_i(x), token by token and expert by expert."""
    experts, width, out = layer.experts, layer.experts.width, []
    for number, token in enumerate(x):
        p = torch.softmax(layer.router.weight @ token, dim=0)
        picked = p.topk(experts.per_token).indices if chosen is None else chosen[number]
        gates = p[picked] / p[picked].sum() if experts.normalise_gates else p[picked]
        total = torch.zeros_like(token)
        for gate, expert in zip(gates, picked.tolist(), strict=True):
            both = layer.gate_up.weight[expert * 2 * width : (expert + 1) * 2 * width] @ token
            inner = torch.nn.functional.silu(both[:width]) * both[width:]
            total = total + gate * (layer.down.weight[expert * len(token) : (expert + 1) * len(token)] @ inner)
        out.append(total)
    return torch.stack(out)


@pytest.mark.parametrize("replay", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
def test_outputs_and_gradients_are_those_of_a_loop_over_tokens_and_experts(normalise, replay):
    model = small(normalise_gates=normalise)
    layer = model.layers[0]
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(17, 16, generator=rng, dtype=torch.float64, requires_grad=True)
    above = torch.randn(17, 16, generator=rng, dtype=torch.float64)
    chosen = torch.stack([torch.randperm(5, generator=rng)[:2] for _ in range(17)]) if replay else None
    by = model._arithmetic(torch.nn.functional.linear, torch.float64)
    inputs = (x, layer.router.weight, layer.gate_up.weight, layer.down.weight)
    fast, routed = layer.mix_experts(x, by, chosen)
    slow = slow_mlp(layer, x, chosen)
    torch.testing.assert_close(fast, slow)
    for mine, expected in zip(
        torch.autograd.grad(fast, inputs, above), torch.autograd.grad(slow, inputs, above), strict=True
    ):
        torch.testing.assert_close(mine, expected)
    if chosen is not None:
        assert torch.equal(routed.chosen, chosen)


def gradients(model, packed, **kind) -> dict[str, torch.Tensor]:
    model.zero_grad()
    hidden = model.hidden(packed)
    model.logits(hidden).logsumexp(1).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_replay_of_a_models_own_routes_changes_no_bit(dtype):
    model, packed = small(dtype=dtype), pack_rows(rows()[1:3])
    packed = dataclasses.replace(packed, tokens=packed.tokens % 20)
    states = model.states(packed)
    again = model.states(dataclasses.replace(packed, routing=states.routing.chosen()))
    assert torch.equal(states.hidden, again.hidden)
    own, replayed = (
        gradients(model, dataclasses.replace(packed, routing=one)) for one in (None, again.routing.chosen())
    )
    assert all(torch.equal(own[name], replayed[name]) for name in own)
    assert all(own[f"layers.{number}.router.weight"].abs().sum() > 0 for number in range(2))


def test_a_replayed_route_is_followed_and_a_missing_one_is_chosen():
    model, packed = small(), pack_rows([np.arange(12, dtype=np.int32)])
    own = model.states(packed).routing.chosen()
    told = (own + 1) % 5
    told[3:] = -1
    states = model.states(dataclasses.replace(packed, routing=told))
    assert torch.equal(states.routing.chosen()[:3], told[:3])
    assert torch.equal(states.routing.chosen()[3:, 0], own[3:, 0]) or not torch.equal(told[:3], own[:3])
    assert not torch.equal(states.hidden[:3], model.hidden(packed)[:3])
    model.zero_grad()
    model.logits(states.hidden).logsumexp(1).sum().backward()
    assert all(layer.router.weight.grad.abs().sum() > 0 for layer in model.layers)


@pytest.mark.parametrize(("name", "exactness"), [("float32", "parity"), ("float32", "bitwise"), ("float64", "parity")])
def test_a_text_does_not_notice_its_neighbours_and_checkpointing_changes_nothing(name, exactness):
    model = small(dtype=name)
    if exactness == "bitwise":
        model.use_bitwise_arithmetic()
    texts = [one % 20 for one in rows()]
    with torch.no_grad():
        together = model.hidden(pack_rows(texts))
        alone = torch.cat([model.hidden(pack_rows([text])) for text in texts])
    if exactness == "bitwise":
        assert torch.equal(together, alone)
    torch.testing.assert_close(together, alone)
    packed = pack_rows(texts)
    plain = gradients(model, packed)
    model.checkpoint_activations = True
    for key, gradient in gradients(model, packed).items():
        torch.testing.assert_close(gradient, plain[key])


def test_rounding_flips_routes_and_replay_of_the_exact_ones_takes_the_gap_away():
    model, packed = small(dtype="float32"), pack_rows([one % 20 for one in rows()])
    exact = model.states(packed)
    told = dataclasses.replace(packed, routing=exact.routing.chosen())
    plain = gradients(model, told)
    model.set_compute_dtype("bfloat16")
    flipped = model.states(packed)
    assert 0 < (flipped.routing.chosen() != exact.routing.chosen()).float().mean() < 0.1
    assert (flipped.hidden - exact.hidden).abs().max() > 0.5
    assert (model.hidden(told) - exact.hidden).abs().max() < 0.05
    for key, gradient in gradients(model, told).items():
        assert gradient.dtype == torch.float32
        assert torch.nn.functional.cosine_similarity(gradient.flatten(), plain[key].flatten(), dim=0) > 0.95, key


def test_a_selection_bias_moves_the_choice_and_not_the_weights(tmp_path):
    model, packed = small(dtype="float32", selection_bias=True), pack_rows([np.arange(12, dtype=np.int32)])
    before = model.hidden(packed)
    model.layers[0].selection_bias.copy_(torch.tensor([0.0, 0.0, 2.0, 0.0, 2.0]))
    states = model.states(packed)
    assert set(states.routing.chosen()[:, 0].unique().tolist()) == {2, 4}
    assert not torch.equal(before, states.hidden)
    save_model(model, tmp_path, tokenizer_from=None)
    loaded = load_model(tmp_path)
    assert torch.equal(loaded.layers[0].selection_bias, model.layers[0].selection_bias)
    torch.testing.assert_close(loaded.hidden(packed), states.hidden, rtol=0, atol=1e-6)


def test_a_routing_of_another_depth_is_refused():
    packed = pack_rows([np.arange(12, dtype=np.int32)])
    routing = torch.zeros(12, 3, 2, dtype=torch.int64)
    with pytest.raises(DataError, match="3 layers and 2 experts a token does not fit a model of 2 layers and 2"):
        small().hidden(dataclasses.replace(packed, routing=routing))


WRONG = [
    ({"num_experts_per_tok": 9}, "experts.per_token 9 (num_experts_per_tok) is above experts.count 8"),
    ({"num_experts": None}, "num_experts must be a whole number of at least 1, got None"),
    ({"num_experts_per_tok": None}, "num_experts_per_tok must be a whole number of at least 1, got None"),
    ({"moe_intermediate_size": "24"}, "moe_intermediate_size must be a whole number of at least 1, got '24'"),
    ({"num_local_experts": 4}, "num_experts 8 and num_local_experts 4 disagree"),
    ({"decoder_sparse_step": 2}, "decoder_sparse_step 2 is not supported: every layer must have experts; known: 1"),
    ({"mlp_only_layers": [0]}, "mlp_only_layers [0] is not supported: every layer must have experts"),
    ({"norm_topk_prob": 1}, "norm_topk_prob must be true or false, got 1"),
    ({"n_routed_experts": 8}, "n_routed_experts 8 is not supported"),
]


@pytest.mark.parametrize(("change", "told"), WRONG)
def test_faults_of_a_config_name_key_and_value(change, told):
    good = {**FAMILIES["qwen3_moe"].to_dict(), "num_experts": 8, "num_local_experts": None, "dtype": None}
    model_config_from_hf(good)
    with pytest.raises(DataError) as error:
        model_config_from_hf({**good, **change})
    assert any(told in message for message in error.value.messages), error.value.messages


def test_a_dense_family_has_no_experts_and_the_others_need_them():
    sizes = {**SMALL, "intermediate_size": 12}
    with pytest.raises(DataError, match="'qwen3' has no experts"):
        ModelConfig(family="qwen3", experts=ExpertsConfig(count=4, per_token=2, width=12), **sizes)
    with pytest.raises(DataError, match="'mixtral' needs experts"):
        ModelConfig(family="mixtral", **sizes)
    with pytest.raises(DataError, match="per_token 9"):
        ModelConfig(family="mixtral", experts=ExpertsConfig(count=4, per_token=9, width=12), **sizes)
