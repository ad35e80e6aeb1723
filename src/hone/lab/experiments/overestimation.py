"""Overestimation: the greatest of noisy values is too great, and two tables that check each other are not."""

import numpy as np

from hone.core.episodes import Episodes
from hone.envs.finite.model import Finite, Outcomes, finite
from hone.envs.finite.world import FiniteWorld
from hone.lab.control import learned, side_by_side, smooth, tabular
from hone.lab.finding import Experiment, Finding, at_least, at_most, lines
from hone.lab.puzzles import Floats
from hone.report.html import number
from hone.tabular.batch import RateConfig
from hone.tabular.learn import Double, Greedy, Rule
from hone.tabular.tables import ActionTable, States

ACTIONS, HALF = 10, 5
TRUTH = -0.1
"""Mean of what each of the second state's actions pays: 1 in 45 cases of 100, -1 otherwise."""
WINDOW = 20
METHODS = ("Q-learning", "double Q-learning")


def fork() -> Finite:
    """The first five actions end the episode with 0; the others lead to a state of ten bets, each worth `TRUTH`."""
    action = np.arange(ACTIONS)
    bets = np.repeat(action, 2)
    return finite(
        Outcomes(
            state=np.concatenate([np.zeros(ACTIONS, np.int64), np.ones(2 * ACTIONS, np.int64)]),
            action=np.concatenate([action, bets]),
            after=np.ones(3 * ACTIONS, np.int64),
            probability=np.concatenate([np.ones(ACTIONS), np.tile([0.45, 0.55], ACTIONS)]),
            reward=np.concatenate([np.zeros(ACTIONS), np.tile([1.0, -1.0], ACTIONS)]),
            ends=np.concatenate([action < HALF, np.ones(2 * ACTIONS, np.bool_)]),
        ),
        states=2, actions=ACTIONS, start=np.array([1.0, 0.0]), discount=1.0,
    )  # fmt: skip


def learnt(name: str, *, seed: int, turns: int, learners: int) -> tuple[Floats, Floats]:
    """Of each turn `[turns]`: share of first decisions that lead to the bets, and what these seem to be worth."""
    mdp = side_by_side(fork(), learners)
    world = FiniteWorld(mdp=mdp, steps=1, seed=seed, copies=learners)
    table = ActionTable(States(count=mdp.states, actions=ACTIONS), tables=1 if name == METHODS[0] else 2)
    rule: Rule = Greedy(actions=ACTIONS) if name == METHODS[0] else Double(actions=ACTIONS, seed=seed)
    wrong, believed = np.empty(turns), np.empty(turns)

    def watch(step: int, episodes: Episodes) -> None:
        first = episodes.observations.astype(np.int64) % 2 == 0
        wrong[step - 1] = (episodes.chosen[first].astype(np.int64) >= HALF).mean()
        # What the target of a step towards the bets takes them to be worth.
        tables = table.x.reshape(table.tables, learners, 2, ACTIONS)[:, :, 1]
        pick = tables[0].argmax(axis=1)
        believed[step - 1] = tables[-1][np.arange(learners), pick].mean()

    learned(tabular(world, table, rule, rate=RateConfig(rate=0.1)), steps=turns, watch=watch)
    return wrong, believed


def run(seed: int, *, quick: bool = False) -> Finding:
    turns, learners = (400, 300) if quick else (800, 1000)
    found = {name: learnt(name, seed=seed, turns=turns, learners=learners) for name in METHODS}
    share = {name: float(wrong.mean()) for name, (wrong, _) in found.items()}
    peak = {name: float(smooth(wrong, WINDOW).max()) for name, (wrong, _) in found.items()}
    bias = {name: float(believed.max()) - TRUTH for name, (_, believed) in found.items()}
    last = {name: float(believed[-turns // 10 :].mean()) for name, (_, believed) in found.items()}
    single, double = METHODS
    claims = [
        at_least("share of wrong ways, Q-learning over double", share[single] / share[double], 1.2),
        at_least("greatest error of what the bets are thought to be worth, Q-learning", bias[single], 0.1),
        at_most("the same, double Q-learning", bias[double], 0.12),
        at_most("what double Q-learning takes them for at last over the truth, below it", last[double] - TRUTH, 0.0),
    ]
    after = np.arange(WINDOW, turns + 1)
    return Finding(
        header=("method", "wrong ways", "at worst", "bets seem worth, at most", "at last", "truth"),
        rows=[
            (name, f"{share[name]:.0%}", f"{peak[name]:.0%}", *map(number, (bias[name] + TRUTH, last[name], TRUTH)))
            for name in METHODS
        ],
        panels=[
            lines("share of decisions for the losing way", "steps of each learner", after,
                  {name: smooth(wrong, WINDOW) for name, (wrong, _) in found.items()}),
            lines("what the bets are thought to be worth", "steps of each learner", np.arange(1, turns + 1),
                  {**{name: believed for name, (_, believed) in found.items()}, "truth": np.full(turns, TRUTH)}),
        ],
        verdict=(
            f"Where one way pays 0 and the other leads to ten bets that are each worth {TRUTH}, Q-learning thinks them "
            f"worth up to {number(bias[single] + TRUTH)} and goes there in {peak[single]:.0%} of its decisions at "
            f"worst, {share[single]:.0%} over all; double Q-learning thinks up to {number(bias[double] + TRUTH)}, "
            f"{peak[double]:.0%} at worst and {share[double]:.0%} over all, and errs to the other side at last "
            f"({number(last[double])}; Q-learning {number(last[single])})."
        ),
        claims=claims,
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Overestimation",
    question="Why does Q-learning like bets that lose, and what do two tables change?",
    run=run,
    source="van Hasselt, 2010; Sutton & Barto, 2018, example 6.7",
)
