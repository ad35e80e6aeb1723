"""Recording and replay of an asynchronous run: which policy version sampled which token.

Weights that are published while answers are written make a run depend on time. A recorded run writes the versions of
every answer; its replay collects each batch when it is needed, draws every token by its recorded version, and compares
what it draws with the record. Nothing else of a run depends on time, so that its weights are equal to the bit.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor

from hone.config.resolve import leaves
from hone.config.toml import dotted
from hone.core.config import Config, ConfigSetting
from hone.core.episodes import Episodes
from hone.core.errors import ConfigError, DataError, DivergedError
from hone.core.generation import AnswerKey, AnswerVersions, Completion
from hone.core.state import State, integer, substate
from hone.engine.engine import EmbeddedEngine
from hone.engine.scheduler import RecordedVersions
from hone.models.language.decoder import Decoder
from hone.models.language.token_policy import TokenPolicy
from hone.run.loop import SourceWrapper
from hone.run.resume import ALLOWED
from hone.run.store.interleaving import (
    INTERLEAVING,
    InterleavingHeader,
    InterleavingRecord,
    InterleavingWriter,
    RecordedBatch,
    answers_digest,
    read_interleaving,
)
from hone.run.store.manifest import config_diff, read_config
from hone.text.evaluate.engine_actor import EngineActor
from hone.text.rollout_config import AsyncRolloutConfig

_OWN_KEYS = ("name", "rollout.max_staleness.interleaving")


@dataclass
class RecordingActor(EngineActor):
    """Engine whose completions are kept until their batch is recorded or compared."""

    completions: list[Completion] = field(default_factory=list[Completion])

    def next_completion(
        self, request_ids: Collection[str] | None = None, *, wake: Callable[[], bool] | None = None
    ) -> Completion | None:
        completion = super().next_completion(request_ids, wake=wake)
        if completion is not None:
            self.completions.append(completion)
        return completion

    def pop_completions(self) -> list[Completion]:
        """Completions since the last call."""
        completions, self.completions = self.completions, []
        return completions

    def header(self) -> InterleavingHeader:
        """Facts of the engine for the record."""
        engine = self.engine
        if isinstance(engine, EmbeddedEngine):
            return InterleavingHeader(on_publish=engine.on_publish, runner=engine.runner.name)
        from hone.engine.fleet.fleet_engine import FleetEngine  # noqa: PLC0415 - fleets alone need it

        assert isinstance(engine, FleetEngine), "a server's versions are not recorded"
        return InterleavingHeader(on_publish=engine.on_publish, runner=engine.wait_arithmetic().runner)


@dataclass
class RecordedSource(SourceWrapper[TokenPolicy]):
    """Source that records the versions of each batch's answers once `open_folder` has named the run's folder."""

    actor: RecordingActor
    batches: int = 0
    """Batches collected so far."""
    _folder: Path | None = None
    _writer: InterleavingWriter | None = None

    def open_folder(self, folder: Path) -> None:
        """Record into the folder of a run, from the next batch on."""
        self._folder = folder

    def collect(self) -> Episodes:
        if self._folder is not None and self._writer is None:
            # Only now: replicas that name their arithmetic start at the first publication.
            self._writer = InterleavingWriter(self._folder / INTERLEAVING, self.actor.header())
            self._writer.start(batches=self.batches)
        episodes = self.source.collect()
        self.batches += 1
        completions = self.actor.pop_completions()
        if self._writer is not None:
            self._writer.append(self.batches, completions)
        return episodes

    def state(self) -> State:
        if self._writer is not None:
            self._writer.sync()
        return {"source": self.source.state(), "batches": self.batches}

    def restore(self, state: State) -> None:
        self.batches = integer(state, "batches")
        self.source.restore(substate(state, "source"))


# ------------------------------------------------------------------------------------------- replay


@dataclass
class _WeightHistory:
    """Weights of the latest versions of a model, copied on its device."""

    decoder: Decoder
    size: int
    """Number of versions that are kept."""
    _copies: dict[int, dict[str, Tensor]] = field(default_factory=dict[int, dict[str, Tensor]])

    def save(self, version: int) -> None:
        """Copy the model's present weights."""
        self._copies[version] = {name: one.detach().clone() for name, one in self.decoder.stored_tensors().items()}
        self._copies = {kept: copies for kept, copies in self._copies.items() if kept > version - self.size}

    def load(self, version: int) -> None:
        """Put the weights of a version into the model. Raises DataError for one that is not kept."""
        if version not in self._copies:
            kept = ", ".join(map(str, sorted(self._copies)))
            raise DataError(f"the record asks for weights of version {version}; at this step it can have {kept}")
        with torch.no_grad():
            for name, one in self.decoder.stored_tensors().items():
                one.copy_(self._copies[version][name])

    def restore(self) -> None:
        """Put the newest weights back."""
        self.load(max(self._copies))


@dataclass
class ReplayingActor(RecordingActor):
    """Engine that draws each token by its recorded version; `start` comes first."""

    history: _WeightHistory | None = None
    batch: RecordedBatch | None = None
    """Record of the batch that is collected."""

    def start(self, decoder: Decoder, *, versions: int) -> None:
        """Keep the weights of so many versions, and draw by the record from now on."""
        assert isinstance(self.engine, EmbeddedEngine)
        self.history = _WeightHistory(decoder, versions)
        self.engine.replay(RecordedVersions(self._versions_of, self.history.load))

    def require_engine(self, record: InterleavingRecord) -> None:
        """Raise ConfigError where the record is of an engine that rounds otherwise than this one."""
        now = self.header()
        if record.header != now:
            raise ConfigError(
                f"{record.path}:1: recorded with {record.header.runner} and on_publish = {record.header.on_publish!r}, "
                f"and this run has {now.runner} and {now.on_publish!r}; replay it on the same kind of processor"
            )

    def publish(self, policy: TokenPolicy, version: int) -> None:
        """Keep the weights: the engine fetches them when a token asks for them."""
        del policy
        assert self.history is not None
        self.history.save(version)

    def _versions_of(self, answer: AnswerKey) -> AnswerVersions:
        versions = None if self.batch is None else self.batch.versions.get(answer)
        if versions is None:
            name, turn, sample = answer
            raise DataError(f"the record has no sample {sample} of request {name!r}, turn {turn}: it is of another run")
        return versions


@dataclass
class ReplayedSource(SourceWrapper[TokenPolicy]):
    """Source that collects recorded batches again, and compares them with the record."""

    actor: ReplayingActor
    record: InterleavingRecord
    batches: int = 0

    def collect(self) -> Episodes:
        """Raises DivergedError naming the requests whose tokens or log-probabilities are not those of the record."""
        actor, number = self.actor, self.batches + 1
        assert actor.history is not None
        actor.batch = self.record.read_batch(number)
        try:
            episodes = self.source.collect()
        finally:
            actor.history.restore()
        self.batches = number
        self._compare(actor.pop_completions(), actor.batch)
        return episodes

    def _compare(self, completions: Sequence[Completion], batch: RecordedBatch) -> None:
        ordered = sorted(completions, key=lambda one: (one.request_id, one.turn))
        differing = [
            f"{name!r}, turn {turn}"
            for (name, turn), own in groupby(ordered, key=lambda one: (one.request_id, one.turn))
            if batch.digests[name, turn] != answers_digest(list(own))
        ]
        if differing:
            raise DivergedError(
                f"batch {self.batches} of {self.record.path} came out otherwise: answers to {len(differing)} of "
                f"{len(batch.digests)} requests differ, first {differing[0]}. The settings are the "
                "recorded ones; other data, another version of torch or hone, or another processor gives other answers"
            )

    def state(self) -> State:
        return {"source": self.source.state(), "batches": self.batches}

    def restore(self, state: State) -> None:
        del state
        raise ConfigError(
            "a replay cannot be resumed: the weights of earlier versions are not in its checkpoint; start it again "
            "with a new --name"
        )


# ------------------------------------------------------------------------------------------- checks


def replayed_record(asynchrony: AsyncRolloutConfig) -> InterleavingRecord | None:
    """The record to be replayed, checked line by line; None where none is. Raises DataError."""
    run = asynchrony.replayed_run
    return None if run is None else read_interleaving(Path(run) / INTERLEAVING)


def check_replay(config: Config, asynchrony: AsyncRolloutConfig) -> list[str]:
    """Check the record of a replay, and that its run had the same settings. Raises DataError and ConfigError."""
    run = asynchrony.replayed_run
    if run is None:
        return []
    replayed_record(asynchrony)
    now = {
        dotted(path): ConfigSetting(value=value)  # pyright: ignore[reportArgumentType] - JSON values
        for path, value in leaves(config.model_dump(mode="json"))
    }
    before = {key: one for key, one in read_config(Path(run) / "config.json").items() if key not in _OWN_KEYS}
    now = {key: one for key, one in now.items() if key not in _OWN_KEYS}
    lines = [line for line in config_diff(before, now) if not ALLOWED.accepts_key(line.split(":", 1)[0])]
    if lines:
        raise ConfigError(
            f"rollout.max_staleness.interleaving = {run!r}: the recorded run had other settings; undo these changes:",
            *(f"  {line}" for line in lines),
        )
    return []
