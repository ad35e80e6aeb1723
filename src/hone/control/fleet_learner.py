"""Learning from a fleet's log: the config, the source, and priorities by TD error for any off-policy method."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from hone.control.logs.fleet import FleetSource, open_fleet_log
from hone.control.networks.mlp import BoxActions, DiscreteActions, PolicySpaces
from hone.control.phases import LearningMethod
from hone.control.replay.sharded import ShardingParams
from hone.control.value_rows import PrioritizedBuffer, ReplayedRows, priority_schedule
from hone.core.config import Config
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError
from hone.learner.gradient import OptimizerPhase
from hone.objectives.terms import LossTerms, scale_terms


class FleetLogConfig(Config):
    """Steps of a fleet's log in place of acting: how many are taken, how they are drawn, how old they may be."""

    log: str
    """File `fleet.db` in the folder of the service."""
    samples_per_insert: float = Field(default=8.0, gt=0)
    """Times that a step is drawn, on average: the learner waits where the log is short."""
    max_staleness: int = Field(default=0, ge=0)
    """Iterations between the policy that acted and the present one above which a step is not drawn; 0: no bound."""
    shards: int = Field(default=8, ge=1)
    """Shards of the replay buffer, by robot: each is drawn from equally often."""
    exponent: float = Field(default=0.6, ge=0, le=1)
    """Exponent of the priorities within a shard: 0 samples uniformly, 1 in proportion to the TD error."""
    correction: float = Field(default=0.4, ge=0, le=1)
    """Exponent of the importance weights at the first iteration; at the last it is 1."""
    patience_s: float = Field(default=60.0, gt=0)
    """Seconds without a new step after which the run ends, to be resumed."""

    def steps_per_iteration(self, samples: int) -> int:
        """Steps that an iteration of so many samples takes from the log."""
        return max(1, math.ceil(samples / self.samples_per_insert))

    def sharding(self, iterations: int, half_life: int) -> ShardingParams:
        """Shards and priorities of a run whose steps have a half-life (0: none)."""
        priorities = priority_schedule(self.exponent, self.correction, iterations=iterations)
        return ShardingParams(
            shards=self.shards,
            priorities=replace(priorities, half_life=half_life),
            max_staleness=self.max_staleness,
        )

    def open(self, spaces: PolicySpaces, samples: int) -> FleetSource[Any]:
        """Open the log for these spaces. Raises ConfigError for spaces that robots cannot send, DataError."""
        inputs, actions = spaces.inputs, spaces.actions
        if (
            inputs.one_hot
            or inputs.leaves
            or inputs.frames > 1
            or not isinstance(actions, DiscreteActions | BoxActions)
        ):
            raise ConfigError("fleet: robots send one row of numbers seen, and a box or a number done, nothing else")
        choices = actions.count if isinstance(actions, DiscreteActions) else 0
        acted = 1 if isinstance(actions, DiscreteActions) else actions.size
        shape = inputs.encoder.shape if inputs.encoder is not None else (inputs.size,)
        seen = math.prod(shape)
        return FleetSource(
            log=open_fleet_log(Path(self.log), observation=seen, action=acted, choices=choices),
            count=self.steps_per_iteration(samples),
            observation_shape=tuple(shape),
            action_shape=() if isinstance(actions, DiscreteActions) else actions.shape,
            first_choice=actions.start if isinstance(actions, DiscreteActions) else 0,
            patience_s=self.patience_s,
        )


@dataclass(frozen=True, kw_only=True)
class _FleetRows(ReplayedRows):
    """Transitions of a fleet's replay buffer, with their importance weights."""

    importance: Tensor
    """`[n]`."""


def with_td_priorities(
    method: LearningMethod[Any], buffer: PrioritizedBuffer
) -> tuple[Callable[[Episodes, Credits, int], _FleetRows], list[OptimizerPhase[Any, Any]]]:
    """Layout and phases of a method whose transitions are drawn by priority: the loss of its first phase, that of the
    critics, is weighted, and the root of the unweighted loss of a row, its TD error, becomes the row's priority."""
    first, *others = method.phases

    def layout(transitions: Episodes, credits: Credits, updates: int) -> _FleetRows:
        rows = method.layout(transitions, credits, updates)
        weights = torch.from_numpy(buffer.importance_weights(transitions))
        device = rows.tensors().weight.device
        return _FleetRows(
            **vars(rows), importance=weights.to(device), sample_index=torch.arange(len(transitions), device=device)
        )

    def objective(policy: Any, rows: _FleetRows) -> LossTerms:  # noqa: ANN401 - the method's own policy
        terms = first.objective(policy, rows)
        error = terms.loss.detach().clamp(min=0.0).sqrt()
        return replace(
            scale_terms(terms, rows.importance),
            compute_metrics=lambda: {**terms.metrics, "value/error_abs": error},
        )

    critics: OptimizerPhase[Any, Any] = replace(
        first, objective=objective, objective_with_backward=None, on_micro_batch=buffer.on_micro_batch,
        step_metrics=buffer.finish_step,
    )  # fmt: skip
    return layout, [critics, *others]
