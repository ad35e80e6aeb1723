"""Drawing tokens: values by hand, truncation against a slow version, and the corners of the uniform."""

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from hone.engine.torch_runner import _truncate_logp, sample_tokens
from hone.engine.work import DRAW, SamplerInput

P = torch.tensor([0.5, 0.125, 0.25, 0.125])


def draws_of(
    uniform: list[float], *, given=DRAW, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, greedy=False
) -> SamplerInput:
    rows = len(uniform)
    return SamplerInput(
        token_index=np.arange(rows, dtype=np.int32),
        forced_token=np.full(rows, given, np.int32),
        uniform=np.array(uniform, np.float64),
        temperature=np.full(rows, temperature, np.float32),
        top_k=np.full(rows, top_k, np.int32),
        top_p=np.full(rows, top_p, np.float32),
        min_p=np.full(rows, min_p, np.float32),
        greedy=np.full(rows, greedy),
    )


def drawn(p: torch.Tensor, uniform: list[float], **options):
    return sample_tokens(p.log().expand(len(uniform), -1), draws_of(uniform, **options))


def test_the_inverse_of_the_cumulative_probability():
    found = drawn(P, [0.0, 0.49, 0.51, 0.62, 0.63, 0.87, 0.88, 1 - 2**-53])
    assert found.token.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    np.testing.assert_allclose(found.logp, P.log()[found.token], atol=1e-6)


def test_tokens_of_probability_zero_are_never_drawn():
    zeros = torch.tensor([0.0, 0.5, 0.0, 0.5, 0.0])
    assert drawn(zeros, [0.0, 0.499, 0.501, 1 - 2**-53]).token.tolist() == [1, 1, 3, 3]


def test_temperature_divides_the_logits():
    found = drawn(torch.tensor([2 / 3, 1 / 3]), [0.79, 0.81], temperature=0.5)  # 4/5 and 1/5
    assert found.token.tolist() == [0, 1]
    np.testing.assert_allclose(found.logp, [math.log(0.8), math.log(0.2)], atol=1e-6)


def test_top_k_by_hand():
    found = drawn(P, [0.66, 0.67], top_k=2)  # 0.5 and 0.25 become 2/3 and 1/3
    assert found.token.tolist() == [0, 2]
    np.testing.assert_allclose(found.sampled_logp, [math.log(2 / 3), math.log(1 / 3)], atol=1e-6)
    np.testing.assert_allclose(found.logp, [math.log(1 / 2), math.log(1 / 4)], atol=1e-6)


def test_greedy_ignores_the_draw():
    found = drawn(P, [0.99], greedy=True)
    assert found.token.tolist() == [0]
    assert found.sampled_logp.tolist() == [0.0]
    np.testing.assert_allclose(found.logp, [math.log(0.5)], atol=1e-6)


def test_min_p_by_hand():
    found = drawn(P, [0.66, 0.67], min_p=0.5)  # at least half of 0.5
    assert found.token.tolist() == [0, 2]
    assert np.unpackbits(found.sampling_mask_bits[0], bitorder="little").nonzero()[0].tolist() == [0, 2]
    np.testing.assert_allclose(found.sampled_logp, [math.log(2 / 3), math.log(1 / 3)], atol=1e-6)


def test_given_tokens_take_the_place_of_the_draw_and_nothing_else():
    for token in range(4):
        found = drawn(P, [0.9, 0.1], given=token, top_k=2)
        free = drawn(P, [0.9, 0.1], given=token)
        assert found.token.tolist() == [token, token]
        np.testing.assert_allclose(found.logp, [math.log(P[token])] * 2, atol=1e-6)
        assert np.isfinite(found.sampled_logp).all() == (token in (0, 2))
        assert np.array_equal(free.logp, free.sampled_logp)
        assert free.sampling_mask_bits is None
    assert drawn(P, [0.5], given=2, greedy=True).sampled_logp.tolist() == [-np.inf]
    assert drawn(P, [0.5], given=0, greedy=True).sampled_logp.tolist() == [0.0]


def slowly(p: list[float], top_k: int, top_p: float, min_p: float) -> set[int]:
    """Tokens that stay, one at a time."""
    ranked = sorted(range(len(p)), key=lambda token: (-p[token], token))[: top_k or len(p)]
    total, mass, kept = sum(p[token] for token in ranked), 0.0, set()
    for token in ranked:
        if kept and mass >= top_p - 1e-12:
            break
        kept.add(token)
        mass += p[token] / total
    return {token for token in kept if p[token] >= min_p * p[ranked[0]]}


@given(
    weights=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    top_k=st.integers(0, 14),
    top_p=st.sampled_from([0.01300717, 0.20000717, 0.50300717, 0.90100717, 1.0]),
    min_p=st.sampled_from([0.0, 0.10000717, 0.50000717, 0.99]),
)
def test_truncation_equals_the_slow_version(weights, top_k, top_p, min_p):
    p = torch.tensor(weights, dtype=torch.float64)
    p = p / p.sum()
    cut = [torch.tensor([value], dtype=torch.float64) for value in (top_p, min_p)]
    kept = _truncate_logp(p.log()[None], torch.tensor([top_k]), *cut)[0]
    assert set(torch.isfinite(kept).nonzero()[:, 0].tolist()) == slowly(p.tolist(), top_k, top_p, min_p)


@given(st.integers(0, 1000))
def test_a_row_does_not_see_its_neighbours(seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(9, 30, generator=generator)
    draws = SamplerInput(
        token_index=np.arange(9, dtype=np.int32),
        forced_token=np.array([DRAW] * 8 + [4], np.int32),
        uniform=torch.rand(9, generator=generator, dtype=torch.float64).numpy(),
        temperature=torch.rand(9, generator=generator).numpy() + np.float32(0.5),
        top_k=np.array([0, 3, 0, 0, 5, 0, 0, 0, 1], np.int32),
        top_p=np.array([1.0, 1.0, 0.5, 1.0, 0.6, 1.0, 1.0, 0.9, 1.0], np.float32),
        min_p=np.array([0.0, 0.0, 0.0, 0.0, 0.1, 0.2, 0.0, 0.0, 0.0], np.float32),
        greedy=np.array([False, False, False, True, False, False, False, False, False]),
        allowed=np.array([[255, 255, 255, 255]] * 5 + [[9, 1, 128, 3]] * 3 + [[255, 255, 255, 255]], np.uint8),
    )
    together = sample_tokens(logits, draws)
    for row in range(9):
        alone = sample_tokens(
            logits[row : row + 1],
            SamplerInput(
                **{
                    name: getattr(draws, name)[row : row + 1]
                    for name in SamplerInput.__dataclass_fields__
                    if name != "top_logprobs"
                }
            ),
        )
        assert together.token[row] == alone.token[0]
        assert together.logp[row] == alone.logp[0]
        assert together.sampled_logp[row] == alone.sampled_logp[0]


def test_logits_that_are_not_finite_show():
    broken = torch.tensor([[0.0, torch.nan, 1.0]])
    assert np.isnan(sample_tokens(broken, draws_of([0.5])).logp).all()
