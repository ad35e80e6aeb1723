"""Implicit Q-learning (Kostrikov et al., 2022): values of the best that the log did, without asking for anything else.

V is an expectile of Q over the logged actions, Q is learned towards V, and the policy imitates the logged actions by
their advantage. No action outside the log is ever evaluated. The three losses share no parameter, so that one optimizer
step serves them all.
"""

from functools import partial

import torch
from pydantic import Field

from hone.core.config import Config
from hone.credit.returns import one_step
from hone.models.control.offline import ImplicitValues, worths
from hone.objectives.offline import advantage_weighted, expectile
from hone.objectives.soft import soft_values
from hone.objectives.td import td_target
from hone.objectives.terms import Terms
from hone.objectives.weights import token_mean
from hone.train.control.offline import LoggedRows, OfflineRun, Wiring, check, derive, offline_job, opened, phase
from hone.train.control.phases import following
from hone.train.job import Entry, Job, Parts


class IqlAlgorithm(Config):
    """The numbers of the paper."""

    discount: float = Field(default=0.99, ge=0, le=1)
    """Of a reward one step later."""
    expectile: float = Field(default=0.7, gt=0, lt=1)
    """Of the logged actions' values: 0.5 is their mean, towards 1 the best of them."""
    inverse_temperature: float = Field(default=3.0, ge=0)
    """How much more an action counts per unit of advantage; 0 is imitation."""
    cap: float = Field(default=100.0, gt=0)
    """Greatest weight of an action."""
    target_rate: float = Field(default=0.005, gt=0, le=1)
    """Share of the critics that their slow copies take on per update."""


class IqlConfig(OfflineRun):
    """Implicit Q-learning from a log, over finite actions or a box."""

    algorithm: IqlAlgorithm = IqlAlgorithm()
    """Expectile and extraction."""


def objective(policy: ImplicitValues, rows: LoggedRows, *, algorithm: IqlAlgorithm) -> Terms:
    """Expectile loss of V + squared errors of both Q + weighted imitation."""
    with torch.no_grad():
        slow = torch.minimum(*worths(policy.targets, rows.seen, rows.chosen))
        after = policy.value(rows.after).squeeze(1)
    value = policy.value(rows.seen).squeeze(1)
    level = expectile(value, slow, level=algorithm.expectile)
    error = soft_values(
        *worths(policy.critics, rows.seen, rows.chosen), td_target(rows.reward, rows.discount, after)
    )  # fmt: skip
    extracted = advantage_weighted(
        policy.judge(rows.seen, rows.chosen),
        slow - value.detach(),
        inverse_temperature=algorithm.inverse_temperature,
        cap=algorithm.cap,
    )
    return Terms(
        loss=level.loss + error.loss + extracted.loss,
        told=lambda: {**error.metrics, **level.metrics, **extracted.metrics},
    )


def build(config: IqlConfig) -> Job[ImplicitValues]:
    """Raises DataError for what is wrong with the log, ConfigError for a box of actions without bounds."""
    log, spaces = opened(config)
    policy = ImplicitValues(spaces, config.network, seed=config.seed).to(config.run.device)
    numbers = [number for number in policy.parameters() if number.requires_grad]
    wiring = Wiring(
        phases=[
            phase(
                "all",
                partial(objective, algorithm=config.algorithm),
                numbers,
                config.learner,
            )
        ],
        discount=config.algorithm.discount,
        after_step=following([(policy.targets, policy.critics)], rate=config.algorithm.target_rate),
    )
    return offline_job(config, log, policy, wiring)


ENTRY = Entry(
    summary="offline control: values within the log, weighted imitation",
    source="Kostrikov et al., Offline Reinforcement Learning with Implicit Q-Learning, 2022",
    config=IqlConfig,
    build=build,
    check=check,
    derive=derive,
    parts=Parts(
        source="Logged(log)",
        credit=(one_step,),
        loss=(expectile, soft_values, td_target, advantage_weighted),
        weights=(token_mean,),
    ),
    limitation="only combines actions of the log; the expectile also takes a lucky outcome for a good action.",
)
