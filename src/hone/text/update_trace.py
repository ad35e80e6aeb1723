"""Trace of an update: figures of each token that the learner computes anyway, kept for the step's rollouts.

No pass over the model is made for it. What a loss does not look at (answers without an advantage, entropies of a loss
without them, tokens of other ranks) stays unknown.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.core.ragged import Ints
from hone.run.job import DecisionTrace

CLIPPED = "policy/clip_fraction"


@dataclass
class UpdateTrace:
    """Takes in the passes of one update, between `begin` and `pop`."""

    first_pass_is_start: bool = False
    """The learner's first pass over a token is made by the policy before the step's first update: there is one update
    in a step. Otherwise only log-probabilities that the loss computed before its updates are those of that policy."""
    _decisions: int = 0
    _places: Ints | None = None
    _passes: list[tuple[Ints, Tensor, Tensor, Tensor | None, Tensor | None]] = field(
        default_factory=list[tuple[Ints, Tensor, Tensor, "Tensor | None", "Tensor | None"]]
    )
    """Places, log-probabilities, denominators, those before the update, and entropies of each pass."""
    _clipped: list[tuple[Ints, Tensor]] = field(default_factory=list[tuple[Ints, Tensor]])

    def begin(self, decisions: int, places: Ints | None) -> None:
        """Begin an update on `decisions` tokens; `places` `[n]` are those that the loss takes, None: all."""
        self._decisions, self._places = decisions, places
        self._passes.clear()
        self._clipped.clear()

    def see(self, place: Ints | None, logp: Tensor, denominator: Tensor, *, old_logp: Tensor | None,
            entropy: Tensor | None) -> None:  # fmt: skip
        """Take in a micro-batch: `[n]` places among the rows' decisions, and figures of the policy in nats."""
        if self._decisions and place is not None:
            known = None if entropy is None else entropy.detach()
            self._passes.append((self._whole(place), logp.detach(), denominator.detach(), old_logp, known))

    def see_clipped(self, place: Ints | None, flags: Tensor) -> None:
        """Take in the flags `[n]` of a micro-batch's decisions whose gradient is clipped to 0."""
        if self._decisions and place is not None and len(flags) == len(place):
            self._clipped.append((self._whole(place), flags.detach()))

    def pop(self) -> DecisionTrace | None:
        """Figures of the update's decisions, and forget them; None without an update."""
        if not self._decisions:
            return None
        logp_now, logp_last, ratio, entropy = np.full((4, self._decisions), np.nan, np.float32)
        clipped = np.full(self._decisions, -1, np.int8)
        for place, logp, denominator, old_logp, known_entropy in self._passes:
            now, start = _floats(logp), None if old_logp is None else _floats(old_logp)
            if start is not None or self.first_pass_is_start:
                fresh = np.isnan(logp_now[place])
                logp_now[place[fresh]] = (now if start is None else start)[fresh]
            logp_last[place] = now
            ratio[place] = np.exp(np.minimum(now - _floats(denominator), 20.0))
            if known_entropy is not None:
                fresh = np.isnan(entropy[place])
                entropy[place[fresh]] = _floats(known_entropy)[fresh]
        for place, flags in self._clipped:
            clipped[place] = _floats(flags) > 0
        self.begin(0, None)
        return DecisionTrace(logp_now=logp_now, logp_last=logp_last, ratio=ratio, entropy=entropy, clipped=clipped)

    def _whole(self, place: Ints) -> Ints:
        return place if self._places is None else self._places[place]


def _floats(values: Tensor) -> NDArray[np.float32]:
    return values.to("cpu", torch.float32).numpy()
