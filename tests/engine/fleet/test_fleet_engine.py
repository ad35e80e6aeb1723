"""A fleet of in-process replicas gives the answers of the embedded engine, to the bit, whatever happens to replicas."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.append(str(Path(__file__).parents[1]))
from engines import CONFIG, VOCAB, by_name, engine, request, same
from inline_fleet import FaultRates, inline_engine, spec_of

from hone.core.errors import ConfigError, DataError, DivergedError, LostResourceError, ResourceError
from hone.core.fleet import GenerationAsk
from hone.core.generation import ScoreRequest, generate
from hone.engine.fleet.replica import ReplicaFailed, ReplicaLost
from hone.engine.protocol import UnmergedAdapter
from hone.models.language.init import new_model
from hone.models.language.lora import LoraAdapter, LoraSettings, adaptable_layers
from hone.run.store.codec import state_bytes

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


def adapter_of(model, seed: int) -> LoraAdapter:
    """Factors of all layers, none of them 0; the scale is no power of 2."""
    layers = tuple(adaptable_layers(model.config))
    settings = LoraSettings(rank=3, alpha=32.0, layers=layers)
    adapter = LoraAdapter(model, settings, base_folder=Path(), base_sha256="", beside=True)
    draws = torch.Generator().manual_seed(seed)
    for _, factor in adapter.factors():
        factor.data.normal_(0, 0.1, generator=draws)
    return adapter


def beside(adapter: LoraAdapter) -> UnmergedAdapter:
    return UnmergedAdapter(
        product=adapter.added_product, factors=adapter.stacked_factors, packed=lambda: state_bytes(adapter.packed())
    )


def named(adapters: int):
    """The requests, by turns of the base and of the adapters."""
    return [
        replace(one, adapter=f"a{place % (adapters + 1)}" if place % (adapters + 1) else "")
        for place, one in enumerate(REQUESTS)
    ]


@pytest.mark.parametrize("kind", ["native", "torch"])
@pytest.mark.parametrize("faults", [FaultRates(), FAULTS[-1]], ids=["well", "faults"])
def test_answers_and_scores_of_several_adapters_are_those_of_one_engine(model, kind, faults) -> None:
    embedded = engine(model, slots=4, kind=kind)
    embedded.publish(0)
    fleet, transport = inline_engine(model, spec_of(model, vocab=VOCAB, runner=kind), faults=faults)
    fleet.publish(0)
    for number in range(1, 4):
        for one in (embedded, fleet):
            one.add_adapter(f"a{number}", beside(adapter_of(model, number)))
    expected = by_name(generate(embedded, named(3), round=3))
    assert equal(by_name(generate(fleet, named(3), round=3)), expected)
    plain = by_name(generate(embedded, REQUESTS, round=3))
    assert not any(same(plain[name], expected[name]) for name in expected if int(name[0][1:]) % 4)
    texts = [
        ScoreRequest(prompt=np.array([3], np.int32), tokens=np.arange(4, 9, dtype=np.int32),
                     sampling=REQUESTS[0].sampling, adapter=name)
        for name in ("", "a1", "a2")
    ]  # fmt: skip
    orders = fleet.submit_scores(texts)
    results = {}
    while len(results) < 3:
        fleet.step()
        results |= fleet.poll_scores(orders)
    assert fleet.poll_scores(orders) == {}
    for order, expected_score in zip(orders, embedded.score(texts), strict=True):
        assert np.array_equal(results[order].logp, expected_score.logp)
    fleet.remove_adapter("a1")
    assert transport.dropped == [-1]
    with pytest.raises(DataError, match="no adapter 'a1' was added"):
        fleet.submit([replace(REQUESTS[0], adapter="a1")])
    with pytest.raises(DataError, match="no adapter 'a1' was added"):
        fleet.submit_scores(texts)


def test_an_adapter_under_a_name_of_an_earlier_one_is_the_new_one(model) -> None:
    fleet, _ = inline_engine(model, spec_of(model, vocab=VOCAB), replicas=1)
    fleet.publish(0)
    answers = []
    for seed in (1, 2, 1):
        fleet.add_adapter("a1", beside(adapter_of(model, seed)))
        answers.append(by_name(generate(fleet, [replace(REQUESTS[3], adapter="a1")])))
        fleet.remove_adapter("a1")
    assert equal(answers[0], answers[2]) and not equal(answers[0], answers[1])


def test_a_replica_keeps_a_number_of_adapters_that_nobody_uses(model) -> None:
    fleet, transport = inline_engine(model, spec_of(model, vocab=VOCAB), replicas=1)
    fleet.publish(0)
    (replica,) = transport.replicas.values()
    for number in range(20):
        fleet.add_adapter(f"a{number}", beside(adapter_of(model, number)))
        list(generate(fleet, [replace(request(number, max_tokens=1), adapter=f"a{number}")]))
    assert len(replica.engine._adapters) == 16 == len(replica._adapter_uses)
    assert next(iter(replica._adapter_uses)) == "a4 (5)"


def test_an_adapter_that_arrives_damaged_is_told(model) -> None:
    fleet, transport = inline_engine(model, spec_of(model, vocab=VOCAB), replicas=1)
    fleet.publish(0)
    fleet.add_adapter("a1", beside(adapter_of(model, 1)))
    (part,) = fleet.book.offers["a1"].parts
    part.setflags(write=True)
    part[-1] ^= 1
    (replica,) = transport.replicas.values()
    ask = GenerationAsk(
        number=1, requests=(replace(REQUESTS[0], adapter="a1"),), round=0, version=0,
        adapters=(("a1", fleet.book.offers["a1"]),),
    )  # fmt: skip
    with pytest.raises(DivergedError, match=r"adapter a1 \(1\) arrived damaged"):
        replica.answer(ask, lambda offer: offer.parts[0])
    assert replica._adapter_uses == {}
    with pytest.raises(ConfigError, match="cannot be sent to replicas"):
        fleet.add_adapter("a2", UnmergedAdapter(product=lambda *_: None, factors=list))


def test_texts_that_were_cancelled_are_not_scored(model) -> None:
    fleet, _ = inline_engine(model, spec_of(model, vocab=VOCAB), replicas=1)
    fleet.publish(0)
    text = ScoreRequest(
        prompt=np.array([3, 4], np.int32), tokens=np.array([5, 6, 7], np.int32), sampling=REQUESTS[0].sampling
    )
    orders = fleet.submit_scores([text, text])
    fleet.step()
    fleet.cancel_scores(orders[:1])
    while not (taken := fleet.poll_scores(orders)):
        fleet.step()
    assert list(taken) == orders[1:]
    for _ in range(100):
        fleet.step()
    assert fleet.poll_scores(orders) == {} and fleet.book.pending == 0


def test_all_work_of_replicas_is_told_and_shared_among_what_they_answered(model) -> None:
    fleet, transport = inline_engine(model, spec_of(model, vocab=VOCAB))
    fleet.publish(0)
    answered = []
    original = transport.answer
    transport.answer = lambda replica, ask: (answered.append(original(replica, ask)), answered[-1])[1]
    fleet.submit(REQUESTS)
    while fleet.next_completion() is not None:
        pass
    work = fleet.take_work()
    assert sum(work.values()) == pytest.approx(sum(one.answers.core_s for one in answered)) and min(work.values()) > 0
    assert set(work) == {one.id for one in REQUESTS} and fleet.take_work() == {}


def test_an_error_of_one_ask_names_its_requests_and_what_came_with_it_is_taken(model) -> None:
    fleet, transport = inline_engine(model, spec_of(model, vocab=VOCAB), replicas=2)
    fleet.publish(0)
    original, bad = transport.answer, []

    def answer(replica, ask):
        if not bad:
            bad.append(ask)
            return ReplicaFailed(replica=replica, number=ask.number, error=DivergedError("logits are not finite"))
        return original(replica, ask)

    transport.answer = answer

    def poll(timeout_s: float):
        events, transport.queue = [one[3] for one in transport.queue], []
        return events

    transport.poll = poll
    fleet.submit(REQUESTS)
    with pytest.raises(DivergedError, match="logits are not finite") as raised:
        while True:
            fleet.step()
    assert raised.value.work == {one.id for one in bad[0].requests}
    fleet.cancel(set(map(str, raised.value.work)))
    taken = set()
    while (one := fleet.next_completion()) is not None:
        taken.add(one.request_id)
    assert taken == {one.id for one in REQUESTS} - raised.value.work


def test_a_request_that_replicas_do_not_survive_is_named(model) -> None:
    fleet, transport = inline_engine(model, spec_of(model, vocab=VOCAB), replicas=2)
    fleet.book.limits = replace(fleet.book.limits, losses_of_work=3)
    fleet.publish(0)
    original = transport.answer

    def answer(replica, ask):
        if any(one.id == "p3" for one in ask.requests):
            return ReplicaLost(replica=replica, cause="out of memory")
        return original(replica, ask)

    transport.answer = answer
    fleet.submit(REQUESTS)
    with pytest.raises(DataError, match="request 'p3': 3 replicas were lost") as raised:
        while True:
            fleet.step()
    assert raised.value.work == {"p3"}
    fleet.cancel({"p3"})
    taken = [one.request_id for one in iter(fleet.next_completion, None)]
    assert set(taken) == {one.id for one in REQUESTS} - {"p3"}
