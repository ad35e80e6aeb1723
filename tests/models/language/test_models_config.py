"""A config.json read and written: every family, both spellings of rotary settings, and what is refused."""

import pytest

from hone.core.errors import DataError
from hone.models.language.config import ModelConfig, RopeConfig, model_config_from_hf

BASE = {
    "model_type": "llama",
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_config_survives_the_round_trip(family):
    config = ModelConfig(
        family=family, vocab_size=40, hidden_size=32, intermediate_size=64, layers=2, heads=4, kv_heads=2, head_dim=16
    )
    once = model_config_from_hf(config.to_hf())
    assert model_config_from_hf(once.to_hf()) == once
    assert once.to_hf() == config.to_hf()


def test_unknown_harmless_keys_are_kept():
    config = model_config_from_hf({**BASE, "model_type": "qwen2", "initializer_range": 0.01, "use_cache": True})
    assert config.to_hf()["initializer_range"] == 0.01
    assert config.to_hf()["use_cache"] is True


def test_defaults_of_a_sparse_file():
    config = model_config_from_hf(BASE)
    assert (config.kv_heads, config.head_dim, config.norm_eps, config.rope.theta) == (4, 8, 1e-6, 10000.0)
    assert model_config_from_hf({**BASE, "model_type": "qwen3"}).head_dim == 128  # transformers' default


def test_old_and_new_spelling_of_rotary_settings_agree():
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    old = model_config_from_hf({**BASE, "rope_theta": 500000.0, "rope_scaling": scaling})
    new = model_config_from_hf({**BASE, "rope_parameters": {**scaling, "rope_theta": 500000.0}})
    assert old == new
    assert old.rope == RopeConfig(theta=500000.0, kind="llama3", factor=8.0, original_max_positions=64)
    legacy = model_config_from_hf({**BASE, "rope_scaling": {"type": "linear", "factor": 2.0}})
    assert legacy.rope == RopeConfig(kind="linear", factor=2.0)


def test_biases_by_family():
    llama = model_config_from_hf({**BASE, "attention_bias": True, "mlp_bias": True})
    assert (llama.qkv_bias, llama.output_bias, llama.mlp_bias) == (True, True, True)
    qwen2 = model_config_from_hf({**BASE, "model_type": "qwen2"})
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.mlp_bias) == (True, False, False)


REFUSED = [
    ({"model_type": "nonesuch"}, "model_type 'nonesuch'"),
    ({"auto_map": {"AutoModelForCausalLM": "modeling_x.X"}}, "trust_remote_code"),
    ({"num_local_experts": 8}, "num_local_experts 8"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn'"),
    ({"rope_parameters": {"rope_type": "llama3", "factor": 4.0}}, "low_freq_factor"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    ({"vocab_size": None}, "vocab_size"),
    ({"vocab_size": "40"}, "got '40'"),
    ({"model_type": "mistral", "sliding_window": "8"}, "sliding_window must be a whole number"),
    ({"model_type": "qwen2", "layer_types": ["full_attention", "sliding_attention"]}, "use_sliding_window is not true"),
    ({"model_type": "qwen3", "layer_types": ["full_attention", "chunked_attention"]}, "layer_types"),
    ({"model_type": "gemma2", "layer_types": ["sliding_attention"]}, "for each of the num_hidden_layers (2)"),
    ({"model_type": "gemma2", "query_pre_attn_scalar": 0}, "query_pre_attn_scalar must be a number > 0, got 0"),
    ({"model_type": "gemma2", "hidden_activation": "gelu"}, "hidden_activation 'gelu' is not supported"),
    ({"model_type": "olmo3", "layer_types": ["sliding_attention"] * 2, "sliding_window": None}, "give the window"),
    (
        {"model_type": "smollm3", "no_rope_layers": [1]},
        "no_rope_layers must be 0 or 1 for each of the num_hidden_layers (2)",
    ),
    ({"model_type": "smollm3", "no_rope_layer_interval": 0}, "no_rope_layer_interval must be a whole number of at"),
    ({"model_type": "olmo3", "rope_parameters": {"rope_type": "default"}}, "must have full_attention and sliding_"),
    ({"model_type": "glm4", "partial_rotary_factor": 0}, "partial_rotary_factor must be above 0 and at most 1, got 0"),
    ({"model_type": "glm4", "head_dim": 6}, "partial_rotary_factor 0.5 turns 3 of head_dim 6"),
]
WINDOWS = [
    ({"model_type": "mistral", "sliding_window": 8}, (8, 8)),
    ({"model_type": "mistral", "sliding_window": 131072}, (None, None)),  # as long as the context
    ({"model_type": "mistral", "sliding_window": 131071}, (131071, 131071)),
    ({"model_type": "mistral", "sliding_window": None}, (None, None)),
    ({"model_type": "mistral"}, (4096, 4096)),  # the default of transformers
    ({"model_type": "qwen2", "sliding_window": 8}, (None, None)),
    ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8}, (None, None)),  # from layer 28 on
    ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, (None, 8)),
    ({"model_type": "gemma3_text"}, (4096, 4096)),
    ({"model_type": "gemma2", "sliding_window": 8}, (8, None)),
    ({"model_type": "cohere2", "sliding_window": 8, "layer_types": ["full_attention", "sliding_attention"]}, (None, 8)),
    ({"model_type": "smollm3", "use_sliding_window": True, "sliding_window": 8, "no_rope_layers": [0, 1]}, (8, None)),
]


@pytest.mark.parametrize(("change", "windows"), WINDOWS)
def test_windows_of_layers(change, windows):
    config = model_config_from_hf({**BASE, "num_key_value_heads": 2, **change})
    assert config.switches.windows == windows
    assert model_config_from_hf(config.to_hf()) == config


def test_code_that_came_with_a_model_is_not_asked_for_where_transformers_has_its_classes():
    named = {"AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}
    assert "auto_map" not in model_config_from_hf({**BASE, "model_type": "phi3", "auto_map": named}).to_hf()


@pytest.mark.parametrize(("change", "said"), REFUSED)
def test_what_hone_does_not_know_is_refused(change, said):
    with pytest.raises(DataError) as error:
        model_config_from_hf({**BASE, **change}, where="some/config.json")
    assert said in str(error.value)
    assert "some/config.json" in str(error.value)


def test_all_faults_are_reported_at_once():
    with pytest.raises(DataError) as error:
        model_config_from_hf({**BASE, "model_type": "nonesuch", "hidden_size": 0, "hidden_act": "gelu"})
    assert len(error.value.messages) == 3


def test_shapes_that_make_no_model():
    with pytest.raises(DataError, match="multiple of kv_heads 3"):
        ModelConfig(vocab_size=8, hidden_size=16, intermediate_size=8, layers=1, heads=4, kv_heads=3)
    with pytest.raises(DataError, match="head_dim must be even"):
        ModelConfig(vocab_size=8, hidden_size=12, intermediate_size=8, layers=1, heads=4)
    with pytest.raises(DataError) as error:
        ModelConfig(vocab_size=0, hidden_size=16, intermediate_size=8, layers=0, heads=4)
    assert len(error.value.messages) == 2
