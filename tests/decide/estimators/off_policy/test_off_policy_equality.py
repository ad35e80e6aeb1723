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
from hone.decide.estimators.propensities import _features, _modelled, behaviour_ratios
from hone.decide.estimators.rules import WeightSummary, _never_executed, _parts, usable_rows
from hone.decide.estimators.terms import (
    LoggedFeedback,
    bernstein_interval,
    effective_sample_size,
    normal_interval,
    standard_error,
    switch_doubly_robust,
)
from hone.decide.estimators.trajectories import TabularTransitions, linear_fitted_q, tabular_fitted_q


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
        assert RULES.drift(math.inf, 1.0, spread) == []
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


def test_fitted_q_stops_at_a_change_that_is_the_tolerance() -> None:
    """Half a reward for ever at discount 1/2: 0.5, 0.75, 0.875, with changes of 1/4 and 1/8."""
    one, zero = np.ones((1, 1)), np.zeros(1, np.int64)
    log = TabularTransitions(
        state=zero, action=zero, reward=np.full(1, 0.5), next_state=zero, terminated=np.zeros(1, bool)
    )
    for tolerance, value in ((0.25, 0.75), (0.125, 0.875), (0.124, 0.9375)):
        assert tabular_fitted_q(log, one, discount=0.5, tolerance=tolerance).q.item() == value
        assert linear_fitted_q(one, one, np.full(1, 0.5), discount=0.5, tolerance=tolerance).item() == value


def test_a_difference_of_its_rounding_is_none() -> None:
    made = estimate_values(good_log(n=4), ["ips"], EstimateSettings())["ips"]
    for steps, zero in ((4504, True), (4505, False)):
        step = 4504 * 2.0**-52
        value = step / 1e-12  # about 1, and a multiple of 2^-52: differences from it are exact
        assert 1e-12 * value == step
        first = replace(made, influence=np.full(4, value - steps * 2.0**-52))
        second = replace(made, influence=np.full(4, value))
        assert (first.paired_difference(second, np.arange(4), level=0.95).value == 0.0) == zero


def test_the_cause_of_an_infinite_error_is_the_unit_of_one_and_the_rows_of_two() -> None:
    log = replace(good_log(n=4), reward=np.array([1e200, -1e200, 1e200, 1e200]))
    for unit, words in ((np.array([0, 0, 1, 1]), "have no variance in floating point"), (np.zeros(4), "has 1 unit")):
        made = estimate_values(replace(log, unit=unit.astype(np.int64)), ["ips"], EstimateSettings())["ips"]
        (reason,) = [one for one in made.estimate.reasons if one.rule == "not finite"]
        assert words in reason.words


def _one_action_offered(n: int = 8) -> LoggedFeedback:
    """The first of two actions, of probability 1/2 and 1/4 in turn; the target never takes the second."""
    return LoggedFeedback(
        contexts=np.zeros((n, 1)), action=np.zeros(n, np.int64), logp=np.log(np.array([0.5, 0.25] * (n // 2))),
        reward=np.zeros(n), target_logp=np.tile(np.array([0.0, -np.inf]), (n, 1)), unit=np.arange(n),
    )  # fmt: skip


def test_four_units_have_a_model_of_the_behaviour_policy_and_three_have_none() -> None:
    log = _one_action_offered(4)
    assert behaviour_ratios(log) == pytest.approx([2.0, 4.0, 2.0, 4.0])
    assert behaviour_ratios(replace(log, unit=np.array([0, 1, 2, 2]))) is None


def test_an_action_of_the_target_probability_zero_is_not_offered() -> None:
    log = _one_action_offered()
    assert behaviour_ratios(log) == pytest.approx([2.0, 4.0] * 4)
    both = behaviour_ratios(replace(log, offered=np.ones((8, 2), np.bool_)))
    assert both == pytest.approx(np.array([2.0, 4.0] * 4) * (4.5 / 5))  # the other one has half a row of five
    none = behaviour_ratios(replace(log, target_logp=np.full((8, 2), -np.inf)))
    assert none == pytest.approx(np.zeros(8))


def test_a_feature_that_never_varies_is_left_out() -> None:
    x, y = np.array([1.0, -1.0, 1.0, -1.0]), np.array([1.0, 1.0, -1.0, -1.0])
    assert _features(np.column_stack([np.full(4, 7.0), x, y])).tolist() == np.column_stack([np.ones(4), x, y]).tolist()


def test_twelve_features_are_taken_as_they_are() -> None:
    signs = np.where(np.random.default_rng(0).random((64, 13)) < 0.5, -1.0, 1.0)
    signs[32:] = -signs[:32]  # mean 0 and spread 1 each
    assert _features(signs[:, :12])[:, 1:].tolist() == signs[:, :12].tolist()
    principal = _features(signs)
    assert principal.shape == (64, 13)
    assert not np.allclose(np.abs(principal[:, 1:]), 1.0)


def test_an_action_of_twenty_rows_has_a_model_and_one_of_nineteen_its_share() -> None:
    x = np.where(np.arange(41) % 2 == 1, 1.0, -1.0)
    features, action = np.column_stack([np.ones(41), x]), (x > 0).astype(np.int64)
    offered = np.ones((41, 2), np.bool_)
    (modelled,) = _modelled(features, action, offered, np.arange(40), np.array([39]))
    # 40 rows, of which each has its action's sign: the slope b is 40 (1 - sigmoid(b))
    assert math.log(modelled[1] / modelled[0]) == pytest.approx(40 * modelled[0], rel=1e-6)
    assert modelled[1] > 0.9
    for used, share in ((np.arange(39), 19.5 / 40), (np.arange(1, 40), 20.5 / 40)):
        (shares,) = _modelled(features, action, offered, used, np.array([40]))
        assert shares[1] == pytest.approx(share)


def test_two_units_have_a_tail_and_infinite_sums_have_none() -> None:
    two = np.array([1.0, -1.0])
    assert _verdicts(RULES.tails(two, np.array([0, 1]))) == ["weak"]
    assert RULES.tails(two, np.array([0, 0])) == []
    half = replace(RULES, unit_share_refuse=0.5)
    assert _verdicts(half.tails(two, np.array([0, 1]))) == ["weak"]
    assert _verdicts(replace(half, unit_share_refuse=0.4999).tails(two, np.array([0, 1]))) == ["refuse"]
    far = np.array([1.7e308, -1.7e308, 1.7e308, -1.7e308])
    unit = np.array([0, 1, 0, 1])
    assert RULES.tails(far, unit) == []
    with np.errstate(over="ignore"):
        interval = normal_interval(far, unit, level=0.95)
    assert (interval.low, interval.high) == (-math.inf, math.inf)
    still = normal_interval(np.ones(2), np.array([0, 1]), level=0.95)
    assert (still.low, still.high) == (1.0, 1.0)


def test_shares_of_units_on_their_bounds_are_light() -> None:
    # 500 units, 16 of which have 1/16 of the variance each, 8 on either side: half of it is held by 8
    values, unit = np.zeros(500), np.arange(500)
    values[:16] = [1.0, -1.0] * 8
    none = {"unit_share_pass": 0.0, "unit_share_weak": 0.0, "unit_share_two_sided": 0.0}
    passing = {**none, "unit_share_pass": 1 / 16}
    weak = {**none, "unit_share_weak": 1 / 16, "half_variance_units": 8.0}
    sides = {**none, "unit_share_two_sided": 1 / 16, "lesser_side": 0.5}
    for light, name, heavier in (
        (passing, "unit_share_pass", 0.0624),
        (weak, "unit_share_weak", 0.0624),
        (weak, "half_variance_units", 8.01),
        (sides, "unit_share_two_sided", 0.0624),
        (sides, "lesser_side", 0.501),
    ):
        assert replace(RULES, **light).tails(values, unit) == []
        assert _verdicts(replace(RULES, **{**light, name: heavier}).tails(values, unit)) == ["weak"]


def test_five_units_of_half_the_variance_on_two_sides_are_light() -> None:
    # Squares of 8 and 1 (4 of 1/4): the first five have 5/9. Without the quarters, four have half
    eight, rules = [1.0, -1.0] * 4, replace(RULES, unit_share_pass=0.0, unit_share_weak=0.0)
    for values, verdicts in (([*eight, 0.5, -0.5, 0.5, -0.5], []), ([*eight, 0.0, 0.0, 0.0, 0.0], ["weak"])):
        assert _verdicts(rules.tails(np.array(values), np.arange(12))) == verdicts


def test_clipped_weights_may_leave_a_quarter_of_the_error_out() -> None:
    assert RULES.clipping(-0.25, 1.0) == []
    assert _verdicts(RULES.clipping(-0.2501, 1.0)) == ["weak"]


def test_a_feature_of_eight_values_has_a_part_for_each_and_one_of_none_has_no_parts() -> None:
    eight = np.tile(np.arange(8.0), 2)
    (parts,) = _parts(eight[:, None])
    assert parts.tolist() == eight.tolist()
    nine = np.tile(np.arange(9.0), 2)
    (quantiles,) = _parts(nine[:, None])  # the quantiles of the 18 values: 0, 0.7, 2, 4, 6, 7.3 and 8
    assert quantiles.tolist() == [1, 2, 3, 3, 4, 4, 5, 5, 7] * 2
    assert _parts(np.zeros((16, 1))) == []


def test_an_action_is_missed_where_seven_executions_are_expected() -> None:
    # Half of the rows have either action, all of them in its own part of 14 rows: 7 are expected in the other one
    action = np.repeat([0, 1], 14)
    log = LoggedFeedback(
        contexts=np.zeros((28, 1)), action=action, logp=np.log(np.full(28, 0.5)), reward=np.zeros(28),
        target_logp=np.log(np.full((28, 2), 0.5)), unit=np.arange(28),
    )  # fmt: skip
    assert _never_executed(log, [action]) == pytest.approx(0.5)
    assert _never_executed(replace(log, logp=np.log(np.full(28, 0.49))), [action]) == 0.0


def _calibration_reasons(log: LoggedFeedback, version: np.ndarray | None = None, **bounds: float) -> int:
    """Number of reasons against the propensities beside a model of the log's policy."""
    rules = replace(RULES, **{"support_deviations": 1e9, "ratio_deviations": 1e9, "group_deviations": 1e9, **bounds})
    return sum(reason.rule == "calibration" for reason in rules.audit_weights(log, version=version)[0])


def test_an_excess_of_the_bound_or_of_its_deviations_is_no_fault() -> None:
    log = _one_action_offered(50)  # ratios of 2 and 4 alike: 2 above 1, with an error of 1/7
    excess = float((behaviour_ratios(log) - 1).mean())  # pyright: ignore[reportOptionalOperand]
    assert excess == pytest.approx(2.0)
    assert _calibration_reasons(log, ratio_deviations=0.0, miscalibrated_refuse=excess) == 0
    assert _calibration_reasons(log, ratio_deviations=0.0, miscalibrated_refuse=math.nextafter(excess, 0)) == 1
    error = standard_error(behaviour_ratios(log), log.unit)  # pyright: ignore[reportArgumentType]
    assert error == pytest.approx(1 / 7)
    assert excess / error * error == excess
    assert _calibration_reasons(log, ratio_deviations=excess / error) == 0
    assert _calibration_reasons(log, ratio_deviations=13.99) == 1


def test_one_version_is_judged_as_the_whole_log_and_two_by_themselves() -> None:
    log = _one_action_offered(50)
    assert _calibration_reasons(log, np.zeros(50, np.int64), group_deviations=0.0) == 0
    assert _calibration_reasons(log, np.arange(50) // 25, group_deviations=0.0) == 1


def test_logged_probabilities_may_differ_by_a_thousandth_of_a_nat() -> None:
    known = np.tile(np.array([-1e-3, math.log(-math.expm1(-1e-3))]), (8, 1))
    log = replace(_one_action_offered(), behaviour_logp=known)
    for logp, apart in ((0.0, 0), (math.nextafter(0.0, 1), 0), (1e-18, 1), (-3e-3, 1)):
        reasons, _ = RULES.audit_weights(replace(log, logp=np.full(8, logp)))
        assert sum("than the log's policy gives" in one.words for one in reasons) == apart


def test_a_lost_mass_of_the_tolerance_is_support() -> None:
    # Two actions that the log's policy never takes: their probabilities add up to the tolerance, and to a little more
    large = math.log(0.99 * LOGP_TOLERANCE)
    small = math.log(LOGP_TOLERANCE - float(np.exp(large)))
    for rest, overlap in ((small, 1.0), (small + 1e-6, 0.0)):
        target = np.tile(np.array([math.log1p(-LOGP_TOLERANCE), large, rest]), (8, 1))
        log = replace(
            _one_action_offered(), target_logp=target, logp=np.zeros(8),
            behaviour_logp=np.tile(np.array([0.0, -np.inf, -np.inf]), (8, 1)),
        )  # fmt: skip
        assert (log.target[0, 1:].sum() == LOGP_TOLERANCE) == (overlap == 1.0)
        assert RULES.audit_weights(log)[1] == overlap


def test_a_missing_share_of_a_stream_of_its_deviations_is_not_lost() -> None:
    # Weights 1 and 0: a half is missing, and the error of the mean is sqrt(2 / 1 (1/4 + 1/4)) / 2 = 1/2
    log = replace(_one_action_offered(2), logp=np.zeros(2), target_logp=np.array([[0.0, -np.inf], [-np.inf, 0.0]]))
    assert log.weight.tolist() == [1.0, 0.0]
    for deviations, overlap in ((1.0, 1.0), (0.999, 0.5)):
        settings = EstimateSettings(rules=replace(RULES, support_deviations=deviations))
        sums = StreamedEstimates(names=("ips",), rows=2, settings=settings)
        sums.add(log, np.zeros((0, 0)), np.array([False, True]))
        assert sums.estimates()["ips"].overlap == overlap
