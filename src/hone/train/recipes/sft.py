"""Supervised fine-tuning: make the log's answers likelier.  loss = -sum(weight * log pi(token)) over completion tokens.

Only the completion is learned: prompts are seen, never imitated. Rows are packed without padding.
"""

from collections.abc import Mapping
from functools import partial

from hone.credit.returns import as_paid
from hone.envs.text import supervised
from hone.envs.text_task import TaskConfig
from hone.objectives.terms import Terms
from hone.objectives.weights import token_mean
from hone.train.config import RunConfig
from hone.train.job import Job
from hone.train.learner import GradientLearner
from hone.train.loop import Recipe
from hone.train.optimize import LearnerConfig, policy_phase, schedule
from hone.train.policies import ModelSource, open_policy, open_tokenizer
from hone.train.registry import Entry
from hone.train.sources import Logged
from hone.train.text import TokenPolicy, answer_rows
from hone.train.tokens import TokenBatch, TokenLayout
from hone.train.worked import SolutionConfig, worked_examples


class Sft(RunConfig):
    """Supervised fine-tuning of a language model."""

    model: ModelSource
    """The policy to start from."""
    task: TaskConfig
    """Prompts with completions; a task without completions needs `solution`."""
    solution: SolutionConfig | None = None
    """Makes the completions from what a task knows of its answers."""
    batch: int = 64
    """Examples per step."""
    learner: LearnerConfig
    """How it steps."""


def objective(policy: TokenPolicy, batch: TokenBatch) -> Terms:
    """-log pi of each completion token, in nats."""
    now = policy.outlook(batch)
    return Terms(loss=-batch.advantage * now.logp, metrics={"policy/nll_nats": -now.logp.detach()})


def build(config: Sft) -> Job[TokenPolicy]:
    tokenizer, context = open_tokenizer(config.model)
    examples = worked_examples(config.task, config.solution)
    log = supervised(*encode_examples(examples, config.task, tokenizer, context=context))
    policy = open_policy(config.model, seed=config.seed, device=config.run.device, temperature=1.0)
    recipe = Recipe(
        source=Logged[TokenPolicy](log=log, batch=config.batch, seed=config.seed),
        credit=as_paid,
        learner=GradientLearner(
            policy=policy,
            layout=TokenLayout(scheme=token_mean, share_prompts=False, device=config.run.device),
            phases=[policy_phase(policy, objective, config.learner)],
            seed=config.seed,
            learning_rate=schedule(config.learner, config.learner.optimizer_steps(config.steps)),
            epochs=config.learner.epochs,
            minibatches=config.learner.minibatches,
            shuffle=config.learner.minibatches > 1,
            micro_batch_tokens=config.learner.micro_batch_tokens,
        ),
    )
    return Job(
        recipe=recipe,
        save_policy=policy.save,
        load_policy=policy.load,
        view=partial(answer_rows, tokenizer=policy.tokenizer),
        fingerprint=examples.fingerprint,
        warnings=examples.warnings,
    )


def derive(config: Sft) -> Mapping[str, str]:
    ...
