"""Dialogues of several rows: advantages and loss weights count each of them once."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain_episodes import plain_episodes

from hone.core.credit import NO_VALUES, Credits
from hone.core.episodes import Episodes, Transcript, concatenate
from hone.core.ragged import offsets_of
from hone.credit.group import group_relative, leave_one_out, length_baseline
from hone.credit.returns import gae
from hone.credit.turns import dialogues_as_one
from hone.objectives.weights import (
    PromptScheme,
    constant_length,
    prompt_mean,
    sequence_mean,
    token_mean,
)
from hone.text.rows import TokenLayout


def episodes_of(dialogues: list[list[int]], groups: list[int], scores: list[float]) -> Episodes:
    """Dialogues whose rows have so many decisions; each row has a prompt of 2 tokens, and no row begins as another."""
    lengths = np.array([length for rows in dialogues for length in rows], np.int64)
    counts = np.array([len(rows) for rows in dialogues])
    of = np.repeat(np.arange(len(dialogues)), counts)
    part = np.concatenate([np.arange(count) for count in counts])
    starts = offsets_of(lengths + 2)
    at = np.concatenate([start + 2 + np.arange(length) for start, length in zip(starts, lengths, strict=False)])
    last = part == counts[of] - 1
    reward = np.zeros(int(lengths.sum()), np.float32)
    reward[np.cumsum(lengths)[last] - 1] = scores
    tokens = (np.arange(starts[-1]) * 7 % 31).astype(np.int32)
    tokens[starts[:-1]] = np.arange(len(lengths)) + 40
    return plain_episodes(
        offsets_of(lengths),
        seen=Transcript(tokens=tokens, offsets=starts, at=at.astype(np.int64)),
        chosen=tokens[at],
        reward=reward,
        group=np.array(groups, np.int64)[of],
        terminated=last,
        score=np.array(scores)[of],
        id=of.astype(np.int64),
        part=part.astype(np.int64),
    )


def joined(episodes: Episodes) -> Episodes:
    whole = episodes.join_rows()
    return replace(whole, id=None, seen=replace(whole.transcript, rows=None))


DIALOGUES = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=3), min_size=4, max_size=4)


@pytest.mark.parametrize(
    "credit", [group_relative, leave_one_out, length_baseline, partial(gae, discount=0.9, gae_lambda=0.8)]
)
@given(dialogues=DIALOGUES, scores=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4))
def test_a_dialogue_of_rows_is_judged_as_the_whole(credit, dialogues, scores) -> None:
    rows = episodes_of(dialogues, [0, 0, 1, 1], scores)
    values = NO_VALUES
    if isinstance(credit, partial):
        values = replace(values, value=np.linspace(0, 1, rows.decisions, dtype=np.float32))
        values = replace(values, final=np.zeros(len(rows), np.float32))
    whole = values if not len(values.final) else replace(values, final=np.zeros(4, np.float32))
    found, expected = dialogues_as_one(rows, values, credit=credit), credit(joined(rows), whole)
    np.testing.assert_array_equal(found.advantage, expected.advantage)
    assert found.metrics == expected.metrics


def test_rows_would_be_judged_otherwise() -> None:
    """Three rows of a winner and one of a loser: as rows the mean is 0.75, as dialogues it is 0.5."""
    rows = episodes_of([[1, 1, 1], [1]], [0, 0], [1.0, 0.0])
    credit = partial(group_relative, scale="none")
    assert dialogues_as_one(rows, NO_VALUES, credit=credit).advantage.tolist() == [0.5, 0.5, 0.5, -0.5]
    assert group_relative(rows, NO_VALUES, scale="none").advantage.tolist() == [0.25, 0.25, 0.25, -0.75]


@pytest.mark.parametrize(
    "scheme", [token_mean, sequence_mean, partial(constant_length, length=7), PromptScheme(prompt_mean)]
)
@given(dialogues=DIALOGUES)
def test_a_dialogue_of_rows_weighs_as_the_whole(scheme, dialogues) -> None:
    rows = episodes_of(dialogues, [0, 0, 1, 1], [0.0, 1.0, 0.0, 1.0])
    ones = Credits(advantage=np.ones(rows.decisions, np.float32))
    weights = [TokenLayout(scheme=scheme)(one, ones).weighted() for one in (rows, joined(rows))]
    each = [np.repeat(one.sequence_weight, one.episodes.lengths) for one in weights]
    np.testing.assert_array_equal(each[0], each[1])


@given(dialogues=DIALOGUES)
def test_the_rows_of_a_dialogue_stay_in_one_minibatch(dialogues) -> None:
    rows = episodes_of(dialogues, [0, 0, 1, 1], [0.0, 1.0, 0.0, 1.0])
    laid = TokenLayout(scheme=sequence_mean)(rows, Credits(advantage=np.ones(rows.decisions, np.float32)))
    if all(len(one) == 1 for one in dialogues):
        assert len(laid) <= 4
        return
    assert len(laid) == 4
    for place, one in enumerate(dialogues):
        assert laid.take(np.array([place])).episodes.id.tolist() == [place] * len(one)


def test_pieces_with_and_without_parts_do_not_mix() -> None:
    rows = episodes_of([[1], [2]], [0, 0], [1.0, 0.0])
    assert concatenate([rows, rows]).part.tolist() == [0, 0, 0, 0]
