"""Adapters against PEFT itself, both ways, where it is installed (it is no dependency of hone)."""

import math

import numpy as np
import pytest
import torch
import transformers

from hone.models.language.hf_checkpoint import load_model, load_with_adapter
from hone.models.language.lora import LoraConfig
from hone.models.language.peft_folder import save_adapter
from hone.models.packing import pack_rows

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
SIZES = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.2,
}  # fmt: skip
TOKENS = np.random.default_rng(0).integers(0, 50, 9).astype(np.int32)


def base_model(folder):
    torch.manual_seed(1)
    model = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**SIZES, head_dim=8, tie_word_embeddings=True))
    model.save_pretrained(folder)
    return model.eval()


def logits_of(decoder):
    with torch.no_grad():
        return decoder.logits(decoder.hidden(pack_rows([TOKENS])))


def assert_same(found, model):
    with torch.no_grad():
        expected = model(torch.from_numpy(TOKENS.astype(np.int64))[None]).logits[0]
    scale = float(expected.abs().max())
    torch.testing.assert_close(found / scale, expected / scale, rtol=0, atol=1e-6)


@pytest.mark.parametrize("layers", ["all", "attention", ["q_proj", "v_proj"]])
def test_peft_loads_what_hone_writes(layers, tmp_path):
    base_model(tmp_path / "base")
    adapter = load_with_adapter(tmp_path / "base", LoraConfig(rank=4, layers=layers), seed=3)
    with torch.no_grad():
        for _, factor in adapter.factors():
            factor.add_(0.02 * torch.randn(factor.shape))
    adapter.merge()
    save_adapter(adapter, tmp_path / "adapter")
    assert_same(logits_of(adapter.decoder), peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter").eval())
    read = peft.LoraConfig.from_pretrained(str(tmp_path / "adapter"))
    assert (read.r, read.lora_alpha, read.use_rslora) == (4, 32, False)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"layers_to_transform": [1], "target_modules": ["q_proj", "up_proj"]},
        {"use_rslora": True},
        {"lora_dropout": 0.1},
    ],
)
def test_hone_loads_what_peft_writes(changes, tmp_path):
    config = peft.LoraConfig(r=4, lora_alpha=16, task_type="CAUSAL_LM", **{"target_modules": "all-linear"} | changes)
    model = peft.get_peft_model(base_model(tmp_path / "base"), config)
    model.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        if ".lora_A." in name:
            bound = parameter.shape[1] ** -0.5
            assert 0.8 * bound < float(parameter.detach().abs().max()) <= bound, "the start that hone has, too"
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=0.05)
    model.save_pretrained(tmp_path / "adapter")
    found = load_model(tmp_path / "adapter")
    assert_same(logits_of(found), model.eval())
    if not changes or "use_rslora" in changes:
        alpha = 32.0 if changes else 16.0
        adapter = load_with_adapter(tmp_path / "adapter", LoraConfig(rank=4, alpha=alpha), seed=0)
        assert math.isclose(adapter.settings.scale, alpha / 4) and not adapter.starts_at_base
        assert torch.equal(logits_of(adapter.decoder), logits_of(found))


def test_gradients_are_those_of_peft(tmp_path):
    base_model(tmp_path / "base")
    adapter = load_with_adapter(tmp_path / "base", LoraConfig(rank=4), seed=3)
    with torch.no_grad():
        for _, factor in adapter.factors():
            factor.add_(0.02 * torch.randn(factor.shape))
    adapter.merge()
    save_adapter(adapter, tmp_path / "adapter")
    theirs = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapter", is_trainable=True).eval()
    theirs(torch.from_numpy(TOKENS.astype(np.int64))[None]).logits[0].sin().sum().backward()
    decoder = adapter.decoder
    decoder.logits(decoder.hidden(pack_rows([TOKENS]))).sin().sum().backward()
    ours = dict(adapter.factor_gradients({name: weight.grad for name, weight in adapter.weights.items()}))
    pieces = {f"{name}.lora_B.weight": update.piece for name, update in adapter.updates.items()}
    compared = 0
    for name, parameter in theirs.named_parameters():
        if parameter.requires_grad:
            short = name.removeprefix("base_model.model.").replace(".default", "")
            found = pieces[short].to_checkpoint(ours[short]) if short in pieces else ours[short]
            scale = float(parameter.grad.abs().max())
            torch.testing.assert_close(found / scale, parameter.grad / scale, rtol=0, atol=1e-5)
            compared += 1
    assert compared == len(ours) == 28
