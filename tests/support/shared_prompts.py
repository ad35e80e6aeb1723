"""Packed rows whose completions share their prompt."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from hone.models.packing import PackedBatch, TokenTargets


def pack_shared_prompts(
    groups: Sequence[tuple[NDArray[np.int32], Sequence[NDArray[np.int32]]]], *, device: str = "cpu"
) -> tuple[PackedBatch, TokenTargets]:
    """One row for each (prompt, completions): the prompt once, then each completion as a branch.

    The targets are every completion token, by group, completion and position. Prompts must not be empty.
    """
    tokens: list[NDArray[np.int32]] = []
    positions: list[NDArray[np.int64]] = []
    branch: list[NDArray[np.int64]] = []
    at: list[NDArray[np.int64]] = []
    offsets = [0]
    for prompt, completions in groups:
        trunk_end, start = offsets[-1] + len(prompt) - 1, offsets[-1] + len(prompt)
        tokens.append(prompt)
        positions.append(np.arange(len(prompt)))
        branch.append(np.zeros(len(prompt), np.int64))
        for number, completion in enumerate(completions, start=1):
            n = len(completion)
            tokens.append(completion)
            positions.append(len(prompt) + np.arange(n))
            branch.append(np.full(n, number))
            predictors = start - 1 + np.arange(n)
            predictors[:1] = trunk_end
            at.append(predictors)
            start += n
        offsets.append(start)
    chosen = [completion for _, completions in groups for completion in completions]
    packed = PackedBatch(
        tokens=_joined(tokens).to(device),
        positions=_joined(positions).to(device),
        offsets=np.asarray(offsets, np.int64),
        branch=_joined(branch).to(device),
    )
    return packed, TokenTargets(at=_joined(at).to(device), chosen=_joined(chosen).to(device))


def _joined(pieces: Sequence[NDArray[np.generic]]) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([np.zeros(0, np.int64), *pieces]))
