"""Losses on pairs: values by hand, and what each one is for."""

from functools import partial
from math import e, inf, log

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from hone.core.errors import ConfigError
from hone.objectives.batchwide import aot_partners, same_rank
from hone.objectives.implicit import (
    alpha_link,
    forward_kl_link,
    js_link,
    reference_log_ratio,
    weighted_terms,
    wpo_aligned_logp,
    wpo_weight,
)
from hone.objectives.preference import (
    aot,
    aot_unpaired,
    apo_down,
    apo_zero,
    bco_pair,
    cpo,
    discopop,
    dpo,
    exo_pair,
    hinge,
    ipo,
    nca_pair,
    orpo,
    robust_dpo,
    simpo,
    sppo,
)
from hone.objectives.ratios import decision_rows, gather_decisions, linear_tail_exp, log1mexp, sum_by_sequence
from hone.objectives.reward_model import bradley_terry

L3 = log(3)  # sigmoid(log 3) = 3/4, sigmoid(-log 3) = 1/4
scores = st.floats(-30, 30)


def column(*values: float, grad: bool = False) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=grad)


def slopes(loss: Tensor, *leaves: Tensor) -> tuple[float, ...]:
    return tuple(slope.item() for slope in torch.autograd.grad(loss.sum(), leaves))


# -------------------------------------------------------------------------------------------------- by hand


@pytest.mark.parametrize(
    ("loss", "chosen", "rejected", "expected"),
    [
        (partial(dpo, beta=1.0), L3, 0.0, log(4 / 3)),
        (partial(dpo, beta=0.5), L3, -L3, log(4 / 3)),
        (dpo, 0.0, 0.0, log(2)),
        (partial(dpo, beta=1.0, smoothing=0.25), L3, 0.0, 0.75 * log(4 / 3) + 0.25 * log(4)),
        (partial(robust_dpo, beta=1.0, smoothing=0.25), L3, 0.0, (0.75 * log(4 / 3) - 0.25 * log(4)) / 0.5),
        (ipo, 3.0, 1.0, 9.0),  # the margin is 2, its target 5
        (partial(hinge, beta=0.25), 3.0, 1.0, 0.5),
        (partial(hinge, beta=0.25), 3.0, -2.0, 0.0),
        (partial(nca_pair, beta=1.0), L3, -L3, log(4 / 3) + 0.5 * log(4) + 0.5 * log(4 / 3)),
        (sppo, 3.0, -1.0, 4.0 + 16.0),  # targets 5 and -5
        (partial(sppo, probability=0.5), 3.0, -1.0, 9.0 + 1.0),  # a draw: stay at the reference
        (partial(apo_zero, beta=1.0), L3, -L3, 0.25 + 0.25),
        (partial(apo_down, beta=1.0), L3, 0.0, 0.75 + 0.25),
        (partial(exo_pair, beta=1.0, smoothing=0.5), L3, 0.0, 0.75 * log(1.5) + 0.25 * log(0.5)),
        (partial(discopop, beta=1.0, sharpness=1.0), L3, 0.0, 0.25 * log(4 / 3) + 0.75 / 3),
        (partial(simpo, beta=2.0, margin=L3), -1.0, -1.0 - L3, log(4 / 3)),
        (partial(bradley_terry, margin=1.0), L3 + 1.0, 0.0, log(4 / 3)),
        (partial(bradley_terry, centring=0.01), L3, -L3, -log(9 / 10)),
        (partial(bradley_terry, centring=0.01), 2.0, 2.0, log(2) + 0.16),
    ],
)
def test_by_hand(loss, chosen: float, rejected: float, expected: float) -> None:
    assert loss(column(chosen), column(rejected)).loss.item() == pytest.approx(expected, rel=1e-12)


def test_losses_with_more_columns_by_hand() -> None:
    """BCO: 1 nat above the shift and 1 below, at beta = log 3. CPO: log 3 between them, 2 nats over 4 tokens."""
    terms = bco_pair(column(3.0), column(1.0), column(2.0), beta=L3)
    assert terms.loss.item() == pytest.approx(2 * log(4 / 3))
    terms = cpo(column(-2.0), column(-2.0 - L3), torch.tensor([4]), beta=1.0)
    assert terms.loss.item() == pytest.approx(log(4 / 3) + 0.5)
    assert terms.metrics["policy/nll_nats"].item() == pytest.approx(0.5)


def test_orpo_by_hand() -> None:
    """Probabilities per token 3/4 and 1/2: odds 3 and 1."""
    terms = orpo(column(log(0.75)), column(log(0.5)), weight=0.1)
    assert terms.loss.item() == pytest.approx(log(4 / 3) + 0.1 * log(4 / 3))
    assert terms.metrics["preference/log_odds_nats"].item() == pytest.approx(L3)


def test_what_is_told() -> None:
    """A win, a loss, a tie: half of them are right; the margin is in nats, not times beta."""
    metrics = dpo(column(2.0, -1.0, 0.5), column(1.0, 2.0, 0.5), beta=0.1).metrics
    assert metrics["preference/accuracy"].tolist() == [1.0, 0.0, 0.5]
    assert metrics["preference/margin_nats"].tolist() == [1.0, -3.0, 0.0]
    assert metrics["preference/chosen_nats"].tolist() == [2.0, -1.0, 0.5]
    assert metrics["preference/rejected_nats"].tolist() == [1.0, 2.0, 0.5]


# ------------------------------------------------------------------------------------------ what each is for


@given(scores, scores, st.floats(0.01, 2.0))
def test_dpo_is_bradley_terry_on_implicit_rewards(chosen: float, rejected: float, beta: float) -> None:
    one = dpo(column(chosen), column(rejected), beta=beta).loss
    torch.testing.assert_close(one, bradley_terry(beta * column(chosen), beta * column(rejected)).loss)


@given(scores, scores, st.floats(0.0, 0.49))
def test_robust_dpo_is_unbiased_under_flipped_labels(chosen: float, rejected: float, flipped: float) -> None:
    won, lost = column(chosen), column(rejected)
    right = robust_dpo(won, lost, smoothing=flipped).loss
    wrong = robust_dpo(lost, won, smoothing=flipped).loss
    torch.testing.assert_close((1 - flipped) * right + flipped * wrong, dpo(won, lost).loss)


@given(scores, scores, st.floats(0.0, 1.0))
def test_cdpo_is_dpo_under_flipped_labels(chosen: float, rejected: float, flipped: float) -> None:
    won, lost = column(chosen), column(rejected)
    mean = (1 - flipped) * dpo(won, lost).loss + flipped * dpo(lost, won).loss
    torch.testing.assert_close(dpo(won, lost, smoothing=flipped).loss, mean)


@pytest.mark.parametrize("share", [0.5, 0.7, 1.0])
@pytest.mark.parametrize("beta", [0.1, 0.5])
def test_ipo_rests_where_the_margin_is_its_target(share: float, beta: float) -> None:
    """Preferred in a share p of comparisons: the gradient is 0 at D = (2p - 1) / (2 beta); DPO's never is at p = 1."""
    rest = (2 * share - 1) / (2 * beta)
    chosen = column(rest, grad=True)
    loss = share * ipo(chosen, column(0.0), beta=beta).loss + (1 - share) * ipo(column(0.0), chosen, beta=beta).loss
    assert slopes(loss, chosen)[0] == pytest.approx(0.0, abs=1e-12)
    assert slopes(dpo(chosen, column(0.0), beta=beta).loss, chosen)[0] < 0


def test_the_hinge_stops_at_its_margin() -> None:
    chosen = column(9.9, 10.1, grad=True)
    (gradient,) = torch.autograd.grad(hinge(chosen, column(0.0, 0.0)).loss.sum(), chosen)
    assert gradient.tolist() == [-0.1, 0.0]


def test_nca_holds_the_chosen_answer_up() -> None:
    """d/ds_w is 0 at sigmoid(beta s_w) = 2/3, whatever the rejected one: DPO would let both fall together."""
    chosen = column(log(2), -5.0, 5.0, grad=True)
    (gradient,) = torch.autograd.grad(nca_pair(chosen, column(-9.0, -9.0, -9.0), beta=1.0).loss.sum(), chosen)
    assert gradient[0].item() == pytest.approx(0.0, abs=1e-12)
    assert gradient[1] < 0 < gradient[2]


def test_apo_zero_lifts_the_chosen_and_apo_down_lowers_both() -> None:
    chosen, rejected = column(0.5, grad=True), column(-30.0, grad=True)
    up, down = slopes(apo_zero(chosen, rejected).loss, chosen, rejected)
    assert up < 0 < down
    first, second = slopes(apo_down(chosen, rejected).loss, chosen, rejected)
    assert first > 0
    assert second > 0


@given(st.floats(1e-4, 0.4))
def test_exo_is_a_divergence_with_its_zero_at_the_label(smoothing: float) -> None:
    rest = column(log((1 - smoothing) / smoothing), grad=True)
    loss = exo_pair(rest, column(0.0), beta=1.0, smoothing=smoothing).loss
    assert loss.item() == pytest.approx(0.0, abs=1e-12)
    assert slopes(loss, rest)[0] == pytest.approx(0.0, abs=1e-12)
    for other in (-3.0, 0.0, 9.9):
        assert exo_pair(column(other), column(0.0), beta=1.0, smoothing=smoothing).loss.item() >= -1e-12


def test_discopop_is_logistic_below_and_exponential_above() -> None:
    low, high = column(-20.0), column(20.0)
    torch.testing.assert_close(discopop(low, column(0.0)).loss, dpo(low, column(0.0)).loss)
    torch.testing.assert_close(discopop(high, column(0.0)).loss, torch.exp(-0.1 * high))


@pytest.mark.parametrize("smoothing", [0.5, 0.7, -0.1])
def test_robust_dpo_refuses_labels_that_say_nothing(smoothing: float) -> None:
    with pytest.raises(ConfigError, match=f"got {smoothing}"):
        robust_dpo(column(1.0), column(0.0), smoothing=smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 1.0])
def test_exo_refuses_a_sure_label(smoothing: float) -> None:
    with pytest.raises(ConfigError, match="infinite"):
        exo_pair(column(1.0), column(0.0), smoothing=smoothing)


@given(st.floats(0.05, 3.0))
def test_simpo_asks_for_a_margin(margin: float) -> None:
    """At a margin of exactly `margin` / beta the pair counts as undecided: log 2."""
    loss = simpo(column(-1.0), column(-1.0 - margin / 2.0), beta=2.0, margin=margin).loss
    assert loss.item() == pytest.approx(log(2))


# -------------------------------------------------------------------------------------------- implicit rewards


def test_log_ratio_by_hand() -> None:
    """-3 against -5 over 4 tokens; an empty answer is not divided by 0; the reference gets no gradient."""
    now, reference = column(-3.0, 0.0, grad=True), column(-5.0, 0.0, grad=True)
    assert reference_log_ratio(now, reference).tolist() == [2.0, 0.0]
    ratio = reference_log_ratio(now, reference, length=torch.tensor([4, 0]))
    assert ratio.tolist() == [0.5, 0.0]
    ratio.sum().backward()
    assert now.grad is not None
    assert reference.grad is None


def test_half_precision_is_widened_before_subtracting() -> None:
    """-1000 - (-1000.5): in bfloat16 the reference would be rounded to -1000 again only after this point."""
    now, reference = torch.tensor([-1000.0]).bfloat16(), torch.tensor([-1004.0]).bfloat16()
    assert reference_log_ratio(now, reference).dtype == torch.float32
    assert sum_by_sequence(torch.ones(1000).bfloat16(), torch.zeros(1000, dtype=torch.long), count=1).item() == 1000.0


@given(scores)
def test_links_rise_and_agree_with_the_log_ratio_near_0(score: float) -> None:
    """f'' is 1 at u = 1 for every f (JS: 1/2), so near the reference all of them are DPO; all of them rise."""
    for link, slope in (
        (forward_kl_link, 1.0),
        (js_link, 0.5),
        (alpha_link, 1.0),
        (partial(alpha_link, alpha=0.1), 1.0),
    ):
        leaf = column(0.0, grad=True)
        assert link(leaf).item() == pytest.approx(0.0, abs=1e-12)
        assert slopes(link(leaf), leaf)[0] == pytest.approx(slope)
        here = column(score, grad=True)
        assert slopes(link(here), here)[0] > 0


@given(scores)
def test_the_alpha_link_lies_between_both_kls(score: float) -> None:
    s = column(score)
    torch.testing.assert_close(alpha_link(s, alpha=1.0), forward_kl_link(s))
    torch.testing.assert_close(alpha_link(s, alpha=1e-7), s, rtol=1e-4, atol=1e-6)


def test_links_by_hand() -> None:
    """u = 3: 1 - 1/3, log(6/4), 2 (1 - 3^-1/2)."""
    s = column(L3)
    assert forward_kl_link(s).item() == pytest.approx(2 / 3)
    assert js_link(s).item() == pytest.approx(log(1.5))
    assert alpha_link(s).item() == pytest.approx(2 * (1 - 3**-0.5))


def test_wpo_by_hand() -> None:
    """p = (1/2, 1/4, 1/4): sum p^2 = 3/8. A token of 1/2 is above the policy's own draws, one of 1/4 below."""
    logits = torch.tensor([[0.5, 0.25, 0.25]] * 2, dtype=torch.float64).log()
    found = wpo_aligned_logp(column(log(0.5), log(0.25)), logits)
    torch.testing.assert_close(found, column(log(4 / 3), log(2 / 3)))
    weight = wpo_weight(found[:1], found[1:])
    assert weight.item() == pytest.approx(8 / 9)
    assert wpo_weight(found[:1], found[:1]).item() == 1.0, "never above 1"
    assert wpo_weight(found[:1], found[:1], cap=inf).item() == pytest.approx(16 / 9)
    terms = weighted_terms(dpo(column(0.0, grad=True), column(0.0)), weight)
    assert terms.loss.item() == pytest.approx(8 / 9 * log(2))
    assert terms.metrics["preference/weight"].item() == pytest.approx(8 / 9)


# ------------------------------------------------------------------------------------------------------- AOT


def sorted_form(ups: Tensor, downs: Tensor, beta: float, smoothing: float) -> Tensor:
    """As published: sort both, compare rank by rank."""
    gap = beta * (ups.sort().values - downs.sort().values)
    return (-(1 - smoothing) * F.logsigmoid(gap) - smoothing * F.logsigmoid(-gap)).sum()


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("seed", range(5))
def test_aot_is_the_sorted_form_however_the_batch_is_cut(seed: int, smoothing: float) -> None:
    torch.manual_seed(seed)
    first, second = (5 * torch.randn(11, dtype=torch.float64) for _ in range(2))
    margin = first.clone().requires_grad_()
    partner = torch.from_numpy(aot_partners(first.numpy(), second.numpy()))
    expected = sorted_form(margin, second, 0.1, smoothing)
    (wanted,) = torch.autograd.grad(expected, margin)
    pieces = torch.randperm(11).split(3)
    total = sum(aot(margin[rows], partner[rows], smoothing=smoothing).loss.sum() for rows in pieces)
    assert isinstance(total, Tensor)
    torch.testing.assert_close(total, expected)
    torch.testing.assert_close(torch.autograd.grad(total, margin)[0], wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("seed", range(5))
def test_unpaired_aot_is_the_sorted_form_however_the_batch_is_cut(seed: int, smoothing: float) -> None:
    """Both sides of a rank get their gradient, though they stand in different rows and perhaps different pieces."""
    torch.manual_seed(seed)
    chosen, rejected = ((5 * torch.randn(11, dtype=torch.float64)).requires_grad_() for _ in range(2))
    won, lost = chosen.detach().numpy(), rejected.detach().numpy()
    partners = torch.from_numpy(same_rank(won, lost)), torch.from_numpy(same_rank(lost, won))
    expected = sorted_form(chosen, rejected, 0.1, smoothing)
    wanted = torch.autograd.grad(expected, (chosen, rejected))
    total = torch.zeros((), dtype=torch.float64)
    for rows in torch.randperm(11).split(4):
        data = (partners[0][rows], partners[1][rows])
        total = total + aot_unpaired(chosen[rows], rejected[rows], *data, smoothing=smoothing).loss.sum()
    torch.testing.assert_close(total, expected)
    for found, gradient in zip(torch.autograd.grad(total, (chosen, rejected)), wanted, strict=True):
        torch.testing.assert_close(found, gradient, rtol=0, atol=1e-12)


def test_aot_by_hand() -> None:
    """Margins 5, 1, 3 against 2, 6, 4: ranks pair 1 with 2, 3 with 4, 5 with 6, all 1 short."""
    margin = np.array([5.0, 1.0, 3.0])
    partner = aot_partners(margin, np.array([2.0, 6.0, 4.0]))
    assert partner.tolist() == [6.0, 2.0, 4.0]
    terms = aot(torch.from_numpy(margin), torch.from_numpy(partner), beta=L3)
    torch.testing.assert_close(terms.loss, column(log(4), log(4), log(4)))
    assert terms.metrics["preference/dominance"].tolist() == [0.0, 0.0, 0.0]


# -------------------------------------------------------------------------------------------------- numerics


@given(st.floats(-60, -1e-5))
def test_log1mexp(x: float) -> None:
    exact = float(np.log1p(-np.exp(np.longdouble(x)))) if x < -0.1 else float(np.log(-np.expm1(np.longdouble(x))))
    leaf = column(x, grad=True)
    assert log1mexp(leaf).item() == pytest.approx(exact, rel=1e-12, abs=1e-30)
    assert slopes(log1mexp(leaf), leaf)[0] == pytest.approx(1 / np.expm1(-x) * -1, rel=1e-6, abs=1e-20)


def test_log1mexp_at_its_ends() -> None:
    for x in (0.0, -1e-9, -1e6, -torch.inf):
        leaf = torch.tensor([x], requires_grad=True)
        value = log1mexp(leaf)
        value.sum().backward()
        assert torch.isfinite(value).all()
        assert leaf.grad is not None
        assert torch.isfinite(leaf.grad).all()


def test_tame_exp() -> None:
    """exp up to 20, and on along the tangent."""
    x = column(-3.0, 20.0, 21.0, 1e4, grad=True)
    value = linear_tail_exp(x)
    torch.testing.assert_close(value[:2], column(e**-3, e**20))
    assert value[2].item() == pytest.approx(2 * e**20)
    (slope,) = torch.autograd.grad(value.sum(), x)
    torch.testing.assert_close(slope, column(e**-3, e**20, e**20, e**20))


def test_sums_of_padded_answers() -> None:
    """Three rows of up to three tokens, the second empty; NaN and infinity stand in the padding."""
    mask = torch.tensor([[1, 1, 0], [0, 0, 0], [1, 1, 1]])
    logp = torch.tensor([[-1.0, -2.0, torch.nan], [torch.inf, torch.nan, 0.0], [-1.0, -1.0, -0.5]], requires_grad=True)
    (kept,) = gather_decisions(mask, logp)
    total = sum_by_sequence(kept, decision_rows(mask), count=3)
    assert total.tolist() == [-3.0, 0.0, -2.5]
    total.sum().backward()
    assert logp.grad is not None
    torch.testing.assert_close(logp.grad, mask.float())
