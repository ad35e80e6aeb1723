"""Weights of a network beside the policy (a critic, a world model) as a part of a run's state, by parameter name."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hone.core.errors import DataError
from hone.core.state import State, array
from hone.learner.parameter_store import ParameterStore


def named_arrays(parameters: ParameterStore, values: Sequence[Tensor]) -> State:
    """Copies of values shaped like `owned`, whole and by parameter name, in a type that numpy knows: bfloat16 is
    widened, which loses nothing. All ranks call it; those that save nothing get empty arrays."""
    return {
        name: (value.float() if value.dtype == torch.bfloat16 else value).cpu().numpy().copy()
        for name, value in parameters.by_name(values).items()
    }


def stored_weights(parameters: ParameterStore) -> State:
    """All trained weights by name."""
    return named_arrays(parameters, parameters.owned)


@torch.no_grad()
def restore_weights(parameters: ParameterStore, state: State, *, what: str, remedy: str) -> None:
    """Load the weights of `state`, in place. Raises DataError, which names `what` was saved and the `remedy`, for those
    of another network."""
    named: dict[str, Tensor] = {}
    for name, shape in parameters.shapes.items():
        saved = array(state, name)
        if saved.shape != tuple(shape):
            shapes = f"of shape {list(saved.shape)}, this one {list(shape)}"
            raise DataError(f"the saved {what} has {name} {shapes}: {remedy}")
        named[name] = torch.from_numpy(saved.copy())
    for own, value in zip(parameters.owned, parameters.shards(named), strict=True):
        own.copy_(value)
