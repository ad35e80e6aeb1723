"""Encoders and memories as data: what an image is, which encoder reads it, and the config keys that choose them.

The modules themselves are `encoders.py`. An encoder is chosen once, from the observation and the config, and is part
of a policy's inputs: its folder says how pixels are scaled, so that nobody scales them twice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, TypeAlias

import numpy as np
from pydantic import Field, JsonValue

from hone.core.config import Config
from hone.core.errors import ConfigError

EncoderName: TypeAlias = Literal["auto", "mlp", "small", "minigrid", "nature", "impala", "embedding"]
"""Name of an encoder in a config."""
WHOLE = "observation"
"""Path of an observation that is one leaf, in `network.encoders`."""
_SMALLEST_SIDE = {"small": 3, "minigrid": 5, "nature": 36, "impala": 8}
"""Pixels that the convolutions need in both directions."""


class EncoderConfig(Config):
    """Encoder of one leaf of an observation."""

    kind: EncoderName = "auto"
    """`auto`: by the leaf's shape, type and bounds. See `network.encoder`."""
    channels: Literal["auto", "first", "last"] = "auto"
    """Axis of an image's channels; `auto`: the smaller one of both ends, the last of two equal ones."""


class EncoderKeys(Config):
    """Config keys of the encoders in front of a network."""

    encoder: EncoderName = "auto"
    """Encoder of images: `nature` (Mnih et al., 2015), `impala` (Espeholt et al., 2018), `small` for sides up to 35,
    `minigrid` (one-hot planes of its three channels), `mlp` (flattened). `embedding`: a learned vector for each
    numbered state. `auto`: by the shape."""
    encoders: dict[str, EncoderConfig] = Field(default={})
    """Encoders by the path of a part of the observation, such as `image`; `observation` for one that is no dict."""
    module: str | None = None
    """Encoder of your own: `file.py:make`; `make(leaves, **kwargs)` returns a `torch.nn.Module` with `out_features`."""
    kwargs: dict[str, JsonValue] = Field(default={})
    """Passed to `module`."""


class RecurrentUnitConfig(Config):
    """A recurrent unit between the observations and the hidden layers."""

    kind: Literal["gru", "lstm"]
    """Gated recurrent unit (Cho et al., 2014) or long short-term memory (Hochreiter & Schmidhuber, 1997)."""
    units: int = Field(default=64, ge=1)
    """Numbers of the unit's output."""


class RecurrentMemoryConfig(RecurrentUnitConfig):
    """A recurrent unit for the policy, and one for the critic."""

    sequence: int = Field(default=32, ge=1)
    """Longest sequence of decisions that gradients go back through; longer pieces of episodes are cut."""


class FrameMemoryConfig(Config):
    """The newest observations of the episode, read together."""

    kind: Literal["frames"]
    """Names this alternative."""
    count: int = Field(default=4, ge=2)
    """Observations, the present one included; before the episode's begin its first is repeated."""


MemoryConfig: TypeAlias = Annotated[RecurrentMemoryConfig | FrameMemoryConfig, Field(discriminator="kind")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLayout:
    """An observation of pixels or of a grid, as the environment shows it."""

    shape: tuple[int, ...]
    """`[H, W]`, `[H, W, C]` or `[C, H, W]`."""
    divisor: float
    """Largest number of a pixel: 255 for bytes; 1 where numbers are read as they are."""
    is_bytes: bool = False
    """True if pixels are whole numbers of 8 bits."""


def encoder_from_json(spec: Mapping[str, Any]) -> "EncoderSpec":
    """The spec that `dataclasses.asdict` described. Raises KeyError, TypeError."""
    parts = tuple(encoder_from_json(part) for part in spec.get("parts", ()))
    return EncoderSpec(**{**spec, "shape": tuple(spec["shape"]), "parts": parts})


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderSpec:
    """An encoder in front of a policy's networks."""

    kind: str
    """An `EncoderName`, `module`, `parts` (of a row of several), or `numbers` (of such a part: as it is)."""
    features: int
    """Numbers that it hands to the networks."""
    shape: tuple[int, ...]
    """Shape of one observation; `()` for a numbered state."""
    divisor: float = 1.0
    """Pixels are divided by it, here and nowhere else."""
    channels: Literal["first", "last", "none"] = "none"
    """Axis of the channels."""
    count: int = 0
    """Numbered states of an embedding."""
    start: int = 0
    """Number of the first of them."""
    module: str = ""
    """`file.py:make` of a module of the user's."""
    sha256: str = ""
    """Digest of its file."""
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Arguments of the module."""
    parts: "tuple[EncoderSpec, ...]" = ()
    """Encoders of the leaves of an observation of several parts, in their order."""

    @property
    def sides(self) -> tuple[int, int]:
        """Height and width of an image."""
        first = 1 if self.channels == "first" else 0
        return self.shape[first], self.shape[first + 1]

    @property
    def planes(self) -> int:
        """Channels of one image."""
        return {"first": self.shape[0], "last": self.shape[-1], "none": 1}[self.channels]


def image_layout(shape: tuple[int, ...], dtype: np.dtype[Any], high: float) -> ImageLayout | None:
    """The image that a box of this shape, type and greatest bound holds: three axes, or two of bytes; None for other
    boxes."""
    is_bytes = dtype == np.uint8
    if not (len(shape) == 3 or (len(shape) == 2 and is_bytes)):
        return None
    return ImageLayout(shape=shape, divisor=max(float(high), 1.0) if is_bytes else 1.0, is_bytes=is_bytes)


def choose_image_encoder(image: ImageLayout, config: EncoderConfig, *, key: str) -> EncoderSpec:
    """The encoder of an image without its number of features, which `encoders.py` knows (0 here). Raises ConfigError
    naming `key` for an encoder that the image is too small for."""
    shape, channels = image.shape, config.channels
    if channels == "auto":
        channels = "first" if shape[0] < shape[-1] else "last"
    spec = EncoderSpec(
        kind="mlp", features=0, shape=shape, divisor=image.divisor, channels="none" if len(shape) == 2 else channels
    )
    least = min(spec.sides)
    kind: str = config.kind
    if kind == "auto":
        if image.is_bytes and shape == (7, 7, 3):
            kind = "minigrid"
        elif least < _SMALLEST_SIDE["small"]:
            kind = "mlp"
        else:
            kind = "nature" if least >= _SMALLEST_SIDE["nature"] else "small"
    if kind == "embedding":
        raise ConfigError(f'{key} = "embedding": it is for numbered states, and observations are images of {shape}')
    if least < _SMALLEST_SIDE.get(kind, 0):
        raise ConfigError(
            f'{key} = "{kind}": it needs images of at least {_SMALLEST_SIDE[kind]} x {_SMALLEST_SIDE[kind]}, and '
            f"observations have the shape {list(shape)} ({spec.sides[0]} x {spec.sides[1]} with channels {channels}); "
            'take "small" or "mlp", or set the axis of the channels in network.encoders'
        )
    if kind == "minigrid" and spec.planes != 3:
        raise ConfigError(
            f'{key} = "minigrid": it reads object, colour and state of each cell, three channels; observations have '
            f"{spec.planes}"
        )
    divisor = 1.0 if kind == "minigrid" else spec.divisor
    return EncoderSpec(kind=kind, features=0, shape=shape, divisor=divisor, channels=spec.channels)
