"""Policy losses worked out by hand, their limits, and unbiasedness by enumerating a small softmax."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hone.objectives import (
    mismatch,
    policy,
    sequence,
    trust,
)
from hone.objectives import (
    policy as covariance,
)
from hone.objectives import (
    policy as entropy,
)
from hone.objectives import (
    policy as simko,
)
from hone.objectives.ratios import quantile, sequence_mean, sequence_quantile, sequence_sum
from hone.objectives.terms import LossTerms, add_terms, scale_terms

ONE = torch.tensor([0, 0, 1])


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def at(*ratios: float) -> tuple[Tensor, Tensor]:
    """(now, then): the given ratios over a probability of 1/10."""
    then = torch.full((len(ratios),), math.log(0.1), dtype=torch.float64)
    return then + column(*ratios).log(), then


def slope(of: Callable[[Tensor], Tensor], now: Tensor) -> Tensor:
    leaf = now.clone().requires_grad_()
    (found,) = torch.autograd.grad(of(leaf).sum(), leaf)
    return found


def test_dual_clip() -> None:
    """Ratio 4, A = -2: PPO says 8, capped at 3 it is 6 and the gradient has stopped; praise is not touched."""
    now, then = at(4.0, 2.0, 4.0)
    advantage = column(-2.0, -2.0, 2.0)
    terms = policy.clipped_surrogate(now, then, advantage, negative_cap=3.0)
    torch.testing.assert_close(terms.loss, column(6.0, 4.0, -2.4))
    assert terms.metrics["policy/clip_fraction"].tolist() == [1, 0, 1]
    found = slope(lambda x: policy.clipped_surrogate(x, then, advantage, negative_cap=3.0).loss, now)
    torch.testing.assert_close(found, column(0.0, 4.0, 0.0))


def test_the_numerical_cap_counts_as_stopped() -> None:
    terms = policy.clipped_surrogate(column(0.0), column(-30.0), column(-1.0))
    assert terms.metrics["policy/clip_fraction"].item() == 1
    assert terms.loss.item() == pytest.approx(math.exp(20))


def test_cispo() -> None:
    """Ratios 1.5 and 8 at log p = log 0.15, log 0.8; the second is capped at 5. Gradients are -1.5 A and -5 A."""
    now, then = at(1.5, 8.0)
    terms = policy.cispo(now, then, column(2.0, -1.0))
    torch.testing.assert_close(terms.loss, column(-3.0 * math.log(0.15), 5.0 * math.log(0.8)))
    assert terms.metrics["policy/capped_fraction"].tolist() == [0, 1]
    found = slope(lambda x: policy.cispo(x, then, column(2.0, -1.0)).loss, now)
    torch.testing.assert_close(found, column(-3.0, 5.0))


def test_sapo() -> None:
    """At r = 1 the value is -2 A / t and the slope -A; at r = 2 (t = 1) the gate is 4 s (1 - s), s = 1/(1+1/e)."""
    now, then = at(1.0, 1.0, 2.0)
    advantage = column(3.0, -3.0, 1.0)
    s = 1 / (1 + math.exp(-1))
    torch.testing.assert_close(policy.sapo(now, then, advantage).loss, column(-6.0, 6 / 1.05, -4 * s))
    found = slope(lambda x: policy.sapo(x, then, advantage).loss, now)
    torch.testing.assert_close(found, column(-3.0, 3.0, -4 * s * (1 - s) * 2))


@given(st.floats(-3, 2.5), st.sampled_from([-1.0, 1.0]), st.floats(0.3, 2.0))
def test_sapo_s_weight_is_largest_on_policy(log_ratio: float, advantage: float, steepness: float) -> None:
    loss = partial(policy.sapo, positive_steepness=steepness, negative_steepness=steepness)
    found = slope(lambda x: loss(x, column(0.0), column(advantage)).loss, column(log_ratio))
    gate = -float(found) / advantage / math.exp(log_ratio)
    assert 0 < gate <= 1 + 1e-12


def test_dro() -> None:
    now, then = column(-1.0), column(-1.5)
    torch.testing.assert_close(policy.dro(now, then, column(2.0), beta=0.4).loss, column(2.0 + 0.2 * 0.25))


def test_decoupled() -> None:
    """u = 1.5 against the proximal policy, which stands at 3 of the acting one: 3 * max(-1.5, -1.2) A for A = 1."""
    then = column(-3.0, -3.0)
    proximal = then + math.log(3)
    now = proximal + math.log(1.5)
    loss = policy.decoupled_ppo(now, then, proximal, column(1.0, -1.0)).loss
    torch.testing.assert_close(loss, column(-3 * 1.2, 3 * 1.5))
    capped = policy.decoupled_ppo(now, then, proximal, column(1.0, -1.0), weight_cap=2.0)
    torch.testing.assert_close(capped.loss, column(-2 * 1.2, 2 * 1.5))
    assert capped.metrics["policy/clip_fraction"].tolist() == [1, 0]


def test_decoupled_from_nothing_is_ppo() -> None:
    now, then = at(1.5, 0.5, 1.1)
    advantage = column(1.0, -1.0, 2.0)
    one = policy.decoupled_ppo(now, then, then, advantage).loss
    torch.testing.assert_close(one, policy.clipped_surrogate(now, then, advantage).loss)


def test_gspo() -> None:
    """Ratios 4 and 1 of one answer: s = 2, clipped at 1.1 for praise; the other answer's 1.05 is not."""
    now, then = at(4.0, 1.0, 1.05)
    terms = sequence.gspo(now, then, column(1.0, 1.0, 2.0), ONE, low=0.1, high=0.1)
    torch.testing.assert_close(terms.loss, column(-1.1, -1.1, -2.1))
    assert terms.metrics["policy/clip_fraction"].tolist() == [1, 1, 0]
    token = sequence.gspo_token(now, then, column(1.0, 1.0, 2.0), ONE, low=0.1, high=0.1)
    torch.testing.assert_close(token.loss, terms.loss)


def test_gspo_and_gspo_token_differ_only_where_advantages_do() -> None:
    now, then = at(1.3, 0.8, 1.1)
    for advantage, alike in ((column(1.0, 1.0, -2.0), True), (column(1.0, 3.0, -2.0), False)):
        one, two = (
            slope(lambda x, f=form, a=advantage: f(x, then, a, ONE, low=0.5, high=0.5).loss, now)
            for form in (sequence.gspo, sequence.gspo_token)
        )
        assert torch.allclose(one, two) == alike


def test_gmpo() -> None:
    """A = 1: log-ratios log 4 (clipped to 0.4) and -1 (not clipped): exp(-0.3). A = -2: -1 is clipped to -0.4."""
    then = column(-3.0, -3.0, -3.0)
    now = then + column(math.log(4), -1.0, -1.0)
    terms = sequence.gmpo(now, then, column(1.0, 1.0, -2.0), ONE)
    torch.testing.assert_close(terms.loss, column(-math.exp(-0.3), -math.exp(-0.3), 2 * math.exp(-0.4)))
    assert terms.metrics["policy/clip_fraction"].tolist() == [1, 0, 1]


def test_vespo() -> None:
    """w = 2 * 0.75 = 1.5: phi = 1.5^2 exp(-1.5) for praise; w = 0.5: phi = 0.5^3 exp(1) for blame; w = 1: phi = 1."""
    now, then = at(2.0, 0.75, 0.5)
    terms = sequence.vespo(now, then, column(1.0, 1.0, -1.0), ONE)
    high, low = 1.5**2 * math.exp(-1.5), 0.5**3 * math.exp(1)
    torch.testing.assert_close(terms.metrics["policy/phi"], column(high, high, low))
    torch.testing.assert_close(terms.loss, column(-high, -high, low) * now)
    assert sequence.vespo(then, then, column(1.0, 1.0, -1.0), ONE).metrics["policy/phi"].tolist() == [1, 1, 1]


def test_dppo_masks_by_probability_and_not_by_ratio() -> None:
    """0.001 -> 0.004 is a ratio of 4 and stays; 0.5 -> 0.7 is a ratio of 1.4 and goes, unless it is to fall back."""
    then, now = column(0.001, 0.5, 0.5).log(), column(0.004, 0.7, 0.7).log()
    advantage = column(1.0, 1.0, -1.0)
    terms = trust.dppo_tv(now, then, advantage)
    torch.testing.assert_close(terms.loss, column(-4.0, 0.0, 1.4) * now)
    assert terms.metrics["policy/clip_fraction"].tolist() == [0, 1, 0]
    q, p = 0.5, 0.7
    expected = q * math.log(q / p) + (1 - q) * math.log((1 - q) / (1 - p))
    torch.testing.assert_close(trust.binary_kl(now, then)[1:], column(expected, expected))


@given(st.integers(0, 10_000), st.integers(1, 5), st.integers(0, 5))
def test_finer_outcomes_never_lower_a_divergence(seed: int, listed: int, chosen: int) -> None:
    """binary <= top-K (with the chosen token) <= the whole distribution, and K = V - 1 is the whole distribution."""
    rng = torch.Generator().manual_seed(seed)
    p, q = torch.log_softmax(2 * torch.randn(2, 1, 6, generator=rng, dtype=torch.float64), 2)
    top = q.topk(listed, dim=1).indices
    arguments = (p[:, chosen], q[:, chosen], p.gather(1, top), q.gather(1, top), (top == chosen).any(1))
    full_tv, full_kl = 0.5 * (p.exp() - q.exp()).abs().sum(), (q.exp() * (q - p)).sum()
    for binary, some, whole in (
        (trust.binary_tv(p[:, chosen], q[:, chosen]), trust.top_k_tv(*arguments), full_tv),
        (trust.binary_kl(p[:, chosen], q[:, chosen]), trust.top_k_kl(*arguments), full_kl),
    ):
        assert float(binary) <= float(some) + 1e-12
        assert float(some) <= float(whole) + 1e-12
        if listed == 5:
            assert float(some) == pytest.approx(float(whole), abs=1e-12)


def test_divergences_at_the_edge_are_finite() -> None:
    sure, hardly = column(0.0, 0.0, -1e-12, -400.0), column(0.0, -20.0, 0.0, -1.0)
    for one, other in ((sure, hardly), (hardly, sure)):
        assert torch.isfinite(trust.binary_kl(one, other)).all()
        assert (trust.binary_kl(one, other) >= -1e-6).all()


def test_m2po_and_covariance_terms() -> None:
    now, then = at(2.0, 3.0)
    torch.testing.assert_close(trust.m2po(now, then, column(1.0, 1.0), column(1, 0)).loss, column(-2.0, 0.0))
    held_back = covariance.kl_cov(now, then, column(1.0, 1.0), column(0, 1), penalty=0.5)
    torch.testing.assert_close(held_back.loss, column(-2, 0.5 * math.log(3) - 3))
    terms = covariance.clip_cov(now, then, column(1.0, -1.0), column(0, 1))
    torch.testing.assert_close(terms.loss, column(-1.2, 0.0))
    assert terms.metrics["policy/clip_fraction"].tolist() == [1, 1]
    assert terms.metrics["policy/covariance_fraction"].tolist() == [0, 1]


def test_simko() -> None:
    """Right: the value stays r, and 0.01 of its gradient goes to the candidates. Wrong and likeliest: 1.1 times A."""
    now, then = at(1.1, 1.1)
    top_then = column(0.5, 0.4, 0.5, 0.1).reshape(2, 2).log()
    top_now = (top_then + column(0.1, -0.1, 0.2, 0.0).reshape(2, 2)).requires_grad_()
    candidates = simko.TopKCandidates(logp=top_now, old_logp=top_then, drawn_is_top=torch.tensor([False, True]))
    terms = simko.simko(now, then, column(1.0, -1.0), candidates, torch.tensor([True, True]))
    torch.testing.assert_close(terms.loss, column(-1.1, 1.21), rtol=1e-7, atol=0)
    (found,) = torch.autograd.grad(terms.loss.sum(), top_now)
    torch.testing.assert_close(found, column(-0.0055, -0.0055, 0, 0).reshape(2, 2), rtol=1e-7, atol=0)
    assert simko.forking_tokens(column(1, 2, 3, 4, 9), torch.tensor([0, 0, 0, 0, 1]), quantile=0.8).tolist() == [
        0,
        0,
        0,
        1,
        0,
    ]


def test_dual_clip_of_simko() -> None:
    """Ratio 4, A = -1: the loss is the cap times |A| = 3, at a fork whose likeliest token was chosen 1.1 times that;
    a positive advantage knows no cap.
    """
    now, then = at(4.0, 4.0, 4.0, 2.0)
    now.requires_grad_()
    top = column(*8 * [0.5]).reshape(4, 2).log()
    candidates = simko.TopKCandidates(logp=top, old_logp=top, drawn_is_top=torch.tensor([True] * 4))
    advantage, forks = column(-1.0, -1.0, 1.0, -1.0), torch.tensor([False, True, False, False])
    free = simko.simko(now, then, advantage, candidates, forks)
    torch.testing.assert_close(free.loss, column(4.0, 4.4, -1.2, 2.0), rtol=1e-7, atol=0)
    capped = simko.SimkoStrength(high=0.5, negative_cap=3.0)
    terms = simko.simko(now, then, advantage, candidates, forks, capped)
    torch.testing.assert_close(terms.loss, column(3.0, 3.3, -1.5, 2.0), rtol=1e-7, atol=0)
    assert torch.autograd.grad(terms.loss.sum(), now)[0].tolist() == [0, 0, 0, 2]
    assert terms.metrics["policy/clip_fraction"].tolist() == [1, 1, 1, 0]


def test_entropy_terms() -> None:
    bonus = entropy.entropy_bonus(column(0.5, 1.0))
    torch.testing.assert_close(add_terms(LossTerms(loss=column(1.0, 1.0)), bonus, weight=0.1).loss, column(0.95, 0.9))
    factor = column(0.0, 2.0).requires_grad_()
    torch.testing.assert_close(scale_terms(bonus, factor).loss, column(0.0, -2.0))
    assert not scale_terms(bonus, factor).loss.requires_grad, "a factor is data"


def test_sums_within_sequences() -> None:
    values, owner = column(1, 2, 3, 4, 5), torch.tensor([3, 0, 3, 0, 1])
    torch.testing.assert_close(sequence_sum(values, owner), column(4, 6, 4, 6, 5))
    torch.testing.assert_close(sequence_mean(values, owner), column(2, 3, 2, 3, 5))
    empty, none = column(), torch.zeros(0, dtype=torch.int64)
    for function in (sequence_sum, sequence_mean):
        assert function(empty, none).shape == (0,)
    assert sequence_quantile(empty, none, 0.5).shape == (0,)


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-5, 5)), min_size=1, max_size=20), st.floats(0, 1))
def test_quantiles_within_sequences_are_torch_s(rows: list[tuple[int, float]], share: float) -> None:
    owner, values = torch.tensor([row[0] for row in rows]), column(*(row[1] for row in rows))
    found = sequence_quantile(values, owner, share)
    for number in set(owner.tolist()):
        expected = torch.quantile(values[owner == number], share)
        torch.testing.assert_close(found[owner == number], expected.expand((owner == number).sum()))
    torch.testing.assert_close(quantile(values, share), torch.quantile(values, share))


def softmax(seed: int, size: int = 5) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


UNBIASED: dict[str, Callable[[Tensor, Tensor, Tensor], LossTerms]] = {
    "importance": policy.importance_weighted,
    "ppo without clip": partial(policy.clipped_surrogate, low=1.0, high=math.inf),
    "cispo without cap": partial(policy.cispo, ratio_cap=math.inf),
    "dppo without mask": partial(trust.dppo_tv, max_increase=1.0, max_decrease=1.0),
    "decoupled without clip": lambda now, then, a: policy.decoupled_ppo(
        now, then, 0.5 * (now.detach() + then), a, clipped=partial(policy.clipped_surrogate, low=1.0, high=math.inf)
    ),
    "tis without cap": lambda now, then, a: mismatch.with_mismatch_correction(
        policy.importance_weighted(now, now.detach(), a), mismatch.truncated_is(now.detach(), then, weight_cap=math.inf)
    ),
    "dppo top": lambda now, then, a: trust.dppo(now, then, a, torch.ones(len(a), dtype=torch.bool)),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", UNBIASED)
def test_off_policy_gradients_are_unbiased_by_enumeration(name: str, seed: int) -> None:
    """E over the acting policy's choices of the gradient is the gradient of E over the learning policy's of A."""
    worth, then = softmax(seed + 10), torch.log_softmax(softmax(seed + 20), 0)

    def expected(logits: Tensor) -> Tensor:
        return (then.exp() * UNBIASED[name](torch.log_softmax(logits, 0), then, worth).loss).sum()

    def true(logits: Tensor) -> Tensor:
        return -(torch.softmax(logits, 0) * worth).sum()

    torch.testing.assert_close(slope(expected, softmax(seed)), slope(true, softmax(seed)))


@pytest.mark.parametrize("seed", range(3))
def test_clipping_biases_and_on_policy_reinforce_does_not(seed: int) -> None:
    worth, logits = softmax(seed + 10), softmax(seed)
    acted, other = torch.log_softmax(logits, 0), torch.log_softmax(softmax(seed + 20), 0)
    true = slope(lambda x: -(torch.softmax(x, 0) * worth).sum(), logits)
    found = slope(lambda x: (acted.exp() * policy.reinforce_loss(torch.log_softmax(x, 0), worth).loss).sum(), logits)
    torch.testing.assert_close(found, true)
    cut = slope(
        lambda x: (other.exp() * policy.clipped_surrogate(torch.log_softmax(x, 0), other, worth).loss).sum(), logits
    )
    assert not torch.allclose(cut, true, atol=1e-3)


def test_the_product_of_a_sequence_s_ratios_makes_stale_answers_unbiased() -> None:
    """Answers of two tokens, all 25 enumerated: only the whole product corrects the score-function gradient."""
    first, second, old = softmax(0), softmax(1), torch.log_softmax(softmax(2), 0)
    worth = torch.randn(5, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def expected(logits: Tensor, correction: Callable[..., Tensor]) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for a in range(5):
            for b in range(5):
                tables = (torch.log_softmax(logits[0], 0), torch.log_softmax(logits[1], 0))
                now = torch.stack([tables[0][a], tables[1][b]])
                then, owner = torch.stack([old[a], old[b]]), torch.zeros(2, dtype=torch.int64)
                terms = policy.reinforce_loss(now, worth[a, b].expand(2))
                factor = correction(now.detach(), then, owner)
                total = total + then.sum().exp() * mismatch.with_mismatch_correction(terms, factor).loss.sum()
        return total

    logits = torch.stack([first, second])
    true = slope(lambda x: -(torch.softmax(x[0], 0) @ worth @ torch.softmax(x[1], 0)), logits)
    product = slope(lambda x: expected(x, partial(mismatch.sequence_truncated_is, weight_cap=math.inf)), logits)
    torch.testing.assert_close(product, true)
    mean = slope(lambda x: expected(x, partial(mismatch.geometric_truncated_is, weight_cap=math.inf)), logits)
    assert not torch.allclose(mean, true, atol=1e-3)
