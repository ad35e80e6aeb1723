"""Bayes-optimal exploration of Bernoulli bandits, solved exactly.

The posterior of arms with rates ~ Beta(1, 1) is a Markov state (Bellman, 1956): the counts of successes and failures.
"""

from itertools import product

import numpy as np

from hone.control.finite.model import FiniteMdp, MdpOutcomes, make_mdp


def bernoulli_beliefs(*, arms: int, pulls: int) -> FiniteMdp:
    """Belief process of `arms` arms and `pulls` pulls with rewards 0 or 1; the last pull terminates.

    State 0 is the prior. Number of states: C(pulls - 1 + 2 arms, 2 arms).
    """
    every = [counts for counts in product(range(pulls), repeat=2 * arms) if sum(counts) < pulls]
    number = {counts: state for state, counts in enumerate(every)}
    rows: list[tuple[int, int, int, float, float, bool]] = []
    for counts, state in number.items():
        last = sum(counts) == pulls - 1
        for arm in range(arms):
            won, lost = counts[2 * arm : 2 * arm + 2]
            rate = (won + 1) / (won + lost + 2)
            for place, chance, paid in ((2 * arm, rate, 1.0), (2 * arm + 1, 1.0 - rate, 0.0)):
                after = (*counts[:place], counts[place] + 1, *counts[place + 1 :])
                rows.append((state, arm, 0 if last else number[after], chance, paid, last))
    state, action, after, probability, reward, ends = (np.array(column) for column in zip(*rows, strict=True))
    start = np.zeros(len(every))
    start[0] = 1.0
    outcomes = MdpOutcomes(
        state=state, action=action, next_state=after, probability=probability, reward=reward, terminates=ends
    )
    return make_mdp(outcomes, states=len(every), actions=arms, start=start, discount=1.0)
