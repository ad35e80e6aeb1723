"""Distillation of a control policy into a decision tree, and the measures that say what it is worth.

VIPER (Bastani, Pu and Solar-Lezama, 2018): the tree acts, the teacher labels what it saw, states weigh by how much the
teacher loses by its worst action, and the tree of the round with the best return is kept. scikit-learn grows the trees.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hone.control.environments.make import GymConfig, evaluation_limit
from hone.control.environments.play import open_evaluation_envs, play_episodes
from hone.control.networks.decision_tree import LEAF, DecisionTree, Doubles
from hone.control.networks.mlp import BoxActions, DiscreteActions, FactoredActions
from hone.control.networks.numpy_policies import Array, DiscreteNetworkPolicy, Flags
from hone.control.networks.q_networks import NumpyNoisyPolicy
from hone.control.predict import SavedPolicy
from hone.core.clock import counted
from hone.core.errors import ConfigError, ResourceError
from hone.core.random import key
from hone.estimators.means import Estimate, PairedDifferenceEstimate, bootstrap_mean, paired_difference


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillConfig:
    """Size of the tree, and of what it is made and judged from."""

    leaves: int = 64
    """Most leaves."""
    rounds: int = 8
    episodes: int = 20
    """Episodes of a round; each gives states and the round's return."""
    judged_episodes: int = 100
    """Fresh episodes of the final measures."""
    most_regret: float = 0.05
    """Leaves that lose a greater share of the teacher's margin hand their decisions over."""
    seed: int = 0
    names: tuple[str, ...] = ()
    """Names of an observation's numbers; empty: x0, x1 ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TreeRound:
    """One round of distillation."""

    states: int
    """Labelled states so far."""
    leaves: int
    mean_return: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _TreeMeasures:
    """What a tree is worth beside its teacher, on the same fresh episodes."""

    teacher: Estimate
    """Return."""
    tree: Estimate
    """Return."""
    difference: PairedDifferenceEstimate
    """Return of the tree minus the teacher's, episode by episode."""
    combined: Estimate
    """Return where the teacher takes the decisions that the tree hands over."""
    fidelity: Estimate
    """Share of the tree's decisions, where the tree acts, that are the teacher's; for a box, 1 - squared error /
    variance of the teacher's actions. The interval is over environments, whose decisions depend on one another."""
    agreement: Estimate
    """The same where the teacher acts."""
    handed_over: Estimate
    """Share of decisions that the tree hands over, where it acts."""
    fidelity_of_kept: Estimate
    """Fidelity of the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DistilledTree:
    """A tree, how it came about, and its measures."""

    tree: DecisionTree
    rounds: Sequence[_TreeRound]
    best_round: int
    measures: _TreeMeasures
    config: DistillConfig
    states: Array
    """`[n, *observation]` some states that the tree met in the fresh episodes, for examples."""

    def lines(self) -> list[str]:
        """Lines for the user."""
        m, best = self.measures, self.rounds[self.best_round]
        return [
            f"{self.tree.leaf_count} leaves, round {self.best_round + 1} of {len(self.rounds)}, {best.states:,} states",
            f"return: teacher {_interval(m.teacher)}, tree {_interval(m.tree)}; difference "
            f"{m.difference.difference:+.4g} ({m.difference.low:+.4g} to {m.difference.high:+.4g})",
            f"fidelity {_interval(m.fidelity)} where the tree acts, {_interval(m.agreement)} where the teacher acts",
            f"hands over {m.handed_over.mean:.1%} of its decisions; fidelity of the others "
            f"{_interval(m.fidelity_of_kept)}, return with the teacher's help {_interval(m.combined)}",
        ]


def _interval(estimate: Estimate) -> str:
    return f"{estimate.mean:.4g} ({estimate.low:.4g} to {estimate.high:.4g})"


# ------------------------------------------------------------------------------------------------------------ teacher


@dataclass(frozen=True, slots=True, kw_only=True)
class _Labels:
    """A teacher's judgement of `n` states."""

    chosen: NDArray[Any]
    """`[n]` numbers of choices from 0, or `[n, a]` actions of a box."""
    scores: Doubles
    """`[n, choices]` values or logits, -inf for illegal ones; `[n, 0]` for a box."""


def _judge(teacher: SavedPolicy, seen: Array, mask: Flags | None) -> _Labels:
    acting, actions = teacher.acting, teacher.actions
    best = np.asarray(acting.best(seen, mask))
    if isinstance(actions, BoxActions):
        low, high = (np.asarray(side, np.float32) for side in (actions.low, actions.high))
        return _Labels(chosen=best.reshape(len(seen), -1).clip(low, high), scores=np.zeros((len(seen), 0)))
    assert isinstance(actions, DiscreteActions)
    chosen = best.astype(np.int64) - actions.start
    if isinstance(acting, DiscreteNetworkPolicy):
        scores = acting.legal_outputs(seen, mask)
    elif isinstance(acting, NumpyNoisyPolicy):
        scores = acting.values(acting.inputs.array(seen))
    else:  # only the choice is known: all states weigh the same
        scores = np.eye(actions.count)[chosen]
    return _Labels(chosen=chosen, scores=scores.astype(np.float64))


def _margins(scores: Doubles) -> Doubles:
    """`[n]` best minus worst of the legal scores: what the teacher loses by its worst action."""
    legal = np.isfinite(scores)
    worst = np.where(legal, scores, np.inf).min(axis=1)
    return np.where(legal, scores, -np.inf).max(axis=1) - worst


# ----------------------------------------------------------------------------------------------------------- episodes


@dataclass(slots=True)
class _Recorder:
    """Acts in the environments of an evaluation, and keeps what it saw."""

    act: Callable[[Array, Flags | None], Array]
    seen: list[Array] = field(default_factory=list[Array])
    masks: list[Flags | None] = field(default_factory=list["Flags | None"])

    def __call__(self, seen: Array, mask: Flags | None = None) -> Array:
        self.seen.append(np.array(seen))
        self.masks.append(mask)
        return self.act(seen, mask)

    def states(self) -> tuple[Array, Flags | None]:
        """Observations `[T * B, *observation]` and masks."""
        mask = None if self.masks[0] is None else np.concatenate([one for one in self.masks if one is not None])
        return np.concatenate(self.seen), mask

    @property
    def lanes(self) -> NDArray[np.int64]:
        """`[T * B]` environment of each observation."""
        return np.concatenate([np.arange(len(one)) for one in self.seen])


def _play(
    env: GymConfig, act: Callable[[Array, Flags | None], Array], *, episodes: int, seed: int
) -> tuple[Doubles, _Recorder]:
    """Returns `[episodes]`, and what was seen. Raises ResourceError where environments are lost."""
    recorder, arena = _Recorder(act), open_evaluation_envs(env, episodes=episodes)
    try:
        played = play_episodes(arena, recorder, seed=seed, step_limit=evaluation_limit(env))
    finally:
        arena.close()
    if played.lost_episodes:
        raise ResourceError(f"{env.id}: {played.lost_episodes} of {episodes} environments were lost: no comparison")
    return played.returns, recorder


# ------------------------------------------------------------------------------------------------------- distillation


def distill_tree(
    teacher: SavedPolicy, env: GymConfig, config: DistillConfig, tell: Callable[[str], None] = lambda _: None
) -> DistilledTree:
    """Distill a policy into a tree by VIPER and measure it; `tell` receives a line for each round.

    Raises ConfigError for a policy that remembers and for names that do not fit, ResourceError without scikit-learn and
    for lost environments, UserCodeError as the environment does.
    """
    if teacher.observation.layout is not None or isinstance(teacher.actions, FactoredActions):
        raise ConfigError(
            f"{teacher.folder}: a tree has one row of numbers and one choice or box; this policy has parts"
        )
    if teacher.has_memory:
        raise ConfigError(
            f"{teacher.folder}: this policy remembers earlier observations, and a tree sees one at a time"
        )
    count = 1 if teacher.observation.is_state else teacher.observation.count
    if config.names and len(config.names) != count:
        raise ConfigError(f"--names has {len(config.names)} names, and an observation {count} numbers")
    grow = _grower(teacher, config)
    tree: DecisionTree | None = None
    grown: list[DecisionTree] = []
    rounds: list[_TreeRound] = []
    data: list[tuple[Array, Flags | None]] = []
    for number in counted(range(config.rounds), "rounds of the tree"):
        acting = teacher.acting if tree is None else tree.numpy_policy()
        seed = key(config.seed, "distill", number) & 0x3FFFFFFF
        data.append(_play(env, acting.best, episodes=config.episodes, seed=seed)[1].states())
        seen = np.concatenate([one for one, _ in data])
        masks = [mask for _, mask in data if mask is not None]
        tree = grow(seen, np.concatenate(masks) if masks else None)
        judged = key(config.seed, "judge round") & 0x3FFFFFFF
        returns, _ = _play(env, tree.numpy_policy().best, episodes=config.episodes, seed=judged)
        grown.append(tree)
        rounds.append(_TreeRound(states=len(seen), leaves=tree.leaf_count, mean_return=float(returns.mean())))
        tell(f"round {number + 1} of {config.rounds}: {len(seen):,} states, return {returns.mean():.4g}")
    best = int(np.argmax([one.mean_return for one in rounds]))
    measures, states = measure_tree(grown[best], teacher, env, config)
    return DistilledTree(
        tree=grown[best], rounds=rounds, best_round=best, measures=measures, config=config, states=states
    )


def _grower(teacher: SavedPolicy, config: DistillConfig) -> Callable[[Array, Flags | None], DecisionTree]:
    """Function of labelled states -> a tree. Raises ResourceError without scikit-learn."""
    try:
        sklearn: Any = import_module("sklearn.tree")
    except ImportError as error:
        raise ResourceError("hone distill-tree needs scikit-learn: pip install 'hone-rl[tree]'") from error
    count = 1 if teacher.observation.is_state else teacher.observation.count
    names = config.names or (("state",) if teacher.observation.is_state else tuple(f"x{n}" for n in range(count)))

    actions = teacher.actions
    assert not isinstance(actions, FactoredActions)

    def grow(seen: Array, mask: Flags | None) -> DecisionTree:
        labels, x = _judge(teacher, seen, mask), seen.reshape(len(seen), -1).astype(np.float32)
        if isinstance(actions, DiscreteActions):
            weight = np.maximum(_margins(labels.scores), 1e-9)
            fitted = sklearn.DecisionTreeClassifier(max_leaf_nodes=config.leaves, random_state=0)
            fitted.fit(x, labels.chosen, sample_weight=weight / weight.mean())
            shares = fitted.tree_.value[:, 0, :]
            value = np.zeros((len(shares), actions.count))
            value[:, fitted.classes_] = shares / shares.sum(axis=1, keepdims=True)
        else:
            fitted = sklearn.DecisionTreeRegressor(max_leaf_nodes=config.leaves, random_state=0)
            fitted.fit(x, labels.chosen)
            value = fitted.tree_.value[:, :, 0]
        nodes = fitted.tree_
        inner = nodes.children_left != nodes.children_right
        low, high, samples, regret = _node_facts(fitted.decision_path(x), value, labels, x)
        return DecisionTree(
            features=tuple(names),
            is_state=teacher.observation.is_state,
            actions=actions,
            feature=np.where(inner, nodes.feature, LEAF).astype(np.int64),
            threshold=np.where(inner, nodes.threshold, 0.0),
            left=np.where(inner, nodes.children_left, LEAF).astype(np.int64),
            right=np.where(inner, nodes.children_right, LEAF).astype(np.int64),
            value=value,
            samples=samples,
            low=low,
            high=high,
            regret=regret,
        )

    return grow


def _node_facts(
    passed: Any,  # noqa: ANN401 - a sparse matrix of flags [n, nodes]
    value: Doubles,
    labels: _Labels,
    x: NDArray[np.float32],
) -> tuple[Doubles, Doubles, NDArray[np.int64], Doubles]:
    """Bounds of the data `[nodes, features]` twice, their number, and the regret `[nodes]`, of each node."""
    by_node = passed.tocsc()
    low, high = (np.zeros((len(value), x.shape[1])) for _ in range(2))
    samples, regret = np.zeros(len(value), np.int64), np.zeros(len(value))
    margins = _margins(labels.scores) if labels.scores.shape[1] else None
    spread = labels.chosen.var(axis=0).sum() if margins is None else 0.0
    for node in range(len(value)):
        rows = by_node.indices[by_node.indptr[node] : by_node.indptr[node + 1]]
        low[node], high[node], samples[node] = x[rows].min(axis=0), x[rows].max(axis=0), len(rows)
        if margins is None:
            error = np.square(labels.chosen[rows] - value[node]).sum(axis=1).mean()
            regret[node] = error / spread if spread else 0.0
            continue
        scores = np.where(np.isfinite(labels.scores[rows]), labels.scores[rows], np.nan)
        taken = scores[:, int(value[node].argmax())]
        lost = np.nanmax(scores, axis=1) - np.where(np.isnan(taken), np.nanmin(scores, axis=1), taken)
        regret[node] = lost.sum() / margins[rows].sum() if margins[rows].sum() > 0 else 0.0
    return low, high, samples, regret


# ----------------------------------------------------------------------------------------------------------- measures


def measure_tree(
    tree: DecisionTree, teacher: SavedPolicy, env: GymConfig, config: DistillConfig
) -> tuple[_TreeMeasures, Array]:
    """Measures of a tree on fresh episodes, the same for tree, teacher and both together; and states that it met."""
    seed, episodes = key(config.seed, "judge tree") & 0x3FFFFFFF, config.judged_episodes
    alone, best = tree.numpy_policy().best, teacher.acting.best

    def together(seen: Array, mask: Flags | None) -> Array:
        handed = tree.hands_over(seen, most_regret=config.most_regret)
        chosen = np.array(alone(seen, mask))
        if handed.any():
            chosen[handed] = best(seen[handed], None if mask is None else mask[handed])
        return chosen

    theirs, by_teacher = _play(env, best, episodes=episodes, seed=seed)
    ours, by_tree = _play(env, alone, episodes=episodes, seed=seed)
    both, _ = _play(env, together, episodes=episodes, seed=seed)
    seen, mask = by_tree.states()
    handed = tree.hands_over(seen, most_regret=config.most_regret)
    equal = _faithful(tree, teacher, seen, mask)
    other_seen, other_mask = by_teacher.states()
    measures = _TreeMeasures(
        teacher=bootstrap_mean(theirs),
        tree=bootstrap_mean(ours),
        difference=paired_difference(theirs, ours),
        combined=bootstrap_mean(both),
        fidelity=_by_lane(equal, by_tree.lanes),
        agreement=_by_lane(_faithful(tree, teacher, other_seen, other_mask), by_teacher.lanes),
        handed_over=_by_lane(handed.astype(np.float64), by_tree.lanes),
        fidelity_of_kept=_by_lane(equal[~handed], by_tree.lanes[~handed]),
    )
    return measures, seen[:: max(1, len(seen) // 500)]


def _faithful(tree: DecisionTree, teacher: SavedPolicy, seen: Array, mask: Flags | None) -> Doubles:
    """`[n]` 1 where the tree takes the teacher's action, else 0; for a box 1 - squared error / variance."""
    labels = _judge(teacher, seen, mask)
    ours: NDArray[Any] = np.asarray(tree.numpy_policy().best(seen, mask))
    if isinstance(teacher.actions, DiscreteActions):
        return (ours - teacher.actions.start == labels.chosen).astype(np.float64)
    error = np.square(ours.reshape(len(seen), -1) - labels.chosen).sum(axis=1)
    return 1.0 - error / max(float(labels.chosen.var(axis=0).sum()), 1e-12)


def _by_lane(values: Doubles, lanes: NDArray[np.int64]) -> Estimate:
    """Mean of `values` `[n]`, with an interval from the means of the environments, which are independent."""
    if not len(values):
        return Estimate(mean=float("nan"), low=float("nan"), high=float("nan"), n=0)
    sums, counts = np.bincount(lanes, values), np.bincount(lanes)
    means = sums[counts > 0] / counts[counts > 0]
    spread = bootstrap_mean(means)
    mean = float(values.mean())
    return Estimate(mean=mean, low=min(spread.low, mean), high=max(spread.high, mean), n=len(means))
