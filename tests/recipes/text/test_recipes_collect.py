"""Collecting: what is written is what was drawn, a resume writes the same files, labels of steps are exact shares."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recipe_runs import files, job_of, lay_out, restored, saved, settings

from hone.core.episodes import Episodes
from hone.core.errors import ConfigError, DataError
from hone.core.generation import Request, generate
from hone.run.job import TrainingJob
from hone.run.loop import train
from hone.sources.live import LiveSource
from hone.text.answer_data import AnswerTaskConfig, encode_answers, imitation_episodes, read_answers
from hone.text.collecting.continuations import StepContinuations
from hone.text.tasks.collection import FOLDER, read_collection
from hone.text.trained_spans import DataConfig

STEPS = {"continue_from": "steps", "separator": "a", "continuations": 3}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    lay_out(tmp_path, monkeypatch)
    return tmp_path


def tables(steps: int, *, rollout: dict[str, Any] | None = None, **collect: Any) -> dict[str, Any]:
    """Questions of one letter, all of them in each step, and answers of up to eight."""
    sizes = {"max_tokens": 8, "samples_per_prompt": 4} | (rollout or {})
    made = settings("grpo", steps=steps, full=False, rollout=sizes) | {"recipe": "collect", "collect": collect}
    return {name: table for name, table in made.items() if name not in ("learner", "algorithm")}


def written(job: TrainingJob[Any], folder: Path, *, steps: int, first: int = 1) -> list[Episodes]:
    """Run a job as a run would, and return the episodes of its steps."""
    found: list[Episodes] = []

    def report(step: int, episodes: Episodes, credits: Any, metrics: Any) -> None:
        told = {**metrics, **job.recipe.source.metrics()}
        assert [name for name, value in told.items() if not np.isfinite(value)] == []
        job.write_episodes(folder, step, episodes)
        found.append(episodes)

    train(job.recipe, steps=steps, callback=report, first_step=first)
    return found


@pytest.mark.parametrize("collect", [{}, STEPS])
def test_a_resumed_run_writes_the_same_files_and_nothing_is_learnt(place: Path, collect: dict[str, Any]) -> None:
    straight = job_of("collect", tables(3, **collect))
    before = straight.recipe.learner.policy.fingerprint()
    written(straight, place / "straight", steps=3)
    assert straight.recipe.learner.policy.fingerprint() == before
    halfway = job_of("collect", tables(3, **collect))
    written(halfway, place / "resumed", steps=2)
    saved(halfway, place / "checkpoint")
    resumed = restored(job_of("collect", tables(3, **collect)), place / "checkpoint")
    written(resumed, place / "resumed", steps=3, first=3)
    assert files(place / "resumed") == files(place / "straight")
    assert len(files(place / "straight" / FOLDER)) == 3


def test_what_is_read_is_what_was_drawn(place: Path) -> None:
    job = job_of("collect", tables(2))
    pieces = written(job, place / "run", steps=2)
    examples = read_collection(str(place / "run"))
    assert sorted(str(example.prompt) for example in examples) == ["a", "b", "c", "d"]
    assert all(example.columns == {"answer": chr(ord(str(example.prompt)) + 1)} for example in examples)
    assert all(len(example.answers) == 8 for example in examples)  # both epochs
    drawn = {
        (piece.transcript.tokens[start:end].tobytes(), piece.logp[own].tobytes(), float(piece.score[place_]))
        for piece in pieces
        for place_, (start, end) in enumerate(
            zip(piece.transcript.offsets[:-1], piece.transcript.offsets[1:], strict=True)
        )
        for own in [slice(piece.offsets[place_], piece.offsets[place_ + 1])]
    }
    read = {
        (one.tokens.tokens.tobytes(), one.tokens.logp.tobytes(), one.score)
        for example in examples
        for one in example.answers
    }
    assert read == drawn


def test_tokens_are_never_encoded_again(place: Path) -> None:
    """A scorer, a preference loss and imitation see the tokens that were drawn, though their text has another encoding:
    the end of sequence in the middle of a text, say."""
    job = job_of("collect", tables(2))
    (first, _) = written(job, place / "run", steps=2)
    tokenizer = job.recipe.learner.policy.tokenizer
    task = AnswerTaskConfig(source=str(place / "run"), answers={"min_score": -1.0, "pairs": "all"})
    log, notes = encode_answers(read_answers(task, "outcome"), task, tokenizer, context=16, kind="outcome")
    assert len(log.episodes) == 2 * len(first)
    assert notes == []
    sequences = {
        first.transcript.tokens[start:end].tobytes()
        for start, end in zip(first.transcript.offsets[:-1], first.transcript.offsets[1:], strict=True)
    }
    seen = log.episodes.transcript
    read = {seen.tokens[start:end].tobytes() for start, end in zip(seen.offsets[:-1], seen.offsets[1:], strict=True)}
    assert sequences <= read
    assert np.isfinite(log.episodes.logp).all()
    imitated, _ = imitation_episodes(read_answers(task, "imitation"), task, tokenizer, context=16, data=DataConfig())
    assert (imitated.reward == 1).all()
    assert imitated.terminated.all()  # answers that a limit cut are not imitated


def test_another_vocabulary_is_refused(place: Path) -> None:
    job = job_of("collect", tables(1))
    written(job, place / "run", steps=1)
    model = settings("grpo", steps=1)["model"]
    other = job_of("grpo", settings("grpo", steps=1, model={"new": model["new"] | {"alphabet": "abcdefg"}}))
    task = AnswerTaskConfig(source=str(place / "run"))
    with pytest.raises(DataError, match="tokens of another vocabulary"):
        encode_answers(
            read_answers(task, "outcome"), task, other.recipe.learner.policy.tokenizer, context=16, kind="outcome"
        )


def test_labels_are_shares_of_continuations_worked_out_by_hand(place: Path) -> None:
    """Each beginning is continued once more here, alone, with the same keys of chance."""
    job = job_of("collect", tables(1, **STEPS))
    source = job.recipe.source
    assert isinstance(source, LiveSource) and isinstance(source.world, StepContinuations)
    world, session = source.world, source.actor
    source.publish(job.recipe.learner.policy)
    asked: list[Request] = []
    submit = session.submit
    session.submit = lambda requests, **keys: (asked.extend(requests), submit(requests, **keys))[1]
    episodes = source.collect()
    session.submit = submit
    continued = {request.prompt.tobytes(): request for request in asked if " after " in request.id}
    assert len(continued) == source.metrics()["collect/prefixes"]
    letter = world.world.decode
    seen, labels = episodes.transcript, 0
    for place_ in range(len(episodes)):
        start, prompt = int(seen.offsets[place_]), world.world.prompt_of(int(episodes.group[place_]))
        for decision in range(int(episodes.offsets[place_]), int(episodes.offsets[place_ + 1])):
            own = float(episodes.reward[decision])
            if decision == episodes.offsets[place_ + 1] - 1:
                assert own == float(episodes.score[place_] >= 0.5)
            elif letter(episodes.chosen[decision : decision + 1]) == "a":
                request = continued[seen.tokens[start : seen.at[decision] + 1].tobytes()]
                whole = [
                    letter(np.concatenate([request.prompt[len(prompt.tokens) :], one.tokens]))
                    for one in generate(session, [request])
                ]
                assert own == np.float32(np.mean([text[:1] == prompt.columns["answer"] for text in whole]))
                labels += 1
            else:
                assert np.isnan(own)
    assert labels > 5
    assert {float(label) * 3 for label in episodes.reward[~np.isnan(episodes.reward)]} <= {0.0, 1.0, 2.0, 3.0}


def test_labels_of_a_collection_are_exact(place: Path) -> None:
    job = job_of("collect", tables(2, **STEPS))
    written(job, place / "run", steps=2)
    thirds = {0.0, 1 / 3, 2 / 3, 1.0}
    answers = [one for example in read_collection(str(place / "run")) for one in example.answers]
    labels = np.concatenate([one.tokens.labels for one in answers if one.tokens is not None])
    assert set(labels[~np.isnan(labels)].tolist()) <= thirds
    task = AnswerTaskConfig(source=str(place / "run"))
    tokenizer = job.recipe.learner.policy.tokenizer
    log, _ = encode_answers(read_answers(task, "stepwise"), task, tokenizer, context=16, kind="stepwise")
    assert np.array_equal(log.episodes.reward, labels.astype(np.float32), equal_nan=True)


def test_a_separator_that_never_occurs_is_told_with_three_answers(place: Path) -> None:
    job = job_of("collect", tables(1, **STEPS | {"separator": "##"}))
    with pytest.raises(
        DataError, match=r"collect.separator = '##' ends no step of 16 answers, such as '.*', '.*', '.*'"
    ):
        written(job, place / "run", steps=1)


def test_a_missing_score_is_no_label(place: Path) -> None:
    """Continuations without a score leave the share; a step without any scored one has no label."""
    job = job_of("collect", tables(1, **STEPS))
    world = job.recipe.source.world
    gather = world.world.scorer.gather

    def without_scores(tickets: Any) -> Any:
        scores = gather(tickets)
        return replace(scores, status=np.ones_like(scores.status))

    world.world.scorer.gather = without_scores
    job.recipe.source.publish(job.recipe.learner.policy)
    episodes = job.recipe.source.collect()
    assert np.isnan(episodes.reward).all()
    assert job.recipe.source.metrics()["collect/continuations_unscored"] == 1.0
    rows = job.write_episodes.rows(episodes)  # type: ignore[union-attr]
    assert {row.score for row in rows} == {None}


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda folder: folder.mkdir(), "no collected answers; name the folder of a run with recipe"),
        (lambda folder: (folder.mkdir(), (folder / "step_00000001.parquet").write_bytes(b"PAR1")), "damaged parquet"),
    ],
)
def test_a_folder_without_a_collection_is_refused(tmp_path: Path, prepare: Any, said: str) -> None:
    prepare(tmp_path / "run")
    with pytest.raises(DataError, match=said):
        read_collection(str(tmp_path / "run"))


def test_stale_answers_make_no_sense_where_nothing_changes(place: Path) -> None:
    with pytest.raises((ConfigError, ValueError), match=r"rollout.max_staleness = 1: the policy does not change"):
        job_of("collect", tables(1, rollout={"max_staleness": 1}))
