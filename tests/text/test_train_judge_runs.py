"""Runs that learn from a judge: planned, resumed bit for bit, and stopped by a spent budget or by canaries."""

import json
import shutil
from pathlib import Path

import pytest
from judge_servers import Body, JudgeServer, judge_server, material
from tiny_runs import GRPO, differences, hone, lay_out, lines_of

FUNCTION = """[[rewards.functions]]
use = "rewards.py:close"
"""


def digits_grade(body: Body) -> str:
    """Grades an answer by its share of digits; a canary's answer too."""
    answer = material(body)["answer"]
    return json.dumps({"reason": "digits", "digits": 10 * sum(map(str.isdigit, answer)) / max(1, len(answer))})


def judge_table(server: JudgeServer | str, extra: str = "") -> str:
    url = server if isinstance(server, str) else server.url
    return f"""[[rewards.functions]]
kind = "judge"
name = "digits"
cache = "replies"
by = {{ kind = "server", url = "{url}", model = "wise", deadline_s = 60.0, max_wait_s = 0.1 }}
[rewards.functions.ask]
kind = "rubric"
criteria = [{{ name = "digits", text = "It consists of digits." }}]
{extra}
"""


CANARIES = """[rewards.functions.canaries]
path = "canaries.jsonl"
rate = 0.25
"""


def written(folder: Path, server: JudgeServer | str, extra: str = "") -> Path:
    lay_out(folder)
    rows = [{"prompt": f"{number}+1=", "good": str(number + 1), "bad": "+=+"} for number in range(6)]
    (folder / "canaries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = GRPO.replace(FUNCTION, judge_table(server, extra))
    assert text != GRPO
    path = folder / "judged.toml"
    path.write_text(text)
    return path


def test_the_plan_shows_the_question_and_finds_a_server_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with judge_server(digits_grade) as server:
        path = written(tmp_path, server, CANARIES)
        training = path.read_text()
        held_out = "[evaluation]\nmax_tokens = 3\ntask.source = 'held.jsonl'\n" + judge_table(server, CANARIES).replace(
            "rewards.functions", "evaluation.rewards.functions"
        )
        path.write_text(training + held_out)
        assert hone("plan", str(path)) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "judge digits at most 192 requests of at most 512 generated tokens; budget: none" in shown
        assert "<<<answer CODE" in shown
        assert "- digits (0 to 10): It consists of digits." in shown
        assert "evaluation's judge digits the same question as in training" in shown
        assert server.requests == [], "a plan costs nothing"
    assert hone("plan", str(written(tmp_path, "http://127.0.0.1:9"))) == 5
    assert "judge 'digits' (http://127.0.0.1:9) cannot be reached" in capsys.readouterr().err


def test_a_resumed_run_is_the_same_run_and_asks_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run, whole = tmp_path / "runs" / "tiny", tmp_path / "whole"
    with judge_server(digits_grade) as server:
        assert hone("train", str(written(tmp_path, server, CANARIES))) == 0
        asked = len(server.requests)
        shutil.copytree(run, whole)
        (run / "checkpoints" / "step_00000006" / "manifest.json").write_text("damaged")
        assert hone("train", "judged.toml", "--resume") == 0
        assert len(server.requests) == asked, "steps 5 and 6 are answered from the cache"
    assert differences(whole, run, step=6) == []
    last = json.loads(lines_of(run)[-1])
    assert last["judge/digits/agreement"] == 1.0
    assert last["judge/digits/canaries"] == 24
    assert last["judge/digits/missing"] == 0.0
    report = (run / "report.html").read_text()
    assert "Judge health" in report
    assert "24 canaries" in report
    assert json.loads((run / "judge_digits.json").read_text())["requests"] == asked


def test_a_spent_budget_leaves_a_checkpoint_and_the_run_goes_on_with_a_larger_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    with judge_server(digits_grade) as server:
        whole.mkdir()
        monkeypatch.chdir(whole)
        assert hone("train", str(written(whole, server))) == 0
        total = len(server.requests)
        parted.mkdir()
        monkeypatch.chdir(parted)
        limit = f"[rewards.functions.budget]\nrequests = {total - 5}\n"
        assert hone("train", str(written(parted, server, limit))) == 5
        assert f"judge 'digits' has spent its budget: budget.requests = {total - 5}" in capsys.readouterr().err
        written(parted, server, limit.replace(str(total - 5), str(total)))
        assert hone("train", "judged.toml", "--resume", "--allow-changed-config") == 0
        assert len(server.requests) == 2 * total, "no reply was paid for twice"
    metrics = [Path(run / "runs" / "tiny") for run in (whole, parted)]
    assert lines_of(metrics[0]) == lines_of(metrics[1])


def test_a_judge_that_breaks_is_stopped_by_its_canaries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[Body] = []

    def breaking(body: Body) -> str:
        asked.append(body)
        return digits_grade(body) if len(asked) < 40 else '{"reason": "", "digits": 10}'

    with judge_server(breaking) as server:
        assert hone("train", str(written(tmp_path, server, CANARIES + "window = 12\n"))) == 4
    error = capsys.readouterr().err
    assert "judge 'digits' agrees with " in error
    assert "below canaries.floor = 0.7" in error
    assert "Its replies are in replies: set another cache first" in error
    assert "ERROR" in (tmp_path / "runs" / "tiny" / "log.txt").read_text()
