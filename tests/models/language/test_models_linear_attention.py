"""Linear attention: the slow recurrence token by token, borders of texts, states of an engine, adapters, codes, memory,
refusals.

test_models_families.py compares its family with transformers.
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
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock
from shared_prompts import pack_shared_prompts

from hone.certify.token_probes import shrunken_model_config
from hone.core.errors import ConfigError, DataError
from hone.core.generation import Request, SamplingParams, generate
from hone.engine.open_engine import EngineSize, choose_runner, open_engine
from hone.engine.session import TokenizerRules
from hone.models.language import linear_attention
from hone.models.language.config import ModelConfig, model_config_from_hf
from hone.models.language.decoder import Decoder
from hone.models.language.hf_checkpoint import load_model, load_with_adapter, save_model
from hone.models.language.init import new_model
from hone.models.language.linear_attention import delta_rule
from hone.models.language.lora import LoraAdapter, LoraConfig
from hone.models.language.tensor_parallel import tensor_split_faults
from hone.models.native.library import multiplies_half, uses_amx_tiles, widens_half_products
from hone.models.packing import pack_rows
from hone.planner.planned_decoder import PlannedDecoder, shape_from_hf
from hone.planner.run_memory import cache_bytes_per_token
from hone.planner.training_step import StepSettings, step_memory
from hone.text.flops import layer_parameters
from hone.text.memory import planned_decoder
from hone.text.tracked_step import tracked_step

SIZES = {
    "linear_conv_kernel_dim": 3, "linear_key_head_dim": 8, "linear_value_head_dim": 16, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "full_attention_interval": 2,
}  # fmt: skip


def config(**keys: object) -> ModelConfig:
    return ModelConfig(
        family="qwen3_5_text", vocab_size=50, hidden_size=32, intermediate_size=64, layers=4, heads=4, kv_heads=2,
        head_dim=16, max_positions=128, norm_eps=1e-3, tie_embeddings=False, extra={**SIZES, **keys},
    )  # fmt: skip


def model(dtype: str = "float32", **keys: object) -> Decoder:
    """Weights large enough that states matter, and memories of some length."""
    decoder, draws = new_model(config(**keys), seed=0, dtype=dtype), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=draws, dtype=parameter.dtype))
            if name.endswith("forgetting"):
                parameter.sub_(2)
    return decoder


def text(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 50, count).astype(np.int32)


def slow_delta_rule(query, key, value, decay, rate, state):
    """Token by token and head by head, as the formula has it."""
    each, out, end = value.shape[2] // key.shape[2], torch.empty_like(value), torch.empty_like(state)
    for row in range(len(key)):
        for head in range(value.shape[2]):
            s = state[row, head]
            for t in range(key.shape[1]):
                k, q, v = key[row, t, head // each], query[row, t, head // each], value[row, t, head]
                s = math.e ** decay[row, t, head] * s
                s = s + torch.outer(k, rate[row, t, head] * (v - s.t() @ k))
                out[row, t, head] = s.t() @ q
            end[row, head] = s
    return out, end


def inputs(batch: int, length: int, seed: int = 0) -> list[torch.Tensor]:
    draws = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draws, dtype=torch.float64)

    query, key, value = draw(batch, length, 2, 6), draw(batch, length, 2, 6), draw(batch, length, 4, 5)
    key = key / key.norm(dim=-1, keepdim=True)
    return [query, key, value, -draw(batch, length, 4).abs(), torch.sigmoid(draw(batch, length, 4)),
            draw(batch, 4, 6, 5)]  # fmt: skip


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 130])
def test_chunks_give_the_recurrence_and_its_gradients(length):
    """A chunk has 64 tokens: less, as many, one more, and two chunks with a rest."""
    given_ones = [one.requires_grad_() for one in inputs(2, length)]
    fast, slow = delta_rule(*given_ones), slow_delta_rule(*[one.clone() for one in given_ones])
    weights = [torch.randn(one.shape, generator=torch.Generator().manual_seed(3), dtype=one.dtype) for one in slow]
    gradients = [
        torch.autograd.grad(sum((one * by).sum() for one, by in zip(both, weights, strict=True)), given_ones)
        for both in (fast, slow_delta_rule_differentiable(*given_ones))
    ]
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


def slow_delta_rule_differentiable(query, key, value, decay, rate, state):
    """The same recurrence for all heads at once, without writing in place."""
    each = value.shape[2] // key.shape[2]
    query, key = (one.repeat_interleave(each, 2) for one in (query, key))
    parts, s = [], state
    for t in range(key.shape[1]):
        s = s * decay[:, t].exp()[..., None, None]
        correction = rate[:, t, :, None] * (value[:, t] - torch.einsum("bhkv,bhk->bhv", s, key[:, t]))
        s = s + torch.einsum("bhk,bhv->bhkv", key[:, t], correction)
        parts.append(torch.einsum("bhkv,bhk->bhv", s, query[:, t]))
    return torch.stack(parts, 1), s


def test_two_tokens_by_hand():
    """One head, keys and values of one number, state 2. Token 1: g = ln 1/2, k = 1, v = 3, b = 1/2: the state 1, then
    1 + 1/2 (3 - 1) = 2, read by q = 2: 4. Token 2: g = 0, k = 1, v = 0, b = 1: the state 0 whatever it was: 0."""
    one = torch.ones(1, 2, 1, 1, dtype=torch.float64)
    out, end = delta_rule(
        2 * one, one, torch.tensor([3.0, 0.0], dtype=torch.float64).view(1, 2, 1, 1),
        torch.tensor([math.log(0.5), 0.0], dtype=torch.float64).view(1, 2, 1),
        torch.tensor([0.5, 1.0], dtype=torch.float64).view(1, 2, 1), 2 * one[:, :1],
    )  # fmt: skip
    torch.testing.assert_close(out.flatten(), torch.tensor([4.0, 0.0], dtype=torch.float64))
    assert abs(float(end)) < 1e-15


def test_no_decay_and_a_rate_of_one_remember_a_value_by_its_key():
    """Keys at right angles: what is written by one is read by it, and by no other."""
    keys, values = torch.eye(4, dtype=torch.float64).view(1, 4, 1, 4), torch.arange(4.0, dtype=torch.float64)
    still = torch.zeros(1, 4, 1, dtype=torch.float64)
    out, end = delta_rule(keys, keys, values.view(1, 4, 1, 1), still, still + 1, torch.zeros(1, 1, 4, 1).double())
    assert out.flatten().tolist() == end.flatten().tolist() == [0, 1, 2, 3]


@examples(25)
@given(cut=st.integers(1, 69), seed=st.integers(0, 99))
def test_a_text_may_be_cut_anywhere(cut, seed):
    *tokens, state = inputs(1, 70, seed)
    whole, end = delta_rule(*tokens, state)
    first, between = delta_rule(*(one[:, :cut] for one in tokens), state)
    second, last = delta_rule(*(one[:, cut:] for one in tokens), between)
    torch.testing.assert_close(torch.cat((first, second), 1), whole, rtol=0, atol=1e-10)
    torch.testing.assert_close(last, end, rtol=0, atol=1e-10)


def test_no_state_crosses_the_border_of_a_packed_text():
    """Rows in any order and company give what each gives alone; one token of a row changes none of another."""
    decoder, rows = model("float64"), [text(70), text(1, 1), text(33, 2), text(5, 3)]
    with torch.no_grad():
        together = decoder.hidden(pack_rows(rows))
        apart = torch.cat([decoder.hidden(pack_rows([row])) for row in rows])
        changed = [rows[0], (rows[1] + 1) % 50, *rows[2:]]
        other = decoder.hidden(pack_rows(changed))
    torch.testing.assert_close(together, apart, rtol=0, atol=1e-9)
    assert torch.equal(other[:70], together[:70]) and torch.equal(other[71:], together[71:])
    assert not torch.equal(other[70], together[70])


def test_answers_begin_with_the_state_of_their_prompt_and_have_its_gradients():
    decoder, prompt, answers = model("float64"), text(70), [text(7, 1), text(11, 2), text(1, 3)]
    packed, _ = pack_shared_prompts([(prompt, answers), (text(2, 4), [text(3, 5)])])
    hidden = decoder.hidden(packed)
    hidden[70:].sum().backward()
    shared = [parameter.grad.clone() for parameter in decoder.parameters() if parameter.grad is not None]
    decoder.zero_grad()
    texts = [np.concatenate((prompt, one)) for one in answers]
    apart = [decoder.hidden(pack_rows([one])) for one in (*texts, np.concatenate((text(2, 4), text(3, 5))))]
    expected = torch.cat([one[70:] for one in apart[:3]] + [apart[3]])
    torch.testing.assert_close(hidden[70:], expected, rtol=0, atol=1e-9)
    expected.sum().backward()
    whole = [parameter.grad for parameter in decoder.parameters() if parameter.grad is not None]
    for one, other in zip(shared, whole, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7 * float(other.abs().max()))


def test_bfloat16_products_round_and_layers_may_be_computed_again():
    decoder, packed = model(), pack_rows([text(40), text(5, 1)])
    exact = decoder.hidden(packed)
    exact.square().sum().backward()
    trained = [one for name, one in decoder.named_parameters() if name != "head.weight"]
    usual = [parameter.grad.clone() for parameter in trained]
    decoder.zero_grad()
    decoder.checkpoint_activations = True
    decoder.hidden(packed).square().sum().backward()
    assert all(torch.equal(one, parameter.grad) for one, parameter in zip(usual, trained, strict=True))
    decoder.zero_grad()
    decoder.set_compute_dtype("bfloat16")
    hidden = decoder.hidden(packed)
    assert 1e-4 < float((hidden.detach() - exact.detach()).norm() / exact.detach().norm()) < 0.2
    hidden.square().sum().backward()
    assert all(parameter.grad is not None for parameter in trained)


def answers_of(decoder: Decoder, prompts: list[np.ndarray], *, samples: int = 1, greedy: bool = True, slots: int = 3):
    """Answers of an engine and the trainer's log-probabilities of them."""
    engine = open_engine(
        decoder, TokenizerRules(eos=(), vocab=50), size=EngineSize(slots=slots, sequence_tokens=128), seed=0
    )
    sampling = SamplingParams(max_tokens=6, greedy=greedy)
    requests = [Request(id=str(n), prompt=one, samples=samples, sampling=sampling) for n, one in enumerate(prompts)]
    for answer in generate(engine, requests, round=0):
        prompt = prompts[int(answer.request_id)]
        with torch.no_grad():
            whole = np.concatenate([prompt, answer.tokens])
            hidden = decoder.hidden(pack_rows([whole[:-1]]))[len(prompt) - 1 :]
            logp = decoder.token_logprobs(hidden, torch.from_numpy(answer.tokens.astype(np.int64))).logp.numpy()
        yield prompt, answer, logp


def test_generation_is_that_of_transformers(tmp_path):
    decoder = model()
    save_model(decoder, tmp_path, tokenizer_from=None)
    theirs = T.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    seen = 0
    for prompt, answer, logp in answers_of(decoder, [text(5), text(70, 1), text(17, 2)]):
        ids = torch.from_numpy(prompt[None].astype(np.int64))
        for _ in range(6):
            with torch.no_grad():
                ids = torch.cat((ids, theirs(ids).logits[:, -1:].argmax(-1)), 1)
        assert answer.tokens.tolist() == ids[0, len(prompt) :].tolist()
        np.testing.assert_allclose(logp, answer.logp, atol=1e-4)
        seen += 1
    assert seen == 3


@pytest.mark.parametrize("count", [8, 9])
def test_states_are_shared_copied_and_read_again_with_their_pages(count, monkeypatch):
    """Pages of 8 tokens, and samples of a prompt two by two: they copy its unfinished page, and its last token is read
    again for those that are drawn later; a second prompt that begins the same finds the pages."""
    monkeypatch.setattr("hone.engine.torch_runner._LONG_PAGE_TOKENS", 8)
    monkeypatch.setattr("hone.engine.scheduler._GROUP", 2)
    decoder, first = model(), text(count)
    distance = [
        np.abs(logp - answer.logp).max()
        for prompts in ([first], [np.concatenate((first, text(6, 9))), first])
        for _, answer, logp in answers_of(decoder, prompts, samples=3, greedy=False, slots=4)
    ]
    assert len(distance) == 9 and max(distance) < 1e-4


def test_a_state_at_another_place_is_not_gone_on_from():
    decoder = model()
    store = torch.zeros(3, decoder.config.state_numbers)
    store[1, 0] = 5
    tokens, pages = np.zeros(1, np.int64), np.array([[1, 2]])
    assert not linear_attention.paged_runs(store, tokens, tokens + 5, pages, 8).pages.again[1]
    assert linear_attention.paged_runs(store, tokens, tokens + 4, pages, 8).pages.again[1]
    with pytest.raises(AssertionError, match="page 1 has read 5 tokens, not 6"):
        linear_attention.paged_runs(store, tokens, tokens + 6, pages, 8)


def test_a_published_folder_with_a_vision_tower_is_read_as_text(tmp_path):
    decoder = model()
    save_model(decoder, tmp_path / "text", tokenizer_from=None)
    keys = json.loads((tmp_path / "text" / "config.json").read_text())
    vision = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 32}
    whole = T.Qwen3_5Config(text_config=keys, vision_config=vision, tie_word_embeddings=False)
    theirs = T.AutoModelForImageTextToText.from_config(whole, attn_implementation="eager").eval()
    theirs.save_pretrained(tmp_path / "both")
    ours = load_model(tmp_path / "both")
    assert ours.config.family == "qwen3_5_text" and "vision tower" in ours.notes()[0]
    row = text(9)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(row[None].astype(np.int64))).logits[0]
        torch.testing.assert_close(ours.logits(ours.hidden(pack_rows([row]))), expected, rtol=0, atol=1e-4)
    save_model(ours, tmp_path / "saved", tokenizer_from=None)
    again = load_model(tmp_path / "saved")
    assert again.notes() == [] and all(
        torch.equal(one, two) for one, two in zip(ours.parameters(), again.parameters(), strict=True)
    )


def test_keys_of_published_configs_are_read_or_refused():
    written = config().to_hf()
    published = {
        **written, "attn_output_gate": True, "mamba_ssm_dtype": "float32", "mlp_only_layers": [],
        "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False, "layer_types": None,
        "rope_parameters": {"mrope_interleaved": True, "mrope_section": [11, 11, 10], "rope_type": "default",
                            "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    }  # fmt: skip
    read = model_config_from_hf(published)
    assert read.delta == config().delta and read.delta.layers == (True, False, True, False)
    assert (read.cached_layers, read.state_numbers) == (2, 1 + 2 * (3 * (32 + 64) + 4 * 8 * 16))
    wrong = {**published, "attn_output_gate": False, "mamba_ssm_dtype": "bfloat16", "linear_num_value_heads": 3,
             "linear_key_head_dim": 0, "layer_types": ["sliding_attention"] * 4}  # fmt: skip
    with pytest.raises(DataError) as caught:
        model_config_from_hf(wrong)
    assert [message.split()[1] for message in caught.value.messages] == [
        "attn_output_gate", "mamba_ssm_dtype", "linear_key_head_dim", "linear_num_value_heads", "layer_types"
    ]  # fmt: skip


def test_what_linear_attention_does_not_have_is_refused():
    decoder = model()
    for kind in ("native", "torch_compiled"):
        with pytest.raises(ConfigError, match="it does not compute qwen3_5_text's linear attention"):
            choose_runner(kind, decoder, vocab_used=50)
    with pytest.raises(DataError, match="linear attention has no bits of its own"):
        decoder.use_bitwise_arithmetic()
    (fault,) = tensor_split_faults(decoder.config, 2)
    assert "a qwen3_5_text cannot be cut among ranks: qwen3_5_text's linear attention" in fault
    with pytest.raises(DataError, match="cannot stand beside weights that others share: its states"):
        LoraAdapter(
            decoder, LoraConfig(rank=2).settings(decoder.config), base_folder=Path(), base_sha256="", beside=True
        )


@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_an_adapter_reaches_the_projections_also_beside_codes(bits, tmp_path):
    adapter = drawn_adapter(model(), tmp_path, bits)
    names = {name.rpartition(".")[2] for name in adapter.updates}
    assert names == {"in_proj_qkv", "in_proj_z", "out_proj", "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
                     "up_proj", "down_proj"}  # fmt: skip
    dense, packed = adapter.dense_decoder(), pack_rows([text(9), text(4, 1)])
    hidden, expected = adapter.decoder.hidden(packed), dense.hidden(packed)
    torch.testing.assert_close(hidden, expected, rtol=0, atol=1e-3 * float(expected.detach().abs().max()))
    hidden.square().sum().backward()
    assert all(factor.grad is not None for _, factor in adapter.factors())


def test_a_smaller_copy_for_the_checks_of_a_run_is_of_the_family():
    small = shrunken_model_config(replace(config(), layers=3))
    assert small.delta is not None and small.layers == 2
    new_model(small, seed=0).hidden(pack_rows([text(5)]))


def test_numbers_of_a_plan_are_those_of_the_model(tmp_path):
    decoder = model()
    save_model(decoder, tmp_path, tokenizer_from=None)
    shape = planned_decoder(decoder.config)
    assert shape == shape_from_hf(json.loads((tmp_path / "config.json").read_text()))
    assert shape.parameters == sum(parameter.numel() for parameter in decoder.parameters())
    assert shape.state_numbers == decoder.config.state_numbers
    assert cache_bytes_per_token(shape, "float32") == 2 * 2 * 2 * 16 * 4  # two layers of four have keys and values
    products = [one for name, one in decoder.named_parameters() if one.ndim == 2 and name[:4] not in ("embe", "head")]
    rule = 96 * 3 + 3 * 8 * 64  # channels times inputs; a state is decayed and read, written to, and read
    assert layer_parameters(decoder.config) == sum(one.numel() for one in products) + 2 * rule
    coded = load_with_adapter(tmp_path, LoraConfig(rank=2), seed=0, dtype="int4").decoder
    held = {name: one for name, one in coded.named_parameters() if "lora" not in name}
    assert shape.coded_bytes(4) == sum(one.numel() * one.itemsize for one in held.values())


PLANNED = PlannedDecoder(
    family="qwen3_5_text", layers=4, hidden=64, heads=4, kv_heads=2, head_dim=32, intermediate=160, vocab=64, tied=True,
    qk_norm=True, linear_layers=3, groups=2, states=4, state_key=16, state_value=24, inputs=4,
)  # fmt: skip
STEP = StepSettings(
    tokens=512, text_tokens=128, path="torch", tile_scratch=uses_amx_tiles(), halves_head=multiplies_half(),
    widens=widens_half_products(),
)  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "compute", "far"),
    [
        (PLANNED, "float32", 0.01),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (replace(PLANNED, vocab=20000), "float32", 0.01),
                (replace(PLANNED, vocab=20000), "bfloat16", 0.01),
                (replace(PLANNED, intermediate=2000), "float32", 0.01),
                (replace(PLANNED, state_key=64, state_value=64), "float32", 0.1),
                (replace(PLANNED, state_key=64, state_value=64), "bfloat16", 0.1),
            )
        ),
    ],
)
def test_the_memory_of_a_step_is_what_a_tracker_counts(shape, compute, far):
    settings = replace(STEP, compute=compute)
    tracked = tracked_step(shape, settings, clock=ManualClock())
    assert tracked.resident_bytes == 16 * shape.parameters
    assert step_memory(shape, settings).peak == pytest.approx(tracked.working_bytes, rel=far)
