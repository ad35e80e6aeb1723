"""A decoder whose heads and MLP columns are cut among ranks, against the whole one in one process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, distributed

from hone.core.errors import ConfigError, DataError
from hone.core.reduction import ONE_PROCESS, Reduction
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.decoder_layer import ProcessTensorGroup, TensorGroup
from hone.models.language.expert_config import ExpertsConfig
from hone.models.language.hf_checkpoint import load_model, save_model, save_pieces
from hone.models.language.init import new_model
from hone.models.language.tensor_parallel import (
    TensorSplit,
    _load_split,
    gather_weights,
    split_decoder,
    tensor_split_faults,
)
from hone.models.language.weight_names import checkpoint_pieces
from hone.models.packing import PackedBatch, pack_rows, row_targets
from support.ranks_in_threads import on_ranks

R = TypeVar("R")
DENSE = ModelConfig(
    family="llama", vocab_size=13, max_positions=64, hidden_size=24, intermediate_size=20, layers=2, heads=4,
    head_dim=6, tie_embeddings=False, attention_bias=True, mlp_bias=True,
)  # fmt: skip
NORMED = replace(DENSE, family="qwen3", kv_heads=2, attention_bias=False, mlp_bias=False)
SHAPES = {
    "dense, biases": DENSE,
    "grouped queries": replace(DENSE, family="qwen2", kv_heads=2, attention_bias=False, mlp_bias=False),
    "tied": replace(DENSE, tie_embeddings=True, attention_bias=False, mlp_bias=False),
    "query and key norms": NORMED,
}


@dataclass(frozen=True)
class ThreadGroup:
    """A group of threads."""

    reduction: Reduction
    size: int

    @property
    def rank(self) -> int:
        return self.reduction.rank

    def gather(self, part: Tensor) -> Sequence[Tensor]:
        return [torch.from_numpy(one) for one in self.reduction.gather(part.contiguous().numpy())]

    def sum(self, part: Tensor) -> Tensor:
        first, *others = self.gather(part)
        return sum(others, start=first.clone())


@dataclass(frozen=True)
class PartResult:
    """Results of one rank, or of one process: log-probabilities, and the gradient of every parameter, joined."""

    logp: Tensor
    gradients: Mapping[str, Tensor]
    mine: Mapping[str, Tensor]
    """Gradients of the parameters as the rank holds them."""


def model_of(config: ModelConfig, dtype: str = "float64", *, checkpoint: bool = False) -> Decoder:
    """Random weights, biases and norms too."""
    model = new_model(config, seed=3, dtype=dtype, checkpoint_activations=checkpoint)
    noise = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for value in model.parameters():
            if value.ndim == 1:
                value += 0.3 * torch.randn(value.shape, generator=noise)
    return model


def some_rows(vocabulary: int) -> PackedBatch:
    draws = np.random.default_rng(2)
    return pack_rows([draws.integers(0, vocabulary, size=n).astype(np.int32) for n in (7, 3, 11, 1)])


def run_once(model: Decoder, split: TensorSplit | None = None) -> PartResult:
    packed = some_rows(model.config.vocab_size)
    targets = row_targets(packed)
    result = model.token_logprobs(model.hidden(packed)[targets.at], targets.chosen, entropy=True)
    assert result.entropy is not None
    (result.logp * torch.arange(len(result.logp)).cos() + result.entropy).sum().backward()
    mine = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    whole = mine if split is None else {name: split.join(name, grad) for name, grad in mine.items()}
    return PartResult(logp=result.logp.detach(), gradients=whole, mine=mine)


def run_split(make: Callable[[], Decoder], group: TensorGroup) -> PartResult:
    model = make()
    return run_once(model, split_decoder(model, group))


def in_threads(make: Callable[[], Decoder], ranks: int) -> list[PartResult]:
    return on_ranks(ranks, lambda reduction: run_split(make, ThreadGroup(reduction, ranks)))


def far(x: Tensor, y: Tensor) -> float:
    return float((x.double() - y.double()).norm() / y.double().norm().clamp(min=1e-300))


def check(parts: Sequence[PartResult], whole: PartResult, tolerance: float) -> None:
    for part in parts:
        assert far(part.logp, whole.logp) <= tolerance
        assert part.gradients.keys() == whole.gradients.keys()
        wrong = {name: far(grad, whole.gradients[name]) for name, grad in part.gradients.items()}
        assert {name: one for name, one in wrong.items() if one > tolerance} == {}
        for name, grad in part.mine.items():  # what is whole on every rank stays the same on every rank
            same = parts[0].mine[name]
            assert grad.shape != whole.gradients[name].shape or torch.equal(grad, same), name


@examples(10)
@given(
    family=st.sampled_from(["llama", "qwen2", "qwen3"]),
    ranks=st.integers(2, 3),
    kv_heads=st.integers(1, 2),
    share=st.integers(1, 3),
    pairs=st.integers(1, 3),
    columns=st.integers(1, 5),
    tied=st.booleans(),
    biases=st.booleans(),
    checkpoint=st.booleans(),
)
def test_gradients_are_those_of_one_process(
    family, ranks, kv_heads, share, pairs, columns, tied, biases, checkpoint
) -> None:
    config = ModelConfig(
        family=family, vocab_size=9, hidden_size=10, intermediate_size=ranks * columns, layers=2,
        heads=ranks * kv_heads * share, kv_heads=ranks * kv_heads, head_dim=2 * pairs, max_positions=32,
        tie_embeddings=tied, attention_bias=biases and family != "qwen2", mlp_bias=biases and family == "llama",
    )  # fmt: skip
    whole = run_once(model_of(config))
    check(in_threads(lambda: model_of(config, checkpoint=checkpoint), ranks), whole, 1e-12)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_single_precision_with_and_without_compiled_kernels(
    shape: str, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernels:
        monkeypatch.setenv("HONE_NATIVE", "0")
    config = SHAPES[shape]
    whole = run_once(model_of(config, "float32"))
    parts = in_threads(lambda: model_of(config, "float32"), 2)
    check(parts, whole, 5e-6)
    exact = run_once(model_of(config))
    assert far(parts[0].logp, exact.logp) < 1e-6


def on_gloo(rank: int, folder: Path, function: Callable[[TensorGroup], R]) -> R:
    """Result of `function` on one of two processes."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=60)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2, timeout=limit
    )
    try:
        assert distributed.group.WORLD is not None
        return function(ProcessTensorGroup(distributed.group.WORLD))
    finally:
        distributed.destroy_process_group()


def both_precisions(group: TensorGroup, folder: Path) -> dict[str, PartResult]:
    """Every shape in both precisions and one in mixed ones, which rank 0 saves."""
    results = {
        f"{shape}, {dtype}": run_split(partial(model_of, config, dtype), group)
        for shape, config in SHAPES.items()
        for dtype in ("float32", "float64")
    }
    model = model_of(NORMED, "float32")
    model.set_compute_dtype("bfloat16")
    split = split_decoder(model, group)
    results["mixed"] = run_once(model, split)
    whole = gather_weights(model, split)
    if group.rank == 0:
        save_pieces(whole, checkpoint_pieces(model.config), model.config.to_hf(), folder)
    return results


def other_rank(folder: Path) -> None:
    result = on_gloo(1, folder, partial(both_precisions, folder=folder))
    torch.save({name: (one.logp, dict(one.mine)) for name, one in result.items()}, folder / "other.pt")


@pytest.mark.slow  # ranks in processes are tested with their learner by default
def test_two_processes(tmp_path: Path) -> None:
    """Gloo: gradients are those of one process, the same on both where a parameter is whole; so is the saved folder."""
    other = torch.multiprocessing.get_context("spawn").Process(target=other_rank, args=(tmp_path,))
    other.start()
    results = on_gloo(0, tmp_path, partial(both_precisions, folder=tmp_path))
    other.join(300)
    assert other.exitcode == 0
    theirs = torch.load(tmp_path / "other.pt")
    for name, result in results.items():
        shape, _, dtype = name.partition(", float")
        whole = run_once(model_of(SHAPES.get(shape, NORMED), f"float{dtype or 32}"))
        logp, grads = theirs[name]
        assert torch.equal(result.logp, logp)
        check([result, replace(result, mine=grads)], whole, {"32": 5e-6, "64": 1e-12, "": 0.03}[dtype])
    whole = model_of(NORMED, "float32")
    save_model(whole, tmp_path / "whole", tokenizer_from=None)
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    loaded = load_model(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in whole.state_dict().items())


def split_of(config: ModelConfig, ranks: int, rank: int) -> TensorSplit:
    return TensorSplit(config=config, group=ThreadGroup(replace(ONE_PROCESS, rank=rank), ranks))


def test_each_fused_section_is_cut_apart() -> None:
    """Two heads of two features each for queries, keys and values: rank 1 has the second of each."""
    config = ModelConfig(family="llama", vocab_size=5, hidden_size=4, intermediate_size=6, layers=1, heads=2)
    second = split_of(config, 2, 1)
    qkv, gate_up = torch.arange(12), torch.arange(12)
    assert second.cut("layers.0.qkv.bias", qkv).tolist() == [2, 3, 6, 7, 10, 11]
    assert second.cut("decoder.layers.0.gate_up.bias", gate_up).tolist() == [3, 4, 5, 9, 10, 11]
    assert second.cut("layers.0.out.weight", torch.arange(16).view(4, 4)).tolist() == [
        [2, 3], [6, 7], [10, 11], [14, 15],
    ]  # fmt: skip
    for name in ("layers.0.out.bias", "layers.0.down.bias", "layers.0.q_norm.weight", "embedding.weight"):
        assert not second.is_cut(name)
        assert second.cut(name, torch.arange(3)).tolist() == [0, 1, 2]


def test_weights_are_joined_and_loaded_to_the_bit() -> None:
    whole, other = model_of(NORMED), new_model(NORMED, seed=8)
    others = other.double().stored_tensors()

    def rank(reduction: Reduction) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        model = model_of(NORMED)
        split = split_decoder(model, ThreadGroup(reduction, 2))
        before = gather_weights(model, split)
        _load_split(model, split, others)
        return before, gather_weights(model, split)

    for before, after in on_ranks(2, rank):
        assert all(torch.equal(before[name], value) for name, value in whole.named_parameters())
        assert all(torch.equal(after[name], value) for name, value in other.named_parameters())


def test_a_frozen_part_gets_no_gradient() -> None:
    def frozen() -> Decoder:
        model = model_of(NORMED)
        for name, value in model.named_parameters():
            value.requires_grad_("q_norm" not in name and "qkv" not in name and "embedding" not in name)
        return model

    whole = run_once(frozen())
    assert not any("q_norm" in name for name in whole.gradients) and "layers.0.k_norm.weight" in whole.gradients
    check(in_threads(frozen, 2), whole, 1e-12)


def test_what_cannot_be_cut() -> None:
    few = replace(SHAPES["grouped queries"], intermediate_size=18)
    assert list(tensor_split_faults(few, 1)) == list(tensor_split_faults(few, 2)) == []
    assert list(tensor_split_faults(few, 4)) == [
        "tensor = 4: the model has 2 key and value heads (num_key_value_heads), fewer than 4 ranks; this model can be "
        "cut among 1, 2 ranks",
        "tensor = 4: the model's MLP has 18 columns (intermediate_size), which is no multiple of 4 ranks; this model "
        "can be cut among 1, 2 ranks",
    ]
    experts = ExpertsConfig(count=4, per_token=2, width=8)
    mixture = ModelConfig(
        family="qwen3_moe", vocab_size=5, hidden_size=8, intermediate_size=8, layers=1, heads=2, experts=experts
    )
    (fault,) = tensor_split_faults(mixture, 2)
    assert "4 experts a layer" in fault and "expert parallelism is not built in" in fault
    model = new_model(few, seed=0)
    model.use_bitwise_arithmetic()
    with pytest.raises(ConfigError, match=r"(?s)fewer than 3 ranks.*to the bit"):
        split_decoder(model, split_of(few, 3, 0).group)
    assert model.tensor_group is None


def test_a_part_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    model = new_model(SHAPES["tied"], seed=0)
    split_decoder(model, split_of(model.config, 2, 1).group)
    with pytest.raises(DataError, match="part 2 of 2"):
        save_model(model, tmp_path, tokenizer_from=None)
    with pytest.raises(DataError, match="not the same bits"):
        model.use_bitwise_arithmetic()
    with pytest.raises(ConfigError, match="already cut among 2"):
        split_decoder(model, split_of(model.config, 2, 1).group)
