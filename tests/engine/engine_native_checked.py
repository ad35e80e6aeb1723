"""Run as a program under the sanitizers: random models and passes against the checked build, without torch."""

import sys
from dataclasses import dataclass

import numpy as np

from hone.engine.native.library import (
    ISA_NAMES,
    NativeEngine,
    NativeShape,
    NativeTensor,
    RunnerLibrary,
    build,
    load_library,
)
from hone.engine.work import DRAW, ForwardBatch, SamplerInput


def tensor(rng: np.random.Generator, held: list[np.ndarray], *, size: int, half: bool) -> NativeTensor:
    values = rng.standard_normal(size).astype(np.float32)
    array = (values.view(np.uint32) >> 16).astype(np.uint16) if half else values
    held.append(array)
    return NativeTensor(array.ctypes.data, size, int(half))


@dataclass(frozen=True)
class ModelPart:
    """Which tensors a model has, and in what."""

    half: bool
    bias: bool
    norms: bool
    tied: bool
    after: bool = False
    tables: int = 1


def tensors_of(
    rng: np.random.Generator, shape: NativeShape, held: list[np.ndarray], part: ModelPart
) -> list[NativeTensor]:
    """Random weights in the order of abi.h; `held` keeps them in memory."""
    none = NativeTensor(None, 0, 0)

    def new(size: int, *, there: bool = True) -> NativeTensor:
        return tensor(rng, held, size=size, half=part.half) if there else none

    if shape.bits:
        return coded_tensors_of(rng, shape, held, part)
    d, qkv = shape.hidden, (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    copies = max(1, shape.experts)
    tensors = [new(shape.vocab * d), new(d), new(shape.vocab * d, there=not part.tied)]
    tensors.append(tensor(rng, held, size=part.tables * (shape.head_dim // 2), half=False))
    tensors += [none, none, none]
    if part.tables > 1:
        windows, tables = rng.integers(0, 40, shape.layers), rng.integers(0, part.tables, shape.layers)
        held += [column.astype(np.float32) for column in (windows, tables)]
        tensors[-2:] = [NativeTensor(column.ctypes.data, column.size, 0) for column in held[-2:]]
    for _ in range(shape.layers):
        tensors += [new(d), new(qkv * d), new(qkv, there=part.bias)]
        tensors += [new(shape.head_dim, there=part.norms), new(shape.head_dim, there=part.norms)]
        tensors += [new(d * shape.heads * shape.head_dim), new(d, there=part.bias), new(d)]
        bias = part.bias and not shape.experts
        tensors += [new(copies * 2 * shape.intermediate * d), new(2 * shape.intermediate, there=bias)]
        tensors += [new(copies * d * shape.intermediate), new(d, there=bias)]
        tensors += [new(shape.experts * d, there=shape.experts > 0), none]
        tensors += [new(d, there=part.after), new(d, there=part.after), *[none] * 8]
    return tensors


def coded_tensors_of(
    rng: np.random.Generator, shape: NativeShape, held: list[np.ndarray], part: ModelPart
) -> list[NativeTensor]:
    """The same in blocks of codes, with low-rank updates of some layers."""
    none = NativeTensor(None, 0, 0)

    def new(size: int, *, there: bool = True) -> NativeTensor:
        return tensor(rng, held, size=size, half=False) if there else none

    def blocks(outputs: int, inputs: int, *, there: bool = True) -> NativeTensor:
        codes = rng.integers(0, 256, (-(-outputs // 32), inputs // 32, 128 * shape.bits), np.uint8)
        scales = (0.01 * rng.standard_normal((*codes.shape[:2], 32))).astype(np.float16).view(np.uint8)
        held.append(np.concatenate((codes, scales), axis=2))
        return NativeTensor(held[-1].ctypes.data, held[-1].size, 0) if there else none

    d, queries, inner = shape.hidden, shape.heads * shape.head_dim, shape.intermediate
    qkv = queries + 2 * shape.kv_heads * shape.head_dim
    tensors = [blocks(shape.vocab, d), new(d), blocks(shape.vocab, d, there=not part.tied), new(shape.head_dim // 2)]
    for _ in range(shape.layers):
        tensors += [new(d), blocks(qkv, d), new(qkv, there=part.bias)]
        tensors += [new(shape.head_dim, there=part.norms), new(shape.head_dim, there=part.norms)]
        tensors += [blocks(d, queries), new(d, there=part.bias), new(d)]
        tensors += [blocks(2 * inner, d), new(2 * inner, there=part.bias)]
        tensors += [blocks(d, inner), new(d, there=part.bias), none, none]
        for outputs, inputs in ((qkv, d), (d, queries), (2 * inner, d), (d, inner)):
            rank, there = int(rng.integers(1, 40)), rng.random() < 0.7
            tensors += [new(rank * inputs, there=there), new(outputs * rank, there=there)]
    return tensors


def engine(
    library: RunnerLibrary, rng: np.random.Generator, isa: str
) -> tuple[NativeEngine, NativeShape, list[np.ndarray]]:
    """An engine, its shape, and its blocks, which it reads in place."""
    heads_of_key, kv_heads = int(rng.integers(1, 8)), int(rng.integers(1, 4))
    shape = NativeShape(
        layers=int(rng.integers(1, 3)),
        hidden=int(rng.integers(1, 80)),
        intermediate=int(rng.integers(1, 90)),
        heads=heads_of_key * kv_heads,
        kv_heads=kv_heads,
        head_dim=2 * int(rng.integers(1, 65)),
        vocab=int(rng.integers(4, 150)),
        bfloat16=int(rng.random() < 0.5 or isa in ("avx512_bf16", "amx")),
        int8=int(rng.random() < 0.4 or isa in ("avx_vnni", "avx512_vnni")),
        cache=int(rng.integers(1, 3)),
        norm_eps=1e-6,
    )
    if rng.random() < 0.5:
        shape.centred, shape.parallel, shape.gelu = (int(coin) for coin in rng.random(3) < 0.5)
        shape.query_original, shape.query_beta, shape.score_cap, shape.logit_cap = 9, 0.5, 5.0, 3.0
        shape.embedding_factor, shape.residual_factor = 2.0, 0.5
    if rng.random() < 0.3:
        shape.bits = int(rng.choice([4, 8]))
        shape.hidden, shape.intermediate = 32 * int(rng.integers(1, 4)), 32 * int(rng.integers(1, 4))
        shape.head_dim = 32 * int(rng.integers(1, 3))
    shape.vocab_used = int(rng.integers(3, shape.vocab + 1))
    part = ModelPart(*(bool(coin) for coin in rng.random(5) < 0.5), tables=int(rng.integers(1, 4)))
    held: list[np.ndarray] = []
    tensors = tensors_of(rng, shape, held, part)
    native = library.open(shape, isa=isa, threads=int(rng.integers(1, 4)))
    native.publish(tensors)
    return native, shape, held if shape.bits else []


def adapters_in(native: NativeEngine, rng: np.random.Generator, shape: NativeShape) -> list[int]:
    """-1, and the slots of some adapters where the engine has them."""
    if shape.bits or shape.int8 or shape.bfloat16 or shape.experts:
        return [-1]
    none, slots = NativeTensor(None, 0, 0), [-1, 0, 5]
    d, queries, inner = shape.hidden, shape.heads * shape.head_dim, shape.intermediate
    qkv = queries + 2 * shape.kv_heads * shape.head_dim
    layer = ((qkv, d), (d, queries), (2 * inner, d), (d, inner))
    for slot in slots[1:]:
        held: list[np.ndarray] = []
        pairs = []
        for outputs, inputs in (*layer * shape.layers, (shape.vocab, d)):
            rank, there = int(rng.integers(1, 40)), rng.random() < 0.7
            sizes = (rank * inputs, outputs * rank)
            pairs += [tensor(rng, held, size=size, half=False) if there else none for size in sizes]
        native.adapt(slot, pairs)
    native.adapt(9, [])
    return slots


def work_of(rng: np.random.Generator, shape: NativeShape, *, most: int, pages: int) -> ForwardBatch:
    rows = int(rng.integers(1, 6))
    starts, counts = rng.integers(0, 8 * most, rows), rng.integers(1, 8 * most, rows)
    total = int(counts.sum())
    draws = int(rng.integers(0, 40))

    def of(choices: list[float], kind: type) -> np.ndarray:
        return rng.choice(choices, draws).astype(kind)

    return ForwardBatch(
        tokens=rng.integers(0, shape.vocab, total).astype(np.int32),
        positions=np.concatenate([s + np.arange(n) for s, n in zip(starts, counts, strict=True)]).astype(np.int32),
        sequence=np.repeat(np.arange(rows), counts).astype(np.int32),
        pages=rng.permutation(pages)[: rows * most].reshape(rows, most).astype(np.int32),
        draws=SamplerInput(
            token_index=rng.integers(0, total, draws).astype(np.int32),
            forced_token=rng.integers(DRAW, shape.vocab_used, draws).astype(np.int32),
            uniform=rng.random(draws),
            temperature=of([0.1, 1.0, 3.0], np.float32),
            top_k=of([0, 1, 5, 1000], np.int32),
            top_p=of([0.0, 0.5, 1.0], np.float32),
            min_p=of([0.0, 0.1, 2.0], np.float32),
            greedy=of([0, 1], np.bool_),
        ),
    )


def main() -> None:
    assert "torch" not in sys.modules
    library = load_library(build(checked=True).path)
    for number in range(60):
        rng = np.random.default_rng(number)
        isa = ISA_NAMES[number % len(ISA_NAMES)]
        if isa not in library.instruction_sets():
            continue
        native, shape, blocks = engine(library, rng, isa)
        native.reserve(40)
        adapted = adapters_in(native, rng, shape)
        for _ in range(3):
            work = work_of(rng, shape, most=int(rng.integers(1, 7)), pages=40)
            slots = rng.choice(adapted, len(work.pages)).astype(np.int32) if len(adapted) > 1 else None
            drawn = native.run(work, slots)
            assert ((drawn.token >= 0) & (drawn.token < shape.vocab_used)).all()
            native.copy(np.asarray([0, 39], np.int32), np.asarray([39, 5], np.int32))
        native.close()
        del blocks  # they were read until now
    print("ok")


if __name__ == "__main__":
    main()
