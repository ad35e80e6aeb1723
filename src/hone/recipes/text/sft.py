"""Supervised fine-tuning: make the log's answers likelier.  loss = -sum(weight * log pi(token)) over completion tokens.

Only answers are learned, each up to the token that ends it: prompts are seen, never imitated. Rows are packed without
padding.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

from pydantic import BeforeValidator, Field, model_validator

from hone.core.episodes import Episodes
from hone.credit.returns import reward_as_advantage
from hone.learner.config import LearnerConfig, require_master_weights, require_whole_minibatches
from hone.learner.gradient import GradientLearner
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer
from hone.objectives.weights import token_mean
from hone.planner.run_settings import PlannedRecipe
from hone.run.job import OpenedRun, RecipeParts, RecipeSpec, TrainingJob
from hone.run.loop import Recipe
from hone.sources.logged import LogSource
from hone.text.answer_data import AnswerRunConfig, SolutionConfig, imitation_episodes, read_answers, solved_examples
from hone.text.experience import (
    TokenWeights,
    UserFunction,
    check_experience,
    check_relabel,
    experience_episodes,
    function_table,
)
from hone.text.learners import language_job, step_layout, token_learner
from hone.text.loss import token_nll
from hone.text.memory import text_lengths
from hone.text.open_text import TextInputs, opened_text_run
from hone.text.rows import TokenBatch
from hone.text.samples import judge_questions
from hone.text.tasks.collection import is_collection
from hone.text.tasks.dataset import ExampleDataset


class SftConfig(AnswerRunConfig):
    """Supervised fine-tuning of a language model."""

    solution: SolutionConfig | None = None
    """Function that makes the completions from the task's columns, for a task of prompts alone."""
    learn: TokenWeights = TokenWeights()
    """Weights of the tokens of collected dialogues, by who said them."""
    relabel: Annotated[UserFunction | None, BeforeValidator(function_table)] = None
    """Hindsight: a function f(prompt, turns, **columns) -> str | None gives collected dialogues the questions that they
    answered. `turns` are pairs of speaker (`policy`, `environment`) and text; None leaves one out."""
    batch: int = Field(default=64, ge=1)
    """Examples per step."""
    learner: LearnerConfig
    """The optimizer."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "SftConfig":
        require_master_weights(self.learner, self.model.weights)
        require_whole_minibatches(self.learner, self.batch, "batch")
        check_experience(self.task, self.learn, self.relabel)
        return self

    @property
    def rows_per_step(self) -> int:
        return self.batch

    @classmethod
    def planned(cls) -> PlannedRecipe:
        return PlannedRecipe(rows=("batch",))

    @property
    def learns_experience(self) -> bool:
        """True if other tokens than those of right answers are learnt."""
        return self.learn != TokenWeights() or self.relabel is not None

    def open(self) -> OpenedRun:
        """Open data and tokenizer. Raises HoneError with all faults at once, before a model is loaded."""

        inputs = TextInputs(
            config=self,
            read=lambda held_out: _examples(self, held_out),
            lay_out=lambda examples, tokenizer, context: _lay_out(self, examples, tokenizer, context),
            measure=text_lengths,
            count=len,
            more_checks={"relabel": lambda: _relabel_warnings(self)},
        )
        return opened_text_run(inputs, build)

    def derive(self) -> Mapping[str, str]:
        """Figures that follow from the config, shown by `hone plan`."""
        learner = self.learner
        return {
            "examples per step": str(self.batch),
            "optimizer steps": f"{self.steps} x {learner.epochs * learner.minibatches} = "
            f"{learner.optimizer_steps(self.steps)}",
            "examples seen": f"{self.steps * self.batch} (x {learner.epochs} epochs of each step)",
            "micro-batch": f"at most {learner.micro_batch_tokens} tokens",
            **judge_questions(self),
        }


def build(config: SftConfig, inputs: TextInputs[Episodes]) -> TrainingJob[TokenPolicy]:
    """Training job of supervised fine-tuning: a log of prompts and completions, and the learner."""
    (log, _), _ = inputs.prepared, inputs.evaluation
    policy = inputs.policy(temperature=1.0)
    recipe = Recipe(
        source=LogSource[TokenPolicy](log=log, batch_size=config.batch, seed=config.seed),
        credit=reward_as_advantage,
        learner=sft_learner(config, policy),
    )
    return language_job(inputs, policy, recipe)


def sft_learner(config: SftConfig, policy: TokenPolicy) -> GradientLearner[TokenPolicy, TokenBatch]:
    """The learner of supervised fine-tuning."""
    mixed = policy.decoder.is_mixed_precision
    return token_learner(
        config.learner,
        policy,
        layout=step_layout(token_mean, config.learner, config.run, mixed_precision=mixed),
        objective=token_nll,
        seed=config.seed,
        steps=config.steps,
    )


def _lay_out(
    config: SftConfig, examples: ExampleDataset, tokenizer: Tokenizer, context: int
) -> tuple[Episodes, list[str]]:
    if config.learns_experience and examples.vocabulary is not None:
        return experience_episodes(
            examples, config.task, tokenizer, context=context, learn=config.learn, relabel=config.relabel
        )
    return imitation_episodes(examples, config.task, tokenizer, context=context, data=config.data)


def _relabel_warnings(config: SftConfig) -> Sequence[str]:
    """None; raises ConfigError where the function's file is not there."""
    if config.relabel is not None:
        check_relabel(config.relabel.use)
    return []


def _examples(config: SftConfig, held_out: Sequence[ExampleDataset]) -> ExampleDataset:
    if is_collection(config.task.source):
        return read_answers(config.task, "experience" if config.learns_experience else "imitation")
    return solved_examples(config.task, config.solution, apart_from=held_out)


ENTRY = RecipeSpec(
    summary="supervised fine-tuning: imitate the log's completions",
    paper="negative log-likelihood of completion tokens",
    config=SftConfig,
    parts=RecipeParts(
        source="Logged(examples)", credit=(reward_as_advantage,), loss=(token_nll,), weights=(token_mean,)
    ),
    limitation="what it imitates is what it becomes; it never sees its own mistakes.",
)
