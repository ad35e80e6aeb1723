"""Debugging of a failed run by its capsule: the first tensor that is not finite, and the rows that caused it.

Belongs here: the examination of a batch. An update is repeated under a watch over every operation of torch, which names
the first one that makes a NaN or an infinity of finite numbers, with the line of Python that asked for it. Then the
rows are halved until the fewest are left whose loss or gradient is not finite.
"""

import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hone.core.credit import Credits
from hone.core.episodes import Episodes, Transcript
from hone.core.errors import ConfigError
from hone.learner.gradient import GradientLearner, OptimizerPhase, TrainingRows
from hone.run.capsule import FailedBatch, FailureRecord
from hone.run.job import TrainingJob
from hone.text.rows import TokenRows

SHOWN = 8
"""Rows, parameters and columns that a report names at most."""
MASKING = ("full", "fill", "masked", "where", "scalar_tensor", "constant", "empty", "new_")
"""Operations that write an infinity on purpose, as attention masks do."""
_HERE = Path(__file__).name


# ------------------------------------------------------------------------------------------------------------ the watch


@dataclass(frozen=True, slots=True, kw_only=True)
class _BrokenTensor:
    """The first tensor that is not finite although all that it was made of is."""

    operation: str
    """Name in torch, such as `aten.sqrt`; `Backward` follows where a gradient is computed."""
    shape: tuple[int, ...]
    count: int
    """Elements that are not finite."""
    place: str
    """File, line and code in Python."""
    kind: str
    """`NaN` or `infinity`."""

    def words(self) -> str:
        """A sentence for a person."""
        return (
            f"{self.operation} gave {list(self.shape)} with {self.count} times {self.kind}, of finite numbers, at "
            f"{self.place}"
        )


class FiniteWatch(TorchDispatchMode):
    """Notes the first operation that makes a NaN, and the first that makes an infinity, of finite numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[str, _BrokenTensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # noqa: ANN401 - torch's
        result = func(*args, **(kwargs or {}))
        name = str(func).removesuffix(".default")
        if len(self.first) == 2 or any(mark in name for mark in MASKING):
            return result
        for tensor in _floats(result):
            for kind, broken in (("NaN", torch.isnan(tensor)), ("infinity", torch.isinf(tensor))):
                if kind in self.first or not bool(broken.any()):
                    continue
                if all(bool(torch.isfinite(one).all()) for one in _floats([args, kwargs])):
                    self.first[kind] = _BrokenTensor(
                        operation=name, shape=tuple(tensor.shape), count=int(broken.sum()), place=_place(), kind=kind
                    )
        return result


def _floats(values: object) -> Iterator[Tensor]:
    """Tensors of floats within lists, tuples and dicts."""
    if isinstance(values, Tensor):
        if values.is_floating_point() and values.numel():
            yield values
    elif isinstance(values, Mapping):
        for one in values.values():
            yield from _floats(one)
    elif isinstance(values, Sequence) and not isinstance(values, str):
        for one in values:
            yield from _floats(one)


def _place() -> str:
    """The innermost line of Python outside torch and this module."""
    for frame in reversed(traceback.extract_stack()):
        if "/torch/" not in frame.filename and Path(frame.filename).name != _HERE:
            return f"{frame.filename}:{frame.lineno}, in {frame.name}: {frame.line}"
    return "the backward pass"


# ------------------------------------------------------------------------------------------------------------ the batch


@dataclass(frozen=True, slots=True, kw_only=True)
class _BatchReport:
    """What an examination found; every list is empty where nothing is wrong."""

    columns: list[str]
    """Columns of the batch that hold what is not finite."""
    weights: list[str]
    """Weights that are not finite before the update."""
    tensor: _BrokenTensor | None
    phase: str
    """Phase of the update whose loss or gradient is not finite; empty where all are finite."""
    gradients: list[str] = field(default_factory=list[str])
    """Parameters whose gradient is not finite."""
    rows: list[int] = field(default_factory=list[int])
    """The fewest rows that cause it."""
    total_rows: int = 0
    shown: list[str] = field(default_factory=list[str])
    """These rows in words."""

    def lines(self) -> list[str]:
        """The report, line by line."""
        if not (self.columns or self.weights or self.phase):
            return ["loss and gradient are finite on this batch: the failure does not come from these rows and weights"]
        lines = [*self.columns, *self.weights]
        if self.tensor is not None:
            lines.append(f"first tensor that is not finite: {self.tensor.words()}")
        if self.gradients:
            lines.append(f"gradients that are not finite: {', '.join(self.gradients)}")
        if self.rows:
            lines.append(
                f"{len(self.rows)} of {self.total_rows} rows are enough for it: "
                f"{', '.join(map(str, self.rows[:SHOWN]))}{' ...' if len(self.rows) > SHOWN else ''}"
            )
        return [*lines, *self.shown]


def examine_batch(job: TrainingJob[Any], batch: FailedBatch) -> _BatchReport:
    """Repeat the losses and gradients of an update, phase by phase, until one is not finite. Nothing is stepped.

    Raises ConfigError for a recipe that does not learn by gradient.
    """
    learner = job.recipe.learner
    if not isinstance(learner, GradientLearner):
        raise ConfigError("this recipe does not learn by gradient: its update has no tensors to look at")
    columns, weights = _broken_columns(batch.episodes, batch.credits), _broken_weights(learner)
    everything = learner.layout(batch.episodes, batch.credits)
    count = len(everything)
    for phase in learner.phases:
        rows = everything.weighted(learner.reduction)
        if phase.prepare is not None:
            rows = phase.prepare(learner.policy, rows, learner.updates, learner.reduction)
        watch = FiniteWatch()
        if _is_finite(learner, phase, rows, watch):
            continue
        broken = smallest_cause(
            len(rows), lambda chosen, phase=phase, rows=rows: not _is_finite(learner, phase, rows.take(chosen))
        )
        named = phase.parameters.by_name(phase.parameters.gradients)
        bad = [name for name, gradient in named.items() if not bool(torch.isfinite(gradient).all())]
        return _BatchReport(
            columns=columns,
            weights=weights,
            tensor=watch.first.get("NaN") or watch.first.get("infinity"),
            phase=phase.name,
            gradients=bad[:SHOWN] + ([f"and {len(bad) - SHOWN} more"] if len(bad) > SHOWN else []),
            rows=broken.tolist(),
            total_rows=count,
            shown=_shown_rows(learner, phase, rows, broken, batch.episodes),
        )
    return _BatchReport(columns=columns, weights=weights, tensor=None, phase="", total_rows=count)


def _is_finite(
    learner: GradientLearner[Any, Any], phase: OptimizerPhase[Any, Any], rows: TrainingRows[Any],
    watch: FiniteWatch | None = None,
) -> bool:  # fmt: skip
    """Whether loss and gradient of `rows` are finite. The gradients stay in the parameters."""
    with phase.parameters.collect_gradients(), watch or nullcontext():
        batch = rows.tensors()
        loss = phase.objective(learner.policy, batch).weighted_sum(batch.weight)
        if loss.requires_grad:
            loss.backward()
    norm = float(phase.parameters.gradient_norm())
    return math.isfinite(float(loss.detach())) and math.isfinite(norm)


def smallest_cause(count: int, fails: Callable[[NDArray[np.int64]], bool]) -> NDArray[np.int64]:
    """The fewest of `count` rows for which `fails` holds, by halving; all of them where neither half fails by itself.

    O(log count) calls for a single culprit. Of several independent ones, one is returned.
    """
    rows = np.arange(count)
    while len(rows) > 1:
        half = len(rows) // 2
        part = next((part for part in (rows[:half], rows[half:]) if fails(part)), None)
        if part is None:
            return rows
        rows = part
    return rows


def _broken_columns(episodes: Episodes, credits: Credits) -> list[str]:
    """Columns with numbers that are not finite, and their episodes. A log-probability that is unknown is NaN, and so is
    a missing score; both are no fault."""
    owner = episodes.owner
    columns: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {
        "reward": (episodes.reward, owner),
        "advantage": (credits.advantage, owner),
    }
    if not np.isnan(episodes.logp).all():
        columns["logp"] = (episodes.logp, owner)
    if credits.target is not None:
        columns["target"] = (credits.target, owner)
    if not isinstance(episodes.seen, Transcript):
        columns["observation"] = (episodes.seen.reshape(len(owner), -1).astype(np.float64).sum(axis=1), owner)
        columns["action"] = (episodes.chosen.reshape(len(owner), -1).astype(np.float64).sum(axis=1), owner)
    lines: list[str] = []
    for name, (values, of) in columns.items():
        bad = ~np.isfinite(values)
        if bad.any():
            places = np.unique(of[bad])
            lines.append(
                f"the batch's {name} is not finite at {int(bad.sum())} of {len(values)} decisions, of episodes "
                f"{', '.join(map(str, places[:SHOWN].tolist()))}{' ...' if len(places) > SHOWN else ''}"
            )
    return lines


def _broken_weights(learner: GradientLearner[Any, Any]) -> list[str]:
    bad = [name for name, weight in learner.policy.named_parameters() if not bool(torch.isfinite(weight).all())]
    if not bad:
        return []
    return [f"weights that are not finite before the update: {', '.join(bad[:SHOWN])} ({len(bad)} in all)"]


def _shown_rows(
    learner: GradientLearner[Any, Any],
    phase: OptimizerPhase[Any, Any],
    rows: TrainingRows[Any],
    chosen: NDArray[np.int64],
    episodes: Episodes,
) -> list[str]:
    """Rows in words: of control the decision, of language models the answers of the row whose loss is not finite."""
    if not isinstance(episodes.seen, Transcript):
        lines: list[str] = []
        for row in chosen[:SHOWN].tolist():
            owner = int(np.searchsorted(episodes.offsets, row, side="right") - 1)
            lines.append(
                f"row {row}: decision {row - int(episodes.offsets[owner])} of episode {owner}, action "
                f"{episodes.chosen[row].tolist()}, reward {float(episodes.reward[row]):g}"
            )
        return lines if len(rows) == episodes.decisions else []
    return [
        line
        for row in chosen[:SHOWN].tolist()
        if isinstance(part := rows.take(np.array([row])), TokenRows)
        for line in _shown_answers(learner, phase, row, part)
    ]


def _shown_answers(
    learner: GradientLearner[Any, Any], phase: OptimizerPhase[Any, Any], row: int, part: TokenRows
) -> Iterator[str]:
    """The answers of a row whose loss is not finite; all of them where the fault is in the gradient alone."""
    batch, episodes = part.tensors(), part.episodes
    with torch.no_grad():
        loss = phase.objective(learner.policy, batch).loss
    sequence = batch.sequence.cpu().numpy()
    bad = ~torch.isfinite(loss).cpu().numpy()
    if len(bad) != len(sequence) or not bad.any():
        bad = np.ones(len(sequence), np.bool_)
    for answer in np.unique(sequence[bad])[:SHOWN].tolist():
        own = bad & (sequence == answer)
        logp, advantage = (column.cpu().numpy()[own] for column in (batch.behaviour_logp, batch.advantage))
        yield (
            f"row {row}, answer {answer} to group {int(episodes.group[answer])}, score "
            f"{float(episodes.score[answer]):g}: {int(own.sum())} tokens, log-probabilities {logp.min():.3g} to "
            f"{logp.max():.3g}, advantages {advantage.min():.3g} to {advantage.max():.3g}"
        )


# ----------------------------------------------------------------------------------------------------------- the report


def report_text(record: FailureRecord, findings: Sequence[str]) -> str:
    """The report of a failure, as Markdown."""
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    messages = "\n".join(f"- {line}" for line in record.messages)
    listed = "\n".join(f"- {line}" for line in findings)
    return (
        f"# Failure in step {record.step}\n\n{record.error} ({record.kind.replace('_', ' ')}), seed {record.seed}; "
        f"newest checkpoint: step {record.checkpoint}; {versions}\n\n## What was said\n\n{messages}\n\n"
        f"## What was found\n\n{listed}\n\n## Traceback\n\n```text\n{record.traceback.rstrip()}\n```\n"
    )
