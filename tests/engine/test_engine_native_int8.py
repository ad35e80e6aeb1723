"""INT8 in the compiled runner: equal bits on every instruction set, and what the codes lose."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import engine_native_cases as cases
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from hone.core.errors import ConfigError
from hone.engine.native.library import load_library
from hone.engine.native.runner import NativeRunner
from hone.native.build import LEVELS, LIMIT

LEAST = LEVELS.index("avx2")  # portable code has no fused multiply-add on an x86 processor


def digests(level: str) -> dict[str, tuple[str, str]]:
    """Kind -> instruction set and digest, of a process that may use no more than `level`."""
    program = [sys.executable, str(Path(__file__).with_name("engine_native_digest.py"))]
    told = subprocess.run(program, env={**os.environ, LIMIT: level}, capture_output=True, text=True, check=True)
    return {line.split()[0]: (line.split()[1], line.split()[2]) for line in told.stdout.splitlines()}


def test_tokens_and_log_probabilities_are_the_same_bits_on_every_instruction_set():
    """AVX2, with and without VNNI, AVX-512, with and without VNNI, and AMX, as far as this processor has them; the
    arithmetic of float32 is the same from AVX2 on, too."""
    cases.sets()
    runs = [name for name in load_library().useful_sets("int8") if LEVELS.index(name) >= LEAST]
    if len(runs) < 2:
        pytest.skip("one instruction set has nothing to be compared with")
    found = [digests(level) for level in runs]
    assert [one["int8"][0] for one in found] == runs
    for kind in ("int8", "float32"):
        assert len({one[kind][1] for one in found}) == 1, found


def coded(x: Tensor, most: int) -> Tensor:
    """The nearest whole multiple of the row's largest magnitude / `most`."""
    scale = x.abs().amax(dim=-1, keepdim=True).double() / most
    return torch.where(scale > 0, (x.double() / scale).round() * scale, 0.0)


def coded_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The slow version of a layer: codes of tokens times codes of output features, in float64."""
    return functional.linear(coded(x, 127), coded(weight, 127), None if bias is None else bias.double()).float()


def attention(cache: str, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention over one text, of keys and values as they are kept."""
    del layer
    keep = partial(coded, most=127) if cache == "int8" else torch.Tensor.bfloat16
    q, k, v = (x.double().transpose(0, 1)[None] for x in (query, keep(key).float(), keep(value).float()))
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return mixed[0].transpose(0, 1).flatten(1).float()


@pytest.mark.parametrize("cache", ["bfloat16", "int8"])
@pytest.mark.parametrize(("family", "numbers"), [("qwen3", {}), ("llama", {"attention_bias": True, "mlp_bias": True})])
def test_the_codes_are_those_of_a_slow_version(family, numbers, cache):
    """Log-probabilities of a forward pass with coded layers and keys; the head's 16 bits lose next to nothing."""
    model = cases.model_of(family, **numbers)
    (tokens,) = cases.texts(33, [60])
    text = torch.from_numpy(tokens).long()
    with torch.no_grad():
        hidden = model.run(text, torch.arange(60), partial(attention, cache), coded_linear)
        logp = model.logits(hidden, functional.linear).log_softmax(-1)[:-1].gather(1, text[1:, None])[:, 0].numpy()
    runner = cases.runner_of(model, dtype="int8", cache=cache)
    found = cases.scored(runner, [tokens]).logp
    lost = np.abs(found - cases.by_the_trainer(model, [tokens])).mean()
    assert 3e-3 < lost < 4e-2
    assert np.abs(found - logp).mean() < lost / 4  # rounding in float32 makes other codes of a few numbers


@pytest.mark.parametrize(("dtype", "cache", "worst"), [("float32", "int8", 0.02), ("bfloat16", "int8", 0.02)])
def test_other_runners_may_keep_keys_in_int8(dtype, cache, worst):
    model = cases.model_of()
    sequences = cases.texts(33, [3, 40, 70])
    runner = cases.runner_of(model, dtype=dtype, cache=cache)
    lost = np.abs(cases.scored(runner, sequences).logp - cases.by_the_trainer(model, sequences))
    assert 1e-4 < lost.mean() < worst
    assert runner.page_bytes == 2 * 2 * 16 * (2 * 32 + 2 * 4)  # layers, key heads, tokens: codes and scales


def test_names_and_refusals():
    model = cases.model_of()
    runner = cases.runner_of(model, dtype="int8")
    assert runner.name == f"native int8 ({cases.sets('int8')[-1]})"
    assert cases.runner_of(model, dtype="int8", cache="int8").name == f"native int8, cache int8 ({runner.isa})"
    for dtype in ("int8", "bfloat16"):
        with pytest.raises(ConfigError, match=f"a runner in {dtype} keeps keys and values in bfloat16 or int8"):
            NativeRunner(model, vocab_used=33, threads=1, dtype=dtype, cache="float32")


def test_a_model_in_bfloat16_keeps_its_embedding():
    """The same weights, in float32 and in bfloat16, have the same codes."""
    half = cases.model_of(dtype="bfloat16")
    sequences = cases.texts(33, [20, 30])
    whole = cases.model_of(dtype="bfloat16").float()
    found = [cases.scored(cases.runner_of(model, dtype="int8"), sequences).logp for model in (half, whole)]
    assert np.array_equal(*found)


def test_rows_of_zeros_and_what_is_not_a_number():
    model = cases.model_of()
    with torch.no_grad():
        model.layers[0].down.weight.zero_()
        model.layers[1].qkv.weight.zero_()
    sequences = cases.texts(33, [9, 40])
    for cache in ("bfloat16", "int8"):
        for isa in cases.sets("int8"):
            runner = cases.runner_of(model, dtype="int8", cache=cache, isa=isa)
            lost = np.abs(cases.scored(runner, sequences).logp - cases.by_the_trainer(model, sequences))
            assert lost.mean() < 0.04, isa
    with torch.no_grad():
        model.layers[1].down.weight[3, 7] = torch.nan
    for isa in cases.sets("int8"):
        assert np.isnan(cases.scored(cases.runner_of(model, dtype="int8", isa=isa), sequences).logp).all(), isa
