"""Pairs of preferences with the margins of the loss, and tags of questions: what a run writes, and the page shows."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from watched_runs import text_rollouts, watched_clock

import hone.api
from hone.run.store.evaluations import latest_answers
from hone.run.store.metrics import read_metrics
from hone.run.store.rollouts import AnswerRollouts, read_samples, rollout_path, write_rollouts
from hone.web.columns import RunColumns
from hone.web.rollouts import PAGE_ROWS, RolloutReader
from hone.web.runs import RunListing
from hone.web.views import run_view

DPO: dict[str, Any] = {
    "recipe": "dpo", "name": "pairs", "steps": 3, "batch": 4, "task": {"source": "pairs.jsonl"},
    "model": {"compute": "float32", "new": {
        "hidden_size": 16, "layers": 1, "heads": 1, "kv_heads": 1, "head_dim": 16, "intermediate_size": 32,
        "max_positions": 16, "alphabet": "0123456789+=",
    }},
    "learner": {"lr": 1e-2}, "samples": {"prompts": 0}, "user_code": {"workers": 1},
    "run": {"threads": 1, "certify": False, "rollouts_every": 1},
}  # fmt: skip


@pytest.mark.parametrize("recipe", ["dpo", "simpo"])
def test_the_margins_of_a_run_are_those_of_its_loss(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their mean is the metric of the step; before the first update a policy is its own reference."""
    monkeypatch.chdir(tmp_path)
    lines = [{"prompt": f"{n}+1=", "chosen": str(n + 1), "rejected": f"{n}{n}"} for n in range(8)]
    Path("pairs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    run = hone.api.train(DPO | {"recipe": recipe}).folder
    metrics = read_metrics(run / "metrics.jsonl").values
    reader = RolloutReader()
    for place, step in enumerate((1, 2, 3)):
        pairs = reader.pairs(run, step, 0)
        assert (pairs["selected"], pairs["known"]) == (4, 4)
        assert pairs["mean"] == pytest.approx(metrics["preference/margin_nats"][place], abs=1e-5)
        chosen = np.mean([one["answers"][0]["log_ratio"] for one in pairs["rows"]])
        assert chosen == pytest.approx(metrics["preference/chosen_nats"][place], abs=1e-5)
        margins = [one["margin"] for one in pairs["rows"]]
        assert margins == sorted(margins)
        assert pairs["wrong"] == sum(one < 0 for one in margins)
        for one in pairs["rows"]:
            (line,) = [each for each in lines if each["prompt"] == one["prompt"]]
            assert [each["text"] for each in one["answers"]] == [line["chosen"], line["rejected"]]
    if recipe == "dpo":
        assert reader.pairs(run, 1, 0)["mean"] == pytest.approx(0.0, abs=1e-6)
    listing = RunListing(run.parent, tmp_path / "cache", watched_clock())
    columns = RunColumns(run / "metrics.jsonl", tmp_path / "cache")
    columns.refresh()
    assert "preferences" not in run_view(run, listing.rows()[0], columns, reader)["without"]
    columns.close()


def test_pairs_are_best_and_worst_of_a_group_and_come_in_pages(tmp_path: Path) -> None:
    """Against a slow reader; groups of one score, and missing scores, are left out."""
    table = text_rollouts(1, 0, groups=60, samples=4)
    random = np.random.default_rng(0)
    rows = [replace(row, log_ratio=float(random.standard_normal())) for row in table.rows]
    write_rollouts(rollout_path(tmp_path, 1), AnswerRollouts(rows=rows))
    write_rollouts(rollout_path(tmp_path, 2), AnswerRollouts(rows=table.rows))
    assert read_samples(rollout_path(tmp_path, 1)) == rows
    slow: list[float] = []
    for group in {row.group for row in rows}:
        known = [row for row in rows if row.group == group and row.score is not None]
        best, worst = max(row.score or 0.0 for row in known), min(row.score or 0.0 for row in known)
        if best > worst:
            first = {score: next(row for row in known if row.score == score) for score in (best, worst)}
            slow.append((first[best].log_ratio or 0.0) - (first[worst].log_ratio or 0.0))
    reader = RolloutReader()
    pages = [reader.pairs(tmp_path, 1, page) for page in range(3)]
    found = [one["margin"] for page in pages for one in page["rows"]]
    assert found == pytest.approx(sorted(slow))
    assert len(pages[0]["rows"]) == min(PAGE_ROWS, len(slow)) == PAGE_ROWS
    assert pages[0]["wrong"] == sum(one < 0 for one in slow)
    unknown = reader.pairs(tmp_path, 2, 0)
    assert (unknown["known"], unknown["mean"], unknown["rows"][0]["margin"]) == (0, None, None)


def test_answers_of_an_evaluation_have_the_tags_of_their_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The column `tag`, otherwise `data_source`, otherwise none."""
    monkeypatch.chdir(tmp_path)
    held_out = [
        {"prompt": "7+1=", "tag": "sums", "data_source": "x"},
        {"prompt": "2+2=", "data_source": "y"},
        {"prompt": "3="},
    ]
    lines = [{"prompt": f"{n}+1=", "completion": str(n + 1)} for n in range(4)]
    for name, rows in (("sums", lines), ("held", held_out)):
        Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    Path("rewards.py").write_text("def zero(completions, **columns):\n    return [0.0 for _ in completions]\n")
    evaluation = {
        "task": {"source": "held.jsonl"}, "rewards": {"functions": [{"use": "rewards.py:zero"}]}, "max_tokens": 2,
    }  # fmt: skip
    sft = {key: DPO[key] for key in ("model", "learner", "user_code", "run")}
    run = hone.api.train(
        sft | {"recipe": "sft", "name": "tagged", "steps": 1, "batch": 2, "task": {"source": "sums.jsonl"}}
        | {"evaluation": evaluation}
    ).folder  # fmt: skip
    assert {one.prompt: one.tag for one in latest_answers(run)} == {"7+1=": "sums", "2+2=": "y", "3=": ""}
