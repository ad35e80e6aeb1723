"""The reporter, the signals and the view of answers, each by itself."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from manual_clock import ManualClock

from hone.core.credit import NO_VALUES, Credits, Metrics, Values
from hone.core.episodes import Episodes
from hone.core.errors import InterruptedRun
from hone.core.state import State, substate
from hone.credit.returns import reward_as_advantage
from hone.estimators.means import Estimate
from hone.models.language.tokenizers import character_tokenizer
from hone.run.alarms import AlarmWatch
from hone.run.callbacks import StopRequest, stop_on_signals
from hone.run.job import EvaluationResult, RunSettings, StepRecord, TrainingJob
from hone.run.loop import Recipe
from hone.run.reporter import RunReporter, Stopwatch
from hone.run.run import evaluation_lines
from hone.run.store.events import read_events
from hone.run.store.folder import RunFolder, create_run
from hone.run.store.manifest import RunMetadata
from hone.run.store.metrics import MetricsWindow, open_metrics, read_metrics, tail_metrics
from hone.run.store.rollouts import rollouts_are_due
from hone.text.samples import answer_table
from hone.text.tasks.world import supervised_episodes

EPISODES = supervised_episodes([np.array([1], np.int32)], [np.array([2, 3], np.int32)])
CREDITS = Credits(advantage=EPISODES.reward)


@dataclass
class Nothing:
    """A source and a learner that do nothing, but tell a training score that grows."""

    policy: str = "p"
    told: float = 0.0

    def collect(self) -> Episodes:
        return EPISODES

    def publish(self, policy: str) -> None: ...

    def metrics(self) -> Metrics:
        self.told += 1.0
        return {"reward/mean": self.told}

    def values(self, episodes: Episodes) -> Values:
        return NO_VALUES

    def update(self, episodes: Episodes, credits: Credits) -> Metrics:
        return {}

    def state(self) -> State:
        return {"told": self.told}

    def restore(self, state: State) -> None: ...


@dataclass
class Silent:
    notes: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)

    def start(self, total: int, title: str) -> None: ...

    def update(self, step: int, metrics: Metrics) -> None:
        self.steps.append(step)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def close(self) -> None: ...


def reporter_of(
    folder: RunFolder, *, settings: RunSettings, steps: int, scores: Sequence[float] = (), every: int = 0
) -> RunReporter:
    left = list(scores)

    def judge() -> EvaluationResult:
        score = left.pop(0)
        return EvaluationResult(
            estimate=Estimate(mean=score, low=score, high=score, n=1), metrics={"eval/score": score}
        )

    parts, clock = Nothing(), ManualClock()
    return RunReporter(
        job=TrainingJob(
            recipe=Recipe(source=parts, credit=reward_as_advantage, learner=parts),
            save_policy=lambda place: (place / "weights").touch(),
            load_policy=lambda place: None,
            evaluate=judge if scores else None,
            evaluate_every=every,
        ),
        folder=folder,
        checkpoints=folder.checkpoints(keep_last=settings.keep_last, keep_best=settings.keep_best),
        metrics=open_metrics(folder.metrics_path).writer,
        settings=settings,
        steps=steps,
        progress=Silent(),
        stop=StopRequest(),
        stopwatch=Stopwatch(clock),
        clock=clock,
    )


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    facts = RunMetadata(hone_version="0", dataset_fingerprint=None, recipe="r", machine="m", versions={})
    return create_run(tmp_path, "run", config={}, metadata=facts, clock=ManualClock())


def test_the_best_checkpoint_is_the_best_judged_one(folder: RunFolder) -> None:
    """Judged at 2 and 4 and 6; what the training scored meanwhile, on easier questions, competes with nothing."""
    settings = RunSettings(checkpoint_every=1, keep_last=1, keep_best=1)
    reporter = reporter_of(folder, settings=settings, steps=6, scores=[0.3, 0.9, 0.5], every=2)
    for step in range(1, 7):
        reporter(step, EPISODES, CREDITS, {})
    assert folder.checkpoints().steps() == [4, 6]


@pytest.mark.parametrize(
    ("scores", "kept"),
    [([0.3, 0.9, 0.5], [4, 6]), ([0.9, 0.3, 0.5], [2, 6]), ([0.9, 0.9, 0.1], [4, 6]), ([0.1, 0.2, 0.3], [6])],
)
def test_the_best_evaluation_is_kept_though_no_checkpoint_is_due(
    folder: RunFolder, scores: list[float], kept: list[int]
) -> None:
    """Of equal scores the latest. A policy that was good and falls is not lost between two checkpoints."""
    settings = RunSettings(checkpoint_every=0, keep_last=1, keep_best=1)
    reporter = reporter_of(folder, settings=settings, steps=6, scores=scores, every=2)
    for step in range(1, 7):
        reporter(step, EPISODES, CREDITS, {})
    assert folder.checkpoints().steps() == kept
    (line,) = evaluation_lines(folder)
    best = max(scores)
    assert f"best of 3 evaluations: {best} at step {kept[0]}" in line
    if kept != [6]:
        assert f"kept in {folder.checkpoints_folder / f'step_0000000{kept[0]}'}" in line
        assert f"the last policy, of step 6, scores {scores[-1]}" in line


def test_a_resumed_run_still_knows_its_best_evaluation(folder: RunFolder) -> None:
    settings = RunSettings(checkpoint_every=0, keep_last=1, keep_best=1)
    before = reporter_of(folder, settings=settings, steps=6, scores=[0.9], every=2)
    for step in (1, 2):
        before(step, EPISODES, CREDITS, {})
    after = reporter_of(folder, settings=settings, steps=6, scores=[0.4, 0.5], every=2)
    after.restore(substate(folder.checkpoints().at(2).state(), "report"))
    for step in (3, 4):
        after(step, EPISODES, CREDITS, {})
    assert folder.checkpoints().steps() == [2], "0.4 is no best"


def test_a_best_evaluation_that_was_not_kept_is_named_with_the_remedy(folder: RunFolder) -> None:
    settings = RunSettings(checkpoint_every=0, keep_last=1, keep_best=0)
    reporter = reporter_of(folder, settings=settings, steps=4, scores=[0.9, 0.1], every=2)
    for step in range(1, 5):
        reporter(step, EPISODES, CREDITS, {})
    (line,) = evaluation_lines(folder)
    assert "0.9 at step 2, not kept (run.keep_best = 1 keeps it); the last policy, of step 4, scores 0.1" in line


def test_without_a_judge_the_training_score_decides(folder: RunFolder) -> None:
    settings = RunSettings(checkpoint_every=1, keep_last=1, keep_best=2)
    reporter = reporter_of(folder, settings=settings, steps=5)
    for step in range(1, 6):
        reporter(step, EPISODES, CREDITS, {})
    assert folder.checkpoints().steps() == [4, 5], "here it grows with every step"


def test_lines_are_means_of_their_steps_and_the_last_step_has_one(folder: RunFolder) -> None:
    reporter = reporter_of(folder, settings=RunSettings(log_every=3, checkpoint_every=0), steps=7)
    for step in range(1, 8):
        reporter(step, EPISODES, CREDITS, {"x": float(step)} | ({"rare": 8.0} if step == 2 else {}))
    columns = read_metrics(folder.metrics_path)
    assert columns.steps.tolist() == [3, 6, 7]
    assert columns.values["x"].tolist() == [2, 5, 7]
    assert columns.values["rare"][0] == 8, "a mean over the steps that have it"
    assert np.isnan(columns.values["rare"][1:]).all()
    assert folder.checkpoints().steps() == [7]


def test_a_stop_is_heard_at_the_end_of_a_step_and_saved(folder: RunFolder) -> None:
    reporter = reporter_of(folder, settings=RunSettings(checkpoint_every=0), steps=3)
    reporter(1, EPISODES, CREDITS, {})
    reporter.stop.signal_number = signal.SIGTERM
    with pytest.raises(InterruptedRun, match="stopped after step 2 of 3") as caught:
        reporter(2, EPISODES, CREDITS, {})
    assert caught.value.exit_code == 143
    assert folder.checkpoints().steps() == [2]
    reporter(3, EPISODES, CREDITS, {})
    assert folder.checkpoints().steps() == [2, 3], "a run that is done is done, not interrupted"


def lines_of(folder: RunFolder) -> list[int]:
    return [step for step, _ in tail_metrics(folder.metrics_path, 0)[0]]


def test_lines_of_short_steps_are_written_together_and_those_of_long_ones_at_once(folder: RunFolder) -> None:
    """The first line at once, then those of 0.8 seconds: a line is due where the next one would come too late."""
    reporter = reporter_of(folder, settings=RunSettings(checkpoint_every=0), steps=50)
    seen: list[int] = []
    for step in range(1, 9):
        reporter.clock.advance(0.2 if step < 7 else 0.8)
        reporter(step, EPISODES, CREDITS, {})
        seen.append(len(lines_of(folder)))
    assert seen == [1, 1, 1, 4, 4, 4, 7, 8]


def test_lines_are_written_before_an_evaluation_a_checkpoint_and_an_end(folder: RunFolder) -> None:
    settings = RunSettings(checkpoint_every=5)
    reporter = reporter_of(folder, settings=settings, steps=9, scores=[0.1, 0.2, 0.3], every=4)
    seen: list[int] = []
    for step in range(1, 9):
        reporter(step, EPISODES, CREDITS, {})
        seen.append(len(lines_of(folder)))
    assert seen == [1, 1, 1, 3, 5, 5, 5, 7]
    reporter.append_lines()
    assert lines_of(folder) == [*range(1, 9)]


def test_alarms_of_lines_that_waited_are_those_of_each(folder: RunFolder) -> None:
    reporter = reporter_of(folder, settings=RunSettings(checkpoint_every=0), steps=40)
    rows = [{"reward/missing": 0.5 if 5 <= step < 20 else 0.0} for step in range(1, 31)]
    for step, row in enumerate(rows, start=1):
        reporter(step, EPISODES, CREDITS, row)
    reporter.append_lines()
    events = [(one.step, one.data) for one in read_events(folder.path).events if one.kind == "alarm"]
    alone = AlarmWatch({}, 1)
    assert events == [
        (step, change.data())
        for step, line in tail_metrics(folder.metrics_path, 0)[0]
        for change in alone.see(step, line)
    ]
    assert len(events) == 3, "raised, red, ended"


def due_steps(steps: int, size: int, every: int | None) -> list[int]:
    """Steps of files of a run whose steps have `size` decisions each."""
    found, decisions = list[int](), 0
    for step in range(1, steps + 1):
        decisions += size
        if rollouts_are_due(step, steps, every, decisions):
            found.append(step)
            decisions = 0
    return found


def test_small_steps_leave_rollouts_less_often() -> None:
    assert due_steps(50, 4000, None) == [1, 20, 30, 40, 50]
    assert due_steps(50, 100_000, None) == [1, 10, 20, 30, 40, 50]
    assert due_steps(64, 1280, None) == [1, 40, 64]
    assert due_steps(5, 1, 2) == [1, 2, 4, 5]
    assert due_steps(5, 1, 0) == []


def test_a_window_put_away_and_taken_up_is_the_same_window() -> None:
    window, other = MetricsWindow(), MetricsWindow()
    for value in (0.1, 0.2, 0.7):
        window.add({"a": value})
    other.restore(window.state())
    for one in (window, other):
        one.add({"a": 0.3, "b": 1.0})
    means = window.means()
    assert means == other.means() == {"a": pytest.approx(0.325), "b": 1.0}
    assert window.means() == {}


def test_the_largest_of_a_window_is_the_largest_of_its_steps() -> None:
    window = MetricsWindow()
    for value in (-3.0, 2.0, -1.0):
        window.add({"ratio_max": value, "ratio": value})
    assert window.means() == {"ratio_max": 2.0, "ratio": pytest.approx(-2 / 3)}


def test_one_signal_asks_and_handlers_come_back() -> None:
    notes: list[str] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with stop_on_signals(notes.append) as request:
        assert not request.requested
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.requested
        assert request.exit_code == 143
    assert len(notes) == 1
    assert {number: signal.getsignal(number) for number in before} == before


def test_a_note_that_cannot_be_made_now_does_not_end_the_run() -> None:
    def note(_text: str) -> None:
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stdout>'>")

    with stop_on_signals(note) as request:
        os.kill(os.getpid(), signal.SIGINT)
        assert request.exit_code == 130


def test_a_run_in_a_thread_leaves_signals_alone() -> None:
    found: list[bool] = []

    def work() -> None:
        with stop_on_signals(lambda _text: None) as request:
            found.append(request.requested)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [False]


def test_answers_are_numbered_within_their_group_in_whatever_order_groups_come() -> None:
    tokenizer = character_tokenizer(["abc"])
    prompts = [tokenizer.encode(text) for text in ("a", "b", "a", "b", "a")]
    episodes = replace(supervised_episodes(prompts, [tokenizer.encode("cc")] * 5), group=np.array([7, 2, 7, 2, 7]))
    record = StepRecord(step=3, episodes=episodes, credits=Credits(advantage=episodes.reward))
    rows = answer_table(record, tokenizer).rows
    assert [(row.group, row.sample, row.prompt, row.completion) for row in rows] == [
        (7, 0, "a", "cc"),
        (2, 0, "b", "cc"),
        (7, 1, "a", "cc"),
        (2, 1, "b", "cc"),
        (7, 2, "a", "cc"),
    ]
    assert Counter(row.step for row in rows) == {3: 5}


def test_saving_is_timed_with_the_step_that_follows(folder: RunFolder) -> None:
    """The line of a step is written before its checkpoint: what that takes stands in the next one."""
    reporter = reporter_of(folder, settings=RunSettings(checkpoint_every=1), steps=3)
    clock = reporter.clock
    assert isinstance(clock, ManualClock)
    reporter.job = replace(reporter.job, save_policy=lambda place: clock.advance(2.0))
    for step in (1, 2, 3):
        reporter(step, EPISODES, CREDITS, {})
    values = read_metrics(folder.metrics_path).values
    assert values["time/step_s"].tolist() == [0.0, 2.0, 2.0]
    assert values["time/save_s"].tolist()[1:] == [2.0, 2.0] and np.isnan(values["time/save_s"][0])
