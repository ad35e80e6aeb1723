"""Measurements that refute the claims of experiments about machines: memory, number formats, ranks and staleness."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hone.lab.experiments.asynchronous_actors import CORRECTED
from hone.lab.experiments.asynchronous_actors import PLAIN as NO_CORRECTION
from hone.lab.experiments.int8_or_fp8 import FORMATS
from hone.lab.experiments.memory_by_hand import CHECKPOINTING, HALF, PLAIN, SHORT, MemorySum
from hone.lab.experiments.old_keys_new_weights import NEW, OLD
from hone.lab.experiments.routes_that_flip import RoundingGaps
from hone.lab.experiments.same_question_other_company import FREE, FREE_HALF, GREEDY, TILES, CompanyEffect
from hone.lab.experiments.two_ranks import DEALT, GLOBAL
from hone.lab.experiments.two_ranks import ONE as ONE_PROCESS
from hone.lab.experiments.two_ranks import SORTED as BY_LENGTH

NOT_ADDED_UP = MemorySum(lines={"weights": 50}, measured=100, in_loss=(True, False), parameters=100)
"""A step of 100 parameters that takes 100 bytes, of which a sum knows half."""

SAME = CompanyEffect(other_bits=np.zeros(2), same_tokens=np.full(2, 99.0), ratio=0.0)
OTHER = CompanyEffect(other_bits=np.ones(2), same_tokens=np.ones(2), ratio=0.1)
"""Answers that company leaves alone, and answers that it changes."""

REFUTED_ON_MACHINES: dict[str, Sequence[Mapping[str, Any]]] = {
    "asynchronous-actors": [
        {"mean": {0: 0.5, 4: 0.5}, "end": {4: {CORRECTED: 0.5, NO_CORRECTION: 0.5}}, "hashes": ["a", "b"], "mixed": 0.0}
    ],
    "old-keys-new-weights": [
        {
            **{"recompute_gap": 0.01, "recorded_fit": 9.0, "fit": {OLD: 1.0, NEW: 1.0}},
            "keep_gap": {0.1: {OLD: 1e-3, NEW: 1e-3}, 1.0: {OLD: 1e-3, NEW: 1e-3}},
        }
    ],
    "the-longest-answer": [
        {"expected": 0.2, "measured": 0.3, "steps": {0: 1.0, 1: 1.0}, "use": {0: 0.5, 1: 0.5}, "sequential": 1.0}
    ],
    "two-ranks": [
        {
            "off": {GLOBAL: 0.1, BY_LENGTH: 1.0, DEALT: 1.0},
            "ratio": {BY_LENGTH: 1.0},
            "single": 0.1,
            "ends": {ONE_PROCESS: np.array([1.1, 1.0]), BY_LENGTH: np.ones(2), GLOBAL: np.ones(2)},
        }
    ],
    "int8-or-fp8": [{"nats": dict.fromkeys(FORMATS, np.ones(3))}],
    "rank-of-lora": [
        {
            "rewarded": {0: 0.9, 1: 0.3, 2: 0.4, 16: 0.9},
            "copied": {0: 0.9, 1: 0.9, 2: 0.9, 16: 0.9},
        }
    ],
    "memory-by-hand": [
        {
            "drawn": [NOT_ADDED_UP],
            "published": NOT_ADDED_UP,
            "settings": dict.fromkeys((PLAIN, SHORT, CHECKPOINTING), NOT_ADDED_UP)
            | {HALF: replace(NOT_ADDED_UP, measured=50)},
        }
    ],
    "routes-that-flip": [
        {
            "mixture": RoundingGaps(
                free=np.array([0.1, 0.1, -0.1, 0.1]),
                replayed=np.array([0.1, 0.1, -0.1, 0.1]),
                flipped=np.array([[True], [False], [True], [False]]),
                text=np.array([0, 1, 2, 2]),
            ),
            "dense": RoundingGaps(
                free=np.full(4, 0.1),
                replayed=np.full(4, 0.1),
                flipped=np.zeros((4, 1), np.bool_),
                text=np.arange(4),
            ),
        }
    ],
    "mismatch": [
        {
            "errors": {
                "none": (1.0, 1.0),
                "truncated (TIS)": (1.0, 1.0),
                "masked (MIS)": (1.0, 1.0),
                "IcePop": (1.0, 1.0),
            }
        }
    ],
    "same-question-other-company": [
        {"effects": {FREE: [SAME], FREE_HALF: [SAME], GREEDY: [SAME], TILES: [OTHER]}, "bitwise": 0.1},
        {"effects": {FREE: [OTHER], FREE_HALF: [SAME], GREEDY: [SAME], TILES: [OTHER]}, "bitwise": 0.1},
    ],
}
