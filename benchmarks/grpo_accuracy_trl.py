"""TRL's side of grpo_accuracy.py: run by TRL's own Python, with one JSON argument; prints one JSON line."""

import json
import sys
import time

import torch

asked = json.loads(sys.argv[1])
torch.set_num_threads(asked["threads"])
sys.path.insert(0, asked["rewards"])

from answers import right  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import AutoTokenizer, TrainerCallback  # noqa: E402
from trl import GRPOConfig, GRPOTrainer  # noqa: E402


def rows_of(path):  # noqa: ANN001, ANN201
    with open(path, encoding="utf-8") as file:  # noqa: PTH123
        return [json.loads(line) for line in file]


TOKENIZER = AutoTokenizer.from_pretrained(asked["model"], padding_side="left")
HELD_OUT = rows_of(asked["held_out"])


@torch.no_grad()
def accuracy(model) -> float:  # noqa: ANN001
    """Share of the held-out problems that greedy answers solve."""
    model.eval()
    scores: list[float] = []
    for first in range(0, len(HELD_OUT), 512):
        rows = HELD_OUT[first : first + 512]
        inputs = TOKENIZER([row["prompt"] for row in rows], return_tensors="pt", padding=True, add_special_tokens=False)
        out = model.generate(
            inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            do_sample=False,
            max_new_tokens=asked["max_tokens"],
            pad_token_id=TOKENIZER.pad_token_id,
        )
        texts = TOKENIZER.batch_decode(out[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        scores += right(texts, answer=[row["answer"] for row in rows])
    model.train()
    return sum(scores) / len(scores)


class Clock(TrainerCallback):
    """Runs while the trainer works, stands while the policy is tried, and ends the run at the target."""

    def __init__(self) -> None:
        self.seconds, self.since = 0.0, 0.0
        self.curve: list[list[float]] = []

    def on_step_begin(self, _args, state, _control, **_more) -> None:  # noqa: ANN001, ANN003
        if state.global_step == 0:
            self.since = time.perf_counter()

    def on_step_end(self, _args, state, control, model, **_more) -> None:  # noqa: ANN001, ANN003
        self.seconds += time.perf_counter() - self.since
        if state.global_step % asked["every"] == 0:
            self.curve.append([state.global_step, self.seconds, accuracy(model)])
            control.should_training_stop = self.curve[-1][2] >= asked["target"]
        self.since = time.perf_counter()


clock = Clock()
config = GRPOConfig(
    output_dir=asked["folder"],
    use_cpu=True,
    seed=asked["seed"],
    per_device_train_batch_size=asked["prompts"] * asked["samples"],
    gradient_accumulation_steps=1,
    num_generations=asked["samples"],
    max_completion_length=asked["max_tokens"],
    max_steps=asked["steps"],
    learning_rate=asked["lr"],
    lr_scheduler_type="constant",
    loss_type="grpo",
    beta=0.0,
    epsilon=0.2,
    bf16=False,
    gradient_checkpointing=False,
    logging_steps=1000,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
    model_init_kwargs={"dtype": "float32", "attn_implementation": asked["attention"]},
)
trainer = GRPOTrainer(
    model=asked["model"],
    reward_funcs=right,
    args=config,
    train_dataset=Dataset.from_list(
        [{"prompt": row["prompt"], "answer": row["answer"]} for row in rows_of(asked["problems"])]
    ),
    processing_class=TOKENIZER,
    callbacks=[clock],
)
trainer.train()
print(json.dumps({"curve": clock.curve}))
