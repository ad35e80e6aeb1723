"""Long work: what a listener hears, of nested work and after an error, and that evaluations and estimates tell."""

import threading

import numpy as np
import pytest

from hone.control.environments.make import GymConfig, evaluation_limit
from hone.control.environments.play import open_evaluation_envs, play_episodes
from hone.core.clock import LongWork, counted, listening, long_work
from hone.decide.estimators.terms import EstimatorTerms, bootstrap_interval
from hone.process.commands import CommandEnd, HoneCommand, run_commands

Heard = list[tuple[str, int, int | None, bool]]


def hear(heard: Heard, work: LongWork) -> None:
    heard.append((work.title, work.done, work.total, work.is_over))


def test_a_listener_hears_of_the_begin_of_every_item_and_of_the_end() -> None:
    heard: Heard = []
    with listening(lambda work: hear(heard, work)):
        assert list(counted("ab", "letters")) == ["a", "b"]
        assert list(counted(iter("a"), "letters")) == ["a"]
        assert list(counted(iter("a"), "letters", 5)) == ["a"]
    assert [one[1:] for one in heard[:4]] == [(0, 2, False), (1, 2, False), (2, 2, False), (2, 2, True)]
    assert [one[2] for one in heard[4:]] == [None] * 3 + [5] * 3
    assert list(counted("ab", "letters")) == ["a", "b"], "nobody listens any more"
    assert len(heard) == 10


def test_work_inside_of_other_work_only_says_that_the_outer_one_goes_on() -> None:
    heard: Heard = []
    with listening(lambda work: hear(heard, work)), long_work("outer", 2) as outer:
        with long_work("inner", 9) as inner:
            inner.advance(4)
        outer.advance()
    assert heard == [("outer", 0, 2, False), ("outer", 0, 2, False), ("outer", 1, 2, False), ("outer", 1, 2, True)]


def test_work_that_fails_or_is_left_is_over_once() -> None:
    heard: Heard = []
    with pytest.raises(ZeroDivisionError), listening(lambda work: hear(heard, work)):
        for item in counted([1, 0], "quotients"):
            assert 1 / item
    assert [one[3] for one in heard] == [False, False, True]
    heard.clear()
    with listening(lambda work: hear(heard, work)):
        for _ in counted(range(9), "rounds"):
            break
        assert heard[-1] == ("rounds", 0, 9, True)
        with long_work("next"):
            pass
    assert [one[0] for one in heard] == ["rounds", "rounds", "next", "next"]


def test_another_thread_has_no_listener_and_an_inner_listener_hears_its_own_work() -> None:
    heard: Heard = []
    inner: Heard = []
    with listening(lambda work: hear(heard, work)), long_work("outer"):
        thread = threading.Thread(target=lambda: list(counted("ab", "letters")))
        thread.start()
        thread.join()
        with listening(lambda work: hear(inner, work)):
            list(counted("a", "letters"))
    assert [one[0] for one in heard] == ["outer", "outer"]
    assert [one[1:] for one in inner] == [(0, 1, False), (1, 1, False), (1, 1, True)]


# ------------------------------------------------------------------------------------------------ who tells of itself


class EndsAtOnce:
    """Runs nothing: each command has ended when it is waited for."""

    slots = 1

    def __init__(self) -> None:
        self.names: list[str] = []

    def start(self, command: HoneCommand) -> None:
        self.names.append(command.name)

    def wait(self, timeout_s: float) -> list[CommandEnd]:
        del timeout_s
        return [CommandEnd(name=self.names.pop(), code=0, lines=())]

    def stop(self) -> None: ...

    def close(self) -> None: ...


def test_evaluations_runs_and_bootstraps_tell_how_far_they_are() -> None:
    heard: Heard = []
    env = GymConfig(id="CartPole-v1")
    envs = open_evaluation_envs(env, episodes=3)
    terms = EstimatorTerms(base=np.zeros(4), numerator=np.ones((4, 1)), denominator=np.ones((4, 1)))
    with listening(lambda work: hear(heard, work)):
        play_episodes(envs, lambda seen: np.zeros(len(seen), np.int64), seed=0, step_limit=evaluation_limit(env))
        run_commands([HoneCommand(name=name, arguments=()) for name in "ab"], EndsAtOnce())
        bootstrap_interval(terms, np.arange(4), level=0.9, draws=50)
    envs.close()
    ends = [(title, done, total) for title, done, total, is_over in heard if is_over]
    assert ends == [("episodes played", 3, 3), ("runs ended", 2, 2), ("parts of the bootstrap", 1, 1)]
    played = [done for title, done, _, _ in heard if title == "episodes played"]
    assert played == sorted(played)
    assert 1 in played or 2 in played, "episodes end one after another"
