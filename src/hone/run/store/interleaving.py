"""Record of the policy versions that sampled each answer of a run: `interleaving.jsonl`.

The first line holds facts about the run. Then follow, for each collected batch, a line for each request and turn, and a
line that ends the batch. Weights that are published while answers are written make a run depend on time; this file is
all that it takes to repeat it.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import groupby
from pathlib import Path
from typing import Final, NoReturn

from pydantic import TypeAdapter, ValidationError

from hone.core.errors import DataError
from hone.core.generation import AnswerKey, AnswerVersions, Completion, answer_versions
from hone.run.store.durable import sync_path, to_json, writing

INTERLEAVING: Final = "interleaving.jsonl"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class InterleavingHeader:
    """Facts about the recorded run that its replay must share, and that no config holds."""

    format: int = _FORMAT
    on_publish: str
    """Treatment of unfinished answers when weights were published."""
    runner: str
    """Engine with its type, device and instruction set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _RequestLine:
    """One turn of one request: a list for each sample of its number, and of first token and version in turn."""

    batch: int
    id: str
    turn: int
    digest: str
    answers: list[list[int]]
    reread: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    """Tokens before which a sample's text was read again, by the sample's number; only where old keys are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _BatchEnd:
    """The end of a batch, with the number of its request lines."""

    batch: int
    requests: int


_LINE: Final = TypeAdapter[_RequestLine | _BatchEnd](_RequestLine | _BatchEnd)


def answers_digest(completions: Sequence[Completion]) -> str:
    """Hash of tokens and log-probabilities of a request's answers, in the order of their samples; 16 hex digits."""
    digest = blake2b(digest_size=8)
    for one in sorted(completions, key=lambda one: one.sample_index):
        for column in (one.tokens, one.logp, one.sampled_logp):
            digest.update(column.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedBatch:
    """Record of one collected batch."""

    versions: Mapping[AnswerKey, AnswerVersions]
    digests: Mapping[tuple[str, int], str]
    """`answers_digest` by request id and turn."""


# ------------------------------------------------------------------------------------------- writing


@dataclass
class InterleavingWriter:
    """Appends batch after batch. `start` comes first: with the batches that a checkpoint holds, or none."""

    path: Path
    header: InterleavingHeader

    def start(self, *, batches: int) -> None:
        """Begin the file, or go on after its first `batches`. Raises DataError where it has fewer, or is of another
        engine; ResourceError for the disk."""
        if not batches:
            with writing(self.path):
                self.path.write_bytes(_line(asdict(self.header)))
            return
        record = read_interleaving(self.path, batches=batches)
        if record.header != self.header:
            raise DataError(f"{self.path}:1: the record was begun with {record.header}, and this run has {self.header}")
        with writing(self.path):
            os.truncate(self.path, record.end_of(batches))

    def append(self, batch: int, completions: Sequence[Completion]) -> None:
        """Write all answers of a batch, in an order that does not depend on time. Raises ResourceError."""
        keeps = self.header.on_publish == "keep"
        ordered = sorted(completions, key=lambda one: (one.request_id, one.turn, one.sample_index))
        lines = [
            _line(_request_line(batch, name, turn, list(answers), keeps=keeps))
            for (name, turn), answers in groupby(ordered, key=lambda one: (one.request_id, one.turn))
        ]
        with writing(self.path), self.path.open("ab") as file:
            file.write(b"".join([*lines, _line({"batch": batch, "requests": len(lines)})]))

    def sync(self) -> None:
        """Fsync the file: no checkpoint is newer than it."""
        if self.path.exists():
            with writing(self.path):
                sync_path(self.path)


def _request_line(batch: int, name: str, turn: int, found: list[Completion], *, keeps: bool) -> dict[str, object]:
    known = [(one, answer_versions(one)) for one in found]
    answers = [
        [one.sample_index, *(number for pair in zip(own.starts, own.versions, strict=True) for number in pair)]
        for one, own in known
    ]
    line: dict[str, object] = {
        "batch": batch, "id": name, "turn": turn, "digest": answers_digest(found), "answers": answers
    }  # fmt: skip
    reread = {str(one.sample_index): list(own.reread_at) for one, own in known if keeps and own.reread_at}
    return {**line, "reread": reread} if reread else line


def _line(values: Mapping[str, object]) -> bytes:
    return to_json({**values})  # pyright: ignore[reportArgumentType] - numbers, texts and lists of them


# ------------------------------------------------------------------------------------------- reading


@dataclass(frozen=True, slots=True, kw_only=True)
class InterleavingRecord:
    """A checked record: its facts, and where each batch stands in the file."""

    path: Path
    header: InterleavingHeader
    ends: Sequence[tuple[int, int]]
    """Byte and line where the first batch begins, and where each batch ends."""

    @property
    def batches(self) -> int:
        """Number of whole batches."""
        return len(self.ends) - 1

    def end_of(self, batch: int) -> int:
        """Byte behind batch number `batch`, from 1."""
        return self.ends[batch][0]

    def most_in_progress(self) -> int:
        """Largest number of answers in progress when weights were published."""
        most = 0
        for batch in range(1, self.batches + 1):
            known = [one.versions for one in self.read_batch(batch).versions.values()]
            unfinished = Counter(version for versions in known for version in range(versions[0], versions[-1]))
            most = max([most, *unfinished.values()])
        return most

    def read_batch(self, batch: int) -> RecordedBatch:
        """Read batch number `batch`, from 1. Raises DataError where the record ends before."""
        if batch > self.batches:
            raise DataError(
                f"{self.path}:{self.ends[-1][1]}: the record ends after batch {self.batches}, and the replay asks for "
                f"batch {batch}; lower steps"
            )
        versions: dict[AnswerKey, AnswerVersions] = {}
        digests: dict[tuple[str, int], str] = {}
        (first, line), (end, _) = self.ends[batch - 1], self.ends[batch]
        with self.path.open("rb") as file:
            file.seek(first)
            for number, raw in enumerate(file.read(end - first).splitlines(), start=line + 1):
                parsed = _parse(raw, f"{self.path}:{number}")
                if isinstance(parsed, _RequestLine):
                    digests[parsed.id, parsed.turn] = parsed.digest
                    versions |= _versions(parsed, f"{self.path}:{number}")
        return RecordedBatch(versions=versions, digests=digests)


def read_interleaving(path: Path, *, batches: int | None = None) -> InterleavingRecord:
    """Check every line of a record, of its first `batches` only where given. Raises DataError naming the line for a
    missing, damaged or truncated file, with what can still be replayed."""
    if not path.is_file():
        raise DataError(
            f"{path} is missing: the run recorded no versions; record one with "
            'rollout.max_staleness.interleaving = "record"'
        )
    with path.open("rb") as file:
        first = file.readline()
        try:
            header = TypeAdapter(InterleavingHeader).validate_json(first, strict=True)
        except ValidationError as error:
            raise DataError(f"{path}:1: no record of an interleaving: {_fault(error)}") from None
        if header.format != _FORMAT:
            raise DataError(f"{path}:1: format {header.format}, this hone reads {_FORMAT}; upgrade hone")
        ends = [(len(first), 1)]
        _read_ends(path, file, ends, batches)
    return InterleavingRecord(path=path, header=header, ends=ends)


def _read_ends(path: Path, lines: Iterator[bytes], ends: list[tuple[int, int]], batches: int | None) -> None:
    """Append where each whole batch ends."""
    requests, (place, number) = 0, ends[0]
    for number, raw in enumerate(lines, start=2):
        if batches is not None and len(ends) > batches:
            return
        where, batch = f"{path}:{number}", len(ends)
        place += len(raw)
        try:
            requests = _count_line(raw, where, batch, requests)
        except DataError as fault:
            _refuse(str(fault), ends)
        if not requests:
            ends.append((place, number))
    if requests:
        _refuse(f"{path}:{number}: the file ends within batch {len(ends)}", ends)
    if batches is not None and len(ends) <= batches:
        raise DataError(f"{path}:{number}: the record ends after batch {len(ends) - 1} of {batches}")


def _count_line(raw: bytes, where: str, batch: int, requests: int) -> int:
    """Check a line of a batch behind so many requests; returns their number with it, 0 at the end of the batch."""
    if not raw.endswith(b"\n"):
        raise DataError(f"{where}: the line is cut off")
    line = _parse(raw, where)
    if line.batch != batch:
        raise DataError(f"{where}: batch {line.batch} where batch {batch} is expected")
    if isinstance(line, _RequestLine):
        _versions(line, where)
        return requests + 1
    if line.requests != requests:
        raise DataError(f"{where}: batch {batch} has {requests} requests, and its end says {line.requests}")
    return 0


def _refuse(fault: str, ends: list[tuple[int, int]]) -> NoReturn:
    """Raise DataError with the part of the record that is whole."""
    whole, line = len(ends) - 1, ends[-1][1]
    raise DataError(f"{fault}; the first {line} lines are whole, {whole} batches: `head -n {line}` keeps them")


def _parse(raw: bytes, where: str) -> _RequestLine | _BatchEnd:
    try:
        return _LINE.validate_json(raw, strict=True)
    except ValidationError as error:
        raise DataError(f"{where}: no line of an interleaving: {_fault(error)}") from None


def _fault(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first["loc"] else first["msg"]


def _versions(line: _RequestLine, where: str) -> dict[AnswerKey, AnswerVersions]:
    by_answer: dict[AnswerKey, AnswerVersions] = {}
    for sample, *runs in filter(None, line.answers):
        starts, versions = tuple(runs[0::2]), tuple(runs[1::2])
        if not starts or len(starts) != len(versions) or starts[0] != 0 or list(starts) != sorted(set(starts)):
            raise DataError(
                f"{where}: sample {sample} of {line.id!r} has the runs {runs}, not first tokens and versions"
            )
        reread = tuple(line.reread.get(str(sample), ()))
        by_answer[line.id, line.turn, sample] = AnswerVersions(starts=starts, versions=versions, reread_at=reread)
    return by_answer
