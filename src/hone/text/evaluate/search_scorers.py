"""Scorers of search candidates: reward models by token ids, verifiers by text.

Asking a world model at decision time: candidates are scored by how likely the environment's wanted answer is.

A policy that has learnt what the environment says (`learn.world`) knows where an action leads, and often not which
action leads where. One step of search turns the first into the second: score = p(wanted answer | question, action).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from hone.core.conversation import TranscriptBuilder
from hone.core.episodes import ScoreStatus
from hone.core.errors import DataError
from hone.core.generation import Completion, Request
from hone.core.judging import Scorer, ScorerInput
from hone.core.ragged import Ints
from hone.models.language.scalar_head import ScalarHeadModel
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer, vocabulary_hash
from hone.models.packing import pack_rows
from hone.text.evaluate.evaluation_request import SearchWorldModelScorer
from hone.text.evaluate.open_policy import ModelSource, open_policy
from hone.text.search.searching import Candidate, CandidateScores
from hone.text.tasks.dataset import ExampleDataset
from hone.text.tasks.token_places import separator_ends
from hone.text.tasks.world import Prompt

Decode: TypeAlias = Callable[[NDArray[np.int32]], str]
AGGREGATES: Mapping[str, Callable[[NDArray[np.float64]], float]] = {
    "weakest": lambda chances: float(chances.min()),
    "product": lambda chances: float(chances.prod()),
    "last": lambda chances: float(chances[-1]),
}
"""Probabilities of an answer's steps -> its score."""


@dataclass(frozen=True, kw_only=True)
class ModelCandidateScorer:
    """A reward model as scorer: sigmoid of its number at the last token, or over the ends of steps, aggregated. A model
    of steps is asked at the end of every step and at the last token, where an answer says that it is finished."""

    model: ScalarHeadModel
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
            for value, chosen, scores in zip(values, places, score_texts(scorer, inputs), strict=True):
                value[chosen] = scores
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


# ------------------------------------------------------------------------------------------------- a model of the world
@dataclass(frozen=True, kw_only=True)
class WorldModelCandidateScorer:
    """A language model that knows what the environment says, as scorer of actions."""

    model: TokenPolicy
    prompts: Mapping[str, Prompt]
    """Prompt of each request id."""
    wanted: str
    """Column with the answer of the environment that is wanted."""
    micro_batch_tokens: int = 16384
    name: str = "world model"
    """Name in messages."""

    def score(self, asked: Sequence[tuple[Request, Sequence[Candidate]]]) -> list[CandidateScores]:
        """Probability of the wanted answer after each of the candidates for each request; a candidate that does not fit
        into the model's context with that answer has no score. Equal candidates are read once."""
        rows, starts, owners = list[NDArray[np.int32]](), list[int](), list[list[int]]()
        for request, candidates in asked:
            first = dict[bytes, int]()
            for one in candidates:
                if first.setdefault(one.tokens.tobytes(), len(rows)) == len(rows):
                    reply = self._wanted_tokens(self.prompts[request.id], one)
                    rows.append(np.concatenate([request.prompt, one.tokens, reply]).astype(np.int32))
                    starts.append(len(request.prompt) + len(one.tokens))
            owners.append([first[one.tokens.tobytes()] for one in candidates])
        values = self._probabilities(rows, starts)
        scores: list[CandidateScores] = []
        for own in owners:
            read = np.zeros(len(own), np.int64)
            for place, row in enumerate(own):
                read[place] = len(rows[row]) if row not in own[:place] else 0
            scores.append(CandidateScores(values=values[own], tokens_read=read))
        return scores

    def require_vocabulary(self, tokenizer: Tokenizer) -> None:
        """Raise DataError for a policy whose tokens are not the model's."""
        if vocabulary_hash(tokenizer) != vocabulary_hash(self.model.tokenizer):
            raise DataError(
                f"evaluation.search.scorer.path = {self.name}: the world model has another vocabulary than the policy, "
                "whose tokens it would read; give a model with the same tokenizer"
            )

    def _wanted_tokens(self, prompt: Prompt, one: Candidate) -> NDArray[np.int32]:
        text, tokenizer = str(prompt.columns[self.wanted]), self.model.tokenizer
        if isinstance(prompt.turns, str):
            return tokenizer.encode(text)
        return prompt.tokenizer(tokenizer).continue_chat(
            prompt.turns, [{"role": "user", "content": text}], answer=one.tokens
        )

    @torch.no_grad()
    def _probabilities(self, rows: Sequence[NDArray[np.int32]], starts: Sequence[int]) -> NDArray[np.float64]:
        """`[rows]` probability of each row's tokens from its start on; NaN beyond the context."""
        values = np.full(len(rows), np.nan)
        limit = self.model.decoder.config.max_positions
        fits = [place for place, row in enumerate(rows) if len(row) <= limit]
        device = next(self.model.parameters()).device
        for batch in _batches([len(rows[place]) for place in fits], self.micro_batch_tokens):
            places = [fits[number] for number in batch]
            packed = pack_rows([rows[place] for place in places], device=str(device))
            begins = packed.offsets[:-1].tolist()
            at = [np.arange(begin + starts[p], begin + len(rows[p])) for begin, p in zip(begins, places, strict=True)]
            targets = torch.from_numpy(np.concatenate(at)).to(device)
            logp = self.model.token_logprobs(packed, targets - 1, packed.tokens[targets]).logp.double().cpu().numpy()
            owner = np.repeat(np.arange(len(places)), [len(one) for one in at])
            values[places] = np.exp(np.bincount(owner, weights=logp, minlength=len(places)))
        return values


def open_world_model_scorer(
    asked: SearchWorldModelScorer, prompts: Sequence[Prompt], examples: ExampleDataset
) -> WorldModelCandidateScorer:
    """The scorer of a config. Raises DataError for a folder that cannot be read, and for a column that is not there."""
    where = "evaluation.search.scorer"
    if asked.wanted not in examples.column_names():
        raise DataError(
            f"{where}.wanted = {asked.wanted!r}: {examples.source} has no such column; it has "
            f"{', '.join(sorted(examples.column_names())) or 'none'}"
        )
    empty = [prompt.id for prompt in prompts if not str(prompt.columns[asked.wanted] or "")]
    if empty:
        raise DataError(f"{where}.wanted = {asked.wanted!r} is empty in {len(empty)} rows, such as {empty[0]}")
    model = open_policy(ModelSource(path=asked.path, weights=asked.weights), seed=0, device="cpu", temperature=1.0)
    return WorldModelCandidateScorer(
        model=model.requires_grad_(requires_grad=False),
        prompts={prompt.id: prompt for prompt in prompts},
        wanted=asked.wanted,
        micro_batch_tokens=asked.micro_batch_tokens,
        name=asked.path,
    )


def _batches(sizes: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Places in their order, cut where the next one would exceed the budget of tokens."""
    batch: list[int] = []
    for place, size in enumerate(sizes):
        if batch and sum(sizes[one] for one in batch) + size > budget:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
