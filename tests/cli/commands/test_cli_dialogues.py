"""What people see of dialogues: turn by turn in the terminal, in samples and in the report, and as one side of them."""

import io
from pathlib import Path

import pytest

from hone.cli.commands.evaluate import show_dialogues
from hone.cli.main import main
from hone.cli.terminal.screen import TerminalScreen, make_console
from hone.run.store.evaluations import AnswerRow, latest_answers
from hone.run.store.rollouts import read_samples

GUESS = """recipe = "grpo"
name = "guess"
steps = 1
run.certify = false
[model.new]
hidden_size = 16
layers = 1
heads = 1
kv_heads = 1
head_dim = 16
intermediate_size = 32
max_positions = 64
alphabet = "0123456789-<>=? "
[task]
source = "dialogue:hone.text.games.guess:GuessingGame"
turns = 4
[rollout]
prompts_per_step = 3
samples_per_prompt = 4
max_tokens = 8
stop = [" "]
[learner]
lr = 1e-3
[evaluation]
max_tokens = 8
stop = [" "]
temperature = 1
[evaluation.task]
source = "dialogue:hone.text.games.guess:GuessingGame"
turns = 4
size = 6
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dialogues")
    (folder / "guess.toml").write_text(GUESS)
    assert main(["train", str(folder / "guess.toml"), "--runs", str(folder / "runs")]) == 0
    return folder / "runs"


def test_samples_and_answers_say_why_dialogues_ended(runs: Path) -> None:
    (file,) = (runs / "guess" / "rollouts").glob("*.parquet")
    rows = read_samples(file)
    assert {row.finish for row in rows} <= {"done", "max_tokens", "turns"}
    answers = latest_answers(runs / "guess")
    assert len(answers) == 6
    for one in answers:
        assert one.stop in ("done", "max_tokens", "turns")
        assert one.prompt == "1-15 "
        speakers = [speaker for speaker, _ in one.turns]
        assert speakers[::2] == ["policy"] * len(speakers[::2])
        assert speakers[1::2] == ["environment"] * len(speakers[1::2])
        if one.stop == "done":
            assert one.turns[-1][0] == "environment", "the world's last words are there"


def test_the_report_has_ends_and_colours(runs: Path) -> None:
    page = (runs / "guess" / "report.html").read_text()
    assert "<h2>Dialogues</h2>" in page
    assert "stop: max_tokens" in page or "stop: done" in page
    assert 'class="said policy"' in page


def test_sample_shows_turns_and_ends(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "guess", "--runs", str(runs), "--dialogue", "--count", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1/2"
    assert lines[1] == "prompt  1-15 "
    assert lines[2].startswith("policy  ")
    assert sum("stop: " in line for line in lines) == 2


def test_sample_of_a_dialogue_takes_no_prompt(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "guess", "--runs", str(runs), "--dialogue", "--prompt", "1-15 "]) == 2
    assert "--dialogue is about problems of the task" in capsys.readouterr().err


def test_colours_tell_who_said_what() -> None:
    stream = io.StringIO()
    console = make_console(stream, {})
    console = type(console)(file=stream, force_terminal=True, color_system="standard", highlight=False)
    turns = (("policy", "08 "), ("environment", "two\nlines \x1b"))
    row = AnswerRow(
        id="1", prompt="1-15", reference="", answer="", score=None, turns=turns, stop="world_died", fault="it raised"
    )
    show_dialogues(TerminalScreen(console=console), [row])
    shown = stream.getvalue()
    assert "\x1b[1;36m08 \x1b[0m" in shown
    assert "\x1b[33mtwo\x1b[0m" in shown
    assert "\x1b[33mlines \\x1b\x1b[0m" in shown, "control characters of a world are escaped"
    assert "\x1b[31m, fault: it raised\x1b[0m" in shown


def play(runs: Path, monkeypatch: pytest.MonkeyPatch, typed: str, *options: str) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    return main(["play", *options, "--runs", str(runs), "--seed", "3"])


def test_a_person_takes_the_place_of_the_world(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(runs, monkeypatch, "\n\n\n\n", "own", "guess") == 0
    own = capsys.readouterr().out
    assert "you are the world" in own
    assert own.count("policy  ") + own.count("(the world itself: ") >= 1
    assert play(runs, monkeypatch, "", "hone.text.games.guess:GuessingGame", "guess", "--temperature", "0") == 0
    ended = capsys.readouterr().out.splitlines()[-1].strip()
    assert ended.startswith("stop: ")


def test_a_person_takes_the_place_of_the_user(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(runs, monkeypatch, "1-9 \n<\n", "own", "guess", "--side", "user") == 0
    said = capsys.readouterr().out
    assert "prompt  1-9" in said
    assert "the world itself" not in said
    assert "no score" in said


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("own", "guess", "--side", "usr"), 2, "did you mean user?"),
        (("nothing.py:Game", "guess"), 2, "no such file nothing.py"),
        (("own", "gues"), 3, "did you mean guess?"),
        (("hone.text.games.guess:GuessingGam", "guess"), 4, "has no 'GuessingGam'"),
    ],
)
def test_faults_of_a_play(
    options: tuple[str, ...],
    code: int,
    words: str,
    runs: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert play(runs, monkeypatch, "", *options) == code
    assert words in capsys.readouterr().err
