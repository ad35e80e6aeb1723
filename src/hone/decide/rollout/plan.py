"""Plan of a rollout: its stages, and the smallest effect that each of them can find."""

import math
from dataclasses import dataclass
from typing import Final, Literal

from pydantic import Field, model_validator

from hone.core.config import Config
from hone.decide.estimators.sequential import detectable_fall, detection_power, events_to_detect

BUCKETS: Final = 1_000_000
"""Buckets of a layer: a share is exact to a millionth."""
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
    last: int = BUCKETS
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

    @property
    def exposures(self) -> int:
        """Exposed units of all stages, both arms together."""
        return sum(self.units_needed(stage_name(share)) for share in self.stages)

    def preview(self, history: "GuardrailHistory") -> "tuple[_StagePreview, ...]":
        """The stages of a plan with the effects that they can find in one outcome."""
        done: list[_StagePreview] = []
        exposed = 0
        guardrail = next(one for one in self.guardrails if one.kind == history.kind)
        for number, share in enumerate(self.stages, start=1):
            exposed += self.units_needed(stage_name(share))
            fall = detectable_fall(**_scaled(self, history), events=exposed, power=POWER, deadline=self.exposures)
            loss = None if fall is None else (fall * _width(guardrail) + guardrail.tolerance) / abs(history.mean)
            done.append(
                _StagePreview(
                    stage=stage_name(share), requests=number * self.requests, exposed=exposed,
                    detectable=None if loss is None or loss > 1 else loss,
                )
            )  # fmt: skip
        return tuple(done)

    def warnings(self, history: "GuardrailHistory") -> list[str]:
        """Sentences about losses that matter and that the stages cannot find, with the requests that would."""
        if history.worth is None:
            return []
        guardrail = next(one for one in self.guardrails if one.kind == history.kind)
        fall = (history.worth * abs(history.mean) - guardrail.tolerance) / _width(guardrail)
        if fall <= 0:
            return [
                f"{history.kind}: a loss of {history.worth:.0%} is within the tolerance of {guardrail.tolerance:g}: "
                "nothing will stop it; lower the tolerance"
            ]
        scaled = _scaled(self, history)
        power = detection_power(fall, **scaled, events=self.exposures, deadline=self.exposures)
        if power >= POWER:
            return []
        needed = events_to_detect(fall, **scaled, power=POWER, by_deadline=True)
        a_stage = "no number of" if needed is None else f"{math.ceil(needed / (2 * sum(self.stages))):,}"
        total = len(self.stages) * self.requests
        return [
            f"{history.kind}: a loss of {history.worth:.0%} of {history.mean:g} is found with probability {power:.0%} "
            f"within {total:,} requests; {a_stage} requests a stage find it with {POWER:.0%}"
        ]


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
class _StagePreview:
    """One stage of a plan and the smallest loss that is found by its end."""

    stage: str
    requests: int
    """Requests of all stages up to its end."""
    exposed: int
    """Exposed units up to its end, both arms together."""
    detectable: float | None
    """Relative loss of the mean that is found with probability .8 by its end; None: not even a loss of everything."""


def _width(guardrail: RolloutGuardrail) -> float:
    return guardrail.high - guardrail.low


def _scaled(plan: RolloutPlan, history: GuardrailHistory) -> dict[str, float]:
    """Spread and level as the e-process sees them: values in units of their range, alpha shared by the guardrails."""
    guardrail = next(one for one in plan.guardrails if one.kind == history.kind)
    return {"sd": history.sd / _width(guardrail), "alpha": plan.guardrail_alpha / len(plan.guardrails)}


# --------------------------------------------------------------------------------------------------------------- config


class GuardrailConfig(Config):
    """Outcome that a new version must not make worse."""

    kind: str = "reward"
    """Kind of the outcomes in the decision log."""
    low: float = 0.0
    """Least value: the e-process needs bounds. Values below are clipped, and counted."""
    high: float = 1.0
    """Largest value; values above are clipped, and counted."""
    better: Literal["higher", "lower"] = "higher"
    """`lower` for costs and latencies."""
    default: float | None = None
    """Value of a unit without such an outcome; by default that of [join] for the kind of its rewards. Without any, only
    units with an outcome count: fair where a version cannot change which units have one."""
    tolerance: float = Field(default=0.0, ge=0)
    """Loss of the mean that is accepted, in units of the value."""
    mean: float | None = None
    """Mean of the live version, for the plan; by default that of the decision log."""
    sd: float | None = Field(default=None, gt=0)
    """Standard deviation of the value, for the plan; by default that of the decision log."""
    worth: float | None = Field(default=None, gt=0, le=1)
    """Relative loss that must not be missed, 0.1 for 10%; the plan says whether the stages can find it."""

    def guardrail(self) -> RolloutGuardrail:
        """The guardrail of a plan."""
        return RolloutGuardrail(
            kind=self.kind, low=self.low, high=self.high, higher_is_better=self.better == "higher",
            tolerance=self.tolerance, default=self.default,
        )  # fmt: skip

    @model_validator(mode="after")
    def _bounded(self) -> "GuardrailConfig":
        if not self.low < self.high:
            raise ValueError(f"low must be below high, got {self.low:g} and {self.high:g}")
        if self.tolerance > self.high - self.low:
            raise ValueError(f"the tolerance {self.tolerance:g} is wider than the values' range")
        return self


class StagedRolloutConfig(Config):
    """Staged rollout of new versions: shadow, stages with a concurrent control slice, evidence, and the way back."""

    registry: str = "registry"
    """Folder of the registry, beside the service file."""
    layer: str = ""
    """Name of the layer, the salt of the assignment; by default the service's name."""
    range: list[float] = Field(default=[0.0, 1.0], min_length=2, max_length=2)
    """Part of the layer that a rollout owns; rollouts with disjoint parts run at the same time and share no unit."""
    stages: list[float] = Field(default=[0.01, 0.05, 0.25, 0.5], min_length=1)
    """Shares of the canary, rising, at most 1/2: the control slice is as large. The last stage is followed by 100%."""
    requests: int = Field(default=5000, ge=1)
    """Requests of each stage, by units that are new to the rollout."""
    shadow_requests: int = Field(default=1000, ge=0)
    """Requests that the new version scores without answering them; 0: no shadow."""
    alpha: float = Field(default=0.05, gt=0, lt=1)
    """Probability that a version as good as the live one is rolled back, over the whole rollout."""
    evidence: list[str] = []
    """Kinds of evidence that a version needs before it answers requests: offline, certificate, paired, load ..."""
    guardrails: list[GuardrailConfig] = Field(default=[GuardrailConfig()], min_length=1)
    """Outcomes that must not become worse; they share alpha."""
    look_every_s: float = Field(default=60.0, gt=0)
    """Seconds between two looks at the decision log."""
    watch: bool = False
    """Let the service itself look, so that a rollout goes on, or back, when no `hone ship` follows it."""
    slack_s: float = Field(default=0.0, ge=0)
    """Seconds that a look stays behind, for gateways that write late or whose clocks differ."""

    def plan(self, *, name: str, service: str, version: str, control: str, shadow: bool = True) -> RolloutPlan:
        """The plan of a version's rollout; without `shadow` the version scores no requests before its stages."""
        first, last = (round(end * BUCKETS) for end in self.range)
        return RolloutPlan(
            name=name, service=service, version=version, control=control, stages=tuple(self.stages),
            requests=self.requests, shadow_requests=self.shadow_requests if shadow else 0, alpha=self.alpha,
            guardrails=tuple(one.guardrail() for one in self.guardrails), needs=tuple(self.evidence), first=first,
            last=last,
        )  # fmt: skip

    @model_validator(mode="after")
    def _rising(self) -> "StagedRolloutConfig":
        if self.stages != sorted(set(self.stages)):
            raise ValueError(f"stages rise from one to the next, got {self.stages}")
        if not 0 < self.stages[0] <= self.stages[-1] <= 0.5:
            raise ValueError(
                f"stages are shares above 0 and at most 0.5, got {self.stages}; above a half no control slice "
                "is as large as the canary"
            )
        if not 0 <= self.range[0] < self.range[1] <= 1:
            raise ValueError(f"range is a part of 0 to 1, got {self.range}")
        if len({one.kind for one in self.guardrails}) < len(self.guardrails):
            raise ValueError("two guardrails have one kind; give each kind one guardrail")
        return self
