"""Two stages in one file: imitation, then reward; compared, shown, resumed, judged and read by other tools."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from tiny_runs import MODEL, files_of, hone, lay_out

from hone.api import evaluate, sample, train
from hone.cli.stages import STAGE_PREFIX

PIPELINE = f"""
name = "both"

[shared]
seed = 3
[shared.run]
threads = 1
rollouts_every = 0
checkpoint_every = 3
[shared.user_code]
workers = 1
[shared.evaluation]
max_tokens = 3
[shared.evaluation.task]
source = "held.jsonl"
template = "{{prompt}}"
[[shared.evaluation.rewards.functions]]
use = "rewards.py:right"

[[stage]]
name = "imitate"
recipe = "sft"
steps = 6
batch = 12
{MODEL.replace("[model", "[stage.model")}
[stage.task]
source = "sums.jsonl"
[stage.learner]
lr = 1e-2

[[stage]]
name = "improve"
recipe = "grpo"
steps = 4
[stage.model]
path = "{STAGE_PREFIX}imitate"
[stage.task]
source = "sums.jsonl"
[[stage.rewards.functions]]
use = "rewards.py:close"
[stage.rollout]
prompts_per_step = 3
samples_per_prompt = 4
max_tokens = 3
[stage.learner]
lr = 1e-3
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the pipeline ran, from the first step to the last."""
    folder = tmp_path_factory.mktemp("pipeline")
    lay_out(folder)
    (folder / "both.toml").write_text(PIPELINE, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert hone("train", "both.toml") == 0
    return folder


@pytest.fixture
def place(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, to be changed."""
    shutil.copytree(done, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return tmp_path / "copy"


def end_of(folder: Path) -> Path:
    return folder / "runs" / "both" / "improve" / "checkpoints" / "step_00000004"


def test_it_leaves_everything_behind(done: Path) -> None:
    folder = done / "runs" / "both"
    said = json.loads((folder / "evaluations.json").read_text(encoding="utf-8"))
    assert [one["stage"] for one in said["evaluations"]] == ["imitate", "improve"]
    for one in said["evaluations"]:
        assert one["n"] == 9
        assert 0 <= one["low"] <= one["mean"] <= one["high"] <= 1
    (pair,) = said["paired"]
    assert (pair["before"], pair["after"], pair["n"]) == ("imitate", "improve", 9)
    means = [one["mean"] for one in said["evaluations"]]
    assert pair["difference"] == pytest.approx(means[1] - means[0])
    shown = json.loads((folder / "side_by_side.json").read_text(encoding="utf-8"))
    assert len(str(shown)) > 100
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "imitate" in page
    assert "improve" in page
    assert json.loads((folder / "pipeline.json").read_text(encoding="utf-8"))["stages"] == ["imitate", "improve"]
    for stage in ("imitate", "improve"):
        assert (folder / stage / "report.html").is_file()


def test_the_second_stage_starts_where_the_first_one_ended(done: Path) -> None:
    config = json.loads((done / "runs" / "both" / "improve" / "config.json").read_text(encoding="utf-8"))
    assert config["model.path"]["value"] == str(Path("runs") / "both" / "imitate")
    assert config["seed"]["value"] == 3
    assert config["evaluation.task.source"]["value"] == "held.jsonl"


def test_once_more_is_refused_and_resumed_is_passed_over(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {
        stage: files_of(place / "runs" / "both" / stage, step) for stage, step in (("imitate", 6), ("improve", 4))
    }
    assert hone("train", "both.toml") == 2
    assert "--resume continues it" in capsys.readouterr().err
    assert hone("train", "both.toml", "--resume") == 0
    said = capsys.readouterr().out
    assert "stage imitate is done: passed over" in said
    assert "stage improve is done: passed over" in said
    for stage, step in (("imitate", 6), ("improve", 4)):
        assert files_of(place / "runs" / "both" / stage, step) == before[stage]


@pytest.mark.parametrize("lost", ["improve", "improve/checkpoints", "improve/checkpoints/step_00000004"])
def test_a_pipeline_stopped_in_its_second_stage_ends_the_same(done: Path, place: Path, lost: str) -> None:
    shutil.rmtree(place / "runs" / "both" / lost)
    for name in ("evaluations.json", "side_by_side.json", "report.html"):
        (place / "runs" / "both" / name).unlink()
    assert hone("train", "both.toml", "--resume") == 0
    assert files_of(place / "runs" / "both" / "improve", 4) == files_of(done / "runs" / "both" / "improve", 4)
    for name in ("evaluations.json", "side_by_side.json"):
        assert (place / "runs" / "both" / name).read_bytes() == (done / "runs" / "both" / name).read_bytes()


def test_stages_are_set_from_the_command_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hone("plan", "both.toml", "stage.0.steps=2", "shared.seed=5", "stage.1.learner.lr=0.5", "--yes") == 0
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    told = [line[1:] for line in said if line and line[0] in ("steps", "seed", "learner.lr")]
    asked = ["command", "line"]
    assert told[:3] == [["5", *asked], ["2", *asked], ["0.01", "both.toml:41"]]
    assert told[3:] == [["5", *asked], ["4", "both.toml:46"], ["0.5", *asked]]


def test_nothing_to_resume_is_said(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hone("train", "both.toml", "--resume", "name=other") == 3
    assert "no pipeline other" in capsys.readouterr().err
    assert not (place / "runs" / "other").exists()


def test_a_stage_that_is_done_must_be_the_one_in_the_file(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (place / "both.toml").read_text(encoding="utf-8")
    (place / "both.toml").write_text(text.replace("batch = 12", "batch = 11"), encoding="utf-8")
    assert hone("train", "both.toml", "--resume") == 2
    said = capsys.readouterr().err
    assert "stage imitate is done" in said
    assert "batch: 12 -> 11" in said
    (place / "both.toml").write_text(text.replace("steps = 6", "steps = 8"), encoding="utf-8")
    assert hone("train", "both.toml", "--resume") == 2
    said = capsys.readouterr().err
    assert "stage imitate is to go on to step 8, but improve began after it stopped" in said


@pytest.mark.filterwarnings("ignore")  # of a library that is imported here for the first time
def test_transformers_reads_the_result_and_answers_alike(
    done: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The saved folder, no conversion: greedy answers of transformers and of our engine, token for token."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.chdir(done)
    folder = end_of(done) / "policy"
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    capsys.readouterr()
    for prompt in ("1+2=", "5+3=", "0+0="):
        asked = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
        with torch.no_grad():
            said = model.generate(**asked, max_new_tokens=3, do_sample=False)[0, asked["input_ids"].shape[1] :]
        theirs = tokenizer.decode(said, skip_special_tokens=True)
        ((_, ours, _),) = sample(folder, prompt=prompt, count=1, temperature=0)
        assert ours == theirs, prompt


def test_the_commands_judge_and_hear_it(
    done: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a run's name, a checkpoint's folder and a policy's folder; the figure is the one that training ended with."""
    monkeypatch.chdir(done)
    ended = json.loads((done / "runs" / "both" / "evaluations.json").read_text(encoding="utf-8"))["evaluations"][1]
    scores = evaluate("improve", problems=9, runs="runs/both")
    assert scores["eval/score"] == ended["mean"]
    assert scores["eval/answered"] == 9
    for named in (str(end_of(done)), str(end_of(done) / "policy"), str(done / "runs" / "both" / "improve")):
        assert hone("eval", named, "--problems", "9") == 0
        out = capsys.readouterr().out
        assert "eval/score" in out and "tokens/s" in out and "of 9, over" in out, "a slot for each problem"
        assert hone("sample", named, "--prompt", "1+2=", "--count", "3") == 0
        assert capsys.readouterr().out.count("1+2=") == 3
    assert hone("sample", str(end_of(done)), "--count", "4", "--temperature", "0") == 0
    assert "6+" in capsys.readouterr().out
    assert len(sample(end_of(done), count=5)) == 5


def test_shared_lists_come_whole_and_give_way_whole(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second stage brings its own list of judges; the first one gets the shared one, with the line it stands in."""
    own = """
[stage.evaluation.rewards]
[[stage.evaluation.rewards.functions]]
use = "rewards.py:close"
"""
    (place / "both.toml").write_text(PIPELINE + own, encoding="utf-8")
    assert hone("plan", "both.toml") == 0
    shared, mine = (
        line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("evaluation.rewards.functions")
    )
    number = PIPELINE.splitlines().index('use = "rewards.py:right"') + 1
    assert shared == ["evaluation.rewards.functions.0.use", '"rewards.py:right"', f"both.toml:{number}"]
    assert mine[1] == '"rewards.py:close"'


def test_a_policy_that_was_shipped_elsewhere_answers(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder right under the root of the temporary files belongs to no run."""
    with tempfile.TemporaryDirectory(dir="/tmp") as elsewhere:
        shutil.copytree(end_of(done) / "policy", elsewhere, dirs_exist_ok=True)
        assert hone("sample", elsewhere, "--prompt", "1+1=", "--count", "2") == 0
        assert hone("eval", elsewhere) == 2
    assert "is not in a run" in capsys.readouterr().err


def test_the_python_door_does_what_the_command_does(done: Path, place: Path) -> None:
    outcome = train("both.toml", ['name="again"'])
    assert outcome.folder == Path("runs") / "again"
    assert [one.stage for one in outcome.evaluations] == ["imitate", "improve"]
    assert len(outcome.comparisons) == 1
    assert len(outcome.side_by_side) == 9
    assert (
        files_of(place / "runs" / "again" / "improve", 4).keys()
        == files_of(done / "runs" / "both" / "improve", 4).keys()
    )
    name = "policy/model.safetensors"
    assert (
        files_of(place / "runs" / "again" / "improve", 4)[name] == files_of(done / "runs" / "both" / "improve", 4)[name]
    )
