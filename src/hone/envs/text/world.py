"""The text world: prompts are asked, an engine answers, rewards judge; the answers come back as episodes.

Belongs here: which prompts a step asks, and how answers and scores become columns. Does not: how tokens are drawn
(`engine`), what an answer is worth (`rewards`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Episodes, ScoreStatus, Transcript
from hone.core.generation import Completion, Generator, Request, SamplingParams
from hone.core.ragged import concatenate_rows, empty_rows, offsets_of, owner_of, ranges
from hone.core.random import permutation
from hone.core.state import State, integer, substate
from hone.envs.text.dataset import PromptContent


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One question, ready to be asked."""

    id: str
    content: PromptContent
    tokens: NDArray[np.int32]
    columns: Mapping[str, object]
    """Passed to the reward functions by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerInput:
    """What is to be scored."""

    prompt: PromptContent
    text: str
    columns: Mapping[str, object]


class ScoreBatch(Protocol):
    """Scores of some answers, in their order."""

    @property
    def score(self) -> NDArray[np.float64]: ...

    @property
    def status(self) -> NDArray[np.uint8]: ...

    @property
    def functions(self) -> Mapping[str, NDArray[np.float64]]:
        """Each reward function's own scores, unweighted; NaN where it gave none."""
        ...


class Scorer(Protocol):
    """Scores answers; `submit` returns at once, so that scoring runs while other answers are still being written."""

    def submit(self, answers: Sequence[ScorerInput]) -> object:
        """A ticket for the scores of `answers`, which all answer one prompt."""
        ...

    def gather(self, tickets: Sequence[Any]) -> ScoreBatch:
        """Wait for the scores of all tickets, in their order."""
        ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


@dataclass
class TextWorld:
    """Asks `prompts_per_step` prompts, `samples` answers each, in a fresh order of the dataset every epoch.

    Implements `train.World` for actors that can `generate`. Its whole state is how many prompts were asked. With
    `baseline` every prompt is answered once more, greedily: that answer's score becomes the episodes' `baseline`, and
    the answer itself is not among them.
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
    prompts_asked: int = 0

    def rollout(self, actor: Generator) -> Episodes:
        """Episodes in the order asked: prompt by prompt, sample by sample, whatever order they finished in."""
        chosen = [self.prompts[row] for row in self._rows()]
        requests = self._requests(chosen)
        places = {request.id: place for place, request in enumerate(requests)}
        groups: list[list[Completion]] = [[] for _ in requests]
        tickets: list[object] = [None] * len(requests)
        for completion in actor.generate(requests):
            place = places[completion.request_id]
            groups[place].append(completion)
            if len(groups[place]) == requests[place].samples:
                groups[place].sort(key=lambda one: one.sample_index)
                tickets[place] = self.scorer.submit(self._scorer_inputs(chosen[place % len(chosen)], groups[place]))
        judgement = self.scorer.gather(tickets)
        first = self.prompts_asked
        self.prompts_asked += len(chosen)
        return _episodes(
            prompts=[prompt.tokens for prompt in chosen for _ in range(self.samples)],
            completions=[completion for group in groups[: len(chosen)] for completion in group],
            group=np.repeat(np.arange(first, first + len(chosen)), self.samples),
            judgement=judgement,
        )

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
            order = (
                permutation(self.seed, "prompts", epoch, count=len(self.prompts))
                if self.shuffle
                else np.arange(len(self.prompts))
            )
            picked = order[start : start + self.prompts_per_step - len(rows)].tolist()
            rows.extend(picked)
            asked += len(picked)
        return rows

    def _requests(self, chosen: Sequence[Prompt]) -> list[Request]:
        """The prompts in order; then, with `baseline`, the same prompts in the same order for their greedy answers."""
        ids = [f"{prompt.id}#{self.prompts_asked + place}" for place, prompt in enumerate(chosen)]
        asked = list(zip(ids, chosen, strict=True))
        requests = [
            Request(id=id_, prompt=prompt.tokens, samples=self.samples, sampling=self.sampling) for id_, prompt in asked
        ]
        if self.greedy_baseline:
            greedy = replace(self.sampling, greedy=True, top_k=0, top_p=1.0, min_p=0.0)
            requests += [
                Request(id=f"{id_} greedy", prompt=prompt.tokens, samples=1, sampling=greedy) for id_, prompt in asked
            ]
        return requests

    def _scorer_inputs(self, prompt: Prompt, group: Sequence[Completion]) -> list[ScorerInput]:
        return [ScorerInput(prompt=prompt.content, text=one.text(self.decode), columns=prompt.columns) for one in group]


def _episodes(
    *,
    prompts: Sequence[NDArray[np.int32]],
    completions: Sequence[Completion],
    group: NDArray[np.int64],
    judgement: ScoreBatch,
) -> Episodes:
    """The score is paid at the last decision; a completion that ran into its limit is truncated.

    What was judged beyond the completions are the groups' greedy answers, one each.
    """
    count = len(completions)
    score, status = judgement.score[:count], judgement.status[:count]
    greedy = np.where(judgement.status[count:] == ScoreStatus.SCORED, judgement.score[count:], np.nan)
    said = np.array([len(completion.tokens) for completion in completions], dtype=np.int64)
    asked = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
    offsets, starts = offsets_of(said), offsets_of(asked + said)
    pieces = [piece for pair in zip(prompts, (one.tokens for one in completions), strict=True) for piece in pair]
    reward = np.zeros(offsets[-1], dtype=np.float32)
    reward[offsets[1:] - 1] = np.where(status == ScoreStatus.SCORED, score, 0.0)
    truncated = np.array([completion.finish_reason == "length" for completion in completions])
    return Episodes(
        offsets=offsets,
        seen=Transcript(
            tokens=np.concatenate(pieces).astype(np.int32),
            offsets=starts,
            at=ranges(starts[:-1] + asked, said),
            kept=concatenate_rows([one.sampling_mask or empty_rows(len(one.tokens)) for one in completions])
            if any(one.sampling_mask is not None for one in completions)
            else None,
        ),
        chosen=np.concatenate([completion.tokens for completion in completions]),
        # Where some tokens were left out, the policy is what is left: the trainer draws the same line.
        logp=np.concatenate([one.logp if one.sampling_mask is None else one.sampled_logp for one in completions]),
        version=np.concatenate([completion.version for completion in completions]),
        reward=reward,
        group=group,
        terminated=~truncated,
        truncated=truncated,
        final=None,
        score=score,
        status=status,
        components=np.stack([values[:count] for values in judgement.functions.values()], axis=1),
        baseline=np.repeat(greedy, count // len(greedy)) if len(greedy) else None,
    )


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
        final=None,
        score=np.bincount(owner_of(offsets), minlength=len(whole)).astype(np.float64),
        status=np.zeros(len(whole), dtype=np.uint8),
    )
