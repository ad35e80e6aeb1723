"""Rejection by divergence, truncation with a floor, and figures of the mismatch: by hand, slowly, and as in verl."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hone.objectives import mismatch
from hone.objectives import mismatch as rejection
from hone.objectives.ratios import sequence_mean, sequence_sum
from hone.objectives.trust import binary_kl

STATISTICS = {
    "k1": rejection.k1_divergence,
    "k2": rejection.k2_divergence,
    "k3": rejection.k3_divergence,
    "k3_reverse": rejection.reverse_k3_divergence,
    "binary": rejection.binary_divergence,
}
SCOPES = {
    "token": rejection.own_divergence,
    "seq_sum": sequence_sum,
    "seq_mean": sequence_mean,
    "seq_max": rejection.sequence_max,
}


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# Three answers of 3, 2 and 4 tokens, nats. What follows was computed with verl 0.9.1 (`compute_rollout_rejection_mask`,
# `compute_offpolicy_metrics`); its k1 options are bounded in ratios, engine over trainer.
PROXIMAL = column(-1.0, -0.5, -2.0, -0.3, -3.0, -1.2, -0.7, -0.1, -4.0)
THEN = column(-1.2, -0.5, -1.5, -0.35, -1.0, -1.1, -0.9, -0.12, -3.9)
OWNER = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2, 2])
VERL = {
    ("k1", "token", 0.8, 1.25): [1, 1, 0, 1, 0, 1, 1, 1, 1],
    ("k2", "token", None, 0.03): [1, 1, 0, 1, 0, 1, 1, 1, 1],
    ("k3", "token", None, 0.02): [0, 1, 0, 1, 0, 1, 0, 1, 1],
    ("k1", "seq_sum", 0.9, 1.4): [1, 1, 1, 0, 0, 1, 1, 1, 1],
    ("k2", "seq_sum", None, 0.2): [1, 1, 1, 0, 0, 1, 1, 1, 1],
    ("k3", "seq_sum", None, 0.05): [0, 0, 0, 0, 0, 1, 1, 1, 1],
    ("k1", "seq_mean", 0.9, 1.05): [0, 0, 0, 0, 0, 1, 1, 1, 1],
    ("k2", "seq_mean", None, 0.05): [1, 1, 1, 0, 0, 1, 1, 1, 1],
    ("k3", "seq_mean", None, 0.05): [1, 1, 1, 0, 0, 1, 1, 1, 1],
    ("k2", "seq_max", None, 0.1): [0, 0, 0, 0, 0, 1, 1, 1, 1],
    ("k3", "seq_max", None, 0.11): [1, 1, 1, 0, 0, 1, 1, 1, 1],
}


@pytest.mark.parametrize("option", VERL, ids=lambda option: f"{option[1]}_{option[0]}")
def test_rejections_are_verl_s(option: tuple[str, str, float | None, float]) -> None:
    statistic, scope, low, high = option
    ratios = statistic == "k1"
    found = rejection.divergence_mask(
        PROXIMAL,
        THEN,
        OWNER,
        statistic=STATISTICS[statistic],
        over=SCOPES[scope],
        min_nats=None if low is None else math.log(low),
        max_nats=math.log(high) if ratios else high,
    )
    assert found.tolist() == VERL[option]


def test_figures_of_the_mismatch_are_verl_s() -> None:
    """To float32, in which verl takes the means of its masks."""
    found = mismatch.mismatch_diagnostics(PROXIMAL, THEN, OWNER)
    means = {name.removeprefix("mismatch/"): float(value.mean()) for name, value in found.items()}
    assert means == {
        "perplexity_trainer": pytest.approx(4.299979789473, rel=1e-7),
        "perplexity_engine": pytest.approx(3.124621439745, rel=1e-7),
        "perplexity_ratio": pytest.approx(1.583783531657, rel=1e-7),
        "log_perplexity_gap": pytest.approx(0.359999998260, rel=1e-7),
        "k3_nats": pytest.approx(0.143979858923, rel=1e-7),
        "chi2_token": pytest.approx(-0.094079148366, rel=1e-6),
        "chi2_answer": pytest.approx(-0.463378559423, rel=1e-7),
    }


def test_figures_by_hand() -> None:
    """Two tokens of p = 1/2 and 1/8 (perplexity 4), drawn at 1/4 each (perplexity 4), and an answer of equal policies;
    ratios 2 and 1/2: squares 4 and 1/4, product 1. An answer number without tokens does not count.
    """
    proximal, then = column(0.5, 0.125, 0.2).log(), column(0.25, 0.25, 0.2).log()
    found = mismatch.mismatch_diagnostics(proximal, then, torch.tensor([0, 0, 2]))
    torch.testing.assert_close(found["mismatch/perplexity_trainer"], column(4.0, 5.0))
    torch.testing.assert_close(found["mismatch/perplexity_engine"], column(4.0, 5.0))
    torch.testing.assert_close(found["mismatch/chi2_token"], column(3.0, -0.75, 0.0))
    torch.testing.assert_close(found["mismatch/chi2_answer"], column(0.0, 0.0))


def test_statistics_by_hand() -> None:
    """d = log 2: k1 = -log 2, k2 = (log 2)^2 / 2, k3 = 2 - 1 - log 2, its reverse 1/2 - 1 + log 2."""
    proximal, then, log2 = column(0.5).log(), column(0.25).log(), math.log(2.0)
    expected = {
        "k1": -log2,
        "k2": log2**2 / 2,
        "k3": 1 - log2,
        "k3_reverse": log2 - 0.5,
        "binary": 0.5 * math.log(2) + 0.5 * math.log(0.5 / 0.75),
    }
    for name, value in expected.items():
        assert float(STATISTICS[name](proximal, then)) == pytest.approx(value), name


@given(st.lists(st.tuples(st.floats(-30, -1e-3), st.floats(-30, -1e-3)), min_size=1, max_size=9), st.floats(0, 3))
def test_what_one_bound_rejects_a_tighter_one_rejects(pairs: list[tuple[float, float]], bound: float) -> None:
    proximal, then = column(*(a for a, _ in pairs)), column(*(b for _, b in pairs))
    owner = torch.arange(len(pairs)) % 3
    for statistic in STATISTICS.values():
        for over in SCOPES.values():
            wide, tight = (
                rejection.divergence_mask(proximal, then, owner, statistic=statistic, over=over, max_nats=limit)
                for limit in (bound, bound / 2)
            )
            assert (tight <= wide).all()
            assert set(wide.tolist()) <= {0.0, 1.0}
            same = rejection.divergence_mask(then, then, owner, statistic=statistic, over=over, max_nats=bound)
            assert same.tolist() == [1.0] * len(pairs), "equal policies are never rejected"


def slow_scope(name: str, values: list[float], owner: list[int], place: int) -> float:
    mates = [value for value, who in zip(values, owner, strict=True) if who == owner[place]]
    return {"token": values[place], "seq_sum": sum(mates), "seq_mean": sum(mates) / len(mates), "seq_max": max(mates)}[
        name
    ]


SLOW: dict[str, Callable[[float], float]] = {
    "k1": lambda d: -d,
    "k2": lambda d: d * d / 2,
    "k3": lambda d: math.exp(d) - 1 - d,
    "k3_reverse": lambda d: math.exp(-d) - 1 + d,
}


@given(st.integers(0, 10_000))
def test_masks_slowly(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    d = torch.randn(12, generator=rng, dtype=torch.float64)
    owner = torch.randint(0, 4, (12,), generator=rng)
    for name, statistic in SLOW.items():
        values = [statistic(value) for value in d.tolist()]
        for scope, over in SCOPES.items():
            found = rejection.divergence_mask(
                d, torch.zeros_like(d), owner, statistic=STATISTICS[name], over=over, min_nats=-0.3, max_nats=0.4
            )
            slow = [-0.3 <= slow_scope(scope, values, owner.tolist(), place) <= 0.4 for place in range(12)]
            assert found.tolist() == slow


def test_a_statistic_is_unbiased_for_the_engine_s_divergence() -> None:
    """By enumeration of one token: the engine's mean of k1 and k3 is KL(engine || trainer); k2's is not."""
    engine = torch.log_softmax(column(0.3, -1.0, 2.0, 0.1), 0)
    trainer = torch.log_softmax(column(1.0, 0.2, -0.5, 0.4), 0)
    divergence = float((engine.exp() * (engine - trainer)).sum())
    means = {name: float((engine.exp() * found(trainer, engine)).sum()) for name, found in STATISTICS.items()}
    assert means["k1"] == pytest.approx(divergence)
    assert means["k3"] == pytest.approx(divergence)
    assert abs(means["k2"] - divergence) > 0.1 * divergence


def test_kpop_bounds_each_direction() -> None:
    """On a grid of pairs of probabilities: kept exactly where both divergences are within the bound."""
    grid = torch.linspace(0.02, 0.98, 25, dtype=torch.float64)
    p, q = (axis.flatten().log() for axis in torch.meshgrid(grid, grid, indexing="ij"))
    for bound in (0.05, 0.5, 2.0):
        kept = mismatch.kpop(p, q, max_divergence_nats=bound) > 0
        assert torch.equal(kept, (binary_kl(p, q) <= bound) & (binary_kl(q, p) <= bound))
    apart = binary_kl(p, q) + binary_kl(q, p)
    assert ((apart > 2.0) & (mismatch.kpop(p, q) > 0)).any(), "the bound of 2 is not on the sum"


def test_truncation_with_a_floor() -> None:
    """Ratios 1/4, 1 and 8 within [1/2, 2]; the answer's product is 1/4 and 8, its geometric mean 1/2 and 8. The first
    row is TRL 1.16's `token_truncate` with clip_min 0.5 and clip_max 2, the second its `sequence_truncate`.
    """
    proximal, then, owner = column(0.25, 1.0, 8.0).log(), column(1.0, 1.0, 1.0).log(), torch.tensor([0, 0, 1])
    bounds = {"weight_floor": 0.5, "weight_cap": 2.0}
    torch.testing.assert_close(mismatch.truncated_is(proximal, then, **bounds), column(0.5, 1.0, 2.0))
    torch.testing.assert_close(mismatch.sequence_truncated_is(proximal, then, owner, **bounds), column(0.5, 0.5, 2.0))
    torch.testing.assert_close(
        mismatch.geometric_truncated_is(proximal, then, owner, weight_floor=0.6, weight_cap=9.0), column(0.6, 0.6, 8.0)
    )
    assert mismatch.truncated_is(proximal, then).tolist() == pytest.approx([0.25, 1.0, 2.0]), "no floor of its own"
