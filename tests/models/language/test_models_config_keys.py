"""Keys of a `config.json`: whatever changes the logits of transformers is followed or refused by name."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub.errors import StrictDataclassError

from hone.core.errors import DataError
from hone.models.language.config import ModelConfig, model_config_from_hf
from hone.models.language.expert_config import ExpertsConfig
from hone.models.language.families import FAMILY_DESIGNS
from hone.models.language.hf_checkpoint import load_model
from hone.models.packing import pack_rows

FAMILIES = ("llama", "qwen3", "mixtral")
"""A plain family, one with norms of queries and keys and optional windows, one with experts; others are slow tests."""
OTHERS = tuple(family for family in FAMILY_DESIGNS if family not in FAMILIES)
EXPERTS = {
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2, "eos_token_id": None},
}
TEXT = np.random.default_rng(0).integers(0, 50, size=60).astype(np.int32)
FOREIGN = {
    "partial_rotary_factor": 0.5, "rotary_pct": 0.25, "is_causal": False, "attention_bias": True, "mlp_bias": True,
    "qkv_bias": "?", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "query_pre_attn_scalar": 64,
    "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 8.0, "attention_multiplier": 0.01,
    "logit_scale": 0.0625, "scale_emb": 12, "use_qk_norm": "?", "attention_chunk_size": 8, "sliding_window": 8,
    "layer_types": ["full_attention", "sliding_attention"], "use_parallel_residual": True, "alibi": True,
    "quantization_config": {"quant_method": "gptq", "bits": 4}, "quantization": {"group_size": 64, "bits": 4},
    "per_layer_config": {"0": {"rms_norm_eps": 0.5}}, "num_experts": 8, "num_local_experts": 8, "n_routed_experts": 64,
    "no_rope_layers": [1, 0], "num_kv_shared_layers": 1, "tie_word_embeddings": "true",
    "moe_intermediate_size": 64, "auto_map": {"AutoModel": "x.X"},
    "is_encoder_decoder": True, "zero_centered_gamma": True, "a_key_of_tomorrow": 0,
}  # fmt: skip
"""Keys of other families, or of none, at values that mean something there."""


@pytest.fixture(scope="module", params=[*FAMILIES, *(pytest.param(one, marks=pytest.mark.slow) for one in OTHERS)])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = transformers.AutoConfig.for_model(
        request.param, vocab_size=50, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=12, max_position_embeddings=64, initializer_range=0.2, pad_token_id=None,
        sliding_window=64 if FAMILY_DESIGNS[request.param].windowed == "pattern" else None,
        **({"use_sliding_window": True, "max_window_layers": 0} if "qwen" in request.param else {}),
        **EXPERTS.get(request.param, {}),
    )  # fmt: skip
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp(request.param)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) / 4)
    model.save_pretrained(path)
    saved = json.loads((path / "config.json").read_text())
    saved.pop("layer_types", None)  # they would switch windows off
    (path / "original.json").write_text(json.dumps(saved))
    return path


def values_beside(value: object) -> list[object]:
    """Other values that a key may have, by the type of the one it has."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, 2 * value, max(value // 2, 1), 0]
    if isinstance(value, float):
        return [2 * value, 0.0, 0.5]
    if isinstance(value, str):
        return ["gelu", "relu"]
    return [True, 1, 8, 0.5, ["full_attention", "sliding_attention"], ["sliding_attention"] * 2]


def config_keys(family: str, saved: Mapping[str, object]) -> dict[str, object]:
    """Every key of the family's config class with its value here."""
    fields = dataclasses.fields(transformers.CONFIG_MAPPING[family])
    return {field.name: saved.get(field.name) for field in fields if field.name not in ("rope_parameters", "dtype")}


def logits_of_transformers(folder: Path) -> torch.Tensor | None:
    """None where transformers does not take the config."""
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        with torch.no_grad():
            return model(torch.from_numpy(TEXT[None].astype(np.int64)), return_dict=True).logits[0]
    except (StrictDataclassError, ValueError, TypeError, RuntimeError, LookupError, ArithmeticError, AttributeError):
        return None


def follows_or_refuses(folder: Path, key: str, value: object) -> str:
    """Check one changed key. Returns "refused" or "followed"."""
    changed = {**json.loads((folder / "original.json").read_text()), key: value}
    (folder / "config.json").write_text(json.dumps(changed))
    try:
        model = load_model(folder)
    except DataError as error:
        assert key in str(error) or "has shape" in str(error) or "tensor " in str(error), (key, value, str(error))
        return "refused"
    with torch.no_grad():
        ours = model.logits(model.hidden(pack_rows([TEXT])))
    expected = logits_of_transformers(folder)
    assert expected is None or torch.allclose(ours, expected, rtol=0, atol=4e-5), (
        (key, value),
        float((ours - expected).abs().max()),
    )
    return "followed"


def test_every_key_of_the_family_is_followed_or_refused(folder):
    saved = json.loads((folder / "original.json").read_text())
    (folder / "config.json").write_text(json.dumps(saved))
    assert logits_of_transformers(folder) is not None
    outcomes = {
        (key, str(value)): follows_or_refuses(folder, key, value)
        for key, old in config_keys(saved["model_type"], saved).items()
        for value in values_beside(old)
    }
    assert outcomes[FAMILY_DESIGNS[saved["model_type"]].eps_key, "0.5"] == "followed"
    assert outcomes["use_cache", "False"] == "followed"
    gates = "hidden_activation" if FAMILY_DESIGNS[saved["model_type"]].gelu else "hidden_act"
    assert outcomes[gates, "gelu"] == "refused"
    assert outcomes.get(("sliding_window", "8"), "followed") == "followed"


def test_keys_of_other_families_are_followed_or_refused(folder):
    design = FAMILY_DESIGNS[json.loads((folder / "original.json").read_text())["model_type"]]
    own = (
        design.keys | {"attention_bias"} | ({"sliding_window", "layer_types"} if design.windowed != "never" else set())
    )
    for key, value in FOREIGN.items():
        values = [False, True] if value == "?" else [value]
        outcomes = {follows_or_refuses(folder, key, one) for one in values}
        if value != "?" and key not in own:
            assert outcomes == {"refused"}, key


BASE = {
    "model_type": "llama", "vocab_size": 8, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 2,
    "num_attention_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip


@pytest.mark.parametrize("key", FOREIGN)
def test_null_means_that_a_key_is_off(key):
    model_config_from_hf({**BASE, key: None})


def test_values_that_mean_off_are_taken_and_written_back():
    off = {
        "partial_rotary_factor": 1.0, "logits_scaling": 1, "residual_multiplier": 1.0, "is_causal": True,
        "pruned_heads": {}, "layer_types": ["full_attention"] * 2, "sliding_window": 64, "use_mrope": False,
        "num_experts": 0, "temperature": 0.7, "_name_or_path": "x", "_model_name_or_path": "y", "unsloth_fixed": True,
        "pad_token_id": 3,
    }  # fmt: skip
    written = model_config_from_hf({**BASE, **off}).to_hf()
    assert written.items() >= off.items()


def test_a_shallower_model_has_as_many_layer_types():
    deep = model_config_from_hf({**BASE, "layer_types": ["full_attention"] * 2})
    shallow = dataclasses.replace(deep, layers=1)
    assert shallow.to_hf()["layer_types"] == ["full_attention"]
    assert model_config_from_hf(shallow.to_hf()).layers == 1


WRONG = [
    ({"attention_bias": "false"}, "attention_bias must be true or false, got 'false'"),
    ({"tie_word_embeddings": 1}, "tie_word_embeddings must be true or false, got 1"),
    ({"rms_norm_eps": None}, "rms_norm_eps must be a number of at least 0, got None"),
    ({"rms_norm_eps": "1e-6"}, "rms_norm_eps must be a number of at least 0, got '1e-6'"),
    ({"num_key_value_heads": "2"}, "num_key_value_heads must be a whole number of at least 1, got '2'"),
    ({"head_dim": 8.0}, "head_dim must be a whole number of at least 1, got 8.0"),
    ({"max_position_embeddings": True}, "max_position_embeddings must be a whole number of at least 1, got True"),
    (
        {"layer_types": ["full_attention"]},
        "layer_types ['full_attention'] must be full_attention for each of the num_hidden_layers (2)",
    ),
    ({"a_key_of_tomorrow": 0.5}, "unknown key a_key_of_tomorrow 0.5: hone cannot tell whether it changes"),
    ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0 is not supported; known: null"),
    ({"num_experts": True}, "num_experts True is not supported; families with experts: qwen3_moe"),
]


@pytest.mark.parametrize(("change", "told"), WRONG)
def test_faults_name_file_key_and_value(change, told):
    with pytest.raises(DataError) as error:
        model_config_from_hf({**BASE, **change}, where="some/config.json")
    assert [message for message in error.value.messages if f"some/config.json: {told}" in message]


def test_shapes_that_make_no_model_name_the_file():
    with pytest.raises(DataError, match=r"some/config.json: model heads 2 \(num_attention_heads\) must be a multiple"):
        model_config_from_hf({**BASE, "num_key_value_heads": 3}, where="some/config.json")


def test_all_faults_are_told_at_once():
    changes = {key: value for change, _ in WRONG for key, value in change.items()}
    with pytest.raises(DataError) as error:
        model_config_from_hf({**BASE, **changes})
    assert len(error.value.messages) == len(changes)


def test_hones_own_configs_are_read_back():
    for family in FAMILIES:
        experts = ExpertsConfig(count=3, per_token=2, width=8) if family in EXPERTS else None
        config = ModelConfig(
            family=family, vocab_size=8, hidden_size=16, intermediate_size=8, layers=1, heads=2, experts=experts
        )
        assert model_config_from_hf(model_config_from_hf(config.to_hf()).to_hf()) == model_config_from_hf(
            config.to_hf()
        )
