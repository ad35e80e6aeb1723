"""Prefix cache: a trie over whole pages of tokens, so that a common prefix is computed once.

Pages belong to a version of the weights, and are never found under another.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from hone.engine.pages import PagePool


@dataclass(slots=True, eq=False)
class _RadixNode:
    """One page of a text; its path from the root is the text up to there."""

    parent: Optional["_RadixNode"]
    key: bytes
    page: int
    children: dict[bytes, "_RadixNode"] = field(default_factory=dict[bytes, "_RadixNode"])


class PrefixCache:
    """Holds one reference to each of its pages; evicts the least recently used page without other references."""

    def __init__(self, pool: PagePool, page_tokens: int) -> None:
        self._pool, self._page_tokens = pool, page_tokens
        self._version = 0
        self._root = _RadixNode(None, b"", -1)
        self._recent: OrderedDict[int, _RadixNode] = OrderedDict()
        """Nodes by page, the least recently used first; a page is always before its parent."""

    def __len__(self) -> int:
        """Number of cached pages."""
        return len(self._recent)

    def cached_pages(self) -> list[int]:
        """The pages that it refers to."""
        return list(self._recent)

    def match(self, version: int, tokens: NDArray[np.int32], *, most_pages: int) -> list[int]:
        """The longest known beginning of `tokens`: up to `most_pages` pages, each given one more reference."""
        if version != self._version:
            return []
        path: list[_RadixNode] = []
        node = self._root
        for key in self._keys(tokens, most_pages):
            child = node.children.get(key)
            if child is None:
                break
            path.append(child)
            node = child
        self._touch(path)
        pages = [one.page for one in path]
        self._pool.share(pages)
        return pages

    def insert(self, version: int, tokens: NDArray[np.int32], pages: list[int]) -> None:
        """Insert `tokens` (whole pages of them) with their `pages`, computed by `version`. Existing entries stay."""
        if version != self._version:
            return
        path: list[_RadixNode] = []
        node = self._root
        for key, page in zip(self._keys(tokens, len(pages)), pages, strict=False):
            child = node.children.get(key)
            if child is None:
                child = node.children[key] = _RadixNode(node, key, page)
                self._recent[page] = child
                self._pool.share((page,))
            path.append(child)
            node = child
        self._touch(path)

    def evict(self) -> bool:
        """Free one page; False when every cached page is in use."""
        for _ in range(len(self._recent)):
            page, node = next(iter(self._recent.items()))
            if not node.children and self._pool.references(page) == 1:
                del self._recent[page]
                if node.parent is not None:
                    del node.parent.children[node.key]
                self._pool.release((page,))
                return True
            self._recent.move_to_end(page)
        return False

    def reset(self, version: int) -> None:
        """Forget everything: from now on texts are read by `version`."""
        self._version = version
        self._root = _RadixNode(None, b"", -1)
        pages = list(self._recent)
        self._recent.clear()
        self._pool.release(pages)

    def _keys(self, tokens: NDArray[np.int32], most: int) -> list[bytes]:
        size = self._page_tokens
        count = min(len(tokens) // size, most)
        return [tokens[place * size : (place + 1) * size].tobytes() for place in range(count)]

    def _touch(self, path: list[_RadixNode]) -> None:
        for node in reversed(path):
            self._recent.move_to_end(node.page)
