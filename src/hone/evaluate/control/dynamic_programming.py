"""A table judged without playing: what its policy is worth in a finite world, by dynamic programming.

Belongs here: figures of tables whose world is known. Where only samples of a world can be had, `control.py` plays.
"""

import numpy as np

from hone.core.credit import Metrics
from hone.core.errors import ConfigError
from hone.envs.finite.model import FiniteMdp
from hone.envs.finite.solve import backward_induction, evaluate_policy, finite_horizon_value, start_value
from hone.tabular.tables import ActionTable, StateFeatures, StateValues, Table

HORIZON = 500
"""Steps that count in a world without a time limit."""


def exact_metrics(table: Table, mdp: FiniteMdp) -> Metrics:
    """`eval/score` and what belongs to it. Raises ConfigError for a table of another world."""
    if isinstance(table, StateValues):
        return value_metrics(table, mdp)
    return policy_metrics(table, mdp)


def policy_metrics(table: ActionTable, mdp: FiniteMdp) -> Metrics:
    """Expected undiscounted return of the greedy policy within the time limit (`HORIZON` without one), and beside it
    the best that can be had, `eval/best`, by a policy that looks at the clock.

    `eval/of_best` is 1 - (best - score) / |best|.
    """
    features = table.features
    if not isinstance(features, StateFeatures) or (features.count, features.actions) != (mdp.states, mdp.actions):
        raise ConfigError(f"the table is of {features}, the world has {mdp.states} states x {mdp.actions} actions")
    horizon, total = mdp.step_limit or HORIZON, mdp.with_discount(1.0)
    score = start_value(mdp, finite_horizon_value(total, table.q.argmax(axis=1), horizon))
    best = start_value(mdp, backward_induction(total, horizon).value)
    share = 1.0 - (best - score) / abs(best) if best else float(score == best)
    return {"eval/score": score, "eval/best": best, "eval/of_best": share}


def value_metrics(table: StateValues, mdp: FiniteMdp) -> Metrics:
    """Root mean squared error over the states in which something can be done, against the values by a linear solve;
    `eval/score` is minus that."""
    if table.target_policy.shape != (mdp.states, mdp.actions):
        raise ConfigError(f"the values are of {table.target_policy.shape}, the world is {(mdp.states, mdp.actions)}")
    off = (table.v - evaluate_policy(mdp, table.target_policy))[~mdp.terminal]
    error = float(np.sqrt(np.mean(off**2)))
    return {"eval/score": -error, "eval/error": error, "eval/error_max": float(np.abs(off).max())}
