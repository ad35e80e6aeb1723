"""The longest answer: slots that stand empty until a step's last answer has ended, computed and measured."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hone.core.generation import Request, SamplingParams
from hone.core.random import generator
from hone.engine.samples import PrefillGroup, SampleState
from hone.engine.scheduler import Scheduler, SchedulerLimits
from hone.engine.session import StopRules, TokenizerRules
from hone.engine.work import SamplerOutput
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, bar_plot, line_plot

_SLOTS, _LONGEST, _MEDIAN, _SPREAD = 32, 400, 40.0, 0.5
"""Answers of a step, all generated at once; lengths are log-normal with this spread of their logarithm, cut at the
longest."""
_UPDATE = 60
"""Duration of an update, in forward passes."""
_AHEAD = (0, 1, 2, 4)
_PAGE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _GenerationUse:
    """Use of an engine by a training run, in forward passes."""

    passes: int
    """Time of the whole run, updates included."""
    tokens: int

    @property
    def slot_use(self) -> float:
        """Share of the slots in which an answer was written."""
        return self.tokens / (self.passes * _SLOTS)


def _length_cdf(length: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probability that an answer has at most so many tokens."""
    below = np.array([0.5 * math.erfc(-math.log(one / _MEDIAN) / (_SPREAD * math.sqrt(2))) for one in length])
    return np.where(length >= _LONGEST, 1.0, below)


class _ScriptedEngine:
    """hone's scheduler over a model that answers with given lengths; a pass takes one unit of time."""

    def __init__(self) -> None:
        pages = -(-(_LONGEST + 1) // _PAGE)
        limits = SchedulerLimits(
            slots=_SLOTS,
            pages=4 * pages * _SLOTS,
            page_tokens=_PAGE,
            sequence_tokens=_LONGEST + 1,
            pass_tokens=4 * _SLOTS,
        )
        self.scheduler = Scheduler(limits)
        self.ends = StopRules(TokenizerRules(eos=(), vocab=2))
        self.left: dict[int, int] = {}
        """Unfinished answers of each batch."""
        self.tokens = 0

    def submit(self, batch: int, lengths: NDArray[np.int64]) -> None:
        """Queue the answers of a batch."""
        self.left[batch] = len(lengths)
        for place, length in enumerate(lengths.tolist()):
            order = 2 * (batch * _SLOTS + place)
            sampling = SamplingParams(max_tokens=length, greedy=True)
            request = Request(id=str(batch), prompt=np.zeros(1, np.int32), samples=1, sampling=sampling)
            sample = SampleState(order + 1, request, place, np.zeros)
            self.scheduler.add(PrefillGroup(order, request.prompt, [sample]))

    def run_pass(self) -> None:
        """Run one pass; nothing happens without answers to write."""
        plan = self.scheduler.plan()
        if plan is None:
            return
        draws = len(plan.batch.draws.token_index)
        zeros = np.zeros(draws, np.float32)
        drawn = SamplerOutput(token=np.zeros(draws, np.int32), logp=zeros, sampled_logp=zeros, sampling_mask_bits=None)
        for sample, _ in self.scheduler.apply_results(plan, drawn, self.ends).finished:
            self.left[int(sample.request.id)] -= 1
        self.tokens += draws


def _run_schedule(lengths: NDArray[np.int64], *, ahead: int, one_by_one: bool = False) -> _GenerationUse:
    """Generate and learn from batches `[batches, n]`. A batch begins while fewer than `ahead + 1` are begun and not
    learnt from, and, with `one_by_one`, after the batch before it has ended."""
    engine = _ScriptedEngine()
    time, begun, learnt, free_at = 0, 0, 0, 0
    updating = False
    while learnt < len(lengths):
        if updating and time >= free_at:
            learnt, updating = learnt + 1, False
        while begun < min(len(lengths), learnt + ahead + 1) and not (one_by_one and begun and engine.left[begun - 1]):
            engine.submit(begun, lengths[begun])
            begun += 1
        if not updating and learnt < begun and not engine.left[learnt]:
            updating, free_at = True, time + _UPDATE
        engine.run_pass()
        time += 1
    return _GenerationUse(passes=time, tokens=engine.tokens)


def claims_of(
    expected: float, measured: float, steps: dict[int, float], use: dict[int, float], sequential: float
) -> list[BoundedClaim]:
    """Claims on the bubble of a synchronous step, computed and measured, on passes of a step and the use of the slots
    by the number of steps ahead, and on the passes of a step with batches one after another."""
    return [
        at_most("bubble of generation, measured less computed, size", abs(measured - expected), 0.05),
        at_least("bubble of generation in a synchronous step", measured, 0.4),
        at_most("passes of a step, 1 ahead over synchronous", steps[1] / steps[0], 0.7),
        at_least("use of the slots, 1 ahead over synchronous", use[1] / use[0], 1.4),
        at_most("passes of a step, 1 ahead, freed slots filled over batch after batch", steps[1] / sequential, 0.95),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    batches = 16 if quick else 80
    draws = _MEDIAN * np.exp(_SPREAD * generator(seed, "lab/longest").standard_normal((batches, _SLOTS)))
    lengths = np.clip(np.ceil(draws), 1, _LONGEST).astype(np.int64)
    schedules = {ahead: _run_schedule(lengths, ahead=ahead) for ahead in _AHEAD}
    steps = {ahead: one.passes / batches for ahead, one in schedules.items()}
    use = {ahead: one.slot_use for ahead, one in schedules.items()}
    sequential = _run_schedule(lengths, ahead=1, one_by_one=True)
    cdf = _length_cdf(np.arange(1.0, _LONGEST + 1))
    # 1 - E[mean length] / E[longest of a step]: sums of 1 - F and of 1 - F^n, where n answers are written at once
    expected = 1 - float((1 - cdf).sum() + 1) / float((1 - cdf**_SLOTS).sum() + 1)
    measured = 1 - lengths.sum() / (_SLOTS * (schedules[0].passes - _UPDATE * batches))
    after_another = sequential.passes / batches
    shown = np.arange(1, _LONGEST + 1, 5, dtype=np.float64)
    return ExperimentResult(
        header=("schedule", "passes a step", "slots in use"),
        rows=[
            ("synchronous", f"{steps[0]:.0f}", f"{use[0]:.0%}"),
            ("1 ahead, batch after batch", f"{after_another:.0f}", f"{sequential.slot_use:.0%}"),
            *(
                (f"{ahead} ahead, freed slots filled", f"{steps[ahead]:.0f}", f"{use[ahead]:.0%}")
                for ahead in _AHEAD[1:]
            ),
        ],
        panels=[
            bar_plot("share of the slots in use", {f"{ahead} ahead": use[ahead] for ahead in _AHEAD}),
            line_plot(
                "probability of at most so many tokens", "tokens", shown,
                {"an answer": _length_cdf(shown), f"the longest of {_SLOTS}": _length_cdf(shown) ** _SLOTS},
            ),
        ],
        verdict=(
            f"A synchronous step waits for the longest of {_SLOTS} answers: {expected:.0%} of the slots' time of "
            f"generation is empty by computation, {measured:.0%} measured with hone's scheduler. With the update of "
            f"{_UPDATE} passes a step takes {steps[0]:.0f} passes. One batch ahead takes {after_another:.0f} if "
            f"batches are written one after another, and {steps[1]:.0f} if the next batch fills the slots that become "
            f"free; {use[1]:.0%} of them are then in use, against {use[0]:.0%}."
        ),
        claims=claims_of(expected, measured, steps, use, after_another),
    )  # fmt: skip


EXPERIMENT = Experiment(
    title="The longest answer",
    question="How much of a synchronous step waits for its longest answer, and does generating ahead fill it?",
    run=_run,
    source="Fu et al., 2025 (AReaL)",
)
