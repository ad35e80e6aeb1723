"""Declared run lengths on skewed, heavy-tailed and rare values, cycles, and values that are not finite."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from hone.core.errors import DataError
from hone.core.random import generator
from hone.decide.estimators.drift.detector import (
    AdaptiveWindow,
    BlockMeans,
    ConformalDetector,
    DriftDetector,
    PageHinkley,
    cusum_exponent,
    cusum_run_length,
)
from hone.decide.estimators.drift.health import GrowthCheck, StalenessCheck
from hone.decide.estimators.drift.samples import SIGNIFICANT_NATS, ClippedSample, SeasonalErrors

Floats = NDArray[np.float64]
DAY_S = 86_400.0
FAMILIES: dict[str, Callable[[np.random.Generator, int], Floats]] = {
    "rare": lambda draws, n: (draws.random(n) < 0.02) * 1.0,
    "very rare": lambda draws, n: (draws.random(n) < 0.003) * 1.0,
    "zero-inflated": lambda draws, n: (draws.random(n) < 0.05) * draws.exponential(size=n),
    "log-normal": lambda draws, n: np.exp(2 * draws.standard_normal(n)),
    "falling": lambda draws, n: -np.exp(draws.standard_normal(n)),
    "pareto": lambda draws, n: draws.pareto(2.2, n),
    "cauchy": lambda draws, n: draws.standard_cauchy(n),
}
DETECTORS: dict[str, Callable[[], DriftDetector]] = {
    "page_hinkley": lambda: PageHinkley(arl=1000.0), "adwin": lambda: AdaptiveWindow(delta=32 / 1000),
    "conformal": lambda: ConformalDetector(arl=1000.0), "blocks": lambda: BlockMeans(PageHinkley(arl=1000.0 / 4), 4),
}  # fmt: skip


@pytest.mark.parametrize("family", list(FAMILIES))
def test_the_run_length_holds_whatever_the_distribution(family: str) -> None:
    """About as many alarms as declared at most: 2 to 8 times as many were raised by a threshold for normal sums."""
    n = 16_000
    stream = FAMILIES[family](generator(7, "families"), n).tolist()
    assert sum(map(PageHinkley(arl=1000.0).update, stream)) <= 16 + 3 * math.sqrt(16)


def test_a_change_of_skewed_values_is_still_found() -> None:
    for family, change in (("zero-inflated", 3.0), ("log-normal", 3.0)):
        stream = FAMILIES[family](generator(5, "changes"), 4000)
        stream[2000:] *= change
        detector = PageHinkley(arl=5000.0)
        places = [place for place, value in enumerate(stream.tolist()) if detector.update(value)]
        assert any(2000 <= place < 3500 for place in places), family


def test_the_exponent_of_normal_sums_is_twice_the_allowance_and_skewness_lowers_it() -> None:
    assert cusum_exponent(0.15, 0.0, 0.0) == pytest.approx(0.3)
    assert cusum_exponent(0.15, -3.0, -1.0) == pytest.approx(0.3)
    rate = 0.02
    spread = math.sqrt(rate * (1 - rate))
    t = cusum_exponent(0.15, (1 - 2 * rate) / spread, (1 - 6 * rate * (1 - rate)) / spread**2)
    moment = (1 - rate) * math.exp(t * (-rate / spread - 0.15)) + rate * math.exp(t * ((1 - rate) / spread - 0.15))
    assert 0.17 < t < 0.21 and moment == pytest.approx(1.0, abs=0.01)
    assert cusum_run_length(5.0, 0.15, exponent=0.3) == pytest.approx(cusum_run_length(5.0, 0.15))


@pytest.mark.parametrize("name", list(DETECTORS))
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_changes_nothing(name: str, broken: float) -> None:
    stream = (generator(3, "rates").random(900) < np.repeat([0.2, 0.9], [500, 400])).astype(np.float64).tolist()
    clean, hit = DETECTORS[name](), DETECTORS[name]()
    expected = [clean.update(value) for value in stream]
    found = list[bool]()
    for place, value in enumerate(stream):
        if place in (0, 40, 450):
            assert not hit.update(broken)
        found.append(hit.update(value))
    assert found == expected and any(found)


@pytest.mark.parametrize("huge", [1e308, -1e308, 1e30])
def test_one_huge_value_does_not_blind_page_hinkley(huge: float) -> None:
    stream = (generator(3, "rates").random(1400) < np.repeat([0.3, 0.8], [1000, 400])).astype(np.float64)
    for place in (0, 20, 600):
        hit = stream.copy()
        hit[place] = huge
        detector = PageHinkley(arl=5000.0)
        places = [k for k, value in enumerate(hit.tolist()) if detector.update(value)]
        assert any(1000 <= k < 1200 for k in places), (place, places)


def test_health_checks_survive_numbers_that_are_not_finite() -> None:
    growth = GrowthCheck(bound=1.0, samples=8)
    readings = [
        (math.nan, 1.0),
        *((float(k), 10.0 * k) for k in range(4)),
        (4.0, math.nan),
        *((float(k), 10.0 * k) for k in range(4, 8)),
    ]
    assert [growth.update(x, y) for x, y in readings][-1]
    stale = StalenessCheck(10.0, since_s=math.nan)
    stale.arrived(math.nan)
    stale.arrived(5.0)
    assert stale.last_s == 5.0 and stale.check(16.0)


def test_a_sample_believes_a_value_that_five_others_reach() -> None:
    sample = ClippedSample(1)
    for value in (*range(200), 1e300):
        sample.add(float(value))
    shape = sample.look()
    assert sample.clipped(1e300) == 196.0 and sample.clipped(-5.0) == 4.0 and sample.clipped(50.0) == 50.0
    assert shape.count == 201 and abs(shape.skewness) < 0.05
    for _ in range(300):
        sample.add(500.0)
    sample.look()
    assert sample.clipped(1e300) == 500.0


# ----------------------------------------------------------------------------------------------------------- seasons


def daily(
    amplitude: float, n: int, per_day: int, seed: int, *, square: bool = False
) -> tuple[list[float], list[float]]:
    draws = generator(seed, "days")
    at_s = np.sort(draws.random(n)) * n / per_day * DAY_S
    wave = np.sin(2 * math.pi * at_s / DAY_S)
    values = amplitude * (np.sign(wave) if square else wave) + draws.standard_normal(n)
    return values.tolist(), at_s.tolist()


@pytest.mark.parametrize("square", [False, True])
def test_a_daily_cycle_leaves_no_alarms_of_its_own(square: bool) -> None:
    values, at_s = daily(0.7, 12_000, 1000, 3, square=square)
    plain, kept, errors = PageHinkley(arl=2000.0), PageHinkley(arl=2000.0), SeasonalErrors(DAY_S)
    assert sum(map(plain.update, values)) > 20
    found = [kept.update(errors.update(value, time)) for value, time in zip(values, at_s, strict=True)]
    assert sum(found) <= 6 + 3 * math.sqrt(6)
    assert errors.evidence_nats > SIGNIFICANT_NATS


def test_errors_are_standard_and_a_change_of_the_level_stays_in_them() -> None:
    values, at_s = daily(1.0, 9000, 1000, 4)
    errors = SeasonalErrors(DAY_S)
    found = np.array(
        [errors.update(v + 2.0 * (k >= 8800), t) for k, (v, t) in enumerate(zip(values, at_s, strict=True))]
    )
    calm = found[2000:8800]
    assert abs(calm.mean()) < 0.05 and abs(calm.std() - 1) < 0.05
    assert found[8800:].mean() > 1.5
    assert SeasonalErrors(DAY_S).evidence_nats == 0.0
    flat = SeasonalErrors(DAY_S)
    for value, time in zip(generator(1, "flat").standard_normal(4000), np.arange(4000) * 60.0, strict=True):
        flat.update(float(value), float(time))
    assert flat.evidence_nats < 0


def test_the_first_day_of_a_cycle_looks_like_others() -> None:
    alarms = 0
    for seed in range(6):
        values, at_s = daily(0.7, 1000, 1000, 50 + seed)
        detector, errors = PageHinkley(arl=2000.0), SeasonalErrors(DAY_S)
        alarms += sum(detector.update(errors.update(v, t)) for v, t in zip(values, at_s, strict=True))
    assert alarms <= 3 + 3 * math.sqrt(3)


def test_errors_go_on_after_a_restart_and_of_another_cycle_are_refused() -> None:
    values, at_s = daily(0.7, 600, 200, 5)
    whole, first, second = (SeasonalErrors(DAY_S, seed=2) for _ in range(3))
    expected = [whole.update(v, t) for v, t in zip(values, at_s, strict=True)]
    found = [first.update(v, t) for v, t in zip(values[:300], at_s[:300], strict=True)]
    second.restore(first.state())
    found += [second.update(v, t) for v, t in zip(values[300:], at_s[300:], strict=True)]
    assert found == expected
    with pytest.raises(DataError, match="86400 s, this one 3600 s"):
        SeasonalErrors(3600.0).restore(first.state())
