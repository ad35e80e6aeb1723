"""The bookkeeping of an engine without a model, for hypothesis: requests, turns, publications and passes in any order.

Checked throughout: pages are conserved, every sample ends once, and every pass reads its own text.
"""

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from hone.core.generation import Request, SamplingParams, ScoreRequest
from hone.core.random import uniforms
from hone.engine.samples import CachedUniforms, PrefillGroup, SampleState, _SamplePhase
from hone.engine.scheduler import Scheduler, SchedulerLimits
from hone.engine.session import StopRules, TokenizerRules
from hone.engine.work import DRAW, ForwardBatch, SamplerOutput

VOCAB, EOS, PAGE, LONGEST = 12, 0, 4, 24
PROMPTS = [
    np.array(text, np.int32) for text in ([3], [1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6, 7, 8, 9], [7] * 12)
]


def token_of(uniform: float) -> int:
    return int(uniform * VOCAB)


class Memory:
    """What a runner's pages would hold: of each place the token and the version that wrote it."""

    def __init__(self, pages: int) -> None:
        self.token = np.full((pages, PAGE), -1)
        self.version = np.full((pages, PAGE), -1)

    def run(self, work: ForwardBatch, version: int) -> SamplerOutput:
        pages = work.pages[work.sequence, work.positions // PAGE]
        self.token[pages, work.positions % PAGE] = work.tokens
        self.version[pages, work.positions % PAGE] = version
        drawn = [token_of(u) for u in work.draws.uniform]
        token = np.where(work.draws.forced_token == DRAW, drawn, work.draws.forced_token).astype(np.int32)
        logp = -np.arange(len(token), dtype=np.float32)
        return SamplerOutput(token=token, logp=logp, sampled_logp=logp, sampling_mask_bits=None)

    def copy(self, source: np.ndarray, target: np.ndarray) -> None:
        assert len(set(target.tolist())) == len(target)
        assert not set(source.tolist()) & set(target.tolist())
        self.token[target], self.version[target] = self.token[source], self.version[source]

    def text(self, pages: np.ndarray, count: int) -> tuple[list[int], set[int]]:
        at = np.arange(count)
        return (
            self.token[pages[at // PAGE], at % PAGE].tolist(),
            set(self.version[pages[at // PAGE], at % PAGE].tolist()),
        )


class Bookkeeping(RuleBasedStateMachine):
    @initialize(
        slots=st.integers(1, 5),
        spare=st.integers(0, 10),
        pass_tokens=st.sampled_from([1, 6, 64]),
        pass_draws=st.sampled_from([1, 3, 64]),
        longest=st.booleans(),
    )
    def begin(self, slots: int, spare: int, pass_tokens: int, pass_draws: int, longest: bool) -> None:
        limits = SchedulerLimits(
            slots=slots,
            pages=LONGEST // PAGE + 1 + spare,
            page_tokens=PAGE,
            sequence_tokens=LONGEST,
            pass_tokens=pass_tokens,
            pass_draws=pass_draws,
            longest_first=longest,
        )
        self.scheduler = Scheduler(limits)
        self.memory = Memory(limits.pages)
        self.ends = StopRules(TokenizerRules(eos=(EOS,), vocab=VOCAB))
        self.order, self.asked = 0, 0
        self.waiting: dict[tuple[str, int], list[int]] = {}
        self.scoring: dict[int, ScoreRequest] = {}
        self.said: dict[tuple[str, int], np.ndarray] = {}
        self.now_s = 0.0

    @rule(
        prompt=st.sampled_from(PROMPTS),
        samples=st.integers(1, 4),
        most=st.integers(1, 12),
        keep_s=st.sampled_from([0.0, 1.5, 100.0]),
    )
    def submit(self, prompt: np.ndarray, samples: int, most: int, keep_s: float) -> None:
        self.ask(prompt, samples, most, keep_s)

    @precondition(lambda self: self.said)
    @rule(data=st.data(), samples=st.integers(1, 3), most=st.integers(1, 6), heard=st.integers(1, 5))
    def next_turn(self, data: st.DataObject, samples: int, most: int, heard: int) -> None:
        """Go on from an answer, kept or not; now and then with another history than it had."""
        id_, number = data.draw(st.sampled_from(sorted(self.said)))
        text = np.append(self.said[id_, number], np.arange(heard) % VOCAB).astype(np.int32)
        if data.draw(st.integers(0, 4)) == 0:
            text[data.draw(st.integers(0, len(text) - 1))] = 9
        if len(text) + most <= LONGEST:
            self.ask(text, samples, most, 100.0, after=id_, first_sample=number)

    @precondition(lambda self: hasattr(self, "now_s"))
    @rule()
    def wait(self) -> None:
        self.now_s += 1.0

    def ask(
        self,
        prompt: np.ndarray,
        samples: int,
        most: int,
        keep_s: float,
        after: str | None = None,
        first_sample: int = 0,
    ) -> None:
        self.asked += 1
        request = Request(
            id=str(self.asked),
            prompt=prompt,
            samples=samples,
            sampling=SamplingParams(max_tokens=most),
            first_sample=first_sample,
            after=after,
            keep_s=keep_s,
        )
        members: list[SampleState] = []
        for number in range(first_sample, first_sample + samples):
            stream = CachedUniforms(lambda count, n=number, id_=request.id: uniforms(0, "t", id_, n, count=count))
            members.append(SampleState(self.order + 1 + number, request, number, stream))
            tokens = [token_of(u) for u in stream(most)]
            end = tokens.index(EOS) + 1 if EOS in tokens else most
            self.waiting[request.id, number] = tokens[:end]
        self.scheduler.add(PrefillGroup(self.order, prompt, members))
        self.order += 1 + first_sample + samples

    @rule(prompt=st.sampled_from(PROMPTS), count=st.integers(1, 12))
    def score(self, prompt: np.ndarray, count: int) -> None:
        text = ScoreRequest(
            prompt=prompt, tokens=np.arange(count, dtype=np.int32) % VOCAB, sampling=SamplingParams(max_tokens=1)
        )
        request = Request(id="text", prompt=prompt, samples=1, sampling=text.sampling)
        self.scheduler.add(PrefillGroup.to_score(self.order, text, request))
        self.scoring[self.order] = text
        self.order += 1

    @rule(keep=st.booleans())
    def publish(self, keep: bool) -> None:
        self.scheduler.publish(self.scheduler.version + 1, keep=keep)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(sorted(self.waiting)))
        self.scheduler.cancel(lambda sample: (sample.request.id, sample.number) == one and sample.request.id != "text")
        del self.waiting[one]

    @precondition(lambda self: self.said)
    @rule(data=st.data())
    def cancel_a_dialogue(self, data: st.DataObject) -> None:
        """A request that has ended, or a part of it: what is kept of it goes."""
        name = data.draw(st.sampled_from(sorted({id_ for id_, _ in self.said})))
        before = len(self.scheduler.texts.kept)
        self.scheduler.cancel(lambda sample: sample.request.id == name)
        assert len(self.scheduler.texts.kept) <= before
        self.waiting = {one: tokens for one, tokens in self.waiting.items() if one[0] != name}

    @precondition(lambda self: self.scoring)
    @rule(data=st.data())
    def cancel_score(self, data: st.DataObject) -> None:
        order = data.draw(st.sampled_from(sorted(self.scoring)))
        self.scheduler.cancel(lambda sample: sample.order == order)
        del self.scoring[order]

    @precondition(lambda self: self.scheduler.busy)
    @rule(times=st.integers(1, 4))
    def steps(self, times: int) -> None:
        for _ in range(times):
            if self.scheduler.busy:
                self.step()

    def step(self) -> None:
        plan = self.scheduler.plan(self.now_s)
        assert plan is not None, "something waits, and nothing runs"
        assert len(plan.batch.tokens) <= max(self.scheduler.limits.pass_tokens, plan.rows + 16)
        self.memory.copy(plan.copy_sources, plan.copy_targets)
        drawn = self.memory.run(plan.batch, self.scheduler.version)
        self.check_texts(plan)
        outcome = self.scheduler.apply_results(plan, drawn, self.ends)
        for sample, finish in outcome.finished:
            done = sample.completion(finish, 0)
            assert done.tokens.tolist() == self.waiting.pop((done.request_id, done.sample_index))
            assert (finish == "eos") == (done.tokens[-1] == EOS)
            assert len(done.logp) == len(done.version) == len(done.tokens)
            assert (np.diff(done.version) >= 0).all()
            assert done.version[-1] == self.scheduler.version
            self.said[done.request_id, done.sample_index] = np.append(sample.request.prompt, done.tokens)
        for fill in outcome.scored_groups:
            text = self.scoring.pop(fill.order)
            assert sum(map(len, fill.scored_logp)) == len(text.tokens)

    def check_texts(self, plan) -> None:
        """Whoever reads pages finds its own text there, as the current version read it."""
        table, version = self.scheduler.table, self.scheduler.version
        for row, sample in enumerate(table.samples):
            count = int(table.position[row]) + 1
            text, versions = self.memory.text(table.pages[row], count)
            drawn = table.last_tokens(row, int(table.drawn_tokens[row])).tolist()
            assert text == [*sample.request.prompt.tolist(), *drawn]
            assert versions == {version} or sample.stale
        for chunk in plan.chunks:
            text, versions = self.memory.text(np.array(chunk.group.pages), chunk.stop)
            assert text == chunk.group.text[: chunk.stop].tolist()
            assert versions == {version}

    @invariant()
    def pages_are_conserved(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        pool, held = self.scheduler.pool, self.scheduler.count_page_references()
        assert [pool.references(page) for page in range(pool.count)] == held.tolist()
        assert pool.free == int((held == 0).sum())
        assert all(sample.phase is _SamplePhase.RUNNING for sample in self.scheduler.table.samples)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for _ in range(3000):
            if not self.scheduler.busy:
                break
            self.step()
        assert not self.waiting
        assert not self.scoring
        self.scheduler.texts.reset(self.scheduler.version)
        assert self.scheduler.pool.free == self.scheduler.pool.count
