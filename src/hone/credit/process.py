"""Process rewards: advantages from rewards within an answer, of explicit step scorers or implied by a policy ratio.

Explicit step rewards are in `episodes.reward`; implicit ones are passed as a column.
"""

import numpy as np

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.ragged import row_sums
from hone.credit.grouping import (
    ZERO_VARIANCE_GROUPS,
    DecisionColumn,
    Floats,
    StepEnds,
    centred,
    checked_column,
    episode_ends,
    fraction_true,
    group_deviation,
    group_numbers,
)
from hone.credit.reinforce import whiten
from hone.credit.returns import discounted_sums, scored_decisions
from hone.credit.turns import turn_table


def step_group_relative(
    episodes: Episodes, _values: Values, *, step_ends: StepEnds, discount: float = 1.0, epsilon: float = 1e-6
) -> Credits:
    """A = sum over steps j >= k of discount^(j-k) times the normalised reward of step j, on all decisions of step k;
    each step's reward is normalised with the mean and standard deviation (ddof 1) of all steps of its group (GRPO with
    process supervision, Shao et al. 2024, where the discount is 1).

    `step_ends` marks each step's last decision (`turn_ends`, `delimiter_ends`); an answer's last decision always ends
    one. A step's reward is the sum of rewards within it. Groups whose steps are all equal, or with one step, get 0 and
    are counted. The formula is taken from secondary descriptions of the paper's section 4.1.3; no other library has it.
    Answers of many steps sum more terms, and so have larger advantages at their beginnings.
    """
    steps = turn_table(episodes, step_ends)
    scored = episodes.scored[steps.episode]
    numbers = np.unique(episodes.group[steps.episode[scored]], return_inverse=True)[1].astype(np.int64)
    deviation, dead = group_deviation(steps.reward[scored], numbers)
    divisor, normal = np.where(dead, 1.0, deviation + epsilon), np.zeros(len(scored))
    normal[scored] = np.where(dead[numbers], 0.0, centred(steps.reward[scored], numbers) / divisor[numbers])
    ahead = discounted_sums(normal, steps.per_episode, discount)
    return Credits(
        advantage=np.repeat(ahead, steps.lengths).astype(np.float32),
        metrics={ZERO_VARIANCE_GROUPS: fraction_true(dead), "credit/steps": float(len(scored))},
    )


def implicit_reward(
    episodes: Episodes, *, policy: DecisionColumn, reference: DecisionColumn, beta: float = 0.05
) -> Floats:
    """r_t = beta (log pi_phi - log pi_ref) of each action `[N]`, nats x beta: the reward implied by a policy trained on
    outcomes (implicit process rewards, PRIME, Cui et al. 2025, 2502.01456). A `DecisionColumn`, once policies are
    bound.
    """
    return beta * (
        checked_column(policy, episodes, "the reward policy's log-probability")
        - checked_column(reference, episodes, "the reference's log-probability")
    )


def prime(
    episodes: Episodes,
    _values: Values,
    *,
    implicit: DecisionColumn,
    implicit_weight: float = 1.0,
    outcome_weight: float = 1.0,
) -> Credits:
    """A = whitened over the batch's decisions of the sum from t on of r'_t (PRIME, Cui et al. 2025, 2502.01456).

    r'_t = implicit_weight (K/(K-1) r_t - sum_j mean(r_j)/(K-1)), r_t from `implicit` and mean(r_j) over answer j's
    decisions, plus, at the last decision, outcome_weight times the leave-one-out advantage of the score. ddof 1. Only
    the ratio of the weights matters, because of the whitening. A group with one score gets 0; one with equal scores
    still has its implicit rewards, so only single answers count as dead here.
    """
    reward = checked_column(implicit, episodes, "the implicit reward")
    numbers, scored = group_numbers(episodes), episodes.scored
    count = np.bincount(numbers).astype(np.float64)
    dead = count < 2
    others = np.maximum(count - 1, 1)
    scored_steps = scored_decisions(episodes)
    length = episodes.lengths[scored]
    mean = row_sums(reward, episodes.offsets)[scored] / np.maximum(length, 1)
    shift = np.bincount(numbers, weights=mean) / others
    factor = count / others
    tokens = np.zeros(episodes.decisions)
    tokens[scored_steps] = implicit_weight * (
        np.repeat(factor[numbers], length) * reward[scored_steps] - np.repeat(shift[numbers], length)
    )
    outcome = np.zeros(len(episodes))
    outcome[scored] = outcome_weight * factor[numbers] * centred(episodes.score[scored], numbers)
    places = np.flatnonzero(episode_ends(episodes))
    tokens[places] += outcome[episodes.lengths > 0]
    alive = np.zeros(len(episodes), dtype=np.bool_)
    alive[scored] = ~dead[numbers]
    used = np.repeat(alive, episodes.lengths)
    advantage = np.zeros(episodes.decisions, dtype=np.float32)
    advantage[used] = whiten(discounted_sums(tokens, episodes.offsets, 1.0)[used])
    return Credits(advantage=advantage, metrics={ZERO_VARIANCE_GROUPS: fraction_true(dead)})
