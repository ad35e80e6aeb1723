"""Rollouts of runs: tokens with the learner's figures, episodes with decisions, thinning, and what a resume leaves."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_runs import hone, lay_out

from hone.run.store.events import LIFE, read_events
from hone.run.store.histograms import read_histograms
from hone.run.store.rollouts import read_episodes, read_samples, read_times, read_tokens, rollout_files, rollout_kind
from hone.text.update_trace import UpdateTrace

OFTEN = ("run.rollouts_every=1", "run.certify=false", "steps=4")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    lay_out(tmp_path)
    return tmp_path


def test_answers_have_their_tokens_with_the_learners_figures(place: Path) -> None:
    """Two epochs of two minibatches: the loss recomputes log-probabilities before its first update."""
    assert hone("train", "grpo.toml", *OFTEN, "algorithm.entropy=0.01") == 0
    files = rollout_files(place / "runs" / "tiny")
    assert list(files) == [1, 2, 3, 4]
    moved = 0.0
    for step, path in files.items():
        rows, tokens = read_samples(path), read_tokens(path)
        assert tokens is not None
        assert len(rows) == 16, "all answers"
        assert [len(one.completion) <= one.tokens for one in rows] == [True] * 16
        sums = {row.prompt: str(int(row.prompt[0]) + int(row.prompt[2])) for row in rows}
        assert [row.reference for row in rows] == [sums[row.prompt] for row in rows]
        np.testing.assert_array_equal(np.add.reduceat(tokens.mask, tokens.offsets[:-1]), [row.tokens for row in rows])
        known = ~np.isnan(tokens.logp_now)
        assert known.any()
        assert not (known & ~tokens.mask).any(), "nothing is said of the prompt's tokens"
        assert not np.isnan(tokens.logp[tokens.mask]).any()
        np.testing.assert_allclose(tokens.logp_now[known], tokens.logp[known], atol=1e-4)
        moved = max(moved, float(np.abs(tokens.logp_last - tokens.logp_now)[known].max()))
        np.testing.assert_array_equal(np.isnan(tokens.entropy), np.isnan(tokens.logp_last))
        assert set(tokens.clipped[known].tolist()) <= {0, 1}
        assert (tokens.clipped[~tokens.mask] == -1).all()
        assert set(tokens.versions[tokens.mask].tolist()) == {step - 1}
        times = read_times(path, len(rows))
        assert all(took is not None and took >= 0 for took in times.seconds)
        assert set(times.world_seconds) == {0.0}, "nobody replied"
        assert {row.tool_calls for row in rows} == {None}
    assert moved > 1e-3, "the last pass is by a policy that was updated three times"
    histograms = read_histograms(place / "runs" / "tiny")
    assert list(histograms) == ["reward", "length", "advantage", "ratio", "entropy"]
    steps, made = histograms["length"]
    assert steps.tolist() == [1, 2, 3, 4]
    assert made[0].counts.sum() == 16


def test_an_interrupted_run_has_the_events_of_an_uninterrupted_one(place: Path) -> None:
    arguments = ("train", "sft.toml", "run.rollouts_every=1", "run.certify=false", "run.keep_last=9")
    assert hone(*arguments, "--runs", "whole") == 0
    shutil.copytree(place / "whole", place / "cut")
    run = place / "cut" / "tiny"
    shutil.rmtree(run / "checkpoints" / "step_00000006")
    shutil.rmtree(run / "checkpoints" / "step_00000004")
    assert hone(*arguments, "--runs", "cut", "--resume") == 0
    left, right = (
        [(one.step, one.kind, one.words, one.data) for one in read_events(folder).events if one.kind not in LIFE]
        for folder in (run, place / "whole" / "tiny")
    )
    assert left == right
    assert {one[1] for one in left} >= {"checkpoint", "evaluation"}
    lives = [one.kind for one in read_events(run).events if one.kind in LIFE]
    assert lives == ["start", "finish", "resume", "finish"]
    whole = place / "whole" / "tiny"
    assert (run / "histograms.jsonl").read_bytes() == (whole / "histograms.jsonl").read_bytes()
    ours, theirs = rollout_files(run), rollout_files(whole)
    assert list(ours) == list(theirs)
    assert [path.read_bytes() for path in ours.values()] == [path.read_bytes() for path in theirs.values()]


def test_rollouts_beyond_their_space_are_thinned(place: Path) -> None:
    assert hone("train", "grpo.toml", *OFTEN, "steps=6", "run.rollouts_keep_mb=0.03") == 0
    files = rollout_files(place / "runs" / "tiny")
    assert 1 <= len(files) < 6
    assert 6 in files, "the newest stays"


def test_a_critics_values_stand_at_its_tokens_beside_their_advantages(place: Path) -> None:
    keys = ("recipe=ppo_text", "algorithm={}", "steps=2", "run.rollouts_every=1", "run.certify=false")
    assert hone("train", "grpo.toml", *keys) == 0
    for path in rollout_files(place / "runs" / "tiny").values():
        tokens = read_tokens(path)
        assert tokens is not None
        np.testing.assert_array_equal(np.isnan(tokens.values), ~tokens.mask)
        np.testing.assert_array_equal(np.isnan(tokens.advantages), ~tokens.mask)


PPO = """
recipe = "ppo"
name = "pole"
steps = 2
rollout_steps = 16
[env]
id = "CartPole-v1"
num_envs = 2
[run]
rollouts_every = 1
certify = false
"""


def test_episodes_of_control_have_their_decisions(place: Path) -> None:
    (place / "ppo.toml").write_text(PPO)
    assert hone("train", "ppo.toml") == 0
    run = place / "runs" / "pole"
    files = rollout_files(run)
    assert rollout_kind(files[1]) == "episodes"
    episodes = read_episodes(files[2])
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert episodes.offsets[-1] == line["episodes/decisions"]
    assert episodes.observations is not None
    assert episodes.observations.shape == (episodes.offsets[-1], 4)
    assert set(np.unique(episodes.actions)) <= {0.0, 1.0}
    assert episodes.values is not None
    assert np.isfinite(episodes.values).all()
    assert (episodes.rewards == 1).all()
    assert -10 < line["value/explained_variance"] <= 1
    assert "ratio" not in read_histograms(run), "nothing is known of it"


# --------------------------------------------------------------------------------------------------------- by hand


def test_a_trace_by_hand() -> None:
    """Six decisions; two passes over the first three of the four that the loss takes."""
    trace = UpdateTrace()
    assert trace.pop() is None
    trace.begin(6, np.array([1, 2, 4, 5]))
    old, denominator = torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.0, -2.0, -3.0])
    place = np.array([0, 1, 2])
    entropy = torch.tensor([0.5, 0.6, 0.7])
    trace.see(place, torch.tensor([-1.0, -2.0, -3.0]), denominator, old_logp=old, entropy=entropy)
    trace.see(place, torch.tensor([-0.5, -2.5, -3.0]), denominator, old_logp=old, entropy=entropy * 2)
    trace.see_clipped(place, torch.tensor([1.0, 0.0, 0.0]))
    made = trace.pop()
    assert made is not None
    nan = np.nan
    np.testing.assert_array_equal(made.logp_now, np.array([nan, -1, -2, nan, -3, nan], np.float32))
    np.testing.assert_array_equal(made.logp_last, np.array([nan, -0.5, -2.5, nan, -3, nan], np.float32))
    np.testing.assert_allclose(made.ratio, [nan, np.exp(0.5), np.exp(-0.5), nan, 1, nan], rtol=1e-6)
    np.testing.assert_array_equal(made.entropy, np.array([nan, 0.5, 0.6, nan, 0.7, nan], np.float32))
    assert made.clipped.tolist() == [-1, 1, 0, -1, 0, -1]
    assert trace.pop() is None, "it is told once"


@pytest.mark.parametrize(("single", "start"), [(True, [-1.0, -2.0]), (False, [np.nan, np.nan])])
def test_without_a_recomputed_start_the_first_pass_stands_for_it_if_there_is_one_update(
    single: bool, start: list[float]
) -> None:
    trace = UpdateTrace(first_pass_is_start=single)
    trace.begin(2, None)
    logp = torch.tensor([-1.0, -2.0])
    trace.see(np.array([0, 1]), logp, logp, old_logp=None, entropy=None)
    made = trace.pop()
    assert made is not None
    np.testing.assert_array_equal(made.logp_now, np.array(start, np.float32))
    assert np.isnan(made.entropy).all()
