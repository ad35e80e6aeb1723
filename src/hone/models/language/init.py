"""Initial weights, drawn from counter-based streams: the same config and seed give the same model on any machine."""

import math

import numpy as np
import torch
from torch import nn

from hone.core.random import generator
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder, torch_dtype


def new_model(
    config: ModelConfig, *, seed: int, dtype: str = "float32", checkpoint_activations: bool = False
) -> Decoder:
    """A randomly initialised Decoder; draws depend on `seed` and each parameter's name alone.

    Projections are normal with std fan_in^-1/2 (0.0625 at width 256, 0.02 at 2,500), so that every layer keeps the
    scale of its input; those that write to the residual stream are divided by sqrt(2 layers) (Radford et al., 2019).
    The embedding has std hidden_size^-1/2, so that tied logits start with std 1. Biases are 0, norms 1.
    """
    model = Decoder(config, dtype=dtype, checkpoint_activations=checkpoint_activations)
    kind = torch_dtype(dtype)
    residual = 1 / math.sqrt(2 * config.layers)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            std = parameter[0].numel() ** -0.5
            scale = std * residual if name.endswith(("out.weight", "down.weight")) else std
            _fill(parameter, scale, seed, name, kind)
    return model


def _fill(parameter: nn.Parameter, scale: float, seed: int, name: str, dtype: torch.dtype) -> None:
    draws = generator(seed, "init", name).standard_normal(tuple(parameter.shape), dtype=np.float32)
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(draws * np.float32(scale)).to(dtype))
