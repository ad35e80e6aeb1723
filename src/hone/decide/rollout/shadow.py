"""Score of a version in the shadow: an off-policy estimate from the requests that the live version answered.

A version's distribution is a function of the context and the actions, so the log has everything: which action was
executed, with which probability, and what came of it. The estimate is doubly robust, with IPS and SNIPS in its report.
"""

from collections.abc import Sequence
from typing import Final

from hone.core.decisions import (
    Decision,
    DecisionPolicy,
    DecisionRecord,
    Evidence,
    Outcome,
    Verdict,
    is_shadow_kind,
)
from hone.core.errors import ConfigError, DataError
from hone.decide.evaluate.off_policy import LOGGED, estimate_policies
from hone.decide.joins.config import JoinConfig
from hone.decide.joins.join import build_view
from hone.decide.log.protocol import DecisionLog
from hone.decide.rollout.plan import RolloutPlan
from hone.decide.rollout.router import split_label

KIND: Final = "shadow"
"""Kind of the evidence."""
_NAME: Final = "the new version"
_PAGE: Final = 5000


def shadow_records(log: DecisionLog, plan: RolloutPlan, position: int) -> list[DecisionRecord]:
    """The first decisions of a rollout's shadow, as many as it needs, with all outcomes of their ids; `position` is the
    log's at its begin."""
    decisions: dict[tuple[str, str], DecisionRecord] = {}
    outcomes: list[Outcome] = []
    while page := log.read(position, _PAGE):
        position = page[-1].position
        records = [one.record for one in page]
        shadows = [one for one in records if isinstance(one, Decision) and _in_shadow(one, plan)]
        for one in shadows[: plan.shadow_requests - len(decisions)]:
            decisions[one.tenant, one.id] = one
        gathering = len(decisions) < plan.shadow_requests  # an outcome may come before its decision
        outcomes += [
            one
            for one in records
            if isinstance(one, Outcome)
            and not is_shadow_kind(one.kind)
            and (gathering or (one.tenant, one.decision_id) in decisions)
        ]
    of_shadow = [one for one in outcomes if (one.tenant, one.decision_id) in decisions]
    return [*decisions.values(), *of_shadow]


def _in_shadow(decision: Decision, plan: RolloutPlan) -> bool:
    rollout, _, stage = split_label(decision.route)
    return rollout == plan.name and stage == KIND


def shadow_evidence(
    records: Sequence[DecisionRecord],
    policy: DecisionPolicy,
    *,
    until_s: float,
    join: JoinConfig,
    made_by: str,
    at_s: float,
) -> Evidence:
    """Value of the new version minus that of the live one, over the shadow's decisions of its largest tenant.

    `refuse`: the version raises, or gives no distribution, for a context of the log. `ok`: the estimate holds, and the
    version is not surely worse. `weak`: it is surely worse, or the log cannot tell.
    """
    tenants = [record.tenant for record in records if isinstance(record, Decision)]
    tenant = max(sorted(set(tenants)), key=tenants.count, default="")
    try:
        view = build_view(records, as_of_s=until_s + join.window_s, join=join, tenant=tenant)
        report = estimate_policies(view.closed(), {_NAME: policy})
    except (ConfigError, DataError) as error:
        return _row("weak", f"its value cannot be estimated: {error!s:.300}", made_by, at_s)
    except Exception as error:  # noqa: BLE001 - a version is anybody's code
        told = f"it cannot decide what the live version decided: {type(error).__name__}: {error!s:.300}"
        return _row("refuse", told, made_by, at_s)
    difference = next(one for one in report.differences if one.first == LOGGED)
    found = difference.estimate
    sound = report.of(_NAME).deciding.verdict == found.verdict == "ok" and found.high >= 0
    return Evidence(
        kind=KIND, verdict="ok" if sound else "weak", words=difference.words, value=found.value, low=found.low,
        high=found.high, count=found.n, made_by=made_by, at_s=at_s,
    )  # fmt: skip


def _row(verdict: Verdict, words: str, made_by: str, at_s: float) -> Evidence:
    return Evidence(kind=KIND, verdict=verdict, words=words, made_by=made_by, at_s=at_s)
