"""Scorers of search candidates: reward models by token ids, verifiers by text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hone.core.conversation import TranscriptBuilder
from hone.core.episodes import ScoreStatus
from hone.core.errors import DataError
from hone.core.generation import Completion, Request
from hone.core.judging import Scorer, ScorerInput
from hone.core.ragged import Ints
from hone.text.search.searching import Candidate, CandidateScores
from hone.text.tasks.step_rewards import separator_ends
from hone.text.tasks.world import Prompt

Decode: TypeAlias = Callable[[NDArray[np.int32]], str]
AGGREGATES: Mapping[str, Callable[[NDArray[np.float64]], float]] = {
    "weakest": lambda chances: float(chances.min()),
    "product": lambda chances: float(chances.prod()),
    "last": lambda chances: float(chances[-1]),
}
"""Probabilities of an answer's steps -> its score."""


class ScalarScorer(Protocol):
    """What is asked of a scalar-head model: see `models.language.scalar_head.ScalarHeadModel`."""

    def score_tokens(
        self, sequences: Sequence[NDArray[np.int32]], at: Sequence[Ints], *, micro_batch_tokens: int
    ) -> NDArray[np.float64]: ...


@dataclass(frozen=True, kw_only=True)
class ModelCandidateScorer:
    """A reward model as scorer: sigmoid of its number at the last token, or over the ends of steps, aggregated.

    A model of steps is asked at the end of every step and at the last token, where an answer says that it is finished.
    """

    model: ScalarScorer
    decode: Decode
    step: str | None
    """Text that ends a step; None for a model of whole sequences."""
    aggregate: Callable[[NDArray[np.float64]], float] = AGGREGATES["weakest"]
    context: int = 1 << 40
    """Longest sequence that the model reads; a longer one has no score."""
    micro_batch_tokens: int = 16384
    name: str = "scorer"
    """Name in messages."""

    def score(self, asked: Sequence[tuple[Request, Sequence[Candidate]]]) -> list[CandidateScores]:
        """Scores between 0 and 1 of the candidates for each request; equal sequences are read once."""
        candidates = [(request, one) for request, some in asked for one in some]
        sequences = [np.concatenate([request.prompt, one.tokens]).astype(np.int32) for request, one in candidates]
        first = dict[bytes, int]()
        of = [first.setdefault(sequence.tobytes(), place) for place, sequence in enumerate(sequences)]
        distinct = list(first.values())
        values, read = np.full(len(of), np.nan), np.zeros(len(of), np.int64)
        fits = [place for place in distinct if len(sequences[place]) <= self.context]
        values[fits] = self._values([sequences[place] for place in fits], [candidates[place] for place in fits])
        read[fits] = [len(sequences[place]) for place in fits]
        ends = np.cumsum([len(some) for _, some in asked])[:-1].tolist()
        return [
            CandidateScores(values=some, tokens_read=tokens)
            for some, tokens in zip(np.split(values[of], ends), np.split(read, ends), strict=True)
        ]

    def _values(
        self, sequences: Sequence[NDArray[np.int32]], candidates: Sequence[tuple[Request, Candidate]]
    ) -> NDArray[np.float64]:
        marks = [self._marks(request, one) for request, one in candidates]
        numbers = self.model.score_tokens(sequences, marks, micro_batch_tokens=self.micro_batch_tokens)
        if np.isnan(numbers).any():
            raise DataError(
                f"{self.name}: the reward model gives NaN for {int(np.isnan(numbers).sum())} of {len(numbers)} places; "
                "its weights are damaged or its training diverged"
            )
        chances = 1 / (1 + np.exp(-np.clip(numbers, -500, 500)))
        cuts = np.cumsum([len(places) for places in marks])[:-1].tolist()
        return np.array([self.aggregate(some) for some in np.split(chances, cuts)] if marks else [], np.float64)

    def _marks(self, request: Request, one: Candidate) -> Ints:
        """Positions in prompt and candidate at which the model is asked."""
        ends = [] if self.step is None else step_ends(one.tokens, self.step, self.decode)
        return len(request.prompt) + np.array(sorted({*ends, len(one.tokens) - 1}), np.int64)


def step_ends(tokens: NDArray[np.int32], step: str, decode: Decode) -> list[int]:
    """Places in `tokens` of the tokens that complete a text `step`."""
    return list(dict.fromkeys(separator_ends(tokens, decode, step)))


@dataclass(frozen=True, kw_only=True)
class VerifierCandidateScorer:
    """Reward functions or servers as scorer, for whole answers and for beginnings."""

    prompts: Mapping[str, Prompt]
    """Prompt of each request id."""
    whole: Scorer
    beginnings: Scorer
    decode: Decode

    def score(self, asked: Sequence[tuple[Request, Sequence[Candidate]]]) -> list[CandidateScores]:
        """Scores of the candidates for each request; equal texts of a request are scored once."""
        values = [np.full(len(some), np.nan) for _, some in asked]
        for scorer, ended in ((self.whole, True), (self.beginnings, False)):
            places = [[n for n, one in enumerate(some) if (one.finish is not None) is ended] for _, some in asked]
            inputs = [
                [scorer_input(self.prompts[request.id], some[n], self.decode) for n in chosen]
                for (request, some), chosen in zip(asked, places, strict=True)
            ]
            for value, chosen, found in zip(values, places, score_texts(scorer, inputs), strict=True):
                value[chosen] = found
        return [CandidateScores(values=value, tokens_read=np.zeros(len(value), np.int64)) for value in values]


def score_texts(scorer: Scorer, inputs: Sequence[Sequence[ScorerInput]]) -> list[NDArray[np.float64]]:
    """Scores of the answers to each prompt, NaN where there is none; equal texts of a prompt are scored once."""
    texts = [list(dict.fromkeys(one.text for one in some)) for some in inputs]
    tickets = [
        scorer.submit([next(one for one in some if one.text == text) for text in kinds])
        for some, kinds in zip(inputs, texts, strict=True)
        if kinds
    ]
    scores = scorer.gather(tickets)
    known = iter(np.where(scores.status == ScoreStatus.SCORED, scores.score, np.nan).tolist())
    by_text = [{text: next(known) for text in kinds} for kinds in texts]
    return [
        np.array([values[one.text] for one in some], np.float64) for some, values in zip(inputs, by_text, strict=True)
    ]


def scorer_input(prompt: Prompt, one: Candidate, decode: Decode) -> ScorerInput:
    """A candidate as scorers of text are given it."""
    transcript = TranscriptBuilder(prompt.tokens)
    transcript.append_sampled(
        Completion(
            request_id=prompt.id,
            sample_index=0,
            tokens=one.tokens,
            logp=one.logp,
            sampled_logp=one.logp,
            version=one.version,
            finish_reason=one.finish or "length",
            trailing_characters=one.trailing_characters,
        )
    )
    text = transcript.answers[-1].text(decode)
    return ScorerInput(
        prompt=prompt.content,
        text=text,
        columns=prompt.columns,
        messages=({"role": "assistant", "content": text},),
        transcript=transcript,
        id=prompt.id,
    )
