"""Off-policy estimates from Python: `hone estimate` as a function."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from hone.core.clock import SystemClock
from hone.core.decisions import DecisionPolicy, DecisionTable
from hone.decide.bandits.saving import open_decision_policy
from hone.decide.estimators.estimate import EstimateSettings, EstimatorName
from hone.decide.evaluate.off_policy import DEFAULT_ESTIMATORS, OffPolicyReport, estimate_policies, read_decision_table
from hone.decide.joins.view import JoinConfig


def estimate_decisions(
    log: str | Path | DecisionTable,
    policies: str | Path | Sequence[str | Path] | Mapping[str, DecisionPolicy],
    *,
    estimators: Sequence[EstimatorName] = DEFAULT_ESTIMATORS,
    settings: EstimateSettings | None = None,
    as_of_s: float | None = None,
    since_s: float = -math.inf,
    join: JoinConfig | None = None,
) -> OffPolicyReport:
    """Estimate policies from a log of decisions before they are deployed.

    `log`: a log's address, a saved view, or a table. `policies`: folders, or opened policies by name. The first of
    `estimators` decides. `as_of_s` and `since_s` are seconds since the epoch, of the join (None: now) and of the first
    decision. Raises DataError for a log or policy that cannot be read and for a log of several tenants, of which
    `hone.decide.evaluate.off_policy` reads one; ConfigError for unknown names.
    """
    table = log
    if not isinstance(table, DecisionTable):
        moment = SystemClock().now_s() if as_of_s is None else as_of_s
        table = read_decision_table(str(log), as_of_s=moment, since_s=since_s, join=join)
    if isinstance(policies, str | Path):
        policies = [policies]
    opened = (
        policies
        if isinstance(policies, Mapping)
        else {str(folder): open_decision_policy(Path(folder)) for folder in policies}
    )
    return estimate_policies(table, opened, estimators=estimators, settings=settings)
