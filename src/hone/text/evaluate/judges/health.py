"""The health of a judge: agreement with canaries, biases of position and length, and self-consistency."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import Metrics
from hone.core.episodes import ScoreStatus
from hone.core.errors import DataError
from hone.core.state import State
from hone.estimators.means import wilson_interval
from hone.rewards.judges.canaries import CanaryItem
from hone.text.evaluate.judges.grading import GradedAnswers, PairOutcome

MIN_CANARIES = 8
"""Canaries before the floor holds."""
_PAIRS = 400
"""Comparisons over which the bias of position is measured."""


@dataclass(frozen=True, slots=True)
class CanaryOutcome:
    """A canary and its gradings: 1 where the good answer won, 1/2 for a tie, 0 where the bad one won."""

    number: int
    place: str
    outcomes: tuple[float, ...]
    """One for each repeat that has a verdict, the first at the judge's own temperature."""
    good_is_longer: float
    """1, 0, or 1/2 for equal lengths in characters."""


def canary_outcome(number: int, item: CanaryItem, graded: Sequence[GradedAnswers]) -> CanaryOutcome | None:
    """The outcome of a canary from its repeats; None where the first has no verdict."""
    found = [_outcome(one) for one in graded]
    if not found or found[0] is None:
        return None
    longer = (1.0 + np.sign(len(item.good) - len(item.bad))) / 2
    return CanaryOutcome(number, item.place, tuple(one for one in found if one is not None), float(longer))


def _outcome(graded: GradedAnswers) -> float | None:
    good, bad = graded.results
    if good.status is not ScoreStatus.SCORED or bad.status is not ScoreStatus.SCORED:
        return None
    return float((1.0 + np.sign(good.score - bad.score)) / 2)


class JudgeHealth:
    """Outcomes of the last canaries and comparisons; pure bookkeeping."""

    def __init__(self, name: str, *, window: int) -> None:
        self.name = name
        self.canaries: deque[CanaryOutcome] = deque(maxlen=window)
        self.asked = 0
        """Canaries asked so far."""
        self.missing = 0
        """Canaries without a verdict so far."""
        self._slots: deque[tuple[float, bool]] = deque(maxlen=_PAIRS)
        """Mean wins of slot A, and whether both orders agree, for each comparison."""

    def add_pairs(self, pairs: Sequence[PairOutcome]) -> None:
        """Take comparisons into account."""
        self._slots.extend((sum(pair.slot_a_wins) / 2, pair.consistent) for pair in pairs)

    def add_canary(self, outcome: CanaryOutcome | None) -> None:
        """Take a canary into account; None: it has no verdict."""
        self.asked += 1
        if outcome is None:
            self.missing += 1
        else:
            self.canaries.append(outcome)

    def agreed(self) -> int:
        """Number of canaries of the window in which the good answer won."""
        return sum(one.outcomes[0] == 1.0 for one in self.canaries)

    def fault(self, floor: float) -> str:
        """The judge's agreement in words where its interval lies below `floor`; else empty."""
        n = len(self.canaries)
        if n < MIN_CANARIES:
            return ""
        found = wilson_interval(self.agreed(), n)
        if found.high >= floor:
            return ""
        wrong = [one.place for one in self.canaries if one.outcomes[0] < 1.0][-3:]
        return (
            f"agrees with {self.agreed()} of the last {n} canaries ({found.mean:.2f}, 95% interval {found.low:.2f} to "
            f"{found.high:.2f}), below canaries.floor = {floor:g}; for example {', '.join(dict.fromkeys(wrong))}"
        )

    def metrics(self) -> Metrics:
        """Agreement with its interval, self-consistency, and biases, where they are known."""
        found, name = Metrics(), self.name
        if self.canaries:
            agreement = wilson_interval(self.agreed(), len(self.canaries))
            found |= {
                f"judge/{name}/agreement": agreement.mean,
                f"judge/{name}/agreement_low": agreement.low,
                f"judge/{name}/agreement_high": agreement.high,
            }
            found |= self._length_bias() | self._self_consistency()
        if self.asked:
            found |= {
                f"judge/{name}/canaries": float(self.asked),
                f"judge/{name}/canaries_missing": float(self.missing),
            }
        if self._slots:
            found[f"judge/{name}/first_preferred"] = float(np.mean([wins for wins, _ in self._slots]))
            found[f"judge/{name}/order_consistency"] = float(np.mean([same for _, same in self._slots]))
        return found

    def _length_bias(self) -> Metrics:
        """Share of canaries in which the longer answer won, less the share in which it is the good one."""
        unequal = [one for one in self.canaries if one.good_is_longer != 0.5]
        if not unequal:
            return {}
        won = [one.outcomes[0] if one.good_is_longer else 1.0 - one.outcomes[0] for one in unequal]
        return {
            f"judge/{self.name}/length_bias": float(np.mean(won) - np.mean([one.good_is_longer for one in unequal]))
        }

    def _self_consistency(self) -> Metrics:
        """Share of pairs of repeats of a canary that agree."""
        same: list[float] = []
        for one in self.canaries:
            values = one.outcomes
            pairs = [(a, b) for place, a in enumerate(values) for b in values[:place]]
            same += [float(np.mean([a == b for a, b in pairs]))] if pairs else []
        return {f"judge/{self.name}/self_consistency": float(np.mean(same))} if same else {}

    def state(self) -> State:
        ragged = [one.outcomes for one in self.canaries]
        return {
            "numbers": np.array([one.number for one in self.canaries], np.int64),
            "places": [one.place for one in self.canaries],
            "counts": np.array([len(one) for one in ragged], np.int64),
            "outcomes": np.array([value for one in ragged for value in one], np.float64),
            "good_is_longer": np.array([one.good_is_longer for one in self.canaries], np.float64),
            "asked": self.asked,
            "missing": self.missing,
            "slots": np.array([wins for wins, _ in self._slots], np.float64),
            "same": np.array([same for _, same in self._slots], np.uint8),
        }

    def restore(self, state: State) -> None:
        """Take up a saved state. Raises DataError where it does not fit."""
        places, asked, missing = state.get("places"), state.get("asked"), state.get("missing")
        arrays = [state.get(name) for name in ("numbers", "counts", "outcomes", "good_is_longer", "slots", "same")]
        if not (isinstance(places, list) and isinstance(asked, int) and isinstance(missing, int)):
            raise DataError("the checkpoint's judge health needs places, asked and missing")
        numbers, counts, outcomes, longer, slots, same = (_floats(values) for values in arrays)
        ends = np.cumsum(counts).astype(int)
        rows = [tuple(part.tolist()) for part in np.split(outcomes, ends[:-1])] if len(ends) else []
        self.canaries.clear()
        for number, place, values, good in zip(numbers, places, rows, longer, strict=True):
            self.canaries.append(CanaryOutcome(int(number), str(place), values, float(good)))
        self._slots.clear()
        self._slots.extend((float(wins), bool(both)) for wins, both in zip(slots, same, strict=True))
        self.asked, self.missing = asked, missing


def _floats(values: object) -> NDArray[np.float64]:
    if not isinstance(values, np.ndarray):
        raise DataError("the checkpoint's judge health lacks an array")
    return values.astype(np.float64)


def length_correlation(scores: Sequence[NDArray[np.float64]], lengths: Sequence[NDArray[np.float64]]) -> float | None:
    """Correlation of score and length within groups: both centred by their group's mean; None where one is constant.

    `scores`, `lengths`: arrays `[n]` of each group. A NaN score is left out.
    """
    pairs: list[NDArray[np.float64]] = []
    for score, length in zip(scores, lengths, strict=True):
        known = np.isfinite(score)
        if known.sum() > 1:
            both = np.stack([score[known], length[known]])
            pairs.append(both - both.mean(axis=1, keepdims=True))
    if not pairs:
        return None
    x, y = np.concatenate(pairs, axis=1)
    size = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return None if size < 1e-12 else float((x * y).sum() / size)
