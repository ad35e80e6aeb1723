"""The record of versions: what is written is read, an order that time does not change, and damage by its line."""

import json
import re
from itertools import pairwise

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.core.errors import DataError
from hone.core.generation import AnswerVersions, Completion, answer_versions
from hone.run.store.interleaving import InterleavingHeader, InterleavingWriter, answers_digest, read_interleaving

HEADER = InterleavingHeader(on_publish="keep", runner="torch float32 (cpu)")


def answer(name: str, sample: int, versions: list[int], *, turn: int = 0, reread: tuple[int, ...] = ()) -> Completion:
    count = len(versions)
    return Completion(
        request_id=name,
        sample_index=sample,
        tokens=np.arange(count, dtype=np.int32),
        logp=np.linspace(-1, 0, count, dtype=np.float32),
        sampled_logp=np.zeros(count, np.float32),
        version=np.array(versions, np.int32),
        finish_reason="eos",
        turn=turn,
        reread_at=reread,
    )


BATCHES = [
    [answer("b", 1, [0, 0, 1, 1, 1, 3], reread=(5,)), answer("a", 0, [2]), answer("b", 0, [0])],
    [answer("a", 0, [3, 3]), answer("a", 0, [3, 4], turn=1)],
]


def written(folder, batches=BATCHES):
    writer = InterleavingWriter(folder / "interleaving.jsonl", HEADER)
    writer.start(batches=0)
    for number, done in enumerate(batches, start=1):
        writer.append(number, done)
    return writer


@examples(50)
@given(versions=st.lists(st.integers(0, 5), min_size=1, max_size=30).map(sorted))
def test_runs_of_equal_versions_say_each_token(versions):
    found = answer_versions(answer("a", 0, versions))
    assert [found.version_at(token) for token in range(len(versions))] == versions
    assert all(before < after for before, after in pairwise(found.starts))
    assert len(found.starts) == len(set(versions))


def test_what_is_written_is_read_batch_by_batch(tmp_path):
    record = read_interleaving(written(tmp_path).path)
    assert (record.batches, record.header) == (2, HEADER)
    first = record.read_batch(1)
    assert first.versions == {
        ("a", 0, 0): AnswerVersions(starts=(0,), versions=(2,)),
        ("b", 0, 0): AnswerVersions(starts=(0,), versions=(0,)),
        ("b", 0, 1): AnswerVersions(starts=(0, 2, 5), versions=(0, 1, 3), reread_at=(5,)),
    }
    assert first.digests["b", 0] == answers_digest([BATCHES[0][2], BATCHES[0][0]])
    assert set(record.read_batch(2).versions) == {("a", 0, 0), ("a", 1, 0)}
    with pytest.raises(DataError, match=r":7: the record ends after batch 2, and the replay asks for batch 3"):
        record.read_batch(3)


def test_the_order_in_which_answers_ended_leaves_no_trace(tmp_path):
    (tmp_path / "other").mkdir()
    there = written(tmp_path).path.read_bytes()
    assert written(tmp_path / "other", [done[::-1] for done in BATCHES]).path.read_bytes() == there
    assert len(there.splitlines()) == 1 + 3 + 3


def test_a_resume_goes_on_after_the_batches_of_its_checkpoint(tmp_path):
    whole = written(tmp_path).path.read_bytes()
    again = InterleavingWriter(tmp_path / "interleaving.jsonl", HEADER)
    again.start(batches=1)
    again.append(2, BATCHES[1])
    assert again.path.read_bytes() == whole
    with pytest.raises(DataError, match="ends after batch 2 of 3"):
        again.start(batches=3)
    with pytest.raises(DataError, match="was begun with"):
        InterleavingWriter(again.path, InterleavingHeader(on_publish="finish", runner="x")).start(batches=1)


def test_a_damaged_record_names_its_line_and_what_is_whole(tmp_path):
    path = written(tmp_path).path
    lines = path.read_bytes().splitlines(keepends=True)
    line = json.loads(lines[4])

    def refused(data: bytes, expected: str) -> None:
        path.write_bytes(data)
        with pytest.raises(DataError, match=expected) as caught:
            read_interleaving(path)
        assert re.search(r"`head -n (1|4)` keeps them", str(caught.value))

    refused(b"".join(lines)[:-5], ":7: the line is cut off; the first 4 lines are whole, 1 batches")
    refused(b"".join(lines[:5]), ":5: the file ends within batch 2")
    refused(b"".join([*lines[:2], *lines[3:]]), ":3: batch 1 has 1 requests, and its end says 2")
    refused(b"".join(lines).replace(b'"turn": 1', b'"turn": "x"'), ":6: no line of an interleaving: .*turn")
    bad = json.dumps({**line, "answers": [[0, 1, 3]]}).encode() + b"\n"
    refused(b"".join([*lines[:4], bad]), r":5: sample 0 of 'a' has the runs \[1, 3\]")
    path.write_bytes(b"nothing\n")
    with pytest.raises(DataError, match=":1: no record of an interleaving"):
        read_interleaving(path)
    path.unlink()
    with pytest.raises(DataError, match=r"missing.*interleaving = \"record\""):
        read_interleaving(path)
