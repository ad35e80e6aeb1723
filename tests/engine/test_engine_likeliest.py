"""What a server needs of the engine: likeliest tokens, cancelling one request, draws keyed apart from ids."""

import threading

import engine_native_cases as cases
import numpy as np
import pytest
import torch
from engines import CONFIG, VOCAB, by_name, engine, request, same
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from test_engine_native_sampler import ask, policy_of

from hone.core.errors import ConfigError
from hone.core.generation import Request, SamplingParams, ScoreRequest, generate
from hone.engine.native.library import unavailable_reason
from hone.engine.torch_runner import _rank_likeliest
from hone.models.language.init import new_model
from hone.models.packing import pack_rows

KINDS = ["torch", *([] if unavailable_reason() else ["native"])]


def policy_after(model, tokens) -> np.ndarray:
    with torch.no_grad():
        logits = model.logits(model.hidden(pack_rows([np.asarray(tokens, np.int32)]))[-1:])[0, :VOCAB]
        return torch.log_softmax(logits, -1).numpy()


@given(seed=st.integers(0, 100), counts=st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_ranking_beside_a_slow_version_with_ties(seed, counts):
    logp = torch.from_numpy(np.random.default_rng(seed).integers(-3, 0, (len(counts), 6)).astype(np.float32))
    tokens, values = _rank_likeliest(logp, np.array(counts, np.int32))
    for row, count in enumerate(counts):
        slowly = sorted(range(6), key=lambda token: (-logp[row, token].item(), token))[:count]
        assert tokens[row, :count].tolist() == slowly
        assert values[row, :count].tolist() == logp[row, slowly].tolist()


@examples(20)
@given(seed=st.integers(0, 5), count=st.integers(1, 40), temperature=st.sampled_from([0.5, 1.0]))
def test_compiled_code_ranks_as_scoring_every_token_does(seed, count, temperature):
    runner = cases.runner_of(cases.model_of(seed=seed))
    logp = policy_of(runner, 33, temperature).astype(np.float32)
    draws = cases.draws_of([2, 2], uniform=[0.3, 0.6], temperature=temperature, top_k=[0, 3])
    plain = ask(runner, draws)
    told = ask(runner, cases.with_top(draws, [count, 1]))
    assert plain.top_tokens is None
    assert told.token.tolist() == plain.token.tolist()
    order = sorted(range(33), key=lambda token: (-logp[token], token))[:count]
    assert told.top_tokens[0].tolist() == order
    assert told.top_logp[0].tolist() == logp[order].tolist()  # the very numbers that scoring gives
    assert told.top_tokens[1, 0] == order[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("changes", [{}, {"slots": 3, "pages": 16, "pass_tokens": 16}])
def test_answers_and_scores_bring_the_likeliest_tokens(kind, changes):
    """With few pages answers are preempted, and read again."""
    model = new_model(CONFIG, seed=3)
    asked = [request(n, samples=3, max_tokens=20, top_logprobs=n, length=30) for n in range(5)]
    asked.append(request(9, max_tokens=20, top_logprobs=VOCAB + 7, top_p=0.6))
    done = by_name(generate(engine(model, kind=kind, **changes), asked))
    plain = [request(n, samples=3, max_tokens=20, length=30) for n in range(5)]
    plain.append(request(9, max_tokens=20, top_p=0.6))
    assert all(same(done[name], one) for name, one in by_name(generate(engine(model, kind=kind), plain)).items())
    assert done["p0", 0].likeliest is None
    runner = engine(model, kind=kind, **changes)
    for one in asked[1:]:
        answer = done[one.id, 0]
        count = min(one.sampling.top_logprobs, VOCAB)
        assert answer.likeliest.tokens.shape == answer.likeliest.logp.shape == (len(answer.tokens), count)
        for place in (0, len(answer.tokens) - 1):
            logp = policy_after(model, [*one.prompt, *answer.tokens[:place]])
            np.testing.assert_allclose(answer.likeliest.logp[place], np.sort(logp)[::-1][:count], atol=1e-5)
        among = answer.likeliest.tokens == answer.tokens[:, None]
        assert (answer.likeliest.logp[among] == answer.logp[among.any(1)]).all()
        (scored,) = runner.score([ScoreRequest(prompt=one.prompt, tokens=answer.tokens, sampling=one.sampling)])
        assert np.array_equal(scored.likeliest.tokens, answer.likeliest.tokens)
        assert np.array_equal(scored.likeliest.logp, answer.likeliest.logp)


def test_a_negative_number_of_likeliest_tokens_is_refused():
    with pytest.raises(ConfigError, match="top_logprobs must be 0"):
        engine(new_model(CONFIG, seed=3)).submit([request(1, top_logprobs=-1)])


@pytest.mark.parametrize("kind", KINDS)
def test_cancelling_one_request_leaves_the_others_where_they_are(kind):
    """A prompt that is being read is not begun again because another request was cancelled."""
    model = new_model(CONFIG, seed=3)
    asked = [request(n, samples=2, length=60, max_tokens=12) for n in range(6)]
    whole = by_name(generate(engine(model, kind=kind), asked))
    busy = engine(model, kind=kind, pass_tokens=16, eos=())
    prefilled = 60 * 3 + 2 * 3  # each prompt once, and its last token again for the second sample, at most
    runner = engine(model, kind=kind, pass_tokens=16)
    runner.submit(asked)
    for number in (5, 3, 1):
        runner.step()
        runner.cancel({f"p{number}"})
        assert not runner.has_requests({f"p{number}"})
    done = {}
    while (one := runner.next_completion()) is not None:
        done[one.request_id, one.sample_index] = one
    assert done.keys() == {(f"p{number}", sample) for number in (0, 2, 4) for sample in range(2)}
    assert all(same(whole[name], one) for name, one in done.items())
    assert runner.stats.prefill_tokens <= prefilled + 60
    assert runner.held_pages == 0
    busy.submit(asked)
    for _ in range(4):
        busy.step()
    assert busy.held_pages > 0
    busy.cancel({one.id for one in asked})
    assert busy.held_pages == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_score_is_polled_or_cancelled_like_an_answer(kind):
    model = new_model(CONFIG, seed=3)
    runner = engine(model, kind=kind, pass_tokens=16)
    tokens, sampling = request(9, length=50).prompt, SamplingParams(max_tokens=1)
    texts = [ScoreRequest(prompt=request(n).prompt, tokens=tokens, sampling=sampling) for n in range(3)]
    expected = engine(model, kind=kind).score(texts)
    orders = runner.submit_scores(texts)
    assert runner.poll_scores(orders) == {}
    runner.step()
    runner.cancel_scores(orders[:1])
    found = {}
    while len(found) < 2:
        runner.step()
        found |= runner.poll_scores(orders)
    assert found.keys() == set(orders[1:])
    assert all(np.array_equal(found[order].logp, one.logp) for order, one in zip(orders[1:], expected[1:], strict=True))
    assert runner.held_pages == 0


def test_draws_follow_their_key_in_place_of_the_id():
    model = new_model(CONFIG, seed=3)
    plain = request(4, samples=3, max_tokens=16)
    other = Request(id="x", prompt=plain.prompt, samples=3, sampling=plain.sampling, draw_id=plain.id)
    done = by_name(generate(engine(model, slots=6), [plain, other]))
    assert all(np.array_equal(done["p4", sample].tokens, done["x", sample].tokens) for sample in range(3))


def test_a_thread_that_runs_passes_does_not_keep_others_from_the_engine():
    """Threads that submit or cancel wait for one pass, however many follow."""
    runner = engine(new_model(CONFIG, seed=3), eos=(), context=512, pages=200)
    runner.submit([request(n, max_tokens=440) for n in range(8)])
    answered: list[str] = []

    def ask() -> None:
        runner.submit([request(20, max_tokens=2)])
        runner.cancel({"p20"})
        answered.append("second")

    def run() -> None:
        while runner.has_requests():
            if runner.next_completion() is not None:
                answered.append("first")

    threads = [threading.Thread(target=run), threading.Thread(target=ask)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answered[0] == "second"
