"""The command as a user meets it: exit codes, what stderr says, and that nothing is left behind."""

import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import Field, model_validator

import hone.run.pipeline
import hone.run.run
from hone.cli.commands import train as training
from hone.cli.main import main
from hone.cli.options import COMMANDS
from hone.core.errors import DataError, InterruptedRun
from hone.recipes.registry import RecipeSpec
from hone.run.job import OpenedRun, RecipeParts, RunConfig
from hone.run.memory_plan import MemoryPlan
from hone.run.run import RunRequest
from hone.run.store.folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]


class Toy(RunConfig):
    lr: float = Field(default=1e-3, gt=0)
    """Learning rate."""
    gamma: float = Field(default=0.99, ge=0, le=1)
    """Discount."""
    samples: int = Field(default=8, ge=1)
    """Answers per prompt."""
    scale: str = "std"
    """Divide by."""

    @model_validator(mode="after")
    def _std_needs_two(self) -> "Toy":
        if self.samples == 1 and self.scale == "std":
            raise ValueError('samples = 1 has no standard deviation: samples needs >= 2, or scale = "none"')
        return self

    def open(self) -> OpenedRun:
        return OpenedRun(warnings=[], build=lambda config: config, memory=MemoryPlan(parameters=0, parts={}))

    def derive(self) -> Mapping[str, str]:
        return {"answers per step": str(self.samples)}


TOY = RecipeSpec(summary="a toy", paper="nobody, 2026", config=Toy, parts=RecipeParts(source="Toys"))
GOOD = 'recipe = "toy"\nsteps = 3\n'


@pytest.fixture(autouse=True)
def somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, a recipe `toy`, and a driver that records what it is asked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(training, "recipe_names", lambda: ["grpo", "toy"])
    monkeypatch.setattr(training, "is_recipe", lambda name: name in ("grpo", "toy"))
    monkeypatch.setattr(training, "load_recipe", lambda name: TOY)
    return tmp_path


@pytest.fixture
def orders(monkeypatch: pytest.MonkeyPatch) -> list[RunRequest]:
    asked: list[RunRequest] = []

    def run(order: RunRequest, *, progress: Any, clock: Any = None) -> Any:
        asked.append(order)
        progress.start(3, "toy")
        progress.update(3, {"reward/mean": 0.5})
        progress.close()
        name = order.config.name
        return SimpleNamespace(name=name, path=order.root / name, report_path=Path("report.html"))

    monkeypatch.setattr(hone.run.run, "run", run)
    monkeypatch.setattr(hone.run.pipeline, "run", run)
    return asked


def hone_command(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    code = "import sys; from hone.cli.main import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
        check=False,
        timeout=300,
    )


BAD: list[tuple[str, str | bytes | None, list[str], list[str]]] = [
    # row, content of run.toml, arguments, what stderr must say
    ("1 unknown key", GOOD + "gama = 1\n", [], ["unknown key gama in run.toml:3; did you mean gamma?"]),
    ("1 all at once", GOOD + "gama = 1\nlr = -1\n", [], ["unknown key gama", "lr in run.toml:4 must be > 0, got -1"]),
    ("2 wrong type", GOOD + 'lr = "fast"\n', [], ['lr in run.toml:3 must be a number > 0, got the string "fast"']),
    ("2 numeric string", GOOD + 'lr = "1e-5"\n', [], ['got the string "1e-5"; remove the quotes']),
    ("3 not positive", GOOD + "lr = 0\n", [], ["lr in run.toml:3 must be > 0, got 0"]),
    ("3 nan", GOOD + "lr = nan\n", [], ["lr in run.toml:3 must be a finite number > 0, got nan"]),
    ("3 beyond one", GOOD + "gamma = 1.5\n", [], ["gamma in run.toml:3 must be >= 0 and <= 1, got 1.5"]),
    ("3 far too high", GOOD + "lr = 1e6\n", [], ["lr = 1000000.0 (run.toml:3) is above 1", "--yes"]),
    ("4-6 contradiction", GOOD + "samples = 1\n", [], ['samples needs >= 2, or scale = "none"']),
    ("7 missing file", None, [], ["no file run.toml"]),
    ("7 invalid", GOOD + "lr = \n", [], ["run.toml:3:6 is not valid TOML", "`lr =`"]),
    ("7 not UTF-8", b"a = '\xff'\n", [], ["run.toml:1 is not UTF-8"]),
    ("8 duplicate key", GOOD + "steps = 4\n", [], ["run.toml:3", "Cannot overwrite a value", "`steps = 4`"]),
    ("no recipe", "steps = 3\n", [], ["recipe in run.toml is missing; hone list recipes shows all"]),
    ("wrong recipe", 'recipe = "gpro"\n', [], ['recipe = "gpro" in run.toml:1 is not known; did you mean grpo?']),
    ("13 climbing name", GOOD, ["--name", "../../etc/x"], ["'../../etc/x'", "must be 1 to 128 letters"]),
    ("13 long name", GOOD, ["--name", "x" * 300], ["300 characters"]),
    ("13 NUL in a name", GOOD, ["--name", "a\0b"], ["must be 1 to 128 letters"]),
    ("13 empty name", GOOD, ["name="], ["name on the command line", 'got ""']),
    ("unknown option", GOOD, ["--dryrun"], ["--dryrun is not an option", "--dry-run"]),
    ("two files", GOOD, ["b.toml"], ["unrecognized arguments: b.toml", "hone train --help"]),
    ("faults of every stage", '[[stage]]\nrecipe = "toy"\n[[stage]]\nrecipe = "toy"\nsteps = 0\nlrr = 1\n', [],
     ["stage.0.steps in run.toml:1 is missing", "stage.1.steps in run.toml:5 must be >= 1, got 0",
      "unknown key stage.1.lrr in run.toml:6; did you mean stage.1.lr?"]),
    ("a stage's key", '[[stage]]\nrecipe = "thompson"\nsteps = 2\n', ["steps=5"],
     ["unknown key steps in command line: it is a stage's: stage.0.steps, or shared.steps for all"]),
]  # fmt: skip


@pytest.mark.parametrize(("row", "content", "arguments", "said"), BAD, ids=[row[0] for row in BAD])
@pytest.mark.usefixtures("somewhere")
def test_bad_input_is_refused(
    row: str,
    content: str | bytes | None,
    arguments: list[str],
    said: list[str],
    orders: list[RunRequest],
    capsys: pytest.CaptureFixture[str],
) -> None:
    if content is not None:
        Path("run.toml").write_bytes(content if isinstance(content, bytes) else content.encode())
    before = sorted(Path.cwd().rglob("*"))
    assert main(["train", "run.toml", *arguments]) == 2
    captured = capsys.readouterr()
    assert all(part in captured.err for part in said), captured.err
    assert all(line.startswith("error: ") for line in captured.err.splitlines())
    assert "Traceback" not in captured.err
    assert captured.out == ""
    assert orders == []
    assert sorted(Path.cwd().rglob("*")) == before


def test_a_directory_and_yaml_are_refused(somewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (somewhere / "bomb.yaml").write_text("a: &a [x]\nb: [*a, *a]\n")
    assert main(["train", "."]) == 2
    assert main(["train", "bomb.yaml"]) == 2
    said = capsys.readouterr().err
    assert "is a directory" in said and "bomb.yaml is YAML" in said and "aliases" in said


def test_byte_order_mark_and_windows_lines_are_welcome(somewhere: Path, orders: list[RunRequest]) -> None:
    (somewhere / "run.toml").write_bytes(b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode())
    assert main(["train", "run.toml"]) == 0
    assert orders[0].config.steps == 3


def test_the_command_line_wins_and_the_header_says_so(
    somewhere: Path, orders: list[RunRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    (somewhere / "my run.toml").write_text(GOOD + "lr = 0.5\n")
    code = main(["train", "my run.toml", "lr=0.25", "--gamma", "0.9", "--device", "cuda:1", "--runs", "r", "--resume"])
    assert code == 0
    (order,) = orders
    assert isinstance(order.config, Toy)
    assert (order.config.lr, order.config.gamma, order.config.run.device) == (0.25, 0.9, "cuda:1")
    assert (order.root, order.resume, order.config.name) == (Path("r"), True, "my-run")
    assert order.settings["lr"].origin == "command line"
    assert order.settings["steps"].origin == "my run.toml:2"
    out = capsys.readouterr().out
    assert [line.split() for line in out.splitlines() if line.startswith("lr ")] == [["lr", "0.25", "command", "line"]]


def test_yes_runs_what_looks_like_a_mistake(somewhere: Path, orders: list[RunRequest]) -> None:
    (somewhere / "run.toml").write_text(GOOD + "lr = 2\n")
    assert main(["train", "run.toml", "--yes"]) == 0
    assert len(orders) == 1


@pytest.mark.parametrize("words", [["plan", "run.toml"], ["train", "run.toml", "--dry-run"]])
def test_a_plan_runs_nothing(
    words: list[str], somewhere: Path, orders: list[RunRequest], capsys: pytest.CaptureFixture[str]
) -> None:
    (somewhere / "run.toml").write_text(GOOD)
    assert main(words) == 0
    assert "answers per step  8" in capsys.readouterr().out
    assert orders == [] and [path.name for path in somewhere.iterdir()] == ["run.toml"]


def test_stages_are_runs_in_their_order(somewhere: Path, orders: list[RunRequest]) -> None:
    (somewhere / "p.toml").write_text(
        '[[stage]]\nrecipe = "toy"\nsteps = 1\n[[stage]]\nrecipe = "toy"\nname = "b"\nsteps = 2\n'
    )
    assert main(["train", "p.toml", "stage.1.lr=0.5"]) == 0
    assert [(order.config.name, order.config.steps) for order in orders] == [("toy", 1), ("b", 2)]
    assert orders[1].settings["lr"].value == 0.5


@pytest.mark.parametrize(
    ("raised", "code", "said"),
    [
        (DataError("rows 3 and 4 are empty", "no file x"), 3, "error: rows 3 and 4 are empty\nerror: no file x\n"),
        (InterruptedRun("stopped after step 2", exit_code=143), 143, "stopped after step 2\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (RuntimeError("odd \x1b[31m"), 1, "this is a bug in hone"),
    ],
)
def test_failures_have_their_exit_codes(
    raised: BaseException,
    code: int,
    said: str,
    somewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def run(order: RunRequest, *, progress: object) -> RunFolder:
        raise raised

    monkeypatch.setattr(hone.run.run, "run", run)
    (somewhere / "run.toml").write_text(GOOD)
    assert main(["train", "run.toml"]) == code
    err = capsys.readouterr().err
    assert said in err
    assert "\x1b" not in err
    assert ("Traceback" in err) == isinstance(raised, RuntimeError)


def test_unknown_commands_and_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert "did you mean train?" in capsys.readouterr().err
    assert main([]) == 2
    assert main(["--version"]) == 0
    assert "hone 0." in capsys.readouterr().out


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS:
        assert main([command.name, "--help"]) == 0
        out = capsys.readouterr().out
        assert f"usage: hone {command.name}" in out and command.summary in out


EVAL_OPTIONS = [
    "--answer", "--device", "--max-tokens", "--model", "--perturb", "--problems", "--rewards", "--runs", "--scorer",
    "--search", "--seed", "--server", "--step", "--task",
]  # fmt: skip


SERVE_OPTIONS = [
    "--api-key", "--api-key-file", "--claim", "--context", "--deadline", "--device", "--dry-run", "--follow",
    "--host", "--max-body", "--model", "--per-client", "--port", "--queue", "--runs", "--seed", "--slots", "--strict",
    "--tool-format", "--use", "--weights",
]  # fmt: skip


ESTIMATE_OPTIONS = [
    "--as-of", "--behaviour", "--beyond", "--compare", "--default", "--discount", "--estimator", "--high", "--html",
    "--interval", "--json", "--kind", "--level", "--low", "--policy", "--registry", "--reward-model", "--rule",
    "--schema", "--seed", "--segment", "--since", "--tenant", "--trajectories", "--version", "--window",
]  # fmt: skip
LOG_OPTIONS = [
    "--archive", "--as-of", "--beyond", "--default", "--erase", "--export", "--features", "--high", "--json",
    "--kind", "--low", "--report", "--retain", "--rule", "--schema", "--tenant", "--view", "--window",
]  # fmt: skip


QUEUE_OPTIONS = [
    "--cores", "--half-life", "--host", "--image", "--lease", "--memory", "--name", "--only", "--port", "--priority",
    "--queue", "--ray", "--runs", "--slots", "--tenant", "--until-empty", "--volume", "--weight",
]  # fmt: skip
TREE_OPTIONS = [
    "--episodes", "--hand-over", "--leaves", "--names", "--problems", "--rounds", "--runs", "--seed",
]  # fmt: skip
PLAN_OPTIONS = [
    "--calibrate", "--device", "--exact", "--json", "--longest-text", "--memory", "--model", "--name", "--runs",
    "--solve", "--yes",
]  # fmt: skip
TRAIN_OPTIONS = [
    "--allow-changed-code", "--allow-changed-config", "--device", "--dry-run",
    "--jobs", "--name", "--resume", "--runs", "--seeds", "--yes",
]  # fmt: skip
SWEEP_OPTIONS = [
    "--dry-run", "--fresh-seeds", "--jobs", "--metric", "--name", "--over", "--ray", "--resume", "--runs", "--seeds",
    "--yes",
]  # fmt: skip


SHIP_OPTIONS = [
    "--back", "--dry-run", "--html", "--json", "--name", "--once", "--parent", "--reason", "--status", "--to",
]  # fmt: skip


def test_the_options_are_these() -> None:
    """A change of the command line is a decision: it is made here, too."""
    assert {command.name: sorted(option.flag for option in command.options) for command in COMMANDS} == {
        "train": TRAIN_OPTIONS,
        "plan": PLAN_OPTIONS,
        "sweep": SWEEP_OPTIONS,
        "eval": EVAL_OPTIONS,
        "sample": [
            "--count",
            "--device",
            "--dialogue",
            "--max-tokens",
            "--prompt",
            "--raw",
            "--rewards",
            "--runs",
            "--seed",
            "--task",
            "--temperature",
        ],
        "serve": SERVE_OPTIONS,
        "play": ["--device", "--runs", "--seed", "--side", "--temperature"],
        "track": ["--names", "--place", "--project", "--runs", "--to"],
        "fetch": [],
        "export": ["--adapter", "--dtype", "--gguf", "--onnx", "--push", "--runs"],
        "distill-tree": TREE_OPTIONS,
        "dataset": ["--kind", "--max-per-prompt", "--min-score", "--pairs", "--runs"],
        "init": ["--by", "--on", "--what"],
        "profile": ["--html", "--runs", "--steps"],
        "completion": [],
        "show": ["--alarms", "--config", "--diff", "--map", "--model", "--rows", "--runs", "--tokens", "--verify"],
        "debug": ["--pdb", "--runs"],
        "queue": QUEUE_OPTIONS,
        "watch": ["--alarms", "--chat", "--demo", "--host", "--once", "--port", "--queue", "--service", "--token-file"],
        "chaos": ["--count", "--device", "--faults", "--name", "--runs", "--seed", "--yes"],
        "compare": ["--html", "--json", "--metric", "--runs", "--threshold"],
        "list": ["--runs"],
        "estimate": ESTIMATE_OPTIONS,
        "log": LOG_OPTIONS,
        "service": ["--archive", "--backup", "--erase", "--features", "--prune", "--restore", "--tenant", "--verify"],
        "ratings": ["--fit", "--json", "--since", "--write"],
        "shield": ["--html", "--out", "--registry", "--version", "--with"],
        "retrain": ["--json", "--once", "--status"],
        "ship": SHIP_OPTIONS,
        "lab": ["--out", "--quick", "--seed"],
        "doctor": ["--cluster", "--runs"],
    }


# --- row 18: whatever reads the output ------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["--help", "list runs"])
def test_a_closed_pipe_is_no_failure_of_ours(words: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code = "import sys; from hone.cli.main import main; sys.exit(main())"
    answer = subprocess.run(
        [sys.executable, "-c", code, *words.split()],
        stdout=writer,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=False,
        timeout=300,
    )
    os.close(writer)
    assert (answer.returncode, answer.stderr) == (141, b"")


@pytest.mark.parametrize(
    "environment",
    [{"COLUMNS": "20"}, {"TERM": "dumb"}, {"NO_COLOR": "1"}, {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}],
)
def test_no_control_codes_without_a_terminal(environment: dict[str, str], somewhere: Path) -> None:
    answer = hone_command("list", "runs", "--runs", "d\u00e9j\u00e0", **environment)
    assert (answer.returncode, answer.stderr) == (0, b"")
    assert b"\x1b" not in answer.stdout and b"no runs in" in answer.stdout


def in_a_terminal(*arguments: str, **environment: str) -> bytes:
    """What a command writes to a terminal."""
    parent, child = pty.openpty()
    code = "import sys; from hone.cli.main import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdout=child,
        stderr=child,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment},
    ) as process:
        os.close(child)
        told = b""
        try:
            while piece := os.read(parent, 65536):
                told += piece
        except OSError:  # how a terminal says that its other end is closed
            pass
        assert process.wait(timeout=300) == 0
    os.close(parent)
    return told


@pytest.mark.slow
def test_colour_only_on_a_terminal_that_wants_it() -> None:
    colours = {"TERM": "xterm-256color", "NO_COLOR": "", "COLUMNS": "80"}
    assert b"\x1b[" in in_a_terminal("doctor", "machine", **colours)
    assert b"\x1b" not in in_a_terminal("doctor", "machine", **colours | {"TERM": "dumb"})
    assert b"\x1b" not in in_a_terminal("doctor", "machine", **colours | {"NO_COLOR": "1"})
    narrow = in_a_terminal("doctor", "machine", **colours | {"NO_COLOR": "1", "COLUMNS": "20"})
    assert b"ready" in narrow


def test_the_module_is_the_command() -> None:
    answer = subprocess.run(
        [sys.executable, "-m", "hone", "list", "recipes"], capture_output=True, text=True, check=True
    )
    assert "grpo" in answer.stdout


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (["train", "toy.toml", "--name", ""], "--name"),
        (["train", "toy.toml", "--name="], "--name"),
        (["train", "toy.toml", "--name", "  "], "--name"),
        (["plan", "toy.toml", "--device", ""], "--device"),
        (["plan", "toy.toml", "--device="], "--device"),
        (["serve", "run", "--api-key", ""], "--api-key"),
        (["train", "toy.toml", "--runs", ""], "--runs"),
        (["compare", "a", "--metric", ""], "--metric"),
    ],
)
def test_an_empty_value_of_an_option_is_refused(words, flag, tmp_path, capsys) -> None:
    """The shell makes one of `--name "$UNSET"`; it would have counted as not given."""
    (tmp_path / "toy.toml").write_text(GOOD)
    assert main(words) == 2
    assert f"{flag} has an empty value; give one, or leave {flag} out" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
