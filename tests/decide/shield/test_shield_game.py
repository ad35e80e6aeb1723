"""Safety games: the region is the one that a search over all plays finds, and a play that loses is a real play."""

from functools import cache

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.decide.shield.game import NEVER, SafetyGame


@st.composite
def _games(draw: st.DrawFn) -> SafetyGame:
    states, actions, disturbances = draw(st.integers(1, 7)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    cells = st.integers(0, states)
    size = actions * disturbances * states
    successors = np.array(draw(st.lists(cells, min_size=size, max_size=size)), np.int32)
    safe = np.array(draw(st.lists(st.booleans(), min_size=states, max_size=states)))
    return SafetyGame(successors=successors.reshape(actions, disturbances, states), safe=safe)


def _survives(game: SafetyGame) -> list[bool]:
    """States from which the player survives as many steps as there are states, by recursion over all plays."""
    actions, disturbances, states = game.successors.shape

    @cache
    def lasts(state: int, steps: int) -> bool:
        if state == states or not game.safe[state]:
            return False
        return steps == 0 or any(
            all(lasts(int(game.successors[action, other, state]), steps - 1) for other in range(disturbances))
            for action in range(actions)
        )

    return [lasts(state, states + 1) for state in range(states)]


@examples(150)
@given(_games())
def test_the_region_is_that_of_a_search_over_all_plays(game: SafetyGame) -> None:
    solved = game.winning_region()
    assert solved.winning.tolist() == _survives(game)
    assert (solved.allowed.any(axis=1) == solved.winning).all()  # from every safe state a safe action exists
    assert ((solved.rank == NEVER) == solved.winning).all()
    assert ((solved.rank == 0) == ~game.safe).all()
    assert (game.stays_inside(solved.winning).T[solved.winning] == solved.allowed[solved.winning]).all()


@examples(80)
@given(_games())
def test_a_play_from_a_lost_state_follows_the_game_and_ends_unsafe_after_its_rank(game: SafetyGame) -> None:
    solved = game.winning_region()
    for start in np.flatnonzero(~solved.winning):
        play = game.losing_play(solved.rank, int(start))
        last = play.states[-1]
        assert last == len(game.safe) or not game.safe[last]
        assert len(play.actions) <= max(solved.rank[start], 1)
        for here, action, other, there in zip(
            play.states[:-1], play.actions, play.disturbances, play.states[1:], strict=True
        ):
            assert game.successors[action, other, here] == there


@examples(60)
@given(_games(), st.data())
def test_a_region_without_faults_is_safe_forever(game: SafetyGame, data: st.DataObject) -> None:
    region = np.array(data.draw(st.lists(st.booleans(), min_size=len(game.safe), max_size=len(game.safe))))
    fallback = data.draw(st.integers(0, len(game.successors) - 1))
    if not len(game.region_faults(region, fallback=fallback)):
        assert (game.winning_region().winning | ~region).all()


def test_a_game_by_hand() -> None:
    # 0 -> 1 by the adversary's second move; 1 has an action to itself; 2 is unsafe.
    successors = np.array([[[0, 1, 2], [1, 1, 2]], [[2, 2, 2], [0, 2, 2]]], np.int32)
    solved = SafetyGame(successors=successors, safe=np.array([True, True, False])).winning_region()
    assert solved.winning.tolist() == [True, True, False]
    assert solved.allowed.tolist() == [[True, False], [True, False], [False, False]]
    assert solved.rank.tolist() == [NEVER, NEVER, 0]


def test_an_empty_region_is_found_and_ranks_count_steps() -> None:
    chain = np.array([[[1, 2, 3]]], np.int32)  # 3 is outside
    solved = SafetyGame(successors=chain, safe=np.ones(3, bool)).winning_region()
    assert solved.rank.tolist() == [3, 2, 1]
    assert not solved.winning.any()
    assert SafetyGame(successors=chain, safe=np.ones(3, bool)).losing_play(solved.rank, 0).states == (0, 1, 2, 3)
    assert pytest.approx(solved.iterations) == 4
