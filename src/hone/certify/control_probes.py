"""Probes of a control policy's loss: a perturbed copy of the network in float64, and synthetic or logged decisions."""

import copy
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.certify.check import GradientProbe, gradient_probes, synthetic_credits
from hone.control.environments.layout import Leaf, SpaceLayout
from hone.control.environments.masks import random_masks
from hone.control.networks.actor_critic import ControlPolicy
from hone.control.networks.mlp import (
    BoxActions,
    ObservationInputs,
    row_bytes,
)
from hone.control.replay.mixed import ReplaySource
from hone.control.sequences import stack_frames
from hone.core.episodes import Episodes
from hone.core.ragged import offsets_of
from hone.core.random import generator
from hone.learner.gradient import GradientLearner
from hone.run.job import TrainingJob
from hone.run.loop import Learner
from hone.sources.logged import LogSource

CONTROL_STEPS = 24
"""Decisions of a batch."""


def control_probes(learner: Learner[Any], job: TrainingJob[Any], *, own_credit: bool, seed: int) -> list[GradientProbe]:
    """Probes of the learner's phases; empty without a gradient learner."""
    if not isinstance(learner, GradientLearner) or not isinstance(learner.policy, ControlPolicy):
        return []
    double, source = _perturbed_copy(learner.policy, seed=seed), job.recipe.source
    if isinstance(source, LogSource):
        episodes = source.log.take(source.episodes_of(np.arange(min(CONTROL_STEPS, source.units))))
    else:
        episodes = synthetic_control_episodes(double, seed=seed)
        if isinstance(source, ReplaySource):
            frames = double.spaces.inputs.frames
            episodes = (stack_frames(episodes, frames) if frames > 1 else episodes).transitions()
    if own_credit:
        credits = job.recipe.credit(episodes, replace(learner, policy=double).values(episodes))
    else:
        credits = synthetic_credits(episodes, seed=seed)
    return gradient_probes(learner, double, learner.layout(episodes, credits))


def _perturbed_copy(policy: ControlPolicy, *, seed: int) -> ControlPolicy:
    """A float64 copy with perturbed weights. The given policy is unchanged."""
    double = copy.deepcopy(policy).double()
    inputs = double.spaces.inputs
    nested = {"image": inputs.image, "encoder": inputs.encoder, "leaves": inputs.leaves}
    double.spaces = replace(double.spaces, inputs=Float64Inputs(**{**asdict(inputs), **nested}))
    draws = generator(seed, "certificate", "weights")
    with torch.no_grad():
        for parameter in double.parameters():
            shake = 0.05 * draws.standard_normal(tuple(parameter.shape))
            parameter.add_(torch.from_numpy(shake).to(parameter.device))
    return double


class Float64Inputs(ObservationInputs):
    """Inputs in float64."""

    def tensor(self, seen: Tensor) -> Tensor:
        return ObservationInputs.tensor(self, seen).double()


def synthetic_control_episodes(policy: ControlPolicy, *, seed: int) -> Episodes:
    """Make STEPS decisions in episodes of different lengths: some terminated, some truncated, some unfinished."""
    draws = generator(seed, "certificate", "steps")
    lengths = np.array([1, 5, 7, 2, 6, 3], np.int64)
    inputs, count, team = policy.spaces.inputs, len(lengths), policy.team_size
    seen, final = (_synthetic_observations(inputs, size * team, draws) for size in (CONTROL_STEPS, count))
    acting = policy.numpy_policy()
    noise = acting.noise(draws, (CONTROL_STEPS * team,))
    actions = policy.spaces.actions
    mask, final_mask = (
        None
        if isinstance(actions, BoxActions) or not actions.masked
        else random_masks(actions.choices, size * team, draws)
        for size in (CONTROL_STEPS, count)
    )
    chosen, logp = acting.decide(seen, noise) if mask is None else acting.decide(seen, noise, mask)
    if team > 1:  # seats of a team side by side
        logp = logp.reshape(CONTROL_STEPS, team).sum(axis=1)
        seen, chosen, final = (rows.reshape(-1, team * rows[0].size) for rows in (seen, chosen, final))
        mask, final_mask = (
            None if rows is None else rows.reshape(-1, team * rows.shape[1]) for rows in (mask, final_mask)
        )
    state, final_state = (
        draws.standard_normal((size, policy.state_size), np.float32) if policy.state_size else None
        for size in (CONTROL_STEPS, count)
    )
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
        mask=mask,
        final_mask=final_mask,
        state=state,
        final_state=final_state,
        seat=np.zeros(count, np.int16),
    )


def _synthetic_observations(inputs: ObservationInputs, count: int, draws: np.random.Generator) -> NDArray[np.generic]:
    encoder, size = inputs.encoder, inputs.size // inputs.frames
    if inputs.leaves:
        return _synthetic_rows(inputs.leaves, count, draws)
    if encoder is not None and encoder.shape:
        return draws.integers(0, max(2, int(encoder.divisor)), (count, *encoder.shape)).astype(np.float32)
    if encoder is not None or inputs.one_hot:
        states = size if encoder is None else encoder.count
        return draws.integers(inputs.start, inputs.start + states, count)
    return draws.standard_normal((count, size), np.float32)


def _synthetic_rows(leaves: Sequence[Leaf], count: int, draws: np.random.Generator) -> NDArray[np.uint8]:
    """Rows of observations with these parts."""
    width = row_bytes(leaves)
    rows = np.zeros((count, width), np.uint8)
    layout = SpaceLayout(leaves=tuple(leaves), row_bytes=width)
    for leaf in leaves:
        into = layout.view(rows, leaf)
        if leaf.kind == "one_hots":
            into[:] = draws.integers(leaf.starts, np.add(leaf.starts, leaf.sizes), (count, len(leaf.sizes))).reshape(
                into.shape
            )
        else:
            whole = leaf.kind == "bits" or np.dtype(leaf.dtype).kind in "bui"
            into[:] = draws.integers(0, 2, into.shape) if whole else draws.standard_normal(into.shape)
    return rows
