"""Group-relative advantages: one number per answer, from the scores of its group or batch, without a critic.

Everywhere: missing scores leave the statistics and get no credit; groups with a single score or equal scores get 0 and
are counted; standard deviations are of a sample (ddof 1) unless stated otherwise; epsilon is added to the deviation,
outside the root.

Several reward functions are normalised one by one before they are added (`gdpo`).
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError, DataError
from hone.core.ragged import Ints
from hone.credit.grouping import (
    STD_FLOOR,
    Floats,
    broadcast_advantage,
    centred,
    group_credits,
    group_deviation,
    group_means,
    group_numbers,
)

Center = Literal["group", "leave_one_out", "batch", "none"]
Scale = Literal["group", "centred_group", "batch", "centred_batch", "none"]
Ddof = Literal[0, 1]


def group_relative(
    episodes: Episodes,
    _values: Values,
    *,
    center: Center = "group",
    scale: Scale = "group",
    ddof: Ddof = 1,
    epsilon: float = 1e-6,
) -> Credits:
    """A = (R - mean_g) / (std + epsilon), the same for every decision of an answer (GRPO, Shao et al. 2024,
    2402.03300).

    `center="leave_one_out"`: mean of the group's other answers, K/(K-1) (R - mean_g). `"batch"`: mean of all scores.
    `"none"`: R itself. The last two look beyond the group, so its equal scores are compared with others; with
    `scale="group"` they are not, for there is nothing to divide by, and get 0.

    `scale="group"`: std of the answer's group. `"none"`: no division (Dr.GRPO, Liu et al. 2025, 2503.20783). `"batch"`:
    std of all scores of the batch (LitePPO, 2025, 2508.08221). `"centred_batch"`: std of the scores minus their
    baselines, which is smaller where groups differ in their means (AReaL, ms-swift). `"centred_group"`: root of the
    group's sum of squares about the baselines over K - ddof (AReaL); the group's std for its mean, K/(K-1) times as
    large for `"leave_one_out"`, and under `"batch"` it holds the distance of the group's mean as well, so that a group
    of equal scores gets +-sqrt((K - ddof)/K). The paper of GRPO does not state its ddof; ddof 1 is used by TRL, verl,
    slime, OpenRLHF and SkyRL, and 0 is smaller by sqrt((K-1)/K), which makes A larger.

    Elsewhere: epsilon is 1e-4 in TRL, 1e-6 in verl, slime, SkyRL and ROLL, 1e-8 in Dr.GRPO's code, 1e-9 in OpenRLHF. A
    single answer gets its raw score in verl and SkyRL and NaN in OpenRLHF; here 0. NeMo-RL divides by a leave-one-out
    deviation. AReaL standardises over the batch's tokens once more (`whitened`). `"batch"` is TRL's.
    """
    numbers, score = group_numbers(episodes), episodes.score[episodes.scored]
    deviation, dead = group_deviation(score, numbers, ddof=ddof)
    advantage = _minus_baseline(score, numbers, center)
    if scale == "group":
        advantage /= np.where(dead, 1.0, deviation + epsilon)[numbers]
    elif scale == "centred_group":
        count = np.bincount(numbers) - ddof
        about = np.sqrt(np.bincount(numbers, weights=advantage**2) / np.maximum(count, 1)) + epsilon
        advantage /= np.where((count > 0) & (about > 0), about, 1.0)[numbers]
    elif scale in ("batch", "centred_batch") and len(score) > ddof:
        advantage /= _batch_divisor(score if scale == "batch" else advantage, ddof, epsilon)
    silent = dead if center in ("group", "leave_one_out") or scale == "group" else np.zeros_like(dead)
    return broadcast_advantage(episodes, np.where(silent[numbers], 0.0, advantage), dead)


def _minus_baseline(score: Floats, numbers: Ints, center: Center) -> Floats:
    if center == "none":
        return score.copy()
    if center == "batch":
        deviation = score.std() if len(score) else 0.0
        equal = deviation <= STD_FLOOR * np.abs(score).max(initial=0.0)
        return np.zeros_like(score) if equal else score - score.mean()
    above = centred(score, numbers)
    if center == "group":
        return above
    count = np.bincount(numbers)
    return above * (count / np.maximum(count - 1, 1))[numbers]


def _batch_divisor(score: Floats, ddof: Ddof, epsilon: float) -> float:
    """The deviation of all scores (or centred scores) plus epsilon; 1 where both are 0."""
    return float(score.std(ddof=ddof)) + epsilon or 1.0


def batch_relative(
    episodes: Episodes,
    _values: Values,
    *,
    scale: Literal["batch", "none"] = "batch",
    ddof: Ddof = 1,
    epsilon: float = 1e-6,
) -> Credits:
    """A = (R - mean) / (std + epsilon) over all scores of the batch, ignoring groups (REINFORCE with a mean baseline,
    Williams 1992).

    A batch of equal scores gets 0. The baseline contains the answer itself, which scales the expected gradient by
    (B-1)/B. Elsewhere: AReaL's default 'reward_norm'; verl and OpenRLHF standardise over tokens instead, so that long
    answers have larger weights (see `reinforce_plus_plus`).
    """
    numbers, score = group_numbers(episodes), episodes.score[episodes.scored]
    _, dead = group_deviation(score, numbers, ddof=ddof)
    deviation = score.std(ddof=ddof) if len(score) > 1 else 0.0
    if deviation <= STD_FLOOR * np.abs(score).max(initial=0.0):
        return broadcast_advantage(episodes, np.zeros(len(score)), dead)
    advantage = (score - score.mean()) / (deviation + epsilon if scale == "batch" else 1.0)
    return broadcast_advantage(episodes, advantage, dead)


def leave_one_out(episodes: Episodes, _values: Values) -> Credits:
    """A_i = R_i - mean of the other answers' scores = K/(K-1) (R_i - mean_g) (RLOO, Ahmadian et al. 2024, 2402.14740).

    Unbiased, because an answer's baseline does not contain it. The paper's R holds the sequence's KL: decorate with
    `KlRewardCredit`. Elsewhere: OpenRLHF adds the KL after the baseline, so that it has none; TRL clips a
    sequence-level ratio on top. A single answer gets its raw score in verl's 'rloo'; here 0, as in TRL, SkyRL and
    AReaL.
    """

    def judge(score: Floats) -> Floats:
        count = score.shape[1]
        return (score - score.mean(axis=1, keepdims=True)) * (count / (count - 1))

    return group_credits(episodes, judge)


def group_policy_gradient(episodes: Episodes, _values: Values, *, norm: float = 1.0) -> Credits:
    """A = alpha (R - mean_g) / norm, alpha = answers / answers in groups that are not dead (GPG, Chu et al. 2025,
    2504.02546); for the loss -A log pi.

    alpha compensates for the answers of dead groups, which are averaged over but have no gradient. Elsewhere: verl's
    alpha is answers / non-zero scores, so all-right groups count as useful and wrong answers of good groups as useless;
    it also overwrites the configured alpha.
    """
    numbers, score = group_numbers(episodes), episodes.score[episodes.scored]
    _, dead = group_deviation(score, numbers)
    scored = int((~dead[numbers]).sum())
    alpha = len(score) / scored if scored else 0.0
    advantage = np.where(dead[numbers], 0.0, alpha / norm * centred(score, numbers))
    return broadcast_advantage(episodes, advantage, dead, metrics={"credit/alpha": alpha})


def length_baseline(episodes: Episodes, _values: Values) -> Credits:
    """A = R - b, b = sum of L_i R_i / sum of L_i over the group, L = decisions (OPO, Hao et al. 2025, 2505.23585).

    The baseline of least variance where an answer's squared gradient grows with its length. Exact on-policy training is
    assumed; no deviation, no KL. The baseline contains the answer itself.
    """
    numbers, score = group_numbers(episodes), episodes.score[episodes.scored]
    _, dead = group_deviation(score, numbers)
    length = episodes.lengths[episodes.scored].astype(np.float64)
    total = np.maximum(np.bincount(numbers, weights=length), 1.0)  # 0: nobody decided anything, and b reaches nothing
    baseline = np.bincount(numbers, weights=length * score) / total
    return broadcast_advantage(episodes, np.where(dead[numbers], 0.0, score - baseline[numbers]), dead)


# ------------------------------------------------------------------------------------------------------------ selection


def has_score_variance(episodes: Episodes) -> NDArray[np.bool_]:
    """Flags `[E]` of episodes whose group has two different scores (dynamic sampling, DAPO, Yu et al. 2025, 2503.14476:
    0 < right < G).

    Missing scores are left out: a group of one right answer and seven timeouts is dropped. Apply before any shaping: a
    length penalty makes all-wrong groups look informative. Elsewhere: verl's 'filter_groups' takes a metric, of which
    all but 'acc' may include the penalty; NeMo-RL filters on unshaped rewards; TRL has no dynamic sampling.
    """
    numbers = group_numbers(episodes)
    _, dead = group_deviation(episodes.score[episodes.scored], numbers)
    return _of_groups(episodes, ~dead)


def solved_between(episodes: Episodes, *, low: float, high: float) -> NDArray[np.bool_]:
    """Flags `[E]` of episodes whose group's mean score is in [low, high]: difficulty bands, as in prime-rl's pools
    (hard below 0.25).
    """
    mean = group_means(episodes.score[episodes.scored], group_numbers(episodes))
    return _of_groups(episodes, (mean >= low) & (mean <= high))


def _of_groups(episodes: Episodes, wanted: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """The flag of each scored group `[G]`, for every one of its episodes `[E]`, scored or not."""
    return np.isin(episodes.group, np.unique(episodes.group[episodes.scored])[wanted])


# ----------------------------------------------------------------------------------------------------------- components


def gdpo(
    episodes: Episodes,
    _values: Values,
    *,
    weights: Sequence[float] | None = None,
    ddof: Ddof = 1,
    epsilon: float = 1e-4,
    over: Literal["answers", "decisions"] = "answers",
) -> Credits:
    """A = z over the batch of sum_c w_c (R_c - mean_g,c) / (std_g,c + epsilon) (GDPO, 2026, 2601.05242).

    Normalised per reward function first, so that one with a large range does not dominate the others; then over the
    batch's answers, again with epsilon; with `over="decisions"` over its decisions, so that long answers count more
    (verl). `weights` defaults to 1 each. The source must
    keep each function's score in `episodes.components`. A component that is missing for an answer leaves that
    component's statistics and adds nothing; a group is dead if it is dead in every component. Raises DataError without
    components and ConfigError for a wrong number of weights. Elsewhere: verl's epsilon is 1e-6 in the groups and 1e-8
    in the variance of its last step; TRL's name is 'normalize_then_sum'.
    """
    components = episodes.components
    if components is None:
        raise DataError("gdpo needs episodes.components: the source must keep each reward function's score")
    factors = [1.0] * components.shape[1] if weights is None else weights
    if len(factors) != components.shape[1]:
        raise ConfigError(f"gdpo: {len(factors)} weights for {components.shape[1]} reward functions")
    scored = episodes.scored
    numbers = np.unique(episodes.group[scored], return_inverse=True)[1].astype(np.int64)
    total = np.zeros(len(numbers))
    alive = np.zeros(int(numbers.max(initial=-1)) + 1, dtype=np.bool_)
    for place, weight in enumerate(factors):
        component = components[scored, place]
        known = np.isfinite(component)
        advantage, dead = _standardised(component[known], numbers[known], ddof=ddof, epsilon=epsilon)
        total[known] += weight * advantage
        alive[numbers[known][~dead]] = True
    counted = total if over == "answers" else np.repeat(total, episodes.lengths[scored])
    deviation = counted.std(ddof=ddof) if len(counted) > 1 else 0.0
    if deviation > STD_FLOOR * np.abs(counted).max(initial=0.0):
        total = (total - counted.mean()) / (deviation + epsilon)
    return broadcast_advantage(episodes, np.where(alive[numbers], total, 0.0), ~alive)


def _standardised(values: Floats, groups: Ints, *, ddof: Ddof, epsilon: float) -> tuple[Floats, np.ndarray]:
    """One component's z-scores within its groups `[K]`, and the flags of its answers in dead groups `[K]`."""
    numbers = np.unique(groups, return_inverse=True)[1].astype(np.int64)
    deviation, dead = group_deviation(values, numbers, ddof=ddof)
    silent = dead[numbers]
    divisor = np.where(dead, 1.0, deviation + epsilon)
    return np.where(silent, 0.0, centred(values, numbers) / divisor[numbers]), silent
