"""The certificate of a loss: one batch's gradient, taken whole and cut up in many ways, is the same to rounding.

Belongs here: what is cut and compared, for whatever learner a recipe wires. The loss, its aggregation, selections and
corrections are the run's own; the policy is a small double in float64 and the batch is made up (`standin.py`), so that
it takes neither a world nor a reward, and nothing of the run is touched.
"""

import contextlib
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hone import __version__
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.random import generator, permutation
from hone.core.reduction import ONE_PROCESS
from hone.models.control.actor_critic import ControlPolicy
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.terms import LossTerms
from hone.rewards.config import RewardsConfig
from hone.store.certificate import GradientCertificate, GradientCheck
from hone.train.config import RunConfig
from hone.train.invariance.probe import (
    CONTROL_STEPS,
    AnswerShape,
    matching_parameters,
    shrunken_copy,
    synthetic_control_episodes,
    synthetic_credits,
    synthetic_token_episodes,
    with_copy_logprobs,
)
from hone.train.job import TrainingJob
from hone.train.learner.gradient import GradientLearner, TrainingRows, micro_batches
from hone.train.sources.logged import LogSource
from hone.train.sources.replay import ReplaySource
from hone.train.text.rollout_config import RolloutConfig
from hone.train.text.rows import TokenBatch, TokenRows

RANDOM_BUDGETS = 3
"""Random micro-batch budgets that are tried."""
SUPPORTED_POLICIES = (TokenPolicy, ControlPolicy)
"""Policies that `shrunken_copy` knows how to double; of others there is no certificate."""
QUICK_GROUP_SIZE = 4
"""Answers a group, where time matters more than thoroughness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientProbe:
    """One phase of a learner with a batch of one optimizer step: weighted, chosen among, ready to be cut."""

    name: str
    policy: nn.Module
    objective: Callable[[Any, Any], LossTerms]
    parameters: Sequence[nn.Parameter]
    rows: TrainingRows[Any]


BatchSplit = tuple[str, str, Sequence[TrainingRows[Any]]]
"""A name, what came of it, and the pieces."""


def summed_gradient(trial: GradientProbe, pieces: Sequence[TrainingRows[Any]]) -> Tensor:
    """`[P]` float64: the sum over `pieces` of the gradient of sum(weight * loss), as the learner takes
    it."""
    total = torch.zeros(sum(parameter.numel() for parameter in trial.parameters), dtype=torch.float64)
    for piece in pieces:
        batch = piece.tensors()
        loss = (trial.objective(trial.policy, batch).loss * batch.weight).sum()
        found = torch.autograd.grad(loss, trial.parameters, allow_unused=True, materialize_grads=True)
        total += torch.cat([one.flatten() for one in found]).double().cpu()
    return total


def gradient_probes(
    learner: GradientLearner[Any, Any], double: nn.Module, episodes: Episodes, credits: Credits, *, seed: int = 0
) -> list[GradientProbe]:
    """The learner's phases on `episodes`, with `double` in the policy's place."""
    laid = learner.layout(episodes, credits)
    if isinstance(laid, TokenRows) and isinstance(double, TokenPolicy):
        laid = with_copy_logprobs(laid, double, seed=seed)
    found: list[GradientProbe] = []
    for phase in learner.phases:
        rows: TrainingRows[Any] = laid.weighted()
        if phase.prepare is not None:
            rows = phase.prepare(double, rows, 0, ONE_PROCESS)
        parameters = matching_parameters(phase.parameters.parameters, learner.policy, double)
        found.append(
            GradientProbe(name=phase.name, policy=double, objective=phase.objective, parameters=parameters, rows=rows)
        )  # fmt: skip
    return found


def job_gradient_probes(
    job: TrainingJob[Any], config: RunConfig, *, own_credit: bool, seed: int = 0
) -> list[GradientProbe]:
    """The trials of a job; none where it steps in another way than by the gradient learner.

    `own_credit`: advantages are those of the config's credit; otherwise they are made up, because a credit may keep
    count of what it was asked, and a run about to begin must not be told of answers that nobody gave.
    """
    learner, source = job.recipe.learner, job.recipe.source
    if not isinstance(learner, GradientLearner) or not isinstance(learner.policy, SUPPORTED_POLICIES):
        return []
    double = shrunken_copy(learner.policy, seed=seed)
    if isinstance(double, TokenPolicy):
        episodes = synthetic_token_episodes(double, _answer_shape(job, config, quick=not own_credit), seed=seed)
    elif isinstance(source, LogSource):
        episodes = source.log.take(np.arange(min(CONTROL_STEPS, len(source.log))))
    elif isinstance(double, ControlPolicy):
        episodes = synthetic_control_episodes(double, seed=seed)
        episodes = episodes.transitions() if isinstance(source, ReplaySource) else episodes
    else:
        return []
    if own_credit:
        credits = job.recipe.credit(episodes, replace(learner, policy=double).values(episodes))
    elif isinstance(source, LogSource) and isinstance(double, TokenPolicy):
        credits = Credits(advantage=episodes.reward)
    else:
        credits = synthetic_credits(episodes, seed=seed)
    return gradient_probes(learner, double, episodes, credits, seed=seed)


def _answer_shape(job: TrainingJob[Any], config: RunConfig, *, quick: bool) -> AnswerShape:
    parts = vars(config)
    rollout, rewards = parts.get("rollout"), parts.get("rewards")
    if not isinstance(rollout, RolloutConfig):
        return AnswerShape(from_log=isinstance(job.recipe.source, LogSource))
    samples = rollout.samples_per_prompt
    return AnswerShape(
        group_size=min(samples, QUICK_GROUP_SIZE) if quick else samples,
        max_tokens=rollout.max_tokens,
        reward_functions=len(rewards.functions) if isinstance(rewards, RewardsConfig) else 1,
    )


def batch_splits(rows: TrainingRows[Any], *, seed: int = 0) -> Iterator[BatchSplit]:
    """Ways to cut a batch that must not matter."""
    apart: TrainingRows[Any] = rows
    if isinstance(rows, TokenRows):
        apart = without_shared_prefixes(rows)
        yield "prefixes not shared", f"{len(apart)} sequences instead of {len(rows)} rows", [apart]
    each = [apart.take(np.array([number])) for number in range(len(apart))]
    yield "one sequence at a time", f"{len(each)} micro-batches", each
    largest, total = int(rows.sizes().max(initial=1)), int(rows.sizes().sum())
    least = max(largest, total // 8)
    for budget in generator(seed, "certificate", "budgets").integers(least, max(least, total // 2) + 1, RANDOM_BUDGETS):
        pieces = list(micro_batches(rows, int(budget)))
        yield f"micro_batch_tokens = {budget}", f"{len(pieces)} micro-batches", pieces
    order = permutation(seed, "certificate", "order", count=len(rows))
    yield "another order", f"{len(rows)} rows shuffled", [rows.take(order)]
    yield "two shares, summed", "every other row, as two ranks would take them", rank_shares(rows, 2)


def rank_shares(rows: TrainingRows[Any], count: int) -> list[TrainingRows[Any]]:
    """What each of `count` data-parallel ranks computes."""
    return [rows.take(np.arange(rank, len(rows), count)) for rank in range(count)]


def without_shared_prefixes(rows: TokenRows) -> TokenRows:
    """The same sequences with the same weights, each in a row of its own."""
    alone = replace(rows.layout, share_prefixes=False)(rows.episodes, Credits(advantage=rows.advantage))
    return replace(rows, row_offsets=alone.row_offsets, prefix_lengths=alone.prefix_lengths)


def run_gradient_checks(trial: GradientProbe, *, prefix: str = "", seed: int = 0) -> list[GradientCheck]:
    """The gradient of the whole batch against every cut, and against garbage where nothing was decided."""
    whole = summed_gradient(trial, [trial.rows])
    checks = [
        compare_gradients(f"{prefix}{name}", detail, whole, summed_gradient(trial, pieces))
        for name, detail, pieces in batch_splits(trial.rows, seed=seed)
    ]
    if isinstance(trial.policy, TokenPolicy):
        spoilt = replace(trial, objective=_with_nan_hidden_states(trial.objective))
        what = "hidden states of prompts and tool output"
        checks.append(
            compare_gradients(
                f"{prefix}NaN where nothing was decided", what, whole, summed_gradient(spoilt, [trial.rows])
            )
        )
    return checks


def compare_gradients(name: str, detail: str, whole: Tensor, cut: Tensor) -> GradientCheck:
    """A gradient that is 0 throughout shows nothing, and so does not pass."""
    difference = float((cut - whole).abs().max())
    size = float(whole.abs().max())
    relative = difference / size if size > 0 else float("nan")
    return GradientCheck(name=name, detail=detail, difference=difference, relative=relative)


def _with_nan_hidden_states(objective: Callable[[Any, Any], LossTerms]) -> Callable[[Any, Any], LossTerms]:
    """The objective, while every hidden state that decides nothing is NaN."""

    def run(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
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


def check_prefix(trial: GradientProbe, among: Sequence[GradientProbe]) -> str:
    """Where a learner has several phases, checks carry their names."""
    return f"{trial.name}: " if len(among) > 1 else ""


def build_certificate(
    probes: Sequence[GradientProbe],
    *,
    recipe: str,
    config_hash: str,
    extra_checks: Sequence[GradientCheck] = (),
    seed: int = 0,
) -> GradientCertificate:
    """All checks of all phases, and `more` that were made elsewhere."""
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
    """For matrices so small that threads would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def describe_rows(rows: TrainingRows[Any]) -> str:
    if isinstance(rows, TokenRows):
        return f"{len(rows.episodes)} sequences of {rows.episodes.decisions} tokens in {len(rows)} rows"
    return f"{len(rows)} decisions"


def library_versions() -> Mapping[str, str]:
    return {
        "hone": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
