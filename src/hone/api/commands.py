"""The commands as functions: train, compare, evaluate, sample, load."""

import contextlib
import io
import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from hone.api.notebook import NotebookProgress, notebook_cell
from hone.api.python_config import ConfigInput, RewardInput, TaskInput, document_of, evaluation_task
from hone.api.results import AnswerTable, MultiSeedResult, SampledAnswer, TrainingResult, read_result
from hone.cli.commands.evaluate import PolicyTarget, evaluate_policy, find_policy
from hone.cli.commands.seeds import SeedRuns, parse_seeds, run_sequentially, seed_folder, set_seed
from hone.cli.commands.train import PlannedRun, opened_runs, planned_resume, planned_runs, train_one, train_pipeline
from hone.cli.stages import STAGE, pipeline_name
from hone.cli.terminal.progress import RunProgress
from hone.cli.terminal.screen import TerminalScreen, is_plain, make_console, standard_screen
from hone.config.resolve import require_consent
from hone.config.toml import ConfigDocument
from hone.core.clock import SystemClock
from hone.core.credit import Metrics
from hone.core.errors import ConfigError, HoneError
from hone.evaluate import checkpoint, comparison
from hone.process.child import TOKEN_VARIABLE
from hone.run.callbacks import CheckpointHook, EvaluationHook, ProgressDisplay, RunCallbacks, StepHook
from hone.run.resume import ResumeConsent
from hone.run.saved_config import is_control
from hone.run.store.comparison import Comparison
from hone.run.store.folder import check_name

if TYPE_CHECKING:
    from hone.control.predict import SavedPolicy

RunInput: TypeAlias = str | Path | TrainingResult
"""A run or checkpoint: its name under the runs, its folder, or the result of `train`."""
_ARGUMENTS = {
    "resume": "resume=True",
    "name": "name",
    "yes": "yes=True",
    "allow-changed-config": "allow_changed_config=True",
    "allow-changed-code": "allow_changed_code=True",
}
"""Options of the command that messages advise -> arguments of `train`."""
_OPTION = re.compile(rf"--({'|'.join(_ARGUMENTS)})\b(?: NAME\b)?")


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


def train(  # noqa: PLR0913 - a public call: one argument for each callback
    config: ConfigInput,
    overrides: Sequence[str] = (),
    *,
    runs: str | Path = "runs",
    resume: bool = False,
    allow_changed_config: bool = False,
    allow_changed_code: bool = False,
    yes: bool = False,
    progress: bool = False,
    track: str | Sequence[str | Mapping[str, object]] = (),
    on_step: StepHook | None = None,
    on_evaluation: EvaluationHook | None = None,
    on_checkpoint: CheckpointHook | None = None,
) -> TrainingResult:
    """Train a config with `key=value` overrides, into `runs`.

    `config` is a TOML file, a dictionary with the same tables, or a recipe's config object. A dictionary may hold
    Python objects: functions as rewards, classes or functions that make environments, rows or a DataFrame as a dataset.
    The callbacks get an event after every step, evaluation and checkpoint; one that returns False ends the run after
    the step, which is saved (in a pipeline, the stage). `yes` accepts values that look like a mistake, and
    a run that may not fit; `progress` shows the run as the command does, in a
    notebook as curves below the cell. `track` names trackers that follow the run
    ("wandb"), or gives the tables of `[[track]]` (`{"to": "mlflow", "project": "sums"}`), in place of the config's.

    With `resume`, `allow_changed_config` accepts new values of the algorithm, learner, rewards and rollout, and
    `allow_changed_code` changed files of the user's code; both are recorded in the run.

    Raises HoneError as the command does, UserCodeError for an exception in a callback (the step is saved).
    Warns as the command does: of what the check of environments and data found, and of each default that a resumed run
    keeps although the recipe's default is another now.
    """
    callbacks = RunCallbacks(on_step=on_step, on_evaluation=on_evaluation, on_checkpoint=on_checkpoint)
    display: ProgressDisplay = SilentProgress()
    if progress and (cell := notebook_cell()) is not None:
        display = NotebookProgress(cell=cell, clock=SystemClock())
    elif progress:
        display = RunProgress(console=standard_screen().console, clock=SystemClock(), live=not is_plain(sys.stdout))
    with _messages_for_python():
        trackers = [
            {"to": one} if isinstance(one, str) else one for one in ([track] if isinstance(track, str) else track)
        ]
        document, stages = _planned(config, overrides, Path(runs), yes=yes, resume=resume, track=trackers)
        for note in document.notes:
            warnings.warn(note, stacklevel=2)
        with opened_runs(stages, may_exceed=yes) as opened:
            for warning in (line for stage in opened if stage.opened is not None for line in stage.opened.warnings):
                warnings.warn(warning, stacklevel=2)
            return _train(
                document,
                opened,
                Path(runs),
                resume=resume,
                progress=display,
                callbacks=callbacks,
                consent=ResumeConsent(config=allow_changed_config, code=allow_changed_code),
            )


def _planned(
    config: ConfigInput,
    overrides: Sequence[str],
    runs: Path,
    *,
    yes: bool,
    resume: bool = False,
    track: Sequence[Mapping[str, object]] = (),
) -> tuple[ConfigDocument, list[PlannedRun]]:
    """The config with all keys checked. Raises ConfigError with all faults, and for suspicious values without `yes`."""
    if TOKEN_VARIABLE in os.environ:
        raise ConfigError(
            "hone.api trains, but one of hone's own processes imports this file; "
            'call it under `if __name__ == "__main__":`'
        )
    document = document_of(config, overrides, runs)
    if track:
        document.set_value(("track",), [dict(one) for one in track], source="the argument track")
    stages = planned_resume(document, runs) if resume else planned_runs(document)
    require_consent([warning for stage in stages for warning in stage.resolved.warnings], yes=yes)
    return document, stages


def _train(
    document: ConfigDocument,
    stages: Sequence[PlannedRun],
    runs: Path,
    *,
    resume: bool,
    progress: ProgressDisplay,
    callbacks: RunCallbacks,
    consent: ResumeConsent,
) -> TrainingResult:
    if STAGE not in document.values:
        folder = train_one(stages[0], root=runs, resume=resume, progress=progress, callbacks=callbacks, consent=consent)
        return read_result(folder.path)
    outcome = train_pipeline(
        document, stages, root=runs, resume=resume, progress=progress, callbacks=callbacks, consent=consent
    )
    return TrainingResult(
        folder=outcome.folder,
        evaluations=outcome.evaluations,
        comparisons=outcome.comparisons,
        side_by_side=outcome.side_by_side,
        seconds=outcome.seconds,
    )


def train_seeds(
    config: ConfigInput,
    seeds: int | Sequence[int],
    overrides: Sequence[str] = (),
    *,
    runs: str | Path = "runs",
    resume: bool = False,
    yes: bool = False,
) -> MultiSeedResult:
    """Train a config once per seed (a number n means 0 to n - 1), one run after another.

    A run that fails does not stop the others; the first error is raised at the end. Raises HoneError as `train` does.
    """
    asked = parse_seeds(str(seeds) if isinstance(seeds, int) else ",".join([*map(str, seeds), ""]))
    with _messages_for_python():
        document, _ = _planned(config, overrides, Path(runs), yes=yes)
        return _train_seeds(document, asked, Path(runs), resume=resume, yes=yes)


def _train_seeds(
    document: ConfigDocument, asked: Sequence[int], runs: Path, *, resume: bool, yes: bool
) -> MultiSeedResult:
    folder = runs / pipeline_name(document)
    check_name(folder.name)
    set_seed(document, asked[0])
    stages = planned_runs(document)
    with opened_runs(stages, may_exceed=yes) as opened:  # the first seed's data are checked; each run opens its own
        steps = opened[0].resolved.config.steps
    turns = SeedRuns(root=folder, seeds=asked, steps=steps, resume=resume)

    def make(seed: int, begun: bool) -> None:  # noqa: FBT001 - called by position
        set_seed(document, seed)
        train_one(planned_runs(document)[0], root=folder, resume=begun, progress=SilentProgress())

    run_sequentially(turns, make, TerminalScreen(console=make_console(io.StringIO())))
    result = comparison.compare([str(folder)], root=folder)
    return MultiSeedResult(folder=folder, runs=[folder / seed_folder(seed) for seed in asked], comparison=result)


def compare(
    asked: Sequence[RunInput], *, metric: str = "", threshold: float | None = None, runs: str | Path = "runs"
) -> Comparison:
    """Compare runs, given by names, folders, or folders of runs, and grouped by configuration.

    `metric` replaces the final score; `threshold` is the score for the time-to-threshold. Raises DataError for runs
    that are missing, unreadable, or without a score.
    """
    return comparison.compare([_place(one) for one in asked], root=Path(runs), metric=metric, threshold=threshold)


def evaluate(
    policy: RunInput,
    *,
    task: TaskInput = "",
    rewards: Sequence[RewardInput] = (),
    problems: int = 512,
    seed: int = 0,
    runs: str | Path = "runs",
) -> Mapping[str, float]:
    """Evaluate a run's newest checkpoint, or a policy's folder, on held-out problems: metrics by name.

    `task` (a file, rows, a table, a reasoning-gym task's name) and `rewards` (functions or their names) replace the
    run's own, and serve a run that was trained without an evaluation. Raises HoneError as the command does.
    """
    folder, run = find_policy(_place(policy), Path(runs))
    asked = evaluation_task(task, rewards, Path(runs))
    target = PolicyTarget(policy=folder, run=run, seed=seed, device="cpu", task=asked)
    return evaluate_policy(target, problems=problems).scores


def sample(  # noqa: PLR0913 - a public call: one argument for each option of the command
    policy: RunInput,
    *,
    prompt: str | None = None,
    task: TaskInput = "",
    rewards: Sequence[RewardInput] = (),
    count: int = 10,
    temperature: float = 1.0,
    seed: int = 0,
    raw: bool = False,
    runs: str | Path = "runs",
) -> AnswerTable:
    """Sample answers of a policy: (prompt, answer, score if there is a scorer).

    `count` answers to `prompt`, or one to each of `count` problems, of the run or of `task`, scored by the run's
    rewards or by `rewards` (as for `evaluate`). A model with a chat template gets `prompt` as a user's message, and
    with `raw` as it is. Raises HoneError as the command does.
    """
    folder, run = find_policy(_place(policy), Path(runs))
    asked = checkpoint.SampleRequest(
        run=run,
        prompt=prompt,
        count=count,
        temperature=temperature,
        seed=seed,
        device="cpu",
        task=evaluation_task(task, rewards, Path(runs)),
        raw=raw,
    )
    return AnswerTable(tuple(SampledAnswer(*answer) for answer in checkpoint.sample_answers(folder, asked)))


def load(policy: RunInput, *, runs: str | Path = "runs") -> "SavedPolicy":
    """Load a control policy to act with: `action, state = policy.predict(observation)`.

    `policy` is a run (its newest checkpoint), a checkpoint or a policy's folder. Normalisation of observations is part
    of it, and actions of a box are within its bounds. Raises ConfigError for a language model, DataError for a damaged
    folder and for an unknown run.
    """
    from hone.control.predict import open_saved_policy  # noqa: PLC0415 - the wing of the policy

    folder, _ = find_policy(_place(policy), Path(runs))
    if not is_control(folder):
        raise ConfigError(f"{folder} is a language model: hone.api.sample and hone serve write its answers")
    return open_saved_policy(folder)


def _place(run: RunInput) -> str:
    return str(run.folder if isinstance(run, TrainingResult) else run)


@contextlib.contextmanager
def _messages_for_python() -> Iterator[None]:
    """Write the options that messages advise as arguments: `resume=True` for `--resume`."""
    try:
        yield
    except HoneError as fault:
        fault.messages = tuple(_OPTION.sub(lambda found: _ARGUMENTS[found[1]], text) for text in fault.messages)
        fault.args = ("\n".join(fault.messages),)
        raise
