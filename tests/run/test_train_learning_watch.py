"""Steps that teach nothing are counted and named, once when they begin and once at the end, through resumes."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import hone, lay_out

from hone.run.reporter import MIN_CONSTANT_STEPS, LearningWatch, StepSignals
from hone.run.store.codec import read_state, write_state

GOOD = {
    "answers/tokens_mean": 4.0,
    "reward/mean": 0.5,
    "reward/std": 0.5,
    "reward/missing": 0.0,
    "episodes/ended": 16.0,
}
GOOD |= {"reward/zero_variance_groups": 0.25, "policy/grad_norm": 0.3, "policy/entropy_nats": 1.2}
CASES: list[tuple[dict[str, float], bool, float, str]] = [
    ({"reward/mean": 0.0, "reward/std": 0.0}, True, 0.0, "taught nothing: every answer scored 0"),
    ({"reward/mean": 0.1, "reward/std": 1e-17}, True, 0.0, "taught nothing: every answer scored 0.1"),
    ({"reward/zero_variance_groups": 1.0}, True, 0.0, "taught nothing: the answers to each question scored alike"),
    ({"reward/missing": 1.0}, True, 0.0, "taught nothing: no answer had a score"),
    ({}, True, 0.0, "taught nothing: every advantage was 0"),
    ({"policy/grad_norm": 0.0}, False, 0.0, "taught nothing: the policy's gradient was 0"),
    ({"reward/std": 0.0}, False, 0.0, "could not tell answers apart by their scores: every answer scored 0.5"),
    ({"reward/missing": 0.5}, False, 0.5, "had half of their answers or more without a score: their rewards timed out"),
    ({"reward/missing": 0.75}, False, 0.1, "had half of their answers or more without a score"),
    ({"policy/entropy_nats": -0.0}, False, 0.0, "explored nothing: the policy's entropy was 0"),
]


def signals(*, zero: bool = False, timeouts: float = 0.0) -> StepSignals:
    return StepSignals(advantage_is_zero=zero, timeouts=timeouts)


@pytest.mark.parametrize(("changes", "zero", "timeouts", "words"), CASES)
def test_each_case_is_named_at_its_first_step_and_counted(
    changes: dict[str, float], zero: bool, timeouts: float, words: str
) -> None:
    watch, metrics = LearningWatch(), {**GOOD, **changes}
    if changes.get("reward/missing") == 1.0:
        del metrics["reward/mean"], metrics["reward/std"]
    assert watch.see(1, GOOD, signals()) == []
    assert watch.see(2, metrics, signals(zero=zero, timeouts=timeouts)) == [f"step 2 {words}"]
    assert watch.see(3, metrics, signals(zero=zero, timeouts=timeouts)) == []
    assert watch.summary() == [f"2 of 3 steps {words}"]


def test_scores_that_differ_from_step_to_step_are_alike() -> None:
    watch = LearningWatch()
    for step, score in enumerate((0.0, 1.0, 0.0), start=1):
        watch.see(step, {**GOOD, "reward/mean": score, "reward/std": 0.0}, signals(zero=True))
    assert watch.summary() == ["3 of 3 steps taught nothing: every answer scored alike"]


def test_a_greedy_baseline_tells_equal_answers_from_its_own() -> None:
    metrics = {**GOOD, "reward/std": 0.0, "reward/baseline_missing": 0.0}
    assert LearningWatch().see(1, metrics, signals()) == []


def test_in_control_a_zero_reward_is_no_alarm_but_a_constant_one_is_after_ten_steps() -> None:
    watch = LearningWatch()
    metrics = {"reward/mean": -200.0, "reward/std": 0.0, "episodes/ended": 4.0, "policy/grad_norm": 0.1}
    told = [watch.see(step, metrics, signals(zero=True)) for step in range(1, 15)]
    assert [step for step, lines in enumerate(told, start=1) if lines] == [MIN_CONSTANT_STEPS]
    assert watch.summary() == ["every episode of 14 steps returned -200: rewards never differed"]
    watch.see(15, {**metrics, "reward/mean": -199.0}, signals())
    assert watch.summary() == []
    watch.see(16, {"policy/entropy_nats": -1.3, "actor/grad_norm": 0.0, "critic/grad_norm": 2.0}, signals())
    watch.see(17, {"critic/grad_norm": 0.0}, signals())
    watch.see(18, {"critic/grad_norm": 1.0, "novelty/grad_norm": 0.0}, signals())
    assert watch.summary() == ["2 of 18 steps taught nothing: the policy's gradient was 0"]


def test_supervised_steps_and_steps_without_an_update_are_no_alarm() -> None:
    watch = LearningWatch()
    for metrics in ({}, {"policy/nll_nats": 1.0, "policy/grad_norm": 0.1}, {"episodes/decisions": 32.0}):
        assert watch.see(1, metrics, signals(zero=True)) == []
    assert watch.summary() == []


steps = st.lists(st.sampled_from(range(len(CASES) + 1)), max_size=30)


@given(steps, st.integers(0, 30))
def test_a_stop_at_any_step_changes_no_line(tmp_path_factory: Any, kinds: list[int], stop: int) -> None:
    folder = tmp_path_factory.mktemp("state")
    straight, resumed, lines, others = LearningWatch(), LearningWatch(), list[str](), list[str]()
    for step, kind in enumerate(kinds, start=1):
        changes, zero, timeouts, _ = CASES[kind] if kind < len(CASES) else ({}, False, 0.0, "")
        metrics, extra = {**GOOD, **changes}, signals(zero=zero, timeouts=timeouts)
        lines += straight.see(step, metrics, extra)
        if step == stop:
            write_state(folder, resumed.state())
            resumed = LearningWatch()
            resumed.restore(read_state(folder))
        others += resumed.see(step, metrics, extra)
    assert lines == others
    assert straight.summary() == resumed.summary()
    assert len(set(lines)) == len(lines)
    assert sum(math.isnan(value) for value in straight.values.values()) <= 2


ZERO = "def nothing(completions, **columns):\n    return [0.0 for _ in completions]\n"


def test_a_run_whose_rewards_are_all_0_says_so_on_screen_in_the_log_and_in_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("rewards.py").write_text(ZERO, encoding="utf-8")
    config = Path("grpo.toml").read_text(encoding="utf-8").replace("rewards.py:close", "rewards.py:nothing")
    Path("grpo.toml").write_text(config.replace("kl = 0.1", "kl = 0.0"), encoding="utf-8")
    run = tmp_path / "runs" / "tiny"
    assert hone("train", "grpo.toml", "steps=3", "run.certify=false", "run.keep_last=9") == 0
    shutil.rmtree(run / "checkpoints" / "step_00000003")
    capsys.readouterr()
    assert hone("train", "grpo.toml", "--resume", "run.certify=false", "run.keep_last=9") == 0
    out = capsys.readouterr().out
    log = (run / "log.txt").read_text(encoding="utf-8")
    assert log.count("step 1 taught nothing: every answer scored 0") == 1
    assert "3 of 3 steps taught nothing: every answer scored 0" in log
    for said in (out, log, (run / "report.html").read_text(encoding="utf-8")):
        assert "6 of 6 steps taught nothing: every answer scored 0" in said
    assert "step 3 taught" not in out, "the resume begins with what the run had said"
