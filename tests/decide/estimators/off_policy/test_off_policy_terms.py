"""Estimators of single decisions: values by hand, a peer's values, plain loops, unbiasedness by enumeration."""

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.decide.estimators import terms as forms
from hone.decide.estimators.estimate import (
    ESTIMATORS,
    EstimateSettings,
    estimator_terms,
)
from hone.decide.estimators.reward_models import RewardModelSettings, cross_fitted_rewards
from hone.decide.estimators.terms import LoggedFeedback, effective_sample_size

GOLDEN = Path(__file__).resolve().parents[3] / "fixtures" / "off_policy" / "obp.json"


def logged_feedback(
    *, action: list[int], p: list[float], reward: list[float], target: list[list[float]], contexts: object = None
) -> LoggedFeedback:
    with np.errstate(divide="ignore"):
        return LoggedFeedback(
            contexts=np.zeros((len(action), 1)) if contexts is None else np.asarray(contexts, float),
            action=np.array(action),
            logp=np.log(np.array(p)),
            reward=np.array(reward, float),
            target_logp=np.log(np.array(target)),
            unit=np.arange(len(action)),
        )


BY_HAND = logged_feedback(
    action=[0, 1, 0], p=[0.5, 0.25, 0.8], reward=[1, 2, 3], target=[[1, 0], [0.5, 0.5], [0.2, 0.8]]
)
"""Weights 2, 2 and 0.25."""
MODEL = np.array([[0.5, 1.0], [1.0, 1.5], [2.0, 1.0]])
"""Expectations under the target 0.5, 1.25 and 1.2; residuals 0.5, 0.5 and 1."""


def test_values_by_hand() -> None:
    assert BY_HAND.weight == pytest.approx([2, 2, 0.25])
    dm = (0.5 + 1.25 + 1.2) / 3
    assert forms.inverse_propensity(BY_HAND).value == pytest.approx((2 + 4 + 0.75) / 3)
    assert forms.self_normalised(BY_HAND).value == pytest.approx(6.75 / 4.25)
    assert forms.clipped_inverse_propensity(BY_HAND, max_weight=1).value == pytest.approx((1 + 2 + 0.75) / 3)
    assert forms.direct_method(BY_HAND, MODEL).value == pytest.approx(dm)
    assert forms.doubly_robust(BY_HAND, MODEL).value == pytest.approx(dm + (1 + 1 + 0.25) / 3)
    assert forms.self_normalised_doubly_robust(BY_HAND, MODEL).value == pytest.approx(dm + 2.25 / 4.25)
    assert forms.switch_doubly_robust(BY_HAND, MODEL, max_weight=1).value == pytest.approx(dm + 0.25 / 3)
    assert BY_HAND.more_robust_weights() == pytest.approx([4, 4, 0.0625])
    assert effective_sample_size(BY_HAND.weight) == pytest.approx(4.25**2 / 8.0625)


def test_estimates_equal_the_golden_values_of_a_peer() -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    rows, row = np.arange(golden["rows"]), np.arange(golden["rows"])[:, None]
    action = np.arange(golden["actions"])[None, :]

    def softmax(scores: np.ndarray) -> np.ndarray:
        return np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)

    behaviour, target = softmax(np.sin(3 * row + 5 * action)), softmax(2 * np.sin(7 * row + 2 * action))
    chosen = (7 * rows**2 + 3 * rows) % golden["actions"]
    logged = LoggedFeedback(
        contexts=np.zeros((len(rows), 1)), action=chosen, logp=np.log(behaviour[rows, chosen]),
        reward=np.sin(11.0 * rows) + chosen, target_logp=np.log(target), unit=rows,
    )  # fmt: skip
    model = np.cos(row + action) / 2 + 0.5
    made = {
        "ips": forms.inverse_propensity(logged),
        "snips": forms.self_normalised(logged),
        "dm": forms.direct_method(logged, model),
        "dr": forms.doubly_robust(logged, model),
        "sndr": forms.self_normalised_doubly_robust(logged, model),
        "switch": forms.switch_doubly_robust(logged, model, max_weight=golden["max_weight"]),
    }
    assert made.keys() == golden["values"].keys()
    for name, value in golden["values"].items():
        assert made[name].value == pytest.approx(value, rel=1e-12, abs=1e-12)


def slow_values(logged: LoggedFeedback, model: np.ndarray, bound: float) -> dict[str, float]:
    """The formulas, row by row in plain Python."""
    n, actions = logged.target_logp.shape
    totals, dm, snips, below, correction, switched, clipped = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(n):
        a, r = int(logged.action[i]), float(logged.reward[i])
        w = math.exp(float(logged.target_logp[i, a])) / math.exp(float(logged.logp[i]))
        totals += w * r
        snips += w * r
        below += w
        clipped += min(w, bound) * r
        dm += sum(math.exp(float(logged.target_logp[i, k])) * float(model[i, k]) for k in range(actions))
        correction += w * (r - float(model[i, a]))
        switched += w * (r - float(model[i, a])) if w <= bound else 0.0
    return {
        "ips": totals / n, "snips": snips / below, "clipped": clipped / n, "dm": dm / n, "dr": (dm + correction) / n,
        "sndr": dm / n + correction / below, "switch": (dm + switched) / n,
    }  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> tuple[LoggedFeedback, np.ndarray]:
    n, actions = draw(st.integers(1, 12)), draw(st.integers(2, 4))
    random = np.random.default_rng(draw(st.integers(0, 10_000)))
    behaviour, target = random.dirichlet(np.ones(actions), n), random.dirichlet(np.ones(actions), n)
    chosen = random.integers(0, actions, n)
    logged = LoggedFeedback(
        contexts=random.normal(size=(n, 2)), action=chosen, logp=np.log(behaviour[np.arange(n), chosen]),
        reward=random.normal(size=n), target_logp=np.log(target), unit=random.integers(0, n, n),
    )  # fmt: skip
    return logged, random.normal(size=(n, actions))


@given(tables())
@examples(60)
def test_estimates_equal_plain_loops(table: tuple[LoggedFeedback, np.ndarray]) -> None:
    logged, model = table
    made = {
        "ips": forms.inverse_propensity(logged), "snips": forms.self_normalised(logged),
        "clipped": forms.clipped_inverse_propensity(logged, max_weight=1.5), "dm": forms.direct_method(logged, model),
        "dr": forms.doubly_robust(logged, model), "sndr": forms.self_normalised_doubly_robust(logged, model),
        "switch": forms.switch_doubly_robust(logged, model, max_weight=1.5),
    }  # fmt: skip
    for name, value in slow_values(logged, model, 1.5).items():
        assert made[name].value == pytest.approx(value, rel=1e-9, abs=1e-9)
        assert made[name].influence.mean() == pytest.approx(value, rel=1e-9, abs=1e-9)


@given(tables(), st.floats(-3, 3))
@examples(40)
def test_self_normalised_estimates_shift_with_the_rewards_and_stay_in_their_range(
    table: tuple[LoggedFeedback, np.ndarray], shift: float
) -> None:
    logged, model = table
    moved = LoggedFeedback(
        contexts=logged.contexts, action=logged.action, logp=logged.logp, reward=logged.reward + shift,
        target_logp=logged.target_logp, unit=logged.unit,
    )  # fmt: skip
    value = forms.self_normalised(logged).value
    assert forms.self_normalised(moved).value == pytest.approx(value + shift)
    assert logged.reward.min() - 1e-9 <= value <= logged.reward.max() + 1e-9
    assert forms.doubly_robust(moved, model + shift).value == pytest.approx(
        forms.doubly_robust(logged, model).value + shift
    )
    positive = forms.inverse_propensity(moved).value if (moved.reward >= 0).all() else math.inf
    assert forms.clipped_inverse_propensity(moved, max_weight=1.0).value <= positive + 1e-9


@given(tables())
@examples(20)
def test_a_policy_that_wrote_the_log_is_worth_the_mean_reward(table: tuple[LoggedFeedback, np.ndarray]) -> None:
    logged, _ = table
    own = np.full_like(logged.target_logp, -np.inf)
    own[np.arange(len(logged)), logged.action] = logged.logp
    same = LoggedFeedback(
        contexts=logged.contexts, action=logged.action, logp=logged.logp, reward=logged.reward, target_logp=own,
        unit=logged.unit,
    )  # fmt: skip
    for parts in (forms.inverse_propensity(same), forms.self_normalised(same)):
        assert parts.value == pytest.approx(logged.reward.mean())


# ------------------------------------------------------------------------------------------- by enumeration

CONTEXT = (0.3, 0.7)
BEHAVIOUR = ((0.5, 0.5), (0.8, 0.2))
TARGET = ((0.9, 0.1), (0.25, 0.75))
REWARD = ((0.2, 0.7), (0.4, 0.9))
TRUTH = sum(CONTEXT[x] * TARGET[x][a] * REWARD[x][a] for x in (0, 1) for a in (0, 1))


def expectation(estimate: object) -> float:
    """Exact mean of an estimate over all 64 logs of two rows."""
    cells = list(itertools.product((0, 1), repeat=3))
    total = 0.0
    for rows in itertools.product(cells, repeat=2):
        chance = math.prod(CONTEXT[x] * BEHAVIOUR[x][a] * (REWARD[x][a] if r else 1 - REWARD[x][a]) for x, a, r in rows)
        logged = logged_feedback(
            action=[a for _, a, _ in rows], p=[BEHAVIOUR[x][a] for x, a, _ in rows], reward=[r for *_, r in rows],
            target=[list(TARGET[x]) for x, *_ in rows], contexts=[[x] for x, *_ in rows],
        )  # fmt: skip
        total += chance * estimate(logged)  # type: ignore[operator]
    return total


def test_inverse_propensity_is_unbiased() -> None:
    assert expectation(lambda log: forms.inverse_propensity(log).value) == pytest.approx(TRUTH, abs=1e-12)


def test_doubly_robust_is_unbiased_with_any_fixed_model_and_the_direct_method_is_not() -> None:
    def model(log: LoggedFeedback) -> np.ndarray:
        return np.array([[0.1, 2.0], [-1.0, 0.3]])[log.contexts[:, 0].astype(int)]

    assert expectation(lambda log: forms.doubly_robust(log, model(log)).value) == pytest.approx(TRUTH, abs=1e-12)
    assert abs(expectation(lambda log: forms.direct_method(log, model(log)).value) - TRUTH) > 0.1


def test_doubly_robust_is_unbiased_with_wrong_propensities_where_the_model_is_right() -> None:
    def estimate(log: LoggedFeedback) -> float:
        wrong = LoggedFeedback(
            contexts=log.contexts, action=log.action, logp=log.logp - 0.7, reward=log.reward,
            target_logp=log.target_logp, unit=log.unit,
        )  # fmt: skip
        return forms.doubly_robust(wrong, np.array(REWARD)[log.contexts[:, 0].astype(int)]).value

    assert expectation(estimate) == pytest.approx(TRUTH, abs=1e-12)


@pytest.mark.parametrize("name", ["dr", "mrdr"])
def test_cross_fitting_keeps_doubly_robust_unbiased(name: str) -> None:
    """Each row's model is fitted on the other row; a model of both rows is biased."""
    split = EstimateSettings(model=RewardModelSettings(folds=2, penalty=0.5))
    found = expectation(lambda log: estimator_terms(log, [name], split)[name].value)  # type: ignore[list-item,index]
    assert found == pytest.approx(TRUTH, abs=1e-9)


def test_switch_with_a_large_bound_is_doubly_robust_and_with_none_the_direct_method() -> None:
    assert forms.switch_doubly_robust(BY_HAND, MODEL, max_weight=1e9).value == forms.doubly_robust(BY_HAND, MODEL).value
    assert forms.switch_doubly_robust(BY_HAND, MODEL, max_weight=0).value == forms.direct_method(BY_HAND, MODEL).value


def test_all_estimators_have_terms() -> None:
    made = estimator_terms(BY_HAND, ESTIMATORS, EstimateSettings(model=RewardModelSettings(folds=3)))
    assert tuple(made) == ESTIMATORS
    assert all(math.isfinite(parts.value) for parts in made.values())


def test_mrdr_weighs_the_rows_of_the_fit() -> None:
    model = RewardModelSettings(folds=3)
    weighted = cross_fitted_rewards(BY_HAND, model, row_weight=BY_HAND.weight**2)
    made = estimator_terms(BY_HAND, ["mrdr"], EstimateSettings(model=model))["mrdr"]
    assert made.value == forms.doubly_robust(BY_HAND, weighted).value
    assert not np.allclose(weighted, cross_fitted_rewards(BY_HAND, model))


def test_weights_that_are_all_zero_give_no_value() -> None:
    never = logged_feedback(action=[0, 0], p=[0.5, 0.5], reward=[1, 2], target=[[0, 1], [0, 1]])
    assert math.isnan(forms.self_normalised(never).value)
    assert forms.inverse_propensity(never).value == 0.0
    assert effective_sample_size(never.weight) == 0.0
