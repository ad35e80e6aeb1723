"""Description of a recipe (`RecipeSpec`) and a runnable job (`TrainingJob`)."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from hone.core.clock import Clock
from hone.core.config import Config
from hone.core.credit import Credits, Metrics
from hone.core.episodes import Episodes
from hone.estimators.means import Estimate
from hone.run.config import RunConfig
from hone.run.loop import Recipe
from hone.run.memory_plan import MemoryPlan
from hone.run.store.evaluations import AnswerRow, SampleRow
from hone.run.store.records import MatmulRate
from hone.run.store.survivorship import SurvivorshipCounts

P = TypeVar("P")
T = TypeVar("T")


def close_nothing() -> None:
    """Do nothing: the default of `close`."""


def protect_nothing(folder: Path) -> None:
    """Do nothing: the default of `write_protect` and `open_folder`."""


def warn_nobody(line: str) -> None:
    """Do nothing: the default of `warn`."""


def record_nothing(folder: Path, step: int) -> None:
    """Do nothing: the default of `write_records`."""


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
    write_records: Callable[[Path, int], None] = record_nothing
    """Writes further records of the evaluation into the run's folder; called with it and the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob(Generic[P]):
    """A recipe that is ready to run."""

    recipe: Recipe[P]
    save_policy: Callable[[Path], None]
    """Writes the policy, in its released form, into an empty folder."""
    load_policy: Callable[[Path], None]
    """Loads the weights that `save_policy` wrote, in place."""
    sample_rows: Callable[[int, Episodes, Credits], Sequence[SampleRow]] | None = None
    """Step and its episodes -> readable answers for `samples.parquet`."""
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
    write_protect: Callable[[Path], None] = protect_nothing
    """Keeps a user's code from writing into the run's folder; called before the first step."""
    open_folder: Callable[[Path], None] = protect_nothing
    """Names the run's folder to parts that write records of their own; called before anything is restored."""
    close: Callable[[], None] = close_nothing
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
    warn: Callable[[str], None] = warn_nobody
    """Called with each note for the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedRun:
    """A checked run, with everything that its check opened."""

    warnings: Sequence[str]
    build: Callable[[Any], TrainingJob[Any]]
    """Config -> the job, which owns the opened resources from then on. A model path of the config may have been
    resolved since."""
    close: Callable[[], None] = close_nothing
    """Closes the opened resources if no job is built; may be called twice."""
    memory: MemoryPlan | None = None
    """Memory of the networks where it is known before they are made; None: a job is built to count it."""


def opened_run(
    inputs: T,
    build: Callable[[Any, T], TrainingJob[Any]],
    *,
    warnings: Sequence[str] = (),
    close: Callable[[], None] = close_nothing,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeSpec:
    """Description of a recipe: its config, documentation and functions that check and build a job."""

    summary: str
    """One line for `hone list recipes`."""
    paper: str
    """Paper and year."""
    config: type[RunConfig]
    open: Callable[[Any], OpenedRun]
    """Opens and checks everything that the run needs before its model: environments, logs, data, worker processes.
    Raises HoneError with all faults at once; nothing is open then."""
    derive: Callable[[Any], Mapping[str, str]]
    """Derived numbers of a config, for `hone plan`; loads no model."""
    parts: RecipeParts = RecipeParts()
    """Parts of the recipe with its default config."""
    evaluate: "Callable[[Any, EvaluationRequest], Metrics] | None" = None
    """Evaluation for `hone eval` if the return of the policy's mode is not the measure of interest; None: the mode's
    return."""
    limitation: str = ""
    """Main limitation, in a sentence."""
    collects_answers: bool = False
    """A run leaves answers behind that later stages of a pipeline read as `task.source`."""
    presets: Sequence[str] = ()
    """Names of the algorithm in TRL and verl, for the comparison on its documentation page."""

    def check(self, config: RunConfig) -> Sequence[str]:
        """Warnings about a config, with everything closed again. Raises HoneError with all faults at once."""
        opened = self.open(config)
        opened.close()
        return opened.warnings

    def build(self, config: RunConfig) -> TrainingJob[Any]:
        """Build the training job of a config. Raises HoneError with all faults at once."""
        return self.open(config).build(config)


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
