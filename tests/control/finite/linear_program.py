"""Optimal values by linear programming: a reference that shares no line with dynamic programming."""

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.optimize import linprog

from hone.control.finite.model import FiniteMdp, Floats
from hone.control.finite.solve import can_end
from hone.core.errors import DataError


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearProgramSolution:
    """Primal and dual solution."""

    value: Floats
    """`[S]` the optimal values."""
    occupancy: Floats
    """`[S, A]` discounted visits of an optimal policy whose episodes begin by `weights` (the dual)."""


def solve_linear_program(mdp: FiniteMdp, weights: Floats | None = None) -> LinearProgramSolution:
    """min sum of w(s) v(s) with v(s) >= r(s, a) + discount * sum of p v for every pair (d'Epenoux, 1963).

    `weights` `[S]`, all positive; None: uniform. Raises DataError where no finite values satisfy it.
    """
    weights = np.full(mdp.states, 1 / mdp.states) if weights is None else weights
    pairs = np.flatnonzero(mdp.available)
    row = np.cumsum(mdp.available.ravel()) - 1
    goes_on = ~mdp.terminates
    rows = np.concatenate([np.arange(len(pairs)), row[mdp.pair_of_outcome[goes_on]]])
    columns = np.concatenate([pairs // mdp.actions, mdp.next_state[goes_on]])
    cells = np.concatenate([-np.ones(len(pairs)), mdp.discount * mdp.probability[goes_on]])
    matrix = sparse.coo_matrix((cells, (rows, columns)), shape=(len(pairs), mdp.states)).tocsr()
    nothing = mdp.terminal if mdp.discount < 1 else mdp.terminal | ~can_end(mdp)
    bounds = [(0.0, 0.0) if zero else (None, None) for zero in nothing]
    answer = linprog(weights, A_ub=matrix, b_ub=-mdp.expected_reward.ravel()[pairs], bounds=bounds, method="highs")
    if answer.status != 0:
        raise DataError(f"the linear programme has no finite solution: {answer.message}")
    visits = np.zeros(mdp.states * mdp.actions)
    visits[pairs] = -np.asarray(answer.ineqlin.marginals)
    return LinearProgramSolution(value=np.asarray(answer.x), occupancy=visits.reshape(mdp.states, mdp.actions))
