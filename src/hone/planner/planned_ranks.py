"""Ranks that a learner is spread over: what one of them takes of a step, and what it holds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from hone.planner.planned_decoder import PlannedDecoder
from hone.planner.training_step import NUMBER_BYTES, StepSettings

_CUT_COPIES: Final = ("critic", "reference policy", "world model")
"""Networks beside the policy that are cut over the ranks, and nowhere whole. Others are whole on rank 0."""
_DRIVERS_COPIES: Final = ("start, which the distance is measured from", "versions of a replay", "weights to publish")
"""Copies of the weights that only rank 0 has: it generates, evaluates and reports."""
_ADAPTER_BASE: Final = "base of the adapted weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRanks:
    """Ranks of a learner, from the place of one of them."""

    count: int = 1
    tensor: int = 1
    """Neighbours that compute each layer together."""
    virtual: int = 0
    """Shares of a batch whatever the number of ranks; 0: as many as ranks that share out the rows."""
    beside: int = 0
    """Other ranks that have the same memory: those of one machine without GPUs."""
    is_driver: bool = True
    """It is rank 0, which also acts, evaluates and saves, with a whole copy of the weights."""

    @property
    def are_several(self) -> bool:
        """The learner is that of several ranks, or computes as if."""
        return self.count > 1 or self.virtual > 0

    @property
    def data(self) -> int:
        """Ranks that share out the rows of a step."""
        return self.count // self.tensor

    @property
    def shares(self) -> int:
        """Shares of the rows of a step."""
        return self.virtual or self.data


ONE_PROCESS: Final = PlannedRanks()
"""A learner of one process."""


def rank_step(step: StepSettings, ranks: PlannedRanks) -> StepSettings:
    """The step of one rank: its share of the rows, and weights that are gathered a layer at a time."""
    if not ranks.are_several:
        return step
    own = -(-max(step.tokens, step.step_tokens) // ranks.shares)
    tokens = min(step.tokens, max(step.least_tokens, own))
    shares = ranks.shares // ranks.data
    return replace(
        step, tokens=tokens, shards=ranks.data, tensor=ranks.tensor, virtual_shares=shares if ranks.virtual else 0,
        accumulates=own > tokens or shares > 1,
    )  # fmt: skip


def held_by_rank(
    shape: PlannedDecoder,
    step: StepSettings,
    ranks: PlannedRanks,
    *,
    moments: int,
    moment_bytes: int,
    adapter: int | None = None,
) -> dict[str, int]:
    """Bytes that one rank holds of weights that are cut among the ranks, with its part of the gradients and moments; of
    an adapter of so many numbers, which is whole, the moments alone."""
    size, own = NUMBER_BYTES[step.weights], -(-shape.part(ranks.tensor).parameters // ranks.data)
    whole = {"whole copy of rank 0": (shape.parameters + (adapter or 0)) * size} if ranks.is_driver else {}
    gradients, stepped = (own * size, own) if adapter is None else (0, adapter)
    return {"weights": own * size, **whole, "gradients": gradients, "optimizer": moments * stepped * moment_bytes}


def copies_of_rank(copies: Mapping[str, int], ranks: PlannedRanks) -> dict[str, int]:
    """Bytes of the further networks of a rank: its parts, and on rank 0 those that are whole there."""
    if not ranks.are_several:
        return dict(copies)
    held: dict[str, int] = {}
    for name, size in copies.items():
        part = -(-size // ranks.count)
        if name in _CUT_COPIES:
            held[name] = part
        elif name == _ADAPTER_BASE:
            held[name] = part + (size if ranks.is_driver else 0)
        elif ranks.is_driver or name not in _DRIVERS_COPIES:
            held[name] = size
    return held


def rank_faults(shape: PlannedDecoder, ranks: PlannedRanks, *, rows: int, adapter: bool) -> Iterator[str]:
    """Reasons why a model cannot be trained by these ranks, with the keys and the nearest that fits."""
    if ranks.count % ranks.tensor:
        yield f"run.ranks = {ranks.count} must be a multiple of run.tensor = {ranks.tensor}"
        return
    if ranks.virtual and (ranks.virtual & (ranks.virtual - 1) or ranks.virtual % ranks.count):
        yield f"run.virtual_ranks = {ranks.virtual} must be a power of two that run.ranks = {ranks.count} divides"
    if rows < ranks.shares:
        yield (
            f"run.ranks = {ranks.count}: an optimizer step has {rows} sequences, fewer than {ranks.shares} shares; "
            "take fewer ranks, fewer learner.minibatches, or more sequences"
        )
    if ranks.virtual and adapter:
        yield f"run.virtual_ranks = {ranks.virtual}: it is for all weights, and model.lora trains an adapter"
    if ranks.tensor == 1:
        return
    if shape.experts:
        yield f"run.tensor = {ranks.tensor}: experts are not cut among ranks; leave it out"
    for name, value in (("key and value heads", shape.kv_heads), ("columns of the MLP", shape.intermediate)):
        if value % ranks.tensor:
            yield f"run.tensor = {ranks.tensor}: the model has {value:,} {name}, which it must divide"
