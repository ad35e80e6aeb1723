"""Continuous batching: what the next pass over the model does, and where its results go. Numbers only.

A row that ends is taken again at once; prompts are read in chunks beside the running rows, under a budget of tokens
for each pass; a prompt is read once for all of its samples. When pages run out, what came last gives its own up and is
taken up again later: draws are counter-based, so nothing is lost and no bit changes.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hone.engine.limits import Counts, Ends, Limits, Outcome
from hone.engine.pages import PagePool
from hone.engine.passes import Chunk, Plan, mixed, no_copies
from hone.engine.radix import PrefixCache
from hone.engine.samples import Event, Fill, Sample
from hone.engine.table import Table, kept_ids
from hone.engine.work import Drawn

_GROUP: Final = 32
"""Samples whose first token is drawn at once: more would hold back large groups' logits for no use."""
_LEAST_CHUNK: Final = 16
"""Tokens of prompts that every pass has room for, however many rows run: so that no prompt waits for ever."""


@dataclass
class Scheduler:
    """Raises RuntimeError where its own rules are broken, ValueError for too few pages."""

    limits: Limits
    version: int = 0
    admitting: bool = True
    """Whether what waits may begin."""
    counts: Counts = field(default_factory=Counts)

    def __post_init__(self) -> None:
        if self.limits.pages < self.limits.least_pages:
            raise ValueError(f"{self.limits.pages} pages, and one sequence may need {self.limits.least_pages}")
        self.clear()

    def clear(self) -> None:
        """Forget everything that was asked and read."""
        limits = self.limits
        self.pool = PagePool(limits.pages)
        self.cache = PrefixCache(self.pool, limits.page_tokens)
        self.cache.renew(self.version)
        self.table = Table(slots=limits.slots, most_pages=limits.most_pages, page_tokens=limits.page_tokens)
        self._waiting: list[tuple[int, int, int, Fill]] = []
        self._fills: list[Fill] = []
        self._ready: deque[Fill] = deque()

    @property
    def busy(self) -> bool:
        return bool(len(self.table) or self._fills or self._ready or self._waiting)

    @property
    def begun(self) -> bool:
        """Whether anything holds pages."""
        return bool(len(self.table) or self._fills or self._ready)

    @property
    def waits(self) -> bool:
        """Whether anything has not been begun."""
        return bool(self._waiting or self._fills or self._ready)

    def add(self, fill: Fill) -> None:
        """Queue a text with its samples."""
        request = fill.members[0].request
        expected = (request.expected_tokens or request.sampling.max_tokens) if self.limits.longest_first else 0
        # Somebody waits for a score, which takes no row; and what was begun is not overtaken by what was not.
        rank = 0 if fill.given is not None else 1 if fill.front else 2
        heapq.heappush(self._waiting, (rank, -expected, fill.order, fill))

    def plan(self) -> Plan | None:
        """The next pass; None when there is nothing to do (now)."""
        self._sources: list[int] = []
        self._targets: list[int] = []
        if self._ready:
            self._seat()
        self._find_pages()
        if self._waiting and self.admitting:
            self._admit()
        rows = len(self.table)
        chunks = self._chunks(rows) if self._fills else []
        if not rows and not chunks:
            return None
        work = mixed(self.table, chunks) if chunks else self.table.work()
        copies = (np.array(self._sources, np.int32), np.array(self._targets, np.int32)) if self._sources else no_copies
        return Plan(work=work, rows=rows, chunks=chunks, sources=copies[0], targets=copies[1])

    def take(self, plan: Plan, drawn: Drawn, ends: Ends) -> Outcome:
        """Where the results of `plan` go; what ended leaves."""
        outcome = Outcome(samples=[], scored=[])
        if plan.rows:
            self.counts.drawn += plan.rows
            self.table.record(drawn)
            self.counts.stale += int(np.count_nonzero(self.table.stale[: plan.rows]))
            if ended := ends.rows(self.table):
                samples = self._end([row for row, _ in ended])
                outcome.samples.extend(zip(samples, (finish for _, finish in ended), strict=True))
                outcome.samples.sort(key=lambda one: one[0].order)
        place = plan.rows
        for chunk in plan.chunks:
            count = chunk.draws
            self.counts.read += chunk.stop - chunk.start
            self._advance(chunk, drawn, place, ends, outcome)
            place += count
        return outcome

    def publish(self, version: int, *, keep: bool) -> None:
        """From here on `version` draws. What was read is read anew, but for rows when `keep`."""
        self.version = version
        self.cache.renew(version)
        preempted = self.counts.preempted
        for fill in self._holders():
            self._drop_fill(fill)
        for row in range(len(self.table) - 1, -1, -1):
            if keep:
                sample = self.table.samples[row]
                sample.stale = True
                sample.mark(int(self.table.drawn[row]), version)
                self.table.stale[row] = True
            else:
                self._drop_row(row, known=False)
        self.counts.preempted = preempted

    def cancel(self, wanted: Callable[[Sample], bool]) -> None:
        """End the samples that are `wanted`, wherever they are; they are never handed out."""
        if rows := [row for row, sample in enumerate(self.table.samples) if wanted(sample)]:
            for sample, pages in self.table.unseat(rows):
                sample.on(Event.CANCEL)
                self.pool.release(pages)
        for fill in self._holders():
            self._drop_fill(fill)
        kept: list[tuple[int, int, int, Fill]] = []
        for entry in self._waiting:
            fill = entry[3]
            for sample in filter(wanted, fill.members):
                sample.on(Event.CANCEL)
            fill.members = [sample for sample in fill.members if not wanted(sample)]
            if fill.members:
                kept.append(entry)
        self._waiting = kept
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
                sample.on(Event.SEAT)
            self.table.seat(samples, pages, len(fill.text))

    def _pages_of(self, fill: Fill, most: int) -> list[list[int]]:
        """Pages for up to `most` ready samples. They share the whole pages of their prompt, and each gets a copy of the
        unfinished one; the last sample takes that itself over."""
        whole, rest = divmod(len(fill.text), self.limits.page_tokens)
        shared = fill.pages[:whole]
        takes_over = not fill.members and most == len(fill.ready)
        found: list[list[int]] = []
        for _ in range(most - takes_over):
            if rest:
                page = self._page()
                if page is None:
                    return found
                self._sources.append(fill.pages[whole])
                self._targets.append(page)
                found.append([*shared, page])
            else:
                found.append(shared)
            self.pool.share(shared)
        if takes_over:
            found.append(fill.pages)
            fill.pages = []
        return found

    def _find_pages(self) -> None:
        """A page for every row whose next token needs one; what came last gives way."""
        short = self.table.short_of_pages()
        while len(short):
            for row in short.tolist():
                page = self._page()
                if page is None:
                    break
                self.table.add_page(row, page)
            else:
                return
            if not self._give_up(but=None):
                raise RuntimeError("no page is left for the only sequence that runs")
            short = self.table.short_of_pages()

    def _end(self, rows: list[int]) -> list[Sample]:
        ended = self.table.unseat(rows)
        for sample, pages in ended:
            sample.on(Event.END)
            self._remember(sample, pages)
            self.pool.release(pages)
        return [sample for sample, _ in ended]

    def _remember(self, sample: Sample, pages: list[int]) -> None:
        """A later turn may go on from here."""
        if not sample.stale and len(pages) > 1:  # else not one page is whole
            text = np.concatenate([sample.request.prompt, sample.tokens[:-1]]).astype(np.int32, copy=False)
            self.cache.insert(self.version, text, pages)

    # --------------------------------------------------------------------------------------- prompts

    def _admit(self) -> None:
        """Begin with what waits, as far as rows (soon), pages and this pass's budget allow."""
        limits = self.limits
        ahead = max(1, limits.slots // 8)
        wanted = limits.slots + ahead - len(self.table) - sum(len(fill.ready) for fill in self._ready)
        wanted -= sum(min(len(fill.members), _GROUP) for fill in self._fills if fill.given is None)
        unread = sum(len(fill.text) - fill.done for fill in self._fills)
        while self._waiting and unread < limits.pass_tokens:
            fill = self._waiting[0][3]
            if (fill.given is None and wanted <= 0) or not self._open(fill):
                return
            heapq.heappop(self._waiting)
            self._fills.append(fill)
            for sample in fill.members:
                sample.on(Event.ADMIT)
            unread += len(fill.text) - fill.done
            wanted -= min(len(fill.members), _GROUP) if fill.given is None else 0

    def _open(self, fill: Fill) -> bool:
        """Give `fill` its pages: those that hold its beginning already, and new ones."""
        size = self.limits.page_tokens
        known = self.cache.match(self.version, fill.text, most_pages=fill.first_draw // size)
        need = -(-len(fill.text) // size) - len(known)
        # Rows that run will need pages soon: what begins now must not take those, only to give them up at once.
        spare = len(self.table) // 4 + 1 if self.begun else 0
        while self.pool.free < need + spare and self.cache.evict():
            pass
        if self.pool.free < need + spare:
            self.pool.release(known)
            return False
        fill.pages = [*known, *(self.pool.take() for _ in range(need))]
        fill.done = len(known) * size
        self.counts.cached += fill.done
        return True

    def _chunks(self, rows: int) -> list[Chunk]:
        """What this pass reads, the earliest first."""
        chunks: list[Chunk] = []
        room = max(self.limits.pass_tokens - rows, _LEAST_CHUNK)
        draws = max(self.limits.pass_draws, 1)
        for fill in self._fills:
            if room <= 0 or draws <= 0:
                break
            if fill.ready:  # read already; its other members draw when these have a row
                continue
            stop = min(len(fill.text), fill.done + room)
            if fill.given is not None:
                stop = min(stop, max(fill.done, fill.first_draw) + draws)
            drawing = fill.members[: min(_GROUP, draws)] if fill.given is None and stop == len(fill.text) else []
            chunk = Chunk(fill=fill, start=fill.done, stop=stop, drawing=drawing)
            chunks.append(chunk)
            room -= stop - fill.done
            draws -= chunk.draws
        return chunks

    def _advance(self, chunk: Chunk, drawn: Drawn, place: int, ends: Ends, outcome: Outcome) -> None:
        fill = chunk.fill
        fill.done = chunk.stop
        if fill.given is not None:
            until = place + chunk.draws
            fill.scored.append(np.stack([drawn.logp[place:until], drawn.sampled_logp[place:until]], axis=1))
            self.counts.scored += chunk.draws
            if fill.done == len(fill.text):
                fill.members.pop().on(Event.END)
                outcome.scored.append(fill)
                self._close(fill)
            return
        if not chunk.drawing:
            return
        self.cache.insert(self.version, fill.text, fill.pages)
        self._take_first(chunk, drawn, place)
        for sample in chunk.drawing:
            finish = ends.one(sample)
            if finish is None:
                fill.ready.append(sample)
            else:
                sample.on(Event.END)
                outcome.samples.append((sample, finish))
        del fill.members[: len(chunk.drawing)]
        if fill.ready:
            self._ready.append(fill)
        if fill.members:
            fill.done = len(fill.text) - 1  # its last token is read again, to be drawn after
        elif fill.ready:
            self._fills.remove(fill)
        else:
            self._close(fill)

    def _take_first(self, chunk: Chunk, drawn: Drawn, place: int) -> None:
        """What was drawn behind a text, from draw `place` of the pass on, one token for each of its samples."""
        until = place + chunk.draws
        self.counts.drawn += chunk.draws
        tokens, logp = (
            drawn.token[place:until].copy(),
            np.stack([drawn.logp[place:until], drawn.sampled_logp[place:until]]),
        )
        truncates = drawn.kept is not None and chunk.drawing[0].request.sampling.truncates
        for at, sample in enumerate(chunk.drawing):
            sample.stale = False
            kept = kept_ids(drawn.kept[place + at]) if truncates and drawn.kept is not None else None
            sample.add(tokens[at : at + 1], logp[:, at : at + 1], kept, self.version)
            sample.on(Event.FILLED)

    def _close(self, fill: Fill) -> None:
        self._fills.remove(fill)
        self.pool.release(fill.pages)
        fill.pages = []

    # ----------------------------------------------------------------------------------------- pages

    def _page(self) -> int | None:
        """A free page, if need be one that held an old text."""
        if not self.pool.free and not self.cache.evict():
            return None
        return self.pool.take()

    def _holders(self) -> list[Fill]:
        """Texts that hold pages, the latest last."""
        found = {id(fill): fill for fill in (*self._fills, *self._ready)}
        return sorted(found.values(), key=lambda fill: fill.order)

    def _give_up(self, *, but: Fill | None) -> bool:
        """Take the pages of what came last: a text that no row continues yet, or else a row; False if nothing is left
        but one row, or `but`."""
        fills = [fill for fill in self._holders() if fill is not but]
        if fills:
            self._drop_fill(fills[-1])
            return True
        if len(self.table) < 2:
            return False
        self._drop_row(int(self.table.order[: len(self.table)].argmax()), known=True)
        return True

    def _drop_fill(self, fill: Fill) -> None:
        """Back to the queue. First tokens that were drawn will be drawn again."""
        for sample in fill.ready:
            sample.undo()
        fill.members = [*fill.ready, *fill.members]
        fill.ready = []
        for sample in fill.members:
            sample.on(Event.PREEMPT)
        self.counts.preempted += len(fill.members)
        self.pool.release(fill.pages)
        fill.pages, fill.done, fill.scored, fill.front = [], 0, [], True
        self._fills = [other for other in self._fills if other is not fill]
        self._ready = deque(other for other in self._ready if other is not fill)
        self.add(fill)

    def _drop_row(self, row: int, *, known: bool) -> None:
        """Back to the queue with what it has drawn. `known`: its pages may serve whoever needs them first, itself."""
        ((sample, pages),) = self.table.unseat([row])
        sample.on(Event.PREEMPT)
        self.counts.preempted += 1
        if known:
            self._remember(sample, pages)
        self.pool.release(pages)
        text = np.concatenate([sample.request.prompt, sample.tokens]).astype(np.int32, copy=False)
        self.add(Fill(sample.order, text, [sample], front=True))

    def held(self) -> NDArray[np.int32]:
        """References to each page by rows, texts and the cache, counted anew `[pages]`; for tests."""
        found = np.zeros(self.limits.pages, np.int32)
        for row in range(len(self.table)):
            np.add.at(found, self.table.pages[row, : self.table.page_count[row]], 1)
        for fill in self._holders():
            np.add.at(found, np.array(fill.pages, np.int64), 1)
        np.add.at(found, np.array(self.cache.known(), np.int64), 1)
        return found
