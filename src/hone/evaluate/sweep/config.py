"""The file of a sweep: the config of its runs, the values to try, the seeds, and the search."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field, JsonValue

from hone.core.config import Config


class GridSearch(Config):
    """Every combination of the values."""

    kind: Literal["grid"] = "grid"
    """Every combination."""


class OptunaSearch(Config):
    """Optuna's tree-structured Parzen estimator (Bergstra et al., 2011): later trials stay near good ones."""

    kind: Literal["optuna"] = "optuna"
    """Ask Optuna; needs the extra `sweep`."""
    trials: int = Field(default=20, ge=1, le=10_000)
    """Settings to try."""
    batch: int = Field(default=4, ge=1)
    """Settings that are asked for together. The next batch knows the scores of this one, whichever of its runs ended
    first."""
    startup_trials: int = Field(default=10, ge=0)
    """First settings that are drawn at random."""
    seed: int = Field(default=0, ge=0)
    """Seed of the search."""


SearchMethod: TypeAlias = Annotated[GridSearch | OptunaSearch, Field(discriminator="kind")]


class SuccessiveHalving(Config):
    """Successive halving (Jamieson and Talwalkar, 2016): all trials train a little, the better ones go on."""

    first_steps: int = Field(ge=1)
    """Steps of every trial, after which the first are stopped."""
    factor: int = Field(default=3, ge=2)
    """One trial of so many goes on, with so many times the steps."""


class RayTasks(Config):
    """Runs as tasks of a Ray cluster."""

    address: str = "auto"
    """Address of the cluster: `auto` for the running one, `local` for a new one on this machine, or `host:port`."""
    cpus: int = Field(default=1, ge=1)
    """CPU cores of one run."""
    gpus: float = Field(default=0, ge=0)
    """GPUs of one run."""


class SweepConfig(Config):
    """A sweep over settings of one config."""

    config: str
    """The config of the runs, a TOML file."""
    name: str = ""
    """Folder of the sweep under the runs; by default the name of the file."""
    over: dict[str, JsonValue] = Field(min_length=1)
    """Key of the config -> a list of values, or a range: `{ low = 1e-5, high = 1e-2, log = true }`."""
    seeds: str | int | list[int] = 3
    """Seeds of each trial: a count, a range `"0..4"`, or a list."""
    fresh_seeds: str | int | list[int] | None = None
    """Seeds of the final runs of the winner, which choose nothing; by default as many as `seeds`, from the next one
    on."""
    finalists: int = Field(default=1, ge=1)
    """Best settings that are trained again on the fresh seeds. The first is the winner, whatever these runs score."""
    metric: str = ""
    """Score of a run, higher is better; by default as in `hone compare`."""
    search: SearchMethod = GridSearch()
    """The choice of settings."""
    halving: SuccessiveHalving | None = None
    """Stop worse trials early."""
    jobs: int = Field(default=1, ge=1, le=4096)
    """Runs at the same time."""
    retries: int = Field(default=1, ge=0)
    """Times that a run goes on from its newest checkpoint after its process was killed or its machine was lost."""
    ray: RayTasks | None = None
    """Run on a Ray cluster, not as processes of this machine; needs the extra `ray`."""
