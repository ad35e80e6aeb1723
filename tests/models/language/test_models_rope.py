"""Scalings of rotary positions: in every spelling of a `config.json`, the logits are those of transformers."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from hone.core.errors import DataError
from hone.models.language.config import model_config_from_hf
from hone.models.language.decoder import Decoder
from hone.models.language.hf_checkpoint import load_model, save_model
from hone.models.packing import pack_rows

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
ORIGINAL, THETA = 32, 500.0
TEXT = np.random.default_rng(0).integers(0, 50, size=200).astype(np.int32)
CONTEXT = {"original_max_position_embeddings": ORIGINAL}
SCALINGS = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **CONTEXT},
    "yarn": {"factor": 4.0, **CONTEXT},
    "yarn-borders": {"factor": 8, **CONTEXT, "beta_fast": 4, "beta_slow": 0.5, "truncate": False},
    "yarn-attention": {"factor": 4.0, **CONTEXT, "attention_factor": 0.8, "beta_fast": None},
    "yarn-mscale": {"factor": 40.0, **CONTEXT, "mscale": 1.0, "mscale_all_dim": 0.5},
    "longrope": {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16, **CONTEXT},
    "longrope-factors": {"short_factor": [1.0] * 16, "long_factor": [1.5] * 16, "factor": 3.0, **CONTEXT,
                         "attention_factor": 1.3},
    "dynamic": {"factor": 2.0},
    "yarn-shrinking": {"factor": 0.5, "original_max_position_embeddings": 64, "mscale": 0.7},
}  # fmt: skip


def spelled(kind: str, spelling: str) -> dict[str, object]:
    settings, name = SCALINGS[kind], kind.partition("-")[0]
    new = {"rope_parameters": {**settings, "rope_type": name, "rope_theta": THETA}}
    scaling = {**settings, ("type" if spelling == "type" else "rope_type"): name}
    plain = {"rope_type": "default", "rope_theta": THETA}
    return {
        "rope_parameters": new,
        "rope_type": {"rope_scaling": scaling, "rope_theta": THETA},
        "type": {"rope_scaling": scaling, "rope_theta": THETA},
        "beside": {"rope_scaling": scaling, "rope_theta": THETA, "rope_parameters": plain},
        "twice": {"rope_scaling": {**scaling, "rope_theta": THETA}, **new},
    }[spelling]


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of transformers; the tests replace its settings of rotary positions."""
    config = transformers.AutoConfig.for_model(
        request.param, vocab_size=50, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=256, initializer_range=0.2, sliding_window=None,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
    )  # fmt: skip
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp(request.param)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(path)
    return path


def with_rope(folder: Path, settings: dict[str, object]) -> None:
    file = folder / "config.json"
    old = json.loads(file.read_text())
    kept = {key: value for key, value in old.items() if not key.startswith(("rope_", "original_max"))}
    file.write_text(json.dumps({**kept, **settings}))


def their_logits(folder: Path) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(torch.from_numpy(TEXT[None].astype(np.int64))).logits[0]


def our_logits(folder: Path) -> torch.Tensor:
    return logits_of(load_model(folder))


def logits_of(model: Decoder) -> torch.Tensor:
    with torch.no_grad():
        return model.logits(model.hidden(pack_rows([TEXT])))


SPELLINGS = ("rope_parameters", "rope_type", "type", "beside", "twice")
CASES = [
    (kind, spelling) for kind in SCALINGS for spelling in SPELLINGS if spelling in SPELLINGS[:3:2] or kind == "yarn"
]


@pytest.mark.parametrize(("kind", "spelling"), CASES)
def test_logits_are_those_of_transformers(folder, kind, spelling, tmp_path):
    with_rope(folder, spelled(kind, spelling))
    model, expected = load_model(folder), their_logits(folder)
    torch.testing.assert_close(logits_of(model), expected, rtol=0, atol=4e-5)
    save_model(model, tmp_path, tokenizer_from=None)
    torch.testing.assert_close(our_logits(tmp_path), expected, rtol=0, atol=4e-5)
    if spelling == SPELLINGS[0]:  # written in one way, whatever way was read
        torch.testing.assert_close(their_logits(tmp_path), expected, rtol=0, atol=4e-5)


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn"])
def test_a_scaling_is_not_a_detail(folder, kind):
    with_rope(folder, spelled(kind, "type"))
    scaled = our_logits(folder)
    with_rope(folder, spelled("default", "type"))
    assert (scaled - our_logits(folder)).abs().max() > 0.1


@pytest.mark.parametrize("kind", ["yarn", "yarn-attention"])
def test_compiled_kernels_and_torch_agree_on_values_and_gradients(folder, kind, monkeypatch):
    with_rope(folder, spelled(kind, "rope_parameters"))
    results = []
    for switch in ("1", "0"):
        monkeypatch.setenv("HONE_NATIVE", switch)
        model = load_model(folder)
        loss = model.hidden(pack_rows([TEXT[:70], TEXT[:3]])).square().mean()
        loss.backward()
        results.append([loss.detach(), *(parameter.grad for parameter in model.layers.parameters())])
    for compiled, by_torch in zip(*results, strict=True):
        torch.testing.assert_close(compiled, by_torch, rtol=1e-4, atol=1e-6)


def test_a_key_beside_the_settings_sets_the_original_context_as_in_transformers(folder):
    for kind in ("yarn", "llama3"):
        with_rope(folder, {**spelled(kind, "type"), "original_max_position_embeddings": 2 * ORIGINAL})
        torch.testing.assert_close(our_logits(folder), their_logits(folder), rtol=0, atol=4e-5)


BASE = {
    "model_type": "llama", "vocab_size": 8, "hidden_size": 16, "intermediate_size": 8, "num_hidden_layers": 1,
    "num_attention_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
REFUSED = [
    ({"rope_type": "dynamic", "factor": 0}, "factor must be a number > 0 for rope type 'dynamic', got 0"),
    ({"type": "longrope", "short_factor": [1.0] * 4, "long_factor": 2.0, "original_max_position_embeddings": 16},
     "long_factor must be a list of numbers > 0 for rope type 'longrope', got 2.0"),
    ({"rope_type": "proportional", "partial_rotary_factor": 0.5}, "rope type 'proportional'"),
    ({"rope_type": None}, "rope type None"),
    ({**YARN, "type": "linear"}, "has rope_type 'yarn' and type 'linear'"),
    ({**YARN, "factor": "4"}, "factor must be a number > 0 for rope type 'yarn', got '4'"),
    ({**YARN, "factor": True}, "factor must be a number > 0 for rope type 'yarn', got True"),
    ({**YARN, "factor": float("nan")}, "factor must be a number > 0 for rope type 'yarn', got nan"),
    ({**YARN, "original_max_position_embeddings": None}, "original_max_position_embeddings must be a number > 0"),
    ({**YARN, "attention_factor": 0.0}, "attention_factor must be a number > 0 for rope type 'yarn', got 0.0"),
    ({**YARN, "truncate": "no"}, "truncate must be true or false, got 'no'"),
    ({**YARN, "rope_theta": 1}, "rope_theta must be above 1 for rope type 'yarn', got 1"),
    ({**YARN, "partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5 is not a setting of rope type 'yarn'"),
    ({"type": "linear", "factor": 2.0, "attention_factor": 2.0}, "attention_factor = 2.0 is not a setting"),
    ({"rope_type": "default", "factor": 2.0}, "factor = 2.0 is not a setting of rope type 'default'"),
    ({"rope_type": "default", "mrope_section": [2, 1, 1]}, "mrope_section = [2, 1, 1] is not a setting"),
    ({"full_attention": {"rope_type": "yarn"}}, "full_attention = {'rope_type': 'yarn'} is not a setting"),
    ({"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0,
      "original_max_position_embeddings": 8}, "low_freq_factor 4.0 must be below high_freq_factor 4.0"),
    ([4.0], "must be an object, got [4.0]"),
    ({"rope_type": ["yarn"]}, "rope type ['yarn'] is not supported"),
    ({**YARN, "factor": 10**400}, "factor must be a number > 0 for rope type 'yarn', got 1000"),
]  # fmt: skip


@pytest.mark.parametrize("key", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(("settings", "told"), REFUSED)
def test_settings_that_are_not_computed_are_refused_by_name(key, settings, told):
    with pytest.raises(DataError) as error:
        model_config_from_hf({**BASE, key: settings}, where="some/config.json")
    assert f"some/config.json: {key}: " in str(error.value) and told in str(error.value)


def test_two_spellings_that_disagree_are_refused():
    """transformers would take rope_scaling, and lose the rope_theta of the other."""
    new = {"rope_type": "default", "rope_theta": 1e6}
    with pytest.raises(DataError, match=r"rope_scaling .* and rope_parameters .* disagree .*; keep the right one"):
        model_config_from_hf({**BASE, "rope_parameters": new, "rope_scaling": YARN})
    with pytest.raises(DataError, match="disagree"):
        model_config_from_hf({**BASE, "rope_parameters": YARN, "rope_scaling": {**YARN, "factor": 2.0}})
    together = model_config_from_hf({**BASE, "rope_parameters": new, "rope_scaling": {**YARN, "rope_theta": 1e6}})
    assert (together.rope.kind, together.rope.theta) == ("yarn", 1e6)


def test_a_fault_in_one_spelling_is_told_once_and_alone():
    with pytest.raises(DataError) as error:
        model_config_from_hf({**BASE, "rope_parameters": {**YARN, "factor": 0}, "rope_scaling": YARN})
    assert len(error.value.messages) == 1
    assert "rope_parameters: factor must be a number > 0" in error.value.messages[0]


def test_all_faults_of_the_settings_are_told_at_once():
    broken = {"rope_type": "yarn", "factor": -1, "truncate": 3, "beta_fast": "x", "finetuned": True, "other": 1}
    with pytest.raises(DataError) as error:
        model_config_from_hf({**BASE, "rope_scaling": broken})
    told = "\n".join(error.value.messages)
    assert len(error.value.messages) == 5
    assert all(
        word in told for word in ("factor", "truncate", "beta_fast", "other", "original_max_position_embeddings")
    )
