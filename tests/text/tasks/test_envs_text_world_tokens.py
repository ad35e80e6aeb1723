"""The environment's tokens as decisions: the mirror of imitation, with any number of turns, tails and weights."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from plain_episodes import plain_episodes

from hone.core.conversation import split_turns, text_after_prompt
from hone.core.episodes import Episodes, Transcript
from hone.core.ragged import offsets_of
from hone.text.tasks.token_places import environment_means, environment_only, environment_positions, with_learned_tokens

PIECES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 9), min_size=1, max_size=4),  # the prompt
        st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=6),  # said in turn
    ),
    min_size=1,
    max_size=5,
)


def dialogues(pieces: list[tuple[list[int], list[list[int]]]], rewards: float = 1.0) -> Episodes:
    """Dialogues whose first, third ... piece after the prompt is the policy's; an even number of them has a tail."""
    tokens: list[int] = []
    at: list[int] = []
    sizes: list[int] = []
    counts: list[int] = []
    for prompt, said in pieces:
        start, mine = len(tokens), len(at)
        tokens += prompt
        for number, piece in enumerate(said):
            if number % 2 == 0:
                at += range(len(tokens), len(tokens) + len(piece))
            tokens += piece
        sizes.append(len(tokens) - start)
        counts.append(len(at) - mine)
    flat, places = np.array(tokens, np.int32), np.array(at, np.int64)
    return plain_episodes(
        offsets_of(np.array(counts)),
        seen=Transcript(tokens=flat, offsets=offsets_of(np.array(sizes)), at=places),
        chosen=flat[places],
        logp=np.full(len(at), -0.5, np.float32),
        version=np.full(len(at), 3, np.int32),
        reward=np.full(len(at), rewards, np.float32),
    )


def slow(pieces: list[tuple[list[int], list[list[int]]]], said: float, world: float) -> list[list[tuple[int, float]]]:
    """(token, weight) of each decision, read off the pieces one by one; dialogues without any are left out."""
    found = [
        [(token, world if n % 2 else said) for n, piece in enumerate(turns) for token in piece] for _, turns in pieces
    ]
    kept = [[(token, weight) for token, weight in one if weight] for one in found]
    return [one for one in kept if one]


@given(pieces=PIECES, said=st.sampled_from([0.0, 0.3, 1.0]), world=st.sampled_from([0.0, 0.5, 1.0]))
def test_decisions_are_the_weighted_tokens_after_the_prompt(
    pieces: list[tuple[list[int], list[list[int]]]], said: float, world: float
) -> None:
    learnt = with_learned_tokens(dialogues(pieces), said=said, world=world)
    found = [
        list(zip(learnt.chosen[a:b].tolist(), learnt.reward[a:b].tolist(), strict=True))
        for a, b in zip(learnt.offsets[:-1].tolist(), learnt.offsets[1:].tolist(), strict=True)
    ]
    expected = [[(token, float(np.float32(weight))) for token, weight in one] for one in slow(pieces, said, world)]
    assert found == expected
    assert (learnt.transcript.tokens[learnt.transcript.at] == learnt.chosen).all()


@given(pieces=PIECES)
def test_said_alone_is_imitation_and_the_world_alone_is_its_mirror(
    pieces: list[tuple[list[int], list[list[int]]]],
) -> None:
    whole = dialogues(pieces)
    whole = replace(whole, turn=np.zeros(whole.decisions, np.int32))  # of decisions that the mirror does not have
    said = with_learned_tokens(whole, said=1.0, world=0.0)
    assert (said.transcript.at == whole.transcript.at).all() and (said.logp == whole.logp).all()
    assert (said.version == 3).all()
    mirror = environment_only(whole)
    assert np.isnan(mirror.logp).all()
    assert mirror.decisions == len(environment_positions(whole))
    prompts = sum(len(prompt) for prompt, _ in pieces)
    assert mirror.decisions + whole.decisions + prompts == len(whole.transcript.tokens)


@given(pieces=PIECES)
def test_means_are_over_each_dialogue(pieces: list[tuple[list[int], list[list[int]]]]) -> None:
    whole = dialogues(pieces)
    values = environment_only(whole).chosen.astype(np.float64)
    expected = [
        np.mean([token for n, piece in enumerate(turns) if n % 2 for token in piece] or [0.0]) for _, turns in pieces
    ]
    assert np.allclose(environment_means(values, whole), expected)


def test_wrong_answers_are_not_imitated_but_their_consequences_are() -> None:
    whole = dialogues([([1], [[2], [3]]), ([4], [[5], [6]])])
    judged = with_learned_tokens(replace(whole, reward=np.array([1.0, 0.0], np.float32)), said=1.0, world=0.5)
    assert judged.chosen.tolist() == [2, 3, 6]
    assert judged.reward.tolist() == [1.0, 0.5, 0.5]


def decode(tokens: np.ndarray) -> str:
    return "".join(map(str, tokens.tolist()))


def test_turns_of_a_dialogue_with_and_without_a_tail() -> None:
    tailed, plain = dialogues([([1, 2], [[3], [4], [5], [6, 7]])]), dialogues([([1], [[3], [4], [5]])])
    turns = (("policy", "3"), ("environment", "4"), ("policy", "5"), ("environment", "67"))
    assert text_after_prompt(tailed, decode) == [("34567", turns)]
    assert text_after_prompt(plain, decode) == [("345", turns[:3])]
    assert text_after_prompt(dialogues([([1], [[3, 4]])]), decode) == [("34", ())]
    assert split_turns(np.array([1, 2, 3]), np.array([1]), decode) == (("policy", "2"), ("environment", "3"))
