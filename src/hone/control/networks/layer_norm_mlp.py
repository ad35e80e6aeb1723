"""An MLP with layer-normalised hidden layers, in torch and numpy.

Layer normalisation (Ba et al., 2016) without weights of its own, before each activation. It keeps bootstrapped values
from growing without bound (Gallici et al., Simplifying Deep Temporal Difference Learning, 2025), so that the target
network may follow quickly.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from hone.control.networks.mlp import Floats, Mlp, NumpyMlp

EPSILON = 1e-5
"""Added to the variance."""


def layer_normed(x: Tensor) -> Tensor:
    """`[n, units]` -> the same with mean 0 and variance 1 in each row."""
    return F.layer_norm(x, (x.shape[1],), eps=EPSILON)


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

    def to_numpy(self) -> "NumpyLayerNormMlp":
        plain = super().to_numpy()
        return NumpyLayerNormMlp(layers=plain.layers, relu=plain.relu)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyLayerNormMlp(NumpyMlp):
    """A `LayerNormMlp` in numpy."""

    def activate(self, x: Floats) -> Floats:
        x = layer_normed_array(x)
        return np.maximum(x, 0.0, out=x) if self.relu else np.tanh(x, out=x)
