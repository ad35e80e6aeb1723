"""Overestimation: the maximum of noisy values is biased upwards; two tables remove the bias."""

import numpy as np

from hone.control.finite.model import FiniteMdp, MdpOutcomes, make_mdp
from hone.control.finite.world import FiniteWorld
from hone.control.tables.learn import DoubleQLearning, QLearningRule, RateConfig, UpdateRule
from hone.control.tables.tables import ActionTable, StateFeatures
from hone.core.episodes import Episodes
from hone.lab.control import moving_average, replicate_mdp, tabular_recipe, train_recipe
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.lab.puzzles import Floats
from hone.run.report.html import format_number

ACTIONS, _HALF = 10, 5
TRUTH = -0.1
"""Mean reward of the second state's actions: 1 in 45 of 100 cases, -1 otherwise."""
_WINDOW = 20
METHODS = ("Q-learning", "double Q-learning")


def maximisation_bias_mdp() -> FiniteMdp:
    """The first five actions end the episode with 0; the others lead to a state of ten bets, each with mean `TRUTH`."""
    action = np.arange(ACTIONS)
    bets = np.repeat(action, 2)
    return make_mdp(
        MdpOutcomes(
            state=np.concatenate([np.zeros(ACTIONS, np.int64), np.ones(2 * ACTIONS, np.int64)]),
            action=np.concatenate([action, bets]),
            next_state=np.ones(3 * ACTIONS, np.int64),
            probability=np.concatenate([np.ones(ACTIONS), np.tile([0.45, 0.55], ACTIONS)]),
            reward=np.concatenate([np.zeros(ACTIONS), np.tile([1.0, -1.0], ACTIONS)]),
            terminates=np.concatenate([action < _HALF, np.ones(2 * ACTIONS, np.bool_)]),
        ),
        states=2, actions=ACTIONS, start=np.array([1.0, 0.0]), discount=1.0,
    )  # fmt: skip


def _train_learners(name: str, *, seed: int, turns: int, learners: int) -> tuple[Floats, Floats]:
    """Per iteration `[turns]`: share of first decisions that lead to the bets, and the estimated value of these."""
    mdp = replicate_mdp(maximisation_bias_mdp(), learners)
    world = FiniteWorld(mdp=mdp, steps=1, seed=seed, copies=learners)
    table = ActionTable(StateFeatures(count=mdp.states, actions=ACTIONS), tables=1 if name == METHODS[0] else 2)
    rule: UpdateRule = (
        QLearningRule(actions=ACTIONS) if name == METHODS[0] else DoubleQLearning(actions=ACTIONS, seed=seed)
    )
    wrong, believed = np.empty(turns), np.empty(turns)

    def watch(step: int, episodes: Episodes) -> None:
        first = episodes.observations.astype(np.int64) % 2 == 0
        wrong[step - 1] = (episodes.chosen[first].astype(np.int64) >= _HALF).mean()
        # Value of the bets in the target of a step towards them.
        tables = table.x.reshape(table.tables, learners, 2, ACTIONS)[:, :, 1]
        pick = tables[0].argmax(axis=1)
        believed[step - 1] = tables[-1][np.arange(learners), pick].mean()

    train_recipe(tabular_recipe(world, table, rule, rate=RateConfig(rate=0.1)), steps=turns, watch=watch)
    return wrong, believed


def claims_of(share: dict[str, float], bias: dict[str, float], last: dict[str, float]) -> list[BoundedClaim]:
    """Claims on the share of wrong decisions, the largest bias and the last estimate, by method."""
    single, double = METHODS
    return [
        at_least("share of wrong decisions, Q-learning over double", share[single] / share[double], 1.2),
        at_least("largest overestimation of the bets, Q-learning", bias[single], 0.1),
        at_most("the same, double Q-learning", bias[double], 0.12),
        at_most("final estimate of double Q-learning minus the true value", last[double] - TRUTH, 0.0),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    turns, learners = (400, 300) if quick else (800, 1000)
    result = {name: _train_learners(name, seed=seed, turns=turns, learners=learners) for name in METHODS}
    share = {name: float(wrong.mean()) for name, (wrong, _) in result.items()}
    peak = {name: float(moving_average(wrong, _WINDOW).max()) for name, (wrong, _) in result.items()}
    bias = {name: float(believed.max()) - TRUTH for name, (_, believed) in result.items()}
    last = {name: float(believed[-turns // 10 :].mean()) for name, (_, believed) in result.items()}
    single, double = METHODS
    after = np.arange(_WINDOW, turns + 1)
    return ExperimentResult(
        header=("method", "wrong decisions", "at worst", "largest estimate", "final estimate", "true value"),
        rows=[
            (name, f"{share[name]:.0%}", f"{peak[name]:.0%}", *map(format_number, (bias[name] + TRUTH, last[name],
            TRUTH)))
            for name in METHODS
        ],
        panels=[
            line_plot("share of decisions for the bets", "steps of each learner", after,
                  {name: moving_average(wrong, _WINDOW) for name, (wrong, _) in result.items()}),
            line_plot("estimated value of the bets", "steps of each learner", np.arange(1, turns + 1),
                  {**{name: believed for name, (_, believed) in result.items()}, "true value": np.full(turns, TRUTH)}),
        ],
        verdict=(
            f"One action pays 0, the other leads to ten bets with a mean of {TRUTH}. Maximisation bias lets Q-learning "
            f"estimate the bets at up to {format_number(bias[single] + TRUTH)} and choose them in {peak[single]:.0%} "
            f"of its decisions at worst, {share[single]:.0%} overall. Double Q-learning estimates up to "
            f"{format_number(bias[double] + TRUTH)}, with {peak[double]:.0%} at worst and {share[double]:.0%} overall, "
            f"and ends below the true value ({format_number(last[double])}; Q-learning {format_number(last[single])})."
        ),
        claims=claims_of(share, bias, last),
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Maximisation bias",
    question="Why does Q-learning prefer losing bets, and does double Q-learning correct it?",
    run=_run,
    source="van Hasselt, 2010; Sutton & Barto, 2018, example 6.7",
)
