"""Log-probability and entropy in chunks: against the plain formula, by value and by gradient."""

import math

import pytest
import torch

from hone.models.language import token_logprobs as module
from hone.models.language.token_logprobs import LogprobQuery, query_logprobs, token_logprobs


def draws(rows=23, width=6, vocab=11):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(rows, width, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(vocab, width, generator=generator, dtype=torch.float64, requires_grad=True)
    return hidden, weight, torch.randint(0, vocab, (rows,), generator=generator)


def plain(hidden, weight, chosen, temperature):
    logp = torch.log_softmax(hidden @ weight.T / temperature, dim=-1)
    return logp.gather(1, chosen[:, None])[:, 0], -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("chunk", [1, 200, 1 << 22])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_equals_the_plain_formula(monkeypatch, chunk, temperature):
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk)
    hidden, weight, chosen = draws()
    found = token_logprobs(hidden, weight, chosen, temperature, entropy=True)
    logp, entropy = plain(hidden, weight, chosen, temperature)
    torch.testing.assert_close(found.logp, logp, rtol=0, atol=1e-13)
    torch.testing.assert_close(found.entropy, entropy, rtol=0, atol=1e-13)
    mix = torch.linspace(-1, 1, len(chosen), dtype=torch.float64)
    mine = torch.autograd.grad((found.logp * mix + found.entropy * mix**2).sum(), (hidden, weight))
    theirs = torch.autograd.grad((logp * mix + entropy * mix**2).sum(), (hidden, weight))
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_a_value_worked_out_by_hand():
    # Logits (ln 2, 0) at temperature 1: probabilities 2/3 and 1/3.
    hidden, weight = torch.tensor([[1.0]]), torch.tensor([[math.log(2)], [0.0]])
    found = token_logprobs(hidden, weight, torch.tensor([1]), 1.0, entropy=True)
    assert found.logp.item() == pytest.approx(math.log(1 / 3), abs=1e-6)
    assert found.entropy is not None
    assert found.entropy.item() == pytest.approx(math.log(3) - 2 / 3 * math.log(2), abs=1e-6)
    # At temperature 1/2 the odds are squared: 4 to 1.
    assert token_logprobs(hidden, weight, torch.tensor([1]), 0.5).logp.item() == pytest.approx(
        math.log(1 / 5), abs=1e-6
    )


def test_entropy_only_when_asked():
    hidden, weight, chosen = draws()
    assert token_logprobs(hidden, weight, chosen, 1.0).entropy is None


def test_a_frozen_weight_gets_no_gradient():
    hidden, weight, chosen = draws()
    token_logprobs(hidden, weight.detach(), chosen, 1.0).logp.sum().backward()
    assert weight.grad is None
    assert hidden.grad is not None


def test_never_more_than_a_chunk_of_logits(monkeypatch):
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", 16 * 11)
    hidden, weight, chosen = draws(rows=400)
    largest = 0
    linear = module._scaled_logits

    def watched(*given):
        nonlocal largest
        result = linear(*given)
        largest = max(largest, result.numel())
        return result

    monkeypatch.setattr(module, "_scaled_logits", watched)
    token_logprobs(hidden, weight, chosen, 1.0, entropy=True).logp.sum().backward()
    assert 0 < largest <= 16 * 11


def test_low_precision_answers_in_float32():
    hidden, weight, chosen = (x.bfloat16() if x.is_floating_point() else x for x in draws())
    found = token_logprobs(hidden, weight, chosen, 1.0)
    assert found.logp.dtype == torch.float32
    assert torch.isfinite(found.logp).all()


@pytest.mark.parametrize("chunk", [1, 200, 1 << 22])
def test_further_tokens_are_answered_with_their_gradient(monkeypatch, chunk):
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk)
    hidden, weight, chosen = draws()
    among = torch.stack((chosen, (chosen + 1) % 11, (chosen + 5) % 11), dim=1)
    found = token_logprobs(hidden, weight, chosen, 0.7, entropy=True, extra_tokens=among)
    logp = torch.log_softmax(hidden @ weight.T / 0.7, dim=-1)
    torch.testing.assert_close(found.extra_logp, logp.gather(1, among), rtol=0, atol=1e-13)
    mix = torch.linspace(-1, 1, among.numel(), dtype=torch.float64).view(among.shape)

    def total(chosen_logp, among_logp):
        return (among_logp * mix).sum() + (chosen_logp * mix[:, 0] ** 2).sum()

    mine = torch.autograd.grad(total(found.logp, found.extra_logp), (hidden, weight))
    plainly = total(logp.gather(1, chosen[:, None])[:, 0], logp.gather(1, among))
    for a, b in zip(mine, torch.autograd.grad(plainly, (hidden, weight)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 200, 1 << 22])
def test_what_sampling_kept_is_replayed(monkeypatch, chunk):
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk)
    hidden, weight, chosen = draws()
    generator = torch.Generator().manual_seed(3)
    allowed = torch.rand(len(chosen), 11, generator=generator) < 0.4
    allowed[torch.arange(len(chosen)), chosen] = True
    allowed[4] = False  # nothing was cut off at position 4
    counts = allowed.sum(1)
    offsets = torch.cat((torch.zeros(1, dtype=torch.int64), counts.cumsum(0)))
    kept = module.SamplingMask(ids=allowed.nonzero()[:, 1], offsets=offsets)
    found = token_logprobs(hidden, weight, chosen, 0.7, entropy=True, sampling_mask=kept)
    everywhere = allowed | (counts == 0)[:, None]
    p = torch.softmax(hidden @ weight.T / 0.7, dim=-1) * everywhere
    p = p / p.sum(1, keepdim=True)
    logp = p.gather(1, chosen[:, None])[:, 0].log()
    entropy = torch.special.entr(p).sum(1)
    torch.testing.assert_close(found.logp, logp, rtol=0, atol=1e-13)
    torch.testing.assert_close(found.entropy, entropy, rtol=0, atol=1e-13)
    mix = torch.linspace(-1, 1, len(chosen), dtype=torch.float64)
    mine = torch.autograd.grad((found.logp * mix + found.entropy * mix**2).sum(), (hidden, weight))
    slow = sum(
        mix[n]
        * (row := torch.log_softmax((hidden[n] @ weight[everywhere[n]].T) / 0.7, dim=-1))[
            everywhere[n].nonzero()[:, 0].tolist().index(int(chosen[n]))
        ]
        - mix[n] ** 2 * (row.exp() * row).sum()
        for n in range(len(chosen))
    )
    for a, b in zip(mine, torch.autograd.grad(slow, (hidden, weight)), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("chunk", [1, 1 << 22])
def test_the_likeliest_tokens(monkeypatch, chunk):
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk)
    hidden, weight, _ = draws()
    found = module.top_k_tokens(hidden, weight, 0.7, 4)
    logp, ids = torch.log_softmax(hidden @ weight.T / 0.7, dim=-1).sort(dim=-1, descending=True)
    assert torch.equal(found.ids, ids[:, :4])
    torch.testing.assert_close(found.logp, logp[:, :4].detach(), rtol=0, atol=1e-13)
    assert not found.logp.requires_grad
    assert module.top_k_tokens(hidden[:0], weight, 0.7, 4).ids.shape == (0, 4)


@pytest.mark.parametrize("chunk", [1, 200, 1 << 22])
def test_products_of_bfloat16_numbers_have_float32_sums(monkeypatch, chunk):
    """Against float64 products of the rounded factors; the gradient of the logits is rounded, too."""
    monkeypatch.setattr(module, "CHUNK_ELEMENTS", chunk)
    hidden, weight, chosen = draws()
    low = [x.detach().float().requires_grad_() for x in (hidden, weight)]
    found = query_logprobs(*low, chosen, None, LogprobQuery(0.7, entropy=True, half=True))
    rounded = [x.detach().bfloat16().double().requires_grad_() for x in low]
    logp, entropy = plain(*rounded, chosen, 0.7)
    torch.testing.assert_close(found.logp.double(), logp, rtol=0, atol=2e-6)
    assert found.entropy is not None
    torch.testing.assert_close(found.entropy.double(), entropy, rtol=0, atol=2e-6)
    mine = torch.autograd.grad(found.logp.sum(), low)
    theirs = torch.autograd.grad(logp.sum(), rounded)
    for a, b in zip(mine, theirs, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a.double(), b, rtol=0, atol=2**-8 * float(b.abs().max()))


# ---------------------------------------------------------------------------------------------------- bfloat16 products


def rounded_draws(rows=70, width=40, vocab=90):
    hidden, weight, _ = draws(rows, width, vocab)
    chosen = torch.arange(rows) * 7 % vocab
    return (hidden * 0.3).detach().float().requires_grad_(), weight.detach().float().requires_grad_(), chosen


@pytest.fixture(params=[(64, 1 << 19), (32, 32 * 32), (1024, 1 << 19)], ids=["rows", "both", "whole"])
def _blocks(request, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_ROWS", request.param[0])
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", request.param[1])


@pytest.mark.usefixtures("_blocks")
@pytest.mark.parametrize(("cap", "mask", "used"), [(None, False, None), (3.0, False, None), (2.0, True, 80)])
def test_blocks_of_the_vocabulary_are_the_plain_formula_on_rounded_numbers(cap, mask, used):
    """Values against float64 on numbers rounded to bfloat16, whose products float32 holds; gradients to a rounding of
    what is multiplied."""
    hidden, weight, chosen = rounded_draws()
    chosen = chosen % (used or 90)
    further = torch.stack(((chosen + 1) % 80, torch.full_like(chosen, 31), torch.full_like(chosen, 32)), dim=1)
    settings = {"cap": cap, "sampling_mask": None, "vocab_size_used": used}
    if mask:
        keep = [
            [int(one), (int(one) + 3) % 80, 40] if n % 2 else [-1, (int(one) + 1) % 80] for n, one in enumerate(chosen)
        ]
        keep[4] = []
        offsets = torch.tensor([0, *map(len, keep)]).cumsum(0)
        settings["sampling_mask"] = module.SamplingMask(
            ids=torch.tensor([one for some in keep for one in some]), offsets=offsets
        )
    found = query_logprobs(hidden, weight, chosen, further, LogprobQuery(0.7, True, half=True, **settings))
    wide = [one.detach().bfloat16().double().requires_grad_() for one in (hidden, weight)]
    wanted = query_logprobs(*wide, chosen, further, LogprobQuery(0.7, True, **settings))
    pairs = [(found.logp, wanted.logp), (found.entropy, wanted.entropy), (found.extra_logp, wanted.extra_logp)]
    for ours, theirs in pairs:
        assert torch.equal(ours.isfinite(), theirs.isfinite())
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)

    def total(result):
        extra = torch.where(result.extra_logp.isfinite(), result.extra_logp, 0.0)
        return result.logp.sin().sum() + (result.entropy * 0.5).sum() + (extra * 0.1).sum()

    for ours, theirs in zip(
        torch.autograd.grad(total(found), (hidden, weight)), torch.autograd.grad(total(wanted), wide), strict=True
    ):
        assert (ours.double() - theirs).abs().max() < 2**-7 * theirs.abs().max()
    if used is not None:
        (to_weight,) = torch.autograd.grad(
            query_logprobs(hidden, weight, chosen, None, LogprobQuery(0.7, half=True, vocab_size_used=used)).logp.sum(),
            (weight,),
        )
        assert not to_weight[used:].any()


def test_blocks_by_hand():
    """Logits (1, 1, 3 ln 2) over two blocks would be one block here; e + e + 8 = 13.4366, so that log p is -2.5979 for
    the first. bfloat16 holds all numbers but the logarithm, which is taken as it is rounded."""
    third = torch.tensor(3 * math.log(2)).bfloat16().item()
    hidden, weight = torch.ones(1, 1), torch.tensor([[1.0], [1.0], [third]])
    found = query_logprobs(hidden, weight, torch.tensor([0]), torch.tensor([[2]]), LogprobQuery(1.0, half=True))
    total = 2 * math.e + math.exp(third)
    assert found.logp.item() == pytest.approx(1 - math.log(total), abs=1e-6)
    assert found.extra_logp.item() == pytest.approx(third - math.log(total), abs=1e-6)


def test_a_token_beyond_those_that_are_used_has_no_probability():
    hidden, weight, _ = rounded_draws()
    question = LogprobQuery(1.0, half=True, vocab_size_used=80)
    logp = query_logprobs(hidden, weight, torch.tensor([79, 80, 89]).repeat(24)[:70], None, question).logp
    assert logp.isfinite().tolist() == ([True, False, False] * 24)[:70]


def test_no_tokens_have_no_gradient_and_weights_in_bfloat16_have_their_own():
    hidden, weight, chosen = rounded_draws()
    nothing = query_logprobs(hidden[:0], weight, chosen[:0], None, LogprobQuery(1.0, half=True)).logp
    to_hidden, to_weight = torch.autograd.grad(nothing.sum(), (hidden, weight))
    assert not to_hidden.any() and not to_weight.any()
    low = [one.detach().bfloat16().requires_grad_() for one in (hidden, weight)]
    question = LogprobQuery(1.0, half=True)
    mine = torch.autograd.grad(query_logprobs(*low, chosen, None, question).logp.sum(), low)
    theirs = torch.autograd.grad(query_logprobs(hidden, weight, chosen, None, question).logp.sum(), (hidden, weight))
    for a, b in zip(mine, theirs, strict=True):
        assert a.dtype == torch.bfloat16
        torch.testing.assert_close(a.float(), b, rtol=2**-8, atol=2**-8)
    frozen = query_logprobs(hidden, weight.detach(), chosen, None, question).logp
    torch.testing.assert_close(torch.autograd.grad(frozen.sum(), hidden)[0], theirs[0], rtol=0, atol=0)
