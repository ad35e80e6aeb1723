"""Logs of Vowpal Wabbit and of Azure Personalizer in the decision log: estimates and learners read them as any other.

A cost is a negative reward. Probabilities are those that were logged; a decision without one is refused by its line,
as no estimate can weight it.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from hone.core.decisions import ActionSet, Choice, Decision, DecisionRecord, Floats, Outcome, schema_hash
from hone.core.errors import DataError
from hone.decide.gateway.vw_parsing import SparseFeatures, VwExample, VwFaults, parse_dsjson, parse_text
from hone.decide.log.protocol import DecisionLog

VwFormat = Literal["text", "dsjson"]
MAX_FEATURES: Final = 2000
_SHOWN: Final = 20
_BATCH: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class VwLog:
    """A converted log."""

    records: tuple[DecisionRecord, ...]
    """Each decision, and its outcome after it."""
    features: tuple[str, ...]
    """Names of the features, in their order."""
    action_features: tuple[str, ...]
    """Names of the actions' features; empty: actions are told apart by their numbers."""
    unlabelled: int
    """Examples without a label: nothing was executed, or its cost never came."""


def read_vw_log(path: Path, *, kind: VwFormat, tenant: str = "default", start_s: float = 0.0) -> VwLog:
    """Convert a file: `text` of `--cb` or `--cb_explore_adf`, or `dsjson`.

    Examples without a time are a second apart from `start_s` on. Raises DataError with every line that cannot be read
    or has a probability outside of (0, 1]; then nothing was converted.
    """
    faults = VwFaults()
    parse = parse_dsjson if kind == "dsjson" else parse_text
    try:
        with path.open(encoding="utf-8") as file:
            examples = list(parse(file, faults))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: {error}") from None
    count = max((one.count or one.executed + 1 for one in examples), default=0)
    faults.messages += [f"line {one.line}: {words}" for one in examples for words in _example_faults(one)]
    if faults.messages:
        more = [f"and {len(faults.messages) - _SHOWN} more lines"] if len(faults.messages) > _SHOWN else []
        raise DataError(*(f"{path.name}: {words}" for words in faults.messages[:_SHOWN]), *more)
    features = _names((one.shared for one in examples), path)
    inner = _names((action for one in examples for action in one.actions), path)
    source = f"vw:{path.name}"
    made = _RecordMaker(features, inner, count, tenant, source, start_s)
    records = tuple(record for place, one in enumerate(examples) for record in made.records(place, one))
    return VwLog(records=records, features=features, action_features=inner, unlabelled=faults.unlabelled)


def import_vw_log(path: Path, log: DecisionLog, *, kind: VwFormat, tenant: str = "default") -> VwLog:
    """Convert a file and append it to a log; importing it again changes nothing. Raises DataError."""
    converted = read_vw_log(path, kind=kind, tenant=tenant)
    for first in range(0, len(converted.records), _BATCH):
        log.append(converted.records[first : first + _BATCH])
    return converted


def _example_faults(one: VwExample) -> Iterator[str]:
    if not 0.0 < one.probability <= 1.0:
        yield f"probability {one.probability:g} is not above 0 and at most 1"
    if not math.isfinite(one.cost):
        yield f"cost {one.cost} is not finite"
    offered = len(one.actions) or one.count
    if one.executed < 0 or (offered and one.executed >= offered):
        yield f"action {one.executed + 1} of {offered}"


def _names(rows: Iterator[SparseFeatures], path: Path) -> tuple[str, ...]:
    names = sorted({name for row in rows for name in row})
    if len(names) > MAX_FEATURES:
        raise DataError(
            f"{path.name}: {len(names)} features, at most {MAX_FEATURES} are converted; Vowpal Wabbit hashes them, "
            "hone names them: leave out categories with many values, such as ids"
        )
    return tuple(names)


@dataclass(frozen=True, slots=True)
class _RecordMaker:
    features: Sequence[str]
    action_features: Sequence[str]
    count: int
    tenant: str
    source: str
    start_s: float

    def records(self, place: int, one: VwExample) -> tuple[Decision, Outcome]:
        """The decision and its outcome."""
        at_s = self.start_s + place if math.isnan(one.at_s) else one.at_s
        logp = math.log(one.probability)
        name = one.event or f"{self.source}:{one.line}"
        decision = Decision(
            id=name, tenant=self.tenant, unit=name, at_s=at_s, context=_dense(one.shared, self.features),
            actions=self._actions(one), choice=Choice(action=one.executed, logp=logp), executed=one.executed,
            executed_logp=logp, version=f"vw:{one.version}" if one.version else "vw", source=self.source,
            schema=schema_hash(self.features), seq=2 * place,
        )  # fmt: skip
        outcome = Outcome(
            decision_id=name, tenant=self.tenant, value=-one.cost, at_s=at_s, source=self.source, seq=2 * place + 1
        )
        return decision, outcome

    def _actions(self, one: VwExample) -> ActionSet:
        offered = len(one.actions) or one.count or self.count
        names = tuple(str(number) for number in range(1, offered + 1))
        if not self.action_features:
            return ActionSet(names=names)
        return ActionSet(names=names, features=np.array([_dense(row, self.action_features) for row in one.actions]))


def _dense(row: Mapping[str, float], names: Sequence[str]) -> Floats:
    return np.array([row.get(name, 0.0) for name in names], dtype=np.float64)
