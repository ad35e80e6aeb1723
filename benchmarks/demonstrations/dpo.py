"""DPO on pairs with a known true reward, beside imitation of the chosen answers.

A base policy writes strings of letters. 4,000 pairs of its own strings are labelled by noisy comparisons of their true
rewards. Wins: the share of 2,048 answers with a higher true reward than the base's answer to the same prompt.
"""

import tempfile
from pathlib import Path

import numpy as np
from letter_policies import answers_of, base_policy, preference_rows, run_recipe, share_of_wins, write_rows

from demonstrations import Bar

TITLE = "DPO on 4,000 pairs of strings"
SEEDS = (100, 101, 102, 103, 104)
BARS = (
    Bar(figure="wins of DPO against the base", at_least=0.80),
    Bar(figure="wins of imitation against the base", at_most=0.68),
)
BETA = 0.5
LR = 3e-4
BATCH = 48
STEPS = 400


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Figures of one seed."""
    pairs, steps, judged = (400, 20, 256) if quick else (4000, STEPS, 2048)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = base_policy(folder, seed=seed, steps=60 if quick else 300)
        rows = preference_rows(base, pairs, seed=seed)
        shared = {
            "steps": steps,
            "batch": BATCH,
            "seed": seed,
            "model": {"path": str(folder / "base"), "compute": "float32"},
            "learner": {"lr": LR},
        }
        task = {"source": write_rows(folder / "pairs.jsonl", rows)}
        tuned, told = run_recipe(
            {**shared, "recipe": "dpo", "task": task, "algorithm": {"loss": {"kind": "dpo", "beta": BETA}}}
        )
        chosen = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in rows]
        imitated, _ = run_recipe(
            {**shared, "recipe": "sft", "task": {"source": write_rows(folder / "chosen.jsonl", chosen)}}
        )
    of_base = answers_of(base, judged, seed=seed, name="judged")
    of_tuned = answers_of(tuned, judged, seed=seed + 1, name="judged")
    of_imitated = answers_of(imitated, judged, seed=seed + 2, name="judged")
    late = told[-max(1, steps // 20) :]
    return {
        "wins of DPO against the base": share_of_wins(of_tuned, of_base),
        "wins of imitation against the base": share_of_wins(of_imitated, of_base),
        "true reward of the base": float(of_base.rewards.mean()),
        "true reward after imitation": float(of_imitated.rewards.mean()),
        "true reward after DPO": float(of_tuned.rewards.mean()),
        "KL to the base after DPO, nats": told[-1]["preference/kl_to_start_nats"],
        "log-ratio of chosen answers after DPO, nats": float(np.mean([one["preference/chosen_nats"] for one in late])),
        "accuracy on training pairs after DPO": float(np.mean([one["preference/accuracy"] for one in late])),
    }
