"""The tables `[monitor]` and `[monitor.retrain]` of a service file."""

from typing import Literal

from pydantic import Field, model_validator

from hone.core.config import Config


class RetrainConfig(Config):
    """Retraining by `hone train` on a frozen view of the decision log."""

    config: str
    """Config file of the run."""
    log_key: str = Field(default="log", min_length=1)
    """Key of that config that names the frozen view: `log` of the offline recipes, `log.path` of the bandits."""
    minimum_rewards: int = Field(default=4000, ge=40)
    """Rewards since the change that are awaited before a job is queued. Half of them judge the candidate: an off-policy
    estimate needs an effective sample size of 200, and a policy that explores little gives a tenth of its rows."""
    timeout_s: float = Field(default=3600.0, gt=0)
    """Seconds after which the training process is killed, with everything that it started."""
    memory_bytes: int = Field(default=0, ge=0)
    """Address space that the training process may take; 0: no limit."""
    minimum_gain: float = 0.0
    """Least difference of expected reward, candidate minus served, that the lower end of its interval must reach. Below
    0: a candidate may be as much worse, so that one that only forgets an old regime passes."""


class MonitorConfig(Config):
    """Monitor of a service."""

    on: Literal["residual", "reward"] = "residual"
    """Number that is watched: the reward minus the served model's score of the executed action, or the reward itself. A
    policy without scores is watched on its rewards."""
    detector: Literal["page_hinkley", "adwin", "conformal"] = "page_hinkley"
    """`page_hinkley`: fastest; its run length holds for independent rewards of any distribution. `adwin`: slower and
    more careful. `conformal`: an exact run length without any scale, for a model that does not learn and rewards
    without a daily cycle; it refuses others."""
    arl: float = Field(default=20_000.0, gt=32)
    """Mean number of rewards between two false alarms, per tenant."""
    cycle_s: float = Field(default=86_400.0, ge=0)
    """Length of the cycle that rewards may follow, in seconds. Until one is over, a small change may be taken for a
    part of it. 0: rewards follow none, and small changes are found from the first day on."""
    block: int = Field(default=1, ge=1)
    """Consecutive rewards that are averaged into one value; more than 1 where rewards correlate with their
    neighbours."""
    settle: int = Field(default=200, ge=0)
    """Rewards after a start or an alarm that are not judged, while the model still learns."""
    act: Literal["alert", "recall", "retrain"] = "alert"
    """Answer to drift: a log line; the older version that explains the recent rewards best; a training job. `recall`
    without such a version retrains where `[monitor.retrain]` is given."""
    window: int = Field(default=500, ge=20)
    """Latest rewards, with their decisions, that are kept per tenant for recall."""
    feature_window: int = Field(default=1000, ge=0)
    """Decisions of one test of the features, against the first four windows; 0: no test."""
    feature_alpha: float = Field(default=1e-4, gt=0, lt=1)
    """Probability of a false alarm of one test of all features."""
    least_entropy_nats: float = Field(default=0.0, ge=0)
    """Entropy of the executed actions below which they count as collapsed; 0: no test."""
    stale_s: float = Field(default=0.0, ge=0)
    """Seconds without a reward that raise an alarm; 0: none."""
    retrain: RetrainConfig | None = None
    """Retraining."""

    @model_validator(mode="after")
    def _check(self) -> "MonitorConfig":
        if self.act == "retrain" and self.retrain is None:
            raise ValueError('act = "retrain" needs a table [monitor.retrain] with the config of the run')
        return self
