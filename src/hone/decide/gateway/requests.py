"""Requests and answers of a decision service, their schemas, and the fault that names what is wrong with one.

Belongs here: what a caller sends and gets, in Python and over HTTP. Does not: reading JSON (`http_app`), deciding
(`service`).
"""

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from hone.core.decisions import ActionSet, Decision, Floats, Ints, schema_hash
from hone.core.errors import DataError, did_you_mean
from hone.decide.log.protocol import KnownNames

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
    joint: "_JointDecision | None" = None
    """The joint decision that this is one unit's part of; None: the unit's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _JointDecision:
    """A decision of several units together: one action, drawn once, that all of them execute.

    Its actions are joint ones (who takes which seat, which of several pairings). Each unit's record has the joint
    action, its log-probability and key, and the identity `id:PLACE/UNITS`.
    """

    id: str
    lead: str
    """The first unit: a rollout routes all of them as it routes this one."""


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
    """The caller's key: a second reward of the same key changes nothing, on every gateway and for ever."""


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


MAX_JOINT: Final = 100
"""Units of one joint decision."""


def joint_requests(units: Sequence[object], request: DecisionRequest) -> list[DecisionRequest]:
    """The requests of the units of a joint decision; `request` has its id and everything that they share.

    Raises RequestError for no unit, more than 100, and one that stands twice.
    """
    if not 1 <= len(units) <= MAX_JOINT:
        raise RequestError(f"units must be 1 to {MAX_JOINT}, got {len(units)}", code="bad_batch", field="units")
    names = [check_text(unit, f"units.{place}") for place, unit in enumerate(units)]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError(f"units names {shown(twice)} twice", code="repeated_unit", field="units")
    joint = _JointDecision(id=check_text(request.id, "id"), lead=names[0])
    return [
        replace(request, unit=name, id=f"{joint.id}:{place}/{len(names)}", joint=joint)
        for place, name in enumerate(names)
    ]


def check_text(value: object, field: str) -> str:
    """The text of an identity. Raises RequestError for other types, empty or long text and control characters."""
    if _is_sound(value):
        return cast("str", value)
    if not isinstance(value, str):
        raise RequestError(f"{field} must be text, got {shown(value)}", code="bad_type", field=field)
    if not 0 < len(value) <= MAX_TEXT:
        message = f"{field} has {len(value)} characters, it must have 1 to {MAX_TEXT}: {shown(value)}"
        raise RequestError(message, code="bad_length", field=field)
    raise RequestError(f"{field} contains control characters: {shown(value)}", code="bad_text", field=field)


def _is_sound(value: object) -> bool:
    """True for text that may be an identity."""
    return isinstance(value, str) and 0 < len(value) <= MAX_TEXT and not _CONTROL.search(value)


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


# -------------------------------------------------------------------------------------------------------------- schemas


MAX_ACTIONS: Final = 10_000
_INTERNED: Final = 1024
"""Action sets that are kept, so that equal ones are one object."""


class FeatureSchema:
    """Features by name, in a fixed order.

    A name `country=de` is a category: it is 1 where the request says `{"country": "de"}`, else 0. A value that no name
    lists leaves all of its categories at 0.
    """

    def __init__(self, names: Sequence[str], field: str = "context") -> None:
        self.names = tuple(names)
        self.hash = schema_hash(self.names)
        self._field = field
        self._categories: dict[str, dict[str, int]] = {}
        self._numbers: dict[str, int] = {}
        for place, name in enumerate(self.names):
            key, equals, value = name.partition("=")
            if equals:
                self._categories.setdefault(key, {})[value] = place
            else:
                self._numbers[key] = place
        self._keys = self._numbers.keys() | self._categories.keys()

    def read(self, context: ContextInput) -> Floats:
        """Features `[d]`. Raises RequestError that names each missing, unknown or unreadable feature."""
        if context is None:
            context = {}
        if isinstance(context, Mapping):
            return self._by_name(context)
        return self._by_place(context)

    def _by_name(self, context: Mapping[str, float | str]) -> Floats:
        if context.keys() != self._keys:
            raise RequestError(self._drift(context), code="schema_drift", field=self._field)
        row = np.zeros(len(self.names))
        for name, place in self._numbers.items():
            value = context[name]
            if type(value) is not float or value - value != 0.0:  # not finite, or another type
                value = check_number(value, f"{self._field}.{name}")
            row[place] = value
        for name, places in self._categories.items():
            place = places.get(check_text(context[name], f"{self._field}.{name}"))
            if place is not None:
                row[place] = 1.0
        return row

    def _by_place(self, context: object) -> Floats:
        if isinstance(context, str | bytes) or not isinstance(context, Sequence | np.ndarray):
            message = f"{self._field} must be an object of features by name, or a list of numbers, got {shown(context)}"
            raise RequestError(message, code="bad_type", field=self._field)
        if len(context) != len(self.names):
            message = (
                f"{self._field} has {len(context)} features, the service has {len(self.names)}: "
                f"{', '.join(self.names) or 'none'}; send them by name to see which one differs"
            )
            raise RequestError(message, code="schema_drift", field=self._field)
        if isinstance(context, np.ndarray) and context.ndim == 1 and np.isfinite(context).all():
            return context.astype(np.float64)
        items = cast("Sequence[object]", context)
        if all(type(x) is float and x - x == 0.0 for x in items):  # the usual case over HTTP
            return np.array(items)
        checked = [check_number(x, f"{self._field}.{name}") for name, x in zip(self.names, items, strict=True)]
        return np.array(checked, dtype=np.float64)

    def _drift(self, context: Mapping[str, object]) -> str:
        """Names of features that are missing or unknown."""
        faults = [f"{self._field}.{name} is missing" for name in sorted(self._keys - context.keys())]
        known = sorted(self._keys)
        faults += [
            f"{self._field}.{name!s:.60} is not a feature of this service{did_you_mean(str(name)[:60], known)}"
            for name in sorted(map(str, context.keys() - self._keys))[:5]
        ]
        return "; ".join(faults) + f" (schema {self.hash})"


class ActionCatalogue:
    """Actions that requests may offer: declared names, or any names with features."""

    def __init__(self, names: Sequence[str] = (), features: FeatureSchema | None = None) -> None:
        self.declared = ActionSet(names=tuple(names)) if names else None
        self.features = features
        self._interned: OrderedDict[tuple[str, ...], ActionSet] = OrderedDict()

    def read(self, actions: Sequence[ActionInput] | None) -> ActionSet:
        """The actions on offer. Raises RequestError for none, repeated and undeclared ones."""
        if actions is None and self.declared is not None:
            return self.declared
        if actions is None:
            raise RequestError("actions is missing: this service declares none", code="no_actions", field="actions")
        if isinstance(actions, str) or not isinstance(actions, Sequence):
            raise RequestError(f"actions must be a list, got {shown(actions)}", code="bad_type", field="actions")
        if not actions:
            message = "actions is empty: offer at least one, or leave the field out to offer all declared ones"
            raise RequestError(message, code="no_actions", field="actions")
        if len(actions) > MAX_ACTIONS:
            message = f"actions has {len(actions)} entries, at most {MAX_ACTIONS} are read"
            raise RequestError(message, code="too_many_actions", field="actions")
        return self._with_features(actions, self.features) if self.features is not None else self._by_name(actions)

    def _by_name(self, actions: Sequence[ActionInput]) -> ActionSet:
        try:
            names = tuple(cast("Sequence[str]", actions))
            known = self._interned.get(names)
        except TypeError:  # an object among them
            known, names = None, ()
        if known is not None:
            self._interned.move_to_end(names)
            return known
        names = self._names(actions)
        if self.declared is not None:
            for place, name in enumerate(names):
                if name not in self.declared.names:
                    message = f"actions.{place} {shown(name)} is not declared{did_you_mean(name, self.declared.names)}"
                    raise RequestError(message, code="unknown_action", field=f"actions.{place}")
        made = ActionSet(names=names)
        self._interned[names] = made
        if len(self._interned) > _INTERNED:
            self._interned.popitem(last=False)
        return made

    def _with_features(self, actions: Sequence[ActionInput], schema: FeatureSchema) -> ActionSet:
        rows: list[Floats] = []
        for place, action in enumerate(actions):
            if not isinstance(action, Mapping):
                message = f'actions.{place} must be {{"name": ..., "features": {{...}}}}, got {shown(action)}'
                raise RequestError(message, code="bad_type", field=f"actions.{place}")
            try:
                rows.append(schema.read(cast("ContextInput", action.get("features"))))
            except RequestError as fault:
                message = f"actions.{place}: {fault}"
                raise RequestError(message, code=fault.code, field=f"actions.{place}.features") from None
        return ActionSet(names=self._names(actions), features=np.array(rows))

    def _names(self, actions: Sequence[ActionInput]) -> tuple[str, ...]:
        raw = [action.get("name") if isinstance(action, Mapping) else action for action in actions]
        names = tuple(check_text(name, f"actions.{place}") for place, name in enumerate(raw))
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise RequestError(f"actions names {shown(twice)} twice", code="repeated_action", field="actions")
        return names


# ------------------------------------------------------------------------------------------------------ recent requests


Identity = tuple[str, str]
"""Tenant, and id or key."""


class RecentRequests:
    """Answers of the last `capacity` decisions, and as many keys of rewards; the oldest leave first.

    Older ones are in the log: `recall` takes up what it knows of the names in the requests at hand. `own_places`: the
    features that requests send themselves, where others are joined from a feature store; None: all.
    """

    def __init__(self, capacity: int, own_places: Ints | None = None) -> None:
        self._capacity = capacity
        self._own_places = own_places
        self._decided: OrderedDict[Identity, tuple[bytes, Decided]] = OrderedDict()
        self._rewarded: OrderedDict[Identity, bytes] = OrderedDict()
        self._logged: dict[Identity, tuple[bytes, Decided] | None] = {}
        """Decisions of the log among the requests at hand; None: their content is not there any more."""
        self._logged_keys: dict[Identity, bytes] = {}
        self._unread: set[str] = set()
        """Tenants whose names could not be asked for."""

    def __len__(self) -> int:
        return len(self._decided)

    def recall(
        self,
        requests: Iterable[DecisionRequest | RewardRequest],
        find: Callable[[str, list[str], list[str]], KnownNames],
        *,
        names: bool,
    ) -> None:
        """Ask the log for decisions of rewards that are not remembered and, if `names`, for ids and keys that callers
        gave; where it cannot be asked, the answers to those raise."""
        ids: dict[str, set[str]] = {}
        keys: dict[str, set[str]] = {}
        for one in requests:
            rewards = isinstance(one, RewardRequest)
            if (names or rewards) and _is_sound(one.id) and (one.tenant, one.id) not in self._decided:
                ids.setdefault(one.tenant, set()).add(one.id)
            if names and rewards and _is_sound(one.key) and (one.tenant, one.key) not in self._rewarded:
                keys.setdefault(one.tenant, set()).add(one.key)
        self._logged, self._logged_keys, self._unread = {}, {}, set()
        for tenant in ids.keys() | keys.keys():
            try:
                known = find(tenant, sorted(ids.get(tenant, ())), sorted(keys.get(tenant, ())))
            except RequestError:
                self._unread.add(tenant)
                continue
            for name, decision in known.decisions.items():
                self._logged[tenant, name] = None
                if decision is not None:
                    own = decision.context if self._own_places is None else decision.context[self._own_places]
                    digest = request_digest(decision.unit, own, decision.actions, decision.entities)
                    self._logged[tenant, name] = digest, decided_answer(decision)
            self._logged_keys.update({(tenant, name): digest for name, digest in known.keys.items()})

    def answer(self, tenant: str, decision_id: str, digest: bytes) -> Decided | None:
        """The answer that the same request got; None: the id is new. Raises RequestError: 409 for another request and
        for one whose answer is gone, 503 where the log cannot be asked."""
        place = tenant, decision_id
        known = self._decided.get(place) or self._logged.get(place)
        if known is None and place in self._logged:
            message = (
                f"id {shown(decision_id)} was decided, and its record was erased or moved to the archive: its answer "
                "cannot be given again; give each decision an id of its own"
            )
            raise RequestError(message, status=409, code="id_reused", field="id")
        if known is None:
            self._check_read(tenant)
            return None
        if known[0] != digest:
            message = (
                f"id {shown(decision_id)} was used for another request (unit, context or actions differ): give each "
                "decision an id of its own"
            )
            raise RequestError(message, status=409, code="id_reused", field="id")
        return known[1]

    def knows(self, tenant: str, decision_id: str) -> bool:
        """True if the decision is remembered, or in the log."""
        return (tenant, decision_id) in self._decided or (tenant, decision_id) in self._logged

    def remember(self, tenant: str, digest: bytes, answer: Decided) -> None:
        """Keep an answer."""
        self._decided[tenant, answer.id] = digest, answer
        if len(self._decided) > self._capacity:
            self._decided.popitem(last=False)

    def repeated_reward(self, tenant: str, key: str, digest: bytes, *, strict: bool) -> bool:
        """True if this reward was taken under its key. Raises RequestError: 409 for another content, and 503 where the
        log cannot be asked, if `strict`."""
        known = self._rewarded.get((tenant, key)) or self._logged_keys.get((tenant, key))
        if strict and known is not None and known != digest:
            message = f"key {shown(key)} was used for another reward: give each reward a key of its own"
            raise RequestError(message, status=409, code="key_reused", field="key")
        if strict and known is None:
            self._check_read(tenant)
        return known == digest

    def remember_reward(self, tenant: str, key: str, digest: bytes) -> None:
        """Keep the key of a reward that was logged."""
        self._rewarded[tenant, key] = digest
        if len(self._rewarded) > self._capacity:
            self._rewarded.popitem(last=False)

    def _check_read(self, tenant: str) -> None:
        if tenant in self._unread:
            message = "the decision log cannot be asked whether this was sent before: nothing was decided; try again"
            raise RequestError(message, status=503, code="log_unavailable")


def decided_answer(decision: Decision) -> Decided:
    """The answer that a decision is given as."""
    return Decided(
        id=decision.id,
        action=decision.actions.names[decision.executed],
        index=decision.executed,
        logp=decision.executed_logp,
        version=decision.version,
        route=decision.route,
        intervention=decision.choice.intervention,
    )


def request_digest(unit: str, context: Floats, actions: ActionSet, entities: Sequence[tuple[str, str]] = ()) -> bytes:
    """Hash of a decision request: equal for equal unit, features, actions and entities of a feature store."""
    digest = blake2b(unit.encode(), digest_size=16)
    digest.update(b"\x00" + context.tobytes() + b"\x00" + "\x00".join(actions.names).encode())
    if actions.features is not None:
        digest.update(b"\x00" + actions.features.tobytes())
    if entities:
        digest.update(b"\x00" + repr(tuple(entities)).encode())
    return digest.digest()
