"""Q-learning over given options, call and return (Sutton, Precup & Singh, 1999; Bradtke & Duff, 1995).

The policy over options acts only where an option starts or terminates; the option acts in between. The values converge
to those of the exact model of the options (`envs.finite.options`). The defaults solve `hone/FourRooms-v0`.
"""

from functools import partial

from pydantic import Field

from hone.control.acting import DropFailedEpisodes, NetworkActor
from hone.control.environments.option_wrapper import with_option_memory
from hone.control.environments.world import GymWorld, inspect_world
from hone.control.job import control_job, open_gym_run
from hone.control.networks.mlp import DiscreteActions, MlpConfig
from hone.control.networks.options import OptionTablePolicy
from hone.control.options import OptionQLearner, OptionsConfig, load_options
from hone.control.spaces import network_spaces
from hone.control.tabular import GymTableRunConfig
from hone.core.config import Config, new_default
from hone.core.errors import ConfigError
from hone.credit.returns import reward_as_advantage
from hone.run.job import OpenedRun, RecipeParts, RecipeSpec, TrainingJob
from hone.run.loop import Recipe
from hone.sources.live import LiveSource


class OptionQAlgorithm(Config):
    """The numbers of Q-learning."""

    discount: float = Field(default=0.95, gt=0, lt=1)
    """Discount factor (gamma); an option of k steps is discounted k times."""
    rate: float = Field(default=0.1, gt=0, le=1)
    """Step size of a value towards its target; use 1 in a deterministic environment."""
    epsilon: float = Field(default=0.1, ge=0, le=1)
    """Epsilon of the policy over the options that are available."""


class OptionQConfig(GymTableRunConfig):
    """A table of options in Gymnasium environments of numbered states and actions."""

    rollout_steps = new_default(16)
    options: OptionsConfig = OptionsConfig()
    """The options."""
    algorithm: OptionQAlgorithm = OptionQAlgorithm()
    """Discount factor, step size and exploration."""

    def open(self) -> OpenedRun:
        """The options, and environments with a memory for the current one.

        Raises ConfigError, DataError and UserCodeError for invalid environments and options.
        """
        space = network_spaces(*inspect_world(self.env, seed=self.seed)[0])
        if not space.inputs.one_hot or not isinstance(space.actions, DiscreteActions):
            raise ConfigError(
                f"option_q_learning keeps a table, and {self.env.id} has inputs {space.inputs} and actions "
                f"{space.actions}; for networks there is option_critic"
            )
        courses = load_options(self.options, self.env, states=space.inputs.size, actions=space.actions.count)
        policy = OptionTablePolicy(space, MlpConfig(), options=len(courses[0]))
        policy.set_options(*courses)
        policy.epsilon = self.algorithm.epsilon
        remembering = with_option_memory(self.env, len(courses[0]))
        return open_gym_run(self, remembering, steps=self.rollout_steps, build=partial(_build, policy=policy))


def _build(config: OptionQConfig, world: GymWorld, *, policy: OptionTablePolicy) -> TrainingJob[OptionTablePolicy]:
    """Training job of `policy`, which acts in `world`, which remembers the options."""
    learner = OptionQLearner(policy=policy, discount=config.algorithm.discount, rate=config.algorithm.rate)
    source = DropFailedEpisodes(LiveSource(world, NetworkActor(policy.numpy_policy())), world)
    recipe = Recipe(source=source, credit=reward_as_advantage, learner=learner)
    return control_job(recipe, env=config.env, evaluation=config.evaluation, seed=config.seed, world=world)


ENTRY = RecipeSpec(
    summary="a table over given options, each followed until it terminates",
    paper="Sutton, Precup and Singh, Between MDPs and Semi-MDPs, 1999",
    config=OptionQConfig,
    parts=RecipeParts(
        source="Live(Gymnasium with a memory)", credit=(reward_as_advantage,), loss=(OptionQLearner.update,)
    ),
    limitation="the options must be given; call and return cannot interrupt an option that has become a bad choice.",
)
