"""Optimizer phases over a policy's parameters, and target networks that follow them."""

from collections.abc import Callable, Iterable
from typing import TypeVar

from torch import Tensor, nn

from hone.models.control.actor_critic import follow
from hone.objectives.terms import Terms
from hone.train.learner.adam import Adam
from hone.train.learner.config import LearnerConfig
from hone.train.learner.flat_parameters import FlatParameters, laid_together, lying_together
from hone.train.learner.gradient import Batch, Phase

Q = TypeVar("Q", bound=nn.Module)


R = TypeVar("R", bound=Batch)


def phase(
    name: str,
    objective: Callable[[Q, R], Terms],
    parameters: Iterable[nn.Parameter],
    config: LearnerConfig,
) -> Phase[Q, R]:
    """One of several optimizer steps per minibatch, over its own parameters."""
    flat = FlatParameters(parameters)
    first, second = config.betas
    return Phase(
        name=name,
        objective=objective,
        parameters=flat,
        optimizer=Adam(flat, weight_decay=config.weight_decay, betas=(first, second)),
        max_grad_norm=config.max_grad_norm or None,
    )


def following(pairs: Iterable[tuple[nn.Module, nn.Module]], *, rate: float) -> Callable[[nn.Module], None]:
    """After an update the slow one of each pair (slow, fast) takes on a share `rate` of the fast one. Their parameters
    are looked up once, and moved as one where those of the fast one lie together (`phase` sees to that)."""
    slow: list[Tensor] = []
    fast: list[Tensor] = []
    for copy, original in pairs:
        both = list(copy.parameters()), list(original.parameters())
        as_one = lying_together(both[1])
        slow += both[0] if as_one is None else [laid_together(both[0])]
        fast += both[1] if as_one is None else [as_one]

    def after(policy: nn.Module) -> None:
        del policy
        follow(slow, fast, rate=rate)

    return after
