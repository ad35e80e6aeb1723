"""The thread that samples: requests of several samplers share the engine's passes, each with its adapter.

Log-probabilities are those of the policy at temperature 1, whatever temperature was sampled at: a ratio against the
trainer's needs them.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from hone.core.errors import DataError, HoneError
from hone.core.generation import Completion, LikeliestTokens, Request, SamplingParams, ScoreRequest, ScoreResult
from hone.engine.fleet.fleet_engine import FleetEngine
from hone.models.language.decoder import Decoder
from hone.models.language.hf_checkpoint import load_model
from hone.text.training_service.desk import DeskThread, RequestDesk, failed
from hone.text.training_service.learner import ServedBase
from hone.text.training_service.ledger import RequestRecord, RequestResult, SamplerRecord
from hone.text.training_service.messages import PROTOBUF, SampledSequence, TopTokens, sample_response
from hone.text.training_service.sampling_engine import SamplingEngine, unmerged
from hone.text.training_service.worker import TrainingWorker

_LOOK_S: Final = 1.0
_MOST_SAMPLES: Final = 1024
_MOST_TOP: Final = 100
_BASE: Final = "base"


class _Fields(BaseModel):
    """A table of a request; fields that are not here have no effect."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class _Chunk(_Fields):
    type: Literal["encoded_text"] = "encoded_text"
    tokens: list[int]


class _Prompt(_Fields):
    chunks: list[_Chunk]


class _Sampling(_Fields):
    max_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0)
    top_k: int = Field(default=-1, ge=-1)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int | None = None
    stop: str | list[str] | list[int] | None = None


class _Sample(_Fields):
    sampling_session_id: str
    seq_id: int = Field(ge=0)
    num_samples: int = Field(default=1, ge=1, le=_MOST_SAMPLES)
    prompt: _Prompt
    sampling_params: _Sampling = _Sampling()
    prompt_logprobs: bool | None = None
    topk_prompt_logprobs: int = Field(default=0, ge=0, le=_MOST_TOP)
    topk_sample_logprobs: int = Field(default=0, ge=0, le=_MOST_TOP)
    prompt_logprobs_last_n: int | None = Field(default=None, ge=1)
    prompt_alt_tokens_k: int = 0
    target_prompt_logprobs: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleCall:
    """A request for samples, checked."""

    prompt: NDArray[np.int32]
    samples: int
    sampling: SamplingParams
    draw_id: str
    prompt_logprobs: bool
    prompt_last: int
    """How many tokens of the prompt are scored, from its end."""
    prompt_top: int

    @classmethod
    def read(cls, record: RequestRecord, *, context: int) -> Self:
        """Raises DataError with every fault."""
        asked = read_sample(record.body)
        prompt = np.array([token for chunk in asked.prompt.chunks for token in chunk.tokens], np.int64)
        params, stop = asked.sampling_params, asked.sampling_params.stop
        texts = [stop] if isinstance(stop, str) else [one for one in stop or () if isinstance(one, str)]
        ids = [one for one in stop or () if isinstance(one, int)]
        faults = ["the prompt is empty; give at least one token"] if not len(prompt) else []
        room = context - len(prompt)
        if len(prompt) and room < (params.max_tokens or 1):
            faults.append(
                f"a prompt of {len(prompt)} tokens and {params.max_tokens or 1} more do not fit into {context}"
            )
        if asked.prompt_alt_tokens_k:
            faults.append("prompt_alt_tokens_k is not served")
        if asked.target_prompt_logprobs is not None:
            faults.append("target_prompt_logprobs is not served; use a forward pass with these target_tokens")
        if faults:
            raise DataError(*faults)
        greedy = params.temperature == 0
        return cls(
            prompt=prompt.astype(np.int32),
            samples=asked.num_samples,
            sampling=SamplingParams(
                max_tokens=params.max_tokens or room,
                temperature=1.0 if greedy else params.temperature,
                greedy=greedy,
                top_k=max(params.top_k, 0),
                top_p=params.top_p,
                stop=tuple(texts),
                stop_tokens=None if stop is None else tuple(ids),
                top_logprobs=asked.topk_sample_logprobs,
            ),
            draw_id=record.id if params.seed is None else f"seed {params.seed}",
            prompt_logprobs=bool(asked.prompt_logprobs) or asked.prompt_logprobs_last_n is not None,
            prompt_last=min(len(prompt) - 1, asked.prompt_logprobs_last_n or len(prompt)),
            prompt_top=asked.topk_prompt_logprobs,
        )


def read_sample(body: bytes) -> _Sample:
    """The fields of a request. Raises DataError that names every faulty one."""
    try:
        return _Sample.model_validate(json.loads(body))
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors()]
        raise DataError(*faults[:5]) from None


@dataclass(slots=True, eq=False)
class _OpenSample:
    """A request in progress: its answers, then what is left to be scored."""

    record: RequestRecord
    call: SampleCall
    adapter: str
    answers: dict[int, Completion] = field(default_factory=dict[int, Completion])
    prompt_order: int = -1
    prompt_scores: ScoreResult | None = None
    orders: dict[int, int] = field(default_factory=dict[int, int])
    """Sample of each text that is scored at temperature 1."""
    scores: dict[int, ScoreResult] = field(default_factory=dict[int, ScoreResult])
    seconds: float = 0.0

    @property
    def asks_prompt(self) -> bool:
        return (self.call.prompt_logprobs or self.call.prompt_top > 0) and len(self.call.prompt) > 1

    @property
    def rescored(self) -> bool:
        """Whether the engine's log-probabilities are those of another temperature."""
        return self.call.sampling.temperature != 1.0

    @property
    def complete(self) -> bool:
        prompted = not self.asks_prompt or self.prompt_scores is not None
        return prompted and len(self.scores if self.rescored else self.answers) == self.call.samples

    def outcome(self) -> RequestResult:
        answers = [self._answer(number) for number in range(self.call.samples)]
        logprobs = likeliest = None
        if self.call.prompt_logprobs:
            logprobs = np.full(len(self.call.prompt), np.nan, np.float32)
            if self.prompt_scores is not None:
                logprobs[-len(self.prompt_scores.logp) :] = self.prompt_scores.logp
        if self.call.prompt_top and self.prompt_scores is not None:
            likeliest = _top(self.prompt_scores.likeliest)
            missing = len(self.call.prompt) - len(self.prompt_scores.logp)
            for _ in range(missing if likeliest is not None else 0):
                assert likeliest is not None
                likeliest = likeliest.after_first()
        tokens = float(sum(len(one.tokens) for one in answers))
        usage = {"prompt_tokens": float(len(self.call.prompt)), "sampled_tokens": tokens, "core_s": self.seconds}
        result = sample_response(answers, prompt_logprobs=logprobs, prompt_likeliest=likeliest)
        return RequestResult(result=result, media=PROTOBUF, usage=usage)

    def _answer(self, number: int) -> SampledSequence:
        answer, scored = self.answers[number], self.scores.get(number)
        return SampledSequence(
            tokens=answer.tokens,
            logprobs=answer.logp if scored is None else scored.logp,
            stopped=answer.finish_reason != "length",
            likeliest=_top(answer.likeliest if scored is None else scored.likeliest),
        )


def _top(likeliest: LikeliestTokens | None) -> TopTokens | None:
    return None if likeliest is None else TopTokens(tokens=likeliest.tokens, logprobs=likeliest.logp)


@dataclass(slots=True, eq=False)
class WholeWeights:
    """The weights that the engine samples with, where whole models are trained: those of one model after another.

    A request for others waits until the answers in progress have ended; then those are read, from the base, a model in
    training or a checkpoint's folder, and published.
    """

    base: ServedBase
    decoder: Decoder
    """The engine's: a twin of the base, whose parameters are set to others."""
    engine: SamplingEngine
    name: str | None = _BASE
    """What is published; None: nothing that can be sampled with."""
    _version: int = 0

    def use(self, sampler: SamplerRecord, trainer: TrainingWorker, *, busy: bool) -> bool:
        """Publish the weights of a sampler, unless they are; False, and nothing changed, where they are others than
        those of the answers in progress (`busy`). Raises DataError and DivergedError for weights that cannot be had."""
        if sampler.model is not None:
            name, weights = trainer.frozen_weights(sampler.model, self.name)
        else:
            name, weights = sampler.folder or _BASE, None
        if name == self.name:
            return True
        if busy:
            return False
        if weights is None:
            source = self.base.rows.decoder if sampler.folder is None else load_model(Path(sampler.folder))
            weights = dict(source.named_parameters())
        self._publish(name, weights)
        return True

    def _publish(self, name: str, weights: Mapping[str, Tensor]) -> None:
        for own, parameter in self.decoder.named_parameters():
            parameter.data = weights[own].detach()
        self.name = None
        self._version += 1
        self.engine.publish(self._version)
        self.name = name


@dataclass(slots=True, eq=False)
class SamplingWorker:
    """Owner of the engine. `start` it once."""

    base: ServedBase
    desk: RequestDesk
    engine: SamplingEngine
    trainer: TrainingWorker
    context: int
    slots: int
    whole: WholeWeights | None = None
    """Where whole models are trained; there are no adapters then."""
    most_adapters: int = 32
    """Adapters that are held in memory for samplers."""
    open: dict[str, _OpenSample] = field(default_factory=dict[str, _OpenSample])
    _adapters: dict[str, int] = field(default_factory=dict[str, int])
    """Uses of each adapter that the engine holds, by its name; the one that was used last at the end."""
    _cancelled: set[str] = field(default_factory=set[str])
    _held: list[str] = field(default_factory=list[str])
    """Requests whose turn has come, and that wait for the end of answers of other weights."""
    thread: DeskThread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = DeskThread("hone-sampling", self._run)

    def cancel(self, id: str) -> None:
        """End a request whose client does not want it any more."""
        with self.desk.wake:
            self._cancelled.add(id)
            self.desk.wake.notify_all()

    def _run(self) -> None:
        while True:
            with self.desk.wake:
                if self.desk.closing:
                    return
                cancelled, self._cancelled = self._cancelled, set()
                waiting = self._admitted()
                if not (waiting or self.open or cancelled):
                    self.desk.wake.wait(_LOOK_S)
                    continue
            self._drop(cancelled)
            for one in waiting:
                record = self.desk.ledger.find(RequestRecord, one)
                assert record is not None
                try:
                    self._begin(record)
                except Exception as error:  # noqa: BLE001 - the client hears of any failure
                    self._close(record, failed(error))
            if self.open:
                self._pass()

    def _admitted(self) -> list[str]:
        """Requests that find room in the engine now, in their turn."""
        if self._held:
            if self.open:
                return []
            held, self._held = self._held, []
            return held
        admitted, rows = list[str](), sum(one.call.samples for one in self.open.values())
        while rows < self.slots and (one := self.desk.turns.next_sample()) is not None:
            admitted.append(one.id)
            rows += 1
        return admitted

    def _begin(self, record: RequestRecord) -> None:
        call = SampleCall.read(record, context=self.context)
        sampler = self.desk.ledger.find(SamplerRecord, record.owner)
        if sampler is None:
            raise DataError(f"there is no sampler {record.owner!r:.80}")
        if self.whole is not None and not self.whole.use(sampler, self.trainer, busy=bool(self.open)):
            self._held.append(record.id)
            return
        one = _OpenSample(record, call, "" if self.whole is not None else self._adapter(sampler))
        ask = Request(
            id=record.id, prompt=call.prompt, samples=call.samples, sampling=call.sampling, draw_id=call.draw_id,
            adapter=one.adapter,
        )  # fmt: skip
        try:
            self.engine.submit([ask])
        except HoneError:
            self._release(one.adapter)
            raise
        if one.asks_prompt:
            split = len(call.prompt) - call.prompt_last
            one.prompt_order = self._score(one, call.prompt[:split], call.prompt[split:], call.prompt_top)
        self.open[record.id] = one

    def _score(self, one: _OpenSample, prompt: NDArray[np.int32], tokens: NDArray[np.int32], top: int) -> int:
        sampling = SamplingParams(max_tokens=1, top_logprobs=top)
        return self.engine.submit_scores(
            [ScoreRequest(prompt=prompt, tokens=tokens, sampling=sampling, adapter=one.adapter)]
        )[0]

    def _pass(self) -> None:
        began, rows = time.thread_time(), {id: one.call.samples for id, one in self.open.items()}
        try:
            self.engine.step()
        except Exception as error:  # noqa: BLE001 - whoever waits hears of any failure, and the others go on
            self._fail(error)
            return
        spent = (time.thread_time() - began) * torch.get_num_threads() / sum(rows.values())
        work = self.engine.take_work() if isinstance(self.engine, FleetEngine) else {}
        with self.desk.wake:
            for id, count in rows.items():
                one = self.open[id]
                by_replicas = sum(work.get(name, 0.0) for name in (id, *one.orders, one.prompt_order))
                one.seconds += spent * count + by_replicas
                self.desk.turns.charge(one.record.tenant, spent * count + by_replicas)
        while (answer := self.engine.poll(self.open)) is not None:
            one = self.open[answer.request_id]
            one.answers[answer.sample_index] = answer
            if one.rescored:
                top = one.call.sampling.top_logprobs
                one.orders[self._score(one, one.call.prompt, answer.tokens, top)] = answer.sample_index
        for one in list(self.open.values()):
            for order, result in self.engine.poll_scores([*one.orders, one.prompt_order]).items():
                if order == one.prompt_order:
                    one.prompt_scores = result
                else:
                    one.scores[one.orders.pop(order)] = result
            if one.complete:
                self._close(one.record, one.outcome())

    def _fail(self, error: Exception) -> None:
        """A pass failed: its requests are over, or those that the error is of; later ones try again."""
        work = error.work if isinstance(error, HoneError) else frozenset[str | int]()
        for id, one in list(self.open.items()):
            if not work or not work.isdisjoint((id, *one.orders, one.prompt_order)):
                self._end(one, failed(error))

    def _end(self, one: _OpenSample, outcome: RequestResult) -> None:
        """Close a request in progress."""
        self.engine.cancel({one.record.id})
        self.engine.cancel_scores([*one.orders, one.prompt_order])
        self._close(one.record, outcome)

    def _drop(self, ids: set[str]) -> None:
        for id in ids:
            one = self.open.get(id)
            if one is not None:
                self._end(one, failed(DataError("the client cancelled this request")))
                continue
            with self.desk.wake:
                waited = id in self._held or self.desk.turns.drop_sample(id)
            self._held = [other for other in self._held if other != id]
            record = self.desk.ledger.find(RequestRecord, id)
            if waited and record is not None:
                self._close(record, failed(DataError("the client cancelled this request")))

    def _close(self, record: RequestRecord, outcome: RequestResult) -> None:
        one = self.open.pop(record.id, None)
        if one is not None:
            self._release(one.adapter)
        self.desk.finish(record, outcome)

    # ------------------------------------------------------------------------------------------ adapters

    def _adapter(self, record: SamplerRecord) -> str:
        """The name of a sampler's adapter, which the engine has from now on; empty for the base."""
        if record.model is not None:
            name, adapter = self.trainer.frozen_adapter(record.model)
            if name not in self._adapters:
                self.engine.add_adapter(name, unmerged(adapter))
        elif record.folder is not None:
            name = record.folder
            if name not in self._adapters:
                self.engine.add_adapter(name, unmerged(self.base.read_adapter(Path(name))))
        else:
            return ""
        self._adapters[name] = self._adapters.pop(name, 0) + 1
        unused = [other for other, uses in self._adapters.items() if not uses]
        for other in unused[: max(0, len(self._adapters) - self.most_adapters)]:
            self.engine.remove_adapter(other)
            del self._adapters[other]
        return name

    def _release(self, name: str) -> None:
        if name:
            self._adapters[name] -= 1
