"""What people see of the engine: answers as they are written, the figures of an evaluation, the doctor's table."""

import os
import pty
from io import StringIO
from pathlib import Path

import pytest
from warm_commands import start

from hone.cli.commands import doctor
from hone.cli.commands import doctor_engine as engine
from hone.cli.commands.evaluate import AnswerStream, generation_rows
from hone.cli.main import main
from hone.cli.terminal.screen import make_console
from hone.core.errors import ResourceError
from hone.core.generation import GenerationStats
from hone.evaluate.engine_check import KernelReport, RunnerCheck, kernel_report
from hone.models.native import library as training
from hone.text.evaluate.open_policy import ModelSource, NewModelConfig, open_policy

ROOT = Path(__file__).resolve().parents[2]


# ------------------------------------------------------------------------------------------------ streaming


def stream_of() -> tuple[AnswerStream, StringIO]:
    out = StringIO()
    return AnswerStream(console=make_console(out)), out


def test_answers_follow_one_another_in_the_order_asked() -> None:
    stream, out = stream_of()
    stream.on_prompts(["first?\n", "second?", "third?"])
    stream.on_text(1, "se")
    stream.on_text(0, "fi")
    assert out.getvalue() == "1/3  first?\nfi", "the second waits"
    stream.on_end(2, "third")
    stream.on_text(0, "r")
    stream.on_end(0, "st")
    assert out.getvalue() == "1/3  first?\nfirst\n\n2/3  second?\nse"
    stream.on_end(1, "cond")
    assert out.getvalue().endswith("second\n\n3/3  third?\nthird\n\n")
    before = out.getvalue()
    stream.close()
    assert out.getvalue() == before, "nothing is unfinished"


def test_who_leaves_early_leaves_on_a_line_of_its_own() -> None:
    stream, out = stream_of()
    stream.close()
    assert out.getvalue() == ""
    stream.on_prompts(["?"])
    stream.on_text(0, "hal\x1b[2J")
    stream.close()
    stream.close()
    assert out.getvalue() == "1/1  ?\nhal\\x1b[2J\n"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = NewModelConfig(
        hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, intermediate_size=24, alphabet="0123456789+="
    )
    folder = tmp_path_factory.mktemp("tiny")
    open_policy(ModelSource(new=tiny), seed=1, device="cpu", temperature=1.0).save(folder)
    return folder


def in_a_terminal(*arguments: str, interrupt_at: bytes = b"") -> tuple[int, bytes]:
    """Exit code and output of a command in a terminal of its own; Ctrl-C is typed once it says `interrupt_at`."""
    ours, theirs = pty.openpty()
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm", "NO_COLOR": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    process = start(["hone", *arguments], folder=Path.cwd(), environment=environment, output=theirs)
    os.close(theirs)
    told = b""
    while piece := heard(ours):
        told += piece
        if interrupt_at and interrupt_at in told:
            os.write(ours, b"\x03")
            interrupt_at = b""
    exit_code = process.wait(timeout=300)
    os.close(ours)
    return exit_code, told.replace(b"\r\n", b"\n")


def heard(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how a terminal says that its other end is closed
        return b""


def test_sample_streams_in_a_terminal(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same answers as without one."""
    words = ["sample", str(policy), "--prompt", "1+1=", "--count", "2"]
    code, told = in_a_terminal(*words)
    assert code == 0
    assert main(words) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    answers = "".join(row[0] if len(row) == 1 else row[1] for row in rows if row != ["-"])
    shown = told.decode().replace("1/2  1+1=", "").replace("2/2  1+1=", "")
    assert "".join(shown.split()) == answers.replace("\n", "")


def test_ctrl_c_leaves_at_once(policy: Path) -> None:
    code, told = in_a_terminal(
        "sample", str(policy), "--prompt", "1+1=", "--count", "5000", interrupt_at=b"1/5000  1+1="
    )
    assert code == 130
    assert told.endswith(b"\ninterrupted\n") and b"Traceback" not in told


# ------------------------------------------------------------------------------------------------ evaluation


def test_the_figures_of_a_generation() -> None:
    stats = GenerationStats(
        slots=4,
        pages=10,
        tokens=300,
        prefill_tokens=30,
        cached_tokens=10,
        steps=100,
        row_steps=300,
        page_steps=500,
        total_s=2.0,
        runner_s=1.5,
        prefill_s=0.5,
        idle_slot_s=1.5,
        tail_slot_s=0.6,
    )
    assert generation_rows("native float32 (avx2)", stats) == [
        ("runner", "native float32 (avx2)", ""),
        ("tokens/s", "150.0", "300 sampled in 2.00 s"),
        (
            "time",
            "prefill 25%, decode 50%, bookkeeping 25%",
            "of model passes, by tokens; bookkeeping is outside them",
        ),
        ("slots", "75% in use", "of 4, over 100 passes"),
        ("tail", "10% idle", "of slot time, waiting for the longest answers"),
        ("KV pages", "50% in use", "of 10"),
        ("prefix cache", "25% hits", "of 40 tokens before answers"),
    ]
    assert generation_rows("torch", GenerationStats())[1] == ("tokens/s", "0", "0 sampled in 0.00 s")


# ------------------------------------------------------------------------------------------------ the doctor


def checked(monkeypatch: pytest.MonkeyPatch, *, passed: bool) -> None:
    one = KernelReport(
        usable=True,
        compiler="c++ 99",
        build_note="in 9.0 s: x.so",
        runner_note="native, avx512: it runs here",
        trainer_note="compiled, avx512",
    )
    found = RunnerCheck(runner="native float32", name="slots", compared_with="8 and 3", result="bits", passed=passed)
    monkeypatch.setattr(engine, "kernel_report", lambda: one)
    monkeypatch.setattr(engine, "check_runners", lambda *, native: iter([found] if native else []))


def test_the_doctor_tries_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hone.cli.terminal.progress.WORK_AFTER_S", 0.0)
    checked(monkeypatch, passed=True)
    assert main(["doctor"]) == 0
    out, told = capsys.readouterr()
    assert "checks of the machine 0/7" in told and "checks of the engine 1" in told
    assert out.index("ready") < out.index("native, avx512") < out.index("8 and 3")
    assert "compiled, avx512" in out and "c++ 99" in out and "in 9.0 s: x.so" in out and "1 checks" in out
    checked(monkeypatch, passed=False)
    assert main(["doctor", "engine"]) == 1
    out = capsys.readouterr().out
    assert "fail" in out and "failed: native float32" in out and "python" not in out
    assert main(["doctor", "machine"]) == 0
    assert "8 and 3" not in capsys.readouterr().out
    assert main(["doctor", "engine", "run.toml"]) == 2
    assert main(["doctor", "engin"]) == 2
    assert "did you mean engine?" in capsys.readouterr().err


def test_the_doctor_stops_at_a_machine_that_cannot_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "LIBRARIES", ("no-such-library",))
    checked(monkeypatch, passed=True)
    assert main(["doctor"]) == 5
    assert "8 and 3" not in capsys.readouterr().out, "the engine may be what is broken"


def test_the_doctor_in_earnest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "engine"]) == 0
    out = capsys.readouterr().out
    assert "parity" in out and "the same bits" in out and "fail" not in out


def test_the_doctor_says_why_the_trainer_has_no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "_loaded", lambda: ResourceError("c++ failed on the compiled training kernels: x"))
    assert kernel_report().trainer_note == "torch: c++ failed on the compiled training kernels: x"
    monkeypatch.undo()
    assert kernel_report().trainer_note.startswith("compiled, ")
    monkeypatch.setenv("HONE_NATIVE", "0")
    assert kernel_report().trainer_note == "torch: HONE_NATIVE=0 switches compiled code off"
