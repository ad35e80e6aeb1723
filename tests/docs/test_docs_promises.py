"""Pages and help promise only what exists: make targets, commands, options, folders, extras."""

import ast
import importlib
import re
import tomllib
from pathlib import Path

import pytest
from syntax_nodes import nodes

from hone.cli.options import COMMANDS
from hone.config.resolve import all_keys
from hone.recipes.registry import load_recipe, recipe_names
from hone.run.alarms import RULES
from hone.run.report.timing_section import REMEDIES

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
OTHER_PROGRAMS = re.compile(r"^(python|pip|make|git|apt|\.venv/)")


def prose(path: Path) -> str:
    """A page without its generated comments."""
    return re.sub(r"<!--.*?-->", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def code_spans(path: Path) -> list[str]:
    """Code in the lines of a page, and the lines of its console blocks."""
    text = prose(path)
    blocks = re.findall(r"^```(?:console|bash)[^\n]*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    lines = [line.removeprefix("$ ").partition("  #")[0] for block in blocks for line in block.splitlines()]
    plain = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return [*re.findall(r"`([^`\n]+)`", plain), *(line for line in lines if line.startswith(("hone ", "make ")))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_and_options_of_a_page_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    specs = {command.name: {*command.switches(), *command.value_flags()} for command in COMMANDS}
    faults: list[str] = []
    for span in code_spans(path):
        words = span.split()
        if len(words) > 1 and words[0] == "make" and re.fullmatch(r"[a-z-]+", words[1]) and words[1] not in targets:
            faults.append(f"{span}: no such target of the Makefile")
        if len(words) < 2 or words[0] != "hone" or not re.fullmatch(r"[a-z]+", words[1]):
            continue
        if words[1] not in specs:
            faults.append(f"{span}: no such command")
            continue
        takes_keys = next(command.overrides for command in COMMANDS if command.name == words[1])
        for flag, key in re.findall(r"(?<!\S)(--[a-z-]+)([.=]?)", span):
            if flag not in specs[words[1]] and not (key and takes_keys):
                faults.append(f"{span}: hone {words[1]} has no {flag}")
    assert faults == []


def test_folders_of_the_table_where_things_go_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text[text.index("| a change of this kind") : text.index("`config`, `core`")]
    names = re.findall(r"`([a-z_]+(?:/[a-z_]+)*/)`", table)
    assert len(names) >= 15
    assert [name for name in names if not (ROOT / "src/hone" / name).is_dir()] == []


def test_extras_are_on_the_page_of_the_installation_and_are_used() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    page = (ROOT / "docs/start/install.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `([a-z-]+)`", page, re.MULTILINE)
    assert sorted(table) == sorted(extras)
    named = {extra for path in PAGES for extra in re.findall(r"-e \"?\.\[([a-z,-]+)\]", prose(path))}
    assert {one for names in named for one in names.split(",")} <= set(extras)


def test_the_readme_counts_the_recipes() -> None:
    known, counts = set(recipe_names()), {"text": 0, "control": 0}
    for path in (ROOT / "src" / "hone" / "recipes").glob("*/*.py"):
        family = path.parent.name
        if path.stem in known and family != "bandits":
            counts["text" if family in {"text", "preference", "reward_models", "search"} else "control"] += 1
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"language models ({counts['text']} recipes" in readme
    assert f"games and logs ({counts['control']}, among" in readme


def test_the_package_promises_nothing_that_is_planned() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promises = f"{settings['description']}\n{importlib.import_module('hone').__doc__}"
    assert not re.search(r"\bships?\b|\bkeeps? it good\b|\bserves?\b|\brolls? (out|back)\b", promises)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_help_of_a_command_names_options_and_commands_that_exist(command) -> None:
    texts = [command.summary, *(text for _, text in (*command.positionals, *command.optional, *command.variadic))]
    texts += [option.help for option in command.options]
    flags = {*command.switches(), *command.value_flags()}
    for text in texts:
        assert set(re.findall(r"(?<!\S)(--[a-z-]+)", text)) <= flags
        assert set(re.findall(r"\bhone ([a-z]+)", text)) <= {one.name for one in COMMANDS}
    assert importlib.import_module(command.module).run


# ------------------------------------------------------------------------------------------------- names in docstrings

SOURCE = ROOT / "src" / "hone"
FOREIGN = {"mpmath", "scipy", "jaxtyping", "ns", "file", "my_recipe", "episodes_00000000", "tests"}
"""First words of dotted names in docstrings that are none of hone's: of libraries, of examples, of data."""


def _names_and_docstrings(tree: ast.Module) -> tuple[set[str], list[str]]:
    """Definitions, attributes, arguments and short strings of a module; its docstrings."""
    names, docstrings = set[str](), list[str]()
    for node in nodes(tree):
        match node:
            case ast.Name():
                names.add(node.id)
            case ast.Attribute():
                names.add(node.attr)
            case ast.Constant(value=str(text)) if len(text) < 60 and "\n" not in text:
                names.update(re.findall(r"\w+", text))
            case ast.arg() | ast.keyword() if node.arg:
                names.add(node.arg)
            case ast.FunctionDef() | ast.ClassDef() | ast.AsyncFunctionDef():
                names.add(node.name)
            case ast.alias():
                names.update(node.name.split("."))
            case ast.Expr(value=ast.Constant(value=str(text))):
                docstrings.append(text)
    return names, docstrings


def names_that_are_gone(sources: dict[str, str]) -> list[str]:
    """Dotted names and files in docstrings, and classes in their examples, that the source does not have."""
    read = {module: _names_and_docstrings(ast.parse(text)) for module, text in sources.items()}
    known = {"hone", *(part for module in sources for part in module.split("."))}.union(
        *(names for names, _ in read.values())
    )
    gone: list[str] = []
    for module, text in ((module, text) for module, (_, texts) in read.items() for text in texts):
        dotted = re.findall(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)`", text)
        words = {name: name.removesuffix(".py").split(".") for name in dotted}
        gone += [
            f"{module}: {name}" for name, parts in words.items() if parts[0] not in FOREIGN and not known >= {*parts}
        ]
        gone += [f"{module}: {name}" for name in re.findall(r">>> .*?\b([A-Z]\w+)\(", text) if name not in known]
    return gone


def test_docstrings_name_nothing_that_is_gone() -> None:
    paths = sorted(SOURCE.rglob("*.py"))
    sources = {".".join(path.relative_to(SOURCE).with_suffix("").parts): path.read_text("utf-8") for path in paths}
    planted = '"""Reads what `run_curves.read_runs` left.\n\n>>> Faulty()\n"""'
    assert names_that_are_gone({**sources, "planted": planted}) == ["planted: run_curves.read_runs", "planted: Faulty"]


def test_settings_that_advice_names_exist() -> None:
    keys = {".".join(map(str, key)) for name in ("dapo", "ppo", "sac") for key in all_keys(load_recipe(name).config)}
    advice = [rule.advice for rule in RULES.values()]
    advice += [f"{key} {words}" for remedies in REMEDIES.values() for key, words in remedies]
    tables = r"(?<![\w.])(?:learner|rollout|algorithm|rewards|run|env|cluster)"
    named = {key for words in advice for key in re.findall(tables + r"(?:\.\w+)+", words)}
    assert len(named) > 15
    assert named - keys == set()
