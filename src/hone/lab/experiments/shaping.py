"""Reward shaping: a potential changes the speed of learning, a state bonus changes the optimal policy."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from hone.control.finite.build import grid_mdp
from hone.control.finite.config import MAZE
from hone.control.finite.model import FiniteMdp
from hone.control.finite.solve import evaluate_policy, policy_iteration, start_value
from hone.control.finite.world import FiniteWorld
from hone.control.suite.grid_worlds import steps_to_end
from hone.control.tables.learn import QLearningRule, RateConfig
from hone.control.tables.tables import ActionTable, StateFeatures
from hone.control.tabular import TabularCredit
from hone.core.episodes import Episodes
from hone.core.random import generator
from hone.credit.potential import potential_shaped, state_bonus_shaped, with_shaped_rewards
from hone.credit.returns import one_step_target
from hone.lab.control import replicate_mdp, tabular_recipe, train_recipe, with_rewards
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, error_bound, line_plot
from hone.lab.puzzles import Floats
from hone.run.report.html import format_number

DISCOUNT, _WEIGHT = 0.95, 0.05
_WEIGHTS = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_EACH, _JUDGED = 20, 10
"""Steps of each learner per iteration, and iterations between evaluations."""


def with_potential(mdp: FiniteMdp, potential: Floats) -> FiniteMdp:
    """r + discount * Phi(s') - Phi(s), outcome by outcome; Phi is 0 after the end."""
    after = np.where(mdp.terminates, 0.0, potential[mdp.next_state])
    return with_rewards(mdp, mdp.reward + mdp.discount * after - potential[mdp.pair_of_outcome // mdp.actions])


def with_bonus(mdp: FiniteMdp, potential: Floats) -> FiniteMdp:
    """r + Phi(s')."""
    return with_rewards(mdp, mdp.reward + np.where(mdp.terminates, 0.0, potential[mdp.next_state]))


def _true_value(mdp: FiniteMdp, shaped: FiniteMdp) -> float:
    """Value of the shaped environment's optimal policy by the maze's own reward."""
    return start_value(mdp, evaluate_policy(mdp, policy_iteration(shaped).policy))


def _learning_curve(mdp: FiniteMdp, credit: TabularCredit, *, seed: int, turns: int, copies: int) -> Floats:
    """Value of the greedy policy by the maze's own reward, a mean over learners `[turns / JUDGED]`."""
    every = replicate_mdp(mdp, copies)
    world = FiniteWorld(mdp=every, steps=_EACH, seed=seed, copies=copies)
    table = ActionTable(StateFeatures(count=every.states, actions=every.actions))
    result = np.empty(turns // _JUDGED)

    def watch(step: int, episodes: Episodes) -> None:
        del episodes
        if step % _JUDGED == 0:
            result[step // _JUDGED - 1] = start_value(every, evaluate_policy(every, table.q.argmax(axis=1)))

    recipe = tabular_recipe(
        world, table, QLearningRule(actions=every.actions), rate=RateConfig(rate=0.5), credit=credit
    )
    train_recipe(recipe, steps=turns, watch=watch)
    return result


def _credits_by_name(potential: Floats) -> dict[str, TabularCredit]:
    """Reward of each learner."""

    def table_potential(seen: NDArray[np.generic]) -> Floats:
        return potential[seen.astype(np.int64) % len(potential)]

    plain = partial(one_step_target, discount=DISCOUNT)
    by_potential = partial(potential_shaped, potential=table_potential, discount=DISCOUNT)
    return {
        "no shaping": plain,
        "potential": partial(with_shaped_rewards, credit=plain, shaping=by_potential),
        "bonus": partial(
            with_shaped_rewards, credit=plain, shaping=partial(state_bonus_shaped, potential=table_potential)
        ),
    }


def claims_of(
    off: float, by_bonus: Floats, best: float, level: dict[str, float], path: dict[str, Floats]
) -> list[BoundedClaim]:
    """Claims on the distance `off` the optimum, the optimum `best`, and the values of learners and of shaped mazes."""
    return [
        at_most("optimal policy under a potential, distance to the optimum", off, 1e-9),
        at_most(
            f"value of the optimal policy under a bonus of {_WEIGHT}, share of the optimum",
            float(by_bonus[-2]) / best,
            0.01,
        ),
        at_least(
            "share of the optimum, mean over training, with a potential minus without",
            level["potential"] - level["no shaping"],
            0.2,
        ),
        at_most("final value with a bonus, share of the optimum", float(path["bonus"][-3:].mean()) / best, 0.1),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    turns, copies = (200, 4) if quick else (600, 12)
    mdp = grid_mdp(MAZE, discount=DISCOUNT)
    away = steps_to_end(mdp).astype(np.float64)
    far = away[~mdp.terminal].max()
    near = np.where(mdp.terminal, 0.0, (far - away) / (far - 1))  # 1 beside the goal, 0 at the farthest cell
    best = start_value(mdp, policy_iteration(mdp).value)
    by_potential = np.array([_true_value(mdp, with_potential(mdp, weight * near)) for weight in _WEIGHTS])
    by_bonus = np.array([_true_value(mdp, with_bonus(mdp, weight * near)) for weight in _WEIGHTS])
    any_one = np.where(mdp.terminal, 0.0, generator(seed, "lab/potential").standard_normal(mdp.states))
    off = max(float(np.abs(by_potential - best).max()), abs(_true_value(mdp, with_potential(mdp, any_one)) - best))
    path = {
        name: _learning_curve(mdp, credit, seed=seed, turns=turns, copies=copies)
        for name, credit in _credits_by_name(near).items()
    }
    level = {name: float(values.mean()) / best for name, values in path.items()}
    harmless = max(weight for weight, value in zip(_WEIGHTS, by_bonus, strict=True) if value > best - 1e-9)
    x = _EACH * _JUDGED * np.arange(1, turns // _JUDGED + 1)
    rows = [(name, f"{level[name]:.0%}", f"{float(values[-3:].mean()) / best:.0%}") for name, values in path.items()]
    return ExperimentResult(
        header=("reward", "share of the optimum, mean over training", "at the end"),
        rows=rows,
        panels=[
            line_plot("value of the optimal policy of the shaped maze", "weight of the shaping reward", _WEIGHTS,
                  {"potential": by_potential, "bonus": by_bonus}),
            line_plot("value of Q-learning's policy", "steps of each learner", x, path),
        ],
        verdict=(
            "A potential, even a random one, keeps the optimal policy of the maze optimal (difference below "
            f"{error_bound(off)}). A bonus for being near the goal is harmless up to {format_number(harmless)} per "
            f"step; at {_WEIGHT} the optimal policy stays near the goal for ever and never arrives (value "
            f"{float(by_bonus[-2]) / best:.0%} of the optimum). Over {turns * _EACH:,} steps Q-learning averages "
            f"{level['no shaping']:.0%} of the optimum without shaping and {level['potential']:.0%} with a potential, "
            f"and ends at {float(path['bonus'][-3:].mean()) / best:.0%} with a bonus."
        ),
        claims=claims_of(off, by_bonus, best, level, path),
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Reward shaping",
    question="Which shaping rewards preserve the optimal policy?",
    run=_run,
    source="Ng et al., 1999; Randloev & Alstroem, 1998",
)
