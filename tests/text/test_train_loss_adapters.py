"""Adapters from functions of tensors to losses on views, and the penalties that every recipe shares."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from recipe_runs import settings, text_recipes

from hone.objectives.kl import k3, weighted_k3
from hone.objectives.policy import clipped_surrogate
from hone.objectives.sequence import gspo
from hone.objectives.weights import PromptScheme, token_mean
from hone.recipes.registry import load_recipe
from hone.text.loss import TokenLossSpec, TokenView
from hone.text.loss_adapters import (
    AggregationConfig,
    ClipConfig,
    ConstantLength,
    PenaltyConfig,
    aggregation_scheme,
    clip_loss,
    from_selected_columns,
    from_sequence_columns,
    from_token_columns,
    importance_objective,
    policy_gradient,
    with_penalties,
)


def view(*, anchor: bool = True, entropy: bool = True) -> TokenView:
    def column(*values: float) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64)

    now = column(-1.0, -0.4, -2.0).requires_grad_()
    return TokenView(
        logp=now,
        denominator_logp=column(-1.3, -0.5, -1.5),
        behaviour_logp=column(-1.2, -0.6, -1.4),
        old_logp=column(-1.3, -0.5, -1.5),
        advantage=column(1.0, 1.0, -2.0),
        chosen=torch.tensor([0, 1, 2]),
        sequence=torch.tensor([0, 0, 1]),
        entropy=column(0.5, 0.7, 0.9) if entropy else None,
        ref_logp=column(-1.1, -0.1, -2.5) if anchor else None,
        top_k_logp=None,
        old_top_k=None,
        token_factor=column(1.0, 0.0, 1.0),
    )


def same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_each_adapter_hands_over_its_columns() -> None:
    seen = view()
    same(
        from_token_columns(clipped_surrogate)(seen).loss,
        clipped_surrogate(seen.logp, seen.denominator_logp, seen.advantage).loss,
    )
    same(
        from_sequence_columns(gspo)(seen).loss,
        gspo(seen.logp, seen.denominator_logp, seen.advantage, seen.sequence).loss,
    )
    same(policy_gradient(seen).loss, -seen.advantage * seen.logp)
    same(importance_objective(seen).loss, -seen.advantage * (seen.logp - seen.denominator_logp).exp())
    kept = from_selected_columns(
        lambda now, then, advantage, factor: importance_objective(seen) if factor is seen.token_factor else None
    )
    same(kept(seen).loss, importance_objective(seen).loss)


def test_penalties_by_hand() -> None:
    seen = view()
    plain = clip_loss(ClipConfig(), token_mean)
    both = clip_loss(ClipConfig(kl=0.5, kl_estimator="k3", entropy=0.1), token_mean)
    expected = plain.objective(seen).loss + 0.5 * k3(seen.logp, seen.ref_logp) - 0.1 * seen.entropy
    same(both.objective(seen).loss, expected)
    metrics = both.objective(seen).metrics
    same(metrics["policy/kl_reference"], (seen.logp - seen.ref_logp).detach())
    same(metrics["policy/entropy_nats"], seen.entropy)
    assert "policy/clip_fraction" in metrics
    weighted = clip_loss(ClipConfig(kl=0.5), token_mean).objective(seen).loss
    same(
        weighted,
        plain.objective(seen).loss + 0.5 * weighted_k3(seen.logp, seen.ref_logp, logp_old=seen.denominator_logp),
    )


@pytest.mark.parametrize(
    ("penalties", "needs"),
    [
        (PenaltyConfig(), (True, False, False)),
        (PenaltyConfig(kl=0.1), (False, True, False)),
        (PenaltyConfig(entropy=0.1), (False, False, True)),
    ],
)
def test_penalties_say_what_they_need(penalties: PenaltyConfig, needs: tuple[bool, bool, bool]) -> None:
    """Neither is proportional to the advantage: sequences without one must then be computed."""
    loss = with_penalties(
        TokenLossSpec(objective=policy_gradient, scheme=token_mean, proportional_to_advantage=True), penalties
    )
    assert (loss.proportional_to_advantage, loss.needs_reference, loss.needs_entropy) == needs


def test_clip_widths_are_where_they_belong() -> None:
    """r = e^0.3, e^0.1, e^-0.5 with A = 1, 1, -2: the first is above 1.2, the last below 0.8."""
    seen = view()
    same(
        clip_loss(ClipConfig(), token_mean).objective(seen).loss,
        torch.tensor([-1.2, -1.105170918075648, 1.6], dtype=torch.float64),
    )
    high = clip_loss(ClipConfig(clip_high=0.3), token_mean).objective(seen).loss
    same(high, torch.tensor([-1.3, -1.105170918075648, 1.6], dtype=torch.float64))
    low = clip_loss(ClipConfig(clip_low=0.1), token_mean).objective(seen).loss
    same(low, torch.tensor([-1.2, -1.105170918075648, 1.8], dtype=torch.float64))


# ------------------------------------------------------------------------------------------- aggregation


def constant_weights(config: AggregationConfig, lengths: list[int], max_tokens: int) -> np.ndarray:
    scheme = aggregation_scheme(config, max_tokens)
    assert not isinstance(scheme, PromptScheme)
    return scheme(np.array(lengths))


def test_the_length_of_constant_length_by_hand() -> None:
    """Two answers of 3 and 5 tokens: 1 / (2 x 10) each; unset: 1 / (2 x max_tokens)."""
    own = AggregationConfig(aggregation=ConstantLength(constant_length=10))
    assert constant_weights(own, [3, 5], 8).tolist() == [0.05, 0.05]
    unset = AggregationConfig(aggregation="constant_length")
    assert constant_weights(unset, [3, 5], 8).tolist() == [1 / 16, 1 / 16]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(1, 50), st.integers(1, 50))
def test_the_length_scales_every_gradient_alike(lengths: list[int], length: int, max_tokens: int) -> None:
    """verl's seq-mean-token-sum-norm: the mean over answers with tokens of their sums, over `loss_scale_factor`."""
    config = AggregationConfig(aggregation=ConstantLength(constant_length=length))
    values = [np.arange(count) - 2.5 for count in lengths]
    weights = constant_weights(config, lengths, max_tokens)
    loss = sum(float(weight * value.sum()) for weight, value in zip(weights, values, strict=True))
    answers = max(sum(count > 0 for count in lengths), 1)
    assert loss == pytest.approx(sum(float(value.sum()) for value in values) / answers / length)


@pytest.mark.parametrize("name", text_recipes())
def test_every_aggregation_of_a_recipe_takes_a_length(name: str) -> None:
    config = load_recipe(name).config
    table = config.model_fields.get("algorithm")
    if table is None or not issubclass(table.annotation, AggregationConfig):
        return
    keys = {"aggregation": {"constant_length": 17}}
    algorithm = config.model_validate(settings(name, steps=3, full=False, algorithm=keys)).algorithm
    assert constant_weights(algorithm, [1, 2], 5).tolist() == [1 / 34, 1 / 34]
    with pytest.raises(ValidationError, match="constant_length"):
        config.model_validate(settings(name, steps=3, full=False, algorithm={"aggregation": {"constant_length": 0}}))


def test_simko_has_the_keys_of_the_clipped_losses() -> None:
    keys = {"negative_cap": 3.0, "clip_high": 0.28, "clip_low": 0.1}
    config = load_recipe("simko").config.model_validate(settings("simko", steps=3, full=False, algorithm=keys))
    found = config.algorithm
    assert (found.negative_cap, found.clip_high, found.clip_low) == (3.0, 0.28, 0.1)
    with pytest.raises(ValidationError, match=r"negative_cap = 1\.1 is below 1 \+ clip_high"):
        load_recipe("simko").config.model_validate(
            settings("simko", steps=3, full=False, algorithm={"negative_cap": 1.1})
        )
