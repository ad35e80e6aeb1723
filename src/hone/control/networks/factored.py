"""Policies over actions of several factors: a head for each, log-probabilities and entropies summed over them.

Factors are independent given the observation: log pi(a | s) = sum over f of log pi_f(a_f | s), and entropies add. A
choice has a softmax, a bit a pair of logits (0, x), a box a Gaussian (`box_gaussian.py`). Masks have the bits of one
factor after another, a bit of an action two: may it be 0, may it be 1. A factor whose choice narrows another's is out
of scope: number the combinations with one Discrete and a mask.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.control.networks.box_gaussian import from_gaussian, gaussian_mode, log_density, within_box
from hone.control.networks.mlp import (
    ActionFactor,
    BinaryActions,
    BoxActions,
    DiscreteActions,
    FactoredActions,
    Floats,
    ObservationInputs,
)
from hone.control.networks.numpy_policies import Array, Flags, require_mask, sample_choices

Distribution = tuple[Tensor, Callable[[], Tensor]]
"""Log-probabilities `[n]` nats and, on demand, entropies `[n]` nats."""
HeadDistribution = Callable[..., Distribution]


# ---------------------------------------------------------------------------------------------------------------- heads


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadDistributions:
    """Distributions that heads are made of."""

    categorical: HeadDistribution
    box_gaussian: HeadDistribution


class _FactorHead(Protocol):
    """What a policy does with its outputs `out` `[n, outputs]` for one factor, whose numbers of an action are `[n, k]`.
    `legal` `[n, bits]` are its part of the masks, `deviations` `[a]` the logarithms of its standard deviations."""

    def distribution(
        self, out: Tensor, deviations: Tensor | None, numbers: Tensor, legal: Tensor | None, kinds: HeadDistributions
    ) -> Distribution:
        """Log-probability (density) of `numbers`, and entropy."""
        ...

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """A number for each number of an action, `[*shape, k]`."""
        ...

    def decide(
        self, out: Floats, deviations: Floats, noise: Floats, legal: Flags | None
    ) -> tuple[NDArray[np.generic], Floats]:
        """Numbers drawn by `noise` `[n, k]`, and their log-probabilities `[n]` nats."""
        ...

    def best(self, out: Floats, legal: Flags | None) -> NDArray[np.generic]:
        """The numbers of the mode."""
        ...

    def mode(self, out: Tensor, legal: Tensor | None) -> Tensor:
        """`best`, as an exporter can follow it."""
        ...

    def compare(
        self, out: NDArray[np.float64], ours: Array, theirs: Array, *, tolerance: float
    ) -> tuple[Flags, Flags, float]:
        """Flags `[n]` of equal numbers and of ties to rounding, and the greatest difference as a share of a box."""
        ...


@dataclass(frozen=True, slots=True)
class _ChoiceHead:
    """A softmax over the choices."""

    part: DiscreteActions

    def distribution(
        self, out: Tensor, deviations: Tensor | None, numbers: Tensor, legal: Tensor | None, kinds: HeadDistributions
    ) -> Distribution:
        del deviations
        return kinds.categorical(out, numbers[:, 0].long() - self.part.start, legal)

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return draws.random((*shape, 1), dtype=np.float32)

    def decide(
        self, out: Floats, deviations: Floats, noise: Floats, legal: Flags | None
    ) -> tuple[NDArray[np.generic], Floats]:
        del deviations
        picked, nats = sample_choices(_with_legal(out.copy(), legal), noise.reshape(-1))
        return (picked + self.part.start)[:, None], nats

    def best(self, out: Floats, legal: Flags | None) -> NDArray[np.generic]:
        return _with_legal(out.copy(), legal).argmax(axis=1)[:, None] + self.part.start

    def mode(self, out: Tensor, legal: Tensor | None) -> Tensor:
        scores = out if legal is None else torch.where(legal, out, torch.full_like(out, -torch.inf))
        return scores.argmax(dim=1, keepdim=True) + self.part.start

    def compare(
        self, out: NDArray[np.float64], ours: Array, theirs: Array, *, tolerance: float
    ) -> tuple[Flags, Flags, float]:
        rows, start = np.arange(len(out)), self.part.start
        first, second = (out[rows, side[:, 0].astype(np.int64) - start] for side in (ours, theirs))
        return (ours == theirs).all(axis=1), np.abs(first - second) <= tolerance * _size_of_scores(out), 0.0


@dataclass(frozen=True, slots=True)
class BitsHead:
    """A choice between the logits 0 and x for each bit."""

    part: BinaryActions

    def distribution(
        self, out: Tensor, deviations: Tensor | None, numbers: Tensor, legal: Tensor | None, kinds: HeadDistributions
    ) -> Distribution:
        del deviations
        pairs = torch.stack((torch.zeros_like(out), out), dim=2).flatten(0, 1)
        allowed = None if legal is None else legal.reshape(-1, 2)
        logp, entropy = kinds.categorical(pairs, numbers.long().flatten(), allowed)
        return logp.view(out.shape).sum(dim=1), lambda: entropy().view(out.shape).sum(dim=1)

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return draws.random((*shape, self.part.numbers), dtype=np.float32)

    def decide(
        self, out: Floats, deviations: Floats, noise: Floats, legal: Flags | None
    ) -> tuple[NDArray[np.generic], Floats]:
        del deviations
        picked, nats = sample_choices(self._logits(out, legal), noise.reshape(-1))
        return picked.reshape(out.shape), nats.reshape(out.shape).sum(axis=1)

    def best(self, out: Floats, legal: Flags | None) -> NDArray[np.generic]:
        return self._logits(out, legal).argmax(axis=1).reshape(out.shape)

    def mode(self, out: Tensor, legal: Tensor | None) -> Tensor:
        if legal is None:
            return (out > 0).long()
        # a bit that must not be 0, or that is better and may be 1
        zero, one = legal.unflatten(1, (-1, 2)).unbind(dim=2)
        return (one & ((out > 0) | ~zero)).long()

    def compare(
        self, out: NDArray[np.float64], ours: Array, theirs: Array, *, tolerance: float
    ) -> tuple[Flags, Flags, float]:
        gap = np.where(ours == theirs, 0.0, np.abs(out)).max(axis=1)
        return (ours == theirs).all(axis=1), gap <= tolerance * _size_of_scores(out), 0.0

    def _logits(self, out: Floats, legal: Flags | None) -> Floats:
        """`[n * bits, 2]`."""
        return _with_legal(np.stack((np.zeros_like(out), out), axis=2).reshape(-1, 2), legal)


@dataclass(frozen=True, slots=True)
class _GaussianHead:
    """A Gaussian over a box (`box_gaussian.py`)."""

    part: BoxActions

    def distribution(
        self, out: Tensor, deviations: Tensor | None, numbers: Tensor, legal: Tensor | None, kinds: HeadDistributions
    ) -> Distribution:
        del legal
        assert deviations is not None
        return kinds.box_gaussian(out, deviations, numbers.to(out.dtype), self.part)

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        return draws.standard_normal((*shape, self.part.numbers), dtype=np.float32)

    def decide(
        self, out: Floats, deviations: Floats, noise: Floats, legal: Flags | None
    ) -> tuple[NDArray[np.generic], Floats]:
        del legal
        numbers = from_gaussian(out + np.exp(deviations) * noise, self.part)
        return numbers, log_density(numbers, out, deviations, self.part)

    def best(self, out: Floats, legal: Flags | None) -> NDArray[np.generic]:
        del legal
        return from_gaussian(out, self.part)

    def mode(self, out: Tensor, legal: Tensor | None) -> Tensor:
        del legal
        return within_box(gaussian_mode(out, self.part), self.part).flatten(1)

    def compare(
        self, out: NDArray[np.float64], ours: Array, theirs: Array, *, tolerance: float
    ) -> tuple[Flags, Flags, float]:
        del out
        off = np.abs(np.subtract(ours, theirs)) / self.part.reach
        return off.max(axis=1) <= tolerance, np.zeros(len(off), np.bool_), float(off.max())


def _with_legal(logits: Floats, legal: Flags | None) -> Floats:
    """`logits`, -inf where illegal, in place."""
    if legal is not None:
        logits[~legal.reshape(logits.shape)] = -np.inf
    return logits


def _size_of_scores(out: NDArray[np.float64]) -> NDArray[np.float64]:
    """`[n]` size of the greatest score of a row, at least 1."""
    return np.maximum(np.abs(out).max(axis=1), 1.0)


_HEADS: Final[dict[type[ActionFactor], Callable[..., _FactorHead]]] = {
    DiscreteActions: _ChoiceHead, BinaryActions: BitsHead, BoxActions: _GaussianHead
}  # fmt: skip
"""The head of each kind of factor."""


@dataclass(frozen=True, slots=True)
class _HeadPlaces:
    """Places of a factor in the network's outputs, in actions, in masks and in the Gaussian's deviations."""

    part: ActionFactor
    head: _FactorHead
    outputs: slice
    numbers: slice
    bits: slice
    deviations: slice


def head_places(actions: FactoredActions) -> Iterator[_HeadPlaces]:
    """Each factor with its places."""
    begin = [0] * 4
    for part in actions.parts:
        sizes = (part.outputs, part.numbers, sum(part.choices), part.gaussian_size)
        end = [first + size for first, size in zip(begin, sizes, strict=True)]
        yield _HeadPlaces(part, _HEADS[type(part)](part), *map(slice, begin, end))
        begin = end


# ------------------------------------------------------------------------------------------------------------- policies


def joint_logp_and_entropy(
    actions: FactoredActions,
    outputs: Tensor,
    log_std: Tensor | None,
    chosen: Tensor,
    mask: Tensor | None,
    kinds: HeadDistributions,
) -> Distribution:
    """Log-probability (density) of `chosen` `[n, A]` and, on demand, entropy, given `outputs` `[n, outputs]`, the
    deviations `log_std` of the boxes and masks `[n, M]`: sums over the factors."""
    heads = [
        place.head.distribution(
            outputs[:, place.outputs],
            None if log_std is None else log_std[place.deviations],
            chosen[:, place.numbers],
            None if mask is None else mask[:, place.bits],
            kinds,
        )
        for place in head_places(actions)
    ]
    total = torch.stack([logp for logp, _ in heads]).sum(dim=0)
    return total, lambda: torch.stack([entropy() for _, entropy in heads]).sum(dim=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyFactoredPolicy:
    """A draw from each factor, by one number of the noise each."""

    network: Callable[[Floats], Floats]
    inputs: ObservationInputs
    actions: FactoredActions
    log_std: Floats
    """`[a]` logarithm of the standard deviation of each number of the boxes."""

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """`[*shape, A]`: uniform numbers of choices and bits, normal numbers of boxes."""
        return np.concatenate([place.head.noise(draws, shape) for place in head_places(self.actions)], axis=-1)

    def decide(self, seen: Array, noise: Floats, mask: Flags | None = None) -> tuple[Array, Floats]:
        outputs, chosen = self._outputs(seen, mask)
        logp = np.zeros(len(outputs), np.float32)
        for place in head_places(self.actions):
            legal = None if mask is None else mask[:, place.bits]
            deviations, own = self.log_std[place.deviations], noise[:, place.numbers]
            chosen[:, place.numbers], nats = place.head.decide(outputs[:, place.outputs], deviations, own, legal)
            logp += nats
        return chosen, logp

    def best(self, seen: Array, mask: Flags | None = None) -> Array:
        outputs, chosen = self._outputs(seen, mask)
        for place in head_places(self.actions):
            legal = None if mask is None else mask[:, place.bits]
            chosen[:, place.numbers] = place.head.best(outputs[:, place.outputs], legal)
        return chosen

    def _outputs(self, seen: Array, mask: Flags | None) -> tuple[Floats, NDArray[np.generic]]:
        """Outputs of the network, and zeros for the actions `[n, A]`."""
        require_mask(self.actions, mask)
        outputs = self.network(self.inputs.array(seen))
        dtype = np.float32 if self.actions.gaussian_size else np.int64
        return outputs, np.zeros((len(outputs), self.actions.size), dtype)
