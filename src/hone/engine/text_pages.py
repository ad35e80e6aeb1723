"""Pages of texts: the free ones, whole pages of known texts, and turns of dialogues that are kept to be gone on from.

When pages are short, known texts go first, the least recently used at once, and then kept turns, the latest first:
dialogues come back in about the order in which they left. Whoever comes back too late is read anew.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Optional

import numpy as np
from numpy.typing import NDArray

from hone.engine.samples import PrefillGroup, SampleState

# ---------------------------------------------------------------------------------------------------------------- pages


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


# ---------------------------------------------------------------------------------------------------------------- radix
# Prefix cache: a trie over whole pages of tokens, so that a common prefix is computed once.
#
# Pages belong to a version of the weights and to an adapter, and are never found under another.


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

    def match(self, version: int, tokens: NDArray[np.int32], *, most_pages: int, adapter: str = "") -> list[int]:
        """The longest known beginning of `tokens`: up to `most_pages` pages, each given one more reference."""
        if version != self._version:
            return []
        path: list[_RadixNode] = []
        node = self._root
        for key in self._keys(tokens, most_pages, adapter):
            child = node.children.get(key)
            if child is None:
                break
            path.append(child)
            node = child
        self._touch(path)
        pages = [one.page for one in path]
        self._pool.share(pages)
        return pages

    def insert(self, version: int, tokens: NDArray[np.int32], pages: list[int], adapter: str = "") -> None:
        """Insert `tokens` (whole pages of them) with their `pages`, computed by `version`. Existing entries stay."""
        if version != self._version:
            return
        path: list[_RadixNode] = []
        node = self._root
        for key, page in zip(self._keys(tokens, len(pages), adapter), pages, strict=False):
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

    def _keys(self, tokens: NDArray[np.int32], most: int, adapter: str) -> list[bytes]:
        size = self._page_tokens
        count = min(len(tokens) // size, most)
        keys = [tokens[place * size : (place + 1) * size].tobytes() for place in range(count)]
        return [adapter.encode() + keys[0], *keys[1:]] if adapter and keys else keys

    def _touch(self, path: list[_RadixNode]) -> None:
        for node in reversed(path):
            self._recent.move_to_end(node.page)


# ----------------------------------------------------------------------------------------------------------- text pages


@dataclass(frozen=True, slots=True, eq=False)
class _KeptTurn:
    """A finished sample, and the pages that hold its text."""

    sample: SampleState
    text: NDArray[np.int32]
    """`[n]` tokens in the pages."""
    pages: list[int]
    """An unfinished last page is nobody else's, so that the next turn may write behind the text."""
    until_s: float


class _KeptTurns:
    """Turns by request id and sample; each holds one reference to its pages."""

    def __init__(self, pool: PagePool) -> None:
        self._pool = pool
        self._turns: dict[tuple[str, int], _KeptTurn] = {}
        self._first_s = 0.0
        """No turn's time is over before."""

    def __len__(self) -> int:
        return len(self._turns)

    def pages(self) -> list[int]:
        """The pages that it refers to, one as often as it is referred to."""
        return [page for turn in self._turns.values() for page in turn.pages]

    def keep(self, turn: _KeptTurn) -> None:
        """Keep a turn, in place of an earlier one of the same request and sample. Takes its references over."""
        self._release(turn.sample.request.id, turn.sample.number)
        self._first_s = min(self._first_s, turn.until_s) if self._turns else turn.until_s
        self._turns[turn.sample.request.id, turn.sample.number] = turn

    def take(self, fill: PrefillGroup) -> _KeptTurn | None:
        """Hand out the turn that the text of `fill` goes on from, with its references. One that it does not go on from,
        because the history was rewritten, is dropped."""
        request = fill.members[0].request
        if request.after is None or (turn := self._turns.get(key := (request.after, request.first_sample))) is None:
            return None
        count, same = len(turn.text), turn.sample.request.adapter == request.adapter
        if not same or count > fill.first_draw or not np.array_equal(fill.text[:count], turn.text):
            self._release(*key)
            return None
        return self._turns.pop(key)

    def evict(self) -> bool:
        """Drop the turn that was kept last; False without any."""
        if not self._turns:
            return False
        self._release(*next(reversed(self._turns)))
        return True

    def expire(self, now_s: float) -> None:
        """Drop the turns whose time is over."""
        if not self._turns or now_s < self._first_s:
            return
        self._drop([key for key, turn in self._turns.items() if turn.until_s <= now_s])
        self._first_s = min((turn.until_s for turn in self._turns.values()), default=0.0)

    def drop(self, wanted: Callable[[SampleState], bool]) -> None:
        """Drop the turns of the samples that are `wanted`."""
        self._drop([key for key, turn in self._turns.items() if wanted(turn.sample)])

    def reset(self) -> None:
        """Drop all turns."""
        self._drop(list(self._turns))

    def _drop(self, keys: list[tuple[str, int]]) -> None:
        for key in keys:
            self._release(*key)

    def _release(self, request_id: str, number: int) -> None:
        turn = self._turns.pop((request_id, number), None)
        if turn is not None:
            self._pool.release(turn.pages)


class TextPages:
    """The pool of pages, and what is known of texts that nobody reads or writes now."""

    def __init__(self, pages: int, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._version = 0
        self._now_s = 0.0
        self.pool = PagePool(pages)
        self.cache = PrefixCache(self.pool, page_tokens)
        self.kept = _KeptTurns(self.pool)

    def reset(self, version: int) -> None:
        """Forget everything: from now on texts are read by `version`."""
        self._version = version
        self.cache.reset(version)
        self.kept.reset()

    def expire(self, now_s: float) -> None:
        """Drop turns whose time is over; turns that end from now on are kept from `now_s` on."""
        self._now_s = now_s
        self.kept.expire(now_s)

    def page(self) -> int | None:
        """A free page, if need be one that held an old text or a kept turn."""
        return self.pool.take() if self._make_room(1) else None

    def open(self, fill: PrefillGroup, *, spare: int) -> bool:
        """Give `fill` its pages: those that hold its beginning already, and new ones. False, and nothing is taken, if
        fewer than `spare` would be left."""
        turn = self.kept.take(fill)
        if turn is None:
            known = self.cache.match(
                self._version,
                fill.text,
                most_pages=fill.first_draw // self._page_tokens,
                adapter=fill.members[0].request.adapter,
            )
            count = len(known) * self._page_tokens
        else:
            known, count = turn.pages, len(turn.text)
        need = -(-len(fill.text) // self._page_tokens) - len(known)
        if not self._make_room(need + spare):
            if turn is None:
                self.pool.release(known)
            else:
                self.kept.keep(turn)
            return False
        fill.pages = [*known, *(self.pool.take() for _ in range(need))]
        fill.filled_tokens = count
        return True

    def end(self, sample: SampleState, pages: list[int]) -> None:
        """Take over the pages of a sample that ended: they are kept for the next turn, or remembered as far as they
        are whole."""
        self.remember(sample, pages)
        if sample.request.keep_s and not sample.stale:
            self.kept.keep(_KeptTurn(sample, _read_text(sample), pages, self._now_s + sample.request.keep_s))
        else:
            self.pool.release(pages)

    def keep_prompt(self, sample: SampleState, fill: PrefillGroup) -> None:
        """Keep the prompt of a sample that ended with its first token, as far as no other sample writes behind it."""
        if not sample.request.keep_s:
            return
        alone = len(fill.members) == 1 and not fill.ready
        whole = len(fill.text) // self._page_tokens
        pages = fill.pages if alone else fill.pages[:whole]
        text = fill.text if alone else fill.text[: whole * self._page_tokens]
        self.pool.share(pages)
        self.kept.keep(_KeptTurn(sample, text, list(pages), self._now_s + sample.request.keep_s))

    def remember(self, sample: SampleState, pages: list[int]) -> None:
        """Keep whole pages for any text that begins like this sample's."""
        if not sample.stale and len(pages) > 1:  # else not one page is whole
            self.cache.insert(self._version, _read_text(sample), pages, sample.request.adapter)

    def _make_room(self, count: int) -> bool:
        while self.pool.free < count:
            if not self.cache.evict() and not self.kept.evict():
                return False
        return True


def _read_text(sample: SampleState) -> NDArray[np.int32]:
    """`[n]` prompt and answer up to the token before the last, which nobody has read."""
    return np.concatenate([sample.request.prompt, sample.tokens[:-1]]).astype(np.int32, copy=False)
