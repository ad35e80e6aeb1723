"""Parameters of a network cut over ranks, as an optimizer sees them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.tensor import DTensor, Shard

from hone.learner.share import BatchShare
from hone.models.language.tensor_parallel import TensorSplit
from hone.parallel.group import RankGroup
from hone.parallel.sharding import backward_passes, joined_parts, local_part, own_rows, rank_rows
from hone.parallel.tree_sums import ShareSum, tree_sum

KERNEL_ELEMENTS: Final = 16
"""Multiple of elements that Adam's kernel steps without a tail, whose bits differ from those of the rest."""


class ShardedParameters:
    """Parameter store of one rank: rows of each parameter's first dimension, as FSDP2 cuts them, after a cut of the
    layers among the ranks of a tensor group, if there is one."""

    def __init__(
        self, policy: nn.Module, group: RankGroup, *, shares: Sequence[ShareSum] = (), split: TensorSplit | None = None
    ) -> None:
        """`shares`: sums over the virtual ranks of this rank, one for each sharded module; empty without them."""
        self.policy, self.group, self.shares, self.split = policy, group, shares, split
        self.names = [name for name, _ in policy.named_parameters()]
        self.parameters = list(policy.parameters())
        self.step_multiple = KERNEL_ELEMENTS if shares else 1

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        parts = {name: parameter.shape for name, parameter in zip(self.names, self.parameters, strict=True)}
        return parts if self.split is None else {name: self.split.shape(name, part) for name, part in parts.items()}

    @property
    def owned(self) -> Sequence[Tensor]:
        return [local_part(parameter.detach()) for parameter in self.parameters]

    @property
    def gradients(self) -> Sequence[Tensor]:
        pairs = [(local_part(one.detach()), one.grad) for one in self.parameters]
        return [torch.zeros_like(own) if gradient is None else local_part(gradient) for own, gradient in pairs]

    @contextmanager
    def collect_gradients(self) -> Iterator[None]:
        for parameter in self.parameters:
            parameter.grad = None
        for sums in self.shares:
            sums.clear()
        with backward_passes(self.policy):
            yield

    def reduce(self, share: BatchShare) -> None:
        """Do nothing: the gradients of a backward pass were summed in it."""

    def gradient_norm(self) -> Tensor:
        """L2 norm `[]` of the whole gradient. With virtual ranks it has the same bits on any number of ranks: squares
        are added within rows of the first dimension, and then over all rows, as binary trees."""
        everybody, gradients = self.group.everybody(), self.gradients
        kind, device = gradients[0].dtype, gradients[0].device
        if not self.shares:
            norms = [torch.linalg.vector_norm(one, dtype=torch.float64) for one in self._counted_once(gradients)]
            own = torch.stack(norms).square().sum()
            squares = [float(part[0]) for part in everybody.gather(own.cpu().numpy()[None])]
            return torch.tensor(sum(squares[1:], start=squares[0]), dtype=torch.float64, device=device).sqrt().to(kind)
        rows = [tree_sum(one.double().square().flatten(1).T) if one.dim() > 1 else one.double().square()
                for one in gradients]  # fmt: skip
        parts = [np.split(part, edges) for part, edges in zip(
            everybody.gather(torch.cat(rows).cpu().numpy()), self._row_edges(), strict=True
        )]  # fmt: skip
        whole = np.concatenate([piece for pieces in zip(*parts, strict=True) for piece in pieces])
        return tree_sum(torch.from_numpy(whole)).sqrt().to(dtype=kind, device=device)

    def dot(self, one: Tensor, other: Tensor) -> Tensor:
        sizes = [own.numel() for own in self.owned]
        products = [
            torch.dot(a.double(), b.double()) for a, b in zip(one.split(sizes), other.split(sizes), strict=True)
        ]
        own = torch.stack([*self._counted_once(products)]).sum()
        parts = [float(part[0]) for part in self.group.everybody().gather(own.cpu().numpy()[None])]
        return torch.tensor(sum(parts), dtype=torch.float64, device=one.device).to(one.dtype)

    def by_name(self, values: Sequence[Tensor]) -> dict[str, Tensor]:
        """Whole values on rank 0; empty ones on the others, which need not hold what only rank 0 saves."""
        found: dict[str, Tensor] = {}
        for name, parameter, value in zip(self.names, self.parameters, values, strict=True):
            assert isinstance(parameter, DTensor)
            placed = DTensor.from_local(
                value,
                parameter.device_mesh,
                [Shard(0)],
                run_check=False,
                shape=parameter.shape,
                stride=parameter.stride(),
            )
            whole = joined_parts(self.split, name, placed.full_tensor())
            found[name] = whole if self.group.is_driver else whole.new_empty(0)
        return found

    def shards(self, named: Mapping[str, Tensor]) -> list[Tensor]:
        return [own_rows(self.split, name, named[name], self.group) for name in self.names]

    def _counted_once(self, gradients: Sequence[Tensor]) -> Sequence[Tensor]:
        """Gradients without those that another rank of the tensor group has, too."""
        split = self.split
        if split is None or split.group.rank == 0:
            return gradients
        return [one for name, one in zip(self.names, gradients, strict=True) if split.is_cut(name)]

    def _row_edges(self) -> list[list[int]]:
        """For each rank, where the rows of the next parameter begin among those of all of them."""
        ranks = dist.get_world_size()
        counts = [
            [len(rank_rows(torch.empty(shape[0], device="meta"), rank, ranks)) for shape in self.shapes.values()]
            for rank in range(ranks)
        ]
        return [np.cumsum(row)[:-1].tolist() for row in counts]
