"""Decisions from Python: off-policy estimates, and the service of a service file in this process."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hone.core.clock import Clock, SystemClock
from hone.core.decisions import DecisionPolicy, DecisionTable
from hone.decide.bandits.saving import open_decision_policy
from hone.decide.estimators.estimate import EstimateSettings, EstimatorName
from hone.decide.evaluate.off_policy import DEFAULT_ESTIMATORS, OffPolicyReport, estimate_policies, read_decision_table
from hone.decide.gateway.opening import OpenedService, open_service
from hone.decide.gateway.shipping import open_rollouts
from hone.decide.joins.view import JoinConfig
from hone.decide.rollout.driver import RolloutDriver


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
    `hone.decide.evaluate.off_policy.read_decision_table` reads one; ConfigError for unknown names.
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


LOGGER: Final = logging.getLogger("hone.decisions")


@contextmanager
def serve_decisions(file: str | Path, *, clock: Clock | None = None) -> Iterator[OpenedService]:
    """Open the service of a file for the block: `decide`, `reward`, `view`, `replay`.

    Faults and fallbacks are warnings of the logger `hone.decisions`. Raises ConfigError with all faults of the file,
    DataError for a damaged policy or log, ResourceError if another process serves the file.
    """
    opened = open_service(Path(file), clock=clock or SystemClock(), tell=LOGGER.warning)
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def ship(
    policy: str | Path, *, to: str | Path, name: str = "", parent: str = "", clock: Clock | None = None
) -> Iterator[RolloutDriver]:
    """Begin a staged rollout of a policy in the service of a file, for the block, as `hone ship POLICY --to FILE` does.

    Each `step()` looks at the decision log once and returns the transitions that the evidence asks for; `back(words)`
    sends every unit back; `plan` and `state` tell where it is. Its end leaves the rollout where it is, and
    `hone ship FILE` goes on. `parent` is the version that the policy was trained from; empty: none.
    Raises ConfigError with everything that is in its way, DataError for a policy that cannot decide.
    """
    with open_rollouts(Path(to), clock or SystemClock()) as rollouts:
        version = rollouts.add(Path(policy), parent)
        yield rollouts.start(rollouts.plan(version.id, name))
