"""Corrections over all tokens of a step: weights of mean 1, and rejected tokens that leave the denominator."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from recipe_runs import job_of, lay_out, scores_of, settings
from test_train_loss import episodes_of, loss, policy

from hone.learner.gradient import micro_batches
from hone.objectives.weights import PromptScheme
from hone.recipes.registry import load_recipe
from hone.text.loss import TokenLoss
from hone.text.loss_adapters import AGGREGATIONS
from hone.text.ratio import RatioConfig, StepCorrection
from hone.text.rows import TokenLayout

GAP = torch.tensor([0.5, -0.25, 1.0, -1.5, 0.125, 2.0, -0.75, 0.0, 0.25], dtype=torch.float64)
"""Trainer minus engine, nats, of answers of 4, 2 and 3 tokens."""
OWNER = torch.tensor([0, 0, 0, 0, 1, 1, 2, 2, 2])
LOSS = np.array([1.0, -2.0, 3.0, 4.0, -5.0, 6.0, 7.0, -8.0, 9.0])
ENGINE = torch.full_like(GAP, -3.0)


def step_correction(**ratio: Any) -> StepCorrection:
    found = RatioConfig.model_validate(ratio).resolve_step_correction()
    assert found is not None
    return found


def columns(**ratio: Any) -> tuple[np.ndarray, np.ndarray | None]:
    factor, counted = step_correction(**ratio).columns(ENGINE + GAP, ENGINE, OWNER)
    return factor.numpy(), None if counted is None else counted.numpy()


# ------------------------------------------------------------------------------------------ normalised weights


def test_normalised_weights_by_hand() -> None:
    """Ratios 2, 1/4 and 1. Capped at 1.5 their mean is 11/12; the answers' products 1/2 and 1 have the mean 3/4."""
    trainer, engine = (torch.tensor(row, dtype=torch.float64).log() for row in ([0.5, 0.1, 0.9], [0.25, 0.4, 0.9]))
    owner = torch.tensor([0, 0, 1])
    tokens = step_correction(correction="truncated_is", weight_cap=1.5, normalise_weights=True)
    found, counted = tokens.columns(trainer, engine, owner)
    np.testing.assert_allclose(found.numpy(), np.array([1.5, 0.25, 1.0]) * 12 / 11, rtol=1e-12)
    assert counted is None
    answers = step_correction(correction="sequence_truncated_is", normalise_weights=True)
    np.testing.assert_allclose(answers.columns(trainer, engine, owner)[0].numpy(), [2 / 3, 2 / 3, 4 / 3], rtol=1e-12)


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (
            {"correction": "truncated_is", "weight_cap": 2.0},
            "1.4078007835950297 0.6649980030928834 1.7077486760357112 0.19052511778855863 0.9675663852383934 "
            "1.7077486760357112 0.4033416775235104 0.8538743380178556 1.0963963526723464",
        ),
        (
            {"correction": "sequence_truncated_is", "weight_cap": 2.0},
            "0.6901546859864953 0.6901546859864953 0.6901546859864953 0.6901546859864953 1.772352316505614 "
            "1.772352316505614 0.537493009886682 0.537493009886682 0.537493009886682",
        ),
        (
            {"correction": "icepop", "weight_floor": 0.5, "weight_cap": 2.0},
            "2.538796140456237 1.1992423809795056 0 0 1.7448873683714707 0 0 1.5398576979468088 1.9772164222459774",
        ),
    ],
)
def test_normalised_weights_are_those_of_verl(ratio: dict[str, Any], expected: str) -> None:
    """Printed by verl 0.9.1's `compute_rollout_correction_weights` with `rollout_is_batch_normalize`."""
    found, _ = columns(normalise_weights=True, **ratio)
    np.testing.assert_allclose(found, [float(one) for one in expected.split()], rtol=1e-7)


@given(
    st.lists(st.tuples(st.floats(-3, 3), st.integers(0, 3)), min_size=1, max_size=12),
    st.sampled_from(["truncated_is", "masked_is", "sequence_truncated_is", "geometric_truncated_is"]),
)
def test_normalised_weights_have_the_mean_1(tokens: list[tuple[float, int]], correction: str) -> None:
    """Over tokens, or over answers; and they are the plain weights up to one factor. A mean of at most 1e-8 divides
    nothing.
    """
    gap, owner = (list(column) for column in zip(*sorted(tokens, key=lambda one: one[1]), strict=True))
    numbers = torch.tensor(owner)
    trainer = torch.tensor(gap, dtype=torch.float64)
    engine = torch.zeros_like(trainer)
    ratio: dict[str, Any] = {"correction": correction, "weight_cap": 1.5}
    found = step_correction(normalise_weights=True, **ratio).columns(trainer, engine, numbers)[0].tolist()
    plain = RatioConfig.model_validate(ratio).resolve_correction()
    assert plain is not None
    weights = plain(trainer, engine, numbers).tolist()
    if correction.endswith("masked_is") or correction == "truncated_is":
        mean = sum(weights) / len(weights)
    else:
        per_answer = dict(zip(owner, weights, strict=True))
        mean = sum(per_answer.values()) / len(per_answer)
    assert found == pytest.approx([one / mean if mean > 1e-8 else one for one in weights])


# ------------------------------------------------------------------------------------- rejected tokens

VERL_MODES = ("token_mean", "sequence_mean", "sequence_sum", "constant_length", "token_sum")


def weigh(name: str, lengths: np.ndarray, group: np.ndarray) -> np.ndarray:
    if name.startswith("prompt"):
        return AGGREGATIONS[name](lengths, group)
    return AGGREGATIONS[name](lengths, **({"length": 10} if name == "constant_length" else {}))


@pytest.mark.parametrize(
    ("bounds", "kept", "losses"),
    [
        (
            {"statistic": "k3", "max_nats": 0.2},
            [1, 1, 0, 0, 1, 0, 0, 1, 1],
            [-1.0, -1.66666665, -1.6666666666666667, -0.16666666666666669, -5.0],
        ),
        (
            {"statistic": "k3", "over": "sequence_mean", "max_nats": 0.4},
            [0, 0, 0, 0, 0, 0, 1, 1, 1],
            [2.6666666666666665, 2.666666657777778, 8.0, 0.8, 8.0],
        ),
        (
            {"statistic": "k2", "over": "sequence_max", "max_nats": 1.5},
            [1, 1, 1, 1, 0, 0, 1, 1, 1],
            [2.0, 2.083333327013889, 7.0, 0.7, 14.0],
        ),
    ],
)
def test_aggregated_losses_are_those_of_verl(bounds: dict[str, Any], kept: list[int], losses: list[float]) -> None:
    """Printed by verl 0.9.1's `agg_loss` under the mask of its `compute_rollout_rejection_mask`."""
    factor, counted = columns(rejections=[bounds], count_rejected=False)
    assert counted is not None
    assert factor.tolist() == counted.tolist() == kept
    lengths = np.bincount(OWNER[torch.from_numpy(counted)], minlength=3)
    for name, expected in zip(VERL_MODES, losses, strict=True):
        weight = weigh(name, lengths, np.zeros(3, np.int64))[OWNER]
        assert float((weight * factor * LOSS).sum()) == pytest.approx(expected, rel=1e-7)


def scheme_of(name: str) -> Any:
    if name.startswith("prompt"):
        return PromptScheme(AGGREGATIONS[name])
    return partial(weigh, name, group=np.zeros(0)) if name == "constant_length" else AGGREGATIONS[name]


def slow_weights(name: str, kept: list[int], group: list[int]) -> list[float]:
    """Weight of a kept token of each answer; `kept` tokens of it, and its prompt."""
    prompts = {one for one, count in zip(group, kept, strict=True) if count}
    answers = sum(count > 0 for count in kept)
    result: list[float] = []
    for number, count in enumerate(kept):
        mates = [other for other in range(len(kept)) if group[other] == group[number]]
        result.append(
            0.0
            if not count
            else {
                "token_mean": 1 / sum(kept),
                "sequence_mean": 1 / (answers * count),
                "sequence_sum": 1 / answers,
                "constant_length": 1 / (answers * 10),
                "token_sum": 1.0,
                "prompt_mean": 1 / (len(prompts) * sum(kept[other] for other in mates)),
                "prompt_sequence_mean": 1 / (len(prompts) * sum(kept[other] > 0 for other in mates) * count),
            }[name]
        )
    return result


@pytest.mark.parametrize("name", AGGREGATIONS)
@examples(8)
@given(seed=st.integers(0, 10_000), skip=st.booleans(), budget=st.integers(5, 60))
def test_a_rejected_token_weighs_as_if_it_were_not_there(name: str, seed: int, skip: bool, budget: int) -> None:
    """Every aggregation, in micro-batches of any size, also where answers without an advantage are not computed."""
    network, rng = policy(), np.random.default_rng(seed)
    episodes, credits = episodes_of(rng)
    silent = rng.random(len(episodes)) < 0.3
    credits = replace(credits, advantage=np.where(silent[episodes.owner], 0.0, credits.advantage).astype(np.float32))
    ratio = {"rejections": [{"statistic": "k2", "max_nats": 0.01}], "count_rejected": False}
    asked = TokenLoss(
        loss=loss(scheme=scheme_of(name)),
        denominator="recomputed",
        micro_batch_tokens=budget,
        step_correction=step_correction(**ratio),
    )
    layout = TokenLayout(scheme=scheme_of(name), skip_zero_advantage=skip)
    rows = asked.layout(layout, network)(episodes, credits)
    counted = rows.precomputed.counted
    assert counted is not None
    kept = [int(counted[episodes.owner == one].sum()) for one in range(len(episodes))]
    weights = slow_weights(name, kept, episodes.group.tolist())
    ratio_one = -credits.advantage.astype(np.float64)  # the surrogate before the first step: -A
    expected = sum(weights[one] * ratio_one[place] for place, one in enumerate(episodes.owner) if counted[place])
    total = 0.0
    for piece in micro_batches(rows.weighted(), budget):
        batch = piece.tensors()
        total += float(asked.objective(network, batch).weighted_sum(batch.weight).detach())
    assert total == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_all_tokens_rejected_is_a_loss_of_0() -> None:
    network = policy()
    episodes, credits = episodes_of(np.random.default_rng(3))
    never = step_correction(rejections=[{"statistic": "k1", "min_nats": 50.0}], count_rejected=False)
    asked = TokenLoss(loss=loss(), denominator="self", micro_batch_tokens=9, step_correction=never)
    batch = (
        asked.layout(TokenLayout(scheme=AGGREGATIONS["token_mean"]), network)(episodes, credits).weighted().tensors()
    )
    terms = asked.objective(network, batch)
    assert float(terms.weighted_sum(batch.weight).detach()) == 0.0
    assert bool((terms.metrics["mismatch/dropped_fraction"] == 1).all())


def test_weights_of_geometric_kept_are_rejections_and_zero_weights_are_not() -> None:
    _, counted = columns(correction="geometric_kept", weight_floor=0.8, weight_cap=1.25, count_rejected=False)
    assert counted is not None
    assert counted.tolist() == [True] * 4 + [False] * 2 + [True] * 3
    factor, counted = columns(
        correction="icepop", weight_floor=0.5, weight_cap=2.0, rejections=[{"max_nats": 9.0}], count_rejected=False
    )
    assert counted is not None
    assert counted.all()
    assert (factor == 0).sum() == 4


@pytest.mark.parametrize("denominator", ["self", "recomputed"])
def test_the_whole_step_gives_the_factors_of_its_micro_batches(denominator: Any) -> None:
    """Without normalisation the factors are those of the correction by micro-batches; the ratio stays what it was."""
    network = policy()
    episodes, credits = episodes_of(np.random.default_rng(8))
    ratio: dict[str, Any] = {"correction": "truncated_is", "rejections": [{"statistic": "k2", "max_nats": 0.05}]}
    plain = TokenLoss(
        loss=loss(),
        denominator=denominator,
        micro_batch_tokens=12,
        correction=RatioConfig.model_validate(ratio).resolve_correction(),
    )
    whole = replace(plain, correction=None, step_correction=step_correction(count_rejected=False, **ratio))
    layout = TokenLayout(scheme=AGGREGATIONS["token_mean"])
    found, expected = (
        one.objective(network, one.layout(layout, network)(episodes, credits).weighted().tensors())
        for one in (whole, plain)
    )
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-6, atol=1e-9)
    assert found.metrics["policy/ratio_max"].unique().tolist() == expected.metrics["policy/ratio_max"].unique().tolist()


# ----------------------------------------------------------------------------------------------- configs


def test_the_default_corrects_micro_batch_by_micro_batch() -> None:
    assert RatioConfig().resolve_step_correction() is None
    assert RatioConfig.model_validate({"correction": "icepop"}).resolve_step_correction() is None


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        ({"normalise_weights": True}, r'correction = "none" has no weights'),
        ({"normalise_weights": True, "correction": "geometric_kept"}, r'correction = "geometric_kept" has no weights'),
        ({"count_rejected": False}, "nothing is rejected"),
        ({"count_rejected": False, "correction": "icepop"}, "nothing is rejected"),
    ],
)
def test_what_has_no_effect_is_refused(ratio: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        load_recipe("grpo").config.model_validate(settings("grpo", steps=3, learner={"ratio": ratio}))


@pytest.mark.parametrize(("name", "correction"), [("grpo", "truncated_is"), ("decoupled_ppo", "none")])
def test_a_run_with_all_of_it(name: str, correction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every figure of every step is a number."""
    lay_out(tmp_path, monkeypatch)
    ratio = {"correction": correction, "count_rejected": False, "rejections": [{"statistic": "k2", "max_nats": 1.0}]}
    ratio |= {} if correction == "none" else {"normalise_weights": True}
    job = job_of(name, settings(name, steps=3, learner={"ratio": ratio}))
    assert len(scores_of(job, steps=3)) == 3
