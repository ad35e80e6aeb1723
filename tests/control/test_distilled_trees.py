"""Decision trees as policies: acting, attribution that sums to the output, the folder, VIPER and its measures."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from control_policies import control_policies
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

import hone.api
from hone.cli.main import main
from hone.control import distill
from hone.control.distill import DistillConfig, distill_tree
from hone.control.environments.make import GymConfig
from hone.control.networks.checkpoint import save_policy
from hone.control.networks.decision_tree import LEAF, DecisionTree, explain, load_tree, save_tree
from hone.control.networks.mlp import BoxActions, DiscreteActions, ObservationInputs
from hone.control.networks.numpy_policies import NumpyCategoricalPolicy
from hone.control.networks.offline import _NumpyTanhGaussianPolicy
from hone.control.predict import ObservationForm, SavedPolicy, open_saved_policy
from hone.control.tree_page import write_tree_page
from hone.core.errors import ConfigError, DataError, ResourceError

sklearn_tree = pytest.importorskip("sklearn.tree", reason="the extra tree is not installed")
WEIGHTS = np.array([0.1, 0.3, 1.0, 1.0], np.float32)


def teacher(folder: Path = Path("teacher")) -> SavedPolicy:
    """A linear policy that keeps CartPole up."""
    inputs, actions = ObservationInputs(size=4), DiscreteActions(count=2)

    def network(x: np.ndarray) -> np.ndarray:
        push = x @ WEIGHTS
        return np.stack([-push, push], axis=1)

    acting = NumpyCategoricalPolicy(network=network, inputs=inputs, actions=actions)
    return SavedPolicy(
        policy=acting,  # pyright: ignore[reportArgumentType] - only its actions are asked for
        folder=folder,
        observation=ObservationForm(count=4, is_state=False),
        actions=actions,
        acting=acting,
    )


POLE = GymConfig(id="CartPole-v1", max_episode_steps=80)
SMALL = DistillConfig(leaves=8, rounds=2, episodes=3, judged_episodes=6, names=("position", "speed", "angle", "spin"))


@pytest.fixture(scope="module")
def made() -> distill.DistilledTree:
    return distill_tree(teacher(), POLE, SMALL)


def grown(seed: int = 0, choices: int = 3) -> tuple[DecisionTree, np.ndarray, Any]:
    """A tree of random labels, its data, and scikit-learn's tree of the same data."""
    draws = np.random.default_rng(seed)
    x = draws.normal(size=(300, 4)).astype(np.float32)
    scores = x @ draws.normal(size=(4, choices)).astype(np.float32)
    saved = teacher()
    actions = DiscreteActions(count=choices, start=5)
    acting = NumpyCategoricalPolicy(network=lambda _: scores.copy(), inputs=ObservationInputs(size=4), actions=actions)
    saved = replace(saved, acting=acting, actions=actions)
    tree = distill._grower(saved, DistillConfig(leaves=12))(x, None)
    weight = scores.max(axis=1).astype(np.float64) - scores.min(axis=1)
    fitted = sklearn_tree.DecisionTreeClassifier(max_leaf_nodes=12, random_state=0)
    fitted.fit(x, scores.argmax(axis=1), sample_weight=weight / weight.mean())
    return tree, x, fitted


@examples(20)
@given(seed=st.integers(0, 1000))
def test_a_tree_acts_as_scikit_learns(seed: int) -> None:
    tree, _, fitted = grown(seed)
    fresh = np.random.default_rng(seed + 1).normal(size=(100, 4)).astype(np.float32) * 2
    np.testing.assert_array_equal(tree.leaves(fresh), fitted.apply(fresh))
    np.testing.assert_array_equal(tree.numpy_policy().best(fresh), fitted.predict(fresh) + 5)
    namespace: dict[str, Any] = {}
    exec(tree.as_code(), namespace)
    assert [namespace["act"](row) for row in fresh] == tree.numpy_policy().best(fresh).tolist()


@examples(20)
@given(seed=st.integers(0, 1000))
def test_attributions_sum_to_the_output(seed: int) -> None:
    tree, x, _ = grown(seed)
    for row in x[:10]:
        base, shares = tree.attribution(row)
        np.testing.assert_allclose(base + shares.sum(axis=0), tree.value[tree.leaves(row[None])[0]], atol=1e-12)
        why = explain(tree, row, most_regret=1.0)
        assert why.base + sum(why.shares.values()) == pytest.approx(why.output, abs=1e-12)
        assert len(why.rules) == len(tree.path(row)) - 1


def test_an_attribution_by_hand() -> None:
    tree = DecisionTree(
        features=("a", "b"),
        is_state=False,
        actions=DiscreteActions(count=2),
        feature=np.array([0, LEAF, 1, LEAF, LEAF]),
        threshold=np.array([1.0, 0.0, 3.0, 0.0, 0.0]),
        left=np.array([1, LEAF, 3, LEAF, LEAF]),
        right=np.array([2, LEAF, 4, LEAF, LEAF]),
        value=np.array([[0.5, 0.5], [1.0, 0.0], [0.25, 0.75], [0.0, 1.0], [0.5, 0.5]]),
        samples=np.array([8, 4, 4, 2, 2]),
        low=np.zeros((5, 2)),
        high=np.full((5, 2), 10.0),
        regret=np.array([0.5, 0.0, 0.1, 0.0, 0.4]),
    )
    base, shares = tree.attribution(np.array([2.0, 3.0]))
    assert base.tolist() == [0.5, 0.5] and shares.tolist() == [[-0.25, 0.25], [-0.25, 0.25]]
    why = explain(tree, np.array([2.0, 3.0]), most_regret=0.3)
    assert why.rules == ["a > 1", "b <= 3"] and why.action == "1" and not why.handed_over
    seen = np.array([[2.0, 9.0], [2.0, 3.0], [0.0, 0.0], [30.0, 3.0]])
    assert tree.hands_over(seen, most_regret=0.3).tolist() == [True, False, False, True]  # regret; outside the data
    assert tree.hands_over(seen, most_regret=0.5).tolist() == [False, False, False, True]
    assert tree.leaf_count == 3
    assert tree.as_code().splitlines()[2:] == [
        "    if x[0] <= 1.0:", "        return 0", "    else:", "        if x[1] <= 3.0:", "            return 1",
        "        else:", "            return 0",
    ]  # fmt: skip


def test_nodes_know_their_training_data() -> None:
    tree, x, _ = grown(3, choices=2)
    leaves = tree.leaves(x)
    assert ((tree.regret >= 0) & (tree.regret <= 1)).all()
    assert tree.samples[0] == len(x) and tree.samples[tree.feature == LEAF].sum() == len(x)
    for leaf in np.unique(leaves):
        rows = x[leaves == leaf]
        np.testing.assert_array_equal(tree.low[leaf], rows.min(axis=0))
        np.testing.assert_array_equal(tree.high[leaf], rows.max(axis=0))
        if tree.value[leaf].max() == 1.0:
            assert tree.regret[leaf] == 0.0


def test_a_tree_is_saved_served_and_evaluated_like_any_policy(made: distill.DistilledTree, tmp_path: Path) -> None:
    save_tree(made.tree, tmp_path / "tree")
    loaded, again = hone.api.load(tmp_path / "tree"), load_tree(tmp_path / "tree")
    seen = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    np.testing.assert_array_equal(loaded.predict(seen)[0], made.tree.numpy_policy().best(seen))
    np.testing.assert_array_equal(again.value, made.tree.value)
    assert again.features == SMALL.names
    legal, _ = loaded.predict(seen, mask=np.tile([True, False], (50, 1)))
    assert set(legal.tolist()) == {0}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"left": [0, 0, 0]}, "node 0 has a feature or a child that is not there"),
        ({"right": [9, -1, -1]}, "node 0 has a feature or a child that is not there"),
        ({"feature": [7, -1, -1]}, "node 0 has a feature or a child that is not there"),
        ({"samples": [1]}, "have the lengths"),
        ({"value": None}, "incomplete or unknown"),
    ],
)
def test_damaged_trees_are_refused(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    tree, _, _ = grown()
    save_tree(tree, tmp_path)
    held = json.loads((tmp_path / "policy.json").read_text())
    nodes = {"feature": [0, -1, -1], "left": [1, -1, -1], "right": [2, -1, -1], "threshold": [0.0] * 3}
    nodes |= {"value": [[1.0, 0.0, 0.0]] * 3, "samples": [1] * 3, "low": [[0.0] * 4] * 3, "high": [[1.0] * 4] * 3}
    held["nodes"] = {**nodes, "regret": [0.0] * 3, **change}
    (tmp_path / "policy.json").write_text(json.dumps(held))
    with pytest.raises(DataError, match=words):
        load_tree(tmp_path)


def test_a_tree_of_a_linear_policy_balances(made: distill.DistilledTree, tmp_path: Path) -> None:
    m = made.measures
    assert m.teacher.mean == 80.0 and m.tree.mean > 60.0
    assert 0.6 < m.fidelity.low <= m.fidelity.mean <= m.fidelity.high <= 1.0
    assert m.agreement.mean > 0.6 and 0.0 <= m.handed_over.mean <= 1.0
    assert m.difference.n == 6 and m.difference.difference == pytest.approx(m.tree.mean - m.teacher.mean)
    assert made.rounds[0].states == 3 * 80
    assert made.rounds[made.best_round].mean_return == max(one.mean_return for one in made.rounds)
    write_tree_page(tmp_path / "tree.html", made, "pole")
    page = (tmp_path / "tree.html").read_text()
    for words in ("Return", "Fidelity", "Decisions explained", "spin", "def act(x):", "handed over", "<svg"):
        assert words in page, words


def test_handing_everything_over_is_the_teacher(made: distill.DistilledTree) -> None:
    config = replace(SMALL, most_regret=-1.0)
    measures, _ = distill.measure_tree(made.tree, teacher(), POLE, config)
    assert measures.handed_over.mean == 1.0 and measures.fidelity_of_kept.n == 0
    assert measures.combined.mean == measures.teacher.mean
    assert measures.tree == made.measures.tree  # the same episodes


def test_a_box_is_distilled_by_regression() -> None:
    inputs = ObservationInputs(size=3)
    box = BoxActions(low=(-2.0,), high=(2.0,), shape=(1,))
    acting = _NumpyTanhGaussianPolicy(
        network=lambda x: -(x[:, 1:2] + x[:, 2:3]), inputs=inputs, actions=box, log_std=np.zeros(1, np.float32)
    )
    saved = SavedPolicy(
        policy=acting,  # pyright: ignore[reportArgumentType]
        folder=Path("pendulum"),
        observation=ObservationForm(count=3, is_state=False),
        actions=box,
        acting=acting,
    )
    config = DistillConfig(leaves=16, rounds=1, episodes=2, judged_episodes=2)
    result = distill_tree(saved, GymConfig(id="Pendulum-v1", max_episode_steps=50), config)
    assert result.measures.agreement.mean > 0.5
    chosen = result.tree.numpy_policy().best(np.zeros((2, 3), np.float32))
    assert chosen.shape == (2, 1) and chosen.dtype == np.float32 and (np.abs(chosen) <= 2.0).all()


def test_what_cannot_be_distilled_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_policy(control_policies()["recurrent"], tmp_path / "recurrent")
    with pytest.raises(ConfigError, match="remembers earlier observations"):
        distill_tree(open_saved_policy(tmp_path / "recurrent"), POLE, SMALL)
    with pytest.raises(ConfigError, match="--names has 1 names, and an observation 4 numbers"):
        distill_tree(teacher(), POLE, replace(SMALL, names=("a",)))
    monkeypatch.setitem(__import__("sys").modules, "sklearn.tree", None)
    with pytest.raises(ResourceError, match=r"needs scikit-learn: pip install 'hone-rl\[tree\]'"):
        distill_tree(teacher(), POLE, SMALL)


def test_the_command_writes_tree_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"recipe": "ppo", "steps": 1, "rollout_steps": 8, "env": {"id": "CartPole-v1", "num_envs": 2}}
    run = hone.api.train({**config, "name": "pole", "evaluation": {"episodes": 1}}, runs=tmp_path).folder
    small = ["--leaves", "4", "--rounds", "1", "--episodes", "2", "--problems", "3"]
    assert main(["distill-tree", "pole", "--runs", str(tmp_path), *small]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "round 1 of 1" in told and "fidelity" in told and "hands over" in told
    assert (run / "tree" / "tree.html").is_file()
    assert hone.api.load(run / "tree").predict(np.zeros(4))[0] in (0, 1)
    for arguments, words in (
        (["pole"], "is there already"),
        (["pole", str(tmp_path / "other"), "--leaves", "1"], "--leaves must be"),
        ([str(run / "tree"), str(tmp_path / "other")], "is not in a run"),
    ):
        assert main(["distill-tree", *arguments, "--runs", str(tmp_path)]) == 2
        assert words in capsys.readouterr().err


def test_regret_by_hand() -> None:
    """Two choices, four states in one leaf whose action is 0: sum(best - Q(0)) / sum(best - worst)."""
    labels = distill._Labels(
        chosen=np.array([0, 0, 1, 1]), scores=np.array([[4.0, 0.0], [3.0, 1.0], [0.0, 1.0], [-np.inf, 2.0]])
    )
    from scipy.sparse import csr_matrix

    value = np.array([[0.7, 0.3]])
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    low, high, samples, regret = distill._node_facts(csr_matrix(np.ones((4, 1))), value, labels, x)
    assert regret.tolist() == [(0 + 0 + 1 + 0) / (4 + 2 + 1 + 0)]
    assert (low.tolist(), high.tolist(), samples.tolist()) == ([[0, 1]], [[6, 7]], [4])
