"""Implicit Q-learning (Kostrikov et al., 2022): offline control that never evaluates an action outside the log.

V is an expectile of Q over the logged actions, Q is learned towards V, and the policy imitates the logged actions,
weighted by their advantage. The three losses share no parameter, so one optimizer step serves them all.
"""

from functools import partial

import torch
from pydantic import Field

from hone.control.networks.mlp import PolicySpaces
from hone.control.networks.offline import IqlPolicy, twin_q_values
from hone.control.offline import OfflineRunConfig, logged_method
from hone.control.phases import LearningMethod, TdAlgorithm, optimizer_phase, target_update
from hone.control.rows import TransitionRows
from hone.objectives.offline import advantage_weighted_regression, expectile_loss
from hone.objectives.td import td_target, twin_critic_loss
from hone.objectives.terms import LossTerms
from hone.recipes.decision_logs import read_decisions
from hone.run.job import RecipeSpec


class IqlAlgorithm(TdAlgorithm):
    """The numbers of the paper."""

    expectile: float = Field(default=0.7, gt=0, lt=1)
    """Expectile of the logged actions' values: 0.5 is their mean, towards 1 their maximum."""
    inverse_temperature: float = Field(default=3.0, ge=0)
    """Inverse temperature: weight of an action is exp(inverse_temperature * advantage); 0 is behaviour cloning."""
    cap: float = Field(default=100.0, gt=0)
    """Largest weight of an action."""


class IqlConfig(OfflineRunConfig):
    """Implicit Q-learning from a log, over finite actions or a box."""

    read_log = staticmethod(read_decisions)

    algorithm: IqlAlgorithm = IqlAlgorithm()
    """Expectile and extraction."""

    def method(self, spaces: PolicySpaces) -> LearningMethod[IqlPolicy]:
        """Values, critics and policy in one phase. Raises ConfigError for a box of actions without bounds."""
        algorithm = self.algorithm
        policy = IqlPolicy(spaces, self.network, seed=self.seed).to(self.run.device)
        trained = [number for number in policy.parameters() if number.requires_grad]
        loss = partial(_objective, algorithm=algorithm)
        follow = target_update([(policy.targets, policy.critics)], tau=algorithm.tau)
        phases = [optimizer_phase("all", loss, trained, self.learner, after_step=follow)]
        return logged_method(self, policy, phases, discount=algorithm.discount)


def _objective(policy: IqlPolicy, rows: TransitionRows, *, algorithm: IqlAlgorithm) -> LossTerms:
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
        policy.log_prob(rows.seen, rows.chosen, rows.mask),
        slow - value.detach(),
        inverse_temperature=algorithm.inverse_temperature,
        cap=algorithm.cap,
    )
    return LossTerms(
        loss=level.loss + error.loss + extracted.loss,
        compute_metrics=lambda: {**error.metrics, **level.metrics, **extracted.metrics},
    )


ENTRY = RecipeSpec(
    summary="offline control: values within the log, weighted imitation",
    paper="Kostrikov et al., Offline Reinforcement Learning with Implicit Q-Learning, 2022",
    config=IqlConfig,
    limitation="only combines actions of the log; the expectile treats lucky outcomes as good actions.",
)
