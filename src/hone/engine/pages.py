"""Pages of keys and values, counted: who refers to each, and which are free. Numbers only; a runner has the memory."""

from collections.abc import Iterable

import numpy as np


class PagePool:
    """`count` pages; a page is free when nobody refers to it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._references = np.zeros(count, np.int32)
        self._free = list(range(count - 1, -1, -1))

    @property
    def free(self) -> int:
        """Pages that can be taken at once."""
        return len(self._free)

    def take(self) -> int:
        """A free page, referred to once. Raises IndexError when there is none."""
        page = self._free.pop()
        self._references[page] = 1
        return page

    def share(self, pages: Iterable[int]) -> None:
        """One more reference to each of `pages`, which are in use."""
        for page in pages:
            if not self._references[page]:
                raise ValueError(f"page {page} is free and cannot be shared")
            self._references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One reference less to each of `pages`; the last one frees the page."""
        for page in pages:
            if not self._references[page]:
                raise ValueError(f"page {page} is free and cannot be released")
            self._references[page] -= 1
            if not self._references[page]:
                self._free.append(page)

    def references(self, page: int) -> int:
        return int(self._references[page])
