"""Strings of letter pairs: the true reward by hand, the strings to imitate, and the noise of the labels."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.lab.tasks import letter_pairs as pairs
from hone.rewards.functions import LoadedFunction

strings = st.text(pairs.LETTERS, max_size=30)


def test_a_pair_pays_twice_and_then_costs():
    weights = pairs.pair_weights()
    assert len(weights) == 64
    assert pairs.true_reward("ab") == pytest.approx(weights["ab"])
    assert pairs.true_reward("aaa") == pytest.approx(2 * weights["aa"])
    assert pairs.true_reward("aaaaaa") == pytest.approx(2 * weights["aa"] - 3)
    assert pairs.true_reward("a b") == 0.0
    assert pairs.pair_weights(1) != weights


@given(strings)
def test_the_true_reward_against_a_walk_along_the_string(text: str):
    weights, seen, total = pairs.pair_weights(), dict[str, int](), 0.0
    for first, second in pairwise(text):
        seen[first + second] = seen.get(first + second, 0) + 1
        total += weights[first + second] if seen[first + second] <= 2 else -1.0
    assert pairs.true_reward(text) == pytest.approx(total)


def test_strings_to_imitate_have_16_letters_and_few_repeats():
    texts = pairs.strings_to_imitate(2000, seed=0)
    lengths = np.array([len(text) for text in texts])
    rewards = np.array([pairs.true_reward(text) for text in texts])
    assert (lengths.min(), lengths.max()) == (12, 20)
    assert lengths.mean() == pytest.approx(16, abs=0.2)
    assert 2.5 < rewards.std() < 5
    repeats = [text for text in texts if max(text.count(pair * 3) for pair in pairs.LETTERS) > 0]
    assert len(repeats) / len(texts) < 0.3
    assert pairs.strings_to_imitate(3, seed=0) == texts[:3]


def test_labels_follow_bradley_and_terry():
    rewards, others = np.full(40_000, 1.0), np.zeros(40_000)
    for scale in (1.0, 2.0):
        share = pairs.first_is_preferred(rewards, others, seed=0, scale=scale).mean()
        assert share == pytest.approx(1 / (1 + np.exp(-1 / scale)), abs=0.01)


def test_the_reward_function_reads_the_prompts_last_letter():
    assert pairs.letter_reward(["a"], ["bc"]) == [pytest.approx(pairs.true_reward("abc"))]
    assert pairs.letter_reward(["go on: a\n"], ["bc\n"]) == pairs.letter_reward(["a"], ["bc"])
    assert pairs.letter_reward(["a"], ["bc"], seed=3) == [pytest.approx(pairs.true_reward("abc", seed=3))]
    assert LoadedFunction.load("hone.lab.tasks.letter_pairs:letter_reward", {"seed": 3}).form == "batch"
