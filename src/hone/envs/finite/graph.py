"""Which states lead where: reachability, strongly connected components, cycles.

Belongs here: questions that do not look at the numbers. scipy.sparse.csgraph answers them, without recursion, so that
a path of a million states is no deeper than one of two. scipy is in the extra `control`.
"""

import numpy as np

from hone.core.errors import ResourceError
from hone.core.ragged import Ints
from hone.envs.finite.linear import NEEDS_SCIPY
from hone.envs.finite.model import FiniteMdp, Flags, TabularPolicy, policy_probabilities


def transition_edges(mdp: FiniteMdp, policy: TabularPolicy | None = None) -> tuple[Ints, Ints]:
    """From and to `[M]` of what can follow what without an end; under a policy: of what it may do. May repeat."""
    goes_on = ~mdp.terminates
    if policy is not None:
        goes_on &= policy_probabilities(mdp, policy).ravel()[mdp.pair_of_outcome] > 0
    return (mdp.pair_of_outcome // mdp.actions)[goes_on], mdp.next_state[goes_on]


def reachable_states(mdp: FiniteMdp, policy: TabularPolicy | None = None) -> Flags:
    """`[S]` which states an episode can come to."""
    seen = mdp.start_distribution > 0
    source, target = transition_edges(mdp, policy)
    while (more := target[seen[source] & ~seen[target]]).size:
        seen[more] = True
    return seen


def strong_components(mdp: FiniteMdp, policy: TabularPolicy | None = None) -> Ints:
    """`[S]` number of each state's strongly connected component: two states share it if each can lead to the other."""
    return component_labels(*transition_edges(mdp, policy), mdp.states)


def cyclic_states(mdp: FiniteMdp, policy: TabularPolicy | None = None) -> Flags:
    """`[S]` states that can be come back to without an end."""
    return on_cycles(*transition_edges(mdp, policy), mdp.states)


def closed_class_states(mdp: FiniteMdp, policy: TabularPolicy | None = None) -> Flags:
    """`[S]` states in components that, once entered, are never left and never end: where a policy stays for ever."""
    source, target = transition_edges(mdp, policy)
    label = component_labels(source, target, mdp.states)
    left = np.zeros(int(label.max()) + 1, dtype=np.bool_)
    left[label[mdp.terminal]] = True
    left[label[source[label[source] != label[target]]]] = True
    ending = (
        mdp.terminates
        if policy is None
        else mdp.terminates & (policy_probabilities(mdp, policy).ravel()[mdp.pair_of_outcome] > 0)
    )
    left[label[(mdp.pair_of_outcome // mdp.actions)[ending]]] = True
    return ~left[label]


def component_labels(source: Ints, target: Ints, count: int) -> Ints:
    """`[count]` strongly connected component of each node of a directed graph. Raises ResourceError without scipy."""
    try:
        from scipy import sparse  # noqa: PLC0415 - optional, and slow to import
        from scipy.sparse import csgraph  # noqa: PLC0415
    except ImportError as missing:
        raise ResourceError(f"components of a graph: {NEEDS_SCIPY}") from missing
    graph = sparse.coo_matrix((np.ones(len(source), np.int8), (source, target)), shape=(count, count)).tocsr()
    graph.data[:] = 1  # of edges that repeat, the counts could wrap around to 0
    _, label = csgraph.connected_components(graph, directed=True, connection="strong")
    return np.asarray(label, dtype=np.int64)


def on_cycles(source: Ints, target: Ints, count: int) -> Flags:
    """`[count]` nodes on a directed cycle: in a component with another node, or with an edge to themselves."""
    label = component_labels(source, target, count)
    found = np.bincount(label)[label] > 1
    found[source[source == target]] = True
    return found


def union_find_labels(first: Ints, second: Ints, count: int) -> Ints:
    """`[count]` number of each item's class, after saying `first[k]` and `second[k]` are the same (union-find).

    Classes are numbered by their first item. Union by size, paths halved (Tarjan & van Leeuwen, 1984).
    """
    parent, size = list(range(count)), [1] * count
    for one, other in zip(first.tolist(), second.tolist(), strict=True):
        low, high = _root(parent, one), _root(parent, other)
        if low == high:
            continue
        if size[low] > size[high]:
            low, high = high, low
        parent[low] = high
        size[high] += size[low]
    roots = np.array([_root(parent, item) for item in range(count)], dtype=np.int64)
    _, where, label = np.unique(roots, return_index=True, return_inverse=True)
    order = np.empty(len(where), dtype=np.int64)
    order[np.argsort(where)] = np.arange(len(where))
    return order[label]


def _root(parent: list[int], item: int) -> int:
    while parent[item] != item:
        parent[item] = parent[parent[item]]
        item = parent[item]
    return item
