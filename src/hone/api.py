"""The public door for Python: what the commands do, without a screen.

`train(file)` runs what a config file describes, `evaluate(policy)` judges a checkpoint, `sample(policy)` lets it
answer.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.cli.configs import read_document, require_consent
from hone.cli.judging import find_policy
from hone.cli.pipelines import STAGE
from hone.cli.training import check_data, stages_of, train_one, train_pipeline
from hone.core.credit import Metrics
from hone.evaluate import checkpoint
from hone.store.evaluations import Evaluation, Paired, SideBySide


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A finished run or pipeline."""

    folder: Path
    evaluations: Sequence[Evaluation] = ()
    comparisons: Sequence[Paired] = ()
    side_by_side: Sequence[SideBySide] = ()


class Quiet:
    """Progress that nobody watches; notes are in the run's log."""

    def start(self, total: int, title: str) -> None:
        """Nothing to show."""

    def update(self, step: int, metrics: Metrics) -> None:
        """Nothing to show."""

    def note(self, text: str) -> None:
        """Nothing to show."""

    def close(self) -> None:
        """Nothing to close."""


def train(
    file: str | Path, overrides: Sequence[str] = (), *, runs: str | Path = "runs", resume: bool = False
) -> Trained:
    """Run what `file` describes, with `key=value` overrides, into `runs`. Raises HoneError, as the command says it."""
    document = read_document(file, overrides)
    stages = stages_of(document)
    require_consent([warning for stage in stages for warning in stage.resolved.warnings], yes=False)
    check_data(stages)
    if STAGE not in document.values:
        return Trained(folder=train_one(stages[0], root=Path(runs), resume=resume, progress=Quiet()).path)
    outcome = train_pipeline(document, stages, root=Path(runs), resume=resume, progress=Quiet())
    return Trained(
        folder=outcome.folder,
        evaluations=outcome.evaluations,
        comparisons=outcome.comparisons,
        side_by_side=outcome.side_by_side,
    )


def evaluate(
    policy: str | Path, *, problems: int = 512, seed: int = 0, runs: str | Path = "runs"
) -> Mapping[str, float]:
    """Judge a run's newest checkpoint, or a policy's folder, on held-out problems of its own task."""
    folder, run = find_policy(str(policy), Path(runs))
    return checkpoint.evaluate(folder, run=run, problems=problems, seed=seed, device="cpu")


def sample(
    policy: str | Path,
    *,
    prompt: str | None = None,
    count: int = 10,
    temperature: float = 1.0,
    seed: int = 0,
    runs: str | Path = "runs",
) -> Sequence[tuple[str, str, float | None]]:
    """Answers of a policy: (prompt, answer, score where there is a scorer)."""
    folder, run = find_policy(str(policy), Path(runs))
    return checkpoint.sample(
        folder, run=run, prompt=prompt, count=count, temperature=temperature, seed=seed, device="cpu"
    )
