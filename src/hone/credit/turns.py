"""Credit over turns of a dialogue: a turn as one decision, discounts per turn, turns that saw the same text, and
dialogues of several rows.

A turn is the decisions between two texts of the environment. The tokens of those texts are no decisions: whether a tool
says nothing or a thousand tokens changes no advantage.

Process rewards are those within an answer, of explicit step scorers (in `episodes.reward`) or implied by a policy
ratio (passed as a column).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.ragged import Ints, offsets_of, row_sums
from hone.credit.group import group_relative
from hone.credit.grouping import (
    ZERO_VARIANCE_GROUPS,
    CreditFunction,
    DecisionColumn,
    Floats,
    StepEnds,
    centred,
    checked_column,
    episode_ends,
    fraction_true,
    group_deviation,
    group_numbers,
    turn_ends,
)
from hone.credit.reinforce import whiten
from hone.credit.returns import discounted_sums, scored_decisions


@dataclass(frozen=True, slots=True, kw_only=True)
class _TurnTable:
    """The T turns of E episodes."""

    offsets: Ints
    """`[T+1]` first decision of each turn."""
    per_episode: Ints
    """`[E+1]` first turn of each episode."""
    episode: Ints
    """`[T]` episode of each turn."""
    reward: Floats
    """`[T]` sum of the rewards within the turn."""

    @property
    def lengths(self) -> Ints:
        """`[T]` decisions of each turn."""
        return np.diff(self.offsets)


TurnKeys: TypeAlias = Callable[[Episodes, _TurnTable], Ints]
"""Number of the state in which each turn began `[T]`: equal numbers, equal states."""


def turn_table(episodes: Episodes, step_ends: StepEnds = turn_ends) -> _TurnTable:
    """The turns of `episodes`, or the steps that `step_ends` marks; an episode's last decision always ends one."""
    ends = np.flatnonzero(step_ends(episodes) | episode_ends(episodes))
    offsets = offsets_of(np.diff(ends, prepend=-1))
    return _TurnTable(
        offsets=offsets,
        per_episode=np.searchsorted(ends, episodes.offsets),
        episode=episodes.owner[ends],
        reward=row_sums(episodes.reward, offsets),
    )


def per_turn(episodes: Episodes, values: Values, *, credit: CreditFunction, step_ends: StepEnds = turn_ends) -> Credits:
    """A = `credit` of turns: a turn is one decision, with the sum of its rewards and the critic's value at its
    beginning; its advantage and its value target are those of all its tokens. Wraps a credit of rewards.

    With `gae`: delta_k = R_k + discount * V_{k+1} - V_k over turns k, so that discount and lambda count turns, not
    tokens, and neither a long turn nor a long tool output lets an advantage fade. The log-probability of a turn is the
    sum over its tokens. `step_ends` marks other segments ('delimiter_ends'). Raises ConfigError for a credit with
    discounts of bootstrapped targets.
    """
    turns = turn_table(episodes, step_ends)
    first = np.zeros(episodes.decisions, np.bool_)
    first[turns.offsets[:-1]] = True
    short = replace(
        episodes.keep_decisions(first),
        reward=turns.reward.astype(np.float32),
        logp=row_sums(episodes.logp, turns.offsets).astype(np.float32),
    )
    seen = replace(values, value=values.value[turns.offsets[:-1]]) if len(values.value) else values
    credits = credit(short, seen)
    if credits.discount is not None:
        raise ConfigError("per_turn: a credit with discounts of bootstrapped targets has no turns; wrap another one")
    target = None if credits.target is None else np.repeat(credits.target, turns.lengths)
    return replace(credits, advantage=np.repeat(credits.advantage, turns.lengths), target=target)


def dialogues_as_one(episodes: Episodes, values: Values, *, credit: CreditFunction) -> Credits:
    """A = `credit` of whole dialogues, where a rewritten history cuts some into several rows (`Episodes.part`): each is
    one sample of its group, and its later rows follow the earlier ones. Wraps a credit."""
    if episodes.part is None:
        return credit(episodes, values)
    final = values.final[episodes.last_rows] if len(values.final) else values.final
    return credit(episodes.join_rows(), replace(values, final=final))


def with_turn_discount(episodes: Episodes, values: Values, *, credit: CreditFunction, discount: float) -> Credits:
    """A = `credit` of scores that are discounted by turn: sum over turns k of discount^k R_k, so that what is reached
    in fewer turns is worth more. Wraps a credit of scores; missing ones stay missing."""
    turns = turn_table(episodes)
    begun = np.zeros(len(episodes))
    some = episodes.lengths > 0
    begun[some] = discounted_sums(turns.reward, turns.per_episode, discount)[turns.per_episode[:-1][some]]
    return credit(replace(episodes, score=np.where(episodes.scored, begun, episodes.score)), values)


def observed_texts(episodes: Episodes, turns: _TurnTable) -> Ints:
    """Numbers of the texts that the policy read just before each turn `[T]`: the prompt, or what the environment wrote
    after the turn before. Equal tokens have equal numbers."""
    seen = episodes.transcript
    first = seen.at[turns.offsets[:-1]]
    begin = np.zeros_like(first)
    begin[1:] = seen.at[turns.offsets[1:-1] - 1] + 1
    opening = np.diff(turns.episode, prepend=-1) > 0
    begin[opening] = seen.offsets[:-1][turns.episode[opening]]
    known: dict[bytes, int] = {}
    texts = (seen.tokens[a:b].tobytes() for a, b in np.stack([begin, first], axis=1).tolist())
    return np.array([known.setdefault(text, len(known)) for text in texts], np.int64)


def anchored(
    episodes: Episodes,
    values: Values,
    *,
    step_weight: float = 1.0,
    discount: float = 0.95,
    scale: Literal["group", "none"] = "group",
    epsilon: float = 1e-6,
    anchors: TurnKeys = observed_texts,
) -> Credits:
    """A = A_dialogue + step_weight * A_turn (GiGPO, Feng et al., 2025, 2505.10978).

    A_dialogue is `group_relative` of the score. A_turn compares the returns G_k = R_k + discount * G_{k+1} of the turns
    of one group that began in the same state, its anchor: (G - mean) / (std + epsilon) among them, or without the
    division (`scale` "none"), ddof 1. A state that only one turn saw, and one whose turns have equal returns, gives 0.
    `anchors` numbers the states: no further rollouts are needed. Tells the share of turns that are compared
    (`credit/anchored_turns`). Elsewhere: the authors' code gives a turn that is alone its raw return.
    """
    whole = group_relative(episodes, values, scale=scale, epsilon=epsilon)
    turns = turn_table(episodes)
    returns = discounted_sums(turns.reward, turns.per_episode, discount)
    scored = episodes.scored[turns.episode]
    state = anchors(episodes, turns)[scored]
    pairs = np.stack([episodes.group[turns.episode[scored]], state], axis=1)
    numbers = np.unique(pairs, axis=0, return_inverse=True)[1].astype(np.int64)
    deviation, dead = group_deviation(returns[scored], numbers)
    divisor = np.where(dead, 1.0, deviation + epsilon if scale == "group" else 1.0)
    advantage = np.zeros(len(returns))
    advantage[scored] = np.where(dead[numbers], 0.0, centred(returns[scored], numbers) / divisor[numbers])
    compared = np.bincount(numbers)[numbers] > 1
    return replace(
        whole,
        advantage=(whole.advantage + step_weight * np.repeat(advantage, turns.lengths)).astype(np.float32),
        metrics={
            **whole.metrics,
            "credit/turns": float(len(returns)),
            "credit/anchored_turns": fraction_true(compared),
        },
    )


# -------------------------------------------------------------------------------------------------------------- process
# Process rewards: advantages from rewards within an answer, of explicit step scorers or implied by a policy ratio.
#
# Explicit step rewards are in `episodes.reward`; implicit ones are passed as a column.


def step_group_relative(
    episodes: Episodes, _values: Values, *, step_ends: StepEnds, discount: float = 1.0, epsilon: float = 1e-6
) -> Credits:
    """A = sum over steps j >= k of discount^(j-k) times the normalised reward of step j, on all decisions of step k;
    each step's reward is normalised with the mean and standard deviation (ddof 1) of all steps of its group (GRPO with
    process supervision, Shao et al. 2024, where the discount is 1).

    `step_ends` marks each step's last decision (`turn_ends`, 'delimiter_ends'); an answer's last decision always ends
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
