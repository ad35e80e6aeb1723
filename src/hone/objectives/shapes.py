"""Shape annotations of the losses' arguments and results, in jaxtyping's notation.

Not checked during a run, so they cost nothing; the tests check them in every loss (`jaxtyping.install_import_hook`): a
column `[n, 1]` in place of `[n]` would broadcast to `[n, n]`, and is refused there. Axes with the same letter are
equally long within one call: n rows of a micro-batch, p pairs of answers, k entries of each, K listed tokens, a numbers
of an action. Shapes of whole batches are in `selection.py` and `weights.py`, which need no torch.
"""

from collections.abc import Mapping
from typing import TypeAlias

from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

PerDecision: TypeAlias = Float[Tensor, " n"]
PerAnswer: TypeAlias = Float[Tensor, " n"]
PerPair: TypeAlias = Float[Tensor, " p"]

Flags: TypeAlias = Bool[Tensor, " n"]
Indices: TypeAlias = Int[Tensor, " n"]
"""Numbers of sequences, actions or classes."""
Multiplier: TypeAlias = Shaped[Tensor, " n"]
"""A mask or a weight, of any type; rows with 0 are left out."""
Shared: TypeAlias = Float[Tensor, "#n"]
"""One number for all rows, or one for each."""
Scalar: TypeAlias = Float[Tensor, ""]
One: TypeAlias = Float[Tensor, "1"]
"""A parameter that all rows share."""

Table: TypeAlias = Float[Tensor, "n k"]
"""An entry for each of k actions, classes, tokens or quantiles."""
TopKLogps: TypeAlias = Float[Tensor, "n K"]
Actions: TypeAlias = Float[Tensor, "n a"]

Members: TypeAlias = Float[Tensor, "K n d"]
"""d numbers of n rows, by each of the K members of an ensemble."""

Elementwise: TypeAlias = Float[Tensor, " *shape"]
"""Any shape, the same in and out."""
Metrics: TypeAlias = Mapping[str, Float[Tensor, " _"]]
"""Metrics by name; mostly `[n]`, fewer if a metric concerns a part of the rows."""
