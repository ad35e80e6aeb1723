"""Losses with a sequence-level ratio: one importance weight for all decisions of an answer.

`sequence` numbers the sequence of each decision in this batch, which holds whole sequences; sums stay within a
sequence, so no split of the batch changes them. Each loss returns one term per decision: weighted by `sequence_mean`
they add up to the papers' mean over sequences, by `sequence_sum` to LUSPO's. The advantage is the same at every
decision of a sequence; where it differs, use `gspo_token`.
"""

import math

import torch

from hone.objectives.policy import capped_gradient, soft_gate, surrogate
from hone.objectives.ratios import (
    LOG_RATIO_LIMIT,
    at_least_float32,
    is_saturated,
    logp_difference,
    ratio_metrics,
    sequence_mean,
    sequence_sum,
)
from hone.objectives.terms import Flags, Indices, LossTerms, Multiplier, PerDecision


def _geometric(now: PerDecision, then: PerDecision, sequence: Indices) -> PerDecision:
    """Mean log-ratio of the sequence in nats, not capped."""
    return sequence_mean(logp_difference(now, then), sequence)


def _metrics(r: PerDecision, log_ratio: PerDecision, stopped: Flags, advantage: PerDecision) -> dict[str, PerDecision]:
    held = stopped | (is_saturated(log_ratio) & (advantage != 0))
    return {"policy/clip_fraction": held.to(r.dtype), **ratio_metrics(r, log_ratio)}


def gspo(
    now: PerDecision,
    then: PerDecision,
    advantage: PerDecision,
    sequence: Indices,
    *,
    low: float = 3e-4,
    high: float = 4e-4,
    negative_cap: float | None = None,
) -> LossTerms:
    """-min(s A, clip(s, 1 - low, 1 + high) A), s = exp(mean over the sequence of now - then) (GSPO, 2025, 2507.18071).

    Group sequence policy optimisation: one ratio per answer, the geometric mean of its tokens', so that noise of single
    tokens (expert routing) averages out. The widths are the paper's, hundreds of times narrower than a token's.
    Weights: `sequence_mean`; under `token_mean` (verl 0.9.1's default) the objective differs. `negative_cap` (off) is
    dual clip on s, as in `clipped_surrogate`; TRL's `delta` is the same there, and verl never reads its own for GSPO.
    """
    log_ratio = _geometric(now, then, sequence)
    s = torch.exp(log_ratio.clamp(max=LOG_RATIO_LIMIT))
    loss, stopped = surrogate(s, advantage, low=low, high=high, negative_cap=negative_cap)
    return LossTerms(loss=loss, compute_metrics=lambda: _metrics(s, log_ratio, stopped, advantage))


def gspo_token(
    now: PerDecision,
    then: PerDecision,
    advantage: PerDecision,
    sequence: Indices,
    *,
    low: float = 3e-4,
    high: float = 4e-4,
    negative_cap: float | None = None,
) -> LossTerms:
    """The clipped surrogate with s_t = sg[s] * p_t / sg[p_t] (GSPO-token, 2025, 2507.18071).

    The value of every s_t is the sequence's s; the gradient is the token's, so advantages may differ by token. Where
    they do not, and the weights are `sequence_mean`, its gradient equals `gspo`'s.
    """
    log_ratio = _geometric(now, then, sequence).detach()
    own = at_least_float32(now)
    s = torch.exp(log_ratio.clamp(max=LOG_RATIO_LIMIT)) * torch.exp(own - own.detach())
    loss, stopped = surrogate(s, advantage, low=low, high=high, negative_cap=negative_cap)
    return LossTerms(
        loss=loss, compute_metrics=lambda: {"policy/clip_fraction": stopped.to(s.dtype), **ratio_metrics(s, log_ratio)}
    )


def luspo(
    now: PerDecision,
    then: PerDecision,
    advantage: PerDecision,
    sequence: Indices,
    *,
    low: float = 2e-3,
    high: float = 2.5e-3,
    negative_cap: float | None = None,
) -> LossTerms:
    """`gspo` with wider clips; the weights must be `sequence_sum` (length-unbiased sequence optimisation, 2602.05261).

    Each sequence's loss counts once per decision, which removes GSPO's 1 / length and its penalty on long answers. In
    TRL, `luspo` also needs `importance_sampling_level="sequence"`, and uses token ratios without it.
    """
    return gspo(now, then, advantage, sequence, low=low, high=high, negative_cap=negative_cap)


def gmpo(
    now: PerDecision,
    then: PerDecision,
    advantage: PerDecision,
    sequence: Indices,
    *,
    log_low: float = 0.4,
    log_high: float = 0.4,
    keep: Multiplier | None = None,
) -> LossTerms:
    """-A * exp(mean over the sequence of d), d = min(lr, log_high) if A > 0, max(lr, -log_low) if A < 0 (2507.20673).

    Geometric-mean policy optimisation: token log-ratios lr are clipped one-sidedly, in nats (0.4: ratios of 0.67 and
    1.49), then averaged over the sequence. A = 0 counts as negative. Weights: `sequence_mean`. `keep` (0 or 1, data)
    leaves tokens out of the mean, as TRL's 'top_entropy_quantile' does with those of low entropy; a sequence without a
    kept token has a ratio of 1 and no gradient. Metrics: share of decisions without gradient, by the clip, the mask or
    the numerical cap of the mean.
    """
    change = logp_difference(now, then)
    praised = advantage > 0
    kept = torch.where(praised, change.clamp(max=log_high), change.clamp(min=-log_low))
    log_ratio = sequence_mean(kept, sequence) if keep is None else _kept_mean(kept, keep, sequence)
    rho = torch.exp(log_ratio.clamp(max=LOG_RATIO_LIMIT))

    def compute_metrics() -> dict[str, PerDecision]:
        stopped = torch.where(praised, change > log_high, (change < -log_low) & (advantage < 0))
        if keep is not None:
            stopped = stopped | ((keep == 0) & (advantage != 0))
        return _metrics(rho, log_ratio, stopped, advantage)

    return LossTerms(loss=-advantage * rho, compute_metrics=compute_metrics)


def _kept_mean(values: PerDecision, keep: Multiplier, sequence: Indices) -> PerDecision:
    """Mean over the kept decisions of each sequence, 0 where there is none."""
    mask = (keep != 0).to(values.dtype)
    return sequence_sum(values * mask, sequence) / sequence_sum(mask, sequence).clamp(min=1.0)


def sequence_sapo(
    now: PerDecision,
    then: PerDecision,
    advantage: PerDecision,
    sequence: Indices,
    *,
    positive_steepness: float = 1.0,
    negative_steepness: float = 1.05,
) -> LossTerms:
    """-A * (4 / t) * sigmoid(t (s - 1)), s = exp(mean over the sequence of now - then): SAPO (2025, 2511.20347) with
    GSPO's ratio, as AReaL's and TRL's `importance_sampling_level="sequence"`.
    """
    change = _geometric(now, then, sequence)
    return soft_gate(change, advantage, positive_steepness=positive_steepness, negative_steepness=negative_steepness)


def sequence_cispo(
    now: PerDecision,
    then: PerDecision,
    advantage: PerDecision,
    sequence: Indices,
    *,
    ratio_cap: float = 5.0,
    ratio_floor: float = 0.0,
) -> LossTerms:
    """-sg[clip(s, ratio_floor, ratio_cap)] * A * log p, s = exp(mean over the sequence of now - then): CISPO (2025)
    with GSPO's ratio, as TRL's `importance_sampling_level="sequence"`; AReaL has CISPO for token ratios only.
    """
    change = _geometric(now, then, sequence)
    return capped_gradient(now, change, advantage, ratio_cap=ratio_cap, ratio_floor=ratio_floor)


LOG_WEIGHT_FLOOR = math.log(1e-8)
"""Bounds of VESPO's sequence weights: [1e-8, e^20]."""


def vespo(
    now: PerDecision,
    then: PerDecision,
    advantage: PerDecision,
    sequence: Indices,
    *,
    positive: tuple[float, float] = (2.0, 3.0),
    negative: tuple[float, float] = (3.0, 2.0),
    log_correction: PerDecision | None = None,
) -> LossTerms:
    """-sg[phi(w)] * A * log p, phi(w) = w^k exp(l (1 - w)), w the product of the sequence's ratios (VESPO, 2602.10693).

    The gamma-shaped kernel is 1 at w = 1 and falls on both sides; (k, l) is `positive` where A >= 0, else `negative`.
    Log-ratios are bounded to 20 nats each, and their sum to [log 1e-8, 20]. `log_correction` nats, data, is added to
    them (proximal - then, with three policies). Weights: `token_mean`. Metrics: phi.
    """
    change = logp_difference(now, then).detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    if log_correction is not None:
        change = change + log_correction.to(change.dtype)
    log_w = sequence_sum(change, sequence).clamp(LOG_WEIGHT_FLOOR, LOG_RATIO_LIMIT)
    w = log_w.exp()
    praised = advantage >= 0
    power = torch.full_like(w, negative[0]).masked_fill(praised, positive[0])
    rate = torch.full_like(w, negative[1]).masked_fill(praised, positive[1])
    phi = torch.exp(power * log_w + rate * (1.0 - w))
    return LossTerms(
        loss=-phi * advantage * at_least_float32(now),
        compute_metrics=lambda: {"policy/phi": phi, "policy/ratio_max": w},
    )
