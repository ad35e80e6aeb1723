"""Samples of a replay that wait for the weights by which their next token was sampled.

Belongs here: who waits for which version. The scheduler decides when, and `EmbeddedEngine.replay` fetches the weights.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hone.core.generation import AnswerKey, AnswerVersions
from hone.engine.samples import PrefillGroup, SampleEvent, SampleState
from hone.engine.table import RunningBatch


@dataclass(frozen=True, slots=True, eq=False)
class HeldRow:
    """A sample between two tokens, with the pages of the keys that it keeps."""

    sample: SampleState
    pages: list[int]


@dataclass(frozen=True, slots=True)
class RecordedVersions:
    """Record of a run: the versions of every answer, and the weights of every version."""

    versions_of: Callable[[AnswerKey], AnswerVersions]
    """Raises DataError for an answer without a record."""
    load: Callable[[int], None]
    """Puts the weights of a version into the trainer's model."""

    def split(self, members: Sequence[SampleState]) -> list[list[SampleState]]:
        """Tell the samples of one request their versions; returns them by the first one, the earliest first."""
        groups: dict[int, list[SampleState]] = {}
        for sample in members:
            sample.recorded = self.versions_of((sample.request.id, sample.request.turn, sample.number))
            groups.setdefault(sample.recorded.versions[0], []).append(sample)
        return [groups[version] for version in sorted(groups)]


@dataclass
class HeldSamples:
    """Texts to be read, and rows with their pages, by the version that goes on with them."""

    _texts: dict[int, list[PrefillGroup]] = field(default_factory=dict[int, list[PrefillGroup]])
    _rows: dict[int, list[HeldRow]] = field(default_factory=dict[int, list[HeldRow]])

    def __len__(self) -> int:
        """Number of waiting texts and rows."""
        return sum(map(len, self._texts.values())) + sum(map(len, self._rows.values()))

    @property
    def next_version(self) -> int:
        """Earliest version that one waits for."""
        return min([*self._texts, *self._rows])

    def add_text(self, version: int, fill: PrefillGroup) -> None:
        """Hold a text, which has no pages, until `version` is there."""
        self._texts.setdefault(version, []).append(fill)

    def add_row(self, version: int, sample: SampleState, pages: list[int]) -> None:
        """Hold a running sample with its pages until `version` is there."""
        self._rows.setdefault(version, []).append(HeldRow(sample, pages))

    def release(self, version: int, table: RunningBatch, add: Callable[[PrefillGroup], None]) -> None:
        """Give rows back to those that waited for `version`, with their old keys, and queue its texts."""
        for row in self._rows.pop(version, []):
            sample = row.sample
            sample.stale = True
            sample.mark_version(len(sample.tokens), version)
            table.insert([sample], [row.pages], len(sample.request.prompt) + len(sample.tokens) - 1)
        for fill in self._texts.pop(version, []):
            add(fill)

    def pages(self) -> list[int]:
        """Pages of the rows, one as often as it is referred to."""
        return [page for rows in self._rows.values() for row in rows for page in row.pages]

    def cancel(self, wanted: Callable[[SampleState], bool]) -> list[list[int]]:
        """Drop the samples that are `wanted`; returns the pages that they held."""
        freed: list[list[int]] = []
        for version, rows in list(self._rows.items()):
            for row in rows:
                if wanted(row.sample):
                    row.sample.apply_event(SampleEvent.CANCEL)
                    freed.append(row.pages)
            self._rows[version] = [row for row in rows if not wanted(row.sample)]
        for version, fills in list(self._texts.items()):
            for fill in fills:
                fill.cancel(wanted)
            self._texts[version] = [fill for fill in fills if fill.members]
        self._rows = {version: rows for version, rows in self._rows.items() if rows}
        self._texts = {version: fills for version, fills in self._texts.items() if fills}
        return freed


def rows_to_hold(table: RunningBatch, version: int, *, keep: bool) -> list[tuple[int, int | None]]:
    """Rows, the last first, that cannot draw their next token by `version`, each with the version that it keeps its
    keys for; None: its text is read again."""
    found: list[tuple[int, int | None]] = []
    for row in range(len(table) - 1, -1, -1):
        sample, drawn = table.samples[row], int(table.drawn_tokens[row])
        wanted = sample.wanted_version(drawn, version)
        reread = sample.recorded is not None and drawn in sample.recorded.reread_at
        if wanted != version or (reread and keep):
            found.append((row, wanted if keep and not reread else None))
    return found
