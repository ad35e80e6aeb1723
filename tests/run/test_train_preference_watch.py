"""The sentence about chosen answers that fall: when it is said, once, and what a resume makes of it."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.run.reporter import LearningWatch, PreferenceWatch, StepSignals

SIGNALS = StepSignals(advantage_is_zero=False, timeouts=0.0)


def step_of(nats: float, accuracy: float) -> dict[str, float]:
    return {"preference/chosen_nats": nats, "preference/accuracy": accuracy, "policy/grad_norm": 1.0}


def said(watch: PreferenceWatch, nats: list[float], accuracy: list[float]) -> list[str]:
    told = [watch.see(step, step_of(*one)) for step, one in enumerate(zip(nats, accuracy, strict=True), start=1)]
    return [line for lines in told for line in lines]


@pytest.mark.parametrize(
    ("nats", "accuracy", "expected"),
    [
        (-0.5, 0.01, True),  # falls by half a nat a step, while the accuracy rises
        (0.5, 0.01, False),  # rises
        (-0.5, 0.0, False),  # falls, but nothing is learnt
        (-0.001, 0.01, False),  # hardly falls
    ],
)
def test_it_is_said_once_where_chosen_answers_fall_and_accuracy_rises(nats, accuracy, expected) -> None:
    watch = PreferenceWatch()
    lines = said(watch, [nats * step for step in range(40)], [0.5 + accuracy * step for step in range(40)])
    assert len(lines) == int(expected)
    assert len(watch.summary()) == int(expected)
    if expected:
        assert lines[0].startswith("step ")
        assert "nats less likely while the accuracy on pairs rose from 0.52 to" in lines[0]
        assert watch.summary()[0].startswith("Chosen answers became 1")


def test_the_numbers_by_hand() -> None:
    watch = PreferenceWatch()
    lines = said(watch, [0.0] * 5 + [-4.0, -8.0], [0.5] * 5 + [0.9, 0.9])
    assert lines == [lines[0]]
    assert lines[0].startswith("step 7: chosen answers became 2.2 nats less likely")
    assert "rose from 0.50 to 0.64:" in lines[0]  # 0.8 (0.8 x 0.5 + 0.2 x 0.9) + 0.2 x 0.9


def test_other_runs_are_not_watched() -> None:
    watch = PreferenceWatch()
    assert watch.see(1, {"policy/loss": 1.0}) == []
    assert watch.steps == 0
    assert watch.summary() == []


@given(
    figures=st.lists(st.tuples(st.floats(-50, 5), st.floats(0, 1)), min_size=2, max_size=20), stop=st.integers(1, 19)
)
def test_a_resume_says_what_the_straight_run_says(figures: list[tuple[float, float]], stop: int) -> None:
    straight, first, resumed = LearningWatch(), LearningWatch(), LearningWatch()
    told = [straight.see(step, step_of(*one), SIGNALS) for step, one in enumerate(figures, start=1)]
    before = [first.see(step, step_of(*one), SIGNALS) for step, one in enumerate(figures[:stop], start=1)]
    resumed.restore(first.state())
    after = [resumed.see(step, step_of(*one), SIGNALS) for step, one in enumerate(figures[stop:], start=stop + 1)]
    assert before + after == told
    assert resumed.summary() == straight.summary()
    assert all(math.isfinite(value) for value in (resumed.preference.nats, resumed.preference.accuracy))
