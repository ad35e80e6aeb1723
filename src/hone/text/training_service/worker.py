"""The thread that trains: requests by their turns, rows of several tenants in one pass, and snapshots."""

import json
import math
import re
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hone.core.errors import DataError, HoneError, ResourceError
from hone.core.state import State
from hone.models.language.lora import LoraAdapter
from hone.run.store.checkpoints import Checkpoint, CheckpointFolder
from hone.text.training_service.desk import DeskThread, RequestDesk, failed, json_outcome
from hone.text.training_service.learner import AdamStep, AdapterShape, ServedBase, TrainedModel
from hone.text.training_service.ledger import (
    CheckpointRecord,
    ModelRecord,
    RequestRecord,
    RequestResult,
    SamplerRecord,
)
from hone.text.training_service.losses import RowLoss, find_loss
from hone.text.training_service.messages import PROTOBUF, Datum, forward_backward_output, read_call
from hone.text.training_service.row_ranks import RowRanks
from hone.text.training_service.rows import RowResult, TrainedRow
from hone.text.training_service.turns import RowOffer, Waiting, share_pass

SEGMENTS: Final = {"training": "weights", "sampler": "sampler_weights", "external": "external_weights"}
"""Part of a path for each kind of checkpoint."""
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_LOOK_S: Final = 1.0
"""Seconds between two looks at what is late."""
_SNAPSHOT_SHARE: Final = 10.0
"""A snapshot is taken once the work since the last one took so many times as long as that."""


def folder_name(id: str) -> str:
    """A model's or sampler's id as the name of a folder."""
    return id.replace(":", "_")


def check_name(name: object) -> str:
    """The name of a checkpoint. Raises DataError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise DataError(f"a checkpoint's name has 1 to 128 letters, digits, '.', '_' and '-', got {name!r:.80}")
    return name


@dataclass(slots=True, eq=False)
class _Pass:
    """A forward (and backward) call, as far as its rows are computed."""

    record: RequestRecord
    waiting: Waiting
    model: TrainedModel
    forward_only: bool
    data: Sequence[Datum]
    loss: str
    options: Mapping[str, float]
    before: Tensor | None = None
    """The gradient as it was; None where there was none."""
    results: list[RowResult] = field(default_factory=list[RowResult])

    def row(self, place: int) -> TrainedRow:
        """A row."""
        datum = self.data[place]
        return TrainedRow(
            adapter=self.model.adapter,
            tokens=datum.tokens,
            targets=np.array(datum.inputs["target_tokens"], np.int64),
            loss=RowLoss(name=self.loss, datum=datum, options=self.options),
        )

    def take(self, result: RowResult) -> None:
        """Add the result of the next row. Raises DataError for one that is not finite."""
        if not math.isfinite(result.loss) or not np.isfinite(result.logprobs).all():
            raise DataError(f"datum {len(self.results)}: the loss is {result.loss}; nothing of this call was added")
        if not self.forward_only:
            self.model.add_gradients([result])
        self.results.append(RowResult(logprobs=result.logprobs, loss=result.loss, gradient=None))

    def undo(self) -> None:
        """Take back what the call added."""
        if not self.forward_only:
            self.model.restore_gradient(self.before)

    def outcome(self, core_s: float) -> RequestResult:
        tokens = sum(len(datum.tokens) for datum in self.data)
        metrics = {"loss:sum": sum(one.loss for one in self.results), "num_tokens:sum": float(tokens)}
        logprobs: list[NDArray[np.float32]] = [one.logprobs for one in self.results]
        usage = {"forward_tokens" if self.forward_only else "train_tokens": float(tokens), "core_s": core_s}
        return RequestResult(result=forward_backward_output(logprobs, metrics), media=PROTOBUF, usage=usage)


@dataclass(slots=True, eq=False)
class TrainingWorker:
    """Owner of all models in training. `start` it once."""

    base: ServedBase
    desk: RequestDesk
    folder: Path
    context: int
    pass_tokens: int = 512
    """Tokens of the rows of one pass; a longer row has one of its own."""
    resident: int = 64
    """Models that are held in memory; others wait on the disk."""
    ranks: RowRanks | None = None
    """Processes that share the rows of each pass with this one."""
    models: dict[str, TrainedModel] = field(default_factory=dict[str, TrainedModel])
    """By id, the one that was used last at the end."""
    computing: threading.Lock = field(default_factory=threading.Lock)
    """Held while weights may change."""
    _passes: dict[str, _Pass] = field(default_factory=dict[str, _Pass])
    _token_s: float = 0.0
    """Core-seconds of a token in the last pass."""
    _work_s: dict[str, float] = field(default_factory=dict[str, float])
    """Work on each model since its snapshot, and the seconds that the snapshot took."""
    _snapshot_s: dict[str, float] = field(default_factory=dict[str, float])
    _unbilled_s: dict[str, float] = field(default_factory=dict[str, float])
    """Core-seconds of each model that no result of a pass has taken to its tenant's bill yet."""
    _versions: dict[str, int] = field(default_factory=dict[str, int])
    """How often each model's weights may have changed in this process: a step count comes again after a checkpoint."""
    _turn_s: dict[Waiting, float] = field(default_factory=dict[Waiting, float])
    """Core-seconds of each request in this turn."""
    thread: DeskThread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = DeskThread("hone-training", self._run)

    def frozen_weights(self, model: str, known: str | None) -> tuple[str, dict[str, Tensor]]:
        """A name and a copy of all weights of a model as they are now; of one version the same name, and no copy where
        that is `known`."""
        with self.computing:
            trained = self._model(model)
            name = self._version_name(model)
            if name == known:
                return name, {}
            return name, {one: own.detach().clone() for one, own in trained.rows.decoder.named_parameters()}

    def frozen_adapter(self, model: str) -> tuple[str, LoraAdapter]:
        """A name and a copy of a model's adapter as it is now; of one version the same name."""
        with self.computing:
            trained = self._model(model)
            assert trained.adapter is not None
            twin = trained.adapter.with_leaves()
            for _, factor in twin.factors():
                factor.data = factor.detach().clone()
            return self._version_name(model), twin

    def _version_name(self, model: str) -> str:
        return f"{model}@{self._versions.get(model, 0)}"

    def keep(self) -> None:
        """Save all models behind their last steps, so that the next process has nothing to repeat; for a worker whose
        thread has ended. A model with a gradient stays as its last snapshot and the requests behind that."""
        for id, trained in self.models.items():
            if not trained.pending and id not in self._passes and self._work_s.get(id):
                with suppress(ResourceError):
                    self._take_snapshot(id, self.desk.ledger.last_seq(id), trained)

    # ---------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        while True:
            with self.desk.wake:
                if self.desk.closing:
                    return
                late = self.desk.turns.behind_holes(self.desk.clock.monotonic_s())
                ready = list(self.desk.turns.next_training())
                if not (late or ready or self._passes):
                    self.desk.wake.wait(_LOOK_S)
                    continue
            for one, hole in late:
                message = f"request {one.seq} of {one.owner} waited for number {hole}, which never came"
                self.desk.finish(self._record(one), failed(DataError(message)))
            with self.computing:
                began = time.thread_time()
                self.turn(ready)
                self._spread(time.thread_time() - began)

    def turn(self, ready: Sequence[Waiting]) -> None:
        """Do one piece of work: that of the tenant who had least."""
        spent = self.desk.turns.spent_s
        waiting = [*(one.waiting for one in self._passes.values()), *ready]
        order = sorted(waiting, key=lambda one: (spent.get(one.tenant, 0.0), one.came_s))
        if not order:
            return
        if order[0].kind != "forward_backward":
            self._do(order[0])
            return
        for one in order:
            if one.kind == "forward_backward" and one.owner not in self._passes:
                self._open_pass(one)
        if passes := [self._passes[one.owner] for one in order if one.owner in self._passes]:
            self._compute(passes)

    def _do(self, one: Waiting) -> None:
        """Do a request that is not made of rows."""
        record, began = self._begin(one), time.thread_time()
        body: dict[str, Any] = json.loads(record.body)
        handlers: dict[str, Callable[[RequestRecord, dict[str, Any]], RequestResult]] = {
            "create_model": self._create_model,
            "optim_step": self._optim_step,
            "load_weights": self._load_weights,
            "save_weights": partial(self._save_weights, "training"),
            "save_weights_external": partial(self._save_weights, "external"),
            "save_weights_for_sampler": self._save_for_sampler,
        }
        self.desk.attempt(record, lambda: handlers[record.kind](record, body))
        self._charge(one, time.thread_time() - began)
        if record.kind in ("optim_step", "load_weights"):
            self._versions[one.owner] = self._versions.get(one.owner, 0) + 1
            self._keep_snapshot(record)
        self._end(one)

    def _open_pass(self, one: Waiting) -> None:
        record, began = self._begin(one), time.thread_time()
        try:
            self._passes[one.owner] = self._read_pass(record, one)
            self._charge(one, time.thread_time() - began)
        except Exception as error:  # noqa: BLE001 - the client hears of any failure
            self.desk.finish(record, failed(error))
            self._end(one)

    def _read_pass(self, record: RequestRecord, one: Waiting) -> _Pass:
        """A call whose rows were checked. Raises DataError with every fault."""
        call = read_call(record.body)
        loss, data = find_loss(call.loss), call.data()
        options = loss.settings(call.loss, call.options)
        faults = [fault for place, datum in enumerate(data) for fault in loss.check(call.loss, place, datum)]
        vocab = self.base.rows.vocab_used
        for place, datum in enumerate(data):
            if len(datum.tokens) > self.context:
                faults.append(f"datum {place} has {len(datum.tokens)} tokens, at most {self.context} are served")
            for name, ids in (("model_input", datum.tokens), ("target_tokens", datum.inputs["target_tokens"])):
                if ids.size and not 0 <= ids.min() <= ids.max() < vocab:
                    faults.append(
                        f"datum {place}: {name} has ids from {ids.min()} to {ids.max()}; known: 0 to {vocab - 1}"
                    )
        if faults:
            raise DataError(*faults[:5])
        model = self._model(record.owner, before=record.seq)
        before = None if call.forward_only else model.gradient()
        return _Pass(record, one, model, call.forward_only, data, call.loss, options, before)

    def _compute(self, passes: Sequence[_Pass]) -> None:
        """One pass over rows of several calls, the tenant's first that had least work."""
        forward_only = passes[0].forward_only
        with self.desk.wake:
            spent, weights = dict(self.desk.turns.spent_s), self.desk.turns.weights
        offers = [
            RowOffer(
                tenant=one.waiting.tenant,
                weight=weights.get(one.waiting.tenant, 1.0),
                spent_s=spent.get(one.waiting.tenant, 0.0),
                tokens=[len(datum.tokens) for datum in one.data[len(one.results) :]],
            )
            for one in passes
        ]
        able = [place for place, one in enumerate(passes) if one.forward_only == forward_only]
        computer = self.ranks or passes[0].model.rows
        room = self.pass_tokens * (1 if self.ranks is None else self.ranks.size)
        room = room if passes[0].model.rows.shares_passes else 1
        chosen = [able[one] for one in share_pass([offers[place] for place in able], room, self._token_s)]
        next_row = {place: len(passes[place].results) for place in able}
        rows, sizes = list[TrainedRow](), list[int]()
        for place in chosen:
            rows.append(passes[place].row(next_row[place]))
            sizes.append(len(rows[-1].tokens))
            next_row[place] += 1
        began = time.thread_time()
        try:
            results = computer.compute(rows, gradients=not forward_only)
        except Exception as error:  # noqa: BLE001 - whoever waits hears of any failure
            for place in sorted({*chosen}):
                self._close_pass(passes[place], failed(error))
            return
        spent_s, tokens = time.thread_time() - began, sum(sizes)
        spent_s += 0.0 if self.ranks is None else self.ranks.core_s
        self._token_s = spent_s * torch.get_num_threads() / tokens
        for place, size, result in zip(chosen, sizes, results, strict=True):
            one, fault, began = passes[place], None, time.thread_time()
            open_still = self._passes.get(one.waiting.owner) is one  # else an earlier row of its call was not finite
            if open_still:
                try:
                    one.take(result)
                except HoneError as error:
                    fault = error
            self._charge(one.waiting, spent_s * size / tokens + time.thread_time() - began)
            if fault is not None:
                self._close_pass(one, failed(fault))
            elif open_still and len(one.results) == len(one.data):
                self._close_pass(one, one.outcome(self._unbilled_s.pop(one.waiting.owner, 0.0)))

    def _close_pass(self, one: _Pass, outcome: RequestResult) -> None:
        if outcome.category is not None:
            one.undo()
        del self._passes[one.waiting.owner]
        self.desk.finish(one.record, outcome)
        self._end(one.waiting)

    # ------------------------------------------------------------------------------------------ requests

    def _create_model(self, record: RequestRecord, body: dict[str, Any]) -> RequestResult:
        del body
        self._model(record.owner)
        return json_outcome({"type": "create_model", "model_id": record.owner})

    def _optim_step(self, record: RequestRecord, body: dict[str, Any]) -> RequestResult:
        asked = AdamStep.read(_adam_params(body))
        metrics = self._model(record.owner, before=record.seq).step(asked)
        done = json_outcome({"type": "optim_step", "metrics": metrics})
        return replace(done, usage={"steps": 1.0, "core_s": self._unbilled_s.pop(record.owner, 0.0)})

    def _load_weights(self, record: RequestRecord, body: dict[str, Any]) -> RequestResult:
        saved = self._readable(str(body["path"]), record.tenant)
        if saved.kind != "training":
            raise DataError(f"{saved.path} is no training checkpoint: it has no optimizer; load one of save_weights")
        state = self._checkpoint(saved).state()
        self._model(record.owner, before=record.seq).restore(state, optimizer=bool(body.get("optimizer")))
        return json_outcome({"type": "load_weights", "path": saved.path, "model_id": record.owner})

    def _save_weights(self, kind: str, record: RequestRecord, body: dict[str, Any]) -> RequestResult:
        saved = self._save(kind, record, body)
        verb = record.kind
        outcome = json_outcome({"type": verb, "path": saved.path, "size_bytes": saved.size_bytes})
        return RequestResult(result=outcome.result, media=outcome.media, checkpoint=saved)

    def _save_for_sampler(self, record: RequestRecord, body: dict[str, Any]) -> RequestResult:
        if body.get("path"):
            return self._save_weights("sampler", record, body)
        model = self.desk.ledger.find(ModelRecord, record.owner)
        assert model is not None
        sampler = f"{model.session}:sample:{int(body['sampling_session_seq_id'])}"
        inflight = body.get("kind") == "inflight"
        folder = None
        if not inflight:
            trained, target = (
                self._model(record.owner, before=record.seq),
                self.folder / "samplers" / folder_name(sampler),
            )
            folder = str(self._write(trained, target, {}) / "policy")
        saved = SamplerRecord(
            id=sampler, session=model.session, tenant=model.tenant, path=None, folder=folder,
            model=record.owner if inflight else None, created_s=self.desk.clock.now_s(),
        )  # fmt: skip
        outcome = json_outcome({"type": "save_weights_for_sampler", "sampling_session_id": sampler})
        return RequestResult(result=outcome.result, media=outcome.media, sampler=saved)

    # --------------------------------------------------------------------------------------- checkpoints

    def _save(self, kind: str, record: RequestRecord, body: dict[str, Any]) -> CheckpointRecord:
        name, ledger, now = check_name(body.get("path")), self.desk.ledger, self.desk.clock.now_s()
        path = f"tinker://{record.owner}/{SEGMENTS[kind]}/{name}"
        earlier = ledger.find(CheckpointRecord, path)
        if earlier is not None and not body.get("overwrite"):
            raise DataError(f"the checkpoint {path} exists; give another name, or overwrite = true")
        trained = self._model(record.owner, before=record.seq)
        target = self.folder / "checkpoints" / folder_name(record.owner) / SEGMENTS[kind] / f"{name}.{record.id[:8]}"
        if target.exists():  # of an attempt of this request that was killed before its result was written
            shutil.rmtree(target)
        folder = self._write(trained, target, trained.state() if kind == "training" else {})
        ttl, metadata = body.get("ttl_seconds"), body.get("user_metadata")
        return CheckpointRecord(
            path=path,
            model=record.owner,
            tenant=record.tenant,
            kind=kind,
            name=name,
            folder=str(folder),
            created_s=now,
            size_bytes=sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
            expires_s=None if ttl is None else now + float(ttl),
            metadata=None if metadata is None else json.dumps(metadata),
        )

    def _write(self, trained: TrainedModel, target: Path, state: State) -> Path:
        return CheckpointFolder(folder=target).save(
            trained.steps, state, write_policy=partial(self.base.write, trained)
        )

    def _readable(self, path: str, tenant: str) -> CheckpointRecord:
        """The checkpoint of a path. Raises DataError, the same where it is another tenant's and where there is none."""
        saved = self.desk.ledger.find(CheckpointRecord, path)
        if saved is None or not (saved.public or saved.tenant == tenant):
            raise DataError(f"there is no checkpoint {path!r:.200}")
        return saved

    def _checkpoint(self, saved: CheckpointRecord) -> Checkpoint:
        folder = Path(saved.folder)
        return CheckpointFolder(folder=folder.parent).at(int(folder.name.removeprefix("step_")))

    # ----------------------------------------------------------------------------------- models, snapshots

    def _model(self, id: str, *, before: int | None = None) -> TrainedModel:
        """A model as its requests left it: in memory, or from its last snapshot and the requests behind that, done
        again; those before number `before`, if it is given. Raises DataError for one that does not exist."""
        trained = self.models.pop(id, None)
        if trained is None:
            record = self.desk.ledger.find(ModelRecord, id)
            if record is None:
                raise DataError(f"there is no model {id!r:.80}")
            trained = self._restored(record, before)
        self.models[id] = trained
        self._make_room()
        return trained

    def _restored(self, record: ModelRecord, before: int | None) -> TrainedModel:
        shape = AdapterShape(
            rank=record.rank, attention=bool(record.attention), mlp=bool(record.mlp), output=bool(record.output)
        )
        trained = self.base.new_model(shape, seed=record.seed)
        if record.snapshot_seq >= 0:
            trained.restore(self._snapshots(record.id).at(record.snapshot_seq).state())
        for request in self.desk.ledger.changes_after(record.id, record.snapshot_seq):
            if before is None or request.seq < before:
                self._repeat(trained, request)
        return trained

    def _repeat(self, trained: TrainedModel, request: RequestRecord) -> None:
        """Change a model as a finished request did."""
        if request.kind == "optim_step":
            trained.step(AdamStep.read(_adam_params(json.loads(request.body))))
        elif request.kind == "load_weights":
            body = json.loads(request.body)
            saved = self._readable(body["path"], request.tenant)
            trained.restore(self._checkpoint(saved).state(), optimizer=bool(body.get("optimizer")))
        else:
            call = read_call(request.body)
            options = find_loss(call.loss).settings(call.loss, call.options)
            turn = Waiting(
                id=request.id, tenant=request.tenant, owner=request.owner, seq=request.seq, kind=request.kind,
                came_s=0.0,
            )  # fmt: skip
            again = _Pass(request, turn, trained, call.forward_only, call.data(), call.loss, options)
            while len(again.results) < len(again.data):
                again.take(trained.rows.compute([again.row(len(again.results))], gradients=True)[0])

    def _snapshots(self, id: str) -> CheckpointFolder:
        return CheckpointFolder(folder=self.folder / "models" / folder_name(id), keep_best=0)

    def _keep_snapshot(self, record: RequestRecord) -> None:
        """Save a model after a step, if the work since the last snapshot is worth it, and after loading."""
        trained = self.models.get(record.owner)
        if trained is None or trained.pending:
            return
        due = self._work_s.get(record.owner, 0.0) >= _SNAPSHOT_SHARE * self._snapshot_s.get(record.owner, 0.0)
        if due or record.kind == "load_weights":
            with suppress(ResourceError):  # a full disk: the requests stay in the ledger, and the next step tries again
                self._take_snapshot(record.owner, record.seq, trained)

    def _take_snapshot(self, id: str, seq: int, trained: TrainedModel) -> None:
        began = time.thread_time()
        self._snapshots(id).save(seq, trained.state())
        self.desk.ledger.note_snapshot(id, seq)
        self._work_s[id], self._snapshot_s[id] = 0.0, time.thread_time() - began

    def _make_room(self) -> None:
        """Put models to the disk that nobody used for long; those with a gradient stay."""
        for id, trained in list(self.models.items())[: -self.resident]:
            if not trained.pending and id not in self._passes:
                self._take_snapshot(id, self.desk.ledger.last_seq(id), trained)
                del self.models[id]

    # --------------------------------------------------------------------------------------------- turns

    def _record(self, one: Waiting) -> RequestRecord:
        record = self.desk.ledger.find(RequestRecord, one.id)
        assert record is not None
        return record

    def _begin(self, one: Waiting) -> RequestRecord:
        with self.desk.wake:
            self.desk.turns.begin(one)
        return self._record(one)

    def _end(self, one: Waiting) -> None:
        with self.desk.wake:
            self.desk.turns.end(one)

    def _charge(self, one: Waiting, seconds: float) -> None:
        seconds *= torch.get_num_threads()
        with self.desk.wake:
            self.desk.turns.charge(one.tenant, seconds)
        for account in (self._work_s, self._unbilled_s):
            account[one.owner] = account.get(one.owner, 0.0) + seconds
        self._turn_s[one] = self._turn_s.get(one, 0.0) + seconds

    def _spread(self, turn_s: float) -> None:
        """Charge what a turn took beyond the work on its requests, such as writing results, by that work."""
        charged, self._turn_s = self._turn_s, {}
        total = sum(charged.values())
        beyond = turn_s * torch.get_num_threads() - total
        for one, seconds in charged.items() if total and beyond > 0 else ():
            self._charge(one, beyond * seconds / total / torch.get_num_threads())
        self._turn_s = {}


def _adam_params(body: Mapping[str, Any]) -> Mapping[str, object]:
    """Settings of a step. Raises DataError for another optimizer than AdamW."""
    settings = body.get("optimizer_params") or {}
    if settings and settings.get("type", "adamw") != "adamw":
        raise DataError(f"the optimizer {settings.get('type')!r} is not served; known: adamw")
    return body.get("adam_params") or {name: value for name, value in settings.items() if name != "type"}
