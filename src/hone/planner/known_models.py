"""Shapes of published models by name, so that a run can be planned before anything is downloaded.

The numbers are those of the models' own `config.json`; tests hold each to its published number of parameters.
"""

from collections.abc import Mapping
from typing import Final

from hone.core.errors import DataError, did_you_mean

_COLUMNS: Final = (
    "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
    "vocab_size", "max_position_embeddings",
)  # fmt: skip
_TIED: Final = (
    "Qwen2.5-0.5B", "Qwen2.5-1.5B", "Qwen2.5-3B", "Qwen3-0.6B", "Qwen3-1.7B", "Qwen3-4B", "Llama-3.2-1B",
    "Llama-3.2-3B", "SmolLM2-135M", "SmolLM2-360M", "SmolLM2-1.7B",
)  # fmt: skip
"""Models whose output projection is the embedding."""
_DENSE: Final[Mapping[str, tuple[str, tuple[int, ...]]]] = {
    "Qwen2.5-0.5B": ("qwen2", (24, 896, 4864, 14, 2, 64, 151936, 32768)),
    "Qwen2.5-1.5B": ("qwen2", (28, 1536, 8960, 12, 2, 128, 151936, 131072)),
    "Qwen2.5-3B": ("qwen2", (36, 2048, 11008, 16, 2, 128, 151936, 32768)),
    "Qwen2.5-7B": ("qwen2", (28, 3584, 18944, 28, 4, 128, 152064, 131072)),
    "Qwen2.5-14B": ("qwen2", (48, 5120, 13824, 40, 8, 128, 152064, 131072)),
    "Qwen2.5-32B": ("qwen2", (64, 5120, 27648, 40, 8, 128, 152064, 131072)),
    "Qwen3-0.6B": ("qwen3", (28, 1024, 3072, 16, 8, 128, 151936, 40960)),
    "Qwen3-1.7B": ("qwen3", (28, 2048, 6144, 16, 8, 128, 151936, 40960)),
    "Qwen3-4B": ("qwen3", (36, 2560, 9728, 32, 8, 128, 151936, 40960)),
    "Qwen3-8B": ("qwen3", (36, 4096, 12288, 32, 8, 128, 151936, 40960)),
    "Qwen3-14B": ("qwen3", (40, 5120, 17408, 40, 8, 128, 151936, 40960)),
    "Qwen3-32B": ("qwen3", (64, 5120, 25600, 64, 8, 128, 151936, 40960)),
    "Llama-3.2-1B": ("llama", (16, 2048, 8192, 32, 8, 64, 128256, 131072)),
    "Llama-3.2-3B": ("llama", (28, 3072, 8192, 24, 8, 128, 128256, 131072)),
    "Llama-3.1-8B": ("llama", (32, 4096, 14336, 32, 8, 128, 128256, 131072)),
    "Llama-3.1-70B": ("llama", (80, 8192, 28672, 64, 8, 128, 128256, 131072)),
    "SmolLM2-135M": ("llama", (30, 576, 1536, 9, 3, 64, 49152, 8192)),
    "SmolLM2-360M": ("llama", (32, 960, 2560, 15, 5, 64, 49152, 8192)),
    "SmolLM2-1.7B": ("llama", (24, 2048, 8192, 32, 32, 64, 49152, 8192)),
    "Mistral-7B-v0.3": ("mistral", (32, 4096, 14336, 32, 8, 128, 32768, 32768)),
}
_EXPERTS: Final[Mapping[str, Mapping[str, object]]] = {
    "Qwen3-30B-A3B": {
        "model_type": "qwen3_moe", **dict(zip(_COLUMNS, (48, 2048, 6144, 32, 4, 128, 151936, 40960), strict=True)),
        "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
    },
    "Mixtral-8x7B-v0.1": {
        "model_type": "mixtral", **dict(zip(_COLUMNS, (32, 4096, 14336, 32, 8, 128, 32000, 32768), strict=True)),
        "num_local_experts": 8, "num_experts_per_tok": 2,
    },
    "OLMoE-1B-7B-0924": {
        "model_type": "olmoe", **dict(zip(_COLUMNS, (16, 2048, 1024, 16, 16, 128, 50304, 4096), strict=True)),
        "num_experts": 64, "num_experts_per_tok": 8,
    },
}  # fmt: skip
_FETCHED: Final = {"hone:smollm2": "SmolLM2-135M"}
"""Names of `hone fetch`."""
KNOWN_MODELS: Final[Mapping[str, Mapping[str, object]]] = {
    **{
        name: {
            "model_type": family, "tie_word_embeddings": name in _TIED, **dict(zip(_COLUMNS, row, strict=True)),
        }
        for name, (family, row) in _DENSE.items()
    },
    **_EXPERTS,
}  # fmt: skip
"""Name -> the keys of its `config.json` that a plan reads."""


def known_model(name: str) -> Mapping[str, object]:
    """Config of a model by name, or of one of `hone fetch`; the publisher before it (`Qwen/`) and `-Instruct` or
    `-Base` behind it are left out, and small letters are as good as capitals.

    Raises DataError for a name that is not known, with the one that was probably meant.
    """
    short = _FETCHED.get(name, name.rpartition("/")[2])
    for ending in ("-instruct", "-base"):
        if short.casefold().endswith(ending):
            short = short[: -len(ending)]
    model = next((config for known, config in KNOWN_MODELS.items() if known.casefold() == short.casefold()), None)
    if model is None:
        raise DataError(f"{name} is neither a folder with a config.json nor a model known by name"
                        f"{did_you_mean(short, list(KNOWN_MODELS))}")  # fmt: skip
    return model
