"""Records of decisions for tests of logs, and their comparison bit by bit."""

from collections.abc import Sequence

import numpy as np

from hone.core.decisions import ActionSet, Choice, Decision, DecisionRecord, Outcome
from hone.decide.log.protocol import DecisionLog

ARMS = ActionSet(names=("red", "green", "blue"))
Key = tuple[str, str, int]


def decision(seq: int, *, tenant: str = "shop", source: str = "web", unit: str = "", **other: object) -> Decision:
    """A decision with values that differ from row to row."""
    values: dict[str, object] = {
        "id": f"{source}-{seq}",
        "unit": unit or f"u{seq % 7}",
        "at_s": 1000.0 + seq / 8,
        "context": np.array([seq, seq / 3, -0.0]),
        "actions": ARMS,
        "choice": Choice(action=seq % 3, logp=-1.5, scores=np.array([0.1, seq, -seq])),
        "executed": seq % 3,
        "executed_logp": -1.0 - 1.0 / (seq + 1),
        "version": "v1",
        "route": "menu/b/5",
        "draw_key": 2**127 + seq,
        "schema": "00ff",
        "latency_s": 1e-4,
    }
    return Decision(tenant=tenant, source=source, seq=seq, **(values | other))  # type: ignore[arg-type]


def outcome(seq: int, *, of: str = "", tenant: str = "shop", source: str = "till", **other: object) -> Outcome:
    """The outcome of a decision."""
    values: dict[str, object] = {"decision_id": of or f"web-{seq}", "value": seq / 7, "at_s": 2000.0 + seq}
    return Outcome(tenant=tenant, source=source, seq=seq, **(values | other))  # type: ignore[arg-type]


def bits(record: DecisionRecord) -> tuple[object, ...]:
    """All values of a record, with floats as their bits."""
    if isinstance(record, Outcome):
        return ("outcome", record.decision_id, record.tenant, record.kind, _bits(record.value), _bits(record.at_s),
                record.source, record.seq)  # fmt: skip
    choice, features = record.choice, record.actions.features
    return (
        "decision", record.id, record.tenant, record.unit, _bits(record.at_s), _bits(record.context),
        record.actions.names, None if features is None else (features.shape, _bits(features)),
        choice.action, _bits(choice.logp), None if choice.scores is None else _bits(choice.scores),
        choice.intervention, record.executed, _bits(record.executed_logp), record.version, record.route,
        record.draw_key, record.schema, record.entities, _bits(record.latency_s), record.source, record.seq,
    )  # fmt: skip


def _bits(value: object) -> bytes:
    return np.asarray(value, np.float64).tobytes()


def key_of(record: DecisionRecord) -> Key:
    return record.tenant, record.source, record.seq


def all_of(log: DecisionLog, *, tenant: str | None = None) -> list[DecisionRecord]:
    """Every record of a log, read a page at a time."""
    found: list[DecisionRecord] = []
    after = -1
    while page := log.read(max(after, 0), 97, tenant=tenant):
        assert all(one.position > after for one in page)
        assert [one.position for one in page] == sorted({one.position for one in page})
        after = page[-1].position
        found += [one.record for one in page]
    return found


def batches_of(records: Sequence[DecisionRecord], size: int) -> list[Sequence[DecisionRecord]]:
    return [records[begin : begin + size] for begin in range(0, len(records), size)]
