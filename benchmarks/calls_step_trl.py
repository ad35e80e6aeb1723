"""TRL's side of calls_step.py: run by TRL's own Python, with one JSON argument; prints one JSON line."""

import json
import sys
import time

import numpy as np
import torch

asked = json.loads(sys.argv[1])
torch.set_num_threads(asked["threads"])

from datasets import Dataset  # noqa: E402
from transformers import AutoTokenizer, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

ROWS = [json.loads(line) for line in open(asked["problems"], encoding="utf-8")]  # noqa: SIM115, PTH123
TOKENS: list[int] = []
CALLS: list[int] = []
SCORES: list[float] = []


def calculator(expression: str) -> str:
    """
    Compute a sum.

    Args:
        expression: Two numbers and a sign.

    Returns:
        The sum.
    """
    first, second = expression.split("+")
    return str(int(first) + int(second))


def right(completions, completion_ids, answer, **_columns):  # noqa: ANN001, ANN003, ANN201
    TOKENS.append(sum(len(ids) for ids in completion_ids))
    CALLS.append(sum("tool_calls" in message for messages in completions for message in messages))
    scores = [
        float(str(messages[-1].get("content") or "").strip() == expected)
        for messages, expected in zip(completions, answer, strict=True)
    ]
    SCORES.append(float(np.mean(scores)))
    return scores


class Clock(TrainerCallback):
    def __init__(self) -> None:
        self.marks: list[float] = []
        self.cpu: list[float] = []

    def on_step_begin(self, *_args, **_more) -> None:  # noqa: ANN002, ANN003
        if not self.marks:
            self.marks.append(time.perf_counter())
            self.cpu.append(time.process_time())

    def on_step_end(self, *_args, **_more) -> None:  # noqa: ANN002, ANN003
        self.marks.append(time.perf_counter())
        self.cpu.append(time.process_time())


tokenizer = AutoTokenizer.from_pretrained(asked["model"])
tokenizer.response_template = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "tool_calls": {
            "open": "<tool_call>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"<eos>\s*", "content": "text"},
    },
}
clock = Clock()
config = GRPOConfig(
    output_dir="/tmp/trl-bench",
    use_cpu=True,
    per_device_train_batch_size=asked["prompts"] * asked["samples"],
    gradient_accumulation_steps=1,
    num_generations=asked["samples"],
    max_completion_length=asked["max_tokens"],
    max_tool_calling_iterations=asked["turns"] - 1,
    max_steps=asked["steps"],
    learning_rate=1e-6,
    lr_scheduler_type="constant",
    loss_type="dapo",
    beta=0.0,
    bf16=asked.get("bf16", False),
    gradient_checkpointing=False,
    logging_steps=1000,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
    model_init_kwargs={"dtype": asked.get("dtype", "float32"), "attn_implementation": asked["attention"]},
)
trainer = GRPOTrainer(
    model=asked["model"],
    reward_funcs=right,
    args=config,
    train_dataset=Dataset.from_list(
        [{"prompt": [{"role": "user", "content": row["prompt"]}], "answer": row["answer"]} for row in ROWS]
    ),
    processing_class=tokenizer,
    tools=[calculator],
    callbacks=[clock],
)
trainer.train()
found = {
    "seconds": float(np.median(np.diff(clock.marks)[2:])),
    "cpu_s": float(np.median(np.diff(clock.cpu)[2:])),
    "tokens": float(np.mean(TOKENS[2:])),
    "calls": float(np.mean(CALLS[2:])),
    "score": float(np.mean(SCORES[2:])),
}
print(json.dumps(found))
