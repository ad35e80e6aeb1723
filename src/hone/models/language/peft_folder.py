"""Adapter folders of PEFT: `adapter_config.json` and `adapter_model.safetensors`, read and written.

The base model is the folder that `base_model_name_or_path` names. hone also writes `adapter_base.json`: the fingerprint
of the base's weights, so that another base is refused, its place as seen from the adapter, for folders that were moved
together, and the codes that the base was kept in, since the adapter makes up for their errors.
"""

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hone.core.errors import ConfigError, DataError, ErrorCollector, did_you_mean, one_line
from hone.core.state import share_arrays
from hone.models.language.config import Json, ModelConfig
from hone.models.language.lora import LoraAdapter, LoraSettings, adaptable_layers, linear_sizes
from hone.models.language.tokenizers import read_json
from hone.process.hub import hub_folder, is_hub_name

ADAPTER_CONFIG: Final = "adapter_config.json"
ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
ADAPTER_BASE: Final = "adapter_base.json"
_PREFIX: Final = "base_model.model."
_FINGERPRINT, _PLACE, _ABSOLUTE, _DTYPE = "sha256", "path", "absolute_path", "weights"
_UNSUPPORTED: Final = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "use_bdlora": "block-diagonal LoRA",
    "lora_bias": "a bias of the adapter",
    "fan_in_fan_out": "transposed weights",
    "modules_to_save": "modules that are trained in full",
    "trainable_token_indices": "trained tokens",
    "target_parameters": "adapted parameters that are no linear layer",
    "rank_pattern": "ranks by layer",
    "alpha_pattern": "alphas by layer",
    "layer_replication": "replicated layers",
    "alora_invocation_tokens": "activated LoRA",
    "arrow_config": "Arrow",
    "kasa_config": "KaSA",
    "velora_config": "VeLoRA",
    "monteclora_config": "MonteCLoRA",
}
"""Keys of `adapter_config.json` that change the arithmetic, and what they stand for; hone reads none of them."""
_CHANGES_BASE: Final = ("pissa", "olora", "loftq", "corda", "lora_ga")
"""Initialisations that change the weights of the base as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftFolder:
    """Content of an adapter's folder, without its tensors."""

    path: Path
    base: Path
    """Folder of the base model."""
    base_name: str
    """The base as `adapter_config.json` names it, a model of the Hub with its revision: `org/name@revision`."""
    rank: int
    alpha: float
    """The update is B A times `alpha / rank`, whichever way the folder says it."""
    dropout: float
    """Dropout that PEFT trained with; hone trains without."""
    shapes: Mapping[str, tuple[int, ...]]
    """Shapes of the tensors by their names, without PEFT's prefix."""
    base_sha256: str | None
    """Fingerprint of the base; None in a folder that another program wrote."""
    base_dtype: str = "float32"
    """Type that the base's weights are kept in: `float32`, or the codes that the adapter was trained on."""

    def settings(self, config: ModelConfig) -> LoraSettings:
        """The adapter on its base. Raises DataError, with every tensor that does not belong to such a model."""
        layers, faults = adaptable_layers(config), ErrorCollector(DataError)
        sides, expected = linear_sizes(config), dict[str, tuple[int, int]]()
        for layer in layers:
            expected |= {f"{layer}.lora_A.weight": (self.rank, sides[layer][1])}
            expected |= {f"{layer}.lora_B.weight": (sides[layer][0], self.rank)}
        faults.extend(self._tensor_faults(expected))
        faults.raise_if_any()
        present = {name.rpartition(".lora_")[0] for name in self.shapes}
        return LoraSettings(
            rank=self.rank,
            alpha=self.alpha,
            layers=tuple(layer for layer in layers if layer in present),
        )

    def _tensor_faults(self, expected: Mapping[str, tuple[int, int]]) -> Iterator[str]:
        file = self.path / ADAPTER_WEIGHTS
        foreign, shapes, single = (dict[str, str]() for _ in range(3))
        for name, shape in self.shapes.items():
            other = name.replace(".lora_A.", ".lora_?.").replace(".lora_B.", ".lora_A.").replace("?", "B")
            tensor = f"{file}: tensor {_PREFIX}{name}"
            if name not in expected:
                near = did_you_mean(name, list(expected)).split("; known")[0]
                foreign[name] = f"{tensor} is of no linear layer of {self.base} that hone can adapt{near}"
            elif shape != expected[name]:
                shapes[name] = f"{tensor} has shape {shape}; {self.base} asks for {expected[name]}"
            elif other not in self.shapes:
                single[other] = f"{file}: tensor {_PREFIX}{other} is missing"
        if not self.shapes:
            yield f"{file}: no tensors; this is no adapter"
        for faults in (foreign, shapes, single):
            yield from one_line(faults, "tensors")


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter, and not a whole model."""
    return (folder / ADAPTER_CONFIG).is_file()


def read_peft_folder(folder: Path) -> PeftFolder:
    """The content of an adapter's folder. Raises DataError with every fault: damaged files, an adapter of another kind
    than LoRA, a base that is not there."""
    config, where, faults = read_json(folder / ADAPTER_CONFIG), folder / ADAPTER_CONFIG, ErrorCollector(DataError)
    faults.extend(_config_faults(config, where))
    base = _base_folder(config, where, faults)
    shapes = _read_header(folder / ADAPTER_WEIGHTS, faults)
    faults.raise_if_any()
    noted = read_json(folder / ADAPTER_BASE, required=False)
    fingerprint = noted.get(_FINGERPRINT)
    rank, alpha, dropout = config["r"], config["lora_alpha"], config.get("lora_dropout")
    assert isinstance(rank, int) and isinstance(alpha, int | float)
    return PeftFolder(
        path=folder,
        base=base,
        base_name=_base_name(config),
        rank=rank,
        alpha=float(alpha) * (math.sqrt(rank) if config.get("use_rslora") else 1.0),
        dropout=float(dropout) if isinstance(dropout, int | float) else 0.0,
        shapes=shapes,
        base_sha256=None if fingerprint is None else str(fingerprint),
        base_dtype=str(noted.get(_DTYPE, "float32")),
    )


def require_same_adapter(folder: Path, wanted: LoraSettings, saved: LoraSettings) -> None:
    """Raise ConfigError, with every difference, where a config asks for another adapter than a folder holds."""
    pairs = {"rank": (wanted.rank, saved.rank), "alpha": (wanted.alpha, saved.alpha)}
    short = [sorted({name.rpartition(".")[2] for name in one.layers}) for one in (wanted, saved)]
    faults = [
        f"model.lora.{key} = {asked!r}, but the adapter in {folder} has {held!r}"
        for key, (asked, held) in (pairs | {"layers": (short[0], short[1])}).items()
        if asked != held
    ]
    if not faults and wanted.layers != saved.layers:
        faults = [f"the adapter in {folder} adapts {', '.join(short[1])} in some blocks only; model.lora adapts all"]
    if faults:
        raise ConfigError(
            *faults,
            "a run goes on with an adapter as it is; for a new adapter on top of it, merge it first: "
            f"hone export {folder} DIR, and model.path = DIR",
        )


def load_factors(adapter: LoraAdapter, folder: PeftFolder) -> None:
    """Fill A and B from a folder, and merge them. Raises DataError for another base, and numbers that are not finite.

    The adapter is made with the settings of the folder.
    """
    file = folder.path / ADAPTER_WEIGHTS
    if folder.base_sha256 not in {None, adapter.base_sha256}:
        raise DataError(
            f"{file} is an adapter of a base with sha256 {folder.base_sha256}, and the weights in "
            f"{adapter.base_folder} have {adapter.base_sha256}: that model was changed or replaced. Put the folder of "
            f"the adapter's own base into base_model_name_or_path of a copy of {folder.path}"
        )
    pieces = {f"{name}.lora_B.weight": update.piece for name, update in adapter.updates.items()}
    broken: dict[str, str] = {}
    with safe_open(file, framework="pt") as tensors, torch.no_grad():
        for name, factor in adapter.factors():
            tensor: Tensor = tensors.get_tensor(f"{_PREFIX}{name}")
            if not bool(torch.isfinite(tensor).all()):
                broken[name] = f"{file}: tensor {_PREFIX}{name} holds NaN or infinite numbers; the adapter is broken"
            factor.copy_(pieces[name].from_checkpoint(tensor) if name in pieces else tensor)
    if broken:
        raise DataError(*one_line(broken, "tensors"))
    adapter.merge()


def save_adapter(adapter: LoraAdapter, folder: Path) -> None:
    """Write the folder of an adapter, which PEFT loads onto the base; the same adapter gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces = {f"{name}.lora_B.weight": update.piece for name, update in adapter.updates.items()}
    tensors = {
        f"{_PREFIX}{name}": (
            pieces[name].to_checkpoint(factor.detach()) if name in pieces else factor.detach().clone()
        ).cpu()
        for name, factor in adapter.factors()
    }
    save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    share_arrays(folder / ADAPTER_WEIGHTS)
    base = {
        _FINGERPRINT: adapter.base_sha256,
        _PLACE: os.path.relpath(adapter.base_folder, folder.resolve()),
        _ABSOLUTE: str(adapter.base_folder),
    }
    if adapter.decoder.code_bits:
        base[_DTYPE] = f"int{adapter.decoder.code_bits}"
    for name, content in ((ADAPTER_CONFIG, _peft_config(adapter)), (ADAPTER_BASE, base)):
        (folder / name).write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _peft_config(adapter: LoraAdapter) -> Json:
    """`adapter_config.json`, with the keys that PEFT has no default for or whose default is another."""
    settings = adapter.settings
    short = {name.rpartition(".")[2] for name in settings.layers}
    layers = tuple(name for name in adaptable_layers(adapter.decoder.config) if name.rpartition(".")[2] in short)
    name, revision = adapter.base_name, ""
    if is_hub_name(name):
        name, _, revision = name.partition("@")
    return {
        "base_model_name_or_path": name,
        **({"revision": revision} if revision else {}),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "lora_alpha": int(settings.alpha) if settings.alpha.is_integer() else settings.alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": settings.rank,
        "target_modules": sorted(short) if layers == settings.layers else list(settings.layers),
        "task_type": "CAUSAL_LM",
        "use_dora": False,
        "use_rslora": False,
    }


def _config_faults(config: Json, where: Path) -> Iterator[str]:
    if config.get("peft_type") != "LORA":
        yield f"{where}: peft_type is {config.get('peft_type')!r}; hone reads LORA only"
        return
    for key in ("r", "lora_alpha"):
        value = config.get(key)
        if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
            yield f"{where}: {key} must be a number above 0, got {value!r}"
    if not isinstance(config.get("r"), int):
        yield f"{where}: r must be a whole number, got {config.get('r')!r}"
    for key, meaning in _UNSUPPORTED.items():
        if value := config.get(key):
            yield f"{where}: {key} = {value!r}: {meaning} is not supported; merge by PEFT's merge_and_unload"
    if config.get("bias", "none") != "none":
        yield f"{where}: bias = {config['bias']!r}: trained biases are not supported; merge by PEFT's merge_and_unload"
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        yield (
            f"{where}: init_lora_weights = {start!r} changed the base too, so that the named one is not the "
            "adapter's; convert it to LoRA with PEFT's save_pretrained(path_initial_model_for_weight_conversion=...)"
        )


def _base_name(config: Json) -> str:
    """The base as a config names it, with the revision of a model of the Hub."""
    name, revision = str(config.get("base_model_name_or_path")), config.get("revision")
    return f"{name}@{revision}" if revision and is_hub_name(name) else name


def _base_folder(config: Json, where: Path, faults: ErrorCollector) -> Path:
    """The folder that the config names, as it is or seen from the adapter's folder, the one at the same place beside it
    as when it was written, or the model of the Hub."""
    name = config.get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        faults.add(f"{where}: base_model_name_or_path must name the folder of the base model, got {name!r}")
        return where.parent
    beside = read_json(where.parent / ADAPTER_BASE, required=False)
    places = [where.parent / str(beside.get(_PLACE) or name)]
    if not Path(name).is_absolute():  # seen from another folder than the one that it was given in
        places.append(Path(str(beside.get(_ABSOLUTE) or name)))
    for place in (Path(name), where.parent / name, *places):
        if place.exists() and place.resolve() != where.parent.resolve():
            if is_adapter(place):
                faults.add(
                    f"{where}: the base {name!r} is an adapter too; merge that one first: hone export {name} DIR"
                )
            return place
    if is_hub_name(name):
        try:
            return hub_folder(_base_name(config))
        except DataError as fault:
            faults.add(f"{where}: the base: {fault}")
            return Path(name)
    faults.add(
        f"{where}: the base model {name!r} does not exist (looked at {Path(name).absolute()}). Put the folder of "
        f"the base into base_model_name_or_path, in a copy of {where.parent} if that is part of a checkpoint"
    )
    return Path(name)


def _read_header(file: Path, faults: ErrorCollector) -> dict[str, tuple[int, ...]]:
    """Shapes of the tensors of a file, by their names without PEFT's prefix."""
    if not file.is_file():
        pickled = file.with_suffix(".bin")
        other = f"; {pickled.name} is a pickle, which can run any code: save it again with PEFT 0.5 or later"
        faults.add(f"{file} does not exist{other if pickled.is_file() else ''}")
        return {}
    try:
        with safe_open(file, framework="pt") as tensors:
            names = list(tensors.keys())
            other = {
                name: f"{file}: tensor {name} does not begin with {_PREFIX}, as PEFT names them"
                for name in names
                if not name.startswith(_PREFIX)
            }
            faults.extend(one_line(other, "tensors"))
            return {name.removeprefix(_PREFIX): tuple(tensors.get_slice(name).get_shape()) for name in names}
    except (SafetensorError, OSError) as error:
        faults.add(f"{file} ({file.stat().st_size} bytes) is damaged or cut short: {error}; fetch it again")
        return {}
