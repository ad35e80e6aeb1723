"""Replay of an interleaving: weights that were published between passes at random moments, and equal answers."""

import copy

import numpy as np
import pytest
import torch
from engines import CONFIG, VOCAB, by_name, engine, request, same
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.core.errors import DataError
from hone.core.generation import AnswerKey, AnswerVersions, Completion, answer_versions
from hone.engine.scheduler import RecordedVersions
from hone.engine.torch_runner import TorchRunner
from hone.models.language.init import new_model

ASKED = [
    request(0, max_tokens=14),
    request(1, max_tokens=18, samples=3),
    request(2, max_tokens=12, length=33, top_k=5),
]


class Weights:
    """A model whose weights are a function of the version."""

    def __init__(self) -> None:
        self.model = new_model(CONFIG, seed=1)
        self._first = [parameter.detach().clone() for parameter in self.model.parameters()]

    def load(self, version: int) -> None:
        with torch.no_grad():
            for parameter, first in zip(self.model.parameters(), self._first, strict=True):
                parameter.copy_(first * (1 + 0.2 * version))


def opened(on_publish: str, *, slots: int, pages: int = 0):
    weights = Weights()
    made = engine(weights.model, eos=(0,), slots=slots, pages=pages, context=96, on_publish=on_publish)
    made.runner = TorchRunner(
        copy.deepcopy(weights.model), vocab_used=VOCAB, page_tokens=16, source_model=weights.model
    )
    made.own_weights = True
    return weights, made


def recorded(on_publish: str, moments: list[int], *, slots: int, pages: int = 0) -> dict:
    """Answers of an engine that is given new weights after so many passes each time."""
    weights, made = opened(on_publish, slots=slots, pages=pages)
    made.publish(0)
    made.submit(ASKED)
    for version, passes in enumerate(moments, start=1):
        for _ in range(passes):
            made.step()
        weights.load(version)
        made.publish(version)
    return by_name(iter(made.next_completion, None))


def replayed(on_publish: str, record: dict[AnswerKey, AnswerVersions], *, slots: int, pages: int = 0) -> dict:
    weights, made = opened(on_publish, slots=slots, pages=pages)
    made.replay(RecordedVersions(record.__getitem__, weights.load))
    made.submit(ASKED)
    return by_name(iter(made.next_completion, None))


def record_of(done: dict[tuple[str, int], Completion]) -> dict[AnswerKey, AnswerVersions]:
    return {(name, one.turn, sample): answer_versions(one) for (name, sample), one in done.items()}


@pytest.mark.parametrize("on_publish", ["recompute", "keep", "finish"])
@examples(4)
@given(moments=st.lists(st.integers(0, 8), min_size=1, max_size=5), slots=st.integers(2, 4), tight=st.booleans())
def test_every_answer_comes_again_to_the_bit(on_publish, moments, slots, tight):
    pages = 9 if tight else 0
    done = recorded(on_publish, moments, slots=slots, pages=pages)
    again = replayed(on_publish, record_of(done), slots=slots)
    assert set(again) == set(done)
    for name, one in done.items():
        assert same(again[name], one)
        assert np.array_equal(again[name].version, one.version)
    if on_publish == "keep" and not tight:
        assert record_of(again) == record_of(done), "texts are read again where they were"


def test_the_record_mixes_versions_and_an_answer_that_it_lacks_is_refused():
    done = recorded("keep", [6, 3, 4], slots=3)
    record = record_of(done)
    assert max(len(one.starts) for one in record.values()) >= 3
    ((key, one), *_) = record.items()
    assert [one.version_at(token) for token in range(len(done[key[0], key[2]].tokens))] == done[
        key[0], key[2]
    ].version.tolist()

    def lookup(asked: AnswerKey) -> AnswerVersions:
        raise DataError(f"no record of {asked[0]}")

    weights, made = opened("keep", slots=3)
    made.replay(RecordedVersions(lookup, weights.load))
    with pytest.raises(DataError, match="no record of p0"):
        made.submit(ASKED)


def test_cancelled_answers_that_wait_for_weights_give_their_pages_back():
    done = recorded("keep", [6, 3], slots=2)
    weights, made = opened("keep", slots=4)
    made.replay(RecordedVersions(record_of(done).__getitem__, weights.load))
    made.submit(ASKED)
    for _ in range(50):
        made.step()
        if made._scheduler.held.pages():
            break
    else:
        raise AssertionError("nobody waited")
    made.cancel()
    assert made.held_pages == 0
    assert not made.has_requests()
    assert not made._scheduler.busy
