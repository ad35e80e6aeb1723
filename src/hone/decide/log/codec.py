"""Records as bytes, exact to the bit.

An encoded record is a few columns that engines search by, two parts that are stored once for many records (the set of
actions, and the labels: version, route, schema, intervention; or an outcome's kind), and a body of fixed layout. Equal
records have equal columns, parts and bodies, so a record that is sent again is compared by its bytes.
"""

import json
import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple, cast

import numpy as np

from hone.core.decisions import LOGP_TOLERANCE, ActionSet, Choice, Decision, DecisionRecord, Floats, Outcome
from hone.core.errors import DataError
from hone.decide.log import faults as check

_DECISION: Final = struct.Struct("<dqdqd16sdqq")
_OUTCOME: Final = struct.Struct("<dd")
_ACTIONS: Final = struct.Struct("<qq")
_UNREADABLE: Final = (TypeError, ValueError, OverflowError, AttributeError, struct.error)


class EncodedRecord(NamedTuple):
    """A record as engines store it."""

    tenant: str
    source: str
    seq: int
    at_s: float
    decision: str
    """Id of the decision."""
    unit: str | None
    """None: the record is an outcome."""
    actions: ActionSet | None
    labels: tuple[str, ...]
    body: bytes


def encode_batch(batch: Sequence[DecisionRecord]) -> list[EncodedRecord]:
    """Encode records. Raises DataError with a line for every fault of every record."""
    encoded: list[EncodedRecord] = []
    faults: list[str] = []
    sound: set[tuple[str, ...] | int] = set()
    for row, record in enumerate(batch):
        try:
            one = _encode_decision(record) if isinstance(record, Decision) else _encode_outcome(record)
            _check_parts(one, sound)
        except _UNREADABLE as error:
            found = check.decision_faults(record) if isinstance(record, Decision) else check.outcome_faults(record)
            faults += [f"record {row}, {check.named(record)}: {fault}" for fault in found or [str(error)]]
            continue
        encoded.append(one)
    if faults:
        raise DataError(*faults, f"nothing of the batch of {len(batch)} was stored; correct these and send it again")
    return encoded


def _check_parts(one: EncodedRecord, sound: set[tuple[str, ...] | int]) -> None:
    """Check the parts that records share, once for all records of a batch. Raises ValueError."""
    names = (one.tenant, one.source, "")
    if names not in sound:
        if check.name_faults(one.tenant, one.source):
            raise ValueError("a name is unsound")
        sound.add(names)
    if one.labels not in sound:
        if not _sound_labels(one.labels):
            raise ValueError("a label is unsound")
        sound.add(one.labels)
    if one.actions is not None and id(one.actions) not in sound:
        named = one.actions.features is None and _sound_names(one.actions.names)
        if not named and check.actions_faults(one.actions):
            raise ValueError("the actions are unsound")
        sound.add(id(one.actions))


@lru_cache(maxsize=64)
def _sound_labels(labels: tuple[str, ...]) -> bool:
    return check.all_sound(labels)


@lru_cache(maxsize=64)
def _sound_names(names: tuple[str, ...]) -> bool:
    return not check.actions_faults(ActionSet(names=names))


def _encode_decision(record: Decision) -> EncodedRecord:
    choice, scores, count = record.choice, record.choice.scores, len(record.actions.names)
    context = np.ascontiguousarray(record.context, dtype="<f8")
    ratings = b"" if scores is None else np.ascontiguousarray(scores, dtype="<f8").tobytes()
    if not (
        0.0 <= record.at_s < check.END_OF_TIME_S
        and 0 <= record.seq <= check.MAX_SEQ
        and -math.inf < record.executed_logp <= LOGP_TOLERANCE
        and -math.inf < choice.logp <= LOGP_TOLERANCE
        and 0 <= record.executed < count
        and 0 <= choice.action < count
        and math.isfinite(record.latency_s)
        and context.ndim == 1
        and context.nbytes <= check.MAX_BYTES
        and (scores is None or len(ratings) == 8 * count)
        and check.sound_text(record.id, 1, check.MAX_TEXT)
        and check.sound_text(record.unit, 0, check.MAX_TEXT)
    ):
        raise ValueError("the decision is unsound")
    body = _DECISION.pack(
        record.at_s, choice.action, choice.logp, record.executed, record.executed_logp,
        record.draw_key.to_bytes(16, "little"), record.latency_s, len(context), -1 if scores is None else count,
    )  # fmt: skip
    return EncodedRecord(
        record.tenant, record.source, int(record.seq), float(record.at_s), record.id, record.unit, record.actions,
        (record.version, record.route, record.schema, choice.intervention), body + context.tobytes() + ratings,
    )  # fmt: skip


def _encode_outcome(record: Outcome) -> EncodedRecord:
    if not (
        0.0 <= record.at_s < check.END_OF_TIME_S
        and 0 <= record.seq <= check.MAX_SEQ
        and math.isfinite(record.value)
        and check.sound_text(record.decision_id, 1, check.MAX_TEXT)
    ):
        raise ValueError("the outcome is unsound")
    return EncodedRecord(
        record.tenant, record.source, int(record.seq), float(record.at_s), record.decision_id, None, None,
        (record.kind,), _OUTCOME.pack(record.at_s, record.value),
    )  # fmt: skip


def decode_record(encoded: EncodedRecord) -> DecisionRecord:
    """The record, equal to the encoded one to the bit."""
    body, labels = encoded.body, encoded.labels
    if encoded.unit is None or encoded.actions is None:
        at_s, value = _OUTCOME.unpack(body)
        return Outcome(
            decision_id=encoded.decision, tenant=encoded.tenant, kind=labels[0], value=value, at_s=at_s,
            source=encoded.source, seq=encoded.seq,
        )  # fmt: skip
    at_s, action, logp, executed, executed_logp, draw_key, latency_s, length, rated = _DECISION.unpack_from(body)
    floats = np.frombuffer(body, "<f8", offset=_DECISION.size)
    version, route, schema, intervention = labels
    scores = None if rated < 0 else floats[length:]
    return Decision(
        id=encoded.decision, tenant=encoded.tenant, unit=encoded.unit, at_s=at_s, context=floats[:length],
        actions=encoded.actions, executed=executed, executed_logp=executed_logp, version=version, route=route,
        choice=Choice(action=action, logp=logp, scores=scores, intervention=intervention),
        draw_key=int.from_bytes(draw_key, "little"), schema=schema, latency_s=latency_s,
        source=encoded.source, seq=encoded.seq,
    )  # fmt: skip


def encode_actions(actions: ActionSet) -> bytes:
    """A sound set of actions as bytes: names and features."""
    names = _json(actions.names)
    if actions.features is None:
        return _ACTIONS.pack(len(names), -1) + names
    features = np.ascontiguousarray(actions.features, dtype="<f8")
    return _ACTIONS.pack(len(names), features.shape[1]) + names + features.tobytes()


def decode_actions(data: bytes) -> ActionSet:
    """The set of actions."""
    length, width = _ACTIONS.unpack_from(data)
    end = _ACTIONS.size + length
    names = cast("list[str]", json.loads(data[_ACTIONS.size : end]))
    features: Floats | None = None
    if width >= 0:
        features = np.frombuffer(data[end:], "<f8").reshape(len(names), width)
    return ActionSet(names=tuple(names), features=features)


def encode_labels(labels: tuple[str, ...]) -> bytes:
    """Labels as bytes; different labels are different bytes."""
    return _json(labels)


@lru_cache(maxsize=64)
def _json(texts: tuple[str, ...]) -> bytes:
    return json.dumps(texts, ensure_ascii=False).encode()


def decode_labels(data: bytes) -> tuple[str, ...]:
    """The labels."""
    return tuple(cast("list[str]", json.loads(data)))
