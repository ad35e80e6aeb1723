"""Low-rank adapters: W = W0 + scale B A, merged into the decoder's weights (Hu et al., "LoRA", 2021).

Only A `[rank, in]` and B `[out, rank]` are trained. Their gradients follow from that of the merged weight W by the
chain rule, so that the decoder, its kernels and the generation engine know nothing of adapters. W is computed from W0,
A and B after each step, never added to, so that rounding does not add up. Folders are in peft_folder.py.

A W0 in codes is not merged, since W would have to be rounded to codes: there A and B are parameters of its linear
layers (quantised_linear.py), multiplied beside it, and get their gradients from autograd.

Adapters of many tenants share one W0: they are not merged either (`beside`), and a caller multiplies them beside it,
by `added_product`. Only there may the output projection be adapted where it is the embedding.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal, Self

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from hone.core.config import Config
from hone.core.errors import ConfigError, DataError
from hone.core.random import generator
from hone.core.state import State, array, integer, number
from hone.models.language.batch_invariant import pad_to_tile
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.decoder_layer import LinearFn
from hone.models.language.quantised_linear import QuantisedProjection
from hone.models.language.transformers_decoder import TransformersDecoder, make_decoder
from hone.models.language.weight_names import CheckpointPiece, checkpoint_pieces

LinearLayer = Literal[
    "q_proj", "k_proj", "v_proj", "o_proj", "qkv_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj",
    "in_proj_qkv", "in_proj_z", "out_proj", "gate_proj", "up_proj", "down_proj", "gate_up_proj",
]  # fmt: skip
OUTPUT_LAYER: Final = "lm_head"
"""The output projection. No group holds it: adapters of the training service and of PEFT may."""
ATTENTION_LAYERS: Final[tuple[LinearLayer, ...]] = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP_LAYERS: Final[tuple[LinearLayer, ...]] = ("gate_proj", "up_proj", "down_proj")
_ATTENTION: Final = (
    *ATTENTION_LAYERS, "qkv_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "in_proj_qkv",
    "in_proj_z", "out_proj",
)  # fmt: skip
_GROUPS: Final[Mapping[str, Sequence[LinearLayer]]] = {
    "all": (*_ATTENTION, *MLP_LAYERS, "gate_up_proj"),
    "attention": _ATTENTION,
    "mlp": (*MLP_LAYERS, "gate_up_proj"),
}
"""A checkpoint that stores some of them as one (Phi-3, GLM) is adapted as PEFT does: one update of all."""


class LoraConfig(Config):
    """Train a low-rank adapter, and keep the weights of `model.path` as they are."""

    rank: int = Field(ge=1)
    """Rank of the update of each adapted weight."""
    alpha: float = Field(default=32.0, gt=0)
    """The update is B A times `alpha / rank`. With alpha fixed, the best learning rate hardly depends on the rank.
    Rank-stabilised LoRA is alpha times the root of the rank."""
    layers: Literal["all", "attention", "mlp"] | list[LinearLayer] = "all"
    """Linear layers that are adapted, in every block: a group, or names such as `["q_proj", "v_proj"]`. Embedding,
    output projection, norms, routers and experts are not."""

    def settings(self, config: ModelConfig) -> "LoraSettings":
        """The adapter of a model of this architecture. Raises ConfigError for layers that it lacks, and for
        a rank that no update of them can have."""
        wanted = set(_GROUPS[self.layers] if isinstance(self.layers, str) else self.layers)
        layers = {name: piece for name, piece in adaptable_layers(config).items() if name.rpartition(".")[2] in wanted}
        if not layers:
            raise ConfigError(
                f"model.lora.layers = {self.layers!r}: the model has no such layers that can be adapted (experts "
                'cannot); set model.lora.layers = "attention"'
            )
        sides = linear_sizes(config)
        low = {name.rpartition(".")[2]: sides[name] for name in layers if self.rank > min(sides[name])}
        if low:
            listed = ", ".join(f"{name} ({rows} x {columns})" for name, (rows, columns) in low.items())
            raise ConfigError(
                f"model.lora.rank = {self.rank} is above the smaller side of {listed}; lower it to "
                f"{min(map(min, low.values()))} or less, or leave these out of model.lora.layers"
            )
        return LoraSettings(rank=self.rank, alpha=self.alpha, layers=tuple(layers))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraSettings:
    """Shape of an adapter on one model."""

    rank: int
    alpha: float
    layers: tuple[str, ...]
    """Full names of the adapted linear layers, such as `model.layers.0.self_attn.q_proj`, in the model's order."""

    @property
    def scale(self) -> float:
        """Factor of B A."""
        return self.alpha / self.rank

    def count(self, config: ModelConfig) -> int:
        """Number of trained numbers on a model of this architecture."""
        sides = linear_sizes(config)
        return sum(self.rank * sum(sides[name]) for name in self.layers)

    def adapted_weights(self, config: ModelConfig) -> int:
        """Number of weights of the decoder's parameters that hold adapted layers."""
        pieces, sides = adaptable_layers(config), linear_sizes(config)
        held = {pieces[name].parameter_name for name in self.layers}
        return sum(math.prod(sides[name]) for name, piece in pieces.items() if piece.parameter_name in held)


def adaptable_layers(config: ModelConfig) -> dict[str, CheckpointPiece]:
    """Linear layers that an adapter can update: full name -> the part of a parameter that holds its weight. MLPs of a
    mixture of experts are none: PEFT cannot load their updates. The output projection may be the embedding
    (`tie_embeddings`): an update of it is then of the product alone, and cannot be merged."""
    ends = tuple(f".{layer}.weight" for layer in _GROUPS["all"])
    layers = {
        piece.checkpoint_name.removesuffix(".weight"): piece
        for piece in _pieces(config)
        if piece.checkpoint_name.endswith(ends) and (config.experts is None or ".self_attn." in piece.checkpoint_name)
    }
    if not config.by_texts:
        weight = "embedding.weight" if config.tie_embeddings else "head.weight"
        layers[OUTPUT_LAYER] = CheckpointPiece(
            checkpoint_name=f"{OUTPUT_LAYER}.weight", parameter_name=weight, start=0, rows=config.vocab_size
        )
    return layers


def _pieces(config: ModelConfig) -> Iterator[CheckpointPiece]:
    """Tensors of a model; of one that transformers computes, those of its module."""
    if not config.by_texts:
        yield from checkpoint_pieces(config)
        return
    with torch.device("meta"):
        decoder = make_decoder(config)
    assert isinstance(decoder, TransformersDecoder)
    yield from decoder.pieces()


def linear_sizes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Number of outputs and of inputs of each layer of `adaptable_layers`."""
    with torch.device("meta"):
        shapes = {name: parameter.shape for name, parameter in make_decoder(config).named_parameters()}
    return {name: (piece.rows, shapes[piece.parameter_name][1]) for name, piece in adaptable_layers(config).items()}


def suggested_rate_factor(width: int) -> float:
    """Best learning rate of a LoRA run with alpha 32, as a multiple of a full run's, for a model of this width.

    max(1, sqrt(width) / 6): entries of A are of size width^-1/2, so that a step of B moves W the less the wider it is.
    """
    return max(1.0, math.sqrt(width) / 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldPart:
    """The part of one of the decoder's weights that this process holds, where several hold it together."""

    parameter: nn.Parameter
    """The decoder's parameter: it takes the gradient."""
    merged: Tensor
    """The part `[n, m]` in the memory of `parameter`."""
    rows: Tensor
    """`[n]` its rows of the whole weight."""
    columns: Tensor
    """`[m]` its columns of the whole weight."""

    def rows_of(self, piece: CheckpointPiece) -> Tensor:
        """Places in the part of the rows of a layer, which are neighbours."""
        return torch.nonzero((self.rows >= piece.start) & (self.rows < piece.start + piece.rows)).flatten()


@dataclass(frozen=True, slots=True, kw_only=True)
class _LowRankUpdate:
    """The update of one linear layer."""

    piece: CheckpointPiece
    """Where the layer's weight lies in the decoder."""
    base: Tensor
    """`[out, in]` W0, or the part of it that is held here."""
    merged: Tensor
    """The decoder's weight that holds W, or the part of it that is held here."""
    rows: slice
    """The layer's rows of `merged`."""
    a: nn.Parameter
    """`[rank, in]`."""
    b: nn.Parameter
    """`[out, rank]`, its rows in the decoder's order."""
    b_rows: slice
    """Rows of B that the rows of `base` belong to."""
    a_columns: slice
    """Columns of A that the columns of `base` belong to."""

    def held(self, part: HeldPart, base: Tensor) -> "_LowRankUpdate":
        """The same update of the rows and columns in `part`, of whose weight `base` is W0."""
        places = part.rows_of(self.piece)
        rows = _run(places)
        return replace(
            self,
            base=base[rows],
            merged=part.merged,
            rows=rows,
            b_rows=_run(part.rows[places] - self.piece.start),
            a_columns=_run(part.columns),
        )


class LoraAdapter:
    """An adapter of a decoder: A and B of every adapted layer, and the weights W0 that they update.

    Made from a decoder that holds W0. From then on only the parameters that hold adapted layers take gradients; with
    `beside` none does, A and B are leaves of autograd, and the decoder stays as it is.
    """

    def __init__(
        self,
        decoder: Decoder,
        settings: LoraSettings,
        *,
        base_folder: Path,
        base_sha256: str,
        base_name: str = "",
        beside: bool = False,
    ) -> None:
        """A is 0 as well as B, until `initialise` or a folder fills them. Raises DataError for an update that cannot be
        merged."""
        if OUTPUT_LAYER in settings.layers and not beside and (decoder.config.tie_embeddings or decoder.code_bits):
            reason = "is in codes" if decoder.code_bits else "is the embedding"
            raise DataError(f"the adapter updates the output projection, which {reason}: it cannot be merged")
        if beside and (decoder.config.latent is not None or decoder.config.delta is not None):
            reason = "its keys and values are read out of the latent head by head"
            reason = reason if decoder.config.delta is None else "its states are computed for whole batches"
            raise DataError(
                f"an adapter of {decoder.config.uncompiled} cannot stand beside weights that others share: {reason}; "
                "train it in a run of its own, where it is merged"
            )
        self.decoder, self.settings = decoder, settings
        self.base_folder, self.base_sha256 = base_folder, base_sha256
        """Folder and fingerprint of the model that holds W0."""
        self.base_name = base_name or str(base_folder)
        """The model that holds W0, as the user named it: a folder, or `org/name@commit`."""
        self.starts_at_base = True
        """Whether the adapter began as 0, so that the run's initial policy is the base."""
        pieces, parameters = adaptable_layers(decoder.config), dict(decoder.named_parameters())
        held = {pieces[name].parameter_name for name in settings.layers}
        self.weights = {
            name: parameter
            for name, parameter in parameters.items()
            if name in held and not decoder.code_bits and not beside
        }
        """The decoder's parameters that hold adapted layers merged, by name."""
        self.base = {name: parameter.detach().clone() for name, parameter in self.weights.items()}
        """W0 of each of `weights`."""
        for name, parameter in parameters.items():
            parameter.requires_grad = name in self.weights
        make = partial(self._update_beside, parameters) if beside else self._update
        self.updates = {name: make(pieces[name]) for name in settings.layers}
        """The update of each adapted layer, by its full name."""
        self.layers_of = {
            name: tuple(layer for layer in settings.layers if pieces[layer].parameter_name == name) for name in held
        }
        """Adapted layers that each of `weights` holds, by its name."""
        self._updates_of: dict[int, list[_LowRankUpdate]] = {}
        """Updates of each weight that an adapter stands beside, in the order of its rows, by the weight's identity."""
        for update in self.updates.values() if beside else ():
            self._updates_of.setdefault(id(update.merged), []).append(update)

    def _update(self, piece: CheckpointPiece) -> _LowRankUpdate:
        if self.decoder.code_bits:
            return self._update_beside_codes(piece)
        base = self.base[piece.parameter_name][piece.start : piece.start + piece.rows]
        return _LowRankUpdate(
            piece=piece,
            base=base,
            merged=self.weights[piece.parameter_name],
            rows=slice(piece.start, piece.start + piece.rows),
            b_rows=slice(None),
            a_columns=slice(None),
            a=nn.Parameter(base.new_zeros(self.settings.rank, base.shape[1])),
            b=nn.Parameter(base.new_zeros(base.shape[0], self.settings.rank)),
        )

    def _update_beside(self, parameters: Mapping[str, Tensor], piece: CheckpointPiece) -> _LowRankUpdate:
        weight, rows, whole = (
            parameters[piece.parameter_name],
            slice(piece.start, piece.start + piece.rows),
            slice(None),
        )
        a = nn.Parameter(weight.new_zeros(self.settings.rank, weight.shape[1]))
        b = nn.Parameter(weight.new_zeros(piece.rows, self.settings.rank))
        return _LowRankUpdate(
            piece=piece, base=weight, merged=weight, rows=rows, a=a, b=b, b_rows=whole, a_columns=whole
        )

    def with_leaves(self) -> Self:
        """The same numbers as leaves of their own, whose gradients are then those of one use; of an adapter `beside`
        its weights."""
        twin = copy(self)
        twin.updates = {
            name: replace(one, a=nn.Parameter(one.a.detach()), b=nn.Parameter(one.b.detach()))
            for name, one in self.updates.items()
        }
        twin._updates_of = {}
        for one in twin.updates.values():
            twin._updates_of.setdefault(id(one.merged), []).append(one)
        return twin

    def factors_beside(self, weight: Tensor) -> list[tuple[slice, nn.Parameter, nn.Parameter]]:
        """Rows of a weight that the adapter stands `beside`, with A and B of each; none where it leaves it alone."""
        return [(one.rows, one.a, one.b) for one in self._updates_of.get(id(weight), ())]

    @torch.no_grad()
    def stacked_beside(self, weight: Tensor) -> tuple[Tensor, Tensor] | None:
        """A `[R, in]` and B `[out, R]`, the scale not in it, of all layers that share a weight: B has a block for each.
        None for a weight that the adapter leaves alone."""
        updates = self._updates_of.get(id(weight))
        if updates is None:
            return None
        if len(updates) == 1 and len(updates[0].b) == len(weight):
            return updates[0].a.detach(), updates[0].b.detach()
        b = weight.new_zeros(len(weight), sum(len(one.a) for one in updates))
        for one, columns in zip(updates, b.split(self.settings.rank, dim=1), strict=True):
            columns[one.rows] = one.b
        return torch.cat([one.a for one in updates]), b

    def added_product(self, x: Tensor, weight: Tensor, linear: LinearFn) -> Tensor | None:
        """scale x A^T B^T `[N, out]`, for an adapter `beside` the weight of a layer; None for one that it leaves alone.

        `x` `[N, in]`. Both products are of `linear`, on a multiple of TILE rows, so that they are as independent of the
        batch as that is.
        """
        if (stacked := self.stacked_beside(weight)) is None:
            return None
        a, b = stacked
        return linear(linear(pad_to_tile(x), a, None) * self.settings.scale, b, None)[: len(x)]

    @torch.no_grad()
    def stacked_factors(self) -> list[Tensor | None]:
        """A `[R, in]` and B `[out, R]`, the scale in it, of each weight that an adapter may stand `beside`: as compiled
        code reads them, layer after layer, and the output projection last. None twice: the weight is not adapted."""
        products = ("qkv", "out", "gate_up", "down")
        weights = [tensors[name] for tensors in self.decoder.layer_tensors() for name in products]
        factors: list[Tensor | None] = []
        for weight in [*weights, self.decoder.output_weight]:
            assert weight is not None
            a, b = self.stacked_beside(weight) or (None, None)
            factors += [a, None if b is None else b * self.settings.scale]
        return factors

    def _update_beside_codes(self, piece: CheckpointPiece) -> _LowRankUpdate:
        projection = self.decoder.get_submodule(piece.parameter_name.removesuffix(".weight"))
        assert isinstance(projection, QuantisedProjection)
        rows, codes = slice(piece.start, piece.start + piece.rows), projection.weight
        a = nn.Parameter(torch.zeros(self.settings.rank, projection.features_in, device=codes.device))
        b = nn.Parameter(torch.zeros(piece.rows, self.settings.rank, device=codes.device))
        projection.adapt(rows, a, b, self.settings.scale)
        whole = slice(None)
        return _LowRankUpdate(piece=piece, base=codes, merged=codes, rows=rows, a=a, b=b, b_rows=whole, a_columns=whole)

    @torch.no_grad()
    def hold(self, parts: Mapping[str, HeldPart]) -> None:
        """Hold a part of each of `weights` only: of W0 and of W. A and B stay whole; `merge` fills the parts."""
        self.weights = {name: parts[name].parameter for name in self.weights}
        self.base = {name: base[parts[name].rows][:, parts[name].columns] for name, base in self.base.items()}
        self.updates = {
            name: update.held(parts[update.piece.parameter_name], self.base[update.piece.parameter_name])
            for name, update in self.updates.items()
        }

    @torch.no_grad()
    def initialise(self, *, seed: int) -> Self:
        """A uniform within fan_in^-1/2, as in PEFT, and B = 0; draws depend on `seed` and the layer's name alone."""
        for name, update in self.updates.items():
            bound = update.a.shape[1] ** -0.5
            draws = generator(seed, "lora", name).random(tuple(update.a.shape), dtype=np.float32)
            update.a.copy_(torch.from_numpy((2 * draws - 1) * np.float32(bound)))
            update.b.zero_()
        return self

    def factors(self) -> Iterator[tuple[str, nn.Parameter]]:
        """A and B of every layer, by their names in a PEFT folder."""
        for name, update in self.updates.items():
            yield f"{name}.lora_A.weight", update.a
            yield f"{name}.lora_B.weight", update.b

    @torch.no_grad()
    def merge(self) -> None:
        """Write W = W0 + scale B A into the decoder; nothing where W0 is in codes.

        The product is of copies, and the sum of single additions: the bits of W are a function of W0, A and B, and not
        of where they lie in memory.
        """
        for update in self.updates.values() if self.weights else ():
            product = (update.b[update.b_rows] * self.settings.scale) @ update.a[:, update.a_columns].clone()
            torch.add(update.base, product, out=update.merged.detach()[update.rows])

    @torch.no_grad()
    def factor_gradients(self, gradients: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Gradients of the factors of all layers in some of `weights`, named as in `factors`, from theirs.

        With G that of W: dA = scale B^T G, and dB = scale G A^T. Of weights that are held in part, the gradients are
        the part's share: those of all parts add up.
        """
        scale = self.settings.scale
        for weight, whole in gradients.items():
            for name in self.layers_of[weight]:
                update = self.updates[name]
                gradient, rows, columns = whole[update.rows], update.b_rows, update.a_columns
                of_a, of_b = torch.zeros_like(update.a), torch.zeros_like(update.b)
                of_a[:, columns] = (update.b[rows] * scale).t() @ gradient
                of_b[rows] = gradient @ (update.a[:, columns] * scale).t()
                yield f"{name}.lora_A.weight", of_a
                yield f"{name}.lora_B.weight", of_b

    def state(self) -> State:
        """A and B, for a network that is saved merged."""
        return {name: factor.detach().cpu().numpy().copy() for name, factor in self.factors()}

    def packed(self) -> State:
        """Shape and numbers, for another process that has the same base; `unpacked` opens them there."""
        shape = self.settings
        numbers = torch.cat([factor.detach().flatten() for _, factor in self.factors()]).numpy()
        return {
            "rank": shape.rank, "alpha": float(shape.alpha), "layers": list(shape.layers),
            "factors": numbers,
        }  # fmt: skip

    @classmethod
    @torch.no_grad()
    def unpacked(cls, decoder: Decoder, packed: State) -> Self:
        """The adapter of `packed` beside a decoder."""
        layers = packed["layers"]
        assert isinstance(layers, list)
        settings = LoraSettings(
            rank=integer(packed, "rank"), alpha=number(packed, "alpha"), layers=tuple(map(str, layers))
        )
        adapter = cls(decoder, settings, base_folder=Path(), base_sha256="", beside=True)
        factors = [factor for _, factor in adapter.factors()]
        numbers = torch.from_numpy(array(packed, "factors").astype(np.float32))
        for factor, piece in zip(factors, numbers.split([one.numel() for one in factors]), strict=True):
            factor.copy_(piece.view_as(factor))
        return adapter

    @torch.no_grad()
    def restore(self, state: State) -> None:
        """Load A and B, and merge them. Raises DataError for those of another adapter."""
        for name, factor in self.factors():
            saved = array(state, name)
            if saved.shape != tuple(factor.shape):
                raise DataError(
                    f"the saved adapter has {name} of shape {list(saved.shape)}, this one {list(factor.shape)}: a "
                    "resumed run needs the adapter that it was started with; put model.lora back"
                )
            factor.copy_(torch.from_numpy(saved.copy()))
        self.merge()

    def base_decoder(self) -> Decoder:
        """The model without its adapter: a decoder that shares W0 and all other weights with `decoder`."""
        base = self.decoder.twin(self.base)
        for module in base.modules():
            if isinstance(module, QuantisedProjection):
                module.forget_updates()
        return base

    @torch.no_grad()
    def dense_decoder(self) -> Decoder:
        """A float32 decoder with W0, decoded, and the adapter merged. W0 is in codes."""
        dense = Decoder(self.decoder.config)
        parameters = dict(self.decoder.named_parameters())
        for name, target in dense.named_parameters():
            projection = self.decoder.get_submodule(name.rpartition(".")[0])
            if isinstance(projection, QuantisedProjection) and name.endswith(".weight"):
                target.copy_(projection.merged())
            else:
                target.copy_(parameters[name])
        return dense


def _run(places: Tensor) -> slice:
    """Neighbouring places as a slice."""
    return slice(0, 0) if not len(places) else slice(int(places[0]), int(places[-1]) + 1)


def new_adapter(
    decoder: Decoder, lora: LoraConfig, base_folder: Path, *, seed: int, base_name: str = ""
) -> LoraAdapter:
    """An adapter that changes nothing yet, of a decoder in float32 or codes that was read from `base_folder`.

    Raises ConfigError for one that does not fit.
    """
    settings, place = lora.settings(decoder.config), base_folder.resolve()
    fingerprint = weights_sha256(decoder)
    adapter = LoraAdapter(decoder, settings, base_folder=place, base_sha256=fingerprint, base_name=base_name)
    return adapter.initialise(seed=seed)


def weights_sha256(module: nn.Module) -> str:
    """Fingerprint of all weights of a module, in its order."""
    digest = sha256()
    for parameter in module.parameters():
        digest.update(parameter.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
