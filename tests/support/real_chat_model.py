"""A published chat model for tests: SmolLM2-135M-Instruct where its package can be had, and a small stand-in."""

import hashlib
from pathlib import Path

import pytest
from chat_families import family_tokenizer

from hone.cli.commands import fetch
from hone.core.errors import ResourceError
from hone.models.language.config import ModelConfig
from hone.models.language.gguf_export import write_gguf
from hone.models.language.init import new_model


def smollm2() -> Path:
    """Its GGUF file; the test is skipped where it is neither in the cache nor on the network."""
    try:
        return fetch.fetch_model("smollm2")
    except ResourceError as error:
        pytest.skip(f"needs the model of `hone fetch smollm2`: {error}")


def smollm2_stand_in(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Let `hone:smollm2` stand for a random model of a few thousand weights with a template of the same structure."""
    tokenizer = family_tokenizer("chatml")
    config = ModelConfig(
        family="llama", vocab_size=tokenizer.backend.get_vocab_size(), hidden_size=32, intermediate_size=64, layers=1,
        heads=2, kv_heads=1, head_dim=16, max_positions=2048, tie_embeddings=True,
    )  # fmt: skip
    file = folder / "models" / "tiny.gguf"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_gguf(new_model(config, seed=3), tokenizer, file, "F16", name="tiny")
    known = fetch.PackagedModel(
        package="tiny==1.0", file=file.name, sha256=hashlib.sha256(file.read_bytes()).hexdigest(), license="MIT"
    )
    patch.setitem(fetch.MODELS, "smollm2", known)
    patch.setattr(fetch, "cache_folder", lambda: folder)
    return file
