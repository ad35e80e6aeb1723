"""Faults planted in losses, one of each kind: the doctor finds every one of them, and names the check that does."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from certificate_worlds import built, checked, lay_out, learns_from_answers, text_config
from ranks_in_threads import on_ranks
from torch import Tensor

from hone.certify.check import (
    GradientProbe,
    build_certificate,
    compare_gradients,
    gradient_in_rank_order,
    rank_shares,
    run_gradient_checks,
    summed_gradient,
)
from hone.certify.job import job_gradient_probes
from hone.core.reduction import ONE_PROCESS
from hone.learner.gradient import GradientLearner
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.policy import reinforce_loss
from hone.objectives.terms import LossTerms, add_terms
from hone.recipes.registry import recipe_names
from hone.recipes.text import grpo
from hone.rewards.workers import RewardWorkerPool
from hone.run.store.records import GradientCheck
from hone.text import recipe
from hone.text.loss import TokenLossSpec, TokenView
from hone.text.rows import TokenBatch, TokenRows

NOT_SKIPPED = "advantage 0 not left out"
LARGE = "one large micro-batch"
PADDED = "padded to a fixed size"
OLD_LOGP = "old log-probabilities as data"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("planted")
    lay_out(place)
    return place


@pytest.fixture(autouse=True)
def _at_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(RewardWorkerPool, "check", lambda self, columns, rows: None)
    yield


def faults(trial: GradientProbe) -> list[str]:
    return [check.name for check in run_gradient_checks(trial) if not check.passed]


def trials_of(folder: Path, recipe: str, *overrides: str) -> list[GradientProbe]:
    """One probe for each phase: a policy's, and a critic's where there is one."""
    config = text_config(folder, recipe, *overrides)
    return job_gradient_probes(built(config), config, own_credit=True)


def trial_of(folder: Path, recipe: str, *overrides: str) -> GradientProbe:
    (trial,) = trials_of(folder, recipe, *overrides)
    return trial


def logp(policy: TokenPolicy, batch: TokenBatch) -> Tensor:
    return policy.token_logprobs(batch.packed, batch.at, batch.chosen, sampling_mask=batch.sampling_mask).logp


# ------------------------------------------------------------------------ proportional to the advantage, and it is not


def with_entropy(loss: TokenLossSpec) -> TokenLossSpec:
    """An entropy bonus: the same at every advantage."""
    return recipe.with_penalties(loss, recipe.PenaltyConfig(entropy=0.1))


def with_likelihood(loss: TokenLossSpec) -> TokenLossSpec:
    """A supervised term beside the policy gradient."""

    def objective(view: TokenView) -> LossTerms:
        return add_terms(loss.objective(view), LossTerms(loss=-view.logp), weight=0.1)

    return replace(loss, objective=objective)


def with_distance(loss: TokenLossSpec) -> TokenLossSpec:
    """A squared log-ratio, which pulls back answers of every advantage."""

    def objective(view: TokenView) -> LossTerms:
        distance = 0.5 * (view.logp - view.behaviour_logp).square()
        return add_terms(loss.objective(view), LossTerms(loss=distance))

    return replace(loss, objective=objective)


def with_pushed_down_zeros(loss: TokenLossSpec) -> TokenLossSpec:
    """Answers that are not better than the others count as worse."""

    def objective(view: TokenView) -> LossTerms:
        return reinforce_loss(view.logp, torch.where(view.advantage > 0, view.advantage, -0.5))

    return replace(loss, objective=objective)


def with_selection(loss: TokenLossSpec) -> TokenLossSpec:
    """A comparison with the mean of the batch, which answers of advantage 0 change."""

    def above_mean(columns: recipe.StepColumns) -> recipe.TokenFactors:
        return columns.logp - columns.logp.mean()

    def objective(view: TokenView) -> LossTerms:
        assert view.token_factor is not None
        return recipe.scale_terms(loss.objective(view), view.token_factor)

    return replace(loss, objective=objective, select_tokens=above_mean)


@pytest.mark.parametrize(
    ("plant", "own_credit"),
    [
        (with_entropy, True), (with_entropy, False), (with_likelihood, False), (with_distance, True),
        (with_pushed_down_zeros, True), (with_selection, False),
    ],
)  # fmt: skip
def test_a_loss_that_says_it_is_proportional_to_the_advantage(
    plant: Callable[[TokenLossSpec], TokenLossSpec], own_credit: bool, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = text_config(folder, "grpo")
    honest = recipe.clip_loss

    def claimed(*given: Any) -> TokenLossSpec:
        return replace(plant(honest(*given)), proportional_to_advantage=True)

    monkeypatch.setattr(grpo.recipe, "clip_loss", claimed)
    (trial,) = job_gradient_probes(built(config), config, own_credit=own_credit)
    assert faults(trial) == [NOT_SKIPPED]
    # The same loss, declared as what it is, passes.
    monkeypatch.setattr(
        grpo.recipe, "clip_loss", lambda *given: replace(plant(honest(*given)), proportional_to_advantage=False)
    )
    (trial,) = job_gradient_probes(built(config), config, own_credit=own_credit)
    assert faults(trial) == []


def test_what_is_skipped_is_asked_of_whole_groups_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = text_config(folder, "grpo")
    honest = recipe.clip_loss
    monkeypatch.setattr(
        grpo.recipe,
        "clip_loss",
        lambda *given: replace(with_likelihood(honest(*given)), proportional_to_advantage=True, unit="group"),
    )
    (trial,) = job_gradient_probes(built(config), config, own_credit=True)
    assert faults(trial) == [NOT_SKIPPED]


# ------------------------------------------------------------------------------------ faults of a certain size or kind


def whitened(policy: TokenPolicy, batch: TokenBatch, large: Tensor | bool) -> LossTerms:
    """Advantages that are centred within a micro-batch, if it is `large`."""
    a = batch.advantage
    return reinforce_loss(logp(policy, batch), a - a.mean() if large else a)


@pytest.mark.parametrize("sequences", [21, 40, 64, 200])
def test_a_fault_that_needs_many_answers(sequences: int, folder: Path) -> None:
    def objective(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
        return whitened(policy, batch, int(batch.sequence.max()) + 1 >= sequences)

    assert faults(replace(trial_of(folder, "grpo"), objective=objective)) == [LARGE]


@pytest.mark.parametrize("decisions", [25, 40, 200])
@pytest.mark.parametrize("name", ["ppo", "a2c"])
def test_a_fault_that_needs_many_decisions(name: str, decisions: int, folder: Path) -> None:
    config = checked(folder / f"{name}.toml")
    job = built(config)
    (trial,) = job_gradient_probes(job, config, own_credit=True)
    honest = trial.objective

    def objective(policy: Any, rows: Any) -> LossTerms:
        a = rows.advantage
        return honest(policy, replace(rows, advantage=a - a.mean() if len(a) >= decisions else a))

    assert faults(replace(trial, objective=objective, objective_with_backward=None)) == [LARGE]
    job.close()


def test_a_fault_that_needs_padding(folder: Path) -> None:
    """A mean over everything that was computed, where padding was computed too."""

    def objective(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
        filled = len(batch.packed.tokens) % 64 == 0
        return LossTerms(loss=-logp(policy, batch) * batch.advantage * (0.5 if filled else 1.0))

    assert PADDED in faults(replace(trial_of(folder, "grpo"), objective=objective))


def test_a_fault_that_needs_a_long_answer(folder: Path) -> None:
    """Normalised by the longest answer of the micro-batch, where that is long."""

    def objective(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
        longest = float(torch.bincount(batch.sequence).max())
        scale = 24.0 / longest if longest > 24 else 1.0
        return LossTerms(loss=-logp(policy, batch) * batch.advantage * scale)

    trial = trial_of(folder, "grpo", "rollout.max_tokens=64", "model.new.max_positions=128")
    assert "one sequence at a time" in faults(replace(trial, objective=objective))


@pytest.mark.parametrize("least", [2.0, 5.0])
def test_a_fault_that_needs_an_extreme_ratio(least: float, folder: Path) -> None:
    """Decisions with an extreme ratio are dropped, and the rest of the micro-batch is scaled up."""

    def objective(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
        now = logp(policy, batch)
        kept = ((now.detach() - batch.behaviour_logp).exp() < least).double()
        return LossTerms(loss=-now * batch.advantage * kept / kept.mean())

    trial = trial_of(folder, "grpo", "rollout.max_tokens=12")
    assert {"one sequence at a time", "two shards, summed"} <= set(faults(replace(trial, objective=objective)))


@pytest.mark.parametrize("setting", ["rollout.top_k=5", "rollout.top_p=0.9", "rollout.min_p=0.1"])
def test_a_fault_of_restricted_sampling(setting: str, folder: Path) -> None:
    """The tokens that sampling left out of the first answer, taken for those of every answer."""
    trial = trial_of(folder, "grpo", setting)
    assert faults(trial) == []

    def objective(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
        assert batch.sampling_mask is not None
        share = torch.diff(batch.sampling_mask.offsets).double().mean()
        return reinforce_loss(logp(policy, batch), batch.advantage * share)

    assert "one sequence at a time" in faults(replace(trial, objective=objective))


# ------------------------------------------------------------------------------------------------- what must be data


def test_an_old_policy_that_carries_a_gradient(folder: Path) -> None:
    """A ratio to the policy's own log-probability, which was not detached."""
    trial = trial_of(folder, "grpo", "learner.epochs=1", "algorithm.kl=0.1")
    assert isinstance(trial.rows, TokenRows) and trial.rows.precomputed.old_logp is None
    honest = trial.objective

    def objective(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
        attached = logp(policy, batch) if batch.old_logp is None else batch.old_logp
        return honest(policy, replace(batch, old_logp=attached))

    assert faults(replace(trial, objective=objective)) == [OLD_LOGP]
    assert faults(trial) == []


# -------------------------------------------------------------------------------------------- gradients written out


@pytest.mark.parametrize("scale", [1.01, 2.0])
def test_a_gradient_written_out_that_is_another(scale: float, folder: Path) -> None:
    config = checked(folder / "ppo.toml")
    job = built(config)
    learner = job.recipe.learner
    assert isinstance(learner, GradientLearner)
    (phase,) = learner.phases
    honest = phase.objective_with_backward
    assert honest is not None

    def planted(policy: Any, rows: Any) -> LossTerms:
        return honest(policy, replace(rows, advantage=scale * rows.advantage))

    def only_in_large_batches(policy: Any, rows: Any) -> LossTerms:
        return planted(policy, rows) if len(rows) == 1 else honest(policy, rows)

    for fault, found in (
        (planted, ["gradient written out", "gradient written out, row by row"]),
        (only_in_large_batches, ["gradient written out, row by row"]),
    ):
        phase.objective_with_backward = fault
        (trial,) = job_gradient_probes(job, config, own_credit=False)
        assert faults(trial) == found
    job.close()


# ------------------------------------------------------------------------------------------------- ranks


def over_ranks(trial: GradientProbe, count: int) -> GradientCheck:
    """The batch shared by `count` ranks, against the batch on one process."""
    parts = on_ranks(count, lambda reduction: trial.finish(rank_shares(trial.laid, count)[reduction.rank], reduction))
    whole = gradient_in_rank_order(trial, ranks=count)
    return compare_gradients("ranks", "", whole, summed_gradient(trial, parts))


@pytest.mark.parametrize("name", [name for name in recipe_names() if learns_from_answers(name)])
def test_ranks_share_the_batch_of_every_recipe(name: str, folder: Path) -> None:
    assert all(over_ranks(trial, 3).passed for trial in trials_of(folder, name))


def test_a_selection_that_each_rank_makes_for_itself(folder: Path) -> None:
    trial = trial_of(folder, "clip_cov")
    assert over_ranks(trial, 2).passed
    honest = trial.finish
    alone = replace(trial, finish=lambda rows, reduction: honest(rows, ONE_PROCESS))
    assert not over_ranks(alone, 2).passed


# ------------------------------------------------------------------------------------------------- what is said


def test_a_gradient_of_zeros_is_called_that(folder: Path) -> None:
    """A ratio of the policy to itself, with a gradient on both sides."""
    trial = trial_of(folder, "grpo")

    def objective(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
        return LossTerms(loss=-(logp(policy, batch) - logp(policy, batch)).exp() * batch.advantage)

    certificate = build_certificate([replace(trial, objective=objective)], recipe="any", config_hash="")
    assert not certificate.passed
    assert "gradient of the synthetic batch is 0, which shows nothing: " in certificate.summary()
    wrong = GradientCheck(name="another order", detail="", difference=1.0, relative=0.5)
    assert "depends on the split of a batch: another order (" in replace(certificate, checks=(wrong,)).summary()
