"""Multi-task PPO: a shared trunk with one head per task (Caruana, 1997; Schulman et al., 2017).

The environments may differ in dynamics and goals, as long as their observation and action spaces are alike. Advantages
are standardised within each task. The trunk does not see which task it is in unless the config says so: then its
features have to serve all tasks.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from pydantic import Field, model_validator

from hone.control import on_policy
from hone.control.acting import DropFailedEpisodes
from hone.control.environments.make import describe_envs
from hone.control.environments.world import GymConfig, GymWorld, open_world
from hone.control.evaluate.returns import score_metrics, task_scores
from hone.control.job import ControlEvaluationConfig, ControlRunConfig, control_job, updates_per_step
from hone.control.multitask import MultitaskSource, TaskActor, standardised_by_task
from hone.control.networks.mlp import GaussianMlpConfig, ObservationInputs, PolicySpaces
from hone.control.networks.multitask import MultitaskActorCritic
from hone.control.rows import StepRows
from hone.control.spaces import gaussian_spaces, world_spaces
from hone.core.config import new_default
from hone.core.credit import Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.random import key
from hone.credit.returns import gae
from hone.learner.config import LearnerConfig, policy_phase, require_whole_minibatches
from hone.objectives.policy import clipped_surrogate
from hone.objectives.terms import LossTerms
from hone.objectives.value import squared_error
from hone.objectives.weights import token_mean
from hone.run.job import (
    EvaluationResult,
    OpenedRun,
    RecipeParts,
    RecipeSpec,
    RunSettings,
    TrainingJob,
    opened_run,
)
from hone.run.loop import Recipe
from hone.sources.live import LiveSource


class MultitaskAlgorithm(on_policy.ClippedAlgorithm):
    """PPO's hyperparameters, and the input of the trunk."""

    discount = new_default(0.98)
    gae_lambda = new_default(0.8, "GAE's lambda: 0 trusts the critics, 1 the returns.")
    tell_trunk: bool = False
    """Give the task's number to the trunk as an input; heads always belong to one task."""


class MultitaskConfig(ControlRunConfig):
    """One policy on several Gymnasium environments."""

    run = new_default(RunSettings(threads=1))
    tasks: list[GymConfig] = Field(min_length=2)
    """The environments; their observations and actions are of one shape."""
    rollout_steps: int = Field(default=32, ge=1)
    """Steps of each environment of each task per iteration."""
    network: GaussianMlpConfig = GaussianMlpConfig()
    """The trunk; heads are linear."""
    learner: LearnerConfig = LearnerConfig(lr=1e-3, lr_decay="linear", epochs=20, max_grad_norm=0.5)
    """The optimizer; `minibatches` per epoch."""
    algorithm: MultitaskAlgorithm = MultitaskAlgorithm()
    """Credit and loss."""
    evaluation = new_default(ControlEvaluationConfig(), "Evaluation of the policy, in each task.")

    @property
    def iteration_steps(self) -> int:
        """Environment steps of all tasks per iteration."""
        return self.rollout_steps * sum(task.num_envs for task in self.tasks)

    @model_validator(mode="after")
    def _parts_fit(self) -> "MultitaskConfig":
        require_whole_minibatches(self.learner, self.iteration_steps, "rollout_steps x num_envs of all tasks")
        return self

    def open(self) -> OpenedRun:
        """Open the environments of all tasks. Raises ConfigError where they do not fit one policy."""
        with contextlib.ExitStack() as stack:
            worlds: list[GymWorld] = []
            for number, task in enumerate(self.tasks):
                seed = key(self.seed, "task", number) & 0xFFFFFFFF
                worlds.append(open_world(task, steps=self.rollout_steps, seed=seed))
                stack.callback(worlds[-1].close)
            _common_spaces(worlds, self.tasks, self.network)
            return opened_run(worlds, _build, warnings=_warnings_of(worlds), close=stack.pop_all().close)

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        each = " + ".join(str(task.num_envs * self.rollout_steps) for task in self.tasks)
        return {
            "tasks": ", ".join(f"{number}: {task.id}" for number, task in enumerate(self.tasks)),
            "environment steps per iteration": f"{each} = {self.iteration_steps}",
            "environment steps": f"{self.steps * self.iteration_steps}",
            **{
                name: "; ".join(figures[name] for figures in map(describe_envs, self.tasks))
                for name in describe_envs(self.tasks[0])
            },
            "updates per environment step": updates_per_step(self.learner.optimizer_steps(1), self.iteration_steps),
            "optimizer steps": f"{self.learner.optimizer_steps(self.steps)}",
        }


def _objective(policy: MultitaskActorCritic, rows: StepRows, *, algorithm: MultitaskAlgorithm) -> LossTerms:
    """Clipped surrogate + value_weight * value error - entropy_weight * entropy."""
    now = policy.evaluate_actions(rows.seen, rows.chosen)
    surrogate = clipped_surrogate(now.logp, rows.logp, rows.advantage, low=algorithm.clip, high=algorithm.clip)
    return on_policy.actor_critic_loss(surrogate, now, rows.target, algorithm.value_weight, algorithm.entropy_weight)


@torch.no_grad()
def _predict_values(policy: MultitaskActorCritic, episodes: Episodes) -> Values:
    """The critics' values of all observations, and of the last ones."""
    assert episodes.final is not None
    both = torch.from_numpy(np.concatenate((episodes.observations, episodes.final)))
    values = policy.value(both.to(policy.actors.device)).cpu().numpy()
    return Values(value=values[: episodes.decisions], final=values[episodes.decisions :])


def _common_spaces(worlds: Sequence[GymWorld], tasks: Sequence[GymConfig], network: GaussianMlpConfig) -> PolicySpaces:
    """Return the common spaces of all tasks, with the task at the end of the observation. Raises ConfigError if they
    differ."""
    spaces = [world_spaces(world) for world in worlds]
    first = spaces[0]
    for space, task in zip(spaces, tasks, strict=True):
        on_policy.require_clipping(task, space, network)
        same = space.inputs.size == first.inputs.size and space.actions == first.actions
        if not same or space.inputs.one_hot:
            raise ConfigError(
                f"tasks: {task.id} sees {space.inputs.size} numbers and does {space.actions}, {tasks[0].id} "
                f"{first.inputs.size} and {first.actions}; they must be boxes of one size, and the same actions"
            )
    return gaussian_spaces(replace(first, inputs=ObservationInputs(size=first.inputs.size + len(tasks))), network)


def _build(config: MultitaskConfig, worlds: Sequence[GymWorld]) -> TrainingJob[MultitaskActorCritic]:
    """Training job that acts in `worlds`, one of each task."""
    tasks, algorithm = config.tasks, config.algorithm
    policy = MultitaskActorCritic(
        _common_spaces(worlds, tasks, config.network),
        config.network,
        seed=config.seed,
        tasks=len(tasks),
        trunk_sees_task=algorithm.tell_trunk,
    ).to(config.run.device)
    credit = standardised_by_task(
        partial(gae, discount=algorithm.discount, gae_lambda=algorithm.gae_lambda), tasks=len(tasks)
    )
    phase = policy_phase(policy, partial(_objective, algorithm=algorithm), config.learner)
    learner = on_policy.rollout_learner(config, config.learner, policy, [phase], predict_values=_predict_values)
    sources = [
        DropFailedEpisodes(LiveSource(world, TaskActor(policy.for_task(number).numpy_policy(), task=number)), world)
        for number, world in enumerate(worlds)
    ]
    recipe = Recipe(source=MultitaskSource(sources), credit=credit, learner=learner)
    job = control_job(recipe, env=None, evaluation=config.evaluation, seed=config.seed)
    return _with_task_evaluations(job, config, worlds)


def _with_task_evaluations(
    job: TrainingJob[MultitaskActorCritic], config: MultitaskConfig, worlds: Sequence[GymWorld]
) -> TrainingJob[MultitaskActorCritic]:
    """`job` with an evaluation in every task, and the notices of its environments."""
    policy, heard = job.recipe.learner.policy, list[str]()

    def judge() -> EvaluationResult:
        scores, each = task_scores(
            policy, config.tasks, episodes=config.evaluation.episodes, seed=config.seed, warn=heard.append
        )
        estimate, metrics = score_metrics(scores)
        return EvaluationResult(estimate=estimate, metrics={**metrics, **each})

    def notes() -> list[str]:
        notices = [*heard, *(line for world in worlds for line in world.pop_notices())]
        heard.clear()
        return notices

    return replace(job, evaluate=judge, warnings=_warnings_of(worlds), pop_notices=notes)


def _warnings_of(worlds: Sequence[GymWorld]) -> list[str]:
    """Warnings of the checks of all environments."""
    return [warning for world in worlds for warning in world.warnings]


ENTRY = RecipeSpec(
    summary="multi-task PPO: a shared trunk, a head per task, advantages standardised per task",
    paper="Caruana, Multitask Learning, 1997; Schulman et al., Proximal Policy Optimization Algorithms, 2017",
    config=MultitaskConfig,
    parts=RecipeParts(
        source="Together(Live(Gymnasium), ...)",
        credit=(standardised_by_task, gae),
        loss=(clipped_surrogate, squared_error),
        weights=(token_mean,),
    ),
    limitation="tasks that need opposite features share a trunk badly; a policy each is then better.",
)
