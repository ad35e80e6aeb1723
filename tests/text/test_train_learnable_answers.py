"""Answers without a reward, and answers that a limit cut: which of them a loss and its denominators count."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from test_train_loss import LAYOUT, episodes_of, loss, policy
from test_train_truncated import fields

from hone.core.credit import NO_VALUES, Credits
from hone.core.episodes import Episodes, ScoreStatus
from hone.credit.group import group_relative
from hone.credit.shaping import overlong_filtered, without_truncated
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.terms import LossTerms
from hone.objectives.weights import PromptScheme
from hone.recipes.registry import load_recipe, recipe_names
from hone.rewards.config import LearnableConfig
from hone.text.loss import TokenLoss, TokenView
from hone.text.loss_adapters import AGGREGATIONS
from hone.text.rl import TextGradientRunConfig, TextRunConfig
from hone.text.rows import TokenLayout, TokenRows, learnable_answers

PROMPTS, SAMPLES = 3, 4
MISSING = np.array([0, 1, 0, 1, 1, 1, 1, 1, 0, 0, 1, 0], dtype=bool)
"""Answers without a score: two of the first prompt, all of the second, one of the third."""


def batch(*, missing: np.ndarray | None = None, truncated: np.ndarray | None = None) -> tuple[Episodes, Credits]:
    """12 answers to 3 prompts with scores; A = group-relative."""
    rng = np.random.default_rng(11)
    episodes, _ = episodes_of(rng, prompts=PROMPTS, samples=SAMPLES)
    status = np.zeros(len(episodes), np.uint8) if missing is None else np.where(missing, ScoreStatus.ERROR, 0)
    score = np.where(status > 0, np.nan, rng.normal(size=len(episodes)))
    episodes = replace(
        episodes,
        group=np.repeat(np.arange(PROMPTS), SAMPLES),
        score=score,
        status=status.astype(np.uint8),
        truncated=np.zeros(len(episodes), bool) if truncated is None else truncated,
    )
    return episodes, group_relative(episodes, NO_VALUES)


def gradient_of(network: TokenPolicy, rows: TokenRows, asked: TokenLoss) -> torch.Tensor:
    network.zero_grad()
    tensors = rows.weighted().tensors()
    asked.objective(network, tensors).weighted_sum(tensors.weight).backward()
    return torch.cat([p.grad.flatten() for p in network.parameters()])


def answer_gradients(network: TokenPolicy, episodes: Episodes) -> list[torch.Tensor]:
    """d/dw sum_t -log pi(y_t) of each answer, from a pass of its own."""
    found: list[torch.Tensor] = []
    for one in range(len(episodes)):
        alone = episodes.take(np.array([one]))
        whole = TokenLayout(scheme=AGGREGATIONS["token_sum"])
        ones = Credits(advantage=np.ones(alone.decisions, np.float32))
        tensors = whole(alone, ones).weighted().tensors()
        network.zero_grad()
        (-network.token_logprobs(tensors.packed, tensors.at, tensors.chosen).logp).sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in network.parameters()]))
    return found


def written_out_weights(name: str, lengths: list[int], group: list[int], counted: list[bool]) -> list[float]:
    """Weight of a token of each answer by the formulas of `objectives/weights.py`, over counted answers only."""
    own = [length for length, flag in zip(lengths, counted, strict=True) if flag]
    prompts = {g for g, flag in zip(group, counted, strict=True) if flag}

    def weight(length: int, g: int) -> float:
        peers = [n for n, h, flag in zip(lengths, group, counted, strict=True) if flag and h == g]
        return {
            "token_mean": lambda: 1 / sum(own),
            "sequence_mean": lambda: 1 / (len(own) * length),
            "constant_length": lambda: 1 / (len(own) * 7),
            "token_sum": lambda: 1.0,
            "sequence_sum": lambda: 1 / len(own),
            "prompt_mean": lambda: 1 / (len(prompts) * sum(peers)),
            "prompt_sequence_mean": lambda: 1 / (len(prompts) * len(peers) * length),
        }[name]()

    return [weight(n, g) if flag else 0.0 for n, g, flag in zip(lengths, group, counted, strict=True)]


def scheme_of(name: str) -> Any:
    scheme = AGGREGATIONS[name]
    if name.startswith("prompt"):
        return PromptScheme(scheme)
    return (lambda lengths: scheme(lengths, length=7)) if name == "constant_length" else scheme


@pytest.mark.parametrize("count_missing", [False, True])
@pytest.mark.parametrize("name", sorted(AGGREGATIONS))
def test_the_gradient_with_missing_rewards_is_the_one_written_out(name: str, count_missing: bool) -> None:
    """sum over scored answers of w_i A_i d(-log pi_i), w_i by counts of scored answers, or by the old rule of all."""
    network = policy()
    episodes, credits = batch(missing=MISSING)
    asked = TokenLoss(
        loss=loss(scheme=scheme_of(name)),
        denominator="self",
        micro_batch_tokens=1 << 20,
        learnable=LearnableConfig(count_missing=count_missing),
    )
    found = gradient_of(network, asked.layout(TokenLayout(scheme=scheme_of(name)), network)(episodes, credits), asked)
    counted = [count_missing or not missing for missing in MISSING]
    weights = written_out_weights(name, episodes.lengths.tolist(), episodes.group.tolist(), counted)
    advantage = credits.advantage[episodes.offsets[:-1]]
    per_answer = answer_gradients(network, episodes)
    expected = torch.stack([w * float(a) * g for w, a, g in zip(weights, advantage, per_answer, strict=True)]).sum(0)
    assert float(np.abs(advantage[MISSING]).max()) == 0
    assert float(expected.abs().max()) > 1e-3
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_half_of_the_rewards_missing_does_not_halve_the_gradient() -> None:
    """The same scored answers with and without as many unscored ones: the token mean is the same."""
    network = policy()
    episodes, credits = batch()
    twice = np.concatenate([np.arange(len(episodes)), np.arange(len(episodes))])
    doubled = episodes.take(twice)
    unscored = np.arange(len(twice)) >= len(episodes)
    doubled = replace(
        doubled,
        score=np.where(unscored, np.nan, doubled.score),
        status=np.where(unscored, ScoreStatus.TIMEOUT, doubled.status).astype(np.uint8),
    )
    advantage = np.append(credits.advantage, np.zeros_like(credits.advantage))
    plain = TokenLoss(loss=loss(), denominator="self", micro_batch_tokens=1 << 20)
    old = replace(plain, learnable=LearnableConfig(count_missing=True))
    whole = gradient_of(network, plain.layout(LAYOUT, network)(episodes, credits), plain)
    half = Credits(advantage=advantage)
    now = gradient_of(network, plain.layout(LAYOUT, network)(doubled, half), plain)
    before = gradient_of(network, old.layout(LAYOUT, network)(doubled, half), old)
    torch.testing.assert_close(now, whole, rtol=0, atol=0)
    torch.testing.assert_close(before, whole / 2, rtol=1e-5, atol=1e-8)


def with_kl(view: TokenView) -> LossTerms:
    """A loss with a term that needs no advantage."""
    assert view.entropy is not None
    return LossTerms(loss=-view.advantage * view.logp - 0.1 * view.entropy)


def test_terms_without_an_advantage_leave_unscored_answers_out_too() -> None:
    network = policy()
    episodes, credits = batch(missing=MISSING)
    asked = TokenLoss(loss=loss(objective=with_kl, needs_entropy=True), denominator="self", micro_batch_tokens=1 << 20)
    kept = np.flatnonzero(~MISSING)
    owners = np.isin(episodes.owner, kept)
    alone = (episodes.take(kept), Credits(advantage=credits.advantage[owners]))
    found = gradient_of(network, asked.layout(LAYOUT, network)(episodes, credits), asked)
    expected = gradient_of(network, asked.layout(LAYOUT, network)(*alone), asked)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


# ------------------------------------------------------------------------------------------------- what is learnable


def test_where_every_reward_has_a_value_nothing_is_copied() -> None:
    episodes, credits = batch()
    assert learnable_answers(episodes, credits, LearnableConfig()) == (episodes, credits)


def test_a_step_without_any_score_keeps_its_rows() -> None:
    episodes, credits = batch(missing=np.ones(12, bool))
    assert learnable_answers(episodes, credits, LearnableConfig())[0] is episodes


def test_an_answer_that_a_teacher_graded_needs_no_score() -> None:
    episodes, _ = batch(missing=MISSING)
    graded = Credits(advantage=np.where(episodes.owner == 1, 0.5, 0).astype(np.float32))
    kept, _ = learnable_answers(episodes, graded, LearnableConfig())
    assert len(kept) == int((~MISSING).sum()) + 1


def test_all_rows_of_a_dialogue_share_its_fate() -> None:
    """Three dialogues of two rows: the last row has the score and the limit."""
    episodes, _ = batch()
    episodes = episodes.take(np.arange(6))
    episodes = replace(
        episodes,
        group=np.zeros(6, np.int64),
        id=np.repeat(np.arange(3), 2),
        part=np.tile([0, 1], 3).astype(episodes.group.dtype),
        status=np.repeat([0, ScoreStatus.ERROR, 0], 2).astype(np.uint8),
        truncated=np.array([0, 0, 0, 0, 0, 1], bool),
    )
    credits = Credits(
        advantage=np.isin(episodes.owner, [0, 1, 4, 5]).astype(np.float32),
        target=np.arange(episodes.decisions, dtype=np.float32),
    )
    kept, taught = learnable_answers(episodes, credits, LearnableConfig(truncated="mask"))
    assert kept.id is not None
    assert kept.id.tolist() == [0, 0]
    assert taught.target is not None
    assert taught.target.tolist() == list(range(int(episodes.lengths[:2].sum())))
    kept, _ = learnable_answers(episodes, credits, LearnableConfig())
    assert kept.id is not None
    assert kept.id.tolist() == [0, 0, 2, 2]


# ------------------------------------------------------------------------------------------------- overlong filtering


@pytest.mark.parametrize("in_statistics", [True, False])
def test_truncated_answers_have_no_part_in_the_loss_and_enter_baselines_as_asked(in_statistics: bool) -> None:
    """`mask`: the others' advantages are those of all scores; `missing`: those of the other answers only."""
    network = policy()
    cut = np.zeros(12, bool)
    cut[[0, 3, 7]] = True
    episodes, _ = batch(truncated=cut)
    credits = overlong_filtered(episodes, NO_VALUES, credit=group_relative, in_statistics=in_statistics)
    asked = TokenLoss(
        loss=loss(), denominator="self", micro_batch_tokens=1 << 20, learnable=LearnableConfig(truncated="mask")
    )
    found = gradient_of(network, asked.layout(LAYOUT, network)(episodes, credits), asked)
    baseline = episodes if in_statistics else without_truncated(episodes)
    advantage = group_relative(baseline, NO_VALUES).advantage[episodes.offsets[:-1]]
    weight = 1 / int(episodes.lengths[~cut].sum())
    per_answer = answer_gradients(network, episodes)
    expected = torch.stack([weight * float(advantage[one]) * per_answer[one] for one in np.flatnonzero(~cut)]).sum(0)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)


def test_every_recipe_of_scored_answers_has_the_keys() -> None:
    """The keys are of the family's config, so that no recipe can lack them."""
    text = [one for one in (load_recipe(name).config for name in recipe_names()) if issubclass(one, TextRunConfig)]
    assert sum(issubclass(config, TextGradientRunConfig) for config in text) > 30
    for config in text:
        assert "learnable" in config.model_fields["rollout"].annotation.model_fields


@pytest.mark.parametrize(
    ("recipe", "changes", "message"),
    [
        ("online_dpo", {"truncated": "mask"}, 'set rollout.learnable.truncated = "missing"'),
        ("expert_iteration", {"truncated": "mask"}, 'set rollout.learnable.truncated = "missing"'),
        ("expert_iteration", {"count_missing": True}, "rollout.learnable.count_missing = true is about denominators"),
        ("collect", {"truncated": "missing"}, "filter the rows by that column"),
    ],
)
def test_settings_that_a_recipe_has_no_use_for_are_refused(
    recipe: str, changes: dict[str, object], message: str
) -> None:
    given = {**fields(), "recipe": recipe}
    if recipe == "expert_iteration":
        given["algorithm"] = {"collect_steps": 1, "learn_steps": 1}
        given["steps"] = 2
    if recipe == "collect":
        given.pop("learner")
    config = load_recipe(recipe).config
    config.model_validate(given)
    given["rollout"] = {**given["rollout"], "learnable": changes}
    with pytest.raises(ValidationError, match=message):
        config.model_validate(given)
