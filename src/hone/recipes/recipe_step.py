"""A recipe's own update on a network without numbers, with every tensor counted: passes before the loss, the loss, and
the optimizer's step.

The episodes are one micro-batch of texts of the longest length, of which no two begin alike. A learner that repeats its
step (epochs, minibatches) takes it once: the next one finds the same memory.
"""

import gc
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from hone.core.clock import Clock
from hone.core.credit import Credits
from hone.core.episodes import Episodes, Transcript
from hone.core.errors import HoneError
from hone.learner.gradient import GradientLearner
from hone.models.language.decoder import Decoder
from hone.models.language.lora import LoraAdapter, LoraSettings
from hone.models.language.scalar_head import ScalarHeadModel, TokenScorer
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import character_tokenizer
from hone.models.tensor_memory import TensorMemory, forget_operations, without_numbers
from hone.planner.run_memory import RunDimensions
from hone.recipes.text.sft import SftConfig, sft_learner
from hone.run.job import RunConfig
from hone.run.loop import Learner
from hone.text.collecting.round_job import RoundRunConfig, imitation_learner
from hone.text.critic import ActorCriticLearner
from hone.text.preference.preference_job import PreferenceRunConfig, answer_learner
from hone.text.reference_policies import TextPolicies
from hone.text.rl import TextRunConfig
from hone.text.scorers.scorer_job import ScorerRunConfig, scorer_learner
from hone.text.tracked_step import TrackedStep, decoder_config, why_not_tracked

if TYPE_CHECKING:
    from hone.parallel.group import RankGroup

TakenConfig: TypeAlias = TextRunConfig | RoundRunConfig | SftConfig | PreferenceRunConfig | ScorerRunConfig
"""Configs whose update can be taken apart from its data."""
_TAKEN: Final = (TextRunConfig, RoundRunConfig, SftConfig, PreferenceRunConfig, ScorerRunConfig)
_TEMPERATURE: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _RecipeStep:
    """Memory of a recipe's own update, or the reason why it was not taken."""

    tracked: TrackedStep | None = None
    reason: str = ""


def recipe_step(config: RunConfig, run: RunDimensions, *, clock: Clock) -> _RecipeStep:
    """Memory of one update of `config` on a network of the shape of `run`; never raises for a recipe that cannot be
    run without numbers, but says why."""
    if reason := why_not_tracked(run):
        return _RecipeStep(reason=reason)
    if not isinstance(config, _TAKEN):
        return _RecipeStep(reason=f"the update of {config.recipe} cannot be taken apart from its data")
    try:
        return _RecipeStep(tracked=take_recipe_step(config, run, clock=clock))
    except HoneError as fault:
        return _RecipeStep(reason=str(fault))
    except RuntimeError as fault:  # torch's own, where sizes follow from numbers
        reason = str(fault).strip().partition("\n")[0]
        return _RecipeStep(reason=f"a size in the update of {config.recipe} follows from numbers ({reason})")


def take_recipe_step(
    config: RunConfig, run: RunDimensions, *, clock: Clock, fake: bool = True, group: "RankGroup | None" = None
) -> TrackedStep:
    """Memory of one update of a recipe that can be taken apart. `fake`: of tensors without numbers. `group`: as a rank
    of it; without one, a run of several ranks is counted as one of them that sends nothing."""
    assert isinstance(config, _TAKEN)
    shape, episodes = decoder_config(run.shape), _episodes(config, run)
    lora = None if config.model.lora is None else config.model.lora.settings(shape)
    advantage = np.where(episodes.owner % 2 == 0, 1.0, -1.0).astype(np.float32)
    credits = Credits(advantage=advantage, target=advantage)
    with ExitStack() as stack:
        if group is None and run.ranks.are_several:
            from hone.parallel.group import fake_ranks  # noqa: PLC0415 - torch.distributed

            ranks = run.ranks
            rank = 0 if ranks.is_driver else ranks.count - 1
            group = stack.enter_context(fake_ranks(ranks.count, tensor=ranks.tensor, virtual=ranks.virtual, rank=rank))
        if fake:
            stack.enter_context(without_numbers())
        memory = stack.enter_context(TensorMemory())
        update = _update(lambda: _once(_learner(config, run, lora)), group)
        resident, begin = memory.live_bytes, clock.monotonic_s()
        memory.reset_peak()
        update(episodes, credits)
        return TrackedStep(
            resident_bytes=resident,
            working_bytes=memory.peak_bytes - resident,
            operation=memory.peak_operation,
            seconds=clock.monotonic_s() - begin,
        )


def _update(build: Callable[[], Learner[Any]], group: "RankGroup | None") -> Callable[[Episodes, Credits], object]:
    """An update of the learner that is built, or of this rank's part of it."""
    if group is None:
        return build().update
    from hone.learner.share import building_for  # noqa: PLC0415 - ranks alone need it
    from hone.parallel.ranked_job import RankWork  # noqa: PLC0415 - torch.distributed
    from hone.parallel.sharded_build import ShardedBuild  # noqa: PLC0415 - torch.distributed

    sharded = ShardedBuild(group)
    with building_for(sharded):
        learner = build()
    for twin in sharded.twins if not group.is_driver else []:
        twin.forget_whole()
    gc.collect()
    forget_operations()  # both let go of the whole weights
    return RankWork(learner=learner, group=group, twins=sharded.twins).update


def _learner(config: TakenConfig, run: RunDimensions, lora: LoraSettings | None) -> Learner[Any]:
    """The recipe's learner of a network without numbers."""
    if isinstance(config, ScorerRunConfig):
        decoder = _decoder(run)
        decoder.head = None
        model = ScalarHeadModel(decoder, reads=config.reads)
        scorer = TokenScorer(model, character_tokenizer(["a"]), adapter=_adapter(decoder, lora))
        return scorer_learner(config, scorer)
    policy = _policy(run, lora)
    if isinstance(config, SftConfig):
        return sft_learner(config, policy)
    if isinstance(config, RoundRunConfig):
        return imitation_learner(config, policy)

    def another(path: str | None) -> TokenPolicy:
        """A policy of the same shape, whatever its folder."""
        if path is None and policy.adapter is not None and policy.adapter.starts_at_base:
            return policy.base_policy()
        return _policy(run, None)

    pairs = isinstance(config, PreferenceRunConfig)
    tokens = config.learner.micro_batch_tokens if pairs else config.micro_batch_tokens()
    policies = TextPolicies(
        policy=policy, open_frozen=another, micro_batch_tokens=tokens, device="cpu", fingerprint=lambda _: ""
    )
    if pairs:
        return answer_learner(config.learner, policies, config.loss(), seed=config.seed, steps=config.steps)
    return config.method(policies).learner


def _decoder(run: RunDimensions) -> Decoder:
    settings = run.step
    dtype = f"int{settings.code_bits}" if settings.code_bits else settings.weights
    decoder = Decoder(decoder_config(run.shape), dtype=dtype, checkpoint_activations=settings.checkpointing)
    decoder.set_compute_dtype(settings.compute)
    decoder.rounds_weights_again = settings.rounds_again
    return decoder


def _policy(run: RunDimensions, lora: LoraSettings | None) -> TokenPolicy:
    decoder = _decoder(run)
    policy = TokenPolicy(decoder, character_tokenizer(["a"]), _TEMPERATURE, adapter=_adapter(decoder, lora))
    policy.vocab_size_used = run.shape.vocab
    return policy


def _adapter(decoder: Decoder, lora: LoraSettings | None) -> LoraAdapter | None:
    return None if lora is None else LoraAdapter(decoder, lora, base_folder=Path(), base_sha256="")


def _once(learner: Learner[Any]) -> Learner[Any]:
    """The learner with one optimizer step an update."""
    if isinstance(learner, ActorCriticLearner):
        return replace(learner, actor=_one_step(learner.actor), critic=_one_step(learner.critic))
    return _one_step(learner) if isinstance(learner, GradientLearner) else learner


def _one_step(learner: GradientLearner[Any, Any]) -> GradientLearner[Any, Any]:
    return replace(learner, epochs=1, minibatches=1, shuffle=False)


def _episodes(config: RunConfig, run: RunDimensions) -> Episodes:
    """Texts that fill a micro-batch, in groups of those that answer one prompt; all of a text but its prompt was
    chosen, or its end where a scorer is trained."""
    step, ranks = run.own_step, run.ranks
    longest, unread = step.text_tokens, 0 if isinstance(config, ScorerRunConfig) else 1
    passes = 2 if step.accumulates and not step.virtual_shares else 1
    together = step.texts_together
    count = max(1, step.tokens // longest // together) * together * passes * (ranks.shares if ranks.are_several else 1)
    prompt = 1 if run.generation is None else max(1, run.generation.prompt_tokens)
    chosen = 1 if isinstance(config, ScorerRunConfig) else longest + unread - prompt
    offsets = np.arange(count + 1) * (longest + unread)
    tokens = np.zeros(offsets[-1], np.int32)
    tokens[offsets[:-1]] = np.arange(count) % run.shape.vocab  # no two texts begin alike
    at = (offsets[1:, None] + np.arange(-chosen, 0)).reshape(-1)
    samples = config.rollout.samples_per_prompt if isinstance(config, TextRunConfig) and together == 1 else 2
    decisions = count * chosen
    return Episodes(
        offsets=np.arange(count + 1) * chosen,
        seen=Transcript(tokens=tokens, offsets=offsets, at=at),
        chosen=tokens[at],
        logp=np.zeros(decisions, np.float32),
        version=np.zeros(decisions, np.int32),
        reward=np.ones(decisions, np.float32),
        group=np.arange(count) // samples,
        terminated=np.ones(count, np.bool_),
        truncated=np.zeros(count, np.bool_),
        score=(np.arange(count) % 2).astype(np.float64),
        ref_logp=np.zeros(decisions, np.float32) if isinstance(config, PreferenceRunConfig) else None,
    )
