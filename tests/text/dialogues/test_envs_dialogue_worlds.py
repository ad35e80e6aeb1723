"""Worlds that misbehave: each costs its own dialogues, which have the right status; the run goes on."""

import os
import time
from pathlib import Path

import numpy as np
import pytest
from scripted_session import END, ScriptedSession
from world_runs import TABLE, play

from hone.core.dialogue import PolicyTurn
from hone.core.episodes import ScoreStatus
from hone.core.errors import UserCodeError
from hone.rewards.config import UserCodeConfig
from hone.text.dialogues.config import DialogueTaskConfig
from hone.text.dialogues.hosted import WorldFaultError, WorldSpec
from hone.text.dialogues.hosts import ProcessHost, ThreadHost

SHORT = np.zeros_like(TABLE)
SHORT[:, 0], SHORT[0, 0], SHORT[0, END] = 1.0, 0.0, 1.0
"""Says `a` and ends: nothing is cut."""

FAULTS = [
    ("raises", "world_died", ScoreStatus.ERROR, "ValueError: the world has a fault"),
    ("exits", "world_died", ScoreStatus.ERROR, "its process exited with code 3"),
    ("sys.exit", "world_died", ScoreStatus.ERROR, "sys.exit(4)"),
    ("is killed", "world_died", ScoreStatus.ERROR, "its process was killed by SIGKILL"),
    ("hangs", "deadline", ScoreStatus.TIMEOUT, "no answer within 1 s"),
    ("says a number", "world_died", ScoreStatus.ERROR, "a value of type int as message 0"),
    ("says a number for text", "world_died", ScoreStatus.ERROR, "content of a value of type int in message 0"),
    ("speaks as the policy", "world_died", ScoreStatus.ERROR, "role 'assistant' in message 0"),
    ("returns nothing", "world_died", ScoreStatus.ERROR, "answer returned None, expected a WorldTurn"),
    ("pays a word", "world_died", ScoreStatus.ERROR, "reward = a value of type str, expected a number"),
    ("pays NaN", "world_died", ScoreStatus.ERROR, "reward = nan, expected a finite number"),
    ("says neither", "world_died", ScoreStatus.ERROR, "neither a message nor done"),
    ("tells no number", "world_died", ScoreStatus.ERROR, "facts['a'] = "),
    ("takes a name", "world_died", ScoreStatus.ERROR, "the name 'wait_s'"),
    ("needs memory", "world_died", ScoreStatus.ERROR, "MemoryError"),
]


def failing(kind: str, **options: object) -> dict[str, object]:
    return {"source": "dialogue:dialogue_worlds:Failing", "options": {"kind": kind, **options}}


@pytest.mark.parametrize(("kind", "stop", "status", "reason"), FAULTS)
def test_a_world_that_fails_costs_its_dialogues_their_score(
    kind: str, stop: str, status: ScoreStatus, reason: str
) -> None:
    limits = {"deadline_s": 1.0} if kind == "hangs" else {"memory_bytes": 1 << 32} if kind == "needs memory" else {}
    limited = UserCodeConfig.model_validate(limits)
    played = play(failing(kind), prompts=2, session=ScriptedSession(SHORT), user_code=limited)
    episodes = played.episodes
    assert set(episodes.status.tolist()) == {status}
    assert np.isnan(episodes.score).all(), "a missing value, never 0"
    assert (episodes.reward == 0).all()
    assert played.metrics[f"stops/{stop}"] == 1
    assert played.metrics["turns/mean"] == 2
    (note,) = played.notes
    assert reason in note, "told once, for all four"


@pytest.mark.parametrize(
    ("kind", "score"),
    [
        ("pays numpy", 2.0),
        ("prints much", 2.0),
        ("raises in close", 2.0),
        ("hangs in close", 2.0),
        ("forks and comes back twice", 2.0),
    ],
)
def test_a_world_that_is_only_odd_has_its_score(kind: str, score: float) -> None:
    episodes = play(failing(kind), prompts=2, session=ScriptedSession(SHORT)).episodes
    assert episodes.score.tolist() == [score] * 4
    assert episodes.terminated.all()


def test_a_world_cannot_answer_for_others() -> None:
    """What it writes into descriptors goes to its own dialogue, and is no turn."""
    played = play(failing("writes into channels"), prompts=2, session=ScriptedSession(SHORT))
    assert set(played.episodes.status.tolist()) <= {ScoreStatus.ERROR, ScoreStatus.SCORED}
    assert len(played.episodes) == 4


def test_a_dialogue_without_a_reward_has_no_score() -> None:
    played = play(failing("has no reward"), prompts=2, session=ScriptedSession(SHORT))
    assert set(played.episodes.status.tolist()) == {ScoreStatus.UNSCORABLE}
    assert played.metrics["stops/done"] == 1


def test_a_flood_is_cut_with_a_notice() -> None:
    played = play(
        {**failing("floods"), "message_tokens": 100, "turns": 2}, prompts=1, samples=1, session=ScriptedSession(SHORT)
    )
    flood = str(played.messages[0][-1]["content"])
    assert len(flood) <= 100
    assert "left out" in flood
    assert played.metrics["stops/turns"] == 1
    assert played.episodes.score.tolist() == [2.0], "cut by turns, with what was paid"
    assert played.episodes.truncated.all()


def test_half_a_surrogate_pair_is_replaced() -> None:
    played = play(failing("half a surrogate pair"), prompts=1, samples=1, session=ScriptedSession(SHORT))
    assert played.messages[0][-1]["content"] == "a?"


def test_what_a_world_started_dies_with_its_dialogue(tmp_path: Path) -> None:
    mark = tmp_path / "child"
    task, limits = failing("leaves a child", mark=str(mark)), UserCodeConfig(deadline_s=1.0)
    play(task, prompts=1, samples=1, session=ScriptedSession(SHORT), user_code=limits)
    limit = time.monotonic() + 300
    while Path(f"/proc/{mark.read_text()}").exists() and time.monotonic() < limit:
        time.sleep(0.02)
    assert not Path(f"/proc/{mark.read_text()}").exists()


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("begins with nothing", "begin gave no messages, and the row has no prompt"),
        ("ends at once", "before the first turn"),
    ],
)
def test_dialogues_that_cannot_begin_stop_the_step(kind: str, said: str) -> None:
    with pytest.raises(UserCodeError, match="none of 4 dialogues could begin") as error:
        play(failing(kind), prompts=2)
    assert said in str(error.value)


def test_a_run_of_failing_worlds_stops_with_the_words_of_its_budget() -> None:
    with pytest.raises(UserCodeError, match="no answer in 3 batches in a row has a score") as error:
        play(failing("raises"), prompts=2, steps=3, session=ScriptedSession(SHORT))
    assert "the world has a fault" in str(error.value)


def test_a_world_that_is_none_is_refused_with_all_faults() -> None:
    host = ProcessHost(WorldSpec(reference="dialogue_worlds:Silent", options={"size": 3}), UserCodeConfig())
    with pytest.raises(UserCodeError, match="has no method close") as error:
        host.describe()
    assert "task.options = {'size': 3}" in str(error.value)
    host.close()


def test_a_refused_world_is_imported_once(tmp_path: Path) -> None:
    """Several checks before a run ask for it; each import may take seconds of the user's."""
    loads, file = tmp_path / "loads", tmp_path / "none.py"
    file.write_text(f"from pathlib import Path\nwith Path({str(loads)!r}).open('a') as file:\n    file.write('x')\n")
    host = ProcessHost(WorldSpec(reference=f"{file}:World"), UserCodeConfig(confined=False))
    for _ in range(3):
        with pytest.raises(UserCodeError, match="has no 'World'"):
            host.describe()
    host.close()
    assert loads.read_text() == "x"


@pytest.mark.parametrize(
    ("task", "said"),
    [
        ({"source": "dialogue:nowhere.py:World"}, "no such file nowhere.py"),
        ({"source": "dialogue:World"}, "write path/to/file.py:name"),
        ({"source": "dialogue:dialogue_worlds:Counting", "turns": 0}, "greater than or equal to 1"),
        ({"source": "data.jsonl", "turns": 3}, "task.turns: for dialogues"),
        ({"source": "data.jsonl", "rows": "rows.jsonl"}, "task.rows: for dialogues"),
        ({"source": "data.jsonl", "tools": {}}, "task.tools.use is empty"),
        ({"source": "data.jsonl", "tools": {"use": ["hone:calculater"]}}, "did you mean hone:calculator"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(task: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        DialogueTaskConfig.model_validate(task)


@pytest.mark.parametrize(
    ("task", "own"),
    [
        ({"source": "dialogue:hone.text.games.guess:GuessingGame"}, True),
        ({"source": "openenv:http://127.0.0.1:8000"}, True),
        ({"source": "data.jsonl", "tools": {"use": ["hone:calculator"]}}, True),
        ({"source": "dialogue:dialogue_worlds:Counting"}, False),
        ({"source": "dialogue:hone.text.adapters.textarena:TextArenaWorld"}, False),
        ({"source": "data.jsonl", "tools": {"use": ["hone:calculator", "mcp:http://127.0.0.1:8000"]}}, False),
        ({"source": "data.jsonl", "tools": {"use": ["hone:calculator"], "reward": "dialogue_worlds:Counting"}}, False),
    ],
)
def test_only_code_of_hone_runs_in_threads_of_the_trainer(task: dict[str, object], own: bool) -> None:
    assert DialogueTaskConfig.model_validate(task).runs_in_threads is own


@pytest.mark.parametrize("confined", [True, False])
def test_worlds_cannot_write_into_the_run(tmp_path: Path, confined: bool) -> None:
    run = tmp_path / "run"
    run.mkdir()
    spec = WorldSpec(reference="dialogue_worlds:Failing", options={"kind": "writes a file", "mark": str(run / "mark")})
    host = ProcessHost(spec, UserCodeConfig(confined=confined))
    host.describe()
    held = confined and not host.warnings
    host.write_protect(run)
    number = host.number()
    try:
        host.begin(number, {}, 0).result()
        host.answer(number, PolicyTurn(text="a")).result()
        if held:
            with pytest.raises(WorldFaultError, match="Read-only file system"):
                host.answer(number, PolicyTurn(text="a")).result()
        else:
            host.answer(number, PolicyTurn(text="a")).result()
    finally:
        host.close()
    assert (run / "mark").exists() != held


def test_a_thread_that_answers_late_is_not_heard() -> None:
    spec = WorldSpec(reference="dialogue_worlds:Counting", options={"longest_s": 0.6})
    host = ThreadHost(spec, UserCodeConfig(deadline_s=0.02))
    numbers = [host.number() for _ in range(4)]
    begun = [host.begin(number, {"start": "a"}, number) for number in numbers]
    failed = [future.exception() for future in begun]
    late = [one for one in failed if isinstance(one, WorldFaultError)]
    assert late
    assert {one.status for one in late} == {ScoreStatus.TIMEOUT}
    limit, heard = time.monotonic() + 300, 0
    while heard < len(late) and time.monotonic() < limit:
        heard += host.late_answers()
        time.sleep(0.02)
    assert heard == len(late)
    host.close()


def test_a_lost_zygote_costs_the_open_dialogues_and_the_next_begin_another() -> None:
    host = ProcessHost(WorldSpec(reference="dialogue_worlds:Counting"), UserCodeConfig())
    host.describe()
    one = host.number()
    host.begin(one, {"start": "a"}, 0).result()
    assert host._child is not None
    os.kill(host._child.pid, 9)
    other = host.number()
    with pytest.raises(Exception, match="process"):
        for _ in range(50):
            host.begin(other, {"start": "a"}, 0).result()
            time.sleep(0.01)
            host.end(other)
            other = host.number()
            host.answer(one, None).result()  # type: ignore[arg-type]
    assert host.begin(host.number(), {"start": "b"}, 0).result().messages[0]["content"] == "b"
    host.close()
