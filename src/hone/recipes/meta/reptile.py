"""Reptile (Nichol et al., 2018): an initialisation from which a few updates adapt to a new task.

Each task lasts `inner_steps` iterations, each an update by policy gradient; then the initialisation moves a part of the
way to the adapted weights, and the next task begins from it. Only first derivatives are taken. The saved policy is the
initialisation.
"""

import copy
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hone.control import on_policy
from hone.control.acting import NetworkActor
from hone.control.environments.world import GymConfig, GymWorld, open_world
from hone.control.evaluate.returns import score_metrics
from hone.control.job import ControlEvaluationConfig, open_gym_run
from hone.control.meta_rl import Reptile
from hone.control.networks.actor_critic import ActorCritic
from hone.control.networks.checkpoint import load_policy, load_weights, save_policy
from hone.control.networks.mlp import GaussianMlpConfig, PolicySpaces
from hone.control.rows import StepRows, step_rows
from hone.control.spaces import gaussian_spaces, world_spaces
from hone.core.config import Config, new_default
from hone.core.credit import NO_VALUES, Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.random import key
from hone.credit.returns import discounted_returns, standardised
from hone.learner.config import LearnerConfig, policy_phase
from hone.learner.gradient import GradientLearner
from hone.objectives.policy import reinforce_loss
from hone.objectives.terms import LossTerms
from hone.objectives.weights import token_mean
from hone.run.job import (
    EvaluationRequest,
    EvaluationResult,
    OpenedRun,
    RecipeParts,
    RecipeSpec,
    RunSettings,
    TrainingJob,
)


class ReptileAlgorithm(Config):
    """The inner and the outer loop."""

    inner_steps: int = Field(default=10, ge=1)
    """Iterations per task; passed to the environment as `env.kwargs.trials`."""
    outer_rate: float = Field(default=0.3, gt=0, le=1)
    """Outer step size from the initialisation towards the adapted weights; it falls linearly to 0."""
    discount: float = Field(default=0.0, ge=0, le=1)
    """Discount factor (gamma); 0 for contextual bandits."""
    entropy_weight: float = Field(default=0.2, ge=0)
    """Weight of the entropy bonus; a deterministic initialisation cannot adapt."""


class ReptileConfig(on_policy.RolloutRunConfig):
    """An initialisation for a family of tasks."""

    run = new_default(
        RunSettings(threads=1, log_every=50, checkpoint_every=500),
        "Threads, logging, checkpoints and other settings of the run.",
    )
    env: GymConfig
    """A task family that keeps each task for `kwargs.trials` trials: `hone/SineTrials-v0`, `hone/ChainTrials-v0`."""
    rollout_steps = new_default(50, "Steps of each environment per iteration: a trial's `pulls`.")
    network: GaussianMlpConfig = GaussianMlpConfig(  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
        hidden=[64, 64]
    )
    """The policy."""
    learner = new_default(
        LearnerConfig(lr=1e-2, betas=[0.0, 0.999], max_grad_norm=None),
        "The inner optimizer; its state is reset when a task begins.",
    )
    algorithm: ReptileAlgorithm = ReptileAlgorithm()
    """The inner and the outer loop."""
    evaluation = new_default(ControlEvaluationConfig(), "Evaluation; `episodes` is the number of new tasks.")

    def open(self) -> OpenedRun:
        """Open the environments, whose tasks stay for the inner loop. Raises as `open_gym_run`."""
        env = task_family(self, trials=self.algorithm.inner_steps)
        return open_gym_run(self, env, steps=self.rollout_steps, build=_build, require=_require_fit)

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        inner_steps = self.algorithm.inner_steps
        tasks = f"{self.steps} iterations / {inner_steps} = {self.steps // inner_steps}"
        return {"tasks": tasks, **super().derive()}


def _objective(policy: ActorCritic, rows: StepRows, *, entropy_weight: float) -> LossTerms:
    """-A log pi - entropy_weight * entropy."""
    now = policy.evaluate_actions(rows.seen, rows.chosen)
    actor = reinforce_loss(now.logp, rows.advantage)
    return on_policy.actor_critic_loss(actor, now, rows.target, value_weight=0.0, entropy_weight=entropy_weight)


def credit(episodes: Episodes, values: Values, *, discount: float) -> Credits:
    """Standardised returns."""
    return standardised(discounted_returns(episodes, values, discount=discount))


def _inner_learner(policy: ActorCritic, config: ReptileConfig) -> GradientLearner[ActorCritic, StepRows]:
    """Learner of the inner loop, which adapts `policy`."""
    loss = partial(_objective, entropy_weight=config.algorithm.entropy_weight)
    return GradientLearner(
        policy=policy,
        layout=step_rows,
        phases=[policy_phase(policy, loss, config.learner)],
        seed=config.seed,
        learning_rate=lambda _: config.learner.lr,
        epochs=config.learner.epochs,
        minibatches=config.learner.minibatches,
    )


def task_family(config: ReptileConfig, *, trials: int) -> GymConfig:
    """The environment, with tasks that stay for so many trials."""
    return config.env.model_copy(update={"kwargs": {**config.env.kwargs, "trials": trials}})


def _build(config: ReptileConfig, world: GymWorld) -> TrainingJob[ActorCritic]:
    """Training job that acts in `world`."""
    algorithm, space = config.algorithm, gaussian_spaces(world_spaces(world), config.network)
    start = ActorCritic(space, config.network, seed=config.seed, critic=False)
    adapting = ActorCritic(space, config.network, seed=config.seed, critic=False)
    tasks = max(1, config.steps // algorithm.inner_steps)
    learner = Reptile(
        inner=_inner_learner(adapting, config),
        initialisation=start,
        inner_iterations=algorithm.inner_steps,
        outer_rate=lambda task: algorithm.outer_rate * max(0.0, 1.0 - task / tasks),
    )
    job = on_policy.rollout_job(config, world, partial(credit, discount=algorithm.discount), learner)
    return replace(
        job,
        save_policy=lambda folder: save_policy(start, folder),
        load_policy=lambda folder: load_weights(start, folder),
        evaluate=partial(_evaluate_adaptation, start, config),
    )


def _require_fit(config: ReptileConfig, space: PolicySpaces) -> None:
    """Raises ConfigError where a Gaussian policy does not fit the actions."""
    on_policy.require_clipping(config.env, space, config.network)


def _evaluate_saved(config: ReptileConfig, asked: EvaluationRequest) -> Metrics:
    """Evaluates a saved initialisation in `asked.episodes` new tasks. Raises DataError for any other policy."""
    start = load_policy(asked.policy)
    if not isinstance(start, ActorCritic):
        raise DataError(f"{asked.policy}: not an initialisation of reptile's")
    asking = {"seed": asked.seed, "evaluation": ControlEvaluationConfig(episodes=asked.episodes)}
    return _evaluate_adaptation(start, config.model_copy(update=asking)).metrics


def _evaluate_adaptation(start: ActorCritic, config: ReptileConfig) -> EvaluationResult:
    """Mean reward of a step in new tasks, after adapting to each; before it as `eval/before`, and after as many updates
    of weights that never met the family as `eval/from_scratch`."""
    fresh = ActorCritic(start.spaces, config.network, seed=config.seed + 1, critic=False)
    before, after = _rewards_by_task(start, config)
    estimate, metrics = score_metrics(after)
    scratch = _rewards_by_task(fresh, config)[1]
    more = {"eval/before": float(before.mean()), "eval/from_scratch": float(scratch.mean())}
    return EvaluationResult(estimate=estimate, metrics={**metrics, **more})


def _rewards_by_task(start: ActorCritic, config: ReptileConfig) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean reward per step in each of `evaluation.episodes` new tasks: of `start`, and after the inner loop."""
    rewards = np.empty((2, config.evaluation.episodes))
    steps = config.algorithm.inner_steps
    for number in range(config.evaluation.episodes):
        policy = copy.deepcopy(start)
        learner, actor = _inner_learner(policy, config), NetworkActor(policy.numpy_policy())
        world = open_world(
            task_family(config, trials=steps + 1).model_copy(update={"check": False}),
            steps=config.rollout_steps,
            seed=key(config.seed, "judge", number) & 0xFFFFFFFF,
        )
        for turn in range(steps + 1):
            episodes = world.rollout(actor)
            if turn in {0, steps}:
                rewards[int(turn > 0), number] = episodes.reward.mean()
            learner.update(episodes, credit(episodes, NO_VALUES, discount=config.algorithm.discount))
        world.close()
    return rewards[0], rewards[1]


ENTRY = RecipeSpec(
    summary="meta-learning: an initialisation that adapts to a new task in a few updates",
    paper="Nichol et al., On First-Order Meta-Learning Algorithms, 2018",
    config=ReptileConfig,
    evaluate=_evaluate_saved,
    parts=RecipeParts(
        source="Live(trials)", credit=(standardised, discounted_returns), loss=(reinforce_loss,), weights=(token_mean,)
    ),
    limitation="no good initialisation exists if tasks need opposite weights; a recurrent policy (rl2) adapts faster.",
)
