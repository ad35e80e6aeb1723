"""Shaping and its hack: a potential changes how fast the best policy is found, a bonus changes which policy that is."""

from functools import partial

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Episodes
from hone.core.random import generator
from hone.credit.potential import naively_shaped, potential_shaped, reshaped
from hone.credit.returns import one_step
from hone.envs.finite.build import grid
from hone.envs.finite.config import MAZE
from hone.envs.finite.model import Finite
from hone.envs.finite.solve import evaluate, policy_iteration, worth
from hone.envs.finite.world import FiniteWorld
from hone.envs.suite.grid_worlds import steps_to_end
from hone.lab.control import learned, paying, side_by_side, tabular
from hone.lab.finding import Experiment, Finding, at_least, at_most, below, lines
from hone.lab.puzzles import Floats
from hone.report.html import number
from hone.tabular.batch import RateConfig
from hone.tabular.learn import Greedy
from hone.tabular.tables import ActionTable, States
from hone.train.tabular.job import Credit

DISCOUNT, WEIGHT = 0.95, 0.05
WEIGHTS = (0.0, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
EACH, JUDGED = 20, 10
"""Steps of each learner per turn, and turns between judgements."""


def closeness(mdp: Finite) -> Floats:
    """`[S]` 1 beside the goal, 0 at the farthest cell."""
    away = steps_to_end(mdp).astype(np.float64)
    far = away[~mdp.terminal].max()
    return np.where(mdp.terminal, 0.0, (far - away) / (far - 1))


def with_potential(mdp: Finite, potential: Floats) -> Finite:
    """r + discount * Phi(s') - Phi(s), outcome by outcome; Phi is 0 after the end."""
    after = np.where(mdp.ends, 0.0, potential[mdp.after])
    return paying(mdp, mdp.reward + mdp.discount * after - potential[mdp.owner // mdp.actions])


def with_bonus(mdp: Finite, potential: Floats) -> Finite:
    """r + Phi(s')."""
    return paying(mdp, mdp.reward + np.where(mdp.ends, 0.0, potential[mdp.after]))


def true_worth(mdp: Finite, shaped: Finite) -> float:
    """What the best policy of the shaped world is worth by the maze's own reward."""
    return worth(mdp, evaluate(mdp, policy_iteration(shaped).policy))


def curve(mdp: Finite, credit: Credit, *, seed: int, turns: int, copies: int) -> Floats:
    """Worth of the greedy policy by the maze's own reward, a mean over learners `[turns / JUDGED]`."""
    every = side_by_side(mdp, copies)
    world = FiniteWorld(mdp=every, steps=EACH, seed=seed, copies=copies)
    table = ActionTable(States(count=every.states, actions=every.actions))
    found = np.empty(turns // JUDGED)

    def watch(step: int, episodes: Episodes) -> None:
        del episodes
        if step % JUDGED == 0:
            found[step // JUDGED - 1] = worth(every, evaluate(every, table.q.argmax(axis=1)))

    recipe = tabular(world, table, Greedy(actions=every.actions), rate=RateConfig(rate=0.5), credit=credit)
    learned(recipe, steps=turns, watch=watch)
    return found


def credits_by_name(potential: Floats) -> dict[str, Credit]:
    """How each learner is paid."""

    def told(seen: NDArray[np.generic]) -> Floats:
        return potential[seen.astype(np.int64) % len(potential)]

    plain = partial(one_step, discount=DISCOUNT)
    by_potential = partial(potential_shaped, potential=told, discount=DISCOUNT)
    return {
        "as it is": plain,
        "potential": partial(reshaped, credit=plain, shape=by_potential),
        "bonus": partial(reshaped, credit=plain, shape=partial(naively_shaped, potential=told)),
    }


def run(seed: int, *, quick: bool = False) -> Finding:
    turns, copies = (200, 4) if quick else (600, 12)
    mdp = grid(MAZE, discount=DISCOUNT)
    near, best = closeness(mdp), worth(mdp, policy_iteration(mdp).value)
    by_potential = np.array([true_worth(mdp, with_potential(mdp, weight * near)) for weight in WEIGHTS])
    by_bonus = np.array([true_worth(mdp, with_bonus(mdp, weight * near)) for weight in WEIGHTS])
    any_one = np.where(mdp.terminal, 0.0, generator(seed, "lab/potential").standard_normal(mdp.states))
    off = max(float(np.abs(by_potential - best).max()), abs(true_worth(mdp, with_potential(mdp, any_one)) - best))
    path = {
        name: curve(mdp, credit, seed=seed, turns=turns, copies=copies)
        for name, credit in credits_by_name(near).items()
    }
    level = {name: float(values.mean()) / best for name, values in path.items()}
    harmless = max(weight for weight, value in zip(WEIGHTS, by_bonus, strict=True) if value > best - 1e-9)
    claims = [
        at_most("best policy under a potential, off the best", off, 1e-9),
        at_most(f"worth of the best policy under a bonus of {WEIGHT}, of the best", float(by_bonus[-2]) / best, 0.01),
        at_least(
            "of the best, mean over learning, with a potential minus without",
            level["potential"] - level["as it is"],
            0.2,
        ),
        at_most("worth learned at last with a bonus, of the best", float(path["bonus"][-3:].mean()) / best, 0.1),
    ]
    x = EACH * JUDGED * np.arange(1, turns // JUDGED + 1)
    rows = [(name, f"{level[name]:.0%}", f"{float(values[-3:].mean()) / best:.0%}") for name, values in path.items()]
    return Finding(
        header=("reward", "of the best, mean over learning", "of the best, at last"),
        rows=rows,
        panels=[
            lines("worth of the best policy of the shaped maze", "weight of the hint", WEIGHTS,
                  {"potential": by_potential, "bonus": by_bonus}),
            lines("worth of what Q-learning found", "steps of each learner", x, path),
        ],
        verdict=(
            f"A potential, even one drawn at random, leaves the best policy of the maze exactly as good (off by less "
            f"than {below(off)}); a bonus for being near the goal is harmless up to {number(harmless)} a step, and "
            f"at {WEIGHT} the best policy stays near it for ever and never arrives (worth "
            f"{float(by_bonus[-2]) / best:.0%} of the best). Over {turns * EACH:,} steps Q-learning was on average at "
            f"{level['as it is']:.0%} of the best without a hint and {level['potential']:.0%} with a potential, "
            f"and it ended at {float(path['bonus'][-3:].mean()) / best:.0%} with a bonus."
        ),
        claims=claims,
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="Shaping and its hack",
    question="Which hints leave the best policy as it is, and what does a bonus do in their place?",
    run=run,
    source="Ng et al., 1999; Randloev & Alstroem, 1998",
)
