"""Models, passes and answers that the tests of the compiled runner share."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from hone.engine.native import library
from hone.engine.native.runner import NativeRunner
from hone.engine.work import DRAW, ForwardBatch, SamplerInput, SamplerOutput
from hone.models.language.config import ModelConfig, RopeConfig
from hone.models.language.decoder import Decoder
from hone.models.language.init import new_model
from hone.models.packing import pack_rows

SMALL = {"vocab_size": 33, "hidden_size": 40, "intermediate_size": 50, "layers": 2, "heads": 4, "kv_heads": 2}
"""Nothing here is a multiple of a register."""


def sets(kind: library.NumberKind = "float32") -> list[str]:
    """The instruction sets that have something of their own for `kind`; skips where nothing can be built."""
    reason = library.unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    return list(library.load_library().useful_sets(kind))


def model_of(family: str = "qwen3", *, dtype: str = "float32", seed: int = 1, **numbers) -> Decoder:
    """A model whose norms and biases are not what they are born with."""
    model = new_model(ModelConfig(family=family, **{**SMALL, **numbers}), seed=seed, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator).to(parameter.dtype))
    return model


def runner_of(
    model: Decoder,
    *,
    isa: str | None = None,
    threads: int = 2,
    vocab: int | None = None,
    dtype: library.NumberKind | None = None,
    cache: library.CacheKind | None = None,
) -> NativeRunner:
    sets()
    used = vocab or model.config.vocab_size
    runner = NativeRunner(model, vocab_used=used, threads=threads, isa=isa, dtype=dtype, cache=cache)
    runner.publish()
    return runner


def draws_of(
    at, given=None, uniform=None, *, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, greedy=False, allowed=None
) -> SamplerInput:
    """Settings are numbers for all draws, or one for each."""
    rows = len(at)
    return SamplerInput(
        token_index=np.asarray(at, np.int32),
        forced_token=np.full(rows, DRAW, np.int32) if given is None else np.asarray(given, np.int32),
        uniform=np.zeros(rows) if uniform is None else np.asarray(uniform, np.float64),
        temperature=np.broadcast_to(np.float32(temperature), rows).copy(),
        top_k=np.broadcast_to(np.int32(top_k), rows).copy(),
        top_p=np.broadcast_to(np.float32(top_p), rows).copy(),
        min_p=np.broadcast_to(np.float32(min_p), rows).copy(),
        greedy=np.broadcast_to(np.bool_(greedy), rows).copy(),
        allowed=None if allowed is None else np.broadcast_to(np.packbits(allowed, bitorder="little"), (rows, 5)).copy(),
    )


def pages_for(lengths: Sequence[int], page_tokens: int, order: np.ndarray | None = None) -> np.ndarray:
    """`[B, most]`; `order` gives the pages other numbers."""
    most = max(1, -(-max(lengths) // page_tokens))
    pages = np.arange(len(lengths) * most, dtype=np.int32)
    return (pages if order is None else order[: len(pages)].astype(np.int32)).reshape(len(lengths), most)


def whole(sequences: Sequence[np.ndarray], pages: np.ndarray, *, temperature: float = 1.0) -> ForwardBatch:
    """One pass that scores every token but the first of each sequence."""
    offsets = np.cumsum([0, *(len(tokens) for tokens in sequences)])
    at = [offset + np.arange(len(tokens) - 1) for offset, tokens in zip(offsets, sequences, strict=False)]
    given = np.concatenate([tokens[1:] for tokens in sequences])
    return ForwardBatch(
        tokens=np.concatenate(sequences).astype(np.int32),
        positions=np.concatenate([np.arange(len(tokens)) for tokens in sequences]).astype(np.int32),
        sequence=np.repeat(np.arange(len(sequences)), [len(tokens) for tokens in sequences]).astype(np.int32),
        pages=pages,
        draws=draws_of(np.concatenate(at), given, temperature=temperature),
    )


def scored(runner: NativeRunner, sequences: Sequence[np.ndarray], *, temperature: float = 1.0) -> SamplerOutput:
    pages = pages_for([len(tokens) for tokens in sequences], runner.page_tokens)
    runner.reserve(pages.size)
    return runner.run(whole(sequences, pages, temperature=temperature))


def by_the_trainer(
    model: Decoder, sequences: Sequence[np.ndarray], *, temperature: float = 1.0, vocab: int | None = None
) -> np.ndarray:
    """The same log-probabilities by the model's own forward."""
    work = whole(sequences, np.zeros((len(sequences), 1), np.int32))
    with torch.no_grad():
        hidden = model.hidden(pack_rows([tokens.astype(np.int32) for tokens in sequences]))
        chosen = torch.from_numpy(work.draws.forced_token).long()
        told = model.token_logprobs(
            hidden[torch.from_numpy(work.draws.token_index).long()], chosen, temperature, vocab_size_used=vocab
        )
    return told.logp.float().numpy()


def texts(vocab: int, lengths: Sequence[int], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, vocab, length).astype(np.int32) for length in lengths]


LLAMA3 = RopeConfig(theta=5e5, kind="llama3", factor=8.0, original_max_positions=64)
LINEAR = RopeConfig(kind="linear", factor=2.0)
YARN = RopeConfig(theta=500.0, kind="yarn", factor=4.0, original_max_positions=16)
MINISTRAL = replace(YARN, query_beta=0.5, mscale=1.0, mscale_all_dim=1.0)


def with_top(draws: SamplerInput, counts: Sequence[int]) -> SamplerInput:
    """The same draws, with the likeliest tokens of each."""
    return replace(draws, top_logprobs=np.asarray(counts, np.int32))
