"""DeepSeek-V3: sigmoid routers in groups with a bias, shared experts, dense first layers; routes, bits, plan, refusals.

test_models_families.py compares the family with transformers.
"""

import dataclasses
import json

import numpy as np
import pytest
import torch
import transformers
from greedy_answers import answers_as_of, check_logp
from manual_clock import ManualClock
from shared_prompts import pack_shared_prompts

from hone.certify.token_probes import shrunken_model_config
from hone.core.errors import DataError
from hone.engine.open_engine import EngineSize, open_engine
from hone.engine.session import TokenizerRules
from hone.models.language.config import ModelConfig, model_config_from_hf
from hone.models.language.decoder import Decoder
from hone.models.language.decoder_layer import _of_best_groups
from hone.models.language.expert_config import ExpertsConfig
from hone.models.language.hf_checkpoint import save_model
from hone.models.language.init import new_model
from hone.models.language.lora import LoraConfig
from hone.models.native.library import multiplies_half, uses_amx_tiles, widens_half_products
from hone.models.packing import pack_rows
from hone.planner.planned_decoder import PlannedDecoder, shape_from_hf
from hone.planner.training_step import StepSettings, step_memory
from hone.text.flops import layer_parameters
from hone.text.memory import planned_decoder
from hone.text.tracked_step import tracked_step

SIZES = {"q_lora_rank": 20, "kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 10}
EXPERTS = ExpertsConfig(
    count=8, per_token=3, width=16, sigmoid=True, selection_bias=True, groups=4, groups_used=2, factor=1.7, shared=2,
    dense_layers=1,
)  # fmt: skip


def config(**changes: object) -> ModelConfig:
    return ModelConfig(
        family="deepseek_v3", vocab_size=50, hidden_size=32, intermediate_size=40, layers=3, heads=4, max_positions=64,
        experts=dataclasses.replace(EXPERTS, **changes), extra=SIZES,
    )  # fmt: skip


def model(dtype: str = "float32", **changes: object) -> Decoder:
    decoder, draws = new_model(config(**changes), seed=0, dtype=dtype), torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, one in (*decoder.named_parameters(), *decoder.named_buffers()):
            if "frequencies" not in name:
                one.add_(0.2 * torch.randn(one.shape, generator=draws).to(one.dtype))
    return decoder


def text(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 50, count).astype(np.int32)


def gated(both: torch.Tensor) -> torch.Tensor:
    gate, up = both.chunk(2)
    return torch.nn.functional.silu(gate) * up


def slow_experts(layer: torch.nn.Module, x: torch.Tensor, *, normalise: bool) -> tuple[torch.Tensor, list[set[int]]]:
    """Token by token: the two best of four groups of two, three of their experts, and two that all go to."""
    out, routes = [], []
    for token in x:
        p = torch.sigmoid(layer.router.weight @ token)
        choice = (p + layer.selection_bias).detach()
        pairs = [(float(choice[2 * group] + choice[2 * group + 1]), -group) for group in range(4)]
        groups = sorted(pairs, reverse=True)[:2]
        allowed = [2 * -group + n for _, group in groups for n in range(2)]
        picked = sorted(allowed, key=lambda one: -float(choice[one]))[:3]
        total = sum(p[one] for one in picked) if normalise else torch.ones((), dtype=x.dtype)
        mixed = torch.zeros_like(token)
        for one in picked:
            inner = gated(layer.gate_up.weight.view(8, 32, 32)[one] @ token)
            mixed = mixed + 1.7 * p[one] / total * (layer.down.weight.view(8, 32, 16)[one] @ inner)
        out.append(mixed + layer.shared_down.weight @ gated(layer.shared_gate_up.weight @ token))
        routes.append(set(picked))
    return torch.stack(out), routes


@pytest.mark.parametrize("normalise", [True, False])
def test_outputs_routes_and_gradients_are_those_of_a_loop_over_tokens(normalise):
    decoder = model("float64", normalise_gates=normalise)
    layer, draws = decoder.layers[1], torch.Generator().manual_seed(0)
    x = torch.randn(23, 32, generator=draws, dtype=torch.float64, requires_grad=True)
    above = torch.randn(23, 32, generator=draws, dtype=torch.float64)
    fast, routed = layer.mix_experts(x, decoder._arithmetic(torch.nn.functional.linear, torch.float64), None)
    slow, routes = slow_experts(layer, x, normalise=normalise)
    assert [set(one) for one in routed.chosen.tolist()] == routes
    torch.testing.assert_close(fast, slow)
    weights = [layer.router, layer.gate_up, layer.down, layer.shared_gate_up, layer.shared_down]
    inputs = (x, *(one.weight for one in weights))
    for mine, expected in zip(
        torch.autograd.grad(fast, inputs, above), torch.autograd.grad(slow, inputs, above), strict=True
    ):
        torch.testing.assert_close(mine, expected)


def test_groups_by_hand():
    """Groups (0.9, 0.1), (0.5, 0.6), (0.5, 0.5): their best two sum to 1.0, 1.1 and 1.0; of equals the first."""
    scores = torch.tensor([[0.9, 0.1, 0.5, 0.6, 0.5, 0.5]])
    settings = ExpertsConfig(count=6, per_token=2, width=1, groups=3, groups_used=1)
    assert _of_best_groups(scores, settings).isfinite().tolist() == [[False, False, True, True, False, False]]
    settings = dataclasses.replace(settings, groups_used=2)
    assert _of_best_groups(scores, settings).isfinite().tolist() == [[True, True, True, True, False, False]]


@pytest.mark.parametrize("exactness", ["parity", "bitwise"])
def test_generation_is_that_of_transformers_and_its_routes_are_replayed(exactness, tmp_path):
    decoder = model()
    save_model(decoder, tmp_path, tokenizer_from=None)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    if exactness == "bitwise":
        decoder.use_bitwise_arithmetic()
    engine = open_engine(
        decoder, TokenizerRules(eos=(), vocab=50), size=EngineSize(slots=3, sequence_tokens=64), seed=0
    )
    for prompt, answer in answers_as_of(theirs, engine, [text(5), text(17, 1)]):
        whole = np.concatenate([prompt, answer.tokens])[:-1]
        assert answer.routing.shape == (len(whole), 2, 3)  # of the two layers with experts
        packed = pack_rows([whole])
        with torch.no_grad():
            states = decoder.states(packed)
        check_logp(decoder, states.hidden, answer, bitwise=exactness == "bitwise")
        told = torch.from_numpy(answer.routing.astype(np.int64))
        assert torch.equal(states.routing.chosen(), told)
        again = decoder.states(dataclasses.replace(packed, routing=told))
        assert torch.equal(again.hidden, states.hidden)


def gradients(decoder: Decoder, rows: list[list[np.ndarray]]) -> dict[str, torch.Tensor]:
    decoder.zero_grad()
    for some in rows:
        packed = pack_rows(some)
        decoder.logits(decoder.hidden(packed)).logsumexp(1).sum().backward()
    return {name: one.grad.clone() for name, one in decoder.named_parameters()}


def test_packing_micro_batches_and_recomputation_change_no_gradient():
    decoder, rows = model("float64"), [text(9), text(20, 1), text(1, 2)]
    whole = gradients(decoder, [rows])
    apart = gradients(decoder, [[one] for one in rows])
    decoder.checkpoint_activations = True
    for name, again in gradients(decoder, [rows]).items():
        torch.testing.assert_close(apart[name], whole[name], rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(again, whole[name], rtol=1e-9, atol=1e-11)


def test_answers_that_share_a_prompt_are_those_of_whole_texts_and_bitwise_in_any_batch():
    decoder, prompt, answers = model(), text(9), [text(7, 1), text(11, 2)]
    packed, _ = pack_shared_prompts([(prompt, answers)])
    with torch.no_grad():
        usual = decoder.hidden(packed)
        alone = decoder.hidden(pack_rows([np.concatenate((prompt, answers[1]))]))
        torch.testing.assert_close(usual[16:], alone[9:], rtol=0, atol=2e-5)
        decoder.use_bitwise_arithmetic()
        hidden, alone = decoder.hidden(packed), decoder.hidden(pack_rows([np.concatenate((prompt, answers[1]))]))
    assert torch.equal(hidden[16:], alone[9:])


def test_numbers_of_a_plan_are_those_of_the_model(tmp_path):
    decoder = model()
    save_model(decoder, tmp_path, tokenizer_from=None)
    written = json.loads((tmp_path / "config.json").read_text())
    shape = planned_decoder(decoder.config)
    assert shape == shape_from_hf(written)
    assert model_config_from_hf(written) == decoder.config
    assert shape.parameters == sum(parameter.numel() for parameter in decoder.parameters())
    of_a_token = sum(
        one.numel() * (3 / 8 if ".gate_up" in name or ".down" in name else 1)
        if "layers.0" not in name and "shared" not in name
        else one.numel()
        for name, one in decoder.named_parameters()
        if one.ndim == 2 and "embedding" not in name and "head" not in name
    )
    assert layer_parameters(decoder.config) == of_a_token
    assert shape.active_parameters == shape.parameters - 2 * 3 * 32 * 16 * 5
    adapted = LoraConfig(rank=2).settings(decoder.config).layers
    assert adapted and all(".self_attn." in name for name in adapted)


PLANNED = PlannedDecoder(
    family="deepseek_v3", layers=3, hidden=64, heads=4, kv_heads=1, head_dim=64, intermediate=96, vocab=64, tied=True,
    latent=48, query_latent=40, plain=24, value=20, experts=8, experts_per_token=2, shared=192, dense_layers=1,
    dense=320,
)  # fmt: skip


@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("changes", [{}, {"shared": 96, "dense_layers": 2, "layers": 4, "experts_per_token": 4}])
def test_the_memory_of_a_step_is_what_a_tracker_counts(changes, compute):
    settings = StepSettings(
        tokens=512, text_tokens=128, path="torch", compute=compute, tile_scratch=uses_amx_tiles(),
        halves_head=multiplies_half(), widens=widens_half_products(),
    )  # fmt: skip
    shape = dataclasses.replace(PLANNED, **changes)
    tracked = tracked_step(shape, settings, clock=ManualClock())
    assert tracked.resident_bytes == 16 * shape.parameters
    assert step_memory(shape, settings).peak == pytest.approx(tracked.working_bytes, rel=0.03)


def test_a_smaller_copy_for_the_checks_of_a_run_is_of_the_family():
    small = shrunken_model_config(config())
    assert small.experts is not None
    assert (small.experts.shared, small.experts.dense_layers, small.experts.sigmoid) == (2, 1, True)
    new_model(small, seed=0).hidden(pack_rows([text(5)]))


@pytest.mark.parametrize("changes", [{"sigmoid": False}, {"selection_bias": False}, {"shared": 0}])
def test_no_other_mixture_has_the_familys_name(changes):
    with pytest.raises(DataError, match="'deepseek_v3' has sigmoid, selection_bias and at least one"):
        config(**changes)
    plain = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 12, "layers": 2, "heads": 2}
    with pytest.raises(DataError, match="'qwen3_moe' has no sigmoid, groups, factor, shared experts"):
        ModelConfig(family="qwen3_moe", experts=ExpertsConfig(count=4, per_token=2, width=12, shared=1), **plain)


WRONG = [
    ({"n_group": 3}, "experts.groups 3 (n_group) must cut experts.count 8 into equal groups of at least 2"),
    ({"n_group": 8}, "experts.groups 8 (n_group) must cut experts.count 8 into equal groups of at least 2"),
    ({"topk_group": 5}, "experts.groups_used 5 (topk_group) must be 1 to 4 (n_group)"),
    ({"topk_group": 1}, "experts.per_token 3 (num_experts_per_tok) is above the 2 experts of 1 groups (topk_group)"),
    ({"first_k_dense_replace": 3}, "experts.dense_layers 3 (first_k_dense_replace) must be below the 3 layers"),
    ({"n_shared_experts": 0}, "n_shared_experts must be a whole number of at least 1, got 0"),
    ({"n_group": None}, "n_group must be a whole number of at least 1, got None"),
    ({"routed_scaling_factor": 0}, "routed_scaling_factor must be a number > 0, got 0"),
    ({"scoring_func": "softmax"}, "scoring_func 'softmax' is not supported; known: 'sigmoid'"),
    ({"rope_interleave": False}, "rope_interleave False is not supported"),
    ({"num_local_experts": 4}, "n_routed_experts 8 and num_local_experts 4 disagree"),
]


@pytest.mark.parametrize(("change", "told"), WRONG)
def test_faults_of_a_config_name_key_and_value(change, told):
    good = config().to_hf()
    assert model_config_from_hf(good) == config()
    with pytest.raises(DataError) as error:
        model_config_from_hf({**good, **change})
    assert any(told in message for message in error.value.messages), error.value.messages
