"""Model folders with a separate output layer.

vLLM 0.32 on a CPU packs the output layer at start, and a reload of weights skips one that is tied to the embedding,
without an error. So a server for training is started from an untied folder, and gets its weights through untied
folders. The numbers are the same.
"""

import json
from pathlib import Path
from typing import Any, Final

from safetensors import safe_open
from safetensors.torch import save_file

from hone.core.errors import DataError

_HEAD: Final = "lm_head.weight"
_EMBEDDING: Final = "model.embed_tokens.weight"
_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_FIRST: Final = "model-00001-of-00002.safetensors"
_SECOND: Final = "model-00002-of-00002.safetensors"
_ADDED: Final = "model-lm_head.safetensors"


def untie(folder: Path) -> bool:
    """Give a Hugging Face folder a separate output layer, in place; returns whether it had none.

    Every tool can still read it: a single weight file becomes the first of two. Raises DataError where the folder has
    no embedding to copy.
    """
    config = _read(folder / "config.json")
    if not config.get("tie_word_embeddings", False):
        return False
    places, head = _places(folder)
    if _EMBEDDING not in places:
        raise DataError(f"{folder}: none of its weights is {_EMBEDDING}; it is not a complete model folder")
    with safe_open(folder / places[_EMBEDDING], framework="pt") as tensors:
        weight = tensors.get_tensor(_EMBEDDING)
    save_file({_HEAD: weight}, folder / head, metadata={"format": "pt"})
    total = sum((folder / name).stat().st_size for name in {*places.values(), head})
    _write(folder / _INDEX, {"metadata": {"total_size": total}, "weight_map": {**places, _HEAD: head}})
    _write(folder / "config.json", {**config, "tie_word_embeddings": False})
    return True


def _places(folder: Path) -> tuple[dict[str, str], str]:
    """Map each tensor to its file, and find the file of the output layer."""
    if (folder / _INDEX).is_file():
        return dict(_read(folder / _INDEX)["weight_map"]), _ADDED
    if not (folder / _SINGLE).is_file():
        raise DataError(f"{folder}: no weights; expected {_SINGLE}, or {_INDEX} and the files that it lists")
    (folder / _SINGLE).rename(folder / _FIRST)
    with safe_open(folder / _FIRST, framework="pt") as tensors:
        return dict.fromkeys(tensors.keys(), _FIRST), _SECOND


def _read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
