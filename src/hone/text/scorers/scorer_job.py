"""Runs that train a scorer on labelled answers: data, learner, evaluation on held-out answers, job.

A recipe of a scorer names three things: the kind of its data, the tokens that its scorer reads, and its loss.
"""

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import ClassVar, Final

import numpy as np
from pydantic import Field, field_validator, model_validator

from hone.core.config import Config
from hone.core.credit import Metrics
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError, DataError
from hone.core.random import permutation
from hone.credit.grouping import episode_ends
from hone.credit.returns import reward_as_advantage
from hone.learner.config import (
    LearnerConfig,
    learning_rate_schedule,
    policy_phase,
    require_master_weights,
    require_whole_minibatches,
)
from hone.learner.gradient import GradientLearner, OptimizerPhase
from hone.learner.low_rank_parameters import LowRankParameters, low_rank_phase
from hone.learner.share import sharded_store, trained_policy
from hone.models.language.scalar_head import ScoredTokens, ScoreRange, TokenScorer
from hone.models.language.tokenizers import Tokenizer
from hone.objectives.weights import token_mean
from hone.planner.run_settings import PlannedRecipe
from hone.run.job import EvaluationRequest, EvaluationResult, OpenedRun, RecipeParts, TrainingJob
from hone.run.loop import Recipe
from hone.run.store.records import CALIBRATION
from hone.sources.logged import LogSource
from hone.text.answer_data import AnswerKind, AnswerLog, AnswerTaskConfig, encode_answers, read_answers
from hone.text.evaluate.dialogues import task_tokenizer
from hone.text.evaluate.open_policy import ModelSource, load_scorer, open_scorer
from hone.text.evaluate.scorer_eval import (
    HeldOutKind,
    ScorerReport,
    evaluate_scores,
    held_out_scores,
    labelled_scores,
    scorer_record,
)
from hone.text.flops import matmul_rate, scorer_compute_cost
from hone.text.learners import step_layout
from hone.text.memory import text_lengths
from hone.text.open_text import LanguageRunConfig, TextInputs, is_to_come, opened_text_run
from hone.text.preference.data_checks import data_warnings
from hone.text.rows import TokenBatch
from hone.text.saved_optimizer import restore_optimizer
from hone.text.scorers.scorer_loss import PAIR_WEIGHTS, ScorerLoss
from hone.text.tasks.dataset import Example, ExampleDataset, prompt_key
from hone.text.tasks.files import MAX_FAULTS_SHOWN

# -------------------------------------------------------------------------------------------------------- scorer config


LAST_NUMBER: Final = r"-?\d+(?:\.\d+)?"
"""Pattern of a number: an answer's last one is its final answer."""


class ScorerEvaluationConfig(Config):
    """Held-out answers, on which a scorer is judged."""

    task: AnswerTaskConfig
    """Labelled answers that it is not trained on."""
    every: int = Field(default=0, ge=0)
    """Iterations between evaluations during training; 0 evaluates at the end only."""
    answer: str = LAST_NUMBER
    """Regular expression of the final answer that votes count, where several answers to a question are selected among:
    its last match, or the first group of it. Empty: the last line that is not blank."""

    @field_validator("answer")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None
        return pattern


class ScorerRunConfig(LanguageRunConfig):
    """A scorer to train on labelled answers."""

    model: ModelSource
    """The network to start from: a policy, which gets a new head, or a scorer."""
    task: AnswerTaskConfig  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """The labelled answers."""
    evaluation: ScorerEvaluationConfig | None = None  # pyright: ignore[reportIncompatibleVariableOverride] - frozen
    """Held-out answers, on which it is judged during training and at the end."""
    batch: int = Field(default=64, ge=1)
    """Examples per step: questions with their compared answers, or single answers."""
    learner: LearnerConfig
    """The optimizer."""

    data_kind: ClassVar[AnswerKind]
    """Kind of the data."""
    reads: ClassVar[ScoredTokens]
    """Tokens whose numbers are meant."""

    def open(self) -> OpenedRun:
        return _open_scorer_run(self)

    def derive(self) -> dict[str, str]:
        return _derive_scorer_run(self)

    def answers_evaluation(self) -> None:
        """A scorer writes no answers."""

    def has_search(self) -> bool:
        return False

    @property
    def rows_per_step(self) -> int:
        return self.batch

    @classmethod
    def planned(cls) -> PlannedRecipe:
        return PlannedRecipe(rows=("batch",), factor=2 if cls.data_kind == "preference" else 1, predicts_tokens=False)

    @model_validator(mode="after")
    def _parts_fit(self) -> "ScorerRunConfig":
        require_master_weights(self.learner, self.model.weights)
        require_whole_minibatches(self.learner, self.batch, "batch")
        if self.model.exactness == "bitwise":
            raise ValueError('model.exactness = "bitwise" is for policies whose answers are sampled; remove it')
        self.model.refuse_codes("a scorer is saved with its adapter merged")
        return self

    @abstractmethod
    def scorer_loss(self) -> ScorerLoss:
        """The loss of the recipe."""


# ----------------------------------------------------------------------------------------------------------- scorer job


_HELD_OUT_KINDS: Final[dict[AnswerKind, HeldOutKind]] = {
    "preference": "pairs",
    "unpaired": "outcomes",
    "outcome": "outcomes",
    "stepwise": "steps",
}


RANGE_ANSWERS: Final = 256
"""Training answers whose scores are saved with a scorer."""
RANGE_TOKENS: Final = 4096
"""Tokens of a pass over them."""


def labelled_log(episodes: Episodes, kind: AnswerKind) -> Episodes:
    """The answers with their labelled tokens as the only decisions: each step's last token, or the answer's."""
    return episodes.keep_decisions(~np.isnan(episodes.reward) if kind == "stepwise" else episode_ends(episodes))


@dataclass
class HeldOutAnswers:
    """Held-out answers of a run: read once, and laid out once the tokenizer is known."""

    kind: AnswerKind
    inputs: TextInputs[AnswerLog]
    task: Callable[[], AnswerTaskConfig]
    """The task of the run's config, whose source may be resolved between check and build."""

    @cached_property
    def examples(self) -> ExampleDataset:
        """The examples. Raises DataError."""
        return read_answers(self.task(), self.kind)

    @cached_property
    def log(self) -> tuple[AnswerLog, list[str]]:
        """The answers as episodes, and warnings."""
        (tokenizer, context), task = self.inputs.tokenizer, self.task()
        tokenizer = task_tokenizer(task, tokenizer, self.inputs.config.user_code)
        return laid_out(self.examples, tokenizer, context, task=task, kind=self.kind)

    def warnings(self) -> list[str]:
        """Warnings of the data, and on questions that are in both sets. Raises DataError with all faults; what an
        earlier stage leaves behind is not there yet."""
        if is_to_come(self.task().source):
            return []
        warnings = [*self.examples.warnings, *(self.log[1] if self.inputs.has_model else [])]
        if self.inputs.waits_for_answers:
            return warnings
        known = {_content(example, self.kind) for example in self.inputs.examples}
        both = [example.id for example in self.examples if _content(example, self.kind) in known]
        what = "pairs" if self.kind == "preference" else "prompts"
        if both:
            warnings.append(
                f"{len(both)} {what} stand in the training and in the evaluation set: {', '.join(both[:5])}"
            )
        return warnings


def _content(example: Example, kind: AnswerKind) -> str:
    """What must not be in both sets: a pair with its answers, or the question of answers."""
    answers = [answer.content for answer in example.answers] if kind == "preference" else []
    return f"{prompt_key(example.prompt)} {answers}"


def laid_out(
    examples: ExampleDataset, tokenizer: Tokenizer, context: int, *, task: AnswerTaskConfig, kind: AnswerKind
) -> tuple[AnswerLog, list[str]]:
    """Answers as episodes, and warnings. Raises DataError for answers without a label and labels that are none."""
    log, notes = encode_answers(examples, task, tokenizer, context=context, kind=kind)
    scores, steps = log.episodes.score, log.episodes.reward
    unlabelled = np.flatnonzero(np.isnan(scores))
    if kind == "stepwise":
        unlabelled = np.flatnonzero(np.bincount(log.episodes.owner[~np.isnan(steps)], minlength=len(scores)) == 0)
    if len(unlabelled):
        kept = np.setdiff1d(np.arange(len(scores)), unlabelled)
        warning = f"{examples.source}: {len(unlabelled)} of {len(scores)} answers have no score"
        if not len(kept):
            raise DataError(f"{warning}: there is nothing to learn")
        log, notes = replace(log, episodes=log.episodes.take(kept)), [*notes, f"{warning} (left out)"]
    if kind != "preference":
        _check_shares(log, examples.source, kind)
    return log, notes


def _check_shares(log: AnswerLog, source: str, kind: AnswerKind) -> None:
    """Raise DataError for labels that are no probabilities."""
    episodes = log.episodes
    labels, owner = (
        (episodes.reward, episodes.owner) if kind == "stepwise" else (episodes.score, np.arange(len(episodes)))
    )
    wrong = np.flatnonzero((labels < 0) | (labels > 1))
    if len(wrong):
        shown = [f"{log.ids[episodes.group[owner[place]]]} ({labels[place]:g})" for place in wrong[:MAX_FAULTS_SHOWN]]
        raise DataError(
            f"{source}: {len(wrong)} labels are not between 0 and 1, so that they are no chances of being right: "
            f"{', '.join(shown)}{', ...' if len(wrong) > MAX_FAULTS_SHOWN else ''}; scale the scores, or compare "
            'answers of one question with recipe = "reward_pairs"'
        )


def _task_of(inputs: TextInputs[AnswerLog]) -> AnswerTaskConfig:
    task = inputs.config.task
    assert isinstance(task, AnswerTaskConfig)
    return task


def _held_out_task(inputs: TextInputs[AnswerLog]) -> AnswerTaskConfig:
    assert isinstance(inputs.config, ScorerRunConfig)
    assert inputs.config.evaluation is not None
    return inputs.config.evaluation.task


def _open_scorer_run(config: ScorerRunConfig) -> OpenedRun:
    """Open data and tokenizer. Raises HoneError with all faults at once, before a model is loaded."""
    inputs: TextInputs[AnswerLog] = TextInputs(
        config=config,
        read=lambda _: read_answers(_task_of(inputs), config.data_kind),
        lay_out=lambda examples, tokenizer, context: laid_out(
            examples, tokenizer, context, task=_task_of(inputs), kind=config.data_kind
        ),
        measure=lambda log: text_lengths(log.episodes),
        count=lambda log: len(log.ids) if config.data_kind == "preference" else len(log.episodes),
    )
    inputs.more_checks = {"answers": lambda: data_warnings(inputs, config.data_kind)}
    held_out = None
    if config.evaluation is not None:
        held_out = HeldOutAnswers(config.data_kind, inputs, partial(_held_out_task, inputs))
        inputs.more_checks = {**inputs.more_checks, "evaluation": held_out.warnings}

    def build(config: ScorerRunConfig, inputs: TextInputs[AnswerLog]) -> TrainingJob[TokenScorer]:
        return scorer_job(config, inputs, held_out)

    return opened_text_run(inputs, build)


def scorer_job(
    config: ScorerRunConfig, inputs: TextInputs[AnswerLog], held_out: HeldOutAnswers | None
) -> TrainingJob[TokenScorer]:
    """Training job of a scorer: a log of labelled answers, and the learner."""
    (log, notes), tokenizer = inputs.prepared, inputs.tokenizer[0]
    judged = None if held_out is None else held_out.log[0].episodes
    scorer = open_scorer(
        config.model, reads=config.reads, seed=config.seed, device=config.run.device, tokenizer=tokenizer
    )
    compares = config.data_kind == "preference"
    labelled = labelled_log(log.episodes, config.data_kind)
    source = LogSource[TokenScorer](log=labelled, batch_size=config.batch, seed=config.seed)
    learner = scorer_learner(config, scorer)
    if config.model.optimizer:
        restore_optimizer(learner, config.model)
    return TrainingJob(
        recipe=Recipe(
            source=replace(source, unit="group") if compares else source, credit=reward_as_advantage, learner=learner
        ),
        save_policy=partial(_save_with_range, scorer, labelled.take(np.arange(min(RANGE_ANSWERS, len(labelled))))),
        load_policy=scorer.load,
        evaluate=None if judged is None else partial(_evaluate_scorer, config, scorer, judged),
        evaluate_every=0 if config.evaluation is None else config.evaluation.every,
        dataset_fingerprint=inputs.examples.fingerprint,
        measure_matmuls=partial(matmul_rate, scorer),
        warnings=[*inputs.examples.warnings, *notes, *scorer.decoder.notes()],
    )


def _save_with_range(scorer: TokenScorer, answers: Episodes, folder: Path) -> None:
    """Write the scorer, with the range of its scores of some training answers."""
    scores = labelled_scores(scorer, answers, micro_batch_tokens=RANGE_TOKENS)
    scorer.score_range = ScoreRange(mean=float(scores.mean()), std=float(scores.std()), n=len(scores))
    scorer.save(folder)


def scorer_learner(config: ScorerRunConfig, scorer: TokenScorer) -> GradientLearner[TokenScorer, TokenBatch]:
    """The gradient learner of a scorer, which looks at the state after each labelled token."""
    scorer = trained_policy(scorer)
    compares, learner = config.data_kind == "preference", config.learner
    layout = replace(
        step_layout(token_mean, learner, config.run, mixed_precision=scorer.decoder.is_mixed_precision),
        unit="group" if compares else "sample",
        term_weights=PAIR_WEIGHTS if compares else {},
        after=True,
    )
    return GradientLearner(
        policy=scorer,
        layout=layout,
        phases=[_phase(config, scorer)],
        seed=config.seed,
        learning_rate=learning_rate_schedule(learner, learner.optimizer_steps(config.steps)),
        epochs=learner.epochs,
        minibatches=learner.minibatches,
        shuffle=learner.minibatches > 1,
        micro_batch_tokens=learner.micro_batch_tokens,
        compute_cost=scorer_compute_cost,
        extra_state={} if scorer.adapter is None else {"adapter": scorer.adapter},
    )


def _phase(config: ScorerRunConfig, scorer: TokenScorer) -> OptimizerPhase[TokenScorer, TokenBatch]:
    """The phase of all weights of a scorer, or of its adapter and its head."""
    if scorer.adapter is None:
        return policy_phase(scorer, config.scorer_loss(), config.learner)
    parameters = sharded_store(scorer) or LowRankParameters(scorer.adapter, whole=scorer.head_parameters())
    return low_rank_phase(scorer.adapter, parameters, config.scorer_loss(), config.learner)


def _report_scorer(config: ScorerRunConfig, scorer: TokenScorer, held_out: Episodes) -> ScorerReport:
    """The scorer as it stands, on held-out answers."""
    assert config.evaluation is not None
    return evaluate_scores(
        held_out_scores(
            scorer,
            held_out,
            kind=_HELD_OUT_KINDS[config.data_kind],
            answer_pattern=config.evaluation.answer,
            micro_batch_tokens=config.learner.micro_batch_tokens,
        )
    )


def _evaluate_scorer(config: ScorerRunConfig, scorer: TokenScorer, held_out: Episodes) -> EvaluationResult:
    """The scorer's accuracy on held-out answers, with its calibration for the run's folder."""
    report = _report_scorer(config, scorer, held_out)

    def write(folder: Path, step: int) -> None:
        CALIBRATION.write(folder, scorer_record(report, step=step))

    return EvaluationResult(
        estimate=report.accuracy, metrics=report.metrics(), warnings=report.warnings, write_records=write
    )


def evaluate_saved_scorer(config: ScorerRunConfig, request: EvaluationRequest) -> Metrics:
    """Figures of a saved scorer on held-out answers of its run, or on another file of the same kind, for `hone eval`.

    Raises ConfigError where neither is given, DataError for data that do not fit.
    """
    if config.evaluation is None and not request.task:
        raise ConfigError(f"{request.policy}: its run has no [evaluation]; name labelled answers with --task FILE")
    scorer = load_scorer(request.policy, device=request.device)
    task = config.task if config.evaluation is None else config.evaluation.task
    if request.task:
        task = task.model_copy(update={"source": request.task})
    examples = read_answers(task, config.data_kind)
    log, notes = laid_out(
        examples, task_tokenizer(task, scorer.tokenizer, config.user_code), scorer.decoder.config.max_positions,
        task=task, kind=config.data_kind,
    )  # fmt: skip
    few = some_examples(log.episodes, request)
    if config.evaluation is None:
        config = config.model_copy(update={"evaluation": ScorerEvaluationConfig(task=task)})
    report = _report_scorer(config, scorer, few)
    for line in (*examples.warnings, *notes, *report.warnings):
        request.warn(line)
    return report.metrics()


def some_examples(episodes: Episodes, request: EvaluationRequest) -> Episodes:
    """The answers of as many examples as were asked for: the first ones, or those that a seed selects."""
    groups = np.unique(episodes.group)
    order = permutation(request.seed, "exam", count=len(groups)) if request.seed else np.arange(len(groups))
    return episodes.take(np.flatnonzero(np.isin(episodes.group, groups[order[: request.episodes]])))


def _derive_scorer_run(config: ScorerRunConfig) -> dict[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    learner = config.learner
    return {
        "examples per step": str(config.batch),
        "optimizer steps": f"{config.steps} x {learner.epochs * learner.minibatches} = "
        f"{learner.optimizer_steps(config.steps)}",
        "examples seen": f"{config.steps * config.batch} (x {learner.epochs} epochs of each step)",
        "micro-batch": f"at most {learner.micro_batch_tokens} tokens",
        "saved as": {"last": "a sequence classifier", "steps": "a token classifier"}[config.reads]
        + " of transformers with one label",
    }


def scorer_parts(*loss: Callable[..., object], weights: Sequence[Callable[..., object]]) -> RecipeParts:
    """Parts of a recipe that trains a scorer."""
    return RecipeParts(source="Logged(labelled answers)", credit=(reward_as_advantage,), loss=loss, weights=weights)
