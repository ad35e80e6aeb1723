"""The trie of known beginnings, and who gives way in it: published versions never descended, never stored, or forgot in
linear time."""

import numpy as np

from hone.engine.text_pages import PagePool, PrefixCache


def tokens(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_snippet_state_trie_descends_and_stores() -> None:
    """A published `StateTrie.insert` never descended nor stored: whatever was looked up was not there."""
    pool = PagePool(8)
    known = PrefixCache(pool, 2)
    first = [pool.take() for _ in range(3)]
    known.insert(0, tokens(1, 2, 3, 4, 5, 6), first)
    assert len(known) == 3
    assert known.match(0, tokens(1, 2, 3, 4, 5, 6), most_pages=9) == first
    assert known.match(0, tokens(1, 2, 3, 4, 9, 9), most_pages=9) == first[:2]  # as far as it is known
    assert known.match(0, tokens(9, 9, 3, 4), most_pages=9) == []  # a path, not a bag of pieces
    second = [pool.take()]
    known.insert(0, tokens(1, 2, 7, 8), [first[0], *second])
    assert known.match(0, tokens(1, 2, 7, 8), most_pages=9) == [first[0], *second]  # a branch beside the first
    assert known.match(0, tokens(1, 2, 3, 4), most_pages=9) == first[:2]


def test_snippet_least_recently_used_gives_way_first() -> None:
    """A published cache searched a list for every use. Here a use moves an entry to the end, whatever the size."""
    pool = PagePool(4)
    known = PrefixCache(pool, 1)
    pages = [pool.take() for _ in range(3)]
    for page, token in zip(pages, (10, 20, 30), strict=True):
        known.insert(0, tokens(token), [page])
    pool.release(pages)  # from now on only the cache refers to them
    pool.release(known.match(0, tokens(10), most_pages=1))  # used again
    assert known.evict()
    assert known.cached_pages() == [pages[2], pages[0]]
    assert known.match(0, tokens(20), most_pages=1) == []
