"""Bandits as what is known of them: the process whose states are counts of successes and failures.

Belongs here: the exact best way to explore. A Bayesian's belief about arms with rates ~ Beta(1, 1) is a Markov state
(Bellman, 1956), so that dynamic programming says what the best learner can expect of a trial.
"""

from itertools import product

import numpy as np

from hone.envs.finite.model import FiniteMdp, MdpOutcomes, make_mdp


def bernoulli_beliefs(*, arms: int, pulls: int) -> FiniteMdp:
    """Every (successes, failures) of each of `arms` arms after at most `pulls` pulls; a pull pays 1
    or 0.

    The last pull ends the episode. State 0 is the beginning, where nothing is known. States: C(pulls - 1 + 2 arms,
    2 arms).
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
