"""One CUDA device: generation and training steps beside transformers and beside what the device can do.

    python benchmarks/gpu.py            everything, about four minutes
    python benchmarks/gpu.py --quick    model S, few tokens: decides nothing

Weights are random; shapes S and M of the other benchmarks, and `half`, the shape of Qwen2.5-0.5B. Generation: prompts
of 16 to 64 tokens, ragged answers of up to 256, the same lengths in both libraries, in bfloat16. Its floor: the bytes
of the weights and of the keys and values in use, read once a step, over the measured bandwidth. Training: forward and
backward passes over the same rows in bfloat16; its floor: operations over the measured rate of products. The peer runs
in its best variant of those tried. All repetitions run in this process; medians.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from chains import SHAPES
from tables import Row, grow, tell
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, StoppingCriteria, StoppingCriteriaList

from hone.core.generation import Request, SamplingParams, generate
from hone.core.random import generator
from hone.engine.engine import EmbeddedEngine
from hone.engine.open_engine import choose_runner
from hone.engine.protocol import RunnerKind
from hone.engine.scheduler import CUDA_PASS_TOKENS, default_limits
from hone.engine.session import TokenizerRules
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.init import new_model
from hone.models.packing import pack_rows, row_targets

HALF = {
    "hidden_size": 896, "intermediate_size": 4864, "layers": 24, "heads": 14, "kv_heads": 2, "head_dim": 64,
}  # fmt: skip
VOCABULARY = {"S": 64, "M": 64, "half": 151936}
MOST = 256
RUNNERS: tuple[RunnerKind, ...] = ("auto", "torch_compiled")


def config_of(shape: str) -> ModelConfig:
    """Of the family of Llama for the small ones, of Qwen2 for `half`."""
    family = "qwen2" if shape == "half" else "llama"
    sizes = HALF if shape == "half" else SHAPES[shape]
    return ModelConfig(family=family, vocab_size=VOCABULARY[shape], max_positions=2048, **sizes)


def seconds_of(work: Callable[[], object], repetitions: int) -> float:
    """Median seconds of `work`, after one that is not counted."""
    found: list[float] = []
    for _ in range(repetitions + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - begin)
    return statistics.median(found[1:])


def device_rates() -> tuple[float, float]:
    """Products of bfloat16 in operations a second, and bytes a second of a copy (read and written)."""
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    products = 2 * 8192**3 / seconds_of(lambda: a @ b, 10)
    source, target = (torch.empty(1 << 31, dtype=torch.uint8, device="cuda") for _ in range(2))
    return products, 2 * source.numel() / seconds_of(lambda: target.copy_(source), 10)


def asked(requests: int, vocabulary: int) -> tuple[list[list[int]], list[int]]:
    """Prompts, and how many tokens are drawn after each: an exponential with a long tail, as answers are."""
    random = generator(0, "prompts")
    prompts = [random.integers(3, vocabulary, int(random.integers(16, 65))).tolist() for _ in range(requests)]
    return prompts, np.clip(random.exponential(MOST / 3, requests), 8, MOST).astype(int).tolist()


def engine_of(model: Decoder, slots: int, runner: RunnerKind) -> EmbeddedEngine:
    vocabulary = model.config.vocab_size
    chosen = choose_runner(runner, model, vocab_used=vocabulary)
    limits = default_limits(
        slots=slots, page_tokens=chosen.runner.page_tokens, sequence_tokens=64 + MOST, vocab=vocabulary,
        pass_tokens=CUDA_PASS_TOKENS,
    )  # fmt: skip
    engine = EmbeddedEngine(chosen, TokenizerRules(decode=None, eos=(), vocab=vocabulary), limits=limits, seed=0)
    engine.publish(1)
    return engine


def hone_generation(model: Decoder, requests: int, slots: int, runner: RunnerKind) -> dict[str, float]:
    engine = engine_of(model, slots, runner)
    prompts, wanted = asked(requests, model.config.vocab_size)
    rows = [
        Request(
            id=str(place),
            prompt=np.array(prompt, np.int32),
            samples=1,
            sampling=SamplingParams(max_tokens=count),
            expected_tokens=count,
        )
        for place, (prompt, count) in enumerate(zip(prompts, wanted, strict=True))
    ]
    numbers = iter(range(100))
    seconds = seconds_of(lambda: list(generate(engine, rows, round=next(numbers))), 3)
    stats = engine.stats
    return {
        "tokens_per_s": sum(wanted) / seconds,
        "steps": stats.steps,
        "step_ms": 1e3 * seconds / stats.steps,
        "runner_share": stats.runner_s / stats.total_s,
        "mean_rows": stats.row_steps / stats.steps,
    }


def transformers_generation(shape: str, requests: int, variant: dict[str, Any]) -> dict[str, float]:
    model = AutoModelForCausalLM.from_config(
        hf_config(shape), dtype=torch.bfloat16, attn_implementation=variant["attention"]
    ).cuda()
    model.generation_config.eos_token_id = None
    prompts, counts = asked(requests, VOCABULARY[shape])
    wanted, longest = torch.tensor(counts).cuda(), max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(one)) + one for one in prompts]).cuda()
    mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts]).cuda()

    class Enough(StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **_more: Any) -> Any:  # noqa: ANN401, ARG002
            return input_ids.shape[1] - longest >= wanted

    def run() -> None:
        # Its log-probabilities need the logits of all steps at once: with a large vocabulary they do not fit, and it is
        # spared them.
        told = requests * MOST * VOCABULARY[shape] < 1 << 31
        out = model.generate(
            ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=int(wanted.max()), pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([Enough()]), output_logits=told, return_dict_in_generate=True,
        )  # fmt: skip
        if told:
            model.compute_transition_scores(out.sequences, out.logits, normalize_logits=True)

    return {"tokens_per_s": sum(counts) / seconds_of(run, 1)}


def hf_config(shape: str) -> Any:  # noqa: ANN401
    c = config_of(shape)
    return (Qwen2Config if shape == "half" else LlamaConfig)(
        vocab_size=c.vocab_size, hidden_size=c.hidden_size, intermediate_size=c.intermediate_size,
        num_hidden_layers=c.layers, num_attention_heads=c.heads, num_key_value_heads=c.kv_heads,
        max_position_embeddings=2048, tie_word_embeddings=True,
    )  # fmt: skip


def rows_of(shape: str, count: int, length: int) -> list[np.ndarray]:
    """Ragged rows: lengths from half to all of `length`."""
    random = generator(1, "rows")
    return [
        random.integers(0, VOCABULARY[shape], int(random.integers(length // 2, length + 1))).astype(np.int32)
        for _ in range(count)
    ]


def hone_training(model: Decoder, rows: list[np.ndarray]) -> float:
    packed = pack_rows(rows, device="cuda")
    targets = row_targets(packed)

    def run() -> None:
        hidden = model.hidden(packed)
        (-model.token_logprobs(hidden[targets.at], targets.chosen).logp.sum()).backward()
        model.zero_grad(set_to_none=True)

    return seconds_of(run, 5)


def transformers_training(shape: str, rows: list[np.ndarray], attention: str) -> float:
    model = AutoModelForCausalLM.from_config(
        hf_config(shape), dtype=torch.float32, attn_implementation=attention
    ).cuda()
    longest = max(map(len, rows))
    ids = torch.tensor(np.stack([np.pad(one, (0, longest - len(one))) for one in rows])).long().cuda()
    mask = torch.tensor(np.stack([np.arange(longest) < len(one) for one in rows])).long().cuda()
    labels = torch.where(mask.bool(), ids, -100)

    def run() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        model.zero_grad(set_to_none=True)

    return seconds_of(run, 5)


def generation_rows(shape: str, requests: int, slots: int, bandwidth: float, *, quick: bool) -> list[Row]:
    config = config_of(shape)
    model = new_model(config, seed=0).to("cuda", torch.bfloat16)
    weights = 2 * sum(p.numel() for p in model.parameters())
    ours = {name: hone_generation(model, requests, slots, name) for name in RUNNERS}
    best = max(ours.values(), key=lambda one: one["tokens_per_s"])
    keys = 2 * 2 * config.layers * config.kv_heads * config.head_dim * (40 + MOST / 6) * best["mean_rows"]
    floor_ms = 1e3 * (weights + keys) / (bandwidth / 2)
    variants = [{"attention": "sdpa"}] if quick or shape == "half" else [{"attention": "sdpa"}, {"attention": "eager"}]
    theirs = {json.dumps(one): transformers_generation(shape, requests, one)["tokens_per_s"] for one in variants}
    peer = max(theirs, key=lambda name: theirs[name])
    print(shape, requests, slots, ours, theirs, f"floor {floor_ms:.3f} ms a step", file=sys.stderr, flush=True)
    return [
        Row(
            row=f"generation {shape}, {requests} answers, {slots} slots, bfloat16",
            value=best["tokens_per_s"],
            unit="tokens/s",
            seeds=3,
            peer=f"transformers, {peer}",
            peer_value=theirs[peer],
            ratio=best["tokens_per_s"] / theirs[peer],
        ),
        Row(
            row=f"generation {shape}, {requests} answers, {slots} slots: step over its floor",
            value=best["step_ms"] / floor_ms,
            unit="times",
            seeds=3,
        ),
    ]


def training_rows(shape: str, count: int, length: int, products: float) -> list[Row]:
    model = new_model(config_of(shape), seed=0).to("cuda")
    model.set_compute_dtype("bfloat16")
    rows = rows_of(shape, count, length)
    tokens = sum(map(len, rows))
    ours = hone_training(model, rows)
    size = sum(p.numel() for p in model.parameters())
    theirs = min(transformers_training(shape, rows, attention) for attention in ("sdpa",))
    rate = 6 * size * tokens / ours / products
    print(shape, count, length, tokens, ours, theirs, rate, file=sys.stderr, flush=True)
    name = f"training pass {shape}, {count} rows of {length // 2} to {length} tokens, bfloat16"
    return [
        Row(
            row=name,
            value=tokens / ours,
            unit="tokens/s",
            seeds=5,
            peer="transformers, sdpa, autocast",
            peer_value=tokens / theirs,
            ratio=theirs / ours,
        ),
        Row(row=f"{name}: share of the rate of products", value=rate, unit="", seeds=5),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure generation and training on a CUDA device.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=["generation", "training"])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("benchmarks/gpu.py measures a CUDA device, and torch finds none here; nothing was measured")
    products, bandwidth = device_rates()
    print(f"{products / 1e12:.0f} TFLOP/s, {bandwidth / 1e12:.2f} TB/s", file=sys.stderr, flush=True)
    cases = (
        [("S", 64, 64)] if options.quick else [("S", 256, 256), ("M", 256, 256), ("half", 256, 256), ("half", 64, 64)]
    )
    texts = [("S", 64, 128)] if options.quick else [("M", 256, 128), ("half", 64, 256), ("half", 16, 1024)]

    def rows() -> Iterator[Row]:
        for case in texts if options.only != "generation" else []:
            yield from training_rows(*case, products)
        for case in cases if options.only != "training" else []:
            yield from generation_rows(*case, bandwidth, quick=options.quick)

    device = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    tell(grow(f"One GPU: {device}", "benchmarks/gpu.py", rows(), threads=1, quick=options.quick))


if __name__ == "__main__":
    main()
