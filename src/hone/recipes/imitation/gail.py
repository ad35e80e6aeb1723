"""Generative adversarial imitation (Ho and Ermon, 2016): PPO, paid by a discriminator for looking like demonstrations.

The discriminator learns to tell the decisions of a log from the policy's own; the policy is paid for being taken for
the log's. What the world pays is reported (`reward/mean`, judgements) and reaches no gradient. Cloning asks what was
done where the expert has been; here the policy is also paid for being there, so it learns the way back, at the price of
acting.

`algorithm.reward` is a function of the logit l = log D - log(1 - D). Its sign is a bias about the end of an episode
(Kostrikov et al., 2019): `positive` = softplus(l) never pays less than 0, so living on pays, which suits a world whose
end is a failure; `negative` = -softplus(-l) never pays more, so an end is a relief, which suits a world whose end is
the goal; `odds` = l is of either sign, and suits ends of both kinds and worlds that only a clock ends.

A turn is paid by the discriminator as the turns before left it; then both learn from the same steps. Each step stands
beside a demonstration drawn for it, so a minibatch, however it is cut, holds as many of one kind as of the other.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from hone.core.config import Config
from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError, DataError, all_at_once
from hone.core.random import generator
from hone.credit.adversarial import Pay, imitated, negative, odds, positive
from hone.credit.returns import gae, standardised
from hone.envs.gym.world import inspect_world, open_world
from hone.envs.logs.parquet import read_log
from hone.models.control.discriminator import AdversarialActorCritic
from hone.models.control.mlp import Choices, MlpConfig, Spaces
from hone.objectives.adversarial import steepness, told_apart
from hone.objectives.policy import clipped
from hone.objectives.terms import Terms, added
from hone.objectives.value import squared
from hone.objectives.weights import token_mean
from hone.recipes.on_policy import ppo
from hone.train.control.acting import NetworkActor, Scored, foresee
from hone.train.control.job import control_job, fingerprint
from hone.train.control.on_policy import OnPolicyRun, require_fit
from hone.train.control.on_policy import derive as on_policy_table
from hone.train.control.phases import phase
from hone.train.control.rows import Columns, StepRows, cut_columns, step_rows
from hone.train.control.spaces import spaces_of
from hone.train.job import Entry, Job, Parts
from hone.train.learner.config import LearnerConfig, schedule
from hone.train.learner.gradient import GradientLearner, Phase
from hone.train.loop import Recipe
from hone.train.sources.live import Live
from hone.train.sources.normalise import Normalise, normalised

PAYS: Mapping[str, Pay] = {"positive": positive, "negative": negative, "odds": odds}


class DiscriminatorConfig(Config):
    """Who tells the policy's decisions from those that were shown."""

    network: MlpConfig = MlpConfig()
    """Of what was seen and done, to one logit."""
    gradient_penalty: float = Field(default=1.0, ge=0)
    """Of (|gradient of the logit| - 1)^2 between demonstrations and the policy's decisions, in deviations of what is
    read; 0: none."""
    every: int = Field(default=2, ge=1)
    """It is stepped on every so many minibatches: one that is far ahead of the policy pays the same everywhere."""


class GailAlgorithm(Config):
    """What is paid, and PPO's numbers."""

    reward: Literal["positive", "negative", "odds"] = "positive"
    """What the logit l pays: softplus(l), where an end is a failure; -softplus(-l), where it is the goal; l, where it
    may be either, or only a clock ends an episode."""
    discount: float = Field(default=0.98, ge=0, le=1)
    """Of what is paid one step later."""
    decay: float = Field(default=0.9, ge=0, le=1)
    """GAE's lambda: 0 trusts the critic, 1 the returns."""
    clip: float = Field(default=0.2, gt=0, lt=1)
    """How far the probability of a decision may move before its gradient stops."""
    value_weight: float = Field(default=0.5, ge=0)
    """Of the critic's squared error."""
    entropy_weight: float = Field(default=0.0, ge=0)
    """Of the policy's entropy, which is kept up."""
    normalise_observations: bool = False
    """Mean 0 and standard deviation 1 for each number that policy and critic see; the discriminator always has its
    own."""
    discriminator: DiscriminatorConfig = DiscriminatorConfig()
    """Who pays."""


class GailConfig(OnPolicyRun):
    """A policy from a log of decisions and a world to try them in."""

    log: str
    """The demonstrations: a parquet file written by hone, or a Minari data set (folder or HDF5 file)."""
    rollout_steps: int = Field(default=64, ge=1)
    """Steps of each environment per turn of the loop."""
    learner: LearnerConfig = LearnerConfig(lr=1e-3, epochs=10, minibatches=2, max_grad_norm=0.5)
    """The optimizers; `minibatches` per epoch."""
    algorithm: GailAlgorithm = GailAlgorithm()
    """What is paid, and PPO's numbers."""


# ---------------------------------------------------------------------------------------------- who is imitated


@dataclass(frozen=True, kw_only=True)
class PairRows(Columns):
    """Decisions of the policy, each beside one that was shown."""

    seen: Tensor
    chosen: Tensor
    shown_seen: Tensor
    shown_chosen: Tensor
    between: Tensor
    """`[n]` in [0, 1): where on the way from the policy's to the shown one the slope is taken; it travels with the row,
    so that no split can change it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """Decisions of a log, as they lie on the learner's device; which are drawn is a function of the update's number."""

    seen: Tensor
    chosen: Tensor
    seed: int

    def beside(self, policy: AdversarialActorCritic, rows: Any, update: int) -> PairRows:  # noqa: ANN401 - any rows
        """A demonstration for every row, with replacement."""
        del policy
        assert isinstance(rows, StepRows)
        draws = generator(self.seed, "demonstrations", update)
        picks = torch.from_numpy(draws.integers(0, len(self.seen), len(rows))).to(self.seen.device)
        between = torch.from_numpy(draws.random(len(rows), dtype=np.float32)).to(self.seen.device)
        return PairRows(
            weight=rows.weight,
            seen=rows.seen,
            chosen=rows.chosen,
            shown_seen=self.seen[picks],
            shown_chosen=self.chosen[picks],
            between=between,
        )


def shown_by(log: str) -> tuple[Episodes, Spaces]:
    """Every decision of a log as an episode of its own, and the spaces it was taken in. Raises DataError."""
    read = read_log(Path(log))
    steps = read.episodes.transitions()
    if not len(steps):
        raise DataError(f"{log}: there are no decisions in it")
    return steps, spaces_of(read.observation_space, read.action_space)


def require_same_world(log: str, theirs: Spaces, ours: Spaces) -> None:
    """Raises ConfigError for demonstrations of another world."""
    if theirs != ours:
        raise ConfigError(
            f"log = {log!r} is of another world: it has {described(theirs)}, the environment {described(ours)}"
        )


def described(space: Spaces) -> str:
    """What is seen and done, in words."""
    inputs, actions = space.inputs, space.actions
    seen = f"{inputs.size} states from {inputs.start}" if inputs.one_hot else f"{inputs.size} numbers seen"
    return f"{seen} and {actions}" + (f" from {actions.start}" if isinstance(actions, Choices) else "")


# ---------------------------------------------------------------------------------------------- credit and losses


@dataclass
class Judged:
    """The credit: PPO's, of what the discriminator pays. It keeps the statistics that the discriminator reads by, once
    for every batch that it is asked about."""

    policy: AdversarialActorCritic
    algorithm: GailAlgorithm

    def __call__(self, episodes: Episodes, values: Values) -> Credits:
        return imitated(episodes, values, likeness=self._likeness, credit=self._standard)

    def _standard(self, episodes: Episodes, values: Values) -> Credits:
        algorithm = self.algorithm
        return standardised(gae(episodes, values, discount=algorithm.discount, decay=algorithm.decay))

    @torch.no_grad()
    def _likeness(self, episodes: Episodes) -> NDArray[np.float64]:
        """`[N]`."""
        discriminator, device = self.policy.discriminator, next(self.policy.parameters()).device
        columns = (episodes.observations, episodes.chosen)
        seen, chosen = (torch.from_numpy(np.ascontiguousarray(column)).to(device) for column in columns)
        discriminator.observe(seen, chosen)
        logit = discriminator.logit(discriminator.pairs(seen, chosen))
        return PAYS[self.algorithm.reward](logit.double().cpu().numpy())


def discriminator_objective(policy: AdversarialActorCritic, rows: PairRows, *, penalty: float) -> Terms:
    """-log D(shown) - log(1 - D(own)) + penalty * (|slope between them| - 1)^2."""
    judge = policy.discriminator
    shown, own = judge.pairs(rows.shown_seen, rows.shown_chosen), judge.pairs(rows.seen, rows.chosen)
    apart = told_apart(judge.logit(shown), judge.logit(own))
    if not penalty:
        return apart
    middle = torch.lerp(own, shown, rows.between.to(own.dtype)[:, None])
    return added(apart, steepness(judge.slope(middle)), weight=penalty)


# ---------------------------------------------------------------------------------------------- the job


def phases_of(
    policy: AdversarialActorCritic, shown: Shown, config: GailConfig
) -> list[Phase[AdversarialActorCritic, Any]]:
    """PPO's step, and the discriminator's on some of the minibatches."""
    algorithm, told = config.algorithm, config.algorithm.discriminator
    numbers = ppo.PpoAlgorithm(
        clip_low=algorithm.clip,
        clip_high=algorithm.clip,
        value_weight=algorithm.value_weight,
        entropy_weight=algorithm.entropy_weight,
    )
    deciding: Phase[AdversarialActorCritic, Any] = phase(
        "policy", partial(ppo.objective, algorithm=numbers), policy.deciding(), config.learner
    )
    telling: Phase[AdversarialActorCritic, Any] = phase(
        "discriminator",
        partial(discriminator_objective, penalty=told.gradient_penalty),
        policy.discriminator.parameters(),
        config.learner,
    )
    telling.prepare, telling.every = shown.beside, told.every
    return [deciding, telling]


def build(config: GailConfig) -> Job[AdversarialActorCritic]:
    """Raises DataError for what is wrong with the log; ConfigError and UserCodeError for the environment."""
    algorithm, device = config.algorithm, config.run.device
    steps, theirs = shown_by(config.log)
    world = open_world(config.env, steps=config.rollout_steps, seed=config.seed)
    space = spaces_of(world.envs.single_observation_space, world.envs.single_action_space)
    normalise = Normalise(observations=algorithm.normalise_observations)
    require_fit(config.env, space, normalise)
    require_same_world(config.log, theirs, space)
    policy = AdversarialActorCritic(
        space, config.network, seed=config.seed, discriminator=algorithm.discriminator.network
    ).to(device)
    seen, chosen = (torch.from_numpy(np.ascontiguousarray(it)).to(device) for it in (steps.observations, steps.chosen))
    policy.discriminator.observe(seen, chosen)
    shown = Shown(seen=seen, chosen=chosen, seed=config.seed)
    learner: GradientLearner[AdversarialActorCritic, Any] = GradientLearner(
        policy=policy,
        layout=partial(step_rows, device=device),
        phases=phases_of(policy, shown, config),
        seed=config.seed,
        learning_rate=schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        foresee=foresee,
        epochs=config.learner.epochs,
        minibatches=config.learner.minibatches,
        shuffle=config.learner.minibatches > 1,
        cut=cut_columns,
    )
    source = Scored(Live(world, NetworkActor(policy.acting())), world)
    recipe = Recipe(
        source=normalised(source, normalise, size=space.inputs.size, discount=algorithm.discount),
        credit=Judged(policy, algorithm),
        learner=learner,
    )
    return control_job(
        recipe, env=config.env, judge=config.judge, seed=config.seed, fingerprint=fingerprint(steps), world=world
    )


def check(config: GailConfig) -> list[str]:
    warnings: list[str] = []

    def world() -> Spaces:
        found, told = inspect_world(config.env, seed=config.seed)
        space = spaces_of(*found)
        require_fit(config.env, space, Normalise(observations=config.algorithm.normalise_observations))
        warnings.extend(told)
        return space

    found = all_at_once({"log": lambda: shown_by(config.log)[1], "env": world})
    require_same_world(config.log, found["log"], found["env"])
    return warnings


def derive(config: GailConfig) -> dict[str, str]:
    steps = config.learner.optimizer_steps(config.steps)
    told = on_policy_table(config)
    return {
        **told,
        "demonstrations": config.log,
        "discriminator steps": f"{steps // config.algorithm.discriminator.every}",
    }


ENTRY = Entry(
    summary="imitation of a log by acting: PPO paid by a discriminator for looking like the demonstrations",
    source="Ho and Ermon, Generative Adversarial Imitation Learning, 2016",
    config=GailConfig,
    build=build,
    check=check,
    derive=derive,
    parts=Parts(
        source="Live(Gymnasium)",
        credit=(imitated, positive, standardised, gae),
        loss=(clipped, squared, told_apart, steepness),
        weights=(token_mean,),
    ),
    limitation="needs many steps of the world and a reward whose sign suits its ends; no loss says how good it is.",
)
