"""Loss weights (aggregation): the weight of each decision in the loss, fixed once over the whole optimizer step.

Every scheme maps the lengths of the sequences in the batch to one weight per sequence, shared by its decisions, such
that the loss is `sum(weight * term)`. Sequences without decisions do not count. Because the weights travel with the
data, micro-batches, packing and ranks cannot change a gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float64, Int64

# Spelt out: from numpy 2.5 on `NDArray` is an alias that jaxtyping cannot read.
PerSequence: TypeAlias = Int64[np.ndarray[tuple[Any, ...], np.dtype[np.int64]], " E"]
"""Lengths in decisions, or group numbers."""
Weights: TypeAlias = Float64[np.ndarray[tuple[Any, ...], np.dtype[np.float64]], " E"]

WeightingScheme: TypeAlias = Callable[[PerSequence], Weights]


@dataclass(frozen=True, slots=True)
class PromptScheme:
    """Weighting scheme that looks at the groups of the sequences, too: `prompt_mean`, `prompt_sequence_mean`."""

    weigh: Callable[[PerSequence, PerSequence], Weights]
    """Lengths of the batch's sequences and their groups -> weight of a decision of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TermWeights:
    """Weights of a loss term of its own: the unit of its values, and their weighting scheme."""

    scheme: WeightingScheme
    """Scheme on the lengths of the sequences; with `per = "group"` on the decisions of each group, so that
    `sequence_sum` gives 1 / groups."""
    per: Literal["decision", "sequence", "group"]
    """Unit of the term's values."""


def token_mean(lengths: PerSequence) -> Weights:
    """1 / sum(lengths): every decision of the batch has the same weight (DAPO, 2025)."""
    return np.full(len(lengths), 1.0 / max(int(lengths.sum()), 1))


def sequence_mean(lengths: PerSequence) -> Weights:
    """1 / (E * length): every sequence has the same weight, independent of its length (GRPO, 2024)."""
    return 1.0 / (max(int((lengths > 0).sum()), 1) * np.maximum(lengths, 1))


def constant_length(lengths: PerSequence, *, length: int) -> Weights:
    """1 / (E * `length`): unbiased in length, as the policy gradient is (Dr.GRPO, 2025)."""
    return np.full(len(lengths), 1.0 / (max(int((lengths > 0).sum()), 1) * length))


def token_sum(lengths: PerSequence) -> Weights:
    """1: the plain sum over decisions (tinker). The gradient grows with the batch, so a learning rate fits one batch
    size.
    """
    return np.ones(len(lengths))


def sequence_sum(lengths: PerSequence) -> Weights:
    """1 / E: the mean over sequences of the sum over their decisions (LUSPO, 2026; REINFORCE)."""
    return constant_length(lengths, length=1)


def prompt_mean(lengths: PerSequence, group: PerSequence) -> Weights:
    """1 / (G * decisions of all answers to the prompt): every prompt has the same weight (SkyRL)."""
    numbers, prompts = _groups(lengths, group)
    decisions = np.bincount(numbers, weights=lengths)
    return 1.0 / (prompts * np.maximum(decisions, 1.0)[numbers])


def prompt_sequence_mean(lengths: PerSequence, group: PerSequence) -> Weights:
    """1 / (G * K_g * length): every prompt has the same weight, and every answer within it.

    GRPO's formula written out; equal to `sequence_mean` where all groups have as many answers.
    """
    numbers, prompts = _groups(lengths, group)
    answers = np.bincount(numbers, weights=(lengths > 0).astype(np.float64))
    return 1.0 / (prompts * np.maximum(answers, 1.0)[numbers] * np.maximum(lengths, 1))


def _groups(lengths: PerSequence, group: PerSequence) -> tuple[PerSequence, int]:
    """Dense group numbers, and how many groups have a decision."""
    _, numbers = np.unique(group, return_inverse=True)
    decisions = np.bincount(numbers, weights=lengths)
    return numbers, max(int((decisions > 0).sum()), 1)
