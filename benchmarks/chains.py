"""The work of the language benchmarks: problems, worked solutions and the two models, for hone and peers.

Short answers: the sum of two two-digit numbers. Chains: up to ten additions worked out step by step, so that answers
are ragged. Peers read the same files and the same Hugging Face folders.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch

from hone.core.random import generator
from hone.models.language.config import ModelConfig
from hone.models.language.hf_checkpoint import save_model
from hone.models.language.init import new_model
from hone.models.language.tokenizers import character_tokenizer
from hone.recipes.text import sft
from hone.run.loop import train

WORK = Path(__file__).resolve().parent / ".work"
ALPHABET = "0123456789+=;\n" + "".join(chr(code) for code in range(97, 97 + 26))
SHAPES: dict[str, dict[str, int]] = {
    "S": {"hidden_size": 256, "intermediate_size": 1024, "layers": 4, "heads": 4, "kv_heads": 4, "head_dim": 64},
    "M": {"hidden_size": 512, "intermediate_size": 2048, "layers": 8, "heads": 8, "kv_heads": 8, "head_dim": 64},
}
TASKS = {"short": 4, "chains": 96}
"""Most tokens of an answer."""


def problem(task: str, seed: int, number: int) -> dict[str, str]:
    random = generator(seed, "chains", task, number)
    if task == "short":
        a, b = random.integers(10, 100, 2).tolist()
        return {"prompt": f"{a}+{b}=", "completion": f"{a + b}", "answer": f"{a + b}"}
    terms = random.integers(1, 10, int(random.integers(2, 12))).tolist()
    total, steps = terms[0], []
    for term in terms[1:]:
        steps.append(f"{total}+{term}={total + term}")
        total += term
    return {"prompt": "+".join(map(str, terms)) + "\n", "completion": ";".join(steps), "answer": str(total)}


def problems(task: str, *, count: int, seed: int) -> Path:
    """JSON lines of prompts, worked solutions and answers."""
    path = WORK / f"{task}_{seed}_{count}.jsonl"
    if not path.exists():
        WORK.mkdir(exist_ok=True)
        lines = [json.dumps(problem(task, seed, number)) for number in range(count)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def fresh(shape: str) -> Path:
    """A model folder with random weights."""
    folder = WORK / f"{shape}-fresh"
    if not folder.exists():
        tokenizer = character_tokenizer([ALPHABET])
        config = ModelConfig(family="llama", vocab_size=tokenizer.size, max_positions=512, **SHAPES[shape])
        save_model(new_model(config, seed=0), folder, tokenizer_from=None)
        tokenizer.save(folder)
    return folder


def endless(shape: str) -> Path:
    """A model folder with random weights that never ends an answer: lengths are then equal in every library.

    The first dimension of every embedding is large, so it stays positive through the layers, and the head reads from it
    that the token which ends an answer is out of the question.
    """
    folder = WORK / f"{shape}-endless"
    if not folder.exists():
        tokenizer = character_tokenizer([ALPHABET])
        config = ModelConfig(
            family="llama", vocab_size=tokenizer.size, max_positions=512, tie_embeddings=False, **SHAPES[shape]
        )
        model = new_model(config, seed=0)
        weights = dict(model.named_parameters())
        with torch.no_grad():
            weights["embedding.weight"][:, 0] = 4.0
            weights["head.weight"][:, 0] = 0.0
            weights["head.weight"][tokenizer.eos_id, 0] = -100.0
        save_model(model, folder, tokenizer_from=None)
        tokenizer.save(folder)
    return folder


def cold_start(shape: str, task: str, *, steps: int = 250) -> Path:
    """The model after a little imitation: it answers in the right form, and is right now and then."""
    folder = WORK / f"{shape}-{task}-{steps}"
    if folder.exists():
        return folder
    config = sft.SftConfig.model_validate(
        {
            "recipe": "sft",
            "name": "cold",
            "steps": steps,
            "batch": 32,
            "model": {"path": str(fresh(shape))},
            "task": {"source": str(problems(task, count=8000, seed=1))},
            "learner": {"lr": 1e-3, "warmup_steps": 20, "lr_decay": "cosine"},
        }
    )
    job = sft.ENTRY.build(config)
    train(job.recipe, steps=steps, callback=_progress)
    folder.mkdir(parents=True)
    job.save_policy(folder)
    return folder


def _progress(step: int, _episodes: object, _credits: object, metrics: dict[str, float]) -> None:
    if step % 50 == 0:
        print(f"cold start, step {step}: loss {metrics['policy/loss']:.3f}", file=sys.stderr, flush=True)


def lengths(count: int, *, most: int, seed: int) -> np.ndarray:
    """Ragged completion lengths with a long tail, `[count]`: exponential, cut at `most`."""
    return np.clip(generator(seed, "lengths").exponential(most / 3, count).astype(np.int64), 2, most)
