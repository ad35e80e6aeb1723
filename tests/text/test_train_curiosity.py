"""Curiosity: surprise is a world model's loss, it falls with what is learnt, and it is paid beside the score."""

from pathlib import Path

import numpy as np
import pytest
from plain_episodes import plain_episodes
from recipe_runs import job_of, lay_out, settings

from hone.core.credit import NO_VALUES
from hone.core.episodes import Episodes, ScoreStatus, Transcript
from hone.credit.group import group_relative
from hone.credit.shaping import with_curiosity
from hone.run.store.codec import read_state, write_state
from hone.text.world_model import CuriousLearner, WorldModel


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_out(tmp_path, monkeypatch)
    return tmp_path


def dialogues(pieces: list[list[list[int]]]) -> Episodes:
    """Prompt, answer and the environment in turn; an even number of pieces ends with an answer."""
    sizes, tokens, at, lengths = [0], list[int](), list[int](), [0]
    for one in pieces:
        for number, piece in enumerate(one):
            at += range(len(tokens), len(tokens) + len(piece)) if number % 2 else []
            tokens += piece
        sizes.append(len(tokens))
        lengths.append(len(at))
    flat, chosen, count = np.array(tokens, np.int32), np.array(at, np.int64), len(pieces)
    return plain_episodes(
        np.array(lengths),
        seen=Transcript(tokens=flat, offsets=np.array(sizes), at=chosen),
        chosen=flat[chosen],
        logp=np.full(len(at), -1.0, np.float32),
        group=np.arange(count) // 2,
        score=np.arange(count, dtype=np.float64) % 2,
    )


KNOWN = dialogues([[[1], [2], [3, 3]], [[1], [3], [2, 2], [4]], [[1], [2, 2]], [[2], [1], [4], [1], [4]]])


def world_model(place: Path) -> WorldModel:
    learner = job_of("curious_grpo", settings("curious_grpo", steps=60)).recipe.learner
    assert isinstance(learner, CuriousLearner)
    return learner.world_model


def test_surprise_is_the_mean_loss_of_the_environments_tokens_and_falls_as_they_are_learnt(place: Path) -> None:
    model = world_model(place)
    before = model.surprise(KNOWN)
    told = model.update(KNOWN)
    assert before[2] == 0.0 and (before[[0, 1, 3]] > 0).all()
    assert told["world_model/tokens"] == 6.0
    assert told["world_model/nll_nats"] == pytest.approx(before[[0, 1, 3]].mean(), rel=1e-5)
    for _ in range(40):
        model.update(KNOWN)
    after = model.surprise(KNOWN)
    assert (after[[0, 1, 3]] < 0.5 * before[[0, 1, 3]]).all()
    assert model.pop_notes() == []


def test_a_world_model_that_is_saved_goes_on_bit_for_bit(place: Path) -> None:
    straight = world_model(place)
    straight.update(KNOWN)
    write_state(place, straight.state())
    resumed = world_model(place)
    resumed.restore(read_state(place))
    for model in (straight, resumed):
        model.update(KNOWN)
    assert straight.surprise(KNOWN).tobytes() == resumed.surprise(KNOWN).tobytes()
    assert straight.learner.policy.fingerprint() == resumed.learner.policy.fingerprint()


def test_an_environment_that_says_nothing_is_told_once(place: Path) -> None:
    model, silent = world_model(place), KNOWN.take(np.array([2]))
    assert model.update(silent) == model.update(silent) == {"world_model/tokens": 0.0}
    (note,) = model.pop_notes()
    assert note.startswith("the environment says nothing after the policy's first turn")


def test_the_bonus_by_hand() -> None:
    """Scores 0, 1, 0, 1; surprises of 2, 0, 9 and 1 nats, of which at most 5 pay 0.1 each."""
    surprises = np.array([2.0, 0.0, 9.0, 1.0])
    found = with_curiosity(
        KNOWN, NO_VALUES, credit=lambda e, v: group_relative(e, v, scale="none"),
        surprise=lambda _: surprises, weight=0.1, max_nats=5.0,
    )  # fmt: skip
    scores = [0.2, 1.0, 0.5, 1.1]
    expected = [scores[n] - np.mean(scores[n // 2 * 2 : n // 2 * 2 + 2]) for n in range(4)]
    assert found.advantage[KNOWN.offsets[:-1]] == pytest.approx(expected)
    assert (found.metrics["curiosity/surprise_nats"], found.metrics["curiosity/surprise_max"]) == (3.0, 9.0)


def test_a_missing_score_stays_missing() -> None:
    columns = {**KNOWN.columns(), "seen": KNOWN.seen, "status": np.array([2, 0, 0, 0], np.uint8)}
    lost = Episodes.from_columns(KNOWN.offsets, columns)
    found = with_curiosity(
        lost, NO_VALUES, credit=group_relative, surprise=lambda e: np.ones(len(e)), weight=1.0, max_nats=5.0
    )
    assert lost.status[0] == ScoreStatus.ERROR
    assert (found.advantage[:2] == 0).all() and np.isfinite(found.advantage).all()
