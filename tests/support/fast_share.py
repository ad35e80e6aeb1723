"""Combinations of parameters of which a share is tested each time, and the others by `make test-all`."""

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def fast_share(first: Iterable[Any], *others: Iterable[Any], one_of: int) -> list[Any]:
    """Parameters: each value of `first` with each combination of `others`. One of `one_of` is fast, the rest slow.

    The fast ones step through the others from one value of `first` to the next: they hold each value of `first` if the
    others have at least `one_of` combinations, and each combination of the others if `first` has at least as many.
    """
    rest = [*product(*others)]
    return [
        pytest.param(value, *more, marks=[] if (i + j) % one_of == 0 else pytest.mark.slow)
        for i, value in enumerate(first)
        for j, more in enumerate(rest)
    ]
