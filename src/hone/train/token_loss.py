"""A policy's loss on tokens: what an objective may look at, what has to be found out for it, and how the recorded
log-probabilities are held against the trainer's own.

Three policies are told apart: the one that acted (its log-probabilities were recorded by an engine), the one at the
start of the update, and the one being stepped. The loss's ratio is taken between the last and `then`; what lies between
the first two is mismatch, measured before anything is clipped.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from hone.core.config import Config
from hone.core.credit import Credits, Metrics
from hone.core.episodes import Episodes
from hone.core.errors import DivergedError
from hone.models.outlook import Likeliest
from hone.models.policy import TokenPolicy
from hone.objectives.terms import Terms
from hone.objectives.weights import Scheme
from hone.train.tokens import Known, TokenBatch, TokenLayout, TokenRows

Denominator = Literal["auto", "self", "recomputed", "recorded"]


class RatioConfig(Config):
    """What the policy is compared with, and when a difference between engine and trainer stops the run."""

    denominator: Denominator = "auto"
    """`self`: the policy as it is, so that the ratio is exactly 1 (one optimizer step per rollout); `recomputed`: the
    trainer's own log-probability before the update, one more forward pass; `recorded`: that of whoever acted. `auto` is
    the first that fits: `self`, else `recomputed`, and `recorded` where answers may be older than the policy."""
    alarm_nats: float | None = Field(default=None, gt=0)
    """Mean |trainer - engine| of a step's log-probabilities above which the run stops; nothing: never."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenView:
    """What is known of n decisions when a loss is computed; only `now`, `entropy` and `among` carry a gradient."""

    now: Tensor
    """`[n]` nats, of the policy being stepped."""
    then: Tensor
    """`[n]` nats, of the policy that the ratio is taken against."""
    acted: Tensor
    """`[n]` nats, of whoever acted, as recorded."""
    start: Tensor
    """`[n]` nats, of the trainer's policy when the update began, where it was asked; otherwise `now` as data."""
    advantage: Tensor
    """`[n]`."""
    sequence: Tensor
    """`[n]` number of the decision's sequence among those of this micro-batch, which holds whole sequences."""
    entropy: Tensor | None
    """`[n]` nats."""
    anchor: Tensor | None
    """`[n]` nats, of the reference policy."""
    among: Tensor | None
    """`[n, K]` nats, of the policy being stepped, for the tokens in `likeliest`."""
    likeliest: Likeliest | None
    """`[n, K]` of the policy when the update began."""
    factor: Tensor | None
    """`[n]` what `Loss.select` returned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """All N decisions of one optimizer step, as data: what a selection over the whole batch may look at."""

    now: NDArray[np.floating]
    then: NDArray[np.floating]
    advantage: NDArray[np.floating]
    entropy: NDArray[np.floating]
    offsets: NDArray[np.int64]
    """`[E+1]` decisions of each sequence."""
    update: int
    """Number of the optimizer step: keys random choices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One loss on tokens: how it is computed, aggregated, and what it needs."""

    objective: Callable[[TokenView], Terms]
    scheme: Scheme
    proportional: bool
    """The loss is proportional to the advantage, so that sequences with advantage 0 need not be computed."""
    reference: bool = False
    """It compares with the policy as it was at the start of the run: a frozen copy is kept."""
    entropy: bool = False
    """It looks at entropies."""
    likeliest: int = 0
    """It looks at this many of the likeliest tokens."""
    start: bool = False
    """It looks at the policy as it was when the update began, whatever its ratio is taken against."""
    select: Callable[[Whole], NDArray[np.floating]] | None = None
    """Chooses among all decisions of an optimizer step, before it is cut into micro-batches: a factor for each, `[N]`.
    Costs a forward pass per optimizer step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """A `Loss`, ready to be stepped: questions are put to the policy here, and nowhere else."""

    loss: Loss
    denominator: Literal["self", "recomputed", "recorded"]
    micro_batch_tokens: int
    reference: TokenPolicy | None = None

    def layout(
        self, layout: TokenLayout, policy: TokenPolicy
    ) -> Callable[[Episodes, Credits], TokenRows]:  # fmt: skip
        """Rows of a step's episodes, with what has to be known before the first update."""

        def lay(episodes: Episodes, credits: Credits) -> TokenRows:
            rows = layout(episodes, credits)
            return rows.knowing(self._known(rows, policy))

        return lay

    def objective(self, policy: TokenPolicy, batch: TokenBatch) -> Terms:
        view = self.view(policy, batch)
        terms = self.loss.objective(view)
        return Terms(loss=terms.loss, told=lambda: {**terms.metrics, **mismatch(view)})

    def view(self, policy: TokenPolicy, batch: TokenBatch) -> TokenView:
        look = policy.outlook(
            batch.packed,
            batch.at,
            batch.chosen,
            entropy=self.loss.entropy,
            among=None if batch.likeliest is None else batch.likeliest.ids,
            kept=batch.kept,
        )
        start = look.logp.detach() if batch.proximal is None else batch.proximal
        return TokenView(
            now=look.logp,
            then=batch.logp if self.denominator == "recorded" else start,
            acted=batch.logp,
            start=start,
            advantage=batch.advantage,
            sequence=batch.sequence,
            entropy=look.entropy,
            anchor=batch.anchor,
            among=look.among,
            likeliest=batch.likeliest,
            factor=batch.factor,
        )

    def select(self, policy: TokenPolicy, rows: TokenRows, update: int) -> TokenRows:
        """`rows` of one optimizer step with the factors that `Loss.select` gives them."""
        choose = self.loss.select
        if choose is None:
            return rows
        episodes = rows.episodes
        now, entropy = rows.asked(partial(_logp_and_entropy, policy), self.micro_batch_tokens)
        then = rows.known.proximal
        if self.denominator == "recorded":
            then = episodes.logp
        factor = choose(
            Whole(
                now=now.astype(np.float64),
                then=(now if then is None else then).astype(np.float64),
                advantage=rows.advantage,
                entropy=entropy.astype(np.float64),
                offsets=episodes.offsets,
                update=update,
            )
        )
        return rows.knowing(replace(rows.known, factor=factor.astype(now.dtype)))

    def _known(self, rows: TokenRows, policy: TokenPolicy) -> Known:
        budget, known = self.micro_batch_tokens, Known()
        if self.reference is not None:
            (anchor,) = rows.asked(partial(_logp, self.reference), budget)
            known = replace(known, anchor=anchor)
        if self.denominator == "recomputed" or self.loss.start:
            (proximal,) = rows.asked(partial(_logp, policy), budget)
            known = replace(known, proximal=proximal)
        if self.loss.likeliest:
            ids, logp = rows.asked(partial(_likeliest, policy, self.loss.likeliest), budget)
            known = replace(known, likeliest_ids=ids.astype(np.int64), likeliest_logp=logp)
        return known


def _logp(policy: TokenPolicy, batch: TokenBatch) -> tuple[Tensor]:
    return (policy.outlook(batch.packed, batch.at, batch.chosen, kept=batch.kept).logp,)


def _logp_and_entropy(policy: TokenPolicy, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    look = policy.outlook(batch.packed, batch.at, batch.chosen, entropy=True, kept=batch.kept)
    assert look.entropy is not None
    return look.logp, look.entropy


def _likeliest(policy: TokenPolicy, count: int, batch: TokenBatch) -> tuple[Tensor, Tensor]:
    found = policy.likeliest(batch.packed, batch.at, count)
    return found.ids, found.logp


def denominator_of(
    config: RatioConfig, *, updates_per_rollout: int, stale: bool
) -> Literal["self", "recomputed", "recorded"]:
    """What `auto` comes to; raises ValueError for `self` where the policy moves between rollouts."""
    if config.denominator == "self" and (updates_per_rollout > 1 or stale):
        raise ValueError(
            f'ratio.denominator = "self" fits one optimizer step per rollout of the newest policy, and here are '
            f'{updates_per_rollout}{" on older answers" if stale else ""}; take "recomputed", "recorded" or "auto"'
        )
    if config.denominator != "auto":
        return config.denominator
    if stale:
        return "recorded"
    return "self" if updates_per_rollout == 1 else "recomputed"


def mismatch(view: TokenView) -> Mapping[str, Tensor]:
    """How far the trainer's policy at the start of the update is from whoever acted, before any clipping; `[n]` each.

    |difference| in nats (mean and largest), the share of ratios above 2, and the ratio itself, of which the learner
    reports the effective sample size (sum w)^2 / (n sum w^2): 1 when nothing has to be corrected.
    """
    gap = (view.start - view.acted).double()
    weight = gap.clamp(max=20.0).exp()
    size = gap.abs()
    return {
        "mismatch/mean": size,
        "mismatch/value_max": size,
        "mismatch/ratio_above_2": (weight > 2.0).to(gap.dtype),
        "mismatch/ratio_ess": weight,
    }


def alarm(config: RatioConfig, metrics: Metrics) -> None:
    """Raises DivergedError when engine and trainer differ by more than the config allows."""
    found, limit = metrics.get("mismatch/mean"), config.alarm_nats
    if limit is None or found is None or found <= limit:
        return
    raise DivergedError(
        f"the trainer's log-probabilities are {found:.3g} nats a token from the recorded ones, above "
        f"ratio.alarm_nats = {limit:g}: what acts is not the policy that is trained. Look at mismatch/* in the run's "
        "metrics; an engine of lower precision, stale answers, or weights that were not handed over are usual causes."
    )
