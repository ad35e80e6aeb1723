"""Values on the boundaries of the detectors: the last one that is quiet, and the first one that is not."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from hone.decide.estimators.drift.detector import (
    AdaptiveWindow,
    BlockMeans,
    ChangeBets,
    ConformalDetector,
    MeanDetector,
    PageHinkley,
    RankSample,
    cusum_exponent,
)
from hone.decide.estimators.drift.health import (
    ActionEntropy,
    FeatureWindows,
    GrowthCheck,
    StalenessCheck,
    kolmogorov_tail,
)
from hone.decide.estimators.drift.samples import SeasonalErrors


def test_a_gap_of_the_limit_is_not_yet_late_and_an_arrival_at_the_same_time_is_none() -> None:
    check = StalenessCheck(10.0, since_s=0.0)
    assert not check.check(10.0)
    assert check.check(10.5)
    check.arrived(0.0)  # the same time as the last arrival: still told
    assert not check.check(11.0)
    check.arrived(1.0)
    assert check.check(11.5)


def test_an_entropy_of_the_bound_has_not_collapsed() -> None:
    # Two actions, one each: H = ln 2 + 1 / 4, and ln p does not vary
    least = math.log(2) + 1 / 4
    for bound, collapsed in ((least, False), (math.nextafter(least, 2), True)):
        check = ActionEntropy(least_nats=bound, window=2)
        assert not check.update(0)
        assert check.update(1) == collapsed
        assert check.entropy == least


def test_a_slope_of_the_bound_is_no_growth() -> None:
    for bound, grows in ((2.0, False), (math.nextafter(2.0, 0), True)):
        check = GrowthCheck(bound=bound, samples=4)
        assert [check.update(float(x), 2.0 * x) for x in range(4)] == [False, False, False, grows]
        assert check.slope == 2.0


def test_the_smallest_windows_and_levels_are_taken_and_the_next_ones_refused() -> None:
    two = np.array([[0.0], [1.0]])
    assert FeatureWindows(two, ["x"], window=2, alpha=0.5).update(np.array([0.0])) == ()
    refused = [(two[:1], 2, 0.5), (two, 1, 0.5), (two, 2, 0.0), (two, 2, 1.0)]
    for reference, window, alpha in refused:
        with pytest.raises(ValueError, match=r"does not fit|must be at least 2"):
            FeatureWindows(reference, ["x"], window=window, alpha=alpha)
    assert BlockMeans(PageHinkley(), 1).recent == 0
    with pytest.raises(ValueError, match="at least 1"):
        BlockMeans(PageHinkley(), 0)
    for arl, allowance in ((1.0, 0.1), (100.0, 0.0)):
        with pytest.raises(ValueError, match="must be above"):
            PageHinkley(arl=arl, allowance=allowance)
    for delta, every in ((0.0, 8), (1.0, 8), (0.5, 0)):
        with pytest.raises(ValueError, match="must lie in"):
            AdaptiveWindow(delta=delta, every=every)
    assert AdaptiveWindow(delta=0.5, every=1).budget.value == 2.0
    for arl, memory in ((1.0, 8), (10.0, 1)):
        with pytest.raises(ValueError, match="must be above 1"):
            ConformalDetector(arl=arl, memory=memory)
    assert ConformalDetector(arl=10.0, memory=2).budget.value == 10.0


def test_a_mean_and_a_value_may_lie_on_the_ends_of_the_range() -> None:
    for mean in (0.0, 1.0):
        detector = MeanDetector(arl=100.0, mean=mean, low=0.0, high=1.0)
        assert not detector.update(0.0)
        assert not detector.update(1.0)
    for mean, tolerance in ((-0.1, 0.0), (1.1, 0.0), (0.5, 1.0), (0.5, -0.1)):
        with pytest.raises(ValueError, match="must lie in"):
            MeanDetector(arl=100.0, mean=mean, low=0.0, high=1.0, tolerance=tolerance)


def test_a_block_ends_with_its_last_value() -> None:
    inner = MeanDetector(arl=100.0, mean=0.5, low=0.0, high=1.0)
    blocks, single = BlockMeans(inner, 2), MeanDetector(arl=100.0, mean=0.5, low=0.0, high=1.0)
    blocks.update(0.0)
    assert blocks.statistic == 0.0
    blocks.update(1.0)
    single.update(0.5)
    assert blocks.statistic == single.statistic > 0


def test_page_hinkley_tests_its_31st_value_and_needs_a_spread() -> None:
    detector = PageHinkley(arl=100.0)
    for value in [0.0, 1.0] * 15:
        assert not detector.update(value)
    assert detector.statistic == 0.0  # thirty values are the warm-up
    assert not detector.update(1000.0)  # believed as far as others reach
    assert detector.statistic > 0.0
    constant = PageHinkley(arl=100.0)
    assert not any(constant.update(0.5) for _ in range(100))  # no spread: nothing to measure a value by
    assert constant.statistic == 0.0


def test_evidence_of_the_threshold_is_enough_and_a_path_of_1_begins_anew() -> None:
    # One stake of 1/2 each way, and a rise of 1: sums (0 + 1) 3/2 and (0 + 1) 1/2 have the mean 1
    for threshold, alarm in ((1.0, True), (math.nextafter(1.0, 2), False)):
        assert ChangeBets(threshold, [0.5]).update(1.0, -1.0) == alarm
    bets = ChangeBets(3.0, [0.5])
    bets.update(0.0, 0.0)  # a factor of 1: the change has not begun
    bets.update(0.0, 0.0)
    while not bets.update(1.0, -1.0):
        pass
    assert bets.recent == 1


def test_a_sample_that_is_full_replaces_a_value_and_keeps_its_order() -> None:
    sample = RankSample(2)
    assert sample.rank(1.0, 1.0, 0.0) == 1.0
    assert sample.rank(3.0, 0.0, 0.0) == pytest.approx(1 / 2)
    # Third value, place 1/3: slot 1, the larger one, which lies where the new one is inserted
    assert sample.rank(2.0, 0.0, 0.34) == pytest.approx(1 / 3)
    assert sample.rank(2.5, 0.0, 0.99) == pytest.approx(2 / 3)  # 1 and 2 are below; a slot beyond the sample: not kept
    assert sample.rank(1.5, 0.0, 0.99) == pytest.approx(1 / 3)


def test_the_tail_of_a_small_distance_is_1_and_continues() -> None:
    root = math.sqrt(50)
    distance = 0.2 / (root + 0.12 + 0.11 / root)
    # 1 - sqrt(2 pi) / t exp(-pi^2 / (8 t^2)) by the other series, at t = 0.2
    missing = math.sqrt(2 * math.pi) / 0.2 * math.exp(-(math.pi**2) / (8 * 0.2**2))
    assert 1 - kolmogorov_tail(distance, 100, 100) == pytest.approx(missing, rel=0.01, abs=0.0)
    assert kolmogorov_tail(math.nextafter(distance, 0), 100, 100) == 1.0


def test_the_window_needs_more_than_ten_values_and_a_cut_five_on_each_side() -> None:
    window = AdaptiveWindow(delta=0.9, every=1)
    for value in [0.0] * 5 + [1000.0] * 5:
        window.update(value)
    assert window.statistic == 0.0  # ten values are too few for a test
    window.update(1000.0)
    assert window.statistic > 0
    ten = AdaptiveWindow(delta=0.9)
    for value in [0.0] * 4 + [1000.0] * 6:
        ten.update(value)
    # Borders behind 2, 4, 6 ... values: of ten, no border leaves five on both sides; of eleven, that behind six does
    assert ten._best_cut() == (0.0, 0)
    ten.update(1000.0)
    assert ten._best_cut()[1] == 5


def test_rows_of_the_window_hold_five_buckets() -> None:
    window = AdaptiveWindow()
    lengths = [window.update(float(value)) or window.state()["lengths"] for value in range(7)]
    assert lengths == [[1], [2], [3], [4], [5], [4, 1], [5, 1]]


def test_a_window_without_change_has_no_clearest_cut() -> None:
    window = AdaptiveWindow()
    for _ in range(20):
        window.update(1.0)
    assert window._best_cut() == (0.0, 0)


def test_a_sum_of_the_threshold_is_an_alarm() -> None:
    values = [0.0, 1.0] * 15
    reading = PageHinkley(arl=1e6)
    for value in [*values, 1.0, 1.0]:
        assert not reading.update(value)
    for threshold, alarm in ((reading._up, True), (math.nextafter(reading._up, 99), False)):
        detector = PageHinkley(arl=1e6)
        for value in [*values, 1.0]:  # the thresholds are set anew with the 31st
            detector.update(value)
        detector._thresholds = [threshold, threshold]
        assert detector.update(1.0) == alarm


def test_a_p_value_of_the_level_is_no_change() -> None:
    reference, window = np.arange(20.0)[:, None], np.arange(10.0, 20.0)
    p_value = kolmogorov_tail(0.5, 20, 10)
    assert 0 < p_value < 1
    for alpha, changed in ((p_value, False), (math.nextafter(p_value, 1), True)):
        windows = FeatureWindows(reference, ["x"], window=10, alpha=alpha)
        (shift,) = [shifts[0] for value in window if (shifts := windows.update(np.array([value])))]
        assert (shift.p_value, shift.changed) == (p_value, changed)


def test_the_exponent_of_a_sum_is_exact_where_it_is_a_half() -> None:
    assert cusum_exponent(0.5, 6.0, 0.0) == 0.5  # t/2 + 6 t^2/6 = 1/2
    assert cusum_exponent(0.5, 0.0, 0.0) == 1.0  # t/2 = 1/2: normal values, twice the allowance


def _alarmed(values: list[float]) -> PageHinkley:
    """A detector right after its alarm, by values and then by ones."""
    detector = PageHinkley(arl=100.0)
    for value in values:
        assert not detector.update(value)
    while not detector.update(1.0):
        pass
    return detector


def test_an_infinite_spread_measures_nothing() -> None:
    detector = _alarmed([0.0, 1.0] * 15)
    peak = detector.statistic
    assert peak >= 1.0
    # The squares of the last two values overflow; without a test the statistic stays that of the alarm
    assert not any(detector.update(value) for value in [1e200, -1e200] * 16)
    assert detector.statistic == peak


def test_of_equal_sums_the_rise_is_told() -> None:
    detector = PageHinkley(arl=100.0)
    for value in [*[0.0, 1.0] * 15, 0.5]:
        detector.update(value)
    state = detector.state()
    numbers = np.array(state["numbers"])
    numbers[2:4] = 1000.0
    for up_since, down_since in ((5, 20), (20, 5)):
        again = PageHinkley(arl=100.0)
        again.restore({**state, "numbers": numbers, "up_since": up_since, "down_since": down_since})
        assert again.update(0.5)  # the mean itself: both sums fall alike
        assert again.recent == 32 - up_since


def test_values_without_a_spread_have_no_shape() -> None:
    detector = _alarmed([0.0, 0.0, 0.0, 1.0] * 8)
    shape = np.array(detector.state()["numbers"])[5:7].tolist()
    assert shape[0] > 0
    for _ in range(31):
        assert not detector.update(5.0)
    assert np.array(detector.state()["numbers"])[5:7].tolist() == shape


def test_no_rank_has_no_neighbour() -> None:
    detector = ConformalDetector()
    assert detector.neighbour_errors == 0.0
    detector.update(1.0)
    assert detector.neighbour_errors == 0.0  # one rank has none before it
    detector.update(2.0)
    assert detector.neighbour_errors != 0.0


def test_a_cycle_has_evidence_after_its_first_period() -> None:
    errors = SeasonalErrors(100.0)
    for at_s in range(30):
        assert errors.update(float(at_s % 2), float(at_s)) == 0.0
    assert errors.update(1.0, 100.0) != 0.0
    assert errors.evidence_nats == 0.0  # the end of the first period belongs to it
    errors.update(1.0, 100.5)
    assert errors.evidence_nats != 0.0


def test_values_of_zero_have_no_errors_and_no_cycle() -> None:
    errors = SeasonalErrors(10.0)
    assert [errors.update(0.0, float(at_s)) for at_s in range(60)] == [0.0] * 60
    assert errors.evidence_nats == 0.0


def _cut_of_one(ratio: Callable[[float], float]) -> float:
    """A step at which the clearest cut is exactly 1: near to it every few numbers have that ratio."""
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if ratio(middle) < 1 else (low, middle)
    steps = low + np.arange(-100, 100) * np.spacing(low)
    return next(float(step) for step in steps if ratio(float(step)) == 1.0)


def test_a_cut_of_epsilon_is_no_change() -> None:
    def stepped(step: float, *, every: int) -> AdaptiveWindow:
        window = AdaptiveWindow(delta=0.9, every=every)
        for value in [*[0.0, 1.0] * 4, *[step, 1.0 + step] * 4]:
            window.update(value)
        return window

    step = _cut_of_one(lambda step: stepped(step, every=99)._best_cut()[0])
    same, more = stepped(step, every=16), stepped(1.1 * step, every=16)
    assert (same.statistic, same.width) == (1.0, 16)
    assert more.statistic > 1.0
    assert more.width == 0


def test_buckets_are_dropped_while_a_cut_is_above_epsilon() -> None:
    def stepped(step: float, *, every: int) -> AdaptiveWindow:
        window = AdaptiveWindow(delta=0.9, every=every)
        for value in [*[-4.0] * 4, *[0.0, 1.0] * 3, *[step, 1.0 + step] * 4]:
            window.update(value)
        return window

    def left(step: float) -> float:
        window = stepped(step, every=99)
        window._drop_oldest()
        return window._best_cut()[0]

    window = stepped(_cut_of_one(left), every=18)
    assert window.statistic > 1.0
    assert window.kept == 14  # the oldest bucket of four values, and no other one


def test_ten_values_after_an_alarm_are_no_test() -> None:
    window = AdaptiveWindow(delta=0.9, every=1)
    for value in [0.0] * 20:
        assert not window.update(value)
    while not window.update(1000.0):
        pass
    seen = window.statistic
    assert seen > 1.0
    for _ in range(10):
        assert not window.update(5.0)
        assert window.statistic == seen
    window.update(5.0)
    assert window.statistic == 0.0
