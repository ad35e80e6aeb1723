"""Values and ranges of a sweep, and the settings that are proposed for them."""

import itertools
import math

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.core.errors import ConfigError
from hone.evaluate.sweep.search import OptunaProposer, TrialOutcome, kept_count, make_proposer, rung_steps
from hone.evaluate.sweep.space import OptunaSearch, grid, one_at_a_time, swept_keys, trial_label

RATES = {"learner": {"lr": {"low": 1e-5, "high": 1e-1, "log": True}, "epochs": [1, 2, 4]}}


def test_a_grid_has_every_combination_and_the_last_key_turns_fastest() -> None:
    keys = swept_keys({"learner": {"lr": [0.1, 0.2]}, "algorithm.clip": [1, 2, 3]})
    assert [one.key for one in keys] == ["learner.lr", "algorithm.clip"]
    combinations = grid(keys)
    assert len(combinations) == 6
    assert combinations[1] == {"learner.lr": 0.1, "algorithm.clip": 2}
    assert len(one_at_a_time(keys)) == 4  # 2 + 3 values, the first of each together


def test_faults_of_a_space_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        swept_keys({
            "a": 3, "b": [], "c": [1, 1], "d": {"low": 2, "high": 1}, "e": {"low": 0, "high": 1, "log": True},
            "f": {"low": 1, "hihg": 2}, "g": {"low": 0.5, "high": 2, "whole": True}, "h.i": [1], "h": {"i": [2]},
        })  # fmt: skip
    told = "\n".join(caught.value.messages)
    for key in ("over.a must be", "over.b must list", "over.c must list", "over.d: low", "over.e: a log", "over.f.high",
                "over.g: a range of whole", "over.h.i is given twice"):  # fmt: skip
        assert key in told, told
    with pytest.raises(ConfigError, match=r"over\.learner\.lr is a range, and a grid needs"):
        grid(swept_keys(RATES))


def test_labels_are_short_and_distinct() -> None:
    assert trial_label(3, {"learner.lr": 1e-4, "learner.epochs": 4}) == "3: lr=0.0001 epochs=4"
    assert trial_label(3, {"actor.lr": 1.0, "critic.lr": 2.0}) == "3: actor.lr=1 critic.lr=2"


@given(st.integers(1, 50), st.integers(2, 5), st.integers(2, 500))
def test_rungs_grow_by_the_factor_and_end_with_the_run(first: int, factor: int, steps: int) -> None:
    rungs = rung_steps(steps, first=first, factor=factor)
    assert rungs[-1] == steps
    assert list(rungs) == sorted(set(rungs))
    assert all(later == factor * earlier for earlier, later in itertools.pairwise(rungs[:-1]))


def test_rungs_and_survivors_by_hand() -> None:
    assert rung_steps(90, first=10, factor=3) == (10, 30, 90)
    assert rung_steps(100, first=10, factor=3) == (10, 30, 90, 100)
    assert [kept_count(count, 3) for count in (9, 3, 1, 4)] == [3, 1, 1, 2]


def outcomes(proposer: OptunaProposer, count: int) -> list[TrialOutcome]:
    """Trials of a search in which the best learning rate is 1e-3 and the fewest epochs are best."""
    history: list[TrialOutcome] = []
    while len(history) < count and (proposed := proposer.propose(history)):
        for one in proposed:
            rate, epochs = float(str(one["learner.lr"])), float(str(one["learner.epochs"]))
            score = -((math.log10(rate) + 3) ** 2) - epochs
            stopped = score < -4
            scores = {1: score} if stopped else {1: score, 9: score}
            history.append(TrialOutcome(settings=one, scores=scores, complete=not stopped))
    return history


def test_optuna_proposes_the_same_after_an_interruption_and_finds_the_best_region() -> None:
    proposer = OptunaProposer(keys=swept_keys(RATES), search=OptunaSearch(trials=24, batch=4, startup_trials=8))
    history = outcomes(proposer, 24)
    assert len(history) == 24 and len({str(one.settings) for one in history}) == 24
    assert proposer.propose(history) == []
    assert [one.settings for one in history[8:12]] == proposer.propose(history[:8])
    values = [max(one.scores.values()) for one in history]
    assert sum(values[12:]) / 12 > sum(values[:12]) / 12
    best = max(history, key=lambda one: max(one.scores.values()))
    assert best.settings["learner.epochs"] == 1


def test_failed_trials_are_told_and_a_small_space_ends_early() -> None:
    proposer = make_proposer(OptunaSearch(trials=10, batch=4), swept_keys({"a.b": [1, [2, 3], "c"]}))
    first = proposer.propose([])
    assert sorted(map(str, (one["a.b"] for one in first))) == ["1", "[2, 3]", "c"]
    told = [TrialOutcome(settings=one, scores={1: math.nan}, complete=False) for one in first]
    assert proposer.propose(told) == []


@examples(10)
@given(st.integers(0, 2**31), st.integers(1, 6))
def test_draws_stay_in_their_range(seed: int, batch: int) -> None:
    keys = swept_keys({"a": {"low": 2, "high": 1000, "whole": True, "log": True}})
    search = OptunaSearch(trials=batch, batch=batch, seed=seed)
    for one in OptunaProposer(keys=keys, search=search).propose([]):
        assert isinstance(one["a"], int) and 2 <= one["a"] <= 1000
