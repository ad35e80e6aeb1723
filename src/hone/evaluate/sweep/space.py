"""The file of a sweep: the config of its runs, the seeds, the search, and the values to try, each for one key."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, cast

from pydantic import Field, JsonValue, ValidationError

from hone.core.config import Config
from hone.core.errors import ConfigError, ErrorCollector

TrialSettings: TypeAlias = Mapping[str, JsonValue]
"""Dotted key of the config -> value."""
_LABEL_CHARACTERS = 48


class ValueRange(Config):
    """Numbers from `low` to `high`, both included."""

    low: float
    """Smallest number."""
    high: float
    """Largest number."""
    log: bool = False
    """Draw uniformly on a logarithmic scale."""
    whole: bool = False
    """Whole numbers only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweptKey:
    """A key of the config with the values to try: a list, or a range."""

    key: str
    path: tuple[str, ...]
    """Its place in the table `over`."""
    values: tuple[JsonValue, ...] = ()
    range: ValueRange | None = None
    source: str = ""
    """Where it was given: `sweep.toml:5`."""

    def describe(self) -> str:
        """The values in words."""
        if self.range is None:
            return ", ".join(map(_shown, self.values))
        scale = ", logarithmic" if self.range.log else ""
        return f"{self.range.low:g} to {self.range.high:g}{scale}{', whole' if self.range.whole else ''}"

    def examples(self) -> list[JsonValue]:
        """The values of a list; the ends of a range."""
        if self.range is None:
            return list(self.values)
        ends = [self.range.low, self.range.high]
        return [int(end) if self.range.whole else end for end in ends]


def swept_keys(over: Mapping[str, JsonValue]) -> list[SweptKey]:
    """The keys of the table `over`. Raises ConfigError with all faults."""
    faults = ErrorCollector(ConfigError)
    keys = list(_swept(over, (), faults))
    for key in {one.key for one in keys if sum(other.key == one.key for other in keys) > 1}:
        faults.add(f"over.{key} is given twice")
    faults.raise_if_any()
    return keys


def _swept(table: Mapping[str, JsonValue], path: tuple[str, ...], faults: ErrorCollector) -> Iterator[SweptKey]:
    for name, value in table.items():
        here = (*path, name)
        key = ".".join(here)
        match value:
            case list():
                if not value or any(value.index(one) != place for place, one in enumerate(value)):
                    faults.add(f"over.{key} must list different values, at least one, got {value!r}")
                yield SweptKey(key=key, path=here, values=tuple(value))
            case dict() if "low" in value or "high" in value:
                try:
                    yield SweptKey(key=key, path=here, range=_range(key, value))
                except ConfigError as error:
                    faults.extend(error.messages)
            case dict() if value:
                yield from _swept(cast("Mapping[str, JsonValue]", value), here, faults)
            case _:
                faults.add(f"over.{key} must be a list of values or a range {{ low = 1, high = 9 }}, got {value!r}")


def _range(key: str, table: Mapping[str, JsonValue]) -> ValueRange:
    try:
        ends = ValueRange.model_validate(table)
    except ValidationError as error:
        raise ConfigError(*(f"over.{key}.{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())) from None
    if not ends.low < ends.high:
        raise ConfigError(f"over.{key}: low must be below high, got {ends.low:g} and {ends.high:g}")
    if ends.log and ends.low <= 0:
        raise ConfigError(f"over.{key}: a logarithmic range needs low > 0, got {ends.low:g}")
    if ends.whole and (ends.low % 1 or ends.high % 1):
        raise ConfigError(f"over.{key}: a range of whole numbers has whole ends, got {ends.low:g} and {ends.high:g}")
    return ends


def grid(keys: Sequence[SweptKey]) -> list[TrialSettings]:
    """Every combination of the values, the last key fastest. Raises ConfigError for a range."""
    ranges = [one.key for one in keys if one.range is not None]
    if ranges:
        raise ConfigError(
            *(f'over.{key} is a range, and a grid needs a list of values; search.kind = "optuna" draws from ranges'
              for key in ranges)
        )  # fmt: skip
    names = [one.key for one in keys]
    return [dict(zip(names, values, strict=True)) for values in itertools.product(*(one.values for one in keys))]


def grid_size(keys: Sequence[SweptKey]) -> int:
    """Number of combinations of the lists; ranges count as one."""
    return math.prod(max(1, len(one.values)) for one in keys)


def one_at_a_time(keys: Sequence[SweptKey]) -> list[TrialSettings]:
    """The first value of every key, and each other value of each key beside these: every value once."""
    first = {one.key: one.examples()[0] for one in keys}
    return [first, *({**first, one.key: value} for one in keys for value in one.examples()[1:])]


def trial_label(number: int, settings: TrialSettings) -> str:
    """A trial in short: `3: lr=0.001 epochs=4`, each key by its last part where that tells it apart."""
    last = [key.rpartition(".")[2] for key in settings]
    names = [short if last.count(short) == 1 else key for short, key in zip(last, settings, strict=True)]
    values = " ".join(f"{name}={_shown(value)}" for name, value in zip(names, settings.values(), strict=True))
    text = f"{number}: {values}"
    return text if len(text) <= _LABEL_CHARACTERS else text[: _LABEL_CHARACTERS - 4] + " ..."


def _shown(value: JsonValue) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


# --------------------------------------------------------------------------------------------------------------- config


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
