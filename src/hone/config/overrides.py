"""Values given on the command line: `learner.lr=1e-4`, `--learner.lr=1e-4`, `--learner.lr 1e-4`.

Belongs here: separating overrides from options, parsing their values, and applying them to a file. The result records
the origin of each value.
"""

import copy
import re
import tomllib
from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, cast

from hone.config.toml import KeyPath, TomlFile
from hone.core.config import OLD_NAMES_UNTIL, current_key, current_tag
from hone.core.errors import ConfigError, ErrorCollector

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
    found: list[Override] = []
    faults = ErrorCollector(ConfigError)
    for text in texts:
        key, equals, value = text.removeprefix("--").partition("=")
        if not equals or not _KEY.fullmatch(key):
            faults.add(f"override {text[:80]!r} is not of the form key=value, such as learner.lr=1e-4")
            continue
        path = tuple(int(part) if part.isdecimal() else part for part in key.split("."))
        found.append((path, parse_value(value)))
    faults.raise_if_any()
    return found


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
    """Notes for the user: keys that were given under an old name."""

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

    def rename_keys(self, table: dict[str, object], place: KeyPath, known: Container[KeyPath], prefix: KeyPath) -> None:
        """Give the keys below `table`, which stands at `place`, their present names: those that make their path, as the
        config class sees it, one of the `known`. Each use of an old name is noted; the command line overrides a file.
        """
        for old in list(table):
            name, *inner = map(str, current_key((*prefix, old), known)[len(prefix) :])
            if inner:
                self._move_key(table, place, old, (name, *inner))
                continue
            new = name
            if new in table and old != new:
                if COMMAND_LINE not in (self.source_of((*place, old)), self.source_of((*place, new))):
                    continue  # validation refuses the two names of one key
                if self.source_of((*place, new)) == COMMAND_LINE:
                    del table[old]
                    continue
            if old != new:
                now = dotted((*place, new))
                self.notes.append(f"{dotted((*place, old))} is now {now}; the old name is read until {OLD_NAMES_UNTIL}")
                table[new] = table.pop(old)
                depth, at = len(place), (*place, old)
                self.sources = {
                    (*place, new, *path[depth + 1 :]) if path[: depth + 1] == at else path: source
                    for path, source in self.sources.items()
                }
            child = table[new]
            if new == "kind" and current_tag(child) != child and (*prefix, new) in known:
                table[new] = current_tag(child)
                key = dotted((*place, new))
                self.notes.append(
                    f'{key} = "{child}" is now "{table[new]}"; the old name is read until {OLD_NAMES_UNTIL}'
                )
            if isinstance(child, dict):
                self.rename_keys(cast("dict[str, object]", child), (*place, new), known, (*prefix, new))

    def _move_key(self, table: dict[str, object], place: KeyPath, old: str, new: KeyPath) -> None:
        """Move a key of a table into an inner one, as `rename_keys` renames it; a key that both give stays for the
        validation to refuse, unless one of them stands on the command line.
        """
        source, target = self.source_of((*place, old)), (*place, *new)
        given = table.get(str(new[0]), {})
        if not isinstance(given, dict) or (new[-1] in given and source != COMMAND_LINE):
            if target in self.sources and self.sources[target] == COMMAND_LINE:
                del table[old]
            return
        self.notes.append(
            f"{dotted((*place, old))} is now {dotted(target)}; the old name is read until {OLD_NAMES_UNTIL}"
        )
        self.set_value(target, table.pop(old), source=source)
        self.sources.pop((*place, old), None)

    def _no_place(self, path: KeyPath, depth: int, place: object) -> str:
        key, owner = dotted(path), dotted(path[:depth])
        source = self.source_of(path[:depth])
        if isinstance(place, list):
            return f"cannot set {key} on the command line: {owner} in {source} has {len(place)} entries, counted from 0"
        return f"cannot set {key} on the command line: {owner} in {source} is {place!r}, not a table"


def dotted(path: KeyPath) -> str:
    """Join a path as `stage.0.lr`, as in messages and on the command line."""
    return ".".join(str(part) for part in path)
