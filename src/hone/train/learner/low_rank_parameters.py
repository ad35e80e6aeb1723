"""A and B of a low-rank adapter as an optimizer sees them; gradients arrive at the merged weights."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from torch import Tensor, nn

from hone.models.language.lora import LoraAdapter
from hone.train.learner.flat_parameters import FlatParameters


class LowRankParameters:
    """Parameter store of one process: the network has gradients of its merged weights, and the optimizer those of A and
    B (models/language/lora.py). The optimizer's state is that of A and B alone. Call `adapter.merge` after a step."""

    def __init__(self, adapter: LoraAdapter) -> None:
        self.adapter = adapter
        self.merged = FlatParameters(adapter.weights.values(), adapter.weights)
        """The decoder's parameters that hold adapted layers, and their gradients."""
        factors = dict(adapter.factors())
        self.factors = FlatParameters(factors.values(), factors)
        """A and B of all layers, and their gradients."""

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        return self.merged.parameters

    @property
    def owned(self) -> Sequence[Tensor]:
        return self.factors.owned

    @property
    def gradients(self) -> Sequence[Tensor]:
        return self.factors.gradients

    @contextmanager
    def collect_gradients(self) -> Iterator[None]:
        with self.merged.collect_gradients():
            yield
        merged = dict(zip(self.merged.names, self.merged.views, strict=True))
        places = dict(zip(self.factors.names, self.factors.views, strict=True))
        for name, gradient in self.adapter.factor_gradients(merged):
            places[name].copy_(gradient)

    def gradient_norm(self) -> Tensor:
        """L2 norm of the gradient of A and B, `[]`."""
        return self.factors.gradient_norm()

    def by_name(self, values: Sequence[Tensor]) -> dict[str, Tensor]:
        return self.factors.by_name(values)

    def shards(self, named: Mapping[str, Tensor]) -> list[Tensor]:
        return self.factors.shards(named)
