"""A world of Gymnasium environments, many stepped at a time.

Belongs here: turning steps of a vector environment into episodes. The three ways in which Gymnasium resets are told
apart by type: under NEXT_STEP the row after an end is a reset and no decision; under SAME_STEP the last observation is
in `info["final_obs"]`; when DISABLED the environments are reset here, by mask.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from hone.core.episodes import Episodes, Status
from hone.core.errors import ConfigError, UserCodeError
from hone.core.ragged import Ints, offsets_of, sums
from hone.core.random import generator, key
from hone.core.state import State, array, integer, substate
from hone.envs.gym_check import check_spaces, try_out
from hone.envs.gym_make import GymConfig, Vector, autoreset_of, maker, reset_all, told
from hone.envs.gym_snapshot import Encoded, attributes, restart_seed, restore, resumes_exactly, snapshot

Array = NDArray[np.generic]
Floats = NDArray[np.float32]
Flags = NDArray[np.bool_]
Spaces: TypeAlias = tuple[spaces.Space[Any], spaces.Space[Any]]


class Decider(Protocol):
    """Whoever acts."""

    version: int
    """Of the policy that decides; stamped on every decision."""

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """The random numbers of decisions of this `shape` -> `[*shape, ...]`."""
        ...

    def decide(self, seen: Array, noise: Floats) -> tuple[Array, Floats]:
        """`[B, *observation]`, `[B, ...]` -> choices `[B, *action]` and their log-probabilities `[B]` in nats."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """What T steps of B environments were, as they came."""

    seen: Array
    """`[T+1, B, *observation]` before each step, and after the last."""
    chosen: Array
    logp: Floats
    reward: Floats
    terminated: Flags
    truncated: Flags
    junk: Flags
    """`[T, B]` rows that were a reset and no decision."""
    last_rows: Ints
    """Flat `[T * B]` positions of ends whose last observation is not the next row of `seen`; ascending."""
    last_seen: Array
    """`[*, *observation]` those observations."""


@dataclass(kw_only=True)
class GymWorld:
    """`steps` steps of each environment per rollout. Make it with `open_world`."""

    envs: Vector
    mode: AutoresetMode
    steps: int
    seed: int
    clip: bool
    seen: Array
    """`[B, *observation]` what will be decided on next."""
    constant: Encoded = field(default_factory=dict[str, dict[str, Any]])
    inexact: str | None = None
    """Why a resumed run would not be the same run; None when it would."""
    notes: list[str] = field(default_factory=list[str])
    """Warnings for whoever runs this."""
    rollouts: int = 0
    begun: int = 0
    """Episodes begun; numbers them."""

    def __post_init__(self) -> None:
        count = self.envs.num_envs
        self.returns = np.zeros(count)
        self.episode = np.arange(self.begun, self.begun + count)
        self.begun += count
        self.ended = np.zeros(count, dtype=np.bool_)

    @property
    def resume(self) -> str:
        """`exact`, or `approximate`: then a resumed run starts its running episodes anew."""
        return "exact" if self.inexact is None else "approximate"

    def rollout(self, actor: Decider) -> Episodes:
        """At least one decision; a row that was only a reset does not count as a step.

        Raises UserCodeError where an environment fails or gives numbers that are not finite, ConfigError for an action
        outside its box when `clip` is off.
        """
        while True:
            self.rollouts += 1
            episodes = self._episodes(self._steps(actor), actor.version)
            if episodes.decisions:
                return episodes

    def _steps(self, actor: Decider) -> Steps:
        shape = (self.steps, self.envs.num_envs)
        space = self.envs.single_action_space
        seen = np.empty((shape[0] + 1, *self.seen.shape), self.seen.dtype)
        kind = np.int64 if isinstance(space, spaces.Discrete) else np.float32
        chosen = np.empty((*shape, *(space.shape or ())), kind)
        logp, reward = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        terminated, truncated, junk = (np.zeros(shape, np.bool_) for _ in range(3))
        noise = actor.noise(generator(self.seed, "act", self.rollouts), shape)
        lasts: list[tuple[Ints, Array]] = []
        now = self.seen
        for t in range(shape[0]):
            seen[t] = now
            chosen[t], logp[t] = actor.decide(now, noise[t])
            junk[t] = self.ended
            action = self._legal(chosen[t])
            try:
                now, reward[t], terminated[t], truncated[t], info = self.envs.step(action)
            except Exception as fault:
                self._require_finite(seen[: t + 1], reward[:t], chosen[: t + 1])
                raise UserCodeError(f"{self._place(t, chosen[: t + 1])}: {told(fault)}") from fault
            done = terminated[t] | truncated[t]
            if self.mode is AutoresetMode.NEXT_STEP:
                self.ended = done
            elif done.any():
                which = np.flatnonzero(done)
                lasts.append((t * shape[1] + which, self._last_seen(now, info, which)))
                if self.mode is AutoresetMode.DISABLED:
                    now, _ = self.envs.reset(options={"reset_mask": done})
        seen[-1] = self.seen = np.array(now)
        self._require_finite(seen, reward, chosen)
        return Steps(
            seen=seen,
            chosen=chosen,
            logp=logp,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            junk=junk,
            last_rows=np.concatenate([rows for rows, _ in lasts]) if lasts else np.zeros(0, np.int64),
            last_seen=np.concatenate([last for _, last in lasts]) if lasts else seen[0, :0],
        )

    def _last_seen(self, now: Array, info: dict[str, Any], which: Ints) -> Array:
        if self.mode is AutoresetMode.SAME_STEP:
            return np.stack([np.asarray(info["final_obs"][number], self.seen.dtype) for number in which])
        return now[which].copy()

    def _episodes(self, steps: Steps, version: int) -> Episodes:
        env, time = np.nonzero(~steps.junk.T)  # the decisions of an environment stand together, in the order of time
        done = (steps.terminated | steps.truncated)[time, env]
        ends = done.copy()
        ends[:-1] |= env[1:] != env[:-1]
        ends[-1:] = True
        last = np.flatnonzero(ends)
        offsets = offsets_of(np.diff(last, prepend=-1))
        end_env, end_time = env[last], time[last]
        reward = steps.reward[time, env]
        score, group = self._running(sums(reward, offsets), end_env, done[last])
        return Episodes(
            offsets=offsets,
            seen=steps.seen[time, env],
            chosen=steps.chosen[time, env],
            logp=steps.logp[time, env],
            version=np.full(len(env), version, dtype=np.int32),
            reward=reward,
            group=group,
            terminated=steps.terminated[end_time, end_env],
            truncated=steps.truncated[end_time, end_env],
            final=_finals(steps, end_env, end_time),
            score=score,
            status=np.full(len(last), Status.SCORED, dtype=np.uint8),
        )

    def _running(self, paid: NDArray[np.float64], env: Ints, done: Flags) -> tuple[NDArray[np.float64], Ints]:
        """Return so far and number of the episode of each piece; an episode may have begun in an earlier rollout."""
        first = np.ones(len(env), dtype=np.bool_)
        first[1:] = env[1:] != env[:-1]
        number = np.empty(len(env), dtype=np.int64)
        number[first] = self.episode[env[first]]
        fresh = int(np.count_nonzero(~first))
        number[~first] = self.begun + np.arange(fresh)
        self.begun += fresh
        score = paid + np.where(first, self.returns[env], 0.0)
        final = np.ones(len(env), dtype=np.bool_)
        final[:-1] = env[1:] != env[:-1]
        self.returns[env[final]] = np.where(done[final], 0.0, score[final])
        self.episode[env[final]] = number[final]
        over = env[final & done]
        self.episode[over] = self.begun + np.arange(len(over))
        self.begun += len(over)
        return score, number

    def _legal(self, chosen: Array) -> Array:
        space = self.envs.single_action_space
        if not isinstance(space, spaces.Box):
            return chosen
        if self.clip:
            return np.clip(chosen, space.low, space.high)
        outside = ~((chosen >= space.low) & (chosen <= space.high))
        if outside.any():
            where = tuple(np.argwhere(outside)[0])
            raise ConfigError(
                f"action {chosen[where[0]].tolist()} of environment {where[0]} is outside {space.low.tolist()} .. "
                f"{space.high.tolist()}; set env.clip_actions = true to clip it"
            )
        return chosen

    def _require_finite(self, seen: Array, reward: Floats, chosen: Array) -> None:
        for name, values in (("observation", seen), ("reward", reward)):
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                time, env = (int(position) for position in np.argwhere(~np.isfinite(values))[0][:2])
                history = chosen[max(0, time - 8) : time + 1, env].tolist()
                raise UserCodeError(
                    f"{name} of environment {env} at step {time} of rollout {self.rollouts} is not finite: "
                    f"{values[time, env].tolist()}; run seed {self.seed}, its last actions {history}"
                )

    def _place(self, time: int, chosen: Array) -> str:
        recent = chosen[-3:].tolist() if self.envs.num_envs <= 8 else "not shown"
        return (
            f"step {time} of rollout {self.rollouts} failed in the environment "
            f"(run seed {self.seed}, last actions {recent})"
        )

    def state(self) -> State:
        envs: State = {} if self.inexact else snapshot(self.envs, self.constant)
        return {
            "rollouts": self.rollouts,
            "begun": self.begun,
            "returns": self.returns.copy(),
            "episode": self.episode.copy(),
            "ended": self.ended.copy(),
            "seen": self.seen.copy(),
            "inexact": self.inexact,
            "envs": envs,
        }

    def restore(self, state: State) -> None:
        """Into environments just opened with the same config and seed; see `resume` for how exact it is."""
        self.rollouts, self.begun = integer(state, "rollouts"), integer(state, "begun")
        if self.inexact is None and state["inexact"] is None:
            restore(self.envs, substate(state, "envs"))
            self.returns = array(state, "returns").astype(np.float64)
            self.episode = array(state, "episode").astype(np.int64)
            self.ended = array(state, "ended").astype(np.bool_)
            self.seen = array(state, "seen").astype(self.seen.dtype)
            return
        self.seen = np.array(reset_all(self.envs, restart_seed(self.seed, self.rollouts)))
        self.episode = np.arange(self.begun, self.begun + self.envs.num_envs)
        self.begun += self.envs.num_envs

    def close(self) -> None:
        self.envs.close()


def _finals(steps: Steps, env: Ints, time: Ints) -> Array:
    """What was seen after each end: the next row, unless that is of a new episode already."""
    final = steps.seen[time + 1, env]
    if len(steps.last_rows):
        flat = time * steps.reward.shape[1] + env
        place = np.searchsorted(steps.last_rows, flat).clip(max=len(steps.last_rows) - 1)
        known = steps.last_rows[place] == flat
        final[known] = steps.last_seen[place[known]]
    return final


def inspect_world(config: GymConfig, *, seed: int, squashed: bool = False) -> tuple[Spaces, list[str]]:
    """Try one environment out: its observation and action space, and warnings.

    `squashed`: the policy reaches the bounds of its actions, so they must be finite. Raises ConfigError or
    UserCodeError with all faults found.
    """
    env = maker(config).single()
    try:
        check_spaces(config.id, env.observation_space, env.action_space, squashed=squashed)
        return (env.observation_space, env.action_space), try_out(maker(config), seed=seed) if config.check else []
    finally:
        env.close()


def open_world(config: GymConfig, *, steps: int, seed: int, squashed: bool = False) -> GymWorld:
    """Check, make and reset the environments, and try whether their state can be saved (`GymWorld.resume`).

    Raises as `inspect_world`; what is only odd is in `GymWorld.notes`.
    """
    making = maker(config)
    _, notes = inspect_world(config, seed=seed, squashed=squashed)
    envs = making.many(config.num_envs)
    check_spaces(config.id, envs.single_observation_space, envs.single_action_space, squashed=squashed)
    inexact = resumes_exactly(making.many, seed=seed) if config.check else None
    if inexact is not None:
        notes.append(
            f"{config.id}: resuming will be approximate, the running episodes begin anew: {inexact}",
        )
    world = world_of(envs, steps=steps, seed=seed, clip=config.clip_actions)
    world.inexact, world.notes = inexact, notes
    return world


def world_of(envs: Vector, *, steps: int, seed: int, clip: bool = False) -> GymWorld:
    """A world of these environments, reset by seeds of their own."""
    mode = autoreset_of(envs)
    seen = np.array(reset_all(envs, key(seed, "world") & 0xFFFFFFFF))
    constant = attributes(envs)
    return GymWorld(envs=envs, mode=mode, steps=steps, seed=seed, clip=clip, seen=seen, constant=constant)


__all__ = ["Decider", "GymConfig", "GymWorld", "inspect_world", "open_world", "world_of"]
