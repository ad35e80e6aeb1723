"""Losses on the log-probability of what was decided: the clipped surrogate and its neighbours, per decision.

Belongs here: terms that need only the log-probability now and then, and an advantage; they serve control and tokens
alike. `now` carries the gradient, everything else is data. Losses whose ratio is a whole sequence's are in
`sequence.py`, those with a trust region in `trust.py`, those that choose tokens by their covariance in `covariance.py`.

Parameters are named for what they are: `low` and `high` are clip widths around a ratio of 1, `*_cap` and `*_floor`
absolute ratios, `log_*` widths in nats, `*_probability` differences of probability. Where the advantage is 0 there is
no gradient, so such sequences may be left out; `dro`, penalties and entropy terms are the exceptions, and say so.
"""

import torch

from hone.objectives.ratios import drift, gap, ratio, saturated, widened
from hone.objectives.shapes import Flags, PerDecision
from hone.objectives.terms import Terms


def surrogate(
    r: PerDecision, advantage: PerDecision, *, low: float, high: float, negative_cap: float | None = None
) -> tuple[PerDecision, Flags]:
    """-min(r A, clip(r, 1 - low, 1 + high) A), and where its gradient has stopped.

    `r` is a ratio of any making (token, sequence, mixture). With `negative_cap` c the loss of decisions with A < 0
    grows no further than c |A| (dual clip). The gradient vanishes exactly where A > 0 and r > 1 + high, or A < 0 and
    (r < 1 - low or r > c). The ratio alone is never clipped: that would stop corrections too.
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


def clipped(
    now: PerDecision,
    then: PerDecision,
    advantage: PerDecision,
    *,
    low: float = 0.2,
    high: float = 0.2,
    negative_cap: float | None = None,
) -> Terms:
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
    return Terms(
        loss=loss,
        told=lambda: {"policy/clip_fraction": _stopped(stopped, gap(now, then), advantage), **drift(r, gap(now, then))},
    )


def _stopped(stopped: Flags, log_ratio: PerDecision, advantage: PerDecision) -> PerDecision:
    """Clipped, or past the numerical cap of the log-ratio: no gradient in either case."""
    return (stopped | (saturated(log_ratio) & (advantage != 0))).to(log_ratio.dtype)


def reinforce(now: PerDecision, advantage: PerDecision) -> Terms:
    """-A * log p: the policy gradient itself (Williams, 1992)."""
    return Terms(loss=-advantage * widened(now))


def importance(now: PerDecision, then: PerDecision, advantage: PerDecision) -> Terms:
    """-r * A, r = exp(now - then): the surrogate without any clip; what TRPO's step lowers (Schulman et al., 2015).

    Its gradient is unbiased off policy, and its variance unbounded.
    """
    r = ratio(now, then)
    return Terms(loss=-advantage * r, told=lambda: drift(r, gap(now, then)))


def cispo(
    now: PerDecision, then: PerDecision, advantage: PerDecision, *, ratio_cap: float = 5.0, ratio_floor: float = 0.0
) -> Terms:
    """-sg[clip(r, ratio_floor, ratio_cap)] * A * log p (CISPO, MiniMax-M1, 2025): capped, and never without gradient.

    The cap is an absolute ratio, 5 as in ScaleRL (Khatri et al., 2025); the paper's own is not published. Other
    libraries write a width there (1 + high), or an absolute cap under the name of a width: see `presets.py`.
    Metrics: share of decisions whose ratio was capped (they keep a gradient), KL, largest ratio.
    """
    r = ratio(now, then).detach()
    loss = -r.clamp(ratio_floor, ratio_cap) * advantage * widened(now)

    def told() -> dict[str, PerDecision]:
        outside = (r > ratio_cap) | (r < ratio_floor)
        return {"policy/capped_fraction": outside.to(r.dtype), **drift(r, gap(now, then))}

    return Terms(loss=loss, told=told)


def sapo(
    now: PerDecision,
    then: PerDecision,
    advantage: PerDecision,
    *,
    positive_steepness: float = 1.0,
    negative_steepness: float = 1.05,
) -> Terms:
    """-A * (4 / t) * sigmoid(t (r - 1)), t by the sign of A (soft adaptive policy optimisation, 2025, 2511.20347).

    A smooth gate instead of a clip: the gradient is that of -A * r times 4 s (1 - s), which is 1 at r = 1 and fades on
    both sides, faster for punished decisions. The value at r = 1 is -2 A / t and not -A: losses are not comparable with
    PPO's, gradients are. A = 0 counts as negative, which changes no loss. Weights: `sequence_mean`. Metrics: the gate.
    """
    r = ratio(now, then)
    t = torch.full_like(r, negative_steepness).masked_fill(advantage > 0, positive_steepness)
    gate = torch.sigmoid(t * (r - 1.0))
    return Terms(
        loss=-advantage * (4.0 / t) * gate,
        told=lambda: {"policy/gate": 4.0 * gate * (1.0 - gate), **drift(r, gap(now, then))},
    )


def dro(now: PerDecision, then: PerDecision, advantage: PerDecision, *, beta: float) -> Terms:
    """-(A log p - beta / 2 * (log p - log p_then)^2): direct reward optimisation (Richemond et al., 2024).

    `beta` weighs the squared log-ratio, in 1 / nat; there is no published default for token advantages. Off policy
    without a ratio, so nothing can explode; not proportional to the advantage: sequences with A = 0 are pulled back.
    """
    change = gap(now, then)
    return Terms(
        loss=0.5 * beta * change.square() - advantage * widened(now),
        told=lambda: {"policy/squared_log_ratio": change.square()},
    )


def decoupled(
    now: PerDecision,
    then: PerDecision,
    proximal: PerDecision,
    advantage: PerDecision,
    *,
    low: float = 0.2,
    high: float = 0.2,
    weight_cap: float | None = None,
) -> Terms:
    """w * max(-A u, -A clip(u, 1 - low, 1 + high)), u = now / proximal, w = sg[proximal / then] (decoupled PPO).

    Three policies: who acted (`then`), the policy at the start of the update (`proximal`), and the one that learns. The
    clip keeps close to `proximal`, and w corrects for stale data (Hilton et al., 2021; AReaL, 2025). `weight_cap` is an
    absolute bound on w (off); with it this is truncated importance sampling.
    """
    u = ratio(now, proximal)
    weight = ratio(proximal, then).detach()
    if weight_cap is not None:
        weight = weight.clamp(max=weight_cap)
    loss, stopped = surrogate(u, advantage, low=low, high=high)
    return Terms(
        loss=weight * loss,
        told=lambda: {
            "policy/clip_fraction": _stopped(stopped, gap(now, proximal), advantage),
            **drift(u, gap(now, proximal)),
            "mismatch/weight": weight,
            "mismatch/weight_max": weight,
        },
    )


def loglinear_proximal(now: PerDecision, then: PerDecision, *, share: float) -> PerDecision:
    """then + share * (now - then), detached: a proximal policy without a pass of its own (A-3PO, 2025).

    `share` is how far the proximal version lies between the acting one (0) and the learning one (1).
    """
    return (widened(then) + share * gap(now, then)).detach()
