"""Batch-constrained Q-learning (Fujimoto et al., 2019): the best of those actions that the log itself would have taken.

Finite actions: double Q-learning over the actions that a model of the log finds likely enough (Fujimoto et al., 2019b).
A box: a generator of logged actions, each moved a little towards what the critics find better, and the best of several.
"""

from functools import partial

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from hone.core.config import Config
from hone.credit.returns import one_step
from hone.envs.logs.parquet import Log
from hone.models.control.mlp import Choices, Spaces
from hone.models.control.offline import AdmissibleValues, BatchConstrained, first_worth, worths
from hone.objectives.constraint import admissible, generator_loss, mixed_target
from hone.objectives.offline import imitation
from hone.objectives.soft import soft_values
from hone.objectives.td import deterministic_policy, double_target
from hone.objectives.terms import Terms, added
from hone.objectives.value import huber
from hone.objectives.weights import token_mean
from hone.train.control.offline import LoggedRows, OfflineRun, Wiring, check, derive, offline_job, opened, phase
from hone.train.control.phases import following
from hone.train.job import Entry, Job, Parts


class BcqAlgorithm(Config):
    """The numbers of the papers."""

    discount: float = Field(default=0.99, ge=0, le=1)
    """Of a reward one step later."""
    target_rate: float = Field(default=0.005, gt=0, le=1)
    """Share of networks that their slow copies take on per update."""
    threshold: float = Field(default=0.3, ge=0, le=1)
    """Finite actions: how likely an action must be in the log, as a share of the likeliest one's probability."""
    reach: float = Field(default=0.05, ge=0, le=2)
    """Boxes: how far a generated action may be moved, where the box is [-1, 1]."""
    pessimism: float = Field(default=0.75, ge=0, le=1)
    """Boxes: weight of the lesser of two critics against the greater one."""
    proposals: int = Field(default=10, ge=1)
    """Boxes: generated actions that a target takes the best of."""
    samples: int = Field(default=100, ge=1)
    """Boxes: generated actions that a decision takes the best of."""


class BcqConfig(OfflineRun):
    """Batch-constrained Q-learning from a log, over finite actions or a box."""

    algorithm: BcqAlgorithm = BcqAlgorithm()
    """Constraint and targets."""


# ---------------------------------------------------------------------------------------------- finite actions


def table_objective(policy: AdmissibleValues, rows: LoggedRows) -> Terms:
    """Huber's error of Q against the best admissible action + imitation by the model of the log."""
    with torch.no_grad():
        allowed = admissible(F.log_softmax(policy.behaviour(rows.after), dim=1), threshold=policy.threshold)
        ahead = policy.values(rows.after).masked_fill(~allowed, -torch.inf)
        target = double_target(rows.reward, rows.discount, ahead, policy.target(rows.after))
    error = huber(chosen_of(policy.values(rows.seen), rows.chosen), target)
    likely = imitation(chosen_of(F.log_softmax(policy.behaviour(rows.seen), dim=1), rows.chosen))
    return added(error, likely)


def chosen_of(table: Tensor, chosen: Tensor) -> Tensor:
    """`[n, k]` at `[n]`."""
    return table.gather(1, chosen[:, None]).squeeze(1)


def build_table(config: BcqConfig, log: Log, spaces: Spaces) -> Job[AdmissibleValues]:
    algorithm = config.algorithm
    policy = AdmissibleValues(spaces, config.network, seed=config.seed, threshold=algorithm.threshold)
    policy = policy.to(config.run.device)
    numbers = [*policy.values.parameters(), *policy.behaviour.parameters()]
    wiring = Wiring(
        phases=[phase("values", table_objective, numbers, config.learner)],
        discount=algorithm.discount,
        after_step=following([(policy.target, policy.values)], rate=algorithm.target_rate),
    )
    return offline_job(config, log, policy, wiring)


# ---------------------------------------------------------------------------------------------- boxes


def generator_objective(policy: BatchConstrained, rows: LoggedRows) -> Terms:
    """How badly logged actions are rebuilt, and how far their codes are from standard normal."""
    rebuilt, mean, log_std = policy.generator.rebuilt(rows.seen, rows.chosen, rows.noise[:, : policy.latent])
    return generator_loss(rebuilt, rows.chosen, mean, log_std)


@torch.no_grad()
def target_of(policy: BatchConstrained, rows: LoggedRows, *, pessimism: float) -> Tensor:
    """`[n]` by the best of several perturbed actions of the generator."""
    count = len(rows)
    codes = rows.noise[:, 2 * policy.latent :].reshape(-1, policy.latent)
    after = rows.after.repeat_interleave(len(codes) // count, dim=0)
    action = policy.perturbed(after, policy.generated(after, codes), slow=True)
    first, second = (worth.view(count, -1) for worth in worths(policy.targets, after, action))
    return mixed_target(rows.reward, rows.discount, first, second, pessimism=pessimism)


def critic_objective(policy: BatchConstrained, rows: LoggedRows, *, pessimism: float) -> Terms:
    """Squared errors of both critics against the best of several perturbed actions of the generator."""
    target = target_of(policy, rows, pessimism=pessimism)
    return soft_values(*worths(policy.critics, rows.seen, rows.chosen), target)


def perturbation_objective(policy: BatchConstrained, rows: LoggedRows) -> Terms:
    """Generated actions, moved to where the first critic finds them better."""
    code = rows.noise[:, policy.latent : 2 * policy.latent]
    action = policy.perturbed(rows.seen, policy.generated(rows.seen, code))
    return deterministic_policy(first_worth(policy.critics, rows.seen, action))


def build_box(config: BcqConfig, log: Log, spaces: Spaces) -> Job[BatchConstrained]:
    algorithm = config.algorithm
    policy = BatchConstrained(
        spaces, config.network, seed=config.seed, reach=algorithm.reach, samples=algorithm.samples
    ).to(config.run.device)
    critic = partial(critic_objective, pessimism=algorithm.pessimism)
    wiring = Wiring(
        phases=[
            phase("generator", generator_objective, [*policy.generator.parameters()], config.learner),
            phase("critic", critic, [*policy.critics.parameters()], config.learner),
            phase("perturbation", perturbation_objective, [*policy.perturbation.parameters()], config.learner),
        ],
        draws=(2 + algorithm.proposals) * policy.latent,
        discount=algorithm.discount,
        after_step=following(
            [(policy.targets, policy.critics), (policy.slow, policy.perturbation)],
            rate=algorithm.target_rate,
        ),
    )
    return offline_job(config, log, policy, wiring)


def build(config: BcqConfig) -> Job[AdmissibleValues] | Job[BatchConstrained]:
    """Raises DataError for what is wrong with the log, ConfigError for a box of actions without bounds."""
    log, spaces = opened(config)
    return (build_table if isinstance(spaces.actions, Choices) else build_box)(config, log, spaces)


ENTRY = Entry(
    summary="offline control: the best of the actions that the log would have taken",
    source="Fujimoto et al., Off-Policy Deep Reinforcement Learning without Exploration, 2019",
    config=BcqConfig,
    build=build,
    check=check,
    derive=derive,
    parts=Parts(
        source="Logged(log)",
        credit=(one_step,),
        loss=(huber, double_target, admissible, imitation, soft_values, mixed_target, generator_loss),
        weights=(token_mean,),
    ),
    limitation="as good as the model of the log: what that cannot tell apart, the constraint lets through.",
)
