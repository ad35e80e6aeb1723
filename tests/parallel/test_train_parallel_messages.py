"""Credits as they are sent to other ranks."""

import numpy as np
import pytest

from hone.core.credit import Credits
from hone.core.state import State
from hone.credit.moments import NoveltyCredits
from hone.parallel.ranked_job import _pack_credits, _unpack_credits
from hone.run.store.codec import state_bytes, state_from_bytes

ROWS = np.array([0.5, -1.0, np.nan], np.float32)


@pytest.mark.parametrize(
    "credits",
    [
        Credits(advantage=ROWS),
        Credits(advantage=ROWS, target=2 * ROWS, discount=3 * ROWS, metrics={"a": 1.0, "b": float("nan")}),
        NoveltyCredits(advantage=ROWS, target=2 * ROWS, novelty_target=4 * ROWS),
    ],
)
def test_credits_arrive_as_they_were_sent(credits):
    sent: State = {"credits": _pack_credits(credits)}
    received = state_from_bytes(state_bytes(sent))["credits"]
    assert isinstance(received, dict)
    found = _unpack_credits(received)
    assert type(found) is type(credits)
    pairs = ((found.advantage, credits.advantage), (found.target, credits.target), (found.discount, credits.discount))
    for one, other in pairs:
        assert (one is None and other is None) or np.array_equal(one, other, equal_nan=True)
    assert found.metrics.keys() == credits.metrics.keys()
    if isinstance(credits, NoveltyCredits):
        assert isinstance(found, NoveltyCredits)
        assert np.array_equal(found.novelty_target, credits.novelty_target, equal_nan=True)
