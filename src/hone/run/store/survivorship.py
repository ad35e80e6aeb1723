"""Answers of a run by what became of them and by their length: `survivorship.json`.

Belongs here: the counts, their file, and sentences about the lengths that a run learns from. Answers that are too old,
that get no reward or that a limit cuts are seldom a random part of all answers: long ones go first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hone.core.state import State, array
from hone.run.store.records import RecordFile

LENGTH_BIAS_BOUND: Final = 0.05
"""Change of the mean length, as a share of it, above which the end of a run tells of it."""
TRUNCATION_BOUND: Final = 0.1
"""Share of cut answers above which the end of a run tells of it."""
_EXACT_BITS: Final = 7
"""Lengths are counted with so many leading bits: exactly below 128, and to 1% above."""

Fate = Literal["kept", "truncated", "unscored", "stale", "filtered"]
"""`kept`: learnt from. `truncated`: learnt from, but cut by a limit. `unscored`: no reward, and so not learnt from.
`stale`: dropped, older than the bound. `filtered`: dropped by the recipe's selection of groups."""
FATES: Final[tuple[Fate, ...]] = get_args(Fate)
LEARNT: Final[tuple[Fate, ...]] = ("kept", "truncated")


@dataclass(slots=True, kw_only=True)
class _LengthCount:
    """Answers of one fate and one length."""

    answers: int = 0
    tokens: int = 0
    scored: int = 0
    score_sum: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthDecile:
    """A tenth of all answers, by length; fewer where many have one length."""

    shortest: int
    longest: int
    answers: Mapping[str, int]
    """By fate."""
    reward_learnt: float
    """Mean reward of those that were learnt from; NaN where none was."""
    reward_dropped: float
    """Mean reward of the others, as far as it is known; NaN where it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survivorship:
    """Answers by fate and length; the keys of lengths are their least number of tokens."""

    counts: Mapping[str, Mapping[str, _LengthCount]] = field(default_factory=dict[str, Mapping[str, _LengthCount]])

    def total(self, fates: Sequence[str] = FATES) -> _LengthCount:
        """All answers of some fates together."""
        count = _LengthCount()
        for fate in fates:
            for one in self.counts.get(fate, {}).values():
                _add(count, one)
        return count

    @property
    def length_bias_tokens(self) -> float:
        """Mean length of the answers that were learnt from minus that of all; 0 without any."""
        learnt, all_ = self.total(LEARNT), self.total()
        return learnt.tokens / learnt.answers - all_.tokens / all_.answers if learnt.answers else 0.0

    def deciles(self) -> list[LengthDecile]:
        """All answers in tenths, the shortest first. Answers of one length stay together."""
        lengths = sorted({int(length) for own in self.counts.values() for length in own})
        counts = np.array([sum(self._at(fate, length).answers for fate in FATES) for length in lengths], np.int64)
        if not counts.sum():
            return []
        middle = np.cumsum(counts) - counts / 2
        tenth = np.minimum((10 * middle / counts.sum()).astype(np.int64), 9)
        return [self._decile(np.array(lengths)[tenth == one].tolist()) for one in np.unique(tenth)]

    def _decile(self, lengths: list[int]) -> LengthDecile:
        fates = {fate: _LengthCount() for fate in FATES}
        for fate, count in fates.items():
            for length in lengths:
                _add(count, self._at(fate, length))
        return LengthDecile(
            shortest=lengths[0],
            longest=lengths[-1],
            answers={fate: count.answers for fate, count in fates.items() if count.answers},
            reward_learnt=_mean_reward([fates[fate] for fate in LEARNT]),
            reward_dropped=_mean_reward([count for fate, count in fates.items() if fate not in LEARNT]),
        )

    def _at(self, fate: str, length: int) -> _LengthCount:
        return self.counts.get(fate, {}).get(str(length), _LengthCount())

    def warnings(self) -> list[str]:
        """Sentences about a bias of the lengths beyond the bounds."""
        learnt, all_ = self.total(LEARNT), self.total()
        if not all_.answers:
            return []
        bias, mean = self.length_bias_tokens, all_.tokens / all_.answers
        lines: list[str] = []
        if abs(bias) > LENGTH_BIAS_BOUND * mean:
            dropped = [
                f"{lost.answers:,} {fate} ({lost.tokens / lost.answers:.4g} tokens on average)"
                for fate in FATES
                if fate not in LEARNT and (lost := self.total([fate])).answers
            ]
            lines.append(
                f"length bias: the answers that were learnt from have {learnt.tokens / learnt.answers:.4g} tokens on "
                f"average, all answers {mean:.4g} ({bias / mean:+.0%}); not learnt from: {', '.join(dropped)}."
            )
        cut, kept = self.total(["truncated"]), self.total(["kept"])
        if cut.answers > TRUNCATION_BOUND * all_.answers:
            by_themselves = f"of those that ended by themselves {_mean_reward([kept]):.3g}"
            lines.append(
                f"truncation: {cut.answers / all_.answers:.0%} of the answers were cut by a limit, mean reward "
                f"{_mean_reward([cut]):.3g}; {by_themselves if kept.answers else 'none ended by itself'}."
            )
        return lines


SURVIVORSHIP = RecordFile("survivorship.json", Survivorship)


@dataclass
class SurvivorshipCounts:
    """Counts while a run goes on; each fate is counted by one thread."""

    counts: dict[str, dict[int, _LengthCount]] = field(
        default_factory=lambda: {fate: dict[int, _LengthCount]() for fate in FATES}
    )

    def add(self, fate: Fate, lengths: NDArray[np.int64], score: NDArray[np.float64]) -> None:
        """Count answers `[E]` of these lengths and scores, NaN where there is none."""
        keys, place = np.unique(length_key(lengths), return_inverse=True)
        known = np.isfinite(score)
        columns = zip(
            keys.tolist(),
            np.bincount(place, minlength=len(keys)).tolist(),
            np.bincount(place, weights=lengths, minlength=len(keys)).tolist(),
            np.bincount(place, weights=known, minlength=len(keys)).tolist(),
            np.bincount(place, weights=np.where(known, score, 0.0), minlength=len(keys)).tolist(),
            strict=True,
        )
        for key, answers, tokens, scored, total in columns:
            more = _LengthCount(answers=answers, tokens=int(tokens), scored=int(scored), score_sum=total)
            _add(self.counts[fate].setdefault(key, _LengthCount()), more)

    def record(self) -> Survivorship:
        """The counts so far."""
        return Survivorship(
            counts={
                fate: {str(length): own[length] for length in sorted(own)} for fate, own in self.counts.items() if own
            }
        )

    def state(self) -> State:
        """`[lengths, 5]` of each fate: length, answers, tokens, scored answers and the sum of their scores."""
        return {
            fate: np.array(
                [[length, one.answers, one.tokens, one.scored, one.score_sum] for length, one in sorted(own.items())],
                np.float64,
            ).reshape(-1, 5)
            for fate, own in self.counts.items()
        }

    def restore(self, state: State) -> None:
        """Go on from a saved state."""
        self.counts = {
            fate: {
                int(length): _LengthCount(
                    answers=int(n), tokens=int(tokens), scored=int(scored), score_sum=float(total)
                )
                for length, n, tokens, scored, total in array(state, fate).tolist()
            }
            for fate in FATES
        }


def length_key(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """`[E]` lengths, rounded down to their leading bits."""
    bits = np.frexp(np.maximum(lengths, 1).astype(np.float64))[1].astype(np.int64)  # 1 + floor(log2)
    shift = np.maximum(bits - _EXACT_BITS, 0)
    return (lengths >> shift) << shift


def _add(found: _LengthCount, more: _LengthCount) -> None:
    found.answers += more.answers
    found.tokens += more.tokens
    found.scored += more.scored
    found.score_sum += more.score_sum


def _mean_reward(counts: Sequence[_LengthCount]) -> float:
    scored = sum(one.scored for one in counts)
    return sum(one.score_sum for one in counts) / scored if scored else float("nan")
