"""A value network: the critic of a token policy, a decoder of its own with a linear head.

It is asked at the position before each decision, as the policy is: the value of what was written so far.
"""

import torch
from torch import Tensor, nn

from hone.models.language.decoder import Decoder, LinearProjection
from hone.models.language.scalar_head import ScalarHeadModel
from hone.models.language.token_logprobs import at_least_float32
from hone.models.packing import PackedBatch


class ValueNetwork(nn.Module):
    """head @ h + bias of the last hidden state h: one number for each decision, or logits of the bins of its value.

    The head begins at 0: a new critic predicts the same value everywhere, which adds no noise to an advantage.
    """

    def __init__(self, decoder: Decoder, *, outputs: int) -> None:
        super().__init__()
        decoder.head = None
        self.decoder = decoder
        with decoder.device:
            self.head = LinearProjection(decoder.config.hidden_size, outputs, bias=True, dtype=decoder.dtype)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)

    def outputs(self, packed: PackedBatch, at: Tensor) -> Tensor:
        """`[n, outputs]` float32 (float64 for a float64 network), differentiable, at positions `at` `[n]`."""
        hidden = at_least_float32(self.decoder.hidden(packed)[at])
        assert self.head.bias is not None
        return hidden @ self.head.weight.to(hidden.dtype).T + self.head.bias.to(hidden.dtype)

    @torch.no_grad()
    def take_head(self, model: ScalarHeadModel) -> None:
        """Begin with the head of a scalar-head model, which has one output."""
        assert self.head.bias is not None
        self.head.weight.copy_(model.score.weight)
        if model.score.bias is not None:
            self.head.bias.copy_(model.score.bias)
