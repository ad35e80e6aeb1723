"""Routing replay: a mixture-of-experts trainer sends each token to the experts that the engine sent it to.

Belongs here: the contract of what an engine records, and the gates that replay it. Without replay a router that is off
by one bit picks another expert, and the trainer's log-probability is that of another network. Rollout routing replay
(R3, Ma et al., 2025, 2510.11370) replays the engine's choice; replaying the trainer's own from before the update is
"routing replay" of GSPO (2025).
"""

from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from numpy.typing import NDArray
from torch import Tensor

from hone.core.errors import DataError, ErrorCollector

NOT_RECORDED = -1
SHOWN = 3
"""Places that a message names."""

Places: TypeAlias = Bool[NDArray[np.bool_], "T layers"]


def routing_coverage(recorded: Integer[NDArray[np.integer], "T layers k"]) -> float:
    """Share of (token, layer) places of `recorded` with all k experts; 1 for no tokens."""
    places = (recorded != NOT_RECORDED).all(axis=2)
    return float(places.mean()) if places.size else 1.0


def check_routing(
    recorded: Integer[NDArray[np.integer], "..."], *, tokens: int, layers: int, chosen: int, experts: int
) -> None:
    """Raises DataError, all faults at once, unless each token (prompt, answer, tool output) was recorded in each layer.

    `recorded` `[tokens, layers, chosen]`: the numbers (0 <= e < `experts`) of the experts that the engine chose,
    in any order, -1 where it recorded none. A single missing place makes the trainer route by itself there, and what
    follows it in the sequence differs: coverage must be 1.
    """
    faults = ErrorCollector(DataError)
    wanted = (tokens, layers, chosen)
    if recorded.shape != wanted:
        raise DataError(
            f"routing replay: recorded experts have shape {recorded.shape}, expected (tokens, layers, experts a token) "
            f"= {wanted}; the engine must record every token, the prompt's too, in every mixture layer"
        )
    coverage = routing_coverage(recorded)
    if coverage < 1:
        missing = (recorded == NOT_RECORDED).any(axis=2)
        faults.add(
            f"routing replay: coverage {coverage:.6f}, must be 1: {int(missing.sum())} of {missing.size} places were "
            f"not recorded, first at {_places(missing)}; let the engine return routed experts, or turn replay off"
        )
    unknown = (recorded < NOT_RECORDED) | (recorded >= experts)
    outside: Places = np.asarray(unknown.any(axis=2))
    if outside.any():
        token, layer = np.argwhere(outside)[0]
        faults.add(
            f"routing replay: no such expert (there are {experts}, numbered from 0) at {_places(outside)}: "
            f"{recorded[token, layer].tolist()}; was this recorded by another model?"
        )
    ranked = np.sort(recorded, axis=2)
    repeated = (ranked[:, :, 1:] == ranked[:, :, :-1]) & (ranked[:, :, 1:] != NOT_RECORDED)
    twice: Places = np.asarray(repeated.any(axis=2))
    if twice.any():
        token, layer = np.argwhere(twice)[0]
        faults.add(
            f"routing replay: an expert stands twice at {_places(twice)}: {recorded[token, layer].tolist()}; "
            "its gate would count double"
        )
    faults.raise_if_any()


def _places(mask: Places) -> str:
    found = np.argwhere(mask)
    named = [f"token {token} layer {layer}" for token, layer in found[:SHOWN].tolist()]
    return ", ".join(named) + (f" and {len(found) - SHOWN} more" if len(found) > SHOWN else "")


def replayed_gates(scores: Float[Tensor, "T experts"], recorded: Int[Tensor, "T k"]) -> Float[Tensor, "T k"]:
    """softmax over the recorded experts of the trainer's own scores: the choice is data, the gates learn.

    `scores` are router logits, with gradient.
    """
    return torch.softmax(scores.gather(1, recorded), dim=1)
