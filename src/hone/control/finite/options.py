"""Options (temporally extended actions), and the decision process over options.

Belongs here: the exact model of an option (Sutton, Precup & Singh, 1999). The process over options is a `FiniteMdp`
whose discounting is a probability of termination, so the same solvers apply.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hone.control.finite.model import (
    FiniteMdp,
    Flags,
    Floats,
    MdpOutcomes,
    TabularPolicy,
    make_mdp,
    policy_probabilities,
)
from hone.control.finite.solve import solve_linear
from hone.core.errors import DataError

NEGLIGIBLE = 1e-15
"""Smallest probability of an outcome in a process over options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkovOption:
    """Option with a Markov policy and termination."""

    policy: TabularPolicy
    """Actions `[S]` or probabilities `[S, A]`."""
    termination: Floats
    """Probability `[S]` of stopping on arrival in a state."""
    initiation_set: Flags | None = None
    """States `[S]` in which the option is available; None: all non-terminal ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _OptionModel:
    """Expected reward and termination of an option."""

    reward: Floats
    """Discounted reward `[S]` until it stops."""
    next_state: Floats
    """Sum over durations k of discount^k P(it stops after k steps in a state) `[S, S]`."""


def primitive_option(mdp: FiniteMdp, action: int) -> MarkovOption:
    """Make the option that takes one action and stops."""
    others = mdp.available.argmax(axis=1)
    policy = np.where(mdp.available[:, action], action, others)
    return MarkovOption(policy=policy, termination=np.ones(mdp.states), initiation_set=mdp.available[:, action])


def option_model(mdp: FiniteMdp, option: MarkovOption) -> _OptionModel:
    """Compute R = r + discount * P (1 - stops) R, and the stopping states likewise, by linear solves.

    Raises DataError if it may never stop with discount 1.
    """
    weight = policy_probabilities(mdp, option.policy).ravel()[mdp.pair_of_outcome] * mdp.probability
    goes_on = ~mdp.terminates & (weight > 0)
    source, target = (mdp.pair_of_outcome // mdp.actions)[goes_on], mdp.next_state[goes_on]
    step = mdp.discount * weight[goes_on]
    _require_end(mdp, option, (source, target), weight)
    inside = (source, target, step * (1 - option.termination[target]))
    nowhere = np.zeros(mdp.states, dtype=np.bool_)
    arrives = np.zeros((mdp.states, mdp.states))
    np.add.at(arrives, (source, target), step * option.termination[target])
    reward = solve_linear(inside, mdp.sum_by_pair(weight * mdp.reward).sum(axis=1), nowhere)
    stopping = np.flatnonzero(option.termination > 0)
    after = np.zeros((mdp.states, mdp.states))
    for state in stopping:
        after[:, state] = solve_linear(inside, arrives[:, state], nowhere)
    return _OptionModel(reward=reward, next_state=after)


def mdp_over_options(mdp: FiniteMdp, options: Sequence[MarkovOption]) -> FiniteMdp:
    """Build the process with options as actions; its discount is 1, because its outcomes contain the discount.

    Its optimal values are those of call-and-return execution of the best options.
    """
    parts: list[tuple[np.ndarray, ...]] = []
    """Columns of the outcomes of each option, in the order of `MdpOutcomes`."""
    for number, option in enumerate(options):
        model = option_model(mdp, option)
        begins = ~mdp.terminal if option.initiation_set is None else option.initiation_set & ~mdp.terminal
        after = np.where(model.next_state > NEGLIGIBLE, model.next_state, 0.0)
        gone = np.maximum(1.0 - after.sum(axis=1), 0.0)
        state, target = np.nonzero(after * begins[:, None])
        ending = np.flatnonzero(begins & (gone > NEGLIGIBLE))
        parts.append(
            (
                np.concatenate([state, ending]),
                np.full(len(state) + len(ending), number),
                np.concatenate([target, ending]),
                np.concatenate([after[state, target], gone[ending]]),
                np.concatenate([model.reward[state], model.reward[ending]]),
                np.repeat([False, True], [len(state), len(ending)]),
            )
        )
    state, action, after, probability, reward, ends = (np.concatenate(column) for column in zip(*parts, strict=True))
    joined = MdpOutcomes(
        state=state, action=action, next_state=after, probability=probability, reward=reward, terminates=ends
    )
    return make_mdp(joined, states=mdp.states, actions=len(options), start=mdp.start_distribution, discount=1.0)


def _require_end(mdp: FiniteMdp, option: MarkovOption, edges: tuple[np.ndarray, np.ndarray], weight: Floats) -> None:
    if mdp.discount < 1:
        return
    source, target = edges
    reached = mdp.terminal.copy()
    reached[(mdp.pair_of_outcome // mdp.actions)[mdp.terminates & (weight > 0)]] = True
    reached[source[option.termination[target] > 0]] = True
    while (more := source[reached[target] & ~reached[source]]).size:
        reached[more] = True
    if not reached.all():
        state = int(np.flatnonzero(~reached)[0])
        raise DataError(f"discount 1: from state {state} the option never stops; add a state in which it stops")
