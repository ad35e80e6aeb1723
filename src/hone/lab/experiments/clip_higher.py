"""Clip higher: batches until a rare right answer is learned, and the entropy meanwhile."""

from functools import partial

import torch
from torch import nn

from hone.lab.exact import minimise
from hone.lab.finding import (
    BoundedClaim,
    Experiment,
    ExperimentResult,
    LinePlot,
    PlotSeries,
    at_least,
    at_most,
    plot_by_step,
)
from hone.lab.policies import TablePolicy
from hone.lab.training import PuzzleBatch, PuzzleTraining, final_accuracy, train_seeds
from hone.objectives.policy import clipped_surrogate
from hone.objectives.terms import LossTerms
from hone.run.report.html import format_number

_LOW = 0.2
_HIGHS = (0.2, 0.28, 0.5)
_TOKENS, _RARE = 20, 0.002


def _batches_to_half(chance: float, high: float, *, inner: int) -> list[float]:
    """Probability of the right token after each batch, until it is 1/2; a batch is the whole distribution, used until
    the clip has stopped the gradient.
    """
    rest = (1 - chance) / (_TOKENS - 1)
    policy = TablePolicy(torch.tensor([[chance] + [rest] * (_TOKENS - 1)]).log())
    right = torch.zeros(_TOKENS)
    right[0] = 1.0
    path = [chance]
    while path[-1] < 0.5 and len(path) < 90:
        then = torch.log_softmax(policy.logits.detach()[0], dim=0)
        minimise(partial(_surrogate, policy, then, right, high), list(policy.parameters()), steps=inner, rate=0.003)
        path.append(float(torch.softmax(policy.logits.detach()[0], dim=0)[0]))
    return path


def _surrogate(policy: TablePolicy, then: torch.Tensor, right: torch.Tensor, high: float) -> torch.Tensor:
    """The clipped surrogate of all tokens `[TOKENS]`, each weighted by its probability under `then`."""
    chance = then.exp()
    terms = clipped_surrogate(torch.log_softmax(policy.logits[0], dim=0), then, right - chance[0], low=_LOW, high=high)
    return (chance * terms.loss).sum()


def _objective(policy: nn.Module, batch: PuzzleBatch, *, high: float) -> LossTerms:
    """Clipped surrogate with an upper width of `high`."""
    return clipped_surrogate(batch.logp(policy), batch.old_logp, batch.advantage, low=_LOW, high=high)


def claims_of(batches: dict[float, int], narrow: float, dapo: float, wide: float, change: float) -> list[BoundedClaim]:
    """Claims on the number of `batches` by upper clip (the three in order), and on the `change` of the entropy."""
    return [
        at_least("batches until a rare right answer is at 1/2, clip 0.2", batches[narrow], 10),
        at_most("the same, 0.28 over 0.2", batches[dapo] / batches[narrow], 0.9),
        at_most("the same, 0.5 over 0.2", batches[wide] / batches[narrow], 0.7),
        at_most("entropy in training, 0.28 over 0.2, differs by", abs(change), 0.25),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    steps, runs = (15, 1) if quick else (30, 2)
    paths = {high: _batches_to_half(_RARE, high, inner=120) for high in _HIGHS}
    result = {
        high: train_seeds(
            PuzzleTraining(objective=partial(_objective, high=high), steps=steps, epochs=8, learning_rate=0.004),
            seed=seed,
            runs=runs,
        )
        for high in _HIGHS
    }
    entropy = {high: float(each["entropy_nats"].mean()) for high, each in result.items()}
    solved = {high: final_accuracy(each) for high, each in result.items()}
    batches = {high: len(path) - 1 for high, path in paths.items()}
    narrow, dapo, wide = _HIGHS
    change = entropy[dapo] / entropy[narrow] - 1
    return ExperimentResult(
        header=("upper clip", "batches from 0.2% to 50%", "solved in training", "mean entropy in training, nats"),
        rows=[(format_number(h), str(batches[h]), format_number(solved[h]), format_number(entropy[h])) for h in _HIGHS],
        panels=[
            LinePlot(
                title="probability of a rare right answer, after each fully used batch",
                x_label="batch",
                series=[
                    PlotSeries(label=f"upper clip {h}", x=list(range(len(path))), y=path) for h, path in paths.items()
                ],
            ),
            plot_by_step(
                "entropy while additions are learned, nats",
                {f"upper clip {h}": each["entropy_nats"] for h, each in result.items()},
            ),
        ],
        verdict=(
            f"A right answer of probability {_RARE} needs {batches[narrow]} fully used batches to reach 1/2 under an "
            f"upper clip of {narrow}, {batches[dapo]} under {dapo} and {batches[wide]} under {wide}. A higher entropy "
            f"does not show on additions: the mean entropy changes by {change:+.0%}."
        ),
        claims=claims_of(batches, narrow, dapo, wide, change),
    )


EXPERIMENT = Experiment(
    title="Clip higher",
    question="Does a wider upper clip help rare right answers, and does it keep up the entropy?",
    run=_run,
    source="Yu et al., 2025 (DAPO)",
)
