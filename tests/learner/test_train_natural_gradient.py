"""The natural-gradient learner and TRPO for control: an explicit Fisher matrix, failed searches, micro-batches."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_episodes import plain_episodes
from ranks_in_threads import on_ranks
from torch import Tensor, nn

from hone.control.environments.world import GymConfig
from hone.control.job import ControlEvaluationConfig
from hone.control.networks.actor_critic import ActorCritic, PolicyOutput
from hone.control.rows import StepRows, step_rows
from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.errors import DivergedError
from hone.core.reduction import ONE_PROCESS, Reduction
from hone.core.state import substate
from hone.learner.flat_parameters import FlatParameters
from hone.learner.natural_gradient import TrustRegionConfig, TrustRegionLearner, k3_distance
from hone.objectives.natural import TrustRegion
from hone.objectives.terms import LossTerms
from hone.recipes.on_policy import trpo
from hone.run.job import TrainingJob
from hone.run.loop import train
from hone.run.store.codec import read_state, write_state


class Softmax(nn.Module):
    """Two actions by a linear function of four numbers, in float64."""

    def __init__(self) -> None:
        super().__init__()
        start = np.random.default_rng(7).normal(size=(4, 2))
        self.slope = nn.Parameter(torch.from_numpy(start))

    def evaluate_actions(self, seen: Tensor, chosen: Tensor, mask: Tensor | None = None) -> PolicyOutput:
        assert mask is None
        logp = torch.log_softmax(seen @ self.slope, dim=1).gather(1, chosen[:, None])[:, 0]
        return PolicyOutput(logp=logp, entropy=lambda: logp, value=None)


def network() -> Softmax:
    return Softmax()


def batch_of() -> tuple[Episodes, Credits]:
    """Ten episodes of five decisions."""
    draws = np.random.default_rng(0)
    seen = draws.normal(size=(50, 4))
    chosen = draws.integers(0, 2, 50)
    logp = network().evaluate_actions(torch.from_numpy(seen), torch.from_numpy(chosen)).logp.detach().numpy()
    episodes = plain_episodes(np.arange(0, 51, 5), seen=seen, chosen=chosen, logp=logp, final=seen[:10])
    return episodes, Credits(advantage=draws.normal(size=50))


def learner_of(policy: Softmax, **changes: Any) -> TrustRegionLearner[Softmax, StepRows]:
    made = TrustRegionLearner(
        policy=policy,
        layout=step_rows,
        surrogate=trpo.surrogate,
        parameters=FlatParameters(policy.parameters()),
        region=TrustRegion(iterations=60, residual=1e-24),
    )
    return replace(made, **changes)


def test_the_step_is_the_one_of_the_explicit_fisher_matrix() -> None:
    policy = network()
    episodes, credits = batch_of()
    learner = learner_of(policy)
    rows = step_rows(episodes, credits).weighted()
    before = learner.parameters.data.detach().clone()
    slopes: list[Tensor] = []
    for place in range(len(rows)):
        learner.parameters.zero_grad()
        policy.evaluate_actions(rows.seen[place : place + 1], rows.chosen[place : place + 1]).logp.sum().backward()
        slopes.append(learner.parameters.gradient.clone())
    slope = torch.stack(slopes)
    fisher = slope.T @ slope / len(rows) + 0.1 * torch.eye(slope.shape[1], dtype=torch.float64)
    gradient = -(rows.weight * rows.advantage) @ slope
    direction = torch.linalg.solve(fisher, -gradient)
    expected = direction * torch.sqrt(2 * 0.01 / (direction @ fisher @ direction))
    told = learner.update(episodes, credits)
    moved = learner.parameters.data.detach() - before
    assert told["natural/accepted"] == 1.0
    torch.testing.assert_close(moved, told["natural/share"] * expected, rtol=1e-4, atol=1e-7)
    assert 0 < told["natural/kl_nats"] <= 0.01
    assert told["natural/gain"] > 0
    assert told["policy/grad_norm"] == pytest.approx(float(gradient.norm()))


@pytest.mark.parametrize("budget", [1, 7, 40])
def test_micro_batches_do_not_change_the_step(budget: int) -> None:
    whole, cut = network(), network()
    episodes, credits = batch_of()
    learner_of(whole).update(episodes, credits)
    learner_of(cut, micro_batch_tokens=budget).update(episodes, credits)
    for one, other in zip(whole.parameters(), cut.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)


class SummedParameters(FlatParameters):
    """Parameters that every rank holds whole; gradients are summed over all ranks."""

    reduction: Reduction = ONE_PROCESS

    @contextmanager
    def collect_gradients(self) -> Iterator[None]:
        with super().collect_gradients():
            yield
        parts = self.reduction.gather(self.gradient.numpy())
        self.gradient.copy_(torch.from_numpy(np.sum(parts, axis=0)))


def rank_learner(reduction: Reduction, budget: int) -> tuple[TrustRegionLearner[Softmax, StepRows], Episodes, Credits]:
    """Learner of one of two ranks, and its part of the batch: three episodes or seven."""
    learner = learner_of(network(), reduction=reduction, micro_batch_tokens=budget)
    parameters = SummedParameters(learner.policy.parameters())
    parameters.reduction = reduction
    learner.parameters = parameters
    episodes, credits = batch_of()
    rows = (slice(0, 15), slice(15, 50))[reduction.rank]
    mine = episodes.take(np.arange(3) if reduction.rank == 0 else np.arange(3, 10))
    return learner, mine, Credits(advantage=credits.advantage[rows])


@pytest.mark.parametrize("budget", [4, 1 << 62])
def test_two_ranks_take_the_step_of_one_process(budget: int) -> None:
    policy = network()
    told = learner_of(policy).update(*batch_of())
    assert told["natural/accepted"] == 1.0

    def on_rank(reduction: Reduction) -> tuple[Tensor, Mapping[str, float]]:
        learner, episodes, credits = rank_learner(reduction, budget)
        metrics = learner.update(episodes, credits)
        return learner.parameters.data.detach(), metrics

    (first, metrics), (second, others) = on_ranks(2, on_rank)
    assert torch.equal(first, second)
    assert metrics == others == pytest.approx(told, rel=1e-9, abs=1e-12)
    torch.testing.assert_close(first, policy.slope.detach().flatten(), rtol=0, atol=1e-9)


def test_a_loss_that_is_no_number_on_one_rank_stops_all() -> None:
    def poisoned(reduction: Reduction) -> str:
        learner, episodes, credits = rank_learner(reduction, 1 << 62)
        if reduction.rank == 1:
            credits = replace(credits, advantage=np.full_like(credits.advantage, np.nan))
        with pytest.raises(DivergedError) as error:
            learner.update(episodes, credits)
        return str(error.value)

    assert all("loss nan" in message for message in on_ranks(2, poisoned))


def test_a_search_that_fails_puts_every_bit_back_and_says_so() -> None:
    policy = network()
    episodes, credits = batch_of()
    learner = learner_of(policy, region=TrustRegion(min_gain_share=5.0, max_backtracks=4))
    before = learner.parameters.data.detach().clone()
    told = learner.update(episodes, credits)
    assert torch.equal(learner.parameters.data.detach(), before)
    assert {name: told[f"natural/{name}"] for name in ("accepted", "gain", "kl_nats", "share", "tries")} == {
        "accepted": 0.0, "gain": 0.0, "kl_nats": 0.0, "share": 0.0, "tries": 4.0,
    }  # fmt: skip
    assert learner.updates == 1


def test_a_loss_that_is_no_number_stops_the_run_before_the_step() -> None:
    policy = network()
    episodes, credits = batch_of()
    broken = replace(credits, advantage=np.full_like(credits.advantage, np.nan))
    learner = learner_of(policy)
    before = learner.parameters.data.detach().clone()
    with pytest.raises(DivergedError, match=r"loss nan.*the weights are those before it"):
        learner.update(episodes, broken)
    assert torch.equal(learner.parameters.data.detach(), before)


def test_the_distance_by_hand() -> None:
    then = torch.tensor([-1.0, -1.0], dtype=torch.float64)
    now = torch.tensor([-1.0, -0.5], dtype=torch.float64, requires_grad=True)
    nats = k3_distance(now, then)
    assert nats.tolist() == pytest.approx([0.0, np.exp(0.5) - 1.5])
    (slope,) = torch.autograd.grad(nats.sum(), now)
    assert slope.tolist() == pytest.approx([0.0, np.exp(0.5) - 1.0])


def test_the_region_is_the_paper_s() -> None:
    assert TrustRegionConfig().region() == TrustRegion()


# ------------------------------------------------------------------------------------------------------ control


def job_of(steps: int, **changes: Any) -> TrainingJob[ActorCritic]:
    return trpo.ENTRY.build(
        trpo.TrpoConfig(
            recipe="trpo", name="x", seed=3, steps=steps, env=GymConfig(id="CartPole-v1", num_envs=8),
            evaluation=ControlEvaluationConfig(episodes=5), **changes,
        )
    )  # fmt: skip


def run(job: TrainingJob[ActorCritic], *, steps: int, first: int = 1) -> list[dict[str, float]]:
    found: list[dict[str, float]] = []
    train(job.recipe, steps=steps, first_step=first, callback=lambda _s, _e, _c, metrics: found.append(dict(metrics)))
    return found


def weights(job: TrainingJob[ActorCritic]) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in job.recipe.learner.policy.parameters()])


def test_trpo_goes_on_bitwise(tmp_path: Path) -> None:
    straight, halfway, resumed = (job_of(3, rollout_steps=16) for _ in range(3))
    told = run(straight, steps=3)
    run(halfway, steps=2)
    halfway.save_policy(tmp_path / "policy")
    write_state(tmp_path, {"source": halfway.recipe.source.state(), "learner": halfway.recipe.learner.state()})
    state = read_state(tmp_path)
    resumed.load_policy(tmp_path / "policy")
    resumed.recipe.learner.restore(substate(state, "learner"))
    resumed.recipe.source.restore(substate(state, "source"))
    assert run(resumed, steps=3, first=3) == told[2:]
    assert torch.equal(weights(resumed), weights(straight))
    assert not torch.equal(weights(halfway), weights(straight))
    assert {"critic/loss", "natural/accepted", "policy/kl_nats"} <= told[0].keys()
    for job in (straight, halfway, resumed):
        job.close()


def test_trpo_learns_to_balance() -> None:
    job = job_of(12)
    told = run(job, steps=12)
    assert all(line["natural/kl_nats"] <= 0.01 for line in told)
    assert job.evaluate is not None
    assert job.evaluate().estimate.mean > 150, "a fresh policy stays up for about 20 steps"
    job.close()


def test_a_surrogate_may_be_anything_with_a_distance() -> None:
    """Zero advantages promise nothing, and nothing is done."""
    policy = network()
    episodes, credits = batch_of()

    def flat(policy: Softmax, rows: StepRows) -> tuple[LossTerms, Tensor]:
        terms, nats = trpo.surrogate(policy, rows)
        return LossTerms(loss=terms.loss * 0.0), nats

    learner = learner_of(policy, surrogate=flat)
    before = learner.parameters.data.detach().clone()
    assert learner.update(episodes, credits)["natural/accepted"] == 0.0
    assert torch.equal(learner.parameters.data.detach(), before)
