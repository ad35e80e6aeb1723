"""Natural-gradient learner: one step per batch within a bound on the change of the policy (TRPO).

Belongs here: the closures for `objectives.natural`: gradients summed over micro-batches, and the loss and the KL
divergence of the current policy. An algorithm is the `layout` and the `surrogate`. A critic, if there is one, has its
own learner, which runs afterwards.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn

from hone.core.config import Config
from hone.core.credit import NO_VALUES, Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.errors import DivergedError
from hone.core.reduction import ONE_PROCESS, Reduction, total
from hone.core.state import State, integer, substate
from hone.learner.gradient import GradientLearner, MetricsAccumulator, TensorBatch, TrainingRows, own_micro_batches
from hone.learner.share import ParameterStore, current_share
from hone.objectives.kl import k3
from hone.objectives.natural import TrustRegion, TrustRegionOutcome, finite_difference_product, trust_region_step
from hone.objectives.terms import LossTerms

P = TypeVar("P", bound=nn.Module)
B = TypeVar("B", bound=TensorBatch)


class TrustRegionConfig(Config):
    """Trust region of a natural-gradient step: its radius and the line search."""

    max_kl_nats: float = Field(default=0.01, gt=0)
    """Bound on the mean KL(before || after) per decision."""
    damping: float = Field(default=0.1, ge=0)
    """Damping added to the diagonal of the Fisher matrix."""
    iterations: int = Field(default=10, ge=1)
    """Iterations of conjugate gradients, at two gradients each."""
    backtracks: int = Field(default=10, ge=1)
    """Step lengths that the line search tries, each `shrink` times the one before."""
    shrink: float = Field(default=0.8, gt=0, lt=1)
    """See `backtracks`."""
    least_gain: float = Field(default=0.1, ge=0, lt=1)
    """Least actual improvement of an accepted step, as a share of the predicted one."""

    def region(self) -> TrustRegion:
        return TrustRegion(
            max_kl_nats=self.max_kl_nats,
            damping=self.damping,
            iterations=self.iterations,
            max_backtracks=self.backtracks,
            shrink=self.shrink,
            min_gain_share=self.least_gain,
        )


def k3_distance(logp: Tensor, old_logp: Tensor) -> Tensor:
    """exp(d) - 1 - d `[n]` nats, d = now - then: on decisions of `then`, the estimate of KL(then || now).

    Never negative, 0 with slope 0 at now = then, where its second derivative is the Fisher matrix on the sample.
    """
    return k3(old_logp, logp)


@dataclass
class TrustRegionLearner(Generic[P, B]):
    """`policy` is improved by natural gradient steps of `parameters`, on rows made by `layout`."""

    policy: P
    layout: Callable[[Episodes, Credits], TrainingRows[B]]
    surrogate: Callable[[P, B], tuple[LossTerms, Tensor]]
    """The loss to lower, and the distance `[n]` nats from the policy as it was before the step (`k3_distance`)."""
    parameters: ParameterStore
    region: TrustRegion
    critic: GradientLearner[P, B] | None = None
    """Stepped on the same episodes after the policy."""
    predict_values: Callable[[P, Episodes], Values] | None = None
    micro_batch_tokens: int = 1 << 62
    reduction: Reduction = ONE_PROCESS
    """Totals over the ranks that share a batch."""
    updates: int = 0

    def values(self, episodes: Episodes) -> Values:
        return NO_VALUES if self.predict_values is None else self.predict_values(self.policy, episodes)

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        """Raises DivergedError for a loss or gradient that is no number; the weights are then those before."""
        rows = self.layout(episodes, credits).weighted(self.reduction)
        pieces = own_micro_batches(rows, self.micro_batch_tokens)
        count = total(sum(len(piece.tensors().weight) for piece, counts in pieces if counts), self._everybody())
        tally = MetricsAccumulator()
        loss = self._loss_gradient(rows, tally)
        norm = float(self.parameters.gradient_norm())
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise DivergedError(
                f"policy: loss {loss}, gradient norm {norm} at update {self.updates}: not a finite number. The step "
                "was not taken: the weights are those before it. Look at the saved batch."
            )
        outcome = self._step(rows, count)
        self.updates += 1
        step_metrics = {
            "policy/loss": loss,
            "policy/grad_norm": norm,
            "natural/accepted": float(outcome.accepted),
            "natural/gain": outcome.loss_decrease,
            "natural/kl_nats": outcome.kl_nats,
            "natural/share": outcome.step_share,
            "natural/tries": float(outcome.tries),
        }
        after = {} if self.critic is None else self.critic.update(episodes, credits)
        return {**credits.metrics, **after, **tally.means(self._everybody()), **step_metrics}

    def _everybody(self) -> Reduction:
        """Reduction of what is counted on this rank's micro-batches."""
        share = current_share()
        return self.reduction if share is None else share.reduction

    def _step(self, rows: TrainingRows[B], count: float) -> TrustRegionOutcome:
        """Step along the natural gradient; `gradients` are those of the loss."""
        owned, gradient = self.parameters.owned, _vector(self.parameters.gradients).clone()
        data, dot = _vector(owned), self.parameters.dot

        def spread() -> None:
            """Write `data` into the parameters, whose memory it mostly is."""
            with torch.no_grad():
                for own, piece in zip(owned, data.split([own.numel() for own in owned]), strict=True):
                    if own.data_ptr() != piece.data_ptr():
                        own.copy_(piece.view_as(own))

        def kl_gradient() -> Tensor:
            spread()
            return self._kl_gradient(rows, count)

        def loss_and_kl() -> tuple[float, float]:
            spread()
            return self._loss_and_kl(rows, count)

        product = finite_difference_product(data, kl_gradient, dot=dot)
        try:
            return trust_region_step(data, gradient, product, loss_and_kl, self.region, dot=dot)
        finally:
            spread()

    def _loss_gradient(self, rows: TrainingRows[B], tally: MetricsAccumulator) -> float:
        """The loss; its gradient is then that of the parameters."""
        own = 0.0
        with self.parameters.collect_gradients():
            for piece, counts in own_micro_batches(rows, self.micro_batch_tokens):
                batch = piece.tensors()
                terms, _ = self.surrogate(self.policy, batch)
                loss = terms.weighted_sum(batch.weight)
                (loss if counts else loss * 0.0).backward()
                if counts:
                    own += float(loss.detach())
                    tally.add(terms)
        self._reduce()
        return total(own, self._everybody())

    def _kl_gradient(self, rows: TrainingRows[B], count: float) -> Tensor:
        with self.parameters.collect_gradients():
            for piece, counts in own_micro_batches(rows, self.micro_batch_tokens):
                _, nats = self.surrogate(self.policy, piece.tensors())
                (nats.sum() / count if counts else nats.sum() * 0.0).backward()
        self._reduce()
        return _vector(self.parameters.gradients)

    def _reduce(self) -> None:
        if (share := current_share()) is not None:
            self.parameters.reduce(share)

    @torch.no_grad()
    def _loss_and_kl(self, rows: TrainingRows[B], count: float) -> tuple[float, float]:
        """Loss, and mean distance in nats, of the policy as it stands."""
        loss, nats = 0.0, 0.0
        for piece, counts in own_micro_batches(rows, self.micro_batch_tokens):
            batch = piece.tensors()
            terms, apart = self.surrogate(self.policy, batch)
            if counts:
                loss += float(terms.weighted_sum(batch.weight))
                nats += float(apart.sum())
        return total(loss, self._everybody()), total(nats, self._everybody()) / count

    def state(self) -> State:
        return {"updates": self.updates, "critic": {} if self.critic is None else self.critic.state()}

    def restore(self, state: State) -> None:
        self.updates = integer(state, "updates")
        if self.critic is not None:
            self.critic.restore(substate(state, "critic"))


def _vector(tensors: Sequence[Tensor]) -> Tensor:
    """All elements `[P]`, in the memory of a single flat tensor."""
    return tensors[0] if len(tensors) == 1 and tensors[0].dim() == 1 else torch.cat([one.flatten() for one in tensors])
