"""Reference counts of the KV cache's pages. Numbers only; a runner has the memory."""

from collections.abc import Iterable


class PagePool:
    """`count` pages; a page without references is free."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._references = [0] * count
        self._free = list(range(count - 1, -1, -1))

    @property
    def free(self) -> int:
        """Number of pages that are free now."""
        return len(self._free)

    def take(self) -> int:
        """A free page, referred to once. Raises IndexError when there is none."""
        page = self._free.pop()
        self._references[page] = 1
        return page

    def share(self, pages: Iterable[int]) -> None:
        """One more reference to each of `pages`, which are in use."""
        references = self._references
        for page in pages:
            if not references[page]:
                raise ValueError(f"page {page} is free and cannot be shared")
            references[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """One reference less to each of `pages`; the last one frees the page."""
        references = self._references
        for page in pages:
            if not references[page]:
                raise ValueError(f"page {page} is free and cannot be released")
            references[page] -= 1
            if not references[page]:
                self._free.append(page)

    def references(self, page: int) -> int:
        """Number of references to a page."""
        return self._references[page]
