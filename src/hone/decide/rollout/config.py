"""The table `[rollout]` of a service file."""

from typing import Literal

from pydantic import Field, model_validator

from hone.core.config import Config


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
