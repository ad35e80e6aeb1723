"""Losses that TRL and verl run under the name of a paper, where they differ from the paper (and from hone).

Each preset names the function and the weights that come nearest to the library's own, the values
it has by default there, and in words what differs, also what no value can express. TRL 1.16.0 and verl 0.9.1, read in
their sources in 2026. Differences of the frame concern every loss: verl's local means depend on the micro-batch unless
global counts are given, TRL counts empty answers in its denominators; here counts are always the whole step's, and
empty answers count for nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from hone.core.errors import ConfigError, did_you_mean
from hone.objectives import kl, mismatch, policy, selection, sequence, trust, weights
from hone.objectives import policy as covariance

PeerLibrary = Literal["trl", "verl"]
PresetFunction: TypeAlias = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class LossPreset:
    """One algorithm as one library runs it."""

    library: PeerLibrary
    algorithm: str
    function: PresetFunction
    """Of this folder."""
    values: Mapping[str, float]
    """Keyword arguments that are not the function's own defaults."""
    scheme: PresetFunction | None
    """Of `weights`; None for what is not aggregated by itself."""
    difference: str
    """In words, against the paper."""


PRESETS: Final[tuple[LossPreset, ...]] = (
    LossPreset(
        "trl",
        "grpo",
        policy.clipped_surrogate,
        {"low": 0.2, "high": 0.2},
        weights.token_mean,
        "the default loss_type is dapo: token mean over the whole generation batch. loss_type=grpo is a sequence mean "
        "that gradient accumulation averages over micro-batches. `delta` caps the ratio of unclipped branches: dual "
        "clip with the same cap, for delta >= 1 + high. Standard deviations take 1e-4 as their floor",
    ),
    LossPreset(
        "trl",
        "dr_grpo",
        policy.clipped_surrogate,
        {"low": 0.2, "high": 0.2},
        weights.constant_length,
        "constant_length with max_completion_length; scale_rewards must be set to none besides, or the difficulty "
        "bias that the paper removes stays",
    ),
    LossPreset(
        "trl",
        "gspo",
        sequence.gspo,
        {"low": 0.2, "high": 0.2},
        weights.sequence_mean,
        "importance_sampling_level=sequence with loss_type=grpo; the widths stay those of token ratios, some 500 times "
        "wider than the paper's, unless they are set. No GSPO-token",
    ),
    LossPreset(
        "trl",
        "luspo",
        policy.clipped_surrogate,
        {"low": 0.2, "high": 0.2},
        weights.sequence_sum,
        "importance_sampling_level is token by default, which is another loss; with level sequence and epsilons of "
        "2e-3 and 2.5e-3 it is the paper's",
    ),
    LossPreset(
        "trl",
        "cispo",
        policy.cispo,
        {"ratio_cap": 0.2},
        weights.token_mean,
        "epsilon_high is the absolute cap and not a width, and defaults to 0.2: every ratio is capped there, so the "
        "whole loss is scaled by about 0.2 until it is set (5 in ScaleRL)",
    ),
    LossPreset("trl", "sapo", policy.sapo, {}, weights.sequence_mean, "none in the term; aggregated as loss_type=grpo"),
    LossPreset(
        "trl",
        "vespo",
        sequence.vespo,
        {},
        weights.token_mean,
        "log importance weights are summed over all positions without the mask: they must be 0 at padding",
    ),
    LossPreset(
        "trl",
        "mismatch",
        mismatch.sequence_masked_is,
        {"weight_cap": 3.0},
        None,
        "on by default, at sequence level (product) with a mask; missing engine log-probabilities count as ratio 1",
    ),
    LossPreset(
        "trl",
        "off_policy_mask",
        mismatch.off_policy_sequence_mask,
        {"max_kl_nats": 0.5},
        None,
        "off unless a bound is set",
    ),
    LossPreset(
        "trl",
        "kl",
        kl.weighted_k3,
        {},
        None,
        "weight 0 by default; use_bias_correction_kl is on: the ratio-weighted k3. No clamp of the log-ratio",
    ),
    LossPreset(
        "trl",
        "high_entropy",
        selection.high_entropy_mask,
        {"fraction": 1.0},
        None,
        "top_entropy_quantile is 1 by default (off); the quantile is the global batch's, the denominator counts all",
    ),
    LossPreset(
        "verl",
        "grpo",
        policy.clipped_surrogate,
        {"low": 0.2, "high": 0.2, "negative_cap": 3.0},
        weights.token_mean,
        "dual clip is always on, at 3. clip_ratio_low and clip_ratio_high have their own default, so that changing "
        "only clip_ratio changes nothing. A singleton group's advantage is its raw score",
    ),
    LossPreset(
        "verl",
        "reinforce",
        policy.reinforce_loss,
        {},
        weights.sequence_sum,
        "none in the term; an optional importance weight",
    ),
    LossPreset(
        "verl",
        "dr_grpo",
        policy.clipped_surrogate,
        {"low": 0.2, "high": 0.2, "negative_cap": 3.0},
        weights.constant_length,
        "without loss_scale_factor the constant is the padded width of the micro-batch, and the gradient depends on "
        "what else is in it",
    ),
    LossPreset(
        "verl",
        "gspo",
        sequence.gspo_token,
        {"low": 0.2, "high": 0.2},
        weights.token_mean,
        "GSPO-token under the configured aggregation, token mean by default, which is another objective for answers of "
        "unequal length; widths of token ratios. The dual clip that its documentation names is never read",
    ),
    LossPreset(
        "verl",
        "cispo",
        policy.cispo,
        {"ratio_cap": 1.2, "ratio_floor": 0.8},
        weights.token_mean,
        "clip_ratio_high and _low are widths (cap 1.2), and there is a floor of 0.8 that the paper has not",
    ),
    LossPreset(
        "verl",
        "sapo",
        policy.sapo,
        {},
        weights.sequence_mean,
        "always a sequence mean; reads actor.tau_pos and tau_neg, while its documentation sets policy_loss.tau_*, "
        "which is ignored",
    ),
    LossPreset(
        "verl",
        "dppo_tv",
        trust.dppo_tv,
        {"max_increase": 0.2, "max_decrease": 0.2, "ratio_cap": 3.0},
        weights.constant_length,
        "the thresholds are clip_ratio's 0.2 (0.15 in its example), the cap is the dual clip's 3 although 20 was "
        "meant, and the anchor is the recomputed policy, not the behaviour policy, unless bypass mode is on",
    ),
    LossPreset(
        "verl",
        "dppo_kl",
        trust.dppo_kl,
        {"max_increase_nats": 0.2, "max_decrease_nats": 0.2, "ratio_cap": 3.0},
        weights.constant_length,
        "as dppo_tv (0.05 nats in its example)",
    ),
    LossPreset(
        "verl",
        "gmpo",
        sequence.gmpo,
        {"log_low": 0.2, "log_high": 0.2},
        weights.sequence_mean,
        "clip_ratio is taken as a width in log space; the advantage is averaged over the answer; the mean is over all "
        "rows, empty ones too",
    ),
    LossPreset(
        "verl",
        "clip_cov",
        covariance.clip_cov,
        {"low": 0.2, "high": 0.2},
        weights.token_mean,
        "chosen within each micro-batch, at random without a seed of its own: the gradient depends on the cut",
    ),
    LossPreset(
        "verl",
        "kl_cov",
        covariance.kl_cov,
        {"penalty": 0.1},
        weights.token_mean,
        "0.1 in the config, 1.0 in the docstring; chosen within each micro-batch",
    ),
    LossPreset("verl", "dro", policy.dro, {}, weights.token_mean, "policy_loss.dro_beta has no default either"),
    LossPreset(
        "verl",
        "mismatch",
        mismatch.sequence_truncated_is,
        {"weight_cap": 2.0},
        None,
        "sequence level is the product; a bound lo_hi means IcePop; with every weight 0 it divides by zero",
    ),
    LossPreset(
        "verl",
        "rejection",
        mismatch.geometric_rejection,
        {"ratio_floor": 0.999, "ratio_cap": 1.001},
        None,
        "seq_mean_k1 bounds engine / trainer, so asymmetric bounds lo_hi are 1/hi and 1/lo here; the denominator "
        "shrinks with what is rejected, and here it does not",
    ),
    LossPreset(
        "verl",
        "kl",
        kl.k3,
        {},
        None,
        "low_var_kl, weight 0.001: the log-ratio is clamped to 20 on both sides and the value to 10, beyond which "
        "nothing pulls back; its gradient is that of KL(reference || policy). low_var_kl+ is k3_valued_k2",
    ),
)


def find_preset(library: str, algorithm: str) -> LossPreset:
    """The preset of that name; raises ConfigError where there is none: the library runs the paper's, or not at all."""
    known = [entry for entry in PRESETS if entry.library == library]
    if not known:
        libraries = sorted({entry.library for entry in PRESETS})
        raise ConfigError(f"no presets of library {library!r}{did_you_mean(library, libraries)}")
    found = [entry for entry in known if entry.algorithm == algorithm]
    if not found:
        names = [entry.algorithm for entry in known]
        raise ConfigError(f"no preset {algorithm!r} of {library}{did_you_mean(algorithm, names)}")
    return found[0]
