"""What the recipes for control share: how steps are laid out for a network, who acts, how a policy is judged.

Belongs here: wiring between worlds, small networks and the loop. Does not: anything of one algorithm.
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hone.control.environments.ray_blocks import block_transport
from hone.control.environments.world import GymConfig, GymWorld, PartsUse, open_world
from hone.control.evaluate.returns import evaluate_returns, score_metrics
from hone.control.networks.actor_critic import ControlPolicy
from hone.control.networks.checkpoint import load_weights, save_policy
from hone.control.networks.mlp import PolicySpaces
from hone.control.spaces import image_warnings, world_spaces
from hone.core.config import Config
from hone.core.episodes import Episodes
from hone.run.job import (
    ConsolidationConfig,
    EvaluationResult,
    InitConfig,
    OpenedRun,
    RunConfig,
    TrainingJob,
    do_nothing,
    episode_table,
    opened_run,
)
from hone.run.loop import Recipe

P = TypeVar("P", bound=ControlPolicy)
C = TypeVar("C", bound=RunConfig)


class ControlEvaluationConfig(Config):
    """Evaluations of the policy without exploration."""

    episodes: int = Field(default=20, ge=1)
    """Episodes of an evaluation, each in an environment of its own."""
    every: int = Field(default=0, ge=0)
    """Iterations between evaluations; 0: at the end only."""


class ControlRunConfig(RunConfig):
    """A run that is evaluated by episodes of its policy."""

    evaluation: ControlEvaluationConfig = ControlEvaluationConfig()
    """How the policy is evaluated."""


class RetrainableRunConfig(ControlRunConfig):
    """A control run that may begin with another policy and hold the weights that this one needs."""

    consolidation: ConsolidationConfig | None = None
    """Holds the weights that the policy of `run.init` needs; unset: all of them may move."""

    @model_validator(mode="after")
    def _holds_weights_of_another(self) -> Self:
        if self.consolidation is not None and self.run.init is None:
            raise ValueError('consolidation holds weights of another run: name it, run.init = "runs/NAME"')
        return self


def decisions_fingerprint(episodes: Episodes) -> str:
    """Digest of a log's decisions; a resume with another log is refused."""
    digest = blake2b(digest_size=16)
    for column in (episodes.offsets, episodes.observations, episodes.chosen, episodes.reward):
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.hexdigest()


def evaluation_result(scores: NDArray[np.float64]) -> EvaluationResult:
    """Scores `[n]` of episodes or questions, with the interval of their mean."""
    estimate, metrics = score_metrics(scores)
    return EvaluationResult(estimate=estimate, metrics=metrics)


def updates_per_step(updates: int, steps: int) -> str:
    """Optimizer steps of an iteration over its environment steps, for `hone plan`: both follow from the config, and
    more environments mean more steps of the environments for the same number of updates."""
    return f"{updates} / {steps} = {updates / steps:.4g} (twice env.num_envs: half as many)"


def open_gym_run(
    config: C,
    env: GymConfig,
    *,
    steps: int,
    build: Callable[[C, GymWorld], TrainingJob[Any]],
    require: Callable[[C, PolicySpaces], object] = do_nothing,
    squashed: bool = False,
    masks: bool = False,
) -> OpenedRun:
    """Environments opened and checked once, for `build(config, world)`; they are closed with the job.

    `steps` of each environment make a rollout; `masks`: the recipe uses masks of legal actions, and spaces of several
    parts. `require` raises ConfigError for spaces that do not go with the config; it may return the spaces with the
    encoder of the config, without which images are warned of.
    Raises ConfigError, UserCodeError and ResourceError as `open_world`.
    """
    transport = block_transport(env)
    parts: PartsUse = "all" if masks else "none"
    world = open_world(
        env, steps=steps, seed=config.seed, squashed=squashed, transport=transport, masks=masks, parts=parts
    )
    with contextlib.ExitStack() as on_fault:
        on_fault.callback(world.close)
        encoded = require(config, world_spaces(world))
        on_fault.pop_all()
    unread = image_warnings(encoded if isinstance(encoded, PolicySpaces) else world_spaces(world))
    opened = opened_run(world, build, warnings=[*world.warnings, *unread], close=world.close)
    return replace(opened, notes=world.notes)


def control_job(
    recipe: Recipe[P],
    *,
    env: GymConfig | None,
    evaluation: ControlEvaluationConfig,
    seed: int,
    dataset_fingerprint: str | None = None,
    world: GymWorld | None = None,
    rollouts: bool = False,
) -> TrainingJob[P]:
    """A recipe around a small network, ready to be run; without `env` there is nothing to judge it in. `world` is the
    one that it acts in, if any; `opened_run` closes it. `rollouts`: the episodes of a step are what it collected."""
    policy = recipe.learner.policy
    heard: list[str] = []

    def score() -> EvaluationResult:
        assert env is not None
        return evaluation_result(
            evaluate_returns(policy, env, episodes=evaluation.episodes, seed=seed, warn=heard.append)
        )

    def load(folder: Path) -> None:
        load_weights(policy, folder)

    def begin(init: InitConfig, config: RunConfig, resumed: Path | None) -> list[str]:
        from hone.control.warm_start import warm_start  # noqa: PLC0415 - most runs begin with weights of their own

        held = config.consolidation if isinstance(config, RetrainableRunConfig) else None
        return warm_start(policy, recipe.learner, recipe.source, init, resumed, consolidation=held)

    def notes() -> list[str]:
        notices = [*heard, *(world.pop_notices() if world is not None else [])]
        heard.clear()
        return notices

    return TrainingJob(
        recipe=recipe,
        save_policy=lambda folder: save_policy(policy, folder),
        load_policy=load,
        rollouts=episode_table if rollouts else None,
        warm_start=begin,
        evaluate=None if env is None else score,
        evaluate_every=evaluation.every,
        dataset_fingerprint=dataset_fingerprint,
        warnings=world.warnings if world is not None else (),
        pop_notices=notes,
    )
