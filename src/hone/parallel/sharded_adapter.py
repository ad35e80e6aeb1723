"""A low-rank adapter whose frozen base and merged weights are cut over ranks.

A and B are small and whole on every rank. Each rank merges its part of W from its part of W0, and turns its part of the
gradient of W, which FSDP2 has summed over the rows of the batch, into its share of theirs: the shares add up.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hone.learner.low_rank_parameters import LowRankParameters
from hone.learner.share import BatchShare
from hone.models.language.lora import HeldPart, LoraAdapter
from hone.models.language.tensor_group import ProcessTensorGroup
from hone.models.language.tensor_parallel import TensorSplit
from hone.parallel.group import RankGroup
from hone.parallel.sharding import backward_passes, local_part, rank_rows


class ShardedFactors(LowRankParameters):
    """Parameter store of one rank: A, B and the whole parameters, with the gradients of all ranks."""

    def __init__(
        self,
        network: nn.Module,
        adapter: LoraAdapter,
        whole: Mapping[str, nn.Parameter],
        tensor: ProcessTensorGroup | None,
    ) -> None:
        """`tensor`: ranks that hold each layer together."""
        super().__init__(adapter, whole)
        self.network, self.tensor = network, tensor
        self.count = sum(factor.numel() for _, factor in adapter.factors())
        """Numbers of A and B, which stand before the whole parameters."""

    @contextmanager
    def collect_gradients(self) -> Iterator[None]:
        with backward_passes(self.network), super().collect_gradients():
            yield

    def gradient_of(self, weight: Tensor) -> Tensor:
        return local_part(super().gradient_of(weight))

    def reduce(self, share: BatchShare) -> None:
        super().reduce(share)
        if self.tensor is not None:  # whose ranks have other parts of the layers, and the same whole parameters
            factors = self.gradients[0][: self.count]
            factors.copy_(self.tensor.sum(factors))


def hold_part(adapter: LoraAdapter, split: TensorSplit | None, group: RankGroup) -> None:
    """Let the adapter of a decoder that was cut hold this rank's part of its weights."""
    parameters, parts = dict(adapter.decoder.named_parameters()), dict[str, HeldPart]()
    for name, base in adapter.base.items():
        rows, columns = (torch.arange(size) for size in base.shape)
        if split is not None:
            rows, columns = split.places(name, base.shape)
        parameter = parameters[name]
        parts[name] = HeldPart(
            parameter=parameter,
            merged=local_part(parameter.detach()),
            rows=rank_rows(rows, group.data.get_local_rank(), group.data.size()),
            columns=columns,
        )
    adapter.hold(parts)
    adapter.merge()
