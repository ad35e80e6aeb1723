"""What the engine asks of a model; any decoder with these two methods can be sampled from, without a copy."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

LinearFn: TypeAlias = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""`(x [N, in], weight [out, in], bias [out] | None) -> [N, out]`."""


class Attend(Protocol):
    """Causal attention, owned by the engine because it owns the keys and values."""

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """`[T, heads, head_dim]`, twice `[T, kv_heads, head_dim]` -> `[T, heads * head_dim]`, at head_dim^-1/2."""
        ...


class Shape(Protocol):
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_positions(self) -> int: ...


class Model(Protocol):
    """Rows of a batch must not influence each other but through `attend` and `linear`."""

    @property
    def config(self) -> Shape: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...

    def run(self, tokens: Tensor, positions: Tensor, attend: Attend, linear: LinearFn) -> Tensor:
        """`tokens` `[T]` at `positions` `[T]` -> hidden states `[T, hidden_size]`."""
        ...

    def logits(self, hidden: Tensor, linear: LinearFn) -> Tensor:
        """`[N, hidden_size]` -> `[N, vocab_size]`, float32 at least, not divided by a temperature."""
        ...
