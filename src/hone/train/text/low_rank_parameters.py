"""A and B of a low-rank adapter as an optimizer sees them; gradients arrive at the merged weights."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hone.core.reduction import Reduction
from hone.models.language.lora import LoraAdapter
from hone.objectives.terms import LossTerms
from hone.train.learner.config import OptimizerConfig, adamw
from hone.train.learner.flat_parameters import FlatParameters
from hone.train.learner.gradient import OptimizerPhase, TensorBatch, TrainingRows
from hone.train.learner.share import BatchShare

P = TypeVar("P", bound=nn.Module)
B = TypeVar("B", bound=TensorBatch)


class LowRankParameters:
    """Parameter store of one process: the network has gradients of its merged weights, and the optimizer those of A and
    B (models/language/lora.py). The optimizer's state is that of A and B alone. Call `adapter.merge` after a step."""

    def __init__(self, adapter: LoraAdapter, whole: Mapping[str, nn.Parameter] = {}) -> None:
        """`whole`: further parameters, which are trained as they are: a head."""
        self.adapter = adapter
        self.merged = FlatParameters(adapter.weights.values(), adapter.weights)
        """The decoder's parameters that hold adapted layers, and their gradients."""
        factors = {**dict(adapter.factors()), **whole}
        self.factors = FlatParameters(factors.values(), factors)
        """A and B of all layers and the whole parameters, and their gradients."""
        self.whole = tuple(whole.values())

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        return (*self.merged.parameters, *self.whole)

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
        with self.merged.collect_gradients():
            yield
        merged = dict(zip(self.merged.names, self.merged.views, strict=True))
        places = dict(zip(self.factors.names, self.factors.views, strict=True))
        for name, gradient in self.adapter.factor_gradients(merged):
            places[name].copy_(gradient)

    def reduce(self, share: BatchShare) -> None:
        self.factors.reduce(share)

    def gradient_norm(self) -> Tensor:
        """L2 norm of the gradient of A, B and the whole parameters, `[]`."""
        return self.factors.gradient_norm()

    def by_name(self, values: Sequence[Tensor]) -> dict[str, Tensor]:
        return self.factors.by_name(values)

    def shards(self, named: Mapping[str, Tensor]) -> list[Tensor]:
        return self.factors.shards(named)


def low_rank_phase(
    parameters: LowRankParameters,
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
        after_step=lambda _: parameters.adapter.merge(),
    )
