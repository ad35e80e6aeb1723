"""Answers written in lower precision than the trainer computes in: the ratio stays 1, and the gap is told."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from tiny_runs import GRPO, differences, hone, lay_out

from hone.text.evaluate.open_policy import ModelSource
from hone.text.quantised import outlier_notes
from hone.text.rl import ratio_defaults
from hone.text.rollout_config import RolloutConfig

CODED_KEYS = ('rollout.runner="native"', 'rollout.kv_cache="int8"')
ONE_UPDATE = GRPO.replace("epochs = 2", "epochs = 1").replace("minibatches = 2", "minibatches = 1")


COMPILED = pytest.param(
    "torch_compiled", 0.0, 2e-6,
    marks=[pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")],  # torch's own
)  # fmt: skip


@pytest.mark.parametrize(
    ("runner", "least", "most"), [("native", 0.0, 2e-6), ("native_bfloat16", 1e-5, 0.03), COMPILED]
)
def test_mismatch_is_told_and_the_ratio_is_one(
    runner: str, least: float, most: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grpo.toml").write_text(ONE_UPDATE, encoding="utf-8")
    assert hone("train", "grpo.toml", f'rollout.runner="{runner}"') == 0
    lines = [json.loads(line) for line in Path("runs/tiny/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {line["policy/ratio_max"] for line in lines} == {1.0}
    assert {line["policy/clip_fraction"] for line in lines} == {0.0}
    assert least <= min(line["mismatch/mean"] for line in lines)
    assert max(line["mismatch/mean"] for line in lines) <= most


@pytest.mark.parametrize(("words", "most_nats"), [(('rollout.runner="native_int8"',), 1e-3), (CODED_KEYS, 1e-4)])
def test_quantised_answers_are_corrected_and_told(
    words: Sequence[str], most_nats: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """The engine's own log-probabilities are recorded; a resumed run is the same bits."""
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert hone("train", "grpo.toml", *words, "steps=4") == 0
    told = capsys.readouterr().out
    lines = [json.loads(line) for line in Path("runs/tiny/metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert all(0 < line["mismatch/k3_nats"] < most_nats and line["mismatch/weight_max"] <= 2.0 for line in lines)
    assert all(line["mismatch/ratio_above_cap"] == 0.0 for line in lines)
    assert "answers' policy against the trainer's: KL " in told
    assert "0.00% of the tokens beyond the correction's cap" in told
    config = json.loads(Path("runs/tiny/config.json").read_text(encoding="utf-8"))
    expected = {"denominator": "recomputed", "correction": "truncated_is", "weight_cap": 2.0, "max_mismatch_nats": 0.05}
    assert {name: config[f"learner.ratio.{name}"]["value"] for name in expected} == expected
    shutil.copytree("runs/tiny", "straight")
    shutil.rmtree("runs/tiny/checkpoints/step_00000004")
    assert hone("train", "grpo.toml", *words, "steps=4", "--resume") == 0
    assert differences(Path("runs/tiny"), Path("straight"), step=4) == []


def refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, *words: str) -> str:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grpo.toml").write_text(ONE_UPDATE, encoding="utf-8")
    assert hone("train", "grpo.toml", *words) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (('learner.ratio.correction="none"',), 'learner.ratio.correction = "none" leaves the difference'),
        (('learner.ratio.denominator="self"',), 'learner.ratio.denominator = "self" takes the answers for the trainer'),
        (('preset="verl"',), 'leave it out (then it is "truncated_is"'),
        (('recipe="reinforce"', "algorithm={}"), "this loss has no ratio"),
    ],
)
def test_quantised_answers_without_a_correction_are_refused(words, message, tmp_path, monkeypatch, capsys) -> None:
    told = refusal(tmp_path, monkeypatch, capsys, 'rollout.runner="native_int8"', *words)
    assert 'rollout.runner = "native_int8"' in told
    assert message in told


def test_keys_in_int8_need_compiled_code(tmp_path, monkeypatch, capsys) -> None:
    assert 'runner is "auto"; set runner = "native"' in refusal(
        tmp_path, monkeypatch, capsys, 'rollout.kv_cache="int8"'
    )


def test_a_ratio_against_recorded_probabilities_corrects_by_itself() -> None:
    rollout = {"runner": "native_int8", "prompts_per_step": 4, "max_tokens": 4}
    given = {"rollout": rollout, "learner": {"ratio": {"denominator": "recorded"}}}
    assert ratio_defaults(given) == {"learner": {"ratio": {"max_mismatch_nats": 0.05}}}
    assert ratio_defaults({"rollout": {**rollout, "runner": "native"}}) == {}


@pytest.mark.parametrize(
    ("runner", "model", "is_told"),
    [
        ("native_int8", {"path": "somewhere"}, True),
        (
            "native_int8",
            {"path": "somewhere", "weights": "int8", "lora": {"rank": 4}},
            False,
        ),  # a scale for every 32 numbers
        ("native_int8", {"new": {}}, False),
        ("native", {"path": "somewhere"}, False),
    ],
)
def test_int8_with_a_scale_a_token_is_warned_of_on_models_of_others(runner, model, is_told) -> None:
    rollout = RolloutConfig(runner=runner, prompts_per_step=4, max_tokens=4)
    notes = outlier_notes(rollout, ModelSource.model_validate(model))
    assert [note.partition(":")[0] for note in notes] == ['rollout.runner = "native_int8"'] * is_told


def test_a_compiler_is_not_promised_to_be_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ('rollout.runner="torch_compiled"', 'model.exactness="bitwise"', 'model.compute="float32"')
    assert hone("train", "grpo.toml", *words) == 2
    assert 'takes runner = "torch"' in capsys.readouterr().err


def test_the_alarm_stops_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = ('rollout.runner="native_bfloat16"', "learner.ratio.max_mismatch_nats=1e-6")
    assert hone("train", "grpo.toml", *words) == 6
    assert "above learner.ratio.max_mismatch_nats = 1e-06" in capsys.readouterr().err


@pytest.mark.slow
def test_a_run_whose_engine_sleeps_has_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of some seconds."""
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert hone("train", "grpo.toml", "steps=3") == 0
    shutil.move("runs/tiny", "awake")
    assert hone("train", "grpo.toml", "steps=3", "rollout.sleep=true") == 0
    assert differences(Path("runs/tiny"), Path("awake"), step=3) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("rollout.max_staleness=1",), "the engine writes while the policy learns"),
        (('rollout.runner={kind="vllm", url="http://127.0.0.1:1"}',), "sleep = true is for the embedded engine"),
        (("cluster.rollout.replicas=2",), "rollout.sleep is for the embedded engine"),
    ],
)
def test_an_engine_that_cannot_sleep_says_why(
    words: Sequence[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert hone("plan", "grpo.toml", "rollout.sleep=true", *words) == 2
    assert told in capsys.readouterr().err.replace("\n", " ")
