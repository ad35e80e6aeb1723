"""Continuous batching: plans each pass over the model, and distributes its results. Numbers only.

A finished row is reused at once; prompts are prefilled in chunks beside the running rows, under a budget of tokens per
pass; a prompt is computed once for all of its samples. When pages run out, the newest request is preempted and
recomputed later: random numbers are counter-based, so no result changes.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from hone.core.episodes import Routing
from hone.core.generation import AnswerKey, AnswerVersions, FinishReason, OnPublish
from hone.engine.samples import (
    PassPlan,
    PrefillGroup,
    PromptChunk,
    RunningBatch,
    SampleEvent,
    SampleState,
    mixed_batch,
    no_copies,
)
from hone.engine.text_pages import TextPages
from hone.engine.work import ForwardBatch, SamplerOutput

if TYPE_CHECKING:
    from hone.engine.session import StopRules  # the session asks the scheduler

# --------------------------------------------------------------------------------------------------------------- limits


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """Limits of a scheduler."""

    slots: int
    """Number of rows."""
    pages: int
    page_tokens: int
    sequence_tokens: int
    """Largest number of tokens of a prompt and its answer."""
    pass_tokens: int = 512
    """Largest number of prompt tokens of a pass; running rows are always included."""
    pass_draws: int = 4096
    """Largest number of logits per pass for prompts and scored texts."""
    longest_first: bool = False
    """Start with the requests with the longest expected answers; otherwise in the order of submission."""

    @property
    def most_pages(self) -> int:
        """Pages of one sequence."""
        return -(-self.sequence_tokens // self.page_tokens)

    @property
    def least_pages(self) -> int:
        """Least number of pages: those of the longest sequence, and a copy of its prompt's last page."""
        return self.most_pages + 1


_LOGITS: Final = 1 << 25
"""Largest number of elements of the prompts' logits in one pass."""


PASS_TOKENS: Final = 512
"""Prompt tokens of a pass on a CPU: answers in progress wait for it."""
CUDA_PASS_TOKENS: Final = 8192
"""Prompt tokens of a pass on a GPU, which takes about as long for a few hundred."""


def default_limits(
    *, slots: int, page_tokens: int, sequence_tokens: int, vocab: int, pass_tokens: int = PASS_TOKENS
) -> SchedulerLimits:
    """Pages for the longest sequence in every slot, and for prompts that are prefilled early."""
    most = -(-sequence_tokens // page_tokens)
    return SchedulerLimits(
        slots=slots,
        pages=most * (slots + max(1, slots // 8)) + 1,
        page_tokens=page_tokens,
        sequence_tokens=sequence_tokens,
        pass_tokens=pass_tokens,
        pass_draws=max(64, _LOGITS // vocab),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOutcome:
    """Completions and scores that a pass finished."""

    finished: list[tuple[SampleState, FinishReason]]
    scored_groups: list[PrefillGroup]


@dataclass(slots=True)
class _SchedulerCounts:
    """Counts since the last reset."""

    cached_tokens: int = 0
    prefill_tokens: int = 0
    drawn_tokens: int = 0
    scored_tokens: int = 0
    preempted: int = 0
    stale_tokens: int = 0

    def reset(self) -> None:
        """Set all counts to 0."""
        self.cached_tokens = self.prefill_tokens = self.drawn_tokens = self.scored_tokens = self.preempted = (
            self.stale_tokens
        ) = 0


# --------------------------------------------------------------------------------------------------------- held samples


@dataclass(frozen=True, slots=True, eq=False)
class _HeldRow:
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
class _HeldSamples:
    """Texts to be read, and rows with their pages, by the version that goes on with them."""

    _texts: dict[int, list[PrefillGroup]] = field(default_factory=dict[int, list[PrefillGroup]])
    _rows: dict[int, list[_HeldRow]] = field(default_factory=dict[int, list[_HeldRow]])

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
        self._rows.setdefault(version, []).append(_HeldRow(sample, pages))

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


def _rows_to_hold(table: RunningBatch, version: int, *, keep: bool) -> list[tuple[int, int | None]]:
    """Rows, the last first, that cannot draw their next token by `version`, each with the version that it keeps its
    keys for; None: its text is read again."""
    rows: list[tuple[int, int | None]] = []
    for row in range(len(table) - 1, -1, -1):
        sample, drawn = table.samples[row], int(table.drawn_tokens[row])
        wanted = sample.wanted_version(drawn, version)
        reread = sample.recorded is not None and drawn in sample.recorded.reread_at
        if wanted != version or (reread and keep):
            rows.append((row, wanted if keep and not reread else None))
    return rows


# --------------------------------------------------------------------------------------------------------------- routes


class _RoutePages:
    """Experts of every token in `pages` pages. Dense models record none, and take no memory."""

    def __init__(self, pages: int, page_tokens: int) -> None:
        self._pages, self._page_tokens = pages, page_tokens
        self._store: Routing | None = None
        """`[pages * page_tokens, L, k]`."""

    def copy(self, source: int, target: int) -> None:
        """Copy a page over another."""
        if self._store is not None:
            paged = self._store.reshape(self._pages, self._page_tokens, *self._store.shape[1:])
            paged[target] = paged[source]

    def keep(self, sample: SampleState, pages: Sequence[int]) -> None:
        """Give a sample the routes of its tokens, which are in `pages`; its last token was not read yet."""
        sample.keep_routing(self.read(pages, len(sample.request.prompt) + len(sample.tokens) - 1))

    def write(self, batch: ForwardBatch, routing: Routing | None) -> None:
        """Record the routes `[T, L, k]` of a pass."""
        if routing is None:
            return
        if self._store is None:
            self._store = np.zeros((self._pages * self._page_tokens, *routing.shape[1:]), routing.dtype)
        page = batch.pages[batch.sequence, batch.positions // self._page_tokens].astype(np.int64)
        self._store[page * self._page_tokens + batch.positions % self._page_tokens] = routing

    def read(self, pages: Sequence[int], count: int) -> Routing | None:
        """`[count, L, k]` routes of the first `count` tokens in `pages`; None where nothing is recorded."""
        if self._store is None:
            return None
        paged = self._store.reshape(self._pages, self._page_tokens, *self._store.shape[1:])
        whole = paged[np.array(pages, np.int64)].reshape(-1, *self._store.shape[1:])
        return whole[:count].copy()


# ------------------------------------------------------------------------------------------------------------ scheduler


_GROUP: Final = 32
"""Samples whose first token is sampled at once; more would hold large groups' logits without benefit."""
_LEAST_CHUNK: Final = 16
"""Tokens of prompts that every pass has room for, however many rows run: so that no prompt waits for ever."""


@dataclass
class Scheduler:
    """Raises RuntimeError where its own rules are broken, ValueError for too few pages."""

    limits: SchedulerLimits
    version: int = 0
    admitting: bool = True
    """True if waiting requests may start."""
    counts: _SchedulerCounts = field(default_factory=_SchedulerCounts)
    replay: OnPublish | None = None
    """Treatment of answers in progress in the run that is replayed, if one is."""

    def __post_init__(self) -> None:
        if self.limits.pages < self.limits.least_pages:
            raise ValueError(f"{self.limits.pages} pages, and one sequence may need {self.limits.least_pages}")
        self.clear()

    def clear(self) -> None:
        """Drop all requests and caches."""
        limits = self.limits
        self.texts = TextPages(limits.pages, limits.page_tokens)
        self.texts.reset(self.version)
        self.pool = self.texts.pool
        self.routes = _RoutePages(limits.pages, limits.page_tokens)
        self.table = RunningBatch(slots=limits.slots, most_pages=limits.most_pages, page_tokens=limits.page_tokens)
        self._waiting: list[tuple[int, int, int, PrefillGroup]] = []
        self._fills: list[PrefillGroup] = []
        self._ready: deque[PrefillGroup] = deque()
        self.held = _HeldSamples()

    @property
    def busy(self) -> bool:
        """True if requests are left."""
        return bool(len(self.table) or self._fills or self._ready or self._waiting or self.held)

    @property
    def has_active(self) -> bool:
        """True if a request holds pages."""
        return bool(len(self.table) or self._fills or self._ready)

    @property
    def has_waiting(self) -> bool:
        """True if a request has not started."""
        return bool(self._waiting or self._fills or self._ready)

    def add(self, fill: PrefillGroup) -> None:
        """Queue a text with its samples; in a replay, once the weights of its next token are there."""
        first = fill.members[0]
        if (wanted := first.wanted_version(len(first.tokens), self.version)) != self.version:
            self.held.add_text(wanted, fill)
            return
        request = fill.members[0].request
        expected = (request.expected_tokens or request.sampling.max_tokens) if self.limits.longest_first else 0
        # A waiting score takes no row; started requests are not overtaken by new ones.
        rank = 0 if fill.tokens_to_score is not None else 1 if fill.resumed else 2
        heapq.heappush(self._waiting, (rank, -expected, fill.order, fill))

    def plan(self, now_s: float = 0.0) -> PassPlan | None:
        """The next pass; None when there is nothing to do (now). `now_s`: seconds of a clock, for turns that are kept
        until a time."""
        self.texts.expire(now_s)
        self._sources: list[int] = []
        self._targets: list[int] = []
        if self._ready:
            self._seat()
        while self.replay and self._hold_rows() and self._ready:
            self._seat()
        self._find_pages()
        if self._waiting and self.admitting:
            self._admit()
        rows = len(self.table)
        chunks = self._chunks(rows) if self._fills else []
        if not rows and not chunks:
            return None
        work = mixed_batch(self.table, chunks) if chunks else self.table.forward_batch()
        copies = (np.array(self._sources, np.int32), np.array(self._targets, np.int32)) if self._sources else no_copies
        return PassPlan(batch=work, rows=rows, chunks=chunks, copy_sources=copies[0], copy_targets=copies[1])

    def apply_results(self, plan: PassPlan, drawn: SamplerOutput, ends: "StopRules") -> PassOutcome:
        """Distribute the results of `plan`; finished samples leave."""
        outcome = PassOutcome(finished=[], scored_groups=[])
        self.routes.write(plan.batch, drawn.routing)
        if plan.rows:
            self.counts.drawn_tokens += plan.rows
            self.table.record(drawn)
            self.counts.stale_tokens += int(np.count_nonzero(self.table.stale[: plan.rows]))
            if ended := ends.finished_rows(self.table):
                samples = self._end([row for row, _ in ended])
                outcome.finished.extend(zip(samples, (finish for _, finish in ended), strict=True))
                outcome.finished.sort(key=lambda one: one[0].order)
        place = plan.rows
        for chunk in plan.chunks:
            count = chunk.draws
            self.counts.prefill_tokens += chunk.stop - chunk.start
            self._advance(chunk, drawn, place, ends, outcome)
            place += count
        return outcome

    def publish(self, version: int, *, keep: bool) -> None:
        """Sample with `version` from here on. Caches are recomputed, except for rows with `keep`."""
        self.version = version
        self.texts.reset(version)
        preempted = self.counts.preempted
        for fill in self._holders():
            self._drop_fill(fill)
        for row in range(len(self.table) - 1, -1, -1):
            if keep:
                sample = self.table.samples[row]
                sample.stale = True
                sample.mark_version(int(self.table.drawn_tokens[row]), version)
                self.table.stale[row] = True
            else:
                self._drop_row(row, known=False)
        self.counts.preempted = preempted
        self.held.release(version, self.table, self.add)

    def cancel(self, wanted: Callable[[SampleState], bool]) -> None:
        """End the samples that are `wanted`, wherever they are; they are never handed out. The others go on."""
        if rows := [row for row, sample in enumerate(self.table.samples) if wanted(sample)]:
            for sample, pages in self.table.remove(rows):
                sample.apply_event(SampleEvent.CANCEL)
                self.pool.release(pages)
        self.texts.kept.drop(wanted)
        for pages in self.held.cancel(wanted):
            self.pool.release(pages)
        for fill in (*self._holders(), *(entry[3] for entry in self._waiting)):
            fill.cancel(wanted)
            if not (fill.members or fill.ready):
                self.pool.release(fill.pages)
                fill.pages = []
        self._fills = [fill for fill in self._fills if fill.members]
        self._ready = deque(fill for fill in self._ready if fill.ready)
        self._waiting = [entry for entry in self._waiting if entry[3].members]
        heapq.heapify(self._waiting)

    # ------------------------------------------------------------------------------------------ rows

    def _seat(self) -> None:
        """Samples that are ready take the free rows."""
        while self._ready and (room := self.limits.slots - len(self.table)) > 0:
            fill = self._ready[0]
            pages = self._pages_of(fill, min(room, len(fill.ready)))
            if not pages:
                if len(self.table) or not self._give_up(but=fill):
                    return
                continue
            samples = fill.ready[: len(pages)]
            del fill.ready[: len(pages)]
            if not fill.ready:
                self._ready.popleft()
            for sample in samples:
                sample.apply_event(SampleEvent.SEAT)
            self.table.insert(samples, pages, len(fill.text))

    def _hold_rows(self) -> bool:
        """In a replay, take samples out of their rows that wait for other weights, or are to be read again; whether
        there were any. Only rows that keep their old keys hold pages meanwhile."""
        held_rows = _rows_to_hold(self.table, self.version, keep=self.replay == "keep")
        for row, version in held_rows:
            if version is None:
                self._drop_row(row, known=False)
            else:
                self.held.add_row(version, *self.table.remove([row])[0])
        return bool(held_rows)

    def _pages_of(self, fill: PrefillGroup, most: int) -> list[list[int]]:
        """Pages for up to `most` ready samples. They share the whole pages of their prompt, and each gets a copy of the
        unfinished one; the last sample takes that itself over."""
        whole, rest = divmod(len(fill.text), self.limits.page_tokens)
        shared = fill.pages[:whole]
        takes_over = not fill.members and most == len(fill.ready)
        result: list[list[int]] = []
        for _ in range(most - takes_over):
            if rest:
                page = self.texts.page()
                if page is None:
                    return result
                self._sources.append(fill.pages[whole])
                self._targets.append(page)
                self.routes.copy(fill.pages[whole], page)
                result.append([*shared, page])
            else:
                result.append(shared)
            self.pool.share(shared)
        if takes_over:
            result.append(fill.pages)
            fill.pages = []
        return result

    def _find_pages(self) -> None:
        """Allocate a page for every row whose next token needs one; the newest requests are preempted."""
        short = self.table.short_of_pages()
        while len(short):
            for row in short.tolist():
                page = self.texts.page()
                if page is None:
                    break
                self.table.add_page(row, page)
            else:
                return
            if not self._give_up(but=None):
                raise RuntimeError("no page is left for the only sequence that runs")
            short = self.table.short_of_pages()

    def _end(self, rows: list[int]) -> list[SampleState]:
        ended = self.table.remove(rows)
        for sample, pages in ended:
            sample.apply_event(SampleEvent.END)
            self.routes.keep(sample, pages)
            self.texts.end(sample, pages)
        return [sample for sample, _ in ended]

    # --------------------------------------------------------------------------------------- prompts

    def _admit(self) -> None:
        """Start waiting requests, as far as rows (soon), pages and this pass's budget allow."""
        limits = self.limits
        ahead = max(1, limits.slots // 8)
        wanted = limits.slots + ahead - len(self.table) - sum(len(fill.ready) for fill in self._ready)
        wanted -= sum(min(len(fill.members), _GROUP) for fill in self._fills if fill.tokens_to_score is None)
        unread = sum(len(fill.text) - fill.filled_tokens for fill in self._fills)
        while self._waiting and unread < limits.pass_tokens:
            fill = self._waiting[0][3]
            if (fill.tokens_to_score is None and wanted <= 0) or not self._open(fill):
                return
            heapq.heappop(self._waiting)
            self._fills.append(fill)
            for sample in fill.members:
                sample.apply_event(SampleEvent.ADMIT)
            unread += len(fill.text) - fill.filled_tokens
            wanted -= min(len(fill.members), _GROUP) if fill.tokens_to_score is None else 0

    def _open(self, fill: PrefillGroup) -> bool:
        """Give `fill` its pages: those that hold its beginning already, and new ones."""
        # Running rows will need pages soon: new requests must leave them these, or would be preempted at once.
        if not self.texts.open(fill, spare=len(self.table) // 4 + 1 if self.has_active else 0):
            return False
        self.counts.cached_tokens += fill.filled_tokens
        return True

    def _chunks(self, rows: int) -> list[PromptChunk]:
        """Chunks to prefill in this pass, the earliest first."""
        chunks: list[PromptChunk] = []
        room = max(self.limits.pass_tokens - rows, _LEAST_CHUNK)
        draws = max(self.limits.pass_draws, 1)
        for fill in self._fills:
            if room <= 0 or draws <= 0:
                break
            if fill.ready:  # read already; its other members draw when these have a row
                continue
            stop = min(len(fill.text), fill.filled_tokens + room)
            if fill.tokens_to_score is not None:
                stop = min(stop, max(fill.filled_tokens, fill.first_draw) + draws)
            drawing = (
                fill.members[: min(_GROUP, draws)] if fill.tokens_to_score is None and stop == len(fill.text) else []
            )
            chunk = PromptChunk(group=fill, start=fill.filled_tokens, stop=stop, drawing_samples=drawing)
            chunks.append(chunk)
            room -= stop - fill.filled_tokens
            draws -= chunk.draws
        return chunks

    def _advance(
        self, chunk: PromptChunk, drawn: SamplerOutput, place: int, ends: "StopRules", outcome: PassOutcome
    ) -> None:
        fill = chunk.group
        fill.filled_tokens = chunk.stop
        if fill.tokens_to_score is not None:
            chunk.append_scores(drawn, place)
            self.counts.scored_tokens += chunk.draws
            if fill.filled_tokens == len(fill.text):
                fill.members.pop().apply_event(SampleEvent.END)
                outcome.scored_groups.append(fill)
                self._close(fill)
            return
        if not chunk.drawing_samples:
            return
        self.texts.cache.insert(self.version, fill.text, fill.pages, fill.members[0].request.adapter)
        self.counts.drawn_tokens += chunk.draws
        chunk.append_first(drawn, place, self.version)
        for sample in chunk.drawing_samples:
            finish = ends.finish_of(sample)
            if finish is None:
                fill.ready.append(sample)
            else:
                sample.apply_event(SampleEvent.END)
                self.routes.keep(sample, fill.pages)
                self.texts.keep_prompt(sample, fill)
                outcome.finished.append((sample, finish))
        del fill.members[: len(chunk.drawing_samples)]
        if fill.ready:
            self._ready.append(fill)
        if fill.members:
            fill.filled_tokens = len(fill.text) - 1  # its last token is read again, to be drawn after
        elif fill.ready:
            self._fills.remove(fill)
        else:
            self._close(fill)

    def _close(self, fill: PrefillGroup) -> None:
        self._fills.remove(fill)
        self.pool.release(fill.pages)
        fill.pages = []

    # ----------------------------------------------------------------------------------------- pages

    def _holders(self) -> list[PrefillGroup]:
        """Texts that hold pages, the latest last."""
        result = {id(fill): fill for fill in (*self._fills, *self._ready)}
        return sorted(result.values(), key=lambda fill: fill.order)

    def _give_up(self, *, but: PrefillGroup | None) -> bool:
        """Preempt the newest: a prompt without rows yet, else a row; False if only one row, or `but`, is left."""
        fills = [fill for fill in self._holders() if fill is not but]
        if fills:
            self._drop_fill(fills[-1])
            return True
        if len(self.table) < 2:
            return False
        self._drop_row(int(self.table.order[: len(self.table)].argmax()), known=True)
        return True

    def _drop_fill(self, fill: PrefillGroup) -> None:
        """Back to the queue. First tokens that were drawn will be drawn again."""
        for sample in fill.ready:
            sample.drop_last_token()
        fill.members = [*fill.ready, *fill.members]
        fill.ready = []
        for sample in fill.members:
            sample.apply_event(SampleEvent.PREEMPT)
        self.counts.preempted += len(fill.members)
        self.pool.release(fill.pages)
        fill.pages, fill.filled_tokens, fill.resumed = [], 0, True
        fill.scored_logp, fill.likeliest = [], []
        self._fills = [other for other in self._fills if other is not fill]
        self._ready = deque(other for other in self._ready if other is not fill)
        self.add(fill)

    def _drop_row(self, row: int, *, known: bool) -> None:
        """Return a sample with its tokens to the queue. `known`: its pages stay in the prefix cache."""
        ((sample, pages),) = self.table.remove([row])
        sample.apply_event(SampleEvent.PREEMPT)
        self.counts.preempted += 1
        self.routes.keep(sample, pages)
        if known:
            self.texts.remember(sample, pages)
        self.pool.release(pages)
        text = np.concatenate([sample.request.prompt, sample.tokens]).astype(np.int32, copy=False)
        self.add(PrefillGroup(sample.order, text, [sample], resumed=True))

    @property
    def held_pages(self) -> int:
        """Pages that requests hold; the prefix cache's are not counted, unless a request reads them too."""
        return int(np.count_nonzero(self.count_page_references(cached=False)))

    def count_page_references(self, *, cached: bool = True) -> NDArray[np.int32]:
        """References to each page `[pages]` by rows and texts, and (`cached`) by the cache and kept turns."""
        result = np.zeros(self.limits.pages, np.int32)
        for row in range(len(self.table)):
            np.add.at(result, self.table.pages[row, : self.table.page_count[row]], 1)
        for fill in self._holders():
            np.add.at(result, np.array(fill.pages, np.int64), 1)
        np.add.at(result, np.array(self.held.pages(), np.int64), 1)
        if cached:
            np.add.at(result, np.array([*self.texts.cache.cached_pages(), *self.texts.kept.pages()], np.int64), 1)
        return result
