"""Losses on the log-probability of an action: the clipped surrogate and its variants, one term per decision.

They take the log-probabilities under the learning policy and the behaviour policy and an advantage, for control and
text alike. `now` carries the gradient, everything else is data. Losses with a sequence-level ratio are in
`sequence.py`, those with a trust region in `trust.py`.

Parameters: `low` and `high` are clip widths around a ratio of 1, `*_cap` and `*_floor` absolute ratios, `log_*` widths
in nats, `*_probability` differences of probability. Where the advantage is 0 there is no gradient, so such sequences
may be left out, except with `dro`, penalties and entropy terms.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hone.objectives.ratios import (
    LOG_RATIO_LIMIT,
    at_least_float32,
    is_saturated,
    logp_difference,
    ratio,
    ratio_metrics,
    sequence_quantile,
)
from hone.objectives.terms import Flags, Indices, LossTerms, Multiplier, PerDecision, TopKLogps


def surrogate(
    r: PerDecision, advantage: PerDecision, *, low: float, high: float, negative_cap: float | None = None
) -> tuple[PerDecision, Flags]:
    """-min(r A, clip(r, 1 - low, 1 + high) A) `[n]`, and the flags `[n]` of decisions whose gradient is clipped to 0.

    `r` is any ratio (token, sequence, mixture). With `negative_cap` c the loss of decisions with A < 0 grows no further
    than c |A| (dual clip). The gradient vanishes exactly where A > 0 and r > 1 + high, or A < 0 and (r < 1 - low or r >
    c). Clipping the ratio alone would also remove gradients that correct the policy.
    """
    cost = -advantage
    free = cost * r
    with torch.no_grad():
        held = cost * r.clamp(1.0 - low, 1.0 + high)
        stopped = held > free  # the other branch is the larger: the gradient has stopped
        if negative_cap is not None:
            capped = (cost > 0) & (r > negative_cap)
            held = torch.where(capped, cost * negative_cap, held)
            stopped = stopped | capped
    return torch.where(stopped, held, free), stopped


def clipped_surrogate(
    now: PerDecision,
    then: PerDecision,
    advantage: PerDecision,
    *,
    low: float = 0.2,
    high: float = 0.2,
    negative_cap: float | None = None,
) -> LossTerms:
    """Clipped surrogate: -min(r * A, clip(r, 1 - low, 1 + high) * A), r = exp(now - then).

    The gradient vanishes exactly where A > 0 and r > 1 + high, or A < 0 and r < 1 - low: there the policy has moved far
    enough. Source: PPO, Schulman et al., 2017 (0.2); GRPO, Shao et al., 2024, is this with a group-relative A. `high`
    above `low` is "clip higher" (0.28, DAPO, Yu et al., 2025). `negative_cap` (off; 3 in Ye et al., "Mastering Complex
    Control in MOBA Games", 2020) is dual clip: an absolute ratio beyond which a punished decision is punished no more.

    Metrics: share of decisions without gradient, the estimate r - 1 - log r of KL(then || now) in nats, the largest
    ratio.
    """
    r = ratio(now, then)
    loss, stopped = surrogate(r, advantage, low=low, high=high, negative_cap=negative_cap)
    return LossTerms(
        loss=loss,
        compute_metrics=lambda: {
            "policy/clip_fraction": _stopped(stopped, logp_difference(now, then), advantage),
            **ratio_metrics(r, logp_difference(now, then)),
        },
    )


def _stopped(stopped: Flags, log_ratio: PerDecision, advantage: PerDecision) -> PerDecision:
    """Flags of decisions without gradient: clipped, or past the numerical cap of the log-ratio."""
    return (stopped | (is_saturated(log_ratio) & (advantage != 0))).to(log_ratio.dtype)


def reinforce_loss(now: PerDecision, advantage: PerDecision) -> LossTerms:
    """-A * log p: the policy gradient (REINFORCE, Williams, 1992)."""
    return LossTerms(loss=-advantage * at_least_float32(now))


def importance_weighted(now: PerDecision, then: PerDecision, advantage: PerDecision) -> LossTerms:
    """-r * A, r = exp(now - then): the surrogate without clipping, the objective of TRPO's step (Schulman et al.,
    2015).

    Its gradient is unbiased off policy, and its variance unbounded.
    """
    r = ratio(now, then)
    return LossTerms(loss=-advantage * r, compute_metrics=lambda: ratio_metrics(r, logp_difference(now, then)))


def cispo(
    now: PerDecision, then: PerDecision, advantage: PerDecision, *, ratio_cap: float = 5.0, ratio_floor: float = 0.0
) -> LossTerms:
    """-sg[clip(r, ratio_floor, ratio_cap)] * A * log p (CISPO, MiniMax-M1, 2025): capped, and never without gradient.

    The cap is an absolute ratio, 5 as in ScaleRL (Khatri et al., 2025); the CISPO paper does not publish its own. Other
    libraries take a width there (1 + high), or an absolute cap under the name of a width. Metrics: share of decisions
    whose ratio was capped (they keep a gradient), KL, largest ratio.
    """
    return capped_gradient(now, logp_difference(now, then), advantage, ratio_cap=ratio_cap, ratio_floor=ratio_floor)


def capped_gradient(
    now: PerDecision, log_ratio: PerDecision, advantage: PerDecision, *, ratio_cap: float, ratio_floor: float
) -> LossTerms:
    """-sg[clip(r, ratio_floor, ratio_cap)] * A * log p, r = exp(`log_ratio`): of a token, or of its sequence."""
    r = torch.exp(log_ratio.clamp(max=LOG_RATIO_LIMIT)).detach()
    loss = -r.clamp(ratio_floor, ratio_cap) * advantage * at_least_float32(now)

    def compute_metrics() -> dict[str, PerDecision]:
        outside = (r > ratio_cap) | (r < ratio_floor)
        return {"policy/capped_fraction": outside.to(r.dtype), **ratio_metrics(r, log_ratio)}

    return LossTerms(loss=loss, compute_metrics=compute_metrics)


def sapo(
    now: PerDecision,
    then: PerDecision,
    advantage: PerDecision,
    *,
    positive_steepness: float = 1.0,
    negative_steepness: float = 1.05,
) -> LossTerms:
    """-A * (4 / t) * sigmoid(t (r - 1)), t by the sign of A (soft adaptive policy optimisation, 2025, 2511.20347).

    A smooth gate instead of a clip: the gradient is that of -A * r times 4 s (1 - s), which is 1 at r = 1 and fades on
    both sides, faster for punished decisions. The value at r = 1 is -2 A / t and not -A: losses are not comparable with
    PPO's, gradients are. A = 0 counts as negative, which changes no loss. Weights: `sequence_mean`. Metrics: the gate.
    """
    change = logp_difference(now, then)
    return soft_gate(change, advantage, positive_steepness=positive_steepness, negative_steepness=negative_steepness)


def soft_gate(
    log_ratio: PerDecision, advantage: PerDecision, *, positive_steepness: float, negative_steepness: float
) -> LossTerms:
    """-A * (4 / t) * sigmoid(t (r - 1)), r = exp(`log_ratio`): of a token, or of its sequence."""
    r = torch.exp(log_ratio.clamp(max=LOG_RATIO_LIMIT))
    t = torch.full_like(r, negative_steepness).masked_fill(advantage > 0, positive_steepness)
    gate = torch.sigmoid(t * (r - 1.0))
    return LossTerms(
        loss=-advantage * (4.0 / t) * gate,
        compute_metrics=lambda: {"policy/gate": 4.0 * gate * (1.0 - gate), **ratio_metrics(r, log_ratio)},
    )


def dro(now: PerDecision, then: PerDecision, advantage: PerDecision, *, beta: float) -> LossTerms:
    """-(A log p - beta / 2 * (log p - log p_then)^2): direct reward optimisation (Richemond et al., 2024).

    `beta` is the coefficient of the squared log-ratio, in 1 / nat; there is no published default for token advantages.
    Off policy without a ratio, so nothing can explode; not proportional to the advantage: sequences with A = 0 are
    pulled back.
    """
    change = logp_difference(now, then)
    return LossTerms(
        loss=0.5 * beta * change.square() - advantage * at_least_float32(now),
        compute_metrics=lambda: {"policy/squared_log_ratio": change.square()},
    )


def decoupled_ppo(
    now: PerDecision,
    then: PerDecision,
    proximal: PerDecision,
    advantage: PerDecision,
    *,
    clipped: Callable[[PerDecision, PerDecision, PerDecision], LossTerms] = clipped_surrogate,
    weight_cap: float | None = None,
    weight_floor: float | None = None,
) -> LossTerms:
    """w * max(-A u, -A clip(u, 1 - low, 1 + high)), u = now / proximal, w = sg[proximal / then] (decoupled PPO).

    Three policies: the behaviour policy (`then`), the policy at the start of the update (`proximal`), and the learning
    one. The clip keeps close to `proximal`, and w corrects for stale data (Hilton et al., 2021; AReaL, 2025).
    `weight_cap` and `weight_floor` are absolute bounds on w (off); with a cap this is truncated importance sampling.
    `clipped` is the loss on u, `clipped_surrogate` with other widths or with a dual clip.
    """
    terms = clipped(now, proximal, advantage)
    weight = ratio(proximal, then).detach()
    if weight_cap is not None or weight_floor is not None:
        weight = weight.clamp(min=weight_floor, max=weight_cap)
    return LossTerms(
        loss=weight * terms.loss,
        compute_metrics=lambda: {**terms.metrics, "mismatch/weight": weight, "mismatch/weight_max": weight},
    )


# -------------------------------------------------------------------------------------------------------------- entropy
# The entropy bonus, on the entropy `[n]` of each decision's distribution.
#
# To restrict the gradient to high-entropy decisions, select them over the whole batch (`selection.high_entropy_mask`)
# and apply the mask with `terms.scale_terms`.


def entropy_bonus(entropy: PerDecision) -> LossTerms:
    """-H per decision, `entropy` in nats with gradient; add it with a weight: `add_terms(loss, bonus, weight=0.001)`.

    The published default weight is 0 except in classic PPO (0.01). Not proportional to the advantage.
    """
    return LossTerms(
        loss=-at_least_float32(entropy),
        compute_metrics=lambda: {"policy/entropy_nats": at_least_float32(entropy).detach()},
    )


# ----------------------------------------------------------------------------------------------------------- covariance
# Losses that preserve entropy by treating the tokens of the largest covariance separately: Clip-Cov and KL-Cov.
#
# Source: Cui et al., "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", 2025, 2505.22617.
# The change of entropy in a step is minus the covariance of log-probability and advantage, and few tokens make up most
# of it. `selection` selects them over the whole batch of the optimizer step; the losses here take the mask as data.


def clip_cov(
    now: PerDecision,
    then: PerDecision,
    advantage: PerDecision,
    dropped: Multiplier,
    *,
    low: float = 0.2,
    high: float = 0.2,
    negative_cap: float | None = None,
) -> LossTerms:
    """The clipped surrogate, 0 where `dropped` is not 0 (Clip-Cov, 2025); see `selection.clip_cov_mask`.

    Metrics: those of the surrogate, with dropped decisions counted in `clip_fraction`, and the share dropped.
    """
    terms = clipped_surrogate(now, then, advantage, low=low, high=high, negative_cap=negative_cap)
    left_out = dropped != 0

    def compute_metrics() -> dict[str, PerDecision]:
        metrics = dict(terms.metrics)
        metrics["policy/clip_fraction"] = metrics["policy/clip_fraction"].masked_fill(left_out & (advantage != 0), 1.0)
        return metrics | {"policy/covariance_fraction": left_out.to(terms.loss.dtype)}

    return LossTerms(loss=torch.where(left_out, 0.0, terms.loss), compute_metrics=compute_metrics)


def kl_cov(
    now: PerDecision, then: PerDecision, advantage: PerDecision, chosen: Multiplier, *, penalty: float = 1.0
) -> LossTerms:
    """-r A, plus `penalty` * |log r| where `chosen` is not 0 (KL-Cov, 2025); see `selection.kl_cov_mask`.

    No ratio is clipped. At r = 1 the penalty has no slope (its subgradient there is 0), so the first step on a batch is
    the policy gradient. Not proportional to the advantage where chosen.
    """
    r = ratio(now, then)
    held_back = (chosen != 0).to(r.dtype)
    return LossTerms(
        loss=penalty * held_back * logp_difference(now, then).abs() - advantage * r,
        compute_metrics=lambda: {
            "policy/covariance_fraction": held_back,
            **ratio_metrics(r, logp_difference(now, then)),
        },
    )


# ---------------------------------------------------------------------------------------------------------------- simko
# SimKO: spreads probability over the top-K candidates of right answers, and penalises the top-1 of wrong ones more.
#
# Loss of "Simple Pass@K Policy Optimization" (Peng et al., 2025, 2510.14807), which needs the log-probabilities of the
# K most likely tokens besides the sampled one.


TINY = 1e-8


@dataclass(frozen=True, slots=True, kw_only=True)
class TopKCandidates:
    """The K most likely tokens under the policy at the start of the update, at each decision."""

    logp: TopKLogps
    """Nats, with gradient."""
    old_logp: TopKLogps
    """Nats of the same tokens: they are matched by id, never by rank."""
    drawn_is_top: Flags
    """The sampled token is the most likely of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimkoStrength:
    """How far SimKO departs from PPO's loss, and the clip of both: the numbers of the authors' scripts."""

    smoothing: float = 0.01
    """`mix`: share of the gradient of right answers that is spread over the candidates."""
    penalty_scale: float = 1.1
    """`boost`: factor of the advantage of wrong answers whose likeliest token was chosen."""
    low: float = 0.2
    """Clip width below a ratio of 1."""
    high: float = 0.2
    """Clip width above a ratio of 1."""
    negative_cap: float | None = None
    """Dual clip: ratio beyond which a punished token is punished no more; None: none."""


FROM_THE_SCRIPTS = SimkoStrength()


def forking_tokens(entropy: PerDecision, sequence: Indices, *, quantile: float = 0.8) -> Flags:
    """Flags of decisions whose entropy is above that quantile of their own answer."""
    return at_least_float32(entropy) > sequence_quantile(at_least_float32(entropy), sequence, quantile)


def simko(
    now: PerDecision,
    then: PerDecision,
    advantage: PerDecision,
    candidates: TopKCandidates,
    forks: Flags,
    strength: SimkoStrength = FROM_THE_SCRIPTS,
) -> LossTerms:
    """PPO's clipped surrogate (0.2) of r' and A' at `forks`, and of r and A elsewhere.

    Right answers (A > 0): r' = (1 - mix) r + mix / K * sum over k of sg[r / r_k] r_k. Its value is r; a share `mix` of
    the gradient is spread evenly over the K candidates. Wrong answers (A < 0): A' = boost * A where the sampled token
    is the most likely, which keeps the policy from moving from one certain wrong answer to another. The sign of the
    advantage marks right and wrong, as it does in a group with both. Clip widths and dual clip are those of
    `clipped_surrogate`, of r' and A'. Weights: `token_mean`. Metrics as PPO's.
    """
    r, mix = ratio(now, then), strength.smoothing
    others = ratio(candidates.logp, candidates.old_logp)
    share = r.detach()[:, None] / (others.detach() + TINY)
    spread = (1.0 - mix) * r + mix * (share * others).mean(dim=1)
    mixed = torch.where(forks & (advantage > 0), spread, r)
    boosted = strength.penalty_scale * advantage
    pressed = torch.where(forks & (advantage < 0) & candidates.drawn_is_top, boosted, advantage)
    low, high, cap = strength.low, strength.high, strength.negative_cap
    loss, stopped = surrogate(mixed, pressed, low=low, high=high, negative_cap=cap)
    return LossTerms(
        loss=loss,
        compute_metrics=lambda: {
            "policy/clip_fraction": stopped.to(r.dtype),
            "policy/fork_fraction": forks.to(r.dtype),
            **ratio_metrics(r, logp_difference(now, then)),
        },
    )
