"""Credit over turns of a dialogue: a turn as one decision, discounts per turn, turns that saw the same text, and
dialogues of several rows.

A turn is the decisions between two texts of the environment. The tokens of those texts are no decisions: whether a tool
says nothing or a thousand tokens changes no advantage.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.ragged import Ints, offsets_of, row_sums
from hone.credit.group import group_relative
from hone.credit.grouping import (
    CreditFunction,
    StepEnds,
    centred,
    episode_ends,
    fraction_true,
    group_deviation,
    turn_ends,
)
from hone.credit.returns import discounted_sums

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTable:
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


TurnKeys: TypeAlias = Callable[[Episodes, TurnTable], Ints]
"""Number of the state in which each turn began `[T]`: equal numbers, equal states."""


def turn_table(episodes: Episodes, step_ends: StepEnds = turn_ends) -> TurnTable:
    """The turns of `episodes`, or the steps that `step_ends` marks; an episode's last decision always ends one."""
    ends = np.flatnonzero(step_ends(episodes) | episode_ends(episodes))
    offsets = offsets_of(np.diff(ends, prepend=-1))
    return TurnTable(
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
    sum over its tokens. `step_ends` marks other segments (`delimiter_ends`). Raises ConfigError for a credit with
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


def observed_texts(episodes: Episodes, turns: TurnTable) -> Ints:
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
