"""The page of presets, made from their values: `python tests/docs/presets_page.py`."""

from collections.abc import Mapping

from pages import made_by, table, write

from hone.config.resolve import format_value, leaves
from hone.config.toml import dotted
from hone.recipes.registry import load_recipe
from hone.text.presets import PRESETS, VERSIONS

TEXT = """# Presets of other libraries

{comment}

`preset = "trl"`, `"verl"` or `"areal"` gives a recipe on text the mathematics that the library runs under its name by
default: keys of `[algorithm]` and `[learner.ratio]`, and no others. Learning rates, batch sizes and lengths stay yours.

```text
recipe = "grpo"
preset = "verl"

[algorithm]
kl = 0.01 # a key that is given wins over the preset
```

`hone plan` prints the keys that the preset set, with `preset "verl"` as their origin. A preset is a default like any
other: a key in the file or on the command line wins, key by key. Where the library has nothing under the recipe's name,
the config is refused with the recipes that it has.

A preset does not make the numbers equal. Differences that no key expresses, such as denominators of micro-batches, are
listed recipe by recipe in [Algorithms: language models](../reference/algorithms/language_models.md).

{libraries}
"""
NOTES = {
    "trl": "Defaults of `GRPOConfig`, `GMPOConfig` and `RLOOConfig`, with generation by vLLM: there TRL recomputes the "
    "old log-probabilities and drops answers whose product of ratios is above 3. `dr_grpo` has `scale_rewards` none, "
    "as its documentation says, and `opsm` the bound that it suggests.",
    "verl": "Defaults of its actor and algorithm configs: dual clip at 3 wherever its plain clip runs, a token mean, "
    "no KL and no correction of the rollout. `gspo_token` is its GSPO, `dppo` its DPPO with total variation, "
    "`passk_best` its `grpo_passk`.",
    "areal": "Defaults of its actor, with the two normalisations of its examples: scores by group, then advantages "
    "over the tokens of the batch. `cispo` has the bounds that its documentation gives, 0 and 5. Its batch deviation "
    'is `algorithm.advantage.scale = "centred_batch"`.',
}


def pages() -> dict[str, str]:
    """The page, by its path."""
    libraries = "\n\n".join(_library(name) for name in PRESETS)
    return {"language/presets.md": TEXT.format(comment=made_by("presets_page.py"), libraries=libraries)}


def _library(name: str) -> str:
    rows = [(f"`{recipe}`", _settings(recipe, values)) for recipe, values in PRESETS[name].items()]
    return f"## {VERSIONS[name]}\n\n{NOTES[name]}\n\n{table(('recipe', 'keys that differ from the recipe'), rows)}"


def _settings(recipe: str, values: Mapping[str, object]) -> str:
    """The preset's keys whose values are not the recipe's defaults, all those that are set in one cell."""
    default = dict(leaves(_defaults(recipe)))
    changed = [(path, value) for path, value in leaves(values) if path not in default or default[path] != value]
    return ", ".join(f"`{dotted(path)} = {format_value(value)}`" for path, value in changed) or "none"


def _defaults(recipe: str) -> dict[str, object]:
    """The algorithm and learner.ratio that a config has without a preset."""
    fields = load_recipe(recipe).config.model_fields
    learner = fields["learner"].annotation
    ratio = learner.model_fields["ratio"].default  # type: ignore[union-attr]
    return {"algorithm": fields["algorithm"].default.model_dump(), "learner": {"ratio": ratio.model_dump()}}


if __name__ == "__main__":
    write(pages())
