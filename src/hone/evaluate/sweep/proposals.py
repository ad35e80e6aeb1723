"""The settings of the next trials, as a function of the trials so far: a grid, or Optuna's ask and tell.

A proposal holds no state: after an interruption the same trials give the same next ones.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from pydantic import JsonValue

from hone.core.errors import ResourceError
from hone.core.random import key
from hone.evaluate.sweep.config import GridSearch, OptunaSearch
from hone.evaluate.sweep.space import SweptKey, TrialSettings, grid

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

_ATTEMPTS = 32
"""Draws for settings that were not tried yet, before a search counts as exhausted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOutcome:
    """A finished trial: its settings, and its score after each number of steps at which it was judged."""

    settings: TrialSettings
    scores: Mapping[int, float]
    complete: bool
    """It was trained to the last step."""


class TrialProposer(Protocol):
    """Chooses settings."""

    def propose(self, history: Sequence[TrialOutcome]) -> list[TrialSettings]:
        """The settings of the next batch of trials, none of them tried before; empty at the end of the search."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GridProposer:
    """All combinations as one batch."""

    combinations: Sequence[TrialSettings]

    def propose(self, history: Sequence[TrialOutcome]) -> list[TrialSettings]:
        return [] if history else list(self.combinations)


@dataclass(frozen=True, slots=True, kw_only=True)
class OptunaProposer:
    """Optuna's TPE sampler. The study is built from the history, and each draw has its own seed."""

    keys: Sequence[SweptKey]
    search: OptunaSearch

    def propose(self, history: Sequence[TrialOutcome]) -> list[TrialSettings]:
        count = min(self.search.batch, self.search.trials - len(history))
        if count <= 0:
            return []
        from optuna import create_study, samplers  # noqa: PLC0415 - an extra
        from optuna.trial import TrialState  # noqa: PLC0415 - an extra

        study = create_study(direction="maximize")
        spaces = {one.key: _distribution(one) for one in self.keys}
        for outcome in history:
            study.add_trial(_told(outcome, self.keys, spaces))
        tried = [dict(outcome.settings) for outcome in history]
        proposed: list[dict[str, JsonValue]] = []
        for attempt in range(_ATTEMPTS * count):
            seed = key(self.search.seed, "sweep", len(history), attempt) & 0x7FFFFFFF
            study.sampler = samplers.TPESampler(seed=seed, n_startup_trials=self.search.startup_trials)
            asked = study.ask(spaces)
            settings = {one.key: _value(one, asked.params[one.key]) for one in self.keys}
            if settings in tried or settings in proposed:
                study.tell(asked, state=TrialState.FAIL)
                continue
            proposed.append(settings)
            if len(proposed) == count:
                break
        return list(proposed)


def make_proposer(search: GridSearch | OptunaSearch, keys: list[SweptKey]) -> TrialProposer:
    """The proposer of a search. Raises ConfigError for a grid over a range, ResourceError without Optuna."""
    if isinstance(search, GridSearch):
        return GridProposer(combinations=grid(keys))
    _require_optuna()
    return OptunaProposer(keys=keys, search=search)


def _require_optuna() -> None:
    """Raise ResourceError that names the extra where Optuna cannot be imported."""
    try:
        import optuna  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ResourceError(
            f'search.kind = "optuna" needs Optuna, which cannot be imported ({error}): pip install "hone-rl[sweep]"'
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def _distribution(one: SweptKey) -> "BaseDistribution":
    """The distribution of a key; a list is drawn by its positions, so that its values may be of any kind."""
    from optuna import distributions  # noqa: PLC0415 - an extra

    if one.range is None:
        return distributions.CategoricalDistribution(tuple(range(len(one.values))))
    if one.range.whole:
        return distributions.IntDistribution(int(one.range.low), int(one.range.high), log=one.range.log)
    return distributions.FloatDistribution(one.range.low, one.range.high, log=one.range.log)


def _value(one: SweptKey, drawn: JsonValue) -> JsonValue:
    """The value of a key for what its distribution drew."""
    return one.values[cast("int", drawn)] if one.range is None else drawn


def _told(outcome: TrialOutcome, keys: Sequence[SweptKey], spaces: Mapping[str, "BaseDistribution"]) -> "FrozenTrial":
    """An outcome as Optuna's trial: complete, pruned with the scores so far, or failed without a score."""
    from optuna.trial import TrialState, create_trial  # noqa: PLC0415 - an extra

    known = {steps: score for steps, score in outcome.scores.items() if math.isfinite(score)}
    state = TrialState.FAIL if not known else TrialState.COMPLETE if outcome.complete else TrialState.PRUNED
    places = {one.key: one.values.index(outcome.settings[one.key]) for one in keys if one.range is None}
    return create_trial(
        state=state,
        value=known[max(known)] if state == TrialState.COMPLETE else None,
        params={**outcome.settings, **places},
        distributions=dict(spaces),
        intermediate_values=known,
    )
