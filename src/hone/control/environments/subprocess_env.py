"""Environments spread over processes, stepped together: a vector environment that survives the loss of a process.

Belongs here: the requests to each process, and the recovery from a loss. A process that dies or hangs is killed and
started again with seeds that follow from the first one and from how often it was lost. The step then says in
`info[LOST_KEY]` which environments lost their running episode (`ScoreStatus` of each; 0: none); their observations
are of new episodes. An exception of an environment is raised: the user must fix it.
"""

import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from hone.control.environments.make import (
    FirstObservations,
    GymConfig,
    GymVectorEnv,
    env_seeds,
    export_registration,
    reset_all,
)
from hone.control.environments.masks import MASK, VectorMasks
from hone.control.environments.protocol import (
    Array,
    Json,
    SharedMemoryLayout,
    SharedStep,
    WorkerMessage,
    encode,
    space_from_json,
    state_from_message,
    state_to_message,
)
from hone.control.environments.worker_process import START_S, BlockProcess, BlockTransport, ChildBlocks, gather_replies
from hone.core.clock import Clock, SystemClock
from hone.core.episodes import ScoreStatus
from hone.core.errors import ConfigError, DataError, HoneError, LostResourceError, ResourceError, UserCodeError
from hone.core.random import key
from hone.core.state import State, array, integer, substate
from hone.process.child import ChildLostError

# --------------------------------------------------------------------------------------------------------- fault budget


class LostTooOftenError(LostResourceError):
    """Environments took their processes down more often than `env.faults_allowed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvProcessLoss:
    """The loss of an environment process that died or was killed."""

    env_range: str
    """`environment 3`, or `environments 0 to 7` where they are stepped as one."""
    seeds: str
    """Seeds of the last reset: `seed 17`, or `seeds 17, 18 ...`."""
    step: int
    """Steps since that reset."""
    reason: str
    """Reason for the end of the process."""
    lost_episodes: int
    """Number of running episodes that were lost."""
    timeout: bool = False
    """True if it was killed because no answer came before the deadline."""

    def message(self) -> str:
        """The loss as one line."""
        others = f" with the running episodes of {self.lost_episodes} environments" if self.lost_episodes > 1 else ""
        return f"{self.env_range} ({self.seeds}, step {self.step} since then){others} was lost: {self.reason}"


@dataclass(kw_only=True)
class FaultBudget:
    """Allows `allowed` losses within the last `window` steps; one more stops the run."""

    allowed: int
    window: int
    steps: int = 0
    """Environment steps so far."""
    losses: int = 0
    """Losses since the run began."""
    recent: deque[int] = field(default_factory=deque[int])
    """Steps at which processes were lost, within the window."""

    def count_loss(self, loss: EnvProcessLoss) -> None:
        """Count a loss. Raises LostTooOftenError with the last one when they are too many."""
        self.losses += 1
        self.recent.append(self.steps)
        while self.recent and self.recent[0] <= self.steps - self.window:
            self.recent.popleft()
        if len(self.recent) > self.allowed:
            times, steps = len(self.recent), self.window
            raise LostTooOftenError(
                f"processes of environments were lost {times} time{'s' if times != 1 else ''} within {steps} "
                f"step{'s' if steps != 1 else ''}, allowed are {self.allowed} "
                f"(env.faults_allowed); the last: {loss.message()}",
                "fix the environment, then resume from the newest checkpoint with --resume",
            )

    def state(self) -> State:
        return {"steps": self.steps, "losses": self.losses, "recent": np.array(self.recent, dtype=np.int64)}

    def restore(self, state: State) -> None:
        self.steps, self.losses = integer(state, "steps"), integer(state, "losses")
        self.recent = deque(array(state, "recent").tolist())


# --------------------------------------------------------------------------------------------------------------- blocks


@dataclass
class _EnvBlock:
    """The environments `first ... first + count - 1`, and their process."""

    number: int
    first: int
    count: int
    process: BlockProcess
    native: bool = False
    """The environments are stepped as one, by their own vector form."""
    shared_step: SharedStep | None = None
    """Memory shared with the process; None before the first reset."""
    seeds: list[int] = field(default_factory=list[int])
    """`[count]` seeds of the last reset with seeds."""
    steps_since_reset: int = 0
    """Steps since that reset."""
    restarts: int = 0

    @property
    def rows(self) -> slice:
        """Rows of this block in arrays `[B, ...]`."""
        return slice(self.first, self.first + self.count)

    @property
    def require_shared_step(self) -> SharedStep:
        """The shared memory, which must have been mapped."""
        assert self.shared_step is not None, "reset the environments before they are stepped"
        return self.shared_step

    def describe_loss(self, how: ChildLostError) -> EnvProcessLoss:
        """A report of the end of its process."""
        number = int(self.process.calls[1])
        alone = self.count == 1 or (not self.native and number >= 0)
        place = max(number, 0)
        last = self.first + self.count - 1
        which = f"environment {self.first + place}" if alone else f"environments {self.first} to {last}"
        seed = f"seed {self.seeds[place]}" if place < len(self.seeds) else "not reset yet"
        return EnvProcessLoss(
            env_range=which, seeds=seed, step=self.steps_since_reset, reason=str(how), lost_episodes=self.count
        )


# ------------------------------------------------------------------------------------------------------- subprocess env


SpacePair: TypeAlias = tuple[spaces.Space[Any], spaces.Space[Any]]
_RequestFn: TypeAlias = Callable[[_EnvBlock], bytes]
_StepResult: TypeAlias = tuple[Array, Array, Array, Array, dict[str, Any]]
LOST_KEY = "hone.control.environments/lost"
"""Name in `info` that no environment of a user's writes."""
_PATIENCE_S = 2.0
_FAULTS: dict[str, type[HoneError]] = {
    kind.__name__: kind for kind in (ConfigError, DataError, ResourceError, UserCodeError)
}


class ProcessVectorEnv(VectorEnv[Any, Any, Any]):
    """`num_envs` environments in processes of their own. `start` it before anything else; `inspect` before that."""

    def __init__(
        self,
        config: GymConfig,
        *,
        num_envs: int,
        squashed: bool = False,
        clock: Clock | None = None,
        transport: BlockTransport | None = None,
    ) -> None:
        self.config = config
        self.num_envs = num_envs
        self.squashed = squashed
        self.form = ""
        """Class of the vector environment in each process."""
        self.mask_place = ""
        """Where the environments tell their masks, in words; empty where they tell none."""
        self.budget = FaultBudget(allowed=config.faults_allowed, window=config.fault_window)
        self._clock = clock or SystemClock()
        self._transport = transport or ChildBlocks()
        self._blocks = [_EnvBlock(0, 0, num_envs, self._transport.make(self._clock))]
        self._base = 0
        self._step_requests: dict[tuple[str, tuple[int, ...]], bytes] = {}
        self._pending_notices: list[str] = []
        self._ending = weakref.finalize(self, _end, self._blocks, self._clock)  # also without a call of `close`

    # ------------------------------------------------------------------------------------------ before the run

    def inspect_env(self, *, seed: int) -> tuple[SpacePair, list[str]]:
        """Spaces and warnings of one environment, tried out unless `check` is off. Raises as `check_spaces`,
        `check_env`.

        A process that dies is given a second chance, since it may be one that does so rarely; then ResourceError.
        """
        request = {"do": "inspect", "seed": seed, "squashed": self.squashed, "check": self.config.check}
        head = self._ask_first_process(request).head
        seen, action = (space_from_json(spec) for spec in head["spaces"])
        return (seen, action), list(head["notes"])

    def inexact_reason(self, *, seed: int) -> str | None:
        """`why_inexact_resume`, tried in a process."""
        return self._ask_first_process({"do": "exact", "seed": seed}).head["inexact"]

    def start(self) -> None:
        """Make all environments, each in its process. Raises UserCodeError, ConfigError, ResourceError."""
        try:
            first = self._blocks[0]
            self._start_blocks([first])
            processes = 1 if first.native else min(self.config.workers, self.num_envs)
            counts = [len(part) for part in np.array_split(np.arange(self.num_envs), processes)]
            first.count = counts[0]
            for number, count in enumerate(counts[1:], start=1):
                self._blocks.append(_EnvBlock(number, sum(counts[:number]), count, self._transport.make(self._clock)))
            self._start_blocks(self._blocks[1:])
            made = [_checked_reply(reply).head for reply in self._ask(self._blocks, self._make_request)]
        except ChildLostError as lost:
            raise self._start_failure(lost) from None
        for number, head in enumerate(made):
            if head["spaces"] != made[0]["spaces"]:
                raise UserCodeError(
                    f"{self.config.id}: single_observation_space or single_action_space differs between environments: "
                    f"{made[0]['spaces']} in process 0, {head['spaces']} in process {number}"
                )
        head = made[0]
        self.form = head["form"]
        self.single_observation_space, self.single_action_space = map(space_from_json, head["spaces"])
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.metadata = {"autoreset_mode": AutoresetMode(head["autoreset"])}

    def mark_baseline(self) -> None:
        """Take the current attributes as the baseline: a snapshot holds only attributes that change from here on."""
        for reply in self._ask(self._blocks, lambda _: encode({"do": "remember"})):
            if isinstance(reply, ChildLostError):
                raise self._start_failure(reply)
            _checked_reply(reply)

    def _ask_first_process(self, request: Mapping[str, Json]) -> WorkerMessage:
        """The first process's answer, before the run has begun."""
        block = self._blocks[0]
        for last in (False, True):
            try:
                self._start_blocks([block])
                return _checked_reply(self._ask([block], lambda _: encode(request))[0])
            except ChildLostError as lost:
                block.process.kill()
                if last or lost.timeout:
                    raise self._start_failure(lost) from None
        raise AssertionError("the second try answers or raises")

    def _start_failure(self, lost: ChildLostError) -> ResourceError:
        return ResourceError(f"{self.config.id}: the environment cannot be used: {lost}")

    def _start_blocks(self, blocks: Sequence[_EnvBlock]) -> None:
        """Start the processes that do not run, all at once. Raises ChildLostError, ResourceError, what loading
        raises."""
        fresh = [block for block in blocks if not block.process.alive]
        if not fresh:
            return
        known = {"config": self.config.model_dump(mode="json"), "registration": export_registration(self.config)}
        for block in fresh:
            block.process.kill()
            block.process = self._transport.make(self._clock)
            block.process.start()
        replies = self._ask(fresh, lambda block: encode({"do": "load", "first": block.first, **known}))
        for block, reply in zip(fresh, replies, strict=True):
            block.native = _checked_reply(reply).head["native"]

    def _make_request(self, block: _EnvBlock) -> bytes:
        return encode({"do": "make", "count": block.count, "squashed": self.squashed})

    # ------------------------------------------------------------------------------------------ the run

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        """Reset all environments with seeds `[B]`, or without seeds those of `options["reset_mask"]` `[B]`.

        Raises UserCodeError where an environment does, and ResourceError past the budget.
        """
        blocks, arrays = self._blocks, {}
        if seed is None:
            mask = np.asarray((options or {})["reset_mask"])
            blocks = [block for block in blocks if mask[block.rows].any()]
            arrays = {block.number: {"mask": mask[block.rows]} for block in blocks}
        else:
            assert not isinstance(seed, int), "a seed for each environment"
            self._base = seed[0]
            for block in blocks:
                block.seeds, block.steps_since_reset = list(seed[block.rows]), 0
        orders = {block.number: _reset_request(block, arrays.get(block.number)) for block in blocks}
        lost = np.zeros(self.num_envs, np.uint8)
        for block, reply in zip(blocks, self._ask(blocks, lambda block: orders[block.number]), strict=True):
            if isinstance(reply, ChildLostError):
                self._restart_block(block, reply, lost)
            else:
                self._take_reset(block, _checked_reply(reply))
        return self._gather_arrays("seen"), {**({LOST_KEY: lost} if lost.any() else {}), **self._masks("mask")}

    def step(self, actions: Array) -> _StepResult:
        """Raises UserCodeError where an environment does, and ResourceError past the budget."""
        order = self._step_request(actions)
        for block in self._blocks:
            block.require_shared_step.actions(actions.dtype.str, list(actions.shape[1:]))[:] = actions[block.rows]
            block.process.send(order)
            block.steps_since_reset += 1
        replies = self._gather_replies(self._blocks)
        lost = np.zeros(self.num_envs, np.uint8)
        self.budget.steps += 1
        for reply in replies:
            if isinstance(reply, WorkerMessage):
                _checked_reply(reply)
        gone = [
            (block, how) for block, how in zip(self._blocks, replies, strict=True) if isinstance(how, ChildLostError)
        ]
        for block, _ in gone:
            block.process.kill()  # all of them first: one loss too many ends the run
        for block, how in gone:
            self._restart_block(block, how, lost)
        terminated, truncated = self._gather_arrays("terminated"), self._gather_arrays("truncated")
        info: dict[str, Any] = {**({LOST_KEY: lost} if lost.any() else {}), **self._masks("mask")}
        if terminated.any() or truncated.any():
            info["final_obs"] = self._gather_arrays("final")
            info["final_info"] = self._masks("final_mask")
        return self._gather_arrays("seen"), self._gather_arrays("reward"), terminated, truncated, info

    def pop_notices(self) -> list[str]:
        """Losses since the last call, one line each."""
        notices, self._pending_notices = self._pending_notices, []
        return notices

    def close_extras(self) -> None:
        """End the processes; those that do not exit are killed."""
        self._ending()

    def _restart_block(self, block: _EnvBlock, how: ChildLostError, lost: NDArray[np.uint8]) -> None:
        """A new process for the environments of a lost one. Raises ResourceError past the budget."""
        lost[block.rows] = ScoreStatus.TIMEOUT if how.timeout else ScoreStatus.ERROR
        while True:
            block.process.kill()
            loss = block.describe_loss(how)
            self.budget.count_loss(loss)
            self._pending_notices.append(
                f"{loss.message()}. They restart with other seeds; the lost steps are not trained on."
            )
            block.restarts += 1
            # a function of the run's first seed and of the number of restarts
            again = key(self._base, "restart", block.number, block.restarts) & 0xFFFFFFFF
            block.seeds, block.steps_since_reset = env_seeds(again, block.first + block.count)[block.rows], 0
            block.shared_step = None
            try:
                self._start_blocks([block])
                _checked_reply(self._ask([block], self._make_request)[0])
                self._take_reset(block, _checked_reply(self._ask([block], _reset_request)[0]))
            except ChildLostError as again:
                how = again
            else:
                return

    def _take_reset(self, block: _EnvBlock, reply: WorkerMessage) -> None:
        seen = reply.arrays["seen"]
        if block.shared_step is None:
            action = list(self.single_action_space.shape or ())
            layout = SharedMemoryLayout(
                count=block.count, kind=seen.dtype.str, shape=list(seen.shape[1:]), action=action,
                mask=reply.arrays["mask"].shape[1] if "mask" in reply.arrays else 0,
            )  # fmt: skip
            block.shared_step = block.process.map_step(layout)
            _checked_reply(self._ask([block], lambda _: encode({"do": "map", "layout": asdict(layout)}))[0])
        block.require_shared_step.seen[:] = seen
        if "mask" in reply.arrays:
            self.mask_place = reply.head["mask_place"]
            block.require_shared_step.mask[:] = reply.arrays["mask"]

    def _step_request(self, actions: Array) -> bytes:
        form = (actions.dtype.str, actions.shape[1:])
        if form not in self._step_requests:
            self._step_requests[form] = encode({"do": "step", "kind": form[0], "shape": list(form[1])})
        return self._step_requests[form]

    def _gather_arrays(self, name: str) -> Array:
        """Copy `[B, ...]` of an array in shared memory."""
        return np.concatenate([block.require_shared_step.array(name) for block in self._blocks])

    def _masks(self, name: str) -> dict[str, Any]:
        """The masks `[B, M]` of legal actions in shared memory, as `info` has them; {} where there are none."""
        masks = self._gather_arrays(name)
        return {MASK: masks} if masks.shape[1] else {}

    def _ask(self, blocks: Sequence[_EnvBlock], order: _RequestFn) -> list[WorkerMessage | ChildLostError]:
        for block in blocks:
            block.process.send(order(block))
        return self._gather_replies(blocks, start_s=START_S)

    def _gather_replies(
        self, blocks: Sequence[_EnvBlock], *, start_s: float | None = None
    ) -> list[WorkerMessage | ChildLostError]:
        processes, call_s = [block.process for block in blocks], self.config.step_timeout_s
        return gather_replies(processes, clock=self._clock, call_s=call_s, start_s=start_s, transport=self._transport)

    # ------------------------------------------------------------------------------------------ a resume

    def state(self) -> State:
        """The state of all environments; empty when a process is lost meanwhile, which the next step reports."""
        saved: State = {}
        replies = self._ask(self._blocks, lambda _: encode({"do": "snapshot"}))
        for block, reply in zip(self._blocks, replies, strict=True):
            if isinstance(reply, ChildLostError):
                block.process.kill(str(reply))
                return {}
            saved[str(block.number)] = state_from_message(_checked_reply(reply))
        return saved

    def restore(self, state: State) -> None:
        """Restore a state into environments started and reset in the same way. Raises DataError when they differ."""
        messages = [state_to_message(substate(state, str(block.number))) for block in self._blocks]
        orders = [encode({"do": "restore", **message.head}, message.arrays) for message in messages]
        for reply in self._ask(self._blocks, lambda block: orders[block.number]):
            if isinstance(reply, ChildLostError):
                raise self._start_failure(reply)
            _checked_reply(reply)

    def history(self) -> State:
        """Seeds, losses and the steps since then; sends nothing to the processes."""
        return {
            "base": self._base,
            "seeds": np.array([seed for block in self._blocks for seed in block.seeds], dtype=np.int64),
            "since": np.array([block.steps_since_reset for block in self._blocks], dtype=np.int64),
            "restarts": np.array([block.restarts for block in self._blocks], dtype=np.int64),
            "budget": self.budget.state(),
        }

    def restore_history(self, state: State) -> None:
        """Raises DataError when the environments were spread over another number of processes."""
        since, restarts = array(state, "since").tolist(), array(state, "restarts").tolist()
        if len(restarts) != len(self._blocks):
            raise DataError(f"the saved environments are in {len(restarts)} processes, here in {len(self._blocks)}")
        seeds: list[int] = array(state, "seeds").tolist()
        self._base = integer(state, "base")
        for block, steps, lost in zip(self._blocks, since, restarts, strict=True):
            block.seeds, block.steps_since_reset, block.restarts = seeds[block.rows], steps, lost
        self.budget.restore(substate(state, "budget"))


def _end(blocks: Sequence[_EnvBlock], clock: Clock) -> None:
    for block in blocks:
        block.process.request_exit()
    limit = clock.monotonic_s() + _PATIENCE_S
    for block in blocks:
        block.process.shut_down(max(0.0, limit - clock.monotonic_s()))


def reset_seeded(envs: GymVectorEnv, seed: int) -> FirstObservations:
    """Reset with seeds made from `seed`, the same wherever the environments run.

    Raises ResourceError where their processes are lost too often.
    """
    if isinstance(envs, ProcessVectorEnv):
        seen, info = envs.reset(seed=env_seeds(seed, envs.num_envs))
        masks = VectorMasks(envs.single_action_space)
        masks.begin(info, envs.num_envs)
        return seen, masks
    return reset_all(envs, seed)


def lost_status(info: Mapping[str, Any]) -> NDArray[np.uint8] | None:
    """`ScoreStatus` `[B]` of environments that were lost just now; None where none was."""
    return info.get(LOST_KEY)


def _reset_request(block: _EnvBlock, arrays: Mapping[str, Array] | None = None) -> bytes:
    return encode({"do": "reset"} if arrays else {"do": "reset", "seeds": block.seeds}, arrays)


def _checked_reply(reply: WorkerMessage | ChildLostError) -> WorkerMessage:
    """The reply, unless it reports a loss or a fault, which is raised."""
    if isinstance(reply, ChildLostError):
        raise reply
    if "fault" in reply.head:
        raise _FAULTS.get(reply.head["fault"], UserCodeError)(*reply.head["messages"])
    return reply
