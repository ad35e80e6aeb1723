"""The runs of `ranks.py`: those of `digest_runs.py`, and one of every other recipe with a gradient."""

import json
from pathlib import Path

from digest_runs import COMMON as FIRST_SETTINGS
from digest_runs import CRITIC, LABELLED, MODEL, PAIRS, SHORT, Settings, as_toml, control, text
from digest_runs import NEEDS as FIRST_NEEDS
from digest_runs import RUNS as FIRST_RUNS
from digest_runs import lay_out as lay_out_first

LORA: Settings = {"model.lora": {"rank": 2, "alpha": 8.0}}
"""A low-rank adapter of the model that `sft` trains."""
FRESH = (
    "gpg",
    "reinforce",
    "reinforce_plus_plus",
    "reinforce_plus_plus_baseline",
    "vespo",
    "opo",
    "self_imitation",
    "optimal_token_baseline",
)
"""Recipes that take one optimizer step from an answer."""
NEW_LINE: Settings = {"alphabet": "0123456789+=\n"}
"""Steps are lines."""
PLAIN = (
    "cispo", "clip_cov", "dppo", "dr_grpo", "gmpo", "gspo", "gspo_token", "high_entropy_grpo", "kl_cov", "luspo",
    "m2po", "passk_best", "sapo", "simko",
)  # fmt: skip
DICE = '''
from hone.core.random import generator
from hone.core.dialogue import WorldTurn


class Dice:
    """Rolls on `1`, pays the sum on any other answer, and nothing beyond 10."""

    def begin(self, columns, seed):
        self.random, self.total = generator(seed, "dice"), 0
        return self.roll()

    def answer(self, said):
        return self.roll() if said.text[:1] in "123" else WorldTurn(reward=self.total / 10, done=True)

    def close(self):
        pass

    def roll(self):
        self.total += int(self.random.integers(1, 7))
        return WorldTurn(messages=[{"role": "user", "content": str(self.total)}], done=self.total > 10)
'''


def trained(settings: Settings, more: Settings | None = None) -> Settings:
    """`settings` with the model that `sft` trains in place of a new one."""
    kept = {key: value for key, value in settings.items() if key != "model.new"}
    return kept | {"model.path": "runs/sft"} | (more or {})


def dialogues() -> Settings:
    """A recipe on dialogues with a world that answers."""
    kept = {key: value for key, value in text().items() if not key.startswith(("rewards", "task"))}
    kept["model.new"] = kept["model.new"] | {"max_positions": 64}
    return kept | {"task": {"source": "dialogue:dice.py:Dice", "size": 16, "turns": 4}}


TEXT: dict[str, tuple[str, Settings]] = {
    **{name: (name, text()) for name in PLAIN},
    **{name: (name, text(updates=1)) for name in FRESH},
    "dro": ("dro", text(more={"algorithm.beta": 0.1})),
    "passk": ("passk", trained(text("right", more={"algorithm.k": 2}))),
    "max_rl": ("max_rl", trained(text("right"))),
    "pkpo": ("pkpo", text(more={"algorithm.k": 2})),
    "warm_grpo": ("warm_grpo", text(more={"algorithm.warm": {"source": "runs/collect", "share": 0.5}})),
    "curious_grpo": ("curious_grpo", dialogues()),
    "cpo": ("cpo", MODEL | PAIRS | {"task.source": "pairs.jsonl"}),
    "orpo": ("orpo", MODEL | PAIRS | {"task.source": "pairs.jsonl"}),
    "rpo": ("rpo", MODEL | PAIRS | {"task.source": "pairs.jsonl"}),
    "dpo_reference": (
        "dpo", MODEL | PAIRS | {"task.source": "pairs.jsonl", "algorithm.reference": "runs/sft"},
    ),
    "online_dpo_reference": ("online_dpo", text(more={"algorithm.reference": "runs/sft"})),
    "reward_steps": (
        "reward_steps", MODEL | LABELLED | {"task.source": "steps.jsonl", "model.new": MODEL["model.new"] | NEW_LINE},
    ),
    "grpo_adapter": ("grpo", trained(text(more={"algorithm.kl": 0.1}), LORA)),
    "ppo_text_adapter": ("ppo_text", trained(text(more=CRITIC), LORA)),
    "reward_pairs_adapter": ("reward_pairs", trained(MODEL | LABELLED | {"task.source": "pairs.jsonl"}, LORA)),
}  # fmt: skip
HINTS: Settings = {"hints": {"potential": {"kind": "linear", "weights": [0.0, 0.0, 1.0, 0.0]}}}
CONTROL: dict[str, tuple[str, Settings]] = {"ppo_shaped": ("ppo_shaped", control("CartPole-v1", SHORT, HINTS))}
RUNS = FIRST_RUNS | TEXT | CONTROL
NEEDS = FIRST_NEEDS | {
    "warm_grpo": "collect",
    **dict.fromkeys(
        (
            "passk",
            "max_rl",
            "dpo_reference",
            "online_dpo_reference",
            "grpo_adapter",
            "ppo_text_adapter",
            "reward_pairs_adapter",
        ),
        "sft",
    ),
}
"""Run -> the run that it reads a policy or answers from."""


def lay_out(folder: Path) -> None:
    """Configs and data, in `folder`."""
    lay_out_first(folder)
    for name, (recipe, settings) in (TEXT | CONTROL).items():
        keys = {"recipe": recipe, "name": name} | FIRST_SETTINGS | settings
        config = "".join(f"{key} = {as_toml(value)}\n" for key, value in keys.items())
        (folder / f"{name}.toml").write_text(config, encoding="utf-8")
    (folder / "dice.py").write_text(DICE, encoding="utf-8")
    sums = [(f"{a}+{b}=", str(a + b)) for a in range(6) for b in range(4)]
    rows = [
        {"prompt": prompt, "completions": [answer, "0" * (1 + place % 2)], "labels": [True, place % 3 == 0]}
        for place, (prompt, answer) in enumerate(sums)
    ]
    (folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
