"""The library of a robot: steps into a spool, uploads when there is a network, policies that are checked before use.

    with Uploader(spool="robot.db", to="http://fleet:8000") as up:
        while running:
            policy = up.begin()                      # folder and version of this episode's policy
            ...
            up.step(observation, action, logp, reward, terminated, next_observation=after)

`step` and `begin` never wait for the network: a thread sends what waits, and asks for policies. Needs Python's standard
library alone: no torch, no numpy.
"""

import contextlib
import hashlib
import json
import shutil
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Final, TypeAlias, cast
from urllib.parse import quote, urlsplit

from hone.core.clock import Clock, SystemClock
from hone.core.errors import ConfigError, DataError, ResourceError
from hone.core.robot_steps import TERMINATED, TRUNCATED, RobotSchema, RobotStep, number_row, pack_step
from hone.decide.fleet.manifest import FleetManifest, robot_token
from hone.decide.fleet.spool import EPISODE, STEP, RobotSpool, open_spool

MOST_FIRST: Final = 12
"""Numbers of an episode's first observation that are told with its return: covariates of a comparison."""
_LONGEST_PAUSE_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCall:
    """A request to the service."""

    method: str
    path: str
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


Transport: TypeAlias = Callable[[HttpCall], tuple[int, bytes]]
"""Sends a request -> status and body. Raises OSError without a network."""


@dataclass(slots=True)
class HttpTransport:
    """A connection that is kept, and made again where it broke."""

    url: str
    timeout_s: float = 10.0
    _connection: HTTPConnection | None = None

    def __call__(self, call: HttpCall) -> tuple[int, bytes]:
        """Send a request; again on a new connection where a kept one was closed meanwhile. Raises OSError."""
        if self._connection is not None:
            with contextlib.suppress(OSError):
                return self._sent(call)
        return self._sent(call)

    def _sent(self, call: HttpCall) -> tuple[int, bytes]:
        parts = urlsplit(self.url)
        try:
            if self._connection is None:
                kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
                self._connection = kind(parts.hostname or "", parts.port, timeout=self.timeout_s)
            path = parts.path.rstrip("/") + call.path
            self._connection.request(call.method, path, call.body or None, dict(call.headers))
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, HTTPException) as error:
            self.close()
            raise OSError(f"{self.url}: {error!r}") from error

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodePolicy:
    """The policy that an episode is run by."""

    version: str
    """Empty: the service has none yet."""
    number: int
    folder: Path | None
    """Its files; None: the service has none yet, act as you did."""
    route: str
    """Rollout, arm and stage, of an episode on trial; empty: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceStatus:
    """What a robot knows of itself."""

    waiting: int
    """Records in the spool."""
    dropped: int
    """Records that a full spool dropped."""
    refused: int
    """Records that the service refused; they are kept aside."""
    watermark: int
    """Highest number below which the service misses nothing; -1: none."""
    live: str
    trial: str
    faults: tuple[str, ...]
    """The last fault of uploads, and of policies; none after a success."""


@dataclass(slots=True, kw_only=True)
class _OpenEpisode:
    number: int
    policy: EpisodePolicy
    at_s: float
    first: tuple[float, ...] = ()
    steps: int = 0
    total: float = 0.0


class Uploader:
    """The device's end of a fleet.

    `robot`: its name, the host's unless given. `secret`: the robot's own, from `hone.decide.fleet.manifest`; without
    one only the sha256 of files is checked, and services that want tokens refuse it. `observation`, `action`: names of
    the numbers; o0, o1, ... and a0, ... unless given. `choices`: numbered actions. `capacity`: records of the spool.
    `background=False` sends in `sync` alone.
    """

    def __init__(  # noqa: PLR0913 - a robot is set up in one place
        self,
        spool: str | Path,
        *,
        to: str,
        robot: str = "",
        secret: str = "",
        observation: tuple[str, ...] = (),
        action: tuple[str, ...] = (),
        choices: int = 0,
        capacity: int = 1_000_000,
        batch: int = 500,
        every_s: float = 1.0,
        full_sync: bool = False,
        background: bool = True,
        clock: Clock | None = None,
        transport: Transport | None = None,
    ) -> None:
        if capacity < 1 or not 1 <= batch <= 1000:
            raise ConfigError(f"capacity {capacity} must be at least 1, and batch {batch} from 1 to 1000")
        self.robot = robot or socket.gethostname()
        self.secret, self.batch, self.every_s, self.background = secret, batch, every_s, background
        self._path, self._capacity, self._full_sync = Path(spool), capacity, full_sync
        self._names, self._choices = (tuple(observation), tuple(action)), choices
        self._clock: Clock = SystemClock() if clock is None else clock
        self._send: Transport = HttpTransport(to) if transport is None else transport
        self._faults = {"upload": "", "policy": ""}
        self._stop, self._wake = threading.Event(), threading.Event()
        self._syncing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._spool: RobotSpool | None = None
        self._schema: RobotSchema | None = None
        self._manifest: FleetManifest | None = None
        self._open: _OpenEpisode | None = None

    def __enter__(self) -> "Uploader":
        self.open()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def open(self) -> None:
        """Open the spool, and begin to send. Raises DataError and ResourceError."""
        self._spool = open_spool(self._path, capacity=self._capacity, full_sync=self._full_sync)
        if text := self._spool.get("manifest"):
            self._manifest = FleetManifest.from_text(text)
        if self.background:
            self._thread = threading.Thread(target=self._run, name="hone-fleet", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop sending; what waits stays in the spool. A second call has no effect."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if isinstance(self._send, HttpTransport):
            self._send.close()
        if self._spool is not None:
            self._spool.close()

    @property
    def source(self) -> str:
        """Name of this robot and spool as a writer of records: another spool has another one, and counts from 0."""
        return f"{self.robot}.{self._held.get('instance')}"

    @property
    def _held(self) -> RobotSpool:
        if self._spool is None:
            raise ConfigError("the uploader is not open: use it in a `with` block")
        return self._spool

    # ------------------------------------------------------------------------------------------------ steps

    def begin(self) -> EpisodePolicy:
        """The policy of the episode that begins now; an episode that was open is left without an end."""
        spool = self._held
        with spool.transaction():
            number = int(spool.get("episode", "-1")) + 1
            spool.put({"episode": str(number)})
            policy = self._choose(spool, number)
        self._open = _OpenEpisode(number=number, policy=policy, at_s=self._clock.now_s())
        return policy

    def step(
        self,
        observation: object,
        action: object,
        logp: float,
        reward: float,
        terminated: bool,  # noqa: FBT001 - the order of Gymnasium's step
        truncated: bool = False,  # noqa: FBT001, FBT002 - the same
        *,
        next_observation: object,
    ) -> int:
        """Store a step -> its number. An episode begins by itself after an end; its end stores the episode's return.

        `logp` in nats, NaN where it is unknown. Raises DataError for numbers that do not fit or are not finite: then
        nothing is stored; ResourceError for a spool that cannot be written.
        """
        if self._open is None:
            self.begin()
        episode, spool = self._open, self._held
        assert episode is not None
        seen, acted, after = (number_row(values) for values in (observation, action, next_observation))
        schema = self._schema or self._new_schema(len(seen), len(acted))
        flags = TERMINATED * bool(terminated) | TRUNCATED * bool(truncated)
        one = RobotStep(
            episode.number, episode.steps, self._clock.now_s(), float(logp), float(reward), episode.policy.number,
            flags, seen, acted, after,
        )  # fmt: skip
        with spool.transaction():
            body = pack_step(schema, schema.layout, spool.next_seq, one)
            seq = spool.append(STEP, schema, body)
            if flags:
                first = episode.first or tuple(seen[:MOST_FIRST])
                ended = {
                    "episode": episode.number, "version": episode.policy.version, "number": episode.policy.number,
                    "route": episode.policy.route, "return": episode.total + one.reward, "steps": episode.steps + 1,
                    "at_s": episode.at_s, "first": first,
                }  # fmt: skip
                spool.append(EPISODE, schema, json.dumps(ended).encode())
        if not episode.steps:
            episode.first = tuple(seen[:MOST_FIRST])
        episode.steps, episode.total = episode.steps + 1, episode.total + one.reward
        if flags:
            self._open = None
            self._wake.set()
        return seq

    def _new_schema(self, seen: int, acted: int) -> RobotSchema:
        observation = self._names[0] or tuple(f"o{place}" for place in range(seen))
        action = self._names[1] or tuple(f"a{place}" for place in range(acted))
        self._schema = RobotSchema(observation=observation, action=action, choices=self._choices)
        self._held.add_schema(self._schema)
        return self._schema

    def _choose(self, spool: RobotSpool, episode: int) -> EpisodePolicy:
        """The live version, or the one on trial by the episode's coin."""
        manifest = self._manifest
        if manifest is None or not manifest.live:
            return EpisodePolicy(version="", number=0, folder=None, route="")
        version, route, trial = manifest.live, "", manifest.trial
        tried = int(spool.get("tried", "0"))
        if trial is not None and trial.exposed and tried < trial.episodes:
            is_new = manifest.tries_in(episode)
            version = trial.version if is_new else version
            route = f"{trial.rollout}:{'canary' if is_new else 'control'}:{trial.stage}"
            spool.put({"tried": str(tried + is_new)})
        number = manifest.numbers[version]
        return EpisodePolicy(version=version, number=number, folder=self._policies / version, route=route)

    # ------------------------------------------------------------------------------------------------ network

    def status(self) -> DeviceStatus:
        """What waits, what was lost, and what runs."""
        spool, manifest = self._held, self._manifest
        trial = None if manifest is None else manifest.trial
        return DeviceStatus(
            waiting=spool.waiting, dropped=int(spool.get("dropped", "0")), refused=int(spool.get("refused", "0")),
            watermark=int(spool.get("watermark", "-1")), live="" if manifest is None else manifest.live,
            trial="" if trial is None else trial.version, faults=tuple(filter(None, self._faults.values())),
        )  # fmt: skip

    def sync(self) -> bool:
        """Send all that waits, and take up new policies -> False if something failed; `status` says what."""
        with self._syncing:
            return self._uploaded() and self._updated()

    def _run(self) -> None:
        """The thread: sync, and wait; longer after each failure. The end of an episode ends a wait."""
        pause_s = self.every_s
        while not self._stop.is_set():
            good = False
            with contextlib.suppress(ResourceError, DataError):  # of the spool; `step` raises them too
                good = self.sync()
            pause_s = self.every_s if good else min(2 * pause_s, max(_LONGEST_PAUSE_S, self.every_s))
            (self._wake if good else self._stop).wait(pause_s)
            self._wake.clear()

    def _uploaded(self) -> bool:
        spool = self._held
        while (batch := spool.batch(self.robot, self.batch)) is not None and not self._stop.is_set():
            try:
                status, body = self._call("POST", "/v1/fleet/steps", batch.body)
                answer = cast("dict[str, Any]", json.loads(body)) if body else {}
                words = str(answer.get("error", {}).get("message", "")) if status != 200 else ""
            except (OSError, ValueError, AttributeError) as error:
                self._faults["upload"] = f"not sent: {error}"
                return False
            if status == 422:  # the whole batch is refused, for ever
                spool.settle(batch.seqs, [(seq, words) for seq in batch.seqs])
                self._faults["upload"] = f"refused, and set aside: {words}"
                continue
            if status != 200:
                self._faults["upload"] = f"not taken ({status}): {words}; it is sent again"
                return False
            refused = [(int(one["seq"]), str(one["message"])) for one in answer["refused"]]
            spool.settle(batch.seqs, refused)
            spool.put({"watermark": str(answer["watermark"])})
            self._faults["upload"] = f"refused, and set aside: {refused[0][1]}" if refused else ""
        return True

    def _updated(self) -> bool:
        """Ask for the manifest, and adopt it once every file that it names is here and whole."""
        try:
            status, body = self._call("GET", "/v1/fleet/manifest")
            if status != 200:
                raise OSError(f"status {status}: {body[:200].decode(errors='replace')}")
            envelope = json.loads(body)
            text, signature = str(envelope["manifest"]), str(envelope["signature"])
            signed = (self.secret, text, signature)
            manifest = FleetManifest.from_signed(*signed) if self.secret else FleetManifest.from_text(text)
            held = self._manifest
            if manifest.robot != self.robot:
                raise DataError(f"the manifest is for robot {manifest.robot!r}, this is {self.robot!r}")
            if held is not None and manifest.number < held.number:
                raise DataError(f"the manifest has number {manifest.number}, an older one than {held.number}: refused")
            for version in sorted({manifest.live, manifest.trial.version if manifest.trial else ""} - {""}):
                self._download(manifest, version)
        except (OSError, ValueError, KeyError, TypeError, DataError) as error:
            self._faults["policy"] = f"policies stay as they are: {error}"
            return False
        self._held.put({"manifest": text, "tried": "0"})
        self._manifest, self._faults["policy"] = manifest, ""
        self._prune(manifest)
        return True

    @property
    def _policies(self) -> Path:
        return self._path.with_name(f"{self._path.name}.policies")

    def _download(self, manifest: FleetManifest, version: str) -> None:
        """Fetch a version's files: all of them, checked, or none. Raises DataError for a torn one, OSError."""
        target = self._policies / version
        if target.is_dir():
            return
        temporary = self._policies / f".{version}.tmp"
        shutil.rmtree(temporary, ignore_errors=True)
        for one in manifest.files[version]:
            status, body = self._call("GET", f"/v1/fleet/versions/{version}/{quote(one.path)}")
            if status != 200:
                raise OSError(f"{one.path} of version {version}: status {status}")
            digest = hashlib.sha256(body).hexdigest()
            if (len(body), digest) != (one.size_bytes, one.sha256):
                shutil.rmtree(temporary, ignore_errors=True)
                raise DataError(
                    f"{one.path} of version {version} is torn or changed: {len(body)} bytes of {one.size_bytes}, "
                    f"sha256 {digest[:12]}, not {one.sha256[:12]}; the version is refused"
                )
            place = temporary / one.path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(body)
        temporary.rename(target)

    def _prune(self, manifest: FleetManifest) -> None:
        """Remove versions that no manifest names any more, but for the one that runs now."""
        kept = {*manifest.files, "" if self._open is None else self._open.policy.version}
        for folder in self._policies.iterdir() if self._policies.is_dir() else ():
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        headers = {"X-Robot": self.robot}
        if self.secret:
            headers["Authorization"] = f"Bearer {robot_token(self.secret)}"
        return self._send(HttpCall(method=method, path=path, body=body, headers=headers))
