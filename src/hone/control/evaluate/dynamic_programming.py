"""Exact evaluation of tables in a finite MDP, by dynamic programming.

Belongs here: metrics of tables with a known model. `returns.py` evaluates by episodes.
"""

import numpy as np

from hone.control.finite.model import FiniteMdp
from hone.control.finite.solve import backward_induction, evaluate_policy, finite_horizon_value, start_value
from hone.control.tables.tables import ActionTable, StateFeatures, StateValues, Table
from hone.core.credit import Metrics
from hone.core.errors import ConfigError

HORIZON = 500
"""Number of steps evaluated without a time limit."""


def exact_metrics(table: Table, mdp: FiniteMdp) -> Metrics:
    """Compute `eval/score` and related metrics. Raises ConfigError for a table of another MDP."""
    if isinstance(table, StateValues):
        return _value_metrics(table, mdp)
    return _policy_metrics(table, mdp)


def _policy_metrics(table: ActionTable, mdp: FiniteMdp) -> Metrics:
    """Expected undiscounted return of the greedy policy within the time limit (`HORIZON` without one), and the optimum
    of time-dependent policies, `eval/best`.

    `eval/of_best` is 1 - (best - score) / |best|.
    """
    features = table.features
    if not isinstance(features, StateFeatures) or (features.count, features.actions) != (mdp.states, mdp.actions):
        raise ConfigError(f"the table has {features}, the environment {mdp.states} states x {mdp.actions} actions")
    horizon, total = mdp.step_limit or HORIZON, mdp.with_discount(1.0)
    score = start_value(mdp, finite_horizon_value(total, table.q.argmax(axis=1), horizon))
    best = start_value(mdp, backward_induction(total, horizon).value)
    share = 1.0 - (best - score) / abs(best) if best else float(score == best)
    return {"eval/score": score, "eval/best": best, "eval/of_best": share}


def _value_metrics(table: StateValues, mdp: FiniteMdp) -> Metrics:
    """Root mean squared error over non-terminal states against the values from a linear solve; `eval/score` is its
    negative."""
    if table.target_policy.shape != (mdp.states, mdp.actions):
        raise ConfigError(
            f"the values have the shape {table.target_policy.shape}, the environment {(mdp.states, mdp.actions)}"
        )
    off = (table.v - evaluate_policy(mdp, table.target_policy))[~mdp.terminal]
    error = float(np.sqrt(np.mean(off**2)))
    return {"eval/score": -error, "eval/error": error, "eval/error_max": float(np.abs(off).max())}
