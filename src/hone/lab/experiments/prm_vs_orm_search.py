"""Verifiers of steps against verifiers of outcomes, as selectors of whole answers and inside a beam, at equal tokens.

An answer has six steps; which choice is right depends on the question. Both verifiers are learnt from the same
labelled answers and have one weight for each question digit and choice: the one of steps gets a label for each step,
the one of outcomes one for the whole answer. A beam of width 1 with branch B costs as many tokens as B whole answers.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from hone.core.generation import Completion, FinishReason, Request, SamplingParams, generate
from hone.core.ragged import Ints
from hone.core.random import generator, uniforms
from hone.lab.exact import gradient
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, Floats, at_least, bar_plot
from hone.objectives.reward_model import step_regression
from hone.text.search.plans import BeamPlan, BestOfPlan
from hone.text.search.searching import Candidate, CandidateScores, Searching, SearchTools

_STEPS, _DIGITS, _CHOICES, _PROBLEMS, _BRANCH = 6, 12, 5, 200, 4
FEW, MANY = 60, 3000
"""Labelled answers."""
ORM, PRM = "outcomes", "steps"
_Kind: TypeAlias = Literal["outcomes", "steps"]
_SEPARATOR, _END = _CHOICES, _CHOICES + 1
"""Tokens beside the choices: the end of a step, the end of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _StepTask:
    """Questions of `_STEPS` digits; the step at a digit is a choice, and one choice is right."""

    right: Ints
    """`[DIGITS]` right choice of each digit."""
    chances: Floats
    """`[DIGITS, CHOICES]` the policy's choice."""


def _make_task(seed: int) -> _StepTask:
    """A policy that is right with a chance of 0.5 to 0.65 at each step; its wrong choices are uneven habits."""
    random = generator(seed, "lab/steps")
    right = random.integers(0, _CHOICES, _DIGITS)
    chances = random.dirichlet(np.ones(_CHOICES), _DIGITS)
    chances[np.arange(_DIGITS), right] = 0.0
    chances *= (1 - random.uniform(0.5, 0.65, _DIGITS))[:, None] / chances.sum(axis=1, keepdims=True)
    chances[np.arange(_DIGITS), right] = 1 - chances.sum(axis=1)
    return _StepTask(right=right, chances=chances)


@dataclass
class _TableSession:
    """Implements `GenerationSession` with the policy of a task: a step is a choice and a separator."""

    task: _StepTask
    seed: int
    queue: deque[tuple[Request, int]] = field(default_factory=deque[tuple[Request, int]])

    def submit(self, requests: Sequence[Request], *, round: int = 0) -> None:
        del round
        self.queue.extend((one, one.first_sample + place) for one in requests for place in range(one.samples))

    def next_completion(
        self, request_ids: Collection[str] | None = None, *, wake: Callable[[], bool] | None = None
    ) -> Completion | None:
        del request_ids, wake
        return self._draw(*self.queue.popleft()) if self.queue else None

    def cancel(self, request_ids: Collection[str] | None = None) -> None:
        del request_ids
        self.queue.clear()

    def reset_stats(self) -> None: ...

    def _draw(self, request: Request, sample: int) -> Completion:
        digits, written = request.prompt[:_STEPS], (len(request.prompt) - _STEPS) // 2
        draws = uniforms(self.seed, "lab/draw", request.id, request.turn, sample, count=_STEPS)
        ends = written + 1 if request.sampling.stop else _STEPS
        tokens: list[int] = []
        for step in range(written, ends):
            row = np.cumsum(self.task.chances[digits[step]])
            tokens += [min(int(np.searchsorted(row, draws[step], side="right")), _CHOICES - 1), _SEPARATOR]
        whole = ends == _STEPS
        tokens += [_END] if whole else []
        unknown = np.zeros(len(tokens), np.float32)
        reason: FinishReason = "eos" if whole else "stop"
        return Completion(
            request_id=request.id,
            sample_index=sample,
            tokens=np.array(tokens, np.int32),
            logp=unknown,
            sampled_logp=unknown,
            version=unknown.astype(np.int32),
            finish_reason=reason,
        )


def _choices_of(one: Candidate) -> NDArray[np.int32]:
    """`[steps]` choices of a candidate."""
    return one.tokens[one.tokens < _CHOICES]


@dataclass(frozen=True, slots=True, kw_only=True)
class _TableScorer:
    """Implements `CandidateScorer`: log-odds of steps, of which the weakest counts, or their sum for an outcome."""

    kind: _Kind
    weights: Floats
    """`[DIGITS, CHOICES]`."""

    def score(self, asked: Sequence[tuple[Request, Sequence[Candidate]]]) -> list[CandidateScores]:
        scores: list[CandidateScores] = []
        for request, some in asked:
            digits = [self.weights[request.prompt[: len(_choices_of(one))], _choices_of(one)] for one in some]
            values = [float(row.min() if self.kind == PRM else row.sum()) for row in digits]
            scores.append(CandidateScores(values=np.array(values), tokens_read=np.zeros(len(some), np.int64)))
        return scores


def _questions(count: int, *, seed: int, stream: str) -> Ints:
    """`[count, STEPS]` digits."""
    return generator(seed, f"lab/{stream}").integers(0, _DIGITS, (count, _STEPS))


def _learn(task: _StepTask, kind: _Kind, answers: int, seed: int) -> _TableScorer:
    """A verifier learnt from `answers` answers of the policy, labelled by step or as a whole."""
    digits = _questions(answers, seed=seed, stream="labelled")
    draws = generator(seed, "lab/labelled answers").random((answers, _STEPS, 1))
    chosen = (np.cumsum(task.chances[digits], axis=2) < draws).sum(axis=2).clip(max=_CHOICES - 1)
    right = chosen == task.right[digits]
    place = torch.from_numpy(digits * _CHOICES + chosen)
    label = torch.from_numpy(right if kind == PRM else right.all(axis=1)).double()
    table = torch.zeros(_DIGITS * _CHOICES + 1, dtype=torch.float64)
    for _ in range(300):
        table.requires_grad_(True)
        rows = table[place]
        logit = rows if kind == PRM else rows.sum(dim=1) + table[-1]
        loss = step_regression(logit.flatten(), label.flatten()).loss.mean() + 1e-4 * table.square().sum()
        table = (table - (20.0 if kind == PRM else 4.0) * gradient(loss, table)).detach()
    return _TableScorer(kind=kind, weights=table[:-1].reshape(_DIGITS, _CHOICES).numpy())


def _solved(task: _StepTask, scorer: _TableScorer, plan: BeamPlan | BestOfPlan, seed: int) -> tuple[float, float]:
    """Share of the questions whose selected answer is right in every step, and tokens drawn for each."""
    digits = _questions(_PROBLEMS, seed=seed, stream="held out")
    sampling = SamplingParams(max_tokens=2 * _STEPS + 1)
    asked = [
        Request(id=str(n), prompt=row.astype(np.int32), samples=1, sampling=sampling) for n, row in enumerate(digits)
    ]
    tools = SearchTools(decode=lambda tokens: ";" * int((tokens == _SEPARATOR).sum()), scorer=scorer, step=";")
    search = Searching(_TableSession(task, seed), plan, tools)
    right = [
        bool((one.tokens[one.tokens < _CHOICES] == task.right[digits[int(one.request_id)]]).all())
        for one in generate(search, asked)
    ]
    return float(np.mean(right)), float(np.mean([cost.drawn_tokens for cost in search.costs.values()]))


def claims_of(shares: Mapping[tuple[_Kind, int, str], float]) -> list[BoundedClaim]:
    """Claims on the share of solved questions by kind of labels, their number, and way (`whole`, `beam`, `wide`)."""

    def gain(kind: _Kind, answers: int) -> float:
        return shares[kind, answers, "beam"] - shares[kind, answers, "whole"]

    return [
        at_least("beam minus best of as many answers, step labels", gain(PRM, FEW), 0.15),
        at_least(f"step labels minus outcome labels in a beam, {FEW} answers",
                 shares[PRM, FEW, "beam"] - shares[ORM, FEW, "beam"], 0.15),
        at_least(f"outcome labels minus step labels in a beam, {MANY} answers",
                 shares[ORM, MANY, "beam"] - shares[PRM, MANY, "beam"], -0.1),
        at_least(f"beam minus best of as many answers, outcome labels of {MANY}", gain(ORM, MANY), 0.15),
    ]  # fmt: skip


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    del quick
    task = _make_task(seed)
    plans = {"whole": BestOfPlan(n=_BRANCH), "beam": BeamPlan(width=1, branch=_BRANCH)}
    shares: dict[tuple[_Kind, int, str], float] = {}
    tokens = dict[str, float]()
    for answers in (FEW, MANY):
        for kind in (ORM, PRM):
            scorer = _learn(task, kind, answers, seed)
            for name, plan in plans.items():
                shares[kind, answers, name], tokens[name] = _solved(task, scorer, plan, seed)
    return ExperimentResult(
        header=("labels", "labelled answers", f"best of {_BRANCH}", f"beam 1x{_BRANCH}"),
        rows=[
            (kind, f"{answers:,}", f"{shares[kind, answers, 'whole']:.1%}", f"{shares[kind, answers, 'beam']:.1%}")
            for answers in (FEW, MANY)
            for kind in (ORM, PRM)
        ],
        panels=[
            bar_plot(
                "solved questions",
                {f"{kind}, {answers:,} answers, {name}": share for (kind, answers, name), share in shares.items()},
            )
        ],
        verdict=(
            f"With {FEW} labelled answers a beam by a verifier of steps solves {shares[PRM, FEW, 'beam']:.0%} of the "
            f"questions at {tokens['beam']:.0f} tokens, best of {_BRANCH} by it {shares[PRM, FEW, 'whole']:.0%} at "
            f"{tokens['whole']:.0f}, and a beam by a verifier of outcomes {shares[ORM, FEW, 'beam']:.0%}. With "
            f"{MANY:,} answers outcomes are enough for {shares[ORM, MANY, 'beam']:.0%}, and steps for "
            f"{shares[PRM, MANY, 'beam']:.0%}."
        ),
        claims=claims_of(shares),
    )


EXPERIMENT = Experiment(
    title="verifiers of steps and of outcomes under search",
    question="Do labels of steps solve more than labels of outcomes, at equal tokens and labelled answers?",
    run=_run,
    source="Lightman et al., 2023; Snell et al., 2024",
)
