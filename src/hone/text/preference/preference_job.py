"""Learning from preferences in a dataset, wired: pairs or labelled answers, a loss on whole answers, the reference.

Belongs here: what every recipe of the family has in common. A recipe file holds its config, whose `loss` is one loss on
whole answers, and ends in `preference_recipe_spec`; see `recipes/preference/dpo.py`.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from hone.core.episodes import Episodes
from hone.credit.pairs import LabelCredit, best_and_worst
from hone.learner.config import LearnerConfig, require_master_weights, require_whole_minibatches
from hone.learner.gradient import GradientLearner
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.weights import sequence_sum
from hone.run.job import OpenedRun, RecipeParts, RecipeSpec, TrainingJob
from hone.run.loop import Recipe, Source
from hone.sources.logged import LogSource
from hone.text.answer_data import AnswerKind, AnswerLog, AnswerTaskConfig, encode_answers, read_answers
from hone.text.evaluate.open_policy import ModelSource, open_tokenizer
from hone.text.learners import language_job, token_learner
from hone.text.memory import WEIGHT_BYTES
from hone.text.open_text import LanguageRunConfig, TextInputs, is_to_come, opened_text_run
from hone.text.planned_memory import BatchDimensions, TextLengths, logged_batch, text_lengths
from hone.text.preference.answer_loss import AnswerLoss, AnswerLossSpec
from hone.text.preference.reference_log import ReferenceLog
from hone.text.preference.start_distance import SamplesConfig, StartDistance, prompts_to_answer
from hone.text.reference_policies import REFERENCE_NAME, TextPolicies, require_same_tokens, text_policies
from hone.text.rows import TokenBatch, TokenLayout


class PreferenceRunConfig(LanguageRunConfig):
    """Config shared by the recipes that learn from a dataset of preferences."""

    answers: ClassVar[AnswerKind] = "preference"
    """Kind of the dataset."""
    labels: ClassVar[LabelCredit] = staticmethod(best_and_worst)
    """Labels of the answers, from their scores."""

    task: AnswerTaskConfig  # pyright: ignore[reportIncompatibleVariableOverride] - a config is frozen
    """Prompts with a chosen and a rejected answer each."""
    batch: int = Field(default=64, ge=1)
    """Pairs per step."""
    learner: LearnerConfig
    """The optimizer."""
    samples: SamplesConfig = SamplesConfig()
    """Answers of the policy, drawn to measure its distance from the start."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "PreferenceRunConfig":
        require_master_weights(self.learner, self.model.weights)
        require_whole_minibatches(self.learner, self.batch, "batch")
        return self

    def batch_dimensions(self, lengths: TextLengths) -> BatchDimensions:
        texts = 2 if self.answers == "preference" else 1
        return logged_batch(self.learner, self.batch, lengths, together=texts)

    @abstractmethod
    def loss(self) -> AnswerLossSpec:
        """The loss on whole answers."""

    def reference(self) -> str | None:
        """Folder of the reference policy; None: the policy as the run starts."""
        return None

    def with_unlabelled(self, log: Episodes, context: int) -> Episodes:
        """The log with answers that the loss needs and the data do not have; `context` is the longest sequence."""
        del context
        return log

    def weight_copies(self) -> dict[str, int]:
        copies = super().weight_copies()
        if self.samples.prompts:
            copies["start, while the distance from it is measured"] = WEIGHT_BYTES[self.model.weights]
        return copies


def preference_job(config: PreferenceRunConfig, inputs: TextInputs[AnswerLog]) -> TrainingJob[TokenPolicy]:
    """The recipe's parts, wired. Data and evaluation are opened before the model is loaded."""
    (answers, _), _ = inputs.prepared, inputs.evaluation
    log = config.with_unlabelled(answers.episodes, inputs.tokenizer[1])
    policy = inputs.policy(temperature=1.0)
    policies = text_policies(config, policy, micro_batch_tokens=config.learner.micro_batch_tokens)
    policies.fingerprints[REFERENCE_NAME] = policy.fingerprint()
    loss = config.loss()
    source: Source[TokenPolicy] = _logged(config, loss, policies, log)
    prompts = prompts_to_answer(answers.episodes, config.samples.prompts, seed=config.seed)
    if prompts:
        source = _with_distance(config, source, policies, answers.episodes, prompts)
    learner = answer_learner(config.learner, policies, loss, seed=config.seed, steps=config.steps)
    return language_job(inputs, policy, Recipe(source=source, credit=config.labels, learner=learner))


def answer_learner(
    config: LearnerConfig,
    policies: TextPolicies,
    loss: AnswerLossSpec,
    *,
    seed: int,
    steps: int,
    reference: TokenPolicy | None = None,
) -> GradientLearner[TokenPolicy, TokenBatch]:
    """The learner of every recipe with a loss on whole answers. `reference` is asked at every step; without it, the
    episodes bring its log-probabilities."""
    policy = policies.policy
    answer_loss = AnswerLoss(loss=loss, micro_batch_tokens=config.micro_batch_tokens, reference=reference)
    layout = TokenLayout(
        scheme=sequence_sum,
        min_rows=config.minibatches,
        pass_tokens=config.micro_batch_tokens,
        pad_to_size=policy.decoder.is_mixed_precision,
        device=policies.device,
    )
    learner = token_learner(
        config,
        policy,
        layout=answer_loss.layout(layout),
        objective=answer_loss.objective,
        seed=seed,
        steps=steps,
        prepare=None if loss.statistic is None else answer_loss.prepare,
    )
    learner = replace(learner, fingerprints=policies.fingerprints)
    if loss.running is None:
        return learner
    return replace(learner, after_step=loss.running.commit, extra_state={"statistic": loss.running})


def _logged(
    config: PreferenceRunConfig, loss: AnswerLossSpec, policies: TextPolicies, log: Episodes
) -> LogSource[TokenPolicy] | ReferenceLog:
    source = LogSource[TokenPolicy](log=log, batch_size=config.batch, seed=config.seed, unit="group")
    if not loss.needs_reference:
        return source
    path = config.reference()
    return ReferenceLog(
        source=source,
        logp=policies.logp_of,
        open_reference=partial(policies.frozen, path, key="algorithm.reference"),
        is_start=path is None,
        units_drawn=config.steps * config.batch,
    )


def _with_distance(
    config: PreferenceRunConfig,
    source: Source[TokenPolicy],
    policies: TextPolicies,
    log: Episodes,
    prompts: Sequence[NDArray[np.int32]],
) -> StartDistance:
    samples = config.samples
    return StartDistance(
        source,
        logp=policies.logp_of,
        open_start=partial(policies.frozen, None, key="model.path"),
        prompts=prompts,
        max_tokens=samples.max_tokens or int(log.lengths.max()),
        every=samples.every or max(1, config.steps // 10),
        steps=config.steps,
        seed=config.seed,
    )


def open_preferences(config: PreferenceRunConfig) -> OpenedRun:
    """Open data and tokenizer. Raises HoneError with all faults at once, before a model is loaded."""
    inputs = TextInputs(
        config=config,
        read=lambda _held_out: read_answers(config.task, config.answers),
        lay_out=lambda examples, tokenizer, context: encode_answers(
            examples, config.task, tokenizer, context=context, kind=config.answers
        ),
        measure=lambda log: text_lengths(log.episodes),
        other_policies=[path for path in [config.reference()] if path is not None],
    )
    path = config.reference()
    if path is not None and not is_to_come(path) and inputs.has_model:
        inputs.more_checks = {"reference": partial(_check_reference, inputs, path)}
    return opened_text_run(inputs, preference_job)


def _check_reference(inputs: TextInputs[AnswerLog], path: str) -> list[str]:
    """None; raises DataError for a reference with another tokenizer."""
    require_same_tokens(
        inputs.tokenizer[0], open_tokenizer(ModelSource(path=path))[0], f"algorithm.reference = {path!r}"
    )
    return []


def derive_preferences(config: PreferenceRunConfig) -> Mapping[str, str]:
    """Figures that follow from the config, shown by `hone plan`."""
    learner, what = config.learner, "pairs" if config.answers == "preference" else "answers"
    return {
        f"{what} per step": str(config.batch),
        "optimizer steps": f"{config.steps} x {learner.epochs * learner.minibatches} = "
        f"{learner.optimizer_steps(config.steps)}",
        f"{what} seen": f"{config.steps * config.batch} (x {learner.epochs} epochs of each step)",
        "reference": "asked once, before the first step" if config.loss().needs_reference else "none",
        "micro-batch": f"at most {learner.micro_batch_tokens} tokens",
    }


def preference_recipe_spec(
    *,
    summary: str,
    paper: str,
    config: type[PreferenceRunConfig],
    loss: Sequence[Callable[..., object]],
    limitation: str,
    presets: Sequence[str] = (),
) -> RecipeSpec:
    """Description of a recipe that learns from a dataset of preferences; `loss` are the functions of its default."""
    what = "pairs" if config.answers == "preference" else "labelled answers"
    return RecipeSpec(
        summary=summary,
        paper=paper,
        config=config,
        open=open_preferences,
        derive=derive_preferences,
        parts=RecipeParts(source=f"Logged({what})", credit=(config.labels,), loss=loss, weights=(sequence_sum,)),
        limitation=limitation,
        presets=presets,
    )
