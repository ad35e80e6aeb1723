"""Reward shaping of scores: length, overlong answers, thresholds.

Functions `Episodes -> Episodes` that change the score of an answer (the difference is added to the reward at its last
decision), `with_shaped_scores`, which applies them before a credit, and `overlong_filtered`. L is the number of
decisions (sampled tokens). Missing scores stay missing, and leave every statistic.

Also here: rewards from a discriminator's logit l = log D - log(1 - D), which replace the environment's in adversarial
imitation (GAIL). l is high where a decision resembles the expert's. Three increasing functions of it differ in sign,
which decides whether the end of an episode is favoured, because terminal states have value 0 (Kostrikov et al.,
Discriminator-Actor-Critic, 2019, on this bias).

| reward | sign | for environments in which |
|---|---|---|
| `positive_reward` | never below 0: favours long episodes | an end is a failure (a balance, a walk) |
| `negative_reward` | never above 0: favours termination | the end is the goal (a maze, a reach) |
| `log_odds_reward` | either, 0 at D = 1/2 | ends are of both kinds, or only a time limit ends an episode |

A time limit does not terminate: truncated episodes bootstrap from the critic's value of the final observation.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes, ScoreStatus
from hone.core.errors import ConfigError
from hone.core.ragged import ranges
from hone.credit.grouping import (
    CreditFunction,
    DecisionColumn,
    Floats,
    checked_column,
    fraction_true,
    group_means,
    group_numbers,
)

ScoreShaping: TypeAlias = Callable[[Episodes], Episodes]


def with_shaped_scores(
    episodes: Episodes, values: Values, *, credit: CreditFunction, shapings: Sequence[ScoreShaping]
) -> Credits:
    """A = `credit` of the episodes after each of `shapings`, in order; the mean change is `reward/shaping_mean`.

    Dead groups are counted on the shaped scores; `has_score_variance` of credit.selection uses the unshaped ones.
    """
    changed = episodes
    for shape in shapings:
        changed = shape(changed)
    credits = credit(changed, values)
    moved = (changed.score - episodes.score)[episodes.scored]
    metrics = {"reward/shaping_mean": float(moved.mean()) if len(moved) else 0.0}
    return replace(credits, metrics={**credits.metrics, **metrics})


def with_scores(episodes: Episodes, score: Floats) -> Episodes:
    """The episodes with scores `[E]`, the difference added to the last reward of each; missing ones stay."""
    scored = episodes.scored
    metrics = np.where(scored, score, episodes.score)
    reward = episodes.reward.copy()
    paid = scored & (episodes.lengths > 0)
    reward[episodes.offsets[1:][paid] - 1] += (metrics - episodes.score)[paid].astype(np.float32)
    return replace(episodes, score=metrics, reward=reward)


def binarised(episodes: Episodes, *, threshold: float) -> Episodes:
    """1 for scores of at least `threshold`, 0 below: for credits that need right and wrong."""
    return with_scores(episodes, (episodes.score >= threshold).astype(np.float64))


def clip_scores(episodes: Episodes, *, low: float, high: float) -> Episodes:
    """Scores clipped to [low, high]. Raises ConfigError for an empty range."""
    if low > high:
        raise ConfigError(f"clip_scores: low = {low} is above high = {high}")
    return with_scores(episodes, np.clip(episodes.score, low, high))


def overlong_penalty(episodes: Episodes, *, max_tokens: int, buffer_tokens: int, factor: float = 1.0) -> Episodes:
    """R += factor * p(L), p = 0 for L <= max - buffer, ((max - buffer) - L) / buffer up to max = `max_tokens`, -1
    beyond (soft overlong punishment, DAPO, Yu et al. 2025, 2503.14476; there max 20480 and buffer 4096 tokens, factor
    1).

    Raises ConfigError unless 0 < buffer <= max. Elsewhere: verl and AReaL do not cap it at -factor, which matters only
    for answers longer than max. Select groups before it: on the shaped score all-wrong groups of unequal lengths look
    informative.
    """
    if not 0 < buffer_tokens <= max_tokens:
        raise ConfigError(f"overlong: buffer_tokens = {buffer_tokens} must be in (0, max_tokens = {max_tokens}]")
    return with_scores(
        episodes,
        episodes.score + factor * np.clip((max_tokens - buffer_tokens - episodes.lengths) / buffer_tokens, -1.0, 0.0),
    )


def cosine_reward(
    episodes: Episodes,
    *,
    max_tokens: int,
    right: tuple[float, float] = (2.0, 1.0),
    wrong: tuple[float, float] = (-10.0, 0.0),
    exceeded: float = -10.0,
    threshold: float = 1.0,
) -> Episodes:
    """R = b + (a - b)/2 (1 + cos(pi L / max_tokens)), with a the value at length 0 and b at `max_tokens`, (a, b) =
    `right` where the score reached `threshold`, else `wrong`; `exceeded` for L >= max_tokens (cosine reward, Yeo et al.
    2025, 2502.03373).

    Short right answers get more, short wrong ones less, which favours longer reasoning only where it failed. The score
    is replaced, so every scale is the function's own. Raises ConfigError for a limit below 1.
    """
    if max_tokens < 1:
        raise ConfigError(f"cosine_reward: max_tokens = {max_tokens}; it must be at least 1")
    start, end = np.where((episodes.score >= threshold)[:, None], np.array(right), np.array(wrong)).T
    curve = end + 0.5 * (start - end) * (1.0 + np.cos(np.pi * episodes.lengths / max_tokens))
    return with_scores(episodes, np.where(episodes.lengths >= max_tokens, exceeded, curve))


def length_rank_reward(episodes: Episodes, *, weight: float = 1.0, threshold: float = 1.0) -> Episodes:
    """R += weight * l, l = 1/2 - (L - L_min)/(L_max - L_min) over the group's scored answers; min(0, l) for wrong ones
    (length reward, Kimi k1.5, 2025, 2501.12599). Groups whose answers are equally long get 0.
    """
    numbers, scored = group_numbers(episodes), episodes.scored
    length = episodes.lengths[scored].astype(np.float64)
    groups = int(numbers.max(initial=-1)) + 1
    shortest, longest = np.full(groups, np.inf), np.zeros(groups)
    np.minimum.at(shortest, numbers, length)
    np.maximum.at(longest, numbers, length)
    span = (longest - shortest)[numbers]
    rank = np.where(span > 0, 0.5 - (length - shortest[numbers]) / np.maximum(span, 1.0), 0.0)
    bonus = np.zeros(len(episodes))
    bonus[scored] = np.where(episodes.score[scored] >= threshold, rank, np.minimum(rank, 0.0))
    return with_scores(episodes, episodes.score + weight * bonus)


def length_scaled_reward(episodes: Episodes, *, weight: float, threshold: float = 1.0) -> Episodes:
    """R *= 1 - weight * sigmoid((L - mean) / std) for right answers, mean and std (ddof 0, numpy's default; the paper
    does not state it) of the lengths of the group's right answers (Arora & Zanette 2025, 2502.04463).

    Wrong answers keep their score. Where all right answers are equally long the factor is 1 - weight/2. Raises
    ConfigError for a weight outside [0, 1): a right answer must stay better than none.
    """
    if not 0 <= weight < 1:
        raise ConfigError(f"length_scaled_reward: weight = {weight} must be in [0, 1)")
    right = episodes.scored & (episodes.score >= threshold)
    numbers = np.unique(episodes.group[right], return_inverse=True)[1]
    length = episodes.lengths[right].astype(np.float64)
    away = length - group_means(length, numbers)[numbers]
    deviation = np.sqrt(group_means(away**2, numbers))[numbers]
    share_of_weight = 1.0 / (1.0 + np.exp(-away / np.where(deviation > 0, deviation, 1.0)))
    factor = np.ones(len(episodes))
    factor[right] = 1.0 - weight * share_of_weight
    return with_scores(episodes, episodes.score * factor)


def without_truncated(episodes: Episodes) -> Episodes:
    """The episodes with truncated answers as unscorable: no score, no reward."""
    silent = np.repeat(episodes.truncated, episodes.lengths)
    cut = episodes.truncated & episodes.scored
    return replace(
        episodes,
        score=np.where(episodes.truncated, np.nan, episodes.score),
        status=np.where(cut, ScoreStatus.UNSCORABLE, episodes.status).astype(np.uint8),
        reward=np.where(silent, np.float32(0), episodes.reward),
    )


def overlong_filtered(
    episodes: Episodes, values: Values, *, credit: CreditFunction, in_statistics: bool = True
) -> Credits:
    """A = `credit`, and 0 for truncated answers (overlong filtering, DAPO, 2503.14476; TRL's
    'mask_truncated_completions').

    As in TRL they still enter the baselines of others, unless `in_statistics=False`, where they are treated as missing.
    Their share is `reward/truncated_dropped`. A layout of rows decides whether a denominator counts them; in runs it
    does not (`rollout.learnable.truncated`).
    """
    credits = credit(episodes if in_statistics else without_truncated(episodes), values)
    silent = np.repeat(episodes.truncated, episodes.lengths)
    metrics = {**credits.metrics, "reward/truncated_dropped": fraction_true(episodes.truncated)}
    return replace(credits, advantage=np.where(silent, np.float32(0), credits.advantage), metrics=metrics)


# ------------------------------------------------------------------------------------------------------------ curiosity


Surprise: TypeAlias = Callable[[Episodes], Floats]
"""Episodes -> `[E]` nats: mean of -log p of what the environment said, under a world model."""


def with_curiosity(
    episodes: Episodes, values: Values, *, credit: CreditFunction, surprise: Surprise, weight: float, max_nats: float
) -> Credits:
    """The credit of scores r + weight * min(surprise, max_nats) (ICM, Pathak et al., 2017).

    A world that is known by heart is worth nothing, and chance, which cannot be known, stays worth something: the bound
    keeps a policy from watching noise. Missing scores stay missing.
    """
    nats = surprise(episodes)
    bonus = weight * np.minimum(nats, max_nats)
    shapings: list[ScoreShaping] = [lambda scored: with_scores(scored, scored.score + bonus)]
    credits = with_shaped_scores(episodes, values, credit=credit, shapings=shapings)
    metrics = {"curiosity/surprise_nats": float(nats.mean()), "curiosity/surprise_max": float(nats.max())}
    return replace(credits, metrics={**credits.metrics, **metrics})


# ------------------------------------------------------------------------------------------------------- self imitation


def self_imitation(episodes: Episodes, values: Values, *, credit: CreditFunction, weight: float) -> Credits:
    """A = that of `credit` for live answers; A = weight * max(r - b, 0) for replayed ones, at each of their tokens
    (SIL, Oh et al., 2018, 1806.05635).

    Replayed answers are those of groups with numbers below 0; their `baseline` b is the latest mean score of the
    answers to the same question. One that the policy has caught up with gets 0. In the paper b is a critic's value.
    """
    live = episodes.group >= 0
    if live.all():
        return credit(episodes, values)
    own = np.flatnonzero(live)
    own_credits = credit(episodes.take(own), values)
    assert episodes.baseline is not None  # a source of replayed answers gives each the baseline of its question
    better = np.nan_to_num(np.maximum(episodes.score - episodes.baseline, 0.0))
    advantage = (weight * better)[episodes.owner].astype(np.float32)
    advantage[ranges(episodes.offsets[:-1][own], episodes.lengths[own])] = own_credits.advantage
    metrics = {"successes/advantage_mean": float(better[~live].mean())}
    return replace(own_credits, advantage=advantage, metrics={**own_credits.metrics, **metrics})


# ---------------------------------------------------------------------------------------------------------- adversarial


LogitReward: TypeAlias = Callable[[Floats], Floats]
"""Logits `[N]` -> rewards `[N]`."""


def positive_reward(logit: Floats) -> Floats:
    """-log(1 - D) = softplus(l), above 0: GAIL's own (Ho and Ermon, 2016)."""
    return np.logaddexp(0.0, logit)


def negative_reward(logit: Floats) -> Floats:
    """log D = -softplus(-l), below 0."""
    return -np.logaddexp(0.0, -logit)


def log_odds_reward(logit: Floats) -> Floats:
    """log D - log(1 - D) = l, of either sign (AIRL's form: Fu et al., 2018)."""
    return logit


def with_imitation_reward(
    episodes: Episodes, values: Values, *, imitation_reward: DecisionColumn, credit: CreditFunction
) -> Credits:
    """`credit` with r = the imitation reward (GAIL: Ho and Ermon, 2016) in place of the environment's reward.

    Scores remain the environment's. Metric: `imitation/reward_mean`. Raises DataError where `imitation_reward` does not
    give one finite number per decision.
    """
    paid = checked_column(imitation_reward, episodes, "likeness")
    credits = credit(replace(episodes, reward=paid.astype(np.float32)), values)
    metrics = {"imitation/reward_mean": float(paid.mean())} if len(paid) else {}
    return replace(credits, metrics={**credits.metrics, **metrics})
