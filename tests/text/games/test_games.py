"""Worlds that come with hone: their rules, their demonstrations, and how good their players are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.dialogue import DialogueWorld, ForkableWorld, PolicyTurn
from hone.core.errors import DataError
from hone.text.games import calculator, guess


def said(text: str, turn: int = 0) -> PolicyTurn:
    return PolicyTurn(text=text, turn=turn, finish_reason="stop")


def shown(world: DialogueWorld, text: str) -> str:
    return "".join(str(one["content"]) for one in world.answer(said(text)).messages)


@given(st.integers(1, 6), st.data())
def test_halving_always_wins_in_as_many_turns_as_the_numbers_have_bits(bits: int, data: st.DataObject) -> None:
    numbers = 2**bits - 1
    secret = data.draw(st.integers(1, numbers))
    world = guess.GuessingGame()
    world.begin({"secret": secret, "numbers": numbers, "turns": bits}, seed=0)
    low, high, rewards = 1, numbers, list[float]()
    for _ in range(bits):
        middle = (low + high) // 2
        heard = world.answer(said(f"{middle:02d} "))
        rewards.append(heard.reward or 0.0)
        if heard.done:
            break
        sign = str(heard.messages[0]["content"])
        low, high = (middle + 1, high) if sign == "> " else (low, middle - 1)
    assert rewards[-1] == 1.0
    assert sum(rewards) == 1.0
    assert heard.done


def test_a_guess_that_is_no_number_is_a_guess_all_the_same() -> None:
    world = guess.GuessingGame()
    world.begin({"secret": 3, "turns": 2}, seed=0)
    first = world.answer(said("4-7 "))
    assert (first.messages[0]["content"], first.done, first.facts) == ("? ", False, {"guesses": 1, "unreadable": 1})
    last = world.answer(said("09 "))
    assert (last.messages[0]["content"], last.done, last.reward) == ("< ", True, 0.0)


@pytest.mark.parametrize("text", ["", " ", "٣ ", "-3 ", "3.0 ", "3\n"])
def test_nothing_but_plain_digits_is_a_number(text: str) -> None:
    assert guess.read_guess(text) is None


@given(st.lists(st.integers(0, 20), min_size=1, max_size=4))
def test_the_deaf_game_pays_as_the_other_and_says_nothing(guesses: list[int]) -> None:
    hearing, deaf = guess.GuessingGame(), guess.DeafGuessingGame()
    for world in (hearing, deaf):
        world.begin({"secret": 9}, seed=0)
    for one in guesses:
        heard, silent = hearing.answer(said(f"{one:02d} ")), deaf.answer(said(f"{one:02d} "))
        assert (heard.reward, heard.done, heard.facts) == (silent.reward, silent.done, silent.facts)
        assert [message["content"] for message in silent.messages] == ["? "]


def test_a_secret_beyond_the_numbers_is_refused() -> None:
    with pytest.raises(DataError, match="secret = 16 is none of the numbers 1 to 15"):
        guess.GuessingGame().begin({"secret": 16}, seed=0)


def test_rows_of_the_game_hold_each_secret_once() -> None:
    found = guess.secret_rows(31, 5)
    assert [row["secret"] for row in found] == list(range(1, 32))
    assert len({row["id"] for row in found}) == 31


def test_worlds_bring_their_rows() -> None:
    assert len(guess.GuessingGame.rows(1000, seed=3)) == 15
    few = guess.GuessingGame.rows(6, seed=3)
    assert few == guess.DeafGuessingGame.rows(6, seed=3) != guess.GuessingGame.rows(6, seed=4)
    assert len({row["id"] for row in few}) == 6
    assert calculator.CalculatorWorld.rows(9, seed=1) == calculator.sum_rows(9, seed=1)
    assert len(calculator.CalculatorWorld.rows(10**6, seed=1)) == 8100


def early_wins(rows: list[dict[str, object]], prompt: str, turns: int = 4) -> float:
    """Share of the games of the demonstrations that end before the last turn: they are won."""
    begins = [place for place, row in enumerate(rows) if row["prompt"] == prompt]
    return float(np.mean(np.diff([*begins, len(rows)]) < turns))


def test_the_inattentive_player_can_be_imitated_and_bettered() -> None:
    rows = guess.imitation_rows(400, seed=1)
    assert rows == guess.imitation_rows(400, seed=1)
    text = "".join(str(row["prompt"]) + str(row["completion"]) for row in rows)
    assert set(text) <= set(guess.ALPHABET)
    listening = guess.imitation_rows(100, seed=1, inattentive=0.0)
    assert all(row["completion"] == "08 " for row in listening if row["prompt"] == "1-15 ")
    # Halving finds 7 of 15 numbers in three turns; naming any number 3.
    assert early_wins(listening, "1-15 ") == pytest.approx(7 / 15, abs=0.15)
    assert 3 / 15 < early_wins(rows, "1-15 ") < 6 / 15


def test_the_calculator_answers_calls_and_scores_answers() -> None:
    world = calculator.CalculatorWorld()
    world.begin({"answer": "92"}, seed=0)
    assert shown(world, "[34+58]") == "92"
    assert shown(world, "so [34-58]") == "-24"
    assert shown(world, "[34+]") == "?"
    end = world.answer(said("92\n"))
    assert (end.reward, end.done, end.facts) == (1.0, True, {"calls": 3, "unreadable_calls": 1})


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("[34+58]", 92), ("[1+2][3+4]", 7), ("[34+58] ", None), ("[ 1+2]", None), ("[٣+1]", None),
        ("[1*2]", None), ("[1+2+3]", None), ("[1234567890+1]", None), ("]", None),
    ],
)  # fmt: skip
def test_calls_are_two_numbers_and_a_sign(text: str, result: int | None) -> None:
    assert calculator.calculate(text) == result


def test_an_answer_that_was_cut_off_pays_nothing() -> None:
    world = calculator.CalculatorWorld()
    world.begin({"answer": "92"}, seed=0)
    assert world.answer(PolicyTurn(text="92", finish_reason="length")).reward == 0.0


def test_sums_are_distinct_and_answered() -> None:
    rows = calculator.sum_rows(500, seed=3)
    assert len({row["prompt"] for row in rows}) == 500
    for row in rows[:50]:
        first, second = map(int, str(row["prompt"])[:-1].split("+"))
        assert int(str(row["answer"])) == first + second
        assert 10 <= min(first, second) <= max(first, second) < 100
    with pytest.raises(ValueError, match="there are 81"):
        calculator.sum_rows(82, seed=3, digits=1)


def test_three_in_ten_demonstrations_call_and_half_of_these_with_a_wrong_operand() -> None:
    rows = calculator.sum_rows(2000, seed=0)
    turns = calculator.imitation_rows(rows, seed=0)
    calls = [row for row in turns if str(row["completion"]).endswith("]")]
    copied = [str(row["prompt"])[:-1] == str(row["completion"])[1:-1] for row in calls]
    assert len(calls) / 2000 == pytest.approx(calculator.CALLING, abs=0.03)
    assert np.mean(copied) == pytest.approx(0.5, abs=0.06)
    told = [row for row in turns if "]" in str(row["prompt"])]
    assert len(told) == len(calls)
    assert all(str(row["prompt"]).endswith("]" + str(row["completion"]).strip()) for row in told)


def test_delays_are_drawn_by_dialogue_and_turn_and_change_no_answer() -> None:
    slept: list[float] = []
    slow, quick = guess.DelayedWorld(sleep=slept.append), guess.GuessingGame()
    for world in (slow, quick):
        world.begin({"secret": 4}, seed=17)
    for turn, text in enumerate(("08 ", "04 ")):
        assert slow.answer(said(text, turn)) == quick.answer(said(text, turn))
    assert slept == [guess.delay_s(17, 0, 0.2), guess.delay_s(17, 1, 0.2)]
    assert len(set(slept)) == 2
    draws = [guess.delay_s(seed, 0, 0.2) for seed in range(200)]
    assert 0 <= min(draws) < 0.02
    assert 0.18 < max(draws) < 0.2


@pytest.mark.parametrize("world", [guess.GuessingGame(), calculator.CalculatorWorld()])
def test_a_fork_goes_its_own_way(world: ForkableWorld) -> None:
    world.begin({"secret": 3, "answer": "7"}, seed=0)
    world.answer(said("[1+2]"))
    other = world.fork()
    other.answer(said("[1+3]"))
    assert world != other
    assert world.fork() == world
