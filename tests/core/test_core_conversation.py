"""Transcripts of several turns against lists that are written token by token."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_episodes import plain_episodes

from hone.core.conversation import TranscriptBuilder, build_columns, text_after_prompt
from hone.core.generation import Completion
from hone.core.ragged import RaggedArray, offsets_of

TOKENS = st.lists(st.integers(0, 99), max_size=4)
ANSWER = st.lists(st.integers(0, 99), min_size=1, max_size=4)
CONVERSATION = st.tuples(TOKENS, ANSWER, st.lists(st.tuples(TOKENS, ANSWER), max_size=3), st.booleans())


def ints(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


def answer_of(tokens: list[int], *, masked: bool = False, finish: str = "eos") -> Completion:
    """Log-probabilities are functions of the tokens, so that a wrong order shows."""
    mask = RaggedArray(values=ints(tokens), offsets=offsets_of(np.ones(len(tokens), np.int64)))
    return Completion(
        request_id="p", sample_index=0, tokens=ints(tokens), logp=-ints(tokens).astype(np.float32),
        sampled_logp=-ints(tokens) / np.float32(2), version=ints(tokens) + 7, finish_reason=finish,
        sampling_mask=mask if masked else None,
    )  # fmt: skip


@given(st.lists(CONVERSATION, min_size=1, max_size=5))
def test_columns_are_what_lists_give(conversations: list) -> None:
    built, whole, at, offsets, ends, chosen, logp, kept = [], [], [], [0], [], [], [], []
    for prompt, first, later, masked in conversations:
        one = TranscriptBuilder(ints(prompt))
        whole += prompt
        for number, (between, tokens) in enumerate([([], first), *later]):
            if number:
                one.append_environment(ints(between))
            one.append_sampled(answer_of(tokens, masked=masked))
            whole += between
            for token in tokens:
                at.append(len(whole))
                whole.append(token)
                chosen.append(token)
                logp.append(-token / 2 if masked else -token)
                kept.append([token] if masked else [])
            ends.append(len(chosen) - 1)
        offsets.append(len(chosen))
        built.append(one)
        assert one.tokens.tolist() == whole[len(whole) - len(one.tokens) :]
        assert one.turns == 1 + len(later)
    columns = build_columns(built)
    assert columns.transcript.tokens.tolist() == whole
    assert columns.transcript.at.tolist() == at
    assert columns.transcript.tokens[columns.transcript.at].tolist() == columns.chosen.tolist() == chosen
    assert np.diff(columns.transcript.offsets).tolist() == [len(one.tokens) for one in built]
    assert columns.offsets.tolist() == offsets
    assert columns.turn_ends.tolist() == ends
    assert np.diff(columns.turn_offsets).tolist() == [one.turns for one in built]
    assert columns.logp.tolist() == logp
    assert columns.version.tolist() == [token + 7 for token in chosen]
    if any(kept):
        rows = columns.transcript.kept
        assert rows is not None
        assert [rows.values[a:b].tolist() for a, b in zip(rows.offsets, rows.offsets[1:], strict=False)] == kept
    else:
        assert columns.transcript.kept is None


def test_turns_alternate() -> None:
    one = TranscriptBuilder(ints([1]))
    with pytest.raises(ValueError, match="need an answer"):
        one.append_environment(ints([2]))
    one.append_sampled(answer_of([3], finish="length"))
    assert build_columns([one]).truncated.tolist() == [True]
    with pytest.raises(ValueError, match="two answers"):
        one.append_sampled(answer_of([4]))


@given(st.lists(CONVERSATION, min_size=1, max_size=4))
def test_turns_are_read_back_from_episodes(conversations: list) -> None:
    """The whole text after the prompt, and who wrote which part; answers that nothing separates are one."""
    built, expected = [], []
    for prompt, first, later, _ in conversations:
        one = TranscriptBuilder(ints([0, *prompt]))
        turns = [("policy", first)]
        one.append_sampled(answer_of(first))
        for between, tokens in later:
            one.append_environment(ints(between))
            one.append_sampled(answer_of(tokens))
            if between:
                turns += [("environment", between), ("policy", tokens)]
            else:
                turns[-1] = ("policy", turns[-1][1] + tokens)
        built.append(one)
        whole = [token for _, tokens in turns for token in tokens]
        expected.append((str(whole), tuple((who, str(said)) for who, said in turns) if len(turns) > 1 else ()))
    columns = build_columns(built)
    missing = np.zeros(len(built))
    episodes = plain_episodes(
        columns.offsets,
        seen=columns.transcript,
        chosen=columns.chosen,
        logp=columns.logp,
        version=columns.version,
        terminated=~columns.truncated,
        truncated=columns.truncated,
        score=missing,
        status=missing.astype(np.uint8),
    )
    assert text_after_prompt(episodes, lambda tokens: str(tokens.tolist())) == expected
