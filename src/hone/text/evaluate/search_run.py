"""The search of an evaluation, wired: its scorer opened and checked, its plans run on the evaluation's problems."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from hone.core.errors import DataError
from hone.core.generation import Request, SamplingParams
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer
from hone.models.language.vocabulary import vocabulary_hash
from hone.models.packing import pack_rows
from hone.rewards.answers import extract_answer
from hone.rewards.config import Reward
from hone.rewards.scorer import RewardScorer
from hone.run.store.search import SearchRecord
from hone.text.evaluate.engine_actor import make_engine
from hone.text.evaluate.open_policy import ModelSource, open_policy
from hone.text.evaluate.reward_members import reward_scorer
from hone.text.evaluate.reward_models import ModelLoader
from hone.text.evaluate.search_config import (
    SearchConfig,
    SearchModelScorer,
    SearchVerifierScorer,
    SearchWorldModelScorer,
)
from hone.text.evaluate.search_eval import SearchSettings, evaluate_search, sizes_up_to
from hone.text.evaluate.search_scorers import AGGREGATES, Decode, ModelCandidateScorer, VerifierCandidateScorer
from hone.text.evaluate.text_eval import TextEvaluation
from hone.text.search.searching import Candidate, CandidateScorer, CandidateScores, SearchTools
from hone.text.tasks.dataset import ExampleDataset
from hone.text.tasks.world import Prompt

# --------------------------------------------------------------------------------------------------- search world model


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
        found: list[CandidateScores] = []
        for own in owners:
            read = np.zeros(len(own), np.int64)
            for place, row in enumerate(own):
                read[place] = len(rows[row]) if row not in own[:place] else 0
            found.append(CandidateScores(values=values[own], tokens_read=read))
        return found

    def require_vocabulary(self, tokenizer: Tokenizer) -> None:
        """Raise DataError for a policy whose tokens are not the model's."""
        if vocabulary_hash(tokenizer) != vocabulary_hash(self.model.tokenizer):
            raise DataError(
                f"evaluation.search.scorer.path = {self.name}: the world model has another vocabulary than the policy, "
                "whose tokens it would read; give a model with the same tokenizer"
            )

    def _wanted_tokens(self, prompt: Prompt, one: Candidate) -> NDArray[np.int32]:
        text, tokenizer = str(prompt.columns[self.wanted]), self.model.tokenizer
        if isinstance(prompt.content, str):
            return tokenizer.encode(text)
        return tokenizer.continue_chat(prompt.content, [{"role": "user", "content": text}], answer=one.tokens)

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


# ----------------------------------------------------------------------------------------------------------- search run


@dataclass(kw_only=True)
class OpenedSearch:
    """A search whose scorer is opened: the same problems and plans for any policy."""

    config: SearchConfig
    exam: TextEvaluation
    load: ModelLoader
    """Folder and data type of the weights -> reward model."""
    opened: list[RewardScorer] = field(default_factory=list[RewardScorer])

    def run(self, policy: TokenPolicy) -> SearchRecord:
        """Search the answers of the evaluation's problems by every plan.

        Raises DataError as `evaluate_search`, and for a scorer that cannot score these problems.
        """
        config, evaluation = self.config, self.exam.config
        decode = policy.tokenizer.decode
        scorer = self.scorer(decode)
        if isinstance(scorer, WorldModelCandidateScorer):
            scorer.require_vocabulary(policy.tokenizer)
        settings = SearchSettings(
            pool=config.pool,
            sizes=sizes_up_to(config.pool, [plan.answers for plan in config.plans]),
            step_plans=config.step_plans,
            sampling=SamplingParams(
                max_tokens=evaluation.max_tokens, temperature=config.temperature, stop=tuple(evaluation.stop)
            ),
            tools=SearchTools(
                decode=decode,
                scorer=scorer,
                answer_of=partial(extract_answer, pattern=config.answer),
                step=config.step,
            ),
            scorer_name="" if config.scorer is None else config.scorer.name,
            scorer_is_truth=isinstance(config.scorer, SearchVerifierScorer),
            seed=evaluation.seed,
        )
        engine = make_engine(
            policy,
            slots=evaluation.max_concurrent,
            longest_prompt=_longest(self.exam).tokens.size,
            max_tokens=evaluation.max_tokens,
            seed=evaluation.seed,
        )
        return evaluate_search(engine, self.exam.prompts, self.exam.scorer, settings)

    def scorer(self, decode: Decode) -> CandidateScorer | None:
        """The scorer of the config, checked. Raises HoneError."""
        match self.config.scorer:
            case None:
                return None
            case SearchModelScorer() as asked:
                return self._model(asked, decode)
            case SearchWorldModelScorer() as asked:
                return open_world_model_scorer(asked, self.exam.prompts, self.exam.examples)
            case SearchVerifierScorer() as asked:
                whole = self._verifier(asked, asked.functions)
                beginnings = self._verifier(asked, asked.beginnings) if asked.beginnings else whole
                return VerifierCandidateScorer(
                    prompts={prompt.id: prompt for prompt in self.exam.prompts},
                    whole=whole,
                    beginnings=beginnings,
                    decode=decode,
                )

    def close(self) -> None:
        """End the worker processes of the scorer."""
        for scorer in self.opened:
            scorer.close()
        self.opened.clear()

    def _model(self, asked: SearchModelScorer, decode: Decode) -> ModelCandidateScorer:
        model = self.load(asked.path, asked.weights).model
        limit, longest = model.decoder.config.max_positions, _longest(self.exam)
        wanted = len(longest.tokens) + self.exam.config.max_tokens
        if wanted > limit:
            raise DataError(
                f"evaluation.search.scorer.path = {asked.path}: the reward model reads {limit} tokens; prompt "
                f"{longest.id} has {len(longest.tokens)} and an answer up to {self.exam.config.max_tokens}, together "
                f"{wanted}; lower evaluation.max_tokens, or take a scorer with more positions"
            )
        return ModelCandidateScorer(
            model=model,
            decode=decode,
            step=self.config.step if model.reads == "steps" else None,
            aggregate=AGGREGATES[asked.steps],
            context=limit,
            micro_batch_tokens=asked.micro_batch_tokens,
            name=asked.path,
        )

    def _verifier(self, asked: SearchVerifierScorer, functions: list[Reward]) -> RewardScorer:
        scorer = reward_scorer(asked.rewards(functions), load=self.load)
        self.opened.append(scorer)
        scorer.check(self.exam.examples.column_names(), self.exam.examples.rows)
        return scorer


def _longest(exam: TextEvaluation) -> Prompt:
    return max(exam.prompts, key=lambda prompt: len(prompt.tokens))
