"""Reasons of an end, tools, and the counts of both."""

import json
from pathlib import Path

import numpy as np
import pytest
from world_runs import Sayings, play

from hone.core.dialogue import STOP_REASONS
from hone.text.tasks.conversation import ConversationLimits

COUNTING = {"source": "dialogue:dialogue_worlds:Counting", "options": {"turns": 3}}


@pytest.mark.parametrize(
    ("task", "limits", "reason", "turns", "score"),
    [
        (COUNTING, {}, "done", 3, 6.0),
        ({**COUNTING, "turns": 2}, {}, "turns", 2, 4.0),
        (COUNTING, {"context": 14}, "context", 1, 2.0),
        (COUNTING, {"max_tokens": 2}, "max_tokens", 1, 0.0),
    ],
)
def test_a_limit_cuts_a_dialogue_with_what_was_paid(task, limits, reason: str, turns: int, score: float) -> None:
    context, most = limits.get("context", 400), limits.get("max_tokens", 8)
    played = play(
        task, prompts=2, max_tokens=most, limits=ConversationLimits(context=context), session=Sayings(["aab"])
    )
    episodes = played.episodes
    assert {name: played.metrics[f"stops/{name}"] for name in STOP_REASONS} == {
        name: float(name == reason) for name in STOP_REASONS
    }
    assert [STOP_REASONS[place] for place in episodes.stop] == [reason] * 4
    assert played.metrics["turns/mean"] == turns
    assert episodes.score.tolist() == [score] * 4
    assert episodes.terminated.all() == (reason == "done")
    assert episodes.truncated.all() == (reason != "done")


def test_rewards_stand_at_the_last_token_of_their_turns() -> None:
    episodes = play(COUNTING, prompts=1, samples=1, session=Sayings(["aab", "a", "b"])).episodes
    assert episodes.reward.tolist() == [0, 0, 0, 2, 0, 1, 0, 0]
    seen = episodes.transcript
    assert seen.tokens[seen.at].tolist() == episodes.chosen.tolist()


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps({"prompt": f"{k}?"}) + "\n" for k in range(4)))
    return {"source": "asked.jsonl"}


def tools(*use: str, **settings: object) -> dict[str, object]:
    return {"tools": {"use": [f"dialogue_worlds:{name}" for name in use], "format": "bracket", **settings}}


def by_length(tmp_path: Path) -> dict[str, object]:
    (tmp_path / "rewards.py").write_text(
        "def length(completions, **columns):\n    return [len(x) for x in completions]\n"
    )
    return {"functions": [{"use": "rewards.py:length"}, {"kind": "world"}]}


def test_prompts_with_tools_end_with_the_first_turn_without_a_call(asked, tmp_path: Path) -> None:
    said = Sayings(['[double {"number": 21}]', "42!"])
    played = play({**asked, **tools("double")}, max_tokens=40, session=said, rewards=by_length(tmp_path))
    assert [str(message["content"]) for message in played.messages[0]] == ['[double {"number": 21}]', "42", "42!"]
    assert played.messages[0][1]["role"] == "tool"
    assert played.metrics["tools/called"] == 1
    assert played.metrics["stops/done"] == 1
    assert played.episodes.score.tolist() == [3.0] * 8, "the usual reward function, of the last answer"


def test_answers_that_a_limit_cut_before_any_reply_are_counted_as_cut(asked, tmp_path: Path) -> None:
    """Of 64 dialogues with tools 58 are cut in their first turn: 58 of 64 are not `done`."""

    class Cut(Sayings):
        def next_completion(self, *args, **options):
            first = self.queue and self.queue[0]
            self.texts = ["42!"] if first and first[0].id[-1] == "0" and first[1] < 6 else ["a" * 40]
            return super().next_completion(*args, **options)

    played = play(
        {**asked, **tools("double")}, prompts=2, samples=32, max_tokens=20, session=Cut([]), rewards=by_length(tmp_path)
    )
    stops = {name: played.metrics[f"stops/{name}"] for name in STOP_REASONS}
    assert stops == {name: {"done": 6 / 64, "max_tokens": 58 / 64}.get(name, 0.0) for name in STOP_REASONS}
    assert played.metrics["turns/mean"] == 1
    assert np.bincount(played.episodes.stop, minlength=4)[[0, 3]].tolist() == [6, 58]


def test_a_call_that_cannot_be_read_is_told_and_three_in_a_row_end_the_dialogue(asked, tmp_path: Path) -> None:
    once = play(
        {**asked, **tools("double")}, max_tokens=40, prompts=2, rewards=by_length(tmp_path),
        session=Sayings(["[double {]", '[double {"number": "x"}]', '[double {"number": 1}]', "[half 3]", "2"]),
    )  # fmt: skip
    heard = [str(message["content"]) for message in once.messages[0] if message["role"] == "tool"]
    assert ["invalid JSON" in heard[0], "number" in heard[1], "half" in heard[3]] == [True] * 3
    assert once.metrics["tools/invalid"] == 1
    assert once.metrics["stops/done"] == 1
    assert set(once.calls) == {1}, "those that could not be read are none"
    never = play(
        {**asked, **tools("double")}, max_tokens=40, prompts=2, rewards=by_length(tmp_path), session=Sayings(["[half]"])
    )
    assert never.metrics["stops/invalid_calls"] == 1
    assert never.metrics["turns/mean"] == 3
    assert never.metrics["tools/called"] == 0
    assert never.episodes.scored.all(), "truncated, with whatever reward there is"


def test_equal_calls_are_counted_and_results_cut(asked, tmp_path: Path) -> None:
    task = {**asked, **tools("shout"), "message_tokens": 50, "turns": 11}
    limits = ConversationLimits(context=2000)
    played = play(task, max_tokens=20, prompts=1, limits=limits, session=Sayings(["[ab]"]), rewards=by_length(tmp_path))
    assert played.metrics["tools/repeats"] == 1
    assert played.metrics["stops/turns"] == 1
    assert set(played.calls) == {11}
    result = str(played.messages[0][1]["content"])
    assert len(result) <= 50
    assert "left out" in result


def test_tools_that_nobody_calls_are_told_in_the_log(asked, tmp_path: Path) -> None:
    played = play(
        {**asked, **tools("double")}, prompts=4, samples=50, session=Sayings(["no"]), rewards=by_length(tmp_path)
    )
    assert any("tools were called in 0.0% of the last dialogues" in note for note in played.notes)


def test_a_world_beside_tools_hears_the_turns_without_calls() -> None:
    said = Sayings(['[double {"number": 4}]', "aa", "a"])
    task = {**COUNTING, "options": {"turns": 2}, **tools("double")}
    # The world counts its own turns, and the policy's are numbered through.
    played = play({**task, "source": "dialogue:dialogue_worlds:Lenient"}, max_tokens=40, session=said)
    assert played.episodes.score.tolist() == [3.0] * 8
    assert [message["role"] for message in played.messages[0]] == [
        "assistant", "tool", "assistant", "user", "assistant", "user",
    ]  # fmt: skip
