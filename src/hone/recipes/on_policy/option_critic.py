"""Option-critic: options learned together with the policy over them (Bacon, Harb & Precup, 2017, 1609.05140).

Option values, intra-option policies and termination functions, all by gradient on policy: the intra-option policies by
PPO's clipped surrogate, the terminations by the advantage of continuing over choosing anew, plus a deliberation cost
(Harb et al., 2018) that keeps options from ending at every step.
"""

from functools import partial

import numpy as np
import torch
from pydantic import Field, model_validator

from hone.core.config import Config
from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.credit.returns import gae, standardised
from hone.envs.gym.make import describe_placement
from hone.envs.gym.option_wrapper import with_option_memory
from hone.envs.gym.world import GymConfig, inspect_world, open_world
from hone.models.control.mlp import MlpConfig
from hone.models.control.options import OptionCriticPolicy
from hone.objectives.policy import clipped_surrogate
from hone.objectives.terms import LossTerms
from hone.objectives.value import squared_error
from hone.objectives.weights import token_mean
from hone.train.config import RunConfig, RunSettings
from hone.train.control.acting import DropFailedEpisodes, NetworkActor
from hone.train.control.job import ControlEvaluationConfig, control_job
from hone.train.control.rows import StepRows, step_rows
from hone.train.control.spaces import network_spaces
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.learner.config import LearnerConfig, learning_rate_schedule, policy_phase, require_whole_minibatches
from hone.train.learner.gradient import GradientLearner
from hone.train.loop import Recipe
from hone.train.sources.live import LiveSource


class OptionCriticAlgorithm(Config):
    """The numbers of both papers."""

    options: int = Field(default=4, ge=1)
    """Number of options."""
    discount: float = Field(default=0.99, ge=0, le=1)
    """Discount factor (gamma)."""
    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """GAE's lambda."""
    epsilon: float = Field(default=0.1, ge=0, le=1)
    """Epsilon of the policy over options."""
    deliberation_cost: float = Field(default=0.02, ge=0)
    """Cost of stopping, in units of the return: it makes options last."""
    clip: float = Field(default=0.2, gt=0, lt=1)
    """Clip width of the probability ratio around 1."""
    value_weight: float = Field(default=0.5, ge=0)
    """Weight of the squared error of the option values."""
    stop_weight: float = Field(default=1.0, ge=0)
    """Weight of the termination loss."""
    entropy_weight: float = Field(default=0.01, ge=0)
    """Weight of the entropy bonus of the intra-option policies."""


class OptionCriticConfig(RunConfig):
    """Options with networks on Gymnasium environments with a finite set of actions."""

    run: RunSettings = RunSettings(threads=1)
    """Threads, logging, checkpoints and other settings of the run; one thread is fastest for a small network."""
    env: GymConfig
    """The environments."""
    rollout_steps: int = Field(default=64, ge=1)
    """Steps of each environment per iteration."""
    network: MlpConfig = MlpConfig()
    """One network each for option values, intra-option policies and terminations."""
    learner: LearnerConfig = LearnerConfig(lr=1e-3, epochs=4, minibatches=4, max_grad_norm=0.5)
    """The optimizer; `minibatches` per epoch."""
    algorithm: OptionCriticAlgorithm = OptionCriticAlgorithm()
    """Credit and loss."""
    evaluation: ControlEvaluationConfig = ControlEvaluationConfig()
    """Evaluation of the policy."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "OptionCriticConfig":
        require_whole_minibatches(self.learner, self.env.num_envs * self.rollout_steps, "env.num_envs x rollout_steps")
        return self


def objective(policy: OptionCriticPolicy, rows: StepRows, *, algorithm: OptionCriticAlgorithm) -> LossTerms:
    """Clipped surrogate within + value error of the option + stop * (gain + deliberation cost) - entropy.

    The last but one is the termination gradient: an option is to stop where choosing anew is worth more than going on
    with it, and the more so the more there is to gain; `gain` is data.
    """
    now = policy.evaluate_actions(rows.seen, rows.chosen)
    surrogate = clipped_surrogate(now.logp, rows.logp, rows.advantage, low=algorithm.clip, high=algorithm.clip)
    critic = squared_error(now.q_value, rows.target)
    ends = now.termination * (now.termination_advantage + algorithm.deliberation_cost)
    loss = surrogate.loss + algorithm.value_weight * critic.loss + algorithm.stop_weight * ends
    return LossTerms(
        loss=loss - algorithm.entropy_weight * now.entropy,
        compute_metrics=lambda: {
            **surrogate.metrics,
            **critic.metrics,
            "options/stop": now.termination.detach(),
            "policy/entropy_nats": now.entropy.detach(),
        },
    )


@torch.no_grad()
def predict_values(policy: OptionCriticPolicy, episodes: Episodes) -> Values:
    """Q of each observation and its active option; U of the last observation and the option active there."""
    assert episodes.final is not None
    device = next(policy.parameters()).device
    columns = (episodes.observations, episodes.chosen, episodes.final)
    seen, chosen, final = (torch.from_numpy(np.ascontiguousarray(column)).to(device) for column in columns)
    return Values(value=policy.q_value(seen, chosen).cpu().numpy(), final=policy.value_on_arrival(final).cpu().numpy())


def build(config: OptionCriticConfig) -> TrainingJob[OptionCriticPolicy]:
    """Build the training job. Raises ConfigError and UserCodeError for an invalid environment."""
    algorithm = config.algorithm
    space = network_spaces(*inspect_world(config.env, seed=config.seed)[0])
    policy = OptionCriticPolicy(
        space, config.network, seed=config.seed, options=algorithm.options, epsilon=algorithm.epsilon
    ).to(config.run.device)
    remembering = with_option_memory(config.env, algorithm.options)
    world = open_world(remembering, steps=config.rollout_steps, seed=config.seed)

    def credit(episodes: Episodes, values: Values) -> Credits:
        return standardised(gae(episodes, values, discount=algorithm.discount, gae_lambda=algorithm.gae_lambda))

    learner = GradientLearner(
        policy=policy,
        layout=partial(step_rows, device=config.run.device),
        phases=[policy_phase(policy, partial(objective, algorithm=algorithm), config.learner)],
        seed=config.seed,
        learning_rate=learning_rate_schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        predict_values=predict_values,
        epochs=config.learner.epochs,
        minibatches=config.learner.minibatches,
    )
    source = DropFailedEpisodes(LiveSource(world, NetworkActor(policy.numpy_policy())), world)
    recipe = Recipe(source=source, credit=credit, learner=learner)
    return control_job(recipe, env=config.env, evaluation=config.evaluation, seed=config.seed, world=world)


def check(config: OptionCriticConfig) -> list[str]:
    """Warnings about the config; raises ConfigError for a run that cannot work."""
    found, warnings = inspect_world(config.env, seed=config.seed)
    OptionCriticPolicy(network_spaces(*found), config.network, seed=0, options=1, epsilon=0.0)
    return warnings


def derive(config: OptionCriticConfig) -> dict[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    batch = config.env.num_envs * config.rollout_steps
    return {
        "environment steps per iteration": f"{config.env.num_envs} environments x {config.rollout_steps} = {batch}",
        "environment steps": f"{config.steps * batch}",
        "minibatch": f"{batch} / {config.learner.minibatches} = {batch // config.learner.minibatches} steps",
        "environments": describe_placement(config.env),
        "optimizer steps": f"{config.learner.optimizer_steps(config.steps)}",
    }


ENTRY = RecipeSpec(
    summary="options learned by gradient: option values, intra-option policies, terminations",
    paper="Bacon, Harb and Precup, The Option-Critic Architecture, 2017",
    config=OptionCriticConfig,
    open=checked_run(check, build),
    derive=derive,
    parts=RecipeParts(
        source="Live(Gymnasium with a memory)",
        credit=(standardised, gae),
        loss=(clipped_surrogate, squared_error, objective),
        weights=(token_mean,),
    ),
    limitation="without a deliberation cost, options end at every step or one takes over; finite actions only.",
)
