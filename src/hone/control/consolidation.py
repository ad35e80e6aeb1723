"""Elastic weight consolidation: a penalty that keeps the weights that an earlier policy depends on (Kirkpatrick et al.
2017, 1612.00796).

penalty = weight / 2 * sum_j F_j (theta_j - anchor_j)^2

with the earlier weights `anchor` and the diagonal F of the Fisher information of the earlier policy's decisions, over
states of its own: to second order, the penalty is weight times the mean KL(earlier || present) there, if F were the
whole matrix. A run that begins with consolidated weights adds its F to theirs (online EWC: Schwarz et al., 2018,
1805.06370), so a chain of retrainings keeps to all of its links.

The states are those of the newest rollouts of the earlier run, up to the checkpoint, or of a log. The expectation over
actions is that of the policy itself, exactly: by all choices, or by the closed form of a Gaussian, whose Fisher
information no clipping and no squashing of its samples changes.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hone.control.logs.parquet import read_log
from hone.control.networks.actor_critic import ActorCritic, ControlPolicy
from hone.control.networks.memory import MemoryActorCritic
from hone.control.networks.mlp import BoxActions, DiscreteActions, PolicySpaces
from hone.core.credit import Metrics
from hone.core.errors import ConfigError, DataError
from hone.core.state import State, array, has_part, substate
from hone.learner.flat_parameters import FlatParameters
from hone.learner.share import ParameterStore
from hone.run.job import ConsolidationConfig
from hone.run.store.checkpoints import Checkpoint, checkpoint_of
from hone.run.store.rollouts import read_episodes, rollout_files

STATES: Final = 1000
"""States that the Fisher information is a mean over, where there are more."""
CONSOLIDATION: Final = "consolidation"
"""Name of the penalty's state among those of a learner."""


@dataclass
class Consolidation:
    """Penalty on the parameters of a policy, in the order of `policy.parameters()`."""

    policy: nn.Module
    weight: float
    fisher: Tensor
    """`[P]` of all parameters."""
    anchor: Tensor
    """`[P]`"""

    def add_gradient(self, store: ParameterStore) -> Metrics:
        """Add the gradient weight * F (theta - anchor) to that of the parameters in `store`; returns their penalty."""
        assert isinstance(store, FlatParameters)
        places: dict[int, slice] = {}
        start = 0
        for parameter in self.policy.parameters():
            places[id(parameter)] = slice(start, start := start + parameter.numel())
        penalty = 0.0
        for parameter, gradient in zip(store.parameters, store.views, strict=True):
            place = places[id(parameter)]
            moved = parameter.detach() - self.anchor[place].view_as(parameter)
            pull = moved * self.fisher[place].view_as(parameter) * self.weight
            gradient.add_(pull)
            penalty += 0.5 * float((pull * moved).sum())
        return {"consolidation/penalty": penalty}

    def state(self) -> State:
        return {"fisher": self.fisher.cpu().numpy().copy(), "anchor": self.anchor.cpu().numpy().copy()}

    def restore(self, state: State) -> None:
        """Raises DataError for the state of another number of parameters."""
        fisher, anchor = (torch.from_numpy(array(state, name).astype(np.float32)) for name in ("fisher", "anchor"))
        if fisher.shape != self.fisher.shape:
            raise DataError(f"a saved Fisher diagonal of {len(fisher)} parameters, this policy has {len(self.fisher)}")
        self.fisher, self.anchor = fisher.to(self.fisher.device), anchor.to(self.anchor.device)


def fisher_diagonal(policy: nn.Module, factors: list[Tensor]) -> Tensor:
    """Diagonal Fisher information `[P]` of decisions, from the gradients of `factors` `[]`: scalars of which the outer
    products of gradients add up to the Fisher matrix of one decision, summed over decisions.

    Of a finite choice they are sqrt(p_a) log p_a with p_a held in the root: sum_a p_a (d log p_a)^2. Of a Gaussian
    mean / deviation with the deviation held, and sqrt(2) log deviation.
    """
    sums = [torch.zeros_like(parameter) for parameter in policy.parameters()]
    trained = [
        (parameter, held) for parameter, held in zip(policy.parameters(), sums, strict=True) if parameter.requires_grad
    ]
    for number, factor in enumerate(factors):
        gradients = torch.autograd.grad(
            factor, [parameter for parameter, _ in trained], retain_graph=number + 1 < len(factors), allow_unused=True
        )
        for gradient, (_, held) in zip(gradients, trained, strict=True):
            if gradient is not None:
                held += gradient.square()
    return torch.cat([held.flatten() for held in sums])


def fisher_of(policy: ActorCritic, states: Tensor) -> Tensor:
    """`[P]` diagonal Fisher information of the policy's decisions, a mean over `states` `[n, *observation]`."""
    actions = policy.spaces.actions
    total = torch.zeros(sum(parameter.numel() for parameter in policy.parameters()))
    for state in states.split(1):
        if isinstance(actions, DiscreteActions):
            every = torch.arange(actions.start, actions.start + actions.count, device=state.device)
            logp = policy.evaluate_actions(state.expand(actions.count, *state.shape[1:]), every).logp
            factors = list((0.5 * logp.detach()).exp() * logp)
        else:
            assert policy.log_std is not None
            mean = policy.actor(policy.encode(state)).squeeze(0)
            factors = [*(mean / policy.log_std.detach().exp()), *(math.sqrt(2.0) * policy.log_std)]
        total += fisher_diagonal(policy, factors).cpu()
    return total / len(states)


def consolidation_of(
    policy: ControlPolicy,
    earlier: ControlPolicy,
    folder: Path,
    path: str,
    config: ConsolidationConfig,
    *,
    taken: Collection[str],
) -> Consolidation:
    """Penalty toward `earlier`, the policy in `folder` that the config calls `path`, on the parameters `taken` from it;
    the others are free.

    Raises ConfigError for policies that it does not serve, DataError without states.
    """
    network = _served(earlier, path)
    checkpoint = checkpoint_of(folder)
    seen = read_log(Path(config.states)).episodes.observations if config.states else _rollout_states(checkpoint, path)
    fisher = fisher_of(network, _as_observed(seen, earlier.spaces, config.states or path))
    if checkpoint is not None:
        learner = substate(Checkpoint(step=0, folder=checkpoint, score=None).state(), "learner")
        if has_part(learner, "kept") and has_part(kept := substate(learner, "kept"), CONSOLIDATION):
            held = array(substate(kept, CONSOLIDATION), "fisher").astype(np.float32)
            fisher += torch.from_numpy(held)  # of a run that was consolidated itself
    sizes = {name: parameter.numel() for name, parameter in earlier.named_parameters()}
    by_name = dict(zip(sizes, fisher.split(list(sizes.values())), strict=True))
    zeros = {name: torch.zeros(parameter.numel()) for name, parameter in policy.named_parameters()}
    own = torch.cat([by_name[name] if name in taken else zero for name, zero in zeros.items()])
    weights = flat_weights(policy)
    return Consolidation(policy, config.weight, fisher=own.to(weights.device), anchor=weights)


def flat_weights(policy: ControlPolicy) -> Tensor:
    """Parameters of a policy `[P]`, copied."""
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()])


def _served(policy: ControlPolicy, path: str) -> ActorCritic:
    inputs, actions = policy.spaces.inputs, policy.spaces.actions
    if (
        not isinstance(policy, ActorCritic)
        or not isinstance(actions, DiscreteActions | BoxActions)
        or inputs.frames > 1
        or inputs.leaves
        or isinstance(policy, MemoryActorCritic)
    ):
        raise ConfigError(
            f"consolidation with run.init = {path!r}: it needs the probabilities of a policy of numbered "
            "actions or of one box, over single observations; leave it out, or take ppo, a2c or reinforce_control "
            "without memory"
        )
    return policy


def _rollout_states(checkpoint: Path | None, path: str) -> NDArray[np.float32]:
    """Observations of the newest rollouts of the run that a checkpoint belongs to, oldest first, `[n, numbers]`."""
    remedy = 'name a log of its decisions, consolidation.states = "log.parquet"'
    if checkpoint is None:
        raise DataError(
            f"run.init = {path!r}: a policy's folder alone has no rollouts to weigh its weights by; {remedy}"
        )
    run, end = checkpoint.resolve().parent.parent, int(checkpoint.resolve().name.rpartition("_")[2])
    parts: list[NDArray[np.float32]] = []
    for step, file in sorted(rollout_files(run).items(), reverse=True):
        seen = read_episodes(file).observations if step <= end else None
        if seen is not None and sum(map(len, parts)) < STATES:
            parts.insert(0, seen)
    if not parts:
        raise DataError(
            f"run.init = {path!r}: {run} has no rollouts with observations up to step {end} (run.rollouts_every > 0, "
            f"up to 64 numbers an observation) to weigh its weights by; {remedy}"
        )
    return np.concatenate(parts)


def _as_observed(seen: NDArray[Any], spaces: PolicySpaces, source: str) -> Tensor:
    """Up to `STATES` of the states, evenly spread over them, as the policy reads them."""
    inputs = spaces.inputs
    picked = seen[np.linspace(0, len(seen) - 1, min(STATES, len(seen))).astype(np.int64)]
    if inputs.one_hot:
        return torch.from_numpy(picked.reshape(len(picked)).astype(np.int64))
    shape = (inputs.size,) if inputs.encoder is None else inputs.encoder.shape
    if math.prod(picked.shape[1:]) != math.prod(shape):
        raise DataError(f"{source}: {math.prod(picked.shape[1:])} numbers an observation, the policy reads {shape}")
    return torch.from_numpy(picked.reshape(len(picked), *shape).astype(np.float32))
