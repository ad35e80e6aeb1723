"""Generative adversarial imitation (Ho and Ermon, 2016): PPO with a discriminator's output as reward.

The discriminator learns to distinguish the transitions of a log from the policy's; the policy is rewarded where it is
taken for the log. The environment's own reward is reported (`reward/mean`, evaluations) and reaches no gradient.
Behaviour cloning imitates actions in the expert's states; here the policy is also rewarded for being in such states, so
it learns to return to them, at the cost of environment steps.

`algorithm.reward` is a function of the logit l = log D - log(1 - D). Its sign is a bias about the end of an episode
(Kostrikov et al., 2019): `positive` = softplus(l) is never below 0, so survival is rewarded, which suits environments
that terminate on failure; `negative` = -softplus(-l) is never above 0: non-positive rewards favour termination, which
suits environments that terminate at the goal; `odds` = l is of either sign, and suits terminations of both kinds and
environments that only a time limit ends.

The discriminator of the previous iterations rewards an iteration; then both learn from the same steps. Each step is
paired with a demonstration drawn for it, so every minibatch holds as many of one kind as of the other.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from hone.control.acting import DropFailedEpisodes, NetworkActor, predict_values
from hone.control.environments.world import GymWorld, open_world
from hone.control.experts import demonstrations_of, require_same_spaces
from hone.control.job import control_job, decisions_fingerprint
from hone.control.networks.discriminator import AdversarialActorCritic
from hone.control.networks.mlp import MlpConfig
from hone.control.normalise import NormaliseConfig, with_normalisation
from hone.control.on_policy import (
    ClippedAlgorithm,
    OnPolicyRunConfig,
    require_supported_spaces,
    standardised_gae,
)
from hone.control.phases import optimizer_phase
from hone.control.rows import DecisionRows, StepRows, split_decision_rows, step_rows
from hone.control.spaces import gaussian_spaces, image_warnings, world_spaces
from hone.core.config import Config, new_default
from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import run_all_checks
from hone.core.random import generator
from hone.core.reduction import ONE_PROCESS, Reduction
from hone.credit.returns import gae, standardised
from hone.credit.shaping import LogitReward, log_odds_reward, negative_reward, positive_reward, with_imitation_reward
from hone.learner.config import LearnerConfig, learning_rate_schedule
from hone.learner.gradient import GradientLearner, OptimizerPhase
from hone.objectives.policy import clipped_surrogate
from hone.objectives.terms import LossTerms, add_terms
from hone.objectives.value import discriminator_loss, gradient_norm_penalty, squared_error
from hone.objectives.weights import token_mean
from hone.recipes.on_policy import ppo
from hone.run.job import OpenedRun, RecipeParts, RecipeSpec, TrainingJob, opened_run
from hone.run.loop import Recipe
from hone.sources.live import LiveSource

DISCRIMINATOR_REWARDS: Mapping[str, LogitReward] = {
    "positive": positive_reward,
    "negative": negative_reward,
    "odds": log_odds_reward,
}


class DiscriminatorConfig(Config):
    """Discriminator between the policy's transitions and the demonstrations."""

    network: MlpConfig = MlpConfig()
    """Network from observation and action to one logit."""
    gradient_penalty: float = Field(default=1.0, ge=0)
    """Weight of (|gradient of the logit| - 1)^2 between demonstrations and the policy's decisions.
    Inputs are standardised; 0: no penalty."""
    every: int = Field(default=2, ge=1)
    """Minibatches of the policy per update of the discriminator: a discriminator far ahead of the policy gives the
    same reward everywhere."""


class GailAlgorithm(ClippedAlgorithm):
    """Imitation reward, discriminator and PPO's hyperparameters."""

    reward: Literal["positive", "negative", "odds"] = "positive"
    """Reward from the logit l. `positive`: softplus(l), for environments where termination is a failure; `negative`:
    -softplus(-l), where termination is the goal; `odds`: l, where it may be either, or where only a time limit ends
    an episode."""
    discount = new_default(0.98, "Discount factor (gamma) of the discriminator's reward.")
    gae_lambda = new_default(0.9)
    normalise_observations: bool = False
    """Standardise the observations of policy and critic; the discriminator always has its own statistics."""
    discriminator: DiscriminatorConfig = DiscriminatorConfig()
    """The discriminator."""


class GailConfig(OnPolicyRunConfig):
    """A policy from a log of decisions and a world to try them in."""

    has_encoders = False

    log: str
    """The demonstrations: a parquet file written by hone, or a Minari data set (folder or HDF5 file)."""
    learner = new_default(
        LearnerConfig(lr=1e-3, epochs=10, minibatches=2, max_grad_norm=0.5), "The optimizers; `minibatches` per epoch."
    )
    algorithm: GailAlgorithm = GailAlgorithm()
    """Imitation reward, discriminator and PPO's hyperparameters."""

    def open(self) -> OpenedRun:
        """The demonstrations, read once, and the environments, opened and checked. Raises HoneError with all faults."""
        normalise = NormaliseConfig(observations=self.algorithm.normalise_observations)
        with contextlib.ExitStack() as on_fault:

            def environments() -> GymWorld:
                world = open_world(self.env, steps=self.rollout_steps, seed=self.seed)
                on_fault.callback(world.close)
                require_supported_spaces(self.env, world_spaces(world), normalise, self.network)
                return world

            checks: dict[str, Callable[[], Any]] = {"log": lambda: demonstrations_of(self.log), "env": environments}
            (steps, theirs), world = run_all_checks(checks).values()
            require_same_spaces("log", self.log, theirs, world_spaces(world))
            on_fault.pop_all()
        return opened_run(
            (steps, world), _build, warnings=[*world.warnings, *image_warnings(world_spaces(world))], close=world.close
        )

    def derive(self) -> dict[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        steps = self.learner.optimizer_steps(self.steps)
        return {
            **super().derive(),
            "demonstrations": self.log,
            "discriminator steps": f"{steps // self.algorithm.discriminator.every}",
        }


# ---------------------------------------------------------------------------------------------- who is imitated


@dataclass(frozen=True, kw_only=True)
class _PairRows(DecisionRows):
    """Decisions of the policy, each beside one that was shown."""

    seen: Tensor
    chosen: Tensor
    expert_seen: Tensor
    expert_chosen: Tensor
    interpolation: Tensor
    """`[n]` in [0, 1): where on the way from the policy's to the shown one the slope is taken; it travels with the row,
    so that no split can change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemonstrationPool:
    """Decisions of a log, as they lie on the learner's device; which are drawn is a function of the update's number."""

    seen: Tensor
    chosen: Tensor
    seed: int

    def pair_with_demonstrations(
        self, policy: AdversarialActorCritic, rows: StepRows, update: int, reduction: Reduction = ONE_PROCESS
    ) -> _PairRows:
        """A demonstration for every row, with replacement."""
        del policy, reduction
        draws = generator(self.seed, "demonstrations", update)
        picks = torch.from_numpy(draws.integers(0, len(self.seen), len(rows))).to(self.seen.device)
        between = torch.from_numpy(draws.random(len(rows), dtype=np.float32)).to(self.seen.device)
        return _PairRows(
            weight=rows.weight,
            seen=rows.seen,
            chosen=rows.chosen,
            expert_seen=self.seen[picks],
            expert_chosen=self.chosen[picks],
            interpolation=between,
        )


# ---------------------------------------------------------------------------------------------- credit and losses


@dataclass
class _DiscriminatorCredit:
    """The credit: PPO's, of what the discriminator pays. It keeps the statistics that the discriminator reads by, once
    for every batch that it is asked about."""

    policy: AdversarialActorCritic
    algorithm: GailAlgorithm

    def __call__(self, episodes: Episodes, values: Values) -> Credits:
        algorithm = self.algorithm
        credit = partial(standardised_gae, discount=algorithm.discount, gae_lambda=algorithm.gae_lambda)
        return with_imitation_reward(episodes, values, imitation_reward=self._discriminator_reward, credit=credit)

    @torch.no_grad()
    def _discriminator_reward(self, episodes: Episodes) -> NDArray[np.float64]:
        """`[N]`."""
        discriminator, device = self.policy.discriminator, next(self.policy.parameters()).device
        columns = (episodes.observations, episodes.chosen)
        seen, chosen = (torch.from_numpy(np.ascontiguousarray(column)).to(device) for column in columns)
        discriminator.update_statistics(seen, chosen)
        logit = discriminator.logit(discriminator.encode_pairs(seen, chosen))
        return DISCRIMINATOR_REWARDS[self.algorithm.reward](logit.double().cpu().numpy())


def discriminator_objective(policy: AdversarialActorCritic, rows: _PairRows, *, penalty: float) -> LossTerms:
    """-log D(shown) - log(1 - D(own)) + penalty * (|slope between them| - 1)^2."""
    judge = policy.discriminator
    shown, own = judge.encode_pairs(rows.expert_seen, rows.expert_chosen), judge.encode_pairs(rows.seen, rows.chosen)
    apart = discriminator_loss(judge.logit(shown), judge.logit(own))
    if not penalty:
        return apart
    middle = torch.lerp(own, shown, rows.interpolation.to(own.dtype)[:, None])
    return add_terms(apart, gradient_norm_penalty(judge.logit_gradient(middle)), weight=penalty)


# ---------------------------------------------------------------------------------------------- the job


def _optimizer_phases(
    policy: AdversarialActorCritic, shown: DemonstrationPool, config: GailConfig
) -> list[OptimizerPhase[AdversarialActorCritic, Any]]:
    """PPO's step, and the discriminator's on some of the minibatches."""
    algorithm, settings = config.algorithm, config.algorithm.discriminator
    numbers = ppo.PpoAlgorithm(
        clip_low=algorithm.clip,
        clip_high=algorithm.clip,
        value_weight=algorithm.value_weight,
        entropy_weight=algorithm.entropy_weight,
    )
    return [
        optimizer_phase(
            "policy", partial(ppo.objective, algorithm=numbers), policy.policy_parameters(), config.learner
        ),
        optimizer_phase(
            "discriminator",
            partial(discriminator_objective, penalty=settings.gradient_penalty),
            policy.discriminator.parameters(),
            config.learner,
            prepare=shown.pair_with_demonstrations,
            update_every=settings.every,
        ),
    ]


def _build(config: GailConfig, opened: tuple[Episodes, GymWorld]) -> TrainingJob[AdversarialActorCritic]:
    """Training job on the demonstrations and the environments that are open."""
    algorithm, device = config.algorithm, config.run.device
    steps, world = opened
    space = gaussian_spaces(world_spaces(world), config.network)
    normalise = NormaliseConfig(observations=algorithm.normalise_observations)
    policy = AdversarialActorCritic(
        space, config.network, seed=config.seed, discriminator=algorithm.discriminator.network
    ).to(device)
    seen, chosen = (torch.from_numpy(np.ascontiguousarray(it)).to(device) for it in (steps.observations, steps.chosen))
    policy.discriminator.update_statistics(seen, chosen)
    shown = DemonstrationPool(seen=seen, chosen=chosen, seed=config.seed)
    learner: GradientLearner[AdversarialActorCritic, Any] = GradientLearner(
        policy=policy,
        layout=partial(step_rows, device=device),
        phases=_optimizer_phases(policy, shown, config),
        seed=config.seed,
        learning_rate=learning_rate_schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        predict_values=predict_values,
        epochs=config.learner.epochs,
        minibatches=config.learner.minibatches,
        shuffle=config.learner.minibatches > 1,
        split=split_decision_rows,
    )
    source = DropFailedEpisodes(LiveSource(world, NetworkActor(policy.numpy_policy())), world)
    recipe = Recipe(
        source=with_normalisation(source, normalise, size=space.inputs.size, discount=algorithm.discount),
        credit=_DiscriminatorCredit(policy, algorithm),
        learner=learner,
    )
    return control_job(
        recipe,
        env=config.env,
        evaluation=config.evaluation,
        seed=config.seed,
        dataset_fingerprint=decisions_fingerprint(steps),
        world=world,
    )


ENTRY = RecipeSpec(
    summary="imitation of a log by acting: PPO paid by a discriminator for looking like the demonstrations",
    paper="Ho and Ermon, Generative Adversarial Imitation Learning, 2016",
    config=GailConfig,
    parts=RecipeParts(
        source="Live(Gymnasium)",
        credit=(with_imitation_reward, positive_reward, standardised, gae),
        loss=(clipped_surrogate, squared_error, discriminator_loss, gradient_norm_penalty),
        weights=(token_mean,),
    ),
    limitation="needs many environment steps and a reward sign that suits the ends; no loss measures the policy.",
)
