"""Answers drawn from codes of 8 bits: what corrects for them by default, and what is refused without a correction.

The recorded log-probabilities are those of the quantised policy, which is the one that acted. It is not the trainer's,
so that a loss needs a ratio, and the ratio a correction.
"""

from collections.abc import Mapping
from typing import Any, Final, cast

from hone.text.evaluate.open_policy import ModelSource
from hone.text.ratio import RatioConfig
from hone.text.rollout_config import RolloutConfig

WEIGHT_CAP: Final = 2.0
"""Largest weight of a token."""
MAX_MISMATCH_NATS: Final = 0.05
"""Mean |trainer - engine| of a step that stops a run: seventy times that of 8-bit codes on a trained model."""


def ratio_defaults(given: Mapping[str, object]) -> Mapping[str, object]:
    """Values of `learner.ratio` for a config whose rollouts are quantised, in tables; empty for any other.

    Truncated importance weights of tokens, a ratio against the trainer's own log-probabilities, and an alarm. A ratio
    against the recorded log-probabilities is itself the correction.
    """
    if not _is_quantised(given.get("rollout")):
        return {}
    learner = given.get("learner")
    ratio = cast("Mapping[str, Any]", learner).get("ratio", {}) if isinstance(learner, Mapping) else {}
    defaults: dict[str, object] = {"max_mismatch_nats": MAX_MISMATCH_NATS}
    asked = cast("Mapping[str, Any]", ratio) if isinstance(ratio, Mapping) else {}
    if asked.get("denominator") != "recorded":
        defaults["denominator"] = "recomputed"
        if "correction" not in asked:
            defaults |= {"correction": "truncated_is", "weight_cap": WEIGHT_CAP}
    return {"learner": {"ratio": defaults}}


def _is_quantised(rollout: object) -> bool:
    if isinstance(rollout, RolloutConfig):
        return rollout.quantised is not None
    table = cast("Mapping[str, object]", rollout) if isinstance(rollout, Mapping) else {}
    return table.get("runner") == "native_int8" or table.get("kv_cache") == "int8"


def outlier_notes(rollout: RolloutConfig, model: ModelSource) -> list[str]:
    """A warning of whole-token scales on a model that was trained elsewhere: a few of its channels are twenty times the
    size of the others, and take the codes of all."""
    if rollout.runner != "native_int8" or model.path is None or model.weights.startswith("int"):
        return []
    return [
        'rollout.runner = "native_int8": a token\'s activations share one scale, and published models have channels of '
        "twenty times the others' size (SmolLM2-135M-Instruct: 0.23 nats a token between engine and trainer, and a run "
        f"stops at learner.ratio.max_mismatch_nats = {MAX_MISMATCH_NATS:g} unless it is set higher). "
        'Nearer to the trainer: "native_bfloat16" (0.02), or model.weights = "int8" with an adapter and the runner '
        '"native" (0.0004)'
    ]


def require_ratio(rollout: RolloutConfig, *, has_ratio: bool) -> None:
    """Raise ValueError for a loss without a ratio on quantised answers."""
    if rollout.quantised is not None and not has_ratio:
        raise ValueError(
            f"{rollout.quantised}: the answers are not drawn from the trainer's probabilities, and this loss has no "
            'ratio that corrects for it; take a recipe with a ratio such as grpo, or rollout.runner = "native"'
        )


def require_correction(rollout: RolloutConfig, ratio: RatioConfig, *, denominator: str) -> None:
    """Raise ValueError where quantised answers would be taken for the trainer's own."""
    if rollout.quantised is None or denominator == "recorded":
        return
    if denominator == "self":
        raise ValueError(
            f'{rollout.quantised}: learner.ratio.denominator = "self" takes the answers for the trainer\'s own draws; '
            'leave it out (then it is "recomputed"), or set "recomputed" or "recorded"'
        )
    if ratio.correction == "none":
        raise ValueError(
            f'{rollout.quantised}: learner.ratio.correction = "none" leaves the difference between engine and trainer '
            'uncorrected; leave it out (then it is "truncated_is" with weight_cap = 2), or set learner.ratio.'
            'denominator = "recorded"'
        )
