"""Rotary frequencies of a decoder's pairs of features."""

import math

import numpy as np
import torch
from torch import Tensor

from hone.models.language.rope import RopeConfig


def rope_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position of each pair, `[head_dim / 2]` float32.

    theta^(-2i/d) (Su et al., 2021). `linear` divides all of them by `factor` (Chen et al., 2023). `llama3` divides the
    frequencies whose wavelength exceeds the original context by `factor`, leaves short wavelengths unchanged and
    interpolates linearly between (Dubey et al., 2024); `yarn` does so with borders in rotations within the original
    context, and interpolates along the features (Peng et al., 2024).
    """
    wavelengths = rope.theta ** (_counted(0, head_dim, 2) / head_dim)
    frequencies = 1.0 / wavelengths
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "llama3":
        return _llama3(rope, frequencies)
    if rope.kind == "yarn":
        kept = 1 - _yarn_ramp(rope, head_dim)
        return 1.0 / (rope.factor * wavelengths) * (1 - kept) + frequencies * kept
    return frequencies


def _llama3(rope: RopeConfig, frequencies: Tensor) -> Tensor:
    wavelength = 2 * math.pi / frequencies
    low = rope.original_max_positions / rope.low_freq_factor
    high = rope.original_max_positions / rope.high_freq_factor
    blend = (rope.original_max_positions / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - blend) * frequencies / rope.factor + blend * frequencies
    scaled = torch.where(wavelength > low, frequencies / rope.factor, blended)
    return torch.where(wavelength < high, frequencies, scaled)


def _yarn_ramp(rope: RopeConfig, head_dim: int) -> Tensor:
    """0 for pairs that turn `beta_fast` times or more within the original context, 1 for `beta_slow` or less."""

    def border(rotations: float) -> float:
        """Feature whose pair turns `rotations` times."""
        return head_dim * math.log(rope.original_max_positions / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = border(rope.beta_fast), border(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    span = high - low if high != low else 0.001
    return ((_counted(0, head_dim // 2, 1) - low) / span).clamp(0, 1)


def _counted(start: int, end: int, step: int) -> Tensor:
    """`torch.arange` in float32 by numpy: torch's own, on the device "meta" where parameters are only counted, imports
    the compiler, which takes two seconds."""
    return torch.from_numpy(np.arange(start, end, step, dtype=np.float32))
