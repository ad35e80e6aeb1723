"""Answers that are heard: text only grows, and what was heard is the answer."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.core.generation import Request, SamplingParams, generate
from hone.models.language.tokenizers import byte_tokenizer
from hone.text.evaluate.engine_actor import IncrementalDetokenizer, StreamingEngine, make_engine
from hone.text.evaluate.open_policy import ModelSource, NewModelConfig, open_policy

BYTES = byte_tokenizer()


@given(st.text(max_size=30))
def test_half_a_character_is_never_shown(text):
    growing = IncrementalDetokenizer(BYTES.decode)
    pieces = [growing.add(place, token) for place, token in enumerate(BYTES.encode(text).tolist())]
    shown = "".join(pieces)
    assert BYTES.decode(BYTES.encode(text)).startswith(shown)
    whole = BYTES.decode(BYTES.encode(text))
    assert shown + growing.finish(whole) == whole
    assert text.count("\N{REPLACEMENT CHARACTER}") or "\N{REPLACEMENT CHARACTER}" not in shown


def test_a_token_that_is_drawn_again_is_shown_once():
    growing = IncrementalDetokenizer(BYTES.decode)
    a, b, c = BYTES.encode("abc").tolist()
    assert [growing.add(0, a), growing.add(0, a), growing.add(1, b), growing.add(1, c), growing.add(2, b)] == [
        "", "", "a", "", "c",
    ]  # fmt: skip
    assert growing.finish("acb") == "b"
    assert growing.finish("xyz") == "\nxyz", "what was shown is not the beginning of it"


class Ears:
    def __init__(self):
        self.texts, self.prompts, self.finished, self.calls = {}, None, [], 0

    def on_prompts(self, prompts):
        self.prompts = list(prompts)

    def on_text(self, answer, text):
        assert answer not in self.finished
        self.calls += 1
        self.texts[answer] = self.texts.get(answer, "") + text

    def on_end(self, answer, text):
        self.texts[answer] = self.texts.get(answer, "") + text
        self.finished.append(answer)


@pytest.fixture(scope="module")
def policy():
    tiny = NewModelConfig(
        hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, intermediate_size=24, tokenizer="bytes"
    )
    return open_policy(ModelSource(new=tiny), seed=1, device="cpu", temperature=1.0)


def test_an_engine_is_heard_and_answers_the_same(policy):
    decode = policy.tokenizer.decode
    sampling = SamplingParams(max_tokens=40, stop=("a", "\x7f"))
    requests = [
        Request(id=str(k), prompt=np.array([65, 66 + k], np.int32), samples=3, sampling=sampling) for k in (1, 2)
    ]

    def answers(ears):
        engine = make_engine(policy, slots=4, longest_prompt=2, max_tokens=40, seed=2, runner="torch")
        actor = engine if ears is None else StreamingEngine(engine, decode, ears)
        return engine, {(one.request_id, one.sample_index): one.text(decode) for one in generate(actor, requests)}

    ears = Ears()
    engine, heard = answers(ears)
    _, alone = answers(None)
    assert heard == alone
    assert [ears.texts[k] for k in range(6)] == [alone[str(1 + k // 3), k % 3] for k in range(6)]
    assert sorted(ears.finished) == list(range(6)) and ears.calls > 6, "piece by piece"
    assert engine.observer is None
    listening = generate(StreamingEngine(engine, decode, Ears()), requests)
    next(listening)
    listening.close()
    assert engine.observer is None and not list(generate(engine, [])), "left early: nothing runs, nobody listens"
