"""Reward models: least squares as an augmented system, the logistic optimum by SciPy, and no row predicts itself."""

from dataclasses import replace

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from hone.core.errors import DataError
from hone.core.random import permutation
from hone.decide.estimators.reward_models import RewardModelSettings, cross_fitted_rewards, logistic_fit, ridge_fit
from hone.decide.estimators.terms import LoggedFeedback


def feedback(seed: int, *, n: int = 40, actions: int = 3, units: int = 20) -> LoggedFeedback:
    random = np.random.default_rng(seed)
    return LoggedFeedback(
        contexts=random.normal(size=(n, 2)), action=random.integers(0, actions, n),
        logp=np.full(n, -np.log(actions)), reward=random.random(n),
        target_logp=np.log(random.dirichlet(np.ones(actions), n)),
        unit=np.arange(n) % units,
    )  # fmt: skip


@given(st.integers(0, 500), st.floats(0.01, 10))
@examples(30)
def test_ridge_is_least_squares_of_the_augmented_system(seed: int, penalty: float) -> None:
    random = np.random.default_rng(seed)
    x, r, w = random.normal(size=(12, 3)), random.normal(size=12), random.random(12)
    root = np.sqrt(w)
    tall = np.vstack([x * root[:, None], np.sqrt(penalty) * np.eye(3)])
    slow = np.linalg.lstsq(tall, np.concatenate([r * root, np.zeros(3)]), rcond=None)[0]
    assert ridge_fit(x, r, w, np.full(3, penalty)) == pytest.approx(slow, abs=1e-8)


def test_ridge_by_hand() -> None:
    """One feature: sum w x r / (sum w x^2 + penalty) = (2 + 8) / (1 + 8 + 1)."""
    found = ridge_fit(np.array([[1.0], [2.0]]), np.array([2.0, 2.0]), np.array([1.0, 2.0]), np.array([1.0]))
    assert found == pytest.approx([1.0])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_logistic_fit_is_the_optimum(seed: int) -> None:
    random = np.random.default_rng(seed)
    x, offset, w = random.normal(size=(30, 3)), random.normal(size=30), random.random(30)
    r, penalty = random.integers(0, 2, 30).astype(float), np.array([0.1, 1.0, 3.0])

    def cost(b: np.ndarray) -> float:
        z = offset + x @ b
        return float((w * (np.logaddexp(0, z) - r * z)).sum() + 0.5 * (penalty * b**2).sum())

    best = minimize(cost, np.zeros(3), method="BFGS", options={"gtol": 1e-9})
    found = logistic_fit(x, r, w, penalty, offset)
    assert cost(found) <= best.fun + 1e-10
    assert found == pytest.approx(best.x, abs=1e-4)


def test_the_logistic_fit_survives_separable_rewards() -> None:
    x = np.column_stack([np.ones(6), np.arange(6.0)])
    found = logistic_fit(x, (np.arange(6) > 2).astype(float), np.ones(6), np.array([1e-9, 1.0]), np.zeros(6))
    assert np.isfinite(found).all()


def slow_predictions(logged: LoggedFeedback, settings_: RewardModelSettings, seed: int) -> np.ndarray:
    """Ridge models row by row: each row's fold is left out, and everything is fitted anew."""
    fold = permutation(seed, "off-policy folds", count=int(logged.unit.max()) + 1)[logged.unit] % settings_.folds
    x = np.column_stack([np.ones(len(logged)), logged.contexts])
    free = np.array([1e-9, *[settings_.penalty] * (x.shape[1] - 1)])
    shrunk = np.full(x.shape[1], settings_.penalty)
    made = np.zeros(logged.target_logp.shape)
    for i in range(len(logged)):
        used = fold != fold[i]
        common = ridge_fit(x[used], logged.reward[used], np.ones(used.sum()), free)
        for a in range(made.shape[1]):
            rows = used & (logged.action == a)
            left = logged.reward[rows] - x[rows] @ common
            own = ridge_fit(x[rows], left, np.ones(rows.sum()), shrunk) if rows.any() else np.zeros(len(common))
            made[i, a] = x[i] @ (common + own)
    return made


@pytest.mark.parametrize("seed", [0, 1])
def test_ridge_predictions_equal_models_that_are_fitted_anew_for_each_row(seed: int) -> None:
    logged, chosen = feedback(seed), RewardModelSettings(folds=3, penalty=0.7)
    assert cross_fitted_rewards(logged, chosen, seed=seed) == pytest.approx(slow_predictions(logged, chosen, seed))


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_no_row_predicts_its_own_unit(kind: str) -> None:
    """Other rewards of a unit change the predictions of all units but those of its fold."""
    logged, chosen = feedback(3), RewardModelSettings(kind=kind, folds=4)  # type: ignore[arg-type]
    changed = replace(logged, reward=np.where(logged.unit == 5, 1 - logged.reward, logged.reward))
    before, after = cross_fitted_rewards(logged, chosen), cross_fitted_rewards(changed, chosen)
    assert (before[logged.unit == 5] == after[logged.unit == 5]).all()
    assert (before != after).any()


@pytest.mark.parametrize("kind", ["ridge", "logistic"])
def test_an_action_without_rows_is_predicted_by_the_common_part(kind: str) -> None:
    logged = feedback(4, actions=2)
    wider = replace(logged, target_logp=np.column_stack([logged.target_logp, np.full(len(logged), -np.inf)]))
    chosen = RewardModelSettings(kind=kind)  # type: ignore[arg-type]
    made = cross_fitted_rewards(wider, chosen)
    assert np.isfinite(made).all()
    assert made[:, :2] == pytest.approx(cross_fitted_rewards(logged, chosen))


def test_models_name_rewards_and_logs_that_they_cannot_fit() -> None:
    logged = feedback(5)
    with pytest.raises(DataError, match="row 7: reward 2 is not within 0 and 1"):
        cross_fitted_rewards(
            replace(logged, reward=np.where(np.arange(40) == 7, 2.0, 0.5)), RewardModelSettings(kind="logistic")
        )
    with pytest.raises(DataError, match="at least 2 units, the log has 1"):
        cross_fitted_rewards(replace(logged, unit=np.zeros(40, np.int64)), RewardModelSettings())
