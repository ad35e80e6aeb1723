"""Evaluations: what is written comes back, what is damaged is named."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

import hone
from hone.core.errors import DataError
from hone.run.store.evaluations import (
    PIPELINE,
    SIDE_BY_SIDE,
    EvaluationScore,
    PairedDifference,
    PipelineRecord,
    SideBySide,
    read_evaluations,
    write_evaluations,
)


def test_importing_the_store_brings_neither_torch_nor_pyarrow():
    code = (
        "import sys, hone.run.store.folder, hone.run.store.rollouts, hone.run.report.run_page; "
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
