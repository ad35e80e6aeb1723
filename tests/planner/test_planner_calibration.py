"""Measured figures of a machine: kept, read, used and named by plans; damaged files and other processors."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from hone.cli.calibration import processor_name
from hone.cli.main import main
from hone.core.errors import ConfigError
from hone.planner.calibration import (
    MachineCalibration,
    calibrated,
    calibration_path,
    read_calibration,
    write_calibration,
)
from hone.planner.devices import GIB, cpu_device
from hone.text.calibrate import line_through

FOUND = MachineCalibration(
    device="cpu", processor="some chip", day="2026-01-31", context_bytes=GIB // 4, allocator_ratio=1.25,
    float32_flops=5e10, bfloat16_flops=1e12, bandwidth_bytes=1e10, step_share=0.5,
)  # fmt: skip


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = calibration_path(tmp_path, "NVIDIA H100 80GB")
    assert path == tmp_path / "planner" / "nvidia-h100-80gb.json"
    assert read_calibration(path, processor="some chip") is None
    write_calibration(path, FOUND)
    assert read_calibration(path, processor="some chip") == FOUND
    assert read_calibration(path, processor="another chip") is None
    assert [one.name for one in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    "text", ["{", "[]", "{}", json.dumps({**asdict(FOUND), "more": 1}), json.dumps({**asdict(FOUND), "step_share": -1}),
             json.dumps({**asdict(FOUND), "allocator_ratio": 0}), json.dumps({**asdict(FOUND), "day": 3}),
             json.dumps({**asdict(FOUND), "context_bytes": float("inf")})]
)  # fmt: skip
def test_a_damaged_file_is_named(tmp_path: Path, text: str) -> None:
    path = calibration_path(tmp_path, "cpu")
    write_calibration(path, FOUND)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"cpu\.json: .*hone plan --calibrate"):
        read_calibration(path, processor="some chip")


def test_a_device_takes_the_figures() -> None:
    """Of 16 GiB an allocator that takes 1.5875 bytes for each, 1.27 of them planned, leaves 0.8, less the libraries."""
    spec = calibrated(replace(cpu_device(16 * GIB), usable=0.95), replace(FOUND, allocator_ratio=1.5875))
    assert spec.usable_bytes == int(16 * GIB * 0.8) - GIB // 4
    assert calibrated(cpu_device(16 * GIB), FOUND).usable == 0.8, "the usual share, where 1.25 bytes are below the plan"
    assert (spec.float32_flops, spec.bandwidth_bytes) == (5e10, 1e10)


def test_ratio_and_rest_of_two_sizes() -> None:
    """1.5 bytes for each of a tensor and 30 more; an allocator that takes less than the tensors has used old memory."""
    assert line_through((100, 180), (300, 480)) == (1.5, 30)
    assert line_through((100, 90), (300, 290)) == (1.0, 0)


def test_plans_use_and_name_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HONE_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(
        'recipe = "sft"\nsteps = 1\ntask.source = "rows.jsonl"\nlearner.lr = 1e-5\nmodel.new.layers = 2\n',
        encoding="utf-8",
    )
    write_calibration(calibration_path(tmp_path, "cpu"), replace(FOUND, processor=processor_name()))
    assert main(["plan", "run.toml", "--memory"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "measured 2026-01-31" in said
    assert "allocator 1.25 x the tensors" in said
    assert "least time" in said
    assert main(["plan", "run.toml", "--memory", "--device", "h100"]) == 0
    assert "measured 2026-01-31" not in " ".join(capsys.readouterr().out.split())
    assert main(["plan", "run.toml", "--memory", "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)
    assert plan["memory"]["calibration"]["allocator_ratio"] == 1.25
    assert main(["plan", "run.toml", "--memory", "--calibrate", "--device", "h100"]) == 2
    assert "--calibrate measures the CPU of this machine" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    (tmp_path / "run.toml").write_text(
        'recipe = "sft"\nsteps = 1\ntask.source = "rows.jsonl"\nlearner.lr = 1e-5\nmodel.new.layers = 2\n',
        encoding="utf-8",
    )
    monkeypatch.setenv("HONE_CACHE", str(tmp_path / "file"))
    assert main(["plan", str(tmp_path / "run.toml"), "--memory", "--calibrate"]) == 5
    said = capsys.readouterr().err
    assert "set HONE_CACHE to a folder that can be written" in said
    assert "measuring" not in said


@pytest.mark.slow  # measures for some seconds
def test_this_machine_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HONE_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(
        'recipe = "sft"\nsteps = 1\ntask.source = "rows.jsonl"\nlearner.lr = 1e-5\nmodel.new.layers = 2\n',
        encoding="utf-8",
    )
    assert main(["plan", "run.toml", "--memory", "--calibrate"]) == 0
    found = read_calibration(calibration_path(tmp_path, "cpu"), processor=processor_name())
    assert found is not None
    assert 1.0 <= found.allocator_ratio < 2.5
    assert found.float32_flops > 1e9
    assert found.bandwidth_bytes > 1e8
