"""The pages of docs/reference/algorithms/, made from the docstrings of recipes and of the functions that they name.

`python tests/docs/algorithm_page.py` writes them: a page for each family of recipes, one for functions that compute
advantages, and one for losses.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from loss_presets import PRESETS, LossPreset
from pages import anchor, fenced, made_by, slug, table, write

from hone.recipes.registry import recipe_families, recipes_by_family
from hone.run.job import RecipeSpec, algorithm_defaults

FOLDER = "reference/algorithms"
CREDIT, LOSSES = "credit_functions", "loss_functions"
LIBRARIES = {"trl": "TRL", "verl": "verl"}
MADE_BY = made_by("algorithm_page.py")
INDEX = f"""# Algorithms

{MADE_BY}

One page per family of recipes. Each recipe has its formula, its source, its defaults, the loss that TRL (1.16.0) and
verl (0.9.1) run under the same name, and its limitation. The functions that recipes are made of stand on pages of
their own: [advantages and value targets]({CREDIT}.md), [losses and weights]({LOSSES}.md).

Defaults are the published values. A library without a line runs the published loss, or does not have it. Differences
in advantages stand with the function that computes them, after "Elsewhere". Two differences concern every loss: in
verl, means over a micro-batch depend on how the batch was cut unless global counts are given; TRL counts empty
answers in its denominators. hone fixes the weights over the whole optimizer step, and a test holds every loss to
that.

```console
$ hone list recipes grpo
grpo ...
Live(text task, engine) -> group_relative -> clipped_surrogate + kl_penalty + entropy_bonus, token_mean
```

Symbols: R is the score of an answer, A the advantage, r the probability ratio exp(log pi_new - log pi_old), and sg(x)
the value of x without its gradient. The key `learner.ratio` chooses pi_old: the behaviour policy as recorded, or the
policy at the start of the update, recomputed.
"""
FUNCTIONS = {
    CREDIT: ("Functions: advantages and value targets", "Functions of `hone.credit` that the recipes use."),
    LOSSES: ("Functions: losses and weights", "Losses, weights and closed-form updates that the recipes use."),
}


def pages() -> dict[str, str]:
    members = recipes_by_family()
    entries = {name: entry for family in members.values() for name, entry in family.items()}
    functions = {address(part): part for entry in entries.values() for part in parts_of(entry)}
    written = {f"{FOLDER}/index.md": index(members)}
    for family, own in members.items():
        title = f"# Algorithms: {family}"
        written[f"{FOLDER}/{slug(family)}.md"] = joined(title, MADE_BY, *(section(name, own[name]) for name in own))
    for home, (title, text) in FUNCTIONS.items():
        own_functions = [function_of(functions[name]) for name in sorted(functions) if home_of(functions[name]) == home]
        written[f"{FOLDER}/{home}.md"] = joined(f"# {title}", MADE_BY, text, *own_functions)
    return written


def joined(*parts: str) -> str:
    return "\n\n".join(part.rstrip("\n") for part in parts) + "\n"


def index(members: Mapping[str, Mapping[str, RecipeSpec]]) -> str:
    parts = [INDEX]
    for family, entries in members.items():
        rows = [
            (f"[`{name}`]({slug(family)}.md#{anchor(name)})", one.summary, one.paper) for name, one in entries.items()
        ]
        parts += [f"## {family}", table(("recipe", "in a line", "source"), rows)]
    return joined(*parts)


def section(name: str, entry: RecipeSpec) -> str:
    parts = entry.parts
    made = [
        ("source", parts.source),
        ("credit", ", ".join(link(part) for part in parts.credit)),
        ("loss", ", ".join(link(part) for part in parts.loss)),
        ("weights", ", ".join(link(part) for part in parts.weights)),
        ("defaults", ", ".join(f"`{key} = {value}`" for key, value in algorithm_defaults(entry.config).items())),
        *((LIBRARIES[preset.library], elsewhere(preset)) for preset in presets_of(entry)),
        ("limitation", entry.limitation),
    ]
    module = inspect.getdoc(sys.modules[f"hone.recipes.{recipe_families()[name]}.{name}"]) or ""
    return joined(f"## {name}", fenced(module), table(("", ""), [(what, text) for what, text in made if text])).rstrip()


def function_of(part: Callable[..., Any]) -> str:
    return joined(f"## `{address(part)}`", fenced(f"{signature(part)}\n\n{inspect.getdoc(part)}")).rstrip()


def parts_of(entry: RecipeSpec) -> Iterator[Callable[..., Any]]:
    yield from (*entry.parts.credit, *entry.parts.loss, *entry.parts.weights)


def presets_of(entry: RecipeSpec) -> Sequence[LossPreset]:
    return [preset for preset in PRESETS if preset.algorithm in entry.presets]


def elsewhere(preset: LossPreset) -> str:
    """The nearest of hone's functions with the library's values, and what differs."""
    values = "".join(f", {name} = {value:g}" for name, value in preset.values.items())
    weights = f" under `{preset.scheme.__name__}`" if preset.scheme is not None else ""
    return f"{preset.algorithm}: `{preset.function.__name__}{values}`{weights}. {preset.difference}."


def address(part: Callable[..., Any]) -> str:
    return f"{part.__module__.removeprefix('hone.')}.{part.__qualname__}"


def home_of(part: Callable[..., Any]) -> str:
    return CREDIT if address(part).startswith("credit.") else LOSSES


def link(part: Callable[..., Any]) -> str:
    return f"[`{part.__name__}`]({home_of(part)}.md#{anchor(address(part))})"


def signature(part: Callable[..., Any]) -> str:
    """The name with its arguments and their defaults, without types."""
    words: list[str] = []
    for name, argument in inspect.signature(part).parameters.items():
        if name == "self":
            continue
        if argument.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        value = argument.default
        if value is inspect.Parameter.empty:
            words.append(name)
        else:
            words.append(f"{name}={value.__name__ if callable(value) else repr(value)}")
    return f"{part.__name__}({', '.join(words)})"


if __name__ == "__main__":
    write(pages())
