"""TRL's side of real_model_step.py: run by TRL's own Python, with one JSON argument; prints one JSON line."""

import json
import resource
import sys
import time

import numpy as np
import torch

settings = json.loads(sys.argv[1])
torch.set_num_threads(settings["threads"])
sys.path.insert(0, settings["answers"])

import answers  # noqa: E402
from datasets import Dataset  # noqa: E402
from peft import LoraConfig  # noqa: E402
from transformers import AutoTokenizer, TrainerCallback  # noqa: E402
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer  # noqa: E402

ROWS = [json.loads(line) for line in open(settings["rows"], encoding="utf-8")]  # noqa: SIM115, PTH123
TOKENS: list[int] = []


def scored(completions, completion_ids, **_columns):  # noqa: ANN001, ANN003, ANN201
    TOKENS.append(sum(len(ids) for ids in completion_ids))
    return answers.even([turns[-1]["content"] for turns in completions])


def counted(collator):  # noqa: ANN001, ANN201
    """Counts the trained tokens of every batch."""

    def collate(examples):  # noqa: ANN001, ANN202
        batch = collator(examples)
        mask = batch["completion_mask"] if "completion_mask" in batch else batch["labels"] != -100
        TOKENS.append(int(mask.sum()))
        return batch

    return collate


class Clock(TrainerCallback):
    def __init__(self) -> None:
        self.marks: list[float] = []

    def on_step_begin(self, *_args, **_more) -> None:  # noqa: ANN002, ANN003
        if not self.marks:
            self.marks.append(time.process_time())

    def on_step_end(self, *_args, **_more) -> None:  # noqa: ANN002, ANN003
        self.marks.append(time.process_time())


clock = Clock()
kind = settings["kind"]
shared = {
    "output_dir": "/tmp/trl-bench",
    "use_cpu": True,
    "per_device_train_batch_size": settings["batch"],
    "gradient_accumulation_steps": 1,
    "max_steps": settings["steps"],
    "learning_rate": 1e-6,
    "lr_scheduler_type": "constant",
    "bf16": settings.get("bf16", False),
    "gradient_checkpointing": False,
    "logging_steps": 1000,
    "report_to": [],
    "save_strategy": "no",
    "disable_tqdm": True,
    "model_init_kwargs": {
        "dtype": settings.get("dtype", "float32"),
        "attn_implementation": settings["attention"],
    },
}
common = {
    "model": settings["model"],
    "train_dataset": Dataset.from_list(ROWS),
    "processing_class": AutoTokenizer.from_pretrained(settings["model"]),
    "callbacks": [clock],
}
if kind == "GRPO":
    shared["per_device_train_batch_size"] = settings["prompts"] * settings["samples"]
    config = GRPOConfig(
        **shared,
        num_generations=settings["samples"],
        max_completion_length=settings["new_tokens"],
        loss_type="dapo",
        beta=0.0,
    )
    trainer = GRPOTrainer(**common, args=config, reward_funcs=scored)
elif kind == "DPO":
    config = DPOConfig(**shared, beta=0.1, precompute_ref_log_probs=True, max_length=None)
    trainer = DPOTrainer(**common, args=config)
else:
    config = SFTConfig(**shared, completion_only_loss=True, max_length=None)
    adapter = LoraConfig(r=settings["rank"], lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = SFTTrainer(**common, args=config, peft_config=adapter if kind == "SFT, adapter" else None)
if kind != "GRPO":
    trainer.data_collator = counted(trainer.data_collator)
trainer.train()
print(
    json.dumps(
        {
            "cpu_s": float(np.median(np.diff(clock.marks)[1:])),
            "tokens": float(np.mean(TOKENS[1 : settings["steps"]])),
            "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
        }
    )
)
