"""The certificate: every recipe's loss passes, and each way in which a loss can depend on the cut is caught by name."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from certificate_worlds import (
    CONTROL,
    NO_GRADIENT,
    PREFERENCES,
    SCORERS,
    built,
    checked,
    finite,
    lay_out,
    learns_from_answers,
    preference_file,
    text_config,
)
from control_runs import write_short_log
from torch import Tensor

from hone.certify.check import (
    GradientProbe,
    batch_splits,
    build_certificate,
    compare_gradients,
    run_gradient_checks,
    summed_gradient,
)
from hone.certify.job import job_gradient_probes
from hone.certify.token_probes import AnswerShape, shrunken_copy, synthetic_token_episodes, without_shared_prefixes
from hone.core.episodes import ScoreStatus
from hone.core.ragged import ranges
from hone.models.language.token_policy import TokenPolicy
from hone.objectives.policy import clipped_surrogate, reinforce_loss
from hone.objectives.terms import LossTerms
from hone.recipes.registry import recipe_names
from hone.rewards.workers import RewardWorkerPool
from hone.run.store.records import GradientCheck
from hone.text.rows import TokenBatch, TokenRows

TEXT = [name for name in recipe_names() if learns_from_answers(name)]
CORRECTIONS = (
    "truncated_is",
    "masked_is",
    "icepop",
    "kpop",
    "sequence_truncated_is",
    "sequence_masked_is",
    "geometric_truncated_is",
    "geometric_kept",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("certificate")
    lay_out(place)
    return place


@pytest.fixture(autouse=True)
def _at_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In the data's folder, and without reward processes: nothing is ever scored here."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(RewardWorkerPool, "check", lambda self, columns, rows: None)
    yield


def checks_of(found: list[GradientProbe]) -> tuple[GradientCheck, ...]:
    return build_certificate(found, recipe="any", config_hash="").checks


def faults(checks: tuple[GradientCheck, ...] | list[GradientCheck]) -> list[str]:
    return [check.name for check in checks if not check.passed]


def trial_of(folder: Path, recipe: str, *overrides: str) -> GradientProbe:
    config = text_config(folder, recipe, *overrides)
    (trial,) = job_gradient_probes(built(config), config, own_credit=True)
    return trial


# ------------------------------------------------------------------------------------------------- what passes


def test_there_is_a_config_for_every_recipe() -> None:
    """A recipe of another kind needs one in `certificate_worlds.py`, or stands there as one without a gradient."""
    known = {*TEXT, *CONTROL, *NO_GRADIENT, *SCORERS, *PREFERENCES, "sft"}
    assert [name for name in recipe_names() if name not in known] == []


@pytest.mark.parametrize("recipe", TEXT)
def test_losses_on_answers(recipe: str, folder: Path) -> None:
    config = text_config(folder, recipe)
    job = built(config)
    found = job_gradient_probes(job, config, own_credit=True)
    assert found, "a policy of a new kind: teach `standin.double_of` to double it"
    assert faults(checks_of(found)) == []
    made_up = job_gradient_probes(job, config, own_credit=False)
    whole = [summed_gradient(trial, [trial.rows]) for trial in made_up]
    assert all(faults([compare_gradients("any", "", one, one)]) == [] for one in whole), (
        "there is no gradient to compare"
    )


@pytest.mark.parametrize(
    ("recipe", "overrides"),
    [
        *((recipe, ()) for recipe in PREFERENCES),
        ("dpo", ('algorithm.loss.kind="aot"', "algorithm.length_normalised=true")),
        ("dpo", ('algorithm.loss.kind="bco_pair"', "algorithm.ld_alpha=0.5")),
        ("dpo", ("algorithm.wpo_cap=1.0",)),
        ("kto", ('algorithm.loss.kind="bco"',)),
    ],
)
def test_losses_on_pairs_and_labels(recipe: str, overrides: tuple[str, ...], folder: Path) -> None:
    config = checked(preference_file(folder, recipe), *overrides)
    job = built(config)
    for own_credit in (True, False):
        found = job_gradient_probes(job, config, own_credit=own_credit)
        assert faults(checks_of(found)) == []
    job.close()


@pytest.mark.parametrize("correction", CORRECTIONS)
def test_corrections_for_whoever_acted(correction: str, folder: Path) -> None:
    trial = trial_of(folder, "grpo", f'learner.ratio.correction="{correction}"')
    plain = trial_of(folder, "grpo")
    assert faults(run_gradient_checks(trial)) == []
    assert faults(
        [compare_gradients("corrected", "", summed_gradient(plain, [plain.rows]), summed_gradient(trial, [trial.rows]))]
    )


@pytest.mark.parametrize(
    "overrides",
    [
        ('learner.ratio.denominator="recorded"',),
        ("algorithm.kl=0.1",),
        ("model.new.family=llama", "model.new.kv_heads=2"),
        ("rollout.samples_per_prompt=7", "rollout.temperature=0.7"),
    ],
)
def test_settings_of_a_loss(overrides: tuple[str, ...], folder: Path) -> None:
    assert faults(run_gradient_checks(trial_of(folder, "grpo", *overrides))) == []


@pytest.mark.parametrize("recipe", ["ppo", "sac", "sft"])
@pytest.mark.parametrize("own_credit", [True, False])
def test_control_and_imitation(recipe: str, own_credit: bool, folder: Path) -> None:
    config = checked(folder / f"{recipe}.toml")
    job = built(config)
    found = job_gradient_probes(job, config, own_credit=own_credit)
    assert [trial.name for trial in found] == (["critic", "actor"] if recipe == "sac" else ["policy"])
    assert faults(checks_of(found)) == []
    job.close()


def test_a_log_is_taken_as_it_is(folder: Path) -> None:
    log = write_short_log(folder, "CartPole-v1")
    for recipe in ("bc", "cql"):
        config = checked(folder / f"{recipe}.toml", f'log="{log}"')
        assert faults(checks_of(job_gradient_probes(built(config), config, own_credit=True))) == []


# ------------------------------------------------------------------------------------------------- what is caught


def wrong(trial: GradientProbe, objective: Callable[[TokenPolicy, TokenBatch], LossTerms]) -> list[str]:
    return faults(run_gradient_checks(replace(trial, objective=objective)))


def logp(policy: TokenPolicy, batch: TokenBatch) -> Tensor:
    return policy.token_logprobs(batch.packed, batch.at, batch.chosen).logp


def micro_batch_mean(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
    """A mean over the micro-batch: what gradient accumulation divided by until late 2024."""
    terms = reinforce_loss(logp(policy, batch), batch.advantage)
    return LossTerms(loss=terms.loss / (batch.weight * len(batch.weight)))


def whitened_here(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
    """Advantages standardised by the micro-batch they happen to be in."""
    a = batch.advantage
    return reinforce_loss(logp(policy, batch), (a - a.mean()) / (a.std(correction=0) + 1e-6))


def baseline_here(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
    """KTO's z0 as each rank's own mean (TRL reduces over the rank's answers)."""
    now = logp(policy, batch)
    return LossTerms(loss=1 - torch.sigmoid(now - now.detach().mean()))


def rejected_denominator(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
    """Rejection that shrinks the denominator by what the micro-batch kept."""
    now = logp(policy, batch)
    kept = ((now.detach() - batch.behaviour_logp).abs() < 0.2).double()
    return LossTerms(loss=-now * batch.advantage * kept * len(kept) / kept.sum().clamp(min=1))


def likeliest_quarter_here(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
    """A quantile of the micro-batch where the paper has one of the batch (high-entropy tokens, Clip-Cov)."""
    now = logp(policy, batch)
    return LossTerms(loss=torch.where(now.detach() <= now.detach().quantile(0.25), -now * batch.advantage, 0.0))


CUTS = {"one sequence at a time", "two shards, summed"}


@pytest.mark.parametrize(
    "objective", [micro_batch_mean, whitened_here, baseline_here, rejected_denominator, likeliest_quarter_here]
)
def test_what_a_micro_batch_must_not_be_asked(
    objective: Callable[[TokenPolicy, TokenBatch], LossTerms], folder: Path
) -> None:
    found = wrong(trial_of(folder, "grpo"), objective)
    assert set(found) >= CUTS
    assert sum(name.startswith("micro_batch_tokens") for name in found) == 3
    assert not {"another order", "NaN where nothing was decided"} & set(found), "these were innocent"


def test_neighbours_that_see_each_other(folder: Path) -> None:
    """A packed row whose sequences attend to one another: the padding-free bug of several trainers."""

    def leaking(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
        seen = replace(batch, packed=replace(batch.packed, branch=None))
        return reinforce_loss(logp(policy, seen), batch.advantage)

    found = wrong(trial_of(folder, "grpo"), leaking)
    assert "prefixes not shared" in found and "one sequence at a time" in found
    assert "another order" not in found


def test_masks_that_multiply(folder: Path) -> None:
    """0 * NaN is NaN: what the world spoke has to be left out, not multiplied by 0."""

    def multiplied(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
        hidden = policy.decoder.hidden(batch.packed)
        mask = torch.zeros(len(hidden), dtype=hidden.dtype)
        mask[batch.at] = 1.0
        leak = (hidden * mask[:, None]).sum() - (hidden * mask[:, None]).sum()
        return reinforce_loss(logp(policy, batch), batch.advantage + leak)

    (check,) = [c for c in run_gradient_checks(replace(trial_of(folder, "grpo"), objective=multiplied)) if not c.passed]
    assert check.name == "NaN where nothing was decided"
    assert not np.isfinite(check.difference)


def test_order_that_matters(folder: Path) -> None:
    def numbered(policy: TokenPolicy, batch: TokenBatch) -> LossTerms:
        return LossTerms(loss=-logp(policy, batch) * (1 + torch.arange(len(batch.weight))))

    assert "another order" in wrong(trial_of(folder, "grpo"), numbered)


def test_ranks_that_are_averaged(folder: Path) -> None:
    """The usual all-reduce takes a mean; weights of the whole batch want the sum. Adam hides the factor, clipping does
    not."""
    trial = trial_of(folder, "grpo")
    whole = summed_gradient(trial, [trial.rows])
    pieces = next(pieces for name, _, pieces in batch_splits(trial) if name == "two shards, summed")
    averaged = sum((summed_gradient(trial, [piece]) for piece in pieces), torch.zeros_like(whole)) / 2
    assert compare_gradients("ranks", "", whole, averaged).relative == pytest.approx(0.5)


def test_a_wrong_loss_of_control(folder: Path) -> None:
    config = checked(folder / "ppo.toml")
    job = built(config)
    (trial,) = job_gradient_probes(job, config, own_credit=True)

    def standardised(policy: Any, rows: Any) -> LossTerms:
        a = rows.advantage
        return clipped_surrogate(policy.evaluate_actions(rows.seen, rows.chosen).logp, rows.logp, a - a.mean())

    assert set(faults(run_gradient_checks(replace(trial, objective=standardised)))) >= CUTS
    job.close()


def test_no_gradient_shows_nothing(folder: Path) -> None:
    found = wrong(trial_of(folder, "grpo"), lambda policy, batch: LossTerms(loss=0.0 * logp(policy, batch)))
    assert len(found) == len(run_gradient_checks(trial_of(folder, "grpo")))


# ------------------------------------------------------------------------------------------------- what it is tried on


def test_the_batch_is_as_awkward_as_it_says(folder: Path) -> None:
    config = text_config(folder, "grpo")
    double = shrunken_copy(built(config).recipe.learner.policy, seed=0)
    assert isinstance(double, TokenPolicy)
    episodes = synthetic_token_episodes(double, AnswerShape(group_size=4, reward_functions=2), seed=0)
    seen = episodes.transcript
    assert (episodes.chosen == seen.tokens[seen.at]).all() and finite(episodes.logp)
    assert len(set(episodes.lengths.tolist())) > 4
    gaps = np.diff(seen.at, append=seen.at[-1] + 1) > 1
    interrupted = [gaps[begin : end - 1].any() for begin, end in pairwise(episodes.offsets.tolist())]
    assert 0 < sum(interrupted) < len(episodes)
    by_group = [episodes.score[episodes.group == group] for group in range(5)]
    assert [int(np.isfinite(scores).sum()) for scores in by_group] == [4, 3, 4, 4, 1]
    assert len(set(by_group[2].tolist())) == 1 and len(set(by_group[0].tolist())) > 1
    assert ((episodes.status == ScoreStatus.SCORED) == np.isfinite(episodes.score)).all()
    for group in range(5):
        first, *others = np.flatnonzero(episodes.group == group)
        prompt = slice(seen.offsets[first], seen.at[episodes.offsets[first]])
        size = prompt.stop - prompt.start
        for other in others:
            same = seen.tokens[ranges(seen.offsets[[other]], np.array([size]))]
            assert (same == seen.tokens[prompt]).all()


def test_clips_and_prefixes_are_really_tried(folder: Path) -> None:
    trial = trial_of(folder, "grpo")
    metrics = trial.objective(trial.policy, trial.rows.tensors()).metrics
    assert 0.05 < float(metrics["policy/clip_fraction"].double().mean()) < 0.95
    assert isinstance(trial.rows, TokenRows)
    assert len(trial.rows) < len(without_shared_prefixes(trial.rows)) == len(trial.rows.episodes)


def test_the_run_is_left_alone(folder: Path) -> None:
    config = text_config(folder, "grpo")
    job = built(config)
    asked: list[int] = []
    job = replace(job, recipe=replace(job.recipe, credit=partial(_count, asked, job.recipe.credit)))
    before, state = job.recipe.learner.policy.fingerprint(), job.recipe.learner.state()["updates"]
    found = job_gradient_probes(job, config, own_credit=False)
    assert faults(checks_of(found)) == [] and asked == []
    assert (job.recipe.learner.policy.fingerprint(), job.recipe.learner.state()["updates"]) == (before, state)
    assert all(one.dtype == torch.float64 for one in found[0].parameters)


def _count(asked: list[int], credit: Callable[..., Any], *given: Any) -> Any:
    asked.append(1)
    return credit(*given)
