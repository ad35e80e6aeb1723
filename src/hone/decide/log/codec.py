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
from operator import index
from typing import Final, NamedTuple, SupportsIndex, cast

import numpy as np

from hone.core.decisions import LOGP_TOLERANCE, ActionSet, Choice, Decision, DecisionRecord, Floats, Outcome
from hone.core.errors import DataError

# --------------------------------------------------------------------------------------------------------------- faults


MAX_SEQ: Final = 2**53 - 1
"""Largest number of a record that every engine and JSON hold exactly."""
MAX_NAME: Final = 256
"""Characters of the name of a tenant or a source."""
MAX_TEXT: Final = 4096
"""Characters of any other text of a record."""
MAX_BYTES: Final = 16 * 2**20
"""Bytes of a context, and of a set of actions with its features."""
END_OF_TIME_S: Final = 253_402_300_800.0
"""The year 10000: calendars end here."""


def _sound_text(text: str, least: int, most: int) -> bool:
    """True if a text has `least` to `most` characters and every engine can hold it."""
    if not least <= len(text) <= most or "\x00" in text:
        return False
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _text_faults(name: str, text: object, least: int, most: int) -> list[str]:
    """Faults of a text: too short, too long, or with characters that no engine can hold."""
    if not isinstance(text, str):
        return [f"{name} must be text, got {type(text).__name__} {text!r:.60}"]
    if _sound_text(text, least, most):
        return []
    shown = ascii(text[:60])
    if not least <= len(text) <= most:
        return [f"{name} must have {least} to {most} characters, got {len(text)}: {shown}"]
    return [f"{name} must not hold NUL or half of a surrogate pair, got {shown}"]


def _actions_faults(actions: ActionSet) -> list[str]:
    """Faults of a set of actions."""
    faults = [fault for name in actions.names for fault in _text_faults("an action's name", name, 1, MAX_TEXT)]
    if not actions.names:
        faults.append("actions must hold at least one action, got none")
    if not faults and len(set(actions.names)) < len(actions.names):
        twice = next(name for place, name in enumerate(actions.names) if name in actions.names[:place])
        faults.append(f"actions must have distinct names, got {twice!r:.60} twice")
    features = actions.features
    if features is not None and (features.ndim != 2 or len(features) != len(actions.names)):
        faults.append(f"features of {len(actions.names)} actions must be [K, f], got shape {features.shape}")
    size = sum(map(len, actions.names)) + (0 if features is None else 8 * features.size)
    if not faults and size > MAX_BYTES:
        faults.append(f"actions must have at most {MAX_BYTES} bytes with their features, got {size}")
    return faults


def _decision_faults(record: Decision) -> list[str]:
    """Faults of a decision."""
    choice, count = record.choice, len(record.actions.names)
    faults = _common_faults(record) + _actions_faults(record.actions)
    faults += _text_faults("id", record.id, 1, MAX_TEXT) + _text_faults("unit", record.unit, 0, MAX_TEXT)
    labels = [("version", record.version), ("route", record.route), ("schema", record.schema)]
    entities = [("entities", text) for pair in record.entities for text in pair]
    for name, label in (*labels, ("choice.intervention", choice.intervention), *entities):
        faults += _text_faults(name, label, 0, MAX_TEXT)
    for name, action in {"executed": record.executed, "choice.action": choice.action}.items():
        faults += _whole_number_faults(name, action, 0, count - 1)
    for name, logp in {"executed_logp": record.executed_logp, "choice.logp": choice.logp}.items():
        if not (_is_number(logp) and -math.inf < logp <= LOGP_TOLERANCE):
            faults.append(f"{name} must be finite and at most 0 (0 < p <= 1, in nats), got {logp!r:.60}")
    if not (_is_number(record.latency_s) and math.isfinite(record.latency_s)):
        faults.append(f"latency_s must be finite, got {record.latency_s!r:.60}")
    faults += _whole_number_faults("draw_key", record.draw_key, 0, 2**128 - 1)
    context = np.asarray(record.context)
    if context.ndim != 1 or context.dtype.kind not in "fiub":
        faults.append(f"context must be numbers [d], got {context.dtype} of shape {context.shape}")
    elif 8 * context.size > MAX_BYTES:
        faults.append(f"context must have at most {MAX_BYTES // 8} numbers, got {context.size}")
    if choice.scores is not None and np.asarray(choice.scores).shape != (count,):
        faults.append(f"choice.scores must be [{count}], one for each action, got {np.asarray(choice.scores).shape}")
    return faults


def _outcome_faults(record: Outcome) -> list[str]:
    """Faults of an outcome."""
    faults = _common_faults(record) + _text_faults("decision_id", record.decision_id, 1, MAX_TEXT)
    faults += _text_faults("kind", record.kind, 0, MAX_TEXT)
    if not (_is_number(record.value) and math.isfinite(record.value)):
        faults.append(f"value must be finite, got {record.value!r:.60}; an outcome that failed is left out")
    return faults


def _name_faults(tenant: object, source: object) -> list[str]:
    """Faults of the names of a tenant and a source."""
    return _text_faults("tenant", tenant, 1, MAX_NAME) + _text_faults("source", source, 1, MAX_NAME)


def _common_faults(record: Decision | Outcome) -> list[str]:
    faults = _name_faults(record.tenant, record.source) + _whole_number_faults("seq", record.seq, 0, MAX_SEQ)
    if not (_is_number(record.at_s) and 0.0 <= record.at_s < END_OF_TIME_S):
        faults.append(f"at_s must be seconds since 1970, below the year 10000, got {record.at_s!r:.60}")
    return faults


def _whole_number_faults(name: str, value: object, low: int, high: int) -> list[str]:
    if not isinstance(value, SupportsIndex):
        return [f"{name} must be a whole number, got {type(value).__name__} {value!r:.60}"]
    return [] if low <= index(value) <= high else [f"{name} must be {low} to {high}, got {value!r:.60}"]


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating)


def named(record: Decision | Outcome) -> str:
    """Name of a record in a message: `decision 'd7' (tenant 'shop', source 'web-1', seq 7)`."""
    kind, name = ("decision", record.id) if isinstance(record, Decision) else ("outcome of", record.decision_id)
    return f"{kind} {name!r:.60} (tenant {record.tenant!r:.60}, source {record.source!r:.60}, seq {record.seq!r:.60})"


# ---------------------------------------------------------------------------------------------------------------- codec


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

    def decode(self) -> DecisionRecord:
        """The record, equal to the encoded one to the bit."""
        body, labels = self.body, self.labels
        if self.unit is None or self.actions is None:
            at_s, value = _OUTCOME.unpack(body)
            return Outcome(
                decision_id=self.decision, tenant=self.tenant, kind=labels[0], value=value, at_s=at_s,
                source=self.source, seq=self.seq,
            )  # fmt: skip
        at_s, action, logp, executed, executed_logp, draw_key, latency_s, length, rated = _DECISION.unpack_from(body)
        count = length + max(rated, 0)
        floats = np.frombuffer(body, "<f8", count, _DECISION.size)
        entities = body[_DECISION.size + 8 * count :]
        version, route, schema, intervention = labels
        scores = None if rated < 0 else floats[length:]
        return Decision(
            id=self.decision, tenant=self.tenant, unit=self.unit, at_s=at_s, context=floats[:length],
            actions=self.actions, executed=executed, executed_logp=executed_logp, version=version, route=route,
            choice=Choice(action=action, logp=logp, scores=scores, intervention=intervention),
            draw_key=int.from_bytes(draw_key, "little"), schema=schema, latency_s=latency_s,
            entities=tuple((field, name) for field, name in json.loads(entities)) if entities else (),
            source=self.source, seq=self.seq,
        )  # fmt: skip


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
            reasons = _decision_faults(record) if isinstance(record, Decision) else _outcome_faults(record)
            faults += [f"record {row}, {named(record)}: {fault}" for fault in reasons or [str(error)]]
            continue
        encoded.append(one)
    if faults:
        raise DataError(*faults, f"nothing of the batch of {len(batch)} was stored; correct these and send it again")
    return encoded


def _check_parts(one: EncodedRecord, sound: set[tuple[str, ...] | int]) -> None:
    """Check the parts that records share, once for all records of a batch. Raises ValueError."""
    names = (one.tenant, one.source, "")
    if names not in sound:
        if _name_faults(one.tenant, one.source):
            raise ValueError("a name is unsound")
        sound.add(names)
    if one.labels not in sound:
        if not _sound_labels(one.labels):
            raise ValueError("a label is unsound")
        sound.add(one.labels)
    if one.actions is not None and id(one.actions) not in sound:
        named = one.actions.features is None and _sound_names(one.actions.names)
        if not named and _actions_faults(one.actions):
            raise ValueError("the actions are unsound")
        sound.add(id(one.actions))


@lru_cache(maxsize=64)
def _sound_labels(labels: tuple[str, ...]) -> bool:
    return all(_sound_text(label, 0, MAX_TEXT) for label in labels)


@lru_cache(maxsize=64)
def _sound_names(names: tuple[str, ...]) -> bool:
    return not _actions_faults(ActionSet(names=names))


def _encode_decision(record: Decision) -> EncodedRecord:
    choice, scores, count = record.choice, record.choice.scores, len(record.actions.names)
    context = np.ascontiguousarray(record.context, dtype="<f8")
    ratings = b"" if scores is None else np.ascontiguousarray(scores, dtype="<f8").tobytes()
    if not (
        0.0 <= record.at_s < END_OF_TIME_S
        and 0 <= record.seq <= MAX_SEQ
        and -math.inf < record.executed_logp <= LOGP_TOLERANCE
        and -math.inf < choice.logp <= LOGP_TOLERANCE
        and 0 <= record.executed < count
        and 0 <= choice.action < count
        and math.isfinite(record.latency_s)
        and context.ndim == 1
        and context.nbytes <= MAX_BYTES
        and (scores is None or len(ratings) == 8 * count)
        and _sound_text(record.id, 1, MAX_TEXT)
        and _sound_text(record.unit, 0, MAX_TEXT)
        and all(_sound_text(field, 0, MAX_TEXT) and _sound_text(name, 0, MAX_TEXT) for field, name in record.entities)
    ):
        raise ValueError("the decision is unsound")
    body = _DECISION.pack(
        record.at_s, choice.action, choice.logp, record.executed, record.executed_logp,
        record.draw_key.to_bytes(16, "little"), record.latency_s, len(context), -1 if scores is None else count,
    )  # fmt: skip
    entities = json.dumps(record.entities, ensure_ascii=False).encode() if record.entities else b""
    return EncodedRecord(
        record.tenant, record.source, int(record.seq), float(record.at_s), record.id, record.unit, record.actions,
        (record.version, record.route, record.schema, choice.intervention),
        body + context.tobytes() + ratings + entities,
    )  # fmt: skip


def _encode_outcome(record: Outcome) -> EncodedRecord:
    if not (
        0.0 <= record.at_s < END_OF_TIME_S
        and 0 <= record.seq <= MAX_SEQ
        and math.isfinite(record.value)
        and _sound_text(record.decision_id, 1, MAX_TEXT)
    ):
        raise ValueError("the outcome is unsound")
    return EncodedRecord(
        record.tenant, record.source, int(record.seq), float(record.at_s), record.decision_id, None, None,
        (record.kind,), _OUTCOME.pack(record.at_s, record.value),
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
