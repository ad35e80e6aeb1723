"""docs/reference/algorithms/index.md, made from what the recipes and the functions that they name say about themselves.

`python tests/docs/algorithm_page.py` writes the page; a test fails while it says something else.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hone.objectives.presets import PRESETS, Preset
from hone.recipes.registry import families, load_recipe, recipe_families, recipe_names
from hone.train.job import Entry, defaults_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "algorithms" / "index.md"
LIBRARIES = {"trl": "TRL", "verl": "verl"}
HEAD = """# Algorithms

<!-- made by `python tests/docs/algorithm_page.py`: change docstrings and entries, not this page -->

Every recipe with its formula, its source, its defaults, what TRL (1.16.0) and verl (0.9.1) run under its name, and when
not to use it. The published value is the default. A library without a line runs the published loss, or does not have
it; differences in credit stand with the credit's function, after "Elsewhere". Differences that concern every loss: in
verl, means over a micro-batch depend on how the batch was cut unless global counts are given; TRL counts empty answers
in its denominators. Here weights are fixed over the whole optimizer step, and a test holds every loss to that.

```console
$ hone list recipes grpo
grpo group-relative policy optimisation: answers to one question judge each other
Shao et al., DeepSeekMath, 2024
Live(text task, engine) -> group_relative -> clipped + kl_penalty, token_mean
```

R: score of an answer; A: advantage; r: exp(log pi now - log pi then), with *then* as
[learner.ratio](../../howto/configure.md#ratioconfig) says; sg: data, without gradient. Keys of `algorithm` are
explained in [configure.md](../../howto/configure.md#every-key).
"""


def page() -> str:
    entries = {name: load_recipe(name) for name in recipe_names()}
    parts = ["\n".join([HEAD, table()]), *(section(name, entry) for name, entry in entries.items())]
    functions = {address(part): part for entry in entries.values() for part in parts_of(entry)}
    parts += ["## The functions", *(function_of(functions[name]) for name in sorted(functions))]
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def table() -> str:
    parts: list[str] = []
    for family, members in families().items():
        rows = [f"| [`{name}`](#{name}) | {entry.summary} | {entry.source} |" for name, entry in members.items()]
        parts.append("\n".join([f"### {family}", "", "| recipe | in a line | source |", "|---|---|---|", *rows]))
    return "\n\n".join(["## By family", *parts])


def section(name: str, entry: Entry) -> str:
    parts = entry.parts
    made = [
        ("source", parts.source),
        ("credit", ", ".join(link(part) for part in parts.credit)),
        ("loss", ", ".join(link(part) for part in parts.loss)),
        ("weights", ", ".join(link(part) for part in parts.weights)),
        ("defaults", ", ".join(f"`{key} = {value}`" for key, value in defaults_of(entry.config).items())),
        *((LIBRARIES[preset.library], elsewhere(preset)) for preset in presets_of(entry)),
        ("limitation", entry.limitation),
    ]
    rows = [f"| {what} | {said.replace('|', chr(92) + '|')} |" for what, said in made if said]
    module = inspect.getdoc(sys.modules[f"hone.recipes.{recipe_families()[name]}.{name}"]) or ""
    return "\n".join([f"## {name}", "", fenced(module), "", "| | |", "|---|---|", *rows])


def function_of(part: Callable[..., Any]) -> str:
    return "\n".join([f"### `{address(part)}`", "", fenced(f"{signature(part)}\n\n{inspect.getdoc(part)}")])


def fenced(text: str) -> str:
    return f"```text\n{text.strip()}\n```"


def parts_of(entry: Entry) -> Iterator[Callable[..., Any]]:
    yield from (*entry.parts.credit, *entry.parts.loss, *entry.parts.weights)


def presets_of(entry: Entry) -> Sequence[Preset]:
    return [preset for preset in PRESETS if preset.algorithm in entry.presets]


def elsewhere(preset: Preset) -> str:
    """The nearest of hone's functions with the library's values, and what differs."""
    values = "".join(f", {name} = {value:g}" for name, value in preset.values.items())
    weights = f" under `{preset.scheme.__name__}`" if preset.scheme is not None else ""
    return f"{preset.algorithm}: `{preset.function.__name__}{values}`{weights}. {preset.difference}."


def address(part: Callable[..., Any]) -> str:
    return f"{part.__module__.removeprefix('hone.')}.{part.__qualname__}"


def link(part: Callable[..., Any]) -> str:
    anchor = "".join(character for character in address(part).lower() if character.isalnum() or character in "_-")
    return f"[`{part.__name__}`](#{anchor})"


def signature(part: Callable[..., Any]) -> str:
    """The name with its arguments and their defaults, without types."""
    said: list[str] = []
    for name, argument in inspect.signature(part).parameters.items():
        if name == "self":
            continue
        if argument.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in said:
            said.append("*")
        value = argument.default
        if value is inspect.Parameter.empty:
            said.append(name)
        else:
            said.append(f"{name}={value.__name__ if callable(value) else repr(value)}")
    return f"{part.__name__}({', '.join(said)})"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
