"""Conservative Q-learning (Kumar et al., 2020): a policy from a log, wary of actions that nobody has tried.

Finite actions: double Q-learning plus the conservative gap. A box of actions: SAC's losses plus the gap estimated on
sampled actions, CQL(H).
"""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from pydantic import Field
from torch import Tensor

from hone.core.config import Config
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.random import generator
from hone.credit.returns import one_step
from hone.envs.gym import GymConfig, inspect_world
from hone.envs.logs import read_log
from hone.models.control import ActionValues, SoftActorCritic, follow
from hone.models.mlp import Choices, MlpConfig, Spaces
from hone.objectives.offline import conservative, conservative_sampled
from hone.objectives.td import double_target
from hone.objectives.terms import Terms
from hone.objectives.value import squared
from hone.objectives.weights import token_mean
from hone.train.config import RunConfig, RunSettings
from hone.train.control import (
    JudgeConfig,
    TransitionRows,
    control_job,
    fingerprint,
    log_spaces,
    phase,
    transition_rows,
)
from hone.train.job import Entry, Job, Parts
from hone.train.learner import GradientLearner, Phase
from hone.train.loop import Recipe
from hone.train.optimize import LearnerConfig, schedule
from hone.train.recipes.sac import actor_objective, critic_objective, soften
from hone.train.sources import Logged


class CqlAlgorithm(Config):
    """The numbers of the paper."""

    discount: float = Field(default=0.99, ge=0, le=1)
    """Of a reward one step later."""
    conservatism: float = Field(default=5.0, ge=0)
    """Weight of the gap between all actions and the logged one."""
    target_rate: float = Field(default=0.02, gt=0, le=1)
    """Share of the values that their slow copy takes on per update."""
    samples: int = Field(default=10, ge=1)
    """Actions sampled from each of three proposals, for boxes of actions."""


class CqlConfig(RunConfig):
    """A policy from a log of decisions."""

    run: RunSettings = RunSettings(threads=1, log_every=100, checkpoint_every=5000)
    """How the run is carried out."""
    log: str
    """A parquet file written by hone, or a Minari data set (folder or HDF5 file)."""
    env: GymConfig | None = None
    """Where the policy is judged; None: nowhere."""
    network: MlpConfig = MlpConfig(hidden=[128, 128], activation="relu")
    """The values, and the policy if there is one, have one each."""
    learner: LearnerConfig = LearnerConfig(lr=1e-3, decay="linear", max_grad_norm=None)
    """The optimizers; `minibatches` is the number of updates per turn of the loop."""
    batch: int = Field(default=256, ge=1)
    """Transitions per update."""
    algorithm: CqlAlgorithm = CqlAlgorithm()
    """Targets and conservatism."""
    judge: JudgeConfig = JudgeConfig()
    """How the policy is tried."""


def table_objective(policy: ActionValues, rows: TransitionRows, *, conservatism: float) -> Terms:
    """Temporal difference + conservatism * gap, over finite actions."""
    actions = policy.spaces.actions
    assert isinstance(actions, Choices)
    chosen = rows.chosen - actions.start
    table = policy.table(rows.seen)
    with torch.no_grad():
        ahead = policy.table(rows.after)
    target = double_target(rows.reward, rows.discount, ahead, policy.target_table(rows.after))
    error = squared(table.gather(1, chosen[:, None]).squeeze(1), target)
    gap = conservative(table, chosen)
    return Terms(loss=error.loss + conservatism * gap.loss, told=lambda: {**error.metrics, **gap.metrics})


def box_objective(policy: SoftActorCritic, rows: TransitionRows, *, conservatism: float) -> Terms:
    """SAC's squared errors + conservatism * the gap of each critic, over a box of actions."""
    error = critic_objective(policy, rows)
    actions, density = proposals(policy, rows)
    seen = rows.seen.repeat_interleave(actions.shape[1], dim=0)
    logged = policy.worth(rows.seen, policy.unit(rows.chosen))
    sampled = policy.worth(seen, actions.flatten(0, 1))
    gaps = [
        conservative_sampled(worth.view_as(density), density, here) for worth, here in zip(sampled, logged, strict=True)
    ]
    loss = error.loss + conservatism * (gaps[0].loss + gaps[1].loss)
    return Terms(loss=loss, told=lambda: {**error.metrics, **gaps[0].metrics})


@torch.no_grad()
def proposals(policy: SoftActorCritic, rows: TransitionRows) -> tuple[Tensor, Tensor]:
    """Actions `[n, 3 * samples, a]`, uniform, of the policy here and of the policy one step on; their log densities."""
    noise = rows.noise[:, 2:]
    count = noise.shape[1] // 3
    # The normal distribution function turns the first third of the noise into uniform numbers.
    uniform = 2.0 * torch.special.ndtr(noise[:, :count]) - 1.0
    flat = torch.full(uniform.shape[:2], -math.log(2.0) * policy.actions, device=uniform.device)
    parts, densities = [uniform], [flat]
    for seen, part in ((rows.seen, noise[:, count : 2 * count]), (rows.after, noise[:, 2 * count :])):
        drawn, logp = policy.draw(seen.repeat_interleave(count, dim=0), part.flatten(0, 1))
        parts.append(drawn.view(len(noise), count, -1))
        densities.append(logp.view(len(noise), count))
    return torch.cat(parts, dim=1), torch.cat(densities, dim=1)


def build(config: CqlConfig) -> Job[ActionValues | SoftActorCritic]:
    """Raises DataError for what is wrong with the log, ConfigError for a box of actions without bounds."""
    log = read_log(Path(config.log))
    space = log_spaces(log)
    policy, phases, after_step = _parts(config, space)
    draws = 2 + 3 * config.algorithm.samples if isinstance(policy, SoftActorCritic) else 0
    size = policy.actions if isinstance(policy, SoftActorCritic) else 0

    def layout(transitions: Episodes, credits: Credits) -> TransitionRows:
        shape = (len(transitions), draws, size)
        noise = generator(config.seed, "cql", learner.updates).standard_normal(shape, "float32")
        return transition_rows(transitions, credits, noise, device=config.run.device)

    learner = GradientLearner(
        policy=policy,
        layout=layout,
        phases=phases,
        seed=config.seed,
        learning_rate=schedule(config.learner, config.learner.optimizer_steps(config.steps)),
        minibatches=config.learner.minibatches,
        shuffle=False,
        after_step=after_step,
    )
    transitions = log.episodes.transitions()
    source = Logged(transitions, batch=config.batch * config.learner.minibatches, seed=config.seed)
    recipe = Recipe(source=source, credit=partial(one_step, discount=config.algorithm.discount), learner=learner)
    return control_job(
        recipe,
        env=config.env,
        judge=config.judge,
        seed=config.seed,
        fingerprint=fingerprint(log.episodes),
    )


def _parts(config: CqlConfig, space: Spaces) -> tuple[ActionValues | SoftActorCritic, list[Phase], Callable]:
    learner = config.learner
    if isinstance(space.actions, Choices):
        table = ActionValues(space, config.network, seed=config.seed).to(config.run.device)
        values = partial(table_objective, conservatism=config.algorithm.conservatism)
        slow = partial(follow_table, rate=config.algorithm.target_rate)
        return table, [phase("values", values, table.values.parameters(), learner)], slow
    policy = SoftActorCritic(space, config.network, seed=config.seed).to(config.run.device)
    critic = partial(box_objective, conservatism=config.algorithm.conservatism)
    actor = partial(actor_objective, target_entropy=-float(policy.actions))
    phases = [
        phase("critic", critic, policy.critics.parameters(), learner),
        phase("actor", actor, [*policy.actor.parameters(), policy.log_temperature], learner),
    ]
    return policy, phases, partial(soften, rate=config.algorithm.target_rate)


def follow_table(policy: ActionValues, *, rate: float) -> None:
    """Let the slow copy follow."""
    follow(policy.target.parameters(), policy.values.parameters(), rate=rate)


def check(config: CqlConfig) -> list[str]:
    read_log(Path(config.log))
    return [] if config.env is None else inspect_world(config.env, seed=config.seed)[1]


def derive(config: CqlConfig) -> dict[str, str]:
    updates = config.learner.optimizer_steps(config.steps)
    return {"updates": f"{updates}", "update": f"{config.batch} transitions"}


ENTRY = Entry(
    summary="offline control: a policy from a log, wary of untried actions",
    source="Kumar et al., Conservative Q-Learning for Offline Reinforcement Learning, 2020",
    config=CqlConfig,
    build=build,
    check=check,
    derive=derive,
    parts=Parts(
        source="Logged(log)",
        credit=(one_step,),
        loss=(squared, double_target, conservative, conservative_sampled),
        weights=(token_mean,),
    ),
    limitation="never much better than the best of the log; the weight of its caution must be found per log.",
)
