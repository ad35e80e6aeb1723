"""Learners of language-model policies, and their evaluation along a run."""

from collections.abc import Callable
from functools import partial

from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.reduction import Reduction
from hone.evaluate.text.text_eval import TextEvaluation
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.terms import LossTerms
from hone.train.job import EvaluationResult
from hone.train.learner.config import LearnerConfig, learning_rate_schedule, policy_phase
from hone.train.learner.gradient import GradientLearner
from hone.train.text.flops import token_compute_cost
from hone.train.text.rows import TokenBatch, TokenRows


def evaluate_policy(evaluation: TextEvaluation, policy: TokenPolicy) -> EvaluationResult:
    """The policy as it stands, on the held-out prompts."""
    judged = evaluation.evaluate_policy(policy)
    return EvaluationResult(estimate=judged.estimate, metrics=judged.metrics(), answers=judged.rows())


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
    return GradientLearner(
        policy=policy,
        layout=layout,
        phases=[policy_phase(policy, objective, config, prepare=prepare)],
        seed=seed,
        learning_rate=learning_rate_schedule(config, config.optimizer_steps(steps)),
        epochs=config.epochs,
        minibatches=config.minibatches,
        shuffle=config.minibatches > 1,
        micro_batch_tokens=config.micro_batch_tokens,
        compute_cost=partial(token_compute_cost, epochs=config.epochs),
    )
