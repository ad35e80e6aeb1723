"""The loops: each equals a slow version in plain Python, compiled or not; traces equal the views they stand for."""

from collections import defaultdict
from collections.abc import Callable

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.control.tables.kernels import (
    ACCUMULATING,
    DUTCH,
    REPLACING,
    TabularKernels,
    TabularSteps,
    TraceDecay,
    kernels,
    python_kernels,
)
from hone.control.tables.models import TabularModel

KERNELS = [python_kernels(), kernels()]
STATES, ACTIONS = 5, 3


def steps_of(seed: int, count: int, *, states: int = STATES, actions: int = ACTIONS, features: int = 1) -> TabularSteps:
    """Steps that follow one another, now and then ended by the world."""
    draws = np.random.default_rng(seed)
    state = draws.integers(0, states, (count + 1, features))
    if features > 1:
        state = state + np.arange(features) * states  # features of one step are different cells
    taken = draws.integers(0, actions, count)
    ends = draws.random(count) < 0.1
    return TabularSteps(
        cell=np.ascontiguousarray(state[:-1] * actions + taken[:, None]),
        next_cell=np.ascontiguousarray(state[1:] * actions),
        reward=draws.standard_normal(count),
        discount=np.where(ends, 0.0, 0.9),
        step_size=draws.uniform(0.05, 0.5, count),
    )


def chances(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.ones(ACTIONS), count)


def slowly(x: np.ndarray, steps: TabularSteps, beyond: Callable[[dict[int, float], int, int], float]) -> np.ndarray:
    """One dictionary, one step at a time."""
    table = dict(enumerate(x.tolist()))
    for n in range(len(steps.reward)):
        first, cell = int(steps.next_cell[n, 0]), int(steps.cell[n, 0])
        target = float(steps.reward[n]) + float(steps.discount[n]) * beyond(table, first, n)
        table[cell] += float(steps.step_size[n]) * (target - table[cell])
    return np.array([table[i] for i in range(len(x))])


@pytest.mark.parametrize("loops", KERNELS, ids=["plain", "compiled"])
@given(seed=st.integers(0, 10_000), count=st.integers(1, 40))
@examples(25)
def test_one_step_rules_are_their_formulas(loops: TabularKernels, seed: int, count: int) -> None:
    steps, weight = steps_of(seed, count), chances(seed, count)
    begin = np.random.default_rng(seed + 1).standard_normal(STATES * ACTIONS)

    def mean(table: dict[int, float], first: int, n: int) -> float:
        return sum(float(weight[n, j]) * table[first + j] for j in range(ACTIONS))

    def most(table: dict[int, float], first: int, n: int) -> float:
        return max(table[first + j] for j in range(ACTIONS))

    for run, beyond in (
        (lambda x: loops.expected_sarsa(x, steps, weight), mean),
        (lambda x: loops.q_learning(x, steps, 3), most),
    ):
        x = begin.copy()
        run(x)
        np.testing.assert_allclose(x, slowly(begin, steps, beyond), atol=1e-12)


@pytest.mark.parametrize("loops", KERNELS, ids=["plain", "compiled"])
def test_double_q_asks_the_other_table(loops: TabularKernels) -> None:
    steps = steps_of(3, 30)
    coin = np.random.default_rng(0).random(30) < 0.5
    x = np.random.default_rng(1).standard_normal(2 * STATES * ACTIONS)
    tables = [dict(enumerate(half.tolist())) for half in np.split(x, 2)]
    for n in range(30):
        mine, other = (tables[1], tables[0]) if coin[n] else (tables[0], tables[1])
        first, cell = int(steps.next_cell[n, 0]), int(steps.cell[n, 0])
        best = max(range(ACTIONS), key=lambda j: mine[first + j])
        mine[cell] += steps.step_size[n] * (steps.reward[n] + steps.discount[n] * other[first + best] - mine[cell])
    loops.double_q_learning(x, steps, ACTIONS, coin)
    np.testing.assert_allclose(x, [*tables[0].values(), *tables[1].values()], atol=1e-12)


def slow_traces(x: np.ndarray, steps: TabularSteps, weight: np.ndarray, decay: float, kind: int) -> np.ndarray:
    """Sutton & Barto's boxes, with dense vectors; dutch is van Seijen et al. (2016), algorithm 1."""
    x, trace, before = x.copy(), np.zeros_like(x), None
    for n in range(len(steps.reward)):
        phi, rate = np.zeros_like(x), steps.step_size[n]
        phi[steps.cell[n]] = 1.0
        ahead = np.zeros_like(x)
        for j in range(weight.shape[1]):
            for first in steps.next_cell[n]:
                ahead[first + j] += weight[n, j]
        now, beyond = x @ phi, x @ ahead
        error = steps.reward[n] + steps.discount[n] * beyond - now
        if kind == ACCUMULATING:
            trace = decay * trace + phi
            x += rate * error * trace
        elif kind == REPLACING:
            trace = np.where(phi > 0, 1.0, decay * trace)
            x += rate * error * trace
        else:
            late = 0.0 if before is None else now - before
            trace = decay * trace + (1.0 - rate * decay * (trace @ phi)) * phi
            x += rate * (error + late) * trace - rate * late * phi
        before = beyond
    return x


@pytest.mark.parametrize("loops", KERNELS, ids=["plain", "compiled"])
@pytest.mark.parametrize("kind", [ACCUMULATING, REPLACING, DUTCH])
@pytest.mark.parametrize("features", [1, 3])
def test_traces_are_those_of_the_textbook(loops: TabularKernels, kind: int, features: int) -> None:
    for seed in range(10):
        steps = steps_of(seed, 25, features=features)
        weight = chances(seed, 25)
        begin = np.random.default_rng(seed).standard_normal(STATES * ACTIONS * features)
        x = begin.copy()
        loops.eligibility_traces(x, np.zeros_like(x), steps, weight, TraceDecay(0.7, kind, np.nan))
        np.testing.assert_allclose(x, slow_traces(begin, steps, weight, 0.7, kind), atol=1e-12)


@pytest.mark.parametrize("kind", [ACCUMULATING, REPLACING, DUTCH])
def test_traces_go_on_over_a_cut(kind: int) -> None:
    """Two pieces of an episode teach what the whole of it does, to the last bit."""
    steps = steps_of(1, 30, actions=1)
    weight, loops = np.ones((30, 1)), kernels()
    whole = np.zeros(STATES)
    loops.eligibility_traces(whole, np.zeros(STATES), steps, weight, TraceDecay(0.8, kind, np.nan))
    x, trace, before = np.zeros(STATES), np.zeros(STATES), np.nan
    for rows in (slice(0, 11), slice(11, 12), slice(12, 30)):
        part = TabularSteps(*(column[rows] for column in steps))
        _, before = loops.eligibility_traces(x, trace, part, weight[rows], TraceDecay(0.8, kind, before))
    np.testing.assert_array_equal(x, whole)


def episode(seed: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """States `[T+1]`, the last of which is beyond the end, and rewards `[T]`."""
    draws = np.random.default_rng(seed)
    return draws.integers(0, STATES, length + 1), draws.standard_normal(length)


def chain_steps(states: np.ndarray, reward: np.ndarray, rate: float, discount: float) -> TabularSteps:
    factor = np.full(len(reward), discount)
    factor[-1] = 0.0
    return TabularSteps(
        cell=states[:-1, None].copy(), next_cell=states[1:, None].copy(), reward=reward, discount=factor,
        step_size=np.full(len(reward), rate),
    )  # fmt: skip


def lambda_return(
    v: Callable[[int, int], float], reward: np.ndarray, t: int, horizon: int, *, d: float, decay: float
) -> float:
    """G^lambda_{t:h} by its definition, a mean of n-step returns; v(k, n) is the value used for the state at time k."""

    def n_step(n: int) -> float:
        paid = sum(d**k * reward[t + k] for k in range(n))
        return paid + (d**n * v(t + n, n) if t + n < len(reward) else 0.0)

    most = horizon - t
    shares = [(1 - decay) * decay ** (n - 1) for n in range(1, most)] + [decay ** (most - 1)]
    return sum(share * n_step(n + 1) for n, share in enumerate(shares))


@given(seed=st.integers(0, 1000), length=st.integers(1, 12), decay=st.sampled_from([0.0, 0.5, 0.9, 1.0]))
@examples(30)
def test_true_online_td_is_the_online_forward_view(seed: int, length: int, decay: float) -> None:
    """van Seijen & Sutton (2014): after each step, dutch traces stand where the lambda-returns cut there would lead."""
    states, reward = episode(seed, length)
    rate, d = 0.3, 0.95
    start = np.random.default_rng(seed).standard_normal(STATES)
    history = [start.copy()]  # weights after t steps of the forward view
    for horizon in range(1, length + 1):
        x = start.copy()
        for t in range(horizon):
            target = lambda_return(lambda k, n: history[k - 1][states[k]], reward, t, horizon, d=d, decay=decay)
            x[states[t]] += rate * (target - x[states[t]])
        history.append(x)
    x = start.copy()
    steps = chain_steps(states, reward, rate, d)
    kernels().eligibility_traces(x, np.zeros(STATES), steps, np.ones((length, 1)), TraceDecay(d * decay, DUTCH, np.nan))
    np.testing.assert_allclose(x, history[-1], atol=1e-12)


@given(seed=st.integers(0, 1000), length=st.integers(1, 12), decay=st.sampled_from([0.0, 0.4, 1.0]))
@examples(30)
def test_offline_td_lambda_is_the_lambda_return_algorithm(seed: int, length: int, decay: float) -> None:
    """With values that stand still during the episode, summed accumulating traces are summed lambda-returns."""
    states, reward = episode(seed, length)
    d, start = 0.9, np.random.default_rng(seed).standard_normal(STATES)
    forward = np.zeros(STATES)
    for t in range(length):
        forward[states[t]] += (
            lambda_return(lambda k, n: start[states[k]], reward, t, length, d=d, decay=decay) - start[states[t]]
        )
    backward, trace = np.zeros(STATES), np.zeros(STATES)
    for t in range(length):
        part = TabularSteps(*(column[t : t + 1] for column in chain_steps(states, reward, 1.0, d)))
        x = start.copy()
        kernels().eligibility_traces(x, trace, part, np.ones((1, 1)), TraceDecay(d * decay, ACCUMULATING, np.nan))
        backward += x - start
    np.testing.assert_allclose(backward, forward, atol=1e-12)


def test_compiled_and_plain_loops_agree_to_the_last_bit() -> None:
    if not kernels().compiled:
        pytest.skip("numba is not installed")
    steps, weight, model = steps_of(5, 200), chances(5, 200), TabularModel(STATES * ACTIONS, ACTIONS)
    model.observe(steps.cell[:, 0], steps.next_cell[:, 0], steps.reward, steps.discount)
    picks, target = np.random.default_rng(0).random((300, 2)), np.arange(200.0)
    found = []
    for loops in KERNELS:
        x, mass, urgent = np.zeros(STATES * ACTIONS), np.zeros(STATES * ACTIONS), np.zeros(STATES * ACTIONS)
        loops.expected_sarsa(x, steps, weight)
        loops.q_learning(x, steps, ACTIONS)
        loops.target_update(x, steps.cell, target, steps.step_size)
        loops.weighted_importance_update(x, mass, steps.cell[:, 0].copy(), target, steps.step_size)
        loops.eligibility_traces(x, np.zeros_like(x), steps, weight, TraceDecay(0.5, REPLACING, np.nan))
        loops.dyna_planning(x, model.arrays(), picks, ACTIONS, 0.3)
        urgent[:] = 1.0
        loops.prioritised_sweeping(x, urgent, model.arrays(), ACTIONS, 50, 1e-4)
        found.append((x, mass, urgent))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("loops", KERNELS, ids=["plain", "compiled"])
def test_weighted_means_by_hand(loops: TabularKernels) -> None:
    """Returns 4 and 1 with weights 1 and 3: (4 + 3) / 4; a weight of 0 is no step."""
    x, mass = np.zeros(1), np.zeros(1)
    loops.weighted_importance_update(
        x, mass, np.zeros(3, np.int64), np.array([4.0, 9.0, 1.0]), np.array([1.0, 0.0, 3.0])
    )
    assert x.tolist() == [1.75]
    assert mass.tolist() == [4.0]


def test_a_swept_model_is_solved() -> None:
    """With every pair urgent and backups enough, sweeping ends at the fixed point of the counted model."""
    draws = np.random.default_rng(2)
    model = TabularModel(STATES * ACTIONS, ACTIONS)
    cell = np.repeat(np.arange(STATES * ACTIONS), 6)
    model.observe(
        cell, draws.integers(0, STATES, len(cell)) * ACTIONS, draws.standard_normal(len(cell)), np.full(len(cell), 0.8)
    )
    x, urgent = np.zeros(STATES * ACTIONS), np.ones(STATES * ACTIONS)
    done = kernels().prioritised_sweeping(x, urgent, model.arrays(), ACTIONS, 100_000, 1e-12)
    assert done < 100_000
    cells = np.arange(STATES * ACTIONS)
    np.testing.assert_allclose(model.expected_backup(x, cells), x, atol=1e-9)


def test_the_model_counts_as_a_dictionary_does() -> None:
    steps = steps_of(8, 200)
    model = TabularModel(STATES * ACTIONS, ACTIONS)
    slow: dict[int, dict[tuple[int, bool], list[float]]] = defaultdict(lambda: defaultdict(list))
    for rows in (slice(0, 1), slice(1, 90), slice(90, 200)):
        part = TabularSteps(*(column[rows] for column in steps))
        model.observe(part.cell[:, 0], part.next_cell[:, 0], part.reward, part.discount)
    for n in range(200):
        ends = bool(steps.discount[n] == 0.0)
        slow[int(steps.cell[n, 0])][0 if ends else int(steps.next_cell[n, 0]), ends].append(float(steps.reward[n]))
    for cell, outcomes in slow.items():
        assert model.total[cell] == sum(map(len, outcomes.values()))
        for slot in np.flatnonzero(model.times[cell]):
            paid = outcomes.pop((int(model.ahead[cell, slot]), bool(model.factor[cell, slot] == 0.0)))
            assert model.times[cell, slot] == len(paid)
            assert model.reward[cell, slot] == pytest.approx(np.mean(paid))
        assert not outcomes
    again = TabularModel(STATES * ACTIONS, ACTIONS)
    again.restore(model.state())
    for state in range(STATES):  # the same entries lead to it, in whatever order
        lists = []
        for one in (model.arrays(), again.arrays()):
            entry, found = int(one.first_predecessor[state]), []
            while entry >= 0:
                found.append(entry)
                entry = int(one.link[entry])
            lists.append(sorted(found))
        assert lists[0] == lists[1]
