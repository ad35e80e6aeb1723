"""Drawing tokens in compiled code, beside a slow version in numpy, and the corners."""

import engine_native_cases as cases
import numpy as np
import pytest
import torch
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.engine.native.runner import NativeRunner
from hone.engine.work import ForwardBatch, SamplerInput, SamplerOutput

CLOSE = 1e-5
"""Sums in another order may differ by this much; nearer decisions are not judged."""


def ask(runner: NativeRunner, draws: SamplerInput) -> SamplerOutput:
    """Draws after the text 1, 2, 3."""
    runner.reserve(1)
    return runner.run(
        ForwardBatch(
            tokens=np.asarray([1, 2, 3], np.int32),
            positions=np.arange(3, dtype=np.int32),
            sequence=np.zeros(3, np.int32),
            pages=np.zeros((1, 1), np.int32),
            draws=draws,
        )
    )


def policy_of(runner: NativeRunner, vocab: int, temperature: float) -> np.ndarray:
    """`[vocab]` log-probabilities, each token scored."""
    draws = cases.draws_of(np.full(vocab, 2), np.arange(vocab), temperature=temperature)
    return ask(runner, draws).logp.astype(np.float64)


def kept_of(drawn: SamplerOutput, vocab: int) -> np.ndarray:
    assert drawn.sampling_mask_bits is not None
    return np.unpackbits(drawn.sampling_mask_bits, axis=1, bitorder="little")[:, :vocab].astype(bool)


def slowly(logp: np.ndarray, top_k: int, top_p: float, min_p: float) -> tuple[set[int], float]:
    """Tokens that stay, taken one at a time; and how near the nearest decision was."""
    p = np.exp(logp)
    ranked = sorted(range(len(p)), key=lambda token: (-p[token], token))[: top_k or len(p)]
    total, mass, kept, near = p[ranked].sum(), 0.0, set(), 1.0
    for token in ranked:
        if kept and top_p < 1 and mass >= top_p:
            break
        kept.add(token)
        mass += p[token] / total
        near = min(near, abs(mass - top_p)) if top_p < 1 else near
    near = min([near, *(abs(p[token] / p.max() - min_p) for token in kept if min_p > 0)])
    return {token for token in kept if p[token] >= min_p * p.max()}, near


@examples(40)
@given(
    seed=st.integers(0, 5),
    temperature=st.sampled_from([0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 2, 7, 33, 50]),
    top_p=st.sampled_from([0.0001, 0.3, 0.77, 0.95, 0.9999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    uniform=st.floats(0, 1, exclude_max=True),
    allowed=st.one_of(st.none(), st.sets(st.integers(0, 32), min_size=1)),
)
def test_draws_equal_the_slow_version(seed, temperature, top_k, top_p, min_p, uniform, allowed):
    runner = cases.runner_of(cases.model_of(seed=seed), threads=1)
    logp = policy_of(runner, 33, temperature)
    settings_of = {"temperature": temperature, "top_k": top_k, "top_p": np.float32(top_p), "min_p": np.float32(min_p)}
    whole = logp
    if allowed is not None:  # a grammar comes first, and what it leaves is a policy of its own
        bits = np.isin(np.arange(33), list(allowed))
        settings_of["allowed"] = bits
        logp = np.where(bits, logp - np.logaddexp.reduce(logp[bits]), -np.inf)
    drawn = ask(runner, cases.draws_of([2], uniform=[uniform], **settings_of))
    kept, near = slowly(logp, top_k, top_p, min_p)
    kept = {token for token in kept if np.isfinite(logp[token])}
    if near < CLOSE:
        return
    if top_k or top_p < 1 or min_p or allowed is not None:
        assert set(np.flatnonzero(kept_of(drawn, 33)[0]).tolist()) == kept
    p = np.where([token in kept for token in range(33)], np.exp(logp), 0.0)
    p /= p.sum()
    token = int(drawn.token[0])
    assert p[:token].sum() - CLOSE <= uniform <= p[: token + 1].sum() + CLOSE
    assert token in kept
    np.testing.assert_allclose(drawn.logp[0], whole[token], atol=1e-6)
    np.testing.assert_allclose(drawn.sampled_logp[0], np.log(p[token]), atol=1e-5)
    greedy = ask(runner, cases.draws_of([2], greedy=True, temperature=temperature, allowed=settings_of.get("allowed")))
    assert (int(greedy.token[0]), greedy.sampled_logp[0]) == (int(logp.argmax()), 0.0)
    again = ask(runner, cases.draws_of([2] * 33, np.arange(33), **settings_of))
    assert again.sampled_logp[token] == drawn.sampled_logp[0]
    assert np.isneginf(again.sampled_logp).tolist() == [other not in kept for other in range(33)]


def test_probabilities_sum_to_one():
    for isa in cases.sets():
        logp = policy_of(cases.runner_of(cases.model_of(), isa=isa), 33, 1.0)
        np.testing.assert_allclose(np.exp(logp).sum(), 1.0, atol=1e-6)


def test_unlikely_tokens_share_what_a_grammar_leaves():
    """Their weights beside the likeliest token's are 0 in float32."""
    runner = cases.runner_of(cases.model_of(), threads=1)
    logp = policy_of(runner, 33, 0.002)
    least = np.argsort(logp)[:2]
    assert logp[least].max() < -200
    drawn = ask(runner, cases.draws_of([2] * 2, least, temperature=0.002, allowed=np.isin(np.arange(33), least)))
    np.testing.assert_allclose(drawn.logp, logp[least], rtol=1e-5)
    np.testing.assert_allclose(np.exp(drawn.sampled_logp).sum(), 1.0, atol=1e-5)
    other = ask(
        runner, cases.draws_of([2], [int(logp.argmax())], temperature=0.002, allowed=np.isin(np.arange(33), least))
    )
    assert np.isneginf(other.sampled_logp[0])
    np.testing.assert_allclose(other.logp[0], logp.max(), atol=1e-6)


def with_equal_rows(*equal: int):
    """A model that gives the tokens of `equal` the same logit, above all others."""
    model = cases.model_of(tie_embeddings=False, vocab_size=40)
    assert model.head is not None
    draft = policy_of(cases.runner_of(model), 40, 1.0)
    with torch.no_grad():
        model.head.weight[list(equal)] = 3 * model.head.weight[int(draft.argmax())].clone()
    return cases.runner_of(model)


def test_ties_go_to_the_smaller_id():
    runner = with_equal_rows(31, 7, 19)
    drawn = ask(runner, cases.draws_of([2, 2, 2], top_k=[2, 0, 1], greedy=[False, True, False], uniform=[0.9999] * 3))
    assert np.flatnonzero(kept_of(drawn, 40)[0]).tolist() == [7, 19]
    assert drawn.token.tolist() == [19, 7, 7]
    assert drawn.sampled_logp[1] == 0.0
    np.testing.assert_allclose(drawn.sampled_logp[0], np.log(0.5), atol=1e-6)


def test_the_ends_of_the_uniform():
    runner = cases.runner_of(cases.model_of())
    logp = policy_of(runner, 33, 1.0)
    drawn = ask(runner, cases.draws_of([2, 2], uniform=[0.0, 1 - 2**-53]))
    assert drawn.token.tolist() == [0, 32]
    np.testing.assert_array_equal(drawn.logp, logp[[0, 32]].astype(np.float32))
    assert drawn.sampling_mask_bits is None


def test_scoring_a_greedy_draw():
    runner = cases.runner_of(cases.model_of())
    best = int(policy_of(runner, 33, 1.0).argmax())
    drawn = ask(runner, cases.draws_of([2, 2, 2], [-1, best, (best + 1) % 33], greedy=True))
    assert drawn.token.tolist() == [best, best, (best + 1) % 33]
    assert drawn.sampled_logp.tolist() == [0.0, 0.0, -np.inf]


def test_frequencies_follow_the_policy():
    runner = cases.runner_of(cases.model_of())
    p = np.exp(policy_of(runner, 33, 1.0))
    count = 4000
    drawn = ask(runner, cases.draws_of(np.full(count, 2), uniform=(np.arange(count) + 0.5) / count))
    np.testing.assert_allclose(np.bincount(drawn.token, minlength=33) / count, p, atol=2 / count)


@pytest.mark.parametrize("vocab", [50_001])
def test_a_large_vocabulary(vocab):
    model = cases.model_of("llama", vocab_size=vocab, hidden_size=32, layers=1)
    runner = cases.runner_of(model)
    logp = policy_of_some(runner, model)
    settings_of = {"top_k": [0, 50, 0, 50], "top_p": [0.9, 1.0, 1.0, 0.5], "min_p": [0.0, 0.0, 0.01, 0.0]}
    drawn = ask(runner, cases.draws_of([2] * 4, uniform=[0.1, 0.5, 0.7, 0.99], **settings_of))
    for row, kept in enumerate(kept_of(drawn, vocab)):
        top_k, top_p, min_p = (settings_of[name][row] for name in ("top_k", "top_p", "min_p"))
        expected, near = slowly(logp, int(top_k), float(top_p), float(min_p))
        unlike = set(np.flatnonzero(kept).tolist()) ^ expected
        assert len(unlike) <= (2 if near < CLOSE else 0)
        np.testing.assert_allclose(drawn.logp[row], logp[drawn.token[row]], atol=1e-5)


def policy_of_some(runner: NativeRunner, model) -> np.ndarray:
    """The whole policy, from the trainer: 50,000 draws would take a while."""
    from hone.models.packing import pack_rows

    with torch.no_grad():
        hidden = model.hidden(pack_rows([np.asarray([1, 2, 3], np.int32)]))[2:]
        return torch.log_softmax(model.logits(hidden)[0].double(), -1).numpy()
