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
from hone.models.control.actor_critic import Policy
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.terms import Terms
from hone.rewards.config import RewardsConfig
from hone.store.certificate import Certificate, Check
from hone.train.config import RunConfig
from hone.train.invariance.probe import (
    STEPS,
    AnswerShape,
    acquainted,
    control_episodes,
    counterparts,
    double_of,
    made_up_credits,
    token_episodes,
)
from hone.train.job import Job
from hone.train.learner.gradient import GradientLearner, Rows, micro_batches
from hone.train.sources.logged import Logged
from hone.train.sources.replay import Replay
from hone.train.text.rollout_config import RolloutConfig
from hone.train.text.rows import TokenBatch, TokenRows

BUDGETS = 3
"""Random micro-batch budgets that are tried."""
KINDS = (TokenPolicy, Policy)
"""Policies that `double_of` knows how to double; of others there is no certificate."""
FEW = 4
"""Answers a group, where time matters more than thoroughness."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One phase of a learner with a batch of one optimizer step: weighted, chosen among, ready to be cut."""

    name: str
    policy: nn.Module
    objective: Callable[[Any, Any], Terms]
    parameters: Sequence[nn.Parameter]
    rows: Rows[Any]


Cut = tuple[str, str, Sequence[Rows[Any]]]
"""A name, what came of it, and the pieces."""


def gradient(trial: Trial, pieces: Sequence[Rows[Any]]) -> Tensor:
    """`[P]` float64: the sum over `pieces` of the gradient of sum(weight * loss), as the learner takes it."""
    total = torch.zeros(sum(parameter.numel() for parameter in trial.parameters), dtype=torch.float64)
    for piece in pieces:
        batch = piece.tensors()
        loss = (trial.objective(trial.policy, batch).loss * batch.weight).sum()
        found = torch.autograd.grad(loss, trial.parameters, allow_unused=True, materialize_grads=True)
        total += torch.cat([one.flatten() for one in found]).double().cpu()
    return total


def trials(
    learner: GradientLearner[Any, Any], double: nn.Module, episodes: Episodes, credits: Credits, *, seed: int = 0
) -> list[Trial]:
    """The learner's phases on `episodes`, with `double` in the policy's place."""
    laid = learner.layout(episodes, credits)
    if isinstance(laid, TokenRows) and isinstance(double, TokenPolicy):
        laid = acquainted(laid, double, seed=seed)
    found: list[Trial] = []
    for phase in learner.phases:
        rows: Rows[Any] = laid.weighted()
        if phase.prepare is not None:
            rows = phase.prepare(double, rows, 0)
        parameters = counterparts(phase.parameters.parameters, learner.policy, double)
        found.append(
            Trial(name=phase.name, policy=double, objective=phase.objective, parameters=parameters, rows=rows)
        )  # fmt: skip
    return found


def job_trials(job: Job[Any], config: RunConfig, *, own_credit: bool, seed: int = 0) -> list[Trial]:
    """The trials of a job; none where it steps in another way than by the gradient learner.

    `own_credit`: advantages are those of the config's credit; otherwise they are made up, because a credit may keep
    count of what it was asked, and a run about to begin must not be told of answers that nobody gave.
    """
    learner, source = job.recipe.learner, job.recipe.source
    if not isinstance(learner, GradientLearner) or not isinstance(learner.policy, KINDS):
        return []
    double = double_of(learner.policy, seed=seed)
    if isinstance(double, TokenPolicy):
        episodes = token_episodes(double, _shape(job, config, few=not own_credit), seed=seed)
    elif isinstance(source, Logged):
        episodes = source.log.take(np.arange(min(STEPS, len(source.log))))
    elif isinstance(double, Policy):
        episodes = control_episodes(double, seed=seed)
        episodes = episodes.transitions() if isinstance(source, Replay) else episodes
    else:
        return []
    if own_credit:
        credits = job.recipe.credit(episodes, replace(learner, policy=double).values(episodes))
    elif isinstance(source, Logged) and isinstance(double, TokenPolicy):
        credits = Credits(advantage=episodes.reward)
    else:
        credits = made_up_credits(episodes, seed=seed)
    return trials(learner, double, episodes, credits, seed=seed)


def _shape(job: Job[Any], config: RunConfig, *, few: bool) -> AnswerShape:
    parts = vars(config)
    rollout, rewards = parts.get("rollout"), parts.get("rewards")
    if not isinstance(rollout, RolloutConfig):
        return AnswerShape(imitated=isinstance(job.recipe.source, Logged))
    samples = rollout.samples_per_prompt
    return AnswerShape(
        samples=min(samples, FEW) if few else samples,
        max_tokens=rollout.max_tokens,
        components=len(rewards.functions) if isinstance(rewards, RewardsConfig) else 1,
    )


def cuts(rows: Rows[Any], *, seed: int = 0) -> Iterator[Cut]:
    """Ways to cut a batch that must not matter."""
    apart: Rows[Any] = rows
    if isinstance(rows, TokenRows):
        apart = unshared(rows)
        yield "prefixes not shared", f"{len(apart)} sequences instead of {len(rows)} rows", [apart]
    each = [apart.take(np.array([number])) for number in range(len(apart))]
    yield "one sequence at a time", f"{len(each)} micro-batches", each
    largest, total = int(rows.sizes().max(initial=1)), int(rows.sizes().sum())
    least = max(largest, total // 8)
    for budget in generator(seed, "certificate", "budgets").integers(least, max(least, total // 2) + 1, BUDGETS):
        pieces = list(micro_batches(rows, int(budget)))
        yield f"micro_batch_tokens = {budget}", f"{len(pieces)} micro-batches", pieces
    order = permutation(seed, "certificate", "order", count=len(rows))
    yield "another order", f"{len(rows)} rows shuffled", [rows.take(order)]
    yield "two shares, summed", "every other row, as two ranks would take them", shares(rows, 2)


def shares(rows: Rows[Any], count: int) -> list[Rows[Any]]:
    """What each of `count` data-parallel ranks computes."""
    return [rows.take(np.arange(rank, len(rows), count)) for rank in range(count)]


def unshared(rows: TokenRows) -> TokenRows:
    """The same sequences with the same weights, each in a row of its own."""
    alone = replace(rows.layout, share_prefixes=False)(rows.episodes, Credits(advantage=rows.advantage))
    return replace(rows, row_offsets=alone.row_offsets, trunks=alone.trunks)


def examined(trial: Trial, *, prefix: str = "", seed: int = 0) -> list[Check]:
    """The gradient of the whole batch against every cut, and against garbage where nothing was decided."""
    whole = gradient(trial, [trial.rows])
    checks = [
        compared(f"{prefix}{name}", detail, whole, gradient(trial, pieces))
        for name, detail, pieces in cuts(trial.rows, seed=seed)
    ]
    if isinstance(trial.policy, TokenPolicy):
        spoilt = replace(trial, objective=_spoilt(trial.objective))
        what = "hidden states of prompts and tool output"
        checks.append(compared(f"{prefix}NaN where nothing was decided", what, whole, gradient(spoilt, [trial.rows])))
    return checks


def compared(name: str, detail: str, whole: Tensor, cut: Tensor) -> Check:
    """A gradient that is 0 throughout shows nothing, and so does not pass."""
    difference = float((cut - whole).abs().max())
    size = float(whole.abs().max())
    relative = difference / size if size > 0 else float("nan")
    return Check(name=name, detail=detail, difference=difference, relative=relative)


def _spoilt(objective: Callable[[Any, Any], Terms]) -> Callable[[Any, Any], Terms]:
    """The objective, while every hidden state that decides nothing is NaN."""

    def run(policy: TokenPolicy, batch: TokenBatch) -> Terms:
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


def prefix_of(trial: Trial, among: Sequence[Trial]) -> str:
    """Where a learner has several phases, checks carry their names."""
    return f"{trial.name}: " if len(among) > 1 else ""


def certificate(
    found: Sequence[Trial], *, recipe: str, config_hash: str, more: Sequence[Check] = (), seed: int = 0
) -> Certificate:
    """All checks of all phases, and `more` that were made elsewhere."""
    with one_thread():
        checks = [check for trial in found for check in examined(trial, prefix=prefix_of(trial, found), seed=seed)]
    return Certificate(
        recipe=recipe,
        config_hash=config_hash,
        batch="; ".join(f"{prefix_of(trial, found)}{size_of(trial.rows)}" for trial in found),
        checks=(*checks, *more),
        versions=versions(),
    )


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """For matrices so small that threads would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def size_of(rows: Rows[Any]) -> str:
    if isinstance(rows, TokenRows):
        return f"{len(rows.episodes)} sequences of {rows.episodes.decisions} tokens in {len(rows)} rows"
    return f"{len(rows)} decisions"


def versions() -> Mapping[str, str]:
    return {
        "hone": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }
