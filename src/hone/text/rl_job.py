"""Reinforcement learning of a language model, wired: prompts, engine, rewards, credit, one loss, evaluation.

Belongs here: what every recipe that learns from its own scored answers has in common. A recipe file holds its config,
whose `method` wires credit, loss and learner, and ends in `text_recipe_spec`; see `recipes/text/grpo.py`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes, concatenate
from hone.credit.turns import dialogues_as_one
from hone.engine.clients.config import ServerEngine
from hone.engine.engine import EmbeddedEngine
from hone.learner.gradient import GradientLearner
from hone.learner.ranked_build import trained_policy
from hone.models.language.token_policy import TokenPolicy
from hone.run.job import OpenedRun, RecipeParts, RecipeSpec, TrainingJob
from hone.run.loop import Recipe, Source
from hone.run.recipe_parts import LIVE_SOURCE, recipe_parts
from hone.run.store.survivorship import Fate, SurvivorshipCounts
from hone.run.wrapper import SourceWrapper, WithState
from hone.sources.asynchronous import AsyncSource
from hone.sources.live import LiveSource
from hone.sources.mixed import of_live_groups
from hone.text.balance import missing_routes
from hone.text.evaluate.engine_actor import EngineActor
from hone.text.fleet import generating_cluster
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
from hone.text.open_text import TextInputs, opened_text_run
from hone.text.reference_policies import TextPolicies, text_policies
from hone.text.rl_config import TextGradientRunConfig, TextMethod, TextRunConfig
from hone.text.rollout_config import RolloutConfig
from hone.text.rows import TokenBatch
from hone.text.samples import answer_metrics, judge_questions, reward_metrics
from hone.text.tasks.world import Prompt

if TYPE_CHECKING:
    from hone.text.captured import CapturedText

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
        found, self.collected = concatenate(self.collected), []
        return found


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
    chosen = config.method(text_policies(config, policy, micro_batch_tokens=config.micro_batch_tokens()))
    live = _open_live(config, inputs, policy, chosen)
    actor = live.actor
    recorded = _recorded_source(live.source(), actor, config.rollout)
    counts = SurvivorshipCounts()
    ahead, source = _wrapped_source(recorded, actor, chosen, config.rollout, counts)
    if config.rollout.sleep:
        source = _SleepingSource(source, partial(_release_engine, actor))
    source_is_ahead = config.rollout.asynchrony.steps > 0

    def judged(episodes: Episodes, values: Values) -> Credits:
        credits = dialogues_as_one(episodes, values, credit=chosen.credit)
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


def _release_engine(actor: EngineActor) -> None:
    """Free the memory of an embedded engine until it is needed."""
    if isinstance(actor.engine, EmbeddedEngine):
        actor.engine.release_memory()


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
        open=_open_text_run,
        derive=_derive_text_run,
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


def _open_text_run(config: TextRunConfig) -> OpenedRun:
    """Open data, rewards and tokenizer. Raises HoneError with all faults at once, before a model is loaded."""
    if config.task.server is not None:
        from hone.text.adapters.openenv import server_schema  # noqa: PLC0415 - tasks of a server only

        server_schema(config.task.server)  # whatever else is checked asks the server
    if config.task.is_captured:
        from hone.text.captured import captured_inputs  # noqa: PLC0415 - where agents come of themselves only

        return opened_text_run(captured_inputs(config, other_policies=config.other_policies()), _text_job)
    inputs = prompt_inputs(
        config,
        other_policies=config.other_policies(),
        second_answer=config.second_answer(),
        check_folders=config.check_folders,
        more_checks={
            **config.more_checks(),
            **_server_checks(config),
            "interleaving": lambda: check_replay(config, config.rollout.asynchrony),
        },
    )
    return opened_text_run(inputs, _text_job)


def _server_checks(config: TextRunConfig) -> dict[str, Callable[[], Sequence[str]]]:
    """The check that an OpenEnv server allows as many sessions as the run holds at the same time."""
    task, rollout = config.task, config.rollout
    if task.server is None:
        return {}
    from hone.text.adapters.openenv import check_server  # noqa: PLC0415 - tasks of a server only

    # A loop of dialogues holds twice as many as the engine answers.
    sessions = min(2 * rollout.max_concurrent, rollout.prompts_per_step * rollout.samples_per_prompt)
    address, options = task.server, task.world.options
    return {"server": lambda: check_server(address, sessions, options)}


def _derive_text_run(config: TextRunConfig) -> dict[str, str]:
    """prompts x samples -> sequences -> minibatches -> optimizer steps -> micro-batch tokens."""
    rollout = config.rollout
    sequences = rollout.prompts_per_step * rollout.samples_per_prompt
    cluster = generating_cluster(rollout, config.cluster)
    return {
        "sequences per step": f"{rollout.prompts_per_step} prompts x {rollout.samples_per_prompt} samples "
        f"= {sequences}",
        **config.derive_updates(),
        **rollout.asynchrony.derive(),
        **({} if cluster is None else cluster.derive()),
        **(rollout.runner.derive() if isinstance(rollout.runner, ServerEngine) else {}),
        **_answer_counts(config, sequences),
        "slots": str(rollout.max_concurrent),
        **judge_questions(config, config.rewards, answers=config.steps * sequences),
    }


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
    mismatch = config.learner.ratio.require_small_mismatch
    return replace(learner, on_metrics=mismatch, fingerprints=policies.fingerprints)
