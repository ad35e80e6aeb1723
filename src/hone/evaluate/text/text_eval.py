"""A token policy judged on held-out prompts: every answer scored, the mean with a 95% interval."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hone.core.config import Config
from hone.core.credit import Metrics
from hone.core.errors import DataError
from hone.core.generation import GenerationStats, Generator, SamplingParams
from hone.envs.text.dataset import ExampleDataset
from hone.envs.text.task import TaskConfig
from hone.envs.text.world import Prompt, Scorer, TextWorld
from hone.estimators.means import Estimate, mean_interval
from hone.evaluate.text.engine_actor import EngineActor, make_engine, make_prompts, reward_pool_scorer
from hone.evaluate.text.streaming import StreamingEngine, StreamListener
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer
from hone.rewards.config import RewardsConfig
from hone.store.answers import AnswerRow


class EvaluationConfig(Config):
    """Held-out prompts, and how a policy's answers to them are judged."""

    task: TaskConfig
    """The prompts. Training sets made by the same reasoning-gym task leave these questions out."""
    rewards: RewardsConfig
    """What an answer is worth."""
    max_tokens: int = Field(ge=1)
    """Most tokens of an answer."""
    every: int = Field(default=0, ge=0)
    """Steps between judgements during training; 0 judges at the end only."""
    greedy: bool = True
    """Take the likeliest tokens; otherwise sample at `temperature`."""
    temperature: float = Field(default=1.0, gt=0)
    """Of sampled answers."""
    stop: list[Annotated[str, Field(min_length=1)]] = []
    """Texts that end an answer."""
    slots: int = Field(default=64, ge=1)
    """Answers that are written at the same time."""
    seed: int = Field(default=0, ge=0)
    """Of sampled answers."""

    @model_validator(mode="after")
    def _greedy_has_no_temperature(self) -> "EvaluationConfig":
        if self.greedy and self.temperature != 1.0:
            raise ValueError(
                f"temperature = {self.temperature} has no effect on greedy answers; set greedy = false, or leave it out"
            )
        return self

    def sampling(self) -> SamplingParams:
        return SamplingParams(
            max_tokens=self.max_tokens, temperature=self.temperature, greedy=self.greedy, stop=tuple(self.stop)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationReport:
    """How the answers of an evaluation were written."""

    runner: str
    """For people: `native float32 (avx512)`."""
    stats: GenerationStats
    note: str = ""
    """What a person should read about the choice of the runner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredAnswers:
    """Every answer of an evaluation, in the order of the prompts."""

    ids: Sequence[str]
    prompts: Sequence[str]
    references: Sequence[str]
    answers: Sequence[str]
    scores: NDArray[np.float64]
    """`[n]`; NaN where the answer could not be scored."""
    lengths: NDArray[np.int64]
    """`[n]` tokens."""
    generation: GenerationReport | None = None
    """Known where the policy was asked through an engine of its own."""

    @property
    def estimate(self) -> Estimate:
        """Mean score over the answers that were scored. Raises DataError when none was."""
        scored = self.scores[~np.isnan(self.scores)]
        if not len(scored):
            raise DataError(f"none of {len(self.scores)} answers could be scored: nothing to estimate")
        return mean_interval(scored)

    def rows(self) -> list[AnswerRow]:
        """Question by question, as the store keeps them."""
        return [
            AnswerRow(
                id=id_, prompt=prompt, reference=reference, answer=answer, score=None if np.isnan(score) else score
            )
            for id_, prompt, reference, answer, score in zip(
                self.ids, self.prompts, self.references, self.answers, self.scores.tolist(), strict=True
            )
        ]

    def metrics(self) -> Metrics:
        estimate = self.estimate
        return {
            "eval/score": estimate.mean,
            "eval/low": estimate.low,
            "eval/high": estimate.high,
            "eval/answered": float(estimate.n),
            "eval/tokens_mean": float(self.lengths.mean()),
        }


@dataclass
class TextEvaluation:
    """An evaluation made ready: the same questions, asked of whatever policy as often as wanted."""

    config: EvaluationConfig
    examples: ExampleDataset
    prompts: Sequence[Prompt]
    scorer: Scorer
    close: Callable[[], None]
    warnings: list[str]

    def evaluate(self, generator: Generator, decode: Callable[[NDArray[np.int32]], str]) -> ScoredAnswers:
        """Ask every prompt once and score the answers."""
        world = TextWorld(
            prompts=self.prompts,
            scorer=self.scorer,
            decode=decode,
            sampling=self.config.sampling(),
            prompts_per_step=len(self.prompts),
            samples=1,
            seed=self.config.seed,
            shuffle=False,
        )
        episodes = world.rollout(generator)
        said = np.split(episodes.chosen.astype(np.int32), episodes.offsets[1:-1])
        columns = [prompt.columns for prompt in self.prompts]
        return ScoredAnswers(
            ids=[prompt.id for prompt in self.prompts],
            prompts=[_prompt_text(prompt) for prompt in self.prompts],
            references=[str(one.get("answer", one.get("ground_truth", ""))) for one in columns],
            answers=[decode(tokens) for tokens in said],
            scores=episodes.score,
            lengths=episodes.lengths,
        )

    def evaluate_policy(self, policy: TokenPolicy, hearer: StreamListener | None = None) -> ScoredAnswers:
        """Ask a policy through an engine of its own; `hearer` hears the answers while they are being written."""
        engine = make_engine(
            policy,
            slots=self.config.slots,
            longest_prompt=max(len(prompt.tokens) for prompt in self.prompts),
            max_tokens=self.config.max_tokens,
            seed=self.config.seed,
        )
        decode = policy.tokenizer.decode
        actor: Generator = EngineActor(engine)
        if hearer is not None:
            hearer.on_prompts([_prompt_text(prompt) for prompt in self.prompts])
            actor = StreamingEngine(engine, decode, hearer)
        judged = self.evaluate(actor, decode)
        return replace(
            judged, generation=GenerationReport(runner=engine.runner.name, stats=engine.stats, note=engine.note)
        )


def _prompt_text(prompt: Prompt) -> str:
    return prompt.content if isinstance(prompt.content, str) else str(prompt.content)


def prepare_evaluation(config: EvaluationConfig, tokenizer: Tokenizer, *, context: int) -> TextEvaluation:
    """Make or read the prompts and start nothing yet. Raises ConfigError, DataError."""
    examples = config.task.examples()
    room = context - config.max_tokens
    prompts, notes = make_prompts(examples, config.task, tokenizer, room=room)
    judge = reward_pool_scorer(config.rewards)
    return TextEvaluation(
        config=config, examples=examples, prompts=prompts, scorer=judge, close=judge.pool.close, warnings=notes
    )
