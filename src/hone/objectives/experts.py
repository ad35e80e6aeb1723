"""Load of a mixture of experts: the auxiliary loss that spreads it, and the step of a bias that does so without one."""

import torch
from jaxtyping import Float
from torch import Tensor

from hone.objectives.shapes import PerDecision


def load_balance(logits: Float[Tensor, "n L E"], load: Float[Tensor, "L E"]) -> PerDecision:
    """mean over layers of E sum_e load_e p_e, by decision, with p = softmax(logits) (Fedus et al., 2021).

    `logits` `[n, L, E]` are the routers' scores; `load` `[L, E]` is data: the share of the optimizer step's decisions
    that went to each expert (a layer's sum is the number of experts per token). The mean over the step's decisions is
    the loss that transformers computes for a layer; it is least, the number of experts per token, where all are equal.
    Because `load` is that of the whole step, micro-batches and ranks add up to the same gradient.
    """
    p = torch.softmax(logits, dim=-1)
    return logits.shape[-1] * (p * load.to(p.dtype)).sum(dim=-1).mean(dim=-1)


def balanced_bias(bias: Float[Tensor, " E"], load: Float[Tensor, " E"], *, rate: float) -> Float[Tensor, " E"]:
    """bias + rate sign(mean load - load), `[E]`: the next choice favours experts with less than the mean load
    (loss-free balancing, Wang et al., 2024)."""
    return bias + rate * torch.sign(load.mean() - load).to(bias.dtype)
