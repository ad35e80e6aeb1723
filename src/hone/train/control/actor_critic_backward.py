"""The gradient of actor-critic losses written out by hand, for the speed of small networks.

loss = surrogate(log p) + value_weight * (V - target)^2 / 2 - entropy_weight * H. Belongs here: that sum, gone through
backwards. The derivative of a surrogate by log p stands beside it; networks and heads are in
`models.control.manual_backward`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hone.models.control.actor_critic import ActorCritic
from hone.models.control.manual_backward import Weighed, back, run, weigh_box, weigh_choices
from hone.models.control.mlp import Choices
from hone.objectives.ratios import LOG_RATIO_LIMIT, drift, gap, saturated
from hone.objectives.terms import Terms
from hone.train.control.rows import StepRows

Surrogate = Callable[[Tensor, StepRows], tuple[Terms, Tensor]]
"""Log-probabilities now `[n]` nats and rows -> terms as data, and the derivative of their loss by log p `[n]`."""


def clipped_slope(now: Tensor, rows: StepRows, *, low: float, high: float) -> tuple[Terms, Tensor]:
    """`clipped` (PPO) and its derivative: -r A where the gradient has not stopped, 0 where it has."""
    apart, cost = gap(now, rows.logp), -rows.advantage
    r = apart.clamp(max=LOG_RATIO_LIMIT).exp_()
    free, held = cost * r, r.clamp(1.0 - low, 1.0 + high).mul_(cost)
    stopped = (held > free).logical_or_(apart > LOG_RATIO_LIMIT)

    def told() -> dict[str, Tensor]:
        halted = (held > free) | (saturated(apart) & (rows.advantage != 0))
        return {"policy/clip_fraction": halted.to(r.dtype), **drift(r, apart)}

    return Terms(loss=torch.maximum(free, held), told=told), free.masked_fill(stopped, 0.0)


def reinforce_slope(now: Tensor, rows: StepRows) -> tuple[Terms, Tensor]:
    """`reinforce` and its derivative, -A."""
    return Terms(loss=-rows.advantage * now), -rows.advantage


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Of the parts of the loss."""

    value: float
    entropy: float


def actor_critic_gradient(policy: ActorCritic, rows: StepRows, *, surrogate: Surrogate, weights: Weights) -> Terms:
    """Adds the gradient of sum(weight * loss) to the parameters' gradients; the terms as data."""
    assert policy.critic is not None
    x = policy.spaces.inputs.tensor(rows.seen)
    decided, valued = run(policy.actor, x), run(policy.critic, x)
    weighed = _weighed(policy, decided.out, rows.chosen, entropy=weights.entropy > 0)
    actor, slope = surrogate(weighed.logp, rows)
    error = valued.out.squeeze(1) - rows.target
    loss = torch.addcmul(actor.loss, error, error, value=0.5 * weights.value)
    by_entropy = None
    if weights.entropy:
        loss = loss.sub_(weighed.entropy, alpha=weights.entropy)
        by_entropy = -weights.entropy * rows.weight
    back(policy.actor, decided, weighed.pull(slope.mul_(rows.weight), by_entropy))
    back(policy.critic, valued, (error * rows.weight).mul_(weights.value)[:, None])

    def told() -> dict[str, Tensor]:
        uncertain = weighed if weights.entropy else _weighed(policy, decided.out, rows.chosen, entropy=True)
        value = {"value/mean": valued.out.squeeze(1), "value/error_abs": error.abs()}
        return {**actor.metrics, **value, "policy/entropy_nats": uncertain.entropy}

    return Terms(loss=loss, told=told)


def _weighed(policy: ActorCritic, outputs: Tensor, chosen: Tensor, *, entropy: bool) -> Weighed:
    actions = policy.spaces.actions
    if isinstance(actions, Choices):
        place = chosen - actions.start if actions.start else chosen
        return weigh_choices(outputs, place, entropy=entropy)
    assert policy.log_std is not None
    return weigh_box(outputs, policy.log_std, chosen.reshape(outputs.shape))
