"""What TRL and verl run under a paper's name, for preferences, critics and distillation; `presets.py` has the policies.

Belongs here: data, in the same form. TRL 1.16.0 and verl 0.9.1, read in their sources in 2026. Of the frame: TRL takes
the mean over the pairs of a micro-batch and ranks average their means, so ranks with fewer pairs weigh more; here the
weights are the whole step's.
"""

import math
from typing import Final

from loss_presets import LossPreset

from hone.objectives import (
    distill,
    implicit,
    preference,
    reward_model,
    value,
    weights,
)
from hone.objectives import (
    preference as reference_free,
)
from hone.objectives import (
    preference as unpaired,
)

PRESETS: Final[tuple[LossPreset, ...]] = (
    LossPreset(
        library="trl",
        algorithm="dpo",
        function=preference.dpo,
        values={},
        scheme=weights.sequence_mean,
        difference="loss_type=sigmoid ignores label_smoothing (0.24 did not): cDPO cannot be had; "
        "rewards/margins is beta times the margin in nats",
    ),
    LossPreset(
        library="trl",
        algorithm="robust_dpo",
        function=preference.robust_dpo,
        values={"smoothing": 0.0},
        scheme=weights.sequence_mean,
        difference="label_smoothing is 0 by default, which makes it DPO",
    ),
    LossPreset(
        library="trl",
        algorithm="ipo",
        function=preference.ipo,
        values={},
        scheme=weights.sequence_mean,
        difference="scores are per token (`implicit.log_ratio` with length), as the authors confirmed and their code "
        "does not do; the length is that of the unshifted completion mask. The default beta of 0.1 is then a target "
        "of 5 nats per token",
    ),
    LossPreset(
        library="trl",
        algorithm="exo",
        function=preference.exo_pair,
        values={},
        scheme=weights.sequence_mean,
        difference="label_smoothing is 0 by default, which is refused: it must be set; 0.24 put 1e-3 in its place",
    ),
    LossPreset(
        library="trl",
        algorithm="bco_pair",
        function=preference.bco_pair,
        values={},
        scheme=weights.sequence_mean,
        difference="no running shift (0 in its place); 0.24 had it",
    ),
    LossPreset(
        library="trl",
        algorithm="aot",
        function=preference.aot,
        values={},
        scheme=weights.sequence_mean,
        difference="sorts each micro-batch by itself, so the loss depends on its size",
    ),
    LossPreset(
        library="trl",
        algorithm="kto",
        function=unpaired.kto,
        values={},
        scheme=weights.sequence_mean,
        difference="the baseline is the mean of the ranks' means over a micro-batch, where the official code takes "
        "one mean over all but those of exactly 0",
    ),
    LossPreset(
        library="trl",
        algorithm="simpo",
        function=reference_free.simpo,
        values={"beta": 0.1, "margin": 0.5},
        scheme=weights.sequence_mean,
        difference="CPO's trainer with loss_type=simpo; its cpo_alpha is 1 unless set to 0, which adds the likelihood "
        "of the chosen answer",
    ),
    LossPreset(
        library="trl",
        algorithm="cpo",
        function=reference_free.cpo,
        values={},
        scheme=weights.sequence_mean,
        difference="the likelihood is a mean over the tokens of the micro-batch and not of the pair",
    ),
    LossPreset(
        library="trl",
        algorithm="orpo",
        function=reference_free.orpo,
        values={"weight": 0.1},
        scheme=weights.sequence_mean,
        difference="the likelihood is a mean over the tokens of the micro-batch and not of the pair",
    ),
    LossPreset(
        library="trl",
        algorithm="wpo",
        function=implicit.wpo_weight,
        values={"cap": math.inf},
        scheme=None,
        difference="use_weighting: not capped at 1 (0.24 was); refused for AOT",
    ),
    LossPreset(
        library="trl",
        algorithm="alpha_divergence",
        function=implicit.alpha_link,
        values={"alpha": 0.5},
        scheme=None,
        difference="f_alpha_divergence_coef is 1 - alpha; the exponent is cut at 80, without gradient beyond",
    ),
    LossPreset(
        library="trl",
        algorithm="process_reward",
        function=reward_model.step_classification,
        values={},
        scheme=weights.token_mean,
        difference="the mean is over the labelled tokens of the micro-batch",
    ),
    LossPreset(
        library="trl",
        algorithm="gkd",
        function=distill.generalised_jsd,
        values={"mixture": 0.5},
        scheme=weights.token_mean,
        difference="temperature 0.9 of both; half of the batches are the student's own; mixture 0 and 1 are the "
        "forward and the reverse KL, a jump in scale. Without labels the sum over tokens is divided by the rows alone",
    ),
    LossPreset(
        library="trl",
        algorithm="value",
        function=value.clipped_value,
        values={"clip_range": 0.2},
        scheme=weights.token_mean,
        difference="weighted 0.1 against the policy's loss; the mean is over the tokens of the micro-batch",
    ),
    LossPreset(
        library="verl",
        algorithm="value",
        function=value.clipped_value,
        values={"clip_range": 0.5},
        scheme=weights.token_mean,
        difference="a width of 0.5 where PPO's code had 0.2",
    ),
    LossPreset(
        library="verl",
        algorithm="forward_kl_topk",
        function=distill.forward_kl,
        values={},
        scheme=weights.token_mean,
        difference="the truncated sum over the teacher's bare top k (128 in the code, 32 in the YAML), with both "
        "log-probabilities clamped and the sum held at 0 from below",
    ),
    LossPreset(
        library="verl",
        algorithm="on_policy_distillation",
        function=distill.distillation_advantage,
        values={},
        scheme=None,
        difference="use_policy_gradient is on in the code and off in the YAML; off, an estimator of the KL is "
        "differentiated as a loss, of which it refuses k1",
    ),
)
