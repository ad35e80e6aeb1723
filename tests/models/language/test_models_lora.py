"""Low-rank adapters: gradients of autograd through W0 + scale B A, transformers' forward pass, bits, folders."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch.func import functional_call

from hone.core.errors import ConfigError, DataError
from hone.models.language.config import ModelConfig
from hone.models.language.expert_config import ExpertsConfig
from hone.models.language.hf_checkpoint import load_model, load_with_adapter, read_config, save_model
from hone.models.language.init import new_model
from hone.models.language.lora import LoraAdapter, LoraConfig, suggested_rate_factor, weights_sha256
from hone.models.language.peft_folder import save_adapter
from hone.models.packing import pack_rows

PREFIX = "base_model.model."
SIZES = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.2,
}  # fmt: skip
FAMILIES = {
    "llama": transformers.LlamaConfig(**SIZES, tie_word_embeddings=False),
    "qwen2": transformers.Qwen2Config(**SIZES, tie_word_embeddings=True),
    "qwen3": transformers.Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True),
}
CONFIG = ModelConfig(
    family="qwen3", vocab_size=50, hidden_size=16, intermediate_size=24, layers=2, heads=2, kv_heads=1, head_dim=8
)  # fmt: skip


def shaken(adapter: LoraAdapter, seed: int = 0) -> LoraAdapter:
    """The adapter with other numbers in A and B, merged."""
    draws = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, factor in adapter.factors():
            factor.add_(0.1 * torch.randn(factor.shape, generator=draws, dtype=factor.dtype))
    adapter.merge()
    return adapter


def new_adapter(lora: LoraConfig, *, dtype: str = "float64", seed: int = 0) -> LoraAdapter:
    decoder = new_model(CONFIG, seed=1, dtype=dtype)
    adapter = LoraAdapter(decoder, lora.settings(CONFIG), base_folder=Path("base"), base_sha256="")
    return adapter.initialise(seed=seed)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    save_model(new_model(CONFIG, seed=1), tmp_path / "base", tokenizer_from=None)
    return tmp_path / "base"


def tokens(count: int = 9, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 50, count).astype(np.int32)


def loss_of(decoder, number: int) -> torch.Tensor:
    return (decoder.hidden(pack_rows([tokens(), tokens(5, number)])) * math.pi).sin().sum()


@examples(12)
@given(
    rank=st.integers(1, 8),
    layers=st.sampled_from(["all", "attention", "mlp", ["q_proj", "v_proj"], ["k_proj", "down_proj"]]),
    alpha=st.sampled_from([1.0, 32.0]),
    seed=st.integers(0, 99),
)
def test_gradients_equal_those_of_autograd_through_the_product(rank, layers, alpha, seed):
    adapter = shaken(new_adapter(LoraConfig(rank=rank, layers=layers, alpha=alpha), seed=seed), seed)
    loss_of(adapter.decoder, seed).backward()
    found = dict(adapter.factor_gradients({name: weight.grad for name, weight in adapter.weights.items()}))
    scale = alpha / rank
    weights = {name: parameter.detach() for name, parameter in adapter.decoder.named_parameters()}
    for name, weight in adapter.base.items():
        whole, updates = (
            weight.clone(),
            [one for one in adapter.updates.values() if one.merged is adapter.weights[name]],
        )
        for update in updates:
            product = torch.zeros_like(whole).index_add(
                0, torch.arange(update.piece.start, update.piece.start + update.piece.rows), update.b @ update.a
            )
            whole = whole + scale * product
        weights[name] = whole

    def outside(packed):
        return functional_call(adapter.decoder, weights, (packed,))

    adapter.decoder.forward = adapter.decoder.hidden
    packed = pack_rows([tokens(), tokens(5, seed)])
    (outside(packed) * math.pi).sin().sum().backward()
    assert set(found) == {name for name, _ in adapter.factors()}
    for name, factor in adapter.factors():
        torch.testing.assert_close(found[name], factor.grad, rtol=1e-9, atol=1e-9)
        assert float(factor.grad.abs().max()) > 0


@pytest.mark.parametrize("name", FAMILIES)
def test_a_saved_adapter_is_what_peft_computes(name, tmp_path):
    """By PEFT's own arithmetic on transformers' model: y = x W0^T + scale (x A^T) B^T, from the files."""
    torch.manual_seed(1)
    theirs = transformers.AutoModelForCausalLM.from_config(FAMILIES[name]).eval()
    theirs.save_pretrained(tmp_path / "base")
    adapter = shaken(load_with_adapter(tmp_path / "base", LoraConfig(rank=4, alpha=8.0), seed=3))
    save_adapter(adapter, tmp_path / "adapter")
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    scale = config["lora_alpha"] / config["r"]
    adapted = 0
    for module_name, module in theirs.named_modules():
        if module_name.rpartition(".")[2] in config["target_modules"]:
            a, b = (tensors.pop(f"{PREFIX}{module_name}.lora_{side}.weight") for side in "AB")
            module.register_forward_hook(lambda _, x, y, a=a, b=b: y + scale * (x[0] @ a.t()) @ b.t())
            adapted += 1
    assert adapted == 14 and not tensors
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens().astype(np.int64))[None]).logits[0]
        for decoder in (adapter.decoder, load_model(tmp_path / "adapter")):
            found = decoder.logits(decoder.hidden(pack_rows([tokens()])))
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
        plain = adapter.base_decoder()
        assert not torch.allclose(plain.logits(plain.hidden(pack_rows([tokens()]))), expected, atol=0.1)


def test_a_new_adapter_changes_nothing_and_begins_as_in_peft(base):
    adapter = load_with_adapter(base, LoraConfig(rank=5), seed=3)
    before = weights_sha256(adapter.decoder)
    adapter.merge()
    assert weights_sha256(adapter.decoder) == before == adapter.base_sha256 == weights_sha256(load_model(base))
    for update in adapter.updates.values():
        bound = update.a.shape[1] ** -0.5
        assert 0.6 * bound < float(update.a.detach().abs().max()) <= bound
        assert abs(float(update.a.detach().mean())) < 0.4 * bound
        assert not update.b.any()
    again = load_with_adapter(base, LoraConfig(rank=5), seed=3)
    other = load_with_adapter(base, LoraConfig(rank=5), seed=4)
    first = [next(iter(one.updates.values())).a for one in (adapter, again, other)]
    assert torch.equal(first[0], first[1]) and not torch.equal(first[0], first[2])


def test_merged_weights_are_a_function_of_base_and_adapter(base, tmp_path):
    """To the bit: merged many times, out and back, and read from a folder."""
    adapter = load_with_adapter(base, LoraConfig(rank=3), seed=3)
    for step in range(30):
        shaken(adapter, step)
    bits = weights_sha256(adapter.decoder)
    adapter.merge()
    assert weights_sha256(adapter.decoder) == bits
    save_adapter(adapter, tmp_path / "adapter")
    assert weights_sha256(load_model(tmp_path / "adapter")) == bits
    continued = load_with_adapter(tmp_path / "adapter", LoraConfig(rank=3), seed=9)
    assert weights_sha256(continued.decoder) == bits and not continued.starts_at_base
    save_adapter(continued, tmp_path / "again")
    for name in ("adapter_model.safetensors", "adapter_config.json", "adapter_base.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "adapter" / name).read_bytes()
    with torch.no_grad():
        for _, factor in adapter.factors():
            factor.zero_()
    adapter.merge()
    assert weights_sha256(adapter.decoder) == adapter.base_sha256


def test_the_base_shares_the_memory_of_what_is_not_adapted(base):
    adapter = shaken(load_with_adapter(base, LoraConfig(rank=2, layers="attention"), seed=3))
    reference, own = dict(adapter.base_decoder().named_parameters()), dict(adapter.decoder.named_parameters())
    original = dict(load_model(base).named_parameters())
    for name, parameter in reference.items():
        held = adapter.base.get(name, own[name])
        assert parameter.data_ptr() == held.data_ptr() and not parameter.requires_grad
        assert torch.equal(parameter, original[name])
    assert sorted(adapter.base) == [f"layers.{n}.{part}.weight" for n in (0, 1) for part in ("out", "qkv")]
    assert {name for name, parameter in own.items() if parameter.requires_grad} == set(adapter.base)


@pytest.mark.parametrize("layers", ["all", "attention", ["q_proj"]])
def test_counts_are_those_of_the_tensors(layers, base):
    adapter = load_with_adapter(base, LoraConfig(rank=3, layers=layers), seed=0)
    assert adapter.settings.count(CONFIG) == sum(factor.numel() for _, factor in adapter.factors())
    assert adapter.settings.adapted_weights(CONFIG) == sum(weight.numel() for weight in adapter.base.values())


def test_the_rate_rule_is_one_up_to_width_36():
    assert [suggested_rate_factor(width) for width in (16, 36, 144)] == [1.0, 1.0, 2.0]
    assert suggested_rate_factor(4096) == pytest.approx(10.67, abs=0.01)


def test_blocks_may_have_different_layers(base, tmp_path):
    """PEFT's layers_to_transform: read as it is, and written with full names."""
    folder = tmp_path / "adapter"
    save_adapter(shaken(load_with_adapter(base, LoraConfig(rank=2), seed=0)), folder)
    file = folder / "adapter_model.safetensors"
    save_file({name: tensor for name, tensor in load_file(file).items() if ".layers.1." in name}, file)
    model, plain = load_model(folder), load_model(base)
    assert torch.equal(model.layers[0].qkv.weight, plain.layers[0].qkv.weight)
    assert not torch.equal(model.layers[1].qkv.weight, plain.layers[1].qkv.weight)
    with pytest.raises(ConfigError, match="in some blocks only"):
        load_with_adapter(folder, LoraConfig(rank=2), seed=0)


def test_weights_of_another_type_hold_the_merged_ones(base, tmp_path):
    save_adapter(shaken(load_with_adapter(base, LoraConfig(rank=2), seed=0)), tmp_path / "adapter")
    wide, low = (load_model(tmp_path / "adapter", dtype=dtype) for dtype in ("float32", "bfloat16"))
    assert low.compute == torch.bfloat16 and low.frequencies.dtype == wide.frequencies.dtype
    for one, other in zip(wide.parameters(), low.parameters(), strict=True):
        assert torch.equal(one.bfloat16(), other)


# ------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("lora", "said"),
    [
        ({"rank": 0}, "greater than or equal to 1"),
        ({"rank": 1, "alpha": 0.0}, "greater than 0"),
        ({"rank": 1, "layers": "embedding"}, "embedding"),
        ({"rank": 1, "layers": ["lm_head"]}, "lm_head"),
    ],
)
def test_impossible_adapters_are_refused(lora, said):
    with pytest.raises(ValidationError, match=said):
        LoraConfig.model_validate(lora)


def test_a_rank_above_the_smallest_side_is_refused(base):
    said = r"model.lora.rank = 9 is above the smaller side of k_proj \(8 x 16\), v_proj \(8 x 16\); lower it to 8"
    with pytest.raises(ConfigError, match=said):
        LoraConfig(rank=9).settings(read_config(base))
    assert LoraConfig(rank=9, layers="mlp").settings(CONFIG).rank == 9


def test_experts_are_not_adapted(tmp_path):
    mixture = replace(CONFIG, family="qwen3_moe", experts=ExpertsConfig(count=4, per_token=2, width=8))
    save_model(new_model(mixture, seed=1), tmp_path / "base", tokenizer_from=None)
    adapter = shaken(load_with_adapter(tmp_path / "base", LoraConfig(rank=2), seed=3))
    assert {name.rpartition(".")[2] for name in adapter.updates} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    save_adapter(adapter, tmp_path / "adapter")
    assert weights_sha256(load_model(tmp_path / "adapter")) == weights_sha256(adapter.decoder)
    with pytest.raises(ConfigError, match="no such layers that can be adapted"):
        LoraConfig(rank=2, layers="mlp").settings(mixture)


def broken(folder: Path, changes: dict[str, object], tensors: dict[str, torch.Tensor | None]) -> None:
    """Change keys of an adapter's config, and tensors; None leaves one out."""
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | changes))
    if "base_model_name_or_path" in changes:
        (folder / "adapter_base.json").unlink()
    file = folder / "adapter_model.safetensors"
    kept = {name: tensor for name, tensor in (load_file(file) | tensors).items() if tensor is not None}
    save_file(kept, file)


QUERY = f"{PREFIX}model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("changes", "tensors", "said"),
    [
        ({"peft_type": "IA3"}, {}, "peft_type is 'IA3'; hone reads LORA only"),
        ({"r": 0}, {}, "r must be a number above 0, got 0"),
        ({"r": 3}, {}, r"has shape \(2, 24\); .* asks for \(3, 24\); and so 27 more tensors"),
        ({"use_dora": True}, {}, "use_dora = True: DoRA is not supported"),
        ({"modules_to_save": ["lm_head"]}, {}, r"modules_to_save = \['lm_head'\]: modules that are trained in full"),
        ({"bias": "all"}, {}, "trained biases"),
        ({"init_lora_weights": "pissa_niter_4"}, {}, "changed the base too"),
        ({"base_model_name_or_path": None}, {}, "must name the folder of the base model, got None"),
        ({"base_model_name_or_path": "Qwen/Qwen3-0.6B"}, {}, "hf download Qwen/Qwen3-0.6B"),
        ({}, {QUERY: None}, "q_proj.lora_A.weight is missing"),
        ({}, {QUERY: torch.full((2, 16), float("nan"))}, "NaN or infinite"),
        ({}, {f"{PREFIX}model.norm.lora_A.weight": torch.zeros(2, 16)}, "norm.lora_A.weight is of no linear layer"),
        ({}, {"model.layers.0.x": torch.zeros(1)}, "does not begin with base_model.model."),
    ],
)
def test_damaged_adapters_are_refused_by_name(changes, tensors, said, base, tmp_path):
    folder = tmp_path / "adapter"
    save_adapter(shaken(load_with_adapter(base, LoraConfig(rank=2), seed=0)), folder)
    broken(folder, changes, tensors)
    with pytest.raises(DataError, match=said) as caught:
        load_model(folder)
    assert str(folder) in str(caught.value)


def test_an_adapter_of_another_base_is_refused(base, tmp_path):
    save_adapter(load_with_adapter(base, LoraConfig(rank=2), seed=0), tmp_path / "adapter")
    save_model(new_model(CONFIG, seed=2), base, tokenizer_from=None)
    with pytest.raises(DataError, match=r"is an adapter of a base with sha256 .* that model was changed or replaced"):
        load_model(tmp_path / "adapter")
    (tmp_path / "adapter" / "adapter_base.json").unlink()  # as another program writes it; the shapes fit
    load_model(tmp_path / "adapter")


def test_all_faults_are_told_at_once(base, tmp_path):
    folder = tmp_path / "adapter"
    save_adapter(load_with_adapter(base, LoraConfig(rank=2), seed=0), folder)
    broken(folder, {"use_dora": True, "bias": "all", "base_model_name_or_path": "nowhere"}, {})
    with pytest.raises(DataError) as caught:
        read_config(folder)
    assert [word in str(caught.value) for word in ("use_dora", "bias", "nowhere")] == [True] * 3


def test_other_settings_than_the_folders_are_refused(base, tmp_path):
    save_adapter(load_with_adapter(base, LoraConfig(rank=2, layers="mlp"), seed=0), tmp_path / "adapter")
    with pytest.raises(ConfigError) as caught:
        load_with_adapter(tmp_path / "adapter", LoraConfig(rank=3, alpha=8.0), seed=0)
    for said in ("rank = 3, but", "alpha = 8.0, but", "layers = ['down_proj', ", "hone export"):
        assert said in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"{", b'{"peft_type": "LORA"}'])
def test_a_config_that_is_none_is_refused(content, base, tmp_path):
    folder = tmp_path / "adapter"
    save_adapter(load_with_adapter(base, LoraConfig(rank=2), seed=0), folder)
    (folder / "adapter_config.json").write_bytes(content)
    with pytest.raises(DataError, match=r"adapter_config.json"):
        load_model(folder)


def test_pickled_and_missing_tensors_are_refused(base, tmp_path):
    folder = tmp_path / "adapter"
    save_adapter(load_with_adapter(base, LoraConfig(rank=2), seed=0), folder)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(DataError, match="is a pickle"):
        load_model(folder)
    (folder / "adapter_model.bin").unlink()
    (folder / "adapter_model.safetensors").write_bytes(b"12")
    with pytest.raises(DataError, match=r"\(2 bytes\) is damaged or cut short"):
        load_model(folder)
