"""bfloat16 copies of a model's matrices, so that generation on a GPU computes what a mixed-precision trainer does."""

import torch
from torch import Tensor
from torch.nn import functional

from hone.engine.protocol import GenerationModel


class HalfWeights:
    """Matrices of a model in bfloat16: its own where they are, copies of float32 ones.

    Copies are refreshed in place: a recorded step reads the same memory again.
    """

    def __init__(self, model: GenerationModel) -> None:
        self._model = model
        self._copies: dict[int, Tensor] = {}

    @torch.no_grad()
    def refresh(self) -> None:
        """Read the model's present weights."""
        for _, weight in self._model.named_parameters():
            known = self._copies.get(id(weight))
            if known is None:
                self._copies[id(weight)] = weight.detach().to(torch.bfloat16)
            elif weight.dtype != torch.bfloat16:
                known.copy_(weight)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """`x [N, in] @ weight [out, in]^T + bias [out]` -> `[N, out]` bfloat16; sums are float32."""
        low = None if bias is None else self._copies[id(bias)]
        return functional.linear(x.to(torch.bfloat16), self._copies[id(weight)], low)

    def logits(self, hidden: Tensor) -> Tensor:
        """`[N, hidden_size]` -> `[N, vocab_size]` float32, not rounded to bfloat16."""
        left, right = hidden.to(torch.bfloat16), self._copies[id(self._model.output_weight)].t()
        return torch.mm(left, right, out_dtype=torch.float32) if left.is_cuda else left.float() @ right.float()


def casting_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`HalfWeights.linear` without copies: for code that torch compiles."""
    low = None if bias is None else bias.to(torch.bfloat16)
    return functional.linear(x.to(torch.bfloat16), weight.to(torch.bfloat16), low)
