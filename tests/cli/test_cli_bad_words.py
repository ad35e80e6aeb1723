"""Messages for wrong inputs: the nearest name, and rules in words instead of regular expressions."""

import re
from pathlib import Path

import pytest
from bad_input_words import CASES
from short_runs import SHORT

from hone.cli.main import main
from hone.core.errors import nearest_name


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        Path("a.toml").write_text(SHORT)
        Path("t.toml").write_text('recipe = "grpo"\nsteps = 1\nmodel.new = {}\n')
        Path("empty.toml").write_text("")
        Path("q.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
        Path("empty_folder").mkdir()
        assert main(["train", "a.toml", "steps=1", "--name", "done"]) == 0
    return folder


@pytest.mark.parametrize(("command", "code", "said"), CASES, ids=[case[0] for case in CASES])
def test_a_wrong_input_is_answered_in_words(
    command: str, code: int, said: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    assert main(command.split()) == code
    told = capsys.readouterr().err
    assert said in told
    assert "Traceback" not in told
    assert not re.search(r"\^\[|\(\?:|\{0,", told), "a regular expression is no explanation"
    assert max(map(len, told.splitlines())) < 700


def test_a_plan_tells_of_a_device_that_is_not_here(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert main(["plan", "a.toml", "run.device=cuda:1"]) == 0
    assert 'warning: run.device = "cuda:1": this machine has no CUDA device' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "known", "wanted"),
    [
        ("gpro", ["gspo", "grpo", "gmpo", "gpg"], "grpo"),
        ("lr", ["LR", "lrs"], "LR"),
        ("ab", ["ba", "abc"], "abc"),
        ("sampel", ["sample", "samples", "simple"], "sample"),
        ("x", [], None),
        ("zzz", ["abc"], None),
    ],
)
def test_the_nearest_name_is_the_one_with_the_fewest_mistakes(name: str, known: list[str], wanted: str | None) -> None:
    assert nearest_name(name, known) == wanted
