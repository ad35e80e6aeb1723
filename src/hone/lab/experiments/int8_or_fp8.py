"""INT8 or FP8: how far the policy that answers moves from the trainer's, by the numbers that it multiplies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, bar_plot
from hone.lab.policies import NetworkPolicy, answer_paths, log_softmax, make_network, train_supervised
from hone.lab.puzzles import Floats, addition
from hone.run.report.html import format_number

_Rounding = Callable[[Tensor], Tensor]
"""Rows of numbers -> the nearest ones that the format holds."""
_WIDTH, _STEPS, _BLOCK = 256, 60, 32
_FP8_MOST = 448.0
"""The largest number of e4m3."""


def _exact(rows: Tensor) -> Tensor:
    """The numbers themselves."""
    return rows


def _bfloat16(rows: Tensor) -> Tensor:
    """8 significant bits at every size."""
    return rows.bfloat16().float()


def _int8(rows: Tensor) -> Tensor:
    """Whole multiples, at most 127, of a scale of each row: its largest magnitude / 127."""
    scale = rows.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30) / 127
    return (rows / scale).round() * scale


def _fp8(rows: Tensor) -> Tensor:
    """Numbers of 4 significant bits (e4m3) times a scale of each row, which brings its largest to 448."""
    scale = rows.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30) / _FP8_MOST
    return (rows / scale).to(torch.float8_e4m3fn).float() * scale


def _int4(rows: Tensor) -> Tensor:
    """Whole multiples, at most 7, of a scale of each block of 32 numbers."""
    blocks = rows.reshape(*rows.shape[:-1], -1, _BLOCK)
    scale = blocks.abs().amax(dim=-1, keepdim=True).clamp(min=1e-30) / 7
    return ((blocks / scale).round() * scale).reshape(rows.shape)


@dataclass(frozen=True)
class _NumberFormat:
    """What the weights and the inputs of a product are rounded to."""

    weights: _Rounding
    inputs: _Rounding


FORMATS: Final[Mapping[str, _NumberFormat]] = {
    "bfloat16": _NumberFormat(_bfloat16, _bfloat16),
    "INT8 weights": _NumberFormat(_int8, _exact),
    "W8A8": _NumberFormat(_int8, _int8),
    "FP8 e4m3": _NumberFormat(_fp8, _fp8),
    "INT4 weights": _NumberFormat(_int4, _exact),
}
"""From the nearest to the farthest, as claimed."""


class _RoundedNetwork(nn.Module):
    """A network whose products take rounded weights and inputs; the embedding of its features stays."""

    def __init__(self, policy: NetworkPolicy, numbers: _NumberFormat) -> None:
        super().__init__()
        self.policy, self.numbers = policy, numbers

    def forward(self, seen: Tensor) -> Tensor:
        hidden = torch.tanh(self.policy.features[seen + self.policy.starts].sum(dim=1))
        hidden = torch.tanh(self._product(hidden, self.policy.mixing.T))
        return self._product(hidden, self.policy.out)

    def _product(self, x: Tensor, weight: Tensor) -> Tensor:
        return self.numbers.inputs(x) @ self.numbers.weights(weight).T


def _divergence(policy: nn.Module, other: nn.Module, seen: Tensor) -> float:
    """Mean of KL(policy || other) over `seen`, in nats; sums in float64, for it is small."""
    with torch.no_grad():
        mine, theirs = log_softmax(policy, seen).double(), log_softmax(other, seen).double()
        return float((torch.expm1(theirs - mine) - (theirs - mine)).mul(mine.exp()).sum(dim=1).mean())


def claims_of(nats: Mapping[str, Floats]) -> list[BoundedClaim]:
    """Claims on the mean KL to the trainer's policy by format, over runs `[runs]`."""
    mean = {name: float(np.mean(each)) for name, each in nats.items()}
    return [
        at_most("KL of bfloat16 over that of INT8 weights", mean["bfloat16"] / mean["INT8 weights"], 0.8),
        at_most("KL of INT8 weights over that of W8A8", mean["INT8 weights"] / mean["W8A8"], 0.9),
        at_least("KL of FP8 over that of W8A8", mean["FP8 e4m3"] / mean["W8A8"], 2.0),
        at_least("KL of INT4 weights over that of FP8", mean["INT4 weights"] / mean["FP8 e4m3"], 1.2),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    puzzle, runs = addition(), (2 if quick else 6)
    seen, _ = answer_paths(puzzle)
    nats: dict[str, list[float]] = {name: [] for name in FORMATS}
    largest: dict[str, list[float]] = {name: [] for name in FORMATS}
    for run_seed in range(100 * seed, 100 * seed + runs):
        policy = make_network(puzzle, seed=run_seed, width=_WIDTH)
        train_supervised(policy, puzzle, steps=_STEPS, rate=0.003)
        with torch.no_grad():
            trainer = log_softmax(policy, seen)
            for name, numbers in FORMATS.items():
                rounded = _RoundedNetwork(policy, numbers)
                nats[name].append(_divergence(rounded, policy, seen))
                largest[name].append(float((log_softmax(rounded, seen) - trainer).abs().max()))
    measured = {name: np.array(each) for name, each in nats.items()}
    ratio = float(np.mean(measured["FP8 e4m3"]) / np.mean(measured["W8A8"]))
    return ExperimentResult(
        header=("products of", "KL to the trainer's policy, nats", "largest difference of a log-probability"),
        rows=[(name, f"{np.mean(nats[name]):.2g}", format_number(float(np.mean(largest[name])))) for name in FORMATS],
        panels=[
            bar_plot("log10 of the KL to the trainer's policy, nats", {n: np.log10(v) for n, v in measured.items()})
        ],
        verdict=(
            f"The policy moves least in bfloat16 ({np.mean(measured['bfloat16']):.1g} nats) and further with INT8 "
            f"weights, W8A8 ({np.mean(measured['W8A8']):.1g}), FP8 and INT4 weights "
            f"({np.mean(measured['INT4 weights']):.1g}), in this order. With a scale for each row, 8 bits of a whole "
            f"number are worth more than 8 bits of a float: the KL of FP8 is {ratio:.0f} times that of W8A8."
        ),
        claims=claims_of(measured),
    )


EXPERIMENT = Experiment(
    title="INT8 or FP8",
    question="Which arithmetic of the answers stays nearest to the trainer's?",
    run=_run,
    source="FlashRL, 2025; Micikevicius et al., FP8 Formats for Deep Learning, 2022",
)
