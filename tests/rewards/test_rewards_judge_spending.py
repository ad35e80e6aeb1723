"""Rates, budgets, waits between attempts, and the cache of replies."""

import json
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from email.utils import format_datetime
from multiprocessing import get_context
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hone.core.clock import SystemClock
from hone.core.errors import DataError, LostResourceError, ResourceError
from hone.rewards.judges.config import JudgeBudget
from hone.rewards.judges.questions import JudgeReply
from hone.rewards.judges.spending import (
    JudgeLedger,
    JudgeSpending,
    RateLimit,
    ReplyCache,
    SpendingTotals,
    backoff_s,
    parse_retry_after,
    wait_before_retry_s,
)


@given(st.integers(1, 6), st.lists(st.floats(0, 40), max_size=30))
@example(1, [4.0598132377347715, 0.0])
def test_no_minute_holds_more_requests_than_the_rate(per_minute: int, pauses: list[float]) -> None:
    rate, now_s, sent = RateLimit(per_minute), 0.0, list[float]()
    for pause_s in pauses:
        now_s += pause_s
        wait_s = rate.wait_s(now_s)
        assert 0 <= wait_s <= 60
        if wait_s > 0.01:
            assert rate.wait_s(now_s + wait_s - 0.01) > 0, "no longer than it must"
        now_s += wait_s + 1e-9
        rate.take(now_s, 1)
        sent.append(now_s)
    assert all(sum(start <= one < start + 60 for one in sent) <= per_minute for start in sent)


def test_tokens_wait_until_the_minute_has_room_again() -> None:
    rate = RateLimit(100)
    rate.take(0, 90)
    assert rate.wait_s(1) == 0.0
    rate.take(1, 500)
    assert rate.wait_s(10) == pytest.approx(51)
    assert RateLimit(None).wait_s(0) == 0.0


@pytest.mark.parametrize(
    ("limits", "replies"),
    [({"requests": 3}, 3), ({"tokens": 300}, 3), ({"money": 0.0003, "price_read": 0.9, "price_written": 1.0}, 3)],
)
def test_a_spent_budget_stops_with_its_numbers(limits: dict[str, float], replies: int) -> None:
    spending = JudgeSpending("wise", JudgeBudget.model_validate(limits))
    reply = JudgeReply(text="", read_tokens=100, written_tokens=10)
    for now_s in range(replies):
        spending.send(now_s)
        spending.receive(reply, now_s)
    with pytest.raises(LostResourceError, match=f"judge 'wise' has spent its budget: budget.{next(iter(limits))} = "):
        spending.send(9)
    assert (spending.requests, spending.tokens) == (replies, 110 * replies)
    assert spending.money == pytest.approx(
        replies * (100 * spending.budget.price_read + 10 * spending.budget.price_written) / 1e6
    )


def test_a_server_that_counts_no_tokens_cannot_be_held_to_a_budget_of_them() -> None:
    spending = JudgeSpending("wise", JudgeBudget(tokens=5))
    with pytest.raises(LostResourceError, match="does not report `usage`"):
        spending.receive(JudgeReply(text=""), 0)
    JudgeSpending("wise", JudgeBudget(requests=5)).receive(JudgeReply(text=""), 0)


def test_spending_is_kept_in_a_file_that_two_judges_share(tmp_path: Path) -> None:
    one, other, again = (
        JudgeLedger(JudgeSpending("wise", JudgeBudget(requests=3)), None, SystemClock()) for _ in range(3)
    )
    for ledger in (one, other):
        ledger.keep_totals(tmp_path / "wise.json")
    for ledger in (one, one, other):
        ledger.try_send()
        ledger.keep("", JudgeReply(text="", read_tokens=3, written_tokens=4))
        ledger.write_totals()
    again.keep_totals(tmp_path / "wise.json")
    assert again.spending.totals() == other.spending.totals() == SpendingTotals(3, 21, 0.0)
    with pytest.raises(LostResourceError):
        again.try_send()
    (tmp_path / "wise.json").write_text('{"requests": "3"}')
    with pytest.raises(DataError, match=r"wise\.json cannot be read"):
        again.keep_totals(tmp_path / "wise.json")


@given(st.integers(1, 50), st.text(max_size=4), st.floats(0.1, 100))
def test_backoff_doubles_within_its_bounds_and_is_a_function_of_key_and_attempt(
    attempt: int, key: str, most: float
) -> None:
    whole = min(most, 0.5 * 2 ** min(attempt - 1, 30))
    wait_s = backoff_s(attempt, key=key, most_s=most)
    assert whole / 2 <= wait_s <= whole
    assert wait_s == backoff_s(attempt, key=key, most_s=most)


def test_requests_that_fail_together_come_back_apart() -> None:
    assert len({backoff_s(3, key=str(number), most_s=60) for number in range(100)}) == 100


def test_the_servers_wish_is_honoured_or_not_asked_again() -> None:
    assert wait_before_retry_s(1, key="k", most_s=60, retry_after_s=7.0) == 7.0
    assert wait_before_retry_s(1, key="k", most_s=60, retry_after_s=61.0) is None
    assert wait_before_retry_s(1, key="k", most_s=60, retry_after_s=0.0) == backoff_s(1, key="k", most_s=60)


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    now_s = 1_800_000_000.0
    date = format_datetime(datetime.fromtimestamp(now_s + 30, UTC), usegmt=True)
    assert parse_retry_after("12", now_s=now_s) == 12.0
    assert parse_retry_after(date, now_s=now_s) == 30.0
    assert parse_retry_after(date, now_s=now_s + 100) == 0.0
    assert [parse_retry_after(text, now_s=0) for text in (None, "", "soon", "-3", "1.5", "\u0663")] == [None] * 6


REPLY = JudgeReply(text="gr\u00fc\u00dfe \U0001f600", finish_reason="length", read_tokens=3, written_tokens=4)
KEY = "ab" * 32


def test_a_kept_reply_comes_back_and_every_damage_is_noticed(tmp_path: Path) -> None:
    cache = ReplyCache(tmp_path / "cache")
    assert cache.load(KEY) is None
    cache.save(KEY, REPLY)
    assert cache.load(KEY) == REPLY
    (entry,) = (tmp_path / "cache").rglob("*.json")
    whole = entry.read_bytes()
    changed = json.loads(whole)
    changed["reply"]["text"] = "10"
    other_key = {**json.loads(whole), "key": "0" * 64}
    spoiled = [whole[:cut] for cut in range(0, len(whole), 7)]
    for content in [*spoiled, json.dumps(changed).encode(), json.dumps(other_key).encode(), b"\xff\xfe", b"[]"]:
        entry.write_bytes(content)
        assert cache.load(KEY) is None
    assert cache.damaged == [entry] * (len(spoiled) + 4)
    cache.save(KEY, REPLY)
    assert cache.load(KEY) == REPLY
    assert [path.name for path in entry.parent.iterdir()] == [entry.name], "no leftovers"


def _write_many(folder: str, number: int) -> int:
    cache = ReplyCache(Path(folder))
    for place in range(40):
        cache.save(f"{place % 8:064x}", JudgeReply(text="x" * 2000, read_tokens=place % 8))
        cache.load(f"{(place + number) % 8:064x}")
    return len(cache.damaged)


@pytest.mark.slow  # three processes that import numpy
def test_several_processes_share_a_folder(tmp_path: Path) -> None:
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        assert list(pool.map(_write_many, [str(tmp_path)] * 3, range(3))) == [0, 0, 0]
    assert all(ReplyCache(tmp_path).load(f"{place:064x}") is not None for place in range(8))


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ResourceError, match="cannot write the judge's file"):
        ReplyCache(tmp_path / "cache").save(KEY, REPLY)


@pytest.mark.parametrize("value", [None, [], {}, {"text": 3}, {**REPLY.to_json(), "read_tokens": "3"}])
def test_other_values_are_no_replies(value: object) -> None:
    assert JudgeReply.from_json(value) is None
    assert JudgeReply.from_json(REPLY.to_json()) == REPLY
