"""Rank of LoRA: what an adapter of each rank learns from rewards, and from a table of answers to copy."""

from dataclasses import replace

import numpy as np
from torch import nn

from hone.core.random import generator
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, bar_plot, plot_by_step
from hone.lab.policies import (
    LowRankNetwork,
    pretrained_network,
    puzzle_metrics,
    success_probabilities,
    train_supervised,
)
from hone.lab.puzzles import Floats, Puzzle, addition
from hone.lab.training import PuzzleTraining, train_policy
from hone.run.report.html import format_number

_RANKS = (0, 1, 2, 16)
"""0 stands for all weights."""
_ALPHA, _RATE = 16.0, 0.01


def _start(puzzle: Puzzle, rank: int, seed: int) -> nn.Module:
    """A network after a few supervised steps on a puzzle, or an adapter of it."""
    base = pretrained_network(puzzle, seed=seed)
    return LowRankNetwork(base, rank=rank, alpha=_ALPHA, seed=seed) if rank else base


def claims_of(rewarded: dict[int, float], copied: dict[int, float]) -> list[BoundedClaim]:
    """Claims on the share solved after RL, and the share of random answers copied, by rank (0: all weights)."""
    return [
        at_least("solved after RL, rank 2 over all weights", rewarded[2] / max(rewarded[0], 1e-6), 0.8),
        at_most("random answers copied, rank 2 over all weights", copied[2] / max(copied[0], 1e-6), 0.75),
        at_least("random answers copied, rank 16 minus rank 1", copied[16] - copied[1], 0.15),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    runs, steps, puzzle = (1 if quick else 3), 60, addition()
    paths: dict[int, list[Floats]] = {rank: [] for rank in _RANKS}
    copied: dict[int, list[float]] = {rank: [] for rank in _RANKS}
    for run_seed in range(10 * seed, 10 * seed + runs):
        draws = generator(run_seed, "lab/answers").integers(0, puzzle.vocab_size, puzzle.answers.shape)
        table = replace(puzzle, answers=draws)  # answers that have nothing to do with the questions: only to be stored
        for rank in _RANKS:
            policy = _start(puzzle, rank, run_seed)
            plan = PuzzleTraining(puzzle=puzzle, steps=steps, learning_rate=_RATE)
            paths[rank].append(
                train_policy(policy, plan, seed=run_seed, watch=lambda now: puzzle_metrics(now, puzzle))["solved"]
            )
            student = _start(puzzle, rank, run_seed)
            train_supervised(student, table, steps=steps, rate=_RATE)
            copied[rank].append(float(success_probabilities(student, table).mean()))
    counts = {
        rank: sum(one.numel() for one in _start(puzzle, rank, 0).parameters() if one.requires_grad) for rank in _RANKS
    }
    solved = {rank: float(np.mean([path[-1] for path in each])) for rank, each in paths.items()}
    stored = {rank: float(np.mean(each)) for rank, each in copied.items()}
    names = {rank: f"rank {rank}" if rank else "all weights" for rank in _RANKS}
    return ExperimentResult(
        header=("trained", "numbers trained", "solved after RL", "random answers copied"),
        rows=[
            (names[rank], f"{counts[rank]:,}", format_number(solved[rank]), format_number(stored[rank]))
            for rank in _RANKS
        ],
        panels=[
            plot_by_step(
                "additions solved, learned from rewards",
                {names[rank]: np.stack(each) for rank, each in paths.items()},
            ),
            bar_plot("random answers copied, by supervised steps", {names[rank]: copied[rank] for rank in _RANKS}),
        ],
        verdict=(
            f"After {steps} steps of RL an adapter of rank 2, with {counts[2] / counts[0]:.0%} of the numbers, solves "
            f"{solved[2]:.0%} of the additions, and all weights {solved[0]:.0%}. After as many supervised steps on "
            f"random answers it has copied {stored[2]:.0%}, rank 16 {stored[16]:.0%} and all weights {stored[0]:.0%}: "
            "a reward carries few bits, a table of answers many."
        ),
        claims=claims_of(solved, stored),
    )


EXPERIMENT = Experiment(
    title="Rank of LoRA",
    question="How small may an adapter be, in RL and in imitation?",
    run=_run,
    source="Hu et al., 2021; Schulman et al., LoRA Without Regret, 2025",
)
