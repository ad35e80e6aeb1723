"""The scorer of answers by all rewards of a config: a weighted sum, each reward's own scores, a limit of missing ones.

Belongs here: rewards as members of one kind of interface, and the functions among them. Models and servers, which need
other parts of hone, implement `RewardMember` where they are wired.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hone.core.conversation import TranscriptBuilder
from hone.core.credit import Metrics
from hone.core.episodes import ScoreStatus
from hone.core.judging import DatasetRow, ScoreBatch, Scorer, ScorerInput
from hone.core.state import State, substate
from hone.rewards.config import RewardsConfig, UserCodeConfig
from hone.rewards.score_watch import UnscoredBudget
from hone.rewards.scores import RewardResult, RewardScores, combine_results
from hone.rewards.workers import RewardBatch


class RewardMember(ABC):
    """One reward, or all functions: scores answers in its own way."""

    def check(self, columns: Collection[str], rows: Sequence[DatasetRow] = ()) -> Sequence[str]:
        """Return warnings; raise HoneError where it cannot score the answers of a dataset with these columns and
        rows."""
        del columns, rows
        return []

    def write_protect(self, folder: Path) -> None:
        """Keep code of the user's from writing into a folder; called before the first answers."""
        del folder

    @abstractmethod
    def submit(self, answers: Sequence[ScorerInput]) -> Any:  # noqa: ANN401 - a ticket of its own kind
        """Begin to score the answers to one prompt; returns at once."""

    def notices(self) -> list[str]:
        """Notices for the user since the last call."""
        return []

    @abstractmethod
    def results(self, tickets: Sequence[Any]) -> tuple[Sequence[Sequence[RewardResult]], Sequence[str]]:
        """Wait for all tickets: the results of each of its rewards in their order, and tracebacks of new errors."""

    def metrics(self) -> Metrics:
        """Metrics of its latest answers."""
        return {}

    def close(self) -> None:  # noqa: B027 - many start nothing
        """Stop scoring, and end what it started."""


class MeasuredMember(RewardMember):
    """A reward that measures itself, with a state that a resume needs."""

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        del state


@dataclass(frozen=True, slots=True)
class _ScorerTicket:
    """Answers to one prompt that are being scored."""

    ids: Sequence[str]
    """Name of each answer's prompt."""
    members: Sequence[Any]
    """Each member's own ticket."""


@dataclass
class RewardScorer:
    """Scorer by all rewards of a config, with a limit of unscored answers."""

    config: RewardsConfig
    limits: UserCodeConfig
    """Limits of the functions among the rewards."""
    members: Sequence[tuple[Sequence[int], RewardMember]]
    """Members, and the places in `config.functions` of their rewards."""
    budget: UnscoredBudget
    pending_notes: list[str] = field(default_factory=list[str])
    measured: Mapping[str, MeasuredMember] = field(default_factory=dict[str, MeasuredMember])
    """The members that measure themselves (judges, several models), by the names of their scores."""

    def check(self, columns: Collection[str], rows: Sequence[DatasetRow] = ()) -> list[str]:
        """Return warnings; raise HoneError where a reward cannot score the answers of a dataset with these columns and
        rows."""
        return [warning for _, member in self.members for warning in member.check(columns, rows)]

    def write_protect(self, folder: Path) -> None:
        """Keep reward functions from writing into a folder; call it before the first answers."""
        for _, member in self.members:
            member.write_protect(folder)

    def submit(self, answers: Sequence[ScorerInput]) -> _ScorerTicket:
        """Begin to score the answers to one prompt."""
        return _ScorerTicket([one.id for one in answers], [member.submit(answers) for _, member in self.members])

    def gather(self, tickets: Sequence[_ScorerTicket]) -> RewardScores:
        """Wait for the scores of all tickets, in their order."""
        columns: list[Sequence[RewardResult]] = [()] * len(self.config.functions)
        tracebacks: list[str] = []
        for number, (places, member) in enumerate(self.members):
            results, errors = member.results([ticket.members[number] for ticket in tickets])
            tracebacks.extend(errors)
            for place, column in zip(places, results, strict=True):
                columns[place] = column
        weights = [reward.weight for reward in self.config.functions]
        scores = combine_results(
            dict(zip(self.config.names, columns, strict=True)),
            weights,
            tracebacks=tracebacks,
            max_abs_score=self.limits.max_abs_score,
            ids=[id_ for ticket in tickets for id_ in ticket.ids],
        )
        self.pending_notes.extend(
            f"a reward function failed; equal errors are not shown again: {text}" for text in tracebacks
        )
        self.budget.observe(scores)
        return scores

    def metrics(self) -> Metrics:
        """Metrics of the members that measure themselves, and what functions recorded."""
        return {key: value for _, member in self.members for key, value in member.metrics().items()}

    def state(self) -> State:
        judges: State = {name: member.state() for name, member in self.measured.items()}
        return {**self.budget.state(), **({"judges": judges} if judges else {})}

    def restore(self, state: State) -> None:
        self.budget.restore(state)
        for name, member in self.measured.items():
            member.restore(substate(substate(state, "judges"), name))

    def notes(self) -> list[str]:
        """Tracebacks of the reward functions' errors, each distinct one once, and notices of the members."""
        notes, self.pending_notes = self.pending_notes, []
        return [*notes, *(notice for _, member in self.members for notice in member.notices())]

    def close(self) -> None:
        """End processes and requests; scores not gathered by now are lost."""
        for _, member in self.members:
            member.close()


def reward_batch(answers: Sequence[ScorerInput]) -> RewardBatch:
    """The answers to one prompt, as functions and servers are sent them."""
    chat = not isinstance(answers[0].prompt, str)
    return RewardBatch(
        prompts=[answer.prompt for answer in answers],
        completions=[[{"role": "assistant", "content": one.text}] if chat else one.text for one in answers],
        columns={name: [answer.columns[name] for answer in answers] for name in answers[0].columns},
        groups=[0] * len(answers),  # all answers have the same prompt
        conversation={
            "messages": lambda: [list(answer.messages) for answer in answers],
            "tokens": lambda: [answer.tokens for answer in answers],
        },
        ids=[answer.id for answer in answers],
        turns=[answer.turns for answer in answers],
        unit="turn" if answers[0].steps is None else "step",
    )


# ---------------------------------------------------------------------------------------------------------- each answer
# Scores of every answer of a conversation, as scores of turns that add up to the last answer's.
#
# The first turn's score is the first answer's; each later turn's is its answer's minus that of the one before:
# progress.
@dataclass(frozen=True, slots=True)
class _EachAnswerTicket:
    """Answers that are being scored, of some conversations of one prompt."""

    counts: Sequence[int]
    """Answers of each conversation."""
    inner: Any
    """The scorer's own ticket of all of them."""


@dataclass
class EachAnswerScorer:
    """Implements `Scorer`: asks `scorer` about every answer as if the conversation had ended with it. A conversation in
    which one answer has no score has none."""

    scorer: Scorer

    def submit(self, answers: Sequence[ScorerInput]) -> _EachAnswerTicket:
        parts = [part for answer in answers for part in _conversation_prefixes(answer)]
        return _EachAnswerTicket([answer.transcript.turns for answer in answers], self.scorer.submit(parts))

    def gather(self, tickets: Sequence[_EachAnswerTicket]) -> RewardScores:
        scores = self.scorer.gather([ticket.inner for ticket in tickets])
        counts = np.array([count for ticket in tickets for count in ticket.counts], np.int64)
        return _last_scores(scores, counts)

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
