"""The gradient learner on a toy policy: splits change nothing, non-finite numbers step nothing, a resume is exact."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from plain_episodes import plain_episodes
from torch import Tensor, nn

from hone.core.credit import NO_VALUES, Credits
from hone.core.episodes import Episodes
from hone.core.errors import DataError, DivergedError
from hone.core.ragged import offsets_of
from hone.core.reduction import ONE_PROCESS, Reduction
from hone.learner.adam import Adam
from hone.learner.flat_parameters import FlatParameters
from hone.learner.gradient import GradientLearner, MetricsAccumulator, OptimizerPhase
from hone.objectives.terms import LossTerms
from hone.run.store.codec import read_state, write_state


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyBatch:
    seen: Tensor
    aim: Tensor
    weight: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyRows:
    """A row is a decision of some size; its weight is its share of the batch's total advantage size plus one."""

    seen: np.ndarray
    aim: np.ndarray
    size: np.ndarray
    weight: np.ndarray

    def __len__(self) -> int:
        return len(self.aim)

    def sizes(self) -> np.ndarray:
        return self.size

    def take(self, rows: np.ndarray) -> "ToyRows":
        return ToyRows(seen=self.seen[rows], aim=self.aim[rows], size=self.size[rows], weight=self.weight[rows])

    def weighted(self, reduction: Reduction = ONE_PROCESS) -> "ToyRows":
        return replace(self, weight=self.size / max(self.size.sum(), 1))

    def tensors(self) -> ToyBatch:
        seen, aim, weight = (torch.from_numpy(column) for column in (self.seen, self.aim, self.weight))
        return ToyBatch(seen=seen, aim=aim, weight=weight)


def lay(episodes: Episodes, credits: Credits) -> ToyRows:
    return ToyRows(
        seen=episodes.observations.astype(np.float64),
        aim=credits.advantage.astype(np.float64),
        size=episodes.chosen.astype(np.int64),
        weight=np.zeros(episodes.decisions),
    )


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 4, dtype=torch.float64)
        self.outer = nn.Linear(4, 1, dtype=torch.float64)
        self.frozen = nn.Parameter(torch.ones(2, dtype=torch.float64), requires_grad=False)

    def forward(self, seen: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(seen))).squeeze(-1)


def toy(seed: int = 0) -> Toy:
    policy, draws = Toy(), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draws, dtype=torch.float64))
    return policy


def squares(policy: Toy, batch: ToyBatch) -> LossTerms:
    error = policy(batch.seen) - batch.aim
    return LossTerms(
        loss=error**2, compute_metrics=lambda: {"toy/error": error.detach(), "toy/error_max": error.detach()}
    )


def batch_of(count: int, *, seed: int = 0) -> tuple[Episodes, Credits]:
    rng = np.random.default_rng(seed)
    episodes = plain_episodes(
        offsets_of(np.ones(count, dtype=np.int64)),
        seen=rng.normal(size=(count, 3)),
        chosen=rng.integers(1, 6, count),
        final=rng.normal(size=(count, 3)),
    )
    return episodes, Credits(advantage=rng.normal(size=count).astype(np.float32), metrics={"credit/told": 2.0})


def learner_of(
    policy: Toy,
    objective: Callable[[Toy, ToyBatch], LossTerms] = squares,
    *,
    max_grad_norm: float | None = None,
    rate: float = 0.01,
    epochs: int = 1,
    minibatches: int = 1,
    shuffle: bool = True,
    budget: int = 1 << 40,
) -> GradientLearner[Toy, ToyBatch]:
    parameters = FlatParameters(policy.parameters())
    return GradientLearner(
        policy=policy,
        layout=lay,
        phases=[
            OptimizerPhase(
                name="toy",
                objective=objective,
                parameters=parameters,
                optimizer=Adam(parameters),
                max_grad_norm=max_grad_norm,
            )
        ],
        seed=3,
        learning_rate=lambda update: rate / (1 + update),
        epochs=epochs,
        minibatches=minibatches,
        shuffle=shuffle,
        micro_batch_tokens=budget,
    )


def weights(policy: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in policy.parameters()]).clone()


@examples(30)
@given(count=st.integers(1, 20), budget=st.integers(1, 40), minibatches=st.integers(1, 4), epochs=st.integers(1, 2))
def test_micro_batches_change_no_gradient(count: int, budget: int, minibatches: int, epochs: int) -> None:
    episodes, credits = batch_of(count)
    whole, split = (
        learner_of(toy(), budget=size, minibatches=minibatches, epochs=epochs) for size in (1 << 40, budget)
    )
    one, other = whole.update(episodes, credits), split.update(episodes, credits)
    gradients = [learner.phases[0].parameters.gradient for learner in (whole, split)]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-9, atol=1e-12)
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert other[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name


def test_one_update_is_one_step_of_torchs_own_adamw() -> None:
    """The same loss written directly, stepped by torch.optim: the independent version."""
    episodes, credits = batch_of(9)
    policy, other = toy(), toy()
    learner_of(policy, rate=0.05).update(episodes, credits)
    rows = lay(episodes, credits).weighted().tensors()
    (squares(other, rows).loss * rows.weight).sum().backward()
    optimizer = torch.optim.AdamW(other.parameters(), lr=0.05, weight_decay=0.0)
    optimizer.step()
    torch.testing.assert_close(weights(policy), weights(other), rtol=1e-12, atol=1e-12)


def test_every_row_is_stepped_once_an_epoch_in_an_order_of_its_own() -> None:
    seen: list[list[float]] = []

    def watch(policy: Toy, batch: ToyBatch) -> LossTerms:
        seen.append(batch.aim.tolist())
        return squares(policy, batch)

    episodes, credits = batch_of(10)
    learner = learner_of(toy(), watch, minibatches=3, epochs=2)
    learner.update(episodes, credits)
    assert learner.updates == 6
    assert [len(rows) for rows in seen] == [4, 3, 3, 4, 3, 3]
    everything = sorted(credits.advantage.astype(np.float64).tolist())
    first, second = ([row for rows in seen[half : half + 3] for row in rows] for half in (0, 3))
    assert sorted(first) == sorted(second) == everything
    assert first != second
    learner.update(episodes, credits)
    assert [row for rows in seen[6:9] for row in rows] not in (first, second)


def test_more_minibatches_than_rows_are_as_many_as_rows() -> None:
    learner = learner_of(toy(), minibatches=8)
    learner.update(*batch_of(3))
    assert learner.updates == 3


def test_figures_of_a_step_by_hand() -> None:
    episodes, credits = batch_of(6)
    policy = toy()
    rows = lay(episodes, credits).weighted().tensors()
    error = (policy(rows.seen) - rows.aim).detach()
    told = learner_of(policy).update(episodes, credits)
    assert told["credit/told"] == 2.0
    assert told["toy/error"] == pytest.approx(float(error.mean()))
    assert told["toy/error_max"] == pytest.approx(float(error.max()))
    assert told["toy/loss"] == pytest.approx(float((error**2 * rows.weight).sum()))
    assert told["learner/lr"] == 0.01
    assert set(told) == {"credit/told", "toy/error", "toy/error_max", "toy/loss", "toy/grad_norm", "learner/lr"}


def told_of(column: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"a": column, "b": 2 * column, "c_max": column}


def test_tally_is_a_mean_over_decisions_whatever_the_pieces() -> None:
    tally = MetricsAccumulator()
    for values in ([1.0, 2.0], [6.0], []):
        column = torch.tensor(values)
        tally.add(LossTerms(loss=column, compute_metrics=partial(told_of, column)))
    tally.add(LossTerms(loss=torch.ones(1), compute_metrics=lambda: {"a": torch.tensor([11.0])}))
    tally.add_step_value("n", 1.0)
    tally.add_step_value("n", 4.0)
    assert tally.means() == {"n": 2.5, "a": 5.0, "b": 6.0, "c_max": 6.0}
    negative = MetricsAccumulator()
    negative.add(LossTerms(loss=torch.ones(1), compute_metrics=lambda: {"d_max": torch.tensor([-3.0, -2.0])}))
    assert negative.means() == {"d_max": -2.0}


@pytest.mark.parametrize("poison", [math.nan, math.inf])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_what_is_not_finite_is_not_stepped(poison: float, where: str) -> None:
    def bad(policy: Toy, batch: ToyBatch) -> LossTerms:
        error = policy(batch.seen) - batch.aim
        if where == "loss":
            return LossTerms(loss=error**2 + poison)
        # finite value, non-finite slope: sqrt at 0
        return LossTerms(loss=error**2 + torch.sqrt(error * 0.0) * (1.0 if math.isnan(poison) else 2.0))

    policy = toy()
    learner = learner_of(policy, bad)
    before, moments = weights(policy), learner.phases[0].optimizer.state()
    with pytest.raises(DivergedError, match=r"toy: loss .*gradient norm .*update 0: not a finite number") as caught:
        learner.update(*batch_of(5))
    assert caught.value.exit_code == 6
    assert torch.equal(weights(policy), before)
    assert learner.updates == 0
    after = learner.phases[0].optimizer.state()
    assert after["step"] == moments["step"] == 0.0
    assert not any(moment.any() for moment in after["exp_avg"].values())


@pytest.mark.parametrize("limit", [0.01, 1e6, None])
def test_long_gradients_are_shortened_as_torch_does(limit: float | None) -> None:
    episodes, credits = batch_of(9)
    policy, other = toy(), toy()
    learner = learner_of(policy, max_grad_norm=limit)
    told = learner.update(episodes, credits)
    rows = lay(episodes, credits).weighted().tensors()
    (squares(other, rows).loss * rows.weight).sum().backward()
    norm = torch.nn.utils.clip_grad_norm_(other.parameters(), limit or 1e30)
    expected = torch.cat([p.grad.flatten() for p in other.parameters() if p.grad is not None])
    torch.testing.assert_close(learner.phases[0].parameters.gradient, expected, rtol=1e-9, atol=1e-12)
    assert told["toy/grad_norm"] == pytest.approx(float(norm)), "the norm before clipping is told"


def test_phases_are_stepped_one_after_another_and_then_the_rest() -> None:
    said: list[str] = []

    def phase(name: str, parameters: FlatParameters) -> OptimizerPhase[Toy, ToyBatch]:
        def objective(policy: Toy, batch: ToyBatch) -> LossTerms:
            said.append(name)
            return squares(policy, batch)

        return OptimizerPhase(name=name, objective=objective, parameters=parameters, optimizer=Adam(parameters))

    policy = toy()
    learner = learner_of(policy, minibatches=2)
    learner.phases = [
        phase("one", FlatParameters(policy.inner.parameters())),
        phase("two", FlatParameters(policy.outer.parameters())),
    ]
    learner.after_step = lambda _policy: said.append("after")
    told = learner.update(*batch_of(4))
    assert said == ["one", "two", "after"] * 2
    assert {"one/loss", "two/loss", "one/grad_norm", "two/grad_norm"} <= told.keys()


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_resumed_learner_is_bitwise_the_one_that_went_on(tmp_path: Path, on_disk: bool) -> None:
    straight, stopped = (learner_of(toy(), minibatches=2, max_grad_norm=1.0) for _ in range(2))
    for step in range(3):
        straight.update(*batch_of(7, seed=step))
        stopped.update(*batch_of(7, seed=step))
    state = stopped.state()
    if on_disk:
        write_state(tmp_path, state)
        state = read_state(tmp_path)
    resumed_policy = toy(seed=99)
    resumed = learner_of(resumed_policy, minibatches=2, max_grad_norm=1.0)
    with torch.no_grad():
        for parameter, saved in zip(resumed_policy.parameters(), stopped.policy.parameters(), strict=True):
            parameter.copy_(saved)
    resumed.restore(state)
    for step in range(3, 6):
        told, expected = resumed.update(*batch_of(7, seed=step)), straight.update(*batch_of(7, seed=step))
        assert told == expected
    assert torch.equal(weights(resumed.policy), weights(straight.policy))


def test_a_state_that_does_not_fit_is_refused() -> None:
    learner = learner_of(toy())
    state = learner.state()
    with pytest.raises(DataError, match="no part 'phases'"):
        learner.restore({"updates": 1})
    assert isinstance(state["phases"], dict)
    own = state["phases"]["toy"]
    assert isinstance(own, dict)
    own["exp_avg"] = np.zeros(3)
    with pytest.raises(DataError, match=r"exp_avg has 3 numbers, the policy has 21"):
        learner.restore(state)


def test_a_resume_against_another_reference_is_refused() -> None:
    learner = learner_of(toy())
    learner.fingerprints = {"the reference policy": "abc"}
    learner.restore(state := learner.state())
    learner.fingerprints = {"the reference policy": "def"}
    with pytest.raises(DataError, match=r"the reference policy is not what .*was abc, is def"):
        learner.restore(state)


def test_without_a_critic_nothing_is_foreseen() -> None:
    learner = learner_of(toy())
    assert learner.values(batch_of(2)[0]) is NO_VALUES


@examples(20)
@given(st.integers(0, 1000), st.sampled_from([0.0, 0.1]), st.sampled_from([(0.9, 0.999), (0.8, 0.95)]))
def test_flat_parameters_and_adam_are_torchs_adamw(seed: int, decay: float, betas: tuple[float, float]) -> None:
    """Twelve steps in float32, one tensor against one per parameter."""
    torch.manual_seed(seed)
    flat, single = nn.Linear(5, 3), nn.Linear(5, 3)
    single.load_state_dict(flat.state_dict())
    parameters = FlatParameters(flat.parameters())
    ours = Adam(parameters, weight_decay=decay, betas=betas)
    theirs = torch.optim.AdamW(single.parameters(), lr=1.0, weight_decay=decay, betas=betas)
    for step in range(12):
        seen = torch.randn(4, 5)
        parameters.zero_grad()
        theirs.zero_grad()
        (flat(seen) ** 2).sum().backward()
        (single(seen) ** 2).sum().backward()
        rate = 0.01 / (1 + step)
        theirs.param_groups[0]["lr"] = rate
        ours.step(rate)
        theirs.step()
    torch.testing.assert_close(weights(flat), weights(single), rtol=1e-6, atol=1e-7)


def test_flat_parameters_are_views_of_one_buffer() -> None:
    policy = toy()
    before = weights(policy)
    parameters = FlatParameters(policy.parameters())
    assert parameters.data.numel() == 21, "what is frozen stays outside"
    assert torch.equal(weights(policy), before)
    with torch.no_grad():
        parameters.data.fill_(0.5)
    assert (policy.inner.weight == 0.5).all()
    assert (policy.frozen != 0.5).all()
    policy(torch.ones(2, 3, dtype=torch.float64)).sum().backward()
    together = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    assert torch.equal(parameters.gradient, together)
    each = [float(torch.linalg.vector_norm(p.grad)) for p in policy.parameters() if p.grad is not None]
    assert float(parameters.gradient_norm()) == pytest.approx(math.sqrt(sum(one * one for one in each)))
    parameters.zero_grad()
    assert policy.inner.weight.grad is not None
    assert not policy.inner.weight.grad.any()
