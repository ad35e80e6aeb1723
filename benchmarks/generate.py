"""Generation beside transformers and vLLM: the same weights, prompts and forced lengths on the same machine.

    python benchmarks/generate.py             everything, about twenty minutes on two cores
    python benchmarks/generate.py --quick     model S, few requests, no vLLM: decides nothing
    python benchmarks/generate.py --only S    one model

Prompts of 16 to 32 tokens, ragged answers of up to 128 (exponential, long tail), the same length for the same request
in every engine; nothing ends an answer before. Log-probabilities of the drawn tokens are asked for everywhere. Every
measurement is a process of its own; engines alternate; a warm-up of the whole batch comes first. Figures are drawn
tokens per second: medians over repetitions, ratios pair by pair. Peers run at the best of the settings in `VARIANTS`.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from chains import SHAPES, fresh, lengths
from peers import require_peer
from tables import Row, grow, tell

from hone.core.generation import Request, SamplingParams, generate
from hone.core.random import generator
from hone.engine.engine import EmbeddedEngine
from hone.engine.open_engine import choose_runner
from hone.engine.scheduler import default_limits
from hone.engine.session import TokenizerRules
from hone.models.language.hf_checkpoint import load_model

HERE = Path(__file__).resolve().parent
THREADS = 2
MOST = 128
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "transformers": [{"attention": "sdpa"}, {"attention": "eager"}],
    "vllm": [{"eager": False}, {"eager": True}],
}
BARS = {("S", "transformers"): 10.0, ("S", "vllm"): 4.0, ("M", "transformers"): 5.0, ("M", "vllm"): 2.0}
CASES = [
    ("S", 64, "float32"),
    ("S", 256, "float32"),
    ("S", 64, "bfloat16"),
    ("M", 64, "float32"),
    ("M", 64, "bfloat16"),
]


def work(requests: int) -> tuple[list[list[int]], list[int]]:
    """Prompts, and how many tokens are to be drawn after each."""
    random = generator(0, "prompts")
    prompts = [random.integers(3, 35, int(random.integers(16, 33))).tolist() for _ in range(requests)]
    return prompts, lengths(requests, most=MOST, seed=1).tolist()


def hone_speed(shape: str, requests: int, kind: str, options: dict[str, Any]) -> dict[str, float]:
    torch.set_num_threads(THREADS)
    model = load_model(fresh(shape), dtype=kind)
    vocab = model.config.vocab_size
    chosen = choose_runner(options.get("runner", "auto"), model, vocab_used=vocab)
    limits = default_limits(
        slots=options.get("slots", min(requests, 128)),
        page_tokens=chosen.runner.page_tokens,
        sequence_tokens=32 + MOST,
        vocab=vocab,
    )
    engine = EmbeddedEngine(chosen, TokenizerRules(decode=None, eos=(), vocab=vocab), limits=limits, seed=0)
    engine.publish(1)
    prompts, wanted = work(requests)
    asked = [
        Request(
            id=str(place),
            prompt=np.array(prompt, np.int32),
            samples=1,
            sampling=SamplingParams(max_tokens=count),
            expected_tokens=count,
        )
        for place, (prompt, count) in enumerate(zip(prompts, wanted, strict=True))
    ]
    for number in range(2):
        begin = time.perf_counter()
        drawn = sum(len(one.tokens) for one in generate(engine, asked, round=number))
        seconds = time.perf_counter() - begin
    assert drawn == sum(wanted)
    return {"tokens_per_s": drawn / seconds, "runner_share": engine.stats.runner_s / engine.stats.total_s}


TRANSFORMERS = """
import json, sys, time, torch
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList
asked = json.loads(sys.argv[1])
torch.set_num_threads(asked["threads"])
model = AutoModelForCausalLM.from_pretrained(
    asked["model"], dtype=asked["kind"], attn_implementation=asked["attention"])
model.generation_config.eos_token_id = None
prompts, wanted = asked["prompts"], torch.tensor(asked["wanted"])
longest = max(map(len, prompts))
ids = torch.tensor([[0] * (longest - len(one)) + one for one in prompts])
mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])
class Enough(StoppingCriteria):
    def __call__(self, input_ids, scores, **more):
        return input_ids.shape[1] - longest >= wanted
for _ in range(2):
    begin = time.perf_counter()
    out = model.generate(ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=int(wanted.max()),
        pad_token_id=0, stopping_criteria=StoppingCriteriaList([Enough()]), output_logits=True,
        return_dict_in_generate=True)
    logp = model.compute_transition_scores(out.sequences, out.logits, normalize_logits=True)
    seconds = time.perf_counter() - begin
print(json.dumps({"tokens_per_s": int(wanted.sum()) / seconds}))
"""
VLLM_PROGRAM = """
import json, os, sys, time
asked = json.loads(sys.argv[1])
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    model = LLM(asked["model"], dtype=asked["kind"], max_model_len=256, enforce_eager=asked["eager"], seed=0,
        max_num_seqs=128, enable_prefix_caching=False, disable_log_stats=True)
    prompts = [{"prompt_token_ids": one} for one in asked["prompts"]]
    params = [SamplingParams(max_tokens=n, ignore_eos=True, temperature=1.0, logprobs=0, detokenize=False)
              for n in asked["wanted"]]
    for _ in range(2):
        begin = time.perf_counter()
        out = model.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - begin
    drawn = sum(len(one.outputs[0].token_ids) for one in out)
    assert drawn == sum(asked["wanted"]), (drawn, sum(asked["wanted"]))
    print(json.dumps({"tokens_per_s": drawn / seconds}))
"""


def peer_speed(peer: str, shape: str, requests: int, kind: str, variant: dict[str, Any]) -> dict[str, float]:
    prompts, wanted = work(requests)
    asked = {"model": str(fresh(shape)), "kind": kind, "prompts": prompts, "wanted": wanted, "threads": THREADS}
    python = sys.executable if peer == "transformers" else str(require_peer("vllm"))
    program = TRANSFORMERS if peer == "transformers" else VLLM_PROGRAM
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_OMP_THREADS_BIND": "0-1"}
    return _answer([python, "-c", program, json.dumps(asked | variant)], environment)


def ours(shape: str, requests: int, kind: str, options: dict[str, Any]) -> dict[str, float]:
    return _answer([sys.executable, __file__, "--hone", json.dumps([shape, requests, kind, options])], {})


def _answer(words: list[str], environment: dict[str, str]) -> dict[str, float]:
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    if done.returncode:
        raise SystemExit(f"{words[:2]} failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure(case: tuple[str, int, str], peers: list[str], *, quick: bool) -> list[Row]:
    shape, requests, kind = case
    best: dict[str, dict[str, Any]] = {}
    for peer in peers:
        tried = [(peer_speed(peer, *case, variant)["tokens_per_s"], variant) for variant in VARIANTS[peer]]
        best[peer] = max(tried, key=lambda one: one[0])[1]
        print(f"{peer}, {case}: {tried}", file=sys.stderr, flush=True)
    found = [
        {"hone": ours(*case, {}), **{peer: peer_speed(peer, *case, best[peer]) for peer in peers}}
        for _ in range(1 if quick else 3)
    ]
    print(f"{case}: {found}", file=sys.stderr, flush=True)
    speeds = {name: [one[name]["tokens_per_s"] for one in found] for name in ("hone", *peers)}
    rows = []
    for peer in peers:
        ratio = float(np.median([mine / theirs for mine, theirs in zip(speeds["hone"], speeds[peer], strict=True)]))
        bar = BARS[shape, peer]
        rows.append(
            Row(
                row=f"{shape}, {requests} requests, {kind}",
                value=float(np.median(speeds["hone"])),
                unit="tokens/s",
                seeds=len(found),
                peer=f"{peer} {json.dumps(best[peer])}",
                peer_value=float(np.median(speeds[peer])),
                ratio=ratio,
                bar=f">= {bar:g} x",
                met=None if quick else ratio >= bar,
            )
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure generation beside transformers and vLLM.")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=list(SHAPES))
    parser.add_argument("--no-vllm", action="store_true", help="leave vLLM out, whose environment takes 2.5 GB")
    parser.add_argument("--hone", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.hone:
        print(json.dumps(hone_speed(*json.loads(asked.hone))))
        return
    peers = ["transformers"] if asked.no_vllm or asked.quick else ["transformers", "vllm"]
    if "vllm" in peers:
        require_peer("vllm")
    for shape in ["S"] if asked.quick else [shape for shape in SHAPES if asked.only in {None, shape}]:
        cases = [("S", 16, "float32")] if asked.quick else [case for case in CASES if case[0] == shape]
        rows = (row for case in cases for row in measure(case, peers, quick=asked.quick))
        title = f"Generation, model {shape}"
        tell(grow(title, "benchmarks/generate.py", rows, threads=THREADS, quick=asked.quick))


if __name__ == "__main__":
    main()
