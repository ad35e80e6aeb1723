"""Discrete SAC: maximum entropy over finitely many actions (Christodoulou, 2019).

pi is a softmax, both critics have target networks, and expectations over actions are sums: target = r +
discount * sum over a of pi(a | s') [min Q'(s', a) - alpha log pi(a | s')]. A softmax over k actions has at most log k
nats of entropy, and one near that is almost uniform, so the target entropy is a small share of log k. The defaults are
for CartPole-v1.
"""

import math
from functools import partial

import torch
from pydantic import Field
from torch import Tensor

from hone.control.networks.encoders import encoded_spaces
from hone.control.networks.mlp import DiscreteActions, EncodedMlpConfig, PolicySpaces
from hone.control.networks.q_networks import DiscreteSacPolicy
from hone.control.off_policy import (
    IterationReplayConfig,
    OffPolicyMethod,
    ReplayRunConfig,
    rows_with_noise,
)
from hone.control.phases import TdAlgorithm
from hone.control.replay.ring import RingBuffer
from hone.control.rows import TransitionRows
from hone.core.config import new_default
from hone.credit.returns import one_step_target
from hone.learner.config import ReplayLearnerConfig
from hone.objectives.td import sac_actor_loss, soft_target, temperature_loss, twin_critic_loss
from hone.objectives.terms import LossTerms
from hone.recipes.off_policy.sac import soft_phases
from hone.run.job import RecipeSpec, RunSettings


class DiscreteSacAlgorithm(TdAlgorithm):
    """Targets and temperature."""

    entropy: float = Field(default=0.1, ge=0, lt=1)
    """Target entropy of the policy, as a share of log k, the maximum for k actions."""


class DiscreteSacConfig(ReplayRunConfig):
    """A softmax policy with twin critics on Gymnasium environments with finitely many actions."""

    box_recipes = "sac or td3"

    run = new_default(RunSettings(threads=1, log_every=10, checkpoint_every=100))
    network: EncodedMlpConfig = EncodedMlpConfig(hidden=[64, 64], activation="relu")
    """Network of the policy, and of each critic."""
    learner = new_default(ReplayLearnerConfig(lr=1e-3, max_grad_norm=10.0, updates_per_iteration=32))
    replay: IterationReplayConfig = IterationReplayConfig(collect=64)  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """The replay buffer."""
    algorithm: DiscreteSacAlgorithm = DiscreteSacAlgorithm()
    """Targets and temperature."""

    def policy_spaces(self, spaces: PolicySpaces) -> PolicySpaces:
        return encoded_spaces(spaces, self.network)

    def method(self, spaces: PolicySpaces) -> OffPolicyMethod[DiscreteSacPolicy]:
        """Critics, then actor and temperature. Expectations over actions are sums, so no noise is drawn."""
        algorithm = self.algorithm
        policy = DiscreteSacPolicy(spaces, self.network, seed=self.seed).to(self.run.device)
        assert isinstance(spaces.actions, DiscreteActions)
        target_entropy = algorithm.entropy * math.log(spaces.actions.count)
        actor = partial(_actor_objective, target_entropy=target_entropy)
        return OffPolicyMethod(
            policy=policy,
            phases=soft_phases(self.learner, policy, _critic_objective, actor, tau=algorithm.tau),
            layout=rows_with_noise(self, "none", 0),
            credit=partial(one_step_target, discount=algorithm.discount),
            buffer=RingBuffer(self.replay.capacity),
        )


def _critic_objective(policy: DiscreteSacPolicy, rows: TransitionRows) -> LossTerms:
    """Squared error of both critics against the soft target, its expectation over actions written out."""
    with torch.no_grad():
        share, logp = _shares(policy, rows.next_seen, rows.next_mask)
        worth = (share * policy.min_target_q_values(rows.next_seen)).sum(dim=1)
        target = soft_target(rows.reward, rows.discount, worth, (share * logp).sum(dim=1), policy.log_temperature.exp())
    chosen = policy.action_indices(rows.chosen)[:, None]
    first, second = (table.gather(1, chosen).squeeze(1) for table in policy.q_values(rows.seen))
    return twin_critic_loss(first, second, target)


def _shares(policy: DiscreteSacPolicy, seen: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Probabilities and log-probabilities `[n, choices]`; of illegal choices both are 0, as p log p is 0 where p is."""
    logp = policy.logp(seen, mask)
    return logp.exp(), logp if mask is None else logp.masked_fill(~mask, 0.0)


def _actor_objective(policy: DiscreteSacPolicy, rows: TransitionRows, *, target_entropy: float) -> LossTerms:
    """The policy's loss and the temperature's, both as expectations over actions; critics are data."""
    share, logp = _shares(policy, rows.seen, rows.mask)
    minus_entropy = (share * logp).sum(dim=1)
    with torch.no_grad():
        lesser: Tensor = torch.minimum(*policy.q_values(rows.seen))
    worth = (share * lesser).sum(dim=1)
    actor = sac_actor_loss(minus_entropy, worth, worth, policy.log_temperature.exp())
    # The target is a share of the largest entropy, which is that of a state's legal choices.
    legal = (
        1.0 if rows.mask is None else rows.mask.sum(dim=1).to(logp.dtype).log() / math.log(max(2, rows.mask.shape[1]))
    )
    heat = temperature_loss(policy.log_temperature, minus_entropy, target_entropy=target_entropy * legal)
    return LossTerms(loss=actor.loss + heat.loss, compute_metrics=lambda: {**actor.metrics, **heat.metrics})


ENTRY = RecipeSpec(
    summary="maximum entropy over finitely many actions: softmax policy, twin critics, replay",
    paper="Christodoulou, Soft Actor-Critic for Discrete Action Settings, 2019",
    config=DiscreteSacConfig,
    limitation="the right target entropy depends on the task; it must be low where single actions decide.",
)
