"""The memory of a run from its config alone, for `hone plan --memory`: no recipe is imported, no data is opened.

`hone/planner/recipes.json` holds what is needed of each recipe; `tests/docs/write_pages.py` writes it from the code.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, Final, cast

from hone.cli.calibration import processor_traits
from hone.config.toml import ConfigDocument
from hone.core.config import STAGE_PREFIX
from hone.core.errors import ConfigError, DataError, ErrorCollector, did_you_mean
from hone.planner.known_models import known_model
from hone.planner.planned_decoder import PLANNED_FAMILIES, QK_NORM_FAMILIES, PlannedDecoder, shape_from_hf, text_config
from hone.planner.planned_ranks import rank_faults
from hone.planner.run_memory import network_parts
from hone.planner.run_settings import (
    PLANNED_RECIPES,
    TYPES,
    PlannedRecipe,
    PlannedSettings,
    TextLengths,
    describe_run,
    setting_leaves,
    step_rows,
)
from hone.run.memory_plan import MemoryPlan

MIN_LR_WITHOUT_MASTER_WEIGHTS: Final = 1e-4
"""Smallest learning rate with weights in bfloat16 (`hone.learner.config`)."""
_ASSUMED_PROMPT_TOKENS: Final = 512
"""Tokens of the longest prompt where nobody says."""
_CHECKED_TABLES: Final = ("algorithm", "batch", "learner", "model", "rollout", "run", "samples")
_TABLES: Final = ("algorithm", "learner", "model", "model.lora", "model.new", "rollout", "run", "samples")
_SPECIAL_TOKENS: Final = {"characters": 3, "bytes": 2}
_BYTES: Final = 256
_DEFAULT_CONTEXT: Final = 2048
_STEP: Final = re.compile(r"step_\d+")


def closed_plan(document: ConfigDocument, longest: int | None, *, model: str = "") -> MemoryPlan:
    """The plan of a document of one run. `longest`: tokens of the longest text; None: assumed. `model`: a folder or a
    published model's name, in place of the document's.

    Raises ConfigError with all faults at once, and DataError for a model that is not there.
    """
    recipe = _recipe(document)
    if model:
        if isinstance(table := document.values.get("model"), dict):  # it takes the place of a new network
            cast("dict[str, object]", table).pop("new", None)
        document.set_value(("model", "path"), model, source="--model")
    values = _with_defaults(document, recipe)
    settings = PlannedSettings(values, lambda key: document.source_of(tuple(key.split("."))))
    shape, context, notes, adapts_adapter = _model(values, settings)
    settings.faults.raise_if_any()
    lengths = _lengths(recipe, settings, context, longest)
    _check_weights(settings)
    processor = processor_traits()
    if settings.runs_on() == "cuda":
        processor = replace(processor, bfloat16=True)
    run = describe_run(recipe, settings, shape, lengths, processor=processor, adapts_adapter=adapts_adapter)
    if not settings.faults.messages:
        rows, adapts = step_rows(recipe, settings) // recipe.factor, run.trained_parameters is not None
        settings.faults.extend(rank_faults(shape, run.ranks, rows=rows, adapter=adapts))
    settings.faults.raise_if_any()
    if longest is None:
        what = f"prompts of {_ASSUMED_PROMPT_TOKENS}" if recipe.writes else "the model's context"
        notes["texts"] = f"of up to {run.step.text_tokens:,} tokens ({what} assumed: --longest-text says)"
    return MemoryPlan(
        parameters=shape.parameters, parts=network_parts(run), device=str(values["run.device"]), notes=notes, run=run
    )


def _lengths(recipe: PlannedRecipe, settings: PlannedSettings, context: int, longest: int | None) -> TextLengths:
    """Tokens of the longest text, and those of its prompt."""
    if longest is not None and not 1 <= longest <= context:
        settings.faults.add(f"--longest-text {longest}: the model reads texts of 1 to {context:,} tokens")
    if not recipe.writes:
        return TextLengths(prompt=0, whole=longest or context)
    answer = settings.count("rollout.max_tokens")
    if answer >= context:
        settings.faults.add(
            f"rollout.max_tokens = {answer}: the model reads {context:,} tokens, and none is left for a prompt; lower "
            "it, or use a model with more positions"
        )
    answers = recipe.answers * answer
    if longest is not None and answers >= longest:
        settings.faults.add(
            f"--longest-text {longest} with rollout.max_tokens = {answer}: no token is left for the prompt; "
            "a longest text is a prompt with its answer"
        )
    whole = longest or min(context, settings.count("rollout.context", default=_ASSUMED_PROMPT_TOKENS + answers))
    return TextLengths(prompt=max(1, whole - answers), whole=whole)


def _check_weights(settings: PlannedSettings) -> None:
    """Add what training refuses beside weights in bfloat16 or codes."""
    if settings.code_bits() and not settings.given("model.lora"):
        settings.faults.add("model.weights in codes is for a base that is not trained: add model.lora.rank")
    if settings.weights() == "float32":
        return
    beside = 'with model.weights = "bfloat16"'
    if settings.given("model.lora"):
        settings.faults.add(f'model.lora {beside}: merging would round the adapter away; keep "float32"')
    if settings.choice("model.compute", ("auto", *TYPES)) == "float32":
        settings.faults.add(f'model.compute = "float32" {beside}: products keep the type of the weights; remove it')
    lr = settings.number("learner.lr", default=MIN_LR_WITHOUT_MASTER_WEIGHTS)
    if lr < MIN_LR_WITHOUT_MASTER_WEIGHTS:
        settings.faults.add(
            f'learner.lr = {lr:g} {beside}: most weights would round such steps away; keep "float32", or take at least '
            f"{MIN_LR_WITHOUT_MASTER_WEIGHTS:g}"
        )


@cache
def _facts() -> Mapping[str, Any]:
    return json.loads(PLANNED_RECIPES.read_text(encoding="utf-8"))


def _recipe(document: ConfigDocument) -> PlannedRecipe:
    if "stage" in document.values:
        raise ConfigError(f"{document.name}: --memory plans one run, and this file has stages; leave --memory out")
    name, known = document.values.get("recipe"), _facts()["recipes"]
    if not isinstance(name, str) or name not in known:
        raise ConfigError(
            f"recipe = {name!r} in {document.source_of(('recipe',))}: --memory is for hone's own recipes that train a "
            f"language model by gradient{did_you_mean(str(name), list(known))}"
        )
    return PlannedRecipe(**known[name])


def _with_defaults(document: ConfigDocument, recipe: PlannedRecipe) -> dict[str, object]:
    """Values by dotted key: the recipe's defaults, those of its preset, and what was given. Raises ConfigError for keys
    that no recipe on text has."""
    facts = _facts()
    known = frozenset(tuple(key.split(".")) for key in facts["keys"])
    written = setting_leaves(document.values)
    faults = ErrorCollector(ConfigError)
    tables = {path[0] for path in known}
    for key in written:
        path = tuple(key.split("."))
        if path[0] not in tables or (path[0] in _CHECKED_TABLES and path not in known):
            beside = [".".join(one) for one in known if len(one) == len(path)]
            faults.add(f"unknown key {key} in {document.source_of(path)}{did_you_mean(key, beside)}")
        elif key in _TABLES:
            faults.add(f"{key} in {document.source_of(path)} must be a table, got {written[key]!r}")
    faults.raise_if_any()
    preset = written.get("preset")
    if preset is not None and preset not in ("trl", "verl", "areal"):
        raise ConfigError(f"preset = {preset!r} in {document.source_of(('preset',))}: known are trl, verl and areal")
    chosen = recipe.presets.get(str(preset), {})
    values = {**facts["defaults"], **recipe.defaults, **chosen, **written}
    # A default is left out where a table was given in its place, as `rollout.max_staleness = { steps = 1 }`.
    tables = [key for key in values if key not in written and any(one.startswith(f"{key}.") for one in written)]
    return {key: value for key, value in values.items() if key not in tables}


def _model(values: Mapping[str, object], settings: PlannedSettings) -> tuple[PlannedDecoder, int, dict[str, str], bool]:
    """Shape of the model, the tokens that it reads, notes, and whether it is an adapter. Raises HoneError."""
    new = {key.removeprefix("model.new."): value for key, value in values.items() if key.startswith("model.new.")}
    path = values.get("model.path")
    if bool(new) == (path is not None):
        have = "this config has both" if new else "this config has neither; or say --model NAME"
        raise ConfigError(f"give exactly one of model.path and model.new: {have}")
    if new:
        return (*_new_model(new, settings), {}, False)
    if not isinstance(path, str) or path.startswith(STAGE_PREFIX):
        raise ConfigError(f"model.path = {path!r}: --memory needs a folder, or the name of a published model")
    config, where, is_adapter = _config_of(Path(path))
    shape = shape_from_hf(config, where=where)
    positions = text_config(config).get("max_position_embeddings")
    notes = {"model": f"{path}, {where}"}
    if shape.family not in PLANNED_FAMILIES:
        notes["note"] = (
            f"hone does not run the family {shape.family!r}: planned as a decoder of its sizes, which may be far off; "
            f"it runs {', '.join(PLANNED_FAMILIES)}"
        )
    context = positions if isinstance(positions, int) and positions > 0 else _DEFAULT_CONTEXT
    return shape, context, notes, is_adapter


def _config_of(path: Path) -> tuple[Mapping[str, object], str, bool]:
    """Keys of the `config.json` of a folder, a run or an adapter, or of a published model by name; where they are from;
    and whether it is an adapter. Raises DataError."""
    folders = [path, path / "policy"]
    steps = [one for one in (path / "checkpoints").glob("step_*") if _STEP.fullmatch(one.name)]
    folders += [max(steps, key=lambda one: one.name) / "policy"] if steps else []
    for folder in folders:
        adapter = folder / "adapter_config.json"
        if adapter.is_file() and not (folder / "config.json").is_file():
            base = _read_json(adapter).get("base_model_name_or_path")
            return (*_config_of(Path(str(base)))[:2], True)
        if (folder / "config.json").is_file():
            return _read_json(folder / "config.json"), str(folder / "config.json"), False
    if path.is_dir():
        raise DataError(f"model.path = {str(path)!r}: no config.json in this folder")
    return known_model(str(path)), "a published model, known by name", False


def _read_json(path: Path) -> Mapping[str, object]:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    if not isinstance(table, dict):
        raise DataError(f"{path} holds no table")
    return cast("dict[str, object]", table)


def _new_model(written: Mapping[str, object], settings: PlannedSettings) -> tuple[PlannedDecoder, int]:
    """A new network's shape: the keys that were given, on top of the defaults."""
    facts, mixture = _facts()["new"], _facts()["experts"]
    has_experts = any(key.startswith("experts") for key in written)
    mixtures = ("qwen3_moe", "mixtral", "olmoe")
    dense = ("qwen3", *(family for family in PLANNED_FAMILIES if family not in ("qwen3", *mixtures)))
    families = mixtures if has_experts else dense
    family = settings.choice("model.new.family", families)
    sizes = {
        name: settings.count(f"model.new.{name}", default=facts[name])
        for name in ("hidden_size", "layers", "heads", "kv_heads", "head_dim", "intermediate_size", "max_positions")
    }
    experts = {
        name: settings.count(f"model.new.experts.{name}", least=least, default=mixture[name])
        for name, least in (("count", 2), ("per_token", 1), ("width", 0))
    }
    if sizes["heads"] % sizes["kv_heads"]:
        settings.faults.add(f"model.new.heads ({sizes['heads']}) must be a multiple of kv_heads ({sizes['kv_heads']})")
    kind = settings.choice("model.new.tokenizer", ("characters", "bytes"))
    letters = _BYTES if kind == "bytes" else len(set(str(written.get("alphabet", facts["alphabet"]))))
    width = (experts["width"] or sizes["intermediate_size"]) if has_experts else sizes["intermediate_size"]
    shape = PlannedDecoder(
        family=family, layers=sizes["layers"], hidden=sizes["hidden_size"], heads=sizes["heads"],
        kv_heads=sizes["kv_heads"], head_dim=sizes["head_dim"], intermediate=width,
        vocab=letters + _SPECIAL_TOKENS[kind], tied=True, qk_norm=family in QK_NORM_FAMILIES,
        qkv_bias=family == "qwen2", experts=experts["count"] if has_experts else 0,
        experts_per_token=experts["per_token"] if has_experts else 0,
    )  # fmt: skip
    return shape, sizes["max_positions"]
