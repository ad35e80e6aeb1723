"""Every policy loss against its slow twin, and what holds for all of them."""

from dataclasses import replace

import pytest
import torch
from policy_cases import BY_NAME, LOSSES, Case, View, factors, make_batch, on_policy, view, weight
from policy_slow import SLOW, Slow
from torch import Tensor

from hone.objectives import policy, weights
from hone.objectives.ratios import LOG_RATIO_LIMIT

cases = pytest.mark.parametrize("case", LOSSES, ids=lambda case: case.name)
NOT_PROPORTIONAL = {"dro", "kl_cov", "entropy_bonus", "kl_k2", "kl_k3", "kl_weighted_k3", "kl_k3_valued_k2"}
"""Part of their loss does not look at the advantage: their docstrings say so."""
CLIPPED = [
    case.name
    for case in LOSSES
    if "policy/clip_fraction" in case.loss(view(make_batch(), weight())).metrics and case.name not in NOT_PROPORTIONAL
]
RATIOS = [
    "importance", "ppo", "grpo", "dr_grpo", "dapo", "dual_clip", "cispo", "sapo", "decoupled", "dppo_tv", "dppo_kl",
    "dppo_top_tv", "dppo_top_kl", "m2po", "kl_cov", "tis", "mis", "icepop", "kpop", "sequence_tis", "sequence_mis",
    "geometric_tis", "geometric_rejection", "off_policy_mask", "reinforce",
]  # fmt: skip
"""Their gradient on policy is the policy gradient's; those of a sequence are looked at apart."""


def leaves(v: View) -> View:
    """The same view with `now`, entropy and candidates as leaves of the graph."""
    return replace(
        v,
        now=v.now.detach().requires_grad_(),
        entropy=v.entropy.detach().requires_grad_(),
        top_now=v.top_now.detach().requires_grad_(),
    )


def slopes(loss: Tensor, v: View) -> list[Tensor]:
    found = torch.autograd.grad(loss, [v.now, v.entropy, v.top_now], allow_unused=True, materialize_grads=True)
    return list(found)


def seen(case: Case, seed: int, *, by_sequence: bool = False) -> View:
    batch = make_batch(seed, by_sequence=by_sequence)
    return leaves(view(batch, weight(seed), factors(case, batch, weight(seed))))


def slow_batch(v: View) -> Slow:
    b = v.batch
    return Slow(
        now=list(v.now),
        entropy=list(v.entropy),
        top_now=[list(row) for row in v.top_now],
        then=b.then.tolist(),
        proximal=b.proximal.tolist(),
        anchor=b.anchor.tolist(),
        advantage=b.advantage.tolist(),
        top=b.top.tolist(),
        top_then=b.top_then.tolist(),
        chosen=b.chosen.tolist(),
        sequence=v.sequence.tolist(),
        factor=v.factor.tolist(),
    )


def test_every_loss_has_a_slow_twin() -> None:
    assert set(SLOW) == set(BY_NAME)


@pytest.mark.parametrize("seed", range(4))
@cases
def test_values_and_gradients_are_those_of_the_slow_version(case: Case, seed: int) -> None:
    v = seen(case, seed)
    mixed = torch.randn(len(v.now), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    fast = case.loss(v).loss
    slow = torch.stack([SLOW[case.name](slow_batch(v), t) for t in range(len(v.now))])
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    for one, other in zip(slopes((mixed * fast).sum(), v), slopes((mixed * slow).sum(), v), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", RATIOS)
def test_on_policy_the_gradient_is_the_policy_gradient(name: str) -> None:
    batch = on_policy(make_batch(), weight())
    case = BY_NAME[name]
    v = leaves(view(batch, weight(), factors(case, batch, weight())))
    (found, _, _) = slopes(case.loss(v).loss.sum(), v)
    torch.testing.assert_close(found, -batch.advantage)


@pytest.mark.parametrize("name", ["gspo", "gspo_token", "luspo", "gmpo"])
def test_on_policy_a_sequence_s_gradient_is_its_advantage_by_length(name: str) -> None:
    """Weighted by `sequence_mean`: -A / (E L); by `sequence_sum` (LUSPO): -A / E."""
    batch = on_policy(make_batch(by_sequence=True), weight())
    v = leaves(view(batch, weight()))
    lengths = torch.bincount(batch.sequence)
    scheme = weights.sequence_sum if name == "luspo" else weights.sequence_mean
    scale = torch.from_numpy(scheme(lengths.numpy()))[batch.sequence]
    (found, _, _) = slopes((scale * BY_NAME[name].loss(v).loss).sum(), v)
    by = torch.ones_like(scale) if name == "luspo" else lengths[batch.sequence]
    torch.testing.assert_close(found, -batch.advantage / (len(lengths) * by))


@cases
def test_without_advantage_there_is_no_gradient(case: Case) -> None:
    v = seen(case, 1)
    v = replace(v, batch=replace(v.batch, advantage=torch.zeros_like(v.batch.advantage)))
    (found, entropy, _) = slopes(case.loss(v).loss.sum(), v)
    if case.name in NOT_PROPORTIONAL:
        assert float(found.abs().sum() + entropy.abs().sum()) > 0, "it is said not to be proportional to the advantage"
    else:
        assert (found == 0).all()


@pytest.mark.parametrize("name", sorted(BY_NAME.keys() - NOT_PROPORTIONAL))
def test_a_step_along_the_gradient_praises_and_punishes(name: str) -> None:
    """No decision is pushed against its own advantage."""
    case = BY_NAME[name]
    v = seen(case, 2, by_sequence=True)
    (found, _, _) = slopes(case.loss(v).loss.sum(), v)
    assert (found * v.batch.advantage <= 0).all()


@pytest.mark.parametrize("name", CLIPPED)
def test_the_clip_fraction_counts_exactly_the_decisions_without_gradient(name: str) -> None:
    case = BY_NAME[name]
    v = seen(case, 3, by_sequence=True)
    terms = case.loss(v)
    (found, _, _) = slopes(terms.loss.sum(), v)
    factor = v.factor if case.name == "high_entropy" else torch.ones_like(found)
    kept = (factor != 0) & (1 - terms.metrics.get("mismatch/dropped_fraction", torch.zeros_like(found)) != 0)
    alive = (v.batch.advantage != 0) & kept
    if case.name == "off_policy_mask":
        alive &= case.loss(v).loss != 0
    assert torch.equal((found == 0)[alive], (terms.metrics["policy/clip_fraction"] != 0)[alive])


@cases
def test_metrics_are_one_number_a_decision_and_data(case: Case) -> None:
    v = seen(case, 0)
    terms = case.loss(v)
    assert terms.loss.shape == v.now.shape
    for name, value in terms.metrics.items():
        assert value.shape == v.now.shape, name
        assert torch.isfinite(value).all(), name
        assert not value.requires_grad, name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@cases
def test_absurd_log_probabilities_stay_finite(case: Case, dtype: torch.dtype) -> None:
    """Gaps of 500 nats in both directions: loss and gradient are finite numbers."""
    batch = make_batch(1)
    places = torch.arange(len(batch.x))
    now = torch.where(places % 2 == 0, -0.01, -500.0)
    then = torch.where(places % 3 == 0, -0.01, -500.0)
    batch = replace(
        batch,
        then=then.to(dtype),
        proximal=then.roll(1).to(dtype),
        anchor=then.roll(2).to(dtype),
        advantage=batch.advantage.to(dtype),
        top_then=batch.top_then.to(dtype),
    )
    v = view(batch, weight(1))
    v = leaves(replace(v, now=now.to(dtype), top_now=v.top_now.to(dtype), factor=(places % 4).to(dtype)))
    loss = case.loss(v).loss
    assert torch.isfinite(loss).all()
    for found in slopes(loss.sum(), v):
        assert torch.isfinite(found).all()
    assert all(torch.isfinite(value).all() for value in case.loss(v).metrics.values())


@cases
def test_half_precision_is_widened(case: Case) -> None:
    """bfloat16 in, float32 inside, and the value is that of the rounded numbers in float64."""
    v = seen(case, 2)

    def cast(wide: torch.dtype) -> View:
        def to(x: Tensor) -> Tensor:
            return x.detach().bfloat16().to(wide) if x.is_floating_point() else x

        columns = {name: to(column) for name, column in vars(v.batch).items()}
        return replace(
            v, now=to(v.now), entropy=to(v.entropy), top_now=to(v.top_now), batch=replace(v.batch, **columns)
        )

    half, exact = case.loss(cast(torch.bfloat16)).loss, case.loss(cast(torch.float64)).loss
    assert half.dtype == torch.float32
    scale = exact.abs().max()
    assert float((half.double() - exact).abs().max() / scale) < 2e-2


def test_widening_of_a_clip_keeps_its_limits() -> None:
    """Clips of infinite width are no clips; a sum of 2000 bfloat16 log-ratios is not stuck at 256."""
    v = seen(BY_NAME["ppo"], 5)
    b = v.batch
    wide = policy.clipped_surrogate(v.now, b.then, b.advantage, low=1.0, high=float("inf")).loss
    torch.testing.assert_close(wide, policy.importance_weighted(v.now, b.then, b.advantage).loss)
    ones = torch.ones(2000, dtype=torch.bfloat16)
    assert float(policy.importance_weighted(ones, torch.zeros_like(ones), ones).loss.sum()) == pytest.approx(
        -2000 * 2.71828, rel=1e-5
    )
    assert LOG_RATIO_LIMIT == 20.0
