"""Runs that train a language model as a reward model: its log-ratio to the start scores answers, and is judged on
held-out ones.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hone.core.credit import NO_VALUES, Metrics
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.core.ragged import row_sums
from hone.credit.returns import reward_as_advantage
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.weights import token_mean
from hone.run.job import EvaluationRequest, EvaluationResult, OpenedRun, TrainingJob
from hone.run.store.records import CALIBRATION
from hone.text.answer_data import AnswerLog, AnswerTaskConfig, encode_answers, read_answers
from hone.text.evaluate.open_policy import ModelSource, open_policy
from hone.text.evaluate.scorer_eval import ScorerReport, evaluate_scores, scorer_record, scores_of_answers
from hone.text.loss import chosen_logp
from hone.text.open_text import TextInputs, opened_text_run
from hone.text.preference.data_checks import data_warnings
from hone.text.preference.preference_job import PreferenceRunConfig, preference_job
from hone.text.rows import TokenLayout
from hone.text.scorers.scorer_job import HeldOutAnswers, ScorerEvaluationConfig, laid_out, some_examples


class HeldOutRunConfig(PreferenceRunConfig):
    """A language model to train as a reward model."""

    held_out: ScorerEvaluationConfig | None = None
    """Held-out answers, on which it is judged during training and at the end."""

    def open(self) -> OpenedRun:
        return _open_held_out_run(self)

    @abstractmethod
    def scale(self) -> float:
        """Factor of the log-ratio of an answer, which makes its logit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _HeldOutRatios:
    """Held-out answers with the start's log-probabilities of their tokens, by which the network is judged."""

    config: HeldOutRunConfig
    held_out: ScorerEvaluationConfig
    episodes: Episodes
    start_logp: NDArray[np.floating]
    """`[N]` nats."""

    def report(self, policy: TokenPolicy) -> ScorerReport:
        """Figures of the network as it stands."""
        ratio = _logp(self.config, policy, self.episodes).astype(np.float64) - self.start_logp
        values = self.config.scale() * row_sums(ratio, self.episodes.offsets)
        return evaluate_scores(
            scores_of_answers(
                values, self.episodes, decode=policy.tokenizer.decode, answer_pattern=self.held_out.answer
            )
        )

    def evaluate(self, policy: TokenPolicy) -> EvaluationResult:
        """Accuracy on the held-out answers, with the calibration for the run's folder."""
        report = self.report(policy)

        def write(folder: Path, step: int) -> None:
            CALIBRATION.write(folder, scorer_record(report, step=step))

        return EvaluationResult(
            estimate=report.accuracy, metrics=report.metrics(), warnings=report.warnings, write_records=write
        )


def _logp(config: HeldOutRunConfig, policy: TokenPolicy, episodes: Episodes) -> NDArray[np.floating]:
    """`[N]` nats of every token."""
    layout = TokenLayout(scheme=token_mean, device=config.run.device)
    rows = layout(episodes, reward_as_advantage(episodes, NO_VALUES))
    (logp,) = rows.evaluate(partial(chosen_logp, policy), config.learner.micro_batch_tokens)
    return logp.astype(np.float64)


def _config_of(inputs: TextInputs[AnswerLog]) -> HeldOutRunConfig:
    assert isinstance(inputs.config, HeldOutRunConfig)
    return inputs.config


def _held_out_task(inputs: TextInputs[AnswerLog]) -> AnswerTaskConfig:
    held_out = _config_of(inputs).held_out
    assert held_out is not None
    return held_out.task


def _open_held_out_run(config: HeldOutRunConfig) -> OpenedRun:
    """Open data and tokenizer. Raises HoneError with all faults at once, before a model is loaded."""
    inputs: TextInputs[AnswerLog] = TextInputs(
        config=config,
        read=lambda _: read_answers(_config_of(inputs).task, config.answers),
        lay_out=lambda examples, tokenizer, context: encode_answers(
            examples,
            _config_of(inputs).task,
            tokenizer,
            context=context,
            kind=config.answers,
            data=_config_of(inputs).data,
        ),
        count=lambda log: len(log.ids),
    )
    inputs.more_checks = {"answers": lambda: data_warnings(inputs, config.answers)}
    held_out = None
    if config.held_out is not None:
        held_out = HeldOutAnswers(config.answers, inputs, partial(_held_out_task, inputs))
        inputs.more_checks = {**inputs.more_checks, "held out": held_out.warnings}

    def build(config: HeldOutRunConfig, inputs: TextInputs[AnswerLog]) -> TrainingJob[Any]:
        job = preference_job(config, inputs)
        if held_out is None or config.held_out is None:
            return job
        policy, episodes = job.recipe.learner.policy, held_out.log[0].episodes
        # The network is still the one that the run starts from: a resume loads the trained weights later.
        start_logp = _logp(config, policy, episodes)
        judge = _HeldOutRatios(config=config, held_out=config.held_out, episodes=episodes, start_logp=start_logp)
        return replace(job, evaluate=partial(judge.evaluate, policy), evaluate_every=config.held_out.every)

    return opened_text_run(inputs, build)


def evaluate_saved_ratios(config: HeldOutRunConfig, request: EvaluationRequest) -> Metrics:
    """Figures of a saved network on held-out answers, for `hone eval`; its start is opened beside it.

    Raises ConfigError without held-out answers, DataError where the start is gone.
    """
    held_out = config.held_out
    if held_out is None and not request.task:
        raise ConfigError(f"{request.policy}: its run has no [held_out]; name labelled answers with --task FILE")
    task = config.task if held_out is None else held_out.task
    held_out = ScorerEvaluationConfig(task=task.model_copy(update={"source": request.task or task.source}))
    model = config.model
    saved = ModelSource(
        path=str(request.policy), weights=model.weights, compute=model.compute, exactness=model.exactness
    )
    policy, start = (
        open_policy(source, seed=config.seed, device=request.device, temperature=1.0) for source in (saved, model)
    )
    examples = read_answers(held_out.task, config.answers)
    context = policy.decoder.config.max_positions
    log, notes = laid_out(examples, policy.tokenizer, context, task=held_out.task, kind=config.answers)
    episodes = some_examples(log.episodes, request)
    start_logp = _logp(config, start, episodes)
    judge = _HeldOutRatios(config=config, held_out=held_out, episodes=episodes, start_logp=start_logp)
    report = judge.report(policy)
    for line in (*examples.warnings, *notes, *report.warnings):
        request.warn(line)
    return report.metrics()
