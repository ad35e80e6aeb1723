"""TRL's side of grpo_step.py: run by TRL's own Python, with one JSON argument; prints one JSON line."""

import json
import sys
import time

import numpy as np
import torch

asked = json.loads(sys.argv[1])
torch.set_num_threads(asked["threads"])
sys.path.insert(0, asked["rewards"])

import answers  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoTokenizer, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

ROWS = [json.loads(line) for line in open(asked["problems"], encoding="utf-8")]  # noqa: SIM115, PTH123
TOKENS: list[int] = []


def scored(completions, completion_ids, **columns):  # noqa: ANN001, ANN003, ANN201
    TOKENS.append(sum(len(ids) for ids in completion_ids))
    return answers.even(completions) if asked["reward"] == "even" else answers.right(completions, **columns)


class Clock(TrainerCallback):
    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_step_begin(self, *_args, **_more) -> None:  # noqa: ANN002, ANN003
        if not self.marks:
            self.marks.append(time.perf_counter())

    def on_step_end(self, *_args, **_more) -> None:  # noqa: ANN002, ANN003
        self.marks.append(time.perf_counter())


clock = Clock()
config = GRPOConfig(
    output_dir="/tmp/trl-bench",
    use_cpu=True,
    per_device_train_batch_size=asked["prompts"] * asked["samples"],
    gradient_accumulation_steps=1,
    num_generations=asked["samples"],
    max_completion_length=asked["max_tokens"],
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
    model_init_kwargs={
        "dtype": asked.get("dtype", "float32"),
        "attn_implementation": asked["attention"],
    },
)
trainer = GRPOTrainer(
    model=asked["model"],
    reward_funcs=scored,
    args=config,
    train_dataset=Dataset.from_list([{"prompt": row["prompt"], "answer": row["answer"]} for row in ROWS]),
    processing_class=AutoTokenizer.from_pretrained(asked["model"]),
    callbacks=[clock],
)
trainer.train()
steps = np.diff(clock.marks)
print(json.dumps({"seconds": float(np.median(steps[2:])), "tokens": float(np.mean(TOKENS[2:]))}))
