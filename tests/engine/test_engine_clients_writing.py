"""An answer that comes in pieces is the answer, however it was cut."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.generation import Request, SamplingParams
from hone.engine.clients.http import ServerError
from hone.engine.clients.remote import PartialCompletion, ResponseRules
from hone.engine.clients.wire import GenerateResponse, logp_array, token_id_array
from hone.engine.session import TokenizerRules

VOCAB, MOST = 20, 30
RULES = TokenizerRules(eos=(0,), vocab=VOCAB, decode=lambda ids: "".join(chr(97 + i) for i in ids))


def writing(**sampling) -> PartialCompletion:
    prompt = np.array([1, 2, 3], np.int32)
    asked = Request(id="p", prompt=prompt, samples=2, sampling=SamplingParams(**{"max_tokens": MOST} | sampling))
    return PartialCompletion(asked, 1, 7)


def told(tokens, ended="abort") -> GenerateResponse:
    return GenerateResponse(
        tokens=np.array(tokens, np.int32),
        logp=np.full(len(tokens), -0.5, np.float32),
        weight_labels=None,
        finish_reason=ended,
    )


@given(
    tokens=st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=MOST),
    cuts=st.lists(st.integers(0, MOST), max_size=6),
    ended=st.booleans(),
)
def test_pieces_add_up(tokens, cuts, ended):
    tokens = [*tokens[: MOST - 1], 0] if ended else (tokens * MOST)[:MOST]
    ends, one = ResponseRules(RULES), writing()
    borders = sorted({0, len(tokens), *(cut for cut in cuts if cut < len(tokens))})
    seeds = []
    for version, (start, stop) in enumerate(pairwise(borders)):
        assert ends.finish_of(one) is None
        ask = one.next_request(5, (0,))
        seeds.append(ask.seed)
        assert ask.prefix.tolist() == [1, 2, 3, *tokens[:start]]
        assert ask.max_tokens == MOST - start
        piece = told(tokens[start:stop])
        ends.check_response(ask, piece, "here")
        one.append_response(piece, np.full(stop - start, version, np.int32))
    assert len(set(seeds)) == len(seeds)
    finish = ends.finish_of(one)
    assert finish == (("eos", 0) if ended else ("length", 0))
    done = one.completion(*finish)
    assert done.tokens.tolist() == tokens
    assert (done.request_id, done.sample_index) == ("p", 1)
    assert len(done.logp) == len(done.version) == len(tokens)
    assert (np.diff(done.version) >= 0).all()


def test_the_seed_depends_on_what_is_asked_and_on_nothing_else():
    assert writing().next_request(5, ()).seed == writing().next_request(5, (0,)).seed
    others = {writing().next_request(6, ()).seed, PartialCompletion(writing().request, 0, 7).next_request(5, ()).seed}
    others |= {PartialCompletion(writing().request, 1, 8).next_request(5, ()).seed}
    assert len({writing().next_request(5, ()).seed, *others}) == 4


def test_a_stop_string_over_two_pieces_is_found():
    ends, one = ResponseRules(RULES), writing(stop=("bc",))
    one.append_response(told([3, 1]), np.zeros(2, np.int32))
    assert ends.finish_of(one) is None
    one.append_response(told([2]), np.zeros(1, np.int32))
    assert ends.finish_of(one) == ("stop", 0)


def test_an_answer_that_goes_on_behind_its_end_is_wrong():
    ends, one = ResponseRules(RULES), writing()
    with pytest.raises(ServerError, match=r"request 'p', sample 1: it continued after token 0, which ends an answer"):
        ends.check_response(one.next_request(5, (0,)), told([3, 0, 4]), "here")


@pytest.mark.parametrize("bad", [True, -1, 2**31, 1.5, "3", None])
def test_what_is_no_token_id_is_named(bad):
    with pytest.raises(ServerError, match="which is not a token id"):
        token_id_array([1, bad], "ids", "here")


@pytest.mark.parametrize("bad", [float("nan"), 0.1, True, "x", None])
def test_what_is_no_log_probability_is_named(bad):
    with pytest.raises(ServerError, match="here: logprobs hold"):
        logp_array([-1.0, bad], "logprobs", "here")
