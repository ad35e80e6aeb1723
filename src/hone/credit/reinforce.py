"""REINFORCE on the tokens of a batch: whitening, REINFORCE++ and its baseline form, ReMax, the optimal token baseline.

Advantages that differ within an answer, without a critic. Rewards are `episodes.reward`: a score at the last decision,
and a KL reward (`KlRewardCredit`) at each.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.credit.group import Ddof
from hone.credit.grouping import (
    STD_FLOOR,
    ZERO_VARIANCE_GROUPS,
    CreditFunction,
    DecisionColumn,
    behaviour_logp,
    centred,
    checked_column,
    fraction_true,
    group_deviation,
    group_numbers,
)
from hone.credit.returns import discounted_sums, scored_decisions

Floats = NDArray[np.float64]


def whiten(values: Floats, *, ddof: Ddof = 1, epsilon: float = 1e-8) -> Floats:
    """(x - mean) / (std + epsilon) of all `values` `[n]`; zeros where they are fewer than two or all equal."""
    if len(values) < 2:
        return np.zeros_like(values)
    deviation = values.std(ddof=ddof)
    if deviation <= STD_FLOOR * np.abs(values).max():
        return np.zeros_like(values)
    return (values - values.mean()) / (deviation + epsilon)


def whitened(
    episodes: Episodes, values: Values, *, credit: CreditFunction, ddof: Ddof = 1, epsilon: float = 1e-8
) -> Credits:
    """A = (A - mean) / (std + epsilon) over all decisions whose episode has a score; 0 on the others. Wraps `credit`.

    Elsewhere: verl divides by sqrt(var + 1e-8) with ddof 1, OpenRLHF and NeMo-RL use ddof 0; verl also shifts the
    advantages of masked tokens. AReaL's 'adv_norm' is this with epsilon 1e-5. Long answers have larger weights,
    because tokens are counted.
    """
    credits = credit(episodes, values)
    advantage = _whitened_where_heard(episodes, credits.advantage.astype(np.float64), ddof, epsilon)
    return replace(credits, advantage=advantage)


def whitened_answers(
    episodes: Episodes, values: Values, *, credit: CreditFunction, ddof: Ddof = 1, epsilon: float = 1e-4
) -> Credits:
    """A = (A - mean) / (std + epsilon) over answers with a score, each counted once; 0 on the others. Wraps a `credit`
    that gives all decisions of an answer the same advantage.

    TRL's 'normalize_advantages' of RLOO (ddof 1, epsilon 1e-4). Answers without a decision do not count.
    """
    credits = credit(episodes, values)
    kept = episodes.scored & (episodes.lengths > 0)
    per_answer = np.zeros(len(episodes))
    per_answer[kept] = whiten(
        credits.advantage[episodes.offsets[:-1][kept]].astype(np.float64), ddof=ddof, epsilon=epsilon
    )
    return replace(credits, advantage=np.repeat(per_answer, episodes.lengths).astype(np.float32))


def whitened_rewards(
    episodes: Episodes, values: Values, *, credit: CreditFunction, shift: bool = False, epsilon: float = 1e-8
) -> Credits:
    """A = `credit` of rewards r' = (r - mean) / sqrt(var + epsilon), plus the mean again unless `shift`, over all
    decisions whose episode has a score (PPO for language models, 2019; TRL's `whiten_rewards`, without a shift).

    The variance has ddof 1, and epsilon is added to it. For credit of rewards, not of scores: most rewards are 0, and
    with `shift` each token pays the mean. Fewer than two decisions, or equal rewards, stay as they are.
    """
    scored = scored_decisions(episodes)
    reward = episodes.reward.astype(np.float64)
    heard = reward[scored]
    if len(heard) and heard.std() > STD_FLOOR * np.abs(heard).max():
        mean = heard.mean()
        reward[scored] = (heard - mean) / np.sqrt(heard.var(ddof=1) + epsilon) + (0.0 if shift else mean)
    return credit(replace(episodes, reward=reward.astype(np.float32)), values)


def reinforce_plus_plus(
    episodes: Episodes, _values: Values, *, discount: float = 1.0, ddof: Ddof = 1, epsilon: float = 1e-8
) -> Credits:
    """A = whitened over the batch's decisions of G_t = r_t + discount G_{t+1} (REINFORCE++, Hu 2025, 2501.03262).

    The paper's r_t includes -beta k1_t: wrap with `KlRewardCredit`. Environment turns between decisions are not
    discounted and end no return. Elsewhere: SkyRL and older verl restart the return at every tool call, so that turns
    before the last one lose the final score; slime discounts over masked positions; the authors' OpenRLHF has ddof 0.
    """
    total = discounted_sums(episodes.reward, episodes.offsets, discount)
    return Credits(advantage=_whitened_where_heard(episodes, total, ddof, epsilon))


def reinforce_plus_plus_baseline(
    episodes: Episodes, _values: Values, *, ddof: Ddof = 1, epsilon: float = 1e-8
) -> Credits:
    """A = R - mean_g on every decision, then whitened over the batch's decisions (REINFORCE++-baseline, Hu 2025,
    2501.03262).

    No deviation of the group. Answers of dead groups are counted in the statistics and get 0. Elsewhere: they get
    -mean/std of the batch; slime subtracts kl_coef * k1_t per token before whitening.
    """
    numbers, score = group_numbers(episodes), episodes.score[episodes.scored]
    _, dead = group_deviation(score, numbers)
    length = episodes.lengths[episodes.scored]
    flat = whiten(np.repeat(np.where(dead[numbers], 0.0, centred(score, numbers)), length), ddof=ddof, epsilon=epsilon)
    advantage = np.zeros(episodes.decisions, dtype=np.float32)
    advantage[scored_decisions(episodes)] = np.where(np.repeat(dead[numbers], length), 0.0, flat)
    return Credits(advantage=advantage, metrics={ZERO_VARIANCE_GROUPS: fraction_true(dead)})


def remax(episodes: Episodes, _values: Values) -> Credits:
    """A_t = sum of r from t on - score of the greedy answer to the same question (ReMax, Li et al. 2023, 2310.10505).

    The source generates a greedy answer to each question, scores it, and puts the score into `episodes.baseline` of the
    other answers; the greedy answer is not trained on. Where it has no score (NaN), the advantage is 0 and the share is
    `reward/baseline_missing`. Raises DataError without any baseline. Elsewhere: the authors' code subtracts it from the
    whole return at every token, which is the same for a score at the end.
    """
    if episodes.baseline is None:
        raise DataError("remax needs episodes.baseline: the source must score a greedy answer to each question")
    known = episodes.scored & np.isfinite(episodes.baseline)
    ahead = discounted_sums(episodes.reward, episodes.offsets, 1.0)
    above = ahead - np.repeat(np.where(known, episodes.baseline, 0.0), episodes.lengths)
    advantage = np.where(np.repeat(known, episodes.lengths), above, 0.0).astype(np.float32)
    return Credits(
        advantage=advantage, metrics={"reward/baseline_missing": fraction_true(~np.isfinite(episodes.baseline))}
    )


def optimal_token_baseline(
    episodes: Episodes,
    _values: Values,
    *,
    collision: DecisionColumn,
    current: DecisionColumn = behaviour_logp,
    ratio: DecisionColumn | None = None,
    epsilon: float = 1e-8,
) -> Credits:
    """A_{i,t} = G_{i,t} - B_t, B_t = sum_i G_{i,t} W_{i,t} / (sum_i W_{i,t} + epsilon) over the group's answers that
    are at least t long; W_{i,t} = sum over u <= t of (1 - 2 pi_u + sum_v pi_v^2): the optimal token baseline, as in
    verl.

    G is the undiscounted return to go; the summand is the squared gradient of log pi with respect to the logits, so W
    is the squared gradient norm of the answer up to t. `collision` gives sum_v pi_v^2 of each decision `[N]`, `current`
    the log-probability of its action in nats; `ratio`, for losses with importance weights, the weight, whose square
    multiplies the summand. Position t counts decisions only (verl's form for tools). An answer beyond the length of all
    others has its own return as baseline there and so gets 0 (up to epsilon); verl's 'handle_zero_tail', off in some
    versions and on in others, gives it the raw return. Dead groups get 0.
    """
    energy = 1.0 - 2.0 * np.exp(checked_column(current, episodes, "the log-probability"))
    energy += checked_column(collision, episodes, "the collision probability")
    if ratio is not None:
        energy *= checked_column(ratio, episodes, "the importance ratio") ** 2
    weight = np.cumsum(energy)
    begin = episodes.offsets[:-1]
    weight -= np.repeat(np.append(0.0, weight)[begin], episodes.lengths)  # each answer's own running sum
    ahead = discounted_sums(episodes.reward, episodes.offsets, 1.0)
    numbers = group_numbers(episodes)
    _, dead = group_deviation(episodes.score[episodes.scored], numbers)
    scored = scored_decisions(episodes)
    length = episodes.lengths[episodes.scored]
    # one cell per group and position: a group owns as many cells as its longest answer has decisions
    longest = np.zeros(len(dead), dtype=np.int64)
    np.maximum.at(longest, numbers, length)
    position = (np.arange(episodes.decisions) - np.repeat(begin, episodes.lengths))[scored]
    cell = np.repeat((np.cumsum(longest) - longest)[numbers], length) + position
    paid = np.bincount(cell, weights=(ahead * weight)[scored])
    baseline = paid / (np.bincount(cell, weights=weight[scored]) + epsilon)
    advantage = np.zeros(episodes.decisions, dtype=np.float32)
    advantage[scored] = np.where(np.repeat(dead[numbers], length), 0.0, ahead[scored] - baseline[cell])
    return Credits(advantage=advantage, metrics={ZERO_VARIANCE_GROUPS: fraction_true(dead)})


def _whitened_where_heard(episodes: Episodes, advantage: Floats, ddof: Ddof, epsilon: float) -> NDArray[np.float32]:
    scored = scored_decisions(episodes)
    result = np.zeros(len(advantage), dtype=np.float32)
    result[scored] = whiten(advantage[scored], ddof=ddof, epsilon=epsilon)
    return result
