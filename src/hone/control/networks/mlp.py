"""Small networks for control: an MLP in torch and numpy, and the observation and action spaces of a policy.

Shapes, initial weights, encoding of observations. Policies are in `actor_critic.py` and its neighbours.

A rollout asks for one action at a time, where torch's overhead is five times the arithmetic. On a CPU `NumpyMlp` shares
the memory of the trained module, so that acting needs no copy of the weights.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from hone.control.environments.layout import ROW_BYTES, Leaf
from hone.control.networks.encoding import EncoderKeys, EncoderSpec, ImageLayout, MemoryConfig
from hone.core.config import Config
from hone.core.errors import ConfigError, ResourceError
from hone.core.random import generator
from hone.models.native.perceptron import PerceptronKernels, supports_bfloat16, supports_sizes

Floats = NDArray[np.float32]
GaussianForm: TypeAlias = Literal["clipped", "squashed", "unscaled"]
"""Form of a Gaussian policy over a box: scaled to the bounds and clipped there, squashed into them by tanh, or neither
scaled nor squashed."""


class MlpConfig(Config):
    """A multilayer perceptron."""

    hidden: list[Annotated[int, Field(ge=1)]] = Field(default=[64, 64])
    """Units of each hidden layer."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation between the layers."""


class GaussianMlpConfig(MlpConfig):
    """Shape of a policy's network, and form of its Gaussian over a box of actions."""

    gaussian: GaussianForm = "clipped"
    """Actions of a box are drawn from a Gaussian in [-1, 1] and scaled to the bounds: `clipped` there (with
    `env.clip_actions`), or `squashed` between them by tanh. `unscaled` draws in the environment's own units."""

    @model_validator(mode="before")
    @classmethod
    def _from_plain_network(cls, given: object) -> object:
        """A network without the form of a Gaussian has the default form."""
        return given.model_dump() if type(given) is MlpConfig else given


class EncodedMlpConfig(MlpConfig, EncoderKeys):
    """A multilayer perceptron behind an encoder of observations."""

    @model_validator(mode="before")
    @classmethod
    def _from_network_without_encoder(cls, given: object) -> object:
        """A network without keys of an encoder has the default one."""
        if isinstance(given, MlpConfig) and type(given) in {MlpConfig, GaussianMlpConfig}:
            return given.model_dump()
        return given


class PolicyNetworkConfig(GaussianMlpConfig, EncodedMlpConfig):
    """Network of a policy and its critic: encoder of observations, memory, hidden layers, form of the Gaussian."""

    memory: MemoryConfig | None = None
    """Memory of the episode so far: a recurrent unit (`gru`, `lstm`), or the newest `frames`. None: the present
    observation is all that is seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservationInputs:
    """Observation encoding: a box of numbers, flattened, one of `size` states, one-hot, or the features of an
    encoder."""

    size: int
    """Numbers that the networks read."""
    one_hot: bool = False
    start: int = 0
    """Number of the first state of a one-hot input."""
    mean: tuple[float, ...] = ()
    """Mean subtracted from each number, if given: part of the policy, so that it is saved and not updated by use."""
    scale: tuple[float, ...] = ()
    """Scale that each number is divided by, with `mean`."""
    limit: float = 0.0
    """Clipping bound of normalised numbers; 0: none."""
    image: ImageLayout | None = None
    """The image that an observation is; None: it is none."""
    encoder: EncoderSpec | None = None
    """Encoder that reads observations as they are; None: numbers go to the networks."""
    frames: int = 1
    """Newest observations of an episode that are read together, oldest first: `[n, frames, *observation]` if more than
    one."""
    leaves: tuple[Leaf, ...] = ()
    """Parts of an observation that is a row of bytes (`environments.layout`): numbers as they are, bytes of images
    divided by the largest of them, choices one-hot, bits as 0 and 1. Only numbers that are no bytes are normalised."""

    @property
    def shown_size(self) -> int:
        """Numbers of one observation as it is shown: pixels, bytes of a row, one for a numbered state."""
        if self.leaves:
            return row_bytes(self.leaves)
        if self.encoder is not None:
            return int(np.prod(self.encoder.shape))
        return 1 if self.one_hot else self.size // self.frames

    @property
    def has_scale(self) -> bool:
        """True if numbers may be standardised: not names of states, and not what an encoder reads."""
        if self.encoder is not None:
            return any(_is_float(leaf) for leaf in self.number_leaves)
        return not self.one_hot

    @property
    def number_leaves(self) -> tuple[Leaf, ...]:
        """Parts that no encoder reads."""
        if self.encoder is None:
            return self.leaves
        parts = zip(self.leaves, self.encoder.parts, strict=bool(self.encoder.parts))
        return tuple(leaf for leaf, part in parts if part.kind == "numbers")

    @property
    def number_size(self) -> int:
        """Numbers of one observation that may be standardised, and that stand beside them."""
        if self.leaves:
            return sum(leaf.features for leaf in self.number_leaves)
        return self.size // self.frames

    def tensor(self, seen: Tensor) -> Tensor:
        """`[n, *observation]` -> `[n, size]` float32; where an encoder reads it, itself with standardised parts."""
        if self.encoder is not None:
            return self._standardised_rows(seen) if self.mean else seen
        if self.frames > 1:
            return self._of_one_frame().tensor(seen.flatten(0, 1)).reshape(-1, self.size)
        if self.one_hot:
            return F.one_hot(seen.long() - self.start, self.size).to(torch.float32)
        if self.leaves:
            pairs = zip(leaf_columns(seen, self.leaves), self.leaves, strict=True)
            seen = torch.cat([leaf_numbers(values, leaf) for values, leaf in pairs], dim=1)
        flat = (seen if seen.dim() == 2 else seen.reshape(len(seen), -1)).to(torch.float32)
        if self.mean:
            flat = (flat - flat.new_tensor(self.mean)) / flat.new_tensor(self.scale)
            flat = flat.clamp_(-self.limit, self.limit) if self.limit else flat
        return flat

    def array(self, seen: NDArray[np.generic]) -> Floats:
        """`[n, *observation]` -> `[n, size]` float32, in numpy."""
        if self.frames > 1:
            return self._of_one_frame().array(seen.reshape(-1, *seen.shape[2:])).reshape(len(seen), self.size)
        if self.one_hot:
            encoded = np.zeros((len(seen), self.size), dtype=np.float32)
            encoded[np.arange(len(seen)), seen.astype(np.int64) - self.start] = 1.0
            return encoded
        flat = self.numbers(seen).reshape(len(seen), -1).astype(np.float32, copy=False)
        if self.mean:
            flat = (flat - np.array(self.mean, np.float32)) / np.array(self.scale, np.float32)
            flat = flat.clip(-self.limit, self.limit, out=flat) if self.limit else flat
        return flat

    def _of_one_frame(self) -> "ObservationInputs":
        return replace(self, frames=1, size=self.size // self.frames)

    def _standardised_rows(self, seen: Tensor) -> Tensor:
        """Rows of bytes `[n, (frames,) row_bytes]` whose floating-point numbers are standardised; the encoder reads
        them."""
        rows, first = _leaf_rows(seen, self.leaves), 0
        columns = dict(zip(self.leaves, leaf_columns(rows, self.leaves), strict=True))
        scaled: dict[Leaf, Tensor] = {}
        for leaf in self.number_leaves:
            place, first = slice(first, first + leaf.features), first + leaf.features
            if _is_float(leaf):
                values = columns[leaf]
                values = (values - values.new_tensor(self.mean[place])) / values.new_tensor(self.scale[place])
                scaled[leaf] = values.clamp(-self.limit, self.limit) if self.limit else values
        if rows.is_floating_point():
            return torch.cat([scaled.get(leaf, values) for leaf, values in columns.items()], dim=1)
        rows = rows.clone()
        for leaf, values in scaled.items():
            _leaf_values(rows, leaf).copy_(values)
        return rows.reshape(seen.shape)

    def numbers(self, seen: NDArray[np.generic]) -> NDArray[np.generic]:
        """Observations that are not one-hot as numbers, not normalised yet: `[n, number_size]` of rows with parts, of
        those that no encoder reads; others as they are."""
        return np.concatenate([_leaf_array(seen, leaf) for leaf in self.number_leaves], axis=1) if self.leaves else seen

    def with_moments(self, mean: NDArray[np.float64], scale: NDArray[np.float64], limit: float) -> "ObservationInputs":
        """The same inputs, normalised by `mean` and `scale` `[size]` where they may be."""
        if self.leaves:
            # Not bytes of images, choices or bits.
            may = [leaf.kind == "box" and np.dtype(leaf.dtype).itemsize > 1 for leaf in self.number_leaves]
            scaled = np.repeat(may, [leaf.features for leaf in self.number_leaves])
            mean, scale = np.where(scaled, mean, 0.0), np.where(scaled, scale, 1.0)
        return replace(self, mean=tuple(mean.tolist()), scale=tuple(scale.tolist()), limit=limit)

    def standardised_by(self, seen: NDArray[np.generic]) -> "ObservationInputs":
        """The same inputs, normalised by the mean and standard deviation of `seen` `[N, *observation]`.

        A constant number keeps its scale, because its variation is unknown.
        """
        if self.one_hot:
            return self
        flat = self.numbers(seen).reshape(len(seen), -1).astype(np.float64)
        varied = flat.max(axis=0) > flat.min(axis=0)  # the computed deviation of equal numbers may differ from 0
        scale = np.where(varied, np.maximum(flat.std(axis=0), 1e-6), 1.0)
        return self.with_moments(flat.mean(axis=0), scale, self.limit)


def row_bytes(leaves: Sequence[Leaf]) -> int:
    """Bytes of a row with these parts."""
    return -(-max(leaf.offset + leaf.bytes for leaf in leaves) // ROW_BYTES) * ROW_BYTES


def _is_float(leaf: Leaf) -> bool:
    """True for numbers that can hold their standardised values."""
    return leaf.kind == "box" and np.dtype(leaf.dtype).kind == "f"


def _divisor(leaf: Leaf) -> float:
    """Number that the values of a leaf are divided by: the largest byte of an image, else 1."""
    is_image = leaf.dtype == "|u1" and len(leaf.shape) == 3
    return max(leaf.high[0], 1.0) if is_image else 1.0


def _leaf_values(rows: Tensor, leaf: Leaf) -> Tensor:
    """Values `[n, count]` of a leaf in rows `[n, row_bytes]` of bytes, in their own type: a view."""
    kind = torch.from_numpy(np.zeros(1, leaf.dtype)).dtype
    return rows[:, leaf.offset : leaf.offset + leaf.bytes].view(kind)


def _leaf_rows(seen: Tensor, leaves: Sequence[Leaf]) -> Tensor:
    """Rows of bytes `[n, row_bytes]`; floats, one for each number of the leaves in their order, stay as they are."""
    if seen.is_floating_point() and seen.shape[-1] == sum(leaf.count for leaf in leaves):
        return seen
    return seen.to(torch.uint8).reshape(-1, row_bytes(leaves))


def leaf_columns(seen: Tensor, leaves: Sequence[Leaf]) -> Sequence[Tensor]:
    """Values `[n, count]` of each leaf in rows as `_leaf_rows` takes them: views."""
    rows = _leaf_rows(seen, leaves)
    if rows.is_floating_point():
        return rows.split([leaf.count for leaf in leaves], dim=1)
    return [_leaf_values(rows, leaf) for leaf in leaves]


def leaf_numbers(values: Tensor, leaf: Leaf) -> Tensor:
    """Numbers `[n, features]` float32 of the values `[n, count]` of a leaf."""
    if leaf.kind != "one_hots":
        numbers = values.to(torch.float32)
        return numbers if _divisor(leaf) == 1.0 else numbers / _divisor(leaf)
    first = np.cumsum([0, *leaf.sizes[:-1]]) - np.array(leaf.starts)
    places = values.long() + torch.from_numpy(first).to(values.device)
    zeros = torch.zeros_like(values[:, :1], dtype=torch.float32)  # a shape that an exporter does not take for constant
    return zeros.repeat(1, leaf.features).scatter_(1, places, 1.0)


def _leaf_array(rows: NDArray[np.generic], leaf: Leaf) -> Floats:
    """`leaf_numbers` in numpy, of rows `[n, row_bytes]` of bytes."""
    values = np.ascontiguousarray(rows)[:, leaf.offset : leaf.offset + leaf.bytes].view(leaf.dtype)
    if leaf.kind != "one_hots":
        numbers = values.astype(np.float32)
        return numbers if _divisor(leaf) == 1.0 else numbers / np.float32(_divisor(leaf))
    encoded = np.zeros((len(rows), leaf.features), np.float32)
    places = values + (np.cumsum([0, *leaf.sizes[:-1]]) - np.array(leaf.starts))
    np.put_along_axis(encoded, places, 1.0, axis=1)
    return encoded


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscreteActions:
    """A finite set of actions `start .. start + count - 1`."""

    count: int
    start: int = 0
    masked: bool = False
    """Whether only the legal ones of a mask are taken: the policy decides with a mask, and not without."""
    numbers: ClassVar[int] = 1
    """Numbers of an action."""
    gaussian_size: ClassVar[int] = 0

    def __str__(self) -> str:
        return f"{self.count} numbered actions"

    @property
    def outputs(self) -> int:
        """Outputs of a network for them."""
        return self.count

    @property
    def choices(self) -> tuple[int, ...]:
        """Entries of a mask for each of its finite choices, of which one has to be legal."""
        return (self.count,)

    def describe(self) -> dict[str, Any]:
        """As JSON for clients."""
        return {"first": self.start, "count": self.count}


BOUND_LIMIT = 1e30
"""Bounds of this size and more stand for none, as the largest 32-bit float does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxActions:
    """A box of actions; `shape` is that of one action, `low` and `high` are flattened."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    shape: tuple[int, ...]
    gaussian: GaussianForm = "unscaled"
    """Form of a Gaussian policy over this box; other policies do not read it."""

    choices: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        if self.gaussian not in get_args(GaussianForm):
            raise ValueError(f"unknown form of a Gaussian {self.gaussian!r}")

    def __str__(self) -> str:
        return f"a box of shape {self.shape} from {list(self.low)} to {list(self.high)}"

    @property
    def numbers(self) -> int:
        return self.size

    @property
    def outputs(self) -> int:
        return self.size

    @property
    def gaussian_size(self) -> int:
        """Standard deviations of a Gaussian policy over them."""
        return self.size

    def describe(self) -> dict[str, Any]:
        low, high = ([bound if np.isfinite(bound) else None for bound in side] for side in (self.low, self.high))
        return {"shape": list(self.shape), "low": low, "high": high}

    @property
    def size(self) -> int:
        """Number of dimensions of an action."""
        return len(self.low)

    @property
    def is_finite(self) -> bool:
        """True if all bounds are finite, and below `BOUND_LIMIT`."""
        return bool(self._bounded.all())

    @property
    def middle(self) -> Floats:
        """`[a]` centre of the box; 0 in a dimension without two finite bounds."""
        low, high = self._bounds
        return (0.5 * np.where(self._bounded, low + high, 0.0)).astype(np.float32)

    @property
    def reach(self) -> Floats:
        """`[a]` half the width of the box; 1 in a dimension without two finite bounds or without width."""
        low, high = self._bounds
        scaled = self._bounded & (high > low)
        return np.where(scaled, 0.5 * (high - low), 1.0).astype(np.float32)

    @property
    def log_volume(self) -> float:
        """Sum of the logarithms of `reach`: what a log-density in [-1, 1] loses when it is taken of the actions."""
        return float(np.log(self.reach.astype(np.float64)).sum())

    @property
    def is_unit(self) -> bool:
        """True if nothing is scaled: all bounded dimensions are [-1, 1]."""
        return bool((self.middle == 0).all() and (self.reach == 1).all())

    @property
    def _bounded(self) -> NDArray[np.bool_]:
        return (np.abs(self.low) < BOUND_LIMIT) & (np.abs(self.high) < BOUND_LIMIT)

    @property
    def _bounds(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Bounds as 32-bit floats hold them, 0 in a dimension without two finite ones."""
        low, high = (np.where(self._bounded, side, 0.0).astype(np.float32) for side in (self.low, self.high))
        return low.astype(np.float64), high.astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class BinaryActions:
    """Bits, each of which is set or not."""

    size: int
    gaussian_size: ClassVar[int] = 0

    def __str__(self) -> str:
        return f"{self.size} bits"

    @property
    def numbers(self) -> int:
        return self.size

    @property
    def outputs(self) -> int:
        return self.size

    @property
    def choices(self) -> tuple[int, ...]:
        """May a bit be 0, may it be 1."""
        return (2,) * self.size

    def describe(self) -> dict[str, Any]:
        return {"bits": self.size}


ActionFactor: TypeAlias = DiscreteActions | BinaryActions | BoxActions
"""What a factor of an action may be. A further kind is a class here with the same properties, its leaf in
`environments/layout.py`, and its head in `networks/factored.py`."""
ACTION_FACTORS: Final[tuple[type[ActionFactor], ...]] = get_args(ActionFactor)


def leaf_factors(leaf: Leaf) -> list[ActionFactor]:
    """Factors of an action in a leaf of it."""
    match leaf.kind:
        case "one_hots":
            pairs = zip(leaf.sizes, leaf.starts, strict=True)
            return [DiscreteActions(count=size, start=start) for size, start in pairs]
        case "bits":
            return [BinaryActions(size=leaf.count)]
        case "box":
            return [BoxActions(low=leaf.low, high=leaf.high, shape=(leaf.count,))]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactoredActions:
    """Actions of several factors, chosen independently given the observation: a row of numbers `[n, A]`."""

    parts: tuple[ActionFactor, ...]
    masked: bool = False
    """Whether only legal choices of a mask are taken."""

    def __str__(self) -> str:
        return f"actions of {len(self.parts)} factors ({', '.join(str(part) for part in self.parts)})"

    @property
    def size(self) -> int:
        """Numbers of an action, A."""
        return sum(part.numbers for part in self.parts)

    @property
    def outputs(self) -> int:
        """Outputs of a network for them: logits of choices and of bits, means of boxes."""
        return sum(part.outputs for part in self.parts)

    @property
    def choices(self) -> tuple[int, ...]:
        """Those of one factor after another."""
        return tuple(size for part in self.parts for size in part.choices)

    @property
    def gaussian_size(self) -> int:
        """Dimensions of the boxes among them."""
        return sum(part.gaussian_size for part in self.parts)

    def describe(self) -> dict[str, Any]:
        """As JSON for clients."""
        return {"factors": [part.describe() for part in self.parts]}


Actions: TypeAlias = DiscreteActions | BoxActions | FactoredActions


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpaces:
    """Observation and action spaces of a policy."""

    inputs: ObservationInputs
    actions: Actions

    @property
    def choices(self) -> DiscreteActions:
        """Actions of a policy that was made for finitely many."""
        assert isinstance(self.actions, DiscreteActions), "action values need a finite set of actions"
        return self.actions

    @property
    def single(self) -> DiscreteActions | BoxActions:
        """Actions of a policy over one number or one box."""
        assert not isinstance(self.actions, FactoredActions), "this recipe reads no actions of several factors"
        return self.actions

    @property
    def box(self) -> BoxActions:
        """Actions of a policy that was made for a box."""
        assert isinstance(self.actions, BoxActions)
        return self.actions


class Mlp(nn.Module):
    """`inputs -> hidden... -> outputs`, orthogonal initial weights (Saxe et al., 2014), biases 0.

    Hidden layers have gain sqrt(2), the last one `gain`: 0.01 gives a nearly uniform initial policy. Networks of 2 to 7
    hidden layers run in compiled kernels on processors with AVX2, AVX-512 or AMX.
    """

    has_kernels: ClassVar[bool] = True
    """True if compiled kernels compute the same as this class."""

    def __init__(
        self, inputs: int, outputs: int, config: MlpConfig, *, seed: int, stream: str, gain: float = 1.0
    ) -> None:
        super().__init__()
        self.relu = config.activation == "relu"
        linear = [nn.Linear(a, b) for a, b in pairwise([inputs, *config.hidden, outputs])]
        self.layers = nn.ModuleList(linear)
        # Beside the modules, which are slow to look up: a small network's step is mostly overhead.
        self.layer_parameters = [(layer.weight, layer.bias) for layer in linear]
        """Weight `[out, in]` and bias `[out]` of each layer."""
        fits = self.has_kernels and supports_sizes([inputs, *config.hidden, outputs])
        self.kernels = PerceptronKernels(self.layer_parameters, relu=self.relu) if fits else None
        with torch.no_grad():
            for number, layer in enumerate(linear):
                scale = gain if number == len(config.hidden) else math.sqrt(2.0)
                weight = orthogonal(layer.out_features, layer.in_features, seed=seed, stream=f"{stream}/{number}")
                layer.weight.copy_(torch.from_numpy(scale * weight))
                layer.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """`[n, inputs]` -> `[n, outputs]`."""
        if self.kernels is not None and self.kernels.supports(x):
            return self.kernels(x)
        *hidden, (last, offset) = self.layer_parameters
        for weight, bias in hidden:
            x = self.activate(F.linear(x, weight, bias))
        return F.linear(x, last, offset)

    def activate(self, x: Tensor) -> Tensor:
        """Activation of a hidden layer `[n, units]`; in place, as nothing else needs the linear layer's output."""
        return x.relu_() if self.relu else x.tanh_()

    def forward_frozen(self, x: Tensor) -> Tensor:
        """`forward` with gradients with respect to `x` only."""
        if self.kernels is not None and self.kernels.supports(x):
            return self.kernels(x, frozen=True)
        *hidden, (last, offset) = self.layer_parameters
        for weight, bias in hidden:
            x = self.activate(F.linear(x, weight.detach(), bias.detach()))
        return F.linear(x, last.detach(), offset.detach())

    def to_numpy(self) -> "NumpyMlp":
        """Numpy form for acting; on a CPU it shares memory, and follows every update of the weights."""
        views = [(_view(weight).T, _view(bias)) for weight, bias in self.layer_parameters]
        return NumpyMlp(layers=tuple(views), relu=self.relu)


def use_bfloat16_products(policy: nn.Module) -> None:
    """Let the hidden layers of all compiled ReLU networks of a policy multiply numbers rounded to bfloat16.

    Raises ConfigError where it has no such network, and ResourceError on a processor without such products.
    """
    key = 'learner.products = "bfloat16"'
    networks = [module for module in policy.modules() if isinstance(module, Mlp)]
    kernels = [network.kernels for network in networks if network.relu and network.kernels is not None]
    if not kernels or not all(one.parameters[0].is_cpu for one in kernels):
        raise ConfigError(
            f"{key} needs a ReLU network on the CPU without layer normalisation, of 2 to 7 hidden layers of 32 to 1024 "
            f'units; set network.activation = "relu", network.layer_norm = false where the recipe has it, '
            f'run.device = "cpu" and network.hidden so, or learner.products = "float32"'
        )
    if not supports_bfloat16():
        raise ResourceError(
            f"{key} needs a processor with AVX-512 BF16 or AMX, and a C++ compiler at the first use; this machine has "
            f'not both, or HONE_NATIVE or HONE_NATIVE_ISA forbids it; learner.products = "float32" runs everywhere'
        )
    for one in kernels:
        one.use_bfloat16()


def _view(tensor: Tensor) -> Floats:
    return tensor.detach().cpu().numpy()


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyMlp:
    """An `Mlp` in numpy."""

    layers: tuple[tuple[Floats, Floats], ...]
    """Weight `[in, out]` and bias `[out]` of each layer."""
    relu: bool

    def __call__(self, x: Floats) -> Floats:
        """`[n, inputs]` -> `[n, outputs]`."""
        *hidden, (last, offset) = self.layers
        for weight, bias in hidden:
            x = x @ weight
            x += bias
            x = self.activate(x)
        return x @ last + offset

    def activate(self, x: Floats) -> Floats:
        """Activation of a hidden layer, in place."""
        return np.maximum(x, 0.0, out=x) if self.relu else np.tanh(x, out=x)


def orthogonal(rows: int, columns: int, *, seed: int, stream: str) -> Floats:
    """A random matrix `[rows, columns]` with orthonormal rows or columns, whichever are fewer."""
    draws = generator(seed, "weights", stream).standard_normal((max(rows, columns), min(rows, columns)))
    basis, triangle = np.linalg.qr(draws)
    basis = basis * np.sign(np.diag(triangle))  # makes the decomposition unique, and the draw uniform (Mezzadri, 2007)
    return (basis if rows >= columns else basis.T).astype(np.float32)
