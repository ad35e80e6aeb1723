"""Parameters of a language model cut over ranks by FSDP2 (`torch.distributed.fsdp.fully_shard`).

Each layer is gathered for its forward and backward pass and cut again; the embedding, the last norm and the head stay
gathered from the forward to the backward pass. Gradients of the ranks are summed, not averaged: the weights of a loss
are those of the whole batch.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard

from hone.core.errors import ConfigError
from hone.models.language.tensor_parallel import TensorSplit, split_decoder
from hone.models.language.token_policy import TokenPolicy
from hone.train.learner.share import BatchShare
from hone.train.parallel.group import GroupReduction, RankGroup
from hone.train.parallel.tree_sums import ShareSum, TreeReduceScatter, tree_sum

POLICY_ENTRIES = ("token_logprobs", "top_k_tokens", "chosen_experts")
"""Methods of a policy, beside `forward`, that compute with its parameters."""
LAYER_ENTRIES = ("forward_native",)
"""The same of a layer."""
KERNEL_ELEMENTS = 16
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
        return [_local(parameter.detach()) for parameter in self.parameters]

    @property
    def gradients(self) -> Sequence[Tensor]:
        return [
            torch.zeros_like(_local(one.detach())) if one.grad is None else _local(one.grad) for one in self.parameters
        ]

    @contextmanager
    def collect_gradients(self) -> Iterator[None]:
        for parameter in self.parameters:
            parameter.grad = None
        for sums in self.shares:
            sums.clear()
        with warnings.catch_warnings():
            # A layer's output may be a view. hone's layers never write into their inputs.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
            yield
        reshard(self.policy)

    def reduce(self, share: BatchShare) -> None:
        """Do nothing: the gradients of a backward pass were summed in it."""

    def gradient_norm(self) -> Tensor:
        """L2 norm `[]` of the whole gradient. With virtual ranks it has the same bits on any number of ranks: squares
        are added within rows of the first dimension, and then over all rows, as binary trees."""
        everybody, gradients = GroupReduction(self.group.rank), self.gradients
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedTwin:
    """A policy, and its twin that is trained: parameters cut over the ranks."""

    whole: TokenPolicy
    sharded: TokenPolicy
    split: TensorSplit | None = None
    """The cut of the twin's layers among the ranks of a tensor group."""

    def pairs(self) -> Iterator[tuple[str, Tensor, DTensor]]:
        """Name of each parameter, the whole one and the sharded one."""
        reshard(self.sharded)
        for (name, whole), cut in zip(self.whole.named_parameters(), self.sharded.parameters(), strict=True):
            assert isinstance(cut, DTensor)
            yield name, whole.detach(), cut

    def gather(self, group: RankGroup) -> None:
        """Copy the twin's weights into the whole policy of rank 0, one parameter at a time."""
        with torch.no_grad():
            for name, whole, cut in self.pairs():
                full = joined_parts(self.split, name, cut.full_tensor())
                if group.is_driver:
                    whole.copy_(full)
            for whole, own in zip(self.whole.buffers(), self.sharded.buffers(), strict=True):
                whole.copy_(own)  # the same on every rank: biases of experts

    def scatter(self, group: RankGroup) -> None:
        """Copy the weights of rank 0's whole policy into the twin, one parameter at a time."""
        with torch.no_grad():
            for name, whole, cut in self.pairs():
                shape = cut.shape if self.split is None else self.split.shape(name, cut.shape)
                full = whole.contiguous() if group.is_driver else torch.empty(shape, dtype=cut.dtype, device=cut.device)
                group.copy_from_driver([full])
                _local(cut.detach()).copy_(own_rows(self.split, name, full, group))
            own = list(self.sharded.buffers())
            for whole, one in zip(self.whole.buffers(), own, strict=True):
                one.copy_(whole)
            group.copy_from_driver(own)

    def forget_whole(self) -> None:
        """Free the whole policy's weights: only rank 0 acts."""
        for parameter in self.whole.parameters():
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)


@dataclass(slots=True)
class ShardedBuild:
    """Sharded twins that a build asked for. Implements `RankedBuild`."""

    group: RankGroup
    twins: list[ShardedTwin] = field(default_factory=list[ShardedTwin])
    stores: dict[int, ShardedParameters] = field(default_factory=dict[int, ShardedParameters])
    """Parameters of each twin, by the identity of its policy."""

    def trained(self, policy: TokenPolicy) -> TokenPolicy:
        for twin in self.twins:
            if policy is twin.whole or policy is twin.sharded:
                return twin.sharded
        if policy.adapter is not None:
            self._refuse_virtual("an adapter")
            if self.group.tensor is not None:
                raise ConfigError(
                    f"run.tensor = {self.group.meeting.tensor}: an adapter's factors are whole on every rank, and its "
                    "weights cannot be cut; leave run.tensor out, or lora"
                )
            return policy
        if policy.decoder.config.experts is not None and self.group.tensor is not None:
            raise ConfigError(
                f"run.tensor = {self.group.meeting.tensor}: experts are not cut among ranks (expert parallelism is not "
                "built in); leave run.tensor out"
            )
        sharded = TokenPolicy(
            deepcopy(policy.decoder), policy.tokenizer, policy.temperature, expert_training=policy.expert_training
        )
        group = self.group
        split = None if group.tensor is None else split_decoder(sharded.decoder, group.tensor)
        sums = shard(sharded, group.data, group.meeting.virtual)
        self.stores[id(sharded)] = ShardedParameters(sharded, group, shares=sums, split=split)
        self.twins.append(ShardedTwin(whole=policy, sharded=sharded, split=split))
        return sharded

    def parameter_store(self, policy: nn.Module) -> ShardedParameters | None:
        if id(policy) not in self.stores:
            self._refuse_virtual(type(policy).__name__)
            return None
        return self.stores[id(policy)]

    def _refuse_virtual(self, what: str) -> None:
        if self.group.meeting.virtual:
            raise ConfigError(
                f"run.virtual_ranks = {self.group.meeting.virtual}: this recipe trains {what}, which every rank holds "
                "whole; virtual ranks are for the weights of a language model; leave run.virtual_ranks out"
            )


def shard(policy: TokenPolicy, mesh: DeviceMesh, virtual: int) -> Sequence[ShareSum]:
    """Cut the parameters of `policy` over `mesh`, in place; returns the sums over virtual ranks, if there are any."""
    modules: list[nn.Module] = [*policy.decoder.layers, policy]
    sums: list[ShareSum] = []
    for module in modules:
        cut = fully_shard(module, mesh=mesh)
        for entry in POLICY_ENTRIES if module is policy else LAYER_ENTRIES:
            register_fsdp_forward_method(module, entry)
        cut.set_gradient_divide_factor(1.0)
        cut.set_force_sum_reduction_for_comms(True)  # gloo knows no scaled sum
        if virtual:
            sums.append(ShareSum(virtual // mesh.size()))
            cut.set_custom_reduce_scatter(TreeReduceScatter())  # pyright: ignore[reportArgumentType] - its base is private
            cut.set_all_reduce_hook(sums[-1])
    return sums


def reshard(policy: nn.Module) -> None:
    """Free the gathered parameters outside of the layers, which may stay gathered after a pass without a gradient."""
    assert isinstance(policy, FSDPModule)
    policy.reshard()


def joined_parts(split: TensorSplit | None, name: str, part: Tensor) -> Tensor:
    """The whole parameter `name` from the parts of a tensor group, if there is one. All its ranks call it."""
    return part if split is None else split.join(name, part)


def own_rows(split: TensorSplit | None, name: str, whole: Tensor, group: RankGroup) -> Tensor:
    """Rows that this rank holds of the whole parameter `name`, or of its part in a tensor group."""
    part = whole if split is None else split.cut(name, whole)
    return rank_rows(part, group.data.get_local_rank(), group.data.size())


def rank_rows(whole: Tensor, rank: int, ranks: int) -> Tensor:
    """Rows `[n, ...]` of the first dimension that FSDP2 gives to a rank."""
    each = -(-len(whole) // ranks)
    return whole[min(rank * each, len(whole)) : min((rank + 1) * each, len(whole))]


def _local(tensor: Tensor) -> Tensor:
    """This rank's part, in the memory of `tensor`, which is data."""
    assert isinstance(tensor, DTensor)
    with torch.no_grad():
        return tensor.to_local()
