"""Log-probabilities and gradients are a fact of the texts: any packing, order and sharing of prompts gives the same."""

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from shared_prompts import pack_shared_prompts

from hone.models.language import packed_attention as attention
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.init import new_model
from hone.models.language.packed_attention import PackedAttention
from hone.models.native import library as products
from hone.models.packing import pack_rows, row_targets

CONFIG = ModelConfig(
    family="qwen3", vocab_size=17, hidden_size=16, intermediate_size=24, layers=2, heads=4, kv_heads=2, head_dim=8
)


def model_of(family="qwen3", **changes) -> Decoder:
    config = ModelConfig(
        family=family,
        vocab_size=17,
        hidden_size=16,
        intermediate_size=24,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=8,
        tie_embeddings=family != "llama",
    )
    model = new_model(config, seed=3, dtype="float64", **changes)
    with torch.no_grad():  # biases and norms away from their neutral start, so that a lost one shows
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                noise = np.random.default_rng(len(name)).normal(size=parameter.shape) / 4
                parameter.add_(torch.from_numpy(noise))
    return model


def texts(seed: int, groups: int) -> list[tuple[np.ndarray, list[np.ndarray]]]:
    rng = np.random.default_rng(seed)

    def text(low: int, high: int) -> np.ndarray:
        return rng.integers(0, 17, size=rng.integers(low, high)).astype(np.int32)

    return [(text(1, 9), [text(0, 12) for _ in range(rng.integers(1, 5))]) for _ in range(groups)]


def gradients(model: Decoder, logp: torch.Tensor, weights: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    (logp * weights).sum().backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def separate(model: Decoder, groups) -> torch.Tensor:
    """One row for each completion, one forward for each row: the slow way. `[N]`."""
    found = []
    for prompt, completions in groups:
        for completion in completions:
            packed = pack_rows([np.concatenate([prompt, completion])])
            targets = row_targets(packed)
            chosen, at = targets.chosen[len(prompt) - 1 :], targets.at[len(prompt) - 1 :]
            found.append(model.token_logprobs(model.hidden(packed)[at], chosen, 0.7).logp)
    return torch.cat(found)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("seed", [0, 1])
def test_shared_prompts_equal_separate_rows(family, seed):
    model = model_of(family)
    groups = texts(seed, 4)
    packed, targets = pack_shared_prompts(groups)
    shared = model.token_logprobs(model.hidden(packed)[targets.at], targets.chosen, 0.7).logp
    weights = torch.from_numpy(np.random.default_rng(seed).normal(size=len(shared)))
    slow = separate(model, groups)
    torch.testing.assert_close(shared, slow, rtol=0, atol=1e-12)
    a, b = gradients(model, shared, weights), gradients(model, slow, weights)
    for name, gradient in a.items():
        torch.testing.assert_close(gradient, b[name], rtol=0, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


@examples(15)
@given(seed=st.integers(0, 10_000), order=st.permutations(range(6)))
def test_rows_in_any_order_and_company_give_the_same(seed, order):
    model = model_of()
    rng = np.random.default_rng(seed)
    rows = [rng.integers(0, 17, size=rng.integers(2, 30)).astype(np.int32) for _ in range(6)]
    packed = pack_rows(rows)
    together = model.token_logprobs(model.hidden(packed)[row_targets(packed).at], row_targets(packed).chosen).logp
    parts = torch.split(together, [len(row) - 1 for row in rows])
    shuffled = pack_rows([rows[i] for i in order])
    again = model.token_logprobs(model.hidden(shuffled)[row_targets(shuffled).at], row_targets(shuffled).chosen).logp
    torch.testing.assert_close(again, torch.cat([parts[i] for i in order]), rtol=0, atol=1e-12)
    alone = pack_rows([rows[order[0]]])
    single = model.token_logprobs(model.hidden(alone)[row_targets(alone).at], row_targets(alone).chosen).logp
    torch.testing.assert_close(single, parts[order[0]], rtol=0, atol=1e-12)


def test_the_future_and_other_branches_are_not_seen():
    model = model_of()
    prompt, first, second = np.array([1, 2], np.int32), np.array([3, 4], np.int32), np.array([5, 6], np.int32)
    packed, targets = pack_shared_prompts([(prompt, [first, second])])
    assert packed.positions.tolist() == [0, 1, 2, 3, 2, 3]
    assert targets.at.tolist() == [1, 2, 1, 4]
    assert targets.chosen.tolist() == [3, 4, 5, 6]
    other, _ = pack_shared_prompts([(prompt, [np.array([9, 10], np.int32), second])])
    same = (model.hidden(packed) == model.hidden(other)).all(dim=1)
    assert same.tolist() == [True, True, False, False, True, True]


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_fused_attention_agrees(family):
    """The form that CUDA takes, here on the CPU."""
    model = model_of(family)
    packed, targets = pack_shared_prompts(texts(7, 4))
    fused = PackedAttention(packed, heads=4, kv_heads=2, head_dim=8, dtype=torch.float64, fused=True)
    found = []
    for hidden in (model.hidden(packed), model.run(packed.tokens, packed.positions, fused)):
        logp = model.token_logprobs(hidden[targets.at], targets.chosen).logp
        found.append((logp.detach(), gradients(model, logp, torch.ones_like(logp))))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=1e-12)
    for name, gradient in found[0][1].items():
        torch.testing.assert_close(gradient, found[1][1][name], rtol=0, atol=1e-11)


def test_long_rows_agree(monkeypatch):
    model = model_of()
    packed, targets = pack_shared_prompts(texts(7, 4))
    expected = model.token_logprobs(model.hidden(packed)[targets.at], targets.chosen).logp
    monkeypatch.setattr(attention, "FUSED_MIN_KEYS", 12)
    found = model.token_logprobs(model.hidden(packed)[targets.at], targets.chosen).logp
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_activation_checkpointing_changes_no_gradient():
    plain, checkpointed = model_of(), model_of(checkpoint_activations=True)
    packed, targets = pack_shared_prompts(texts(5, 3))
    found = []
    for model in (plain, checkpointed):
        logp = model.token_logprobs(model.hidden(packed)[targets.at], targets.chosen).logp
        found.append(gradients(model, logp, torch.ones_like(logp)))
    assert all(torch.equal(gradient, found[1][name]) for name, gradient in found[0].items())


def test_activation_checkpointing_keeps_less():
    """What autograd saves in the forward pass, in bytes."""
    rows = pack_rows([np.arange(17, dtype=np.int32).repeat(8) for _ in range(4)])
    kept = []
    for checkpointed in (False, True):
        total = 0

        def count(tensor):
            nonlocal total
            total += tensor.numel() * tensor.element_size()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            model_of(checkpoint_activations=checkpointed).hidden(rows)
        kept.append(total)
    assert kept[1] < kept[0] / 3


def test_empty_completions_and_no_rows():
    model = model_of()
    none = pack_rows([])
    assert model.hidden(pack_rows([np.array([1], np.int32)])).shape == (1, 16)
    assert len(row_targets(none).at) == 0
    packed, targets = pack_shared_prompts([(np.array([1], np.int32), [np.zeros(0, np.int32)])])
    assert len(targets.at) == 0
    assert model.hidden(packed).shape == (1, 16)


def test_what_branches_send_back_to_their_trunk_adds_up_in_float32():
    """300 branches read one key; in bfloat16 a running sum would stop growing at 256."""
    prompt = np.array([1], np.int32)
    packed, _ = pack_shared_prompts([(prompt, [np.array([2], np.int32)] * 300)])
    attend = PackedAttention(packed, heads=1, kv_heads=1, head_dim=2, dtype=torch.bfloat16)
    query, key = torch.zeros(2, 301, 1, 2, dtype=torch.bfloat16)
    value = torch.zeros(301, 1, 2, dtype=torch.bfloat16, requires_grad=True)
    attend(0, query, key, value).sum().backward()
    assert value.grad[0, 0].tolist() == [151.0, 151.0]  # all of its own, and half of each branch's
    assert value.grad[1:].unique().tolist() == [0.5]


@pytest.mark.parametrize("length", [40, attention.FUSED_MIN_KEYS + 30])
def test_attention_in_bfloat16_is_widened_and_rounded_once(length, monkeypatch):
    """By matrix products and by torch's fused attention: the result, and each gradient."""
    monkeypatch.setattr(products, "widens_half_products", lambda: True)
    packed = pack_rows([np.zeros(length, np.int32), np.zeros(7, np.int32)])
    draws, found = torch.Generator().manual_seed(0), []
    numbers = [torch.randn(length + 7, heads, 16, generator=draws).bfloat16() for heads in (4, 2, 2)]
    g = torch.randn(length + 7, 64, generator=draws).bfloat16()
    for dtype in (torch.bfloat16, torch.float64):
        attend = PackedAttention(packed, heads=4, kv_heads=2, head_dim=16, dtype=dtype)
        inputs = [x.to(dtype).clone().requires_grad_() for x in numbers]
        out = attend(0, *inputs)
        out.backward(g.to(dtype))
        found.append([out, *(x.grad for x in inputs)])
    for one, exact in zip(*found, strict=True):
        assert one.dtype == torch.bfloat16
        torch.testing.assert_close(one.double(), exact, rtol=2**-8, atol=1e-5)


def test_scores_are_computed_for_what_is_seen_only():
    """Eight answers of 20 tokens to one question of 10: 8 x 20 x 30 scores and the question's, not 170 x 170."""
    packed, _ = pack_shared_prompts([(np.ones(10, np.int32), [np.ones(20, np.int32)] * 8)])
    attend = PackedAttention(packed, heads=1, kv_heads=1, head_dim=2, dtype=torch.float32)
    assert [block.masks[None].numel() for block in attend._blocks] == [8 * 20 * 30, 10 * 10]
