"""The judgement of a log: each fault is named, with the record and the number."""

import pytest

from hone.core.decisions import ActionSet, DecisionRecord, schema_hash
from hone.decide.joins.audit import LogAudit, audit_log
from hone.decide.joins.columns import record_columns
from hone.decide.log.protocol import SourceWatermark
from support.decision_records import ARMS, decision, outcome

OLD, NEW = ("age", "price"), ("price", "country")


def audit(log: list[DecisionRecord], **kwargs: object) -> LogAudit:
    return audit_log(record_columns(log), tenant="shop", **kwargs)  # pyright: ignore[reportArgumentType]


def test_a_sound_log_is_told_so() -> None:
    result = audit([decision("d0", 0.0, seq=0), decision("d1", 1.0, seq=1), outcome("d0", 5.0, seq=0)])
    assert (result.verdict, result.words) == ("ok", "sound: 2 decisions and 1 outcomes")


@pytest.mark.parametrize(
    ("log", "kind", "verdict", "words"),
    [
        ([decision("d0", 0.0, seq=0, p=1.7)], "probability", "refuse",
         "1 decisions have a probability of 0, above 1 or unknown; the first is 'd0', p = 1.7"),
        ([decision("d0", 0.0, seq=0, p=5e-324), decision("d1", 0.0, seq=0)], "identity", "refuse", "(gateway, 0)"),
        ([decision("d0", 0.0, seq=0, executed=3)], "action", "refuse", "the first is 'd0': action 3 of 3"),
        ([decision("d0", 0.0, seq=0, actions=ActionSet(names=()))], "action", "refuse", "action 0 of 0"),
        ([outcome("d0", 1.0, float("inf"), seq=0), decision("d0", 0.0, seq=0)], "value", "weak", "count as missing"),
        ([decision("d0", 0.0, seq=0), decision("d1", 1.0, seq=3)], "gap", "weak",
         "source 'gateway': 2 of 4 records are missing, the first is number 1"),
        ([decision("d0", 0.0, seq=0), decision("d0", 1.0, seq=1)], "repeated_id", "weak", "the first is 'd0'"),
        ([outcome("d7", 0.0, seq=0)], "orphan", "weak", "1 of 1 outcomes belong to no decision of the log; the first"),
        ([decision("d0", 9000.0, seq=0), decision("d1", 5400.0, seq=1)], "clock", "weak",
         "source 'gateway': its clock went back 1 times, by up to 3600 s"),
        ([decision("d0", 9000.0, seq=0), outcome("d0", 5400.0, seq=0)], "clock", "weak",
         "1 outcomes happened before their decision, by up to 3600 s"),
        ([decision("d0", 0.0, seq=0), decision("d1", 1.0, seq=1, context=(1.0,))], "schema", "refuse",
         "changes at decision 'd1' (1 s): 2 features before, 1 after"),
        ([decision("d0", 0.0, seq=0, schema="aa"), decision("d1", 1.0, seq=1, schema="bb", context=(1.0, 50.0))],
         "schema", "refuse", "aa before, bb after; of the numbers, feature 1 moved most, from a mean of 0 to 50"),
    ],
)  # fmt: skip
def test_each_fault_is_named(log: list[DecisionRecord], kind: str, verdict: str, words: str) -> None:
    result = audit(log)
    (fault,) = [one for one in result.faults if one.kind == kind]
    assert words in fault.words
    assert (fault.verdict, result.verdict) == (verdict, verdict)


def test_a_change_of_schema_names_the_columns_where_their_names_are_known() -> None:
    log = [
        decision("d0", 0.0, seq=0, schema=schema_hash(OLD)),
        decision("d1", 1.0, seq=1, schema=schema_hash(NEW)),
    ]
    (fault,) = audit(log, schemas=[OLD, NEW]).faults
    assert "age is gone, country is new" in fault.words
    moved = [decision(f"d{row}", row, seq=row, schema=schema_hash(names)) for row, names in ((0, OLD), (1, OLD[::-1]))]
    (fault,) = audit(moved, schemas=[OLD, OLD[::-1]]).faults
    assert "price is where age was, age is where price was" in fault.words


def test_erased_records_are_no_gaps_where_the_log_has_watermarks() -> None:
    log = [decision("d0", 0.0, seq=0), decision("d3", 1.0, seq=3, actions=ARMS)]
    whole = SourceWatermark(tenant="shop", source="gateway", watermark=3, highest=3, missing=0)
    assert audit(log, progress=[whole]).verdict == "ok"
    lost = SourceWatermark(tenant="shop", source="gateway", watermark=0, highest=3, missing=2)
    (fault,) = audit(log, progress=[lost]).faults
    assert "2 of 4 records are missing, the first is number 1" in fault.words


def test_tenants_are_judged_apart() -> None:
    log = [decision("d0", 0.0, seq=0), decision("d0", 0.0, seq=0, tenant="other", p=1.5)]
    assert audit(log).verdict == "ok"
    assert audit_log(record_columns(log), tenant="other").verdict == "refuse"
