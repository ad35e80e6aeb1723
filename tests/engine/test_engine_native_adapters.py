"""Adapters beside the weights of the compiled runner: as merged, several in one pass, each as if alone."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import engine_native_cases as cases
import numpy as np
import pytest
import torch

from hone.engine.native.runner import NativeRunner
from hone.engine.protocol import UnmergedAdapter
from hone.models.language.decoder import Decoder
from hone.models.language.lora import OUTPUT_LAYER, LoraAdapter, LoraSettings, adaptable_layers

MODELS = {
    "padded heads": {},
    "untied, biased": {"family": "qwen2", "kv_heads": 4, "tie_embeddings": False},
    "two norms and a GELU": {"family": "gemma3_text"},
    "parallel": {"family": "cohere"},
    "one key head": {"family": "mistral", "heads": 3, "kv_heads": 1, "head_dim": 20, "vocab_size": 17},
}


def adapter_of(model: Decoder, *, rank: int, seed: int, ends: tuple[str, ...] = ("",)) -> LoraAdapter:
    """Factors of layers whose names end so, none of them 0."""
    layers = tuple(name for name in adaptable_layers(model.config) if name.endswith(ends))
    settings = LoraSettings(rank=rank, alpha=2.0 * rank, layers=layers)
    adapter = LoraAdapter(model, settings, base_folder=Path(), base_sha256="", beside=True)
    draws = torch.Generator().manual_seed(seed)
    for _, factor in adapter.factors():
        factor.data.normal_(0, 0.1, generator=draws)
    return adapter


def scored(runner: NativeRunner, sequences: Sequence[np.ndarray], adapters: tuple[str, ...] | None) -> list[np.ndarray]:
    """Log-probabilities of each sequence, in one pass."""
    pages = cases.pages_for([len(tokens) for tokens in sequences], runner.page_tokens)
    runner.reserve(pages.size)
    logp = runner.run(replace(cases.whole(sequences, pages), adapters=adapters)).logp
    return np.split(logp, np.cumsum([len(tokens) - 1 for tokens in sequences])[:-1])


def unmerged(adapter: LoraAdapter) -> UnmergedAdapter:
    return UnmergedAdapter(product=adapter.added_product, factors=adapter.stacked_factors)


def merged(**model: object) -> tuple[Decoder, LoraAdapter]:
    """A copy of the model with W0 + scale B A in its layers; the output projection gets a weight of its own."""
    twin = cases.model_of(**model)
    adapter = adapter_of(twin, rank=5, seed=1)
    with torch.no_grad():
        for name, update in adapter.updates.items():
            if name != OUTPUT_LAYER:
                update.merged[update.rows] += adapter.settings.scale * update.b @ update.a
    return twin, adapter


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_an_adapter_beside_the_weights_is_the_merged_model(kind: str) -> None:
    """Independent: the trainer's own forward of merged weights, the output projection's update added to its logits."""
    twin, _ = merged(**MODELS[kind])
    base = cases.model_of(**MODELS[kind])
    adapter = adapter_of(base, rank=5, seed=1)
    texts = cases.texts(base.config.vocab_size, [23, 9, 40])
    output = adapter.updates[OUTPUT_LAYER]
    expected = []
    with torch.no_grad():
        for tokens in texts:
            hidden = twin.hidden(cases.pack_rows([tokens]))
            factor = adapter.settings.scale * base.config.switches.logit_factor
            logits = twin.logits(hidden) + factor * hidden @ output.a.T @ output.b.T
            rows = torch.log_softmax(logits, -1)
            expected.append(rows[torch.arange(len(tokens) - 1), torch.from_numpy(tokens[1:]).long()].numpy())
    for isa in cases.sets():
        runner = cases.runner_of(base, isa=isa)
        runner.adapters["a"] = unmerged(adapter)
        for got, want in zip(scored(runner, texts, ("a", "a", "a")), expected, strict=True):
            np.testing.assert_allclose(got, want, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", sorted(MODELS))
def test_several_adapters_share_a_pass_and_each_is_as_if_alone(kind: str) -> None:
    base = cases.model_of(**MODELS[kind])
    adapters = {
        "wide": unmerged(adapter_of(base, rank=7, seed=1)),
        "thin": unmerged(adapter_of(base, rank=1, seed=2, ends=("q_proj", "down_proj"))),
        "head": unmerged(adapter_of(base, rank=3, seed=3, ends=(OUTPUT_LAYER,))),
    }
    texts = cases.texts(base.config.vocab_size, [50, 3, 17, 29, 8])
    names = ("wide", "", "thin", "head", "wide")
    for isa in cases.sets():
        for threads in (1, 3):
            runner = cases.runner_of(base, isa=isa, threads=threads)
            runner.adapters.update(adapters)
            alone = [scored(runner, [text], (name,))[0] for text, name in zip(texts, names, strict=True)]
            together = scored(runner, texts, names)
            assert [one.tolist() for one in together] == [one.tolist() for one in alone], (isa, threads)
            without = scored(cases.runner_of(base, isa=isa), [texts[1]], None)[0]
            assert together[1].tolist() == without.tolist(), "a sequence without an adapter is the base's"
            assert not np.allclose(together[2], scored(runner, [texts[2]], None)[0])


def test_a_name_gets_new_numbers_and_a_slot_is_used_again() -> None:
    base = cases.model_of()
    texts = cases.texts(base.config.vocab_size, [12])
    runner = cases.runner_of(base)
    first, second = (unmerged(adapter_of(base, rank=2, seed=seed)) for seed in (1, 2))
    runner.adapters["a"] = first
    before = scored(runner, texts, ("a",))[0]
    runner.adapters["a"] = second
    changed = scored(runner, texts, ("a",))[0]
    del runner.adapters["a"]
    runner.adapters["b"] = first
    assert scored(runner, texts, ("b",))[0].tolist() == before.tolist() != changed.tolist()
    assert len(runner._slots) == 1
    runner.release()
    runner.publish()
    assert scored(runner, texts, ("b",))[0].tolist() == before.tolist(), "packed again after a release"


def test_what_has_no_adapters_says_so() -> None:
    half = cases.runner_of(cases.model_of(dtype="bfloat16"))
    assert not half.takes_adapters
    base = cases.model_of()
    half.adapters["a"] = unmerged(adapter_of(base, rank=2, seed=1))
    with pytest.raises(ValueError, match="dense weights in float32"):
        scored(half, cases.texts(33, [5]), ("a",))
    runner = cases.runner_of(base)
    factors = adapter_of(base, rank=2, seed=1).stacked_factors()
    wrong = UnmergedAdapter(product=lambda *_: None, factors=lambda: factors[:-2])
    runner.adapters["a"] = wrong
    with pytest.raises(ValueError, match="got 16 tensors"):
        scored(runner, cases.texts(33, [5]), ("a",))
    swapped = [factors[1], factors[0], *factors[2:]]
    runner.adapters["a"] = UnmergedAdapter(product=lambda *_: None, factors=lambda: swapped)
    with pytest.raises(ValueError, match="a low-rank update has"):
        scored(runner, cases.texts(33, [5]), ("a",))
