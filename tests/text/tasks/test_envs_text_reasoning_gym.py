"""reasoning-gym's tasks by name: checked at the door, reproducible, and evaluation kept apart from training."""

from collections.abc import Mapping

import pytest
from reasoning_gym.factory import create_dataset

from hone.core.errors import ConfigError, DataError
from hone.text.tasks.dataset import ExampleDataset, find_overlap
from hone.text.tasks.reasoning_gym import reasoning_gym_examples


def test_examples_are_the_tasks_own_items() -> None:
    examples = reasoning_gym_examples("reasoning_gym:chain_sum", size=5, seed=42, config={"max_terms": 3})
    dataset = create_dataset("chain_sum", size=5, seed=42, max_terms=3)
    for index, example in enumerate(examples):
        assert example.id == f"chain_sum:42:{index}"
        assert example.prompt == dataset[index]["question"]
        assert example.columns["answer"] == dataset[index]["answer"]
        assert example.columns["metadata"] == dataset[index]["metadata"]
    assert examples.column_names() == ("question", "answer", "metadata", "task", "task_config")
    again = reasoning_gym_examples("chain_sum", size=5, seed=42, config={"max_terms": 3})
    assert again.fingerprint == examples.fingerprint
    assert again.fingerprint != reasoning_gym_examples("chain_sum", size=5, seed=43).fingerprint


def train_evaluation_split(
    task: str, *, train_size: int, evaluation_size: int, seed: int, config: Mapping[str, object] | None = None
) -> tuple[ExampleDataset, ExampleDataset]:
    """A training and an evaluation set that share no question; the seeds of the second are far from the first's."""
    evaluation = reasoning_gym_examples(task, size=evaluation_size, seed=seed + 2**30, config=config, distinct=True)
    train = reasoning_gym_examples(task, size=train_size, seed=seed, config=config, exclude=(evaluation,))
    return train, evaluation


def test_near_seeds_share_items_and_split_does_not() -> None:
    first = reasoning_gym_examples("chain_sum", size=100, seed=1)
    second = reasoning_gym_examples("chain_sum", size=100, seed=51)
    assert find_overlap(first, second).count >= 50  # why a split takes far seeds
    train, evaluation = train_evaluation_split(
        "chain_sum", train_size=300, evaluation_size=100, seed=1, config={"max_digits": 1}
    )
    assert (len(train), len(evaluation)) == (300, 100)
    assert find_overlap(train, evaluation).count == 0
    assert len({example.prompt for example in evaluation}) == 100


def test_the_evaluation_set_does_not_depend_on_the_training_size() -> None:
    small = train_evaluation_split("chain_sum", train_size=3, evaluation_size=20, seed=5)[1]
    train, large = train_evaluation_split("chain_sum", train_size=50, evaluation_size=20, seed=5)
    assert small.fingerprint == large.fingerprint
    # Far apart from the start: no training item had to be left out.
    assert [example.id for example in train] == [f"chain_sum:5:{index}" for index in range(50)]


def test_distinct_items_are_drawn_until_there_are_enough() -> None:
    config = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}  # 10 * 10 * 2 = 200 questions
    plain = reasoning_gym_examples("chain_sum", size=150, seed=1, config=config)
    assert len({example.prompt for example in plain}) < 150
    distinct = reasoning_gym_examples("chain_sum", size=150, seed=1, config=config, distinct=True)
    assert len({example.prompt for example in distinct}) == 150
    assert len({example.id for example in distinct}) == 150
    with pytest.raises(DataError, match=r"only 200 distinct items in 12500 samples, 250 are required"):
        reasoning_gym_examples("chain_sum", size=250, seed=1, config=config, distinct=True)


def test_all_faults_of_a_config_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        reasoning_gym_examples("chain_sum", size=0, seed=-1, config={"max_term": 3, "seed": 1})
    text = str(caught.value)
    assert "size must be at least 1, got 0" in text
    assert "seed must be in" in text
    assert "unknown key max_term; did you mean max_terms?" in text
    assert "give seed beside the task's config" in text


def test_names_and_values_that_do_not_fit() -> None:
    with pytest.raises(ConfigError, match="unknown task reasoning_gym:chain_sums; did you mean chain_sum"):
        reasoning_gym_examples("chain_sums", size=1, seed=1)
    with pytest.raises(ConfigError, match="rejects its config: max_terms must be >= min_terms"):
        reasoning_gym_examples("chain_sum", size=1, seed=1, config={"max_terms": 1})
    with pytest.raises(ConfigError, match="rejects its config"):
        reasoning_gym_examples("chain_sum", size=1, seed=1, config={"max_terms": "many"})
