"""Discrete SAC: maximum entropy over finitely many actions (Christodoulou, 2019).

pi is a softmax, two tables of action values have slow copies, and expectations over actions are sums: target = r +
discount * sum over a of pi(a | s') [min Q'(s', a) - alpha log pi(a | s')]. A softmax over k choices can have log k nats
of entropy; a target near that forbids to decide, so it is a small share of it. The defaults are for CartPole-v1.
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
from hone.credit.returns import one_step
from hone.envs.gym.world import open_world
from hone.models.control.mlp import Choices, MlpConfig
from hone.models.control.q_networks import SoftChoices
from hone.objectives.soft import soft_policy, soft_target, soft_values, temperature
from hone.objectives.terms import Terms
from hone.objectives.weights import token_mean
from hone.replay.ring import Ring
from hone.train.control.acting import NetworkActor, Scored
from hone.train.control.job import control_job
from hone.train.control.phases import following, phase
from hone.train.control.replay_config import TurnReplayConfig
from hone.train.control.rows import TransitionRows, transition_rows
from hone.train.control.value_based import Turns, ValueLearner, checked, derived, space_of
from hone.train.job import Entry, Job, Parts
from hone.train.learner.config import schedule
from hone.train.learner.gradient import GradientLearner
from hone.train.loop import Recipe
from hone.train.sources.live import Live
from hone.train.sources.replay import Replay


class SoftAlgorithm(Config):
    """Targets and temperature."""

    discount: float = Field(default=0.99, ge=0, le=1)
    """Of a reward one step later."""
    target_rate: float = Field(default=0.005, gt=0, le=1)
    """Share of the critics that their slow copies take on per update."""
    entropy: float = Field(default=0.1, ge=0, lt=1)
    """Target of the policy's entropy, as a share of log k, the most that k choices can have."""


class DiscreteSac(Turns):
    """A softmax policy with twin critics on Gymnasium environments with finitely many actions."""

    network: MlpConfig = MlpConfig(hidden=[64, 64], activation="relu")
    """The policy and each critic have one."""
    learner: ValueLearner = ValueLearner(lr=1e-3, minibatches=32)
    """The optimizers; `minibatches` is the number of updates per turn of the loop."""
    replay: TurnReplayConfig = TurnReplayConfig(collect=64)
    """The memory, and how often it is asked."""
    algorithm: SoftAlgorithm = SoftAlgorithm()
    """Targets and temperature."""


def critic_objective(policy: SoftChoices, rows: TransitionRows) -> Terms:
    """Squared error of both critics against the soft target, its expectation over actions written out."""
    with torch.no_grad():
        logp = policy.logp(rows.after)
        share = logp.exp()
        worth = (share * policy.slow_table(rows.after)).sum(dim=1)
        target = soft_target(rows.reward, rows.discount, worth, (share * logp).sum(dim=1), policy.log_temperature.exp())
    chosen = policy.number(rows.chosen)[:, None]
    first, second = (table.gather(1, chosen).squeeze(1) for table in policy.tables(rows.seen))
    return soft_values(first, second, target)


def actor_objective(policy: SoftChoices, rows: TransitionRows, *, target_entropy: float) -> Terms:
    """The policy's loss and the temperature's, both as expectations over actions; critics are data."""
    logp = policy.logp(rows.seen)
    share = logp.exp()
    minus_entropy = (share * logp).sum(dim=1)
    with torch.no_grad():
        lesser: Tensor = torch.minimum(*policy.tables(rows.seen))
    worth = (share * lesser).sum(dim=1)
    actor = soft_policy(minus_entropy, worth, worth, policy.log_temperature.exp())
    heat = temperature(policy.log_temperature, minus_entropy, target_entropy=target_entropy)
    return Terms(loss=actor.loss + heat.loss, told=lambda: {**actor.metrics, **heat.metrics})


def build(config: DiscreteSac) -> Job[SoftChoices]:
    """Raises ConfigError and UserCodeError for what is wrong with the environment."""
    replay, algorithm = config.replay, config.algorithm
    world = open_world(config.env, steps=replay.collect, seed=config.seed)
    space = space_of(world.envs.single_observation_space, world.envs.single_action_space)
    policy = SoftChoices(space, config.network, seed=config.seed).to(config.run.device)
    assert isinstance(space.actions, Choices)
    entropy = algorithm.entropy * math.log(space.actions.count)

    def layout(transitions: Episodes, credits: Credits) -> TransitionRows:
        none = np.zeros((len(transitions), 0), np.float32)  # expectations are sums: nothing is drawn
        return transition_rows(transitions, credits, none, device=config.run.device)

    learner = GradientLearner(
        policy=policy,
        layout=layout,
        phases=[
            phase("critic", critic_objective, policy.critics.parameters(), config.learner),
            phase(
                "actor",
                partial(actor_objective, target_entropy=entropy),
                [*policy.actor.parameters(), policy.log_temperature],
                config.learner,
            ),
        ],
        seed=config.seed,
        learning_rate=schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        epochs=config.learner.epochs,
        minibatches=config.learner.minibatches,
        shuffle=False,
        after_step=following([(policy.targets, policy.critics)], rate=algorithm.target_rate),
    )
    source = Replay(
        Scored(Live(world, NetworkActor(policy.acting())), world),
        ring=Ring(replay.memory),
        sample=replay.batch * config.learner.minibatches,
        warmup=replay.warmup,
        seed=config.seed,
    )
    recipe = Recipe(source=source, credit=partial(one_step, discount=algorithm.discount), learner=learner)
    return control_job(recipe, env=config.env, judge=config.judge, seed=config.seed, world=world)


ENTRY = Entry(
    summary="maximum entropy over finitely many actions: softmax policy, twin critics, replay",
    source="Christodoulou, Soft Actor-Critic for Discrete Action Settings, 2019",
    config=DiscreteSac,
    build=build,
    check=checked,
    derive=derived,
    parts=Parts(
        source="Replay(Live(Gymnasium))",
        credit=(one_step,),
        loss=(soft_values, soft_target, soft_policy, temperature),
        weights=(token_mean,),
    ),
    limitation="what the right entropy is differs by task; where one action matters much, it has to be low.",
)
