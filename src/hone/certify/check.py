"""Gradient certificate of a loss: a batch's gradient must not depend on its split, up to rounding.

Belongs here: splits and comparisons, for any learner of a recipe. The loss, its aggregation, selections and corrections
are the run's own; the policy is a small copy in float64 and the batch is synthetic (`probe.py`), so that neither an
environment nor a reward is needed, and the run is unchanged.
"""

import contextlib
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hone import __version__
from hone.certify.probe import (
    CONTROL_STEPS,
    AnswerShape,
    matching_parameters,
    shrunken_copy,
    synthetic_control_episodes,
    synthetic_credits,
    synthetic_token_episodes,
    with_copy_logprobs,
    with_copy_values,
)
from hone.certify.variants import (
    BatchVariant,
    Objective,
    RowFinisher,
    batch_variants,
    with_explicit_old_logp,
    with_nan_hidden_states,
    without_advantage,
)
from hone.control.networks.actor_critic import ControlPolicy
from hone.control.replay.source import ReplaySource
from hone.core.credit import NO_VALUES, Credits
from hone.core.episodes import Episodes
from hone.core.random import generator, permutation
from hone.core.reduction import ONE_PROCESS, Reduction
from hone.learner.gradient import GradientLearner, OptimizerPhase, TrainingRows, micro_batches
from hone.learner.rounds import RoundLearner
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.token_scorer import TokenScorer
from hone.models.language.value_network import ValueNetwork
from hone.run.config import RunConfig
from hone.run.job import TrainingJob
from hone.run.loop import Learner
from hone.run.store.certificate import GradientCertificate, GradientCheck
from hone.sources.logged import LogSource
from hone.text.critic import ActorCriticLearner
from hone.text.preference.preference_job import PreferenceRunConfig
from hone.text.rl_config import TextRunConfig
from hone.text.rows import TokenRows
from hone.text.world_model import CuriousLearner

RANDOM_BUDGETS = 3
"""Number of random micro-batch budgets."""
SUPPORTED_POLICIES = (TokenPolicy, TokenScorer, ControlPolicy)
"""Policies that `shrunken_copy` supports; others have no certificate."""
LEAST_GRADIENT = 1e-14
"""Largest component of a gradient that may be the rounding of zeros."""
PAIRED_GROUPS = 8
"""Pairs of a loss on pairs; three of them have no label."""
QUICK_GROUP_SIZE = 4
"""Answers per group in the quick check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientProbe:
    """One phase of a learner with the batch of one optimizer step after weighting and selection, ready to be split."""

    name: str
    policy: nn.Module
    objective: Objective
    parameters: Sequence[nn.Parameter]
    rows: TrainingRows[Any]
    laid: TrainingRows[Any]
    """The batch before weighting and selection."""
    finish: RowFinisher
    skipping: BatchVariant | None = None
    """Batch with zero advantages, where the learner leaves such sequences out."""
    objective_with_backward: Objective | None = None
    """The objective with its gradient written out, if the learner steps by that."""


BatchSplit = tuple[str, str, Sequence[TrainingRows[Any]]]
"""Name, description, and pieces of a split."""


def summed_gradient(trial: GradientProbe, pieces: Sequence[TrainingRows[Any]]) -> Tensor:
    """Gradient `[P]` in float64: the sum over `pieces` of the gradient of sum(weight * loss), as in the learner."""
    total = torch.zeros(sum(parameter.numel() for parameter in trial.parameters), dtype=torch.float64)
    for piece in (one for one in pieces if len(one)):  # of a rank's share, nothing may be left
        batch = piece.tensors()
        loss = trial.objective(trial.policy, batch).weighted_sum(batch.weight)
        found = torch.autograd.grad(loss, trial.parameters, allow_unused=True, materialize_grads=True)
        total += torch.cat([one.flatten() for one in found]).double().cpu()
    return total


def gradient_probes(
    learner: GradientLearner[Any, Any], double: nn.Module, episodes: Episodes, credits: Credits, *, seed: int = 0
) -> list[GradientProbe]:
    """Probes of the learner's phases on `episodes`, with `double` as the policy."""
    laid = learner.layout(episodes, credits)
    if isinstance(laid, TokenRows):
        laid = replace(laid, layout=replace(laid.layout, device="cpu"))
    if isinstance(laid, TokenRows) and isinstance(double, TokenPolicy):
        laid = with_copy_logprobs(laid, double, seed=seed)
    if isinstance(laid, TokenRows) and isinstance(double, ValueNetwork):
        laid = with_copy_values(laid, seed=seed)
    found: list[GradientProbe] = []
    for phase in learner.phases:
        finish = partial(_finished_rows, phase, double)
        found.append(
            GradientProbe(
                name=phase.name,
                policy=double,
                objective=phase.objective,
                parameters=matching_parameters(phase.parameters.parameters, learner.policy, double),
                rows=finish(laid, ONE_PROCESS),
                laid=laid,
                finish=finish,
                skipping=without_advantage(laid, finish) if isinstance(laid, TokenRows) else None,
                objective_with_backward=phase.objective_with_backward,
            )
        )
    return found


def _finished_rows(
    phase: OptimizerPhase[Any, Any], policy: nn.Module, laid: TrainingRows[Any], reduction: Reduction
) -> TrainingRows[Any]:
    """Rows of one optimizer step, weighted and with the phase's selections over all of them."""
    rows = laid.weighted(reduction)
    return rows if phase.prepare is None else phase.prepare(policy, rows, 0, reduction)


def job_gradient_probes(
    job: TrainingJob[Any], config: RunConfig, *, own_credit: bool, seed: int = 0
) -> list[GradientProbe]:
    """Probes of a job; empty without a gradient learner.

    `own_credit`: advantages come from the config's credit; otherwise they are synthetic, because a credit may keep
    state, which synthetic answers must not change before a run.
    """
    learner, source = _innermost(job.recipe.learner), job.recipe.source
    if isinstance(learner, ActorCriticLearner):
        return _actor_critic_probes(learner, job, config, own_credit=own_credit, seed=seed)
    if not isinstance(learner, GradientLearner) or not isinstance(learner.policy, SUPPORTED_POLICIES):
        return []
    double = shrunken_copy(learner.policy, seed=seed)
    if isinstance(double, TokenPolicy):
        episodes = synthetic_token_episodes(double, _answer_shape(job, config, quick=not own_credit), seed=seed)
    elif isinstance(source, LogSource):
        episodes = source.log.take(source.episodes_of(np.arange(min(CONTROL_STEPS, source.units))))
    elif isinstance(double, ControlPolicy):
        episodes = synthetic_control_episodes(double, seed=seed)
        episodes = episodes.transitions() if isinstance(source, ReplaySource) else episodes
    else:
        return []
    labels = config.labels if isinstance(config, TextRunConfig | PreferenceRunConfig) else None
    if labels is not None:
        credits = labels(episodes, NO_VALUES)
    elif own_credit:
        credits = job.recipe.credit(episodes, replace(learner, policy=double).values(episodes))
    elif isinstance(source, LogSource) and isinstance(double, TokenPolicy | TokenScorer):
        credits = Credits(advantage=episodes.reward)
    else:
        credits = synthetic_credits(episodes, seed=seed)
    return gradient_probes(learner, double, episodes, credits, seed=seed)


def _innermost(learner: Learner[Any]) -> Learner[Any]:
    """The learner that steps by gradient."""
    if isinstance(learner, CuriousLearner):
        return learner.actor
    return learner.learner if isinstance(learner, RoundLearner) else learner


def _actor_critic_probes(
    learner: ActorCriticLearner, job: TrainingJob[Any], config: RunConfig, *, own_credit: bool, seed: int
) -> list[GradientProbe]:
    """Probes of a policy's phase and of its critic's, on the same episodes and credits."""
    policy, critic = (shrunken_copy(one.policy, seed=seed) for one in (learner.actor, learner.critic))
    assert isinstance(policy, TokenPolicy)
    assert isinstance(critic, ValueNetwork)
    episodes = synthetic_token_episodes(policy, _answer_shape(job, config, quick=not own_credit), seed=seed)
    values = learner.view.values(critic, episodes)
    credits = job.recipe.credit(episodes, values) if own_credit else synthetic_credits(episodes, seed=seed)
    return [
        *gradient_probes(learner.actor, policy, episodes, credits, seed=seed),
        *gradient_probes(learner.critic, critic, episodes, credits, seed=seed),
    ]


def _answer_shape(job: TrainingJob[Any], config: RunConfig, *, quick: bool) -> AnswerShape:
    if isinstance(config, PreferenceRunConfig):
        return AnswerShape(groups=PAIRED_GROUPS, group_size=2, has_reference=True)
    if not isinstance(config, TextRunConfig):
        return AnswerShape(from_log=isinstance(job.recipe.source, LogSource))
    rollout = config.rollout
    samples = rollout.samples_per_prompt
    return AnswerShape(
        group_size=min(samples, QUICK_GROUP_SIZE) if quick else samples,
        max_tokens=rollout.max_tokens,
        reward_functions=len(config.rewards.functions),
        restricted_sampling=rollout.top_k > 0 or rollout.top_p < 1 or rollout.min_p > 0,
    )


def batch_splits(rows: TrainingRows[Any], *, seed: int = 0) -> Iterator[BatchSplit]:
    """Splits of a batch that must not change the gradient."""
    apart, unit = rows, "sequence"
    if isinstance(rows, TokenRows):
        unit = "group" if rows.layout.unit == "group" else unit
        apart = without_shared_prefixes(rows)
        yield "prefixes not shared", f"{len(apart)} sequences instead of {len(rows)} rows", [apart]
    each = [apart.take(np.array([number])) for number in range(len(apart))]
    yield f"one {unit} at a time", f"{len(each)} micro-batches", each
    largest, total = int(rows.sizes().max(initial=1)), int(rows.sizes().sum())
    least = max(largest, total // 8)
    for budget in generator(seed, "certificate", "budgets").integers(least, max(least, total // 2) + 1, RANDOM_BUDGETS):
        pieces = list(micro_batches(rows, int(budget)))
        yield f"micro_batch_tokens = {budget}", f"{len(pieces)} micro-batches", pieces
    order = permutation(seed, "certificate", "order", count=len(rows))
    yield "another order", f"{len(rows)} rows shuffled", [rows.take(order)]
    yield "two shards, summed", "every other row, as two ranks would take them", rank_shares(rows, 2)


def rank_shares(rows: TrainingRows[Any], count: int) -> list[TrainingRows[Any]]:
    """Rows of each of `count` data-parallel ranks; groups that are rows stay whole."""
    return [rows.take(places) for places in _rank_places(rows, count)]


def rank_gradient(trial: GradientProbe, reduction: Reduction, *, ranks: int) -> Tensor:
    """Gradient `[P]` of one rank's share, which the rank weights and selects from together with the others."""
    share = rank_shares(trial.laid, ranks)[reduction.rank]
    return summed_gradient(trial, [trial.finish(share, reduction)])


def gradient_in_rank_order(trial: GradientProbe, *, ranks: int) -> Tensor:
    """Gradient `[P]` of the whole batch on one process, with its rows in the order of the ranks that share them, which
    random selections depend on."""
    rows = trial.laid.take(np.concatenate(_rank_places(trial.laid, ranks)))
    return summed_gradient(trial, [trial.finish(rows, ONE_PROCESS)])


def _rank_places(rows: TrainingRows[Any], count: int) -> list[NDArray[np.int64]]:
    return [np.arange(rank, len(rows), count) for rank in range(count)]


def without_shared_prefixes(rows: TokenRows) -> TokenRows:
    """Convert to one row per sequence, with the same weights."""
    alone = replace(rows.layout, share_prefixes=False)(rows.episodes, Credits(advantage=rows.advantage))
    return replace(
        rows, row_offsets=alone.row_offsets, prefix_lengths=alone.prefix_lengths, unit_offsets=alone.unit_offsets
    )


def run_gradient_checks(trial: GradientProbe, *, prefix: str = "", seed: int = 0) -> list[GradientCheck]:
    """Compare the whole batch's gradient with every split, and with those of `_other_gradients`."""
    whole = summed_gradient(trial, [trial.rows])
    checks = [
        compare_gradients(f"{prefix}{name}", detail, whole, summed_gradient(trial, pieces))
        for name, detail, pieces in batch_splits(trial.rows, seed=seed)
    ]
    variants = [*batch_variants(trial.rows), *([trial.skipping] if trial.skipping else [])]
    for variant in variants:
        expected = whole if variant.reference is trial.rows else summed_gradient(trial, [variant.reference])
        found = summed_gradient(trial, [variant.rows]) / variant.copies
        checks.append(compare_gradients(f"{prefix}{variant.name}", variant.detail, expected, found))
    for name, detail, found in _other_gradients(trial):
        checks.append(compare_gradients(f"{prefix}{name}", detail, whole, found))
    return checks


def _other_gradients(trial: GradientProbe) -> Iterator[tuple[str, str, Tensor]]:
    """Name, description and gradient of the same batch, computed in another way."""
    if isinstance(trial.policy, TokenPolicy | TokenScorer | ValueNetwork):
        spoilt = replace(trial, objective=with_nan_hidden_states(trial.objective))
        what = "hidden states of prompts and tool output"
        yield "NaN where nothing was decided", what, summed_gradient(spoilt, [trial.rows])
    rows = trial.rows
    if isinstance(trial.policy, TokenPolicy) and isinstance(rows, TokenRows) and rows.precomputed.old_logp is None:
        given = replace(trial, objective=with_explicit_old_logp(trial.objective))
        what = "the policy's own log-probabilities before the update"
        yield "old log-probabilities as data", what, summed_gradient(given, [rows])
    if trial.objective_with_backward is not None:
        what = "autograd of `objective` against `objective_with_backward`"
        yield "gradient written out", what, written_out_gradient(trial, [trial.rows])
        each = [trial.rows.take(np.array([number])) for number in range(len(trial.rows))]
        yield "gradient written out, row by row", what, written_out_gradient(trial, each)


def written_out_gradient(trial: GradientProbe, pieces: Sequence[TrainingRows[Any]]) -> Tensor:
    """Gradient `[P]` that `objective_with_backward` adds to the parameters' own, over all `pieces`."""
    assert trial.objective_with_backward is not None
    for parameter in trial.policy.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with torch.no_grad():
        for piece in pieces:
            trial.objective_with_backward(trial.policy, piece.tensors())
    found = [torch.zeros_like(one) if one.grad is None else one.grad for one in trial.parameters]
    trial.policy.zero_grad(set_to_none=True)
    return torch.cat([one.flatten() for one in found]).double().cpu()


def compare_gradients(name: str, detail: str, whole: Tensor, cut: Tensor) -> GradientCheck:
    """Compare two gradients. A gradient of zeros, or of their rounding, is no evidence and does not pass."""
    difference = float((cut - whole).abs().max())
    size = float(whole.abs().max())
    relative = difference / size if size > LEAST_GRADIENT else float("nan")
    return GradientCheck(name=name, detail=detail, difference=difference, relative=relative)


def check_prefix(trial: GradientProbe, among: Sequence[GradientProbe]) -> str:
    """Prefix of a check's name, if the learner has several phases."""
    return f"{trial.name}: " if len(among) > 1 else ""


def certify_job(job: TrainingJob[Any], config: RunConfig, config_hash: str) -> GradientCertificate | None:
    """Certificate of a job's loss on synthetic credit, which leaves the job as it is; None without a gradient
    learner."""
    probes = job_gradient_probes(job, config, own_credit=False)
    return build_certificate(probes, recipe=config.recipe, config_hash=config_hash) if probes else None


def build_certificate(
    probes: Sequence[GradientProbe],
    *,
    recipe: str,
    config_hash: str,
    extra_checks: Sequence[GradientCheck] = (),
    seed: int = 0,
) -> GradientCertificate:
    """Make the certificate from the checks of all phases, and from `more` checks."""
    with single_thread():
        checks = [
            check
            for trial in probes
            for check in run_gradient_checks(trial, prefix=check_prefix(trial, probes), seed=seed)
        ]
    return GradientCertificate(
        recipe=recipe,
        config_hash=config_hash,
        batch="; ".join(f"{check_prefix(trial, probes)}{describe_rows(trial.rows)}" for trial in probes),
        checks=(*checks, *extra_checks),
        versions=library_versions(),
    )


@contextlib.contextmanager
def single_thread() -> Iterator[None]:
    """Use one thread, for matrices that are too small for several."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def describe_rows(rows: TrainingRows[Any]) -> str:
    """Size of a batch, in words."""
    if isinstance(rows, TokenRows):
        return f"{len(rows.episodes)} sequences of {rows.episodes.decisions} tokens in {len(rows)} rows"
    return f"{len(rows)} decisions"


def library_versions() -> Mapping[str, str]:
    """Versions of the libraries that compute gradients."""
    return {
        "hone": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
