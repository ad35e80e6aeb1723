"""Description of a recipe (`RecipeSpec`) and a runnable job (`TrainingJob`)."""

import contextlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from hone.core.clock import Clock
from hone.core.config import Config
from hone.core.credit import NO_VALUES, Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.estimators.means import Estimate
from hone.run.alarms import AlarmLimits
from hone.run.loop import Recipe
from hone.run.memory_plan import MemoryPlan
from hone.run.store.evaluations import AnswerRow
from hone.run.store.records import MatmulRate
from hone.run.store.rollouts import MAX_OBSERVATION, EpisodeTable, RolloutTable
from hone.run.store.survivorship import SurvivorshipCounts

# --------------------------------------------------------------------------------------------------------------- config


class InitConfig(Config):
    """Weights that a control run begins with; `run.init = "runs/a"` is short for the path alone."""

    path: str
    """A run (its newest checkpoint), a checkpoint, or the folder of a policy."""
    freeze: list[str] = []
    """Parts of the policy that are not trained: `actor`, `critic.layers.0`."""
    reset: list[str] = []
    """Parts that keep their own initial weights: `critic`, `log_std`."""


class ConsolidationConfig(Config):
    """Elastic weight consolidation: the weights that the policy of `run.init` needs are held."""

    weight: float = Field(gt=0)
    """The loss gets weight / 2 * sum of F (w - w0)^2, with the other policy's weights w0 and the diagonal F of the
    Fisher information of its decisions."""
    states: str = ""
    """Log (.parquet) whose states F is a mean over; empty: the newest rollouts of the run of `run.init`."""


class RunSettings(Config):
    """Settings of a run: device, threads, checkpoints, logging and tracking."""

    device: str = Field(
        default="cpu", pattern=r"^(cpu|cuda(:[0-9]+)?)$", json_schema_extra={"rule": '"cpu", "cuda" or "cuda:N"'}
    )
    """`cpu`, `cuda` or `cuda:N`."""
    threads: int = Field(default=2, ge=1)
    """Threads of the tensor library; a CPU run is bitwise reproducible for a fixed number of them."""
    log_every: int = Field(default=1, ge=1)
    """Steps per line of metrics.jsonl (figures are means over them)."""
    rollouts_every: int | None = Field(default=None, ge=0)
    """Steps between files of rollouts, which hold answers with their tokens, or episodes; 0 writes none. Unset: the
    first step of every 10 by which 40,000 decisions (tokens, actions) were made since the last file."""
    rollouts_keep_mb: float = Field(default=500.0, gt=0)
    """Space in megabytes for files of rollouts; beyond it every second one is removed, from the oldest on."""
    checkpoint_every: int = Field(default=50, ge=0)
    """Steps between checkpoints; the last step and an interruption are always saved."""
    disk_wait_s: float = Field(default=300.0, ge=0)
    """Seconds that a run waits for space on a full disk before it ends."""
    callbacks: list[str] = []
    """Callbacks of your own, each `file.py:Name`: a class with methods `on_step`, `on_evaluation` or `on_checkpoint`,
    or a function that is called after every step; one that returns False ends the run."""
    certify: bool = True
    """Before the first step, test on a small copy of the model that the loss's gradient does not depend on micro-
    batches, and write the result to `certificate.json`."""
    keep_last: int = Field(default=2, ge=1)
    """Newest checkpoints kept."""
    keep_best: int = Field(default=0, ge=0)
    """Best checkpoints kept as well: by the evaluation score where there is an evaluation (only evaluated steps
    count), else by the training score."""
    ranks: int = Field(default=1, ge=1)
    """Processes that share the learner: each computes a part of every batch, and holds a part of a language model's
    weights. Rank 0 is this process; the others are its children, on as many GPUs where the device is `cuda`."""
    tensor: int = Field(default=1, ge=1)
    """Ranks that hold each layer of a language model together, its heads and the columns of its MLP cut among them, for
    the same rows; a divisor of `ranks`. 1: ranks only share out the rows."""
    init: InitConfig | None = None
    """Begin with the weights of another run's policy, of control; a language model begins with `model.path`."""
    virtual_ranks: int = Field(default=0, ge=0)
    """Shares that every batch is cut into whatever the number of ranks: the weights then have the same bits on 1, 2, 4
    ... ranks. A power of two that `ranks` divides; 0: as many as ranks."""
    patience_s: float = Field(default=120.0, gt=0)
    """Longest wait of a rank for the others, in seconds; afterwards all of them start again from the last
    checkpoint."""

    @field_validator("init", mode="before")
    @classmethod
    def _init_from_path(cls, given: object) -> object:
        return {"path": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _check_ranks(self) -> "RunSettings":
        virtual = self.virtual_ranks
        if self.ranks % self.tensor:
            raise ValueError(f"ranks = {self.ranks} must be a multiple of tensor = {self.tensor}")
        if virtual and self.tensor > 1:
            raise ValueError(
                f"virtual_ranks = {virtual} with tensor = {self.tensor}: layers that are cut among ranks have other "
                "bits than whole ones; leave one of the two out"
            )
        if virtual and (virtual & (virtual - 1) or virtual % self.ranks):
            raise ValueError(
                f"virtual_ranks = {virtual} with ranks = {self.ranks}: it must be a power of two that ranks divides; "
                f"nearest: {max(2, 1 << (max(virtual, self.ranks) - 1).bit_length())}, with ranks a power of two"
            )
        if self.init is not None and self.ranks > 1:
            raise ValueError(f"run.init with ranks = {self.ranks}: the other ranks would begin with other weights")
        return self

    @property
    def shares(self) -> int:
        """Parts that the learner cuts a batch into: one for each virtual rank, or for each group of `tensor` ranks."""
        return self.virtual_ranks or self.ranks // self.tensor


class TrackConfig(Config):
    """A tracker that shows the run."""

    to: str
    """`tensorboard`, `wandb`, `mlflow`, `trackio`, or a class of your own, `file.py:Class`."""
    project: str = Field(default="hone", min_length=1)
    """Project (W&B, trackio) or experiment (MLflow) of the run."""
    place: str = ""
    """Where it is kept: a folder (TensorBoard, W&B), MLflow's tracking URI, trackio's server or Space; empty: the
    tracker's own default, by its environment variables."""
    names: Literal["hone", "trl", "verl"] = "hone"
    """Names of the metrics: hone's, or those that TRL or verl has for the same figures."""


class RunConfig(Config):
    """The keys that every recipe's config starts with."""

    recipe: str
    """Name of the algorithm: a file of `recipes/`."""
    name: str = Field(
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}$",
        json_schema_extra={"rule": "1 to 128 letters (a-z), digits, _, - and ., and not begin with a dot"},
    )
    """Name of the run's folder under `runs/`."""
    seed: int = Field(default=0, ge=0)
    """Seed of all random numbers of the run."""
    steps: int = Field(ge=1)
    """Iterations of the training loop: collect, score, learn, publish."""
    run: RunSettings = RunSettings()
    """Threads, logging, checkpoints and other settings of the run."""
    track: list[TrackConfig] = []
    """Trackers that show the run while it goes on, each as a table `[[track]]`."""
    alarms: AlarmLimits = Field(default={})
    """Limits of alarms about the run other than the default ones, such as `{ dead_groups = 0.8 }`; false: the alarm is
    not raised (docs/howto/alarms.md)."""

    def open(self) -> "OpenedRun":
        """Open and check everything that the run needs before its model: environments, logs, data, worker processes.

        Raises HoneError with all faults at once; nothing is open then.
        """
        raise TypeError(f"{type(self).__name__} names no run; its family, or the recipe, defines `open`")

    def derive(self) -> Mapping[str, str]:
        """Figures that follow from the config, shown by `hone plan`; loads no model."""
        return {}

    @classmethod
    def parts(cls) -> "RecipeParts":
        """Parts of the recipe with its default config, read from its code where the family can."""
        raise TypeError(f"{cls.__name__} names no parts; give them to `RecipeSpec`")

    def has_search(self) -> bool:
        """Whether the run's answers are searched for once it has finished."""
        return False


# ------------------------------------------------------------------------------------------------------------------ job


P = TypeVar("P")
T = TypeVar("T")


def do_nothing(*_: object) -> None:
    """The default of what is called at some moment, and of what may return None."""


def no_notices() -> list[str]:
    """Return no notices: the default of `pop_notices`."""
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationResult:
    """Result of an evaluation."""

    estimate: Estimate
    """Mean score with its 95% interval."""
    metrics: Metrics
    """`eval/score` and related metrics."""
    answers: Sequence[AnswerRow] = ()
    """Answers by question, for text tasks."""
    warnings: Sequence[str] = ()
    """What the figures say against the use of the policy: told in the log, in the report and when the run ends."""
    write_records: Callable[[Path, int], None] = do_nothing
    """Writes further records of the evaluation into the run's folder; called with it and the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionTrace:
    """Figures of a step's N decisions that its learner computed; NaN, and -1, where it did not look."""

    logp_now: NDArray[np.float32]
    """`[N]` nats, under the policy before the step's first update."""
    logp_last: NDArray[np.float32]
    """`[N]` nats, under the policy of the last pass over the decision."""
    ratio: NDArray[np.float32]
    """`[N]` probability ratio of that pass to the loss's denominator."""
    entropy: NDArray[np.float32]
    """`[N]` nats, at the first pass."""
    clipped: NDArray[np.int8]
    """`[N]` 1 where the gradient was clipped to 0, 0 where not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A step that is done, for its rollouts."""

    step: int
    episodes: Episodes
    credits: Credits
    values: Values = NO_VALUES
    trace: DecisionTrace | None = None


def episode_table(record: StepRecord) -> EpisodeTable:
    """The episodes of a step of control, a table or a bandit, decision by decision."""
    episodes, values = record.episodes, record.values.value
    count, decisions = len(episodes), episodes.decisions
    seen = episodes.observations.reshape(decisions, -1)
    first = np.minimum(episodes.offsets[:-1], max(decisions - 1, 0))
    return EpisodeTable(
        step=record.step,
        offsets=episodes.offsets,
        id=np.full(count, -1) if episodes.id is None else episodes.id,
        group=episodes.group,
        score=episodes.score,
        status=episodes.status,
        end=np.where(episodes.terminated, 0, np.where(episodes.truncated, 1, 2)).astype(np.uint8),
        version=episodes.version[first].astype(np.int64),
        actions=episodes.chosen.reshape(decisions, -1).astype(np.float32),
        rewards=episodes.reward,
        logp=episodes.logp,
        advantages=record.credits.advantage,
        values=values if len(values) == decisions else None,
        observations=seen.astype(np.float32) if 0 < seen.shape[1] <= MAX_OBSERVATION else None,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob(Generic[P]):
    """A recipe that is ready to run."""

    recipe: Recipe[P]
    save_policy: Callable[[Path], None]
    """Writes the policy, in its released form, into an empty folder."""
    load_policy: Callable[[Path], None]
    """Loads the weights that `save_policy` wrote, in place."""
    rollouts: Callable[[StepRecord], RolloutTable] | None = None
    """Rollouts of a step; None: its episodes are no rollouts, such as samples of a replay buffer."""
    pop_trace: Callable[[], DecisionTrace | None] = do_nothing
    """Returns figures of the latest update's decisions, and forgets them; called after every step."""
    warm_start: Callable[[InitConfig, RunConfig, Path | None], Sequence[str]] | None = None
    """Begins with the weights that `run.init` names, in a run of this config, or, of a run that is resumed from the
    policy in the folder, only repeats what no checkpoint holds; returns lines for the log. None: the recipe has no such
    start."""
    write_episodes: Callable[[Path, int, Episodes], None] | None = None
    """Run folder, step and its episodes: writes what the recipe leaves behind for later stages. Called after every
    step; a resumed run repeats the calls of the steps that it does again."""
    evaluate: Callable[[], EvaluationResult] | None = None
    """Scores the policy on held-out problems or episodes."""
    evaluate_every: int = 0
    """Steps between evaluations; 0: at the end only."""
    dataset_fingerprint: str | None = None
    """Fingerprint of the dataset; a resume with another one is refused."""
    measure_matmuls: Callable[[Clock], MatmulRate] | None = None
    """Measures the rate of matrix products in the policy's type and place; None: its work is not counted."""
    warnings: Sequence[str] = ()
    pop_notices: Callable[[], Sequence[str]] = no_notices
    """Returns notices for the user since the last call; called after every step."""
    closing_lines: Callable[[], Sequence[str]] = no_notices
    """Returns lines on the whole run, for its end."""
    survivorship: SurvivorshipCounts | None = None
    """Counts of the run's answers by length and by what became of them; saved with each checkpoint."""
    write_protect: Callable[[Path], None] = do_nothing
    """Keeps a user's code from writing into the run's folder; called before the first step."""
    open_folder: Callable[[Path], None] = do_nothing
    """Names the run's folder to parts that write records of their own; called before anything is restored."""
    close: Callable[[], None] = do_nothing
    """Ends worker processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeParts:
    """Parts of a recipe for documentation: the functions themselves, so that they can be looked up."""

    source: str = ""
    """Source of the episodes."""
    credit: Sequence[Callable[..., Any]] = ()
    """Credit functions, from the outermost wrapper inwards."""
    loss: Sequence[Callable[..., Any]] = ()
    """Functions that are added or multiplied into one loss term per decision."""
    weights: Sequence[Callable[..., Any]] = ()
    """Weighting schemes that reduce the terms to one number."""

    def describe(self) -> str:
        """`LiveSource(text task, engine) -> group_relative -> clipped + kl_penalty, token_mean`."""
        credit, loss, weights = (
            mark.join(part.__name__ for part in parts)
            for mark, parts in (("(", self.credit), (" + ", self.loss), (", ", self.weights))
        )
        closed = credit + ")" * (len(self.credit) - 1)
        return " -> ".join(part for part in (self.source, closed, ", ".join(filter(None, (loss, weights)))) if part)


FROM_CONFIG: Final = RecipeParts()
"""Stands for the parts that a recipe's config names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """Request of `hone eval`: a saved policy, the number of episodes and a seed."""

    policy: Path
    """The folder that `save_policy` wrote."""
    episodes: int
    seed: int
    device: str = "cpu"
    task: str = ""
    """Data in place of the run's own; empty: the run's own."""
    warn: Callable[[str], None] = do_nothing
    """Called with each note for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRun:
    """A checked run, with everything that its check opened."""

    warnings: Sequence[str]
    build: Callable[[Any], TrainingJob[Any]]
    """Config -> the job, which owns the opened resources from then on. A model path of the config may have been
    resolved since."""
    close: Callable[[], None] = do_nothing
    """Closes the opened resources if no job is built; may be called twice."""
    notes: Sequence[str] = ()
    """How the data were read, in words."""
    config: RunConfig | None = None
    """The config with the steps that its epochs make; None where it has them, or where the data are yet to come."""
    memory: MemoryPlan | None = None
    """Memory of the networks where it is known before they are made; None: a job is built to count it."""
    plan_checks: Callable[[], Sequence[str]] = no_notices
    """Checks that only a plan makes, because they take long: what they saw, in lines. Raises HoneError."""


def opened_run(
    inputs: T,
    build: Callable[[Any, T], TrainingJob[Any]],
    *,
    warnings: Sequence[str] = (),
    close: Callable[[], None] = do_nothing,
) -> OpenedRun:
    """Open and checked `inputs` for `build(config, inputs)`. They are closed with the job, and where the build fails;
    `close` may be called twice."""

    def build_job(config: Any) -> TrainingJob[Any]:  # noqa: ANN401 - the recipe's own config
        with contextlib.ExitStack() as stack:
            stack.callback(close)
            job = build(config, inputs)
            stack.callback(job.close)
            return replace(job, close=stack.pop_all().close)

    return OpenedRun(warnings=warnings, build=build_job, close=close)


RECIPE_PACKAGES: Final = "hone.recipes"
"""Group under which a package declares its recipes: `name = "package.module:ENTRY"`."""


def installed_recipes() -> Mapping[str, tuple[EntryPoint, ...]]:
    """What installed packages declare under each name of a recipe, sorted; imports none of them."""
    return _installed_recipes(tuple(sys.path))


@cache
def _installed_recipes(paths: Sequence[str]) -> Mapping[str, tuple[EntryPoint, ...]]:  # noqa: ARG001 - the cache's key
    """Look through the metadata of all packages, which takes milliseconds, once for each `sys.path`."""
    declared = sorted(set(entry_points(group=RECIPE_PACKAGES)), key=lambda point: (point.name, point.value))
    by_name: dict[str, tuple[EntryPoint, ...]] = {}
    for point in declared:
        by_name[point.name] = (*by_name.get(point.name, ()), point)
    return by_name


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeSpec:
    """Description of a recipe, whatever its family. Its config opens its runs (`RunConfig.open`)."""

    summary: str
    """One line for `hone list recipes`."""
    paper: str
    """Paper and year."""
    config: type[RunConfig]
    limitation: str = ""
    """Main limitation, in a sentence."""
    parts: RecipeParts = FROM_CONFIG
    """Parts of the recipe with its default config; unless given, those that the config names (`RunConfig.parts`)."""
    evaluate: Callable[[Any, EvaluationRequest], Metrics] | None = None
    """Evaluation for `hone eval` if the return of the policy's mode is not the measure of interest; None: the mode's
    return."""
    collects_answers: bool = False
    """A run leaves answers behind that later stages of a pipeline read as `task.source`."""
    presets: Sequence[str] = ()
    """Names of the algorithm in TRL and verl, for the comparison on its documentation page."""

    def __post_init__(self) -> None:
        if self.parts is FROM_CONFIG:
            object.__setattr__(self, "parts", self.config.parts())

    def check(self, config: RunConfig) -> Sequence[str]:
        """Warnings about a config, with everything closed again. Raises HoneError with all faults at once."""
        opened = config.open()
        opened.close()
        return opened.warnings

    def build(self, config: RunConfig) -> TrainingJob[Any]:
        """Build the training job of a config. Raises HoneError with all faults at once."""
        return config.open().build(config)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeDescription:
    """Texts about a recipe, for `hone list recipes`."""

    summary: str
    paper: str
    parts: str
    """`LiveSource(text task, engine) -> group_relative -> clipped + kl_penalty, token_mean`."""
    defaults: str
    """Keys of the `algorithm` table with their defaults."""
    limitation: str

    @classmethod
    def of(cls, spec: RecipeSpec) -> "RecipeDescription":
        """Describe a loaded recipe."""
        defaults = ", ".join(f"{key} = {value}" for key, value in algorithm_defaults(spec.config).items())
        return cls(
            summary=spec.summary,
            paper=spec.paper,
            parts=spec.parts.describe(),
            defaults=defaults,
            limitation=spec.limitation,
        )


def algorithm_defaults(config: type[RunConfig]) -> dict[str, str]:
    """The keys of a recipe's `algorithm` table with their defaults, as they are written in a config."""
    table = config.model_fields.get("algorithm")
    if table is None or not isinstance(table.annotation, type) or not issubclass(table.annotation, Config):
        return {}
    return {
        name: "required" if field.is_required() else _toml_text(field.get_default(call_default_factory=True))
        for name, field in table.annotation.model_fields.items()
    }


def _toml_text(value: object) -> str:
    if isinstance(value, Config):
        inside = {name: _toml_text(item) for name, item in dict(value).items()}
        return "{ " + ", ".join(f"{name} = {item}" for name, item in inside.items()) + " }"
    return "unset" if value is None else json.dumps(value)
