"""A server process: from a model's folder or run to a listening port, until a signal; then requests in progress end."""

import gc
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal, get_args

import torch
import uvicorn
from torch import Tensor

from hone.core.clock import SystemClock
from hone.core.errors import ConfigError, DataError, HoneError
from hone.engine.engine import EmbeddedEngine
from hone.engine.open_engine import EngineGuarantees
from hone.models.language.token_policy import TokenPolicy
from hone.native.build import return_freed_memory
from hone.run.http.listening import listening, signals_end_quietly
from hone.run.http.requests import ClientShares, read_key, require_key
from hone.run.http.server import RunningServer, ServerEvents, TimedConnection
from hone.run.saved_config import is_control
from hone.run.store.checkpoints import CheckpointFolder
from hone.run.store.folder import open_run
from hone.text.evaluate.engine_actor import make_engine
from hone.text.evaluate.open_policy import ServedModelSource, open_policy
from hone.text.evaluate.text_eval import prompt_task
from hone.text.serving.completions.app import CompletionRoutes, ServingRules
from hone.text.serving.completions.served_model import ServedModel
from hone.text.serving.completions.service import AnswerDesk, EngineService
from hone.text.tasks.chat_rows import row_tokenizer
from hone.text.tools.described import find_format, needs_description

# ---------------------------------------------------------------------------------------------------------- open served


_SHOWN: Final = 12
"""Digits of a hash in a fingerprint."""


ServedWeights = Literal["float32", "bfloat16", "int8", "int4"]
"""What the weights of a served model are kept in: in codes of 8 or 4 bits answers are drawn faster."""


def read_weights(name: str) -> ServedWeights:
    """A type of weights by its name. Raises ConfigError."""
    for known in get_args(ServedWeights):
        if known == name:
            return known
    raise ConfigError(f"--weights must be {', '.join(get_args(ServedWeights))}, got {name!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSource:
    """What is served, and how."""

    policy: Path
    """A model folder."""
    run: Path | None
    """Run that the folder belongs to."""
    name: str
    """Name under which clients ask for it."""
    device: str
    slots: int
    """Answers that are written at the same time."""
    context: int
    """Most tokens of a prompt and its answer; 0: the model's."""
    seed: int
    weights: ServedWeights = "float32"
    tool_format: str = ""
    """Format of the model's tool calls by name; empty: that of the run, or the one in which its chat template writes
    them."""

    @property
    def step(self) -> int | None:
        """Step of the checkpoint; None for a model folder outside of one."""
        _, _, number = self.policy.absolute().parent.name.partition("step_")
        return int(number) if number.isdecimal() and self.run is not None else None

    def open(self, folder: Path) -> TokenPolicy:
        """The policy of a folder, its weights in the type that is served. Raises as `open_policy`."""
        model = ServedModelSource(path=str(folder), weights=self.weights)
        return open_policy(model, seed=0, device=self.device, temperature=1.0)


@dataclass(slots=True, eq=False)
class OpenedModel:
    """An engine over a policy, with what clients are told of it."""

    source: ServedSource
    policy: TokenPolicy
    engine: EmbeddedEngine
    served: ServedModel
    fingerprints: dict[int, str]
    """By version."""

    def take_over(self, fresh: TokenPolicy, version: int) -> None:
        """Replace the weights, in place, by those of `fresh`. Call it between two passes of the engine. Raises
        DataError for weights of other shapes, DivergedError as `publish` does; the old ones are served then."""
        mine, theirs = self.policy.decoder.stored_tensors(), fresh.decoder.stored_tensors()
        if {name: one.shape for name, one in mine.items()} != {name: one.shape for name, one in theirs.items()}:
            raise DataError(f"the checkpoint of step {version} has weights of other shapes than the served model")
        before, old = {name: tensor.detach().clone() for name, tensor in mine.items()}, self.engine.version
        self.fingerprints[version] = _fingerprint(self.source.name, version, fresh.fingerprint())
        try:
            self._publish(theirs, version)
        except HoneError:
            self._publish(before, old)
            raise

    def free_weights(self) -> None:
        """Free the policy's weights where the engine has its own: none can take their place any more. Codes are
        multiplied where they lie."""
        if self.engine.own_weights and not self.policy.decoder.code_bits:
            self.engine.seal()
            for tensor in self.policy.decoder.stored_tensors().values():
                tensor.data = torch.empty(0)
            return_freed_memory()

    def _publish(self, weights: Mapping[str, Tensor], version: int) -> None:
        with torch.no_grad():
            for name, tensor in self.policy.decoder.stored_tensors().items():
                tensor.copy_(weights[name])
        self.engine.publish(version)


def _fingerprint(run: str, step: int | None, weight_hash: str) -> str:
    """`run@step-hash` of served weights; without the step where the folder is not a checkpoint's."""
    return f"{run}{'' if step is None else f'@{step}'}-{weight_hash[:_SHOWN]}"


def open_served(source: ServedSource) -> OpenedModel:
    """Open a model and its engine. Raises ConfigError, DataError and ResourceError."""
    if is_control(source.policy):
        raise ConfigError(f"{source.policy} is a control policy; hone.control.serving serves it")
    policy = source.open(source.policy)
    most = policy.decoder.config.max_positions
    context = source.context or most
    if not 2 <= context <= most:
        raise ConfigError(f"--context must be 2 to {most}, the positions of the model, got {context}")
    on_gpu = source.device.startswith("cuda")
    guarantees = EngineGuarantees(cache_bytes=torch.cuda.mem_get_info(source.device)[0] // 2 if on_gpu else None)
    engine = make_engine(
        policy, slots=source.slots, longest_prompt=context - 1, max_tokens=1, seed=source.seed, guarantees=guarantees
    )
    task, step = prompt_task(source.run)[0], source.step
    tools = None if task is None else task.tools
    tokenizer = policy.tokenizer if task is None else row_tokenizer(task, {}, policy.tokenizer)
    known = {step or 0: _fingerprint(source.name, step, policy.fingerprint())}
    engine.publish(step or 0)
    served = ServedModel(
        name=source.name,
        tokenizer=tokenizer.for_threads(),
        context=context,
        fingerprint_of=lambda version: known[version],
        tool_format=find_format(tokenizer, source.tool_format or ("" if tools is None else tools.format)),
        describes_tools=True if tools is None else tools.describe,
    )
    return OpenedModel(source, policy, engine, served, known)


@dataclass(slots=True, eq=False, kw_only=True)
class CheckpointFollower:
    """Thread that takes up each newer checkpoint of a run: read beside the passes, published between two of them."""

    opened: OpenedModel
    service: EngineService
    tell: Callable[[str], None]
    """Receives one line about each checkpoint."""
    every_s: float = 2.0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _refused: set[int] = field(default_factory=set[int])
    """Steps that could not be taken up, told once each."""
    _looking: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._watch, name="hone-serve-follow", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def look(self) -> bool:
        """Take up the newest checkpoint if it is newer than the served one; returns whether it did."""
        with self._looking:
            return self._look()

    def _look(self) -> bool:
        checkpoints = self._checkpoints
        newest = max(checkpoints.steps(), default=0)
        if newest <= self.opened.engine.version or newest in self._refused:
            return False
        try:
            checkpoint = checkpoints.at(newest)
            source = self.opened.source
            fresh = source.open(checkpoint.policy_folder)
            self.service.replace_weights(lambda: self.opened.take_over(fresh, checkpoint.step)).result()
        except HoneError as error:
            if checkpoints.steps()[-1:] == [newest]:  # otherwise the run has saved and pruned meanwhile
                self._refused.add(newest)
                self.tell(f"step {newest} is not served, the one before is: {error}")
            return False
        self.tell(f"serving {self.opened.served.fingerprint_of(newest)}")
        return True

    @property
    def _checkpoints(self) -> CheckpointFolder:
        assert self.opened.source.run is not None
        return open_run(self.opened.source.run, clock=SystemClock()).checkpoints()

    def _watch(self) -> None:
        fault = ""
        while not self._stop.wait(self.every_s):
            try:
                self.look()
            except HoneError as error:
                if str(error) != fault:
                    self.tell(f"new checkpoints cannot be seen: {error}")
                fault = str(error)


# ----------------------------------------------------------------------------------------------------------- run server


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerPlace:
    """Where a server listens, and its limits."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0: any free one."""
    deadline_s: float = 600.0
    """A request that is not answered by then gets 408; a stopping server waits as long for its requests."""
    queue: int = 256
    """Answers that may wait beside those that are being written; more are refused with 429."""
    per_client: int = 0
    """Answers in progress of one address; 0: seven eighths of `slots` and `queue`, so that others find room."""
    follow: bool = False
    """Take up each new checkpoint of the run."""
    rules: ServingRules = field(default_factory=ServingRules)
    key_file: Path | None = None
    """File that `rules.api_key` was read from; it is read again at SIGHUP."""

    def check(self) -> None:
        """Raise ConfigError for an address that others reach without a key."""
        require_key(self.host, self.rules.api_key)


def make_routes(opened: OpenedModel, service: EngineService, place: ServerPlace) -> CompletionRoutes:
    """The routes of one model, for `serve` here or for an application of your own."""
    clock, most = SystemClock(), opened.source.slots + place.queue
    desk = AnswerDesk(
        service=service,
        clock=clock,
        deadline_s=place.deadline_s,
        shares=ClientShares(most=most, share=place.per_client or most - most // 8),
    )
    return CompletionRoutes(served=opened.served, desk=desk, clock=clock, rules=place.rules)


def serve(opened: OpenedModel, place: ServerPlace, tell: Callable[[str], None]) -> None:
    """Serve until SIGTERM or Ctrl-C; requests in progress end first. SIGHUP reads the file of the key again, and takes
    up the run's newest checkpoint. `tell` receives lines for the user. Raises ConfigError as `place.check`,
    ResourceError where the port is taken."""
    place.check()
    if opened.source.run is None:  # no newer checkpoint will come
        opened.free_weights()
    service = EngineService(opened.engine)
    routes = make_routes(opened, service, place)
    with listening(place.host, place.port) as listener, signals_end_quietly() as signals:
        host, port = listener.getsockname()[:2]
        config = uvicorn.Config(
            routes.app(),
            http=TimedConnection,
            ws="none",
            log_level="warning",
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=max(1, round(place.deadline_s)),
        )
        gc.freeze()  # what is loaded by now stays: looking it through held up everybody while a large body was parsed
        service.start()
        follower = CheckpointFollower(opened=opened, service=service, tell=tell)
        if place.follow:
            follower.start()
        tell(_address(opened, host, port))
        events = ServerEvents(stop=routes.drain, reload=partial(_reload, routes, place, follower, tell))
        try:
            RunningServer(config, events, signals).run(sockets=[listener])
        finally:
            follower.close()
            service.close()
    tell("stopped: every request in progress was answered")


def _reload(
    routes: CompletionRoutes, place: ServerPlace, follower: CheckpointFollower, tell: Callable[[str], None]
) -> None:
    """Answer SIGHUP; what fails is told, and what was served before stays."""
    try:
        if place.key_file is not None:
            routes.rules = replace(routes.rules, api_key=read_key(place.key_file))
        fresh = follower.opened.source.run is not None and follower.look()
    except HoneError as error:
        tell(f"not reloaded: {error}")
    else:
        tell(f"reloaded{': the key' if place.key_file is not None else ''}{'' if fresh else '; no newer checkpoint'}")


def _address(opened: OpenedModel, host: str, port: int) -> str:
    shown = f"[{host}]" if ":" in host else host
    calls = opened.served.tool_format
    described = calls is not None and needs_description(opened.served.tokenizer, describe=opened.served.describes_tools)
    named = opened.served.fingerprint_of(opened.engine.version)
    return (
        f"serving {opened.served.name} ({named}) at http://{shown}:{port}/v1: {opened.engine.runner.name}, "
        f"{opened.source.slots} slots, context {opened.served.context} tokens, {opened.engine.stats.pages} pages, "
        f"{'no tools' if calls is None else f'tools as {calls.name}'}"
        f"{', described by hone' if described else ''}"
    )
