"""State abstraction: states that nobody can tell apart by what they pay and where they lead are one state.

Belongs here: the coarsest bisimulation by partition refinement (Givan, Dean & Greig, 2003), the smaller process that it
leaves, and the check of a partition that somebody else proposes.
"""

import numpy as np

from hone.core.errors import DataError
from hone.core.ragged import Ints
from hone.envs.finite.model import FiniteMdp, Floats, MdpOutcomes, make_mdp

SAME_TOLERANCE = 1e-9
"""Numbers closer than this are taken for equal; chains of such numbers too, so that no boundary can part them."""


def bisimulation(mdp: FiniteMdp, *, tolerance: float = SAME_TOLERANCE) -> Ints:
    """`[S]` block of each state, numbered by their first states: the coarsest partition that loses nothing.

    States of one block pay the same for each action, end as often, and lead to each block as often.
    """
    paid = clusters(np.where(mdp.available, mdp.expected_reward, np.inf).ravel(), tolerance).reshape(mdp.states, -1)
    blocks = _numbered(paid)
    while True:
        finer = _numbered(np.concatenate([blocks[:, None], _leads(mdp, blocks, tolerance)], axis=1))
        if finer.max() == blocks.max():
            return blocks
        blocks = finer


def is_bisimulation(mdp: FiniteMdp, blocks: Ints, *, tolerance: float = SAME_TOLERANCE) -> bool:
    """Whether states of one block cannot be told apart."""
    paid = clusters(np.where(mdp.available, mdp.expected_reward, np.inf).ravel(), tolerance).reshape(mdp.states, -1)
    told = np.concatenate([blocks[:, None], paid, _leads(mdp, blocks, tolerance)], axis=1)
    return int(_numbered(told).max()) == int(_numbered(blocks[:, None]).max())


def quotient_mdp(mdp: FiniteMdp, blocks: Ints) -> FiniteMdp:
    """The process over blocks `0 .. B-1`; what is worth v there is worth v in every state of the block.

    Raises DataError for blocks that are no bisimulation.
    """
    if not is_bisimulation(mdp, blocks):
        raise DataError("these blocks join states that pay or lead differently: make them with `bisimulation`")
    count = int(blocks.max()) + 1
    _, representative = np.unique(blocks, return_index=True)
    state, action = np.divmod(mdp.pair_of_outcome, mdp.actions)
    kept = np.isin(state, representative)
    return make_mdp(
        MdpOutcomes(
            state=blocks[state[kept]],
            action=action[kept],
            next_state=blocks[mdp.next_state[kept]],
            probability=mdp.probability[kept],
            reward=mdp.reward[kept],
            terminates=mdp.terminates[kept],
        ),
        states=count,
        actions=mdp.actions,
        start=np.bincount(blocks, weights=mdp.start_distribution, minlength=count).astype(np.float64),
        discount=mdp.discount,
        limit=mdp.step_limit,
    )


def clusters(values: Floats, tolerance: float) -> Ints:
    """`[N]` -> number of each value's cluster: neighbours in order that are closer than `tolerance` share it."""
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    apart = np.ones(len(values), dtype=np.bool_)
    apart[1:] = ordered[1:] > ordered[:-1] + tolerance
    label = np.empty(len(values), dtype=np.int64)
    label[order] = np.cumsum(apart) - 1
    return label


def _leads(mdp: FiniteMdp, blocks: Ints, tolerance: float) -> Ints:
    """`[S, 1]` kind of each state by how often each action leads to each block, or ends."""
    count = int(blocks.max()) + 2
    cell = mdp.pair_of_outcome * count + np.where(mdp.terminates, count - 1, blocks[mdp.next_state])
    cells, where = np.unique(cell, return_inverse=True)
    chance = clusters(np.bincount(where, weights=mdp.probability).astype(np.float64), tolerance)
    pair, block = np.divmod(cells, count)
    state, action = np.divmod(pair, mdp.actions)
    told = np.stack([action, block, chance], axis=1)
    bounds = np.searchsorted(state, np.arange(mdp.states + 1))
    kinds: dict[bytes, int] = {}
    rows = [told[bounds[s] : bounds[s + 1]].tobytes() for s in range(mdp.states)]
    return np.array([[kinds.setdefault(row, len(kinds))] for row in rows], dtype=np.int64)


def _numbered(rows: Ints) -> Ints:
    """`[S, C]` -> `[S]` number of each distinct row, in the order of their first appearance."""
    _, first, label = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    order = np.empty(len(first), dtype=np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return order[label.reshape(-1)]
