"""Every claim of the lab can fail: `claims_of` of each experiment, fed with measurements that refute it.

`claims_of` is a pure function of measured numbers. A case holds measurements of a world in which the idea has no
effect, or the opposite one; together the cases of an experiment must break every one of its claims.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from hone.lab import experiments
from hone.lab.finding import BoundedClaim

Case = Mapping[str, Any]
FRESH, WEIGHTED, NORMALISED, TRUNCATED, REJECTED = (
    "Monte Carlo (fresh samples)",
    "importance",
    "self-normalised",
    "truncated at 2",
    "rejection",
)
EQUAL = dict.fromkeys((FRESH, WEIGHTED, NORMALISED, TRUNCATED, REJECTED), np.ones(3))
CLIP, CISPO = "clipped at 0.2", "CISPO, cap 5"
COLD, LONG = "12 steps on examples", "400 steps on examples"

REFUTED: dict[str, Sequence[Case]] = {
    "asynchronous-actors": [{"mean": {0: 100.0, 1: 50.0, 16: 100.0}, "apart": 1e-6}],
    "cispo-vs-clip": [
        {
            "praised": {CLIP: [1.0, 0.1], CISPO: [1.0, 0.9]},
            "beyond": range(1, 2),
            "silent": {CLIP: (0.05, 0.05), CISPO: (0.05, 0.0)},
        }
    ],
    "deadly-triad": [
        {
            "grown": {
                "all three": 1.0,
                "on policy": 1.0,
                "a table": 1.0,
                "GTD2": 1.0,
                "TDC": 1.0,
                "target network": 0.1,
            },
            "largest": {"target network": 10.0},
        }
    ],
    "eligibility-traces": [
        {
            "best": {"dutch": np.array([0.3, 0.3, 0.3]), "accumulating": np.array([0.3, 0.2, 0.3])},
            "worst": {"dutch": 0.5, "accumulating": 0.5},
        }
    ],
    "sampling": [{"over_fresh": EQUAL, "bias": {**EQUAL, WEIGHTED: np.full(3, 5.0)}, "apart": 0.5}],
    "sft-then-rl": [{"solved": {"nothing": (0.0, 0.3), COLD: (0.25, 0.3), LONG: (0.25, 0.3)}}],
    "staleness": [
        {
            "solved": {"clipped": [0.8, 0.5, 0.4], "ratio, no clip": [0.8, 0.5, 0.4], "ratio ignored": [0.8, 0.8, 0.8]},
            "clipped": [0.1, 0.1, 0.1],
            "delays": (0, 2, 16),
        }
    ],
    "trust-regions": [
        {
            "paid": {"TRPO": 0.1, "PPO": 0.1, "DPPO": 0.1},
            "most": {"TRPO": 0.05, "PPO": 0.05, "DPPO": 0.05},
            "reached": {"TRPO": 1.0, "PPO": 0.5, "DPPO": 1.0},
        }
    ],
}


def claims_of(name: str) -> Callable[..., list[BoundedClaim]]:
    found: Callable[..., list[BoundedClaim]] = importlib.import_module(
        f"{experiments.__name__}.{name.replace('-', '_')}"
    ).claims_of
    return found


@pytest.mark.parametrize("name", REFUTED)
def test_every_claim_can_fail(name: str) -> None:
    cases = [claims_of(name)(**case) for case in REFUTED[name]]
    assert all(len(case) == len(cases[0]) for case in cases)
    never = [each[0].says for each in zip(*cases, strict=True) if all(claim.holds for claim in each)]
    assert never == []
