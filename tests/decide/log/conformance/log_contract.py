"""The contract of `DecisionLog`: one suite for every engine.

A module of an engine subclasses `LogContract` and gives the fixture `engine`, whose log is empty.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

import numpy as np
import pytest
from log_records import all_of, batches_of, bits, decision, key_of, outcome

from hone.core.decisions import ActionSet, Choice, DecisionRecord, Outcome, ShadowChoice, shadow_choice
from hone.core.errors import DataError
from hone.decide.log.protocol import AppendAck, DecisionLog, LogCounts
from hone.decide.log.relational import RelationalLog

TRICKS = (
    "'; drop table records; --", 'x" or "1"="1', "%s %(x)s ?1 $1 :a {0}", "../../etc/passwd", "/", "..", ".", "a\\b",
    "\r\n*3\r\n$3\r\nDEL", "\x01\x1f\x7f", "‮ é 😀 ﷺ", "null", "NaN", " ", "a" * 200, "${jndi:ldap://x}", "-- # /* ;",
)  # fmt: skip


@dataclass
class LogEngine:
    """An engine under test."""

    open: Callable[[], DecisionLog]


def held(log: DecisionLog) -> AbstractContextManager[None]:
    """The transaction of a writer that takes its time; Redis has none that last."""
    return log.session.transaction(write=True) if isinstance(log, RelationalLog) else nullcontext()


class LogContract:
    """What a log does, whichever engine stores it."""

    def test_every_record_is_stored_once_in_any_order(self, engine: LogEngine) -> None:
        log, random = engine.open(), np.random.default_rng(0)
        truth: list[DecisionRecord] = [decision(seq) for seq in range(120)]
        truth += [outcome(seq) for seq in range(120)]
        truth += [decision(seq, tenant="bank") for seq in range(40)]
        sent = [truth[place] for place in random.permutation(np.repeat(np.arange(len(truth)), 2))]
        sent += truth[30:90]  # a window uploaded twice more, in order
        stored = repeated = 0
        for batch in batches_of(sent, 23):
            ack = log.append(batch)
            stored, repeated = stored + ack.stored, repeated + ack.repeated
            assert ack.stored + ack.repeated == len(batch)
        assert (stored, repeated) == (280, len(sent) - 280)
        assert sorted(map(bits, all_of(log)), key=repr) == sorted(map(bits, truth), key=repr)
        assert log.counts() == LogCounts(decisions=160, outcomes=120, repeated=repeated)
        marks = [(one.tenant, one.source, one.watermark, one.highest, one.missing) for one in log.watermarks()]
        assert marks == [("bank", "web", 39, 39, 0), ("shop", "till", 119, 119, 0), ("shop", "web", 119, 119, 0)]
        log.close()

    def test_a_watermark_stands_below_the_first_gap(self, engine: LogEngine) -> None:
        log, random = engine.open(), np.random.default_rng(1)
        arrived: set[int] = set()
        for batch in batches_of([decision(int(seq)) for seq in random.permutation(60)], 4):
            (mark,) = log.append(batch).watermarks
            arrived |= {one.seq for one in batch}
            assert mark.watermark == next(seq for seq in range(61) if seq not in arrived) - 1
            assert (mark.highest, mark.missing) == (max(arrived), max(arrived) + 1 - len(arrived))
            assert log.watermarks() == (mark,)
        log.close()

    def test_a_record_sent_again_with_other_content_is_refused_by_name(self, engine: LogEngine) -> None:
        log = engine.open()
        log.append([decision(0), outcome(0)])
        changes = [decision(0, executed_logp=-0.125), decision(0, unit="eve"), decision(0, version="v2"),
                   decision(0, actions=ActionSet(names=("red", "green", "cyan"))), outcome(0, source="web"),
                   outcome(0, value=9.0), outcome(0, kind="return"), decision(1)]  # fmt: skip
        ack = log.append(changes)
        assert (ack.stored, ack.repeated, len(ack.refused)) == (1, 0, 7)
        differing = ("numbers", "unit", "labels", "actions", "kind of record", "value", "labels")
        for refused, words in zip(ack.refused, differing, strict=True):
            assert f"(different: {words})" in refused.message
            assert f"seq 0 of source '{refused.source}', tenant 'shop'" in refused.message
        assert log.counts().refused == 7
        assert [bits(one) for one in all_of(log)] == [bits(decision(0)), bits(outcome(0)), bits(decision(1))]
        log.close()

    def test_the_first_of_two_in_one_batch_stays(self, engine: LogEngine) -> None:
        log = engine.open()
        ack = log.append([decision(0), decision(0), decision(0, version="v2")])
        assert (ack.stored, ack.repeated, len(ack.refused)) == (1, 1, 1)
        assert [bits(one) for one in all_of(log)] == [bits(decision(0))]
        log.close()

    def test_tenants_share_no_key(self, engine: LogEngine) -> None:
        log = engine.open()
        for tenant, context in (("a", 1.0), ("b", 2.0), ("a\tweb", 3.0)):
            log.append([decision(0, tenant=tenant, unit="u", context=np.array([context])), outcome(0, tenant=tenant)])
        assert [one.tenant for one in all_of(log)] == ["a", "a", "b", "b", "a\tweb", "a\tweb"]
        assert [key_of(one) for one in all_of(log, tenant="b")] == [("b", "web", 0), ("b", "till", 0)]
        assert all_of(log, tenant="c") == []
        assert log.erase("a", "u") == 2
        assert [one.tenant for one in all_of(log)] == ["b", "b", "a\tweb", "a\tweb"]
        log.close()

    def test_any_text_is_kept_as_it_is(self, engine: LogEngine) -> None:
        log = engine.open()
        records: list[DecisionRecord] = []
        for place, text in enumerate(TRICKS):
            actions = ActionSet(names=(text, text + "2"))
            choice = Choice(action=1, logp=-1.0, intervention=text)
            records += [
                decision(0, tenant=text, source=text, id=text, unit=text, version=text, route=text, schema=text,
                         actions=actions, choice=choice, executed=1),
                outcome(1, tenant=text, source=text, of=text, kind=text, value=float(place)),
            ]  # fmt: skip
        log.append(records)
        assert [bits(one) for one in all_of(log)] == [bits(one) for one in records]
        for text in TRICKS:
            assert [key_of(one) for one in all_of(log, tenant=text)] == [(text, text, 0), (text, text, 1)]
            assert log.decision_ids(text, text) == (text,)
        assert [log.erase(text, text) for text in TRICKS[:2]] == [2, 2]
        assert len(all_of(log)) == len(records) - 4
        log.close()

    def test_floats_are_kept_to_the_bit_and_huge_contexts_whole(self, engine: LogEngine) -> None:
        log, random = engine.open(), np.random.default_rng(2)
        odd = np.frombuffer(random.bytes(8 * 64), np.float64).copy()  # any bits: NaNs with payloads, subnormals
        odd[:6] = [np.nan, -np.inf, np.inf, -0.0, 5e-324, 1.7e308]
        features = ActionSet(names=tuple(map(str, range(300))), features=random.normal(size=(300, 4)))
        records = [
            decision(0, context=odd, choice=Choice(action=0, logp=-0.0, scores=odd[:3]), at_s=-0.0, latency_s=-0.0),
            decision(1, context=random.normal(size=100_000)),
            decision(2, actions=features, context=np.zeros(0), choice=Choice(action=299, logp=-745.0), executed=0),
            decision(3, actions=ActionSet(names=("x",), features=np.zeros((1, 0))), executed=0,
                     choice=Choice(action=0, logp=0.0), executed_logp=-1e300),
            decision(4, entities=(("shop_id", "nord é"), ("item", "7")), context=odd),
            decision(5, entities=(("shop_id", ""),), choice=Choice(action=0, logp=-1.0)),
            outcome(0, value=-0.0), outcome(1, value=5e-324),
        ]  # fmt: skip
        log.append(records)
        assert [bits(one) for one in all_of(log)] == [bits(one) for one in records]
        assert log.append(records).repeated == len(records)
        log.close()

    def test_unsound_records_are_all_named_and_nothing_of_their_batch_is_stored(self, engine: LogEngine) -> None:
        log = engine.open()
        unsound: dict[str, DecisionRecord] = {
            "at_s must be seconds since 1970": decision(1, at_s=np.nan),
            "executed_logp must be finite and at most 0": decision(2, executed_logp=-np.inf),
            "choice.logp must be finite and at most 0": decision(3, choice=Choice(action=0, logp=0.2)),
            "executed must be 0 to 2, got 3": decision(4, executed=3),
            "actions must hold at least one action": decision(5, actions=ActionSet(names=())),
            "'red' twice": decision(6, actions=ActionSet(names=("red", "red", "x"))),
            "seq must be a whole number, got str '7; drop'": replace(decision(7), seq="7; drop"),  # type: ignore[arg-type]
            "seq must be 0 to 9007199254740991, got -1": replace(decision(0), seq=-1),
            "unit must not hold NUL": decision(8, unit="a\0b"),
            "tenant must have 1 to 256 characters": decision(9, tenant=""),
            "half of a surrogate pair": outcome(1, kind="\ud800"),
            "value must be finite, got nan": outcome(2, value=float("nan")),
            "value must be finite, got inf": outcome(3, value=float("inf")),
            "choice.scores must be [3]": decision(10, choice=Choice(action=0, logp=-1.0, scores=np.zeros(2))),
            "context must be numbers [d]": decision(11, context=np.zeros((2, 2))),
            "draw_key must be 0 to": decision(12, draw_key=2**128),
            "latency_s must be finite": decision(13, latency_s=float("nan")),
            "entities must not hold NUL": decision(14, entities=(("shop_id", "a\0b"),)),
            "entities must be text, got int 7": decision(15, entities=(("shop_id", 7),)),
        }
        with pytest.raises(DataError) as caught:
            log.append([decision(0), *unsound.values()])
        for row, words in enumerate(unsound, start=1):
            assert any(one.startswith(f"record {row}, ") and words in one for one in caught.value.messages), words
        assert "nothing of the batch of 20 was stored" in str(caught.value)
        assert all_of(log) == []
        assert log.append([decision(0)]).stored == 1
        log.close()

    def test_clocks_of_sources_may_be_wrong(self, engine: LogEngine) -> None:
        log = engine.open()
        times = [4e9, 0.0, 1e9, 253_402_300_799.0, 1e9]
        log.append([decision(seq, at_s=at_s) for seq, at_s in enumerate(times)])
        log.append([outcome(0, at_s=0.0)])
        assert [one.at_s for one in all_of(log)] == [*times, 0.0]
        assert log.days() == [("shop", day) for day in (0, 11574, 46296, 2932896)]
        assert [one.record.at_s for one in log.read_day("shop", 11574)] == [1e9, 1e9]
        log.close()

    def test_writers_beside_each_other_store_every_record_once(self, engine: LogEngine) -> None:
        one, other = engine.open(), engine.open()
        records = [decision(seq, source=f"web-{seq % 2}") for seq in range(80)]
        start = threading.Barrier(4)

        def write(log: DecisionLog, seed: int) -> None:
            order = np.random.default_rng(seed).permutation(len(records))
            start.wait()
            for batch in batches_of([records[place] for place in order], 9):
                log.append(batch)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(write, (one, one, other, other), range(4)))
        assert sorted(map(key_of, all_of(other))) == sorted(map(key_of, records))
        assert one.counts() == LogCounts(decisions=80, repeated=240)
        one.close()
        other.close()

    def test_an_erased_unit_stays_erased(self, engine: LogEngine) -> None:
        log, other = engine.open(), engine.open()
        own = ActionSet(names=("letter for eve",))
        personal = {"unit": "eve", "actions": own, "choice": Choice(action=0, logp=0.0), "executed": 0}
        eve = [decision(0, **personal), decision(1, **personal), outcome(0), outcome(1)]
        log.append([eve[0], *eve[2:], decision(2, unit="bob"), outcome(2)])
        other.append([eve[1], outcome(3, of="web-4")])  # an outcome before its decision
        assert log.decision_ids("shop", "eve") == ("web-0", "web-1")
        marks = log.watermarks()
        assert log.erase("shop", "eve", decision_ids=["web-9"]) == 4
        assert log.watermarks() == marks
        for each in (log, other):  # the other one learns of it with its next batch
            ack = each.append(eve)
            assert (ack.stored, ack.erased, ack.repeated) == (0, 0, 4)
        ack = other.append([decision(3, unit="eve"), outcome(4, of="web-0"), outcome(5, of="web-9")])
        assert (ack.stored, ack.erased) == (0, 3)
        ack = log.append([decision(4, unit="eve"), outcome(3, of="web-4"), decision(5, unit="eve", tenant="bank")])
        assert (ack.stored, ack.erased, ack.repeated) == (1, 1, 1)
        assert [key_of(one) for one in all_of(log)] == [("shop", "web", 2), ("shop", "till", 2), ("bank", "web", 5)]
        counts = log.counts()
        assert (counts.decisions, counts.outcomes, counts.erased) == (2, 1, 9)
        assert log.erase("shop", "eve") == 0
        assert other.append([decision(6, **(personal | {"unit": "bob"}))]).stored == 1  # the set of actions comes back
        last = all_of(log)[-1]
        assert bits(last) == bits(decision(6, **(personal | {"unit": "bob"})))
        log.close()
        other.close()

    def test_a_shadows_choice_is_read_back_and_erased_with_its_decision(self, engine: LogEngine) -> None:
        log, choice = engine.open(), ShadowChoice(version="v2", action=2, logp=-0.25)
        log.append([decision(0, unit="u"), decision(1, unit="other")])
        log.append([outcome(seq, kind=choice.kind, value=choice.logp) for seq in range(2)])
        outcomes = [record for record in all_of(log) if isinstance(record, Outcome)]
        assert [shadow_choice(one) for one in outcomes] == [choice, choice]
        log.erase("shop", "u")
        assert [one.decision_id for one in all_of(log) if isinstance(one, Outcome)] == ["web-1"]
        log.close()

    def test_an_erasure_leaves_another_units_decision_of_the_same_id(self, engine: LogEngine) -> None:
        log = engine.open()
        log.append([decision(0, id="same", unit="eve"), decision(1, id="same", unit="bob"), outcome(0, of="same")])
        assert log.erase("shop", "eve") == 2
        assert [one.seq for one in all_of(log)] == [1]
        log.close()

    def test_an_erasure_that_failed_is_not_remembered_and_can_be_made_again(
        self, engine: LogEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log, other = engine.open(), engine.open()
        log.append([decision(0, unit="eve"), decision(1, unit="bob")])
        monkeypatch.setenv("HONE_FAILPOINT", "decisions.before_erasure:raise")
        with pytest.raises(OSError, match="failpoint"):
            log.erase("shop", "eve")
        monkeypatch.delenv("HONE_FAILPOINT")
        assert log.erase("shop", "eve") == 1
        assert other.append([decision(2, unit="eve"), outcome(0)]).erased == 2
        assert [one.seq for one in all_of(other)] == [1]
        assert log.append([]) == AppendAck(stored=0, repeated=0, erased=0, refused=(), watermarks=())
        log.close()
        other.close()

    def test_a_reader_does_not_wait_for_a_writer(self, engine: LogEngine) -> None:
        log, other = engine.open(), engine.open()
        log.append([decision(0)])
        with held(log):
            assert len(other.read()) == 1
            assert other.counts().decisions == 1
            assert len(other.watermarks()) == len(other.days()) == 1
        log.close()
        other.close()

    def test_retired_records_are_gone_and_still_known(self, engine: LogEngine) -> None:
        log = engine.open()
        records = [decision(seq) for seq in (0, 1, 2, 5, 6)]
        log.append(records)
        places = [one.position for one in log.read()]
        assert log.retire([*places[:2], places[3]]) == 3
        assert log.retire(places[:2]) == 0
        assert [one.record.seq for one in log.read()] == [2, 6]
        (mark,) = log.append([*records, decision(0, version="other")]).watermarks
        assert (mark.watermark, mark.highest, mark.missing) == (2, 6, 2)
        assert log.counts() == LogCounts(decisions=2, repeated=6, retired=3)
        assert log.retire([one.position for one in log.read()]) == 2
        (mark,) = log.append([decision(3), decision(4), decision(1)]).watermarks
        assert (mark.watermark, mark.missing) == (6, 0)
        assert [one.record.seq for one in log.read()] == [3, 4]
        last = log.read()[-1].position
        assert log.read()[0].position > max(places)
        assert log.retire([one.position for one in log.read()]) == 2
        log.append([decision(7)])
        assert [one.position > last for one in log.read()] == [True]
        log.close()
        log = engine.open()
        assert log.append(records).repeated == 5
        log.close()
        log.close()
