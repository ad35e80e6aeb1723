"""A parameter store that is sharded over ranks takes the same steps as one process."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from ranks_in_threads import on_ranks
from torch import Tensor, nn

from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.errors import DivergedError
from hone.core.ragged import offsets_of
from hone.core.reduction import ONE_PROCESS, Reduction, total
from hone.learner.adam import Adam
from hone.learner.flat_parameters import FlatParameters
from hone.learner.gradient import GradientLearner, OptimizerPhase
from hone.learner.share import BatchShare, ParameterStore
from hone.objectives.terms import LossTerms

RANKS, COUNT = 2, 11


class ShardedParameters:
    """Each rank steps a stretch of the flat buffer; gradients are summed, and parameters gathered, over all."""

    def __init__(self, flat: FlatParameters, reduction: Reduction) -> None:
        self.flat, self.reduction = flat, reduction
        edges = np.linspace(0, len(flat.gradient), RANKS + 1).astype(int)
        self.mine = slice(int(edges[reduction.rank]), int(edges[reduction.rank + 1]))

    @property
    def parameters(self) -> Sequence[nn.Parameter]:
        return self.flat.parameters

    @property
    def owned(self) -> Sequence[Tensor]:
        return (self.flat.data.detach()[self.mine],)

    @property
    def gradients(self) -> Sequence[Tensor]:
        return (self.flat.gradient[self.mine],)

    @property
    def step_multiple(self) -> int:
        return 1

    @property
    def shapes(self) -> Mapping[str, torch.Size]:
        return self.flat.shapes

    def reduce(self, share: BatchShare) -> None:
        del share

    @contextmanager
    def collect_gradients(self) -> Iterator[None]:
        self.flat.data.detach().copy_(self.whole(self.owned))
        with self.flat.collect_gradients():
            yield
        parts = self.reduction.gather(self.flat.gradient.numpy())
        self.flat.gradient.copy_(torch.from_numpy(np.sum(parts, axis=0)))

    def gradient_norm(self) -> Tensor:
        return self.flat.gradient_norm()

    def by_name(self, values: Sequence[Tensor]) -> dict[str, Tensor]:
        return self.flat.by_name([self.whole(values)])

    def shards(self, named: Mapping[str, Tensor]) -> list[Tensor]:
        return [self.flat.shards(named)[0][self.mine]]

    def whole(self, values: Sequence[Tensor]) -> Tensor:
        return torch.from_numpy(np.concatenate(self.reduction.gather(values[0].numpy())))


@dataclass(frozen=True, kw_only=True)
class Points:
    seen: Tensor
    aim: Tensor
    weight: Tensor

    def __len__(self) -> int:
        return len(self.aim)

    def sizes(self) -> np.ndarray:
        return np.ones(len(self), dtype=np.int64)

    def take(self, rows: np.ndarray) -> "Points":
        return Points(seen=self.seen[rows], aim=self.aim[rows], weight=self.weight[rows])

    def weighted(self, reduction: Reduction = ONE_PROCESS) -> "Points":
        return replace(self, weight=torch.full_like(self.weight, 1.0 / total(len(self), reduction)))

    def tensors(self) -> "Points":
        return self


def points_of(episodes: Episodes, credits: Credits) -> Points:
    return Points(
        seen=torch.from_numpy(episodes.observations.astype(np.float64)),
        aim=torch.from_numpy(credits.advantage.astype(np.float64)),
        weight=torch.zeros(episodes.decisions, dtype=torch.float64),
    )


def squares(policy: nn.Module, batch: Points) -> LossTerms:
    error = policy(batch.seen).squeeze(-1) - batch.aim
    metrics = {"toy/error": error.detach(), "toy/error_max": error.detach(), "toy/error_ess": error.detach() ** 2}
    return LossTerms(loss=error**2, compute_metrics=lambda: metrics)


def learner_of(reduction: Reduction, *, sharded: bool) -> GradientLearner[nn.Module, Points]:
    policy = nn.Linear(3, 1, dtype=torch.float64)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.copy_(torch.linspace(-1, 1, parameter.numel(), dtype=torch.float64).view(parameter.shape))
    flat = FlatParameters(policy.parameters(), (name for name, _ in policy.named_parameters()))
    store: ParameterStore = ShardedParameters(flat, reduction) if sharded else flat
    phase = OptimizerPhase(
        name="toy", objective=squares, parameters=store, optimizer=Adam(store, weight_decay=0.1), max_grad_norm=0.5
    )
    return GradientLearner[Any, Any](
        policy=policy,
        layout=points_of,
        phases=[phase],
        seed=0,
        learning_rate=lambda _: 0.05,
        shuffle=False,
        reduction=reduction,
    )


def part_of(rows: slice) -> tuple[Episodes, Credits]:
    rng = np.random.default_rng(1)
    seen, aim = rng.normal(size=(COUNT, 3))[rows], rng.normal(size=COUNT).astype(np.float32)[rows]
    count = len(aim)
    columns = {
        "seen": seen,
        "chosen": np.zeros(count),
        "logp": np.zeros(count, np.float32),
        "version": np.zeros(count, np.int32),
        "reward": np.zeros(count, np.float32),
        "group": np.arange(count),
        "terminated": np.ones(count, np.bool_),
        "truncated": np.zeros(count, np.bool_),
        "final": seen,
        "score": np.zeros(count),
    }
    return Episodes.from_columns(offsets_of(np.ones(count, np.int64)), columns), Credits(advantage=aim)


HALVES = (slice(0, 4), slice(4, COUNT))


def on_each_rank(reduction: Reduction, start: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict[str, float]]:
    """Three updates on this rank's half of the batch -> state and last metrics."""
    learner = learner_of(reduction, sharded=True)
    if start is not None:
        learner.restore(start)
    metrics = [learner.update(*part_of(HALVES[reduction.rank])) for _ in range(3)][-1]
    return learner.state(), metrics


def moments(state: dict[str, Any]) -> dict[str, Any]:
    """Steps, and each moment by its own name and its parameter's."""
    found = state["phases"]["toy"]
    named = {f"{kind} {key}": value for kind in ("exp_avg", "exp_avg_sq") for key, value in found[kind].items()}
    return {"step": found["step"], **named}


def test_two_ranks_take_the_steps_of_one_process() -> None:
    alone = learner_of(ONE_PROCESS, sharded=False)
    metrics = [alone.update(*part_of(slice(0, COUNT))) for _ in range(3)][-1]
    for state, told in on_ranks(RANKS, on_each_rank):
        assert told == pytest.approx(metrics, rel=1e-12)
        for name, value in moments(alone.state()).items():
            np.testing.assert_allclose(moments(state)[name], value, rtol=1e-12)


def test_the_state_of_one_process_is_resumed_by_ranks() -> None:
    alone = learner_of(ONE_PROCESS, sharded=False)
    saved = alone.state()
    for state, _ in on_ranks(RANKS, lambda ranks: on_each_rank(ranks, saved)):
        alone.restore(state)
        again = moments(alone.state())
        assert all(np.array_equal(again[name], value) for name, value in moments(state).items())


def test_a_loss_that_is_not_finite_on_one_rank_stops_all() -> None:
    def poisoned(ranks: Reduction) -> str:
        learner = learner_of(ranks, sharded=True)
        episodes, credits = part_of(HALVES[ranks.rank])
        if ranks.rank == 1:
            credits = replace(credits, advantage=np.full_like(credits.advantage, np.nan))
        with pytest.raises(DivergedError) as error:
            learner.update(episodes, credits)
        return str(error.value)

    assert all("loss nan" in message for message in on_ranks(RANKS, poisoned))


def test_moments_go_by_name_and_back() -> None:
    flat = FlatParameters([nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.zeros(1))], ["inner", "outer"])
    named = flat.by_name([torch.arange(7.0)])
    assert {name: tuple(value.shape) for name, value in named.items()} == {"inner": (2, 3), "outer": (1,)}
    assert torch.equal(flat.shards(named)[0], torch.arange(7.0))
