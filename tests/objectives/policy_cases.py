"""Every policy loss once, on one small batch: what the generic tests run over.

A batch is E sequences of N decisions of a linear softmax policy: logits = x @ W. `W` carries the gradient; whoever
acted, the policy at the start of the update and the reference have matrices of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.objectives import (
    kl,
    mismatch,
    policy,
    selection,
    sequence,
    trust,
    weights,
)
from hone.objectives import (
    policy as covariance,
)
from hone.objectives import (
    policy as entropy,
)
from hone.objectives import (
    policy as simko,
)
from hone.objectives.terms import LossTerms, add_terms, scale_terms

LENGTHS = (3, 1, 5, 2, 6, 4, 1, 5)
FEATURES, VOCABULARY, TOP = 5, 9, 3


@dataclass(frozen=True, kw_only=True)
class Batch:
    """N decisions, float64; `sequence` `[N]` numbers their sequences among E."""

    x: Tensor
    """`[N, FEATURES]`."""
    chosen: Tensor
    advantage: Tensor
    uniform: Tensor
    sequence: Tensor
    then: Tensor
    proximal: Tensor
    anchor: Tensor
    top: Tensor
    """`[N, TOP]` ids."""
    top_then: Tensor

    def take(self, index: Tensor) -> "Batch":
        return Batch(**{name: column[index] for name, column in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class View:
    """What a loss may look at."""

    now: Tensor
    entropy: Tensor
    top_now: Tensor
    batch: Batch
    factor: Tensor
    sequence: Tensor
    """`[n]` from 0, within this micro-batch."""


@dataclass(frozen=True, kw_only=True)
class Whole:
    now: NDArray[np.float64]
    entropy: NDArray[np.float64]
    then: NDArray[np.float64]
    advantage: NDArray[np.float64]
    uniform: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    loss: Callable[[View], LossTerms]
    scheme: Callable[[NDArray[np.int64]], NDArray[np.float64]] = weights.token_mean
    select: Callable[[Whole], NDArray[np.generic]] | None = None


def make_batch(seed: int = 0, *, spread: float = 0.6, by_sequence: bool = False) -> Batch:
    """A batch whose policies are `spread` apart; a fifth of the advantages are 0."""
    rng = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    total, count = sum(LENGTHS), len(LENGTHS)
    x = normal(total, FEATURES)
    owner = torch.repeat_interleave(torch.arange(count), torch.tensor(LENGTHS))
    start = weight(seed)
    acted = torch.log_softmax(x @ (start + spread * normal(FEATURES, VOCABULARY)), 1)
    proximal = torch.log_softmax(x @ (start + 0.5 * spread * normal(FEATURES, VOCABULARY)), 1)
    reference = torch.log_softmax(x @ (start + spread * normal(FEATURES, VOCABULARY)), 1)
    chosen = torch.multinomial(acted.exp(), 1, generator=rng)[:, 0]
    advantage = normal(count)[owner] if by_sequence else normal(total)
    gone = torch.rand(count if by_sequence else total, generator=rng) < 0.2
    top_then, top = proximal.topk(TOP, dim=1)

    def of(table: Tensor) -> Tensor:
        return table.gather(1, chosen[:, None])[:, 0]

    return Batch(
        x=x,
        chosen=chosen,
        advantage=advantage.masked_fill(gone[owner] if by_sequence else gone, 0.0),
        uniform=torch.rand(total, generator=rng, dtype=torch.float64),
        sequence=owner,
        then=of(acted),
        proximal=of(proximal),
        anchor=of(reference),
        top=top,
        top_then=top_then,
    )


def weight(seed: int = 0) -> Tensor:
    """The policy's parameters `[FEATURES, VOCABULARY]`."""
    rng = torch.Generator().manual_seed(1000 + seed)
    return torch.randn(FEATURES, VOCABULARY, generator=rng, dtype=torch.float64)


def view(batch: Batch, parameters: Tensor, factor: Tensor | None = None) -> View:
    table = torch.log_softmax(batch.x @ parameters, 1)
    return View(
        now=table.gather(1, batch.chosen[:, None])[:, 0],
        entropy=-(table.exp() * table).sum(1),
        top_now=table.gather(1, batch.top),
        batch=batch,
        factor=torch.ones(len(batch.x), dtype=torch.float64) if factor is None else factor,
        sequence=torch.unique(batch.sequence, return_inverse=True)[1],
    )


def whole(batch: Batch, parameters: Tensor) -> Whole:
    seen = view(batch, parameters.detach())
    return Whole(
        now=seen.now.numpy(),
        entropy=seen.entropy.numpy(),
        then=batch.then.numpy(),
        advantage=batch.advantage.numpy(),
        uniform=batch.uniform.numpy(),
    )


def factors(case: Case, batch: Batch, parameters: Tensor) -> Tensor:
    """What the loss needs from the whole batch, `[N]`."""
    if case.select is None:
        return torch.ones(len(batch.x), dtype=torch.float64)
    return torch.from_numpy(np.asarray(case.select(whole(batch, parameters)), np.float64))


def weights_of(case: Case, batch: Batch) -> Tensor:
    """`[N]`: fixed over the whole batch."""
    lengths = torch.bincount(batch.sequence)
    return torch.from_numpy(case.scheme(lengths.numpy()))[batch.sequence]


def gradient(case: Case, batch: Batch, scale: Tensor, factor: Tensor, parameters: Tensor) -> Tensor:
    """d sum(scale * loss) / d parameters."""
    leaf = parameters.clone().requires_grad_()
    loss = (scale * case.loss(view(batch, leaf, factor)).loss).sum()
    (found,) = torch.autograd.grad(loss, leaf)
    return found


def token(function: Callable[..., LossTerms]) -> Callable[[View], LossTerms]:
    return lambda v: function(v.now, v.batch.then, v.batch.advantage)


def by_sequence(function: Callable[..., LossTerms]) -> Callable[[View], LossTerms]:
    return lambda v: function(v.now, v.batch.then, v.batch.advantage, v.sequence)


def chosen_by(function: Callable[..., LossTerms]) -> Callable[[View], LossTerms]:
    return lambda v: function(v.now, v.batch.then, v.batch.advantage, v.factor)


def weighted(correction: Callable[[View], Tensor]) -> Callable[[View], LossTerms]:
    """The clipped surrogate against the proximal policy, times a correction of engine against trainer."""

    def loss(v: View) -> LossTerms:
        return mismatch.with_mismatch_correction(
            policy.clipped_surrogate(v.now, v.batch.proximal, v.batch.advantage), correction(v)
        )

    return loss


def corrected_by(function: Callable[..., Tensor]) -> Callable[[View], LossTerms]:
    return weighted(lambda v: function(v.batch.proximal, v.batch.then))


def corrected_in_sequence(function: Callable[..., Tensor]) -> Callable[[View], LossTerms]:
    return weighted(lambda v: function(v.batch.proximal, v.batch.then, v.sequence))


def top_divergence(measure: Callable[..., Tensor], bound: float) -> Callable[[View], LossTerms]:
    def loss(v: View) -> LossTerms:
        b = v.batch
        listed = (b.top == b.chosen[:, None]).any(1)
        divergence = measure(v.now, b.proximal, v.top_now, b.top_then, listed)
        keep = trust.trust_region_mask(
            v.now, b.proximal, b.advantage, divergence, max_increase=bound, max_decrease=bound
        )
        return trust.dppo(v.now, b.proximal, b.advantage, keep)

    return loss


def simko_loss(v: View, *, high: float = 0.2, negative_cap: float | None = None) -> LossTerms:
    b = v.batch
    candidates = simko.TopKCandidates(logp=v.top_now, old_logp=b.top_then, drawn_is_top=b.top[:, 0] == b.chosen)
    forks = simko.forking_tokens(v.entropy, v.sequence, quantile=0.4)
    strength = simko.SimkoStrength(smoothing=0.3, high=high, negative_cap=negative_cap)
    return simko.simko(v.now, b.proximal, b.advantage, candidates, forks, strength)


def vespo_loss(v: View) -> LossTerms:
    b = v.batch
    return sequence.vespo(v.now, b.proximal, b.advantage, v.sequence, log_correction=b.proximal - b.then)


def kl_loss(name: str) -> Callable[[View], LossTerms]:
    return lambda v: add_terms(
        policy.clipped_surrogate(v.now, v.batch.then, v.batch.advantage),
        kl.kl_penalty(v.now, v.batch.anchor, v.batch.then, estimator=kl.kl_loss_estimator(name)),
        weight=0.3,
    )


def clip_cov_choice(w: Whole) -> NDArray[np.bool_]:
    stopped = selection.clipped_mask(w.now, w.then, w.advantage)
    return selection.clip_cov_mask(w.now, w.advantage, stopped, w.uniform, fraction=0.15, min_covariance=0.1)


LOSSES: tuple[Case, ...] = (
    Case(name="reinforce", loss=lambda v: policy.reinforce_loss(v.now, v.batch.advantage), scheme=weights.sequence_sum),
    Case(name="importance", loss=token(policy.importance_weighted), scheme=weights.token_sum),
    Case(name="ppo", loss=token(policy.clipped_surrogate)),
    Case(name="grpo", loss=token(policy.clipped_surrogate), scheme=weights.sequence_mean),
    Case(name="dr_grpo", loss=token(policy.clipped_surrogate), scheme=partial(weights.constant_length, length=7)),
    Case(name="dapo", loss=token(partial(policy.clipped_surrogate, high=0.28))),
    Case(name="dual_clip", loss=token(partial(policy.clipped_surrogate, negative_cap=1.5))),
    Case(name="cispo", loss=token(partial(policy.cispo, ratio_cap=1.3, ratio_floor=0.5))),
    Case(name="sapo", loss=token(policy.sapo), scheme=weights.sequence_mean),
    Case(name="dro", loss=token(partial(policy.dro, beta=0.7))),
    Case(
        name="decoupled",
        loss=lambda v: policy.decoupled_ppo(v.now, v.batch.then, v.batch.proximal, v.batch.advantage, weight_cap=1.5),
    ),
    Case(name="gspo", loss=by_sequence(partial(sequence.gspo, low=0.1, high=0.1)), scheme=weights.sequence_mean),
    Case(
        name="gspo_token",
        loss=by_sequence(partial(sequence.gspo_token, low=0.1, high=0.1)),
        scheme=weights.sequence_mean,
    ),
    Case(name="luspo", loss=by_sequence(partial(sequence.luspo, low=0.1, high=0.1)), scheme=weights.sequence_sum),
    Case(name="gmpo", loss=by_sequence(sequence.gmpo), scheme=weights.sequence_mean),
    Case(name="vespo", loss=vespo_loss),
    Case(name="dppo_tv", loss=token(partial(trust.dppo_tv, ratio_cap=2.0))),
    Case(name="dppo_kl", loss=token(trust.dppo_kl)),
    Case(name="dppo_top_tv", loss=top_divergence(trust.top_k_tv, 0.1)),
    Case(name="dppo_top_kl", loss=top_divergence(trust.top_k_kl, 0.03)),
    Case(
        name="m2po",
        loss=chosen_by(trust.m2po),
        select=lambda w: selection.second_moment_mask(w.now, w.then),
    ),
    Case(name="clip_cov", loss=chosen_by(covariance.clip_cov), select=clip_cov_choice),
    Case(
        name="kl_cov",
        loss=chosen_by(covariance.kl_cov),
        select=lambda w: selection.kl_cov_mask(w.now, w.advantage, fraction=0.2),
    ),
    Case(name="simko", loss=simko_loss),
    Case(name="simko_dual_clip", loss=partial(simko_loss, high=0.1, negative_cap=1.15)),
    Case(
        name="entropy_bonus",
        loss=lambda v: add_terms(token(policy.clipped_surrogate)(v), entropy.entropy_bonus(v.entropy), weight=0.2),
    ),
    Case(
        name="high_entropy",
        loss=lambda v: scale_terms(token(policy.clipped_surrogate)(v), v.factor),
        select=lambda w: selection.high_entropy_mask(w.entropy),
    ),
    Case(
        name="off_policy_mask",
        loss=lambda v: scale_terms(
            token(policy.clipped_surrogate)(v),
            mismatch.off_policy_sequence_mask(v.now, v.batch.then, v.batch.advantage, v.sequence, max_kl_nats=0.1),
        ),
    ),
    Case(name="tis", loss=corrected_by(partial(mismatch.truncated_is, weight_cap=1.2))),
    Case(name="mis", loss=corrected_by(partial(mismatch.masked_is, weight_cap=1.2))),
    Case(name="icepop", loss=corrected_by(partial(mismatch.icepop, weight_floor=0.7, weight_cap=1.4))),
    Case(name="kpop", loss=corrected_by(partial(mismatch.kpop, max_divergence_nats=0.05))),
    Case(name="sequence_tis", loss=corrected_in_sequence(mismatch.sequence_truncated_is)),
    Case(name="sequence_mis", loss=corrected_in_sequence(mismatch.sequence_masked_is)),
    Case(name="geometric_tis", loss=corrected_in_sequence(partial(mismatch.geometric_truncated_is, weight_cap=1.1))),
    Case(
        name="geometric_rejection",
        loss=corrected_in_sequence(partial(mismatch.geometric_rejection, ratio_floor=0.8, ratio_cap=1.25)),
    ),
    Case(name="kl_k2", loss=kl_loss("k2")),
    Case(name="kl_k3", loss=kl_loss("k3")),
    Case(name="kl_weighted_k3", loss=kl_loss("weighted_k3")),
    Case(name="kl_k3_valued_k2", loss=kl_loss("k3_valued_k2")),
)

BY_NAME = {case.name: case for case in LOSSES}


def on_policy(batch: Batch, parameters: Tensor) -> Batch:
    """The same batch as if the policy itself had acted, a moment ago."""
    seen = view(batch, parameters.detach())
    return replace(batch, then=seen.now, proximal=seen.now, top_then=seen.top_now)
