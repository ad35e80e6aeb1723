"""A table judged without playing: what its policy is worth in a finite world, by dynamic programming.

Belongs here: figures of tables whose world is known. Where only samples of a world can be had, `control.py` plays.
"""

import numpy as np

from hone.core.credit import Metrics
from hone.core.errors import ConfigError
from hone.envs.finite.model import Finite
from hone.envs.finite.solve import backward, evaluate, within, worth
from hone.tabular.tables import ActionTable, States, StateValues, Table

HORIZON = 500
"""Steps that count in a world without a time limit."""


def exact_metrics(table: Table, mdp: Finite) -> Metrics:
    """`eval/score` and what belongs to it. Raises ConfigError for a table of another world."""
    if isinstance(table, StateValues):
        return value_metrics(table, mdp)
    return policy_metrics(table, mdp)


def policy_metrics(table: ActionTable, mdp: Finite) -> Metrics:
    """Expected undiscounted return of the greedy policy within the time limit (`HORIZON` without one), and beside it
    the best that can be had, `eval/best`, by a policy that looks at the clock.

    `eval/of_best` is 1 - (best - score) / |best|.
    """
    features = table.features
    if not isinstance(features, States) or (features.count, features.actions) != (mdp.states, mdp.actions):
        raise ConfigError(f"the table is of {features}, the world has {mdp.states} states x {mdp.actions} actions")
    horizon, total = mdp.limit or HORIZON, mdp.discounted_by(1.0)
    score = worth(mdp, within(total, table.q.argmax(axis=1), horizon))
    best = worth(mdp, backward(total, horizon).value)
    share = 1.0 - (best - score) / abs(best) if best else float(score == best)
    return {"eval/score": score, "eval/best": best, "eval/of_best": share}


def value_metrics(table: StateValues, mdp: Finite) -> Metrics:
    """Root mean squared error over the states in which something can be done, against the values by a linear solve;
    `eval/score` is minus that."""
    if table.followed.shape != (mdp.states, mdp.actions):
        raise ConfigError(f"the values are of {table.followed.shape}, the world is {(mdp.states, mdp.actions)}")
    off = (table.v - evaluate(mdp, table.followed))[~mdp.terminal]
    error = float(np.sqrt(np.mean(off**2)))
    return {"eval/score": -error, "eval/error": error, "eval/error_max": float(np.abs(off).max())}
