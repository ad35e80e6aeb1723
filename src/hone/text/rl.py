"""Reinforcement learning of a language model: config, and the run that it describes, from prompts to one loss.

Belongs here: what every recipe that learns from its own scored answers has in common. A recipe file holds its config,
whose `method` wires credit, loss and learner; see `recipes/text/grpo.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar

import numpy as np
from pydantic import model_validator

from hone.core.config import with_values
from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes, concatenate
from hone.core.state import Stateful
from hone.credit.turns import dialogues_as_one
from hone.engine.clients.http import ServerEngine
from hone.learner.config import require_master_weights, require_whole_minibatches
from hone.learner.gradient import GradientLearner
from hone.learner.share import trained_policy
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer
from hone.parallel.config import ClusterConfig
from hone.planner.run_settings import PlannedRecipe
from hone.rewards.config import RewardsConfig
from hone.run.job import OpenedRun, RecipeParts, TrainingJob, no_notices
from hone.run.loop import Learner, Recipe, Source, SourceWrapper, WithState
from hone.run.recipe_parts import LIVE_SOURCE, recipe_parts
from hone.run.store.survivorship import Fate, SurvivorshipCounts
from hone.sources.asynchronous import AsyncSource
from hone.sources.live import LiveSource
from hone.sources.logged import of_live_groups
from hone.text.balance import missing_routes
from hone.text.dialogues.config import DialogueTaskConfig
from hone.text.evaluate.dialogues import SecondAnswer, dialogue_faults, with_world_reward
from hone.text.evaluate.engine_actor import EngineActor
from hone.text.fleet import generating_cluster, require_own_engine
from hone.text.interleaving import (
    RecordedSource,
    RecordingActor,
    ReplayedSource,
    ReplayingActor,
    check_replay,
    replayed_record,
)
from hone.text.learners import language_job, step_layout, token_learner
from hone.text.live import LiveText, open_live_text, prompt_inputs
from hone.text.loss import TokenLoss, TokenLossSpec
from hone.text.loss_adapters import AGGREGATIONS, AggregationConfig
from hone.text.open_text import DataRunConfig, TextInputs, opened_text_run
from hone.text.presets import PresetName, preset_values
from hone.text.quantised import outlier_notes, ratio_defaults, require_correction, require_ratio
from hone.text.ratio import Denominator, RatioLearnerConfig
from hone.text.reference_policies import TextPolicies, text_policies
from hone.text.rollout_config import RolloutConfig
from hone.text.rows import TokenBatch
from hone.text.samples import answer_metrics, answer_table, judge_questions, reward_metrics
from hone.text.tasks.world import Prompt

TextCredit = Callable[[Episodes, Values], Credits]

if TYPE_CHECKING:
    from hone.text.captured import CapturedText


class TextRunConfig(DataRunConfig):
    """A language model that answers prompts, or takes part in dialogues, and learns from the scores."""

    requires: ClassVar[Sequence[Callable[..., None]]] = ()
    """What a recipe asks of its config beyond the types; each raises ValueError, naming the keys."""

    keeps_last_words: ClassVar[bool] = False
    """The recipe learns from what a world says at the end of a dialogue, after the policy's last turn."""
    has_ratio: ClassVar[bool] = False
    """The loss has an importance ratio, which can correct for answers of another policy."""
    learns_as_it_answers: ClassVar[bool] = True
    """The policy changes between rollouts; False: answers are gathered first."""
    task: DialogueTaskConfig
    """The prompts, or the world of dialogues."""
    rewards: RewardsConfig
    """Reward functions; a world's own rewards count without being named."""
    rollout: RolloutConfig
    """Generation of the answers."""
    cluster: ClusterConfig | None = None
    """Replicas on several processes or machines that generate the answers; absent: the embedded engine."""

    @model_validator(mode="before")
    @classmethod
    def _pay_by_world(cls, given: object) -> object:
        return with_world_reward(given)

    @model_validator(mode="after")
    def _check_rollout(self) -> "TextRunConfig":
        if not self.learns_as_it_answers:
            _require_waiting_policy(self.rollout)
        elif isinstance(self.rollout.runner, ServerEngine):
            require_full_distribution(self, why="a server does not say which tokens it left, so that ratios are biased")
        for requirement in self.requires:
            requirement(self)
        if self.learns_as_it_answers:
            require_ratio(self.rollout, has_ratio=self.has_ratio and require_on_policy not in self.requires)
        _require_dialogues_fit(self.task, self.rewards, self.rollout)
        self.task.require_agents(self.user_code.agents)
        self.rewards.require_bounds_within(self.user_code.max_abs_score)
        require_own_engine(self.rollout, self.cluster)
        if self.rollout.grammar is not None and self.cluster is not None:
            raise ValueError("rollout.grammar is for the embedded engine, and [cluster] has replicas; leave it out")
        if self.cluster is not None:
            self.model.refuse_codes("weights are not sent to replicas in codes")
        if self.rollout.sleep and self.cluster is not None:
            raise ValueError("rollout.sleep is for the embedded engine, and [cluster] has replicas; leave it out")
        if (self.task.is_dialogue or self.task.is_captured) and self.second_answer() is not None:
            raise ValueError(
                f"task.source = {self.task.source!r}: this recipe answers prompts twice, and has no dialogues"
            )
        if self.labels is not None and self.rollout.learnable.truncated == "mask":
            raise ValueError(
                'rollout.learnable.truncated = "mask" keeps the scores of truncated answers as baselines of others, '
                'and this recipe has none: it labels answers; set rollout.learnable.truncated = "missing"'
            )
        self.rewards.check_group_size(self.rollout.samples_per_prompt, "rollout.samples_per_prompt")
        return self

    def open(self) -> OpenedRun:
        """Open data, rewards and tokenizer. Raises HoneError with all faults at once, before a model is loaded."""
        if self.task.server is not None:
            from hone.text.adapters.openenv import server_schema  # noqa: PLC0415 - tasks of a server only

            server_schema(self.task.server)  # whatever else is checked asks the server
        if self.task.is_captured:
            from hone.text.captured import captured_inputs  # noqa: PLC0415 - where agents come of themselves only

            return opened_text_run(
                captured_inputs(self, other_policies=self.other_policies(), more_checks=self.more_checks()), _text_job
            )
        inputs = prompt_inputs(
            self,
            other_policies=self.other_policies(),
            second_answer=self.second_answer(),
            check_folders=self.check_folders,
            more_checks={
                **self.more_checks(),
                **_server_checks(self),
                "interleaving": lambda: check_replay(self, self.rollout.asynchrony),
                "runner": lambda: outlier_notes(self.rollout, self.model),
            },
        )
        return opened_text_run(inputs, _text_job)

    @property
    def rows_per_step(self) -> int:
        return self.rollout.prompts_per_step

    def derive(self) -> dict[str, str]:
        """prompts x samples -> sequences -> minibatches -> optimizer steps -> micro-batch tokens."""
        rollout = self.rollout
        sequences = rollout.prompts_per_step * rollout.samples_per_prompt
        cluster = generating_cluster(rollout, self.cluster)
        return {
            "sequences per step": f"{rollout.prompts_per_step} prompts x {rollout.samples_per_prompt} samples "
            f"= {sequences}",
            **self.derive_updates(),
            **rollout.asynchrony.derive(),
            **({} if cluster is None else cluster.derive()),
            **(rollout.runner.derive() if isinstance(rollout.runner, ServerEngine) else {}),
            **_answer_counts(self, sequences),
            "slots": str(rollout.most_running(greedy=self.planned().greedy)),
            **judge_questions(self, self.rewards, answers=self.steps * sequences),
        }

    @classmethod
    def parts(cls) -> RecipeParts:
        return text_parts(cls)

    @classmethod
    def planned(cls) -> PlannedRecipe:
        """The recipe as far as a run's memory depends on it."""
        return PlannedRecipe(writes=True, moments=0)

    def other_policies(self) -> Sequence[str]:
        """Folders of further policies that the run reads, for the check."""
        return ()

    def check_folders(self, tokenizer: Tokenizer, longest: int) -> None:
        """Raise DataError for folders of further networks that do not go with the policy's tokens, or read fewer than
        the `longest` prompt and answer have."""

    def more_checks(self) -> Mapping[str, Callable[[], Sequence[str]]]:
        """Further checks before a model is loaded, by name, which return warnings or raise HoneError."""
        return {}

    def second_answer(self) -> SecondAnswer | None:
        """Nudge after which each prompt is answered again; None: once only."""
        return None

    def method(self, policies: TextPolicies) -> "TextMethod":
        """Credit and learner of the recipe, wired; `recipe_parts` reads their names from here."""
        raise TypeError(f"{type(self).__name__} names no method for {policies}")

    def micro_batch_tokens(self) -> int:
        """Tokens that go through the network at a time."""
        raise TypeError(f"{type(self).__name__} names no micro-batch")

    def derive_updates(self) -> dict[str, str]:
        """Derived numbers of a step's updates, for `hone plan`."""
        return {}


def _require_dialogues_fit(task: DialogueTaskConfig, rewards: RewardsConfig, rollout: RolloutConfig) -> None:
    """Raise ValueError with all settings of dialogues that do not go together."""
    faults = dialogue_faults(
        task, rewards, max_tokens=rollout.max_tokens, context=rollout.context, history=rollout.history
    )
    if faults:
        raise ValueError("; ".join(faults))


def _require_waiting_policy(rollout: RolloutConfig) -> None:
    """Raise ValueError for what makes sense only while the policy changes."""
    if rollout.learnable.truncated == "mask":
        raise ValueError(
            'rollout.learnable.truncated = "mask" keeps the scores of truncated answers as baselines of the others, '
            'and answers that are gathered have none; set rollout.learnable.truncated = "missing", or leave it out'
        )
    if rollout.learnable.count_missing:
        raise ValueError(
            "rollout.learnable.count_missing = true is about denominators of a loss on all answers, and here only a "
            "selection is imitated; leave it out"
        )
    if steps := rollout.asynchrony.steps:
        raise ValueError(
            f"rollout.max_staleness = {steps}: the policy does not change while answers are gathered, so that there is "
            "nothing to wait for; leave it out"
        )
    if rollout.sleep:
        raise ValueError("rollout.sleep: nothing is learnt while answers are gathered; leave it out")


def require_full_distribution(
    config: TextRunConfig, *, why: str = "this recipe looks at other tokens than the chosen one, and needs them all"
) -> None:
    """The embedded engine records what a grammar, top-k, top-p and min-p left, and the trainer draws the same line:
    ratios stay unbiased. Where that cannot be done, truncation is refused."""
    rollout = config.rollout
    cut = [f"rollout.top_k = {rollout.top_k}"] if rollout.top_k else []
    cut += [f"rollout.top_p = {rollout.top_p}"] if rollout.top_p < 1 else []
    cut += [f"rollout.min_p = {rollout.min_p}"] if rollout.min_p > 0 else []
    cut += [f"rollout.grammar = {rollout.grammar!r}"] if rollout.grammar is not None else []
    if cut:
        raise ValueError(f"{' and '.join(cut)}: {why}; leave it out, and lower rollout.temperature instead")


def require_groups(config: TextRunConfig) -> None:
    """Credit that compares the answers to one question needs two of them."""
    if config.rollout.samples_per_prompt < 2:
        raise ValueError("rollout.samples_per_prompt must be at least 2: answers are judged by each other")


def require_on_policy(config: "TextGradientRunConfig") -> None:
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


class TextGradientRunConfig(TextRunConfig):
    """A language model that learns from scored answers by gradient."""

    requires = (require_groups,)
    auto_denominator: ClassVar[Denominator] = "auto"
    """What a recipe takes `learner.ratio.denominator = "auto"` for; `auto`: the first that fits."""

    needs_old_policy: ClassVar[bool] = False
    """The recipe computes log-probabilities of the policy before the update, whatever the ratio's denominator."""
    has_ratio: ClassVar[bool] = True
    needs_entropy: ClassVar[bool] = False
    """The loss reads the entropy of every token, without an entropy bonus as well."""
    corrects_itself: ClassVar[bool] = False
    """The loss corrects for the behaviour policy by a weight of its own."""

    preset: PresetName | None = None
    """Library whose defaults `algorithm` and `learner.ratio` take where they are not given; unset: the recipe's own."""
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
        if not self.corrects_itself:
            require_correction(self.rollout, self.learner.ratio, denominator=self.denominator())
        self.learner.ratio.resolve_step_correction()
        return self

    @classmethod
    def preset_values(cls, given: Mapping[str, object]) -> Mapping[str, object]:
        """What `preset` sets, and what quantised rollouts set where neither it nor `given` does. Raises ValueError for
        a preset that the recipe has not."""
        values = preset_values(given)
        if cls.corrects_itself or cls.auto_denominator == "recorded":
            return values
        return with_values(values, ratio_defaults(with_values(given, values)))

    def micro_batch_tokens(self) -> int:
        return self.learner.micro_batch_tokens

    @classmethod
    def planned(cls) -> PlannedRecipe:
        rows = ("rollout.prompts_per_step", "rollout.samples_per_prompt")
        return PlannedRecipe(rows=rows, writes=True, entropy=cls.needs_entropy)

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
        return ratio.resolve_denominator(updates_per_rollout=self.learner.optimizer_steps(1), is_stale=stale)


@dataclass
class NotesOnce:
    """Notes for the user that are given out once."""

    notes: list[str]

    def __call__(self) -> list[str]:
        notes, self.notes = self.notes, []
        return notes


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


# --------------------------------------------------------------------------------------------------------- survivorship


P = TypeVar("P")


@dataclass
class CollectedSource(SourceWrapper[P]):
    """Source that remembers what it collected since it was last asked."""

    collected: list[Episodes] = field(default_factory=list[Episodes])

    def collect(self) -> Episodes:
        self.collected.append(self.source.collect())
        return self.collected[-1]

    def pop_collected(self) -> Episodes:
        """Everything collected since the last call."""
        episodes, self.collected = concatenate(self.collected), []
        return episodes


@dataclass
class FilteredSource(SourceWrapper[P]):
    """Source that selects groups of another one; counts the answers of those that it leaves out."""

    everything: CollectedSource[P]
    """The source that it selects from."""
    counts: SurvivorshipCounts

    def collect(self) -> Episodes:
        kept, everything = self.source.collect(), self.everything.pop_collected()
        dropped = ~np.isin(everything.group, kept.group)
        if dropped.any():
            _count_answers(self.counts, "filtered", everything.take(np.flatnonzero(dropped)))
        return kept


def _count_answers(counts: SurvivorshipCounts, fate: Fate, episodes: Episodes) -> None:
    """Count answers of one fate; a dialogue of several rows is one answer."""
    whole = episodes.join_rows()
    counts.add(fate, whole.lengths, whole.score)


def count_learnt(counts: SurvivorshipCounts, episodes: Episodes) -> None:
    """Count the answers of a batch that reached the learner, by their ends and rewards."""
    whole = episodes.join_rows()
    truncated = whole.truncated & whole.scored
    fates: dict[Fate, np.ndarray] = {
        "unscored": ~whole.scored, "truncated": truncated, "kept": whole.scored & ~truncated
    }  # fmt: skip
    for fate, chosen in fates.items():
        if chosen.any():
            counts.add(fate, whole.lengths[chosen], whole.score[chosen])


# --------------------------------------------------------------------------------------------------------------- rl job


def _text_job(config: TextRunConfig, inputs: TextInputs[Sequence[Prompt]]) -> TrainingJob[TokenPolicy]:
    """The recipe's parts, wired. Data and evaluation are opened before the model is loaded."""
    _ = inputs.prepared, inputs.evaluation
    policy = inputs.policy(temperature=config.rollout.temperature)
    judge = inputs.scorer
    judge.check(inputs.examples.column_names())
    policies = text_policies(config, policy, micro_batch_tokens=config.micro_batch_tokens())
    chosen = config.method(policies)
    live = _open_live(config, inputs, policy, chosen)
    actor = live.actor
    recorded = _recorded_source(live.source(), actor, config.rollout)
    counts = SurvivorshipCounts()
    ahead, source = _wrapped_source(recorded, actor, chosen, config.rollout, counts)
    if config.rollout.sleep:
        source = _SleepingSource(source, actor.release_memory)
    source_is_ahead = config.rollout.asynchrony.steps > 0
    credit, truncated = chosen.credit, config.rollout.learnable.truncated
    if truncated != "score":
        from hone.credit.shaping import overlong_filtered  # noqa: PLC0415 - where answers are filtered only

        credit = partial(overlong_filtered, credit=credit, in_statistics=truncated == "mask")

    def judged(episodes: Episodes, values: Values) -> Credits:
        credits = dialogues_as_one(episodes, values, credit=credit)
        own = of_live_groups(episodes)
        if source_is_ahead:
            ahead.require_fresh(own)
        own = own.join_rows()
        count_learnt(counts, own)
        metrics = {**answer_metrics(own), **reward_metrics(config.rewards.names, own)}
        return replace(credits, metrics={**credits.metrics, **metrics})

    def close() -> None:
        ahead.close()
        live.close()

    recipe = Recipe(source=source, credit=judged, learner=chosen.learner)
    warnings = [*config.rollout.warnings(), *missing_routes(policy, config.rollout), *actor.notes()]
    job = language_job(inputs, policy, recipe, warnings=warnings)
    open_folder = recorded.open_folder if isinstance(recorded, RecordedSource) else job.open_folder
    return replace(
        job,
        pop_notices=lambda: [*live.notes(), *chosen.pop_notes()],
        closing_lines=lambda: [*actor.closing_lines(), *counts.record().warnings()],
        rollouts=partial(
            answer_table,
            tokenizer=policy.tokenizer,
            rewards=config.rewards.names,
            reference=live.reference,
            efforts=live.efforts,
        ),
        pop_trace=policies.trace.pop,
        survivorship=counts,
        open_folder=open_folder,
        close=close,
    )


@dataclass
class _SleepingSource(SourceWrapper[TokenPolicy]):
    """Another source whose engine frees its memory when a step's episodes are there."""

    release: Callable[[], None]

    def collect(self) -> Episodes:
        episodes = super().collect()
        self.release()
        return episodes


def _open_live(
    config: TextRunConfig, inputs: TextInputs[Sequence[Prompt]], policy: TokenPolicy, chosen: TextMethod
) -> "LiveText | CapturedText":
    """The task and its engine: prompts or worlds of hone, or agents that call an address."""
    greedy = chosen.greedy_baseline
    if config.task.is_captured:
        from hone.text.captured import open_captured_text  # noqa: PLC0415 - where agents come of themselves only

        return open_captured_text(config, inputs, policy, greedy_baseline=greedy)
    return open_live_text(
        inputs,
        policy,
        config.rollout,
        greedy_baseline=greedy,
        keeps_last_words=config.keeps_last_words,
        cluster=config.cluster,
    )


def _recorded_source(live: LiveSource[TokenPolicy], actor: EngineActor, rollout: RolloutConfig) -> Source[TokenPolicy]:
    """Return the live source, which writes or repeats a record of the versions where the config asks for it."""
    record = replayed_record(rollout.asynchrony)
    if record is not None:
        assert isinstance(actor, ReplayingActor)
        actor.require_engine(record)
        return ReplayedSource(live, actor=actor, record=record)
    return RecordedSource(live, actor=actor) if isinstance(actor, RecordingActor) else live


def _wrapped_source(
    live: Source[TokenPolicy],
    actor: EngineActor,
    chosen: TextMethod,
    rollout: RolloutConfig,
    counts: SurvivorshipCounts,
) -> tuple[AsyncSource[TokenPolicy], Source[TokenPolicy]]:
    """Return the asynchronous source and the source of the loop: the same, or the live source without staleness."""
    steps = rollout.asynchrony.steps
    source = live
    if chosen.wrap_source is not None:
        everything = CollectedSource(live)
        source = FilteredSource(chosen.wrap_source(everything), everything, counts)
    ahead = AsyncSource[TokenPolicy](
        source,
        max_staleness=steps,
        in_background=actor.engine.own_weights and not isinstance(actor, ReplayingActor),
        on_demand=isinstance(actor, ReplayingActor),
        partial_rollouts=rollout.mid_rollout_publish is not None,
        on_drop=partial(_count_answers, counts, "stale"),
    )
    if steps:
        source = ahead
    return ahead, source if chosen.credit_state is None else WithState(source, chosen.credit_state, "credit")


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


def _server_checks(config: TextRunConfig) -> dict[str, Callable[[], Sequence[str]]]:
    """The check that an OpenEnv server allows as many sessions as the run holds at the same time."""
    task, rollout = config.task, config.rollout
    if task.server is None:
        return {}
    from hone.text.adapters.openenv import check_server  # noqa: PLC0415 - tasks of a server only

    # A loop of dialogues holds twice as many as the engine answers.
    sessions = min(2 * rollout.max_concurrent, rollout.prompts_per_step * rollout.samples_per_prompt)
    address, options = task.server, task.options
    return {"server": lambda: check_server(address, sessions, options)}


def _answer_counts(config: TextRunConfig, sequences: int) -> dict[str, str]:
    """Number and length of the run's answers, or of its dialogues."""
    most, rollout = config.steps * sequences, config.rollout
    if not config.task.is_dialogue:
        return {"answers": f"{most} of at most {rollout.max_tokens} tokens"}
    context = "the model's context" if rollout.context is None else f"{rollout.context} tokens"
    turns = f"{config.task.turns} turns of at most {rollout.max_tokens} tokens"
    return {"dialogues": f"{most} of at most {turns}, within {context}"}


def gradient_learner(
    config: TextGradientRunConfig, policies: TextPolicies, loss: TokenLossSpec
) -> GradientLearner[TokenPolicy, TokenBatch]:
    """The learner of every recipe that steps its loss by AdamW."""
    policy = trained_policy(policies.policy)
    layout = replace(
        step_layout(loss.scheme, config.learner, config.run, mixed_precision=policy.decoder.is_mixed_precision),
        unit=loss.unit,
        term_weights=loss.term_weights,
        skip_zero_advantage=loss.proportional_to_advantage,
    )
    token_loss = TokenLoss(
        loss=loss,
        denominator=config.denominator(),
        micro_batch_tokens=config.learner.micro_batch_tokens,
        reference=policies.reference() if loss.needs_reference else None,
        correction=config.learner.ratio.resolve_correction(),
        step_correction=config.learner.ratio.resolve_step_correction(),
        weight_cap=config.learner.ratio.token_weight_cap(),
        diagnostics=config.learner.ratio.diagnostics,
        learnable=config.rollout.learnable,
        trace=policies.trace,
    )
    policies.trace.first_pass_is_start = config.learner.optimizer_steps(1) == 1
    learner = token_learner(
        config.learner,
        policy,
        layout=token_loss.layout(layout, policy),
        objective=token_loss.objective,
        seed=config.seed,
        steps=config.steps,
        prepare=None if loss.select_tokens is None else token_loss.select_tokens,
    )
    mismatch = config.learner.ratio.require_small_mismatch
    return replace(learner, on_metrics=mismatch, fingerprints=policies.fingerprints)
