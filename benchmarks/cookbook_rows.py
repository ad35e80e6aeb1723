"""tinker-cookbook's loops against the training service, SDK and cookbook unchanged, with data made here.

A recipe is run by its own module, in a working directory in which the data sets and the tokenizer that it asks the hub
for are folders. What a benchmark has to put in place of the cookbook's own (a reward that an untaught model can earn,
an environment) is a program of its own, which imports the cookbook.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tables import Row

from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import byte_tokenizer

QUESTIONS = (
    ("Name a colour.", "Blue is a colour."), ("Count to three.", "One, two, three."), ("What is 2+2?", "2+2 is 4."),
    ("Say hello.", "Hello there, friend."), ("Name a fruit.", "An apple is a fruit."), ("Name a day.", "Monday."),
    ("Where is Paris?", "Paris is in France."), ("What is water?", "Water is a liquid."),
)  # fmt: skip
ALIAS = "Qwen/Qwen3-4B-Instruct-2507"
"""A name that the cookbook has a renderer for; the base answers to it."""
_CHATML = (
    "{%- for message in messages -%}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}"
)
VOWELS = "sum(c in 'aeiou' for c in text) / max(1, len(text))"
RL_LOOP = f"""
import sys, chz
import tinker_cookbook.recipes.rl_loop as recipe
recipe.get_reward = lambda text, answer: {VOWELS}
chz.nested_entrypoint(recipe.main)
"""
"""The recipe with a reward that is not 0 everywhere."""
RL_TRAIN = f"""
import asyncio, json, sys
from functools import partial
import chz
from tinker_cookbook import renderers
from tinker_cookbook.rl import train
from tinker_cookbook.rl.problem_env import ProblemEnv, ProblemGroupBuilder
from tinker_cookbook.rl.types import RLDataset, RLDatasetBuilder
from tinker_cookbook.tokenizer_utils import get_tokenizer

class Vowels(ProblemEnv):
    def __init__(self, n, renderer):
        super().__init__(renderer, convo_prefix=None, format_coef=0.0)
        self.n = n
    def get_question(self): return f"Say something about {{self.n}}."
    def check_answer(self, text): return {VOWELS}
    def check_format(self, text): return True
    def get_reference_answer(self): return "vowels"

class Questions(RLDataset):
    def __init__(self, renderer, batches): self.renderer, self.batches = renderer, batches
    def get_batch(self, index):
        return [ProblemGroupBuilder(env_thunk=partial(Vowels, n, self.renderer), num_envs=12) for n in range(2)]
    def __len__(self): return self.batches

@chz.chz
class Builder(RLDatasetBuilder):
    model: str
    batches: int
    async def __call__(self):
        return Questions(renderers.get_renderer("qwen3_instruct", get_tokenizer(self.model)), self.batches), None

url, model, log, asked = *sys.argv[1:4], json.loads(sys.argv[4])
batches, more = asked.pop("batches"), {{}}
if asked.pop("kl", False):
    more |= dict(kl_penalty_coef=0.05, kl_reference_config=train.KLReferenceConfig(base_model=model),
                 compute_post_kl=True)
if loss := asked.pop("ahead", ""):
    more |= dict(async_config=train.AsyncConfig(max_steps_off_policy=1, groups_per_batch=2, loss_fn=loss))
config = train.Config(
    dataset_builder=Builder(model=model, batches=batches), model_name=model, recipe_name="vowels", max_tokens=12,
    log_path=log, eval_every=0, save_every=3, lora_rank=8, renderer_name="qwen3_instruct", base_url=url,
    **asked, **more,
)
asyncio.run(train.main(config))
"""


def chat_base(folder: Path) -> Path:
    """A model folder with random weights, one token a byte, and the chat tokens of the cookbook's renderer."""
    tokenizer = byte_tokenizer(chat_template=_CHATML, chat_tokens=("<|im_start|>", "<|im_end|>"))
    config = ModelConfig(
        family="qwen3", vocab_size=tokenizer.size, hidden_size=64, intermediate_size=128, layers=2, heads=4, kv_heads=2,
        head_dim=16, max_positions=2048, tie_embeddings=True,
    )  # fmt: skip
    TokenPolicy(new_model(config, seed=3), tokenizer).save_merged(folder)
    return folder


@dataclass(frozen=True, kw_only=True)
class Cookbook:
    """A place in which recipes run."""

    python: str
    url: str
    place: Path
    quick: bool
    """Less of each, on the tiny base: rates are then ten times as high."""

    @classmethod
    def laid_out(cls, python: str, url: str, place: Path, base: Path, *, quick: bool) -> "Cookbook":
        """With the tokenizer and the data sets that recipes ask the hub for."""
        (place / "Qwen").mkdir(parents=True)
        (place / ALIAS).symlink_to(base.resolve())
        robots, gsm = place / "HuggingFaceH4" / "no_robots", place / "openai" / "gsm8k"
        for folder in (robots, gsm):
            folder.mkdir(parents=True)
        for split in ("train", "test"):
            rows = [
                {"prompt": ask, "prompt_id": str(number), "category": "x",
                 "messages": [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]}
                for number, (ask, answer) in enumerate(QUESTIONS * (64 if split == "train" else 4))
            ]  # fmt: skip
            sums = [{"question": f"What is {n} and 1?", "answer": f"It is #### {n + 1}"} for n in range(64)]
            for folder, some in ((robots, rows), (gsm, sums)):
                (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in some))
        (gsm / "README.md").write_text(
            "---\nconfigs:\n- config_name: main\n  data_files:\n  - split: train\n    path: train.jsonl\n"
            "  - split: test\n    path: test.jsonl\n---\n"
        )
        return cls(python=python, url=url, place=place, quick=quick)

    def run(self, name: str, *arguments: str) -> tuple[int, list[dict[str, float]], str]:
        """Run a program of the cookbook's environment; its exit code, its lines of metrics, and its words."""
        environment = {
            **os.environ, "TINKER_API_KEY": "tml-x", "TINKER_BASE_URL": self.url, "TINKER_TELEMETRY": "0",
            "HF_HUB_OFFLINE": "1", "HF_HOME": str(self.place / "hf"), "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        done = subprocess.run(
            [self.python, *arguments], cwd=self.place, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            print(done.stderr[-2000:], file=sys.stderr)
        file = self.place / name / "metrics.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return done.returncode, lines, done.stderr

    def recipe(self, name: str, *arguments: str, program: tuple[str, ...]) -> tuple[int, list[dict[str, float]], str]:
        """Run a recipe that takes its keys as arguments."""
        return self.run(
            name, *program, f"base_url={self.url}", f"model_name={ALIAS}", f"log_path={self.place / name}", *arguments
        )


def falls(name: str, code: int, lines: list[dict[str, float]]) -> Row:
    """The loss of a supervised recipe."""
    losses = [one["train_mean_nll"] for one in lines if "train_mean_nll" in one]
    shown = losses[-1] / losses[0] if losses else float("nan")
    return Row(row=f"tinker-cookbook {name}, {len(losses)} steps", value=shown, unit="last loss / first",
               bar="<= 0.5, rc 0", met=code == 0 and shown <= 0.5)  # fmt: skip


def rises(name: str, key: str, code: int, lines: list[dict[str, float]]) -> Row:
    """The reward of a loop."""
    rewards = [one[key] for one in lines if key in one]
    third = len(rewards) // 3
    gain = float(np.mean(rewards[-third:]) - np.mean(rewards[:third])) if third else float("nan")
    return Row(row=f"tinker-cookbook {name}, {len(rewards)} batches", value=gain, unit="gain, last third over first",
               bar=">= 0.05, rc 0", met=code == 0 and gain >= 0.05)  # fmt: skip


def cookbook_rows(book: Cookbook, only: str) -> Iterator[Row]:
    """The loops of the cookbook whose name contains `only`."""
    rate = "1e-2" if book.quick else "1e-3"
    if only in "sl_loop":
        keys = ("batch_size=4", "lora_rank=8", f"learning_rate={rate}", "max_length=128", "max_steps=8")
        code, lines, _ = book.recipe("sl_loop", *keys, program=("-m", "tinker_cookbook.recipes.sl_loop"))
        yield falls("sl_loop", code, lines)
    if only in "sl_basic":
        keys = ("lora_rank=8", f"learning_rate={rate}", "lr_schedule=constant", "eval_every=0", "num_epochs=2")
        code, lines, _ = book.recipe("sl_basic", *keys, program=("-m", "tinker_cookbook.recipes.sl_basic"))
        yield falls("sl_basic", code, lines)
    for loss in ("importance_sampling", "cispo", "gspo", "stable_reinforce"):
        name = f"rl_loop {loss}"
        if only not in name:
            continue
        keys = (f"loss_fn={loss}", "batch_size=2", "group_size=8", "max_tokens=12", "lora_rank=8", "max_steps=12",
                f"learning_rate={'2e-2' if book.quick else '2e-3'}", "save_every=4")  # fmt: skip
        code, lines, words = book.recipe(name.replace(" ", "_"), *keys, program=("-c", RL_LOOP))
        if loss == "stable_reinforce":
            told = "stable_reinforce" in words and "is not served" in words
            yield Row(row=f"tinker-cookbook {name}: refused by name", value=float(told), unit="in the SDK's own error",
                      bar="1", met=told and code != 0)  # fmt: skip
        else:
            yield rises(name, "reward/total", code, lines)
    rate_rl = 2e-2 if book.quick else 2e-3
    asked: dict[str, dict[str, object]] = {
        "rl.train": {}, "rl.train, KL penalty": {"kl": True}, "rl.train, ppo, 2 substeps": {"loss_fn": "ppo",
        "num_substeps": 2}, "rl.train, dro": {"loss_fn": "dro", "loss_fn_config": {"beta": 0.05}},
        "rl.train, asynchronous, ppo": {"ahead": "ppo"},
    }  # fmt: skip
    for name, more in asked.items():
        if only not in name:
            continue
        options = {"batches": 15, "learning_rate": rate_rl, **more}
        log = book.place / name.replace(" ", "_").replace(",", "")
        code, lines, _ = book.run(log.name, "-c", RL_TRAIN, book.url, ALIAS, str(log), json.dumps(options))
        yield rises(name, "env/all/reward/total", code, lines)
