"""Plan of a rollout: its stages, and the smallest effect that each of them can find."""

import math
from dataclasses import dataclass
from typing import Final

from hone.decide.estimators.sequential.detectable import detectable_fall, detection_power, events_to_detect

SAMPLE_RATIO_PART: Final = 0.1
"""Part of alpha that the sample-ratio test spends; the guardrails share the rest."""
POWER: Final = 0.8
"""Probability with which a detectable effect is found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutGuardrail:
    """Outcome that must not become worse, with its bounds."""

    kind: str = "reward"
    low: float = 0.0
    high: float = 1.0
    higher_is_better: bool = True
    tolerance: float = 0.0
    """Loss of the mean that is accepted, in units of the value."""
    default: float | None = None
    """Value of a unit without such an outcome; None: that of the join for its kind, and missing for others."""

    @property
    def relative_tolerance(self) -> float:
        """The tolerance as a part of the range."""
        return self.tolerance / (self.high - self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """Everything that is fixed when a rollout begins."""

    name: str
    service: str
    version: str
    """The new version."""
    control: str
    """The live version that it is compared with."""
    stages: tuple[float, ...] = (0.01, 0.05, 0.25, 0.5)
    requests: int = 5000
    """Requests of a stage."""
    shadow_requests: int = 0
    alpha: float = 0.05
    guardrails: tuple[RolloutGuardrail, ...] = (RolloutGuardrail(),)
    needs: tuple[str, ...] = ()
    """Kinds of evidence that the version needs before it answers requests."""
    first: int = 0
    last: int = 1_000_000
    """Buckets of the layer, `first` to `last` exclusive."""

    @property
    def ladder(self) -> tuple[str, ...]:
        """Names of the stages, in order: `candidate`, `shadow`, `1%`, ..., `100%`."""
        shadow = ("shadow",) if self.shadow_requests else ()
        return ("candidate", *shadow, *map(stage_name, self.stages), "100%")

    @property
    def guardrail_alpha(self) -> float:
        """Part of alpha that the guardrails share."""
        return self.alpha * (1 - SAMPLE_RATIO_PART)

    @property
    def ratio_alpha(self) -> float:
        """Part of alpha of the sample-ratio test."""
        return self.alpha * SAMPLE_RATIO_PART

    def share(self, stage: str) -> float:
        """Share of the canary in a stage."""
        shares = {stage_name(share): share for share in self.stages}
        return 1.0 if stage == "100%" else shares.get(stage, 0.0)

    def units_needed(self, stage: str) -> int:
        """Exposed units, of both arms together, after which a stage has done its part."""
        if stage == "shadow":
            return self.shadow_requests
        share = self.share(stage)
        return 0 if share == 1 else math.ceil(2 * share * self.requests)


def stage_name(share: float) -> str:
    """Name of a stage: `0.05 -> '5%'`, `0.005 -> '0.5%'`."""
    return f"{100 * share:.6g}%"


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardrailHistory:
    """Mean and spread of an outcome under the live version, from the decision log or the config."""

    kind: str
    mean: float
    sd: float
    worth: float | None = None
    """Relative loss that must not be missed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePreview:
    """One stage of a plan and the smallest loss that is found by its end."""

    stage: str
    requests: int
    """Requests of all stages up to its end."""
    exposed: int
    """Exposed units up to its end, both arms together."""
    detectable: float | None
    """Relative loss of the mean that is found with probability .8 by its end; None: not even a loss of everything."""


def preview(plan: RolloutPlan, history: GuardrailHistory) -> tuple[StagePreview, ...]:
    """The stages of a plan with the effects that they can find in one outcome."""
    done: list[StagePreview] = []
    exposed = 0
    guardrail = next(one for one in plan.guardrails if one.kind == history.kind)
    for number, share in enumerate(plan.stages, start=1):
        exposed += plan.units_needed(stage_name(share))
        fall = detectable_fall(**_scaled(plan, history), events=exposed, power=POWER)
        loss = None if fall is None else (fall * _width(guardrail) + guardrail.tolerance) / abs(history.mean)
        done.append(
            StagePreview(
                stage=stage_name(share), requests=number * plan.requests, exposed=exposed,
                detectable=None if loss is None or loss > 1 else loss,
            )
        )  # fmt: skip
    return tuple(done)


def plan_warnings(plan: RolloutPlan, history: GuardrailHistory) -> list[str]:
    """Sentences about losses that matter and that the stages cannot find, with the requests that would."""
    if history.worth is None:
        return []
    guardrail = next(one for one in plan.guardrails if one.kind == history.kind)
    fall = (history.worth * abs(history.mean) - guardrail.tolerance) / _width(guardrail)
    if fall <= 0:
        return [
            f"{history.kind}: a loss of {history.worth:.0%} is within the tolerance of {guardrail.tolerance:g}: "
            "nothing will stop it; lower the tolerance"
        ]
    scaled = _scaled(plan, history)
    exposed = sum(plan.units_needed(stage_name(share)) for share in plan.stages)
    power = detection_power(fall, **scaled, events=exposed)
    if power >= POWER:
        return []
    needed = events_to_detect(fall, **scaled, power=POWER)
    a_stage = "no number of" if needed is None else f"{math.ceil(needed / (2 * sum(plan.stages))):,}"
    total = len(plan.stages) * plan.requests
    return [
        f"{history.kind}: a loss of {history.worth:.0%} of {history.mean:g} is found with probability {power:.0%} "
        f"within {total:,} requests; {a_stage} requests a stage find it with {POWER:.0%}"
    ]


def _width(guardrail: RolloutGuardrail) -> float:
    return guardrail.high - guardrail.low


def _scaled(plan: RolloutPlan, history: GuardrailHistory) -> dict[str, float]:
    """Spread and level as the e-process sees them: values in units of their range, alpha shared by the guardrails."""
    guardrail = next(one for one in plan.guardrails if one.kind == history.kind)
    return {"sd": history.sd / _width(guardrail), "alpha": plan.guardrail_alpha / len(plan.guardrails)}
