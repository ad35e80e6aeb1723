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
    ({"model_type": "gpt2"}, "model_type 'gpt2'"),
    ({"auto_map": {"AutoModelForCausalLM": "modeling_x.X"}}, "trust_remote_code"),
    ({"num_local_experts": 8}, "num_local_experts 8"),
    ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope type 'yarn'"),
    ({"rope_parameters": {"rope_type": "llama3", "factor": 4.0}}, "low_freq_factor"),
    ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
    ({"quantization_config": {"bits": 4}}, "quantization_config"),
    ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    ({"vocab_size": None}, "vocab_size"),
    ({"vocab_size": "40"}, "got '40'"),
    ({"model_type": "mistral", "sliding_window": 8, "max_position_embeddings": 64}, "sliding_window 8"),
    ({"model_type": "mistral"}, "sliding_window 4096"),
    (
        {"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
        "use_sliding_window",
    ),
    ({"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
]


@pytest.mark.parametrize(("change", "said"), REFUSED)
def test_what_hone_does_not_know_is_refused(change, said):
    with pytest.raises(DataError) as error:
        model_config_from_hf({**BASE, **change}, where="some/config.json")
    assert said in str(error.value)
    assert "some/config.json" in str(error.value)


def test_a_window_that_is_never_reached_is_accepted():
    mistral = {**BASE, "model_type": "mistral", "num_key_value_heads": None}
    model_config_from_hf({**mistral, "sliding_window": 64, "max_position_embeddings": 64})
    model_config_from_hf({**mistral, "sliding_window": None})
    model_config_from_hf({**BASE, "model_type": "qwen2", "use_sliding_window": False, "sliding_window": 8})
    model_config_from_hf(
        {**BASE, "model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8}
    )  # layer 28 on


def test_all_faults_are_reported_at_once():
    with pytest.raises(DataError) as error:
        model_config_from_hf({**BASE, "model_type": "gpt2", "hidden_size": 0, "hidden_act": "gelu"})
    assert len(error.value.messages) == 3


def test_shapes_that_make_no_model():
    with pytest.raises(DataError, match="multiple of kv_heads 3"):
        ModelConfig(vocab_size=8, hidden_size=16, intermediate_size=8, layers=1, heads=4, kv_heads=3)
    with pytest.raises(DataError, match="head_dim must be even"):
        ModelConfig(vocab_size=8, hidden_size=12, intermediate_size=8, layers=1, heads=4)
    with pytest.raises(DataError) as error:
        ModelConfig(vocab_size=0, hidden_size=16, intermediate_size=8, layers=0, heads=4)
    assert len(error.value.messages) == 2
