"""Grammars of answers: masks against a slow check, log-probabilities of engine and trainer, and mates without one."""

import json
from dataclasses import replace

import jsonschema
import numpy as np
import pytest
import regex
import tokenizers as hf
import torch
from engines import by_name, engine, same

from hone.core.errors import ConfigError
from hone.core.generation import Completion, Grammar, Request, SamplingParams, generate
from hone.engine.grammar import GrammarCompiler, named_grammar
from hone.engine.session import TokenizerRules
from hone.engine.torch_runner import sample_tokens
from hone.engine.work import SamplerInput
from hone.models.language.config import ModelConfig
from hone.models.language.init import new_model
from hone.models.language.token_logprobs import SamplingMask
from hone.models.language.token_policy import TokenPolicy
from hone.models.language.tokenizers import Tokenizer, byte_tokenizer, character_tokenizer
from hone.models.packing import pack_rows

RUNNERS = ("torch", "native")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"enum": ["Ann", "Bob"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def bpe() -> Tokenizer:
    """Bytes, and tokens of several characters that cross the borders of a grammar's terms."""
    bytes_ = byte_tokenizer()
    vocab = json.loads(bytes_.backend.to_str())["model"]["vocab"]
    merges = [("1", "2"), ("12", ","), ("a", "b"), ("ab", "c"), ('"', ":"), ("{", '"'), ("t", "r"), ("}", "}")]
    backend = hf.Tokenizer(
        hf.models.BPE({**vocab, **{a + b: len(vocab) + n for n, (a, b) in enumerate(merges)}}, merges)
    )
    backend.pre_tokenizer, backend.decoder = (
        hf.pre_tokenizers.ByteLevel(add_prefix_space=False),
        hf.decoders.ByteLevel(),
    )
    backend.add_special_tokens([hf.AddedToken(one, special=True, normalized=False) for one in ("<pad>", "<eos>")])
    return replace(bytes_, backend=backend, files={})


TOKENIZERS = {
    "bytes": byte_tokenizer,
    "bpe": bpe,
    "characters": lambda: character_tokenizer(["".join(map(chr, (10, *range(32, 127))))]),
}


def opened(tokenizer: Tokenizer, *, kind: str = "torch", grammars: bool = True, **changes):
    """A random policy and an engine over it."""
    config = ModelConfig(
        family="qwen3", vocab_size=tokenizer.size, hidden_size=16, intermediate_size=24, layers=1, heads=2, kv_heads=1,
        head_dim=8, max_positions=512,
    )  # fmt: skip
    policy = TokenPolicy(new_model(config, seed=5), tokenizer)
    made = engine(policy.decoder, kind=kind, vocab=tokenizer.size, eos=tokenizer.eos_ids, **changes)
    compiler = GrammarCompiler(tokenizer.size, tokenizer.eos_ids, tokenizer.backend.to_str) if grammars else None
    made._text = TokenizerRules(eos=tokenizer.eos_ids, vocab=tokenizer.size, grammars=compiler)
    return policy, made


def asked(name: str, grammar: Grammar | None, *, samples: int = 4, **sampling) -> Request:
    settings = SamplingParams(**{"max_tokens": 40, "grammar": grammar} | sampling)
    return Request(id=name, prompt=np.array([40, 41, 42], np.int32), samples=samples, sampling=settings)


def left_at(done: Completion, place: int, size: int) -> set[int]:
    """The tokens that a completion says were left at one draw."""
    assert done.sampling_mask is not None
    ids = done.sampling_mask.values[slice(*done.sampling_mask.offsets[place : place + 2])].tolist()
    return set(range(size)) - set(ids) if ids[0] == -1 else set(ids)


PATTERNS = ("[0-9]{1,3}(,[0-9]{1,3}){0,2}", "(abc|ab|a)+x?", '\\{"k": (true|false)\\}', "[^a-m]{2,5}")


@pytest.mark.parametrize("kind", RUNNERS)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_masks_equal_a_slow_check_and_answers_match(name, kind):
    tokenizer = TOKENIZERS[name]()
    _, made = opened(tokenizer, kind=kind)
    texts = {token: tokenizer.decode([token], special=True) for token in range(tokenizer.size)}
    special = {token for token, one in tokenizer.backend.get_added_tokens_decoder().items() if one.special}
    requests = [asked(pattern, Grammar(kind="regex", text=pattern), samples=2) for pattern in PATTERNS]
    draws = 0
    for done in generate(made, requests):
        pattern = regex.compile(done.request_id)
        for place in range(len(done.tokens)):
            before = tokenizer.decode(done.tokens[:place])
            if "\ufffd" in before:
                break  # a character of several bytes is half drawn: the slow check knows whole ones
            expected = {
                token
                for token, text in texts.items()
                if token not in special and "\ufffd" not in text and pattern.fullmatch(before + text, partial=True)
            }
            if pattern.fullmatch(before):
                expected.add(tokenizer.eos_id)
            left = {one for one in left_at(done, place, tokenizer.size) if "\ufffd" not in texts[one]}
            assert left == expected, (before, {texts[one] for one in left ^ expected})
            draws += 1
        if done.finish_reason == "eos":
            assert pattern.fullmatch(tokenizer.decode(done.tokens))
    assert draws > 20


@pytest.mark.parametrize("name", TOKENIZERS)
def test_answers_that_end_by_themselves_are_valid_by_their_schema(name):
    tokenizer = TOKENIZERS[name]()
    _, made = opened(tokenizer, slots=48)
    grammars = {
        "schema": Grammar(
            kind="json_schema", text=json.dumps({**SCHEMA, "x-guidance": {"whitespace_flexible": False}})
        ),
        "lark": Grammar(kind="lark", text='start: "(" (start | "a" | "b")* ")"'),
        "gbnf": Grammar(kind="lark", text='root ::= "(" item* ")"\nitem ::= "a" | "b" | root'),
    }
    ended = 0
    requests = [asked(name, grammar, samples=8, max_tokens=60) for name, grammar in grammars.items()]
    greedy = [replace(one, id=f"greedy {one.id}", sampling=replace(one.sampling, greedy=True)) for one in requests]
    for done in generate(made, [*requests, *greedy]):
        if done.finish_reason != "eos":
            assert len(done.tokens) == 60
            continue
        ended += 1
        text = tokenizer.decode(done.tokens)
        if "schema" in done.request_id:
            jsonschema.validate(json.loads(text), SCHEMA)
        else:
            while (shorter := regex.sub(r"\([ab]*\)", "", text)) != text:
                text = shorter
            assert text == ""
        assert (done.sampling_mask is None) == done.request_id.startswith("greedy")
    assert ended >= 8


@pytest.mark.parametrize("kind", RUNNERS)
def test_the_trainer_computes_the_log_probabilities_under_the_mask(kind):
    tokenizer = bpe()
    policy, made = opened(tokenizer, kind=kind)
    pattern = Grammar(kind="regex", text=PATTERNS[0])
    everything = Grammar(kind="regex", text='[^"]*')  # nearly all tokens are left: the mask lists those that are not
    requests = [asked("digits", pattern), asked("text", everything, top_k=30), asked("most", everything)]
    for done in generate(made, requests):
        mask, prompt = done.sampling_mask, np.array([40, 41, 42], np.int32)
        assert (done.request_id == "most") == bool((mask.values == -1).any())
        packed = pack_rows([np.concatenate([prompt, done.tokens])[:-1]])
        at, chosen = torch.arange(2, 2 + len(done.tokens)), torch.from_numpy(done.tokens).long()
        replayed = SamplingMask(ids=torch.from_numpy(mask.values).long(), offsets=torch.from_numpy(mask.offsets))
        under = policy.token_logprobs(packed, at, chosen, sampling_mask=replayed).logp.detach().numpy()
        whole = policy.token_logprobs(packed, at, chosen).logp.detach().numpy()
        np.testing.assert_allclose(done.sampled_logp, under, atol=2e-5)
        np.testing.assert_allclose(done.logp, whole, atol=2e-5)
        logits = policy.decoder.logits(policy.decoder.hidden(packed)[at]).detach().double().log_softmax(-1).numpy()
        by_hand = [
            row[token] - np.logaddexp.reduce(row[sorted(left_at(done, place, tokenizer.size))])
            for place, (row, token) in enumerate(zip(logits, done.tokens, strict=True))
        ]
        np.testing.assert_allclose(done.sampled_logp, by_hand, atol=2e-5)


@pytest.mark.parametrize("kind", RUNNERS)
def test_mates_and_memory_change_no_bit(kind):
    tokenizer = byte_tokenizer()
    plain = [
        asked("plain", None, samples=3),
        asked("cut", None, samples=2, top_p=0.8),
        asked("best", None, greedy=True),
    ]
    bound = [
        asked("bound", Grammar(kind="regex", text=PATTERNS[0])),
        asked("more", Grammar(kind="regex", text="[a-c]*")),
    ]
    alone = by_name(generate(opened(tokenizer, kind=kind)[1], plain))
    mixed = by_name(generate(opened(tokenizer, kind=kind)[1], [*bound, *plain]))
    if opened(tokenizer, kind=kind)[1].exact:
        assert all(same(mixed[key], one) for key, one in alone.items())
    else:
        assert all(np.array_equal(mixed[key].tokens, one.tokens) for key, one in alone.items())
    for key, one in alone.items():
        assert (one.sampling_mask is None) == (key[0] != "cut")
    scarce = opened(tokenizer, kind=kind, pages=14, context=200, slots=6)[1]
    short = by_name(generate(scarce, [*bound, *plain]))
    assert all(np.array_equal(short[key].tokens, one.tokens) for key, one in mixed.items())
    assert scarce.stats.preempted > 0
    for key, one in mixed.items():
        if one.sampling_mask is not None:
            np.testing.assert_array_equal(short[key].sampling_mask.values, one.sampling_mask.values)


def test_a_grammar_that_cannot_be_followed_is_refused():
    tokenizer = byte_tokenizer()
    _, made = opened(tokenizer)
    for grammar, told in (
        (Grammar(kind="regex", text="[0-9"), "the regex of an answer cannot be used"),
        (Grammar(kind="lark", text="start: foo"), 'unknown name: "foo"'),
        (Grammar(kind="lark", text='root ::= ("a"'), "the grammar of an answer cannot be used"),
        (Grammar(kind="json_schema", text='{"type": "strin"}'), "Invalid type: strin"),
        (Grammar(kind="json_schema", text="{"), "is not JSON"),
    ):
        with pytest.raises(ConfigError, match=regex.escape(told)):
            made.submit([asked("a", grammar)])
    assert not made.has_requests()
    with pytest.raises(ConfigError, match="knows no grammars"):
        opened(tokenizer, grammars=False)[1].submit([asked("a", Grammar(kind="regex", text="a"))])
    _, made = opened(digits := character_tokenizer(["0123"]))
    start = np.array([3], np.int32)
    with pytest.raises(ConfigError, match="regex of an answer cannot be used: no token of the vocabulary continues"):
        made.submit([replace(asked("a", Grammar(kind="regex", text="z[0-9]")), prompt=start)])
    # No token spells the third character: the answer ends there, and counts as cut off.
    two = asked("a", Grammar(kind="regex", text="[0-3]{2}z"), samples=1)
    (done,) = generate(made, [replace(two, prompt=start)])
    assert (len(done.tokens), done.tokens[-1], done.finish_reason) == (3, digits.eos_id, "length")


def test_allowed_tokens_by_hand():
    p = torch.tensor([0.5, 0.125, 0.25, 0.125])
    draws = SamplerInput(
        token_index=np.arange(6, dtype=np.int32),
        forced_token=np.array([-1, -1, -1, -1, 0, -1], np.int32),
        uniform=np.array([0.3, 0.34, 0.9, 0.6, 0.0, 0.2]),
        temperature=np.ones(6, np.float32),
        top_k=np.array([0, 0, 1, 0, 0, 0], np.int32),
        top_p=np.ones(6, np.float32),
        min_p=np.zeros(6, np.float32),
        greedy=np.array([False, False, False, True, False, False]),
        allowed=np.array([[0b0110]] * 5 + [[255]], np.uint8),
    )
    found = sample_tokens(p.log().expand(6, -1), draws)
    assert found.token.tolist() == [1, 2, 2, 2, 0, 0]
    np.testing.assert_allclose(
        np.exp(found.sampled_logp), [1 / 3, 2 / 3, 1, 1, 0, 1 / 2], atol=1e-6
    )  # 1/8 and 1/4 share what is left; the given token is not allowed; the last row has no grammar
    np.testing.assert_allclose(np.exp(found.logp), p[found.token].numpy(), atol=1e-6)
    assert np.unpackbits(found.sampling_mask_bits, axis=1, bitorder="little")[:, :4].tolist()[:3] == [
        [0, 1, 1, 0], [0, 1, 1, 0], [0, 0, 1, 0],
    ]  # fmt: skip


def test_a_grammar_that_is_no_file_is_told_with_its_key() -> None:
    with pytest.raises(ConfigError, match=r"^evaluation\.grammar = 'regex:a' is no file that can be read"):
        named_grammar("regex:a", key="evaluation.grammar")
    assert named_grammar("/a+/", key="rollout.grammar").text == "a+"
