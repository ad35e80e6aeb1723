"""What single recipes ask of the seams: prices with a state, greedy baselines, components, refills, teachers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipe_runs import files, job_of, lay_out, restored, saved, scores_of, settings

from hone.core.credit import Credits
from hone.core.episodes import Episodes
from hone.core.errors import DataError
from hone.core.state import substate
from hone.models.language.token_policy import TokenPolicy
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import WithState, train
from hone.text.reference_policies import TextPolicies


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_out(tmp_path, monkeypatch)
    return tmp_path


def told(job: TrainingJob[Any], *, steps: int, first: int = 1) -> list[dict[str, float]]:
    """All figures of each step."""
    found: list[dict[str, float]] = []
    train(
        job.recipe,
        steps=steps,
        first_step=first,
        callback=lambda _step, _episodes, _credits, metrics: found.append({**metrics, **job.recipe.source.metrics()}),
    )
    return found


def lived(job: TrainingJob[Any]) -> tuple[Episodes, Credits]:
    job.recipe.source.publish(job.recipe.learner.policy)
    episodes = job.recipe.source.collect()
    return episodes, job.recipe.credit(episodes, job.recipe.learner.values(episodes))


def test_the_price_of_a_nat_is_part_of_the_run(place: Path) -> None:
    price = {"kind": "adaptive", "weight": 0.1, "target_nats": 0.001, "horizon": 100.0}
    tables = settings("rloo", steps=4, algorithm={"kl_in_reward": price})
    straight = job_of("rloo", tables)
    figures = told(straight, steps=4)
    weights = [figure["reward/kl_coef"] for figure in figures]
    assert weights[0] == 0.1
    # the first answers are the reference's own: e = -1, held at -0.2, for 32 answers
    assert weights[1] == pytest.approx(0.1 * (1 - 0.2 * 32 / 100))
    assert weights[3] > weights[2], "beyond the target it rises"
    saved(straight, place / "straight")
    assert substate(straight.recipe.source.state(), "credit")["weight"] != 0.1
    halfway = job_of("rloo", tables)
    told(halfway, steps=2)
    saved(halfway, place / "halfway")
    resumed = restored(job_of("rloo", tables), place / "halfway")
    assert [figure["reward/kl_coef"] for figure in told(resumed, steps=4, first=3)] == weights[2:]
    saved(resumed, place / "resumed")
    assert files(place / "resumed") == files(place / "straight")


def test_a_price_of_nothing_keeps_no_reference(place: Path) -> None:
    free = job_of("reinforce", settings("reinforce", steps=1, full=False))
    assert not isinstance(free.recipe.source, WithState)
    assert substate(free.recipe.learner.state(), "constants") == {}
    priced = job_of("reinforce", settings("reinforce", steps=1))
    assert list(substate(priced.recipe.learner.state(), "constants")) == ["the reference policy (model.path)"]


def test_a_greedy_answer_is_the_baseline_of_its_group(place: Path) -> None:
    job = job_of("remax", settings("remax", steps=1, full=False))
    episodes, credits = lived(job)
    assert len(episodes) == 32, "the greedy answers are not among them"
    assert episodes.baseline is not None
    for group in np.unique(episodes.group):
        assert len(set(episodes.baseline[episodes.group == group])) == 1
    expected = np.repeat(episodes.score - episodes.baseline, episodes.lengths)
    np.testing.assert_allclose(credits.advantage, expected, atol=1e-6)
    # what the engine says greedily to the same prompt is what was scored
    again, _ = lived(job_of("remax", settings("remax", steps=1, full=False)))
    assert again.baseline is not None
    assert again.baseline.tolist() == episodes.baseline.tolist()


def test_every_reward_function_is_normalised_by_itself(place: Path) -> None:
    functions = [{"use": "x:right", "weight": 1.0}, {"use": "x:short", "weight": 0.1}]
    job = job_of("gdpo", settings("gdpo", steps=1, full=False, rewards={"functions": functions}))
    episodes, credits = lived(job)
    assert episodes.components is not None
    np.testing.assert_allclose(episodes.components @ [1.0, 0.1], episodes.score)
    total = np.zeros(len(episodes))
    for place_, weight in ((0, 1.0), (1, 0.1)):
        for group in np.unique(episodes.group):
            here = episodes.group == group
            part = episodes.components[here, place_]
            if part.std():
                total[here] += weight * (part - part.mean()) / (part.std(ddof=1) + 1e-4)
    expected = (total - total.mean()) / (total.std(ddof=1) + 1e-4)
    np.testing.assert_allclose(credits.advantage, np.repeat(expected, episodes.lengths), atol=1e-5)


def test_dynamic_sampling_fills_the_batch_and_tells_its_price(place: Path) -> None:
    job = job_of("dapo", settings("dapo", steps=1, full=False, rollout={"samples_per_prompt": 2}))
    figures = told(job, steps=1)[0]
    assert figures["dynamic_sampling/rounds"] > 1
    assert figures["reward/zero_variance_groups"] == 0
    assert figures["dynamic_sampling/decisions_per_used"] > 1
    assert "reward/shaping_mean" in figures


def test_columns_are_what_the_policy_says(place: Path) -> None:
    """sum over the vocabulary of pi^2 and the reference's log-probability, against one full table a decision."""
    job = job_of("optimal_token_baseline", settings("optimal_token_baseline", steps=1))
    episodes, _ = lived(job)
    policy: TokenPolicy = job.recipe.learner.policy
    found = TextPolicies(policy=policy, open_frozen=lambda _path: policy, micro_batch_tokens=7, device="cpu")
    collision = found.collision_probability()(episodes)
    logp = found.logp(policy)(episodes)
    seen = episodes.transcript
    for number, at in enumerate(seen.at[:20]):
        start = seen.offsets[np.searchsorted(seen.offsets, at, side="right") - 1]
        table = next_token(policy, seen.tokens[start:at])
        assert collision[number] == pytest.approx(float((table.exp() ** 2).sum()), rel=1e-5)
        assert logp[number] == pytest.approx(float(table[int(seen.tokens[at])]), abs=1e-5)
    np.testing.assert_allclose(logp, episodes.logp, atol=1e-5)


@torch.no_grad()
def next_token(policy: TokenPolicy, tokens: np.ndarray) -> torch.Tensor:
    from hone.models.packing import PackedBatch

    packed = PackedBatch(
        tokens=torch.from_numpy(tokens.astype(np.int64)),
        positions=torch.arange(len(tokens)),
        offsets=np.array([0, len(tokens)]),
        branch=None,
    )
    hidden = policy.decoder.hidden(packed)[-1:]
    return torch.log_softmax(policy.decoder.logits(hidden)[0, : policy.vocab_size_used], dim=-1)


def test_a_teacher_with_other_tokens_is_refused(place: Path) -> None:
    model = settings("grpo", steps=1)["model"]
    other = job_of("grpo", settings("grpo", steps=1, full=False, model={"new": model["new"] | {"alphabet": "abcdefg"}}))
    (place / "teacher").mkdir()
    other.save_policy(place / "teacher")
    with pytest.raises(DataError, match=r"algorithm.teacher = 'teacher': its tokenizer .* is not the policy's"):
        job_of("on_policy_distillation", settings("on_policy_distillation", steps=1))


def test_a_teacher_that_is_not_there_is_found_before_a_model_is_loaded(place: Path) -> None:
    entry = load_recipe("on_policy_distillation")
    config = entry.config.model_validate(
        settings("on_policy_distillation", steps=1, rewards={"functions": [{"use": "exact_match"}]})
    )
    with pytest.raises(DataError, match=r"teacher"):
        entry.check(config)


def test_a_resume_refuses_another_teacher(place: Path) -> None:
    teacher = job_of("grpo", settings("grpo", steps=1, full=False))
    (place / "teacher").mkdir()
    teacher.save_policy(place / "teacher")
    tables = settings("on_policy_distillation", steps=2)
    run = job_of("on_policy_distillation", tables)
    scores_of(run, steps=1)
    saved(run, place / "saved")
    scores_of(teacher, steps=1)
    teacher.save_policy(place / "teacher")
    with pytest.raises(DataError, match=r"the teacher \(algorithm.teacher\) is not what this run was started with"):
        restored(job_of("on_policy_distillation", tables), place / "saved")


@pytest.mark.parametrize("trust", [{"kind": "tv", "top": 3}, {"kind": "kl"}, {"kind": "kl", "top": 2}])
def test_every_divergence_of_dppo_trains(place: Path, trust: dict[str, Any]) -> None:
    tables = settings("dppo", steps=12, full=False, algorithm={"trust": trust}, learner={"epochs": 3})
    scores = scores_of(job_of("dppo", tables), steps=12)
    assert scores[-1] > scores[0]


def test_a_tight_trust_region_masks_tokens(place: Path) -> None:
    """A witness that the mask is in the loss: with almost no trust, later updates on the same answers are masked."""

    def stopped(rise: float) -> float:
        trust = {"kind": "tv", "max_increase": rise, "max_decrease": rise}
        tables = settings("dppo", steps=1, full=False, algorithm={"trust": trust}, learner={"epochs": 4})
        return told(job_of("dppo", tables), steps=1)[0]["policy/clip_fraction"]

    assert stopped(1e-6) > 0.2
    assert stopped(0.99) == 0


def test_a_step_in_which_every_answer_is_right_changes_nothing_and_goes_on(place: Path) -> None:
    job = job_of("grpo", settings("grpo", steps=30, full=False))
    scores = scores_of(job, steps=30)
    assert max(scores) == 1.0
