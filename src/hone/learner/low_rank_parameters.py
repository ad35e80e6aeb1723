"""A and B of a low-rank adapter as an optimizer sees them; gradients arrive at the merged weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hone.core.reduction import Reduction
from hone.learner.config import OptimizerConfig, adamw
from hone.learner.flat_parameters import FlatParameters
from hone.learner.gradient import OptimizerPhase, TensorBatch, TrainingRows
from hone.learner.share import BatchShare, ParameterStore
from hone.models.language.lora import LoraAdapter
from hone.objectives.terms import LossTerms

P = TypeVar("P", bound=nn.Module)
B = TypeVar("B", bound=TensorBatch)


class LowRankParameters:
    """Parameter store of one process: as soon as a backward pass has the gradient of a merged weight, it becomes that
    of A and B (models/language/lora.py), and is freed; beside a base in codes, A and B get theirs themselves. The
    optimizer's state is that of A and B alone. Call `adapter.merge` after a step."""

    def __init__(self, adapter: LoraAdapter, whole: Mapping[str, nn.Parameter] = {}) -> None:
        """`whole`: further parameters, which are trained as they are: a head."""
        self.adapter = adapter
        factors = {**dict(adapter.factors()), **whole}
        self.factors = FlatParameters(factors.values(), factors)
        """A and B of all layers and the whole parameters, and their gradients."""
        self.whole = tuple(whole.values())

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        beside = [] if self.adapter.weights else [factor for _, factor in self.adapter.factors()]
        return (*self.adapter.weights.values(), *beside, *self.whole)

    @property
    def owned(self) -> Sequence[Tensor]:
        return self.factors.owned

    @property
    def gradients(self) -> Sequence[Tensor]:
        return self.factors.gradients

    @property
    def step_multiple(self) -> int:
        return self.factors.step_multiple

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        return self.factors.shapes

    @contextmanager
    def collect_gradients(self) -> Iterator[None]:
        self.factors.zero_grad()
        places = dict(zip(self.factors.names, self.factors.views, strict=True))
        with ExitStack() as stack:
            for name, weight in self.adapter.weights.items():
                hook = weight.register_post_accumulate_grad_hook(partial(self._take_over, places, name))
                stack.callback(hook.remove)
            yield

    def _take_over(self, places: Mapping[str, Tensor], name: str, weight: Tensor) -> None:
        """Add the gradient of a merged weight to those of its factors, and free it."""
        for factor, gradient in self.adapter.factor_gradients({name: self.gradient_of(weight)}):
            places[factor].add_(gradient)
        weight.grad = None

    def gradient_of(self, weight: Tensor) -> Tensor:
        """Gradient of a merged weight, or of the part of it that is held here."""
        assert weight.grad is not None
        return weight.grad

    def reduce(self, share: BatchShare) -> None:
        self.factors.reduce(share)

    def gradient_norm(self) -> Tensor:
        """L2 norm of the gradient of A, B and the whole parameters, `[]`."""
        return self.factors.gradient_norm()

    def dot(self, one: Tensor, other: Tensor) -> Tensor:
        return self.factors.dot(one, other)

    def by_name(self, values: Sequence[Tensor]) -> dict[str, Tensor]:
        return self.factors.by_name(values)

    def shards(self, named: Mapping[str, Tensor]) -> list[Tensor]:
        return self.factors.shards(named)


def low_rank_phase(
    adapter: LoraAdapter,
    parameters: ParameterStore,
    objective: Callable[[P, B], LossTerms],
    config: OptimizerConfig,
    *,
    prepare: Callable[[P, Any, int, Reduction], TrainingRows[B]] | None = None,
) -> OptimizerPhase[P, B]:
    """The one phase of a learner that trains an adapter: AdamW, and merging after each step."""
    return OptimizerPhase(
        name="policy",
        objective=objective,
        parameters=parameters,
        optimizer=adamw(parameters, config),
        max_grad_norm=config.max_grad_norm or None,
        prepare=prepare,
        after_step=lambda _: adapter.merge(),
    )
