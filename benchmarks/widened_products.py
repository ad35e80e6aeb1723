"""bfloat16 by torch's own loops and by float32 matrices, on an x86 processor without AVX-512.

    python benchmarks/widened_products.py           three minutes
    python benchmarks/widened_products.py --quick   the cases of a second: decides nothing

One thread, CPU seconds, both ways in turns, the fastest of three rounds of each: the torch runner of a model whose
weights are bfloat16, attention by torch (no compiled kernel), and the log-probabilities of a loss. On other processors
hone widens nothing.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from unittest.mock import patch

import numpy as np
import torch
from engine_native import draws_of
from tables import Row, grow, tell
from torch import Tensor

from hone.engine.torch_runner import TorchRunner
from hone.engine.work import ForwardBatch
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.packed_attention import PackedAttention
from hone.models.language.token_logprobs import token_logprobs
from hone.models.native import library as products
from hone.models.packing import pack_rows

ROWS, CONTEXT, PROMPT, VOCAB = 16, 200, 64, 512
Passes = Callable[[], list[float]]
"""Runs each part of a case once, and returns the CPU seconds of each."""


def seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).bfloat16()


def runner_passes(width: int) -> Passes:
    """A decoding step of ROWS rows at CONTEXT tokens, and the prompts of ROWS rows."""
    config = ModelConfig(
        family="llama", vocab_size=VOCAB, hidden_size=width, intermediate_size=3 * width, layers=4, heads=width // 64
    )
    runner = TorchRunner(new_model(config, seed=0, dtype="bfloat16"), vocab_used=VOCAB)
    most = -(-CONTEXT // runner.page_tokens)
    pages = np.arange(ROWS * most, dtype=np.int32).reshape(ROWS, most)
    runner.reserve(pages.size)

    def forward(first: int, count: int) -> ForwardBatch:
        return ForwardBatch(
            tokens=np.zeros(ROWS * count, np.int32), pages=pages,
            positions=np.tile(np.arange(first, first + count, dtype=np.int32), ROWS),
            sequence=np.repeat(np.arange(ROWS, dtype=np.int32), count),
            draws=draws_of(ROWS, np.arange(1, ROWS + 1) * count - 1),
        )  # fmt: skip

    passes = forward(CONTEXT - 1, 1), forward(0, PROMPT)
    return lambda: [seconds(partial(runner.run, work)) for work in passes]


def there_and_back(forward: Callable[[], Tensor]) -> list[float]:
    """Seconds of a forward pass and of its backward pass."""
    found: list[Tensor] = []
    first = seconds(lambda: found.append(forward()))
    return [first, seconds(lambda: found[0].backward(torch.ones_like(found[0])))]


def attention_passes(tokens: int) -> Passes:
    """8 heads of 64 over 2 key heads, one text."""
    numbers = [normal(tokens, heads, 64).requires_grad_() for heads in (8, 2, 2)]
    packed = pack_rows([np.zeros(tokens, np.int32)])

    def forward() -> Tensor:
        return PackedAttention(packed, heads=8, kv_heads=2, head_dim=64, dtype=torch.bfloat16)(0, *numbers)

    return lambda: there_and_back(forward)


def logprob_passes() -> Passes:
    """256 tokens among 32,768, 256 wide."""
    hidden, weight = normal(256, 256).requires_grad_(), normal(32768, 256).requires_grad_()
    return lambda: there_and_back(lambda: token_logprobs(hidden, weight, torch.arange(256), 1.0).logp)


def cases(*, quick: bool) -> Iterator[tuple[tuple[str, str], Passes]]:
    """Names of both parts of each case, and the case."""
    for width in (256,) if quick else (256, 1024):
        model = f"torch runner, 4 layers {width:,} wide, {ROWS} rows"
        yield (f"{model}: a step at {CONTEXT} tokens", f"{model}: {PROMPT} tokens of prompt each"), runner_passes(width)
    for tokens in (512,) if quick else (512, 3000):
        attention = f"attention of {tokens:,} tokens, 8 heads of 64 on 2"
        yield (f"{attention}: forward", f"{attention}: backward"), attention_passes(tokens)
    if not quick:
        logprobs = "log-probabilities of 256 tokens among 32,768, 256 wide"
        yield (f"{logprobs}: forward", f"{logprobs}: backward"), logprob_passes()


def compared(*, quick: bool) -> Iterator[Row]:
    """Both ways of each part, in turns."""
    for names, passes in cases(quick=quick):
        best = {True: [np.inf, np.inf], False: [np.inf, np.inf]}
        for widens in (True, False) * (1 if quick else 3):
            with patch.object(products, "widens_half_products", lambda widens=widens: widens):
                best[widens] = [min(pair) for pair in zip(best[widens], passes(), strict=True)]
        for name, widened, loops in zip(names, best[True], best[False], strict=True):
            yield Row(row=name, value=widened, unit="s", peer="torch's loops", peer_value=loops, ratio=loops / widened)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    rows = compared(quick=quick)
    tell(grow("Widened products", "benchmarks/widened_products.py", rows, threads=1, quick=quick))


if __name__ == "__main__":
    main()
