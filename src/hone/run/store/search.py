"""Accuracy of searches at test time by tokens, `search.json` of a run.

Belongs here: the file format.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.run.store.durable import replace_file, to_json
from hone.run.store.records import Number, read_record, record_json

SEARCH = "search.json"
ORACLE = "pass"
"""Family of the chance that one of N answers is right, which no selection exceeds."""
SINGLE = "pass:1"
"""A single answer, without a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanScore:
    """Accuracy of one plan with its 95% interval, and what it cost for each problem."""

    plan: str
    """Short form: `weighted_vote:16`."""
    family: str
    """Plans of one family differ in size: `weighted_vote`, `beam` ..."""
    mean: Number
    low: Number
    high: Number
    drawn_tokens: Number
    """Tokens sampled for each problem, those of answers that were thrown away included."""
    scored_tokens: Number
    """Tokens that the scorer's network read for each problem."""
    seconds: Number
    """Seconds for each problem, generation and scoring."""

    @property
    def tokens(self) -> float:
        """Tokens drawn and scored for each problem."""
        return self.drawn_tokens + self.scored_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRecord:
    """Searches on the same `problems`."""

    problems: int
    scorer: str
    """Name of the scorer; empty without one."""
    auc: Number
    """Chance that a right answer scores higher than a wrong one; NaN without a scorer."""
    plans: tuple[PlanScore, ...]
    notes: tuple[str, ...] = ()
    """Sentences about selecting that did worse than voting, or than fewer answers."""


def write_search(folder: Path, record: SearchRecord) -> None:
    """Write the file atomically. Raises ResourceError."""
    replace_file(folder / SEARCH, to_json(record_json(record), indent=1))


def read_search(folder: Path) -> SearchRecord | None:
    """Read the file; None without it. Raises DataError for a damaged one."""
    return read_record(SearchRecord, folder / SEARCH)


def frontier(plans: Sequence[PlanScore]) -> list[PlanScore]:
    """Plans that no other one beats with as few tokens, by rising tokens; not those that know the truth, `pass:N` of
    more than one answer."""
    known = [one for one in plans if one.family != ORACLE or one.plan == SINGLE]
    best: list[PlanScore] = []
    for plan in sorted(known, key=lambda one: (one.tokens, -one.mean)):
        if not best or plan.mean > best[-1].mean:
            best.append(plan)
    return best
