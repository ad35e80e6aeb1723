"""Options that other libraries have: sequence ratios of SAPO and CISPO, dual clip, GMPO's mask, SimPO, AOT, LD-DPO.

Values headed TRL were computed with TRL 1.16.0 (`GRPOTrainer._compute_loss`, `GMPOTrainer._compute_loss`,
`CPOTrainer.cpo_loss`) on the three answers below.
"""

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hone.objectives import implicit, policy, preference, selection, sequence, value
from hone.objectives import preference as reference_free
from hone.objectives.batchwide import aot_partners
from hone.objectives.terms import LossTerms
from hone.objectives.weights import sequence_mean, sequence_sum, token_mean


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


NOW = column(-1.0, -0.5, -2.0, -0.3, -3.0, -1.2, -0.7, -0.1)
THEN = column(-1.2, -0.5, -1.5, -0.35, -1.0, -2.9, -0.9, -0.12)
ADVANTAGE = column(1.0, 1.0, 1.0, -0.5, -0.5, -2.0, -2.0, -2.0)
ENTROPY = column(0.1, 0.9, 0.5, 0.7, 0.2, 0.3, 0.8, 0.6)
OWNER = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])
LENGTHS = np.array([3, 2, 3])
KEEP = torch.from_numpy(selection.high_entropy_mask(ENTROPY.numpy(), fraction=0.5)).double()


def by_sequence(loss, **options: object):
    return lambda now: loss(now, THEN, ADVANTAGE, OWNER, **options)


TRL = {
    "sapo sequence": (
        by_sequence(sequence.sequence_sapo), sequence_mean, 1.409191045815,
        [-0.100310219203, -0.100310219203, -0.100310219203, 0.028297941221, 0.028297941221, 0.340321054888,
         0.340321054888, 0.340321054888],
    ),
    "cispo sequence": (
        by_sequence(sequence.sequence_cispo, ratio_cap=1.5), token_mean, -0.431929552532,
        [-0.113104677254, -0.113104677254, -0.113104677254, 0.023574522098, 0.023574522098, 0.375, 0.375, 0.375],
    ),
    "grpo delta": (
        lambda now: policy.clipped_surrogate(now, THEN, ADVANTAGE, negative_cap=3.0), sequence_mean, 1.007236762105,
        [0.0, -0.111111111111, -0.067392295524, 0.087605924698, 0.0, 0.0, 0.271422835147, 0.226711408895],
    ),
    "gspo delta": (
        by_sequence(sequence.gspo, low=0.1, high=0.1, negative_cap=1.5), sequence_mean, 0.848387527321,
        [-0.100537490893, -0.100537490893, -0.100537490893, 0.0, 0.0, 0.0, 0.0, 0.0],
    ),
    "luspo": (
        by_sequence(sequence.luspo, low=0.2, high=0.2), sequence_sum, 3.154791007241,
        [-0.301612472679, -0.301612472679, -0.301612472679, 0.0, 0.0, 1.264320586203, 1.264320586203, 1.264320586203],
    ),
    "gmpo": (
        by_sequence(sequence.gmpo), sequence_mean, 1.102617616986,
        [-0.100537490893, -0.100537490893, -0.100537490893, 0.069954751731, 0.0, 0.421440195401, 0.421440195401,
         0.421440195401],
    ),
    "gmpo mask": (
        by_sequence(sequence.gmpo, keep=KEEP), sequence_mean, 0.586063896369,
        [0.0, -0.333333333333, 0.0, 0.175211849396, 0.0, 0.0, 0.372092690153, 0.372092690153],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRL)
def test_values_and_gradients_are_trl_s(name: str) -> None:
    loss, scheme, total, slopes = TRL[name]
    leaf = NOW.clone().requires_grad_()
    weight = torch.from_numpy(scheme(LENGTHS))[OWNER]
    found = loss(leaf).weighted_sum(weight)
    (slope,) = torch.autograd.grad(found, leaf)
    assert found.item() == pytest.approx(total, rel=2e-7)  # TRL has the temperatures of SAPO in float32
    torch.testing.assert_close(slope, column(*slopes), rtol=2e-7, atol=1e-11)


def test_verl_s_dual_clip_holds_for_every_ratio() -> None:
    """Ratio 4, A = -2, cap 3: the loss is 6 and has no gradient, for tokens, answers, and the decoupled clip."""
    now, then, advantage, owner = column(math.log(4)), column(0.0), column(-2.0), torch.tensor([0])
    capped = partial(policy.clipped_surrogate, negative_cap=3.0)
    losses = {
        "token": lambda x: capped(x, then, advantage),
        "gspo": lambda x: sequence.gspo(x, then, advantage, owner, negative_cap=3.0),
        "gspo_token": lambda x: sequence.gspo_token(x, then, advantage, owner, negative_cap=3.0),
        "luspo": lambda x: sequence.luspo(x, then, advantage, owner, negative_cap=3.0),
        "decoupled": lambda x: policy.decoupled_ppo(x, then, then, advantage, clipped=capped),
    }
    for name, loss in losses.items():
        leaf = now.clone().requires_grad_()
        terms: LossTerms = loss(leaf)
        assert terms.loss.item() == pytest.approx(6.0), name
        assert float(terms.metrics["policy/clip_fraction"]) == 1, name
        (slope,) = torch.autograd.grad(terms.loss.sum() + 0.0 * leaf.sum(), leaf)
        assert slope.item() == 0, name
    assert selection.clipped_mask(now.numpy(), then.numpy(), advantage.numpy(), negative_cap=3.0).tolist() == [True]
    assert selection.clipped_mask(now.numpy(), then.numpy(), advantage.numpy()).tolist() == [False]


def test_sequence_ratios_by_hand() -> None:
    """Ratios 4 and 1 of one answer: the geometric mean is 2; CISPO's cap of 1.5 holds for both tokens."""
    now, then, owner = column(math.log(0.4), math.log(0.5)), column(math.log(0.1), math.log(0.5)), torch.tensor([0, 0])
    one = column(1.0, 1.0)
    found = sequence.sequence_cispo(now, then, one, owner, ratio_cap=1.5)
    torch.testing.assert_close(found.loss, -1.5 * now)
    gate = 1 / (1 + math.exp(-1))
    torch.testing.assert_close(sequence.sequence_sapo(now, then, one, owner).loss, column(-4 * gate, -4 * gate))


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=6), st.sampled_from([-1.0, 0.0, 2.0]))
def test_answers_of_one_token_have_the_token_s_ratio(gaps: list[float], advantage: float) -> None:
    now, owner = column(*gaps) - 3.0, torch.arange(len(gaps))
    then, reward = torch.full_like(now, -3.0), torch.full_like(now, advantage)
    for whole, single in ((sequence.sequence_sapo, policy.sapo), (sequence.sequence_cispo, policy.cispo)):
        torch.testing.assert_close(whole(now, then, reward, owner).loss, single(now, then, reward).loss)


@given(st.integers(0, 1000))
def test_a_masked_geometric_mean_is_that_of_the_tokens_left(seed: int) -> None:
    """Slowly: drop the tokens first; an answer without any has a ratio of 1."""
    rng = torch.Generator().manual_seed(seed)
    now, then = (torch.randn(9, generator=rng, dtype=torch.float64) - 2 for _ in range(2))
    owner = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
    advantage = torch.randn(3, generator=rng, dtype=torch.float64)[owner]
    keep = (torch.rand(9, generator=rng) < 0.5).double()
    found = sequence.gmpo(now, then, advantage, owner, keep=keep).loss
    for place in range(9):
        mates = [j for j in range(9) if owner[j] == owner[place] and keep[j]]
        if not mates:
            assert found[place] == pytest.approx(-advantage[place].item())
            continue
        alone = sequence.gmpo(now[mates], then[mates], advantage[mates], torch.zeros(len(mates), dtype=torch.int64))
        assert found[place] == pytest.approx(alone.loss[0].item())
    full = sequence.gmpo(now, then, advantage, owner, keep=torch.ones(9, dtype=torch.float64)).loss
    torch.testing.assert_close(full, sequence.gmpo(now, then, advantage, owner).loss)


# ------------------------------------------------------------------------------------------- preferences

CHOSEN, REJECTED = column(-0.4, -1.1, -0.2), column(-0.9, -0.3, -0.25)


def test_simpo_s_smoothing_and_hinge_are_trl_s() -> None:
    smoothed = reference_free.simpo(CHOSEN, REJECTED, beta=2.0, margin=0.5, smoothing=0.1).loss
    torch.testing.assert_close(smoothed, column(0.52407698418, 2.00551952318, 0.8730152524))
    plain = reference_free.simpo(CHOSEN, REJECTED, beta=2.0, margin=0.5).loss
    torch.testing.assert_close(plain, column(0.47407698418, 2.21551952318, 0.9130152524))
    hinge = reference_free.simpo_hinge(CHOSEN, REJECTED, beta=2.0, margin=0.0).loss
    torch.testing.assert_close(hinge, column(0.0, 2.6, 0.9))
    margin = reference_free.simpo_hinge(CHOSEN, REJECTED, beta=2.0, margin=0.5).loss
    torch.testing.assert_close(margin, column(0.5, 3.1, 1.4))  # 1 - (2 (a_w - a_l) - 1/2)


@given(st.floats(-3, 0), st.floats(-3, 0), st.floats(0, 0.49), st.floats(0.1, 5), st.floats(0, 3))
def test_a_smoothed_label_mixes_both_answers(a: float, b: float, e: float, beta: float, margin: float) -> None:
    """(1 - e) of the loss as labelled and e of the loss of the opposite sign of x."""
    x = beta * (a - b) - margin
    slow = (1 - e) * math.log1p(math.exp(-x)) + e * math.log1p(math.exp(x))
    found = reference_free.simpo(column(a), column(b), beta=beta, margin=margin, smoothing=e).loss
    assert found.item() == pytest.approx(slow, rel=1e-9, abs=1e-12)
    assert reference_free.simpo_hinge(column(a), column(b), beta=beta, margin=margin).loss.item() == max(0.0, 1 - x)


def test_ld_dpo_by_hand() -> None:
    """Lengths 3 and 1: two tokens of the first are beyond the shared length and count a half."""
    logp, owner = column(-1.0, -0.5, -2.0, -4.0), torch.tensor([0, 1, 0, 0])
    shared = torch.tensor([1, 1])
    found = implicit.length_desensitised(logp, owner, shared, alpha=0.5)
    torch.testing.assert_close(found, column(-1.0 - 0.5 * 6.0, -0.5))
    torch.testing.assert_close(implicit.length_desensitised(logp, owner, shared, alpha=0.0), column(-1.0, -0.5))


@given(st.integers(0, 1000), st.floats(0, 1))
def test_ld_dpo_slowly(seed: int, alpha: float) -> None:
    rng = torch.Generator().manual_seed(seed)
    owner = torch.randint(0, 4, (15,), generator=rng)
    logp = -torch.rand(15, generator=rng, dtype=torch.float64)
    shared = torch.randint(0, 6, (4,), generator=rng)
    found = implicit.length_desensitised(logp, owner, shared, alpha=alpha)
    for answer in range(4):
        own = [logp[place].item() for place in range(15) if owner[place] == answer]
        cut = int(shared[answer])
        assert found[answer].item() == pytest.approx(sum(own[:cut]) + alpha * sum(own[cut:]), abs=1e-12)
    torch.testing.assert_close(
        implicit.length_desensitised(logp, owner, shared, alpha=1.0),
        torch.zeros(4, dtype=torch.float64).index_add(0, owner, logp),
    )


def test_aot_s_comparisons_by_hand() -> None:
    """Margins 3, -1 against reference margins 1, 0: by rank 3 with 1 and -1 with 0; beta 1/2: x = 1 and -1/2."""
    margin, reference = column(3.0, -1.0), column(0.0, 1.0)
    partner = torch.from_numpy(aot_partners(margin.numpy(), reference.numpy()))
    losses = {
        None: [math.log1p(math.exp(-1.0)), math.log1p(math.exp(0.5))],
        preference.hinge_comparison: [0.0, 1.5],
        preference.squared_hinge_comparison: [0.0, 2.25],
    }
    for comparison, expected in losses.items():
        found = preference.aot(margin, partner, beta=0.5, comparison=comparison).loss
        torch.testing.assert_close(found, column(*expected))
        smoothed = preference.aot(margin, partner, beta=0.5, smoothing=0.25, comparison=comparison).loss
        other = preference.aot(-margin, -partner, beta=0.5, comparison=comparison).loss
        torch.testing.assert_close(smoothed, 0.75 * found + 0.25 * other)


def test_unpaired_aot_with_a_hinge_has_the_sorted_form_s_gradient() -> None:
    chosen, rejected = column(0.3, -2.0, 1.0), column(0.5, -0.4, 2.0)

    def of_ranks(won: Tensor, lost: Tensor) -> Tensor:
        return torch.relu(1.0 - 0.5 * (won.sort().values - lost.sort().values)).sum()

    def by_rows(won: Tensor, lost: Tensor) -> Tensor:
        partners = (
            torch.from_numpy(aot_partners(*(x.detach().numpy() for x in pair))) for pair in ((won, lost), (lost, won))
        )
        comparison = preference.hinge_comparison
        return preference.aot_unpaired(won, lost, *partners, beta=0.5, comparison=comparison).loss.sum()

    slopes = []
    for loss in (of_ranks, by_rows):
        leaves = [chosen.clone().requires_grad_(), rejected.clone().requires_grad_()]
        total = loss(*leaves)
        slopes.append([total.detach(), *torch.autograd.grad(total, leaves)])
    for expected, found in zip(*slopes, strict=True):
        torch.testing.assert_close(found, expected)


# ------------------------------------------------------------------------------------------------ values


def test_clipped_huber_by_hand() -> None:
    """Old value 0, clip 0.2, delta 1. V = 3, target 2: 1/2, clipped 0.2: 1.8 - 1/2 = 1.3, the larger. V = -4, target 0:
    3.5, clipped -0.2: 0.02.
    """
    v, then, target = column(3.0, -4.0), column(0.0, 0.0), column(2.0, 0.0)
    terms = value.clipped_value(v, then, target, clip_range=0.2, delta=1.0)
    torch.testing.assert_close(terms.loss, column(1.3, 3.5))
    assert terms.metrics["value/clip_fraction"].tolist() == [1, 0]


@given(st.floats(-9, 9), st.floats(-9, 9), st.floats(-9, 9), st.floats(0.05, 2), st.floats(0.1, 30))
def test_clipped_huber_slowly(v: float, then: float, target: float, width: float, delta: float) -> None:
    def error(guess: float) -> float:
        size = abs(guess - target)
        return size * size / 2 if size <= delta else delta * (size - delta / 2)

    kept = then + min(max(v - then, -width), width)
    found = value.clipped_value(column(v), column(then), column(target), clip_range=width, delta=delta).loss.item()
    assert found == pytest.approx(max(error(v), error(kept)), rel=1e-12)
    wide = value.clipped_value(column(v), column(then), column(target), clip_range=width, delta=1e9).loss.item()
    squared = value.clipped_value(column(v), column(then), column(target), clip_range=width).loss.item()
    assert wide == pytest.approx(squared), "a wide Huber is the square"
