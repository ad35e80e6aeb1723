"""Adapters from functions of tensors to losses on views, and the penalties that every recipe shares."""

import pytest
import torch

from hone.objectives.kl import k3, weighted_k3
from hone.objectives.policy import clipped
from hone.objectives.sequence import gspo
from hone.objectives.weights import token_mean
from hone.train.text.loss import Loss, TokenView
from hone.train.text.loss_adapters import (
    Clip,
    Penalties,
    clip_loss,
    on_selected,
    on_sequences,
    on_tokens,
    penalised,
    policy_gradient,
    weighed,
)


def view(*, anchor: bool = True, entropy: bool = True) -> TokenView:
    def column(*values: float) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)

    now = column(-1.0, -0.4, -2.0).requires_grad_()
    return TokenView(
        now=now,
        then=column(-1.3, -0.5, -1.5),
        acted=column(-1.2, -0.6, -1.4),
        start=column(-1.3, -0.5, -1.5),
        advantage=column(1.0, 1.0, -2.0),
        chosen=torch.tensor([0, 1, 2]),
        sequence=torch.tensor([0, 0, 1]),
        entropy=column(0.5, 0.7, 0.9) if entropy else None,
        anchor=column(-1.1, -0.1, -2.5) if anchor else None,
        among=None,
        likeliest=None,
        factor=column(1.0, 0.0, 1.0),
    )


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_each_adapter_hands_over_its_columns() -> None:
    seen = view()
    same(on_tokens(clipped)(seen).loss, clipped(seen.now, seen.then, seen.advantage).loss)
    same(on_sequences(gspo)(seen).loss, gspo(seen.now, seen.then, seen.advantage, seen.sequence).loss)
    same(policy_gradient(seen).loss, -seen.advantage * seen.now)
    same(weighed(seen).loss, -seen.advantage * (seen.now - seen.then).exp())
    kept = on_selected(lambda now, then, advantage, factor: weighed(seen) if factor is seen.factor else None)
    same(kept(seen).loss, weighed(seen).loss)


def test_penalties_by_hand() -> None:
    seen = view()
    plain = clip_loss(Clip(), token_mean)
    both = clip_loss(Clip(kl=0.5, kl_estimator="k3", entropy=0.1), token_mean)
    expected = plain.objective(seen).loss + 0.5 * k3(seen.now, seen.anchor) - 0.1 * seen.entropy
    same(both.objective(seen).loss, expected)
    metrics = both.objective(seen).metrics
    same(metrics["policy/kl_reference"], (seen.now - seen.anchor).detach())
    same(metrics["policy/entropy_nats"], seen.entropy)
    assert "policy/clip_fraction" in metrics
    weighted = clip_loss(Clip(kl=0.5), token_mean).objective(seen).loss
    same(weighted, plain.objective(seen).loss + 0.5 * weighted_k3(seen.now, seen.anchor, logp_old=seen.then))


@pytest.mark.parametrize(
    ("penalties", "needs"),
    [
        (Penalties(), (True, False, False)),
        (Penalties(kl=0.1), (False, True, False)),
        (Penalties(entropy=0.1), (False, False, True)),
    ],
)
def test_penalties_say_what_they_need(penalties: Penalties, needs: tuple[bool, bool, bool]) -> None:
    """Neither is proportional to the advantage: sequences without one must then be computed."""
    loss = penalised(Loss(objective=policy_gradient, scheme=token_mean, proportional=True), penalties)
    assert (loss.proportional, loss.reference, loss.entropy) == needs


def test_clip_widths_are_where_they_belong() -> None:
    """r = e^0.3, e^0.1, e^-0.5 with A = 1, 1, -2: the first is above 1.2, the last below 0.8."""
    seen = view()
    same(
        clip_loss(Clip(), token_mean).objective(seen).loss,
        torch.tensor([-1.2, -1.105170918075648, 1.6], dtype=torch.float64),
    )
    high = clip_loss(Clip(clip_high=0.3), token_mean).objective(seen).loss
    same(high, torch.tensor([-1.3, -1.105170918075648, 1.6], dtype=torch.float64))
    low = clip_loss(Clip(clip_low=0.1), token_mean).objective(seen).loss
    same(low, torch.tensor([-1.2, -1.105170918075648, 1.8], dtype=torch.float64))
