"""Answers by what became of them: sources that drop, credit that learns, and the way through a checkpoint."""

import json
from dataclasses import replace

import numpy as np
from scripted_episodes import episodes_of
from tiny_runs import hone, lay_out

from hone.core.episodes import Episodes, ScoreStatus
from hone.run.store.survivorship import SURVIVORSHIP, SurvivorshipCounts
from hone.text.recipe import DynamicSampling
from hone.text.rl import CollectedSource, FilteredSource, count_learnt


class Scripted:
    """Source of given batches."""

    def __init__(self, batches: list[Episodes]) -> None:
        self.batches = batches

    def collect(self) -> Episodes:
        return self.batches.pop(0)


def test_a_selection_of_groups_tells_which_answers_it_left_out():
    """Two groups of two are wanted: of the second collection the group with the odd number is surplus."""
    first, second = episodes_of([1, 2, 3, 4], first=0), episodes_of([5, 6, 7, 8], first=4)
    first = replace(first, group=np.array([0, 0, 1, 1]))
    second = replace(second, group=np.array([2, 2, 3, 3]))
    counts, everything = SurvivorshipCounts(), CollectedSource[None](Scripted([first, second]))
    wanted = DynamicSampling[None](everything, is_informative=lambda episodes: episodes.group >= 1)
    source = FilteredSource(wanted, everything, counts)
    assert sorted(set(source.collect().group.tolist())) == [1, 2]
    found = counts.record().total(["filtered"])
    assert (found.answers, found.tokens, found.score_sum) == (4, 1 + 2 + 7 + 8, 0 + 1 + 6 + 7)
    assert everything.collected == []


def test_what_reached_the_learner_is_counted_by_its_end_and_reward():
    plain = episodes_of([3, 4, 5])
    status = np.array([ScoreStatus.SCORED, ScoreStatus.TIMEOUT, ScoreStatus.SCORED], np.uint8)
    counts = SurvivorshipCounts()
    truncated = np.array([False, True, True])
    score = np.array([0.5, np.nan, 0.25])
    count_learnt(counts, replace(plain, status=status, truncated=truncated, score=score))
    record = counts.record()
    assert {fate: record.total([fate]).tokens for fate in record.counts} == {"kept": 3, "truncated": 5, "unscored": 4}
    assert record.total(["truncated"]).score_sum == 0.25


def test_a_run_counts_every_answer_once_and_a_resumed_run_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    asked = ["learner.epochs=1", "learner.minibatches=1", "run.certify=false", "rollout.runner=torch"]
    assert hone("train", "grpo.toml", *asked, "steps=1", "name=parts") == 0
    assert hone("train", "grpo.toml", *asked, "steps=2", "name=parts", "--resume") == 0
    said = capsys.readouterr().out
    found = SURVIVORSHIP.read(tmp_path / "runs" / "parts")
    lines = [json.loads(line) for line in (tmp_path / "runs" / "parts" / "metrics.jsonl").read_text().splitlines()]
    assert found is not None
    assert found.total().answers == 2 * 16
    assert found.total().tokens == round(sum(16 * line["answers/tokens_mean"] for line in lines))
    cut = sum(16 * line["episodes/truncated"] for line in lines)
    assert found.total(["truncated"]).answers == round(cut) > 0
    assert f"truncation: {cut / 32:.0%} of the answers were cut by a limit" in said
    assert "Answers by length" in (tmp_path / "runs" / "parts" / "report.html").read_text()
