"""Other forms of a batch that must have the same gradient: padded, much larger, or with nothing left out.

Belongs here: batches that no split makes. Splits of one batch are in `check.py`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hone.core.reduction import ONE_PROCESS, Reduction
from hone.learner.gradient import TrainingRows
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.token_scorer import LanguageNetwork
from hone.objectives.terms import LossTerms
from hone.text.rows import TokenBatch, TokenRows

LARGE_MICRO_BATCH = 512
"""Sequences, or decisions of control, of the largest micro-batch."""
SILENCED_EVERY = 3
"""Period of the units with advantage 0, in the check that a learner may leave such units out."""

Objective = Callable[[Any, Any], LossTerms]
RowFinisher = Callable[[TrainingRows[Any], Reduction], TrainingRows[Any]]
"""Weights rows and makes the learner's selections over the batch of all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchVariant:
    """Rows whose gradient must be `copies` times that of `reference`."""

    name: str
    detail: str
    rows: TrainingRows[Any]
    reference: TrainingRows[Any]
    copies: int = 1


def batch_variants(rows: TrainingRows[Any]) -> Iterator[BatchVariant]:
    """Variants of a weighted batch."""
    yield repeated_batch(rows)
    if isinstance(rows, TokenRows):
        padded = replace(rows, layout=replace(rows.layout, pad_to_size=not rows.layout.pad_to_size))
        detail = "tokens without a decision fill each micro-batch up"
        yield BatchVariant(name="padded to a fixed size", detail=detail, rows=padded, reference=rows)


def repeated_batch(rows: TrainingRows[Any]) -> BatchVariant:
    """The batch several times over in one micro-batch: a loss must not change where a micro-batch is large."""
    sequences = len(rows.episodes) if isinstance(rows, TokenRows) else len(rows)
    copies = max(2, -(-LARGE_MICRO_BATCH // max(1, sequences)))
    return BatchVariant(
        name="one large micro-batch",
        detail=f"the batch {copies} times over: {copies * sequences} "
        + ("sequences" if isinstance(rows, TokenRows) else "rows"),
        rows=rows.take(np.tile(np.arange(len(rows)), copies)),
        reference=rows,
        copies=copies,
    )


def without_advantage(laid: TokenRows, finish: RowFinisher) -> BatchVariant | None:
    """The batch with advantage 0 in every third sequence (or group), which a loss that is proportional to the advantage
    skips, against the same batch with nothing skipped. None if the loss skips nothing.
    """
    if not laid.layout.skip_zero_advantage:
        return None
    units = laid.unit_sequences if laid.layout.unit == "group" else np.arange(len(laid.episodes) + 1)
    unit = np.repeat(np.arange(len(units) - 1), np.diff(units))
    silent = (unit % SILENCED_EVERY == 1)[laid.episodes.owner]
    quiet = replace(laid, advantage=np.where(silent, np.float32(0), laid.advantage))
    whole = replace(quiet, layout=replace(quiet.layout, skip_zero_advantage=False))
    return BatchVariant(
        name="advantage 0 not left out",
        detail="the loss is declared proportional to the advantage, so that these are skipped",
        rows=finish(whole, ONE_PROCESS),
        reference=finish(quiet, ONE_PROCESS),
    )


def with_explicit_old_logp(objective: Objective) -> Objective:
    """The objective with the policy's own log-probabilities given as data, as when they were computed before the
    update: what is compared with must not carry a gradient."""

    def run(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
        with torch.no_grad():
            known = policy.token_logprobs(batch.packed, batch.at, batch.chosen, sampling_mask=batch.sampling_mask).logp
        return objective(policy, replace(batch, old_logp=known))

    return run


def with_nan_hidden_states(objective: Objective) -> Objective:
    """The objective with NaN in every hidden state without a decision."""

    def run(policy: LanguageNetwork, batch: TokenBatch) -> LossTerms:
        def spoil(_module: nn.Module, _given: object, hidden: Tensor) -> Tensor:
            decides = torch.zeros(len(hidden), dtype=torch.bool)
            decides[batch.at] = True
            return torch.where(decides[:, None], hidden, torch.nan)

        hook = policy.decoder.norm.register_forward_hook(spoil)
        try:
            return objective(policy, batch)
        finally:
            hook.remove()

    return run
