"""Missing references: refused before a run, with the row; without a score in one, never compared as text."""

import json
import math
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from reasoning_gym.factory import DATASETS, create_dataset
from tiny_runs import hone, lay_out

from hone.core.episodes import ScoreStatus
from hone.rewards.config import RewardsConfig, UserCodeConfig
from hone.rewards.references import TASKS_WITHOUT_ANSWER, ReferenceRule, describe_missing
from hone.rewards.workers import RewardBatch, RewardWorkerPool

OWN = """
def sample(completion, gold, hint=None):
    return float(completion == str(gold)) + 0.5 * (hint is None)

def batch(completions, gold, **columns):
    return [float(said == str(wanted)) for said, wanted in zip(completions, gold, strict=True)]

def verl(data_source, solution_str, ground_truth, extra_info=None, gold=None):
    return float(solution_str == str(ground_truth))

def strict_verl(solution_str, ground_truth, gold):
    return 0.0
"""
MISSING = [None, math.nan, np.float32("nan"), Decimal("NaN")]


def pool_of(tmp_path: Path, *uses: str) -> RewardWorkerPool:
    (tmp_path / "own.py").write_text(OWN)
    functions = [{"use": use.replace("own:", f"{tmp_path / 'own.py'}:")} for use in uses]
    return RewardWorkerPool(RewardsConfig.model_validate({"functions": functions}), UserCodeConfig(workers=1))


@pytest.mark.parametrize(("use", "column"), [("exact_match", "answer"), ("math_answer", "answer"),
                                             ("own:sample", "gold"), ("own:batch", "gold"),
                                             ("own:verl", "ground_truth")])  # fmt: skip
def test_an_answer_is_not_compared_with_a_missing_reference(tmp_path: Path, use: str, column: str) -> None:
    said = ["None", "nan", "nan", "NaN", "7"]
    batch = RewardBatch(prompts=["?"] * 5, completions=said, columns={column: [*MISSING, "7"]})
    with pool_of(tmp_path, use) as pool:
        scores = pool.score(batch)
        alone = pool.score(RewardBatch(prompts=["?"], completions=["None"], columns={column: [None]}))
    assert scores.status.tolist() == [ScoreStatus.UNSCORABLE] * 4 + [ScoreStatus.SCORED]
    assert np.isnan(scores.score[:4]).all()
    assert scores.score[4] >= 1.0
    assert f"the column {column!r} is null" in scores.reasons[0]
    assert f"the column {column!r} is NaN" in scores.reasons[1]
    assert alone.status.tolist() == [ScoreStatus.UNSCORABLE]


def test_blank_text_is_no_reference_of_the_functions_that_compare_text(tmp_path: Path) -> None:
    batch = RewardBatch(prompts=["?", "?"], completions=["", ""], columns={"answer": ["", " \n"], "gold": ["", ""]})
    with pool_of(tmp_path, "exact_match") as pool:
        assert pool.score(batch).status.tolist() == [ScoreStatus.UNSCORABLE] * 2
    with pool_of(tmp_path, "own:batch") as pool:
        assert pool.score(batch).score.tolist() == [1.0, 1.0]


def test_a_sum_without_its_reference_is_missing_and_a_default_takes_the_null(tmp_path: Path) -> None:
    columns = {"answer": [None, "7"], "gold": ["7", "7"], "hint": [None, None]}
    with pool_of(tmp_path, "exact_match", "own:sample") as pool:
        scores = pool.score(RewardBatch(prompts=["?", "?"], completions=["7", "7"], columns=columns))
    assert scores.status.tolist() == [ScoreStatus.UNSCORABLE, ScoreStatus.SCORED]
    assert scores.functions["sample"].tolist() == [1.5, 1.5]


@given(st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.decimals(), st.booleans(), st.lists(st.none())))
def test_only_null_and_nan_are_missing(value: object) -> None:
    is_nan = str(value).lstrip("-").lower().strip("s")[:3] == "nan" and not isinstance(value, str)
    assert bool(describe_missing(value)) == (value is None or is_nan)
    blank = isinstance(value, str) and not value.strip()
    assert bool(describe_missing(value, blank=True)) == (value is None or is_nan or blank)


def test_tasks_without_an_answer_are_those_of_reasoning_gym() -> None:
    assert DATASETS.keys() >= TASKS_WITHOUT_ANSWER
    for task in ("graph_color", "propositional_logic", "rush_hour"):
        assert create_dataset(task, seed=0, size=1)[0]["answer"] is None
    rule = ReferenceRule(name="reasoning_gym", use="reasoning_gym", required=frozenset({"answer", "metadata"}))
    assert rule.missing({"task": "rush_hour", "answer": None, "metadata": {}}) == {}
    assert rule.missing({"task": "chain_sum", "answer": None, "metadata": None}) == {
        "answer": "null",
        "metadata": "null",
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_out(tmp_path)
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return tmp_path


ROWS = [{"prompt": "1+1=", "answer": "2", "gold": 2, "ground_truth": "2"} for _ in range(4)]


def spoiled(column: str) -> list[dict[str, object]]:
    """Null in row 2, NaN in row 3, and a row 4 without the column."""
    rows: list[dict[str, object]] = [{"id": number, **row} for number, row in enumerate(ROWS)]
    rows[1][column], rows[2][column] = None, math.nan
    del rows[3][column]
    return rows


@pytest.mark.parametrize(("use", "column"), [("exact_match", "answer"), ("math_answer", "answer"),
                                             ("own.py:sample", "gold"), ("own.py:batch", "gold"),
                                             ("own.py:verl", "ground_truth"),
                                             ("own.py:strict_verl", "gold")])  # fmt: skip
def test_rows_without_a_reference_are_refused_at_the_door(
    folder: Path, capsys: pytest.CaptureFixture[str], use: str, column: str
) -> None:
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in spoiled(column)))
    assert hone("plan", "grpo.toml", f"rewards.functions.0.use={use}") == 3
    said = " ".join(capsys.readouterr().err.split())
    assert f"sums.jsonl: column {column!r} holds nothing in 3 of 4 rows: 2 (null), 3 (NaN), 4 (null)" in said
    assert hone("train", "grpo.toml", f"rewards.functions.0.use={use}") == 3
    assert not (folder / "runs" / "tiny").exists()


def test_a_template_does_not_write_null_into_a_prompt(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": "1+1=", "answer": "2", "unit": unit} for unit in ("1", None, math.nan)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert hone("plan", "grpo.toml", "task.template={unit}+{prompt}") == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "task.template asks for {unit}, which is null" in said
    assert "2 of 3 rows: 2 (id" in said


def test_all_columns_files_and_functions_are_reported_at_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"prompt": "1+1=", "answer": None, "gold": None}, {"prompt": "1+2=", "answer": "3", "gold": math.nan}]
    pq.write_table(pa.Table.from_pylist(rows), folder / "sums.parquet")
    (folder / "held.jsonl").write_text('{"prompt": "5+1=", "answer": "6"}\n{"prompt": "5+2=", "answer": null}\n')
    functions = 'rewards.functions=[{use="exact_match"}, {use="own.py:batch"}]'
    held = 'evaluation={max_tokens=3, task={source="held.jsonl"}, rewards={functions=[{use="rewards.py:right"}]}}'
    assert hone("plan", "grpo.toml", "task.source=sums.parquet", functions, held) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "sums.parquet: column 'answer' holds nothing in 1 of 2 rows: 1 (null); reward function 'exact_match'" in said
    assert "sums.parquet: column 'gold' holds nothing in 2 of 2 rows: 1 (null), 2 (NaN)" in said
    assert "held.jsonl: column 'answer' holds nothing in 1 of 2 rows: 2 (null); reward function 'right'" in said
