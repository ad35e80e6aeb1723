"""`hone export`, and the other commands on a run that trains an adapter: a pipeline, its evaluation, its samples."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from hone.cli.main import main
from hone.models.language.hf_checkpoint import load_model
from hone.models.packing import pack_rows

REWARDS = (
    "def right(completions, answer, **_):\n    return [float(c.strip() == a) for c, a in zip(completions, answer)]\n"
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline: all weights by imitation, then an adapter by reward, then the same adapter by imitation."""
    folder = tmp_path_factory.mktemp("export")
    rows = [{"prompt": f"{a}+{b}=", "completion": f"{a + b}", "answer": f"{a + b}"} for a in range(4) for b in range(4)]
    for name, part in (("sums", rows[:12]), ("held", rows[12:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    (folder / "rewards.py").write_text(REWARDS)
    (folder / "run.toml").write_text(pipeline(folder))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["train", "run.toml"]) == 0
    return folder


def pipeline(folder: Path) -> str:
    def stage(name: str, recipe: str, model: str, rest: str) -> str:
        return (
            f'[[stage]]\nname = "{name}"\nrecipe = "{recipe}"\nsteps = 2\n{model}\n{rest}\n[stage.run]\nthreads = 1\n'
        )

    new = (
        "[stage.model.new]\nhidden_size = 16\nlayers = 1\nheads = 2\nkv_heads = 1\nhead_dim = 8\n"
        'intermediate_size = 24\nmax_positions = 32\nalphabet = "0123456789+="'
    )
    task, learner = '[stage.task]\nsource = "sums.jsonl"', "[stage.learner]\nlr = 1e-2"
    lora = '[stage.model]\npath = "stage:{}"\n[stage.model.lora]\nrank = 2'
    rewards = (
        "[stage.user_code]\nworkers = 1\n"
        '[[stage.rewards.functions]]\nuse = "rewards.py:right"\n[stage.rollout]\n'
        "prompts_per_step = 4\nsamples_per_prompt = 4\nmax_tokens = 4\n[stage.algorithm]\nkl = 0.1\n"
        '[stage.evaluation]\nmax_tokens = 3\n[stage.evaluation.task]\nsource = "held.jsonl"\n'
        '[stage.evaluation.rewards]\n[[stage.evaluation.rewards.functions]]\nuse = "rewards.py:right"'
    )
    return (
        'name = "adapted"\n'
        + stage("base", "sft", new, f"{task}\n{learner}")
        + stage("rl", "grpo", lora.format("base"), f"{task}\n{learner}\n{rewards}")
        + stage("more", "sft", lora.format("rl"), f"{task}\n{learner}")
    )


def same_logits(folder: Path, merged: Path) -> None:
    tokens = np.array([3, 4, 5, 6, 1], np.int32)
    with torch.no_grad():
        theirs = transformers.AutoModelForCausalLM.from_pretrained(merged).eval()
        expected = theirs(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0]
        decoder = load_model(folder)
        torch.testing.assert_close(decoder.logits(decoder.hidden(pack_rows([tokens]))), expected, rtol=0, atol=1e-5)


def test_an_adapter_is_merged_for_transformers(place: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(place)
    for run in ("rl", "more"):
        assert main(["export", f"runs/adapted/{run}", f"whole-{run}"]) == 0
        policy = next(iter((place / "runs" / "adapted" / run / "checkpoints").glob("*/policy")))
        assert (policy / "adapter_config.json").is_file()
        same_logits(policy, place / f"whole-{run}")
        base = json.loads((policy / "adapter_config.json").read_text())["base_model_name_or_path"]
        assert Path(base).parts[-4:-2] == ("base", "checkpoints"), "both stages adapt the model of the first"
    assert "the adapter merged into" in capsys.readouterr().out
    assert not list(place.glob(".whole*"))


def test_a_whole_model_and_an_adapter_are_copied(place: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(place)
    assert main(["export", "runs/adapted/base", "copies/plain"]) == 0
    same_logits(place / "copies" / "plain", place / "copies" / "plain")
    assert main(["export", "runs/adapted/rl", "copies/adapter", "--adapter"]) == 0
    assert {path.name for path in (place / "copies" / "adapter").iterdir()} >= {
        "adapter_config.json", "adapter_model.safetensors", "tokenizer.json",
    }  # fmt: skip
    assert "for PEFT; its base is" in capsys.readouterr().out


def test_the_type_of_the_weights_is_told_and_may_be_chosen(place: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(place)
    exact, half = tmp_path / "exact", tmp_path / "half"
    assert main(["export", "runs/adapted/rl", str(exact)]) == 0
    assert ", in float32 as the model that training began with" in capsys.readouterr().out.replace("\n", " ")
    assert main(["export", "runs/adapted/rl", str(half), "--dtype", "bfloat16"]) == 0
    assert capsys.readouterr().out.replace("\n", " ").rstrip().endswith(", in bfloat16")
    whole, rounded = (load_file(folder / "model.safetensors") for folder in (exact, half))
    assert all(torch.equal(tensor.bfloat16(), rounded[name]) for name, tensor in whole.items())
    assert json.loads((half / "config.json").read_text())["dtype"] == "bfloat16"

    shutil.copytree(place / "runs", tmp_path / "runs")
    config = tmp_path / "runs" / "adapted" / "more" / "config.json"
    tree = json.loads(config.read_text())
    tree["model.path"]["value"] = "gone"
    config.write_text(json.dumps(tree))
    whole_run = ["export", str(tmp_path / "runs" / "adapted" / "more"), str(tmp_path / "unknown")]
    assert main(whole_run) == 0
    told = capsys.readouterr().out.replace("\n", " ")
    assert "in float32: the type of" in told and "where training began, cannot be read; --dtype rounds" in told


@pytest.mark.slow
def test_the_other_commands_read_an_adapter(place: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(place)
    assert main(["eval", "runs/adapted/rl", "--problems", "4"]) == 0
    assert main(["sample", "runs/adapted/rl", "--count", "2"]) == 0
    assert main(["show", "runs/adapted/rl", "--verify"]) == 0
    assert "model.lora.rank" in capsys.readouterr().out
    main(["export", "runs/adapted/rl", "somewhere", "--adapter"])
    assert main(["sample", "somewhere", "--prompt", "1+1=", "--count", "1"]) == 0
    assert main(["doctor", "loss", "runs/adapted/rl"]) == 0
    assert main(["plan", "run.toml"]) == 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["runs/adapted/rl", "sums.jsonl"], 2, "sums.jsonl exists and is not an empty folder"),
        (["runs/adapted/base", "new", "--adapter"], 2, "holds all weights and no adapter; leave --adapter out"),
        (["nothing", "new"], 3, "no run 'nothing'"),
        (["runs/adapted/rl", "sums.jsonl/inside"], 5, "cannot write"),
        (["runs/adapted/rl", "new", "--dtype", "int8"], 2, "--dtype int8: no such type of weights; known: float32"),
        (["runs/adapted/rl", "new", "--dtype", "float16", "--adapter"], 2, "leave it out beside --adapter and --gguf"),
    ],
)
def test_exports_that_cannot_be_are_refused(words, code, said, place, monkeypatch, capsys) -> None:
    monkeypatch.chdir(place)
    assert main(["export", *words]) == code
    assert said in capsys.readouterr().err
    assert not (place / "new").exists()


def test_runs_that_were_moved_together_are_read(place: Path, tmp_path: Path, capsys) -> None:
    """The absolute path of the base is another then; the place beside the adapter is the same."""
    shutil.copytree(place / "runs", tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    policy = next(iter((tmp_path / "new" / "adapted" / "rl" / "checkpoints").glob("*/policy")))
    shutil.copytree(policy, tmp_path / "new" / "adapted" / "rl" / "checkpoints" / "copy" / "policy")
    file = tmp_path / "new" / "adapted" / "rl" / "checkpoints" / "copy" / "policy" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": str(tmp_path / "gone")}))
    assert main(["export", str(file.parent), str(tmp_path / "whole")]) == 0
    assert "new/adapted/base" in capsys.readouterr().out.replace("rl/checkpoints/copy/policy/../../../../", "")


def test_an_adapter_whose_base_is_gone_is_told_of(place: Path, tmp_path: Path, capsys) -> None:
    shutil.copytree(place / "runs", tmp_path / "runs")
    policy = next(iter((tmp_path / "runs" / "adapted" / "rl" / "checkpoints").glob("*/policy")))
    file = policy / "adapter_config.json"
    shutil.copytree(policy, tmp_path / "moved")
    config = json.loads(file.read_text()) | {"base_model_name_or_path": str(tmp_path / "gone")}
    (tmp_path / "moved" / "adapter_config.json").write_text(json.dumps(config))
    assert main(["sample", str(tmp_path / "moved"), "--prompt", "1+1="]) == 3
    told = capsys.readouterr().err
    assert "does not exist (looked at" in told and "base_model_name_or_path" in told
