"""Token or sequence ratios with noisy log-probabilities, as when a mixture of experts routes differently."""

import numpy as np
import torch
from torch import nn

from hone.core.random import generator
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.lab.puzzles import parity
from hone.lab.training import Objective, PuzzleBatch, PuzzleTraining, final_accuracy, train_seeds
from hone.objectives.policy import clipped_surrogate
from hone.objectives.sequence import gspo
from hone.objectives.terms import LossTerms
from hone.objectives.weights import sequence_mean
from hone.run.report.html import format_number

_LENGTHS = (1, 4, 16, 64, 256)
_SHARE, _SIZE = 0.1, 1.0
"""One token in ten is routed to other experts, which changes its log-probability by about a nat."""


def _routing_noise(shape: int, *, seed: int, step: int) -> torch.Tensor:
    """Errors of log-probabilities `[shape]`, in nats."""
    draws = generator(seed, "lab/routing", step)
    return torch.from_numpy(np.where(draws.random(shape) < _SHARE, _SIZE * draws.standard_normal(shape), 0.0)).float()


def _distortion(length: int, *, seed: int) -> dict[str, tuple[float, float]]:
    """Answers that differ by noise only: spread of the gradient's factor, and share without gradient."""
    count = 4096 // length * length
    noise = _routing_noise(count, seed=seed, step=length)
    advantage = torch.where(torch.arange(count) // length % 2 == 0, 1.0, -1.0)
    sequence = torch.arange(count) // length
    result: dict[str, tuple[float, float]] = {}
    for name in ("token ratios", "sequence ratio"):
        now = torch.zeros(count, requires_grad=True)
        if name == "token ratios":
            terms = clipped_surrogate(now, noise, advantage)
        else:
            terms = gspo(now, noise, advantage, sequence, low=0.2, high=0.2)
        terms.loss.sum().backward()
        assert now.grad is not None
        factor = -now.grad / advantage
        result[name] = (float(factor.std()), float(terms.metrics["policy/clip_fraction"].mean()))
    return result


def _objective_with(*, by_sequence: bool, noisy: bool, seed: int) -> Objective:
    """Loss with a sequence or token ratio, with or without noise."""

    def objective(policy: nn.Module, batch: PuzzleBatch) -> LossTerms:
        now = batch.logp(policy)
        # errors are a function of the tokens: the same tokens have the same errors
        then = batch.old_logp
        if noisy:
            then = then + _routing_noise(len(then), seed=seed, step=int(batch.old_logp.sum().abs() * 1000))
        if by_sequence:
            return gspo(now, then, batch.advantage, batch.episode, low=0.2, high=0.2)
        return clipped_surrogate(now, then, batch.advantage)

    return objective


def _train_parity(*, by_sequence: bool, noisy: bool, seed: int, steps: int, runs: int) -> float:
    """Final share of parities solved."""
    plan = PuzzleTraining(
        puzzle=parity(6),
        objective=_objective_with(by_sequence=by_sequence, noisy=noisy, seed=seed),
        scheme=sequence_mean,
        steps=steps,
        prompts=32,
    )
    return final_accuracy(train_seeds(plan, seed=seed, runs=runs))


def claims_of(long: int, noise: dict[int, dict[str, tuple[float, float]]]) -> list[BoundedClaim]:
    """Claims on the spread and the clipped share by length and ratio; `long` is the longest."""
    token, sequence = "token ratios", "sequence ratio"
    return [
        at_least(f"spread of the gradient's factor, {long} tokens, token ratios", noise[long][token][0], 0.2),
        at_most("the same, sequence over token ratios", noise[long][sequence][0] / noise[long][token][0], 0.2),
        at_least("clipped by noise alone, token ratios", noise[long][token][1], 0.01),
        at_most("clipped by noise alone, sequence ratio", noise[long][sequence][1], 0.001),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    steps, runs, lengths = (10, 1, (1, 16, 256)) if quick else (60, 2, _LENGTHS)
    noise = {length: _distortion(length, seed=seed) for length in lengths}
    solved = {
        (name, noisy): _train_parity(by_sequence=by_sequence, noisy=noisy, seed=seed, steps=steps, runs=runs)
        for name, by_sequence in (("token ratios", False), ("sequence ratio", True))
        for noisy in (False, True)
    }
    token, sequence = "token ratios", "sequence ratio"
    long = lengths[-1]
    return ExperimentResult(
        header=("ratio", *(f"spread, {n} tokens" for n in lengths), "solved, no noise", "solved, noise"),
        rows=[
            (
                name,
                *(format_number(noise[n][name][0]) for n in lengths),
                f"{solved[name, False]:.1%}",
                f"{solved[name, True]:.1%}",
            )
            for name in (token, sequence)
        ],
        panels=[
            line_plot(
                "spread of the gradient's factor, from noise alone",
                "length of the answer, log2 of tokens",
                np.log2(lengths),
                {name: [noise[n][name][0] for n in lengths] for name in (token, sequence)},
            )
        ],
        verdict=(
            f"If one token in {1 / _SHARE:.0f} has a log-probability error of {_SIZE:.0f} nat, the token ratios of "
            f"answers of {long} tokens scale gradients with a standard deviation of {noise[long][token][0]:.2f} and "
            f"clip {noise[long][token][1]:.1%} of the tokens without cause; the sequence ratio "
            f"{noise[long][sequence][0]:.3f} and {noise[long][sequence][1]:.1%}. On parities of 6 tokens both survive "
            f"the noise: the share solved changes by {solved[token, True] - solved[token, False]:+.1%} and "
            f"{solved[sequence, True] - solved[sequence, False]:+.1%}."
        ),
        claims=claims_of(long, noise),
    )


EXPERIMENT = Experiment(
    title="Ratios by sequence or by token",
    question="Does GSPO's sequence ratio reduce the effect of noise in token log-probabilities?",
    run=_run,
    source="Zheng et al., 2025 (GSPO)",
)
