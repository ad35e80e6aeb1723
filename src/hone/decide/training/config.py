"""Config of the bandit recipes: where decisions come from, and the model of their rewards."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hone.core.config import Config
from hone.decide.simulators.drifting import BanditArms
from hone.run.config import RunConfig, RunSettings


class PriorConfig(Config):
    """Prior and noise of a linear model of rewards, and how fast it forgets."""

    noise: float = Field(default=1.0, gt=0)
    """Assumed standard deviation of a reward around its mean."""
    prior_precision: float = Field(default=1.0, gt=0)
    """Precision (1 / variance) of the prior of a coefficient; the ridge parameter where `noise` is 1."""
    discount: float = Field(default=1.0, gt=0, le=1)
    """Factor by which a decision's weight falls with each later decision; below 1 for rewards that drift."""


class DisjointModel(PriorConfig):
    """One linear model an arm: for a fixed set of actions."""

    kind: Literal["disjoint"] = "disjoint"
    """Names this alternative."""
    intercept: bool = True
    """Add a feature that is always 1."""


class JointModel(PriorConfig):
    """One linear model for all actions, on the products of context and action features: for actions that change."""

    kind: Literal["joint"]
    """Names this alternative."""


class DecisionLogConfig(Config):
    """A frozen view of a decision log, learnt once, in the order of time."""

    path: str = Field(min_length=1)
    """Folder or parquet file that `hone log FILE --view` wrote."""


class BanditRunConfig(RunConfig):
    """A bandit that learns from arms, or from a log of decisions."""

    run: RunSettings = RunSettings(threads=1, log_every=20)
    """Threads, logging, checkpoints and other settings of the run."""
    arms: BanditArms | None = None
    """Simulated arms; leave out where `log` is given."""
    log: DecisionLogConfig | None = None
    """Logged decisions; leave out where `arms` is given."""
    pulls: int = Field(default=1, ge=1)
    """Decisions per iteration from `arms`, made before any of their rewards is observed."""

    @model_validator(mode="after")
    def _one_source(self) -> "BanditRunConfig":
        if (self.arms is None) == (self.log is None):
            given = "both" if self.arms is not None else "neither"
            raise ValueError(f"a bandit learns from [arms] or from [log], and {given} is given; give one of them")
        return self


class LinearBanditConfig(BanditRunConfig):
    """A bandit with a linear model of the rewards."""

    model: Annotated[DisjointModel | JointModel, Field(discriminator="kind")] = DisjointModel()
    """Model of the rewards."""
