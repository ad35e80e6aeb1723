"""A grid whose log holds few good episodes: each of two policies is good in one half of it, and drifts in the other.

Conservative Q-learning joins the halves. Plain Q-learning on the same log believes in actions that it has never seen.
"""

from dataclasses import dataclass, replace

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from hone.control.finite.build import grid_mdp
from hone.control.finite.model import FiniteMdp
from hone.control.finite.solve import evaluate_policy, policy_iteration, start_value
from hone.control.finite.world import FiniteWorld
from hone.control.logs.parquet import BehaviourLog
from hone.control.networks.mlp import MlpConfig
from hone.control.offline import offline_job
from hone.control.spaces import log_spaces
from hone.core.decisions import Floats, Ints
from hone.lab.control import train_recipe
from hone.learner.config import ReplayLearnerConfig
from hone.recipes.offline.cql import CqlAlgorithm, CqlConfig, discrete_method

SIZE, DISCOUNT, LIMIT = 10, 0.95, 100
GOOD, DRIFTING = 0.9, 0.25
"""Shares of best moves in a policy's good half and in the other; the rest is uniform."""


@dataclass
class HalvesActor:
    """Behaviour policy of a rollout: copies take turns between two policies."""

    tables: Floats
    """`[2, S, A]`."""
    version: int = 0

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """Uniform numbers of this shape."""
        return draws.random(shape)

    def decide(self, seen: Ints, noise: Floats) -> tuple[Ints, NDArray[np.float32]]:
        """Actions and log-probabilities `[B]` for states `[B]`."""
        which = np.arange(len(seen)) % 2
        ladder = self.tables[which, seen].cumsum(axis=1)
        action = (ladder <= noise[:, None] * ladder[:, -1:]).sum(axis=1)
        return action, np.log(self.tables[which, seen, action]).astype(np.float32)


def stitching_grid() -> FiniteMdp:
    """10 by 10 cells, from one corner to the opposite one, without walls."""
    rows = ["." * SIZE for _ in range(SIZE)]
    rows[0], rows[-1] = "S" + rows[0][1:], rows[-1][1:] + "G"
    return grid_mdp(rows, discount=DISCOUNT)


def half_policies(mdp: FiniteMdp) -> Floats:
    """The two policies of the log `[2, S, A]`."""
    best = np.eye(mdp.actions)[policy_iteration(mdp).policy]
    near_start = np.add.outer(np.arange(SIZE), np.arange(SIZE)).ravel() < SIZE - 1
    shares = np.stack([np.where(near_start == first, GOOD, DRIFTING) for first in (True, False)])[..., None]
    return shares * best + (1 - shares) / mdp.actions


def shares_of_optimum(*, seed: int, conservatism: float, steps: int = 60) -> tuple[float, float]:
    """Values of the log's policies (their mean) and of the learnt policy, as shares of the optimum, both exact."""
    mdp = stitching_grid()
    best, tables = start_value(mdp, policy_iteration(mdp).value), half_policies(mdp)
    logged = float(np.mean([start_value(mdp, evaluate_policy(mdp, table)) for table in tables]))
    world = FiniteWorld(mdp=replace(mdp, step_limit=LIMIT), steps=300, seed=seed, copies=100)
    log = BehaviourLog(
        episodes=world.rollout(HalvesActor(tables)), observation_space=spaces.Discrete(mdp.states),
        action_space=spaces.Discrete(mdp.actions),
    )  # fmt: skip
    config = CqlConfig(
        recipe="cql", name="stitching", log="", seed=seed, steps=steps, batch=256,
        network=MlpConfig(hidden=[64], activation="relu"),
        learner=ReplayLearnerConfig(lr=3e-3, updates_per_iteration=50, max_grad_norm=None),
        algorithm=CqlAlgorithm(discount=DISCOUNT, conservatism=conservatism, tau=0.02),
    )  # fmt: skip
    job = offline_job(config, log, discrete_method(config, log_spaces(log)))
    policy = train_recipe(job.recipe, steps=steps)
    greedy = policy.numpy_policy().best(np.arange(mdp.states))
    return logged / best, start_value(mdp, evaluate_policy(mdp, greedy)) / best
