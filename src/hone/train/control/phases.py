"""Optimizer phases over a policy's parameters, and target networks that follow them."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from torch import Tensor, nn

from hone.models.control.actor_critic import polyak_update
from hone.objectives.terms import LossTerms
from hone.train.learner.adam import Adam
from hone.train.learner.config import OptimizerConfig
from hone.train.learner.flat_parameters import FlatParameters, contiguous_view, make_contiguous
from hone.train.learner.gradient import OptimizerPhase, TensorBatch

Q = TypeVar("Q", bound=nn.Module)


R = TypeVar("R", bound=TensorBatch)


def optimizer_phase(
    name: str,
    objective: Callable[[Q, R], LossTerms],
    parameters: Iterable[nn.Parameter],
    config: OptimizerConfig,
) -> OptimizerPhase[Q, R]:
    """One of several optimizer steps per minibatch, over its own parameters."""
    flat = FlatParameters(parameters)
    first, second = config.betas
    return OptimizerPhase(
        name=name,
        objective=objective,
        parameters=flat,
        optimizer=Adam(flat, weight_decay=config.weight_decay, betas=(first, second)),
        max_grad_norm=config.max_grad_norm or None,
    )


def target_update(pairs: Iterable[tuple[nn.Module, nn.Module]], *, tau: float) -> Callable[[nn.Module], None]:
    """After an update the slow one of each pair (slow, fast) takes on a share `rate` of the fast one. Their parameters
    are looked up once, and moved as one where those of the fast one lie together (`phase` sees to that)."""
    slow: list[Tensor] = []
    fast: list[Tensor] = []
    for copy, original in pairs:
        both = list(copy.parameters()), list(original.parameters())
        as_one = contiguous_view(both[1])
        slow += both[0] if as_one is None else [make_contiguous(both[0])]
        fast += both[1] if as_one is None else [as_one]

    def after(policy: nn.Module) -> None:
        del policy
        polyak_update(slow, fast, tau=tau)

    return after
