"""Every claim of the lab can fail: `claims_of` of each experiment, fed with measurements that refute it.

`claims_of` is a pure function of measured numbers. A case holds measurements of a world in which the idea has no
effect, or the opposite one; together the cases of an experiment must break every one of its claims.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from refuted_on_machines import REFUTED_ON_MACHINES

from hone.lab import experiments
from hone.lab.experiments.best_of_n_vs_rl import BEST, PRICED, RL
from hone.lab.experiments.credit_by_turn import OVER_TURNS, STATES, TOKENS, WHOLE, CreditErrors
from hone.lab.experiments.critic_or_group import CRITICS, GROUP_MEAN, BaselineErrors
from hone.lab.experiments.delayed_rewards import CLOSED, ZERO
from hone.lab.experiments.delayed_rewards import WEIGHTED as WEIGHTED_OPEN
from hone.lab.experiments.dpo_reward_hacking import LOSSES as PREFERENCE_LOSSES
from hone.lab.experiments.drift_with_and_without_recall import ANEW, LEARNER, RECALL
from hone.lab.experiments.drift_with_and_without_recall import FROZEN as ONE_VERSION
from hone.lab.experiments.duplicates_without_keys import KEYS
from hone.lab.experiments.duplicates_without_keys import LAST as LAST_OUTCOME
from hone.lab.experiments.duplicates_without_keys import SUM as SUM_OF_ALL
from hone.lab.experiments.elo_without_deviation import DEVIATION as WITH_DEVIATION
from hone.lab.experiments.elo_without_deviation import LARGE as LARGE_STEPS
from hone.lab.experiments.elo_without_deviation import SMALL as SMALL_STEPS
from hone.lab.experiments.fairness_under_borrowing import FADES, NEVER
from hone.lab.experiments.length_bias import SCHEMES
from hone.lab.experiments.loss_reduced_twice import CASES
from hone.lab.experiments.options import KINDS, ONLY, OptionPlan
from hone.lab.experiments.over_optimisation import FEW as FEW_PAIRS
from hone.lab.experiments.over_optimisation import MANY as MANY_PAIRS
from hone.lab.experiments.over_optimisation import PESSIMISTIC, SOME
from hone.lab.experiments.overestimation import METHODS
from hone.lab.experiments.passk import CREDITS
from hone.lab.experiments.peeking import E_PROCESS, ONE_LOOK, Z_TEST
from hone.lab.experiments.prm_vs_orm_search import FEW, MANY, ORM, PRM
from hone.lab.experiments.std_normalisation import SCALES
from hone.lab.finding import BoundedClaim
from hone.lab.letter_rewards import OptimisedPoint
from hone.lab.registry import experiment_names, load_experiment

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
BASELINES = ("none (REINFORCE)", "group mean", "leave one out", "perfect critic")
DPO, *_ = PREFERENCE_LOSSES
BASELINE_ERRORS = (GROUP_MEAN, *CRITICS)
COLD, LONG = "12 steps on examples", "400 steps on examples"

REFUTED: dict[str, Sequence[Case]] = {
    **REFUTED_ON_MACHINES,
    "delayed-rewards": [
        {
            "errors": {ZERO: np.zeros(3), CLOSED: np.full(3, 0.1), WEIGHTED_OPEN: np.full(3, 0.2)},
            "preferred": {ZERO: 0.9, CLOSED: 0.5, WEIGHTED_OPEN: 0.1},
        },
    ],
    "direct-method-alone": [
        {"errors": {"dm": np.zeros(3), "dr": np.full(3, 0.1)}, "covered": {"dm": 0.95, "dr": 0.5}},
    ],
    "duplicates-without-keys": [
        {
            "errors": {KEYS: np.full(3, 0.1), SUM_OF_ALL: np.zeros(3), LAST_OUTCOME: np.zeros(3)},
            "preferred": {KEYS: 0.5, SUM_OF_ALL: 0.9, LAST_OUTCOME: 0.5},
        },
    ],
    "elo-without-deviation": [
        {"excess": {WITH_DEVIATION: np.full(3, 0.2), SMALL_STEPS: np.full(3, 0.2), LARGE_STEPS: np.full(3, 0.1)}}
    ],
    "fairness-under-borrowing": [
        {"shares": {FADES: np.full((2, 16), 0.6), NEVER: np.full((2, 16), 0.5)}},
        {"shares": {FADES: np.full((2, 16), 0.4), NEVER: np.full((2, 16), 0.5)}},
    ],
    "flat-or-dispatched": [
        {
            "score": {
                "learnt dispatcher": np.full(2, 9.0),
                "nearest first": np.full(2, 10.0),
                "random assignment": np.full(2, 10.0),
                "flat Q-learning": np.full(2, 9.0),
            },
            "collisions": 3,
        }
    ],
    "shield-and-its-price": [
        {
            "value": {"no shield": 10.0, "shield, brakes 1": 9.0, "shield, brakes 5": 9.9},
            "chance": {"shield, brakes 0": 0.0, "shield, brakes 1": 0.01},
            "training": {"no shield": np.zeros(3), "shield, brakes 1": np.ones(3)},
        }
    ],
    "propensities-that-lie": [
        {
            "lying": {"ips": np.zeros(3)},
            "honest": {"ips": np.full(3, 0.1)},
            "refused": {"chooser's probability": 0.0, "executed action's probability": 1.0},
        }
    ],
    "drift-with-and-without-recall": [
        {
            "shares": {ONE_VERSION: np.ones(2), LEARNER: np.ones(2), ANEW: np.ones(2), RECALL: np.ones(2)},
            "early": {ANEW: 1.0, RECALL: 0.9},
            "recalled": 0.0,
        }
    ],
    "best-of-n-vs-rl": [
        {
            "paths": {
                RL: [OptimisedPoint(nats=0.0, proxy=0.0, truth=1.0), OptimisedPoint(nats=9.0, proxy=1.0, truth=1.0)],
                PRICED: [OptimisedPoint(nats=9.0, proxy=1.0, truth=1.0)],
                BEST: [OptimisedPoint(nats=9.0, proxy=1.0, truth=-2.0)],
            }
        }
    ],
    "over-optimisation": [
        {
            "paths": {
                name: [OptimisedPoint(nats=9.0, proxy=1.0, truth=1.0)]
                for name in (FEW_PAIRS, SOME, MANY_PAIRS, PESSIMISTIC)
            }
        }
    ],
    "prm-vs-orm-search": [
        {"shares": dict.fromkeys(product((ORM, PRM), (FEW, MANY), ("whole", "beam")), 0.5)},
        {
            "shares": dict.fromkeys(product((ORM, PRM), (FEW, MANY), ("whole", "beam")), 0.5)
            | {(PRM, MANY, "beam"): 0.9}
        },
    ],
    "baseline-variance": [
        {
            "moments": [dict.fromkeys(BASELINES, (0.9, 1.0))],
            "shares": dict.fromkeys(BASELINES, 1.0),
            "easy": dict.fromkeys(BASELINES, 1.0),
            "hard": dict.fromkeys(BASELINES, 1.0) | {BASELINES[0]: 2.0},
        }
    ],
    "clip-higher": [
        {"batches": {0.2: 20, 0.28: 20, 0.5: 20}, "narrow": 0.2, "dapo": 0.28, "wide": 0.5, "change": 0.5},
        {"batches": {0.2: 5, 0.28: 5, 0.5: 5}, "narrow": 0.2, "dapo": 0.28, "wide": 0.5, "change": -0.5},
    ],
    "credit-by-turn": [
        {
            "errors": {
                WHOLE: CreditErrors(0.2, 0.0, 0.9),
                STATES: CreditErrors(0.3, 0.5, 0.9),
                TOKENS: CreditErrors(0.2, 0.0, 0.9),
                OVER_TURNS: CreditErrors(0.2, 0.2, 0.9),
            }
        }
    ],
    "critic-or-group": [
        {
            "by_step": dict.fromkeys(BASELINE_ERRORS, BaselineErrors(0.5, (1.0, 1.0), (0.1, 0.1))),
            "at_end": dict.fromkeys(BASELINE_ERRORS, BaselineErrors(0.5, (1.0, 1.0), (0.1, 0.1))),
        }
    ],
    "dpo-reward-hacking": [
        {
            "margins": {DPO: [1.0, 1.0]},
            "peak": 0,
            "best": dict.fromkeys(PREFERENCE_LOSSES, 0.5),
            "last": dict.fromkeys(PREFERENCE_LOSSES, 0.5),
        }
    ],
    "exploration": [
        {
            "total": {"greedy": 50.0, "epsilon 0.1": 50.0, "Thompson": 50.0},
            "late": {"greedy": 0.01, "Thompson": 0.05},
            "pulls": 1000,
        }
    ],
    "early-experience": [
        {
            "after": {
                "demonstrations alone": 0.5,
                "and own moves, relabelled": 0.5,
                "a world model, asked": 0.5,
            }
        }
    ],
    "group-size": [
        {
            "dumb": {2: 0.5, 32: 0.5},
            "small": 2,
            "large": 32,
            "noises": {2: 2.0, 32: 1.0},
            "gain": {8: 0.1, 32: 0.1},
        }
    ],
    "hindsight": [{"on": [0.5], "at": 0, "off": [0.5]}],
    "kl-ce-mle": [
        {
            "off": 1e-3,
            "off_likelihood": 1e-3,
            "off_gradient": 1e-3,
            "width": {"forward": 5.0, "reverse": 5.0},
            "held": {"forward": 0.07, "reverse": 0.07},
        }
    ],
    "kl-estimators": [
        {
            "errors": [(1.0, {"k2": (0.0, 1.0), "k3": (0.1, 1.0)})],
            "near": {"k1": (0.0, 1.0), "k3": (0.0, 1.0)},
            "slopes": dict.fromkeys(("k1", "k2", "ratio * k3"), (0.1, 0.1, 0.1)) | {"k3": (0.1, 0.0, 0.1)},
        }
    ],
    "kl-or-not": [
        {
            "far": {0.0: 0.5, 0.3: 0.5},
            "tight": 0.3,
            "free": 0.0,
            "here": {0.0: 0.9, 0.3: 0.7},
            "there": {0.0: 0.2, 0.3: 0.2},
        }
    ],
    "length-bias": [
        {"ends": dict.fromkeys(SCHEMES, np.array([1.0, 1.0])), "drift": dict.fromkeys(SCHEMES, 0.1)},
    ],
    "loss-reduced-twice": [
        {
            "apart": dict.fromkeys(CASES, 0.1),
            "wrong": {"drift": 0.3},
            "right": {"drift": 0.3},
            "ends": {CASES[1]: ({"shortened": 0.5}, {"shortened": 0.5})},
        }
    ],
    "mc-td-gae": [{"bias": np.ones(3), "variance": np.ones(3), "total": np.full(3, 2.0), "best": 0}],
    "no-clipping": [
        {
            "kl": {CLIP: 0.1, "no clip": 0.1},
            "most": {CLIP: 2.0, "no clip": 2.0},
            "last": {CLIP: 0.8, "no clip": 0.9},
            "wrong_way": 0.0,
            "bare": -1.0,
        }
    ],
    "offline-shift": [
        {
            "over": {"Q-learning": 0.0, "CQL": 0.1},
            "wary": {"true": 1.0, "untried": 0.08},
            "naive": {"true": 1.0, "untried": 0.08},
        }
    ],
    "options": [
        {
            "sweeps": dict.fromkeys(KINDS, 10),
            "plan": dict.fromkeys((*KINDS, ONLY), OptionPlan(progress=np.ones(2), value_share=0.5, decisions=9.0)),
            "early": dict.fromkeys(KINDS, 10.0),
        }
    ],
    "overestimation": [
        {
            "share": dict.fromkeys(METHODS, 0.3),
            "bias": {METHODS[0]: 0.05, METHODS[1]: 0.2},
            "last": dict.fromkeys(METHODS, 0.1),
        }
    ],
    "peeking": [{"false": {Z_TEST: 0.1, ONE_LOOK: 0.2, E_PROCESS: 0.2}, "power": 0.5}],
    "passk": [{"end": dict.fromkeys(CREDITS, np.array([0.2, 0.6])), "start": np.array([0.2, 0.6])}],
    "sequence-or-token-ratio": [
        {"long": 256, "noise": {256: {"token ratios": (0.1, 0.005), "sequence ratio": (0.1, 0.005)}}}
    ],
    "shaping": [
        {
            "off": 0.1,
            "by_bonus": np.ones(3),
            "best": 1.0,
            "level": {"potential": 0.5, "no shaping": 0.5},
            "path": {"bonus": np.ones(5)},
        }
    ],
    "std-normalisation": [
        {
            "preference": 1.0,
            "edge": dict.fromkeys(SCALES, 1.2),
            "middle": dict.fromkeys(SCALES, 1.0),
            "shares": dict.fromkeys(SCALES, 0.2),
            "close": np.array([[0.01, 0.01], [1.0, 1.0]]),
        }
    ],
    "target-network": [
        {
            "fast": 0.01,
            "late": {("none", 0.01): 0.8, ("tau = 0.1", 0.01): 0.8},
            "off": {("none", 0.01): 0.3, ("tau = 0.02", 0.01): 0.3},
            "slow": "tau = 0.02",
        }
    ],
    "cispo-vs-clip": [
        {
            "praised": {CLIP: [1.0, 0.1], CISPO: [1.0, 0.9]},
            "beyond": range(1, 2),
            "silent": {CLIP: (0.05, 0.05), CISPO: (0.05, 0.0)},
        }
    ],
    "naive-self-play": [
        {
            "path": {
                "newest policy alone": np.array([[1.0, 0.1, 0.1, 0.1]]),
                "equilibrium of the population": np.full((1, 4), 0.1),
                "mean of the population": np.ones((1, 4)),
                "CFR+": np.ones((1, 4)),
            }
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
    "retokenised-turns": [{"share": {0.7: 0.2, 1.0: 0.02, 1.3: 0.3}, "dialogue": 0.1, "lost": 0.0}],
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


@pytest.mark.parametrize("name", experiment_names())
def test_every_claim_can_fail(name: str) -> None:
    cases = [claims_of(name)(**case) for case in REFUTED[name]]
    assert all(len(case) == len(cases[0]) for case in cases)
    never = [each[0].says for each in zip(*cases, strict=True) if all(claim.holds for claim in each)]
    assert never == []


@pytest.mark.parametrize("name", experiment_names())
def test_a_run_claims_nothing_beside_claims_of(name: str) -> None:
    source = inspect.getsource(load_experiment(name).run)
    assert "claims=claims_of(" in source
    assert "at_least(" not in source
    assert "at_most(" not in source
