"""Rewriting of collected answers before they are saved: reflections before an expert's turns, and revised answers.

A reflection tells what the branches at an expert's state led to; a user's function writes it from the state, the tried
turns with the world's answers, and the expert's turn (self-reflection; Zhang et al., Agent Learning via Early
Experience, 2025, 2510.08558).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hone.core.conversation import Turn, split_turns
from hone.core.episodes import ScoreStatus
from hone.core.errors import DataError
from hone.models.language.tokenizers import Tokenizer, answer_end
from hone.rewards.solutions import run_on_rows
from hone.text.evaluate.judges.revise import AnswerReviser, AnswerRevision
from hone.text.experience import UserFunction
from hone.text.tasks.collection import CollectedAnswer

KIND = "reflecting function"


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """A state of an expert's dialogue, and what was tried there."""

    expert: CollectedAnswer
    begin: int
    """Position of the expert's turn in its dialogue."""
    end: int
    """Position after it."""
    tried: tuple[tuple[str, str], ...]
    """Turns that the policy tried, and the world's answers."""


@dataclass
class BranchReflections:
    """Adds to the dialogues of a step the expert's turns with a thought before each.

    The thought and the turn are one answer, with the expert's score; what stood before them is its question. Equal
    tries are told once. A thought of None leaves a state out.
    """

    function: UserFunction
    tokenizer: Tokenizer
    _notes: list[str] = field(default_factory=list[str])

    def __call__(self, rows: Sequence[CollectedAnswer]) -> list[CollectedAnswer]:
        """The rows, and the reflections behind them. Raises UserCodeError of the user's function."""
        states = self._states(rows)
        if not states:
            return list(rows)
        asked = [self._question(state) for state in states]
        thoughts = run_on_rows(
            self.function.use, asked, deadline_s=self.function.deadline_s, kind=KIND,
            deadline_key="collect.reflect.deadline_s", may_be_none=True,
        )  # fmt: skip
        largest = max(row.sample for row in rows) + 1
        pairs = [(state, thought) for state, thought in zip(states, thoughts, strict=True) if thought is not None]
        added = [self._row(state, thought, largest + place) for place, (state, thought) in enumerate(pairs)]
        return [*rows, *added]

    def _states(self, rows: Sequence[CollectedAnswer]) -> list[_State]:
        groups: dict[int, list[CollectedAnswer]] = {}
        for row in rows:
            groups.setdefault(row.group, []).append(row)
        return [state for group in groups.values() for state in self._states_of(group)]

    def _states_of(self, group: Sequence[CollectedAnswer]) -> list[_State]:
        """States of the expert's dialogue of a group; none where it has no score."""
        expert = next((row for row in group if row.sample == 0), None)
        if expert is None or expert.score is None:
            return []
        states: list[_State] = []
        places = np.array(expert.at, np.int64)
        turns = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
        for begin, end in [(int(piece[0]), int(piece[-1]) + 1) for piece in turns if len(piece)]:
            tried: dict[tuple[str, str], None] = {}
            for row in group:
                if row is not expert and _branches_at(row, expert, begin):
                    own = self._turns(row, begin)
                    tried.setdefault((own[0][1], own[1][1] if len(own) > 1 else ""))
            if tried:
                states.append(_State(expert=expert, begin=begin, end=end, tried=tuple(tried)))
        return states

    def _turns(self, row: CollectedAnswer, begin: int) -> tuple[Turn, ...]:
        """Turns from a position on, the first one the policy's."""
        at = np.array([place for place in row.at if place >= begin], np.int64)
        return split_turns(np.array(row.tokens, np.int32), at, self.tokenizer.decode)

    def _question(self, state: _State) -> dict[str, Any]:
        return {
            **json.loads(state.expert.columns),
            "state": self._text(state.expert.tokens[: state.begin]),
            "tried": list(state.tried),
            "expert": self._text(state.expert.tokens[state.begin : state.end]),
        }

    def _row(self, state: _State, thought: str, sample: int) -> CollectedAnswer:
        expert, before = state.expert, list(state.expert.tokens[: state.begin])
        answer = [*self.tokenizer.encode(thought).tolist(), *expert.tokens[state.begin : state.end]]
        size, first = len(answer), expert.at[0] == state.begin
        return replace(
            expert,
            id=expert.id if first else f"{expert.id} after {state.begin} tokens",
            prompt=expert.prompt if first else json.dumps(self._text(before)),
            sample=sample,
            completion=self._text(answer),
            tokens=[*before, *answer],
            at=list(range(len(before), len(before) + size)),
            logp=[float("nan")] * size,
            version=[0] * size,
            truncated=False,
        )

    def _text(self, tokens: Sequence[int]) -> str:
        return self.tokenizer.decode(np.array(tokens, np.int32))


def _branches_at(row: CollectedAnswer, expert: CollectedAnswer, begin: int) -> bool:
    """True if a dialogue is the expert's up to a position, and drawn from there on."""
    if list(row.tokens[:begin]) != list(expert.tokens[:begin]) or begin not in row.at:
        return False
    return not np.isnan(row.logp[list(row.at).index(begin)])


# ------------------------------------------------------------------------------------------------------ revised answers


_SHOWN = 2


@dataclass
class CollectionReviser:
    """Turns the answers of a step into drafts and revisions. Answers that were not changed keep their place and have no
    score."""

    reviser: AnswerReviser
    tokenizer: Tokenizer
    in_chat: bool = False
    """Plain prompts were asked in the chat template."""
    _notes: list[str] = field(default_factory=list[str])

    def __call__(self, rows: Sequence[CollectedAnswer]) -> list[CollectedAnswer]:
        """Drafts, then their revisions. Raises LostResourceError where the budget is spent."""
        drafts = [
            AnswerRevision(
                id=f"{row.id}#{row.group}#{row.sample}", prompt=json.loads(row.prompt), answer=row.completion
            )
            for row in rows
        ]
        answers: list[CollectedAnswer] = []
        added: list[CollectedAnswer] = []
        faults: list[str] = []
        largest = max((row.sample for row in rows), default=0) + 1
        for row, revision in zip(rows, self.reviser.revise(drafts), strict=True):
            own = None if revision.preference_row() is None else self._revised(row, revision.revised, largest, faults)
            faults += [revision.fault] if revision.fault else []
            added += [] if own is None else [own]
            score, status = (None, ScoreStatus.UNSCORABLE) if own is None else (0.0, ScoreStatus.SCORED)
            answers.append(replace(row, score=score, status=status.name.lower(), labels=None))
        if faults:
            shown = "; ".join(dict.fromkeys(faults[:_SHOWN]))
            self._notes.append(f"{len(faults)} of {len(rows)} answers were not revised to the end: {shown}")
        return [*answers, *added]

    def notes(self) -> list[str]:
        """Notices since the last call."""
        notes, self._notes = self._notes, []
        return [*notes, *self.reviser.client.notices()]

    def _revised(self, row: CollectedAnswer, text: str, samples: int, faults: list[str]) -> CollectedAnswer | None:
        """The revision as an answer of its own, with the end token that a finished answer has."""
        try:
            is_chat = self.in_chat or not isinstance(json.loads(row.prompt), str)
            tokens = [*self.tokenizer.encode(text).tolist(), answer_end(self.tokenizer, is_chat=is_chat)]
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
