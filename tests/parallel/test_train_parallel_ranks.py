"""A learner over two processes against one process: gradient, weights, optimizer state, figures, resume; bits of
virtual ranks."""

from collections.abc import Mapping

import numpy as np
import pytest
from tests.support import rank_networks as networks
from tests.support import rank_session as session

from hone.core.credit import Credits

SLOW = ("networks32", "pairs_networks64", "pairs_natural64")
"""Cases of four ranks only."""


@pytest.fixture(scope="module")
def two() -> Mapping[str, session.Results]:
    """Results of all cases on two ranks, one session of processes."""
    return session.run_cases([name for name in session.CASES if name not in SLOW], ranks=2)


def alone(dtype: str, config=session.LEARNER, updates: int = 3) -> session.Results:
    policy = session.tiny_policy(dtype)
    learner = session.make_learner(policy, config)
    episodes, credits = session.batch(policy)
    metrics = [learner.update(episodes, credits) for _ in range(updates)]
    figures = np.array([[row["policy/grad_norm"], row["policy/loss"], row["learner/tokens"]] for row in metrics])
    state = learner.state()
    return {
        "weights": session.weights(policy),
        "squares": session.flat_moments(state),
        "gradient": session.flat_moments(state, "exp_avg"),
        "figures": figures,
    }


def assert_close(found, expected, within):
    assert np.abs(found - expected).max() <= within * np.abs(expected).max()


@pytest.mark.parametrize(
    ("case", "dtype", "within"), [("gradient32", "float32", 1e-6), ("gradient64", "float64", 1e-12)]
)
def test_gradient_of_two_ranks_is_that_of_one_process(two, case, dtype, within):
    expected = alone(dtype, session.ONE_STEP, updates=1)
    assert np.abs(expected["gradient"]).max() > 1e-6
    for name, value in two[case].items():
        assert_close(value, expected[name], within)


@pytest.mark.parametrize(("case", "dtype", "within"), [("train32", "float32", 1e-5), ("train64", "float64", 1e-12)])
def test_three_updates_of_two_ranks_are_those_of_one_process(two, case, dtype, within):
    expected = alone(dtype)
    for name, value in two[case].items():
        assert_close(value, expected[name], within)


@pytest.mark.parametrize("balance", ["loss", "bias"])
def test_experts_on_two_ranks_are_balanced_by_the_load_of_the_whole_batch(two, balance):
    policy = session.expert_policy(balance)
    expected = session.expert_training(session.make_learner(policy).update, policy)
    found = two[f"experts_{balance}"]
    assert_close(found["weights"], expected["weights"], 1e-12)
    assert_close(found["loads"], expected["loads"], 1e-12)
    assert np.array_equal(found["biases"], expected["biases"])
    assert bool(len(found["biases"])) == (balance == "bias")


def test_resume_on_two_ranks_has_the_bits_of_the_run_that_went_on(two):
    assert np.array_equal(two["resume"]["on"], two["resume"]["resumed"])
    assert not np.array_equal(two["resume"]["on"], two["resume"]["first"])


def test_state_of_two_ranks_is_taken_up_by_one_process(two):
    saved, policy = two["resume"], session.tiny_policy("float32")
    learner = session.make_learner(policy)
    episodes, credits = session.batch(policy)
    learner.update(episodes, credits)
    state = learner.state()
    session.set_weights(policy, saved["first"])
    for name in ("exp_avg", "exp_avg_sq"):
        assert session.set_moments(state, name, saved[name]) < 1e-5
    learner.restore(state)
    learner.update(episodes, credits)
    assert_close(session.weights(policy), saved["on"], 1e-6)


def assert_pairs_train_as_one_process(found: Mapping[str, session.Results]) -> None:
    for case, dtype, within in (("gradient32", "float32", 5e-6), ("gradient64", "float64", 1e-12)):
        expected = alone(dtype, session.ONE_STEP, updates=1)
        for name, value in found[f"pairs_{case}"].items():
            assert_close(value, expected[name], within)
    expected = alone("float64")
    for name, value in found["pairs_train64"].items():
        assert_close(value, expected[name], 1e-12)
    resume = found["pairs_resume"]
    assert np.array_equal(resume["on"], resume["resumed"]) and not np.array_equal(resume["on"], resume["first"])


def test_two_ranks_that_hold_the_layers_together_train_as_one_process(two):
    assert_pairs_train_as_one_process(two)


def assert_networks_learn_as_on_one_process(found: Mapping[str, session.Results], case: str) -> None:
    """Of critic, reward model, adapters and reference: the gradient of a step, and the values afterwards."""
    dtype, within = ("float32", 1e-6) if case.endswith("32") else ("float64", 1e-12)
    for kind in {name.split()[0] for name in found[case]}:
        expected = networks.alone(kind, dtype)
        assert np.abs(expected["gradient"]).max() > 1e-4
        assert_close(found[case][f"{kind} gradient"], expected["gradient"], within)
        assert np.abs(found[case][f"{kind} answers"] - expected["answers"]).max() <= 10 * within
    assert np.array_equal(found[case]["critic on"], found[case]["critic resumed"])


def test_critic_reward_model_and_adapter_on_two_ranks_learn_as_on_one_process(two):
    assert_networks_learn_as_on_one_process(two, "networks64")


def assert_natural_step_of_one_process(found: Mapping[str, session.Results], case: str) -> None:
    policy, learner = networks.trust_region("float64")
    before = session.weights(policy)
    told = learner.update(*session.batch(policy))
    step = session.weights(policy) - before
    assert told["natural/accepted"] == 1.0 == found[case]["figures"][0]
    assert np.abs(step).max() > 1e-4
    assert_close(found[case]["weights"] - before, step, 1e-7)  # curvature is a difference of gradients


def test_two_ranks_take_the_natural_step_of_one_process(two):
    assert_natural_step_of_one_process(two, "natural64")


def assert_each_rank_keeps_its_part(found: Mapping[str, session.Results], ranks: int) -> None:
    """Bytes of weights, gradients and moments of each rank: its part, of a padded dimension, and on rank 0 a whole copy
    of the weights of a network that acts or is saved."""
    part = 1.1 / ranks
    for kind in ("policy", "critic", "scorer"):
        whole, kept = networks.bytes_alone(kind, "float64"), found["networks64"][f"{kind} bytes"]
        assert len(kept) == ranks
        assert kept[1:].max() <= part * whole
        assert kept[0] <= (part + (0 if kind == "critic" else 0.25)) * whole


def test_each_of_two_ranks_keeps_half_of_policy_critic_and_reward_model(two):
    assert_each_rank_keeps_its_part(two, 2)


def test_each_of_two_ranks_keeps_half_of_the_weights_of_an_adapter(two):
    whole, kept = networks.bytes_alone("adapter", "float64"), two["networks64"]["adapter bytes"]
    factors = 4 * networks.factor_bytes("float64")  # whole everywhere, with gradients and moments
    assert kept[1] - factors <= 0.55 * (whole - factors)


def test_ranks_that_hold_whole_networks_sum_their_gradients(two):
    expected = alone("float64")
    for name, value in two["whole_networks"].items():
        assert_close(value, expected[name], 1e-12)


def test_a_loss_that_is_not_finite_on_one_rank_is_stepped_by_none(two):
    assert np.array_equal(two["not_finite_on_one"]["before"], two["not_finite_on_one"]["after"])


def test_one_row_is_learnt_by_one_rank_and_filled_up_by_the_other(two):
    policy = session.tiny_policy("float64")
    learner = session.make_learner(policy, session.LEARNER.model_copy(update={"minibatches": 1}))
    episodes, credits = session.batch(policy)
    one = episodes.take(np.array([0]))
    learner.update(one, Credits(advantage=credits.advantage[: one.decisions]))
    assert_close(two["fewer_rows"]["weights"], session.weights(policy), 1e-12)


def test_virtual_ranks_give_equal_bits_on_one_and_two_ranks(two):
    assert_virtual_bits(two)


def assert_virtual_bits(found: Mapping[str, session.Results]) -> None:
    one = session.run_cases(["virtual_train32"], ranks=1)["virtual_train32"]
    for name in ("weights", "squares"):
        assert np.array_equal(one[name], found["virtual_train32"][name]), name
    assert_close(one["weights"], alone("float32")["weights"], 1e-5)


@pytest.mark.slow  # 4 processes
def test_four_ranks_are_one_process_and_virtual_ranks_give_their_bits():
    four = session.run_cases([*session.CASES], ranks=4)
    assert_pairs_train_as_one_process(four)
    for case in ("networks32", "networks64", "pairs_networks64"):
        assert_networks_learn_as_on_one_process(four, case)
    assert_each_rank_keeps_its_part(four, 4)
    for case in ("natural64", "pairs_natural64"):
        assert_natural_step_of_one_process(four, case)
    for case, dtype, within in (("gradient32", "float32", 1e-6), ("gradient64", "float64", 1e-12)):
        expected = alone(dtype, session.ONE_STEP, updates=1)
        assert_close(four[case]["gradient"], expected["gradient"], within)
    assert_virtual_bits(four)
