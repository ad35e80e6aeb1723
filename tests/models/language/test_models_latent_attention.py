"""Latent attention: a slow version head by head, shared prompts, bits, generation, adapters, codes, memory, refusals.

test_models_families.py compares its families with transformers.
"""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as T
from coded_adapters import drawn_adapter
from greedy_answers import answers_as_of, check_logp
from manual_clock import ManualClock
from safetensors.torch import load_file
from shared_prompts import pack_shared_prompts

from hone.certify.token_probes import shrunken_model_config
from hone.core.errors import ConfigError, DataError
from hone.engine.open_engine import EngineSize, choose_runner, open_engine
from hone.engine.session import TokenizerRules
from hone.models.language.config import ModelConfig, model_config_from_hf
from hone.models.language.decoder import Decoder
from hone.models.language.hf_checkpoint import load_model, load_with_adapter, save_model
from hone.models.language.init import new_model
from hone.models.language.lora import LoraAdapter, LoraConfig
from hone.models.language.peft_folder import save_adapter
from hone.models.language.tensor_parallel import tensor_split_faults
from hone.models.native.library import multiplies_half, uses_amx_tiles, widens_half_products
from hone.models.packing import pack_rows
from hone.planner.planned_decoder import PlannedDecoder, shape_from_hf
from hone.planner.training_step import StepSettings, step_memory
from hone.text.flops import layer_parameters
from hone.text.memory import planned_decoder
from hone.text.tracked_step import tracked_step

SIZES = {"q_lora_rank": 64, "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 8}
PLANNED = PlannedDecoder(
    family="youtu", layers=3, hidden=64, heads=4, kv_heads=1, head_dim=64, intermediate=160, vocab=64, tied=True,
    latent=48, query_latent=40, plain=24, value=20,
)  # fmt: skip
STEP = StepSettings(
    tokens=512,
    text_tokens=128,
    path="torch",
    tile_scratch=uses_amx_tiles(),
    halves_head=multiplies_half(),
    widens=widens_half_products(),
)


def config(**keys: object) -> ModelConfig:
    return ModelConfig(
        family="youtu", vocab_size=50, hidden_size=32, intermediate_size=64, layers=2, heads=4, max_positions=64,
        extra={**SIZES, **keys},
    )  # fmt: skip


def model(dtype: str = "float32", **keys: object) -> Decoder:
    """Weights large enough that attention is far from even."""
    decoder, draws = new_model(config(**keys), seed=0, dtype=dtype), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draws, dtype=parameter.dtype))
    return decoder


def text(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 50, count).astype(np.int32)


def normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean() + 1e-6).sqrt() * weight


def turned(x: torch.Tensor, position: int) -> torch.Tensor:
    """Neighbours of 8 features, turned by position / 10000^(2i/8)."""
    out = x.clone()
    for pair in range(len(x) // 2):
        angle = position * 10000.0 ** (-2 * pair / len(x))
        a, b = x[2 * pair], x[2 * pair + 1]
        out[2 * pair], out[2 * pair + 1] = (
            a * math.cos(angle) - b * math.sin(angle),
            a * math.sin(angle) + b * math.cos(angle),
        )
    return out


def slow_attention(layer: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    """`[T, hidden]` token by token and head by head, with the keys and values of each head written out."""
    result = []
    for i in range(len(x)):
        heads = []
        for head in range(4):
            q = layer.q.weight @ normed(layer.q_down.weight @ normed(x[i], layer.attention_norm.weight),
                                        layer.q_norm.weight)  # fmt: skip
            plain, rotary = q[24 * head : 24 * head + 16], q[24 * head + 16 : 24 * head + 24]
            k_weight, v_weight = layer.kv.weight.view(4, 24, 32)[head].split((16, 8))
            scores, values = [], []
            for j in range(i + 1):
                both = layer.kv_down.weight @ normed(x[j], layer.attention_norm.weight)
                latent = normed(both[:32], layer.kv_norm.weight)
                key = torch.cat((k_weight @ latent, turned(both[32:], j)))
                scores.append(torch.cat((plain, turned(rotary, i))) @ key / math.sqrt(24))
                values.append(v_weight @ latent)
            weights = torch.softmax(torch.stack(scores), 0)
            heads.append((weights[:, None] * torch.stack(values)).sum(0))
        result.append(layer.out.weight @ torch.cat(heads))
    return torch.stack(result)


def test_attention_through_the_latent_is_attention_of_heads():
    """One layer in float64, its MLP silent; rotary frequencies are in float32."""
    decoder = model("float64")
    decoder.layers = decoder.layers[:1]
    layer, row = decoder.layers[0], text(9)
    with torch.no_grad():
        layer.down.weight.zero_()
        x = decoder.embed(torch.from_numpy(row.astype(np.int64)))
        expected = decoder.norm(x + slow_attention(layer, x))
        torch.testing.assert_close(decoder.hidden(pack_rows([row])), expected, rtol=0, atol=1e-6)


def test_the_first_token_has_its_own_value_whatever_it_asks():
    """By hand: a softmax of one score is 1, so a layer adds O V norm(A x)."""
    decoder, row = model("float64"), text(1)
    layer = decoder.layers[0]
    decoder.layers = decoder.layers[:1]
    with torch.no_grad():
        layer.down.weight.zero_()
        x = decoder.embed(torch.from_numpy(row.astype(np.int64)))
        latent = normed(layer.kv_down.weight[:32] @ normed(x[0], layer.attention_norm.weight), layer.kv_norm.weight)
        added = layer.out.weight @ (layer.kv.weight.view(4, 24, 32)[:, 16:].reshape(32, 32) @ latent)
        expected = decoder.norm(x + added)
        layer.q.weight.mul_(5)
        torch.testing.assert_close(decoder.hidden(pack_rows([row])), expected, rtol=1e-12, atol=1e-12)


def test_answers_that_share_a_prompt_are_those_of_whole_texts_and_bitwise_in_any_batch():
    decoder, prompt, answers = model(), text(9), [text(7, 1), text(11, 2)]
    packed, _ = pack_shared_prompts([(prompt, answers)])
    texts = [np.concatenate((prompt, one)) for one in answers]
    with torch.no_grad():
        usual, apart = decoder.hidden(packed), [decoder.hidden(pack_rows([one])) for one in texts]
        torch.testing.assert_close(usual[9:16], apart[0][9:], rtol=0, atol=2e-5)
        torch.testing.assert_close(usual[16:], apart[1][9:], rtol=0, atol=2e-5)
        decoder.use_bitwise_arithmetic()
        hidden, alone = decoder.hidden(packed), decoder.hidden(pack_rows([texts[1]]))
    torch.testing.assert_close(hidden, usual, rtol=0, atol=2e-5)
    assert torch.equal(hidden[16:], alone[9:])


def test_bfloat16_products_round_and_reach_every_weight():
    decoder, packed = model(), pack_rows([text(9), text(5, 1)])
    with torch.no_grad():
        exact = decoder.hidden(packed)
    decoder.set_compute_dtype("bfloat16")
    hidden = decoder.hidden(packed)
    distance = float((hidden.detach() - exact).norm() / exact.norm())
    assert 1e-4 < distance < 0.1
    hidden.square().sum().backward()
    assert all(parameter.grad is not None for parameter in decoder.parameters())


@pytest.mark.parametrize("exactness", ["parity", "bitwise"])
def test_generation_is_that_of_transformers_and_caches_latents(exactness, tmp_path):
    decoder = model()
    save_model(decoder, tmp_path, tokenizer_from=None)
    theirs = T.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    if exactness == "bitwise":
        decoder.use_bitwise_arithmetic()
    engine = open_engine(
        decoder, TokenizerRules(eos=(), vocab=50), size=EngineSize(slots=3, sequence_tokens=64), seed=0
    )
    for prompt, answer in answers_as_of(theirs, engine, [text(5), text(17, 1)]):
        with torch.no_grad():
            hidden = decoder.hidden(pack_rows([np.concatenate([prompt, answer.tokens])[:-1]]))
        check_logp(decoder, hidden, answer, bitwise=exactness == "bitwise")
    assert "torch" in engine.runner.name
    # One key head of 8 rotary features and the latent's 32, where four heads would have 4 x (24 + 8).
    assert (decoder.config.kv_heads, decoder.config.head_dim) == (1, 40)


def test_an_adapter_is_what_peft_computes_and_reaches_all_projections(tmp_path):
    save_model(model(), tmp_path / "base", tokenizer_from=None)
    theirs = T.AutoModelForCausalLM.from_pretrained(tmp_path / "base", attn_implementation="eager").eval()
    adapter, draws = load_with_adapter(tmp_path / "base", LoraConfig(rank=3), seed=0), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, factor in adapter.factors():
            factor.add_(0.1 * torch.randn(factor.shape, generator=draws))
    adapter.merge()
    save_adapter(adapter, tmp_path / "adapter")
    names = {name.rpartition(".")[2] for name in adapter.updates}
    attention = {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"}
    assert names == attention | {"gate_proj", "up_proj", "down_proj"}
    assert adapter.settings.count(adapter.decoder.config) == sum(factor.numel() for _, factor in adapter.factors())
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    scale = 32.0 / 3
    for name, module in theirs.named_modules():
        if f"base_model.model.{name}.lora_A.weight" in tensors:
            a, b = (tensors[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
            with torch.no_grad():  # kv_b_proj is used more than once a pass: its weight, not a hook
                module.weight.add_(scale * b @ a)
    row = text(9)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(row[None].astype(np.int64))).logits[0]
        for decoder in (adapter.decoder, load_model(tmp_path / "adapter")):
            logits = decoder.logits(decoder.hidden(pack_rows([row])))
            torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))


@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_a_base_in_codes_has_the_numbers_and_gradients_of_its_decoded_weights(bits, tmp_path):
    adapter = drawn_adapter(model(), tmp_path, bits)
    dense, packed = adapter.dense_decoder(), pack_rows([text(9), text(4, 1)])
    hidden, expected = adapter.decoder.hidden(packed), dense.hidden(packed)
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-4 * float(expected.detach().abs().max()))
    hidden.square().sum().backward()
    expected.square().sum().backward()
    gradients, weights = dict(dense.named_parameters()), dict(adapter.factors())
    for name, update in adapter.updates.items():
        whole = gradients[update.piece.parameter_name].grad[update.rows] * adapter.settings.scale
        for side, own in (("A", update.b.t() @ whole), ("B", whole @ update.a.t())):
            factor = weights[f"{name}.lora_{side}.weight"]
            torch.testing.assert_close(factor.grad, own, rtol=0, atol=2e-3 * float(own.detach().abs().max()), msg=name)


@pytest.mark.parametrize("queries", [64, None])
def test_numbers_of_a_plan_are_those_of_the_model(queries, tmp_path):
    decoder = model(q_lora_rank=queries)
    save_model(decoder, tmp_path, tokenizer_from=None)
    shape = planned_decoder(decoder.config)
    assert shape == shape_from_hf(json.loads((tmp_path / "config.json").read_text()))
    assert shape.parameters == sum(parameter.numel() for parameter in decoder.parameters())
    products = [one for name, one in decoder.named_parameters() if one.ndim == 2 and "embedding" not in name]
    assert layer_parameters(decoder.config) == sum(one.numel() for one in products) == 2 * shape.layer_weights
    coded = load_with_adapter(tmp_path, LoraConfig(rank=2), seed=0, dtype="int4").decoder
    held = {name: one for name, one in coded.named_parameters() if "lora" not in name}
    assert shape.coded_bytes(4) == sum(one.numel() * one.itemsize for one in held.values())


CHECKPOINTING = replace(PLANNED, layers=6), replace(STEP, checkpointing=True)


@pytest.mark.parametrize(
    ("shape", "settings", "compute", "far"),
    [
        (PLANNED, STEP, "float32", 0.01),
        (PLANNED, STEP, "bfloat16", 0.01),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (replace(PLANNED, query_latent=0, intermediate=700), STEP, "float32", 0.01),
                (replace(PLANNED, vocab=4096), STEP, "bfloat16", 0.01),
                (*CHECKPOINTING, "float32", 0.02),
                (*CHECKPOINTING, "bfloat16", 0.05),
            )
        ),
    ],
)
def test_the_memory_of_a_step_is_what_a_tracker_counts(shape, settings, compute, far):
    settings = replace(settings, compute=compute)
    tracked = tracked_step(shape, settings, clock=ManualClock())
    assert tracked.resident_bytes == 16 * shape.parameters
    assert step_memory(shape, settings).peak == pytest.approx(tracked.working_bytes, rel=far)


def test_a_smaller_copy_for_the_checks_of_a_run_is_of_the_family():
    small = shrunken_model_config(config())
    assert small.latent == config().latent and small.layers == 2
    new_model(small, seed=0).hidden(pack_rows([text(5)]))


def test_what_latent_attention_does_not_have_is_refused(tmp_path):
    decoder = model()
    with pytest.raises(ConfigError, match="it does not compute youtu's latent attention"):
        choose_runner("native", decoder, vocab_used=50)
    (fault,) = tensor_split_faults(decoder.config, 2)
    assert "a youtu cannot be cut among ranks: youtu's latent attention" in fault
    with pytest.raises(DataError, match="cannot stand beside weights that others share"):
        LoraAdapter(
            decoder, LoraConfig(rank=2).settings(decoder.config), base_folder=Path(), base_sha256="", beside=True
        )
    save_model(decoder, tmp_path, tokenizer_from=None)
    keys = json.loads((tmp_path / "config.json").read_text())
    wrong = {**keys, "kv_lora_rank": 0, "v_head_dim": 2.5, "q_lora_rank": True, "rope_interleave": False}
    with pytest.raises(DataError) as caught:
        model_config_from_hf(wrong)
    assert [message.split()[1] for message in caught.value.messages] == [
        "rope_interleave", "q_lora_rank", "kv_lora_rank", "v_head_dim"
    ]  # fmt: skip
    with pytest.raises(DataError, match="head_dim must be even"):
        model_config_from_hf({**keys, "kv_lora_rank": 33})
