"""Networks that a build for several ranks cuts over them.

Of the policy rank 0 keeps a whole copy, which acts, is evaluated and saved; the learner steps its sharded twin. A
critic and a frozen reference are nowhere whole.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard

from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.learner.low_rank_parameters import LowRankParameters
from hone.learner.share import BatchShare, ParameterStore, Question
from hone.models.language.decoder_layer import ProcessTensorGroup
from hone.models.language.lora import HeldPart, LoraAdapter
from hone.models.language.scalar_head import LanguageNetwork, TokenScorer, ValueNetwork
from hone.models.language.tensor_parallel import TensorSplit, split_decoder
from hone.models.language.token_policy import TokenPolicy
from hone.parallel.group import RankGroup

# ------------------------------------------------------------------------------------------------------------ tree sums
# Sums whose bits do not depend on the number of ranks: one binary tree of neighbours over a fixed number of shares.
#
# The lower levels of the tree are sums over ranks, the upper ones over a rank's own shares. Additions of whole tensors
# have the same bits on any device and with any number of threads.


def _tree_sum(values: Tensor) -> Tensor:
    """Sum `[...]` of `values` `[n, ...]` over the first dimension: neighbours are added until one is left."""
    if not len(values):
        return values.new_zeros(values.shape[1:])
    while len(values) > 1:
        odd = values[-1:] if len(values) % 2 else values[:0]
        even = values[: len(values) - len(odd)]
        values = torch.cat([even[0::2] + even[1::2], odd])
    return values[0]


class _TreeReduceScatter:
    """Reduce-scatter for FSDP2 that adds the ranks' gradients as a tree: every rank gets all parts of its piece."""

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: object,
        async_op: bool = False,  # noqa: FBT001, FBT002 - as FSDP2 calls it
    ) -> None:
        del op, async_op
        parts = torch.empty_like(input_tensor)
        dist.all_to_all_single(parts, input_tensor, group=group)
        output_tensor.copy_(_tree_sum(parts.view(group.size(), -1)))


class _ShareSum:
    """Sum over a rank's own shares, one backward pass each: partial sums of complete subtrees, as a binary counter.

    FSDP2 calls it with what a pass adds to a gradient. It takes that away and gives the sum in the last pass.
    """

    def __init__(self, shares: int) -> None:
        self.shares = shares
        self.passes = 0
        self.partial: list[tuple[int, Tensor]] = []
        """Levels and sums of complete subtrees, the highest first."""

    def __call__(self, added: Tensor) -> None:
        self.passes += 1
        if self.shares == 1:
            return
        level, value = 0, added.clone()
        while self.partial and self.partial[-1][0] == level:
            value, level = self.partial.pop()[1] + value, level + 1
        self.partial.append((level, value))
        if self.passes % self.shares:
            added.zero_()
            return
        added.copy_(value)
        self.partial.clear()

    def clear(self) -> None:
        """Begin an optimizer step."""
        self.passes = 0
        self.partial.clear()


# ------------------------------------------------------------------------------------------------------------- sharding
# FSDP2 (`torch.distributed.fsdp.fully_shard`) on a network with a decoder, and the parts of parameters that it makes.
#
# Each layer is gathered for its forward and backward pass and cut again. Gradients of the ranks are summed, not
# averaged: the weights of a loss are those of the whole batch.


DecoderNetwork: TypeAlias = TokenPolicy | TokenScorer | ValueNetwork
"""A network that is cut: a decoder with a head."""
NETWORK_ENTRIES: Final[Mapping[type[nn.Module], Sequence[str]]] = {
    TokenPolicy: ("token_logprobs", "top_k_tokens", "chosen_experts"),
    TokenScorer: ("scores",),
    ValueNetwork: ("outputs",),
}
"""Methods of a network, beside `forward`, that compute with its parameters."""
LAYER_ENTRIES: Final = ("forward_native",)
"""The same of a layer."""


def _shard(
    network: DecoderNetwork,
    mesh: DeviceMesh,
    virtual: int = 0,
    *,
    whole: Sequence[nn.Parameter] = (),
    keep_gathered: bool = True,
) -> Sequence[_ShareSum]:
    """Cut the parameters of `network` over `mesh`, in place, but those of `whole`; returns the sums over virtual ranks,
    if there are any. Embedding, last norm and head stay gathered from a forward to a backward pass with
    `keep_gathered`; a network of which many questions need no gradient goes without."""
    entries, modules = NETWORK_ENTRIES[type(network)], [*network.decoder.layers, network]
    sums: list[_ShareSum] = []
    for module in modules:
        inner = module is not network
        cut = fully_shard(
            module, mesh=mesh, reshard_after_forward=inner or not keep_gathered, ignored_params=set(whole)
        )
        for entry in LAYER_ENTRIES if inner else entries:
            register_fsdp_forward_method(module, entry)
        cut.set_gradient_divide_factor(1.0)
        cut.set_force_sum_reduction_for_comms(True)  # gloo knows no scaled sum
        if virtual:
            sums.append(_ShareSum(virtual // mesh.size()))
            cut.set_custom_reduce_scatter(_TreeReduceScatter())  # pyright: ignore[reportArgumentType] - its base is private
            cut.set_all_reduce_hook(sums[-1])
    return sums


@contextmanager
def _backward_passes(network: nn.Module) -> Iterator[None]:
    """Context of the backward passes of one step through a sharded network."""
    with warnings.catch_warnings():
        # A layer's output may be a view. hone's layers never write into their inputs.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        yield
    _reshard(network)


def _reshard(network: nn.Module) -> None:
    """Free the gathered parameters outside of the layers, which may stay gathered after a pass without a gradient."""
    assert isinstance(network, FSDPModule)
    network.reshard()


def _joined_parts(split: TensorSplit | None, name: str, part: Tensor) -> Tensor:
    """The whole parameter `name` from the parts of a tensor group, if there is one. All its ranks call it."""
    return part if split is None else split.join(name, part)


def _own_rows(split: TensorSplit | None, name: str, whole: Tensor, group: RankGroup) -> Tensor:
    """Rows that this rank holds of the whole parameter `name`, or of its part in a tensor group."""
    part = whole if split is None else split.cut(name, whole)
    return _rank_rows(part, group.data.get_local_rank(), group.data.size())


def _rank_rows(whole: Tensor, rank: int, ranks: int) -> Tensor:
    """Rows `[n, ...]` of the first dimension that FSDP2 gives to a rank."""
    each = -(-len(whole) // ranks)
    return whole[min(rank * each, len(whole)) : min((rank + 1) * each, len(whole))]


def _local_part(tensor: Tensor) -> Tensor:
    """This rank's part, in the memory of `tensor`, which is data; a tensor that is whole here is its own part."""
    if not isinstance(tensor, DTensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()


# --------------------------------------------------------------------------------------------------- sharded parameters


KERNEL_ELEMENTS: Final = 16
"""Multiple of elements that Adam's kernel steps without a tail, whose bits differ from those of the rest."""


class _ShardedParameters:
    """Parameter store of one rank: rows of each parameter's first dimension, as FSDP2 cuts them, after a cut of the
    layers among the ranks of a tensor group, if there is one."""

    def __init__(
        self, policy: nn.Module, group: RankGroup, *, shares: Sequence[_ShareSum] = (), split: TensorSplit | None = None
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
        return [_local_part(parameter.detach()) for parameter in self.parameters]

    @property
    def gradients(self) -> Sequence[Tensor]:
        pairs = [(_local_part(one.detach()), one.grad) for one in self.parameters]
        return [torch.zeros_like(own) if gradient is None else _local_part(gradient) for own, gradient in pairs]

    @contextmanager
    def collect_gradients(self) -> Iterator[None]:
        for parameter in self.parameters:
            parameter.grad = None
        for sums in self.shares:
            sums.clear()
        with _backward_passes(self.policy):
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
        rows = [_tree_sum(one.double().square().flatten(1).T) if one.dim() > 1 else one.double().square()
                for one in gradients]  # fmt: skip
        parts = [np.split(part, edges) for part, edges in zip(
            everybody.gather(torch.cat(rows).cpu().numpy()), self._row_edges(), strict=True
        )]  # fmt: skip
        whole = np.concatenate([piece for pieces in zip(*parts, strict=True) for piece in pieces])
        return _tree_sum(torch.from_numpy(whole)).sqrt().to(dtype=kind, device=device)

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
        wholes: dict[str, Tensor] = {}
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
            whole = _joined_parts(self.split, name, placed.full_tensor())
            wholes[name] = whole if self.group.is_driver else whole.new_empty(0)
        return wholes

    def shards(self, named: Mapping[str, Tensor]) -> list[Tensor]:
        return [_own_rows(self.split, name, named[name], self.group) for name in self.names]

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
            [len(_rank_rows(torch.empty(shape[0], device="meta"), rank, ranks)) for shape in self.shapes.values()]
            for rank in range(ranks)
        ]
        return [np.cumsum(row)[:-1].tolist() for row in counts]


# ------------------------------------------------------------------------------------------------------ sharded adapter
# A low-rank adapter whose frozen base and merged weights are cut over ranks.
#
# A and B are small and whole on every rank. Each rank merges its part of W from its part of W0, and turns its part of
# the gradient of W, which FSDP2 has summed over the rows of the batch, into its share of theirs: the shares add up.


class _ShardedFactors(LowRankParameters):
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
        with _backward_passes(self.network), super().collect_gradients():
            yield

    def gradient_of(self, weight: Tensor) -> Tensor:
        return _local_part(super().gradient_of(weight))

    def reduce(self, share: BatchShare) -> None:
        super().reduce(share)
        if self.tensor is not None:  # whose ranks have other parts of the layers, and the same whole parameters
            factors = self.gradients[0][: self.count]
            factors.copy_(self.tensor.sum(factors))


def _hold_part(adapter: LoraAdapter, split: TensorSplit | None, group: RankGroup) -> None:
    """Let the adapter of a decoder that was cut hold this rank's part of its weights."""
    parameters, parts = dict(adapter.decoder.named_parameters()), dict[str, HeldPart]()
    for name, base in adapter.base.items():
        rows, columns = (torch.arange(size) for size in base.shape)
        if split is not None:
            rows, columns = split.places(name, base.shape)
        parameter = parameters[name]
        parts[name] = HeldPart(
            parameter=parameter,
            merged=_local_part(parameter.detach()),
            rows=_rank_rows(rows, group.data.get_local_rank(), group.data.size()),
            columns=columns,
        )
    adapter.hold(parts)
    adapter.merge()


# -------------------------------------------------------------------------------------------------------- sharded build


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedTwin:
    """A policy or scorer, and its twin that is trained: parameters cut over the ranks."""

    whole: LanguageNetwork
    sharded: LanguageNetwork
    split: TensorSplit | None = None
    """The cut of the twin's layers among the ranks of a tensor group."""

    def gather(self, group: RankGroup) -> None:
        """Copy the twin's weights into the whole network of rank 0, one parameter at a time."""
        with torch.no_grad():
            for name, whole, own in self._pairs():
                full = _joined_parts(self.split, name, own.full_tensor()) if isinstance(own, DTensor) else own
                if group.is_driver:
                    whole.copy_(full)
            if group.is_driver:
                for whole, own in self._factor_pairs():
                    whole.copy_(own)
            for whole, own in zip(self.whole.buffers(), self.sharded.buffers(), strict=True):
                whole.copy_(own)  # the same on every rank: biases of experts

    def scatter(self, group: RankGroup) -> None:
        """Copy the weights of rank 0's whole network into the twin, one parameter at a time."""
        adapter = self.sharded.adapter
        merged = set[int]() if adapter is None else {id(weight) for weight in adapter.weights.values()}
        with torch.no_grad():
            for name, whole, own in self._pairs():
                if id(own) in merged:
                    continue
                shape = own.shape if self.split is None else self.split.shape(name, own.shape)
                full = whole.contiguous() if group.is_driver else torch.empty(shape, dtype=own.dtype, device=own.device)
                group.copy_from_driver([full])
                part = _own_rows(self.split, name, full, group) if isinstance(own, DTensor) else full
                _local_part(own.detach()).copy_(part)
            pairs = [(whole if group.is_driver else own, own) for whole, own in self._factor_pairs()]
            pairs += [(whole if group.is_driver else own, own) for whole, own in self._buffer_pairs()]
            for other, own in pairs:
                own.copy_(other)
            group.copy_from_driver([own for _, own in pairs])
            if adapter is not None:
                adapter.merge()

    def forget_whole(self) -> None:
        """Free the whole network's weights: only rank 0 acts."""
        for parameter in self.whole.parameters():
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
        self.whole.adapter = None

    def _pairs(self) -> Iterator[tuple[str, Tensor, nn.Parameter]]:
        """Name of each parameter that changes, the whole one and the twin's."""
        _reshard(self.sharded)
        for (name, whole), own in zip(self.whole.named_parameters(), self.sharded.parameters(), strict=True):
            if own.requires_grad:
                yield name, whole.detach(), own

    def _factor_pairs(self) -> list[tuple[Tensor, Tensor]]:
        """A and B of both adapters; none without, or where the whole network was freed."""
        one, other = self.whole.adapter, self.sharded.adapter
        if other is None:
            return []
        own = [factor.detach() for _, factor in other.factors()]
        return list(zip(own if one is None else [factor.detach() for _, factor in one.factors()], own, strict=True))

    def _buffer_pairs(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.whole.buffers(), self.sharded.buffers(), strict=True))


def _unbound_question(number: int, episodes: Episodes) -> NDArray[Any]:
    """Answer of ranks that have not yet begun."""
    raise AssertionError(f"question {number} about {len(episodes)} episodes while the job is built")


@dataclass(slots=True)
class ShardedBuild:
    """Networks that a build asked for. Implements `RankedBuild`."""

    group: RankGroup
    twins: list[ShardedTwin] = field(default_factory=list[ShardedTwin])
    stores: dict[int, ParameterStore] = field(default_factory=dict[int, ParameterStore])
    """Parameters of each network that was cut, by its identity."""
    networks: list[DecoderNetwork] = field(default_factory=list[DecoderNetwork])
    """Networks that were cut: twins, and those that no rank has whole."""
    questions: list[Question] = field(default_factory=list[Question])
    """Questions that all ranks answer together."""
    ask_ranks: Callable[[int, Episodes], NDArray[Any]] = _unbound_question
    """Lets all ranks answer a question, in the driver."""

    def trained(self, policy: LanguageNetwork) -> LanguageNetwork:
        for twin in self.twins:
            if policy is twin.whole or policy is twin.sharded:
                return twin.sharded
        if id(policy) in self.stores:
            return policy
        if policy.adapter is not None:
            self._refuse_virtual("an adapter")
        # The tokenizer has no weights, and is the same object for both.
        sharded = deepcopy(policy, {id(policy.tokenizer): policy.tokenizer})
        split = self._cut(sharded, keep_gathered=True)
        self.twins.append(ShardedTwin(whole=policy, sharded=sharded, split=split))
        return sharded

    def share_out(self, network: DecoderNetwork) -> DecoderNetwork:
        self._cut(network, keep_gathered=False)
        return network

    def parameter_store(self, network: nn.Module) -> ParameterStore | None:
        if id(network) not in self.stores:
            self._refuse_virtual(type(network).__name__)
            return None
        return self.stores[id(network)]

    def question(self, ask: Question) -> Question:
        self.questions.append(ask)
        return partial(self._ask, len(self.questions) - 1)

    def _ask(self, number: int, episodes: Episodes) -> NDArray[Any]:
        return self.ask_ranks(number, episodes)

    def _cut(self, network: DecoderNetwork, *, keep_gathered: bool) -> TensorSplit | None:
        """Cut `network` in place, and make its parameter store; returns the cut of its layers, if there is one."""
        group, adapter = self.group, network.adapter if isinstance(network, TokenPolicy | TokenScorer) else None
        if network.decoder.config.experts is not None and group.tensor is not None:
            raise ConfigError(
                f"run.tensor = {group.meeting.tensor}: experts are not cut among ranks (expert parallelism is not "
                "built in); leave run.tensor out"
            )
        head = network.head_parameters() if adapter is not None and isinstance(network, TokenScorer) else {}
        split = None if group.tensor is None else split_decoder(network.decoder, group.tensor)
        learns = any(parameter.requires_grad for parameter in network.parameters())
        virtual = group.meeting.virtual if learns else 0
        sums = _shard(network, group.data, virtual, whole=[*head.values()], keep_gathered=keep_gathered)
        self.networks.append(network)
        if adapter is not None:
            _hold_part(adapter, split, group)
            self.stores[id(network)] = _ShardedFactors(network, adapter, head, group.tensor)
        elif learns:
            self.stores[id(network)] = _ShardedParameters(network, group, shares=sums, split=split)
        return split

    def _refuse_virtual(self, what: str) -> None:
        if self.group.meeting.virtual:
            raise ConfigError(
                f"run.virtual_ranks = {self.group.meeting.virtual}: this recipe trains {what}, whose gradients are "
                "added as they come; virtual ranks are for all weights of a language model; leave run.virtual_ranks out"
            )
