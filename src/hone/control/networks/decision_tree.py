"""Decision trees as policies: acting, the attribution of each decision, and their folder on disk.

numpy alone: a tree that was distilled once (`hone.control.distill`) acts without scikit-learn, and its folder
is `policy.json`. Inner nodes ask `x[feature] <= threshold` of an observation flattened to 32-bit floats; a leaf has the
shares of actions, or the action of a box.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.control.networks.mlp import BoxActions, DiscreteActions
from hone.control.networks.numpy_policies import Array, Flags, require_mask
from hone.core.errors import DataError
from hone.core.strict_json import strict_json

Doubles: TypeAlias = NDArray[np.float64]
KIND: Final = "decision_tree"
FORMAT: Final = 1
LEAF: Final = -1
"""Child of a leaf."""
_NODE_COLUMNS: Final = ("feature", "threshold", "left", "right", "value", "samples", "low", "high", "regret")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionTree:
    """Nodes in columns; node 0 is the root, and a child's number is greater than its parent's."""

    features: tuple[str, ...]
    """Names of the numbers of an observation."""
    is_state: bool
    """Whether an observation is the number of a state: one feature."""
    actions: DiscreteActions | BoxActions
    feature: NDArray[np.int64]
    """`[nodes]` number that a node asks for; of a leaf `LEAF`."""
    threshold: NDArray[np.float64]
    left: NDArray[np.int64]
    """`[nodes]` next node where `x[feature] <= threshold`."""
    right: NDArray[np.int64]
    value: NDArray[np.float64]
    """`[nodes, outputs]` shares of the choices `[n]`, or the mean action of a box `[a]`, of the training data."""
    samples: NDArray[np.int64]
    """`[nodes]` training observations."""
    low: NDArray[np.float64]
    """`[nodes, features]` least number of the training observations."""
    high: NDArray[np.float64]
    regret: NDArray[np.float64]
    """`[nodes]` share of the teacher's margin that the node's action loses, 0 to 1: sum(Q(best) - Q(node's)) /
    sum(Q(best) - Q(worst)); of a box the mean squared error over that of the middle."""

    # ------------------------------------------------------------------------------------------------ acting

    def numpy_policy(self) -> "NumpyTreePolicy":
        """The tree as a policy."""
        return NumpyTreePolicy(tree=self)

    def leaves(self, seen: Array) -> NDArray[np.int64]:
        """Observations `[n, *observation]` -> their leaves `[n]`."""
        x, node = _flat(seen), np.zeros(len(seen), np.int64)
        rows = np.arange(len(seen))
        while True:
            asked = self.feature[node]
            inner = asked != LEAF
            if not inner.any():
                return node
            goes_left = x[rows, np.maximum(asked, 0)] <= self.threshold[node]
            node = np.where(inner, np.where(goes_left, self.left[node], self.right[node]), node)

    def hands_over(self, seen: Array, *, most_regret: float) -> Flags:
        """`[n]` decisions that the tree had better leave to its teacher: in leaves that lose more than a share
        `most_regret` of the teacher's margin, and outside the box of a leaf's training data."""
        x, leaf = _flat(seen), self.leaves(seen)
        slack = 0.1 * (self.high[0] - self.low[0])
        outside = ((x < self.low[leaf] - slack) | (x > self.high[leaf] + slack)).any(axis=1)
        return outside | (self.regret[leaf] > most_regret)

    def path(self, seen: Array) -> list[int]:
        """Nodes from the root to the leaf of one observation."""
        x, node, path = _flat(seen[None])[0], 0, [0]
        while self.feature[node] != LEAF:
            node = int(self.left[node] if x[self.feature[node]] <= self.threshold[node] else self.right[node])
            path.append(node)
        return path

    def attribution(self, seen: Array) -> tuple[Doubles, Doubles]:
        """The output of the root `[outputs]`, and what each number of one observation adds to it `[features, outputs]`.

        A split's number gets the change of the value from the node to its child, so the sum over all numbers and the
        root's output is the leaf's output (Saabas, 2014): exactly, but for the rounding of the additions.
        """
        path = self.path(seen)
        shares = np.zeros((len(self.features), self.value.shape[1]))
        for parent, child in pairwise(path):
            shares[self.feature[parent]] += self.value[child] - self.value[parent]
        return self.value[0].copy(), shares

    @property
    def leaf_count(self) -> int:
        """Number of leaves."""
        return int((self.feature == LEAF).sum())

    # -------------------------------------------------------------------------------------------------- text

    def action_text(self, node: int) -> str:
        """The action of a node: `2`, or `[0.5, -1]`."""
        if isinstance(self.actions, DiscreteActions):
            return str(int(self.value[node].argmax()) + self.actions.start)
        return "[" + ", ".join(f"{number:.3g}" for number in self.value[node]) + "]"

    def question(self, node: int) -> str:
        """`angle <= 0.0123`."""
        return f"{self.features[self.feature[node]]} <= {self.threshold[node]:.4g}"

    def as_code(self) -> str:
        """The tree as a Python function of `x`, the flattened observation."""
        names = ", ".join(f"x[{number}] is {name}" for number, name in enumerate(self.features))
        lines = ["def act(x):", f'    """{names}"""']

        def write(node: int, depth: int) -> None:
            indent = "    " * depth
            if self.feature[node] == LEAF:
                lines.append(f"{indent}return {self.action_text(node)}")
                return
            lines.append(f"{indent}if x[{self.feature[node]}] <= {float(self.threshold[node])!r}:")
            write(int(self.left[node]), depth + 1)
            lines.append(f"{indent}else:")
            write(int(self.right[node]), depth + 1)

        write(0, 1)
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class NumpyTreePolicy:
    """Acts by a tree; every action is certain."""

    tree: DecisionTree

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """No random numbers."""
        return draws.random((*shape, 0), dtype=np.float32)

    def decide(
        self, seen: Array, noise: NDArray[np.float32], mask: Flags | None = None
    ) -> tuple[Array, NDArray[np.float32]]:
        """The tree's actions, of log-probability 0; of a box the density is not known, NaN."""
        del noise
        known = 0.0 if isinstance(self.tree.actions, DiscreteActions) else np.nan
        return self.best(seen, mask), np.full(len(seen), known, np.float32)

    def best(self, seen: Array, mask: Flags | None = None) -> Array:
        """Actions `[n, *action]`; of legal ones the most frequent in the leaf."""
        tree, values = self.tree, self.tree.value[self.tree.leaves(seen)]
        actions = tree.actions
        if isinstance(actions, BoxActions):
            return values.astype(np.float32).reshape(len(seen), *actions.shape)
        require_mask(actions, mask)
        return (values if mask is None else np.where(mask, values, -np.inf)).argmax(axis=1) + actions.start


def _flat(seen: Array) -> NDArray[np.float32]:
    return seen.reshape(len(seen), -1).astype(np.float32)


# ------------------------------------------------------------------------------------------------------------- folder


def save_tree(tree: DecisionTree, folder: Path) -> None:
    """Write `policy.json` into `folder`, which is created if missing."""
    folder.mkdir(parents=True, exist_ok=True)
    actions = tree.actions
    description = {
        "format": FORMAT,
        "kind": KIND,
        "features": list(tree.features),
        "is_state": tree.is_state,
        "actions": {"count": actions.count, "start": actions.start, "masked": actions.masked}
        if isinstance(actions, DiscreteActions)
        else {"low": list(actions.low), "high": list(actions.high), "shape": list(actions.shape)},
        "nodes": {name: column.tolist() for name, column in _columns(tree).items()},
    }
    (folder / "policy.json").write_text(json.dumps(description) + "\n", encoding="utf-8")


def load_tree(folder: Path) -> DecisionTree:
    """The tree saved by `save_tree`; raises DataError that names the missing, damaged or unknown part."""
    path = folder / "policy.json"
    try:
        description: Any = strict_json(path.read_bytes())
        if description["format"] != FORMAT:
            raise DataError(f"{path}: format {description['format']}, this hone reads trees of format {FORMAT}")
        nodes, actions = description["nodes"], description["actions"]
        whole = {"feature", "left", "right", "samples"}
        columns: dict[str, NDArray[Any]] = {
            name: np.asarray(nodes[name], np.int64 if name in whole else np.float64) for name in _NODE_COLUMNS
        }
        tree = DecisionTree(
            features=tuple(description["features"]),
            is_state=bool(description["is_state"]),
            actions=DiscreteActions(**actions)
            if "count" in actions
            else BoxActions(low=tuple(actions["low"]), high=tuple(actions["high"]), shape=tuple(actions["shape"])),
            **columns,
        )
        _require_tree(tree, path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: incomplete or unknown: {error!r}") from error
    return tree


def _columns(tree: DecisionTree) -> dict[str, Array]:
    return {
        "feature": tree.feature, "threshold": tree.threshold, "left": tree.left, "right": tree.right,
        "value": tree.value, "samples": tree.samples, "low": tree.low, "high": tree.high, "regret": tree.regret,
    }  # fmt: skip


def _require_tree(tree: DecisionTree, path: Path) -> None:
    """Raises DataError for columns of other lengths, and for children that are no later nodes: a walk would not end."""
    count = len(tree.feature)
    lengths = {name: len(column) for name, column in _columns(tree).items()}
    if not count or set(lengths.values()) != {count}:
        raise DataError(f"{path}: its columns of nodes have the lengths {lengths}")
    inner, numbers = tree.feature != LEAF, np.arange(count)
    faulty = inner & ((tree.feature < 0) | (tree.feature >= len(tree.features)))
    for child in (tree.left, tree.right):
        faulty |= inner & ((child <= numbers) | (child >= count))
    if faulty.any():
        raise DataError(f"{path}: node {int(np.flatnonzero(faulty)[0])} has a feature or a child that is not there")


# -------------------------------------------------------------------------------------------------------- explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a tree decided as it did."""

    action: str
    rules: Sequence[str]
    """Questions on the way to the leaf, with their answers."""
    base: float
    """Output of the root."""
    shares: dict[str, float] = field(default_factory=dict[str, float])
    """Name of a number -> what it added; with `base` they sum to `output`."""
    output: float = 0.0
    """Share of the action in the leaf; of a box its first dimension."""
    handed_over: bool = False


def explain(tree: DecisionTree, seen: Array, *, most_regret: float) -> Explanation:
    """Rules and attribution of the tree's action for one observation."""
    path, (base, shares) = tree.path(seen), tree.attribution(seen)
    leaf = path[-1]
    column = int(tree.value[leaf].argmax()) if isinstance(tree.actions, DiscreteActions) else 0
    rules = [
        tree.question(node) if child == tree.left[node] else tree.question(node).replace("<=", ">")
        for node, child in pairwise(path)
    ]
    return Explanation(
        action=tree.action_text(leaf),
        rules=rules,
        base=float(base[column]),
        shares={name: float(share) for name, share in zip(tree.features, shares[:, column], strict=True)},
        output=float(tree.value[leaf][column]),
        handed_over=bool(tree.hands_over(seen[None], most_regret=most_regret)[0]),
    )
