"""Routes of the tokens in the KV cache: they lie with the pages, so that whoever finds keys finds their routes."""

from collections.abc import Sequence

import numpy as np

from hone.core.routing import Routing
from hone.engine.samples import SampleState
from hone.engine.work import ForwardBatch


class RoutePages:
    """Experts of every token in `pages` pages. Dense models record none, and take no memory."""

    def __init__(self, pages: int, page_tokens: int) -> None:
        self._pages, self._page_tokens = pages, page_tokens
        self._store: Routing | None = None
        """`[pages * page_tokens, L, k]`."""

    def copy(self, source: int, target: int) -> None:
        """Copy a page over another."""
        if self._store is not None:
            paged = self._store.reshape(self._pages, self._page_tokens, *self._store.shape[1:])
            paged[target] = paged[source]

    def keep(self, sample: SampleState, pages: Sequence[int]) -> None:
        """Give a sample the routes of its tokens, which are in `pages`; its last token was not read yet."""
        sample.keep_routing(self.read(pages, len(sample.request.prompt) + len(sample.tokens) - 1))

    def write(self, batch: ForwardBatch, routing: Routing | None) -> None:
        """Record the routes `[T, L, k]` of a pass."""
        if routing is None:
            return
        if self._store is None:
            self._store = np.zeros((self._pages * self._page_tokens, *routing.shape[1:]), routing.dtype)
        page = batch.pages[batch.sequence, batch.positions // self._page_tokens].astype(np.int64)
        self._store[page * self._page_tokens + batch.positions % self._page_tokens] = routing

    def read(self, pages: Sequence[int], count: int) -> Routing | None:
        """`[count, L, k]` routes of the first `count` tokens in `pages`; None where nothing is recorded."""
        if self._store is None:
            return None
        paged = self._store.reshape(self._pages, self._page_tokens, *self._store.shape[1:])
        whole = paged[np.array(pages, np.int64)].reshape(-1, *self._store.shape[1:])
        return whole[:count].copy()
