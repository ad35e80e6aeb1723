"""The compiled runner over a base in codes with an adapter: the trainer's probabilities, on every instruction set."""

from pathlib import Path

import engine_native_cases as cases
import numpy as np
import pytest
import torch
from torch.nn import functional

from hone.core.errors import ConfigError
from hone.engine.open_engine import choose_runner
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.hf_checkpoint import load_with_adapter, save_model
from hone.models.language.lora import LoraAdapter, LoraConfig
from hone.models.packing import pack_rows

SHAPES = {
    "llama": {"attention_bias": True, "mlp_bias": True, "kv_heads": 1, "tie_embeddings": True},
    "qwen3": {"kv_heads": 2, "tie_embeddings": False},
}
EXACT_NATS = 1e-4
"""Mean difference of the log-probabilities of a token, of 16-bit activations to a trainer in float32."""


def adapter_of(tmp_path: Path, dtype: str, family: str = "llama", layers="all", head_dim: int = 32) -> LoraAdapter:
    sizes = {"vocab_size": 50, "hidden_size": 64, "intermediate_size": 96, "heads": 2, "head_dim": head_dim}
    save_model(cases.model_of(family, **sizes, **SHAPES[family]), tmp_path / "base", tokenizer_from=None)
    adapter = load_with_adapter(tmp_path / "base", LoraConfig(rank=5, layers=layers), seed=1, dtype=dtype)
    draws = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for _, factor in adapter.factors():
            factor.add_(0.02 * torch.randn(factor.shape, generator=draws))
    return adapter


def gap(adapter: LoraAdapter, runner, texts: list[np.ndarray]) -> float:
    return float(np.abs(cases.scored(runner, texts).logp - cases.by_the_trainer(adapter.decoder, texts)).mean())


@pytest.mark.parametrize("dtype", ["int4", "int8"])
@pytest.mark.parametrize(("family", "layers"), [("llama", "all"), ("qwen3", ["v_proj", "gate_proj"])])
def test_log_probabilities_are_the_trainers(tmp_path: Path, dtype: str, family: str, layers) -> None:
    adapter, texts = adapter_of(tmp_path, dtype, family, layers), cases.texts(50, [40, 7, 1, 2, 23])
    runner = cases.runner_of(adapter.decoder, vocab=50)
    assert gap(adapter, runner, texts) < EXACT_NATS
    with torch.no_grad():
        for _, factor in adapter.factors():
            factor.mul_(-2)
    assert gap(adapter, runner, texts) > 1e-3, "the runner has the factors that were published"
    runner.publish()
    assert gap(adapter, runner, texts) < EXACT_NATS
    coded = cases.runner_of(adapter.decoder, dtype="int8")
    assert 10 * EXACT_NATS < gap(adapter, coded, texts) < 0.05, "activations in 8 bits"
    assert coded.name.startswith(f"native weights {dtype}, int8")


@pytest.mark.parametrize("dtype", ["int4", "int8"])
def test_bits_are_the_same_on_every_instruction_set_and_in_any_company(tmp_path: Path, dtype: str) -> None:
    adapter, texts = adapter_of(tmp_path, dtype), cases.texts(50, [30, 9, 17, 5])
    found: dict[str, list[bytes]] = {}
    for isa in cases.sets("int8"):
        for kind in ("float32", "int8"):
            runner = cases.runner_of(adapter.decoder, isa=isa, dtype=kind)
            together = cases.scored(runner, texts).logp
            alone = np.concatenate([cases.scored(runner, [text]).logp for text in texts])
            assert np.array_equal(together, alone), (isa, kind)
            found.setdefault(kind, []).append(together.tobytes())
            if isa == "portable":  # without a fused multiply-add on an x86 processor
                del found[kind][-1]
    assert all(len(set(bits)) <= 1 for bits in found.values())


def test_greedy_tokens_are_those_of_torch(tmp_path: Path) -> None:
    """From the same codes, with the torch runner, and with nothing but the forward pass."""
    adapter = adapter_of(tmp_path, "int4")
    decoder, prompt = adapter.decoder, [3, 1, 4]
    by_forward = list(prompt)
    with torch.no_grad():
        for _ in range(20):
            hidden = decoder.hidden(pack_rows([np.array(by_forward, np.int32)]))
            by_forward.append(int(decoder.logits(hidden[-1:], functional.linear).argmax()))
    for kind in ("native", "torch", "native_bfloat16"):
        runner = choose_runner(kind, decoder, vocab_used=50, threads=1).runner
        runner.publish()
        runner.reserve(2 if kind == "torch" else 4)
        assert greedy(runner, prompt, 20) == by_forward, kind


def greedy(runner, prompt: list[int], count: int) -> list[int]:
    tokens, pages = list(prompt), np.arange(2, dtype=np.int32)[None]
    for at in range(count):
        new = tokens if not at else tokens[-1:]
        start = len(tokens) - len(new)
        work = cases.ForwardBatch(
            tokens=np.array(new, np.int32),
            positions=np.arange(start, len(tokens), dtype=np.int32),
            sequence=np.zeros(len(new), np.int32),
            pages=pages,
            draws=cases.draws_of([len(new) - 1], greedy=True),
        )
        tokens.append(int(runner.run(work).token[0]))
    return tokens


def test_codes_are_read_in_place_and_other_heads_are_left_to_torch(tmp_path: Path) -> None:
    adapter = adapter_of(tmp_path, "int4")
    runner = cases.runner_of(adapter.decoder)
    before = cases.scored(runner, cases.texts(50, [9])).logp
    adapter.decoder.layers[0].down.weight.zero_()
    assert not np.array_equal(cases.scored(runner, cases.texts(50, [9])).logp, before)
    narrow = adapter_of(tmp_path, "int4", head_dim=16)
    assert choose_runner("auto", narrow.decoder, vocab_used=50).runner.name.startswith("torch")
    with pytest.raises(ConfigError, match="heads with a multiple of 32 features, and the model's have 16"):
        choose_runner("native", narrow.decoder, vocab_used=50)
    with pytest.raises(ConfigError, match="has no weights in codes"):
        choose_runner("torch_compiled", adapter.decoder, vocab_used=50)


def test_a_new_model_has_no_codes() -> None:
    config = ModelConfig(vocab_size=9, hidden_size=32, intermediate_size=32, layers=1, heads=1, head_dim=32)
    assert Decoder(config).code_bits == 0
