"""Runs compared: grouping, statistics, and what is said before anybody believes it."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from manual_clock import ManualClock

from hone.cli.main import main
from hone.core.clock import listening
from hone.core.config import ConfigSetting
from hone.core.errors import DataError
from hone.evaluate.comparison import compare, read_runs, registered_threshold, score_curves
from hone.run.report.comparison_page import render_comparison, write_comparison
from hone.run.store.evaluations import AnswerRow, EvaluationScore, write_answers, write_evaluations
from hone.run.store.folder import create_run
from hone.run.store.manifest import RunMetadata
from hone.run.store.metrics import open_metrics


def make_run(root, name, *, score=None, rewards=(), decisions=10.0, answers=(), recipe="toy", **settings):
    """A run folder with a training score per step, and a held-out score at its end."""
    values = {"seed": 0, "steps": len(rewards), "name": name, "env.id": "CartPole-v1", "lr": 0.1, **settings}
    config = {key.replace("__", "."): ConfigSetting(value=value) for key, value in values.items() if value is not None}
    facts = RunMetadata(hone_version="0", recipe=recipe, machine="m", versions={})
    with create_run(root, name, config=config, metadata=facts, clock=ManualClock()) as run:
        writer = open_metrics(run.metrics_path).writer
        for step, reward in enumerate(rewards, start=1):
            writer.append(step, {"reward/mean": reward, "episodes/decisions": decisions, "time/step_s": 2.0})
        writer.close()
        if score is not None:
            kept = EvaluationScore(stage="end", metric="score", mean=score, low=score, high=score, n=9)
            write_evaluations(run.path, [kept])
        if answers:
            rows = [
                AnswerRow(id=str(k), prompt=f"ask {k}", reference="", answer="", score=one)
                for k, one in enumerate(answers)
            ]
            write_answers(run.path, len(rewards), rows)
    return run.path


def seeds(root, stem, scores, **settings):
    return [
        make_run(root, f"{stem}-{k}", score=score, rewards=np.linspace(0, score, 40), seed=k, **settings)
        for k, score in enumerate(scores)
    ]


def test_seeds_are_gathered_by_configuration_and_named_without_their_seed(tmp_path):
    seeds(tmp_path, "slow", [1.0, 2.0, 3.0], lr=0.01)
    seeds(tmp_path, "fast", [4.0, 5.0, 6.0, 7.0, 100.0], lr=0.1)
    heard = []
    with listening(lambda work: heard.append((work.title, work.done, work.total))):
        found = compare([str(tmp_path)], root=tmp_path)
    assert heard[:1] + heard[8:11] == [("runs read", done, 8) for done in (0, 8, 8)] + [("groups compared", 0, 2)]
    fast, slow = found.groups
    assert (fast.name, len(fast.runs), slow.name, len(slow.runs)) == ("fast", 5, "slow", 3)
    assert fast.settings == {"lr": "0.1"} and slow.settings == {"lr": "0.01"}
    assert fast.iqm.mean == pytest.approx(6.0) and fast.mean.mean == pytest.approx(24.4)
    assert fast.median.mean == 6.0 and slow.iqm.low <= slow.iqm.mean <= slow.iqm.high
    (improved,) = found.improvements
    assert (improved.before, improved.after, improved.probability.mean) == ("fast", "slow", 0.0)
    assert found.metric == "held-out score at the end of the run" and not found.normalised
    assert any("slow: 3 runs" in note for note in found.notes) and not any("fast:" in note for note in found.notes)


def test_a_folder_of_seeds_is_called_like_the_folder(tmp_path):
    seeds(tmp_path / "a", "seed", [1.0, 2.0])
    seeds(tmp_path / "b", "seed", [3.0, 4.0], lr=0.5)
    found = compare(["a", str(tmp_path / "b")], root=tmp_path)
    assert [group.name for group in found.groups] == ["a", "b"]


def test_curves_are_over_steps_of_the_world_and_thresholds_are_timed(tmp_path):
    for k, top in enumerate((8.0, 10.0, 12.0)):
        make_run(tmp_path, f"r{k}", rewards=np.linspace(0, top, 40), seed=k)
    found = compare([str(tmp_path)], root=tmp_path, threshold=7.0)
    (group,) = found.groups
    assert (found.curve_metric, found.curve_unit) == ("reward/mean", "environment steps")
    line, reached = group.curves["CartPole-v1"], group.reached["CartPole-v1"]
    assert line.x[0] == 10.0 and line.x[-1] == 400.0  # 40 steps of 10
    assert line.middle[-1] == pytest.approx(10.0, rel=0.05)
    assert (line.low[60] < line.middle[60]) and (line.middle[60] < line.high[60])
    # The mean over the last twentieth of a run, two steps here: 12 k / 39 - 6 / 39 >= 7 from k = 24 on, and so on.
    first = [math.ceil((7.0 + top / 78) * 39 / top) + 1 for top in (8.0, 10.0, 12.0)]
    assert reached.median == 10.0 * sorted(first)[1] and (reached.reached, reached.n) == (3, 3)
    never = compare([str(tmp_path)], root=tmp_path, threshold=11.5).groups[0].reached["CartPole-v1"]
    assert never.median == math.inf and never.reached == 1
    assert registered_threshold("CartPole-v1") == 475.0 and registered_threshold("nothing") is None


def test_a_training_score_is_smoothed_and_a_judged_one_is_not(tmp_path):
    noise = [0.0, 10.0] * 20
    make_run(tmp_path, "r", rewards=noise)
    (curve,) = score_curves(read_runs(["r"], tmp_path))
    assert curve.y[1:].tolist() == [5.0] * 39  # two steps of forty
    (run,) = read_runs(["r"], tmp_path)
    assert run.score == 5.0 and "last tenth" in run.score_description  # of 0, 10, 0, 10


def test_several_tasks_are_put_on_one_scale(tmp_path):
    for task, low, high in (("A", 0.0, 1000.0), ("B", -1.0, 1.0)):
        for k in range(5):
            make_run(tmp_path, f"bad-{task}-{k}", score=low, rewards=[0.0], seed=k, env__id=task)
            make_run(tmp_path, f"good-{task}-{k}", score=high, rewards=[0.0], seed=k, env__id=task, lr=0.5)
    found = compare([str(tmp_path)], root=tmp_path)
    assert found.normalised and found.tasks == ("A", "B")
    assert [(group.iqm.mean, group.iqm.low) for group in found.groups] == [(0.0, 0.0), (1.0, 1.0)]
    assert found.improvements[0].probability.mean == 1.0


def test_the_same_questions_are_compared_pair_by_pair(tmp_path):
    right = [1.0] * 30 + [0.0] * 10
    wrong = [0.0] * 10 + [1.0] * 10 + [0.0] * 20
    make_run(tmp_path, "before", score=0.25, rewards=[0.0], answers=wrong, recipe="a")
    make_run(tmp_path, "after", score=0.75, rewards=[0.0], answers=right, recipe="b")
    (pair,) = compare(["before", "after"], root=tmp_path).paired
    assert (pair.before, pair.after, pair.n) == ("before", "after", 40)
    assert pair.difference == pytest.approx(0.5) and pair.low > 0 and pair.p_value < 1e-4


def test_what_a_reader_should_know_first_is_said(tmp_path):
    make_run(tmp_path, "one", score=1.0, rewards=[0.0] * 3)
    make_run(tmp_path, "two", score=1.0, rewards=[0.0] * 9)
    make_run(tmp_path, "three", rewards=[0.5] * 3, seed=3)
    make_run(tmp_path, "four", rewards=[], seed=4)
    notes = "\n".join(compare([str(tmp_path)], root=tmp_path).notes)
    for words in ("the scores are of different kinds", "no score of four", "seed 0 of CartPole-v1", "differ in steps"):
        assert words in notes, words


def test_what_cannot_be_compared_is_refused_with_all_faults(tmp_path):
    make_run(tmp_path, "empty", rewards=[])
    with pytest.raises(DataError) as refused:
        compare(["nothing", "emtpy"], root=tmp_path)
    assert "'nothing' is not a run" in refused.value.messages[0] and "did you mean empty?" in refused.value.messages[1]
    with pytest.raises(DataError, match="none of 1 runs has a score yet"):
        compare(["empty"], root=tmp_path)
    make_run(tmp_path, "full", rewards=[1.0, 2.0])
    with pytest.raises(DataError, match="did you mean reward/mean"):
        compare(["full"], root=tmp_path, metric="reward/maen")


def test_the_page_and_the_json_hold_what_was_found(tmp_path):
    seeds(tmp_path, "slow", [1.0, 2.0, 3.0], lr=0.01)
    seeds(tmp_path, "fast</script>"[:4], [4.0, 5.0, 6.0])
    found = compare([str(tmp_path)], root=tmp_path, threshold=2.5)
    page = render_comparison(found)
    for words in (
        "fast against slow",
        "Learning curves",
        "Performance profile",
        "environment steps to 2.5",
        "polygon",
    ):
        assert words in page, words
    write_comparison(tmp_path / "c.html", found)
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert [group["name"] for group in document["groups"]] == ["fast", "slow"]
    assert document["groups"][0]["iqm"]["value"] == 5.0 and len(document["groups"][0]["curves"]["CartPole-v1"]["x"]) > 9


@pytest.mark.parametrize("columns", [40, 60, 80, 160, 300])
def test_a_comparison_fits_any_terminal(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(columns))
    long = [f"token_{number}" for number in range(60)]
    kinds = {
        "first": {"lr": 0.1, "stop": long, "rewards.functions.0.use": "a.py:f"},
        "second": {"lr": 1e-5, "stop": [], "rewards.functions.0.use": "b" * 200 + ".py:g"},
        "third": {"recipe": "other", "only_here": 1},
    }
    for name, settings in kinds.items():
        make_run(tmp_path / "runs", name, score=1.0, rewards=[0.1, 0.5], **settings)
    for asked in (["first", "second"], ["first", "third"], ["first", "second", "third"]):
        assert main(["compare", *asked]) == 0
        told = capsys.readouterr().out.splitlines()
        tables = [line for line in told if not line.startswith(("note:", "score:", "curves"))]
        assert [line for line in tables if len(line) > columns and " scores higher " not in line] == []
        assert all(any(name in line for line in told) for name in asked)
