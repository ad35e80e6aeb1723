"""FSDP2 (`torch.distributed.fsdp.fully_shard`) on a network with a decoder, and the parts of parameters that it makes.

Each layer is gathered for its forward and backward pass and cut again. Gradients of the ranks are summed, not averaged:
the weights of a loss are those of the whole batch.
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from hone.models.language.tensor_parallel import TensorSplit
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.token_scorer import TokenScorer
from hone.models.language.value_network import ValueNetwork
from hone.parallel.group import RankGroup
from hone.parallel.tree_sums import ShareSum, TreeReduceScatter

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


def shard(
    network: DecoderNetwork,
    mesh: DeviceMesh,
    virtual: int = 0,
    *,
    whole: Sequence[nn.Parameter] = (),
    keep_gathered: bool = True,
) -> Sequence[ShareSum]:
    """Cut the parameters of `network` over `mesh`, in place, but those of `whole`; returns the sums over virtual ranks,
    if there are any. Embedding, last norm and head stay gathered from a forward to a backward pass with
    `keep_gathered`; a network of which many questions need no gradient goes without."""
    entries, modules = NETWORK_ENTRIES[type(network)], [*network.decoder.layers, network]
    sums: list[ShareSum] = []
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
            sums.append(ShareSum(virtual // mesh.size()))
            cut.set_custom_reduce_scatter(TreeReduceScatter())  # pyright: ignore[reportArgumentType] - its base is private
            cut.set_all_reduce_hook(sums[-1])
    return sums


@contextmanager
def backward_passes(network: nn.Module) -> Iterator[None]:
    """Context of the backward passes of one step through a sharded network."""
    with warnings.catch_warnings():
        # A layer's output may be a view. hone's layers never write into their inputs.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
        yield
    reshard(network)


def reshard(network: nn.Module) -> None:
    """Free the gathered parameters outside of the layers, which may stay gathered after a pass without a gradient."""
    assert isinstance(network, FSDPModule)
    network.reshard()


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


def local_part(tensor: Tensor) -> Tensor:
    """This rank's part, in the memory of `tensor`, which is data; a tensor that is whole here is its own part."""
    if not isinstance(tensor, DTensor):
        return tensor
    with torch.no_grad():
        return tensor.to_local()
