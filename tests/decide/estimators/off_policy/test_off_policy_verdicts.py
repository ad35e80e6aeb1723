"""Verdicts: tails by kind of reward, everything that is not finite, propensities and support that a log gets wrong."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hone.decide.estimators.estimate import EstimateSettings, EstimatorName, estimate_values
from hone.decide.estimators.propensities import behaviour_ratios
from hone.decide.estimators.rules import RefusalRules, VerdictReason
from hone.decide.estimators.terms import LoggedFeedback, normal_interval

RULES = RefusalRules()
NAMES: list[EstimatorName] = ["ips", "snips", "clipped", "dr", "sndr", "switch", "mrdr", "dm"]


def log_of(reward: np.ndarray, *, seed: int = 0, floor: float = 0.1) -> LoggedFeedback:
    """A log of a softmax policy over three actions, with these rewards."""
    random, n = np.random.default_rng(seed), len(reward)
    contexts = random.normal(size=(n, 2))
    odds = np.exp(0.5 * contexts[:, :1] * np.array([1.0, -1.0, 0.3]))
    behaviour = floor + (1 - 3 * floor) * odds / odds.sum(axis=1, keepdims=True)
    action = (behaviour.cumsum(axis=1) < random.random((n, 1))).sum(axis=1).clip(0, 2)
    target = np.roll(behaviour, 1, axis=1)
    return LoggedFeedback(
        contexts=contexts, action=action, logp=np.log(behaviour[np.arange(n), action]), reward=reward,
        target_logp=np.log(target), unit=np.arange(n),
    )  # fmt: skip


def rules_of(reasons: list[VerdictReason] | tuple[VerdictReason, ...]) -> set[tuple[str, str]]:
    return {(reason.rule, reason.verdict) for reason in reasons}


LIGHT = {
    "bernoulli": lambda random, n: (random.random(n) < 0.3) * 1.0,
    "gaussian": lambda random, n: 1 + random.normal(size=n),
    "uniform": lambda random, n: random.random(n),
    "gamma of shape 4": lambda random, n: random.gamma(4.0, size=n),
}
HEAVY = {
    "pareto 1.5": lambda random, n: random.pareto(1.5, n),
    "pareto 2.2": lambda random, n: random.pareto(2.2, n),
    "lognormal 1.8": lambda random, n: np.exp(1.8 * random.normal(size=n)),
    "one in a hundred times a hundred": lambda random, n: np.where(random.random(n) < 0.01, 100.0, 1.0),
    "negative pareto": lambda random, n: -random.pareto(1.8, n),
}


@pytest.mark.parametrize("kind", LIGHT)
def test_light_tails_with_fair_propensities_stay_ok(kind: str) -> None:
    ok = 0
    for seed in range(12):
        reward = LIGHT[kind](np.random.default_rng(seed), 2000)
        made = estimate_values(log_of(reward, seed=seed), ["ips", "dr"], EstimateSettings())
        ok += sum("tail" not in {rule for rule, _ in rules_of(one.estimate.reasons)} for one in made.values())
    assert ok >= 23


@pytest.mark.parametrize("kind", HEAVY)
def test_heavy_tails_are_not_ok(kind: str) -> None:
    ok = 0
    for seed in range(12):
        reward = HEAVY[kind](np.random.default_rng(seed), 2000)
        made = estimate_values(log_of(reward, seed=seed), ["ips", "snips", "dr"], EstimateSettings())
        ok += sum(one.estimate.verdict == "ok" for one in made.values())
    assert ok <= 2


def test_the_tail_rule_by_hand() -> None:
    """Contributions -1 and 1, and one of 20: 400 of 400 + 499, less the mean, is 44% of the variance."""
    values = np.append(np.tile([-1.0, 1.0], 250)[:-1], 20.0)
    reasons = RULES.tails(values, np.arange(500))
    assert rules_of(reasons) == {("tail", "weak")}
    assert "one unit has 44% of the variance, and 49 of 500 have half of it" in reasons[0].words
    assert RULES.tails(np.tile([-1.0, 1.0], 250), np.arange(500)) == []
    assert RULES.tails(np.ones(10), np.arange(10)) == []  # no variance at all is no tail
    large = np.append(np.tile([-1.0, 1.0], 250)[:-1], 200.0)
    assert rules_of(RULES.tails(large, np.arange(500))) == {("tail", "refuse")}
    both = np.concatenate([np.tile([-1.0, 1.0], 240), np.tile([-6.0, 6.0], 10)])
    assert RULES.tails(both, np.arange(500)) == []
    assert RULES.tails(values, np.zeros(500, np.int64)) == []  # one unit: no variance between units, refused elsewhere


def test_the_share_of_a_unit_is_that_of_its_rows_together() -> None:
    values, unit = np.tile([-1.0, 1.0], 1000), np.arange(2000)
    together = np.where(values > 0, unit % 20, unit)  # the positive rows are of ten units
    assert RULES.tails(values, unit) == []
    assert RULES.tails(values, together) != []


@pytest.mark.parametrize(("share", "passes"), [(0.0799, True), (0.0801, False)])
def test_a_share_at_the_bound_of_500_units(share: float, passes: bool) -> None:
    """One value, and its mirror image in many small ones: 500 units, of which one has just this share."""
    rules = RefusalRules(half_variance_units=1e9, lesser_side=0.6)
    rest = np.tile([-1.0, 1.0], 250)[:-1]
    low, high = 0.0, 100.0
    for _ in range(80):
        middle = (low + high) / 2
        values = np.append(rest, middle)
        squares = (values - values.mean()) ** 2
        low, high = (middle, high) if squares.max() / squares.sum() < share else (low, middle)
    assert (rules.tails(np.append(rest, high), np.arange(500)) == []) is passes


def test_a_bound_of_known_range_has_no_tail_rule() -> None:
    random = np.random.default_rng(0)
    log = log_of((random.random(2000) < 0.05) * random.random(2000) ** 9)
    known = EstimateSettings(interval="bernstein", reward_range=(0.0, 1.0), weight_bound=10.0)
    assert ("tail", "weak") in rules_of(estimate_values(log, ["ips"], EstimateSettings())["ips"].estimate.reasons)
    assert "tail" not in dict(rules_of(estimate_values(log, ["ips"], known)["ips"].estimate.reasons))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [1e308, -1e308, 1e200, np.inf, np.nan])
def test_a_reward_that_leaves_no_finite_estimate_is_refused(name: EstimatorName, value: float) -> None:
    reward = np.random.default_rng(0).random(400)
    reward[7] = value
    estimate = estimate_values(log_of(reward), [name], EstimateSettings())[name].estimate
    figures = (estimate.value, estimate.low, estimate.high, estimate.standard_error)
    assert estimate.verdict == "refuse"
    assert "not finite" in dict(rules_of(estimate.reasons)) or all(map(math.isfinite, figures))


@pytest.mark.parametrize("interval", ["normal", "bootstrap", "bernstein"])
def test_every_interval_of_an_infinite_value_is_refused(interval: str) -> None:
    reward = np.random.default_rng(0).random(400)
    reward[3] = 1e308
    settings = EstimateSettings(interval=interval, draws=50)  # type: ignore[arg-type]
    estimate = estimate_values(log_of(reward), ["ips"], settings)["ips"].estimate
    assert estimate.verdict == "refuse"
    assert any("row 3" in reason.words or "floating point" in reason.words for reason in estimate.reasons)


def test_contexts_and_weights_that_are_not_finite_are_refused() -> None:
    log = log_of(np.random.default_rng(0).random(400))
    for value in (np.nan, np.inf):
        contexts = log.contexts.copy()
        contexts[5, 1] = value
        for one in estimate_values(replace(log, contexts=contexts), ["ips", "dr"], EstimateSettings()).values():
            assert one.estimate.verdict == "refuse"
            assert "the contexts of 1 rows are not finite, first of row 5" in " ".join(
                reason.words for reason in one.estimate.reasons
            )
    logp = np.where(np.arange(400) == 9, -800.0, log.logp)
    found = estimate_values(replace(log, logp=logp), ["ips"], EstimateSettings())["ips"].estimate
    assert found.verdict == "refuse"
    assert found.reasons[0].words.startswith("the weights of 1 rows are not finite, first of row 9")


def test_large_but_sound_units_of_reward_change_nothing() -> None:
    """Cents or billions: verdicts and coverage are the same, up to 1e150."""
    log = log_of(np.random.default_rng(4).random(1000))
    for scale in (1e-150, 1e150):
        one = estimate_values(replace(log, reward=scale * log.reward), ["ips"], EstimateSettings())["ips"].estimate
        assert one.verdict == "ok"
        assert one.low < one.value < one.high


def test_a_target_that_is_no_distribution_is_refused() -> None:
    log = log_of(np.random.default_rng(0).random(400))
    part = replace(log, target_logp=log.target_logp + np.log(0.95))
    assert ("target", "refuse") in rules_of(RULES.audit_weights(part)[0])
    assert "add up to 0.95" in RULES.audit_weights(part)[0][0].words


# ------------------------------------------------------------------------------------------------- propensities


def test_the_mean_ratio_to_a_model_is_one_for_right_propensities() -> None:
    """Unbiased whatever the model is; with propensities that are a tenth too small it is 1 / 0.9."""
    means = []
    for seed in range(30):
        log = log_of(np.zeros(600), seed=seed)
        ratios = behaviour_ratios(log)
        assert ratios is not None
        means.append(ratios.mean())
        small = behaviour_ratios(replace(log, logp=log.logp + np.log(0.9)))
        assert small is not None and small.mean() == pytest.approx(ratios.mean() / 0.9)
    assert np.mean(means) == pytest.approx(1.0, abs=0.01)
    assert np.std(means) < 0.03
    assert behaviour_ratios(log_of(np.zeros(3))) is None


@pytest.mark.parametrize("factor", [0.9, 0.8])
def test_propensities_that_are_too_small_are_refused(factor: float) -> None:
    found = sum(
        ("calibration", "refuse") in rules_of(RULES.audit_weights(replace(log, logp=log.logp + np.log(factor)))[0])
        for log in (log_of(np.zeros(1000), seed=seed) for seed in range(20))
    )
    assert found == 20


def test_one_version_with_small_propensities_is_refused() -> None:
    log, version = log_of(np.zeros(3000), seed=3), (np.arange(3000) % 10 == 0).astype(np.int64)
    wrong = replace(log, logp=log.logp + np.log(0.7) * version)
    assert ("calibration", "refuse") in rules_of(RULES.audit_weights(wrong, version=version)[0])


def test_sound_logs_are_not_accused() -> None:
    accused = 0
    for seed in range(30):
        log = log_of(np.zeros(1000), seed=seed)
        version = (np.arange(1000) % 2).astype(np.int64)
        reasons = RULES.audit_weights(log, version=version)[0]
        accused += any(one.rule in {"calibration", "support", "target"} for one in reasons)
    assert accused <= 1


def test_a_deterministic_log_of_its_own_policy_is_sound() -> None:
    """Propensities of 1 beside a model that cannot tell a bent border: its ratios are below 1, which is no fault."""
    random = np.random.default_rng(0)
    contexts = random.normal(size=(1000, 2))
    action = ((contexts**2).sum(axis=1) > 1.4).astype(np.int64)
    with np.errstate(divide="ignore"):
        logp = np.log(np.eye(2)[action])
    log = LoggedFeedback(
        contexts=contexts, action=action, logp=np.zeros(1000), reward=random.random(1000), target_logp=logp,
        unit=np.arange(1000), offered=np.ones((1000, 2), np.bool_),
    )  # fmt: skip
    assert RULES.audit_weights(log) == ([], 1.0)


def test_the_propensities_of_a_known_policy_are_compared_row_by_row() -> None:
    log = log_of(np.zeros(500))
    odds = np.exp(0.5 * log.contexts[:, :1] * np.array([1.0, -1.0, 0.3]))
    behaviour = np.log(0.1 + 0.7 * odds / odds.sum(axis=1, keepdims=True))
    assert RULES.audit_weights(replace(log, behaviour_logp=behaviour))[0] == []
    wrong = np.where(np.arange(500) == 8, log.logp - 0.1, log.logp)
    reasons = RULES.audit_weights(replace(log, behaviour_logp=behaviour, logp=wrong))[0]
    assert rules_of(reasons) == {("calibration", "weak")}
    assert "1 rows have another probability than the log's policy gives their action, first row 8" in reasons[0].words


# ------------------------------------------------------------------------------------------------------ support


def test_mass_on_an_action_that_is_never_executed_is_found() -> None:
    """5% of the target's choices, in a log of 500 rows whose mean weight says nothing yet."""
    log = log_of(np.zeros(500))
    target = np.column_stack([0.95 * log.target, np.full(500, 0.05)])
    reasons, overlap = RULES.audit_weights(replace(log, target_logp=np.log(target)))
    assert overlap == pytest.approx(0.95, abs=0.03)
    assert "support" in dict(rules_of(reasons))
    assert RULES.audit_weights(log) == ([], 1.0)


@pytest.mark.parametrize(("share", "verdict"), [(0.05, "weak"), (0.12, "refuse"), (0.2, "refuse")])
def test_support_that_lacks_in_a_part_of_a_feature_is_found(share: float, verdict: str) -> None:
    random, n = np.random.default_rng(1), 2000
    contexts = random.normal(size=(n, 3))
    behaviour = np.full((n, 4), 0.25)
    behaviour[contexts[:, 1] > np.quantile(contexts[:, 1], 1 - share), 2] = 0
    behaviour /= behaviour.sum(axis=1, keepdims=True)
    action = (behaviour.cumsum(axis=1) < random.random((n, 1))).sum(axis=1).clip(0, 3)
    log = LoggedFeedback(
        contexts=contexts, action=action, logp=np.log(behaviour[np.arange(n), action]), reward=random.random(n),
        target_logp=np.log(np.tile([0.1, 0.1, 0.7, 0.1], (n, 1))), unit=np.arange(n),
    )  # fmt: skip
    assert ("support", verdict) in rules_of(RULES.audit_weights(log)[0])


# ---------------------------------------------------------------------------------------------------- intervals


def test_the_interval_is_longer_on_the_side_of_a_skew_by_hand() -> None:
    """Values 0, 0, 0, 4: deviations -1, -1, -1, 3, sum of cubes 24, of squares 12, g = 24 / 12^1.5 = 0.577."""
    made = normal_interval(np.array([0.0, 0.0, 0.0, 4.0]), np.arange(4), level=0.95)
    z, error = 1.959964, math.sqrt(4 / 3 * 12) / 4
    assert made.low == pytest.approx(1 - z * error, rel=1e-5)
    assert made.high == pytest.approx(1 + z * error + 24 / 12**1.5 * (1 + 2 * z**2) / 2 * error, rel=1e-5)
    mirrored = normal_interval(np.array([0.0, 0.0, 0.0, -4.0]), np.arange(4), level=0.95)
    assert (mirrored.low, mirrored.high) == pytest.approx((-made.high, -made.low))
    even = normal_interval(np.array([-1.0, 1.0, -1.0, 1.0]), np.arange(4), level=0.95)
    assert even.high == pytest.approx(-even.low)


def test_clipping_that_leaves_much_out_is_weak() -> None:
    log = log_of(np.random.default_rng(0).random(2000), floor=0.02)
    tight = estimate_values(log, ["clipped"], EstimateSettings(max_weight=0.5))["clipped"].estimate
    loose = estimate_values(log, ["clipped"], EstimateSettings(max_weight=1e6))["clipped"].estimate
    assert ("clipping", "weak") in rules_of(tight.reasons)
    assert "clipping" not in dict(rules_of(loose.reasons))
