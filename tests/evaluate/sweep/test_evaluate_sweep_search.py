"""The course of a sweep over runs that are only written down: halving, failures, an interruption, the fresh seeds."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from manual_clock import ManualClock

from hone.core.config import ConfigSetting
from hone.core.errors import DataError, InterruptedRun
from hone.evaluate.sweep.search import (
    GridProposer,
    OptunaProposer,
    SweepPlan,
    SweepSearch,
    TrialProposer,
    TrialRun,
    TrialTrainer,
    uncompared_keys,
)
from hone.evaluate.sweep.space import OptunaSearch, grid, swept_keys
from hone.process.commands import LOST, CommandEnd, HoneCommand
from hone.run.report.comparison_page import latest_scores, render_sweep, trial_end
from hone.run.store.comparison import SweepJournal, SweepRecord, read_sweep
from hone.run.store.folder import create_run, open_run
from hone.run.store.manifest import RunMetadata

FACTS = RunMetadata(
    hone_version="0", dataset_fingerprint="", recipe="ppo", machine="", versions={"python": "3"}, code={}
)  # fmt: skip
RATES = [0.1, 0.2, 0.4, 0.8, 0.16, 0.32]


@dataclass
class WrittenRuns:
    """A runner whose runs are folders with one metric: the learning rate, a little of the seed, and the steps."""

    root: Path
    slots: int = 2
    made: list[str] = field(default_factory=list[str])
    ends: list[CommandEnd] = field(default_factory=list[CommandEnd])
    code: Callable[[str, int], int] = lambda _name, _steps: 0
    stops: int = 0

    def start(self, command: HoneCommand) -> None:
        place, seed, steps, rate, begun = command.arguments
        self.made.append(f"{command.name}@{steps}{'+' if begun == 'True' else ''}")
        code = self.code(command.name, int(steps))
        if code >= 0:
            self.write(Path(place), int(seed), int(steps), float(rate), begun=begun == "True")
        self.ends.append(CommandEnd(name=command.name, code=code, lines=("no luck",) if code else ()))

    def write(self, root: Path, seed: int, steps: int, rate: float, *, begun: bool) -> None:
        """A run that scored its learning rate."""
        values = {"seed": seed, "steps": steps, "learner.lr": rate}
        name, clock = f"seed_{seed}", ManualClock()
        if not begun:
            settings = {key: ConfigSetting(value=value, origin="default") for key, value in values.items()}
            create_run(root, name, config=settings, metadata=FACTS, clock=clock).close()
        path = open_run(root / name, clock=clock).metrics_path
        line = {"step": steps, "reward/mean": rate + 0.001 * seed}
        path.write_text(json.dumps(line) + "\n")

    def wait(self, timeout_s: float) -> list[CommandEnd]:
        del timeout_s
        return [self.ends.pop()] if self.ends else []  # the newest first: order of arrival decides nothing

    def stop(self) -> None:
        self.stops += 1

    def close(self) -> None:
        self.ends.clear()


def sweep(
    folder: Path, runner: WrittenRuns, *, proposer: TrialProposer | None = None, rungs: Sequence[int] = (9,),
    finalists: int = 1, stopping: Callable[[], bool] = lambda: False, retries: int = 0, metric: str = "reward/mean",
) -> SweepSearch:  # fmt: skip
    """A search over the learning rates in `folder`, new or resumed."""
    folder.mkdir(exist_ok=True)
    journal = SweepJournal(folder, read_sweep(folder) or SweepRecord(plan={"seeds": [0, 1], "fresh_seeds": [5, 6]}))

    def arguments(run: TrialRun, begun: bool) -> list[str]:
        rate = run.trial.settings["learner.lr"]
        return [str(folder / run.folder), str(run.seed), str(run.steps), str(rate), str(begun)]

    trainer = TrialTrainer(
        journal=journal, runner=runner, arguments=arguments, stopping=stopping, retries=retries, metric=metric
    )
    plan = SweepPlan(seeds=(0, 1), fresh_seeds=(5, 6), rungs=tuple(rungs), factor=3, finalists=finalists)
    chosen = proposer or GridProposer(combinations=grid(swept_keys({"learner.lr": RATES})))
    return SweepSearch(plan, journal, proposer=chosen, runs=trainer)


def test_halving_trains_the_better_trials_further_and_the_best_on_fresh_seeds(tmp_path: Path) -> None:
    runner = WrittenRuns(tmp_path)
    result = sweep(tmp_path / "s", runner, rungs=(1, 3, 9), finalists=2).run()
    assert [(one.steps, one.kept) for one in result.record.rungs] == [(1, (3, 2)), (3, (3,)), (9, (3,))]
    assert result.record.finalists == (3,)  # only one trial reached the end
    assert sorted(one for one in runner.made if "trial_003" in one) == [
        *(f"fresh/trial_003/seed_{seed}@9" for seed in (5, 6)),
        *(f"search/trial_003/seed_{seed}@{steps}" for seed in (0, 1) for steps in ("1", "3+", "9+")),
    ]
    (fresh,) = result.record.fresh
    assert (fresh.mean, fresh.worst) == pytest.approx((0.8055, 0.805))  # the mean and the worst of 0.805 and 0.806
    ends = {row[0].number: trial_end(result.record, *row) for row in latest_scores(result.record)}
    assert ends == {3: "winner", 2: "stopped at step 3", **dict.fromkeys((0, 1, 4, 5), "stopped at step 1")}


def test_an_interrupted_sweep_makes_the_same_trials_and_no_run_twice(tmp_path: Path) -> None:
    whole = WrittenRuns(tmp_path)
    expected = sweep(tmp_path / "whole", whole, rungs=(1, 9)).run().record
    for stop_after in (13, 17):  # in the second rung, on the fresh seeds
        first, second, third = (WrittenRuns(tmp_path) for _ in range(3))
        folder = tmp_path / f"cut_{stop_after}"

        def enough(runner: WrittenRuns = first, count: int = stop_after) -> bool:
            return len(runner.made) >= count

        with pytest.raises(InterruptedRun, match="--resume continues the sweep"):
            sweep(folder, first, rungs=(1, 9), stopping=enough).run()
        assert sweep(folder, second, rungs=(1, 9)).run().record == expected
        assert sorted(first.made + second.made) == sorted(whole.made)
        assert sweep(folder, third, rungs=(1, 9)).run().record == expected
        assert third.made == []


def test_optuna_sees_stopped_trials_and_resumes_between_batches(tmp_path: Path) -> None:
    keys = swept_keys({"learner.lr": {"low": 0.001, "high": 1.0, "log": True}})
    proposer = OptunaProposer(keys=keys, search=OptunaSearch(trials=6, batch=3, startup_trials=3))
    expected = sweep(tmp_path / "whole", WrittenRuns(tmp_path), proposer=proposer, rungs=(1, 9)).run().record
    assert [one.batch for one in expected.trials] == [0, 0, 0, 1, 1, 1]
    runner = WrittenRuns(tmp_path)
    with pytest.raises(InterruptedRun):
        cut = sweep(tmp_path / "cut", runner, proposer=proposer, rungs=(1, 9), stopping=lambda: len(runner.made) > 8)
        cut.run()
    assert sweep(tmp_path / "cut", WrittenRuns(tmp_path), proposer=proposer, rungs=(1, 9)).run().record == expected


def test_a_failed_trial_is_out_and_the_others_go_on(tmp_path: Path) -> None:
    runner = WrittenRuns(tmp_path, code=lambda name, _: 6 if name == "search/trial_003/seed_1" else 0)
    result = sweep(tmp_path / "s", runner).run()
    assert result.record.finalists == (2,)
    failed = next(one for one in result.record.rungs[0].scores if one.trial == 3)
    assert failed.failure == "seed 1: no luck"
    labels = {one.number: f"{one.number}: lr" for one in result.record.trials}
    page = render_sweep(result.record, labels, searched=None, fresh=result.fresh)
    assert "failed: seed 1: no luck" in page and "trial 2: lr" in page
    assert re.search(r"<b>0\.40\d*.*fresh seeds, worst seed 0\.40", page)


def test_a_lost_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    lost: list[str] = []

    def code(name: str, _: int) -> int:
        if name in lost or not name.endswith("seed_1"):
            return 0
        lost.append(name)
        return LOST

    runner = WrittenRuns(tmp_path, code=code)
    result = sweep(tmp_path / "s", runner, retries=1).run()
    assert not any(one.failure for one in result.record.rungs[0].scores)
    assert len(runner.made) == 14 + len(lost) and len(lost) == 6


def test_a_sweep_of_failures_ends_with_their_errors_and_can_be_tried_again(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="search/trial_000/seed_0: no luck") as caught:
        sweep(tmp_path / "s", WrittenRuns(tmp_path, code=lambda _name, _steps: 5)).run()
    assert caught.value.exit_code == 5
    # What kept a rung from being judged is tried again.
    begun = WrittenRuns(tmp_path)
    assert sweep(tmp_path / "s", begun).run().record.finalists == (3,)
    assert all(one.endswith("+") for one in begun.made if one.startswith("search/"))


def test_a_metric_that_no_run_has_stops_the_sweep_at_the_first_run_and_leaves_it(tmp_path: Path) -> None:
    runner = WrittenRuns(tmp_path, slots=1)
    with pytest.raises(DataError, match="has no metric 'reward/mena'") as caught:
        sweep(tmp_path / "s", runner, metric="reward/mena").run()
    assert "--resume --metric NAME judges them by another metric" in caught.value.messages[-1]
    assert len(runner.made) == 1
    again = WrittenRuns(tmp_path)
    assert sweep(tmp_path / "s", again).run().record.finalists == (3,)
    assert runner.made[0] not in again.made


def test_keys_that_a_comparison_ignores_cannot_be_swept() -> None:
    keys = ["learner.lr", "seed", "steps", "run.threads", "env.id", "evaluation.every"]
    assert uncompared_keys(keys) == keys[1:]
