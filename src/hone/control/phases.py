"""Optimizer phases over a policy's parameters, the target networks that follow them, and a learner of replayed data."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from hone.control.networks.actor_critic import polyak_update
from hone.control.networks.mlp import use_bfloat16_products
from hone.core.config import Config
from hone.core.credit import Credits, Values
from hone.core.episodes import Episodes
from hone.core.reduction import Reduction
from hone.learner.adam import Adam
from hone.learner.config import OptimizerConfig, ReplayLearnerConfig, learning_rate_schedule
from hone.learner.flat_parameters import FlatParameters, contiguous_view, make_contiguous
from hone.learner.gradient import GradientLearner, OptimizerPhase, TensorBatch, TrainingRows, split_by_rows
from hone.objectives.terms import LossTerms
from hone.run.job import RunConfig

Q = TypeVar("Q", bound=nn.Module)
R = TypeVar("R", bound=TensorBatch)


class TdAlgorithm(Config):
    """Discount factor and target networks of temporal-difference learning."""

    discount: float = Field(default=0.99, ge=0, le=1)
    """Discount factor (gamma)."""
    tau: float = Field(default=0.005, gt=0, le=1)
    """Polyak coefficient of the target networks per update."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearningMethod(Generic[Q]):
    """What makes one algorithm on decisions of a replay buffer or a log, for one config and its spaces."""

    policy: Q
    phases: Sequence[OptimizerPhase[Q, Any]]
    layout: Callable[[Episodes, Credits, int], TrainingRows[Any]]
    """Decisions, their credits and the number of updates so far -> rows."""
    credit: Callable[[Episodes, Values], Credits]
    after_step: Callable[[Q, int], None] | None = None
    """Policy and update number; runs after the phases of each update, for what none of them can do by itself."""
    shuffle: bool = False
    """Whether the batches of an iteration are drawn from its sample in a random order: for samples that are ordered."""
    split: Callable[[Any, NDArray[np.int64], int, Reduction], Iterator[Any]] = split_by_rows
    """See `GradientLearner.split`."""


def method_learner(
    config: RunConfig, learning: ReplayLearnerConfig, method: LearningMethod[Q]
) -> GradientLearner[Q, Any]:
    """Gradient learner of a method, which is told the number of updates so far. Raises ConfigError or ResourceError for
    products of bfloat16 numbers where there are none."""
    if learning.products == "bfloat16":
        use_bfloat16_products(method.policy)

    def layout(decisions: Episodes, credits: Credits) -> TrainingRows[Any]:
        return method.layout(decisions, credits, learner.updates)

    def after_step(policy: Q) -> None:
        if method.after_step is not None:
            method.after_step(policy, learner.updates)

    learner: GradientLearner[Q, Any] = GradientLearner(
        policy=method.policy,
        layout=layout,
        phases=method.phases,
        seed=config.seed,
        learning_rate=learning_rate_schedule(learning, learning.optimizer_steps(config.steps)),
        epochs=learning.epochs,
        minibatches=learning.updates_per_iteration,
        shuffle=method.shuffle,
        after_step=after_step,
        split=method.split,
    )
    return learner


def optimizer_phase(
    name: str,
    objective: Callable[[Q, R], LossTerms],
    parameters: Iterable[nn.Parameter],
    config: OptimizerConfig,
    *,
    prepare: Callable[[Q, Any, int, Reduction], TrainingRows[R]] | None = None,
    update_every: int = 1,
    after_step: Callable[[Q], None] | None = None,
) -> OptimizerPhase[Q, R]:
    """One of several optimizer steps per minibatch, over its own parameters; see `OptimizerPhase`."""
    flat = FlatParameters(parameters)
    first, second = config.betas
    return OptimizerPhase(
        name=name,
        objective=objective,
        parameters=flat,
        optimizer=Adam(flat, weight_decay=config.weight_decay, betas=(first, second)),
        max_grad_norm=config.max_grad_norm or None,
        prepare=prepare,
        update_every=update_every,
        after_step=after_step,
    )


def target_update(pairs: Sequence[tuple[nn.Module, nn.Module]], *, tau: float) -> Callable[[nn.Module], None]:
    """Polyak update, for the end of a phase: the first of each pair (target, online) takes on a share `tau` of the
    second."""
    update = polyak_updater(pairs)
    return lambda _: update(tau)


def polyak_updater(pairs: Sequence[tuple[nn.Module, nn.Module]]) -> Callable[[float], None]:
    """Function of a share tau that the first of each pair (target, online) takes on of the second.

    Parameters are looked up at the first update, when each phase holds its own, and moved as one where those of the
    online network are contiguous.
    """
    parameters: list[tuple[Sequence[Tensor], Sequence[Tensor]]] = []

    def update(tau: float) -> None:
        for target, online in pairs if not parameters else ():
            theirs, ours = list(target.parameters()), list(online.parameters())
            as_one = contiguous_view(ours)
            parameters.append((theirs, ours) if as_one is None else ([make_contiguous(theirs)], [as_one]))
        for theirs, ours in parameters:
            polyak_update(theirs, ours, tau=tau)

    return update
