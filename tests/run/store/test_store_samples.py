"""Samples and evaluations: what is written comes back, what is damaged is named."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hone
from hone.core.errors import DataError
from hone.run.store.evaluations import (
    COLUMNS,
    PIPELINE,
    SIDE_BY_SIDE,
    EvaluationScore,
    PairedDifference,
    PipelineRecord,
    SampleRow,
    SideBySide,
    read_evaluations,
    read_samples,
    write_evaluations,
    write_samples,
)

INTS = st.integers(0, 2**40)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NUMBERS = st.none() | st.floats(allow_nan=False)
ROWS = st.builds(
    SampleRow,
    step=INTS,
    group=INTS,
    sample=INTS,
    prompt=TEXT,
    completion=TEXT,
    score=NUMBERS,
    status=TEXT,
    advantage=NUMBERS,
    tokens=INTS,
    finish=TEXT,
    version=INTS,
    turns=st.lists(st.tuples(st.sampled_from(["policy", "environment"]), TEXT), max_size=3).map(tuple),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(ROWS, max_size=5))
def test_samples_round_trip(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("samples") / "deep" / "step_00000001.parquet"
    write_samples(path, rows)
    assert read_samples(path) == rows
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_columns_are_those_of_the_contract():
    text = "step group sample prompt completion score status advantage tokens finish version turns"
    assert list(COLUMNS) == text.split()


def row(**changes):
    fields = {"prompt": "p", "completion": "c", "score": None, "status": "error", "advantage": None, "finish": "stop"}
    return SampleRow(**({"step": 1, "group": 0, "sample": 0, "tokens": 3, "version": 0} | fields | changes))


def test_half_a_character_does_not_stop_a_run(tmp_path):
    write_samples(tmp_path / "s.parquet", [row(completion="a\ud83d")])
    assert read_samples(tmp_path / "s.parquet")[0].completion == "a?"


def test_samples_from_before_conversations_are_read(tmp_path):
    import pyarrow.parquet as pq

    write_samples(tmp_path / "s.parquet", [row(), row(turns=(("policy", "a"), ("environment", "b")))])
    pq.write_table(pq.read_table(tmp_path / "s.parquet").drop_columns(["turns"]), tmp_path / "old.parquet")
    assert read_samples(tmp_path / "old.parquet") == [row(), row()]


def test_damaged_samples_are_named(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "s.parquet"
    write_samples(path, [row()])
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"s\.parquet.*still being written"):
        read_samples(path)
    pq.write_table(pa.table({"step": [1]}), path)
    with pytest.raises(DataError, match=r"lacks the columns group"):
        read_samples(path)
    with pytest.raises(DataError, match="absent"):
        read_samples(tmp_path / "absent.parquet")


def test_importing_the_store_brings_neither_torch_nor_pyarrow():
    code = (
        "import sys, hone.run.store.folder, hone.run.store.evaluations, hone.run.report.run_page; "
        "sys.exit(bool({'torch', 'pyarrow'} & {name.split('.')[0] for name in sys.modules}))"
    )
    source = str(Path(hone.__file__).parents[1])
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": source}, check=False).returncode == 0


def test_evaluations_round_trip(tmp_path):
    assert read_evaluations(tmp_path) == ([], [])
    measured = [EvaluationScore(stage="sft", metric="accuracy", mean=0.41, low=0.37, high=0.45, n=512)]
    compared = [PairedDifference(before="sft", after="grpo", difference=0.5, low=0.46, high=0.55, p_value=1e-80, n=512)]
    write_evaluations(tmp_path, measured, compared)
    assert read_evaluations(tmp_path) == (measured, compared)
    write_evaluations(tmp_path, [EvaluationScore(stage="a", metric="m", mean=math.nan, low=0.0, high=1.0, n=0)])
    evaluations, paired = read_evaluations(tmp_path)
    assert math.isnan(evaluations[0].mean)
    assert paired == []


def test_side_by_side_and_pipeline_round_trip(tmp_path):
    assert (SIDE_BY_SIDE.read(tmp_path) or []) == []
    assert PIPELINE.read(tmp_path) is None
    pair = SideBySide(prompt="1+1", reference="2", before="3", after="2", before_score=None, after_score=1.0)
    SIDE_BY_SIDE.write(tmp_path, [pair])
    PIPELINE.write(tmp_path, PipelineRecord(name="chain", stages=("sft", "grpo")))
    assert (SIDE_BY_SIDE.read(tmp_path) or []) == [pair]
    assert PIPELINE.read(tmp_path) == PipelineRecord(name="chain", stages=("sft", "grpo"))


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("evaluations.json", '{"evaluations": {}}', read_evaluations),
        ("evaluations.json", '{"evaluations": [{"stage": 1}], "paired": []}', read_evaluations),
        ("side_by_side.json", "[1]", SIDE_BY_SIDE.read),
        ("pipeline.json", '{"name": "x"}', PIPELINE.read),
    ],
)
def test_damaged_files_are_named(tmp_path, name, text, read):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=name):
        read(tmp_path)
