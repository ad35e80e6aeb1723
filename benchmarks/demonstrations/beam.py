"""Search over steps against selecting among whole answers, at equal tokens: whole chains of sums.

With a perfect verifier of steps and a weak base, a beam solves many times what as many whole answers solve. With a
learnt verifier of steps a narrow beam is worth several times its tokens, and a wide one is worse than a narrow one:
more candidates are more chances to find the verifier's errors.
"""

import tempfile
from pathlib import Path

import numpy as np
from chain_sums import TASK, answers, base, searched, step_scorer

from demonstrations import Bar
from hone.lab.tasks.chain_of_sums import make_problems
from hone.run.store.records import SearchRecord

TITLE = "search over steps against whole answers, chain of sums"
SEEDS = (100, 101, 102, 103, 104)
BARS = (
    Bar(figure="perfect verifier: beam 4x4 over best of 16", at_least=5.0),
    Bar(figure="perfect verifier: tokens of the beam over those of best of 16", at_least=0.8, at_most=1.2),
    Bar(figure="learnt verifier: AUC", at_least=0.95),
    Bar(figure="learnt verifier: beam 1x4 minus best of 4", at_least=0.10),
    Bar(figure="learnt verifier: low end of beam 1x4 minus high end of best of 4", at_least=0.0, over="mean"),
    Bar(figure="learnt verifier: tokens of the beam over those of best of 4", at_least=0.8, at_most=1.2),
)
TEMPERATURE = 2.4
"""Makes each step of the base uncertain: there is little to search for where it is nearly always right."""


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Figures of one seed; `quick` trains and draws a small part."""
    with tempfile.TemporaryDirectory() as name:
        return {
            **_perfect(Path(name) / "perfect", seed, quick=quick),
            **_learnt(Path(name) / "learnt", seed, quick=quick),
        }


def _perfect(folder: Path, seed: int, *, quick: bool) -> dict[str, float]:
    """Seven numbers, six steps, a base after little training, and a verifier that knows every step."""
    folder.mkdir()
    steps, problems = (30, 16) if quick else (400, 256)
    held_out = make_problems(problems, seed=3 * seed, terms=(7, 7))
    worked = make_problems(8000, seed=3 * seed + 1, terms=(7, 7), exclude=held_out)
    policy = base(folder, worked, lambda one: one.solution, steps=steps, seed=seed, batch=32)
    verifier = {
        "kind": "verifier",
        "functions": [{"use": f"{TASK}:right_chain"}],
        "beginnings": [{"use": f"{TASK}:right_so_far"}],
    }
    search = {"plans": ["best_of:16", "beam:4x4"], "scorer": verifier}
    record = searched(folder, policy, held_out, search, max_tokens=56, seed=seed)
    plans = {plan.plan: plan for plan in record.plans}
    beam, whole = plans["beam:4x4"], plans["best_of:16"]
    return {
        "perfect verifier: pass@1": plans["pass:1"].mean,
        "perfect verifier: best of 16": whole.mean,
        "perfect verifier: beam 4x4": beam.mean,
        "perfect verifier: beam 4x4 over best of 16": beam.mean / max(whole.mean, 1 / problems),
        "perfect verifier: tokens of the beam over those of best of 16": beam.drawn_tokens / whole.drawn_tokens,
    }


def _learnt(folder: Path, seed: int, *, quick: bool) -> dict[str, float]:
    """Four numbers, a base at a raised temperature, and a verifier learnt from labelled steps of its answers."""
    folder.mkdir()
    base_steps, scorer_steps, questions, problems = (30, 10, 20, 16) if quick else (600, 800, 1200, 320)
    held_out = make_problems(problems, seed=3 * seed, terms=(4, 4))
    worked = make_problems(12_000, seed=3 * seed + 1, terms=(3, 4), exclude=held_out)
    policy = base(folder, worked, lambda one: one.solution, steps=base_steps, seed=seed)
    asked = make_problems(questions, seed=3 * seed + 2, terms=(4, 4), exclude=held_out)
    drawn = [
        *answers(policy, asked, samples=4, temperature=1.6, max_tokens=44, seed=seed),
        *answers(policy, asked, samples=4, temperature=TEMPERATURE, max_tokens=44, seed=seed + 1),
    ]
    scorer = step_scorer(folder, "verifier", drawn, steps=scorer_steps, seed=seed)
    search = {
        "plans": ["best_of:16", "beam:1x4", "beam:2x2", "beam:4x4"],
        "scorer": {"path": str(scorer)},
        "temperature": TEMPERATURE,
    }
    return _learnt_figures(searched(folder, policy, held_out, search, max_tokens=44, seed=seed))


def _learnt_figures(record: SearchRecord) -> dict[str, float]:
    plans = {plan.plan: plan for plan in record.plans}
    beam, whole = plans["beam:1x4"], plans["best_of:4"]
    means = {
        "pass@1": "pass:1", "best of 4": "best_of:4", "best of 16": "best_of:16", "beam 1x4": "beam:1x4",
        "beam 2x2": "beam:2x2", "beam 4x4": "beam:4x4", "pass@16": "pass:16",
    }  # fmt: skip
    return {
        **{f"learnt verifier: {words}": plans[plan].mean for words, plan in means.items()},
        "learnt verifier: AUC": record.auc if np.isfinite(record.auc) else 0.0,
        "learnt verifier: beam 1x4 minus best of 4": beam.mean - whole.mean,
        "learnt verifier: low end of beam 1x4 minus high end of best of 4": beam.low - whole.high,
        "learnt verifier: tokens of the beam over those of best of 4": beam.drawn_tokens / whole.drawn_tokens,
        "learnt verifier: tokens of beam 4x4 over those of best of 16": (
            plans["beam:4x4"].drawn_tokens / plans["best_of:16"].drawn_tokens
        ),
    }
