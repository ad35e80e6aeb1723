"""Text environment: prompts go to a generation session, its answers to a scorer; both come back as episodes.

Belongs here: which prompts a step asks, and how answers and scores become columns. Does not: how tokens are drawn
(`engine`), how answers are scored (`rewards`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.core.clock import Clock, SystemClock, counted
from hone.core.conversation import ConversationColumns, build_columns
from hone.core.dialogue import STOP_REASONS
from hone.core.episodes import Episodes, ScoreStatus, Transcript
from hone.core.errors import UserCodeError
from hone.core.generation import GenerationSession, Request, SamplingParams
from hone.core.judging import ScoreBatch, Scorer, ScorerInput
from hone.core.ragged import Ints, offsets_of, owner_of, ranges
from hone.core.random import permutation
from hone.core.state import State, integer, substate
from hone.models.language.tokenizers import Tokenizer
from hone.text.tasks.chat_rows import AskedRow
from hone.text.tasks.conversation import (
    NO_LIMITS,
    AnswerEffort,
    Conversation,
    ConversationLimits,
    ConversationLoop,
    SlotUse,
    TextEnvironment,
)
from hone.text.tasks.scored_rows import PromptContent
from hone.text.tasks.token_places import step_ends

_EFFORT_GROUPS: Final = 4096
"""Groups whose efforts are kept: episodes may come late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One question, ready to be asked."""

    id: str
    content: PromptContent
    """As reward functions and worlds see it: plain text stays plain where it was asked in a chat."""
    tokens: NDArray[np.int32]
    columns: Mapping[str, object]
    """Passed to the reward functions by name."""
    asked: AskedRow | None = None
    """What was encoded, and the tokenizer that is told of the row; None: `content`, and the policy's own."""

    @property
    def turns(self) -> PromptContent:
        """Text that was encoded as it is, or the messages that the chat template wrote."""
        return self.content if self.asked is None else self.asked.content

    def tokenizer(self, own: Tokenizer) -> Tokenizer:
        """The tokenizer that is told of the row; `own` where nothing is to be told."""
        return own if self.asked is None else self.asked.tokenizer


@dataclass
class TextWorld:
    """Asks `prompts_per_step` prompts, `samples` answers each, in a fresh order of the dataset every epoch.

    Implements `RolloutEnvironment` for generation sessions. Its whole state is the number of prompts asked. With
    `greedy_baseline` every prompt is answered once more, greedily: that answer's score becomes the episodes'
    `baseline`, and the answer itself is not among them.
    """

    prompts: Sequence[Prompt]
    scorer: Scorer
    decode: Callable[[NDArray[np.int32]], str]
    sampling: SamplingParams
    prompts_per_step: int
    samples: int
    seed: int
    shuffle: bool = True
    greedy_baseline: bool = False
    environment: TextEnvironment | None = None
    """Replies to answers; None: one answer is the whole conversation."""
    limits: ConversationLimits = NO_LIMITS
    """Limits of conversations."""
    forks: bool = False
    """Conversations may have several rows: episodes have `id` and `part`."""
    step_end: str = ""
    """Text that ends a step of an answer, where steps have scores; for conversations of one answer."""
    samples_of: Callable[[Prompt], int] | None = None
    """Samples of a prompt; None: `samples` of each."""
    prompts_asked: int = 0
    clock: Clock = field(default_factory=SystemClock)

    def rollout(self, session: GenerationSession) -> Episodes:
        """Return episodes in the order of the requests: prompt by prompt, sample by sample."""
        chosen = [self.prompts[row] for row in self._rows()]
        requests = self._requests(chosen)
        session.reset_stats()
        loop = ConversationLoop(
            session, requests, self.decode, environment=self.environment, limits=self.limits, clock=self.clock
        )
        tickets: list[object] = [None] * len(requests)
        for place in counted(loop.finished_groups(), "prompts answered", len(requests)):
            prompt = chosen[place % len(chosen)]
            tickets[place] = self.scorer.submit(_scorer_inputs(prompt, loop.groups[place], self.step_end))
        began = self.clock.monotonic_s()
        scores = self.scorer.gather(tickets)
        self.reward_wait_s = self.clock.monotonic_s() - began
        first = self.prompts_asked
        self.prompts_asked += len(chosen)
        self.slot_use = loop.slot_use
        self.conversations = [one for group in loop.groups[: len(chosen)] for one in group]
        for group, own in enumerate(loop.groups[: len(chosen)], first):
            self._efforts[group] = [one.effort for one in own if one.turns for _ in one.rows]
        while len(self._efforts) > max(_EFFORT_GROUPS, len(chosen)):
            del self._efforts[next(iter(self._efforts))]
        return _episodes(
            self.conversations,
            group=np.repeat(np.arange(first, first + len(chosen)), [self._samples(prompt) for prompt in chosen]),
            scores=scores,
            step_ends=self._step_ends if self.step_end else None,
            ids=first * self.samples + np.arange(len(chosen) * self.samples) if self.forks else None,
            several_turns=self.environment is not None,
        )

    def _step_ends(self, conversation: Conversation, steps: int) -> Ints:
        """`[steps]` place of each step's last token in the conversation's answer."""
        (answer,) = conversation.transcript.answers
        return step_ends(answer.tokens, self.decode, self.step_end, steps)

    def _samples(self, prompt: Prompt) -> int:
        return self.samples if self.samples_of is None else self.samples_of(prompt)

    def prompt_of(self, group: int) -> Prompt:
        """The prompt that the episodes of a group answer."""
        epoch, place = divmod(group, len(self.prompts))
        return self.prompts[int(self._order(epoch)[place])]

    def efforts(self, group: int) -> Sequence[AnswerEffort]:
        """What each row of a group's episodes took; empty for groups of long ago, and those before a resume."""
        return self._efforts.get(group, ())

    def state(self) -> State:
        return {"asked": self.prompts_asked, "judge": self.scorer.state()}

    def restore(self, state: State) -> None:
        self.prompts_asked = integer(state, "asked")
        self.scorer.restore(substate(state, "judge"))

    def _rows(self) -> list[int]:
        rows: list[int] = []
        asked = self.prompts_asked
        while len(rows) < self.prompts_per_step:
            epoch, start = divmod(asked, len(self.prompts))
            picked = self._order(epoch)[start : start + self.prompts_per_step - len(rows)].tolist()
            rows.extend(picked)
            asked += len(picked)
        return rows

    def __post_init__(self) -> None:
        self.slot_use = SlotUse()
        """Use of the session's slots by the latest rollout."""
        self.reward_wait_s = 0.0
        """Seconds that the latest rollout waited for scores after its last answer."""
        self.conversations: Sequence[Conversation] = ()
        """Conversations of the latest rollout, prompt by prompt, sample by sample."""
        self._cached_order = (-1, np.zeros(0, dtype=np.int64))
        self._efforts: dict[int, list[AnswerEffort]] = {}

    def _order(self, epoch: int) -> NDArray[np.int64]:
        """`[prompts]` the order of an epoch."""
        known, order = self._cached_order  # one value: a thread may collect while another asks for a prompt
        if known != epoch:
            shuffled = permutation(self.seed, "prompts", epoch, count=len(self.prompts)) if self.shuffle else None
            order = np.arange(len(self.prompts)) if shuffled is None else shuffled
            self._cached_order = (epoch, order)
        return order

    def _requests(self, chosen: Sequence[Prompt]) -> list[Request]:
        """The prompts in order; with `greedy_baseline` the same prompts again, for their greedy answers."""
        ids = [f"{prompt.id}#{self.prompts_asked + place}" for place, prompt in enumerate(chosen)]
        asked = list(zip(ids, chosen, strict=True))
        requests = [
            Request(id=id_, prompt=prompt.tokens, samples=self._samples(prompt), sampling=self.sampling)
            for id_, prompt in asked
        ]
        if self.greedy_baseline:
            greedy = replace(self.sampling, greedy=True, top_k=0, top_p=1.0, min_p=0.0)
            requests += [
                Request(id=f"{id_} greedy", prompt=prompt.tokens, samples=1, sampling=greedy) for id_, prompt in asked
            ]
        return requests


def _scorer_inputs(prompt: Prompt, group: Sequence[Conversation], step_end: str) -> list[ScorerInput]:
    # The last answer; empty for a conversation that ended before the first.
    answers = ((one["content"] for one in reversed(own.messages) if one["role"] == "assistant") for own in group)
    texts = [str(next(answer, "")) for answer in answers]
    return [
        ScorerInput(
            prompt=prompt.content if one.opening is None else one.opening,
            text=text,
            columns=prompt.columns,
            messages=tuple(one.messages),
            transcript=one.transcript,
            id=prompt.id,
            steps=text.count(step_end) + 1 if step_end else None,
            dialogue=one.outcome,
        )
        for text, one in zip(texts, group, strict=True)
    ]


def _episodes(
    conversations: Sequence[Conversation],
    *,
    group: NDArray[np.int64],
    scores: ScoreBatch,
    step_ends: Callable[[Conversation, int], Ints] | None,
    ids: NDArray[np.int64] | None,
    several_turns: bool,
) -> Episodes:
    """Conversations and their scores as episodes. Scores beyond the conversations are the groups' greedy baselines.
    Raises UserCodeError where no conversation began.

    A conversation that ended before its first answer has no episode. With `ids` `[conversations]` one of several rows
    is as many pieces of one id; only the last of them has ended.
    """
    count = len(conversations)
    answered = [place for place in range(count) if conversations[place].turns]
    rows = [conversations[place].rows for place in answered]
    if not rows:
        reasons = dict.fromkeys(one.outcome.reason for one in conversations if one.outcome is not None)
        raise UserCodeError(f"none of {len(conversations)} dialogues could begin", *list(reasons)[:3])
    columns = build_columns([row for own in rows for row in own])
    pieces = np.array([len(own) for own in rows], np.int64)
    of = np.repeat(np.array(answered, np.int64), pieces)
    last = np.zeros(len(of), np.bool_)
    last[np.cumsum(pieces) - 1] = True
    # Offsets of whole conversations; those that were not answered are empty.
    per = np.zeros(count, np.int64)
    per[np.array(answered, np.int64)] = pieces
    edges = offsets_of(per)
    whole = replace(columns, offsets=columns.offsets[edges], turn_offsets=columns.turn_offsets[edges])
    stops = np.array([STOP_REASONS.index(one.stop or "done") for one in conversations], np.uint8)[of]
    greedy = np.where(scores.status[count:] == ScoreStatus.SCORED, scores.score[count:], np.nan)
    return Episodes(
        offsets=columns.offsets,
        seen=columns.transcript,
        chosen=columns.chosen,
        logp=columns.logp,
        version=columns.version,
        reward=_rewards(conversations, whole, scores, step_ends),
        group=group[of],
        terminated=~columns.truncated & last,
        truncated=columns.truncated & last,
        score=(scores.score[:count] + [sum(one.rewards) for one in conversations])[of],
        status=scores.status[:count][of],
        components=np.stack([values[:count][of] for values in scores.functions.values()], axis=1),
        baseline=np.repeat(greedy, count // len(greedy))[of] if len(greedy) else None,
        id=None if ids is None else ids[of],
        part=None if ids is None else ranges(np.zeros_like(pieces), pieces),
        turn=columns.turn if several_turns else None,
        stop=stops if any(one.outcome is not None for one in conversations) else None,
    )


def _rewards(
    conversations: Sequence[Conversation],
    columns: ConversationColumns,
    scores: ScoreBatch,
    step_ends: Callable[[Conversation, int], Ints] | None,
) -> NDArray[np.float32]:
    """`[N]`: scores of turns or steps and the environment's rewards at the last decision of each, else the score at the
    last one."""
    count, reward = len(conversations), np.zeros(columns.offsets[-1], dtype=np.float32)
    paid = (scores.status[:count] == ScoreStatus.SCORED) & (np.diff(columns.offsets) > 0)
    reward[columns.offsets[1:][paid] - 1] = scores.score[:count][paid]
    for place in np.flatnonzero(paid).tolist():
        turns, extra = scores.turn_scores.get(place), conversations[place].rewards
        ends = columns.turn_ends[columns.turn_offsets[place] : columns.turn_offsets[place + 1]]
        if turns is not None and step_ends is not None:
            reward[ends[-1]] = 0.0
            steps = columns.offsets[place] + step_ends(conversations[place], len(turns))
            np.add.at(reward, steps, np.array(turns, np.float32))
        elif turns is not None:
            reward[ends] = turns
        if extra:
            reward[ends[: len(extra)]] += np.array(extra, np.float32)
    return reward


def supervised_episodes(prompts: Sequence[NDArray[np.int32]], completions: Sequence[NDArray[np.int32]]) -> Episodes:
    """Examples to imitate, as episodes of a log: each completion token is a decision that was worth 1.

    An example without a prompt (plain text) is seen from its first token on and imitated from the second.
    """
    asked = np.array([max(len(prompt), 1) for prompt in prompts], dtype=np.int64)
    whole = [np.concatenate(pair) for pair in zip(prompts, completions, strict=True)]
    total = np.array([len(tokens) for tokens in whole], dtype=np.int64)
    starts, offsets = offsets_of(total), offsets_of(total - asked)
    tokens = np.concatenate(whole).astype(np.int32)
    at = ranges(starts[:-1] + asked, total - asked)
    count = len(at)
    return Episodes(
        offsets=offsets,
        seen=Transcript(tokens=tokens, offsets=starts, at=at),
        chosen=tokens[at],
        logp=np.full(count, np.nan, dtype=np.float32),
        version=np.zeros(count, dtype=np.int32),
        reward=np.ones(count, dtype=np.float32),
        group=np.arange(len(whole), dtype=np.int64),
        terminated=np.ones(len(whole), dtype=np.bool_),
        truncated=np.zeros(len(whole), dtype=np.bool_),
        score=np.bincount(owner_of(offsets), minlength=len(whole)).astype(np.float64),
    )
