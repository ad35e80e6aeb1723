"""E-detectors and Page-Hinkley: exact expectations by enumeration, slow versions, run lengths, restarts, blocks."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from drift_streams import bernoulli, normal
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.core.errors import DataError
from hone.core.random import generator
from hone.decide.estimators.drift.detector import (
    STAKES,
    BlockMeans,
    ChangeBets,
    ConformalDetector,
    DriftDetector,
    MeanDetector,
    PageHinkley,
    RankSample,
    cusum_run_length,
)

ARL = 500.0
MAKERS: dict[str, Callable[[], DriftDetector]] = {
    "mean": lambda: MeanDetector(arl=ARL, mean=0.3, low=0.0, high=1.0),
    "conformal": lambda: ConformalDetector(arl=ARL, seed=3),
    "conformal with a small memory": lambda: ConformalDetector(arl=ARL, seed=3, memory=64),
    "page-hinkley": lambda: PageHinkley(arl=ARL),
    "blocks": lambda: BlockMeans(ConformalDetector(arl=ARL, seed=3), 4),
}


def statistic(detector: MeanDetector, values: tuple[float, ...]) -> float:
    for value in values:
        detector.update(value)
    return detector.statistic


def test_evidence_has_its_declared_mean_by_enumeration() -> None:
    """E[statistic after n values] = n for any Bernoulli stream of the known mean: here all 2^9 of them."""
    mean, n = 0.3, 9
    expected = sum(
        math.prod(mean if value else 1 - mean for value in values)
        * statistic(MeanDetector(arl=1e9, mean=mean, low=0.0, high=1.0), values)
        for values in itertools.product((0.0, 1.0), repeat=n)
    )
    assert expected == pytest.approx(n, rel=1e-12)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=20))
def test_evidence_is_the_sum_over_the_moments_of_a_change(values: list[float]) -> None:
    bets = ChangeBets(1e30, STAKES)
    for value in values:
        bets.update(value, -value)
    slow = np.mean([
        sum(math.prod(1 + stake * value for value in values[start:]) for start in range(len(values)))
        for stake in (*STAKES, *(-stake for stake in STAKES))
    ])  # fmt: skip
    assert bets.statistic == pytest.approx(float(slow), rel=1e-9)


def test_evidence_worked_out_by_hand() -> None:
    """One bet each way with stake 1/2: a rise of 1 gives 1.5 and 0.5; a second gives 2.5 * 1.5 and 1.5 * 0.5."""
    bets = ChangeBets(100.0, (0.5,))
    bets.update(1.0, -1.0)
    assert bets.statistic == pytest.approx(1.0)
    bets.update(1.0, -1.0)
    assert bets.statistic == pytest.approx((2.5 * 1.5 + 1.5 * 0.5) / 2)


def test_a_tolerance_keeps_the_run_length_for_means_within_it() -> None:
    detector = MeanDetector(arl=200.0, mean=0.5, low=0.0, high=1.0, tolerance=0.1)
    count = sum(map(detector.update, bernoulli([0.6], 6000, 1).tolist()))
    assert count <= 6000 / 200
    assert sum(map(detector.update, bernoulli([0.8], 500, 2).tolist())) >= 1


def test_ranks_are_uniform_for_every_order_and_smoothed_by_ties() -> None:
    ranks = []
    for order in itertools.permutations((1.0, 2.0, 3.0)):
        sample = RankSample(8)
        ranks.append([sample.rank(value, 0.5, 0.0) for value in order])
    assert sorted(row[2] for row in ranks) == pytest.approx([1 / 6] * 2 + [3 / 6] * 2 + [5 / 6] * 2)
    sample = RankSample(8)
    for _ in range(3):
        sample.rank(4.0, 0.1, 0.0)
    assert sample.rank(4.0, 0.0, 0.0) == 0.0
    assert RankSample(8).rank(1.0, 0.25, 0.0) == 0.25


def test_a_full_sample_is_uniform_over_the_past() -> None:
    """Each of 40 values stays in a sample of 10 with probability 1/4."""
    draws = generator(1, "places").random((2000, 40))
    kept = np.zeros(40)
    for row in draws:
        sample = RankSample(10)
        for value, place in enumerate(row):
            sample.rank(float(value), 0.5, float(place))
        kept[np.array(sample.state()["sorted"], np.int64)] += 1
    assert np.abs(kept / 2000 - 0.25).max() < 5 * math.sqrt(0.25 * 0.75 / 2000)


@pytest.mark.parametrize("name", ["mean", "conformal", "page-hinkley", "blocks"])
def test_declared_run_lengths_hold(name: str) -> None:
    """15,000 values without a change: about as many alarms as declared at most, within three standard errors."""
    detector, n = MAKERS[name](), 15_000
    count = sum(map(detector.update, bernoulli([0.3], n, 21).tolist()))
    expected = n / detector.budget.value
    assert count <= expected + 3 * math.sqrt(expected)


@pytest.mark.parametrize("name", list(MAKERS))
def test_a_change_is_found_and_its_moment_estimated(name: str) -> None:
    detector = MAKERS[name]()
    found: list[int] = []
    for place, value in enumerate(bernoulli([0.3, 0.8], 400, 33).tolist()):
        if detector.update(value) and place >= 400:
            found.append(place - 400)
            break
    assert found and found[0] < 120
    assert abs(found[0] - detector.recent) < 60
    assert detector.statistic >= detector.threshold


@pytest.mark.parametrize("name", list(MAKERS))
@examples(8)
@given(cut=st.integers(0, 999))
def test_a_restart_in_the_middle_gives_the_same_alarms(name: str, cut: int) -> None:
    stream = bernoulli([0.3, 0.7], 500, 8).tolist()
    whole, first, second = MAKERS[name](), MAKERS[name](), MAKERS[name]()
    expected = [(whole.update(value), whole.statistic, whole.recent) for value in stream]
    found = [(first.update(value), first.statistic, first.recent) for value in stream[:cut]]
    second.restore(first.state())
    found += [(second.update(value), second.statistic, second.recent) for value in stream[cut:]]
    assert found == expected
    assert any(alarm for alarm, _, _ in expected)


def test_a_state_of_other_settings_is_refused() -> None:
    with pytest.raises(DataError, match="threshold"):
        MeanDetector(arl=10.0, mean=0.3, low=0.0, high=1.0).restore(MAKERS["mean"]().state())
    with pytest.raises(DataError, match="seed 3, this one 4"):
        ConformalDetector(arl=ARL, seed=4).restore(MAKERS["conformal"]().state())
    with pytest.raises(DataError, match="threshold"):
        PageHinkley(arl=1000.0).restore(MAKERS["page-hinkley"]().state())
    with pytest.raises(DataError, match="64 values at most, this one 4096"):
        MAKERS["conformal"]().restore(MAKERS["conformal with a small memory"]().state())


def correlated(n: int, share: float, seed: int) -> list[float]:
    """Autoregressive values: each keeps `share` of the last one."""
    values, last = [], 0.0
    for shock in generator(seed, "shocks").standard_normal(n).tolist():
        last = share * last + shock
        values.append(last)
    return values


def test_blocks_keep_the_run_length_of_rewards_that_correlate_with_themselves() -> None:
    stream = correlated(20_000, 0.8, 4)
    plain, blocks = ConformalDetector(arl=2000.0), BlockMeans(ConformalDetector(arl=2000.0 / 40), 40)
    assert blocks.budget.value == 2000.0
    assert sum(map(plain.update, stream)) > 40
    assert sum(map(blocks.update, stream)) <= 20


def test_values_that_would_void_the_promise_are_refused() -> None:
    with pytest.raises(ValueError, match=r"1\.5 is outside \[0, 1\]"):
        MeanDetector(arl=10.0, mean=0.3, low=0, high=1).update(1.5)
    with pytest.raises(ValueError, match="mean 2"):
        MeanDetector(arl=10.0, mean=2, low=0, high=1)
    with pytest.raises(ValueError, match="block of 0"):
        BlockMeans(MAKERS["mean"](), 0)


def test_siegmunds_run_length_beside_simulation() -> None:
    walks = np.zeros(400)
    lengths, alive = np.zeros(400), np.ones(400, np.bool_)
    draws = generator(6, "walks")
    for _ in range(4000):
        walks = np.maximum(0, walks + draws.standard_normal(400) - 0.5)
        lengths += alive
        alive &= walks < 3
    assert not alive.any()
    assert lengths.mean() == pytest.approx(cusum_run_length(3.0, 0.5), rel=0.15)


def test_page_hinkley_ignores_the_scale() -> None:
    stream = normal([0.0, 1.0], 300, 9)
    one, other = PageHinkley(arl=ARL), PageHinkley(arl=ARL)
    assert [one.update(value) for value in stream.tolist()] == [
        other.update(value) for value in (1000 * stream).tolist()
    ]
