"""Scores of every answer of a conversation, as scores of turns that add up to the last answer's.

The first turn's score is the first answer's; each later turn's is its answer's minus that of the one before: progress.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hone.core.conversation import TranscriptBuilder
from hone.core.episodes import ScoreStatus
from hone.core.judging import ScoreBatch, Scorer, ScorerInput
from hone.core.state import State
from hone.rewards.scores import RewardScores


@dataclass(frozen=True, slots=True)
class EachAnswerTicket:
    """Answers that are being scored, of some conversations of one prompt."""

    counts: Sequence[int]
    """Answers of each conversation."""
    inner: Any
    """The scorer's own ticket of all of them."""


@dataclass
class EachAnswerScorer:
    """Implements `Scorer`: asks `scorer` about every answer as if the conversation had ended with it.

    A conversation in which one answer has no score has none.
    """

    scorer: Scorer

    def submit(self, answers: Sequence[ScorerInput]) -> EachAnswerTicket:
        parts = [part for answer in answers for part in _conversation_prefixes(answer)]
        return EachAnswerTicket([answer.transcript.turns for answer in answers], self.scorer.submit(parts))

    def gather(self, tickets: Sequence[EachAnswerTicket]) -> RewardScores:
        found = self.scorer.gather([ticket.inner for ticket in tickets])
        counts = np.array([count for ticket in tickets for count in ticket.counts], np.int64)
        return _last_scores(found, counts)

    def state(self) -> State:
        return self.scorer.state()

    def restore(self, state: State) -> None:
        self.scorer.restore(state)


def _conversation_prefixes(answer: ScorerInput) -> list[ScorerInput]:
    """The conversation as it stood after each of its answers."""
    ends = [place for place, message in enumerate(answer.messages) if message["role"] == "assistant"]
    whole = answer.transcript
    return [
        replace(
            answer,
            text=str(answer.messages[end]["content"]),
            messages=answer.messages[: end + 1],
            transcript=TranscriptBuilder(whole.prompt, whole.answers[: turn + 1], whole.environment[:turn]),
        )
        for turn, end in enumerate(ends)
    ]


def _last_scores(found: ScoreBatch, counts: np.ndarray[tuple[int], np.dtype[np.int64]]) -> RewardScores:
    """Scores of the answers of conversations of `counts` answers, one conversation after another -> a score of each
    conversation, with the scores of its turns."""
    ends = np.cumsum(counts)
    last, status, score = ends - 1, np.empty(len(counts), np.uint8), np.empty(len(counts))
    turns: dict[int, Sequence[float]] = {}
    for place, (end, count) in enumerate(zip(ends.tolist(), counts.tolist(), strict=True)):
        own = found.score[end - count : end]
        status[place] = found.status[end - count : end].max()
        score[place] = own[-1] if status[place] == ScoreStatus.SCORED else np.nan
        if status[place] == ScoreStatus.SCORED:
            turns[place] = np.diff(own, prepend=0.0).tolist()
    return RewardScores(
        score=score,
        status=status,
        reasons=("",) * len(counts),
        seconds=np.zeros(len(counts)),
        functions={name: values[last] for name, values in found.functions.items()},
        turn_scores=turns,
    )
