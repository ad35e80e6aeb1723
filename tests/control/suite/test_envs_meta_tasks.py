"""Trials: what is seen tells no task, tasks change when they should, and the best learner's worth is known exactly."""

import itertools

import numpy as np
import pytest
from bandit_beliefs import bernoulli_beliefs

from hone.control.environments.world import GymConfig, open_world
from hone.control.finite.solve import backward_induction, evaluate_policy, policy_iteration
from hone.control.suite.meta_tasks import (
    BanditTrialsVectorEnv,
    ChainTrialsVectorEnv,
    SineTrialsVectorEnv,
    SingleTrialEnv,
    TrialsVectorEnv,
    make_bandit_trial,
)
from hone.core.errors import DataError


def played(
    trials: TrialsVectorEnv, steps: int, *, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """What random actions saw, chose and were paid, and when trials ended: `[T, B, ...]`."""
    draws = np.random.default_rng(7)
    now, _ = trials.reset(seed=seed)
    rows: list[tuple[np.ndarray, ...]] = []
    for _ in range(steps):
        action = draws.integers(0, trials.actions, trials.num_envs)
        after, reward, over, _, _ = trials.step(action)
        rows.append((now, action, reward, over))
        now = trials.reset(options={"reset_mask": over})[0] if over.any() else after
    seen, chosen, paid, ended = (np.stack(column) for column in zip(*rows, strict=True))
    return seen, chosen, paid, ended


@pytest.mark.parametrize(
    "trials",
    [BanditTrialsVectorEnv(4, arms=3, pulls=5), ChainTrialsVectorEnv(4, pulls=5), SineTrialsVectorEnv(4, pulls=5)],
)
def test_what_is_seen_is_what_was_lived_through(trials: TrialsVectorEnv) -> None:
    seen, chosen, paid, ended = played(trials, 12)
    begins, actions = np.arange(12) % 5 == 0, trials.actions
    assert (ended == (np.arange(12) % 5 == 4)[:, None]).all()
    assert (seen[..., 0] == begins[:, None]).all()
    for t in range(1, 12):
        last = np.eye(actions)[chosen[t - 1]] * (not begins[t])
        np.testing.assert_array_equal(seen[t, :, 1 : 1 + actions], last)
        np.testing.assert_allclose(seen[t, :, 1 + actions], paid[t - 1] * (not begins[t]), rtol=1e-6)


def test_arms_pay_by_their_rates() -> None:
    trials = BanditTrialsVectorEnv(500, arms=2, pulls=40)
    trials.reset(seed=3)
    rates = trials.rates.copy()
    paid = np.mean([trials.step(np.zeros(500, np.int64))[1] for _ in range(40)], axis=0)
    assert abs(np.corrcoef(rates[:, 0], paid)[0, 1]) > 0.95
    assert abs(paid.mean() - rates[:, 0].mean()) < 0.02
    assert 0.45 < rates.mean() < 0.55 and rates.min() < 0.05 and rates.max() > 0.95


def test_luck_does_not_depend_on_what_is_done() -> None:
    one, other = BanditTrialsVectorEnv(6, arms=3, pulls=4), BanditTrialsVectorEnv(6, arms=3, pulls=4)
    for trials in (one, other):
        trials.reset(seed=5)
    for _ in range(4):
        one.step(np.zeros(6, np.int64))
        other.step(np.full(6, 2))
    for trials in (one, other):
        trials.reset(options={"reset_mask": np.ones(6, bool)})
    np.testing.assert_array_equal(one.rates, other.rates)
    np.testing.assert_array_equal(one.luck, other.luck)


def test_a_chain_pays_at_one_end() -> None:
    chain = ChainTrialsVectorEnv(4, states=5, pulls=10)
    chain.reset(seed=0)
    chain.prize[:], chain.swapped[:] = [True, True, False, False], [False, True, False, True]
    always = [chain.step(np.ones(4, np.int64)) for _ in range(4)]
    rewards = np.stack([step[1] for step in always])
    # Two steps to an end, twice; action 1 goes right unless swapped, and the prize is right in the first two.
    np.testing.assert_array_equal(rewards, [[0, 0, 0, 0], [1, 0, 0, 1]] * 2)
    assert always[1][0][:, 2 + chain.actions].tolist() == [1, 1, 1, 1]  # the episode ended, the trial goes on
    assert chain.place.tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize(
    "trials", [ChainTrialsVectorEnv(50, pulls=3, trials=4), SineTrialsVectorEnv(50, pulls=3, trials=4)]
)
def test_shared_tasks_stay_for_their_trials(trials: ChainTrialsVectorEnv | SineTrialsVectorEnv) -> None:
    tasks: list[tuple[object, ...]] = []
    trials.reset(seed=1)
    for _ in range(24):
        if isinstance(trials, SineTrialsVectorEnv):
            tasks.append((trials.height, trials.phase))
        else:
            assert len({*trials.prize.tolist()}) == 1 and len({*trials.swapped.tolist()}) == 1
            tasks.append((bool(trials.prize[0]), bool(trials.swapped[0])))
        for _ in range(3):
            trials.step(np.zeros(50, np.int64))
        trials.reset(options={"reset_mask": np.ones(50, bool)})
    runs = [len(list(group)) for _, group in itertools.groupby(tasks)]
    assert all(length % 4 == 0 for length in runs) and len(runs) > 2


def test_the_nearest_level_pays_best() -> None:
    trials = SineTrialsVectorEnv(11, arms=11, pulls=2)
    trials.reset(seed=0)
    trials.x[:] = 1.0
    reward = trials.step(np.arange(11))[1]
    wanted = trials.height * np.sin(1.0 + trials.phase)
    assert reward.argmax() == np.abs(np.linspace(-5, 5, 11) - wanted).argmin()
    np.testing.assert_allclose(reward, 1 - np.abs(np.linspace(-5, 5, 11) - wanted) / 5)


def test_one_alone_is_one_of_many() -> None:
    alone, many = make_bandit_trial(arms=3, pulls=4), BanditTrialsVectorEnv(1, arms=3, pulls=4)
    assert isinstance(alone, SingleTrialEnv)
    np.testing.assert_array_equal(alone.reset(seed=9)[0], many.reset(seed=9)[0][0])
    for action in (0, 2, 1, 1):
        seen, reward, over, _, _ = alone.step(np.int64(action))
        every, paid, ended, _, _ = many.step(np.array([action]))
        assert (seen == every[0]).all() and reward == paid[0] and over == ended[0]


@pytest.mark.parametrize("name", ["Bandit", "Chain", "Sine"])
def test_it_can_be_put_back_exactly(name: str) -> None:
    world = open_world(GymConfig(id=f"hone/{name}Trials-v0", num_envs=2), steps=3, seed=0)
    assert world.resume_exactness == "exact" and world.warnings == []


# ---------------------------------------------------------------------------------------------- beliefs


def expected(counts: tuple[tuple[int, int], ...], left: int) -> float:
    """The best learner's worth by plain recursion."""
    if not left:
        return 0.0
    worths: list[float] = []
    for arm, (won, lost) in enumerate(counts):
        rate = (won + 1) / (won + lost + 2)
        after = [(*counts[:arm], pair, *counts[arm + 1 :]) for pair in ((won + 1, lost), (won, lost + 1))]
        worths.append(rate * (1 + expected(after[0], left - 1)) + (1 - rate) * expected(after[1], left - 1))
    return max(worths)


@pytest.mark.parametrize(("arms", "pulls"), [(2, 1), (2, 2), (2, 5), (3, 4)])
def test_beliefs_against_recursion(arms: int, pulls: int) -> None:
    beliefs = bernoulli_beliefs(arms=arms, pulls=pulls)
    best = expected(((0, 0),) * arms, pulls)
    assert backward_induction(beliefs, pulls).value[0] == pytest.approx(best, abs=1e-12)
    assert policy_iteration(beliefs).value[0] == pytest.approx(best, abs=1e-12)


def test_two_pulls_by_hand() -> None:
    """1/2, then after a win (2/3) the same arm, after a loss the other: 1/2 + 1/2 * 2/3 + 1/2 * 1/2 = 13/12."""
    assert backward_induction(bernoulli_beliefs(arms=2, pulls=2), 2).value[0] == pytest.approx(13 / 12)


def test_two_arms_ten_pulls() -> None:
    beliefs = bernoulli_beliefs(arms=2, pulls=10)
    assert beliefs.states == 715  # C(13, 4)
    best = policy_iteration(beliefs).value[0]
    assert best == pytest.approx(6.0217857142857145, abs=1e-12)
    anything = np.full((715, 2), 0.5)
    assert evaluate_policy(beliefs, anything)[0] == pytest.approx(5.0)


def test_a_belief_is_a_process() -> None:
    with pytest.raises(DataError):
        bernoulli_beliefs(arms=2, pulls=3).with_discount(1.5)
