"""A closed terminal stops a run as SIGTERM does; a certificate that a kill lost is made up for; damaged lines heal."""

import json
import os
import pty
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny_runs import ROOT, differences, files_of, hone, lay_out, lines_of, steps_logged
from tiny_runs import start as start_hone
from warm_commands import start

from hone.run.callbacks import stop_on_signals

LONG = ("train", "grpo.toml", "steps=500", "run.checkpoint_every=1000", "run.rollouts_every=0", "run.certify=false")


@pytest.fixture(autouse=True)
def hangups_are_heard() -> Iterator[None]:
    """Under nohup they are ignored, here and in every process that is started."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_closed_terminal_saves_the_step_whichever_comes_first_the_signal_or_a_failed_write(place: Path) -> None:
    """A real terminal, closed under the run, which is its session's leader: writes fail and SIGHUP arrives."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    process = start(["hone", *LONG], folder=place, environment=environment, output=theirs)
    os.close(theirs)
    run, end = place / "runs" / "tiny", time.monotonic() + 300
    os.set_blocking(ours, False)
    while steps_logged(run) < 2:
        assert process.poll() is None
        assert time.monotonic() < end
        try:
            os.read(ours, 65536)
        except BlockingIOError:
            time.sleep(0.02)
    os.close(ours)
    os.kill(process.pid, signal.SIGHUP)  # a shell passes it on as well
    assert process.wait(timeout=300) == 143
    done = steps_logged(run)
    assert files_of(run, done)
    log = (run / "log.txt").read_text(encoding="utf-8")
    assert f"stopped by SIGHUP after step {done} of 500, which is saved" in log
    assert "Traceback" not in log
    assert hone(*LONG[:2], f"steps={done + 1}", *LONG[3:], "--resume") == 0


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals(lambda _text: None) as request:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not request.requested
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_one_hangup_asks_and_a_second_one_asks_for_nothing_more() -> None:
    with stop_on_signals(lambda _text: None) as request:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGHUP)
        assert request.exit_code == 143
        assert request.signal_name == "SIGHUP"
        os.kill(os.getpid(), signal.SIGTERM)
        assert request.signal_name == "SIGTERM"


def test_a_certificate_is_whole_or_absent_and_a_resume_makes_up_for_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hone("train", "grpo.toml", "run.keep_last=9", "--runs", "whole") == 0
    whole = (place / "whole" / "tiny" / "certificate.json").read_bytes()
    monkeypatch.setenv("HONE_FAILPOINT", "replace.certificate.json:exit")
    process = start_hone(place, "train", "grpo.toml", "run.keep_last=9")
    process.communicate(timeout=300)
    assert process.returncode == 86
    monkeypatch.delenv("HONE_FAILPOINT")
    run = place / "runs" / "tiny"
    assert not (run / "certificate.json").exists()
    assert hone("train", "grpo.toml", "run.keep_last=9", "--resume") == 0
    assert (run / "certificate.json").read_bytes() == whole
    assert differences(run, place / "whole" / "tiny", step=6) == []
    (run / "certificate.json").write_bytes(whole[:-30])
    assert hone("train", "grpo.toml", "run.keep_last=9", "--resume") == 0
    assert (run / "certificate.json").read_bytes() == whole


def test_damaged_metrics_never_stop_show_compare_report_or_a_resume(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hone("train", "sft.toml", "run.certify=false") == 0
    run = place / "runs" / "tiny"
    shutil.rmtree(run / "checkpoints" / "step_00000006")
    path = run / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    intact = lines_of(run)
    path.write_bytes(b"".join([lines[0], lines[1][:20] + b"\n", b"\0" * 50 + b"\n", *lines[2:], b'{"step": 7, "x']))
    capsys.readouterr()
    for command in (("show", "tiny"), ("compare", "tiny")):
        assert hone(*command) == 0
        said = capsys.readouterr().out.replace("\n", "")
        assert "metrics.jsonl:2" in said
        assert "metrics.jsonl:3" in said
    assert hone("train", "sft.toml", "run.certify=false", "--resume") == 0
    said = capsys.readouterr().out + (run / "log.txt").read_text(encoding="utf-8")
    assert "metrics.jsonl:2" in said
    assert "the line is removed, 5 others are kept" in said
    assert "torn last line cut" in said
    assert lines_of(run) == [intact[0], *intact[2:]]
    assert [json.loads(line)["step"] for line in lines_of(run)] == [1, 3, 4, 5, 6]
    assert "metrics.jsonl:2" in (run / "report.html").read_text(encoding="utf-8"), "the log names it"
