"""Values on the boundaries of the rules and estimators: the last log that is `ok`, and the first one that is not."""

import math
from dataclasses import replace

import numpy as np
import pytest
from test_off_policy_rules import RULES, at, good_log, good_table

from hone.core.decisions import LOGP_TOLERANCE
from hone.core.errors import DataError, DivergedError
from hone.decide.estimators.estimate import (
    EstimateSettings,
    RewardModelSettings,
    StreamedEstimates,
    cross_fitted_rewards,
    estimate_values,
    weight_tail,
)
from hone.decide.estimators.rules import WeightSummary, usable_rows
from hone.decide.estimators.terms import (
    LoggedFeedback,
    bernstein_interval,
    effective_sample_size,
    standard_error,
    switch_doubly_robust,
)
from hone.decide.estimators.trajectories import linear_fitted_q


def _verdicts(reasons: object) -> list[str]:
    assert isinstance(reasons, list)
    return [reason.verdict for reason in reasons]


def test_a_share_of_open_rewards_on_a_bound_has_the_milder_verdict() -> None:
    assert _verdicts(RULES.open_windows(RULES.open_weak)) == []
    assert _verdicts(RULES.open_windows(RULES.open_refuse)) == ["weak"]
    assert _verdicts(RULES.open_windows(0.1001)) == ["refuse"]


def test_a_share_without_support_on_a_bound_has_the_milder_verdict() -> None:
    assert _verdicts(RULES.support(RULES.unsupported_weak, "here")) == []
    assert _verdicts(RULES.support(RULES.unsupported_refuse, "here")) == ["weak"]
    assert _verdicts(RULES.support(0.0501, "here")) == ["refuse"]


def test_fifty_events_are_enough_and_49_are_not() -> None:
    assert _verdicts(RULES.rewards(np.array([1.0] * 50 + [0.0] * 100))) == []
    assert _verdicts(RULES.rewards(np.array([1.0] * 49 + [0.0] * 100))) == ["weak"]


def test_a_spread_of_zero_or_infinity_says_nothing_about_drift() -> None:
    for spread in (0.0, math.inf):
        assert RULES.drift(0.0, 1.0, spread) == []
    assert _verdicts(RULES.drift(0.0, 1.0, 0.1)) == ["refuse"]
    same = replace(RULES, drift_weak=1.0, drift_refuse=1.0)
    assert same.drift(0.5, 0.5, 1.0) == []  # p = 1, the bound itself
    p_value = 2 * (1 - 0.8413447460685429)
    assert _verdicts(replace(RULES, drift_weak=0.9, drift_refuse=p_value).drift(0.0, 1.0, 1.0)) == ["weak"]


def _summary(**changes: float) -> WeightSummary:
    figures = {"mean": 1.0, "error": 0.0, "ess": 1000.0, "largest": 1.0, **changes}
    return WeightSummary(n=1000, **figures)  # pyright: ignore[reportArgumentType]


def test_weights_on_the_bounds_have_the_milder_verdict() -> None:
    rules = replace(RULES, miscalibrated_refuse=0.25, support_deviations=2.0, largest_share_weak=0.125)
    assert _summary(mean=1.25).reasons(rules) == []
    assert _summary(mean=1.5, error=0.25).reasons(rules) == []
    assert _verdicts(_summary(mean=1.5).reasons(rules)) == ["refuse"]
    assert _summary(ess=rules.ess_weak).reasons(rules) == []
    assert _verdicts(_summary(ess=rules.ess_refuse).reasons(rules)) == ["weak"]
    assert _verdicts(_summary(ess=49.9).reasons(rules)) == ["refuse"]
    assert _summary(largest=125.0).reasons(rules) == []
    assert _verdicts(_summary(largest=126.0).reasons(rules)) == ["weak"]
    assert _summary(mean=0.0, largest=0.0).reasons(rules) == []  # no weight at all: no share


def test_a_propensity_at_its_tolerance_is_one() -> None:
    table = replace(good_table(), logp=at(good_table().logp, 7, LOGP_TOLERANCE))
    assert usable_rows(table).all()
    assert RULES.audit_table(table) == []
    above = replace(table, logp=at(table.logp, 7, math.nextafter(LOGP_TOLERANCE, 1)))
    assert np.flatnonzero(~usable_rows(above)).tolist() == [7]
    assert _verdicts(RULES.audit_table(above)) == ["refuse"]


def test_two_units_have_an_error_and_one_has_none() -> None:
    values = np.array([0.0, 2.0])
    assert standard_error(values, np.array([0, 1])) == pytest.approx(1.0)
    assert standard_error(values, np.array([0, 0])) == math.inf
    both = bernstein_interval(values, np.array([0, 1]), level=0.95, span=2.0)
    assert math.isfinite(both.low)
    assert bernstein_interval(values, np.array([0, 0]), level=0.95, span=2.0).low == -math.inf


def test_weights_of_zero_are_worth_no_rows() -> None:
    assert effective_sample_size(np.zeros(3)) == 0.0
    assert weight_tail(np.zeros(3)).top_share == 0.0
    assert weight_tail(np.ones(100)).top_share == pytest.approx(0.01)


def test_switch_corrects_by_a_weight_of_its_bound() -> None:
    log = replace(
        good_log(n=4), logp=np.log(np.full(4, 0.2)), target_logp=np.log(np.full((4, 4), 0.2)), reward=np.ones(4)
    )
    predicted = np.zeros((4, 4))
    assert log.weight == pytest.approx(np.ones(4))
    bound = float(log.weight[0])
    corrected = switch_doubly_robust(log, predicted, max_weight=bound)
    assert log.reward[0] == 1.0
    assert corrected.numerator[0, 0] == bound * log.reward[0]
    assert not switch_doubly_robust(log, predicted, max_weight=math.nextafter(bound, 0)).numerator[0, 0]


def test_a_logistic_model_reads_rewards_of_0_and_1_and_no_others() -> None:
    log = good_log(n=40)
    assert {0.0, 1.0} == set(log.reward)
    logistic = RewardModelSettings(kind="logistic", folds=2)
    predicted = cross_fitted_rewards(log, logistic)
    assert ((predicted > 0) & (predicted < 1)).all()
    for wrong in (-0.5, 1.5):
        with pytest.raises(DataError, match=f"row 3: reward {wrong:g} is not within 0 and 1"):
            cross_fitted_rewards(replace(log, reward=at(log.reward, 3, wrong)), logistic)


def test_two_units_are_enough_for_a_model() -> None:
    log = replace(good_log(n=4), unit=np.array([0, 0, 1, 1]))
    assert cross_fitted_rewards(log, RewardModelSettings(folds=2)).shape == (4, 4)
    with pytest.raises(DataError, match="at least 2 units, the log has 1"):
        cross_fitted_rewards(replace(log, unit=np.zeros(4, np.int64)), RewardModelSettings(folds=2))


def _plain_log(weight: np.ndarray) -> LoggedFeedback:
    """Rows of two actions: the first was executed with probability 1/2, and has these weights. The target's
    probabilities need not sum to 1 here: only the tests of support read them."""
    n = len(weight)
    target = np.full((n, 2), 1e-9)
    target[:, 0] = weight / 2 + 1e-300
    target[:, 1] = 1e-301
    return LoggedFeedback(
        contexts=np.zeros((n, 1)), action=np.zeros(n, np.int64), logp=np.full(n, math.log(0.5)),
        reward=(np.arange(n) % 2).astype(np.float64), target_logp=np.log(target),
        unit=np.arange(n), behaviour_logp=None,
    )  # fmt: skip


def test_a_group_of_thirty_contexts_is_tested_and_one_of_29_is_not() -> None:
    for size, lost in ((30, True), (29, False)):
        version = (np.arange(1000) < size).astype(np.int64)
        log = _plain_log(np.where(version == 1, 0.0, 1000 / (1000 - size)))
        _, overlap = RULES.audit_weights(log, version=version)
        assert overlap == pytest.approx(1 - size / 1000 if lost else 1.0)


def test_a_missing_share_of_the_bound_is_not_lost() -> None:
    log = _plain_log(np.full(100, 0.5))
    missing = 1 - float(log.weight.mean())
    for least, overlap in ((missing, 1.0), (math.nextafter(missing, 0), 1 - missing)):
        assert replace(RULES, unsupported_weak=least).audit_weights(log)[1] == pytest.approx(overlap)


def test_units_of_a_stream_are_the_buckets_with_rows() -> None:
    log = good_log(n=60)
    sums = StreamedEstimates(names=("ips",), rows=60, settings=EstimateSettings())
    sums.add(replace(log, unit=np.arange(60) % 20), np.zeros((0, 0)), np.arange(60) >= 30)
    made = sums.estimates()["ips"]
    assert (made.n, made.units) == (60, 20)
    whole = estimate_values(replace(log, unit=np.arange(60) % 20), ["ips"], EstimateSettings())["ips"].estimate
    assert made.standard_error == pytest.approx(whole.standard_error, rel=1e-12)


def test_a_bound_of_the_weights_of_zero_is_taken_from_the_log() -> None:
    for bound, said in ((0.0, True), (8.0, False)):
        settings = EstimateSettings(interval="bernstein", reward_range=(0.0, 1.0), weight_bound=bound)
        made = estimate_values(good_log(), ["ips"], settings)["ips"].estimate
        assert any("beyond those of the log" in words for words in made.assumptions) == said


def test_an_iteration_that_keeps_errors_diverges() -> None:
    one = np.ones((1, 1))
    with pytest.raises(DivergedError, match="multiplies errors by 1;"):
        linear_fitted_q(one, one, np.ones(1), discount=1.0)
    assert linear_fitted_q(one, one, np.ones(1), discount=0.5) == pytest.approx([2.0])
