"""Names of features and of actions: what a request must bring, checked by name.

Belongs here: features and actions of a request -> arrays of fixed meaning. Does not: the meaning.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final, cast

import numpy as np

from hone.core.decisions import ActionSet, Floats, schema_hash
from hone.core.errors import did_you_mean
from hone.decide.gateway.requests import ActionInput, ContextInput, RequestError, check_number, check_text, shown

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
            told = f"{self._field} must be an object of features by name, or a list of numbers, got {shown(context)}"
            raise RequestError(told, code="bad_type", field=self._field)
        if len(context) != len(self.names):
            told = (
                f"{self._field} has {len(context)} features, the service has {len(self.names)}: "
                f"{', '.join(self.names) or 'none'}; send them by name to see which one differs"
            )
            raise RequestError(told, code="schema_drift", field=self._field)
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
            told = "actions is empty: offer at least one, or leave the field out to offer all declared ones"
            raise RequestError(told, code="no_actions", field="actions")
        if len(actions) > MAX_ACTIONS:
            told = f"actions has {len(actions)} entries, at most {MAX_ACTIONS} are read"
            raise RequestError(told, code="too_many_actions", field="actions")
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
                    told = f"actions.{place} {shown(name)} is not declared{did_you_mean(name, self.declared.names)}"
                    raise RequestError(told, code="unknown_action", field=f"actions.{place}")
        made = ActionSet(names=names)
        self._interned[names] = made
        if len(self._interned) > _INTERNED:
            self._interned.popitem(last=False)
        return made

    def _with_features(self, actions: Sequence[ActionInput], schema: FeatureSchema) -> ActionSet:
        rows: list[Floats] = []
        for place, action in enumerate(actions):
            if not isinstance(action, Mapping):
                told = f'actions.{place} must be {{"name": ..., "features": {{...}}}}, got {shown(action)}'
                raise RequestError(told, code="bad_type", field=f"actions.{place}")
            try:
                rows.append(schema.read(cast("ContextInput", action.get("features"))))
            except RequestError as fault:
                told = f"actions.{place}: {fault}"
                raise RequestError(told, code=fault.code, field=f"actions.{place}.features") from None
        return ActionSet(names=self._names(actions), features=np.array(rows))

    def _names(self, actions: Sequence[ActionInput]) -> tuple[str, ...]:
        raw = [action.get("name") if isinstance(action, Mapping) else action for action in actions]
        names = tuple(check_text(name, f"actions.{place}") for place, name in enumerate(raw))
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise RequestError(f"actions names {shown(twice)} twice", code="repeated_action", field="actions")
        return names
