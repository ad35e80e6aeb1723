"""SARSA(lambda) with tile coding: a box of observations becomes a few active cells of a table (Sutton, 1996).

Linear function approximation on policy, with traces. The defaults solve MountainCar-v0, where every step is rewarded
-1: values begin at 0, above every return that can be reached, and this optimism alone explores.
"""

from functools import partial
from typing import Literal

from gymnasium import spaces
from pydantic import Field

from hone.control.environments.world import GymSpaces
from hone.control.tables.explore import ConstantSchedule, EpsilonGreedy, Exploration
from hone.control.tables.kernels import eligibility_traces
from hone.control.tables.learn import EligibilityTraces, RateConfig, sarsa_weights
from hone.control.tables.tables import ActionTable, TileCoder, make_tile_coder
from hone.control.tabular import (
    TRACE_KINDS,
    GymTableRunConfig,
    TableConfig,
    TabularMethod,
    open_gym_table,
    table_run,
)
from hone.core.config import Config
from hone.core.errors import ConfigError
from hone.credit.returns import one_step_target
from hone.run.job import OpenedRun, RecipeParts, RecipeSpec


class TilesConfig(Config):
    """Tile coding: offset grids over the box of observations."""

    tilings: int = Field(default=8, ge=1)
    """Grids; one cell of each is active."""
    bins: int = Field(default=8, ge=1)
    """Cells along each dimension of a grid."""
    low: list[float] | None = None
    """Lower bounds of the box; None: the environment's."""
    high: list[float] | None = None
    """Upper bounds."""


class TileSarsaAlgorithm(Config):
    """The method's numbers."""

    discount: float = Field(default=1.0, gt=0, le=1)
    """Discount factor (gamma)."""
    trace_lambda: float = Field(default=0.9, ge=0, le=1)
    """lambda."""
    trace: Literal["accumulating", "replacing", "dutch"] = "replacing"
    """Update of the eligibility traces of the active tiles."""
    initial: float = 0.0
    """Value of every action at first."""


class TileSarsaConfig(GymTableRunConfig):
    """A table over tiles of a box of observations."""

    tiles: TilesConfig = TilesConfig()
    """Features."""
    rate: RateConfig = RateConfig(rate=0.3)
    """Step sizes of a value; each tile gets its share."""
    exploration: Exploration = EpsilonGreedy(epsilon=ConstantSchedule(value=0.0))
    """Exploration strategy."""
    algorithm: TileSarsaAlgorithm = TileSarsaAlgorithm()
    """Discount factor and other numbers of the algorithm."""

    def open(self) -> OpenedRun:
        """Environments opened and checked. Raises ConfigError for spaces that tiles do not fit, and as `open_world`."""
        algorithm = self.algorithm

        def rule(_: ActionTable) -> EligibilityTraces:
            decay = algorithm.discount * algorithm.trace_lambda
            return EligibilityTraces(decay=decay, trace=TRACE_KINDS[algorithm.trace], next_weights=sarsa_weights)

        return table_run(
            open_gym_table(self.env, steps=self.rollout_steps, seed=self.seed, features=partial(_tile_features, self)),
            TabularMethod(make_rule=rule, discount=algorithm.discount),
            table=TableConfig(initial=algorithm.initial, rate=self.rate),
            exploration=self.exploration,
            env=self.env,
            evaluation=self.evaluation,
        )


def _tile_features(config: TileSarsaConfig, found: GymSpaces) -> tuple[TileCoder, int]:
    """Tiles over the observations, and the number of the first action. Raises ConfigError."""
    seen, chosen = found
    if not isinstance(seen, spaces.Box) or not isinstance(chosen, spaces.Discrete):
        raise ConfigError(f"tiles need a box of observations and numbered actions, got {seen} and {chosen}")
    if config.algorithm.trace == "dutch" and config.rate.power:
        raise ConfigError('algorithm.trace = "dutch" needs one step size for all: set rate.power = 0')
    tiles = config.tiles
    low = seen.low.ravel().tolist() if tiles.low is None else tiles.low
    high = seen.high.ravel().tolist() if tiles.high is None else tiles.high
    if {len(low), len(high)} != {seen.low.size}:
        raise ConfigError(f"tiles.low and tiles.high have {len(low)} and {len(high)} numbers, expected {seen.low.size}")
    coder = make_tile_coder(low, high, tilings=tiles.tilings, bins=tiles.bins, actions=int(chosen.n))
    return coder, int(chosen.start)


ENTRY = RecipeSpec(
    summary="tables over tiles: SARSA(lambda) on a box of observations",
    paper="Sutton, Generalization in Reinforcement Learning: Successful Examples Using Sparse Coarse Coding, 1996",
    config=TileSarsaConfig,
    parts=RecipeParts(source="Live(Gymnasium)", credit=(one_step_target,), loss=(eligibility_traces,)),
    limitation="cells grow with the power of the dimensions: past four or five, a network is smaller.",
)
