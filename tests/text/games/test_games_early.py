"""The maze of doors and the frozen lake: rules, questions that are held out, demonstrations, forks and hindsight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.dialogue import DialogueWorld, PolicyTurn
from hone.core.errors import DataError
from hone.text.games import doors, grid
from hone.text.games.doors import LETTERS, PLACES, DoorMaze, doors_of, split_questions
from hone.text.games.grid import LakeWalk, imitation_rows, lake_maps


def played(world: DialogueWorld, row: dict[str, object], turns: list[str]) -> tuple[list[tuple[str, str]], float, bool]:
    """Turns as (speaker, text), the reward of the last one, and whether the world ended the dialogue."""
    assert not world.begin(row, 0).messages
    said: list[tuple[str, str]] = []
    reward, done = 0.0, False
    for number, text in enumerate(turns):
        assert not done
        heard = world.answer(PolicyTurn(text=text, turn=number))
        said += [("policy", text), ("environment", str(heard.messages[0]["content"]))]
        reward, done = float(heard.reward or 0.0), heard.done
    world.close()
    return said, reward, done


def test_doors_lead_from_each_place_to_eight_others() -> None:
    table = doors_of(3)
    assert len(table) == PLACES == 40
    for here, there in enumerate(table):
        assert len(set(there)) == 8 and here not in there
    assert doors_of(4) != table


def test_demonstrations_and_held_out_questions_are_all_320_once_and_every_answer_is_right() -> None:
    shown, held = split_questions(3, demonstrated=80, seed=1)
    assert (len(shown), len(held), len({one.text for one in [*shown, *held]})) == (80, 240, 320)
    for one in [*shown, *held[:40]]:
        turns, reward, done = played(DoorMaze(), one.row(), [one.door])
        assert (reward, done) == (1.0, True)
        assert turns[-1] == ("environment", one.row()["wanted"])
        assert doors.goal_of(one.text, turns) == one.text


@given(place=st.integers(0, PLACES - 1), door=st.sampled_from(LETTERS), goal=st.integers(0, PLACES - 1))
def test_hindsight_asks_what_the_door_answered(place: int, door: str, goal: int) -> None:
    row = {"start": place, "goal": goal, "maze": 5}
    turns, reward, _ = played(DoorMaze(), row, [f"{door}."])
    question = doors.goal_of(f"{place:02}>{goal:02}:", turns)
    assert question is not None
    again, paid, _ = played(DoorMaze(), row | {"goal": int(question[3:5])}, [f"{door}."])
    assert (again, paid) == (turns, 1.0)
    assert reward == float(question == f"{place:02}>{goal:02}:")


def test_what_names_no_door_is_a_move_and_has_no_hindsight() -> None:
    turns, reward, done = played(DoorMaze(), {"start": 1, "goal": 2, "maze": 0}, ["ab."])
    assert (turns[-1], reward, done) == (("environment", "?\n"), 0.0, True)
    assert doors.goal_of("01>02:", turns) is None
    with pytest.raises(DataError, match=r"goal = 40 is none of the places 0 to 39"):
        DoorMaze().begin({"start": 1, "goal": 40}, 0)


def test_what_stands_before_the_last_word_is_thought() -> None:
    shown, _ = split_questions(3, demonstrated=1, seed=1)
    row = shown[0].row()
    assert played(DoorMaze(), row, [f"a05 c31 {shown[0].door}"])[1:] == (1.0, True)
    assert played(LakeWalk(), {"holes": [1], "start": 0, "goal": 4}, ["u00 d."])[1:] == (1.0, True)


def test_worlds_bring_their_rows() -> None:
    assert len(DoorMaze.rows(1000, 1)) == 320 and DoorMaze.rows(5, 1) == DoorMaze.rows(9, 1)[:5]
    assert [row["id"] for row in LakeWalk.rows(3, 2)] == [one.text for one in lake_maps(3, seed=2)]


def test_a_fork_goes_its_own_way() -> None:
    world = DoorMaze()
    world.begin({"start": 1, "goal": 2, "maze": 0, "moves": 3}, 0)
    tried = {letter: world.fork().answer(PolicyTurn(text=f"{letter}.")).messages for letter in LETTERS}
    assert len({str(messages) for messages in tried.values()}) == 8
    assert (world.place, world.opened) == (1, 0)
    walk = LakeWalk()
    walk.begin(lake_maps(1, seed=1)[0].row(), 0)
    for move in grid.MOVES:
        walk.fork().answer(PolicyTurn(text=f"{move}."))
    assert walk.moved == 0


def test_coverage_counts_questions_whose_right_answer_is_known() -> None:
    _, held = split_questions(3, demonstrated=80, seed=1)
    known = {(one.text, one.door) for one in held[:60]} | {(held[70].text, "?")}
    assert doors.coverage(held, known) == 60 / 240
    assert doors.coverage([], known) == 0.0
    assert doors.reflection("", [("c.", "31\n"), ("?", "?\n"), ("a.", "05\n")], "c.") == "a05 c31 "


def test_maps_have_a_shortest_way_that_reaches_the_goal_and_reads_as_demonstrated() -> None:
    maps = lake_maps(40, seed=2)
    assert lake_maps(10, seed=2) == maps[:10]
    rows = imitation_rows(maps)
    for one in maps:
        turns, reward, done = played(LakeWalk(), one.row(), [f"{move}." for move in one.way()])
        assert (reward, done) == (1.0, True)
        assert grid.goal_of(one.text, turns) == one.text
        assert all(grid.step_to(*pair) not in one.holes for pair in _walked(one))
        own = [row for row in rows if str(row["prompt"]).startswith(one.text)]
        text = one.text + "".join(said for _, said in turns)
        assert text.startswith(f"{own[-1]['prompt']}{own[-1]['completion']}")


def _walked(one: grid.LakeMap) -> list[tuple[int, str]]:
    place, found = one.start, []
    for move in one.way():
        found.append((place, move))
        place = grid.step_to(place, move)
    return found


def test_a_hole_and_the_tenth_move_end_a_walk_without_a_reward() -> None:
    row = {"holes": [1, 9, 10, 11], "start": 0, "goal": 15}
    fell, reward, done = played(LakeWalk(), row, ["r."])
    assert (fell[-1][1], reward, done) == ("01#", 0.0, True)
    assert grid.goal_of("01 09 10 11|00>15:", fell) is None
    stayed, reward, done = played(LakeWalk(), row, ["u."] * 10)
    assert (reward, done) == (0.0, True)
    assert grid.goal_of("01 09 10 11|00>15:", stayed) is None
    lost, _, _ = played(LakeWalk(), row, ["d.", "x."])
    assert grid.goal_of("01 09 10 11|00>15:", lost) == "01 09 10 11|00>04:"
    assert (len(fell), len(stayed)) == (2, 20)
