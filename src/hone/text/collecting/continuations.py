"""Labels of steps without people: from each step's end the policy goes on, k times, and the share that ends well is the
step's label (Math-Shepherd, Wang et al., 2024).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from hone.core.conversation import TranscriptBuilder
from hone.core.credit import Metrics
from hone.core.episodes import Episodes, ScoreStatus
from hone.core.errors import DataError
from hone.core.generation import Completion, GenerationSession, Request
from hone.core.judging import ScorerInput
from hone.core.state import State
from hone.text.tasks.conversation import ConversationLoop
from hone.text.tasks.token_places import separator_ends
from hone.text.tasks.world import Prompt, TextWorld

_SHOWN = 3
"""Answers shown where no step ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Prefix:
    """A question and the first steps of an answer, from which the policy goes on."""

    prompt: Prompt
    first: Completion
    """The answer's tokens so far, as they were drawn."""
    request: Request


@dataclass
class StepContinuations:
    """Environment of a text task whose rewards are labels of steps.

    `reward[n]` is the label of the step that ends at decision n: the share of `continuations` from there whose score is
    at least `min_score`, of those that have a score. At an answer's last token it is 1 or 0, by the answer's own score;
    elsewhere NaN. Equal beginnings of answers to one prompt are continued once.
    """

    world: TextWorld
    separator: str
    continuations: int
    max_steps: int
    min_score: float
    last_metrics: Metrics = field(default_factory=dict[str, float])

    def rollout(self, session: GenerationSession) -> Episodes:
        """Answer prompts, then continue from the end of each step. Raises DataError if no answer has a separator."""
        episodes = self.world.rollout(session)
        texts = [self.world.decode(_own(episodes, place, episodes.chosen)) for place in range(len(episodes))]
        if not any(self.separator in text for text in texts):
            raise DataError(
                f"collect.separator = {self.separator!r} ends no step of {len(texts)} answers, such as "
                f"{', '.join(map(repr, texts[:_SHOWN]))}; set the separator that the policy writes, or "
                'collect.continue_from = "none"'
            )
        ends = [self._step_ends(episodes, place) for place in range(len(episodes))]
        prefixes: dict[bytes, _Prefix] = {}
        places: list[tuple[int, bytes]] = []
        for place, own in enumerate(ends):
            for end in own[: self.max_steps]:
                name, prefix = self._prefix(episodes, place, end)
                prefixes.setdefault(name, prefix)
                places.append((int(episodes.offsets[place]) + end, name))
        shares = dict(zip(prefixes, self._shares(session, list(prefixes.values())), strict=True))
        reward = np.full(episodes.decisions, np.nan, np.float32)
        own_score = np.where(episodes.scored, episodes.score >= self.min_score, np.nan)
        reward[episodes.offsets[1:] - 1] = own_score
        for at, name in places:
            reward[at] = shares[name]
        self.last_metrics |= {"collect/steps": float(len(places)), "collect/prefixes": float(len(prefixes))}
        return replace(episodes, reward=reward)

    def pop_metrics(self) -> Metrics:
        """Counts of the latest rollout; then forget."""
        metrics, self.last_metrics = self.last_metrics, {}
        return metrics

    def state(self) -> State:
        return self.world.state()

    def restore(self, state: State) -> None:
        self.world.restore(state)

    def _step_ends(self, episodes: Episodes, place: int) -> list[int]:
        """Decisions of an answer that complete a separator; its last decision is not among them."""
        tokens = _own(episodes, place, episodes.chosen)
        ends = separator_ends(tokens, self.world.decode, self.separator)
        return [one for one in dict.fromkeys(ends) if one < len(tokens) - 1]

    def _prefix(self, episodes: Episodes, place: int, end: int) -> tuple[bytes, _Prefix]:
        begin = int(episodes.transcript.offsets[place])
        at = int(episodes.transcript.at[episodes.offsets[place] + end])
        tokens = episodes.transcript.tokens[begin : at + 1]
        group = int(episodes.group[place])
        prompt = self.world.prompt_of(group)
        drawn = slice(0, end + 1)
        logp = _own(episodes, place, episodes.logp)[drawn]
        first = Completion(
            request_id=prompt.id,
            sample_index=0,
            tokens=_own(episodes, place, episodes.chosen)[drawn].astype(np.int32),
            logp=logp,
            sampled_logp=logp,
            version=_own(episodes, place, episodes.version)[drawn],
            finish_reason="stop",
        )
        left = replace(self.world.sampling, max_tokens=self.world.sampling.max_tokens - end - 1)
        request = Request(
            id=f"{prompt.id}#{group} after {blake2b(tokens.tobytes(), digest_size=16).hexdigest()}",
            prompt=tokens,
            samples=self.continuations,
            sampling=left,
        )
        return group.to_bytes(8, "little") + tokens.tobytes(), _Prefix(prompt=prompt, first=first, request=request)

    def _shares(self, session: GenerationSession, prefixes: Sequence[_Prefix]) -> list[float]:
        """The share of good continuations of each prefix; NaN where none has a score."""
        if not prefixes:
            return []
        loop = ConversationLoop(session, [prefix.request for prefix in prefixes], self.world.decode)
        tickets: list[object] = [None] * len(prefixes)
        drawn = 0
        for place in loop.finished_groups():
            answers = [conversation.transcript.answers[0] for conversation in loop.groups[place]]
            drawn += sum(len(answer.tokens) for answer in answers)
            tickets[place] = self.world.scorer.submit([self._answer(prefixes[place], one) for one in answers])
        scores = self.world.scorer.gather(tickets)
        good = np.where(scores.status == ScoreStatus.SCORED, scores.score >= self.min_score, np.nan)
        by_prefix = good.reshape(len(prefixes), self.continuations)
        counted = (~np.isnan(by_prefix)).sum(axis=1)
        self.last_metrics = {
            "collect/continuation_tokens": float(drawn),
            "collect/continuations_unscored": float(np.isnan(by_prefix).mean()),
        }
        none = np.full(len(prefixes), np.nan)
        return np.divide(np.nansum(by_prefix, axis=1), counted, out=none, where=counted > 0).tolist()

    def _answer(self, prefix: _Prefix, rest: Completion) -> ScorerInput:
        """The whole answer, as a reward sees it."""
        first = prefix.first
        whole = replace(
            rest,
            tokens=np.concatenate([first.tokens, rest.tokens]),
            logp=np.concatenate([first.logp, rest.logp]),
            sampled_logp=np.concatenate([first.sampled_logp, rest.sampled_logp]),
            version=np.concatenate([first.version, rest.version]),
            sampling_mask=None,
        )
        transcript = TranscriptBuilder(prefix.prompt.tokens)
        transcript.append_sampled(whole)
        text = whole.text(self.world.decode)
        return ScorerInput(
            prompt=prefix.prompt.content,
            text=text,
            columns=prefix.prompt.columns,
            messages=({"role": "assistant", "content": text},),
            transcript=transcript,
            id=prefix.prompt.id,
        )


def _own(episodes: Episodes, place: int, column: NDArray[np.generic]) -> NDArray:
    """The part of a column that belongs to an episode."""
    return column[episodes.offsets[place] : episodes.offsets[place + 1]]
