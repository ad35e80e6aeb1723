"""An answer that comes in pieces is the answer, however it was cut."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.generation import Request, Sampling
from hone.engine.clients.http import ServerError
from hone.engine.clients.wire import Told, integers, numbers
from hone.engine.clients.writing import Ends, Writing
from hone.engine.stops import TextRules

VOCAB, MOST = 20, 30
RULES = TextRules(eos=(0,), vocab=VOCAB, decode=lambda ids: "".join(chr(97 + i) for i in ids))


def writing(**sampling) -> Writing:
    prompt = np.array([1, 2, 3], np.int32)
    asked = Request(id="p", prompt=prompt, samples=2, sampling=Sampling(**{"max_tokens": MOST} | sampling))
    return Writing(asked, 1, 7)


def told(tokens, ended="abort") -> Told:
    return Told(
        tokens=np.array(tokens, np.int32), logp=np.full(len(tokens), -0.5, np.float32), labels=None, ended=ended
    )


@given(
    tokens=st.lists(st.integers(1, VOCAB - 1), min_size=1, max_size=MOST),
    cuts=st.lists(st.integers(0, MOST), max_size=6),
    ended=st.booleans(),
)
def test_pieces_add_up(tokens, cuts, ended):
    tokens = [*tokens[: MOST - 1], 0] if ended else (tokens * MOST)[:MOST]
    ends, one = Ends(RULES), writing()
    borders = sorted({0, len(tokens), *(cut for cut in cuts if cut < len(tokens))})
    seeds = []
    for version, (start, stop) in enumerate(pairwise(borders)):
        assert ends.of(one) is None
        ask = one.ask(5, (0,))
        seeds.append(ask.seed)
        assert ask.text.tolist() == [1, 2, 3, *tokens[:start]]
        assert ask.max_tokens == MOST - start
        piece = told(tokens[start:stop])
        ends.check(ask, piece, "here")
        one.add(piece, np.full(stop - start, version, np.int32))
    assert len(set(seeds)) == len(seeds)
    finish = ends.of(one)
    assert finish == (("eos", 0) if ended else ("length", 0))
    done = one.completion(*finish)
    assert done.tokens.tolist() == tokens
    assert (done.request, done.sample) == ("p", 1)
    assert len(done.logp) == len(done.version) == len(tokens)
    assert (np.diff(done.version) >= 0).all()


def test_the_seed_depends_on_what_is_asked_and_on_nothing_else():
    assert writing().ask(5, ()).seed == writing().ask(5, (0,)).seed
    others = {writing().ask(6, ()).seed, Writing(writing().request, 0, 7).ask(5, ()).seed}
    others |= {Writing(writing().request, 1, 8).ask(5, ()).seed}
    assert len({writing().ask(5, ()).seed, *others}) == 4


def test_a_stop_string_over_two_pieces_is_found():
    ends, one = Ends(RULES), writing(stop=("bc",))
    one.add(told([3, 1]), np.zeros(2, np.int32))
    assert ends.of(one) is None
    one.add(told([2]), np.zeros(1, np.int32))
    assert ends.of(one) == ("stop", 0)


def test_an_answer_that_goes_on_behind_its_end_is_wrong():
    ends, one = Ends(RULES), writing()
    with pytest.raises(ServerError, match=r"request 'p', sample 1: it went on after token 0, which ends an answer"):
        ends.check(one.ask(5, (0,)), told([3, 0, 4]), "here")


@pytest.mark.parametrize("bad", [True, -1, 2**31, 1.5, "3", None])
def test_what_is_no_token_id_is_named(bad):
    with pytest.raises(ServerError, match="which is no token id"):
        integers([1, bad], "ids", "here")


@pytest.mark.parametrize("bad", [float("nan"), 0.1, True, "x", None])
def test_what_is_no_log_probability_is_named(bad):
    with pytest.raises(ServerError, match="here: logprobs hold"):
        numbers([-1.0, bad], "logprobs", "here")
