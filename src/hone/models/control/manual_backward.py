"""Gradients of small networks written out by hand: the same numbers as autograd's, without its bookkeeping.

A small network's step is mostly overhead: autograd's graph, its nodes and its fresh tensors are half of it. Here a
network is run once, keeping what each layer put out (its tape), and gone through backwards, adding to the gradients in
place. Belongs here: networks, and the heads that turn outputs into log-probabilities. Which loss is differentiated is
the caller's. Everything expects gradients to be allocated (`FlatParameters`), and runs without grad.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from hone.models.control.mlp import Mlp
from hone.models.control.numpy_policies import LOG_TWO_PI

_TANH = torch.ops.aten.tanh_backward.grad_input
_RELU = torch.ops.aten.threshold_backward.grad_input


@dataclass(frozen=True, slots=True)
class Tape:
    """What a network put out, and what the way back needs."""

    out: Tensor
    """`[n, outputs]`"""
    seen: Sequence[Tensor]
    """What went into each layer `[n, in]`."""


def run(network: Mlp, x: Tensor) -> Tape:
    """`forward`, with the tape that `back` reads."""
    seen = [x]
    *hidden, (last, offset) = network.numbers
    for weight, bias in hidden:
        x = F.linear(x, weight, bias)
        x = x.relu_() if network.relu else x.tanh_()
        seen.append(x)
    return Tape(F.linear(x, last, offset), seen)


def back(network: Mlp, tape: Tape, slope: Tensor, *, weights: bool = True, inputs: bool = False) -> Tensor | None:
    """Goes backwards from `slope` `[n, outputs]`, the derivative by the outputs.

    `weights`: add to the gradients of weights and biases. Returns the derivative by the inputs `[n, in]` where `inputs`
    is set. What stands in `tape` is left as it is.
    """
    numbers = network.numbers
    for number in range(len(numbers) - 1, -1, -1):
        (weight, bias), x = numbers[number], tape.seen[number]
        if weights:
            _add(weight.grad, slope, x)
            assert bias.grad is not None
            bias.grad.add_(slope.sum(0))
        if number == 0 and not inputs:
            return None
        slope = slope @ weight
        if number and network.relu:
            _RELU(slope, x, 0, grad_input=slope)
        elif number:
            _TANH(slope, x, grad_input=slope)
    return slope


def _add(gradient: Tensor | None, slope: Tensor, x: Tensor) -> None:
    """gradient += slope^T x; the product is taken with the shorter side first, which is three times as fast."""
    assert gradient is not None
    if x.shape[1] < slope.shape[1]:
        gradient.add_((x.t() @ slope).t())
    else:
        gradient.addmm_(slope.t(), x)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """What a head says of decisions, and the way back."""

    logp: Tensor
    """`[n]` nats."""
    entropy: Tensor
    """`[n]` nats."""
    pull: Callable[[Tensor, Tensor | None], Tensor]
    """Derivatives of a loss by `logp` `[n]` and, if any, by `entropy` `[n]` -> that by the network's outputs."""


def weigh_choices(logits: Tensor, chosen: Tensor, *, entropy: bool) -> Weighed:
    """softmax(`logits` `[n, k]`) at `chosen` `[n]`; the entropy is computed only if asked for.

    d logp / d logit_j = [j chosen] - p_j, and dH / d logit_j = -p_j (log p_j + H).
    """
    table = F.log_softmax(logits, dim=1)
    place = chosen[:, None]
    share = table.exp()
    uncertain = -(share * table).sum(1) if entropy else logits.new_zeros(())

    def pull(by_logp: Tensor, by_entropy: Tensor | None) -> Tensor:
        slope = (by_logp[:, None] * share).neg_().scatter_add_(1, place, by_logp[:, None])
        if by_entropy is not None:
            slope -= by_entropy[:, None] * share * (table + uncertain[:, None])
        return slope

    return Weighed(logp=table.gather(1, place).squeeze(1), entropy=uncertain, pull=pull)


def weigh_box(mean: Tensor, log_std: Tensor, chosen: Tensor) -> Weighed:
    """N(`mean` `[n, a]`, exp(`log_std` `[a]`)^2) at `chosen` `[n, a]`; `pull` adds to the gradient of `log_std`.

    With z = (chosen - mean) / std: d logp / d mean = z / std, d logp / d log std = z^2 - 1, dH / d log std = 1.
    """
    narrow = torch.exp(-log_std)
    scaled = (chosen - mean) * narrow
    logp = -0.5 * scaled.square().sum(dim=1) - log_std.sum() - 0.5 * LOG_TWO_PI * mean.shape[1]
    uncertain = (log_std.sum() + 0.5 * (1.0 + LOG_TWO_PI) * mean.shape[1]).expand(len(mean))

    def pull(by_logp: Tensor, by_entropy: Tensor | None) -> Tensor:
        assert log_std.grad is not None
        log_std.grad.add_(by_logp @ (scaled.square() - 1.0))
        if by_entropy is not None:
            log_std.grad.add_(by_entropy.sum())
        return by_logp[:, None] * scaled * narrow

    return Weighed(logp=logp, entropy=uncertain, pull=pull)
