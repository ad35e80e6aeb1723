"""Learners of language-model policies, and what every job of theirs has in common."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.reduction import Reduction
from hone.learner.config import LearnerConfig, learning_rate_schedule, policy_phase
from hone.learner.gradient import GradientLearner, OptimizerPhase
from hone.learner.low_rank_parameters import LowRankParameters, low_rank_phase
from hone.learner.share import sharded_store, trained_policy
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.terms import LossTerms
from hone.objectives.weights import PromptScheme, WeightingScheme
from hone.run.job import EvaluationResult, RunSettings, TrainingJob
from hone.run.loop import Recipe
from hone.text.balance import ExpertBalance
from hone.text.evaluate.text_eval import TextEvaluation
from hone.text.flops import matmul_rate, token_compute_cost
from hone.text.open_text import TextInputs
from hone.text.rows import TokenBatch, TokenLayout, TokenRows
from hone.text.samples import answer_table
from hone.text.saved_optimizer import restore_optimizer


def evaluate_policy(evaluation: TextEvaluation, policy: TokenPolicy) -> EvaluationResult:
    """The policy as it stands, on the held-out prompts."""
    judged = evaluation.evaluate_policy(policy)
    return EvaluationResult(estimate=judged.estimate, metrics=judged.metrics(), answers=judged.rows())


def language_job(
    inputs: TextInputs[Any], policy: TokenPolicy, recipe: Recipe[TokenPolicy], *, warnings: Sequence[str] = ()
) -> TrainingJob[TokenPolicy]:
    """Job of a recipe on `inputs`: its policy is saved, shown and evaluated; `warnings` are the recipe's own."""
    exam, examples, (_, notes) = inputs.evaluation, inputs.examples, inputs.prepared
    evaluation = inputs.config.answers_evaluation()
    if inputs.config.model.optimizer:
        restore_optimizer(recipe.learner, inputs.config.model)
    evaluation_warnings = [] if exam is None else exam.warnings
    return TrainingJob(
        recipe=recipe,
        save_policy=policy.save,
        load_policy=policy.load,
        rollouts=partial(answer_table, tokenizer=policy.tokenizer),
        evaluate=None if exam is None else partial(evaluate_policy, exam, policy),
        evaluate_every=0 if evaluation is None else evaluation.every,
        dataset_fingerprint=examples.fingerprint,
        measure_matmuls=partial(matmul_rate, policy),
        write_protect=inputs.write_protect,
        warnings=[*examples.warnings, *notes, *policy.decoder.notes(), *warnings, *evaluation_warnings],
    )


def step_layout(
    scheme: WeightingScheme | PromptScheme, learner: LearnerConfig, run: RunSettings, *, mixed_precision: bool
) -> TokenLayout:
    """Layout of the batches of a run's optimizer steps."""
    return TokenLayout(
        scheme=scheme,
        min_rows=learner.minibatches,
        pass_tokens=learner.micro_batch_tokens,
        shares=run.shares,
        pad_to_size=mixed_precision,
        device=run.device,
    )


def token_learner(
    config: LearnerConfig,
    policy: TokenPolicy,
    *,
    layout: Callable[[Episodes, Credits], TokenRows],
    objective: Callable[[TokenPolicy, TokenBatch], LossTerms],
    seed: int,
    steps: int,
    prepare: Callable[[TokenPolicy, TokenRows, int, Reduction], TokenRows] | None = None,
) -> GradientLearner[TokenPolicy, TokenBatch]:
    """The gradient learner of every recipe on tokens; `steps` is the whole run's, for the learning rate's decay."""
    policy = trained_policy(policy)
    if policy.decoder.config.experts is None:
        phase = _phase(config, policy, objective, prepare)
    else:
        balance = ExpertBalance(policy.expert_training, config.micro_batch_tokens)
        phase = _phase(config, policy, balance.objective(objective), balance.prepare(prepare))
        phase = replace(phase, on_micro_batch=balance.on_micro_batch, step_metrics=balance.finish)
    return GradientLearner(
        policy=policy,
        layout=layout,
        phases=[phase],
        seed=seed,
        learning_rate=learning_rate_schedule(config, config.optimizer_steps(steps)),
        epochs=config.epochs,
        minibatches=config.minibatches,
        shuffle=config.minibatches > 1,
        micro_batch_tokens=config.micro_batch_tokens,
        compute_cost=partial(token_compute_cost, epochs=config.epochs),
    )


def _phase(
    config: LearnerConfig,
    policy: TokenPolicy,
    objective: Callable[[TokenPolicy, TokenBatch], LossTerms],
    prepare: Callable[[TokenPolicy, TokenRows, int, Reduction], TokenRows] | None,
) -> OptimizerPhase[TokenPolicy, TokenBatch]:
    """The phase of all weights of a policy, or of its adapter, which is merged after each step."""
    if policy.adapter is None:
        return policy_phase(policy, objective, config, prepare=prepare)
    parameters = sharded_store(policy) or LowRankParameters(policy.adapter)
    return low_rank_phase(policy.adapter, parameters, objective, config, prepare=prepare)
