"""Records of decisions for tests, and a join of them that shares no code with hone's."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hone.core.decisions import ActionSet, Choice, Decision, DecisionRecord, Outcome

ARMS = ActionSet(names=("left", "right", "stay"))


def decision(
    name: str,
    at_s: float,
    *,
    seq: int,
    tenant: str = "shop",
    unit: str = "u",
    executed: int = 0,
    p: float = 0.5,
    context: Sequence[float] = (1.0, 0.0),
    actions: ActionSet = ARMS,
    version: str = "v1",
    schema: str = "",
    source: str = "gateway",
) -> Decision:
    """A decision of a policy that chose `executed` with probability `p`."""
    logp = math.log(p)
    return Decision(
        id=name, tenant=tenant, unit=unit, at_s=at_s, context=np.array(context), actions=actions,
        choice=Choice(action=executed, logp=logp), executed=executed, executed_logp=logp, version=version,
        schema=schema, source=source, seq=seq,
    )  # fmt: skip


def outcome(
    name: str, at_s: float, value: float = 1.0, *, seq: int, tenant: str = "shop", kind: str = "reward",
    source: str = "clicks",
) -> Outcome:  # fmt: skip
    """An outcome of decision `name`."""
    return Outcome(decision_id=name, tenant=tenant, kind=kind, value=value, at_s=at_s, source=source, seq=seq)


@dataclass(frozen=True)
class SlowRow:
    """A row of the slow join."""

    id: str
    reward: float
    known: bool


def slow_join(
    records: Sequence[DecisionRecord], *, as_of_s: float, window_s: float, default: float, rule: str
) -> list[SlowRow]:
    """The rewards of one tenant's decisions, one decision after another, by the definition."""
    seen = {(one.source, one.seq): one for one in records if one.at_s <= as_of_s}
    known = sorted(seen.values(), key=lambda one: (one.at_s, one.source, one.seq))
    rows: dict[str, SlowRow] = {}
    for one in known:
        if not isinstance(one, Decision) or one.id in rows:
            continue
        values = [
            each.value
            for each in known
            if isinstance(each, Outcome)
            and each.decision_id == one.id
            and each.kind == "reward"
            and each.at_s - one.at_s <= window_s
        ]
        picks = {"sum": sum, "max": max, "first": lambda all_: all_[0], "last": lambda all_: all_[-1]}
        final = one.at_s + window_s <= as_of_s
        reward = (picks[rule](values) if values else default) if final else math.nan
        rows[one.id] = SlowRow(id=one.id, reward=float(reward), known=final)
    return list(rows.values())
