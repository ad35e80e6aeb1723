"""Encoders of observations: convolutions, embeddings and modules of the user's, in front of a policy's networks.

Built from an `EncoderSpec`. All have orthogonal initial weights with gain sqrt(2) and biases 0, as `Mlp` has. They act
by torch without gradients, as there is no numpy form of a convolution.
"""

import copy
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from hone.control.environments.layout import Leaf
from hone.control.networks.encoding import (
    WHOLE,
    EncoderConfig,
    EncoderKeys,
    EncoderName,
    EncoderSpec,
    choose_image_encoder,
    image_layout,
)
from hone.control.networks.mlp import (
    Floats,
    ObservationInputs,
    PolicySpaces,
    leaf_columns,
    leaf_numbers,
    orthogonal,
)
from hone.core.errors import ConfigError, UserCodeError
from hone.core.random import key
from hone.process.user_files import check_reference, describe_error, load_reference, source_files, user_traceback

N = TypeVar("N", bound=nn.Module)
ONE_HOT_STATES = 64
"""Choices up to which a part of an observation is one-hot unless its encoder is named."""
EMBEDDING_FEATURES = 16
"""Numbers of the vector of a numbered state."""
MINIGRID_VALUES = (11, 6, 3)
"""Objects, colours and states of a cell of MiniGrid."""


class Encoder(nn.Module):
    """Observations `[n, *observation]` of any type -> features `[n, features]`."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__()
        self.spec = spec

    def features_of(self, seen: Tensor) -> Floats:
        """`[n, *observation]` -> `[n, features]` in numpy, without gradients."""
        with torch.no_grad():
            return self(seen.to(self.device)).float().cpu().numpy()

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next((parameter.device for parameter in self.parameters()), torch.device("cpu"))

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights; of features without weights the default."""
        return next((parameter.dtype for parameter in self.parameters()), torch.get_default_dtype())


class _ImageEncoder(Encoder):
    """Layers over an image `[n, channels, H, W]` of numbers divided by the spec's divisor."""

    def __init__(self, spec: EncoderSpec, frames: int, layers: nn.Sequential) -> None:
        """`frames` > 1: observations are `[n, frames, *image]`, whose channels are put one after another."""
        super().__init__(spec)
        self.frames, self.layers = frames, layers

    def planes(self, seen: Tensor) -> Tensor:
        """`[n, (frames,) *image]` -> `[n, channels, H, W]`."""
        x = seen.to(self.dtype).reshape(-1, self.frames, *self.spec.shape)
        if self.spec.channels == "last":
            x = x.permute(0, 1, 4, 2, 3)
        x = x.flatten(1, -3)
        return x if self.spec.divisor == 1.0 else x / self.spec.divisor

    def forward(self, seen: Tensor) -> Tensor:
        return self.layers(self.planes(seen))


class _MiniGridEncoder(_ImageEncoder):
    """Layers over the one-hot planes of MiniGrid's cells: object, colour and state are names, not brightness."""

    def planes(self, seen: Tensor) -> Tensor:
        codes = super().planes(seen)
        codes = codes.unflatten(1, (self.frames, len(MINIGRID_VALUES)))
        known = [
            codes[:, :, place, None] == torch.arange(count, device=codes.device).view(-1, 1, 1)
            for place, count in enumerate(MINIGRID_VALUES)
        ]
        return torch.cat(known, dim=2).flatten(1, 2).to(codes.dtype)


class _EmbeddingEncoder(Encoder):
    """A learned vector for each numbered state; of several frames their vectors, one after another."""

    def __init__(self, spec: EncoderSpec) -> None:
        super().__init__(spec)
        self.table = nn.Embedding(spec.count, EMBEDDING_FEATURES)

    def forward(self, seen: Tensor) -> Tensor:
        return self.table(seen.long() - self.spec.start).flatten(1)


class _RowEncoder(Encoder):
    """Encoders of the parts of a row of bytes, whose outputs are put one after another."""

    def __init__(self, spec: EncoderSpec, frames: int, leaves: Sequence[Leaf], parts: Sequence[Encoder | None]) -> None:
        """`parts`: one for each of `leaves`, None for numbers, which are read as they are."""
        super().__init__(spec)
        self.frames, self.leaves = frames, tuple(leaves)
        self.parts = nn.ModuleList(nn.Identity() if part is None else part for part in parts)

    def forward(self, seen: Tensor) -> Tensor:
        outputs: list[Tensor] = []
        for leaf, part, values in zip(self.leaves, self.parts, leaf_columns(seen, self.leaves), strict=True):
            if isinstance(part, Encoder):
                outputs.append(part(values.reshape(-1, self.frames, *leaf.shape)))
            else:
                outputs.append(leaf_numbers(values, leaf).to(self.dtype).reshape(-1, self.frames * leaf.features))
        return torch.cat(outputs, dim=1)


class UserEncoder(Encoder):
    """A module of the user's, which is called with a dict of float tensors, one a leaf of the observation."""

    def __init__(self, spec: EncoderSpec, inputs: ObservationInputs, *, seed: int, stream: str) -> None:
        """Raises UserCodeError where the user's function fails, or returns no module with `out_features`."""
        super().__init__(spec)
        self.frames, self.leaves = inputs.frames, inputs.leaves
        stack = () if self.frames == 1 else (self.frames,)
        shapes = {leaf.path: (leaf.features,) if leaf.kind == "one_hots" else leaf.shape for leaf in self.leaves}
        self.shapes = {path: (*stack, *shape) for path, shape in (shapes or {WHOLE: spec.shape}).items()}
        """Shape of each part, as the module is told and given it."""
        self.source = _read_module_source(spec.module)
        """Text of its file, which is saved with the policy."""
        make = load_reference(spec.module, kind="network.module =", prefix="hone_user_")
        if not callable(make):
            raise UserCodeError(f"network.module = {spec.module!r}: it is not a function")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(key(seed, "weights", stream) & 0x7FFFFFFF)
            made = _call(spec.module, lambda: make(dict(self.shapes), **spec.kwargs))
        match made:
            case nn.Module(out_features=int() | np.integer() as features):
                self.module: nn.Module = made
                self.out_features = int(features)
            case _:
                raise UserCodeError(
                    f"network.module = {spec.module!r}: it returned {type(made).__name__}; return a torch.nn.Module "
                    "whose attribute out_features is the number of features that it returns for an observation"
                )

    def forward(self, seen: Tensor) -> Tensor:
        if self.leaves:
            pairs = zip(self.leaves, leaf_columns(seen, self.leaves), strict=True)
            inputs = {leaf.path: leaf_numbers(values, leaf).to(self.dtype) for leaf, values in pairs}
        else:
            x = seen.to(self.dtype)
            inputs = {WHOLE: x if self.spec.divisor == 1.0 else x / self.spec.divisor}
        parts = {path: values.reshape(-1, *self.shapes[path]) for path, values in inputs.items()}
        out = _call(self.spec.module, lambda: self.module(parts))
        if not isinstance(out, Tensor) or out.shape != (len(seen), self.out_features):
            shape = list(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise UserCodeError(
                f"network.module = {self.spec.module!r}: it returned {shape} for {len(seen)} observations, expected "
                f"[{len(seen)}, {self.out_features}]"
            )
        return out


def _call(name: str, function: Callable[[], Any]) -> Any:  # noqa: ANN401 - the user's
    """Call the user's code; whatever it raises becomes UserCodeError with its part of the traceback."""
    try:
        return function()
    except Exception as error:
        raise UserCodeError(
            f"network.module = {name!r}: it failed with {describe_error(error)}", user_traceback(error)
        ) from error


def _read_module_source(reference: str) -> str:
    """Text of the file of `file.py:make`. Raises ConfigError for another form, for a file that is not there, and for
    one that imports files beside it, which a policy's folder would not have."""
    check_reference(reference, kind="network.module =", modules=False)
    path = Path(reference.rpartition(":")[0])
    others = sorted(file.name for file in source_files([reference]) if file != path.resolve())
    if others:
        raise ConfigError(
            f"network.module = {reference!r}: {path.name} imports {', '.join(others)}; a policy's folder keeps one "
            "file of code, so put all of it into one"
        )
    return path.read_text(encoding="utf-8")


# ----------------------------------------------------------------------------------------------------------------- make


def make_encoder(inputs: ObservationInputs, *, seed: int, stream: str) -> Encoder | None:
    """The encoder in front of a network, None for plain numbers. Raises UserCodeError for a module that fails."""
    if inputs.encoder is None:
        return None
    made = _build(inputs.encoder, inputs, seed=seed, stream=stream)
    if not isinstance(made, UserEncoder):
        _initialise(made, seed=seed, stream=stream)
    return made


def _build(spec: EncoderSpec, inputs: ObservationInputs, *, seed: int, stream: str) -> Encoder:
    frames = inputs.frames
    if spec.kind == "module":
        return UserEncoder(spec, inputs, seed=seed, stream=stream)
    if spec.kind == "parts":
        parts = [None if part.kind == "numbers" else _build(part, inputs, seed=0, stream="") for part in spec.parts]
        return _RowEncoder(spec, frames, inputs.leaves, parts)
    if spec.kind == "embedding":
        made: Encoder = _EmbeddingEncoder(spec)
    elif spec.kind == "minigrid":
        made = _MiniGridEncoder(spec, frames, _image_layers(spec, frames * sum(MINIGRID_VALUES)))
    else:
        made = _ImageEncoder(spec, frames, _image_layers(spec, frames * spec.planes))
    return made


def _image_layers(spec: EncoderSpec, channels: int) -> nn.Sequential:
    """Layers of a kind of encoder over `channels` planes."""
    height, width = spec.sides
    match spec.kind:
        case "mlp":
            return nn.Sequential(nn.Flatten())
        case "small":  # MinAtar (Young & Tian, 2019)
            inner = 16 * (height - 2) * (width - 2)
            return nn.Sequential(nn.Conv2d(channels, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(inner, 128), nn.ReLU())
        case "minigrid":  # MiniGrid's starter files (Chevalier-Boisvert et al., 2018)
            return nn.Sequential(
                nn.Conv2d(channels, 16, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 2), nn.ReLU(),
                nn.Conv2d(32, 64, 2), nn.ReLU(), nn.Flatten(),
            )  # fmt: skip
        case "nature":  # DQN (Mnih et al., 2015)
            height, width = ((((side - 8) // 4 + 1) - 4) // 2 + 1 - 2 for side in spec.sides)
            return nn.Sequential(
                nn.Conv2d(channels, 32, 8, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(),
                nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * height * width, 512), nn.ReLU(),
            )  # fmt: skip
        case _:
            return _impala_layers(channels, spec.sides)


@torch.no_grad()
def _initialise(encoder: nn.Module, *, seed: int, stream: str) -> None:
    """Orthogonal weights of each layer as a matrix `[out, in]` with gain sqrt(2), biases 0."""
    for name, parameter in encoder.named_parameters():
        if parameter.dim() == 1:
            parameter.zero_()
            continue
        rows = len(parameter)
        weight = orthogonal(rows, parameter.numel() // rows, seed=seed, stream=f"{stream}/{name}")
        parameter.copy_(torch.from_numpy(math.sqrt(2.0) * weight).view(parameter.shape))


class _Residual(nn.Module):
    """x + conv(relu(conv(relu(x))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.relu(self.first(F.relu(x))))


def _impala_layers(channels: int, sides: tuple[int, int]) -> nn.Sequential:
    """The residual network of IMPALA (Espeholt et al., 2018)."""
    layers: list[nn.Module] = []
    height, width = sides
    for out in (16, 32, 32):
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.MaxPool2d(3, stride=2, padding=1)]
        layers += [_Residual(out), _Residual(out)]
        channels, height, width = out, (height + 1) // 2, (width + 1) // 2
    return nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(channels * height * width, 256), nn.ReLU())


class EncodedNetwork(nn.Module):
    """A network behind an encoder of its own."""

    def __init__(self, encoder: Encoder, body: nn.Module) -> None:
        super().__init__()
        self.encoder, self.body = encoder, body

    def forward(self, seen: Tensor) -> Tensor:
        """`[n, *observation]` -> `[n, outputs]`."""
        return self.body(self.encoder(seen))


def encoded(body: N, inputs: ObservationInputs, *, seed: int, stream: str) -> "N | EncodedNetwork":
    """`body` behind the encoder of `inputs`, where there is one."""
    encoder = make_encoder(inputs, seed=seed, stream=f"{stream}/encoder")
    return body if encoder is None else EncodedNetwork(encoder, body)


def body_of(network: nn.Module) -> nn.Module:
    """The network without its encoder."""
    return network.body if isinstance(network, EncodedNetwork) else network


# --------------------------------------------------------------------------------------------------------------- choose


def encoded_spaces(spaces: PolicySpaces, network: EncoderKeys) -> PolicySpaces:
    """`spaces` whose inputs have the encoder that `network` asks for.

    Raises ConfigError for an encoder that does not fit the observation, and for paths that there are none of;
    UserCodeError for a module of the user's that fails.
    """
    inputs = spaces.inputs
    known = {leaf.path for leaf in inputs.leaves} or {WHOLE}
    if unknown := sorted(set(network.encoders) - known):
        raise ConfigError(
            f"network.encoders.{unknown[0]}: the observation has no such part; there is {', '.join(sorted(known))}"
        )
    config = network.encoders.get(WHOLE, EncoderConfig(kind=network.encoder))
    spec = _choose_parts(inputs, network) if inputs.leaves else _choose(inputs, network, config)
    if spec is None:
        return spaces
    made = _build(spec, inputs, seed=0, stream="size")
    if isinstance(made, UserEncoder):
        features = made.out_features
    else:
        with torch.no_grad():
            features = made(_first_observation(inputs, spec)).shape[1]
    encoder = replace(spec, features=features)
    return replace(spaces, inputs=replace(inputs, size=features, one_hot=False, encoder=encoder))


def _first_observation(inputs: ObservationInputs, spec: EncoderSpec) -> Tensor:
    """One observation of zeros, or of the first choices."""
    if not inputs.leaves:
        return torch.zeros((1, inputs.frames, *spec.shape)) + spec.start
    rows = np.zeros((inputs.frames, *spec.shape), np.uint8)
    for leaf in inputs.leaves:
        if leaf.kind == "one_hots":
            rows[:, leaf.offset : leaf.offset + leaf.bytes].view(leaf.dtype)[:] = leaf.starts
    return torch.from_numpy(rows)[None]


def _choose_parts(inputs: ObservationInputs, network: EncoderKeys) -> EncoderSpec | None:
    """Encoders of the parts of a row; None where all are read as numbers."""
    shape = (inputs.shown_size,)
    if network.module is not None:
        return _choose_module(network, "network.encoder", network.encoder, shape, 1.0)
    specs: list[EncoderSpec] = []
    for leaf in inputs.leaves:
        config, name = network.encoders.get(leaf.path, EncoderConfig()), f"network.encoders.{leaf.path}.kind"
        image = (
            image_layout(leaf.shape, np.dtype(leaf.dtype), max(leaf.high, default=1.0)) if leaf.kind == "box" else None
        )
        numbers = EncoderSpec(kind="numbers", features=leaf.features, shape=leaf.shape)
        is_choice = leaf.kind == "one_hots" and len(leaf.sizes) == 1
        if image is not None:
            kind = network.encoder if config.kind == "auto" else config.kind
            spec = choose_image_encoder(image, EncoderConfig(kind=kind, channels=config.channels), key=name)
            specs.append(spec if spec.kind != "mlp" else numbers)
        elif is_choice and (config.kind == "embedding" or (config.kind == "auto" and leaf.sizes[0] > ONE_HOT_STATES)):
            spec = EncoderSpec(kind="embedding", features=0, shape=(), count=leaf.sizes[0], start=leaf.starts[0])
            specs.append(spec)
        elif config.kind in {"auto", "mlp"}:
            specs.append(numbers)
        else:
            raise ConfigError(f'{name} = "{config.kind}": this part is {leaf.features} numbers; leave it out')
    if all(spec.kind == "numbers" for spec in specs):
        return None
    return EncoderSpec(kind="parts", features=0, shape=shape, parts=tuple(specs))


def framed_spaces(spaces: PolicySpaces, frames: int) -> PolicySpaces:
    """`spaces` whose networks read the newest `frames` observations together."""
    inputs = spaces.inputs
    return replace(spaces, inputs=replace(inputs, frames=frames, size=frames * inputs.size))


def _choose_module(
    network: EncoderKeys, name: str, kind: EncoderName, shape: tuple[int, ...], divisor: float
) -> EncoderSpec:
    """The user's module as an encoder. Raises ConfigError beside another encoder."""
    assert network.module is not None
    if kind != "auto":
        raise ConfigError(f'{name} = "{kind}": network.module is the encoder; leave one of both out')
    return EncoderSpec(
        kind="module",
        features=0,
        shape=shape,
        divisor=divisor,
        module=network.module,
        sha256=hashlib.sha256(_read_module_source(network.module).encode()).hexdigest(),
        kwargs=dict(network.kwargs),
    )


def _choose(inputs: ObservationInputs, network: EncoderKeys, config: EncoderConfig) -> EncoderSpec | None:
    image, name = inputs.image, "network.encoder" if WHOLE not in network.encoders else f"network.encoders.{WHOLE}.kind"
    shape, divisor = ((), 1.0) if image is None else (image.shape, image.divisor)
    if network.module is not None:
        numbers = () if inputs.one_hot else (inputs.size // inputs.frames,)
        return _choose_module(network, name, config.kind, numbers if image is None else shape, divisor)
    if network.kwargs:
        raise ConfigError("network.kwargs: they are arguments of network.module, which is not set")
    if image is not None:
        return choose_image_encoder(image, config, key=name)
    if config.kind == "embedding" and inputs.one_hot:
        states = inputs.size // inputs.frames
        return EncoderSpec(kind="embedding", features=0, shape=(), count=states, start=inputs.start)
    if config.kind in {"auto", "mlp"}:
        return None
    shown = f"{inputs.size} numbered states" if inputs.one_hot else f"{inputs.size} numbers"
    raise ConfigError(
        f'{name} = "{config.kind}": observations are {shown}; take "auto"'
        + (' or "embedding"' if inputs.one_hot else "")
    )


# --------------------------------------------------------------------------------------------------------------- acting


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedInputs(ObservationInputs):
    """Inputs of a numpy policy whose observations an encoder reads."""

    shown: ObservationInputs
    """Inputs of the policy, which may standardise parts of an observation before the encoder reads it."""
    module: Encoder

    def array(self, seen: NDArray[np.generic]) -> Floats:
        """`[n, *observation]` -> `[n, features]` float32."""
        x = torch.from_numpy(np.ascontiguousarray(seen))
        return self.module.features_of(self.shown.tensor(x))

    def frozen_copy(self) -> Self:
        """The same inputs with a copy of the weights."""
        return replace(self, module=copy.deepcopy(self.module))


def acting_inputs(inputs: ObservationInputs, network: nn.Module | None) -> ObservationInputs:
    """Inputs of a numpy policy over `network`, an encoder or a network behind one: they encode where there is one."""
    encoder = network.encoder if isinstance(network, EncodedNetwork) else network
    return EncodedInputs(size=inputs.size, shown=inputs, module=encoder) if isinstance(encoder, Encoder) else inputs
