"""Tensor parallelism: a decoder whose heads and MLP columns are cut among the ranks of a group.

Every rank computes its own heads and columns of each layer for the same tokens, and two sums a layer each way join them
(tensor_group.py). Norms, embedding and output projection are whole on every rank. Weights stay plain tensors; within
the fused `qkv` and `gate_up` each of q, k, v, gate and up is cut apart. A saved folder is that of one process:
`gather_weights` puts the parts together again.

The sums are in another order than those of one process: results agree to rounding, never to the bit.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hone.core.errors import ConfigError
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.decoder_layer import DecoderLayer, TensorGroup, query_key_norm_shapes


@dataclass(frozen=True, slots=True)
class _CutSections:
    """Sections of a parameter that are cut one by one."""

    dim: int
    sizes: tuple[int, ...]
    """Features of each section in the whole parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSplit:
    """The part of every parameter that a rank of `group` holds; moments of an optimizer are cut as their parameters."""

    config: ModelConfig
    """The whole model."""
    group: TensorGroup

    def is_cut(self, name: str) -> bool:
        """Whether the parameter `name` is cut; the others are whole, and the same on all ranks."""
        return self._sections(name) is not None

    def cut(self, name: str, whole: Tensor) -> Tensor:
        """A copy of this rank's part of the parameter `name`."""
        sections = self._sections(name)
        if sections is None:
            return whole.clone()
        parts = whole.split(sections.sizes, sections.dim)
        return torch.cat([part.chunk(self.group.size, sections.dim)[self.group.rank] for part in parts], sections.dim)

    def join(self, name: str, part: Tensor) -> Tensor:
        """A new tensor: the whole of the parameter `name`, from every rank's `part`. All ranks call it."""
        sections = self._sections(name)
        if sections is None:
            return part.clone()
        mine = [size // self.group.size for size in sections.sizes]
        by_rank = [one.split(mine, sections.dim) for one in self.group.gather(part)]
        return torch.cat([piece for section in zip(*by_rank, strict=True) for piece in section], sections.dim)

    def shape(self, name: str, part: torch.Size) -> torch.Size:
        """Shape of the whole parameter `name`, whose parts have the shape `part`."""
        sections = self._sections(name)
        sizes = list(part)
        if sections is not None:
            sizes[sections.dim] *= self.group.size
        return torch.Size(sizes)

    def places(self, name: str, shape: torch.Size) -> tuple[Tensor, Tensor]:
        """Rows and columns of the whole weight `name` `[rows, columns]` that this rank holds."""
        sections, sides = self._sections(name), [torch.arange(size) for size in shape]
        if sections is not None:
            parts = sides[sections.dim].split(sections.sizes)
            sides[sections.dim] = torch.cat([part.chunk(self.group.size)[self.group.rank] for part in parts])
        rows, columns = sides
        return rows, columns

    def _sections(self, name: str) -> _CutSections | None:
        c = self.config
        query, key = c.heads * c.head_dim, c.kv_heads * c.head_dim
        module, _, kind = name.rpartition(".")
        match module.rpartition(".")[2], kind:
            case "qkv", _:
                return _CutSections(0, (query, key, key))
            case "gate_up", _:
                return _CutSections(0, (c.intermediate_size, c.intermediate_size))
            case "out", "weight":
                return _CutSections(1, (query,))
            case "down", "weight":
                return _CutSections(1, (c.intermediate_size,))
            case _:
                return None


def tensor_split_faults(config: ModelConfig, ranks: int) -> Iterator[str]:
    """Reasons why a model cannot be cut among `ranks`, with the numbers."""
    if ranks == 1:
        return
    if config.experts is not None:
        yield (
            f"tensor = {ranks}: a mixture of experts ({config.family}, {config.experts.count} experts a layer) cannot "
            "be cut among ranks: expert parallelism is not built in; use tensor = 1, and ranks that cut the rows"
        )
        return
    whole = config.by_texts or config.latent is not None or config.delta is not None
    if whole or (config.qk_norm and len(query_key_norm_shapes(config)[0]) > 1) or config.qk_norm_whole:
        why = config.uncompiled if whole else "its norms of queries and keys go over all heads"
        yield f"tensor = {ranks}: a {config.family} cannot be cut among ranks: {why}; use tensor = 1"
        return
    possible = [
        n for n in range(1, config.kv_heads + 1) if not config.kv_heads % n and not config.intermediate_size % n
    ]
    remedy = f"this model can be cut among {', '.join(map(str, possible))} rank{'s' if len(possible) > 1 else ''}"
    if config.kv_heads % ranks:
        few = "fewer than" if config.kv_heads < ranks else "which is no multiple of"
        yield (
            f"tensor = {ranks}: the model has {config.kv_heads} key and value heads (num_key_value_heads), {few} "
            f"{ranks} ranks; {remedy}"
        )
    if config.intermediate_size % ranks:
        yield (
            f"tensor = {ranks}: the model's MLP has {config.intermediate_size} columns (intermediate_size), which is "
            f"no multiple of {ranks} ranks; {remedy}"
        )


@torch.no_grad()
def split_decoder(decoder: Decoder, group: TensorGroup) -> TensorSplit:
    """Keep this rank's part of a decoder's weights, in place; every rank begins with the same whole ones.

    `hidden` is then a collective call, with the same result on all ranks; the gradient of a cut parameter is that of
    its part, and of a whole one the same on all ranks. Optimizers are made afterwards; an engine needs the whole
    weights (`gather_weights`). Raises ConfigError with every reason why this model cannot be cut.
    """
    faults = list(tensor_split_faults(decoder.config, group.size))
    if decoder.exactness == "bitwise":
        faults.append(
            f"tensor = {group.size}: a model cut among ranks adds in another order than the engine, and cannot give "
            "its log-probabilities to the bit; use tensor = 1 or the usual exactness"
        )
    if decoder.tensor_group is not None:
        faults.append(f"the decoder is already cut among {decoder.tensor_group.size} ranks")
    if faults:
        raise ConfigError(*faults)
    split = TensorSplit(config=decoder.config, group=group)
    for layer in decoder.layers:
        assert isinstance(layer, DecoderLayer)
        layer.heads, layer.kv_heads = layer.heads // group.size, layer.kv_heads // group.size
        projections = {"qkv": layer.qkv, "out": layer.out, "gate_up": layer.gate_up, "down": layer.down}
        for name, projection in projections.items():
            projection.weight = _cut_parameter(split, f"{name}.weight", projection.weight)
            if projection.bias is not None:
                projection.bias = _cut_parameter(split, f"{name}.bias", projection.bias)
    decoder.tensor_group = group
    return split


def _cut_parameter(split: TensorSplit, name: str, whole: nn.Parameter) -> nn.Parameter:
    return nn.Parameter(split.cut(name, whole), requires_grad=whole.requires_grad)


@torch.no_grad()
def gather_weights(decoder: Decoder, split: TensorSplit) -> dict[str, Tensor]:
    """A copy of the whole weights by name, as `Decoder.stored_tensors` of one process; all ranks call it."""
    return {name: split.join(name, value.detach()) for name, value in decoder.named_parameters()}


@torch.no_grad()
def _load_split(decoder: Decoder, split: TensorSplit, whole: Mapping[str, Tensor]) -> None:
    """Fill this rank's part of a decoder from whole weights by name, in place."""
    for name, value in decoder.named_parameters():
        value.copy_(split.cut(name, whole[name]))
