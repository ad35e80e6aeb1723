"""The engine: what a completion is does not depend on slots, order or company, and is what the model says."""

import numpy as np
import pytest
import torch
from engines import CONFIG, VOCAB, by_name, engine, request, same
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock
from shared_prompts import pack_shared_prompts

from hone.core.errors import ConfigError, DataError, DivergedError
from hone.core.generation import Request, SamplingParams, generate
from hone.models.language.config import ModelConfig
from hone.models.language.decoder import Decoder
from hone.models.language.init import new_model
from hone.models.packing import pack_rows


@pytest.fixture(scope="module")
def model() -> Decoder:
    return new_model(CONFIG, seed=1)


VARIED = [
    request(0, samples=3),
    request(1, samples=2, temperature=0.6, max_tokens=30),
    request(2, samples=1, length=70),
    request(3, samples=4, top_k=3),
    request(4, samples=2, top_p=0.7, temperature=1.5),
    request(5, samples=1, greedy=True, max_tokens=1),
    request(6, samples=2, length=16, max_tokens=90),
    request(7, samples=2, length=17, top_k=5, top_p=0.5),
]


@pytest.fixture(scope="module")
def alone(model):
    """Each request by itself, in an engine of one slot."""
    return by_name(done for asked in VARIED for done in generate(engine(model, slots=1), [asked], round=3))


@examples(25)
@given(slots=st.integers(1, 40), order=st.permutations(VARIED), count=st.integers(1, len(VARIED)))
def test_slots_order_and_company_change_no_bit(model, alone, slots, order, count):
    runner = engine(model, slots=slots)
    found = by_name(generate(runner, order[:count], round=3))
    assert len(found) == sum(asked.samples for asked in order[:count])
    assert all(same(done, alone[name]) for name, done in found.items())
    assert runner.exact


def test_a_second_call_finds_nothing_of_the_first(model, alone):
    runner = engine(model, slots=5)
    for asked in (VARIED, VARIED[::-1], VARIED[2:4]):
        assert all(same(done, alone[name]) for name, done in by_name(generate(runner, asked, round=3)).items())


def test_prompts_beyond_one_prefill_batch(model):
    many = [request(number, length=60, max_tokens=3) for number in range(40)]  # 2,400 prompt tokens
    together = by_name(generate(engine(model, slots=7), many))
    assert all(same(*generate(engine(model), [asked]), together[asked.id, 0]) for asked in many[::13])


def test_wide_layers_in_wide_batches_change_no_bit():
    """Sums over 1,100 features, and more rows than the largest product that is known to be invariant."""
    wide = new_model(
        ModelConfig(
            family="llama", vocab_size=VOCAB, hidden_size=64, intermediate_size=1100, layers=1, heads=2, kv_heads=1
        ),
        seed=0,
    )
    asked = [request(number, samples=6, max_tokens=5) for number in range(50)]
    many = by_name(generate(engine(wide, slots=300), asked))
    few = by_name(generate(engine(wide, slots=3), asked[::-1]))
    assert all(same(done, few[name]) for name, done in many.items())


def test_company_of_very_different_length_changes_no_bit(model):
    """Sums over keys span several blocks for some and one for others."""
    lengths = (3, 20, 70, 150, 200, 250, 290, 300)
    asked = [request(number, length=length, max_tokens=30) for number, length in enumerate(lengths)]
    runner = engine(model, eos=(), slots=8, context=400)
    together = by_name(generate(runner, asked))
    for one in asked:
        (alone,) = generate(engine(model, eos=(), slots=1, context=400), [one])
        assert same(alone, together[one.id, 0]), len(one.prompt)


def test_rounds_samples_and_seeds_draw_differently(model):
    asked = [request(0, samples=2, max_tokens=30)]
    first, second = sorted(generate(engine(model), asked, round=1), key=lambda done: done.sample_index)
    other = next(generate(engine(model), asked, round=2))
    reseeded = next(generate(engine(model, seed=1), asked, round=1))
    texts = {done.tokens.tobytes() for done in (first, second, other, reseeded)}
    assert len(texts) == 4


def trainer_logp(model, asked, completions, temperature):
    packed, targets = pack_shared_prompts([(asked.prompt, [done.tokens for done in completions])])
    with torch.no_grad():
        return model.token_logprobs(model.hidden(packed)[targets.at], targets.chosen, temperature).logp.numpy()


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_recorded_log_probabilities_are_the_trainers(model, temperature):
    gaps = []
    for number in range(6):
        asked = request(number, samples=8, max_tokens=100, temperature=temperature)
        done = sorted(generate(engine(model, slots=8), [asked]), key=lambda one: one.sample_index)
        recorded = np.concatenate([one.logp for one in done])
        gaps.append(np.abs(recorded - trainer_logp(model, asked, done, temperature)))
        assert all(np.array_equal(one.logp, one.sampled_logp) for one in done)  # nothing was truncated
    gap = np.concatenate(gaps)
    assert len(gap) > 500
    assert gap.max() <= 1e-4
    assert gap.mean() <= 2e-6


def test_truncated_draws_record_both_distributions(model):
    asked = request(3, samples=8, top_k=3, max_tokens=40)
    done = sorted(generate(engine(model), [asked]), key=lambda one: one.sample_index)
    packed, targets = pack_shared_prompts([(asked.prompt, [one.tokens for one in done])])
    with torch.no_grad():
        logits = model.logits(model.hidden(packed)[targets.at])
    best = logits.topk(3).indices
    assert (best == targets.chosen[:, None]).any(dim=1).all()
    kept = torch.log_softmax(logits.topk(3).values, dim=-1)
    expected = kept[best == targets.chosen[:, None]].numpy()
    np.testing.assert_allclose(np.concatenate([one.sampled_logp for one in done]), expected, atol=1e-5)
    whole = np.concatenate([one.logp for one in done])
    np.testing.assert_allclose(whole, trainer_logp(model, asked, done, 1.0), atol=1e-5)
    assert (whole < np.concatenate([one.sampled_logp for one in done])).all()


def test_greedy_takes_the_likeliest_token(model):
    asked = request(2, greedy=True, max_tokens=20)
    (done,) = generate(engine(model), [asked])
    tokens = asked.prompt
    for token in done.tokens:
        with torch.no_grad():
            best = model.logits(model.hidden(pack_rows([tokens]))[-1:]).argmax().item()
        assert token == best
        tokens = np.append(tokens, token)
    assert (done.sampled_logp == 0).all()
    assert (done.logp < 0).all()


def test_frequencies_are_the_probabilities(model):
    """First tokens of 4,000 samples against the model's own distribution: chi-squared over 24 tokens."""
    asked = request(9, samples=4000, max_tokens=1)
    first = np.array([done.tokens[0] for done in generate(engine(model, slots=512), [asked])])
    with torch.no_grad():
        logits = model.logits(model.hidden(pack_rows([asked.prompt]))[-1:])[0]
    expected = torch.softmax(logits.double(), dim=-1).numpy() * 4000
    counted = np.bincount(first, minlength=VOCAB)
    kept = expected > 5
    chi2 = ((counted - expected)[kept] ** 2 / expected[kept]).sum()
    assert kept.sum() > 10
    assert chi2 < 50  # 23 degrees of freedom: beyond 50 once in a thousand


def test_ends(model):
    done = list(generate(engine(model, slots=16), [request(number, samples=8, max_tokens=20) for number in range(8)]))
    assert {one.finish_reason for one in done} == {"eos", "length"}
    for one in done:
        assert (one.tokens[-1] == 0) == (one.finish_reason == "eos")
        assert 0 not in one.tokens[:-1]
        assert len(one.tokens) == 20 or one.finish_reason == "eos"
        assert len(one.tokens) == len(one.logp) == len(one.sampled_logp) == len(one.version)
        assert (one.tokens.dtype, one.logp.dtype, one.version.dtype) == (np.int32, np.float32, np.int32)


def test_several_ends_of_text(model):
    runner = engine(model, eos=(0, 5))
    ends = {int(done.tokens[-1]) for done in generate(runner, [request(1, samples=30, max_tokens=40)])}
    assert ends <= {0, 5} | set(range(VOCAB))
    assert {0, 5} <= ends


def letters(ids) -> str:
    return "".join("_abcdefghijklmnopqrstuvw"[i] for i in ids)


def test_stop_strings_across_token_borders(model):
    asked = request(1, samples=1, max_tokens=60, temperature=2.0)
    (whole,) = generate(engine(model, eos=()), [asked])
    text = letters(whole.tokens)
    stop = text[7:10]
    first = text.index(stop) + 3
    changed = Request(
        id=asked.id,
        prompt=asked.prompt,
        samples=1,
        sampling=SamplingParams(max_tokens=60, temperature=2.0, stop=("never!", stop)),
    )
    (done,) = generate(engine(model, eos=(), decode=letters), [changed])
    assert done.finish_reason == "stop"
    assert done.tokens.tolist() == whole.tokens[:first].tolist()


def test_a_stop_string_within_a_token_keeps_the_token(model):
    (done,) = generate(engine(model, decode=lambda ids: "".join(f"<{i}>" for i in ids)), [request(1, stop=("<",))])
    assert len(done.tokens) == 1
    assert done.finish_reason in ("stop", "eos")


def test_text_behind_a_stop_string_is_no_part_of_the_answer(model):
    """One token may carry both: it is kept, and its text is cut."""

    def decode(ids):
        return "".join(f"<{i}>, " for i in ids)

    (done,) = generate(engine(model, decode=decode, eos=()), [request(1, stop=(">",))])
    assert len(done.tokens) == 1
    assert done.trailing_characters == 2
    assert done.text(decode) == f"<{done.tokens[0]}>"
    (whole,) = generate(engine(model, decode=decode, eos=()), [request(1)])
    assert whole.trailing_characters == 0
    assert whole.text(decode) == decode(whole.tokens)


def test_only_tokens_that_could_complete_a_stop_string_are_decoded(model):
    asked: list[int] = []

    def decode(ids):
        asked.append(len(ids))
        return letters(ids)

    (done,) = generate(engine(model, decode=decode, eos=()), [request(1, max_tokens=80, stop=("zz",))])
    assert len(done.tokens) == 80
    assert max(asked) <= 2, "no token brings a z: each was looked at by itself, once"
    assert len(asked) <= 2 * VOCAB


def test_a_padded_vocabulary_is_never_drawn(model):
    prompts = [np.array([number, 2, 3], np.int32) for number in range(1, 5)]
    sampling = SamplingParams(max_tokens=20)
    every = [Request(id=str(p[0]), prompt=p, samples=4, sampling=sampling) for p in prompts]
    done = list(generate(engine(model, slots=8, vocab=5), every))
    assert np.concatenate([one.tokens for one in done]).max() < 5
    asked = every[0]
    mine = sorted((one for one in done if one.request_id == asked.id), key=lambda one: one.sample_index)
    packed, targets = pack_shared_prompts([(asked.prompt, [one.tokens for one in mine])])
    with torch.no_grad():
        logp = model.token_logprobs(model.hidden(packed)[targets.at], targets.chosen, vocab_size_used=5).logp.numpy()
    np.testing.assert_allclose(np.concatenate([one.logp for one in mine]), logp, atol=1e-5)


def test_new_weights_are_seen_at_once_and_old_caches_are_not_read():
    """Published in the middle: what follows is what the new weights say about the whole text so far."""
    policy = new_model(CONFIG, seed=2)
    asked = [request(0, max_tokens=4), request(1, max_tokens=40, samples=3), request(2, max_tokens=40)]
    runner = engine(policy, eos=(), slots=3, context=100)
    stream = generate(runner, asked)
    done = [next(stream)]
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(1.3)
    runner.publish(7)
    done += list(stream)
    prompts = {one.id: one.prompt for one in asked}
    for one in done[1:]:
        assert one.version[-1] == 7
        new = one.version == 7
        packed, targets = pack_shared_prompts([(prompts[one.request_id], [one.tokens])])
        with torch.no_grad():
            logp = policy.token_logprobs(policy.hidden(packed)[targets.at], targets.chosen).logp.numpy()
        np.testing.assert_allclose(one.logp[new], logp[new], atol=2e-5)
    assert any((one.version == 0).any() for one in done[1:])
    assert [one.version.tolist() for one in generate(runner, asked[:1])] == [[7] * 4]


def test_the_engine_holds_no_copy_of_the_weights(model):
    runner = engine(model)
    before = [done.logp for done in generate(runner, [request(0)])]
    with torch.no_grad():
        model.norm.weight.mul_(2.0)
    try:
        runner.publish(1)
        after = [done.logp for done in generate(runner, [request(0)])]
    finally:
        with torch.no_grad():
            model.norm.weight.div_(2.0)
    assert not np.array_equal(before[0][:1], after[0][:1])


def test_completions_come_as_they_finish(model):
    asked = [
        request(0, max_tokens=90, length=4),
        request(1, max_tokens=1, length=4),
        request(2, max_tokens=5, length=4),
    ]
    runner = engine(model, eos=(), slots=3, context=100)
    assert [done.request_id for done in generate(runner, asked)] == ["p1", "p2", "p0"]


def test_an_abandoned_generation_frees_the_engine(model):
    runner = engine(model)
    stream = generate(runner, [request(0, samples=4), request(1, samples=4)])
    next(stream)
    with pytest.raises(DataError, match="being written already"):
        generate(runner, [request(1)])
    assert len(list(generate(runner, [request(2)]))) == 1, "a busy engine takes more"
    stream.close()
    assert runner.next_completion() is None, "nothing is left of it"
    assert len(list(generate(runner, [request(2)]))) == 1


def test_stats(model):
    runner = engine(model, eos=(), slots=4, context=100)
    clock = ManualClock()
    runner.clock = clock
    for _ in generate(runner, [request(0, samples=4, length=7, max_tokens=11)]):
        clock.advance(5.0)  # the caller's own time
    assert (runner.stats.tokens, runner.stats.prefill_tokens, runner.stats.steps) == (44, 7, 10)
    assert runner.stats.occupancy == 1.0
    assert runner.stats.total_s == 0.0
    assert runner.stats.tokens_per_s == 0.0


def test_no_requests(model):
    assert list(generate(engine(model), [])) == []


def test_every_impossible_request_is_named_before_any_work(model):
    bad = [
        request(0, length=190, max_tokens=11),
        request(1),
        request(1),
        Request(id="empty", prompt=np.zeros(0, np.int32), samples=1, sampling=SamplingParams(max_tokens=1)),
        Request(id="range", prompt=np.array([1, 99], np.int32), samples=0, sampling=SamplingParams(max_tokens=1)),
    ]
    with pytest.raises(DataError) as error:
        generate(engine(model), bad)
    assert len(error.value.messages) == 5
    text = str(error.value)
    assert "request 'p0': a prompt of 190 tokens and max_tokens 11 do not fit in 200 positions" in text
    assert "request 'p1': the id is given twice" in text
    assert "request 'empty': the prompt is empty" in text
    assert "request 'range': samples must be at least 1" in text
    assert "token ids run from 1 to 99" in text


def test_every_bad_setting_is_named(model):
    bad = request(0, max_tokens=0, temperature=0.0, top_k=-1, top_p=1.5, min_p=-0.5, stop=("",))
    with pytest.raises(ConfigError) as error:
        generate(engine(model), [bad])
    assert len(error.value.messages) == 6
    assert "greedy = true" in str(error.value)


def test_stop_strings_need_a_decoder(model):
    with pytest.raises(ValueError, match="decode"):
        generate(engine(model), [request(0, stop=("x",))])


def test_broken_weights_stop_the_run_and_poison_nothing():
    policy = new_model(CONFIG, seed=2)
    runner = engine(policy)
    good = [done.tokens.tolist() for done in generate(runner, [request(0)])]
    original = policy.norm.weight.detach().clone()
    with torch.no_grad():
        policy.norm.weight[0] = torch.nan
    with pytest.raises(DivergedError, match="'p0'"):
        list(generate(runner, [request(0)]))
    with torch.no_grad():
        policy.norm.weight.copy_(original)
    assert [done.tokens.tolist() for done in generate(runner, [request(0)])] == good
