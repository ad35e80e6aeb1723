"""TRL's side of preference_step.py: run by TRL's own Python, with one JSON argument; prints one JSON line."""

import json
import sys
import time

import numpy as np
import torch

asked = json.loads(sys.argv[1])
torch.set_num_threads(asked["threads"])

from datasets import Dataset  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    TrainerCallback,
)
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer  # noqa: E402

ROWS = [json.loads(line) for line in open(asked["rows"], encoding="utf-8")]  # noqa: SIM115, PTH123


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


clock = Clock()
shared = {
    "output_dir": "/tmp/trl-bench",
    "use_cpu": True,
    "per_device_train_batch_size": asked["batch"],
    "gradient_accumulation_steps": 1,
    "max_steps": asked["steps"],
    "learning_rate": 1e-6,
    "lr_scheduler_type": "constant",
    "bf16": asked.get("bf16", False),
    "gradient_checkpointing": False,
    "max_length": None,
    "logging_steps": 1000,
    "report_to": [],
    "save_strategy": "no",
    "disable_tqdm": True,
    # Only rows that keep a column `length` can be grouped by it: TRL's own columns are called otherwise.
    **(
        {"train_sampling_strategy": "group_by_length", "remove_unused_columns": False} if asked.get("by_length") else {}
    ),
}
loading = {"dtype": asked.get("dtype", "float32"), "attn_implementation": asked["attention"]}
if asked["kind"] == "reward_pairs":
    model = AutoModelForSequenceClassification.from_pretrained(asked["model"], num_labels=1, **loading)
else:
    model = AutoModelForCausalLM.from_pretrained(asked["model"], **loading)
tokenizer = AutoTokenizer.from_pretrained(asked["model"])
data = Dataset.from_list(
    [
        {name: row[name] for name in asked["columns"]} | {"length": sum(len(row[name]) for name in asked["columns"])}
        for row in ROWS
    ]
)
if asked["kind"] == "dpo":
    config = DPOConfig(**shared, beta=0.1, precompute_ref_log_probs=True)
    trainer = DPOTrainer(model=model, args=config, train_dataset=data, processing_class=tokenizer, callbacks=[clock])
elif asked["kind"] == "reward_pairs":
    config = RewardConfig(**shared)
    trainer = RewardTrainer(model=model, args=config, train_dataset=data, processing_class=tokenizer, callbacks=[clock])
else:
    config = SFTConfig(**shared, completion_only_loss=True)
    trainer = SFTTrainer(model=model, args=config, train_dataset=data, processing_class=tokenizer, callbacks=[clock])
trainer.train()
seconds, cpu = (float(np.median(np.diff(marks)[2:])) for marks in (clock.marks, clock.cpu))
print(json.dumps({"seconds": seconds, "cpu_s": cpu}))
