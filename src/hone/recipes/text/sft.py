"""Supervised fine-tuning: make the log's answers likelier.  loss = -sum(weight * log pi(token)) over completion tokens.

Only the completion is learned: prompts are seen, never imitated. Rows are packed without padding.
"""

from collections.abc import Mapping
from functools import partial

from pydantic import Field, model_validator

from hone.credit.returns import as_paid
from hone.envs.text.dataset import Examples
from hone.envs.text.task import TaskConfig
from hone.envs.text.world import supervised
from hone.evaluate.text.open_policy import ModelSource, open_policy, open_tokenizer
from hone.evaluate.text.text_eval import EvaluationConfig, prepare_exam
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer
from hone.objectives.terms import Terms
from hone.objectives.weights import token_mean
from hone.train.config import RunConfig
from hone.train.job import Entry, Job, Parts, nothing
from hone.train.learner.config import LearnerConfig, require_master_weights, require_whole_minibatches
from hone.train.loop import Recipe
from hone.train.sources.logged import Logged
from hone.train.text.checks import check_text
from hone.train.text.learners import judge_policy, token_learner
from hone.train.text.rows import TokenBatch, TokenLayout
from hone.train.text.samples import answer_rows
from hone.train.text.sft_data import SolutionConfig, encode_examples, worked_examples


class Sft(RunConfig):
    """Supervised fine-tuning of a language model."""

    model: ModelSource
    """The policy to start from."""
    task: TaskConfig
    """Prompts with completions; a task without completions needs `solution`."""
    solution: SolutionConfig | None = None
    """Makes the completions from what a task knows of its answers."""
    batch: int = Field(default=64, ge=1)
    """Examples per step."""
    learner: LearnerConfig
    """How it steps."""
    evaluation: EvaluationConfig | None = None
    """Held-out prompts, judged along the way and at the end."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "Sft":
        require_master_weights(self.learner, self.model.weights)
        require_whole_minibatches(self.learner, self.batch, "batch")
        return self


def objective(policy: TokenPolicy, batch: TokenBatch) -> Terms:
    """-log pi of each completion token, in nats."""
    now = policy.outlook(batch.packed, batch.at, batch.chosen)
    return Terms(loss=-batch.advantage * now.logp, told=lambda: {"policy/nll_nats": -now.logp.detach()})


def build(config: Sft) -> Job[TokenPolicy]:
    tokenizer, context = open_tokenizer(config.model)
    exam = None if config.evaluation is None else prepare_exam(config.evaluation, tokenizer, context=context)
    examples = worked_examples(config.task, config.solution, apart_from=() if exam is None else (exam.examples,))
    prompts, completions, notes = encode_examples(examples, config.task, tokenizer, context=context)
    log = supervised(prompts, completions)
    policy = open_policy(config.model, seed=config.seed, device=config.run.device, temperature=1.0)
    recipe = Recipe(
        source=Logged[TokenPolicy](log=log, batch=config.batch, seed=config.seed),
        credit=as_paid,
        learner=token_learner(
            config.learner,
            policy,
            layout=TokenLayout(scheme=token_mean, rounded=policy.decoder.mixed, device=config.run.device),
            objective=objective,
            seed=config.seed,
            steps=config.steps,
        ),
    )
    return Job(
        recipe=recipe,
        save_policy=policy.save,
        load_policy=policy.load,
        view=partial(answer_rows, tokenizer=policy.tokenizer),
        judge=None if exam is None else partial(judge_policy, exam, policy),
        judge_every=0 if config.evaluation is None else config.evaluation.every,
        fingerprint=examples.fingerprint,
        warnings=[*examples.warnings, *notes, *policy.decoder.notes(), *([] if exam is None else exam.warnings)],
        close=exam.close if exam is not None else nothing,
    )


def check(config: Sft) -> list[str]:
    return check_text(
        config.model,
        partial(worked_examples, config.task, config.solution),
        partial(_fitting, config),
        evaluation=config.evaluation,
    )


def _fitting(config: Sft, examples: Examples, tokenizer: Tokenizer, context: int) -> list[str]:
    return encode_examples(examples, config.task, tokenizer, context=context)[2]


def derive(config: Sft) -> Mapping[str, str]:
    learner = config.learner
    return {
        "examples per step": str(config.batch),
        "optimizer steps": f"{config.steps} x {learner.epochs * learner.minibatches} = "
        f"{learner.optimizer_steps(config.steps)}",
        "examples seen": f"{config.steps * config.batch} (x {learner.epochs} epochs of each step)",
        "micro-batch": f"at most {learner.micro_batch_tokens} tokens",
    }


ENTRY = Entry(
    summary="supervised fine-tuning: imitate the log's completions",
    source="negative log-likelihood of completion tokens",
    config=Sft,
    build=build,
    check=check,
    derive=derive,
    parts=Parts(source="Logged(examples)", credit=(as_paid,), loss=(objective,), weights=(token_mean,)),
    limitation="what it imitates is what it becomes; it never sees its own mistakes.",
)
