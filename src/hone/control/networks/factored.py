"""Policies over actions of several factors: a head for each, log-probabilities and entropies summed over them.

Factors are independent given the observation: log pi(a | s) = sum over f of log pi_f(a_f | s), and entropies add. A
choice has a softmax, a bit a pair of logits (0, x), a box a Gaussian (`box_gaussian.py`). Masks have the bits of one
factor after another, a bit of an action two: may it be 0, may it be 1. A factor whose choice narrows another's is out
of scope: number the combinations with one Discrete and a mask.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hone.control.networks.box_gaussian import from_gaussian, log_density
from hone.control.networks.mlp import BoxActions, DiscreteActions, FactoredActions, Floats, ObservationInputs
from hone.control.networks.numpy_policies import Array, Flags, require_mask, sample_choices

Distribution = tuple[Tensor, Callable[[], Tensor]]
"""Log-probabilities `[n]` nats and, on demand, entropies `[n]` nats."""
HeadDistribution = Callable[..., Distribution]


@dataclass(frozen=True, slots=True)
class HeadPlaces:
    """Places of a factor in the network's outputs, in actions, in masks and in the Gaussian's deviations."""

    part: object
    outputs: slice
    numbers: slice
    bits: slice
    deviations: slice


def head_places(actions: FactoredActions) -> Iterator[HeadPlaces]:
    """Each factor with its places."""
    output = number = bit = deviation = 0
    for part in actions.parts:
        is_box, width = isinstance(part, BoxActions), part.count if isinstance(part, DiscreteActions) else part.size
        count = 1 if isinstance(part, DiscreteActions) else width
        bits = 0 if is_box else width if isinstance(part, DiscreteActions) else 2 * width
        yield HeadPlaces(
            part,
            slice(output, output + width),
            slice(number, number + count),
            slice(bit, bit + bits),
            slice(deviation, deviation + (width if is_box else 0)),
        )
        output, number, bit = output + width, number + count, bit + bits
        deviation += width if is_box else 0


def joint_logp_and_entropy(
    actions: FactoredActions,
    outputs: Tensor,
    log_std: Tensor | None,
    chosen: Tensor,
    mask: Tensor | None,
    *,
    categorical: HeadDistribution,
    box_gaussian: HeadDistribution,
) -> Distribution:
    """Log-probability (density) of `chosen` `[n, A]` and, on demand, entropy, given `outputs` `[n, outputs]`, the
    deviations `log_std` of the boxes and masks `[n, M]`: sums over the factors, whose own distributions are
    `categorical` and `box_gaussian`."""
    heads: list[Distribution] = []
    for place in head_places(actions):
        out, numbers, part = outputs[:, place.outputs], chosen[:, place.numbers], place.part
        legal = None if mask is None else mask[:, place.bits]
        if isinstance(part, BoxActions):
            assert log_std is not None
            heads.append(box_gaussian(out, log_std[place.deviations], numbers.to(out.dtype), part))
        elif isinstance(part, DiscreteActions):
            heads.append(categorical(out, numbers[:, 0].long() - part.start, legal))
        else:  # a bit is a choice between the logits 0 and x
            pairs = torch.stack((torch.zeros_like(out), out), dim=2).flatten(0, 1)
            allowed = None if legal is None else legal.reshape(-1, 2)
            logp, entropy = categorical(pairs, numbers.long().flatten(), allowed)
            heads.append(
                (
                    logp.view(out.shape).sum(dim=1),
                    lambda entropy=entropy, shape=out.shape: entropy().view(shape).sum(dim=1),
                )
            )
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
        drawn = [
            draws.standard_normal((*shape, place.numbers.stop - place.numbers.start), dtype=np.float32)
            if isinstance(place.part, BoxActions)
            else draws.random((*shape, place.numbers.stop - place.numbers.start), dtype=np.float32)
            for place in head_places(self.actions)
        ]
        return np.concatenate(drawn, axis=-1)

    def decide(self, seen: Array, noise: Floats, mask: Flags | None = None) -> tuple[Array, Floats]:
        require_mask(self.actions, mask)
        outputs = self.network(self.inputs.array(seen))
        logp = np.zeros(len(outputs), np.float32)
        chosen = np.zeros((len(outputs), self.actions.size), self._dtype)
        for place in head_places(self.actions):
            out, own = outputs[:, place.outputs], noise[:, place.numbers]
            if isinstance(place.part, BoxActions):
                log_std = self.log_std[place.deviations]
                numbers = from_gaussian(out + np.exp(log_std) * own, place.part)
                logp += log_density(numbers, out, log_std, place.part)
                chosen[:, place.numbers] = numbers
            else:
                logits, start = _choice_logits(place, out, mask)
                picked, nats = sample_choices(logits, own.reshape(-1))
                chosen[:, place.numbers] = (picked + start).reshape(len(out), -1)
                logp += nats.reshape(len(out), -1).sum(axis=1)
        return chosen, logp

    def best(self, seen: Array, mask: Flags | None = None) -> Array:
        require_mask(self.actions, mask)
        outputs = self.network(self.inputs.array(seen))
        chosen = np.zeros((len(outputs), self.actions.size), self._dtype)
        for place in head_places(self.actions):
            out = outputs[:, place.outputs]
            if isinstance(place.part, BoxActions):
                chosen[:, place.numbers] = from_gaussian(out, place.part)
            else:
                logits, start = _choice_logits(place, out, mask)
                chosen[:, place.numbers] = (logits.argmax(axis=1) + start).reshape(len(out), -1)
        return chosen

    @property
    def _dtype(self) -> type[np.int64] | type[np.float32]:
        return np.float32 if self.actions.gaussian_size else np.int64


def _choice_logits(place: HeadPlaces, out: Floats, mask: Flags | None) -> tuple[Floats, int]:
    """Logits `[n, choices]` of a choice, or `[n * bits, 2]` of bits, -inf where illegal; number of the first choice."""
    if isinstance(place.part, DiscreteActions):
        logits, start = out.copy(), place.part.start
    else:
        logits, start = np.stack((np.zeros_like(out), out), axis=2).reshape(-1, 2), 0
    if mask is not None:
        logits[~mask[:, place.bits].reshape(logits.shape)] = -np.inf
    return logits, start
