"""Probes of a language model's loss: a small model in float64, and a synthetic batch as difficult as real ones.

Belongs here: input for a loss without engine or reward function: ragged answers with tool output, groups with shared
prefixes, missing scores, groups with equal scores, and a group with a single score; and other forms of a batch of
tokens that must have the same gradient.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hone.certify.check import (
    BatchVariant,
    GradientProbe,
    Objective,
    ObjectiveVariant,
    RowFinisher,
    gradient_probes,
    synthetic_credits,
)
from hone.core.credit import NO_VALUES, Credits
from hone.core.episodes import Episodes, ScoreStatus, Transcript
from hone.core.ragged import RaggedArray, offsets_of, owner_of, ranges
from hone.core.random import generator
from hone.core.reduction import ONE_PROCESS
from hone.learner.gradient import GradientLearner
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.scalar_head import LanguageNetwork, TokenScorer, ValueNetwork, new_scalar_head
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.terms import LossTerms
from hone.objectives.weights import token_mean
from hone.run.job import RunConfig, TrainingJob
from hone.run.loop import Learner
from hone.sources.logged import LogSource
from hone.text.evaluate.open_policy import NewModelConfig
from hone.text.loss import chosen_logp, likeliest_tokens
from hone.text.open_text import LanguageRunConfig
from hone.text.rl import TextRunConfig
from hone.text.rows import TokenBatch, TokenLayout, TokenRows

if TYPE_CHECKING:
    from hone.text.critic import ActorCriticLearner

VOCABULARY = 64
"""Vocabulary size of the copy."""
LOGGED_UNITS = 24
"""Answers of a batch from a dataset."""
MAX_ANSWER_TOKENS = 12
"""Longest of most answers, in tokens."""
LONG_ANSWER_TOKENS = 40
"""Length of every fifth answer, in tokens, if the config allows it."""
KEPT_TOKENS = 8
"""Tokens that sampling left to choose from, where a config restricts it."""
OUTLIERS = 0.1
"""Share of decisions whose probability differs between policies by a large factor."""
PAIRED_GROUPS = 8
"""Pairs of a loss on pairs; three of them have no label."""
QUICK_GROUP_SIZE = 4
"""Answers per group in the quick check."""
SILENCED_EVERY = 3
"""Period of the units with advantage 0, in the check that a learner may leave such units out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerShape:
    """Shape of the answers of a config."""

    groups: int = 5
    group_size: int = 4
    """Answers per group."""
    max_tokens: int = MAX_ANSWER_TOKENS
    reward_functions: int = 1
    """Reward functions."""
    from_log: bool = False
    """Whether answers come from a dataset: reward 1 per token, no log-probabilities."""
    has_reference: bool = False
    """Whether the answers bring log-probabilities of a reference policy."""
    restricted_sampling: bool = False
    """Whether top-k, top-p or min-p leaves only some tokens to choose from."""


def token_probes(
    learner: Learner[Any], job: TrainingJob[Any], config: RunConfig, *, own_credit: bool, seed: int
) -> list[GradientProbe]:
    """Probes of a policy's, scorer's or critic's phases; empty for another network."""
    if not isinstance(learner, GradientLearner):
        from hone.text.critic import ActorCriticLearner  # noqa: PLC0415 - learners of several networks only
        from hone.text.world_model import CuriousLearner  # noqa: PLC0415 - as above

        learner = learner.actor if isinstance(learner, CuriousLearner) else learner
        if isinstance(learner, ActorCriticLearner):
            return _actor_critic_probes(learner, job, config, own_credit=own_credit, seed=seed)
    if not isinstance(learner, GradientLearner) or not isinstance(learner.policy, TokenPolicy | TokenScorer):
        return []
    double, source = shrunken_copy(learner.policy, seed=seed), job.recipe.source
    if isinstance(double, TokenPolicy):
        episodes = synthetic_token_episodes(double, _answer_shape(job, config, quick=not own_credit), seed=seed)
    elif isinstance(source, LogSource):
        episodes = source.log.take(source.episodes_of(np.arange(min(LOGGED_UNITS, source.units))))
    else:
        return []
    labels = config.labels if isinstance(config, LanguageRunConfig | TextRunConfig) else None
    if labels is not None:
        credits = labels(episodes, NO_VALUES)
    elif own_credit:
        credits = job.recipe.credit(episodes, replace(learner, policy=double).values(episodes))
    elif isinstance(source, LogSource):
        credits = Credits(advantage=episodes.reward)
    else:
        credits = synthetic_credits(episodes, seed=seed)
    return _network_probes(learner, double, episodes, credits, seed=seed)


def _actor_critic_probes(
    learner: "ActorCriticLearner", job: TrainingJob[Any], config: RunConfig, *, own_credit: bool, seed: int
) -> list[GradientProbe]:
    """Probes of a policy's phase and of its critic's, on the same episodes and credits."""
    policy, critic = (shrunken_copy(one.policy, seed=seed) for one in (learner.actor, learner.critic))
    assert isinstance(policy, TokenPolicy)
    assert isinstance(critic, ValueNetwork)
    episodes = synthetic_token_episodes(policy, _answer_shape(job, config, quick=not own_credit), seed=seed)
    values = learner.view.values(critic, episodes)
    credits = job.recipe.credit(episodes, values) if own_credit else synthetic_credits(episodes, seed=seed)
    return [
        *_network_probes(learner.actor, policy, episodes, credits, seed=seed),
        *_network_probes(learner.critic, critic, episodes, credits, seed=seed),
    ]


def _answer_shape(job: TrainingJob[Any], config: RunConfig, *, quick: bool) -> AnswerShape:
    if not isinstance(config, TextRunConfig):
        if isinstance(config, LanguageRunConfig | TextRunConfig) and config.labels is not None:
            return AnswerShape(groups=PAIRED_GROUPS, group_size=2, has_reference=True)
        return AnswerShape(from_log=isinstance(job.recipe.source, LogSource))
    rollout = config.rollout
    samples = rollout.samples_per_prompt
    return AnswerShape(
        group_size=min(samples, QUICK_GROUP_SIZE) if quick else samples,
        max_tokens=rollout.max_tokens,
        reward_functions=len(config.rewards.functions),
        restricted_sampling=rollout.top_k > 0 or rollout.top_p < 1 or rollout.min_p > 0 or rollout.grammar is not None,
    )


def _network_probes(
    learner: GradientLearner[Any, Any], double: nn.Module, episodes: Episodes, credits: Credits, *, seed: int = 0
) -> list[GradientProbe]:
    """Probes of the learner's phases on `episodes`, with `double` as the network."""
    laid = learner.layout(episodes, credits)
    assert isinstance(laid, TokenRows)
    laid = replace(laid, layout=replace(laid.layout, device="cpu"))
    if isinstance(double, TokenPolicy):
        laid = _with_copy_logprobs(laid, double, seed=seed)
    if isinstance(double, ValueNetwork):
        laid = replace(laid, layout=replace(laid.layout, device="cpu"))
        known = laid.precomputed
        if known.value_target is not None and known.old_value is not None:
            # Synthetic values near their targets, in the place of the real critic's.
            noise = generator(seed, "certificate", "values").standard_normal(laid.episodes.decisions)
            values = known.value_target.astype(np.float64) + 0.3 * noise
            laid = replace(laid, precomputed=replace(known, old_value=values))
    return [with_token_checks(probe) for probe in gradient_probes(learner, double, laid)]


def with_token_checks(probe: GradientProbe) -> GradientProbe:
    """The probe with what must not change the gradient of tokens: padding, shared prefixes, what is left out."""
    rows, laid = probe.rows, probe.laid
    assert isinstance(rows, TokenRows)
    assert isinstance(laid, TokenRows)
    padded = replace(rows, layout=replace(rows.layout, pad_to_size=not rows.layout.pad_to_size))
    detail = "tokens without a decision fill each micro-batch up"
    variants = [BatchVariant(name="padded to a fixed size", detail=detail, rows=padded, reference=rows)]
    skipping = _without_advantage(laid, probe.finish)
    others: list[ObjectiveVariant] = []
    if isinstance(probe.policy, TokenPolicy | TokenScorer | ValueNetwork):
        spoilt = ObjectiveVariant(
            name="NaN where nothing was decided",
            detail="hidden states of prompts and tool output",
            change=_with_nan_hidden_states,
        )
        others.append(spoilt)
    if isinstance(probe.policy, TokenPolicy) and rows.precomputed.old_logp is None:
        own = ObjectiveVariant(
            name="old log-probabilities as data",
            detail="the policy's own log-probabilities before the update",
            change=_with_explicit_old_logp,
        )
        others.append(own)
    return replace(
        probe,
        batch=f"{len(rows.episodes)} sequences of {rows.episodes.decisions} tokens in {len(rows)} rows",
        unit="group" if rows.layout.unit == "group" else "sequence",
        separate=without_shared_prefixes(rows),
        large="sequences",
        large_count=len(rows.episodes),
        variants=variants if skipping is None else [*variants, skipping],
        objective_variants=others,
    )


def shrunken_copy(policy: nn.Module, *, seed: int) -> nn.Module:
    """Make a float64 network of the same kind on a decoder of the same family with two narrow layers."""
    if isinstance(policy, TokenPolicy):
        decoder = new_model(shrunken_model_config(policy.decoder.config), seed=seed).double()
        decoder.set_compute_dtype("float64")
        double = TokenPolicy(decoder, policy.tokenizer, policy.temperature)
        double.vocab_size_used = min(policy.vocab_size_used, VOCABULARY)
        return double
    if isinstance(policy, ValueNetwork):
        decoder = new_model(shrunken_model_config(policy.decoder.config), seed=seed).double()
        decoder.set_compute_dtype("float64")
        critic = ValueNetwork(decoder, outputs=policy.head.weight.shape[0])
        draws = generator(seed, "certificate", "head")
        with torch.no_grad():
            for parameter in critic.head.parameters():
                parameter.copy_(torch.from_numpy(0.2 * draws.standard_normal(tuple(parameter.shape))))
        return critic
    assert isinstance(policy, TokenScorer)
    decoder = new_model(shrunken_model_config(policy.decoder.config), seed=seed).double()
    decoder.set_compute_dtype("float64")
    decoder.head = None
    return TokenScorer(new_scalar_head(decoder, seed=seed, reads=policy.model.reads), policy.tokenizer)


def shrunken_model_config(config: ModelConfig) -> ModelConfig:
    """Config of the same architecture with fewer and narrower layers."""
    sizes, experts = _shrunken_sizes(config.heads, config.kv_heads, config.layers), config.experts
    if experts is not None:
        few = _shrunken_experts(experts.count, experts.per_token)
        few |= {"groups": 1, "groups_used": 1, "dense_layers": min(1, experts.dense_layers)}
        experts = replace(experts, **few, width=sizes["intermediate_size"])
    if config.by_texts:  # what is checked are the rules of a run, and they do not depend on its network
        return replace(config, family="llama", extra={}, **sizes)
    # Factors of LongRoPE are one for each pair of features.
    rope = replace(config.rope, kind="default") if config.rope.kind == "longrope" else config.rope
    return replace(config, **sizes, experts=experts, rope=rope)


def shrunken_new_model(new: NewModelConfig) -> NewModelConfig:
    """Smaller config of a new model."""
    sizes, experts = _shrunken_sizes(new.heads, new.kv_heads, new.layers), new.experts
    if experts is not None:
        few = _shrunken_experts(experts.count, experts.per_token)
        experts = experts.model_copy(update={**few, "width": sizes["intermediate_size"]})
    return new.model_copy(update={**sizes, "experts": experts})


def _shrunken_experts(count: int, per_token: int) -> dict[str, int]:
    """Four experts at most, and two of them for a token."""
    return {"count": min(4, count), "per_token": min(2, per_token)}


def _shrunken_sizes(heads: int, kv_heads: int, layers: int) -> dict[str, int]:
    """Sizes with four heads, with grouped keys if the real model has them."""
    shared = 4 if kv_heads == heads else 2
    return {
        "hidden_size": 32,
        "intermediate_size": 48,
        "layers": min(2, layers),
        "heads": 4,
        "kv_heads": shared,
        "head_dim": 8,
    }


# ------------------------------------------------------------------------------------------------- synthetic answers


def synthetic_token_episodes(policy: TokenPolicy, shape: AnswerShape, *, seed: int) -> Episodes:
    """Make groups of answers, one question each.

    Group 1 lacks some scores, group 2 has equal scores, group 4 has one score only. Every third answer contains three
    tokens of tool output, and every fifth is long.
    """
    draws = generator(seed, "certificate", "answers")
    count = shape.groups * shape.group_size
    group = np.repeat(np.arange(shape.groups, dtype=np.int64), shape.group_size)
    lengths = draws.integers(1, min(MAX_ANSWER_TOKENS, shape.max_tokens) + 1, count)
    lengths[3::5] = min(LONG_ANSWER_TOKENS, shape.max_tokens)
    asked = draws.integers(10, 17, shape.groups)[group]
    tool = np.where((np.arange(count) % 3 == 0) & (lengths > 3), 3, 0)
    starts, offsets = offsets_of(asked + lengths + tool), offsets_of(lengths)
    tokens = draws.integers(0, policy.vocab_size_used, int(starts[-1])).astype(np.int32)
    for number in np.flatnonzero(np.diff(group, prepend=-1) == 0):  # one question per group
        here, before, size = starts[number], starts[number - 1], asked[number]
        tokens[here : here + size] = tokens[before : before + size]
    owner = owner_of(offsets)
    within = ranges(np.zeros(count, np.int64), lengths)
    at = starts[:-1][owner] + asked[owner] + within + np.where(within > 1, tool[owner], 0)
    components, status = _synthetic_scores(shape, group, draws)
    score = np.where(status == ScoreStatus.SCORED, components.sum(axis=1), np.nan)
    last = np.zeros(len(at), np.bool_)
    last[offsets[1:] - 1] = True
    truncated = lengths == lengths.max()
    episodes = Episodes(
        offsets=offsets,
        seen=Transcript(tokens=tokens, offsets=starts, at=at, kept=_kept_tokens(policy, tokens[at], shape, seed=seed)),
        chosen=tokens[at],
        logp=np.full(len(at), np.nan, np.float32),
        version=np.zeros(len(at), np.int32),
        reward=(np.ones(len(at)) if shape.from_log else np.where(last, np.nan_to_num(score)[owner], 0.0)).astype("f4"),
        group=np.arange(count, dtype=np.int64) if shape.from_log else group,
        terminated=~truncated,
        truncated=truncated,
        score=score,
        status=status,
        components=components,
        baseline=draws.integers(0, 2, count).astype(np.float64),
        ref_logp=np.zeros(len(at), np.float32) if shape.has_reference else None,
    )
    if shape.from_log:
        return replace(episodes, score=lengths.astype(np.float64), status=np.zeros(count, np.uint8))
    acted = _old_policy_logp(policy, episodes, seed=seed) + _logp_noise(episodes, "acted", quiet_every=2, seed=seed)
    return replace(episodes, logp=acted.astype(np.float32))


def _kept_tokens(
    policy: TokenPolicy, chosen: NDArray[np.int32], shape: AnswerShape, *, seed: int
) -> RaggedArray | None:
    """Tokens `[N]` rows that sampling left to choose from, with the chosen one; every fourth row is empty: all of
    them. None if the config does not restrict sampling."""
    if not shape.restricted_sampling:
        return None
    draws = generator(seed, "certificate", "kept")
    counts = np.where(np.arange(len(chosen)) % 4 == 3, 0, KEPT_TOKENS)
    offsets = offsets_of(counts)
    values = draws.integers(0, policy.vocab_size_used, int(offsets[-1])).astype(np.int32)
    values[offsets[:-1][counts > 0]] = chosen[counts > 0]
    return RaggedArray(values=values, offsets=offsets)


def _synthetic_scores(
    shape: AnswerShape, group: NDArray[np.int64], draws: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """Scores 0 or 1 of each reward function `[E, C]` with the special groups of `synthetic_token_episodes`, and
    statuses `[E]`."""
    count, samples = len(group), shape.group_size
    place = np.arange(count) % samples
    components = draws.integers(0, 2, (count, shape.reward_functions)).astype(np.float64)
    components[place == 0] = 0.0
    components[place == samples - 1] = 1.0
    components[group == 2] = 1.0
    missing = ((group == 1) & (place % 4 == 1)) | ((group == 4) & (place > 0))
    components[missing] = np.nan
    return components, np.where(missing, ScoreStatus.TIMEOUT, ScoreStatus.SCORED).astype(np.uint8)


def _token_rows(episodes: Episodes) -> TokenRows:
    """Lay the episodes out as rows without weights of an algorithm."""
    return TokenLayout(scheme=token_mean)(episodes, Credits(advantage=np.ones(episodes.decisions, np.float32)))


def _chosen_logp(policy: TokenPolicy, episodes: Episodes) -> NDArray[np.float64]:
    """Log-probabilities `[N]` in nats of the current policy."""
    (logp,) = _token_rows(episodes).evaluate(partial(chosen_logp, policy), 1 << 40)
    return logp.astype(np.float64)


def _old_policy_logp(policy: TokenPolicy, episodes: Episodes, *, seed: int) -> NDArray[np.float64]:
    """Log-probabilities `[N]` in nats of a synthetic older policy near `policy`."""
    return _chosen_logp(policy, episodes) + _logp_noise(episodes, "earlier", quiet_every=4, seed=seed)


def _logp_noise(episodes: Episodes, stream: str, *, quiet_every: int, seed: int) -> NDArray[np.float64]:
    """Noise `[N]` in nats: 0.3, for OUTLIERS of the decisions 3, and close to 0 in every `quiet_every`-th answer, so
    that some ratios are clipped, corrected or extreme and even the strictest rejection keeps some."""
    draws = generator(seed, "certificate", stream)
    noise = draws.standard_normal(episodes.decisions)
    noise = np.where(draws.random(episodes.decisions) < OUTLIERS, 10 * np.sign(noise), noise)
    return noise * np.where(np.arange(len(episodes)) % quiet_every == 0, 1e-4, 0.3)[episodes.owner]


def _with_copy_logprobs(rows: TokenRows, double: TokenPolicy, *, seed: int) -> TokenRows:
    """Replace log-probabilities of the real policy in `rows` by synthetic ones of policies near the copy."""
    known, episodes = rows.precomputed, rows.episodes
    if known.ref_logp is not None:
        anchor = _chosen_logp(double, episodes) + _logp_noise(episodes, "anchor", quiet_every=5, seed=seed)
        known = replace(known, ref_logp=anchor)
    if known.old_logp is not None:
        known = replace(known, old_logp=_old_policy_logp(double, episodes, seed=seed))
    if known.top_k_ids is not None:
        question = partial(likeliest_tokens, double, known.top_k_ids.shape[1])
        ids, logprobs = _token_rows(episodes).evaluate(question, 1 << 40)
        logp = logprobs.astype(np.float64)
        shaken = logp + 0.1 * generator(seed, "certificate", "top k").standard_normal(logp.shape)
        shaken += np.logaddexp.reduce(logp, axis=1, keepdims=True) - np.logaddexp.reduce(shaken, axis=1, keepdims=True)
        known = replace(known, top_k_ids=ids.astype(np.int64), top_k_logp=shaken)
    return replace(rows, layout=replace(rows.layout, device="cpu"), precomputed=known)


# ------------------------------------------------------------------------------------------------- other forms


def without_shared_prefixes(rows: TokenRows) -> TokenRows:
    """Convert to one row per sequence, with the same weights."""
    alone = replace(rows.layout, share_prefixes=False)(rows.episodes, Credits(advantage=rows.advantage))
    return replace(
        rows, row_offsets=alone.row_offsets, prefix_lengths=alone.prefix_lengths, unit_offsets=alone.unit_offsets
    )


def _without_advantage(laid: TokenRows, finish: RowFinisher) -> BatchVariant | None:
    """The batch with advantage 0 in every third sequence (or group), which a loss that is proportional to the advantage
    skips, against the same batch with nothing skipped. None if the loss skips nothing.
    """
    if not laid.layout.skip_zero_advantage:
        return None
    units = laid.unit_sequences if laid.layout.unit == "group" else np.arange(len(laid.episodes) + 1)
    unit = np.repeat(np.arange(len(units) - 1), np.diff(units))
    silent = (unit % SILENCED_EVERY == 1)[laid.episodes.owner]
    quiet = replace(laid, advantage=np.where(silent, np.float32(0), laid.advantage))
    whole = replace(quiet, layout=replace(quiet.layout, skip_zero_advantage=False))
    return BatchVariant(
        name="advantage 0 not left out",
        detail="the loss is declared proportional to the advantage, so that these are skipped",
        rows=finish(whole, ONE_PROCESS),
        reference=finish(quiet, ONE_PROCESS),
    )


def _with_explicit_old_logp(objective: Objective) -> Objective:
    """The objective with the policy's own log-probabilities given as data, as when they were computed before the
    update: what is compared with must not carry a gradient."""

    def run(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
        with torch.no_grad():
            known = policy.token_logprobs(batch.packed, batch.at, batch.chosen, sampling_mask=batch.sampling_mask).logp
        return objective(policy, replace(batch, old_logp=known))

    return run


def _with_nan_hidden_states(objective: Objective) -> Objective:
    """The objective with NaN in every hidden state without a decision."""

    def run(policy: LanguageNetwork, batch: TokenBatch) -> LossTerms:
        def spoil(_module: nn.Module, _given: object, hidden: Tensor) -> Tensor:
            decides = torch.zeros(len(hidden), dtype=torch.bool)
            decides[batch.at] = True
            return torch.where(decides[:, None], hidden, torch.nan)

        hook = policy.decoder.norm.register_forward_hook(spoil)
        try:
            return objective(policy, batch)
        finally:
            hook.remove()

    return run
