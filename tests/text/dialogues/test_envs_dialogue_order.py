"""Order: whatever world answers first, and however many dialogues are open, the episodes are equal to the bit."""

from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from world_runs import Played, play

from hone.core.episodes import Episodes
from hone.text.tasks.conversation import ConversationLimits

COUNTING = "dialogue:dialogue_worlds:Counting"


def assert_same(one: Episodes, other: Episodes) -> None:
    for name, values in one.columns().items():
        assert np.array_equal(values, other.columns()[name]), name
    assert np.array_equal(one.transcript.tokens, other.transcript.tokens)
    assert np.array_equal(one.transcript.at, other.transcript.at)


def lead(**changes: object) -> Played:
    options = changes.pop("options", {})
    source = changes.pop("source", COUNTING)
    return play({"source": source, "options": options}, **{"prompts": 8, "samples": 2, **changes})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def straight() -> Played:
    return lead()


@examples(4)
@given(order=st.integers(0, 1000), slots=st.sampled_from([1, 2, 5, 64]))
def test_delays_and_slots_change_no_bit(straight: Played, order: int, slots: int) -> None:
    late = lead(options={"longest_s": 0.03}, order=order, limits=ConversationLimits(context=400, slots=slots))
    assert_same(straight.episodes, late.episodes)
    clocks = {"world/wait_s", "world/p95_s"}
    assert {k: v for k, v in straight.metrics.items() if k not in clocks} == {
        k: v for k, v in late.metrics.items() if k not in clocks
    }


def test_coroutines_answer_as_methods_do(straight: Played) -> None:
    assert_same(straight.episodes, lead(source="dialogue:dialogue_worlds:AsyncCounting").episodes)


def test_64_dialogues_wait_for_their_worlds_together(tmp_path: Path) -> None:
    """No world begins before all of them have been asked: who asked one after the other would wait for ever."""
    quick = play({"source": COUNTING}, prompts=32)
    options = {"folder": str(tmp_path), "count": 64}
    together = {"source": "dialogue:dialogue_worlds:Together", "options": options}
    slow = play(together, prompts=32)
    assert_same(quick.episodes, slow.episodes)
    assert len(list(tmp_path.iterdir())) == 64


def test_threads_and_processes_give_the_same_dialogues() -> None:
    with_rows = {"source": "dialogue:hone.text.games.guess:GuessingGame", "size": 4}
    one = play(with_rows, prompts=4, threads=False)
    other = play(with_rows, prompts=4, threads=True)
    assert_same(one.episodes, other.episodes)
    assert one.metrics["turns/mean"] == other.metrics["turns/mean"]


def test_a_seed_belongs_to_a_row_and_a_sample() -> None:
    """Equal requests face equal worlds in every run; the samples of a row differ in their seeds."""
    one, other = lead(), lead()
    assert_same(one.episodes, other.episodes)
    heard = {str(messages[1]["content"])[0] for messages in one.messages if len(messages) > 1}
    assert heard == {"a", "b"}
