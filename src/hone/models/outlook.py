"""What a policy says about chosen tokens: log-probability and entropy, without a `[tokens, vocab]` tensor.

Belongs here: the output projection and the log-softmax, in chunks that are computed again in the backward pass.
"""

from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch import Tensor
from torch.nn import functional

CHUNK_ELEMENTS: Final = 1 << 22
"""Logits that live at once: 16 MiB in float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """float32 (float64 for a float64 model), differentiable."""

    logp: Tensor
    """`[N]` log pi(chosen), nats."""
    entropy: Tensor | None
    """`[N]` nats; None unless asked for."""


def scaled_logits(hidden: Tensor, weight: Tensor, temperature: float | Tensor) -> Tensor:
    """`hidden @ weight.T / temperature` -> `[N, vocab]`, float32 or wider. The one formula of trainer and engine."""
    return widened(functional.linear(hidden, weight)) / temperature


def widened(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()


def outlook(hidden: Tensor, weight: Tensor, chosen: Tensor, temperature: float, *, entropy: bool = False) -> Outlook:
    """Log-probabilities (and entropies) of `softmax(hidden @ weight.T / temperature)`.

    `hidden` `[N, D]`, `weight` `[vocab, D]`, `chosen` `[N]`. Memory beyond the inputs: one chunk of logits.
    """
    logp, entropies = _Outlook.apply(hidden, weight, chosen, _Question(temperature=temperature, entropy=entropy))
    return Outlook(logp=logp, entropy=entropies if entropy else None)


def _chunks(rows: int, vocab: int) -> list[slice]:
    size = max(16, CHUNK_ELEMENTS // max(1, vocab))
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    temperature: float
    entropy: bool


class _Context(Protocol):
    """What autograd keeps between forward and backward."""

    question: _Question
    saved_tensors: tuple[Tensor, Tensor, Tensor]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...


class _Outlook(torch.autograd.Function):
    """With `l = hidden @ weight.T / t`: d logp / d l_j = [j = chosen] - p_j, and d H / d l_j = -p_j (log p_j + H)."""

    @staticmethod
    def forward(
        ctx: _Context, hidden: Tensor, weight: Tensor, chosen: Tensor, question: _Question
    ) -> tuple[Tensor, Tensor]:
        dtype = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        logp = torch.empty(len(hidden), dtype=dtype, device=hidden.device)
        entropies = torch.zeros(len(hidden) if question.entropy else 0, dtype=dtype, device=hidden.device)
        for part in _chunks(len(hidden), len(weight)):
            all_logp = torch.log_softmax(scaled_logits(hidden[part], weight, question.temperature), dim=-1)
            logp[part] = all_logp.gather(1, chosen[part, None])[:, 0]
            if question.entropy:
                entropies[part] = -(all_logp.exp() * all_logp).sum(-1)
        ctx.save_for_backward(hidden, weight, chosen)
        ctx.question = question
        return logp, entropies

    @staticmethod
    def backward(ctx: _Context, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        hidden, weight, chosen = ctx.saved_tensors
        question = ctx.question
        to_logp, to_entropy = grads
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        grad_hidden = torch.empty_like(hidden) if wants_hidden else None
        grad_weight = torch.zeros_like(weight) if wants_weight else None
        for part in _chunks(len(hidden), len(weight)):
            all_logp = torch.log_softmax(scaled_logits(hidden[part], weight, question.temperature), dim=-1)
            p = all_logp.exp()
            grad = -p * to_logp[part, None]
            grad.scatter_add_(1, chosen[part, None], to_logp[part, None])
            if question.entropy:
                h = -(p * all_logp).sum(-1, keepdim=True)
                grad -= p * (all_logp + h) * to_entropy[part, None]
            grad = (grad / question.temperature).to(hidden.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = grad @ weight
            if grad_weight is not None:
                grad_weight.addmm_(grad.T, hidden[part])
        return grad_hidden, grad_weight, None, None
