"""Hindsight experience replay with action values (Andrychowicz et al., 2017, 1707.01495).

Off-policy control of environments with goals: replayed transitions are relabelled with goals that the episode reached,
so that every episode meets some goal. The learner is double DQN. The defaults are those that solve `hone/BitFlip-v0`
with 15 bits, where the same learner without hindsight (`hindsight.share = 0`) stays at 0.
"""

from dataclasses import replace
from functools import partial

import torch
from pydantic import Field

from hone.control.hindsight import GOAL_SOURCE, HindsightRunConfig
from hone.control.networks.actor_critic import QNetworkPolicy
from hone.control.networks.mlp import DiscreteActions, MlpConfig, PolicySpaces
from hone.control.off_policy import (
    OffPolicyMethod,
    ScheduledExplorer,
    off_policy_parts,
    rows_with_noise,
)
from hone.control.phases import TdAlgorithm, optimizer_phase, target_update
from hone.control.replay.hindsight import HindsightBuffer
from hone.control.replay.ring import RingBuffer
from hone.control.rows import TransitionRows
from hone.core.config import new_default
from hone.credit.returns import one_step_target
from hone.learner.config import ReplayLearnerConfig
from hone.objectives.td import double_target
from hone.objectives.terms import LossTerms
from hone.objectives.value import squared_error
from hone.run.job import RecipeSpec


class HerDqnAlgorithm(TdAlgorithm):
    """The numbers of the paper, for short episodes."""

    discount = new_default(0.85, "Discount factor (gamma); a low one separates the values of near and far goals early.")
    epsilon: float = Field(default=0.1, ge=0, le=1)
    """Epsilon of the epsilon-greedy exploration during training."""
    tau = new_default(0.05)
    value_range: list[float] = Field(default=[0.0, 1.0], min_length=2, max_length=2)
    """Lowest and highest possible return; targets are clipped to this range, as in the paper. For a reward of 1 at
    the goal: 0 and 1; for a reward of -1 per step: -1 / (1 - discount) and 0."""


class HerDqnConfig(HindsightRunConfig):
    """Action values on Gymnasium environments with goals and a finite set of actions."""

    box_recipes = "her_sac"

    network: MlpConfig = MlpConfig(hidden=[256], activation="relu")
    """Q network and target network have one each."""
    learner = new_default(ReplayLearnerConfig(lr=1e-3, updates_per_iteration=4, max_grad_norm=None), "The optimizer.")
    algorithm: HerDqnAlgorithm = HerDqnAlgorithm()
    """Targets and exploration."""

    def method(self, spaces: PolicySpaces) -> OffPolicyMethod[QNetworkPolicy]:
        """Double Q-learning with an epsilon-greedy behaviour policy, on a replay buffer that relabels goals."""
        algorithm = self.algorithm
        policy = QNetworkPolicy(spaces, self.network, seed=self.seed).to(self.run.device)
        low, high = algorithm.value_range
        return OffPolicyMethod(
            policy=policy,
            phases=[
                optimizer_phase(
                    "values",
                    partial(_objective, low=low, high=high),
                    policy.values.parameters(),
                    self.learner,
                    after_step=target_update([(policy.target, policy.values)], tau=algorithm.tau),
                )
            ],
            layout=rows_with_noise(self, "none", 0),
            credit=partial(one_step_target, discount=algorithm.discount),
            buffer=RingBuffer(self.replay.capacity),
            actor=ScheduledExplorer(
                policy.numpy_policy(),
                exploration_policy=lambda policy, _: replace(policy.numpy_policy(), epsilon=algorithm.epsilon),
            ),
        )


def _objective(policy: QNetworkPolicy, rows: TransitionRows, *, low: float, high: float) -> LossTerms:
    """Squared error of the chosen action's value against the double Q-learning target."""
    actions = policy.spaces.actions
    assert isinstance(actions, DiscreteActions)
    with torch.no_grad():
        now, slow = policy.q_values(rows.next_seen), policy.target_q_values(rows.next_seen)
    target = double_target(rows.reward, rows.discount, now, slow).clamp(low, high)
    value = policy.q_values(rows.seen).gather(1, (rows.chosen - actions.start)[:, None]).squeeze(1)
    return squared_error(value, target)


ENTRY = RecipeSpec(
    summary="off-policy control with goals, finite actions: hindsight experience replay",
    paper="Andrychowicz et al., Hindsight Experience Replay, 2017",
    config=HerDqnConfig,
    limitation="needs goals that are functions of the observation, and a reward that can be computed for any goal.",
    parts=off_policy_parts(HerDqnConfig.method, HindsightBuffer, source=GOAL_SOURCE),
)
