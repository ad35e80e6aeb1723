"""Faults of records that are handed to a log, each with the field, the value and the bound.

Belongs here: the checks that make a log's records usable: propensities that are probabilities, times inside the
calendar, texts that every engine can hold. NaN inside a context or scores is stored as it is: the policy
was given it.
"""

import math
from collections.abc import Sequence
from operator import index
from typing import Final, SupportsIndex

import numpy as np

from hone.core.decisions import LOGP_TOLERANCE, ActionSet, Decision, Outcome

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


def sound_text(text: str, least: int, most: int) -> bool:
    """True if a text has `least` to `most` characters and every engine can hold it."""
    if not least <= len(text) <= most or "\x00" in text:
        return False
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _text_faults(name: str, text: object, least: int, most: int) -> list[str]:
    """Faults of a text: too short, too long, or with characters that no engine can hold."""
    if not isinstance(text, str):
        return [f"{name} must be text, got {type(text).__name__} {text!r:.60}"]
    if sound_text(text, least, most):
        return []
    shown = ascii(text[:60])
    if not least <= len(text) <= most:
        return [f"{name} must have {least} to {most} characters, got {len(text)}: {shown}"]
    return [f"{name} must not hold NUL or half of a surrogate pair, got {shown}"]


def actions_faults(actions: ActionSet) -> list[str]:
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


def decision_faults(record: Decision) -> list[str]:
    """Faults of a decision."""
    choice, count = record.choice, len(record.actions.names)
    faults = _common_faults(record) + actions_faults(record.actions)
    faults += _text_faults("id", record.id, 1, MAX_TEXT) + _text_faults("unit", record.unit, 0, MAX_TEXT)
    labels = {"version": record.version, "route": record.route, "schema": record.schema}
    for name, label in {**labels, "choice.intervention": choice.intervention}.items():
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


def outcome_faults(record: Outcome) -> list[str]:
    """Faults of an outcome."""
    faults = _common_faults(record) + _text_faults("decision_id", record.decision_id, 1, MAX_TEXT)
    faults += _text_faults("kind", record.kind, 0, MAX_TEXT)
    if not (_is_number(record.value) and math.isfinite(record.value)):
        faults.append(f"value must be finite, got {record.value!r:.60}; an outcome that failed is left out")
    return faults


def name_faults(tenant: object, source: object) -> list[str]:
    """Faults of the names of a tenant and a source."""
    return _text_faults("tenant", tenant, 1, MAX_NAME) + _text_faults("source", source, 1, MAX_NAME)


def _common_faults(record: Decision | Outcome) -> list[str]:
    faults = name_faults(record.tenant, record.source) + _whole_number_faults("seq", record.seq, 0, MAX_SEQ)
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


def all_sound(labels: Sequence[str]) -> bool:
    """True if every label of a record can be stored."""
    return all(sound_text(label, 0, MAX_TEXT) for label in labels)
