"""Judges behind a server that fails in every way: scores are right or missing with a reason, never 0."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from judge_servers import Body, judge_server, material

from hone.core.conversation import TranscriptBuilder
from hone.core.episodes import ScoreStatus
from hone.core.errors import ConfigError, DataError, LostResourceError, ResourceError
from hone.core.judging import ScorerInput
from hone.models.language.scalar_head import ScalarHeadModel
from hone.rewards.config import RewardsConfig, UserCodeConfig
from hone.rewards.scorer import RewardScorer
from hone.rewards.scores import RewardScores
from hone.text.evaluate.reward_members import reward_scorer

RUBRIC = {"kind": "rubric", "criteria": [{"name": "truth", "text": "It is true."}]}


def length_grade(body: Body) -> str:
    """Grades an answer by its length."""
    return json.dumps({"reason": "long", "truth": len(material(body)["answer"])})


def answer(text: str, prompt: str = "q", **columns: object) -> ScorerInput:
    said = ({"role": "assistant", "content": text},)
    transcript = TranscriptBuilder(np.zeros(1, np.int32))
    return ScorerInput(prompt=prompt, text=text, columns=columns, messages=said, transcript=transcript, id=prompt)


def scorer(url: str, folder: Path | None, by: dict[str, Any] | None = None, **judge: object) -> RewardScorer:
    server = {"kind": "server", "url": url, "model": "wise", "deadline_s": 60.0, **(by or {})}
    cache = None if folder is None else str(folder / "cache")
    config = {"kind": "judge", "by": server, "ask": RUBRIC, "cache": cache, **judge}
    return reward_scorer(RewardsConfig.model_validate({"functions": [config]}), limits=UserCodeConfig(), load=no_model)


def no_model(path: str, weights: str) -> ScalarHeadModel:
    raise AssertionError(f"{path} {weights}")


def scores_of(judge: RewardScorer, *groups: list[ScorerInput]) -> RewardScores:
    try:
        return judge.gather([judge.submit(group) for group in groups])
    finally:
        judge.close()


def test_a_rubric_grades_every_answer_and_asks_equal_questions_once(tmp_path: Path) -> None:
    with judge_server(length_grade) as server:
        judge = scorer(server.url, tmp_path, {"api_key_env": "HOME"})
        assert judge.check([]) == []
        scores = scores_of(judge, [answer("abc"), answer("a"), answer("abc")], [answer("abc", "p")])
    assert scores.score.tolist() == [0.3, 0.1, 0.3, 0.3]
    assert len(server.requests) == 3
    request = server.requests[0]
    assert request["path"] == "/v1/chat/completions"
    assert request["key"].startswith("Bearer /")
    assert request["response_format"]["json_schema"]["schema"]["required"] == ["reason", "truth"]
    assert (request["model"], request["temperature"], request["max_tokens"]) == ("wise", 0.0, 512)


@pytest.mark.parametrize(
    "fault", ["status 500", "status 429", "status 429 after 0", "drop", "cut", "html", "no choices", "no text"]
)
def test_a_fault_of_a_moment_is_asked_again(fault: str) -> None:
    with judge_server(length_grade) as server:
        server.faults.append(fault)
        scores = scores_of(scorer(server.url, None, {"max_wait_s": 0.01}), [answer("abc")])
        assert scores.score.tolist() == [0.3]
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("fault", "status", "reason", "requests"),
    [
        ("hang", ScoreStatus.TIMEOUT, "within 0.3 s (attempt 2 of 2)", 2),
        ("drip", ScoreStatus.TIMEOUT, "no complete answer within 0.3 s", 2),
        ("drop", ScoreStatus.ERROR, "RemoteDisconnected", 2),
        ("cut", ScoreStatus.ERROR, "cut off after", 2),
        ("html", ScoreStatus.ERROR, "the reply is not JSON", 2),
        ("no choices", ScoreStatus.ERROR, "0 choices came", 2),
        ("status 503", ScoreStatus.ERROR, "status 503", 2),
        ("status 401", ScoreStatus.ERROR, "status 401", 1),
        ("status 429 after 3600", ScoreStatus.ERROR, "asks to wait 3600 s, more than by.max_wait_s", 1),
    ],
)
def test_without_a_reply_a_score_is_missing(fault: str, status: ScoreStatus, reason: str, requests: int) -> None:
    with judge_server(length_grade) as server:
        server.faults.extend([fault] * 4)
        limits = {"attempts": 2, "deadline_s": 0.3 if fault in ("hang", "drip") else 60.0, "max_wait_s": 0.01}
        scores = scores_of(scorer(server.url, None, limits), [answer("abc")])
        assert len(server.requests) == requests
    assert scores.status.tolist() == [status]
    assert np.isnan(scores.score).all()
    assert reason in scores.reasons[0]


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        ("nonsense", "not JSON"),
        ('{"truth": 70}', "outside 0 to 10"),
        ("", "the reply is empty"),
        ('{"truth": 7', "not JSON"),
    ],
)
def test_a_reply_without_a_verdict_is_unscorable(reply: str, reason: str) -> None:
    with judge_server(lambda body: reply) as server:
        scores = scores_of(scorer(server.url, None), [answer("abc")])
    assert scores.status.tolist() == [ScoreStatus.UNSCORABLE]
    assert reason in scores.reasons[0]


def test_retry_after_holds_every_request_back() -> None:
    with judge_server(length_grade) as server:
        server.faults.append("status 429 after 1")
        group = [answer("a" * size) for size in range(1, 5)]
        scores = scores_of(scorer(server.url, None, {"max_concurrent": 1}), group)
    assert np.isfinite(scores.score).all()
    assert server.times[1] - server.times[0] >= 1.0


def test_a_server_without_response_format_is_asked_without_it_from_then_on() -> None:
    with judge_server(length_grade, knows_response_format=False) as server:
        scores = scores_of(scorer(server.url, None, {"max_concurrent": 1}), [answer("a"), answer("ab")])
    assert scores.score.tolist() == [0.1, 0.2]
    assert ["response_format" in request for request in server.requests] == [True, False, False]


def test_requests_under_way_are_bounded() -> None:
    with judge_server(length_grade, delay_s=0.05) as server:
        scores_of(scorer(server.url, None, {"max_concurrent": 3}), [answer("a" * size) for size in range(1, 9)])
    assert server.most_running == 3


def test_a_rate_is_kept() -> None:
    with judge_server(length_grade) as server:
        judge = scorer(server.url, None, budget={"requests_per_minute": 2.0})
        ticket = judge.submit([answer("a" * size) for size in range(1, 6)])
        wait_until(lambda: len(server.requests) == 2)
        time.sleep(0.3)
        assert len(server.requests) == 2
        judge.close()
        scores = judge.gather([ticket])
    assert sorted(scores.status.tolist()) == [ScoreStatus.SCORED] * 2 + [ScoreStatus.ERROR] * 3


def wait_until(ready: Callable[[], bool]) -> None:
    end = time.monotonic() + 300
    while not ready():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_spent_budget_stops_and_loses_no_reply(tmp_path: Path) -> None:
    group = [answer("a" * size) for size in range(1, 6)]
    with judge_server(length_grade) as server:
        poor = scorer(server.url, tmp_path, budget={"requests": 3})
        poor.write_protect(tmp_path)
        with pytest.raises(LostResourceError, match=r"budget\.requests = 3, 3 used"):
            scores_of(poor, group)
        rich = scorer(server.url, tmp_path, budget={"requests": 5})
        rich.write_protect(tmp_path)
        assert scores_of(rich, group).score.tolist() == [0.1, 0.2, 0.3, 0.4, 0.5]
        assert len(server.requests) == 5
    assert rich.metrics()["time/judge/judge/requests"] == 5
    assert rich.metrics()["time/judge/judge/cached"] == 3


def test_damaged_entries_are_asked_again_and_told(tmp_path: Path) -> None:
    with judge_server(length_grade) as server:
        scores_of(scorer(server.url, tmp_path), [answer("abc"), answer("a")])
        (entry, _) = sorted((tmp_path / "cache").rglob("*.json"))
        entry.write_bytes(entry.read_bytes()[:50])
        judge = scorer(server.url, tmp_path)
        assert scores_of(judge, [answer("abc"), answer("a")]).score.tolist() == [0.3, 0.1]
        assert len(server.requests) == 3
    assert judge.notes() == [f"judge 'judge': 1 damaged entries of its cache were asked again: {entry}"]
    assert judge.notes() == []


def test_closing_wakes_requests_that_hang() -> None:
    with judge_server(length_grade) as server:
        server.faults.append("hang")
        judge = scorer(server.url, None, {"deadline_s": 600.0})
        judge.submit([answer("abc")])
        wait_until(lambda: len(server.requests) == 1)
        closing = threading.Thread(target=judge.close)
        closing.start()
        closing.join(300)
        assert not closing.is_alive()


def test_the_plan_finds_a_server_that_is_not_there_and_another_model(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"cannot be reached.*ConnectionRefusedError.*start the server"):
        scorer("http://127.0.0.1:9", None).check([])
    served = judge_server(length_grade, models=("wiser", "other"))
    with served as server, pytest.raises(ConfigError, match=r"serve by.model = 'wise'; did you mean wiser\?"):
        scorer(f"{server.url}/v1/", None).check([])
    with judge_server(length_grade, models=()) as server:
        assert "lists no models" in scorer(server.url, None).check([])[0]
    with pytest.raises(ConfigError, match="HONE_NO_SUCH_KEY"):
        scorer("http://127.0.0.1:9", None, {"api_key_env": "HONE_NO_SUCH_KEY"})
    with pytest.raises(ConfigError, match="is not an address"):
        scorer("nowhere", None)


@pytest.mark.parametrize(
    ("ask", "columns", "fault"),
    [
        (
            {"kind": "reference"},
            {"answr": "4"},
            "needs the dataset column 'answer', which does not exist; did you mean answr",
        ),
        ({"kind": "reference"}, {"answer": " "}, "the column 'answer' is empty in 1 rows: data.jsonl:1"),
        ({"kind": "pairwise", "reference": "best"}, {"answer": "4"}, "'best'"),
    ],
)
def test_the_plan_finds_references_that_are_missing(ask: object, columns: dict[str, str], fault: str) -> None:
    class Row:
        row, source = 1, "data.jsonl"

        def __init__(self) -> None:
            self.columns = columns

    with pytest.raises(DataError, match=fault) as error:
        scorer("http://127.0.0.1:9", None, ask=ask).check(list(columns), [Row()])
    assert "cannot be reached" in str(error.value), "with the server's fault"


def test_an_answer_whose_reference_is_missing_is_unscorable_and_not_asked(tmp_path: Path) -> None:
    with judge_server(lambda body: '{"correct": "yes"}') as server:
        judge = scorer(server.url, None, ask={"kind": "reference"})
        scores = scores_of(judge, [answer("4", answer="4"), replace(answer("4"), columns={"answer": None})])
        assert len(server.requests) == 1
    assert scores.status.tolist() == [ScoreStatus.SCORED, ScoreStatus.UNSCORABLE]
    assert material(server.requests[0])["reference"] == "4"
