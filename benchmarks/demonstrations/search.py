"""Selecting among answers by a verifier of outcomes, by tokens: chains of sums after a hurried teacher.

The base imitates a teacher who leaves out the later steps of six in ten problems, so that the most frequent answer is
mostly wrong and a vote gets worse with more answers. A verifier learnt from the base's own answers finds the right one.
The best-scored answer gets worse again with many answers: the maximum finds the verifier's errors; the weighted vote
does not.
"""

import tempfile
from pathlib import Path

import numpy as np
from chain_sums import answers, base, outcome_scorer, searched

from demonstrations import Bar
from hone.lab.tasks.chain_of_sums import hurried_solution, make_problems

TITLE = "search, chain of sums, hurried teacher, learnt verifier of outcomes"
SEEDS = (105, 106, 107, 108, 109)
BARS = (
    Bar(figure="AUC of the verifier", at_least=0.95),
    Bar(figure="weighted vote of 16", at_least=0.85),
    Bar(figure="weighted vote of 16 minus majority of 16", at_least=0.40),
    Bar(figure="pass@16 minus weighted vote of 16", at_most=0.08),
)
_SIZES = (1, 4, 16, 32)
_MAX_TOKENS = 32


def figures(seed: int, *, quick: bool) -> dict[str, float]:
    """Figures of one seed; `quick` trains and draws a twentieth."""
    base_steps, scorer_steps, questions, problems = (60, 20, 60, 64) if quick else (1200, 600, 1500, 512)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        held_out = make_problems(problems, seed=3 * seed)
        worked = make_problems(12 * 1000, seed=3 * seed + 1, exclude=held_out)
        policy = base(folder, worked, hurried_solution, steps=base_steps, seed=seed)
        asked = make_problems(questions, seed=3 * seed + 2, exclude=held_out)
        drawn = answers(policy, asked, samples=8, temperature=1.0, max_tokens=_MAX_TOKENS, seed=seed)
        scorer = outcome_scorer(folder, "verifier", drawn, steps=scorer_steps, seed=seed)
        search = {"plans": ["best_of:32", "weighted_vote:16"], "scorer": {"path": str(scorer)}}
        record = searched(folder, policy, held_out, search, max_tokens=_MAX_TOKENS, seed=seed)
    plans = {plan.plan: plan for plan in record.plans}
    curves = {
        f"{words} of {size}": plans[f"{family}:{size}"].mean
        for family, words in (("majority", "majority"), ("best_of", "best"), ("weighted_vote", "weighted vote"))
        for size in _SIZES[1:]
    }
    vote = plans["weighted_vote:16"]
    return {
        "pass@1": plans["pass:1"].mean,
        "pass@16": plans["pass:16"].mean,
        **curves,
        "AUC of the verifier": record.auc if np.isfinite(record.auc) else 0.0,
        "weighted vote of 16 minus majority of 16": vote.mean - plans["majority:16"].mean,
        "pass@16 minus weighted vote of 16": plans["pass:16"].mean - vote.mean,
        "best of 32 minus best of 16": plans["best_of:32"].mean - plans["best_of:16"].mean,
        "tokens drawn for 16": vote.drawn_tokens,
        "tokens scored for 16": vote.scored_tokens,
    }
