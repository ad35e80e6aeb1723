"""Strict JSON against `json.loads`: the same values for sound documents, and a placed fault for each hidden loss."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.strict_json import MAX_DIGITS, JsonFault, parse_json, strict_json

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
)


@given(DOCUMENTS, st.booleans())
def test_sound_documents_are_read_as_they_were_written(document: object, escaped: bool) -> None:
    text = json.dumps(document, ensure_ascii=escaped)
    assert parse_json(text) == (document, [])
    assert strict_json(text.encode()) == document


def slow_faults(document: object) -> int:
    """Faults, counted from the pairs of all objects by recursion."""
    count = 0

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal count
        count += len({key for key, _ in items}) < len(items)
        return dict(items)

    json.loads(json.dumps(document), object_pairs_hook=pairs)
    return count


@given(st.lists(st.dictionaries(TEXT, DOCUMENTS, min_size=1, max_size=3), max_size=4), st.data())
def test_a_repeated_key_is_found_at_any_depth(rows: list[dict[str, object]], data: st.DataObject) -> None:
    whole = json.dumps(rows)
    if rows:
        place = data.draw(st.integers(0, len(rows) - 1))
        key = data.draw(st.sampled_from(sorted(rows[place])))
        inside = json.dumps(rows[place])
        parts = [json.dumps(row) for row in rows]
        parts[place] = f"{inside[:-1]}, {json.dumps(key)}: 1}}"
        text = f"[{', '.join(parts)}]"
        _, faults = parse_json(text)
        assert [fault.path for fault in faults] == [(place,)]
        assert repr(key) in faults[0].message
    assert slow_faults(rows) == len(parse_json(whole)[1]) == 0


@pytest.mark.parametrize(
    ("text", "path", "message"),
    [
        ('{"a": 1, "a": 1}', (), "key 'a' occurs more than once"),
        ('{"m": [{"role": "x", "role": "y"}]}', ("m", 0), "key 'role' occurs"),
        (r'{"a": "x\ud800"}', ("a",), r"half of a surrogate pair (\ud800)"),
        (r'{"a": ["\udfff\ud800"]}', ("a", 0), "half of a surrogate pair"),
        (r'{"\udc00": 1}', (), "half of a surrogate pair"),
        ('{"a": ' + "9" * 5000 + "}", ("a",), "a whole number of 5000 digits"),
        ('{"a": -' + "9" * (MAX_DIGITS + 1) + "}", ("a",), f"a whole number of {MAX_DIGITS + 1} digits"),
        ('{"a": 1e400}', ("a",), "beyond the range of a float"),
        ('{"a": ' + "9" * 400 + ".0}", ("a",), "beyond the range of a float"),
    ],
)
def test_a_hidden_loss_is_a_fault_with_its_place(text: str, path: tuple[str | int, ...], message: str) -> None:
    _, faults = parse_json(text)
    assert [fault.path for fault in faults] == [path]
    assert message in faults[0].message
    with pytest.raises(ValueError, match=r"occurs|surrogate|digits|range"):
        strict_json(text)


def test_all_faults_are_found_in_their_order() -> None:
    _, faults = parse_json(r'[{"a": "\ud800"}, {"b": 1, "b": 2}, [1e999]]')
    assert [fault.path for fault in faults] == [(0, "a"), (1,), (2, 0)]
    assert str(JsonFault((1, "b"), "wrong")) == "1.b: wrong"


def test_what_is_only_unusual_is_read() -> None:
    assert parse_json(r'"\ud83d\ude00 \\ud800"') == ("\U0001f600 \\ud800", [])
    assert parse_json("9" * MAX_DIGITS) == (int("9" * MAX_DIGITS), [])
    assert parse_json("1e-400") == (0.0, [])
    value, faults = parse_json("NaN")
    assert isinstance(value, float)
    assert math.isnan(value)
    assert faults == []
    with pytest.raises(ValueError, match="nested too deep"):
        strict_json("[" * 200_000)
