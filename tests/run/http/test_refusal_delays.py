"""Delays of a client that is refused again and again."""

import pytest

from hone.run.http.requests import RefusalDelays


def test_refusals_beyond_the_free_ones_wait_longer_and_longer_and_others_do_not() -> None:
    delays = RefusalDelays(free=3, fade_s=10.0, step_s=0.5, most_s=1.2)
    assert [delays.delay_s("a", 0.0) for _ in range(7)] == [0, 0, 0, 0.5, 1.0, 1.2, 1.2]
    assert delays.delay_s("b", 0.0) == 0.0


def test_what_is_long_ago_counts_less() -> None:
    delays = RefusalDelays(free=1, fade_s=10.0, step_s=1.0, most_s=9.0)
    assert delays.delay_s("a", 0.0) == 0.0
    assert delays.delay_s("a", 10.0) == pytest.approx(1 / 2.718281828)
    assert delays.delay_s("a", 1000.0) == 0.0
    assert delays.delay_s("a", 900.0) == pytest.approx(1.0), "a clock that went back is no credit"


def test_clients_are_forgotten_the_oldest_first() -> None:
    delays = RefusalDelays(free=0, step_s=1.0, most_clients=2)
    for client in ("a", "b", "a", "c"):
        delays.delay_s(client, 0.0)
    assert delays.delay_s("a", 0.0) == 2.0, "known: its third refusal, at most 2 s"
    assert delays.delay_s("b", 0.0) == 1.0, "forgotten"
