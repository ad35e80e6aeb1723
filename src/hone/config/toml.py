"""TOML files with the line of every key, which the standard library's parser does not report, and overrides of them.

Values on the command line (`learner.lr=1e-4`, `--learner.lr=1e-4`, `--learner.lr 1e-4`) are separated from options,
parsed, and applied to the file; the result records the origin of each value. The meaning of the keys is not here.
"""

import copy
import re
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from hone.core.errors import ConfigError, ErrorCollector, did_you_mean
from hone.core.strict_json import MAX_DIGITS
from hone.process.user_files import file_fault

KeyPath: TypeAlias = tuple[str | int, ...]
"""Path of a value: `("stage", 0, "lr")` is `lr` in the first `[[stage]]`."""

MAX_BYTES = 1_000_000

_SPACE = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ENDLESS_NUMBER = re.compile(rf"[\d_]{{{MAX_DIGITS + 1}}}")
_SCALAR = re.compile(r"[^,\]}#\n]+")
_LOOKS_LIKE_YAML = re.compile(r"^(?:---|%YAML|[\w.-]+:(?:\s|$))", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class TomlFile:
    """Values of a file, and the line (from 1) of each key's value."""

    name: str
    values: dict[str, object]
    lines: dict[KeyPath, int]


def read_toml(path: str | Path) -> TomlFile:
    """Read a config file; a byte order mark and Windows line ends are accepted.


    Raises ConfigError naming the file, line and column for a file that is missing, a directory, too large, not UTF-8,
    YAML, or not valid TOML.
    """
    path = Path(path)
    if path.suffix.lower() in (".yaml", ".yml"):
        raise ConfigError(
            f"{path} is YAML; hone reads TOML only, because YAML's aliases can expand without bound and its tags "
            f"can run code. Write it as {path.with_suffix('.toml').name}"
        )
    if path.suffix.lower() == ".json":
        raise ConfigError(f"{path} is JSON; hone reads TOML. Write it as {path.with_suffix('.toml').name}")
    text = _text(path)
    return parse_toml(text, name=path.name)


def parse_toml(text: str, *, name: str) -> TomlFile:
    """Parse TOML from a string; `name` is the file's name in messages. Raises ConfigError."""
    text = text.replace("\r\n", "\n")
    try:
        values = tomllib.loads(text)
        lines = _LineLocator(text=text).locate()
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_explain(text, name, str(error))) from None
    except ValueError:
        line = next((number for number, row in enumerate(text.split("\n"), 1) if _ENDLESS_NUMBER.search(row)), 0)
        raise ConfigError(f"{name}:{line}: a whole number of more than {MAX_DIGITS} digits cannot be read") from None
    except RecursionError:
        raise ConfigError(f"{name} nests arrays or tables too deeply to be read") from None
    return TomlFile(name=name, values=values, lines=lines)


def _text(path: Path) -> str:
    try:
        if path.is_dir():
            names = sorted(child.name for child in path.glob("*.toml"))
            there = f"; it contains {', '.join(names[:5])}" if names else ""
            raise ConfigError(f"{path} is a directory; name a config file{there}")
        if fault := file_fault(path):
            raise ConfigError(fault)
        if path.exists() and path.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{path} has {path.stat().st_size} bytes; a config file has at most {MAX_BYTES}")
        content = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"no file {path}{_neighbours(path)}") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        raise ConfigError(f"cannot read {str(path)!r}: {error}") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = content[error.start]
        raise ConfigError(f"{path}:{line} is not UTF-8: byte 0x{byte:02x} at offset {error.start}") from None


def _neighbours(path: Path) -> str:
    if not path.parent.is_dir():
        return f"; there is no folder {path.parent}"
    names = [child.name for child in path.parent.glob("*.toml")]
    return did_you_mean(path.name, names) if len(names) <= 20 else ""


def _explain(text: str, name: str, message: str) -> str:
    place = re.search(r"^(.*) \(at line (\d+), column (\d+)\)$", message, re.DOTALL)
    if place:
        reason, line, column = place.group(1), int(place.group(2)), int(place.group(3))
    else:
        reason = message.replace("(at end of document)", "(the file ends here)")
        line = max(1, text.rstrip("\n").count("\n") + 1)
        column = len(text.split("\n")[line - 1]) + 1
    source = text.split("\n")[line - 1].strip()
    yaml = "; this looks like YAML, and hone reads TOML (`key = value`)" if _LOOKS_LIKE_YAML.search(text) else ""
    return f"{name}:{line}:{column} is not valid TOML: {reason}, in `{source[:80]}`{yaml}"


@dataclass(slots=True, kw_only=True)
class _LineLocator:
    """Scanner of valid TOML that records the line of every key and array element."""

    text: str
    position: int = 0
    lines: dict[KeyPath, int] = field(default_factory=dict[KeyPath, int])
    _tables: dict[KeyPath, int] = field(default_factory=lambda: defaultdict[KeyPath, int](int))
    _line: int = 1
    _counted: int = 0

    def locate(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while first := self._peek():
            if self.text.startswith("[[", self.position):
                table = self._array_header()
            elif first == "[":
                self.position += 1
                table = self._enter(self._key())
                self._expect("]")
                self._note(table)
            else:
                self._pair(table)
        return self.lines

    def _array_header(self) -> KeyPath:
        self.position += 2
        *parents, last = self._key()
        owner = (*self._enter(tuple(parents)), last)
        table = (*owner, self._tables[owner])
        self._tables[owner] += 1
        self._expect("]")
        self._expect("]")
        self._note(table)
        return table

    def _enter(self, key: tuple[str, ...]) -> KeyPath:
        """Table of a header; below an array of tables it is the latest one."""
        path: KeyPath = ()
        for part in key:
            path = (*path, part)
            if path in self._tables:
                path = (*path, self._tables[path] - 1)
        return path

    def _pair(self, table: KeyPath) -> None:
        path = (*table, *self._key())
        self._expect("=")
        self._value(path)

    def _key(self) -> tuple[str, ...]:
        parts = [self._key_part()]
        while self._peek() == ".":
            self.position += 1
            parts.append(self._key_part())
        return tuple(parts)

    def _key_part(self) -> str:
        quoted = self._peek() in ("'", '"')
        begin = self.position
        if quoted:
            self._string()
            # The TOML parser decodes the escapes of a quoted key.
            return next(iter(tomllib.loads(f"{self.text[begin : self.position]} = 0")))
        match = _BARE_KEY.match(self.text, begin)
        assert match is not None, "the text was read as TOML before"
        self.position = match.end()
        return match.group()

    def _value(self, path: KeyPath) -> None:
        first = self._peek()
        self._note(path)
        if first == "[":
            self.position += 1
            index = 0
            while self._peek() != "]":
                self._value((*path, index))
                index += 1
                self._skip_comma()
            self.position += 1
        elif first == "{":
            self.position += 1
            while self._peek() != "}":
                self._pair(path)
                self._skip_comma()
            self.position += 1
        elif first in ("'", '"'):
            self._string()
        else:
            match = _SCALAR.match(self.text, self.position)
            assert match is not None, "the text was read as TOML before"
            self.position = match.end()

    def _string(self) -> None:
        quote = self.text[self.position]
        if self.text.startswith(quote * 3, self.position):
            end = self._closing(quote * 3, self.position + 3)
            # Up to two quotes directly before the closing three belong to the string.
            while self.text.startswith(quote, end):
                end += 1
            self.position = end
        else:
            self.position = self._closing(quote, self.position + 1)

    def _closing(self, quotes: str, begin: int) -> int:
        position = begin
        while not self.text.startswith(quotes, position):
            escaped = quotes[0] == '"' and self.text[position] == "\\"
            position += 2 if escaped else 1
        return position + len(quotes)

    def _skip_comma(self) -> None:
        if self._peek() == ",":
            self.position += 1

    def _expect(self, character: str) -> None:
        assert self._peek() == character, "the text was read as TOML before"
        self.position += 1

    def _peek(self) -> str:
        """Next character that is neither white space nor comment; empty at the end."""
        match = _SPACE.match(self.text, self.position)
        assert match is not None, "the pattern matches nothing, too"
        self.position = match.end()
        return self.text[self.position : self.position + 1]

    def _note(self, path: KeyPath) -> None:
        self._line += self.text.count("\n", self._counted, self.position)
        self._counted = self.position
        for length in range(1, len(path) + 1):
            self.lines.setdefault(path[:length], self._line)


# ------------------------------------------------------------------------------------------------------------ overrides


COMMAND_LINE = "command line"
Override: TypeAlias = tuple[KeyPath, object]

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]+)*=")
_KEY = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")


def split_overrides(
    arguments: Sequence[str], *, switches: frozenset[str], options: frozenset[str]
) -> tuple[list[str], list[str]]:
    """Split a command line into the command's own arguments and `key=value` overrides.


    `switches` are the command's flags without a value, `options` those with one. Raises ConfigError for an
    override without a value.
    """
    own: list[str] = []
    overrides: list[str] = []
    waiting = list(arguments)
    while waiting:
        word = waiting.pop(0)
        name, equals, value = word.partition("=")
        if word == "--" or name in switches or not word.startswith("--"):
            (overrides if _ASSIGNMENT.match(word) else own).append(word)
        elif name in options:
            own += [word] if equals or not waiting else [word, waiting.pop(0)]
        elif equals:
            overrides.append(f"{name[2:]}={value}")
        elif waiting and not waiting[0].startswith("--"):
            overrides.append(f"{name[2:]}={waiting.pop(0)}")
        else:
            raise ConfigError(
                f"{word} is not an option of this command ({', '.join(sorted(switches | options))}); "
                f"if it is a key of the config, give it a value: {name[2:]}=VALUE"
            )
    return own, overrides


def parse_overrides(texts: Sequence[str]) -> list[Override]:
    """Parse `a.b=value` texts. A value is TOML; a bare word is a string. Raises ConfigError naming every bad one."""
    overrides: list[Override] = []
    faults = ErrorCollector(ConfigError)
    for text in texts:
        key, equals, value = text.removeprefix("--").partition("=")
        if not equals or not _KEY.fullmatch(key):
            faults.add(f"override {text[:80]!r} is not of the form key=value, such as learner.lr=1e-4")
            continue
        path = tuple(int(part) if part.isdecimal() else part for part in key.split("."))
        overrides.append((path, parse_value(value)))
    faults.raise_if_any()
    return overrides


def parse_value(text: str) -> object:
    """Parse a TOML value; other text is a string: `1e-4`, `true`, `[1, 2]`, `"a b"`, `fast`."""
    try:
        read = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # no TOML, or a number of thousands of digits
        return text
    value = read["value"]
    # Text with a line break could contain several keys, and configs have no dates.
    known = isinstance(value, bool | int | float | str | list | dict)
    return value if len(read) == 1 and known else text


@dataclass(slots=True, kw_only=True)
class ConfigDocument:
    """Values of file and command line together, not validated yet."""

    name: str
    values: dict[str, object]
    sources: dict[KeyPath, str] = field(default_factory=dict[KeyPath, str])
    notes: list[str] = field(default_factory=list[str])
    """Notes for the user: defaults that a resume keeps from the saved run."""

    @classmethod
    def from_file(cls, file: TomlFile, overrides: Sequence[Override] = ()) -> "ConfigDocument":
        """Read a file and apply the overrides. Raises ConfigError for overrides that do not fit."""
        sources = {path: f"{file.name}:{line}" for path, line in file.lines.items()}
        document = cls(name=file.name, values=copy.deepcopy(file.values), sources=sources)
        faults = ErrorCollector(ConfigError)
        for path, value in overrides:
            faults.extend(document.set_value(path, value, source=COMMAND_LINE))
        faults.raise_if_any()
        return document

    def source_of(self, path: KeyPath) -> str:
        """`run.toml:7` or `command line`: of the key itself or, when it is missing, of the nearest table
        around it. A table that only the command line speaks of is the command line's."""
        if path in self.sources:
            return self.sources[path]
        inside = {source for known, source in self.sources.items() if path and known[: len(path)] == path}
        if inside == {COMMAND_LINE}:
            return COMMAND_LINE
        for length in range(len(path) - 1, 0, -1):
            if path[:length] in self.sources:
                return self.sources[path[:length]]
        return self.name

    def set_value(self, path: KeyPath, value: object, *, source: str) -> list[str]:
        """Set one value and its origin; returns errors of the path."""
        place: object = self.values
        for depth, part in enumerate(path):  # a number is an index of a list, or a key of a table
            last = depth == len(path) - 1
            match place:
                case dict():
                    key = str(part)
                    if last:
                        place[key] = value
                    place = place.setdefault(key, {})
                case list() if isinstance(part, int) and part < len(place):
                    if last:
                        place[part] = value
                    place = place[part]
                case _:
                    return [self._no_place(path, depth, place)]
        self.sources = {known: source for known, source in self.sources.items() if known[: len(path)] != path}
        self.sources[path] = source
        return []

    def _no_place(self, path: KeyPath, depth: int, place: object) -> str:
        key, owner = dotted(path), dotted(path[:depth])
        source = self.source_of(path[:depth])
        if isinstance(place, list):
            return f"cannot set {key} on the command line: {owner} in {source} has {len(place)} entries, counted from 0"
        return f"cannot set {key} on the command line: {owner} in {source} is {place!r}, not a table"


def dotted(path: KeyPath) -> str:
    """Join a path as `stage.0.lr`, as in messages and on the command line."""
    return ".".join(str(part) for part in path)
