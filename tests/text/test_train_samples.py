"""What is told of a step's answers."""

import numpy as np
import pytest

from hone.text.samples import answer_metrics
from hone.text.tasks.world import supervised_episodes


def test_lengths_and_entropy_by_hand() -> None:
    prompt = np.array([1, 2], dtype=np.int32)
    said = [np.array([3], dtype=np.int32), np.array([4, 5, 6], dtype=np.int32)]
    episodes = supervised_episodes([prompt, prompt], said)
    episodes.logp[:] = np.log([0.5, 0.25, 1.0, 0.125])
    metrics = answer_metrics(episodes)
    assert metrics["answers/tokens_mean"] == 2.0
    assert metrics["answers/tokens_longest"] == 3.0
    # -(log 1/2 + log 1/4 + log 1 + log 1/8) / 4 = 6 log 2 / 4
    assert metrics["policy/entropy_nats"] == pytest.approx(1.5 * np.log(2), rel=1e-6)


def test_entropy_is_estimated_without_bias() -> None:
    rng = np.random.default_rng(0)
    chances = np.array([0.6, 0.3, 0.1])
    drawn = rng.choice(3, size=20_000, p=chances)
    episodes = supervised_episodes([np.array([0], dtype=np.int32)], [drawn.astype(np.int32)])
    episodes.logp[:] = np.log(chances)[drawn]
    entropy = -(chances * np.log(chances)).sum()
    assert answer_metrics(episodes)["policy/entropy_nats"] == pytest.approx(entropy, abs=0.02)
