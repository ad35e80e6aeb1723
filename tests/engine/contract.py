"""What every engine promises, embedded or a server's client: one suite for all, and what each is let off, by name.

A check is a function of a `Subject`. `EXEMPT` names, for each kind of subject, the checks that it cannot pass, with the
reason; a server's own tests assert that what it is let off is refused in words.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from shared_prompts import pack_shared_prompts

from hone.core.errors import ConfigError, DataError
from hone.core.generation import Completion, Request, SamplingParams, ScoreRequest, generate
from hone.models.language.decoder import Decoder
from hone.models.packing import pack_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """An engine under test."""

    name: str
    model: Decoder
    """The trainer's: what the engine must draw from after a publication."""
    vocab: int
    eos: tuple[int, ...]
    decode: Callable[[Sequence[int]], str]
    make: Callable[..., Any]
    """`make(seed=, slots=, on_publish=)` -> an engine that has published version 0."""
    tolerance: float = 1e-4
    """Largest |recorded - trainer's| log-probability, nats."""
    draws: int = 4000
    """Samples for the test of frequencies."""

    def request(self, number: int, *, samples: int = 1, length: int = 0, **sampling: Any) -> Request:
        """Prompt `number`: `length` (or a few) tokens that depend on the number alone."""
        rng = np.random.default_rng(number)
        drawn = [token for token in rng.integers(0, self.vocab, 64).tolist() if token not in self.eos]
        prompt = np.array(drawn[: length or int(rng.integers(2, 20))], np.int32)
        return Request(
            id=f"p{number}", prompt=prompt, samples=samples, sampling=SamplingParams(**{"max_tokens": 12} | sampling)
        )

    def logp(self, asked: Request, done: Sequence[Completion]) -> np.ndarray:
        """What the trainer's forward gives the tokens of `done`, one after another."""
        packed, targets = pack_shared_prompts([(asked.prompt, [one.tokens for one in done])])
        with torch.no_grad():
            hidden = self.model.hidden(packed)[targets.at]
            return self.model.token_logprobs(
                hidden, targets.chosen, asked.sampling.temperature, vocab_size_used=self.vocab
            ).logp.numpy()

    def change(self, factor: float) -> None:
        """Other weights, in place."""
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(factor)


def by_name(done: Any) -> dict[tuple[str, int], Completion]:
    return {(one.request_id, one.sample_index): one for one in done}


def every_answer_comes_once_and_whole(subject: Subject) -> None:
    asked = [subject.request(number, samples=1 + number % 3, max_tokens=9) for number in range(6)]
    done = list(generate(subject.make(slots=4), asked))
    assert len(done) == sum(one.samples for one in asked)
    assert by_name(done).keys() == {(one.id, number) for one in asked for number in range(one.samples)}
    for one in done:
        assert len(one.tokens) == len(one.logp) == len(one.sampled_logp) == len(one.version) > 0
        assert (one.tokens.dtype, one.logp.dtype, one.version.dtype) == (np.int32, np.float32, np.int32)
        assert one.tokens.min() >= 0
        assert one.tokens.max() < subject.vocab
        assert (one.version == 0).all()


def answers_end_by_the_rules(subject: Subject) -> None:
    asked = [subject.request(number, samples=6, max_tokens=3, temperature=1.5) for number in range(6)]
    done = list(generate(subject.make(slots=8), asked))
    for one in done:
        assert (one.tokens[-1] in subject.eos) == (one.finish_reason == "eos")
        assert not set(one.tokens[:-1].tolist()) & set(subject.eos)
        assert len(one.tokens) == 3 or one.finish_reason == "eos"
    assert "length" in {one.finish_reason for one in done}


def recorded_log_probabilities_are_the_trainers(subject: Subject) -> None:
    gaps = []
    for temperature in (1.0, 0.7):
        asked = subject.request(3, samples=8, max_tokens=20, temperature=temperature)
        done = sorted(generate(subject.make(slots=8), [asked]), key=lambda one: one.sample_index)
        recorded = np.concatenate([one.logp for one in done])
        gaps.append(np.abs(recorded - subject.logp(asked, done)))
        assert all(np.array_equal(one.logp, one.sampled_logp) for one in done)
    assert max(gap.max() for gap in gaps) <= subject.tolerance


def a_draw_is_a_function_of_seed_round_request_and_sample(subject: Subject) -> None:
    asked = [subject.request(number, samples=3, max_tokens=16) for number in range(4)]
    first = by_name(generate(subject.make(slots=8), asked, round=1))
    again = by_name(generate(subject.make(slots=3), asked[::-1], round=1))
    assert all(np.array_equal(one.tokens, again[name].tokens) for name, one in first.items())
    other = by_name(generate(subject.make(slots=8), asked, round=2))
    reseeded = by_name(generate(subject.make(slots=8, seed=1), asked, round=1))
    for changed in (other, reseeded):
        assert any(not np.array_equal(one.tokens, changed[name].tokens) for name, one in first.items())
    assert len({first["p0", number].tokens.tobytes() for number in range(3)}) > 1


def frequencies_are_the_probabilities(subject: Subject) -> None:
    """First tokens against the model's own distribution: chi-squared over the tokens that are expected five times."""
    asked = subject.request(9, samples=subject.draws, max_tokens=1)
    first = np.array([done.tokens[0] for done in generate(subject.make(slots=64), [asked])])
    with torch.no_grad():
        logits = subject.model.logits(subject.model.hidden(pack_rows([asked.prompt]))[-1:])[0, : subject.vocab]
    expected = torch.softmax(logits.double(), dim=-1).numpy() * subject.draws
    kept = expected > 5
    counted = np.bincount(first, minlength=subject.vocab)
    chi2 = float(((counted - expected)[kept] ** 2 / expected[kept]).sum())
    degrees = int(kept.sum())
    assert degrees > 5
    assert chi2 < degrees + 5 * np.sqrt(2 * degrees)  # five standard deviations


def greedy_takes_the_likeliest_token(subject: Subject) -> None:
    asked = subject.request(2, greedy=True, max_tokens=8)
    (done,) = generate(subject.make(), [asked])
    tokens = asked.prompt
    for token in done.tokens:
        with torch.no_grad():
            logits = subject.model.logits(subject.model.hidden(pack_rows([tokens]))[-1:])[0, : subject.vocab]
        assert logits[token] >= logits.max() - 1e-4
        tokens = np.append(tokens, token)
    assert (done.sampled_logp == 0).all()
    np.testing.assert_allclose(done.logp, subject.logp(asked, [done]), atol=subject.tolerance)


def a_stop_string_keeps_the_token_that_completes_it(subject: Subject) -> None:
    plain = subject.request(4, max_tokens=24, temperature=1.5)
    (whole,) = generate(subject.make(), [plain])
    text = subject.decode(whole.tokens.tolist())
    stop = text[3:5]
    first = text.index(stop) + len(stop)
    asked = Request(
        id=plain.id,
        prompt=plain.prompt,
        samples=1,
        sampling=SamplingParams(max_tokens=24, temperature=1.5, stop=("never!", stop)),
    )
    (done,) = generate(subject.make(), [asked])
    assert done.finish_reason == "stop"
    assert done.text(lambda ids: subject.decode(ids.tolist())) == text[:first]
    assert done.tokens.tolist() == whole.tokens[: len(done.tokens)].tolist()


def scores_are_what_was_recorded(subject: Subject) -> None:
    asked = [subject.request(number, max_tokens=12) for number in range(4)]
    engine = subject.make()
    done = by_name(generate(engine, asked))
    texts = [ScoreRequest(prompt=one.prompt, tokens=done[one.id, 0].tokens, sampling=one.sampling) for one in asked]
    for one, scored in zip(asked, engine.score(texts), strict=True):
        np.testing.assert_allclose(scored.logp, done[one.id, 0].logp, atol=subject.tolerance)


def published_weights_draw_from_then_on(subject: Subject) -> None:
    asked = [subject.request(number, samples=2, max_tokens=12) for number in range(3)]
    engine = subject.make()
    old = by_name(generate(engine, asked))
    subject.change(1.25)
    engine.publish(3)
    assert engine.version == 3
    new = by_name(generate(engine, asked))
    assert all((one.version == 3).all() for one in new.values())
    assert any(not np.array_equal(one.logp, old[name].logp) for name, one in new.items())
    for one in asked:
        done = [new[one.id, number] for number in range(2)]
        gap = np.abs(np.concatenate([x.logp for x in done]) - subject.logp(one, done))
        assert gap.max() <= subject.tolerance


def answers_that_run_at_a_publication_go_on_under_the_new_weights(subject: Subject) -> None:
    """`recompute`: every token's log-probability is that of the version it is stamped with."""
    asked = [subject.request(0, max_tokens=1), *(subject.request(n, samples=6, max_tokens=60) for n in (1, 2))]
    engine = subject.make(slots=4, on_publish="recompute")
    stream = generate(engine, asked)
    done = [next(stream)]
    subject.change(1.25)
    engine.publish(1)
    done += list(stream)
    assert len(done) == 13
    prompts = {one.id: one for one in asked}
    for one in done[1:]:
        assert (np.diff(one.version) >= 0).all()
        new = one.version == 1
        expected = subject.logp(prompts[one.request_id], [one])
        np.testing.assert_allclose(one.logp[new], expected[new], atol=subject.tolerance)
    assert any((one.version == 1).any() for one in done)


def a_paused_engine_draws_nothing_until_it_is_resumed(subject: Subject) -> None:
    engine = subject.make()
    engine.pause()
    with pytest.raises(RuntimeError, match="paused"):
        list(generate(engine, [subject.request(0)]))
    engine.resume()
    assert len(list(generate(engine, [subject.request(0)]))) == 1


def a_stream_takes_more_while_it_runs(subject: Subject) -> None:
    engine = subject.make()
    more = [subject.request(1), subject.request(2, samples=2)]

    async def collect() -> list[Completion]:
        engine.submit([subject.request(0, max_tokens=3)])
        found: list[Completion] = []
        async for one in engine.stream():
            found.append(one)
            if more:
                engine.submit([more.pop()])
        return found

    done = asyncio.run(asyncio.wait_for(collect(), timeout=120))
    assert sorted((one.request_id, one.sample_index) for one in done) == [("p0", 0), ("p1", 0), ("p2", 0), ("p2", 1)]


def an_abandoned_generation_frees_the_engine(subject: Subject) -> None:
    engine = subject.make()
    stream = generate(engine, [subject.request(0, samples=4, max_tokens=30), subject.request(1, samples=4)])
    next(stream)
    with pytest.raises(DataError, match="being written already"):
        engine.submit([subject.request(1)])
    assert len(list(generate(engine, [subject.request(2)]))) == 1, "a busy engine takes more"
    stream.close()
    assert engine.next_completion() is None, "nothing is left of it"
    assert len(list(generate(engine, [subject.request(2)]))) == 1
    assert list(generate(engine, [])) == []


def every_impossible_request_is_named_before_any_work(subject: Subject) -> None:
    bad = [
        subject.request(0, max_tokens=100_000),
        subject.request(1),
        subject.request(1),
        Request(id="empty", prompt=np.zeros(0, np.int32), samples=1, sampling=SamplingParams(max_tokens=1)),
        Request(id="range", prompt=np.array([1, 10**6], np.int32), samples=0, sampling=SamplingParams(max_tokens=1)),
    ]
    engine = subject.make()
    with pytest.raises(DataError) as error:
        generate(engine, bad)
    assert len(error.value.messages) == 5
    with pytest.raises(ConfigError, match="max_tokens must be at least 1"):
        generate(engine, [subject.request(0, max_tokens=0, temperature=-1.0)])


def time_and_tokens_are_counted(subject: Subject) -> None:
    engine = subject.make()
    done = list(generate(engine, [subject.request(0, samples=3)]))
    assert engine.stats.tokens == sum(len(one.tokens) for one in done)
    assert engine.stats.prefill_tokens > 0
    assert engine.stats.total_s > 0
    assert engine.stats.tokens_per_s > 0


def company_changes_no_bit(subject: Subject) -> None:
    asked = [subject.request(number, samples=2, max_tokens=12) for number in range(8)]
    together = by_name(generate(subject.make(slots=16), asked))
    alone = by_name(done for one in asked for done in generate(subject.make(slots=1), [one]))
    assert all(np.array_equal(one.logp, alone[name].logp) for name, one in together.items())


def truncated_draws_record_both_distributions(subject: Subject) -> None:
    asked = subject.request(3, samples=4, top_k=3)
    done = sorted(generate(subject.make(), [asked]), key=lambda one: one.sample_index)
    whole = np.concatenate([one.logp for one in done])
    np.testing.assert_allclose(whole, subject.logp(asked, done), atol=subject.tolerance)
    assert (whole < np.concatenate([one.sampled_logp for one in done])).all()
    assert all(one.sampling_mask is not None for one in done)


def greedy_answers_have_log_probabilities_at_any_temperature(subject: Subject) -> None:
    asked = subject.request(2, greedy=True, temperature=0.5, max_tokens=4)
    (done,) = generate(subject.make(), [asked])
    np.testing.assert_allclose(done.logp, subject.logp(asked, [done]), atol=subject.tolerance)


CHECKS: dict[str, Callable[[Subject], None]] = {
    check.__name__: check
    for check in (
        every_answer_comes_once_and_whole,
        answers_end_by_the_rules,
        recorded_log_probabilities_are_the_trainers,
        a_draw_is_a_function_of_seed_round_request_and_sample,
        frequencies_are_the_probabilities,
        greedy_takes_the_likeliest_token,
        a_stop_string_keeps_the_token_that_completes_it,
        scores_are_what_was_recorded,
        published_weights_draw_from_then_on,
        answers_that_run_at_a_publication_go_on_under_the_new_weights,
        a_paused_engine_draws_nothing_until_it_is_resumed,
        a_stream_takes_more_while_it_runs,
        an_abandoned_generation_frees_the_engine,
        every_impossible_request_is_named_before_any_work,
        time_and_tokens_are_counted,
        company_changes_no_bit,
        truncated_draws_record_both_distributions,
        greedy_answers_have_log_probabilities_at_any_temperature,
    )
}

_SERVER = {
    "company_changes_no_bit": "a server's sums depend on what it computes beside them; each step measures it",
    "truncated_draws_record_both_distributions": "a server reports one log-probability a token: truncation is refused",
    "greedy_answers_have_log_probabilities_at_any_temperature": (
        "greedy answers are asked at temperature 0, for which a server reports temperature 1: others are refused"
    ),
}
EXEMPT: dict[str, dict[str, str]] = {"embedded": {}, "vllm": _SERVER, "sglang": _SERVER}
"""kind -> check -> why it is let off."""


def promised(kind: str) -> list[str]:
    """The checks that a kind of engine has to pass."""
    return [name for name in CHECKS if name not in EXEMPT[kind]]
