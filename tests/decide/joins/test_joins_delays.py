"""Delay curve and censoring weights: values by hand, an independent slow version, unbiasedness."""

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.core.decisions import DecisionRecord
from hone.core.errors import DataError
from hone.core.random import generator
from hone.decide.joins.join import build_view
from hone.decide.joins.view import JoinConfig, delay_curve
from support.decision_records import decision, outcome

NONE = float("nan")


def test_a_curve_worked_out_by_hand() -> None:
    # Delays 1, 3, 3 seen; two without an outcome, of ages 2 and 5. At 1: 1 of 5. At 3: 2 of the 3 still waiting.
    curve = delay_curve(np.array([1.0, 3.0, 3.0, NONE, NONE]), np.array([5.0, 5.0, 5.0, 2.0, 5.0]))
    assert curve.delay_s.tolist() == [1.0, 3.0]
    assert curve.arrived == pytest.approx([0.2, 1 - 0.8 / 3])
    assert curve.at(np.array([0.0, 1.0, 2.9, 3.0, 99.0])) == pytest.approx([0, 0.2, 0.2, 1 - 0.8 / 3, 1 - 0.8 / 3])
    assert curve.longest_s == 5.0


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=20))
@examples(30)
def test_the_curve_is_the_product_over_distinct_delays(rows: list[tuple[int, int]]) -> None:
    pairs = [(float(min(delay, age)) if delay <= age else NONE, float(age)) for delay, age in rows]
    curve = delay_curve(np.array([one for one, _ in pairs]), np.array([age for _, age in pairs]))
    survivors = 1.0
    for place, time in enumerate(sorted({one for one, _ in pairs if one == one})):
        at_risk = sum((one if one == one else age) >= time for one, age in pairs)
        survivors *= 1 - sum(one == time for one, _ in pairs) / at_risk
        assert curve.arrived[place] == pytest.approx(1 - survivors)
    assert np.all(np.diff(curve.arrived) >= -1e-12)


def test_weights_are_one_for_closed_windows_and_the_inverse_share_for_open_ones() -> None:
    curve = delay_curve(np.array([1.0, 2.0, 4.0, NONE]), np.array([9.0, 9.0, 9.0, 9.0]))
    weights = curve.censoring_weights(np.array([9.0, 2.0, 0.5]), 8.0)
    assert weights == pytest.approx([1.0, 0.75 / 0.5, 0.0])


def test_no_weight_is_made_up_where_no_window_has_closed() -> None:
    curve = delay_curve(np.array([1.0]), np.array([3.0]))
    with pytest.raises(DataError, match="no window has closed: the oldest decision is 3 s old and the window is 8 s"):
        curve.censoring_weights(np.array([3.0]), 8.0)


def _delayed_log(seed: int, count: int = 600) -> list[DecisionRecord]:
    """Reward 1 with probability 0.4 after an exponential delay of mean 20 s; a decision each second."""
    chance = generator(seed, "delays")
    paid, delay = chance.random(count) < 0.4, chance.exponential(20.0, count)
    log: list[DecisionRecord] = [decision(f"d{row}", float(row), seq=row) for row in range(count)]
    return log + [outcome(f"d{row}", row + delay[row], seq=int(row)) for row in np.flatnonzero(paid)]


def test_open_rows_weighted_by_the_curve_are_unbiased_and_counted_as_zero_they_are_not() -> None:
    join = JoinConfig(window_s=120.0)
    weighted, zero = [], []
    for seed in range(100, 120):
        view = build_view(_delayed_log(seed), as_of_s=600.0, join=join)
        recent = view.age_s < 60.0
        weighted.append(np.nanmean(view.with_open_rows(largest_weight=5.0).reward[recent]))
        zero.append(np.nan_to_num(view.reward_so_far)[recent].mean())
    error = np.std(weighted, ddof=1) / np.sqrt(len(weighted))
    assert abs(np.mean(weighted) - 0.4) < 3 * error + 0.002
    assert np.mean(zero) < 0.30


def test_rows_that_are_too_young_for_a_weight_stay_unknown() -> None:
    view = build_view(_delayed_log(100), as_of_s=600.0, join=JoinConfig(window_s=120.0))
    table = view.with_open_rows(largest_weight=4.0)
    assert table.known.sum() > view.table.known.sum()
    assert np.isnan(table.reward[~table.known]).all()
    assert table.reward[table.known].max() <= 4.0
    assert (view.age_s[~table.known].max() < view.age_s[table.known].min()) == (not table.known.all())
