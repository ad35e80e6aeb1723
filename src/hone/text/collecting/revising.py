"""Revised answers of a collection: each draft with score 0 beside its constitutional revision with score 1."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hone.core.episodes import ScoreStatus
from hone.core.errors import DataError
from hone.models.language.tokenizers import Tokenizer
from hone.text.evaluate.judges.revise import AnswerReviser, AnswerRevision
from hone.text.tasks.collection import CollectedAnswer

_SHOWN = 2


@dataclass
class CollectionReviser:
    """Turns the answers of a step into drafts and revisions. Answers that were not changed keep their place and have no
    score."""

    reviser: AnswerReviser
    tokenizer: Tokenizer
    _notes: list[str] = field(default_factory=list[str])

    def __call__(self, rows: Sequence[CollectedAnswer]) -> list[CollectedAnswer]:
        """Drafts, then their revisions. Raises LostResourceError where the budget is spent."""
        drafts = [
            AnswerRevision(
                id=f"{row.id}#{row.group}#{row.sample}", prompt=json.loads(row.prompt), answer=row.completion
            )
            for row in rows
        ]
        found: list[CollectedAnswer] = []
        added: list[CollectedAnswer] = []
        faults: list[str] = []
        largest = max((row.sample for row in rows), default=0) + 1
        for row, revision in zip(rows, self.reviser.revise(drafts), strict=True):
            own = None if revision.preference_row() is None else self._revised(row, revision.revised, largest, faults)
            faults += [revision.fault] if revision.fault else []
            added += [] if own is None else [own]
            score, status = (None, ScoreStatus.UNSCORABLE) if own is None else (0.0, ScoreStatus.SCORED)
            found.append(replace(row, score=score, status=status.name.lower(), labels=None))
        if faults:
            shown = "; ".join(dict.fromkeys(faults[:_SHOWN]))
            self._notes.append(f"{len(faults)} of {len(rows)} answers were not revised to the end: {shown}")
        return [*found, *added]

    def notes(self) -> list[str]:
        """Notices since the last call."""
        notes, self._notes = self._notes, []
        return [*notes, *self.reviser.client.notices()]

    def _revised(self, row: CollectedAnswer, text: str, samples: int, faults: list[str]) -> CollectedAnswer | None:
        """The revision as an answer of its own, with the end token that a finished answer has."""
        try:
            tokens = [*self.tokenizer.encode(text).tolist(), self.tokenizer.eos_id]
        except DataError as error:
            faults.append(str(error))
            return None
        prompt = list(row.tokens[: row.at[0]])
        return replace(
            row,
            sample=row.sample + samples,
            completion=text,
            tokens=[*prompt, *tokens],
            at=list(range(len(prompt), len(prompt) + len(tokens))),
            logp=np.full(len(tokens), np.nan).tolist(),
            version=[-1] * len(tokens),
            score=1.0,
            status=ScoreStatus.SCORED.name.lower(),
            rewards={},
            truncated=False,
            labels=None,
        )
