"""A fleet of in-process replicas gives the answers of the embedded engine, to the bit, whatever happens to replicas."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1]))
from engines import CONFIG, VOCAB, by_name, engine, request, same
from inline_fleet import FaultRates, inline_engine, spec_of

from hone.core.errors import DataError, DivergedError, LostResourceError, ResourceError
from hone.core.generation import ScoreRequest, generate
from hone.models.language.init import new_model

REQUESTS = [request(number, samples=2, max_tokens=6) for number in range(10)]


@pytest.fixture(scope="module")
def model():
    return new_model(CONFIG, seed=1)


@pytest.fixture(scope="module")
def expected(model):
    embedded = engine(model, slots=4, kind="torch", page_tokens=16)
    embedded.publish(0)
    return by_name(generate(embedded, REQUESTS, round=3))


def answers_of(fleet, *, round=3):
    return by_name(generate(fleet, REQUESTS, round=round))


def equal(left, right) -> bool:
    return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)


@pytest.mark.parametrize("replicas", [1, 4])
def test_a_fleet_of_any_size_gives_the_embedded_answers(model, expected, replicas) -> None:
    fleet, transport = inline_engine(model, spec_of(model, vocab=VOCAB), replicas=replicas)
    fleet.publish(0)
    found = answers_of(fleet)
    assert equal(found, expected)
    assert all((one.version == 0).all() for one in found.values())
    assert fleet.stats.tokens == sum(len(one.tokens) for one in expected.values())
    assert len(transport.replicas) == replicas
    fleet.close()
    assert not transport.is_open


FAULTS = [
    FaultRates(lost=0.25),
    FaultRates(hung=0.3),
    FaultRates(twice=0.5),
    FaultRates(flutter=0.3),
    FaultRates(lost=0.15, hung=0.15, twice=0.2, flutter=0.15),
]


@pytest.mark.parametrize("faults", FAULTS, ids=["lost", "hung", "twice", "flutter", "all"])
def test_answers_stay_the_same_under_faults(model, expected, faults) -> None:
    fleet, transport = inline_engine(model, spec_of(model, vocab=VOCAB), replicas=2, faults=faults)
    fleet.publish(0)
    assert equal(answers_of(fleet), expected)
    assert sum(count for name, count in transport.happened.items() if name != "none")
    if faults.lost:
        assert fleet.report.losses
        assert fleet.note.splitlines()[0].startswith("replica ")


def test_a_publication_reaches_every_replica_before_anything_is_drawn(model) -> None:
    fleet, _ = inline_engine(model, spec_of(model, vocab=VOCAB), replicas=2)
    fleet.publish(0)
    first = answers_of(fleet)
    other = new_model(CONFIG, seed=2)
    fleet._tensors = other.stored_tensors
    fleet.publish(1)
    embedded = engine(other, slots=4)
    embedded.publish(1)
    second = answers_of(fleet)
    assert equal(second, by_name(generate(embedded, REQUESTS, round=3)))
    assert not equal(first, second)
    assert all((one.version == 1).all() for one in second.values())
    assert list(fleet.fingerprints) == [0, 1]


def test_texts_are_scored_on_a_replica(model) -> None:
    fleet, _ = inline_engine(model, spec_of(model, vocab=VOCAB), faults=FaultRates(lost=0.4), seed=4)
    fleet.publish(0)
    text = ScoreRequest(
        prompt=np.array([3, 4], np.int32), tokens=np.array([5, 6, 7], np.int32), sampling=REQUESTS[0].sampling
    )
    embedded = engine(model)
    embedded.publish(0)
    for mine, theirs in zip(fleet.score([text, text]), embedded.score([text, text]), strict=True):
        assert np.array_equal(mine.logp, theirs.logp)
    assert fleet.score([]) == []
    with pytest.raises(DataError, match="text 0"):
        fleet.score([ScoreRequest(prompt=np.zeros(0, np.int32), tokens=text.tokens, sampling=text.sampling)])


def test_truncated_sampling_and_stop_strings_cross_the_wire(model, tmp_path) -> None:
    requests = [request(number, samples=2, top_k=5, top_logprobs=2) for number in range(4)]
    requests.append(request(9, samples=1))
    embedded = engine(model)
    embedded.publish(0)
    expected = by_name(generate(embedded, requests))
    fleet, _ = inline_engine(model, spec_of(model, vocab=VOCAB))
    fleet.publish(0)
    found = by_name(generate(fleet, requests))
    assert equal(found, expected)
    for name, one in found.items():
        mine, theirs = one.sampling_mask, expected[name].sampling_mask
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            assert np.array_equal(mine.values, theirs.values)
            assert np.array_equal(mine.offsets, theirs.offsets)
        likeliest = expected[name].likeliest
        assert (one.likeliest is None) == (likeliest is None)
        if one.likeliest is not None and likeliest is not None:
            assert np.array_equal(one.likeliest.tokens, likeliest.tokens)
    with pytest.raises(ValueError, match="stop strings"):
        fleet.submit([request(0, stop=("a",))])


def test_turns_of_one_conversation_share_an_id_and_may_run_at_the_same_time(model) -> None:
    def dialogues(session):
        """Two turns of three conversations with one id; the second turns go out together."""
        first = replace(request(1, samples=3, max_tokens=6), keep_s=60.0)
        session.submit([first], round=2)
        begun = by_name(iter(session.next_completion, None))
        for sample in range(3):
            prompt = np.concatenate([first.prompt, begun["p1", sample].tokens, np.array([4, 5], np.int32)])
            after = replace(first, prompt=prompt, samples=1, first_sample=sample, turn=1, after="p1")
            session.submit([after], round=2)
        return begun, by_name(iter(session.next_completion, None))

    embedded = engine(model)
    embedded.publish(0)
    expected = dialogues(embedded)
    faults = FaultRates(lost=0.2, twice=0.2)
    for replicas in (1, 2):
        fleet, _ = inline_engine(model, spec_of(model, vocab=VOCAB), replicas=replicas, faults=faults, seed=replicas)
        fleet.publish(0)
        assert all(equal(mine, theirs) for mine, theirs in zip(dialogues(fleet), expected, strict=True))


def test_cancelled_requests_are_gone_and_others_go_on(model, expected) -> None:
    fleet, _ = inline_engine(model, spec_of(model, vocab=VOCAB))
    fleet.publish(0)
    fleet.submit(REQUESTS, round=3)
    first = fleet.next_completion()
    assert first is not None
    fleet.cancel([one.id for one in REQUESTS[:6]])
    rest = by_name(iter(fleet.next_completion, None))
    assert {name for name, _ in rest} <= {one.id for one in REQUESTS[6:]} | {first.request_id}
    assert all(same(one, expected[name]) for name, one in rest.items())
    assert not fleet.has_requests()
    fleet.cancel()
    assert fleet.book.pending == 0


def test_damaged_weights_replace_a_replica_once_and_then_end_the_run(model) -> None:
    fleet, transport = inline_engine(model, spec_of(model, vocab=VOCAB), replicas=1)
    put = transport.put

    def damaged(version, flat, digest):
        weights = put(version, flat, digest)
        weights.parts[0].setflags(write=True)
        weights.parts[0][17] ^= 1
        return weights

    transport.put = damaged
    fleet.publish(0)
    fleet.submit(REQUESTS, round=3)
    with pytest.raises(DivergedError, match="arrived damaged"):
        fleet.next_completion()
    assert transport.started == 2


def test_a_replica_of_another_build_is_refused_by_name_unless_mixed(model) -> None:
    for mixed in (False, True):
        fleet, transport = inline_engine(model, spec_of(model, vocab=VOCAB), replicas=2, mixed=mixed)
        start = transport.start

        def other_build(start=start, transport=transport):
            name = start()
            if transport.started == 2:
                at, count, replica, event = transport.queue.pop()
                changed = type(event.arithmetic)(
                    runner=event.arithmetic.runner, device="cpu", build="hone-1234, torch 1.0"
                )
                event = type(event)(replica=replica, node="there", arithmetic=changed)
                transport.queue.append((at, count, replica, event))
            return name

        transport.start = other_build
        fleet.publish(0)
        if mixed:
            answers_of(fleet)
            assert "cannot be repeated" in fleet.note
        else:
            with pytest.raises(ResourceError, match=r"replica 2 on there.*build of the kernels: hone-1234"):
                answers_of(fleet)


def test_too_many_losses_end_the_run_with_the_last_causes(model) -> None:
    fleet, _ = inline_engine(model, spec_of(model, vocab=VOCAB), faults=FaultRates(lost=1.0), losses=2)
    fleet.publish(0)
    with pytest.raises(LostResourceError, match=r"losses_allowed = 2.*\n.*signal 9"):
        answers_of(fleet)


def test_a_fleet_without_weights_says_so(model) -> None:
    fleet, _ = inline_engine(model, spec_of(model, vocab=VOCAB))
    fleet.submit(REQUESTS)
    with pytest.raises(RuntimeError, match="publish"):
        fleet.next_completion()


def test_a_spare_takes_over(model, expected) -> None:
    fleet, transport = inline_engine(model, spec_of(model, vocab=VOCAB), replicas=1, spares=1)
    fleet.publish(0)
    answers_of(fleet)
    assert {name for name, _ in transport.asked} == {"replica 1"}
    transport.faults = FaultRates(lost=1.0)
    fleet.submit(REQUESTS, round=3)
    fleet._step()
    transport.faults = FaultRates()
    found = by_name(iter(fleet.next_completion, None))
    assert equal(found, expected)
    assert transport.asked[-1][0] == "replica 2"


def test_metrics_name_shares_losses_and_waits(model) -> None:
    fleet, _ = inline_engine(model, spec_of(model, vocab=VOCAB), replicas=2, faults=FaultRates(lost=0.2), seed=3)
    fleet.publish(0)
    answers_of(fleet)
    metrics = fleet.metrics()
    assert metrics["fleet/lost"] == len(fleet.report.losses) > 0
    assert fleet.metrics()["fleet/lost"] == 0
    assert 0 < metrics["fleet/largest_share"] <= 1
    assert metrics["fleet/wait_s"] > 0
    assert "replicas were lost" in fleet.report.summary()
