"""Acting by action values in numpy: Q-networks, noisy weights, and Boltzmann logits.

The numpy forms of `q_networks.py`. The plain greedy policy is `numpy_policies.NumpyGreedyPolicy`.
"""

from dataclasses import dataclass

import numpy as np

from hone.control.networks.mlp import DiscreteActions, Floats, NumpyMlp, ObservationInputs
from hone.control.networks.numpy_policies import Array


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

    def decide(self, seen: Array, noise: Floats) -> tuple[Array, Floats]:
        """The probability of an action is an integral over the weights, which is not computed: NaN."""
        network = self.values.network
        assert isinstance(network, NumpyNoisyMlp)
        best = self.values.q_values(network.with_noise(self.inputs.array(seen), noise)).argmax(axis=1)
        return best + self.actions.start, np.full(len(best), np.nan, dtype=np.float32)

    def best(self, seen: Array) -> Array:
        return self.values(self.inputs.array(seen)).argmax(axis=1) + self.actions.start


@dataclass(frozen=True, slots=True, kw_only=True)
class BoltzmannLogits:
    """Values over a temperature: the logits of a Boltzmann policy."""

    values: NumpyQNetwork
    temperature: float

    def __call__(self, x: Floats) -> Floats:
        return self.values(x) / np.float32(self.temperature)
