"""The search of an evaluation, wired: its scorer opened and checked, its plans run on the evaluation's problems."""

from dataclasses import dataclass, field
from functools import partial

from hone.core.errors import DataError
from hone.core.generation import SamplingParams
from hone.models.language.token_policy import TokenPolicy
from hone.rewards.answers import extract_answer
from hone.rewards.config import Reward
from hone.rewards.scorer import RewardScorer
from hone.run.store.search import SearchRecord
from hone.text.evaluate.engine_actor import make_engine
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
from hone.text.evaluate.search_world_model import WorldModelCandidateScorer, open_world_model_scorer
from hone.text.evaluate.text_eval import TextEvaluation
from hone.text.search.candidates import CandidateScorer
from hone.text.search.searching import SearchTools
from hone.text.tasks.world import Prompt


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
