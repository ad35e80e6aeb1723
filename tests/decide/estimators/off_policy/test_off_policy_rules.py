"""Each rule of refusal, with its figures: the log, the weights, the rewards, the halves, the model."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hone.core.decisions import ActionSet, DecisionTable
from hone.decide.estimators.estimate import EstimateSettings, estimate_values, weight_tail
from hone.decide.estimators.rules import (
    RefusalRules,
    VerdictReason,
    usable_rows,
    worst_verdict,
)
from hone.decide.estimators.terms import LoggedFeedback

RULES = RefusalRules()


def good_log(seed: int = 0, n: int = 2000, actions: int = 4) -> LoggedFeedback:
    """A log of a uniform policy, and a target near to it."""
    random = np.random.default_rng(seed)
    chosen = random.integers(0, actions, n)
    target = np.full((n, actions), 0.2)
    target[np.arange(n), random.integers(0, actions, n)] += 0.2
    return LoggedFeedback(
        contexts=random.normal(size=(n, 2)), action=chosen, logp=np.full(n, -math.log(actions)),
        reward=(random.random(n) < 0.3 + 0.1 * chosen).astype(float), target_logp=np.log(target), unit=np.arange(n),
        behaviour_logp=None,
    )  # fmt: skip


def good_table(n: int = 100) -> DecisionTable:
    return DecisionTable(
        contexts=np.zeros((n, 1)), action_sets=(ActionSet(names=("a", "b")),), action_set=np.zeros(n, np.int64),
        executed=np.arange(n) % 2, logp=np.full(n, math.log(0.5)), reward=np.arange(n) % 3 * 1.0,
        known=np.ones(n, np.bool_), at_s=np.arange(n) * 1.0, ids=tuple(f"d{i}" for i in range(n)),
        units=tuple(f"u{i}" for i in range(n)), versions=("v1",) * n,
    )  # fmt: skip


def at(values: np.ndarray, row: int, value: float) -> np.ndarray:
    return np.where(np.arange(len(values)) == row, value, values)


def found(reasons: list[VerdictReason] | tuple[VerdictReason, ...]) -> list[tuple[str, str]]:
    return [(reason.rule, reason.verdict) for reason in reasons]


def test_a_good_log_passes_every_rule() -> None:
    assert RULES.audit_table(good_table()) == []
    made = estimate_values(good_log(), ["ips", "snips", "dr"], EstimateSettings())
    assert all(one.estimate.verdict == "ok" and one.estimate.overlap == 1.0 for one in made.values())


@pytest.mark.parametrize(
    ("logp", "words"),
    [
        (-np.inf, "probability 0: 'd7' (0)"),
        (0.3, "probability above 1: 'd7' (1.34986)"),
        (np.nan, "no probability: 'd7'"),
    ],
)
def test_a_propensity_that_is_none_is_refused(logp: float, words: str) -> None:
    table = replace(good_table(), logp=at(good_table().logp, 7, logp))
    reasons = RULES.audit_table(table)
    assert found(reasons) == [("propensities", "refuse")]
    assert "1 rows" in reasons[0].words
    assert words in reasons[0].words
    assert not usable_rows(table)[7]
    assert usable_rows(table).sum() == 99


def test_a_probability_that_underflows_is_one() -> None:
    """The probability of a long answer is 0 as a float, and its logarithm is not."""
    table = replace(good_table(), logp=at(good_table().logp, 7, -900.0))
    assert RULES.audit_table(table) == []
    assert usable_rows(table).all()
    long = replace(good_log(), logp=good_log().logp - 900, target_logp=good_log().target_logp - 900)
    assert long.weight == pytest.approx(good_log().weight)


def test_a_known_reward_that_is_not_finite_is_refused() -> None:
    table = replace(good_table(), reward=at(good_table().reward, 3, np.nan))
    assert found(RULES.audit_table(table)) == [("rewards", "refuse")]
    assert found(RULES.audit_table(replace(table, known=at(table.known, 3, 0) > 0))) == []  # it is merely open


def test_an_id_that_occurs_twice_is_refused() -> None:
    reasons = RULES.audit_table(replace(good_table(3), ids=("d0", "d1", "d0")))
    assert found(reasons) == [("duplicates", "refuse")]
    assert "'d0'" in reasons[0].words


def test_contexts_of_several_schemas_are_refused() -> None:
    reasons = RULES.audit_table(replace(good_table(3), schemas=("aa", "bb", "aa")))
    assert found(reasons) == [("schemas", "refuse")]
    assert "aa (2 rows), bb (1 rows)" in reasons[0].words
    assert RULES.audit_table(replace(good_table(3), schemas=("aa",) * 3)) == []


@pytest.mark.parametrize(("open_rows", "verdict"), [(1, None), (5, "weak"), (20, "refuse")])
def test_open_windows_beyond_a_share_are_weak_then_refused(open_rows: int, verdict: str | None) -> None:
    table = replace(good_table(), known=np.arange(100) >= open_rows)
    assert found(RULES.audit_table(table)) == ([("open windows", verdict)] if verdict else [])


def test_support_is_exact_where_the_behaviour_policy_is_known() -> None:
    log = good_log()
    behaviour = np.log(np.full((2000, 4), 0.25))
    behaviour[:840, 2] = -np.inf
    reasons, overlap = RULES.audit_weights(replace(log, behaviour_logp=behaviour))
    assert ("support", "refuse") in found(reasons)
    assert overlap == pytest.approx(0.58)
    assert any("42.0% of the contexts have no support" in reason.words for reason in reasons)


@pytest.mark.parametrize("seed", range(5))
def test_missing_support_shows_in_the_mean_weight(seed: int) -> None:
    """The log's policy never takes action 3 in 42% of the contexts; only the executed probabilities are logged."""
    random = np.random.default_rng(seed)
    n = 3000
    bare = random.random(n) < 0.42
    chosen = np.where(bare, random.integers(0, 3, n), random.integers(0, 4, n))
    with np.errstate(divide="ignore"):
        target = np.log(np.tile([0.0, 0.0, 0.0, 1.0], (n, 1)))
    log = LoggedFeedback(
        contexts=np.zeros((n, 1)), action=chosen, logp=np.log(np.where(bare, 1 / 3, 0.25)), reward=random.random(n),
        target_logp=target, unit=np.arange(n),
    )  # fmt: skip
    reasons, overlap = RULES.audit_weights(log)
    assert ("support", "refuse") in found(reasons)
    assert overlap == pytest.approx(0.58, abs=0.07)


def test_support_that_lacks_in_one_version_only_is_found_by_version() -> None:
    """Version 1 (2% of the log) never takes action 3, which the target always takes."""
    random, n = np.random.default_rng(5), 5000
    version = (np.arange(n) % 50 == 0).astype(np.int64)
    chosen = np.where(version == 1, random.integers(0, 3, n), random.integers(0, 4, n))
    log = LoggedFeedback(
        contexts=np.zeros((n, 1)), action=chosen, logp=np.log(np.where(version == 1, 1 / 3, 0.25)),
        reward=random.random(n), target_logp=np.log(np.tile([1e-9, 1e-9, 1e-9, 1 - 3e-9], (n, 1))), unit=np.arange(n),
    )  # fmt: skip
    assert "support" not in dict(found(RULES.audit_weights(log)[0]))
    assert ("support", "weak") in found(RULES.audit_weights(log, version=version)[0])


def test_the_choosers_probability_beside_the_executed_action_is_refused() -> None:
    """A fifth of the choices was replaced by action 0 and logged with the probability of the choice."""
    log = good_log(n=6000)
    random = np.random.default_rng(1)
    replaced = random.random(6000) < 0.2
    target = np.log(np.tile([0.7, 0.1, 0.1, 0.1], (6000, 1)))
    lying = replace(log, action=np.where(replaced, 0, log.action), target_logp=target)
    reasons, _ = RULES.audit_weights(lying)
    assert ("calibration", "refuse") in found(reasons)
    assert RULES.audit_weights(replace(log, target_logp=target))[0] == []


@pytest.mark.parametrize(("n", "verdict"), [(40, "refuse"), (150, "weak")])
def test_a_small_effective_sample_is_weak_then_refused(n: int, verdict: str) -> None:
    assert ("sample size", verdict) in found(RULES.audit_weights(good_log(n=n))[0])


def test_one_row_with_most_of_the_weight_is_weak() -> None:
    log = good_log()
    reasons, _ = RULES.audit_weights(replace(log, logp=at(log.logp, 9, math.log(0.0005))))
    assert ("largest weight", "weak") in found(reasons)
    assert any("row 9 has" in reason.words for reason in reasons)


def test_rewards_with_few_events_are_weak() -> None:
    assert RULES.rewards(np.repeat([0.0, 1.0], [900, 60])) == []
    assert found(RULES.rewards(np.repeat([0.0, 1.0], [900, 38]))) == [("events", "weak")]


def test_drift_between_the_halves_is_refused_and_its_absence_is_not() -> None:
    refused = 0
    for seed in range(200):
        values = np.random.default_rng(seed).normal(size=400)
        refused += any(one.verdict == "refuse" for one in RULES.halves(values, np.arange(400)))
        values[200:] += 1.0
        assert found(RULES.halves(values, np.arange(400))) == [("drift", "refuse")]
    assert refused <= 2  # 0.2 expected of 200
    assert RULES.halves(np.ones(10), np.arange(10)) == []


def test_an_estimate_carries_its_reasons_and_assumptions() -> None:
    log = good_log(1)
    bad = [VerdictReason(rule="duplicates", verdict="refuse", words="twice")]
    made = estimate_values(log, ["ips", "dm"], EstimateSettings(), log_reasons=bad)
    assert made["ips"].estimate.verdict == "refuse"
    clean = estimate_values(log, ["dm"], EstimateSettings())["dm"].estimate
    assert (clean.verdict, found(clean.reasons)) == ("weak", [("model", "weak")])
    assert "reward model" in clean.assumptions[0]
    assert worst_verdict([]) == "ok"


def test_a_target_that_the_log_never_shows_is_refused_without_a_crash() -> None:
    log = replace(good_log(), action=np.zeros(2000, np.int64))
    with np.errstate(divide="ignore"):
        never = replace(log, target_logp=np.log(np.tile([0.0, 1.0, 0.0, 0.0], (2000, 1))))
    for one in estimate_values(never, ["ips", "snips", "sndr"], EstimateSettings()).values():
        assert one.estimate.verdict == "refuse"
        assert one.estimate.overlap == 0.0
        assert one.estimate.ess == 0.0


def test_every_interval_is_offered_and_bernstein_refuses_ratios() -> None:
    log = good_log()
    widths = []
    for kind in ("normal", "bootstrap", "bernstein"):
        one = estimate_values(log, ["dr"], EstimateSettings(interval=kind, draws=200))["dr"].estimate  # type: ignore[arg-type]
        assert one.low < one.value < one.high
        widths.append(one.high - one.low)
    assert widths[2] > 2 * widths[0]
    assert "beyond those of the log" in one.assumptions[-1]
    clipped = estimate_values(log, ["clipped"], EstimateSettings(interval="bernstein", max_weight=1.0))["clipped"]
    assert clipped.estimate.high > clipped.estimate.value
    with pytest.raises(ValueError, match="snips is a ratio"):
        estimate_values(log, ["snips"], EstimateSettings(interval="bernstein"))
    with pytest.raises(ValueError, match="no rows"):
        estimate_values(log.rows(np.zeros(0, np.int64)), ["ips"], EstimateSettings())


def test_a_paired_difference_is_narrower_than_two_intervals() -> None:
    log = good_log()
    near = replace(log, target_logp=np.log(np.roll(log.target, 1, axis=1) * 0.1 + log.target * 0.9))
    first, second = (estimate_values(one, ["dr"], EstimateSettings())["dr"] for one in (log, near))
    paired = first.paired_difference(second, log.unit, level=0.95)
    assert paired.value == pytest.approx(second.estimate.value - first.estimate.value)
    assert paired.standard_error < 0.3 * math.hypot(first.estimate.standard_error, second.estimate.standard_error)


def test_the_tail_of_the_weights_by_hand() -> None:
    tail = weight_tail(np.append(np.ones(99), 101.0))
    assert (tail.median, tail.largest, tail.top_share) == (1.0, 101.0, pytest.approx(0.505))
