"""Options against single actions in four rooms: sweeps of planning, decisions, and steps of learning."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hone.control.environments.world import GymConfig
from hone.control.finite.options import mdp_over_options, primitive_option
from hone.control.finite.solve import evaluate_policy, policy_iteration, start_value
from hone.control.job import ControlEvaluationConfig
from hone.control.suite.grid_worlds import FourRoomsEnv
from hone.control.tables.learn import RateConfig
from hone.control.tabular import TableConfig, TabularAlgorithm
from hone.core.episodes import Episodes
from hone.lab.control import train_job, with_rewards
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.lab.puzzles import Floats
from hone.recipes.tabular import option_q_learning, q_learning
from hone.run.job import TrainingJob
from hone.run.report.html import format_number

DISCOUNT, _EACH, ROOMS = 0.95, 16, 8
"""Steps of each environment per iteration, and environments."""
_SWEEPS, _EARLY = 40, 50
"""Sweeps of value iteration; and iterations that count as early."""
KINDS = ("single actions", "hallway options and actions")
ONLY = "hallway options alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionPlan:
    """Result of planning over a set of options."""

    progress: Floats
    """`[SWEEPS + 1]` share of the optimal value after each sweep of value iteration."""
    value_share: float
    """Value of the best policy over the options, relative to the optimal value."""
    decisions: float
    """Decisions to the goal, a mean over starts."""


def plan_with_options(world: FourRoomsEnv) -> dict[str, OptionPlan]:
    """Value iteration and the best policy over each set of options; starts are weighted as in the environment."""
    mdp = world.mdp.with_discount(DISCOUNT)
    actions, ways = [primitive_option(mdp, action) for action in range(mdp.actions)], world.options()
    best, without = start_value(mdp, policy_iteration(mdp).value), mdp.with_discount(1.0)
    result: dict[str, OptionPlan] = {}
    for name, options in ((KINDS[0], []), (KINDS[1], [*actions, *ways]), (ONLY, ways)):
        above, plain = (
            (mdp_over_options(mdp, options), mdp_over_options(without, options)) if options else (mdp, without)
        )
        value, path = np.zeros(mdp.states), np.zeros(_SWEEPS + 1)
        for sweep in range(1, _SWEEPS + 1):
            value = above.greedy_values(above.backup(value))
            path[sweep] = start_value(above, value) / best
        choice = policy_iteration(above).policy
        share = start_value(above, evaluate_policy(above, choice)) / best
        one_each = with_rewards(plain, np.ones(len(plain.reward)))
        decisions = start_value(plain, evaluate_policy(one_each, choice))
        result[name] = OptionPlan(progress=path, value_share=share, decisions=decisions)
    return result


def _make_job(kind: str, *, seed: int, turns: int) -> TrainingJob[Any]:
    """Q-learning over the options, or over the actions, of the same environments at the same rate."""
    env, judge = GymConfig(id="hone/FourRooms-v0", num_envs=ROOMS), ControlEvaluationConfig(episodes=20)
    if kind == KINDS[0]:
        return q_learning.ENTRY.build(
            q_learning.QLearningConfig(
                recipe="q_learning", name="lab", seed=seed, steps=turns, env=env, rollout_steps=_EACH,
            evaluation=judge,
                table=TableConfig(rate=RateConfig(rate=0.1)),
                algorithm=TabularAlgorithm(discount=DISCOUNT),
            )
        )  # fmt: skip
    return option_q_learning.ENTRY.build(
        option_q_learning.OptionQConfig(
            recipe="option_q_learning", name="lab", seed=seed, steps=turns, env=env, rollout_steps=_EACH,
            evaluation=judge,
            algorithm=option_q_learning.OptionQAlgorithm(discount=DISCOUNT),
        )
    )  # fmt: skip


def _goals_reached(kind: str, *, seed: int, turns: int) -> Floats:
    """Goals reached in each iteration `[turns]`."""
    result = np.zeros(turns)

    def watch(step: int, episodes: Episodes) -> None:
        result[step - 1] = episodes.terminated.sum()

    train_job(_make_job(kind, seed=seed, turns=turns), steps=turns, watch=watch)
    return result


def claims_of(sweeps: dict[str, int], plan: dict[str, OptionPlan], early: dict[str, float]) -> list[BoundedClaim]:
    """Claims on sweeps and plans by choice, and on the goals reached early in learning."""
    single, ways = KINDS
    return [
        at_most("sweeps to 90% of the optimal value, options over actions", sweeps[ways] / sweeps[single], 0.6),
        at_most(
            "decisions to the goal, hallway options alone over actions",
            plan[ONLY].decisions / plan[single].decisions,
            0.4,
        ),
        at_least("value of hallway options alone, share of the optimum", plan[ONLY].value_share, 0.9),
        at_least("goals reached early in learning, options over actions", early[ways] / early[single], 1.2),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    turns, runs = (60, 4) if quick else (150, 4)
    plan = plan_with_options(FourRoomsEnv())
    goals = {
        kind: np.stack([_goals_reached(kind, seed=10 * seed + k, turns=turns) for k in range(runs)]) for kind in KINDS
    }
    steps = _EACH * ROOMS
    early = {kind: float(path[:, :_EARLY].sum(axis=1).mean()) for kind, path in goals.items()}
    late = {
        kind: steps * (turns // 5) / float(path[:, -(turns // 5) :].sum(axis=1).mean()) for kind, path in goals.items()
    }
    sweeps = {kind: int(np.argmax(each.progress >= 0.9)) for kind, each in plan.items()}
    single, ways = KINDS
    return ExperimentResult(
        header=("choices", "sweeps to 90%", "value", "decisions to the goal", "goals early", "steps per goal, late"),
        rows=[
            (kind, str(sweeps[kind]), f"{each.value_share:.1%}", format_number(each.decisions),
             *((format_number(early[kind]), format_number(late[kind])) if kind in goals else ("", "")))
            for kind, each in plan.items()
        ],
        panels=[
            line_plot("share of the optimal value", "sweeps of value iteration", range(_SWEEPS + 1),
                  {kind: each.progress for kind, each in plan.items()}),
            line_plot("goals reached in training", "environment steps", steps * np.arange(1, turns + 1),
                  {kind: np.cumsum(path, axis=1) for kind, path in goals.items()}),
        ],
        verdict=(
            f"In four rooms, hallway options let value iteration reach 90% of the optimal value in {sweeps[ways]} "
            f"sweeps instead of {sweeps[single]}. With hallway options alone, {plan[ONLY].decisions:.1f} decisions "
            f"lead to the goal instead of {plan[single].decisions:.1f}, at {plan[ONLY].value_share:.1%} of the optimal "
            f"value. Q-learning with options reached the goal {early[ways]:.0f} times instead of {early[single]:.0f} "
            f"in its first {steps * _EARLY:,} steps, and needed {late[ways]:.0f} steps per goal at the end against "
            f"{late[single]:.0f}."
        ),
        claims=claims_of(sweeps, plan, early),
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Options against single actions",
    question="Do options speed up planning and learning?",
    run=_run,
    source="Sutton et al., 1999",
)
