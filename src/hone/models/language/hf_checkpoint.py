"""Reading and writing Hugging Face folders: safetensors and `config.json`, with the names of transformers and vLLM.

An adapter's folder of PEFT stands for its base with the adapter merged, and a GGUF file is read like a folder. All
faults of a folder are reported at once.
Pickled weights and remote code are not supported.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hone.core.clock import counted
from hone.core.errors import ConfigError, DataError, ErrorCollector, did_you_mean, one_line
from hone.core.state import share_arrays
from hone.models.language.config import Json, ModelConfig, model_config_from_hf
from hone.models.language.decoder import Decoder, torch_dtype
from hone.models.language.lora import OUTPUT_LAYER, LoraAdapter, LoraConfig, new_adapter, weights_sha256
from hone.models.language.peft_folder import (
    PeftFolder,
    is_adapter,
    load_factors,
    read_peft_folder,
    require_same_adapter,
)
from hone.models.language.quantised_linear import BITS, QuantisedProjection
from hone.models.language.tokenizers import read_json, tokenizer_files
from hone.models.language.transformers_decoder import TransformersDecoder, make_decoder
from hone.models.language.weight_names import CheckpointPiece, checkpoint_pieces
from hone.process.hub import hub_folder, is_hub_name
from hone.process.user_files import file_fault

if TYPE_CHECKING:
    from hone.models.language.gguf_file import GgufFile

GGUF: Final = ".gguf"
WEIGHTS_FILE: Final = "model.safetensors"
SCALAR_HEAD: Final = "score.weight"
"""Tensor `[1, hidden_size]` of a folder with a scalar head."""
SHARD_BYTES: Final = 5_000_000_000
INDEX_FILE: Final = "model.safetensors.index.json"
_PICKLES: Final = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_EMBEDDING: Final = "model.embed_tokens.weight"
_HEAD: Final = "lm_head.weight"
_TEXT: Final = "model.language_model."
"""Beginning of the names of a text part's tensors, in the place of `model.`."""
_LEFT_OUT: Final = ("model.visual.", "mtp.")
"""Beginnings of the names of what is not read beside it: the vision tower, and layers that predict further tokens."""
_STORED_DTYPES: Final = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def read_config(folder: Path | str) -> ModelConfig:
    """The architecture of a folder, or of the base of an adapter, without its weights; an adapter of the output
    projection makes one of its own. Raises DataError with every fault."""
    adapted, folder = _existing(Path(folder)), model_folder(folder)
    where = folder if folder.suffix == GGUF else folder / "config.json"
    config = model_config_from_hf(config_json(folder), where=str(where))
    unties = is_adapter(adapted) and f"{OUTPUT_LAYER}.lora_A.weight" in read_peft_folder(adapted).shapes
    return replace(config, tie_embeddings=False) if unties else config


def config_json(folder: Path) -> Json:
    """Content of a model's `config.json`; that which would describe a GGUF file. Raises DataError."""
    return _gguf(folder).config if folder.suffix == GGUF else read_json(folder / "config.json")


def _gguf(file: Path) -> "GgufFile":
    from hone.models.language.gguf_file import read_gguf  # noqa: PLC0415 - needs an extra

    return read_gguf(file)


def model_folder(folder: Path | str) -> Path:
    """The folder (or GGUF file) itself, or that of the base model of an adapter. Raises DataError where it is not
    there."""
    folder = _existing(Path(folder))
    return _existing(read_peft_folder(folder).base) if is_adapter(folder) else folder


def load_model(
    folder: Path | str, *, device: str = "cpu", dtype: str = "float32", checkpoint_activations: bool = False
) -> Decoder:
    """The Decoder of a Hugging Face folder (see `config.FAMILIES`; one file or sharded), or of an adapter's; for "int8"
    and "int4" the folder's weights are rounded to codes, tensor by tensor.

    Raises DataError, with every fault at once, naming file and tensor: no such folder, no or damaged weights, missing,
    unexpected or misshapen tensors, numbers that are not finite, an architecture that hone does not know.
    """
    config = read_config(folder)
    model = make_decoder(config, dtype=dtype, checkpoint_activations=checkpoint_activations)
    if is_adapter(Path(folder)):
        adapter = _load_with_adapter(read_peft_folder(Path(folder)))
        merged = adapter.dense_decoder() if adapter.decoder.code_bits else adapter.decoder
        if isinstance(model, TransformersDecoder):
            return merged.to(device=device, dtype=torch_dtype(dtype))
        _copy_weights(model, merged)
    else:
        load_weights(model, folder)
    return model.to(device)


@torch.no_grad()
def _copy_weights(model: Decoder, dense: Decoder) -> None:
    """Copy the weights of `dense`, rounded to codes where `model` has them."""
    own = model.stored_tensors()
    for name, tensor in dense.stored_tensors().items():
        projection = model.get_submodule(name.rpartition(".")[0])
        if isinstance(projection, QuantisedProjection) and name.endswith(".weight"):
            projection.encode_rows(0, tensor)
        else:
            own[name].copy_(tensor)


def load_with_adapter(
    folder: Path | str,
    lora: LoraConfig,
    *,
    seed: int,
    device: str = "cpu",
    dtype: str = "float32",
    checkpoint_activations: bool = False,
    base_name: str = "",
) -> LoraAdapter:
    """A Decoder, in float32 or codes, with an adapter to train: a new one for a model's folder, of which the adapter
    will say `base_name`, or that of an adapter's folder as it is.

    Raises DataError as `load_model`, and ConfigError where `lora` is not what an adapter's folder holds.
    """
    folder = _existing(Path(folder))
    check_adapter(folder, lora, dtype)
    if is_adapter(folder):
        saved = replace(read_peft_folder(folder), base_dtype=dtype)
        return _load_with_adapter(saved, device, checkpoint_activations=checkpoint_activations)
    decoder = load_model(folder, device=device, dtype=dtype, checkpoint_activations=checkpoint_activations)
    return new_adapter(decoder, lora, folder, seed=seed, base_name=base_name)


def check_adapter(folder: Path, lora: LoraConfig, dtype: str) -> None:
    """Check an adapter for the model of a folder, whose weights are not read and are to be kept in `dtype`.

    Raises ConfigError for a rank that is too high, and where an adapter's folder holds another adapter, or one that was
    trained on a base in another type; DataError for a model that cannot be kept in codes.
    """
    wanted = lora.settings(read_config(folder))
    if dtype in BITS:
        with torch.device("meta"):
            make_decoder(read_config(folder), dtype=dtype)
    if is_adapter(folder):
        saved = read_peft_folder(folder)
        require_same_adapter(folder, wanted, saved.settings(read_config(folder)))
        if saved.base_sha256 is not None and saved.base_dtype != dtype:
            raise ConfigError(
                f"the adapter in {folder} was trained on a base in {saved.base_dtype}; set model.weights = "
                f'"{saved.base_dtype}", not "{dtype}"'
            )


def _load_with_adapter(folder: PeftFolder, device: str = "cpu", *, checkpoint_activations: bool = False) -> LoraAdapter:
    """The base of an adapter's folder, with the adapter merged."""
    decoder = load_model(
        folder.base, device=device, dtype=folder.base_dtype, checkpoint_activations=checkpoint_activations
    )
    settings, fingerprint = folder.settings(decoder.config), weights_sha256(decoder)
    if OUTPUT_LAYER in settings.layers:
        decoder.untie_output()
    adapter = LoraAdapter(
        decoder,
        settings,
        base_folder=folder.base.resolve(),
        base_sha256=fingerprint,
        base_name=folder.base_name,
    )
    load_factors(adapter, folder)
    adapter.starts_at_base = False
    return adapter


def load_weights(model: Decoder, folder: Path | str) -> None:
    """Load a folder's weights in place. Raises DataError as `load_model` does; the model may be partly loaded then."""
    if isinstance(model, TransformersDecoder):
        model.load_folder(_existing(Path(folder)))
        return
    weights: dict[str, Tensor | QuantisedProjection] = {**model.stored_tensors()}
    for name, module in model.named_modules():
        if isinstance(module, QuantisedProjection):
            weights[f"{name}.weight"] = module
    load_pieces(weights, checkpoint_pieces(model.config), model.config, folder)


def load_pieces(
    parameters: Mapping[str, Tensor | QuantisedProjection],
    pieces: Iterable[CheckpointPiece],
    config: ModelConfig,
    folder: Path | str,
) -> None:
    """Load exactly the tensors `pieces` of a folder into `parameters`. Raises as `load_weights`."""
    folder = _existing(Path(folder))
    faults = ErrorCollector(DataError)
    if config.left_out:
        pieces = [replace(one, checkpoint_name=one.checkpoint_name.replace("model.", _TEXT, 1)) for one in pieces]
    wanted = {piece.checkpoint_name: piece for piece in pieces}
    files = _weight_files(folder, faults)
    faults.raise_if_any()
    file_of: dict[str, Path] = {}
    for file in files:
        _read_file(file, wanted, parameters, file_of, faults)
    if config.tie_embeddings and not faults.messages:
        faults.extend(_untied_head_faults(file_of))
    damaged = not set(files) <= {*file_of.values()}  # what its file lacks is not missing besides
    # Older writers add tensors that follow from the rest.
    redundant = {_HEAD} if config.tie_embeddings else set[str]()
    redundant |= {name for name in file_of if name.endswith("rotary_emb.inv_freq")}
    redundant |= {name for name in file_of if name.startswith(_LEFT_OUT)} if config.left_out else set()
    surplus = sorted((name for name in file_of if name not in wanted and name not in redundant), key=SCALAR_HEAD.__ne__)
    lost = {
        name: f"{_missing_fault(folder, name)}{did_you_mean(name, surplus).split('; known')[0]}"
        for name in wanted
        if name not in file_of and not damaged
    }
    faults.extend(one_line(lost, "tensors"))
    faults.extend(one_line({name: _surplus_fault(file_of[name], name, config) for name in surplus}, "tensors"))
    faults.raise_if_any()


def save_model(
    model: Decoder, folder: Path | str, *, tokenizer_from: Path | None, shard_bytes: int = SHARD_BYTES
) -> None:
    """Write a folder that transformers and vLLM load: weights, `config.json`, and the tokenizer's files copied as they
    are (with `generation_config.json`) from `tokenizer_from`. The same model gives the same bytes.

    No file of weights holds more than `shard_bytes` (a single tensor may).
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    copied = {} if tokenizer_from is None else tokenizer_files(tokenizer_from)
    for name, content in copied.items():
        (folder / name).write_bytes(content)
    if isinstance(model, TransformersDecoder):
        model.save_folder(folder)
        return
    save_pieces(model.stored_tensors(), checkpoint_pieces(model.config), model.config.to_hf(), folder, shard_bytes)


def save_pieces(
    parameters: Mapping[str, Tensor],
    pieces: Iterable[CheckpointPiece],
    config: Mapping[str, object],
    folder: Path,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write `config.json` and the tensors `pieces` of `parameters`, in place of those that `folder` holds."""
    dtype = next(iter(parameters.values())).dtype
    _write_json(folder / "config.json", {**config, "dtype": str(dtype).removeprefix("torch.")})
    parts = _shards(list(pieces), parameters, shard_bytes)
    for stale in (*folder.glob("model-*-of-*.safetensors"), folder / INDEX_FILE, folder / WEIGHTS_FILE):
        stale.unlink(missing_ok=True)
    places: dict[str, str] = {}
    for number, part in enumerate(counted(parts, "files of weights"), start=1):
        name = WEIGHTS_FILE if len(parts) == 1 else f"model-{number:05}-of-{len(parts):05}.safetensors"
        tensors = {piece.checkpoint_name: piece.to_checkpoint(_rows(parameters, piece)).cpu() for piece in part}
        save_file(tensors, folder / name, metadata={"format": "pt"})
        share_arrays(folder / name)
        places.update((piece.checkpoint_name, name) for piece in part)
    if len(parts) > 1:
        total = sum(_bytes(parameters, piece) for part in parts for piece in part)
        _write_json(folder / INDEX_FILE, {"metadata": {"total_size": total}, "weight_map": places})


def stored_type(folder: Path) -> str:
    """Data type of a folder's weights, or of an adapter's base, as `config.json` names it. Raises DataError."""
    config = config_json(model_folder(folder))
    return str(config.get("dtype") or config.get("torch_dtype") or "float32")


def round_weights(folder: Path, dtype: str) -> None:
    """Round the weights of a folder to `bfloat16` or `float16` in place, but not the head of a scorer."""
    wanted = {"bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
    total = 0
    for file in counted(sorted(folder.glob("*.safetensors")), "files rounded"):
        with safe_open(file, framework="pt") as stored:
            tensors: dict[str, Tensor] = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
        tensors = {
            name: tensor.to(wanted) if tensor.is_floating_point() and name != SCALAR_HEAD else tensor
            for name, tensor in tensors.items()
        }
        total += sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        save_file(tensors, file, metadata={"format": "pt"})
        share_arrays(file)
    _write_json(folder / "config.json", {**read_json(folder / "config.json"), "dtype": dtype})
    if (folder / INDEX_FILE).is_file():
        _write_json(folder / INDEX_FILE, {**read_json(folder / INDEX_FILE), "metadata": {"total_size": total}})


def _shards(
    everything: Sequence[CheckpointPiece], parameters: Mapping[str, Tensor], limit: int
) -> list[list[CheckpointPiece]]:
    parts: list[list[CheckpointPiece]] = [[]]
    filled = 0
    for piece in everything:
        size = _bytes(parameters, piece)
        if parts[-1] and filled + size > limit:
            parts.append([])
            filled = 0
        parts[-1].append(piece)
        filled += size
    return parts


def _rows(parameters: Mapping[str, Tensor], piece: CheckpointPiece) -> Tensor:
    return parameters[piece.parameter_name].detach()[piece.start : piece.start + piece.rows]


def _bytes(parameters: Mapping[str, Tensor], piece: CheckpointPiece) -> int:
    rows = _rows(parameters, piece)
    return rows.numel() * rows.element_size()


def _write_json(file: Path, content: Mapping[str, object]) -> None:
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _existing(folder: Path) -> Path:
    if folder.is_dir() or (folder.is_file() and folder.suffix == GGUF):
        return folder
    if folder.is_file():
        raise DataError(f"{folder} is a file; a model is a folder with config.json and *.safetensors, or a .gguf file")
    if is_hub_name(str(folder)):
        return hub_folder(str(folder))
    raise DataError(f"model folder {str(folder)!r} does not exist (looked at {folder.absolute()})")


def _missing_fault(folder: Path, name: str) -> str:
    """Names the file that the index of a sharded folder gives for a tensor, else the folder."""
    places = read_json(folder / INDEX_FILE, required=False).get("weight_map", {})
    file = cast("dict[str, object]", places).get(name)
    return f"{folder if file is None else folder / str(file)}: tensor {name} is missing"


def _untied_head_faults(file_of: Mapping[str, Path]) -> Iterator[str]:
    """Faults of an output projection that is in the files beside the embedding that it is tied to."""
    if not {_EMBEDDING, _HEAD} <= file_of.keys():
        return
    tensors = []
    for name in (_EMBEDDING, _HEAD):
        with safe_open(file_of[name], framework="pt") as file:
            tensors.append(file.get_tensor(name))
    if not torch.equal(*tensors):
        yield (
            f"{file_of[_HEAD]}: tensor {_HEAD} is not equal to {_EMBEDDING}, but config.json has tie_word_embeddings "
            f"true; set it to false to use both, or remove {_HEAD}"
        )


def _weight_files(folder: Path, faults: ErrorCollector) -> list[Path]:
    """The weight files of a folder; missing ones are added to `faults`."""
    if folder.suffix == GGUF:
        return [folder]
    if (folder / INDEX_FILE).is_file() and (folder / WEIGHTS_FILE).is_file():
        faults.add(f"{folder} holds {WEIGHTS_FILE} and {INDEX_FILE}: two sets of weights; remove the stale one")
        return []
    if (folder / INDEX_FILE).is_file():
        places = read_json(folder / INDEX_FILE).get("weight_map")
        if not isinstance(places, dict) or not places:
            faults.add(f"{folder / INDEX_FILE}: weight_map must name the file of each tensor")
            return []
        names = sorted({str(name) for name in cast("dict[str, object]", places).values()})
        outside = [name for name in names if Path(name).name != name]
        faults.extend(f"{folder / INDEX_FILE}: {name!r} is not a file of this folder" for name in outside)
        missing = [name for name in names if name not in outside and not (folder / name).is_file()]
        absent = {
            name: file_fault(folder / name)
            or f"{folder / name} does not exist, but {INDEX_FILE} lists it: fetch the folder again"
            for name in missing
        }
        faults.extend(one_line(absent, "files"))
        return [folder / name for name in names if name not in missing and name not in outside]
    if (folder / WEIGHTS_FILE).is_file():
        return [folder / WEIGHTS_FILE]
    if link := file_fault(folder / WEIGHTS_FILE):
        faults.add(link)
        return []
    pickles = sorted(file.name for pattern in _PICKLES for file in folder.glob(pattern))
    if pickles:
        faults.add(
            f"{folder}: only pickled weights ({', '.join(pickles[:3])}); a pickle can run any code: hone reads none. "
            "Convert them where that does no harm (a container without network or secrets), by transformers: "
            "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER) writes safetensors"
        )
    else:
        faults.add(f"{folder}: no weights; expected {WEIGHTS_FILE}, or {INDEX_FILE} and the files that it lists")
    return []


def _read_file(
    file: Path,
    wanted: Mapping[str, CheckpointPiece],
    parameters: Mapping[str, Tensor | QuantisedProjection],
    file_of: dict[str, Path],
    faults: ErrorCollector,
) -> None:
    """Copy the wanted tensors of a file into their parameters."""
    try:
        with nullcontext(_gguf(file)) if file.suffix == GGUF else safe_open(file, framework="pt") as tensors:
            names = list(tensors.keys())
            faults.extend(
                f"{file}: tensor {name} is in {file_of[name].name} too; keep it in one file"
                for name in file_of.keys() & names
            )
            file_of.update(dict.fromkeys(names, file))
            unfit = [
                (kind, name, f"{file}: tensor {name} {fault}")
                for name in sorted(wanted.keys() & names)
                for kind, fault in _fill(wanted[name], tensors, parameters)
            ]
        for kind in dict.fromkeys(kind for kind, _, _ in unfit):
            faults.extend(one_line({name: fault for one, name, fault in unfit if one == kind}, "tensors"))
    except (SafetensorError, OSError) as error:
        other = file_fault(file)
        faults.add(other or f"{file} ({file.stat().st_size} bytes) is damaged or cut short: {error}; fetch it again")


def _fill(
    piece: CheckpointPiece, file: "safe_open | GgufFile", parameters: Mapping[str, Tensor | QuantisedProjection]
) -> Iterator[tuple[str, str]]:
    """Copy a tensor of a file into its parameter, or round it to codes; yields the kind of its fault, and the fault. Of
    a parameter without numbers only the header is checked."""
    target, stored = parameters[piece.parameter_name], file.get_slice(piece.checkpoint_name)
    coded = target if isinstance(target, QuantisedProjection) else None
    held, shape = target.weight if isinstance(target, QuantisedProjection) else target, tuple(stored.get_shape())
    wanted = (piece.rows, *held.shape[1:]) if coded is None else (piece.rows, coded.features_in)
    if shape != wanted:
        yield "shape", f"has shape {shape}; config.json asks for {wanted}"
    elif (dtype := stored[:0].dtype) not in _STORED_DTYPES:
        yield "type", f"holds {dtype}; quantised weights are not supported"
    elif held.is_meta:
        return
    elif not bool(torch.isfinite(tensor := file.get_tensor(piece.checkpoint_name)).all()):
        count = int((~torch.isfinite(tensor)).sum())
        yield "number", f"holds {count} NaN or infinite numbers; the checkpoint is broken"
    elif coded is None:
        _rows({piece.parameter_name: held}, piece).copy_(piece.from_checkpoint(tensor))
    else:
        try:
            coded.encode_rows(piece.start, piece.from_checkpoint(tensor))
        except DataError as error:
            yield "range", str(error)


def _surplus_fault(file: Path, name: str, config: ModelConfig) -> str:
    if name == SCALAR_HEAD:
        return (
            f"{file}: tensor {name} is a scalar head: the folder holds a reward model or a critic, not a policy. Give "
            'the folder of a policy here; as a reward it is named in rewards.functions, by kind = "model"'
        )
    return f"{file}: tensor {name} is not part of a {config.family}"
