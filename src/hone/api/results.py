"""Results of `hone.api`: short to print, tables as DataFrames.

Belongs here: what a finished run is read by. Everything is read from the run's folder when it is asked for, so a result
costs nothing to keep, and `TrainingResult(folder=...)` opens a run of any day.
"""

import html
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload

from hone.core.clock import SystemClock
from hone.core.errors import ConfigError, DataError
from hone.run.store.comparison import Comparison, ScoreInterval
from hone.run.store.evaluations import EvaluationScore, PipelineResult, best_step, read_evaluations, step_scores
from hone.run.store.folder import RunFolder, open_run
from hone.run.store.metrics import read_metrics
from hone.run.store.rollouts import read_samples, rollout_files, rollout_kind

if TYPE_CHECKING:
    import pandas

INSTALL_PANDAS = "tables come as pandas DataFrames, and pandas is not installed: pip install pandas"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrainingResult(PipelineResult):
    """Result of a run or pipeline."""

    @property
    def report(self) -> Path:
        """The HTML page of the run."""
        return self.folder / "report.html"

    @property
    def step(self) -> int:
        """Step of the newest checkpoint."""
        return self._run().checkpoints().steps()[-1]

    @property
    def policy(self) -> Path:
        """Folder of the newest checkpoint's policy; of a language model, transformers and vLLM load it. Raises
        DataError without a whole checkpoint."""
        return self._run().checkpoints().newest_intact().policy_folder

    @property
    def best_policy(self) -> Path:
        """Folder of the policy with the highest evaluation score, the latest of equal ones. Raises DataError without an
        evaluation, and where its checkpoint was not kept (`run.keep_best = 1` keeps it)."""
        run, scores = self._run(), step_scores(self.evaluations)
        if not scores:
            raise DataError(f"{self.folder} has no evaluation of a step, by which its best policy would be chosen")
        step = best_step(scores)
        if step not in run.checkpoints().steps():
            raise DataError(
                f"{self.folder}: the best of {len(scores)} evaluations is that of step {step} ({scores[step]:.5g}), "
                "whose checkpoint was not kept; train with run.keep_best = 1"
            )
        return run.checkpoints().at(step).policy_folder

    def metrics(self) -> "pandas.DataFrame":
        """Metrics by step, one column each, NaN where a step has none. Raises ConfigError without pandas."""
        columns = read_metrics(self._run().metrics_path)
        return _frame(columns.values, index=columns.steps)

    def samples(self) -> "pandas.DataFrame":
        """Answers of all steps that kept some, with scores; none of a run with episodes as rollouts. Raises
        ConfigError without pandas."""
        files = [file for file in rollout_files(self.folder).values() if rollout_kind(file) == "answers"]
        return _frame([asdict(row) for file in files for row in read_samples(file)])

    def scores(self) -> "pandas.DataFrame":
        """Evaluations with their 95% intervals, one row each. Raises ConfigError without pandas."""
        return _frame([asdict(one) for one in self.evaluations])

    def _run(self) -> RunFolder:
        """The run. Raises DataError for a pipeline, whose stages are runs."""
        if (self.folder / "pipeline.json").is_file():
            stages = [one.parent.name for one in sorted(self.folder.glob("*/manifest.json"))]
            raise DataError(
                f"{self.folder} is a pipeline: open one of its stages ({', '.join(stages)}), "
                "TrainingResult(folder=result.folder / STAGE)"
            )
        return open_run(self.folder, clock=SystemClock())

    def __repr__(self) -> str:
        last = self.evaluations[-1] if self.evaluations else None
        score = "" if last is None else f": {last.stage}, {last.metric} {_interval(last)}"
        return f"<{self.folder}{score}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(one.stage)}</td><td>{_interval(one)}</td></tr>" for one in self.evaluations
        )
        link = html.escape(str(self.report))
        return f"<b>{html.escape(str(self.folder))}</b> (<a href='{link}'>report</a>)<table>{rows}</table>"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MultiSeedResult:
    """Result of one configuration with several seeds."""

    folder: Path
    """Folder of the runs."""
    runs: Sequence[Path]
    """Results in the order of the seeds."""
    comparison: Comparison
    """Comparison over the seeds."""

    def scores(self) -> "pandas.DataFrame":
        """Final score and wall time of every seed. Raises ConfigError without pandas."""
        return comparison_table(self.comparison)

    def __repr__(self) -> str:
        group = self.comparison.groups[0]
        return f"<{self.folder}: {len(self.runs)} seeds, interquartile mean {_interval(group.iqm)}>"


class SampledAnswer(NamedTuple):
    """One answer of a policy."""

    prompt: str
    answer: str
    score: float | None
    """None without a scorer, or where it gave no score."""


@dataclass(frozen=True, slots=True, repr=False)
class AnswerTable(Sequence[SampledAnswer]):
    """Sampled answers: a sequence, and a DataFrame."""

    rows: tuple[SampledAnswer, ...]

    @overload
    def __getitem__(self, index: int) -> SampledAnswer: ...

    @overload
    def __getitem__(self, index: slice) -> "AnswerTable": ...

    def __getitem__(self, index: int | slice) -> "SampledAnswer | AnswerTable":
        return AnswerTable(self.rows[index]) if isinstance(index, slice) else self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def table(self) -> "pandas.DataFrame":
        """One row each: prompt, answer, score. Raises ConfigError without pandas."""
        return _frame([row._asdict() for row in self.rows])

    def __repr__(self) -> str:
        scored = [row.score for row in self.rows if row.score is not None]
        mean = f", mean score {sum(scored) / len(scored):.3g} of {len(scored)}" if scored else ""
        return f"<{len(self.rows)} answers{mean}>"


def comparison_table(comparison: Comparison) -> "pandas.DataFrame":
    """Runs of a comparison, one row each: group, run, task, score, seconds. Raises ConfigError without pandas."""
    return _frame(
        [
            {"group": group.name, "run": run.name, "task": run.task, "score": run.score, "seconds": run.seconds}
            for group in comparison.groups
            for run in group.runs
        ]
    )


def read_result(folder: Path) -> TrainingResult:
    """The result of a run's folder, with its evaluations."""
    evaluations, comparisons = read_evaluations(folder)
    return TrainingResult(folder=folder, evaluations=evaluations, comparisons=comparisons)


def _interval(score: EvaluationScore | ScoreInterval) -> str:
    return f"{score.mean:.4g} (95% interval {score.low:.4g} to {score.high:.4g})"


def _frame(data: Any, index: Any = None) -> "pandas.DataFrame":  # noqa: ANN401 - pandas takes nearly anything
    try:
        import pandas  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise ConfigError(INSTALL_PANDAS) from None
    return pandas.DataFrame(data, index=index)
