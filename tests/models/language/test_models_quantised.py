"""Weights in codes: hand values, a slow version, blocks of the compiled runner, gradients of the adapter, folders."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from hone.core.errors import ConfigError, DataError
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.expert_config import ExpertsConfig
from hone.models.language.hf_checkpoint import load_model, load_with_adapter, save_model
from hone.models.language.init import new_model
from hone.models.language.lora import LoraAdapter, LoraConfig, weights_sha256
from hone.models.language.peft_folder import save_adapter
from hone.models.language.quantised_linear import BITS, GROUP, QuantisedProjection, quantise
from hone.models.packing import pack_rows

CONFIG = ModelConfig(
    family="qwen2", vocab_size=50, hidden_size=64, intermediate_size=96, layers=2, heads=2, kv_heads=1, head_dim=32,
    tie_embeddings=False,
)  # fmt: skip
LORA = LoraConfig(rank=3, layers=["q_proj", "v_proj", "o_proj", "up_proj", "down_proj"])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, draws = tmp_path_factory.mktemp("quantised") / "base", torch.Generator().manual_seed(0)
    model = new_model(CONFIG, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=draws))
    save_model(model, folder, tokenizer_from=None)
    return folder


def adapted(base: Path, dtype: str, seed: int = 5) -> LoraAdapter:
    """An adapter with other numbers than 0."""
    adapter, draws = load_with_adapter(base, LORA, seed=seed, dtype=dtype), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, factor in adapter.factors():
            factor.add_(0.1 * torch.randn(factor.shape, generator=draws))
    return adapter


def group(*numbers: float) -> torch.Tensor:
    return torch.tensor([[*numbers, *[0.0] * (GROUP - len(numbers))]])


@pytest.mark.parametrize(
    ("bits", "numbers", "scale", "codes"),
    [
        (4, (-8.0, 7.0, 2.5, 3.5, -2.5, 0.5), 1.0, (-8, 7, 2, 4, -2, 0)),  # ties to even
        (4, (8.0, -8.0, 7.5, -7.0), -1.0, (-8, 7, -8, 7)),  # the sign of the extreme; -8 / -1 has no code
        (4, (-4.0, 4.0), 0.5, (-8, 7)),  # of equals the first
        (4, (-8 * 2.0**-24, 2.0**-24), 2.0**-24, (-8, 1)),  # the smallest scale
        (4, (-8 * 2.0**-26,), 0.0, (0,)),  # a scale that rounds to 0
        (8, (-127.0, 127.0, 2.5, 3.5, -0.5, -1.5), 1.0, (-127, 127, 2, 4, 0, -2)),
        (8, (63.5, -63.5, 0.25), 0.5, (127, -127, 0)),
    ],
)
def test_codes_by_hand(bits: int, numbers: tuple[float, ...], scale: float, codes: tuple[int, ...]) -> None:
    found, scales = quantise(group(*numbers), bits)
    zero = 1 << (bits - 1)
    assert float(scales) == scale
    assert [int(code) - zero for code in found[0]] == [*codes, *[0] * (GROUP - len(codes))]
    assert quantise(group(), bits)[1] == 0 and bool((quantise(group(), bits)[0] == zero).all())
    with pytest.raises(DataError, match="beyond the range of a scale"):
        quantise(group(65536.0 * 128), bits)


def slowly(row: np.ndarray, bits: int) -> list[float]:
    """What a row becomes, number by number."""
    numbers: list[float] = []
    for start in range(0, len(row), GROUP):
        part = [float(number) for number in row[start : start + GROUP]]
        extreme = max(part, key=abs)
        scale = float(np.float16(np.float32(abs(extreme) / 127 if bits == 8 else extreme / -8)))
        least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
        for number in part:
            code = 0 if scale == 0 else min(most, max(least, round(float(np.float32(number / scale)))))
            numbers.append(code * scale)
    return numbers


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("rows", "gated"), [(45, False), (96, True)])
def test_blocks_give_the_numbers_of_a_slow_version(bits: int, rows: int, *, gated: bool) -> None:
    """Set in parts, decoded by the kernel and by torch, some rows alone, in both types."""
    weight = torch.from_numpy(np.random.default_rng(rows + bits).standard_normal((rows, 64)).astype(np.float32))
    weight[3, :32] = 0
    projection = QuantisedProjection(64, rows, bias=False, bits=bits, gated=gated)
    for start, stop in ((20, rows), (0, 20)):
        projection.encode_rows(start, weight[start:stop])
    expected = torch.tensor([slowly(row, bits) for row in weight.numpy()])
    assert torch.equal(projection.decode(torch.float32), expected)
    assert torch.equal(projection.decode(torch.bfloat16), expected.bfloat16())
    at = torch.tensor([7, 44, 0, 7])
    assert torch.equal(projection.decode_rows(at, torch.float32), expected[at])
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        assert torch.equal(projection.decode_slowly(projection._places(at), dtype), expected[at].to(dtype))
    size = projection.weight.numel() / (-(-rows // 32) * 32 * 64)
    assert size == (bits + 0.5) / 8


@pytest.mark.parametrize("dtype", list(BITS))
@pytest.mark.parametrize("recompute", [False, True])
def test_gradients_are_those_of_the_dense_base_in_float64(base: Path, dtype: str, *, recompute: bool) -> None:
    """The forward pass, A and B; the base has no gradient."""
    adapter = adapted(base, dtype)
    adapter.decoder.checkpoint_activations = recompute
    assert not adapter.base_decoder().layers[0].qkv.updates
    reference = LoraAdapter(adapter_dense(adapter), adapter.settings, base_folder=adapter.base_folder, base_sha256="")
    for (name, ours), (other, theirs) in zip(adapter.factors(), reference.factors(), strict=True):
        assert name == other
        theirs.data.copy_(ours.detach())
    reference.merge()
    tokens = [np.array([3, 1, 4, 1, 5, 9], np.int32), np.array([2, 7, 1], np.int32)]
    losses = []
    for decoder in (adapter.decoder, reference.decoder):
        hidden = decoder.hidden(pack_rows(tokens))
        asked = torch.arange(9) % 7 + 1
        loss = (decoder.token_logprobs(hidden, asked, vocab_size_used=47).logp * torch.arange(9)).sum()
        loss.backward()
        losses.append(float(loss.detach()))
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    expected = dict(reference.factor_gradients({name: weight.grad for name, weight in reference.weights.items()}))
    for name, factor in adapter.factors():
        assert factor.grad is not None and float(factor.grad.abs().max()) > 0
        torch.testing.assert_close(factor.grad.double(), expected[name], rtol=2e-4, atol=2e-4)
    trained = {name for name, parameter in adapter.decoder.named_parameters() if parameter.grad is not None}
    assert trained and all(".lora_" in name for name in trained)


def adapter_dense(adapter: LoraAdapter) -> Decoder:
    """The base of an adapter, decoded, in float64."""
    bare = adapter.base_decoder()
    empty = LoraAdapter(bare, adapter.settings, base_folder=adapter.base_folder, base_sha256="")
    return empty.dense_decoder().to(torch.float64)


@pytest.mark.parametrize("dtype", list(BITS))
def test_a_folder_is_the_adapter_and_its_note_names_the_codes(base: Path, tmp_path: Path, dtype: str) -> None:
    adapter = adapted(base, dtype)
    assert adapter.decoder.code_bits == BITS[dtype]
    save_adapter(adapter, tmp_path / "adapter")
    assert not (tmp_path / "adapter" / "model.safetensors").exists(), "the base is not written again"
    assert json.loads((tmp_path / "adapter" / "adapter_base.json").read_text())["weights"] == dtype
    again = load_with_adapter(tmp_path / "adapter", LORA, seed=9, dtype=dtype)
    assert weights_sha256(again.decoder) == weights_sha256(adapter.decoder)
    merged = load_model(tmp_path / "adapter")
    packed = pack_rows([np.array([5, 6, 7, 8], np.int32)])
    with torch.no_grad():
        torch.testing.assert_close(merged.hidden(packed), adapter.decoder.hidden(packed), rtol=1e-4, atol=1e-4)
    coded, slow = load_model(tmp_path / "adapter", dtype=dtype), load_model(base, dtype=dtype)
    for name, module in slow.named_modules():  # the adapter is merged, and then rounded
        if isinstance(module, QuantisedProjection):
            module.encode_rows(0, merged.get_parameter(f"{name}.weight"))
    assert weights_sha256(coded) == weights_sha256(slow) != weights_sha256(load_model(base, dtype=dtype))
    other = "float32" if dtype == "int4" else "int4"
    with pytest.raises(ConfigError, match=f'trained on a base in {dtype}; set model.weights = "{dtype}"'):
        load_with_adapter(tmp_path / "adapter", LORA, seed=0, dtype=other)


def test_every_weight_of_a_layer_is_in_codes_and_all_else_is_as_it_was(base: Path) -> None:
    """0.281 of bfloat16's bytes for matrices of 4 bits, 0.531 for 8."""
    dense, coded = load_model(base), load_model(base, dtype="int4")
    plain = dict(dense.named_parameters())
    for name, parameter in coded.named_parameters():
        if parameter.dtype == torch.uint8:
            assert parameter.numel() * 50 // 64 <= 9 / 32 * 2 * plain[name].numel() <= parameter.numel()
        else:
            assert torch.equal(parameter, plain[name]), name
    assert {name for name, one in coded.named_parameters() if one.dtype != torch.uint8} == {
        name for name, one in plain.items() if one.ndim == 1
    }


def test_models_that_cannot_be_kept_in_codes_are_refused(base: Path) -> None:
    narrow = ModelConfig(vocab_size=9, hidden_size=64, intermediate_size=40, layers=1, heads=2, head_dim=32)
    with pytest.raises(
        DataError, match=r"a scale for every 32 inputs of a linear layer, and the model has one with 40"
    ):
        Decoder(narrow, dtype="int4")
    experts = ModelConfig(
        family="qwen3_moe", vocab_size=9, hidden_size=32, intermediate_size=32, layers=1, heads=1, head_dim=32,
        experts=ExpertsConfig(count=2, per_token=1, width=32),
    )  # fmt: skip
    with pytest.raises(DataError, match="a mixture of experts cannot be kept in codes"):
        Decoder(experts, dtype="int8")
