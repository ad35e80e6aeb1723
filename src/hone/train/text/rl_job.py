"""Reinforcement learning of a language model, wired: prompts, engine, rewards, credit, one loss, evaluation.

Belongs here: what every recipe that learns from its own scored answers has in common. A recipe file says its `Method`
(credit, loss, learner), the config of its numbers, and ends in `text_entry`; see `recipes/text/grpo.py`.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal, TypeVar

from pydantic import model_validator

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.state import Stateful
from hone.engine.clients.config import ServerEngine
from hone.envs.text.dataset import Examples
from hone.envs.text.task import TaskConfig
from hone.envs.text.world import Prompt, TextWorld
from hone.evaluate.text.engine_actor import (
    EngineActor,
    PoolJudge,
    Promises,
    make_client,
    make_engine,
    make_prompts,
    pool_judge,
)
from hone.evaluate.text.open_policy import ModelSource, open_policy, open_tokenizer
from hone.evaluate.text.text_eval import EvaluationConfig, prepare_exam
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer
from hone.objectives.weights import Scheme, constant_length, sequence_mean, token_mean
from hone.rewards.config import RewardsConfig
from hone.train.config import RunConfig
from hone.train.job import Entry, Job, Parts
from hone.train.learner.config import require_master_weights, require_whole_minibatches
from hone.train.learner.gradient import GradientLearner
from hone.train.loop import Learner, Recipe, Source
from hone.train.sources.asynchronous import Ahead
from hone.train.sources.live import Live
from hone.train.text.checks import check_text
from hone.train.text.learners import judge_policy, token_learner
from hone.train.text.loss import Loss, RatioLearnerConfig, TokenLoss, alarm, correction_of, denominator_of
from hone.train.text.reference_policies import Policies, Remembering
from hone.train.text.rollout_config import RolloutConfig
from hone.train.text.rows import TokenBatch, TokenLayout
from hone.train.text.samples import answer_metrics, answer_rows

Aggregation = Literal["token_mean", "sequence_mean", "constant_length"]
Credit = Callable[[Episodes, Values], Credits]


class TextRun(RunConfig):
    """What every recipe that learns from scored answers is configured by, however it steps."""

    requires: ClassVar[Sequence[Callable[..., None]]] = ()
    """What a recipe asks of its config beyond the types; each raises ValueError, naming the keys."""

    model: ModelSource
    """The policy to start from."""
    task: TaskConfig
    """The prompts."""
    rewards: RewardsConfig
    """What an answer is worth."""
    rollout: RolloutConfig
    """How answers are generated."""
    evaluation: EvaluationConfig | None = None
    """Held-out prompts, judged along the way and at the end."""

    @model_validator(mode="after")
    def _rollout_fits(self) -> "TextRun":
        if isinstance(self.rollout.runner, ServerEngine):
            untruncated(self, why="a server does not say which tokens it left, so that ratios are biased")
        for requirement in self.requires:
            requirement(self)
        return self

    @abstractmethod
    def micro_batch_tokens(self) -> int:
        """Tokens that go through the network at a time."""

    @abstractmethod
    def updates(self) -> dict[str, str]:
        """What a step's answers are cut into, for `hone plan`."""


class TextRl(TextRun):
    """What every recipe that learns from scored answers by gradient is configured by."""

    learner: RatioLearnerConfig
    """How the policy is stepped."""

    @model_validator(mode="after")
    def _learner_fits(self) -> "TextRl":
        rollout = self.rollout
        require_whole_minibatches(self.learner, rollout.prompts_per_step, "rollout.prompts_per_step")
        require_master_weights(self.learner, self.model.weights)
        self.denominator()
        correction_of(self.learner.ratio)
        return self

    def micro_batch_tokens(self) -> int:
        return self.learner.micro_batch_tokens

    def updates(self) -> dict[str, str]:
        learner = self.learner
        return {
            "minibatches": f"{learner.minibatches} of {self.rollout.prompts_per_step // learner.minibatches} prompts, "
            f"{learner.epochs} epochs",
            "optimizer steps": f"{self.steps} steps x {learner.epochs * learner.minibatches} = "
            f"{learner.optimizer_steps(self.steps)}",
            "micro-batch": f"at most {learner.micro_batch_tokens} tokens",
        }

    def denominator(self) -> Literal["self", "recomputed", "recorded"]:
        """What `ratio.denominator` comes to."""
        stale = self.rollout.collecting.steps > 0
        return denominator_of(self.learner.ratio, updates_per_rollout=self.learner.optimizer_steps(1), stale=stale)


def untruncated(
    config: TextRun, *, why: str = "this recipe looks at other tokens than the chosen one, and needs them all"
) -> None:
    """The embedded engine records what top-k, top-p and min-p left, and the trainer draws the same line: ratios stay
    unbiased. Where that cannot be done, truncation is refused."""
    rollout = config.rollout
    cut = [f"rollout.top_k = {rollout.top_k}"] if rollout.top_k else []
    cut += [f"rollout.top_p = {rollout.top_p}"] if rollout.top_p < 1 else []
    cut += [f"rollout.min_p = {rollout.min_p}"] if rollout.min_p > 0 else []
    if cut:
        raise ValueError(f"{' and '.join(cut)}: {why}; leave it out, and lower rollout.temperature instead")


def groups(config: TextRun) -> None:
    """Credit that compares the answers to one question needs two of them."""
    if config.rollout.samples_per_prompt < 2:
        raise ValueError("rollout.samples_per_prompt must be at least 2: answers are judged by each other")


def one_update(config: TextRl) -> None:
    """A loss without a ratio is the policy gradient of the policy that answered, and of no later one."""
    if steps := config.rollout.collecting.steps:
        raise ValueError(
            f"rollout.ahead = {steps}: this loss has no ratio, and would be biased on the answers of an "
            "older policy; leave it out, or take a recipe with a ratio such as grpo"
        )
    updates = config.learner.optimizer_steps(1)
    if updates > 1:
        raise ValueError(
            f"learner.epochs x learner.minibatches = {updates}: this loss has no ratio, and would be biased after the "
            "first update on the same answers; set both to 1, or take a recipe with a ratio such as grpo"
        )


def scheme_of(aggregation: Aggregation, max_tokens: int) -> Scheme:
    """Names become functions here, at the edge."""
    schemes: Mapping[str, Scheme] = {
        "token_mean": token_mean,
        "sequence_mean": sequence_mean,
        "constant_length": partial(constant_length, length=max_tokens),
    }
    return schemes[aggregation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """What makes one recipe differ from another."""

    credit: Credit
    learner: Learner[TokenPolicy]
    decorate: Callable[[Source[TokenPolicy]], Source[TokenPolicy]] | None = None
    """Wraps the source."""
    baseline: bool = False
    """Every prompt is answered greedily as well, for credit that compares with that."""
    memory: Stateful | None = None
    """The credit's, where it has one."""


C = TypeVar("C", bound=TextRun)


def text_job(config: C, *, method: Callable[[C, Policies], Method]) -> Job[TokenPolicy]:
    """The recipe's parts, wired. Data are read and checked before the model is loaded."""
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
    chosen = method(config, _policies(config, policy))
    world = _world(config, policy, prompts, judge, baseline=chosen.baseline)
    actor = _actor(config, policy, prompts)
    ahead, source = _source(Live[TokenPolicy](world, actor, figures=actor.metrics), actor, chosen, config.rollout)

    def judged(episodes: Episodes, values: Values) -> Credits:
        credits = chosen.credit(episodes, values)
        return replace(credits, metrics={**credits.metrics, **answer_metrics(episodes)})

    def close() -> None:
        ahead.close()
        actor.close()
        judge.pool.close()
        if exam is not None:
            exam.close()

    return Job(
        recipe=Recipe(source=source, credit=judged, learner=chosen.learner),
        save_policy=policy.save,
        load_policy=policy.load,
        view=partial(answer_rows, tokenizer=policy.tokenizer),
        judge=None if exam is None else partial(judge_policy, exam, policy),
        judge_every=0 if config.evaluation is None else config.evaluation.every,
        fingerprint=examples.fingerprint,
        warnings=[
            *examples.warnings,
            *notes,
            *policy.decoder.notes(),
            *config.rollout.notes(),
            *actor.notes(),
            *([] if exam is None else exam.warnings),
        ],
        notes=lambda: [*judge.notes(), *actor.notes()],
        close=close,
    )


def _source(
    live: Live[TokenPolicy], actor: EngineActor, chosen: Method, rollout: RolloutConfig
) -> tuple[Ahead[TokenPolicy], Source[TokenPolicy]]:
    """What collects ahead, and what the loop asks: that, or with no step ahead the live source itself."""
    steps = rollout.collecting.steps
    source: Source[TokenPolicy] = live if chosen.decorate is None else chosen.decorate(live)
    ahead = Ahead[TokenPolicy](source, most=steps, overlap=actor.engine.own_weights, midway=rollout.midway is not None)
    if steps:
        source = ahead
    return ahead, source if chosen.memory is None else Remembering(source, chosen.memory)


def text_entry(
    *,
    summary: str,
    source: str,
    config: type[C],
    method: Callable[[C, Policies], Method],
    parts: Parts,
    limitation: str,
    presets: Sequence[str] = (),
) -> Entry:
    """What the file of a recipe on text offers: its method, and what people should know of it."""
    return Entry(
        summary=summary,
        source=source,
        config=config,
        build=partial(text_job, method=method),
        check=check_rl,
        derive=derived,
        parts=replace(parts, source=parts.source or "Live(text task, engine)"),
        limitation=limitation,
        presets=presets,
    )


def check_rl(config: TextRun) -> list[str]:
    """Faults of data, rewards and model folder, before a model is loaded."""
    return check_text(
        config.model,
        config.task.examples,
        partial(_fitting, config),
        evaluation=config.evaluation,
        rewards=config.rewards,
    )


def _fitting(config: TextRun, examples: Examples, tokenizer: Tokenizer, context: int) -> list[str]:
    return make_prompts(examples, config.task, tokenizer, room=context - config.rollout.max_tokens)[1]


def derived(config: TextRun) -> dict[str, str]:
    """prompts x samples -> sequences -> minibatches -> optimizer steps -> micro-batch tokens."""
    rollout = config.rollout
    sequences = rollout.prompts_per_step * rollout.samples_per_prompt
    return {
        "sequences per step": f"{rollout.prompts_per_step} prompts x {rollout.samples_per_prompt} samples "
        f"= {sequences}",
        **config.updates(),
        **rollout.collecting.derived(),
        "answers": f"{config.steps * sequences} of at most {rollout.max_tokens} tokens",
        "slots": str(rollout.slots),
    }


def _world(
    config: TextRun, policy: TokenPolicy, prompts: Sequence[Prompt], judge: PoolJudge, *, baseline: bool
) -> TextWorld:
    return TextWorld(
        prompts=prompts,
        judge=judge,
        decode=policy.tokenizer.decode,
        sampling=config.rollout.sampling(),
        prompts_per_step=config.rollout.prompts_per_step,
        samples=config.rollout.samples_per_prompt,
        seed=config.seed,
        baseline=baseline,
    )


def _actor(config: TextRun, policy: TokenPolicy, prompts: Sequence[Prompt]) -> EngineActor:
    longest = max(len(prompt.tokens) for prompt in prompts)
    rollout = config.rollout
    if isinstance(rollout.runner, ServerEngine):
        return EngineActor(make_client(policy, rollout.runner, slots=rollout.slots, seed=config.seed))
    return EngineActor(
        make_engine(
            policy,
            slots=rollout.slots,
            longest_prompt=longest,
            max_tokens=rollout.max_tokens,
            seed=config.seed,
            runner=rollout.runner,
            promises=Promises(batch_invariant=rollout.deterministic == "batch", on_publish=rollout.midway),
        )
    )


def by_gradient(config: TextRl, policies: Policies, loss: Loss) -> GradientLearner[TokenPolicy, TokenBatch]:
    """The learner of every recipe that steps its loss by AdamW."""
    policy = policies.policy
    layout = TokenLayout(
        scheme=loss.scheme,
        skip_zero_advantage=loss.proportional,
        rounded=policy.decoder.mixed,
        device=config.run.device,
    )
    token_loss = TokenLoss(
        loss=loss,
        denominator=config.denominator(),
        micro_batch_tokens=config.learner.micro_batch_tokens,
        reference=policies.reference() if loss.reference else None,
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
    learner.constants = policies.constants
    if loss.select is not None:
        learner.phases[0].prepare = token_loss.select
    return learner


def _policies(config: TextRun, policy: TokenPolicy) -> Policies:
    def frozen(path: str | None) -> TokenPolicy:
        """Another folder, or the policy that the run started from, loaded once more."""
        changed = {} if path is None else {"path": path, "new": None}
        source = config.model.model_copy(update=changed)
        return open_policy(source, seed=config.seed, device=config.run.device, temperature=policy.temperature)

    return Policies(
        policy=policy,
        open_frozen=frozen,
        micro_batch_tokens=config.micro_batch_tokens(),
        device=config.run.device,
    )
