"""TRPO: the longest natural-gradient step within a bound on the KL (Schulman et al., 2015).

Advantages by GAE, standardised over the batch; loss = -r A. The step solves F x = -g by conjugate gradients, F v from
differences of the gradient of the KL estimated on the batch, and a line search shortens it until the loss improves and
the KL stays within the bound; where no length does, the weights are restored bit for bit (`natural/accepted` is 0). The
critic is then updated by Adam.
"""

from functools import partial

from pydantic import Field, model_validator
from torch import Tensor

from hone.core.config import Config
from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.credit.returns import gae, standardised
from hone.envs.gym.make import describe_placement
from hone.envs.gym.world import GymConfig, inspect_world, open_world
from hone.models.control.actor_critic import ActorCritic
from hone.models.control.mlp import MlpConfig
from hone.objectives.natural import trust_region_step
from hone.objectives.policy import importance_weighted
from hone.objectives.terms import LossTerms
from hone.objectives.value import squared_error
from hone.objectives.weights import token_mean
from hone.recipes.on_policy.ppo import require_clipping
from hone.train.config import RunConfig, RunSettings
from hone.train.control.acting import DropFailedEpisodes, NetworkActor, predict_values
from hone.train.control.job import ControlEvaluationConfig, control_job
from hone.train.control.phases import optimizer_phase
from hone.train.control.rows import StepRows, step_rows
from hone.train.control.spaces import network_spaces
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.learner.config import LearnerConfig, learning_rate_schedule, require_whole_minibatches
from hone.train.learner.flat_parameters import FlatParameters
from hone.train.learner.gradient import GradientLearner
from hone.train.learner.natural_gradient import TrustRegionConfig, TrustRegionLearner, k3_distance
from hone.train.loop import Recipe
from hone.train.sources.live import LiveSource


class TrpoAlgorithm(Config):
    """The numbers of the paper, and of generalised advantages."""

    discount: float = Field(default=0.99, ge=0, le=1)
    """Discount factor (gamma)."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """GAE's lambda: 0 trusts the critic, 1 the returns."""
    region: TrustRegionConfig = TrustRegionConfig()
    """Trust region: its radius and the line search."""


class TrpoConfig(RunConfig):
    """A policy and a critic on Gymnasium environments."""

    run: RunSettings = RunSettings(threads=1)
    """Threads, logging, checkpoints and other settings of the run; one thread is fastest for a small network."""
    env: GymConfig
    """The environments."""
    rollout_steps: int = Field(default=128, ge=1)
    """Steps of each environment per iteration."""
    network: MlpConfig = MlpConfig()
    """Policy and critic have one each."""
    learner: LearnerConfig = LearnerConfig(lr=1e-3, epochs=10, minibatches=8)
    """The critic's optimizer; the policy has no learning rate."""
    algorithm: TrpoAlgorithm = TrpoAlgorithm()
    """Credit and trust region."""
    evaluation: ControlEvaluationConfig = ControlEvaluationConfig()
    """Evaluation of the policy."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "TrpoConfig":
        require_whole_minibatches(self.learner, self.env.num_envs * self.rollout_steps, "env.num_envs x rollout_steps")
        return self


def surrogate(policy: ActorCritic, rows: StepRows) -> tuple[LossTerms, Tensor]:
    """-r A, and the distance from the policy that acted."""
    now = policy.evaluate_actions(rows.seen, rows.chosen).logp
    return importance_weighted(now, rows.logp, rows.advantage), k3_distance(now, rows.logp)


def critic_loss(policy: ActorCritic, rows: StepRows) -> LossTerms:
    """Squared error of the critic's values against the returns."""
    return squared_error(policy.value(rows.seen), rows.target)


def make_learner(config: TrpoConfig, policy: ActorCritic) -> TrustRegionLearner[ActorCritic, StepRows]:
    """Learner that takes one trust-region step of the policy, then steps the critic by Adam."""
    assert policy.critic is not None
    layout = partial(step_rows, device=config.run.device)
    own = {id(parameter) for parameter in policy.critic.parameters()}
    critic = GradientLearner(
        policy=policy,
        layout=layout,
        phases=[optimizer_phase("critic", critic_loss, policy.critic.parameters(), config.learner)],
        seed=config.seed,
        learning_rate=learning_rate_schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        epochs=config.learner.epochs,
        minibatches=config.learner.minibatches,
    )
    return TrustRegionLearner(
        policy=policy,
        layout=layout,
        surrogate=surrogate,
        parameters=FlatParameters(parameter for parameter in policy.parameters() if id(parameter) not in own),
        region=config.algorithm.region.region(),
        critic=critic,
        predict_values=predict_values,
    )


def build(config: TrpoConfig) -> TrainingJob[ActorCritic]:
    """Build the training job. Raises ConfigError and UserCodeError for an invalid environment."""
    world = open_world(config.env, steps=config.rollout_steps, seed=config.seed)
    space = network_spaces(world.envs.single_observation_space, world.envs.single_action_space)
    require_clipping(config.env, space)
    policy = ActorCritic(space, config.network, seed=config.seed).to(config.run.device)

    def credit(episodes: Episodes, values: Values) -> Credits:
        return standardised(
            gae(episodes, values, discount=config.algorithm.discount, gae_lambda=config.algorithm.gae_lambda)
        )

    source = DropFailedEpisodes(LiveSource(world, NetworkActor(policy.numpy_policy())), world)
    recipe = Recipe(source=source, credit=credit, learner=make_learner(config, policy))
    return control_job(recipe, env=config.env, evaluation=config.evaluation, seed=config.seed, world=world)


def check(config: TrpoConfig) -> list[str]:
    """Warnings about the config; raises ConfigError for a run that cannot work."""
    found, warnings = inspect_world(config.env, seed=config.seed)
    require_clipping(config.env, network_spaces(*found))
    return warnings


def derive(config: TrpoConfig) -> dict[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    batch = config.env.num_envs * config.rollout_steps
    region = config.algorithm.region
    return {
        "environment steps per iteration": f"{config.env.num_envs} environments x {config.rollout_steps} = {batch}",
        "environment steps": f"{config.steps * batch}",
        "environments": describe_placement(config.env),
        "gradients per step": f"1 + 2 x {region.iterations}, and up to {region.backtracks} looks at the loss",
        "steps of the critic": f"{config.learner.optimizer_steps(config.steps)}",
    }


ENTRY = RecipeSpec(
    summary="on-policy control: the longest natural-gradient step within a bound on the KL",
    paper="Schulman et al., Trust Region Policy Optimization, 2015",
    config=TrpoConfig,
    open=checked_run(check, build),
    derive=derive,
    parts=RecipeParts(
        source="Live(Gymnasium)",
        credit=(standardised, gae),
        loss=(importance_weighted, trust_region_step, squared_error),
        weights=(token_mean,),
    ),
    limitation="one step per batch, with some twenty gradients; the KL is estimated on the batch, not integrated.",
)
