"""Pairs of preferences: margins that a run writes are those of its loss, and the page shows the smallest first."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from watched_runs import text_rollouts, watched_clock

import hone.api
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
