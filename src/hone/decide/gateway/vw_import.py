"""Logs of Vowpal Wabbit and of Azure Personalizer in the decision log: estimates and learners read them as any other.

A cost is a negative reward. Probabilities are those that were logged; a decision without one is refused by its line,
as no estimate can weight it.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final, Literal, cast

import numpy as np

from hone.core.decisions import ActionSet, Choice, Decision, DecisionRecord, Floats, Outcome, schema_hash
from hone.core.errors import DataError
from hone.core.strict_json import strict_json
from hone.decide.log.protocol import DecisionLog

# ----------------------------------------------------------------------------------------------------------- vw parsing


SparseFeatures = dict[str, float]
"""Values by name, `namespace.name`; a text value is a category, `namespace.name=text`, of value 1."""


class _VwLineError(ValueError):
    """A line that cannot be read; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _VwExample:
    """One decision of Vowpal Wabbit."""

    line: int
    """First line in the file, from 1."""
    shared: SparseFeatures
    actions: Sequence[SparseFeatures]
    """Features of each action; empty: the format has none, actions are numbers."""
    executed: int
    """Number of the executed action, from 0."""
    cost: float
    probability: float
    count: int = 0
    """Number of actions, where `actions` is empty; 0: as many as the largest number in the file."""
    event: str = ""
    version: str = ""
    at_s: float = math.nan


@dataclass(slots=True)
class _VwFaults:
    """Lines that cannot be read, and lines without a label."""

    messages: list[str] = field(default_factory=list[str])
    unlabelled: int = 0


def _parse_text(lines: Iterable[str], faults: _VwFaults) -> Iterator[_VwExample]:
    """Examples of the text formats; an example of several lines ends with an empty line."""
    block: list[tuple[int, str]] = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text and not text.startswith("#"):
            multi = bool(block) or text.startswith(("shared ", "|")) or text.startswith("0:")
            if multi:
                block.append((number, text))
            else:
                yield from _sound(_single, [(number, text)], faults)
        elif block:
            yield from _sound(_multi, block, faults)
            block = []
    if block:
        yield from _sound(_multi, block, faults)


def _parse_dsjson(lines: Iterable[str], faults: _VwFaults) -> Iterator[_VwExample]:
    """Examples of DSJSON, one object a line; lines that only hold a late outcome are not examples."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield from _sound(_dsjson, [(number, line)], faults)


def _sound(
    parse: Callable[[Sequence[tuple[int, str]]], _VwExample | None], block: Sequence[tuple[int, str]], faults: _VwFaults
) -> Iterator[_VwExample]:
    try:
        example = parse(block)
    except _VwLineError as error:
        faults.messages.append(f"line {block[0][0]}: {error}")
        return
    if example is None:
        faults.unlabelled += 1
    else:
        yield example


def _single(block: Sequence[tuple[int, str]]) -> _VwExample | None:
    """`action:cost:probability | features`, actions from 1."""
    number, text = block[0]
    labels, _, rest = text.partition("|")
    labelled = [label for label in labels.split() if label.count(":") == 2]
    if not labelled:
        return None
    if len(labelled) > 1:
        raise _VwLineError(f"{len(labelled)} labelled actions; a decision executed one")
    action, cost, probability = _label(labelled[0])
    if action < 1:
        raise _VwLineError(f"action {action}; actions are numbered from 1")
    shared = _features("|" + rest)
    return _VwExample(
        line=number, shared=shared, actions=(), executed=action - 1, cost=cost, probability=probability
    )  # fmt: skip


def _multi(block: Sequence[tuple[int, str]]) -> _VwExample | None:
    """`shared | features`, then a line for each action; that of the executed one has the label."""
    shared: SparseFeatures = {}
    actions: list[SparseFeatures] = []
    labels: list[tuple[int, tuple[int, float, float]]] = []
    for _, text in block:
        head, bar, rest = text.partition("|")
        words = head.split()
        if words and words[0] == "shared":
            shared = _features(bar + rest)
            continue
        labels += [(len(actions), _label(word)) for word in words if word.count(":") == 2]
        actions.append(_features(bar + rest))
    if not labels:
        return None
    if len(labels) > 1:
        raise _VwLineError(f"{len(labels)} labelled actions; a decision executed one")
    place, (_, cost, probability) = labels[0]
    return _VwExample(
        line=block[0][0], shared=shared, actions=actions, executed=place, cost=cost, probability=probability
    )  # fmt: skip


def _dsjson(block: Sequence[tuple[int, str]]) -> _VwExample | None:
    number, text = block[0]
    try:
        value = strict_json(text)
    except ValueError as error:
        raise _VwLineError(f"not JSON: {error!s:.100}") from None
    if not isinstance(value, dict):
        raise _VwLineError("not an object")
    fields = cast("dict[str, object]", value)
    context, numbers, chances = fields.get("c"), fields.get("a"), fields.get("p")
    if context is None or "_label_cost" not in fields:
        return None
    if not isinstance(context, dict) or not isinstance(numbers, list) or not isinstance(chances, list):
        raise _VwLineError("c must be an object, a and p lists")
    features = cast("dict[str, object]", context)
    multi = features.get("_multi", [])
    executed, ranked = _number(fields.get("_label_Action", _first(numbers))), cast("list[object]", chances)
    probability = _number(fields.get("_label_probability", _first(ranked)))
    state = fields.get("VWState")
    version = cast("dict[str, object]", state).get("m", "") if isinstance(state, dict) else ""
    return _VwExample(
        line=number,
        shared=_flattened({name: one for name, one in features.items() if not name.startswith("_")}, ""),
        actions=[_flattened(one, "") for one in cast("list[object]", multi)] if isinstance(multi, list) else (),
        executed=int(executed) - 1,
        cost=_number(fields["_label_cost"]),
        probability=probability,
        count=len(numbers),
        event=str(fields.get("EventId", "")),
        version=str(version),
        at_s=_seconds(fields.get("Timestamp")),
    )


def _label(text: str) -> tuple[int, float, float]:
    action, cost, probability = text.split(":")
    try:
        return int(action), float(cost), float(probability)
    except ValueError:
        raise _VwLineError(f"label {text!r:.60} is not action:cost:probability") from None


def _features(text: str) -> SparseFeatures:
    """`|ns a b:0.5 |other c`: values by `ns.name`; names without a namespace stand as they are."""
    features: SparseFeatures = {}
    for part in text.split("|")[1:]:
        words = part.split()
        space = ""
        if words and not part.startswith((" ", "\t")):
            space, _, scale = words.pop(0).partition(":")
            factor = _value(scale) if scale else 1.0
        else:
            factor = 1.0
        for word in words:
            name, colon, value = word.rpartition(":") if ":" in word else (word, "", "")
            key = f"{space}.{name}" if space else name
            features[key] = features.get(key, 0.0) + factor * (_value(value) if colon else 1.0)
    return features


def _flattened(value: object, name: str) -> SparseFeatures:
    """Values of nested JSON by dotted names."""
    match value:
        case dict():
            items = cast("dict[str, object]", value).items()
            inner = [_flattened(one, f"{name}.{key}" if name else key) for key, one in items if key[:1] != "_"]
            return {key: one for some in inner for key, one in some.items()}
        case list():
            inner = [_flattened(one, f"{name}.{place}") for place, one in enumerate(cast("list[object]", value))]
            return {key: one for some in inner for key, one in some.items()}
        case bool():
            return {name: 1.0} if value else {}
        case int() | float():
            return {name: _number(value)}
        case str():
            return {f"{name}={value}": 1.0}
        case _:
            return {}


def _value(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise _VwLineError(f"feature value {text!r:.40} is no number") from None
    if not math.isfinite(number):
        raise _VwLineError(f"feature value {text} is not finite")
    return number


def _first(values: Sequence[object]) -> object:
    return values[0] if values else None


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _VwLineError(f"{value!r:.60} is no finite number")
    return float(value)


def _seconds(value: object) -> float:
    """Seconds since the epoch of an ISO time with up to seven digits of a second; NaN without one."""
    if not isinstance(value, str):
        return math.nan
    head, dot, rest = value.partition(".")
    digits = rest.rstrip("Z")[:6]
    try:
        return datetime.fromisoformat(f"{head.rstrip('Z')}{dot}{digits}+00:00").timestamp()
    except ValueError:
        raise _VwLineError(f"Timestamp {value!r:.40} is no time") from None


# ------------------------------------------------------------------------------------------------------------ vw import


VwFormat = Literal["text", "dsjson"]
MAX_FEATURES: Final = 2000
_SHOWN: Final = 20
_BATCH: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class _VwLog:
    """A converted log."""

    records: tuple[DecisionRecord, ...]
    """Each decision, and its outcome after it."""
    features: tuple[str, ...]
    """Names of the features, in their order."""
    action_features: tuple[str, ...]
    """Names of the actions' features; empty: actions are told apart by their numbers."""
    unlabelled: int
    """Examples without a label: nothing was executed, or its cost never came."""


def read_vw_log(path: Path, *, kind: VwFormat, tenant: str = "default", start_s: float = 0.0) -> _VwLog:
    """Convert a file: `text` of `--cb` or `--cb_explore_adf`, or `dsjson`.

    Examples without a time are a second apart from `start_s` on. Raises DataError with every line that cannot be read
    or has a probability outside of (0, 1]; then nothing was converted.
    """
    faults = _VwFaults()
    parse = _parse_dsjson if kind == "dsjson" else _parse_text
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
    return _VwLog(records=records, features=features, action_features=inner, unlabelled=faults.unlabelled)


def import_vw_log(path: Path, log: DecisionLog, *, kind: VwFormat, tenant: str = "default") -> _VwLog:
    """Convert a file and append it to a log; importing it again changes nothing. Raises DataError."""
    converted = read_vw_log(path, kind=kind, tenant=tenant)
    for first in range(0, len(converted.records), _BATCH):
        log.append(converted.records[first : first + _BATCH])
    return converted


def _example_faults(one: _VwExample) -> Iterator[str]:
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

    def records(self, place: int, one: _VwExample) -> tuple[Decision, Outcome]:
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

    def _actions(self, one: _VwExample) -> ActionSet:
        offered = len(one.actions) or one.count or self.count
        names = tuple(str(number) for number in range(1, offered + 1))
        if not self.action_features:
            return ActionSet(names=names)
        return ActionSet(names=names, features=np.array([_dense(row, self.action_features) for row in one.actions]))


def _dense(row: Mapping[str, float], names: Sequence[str]) -> Floats:
    return np.array([row.get(name, 0.0) for name in names], dtype=np.float64)
