"""Public Python API: the commands as functions.

`train(file)` trains a config file, `train_seeds(file, seeds)` trains it once per seed, `compare(runs)` compares runs,
`evaluate(policy)` evaluates a checkpoint, `sample(policy)` generates answers.
"""

import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.cli.commands.evaluate import PolicyTarget, evaluate_policy, find_policy
from hone.cli.commands.seeds import SeedRuns, parse_seeds, run_sequentially, seed_folder, set_seed
from hone.cli.commands.train import opened_runs, planned_runs, train_one, train_pipeline
from hone.cli.stages import STAGE, pipeline_name
from hone.cli.terminal.screen import TerminalScreen, make_console
from hone.config.resolve import read_document, require_consent
from hone.core.credit import Metrics
from hone.evaluate import checkpoint, comparison
from hone.store.comparison import Comparison
from hone.store.evaluations import EvaluationScore, PairedDifference, SideBySide
from hone.store.folder import check_name


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """Result of a finished run or pipeline."""

    folder: Path
    evaluations: Sequence[EvaluationScore] = ()
    comparisons: Sequence[PairedDifference] = ()
    side_by_side: Sequence[SideBySide] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiSeedResult:
    """Result of one configuration with several seeds."""

    folder: Path
    """Folder of the runs."""
    runs: Sequence[Path]
    """Results in the order of the seeds."""
    comparison: Comparison
    """Comparison over the seeds."""


class SilentProgress:
    """Progress without display; notes are in the run's log."""

    def start(self, total: int, title: str) -> None:
        """Show nothing."""

    def update(self, step: int, metrics: Metrics) -> None:
        """Show nothing."""

    def note(self, text: str) -> None:
        """Show nothing."""

    def close(self) -> None:
        """Do nothing."""


def train(
    file: str | Path, overrides: Sequence[str] = (), *, runs: str | Path = "runs", resume: bool = False
) -> TrainingResult:
    """Train the config `file` with `key=value` overrides, into `runs`. Raises HoneError as the command does.

    Warns with FutureWarning for each key that is given under an old name.
    """
    document = read_document(file, overrides)
    stages = planned_runs(document)
    _warn_of_old_names(document.notes)
    require_consent([warning for stage in stages for warning in stage.resolved.warnings], yes=False)
    with opened_runs(stages) as opened:
        if STAGE not in document.values:
            return TrainingResult(
                folder=train_one(opened[0], root=Path(runs), resume=resume, progress=SilentProgress()).path
            )
        outcome = train_pipeline(document, opened, root=Path(runs), resume=resume, progress=SilentProgress())
    return TrainingResult(
        folder=outcome.folder,
        evaluations=outcome.evaluations,
        comparisons=outcome.comparisons,
        side_by_side=outcome.side_by_side,
    )


def train_seeds(
    file: str | Path,
    seeds: int | Sequence[int],
    overrides: Sequence[str] = (),
    *,
    runs: str | Path = "runs",
    resume: bool = False,
) -> MultiSeedResult:
    """Train the config `file` once per seed (a number n means 0 to n - 1), one run after another.

    A run that fails does not stop the others; the first error is raised at the end. Raises HoneError and warns as
    `train` does.
    """
    asked = parse_seeds(str(seeds) if isinstance(seeds, int) else ",".join([*map(str, seeds), ""]))
    document = read_document(file, overrides)
    folder = Path(runs) / pipeline_name(document)
    check_name(folder.name)
    set_seed(document, asked[0])
    stages = planned_runs(document)
    _warn_of_old_names(document.notes)
    require_consent([warning for stage in stages for warning in stage.resolved.warnings], yes=False)
    with opened_runs(stages):  # the first seed's data are checked; each run opens its own
        pass
    turns = SeedRuns(root=folder, seeds=asked, steps=stages[0].resolved.config.steps, resume=resume)

    def make(seed: int, begun: bool) -> None:  # noqa: FBT001 - called by position
        set_seed(document, seed)
        train_one(planned_runs(document)[0], root=folder, resume=begun, progress=SilentProgress())

    run_sequentially(turns, make, TerminalScreen(console=make_console(io.StringIO())))
    found = comparison.compare([str(folder)], root=folder)
    return MultiSeedResult(folder=folder, runs=[folder / seed_folder(seed) for seed in asked], comparison=found)


def compare(
    asked: Sequence[str | Path], *, metric: str = "", threshold: float | None = None, runs: str | Path = "runs"
) -> Comparison:
    """Compare runs, given by names, folders, or folders of runs, and grouped by configuration.

    `metric` replaces the final score; `threshold` is the score for the time-to-threshold. Raises DataError for runs
    that are missing, unreadable, or without a score.
    """
    return comparison.compare([str(one) for one in asked], root=Path(runs), metric=metric, threshold=threshold)


def evaluate(
    policy: str | Path, *, problems: int = 512, seed: int = 0, runs: str | Path = "runs"
) -> Mapping[str, float]:
    """Evaluate a run's newest checkpoint, or a policy's folder, on held-out problems of its task."""
    folder, run = find_policy(str(policy), Path(runs))
    return evaluate_policy(PolicyTarget(policy=folder, run=run, seed=seed, device="cpu"), problems=problems).scores


def sample(
    policy: str | Path,
    *,
    prompt: str | None = None,
    count: int = 10,
    temperature: float = 1.0,
    seed: int = 0,
    runs: str | Path = "runs",
) -> Sequence[tuple[str, str, float | None]]:
    """Sample answers of a policy: (prompt, answer, score if there is a scorer)."""
    folder, run = find_policy(str(policy), Path(runs))
    return checkpoint.sample(
        folder, run=run, prompt=prompt, count=count, temperature=temperature, seed=seed, device="cpu"
    )


def _warn_of_old_names(notes: Sequence[str]) -> None:
    """Warn at the line of the caller's caller: the program that called `train`."""
    for note in notes:
        warnings.warn(note, FutureWarning, stacklevel=3)
