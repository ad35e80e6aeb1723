"""Options against single actions in four rooms: sweeps to plan, decisions to decide, steps to learn."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Episodes
from hone.envs.finite.model import Finite
from hone.envs.finite.options import over_options, primitive
from hone.envs.finite.solve import evaluate, policy_iteration, worth
from hone.envs.gym.world import GymConfig
from hone.envs.suite.grid_worlds import FourRooms
from hone.lab.control import job_learned, paying
from hone.lab.finding import Experiment, Finding, Lines, Series, at_least, at_most, lines
from hone.lab.puzzles import Floats
from hone.recipes.tabular import option_q_learning, q_learning
from hone.report.html import number
from hone.tabular.batch import RateConfig
from hone.train.control.job import JudgeConfig
from hone.train.job import Job
from hone.train.tabular.job import TableConfig

DISCOUNT, EACH, ROOMS = 0.95, 16, 8
"""Steps of each environment per turn, and environments."""
SWEEPS, EARLY = 40, 50
"""Of value iteration; and turns of learning that count as early."""
KINDS = ("single actions", "ways out and actions")
ONLY = "ways out alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What planning over a set of options comes to."""

    path: Floats
    """`[SWEEPS + 1]` share of the best worth that is known after so many sweeps of value iteration."""
    worth: float
    """Of the best policy over the options, as a share of the best worth."""
    decisions: float
    """That it takes to the goal, a mean over starts."""


def planned(world: FourRooms) -> dict[str, Plan]:
    """Value iteration and the best policy over each set of options; starts are weighted as the world does."""
    mdp = world.mdp.discounted_by(DISCOUNT)
    actions, ways = [primitive(mdp, action) for action in range(mdp.actions)], world.options()
    best, without = worth(mdp, policy_iteration(mdp).value), mdp.discounted_by(1.0)
    found: dict[str, Plan] = {}
    for name, options in ((KINDS[0], []), (KINDS[1], [*actions, *ways]), (ONLY, ways)):
        above, plain = (over_options(mdp, options), over_options(without, options)) if options else (mdp, without)
        value, path = np.zeros(mdp.states), np.zeros(SWEEPS + 1)
        for sweep in range(1, SWEEPS + 1):
            value = above.best(above.backup(value))
            path[sweep] = worth(above, value) / best
        choice = policy_iteration(above).policy
        share = worth(above, evaluate(above, choice)) / best
        found[name] = Plan(path=path, worth=share, decisions=decisions(plain, choice))
    return found


def decisions(above: Finite, choice: NDArray[np.int64]) -> float:
    """Expected number of choices until the goal, a mean over starts; `above` has the discount 1."""
    return worth(above, evaluate(paying(above, np.ones(len(above.reward))), choice))


def job_of(kind: str, *, seed: int, turns: int) -> Job[Any]:
    """Q-learning over the options, or over the actions, of the same environments at the same rate."""
    env, judge = GymConfig(id="hone/FourRooms-v0", num_envs=ROOMS), JudgeConfig(episodes=20)
    if kind == KINDS[0]:
        return q_learning.build(
            q_learning.QLearningConfig(
                recipe="q_learning", name="lab", seed=seed, steps=turns, env=env, rollout_steps=EACH, judge=judge,
                table=TableConfig(rate=RateConfig(rate=0.1)),
                algorithm=q_learning.QLearningAlgorithm(discount=DISCOUNT),
            )
        )  # fmt: skip
    return option_q_learning.build(
        option_q_learning.OptionQConfig(
            recipe="option_q_learning", name="lab", seed=seed, steps=turns, env=env, rollout_steps=EACH, judge=judge,
            algorithm=option_q_learning.OptionQAlgorithm(discount=DISCOUNT),
        )
    )  # fmt: skip


def reached(kind: str, *, seed: int, turns: int) -> Floats:
    """Goals reached in each turn of learning `[turns]`."""
    found = np.zeros(turns)

    def watch(step: int, episodes: Episodes) -> None:
        found[step - 1] = episodes.terminated.sum()

    job_learned(job_of(kind, seed=seed, turns=turns), steps=turns, watch=watch)
    return found


def run(seed: int, *, quick: bool = False) -> Finding:
    turns, runs = (60, 4) if quick else (150, 4)
    plan = planned(FourRooms())
    goals = {
        kind: np.mean([reached(kind, seed=10 * seed + k, turns=turns) for k in range(runs)], axis=0) for kind in KINDS
    }
    steps = EACH * ROOMS
    early = {kind: float(path[:EARLY].sum()) for kind, path in goals.items()}
    late = {kind: steps * (turns // 5) / float(path[-(turns // 5) :].sum()) for kind, path in goals.items()}
    sweeps = {kind: int(np.argmax(each.path >= 0.9)) for kind, each in plan.items()}
    single, ways = KINDS
    claims = [
        at_most("sweeps to 90% of the best worth, options over actions", sweeps[ways] / sweeps[single], 0.6),
        at_most(
            "decisions to the goal, ways out alone over actions", plan[ONLY].decisions / plan[single].decisions, 0.4
        ),
        at_least("worth of ways out alone, of the best", plan[ONLY].worth, 0.9),
        at_least("goals reached early in learning, options over actions", early[ways] / early[single], 1.2),
    ]
    return Finding(
        header=("chosen among", "sweeps to 90%", "worth", "decisions to the goal", "goals early", "steps a goal, late"),
        rows=[
            (kind, str(sweeps[kind]), f"{each.worth:.1%}", number(each.decisions),
             *((number(early[kind]), number(late[kind])) if kind in goals else ("", "")))
            for kind, each in plan.items()
        ],
        panels=[
            lines("share of the best worth that is known", "sweeps of value iteration", range(SWEEPS + 1),
                  {kind: each.path for kind, each in plan.items()}),
            Lines(
                title="goals reached while learning",
                x_label="steps of the world",
                series=[
                    Series(label=kind, x=(steps * np.arange(1, turns + 1)).tolist(), y=np.cumsum(path).tolist())
                    for kind, path in goals.items()
                ],
            ),
        ],
        verdict=(
            f"In four rooms, the ways out of each room let value iteration come to 90% of the best worth in "
            f"{sweeps[ways]} sweeps instead of {sweeps[single]}; with nothing but the ways out, "
            f"{plan[ONLY].decisions:.1f} decisions lead to the goal instead of {plan[single].decisions:.1f}, for "
            f"{plan[ONLY].worth:.1%} of the best worth. Q-learning reached the goal {early[ways]:.0f} times instead "
            f"of {early[single]:.0f} in its first {steps * EARLY:,} steps, and took "
            f"{late[ways]:.0f} steps to it at last against {late[single]:.0f}."
        ),
        claims=claims,
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Options against single actions",
    question="What do courses of action that last several steps change for planning and for learning?",
    run=run,
    source="Sutton et al., 1999",
)
