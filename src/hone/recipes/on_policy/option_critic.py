"""Option-critic: options learned together with the policy over them (Bacon, Harb & Precup, 2017, 1609.05140).

Option values, intra-option policies and termination functions, all by gradient on policy: the intra-option policies by
PPO's clipped surrogate, the terminations by the advantage of continuing over choosing anew, plus a deliberation cost
(Harb et al., 2018) that keeps options from ending at every step.
"""

from functools import partial

import numpy as np
import torch
from pydantic import Field

from hone.control import on_policy
from hone.control.environments.option_wrapper import with_option_memory
from hone.control.environments.world import GymWorld, inspect_world
from hone.control.job import open_gym_run
from hone.control.networks.mlp import PolicySpaces
from hone.control.networks.options import OptionCriticPolicy
from hone.control.rows import StepRows
from hone.control.spaces import network_spaces
from hone.core.config import new_default
from hone.core.credit import Values
from hone.core.episodes import Episodes
from hone.learner.config import policy_phase
from hone.objectives.policy import clipped_surrogate
from hone.objectives.terms import LossTerms
from hone.objectives.value import squared_error
from hone.run.job import OpenedRun, RecipeSpec, TrainingJob


class OptionCriticAlgorithm(on_policy.ClippedAlgorithm):
    """The numbers of both papers."""

    entropy_weight = new_default(0.01, "Weight of the entropy bonus of the intra-option policies.")
    options: int = Field(default=4, ge=1)
    """Number of options."""
    epsilon: float = Field(default=0.1, ge=0, le=1)
    """Epsilon of the policy over options."""
    deliberation_cost: float = Field(default=0.02, ge=0)
    """Cost of stopping, in units of the return: it makes options last."""
    stop_weight: float = Field(default=1.0, ge=0)
    """Weight of the termination loss."""


class OptionCriticConfig(on_policy.OnPolicyRunConfig):
    """Options with networks on Gymnasium environments with a finite set of actions."""

    has_encoders = False

    algorithm: OptionCriticAlgorithm = OptionCriticAlgorithm()
    """Credit and loss."""

    def open(self) -> OpenedRun:
        """Open the environments with a memory for the option. Raises ConfigError for actions that are no finite set."""
        spaces = network_spaces(*inspect_world(self.env, seed=self.seed)[0])
        OptionCriticPolicy(spaces, self.network, seed=0, options=1, epsilon=0.0)
        remembering = with_option_memory(self.env, self.algorithm.options)
        return open_gym_run(self, remembering, steps=self.rollout_steps, build=partial(_build, spaces=spaces))


def objective(policy: OptionCriticPolicy, rows: StepRows, *, algorithm: OptionCriticAlgorithm) -> LossTerms:
    """Clipped surrogate within + value error of the option + stop * (gain + deliberation cost) - entropy.

    The last but one is the termination gradient: an option is to stop where choosing anew is worth more than going on
    with it, and the more so the more there is to gain; `gain` is data.
    """
    now = policy.evaluate_actions(rows.seen, rows.chosen)
    surrogate = clipped_surrogate(now.logp, rows.logp, rows.advantage, low=algorithm.clip, high=algorithm.clip)
    critic = squared_error(now.q_value, rows.target)
    ends = now.termination * (now.termination_advantage + algorithm.deliberation_cost)
    loss = surrogate.loss + algorithm.value_weight * critic.loss + algorithm.stop_weight * ends
    return LossTerms(
        loss=loss - algorithm.entropy_weight * now.entropy,
        compute_metrics=lambda: {
            **surrogate.metrics,
            **critic.metrics,
            "options/stop": now.termination.detach(),
            "policy/entropy_nats": now.entropy.detach(),
        },
    )


@torch.no_grad()
def _predict_values(policy: OptionCriticPolicy, episodes: Episodes) -> Values:
    """Q of each observation and its active option; U of the last observation and the option active there."""
    assert episodes.final is not None
    device = next(policy.parameters()).device
    columns = (episodes.observations, episodes.chosen, episodes.final)
    seen, chosen, final = (torch.from_numpy(np.ascontiguousarray(column)).to(device) for column in columns)
    return Values(value=policy.q_value(seen, chosen).cpu().numpy(), final=policy.value_on_arrival(final).cpu().numpy())


def _build(config: OptionCriticConfig, world: GymWorld, *, spaces: PolicySpaces) -> TrainingJob[OptionCriticPolicy]:
    """Training job that acts in `world`, which remembers the options; `spaces` are those without this memory."""
    algorithm = config.algorithm
    policy = OptionCriticPolicy(
        spaces, config.network, seed=config.seed, options=algorithm.options, epsilon=algorithm.epsilon
    ).to(config.run.device)
    phase = policy_phase(policy, partial(objective, algorithm=algorithm), config.learner)
    credit = partial(on_policy.standardised_gae, discount=algorithm.discount, gae_lambda=algorithm.gae_lambda)
    learner = on_policy.rollout_learner(config, config.learner, policy, [phase], predict_values=_predict_values)
    return on_policy.rollout_job(config, world, credit, learner)


ENTRY = RecipeSpec(
    summary="options learned by gradient: option values, intra-option policies, terminations",
    paper="Bacon, Harb and Precup, The Option-Critic Architecture, 2017",
    config=OptionCriticConfig,
    parts=on_policy.control_parts(_build, objective, source="Live(Gymnasium with a memory)"),
    limitation="without a deliberation cost, options end at every step or one takes over; finite actions only.",
)
