"""Features of a store joined to the contexts of requests, before anything is decided.

The whole row is logged with its decision: learning, estimates and a replay read the features as they were served, and
never the store. All requests that are answered together are joined by one read of the store, on a thread of its own, so
that a deadline bounds the wait for a server, a disk or a lock alike. While an answer of the store is out, nobody waits
for another one.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, cast

import numpy as np

from hone.core.clock import Clock
from hone.core.decisions import Floats
from hone.core.errors import HoneError, did_you_mean
from hone.decide.gateway.feature_store import (
    EntityKey,
    FeatureGroupConfig,
    FeatureRow,
    FeaturesTableConfig,
    FeatureStore,
    FeatureValue,
    StoredFeature,
    StoredRows,
)
from hone.decide.gateway.requests import (
    ContextInput,
    DecisionRequest,
    FeatureSchema,
    RequestError,
    check_number,
    check_text,
    shown,
)

MAX_SKEW_S: Final = 300.0
"""A value may be so far in the future of the gateway's clock."""
MAX_ROWS: Final = 10_000
"""Rows of one put."""
JoinStatus = Literal["fresh", "old", "missing", "late"]
"""State of a group's features for a decision: the worst one of them; `late`: the store did not answer."""


class SplitRequest(NamedTuple):
    """What a request sends, and what it names."""

    context: ContextInput
    """The part of the context that it sends itself."""
    keys: tuple[EntityKey, ...] = ()
    """The entity of each group."""
    entities: tuple[tuple[str, str], ...] = ()
    """Fields that named entities, with these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedContext:
    """A whole context, and the reason why the policy must not decide by it."""

    context: Floats
    """`[d]`."""
    hand_over: str = ""
    """The safe action is to be taken, for this reason; empty: the policy decides."""
    entities: tuple[tuple[str, str], ...] = ()
    """Fields of the request that named entities, with these."""


class FeatureJoin:
    """Join of a service's requests with its store. One thread joins; any may put."""

    def __init__(
        self,
        table: FeaturesTableConfig,
        features: Sequence[str],
        store: FeatureStore,
        clock: Clock,
        tell: Callable[[str, str], None] | None = None,
    ) -> None:
        self.groups = {group.name: group for group in table.groups}
        stored = [name.partition("=")[0] in table.names for name in features]
        self.own = FeatureSchema([name for name, one in zip(features, stored, strict=True) if not one])
        """Features that requests send."""
        self.own_places = np.flatnonzero(~np.array(stored))
        self.counts: Counter[tuple[str, str]] = Counter()
        """Decisions by group and `JoinStatus`."""
        self._uncounted: Counter[tuple[str, str]] = Counter()
        """Those of joins whose decisions are not in the log yet."""
        self.waited_s = 0.0
        """Seconds that the last `fetch` took."""
        self._stored = FeatureSchema([name for name, one in zip(features, stored, strict=True) if one], "features")
        self._stored_places = np.flatnonzero(stored)
        self.store, self._clock, self._tell, self._deadline_s = store, clock, tell, table.deadline_s
        categories = {name.partition("=")[0] for name in features if "=" in name}
        self._names, self._categories = table.names, categories & table.names
        self._fields = list(dict.fromkeys(group.entity for group in table.groups if group.entity))
        self._thread = ThreadPoolExecutor(1, "features")
        self._asked: Future[StoredRows] | None = None
        self._rows: StoredRows = {}
        self._fault = ""

    # ------------------------------------------------------------------------------------------ join

    def split(self, request: DecisionRequest) -> SplitRequest:
        """The part of a request's context that it sends itself, and the entity of each group. Raises RequestError."""
        context: ContextInput = request.context
        lead = request.unit if request.joint is None else request.joint.lead
        if self._fields:
            if not isinstance(context, Mapping):
                message = f"context must be an object with {', '.join(self._fields)}: they name entities of the store"
                raise RequestError(message, code="bad_type", field="context")
            if absent := [name for name in self._fields if name not in context]:
                message = f"context.{absent[0]} is missing: it names an entity of the feature store"
                raise RequestError(message, code="missing_field", field=f"context.{absent[0]}")
        named = cast("Mapping[str, float | str]", context)
        entities = {name: check_text(named[name], f"context.{name}") for name in self._fields}
        keys = tuple(
            EntityKey(request.tenant, group.name, entities[group.entity] if group.entity else lead)
            for group in self.groups.values()
        )
        if isinstance(context, Mapping):
            if sent := sorted(self._names & context.keys()):
                message = f"context.{sent[0]} is joined from the feature store: leave it out of the request"
                raise RequestError(message, code="stored_feature", field=f"context.{sent[0]}")
            if self._fields:
                context = {name: value for name, value in named.items() if name not in self._fields}
        return SplitRequest(context, keys, tuple(entities.items()))

    def fetch(self, requests: Sequence[DecisionRequest]) -> None:
        """Read the features of requests that are answered together, once; those that cannot be read are late."""
        self._rows, self._fault, self.waited_s = {}, "", 0.0
        wanted: dict[EntityKey, Sequence[str]] = {}
        for request in requests:
            try:
                keys = self.split(request).keys
            except RequestError:  # it is told when the request is answered
                continue
            wanted.update({key: self.groups[key.group].features for key in keys})
        if not wanted:
            return
        began_s = self._clock.monotonic_s()
        limits = [request.deadline_s / 2 for request in requests if request.deadline_s is not None]
        try:
            self._rows = self._read(wanted, min([self._deadline_s, *limits]))
        except TimeoutError:
            self._fault = "the store did not answer in time"
        except (HoneError, OSError) as error:
            self._fault = f"{error!s:.200}"
        self.waited_s = self._clock.monotonic_s() - began_s
        if self._fault and self._tell is not None:
            self._tell("features_late", self._fault)

    def _read(self, wanted: Mapping[EntityKey, Sequence[str]], wait_s: float) -> StoredRows:
        """The rows, within `wait_s`. Raises TimeoutError, and as the store."""
        if self._asked is not None and not self._asked.done():
            raise TimeoutError
        self._asked = self._thread.submit(self.store.read, wanted)
        return self._asked.result(wait_s)

    def join(self, own: Floats, split: SplitRequest, now_s: float) -> JoinedContext:
        """The whole context of features `[own]` that a request sent, by the rows of the last `fetch`.

        Raises RequestError, where a group refuses: 503 if the store is late, 422 for a missing or old value.
        """
        values: dict[str, FeatureValue] = {}
        hand_over: list[str] = []
        for key in split.keys:
            group, rows = self.groups[key.group], self._rows.get(key, {})
            worst: JoinStatus = "fresh"
            for name in group.features:
                status: JoinStatus = "late" if self._fault else self._status(group, name, rows.get(name), now_s)
                if status != "fresh":
                    values[name] = group.defaults.get(name, _NO_CATEGORY if name in self._categories else 0.0)
                    worst = status if _BAD.index(status) > _BAD.index(worst) else worst
                else:
                    values[name] = rows[name].value
            self._uncounted[group.name, worst] += 1
            words = f"features: {group.name} {worst}"
            if worst != "fresh" and group.missing == "refuse":
                status_code = 503 if worst == "late" else 422
                detail = f" ({self._fault})" if self._fault else f" for the entity {shown(key.entity)}"
                raise RequestError(
                    f"{words}{detail}: nothing was decided", status=status_code, code=f"features_{worst}"
                )
            if worst != "fresh" and group.missing == "safe":
                hand_over.append(words)
        context = np.zeros(len(self.own_places) + len(self._stored_places))
        context[self.own_places] = own
        context[self._stored_places] = self._stored.read(values)
        return JoinedContext(context=context, hand_over="; ".join(hand_over), entities=split.entities)

    def count(self, *, logged: bool) -> None:
        """Count the joins since the last call, unless their decisions did not come into the log."""
        if logged:
            self.counts.update(self._uncounted)
        self._uncounted.clear()

    def _status(self, group: FeatureGroupConfig, name: str, held: StoredFeature | None, now_s: float) -> JoinStatus:
        if held is None or not self._is_sound(name, held.value):
            return "missing"
        return "old" if group.stale_s and now_s - held.at_s > group.stale_s else "fresh"

    def _is_sound(self, name: str, value: object) -> bool:
        """True for text of a category and a finite number of any other feature."""
        if name in self._categories:
            return isinstance(value, str) and 0 < len(value) <= _MOST_TEXT
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)

    # ------------------------------------------------------------------------------------------ put

    def put(self, tenant: str, fields: Mapping[str, object]) -> int:
        """Store the rows of `{"group": ..., "rows": {ENTITY: {FEATURE: VALUE or null}}, "at_s": ...}` -> their number.

        Raises RequestError that names what is wrong; then nothing was stored. 503: the store does not answer.
        """
        rows = self.read_rows(tenant, fields)
        try:
            self.store.put(rows)
        except (HoneError, OSError) as error:
            message = f"{error!s:.200}: put the rows again"
            raise RequestError(message, status=503, code="features_unavailable") from error
        return len(rows)

    def read_rows(self, tenant: str, fields: Mapping[str, object]) -> list[FeatureRow]:
        """The rows of one put, checked. Raises RequestError."""
        if unknown := sorted(fields.keys() - {"group", "rows", "at_s"}):
            message = f"unknown field {shown(unknown[0])}{did_you_mean(unknown[0][:60], ('group', 'rows', 'at_s'))}"
            raise RequestError(message, code="unknown_field", field=unknown[0][:60])
        name = check_text(fields.get("group"), "group")
        group = self.groups.get(name)
        if group is None:
            message = f"no group {shown(name)} of features here{did_you_mean(name, sorted(self.groups))}"
            raise RequestError(message, code="unknown_group", field="group")
        now_s = self._clock.now_s()
        at_s = now_s if fields.get("at_s") is None else check_number(fields["at_s"], "at_s")
        if not 0.0 <= at_s <= now_s + MAX_SKEW_S:
            message = (
                f"at_s {at_s:.0f} must be seconds since 1970, and at most {MAX_SKEW_S:g} s ahead of the gateway's clock"
            )
            raise RequestError(message, code="clock_skew", field="at_s")
        rows = fields.get("rows")
        if not isinstance(rows, Mapping) or not 0 < len(cast("Mapping[str, object]", rows)) <= MAX_ROWS:
            message = f"rows must be an object of 1 to {MAX_ROWS} entities, each with its values, got {shown(rows)}"
            raise RequestError(message, code="bad_type", field="rows")
        return [
            FeatureRow(
                key=EntityKey(tenant, name, check_text(entity, "rows")), at_s=at_s,
                values=self._values_of(group, entity, values),
            )
            for entity, values in cast("Mapping[str, object]", rows).items()
        ]  # fmt: skip

    def _values_of(self, group: FeatureGroupConfig, entity: str, values: object) -> dict[str, FeatureValue | None]:
        place = f"rows.{entity:.60}"
        if not isinstance(values, Mapping) or not values:
            message = f"{place} must be an object of values by feature, got {shown(values)}"
            raise RequestError(message, code="bad_type", field=place)
        checked: dict[str, FeatureValue | None] = {}
        for name, value in cast("Mapping[str, object]", values).items():
            if name not in group.features:
                message = f"{place}.{name!s:.60} is not a feature of {group.name}{did_you_mean(name, group.features)}"
                raise RequestError(message, code="schema_drift", field=place)
            if value is None:
                checked[name] = None
            elif name in self._categories:
                checked[name] = check_text(value, f"{place}.{name}")
            else:
                checked[name] = check_number(value, f"{place}.{name}")
        return checked

    def close(self) -> None:
        """Close the store, once its answer is no longer out."""
        self._thread.shutdown(wait=True)
        self.store.close()


_BAD: Final[tuple[JoinStatus, ...]] = ("fresh", "old", "missing", "late")
"""States from good to bad."""
_NO_CATEGORY: Final = "(none)"
"""Text of a category that no feature lists."""
_MOST_TEXT: Final = 200
