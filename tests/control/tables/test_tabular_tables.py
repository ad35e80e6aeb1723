"""Tables, tiles and the layout of steps: what acts, what is saved, which step is which."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_episodes import plain_episodes

from hone.control.tables.explore import ConstantSchedule, EpsilonGreedy
from hone.control.tables.learn import (
    RateConfig,
    TabularLearner,
    TargetRule,
    expected_sarsa_weights,
    first_visits,
    rank_among_equals,
    sarsa_weights,
    step_sizes,
    suffix_products,
    tabular_batch,
)
from hone.control.tables.tables import (
    ActionTable,
    StateFeatures,
    StateValues,
    load_table,
    load_table_arrays,
    make_tile_coder,
    save_table,
)
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError, DataError

CODER = make_tile_coder([-1.0, 0.0], [1.0, 10.0], tilings=4, bins=5, actions=3)


@pytest.mark.parametrize("tables", [1, 2])
def test_a_saved_table_decides_the_same(tables: int, tmp_path: Path) -> None:
    features = StateFeatures(count=7, actions=3, first=2)
    table = ActionTable(features, initial=1.0, tables=tables, first_action=5)
    table.x += np.random.default_rng(0).standard_normal(len(table.x))
    table.visits += 3
    save_table(table, tmp_path)
    again = load_table(tmp_path)
    assert isinstance(again, ActionTable)
    seen = np.arange(2, 9)
    np.testing.assert_array_equal(again.numpy_policy().best(seen), table.numpy_policy().best(seen))
    noise = np.random.default_rng(1).random(7, dtype=np.float32)
    for one, other in zip(
        again.numpy_policy(3).decide(seen, noise), table.numpy_policy(3).decide(seen, noise), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert set(table.numpy_policy().best(seen).tolist()) <= {5, 6, 7}
    np.testing.assert_allclose(table.q, table.x.reshape(tables, 7, 3).mean(axis=0))


def test_tiles_and_values_are_saved_too(tmp_path: Path) -> None:
    table = ActionTable(CODER)
    table.x[:] = np.random.default_rng(0).standard_normal(len(table.x))
    save_table(table, tmp_path / "tiles")
    seen = np.random.default_rng(1).uniform(-1, 1, (20, 2))
    again = load_table(tmp_path / "tiles")
    np.testing.assert_array_equal(again.numpy_policy().best(seen), table.numpy_policy().best(seen))
    values = StateValues(np.full((3, 2), 0.5), features=np.eye(3))
    values.x[:] = [1, 2, 3]
    save_table(values, tmp_path / "values")
    found = load_table(tmp_path / "values")
    assert isinstance(found, StateValues)
    assert found.v.tolist() == [1, 2, 3]


def test_a_damaged_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"table.safetensors: cannot read the table"):
        load_table(tmp_path)
    table = ActionTable(StateFeatures(count=2, actions=2))
    save_table(table, tmp_path)
    with pytest.raises(DataError, match=r"the saved table has .*\(4,\).* this run's has .*\(6,\)"):
        load_table_arrays(ActionTable(StateFeatures(count=3, actions=2)), tmp_path)
    (tmp_path / "policy.json").write_text('{"format": 9, "kind": "action_table"}')
    with pytest.raises(DataError, match="format 9"):
        load_table(tmp_path)
    (tmp_path / "policy.json").write_text('{"format": 1, "kind": "forest"}')
    with pytest.raises(DataError, match="'forest' is not a table"):
        load_table(tmp_path)


@given(seed=st.integers(0, 10_000))
def test_one_tile_of_each_grid_and_neighbours_share(seed: int) -> None:
    draws = np.random.default_rng(seed)
    points = draws.uniform([-1.5, -2], [1.5, 12], (30, 2))
    tiles = CODER.tiles(points)
    size = 6 * 6
    np.testing.assert_array_equal(tiles // size, np.tile(np.arange(4), (30, 1)))
    assert tiles.max() < 4 * size
    assert CODER.cells == 4 * size * 3
    for point, found in zip(points, tiles, strict=True):  # slowly, grid by grid
        unit = (np.clip(point, [-1, 0], [1, 10]) - [-1, 0]) / [2, 10] * 5
        for grid in range(4):
            column, row = (int(np.floor(unit[d] + grid * (2 * d + 1) / 4 % 1)) for d in range(2))
            assert found[grid] == grid * size + row * 6 + column


def test_tiles_tell_points_apart_by_a_tilings_share_of_a_cell() -> None:
    """Along one dimension a step of a cell's quarter changes one of the four tiles, a whole cell changes all."""
    line = make_tile_coder([0.0], [5.0], tilings=4, bins=5, actions=1)
    tiles = line.tiles(np.array([[1.05], [1.30], [2.05]]))
    assert (tiles[0] != tiles[1]).sum() == 1
    assert (tiles[0] != tiles[2]).sum() == 4


def test_a_box_without_bounds_is_refused() -> None:
    with pytest.raises(ConfigError, match="bounded box"):
        make_tile_coder([-np.inf], [1.0], tilings=1, bins=2, actions=1)
    with pytest.raises(ConfigError, match="use fewer bins"):
        make_tile_coder([0.0] * 8, [1.0] * 8, tilings=8, bins=20, actions=2)


def pieces() -> Episodes:
    """One episode that ended, one that a limit cut, one that goes on; two actions."""
    return plain_episodes(
        np.array([0, 2, 4, 5]),
        seen=np.array([0, 1, 2, 0, 1]),
        chosen=np.array([1, 0, 1, 1, 0]),
        logp=np.log([0.5, 0.25, 0.5, 1.0, 1.0]).astype(np.float32),
        reward=np.arange(5, dtype=np.float32),
        terminated=np.array([True, False, False]),
        truncated=np.array([False, True, False]),
        final=np.array([2, 1, 2]),
    )


def test_steps_know_what_follows() -> None:
    table = ActionTable(StateFeatures(count=3, actions=2), explore=EpsilonGreedy(epsilon=ConstantSchedule(value=0.5)))
    table.x[:] = [0, 1, 2, 3, 5, 4]
    episodes = pieces()
    credits = Credits(advantage=episodes.reward, discount=np.array([0.9, 0.0, 0.9, 0.9, 0.9], np.float32))
    batch = tabular_batch(table, episodes, credits, RateConfig(rate=0.5))
    assert batch.steps.cell[:, 0].tolist() == [1, 2, 5, 1, 2]
    assert batch.steps.next_cell[:, 0].tolist() == [2, 4, 0, 2, 4]
    assert batch.ended.tolist() == [True, True, False]
    # SARSA: the action that was taken next; at a cut, the probabilities of whoever would have chosen
    np.testing.assert_allclose(sarsa_weights(table, batch), [[1, 0], [0.75, 0.25], [0, 1], [0.25, 0.75], [0.75, 0.25]])
    np.testing.assert_allclose(expected_sarsa_weights(table, batch)[[0, 2]], [[0.25, 0.75], [0.25, 0.75]])
    assert table.visits.tolist() == [0, 2, 2, 0, 0, 1]


def test_what_has_no_score_teaches_nothing() -> None:
    size = step_sizes(np.zeros(3, np.int64), np.array([[0], [1]]), RateConfig(rate=0.4), np.array([True, False]))
    assert size.tolist() == [0.4, 0.0]


def test_step_sizes_fall_with_visits() -> None:
    count = np.array([4, 0, 0])
    size = step_sizes(count, np.array([[0], [1], [0]]), RateConfig(rate=1.0, power=0.5, minimum=0.4), np.ones(3, bool))
    np.testing.assert_allclose(size, [5**-0.5, 1.0, 6**-0.5])
    assert count.tolist() == [6, 1, 0]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30))
def test_ranks_among_equals(values: list[int]) -> None:
    found = rank_among_equals(np.array(values))
    assert found.tolist() == [values[:k].count(value) for k, value in enumerate(values)]


def test_first_visits_by_hand() -> None:
    cell, offsets = np.array([3, 1, 3, 3, 1, 1]), np.array([0, 3, 6])
    assert first_visits(cell, offsets).tolist() == [True, True, False, True, True, False]


def test_first_and_every_visit_means_by_hand() -> None:
    """Sutton & Barto, section 5.1: one episode sees a state twice, with returns 3 and 1, another once, with 5."""
    table, target = ActionTable(StateFeatures(count=1, actions=1)), np.array([3.0, 1.0, 5.0], np.float32)
    for first, mean in ((True, 4.0), (False, 3.0)):
        table.x[:], table.visits[:] = 0.0, 0
        episodes = plain_episodes(np.array([0, 2, 3]), seen=np.zeros(3, np.int64), final=np.zeros(2, np.int64))
        learner = TabularLearner(table, TargetRule(), RateConfig(rate=1.0, power=1.0), first_visits=first)
        learner.update(episodes, Credits(advantage=target, target=target))
        assert table.x[0] == pytest.approx(mean)


def test_ratios_from_a_step_to_the_end() -> None:
    ratio, offsets = np.array([2.0, 3.0, 0.5, 4.0]), np.array([0, 3, 4])
    assert suffix_products(ratio, offsets, include_self=True).tolist() == [3.0, 1.5, 0.5, 4.0]
    assert suffix_products(ratio, offsets, include_self=False).tolist() == [1.5, 0.5, 1.0, 1.0]
