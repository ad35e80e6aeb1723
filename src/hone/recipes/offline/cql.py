"""Conservative Q-learning (Kumar et al., 2020): a policy from a log, wary of actions that nobody has tried.

Finite actions: double Q-learning plus the conservative gap. A box of actions: SAC's losses plus the gap estimated on
sampled actions, CQL(H).
"""

import math
from functools import partial

import torch
from pydantic import Field
from torch import Tensor

from hone.core.config import Config
from hone.credit.returns import one_step
from hone.envs.logs.parquet import Log
from hone.models.control.actor_critic import ActionValues, SoftActorCritic, mlps, squashed
from hone.models.control.mlp import Choices, MlpConfig, Spaces
from hone.models.control.numpy_policies import LOG_STD_RANGE
from hone.models.control.offline import worths
from hone.objectives.offline import conservative, conservative_sampled
from hone.objectives.soft import soft_policy, soft_target, soft_values, temperature
from hone.objectives.td import double_target
from hone.objectives.terms import Terms, added
from hone.objectives.value import squared
from hone.objectives.weights import token_mean
from hone.train.control.offline import LoggedRows, OfflineRun, Wiring, check, derive, offline_job, opened, phase
from hone.train.control.phases import following
from hone.train.job import Entry, Job, Parts
from hone.train.learner.config import LearnerConfig


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


class CqlConfig(OfflineRun):
    """Conservative Q-learning from a log, over finite actions or a box."""

    network: MlpConfig = MlpConfig(hidden=[128, 128], activation="relu")
    """The values, and the policy if there is one, have one each."""
    learner: LearnerConfig = LearnerConfig(lr=1e-3, decay="linear", max_grad_norm=None)
    """The optimizers; `minibatches` is the number of updates per turn of the loop."""
    algorithm: CqlAlgorithm = CqlAlgorithm()
    """Targets and conservatism."""


# ---------------------------------------------------------------------------------------------- finite actions


def table_objective(policy: ActionValues, rows: LoggedRows, *, conservatism: float) -> Terms:
    """Temporal difference + conservatism * gap, over finite actions."""
    table = policy.values(rows.seen)
    value = table.gather(1, rows.chosen[:, None]).squeeze(1)
    error = squared(value, table_target(policy, rows))
    return added(error, conservative(table, rows.chosen), weight=conservatism)


@torch.no_grad()
def table_target(policy: ActionValues, rows: LoggedRows) -> Tensor:
    """`[n]` of double Q-learning."""
    return double_target(rows.reward, rows.discount, policy.values(rows.after), policy.target(rows.after))


def build_table(config: CqlConfig, log: Log, spaces: Spaces) -> Job[ActionValues]:
    algorithm = config.algorithm
    policy = ActionValues(spaces, config.network, seed=config.seed).to(config.run.device)
    values = partial(table_objective, conservatism=algorithm.conservatism)
    wiring = Wiring(
        phases=[phase("values", values, [*policy.values.parameters()], config.learner)],
        discount=algorithm.discount,
        after_step=following([(policy.target, policy.values)], rate=algorithm.target_rate),
    )
    return offline_job(config, log, policy, wiring)


# ---------------------------------------------------------------------------------------------- boxes


def box_objective(policy: SoftActorCritic, rows: LoggedRows, *, conservatism: float) -> Terms:
    """SAC's squared errors + conservatism * the gap of each critic, over a box of actions.

    The critics see the logged action and the proposals of a state in one pass.
    """
    target, density, x = asked_rows(policy, rows)
    first, second = (critic(x).view(len(rows), -1) for critic in mlps(policy.critics))
    error = soft_values(first[:, 0], second[:, 0], target)
    gaps = [conservative_sampled(worth[:, 1:], density, worth[:, 0]) for worth in (first, second)]
    loss = error.loss + conservatism * (gaps[0].loss + gaps[1].loss)
    return Terms(loss=loss, told=lambda: {**error.metrics, **gaps[0].metrics})


def asked_rows(policy: SoftActorCritic, rows: LoggedRows) -> tuple[Tensor, Tensor, Tensor]:
    """The soft target `[n]`, log densities of proposed actions `[n, m]`, and what a critic reads of the logged action
    and those, state by state: `[n * (1 + m), size + a]`."""
    target, actions, density = asked(policy, rows)
    every = torch.cat((rows.chosen[:, None], actions), dim=1)
    seen = rows.seen[:, None].expand(-1, every.shape[1], -1)
    return target, density, torch.cat((seen, every), dim=2).flatten(0, 1)


@torch.no_grad()
def asked(policy: SoftActorCritic, rows: LoggedRows) -> tuple[Tensor, Tensor, Tensor]:
    """The soft target `[n]`, and actions `[n, 3 * samples, a]`: uniform, of the policy here, and of the policy one step
    on, with the logarithms of their densities.

    The policy is asked once per observation, however many actions are drawn.
    """
    count, size = len(rows), policy.actions
    noise = rows.noise.view(count, -1, size)
    samples = (noise.shape[1] - 2) // 3
    mean, log_std = outputs(policy, torch.cat((rows.seen, rows.after)))
    # The normal distribution function turns a third of the noise into uniform numbers.
    uniform = 2.0 * torch.special.ndtr(noise[:, 2 : 2 + samples]) - 1.0
    # [2, n, 1 + samples, a]: of the policy here and one step on; the first one step on is the target's.
    draws = torch.cat((noise[:, :2].transpose(0, 1)[:, :, None], noise[:, 2 + samples :].view(count, 2, samples, size)
                       .transpose(0, 1)), dim=2)  # fmt: skip
    spread = (one.view(2, count, 1, size).expand(-1, -1, 1 + samples, -1).reshape(-1, size) for one in (mean, log_std))
    centre, log_spread = spread
    drawn, logp = squashed(centre, log_spread, centre + log_spread.exp() * draws.reshape(-1, size))
    drawn, logp = drawn.view(2, count, 1 + samples, size), logp.view(2, count, 1 + samples)
    flat = torch.full_like(logp[0, :, 1:], -math.log(2.0) * size)
    first, second = worths(policy.targets, rows.after, drawn[1, :, 0])
    alpha = policy.log_temperature.exp()
    target = soft_target(rows.reward, rows.discount, torch.minimum(first, second), logp[1, :, 0], alpha)
    actions = torch.cat((uniform, drawn[0, :, 1:], drawn[1, :, 1:]), dim=1)
    return target, actions, torch.cat((flat, logp[0, :, 1:], logp[1, :, 1:]), dim=1)


def actor_objective(policy: SoftActorCritic, rows: LoggedRows) -> Terms:
    """SAC's policy and temperature."""
    mean, log_std = outputs(policy, rows.seen)
    noise = rows.noise[:, : policy.actions]
    action, logp = squashed(mean, log_std, mean + log_std.exp() * noise)
    actor = soft_policy(logp, *worths(policy.critics, rows.seen, action, frozen=True), policy.log_temperature.exp())
    return added(actor, temperature(policy.log_temperature, logp, target_entropy=-float(policy.actions)))


def outputs(policy: SoftActorCritic, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log standard deviation `[n, a]` of encoded observations."""
    mean, log_std = policy.actor(seen).chunk(2, dim=1)
    return mean, log_std.clamp(*LOG_STD_RANGE)


def build_box(config: CqlConfig, log: Log, spaces: Spaces) -> Job[SoftActorCritic]:
    algorithm = config.algorithm
    policy = SoftActorCritic(spaces, config.network, seed=config.seed).to(config.run.device)
    critic = partial(box_objective, conservatism=algorithm.conservatism)
    critics, actor = [*policy.critics.parameters()], [*policy.actor.parameters(), policy.log_temperature]
    wiring = Wiring(
        phases=[
            phase("critic", critic, critics, config.learner),
            phase("actor", actor_objective, actor, config.learner),
        ],
        draws=(2 + 3 * algorithm.samples) * policy.actions,
        discount=algorithm.discount,
        after_step=following([(policy.targets, policy.critics)], rate=algorithm.target_rate),
    )
    return offline_job(config, log, policy, wiring)


def build(config: CqlConfig) -> Job[ActionValues] | Job[SoftActorCritic]:
    """Raises DataError for what is wrong with the log, ConfigError for a box of actions without bounds."""
    log, spaces = opened(config)
    return (build_table if isinstance(spaces.actions, Choices) else build_box)(config, log, spaces)


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
