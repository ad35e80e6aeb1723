"""Reinforcement learning of a language model, wired: prompts, engine, rewards, credit, one loss, evaluation.

Belongs here: what every policy-gradient recipe on text has in common. A recipe adds its credit, its loss, and the
config of both; see `recipes/grpo.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import model_validator

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.envs.dataset import Examples
from hone.envs.text import Prompt, TextWorld
from hone.envs.text_task import TaskConfig
from hone.evaluate.asking import EngineActor, PoolJudge, make_engine, make_prompts, pool_judge
from hone.evaluate.policies import ModelSource, open_policy, open_tokenizer
from hone.evaluate.text import EvaluationConfig, prepare_exam
from hone.models.policy import TokenPolicy
from hone.models.tokenizers import Tokenizer
from hone.objectives.weights import Scheme, constant_length, sequence_mean, token_mean
from hone.rewards.config import RewardsConfig
from hone.train.config import RunConfig
from hone.train.job import Job
from hone.train.learner import GradientLearner
from hone.train.loop import Recipe, Source
from hone.train.optimize import require_master_weights, require_whole_minibatches
from hone.train.sources import Live
from hone.train.text import RolloutConfig, answer_metrics, answer_rows, check_text, judge_policy, token_learner
from hone.train.token_loss import Loss, RatioLearnerConfig, TokenLoss, alarm, correction_of, denominator_of
from hone.train.tokens import TokenBatch, TokenLayout

Aggregation = Literal["token_mean", "sequence_mean", "constant_length"]
Credit = Callable[[Episodes, Values], Credits]


class TextRl(RunConfig):
    """What every recipe that learns from scored answers is configured by."""

    model: ModelSource
    """The policy to start from."""
    task: TaskConfig
    """The prompts."""
    rewards: RewardsConfig
    """What an answer is worth."""
    rollout: RolloutConfig
    """How answers are generated."""
    learner: RatioLearnerConfig
    """How the policy is stepped."""
    evaluation: EvaluationConfig | None = None
    """Held-out prompts, judged along the way and at the end."""

    @model_validator(mode="after")
    def _parts_fit(self) -> "TextRl":
        rollout = self.rollout
        cut = [f"rollout.top_k = {rollout.top_k}"] if rollout.top_k else []
        cut += [f"rollout.top_p = {rollout.top_p}"] if rollout.top_p < 1 else []
        if cut:
            raise ValueError(
                f"{' and '.join(cut)}: answers drawn from a truncated distribution make the policy's ratio, and so its "
                "gradient, biased; leave out rollout.top_k and rollout.top_p, and lower rollout.temperature instead"
            )
        require_whole_minibatches(self.learner, rollout.prompts_per_step, "rollout.prompts_per_step")
        require_master_weights(self.learner, self.model.weights)
        self.denominator()
        correction_of(self.learner.ratio)
        return self

    def denominator(self) -> Literal["self", "recomputed", "recorded"]:
        """What `ratio.denominator` comes to."""
        return denominator_of(self.learner.ratio, updates_per_rollout=self.learner.optimizer_steps(1), stale=False)


def scheme_of(aggregation: Aggregation, max_tokens: int) -> Scheme:
    """Names become functions here, at the edge."""
    schemes: Mapping[str, Scheme] = {
        "token_mean": token_mean,
        "sequence_mean": sequence_mean,
        "constant_length": partial(constant_length, length=max_tokens),
    }
    return schemes[aggregation]


def text_job(
    config: TextRl,
    *,
    credit: Credit,
    loss: Loss,
    decorate: Callable[[Live[TokenPolicy]], Source[TokenPolicy]] | None = None,
) -> Job[TokenPolicy]:
    """The recipe's parts, wired. Data are read and checked before the model is loaded. `decorate` wraps the source."""
    tokenizer, context = open_tokenizer(config.model)
    exam = None if config.evaluation is None else prepare_exam(config.evaluation, tokenizer, context=context)
    held_out = () if exam is None else (exam.examples,)
    examples = config.task.examples(apart_from=held_out)
    prompts, notes = make_prompts(examples, config.task, tokenizer, room=context - config.rollout.max_tokens)
    policy = open_policy(
        config.model, seed=config.seed, device=config.run.device, temperature=config.rollout.temperature
    )
    judge = pool_judge(config.rewards)
    judge.pool.check(examples.column_names())
    live = Live[TokenPolicy](_world(config, policy, prompts, judge), _actor(config, policy, prompts))

    def judged(episodes: Episodes, values: Values) -> Credits:
        credits = credit(episodes, values)
        return replace(credits, metrics={**credits.metrics, **answer_metrics(episodes)})

    recipe = Recipe(
        source=live if decorate is None else decorate(live),
        credit=judged,
        learner=_learner(config, policy, loss),
    )

    def close() -> None:
        judge.pool.close()
        if exam is not None:
            exam.close()

    return Job(
        recipe=recipe,
        save_policy=policy.save,
        load_policy=policy.load,
        view=partial(answer_rows, tokenizer=policy.tokenizer),
        judge=None if exam is None else partial(judge_policy, exam, policy),
        judge_every=0 if config.evaluation is None else config.evaluation.every,
        fingerprint=examples.fingerprint,
        warnings=[*examples.warnings, *notes, *([] if exam is None else exam.warnings)],
        notes=judge.notes,
        close=close,
    )


def check_rl(config: TextRl) -> list[str]:
    """Faults of data, rewards and model folder, before a model is loaded."""
    return check_text(
        config.model,
        config.task.examples,
        partial(_fitting, config),
        evaluation=config.evaluation,
        rewards=config.rewards,
    )


def _fitting(config: TextRl, examples: Examples, tokenizer: Tokenizer, context: int) -> list[str]:
    return make_prompts(examples, config.task, tokenizer, room=context - config.rollout.max_tokens)[1]


def derived(config: TextRl) -> dict[str, str]:
    """prompts x samples -> sequences -> minibatches -> optimizer steps -> micro-batch tokens."""
    rollout, learner = config.rollout, config.learner
    sequences = rollout.prompts_per_step * rollout.samples_per_prompt
    return {
        "sequences per step": f"{rollout.prompts_per_step} prompts x {rollout.samples_per_prompt} samples "
        f"= {sequences}",
        "minibatches": f"{learner.minibatches} of {rollout.prompts_per_step // learner.minibatches} prompts, "
        f"{learner.epochs} epochs",
        "optimizer steps": f"{config.steps} steps x {learner.epochs * learner.minibatches} = "
        f"{learner.optimizer_steps(config.steps)}",
        "answers": f"{config.steps * sequences} of at most {rollout.max_tokens} tokens",
        "micro-batch": f"at most {learner.micro_batch_tokens} tokens",
        "slots": str(rollout.slots),
    }


def _world(config: TextRl, policy: TokenPolicy, prompts: Sequence[Prompt], judge: PoolJudge) -> TextWorld:
    return TextWorld(
        prompts=prompts,
        judge=judge,
        decode=policy.tokenizer.decode,
        sampling=config.rollout.sampling(),
        prompts_per_step=config.rollout.prompts_per_step,
        samples=config.rollout.samples_per_prompt,
        seed=config.seed,
    )


def _actor(config: TextRl, policy: TokenPolicy, prompts: Sequence[Prompt]) -> EngineActor:
    longest = max(len(prompt.tokens) for prompt in prompts)
    rollout = config.rollout
    return EngineActor(
        make_engine(
            policy, slots=rollout.slots, longest_prompt=longest, max_tokens=rollout.max_tokens, seed=config.seed
        )
    )


def _learner(config: TextRl, policy: TokenPolicy, loss: Loss) -> GradientLearner[TokenPolicy, TokenBatch]:
    layout = TokenLayout(
        scheme=loss.scheme,
        skip_zero_advantage=loss.proportional,
        device=config.run.device,
    )
    token_loss = TokenLoss(
        loss=loss,
        denominator=config.denominator(),
        micro_batch_tokens=config.learner.micro_batch_tokens,
        reference=_frozen(config, policy) if loss.reference else None,
        correction=correction_of(config.learner.ratio),
    )
    learner = token_learner(
        config.learner,
        policy,
        layout=token_loss.layout(layout, policy),
        objective=token_loss.objective,
        seed=config.seed,
        steps=config.steps,
    )
    learner.watch = partial(alarm, config.learner.ratio)
    if token_loss.reference is not None:
        learner.constants = {"the reference policy (model.path)": token_loss.reference.fingerprint()}
    if loss.select is not None:
        learner.phases[0].prepare = token_loss.select
    return learner


def _frozen(config: TextRl, policy: TokenPolicy) -> TokenPolicy:
    """The reference: the policy the run started from, loaded once more and never stepped."""
    reference = open_policy(config.model, seed=config.seed, device=config.run.device, temperature=policy.temperature)
    return reference.requires_grad_(requires_grad=False)
