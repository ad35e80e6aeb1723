"""Implicit Q-learning (Kostrikov et al., 2022): offline control that never evaluates an action outside the log.

V is an expectile of Q over the logged actions, Q is learned towards V, and the policy imitates the logged actions,
weighted by their advantage. The three losses share no parameter, so one optimizer step serves them all.
"""

from functools import partial

import torch
from pydantic import Field

from hone.core.config import Config
from hone.credit.returns import one_step_target
from hone.models.control.offline import IqlPolicy, twin_q_values
from hone.objectives.offline import advantage_weighted_regression, expectile_loss
from hone.objectives.soft import twin_critic_loss
from hone.objectives.td import td_target
from hone.objectives.terms import LossTerms
from hone.objectives.weights import token_mean
from hone.train.control.offline import (
    LoggedRows,
    OfflineMethod,
    OfflineRunConfig,
    check_offline,
    derive_offline,
    offline_job,
    offline_phase,
    open_log,
)
from hone.train.control.phases import target_update
from hone.train.job import RecipeParts, RecipeSpec, TrainingJob, checked_run


class IqlAlgorithm(Config):
    """The numbers of the paper."""

    discount: float = Field(default=0.99, ge=0, le=1)
    """Discount factor (gamma)."""
    expectile: float = Field(default=0.7, gt=0, lt=1)
    """Expectile of the logged actions' values: 0.5 is their mean, towards 1 their maximum."""
    inverse_temperature: float = Field(default=3.0, ge=0)
    """Inverse temperature: weight of an action is exp(inverse_temperature * advantage); 0 is behaviour cloning."""
    cap: float = Field(default=100.0, gt=0)
    """Largest weight of an action."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """Polyak coefficient of the target networks per update."""


class IqlConfig(OfflineRunConfig):
    """Implicit Q-learning from a log, over finite actions or a box."""

    algorithm: IqlAlgorithm = IqlAlgorithm()
    """Expectile and extraction."""


def objective(policy: IqlPolicy, rows: LoggedRows, *, algorithm: IqlAlgorithm) -> LossTerms:
    """Expectile loss of V + squared errors of both Q + weighted imitation."""
    with torch.no_grad():
        slow = torch.minimum(*twin_q_values(policy.targets, rows.seen, rows.chosen))
        after = policy.value(rows.next_seen).squeeze(1)
    value = policy.value(rows.seen).squeeze(1)
    level = expectile_loss(value, slow, level=algorithm.expectile)
    error = twin_critic_loss(
        *twin_q_values(policy.critics, rows.seen, rows.chosen), td_target(rows.reward, rows.discount, after)
    )  # fmt: skip
    extracted = advantage_weighted_regression(
        policy.log_prob(rows.seen, rows.chosen),
        slow - value.detach(),
        inverse_temperature=algorithm.inverse_temperature,
        cap=algorithm.cap,
    )
    return LossTerms(
        loss=level.loss + error.loss + extracted.loss,
        compute_metrics=lambda: {**error.metrics, **level.metrics, **extracted.metrics},
    )


def build(config: IqlConfig) -> TrainingJob[IqlPolicy]:
    """Build the training job. Raises DataError for an invalid log, ConfigError for a box of actions without bounds."""
    log, spaces = open_log(config)
    policy = IqlPolicy(spaces, config.network, seed=config.seed).to(config.run.device)
    numbers = [number for number in policy.parameters() if number.requires_grad]
    wiring = OfflineMethod(
        phases=[
            offline_phase(
                "all",
                partial(objective, algorithm=config.algorithm),
                numbers,
                config.learner,
            )
        ],
        discount=config.algorithm.discount,
        after_step=target_update([(policy.targets, policy.critics)], tau=config.algorithm.tau),
    )
    return offline_job(config, log, policy, wiring)


ENTRY = RecipeSpec(
    summary="offline control: values within the log, weighted imitation",
    paper="Kostrikov et al., Offline Reinforcement Learning with Implicit Q-Learning, 2022",
    config=IqlConfig,
    open=checked_run(check_offline, build),
    derive=derive_offline,
    parts=RecipeParts(
        source="Logged(log)",
        credit=(one_step_target,),
        loss=(expectile_loss, twin_critic_loss, td_target, advantage_weighted_regression),
        weights=(token_mean,),
    ),
    limitation="only combines actions of the log; the expectile treats lucky outcomes as good actions.",
)
