"""Rules that say which actions may be taken in a context; `Masked` and `Clipped` apply them."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hone.core.decisions import ActionSet, Bools, Floats
from hone.core.errors import DataError
from hone.decide.bandits.policy import BanditPolicy, PolicyContents


class ActionFilter(Protocol):
    """Rule that says which actions may be taken in a context. Pure."""

    def __call__(self, context: Floats, actions: ActionSet) -> Bools:
        """Allowed actions `[K]` for features `[d]`."""
        ...


@dataclass(frozen=True, slots=True)
class ForbiddenActions:
    """Filter that allows all actions but those of some names."""

    names: tuple[str, ...]

    def __call__(self, context: Floats, actions: ActionSet) -> Bools:
        del context
        return np.array([name not in self.names for name in actions.names])


@dataclass(frozen=True, slots=True)
class ActionRange:
    """Filter that allows the actions of numbers `low` to `high`, both included."""

    low: int
    high: int

    def __call__(self, context: Floats, actions: ActionSet) -> Bools:
        del context
        numbers = np.arange(len(actions))
        return (numbers >= self.low) & (numbers <= self.high)


def filter_contents(inner: BanditPolicy, allowed: ActionFilter) -> PolicyContents:
    """Contents of a policy that restricts `inner` by a filter. Raises DataError for a filter that cannot be saved."""
    match allowed:
        case ForbiddenActions(names):
            return PolicyContents(settings={"forbidden": list(names)}, parts={"inner": inner})
        case ActionRange(low, high):
            return PolicyContents(settings={"low": low, "high": high}, parts={"inner": inner})
        case _:
            raise DataError(
                f"a filter of the type {type(allowed).__name__} cannot be saved; use ForbiddenActions or ActionRange, "
                "or save the inner policy and wrap it where it is loaded"
            )


def saved_filter(contents: PolicyContents) -> ActionFilter:
    """The filter of saved contents. Raises DataError where there is none."""
    forbidden = contents.settings.get("forbidden")
    if isinstance(forbidden, list):
        return ForbiddenActions(tuple(map(str, forbidden)))
    return ActionRange(int(contents.number("low")), int(contents.number("high")))


def some_allowed(allowed: Bools, actions: ActionSet) -> Bools:
    """The allowed actions `[K]` themselves. Raises DataError where none is."""
    if not allowed.any():
        raise DataError(f"the filter allows none of the {len(actions)} actions; an action set needs an allowed one")
    return allowed


def allowed_rows(allowed: ActionFilter, contexts: Floats, actions: ActionSet) -> Bools:
    """Allowed actions `[n, K]` for features `[n, d]`. Raises DataError as `some_allowed`."""
    rows = [some_allowed(allowed(context, actions), actions) for context in contexts]
    return np.array(rows, dtype=np.bool_).reshape(len(contexts), len(actions))
