"""Small copy of a learner's policy in float64, and a synthetic batch with the difficulties of real ones.

Belongs here: input for a loss without environment, engine or reward function: ragged answers with tool output, groups
with shared prefixes, missing scores, groups with equal scores, and a group with a single score.
"""

import copy
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hone.control.networks.actor_critic import ControlPolicy
from hone.control.networks.mlp import ObservationInputs
from hone.core.credit import Credits
from hone.core.episodes import Episodes, ScoreStatus, Transcript
from hone.core.ragged import RaggedArray, offsets_of, owner_of, ranges
from hone.core.random import generator
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.scalar_head import new_scalar_head
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.token_scorer import TokenScorer
from hone.models.language.value_network import ValueNetwork
from hone.objectives.weights import token_mean
from hone.text.evaluate.open_policy import NewModelConfig
from hone.text.loss import chosen_logp, likeliest_tokens
from hone.text.rows import TokenLayout, TokenRows

VOCABULARY = 64
"""Vocabulary size of the copy."""
CONTROL_STEPS = 24
"""Decisions of a control batch."""
MAX_ANSWER_TOKENS = 12
"""Longest of most answers, in tokens."""
LONG_ANSWER_TOKENS = 40
"""Length of every fifth answer, in tokens, if the config allows it."""
KEPT_TOKENS = 8
"""Tokens that sampling left to choose from, where a config restricts it."""
OUTLIERS = 0.1
"""Share of decisions whose probability differs between policies by a large factor."""


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


def shrunken_copy(policy: nn.Module, *, seed: int) -> nn.Module:
    """Make a float64 policy of the same kind: a decoder of the same family with two narrow layers, or a copy of a small
    network with perturbed weights. The given policy is unchanged."""
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
    if isinstance(policy, TokenScorer):
        decoder = new_model(shrunken_model_config(policy.decoder.config), seed=seed).double()
        decoder.set_compute_dtype("float64")
        decoder.head = None
        return TokenScorer(new_scalar_head(decoder, seed=seed, reads=policy.model.reads), policy.tokenizer)
    other = copy.deepcopy(policy).double()
    if isinstance(other, ControlPolicy):
        other.spaces = replace(other.spaces, inputs=Float64Inputs(**asdict(other.spaces.inputs)))
    draws = generator(seed, "certificate", "weights")
    with torch.no_grad():
        for parameter in other.parameters():
            shake = 0.05 * draws.standard_normal(tuple(parameter.shape))
            parameter.add_(torch.from_numpy(shake).to(parameter.device))
    return other


def shrunken_model_config(config: ModelConfig) -> ModelConfig:
    """Config of the same architecture with fewer and narrower layers."""
    sizes, experts = _shrunken_sizes(config.heads, config.kv_heads, config.layers), config.experts
    if experts is not None:
        few = _shrunken_experts(experts.count, experts.per_token)
        experts = replace(experts, **few, width=sizes["intermediate_size"])
    return replace(config, **sizes, experts=experts)


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


class Float64Inputs(ObservationInputs):
    """Inputs in float64."""

    def tensor(self, seen: Tensor) -> Tensor:
        return ObservationInputs.tensor(self, seen).double()


def matching_parameters(parameters: Sequence[nn.Parameter], policy: nn.Module, double: nn.Module) -> list[nn.Parameter]:
    """The double's parameters that have the names that `parameters` have in `policy`."""
    wanted = {id(parameter) for parameter in parameters}
    names = {name for name, parameter in policy.named_parameters() if id(parameter) in wanted}
    return [parameter for name, parameter in double.named_parameters() if name in names]


# ------------------------------------------------------------------------------------------------- tokens


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


def with_copy_logprobs(rows: TokenRows, double: TokenPolicy, *, seed: int) -> TokenRows:
    """Replace log-probabilities of the real policy in `rows` by synthetic ones of policies near the copy."""
    known, episodes = rows.precomputed, rows.episodes
    if known.ref_logp is not None:
        anchor = _chosen_logp(double, episodes) + _logp_noise(episodes, "anchor", quiet_every=5, seed=seed)
        known = replace(known, ref_logp=anchor)
    if known.old_logp is not None:
        known = replace(known, old_logp=_old_policy_logp(double, episodes, seed=seed))
    if known.top_k_ids is not None:
        question = partial(likeliest_tokens, double, known.top_k_ids.shape[1])
        ids, found = _token_rows(episodes).evaluate(question, 1 << 40)
        logp = found.astype(np.float64)
        shaken = logp + 0.1 * generator(seed, "certificate", "top k").standard_normal(logp.shape)
        shaken += np.logaddexp.reduce(logp, axis=1, keepdims=True) - np.logaddexp.reduce(shaken, axis=1, keepdims=True)
        known = replace(known, top_k_ids=ids.astype(np.int64), top_k_logp=shaken)
    return replace(rows, layout=replace(rows.layout, device="cpu"), precomputed=known)


def with_copy_values(rows: TokenRows, *, seed: int) -> TokenRows:
    """Replace the real critic's values in `rows` by synthetic ones near their targets."""
    known = rows.precomputed
    if known.value_target is None or known.old_value is None:
        return replace(rows, layout=replace(rows.layout, device="cpu"))
    noise = generator(seed, "certificate", "values").standard_normal(rows.episodes.decisions)
    known = replace(known, old_value=known.value_target.astype(np.float64) + 0.3 * noise)
    return replace(rows, layout=replace(rows.layout, device="cpu"), precomputed=known)


# ------------------------------------------------------------------------------------------------- control


def synthetic_control_episodes(policy: ControlPolicy, *, seed: int) -> Episodes:
    """Make STEPS decisions in episodes of different lengths: some terminated, some truncated, some unfinished."""
    draws = generator(seed, "certificate", "steps")
    lengths = np.array([1, 5, 7, 2, 6, 3], np.int64)
    inputs, count = policy.spaces.inputs, len(lengths)
    seen, final = (_synthetic_observations(inputs, size, draws) for size in (CONTROL_STEPS, count))
    acting = policy.numpy_policy()
    chosen, logp = acting.decide(seen, acting.noise(draws, (CONTROL_STEPS,)))
    kind = np.arange(count) % 3
    return Episodes(
        offsets=offsets_of(lengths),
        seen=seen,
        chosen=chosen,
        logp=(logp + 0.2 * draws.standard_normal(CONTROL_STEPS)).astype(np.float32),
        version=np.zeros(CONTROL_STEPS, np.int32),
        reward=draws.standard_normal(CONTROL_STEPS, np.float32),
        group=np.arange(count, dtype=np.int64),
        terminated=kind == 0,
        truncated=kind == 1,
        final=final,
        score=np.zeros(count),
    )


def _synthetic_observations(inputs: ObservationInputs, count: int, draws: np.random.Generator) -> NDArray[np.generic]:
    if inputs.one_hot:
        return draws.integers(inputs.start, inputs.start + inputs.size, count)
    return draws.standard_normal((count, inputs.size), np.float32)


def synthetic_credits(episodes: Episodes, *, seed: int) -> Credits:
    """Make synthetic credits with every field that a layout may read, in place of the config's own."""
    draws = generator(seed, "certificate", "credits")
    advantage, target = draws.standard_normal((2, episodes.decisions))
    silent = ~np.isfinite(episodes.score) | (np.arange(len(episodes)) % 7 == 3)
    advantage[silent[episodes.owner]] = 0.0
    return Credits(
        advantage=advantage.astype(np.float32),
        target=target.astype(np.float32),
        discount=np.where(draws.random(episodes.decisions) < 0.2, 0.0, 0.99).astype(np.float32),
    )
