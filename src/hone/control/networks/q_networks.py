"""Action-value networks for control: plain, dueling, distributional, with noisy weights, and discrete SAC.

Networks in torch with their target networks, and their numpy forms; targets and losses are in `objectives`.
The four extensions are independent, and Rainbow is all of them.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hone.control.networks.actor_critic import ControlPolicy
from hone.control.networks.encoders import EncodedNetwork, acting_inputs, body_of, encoded
from hone.control.networks.mlp import DiscreteActions, Floats, Mlp, MlpConfig, NumpyMlp, ObservationInputs, PolicySpaces
from hone.control.networks.numpy_memory import with_frames
from hone.control.networks.numpy_policies import (
    Array,
    BoltzmannLogits,
    Flags,
    NumpyCategoricalPolicy,
    NumpyGreedyPolicy,
    NumpyPolicy,
    require_mask,
)

# -------------------------------------------------------------------------------------------------------------- numpy q


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyNoisyMlp:
    """A `NoisyMlp` in numpy. Called without noise it is the network of the means."""

    mean: NumpyMlp
    sigma: tuple[tuple[Floats, Floats], ...]
    """Noise scales of the weight `[in, out]` and bias `[out]` of each layer."""

    def __call__(self, x: Floats) -> Floats:
        """`[n, inputs]` -> `[n, outputs]` with the mean weights."""
        return self.mean(x)

    def with_noise(self, x: Floats, noise: Floats) -> Floats:
        """`[n, inputs]` -> `[n, outputs]` with a draw of all weights for each row, `noise` `[n, noise_size]`.

        x (W + S o f_in f_out') = x W + ((x o f_in) S) o f_out, so no row's weight matrix is formed.
        """
        factors = np.sign(noise) * np.sqrt(np.abs(noise))
        start, last = 0, len(self.sigma) - 1
        for number, ((weight, offset), (spread, shift)) in enumerate(zip(self.mean.layers, self.sigma, strict=True)):
            inputs, outputs = weight.shape
            before, after = factors[:, start : start + inputs], factors[:, start + inputs : start + inputs + outputs]
            start += inputs + outputs
            spreading = (x * before) @ spread
            x = x @ weight
            x += offset + (spreading + shift) * after
            if number < last:
                x = self.mean.activate(x)
        return x


def combine_streams(streams: Tensor, mask: Tensor | None) -> Tensor:
    """Dueling streams `[n, 1 + choices, size]`, a value and advantages (Wang et al., 2016) -> `[n, choices, size]`. The
    advantages have the mean 0 over the legal choices of `mask` `[n, choices]`; None: all."""
    value, advantage = streams[:, :1], streams[:, 1:]
    if mask is None:
        return value + (advantage - advantage.mean(dim=1, keepdim=True))
    legal = mask[:, :, None].to(advantage.dtype)
    return value + (advantage - (advantage * legal).sum(dim=1, keepdim=True) / legal.sum(dim=1, keepdim=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyQNetwork:
    """Expected returns of actions from the outputs of a network."""

    network: NumpyMlp | NumpyNoisyMlp
    size: int
    """Outputs per action."""
    dueling: bool
    atoms: Floats | None
    """`[size]` support of the categorical distribution; None: the outputs are returns."""

    def __call__(self, x: Floats) -> Floats:
        """`[n, inputs]` -> `[n, choices]`."""
        return self.q_values(self.network(x))

    def q_values(self, raw: Floats) -> Floats:
        """`[n, outputs]` -> `[n, choices]`."""
        if self.size == 1 and not self.dueling:
            return raw
        streams = raw.reshape(len(raw), -1, self.size)
        if self.dueling:
            value, advantage = streams[:, :1], streams[:, 1:]
            streams = value + (advantage - advantage.mean(axis=1, keepdims=True))
        if self.atoms is None:
            return streams.mean(axis=2)
        likely = np.exp(streams - streams.max(axis=2, keepdims=True))
        return (likely @ self.atoms) / likely.sum(axis=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyNoisyPolicy:
    """Greedy with noisy weights, drawn once for all decisions of a rollout, so that exploration is consistent for a
    while (Fortunato et al., 2018). `best` uses the mean weights.
    """

    values: NumpyQNetwork
    inputs: ObservationInputs
    actions: DiscreteActions
    noise_size: int

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        drawn = draws.standard_normal(self.noise_size, dtype=np.float32)
        return np.broadcast_to(drawn, (*shape, self.noise_size))

    def decide(self, seen: Array, noise: Floats, mask: Flags | None = None) -> tuple[Array, Floats]:
        """The probability of an action is an integral over the weights, which is not computed: NaN."""
        network = self.values.network
        assert isinstance(network, NumpyNoisyMlp)
        values = self.values.q_values(network.with_noise(self.inputs.array(seen), noise))
        best = self._legal(values, mask).argmax(axis=1)
        return best + self.actions.start, np.full(len(best), np.nan, dtype=np.float32)

    def best(self, seen: Array, mask: Flags | None = None) -> Array:
        return self._legal(self.values(self.inputs.array(seen)), mask).argmax(axis=1) + self.actions.start

    def _legal(self, values: Floats, mask: Flags | None) -> Floats:
        require_mask(self.actions, mask)
        return values if mask is None else np.where(mask, values, -np.inf)


# ------------------------------------------------------------------------------------------------------- layer norm mlp
# An MLP with layer-normalised hidden layers, in torch and numpy.
#
# Layer normalisation (Ba et al., 2016) without weights of its own, before each activation. It keeps bootstrapped values
# from growing without bound (Gallici et al., Simplifying Deep Temporal Difference Learning, 2025), so that the target
# network may follow quickly.


EPSILON = 1e-5
"""Added to the variance."""


def layer_normed(x: Tensor) -> Tensor:
    """`[n, units]` -> the same with mean 0 and variance 1 in each row."""
    return F.layer_norm(x, (int(x.shape[1]),), eps=EPSILON)


def layer_normed_array(x: Floats) -> Floats:
    """The same in numpy, in place."""
    x -= x.mean(axis=1, keepdims=True)
    x /= np.sqrt(np.einsum("ij,ij->i", x, x)[:, None] / np.float32(x.shape[1]) + np.float32(EPSILON))
    return x


class LayerNormMlp(Mlp):
    """An `Mlp` with layer normalisation and the same initial weights."""

    has_kernels: ClassVar[bool] = False

    def activate(self, x: Tensor) -> Tensor:
        return super().activate(layer_normed(x))

    def to_numpy(self) -> "_NumpyLayerNormMlp":
        plain = super().to_numpy()
        return _NumpyLayerNormMlp(layers=plain.layers, relu=plain.relu)


@dataclass(frozen=True, slots=True, kw_only=True)
class _NumpyLayerNormMlp(NumpyMlp):
    """A `LayerNormMlp` in numpy."""

    def activate(self, x: Floats) -> Floats:
        x = layer_normed_array(x)
        return np.maximum(x, 0.0, out=x) if self.relu else np.tanh(x, out=x)


# ----------------------------------------------------------------------------------------------------------- q networks


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalarReturn:
    """The expected return, one number."""

    size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CategoricalReturn:
    """Logits of `size` returns at equal distances from `low` to `high` (C51, Bellemare et al., 2017)."""

    low: float
    high: float
    size: int = 51

    @property
    def support(self) -> list[float]:
        """Returns of the atoms `[atoms]`."""
        width = (self.high - self.low) / (self.size - 1)
        return [self.low + number * width for number in range(self.size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileReturn:
    """`size` quantiles of the return, at (i - 1/2) / size (QR-DQN, Dabney et al., 2018)."""

    size: int


ReturnModel: TypeAlias = ScalarReturn | CategoricalReturn | QuantileReturn
_RETURN_MODELS: dict[str, type[ReturnModel]] = {
    "mean": ScalarReturn,
    "atoms": CategoricalReturn,
    "quantiles": QuantileReturn,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QArchitecture:
    """Architecture of a Q-network."""

    outcome: ReturnModel = ScalarReturn()
    """Representation of an action's return: expected value, categorical or quantiles."""
    dueling: bool = False
    """Dueling streams: value and advantages are separate outputs of the last layer (Wang et al., 2016)."""
    sigma: float = 0.0
    """Initial scale of the weight noise (NoisyNets, Fortunato et al., 2018); 0: none."""
    layer_norm: bool = False
    """Layer normalisation of each hidden layer, before its activation."""

    def output_size(self, choices: int) -> int:
        """Outputs of the last layer."""
        return (choices + self.dueling) * self.outcome.size


PLAIN_ARCHITECTURE = QArchitecture()


class NoisyMlp(nn.Module):
    """An `Mlp` whose weights are mean + sigma * f(e_out) f(e_in)', f(e) = sign(e) sqrt|e| (Fortunato et al., 2018).

    e is one standard normal number per input and output of each layer, passed in by the caller. The means have an
    `Mlp`'s initial weights, so that without noise it is one; sigma starts at `sigma` / sqrt(inputs of the layer).
    """

    def __init__(self, mean: Mlp, *, sigma: float) -> None:
        """`mean` is the network without noise."""
        super().__init__()
        self.mean = mean
        self.sizes = [mean.layer_parameters[0][0].shape[1], *(len(bias) for _, bias in mean.layer_parameters)]
        scales = [sigma / math.sqrt(size) for size in self.sizes[:-1]]
        shapes = list(zip(self.sizes[1:], self.sizes[:-1], scales, strict=True))
        self.weights = nn.ParameterList(torch.full((rows, columns), scale) for rows, columns, scale in shapes)
        self.offsets = nn.ParameterList(torch.full((rows,), scale) for rows, _, scale in shapes)

    @property
    def noise_size(self) -> int:
        """Random numbers of one draw of all weights."""
        return sum(self.sizes[:-1]) + sum(self.sizes[1:])

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        """`[n, inputs]`, one draw `[noise_size]` for all rows -> `[n, outputs]`; None stands for zeros."""
        factors = noise.to(x.dtype)
        factors = factors.sign() * factors.abs().sqrt()
        layers = list(zip(self.mean.layers, self.weights, self.offsets, strict=True))
        start = 0
        for number, (layer, weight, offset) in enumerate(layers):
            assert isinstance(layer, nn.Linear)
            middle = start + layer.in_features
            start, before, after = middle + layer.out_features, factors[start:middle], factors[middle:][: len(offset)]
            drawn = torch.addcmul(layer.weight, weight, torch.outer(after, before))
            x = F.linear(x, drawn, torch.addcmul(layer.bias, offset, after))
            if number < len(layers) - 1:
                x = self.mean.activate(x)
        return x

    def to_numpy(self) -> NumpyNoisyMlp:
        """Numpy form for acting; on a CPU it shares memory."""
        views = [
            (weight.detach().cpu().numpy().T, offset.detach().cpu().numpy())
            for weight, offset in zip(self.weights, self.offsets, strict=True)
        ]
        return NumpyNoisyMlp(mean=self.mean.to_numpy(), sigma=tuple(views))


QBody: TypeAlias = Mlp | NoisyMlp | EncodedNetwork
"""A Q-network; behind an encoder of its own where observations are images, as the target network has other weights."""


class DqnPolicy(ControlPolicy):
    """A Q-network of the given architecture, its target network, and an exponential moving average of its weights.

    The policy that acts is the average: bootstrapped values oscillate from update to update, and the greedy action with
    them. Without `dueling`, noise and distributions it is the network of DQN (Mnih et al., 2015).
    """

    kind = "deep_values"

    def __init__(
        self, spaces: PolicySpaces, network: MlpConfig, *, seed: int, architecture: QArchitecture = PLAIN_ARCHITECTURE
    ) -> None:
        super().__init__(spaces, network)
        self.architecture = architecture
        self.action_count = spaces.choices.count
        self.values = self._make_network(seed)
        self.target = self._make_network(seed).requires_grad_(requires_grad=False)
        self.average = self._make_network(seed).requires_grad_(requires_grad=False)
        outcome = architecture.outcome
        atoms = torch.tensor(outcome.support) if isinstance(outcome, CategoricalReturn) else torch.zeros(0)
        self.register_buffer("atoms", atoms, persistent=False)

    def _make_network(self, seed: int) -> QBody:
        size, outputs = self.spaces.inputs.size, self.architecture.output_size(self.action_count)
        made = LayerNormMlp if self.architecture.layer_norm else Mlp
        plain = made(size, outputs, self.network, seed=seed, stream="values")
        body = NoisyMlp(plain, sigma=self.architecture.sigma) if self.architecture.sigma > 0 else plain
        return encoded(body, self.spaces.inputs, seed=seed, stream="values")

    @property
    def noise_size(self) -> int:
        """Random numbers of one draw of all weights; 0 without noise."""
        body = body_of(self.values)
        return body.noise_size if isinstance(body, NoisyMlp) else 0

    def return_outputs(self, seen: Tensor, noise: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Return representation `[n, choices, size]` of each action; `noise` `[noise_size]`, None: the mean weights.
        The advantages of dueling streams have the mean 0 over the legal choices of `mask` `[n, choices]`."""
        return self._return_outputs(self.values, seen, noise, mask)

    @torch.no_grad()
    def target_return_outputs(self, seen: Tensor, noise: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Return representation `[n, choices, size]` by the target network."""
        return self._return_outputs(self.target, seen, noise, mask)

    @torch.no_grad()
    def average_return_outputs(self, seen: Tensor) -> Tensor:
        """Return representation `[n, choices, size]` by the moving average, with mean weights."""
        return self._return_outputs(self.average, seen, None)

    def q_values(self, outcomes: Tensor) -> Tensor:
        """`[n, choices]` expected returns."""
        match self.architecture.outcome:
            case ScalarReturn():
                return outcomes.squeeze(-1)
            case CategoricalReturn():
                return torch.softmax(outcomes, dim=-1) @ self.get_buffer("atoms").to(outcomes.dtype)
            case QuantileReturn():
                return outcomes.mean(dim=-1)

    def _return_outputs(
        self, body: nn.Module, seen: Tensor, noise: Tensor | None, mask: Tensor | None = None
    ) -> Tensor:
        x = self.spaces.inputs.tensor(seen)
        if isinstance(body, EncodedNetwork):
            x, body = body.encoder(x), body.body
        if isinstance(body, NoisyMlp) and noise is None:
            body = body.mean
        return self._combine_dueling(body(x) if noise is None else body(x, noise), mask)

    def _combine_dueling(self, raw: Tensor, mask: Tensor | None) -> Tensor:
        """`[n, outputs]` of the last layer -> `[n, choices, size]`."""
        streams = raw.view(-1, self.action_count + self.architecture.dueling, self.architecture.outcome.size)
        return combine_streams(streams, mask) if self.architecture.dueling else streams

    def numpy_q_network(self) -> NumpyQNetwork:
        """Action values in numpy by the current weights: observations as numbers `[n, inputs]` -> `[n, choices]`."""
        return self._numpy_q_network(self.values)

    def epsilon_greedy_policy(self, epsilon: float = 0.0) -> NumpyPolicy:
        """Greedy policy with the current mean weights; with probability `epsilon` a random action."""
        return with_frames(self._greedy(self.values, epsilon), self.spaces.inputs)

    def boltzmann_policy(self, temperature: float) -> NumpyPolicy:
        """Softmax of the current values over `temperature`."""
        logits = BoltzmannLogits(values=self.numpy_q_network(), temperature=temperature)
        drawn = NumpyCategoricalPolicy(network=logits, inputs=self.acting_inputs, actions=self.spaces.choices)
        return with_frames(drawn, self.spaces.inputs)

    def exploring_policy(self) -> NumpyPolicy:
        """Policy with the current noisy weights."""
        return self._numpy_policy(self.values)

    def numpy_policy(self) -> NumpyPolicy:
        return self._numpy_policy(self.average)

    def _numpy_policy(self, network: QBody) -> NumpyPolicy:
        body = body_of(network)
        policy: NumpyPolicy = self._greedy(network)
        if isinstance(body, NoisyMlp):
            policy = NumpyNoisyPolicy(
                values=self._numpy_q_network(body), inputs=self._inputs_of(network), actions=self.spaces.choices,
                noise_size=self.noise_size,
            )  # fmt: skip
        return with_frames(policy, self.spaces.inputs)

    def _greedy(self, network: QBody, epsilon: float = 0.0) -> NumpyGreedyPolicy:
        return NumpyGreedyPolicy(
            network=self._numpy_q_network(network), inputs=self._inputs_of(network), actions=self.spaces.choices,
            epsilon=epsilon,
        )  # fmt: skip

    @property
    def acting_inputs(self) -> ObservationInputs:
        """Inputs of a numpy policy with the current weights."""
        return self._inputs_of(self.values)

    def _inputs_of(self, network: QBody) -> ObservationInputs:
        """Inputs of a numpy policy over this network."""
        return acting_inputs(self.spaces.inputs, network)

    def _numpy_q_network(self, network: QBody) -> NumpyQNetwork:
        body = body_of(network)
        assert isinstance(body, Mlp | NoisyMlp)
        atoms = (
            self.get_buffer("atoms").cpu().numpy() if isinstance(self.architecture.outcome, CategoricalReturn) else None
        )
        return NumpyQNetwork(
            network=body.to_numpy(), size=self.architecture.outcome.size, dueling=self.architecture.dueling, atoms=atoms
        )

    def extras(self) -> Mapping[str, Any]:
        shape = self.architecture
        (kind,) = (name for name, made in _RETURN_MODELS.items() if isinstance(shape.outcome, made))
        outcome = {"kind": kind, **asdict(shape.outcome)}
        return {**asdict(shape), "outcome": outcome}

    @classmethod
    def from_extras(cls, spaces: PolicySpaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        outcome = dict(extras["outcome"])
        made = _RETURN_MODELS[outcome.pop("kind")]
        shape = QArchitecture(
            outcome=made(**outcome),
            dueling=bool(extras["dueling"]),
            sigma=float(extras["sigma"]),
            layer_norm=bool(extras.get("layer_norm", False)),  # absent in older folders
        )
        return cls(spaces, network, seed=0, architecture=shape)


class DiscreteSacPolicy(ControlPolicy):
    """A softmax over actions, two Q-networks with target networks, and a temperature (discrete SAC, Christodoulou,
    2019).
    """

    kind = "soft_choices"

    def __init__(self, spaces: PolicySpaces, network: MlpConfig, *, seed: int) -> None:
        super().__init__(spaces, network)
        size, count = spaces.inputs.size, spaces.choices.count

        def made(stream: str, gain: float = 1.0) -> Mlp | EncodedNetwork:
            body = Mlp(size, count, network, seed=seed, stream=stream, gain=gain)
            return encoded(body, spaces.inputs, seed=seed, stream=stream)

        self.actor = made("actor", gain=0.01)
        self.critics = nn.ModuleList(made(f"critic{number}") for number in (1, 2))
        self.targets = nn.ModuleList(made(f"critic{number}") for number in (1, 2))
        self.targets.requires_grad_(requires_grad=False)
        self.log_temperature = nn.Parameter(torch.zeros(1))

    def logp(self, seen: Tensor, mask: Tensor | None = None) -> Tensor:
        """`[n, choices]` nats; -inf for the illegal choices of `mask` `[n, choices]`."""
        if mask is not None:
            outputs = self.actor(self.spaces.inputs.tensor(seen))
            return F.log_softmax(outputs.masked_fill(~mask, -math.inf), dim=1)
        return F.log_softmax(self.actor(self.spaces.inputs.tensor(seen)), dim=1)

    def q_values(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Both critics' values `[n, choices]`."""
        return self._twin_q_values(self.critics, seen)

    @torch.no_grad()
    def min_target_q_values(self, seen: Tensor) -> Tensor:
        """`[n, choices]` minimum of the target critics' values."""
        return torch.minimum(*self._twin_q_values(self.targets, seen))

    def numpy_policy(self) -> NumpyPolicy:
        body = body_of(self.actor)
        assert isinstance(body, Mlp)
        return NumpyCategoricalPolicy(
            network=body.to_numpy(), inputs=acting_inputs(self.spaces.inputs, self.actor), actions=self.spaces.choices
        )

    def _twin_q_values(self, critics: nn.ModuleList, seen: Tensor) -> tuple[Tensor, Tensor]:
        x = self.spaces.inputs.tensor(seen)
        first, second = critics
        return first(x), second(x)
