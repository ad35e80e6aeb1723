"""Generation of SmolLM2-135M-Instruct beside transformers, vLLM and llama.cpp: tokens a second on two threads.

    python benchmarks/real_model_generate.py                everything, about an hour on two quiet cores
    python benchmarks/real_model_generate.py --quick        two sequences, transformers only: decides nothing
    python benchmarks/real_model_generate.py --only 16      cases of so many sequences
    python benchmarks/real_model_generate.py --peers llama_cpp transformers

Prompts of 60 drawn tokens, 128 new ones, at 1, 16 and 64 sequences; and 16 sequences from 896 tokens up to 1,024. Every
round has prompts of its own, so that no one finds keys and values of an earlier one. The first round warms up, the
second counts, prompts included. All engines read the same weights, in each of their formats (`FORMS`), which are tried
once each; then the best of hone and the best of each peer take turns, each in a process of its own. hone draws at a
temperature of 1 with log-probabilities; the peers take the likeliest token without any, which is their cheapest.
llama.cpp is built for the machine, and its likeliest tokens are found by numpy, outside of its sampler.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import PEERS_FOLDER, require_peer
from real_model import model_folder
from tables import Row, grow, tell

from hone.core.generation import Request, SamplingParams, generate
from hone.core.random import generator
from hone.engine.engine import EmbeddedEngine
from hone.engine.open_engine import choose_runner
from hone.engine.scheduler import default_limits
from hone.engine.session import TokenizerRules
from hone.models.language.gguf_export import write_gguf
from hone.models.language.hf_checkpoint import load_model
from hone.models.language.tokenizers import load_tokenizer

THREADS, ROUNDS = 2, 2


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is generated, and the bar against the best peer."""

    sequences: int
    prompt: int
    new: int
    bar: float

    @property
    def name(self) -> str:
        return f"{self.sequences} sequences, {self.prompt} + {self.new} tokens"


CASES = (
    Case(sequences=1, prompt=60, new=128, bar=1.3),
    Case(sequences=16, prompt=60, new=128, bar=2.5),
    Case(sequences=64, prompt=60, new=128, bar=2.2),
    Case(sequences=16, prompt=896, new=128, bar=2.5),
)
QUICK = Case(sequences=2, prompt=16, new=8, bar=1.0)
FORMS: dict[str, list[dict[str, Any]]] = {
    "hone": [
        {"weights": "bfloat16", "runner": "native_bfloat16"},
        {"weights": "bfloat16", "runner": "native_int8"},
        {"weights": "int8", "runner": "native_int8"},
        {"weights": "int4", "runner": "native_bfloat16"},
        {"weights": "int4", "runner": "native_int8"},
    ],
    "transformers": [{"weights": "bfloat16"}, {"weights": "float32"}],
    "vllm": [{"weights": "bfloat16", "eager": False}, {"weights": "bfloat16", "eager": True}],
    "llama_cpp": [{"weights": "BF16"}, {"weights": "Q8_0"}, {"weights": "Q4_0"}],
}
"""Formats of each engine; "native_int8" computes with activations in 8 bits."""


def prompts_of(case: Case) -> list[list[list[int]]]:
    """`[rounds][sequences][prompt]` tokens."""
    drawn = generator(0, "prompts").integers(1000, 40_000, (ROUNDS, case.sequences, case.prompt))
    found: list[list[list[int]]] = drawn.tolist()
    return found


# ---------------------------------------------------------------------------------------------------------------- hone


def hone_speed(folder: Path, case: Case, form: dict[str, Any]) -> dict[str, float]:
    torch.set_num_threads(THREADS)
    model = load_model(folder, dtype=form["weights"])
    vocab = model.config.vocab_size
    chosen = choose_runner(form["runner"], model, vocab_used=vocab)
    limits = default_limits(
        slots=case.sequences,
        page_tokens=chosen.runner.page_tokens,
        sequence_tokens=case.prompt + case.new,
        vocab=vocab,
    )
    engine = EmbeddedEngine(chosen, TokenizerRules(decode=None, eos=(), vocab=vocab), limits=limits, seed=0)
    engine.publish(1)
    sampling = SamplingParams(max_tokens=case.new)
    drawn, seconds, spent = 0, 0.0, 0.0
    for number, prompts in enumerate(prompts_of(case)):
        asked = [
            Request(id=str(place), prompt=np.array(prompt, np.int32), samples=1, sampling=sampling)
            for place, prompt in enumerate(prompts)
        ]
        begin, busy = time.perf_counter(), time.process_time()
        drawn = sum(len(one.tokens) for one in generate(engine, asked, round=number))
        seconds, spent = time.perf_counter() - begin, time.process_time() - busy
    assert drawn == case.sequences * case.new
    return {"tokens_per_s": drawn / seconds, "tokens_per_cpu_s": drawn / spent}


# --------------------------------------------------------------------------------------------------------------- peers

START = """
import json, sys, time
asked = json.loads(sys.argv[1])
new = asked["new"]
def told(drawn, seconds, spent):
    assert drawn == len(asked["prompts"][0]) * new, drawn
    print(json.dumps({"tokens_per_s": drawn / seconds, "tokens_per_cpu_s": drawn / spent}))
"""
TRANSFORMERS = """
import torch
from transformers import AutoModelForCausalLM
torch.set_num_threads(asked["threads"])
model = AutoModelForCausalLM.from_pretrained(
    asked["model"], dtype=asked["weights"], attn_implementation="sdpa")
model.generation_config.eos_token_id = None
for prompts in asked["prompts"]:
    ids = torch.tensor(prompts)
    begin, busy = time.perf_counter(), time.process_time()
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new, pad_token_id=0)
    seconds, spent = time.perf_counter() - begin, time.process_time() - busy
told(out[:, ids.shape[1]:].numel(), seconds, spent)
"""
VLLM = """
from vllm import LLM, SamplingParams
if __name__ == "__main__":
    model = LLM(asked["model"], dtype=asked["weights"], max_model_len=2048, enforce_eager=asked["eager"], seed=0,
        max_num_seqs=128, enable_prefix_caching=False, disable_log_stats=True)
    params = SamplingParams(max_tokens=new, ignore_eos=True, temperature=0.0, detokenize=False)
    for prompts in asked["prompts"]:
        begin, busy = time.perf_counter(), time.process_time()
        out = model.generate([{"prompt_token_ids": one} for one in prompts], params, use_tqdm=False)
        seconds, spent = time.perf_counter() - begin, time.process_time() - busy
    told(sum(len(one.outputs[0].token_ids) for one in out), seconds, spent)
"""
LLAMA_CPP = """
import ctypes
import llama_cpp as lib
import numpy as np
quiet = lib.llama_log_callback(lambda *_: None)  # has to outlive the library's use of it
lib.llama_log_set(quiet, ctypes.c_void_p(0))
lib.llama_backend_init()
model = lib.llama_model_load_from_file(asked["file"].encode(), lib.llama_model_default_params())
count, length = len(asked["prompts"][0]), len(asked["prompts"][0][0])
settings = lib.llama_context_default_params()
settings.n_ctx, settings.n_seq_max = count * -(-(length + new) // 256) * 256, count
settings.n_batch = settings.n_ubatch = 2048 if length < 256 else 512
settings.n_threads = settings.n_threads_batch = asked["threads"]
context = lib.llama_init_from_model(model, settings)
vocab = lib.llama_vocab_n_tokens(lib.llama_model_get_vocab(model))
batch = lib.llama_batch_init(settings.n_batch, 0, 1)
def decode(rows):
    # rows of (token, position, sequence, whether its logits are asked for) -> likeliest tokens of the rows asked for
    batch.n_tokens = len(rows)
    for at, (token, position, sequence, read) in enumerate(rows):
        batch.token[at], batch.pos[at], batch.n_seq_id[at], batch.seq_id[at][0] = token, position, 1, sequence
        batch.logits[at] = read
    assert lib.llama_decode(context, batch) == 0
    return [int(np.ctypeslib.as_array(lib.llama_get_logits_ith(context, at), (vocab,)).argmax())
            for at, row in enumerate(rows) if row[3]]
for prompts in asked["prompts"]:
    lib.llama_memory_clear(lib.llama_get_memory(context), True)
    begin, busy = time.perf_counter(), time.process_time()
    rows = [(token, at, number, at == length - 1) for number, one in enumerate(prompts) for at, token in enumerate(one)]
    last = []
    for at in range(0, len(rows), settings.n_batch):
        last += decode(rows[at : at + settings.n_batch])
    drawn = len(last)
    for step in range(new - 1):
        last = decode([(token, length + step, number, True) for number, token in enumerate(last)])
        drawn += len(last)
    seconds, spent = time.perf_counter() - begin, time.process_time() - busy
told(drawn, seconds, spent)
"""
QUANTISE = """
import sys
import llama_cpp as lib
params = lib.llama_model_quantize_default_params()
params.ftype = lib.LLAMA_FTYPE_MOSTLY_Q4_0
assert lib.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), params) == 0
"""
PROGRAMS = {"transformers": TRANSFORMERS, "vllm": VLLM, "llama_cpp": LLAMA_CPP}
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_CPU_OMP_THREADS_BIND": "0-1",
    "HF_HUB_OFFLINE": "1",
}  # fmt: skip


def gguf_file(folder: Path, weights: str) -> Path:
    """The model for llama.cpp, by hone's export; 4 bits by llama.cpp's own quantiser, from bfloat16."""
    file = folder.with_name(f"smollm2-{weights}.gguf")
    if file.exists():
        return file
    if weights == "Q4_0":
        words = [str(require_peer("llama_cpp")), "-c", QUANTISE, str(gguf_file(folder, "BF16")), str(file)]
        subprocess.run(words, check=True, capture_output=True)
    else:
        model, tokenizer = load_model(folder, dtype="bfloat16"), load_tokenizer(folder)
        write_gguf(model, tokenizer, file, "BF16" if weights == "BF16" else "Q8_0", name="smollm2")
    return file


def speed(engine: str, folder: Path, case: Case, form: dict[str, Any]) -> dict[str, float]:
    """One process of an engine."""
    if engine == "hone":
        words = [sys.executable, __file__, "--hone", json.dumps([str(folder), vars(case), form])]
    else:
        asked = {"model": str(folder), "new": case.new, "prompts": prompts_of(case), "threads": THREADS, **form}
        if engine == "llama_cpp":
            asked["file"] = str(gguf_file(folder, form["weights"]))
        python = sys.executable if engine == "transformers" else str(require_peer(engine))
        words = [python, "-c", START + PROGRAMS[engine], json.dumps(asked)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, **ENVIRONMENT})
    if done.returncode:
        raise SystemExit(f"{engine} {form} failed:\n{done.stderr[-3000:]}")
    found: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


# ---------------------------------------------------------------------------------------------------------------- rows


def measure(case: Case, folder: Path, peers: Sequence[str], *, pairs: int) -> Iterator[Row]:
    """Rows of every format, tried once; then of the best of hone beside each peer's best, in turns."""
    best: dict[str, dict[str, Any]] = {}
    for engine in ("hone", *peers):
        tried = [(speed(engine, folder, case, form), form) for form in FORMS[engine]]
        for found, form in tried:
            yield Row(
                row=f"{case.name}: {engine}, {words_of(form)}, tried once", value=found["tokens_per_s"], unit="tokens/s"
            )
        best[engine] = max(tried, key=lambda one: one[0]["tokens_per_s"])[1]
    turns = [{name: speed(name, folder, case, form) for name, form in best.items()} for _ in range(pairs)]
    print(f"{case.name}: {turns}", file=sys.stderr, flush=True)
    spent = float(np.median([one["hone"]["tokens_per_cpu_s"] for one in turns]))
    yield Row(row=f"{case.name}: hone, {words_of(best['hone'])}", value=spent, unit="tokens a CPU s", seeds=pairs)
    speeds = {name: [one[name]["tokens_per_s"] for one in turns] for name in best}
    leader = max(peers, key=lambda one: float(np.median(speeds[one])))
    for peer in peers:
        ratios = [mine / theirs for mine, theirs in zip(speeds["hone"], speeds[peer], strict=True)]
        ratio = float(np.median(ratios))
        yield Row(
            row=f"{case.name}: hone, {words_of(best['hone'])}",
            value=float(np.median(speeds["hone"])),
            unit="tokens/s",
            seeds=pairs,
            peer=f"{peer}, {words_of(best[peer])}",
            peer_value=float(np.median(speeds[peer])),
            ratio=ratio,
            bar=f">= {case.bar:g} x" if peer == leader else None,
            met=ratio >= case.bar if peer == leader else None,
        )


def words_of(form: dict[str, Any]) -> str:
    """A format in words."""
    eager = {True: ", eager", False: ", compiled"}.get(form.get("eager", "-"), "")
    products = ", activations in 8 bits" if form.get("runner") == "native_int8" else ""
    return f"{form['weights']}{products}{eager}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", type=int, choices=sorted({case.sequences for case in CASES}))
    parser.add_argument("--peers", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--pairs", type=int, default=3, help="turns of the best formats")
    parser.add_argument("--folder", type=Path, default=PEERS_FOLDER / "real_model", help="where the model lies")
    parser.add_argument("--hone", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.hone:
        folder, case, form = json.loads(asked.hone)
        print(json.dumps(hone_speed(Path(folder), Case(**case), form)))
        return
    folder = model_folder(asked.folder)
    cases = [QUICK] if asked.quick else [case for case in CASES if asked.only in {None, case.sequences}]
    peers = ["transformers"] if asked.quick else asked.peers
    rows = (
        replace(row, met=None) if asked.quick else row
        for case in cases
        for row in measure(case, folder, peers, pairs=1 if asked.quick else asked.pairs)
    )
    title = "Generation, SmolLM2-135M-Instruct"
    tell(grow(title, "benchmarks/real_model_generate.py", rows, threads=THREADS, quick=asked.quick))


if __name__ == "__main__":
    main()
