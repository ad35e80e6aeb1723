"""A Gaussian policy over a box of actions: its coordinates, log-densities and entropies, in torch and in numpy.

The network's outputs are means of a Gaussian; a sample x becomes the action middle + reach * x (`clipped`, where the
environment clips it), middle + reach * tanh(x) (`squashed`), or x itself (`unscaled`, and a dimension without bounds).
Log-densities and entropies are of actions in the environment's units: log N(x) - log |d action / d x|, before clipping.
"""

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hone.control.networks.mlp import BoxActions, Floats

LOG_TWO_PI = math.log(2.0 * math.pi)
_EDGE = np.float32(1.0 - 1e-6)
"""Largest tanh(x) that is inverted: beyond it, 32-bit floats hold no difference. x is at most 7.25."""
_QUADRATURE_POINTS = 32


def to_unit(chosen: Tensor, actions: BoxActions) -> Tensor:
    """Environment actions `[n, a]` -> the scale [-1, 1] of the box; as they are where nothing is scaled."""
    scale = _scale(actions, str(chosen.device))
    return chosen if scale is None else (chosen - scale[0]) / scale[1]


def to_gaussian(chosen: Tensor, actions: BoxActions) -> tuple[Tensor, Tensor | None]:
    """Environment actions `[n, a]` -> the Gaussian's samples `[n, a]`, and log |d action / d sample| `[n]` or `[]`.

    None stands for 0.
    """
    unit = to_unit(chosen, actions)
    if actions.gaussian == "squashed":
        raw = torch.atanh(unit.clamp(-float(_EDGE), float(_EDGE)))
        return raw, _log_slope(raw).sum(dim=1) + actions.log_volume
    return unit, None if _scale(actions, str(chosen.device)) is None else unit.new_tensor(actions.log_volume)


def entropy_shift(mean: Tensor, log_std: Tensor, actions: BoxActions) -> Tensor | None:
    """Entropy of actions minus the Gaussian's, E log |d action / d sample|: `[n]` or `[]` nats, None for 0.

    Under tanh it is an integral in each dimension, taken by Gauss-Hermite quadrature of 32 points: within 0.001 nats
    up to a standard deviation of 2.
    """
    if actions.gaussian == "squashed":
        points, weights = np.polynomial.hermite_e.hermegauss(_QUADRATURE_POINTS)
        at, share = mean.new_tensor(points), mean.new_tensor(weights / weights.sum())
        samples = mean[:, :, None] + torch.exp(log_std)[..., None] * at
        return (_log_slope(samples) @ share).sum(dim=1) + actions.log_volume
    return None if _scale(actions, str(mean.device)) is None else mean.new_tensor(actions.log_volume)


def gaussian_mode(outputs: Tensor, actions: BoxActions) -> Tensor:
    """Actions `[n, a]` at the means of a Gaussian in the form of its box, as an exporter can follow it."""
    match actions.gaussian:
        case "unscaled":
            return outputs
        case "clipped":
            return torch.from_numpy(actions.middle) + torch.from_numpy(actions.reach) * outputs
        case "squashed":
            return torch.from_numpy(actions.middle) + torch.from_numpy(actions.reach) * torch.tanh(outputs)


def within_box(chosen: Tensor, actions: BoxActions) -> Tensor:
    """Actions `[n, a]`, clipped to the bounds -> `[n, *action]`."""
    low, high = (torch.tensor(side, dtype=torch.float32) for side in (actions.low, actions.high))
    return torch.minimum(torch.maximum(chosen, low), high).reshape(-1, *actions.shape)


def _log_slope(raw: Tensor) -> Tensor:
    """log(1 - tanh(x)^2) = 2 (log 2 - x - softplus(-2x)), which neither overflows nor cancels."""
    return 2.0 * (math.log(2.0) - raw - F.softplus(-2.0 * raw))


@lru_cache(maxsize=64)
def _scale(actions: BoxActions, device: str) -> tuple[Tensor, Tensor] | None:
    """Middle and reach `[a]`, or None where nothing is scaled."""
    if actions.gaussian == "unscaled" or (actions.gaussian == "clipped" and actions.is_unit):
        return None
    return torch.from_numpy(actions.middle).to(device), torch.from_numpy(actions.reach).to(device)


# ---------------------------------------------------------------------------------------------- numpy


def from_gaussian(samples: Floats, actions: BoxActions) -> Floats:
    """Samples `[n, a]` -> environment actions `[n, a]`; squashed ones are within the bounds."""
    match actions.gaussian:
        case "unscaled":
            return samples
        case "clipped":
            return samples if actions.is_unit else np.asarray(actions.middle + actions.reach * samples, np.float32)
        case "squashed":
            low, high = np.asarray(actions.low, np.float32), np.asarray(actions.high, np.float32)
            return np.asarray(np.clip(actions.middle + actions.reach * np.tanh(samples), low, high), np.float32)


def log_density(chosen: Floats, mean: Floats, log_std: Floats, actions: BoxActions) -> Floats:
    """Log-density `[n]` nats of environment actions `[n, a]`, in the precision of torch's."""
    samples, volume = to_gaussian(torch.from_numpy(np.ascontiguousarray(chosen)), actions)
    scaled = (samples.numpy() - mean) * np.exp(-log_std)
    logp = -0.5 * (scaled * scaled).sum(axis=1) - (log_std.sum() + 0.5 * LOG_TWO_PI * actions.size)
    return (logp if volume is None else logp - volume.numpy()).astype(np.float32)
