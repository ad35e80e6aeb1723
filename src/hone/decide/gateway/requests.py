"""Requests and answers of a decision service, and the fault that names what is wrong with a request.

Belongs here: what a caller sends and gets, in Python and over HTTP. Does not: reading JSON (`bodies`), deciding
(`service`).
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.errors import DataError

DEFAULT_TENANT: Final = "default"
_CONTROL_RANGE: Final = r"\u0000-\u001f\u007f-\u009f\u2028\u2029"
TEXT_PATTERN: Final = f"^[^{_CONTROL_RANGE}]+$"
"""Pattern of ids and names, for JSON schemas."""
_CONTROL: Final = re.compile(rf"[{_CONTROL_RANGE}\ud800-\udfff]")
MAX_TEXT: Final = 200
"""Most characters of an id, a unit, a tenant, a kind, a source or an action's name."""

ContextInput: TypeAlias = "Mapping[str, float | str] | Sequence[float] | NDArray[np.floating] | None"
"""Features by name, or as a vector in the order of the schema; None: no features."""
ActionInput: TypeAlias = "str | Mapping[str, object]"
"""Name of an action, or `{"name": ..., "features": {...}}`."""


class RequestError(DataError):
    """A request that cannot be answered as it stands; nothing was decided, logged or learnt."""

    def __init__(self, message: str, *, status: int = 422, code: str, field: str = "") -> None:
        super().__init__(message)
        self.status = status
        """HTTP status."""
        self.code = code
        """Name of the fault, for programs and counters."""
        self.field = field
        """Field of the request; empty: the whole request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRequest:
    """A request for one decision."""

    unit: str
    context: ContextInput = None
    actions: Sequence[ActionInput] | None = None
    """The actions on offer; None: all that the service declares."""
    id: str = ""
    """The caller's key: the same id with the same request gets the same answer. Empty: the service makes one."""
    tenant: str = DEFAULT_TENANT
    deadline_s: float | None = None
    """Seconds until the answer; None: the service's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRequest:
    """An outcome of a decision, told to the service."""

    id: str
    """The decision."""
    value: float
    kind: str = "reward"
    tenant: str = DEFAULT_TENANT
    at_s: float | None = None
    """Seconds since the epoch at which it happened; None: now."""
    source: str = ""
    """Writer with numbers of its own: with `seq` it identifies the outcome for ever. Empty: the service numbers it."""
    seq: int = -1
    key: str = ""
    """The caller's key: a second reward of the same key changes nothing while the service remembers the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """The answer to a decision request."""

    id: str
    """Identity of the decision; rewards name it."""
    action: str
    """Name of the action to execute."""
    index: int
    """Its number among the actions on offer."""
    logp: float
    """nats: log-probability of the action under the distribution that it was drawn from."""
    version: str
    """Version of the policy that decided."""
    route: str = ""
    """Experiment, arm and stage; empty: none."""
    intervention: str = ""
    """Reason why the action is not the served policy's own; empty: it is."""

    @property
    def probability(self) -> float:
        """Probability of the action."""
        return math.exp(self.logp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewarded:
    """The answer to a reward."""

    id: str
    status: str
    """`joined`: its decision is known; `waiting`: the decision was not seen here (yet), the log keeps the outcome;
    `repeated`: it was told before, nothing changed."""


def check_text(value: object, field: str) -> str:
    """The text of an identity. Raises RequestError for other types, empty or long text and control characters."""
    if not isinstance(value, str):
        raise RequestError(f"{field} must be text, got {shown(value)}", code="bad_type", field=field)
    if not 0 < len(value) <= MAX_TEXT:
        told = f"{field} has {len(value)} characters, it must have 1 to {MAX_TEXT}: {shown(value)}"
        raise RequestError(told, code="bad_length", field=field)
    if _CONTROL.search(value):
        raise RequestError(f"{field} contains control characters: {shown(value)}", code="bad_text", field=field)
    return value


def check_number(value: object, field: str) -> float:
    """A finite number. Raises RequestError for anything else, True and False included."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise RequestError(f"{field} must be a number, got {shown(value)}", code="bad_type", field=field)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RequestError(f"{field} must be finite, got {shown(value)}", code="not_finite", field=field)
    return number


def shown(value: object) -> str:
    """A value as messages show it: at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
