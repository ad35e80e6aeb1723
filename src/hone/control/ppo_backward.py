"""PPO's loss with its gradient written out: PPO is 1.2 to 1.4 times as fast with it, and another 1.3 to 1.6 times where
compiled code computes both networks and the loss in one call (benchmarks/RESULTS.md).

loss = clipped surrogate(log p) + value_weight * (V - target)^2 / 2 - entropy_weight * H. Networks and heads are in
`models.control.mlp_backward`. The loss itself stands in `recipes.on_policy.ppo`, and tests hold both to one another.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from hone.control.networks.actor_critic import ActorCritic, entropy_metrics
from hone.control.networks.box_gaussian import to_gaussian
from hone.control.networks.mlp import DiscreteActions
from hone.control.networks.mlp_backward import (
    HeadOutput,
    backward,
    box_gaussian_with_backward,
    categorical_with_backward,
    forward_with_tape,
)
from hone.control.rows import StepRows
from hone.models.native.perceptron import (
    ChosenNumbers,
    ClippedWeights,
    GaussianSamples,
    clipped_with_backward,
)
from hone.objectives.ratios import LOG_RATIO_LIMIT, is_saturated, logp_difference, ratio_metrics
from hone.objectives.terms import LossTerms


def _clipped_surrogate_with_backward(
    now: Tensor, then: Tensor, advantage: Tensor, *, low: float, high: float
) -> tuple[LossTerms, Tensor]:
    """`clipped_surrogate`, and its derivative `[n]` by `now`: -r A, and 0 where the gradient has stopped."""
    difference, cost = logp_difference(now, then), -advantage
    r = difference.clamp(max=LOG_RATIO_LIMIT).exp_()
    free, held = cost * r, r.clamp(1.0 - low, 1.0 + high).mul_(cost)
    clipped = held > free

    def compute_metrics() -> Mapping[str, Tensor]:
        stopped = clipped | (is_saturated(difference) & (advantage != 0))
        return {"policy/clip_fraction": stopped.to(r.dtype), **ratio_metrics(r, difference)}

    terms = LossTerms(loss=torch.maximum(free, held), compute_metrics=compute_metrics)
    return terms, free.masked_fill(clipped | (difference > LOG_RATIO_LIMIT), 0.0)


def ppo_loss_with_backward(
    policy: ActorCritic, rows: StepRows, *, low: float, high: float, value_weight: float, entropy_weight: float
) -> LossTerms:
    """Add the gradient of sum(weight * loss) to the parameters' gradients, and return the terms as data."""
    assert policy.critic is not None
    x = policy.spaces.inputs.tensor(rows.seen)
    weights = ClippedWeights(low=low, high=high, value=value_weight, entropy=entropy_weight)
    if (terms := loss_in_one_call(policy, rows, x, weights)) is not None:
        return terms
    acted, judged = forward_with_tape(policy.actor, x), forward_with_tape(policy.critic, x)
    head = _head(policy, acted.out, rows, entropy=entropy_weight > 0)
    value = judged.out.squeeze(1)
    actor, by_logp = _clipped_surrogate_with_backward(head.logp, rows.logp, rows.advantage, low=low, high=high)
    error = value - rows.target
    loss = torch.addcmul(actor.loss, error, error, value=0.5 * value_weight)
    by_entropy = None
    if entropy_weight:
        loss = loss.sub_(head.entropy, alpha=entropy_weight)
        by_entropy = -entropy_weight * rows.weight
    backward(policy.actor, acted, head.backward(by_logp.mul_(rows.weight), by_entropy))
    backward(policy.critic, judged, (error * rows.weight).mul_(value_weight)[:, None])

    def compute_metrics() -> Mapping[str, Tensor]:
        known = head if entropy_weight else _head(policy, acted.out, rows, entropy=True)
        critic = {"value/mean": value, "value/error_abs": error.abs()}
        return {**actor.metrics, **critic, **entropy_metrics(known.entropy, rows.mask)}

    return LossTerms(loss=loss, compute_metrics=compute_metrics)


def _head(policy: ActorCritic, outputs: Tensor, rows: StepRows, *, entropy: bool) -> HeadOutput:
    actions, chosen = policy.spaces.actions, rows.chosen
    if isinstance(actions, DiscreteActions):
        index = chosen - actions.start if actions.start else chosen
        return categorical_with_backward(outputs, index, entropy=entropy, mask=rows.mask)
    assert policy.log_std is not None
    return box_gaussian_with_backward(outputs, policy.log_std, chosen.reshape(outputs.shape), policy.spaces.box)


def loss_in_one_call(policy: ActorCritic, rows: StepRows, x: Tensor, weights: ClippedWeights) -> LossTerms | None:
    """The same loss and gradient by compiled code (`perceptron/clipped.h`), to the rounding of float32; None where it
    does not run or other kernels are faster."""
    acts, judges = policy.actor.kernels, None if policy.critic is None else policy.critic.kernels
    if acts is None or judges is None or not (acts.is_small and acts.supports(x) and judges.supports(x)):
        return None
    actions = policy.spaces.actions
    if isinstance(actions, DiscreteActions):
        chosen = ChosenNumbers(rows.chosen, actions.start, rows.mask)
    else:
        assert policy.log_std is not None
        samples, volume = to_gaussian(rows.chosen.reshape(len(x), -1), policy.spaces.box)
        chosen = GaussianSamples(samples, policy.log_std, 0.0 if volume is None else policy.spaces.box.log_volume)
    columns = (rows.logp, rows.advantage, rows.target, rows.weight)
    parts = clipped_with_backward(acts, judges, x, chosen, columns, weights)

    def compute_metrics() -> Mapping[str, Tensor]:
        surrogate, _ = _clipped_surrogate_with_backward(
            parts.logp, rows.logp, rows.advantage, low=weights.low, high=weights.high
        )
        critic = {"value/mean": parts.value, "value/error_abs": (parts.value - rows.target).abs()}
        return {**surrogate.metrics, **critic, **entropy_metrics(parts.entropy, rows.mask)}

    return LossTerms(loss=parts.loss, compute_metrics=compute_metrics)
