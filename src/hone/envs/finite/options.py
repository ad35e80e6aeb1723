"""Options: courses of action with an end of their own, and the process that somebody sees who only chooses among them.

Belongs here: the model of an option, exactly (Sutton, Precup & Singh, 1999). The process over options is a `Finite`
again: the discount spent on the way is a probability of ending, so everything that solves one solves the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hone.core.errors import DataError
from hone.envs.finite.linear import solve
from hone.envs.finite.model import Finite, Flags, Floats, Outcomes, Policy, finite, probabilities

NEGLIGIBLE = 1e-15
"""Outcomes less likely than this are left out of a process over options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """What to do once it is chosen, until it stops."""

    policy: Policy
    """`[S]` or `[S, A]`."""
    stops: Floats
    """`[S]` probability that it stops on arriving there."""
    begins: Flags | None = None
    """`[S]` where it can be chosen; None: wherever anything can be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionModel:
    """What to expect of an option."""

    reward: Floats
    """`[S]` discounted reward until it stops."""
    after: Floats
    """`[S, S]` sum over durations k of discount^k P(it stops after k steps, there)."""


def primitive(mdp: Finite, action: int) -> Option:
    """The option that takes one action and stops."""
    others = mdp.legal.argmax(axis=1)
    policy = np.where(mdp.legal[:, action], action, others)
    return Option(policy=policy, stops=np.ones(mdp.states), begins=mdp.legal[:, action])


def option_model(mdp: Finite, option: Option) -> OptionModel:
    """R = r + discount * P (1 - stops) R, and likewise where it stops, by linear solves.

    Raises DataError where it may go on for ever with discount 1.
    """
    weight = probabilities(mdp, option.policy).ravel()[mdp.owner] * mdp.probability
    goes_on = ~mdp.ends & (weight > 0)
    source, target = (mdp.owner // mdp.actions)[goes_on], mdp.after[goes_on]
    step = mdp.discount * weight[goes_on]
    _require_end(mdp, option, (source, target), weight)
    inside = (source, target, step * (1 - option.stops[target]))
    nowhere = np.zeros(mdp.states, dtype=np.bool_)
    arrives = np.zeros((mdp.states, mdp.states))
    np.add.at(arrives, (source, target), step * option.stops[target])
    reward = solve(inside, mdp.of_pairs(weight * mdp.reward).sum(axis=1), nowhere)
    stopping = np.flatnonzero(option.stops > 0)
    after = np.zeros((mdp.states, mdp.states))
    for state in stopping:
        after[:, state] = solve(inside, arrives[:, state], nowhere)
    return OptionModel(reward=reward, after=after)


def over_options(mdp: Finite, options: Sequence[Option]) -> Finite:
    """The process whose action o is the whole option o; its discount is 1, for its outcomes carry the discount.

    Its best values are those of always choosing the best option and keeping to it (call and return).
    """
    parts: list[Outcomes] = []
    for number, option in enumerate(options):
        model = option_model(mdp, option)
        begins = ~mdp.terminal if option.begins is None else option.begins & ~mdp.terminal
        after = np.where(model.after > NEGLIGIBLE, model.after, 0.0)
        gone = np.maximum(1.0 - after.sum(axis=1), 0.0)
        state, target = np.nonzero(after * begins[:, None])
        ending = np.flatnonzero(begins & (gone > NEGLIGIBLE))
        parts.append(
            Outcomes(
                state=np.concatenate([state, ending]),
                action=np.full(len(state) + len(ending), number),
                after=np.concatenate([target, ending]),
                probability=np.concatenate([after[state, target], gone[ending]]),
                reward=np.concatenate([model.reward[state], model.reward[ending]]),
                ends=np.repeat([False, True], [len(state), len(ending)]),
            )
        )
    columns = [
        np.concatenate(column)
        for column in zip(
            *((part.state, part.action, part.after, part.probability, part.reward, part.ends) for part in parts),
            strict=True,
        )
    ]
    state, action, after, probability, reward, ends = columns
    joined = Outcomes(state=state, action=action, after=after, probability=probability, reward=reward, ends=ends)
    return finite(joined, states=mdp.states, actions=len(options), start=mdp.start, discount=1.0, limit=None)


def _require_end(mdp: Finite, option: Option, edges: tuple[np.ndarray, np.ndarray], weight: Floats) -> None:
    if mdp.discount < 1:
        return
    source, target = edges
    reached = mdp.terminal.copy()
    reached[(mdp.owner // mdp.actions)[mdp.ends & (weight > 0)]] = True
    reached[source[option.stops[target] > 0]] = True
    while (more := source[reached[target] & ~reached[source]]).size:
        reached[more] = True
    if not reached.all():
        state = int(np.flatnonzero(~reached)[0])
        raise DataError(f"discount 1: from state {state} the option never stops; let it stop somewhere on the way")
