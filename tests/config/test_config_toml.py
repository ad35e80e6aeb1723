"""Lines of keys: worked out by hand, and against the standard library's reader on generated files."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.config.toml import KeyPath, parse_toml, read_toml
from hone.core.errors import ConfigError

BY_HAND = """\
# a comment = 1
title = "x # y"   # 2

[learner]         # 4
lr = 1e-4         # 5
loss.low = 0.2    # 6
"odd key.x" = '''7
[not.a.table]
lr = 3'''
betas = [         # 10
  0.9,            # 11
  [1, "]"],       # 12
]
inline = { a = 1, b = { c = "}" } }  # 14

[[stage]]         # 16
lr = 1
[stage.inner]     # 18
x = 2
[[stage]]         # 20
lr = 3
[[stage.deep]]    # 22
y = 1
[[stage.deep]]    # 24
y = \"\"\"a\\"\"\"
b\"\"\"\"           # 26
z = 2             # 27
"""


def test_lines_by_hand() -> None:
    lines = parse_toml(BY_HAND, name="run.toml").lines
    expected: dict[KeyPath, int] = {
        ("title",): 2,
        ("learner",): 4,
        ("learner", "lr"): 5,
        ("learner", "loss"): 6,
        ("learner", "loss", "low"): 6,
        ("learner", "odd key.x"): 7,
        ("learner", "betas"): 10,
        ("learner", "betas", 0): 11,
        ("learner", "betas", 1): 12,
        ("learner", "betas", 1, 1): 12,
        ("learner", "inline", "b", "c"): 14,
        ("stage",): 16,
        ("stage", 0): 16,
        ("stage", 0, "lr"): 17,
        ("stage", 0, "inner", "x"): 19,
        ("stage", 1): 20,
        ("stage", 1, "lr"): 21,
        ("stage", 1, "deep", 0, "y"): 23,
        ("stage", 1, "deep", 1): 24,
        ("stage", 1, "deep", 1, "y"): 25,
        ("stage", 1, "deep", 1, "z"): 27,
    }
    assert {path: lines.get(path) for path in expected} == expected


def paths_of(value: object, path: KeyPath = ()) -> set[KeyPath]:
    children: list[tuple[str | int, object]] = []
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list):
        children = list(enumerate(value))
    found: set[KeyPath] = {path} if path else set()
    return found.union(*(paths_of(child, (*path, key)) for key, child in children))


def test_every_path_of_the_reader_has_a_line_and_no_other() -> None:
    file = parse_toml(BY_HAND, name="run.toml")
    assert set(file.lines) == paths_of(file.values)


# --- generated files: every value is unique text, so its line can be looked up in the text itself -------------------

KEYS = st.one_of(st.text("abcXYZ019_-", min_size=1, max_size=4), st.text(min_size=1, max_size=4))
TREES = st.recursive(
    st.none(),
    lambda child: st.one_of(st.lists(child, max_size=3), st.dictionaries(KEYS, child, max_size=3)),
    max_leaves=12,
)


class Writer:
    """Writes a tree as TOML in a style that the drawn choices pick; each leaf is the number of its appearance."""

    def __init__(self, choices: st.DataObject) -> None:
        self.choices = choices
        self.count = 0

    def pick(self, *options: str) -> str:
        return self.choices.draw(st.sampled_from(options))

    def key(self, name: str) -> str:
        if name.isascii() and all(char.isalnum() or char in "_-" for char in name):
            return self.pick(name, f'"{name}"', f"'{name}'")
        return '"' + "".join(f"\\U{ord(char):08X}" for char in name) + '"'

    def value(self, tree: object) -> str:
        if isinstance(tree, dict):
            pairs = [f"{self.key(name)} = {self.value(child)}" for name, child in tree.items()]
            return "{ " + ", ".join(pairs) + " }"
        if isinstance(tree, list):
            gap = self.pick("", "\n", " # ] } \" '\n")
            return "[" + gap + f",{gap}".join(self.value(child) for child in tree) + gap + "]"
        self.count += 1
        mark = f"@{self.count}@"
        return self.pick(f'"{mark}"', f"'{mark}'", f'"{mark} # ]"', f'"""{mark}\n a \\" ] }} """', f"'''{mark} '\n'''")

    def table(self, tree: dict[str, object], prefix: str) -> str:
        plain, tables = "", ""
        for name, child in tree.items():
            key = self.key(name)
            whole = f"{prefix}.{key}" if prefix else key
            if isinstance(child, dict) and self.pick("header", "inline") == "header":
                tables += f"[{whole}] # = ]\n{self.table(child, whole)}"
            elif isinstance(child, list) and child and all(isinstance(row, dict) for row in child):
                tables += "".join(f"[[ {whole} ]]\n{self.table(row, whole)}" for row in child)
            else:
                plain += f"{self.pick('', '  ', chr(10))}{key} = {self.value(child)}{self.pick('', ' # lr = 1')}\n"
        return plain + tables


def leaves_of(value: object, path: KeyPath = ()) -> list[tuple[KeyPath, str]]:
    if isinstance(value, dict):
        return [leaf for key, child in value.items() for leaf in leaves_of(child, (*path, key))]
    if isinstance(value, list):
        return [leaf for index, child in enumerate(value) for leaf in leaves_of(child, (*path, index))]
    return [(path, str(value))]


@given(tree=st.dictionaries(KEYS, TREES, max_size=4), choices=st.data(), crlf=st.booleans())
def test_lines_agree_with_the_reader(tree: dict[str, object], choices: st.DataObject, crlf: bool) -> None:
    text = Writer(choices).table(tree, "")
    file = parse_toml(text.replace("\n", "\r\n") if crlf else text, name="run.toml")
    assert file.values == tomllib.loads(text)
    assert set(file.lines) == paths_of(file.values)
    source = text.split("\n")
    for path, value in leaves_of(file.values):
        mark = value[: value.index("@", 1) + 1]
        assert mark in source[file.lines[path] - 1], path


# --- bad files ------------------------------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_toml(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a = 1\nb = \n", ["run.toml:2:5", "Invalid value", "`b =`"]),
        ("a = 1\na = 2\n", ["run.toml:2:6", "Cannot overwrite a value", "`a = 2`"]),
        ("a = [1,\n", ["run.toml:1:8", "the file ends here"]),
        ("learner:\n  lr: 1\n", ["run.toml:1:8", "looks like YAML", "key = value"]),
        ("a = !!python/object:os.system\n", ["run.toml:1:5", "Invalid value"]),
        ("x = " + "[" * 5000, ["run.toml", "too deeply"]),
    ],
)
def test_invalid_toml_names_the_place(tmp_path: Path, text: str, parts: list[str]) -> None:
    (tmp_path / "run.toml").write_text(text)
    answer = refusal(tmp_path / "run.toml")
    assert all(part in answer for part in parts), answer


def test_files_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "chain_sum.toml").write_text("")
    (tmp_path / "big.toml").write_text("#" * 1_000_001)
    (tmp_path / "latin.toml").write_bytes(b"a = 1\nb = '\xe9'\n")
    assert "did you mean chain_sum.toml?" in refusal(tmp_path / "chain_sums.toml")
    assert "is a directory" in refusal(tmp_path) and "chain_sum.toml" in refusal(tmp_path)
    assert "there is no folder" in refusal(tmp_path / "nowhere" / "run.toml")
    assert "1000001 bytes" in refusal(tmp_path / "big.toml")
    assert "latin.toml:2 is not UTF-8: byte 0xe9 at offset 11" in refusal(tmp_path / "latin.toml")
    assert "cannot read" in refusal(tmp_path / "nul\0.toml")
    assert "aliases can expand without bound" in refusal(tmp_path / "bomb.yaml")
    assert "run.toml" in refusal(tmp_path / "run.json")


def test_byte_order_mark_and_windows_lines(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_bytes(b"\xef\xbb\xbfa = 1\r\nb = '''x\r\ny'''\r\nc = 3\r\n")
    file = read_toml(tmp_path / "run.toml")
    assert file.values == {"a": 1, "b": "x\ny", "c": 3}
    assert file.lines == {("a",): 1, ("b",): 2, ("c",): 4}
