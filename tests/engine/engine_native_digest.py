"""Run as a program: a digest of what the compiled runner draws and records in INT8, by the best set that it may use.

Without torch: weights and prompts are made of numpy's random numbers, which are the same everywhere.
"""

import hashlib
import sys
from itertools import product

import numpy as np
from engine_native_checked import ModelPart, tensors_of

from hone.engine.native.library import CACHES, NativeEngine, NativeShape, NumberKind, RunnerLibrary, load_library
from hone.engine.work import DRAW, ForwardBatch, SamplerInput

PROMPT, NEW, ROWS, PAGES = 21, 14, 5, 3


def shape_of(*, kind: NumberKind, cache: int, experts: int, head: int) -> NativeShape:
    return NativeShape(
        layers=2, hidden=72, intermediate=100, heads=6, kv_heads=2, head_dim=head, vocab=70, vocab_used=66,
        int8=int(kind == "int8"), cache=cache, norm_eps=1e-6, experts=experts,
        per_token=min(2, experts), normalise_gates=1,
    )  # fmt: skip


def draws(at: np.ndarray, uniform: np.ndarray) -> SamplerInput:
    rows = len(at)
    return SamplerInput(
        token_index=at.astype(np.int32),
        forced_token=np.full(rows, DRAW, np.int32),
        uniform=uniform,
        temperature=np.full(rows, 0.9, np.float32),
        top_k=np.zeros(rows, np.int32),
        top_p=np.full(rows, 0.95, np.float32),
        min_p=np.zeros(rows, np.float32),
        greedy=np.zeros(rows, np.bool_),
    )


def answers(native: NativeEngine, rng: np.random.Generator) -> list[np.ndarray]:
    """Tokens and log-probabilities of a prompt and of the draws after it, row by row."""
    native.reserve(ROWS * PAGES)
    every, pages = np.arange(ROWS, dtype=np.int32), np.arange(ROWS * PAGES, dtype=np.int32).reshape(ROWS, PAGES)
    found: list[np.ndarray] = []
    work = ForwardBatch(
        tokens=rng.integers(0, 66, ROWS * PROMPT).astype(np.int32),
        positions=np.tile(np.arange(PROMPT, dtype=np.int32), ROWS),
        sequence=np.repeat(every, PROMPT),
        pages=pages,
        draws=draws(every * PROMPT + PROMPT - 1, rng.random(ROWS)),
    )
    for step in range(NEW):
        drawn = native.run(work)
        found += [drawn.token, drawn.logp, drawn.sampled_logp]
        positions = np.full(ROWS, PROMPT + step, np.int32)
        after = draws(every, rng.random(ROWS))
        work = ForwardBatch(tokens=drawn.token, positions=positions, sequence=every, pages=pages, draws=after)
    return found


def digest(library: RunnerLibrary, kind: NumberKind) -> str:
    """Of both caches, with and without experts, and heads that fill no register."""
    hashed = hashlib.sha256()
    caches = [number for number, name in enumerate(CACHES) if kind == "float32" or name != "float32"]
    for number, (cache, experts, head) in enumerate(product(caches, (0, 3), (20, 64))):
        rng = np.random.default_rng(number)
        shape = shape_of(kind=kind, cache=cache, experts=experts, head=head)
        native = library.open(shape, isa=library.choose(None, kind=kind), threads=2)
        held: list[np.ndarray] = []
        native.publish(tensors_of(rng, shape, held, ModelPart(half=False, bias=True, norms=True, tied=False)))
        for array in answers(native, rng):
            assert np.isfinite(array).all()
            hashed.update(array.tobytes())
        native.close()
    return hashed.hexdigest()


def main() -> None:
    assert "torch" not in sys.modules
    library = load_library()
    kinds: tuple[NumberKind, ...] = ("int8", "float32")
    for kind in kinds:
        print(kind, library.choose(None, kind=kind), digest(library, kind))


if __name__ == "__main__":
    main()
