"""Parquet files of a log: exact, byte-equal for any order of arrival, and what retention and erasure make of them."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from log_records import all_of, bits, decision, key_of, outcome

from hone.core.decisions import ActionSet, Choice, DecisionRecord
from hone.core.errors import DataError, ResourceError
from hone.decide.joins.parquet import LargeJoin
from hone.decide.joins.view import JoinConfig
from hone.decide.log import retention as parquet
from hone.decide.log.opening import open_decision_log
from hone.decide.log.protocol import DecisionLog
from hone.decide.log.retention import (
    day_folder,
    erase_unit,
    export_log,
    import_exports,
    read_exports,
    read_records,
    retain,
    tenant_folder,
    write_records,
)

DAY = 86_400.0
ANY_FLOAT = st.floats(width=64) | st.sampled_from([-0.0, 5e-324])
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)


def some_records() -> list[DecisionRecord]:
    """Records of three days and two tenants."""
    records: list[DecisionRecord] = []
    for seq in range(30):
        tenant = "bank" if seq % 5 == 0 else "shop"
        actions = ActionSet(names=("a", "b", "c"), features=np.array([[seq % 2, np.nan]] * 3))
        records += [
            decision(seq, tenant=tenant, at_s=DAY * (seq % 3) + seq, actions=actions, unit=f"unit-{seq % 4}"),
            outcome(seq, tenant=tenant, at_s=DAY * (1 + seq % 3)),
        ]
    return records


def filled(path: Path, records: Sequence[DecisionRecord]) -> DecisionLog:
    log = open_decision_log(path)
    log.append(records)
    return log


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.parquet"))}


@examples(25)
@given(data=st.data())
def test_any_record_comes_back_to_the_bit(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    draw, records = data.draw, []
    for seq in range(draw(st.integers(1, 3))):
        count, width = draw(st.integers(1, 3)), draw(st.none() | st.integers(0, 2))
        floats = hnp.arrays(np.float64, (count, width or 0), elements=ANY_FLOAT)
        actions = ActionSet(
            names=tuple(f"{draw(TEXT)}{name}" for name in range(count)),
            features=None if width is None else draw(floats),
        )
        vector = hnp.arrays(np.float64, draw(st.integers(0, 4)), elements=ANY_FLOAT)
        scores = draw(st.none() | hnp.arrays(np.float64, count, elements=ANY_FLOAT))
        logp = draw(st.floats(-1e308, -0.0))
        records.append(
            decision(
                seq, id=draw(TEXT) + "i", unit=draw(TEXT), route=draw(TEXT), context=draw(vector), actions=actions,
                choice=Choice(action=count - 1, logp=logp, scores=scores, intervention=draw(TEXT)), executed=0,
                executed_logp=logp, at_s=draw(st.floats(0, 253402300799)), draw_key=draw(st.integers(0, 2**128 - 1)),
                entities=tuple(draw(st.lists(st.tuples(TEXT, TEXT), max_size=2))),
            )
        )  # fmt: skip
    path = tmp_path_factory.mktemp("records") / parquet.DECISIONS
    write_records(path, records)
    assert list(map(bits, read_records(path))) == list(map(bits, records))


def test_the_same_records_are_the_same_bytes_in_any_order_of_arrival(tmp_path: Path) -> None:
    records, random = some_records(), np.random.default_rng(0)
    written: list[dict[str, bytes]] = []
    for run in range(3):
        folder, log = tmp_path / f"{run}-files", open_decision_log(tmp_path / f"{run}.db")
        order = random.permutation(len(records))
        for part in np.array_split(order, 4):
            log.append([records[place] for place in part])
            if run == 1:
                export_log(log, folder)  # in four parts
            if run == 2:
                retain(log, folder, before_s=DAY * 2)
        report = export_log(log, folder)
        assert report.exported == (60 if run < 2 else log.counts().decisions + log.counts().outcomes)
        assert export_log(log, folder).files == ()
        written.append(files_of(folder))
        log.close()
    assert len(written[0]) == 2 * 2 * 4 - 4
    assert written[0] == written[1] == written[2]


def test_duckdb_reads_the_files(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="a check with a reader that is not pyarrow")
    with_log = filled(tmp_path / "d.db", some_records())
    export_log(with_log, tmp_path / "files")
    joined = duckdb.sql(
        f"select count(*), sum(o.value), sum(d.context[1]) from '{tmp_path}/files/*/*/decisions.parquet' d "
        f"join '{tmp_path}/files/*/*/outcomes.parquet' o on (d.tenant, d.id) = (o.tenant, o.decision_id)"
    ).fetchall()
    assert joined == [(30, pytest.approx(sum(seq / 7 for seq in range(30))), 435.0)]


def test_retention_moves_what_is_old_and_a_new_log_takes_it_back(tmp_path: Path) -> None:
    records, folder = some_records(), tmp_path / "files"
    log = filled(tmp_path / "d.db", records)
    report = retain(log, folder, before_s=DAY * 2 + 20.5)
    old = [one for one in records if one.at_s < DAY * 2 + 20.5]
    assert (report.exported, report.retired, log.counts().retired) == (len(old), len(old), len(old))
    assert sorted(map(key_of, read_exports(folder))) == sorted(map(key_of, old))
    assert sorted(map(key_of, read_exports(folder, tenant="bank"))) == sorted(
        key_of(one) for one in old if one.tenant == "bank"
    )
    assert sorted(map(key_of, all_of(log))) == sorted(key_of(one) for one in records if one not in old)
    assert log.append(records).repeated == len(records)
    assert retain(log, folder, before_s=DAY * 2 + 20.5).retired == 0
    retain(log, folder, before_s=1e9)
    assert all_of(log) == []
    again = open_decision_log(tmp_path / "again.db")
    assert import_exports(again, folder).stored == len(records)
    assert import_exports(again, folder).repeated == len(records)
    assert sorted(map(bits, all_of(again)), key=repr) == sorted(map(bits, records), key=repr)
    assert again.watermarks() == log.watermarks()


@pytest.mark.parametrize("place", ["decisions.exported", "replace.decisions.parquet", "replace.outcomes.parquet"])
def test_nothing_is_deleted_that_is_not_in_parquet(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records, folder = some_records(), tmp_path / "files"
    log = filled(tmp_path / "d.db", records)
    monkeypatch.setenv("HONE_FAILPOINT", f"{place}:raise")
    with pytest.raises(OSError if place.startswith(("decisions", "replace")) else ResourceError):
        retain(log, folder, before_s=1e9)
    monkeypatch.delenv("HONE_FAILPOINT")
    left = {key_of(one) for one in all_of(log)} | {key_of(one) for one in read_exports(folder)}
    assert left == {key_of(one) for one in records}
    retain(log, folder, before_s=1e9)
    assert sorted(map(bits, read_exports(folder)), key=repr) == sorted(map(bits, records), key=repr)
    assert list(folder.rglob("*.tmp")) == []


def test_a_file_that_reads_back_otherwise_stops_retention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = some_records()
    log = filled(tmp_path / "d.db", records)
    real = parquet.replace_file
    monkeypatch.setattr(parquet, "replace_file", lambda path, data: real(path, data[: len(data) // 2]))
    with pytest.raises(DataError, match=r"decisions\.parquet"):
        retain(log, tmp_path / "files", before_s=1e9)
    assert len(all_of(log)) == len(records)


def test_the_folder_of_another_log_is_refused(tmp_path: Path) -> None:
    export_log(filled(tmp_path / "a.db", [decision(0)]), tmp_path / "files")
    other = filled(tmp_path / "b.db", [decision(0, version="other")])
    with pytest.raises(DataError, match="source 'web' and seq 0 than the log"):
        retain(other, tmp_path / "files", before_s=1e9)
    assert len(all_of(other)) == 1


@pytest.mark.parametrize("stop", ["", "decisions.outcomes_erased", "decisions.log_erased", "decisions.before_erasure"])
def test_erased_bytes_are_in_no_file(stop: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "0xDEADBEEF-eve"
    number = np.frombuffer(b"\x11EVE\x22\x33\x44\x3f", np.float64)
    personal = {"unit": secret, "context": np.tile(number, 400), "actions": ActionSet(names=(f"mail {secret}",)),
                "choice": Choice(action=0, logp=0.0), "executed": 0}  # fmt: skip
    records = [decision(seq, id=f"{secret}/{seq}", at_s=DAY * seq, **personal) for seq in range(4)]
    records += [outcome(seq, of=f"{secret}/{seq}", at_s=DAY * (seq + 1)) for seq in range(4)]
    others = [decision(seq, at_s=DAY * (seq % 5), source="other") for seq in range(50)]
    folder, log = tmp_path / "files", filled(tmp_path / "d.db", [*records, *others])
    retain(log, folder, before_s=DAY * 2.5)
    assert traces(tmp_path, secret.encode(), number.tobytes()) != []
    if stop:
        monkeypatch.setenv("HONE_FAILPOINT", f"{stop}:raise")
        with pytest.raises(OSError):
            erase_unit(log, folder, "shop", secret)
        monkeypatch.delenv("HONE_FAILPOINT")
    erase_unit(log, folder, "shop", secret)
    assert traces(tmp_path, secret.encode(), number.tobytes()) == []
    ack = log.append([*records, decision(9, id=f"{secret}/9", **personal), outcome(9, of=f"{secret}/9")])
    assert (ack.stored, ack.erased, ack.repeated) == (0, 2, 8)
    retain(log, folder, before_s=1e12)
    assert traces(tmp_path, secret.encode(), number.tobytes()) == []
    assert sorted(map(key_of, read_exports(folder))) == sorted(map(key_of, others))


def traces(folder: Path, *needles: bytes) -> list[Path]:
    """Files with the bytes, as they are on disk or inside compressed pages of parquet."""
    found: list[Path] = []
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        data = path.read_bytes()
        if path.suffix == ".parquet":
            data += b"".join(bytes(repr(bits(one)), "utf-8") for one in read_records(path))
            data += b"".join(one.context.tobytes() for one in read_records(path) if hasattr(one, "context"))
        if any(needle in data for needle in needles):
            found.append(path)
    return found


@pytest.mark.parametrize("tenant", ["../up", "/etc", "..", ".", ".lock", "a/b", "é" * 200, "x~" * 100, "a\nb", "*"])
def test_a_tenants_name_leads_nowhere_else(tenant: str, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "files"
    log = filled(tmp_path / "deep" / "d.db", [decision(0, tenant=tenant), decision(1, tenant="plain")])
    retain(log, folder, before_s=1e9)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["deep"]
    assert sorted(one.name for one in (tmp_path / "deep").iterdir()) == ["d.db", "d.db-shm", "d.db-wal", "files"]
    assert len(tenant_folder(tenant).encode()) < 256
    assert day_folder(folder, tenant, 0).parent.parent == folder
    assert [one.tenant for one in read_exports(folder, tenant=tenant)] == [tenant]
    erase_unit(log, folder, tenant, "u0")
    assert [one.tenant for one in read_exports(folder)] == ["plain"]


def test_two_processes_do_not_write_one_folder(tmp_path: Path) -> None:
    from hone.decide.log import retention

    log = filled(tmp_path / "d.db", some_records())
    with retention._only_one(tmp_path / "files"), pytest.raises(ResourceError, match="another process"):
        retain(log, tmp_path / "files", before_s=1e9)


def test_a_damaged_or_foreign_file_is_named(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "shop" / "1970-01-01" / "decisions.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), path)
    with pytest.raises(DataError, match=r"different columns: .*a: int64"):
        list(read_exports(tmp_path))
    path.write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"cannot read .*decisions\.parquet"):
        list(read_exports(tmp_path))


def test_only_files_with_entities_have_their_column_and_both_kinds_stand_beside_each_other(tmp_path: Path) -> None:
    plain = [decision(seq, at_s=float(seq)) for seq in range(3)]
    named = [decision(seq, at_s=DAY + seq, entities=(("shop_id", f"s{seq}"),), unit="eve") for seq in range(3, 6)]
    with closing(filled(tmp_path / "log.db", [*plain, *named])) as log:
        export_log(log, tmp_path / "out")
        paths = [day_folder(tmp_path / "out", "shop", day) / parquet.DECISIONS for day in (0, 1)]
        assert ["entities" in pq.read_schema(path).names for path in paths] == [False, True]
        assert [bits(one) for one in read_exports(tmp_path / "out")] == [bits(one) for one in (*plain, *named)]
        together = LargeJoin(folder=tmp_path / "out", tenant="shop", as_of_s=9 * DAY, join=JoinConfig())  # by DuckDB
        assert together.write(tmp_path / "joined.parquet").decisions == 6
        assert erase_unit(log, tmp_path / "out", "shop", "eve").from_files == 3
        assert not paths[1].exists()
        assert b"shop_id" not in (tmp_path / "log.db").read_bytes()  # an entity is erased with its decision
