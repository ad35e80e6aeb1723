"""Records: frozen dataclasses as JSON and back, with null for what JSON has no number for."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.errors import DataError
from hone.run.store.durable import to_json
from hone.run.store.records import Number, parse_record, read_record, record_json


@dataclass(frozen=True, slots=True, kw_only=True)
class InnerRow:
    names: tuple[str, ...]
    mean: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterRow:
    rows: tuple[InnerRow, ...]
    by_name: Mapping[str, float]
    best: float | None = None


NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
INNER = st.builds(InnerRow, names=st.lists(st.text(max_size=4), max_size=3).map(tuple), mean=NUMBERS)
OUTER = st.builds(
    OuterRow,
    rows=st.lists(INNER, max_size=3).map(tuple),
    by_name=st.dictionaries(st.text(max_size=3), NUMBERS, max_size=3),
    best=st.none() | NUMBERS,
)


@given(OUTER)
def test_what_is_written_is_read_to_the_bit(record: OuterRow) -> None:
    assert parse_record(OuterRow, record_json(record), Path("x.json")) == record


def test_what_json_has_no_number_for_is_null(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    assert read_record(list[InnerRow], path) is None
    path.write_bytes(to_json([record_json(InnerRow(names=("a",), mean=value)) for value in (math.nan, -math.inf, 1)]))
    assert path.read_text().count("null") == 2
    told = read_record(list[InnerRow], path)
    assert told is not None and [math.isnan(row.mean) for row in told] == [True, True, False]
    assert record_json(OuterRow(rows=(), by_name={"a": math.inf}))["by_name"] == {"a": None}


def test_every_fault_is_named_with_its_place_and_extra_keys_are_not() -> None:
    with pytest.raises(DataError) as told:
        parse_record(list[InnerRow], [{"names": ["a"], "mean": "1", "more": 2}, {"names": [3], "mean": 1}], Path("x"))
    assert [message.split(": ")[:2] for message in told.value.messages] == [["x", "0.mean"], ["x", "1.names.0"]]
