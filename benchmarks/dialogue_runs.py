"""Short runs of dialogues for their figures: a cold start by imitation, then GRPO in a world, judged on other rows."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
from text_runs import MODEL, run_recipe, write_rows

from hone.core.credit import Metrics
from hone.run.store.evaluations import AnswerRow


@dataclass(frozen=True, slots=True, kw_only=True)
class LearntDialogues:
    """Evaluations of a policy on the same dialogues before and after RL."""

    before: Metrics
    after: Metrics
    answers_before: Sequence[AnswerRow]
    answers_after: Sequence[AnswerRow]


def imitate(
    folder: Path,
    rows: Sequence[Mapping[str, object]],
    *,
    alphabet: str,
    steps: int,
    seed: int,
    positions: int = 64,
    layers: int = 3,
) -> str:
    """Train a new model to imitate turns (prompt and completion); returns its folder."""
    config = {
        "steps": steps,
        "seed": seed,
        "batch": 64,
        "model": {"new": {**MODEL, "max_positions": positions, "layers": layers, "alphabet": alphabet}},
        "task": {"source": write_rows(folder / "turns.jsonl", rows)},
        "learner": {"lr": 3e-3, "warmup_steps": 20, "lr_decay": "cosine"},
    }
    run_recipe("sft", config, folder / "base")
    return str(folder / "base")


def reinforce(folder: Path, base: str, tables: Mapping[str, Any]) -> LearntDialogues:
    """Train `base` by GRPO and judge it before and after. `folder` is where the policy is saved; it must not exist."""
    evaluations: list[Metrics] = []
    answers: list[Sequence[AnswerRow]] = []
    run_recipe("grpo", {"model": {"path": base}, **tables}, folder, evaluations=evaluations, answers=answers)
    return LearntDialogues(
        before=evaluations[0], after=evaluations[-1], answers_before=answers[0], answers_after=answers[-1]
    )


def pass_at(answers: Sequence[AnswerRow], count: int) -> float:
    """Mean over rows of the chance that the best of `count` answers to it is right (Chen et al., 2021, unbiased).

    Answers to one row have ids that differ after the last `#`; each row has at least `count` of them.
    """
    right: defaultdict[str, list[bool]] = defaultdict(list)
    for one in answers:
        right[one.id.rpartition("#")[0]].append((one.score or 0.0) >= 1.0)
    shares = [1 - comb(len(own) - sum(own), count) / comb(len(own), count) for own in right.values()]
    return float(np.mean(shares))


def repeated(rows: Sequence[Mapping[str, object]], times: int) -> list[dict[str, object]]:
    """Each row several times, under ids of its own."""
    return [{**row, "id": f"{row['id']}#{again}"} for again in range(times) for row in rows]
