"""GGUF files of llama.cpp, read: header, `config.json` and tensors as a Hugging Face folder has them.

The package `gguf` unpacks blocks of numbers and names tensors. Headers are read here: its reader
makes an array of every token, which takes seconds for each opening.
"""

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.core.errors import DataError, ErrorCollector, ResourceError, one_line
from hone.models.language.config import Json, ModelConfig, model_config_from_hf
from hone.models.language.rope import RopeConfig
from hone.models.language.weight_names import CheckpointPiece, checkpoint_pieces

GgufWeights: TypeAlias = Literal["F16", "BF16", "Q8_0"]
"""Types of matrices that are written; vectors and routers stay in float32."""
GGUF_WEIGHTS: Final[tuple[GgufWeights, ...]] = get_args(GgufWeights)
SUFFIX: Final = ".gguf"
_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_NUMBERS: Final = ("B", "b", "H", "h", "I", "i", "f", "?", "", "", "Q", "q", "d")
"""`struct` letters of the types of values by their numbers; between them stand texts (8) and lists (9)."""
_TEXT, _LIST = 8, 9
ARCHITECTURES: Final = {
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe", "olmoe": "olmoe",
}  # fmt: skip
"""Family -> `general.architecture`."""
_FAMILIES: Final = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3moe": "qwen3_moe", "olmoe": "olmoe"}
PAIRED: Final = ("llama",)
"""Architectures whose queries and keys hold the features of a rotary pair side by side, as hone's decoder does."""
ROPE_FACTORS: Final = "rope_freqs.weight"
LLAMA3: Final = (1.0, 4.0, 8192)
"""Low and high factor and original context of every published `llama3` scaling; a file has its result only."""


class _GgufTensor(NamedTuple):
    """Place of a tensor."""

    kind: int
    """Number of its type, a `gguf.GGMLQuantizationType`."""
    shape: tuple[int, ...]
    """As in torch: rows first."""
    start: int
    """First byte in the file."""


@dataclass(frozen=True, slots=True)
class _GgufSlice:
    """Header of a tensor, as safetensors shows it."""

    shape: tuple[int, ...]

    def get_shape(self) -> tuple[int, ...]:
        """Rows first."""
        return self.shape

    def __getitem__(self, _rows: slice) -> Tensor:
        """No numbers, of the type that they are unpacked to."""
        return torch.empty(0)


@dataclass(frozen=True, kw_only=True)
class GgufFile:
    """Header of a file, which stands for a model's folder."""

    path: Path
    fields: Mapping[str, object]
    tensors: Mapping[str, _GgufTensor]

    @cached_property
    def config(self) -> Json:
        """The `config.json` of such a model. Raises DataError with every fault."""
        return _config(self)

    @cached_property
    def places(self) -> Mapping[str, tuple[CheckpointPiece, str, int | None]]:
        """Name of a tensor in a Hugging Face folder -> its piece, its tensor here, and the expert's number in that."""
        config = model_config_from_hf(self.config, where=str(self.path))
        return {one[0].checkpoint_name: one for one in stored_pieces(config) if one[1] in self.tensors}

    def keys(self) -> list[str]:
        """Names of the tensors as a Hugging Face folder has them, and those that such a folder has not."""
        known = {ROPE_FACTORS, *(stored for _, stored, _ in self.places.values())}
        return [*self.places, *(name for name in self.tensors if name not in known)]

    def get_slice(self, name: str) -> "_GgufSlice":
        """A tensor's header, for checks without its numbers."""
        _, stored, expert = self.places[name]
        shape = self.tensors[stored].shape
        return _GgufSlice(shape if expert is None else shape[1:])

    def get_tensor(self, name: str) -> Tensor:
        """A tensor in float32, in the order of a Hugging Face folder."""
        piece, stored, expert = self.places[name]
        values = torch.from_numpy(self.numbers(self.tensors[stored], expert))
        if piece.rotary_heads and self.fields["general.architecture"] in PAIRED:
            return piece.to_checkpoint(values)
        return values

    def numbers(self, tensor: _GgufTensor, expert: int | None = None) -> NDArray[np.float32]:
        """A tensor as it is stored, or that of an expert in it."""
        library = gguf_library()
        kind, shape = library.GGMLQuantizationType(tensor.kind), tensor.shape
        size, start = stored_bytes(kind, shape), tensor.start
        if expert is not None:
            size, shape = size // shape[0], shape[1:]
            start += expert * size
        raw = np.memmap(self.path, np.uint8, "r", offset=start, shape=(size,))
        plain = {"F32": np.float32, "F16": np.float16}.get(kind.name)
        rows = raw.view(plain) if plain is not None else raw
        values = library.dequantize(rows.reshape(math.prod(shape[:-1]), -1), kind).reshape(shape)
        return np.array(values, np.float32)  # a copy: the file may be removed


def gguf_library() -> Any:  # noqa: ANN401 - it may be missing, and has no types of its own
    """The package `gguf`. Raises ResourceError where it is missing."""
    try:
        import gguf  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise ResourceError(f"a GGUF file needs the package {error.name}: pip install 'hone-rl[gguf]'") from None
    return gguf


def read_gguf(path: Path | str) -> GgufFile:
    """The header of a file. Raises DataError with every fault: no GGUF, cut short, types of numbers that the package
    does not unpack; ResourceError without the package."""
    path = Path(path)
    state = path.stat()
    return _read_gguf(path, state.st_mtime_ns, state.st_size)


# ------------------------------------------------------------------------------------------------------------- header


class _Reader:
    """Values of a header from its first byte on."""

    def __init__(self, path: Path) -> None:
        self.content = memoryview(np.memmap(path, np.uint8, "r"))  # pyright: ignore[reportArgumentType] - it has a buffer
        self.place = 0

    def number(self, letter: str) -> int | float | bool:
        (value,) = struct.unpack_from(f"<{letter}", self.content, self.place)
        self.place += struct.calcsize(letter)
        return value

    def count(self) -> int:
        """A number of things, each of which takes a byte at least."""
        value = cast(int, self.number("Q"))
        if value > len(self.content) - self.place:
            raise struct.error("a number of things beyond the end")
        return value

    def text(self) -> str:
        size = self.count()
        self.place += size
        return bytes(self.content[self.place - size : self.place]).decode("utf-8", errors="replace")

    def value(self, kind: int) -> object:
        if kind == _TEXT:
            return self.text()
        if kind != _LIST:
            if kind >= len(_NUMBERS):
                raise struct.error(f"a value of the unknown type {kind}")
            return self.number(_NUMBERS[kind])
        inner, size = cast(int, self.number("I")), self.count()
        if inner in (_TEXT, _LIST) or inner >= len(_NUMBERS):
            return [self.value(inner) for _ in range(size)]
        letters = f"<{size}{_NUMBERS[inner]}"
        values = struct.unpack_from(letters, self.content, self.place)
        self.place += struct.calcsize(letters)
        return list(values)


@lru_cache(maxsize=4)
def _read_gguf(path: Path, _changed: int, size: int) -> GgufFile:
    with path.open("rb") as file:
        first = file.read(8)
    if first[:4] != _MAGIC or len(first) < 8:
        raise DataError(f"{path} is no GGUF file: it begins with {first[:4]!r}, not {_MAGIC!r}")
    version = int.from_bytes(first[4:], "little")
    if version not in _VERSIONS:
        raise DataError(
            f"{path} is GGUF of version {version}; known: 2 and 3, little-endian. fix: convert the model again with a "
            "newer llama.cpp"
        )
    reader = _Reader(path)
    reader.place = len(first)
    try:
        count, pairs = cast(int, reader.number("Q")), cast(int, reader.number("Q"))
        fields = {reader.text(): reader.value(cast(int, reader.number("I"))) for _ in range(pairs)}
        tensors: dict[str, _GgufTensor] = {}
        for _ in range(count):
            name = reader.text()
            shape = [cast(int, reader.number("Q")) for _ in range(cast(int, reader.number("I")))]
            kind, start = cast(int, reader.number("I")), cast(int, reader.number("Q"))
            tensors[name] = _GgufTensor(kind, tuple(reversed(shape)), start)
    except struct.error as error:
        raise DataError(
            f"{path} ({size} bytes) is damaged or cut short in its header: {error}; fetch it again"
        ) from None
    alignment = cast(int, fields.get("general.alignment", 32))
    data = -(-reader.place // alignment) * alignment
    tensors = {name: one._replace(start=data + one.start) for name, one in tensors.items()}
    header = GgufFile(path=path, fields=fields, tensors=tensors)
    faults = ErrorCollector(DataError)
    faults.extend(_file_faults(header, size))
    faults.raise_if_any()
    return header


def _file_faults(header: GgufFile, size: int) -> Iterator[str]:
    """Tensors that cannot be unpacked, or that end behind the file."""
    library, unknown, short = gguf_library(), dict[str, str](), dict[str, str]()
    parts = header.fields.get("split.count", 0)
    if cast(int, parts) > 1:
        yield (
            f"{header.path} is one of {parts} parts of a model. fix: join them, llama-gguf-split --merge "
            f"{header.path.name} whole.gguf, and give whole.gguf"
        )
    kinds = {one.value: one for one in library.GGMLQuantizationType}
    for name, tensor in header.tensors.items():
        kind = kinds.get(tensor.kind)
        if kind is None or kind.name not in _unpacked():
            shown = tensor.kind if kind is None else kind.name
            unknown[name] = (
                f"{header.path}: tensor {name} is of the type {shown}, which is not read; known: "
                f"{', '.join(_unpacked())}. fix: fetch the file in one of these"
            )
        elif tensor.start + stored_bytes(kind, tensor.shape) > size:
            short[name] = (
                f"{header.path} ({size} bytes) is cut short: tensor {name} ends at byte "
                f"{tensor.start + stored_bytes(kind, tensor.shape)}; fetch it again"
            )
    yield from one_line(unknown, "tensors")
    yield from one_line(short, "tensors")


@lru_cache(maxsize=1)
def _unpacked() -> tuple[str, ...]:
    """Names of the types that the package unpacks."""
    library, known = gguf_library(), list[str]()
    for kind in library.GGMLQuantizationType:
        try:
            library.dequantize(np.zeros((1, stored_bytes(kind, (1, 1 << 8))), np.uint8), kind)
        except (NotImplementedError, KeyError):
            continue
        known.append(kind.name)
    return tuple(known)


def stored_bytes(kind: Any, shape: tuple[int, ...]) -> int:  # noqa: ANN401 - the library's
    """Bytes of a tensor of a `gguf.GGMLQuantizationType`."""
    block, size = gguf_library().GGML_QUANT_SIZES[kind]
    return math.prod(shape) // block * size


# ------------------------------------------------------------------------------------------------------------- config


def _config(header: GgufFile) -> Json:
    fields, where, faults = header.fields, str(header.path), ErrorCollector(DataError)
    architecture = str(fields.get("general.architecture"))
    if architecture not in _FAMILIES:
        faults.add(
            f"{where}: general.architecture {architecture!r} is not supported; known: {', '.join(_FAMILIES)}. fix: "
            "give the model's Hugging Face folder, if its config.json names a family that hone knows"
        )
        faults.raise_if_any()

    def value(key: str, default: object = None) -> object:
        field = fields.get(f"{architecture}.{key}", default)
        return float(str(np.float32(field))) if isinstance(field, float) else field  # 1e-05, not 9.999999747378752e-06

    needed = ("block_count", "embedding_length", "attention.head_count", "context_length")
    faults.extend(
        f"{where}: {architecture}.{key} is missing or no whole number: {value(key)!r}"
        for key in needed
        if not isinstance(value(key), int)
    )
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        faults.add(f"{where}: tensor token_embd.weight is missing")
    faults.raise_if_any()
    assert embedding is not None
    heads, experts = cast(int, value("attention.head_count")), value("expert_count", 0)
    head_dim = value("attention.key_length") or cast(int, value("embedding_length")) // heads
    config: Json = {
        "model_type": "mixtral" if architecture == "llama" and experts else _FAMILIES[architecture],
        "vocab_size": embedding.shape[0],
        "hidden_size": value("embedding_length"),
        "intermediate_size": value("feed_forward_length"),
        "num_hidden_layers": value("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": value("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": value("context_length"),
        "rms_norm_eps": value("attention.layer_norm_rms_epsilon", 1e-6),
        "rope_parameters": _rope(header, value("rope.freq_base", 10000.0), cast(int, head_dim), faults).to_hf(),
        "tie_word_embeddings": "output.weight" not in header.tensors,  # the only sign
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "attention_bias": architecture == "llama" and "blk.0.attn_output.bias" in header.tensors,
        "mlp_bias": architecture == "llama" and "blk.0.ffn_down.bias" in header.tensors,
    }
    if (turned := value("rope.dimension_count", head_dim)) != head_dim:
        faults.add(f"{where}: {architecture}.rope.dimension_count {turned} of {head_dim} features is not supported")
    if experts:
        width = value("expert_feed_forward_length") or value("feed_forward_length")
        config |= {"num_experts": experts, "num_experts_per_tok": value("expert_used_count")}
        config["intermediate_size"] = value("feed_forward_length") or width
        config |= {"moe_intermediate_size": width, "norm_topk_prob": True} if architecture == "qwen3moe" else {}
    faults.raise_if_any()
    return {key: one for key, one in config.items() if one is not None}


def _rope(header: GgufFile, theta: object, head_dim: int, faults: ErrorCollector) -> RopeConfig:
    """Rotary positions; a fault where their scaling is none that hone computes."""
    architecture = header.fields["general.architecture"]
    scaling = {
        key: header.fields.get(f"{architecture}.rope.scaling.{key}")
        for key in ("type", "factor", "original_context_length", "attn_factor")
    }
    plain = RopeConfig(theta=float(cast(float, theta)))
    kind = scaling["type"] or "none"
    if ROPE_FACTORS in header.tensors:
        factors = header.numbers(header.tensors[ROPE_FACTORS])
        low, high, original = LLAMA3
        rope = RopeConfig(
            theta=plain.theta, kind="llama3", factor=float(factors.max()), low_freq_factor=low, high_freq_factor=high,
            original_max_positions=original,
        )  # fmt: skip
        if kind == "none" and np.allclose(factors, llama3_factors(rope, head_dim), rtol=1e-3, atol=0):
            return rope
        faults.add(
            f"{header.path}: {ROPE_FACTORS} holds factors of rotary positions that are not those of a llama3 scaling "
            f"(low {low:g}, high {high:g}, original context {original}). fix: give the model's Hugging Face folder"
        )
    elif kind in ("linear", "yarn") and isinstance(scaling["factor"], float) and not scaling["attn_factor"]:
        original = scaling["original_context_length"]
        if kind == "linear":
            return RopeConfig(theta=plain.theta, kind="linear", factor=scaling["factor"])
        if isinstance(original, int):
            return RopeConfig(theta=plain.theta, kind="yarn", factor=scaling["factor"], original_max_positions=original)
        faults.add(f"{header.path}: {architecture}.rope.scaling.original_context_length is missing for yarn")
    elif kind != "none":
        settings = ", ".join(f"{key} {one}" for key, one in scaling.items() if one is not None)
        faults.add(f"{header.path}: {architecture}.rope.scaling ({settings}) is not supported; known: linear, yarn")
    return plain


def llama3_factors(rope: RopeConfig, head_dim: int) -> NDArray[np.float32]:
    """`[head_dim / 2]` divisors of the frequencies (Dubey et al., 2024)."""
    wavelength = 2 * np.pi * rope.theta ** (np.arange(0, head_dim, 2) / head_dim)
    share = (rope.original_max_positions / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    share = np.clip(share, 0, 1)
    return (1 / ((1 - share) / rope.factor + share)).astype(np.float32)


# ------------------------------------------------------------------------------------------------------------- tensors


def stored_pieces(config: ModelConfig) -> Iterator[tuple[CheckpointPiece, str, int | None]]:
    """Every tensor of a Hugging Face folder with its name in a GGUF file, and an expert's number within that."""
    library = gguf_library()
    kinds = {name: kind for kind, name in library.MODEL_ARCH_NAMES.items()}
    names = library.get_tensor_name_map(kinds[ARCHITECTURES[config.family]], config.layers)
    for piece in checkpoint_pieces(config):
        block, dot, rest = piece.checkpoint_name.partition(".experts.")
        number, _, tail = rest.partition(".")
        full = f"{block}.experts.{tail}" if dot else piece.checkpoint_name
        stored = names.get_name(full, try_suffixes=(".weight", ".bias"))
        yield piece, stored or full, int(number) if dot else None
