"""Every family of decoders, against transformers on a tiny config: logits, gradients, greedy tokens, both ways."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file
from shared_prompts import pack_shared_prompts

from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.families import FAMILY_DESIGNS
from hone.models.language.hf_checkpoint import load_model, save_model
from hone.models.language.init import new_model
from hone.models.language.rope import RopeConfig
from hone.models.language.token_logprobs import LogprobQuery, query_logprobs, top_k_tokens
from hone.models.packing import PackedBatch, pack_rows, row_targets
from hone.text.flops import attended_pairs

SIZES = {
    "vocab_size": 60, "hidden_size": 48, "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 96, "initializer_range": 0.15, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 16}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 500.0, "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 6.0, 8.0], "original_max_position_embeddings": 32,
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 2.0}
MINISTRAL = {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0, "beta_fast": 32.0, "llama_4_scaling_beta": 0.5}
MLA = {
    "num_key_value_heads": 4, "q_lora_rank": 20, "kv_lora_rank": 12, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4,
    "v_head_dim": 10,
}  # fmt: skip
MSCALE = {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}
DEEPSEEK = {
    **MLA, "n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_shared_experts": 2,
    "n_group": 1, "topk_group": 1,
}  # fmt: skip
DELTA = {
    "linear_conv_kernel_dim": 4, "linear_key_head_dim": 6, "linear_value_head_dim": 10, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "head_dim": 16, "rms_norm_eps": 1e-2,
}  # fmt: skip
"""What a query reads out of a state may be near 0, and is normalised: with an epsilon of 1e-6 transformers itself is
9e-5 from the same numbers in float64."""
T = transformers
CASES: dict[str, tuple[type, dict[str, object]]] = {
    "llama3": (T.LlamaConfig, {"rope_parameters": LLAMA3}),
    "llama-dynamic": (T.LlamaConfig, {"rope_parameters": DYNAMIC, "max_position_embeddings": 32}),
    "mistral-window": (T.MistralConfig, {"sliding_window": 7}),
    "ministral3": (T.Ministral3Config, {"head_dim": 16, "rope_parameters": MINISTRAL}),
    "qwen2-window": (T.Qwen2Config, {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 2}),
    "qwen3-types": (T.Qwen3Config, {"head_dim": 16, "use_sliding_window": True, "sliding_window": 7,
                                    "layer_types": ["full_attention", "sliding_attention"] * 2}),
    "gemma2": (T.Gemma2Config, {"head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 20,
                                "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0}),
    "gemma2-no-caps": (T.Gemma2Config, {"head_dim": 16, "sliding_window": 7, "attn_logit_softcapping": None,
                                        "final_logit_softcapping": None}),
    "gemma3": (T.Gemma3TextConfig, {"head_dim": 16, "sliding_window": 7, "query_pre_attn_scalar": 20,
                                    "sliding_window_pattern": 2, "attn_logit_softcapping": 5.0,
                                    "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    "phi3": (T.Phi3Config, {}),
    "phi3-window-partial": (T.Phi3Config, {"sliding_window": 7, "partial_rotary_factor": 0.5}),
    "phi3-longrope": (T.Phi3Config, {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32}),
    "smollm3": (T.SmolLM3Config, {"no_rope_layer_interval": 2}),
    "smollm3-window": (T.SmolLM3Config, {"no_rope_layers": [1, 0, 1, 0], "use_sliding_window": True,
                                         "sliding_window": 7, "attention_bias": True, "mlp_bias": True}),
    "olmo2": (T.Olmo2Config, {}),
    "olmo3": (T.Olmo3Config, {"sliding_window": 7, "rope_scaling": YARN}),
    "granite": (T.GraniteConfig, {"embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22,
                                  "attention_multiplier": 0.0156, "attention_bias": True}),
    "glm": (T.GlmConfig, {"head_dim": 16}),
    "glm4": (T.Glm4Config, {"head_dim": 16, "attention_bias": False}),
    "cohere": (T.CohereConfig, {"logit_scale": 0.25}),
    "cohere-qk-norm": (T.CohereConfig, {"use_qk_norm": True, "logit_scale": 0.25}),
    "cohere2": (T.Cohere2Config, {"logit_scale": 0.25, "sliding_window": 7, "sliding_window_pattern": 2}),
    "youtu": (T.YoutuConfig, {**MLA, "attention_bias": True}),
    "youtu-yarn-full-queries": (T.YoutuConfig, {**MLA, "q_lora_rank": None, "rope_parameters": MSCALE}),
    "deepseek_v3": (T.DeepseekV3Config, {**DEEPSEEK, "first_k_dense_replace": 1}),
    "deepseek_v3-groups-yarn": (T.DeepseekV3Config, {**DEEPSEEK, "first_k_dense_replace": 2, "n_group": 4,
                                                     "topk_group": 2, "norm_topk_prob": False, "n_shared_experts": 1,
                                                     "q_lora_rank": None, "attention_bias": True,
                                                     "rope_parameters": MSCALE}),
    "qwen3_5": (T.Qwen3_5TextConfig, DELTA),
    "qwen3_5-types-tied": (T.Qwen3_5TextConfig, {**DELTA, "linear_num_key_heads": 4, "linear_conv_kernel_dim": 3,
                                                 "layer_types": ["full_attention", "linear_attention"] * 2,
                                                 "tie_word_embeddings": True, "attention_bias": True,
                                                 "partial_rotary_factor": 0.5}),
    "minicpm3": (T.MiniCPM3Config, {**MLA, "v_head_dim": None, "dim_model_base": 24, "attention_bias": True,
                                    "mlp_bias": True, "original_max_position_embeddings": 32,
                                    "rope_parameters": {**LONGROPE, "short_factor": [1.0, 1.1],
                                                        "long_factor": [1.0, 3.0]}}),
}  # fmt: skip


def rows() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(3, 60, size=n).astype(np.int32) for n in (40, 1, 33, 20)]


@pytest.fixture(scope="module", params=CASES)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, object]:
    kind, settings = CASES[request.param]
    torch.manual_seed(1)
    model = T.AutoModelForCausalLM.from_config(kind(**{**SIZES, **settings}), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # biases start at 0 and norms at 1: a lost one would not show
                parameter.add_(torch.randn_like(parameter) / 4)
        for name, buffer in model.named_buffers():
            if "correction_bias" in name:
                buffer.add_(torch.randn_like(buffer) / 4)
    path = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(path)
    return path, model


def their_logits(model: T.PreTrainedModel) -> torch.Tensor:
    return torch.cat([model(torch.from_numpy(row[None].astype(np.int64))).logits[0] for row in rows()])


@pytest.mark.parametrize("native", ["1", "0"])
def test_logits_and_gradients_are_those_of_transformers(reference, native, monkeypatch, tmp_path):
    monkeypatch.setenv("HONE_NATIVE", native)
    folder, theirs = reference
    ours = load_model(folder)
    packed = pack_rows(rows())
    targets = row_targets(packed)
    expected = their_logits(theirs)
    assert expected.std() > 0.1
    logp = torch.log_softmax(expected[targets.at], -1).gather(1, targets.chosen[:, None])[:, 0]
    theirs.zero_grad()
    logp.mean().backward()
    hidden = ours.hidden(packed)
    torch.testing.assert_close(
        ours.logits(hidden), expected, rtol=0, atol=1e-5 * max(1.0, float(expected.detach().std()))
    )
    mine = ours.token_logprobs(hidden[targets.at], targets.chosen).logp
    torch.testing.assert_close(mine, logp, rtol=0, atol=2e-5)
    mine.mean().backward()
    # The gradient of each parameter, in transformers' own names and order.
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.copy_(parameter.grad)
    save_model(ours, tmp_path, tokenizer_from=None)
    gradients = load_file(tmp_path / "model.safetensors")
    for name, parameter in theirs.named_parameters():
        if name in gradients:
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-3, atol=2e-6, msg=name)
    assert gradients.keys() == load_file(folder / "model.safetensors").keys()


def test_a_saved_folder_is_the_familys_own(reference, tmp_path):
    folder, theirs = reference
    save_model(load_model(folder), tmp_path, tokenizer_from=None)
    before, after = (json.loads((one / "config.json").read_text()) for one in (folder, tmp_path))
    assert after["model_type"] == before["model_type"] and after["architectures"] == before["architectures"]
    again = T.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    for (name, one), (other, two) in zip(theirs.named_parameters(), again.named_parameters(), strict=True):
        assert name == other and torch.equal(one, two), name
    with torch.no_grad():
        torch.testing.assert_close(their_logits(again), their_logits(theirs), rtol=0, atol=1e-6)


def small(family: str, layers: int = 2, **keys: object) -> Decoder:
    config = ModelConfig(
        family=family, vocab_size=40, hidden_size=32, intermediate_size=24, layers=layers, heads=4, kv_heads=2,
        head_dim=8, max_positions=64, extra=keys,
    )  # fmt: skip
    return new_model(config, seed=0)


def shared_prompt() -> tuple[PackedBatch, list[np.ndarray]]:
    """A prompt of 9 tokens with answers of 7 and 11, as one row, and as two texts."""
    rng = np.random.default_rng(2)
    prompt, *answers = (rng.integers(0, 40, n).astype(np.int32) for n in (9, 7, 11))
    return pack_shared_prompts([(prompt, answers)])[0], [np.concatenate((prompt, one)) for one in answers]


@pytest.mark.parametrize(("window", "same"), [(1, False), (5, False), (19, False), (20, True)])
def test_a_window_counts_across_the_border_of_a_shared_prompt(window, same):
    """The longest text has 20 tokens: its last sees all of them from a window of 20 on."""
    model = small("gemma2", layers=1, sliding_window=window)
    packed, texts = shared_prompt()
    with torch.no_grad():
        hidden, apart = model.hidden(packed), [model.hidden(pack_rows([text])) for text in texts]
        unlimited = small("gemma2", layers=1, sliding_window=None).hidden(packed)
    torch.testing.assert_close(hidden[9:16], apart[0][9:], rtol=0, atol=1e-5)
    torch.testing.assert_close(hidden[16:], apart[1][9:], rtol=0, atol=1e-5)
    assert torch.allclose(hidden, unlimited, atol=1e-5) == same


@pytest.mark.parametrize("family", ["gemma2", "olmo3", "cohere2", "granite"])
def test_bitwise_arithmetic_gives_the_usual_numbers_and_the_same_bits_in_any_batch(family):
    model, (packed, texts) = small(family, sliding_window=5), shared_prompt()
    with torch.no_grad():
        usual = model.hidden(packed)
        model.use_bitwise_arithmetic()
        hidden, apart = model.hidden(packed), model.hidden(pack_rows([texts[1]]))
    torch.testing.assert_close(hidden, usual, rtol=0, atol=1e-5)
    assert torch.equal(hidden[16:], apart[9:])


@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_rotations_by_length_are_those_of_the_row_or_of_the_engine(kind):
    """At most 32 tokens: as without a scaling; one more: all of the text's tokens turn otherwise."""
    rope = RopeConfig(kind=kind, factor=2.0, original_max_positions=32, short_factor=(1.0,) * 4, long_factor=(3.0,) * 4,
                      attention_factor=1.0)  # fmt: skip
    model, plain = small("llama"), small("llama")
    model.config = dataclasses.replace(model.config, rope=rope)
    text = np.random.default_rng(3).integers(0, 40, 33).astype(np.int32)
    with torch.no_grad():
        for length, same in ((32, True), (33, False)):
            rows = [text[:length], text[:5]]
            one, other = model.hidden(pack_rows(rows)), plain.hidden(pack_rows(rows))
            assert torch.allclose(one[:length], other[:length], atol=1e-6) == same
            assert torch.allclose(one[length:], other[length:], atol=1e-6)
        long = model.hidden(pack_rows([text]))
        model.fix_rope_length(33)
        model.fix_rope_length(20)  # a shorter engine beside it changes nothing
        torch.testing.assert_close(model.hidden(pack_rows([text[:20]])), long[:20], rtol=0, atol=1e-6)


def test_capped_log_probabilities_and_their_gradients():
    """log softmax of c tanh(z / c) / t, by autograd of the plain formula."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 6, generator=generator, dtype=torch.float64).requires_grad_() for n in (5, 9))
    chosen = torch.tensor([0, 3, 8, 8, 1])
    logits = 2 * torch.tanh(hidden @ weight.t() / 2) / 0.7
    plain = torch.log_softmax(logits, -1)
    entropy = -(plain.exp() * plain).sum(-1)
    query = LogprobQuery(0.7, entropy=True, cap=2.0)
    result = query_logprobs(hidden, weight, chosen, None, query)
    torch.testing.assert_close(result.logp, plain.gather(1, chosen[:, None])[:, 0])
    expected = torch.autograd.grad(plain.gather(1, chosen[:, None]).sum() + 2 * entropy.sum(), (hidden, weight))
    gradients = torch.autograd.grad(result.logp.sum() + 2 * result.entropy.sum(), (hidden, weight))
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other)
    best = top_k_tokens(hidden, weight, 0.7, 3, cap=2.0)
    torch.testing.assert_close(best.logp, plain.topk(3).values)


def test_pairs_of_attention_follow_the_windows():
    """Texts of 3 and 1 tokens: 1 + 2 + 3 + 1 = 7 pairs; 1 + 2 + 2 + 1 = 6 in a layer with a window of 2."""
    positions = torch.tensor([0, 1, 2, 0])
    assert attended_pairs(small("gemma2", sliding_window=None).config, positions) == 7
    assert attended_pairs(small("gemma2", sliding_window=2).config, positions) == 6.5


def test_every_family_is_tried():
    known = {kind.model_type for kind, _ in CASES.values()} | {"qwen3_moe", "mixtral", "olmoe"}
    assert known == set(FAMILY_DESIGNS)
