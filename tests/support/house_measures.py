"""What a reader of hone has to hold in mind, as counts; `python house_measures.py FOLDER` prints them.

A count is a hint: look at the places (`places`) before acting on a figure.
"""

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from pathlib import Path

from syntax_nodes import nodes

SAYS_NOTHING = ("found", "told", "said", "given")
"""Names of local variables that say nothing about the value."""
SMALL_FILE, LONELY_FILE, SMALL_HELPER = 60, 70, 8
ALONE_FOR_A_REASON = ("recipes", "experiments", "commands")
"""Folders of one file for each recipe, experiment or command."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class ClassFacts:
    """A class: names of its annotated fields, and of all members that it defines itself."""

    name: str
    bases: tuple[str, ...]
    fields: frozenset[str]
    members: frozenset[str]
    is_protocol: bool


@dataclass(slots=True)
class FileFacts:
    """A file: facts, not its syntax tree, which would stay in memory."""

    name: str
    lines: int
    uses: Counter[str] = field(default_factory=Counter[str])
    """How often each name is read, written or reached as an attribute."""
    stores: Counter[str] = field(default_factory=Counter[str])
    helpers: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    """Functions at top level, with their lines."""
    public: int = 0
    imports: set[str] = field(default_factory=set[str])
    """Own modules that it imports from."""
    imported: set[str] = field(default_factory=set[str])
    """`module.name` of every own name that it imports."""
    classes: list[ClassFacts] = field(default_factory=list[ClassFacts])
    unknown: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Function, and name in backticks in its docstring that stands nowhere else in the file."""

    @property
    def is_package(self) -> bool:
        return self.name.endswith("__init__.py")


def file_facts(name: str, text: str, package: str) -> FileFacts:
    tree, words = ast.parse(text), Counter(re.findall(r"\w+", text))
    facts = FileFacts(name, text.count("\n"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            facts.helpers.append((node.name, (node.end_lineno or 0) - node.lineno + 1))
        if isinstance(node, Function | ast.ClassDef):
            facts.public += not node.name.startswith("_")
    for node in nodes(tree):
        match node:
            case ast.Name(id=word):
                facts.uses[word] += 1
                facts.stores[word] += isinstance(node.ctx, ast.Store)
            case ast.Attribute(attr=word):
                facts.uses[word] += 1
            case ast.ImportFrom(module=str(module)) if module.split(".")[0] == package:
                facts.imports.add(module)
                facts.imported.update(f"{module}.{alias.name}" for alias in node.names)
            case ast.ClassDef():
                facts.classes.append(class_facts(node))
            case ast.FunctionDef() if "`" in (docstring := ast.get_docstring(node, clean=False) or ""):
                inside = Counter(re.findall(r"\w+", docstring))
                named = re.findall(r"`([a-z_][a-z0-9_]*)`", docstring)
                facts.unknown += [(node.name, word) for word in named if words[word] == inside[word]]
    return facts


def class_facts(node: ast.ClassDef) -> ClassFacts:
    fields = {
        one.target.id
        for one in node.body
        if isinstance(one, ast.AnnAssign)
        and isinstance(one.target, ast.Name)
        and "ClassVar" not in ast.unparse(one.annotation)
    }
    bases = tuple(ast.unparse(base).split("[")[0] for base in node.bases)
    return ClassFacts(
        node.name,
        tuple(base.split(".")[-1] for base in bases),
        frozenset(fields),
        frozenset(_own_members(node)),
        "Protocol" in bases,  # asyncio's class of that name is another one
    )


def _own_members(node: ast.ClassDef) -> Iterator[str]:
    for one in node.body:
        match one:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))
    for one in nodes(node):
        match one:
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                yield name


@dataclass(frozen=True)
class House:
    """The files of a package."""

    files: Sequence[FileFacts]
    package: str

    @property
    def code(self) -> list[FileFacts]:
        return [one for one in self.files if not one.is_package]

    @cached_property
    def uses(self) -> Counter[str]:
        total = Counter[str]()
        for one in self.files:
            total.update(one.uses)
        return total

    def measures(self) -> dict[str, float]:
        """Every count under its name."""
        own = sorted(len(one.imports) for one in self.code)
        lines, public = sum(one.lines for one in self.files), sum(one.public for one in self.files)
        return {name: len(places) for name, places in self.places().items()} | {
            "public names per 1,000 lines": round(1000 * public / lines, 1),
            "own modules imported by a file, nine in ten": own[int(0.9 * len(own))],
            "own modules imported by a file, at most": own[-1],
        }

    def places(self) -> dict[str, list[str]]:
        """Where to look, for every count of places."""
        return {
            "files under 60 lines": [one.name for one in self.code if one.lines < SMALL_FILE],
            "files under 70 lines with one importer": list(self._lonely()),
            "functions used once, of at most 8 lines": list(self._used_once()),
            "protocols with at most one implementer": list(self._single()),
            "pairs of classes that share half of their fields": list(self._mirrored()),
            "names in docstrings that exist nowhere": list(self._stale()),
            "locals named found, told, said, given": [
                f"{one.name}: {word}" for one in self.files for word in SAYS_NOTHING for _ in range(one.stores[word])
            ],
        }

    def _lonely(self) -> Iterator[str]:
        modules = {f"{self.package}.{one.name[:-3].replace('/', '.')}".removesuffix(".__init__") for one in self.files}
        importers: defaultdict[str, set[str]] = defaultdict(set)
        for one in self.files:
            for name in one.imported:
                importers[name if name in modules else name.rpartition(".")[0]].add(one.name)
        for one in self.code:
            if one.lines < LONELY_FILE and not set(ALONE_FOR_A_REASON) & set(one.name.split("/")[:-1]):
                module = f"{self.package}.{one.name[:-3].replace('/', '.')}"
                if len(importers[module] - {one.name}) == 1:
                    yield one.name

    def _used_once(self) -> Iterator[str]:
        for one in self.files:
            for name, lines in one.helpers:
                if self.uses[name] == 1 and lines <= SMALL_HELPER:
                    yield f"{one.name}: {name}"

    def _single(self) -> Iterator[str]:
        classes = {one.name: one for file in self.files for one in file.classes}

        def members(one: ClassFacts) -> frozenset[str]:
            return one.members.union(*(members(classes[base]) for base in one.bases if base in classes))

        made = [members(one) for one in classes.values() if not one.is_protocol]
        for name, one in classes.items():
            asked = members(one)
            if one.is_protocol and asked != {"__call__"} and sum(asked <= other for other in made) <= 1:
                yield name

    def _mirrored(self) -> Iterator[str]:
        classes = [(file.name, one) for file in self.files for one in file.classes if len(one.fields) >= 4]
        for (file, one), (other_file, other) in combinations(classes, 2):
            shared = len(one.fields & other.fields)
            if shared >= 4 and 2 * shared >= len(one.fields | other.fields):
                yield f"{file}: {one.name}, {other_file}: {other.name}"

    def _stale(self) -> Iterator[str]:
        for one in self.files:
            yield from (f"{one.name}: {name}: {word}" for name, word in one.unknown if self.uses[word] == 0)


def read_house(folder: Path) -> House:
    paths = sorted(folder.rglob("*.py"))
    facts = [
        file_facts(path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8"), folder.name) for path in paths
    ]
    return House(facts, folder.name)


if __name__ == "__main__":
    house = read_house(Path(sys.argv[1]).resolve())
    for title, value in house.measures().items():
        print(f"{title}: {value}")
    for title, places in house.places().items() if "-v" in sys.argv else ():
        print(f"\n{title}", *places, sep="\n   ")
