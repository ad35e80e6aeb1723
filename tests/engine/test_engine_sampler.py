"""Drawing tokens: values by hand, truncation against a slow version, and the corners of the uniform."""

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hone.engine.sampler import Settings, draw, truncate

P = torch.tensor([0.5, 0.125, 0.25, 0.125])


def settings_of(rows: int, *, temperature=1.0, top_k=0, top_p=1.0, greedy=False) -> Settings:
    return Settings(
        temperature=torch.full((rows,), temperature, dtype=torch.float64),
        top_k=torch.full((rows,), top_k),
        top_p=torch.full((rows,), top_p, dtype=torch.float64),
        greedy=torch.full((rows,), greedy),
    )


def drawn(p: torch.Tensor, uniform: list[float], **options):
    logits = p.log().expand(len(uniform), -1)
    return draw(logits, torch.tensor(uniform, dtype=torch.float64), settings_of(len(uniform), **options))


def test_the_inverse_of_the_cumulative_probability():
    found = drawn(P, [0.0, 0.49, 0.51, 0.62, 0.63, 0.87, 0.88, 1 - 2**-53])
    assert found.tokens.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    np.testing.assert_allclose(found.logp, P.log()[found.tokens], atol=1e-6)


def test_tokens_of_probability_zero_are_never_drawn():
    zeros = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    assert drawn(zeros, [0.0, 0.499, 0.501, 1 - 2**-53]).tokens.tolist() == [1, 1, 3, 3]


def test_temperature_divides_the_logits():
    found = drawn(torch.tensor([2 / 3, 1 / 3]), [0.79, 0.81], temperature=0.5)  # 4/5 and 1/5
    assert found.tokens.tolist() == [0, 1]
    np.testing.assert_allclose(found.logp, [math.log(0.8), math.log(0.2)], atol=1e-6)


def test_top_k_by_hand():
    found = drawn(P, [0.66, 0.67], top_k=2)  # 0.5 and 0.25 become 2/3 and 1/3
    assert found.tokens.tolist() == [0, 2]
    np.testing.assert_allclose(found.sampled_logp, [math.log(2 / 3), math.log(1 / 3)], atol=1e-6)
    np.testing.assert_allclose(found.logp, [math.log(1 / 2), math.log(1 / 4)], atol=1e-6)


def test_greedy_ignores_the_draw():
    found = drawn(P, [0.99], greedy=True)
    assert found.tokens.tolist() == [0]
    assert found.sampled_logp.tolist() == [0.0]
    np.testing.assert_allclose(found.logp, [math.log(0.5)], atol=1e-6)


def slowly(p: list[float], top_k: int, top_p: float) -> set[int]:
    """Tokens that stay, one at a time."""
    ranked = sorted(range(len(p)), key=lambda token: (-p[token], token))[: top_k or len(p)]
    total, mass, kept = sum(p[token] for token in ranked), 0.0, set()
    for token in ranked:
        if kept and mass >= top_p - 1e-12:
            break
        kept.add(token)
        mass += p[token] / total
    return kept


@given(
    weights=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    top_k=st.integers(0, 14),
    top_p=st.sampled_from([0.01300717, 0.20000717, 0.50300717, 0.90100717, 1.0]),
)
def test_truncation_equals_the_slow_version(weights, top_k, top_p):
    p = torch.tensor(weights, dtype=torch.float64)
    p = p / p.sum()
    kept = truncate(p.log()[None], torch.tensor([top_k]), torch.tensor([top_p], dtype=torch.float64))[0]
    assert set(torch.isfinite(kept).nonzero()[:, 0].tolist()) == slowly(p.tolist(), top_k, top_p)


@given(st.integers(0, 1000))
def test_a_row_does_not_see_its_neighbours(seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(9, 30, generator=generator)
    uniform = torch.rand(9, generator=generator, dtype=torch.float64)
    mixed = Settings(
        temperature=torch.rand(9, generator=generator, dtype=torch.float64) + 0.5,
        top_k=torch.tensor([0, 3, 0, 0, 5, 0, 0, 0, 1]),
        top_p=torch.tensor([1.0, 1.0, 0.5, 1.0, 0.6, 1.0, 1.0, 0.9, 1.0], dtype=torch.float64),
        greedy=torch.tensor([False, False, False, True, False, False, False, False, False]),
    )
    together = draw(logits, uniform, mixed)
    for row in range(9):
        alone = draw(
            logits[row : row + 1],
            uniform[row : row + 1],
            Settings(
                temperature=mixed.temperature[row : row + 1],
                top_k=mixed.top_k[row : row + 1],
                top_p=mixed.top_p[row : row + 1],
                greedy=mixed.greedy[row : row + 1],
            ),
        )
        assert together.tokens[row] == alone.tokens[0]
        assert together.logp[row] == alone.logp[0]
        assert together.sampled_logp[row] == alone.sampled_logp[0]


def test_logits_that_are_not_finite_show():
    broken = torch.tensor([[0.0, torch.nan, 1.0]])
    assert torch.isnan(draw(broken, torch.tensor([0.5], dtype=torch.float64), settings_of(1)).logp).all()
