"""Gradients of small networks and of policy heads, written out: autograd's numbers without its bookkeeping.

With 64 units a layer, most of an optimizer step is autograd's graph and its fresh tensors. Here a network runs once and
keeps the outputs of its layers (its tape), and the backward pass adds to the gradients in place. The recipe decides
which loss is differentiated. Gradients must be allocated (`FlatParameters`); nothing here builds a graph.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from hone.control.networks.box_gaussian import to_gaussian
from hone.control.networks.mlp import BoxActions, Mlp
from hone.control.networks.numpy_policies import LOG_TWO_PI

_TANH = torch.ops.aten.tanh_backward.grad_input
_RELU = torch.ops.aten.threshold_backward.grad_input


@dataclass(frozen=True, slots=True)
class _ForwardTape:
    """Outputs of a network, and what its backward pass needs."""

    out: Tensor
    """`[n, outputs]`"""
    layer_inputs: Sequence[Tensor]
    """Input of each layer, `[n, in]`; of the first one only, where compiled kernels keep the rest."""
    kernel_tape: Tensor | None = None
    """Hidden outputs, as compiled kernels keep them."""


def forward_with_tape(network: Mlp, x: Tensor) -> _ForwardTape:
    """The forward pass of `network` on `x` `[n, in]`, without a graph."""
    if network.kernels is not None and network.kernels.supports(x):
        kept = network.kernels.new_tape(x.shape[0])
        x = x.contiguous()
        return _ForwardTape(network.kernels.forward(x, kept), [x], kept)
    layer_inputs = [x]
    *hidden, (last, offset) = network.layer_parameters
    for weight, bias in hidden:
        x = network.activate(F.linear(x, weight, bias))
        layer_inputs.append(x)
    return _ForwardTape(F.linear(x, last, offset), layer_inputs)


def backward(network: Mlp, tape: _ForwardTape, slope: Tensor) -> None:
    """Add the gradient of a loss to those of the parameters; `slope` `[n, outputs]`: its derivative by the outputs."""
    if tape.kernel_tape is not None and network.kernels is not None:
        _, gradients = network.kernels.backward(
            tape.layer_inputs[0], tape.kernel_tape, slope.contiguous(), weights=True, inputs=False
        )
        # None are left where they were added to their buffers.
        for parameter, gradient in zip(network.kernels.parameters, gradients, strict=bool(gradients)):
            assert parameter.grad is not None
            parameter.grad.add_(gradient)
        return
    for number in range(len(network.layer_parameters) - 1, -1, -1):
        (weight, bias), x = network.layer_parameters[number], tape.layer_inputs[number]
        assert weight.grad is not None
        assert bias.grad is not None
        if x.shape[1] < slope.shape[1]:  # the product with the shorter side first is three times as fast
            weight.grad.add_((x.t() @ slope).t())
        else:
            weight.grad.addmm_(slope.t(), x)
        bias.grad.add_(slope.sum(0))
        if number:
            slope = _through(network, tape, number, slope)


def input_slope(network: Mlp, tape: _ForwardTape, slope: Tensor) -> Tensor:
    """Derivative of a loss by the inputs `[n, in]`; `slope` `[n, outputs]`: that by the outputs. The gradients of the
    parameters stay as they are."""
    if tape.kernel_tape is not None and network.kernels is not None:
        by_inputs, _ = network.kernels.backward(
            tape.layer_inputs[0], tape.kernel_tape, slope, weights=False, inputs=True
        )
        assert by_inputs is not None
        return by_inputs
    for number in range(len(network.layer_parameters) - 1, 0, -1):
        slope = _through(network, tape, number, slope)
    return slope @ network.layer_parameters[0][0]


def _through(network: Mlp, tape: _ForwardTape, number: int, slope: Tensor) -> Tensor:
    """Derivatives by a layer's outputs -> by the outputs of the layer below, before their activation."""
    slope, x = slope @ network.layer_parameters[number][0], tape.layer_inputs[number]
    _ = _RELU(slope, x, 0, grad_input=slope) if network.relu else _TANH(slope, x, grad_input=slope)
    return slope


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOutput:
    """Log-probabilities and entropies of a policy head, with the backward pass to its network's outputs."""

    logp: Tensor
    """`[n]` nats."""
    entropy: Tensor
    """`[n]` nats."""
    backward: Callable[[Tensor, Tensor | None], Tensor]
    """Derivatives of a loss by `logp` `[n]` and, if any, by `entropy` `[n]` -> its derivative by the outputs."""


def categorical_with_backward(
    logits: Tensor, chosen: Tensor, *, entropy: bool, mask: Tensor | None = None
) -> HeadOutput:
    """Head of finite actions: log softmax(`logits` `[n, k]`) at `chosen` `[n]`; `entropy`: whether it is needed.

    Illegal choices of `mask` `[n, k]` have the logit -inf: p_j = 0, and no slope.

    d logp / d logit_j = [j chosen] - p_j, and dH / d logit_j = -p_j (log p_j + H).
    """
    table = F.log_softmax(logits if mask is None else logits.masked_fill(~mask, -math.inf), dim=1)
    place = chosen[:, None]
    share = table.exp()
    if mask is not None:
        table = table.masked_fill(~mask, 0.0)  # p log p = 0 where p = 0
    nats = -(share * table).sum(1) if entropy else logits.new_zeros(())

    def pull(by_logp: Tensor, by_entropy: Tensor | None) -> Tensor:
        slope = (by_logp[:, None] * share).neg_().scatter_add_(1, place, by_logp[:, None])
        if by_entropy is not None:
            slope -= by_entropy[:, None] * share * (table + nats[:, None])
        return slope

    return HeadOutput(logp=table.gather(1, place).squeeze(1), entropy=nats, backward=pull)


def box_gaussian_with_backward(mean: Tensor, log_std: Tensor, chosen: Tensor, actions: BoxActions) -> HeadOutput:
    """`_gaussian_with_backward` of the samples behind the environment's actions `chosen` `[n, a]`, with log-density and
    entropy of the actions. Squashed actions have no such head: the entropy's shift has a gradient."""
    assert actions.gaussian != "squashed"
    samples, volume = to_gaussian(chosen, actions)
    head = _gaussian_with_backward(mean, log_std, samples)
    return head if volume is None else replace(head, logp=head.logp - volume, entropy=head.entropy + volume)


def _gaussian_with_backward(mean: Tensor, log_std: Tensor, chosen: Tensor) -> HeadOutput:
    """Head of a box: log N(`mean` `[n, a]`, exp(`log_std` `[a]`)^2) at `chosen` `[n, a]`.

    Its backward pass adds to the gradient of `log_std`. With z = (chosen - mean) / std: d logp / d mean = z / std,
    d logp / d log std = z^2 - 1, dH / d log std = 1.
    """
    precision = torch.exp(-log_std)
    scaled = (chosen - mean) * precision
    logp = -0.5 * scaled.square().sum(dim=1) - log_std.sum() - 0.5 * LOG_TWO_PI * mean.shape[1]
    nats = (log_std.sum() + 0.5 * (1.0 + LOG_TWO_PI) * mean.shape[1]).expand(len(mean))

    def pull(by_logp: Tensor, by_entropy: Tensor | None) -> Tensor:
        assert log_std.grad is not None
        log_std.grad.add_(by_logp @ (scaled.square() - 1.0))
        if by_entropy is not None:
            log_std.grad.add_(by_entropy.sum())
        return by_logp[:, None] * scaled * precision

    return HeadOutput(logp=logp, entropy=nats, backward=pull)
