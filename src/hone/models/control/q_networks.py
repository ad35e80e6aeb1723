"""Action-value networks for control: plain, dueling, as distributions, with noise in the weights.

Belongs here: what such a network says of every choice, in torch, and the slow copy of it. Its numpy mirror and deciding
by it are `acting_values.py`; targets and losses are in `objectives`. The four ways are independent of one another, and
Rainbow is all of them.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hone.models.control.actor_critic import Policy
from hone.models.control.layer_norm_mlp import NormedMlp
from hone.models.control.mlp import Choices, Mlp, MlpConfig, Spaces
from hone.models.control.numpy_policies import ActCategorical, ActGreedy, Acting
from hone.models.control.numpy_q import ActNoisy, NumpyNoisyMlp, NumpyValues


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """The expected return, one number."""

    size: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Atoms:
    """Logits of `size` returns at equal distances from `low` to `high` (C51, Bellemare et al., 2017)."""

    low: float
    high: float
    size: int = 51

    @property
    def values(self) -> list[float]:
        width = (self.high - self.low) / (self.size - 1)
        return [self.low + number * width for number in range(self.size)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """`size` quantiles of the return, at (i - 1/2) / size (QR-DQN, Dabney et al., 2018)."""

    size: int


Outcome: TypeAlias = Mean | Atoms | Quantiles
OUTCOMES: dict[str, type[Outcome]] = {"mean": Mean, "atoms": Atoms, "quantiles": Quantiles}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How action values are made."""

    outcome: Outcome = Mean()
    """What is said of the return of a choice."""
    dueling: bool = False
    """Value and advantages are two streams of the last layer (Wang et al., 2016)."""
    sigma: float = 0.0
    """Initial scale of the noise in the weights (NoisyNets, Fortunato et al., 2018); 0: none."""
    layer_norm: bool = False
    """Whether each hidden layer is normalised, before its activation."""

    def outputs(self, choices: int) -> int:
        """Numbers that the last layer gives."""
        return (choices + self.dueling) * self.outcome.size


PLAIN = Shape()


class NoisyMlp(nn.Module):
    """An `Mlp` whose weights are mean + sigma * f(e_out) f(e_in)', f(e) = sign(e) sqrt|e| (Fortunato et al., 2018).

    e is one standard normal number per input and output of each layer, and is given, never drawn here. The means begin
    as an `Mlp`'s weights do, so that without noise it is one; sigma begins at `sigma` / sqrt(inputs of the layer).
    """

    def __init__(self, mean: Mlp, *, sigma: float) -> None:
        """`mean` is the network without noise."""
        super().__init__()
        self.mean = mean
        self.sizes = [mean.numbers[0][0].shape[1], *(len(bias) for _, bias in mean.numbers)]
        scales = [sigma / math.sqrt(size) for size in self.sizes[:-1]]
        shapes = list(zip(self.sizes[1:], self.sizes[:-1], scales, strict=True))
        self.weights = nn.ParameterList(torch.full((rows, columns), scale) for rows, columns, scale in shapes)
        self.offsets = nn.ParameterList(torch.full((rows,), scale) for rows, _, scale in shapes)

    @property
    def noise_size(self) -> int:
        """Random numbers of one draw of all weights."""
        return sum(self.sizes[:-1]) + sum(self.sizes[1:])

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        """`[n, inputs]`, one draw `[noise_size]` for all rows -> `[n, outputs]`; no noise at all: zeros."""
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
                x = self.mean.activated(x)
        return x

    def numpy(self) -> NumpyNoisyMlp:
        """The mirror for acting; on a CPU it shares memory."""
        views = [
            (weight.detach().cpu().numpy().T, offset.detach().cpu().numpy())
            for weight, offset in zip(self.weights, self.offsets, strict=True)
        ]
        return NumpyNoisyMlp(mean=self.mean.numpy(), sigma=tuple(views))


class DeepValues(Policy):
    """What every choice is worth, as its `shape` says, a slow copy of it, and an average of it over the updates.

    It is the average that acts: values that chase their own targets sway from update to update, and the greatest of
    them with them. Without `dueling`, noise and distributions it is the network of DQN (Mnih et al., 2015).
    """

    kind = "deep_values"

    def __init__(self, spaces: Spaces, network: MlpConfig, *, seed: int, shape: Shape = PLAIN) -> None:
        super().__init__(spaces, network)
        assert isinstance(spaces.actions, Choices), "action values need a finite set of actions"
        self.shape = shape
        self.choices = spaces.actions.count
        self.values = self._body(seed)
        self.target = self._body(seed).requires_grad_(requires_grad=False)
        self.average = self._body(seed).requires_grad_(requires_grad=False)
        outcome = shape.outcome
        atoms = torch.tensor(outcome.values) if isinstance(outcome, Atoms) else torch.zeros(0)
        self.register_buffer("atoms", atoms, persistent=False)

    def _body(self, seed: int) -> Mlp | NoisyMlp:
        size, outputs = self.spaces.inputs.size, self.shape.outputs(self.choices)
        made = NormedMlp if self.shape.layer_norm else Mlp
        body = made(size, outputs, self.network, seed=seed, stream="values")
        return NoisyMlp(body, sigma=self.shape.sigma) if self.shape.sigma > 0 else body

    @property
    def noise_size(self) -> int:
        """Random numbers of one draw of all weights; 0 without noise."""
        return self.values.noise_size if isinstance(self.values, NoisyMlp) else 0

    def outcomes(self, seen: Tensor, noise: Tensor | None = None) -> Tensor:
        """`[n, choices, size]`: what is said of each choice's return; `noise` `[noise_size]`, None: the means."""
        return self._outcomes(self.values, seen, noise)

    @torch.no_grad()
    def slow_outcomes(self, seen: Tensor, noise: Tensor | None = None) -> Tensor:
        """The same of the slow copy."""
        return self._outcomes(self.target, seen, noise)

    @torch.no_grad()
    def average_outcomes(self, seen: Tensor) -> Tensor:
        """The same of the average, which acts, by the means of its weights."""
        return self._outcomes(self.average, seen, None)

    def table(self, outcomes: Tensor) -> Tensor:
        """`[n, choices]` expected returns."""
        match self.shape.outcome:
            case Mean():
                return outcomes.squeeze(-1)
            case Atoms():
                return torch.softmax(outcomes, dim=-1) @ self.get_buffer("atoms").to(outcomes.dtype)
            case Quantiles():
                return outcomes.mean(dim=-1)

    def number(self, chosen: Tensor) -> Tensor:
        """`[n]` actions of the world -> places 0 .. choices - 1."""
        assert isinstance(self.spaces.actions, Choices)
        return chosen - self.spaces.actions.start if self.spaces.actions.start else chosen

    def _outcomes(self, body: nn.Module, seen: Tensor, noise: Tensor | None) -> Tensor:
        x = self.spaces.inputs.tensor(seen)
        if isinstance(body, NoisyMlp) and noise is None:
            body = body.mean
        return self._streams(body(x) if noise is None else body(x, noise))

    def _streams(self, raw: Tensor) -> Tensor:
        """`[n, outputs]` of the last layer -> `[n, choices, size]`."""
        streams = raw.view(len(raw), -1, self.shape.outcome.size)
        if not self.shape.dueling:
            return streams
        value, advantage = streams[:, :1], streams[:, 1:]
        return value + (advantage - advantage.mean(dim=1, keepdim=True))

    def mirror(self) -> NumpyValues:
        """Observations as numbers `[n, inputs]` -> `[n, choices]`, in numpy: the values of now."""
        return self._mirror(self.values)

    def greedy(self, epsilon: float = 0.0) -> ActGreedy:
        """Whoever acts by the means of the weights of now, or with probability `epsilon` at random."""
        return self._greedy(self.values, epsilon)

    def exploring(self) -> Acting:
        """Whoever acts by the weights of now, with their noise."""
        return self._acting(self.values)

    def acting(self) -> Acting:
        return self._acting(self.average)

    def _acting(self, body: Mlp | NoisyMlp) -> Acting:
        if not isinstance(body, NoisyMlp):
            return self._greedy(body)
        assert isinstance(self.spaces.actions, Choices)
        return ActNoisy(
            values=self._mirror(body), inputs=self.spaces.inputs, actions=self.spaces.actions,
            noise_size=self.noise_size,
        )  # fmt: skip

    def _greedy(self, body: Mlp | NoisyMlp, epsilon: float = 0.0) -> ActGreedy:
        actions = self.spaces.actions
        assert isinstance(actions, Choices)
        return ActGreedy(network=self._mirror(body), inputs=self.spaces.inputs, actions=actions, epsilon=epsilon)

    def _mirror(self, body: Mlp | NoisyMlp) -> NumpyValues:
        atoms = self.get_buffer("atoms").cpu().numpy() if isinstance(self.shape.outcome, Atoms) else None
        return NumpyValues(network=body.numpy(), size=self.shape.outcome.size, dueling=self.shape.dueling, atoms=atoms)

    def extras(self) -> Mapping[str, Any]:
        shape = self.shape
        (kind,) = (name for name, made in OUTCOMES.items() if isinstance(shape.outcome, made))
        outcome = {"kind": kind, **asdict(shape.outcome)}
        return {**asdict(shape), "outcome": outcome}

    @classmethod
    def made(cls, spaces: Spaces, network: MlpConfig, extras: Mapping[str, Any]) -> Self:
        outcome = dict(extras["outcome"])
        made = OUTCOMES[outcome.pop("kind")]
        shape = Shape(
            outcome=made(**outcome),
            dueling=bool(extras["dueling"]),
            sigma=float(extras["sigma"]),
            layer_norm=bool(extras.get("layer_norm", False)),  # folders of before it was there
        )
        return cls(spaces, network, seed=0, shape=shape)


class SoftChoices(Policy):
    """A softmax over choices, two tables of action values with slow copies, and a temperature (discrete SAC,
    Christodoulou, 2019)."""

    kind = "soft_choices"

    def __init__(self, spaces: Spaces, network: MlpConfig, *, seed: int) -> None:
        super().__init__(spaces, network)
        assert isinstance(spaces.actions, Choices), "a softmax needs a finite set of actions"
        size, count = spaces.inputs.size, spaces.actions.count
        self.actor = Mlp(size, count, network, seed=seed, stream="actor", gain=0.01)
        self.critics = nn.ModuleList(Mlp(size, count, network, seed=seed, stream=f"critic{i}") for i in (1, 2))
        self.targets = nn.ModuleList(Mlp(size, count, network, seed=seed, stream=f"critic{i}") for i in (1, 2))
        self.targets.requires_grad_(requires_grad=False)
        self.log_temperature = nn.Parameter(torch.zeros(1))

    def logp(self, seen: Tensor) -> Tensor:
        """`[n, choices]` nats."""
        return F.log_softmax(self.actor(self.spaces.inputs.tensor(seen)), dim=1)

    def tables(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Both critics' values `[n, choices]`."""
        return self._both(self.critics, seen)

    @torch.no_grad()
    def slow_table(self, seen: Tensor) -> Tensor:
        """`[n, choices]` the lesser of the slow critics' values."""
        return torch.minimum(*self._both(self.targets, seen))

    def number(self, chosen: Tensor) -> Tensor:
        """`[n]` actions of the world -> places 0 .. choices - 1."""
        assert isinstance(self.spaces.actions, Choices)
        return chosen - self.spaces.actions.start if self.spaces.actions.start else chosen

    def acting(self) -> Acting:
        assert isinstance(self.spaces.actions, Choices)
        return ActCategorical(network=self.actor.numpy(), inputs=self.spaces.inputs, actions=self.spaces.actions)

    def _both(self, critics: nn.ModuleList, seen: Tensor) -> tuple[Tensor, Tensor]:
        x = self.spaces.inputs.tensor(seen)
        first, second = critics
        return first(x), second(x)
