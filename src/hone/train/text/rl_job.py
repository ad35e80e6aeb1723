"""Reinforcement learning of a language model, wired: prompts, engine, rewards, credit, one loss, evaluation.

Belongs here: what every recipe that learns from its own scored answers has in common. A recipe file holds its config,
whose `method` wires credit, loss and learner, and ends in `text_recipe_spec`; see `recipes/text/grpo.py`.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

from pydantic import model_validator

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.state import Stateful
from hone.engine.clients.config import ServerEngine
from hone.envs.text.world import Prompt
from hone.evaluate.text.engine_actor import EngineActor
from hone.evaluate.text.open_policy import open_policy
from hone.models.language.token_policy import TokenPolicy
from hone.rewards.config import RewardsConfig
from hone.rewards.judges.questions import shown_template
from hone.train.job import OpenedRun, RecipeParts, RecipeSpec, TrainingJob, no_notices
from hone.train.learner.config import require_master_weights, require_whole_minibatches
from hone.train.learner.gradient import GradientLearner
from hone.train.loop import Learner, Recipe, Source
from hone.train.recipe_parts import LIVE_SOURCE, recipe_parts
from hone.train.sources.asynchronous import AsyncSource
from hone.train.sources.live import LiveSource
from hone.train.sources.wrapper import WithState
from hone.train.text.learners import language_job, token_learner
from hone.train.text.live import open_live_text, prompt_inputs
from hone.train.text.loss import TokenLoss, TokenLossSpec
from hone.train.text.loss_adapters import AGGREGATIONS, AggregationConfig
from hone.train.text.memory import generation_copies
from hone.train.text.open_text import LanguageRunConfig, TextInputs, opened_text_run
from hone.train.text.presets import PresetName, preset_values
from hone.train.text.ratio import (
    Denominator,
    RatioLearnerConfig,
    require_small_mismatch,
    resolve_correction,
    resolve_denominator,
    resolve_step_correction,
)
from hone.train.text.reference_policies import TextPolicies
from hone.train.text.rollout_config import RolloutConfig
from hone.train.text.rows import TokenBatch, TokenLayout
from hone.train.text.samples import answer_metrics, reward_metrics

TextCredit = Callable[[Episodes, Values], Credits]


class TextRunConfig(LanguageRunConfig):
    """Config shared by the recipes that learn from scored answers, with any kind of update."""

    requires: ClassVar[Sequence[Callable[..., None]]] = ()
    """What a recipe asks of its config beyond the types; each raises ValueError, naming the keys."""

    optimizer_moments: ClassVar[int] = 0

    preset: PresetName | None = None
    """Library whose defaults `algorithm` and `learner.ratio` take where they are not given; unset: the recipe's own."""
    rewards: RewardsConfig
    """Reward functions and the processes that run them."""
    rollout: RolloutConfig
    """Generation of the answers."""

    @model_validator(mode="after")
    def _check_rollout(self) -> "TextRunConfig":
        if isinstance(self.rollout.runner, ServerEngine):
            require_full_distribution(self, why="a server does not say which tokens it left, so that ratios are biased")
        for requirement in self.requires:
            requirement(self)
        self.rewards.check_group_size(self.rollout.samples_per_prompt, "rollout.samples_per_prompt")
        return self

    @classmethod
    def preset_values(cls, given: Mapping[str, object]) -> Mapping[str, object]:
        """What `preset` sets for the recipe, without what `given` sets. Raises ValueError where there is none."""
        return preset_values(cls, given)

    def weight_copies(self) -> dict[str, int]:
        algorithm = self.model_dump().get("algorithm", {})
        return {**generation_copies(self.model, self.rollout, self.run.device, algorithm), **super().weight_copies()}

    def other_policies(self) -> Sequence[str]:
        """Folders of further policies that the run reads, for the check."""
        return ()

    @abstractmethod
    def method(self, policies: TextPolicies) -> "TextMethod":
        """Credit and learner of the recipe, wired; `recipe_parts` reads their names from here."""

    @abstractmethod
    def micro_batch_tokens(self) -> int:
        """Tokens that go through the network at a time."""

    @abstractmethod
    def derive_updates(self) -> dict[str, str]:
        """Derived numbers of a step's updates, for `hone plan`."""


class TextGradientRunConfig(TextRunConfig):
    """Config shared by the recipes that learn from scored answers by gradient."""

    optimizer_moments: ClassVar[int] = 2
    auto_denominator: ClassVar[Denominator] = "auto"
    """What a recipe takes `learner.ratio.denominator = "auto"` for; `auto`: the first that fits."""

    needs_old_policy: ClassVar[bool] = False
    """The recipe computes log-probabilities of the policy before the update, whatever the ratio's denominator."""

    learner: RatioLearnerConfig
    """The optimizer, minibatches and the importance ratio."""

    @model_validator(mode="after")
    def _check_learner(self) -> "TextGradientRunConfig":
        rollout = self.rollout
        require_whole_minibatches(self.learner, rollout.prompts_per_step, "rollout.prompts_per_step")
        require_master_weights(self.learner, self.model.weights)
        if self.denominator() == "recorded" and self.learner.ratio.rejections and not self.needs_old_policy:
            raise ValueError(
                "learner.ratio.rejections compare the policy before the update with the behaviour policy, and a ratio "
                "against recorded log-probabilities computes only the second; set learner.ratio.denominator = "
                '"recomputed"'
            )
        resolve_step_correction(self.learner.ratio)
        return self

    def micro_batch_tokens(self) -> int:
        return self.learner.micro_batch_tokens

    def derive_updates(self) -> dict[str, str]:
        learner = self.learner
        return {
            "minibatches": f"{learner.minibatches} of {self.rollout.prompts_per_step // learner.minibatches} prompts, "
            f"{learner.epochs} epochs",
            "optimizer steps": f"{self.steps} steps x {learner.epochs * learner.minibatches} = "
            f"{learner.optimizer_steps(self.steps)}",
            "micro-batch": f"at most {learner.micro_batch_tokens} tokens",
        }

    def denominator(self) -> Literal["self", "recomputed", "recorded"]:
        """Resolve `ratio.denominator`."""
        ratio, stale = self.learner.ratio, self.rollout.asynchrony.steps > 0
        if ratio.denominator == "auto":
            ratio = ratio.model_copy(update={"denominator": self.auto_denominator})
        return resolve_denominator(ratio, updates_per_rollout=self.learner.optimizer_steps(1), is_stale=stale)


def require_full_distribution(
    config: TextRunConfig, *, why: str = "this recipe looks at other tokens than the chosen one, and needs them all"
) -> None:
    """The embedded engine records what top-k, top-p and min-p left, and the trainer draws the same line: ratios stay
    unbiased. Where that cannot be done, truncation is refused."""
    rollout = config.rollout
    cut = [f"rollout.top_k = {rollout.top_k}"] if rollout.top_k else []
    cut += [f"rollout.top_p = {rollout.top_p}"] if rollout.top_p < 1 else []
    cut += [f"rollout.min_p = {rollout.min_p}"] if rollout.min_p > 0 else []
    if cut:
        raise ValueError(f"{' and '.join(cut)}: {why}; leave it out, and lower rollout.temperature instead")


def require_groups(config: TextRunConfig) -> None:
    """Credit that compares the answers to one question needs two of them."""
    if config.rollout.samples_per_prompt < 2:
        raise ValueError("rollout.samples_per_prompt must be at least 2: answers are judged by each other")


def require_on_policy(config: TextGradientRunConfig) -> None:
    """A loss without a ratio is the policy gradient of the policy that answered, and of no later one."""
    if steps := config.rollout.asynchrony.steps:
        raise ValueError(
            f"rollout.max_staleness = {steps}: this loss has no ratio, and would be biased on the answers of an "
            "older policy; leave it out, or take a recipe with a ratio such as grpo"
        )
    updates = config.learner.optimizer_steps(1)
    if updates > 1:
        raise ValueError(
            f"learner.epochs x learner.minibatches = {updates}: this loss has no ratio, and would be biased after the "
            "first update on the same answers; set both to 1, or take a recipe with a ratio such as grpo"
        )


class GroupRunConfig(TextGradientRunConfig):
    """Config shared by the recipes that compare the answers to one question, by gradient."""

    requires = (require_groups,)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextMethod:
    """Parts that differ between the recipes on text."""

    credit: TextCredit
    learner: Learner[TokenPolicy]
    wrap_source: Callable[[Source[TokenPolicy]], Source[TokenPolicy]] | None = None
    """Wraps the source."""
    greedy_baseline: bool = False
    """Every prompt is answered greedily as well, for credit that compares with that."""
    credit_state: Stateful | None = None
    """The credit's, where it has one."""
    pop_notes: Callable[[], Sequence[str]] = no_notices
    """Returns notes for the user since the last call."""


def text_job(config: TextRunConfig, inputs: TextInputs[Sequence[Prompt]]) -> TrainingJob[TokenPolicy]:
    """The recipe's parts, wired. Data and evaluation are opened before the model is loaded."""
    _ = inputs.prepared, inputs.evaluation
    policy = inputs.policy(temperature=config.rollout.temperature)
    judge = inputs.scorer
    judge.check(inputs.examples.column_names())
    chosen = config.method(_text_policies(config, policy))
    live = open_live_text(inputs, policy, config.rollout, greedy_baseline=chosen.greedy_baseline)
    actor = live.actor
    ahead, source = _wrapped_source(live.source(), actor, chosen, config.rollout)

    def judged(episodes: Episodes, values: Values) -> Credits:
        credits = chosen.credit(episodes, values)
        metrics = {**answer_metrics(episodes), **reward_metrics(config.rewards.names, episodes)}
        return replace(credits, metrics={**credits.metrics, **metrics})

    def close() -> None:
        ahead.close()
        actor.close()

    recipe = Recipe(source=source, credit=judged, learner=chosen.learner)
    job = language_job(inputs, policy, recipe, warnings=[*config.rollout.warnings(), *actor.notes()])
    return replace(job, pop_notices=lambda: [*judge.notes(), *actor.notes(), *chosen.pop_notes()], close=close)


def _wrapped_source(
    live: LiveSource[TokenPolicy], actor: EngineActor, chosen: TextMethod, rollout: RolloutConfig
) -> tuple[AsyncSource[TokenPolicy], Source[TokenPolicy]]:
    """Return the asynchronous source and the source of the loop: the same, or the live source without staleness."""
    steps = rollout.asynchrony.steps
    source: Source[TokenPolicy] = live if chosen.wrap_source is None else chosen.wrap_source(live)
    ahead = AsyncSource[TokenPolicy](
        source,
        max_staleness=steps,
        in_background=actor.engine.own_weights,
        partial_rollouts=rollout.mid_rollout_publish is not None,
    )
    if steps:
        source = ahead
    return ahead, source if chosen.credit_state is None else WithState(source, chosen.credit_state, "credit")


def text_recipe_spec(
    *,
    summary: str,
    paper: str,
    config: type[TextRunConfig],
    limitation: str,
    presets: Sequence[str] = (),
    parts: RecipeParts | None = None,
) -> RecipeSpec:
    """Description of a recipe on text; its parts are read from the config's `method`."""
    return RecipeSpec(
        summary=summary,
        paper=paper,
        config=config,
        open=open_text_run,
        derive=derive_text_run,
        parts=parts or text_parts(config),
        limitation=limitation,
        presets=presets,
    )


def text_parts(
    config: type[TextRunConfig], *extra_loss: Callable[..., object], source: str = LIVE_SOURCE
) -> RecipeParts:
    """Parts of a recipe on text, read from its `method`; the weights are those of its default aggregation, if it has
    one."""
    table = config.model_fields.get("algorithm")
    algorithm = None if table is None else table.annotation
    if not isinstance(algorithm, type) or not issubclass(algorithm, AggregationConfig):
        return recipe_parts(config.method, *extra_loss, source=source)
    scheme = AGGREGATIONS[algorithm.model_fields["aggregation"].default]
    return recipe_parts(config.method, *extra_loss, source=source, weights=(scheme,))


def open_text_run(config: TextRunConfig) -> OpenedRun:
    """Open data, rewards and tokenizer. Raises HoneError with all faults at once, before a model is loaded."""
    inputs = prompt_inputs(config, config.rollout, config.rewards, other_policies=config.other_policies())
    return opened_text_run(inputs, text_job)


def derive_text_run(config: TextRunConfig) -> dict[str, str]:
    """prompts x samples -> sequences -> minibatches -> optimizer steps -> micro-batch tokens."""
    rollout = config.rollout
    sequences = rollout.prompts_per_step * rollout.samples_per_prompt
    return {
        "sequences per step": f"{rollout.prompts_per_step} prompts x {rollout.samples_per_prompt} samples "
        f"= {sequences}",
        **config.derive_updates(),
        **rollout.asynchrony.derive(),
        "answers": f"{config.steps * sequences} of at most {rollout.max_tokens} tokens",
        "slots": str(rollout.max_concurrent),
        **_judge_questions(config.rewards, config.steps * sequences),
    }


def _judge_questions(rewards: RewardsConfig, answers: int) -> dict[str, str]:
    """The question of each judge, with names in place of the material, and the number of requests."""
    return {
        f"judge {name}": f"{judge.describe_cost(answers)}\n{shown_template(judge)}"
        for name, judge in rewards.judges.items()
    }


def gradient_learner(
    config: TextGradientRunConfig, policies: TextPolicies, loss: TokenLossSpec
) -> GradientLearner[TokenPolicy, TokenBatch]:
    """The learner of every recipe that steps its loss by AdamW."""
    policy = policies.policy
    layout = TokenLayout(
        scheme=loss.scheme,
        unit=loss.unit,
        term_weights=loss.term_weights,
        skip_zero_advantage=loss.proportional_to_advantage,
        pad_to_size=policy.decoder.is_mixed_precision,
        device=config.run.device,
    )
    token_loss = TokenLoss(
        loss=loss,
        denominator=config.denominator(),
        micro_batch_tokens=config.learner.micro_batch_tokens,
        reference=policies.reference() if loss.needs_reference else None,
        correction=resolve_correction(config.learner.ratio),
        step_correction=resolve_step_correction(config.learner.ratio),
        diagnostics=config.learner.ratio.diagnostics,
    )
    learner = token_learner(
        config.learner,
        policy,
        layout=token_loss.layout(layout, policy),
        objective=token_loss.objective,
        seed=config.seed,
        steps=config.steps,
        prepare=None if loss.select_tokens is None else token_loss.select_tokens,
    )
    mismatch = partial(require_small_mismatch, config.learner.ratio)
    return replace(learner, on_metrics=mismatch, fingerprints=policies.fingerprints)


def _text_policies(config: TextRunConfig, policy: TokenPolicy) -> TextPolicies:
    def frozen(path: str | None) -> TokenPolicy:
        """Another folder, or the policy that the run started from: the base of a new adapter, or loaded once more."""
        if path is None and policy.adapter is not None and policy.adapter.starts_at_base:
            return policy.base_policy()
        other = {} if path is None else {"path": path, "new": None}
        source = config.model.model_copy(update={"lora": None, **other})
        same = policy.tokenizer if path is None else None
        return open_policy(
            source, seed=config.seed, device=config.run.device, temperature=policy.temperature, tokenizer=same
        )

    return TextPolicies(
        policy=policy,
        open_frozen=frozen,
        micro_batch_tokens=config.micro_batch_tokens(),
        device=config.run.device,
    )
