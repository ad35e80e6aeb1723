"""Discrete SAC: maximum entropy over finitely many actions (Christodoulou, 2019).

pi is a softmax, both critics have target networks, and expectations over actions are sums: target = r +
discount * sum over a of pi(a | s') [min Q'(s', a) - alpha log pi(a | s')]. A softmax over k actions has at most log k
nats of entropy, and one near that is almost uniform, so the target entropy is a small share of log k. The defaults are
for CartPole-v1.
"""

import math
from functools import partial

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from hone.core.config import Config
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.credit.returns import one_step_target
from hone.envs.gym.world import open_world
from hone.models.control.mlp import DiscreteActions, MlpConfig
from hone.models.control.q_networks import DiscreteSacPolicy
from hone.objectives.soft import sac_actor_loss, soft_target, temperature_loss, twin_critic_loss
from hone.objectives.terms import LossTerms
from hone.objectives.weights import token_mean
from hone.replay.ring import RingBuffer
from hone.train.control.acting import DropFailedEpisodes, NetworkActor
from hone.train.control.job import control_job
from hone.train.control.phases import optimizer_phase, target_update
from hone.train.control.replay_config import IterationReplayConfig
from hone.train.control.rows import TransitionRows, transition_rows
from hone.train.control.value_based import (
    ReplayRunConfig,
    ValueLearnerConfig,
    check_replay_run,
    derive_replay_run,
    finite_action_spaces,
)
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run
from hone.train.learner.config import learning_rate_schedule
from hone.train.learner.gradient import GradientLearner
from hone.train.loop import Recipe
from hone.train.sources.live import LiveSource
from hone.train.sources.replay import ReplaySource


class DiscreteSacAlgorithm(Config):
    """Targets and temperature."""

    discount: float = Field(default=0.99, ge=0, le=1)
    """Discount factor (gamma)."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """Polyak coefficient of the target networks per update."""
    entropy: float = Field(default=0.1, ge=0, lt=1)
    """Target entropy of the policy, as a share of log k, the maximum for k actions."""


class DiscreteSacConfig(ReplayRunConfig):
    """A softmax policy with twin critics on Gymnasium environments with finitely many actions."""

    network: MlpConfig = MlpConfig(hidden=[64, 64], activation="relu")
    """The policy and each critic have one."""
    learner: ValueLearnerConfig = ValueLearnerConfig(lr=1e-3, updates_per_iteration=32)
    """The optimizers."""
    replay: IterationReplayConfig = IterationReplayConfig(collect=64)
    """The replay buffer, and how often it is sampled."""
    algorithm: DiscreteSacAlgorithm = DiscreteSacAlgorithm()
    """Targets and temperature."""


def critic_objective(policy: DiscreteSacPolicy, rows: TransitionRows) -> LossTerms:
    """Squared error of both critics against the soft target, its expectation over actions written out."""
    with torch.no_grad():
        logp = policy.logp(rows.next_seen)
        share = logp.exp()
        worth = (share * policy.min_target_q_values(rows.next_seen)).sum(dim=1)
        target = soft_target(rows.reward, rows.discount, worth, (share * logp).sum(dim=1), policy.log_temperature.exp())
    chosen = policy.action_indices(rows.chosen)[:, None]
    first, second = (table.gather(1, chosen).squeeze(1) for table in policy.q_values(rows.seen))
    return twin_critic_loss(first, second, target)


def actor_objective(policy: DiscreteSacPolicy, rows: TransitionRows, *, target_entropy: float) -> LossTerms:
    """The policy's loss and the temperature's, both as expectations over actions; critics are data."""
    logp = policy.logp(rows.seen)
    share = logp.exp()
    minus_entropy = (share * logp).sum(dim=1)
    with torch.no_grad():
        lesser: Tensor = torch.minimum(*policy.q_values(rows.seen))
    worth = (share * lesser).sum(dim=1)
    actor = sac_actor_loss(minus_entropy, worth, worth, policy.log_temperature.exp())
    heat = temperature_loss(policy.log_temperature, minus_entropy, target_entropy=target_entropy)
    return LossTerms(loss=actor.loss + heat.loss, compute_metrics=lambda: {**actor.metrics, **heat.metrics})


def build(config: DiscreteSacConfig) -> TrainingJob[DiscreteSacPolicy]:
    """Build the training job. Raises ConfigError and UserCodeError for an invalid environment."""
    replay, algorithm = config.replay, config.algorithm
    world = open_world(config.env, steps=replay.collect, seed=config.seed)
    space = finite_action_spaces(world.envs.single_observation_space, world.envs.single_action_space)
    policy = DiscreteSacPolicy(space, config.network, seed=config.seed).to(config.run.device)
    assert isinstance(space.actions, DiscreteActions)
    entropy = algorithm.entropy * math.log(space.actions.count)

    def layout(transitions: Episodes, credits: Credits) -> TransitionRows:
        none = np.zeros((len(transitions), 0), np.float32)  # expectations are sums: nothing is drawn
        return transition_rows(transitions, credits, none, device=config.run.device)

    learner = GradientLearner(
        policy=policy,
        layout=layout,
        phases=[
            optimizer_phase("critic", critic_objective, policy.critics.parameters(), config.learner),
            optimizer_phase(
                "actor",
                partial(actor_objective, target_entropy=entropy),
                [*policy.actor.parameters(), policy.log_temperature],
                config.learner,
            ),
        ],
        seed=config.seed,
        learning_rate=learning_rate_schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        epochs=config.learner.epochs,
        minibatches=config.learner.updates_per_iteration,
        shuffle=False,
        after_step=target_update([(policy.targets, policy.critics)], tau=algorithm.tau),
    )
    source = ReplaySource(
        DropFailedEpisodes(LiveSource(world, NetworkActor(policy.numpy_policy())), world),
        buffer=RingBuffer(replay.capacity),
        sample_size=replay.batch * config.learner.updates_per_iteration,
        warmup=replay.warmup,
        seed=config.seed,
    )
    recipe = Recipe(source=source, credit=partial(one_step_target, discount=algorithm.discount), learner=learner)
    return control_job(recipe, env=config.env, evaluation=config.evaluation, seed=config.seed, world=world)


ENTRY = RecipeSpec(
    summary="maximum entropy over finitely many actions: softmax policy, twin critics, replay",
    paper="Christodoulou, Soft Actor-Critic for Discrete Action Settings, 2019",
    config=DiscreteSacConfig,
    open=checked_run(check_replay_run, build),
    derive=derive_replay_run,
    parts=RecipeParts(
        source="Replay(Live(Gymnasium))",
        credit=(one_step_target,),
        loss=(twin_critic_loss, soft_target, sac_actor_loss, temperature_loss),
        weights=(token_mean,),
    ),
    limitation="the right target entropy depends on the task; it must be low where single actions decide.",
)
