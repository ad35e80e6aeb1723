"""Exact play in small games: values, best responses, NashConv, and mixtures of policies, over the whole tree.

A policy is an array `[I, actions]` of probabilities by information set. Every function is a few passes over the tree's
levels in numpy; nothing is sampled. Information sets of the games here have all their histories on one level, and
seats remember their own actions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hone.control.seats.compiled_games import GameTree, Ints

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class TreePlay:
    """Passes over a game's tree."""

    tree: GameTree

    @cached_property
    def levels(self) -> list[Ints]:
        """Histories of each depth, the root's first."""
        return [np.flatnonzero(self.tree.depth == depth) for depth in range(int(self.tree.depth.max()) + 1)]

    @cached_property
    def first_histories(self) -> Ints:
        """`[I]` a history of each information set."""
        return np.unique(self.tree.infoset, return_index=True)[1][-len(self.tree.seat) :]

    @property
    def seats(self) -> int:
        """Number of seats."""
        return self.tree.paid.shape[1]

    def uniform(self) -> Floats:
        """The policy `[I, actions]` that takes every legal action alike."""
        return self.tree.legal / self.tree.legal.sum(axis=1, keepdims=True)

    def edges(self, policy: Floats) -> Floats:
        """`[H]` probability of the edge to each history, by chance or by the policy of whoever moved; 1 at the root."""
        tree, taken = self.tree, self.tree.chance.copy()
        owned = np.flatnonzero(tree.parent >= 0)
        owned = owned[tree.mover[tree.parent[owned]] >= 0]
        taken[owned] = policy[tree.infoset[tree.parent[owned]], tree.action[owned]]
        return taken

    def reach(self, policy: Floats, *, seat: int | None = None, others_of: int | None = None) -> Floats:
        """`[H]` probability of each history by all edges; by those of `seat` alone; or by those of everyone, chance
        included, but `others_of`."""
        tree, taken = self.tree, self.edges(policy)
        mover = np.where(tree.parent >= 0, tree.mover[tree.parent], -2)
        if seat is not None:
            taken = np.where(mover == seat, taken, 1.0)
        if others_of is not None:
            taken = np.where(mover == others_of, 1.0, taken)
        for level in self.levels[1:]:
            taken[level] *= taken[tree.parent[level]]
        return taken

    def values(self, policy: Floats) -> Floats:
        """`[H, seats]` expected payments from each history on."""
        tree, taken, values = self.tree, self.edges(policy), self.tree.paid.copy()
        for level in self.levels[:0:-1]:
            for seat in range(self.seats):
                parts = np.bincount(tree.parent[level], taken[level] * values[level, seat], minlength=len(values))
                values[:, seat] += parts
        return values

    def counterfactual(self, policy: Floats, seat: int) -> Floats:
        """`[I, actions]` counterfactual values: payments to `seat` from each action on, over the histories of its
        information set, weighted by the probability that the others and chance reach them (Zinkevich et al., 2007).
        Rows of other seats are 0."""
        tree, size = self.tree, self.tree.legal.size
        weighted = self.reach(policy, others_of=seat) * self.values(policy)[:, seat]
        mine = np.flatnonzero(tree.parent >= 0)
        mine = mine[tree.mover[tree.parent[mine]] == seat]
        cells = tree.infoset[tree.parent[mine]] * tree.legal.shape[1] + tree.action[mine]
        return np.bincount(cells, weighted[mine], minlength=size).astype(np.float64).reshape(tree.legal.shape)

    def best_response(self, policy: Floats, seat: int) -> tuple[Floats, float]:
        """The pure policy `[I, actions]` of `seat` that is paid most against `policy` in the other seats, and its
        payment; rows of other seats are those of `policy`. Of equal actions the first is taken."""
        tree = self.tree
        best, reach = policy.copy(), self.reach(policy, others_of=seat)
        taken, values = self.edges(policy), tree.paid[:, seat].copy()
        for level in self.levels[:0:-1]:
            parents = tree.parent[level]
            chosen = tree.mover[parents] == seat
            mine, sets = level[chosen], tree.infoset[parents[chosen]]
            worth = np.where(tree.legal, 0.0, -np.inf)
            np.add.at(worth, (sets, tree.action[mine]), reach[mine] * values[mine])
            rows = np.unique(sets)
            best[rows] = np.eye(tree.legal.shape[1])[worth[rows].argmax(axis=1)]
            taken[mine] = best[sets, tree.action[mine]]
            values += np.bincount(parents, taken[level] * values[level], minlength=len(values))
        return best, float(values[0])

    def mean_return(self, one: Floats, other: Floats) -> float:
        """Expected payment to `one` against `other`, over the two seats of a game for two."""
        first = (self.tree.seat == 0)[:, None]
        ahead = self.values(np.where(first, one, other))[0, 0]
        behind = self.values(np.where(first, other, one))[0, 1]
        return float(ahead + behind) / 2

    def nash_conv(self, policy: Floats) -> float:
        """NashConv (Lanctot et al., 2017): sum over seats of the best response's payment less the policy's; 0 in an
        equilibrium."""
        own = self.values(policy)[0]
        return float(sum(self.best_response(policy, seat)[1] - own[seat] for seat in range(self.seats)))

    def mixture(self, policies: Sequence[Floats], weights: Floats) -> Floats:
        """`[I, actions]` the behaviour of seats that draw one of `policies` before the match and keep to it (Kuhn,
        1953): pi(a | s) = sum_k w_k reach_k(s) pi_k(a | s) / sum_k w_k reach_k(s). `weights` `[K]`, or `[seats, K]` by
        seat. Where no policy comes, all actions alike."""
        tree = self.tree
        weights = np.broadcast_to(weights, (self.seats, len(policies)))
        summed = np.zeros(tree.legal.shape)
        for number, policy in enumerate(policies):
            for seat in range(self.seats):
                rows = tree.seat == seat
                own = self.reach(policy, seat=seat)[self.first_histories]
                summed[rows] += weights[seat, number] * own[rows, None] * policy[rows]
        total = summed.sum(axis=1, keepdims=True)
        return np.where(total > 0, summed / np.where(total > 0, total, 1.0), self.uniform())


def regret_matching(regrets: Floats, legal: NDArray[np.bool_]) -> Floats:
    """`[I, actions]` probabilities in proportion to positive regrets; of all legal actions alike where there is none
    (Hart & Mas-Colell, 2000)."""
    positive = np.where(legal, np.maximum(regrets, 0.0), 0.0)
    total = positive.sum(axis=1, keepdims=True)
    return np.where(total > 0, positive / np.where(total > 0, total, 1.0), legal / legal.sum(axis=1, keepdims=True))
