"""Strings of letters with a known true reward, and preferences that are noisy comparisons of it.

The true reward adds a hidden weight for each pair of neighbouring letters. A pair pays at most twice; every further
repeat of it costs 1. The base policy seldom repeats a pair so often, so that a reward model learnt from the base's
strings has not seen that repetition is wrong: optimising the model raises its score while the true reward falls (Gao et
al., "Scaling laws for reward model overoptimization", 2022).

The prompt is the first letter; the answer goes on from it, and the string of both is what is rewarded.
"""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.core.random import generator, uniforms
from hone.rewards.functions import completion_text

LETTERS: Final = "abcdefgh"
LENGTHS: Final = (12, 20)
"""Shortest and longest string to imitate, the prompt included: 16 letters on average."""
PAID_REPEATS: Final = 2
"""How often a pair pays; each further one costs 1."""
_UNEVENNESS: Final = 0.5
"""Standard deviation of the logits of one letter after another in the strings to imitate."""


@cache
def pair_weights(seed: int = 0) -> dict[str, float]:
    """Hidden weight of each of the 64 pairs of letters, standard normal."""
    drawn = generator(seed, "letter-pairs/weights").standard_normal((len(LETTERS), len(LETTERS)))
    return {a + b: float(drawn[i, j]) for i, a in enumerate(LETTERS) for j, b in enumerate(LETTERS)}


def true_reward(text: str, *, seed: int = 0) -> float:
    """Sum over the pairs of `text`: count c of weight w pays min(c, 2) w - max(c - 2, 0). Other characters pay 0."""
    weights = pair_weights(seed)
    counts = Counter(a + b for a, b in pairwise(text) if a + b in weights)
    return sum(min(c, PAID_REPEATS) * weights[pair] - max(c - PAID_REPEATS, 0) for pair, c in counts.items())


def strings_to_imitate(count: int, *, seed: int) -> list[str]:
    """Strings of a mildly uneven Markov chain over the letters, of 12 to 20 letters; the first one is the prompt."""
    table = generator(0, "letter-pairs/chain").normal(0.0, _UNEVENNESS, (len(LETTERS), len(LETTERS)))
    after = np.exp(table) / np.exp(table).sum(axis=1, keepdims=True)
    edges = np.cumsum(after, axis=1)
    random, strings = generator(seed, "letter-pairs/strings"), list[str]()
    for _ in range(count):
        letter = int(random.integers(len(LETTERS)))
        places = [letter]
        for draw in random.random(int(random.integers(LENGTHS[0] - 1, LENGTHS[1]))).tolist():
            letter = min(int(np.searchsorted(edges[letter], draw, side="right")), len(LETTERS) - 1)
            places.append(letter)
        strings.append("".join(LETTERS[place] for place in places))
    return strings


def first_is_preferred(
    rewards: NDArray[np.float64], others: NDArray[np.float64], *, seed: int, scale: float = 1.0
) -> NDArray[np.bool_]:
    """`[n]` labels of Bradley and Terry (1952): P(first preferred) = sigmoid((rewards - others) / scale)."""
    chance = 1 / (1 + np.exp(-(rewards - others) / scale))
    return uniforms(seed, "letter-pairs/labels", count=len(rewards)) < chance


def letter_reward(prompts: Sequence[object], completions: Sequence[object], seed: int = 0) -> list[float]:
    """Reward function: the true reward of the prompt's last letter and the answer. `options = { seed = 1 }` draws other
    hidden weights."""
    return [
        true_reward(completion_text(prompt).strip()[-1:] + completion_text(answer).strip(), seed=seed)
        for prompt, answer in zip(prompts, completions, strict=True)
    ]
