"""A state tree survives the disk: bits, dtypes, shapes, order of keys; and what cannot be stored is named."""

import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hone.core.errors import DataError
from hone.run.store.codec import read_state, write_state

DTYPES = ["?", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ["$array", "$float", "$$", "a/b", "~1", "~", "/", "__metadata__", ""]
)
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(np.dtype(dtype), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
)
FLOATS = st.floats(allow_nan=True, allow_infinity=True)
SCALARS = st.none() | st.booleans() | st.integers(-(2**130), 2**130) | FLOATS | st.text(max_size=8)
LISTS = st.lists(st.integers()) | st.lists(FLOATS) | st.lists(st.text(max_size=4))
TREES = st.recursive(
    st.dictionaries(KEYS, ARRAYS | SCALARS | LISTS, max_size=4),
    lambda children: st.dictionaries(KEYS, children | ARRAYS | SCALARS, max_size=3),
    max_leaves=12,
)


def assert_same(left, right):
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, np.ndarray):
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        assert left.tobytes() == right.tobytes()
    elif isinstance(left, list):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(left, float):
        assert (math.isnan(left) and math.isnan(right)) or (left == right and repr(left) == repr(right))
    else:
        assert left == right


@examples(150)
@given(TREES)
def test_round_trip(tree):
    with TemporaryDirectory() as folder:
        write_state(Path(folder), tree)
        assert_same(tree, read_state(Path(folder)))


def test_keys_that_look_alike_do_not_collide(tmp_path):
    tree = {"a/b": np.array([1]), "a": {"b": np.array([2])}, "$array": "x", "n": {"$array": "/a/b"}}
    write_state(tmp_path, tree)
    assert_same(tree, read_state(tmp_path))


def test_strided_and_foreign_endian_arrays_keep_their_values(tmp_path):
    grid = np.arange(12.0).reshape(3, 4)
    write_state(tmp_path, {"t": grid.T, "every_other": grid[:, ::2], "big": grid.astype(">f8")})
    loaded = read_state(tmp_path)
    np.testing.assert_array_equal(loaded["t"], grid.T)
    np.testing.assert_array_equal(loaded["every_other"], grid[:, ::2])
    np.testing.assert_array_equal(loaded["big"], grid)


def test_loaded_arrays_can_be_written_to(tmp_path):
    write_state(tmp_path, {"m": np.zeros(3)})
    loaded = read_state(tmp_path)["m"]
    assert isinstance(loaded, np.ndarray)
    loaded += 1


def test_every_leaf_that_cannot_be_stored_is_named(tmp_path):
    tree = {"a": {"text": np.array(["x"])}, "b": object(), "c": (1, 2), "d": [[1]], "e": np.complex128(1)}
    with pytest.raises(TypeError) as caught:
        write_state(tmp_path, tree)
    for place in ("/a/text", "/b", "/c", "/d", "/e"):
        assert place in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_json_on_disk_is_strict(tmp_path):
    write_state(tmp_path, {"best": -math.inf})
    text = (tmp_path / "state.json").read_text()
    assert "Infinity" not in text
    assert json.loads(text)["tree"] == {"best": {"$float": "-inf"}}


@pytest.mark.parametrize("damage", ["cut arrays", "no arrays", "cut tree", "newer", "lacks array"])
def test_damage_is_a_data_error_naming_the_file(tmp_path, damage):
    write_state(tmp_path, {"m": np.zeros(100), "n": 1})
    arrays, tree = tmp_path / "state.safetensors", tmp_path / "state.json"
    match damage:
        case "cut arrays":
            arrays.write_bytes(arrays.read_bytes()[:50])
        case "no arrays":
            arrays.unlink()
        case "cut tree":
            tree.write_bytes(tree.read_bytes()[:20])
        case "newer":
            tree.write_text('{"format": 99, "tree": {}}')
        case "lacks array":
            tree.write_text('{"format": 1, "tree": {"x": {"$array": "/x"}}}')
    with pytest.raises(DataError, match="state"):
        read_state(tmp_path)
