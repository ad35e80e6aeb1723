"""The critic of text: values by hand, its rows and losses, its warm-up, its state, where it starts, what it says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from recipe_runs import files, job_of, lay_out, restored, saved, settings

from hone.core.credit import Credits
from hone.core.episodes import Episodes, ScoreStatus, Transcript
from hone.core.errors import DataError
from hone.core.ragged import offsets_of
from hone.core.state import substate
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.scalar_head import ValueNetwork, new_scalar_head
from hone.models.packing import pack_rows
from hone.objectives.weights import token_mean
from hone.recipes.registry import load_recipe
from hone.run.job import TrainingJob
from hone.run.loop import train
from hone.text.critic import (
    JUDGED_STEPS,
    ActorCriticLearner,
    BinnedValueLoss,
    CriticLossConfig,
    CriticView,
    CriticWatch,
    SigmoidValueLoss,
    SquaredErrorLoss,
)
from hone.text.rows import TokenLayout

CONFIG = ModelConfig(family="qwen3", vocab_size=30, hidden_size=16, intermediate_size=24, layers=2, heads=2)
FORMS: dict[str, CriticLossConfig] = {
    "squared": SquaredErrorLoss(),
    "clipped": SquaredErrorLoss(clip_range=0.2),
    "sigmoid": SigmoidValueLoss(kind="sigmoid", clip_range=0.2),
    "hl_gauss": BinnedValueLoss(kind="bins", low=-1.0, high=2.0, size=7),
    "two_hot": BinnedValueLoss(kind="bins", low=-1.0, high=2.0, size=7, spread=0.0),
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_out(tmp_path, monkeypatch)
    return tmp_path


def network(form: CriticLossConfig, *, seed: int = 0) -> ValueNetwork:
    """A float64 critic whose head is not 0."""
    found = ValueNetwork(new_model(CONFIG, seed=seed), outputs=form.outputs).double()
    found.decoder.set_compute_dtype("float64")
    draws = np.random.default_rng(seed)
    with torch.no_grad():
        for parameter in found.head.parameters():
            parameter.copy_(torch.from_numpy(draws.normal(size=tuple(parameter.shape))))
    return found


def conversations(gap: int = 3) -> Episodes:
    """Three conversations: two of one question; the environment writes `gap` tokens inside the last one, which was cut
    by a limit, and the second one has no score."""
    rng = np.random.default_rng(0)
    shapes = [(5, [2]), (5, [4]), (7, [2, 3])]
    tokens, at, lengths = [], [], []
    asked = rng.integers(0, 30, 5)
    for prompt, answers in shapes:
        start = sum(map(len, tokens))
        pieces = [asked if prompt == 5 else rng.integers(0, 30, prompt)]
        for turn, size in enumerate(answers):
            pieces += [rng.integers(0, 30, gap)] * (turn > 0)
            here = start + sum(map(len, pieces))
            at += range(here, here + size)
            pieces.append(rng.integers(0, 30, size))
        tokens.append(np.concatenate(pieces))
        lengths.append(sum(answers))
    whole = np.concatenate(tokens).astype(np.int32)
    places = np.array(at, np.int64)
    count = len(places)
    return Episodes(
        offsets=offsets_of(np.array(lengths)),
        seen=Transcript(tokens=whole, offsets=offsets_of(np.array([len(one) for one in tokens])), at=places),
        chosen=whole[places],
        logp=np.full(count, -1.0, np.float32),
        version=np.zeros(count, np.int32),
        reward=np.zeros(count, np.float32),
        group=np.array([0, 0, 1]),
        terminated=np.array([True, True, False]),
        truncated=np.array([False, False, True]),
        score=np.array([1.0, np.nan, 0.5]),
        status=np.array([0, ScoreStatus.TIMEOUT, 0], np.uint8),
    )


def view(form: CriticLossConfig, *, budget: int = 1 << 40, share: bool = True) -> CriticView:
    return CriticView(form, TokenLayout(scheme=token_mean, share_prefixes=share), budget)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_value_is_that_of_the_text_before_the_decision(form: CriticLossConfig) -> None:
    """One pass for each decision over exactly the tokens before it, through the head by hand."""
    critic, episodes = network(form), conversations()
    values = view(form, budget=9).values(critic, episodes)
    seen = episodes.transcript
    for number, at in enumerate(seen.at.tolist()):
        start = int(seen.offsets[np.searchsorted(seen.offsets, at, side="right") - 1])
        with torch.no_grad():
            hidden = critic.decoder.hidden(pack_rows([seen.tokens[start:at]]))[-1]
            numbers = hidden @ critic.head.weight.T + critic.head.bias
        assert values.value[number] == pytest.approx(by_hand(form, numbers.tolist()), abs=1e-6)
    assert values.final.tolist() == [0.0, 0.0, 0.0], "an answer that a limit cut is not bootstrapped"


def by_hand(form: CriticLossConfig, numbers: list[float]) -> float:
    if isinstance(form, SquaredErrorLoss):
        return numbers[0]
    if isinstance(form, SigmoidValueLoss):
        return 1 / (1 + float(np.exp(-numbers[0])))
    mass = np.exp(numbers)
    return float(mass @ np.linspace(-1.0, 2.0, 7) / mass.sum())


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_gradient_is_that_of_the_whole_batch_however_it_is_cut(form: CriticLossConfig) -> None:
    critic, episodes = network(form), conversations()
    target = np.linspace(-0.5, 1.5, episodes.decisions).astype(np.float32)
    credits = Credits(advantage=np.ones(episodes.decisions, np.float32), target=target)
    whole: list[torch.Tensor] = []
    for share in (True, False):
        rows = view(form, share=share).rows(critic, episodes, credits).weighted()
        assert len(rows.episodes) == 2, "the conversation without a score is left out"
        rows = replace(rows, precomputed=replace(rows.precomputed, old_value=target[[0, 1, *range(6, 11)]] - 0.3))
        for pieces in ([rows], [rows.take(np.array([number])) for number in range(len(rows))]):
            critic.zero_grad()
            for piece in pieces:
                batch = piece.tensors()
                view(form).objective(critic, batch).weighted_sum(batch.weight).backward()
            whole.append(torch.cat([one.grad.flatten() for one in critic.parameters() if one.grad is not None]))
    assert float(whole[0].abs().max()) > 1e-3
    for other in whole[1:]:
        torch.testing.assert_close(other, whole[0], atol=1e-7, rtol=1e-5)


def test_tool_output_has_no_value_and_no_gradient() -> None:
    """With nothing but what is written between two turns made longer, as many decisions have values."""
    form = FORMS["squared"]
    for gap in (0, 1, 50):
        episodes = conversations(gap)
        assert len(view(form).values(network(form), episodes).value) == episodes.decisions == 11


def run(job: TrainingJob[Any], steps: int, first: int = 1) -> list[dict[str, float]]:
    found: list[dict[str, float]] = []
    train(job.recipe, steps=steps, first_step=first, callback=lambda _s, _e, _c, told: found.append(dict(told)))
    return found


def critic_settings(steps: int, **critic: Any) -> dict[str, Any]:
    return settings("ppo_text", steps=steps, full=False, algorithm={"critic": critic})


def policy_bits(job: TrainingJob[Any], folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    job.save_policy(folder)
    return files(folder)


def test_the_warm_up_trains_the_critic_alone(place: Path) -> None:
    tables = critic_settings(6, warmup_steps=3, epochs=4)
    job = job_of("ppo_text", tables)
    before = policy_bits(job, place / "before")
    warm = run(job, 3)
    assert policy_bits(job, place / "warmed") == before
    assert [told["critic/warming_up"] for told in warm] == [1.0, 1.0, 1.0]
    assert warm[-1]["critic/loss"] < warm[0]["critic/loss"]
    assert "policy/loss" not in warm[0] and "learner/tokens" in warm[0]
    after = run(job, 4, first=4)
    assert policy_bits(job, place / "after") != before
    assert after[0]["critic/warming_up"] == 0.0 and "policy/loss" in after[0]


def test_a_resume_within_the_warm_up_is_the_same_run(place: Path) -> None:
    tables = critic_settings(5, warmup_steps=3, loss={"kind": "sigmoid", "clip_range": 0.2}, lr=0.01)
    straight = job_of("ppo_text", tables)
    run(straight, 5)
    saved(straight, place / "straight")
    halfway = job_of("ppo_text", tables)
    run(halfway, 2)
    saved(halfway, place / "halfway")
    resumed = restored(job_of("ppo_text", tables), place / "halfway")
    run(resumed, 5, first=3)
    saved(resumed, place / "resumed")
    assert files(place / "resumed") == files(place / "straight")


def test_a_checkpoint_of_another_critic_is_refused(place: Path) -> None:
    job = job_of("ppo_text", critic_settings(3))
    run(job, 1)
    saved(job, place / "saved")
    assert list(substate(substate(job.recipe.learner.state(), "critic"), "network"))
    bins = {"kind": "bins", "low": 0.0, "high": 1.0}
    with pytest.raises(DataError, match=r"saved critic has head.weight of shape \[1, 16\], this one \[51, 16\]"):
        restored(job_of("ppo_text", critic_settings(3, loss=bins)), place / "saved")


@pytest.mark.parametrize("loss", [{"kind": "sigmoid"}, {"kind": "bins", "low": 0.0, "high": 1.0}])
def test_groups_of_one_learn_with_every_form_of_values(place: Path, loss: dict[str, Any]) -> None:
    """What no recipe without a critic can do without a baseline of the batch: one answer to each question."""
    tables = critic_settings(40, loss=loss)
    tables["rollout"] = {"prompts_per_step": 24, "samples_per_prompt": 1, "max_tokens": 2}
    scores: list[float] = []
    job = job_of("ppo_text", tables)
    train(job.recipe, steps=40, callback=lambda _s, episodes, _c, _m: scores.append(float(episodes.score.mean())))
    assert np.mean(scores[-5:]) - np.mean(scores[:5]) > 0.4


def test_it_starts_from_the_policy_or_from_a_reward_model(place: Path) -> None:
    plain = job_of("ppo_text", critic_settings(3))
    policy = plain.recipe.learner.policy
    learner = plain.recipe.learner
    assert isinstance(learner, ActorCriticLearner)
    ours = dict(policy.decoder.named_parameters())
    theirs = dict(learner.critic.policy.decoder.named_parameters())
    assert set(ours) - set(theirs) <= {"head.weight"}
    assert all(torch.equal(theirs[name], ours[name]) for name in theirs)
    assert all(theirs[name].data_ptr() != ours[name].data_ptr() for name in theirs), "a copy of its own"
    scorer = new_scalar_head(new_model(policy.decoder.config, seed=7), seed=7)
    scorer.save(place / "scorer")
    policy.tokenizer.save(place / "scorer")
    started = job_of("ppo_text", critic_settings(3, path="scorer")).recipe.learner.critic.policy
    torch.testing.assert_close(started.head.weight, scorer.score.weight)
    torch.testing.assert_close(started.decoder.embedding.weight, scorer.decoder.embedding.weight)
    classified = critic_settings(3, path="scorer", loss={"kind": "bins", "low": 0.0, "high": 1.0})
    assert not job_of("ppo_text", classified).recipe.learner.critic.policy.head.weight.any()


def test_a_critic_with_other_tokens_is_refused(place: Path) -> None:
    model = settings("grpo", steps=1)["model"]
    other = job_of("grpo", settings("grpo", steps=1, full=False, model={"new": model["new"] | {"alphabet": "abcdefg"}}))
    (place / "other").mkdir()
    other.save_policy(place / "other")
    with pytest.raises(DataError, match=r"algorithm.critic.path = 'other': its tokenizer .* is not the policy's"):
        job_of("ppo_text", critic_settings(3, path="other"))


def test_a_critic_of_a_shorter_context_is_refused(place: Path) -> None:
    model = settings("grpo", steps=1)["model"]
    short = job_of("grpo", settings("grpo", steps=1, full=False, model={"new": model["new"] | {"max_positions": 8}}))
    (place / "short").mkdir()
    short.save_policy(place / "short")
    tables = critic_settings(3, path="short")
    tables["rollout"] |= {"max_tokens": 9}
    with pytest.raises(DataError, match=r"algorithm.critic.path = 'short': it reads 8 tokens, and .* has 10"):
        job_of("ppo_text", tables)


def test_a_critic_that_is_not_there_is_found_before_a_model_is_loaded(place: Path) -> None:
    tables = critic_settings(3, path="nowhere") | {
        "rewards": {"functions": [{"use": "exact_match"}]},
        "user_code": {"workers": 1},
    }
    entry = load_recipe("ppo_text")
    with pytest.raises(DataError, match="nowhere"):
        entry.check(entry.config.model_validate(tables))


def test_the_memory_plan_counts_it(place: Path) -> None:
    entry = load_recipe("ppo_text")
    opened = entry.config.model_validate(critic_settings(3)).open()
    assert opened.memory is not None
    parts = opened.memory.parts
    assert parts["critic"] == 4 * parts["weights"], "weights, gradients and two moments"


def test_a_useless_critic_is_told_once() -> None:
    watch = CriticWatch()
    for _ in range(JUDGED_STEPS + 5):
        watch.observe({"critic/explained_variance": 0.03}, 2.25)
    (note,) = watch.pop_notes()
    assert note.startswith("the critic explains 3% of the variance of the returns")
    assert "costs 2.2 times as much" in note and "algorithm.critic.warmup_steps" in note
    assert watch.pop_notes() == []
    other = CriticWatch()
    other.restore(watch.state())
    other.observe({"critic/explained_variance": -9.0}, 2.0)
    assert other.pop_notes() == [], "a resumed run does not repeat it"
    useful = CriticWatch()
    for _ in range(JUDGED_STEPS):
        useful.observe({"critic/explained_variance": 0.5}, 2.0)
    assert useful.pop_notes() == []
