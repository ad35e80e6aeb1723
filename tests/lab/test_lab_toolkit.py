"""The small problems under the experiments, against values worked out by hand and against brute force."""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from ranks_in_threads import on_ranks

from hone.core.random import generator
from hone.core.reduction import Reduction
from hone.lab.exact import all_groups, count_probabilities, group_advantages, scored_episodes, scores_by_count
from hone.lab.experiments.memory_by_hand import lines_of, run_of
from hone.lab.experiments.same_question_other_company import TOKENS, CompanyEffect, bitwise_ratio, sharp_models
from hone.lab.experiments.two_ranks import GLOBAL, ONE, SORTED, measure
from hone.lab.policies import (
    TablePolicy,
    answer_paths,
    frozen_copy,
    kl_between,
    log_softmax,
    make_network,
    pretrained_network,
    puzzle_metrics,
    sample_rows,
    success_probabilities,
    train_supervised,
    trainable_copy,
)
from hone.lab.puzzles import addition, parity
from hone.lab.training import (
    DESCENT_EPSILON,
    DelayedActor,
    PuzzleTraining,
    PuzzleWorld,
    final_accuracy,
    sample_answers,
    train_policy,
    train_seeds,
)
from hone.learner.share import BatchShare
from hone.objectives.policy import reinforce_loss
from hone.planner.planned_decoder import PlannedDecoder


def test_puzzles_by_hand():
    puzzle = addition(6)
    question = 5 * 6 + 4  # 5 + 4 = 13 in base 6
    assert puzzle.questions[question].tolist() == [5, 4]
    assert puzzle.answers[question].tolist() == [1, 3]
    assert puzzle.feature_sizes == (6, 6, 2, 7)
    assert puzzle.score(np.array([question] * 2), np.array([[1, 3], [1, 4]])).tolist() == [1.0, 0.0]
    assert parity(3).answers[0b011].tolist() == [1, 0, 0]  # bits 1, 1, 0


def test_a_policy_is_judged_as_by_asking_it():
    puzzle = addition(3)
    policy = pretrained_network(puzzle, seed=1)
    count = 40_000
    questions = np.repeat(np.arange(9), count // 9)
    episodes = sample_answers(policy, puzzle, questions, generator(0, "test"))
    asked = np.array([episodes.score[questions == q].mean() for q in range(9)])
    assert np.abs(asked - success_probabilities(policy, puzzle)).max() < 0.03
    assert puzzle_metrics(policy, puzzle)["solved"] == pytest.approx(success_probabilities(policy, puzzle).mean())


def test_solve_rates_by_brute_force():
    puzzle = addition(3)
    policy = make_network(puzzle, seed=2)
    question = np.array([7])  # 2 + 1
    total, right = 0.0, 0.0
    for tokens in product(range(3), repeat=2):
        first = log_softmax(policy, torch.from_numpy(puzzle.observation(question, 0, np.array([3]))))[0, tokens[0]]
        second = log_softmax(policy, torch.from_numpy(puzzle.observation(question, 1, np.array([tokens[0]]))))[
            0, tokens[1]
        ]
        chance = float((first + second).exp().detach())
        total += chance
        right += chance * float(puzzle.score(question, np.array([tokens]))[0])
    assert total == pytest.approx(1.0, abs=1e-5)
    assert success_probabilities(policy, puzzle)[7] == pytest.approx(right, rel=1e-4)


def test_episodes_tell_the_log_probability_of_whoever_acted():
    puzzle = addition(4)
    policy = make_network(puzzle, seed=0)
    episodes = sample_answers(policy, puzzle, np.arange(16), generator(1, "test"), version=5)
    table = log_softmax(policy, torch.from_numpy(episodes.observations.astype(np.int64))).detach().numpy()
    assert np.allclose(table[np.arange(32), episodes.chosen.astype(int)], episodes.logp, atol=1e-6)
    assert set(episodes.version.tolist()) == {5}
    assert episodes.reward.reshape(16, 2)[:, 1].tolist() == episodes.score.tolist()
    assert not episodes.reward.reshape(16, 2)[:, 0].any()


def test_an_engine_that_is_off_says_its_own_log_probability():
    puzzle = addition(4)
    policy = make_network(puzzle, seed=0)
    flat = sample_answers(policy, puzzle, np.arange(16), generator(1, "test"), distort=lambda logits, seen: 0 * logits)
    assert np.allclose(flat.logp, -np.log(4))


@given(st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6), st.floats(0, 0.999999))
def test_a_pick_is_the_inverse_of_the_distribution(weights, draw):
    table = np.array([weights]) / np.sum(weights)
    chosen = sample_rows(table, np.array([draw]))[0]
    edges = np.concatenate([[0.0], np.cumsum(table[0])])
    assert edges[chosen] - 1e-9 <= draw <= edges[chosen + 1] + 1e-9


def test_a_player_lags_behind():
    player = DelayedActor(delay=2)
    for version in range(5):
        player.publish(TablePolicy(torch.full((1, 2), float(version))), version)
        policy, acting = player.current
        assert acting == max(version - 2, 0)
        assert float(policy.logits[0, 0]) == acting  # what was published, not a view of what is trained now


def test_a_copy_keeps_its_weights():
    policy = make_network(addition(3), seed=0)
    twin, trained = frozen_copy(policy), trainable_copy(policy)
    train_supervised(policy, addition(3), steps=3)
    paths = answer_paths(addition(3))[0]
    assert kl_between(twin, trained, paths) == 0.0
    assert kl_between(policy, twin, paths) > 0.0
    assert not any(parameter.requires_grad for parameter in twin.parameters())
    with pytest.raises(TypeError, match="no copy of a Linear"):
        frozen_copy(torch.nn.Linear(1, 1))


def test_kl_by_hand():
    one, other = TablePolicy(torch.tensor([[0.0, 0.0]])), TablePolicy(torch.tensor([[np.log(3.0), 0.0]]))
    assert kl_between(one, other, torch.tensor([[0]])) == pytest.approx(0.5 * np.log(0.5 / 0.75) + 0.5 * np.log(2))


def test_enumerations():
    assert all_groups(2, 2).tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
    assert scores_by_count(2).tolist() == [[0, 0], [1, 0], [1, 1]]
    assert count_probabilities(np.array([0.25]), 2)[0].tolist() == pytest.approx([0.5625, 0.375, 0.0625])
    episodes = scored_episodes(np.array([1.0, 0.0]), np.array([4, 4]), lengths=np.array([2, 1]))
    assert episodes.reward.tolist() == [0, 1, 0]
    assert group_advantages(lambda e: e.reward, np.array([[1.0, 2.0], [3.0, 4.0]])).tolist() == [[1, 2], [3, 4]]


PLAN = PuzzleTraining(puzzle=addition(4), steps=6, prompts=8, samples=4)


def test_a_training_is_its_seed():
    found = [train_policy(make_network(PLAN.puzzle, seed=1), PLAN, seed=seed) for seed in (1, 1, 2)]
    assert found[0]["reward"].tolist() == found[1]["reward"].tolist()
    assert found[0]["policy/loss"].tolist() == found[1]["policy/loss"].tolist()
    assert found[0]["policy/loss"].tolist() != found[2]["policy/loss"].tolist()
    told = train_seeds(PLAN, seed=0, runs=2)
    assert told["solved"].shape == (2, 6)
    assert final_accuracy(told) == told["solved"][:, -1].mean()


def test_plain_descent_is_a_step_along_the_gradient():
    """One step with `descent` against the gradient of the same batch, worked out without the learner."""
    puzzle, rate = addition(4), 0.5
    policy = make_network(puzzle, seed=3)
    start = trainable_copy(policy)
    plan = PuzzleTraining(
        puzzle=puzzle,
        objective=lambda policy, batch: reinforce_loss(batch.logp(policy), batch.advantage),
        steps=1,
        prompts=16,
        samples=8,
        learning_rate=rate,
        gradient_descent=True,
        max_grad_norm=None,
        credit=plain_scores,
    )
    train_policy(policy, plan, seed=9)
    world = PuzzleWorld(puzzle=puzzle, seed=9, prompts=16, samples=8)
    player = DelayedActor()
    player.publish(start, 0)
    episodes = world.rollout(player)
    table = log_softmax(start, torch.from_numpy(episodes.observations.astype(np.int64)))
    now = table[torch.arange(len(table)), torch.from_numpy(episodes.chosen.astype(np.int64))]
    score = torch.from_numpy(np.repeat(episodes.score, 2)).float()
    (-(score * now).mean()).backward()
    for before, after in zip(start.parameters(), policy.parameters(), strict=True):
        # Adam divides by |g| + FAR instead of FAR
        assert torch.allclose(after - before, -rate * before.grad, rtol=10 / DESCENT_EPSILON, atol=1e-7)


def plain_scores(episodes, values):
    from hone.core.credit import Credits

    return Credits(advantage=np.repeat(episodes.score, episodes.lengths).astype(np.float32))


def test_additions_are_learned():
    told = train_policy(
        pretrained_network(addition(4), seed=0),
        PuzzleTraining(puzzle=addition(4), steps=40),
        seed=0,
    )
    assert told["reward"][-5:].mean() > told["reward"][:3].mean() + 0.2


# ------------------------------------------------------------------------------------------- machines


def test_a_step_is_added_up_by_hand() -> None:
    """A layer has 8 x (8 + 8) + 8 x 8 + 3 x 8 x 16 = 576 weights in products and 2 x 8 in norms; with the embedding of
    4 x 8 and the last norm 1 x 592 + 32 + 8 = 632 parameters. A page holds 16 tokens of 2 x 4 numbers; 8 answers and
    one more have 8 pages each, and one is spare."""
    shape = PlannedDecoder(
        family="llama", layers=1, hidden=8, heads=2, kv_heads=1, head_dim=4, intermediate=16, vocab=4, tied=True
    )
    lines = lines_of(run_of(shape, tokens=256))
    assert [lines[name] for name in ("weights", "gradients", "moments")] == [4 * 632, 4 * 632, 8 * 632]
    assert lines["keys and values"] == (8 * 9 + 1) * 16 * 2 * 4 * 4
    assert lines["rounded weights"] == 0


def test_company_is_told_by_the_first_token_that_differs() -> None:
    found = CompanyEffect(other_bits=np.ones(4), same_tokens=np.array([0.0, 2.0, 2.0, TOKENS]), ratio=0.1)
    assert found.other_tokens == 0.75
    assert found.differing()[:3].tolist() == [0.25, 0.25, 0.75]
    assert found.differing()[-1] == 0.75


def test_a_bitwise_trainer_reads_what_was_recorded() -> None:
    assert bitwise_ratio(sharp_models(5).full, seed=5) == 0.0


def test_two_ranks_measure_the_same_in_threads_as_in_processes() -> None:
    """The processes are those of the slow test of the experiment."""

    def share(ranks: Reduction) -> BatchShare:
        def add(tensor: torch.Tensor) -> None:
            parts = ranks.gather(tensor.numpy())
            tensor.copy_(torch.from_numpy(parts[0] + parts[1]))

        return BatchShare(reduction=ranks, ranks=2, shares=2, add=add)

    first, second = on_ranks(2, lambda ranks: measure(share(ranks), seed=0, steps=2, answers=256))
    assert (first.off, first.ratio, first.single) == (second.off, second.ratio, second.single)
    assert first.off[GLOBAL] < 1e-12 < 1 < first.off[SORTED]
    assert first.ratio[GLOBAL] == 1 and first.single < 1e-12
    np.testing.assert_allclose(first.ends[GLOBAL], first.ends[ONE], rtol=1e-12)
