"""Gymnasium environments, many stepped at a time.

Belongs here: turning steps of a vector environment into episodes. Gymnasium's three ways of resetting are distinguished
by type: under NEXT_STEP the row after an end is a reset and no environment step; under SAME_STEP the last observation
is in `info["final_obs"]`; when DISABLED the environments are reset here, by mask.
"""

import contextlib
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from hone.control.environments.check import check_env, check_spaces
from hone.control.environments.layout import ActionRowSpace, RowSpace, describe_leaves
from hone.control.environments.make import (
    GymConfig,
    GymVectorEnv,
    autoreset_mode,
    config_warnings,
    describe_exception,
    env_factory,
    runs_isolated,
    time_limit,
)
from hone.control.environments.masks import VectorMasks, mask_place
from hone.control.environments.rollout import (
    Array,
    Flags,
    Floats,
    RolloutBuffer,
    StepChecker,
    StepFaultError,
    empty_rollout_buffer,
    env_actions,
)
from hone.control.environments.snapshot import (
    EncodedAttributes,
    attribute_texts,
    restore,
    snapshot,
    why_inexact_resume,
)
from hone.control.environments.subprocess_env import ProcessVectorEnv, lost_status, reset_seeded
from hone.control.environments.worker_process import BlockTransport
from hone.core.credit import Metrics
from hone.core.episodes import Episodes, ScoreStatus
from hone.core.errors import ConfigError, DivergedError, HoneError, ResourceError, UserCodeError
from hone.core.out_of_memory import out_of_memory
from hone.core.ragged import Ints, offsets_of, owner_of, row_sums
from hone.core.random import generator, key
from hone.core.state import State, array, integer, substate

# ----------------------------------------------------------------------------------------------------- running episodes


@dataclass(frozen=True, slots=True, kw_only=True)
class _EpisodePieces:
    """Pieces of episodes as they stand after a rollout, one a row."""

    score: NDArray[np.float64]
    """`[E]` returns of their episodes so far."""
    length: Ints
    """`[E]` steps of their episodes so far."""
    group: Ints
    """`[E]` numbers of their episodes."""


class _RunningEpisodes:
    """Returns `[B]`, lengths `[B]` and numbers `[B]` of the episodes that `count` environments are in."""

    def __init__(self, count: int, *, begun: int = 0) -> None:
        self.count, self.begun = count, begun
        """Environments; episodes begun, which numbers them."""
        self.begin_all()

    def begin_all(self) -> None:
        """Begin an episode in each environment."""
        self.returns = np.zeros(self.count)
        self.lengths = np.zeros(self.count, dtype=np.int64)
        self.number = np.arange(self.begun, self.begun + self.count)
        self.begun += self.count

    def add_pieces(self, reward: NDArray[np.float64], steps: Ints, env: Ints, done: Flags) -> _EpisodePieces:
        """Go on by pieces `[E]` in the order of their environments `env` and of time, given the sums of their rewards,
        their steps, and whether their episode ended with them. The first of each environment may go on from an earlier
        rollout."""
        first, final = np.ones(len(env), dtype=np.bool_), np.ones(len(env), dtype=np.bool_)
        first[1:] = final[:-1] = env[1:] != env[:-1]
        group = np.empty(len(env), dtype=np.int64)
        group[first] = self.number[env[first]]
        fresh = int(np.count_nonzero(~first))
        group[~first] = self.begun + np.arange(fresh)
        self.begun += fresh
        score = reward + np.where(first, self.returns[env], 0.0)
        length = steps + np.where(first, self.lengths[env], 0)
        self.returns[env[final]] = np.where(done[final], 0.0, score[final])
        self.lengths[env[final]] = np.where(done[final], 0, length[final])
        self.number[env[final]] = group[final]
        over = env[final & done]
        self.number[over] = self.begun + np.arange(len(over))
        self.begun += len(over)
        return _EpisodePieces(score=score, length=length, group=group)

    def state(self) -> State:
        """State under the names of the checkpoints."""
        return {
            "begun": self.begun,
            "returns": self.returns.copy(),
            "lengths": self.lengths.copy(),
            "episode": self.number.copy(),
        }

    def restore(self, state: State, *, exact: bool) -> None:
        """Restore a state; unless `exact`, an episode begins in each environment. Raises DataError."""
        self.begun = integer(state, "begun")
        if not exact:
            self.begin_all()
            return
        self.returns = array(state, "returns").astype(np.float64)
        self.number = array(state, "episode").astype(np.int64)
        if "lengths" in state:  # absent in older checkpoints
            self.lengths = array(state, "lengths").astype(np.int64)


# ---------------------------------------------------------------------------------------------------------------- world


PartsUse: TypeAlias = Literal["none", "observations", "all"]
"""Spaces that may have several parts: neither, observations, or actions as well."""
GymSpaces: TypeAlias = tuple[spaces.Space[Any], spaces.Space[Any]]


_UNENDED_WARNING_STEPS = 20_000
"""Steps without an end before the warning; longer than the episodes of any environment of Gymnasium's."""


class VectorActor(Protocol):
    """The behaviour policy of a rollout."""

    version: int
    """Version of the policy, stored with every action."""

    def noise(self, draws: np.random.Generator, shape: tuple[int, ...]) -> Floats:
        """The random numbers of actions of this `shape` -> `[*shape, ...]`."""
        ...

    def decide(self, seen: Array, noise: Floats, mask: Flags | None = None) -> tuple[Array, Floats]:
        """`[B, *observation]`, `[B, ...]` -> actions `[B, *action]` and their log-probabilities `[B]` in nats; legal
        ones of the masks `[B, M]`, which are given where the environments tell them."""
        ...


class _EpisodeMemory(Protocol):
    """The memory of a policy in the running episodes."""

    memory: Floats
    """`[B, H]` states before the next observations."""

    @property
    def initial(self) -> Floats:
        """`[H]` state where an episode begins."""
        ...

    def forget(self, begun: Flags) -> None:
        """Put the initial state into rows `[B]` whose episode begins with the next observation."""
        ...


@runtime_checkable
class _RememberingActor(Protocol):
    """An actor whose policy may have a memory. The world keeps its state from rollout to rollout, and saves it."""

    def episode_memory(self) -> _EpisodeMemory | None:
        """The memory of its policy; None where it has none."""
        ...


@dataclass(kw_only=True)
class GymWorld:
    """`steps` steps of each environment per rollout. Make it with `open_world`."""

    envs: GymVectorEnv
    autoreset_mode: AutoresetMode
    steps: int
    seed: int
    clip_actions: bool | None
    seen: Array
    """`[B, *observation]` current observations."""
    masks: VectorMasks
    """Legal actions now."""
    constant_attributes: EncodedAttributes = field(default_factory=dict[str, dict[str, Any]])
    inexact_reason: str | None = None
    """Reason why a resumed run would differ from an uninterrupted one; None when it would not."""
    warnings: list[str] = field(default_factory=list[str])
    """Warnings for the user."""
    rollouts: int = 0
    processes_lost: int = 0
    """Lost processes of environments that were reported."""
    steps_without_end: int = 0
    """Steps of each environment since an episode ended."""
    warned: bool = False
    unusable_end_told: bool = False
    step_limit: int | None = None
    """Steps after which hone truncates an episode; None where the environment has a time limit."""
    limit_told: bool = False
    pending_notices: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.running = _RunningEpisodes(self.envs.num_envs)
        self.ended = np.zeros(self.envs.num_envs, dtype=np.bool_)
        self.memory = np.zeros((0, 0), np.float32)
        """`[B, H]` state of the policy that acts here; empty without a memory."""
        self.begun = np.ones(self.envs.num_envs, dtype=np.bool_)
        """`[B]` whether the current observation is the first of an episode."""

    @property
    def resume_exactness(self) -> str:
        """`exact`, or `approximate`: then a resumed run restarts its running episodes."""
        return "exact" if self.inexact_reason is None else "approximate"

    def rollout(self, actor: VectorActor) -> Episodes:
        """Trajectories with at least one environment step; a row that was only a reset does not count.

        Episodes whose environment was lost end truncated, without a score, and with the reason as `status`. Raises
        UserCodeError where an environment fails or gives numbers that are not finite, ConfigError for an action outside
        its box when `clip` is off, ResourceError where environments are lost too often.
        """
        while True:
            self.rollouts += 1
            try:
                episodes = self._episodes(self._steps(actor), actor.version)
            except ResourceError:
                self.rollouts -= 1  # its steps are lost; a checkpoint saved now repeats it
                self.inexact_reason = "the environments were lost"
                raise
            if episodes.decisions:
                self._warn_if_nothing_ends(episodes)
                return episodes

    def _warn_if_nothing_ends(self, episodes: Episodes) -> None:
        """Warn once when no episode ends any more: only ended episodes have scores."""
        ended = episodes.terminated | episodes.truncated
        self.steps_without_end = 0 if ended.any() else self.steps_without_end + self.steps
        if self.steps_without_end >= _UNENDED_WARNING_STEPS and not self.warned:
            self.warned = True
            self.pending_notices.append(
                f"no episode ended in the last {self.steps_without_end} steps of each environment, so there is no "
                f"score; if "
                "episodes never end, set env.max_episode_steps"
            )

    def _enforce_step_limit(self, length: Ints, truncated: Flags) -> None:
        """Tell of the first episode that `step_limit` truncated, given the `length` of each piece's episode so far.

        Raises UserCodeError for a longer one: only a vector form of the environment's own can go on.
        """
        if self.step_limit is None:
            return
        if (length > self.step_limit).any():
            raise UserCodeError(
                f"an episode has not ended within {length.max()} steps, and the environment's own vector form cannot "
                f"be truncated; give it an end with env.max_episode_steps, or raise env.step_limit ({self.step_limit})"
            )
        if not self.limit_told and (truncated & (length == self.step_limit)).any():
            self.limit_told = True
            self.pending_notices.append(
                f"an episode without an end was truncated after {self.step_limit} steps (env.step_limit); if episodes "
                "never end, set env.max_episode_steps"
            )

    def _steps(self, actor: VectorActor) -> RolloutBuffer:
        steps = empty_rollout_buffer(self.steps, self.seen, self.envs.single_action_space, self.masks.now)
        noise = actor.noise(generator(self.seed, "act", self.rollouts), steps.reward.shape)
        now, checker = self.seen, StepChecker(seed=self.seed, rollout=self.rollouts)
        remembered = self._begin_memory(actor, steps)
        for t in range(self.steps):
            steps.seen[t] = now
            self._decide(actor, remembered, steps, t, noise[t])
            steps.reset_rows[t] = self.ended
            try:
                action = env_actions(steps.chosen[t], self.envs.single_action_space, clip=self.clip_actions)
                now, reward, steps.terminated[t], steps.truncated[t], info = self.envs.step(action)
                steps.set_reward(t, reward)
                now = self._record_step_ends(steps, t, now, info, checker)
                self.begun = steps.begun_after(t, next_step=self.autoreset_mode is AutoresetMode.NEXT_STEP)
            except (ResourceError, StepFaultError):
                raise
            except (ConfigError, DivergedError):
                checker.require_finite(steps, observations=t + 1, rewards=t)
                raise
            except Exception as fault:
                if out_of_memory(fault):
                    raise
                checker.require_finite(steps, observations=t + 1, rewards=t)
                reason = str(fault) if isinstance(fault, UserCodeError) else describe_exception(fault)
                recent = steps.chosen[max(0, t - 2) : t + 1].tolist() if self.envs.num_envs <= 8 else "not shown"
                raise UserCodeError(
                    f"step {t} of rollout {self.rollouts} failed in the environment (run seed {self.seed}, last "
                    f"actions {recent}): {reason}"
                ) from fault
        steps.seen[-1] = self.seen = np.array(now)
        if steps.mask is not None:
            steps.mask[-1] = self.masks.now
        if remembered is not None:
            self.memory = remembered.memory.copy()
        checker.require_finite(steps, observations=self.steps + 1, rewards=self.steps)
        return steps

    def _begin_memory(self, actor: VectorActor, steps: RolloutBuffer) -> _EpisodeMemory | None:
        """The memory of the actor's policy, in the state in which the last rollout left it; None without one."""
        remembered = actor.episode_memory() if isinstance(actor, _RememberingActor) else None
        if remembered is not None:
            remembered.memory = self.memory
            remembered.forget(self.begun)
            steps.memory, steps.initial_memory = remembered.memory.copy(), remembered.initial
        return remembered

    def _decide(
        self, actor: VectorActor, remembered: _EpisodeMemory | None, steps: RolloutBuffer, t: int, noise: Floats
    ) -> None:
        """Decide step `t` by the observations in `steps`, with the legal actions where there are masks."""
        if remembered is not None:
            remembered.forget(self.begun)
        if steps.mask is None:
            steps.chosen[t], steps.logp[t] = actor.decide(steps.seen[t], noise)
        else:
            steps.mask[t] = self.masks.now
            steps.chosen[t], steps.logp[t] = actor.decide(steps.seen[t], noise, steps.mask[t])

    def _record_step_ends(
        self, steps: RolloutBuffer, t: int, now: Array, info: dict[str, Any], checker: StepChecker
    ) -> Array:
        """Record the episodes that ended in step `t`, and reset where the environment does not -> next observations."""
        self.masks.after_step(info, where=f"step {t}")
        done = itself = steps.terminated[t] | steps.truncated[t]
        if (lost := lost_status(info)) is not None:
            steps.end_lost_episodes(t, lost, steps.seen[t])
            done = itself | steps.truncated[t]
        if self.autoreset_mode is AutoresetMode.NEXT_STEP:
            self.ended = itself
        if itself.any():
            which = np.flatnonzero(itself)
            same_step = self.autoreset_mode is AutoresetMode.SAME_STEP
            last_masks = self.masks.last(info, which, same_step=same_step)
            if same_step:
                last = np.stack([np.asarray(info["final_obs"][number], self.seen.dtype) for number in which])
            else:
                last = now[which].copy()
            unusable: list[str] = []
            usable = checker.usable_ends(steps, t, which, last, unusable)
            if unusable and not self.unusable_end_told:
                self.unusable_end_told = True
                self.pending_notices.append(unusable[0])
            if self.autoreset_mode is not AutoresetMode.NEXT_STEP:
                steps.end_episodes(t, which, usable, last_masks)
            elif usable is not last:
                now = now.copy()
                now[which] = usable
            if self.autoreset_mode is AutoresetMode.DISABLED:
                before = now
                now, info = self.envs.reset(options={"reset_mask": itself})
                self.masks.after_reset(info, itself, where=f"the reset after step {t}")
                if (lost := lost_status(info)) is not None:
                    steps.end_lost_episodes(t, np.where(done, ScoreStatus.SCORED, lost).astype(np.uint8), before)
        self.masks.require_choice(~self.ended, where=f"after step {t}")
        return now

    def _episodes(self, steps: RolloutBuffer, version: int) -> Episodes:
        env, time = np.nonzero(~steps.reset_rows.T)  # steps grouped by environment, in the order of time
        done = (steps.terminated | steps.truncated)[time, env]
        ends = done.copy()
        ends[:-1] |= env[1:] != env[:-1]
        ends[-1:] = True
        last = np.flatnonzero(ends)
        offsets = offsets_of(np.diff(last, prepend=-1))
        end_env, end_time = env[last], time[last]
        reward = steps.reward[time, env]
        pieces = self.running.add_pieces(row_sums(reward, offsets), np.diff(offsets), end_env, done[last])
        self._enforce_step_limit(pieces.length, steps.truncated[end_time, end_env])
        score = pieces.score
        final, final_mask = steps.final_observations(end_env, end_time)
        status = steps.lost_status[end_time, end_env]
        missing = status != ScoreStatus.SCORED
        if missing.any():
            score[missing], reward[missing[owner_of(offsets)]] = np.nan, 0.0
        return Episodes(
            offsets=offsets,
            seen=steps.seen[time, env],
            chosen=steps.chosen[time, env],
            logp=steps.logp[time, env],
            version=np.full(len(env), version, dtype=np.int32),
            reward=reward,
            group=pieces.group,
            terminated=steps.terminated[end_time, end_env],
            truncated=steps.truncated[end_time, end_env],
            final=final,
            score=score,
            status=status,
            mask=None if steps.mask is None else steps.mask[time, env],
            final_mask=final_mask,
            memory=steps.memory_before(env[offsets[:-1]], time[offsets[:-1]]) if steps.initial_memory.size else None,
        )

    def metrics(self) -> Metrics:
        """`env/faults`: processes of environments that were lost since the last call."""
        known, self.processes_lost = (
            self.processes_lost,
            self.envs.budget.losses if isinstance(self.envs, ProcessVectorEnv) else 0,
        )
        return {"env/faults": float(self.processes_lost - known)}

    def pop_notices(self) -> list[str]:
        """Notices for the user since the last call, one line each."""
        notices = [*self.pending_notices, *(self.envs.pop_notices() if isinstance(self.envs, ProcessVectorEnv) else [])]
        self.pending_notices.clear()
        return notices

    def state(self) -> State:
        if self.inexact_reason:
            envs: State = {}
        elif isinstance(self.envs, ProcessVectorEnv):
            envs = self.envs.state()
        else:
            envs = snapshot(self.envs, self.constant_attributes)
        return {
            "rollouts": self.rollouts,
            **self.running.state(),
            "ended": self.ended.copy(),
            "seen": self.seen.copy(),
            **({} if self.masks.now is None else {"mask": self.masks.now.copy()}),
            "inexact": None if envs else self.inexact_reason or "a process of environments was lost",
            "envs": envs,
            "losses": self.processes_lost,
            "history": self.envs.history() if isinstance(self.envs, ProcessVectorEnv) else {},
            **({"memory": self.memory.copy(), "begins": self.begun.copy()} if self.memory.size else {}),
        }

    def restore(self, state: State) -> None:
        """Restore a state into environments just opened with the same config and seed (see `resume_exactness`)."""
        self.rollouts = integer(state, "rollouts")
        self.processes_lost = integer(state, "losses") if "losses" in state else 0  # absent in older checkpoints
        if isinstance(self.envs, ProcessVectorEnv):
            self.envs.restore_history(substate(state, "history"))
        exact = self.inexact_reason is None and state["inexact"] is None
        self.running.restore(state, exact=exact)
        if exact:
            if isinstance(self.envs, ProcessVectorEnv):
                self.envs.restore(substate(state, "envs"))
            else:
                restore(self.envs, substate(state, "envs"))
            self.ended = array(state, "ended").astype(np.bool_)
            self.seen = array(state, "seen").astype(self.seen.dtype)
            self.masks.now = array(state, "mask").astype(np.bool_) if "mask" in state else None
            if "memory" in state:
                self.memory = array(state, "memory").astype(np.float32)
                self.begun = array(state, "begins").astype(np.bool_)
        else:
            fresh_seed = int(generator(self.seed, "restart", self.rollouts).integers(0, 2**62))
            seen, self.masks = reset_seeded(self.envs, fresh_seed)
            self.seen = np.array(seen)
            self.memory, self.begun = np.zeros((0, 0), np.float32), np.ones(self.envs.num_envs, dtype=np.bool_)

    @property
    def notes(self) -> list[str]:
        """What was found out about the environments, for `hone plan`."""
        lines: list[str] = []
        seen, action = self.envs.single_observation_space, self.envs.single_action_space
        if isinstance(seen, RowSpace):
            lines.append(f"parts of an observation: {describe_leaves(seen.layout.leaves)}")
        if isinstance(action, ActionRowSpace):
            lines.append(f"factors of an action: {describe_leaves(action.leaves)}")
        if self.masks.now is None:
            return lines
        place = self.envs.mask_place if isinstance(self.envs, ProcessVectorEnv) else mask_place(self.envs)
        return [*lines, f"masks of legal actions are told by {place} ({self.masks.now.shape[1]} choices)"]

    def close(self) -> None:
        self.envs.close()


def inspect_world(config: GymConfig, *, seed: int, squashed: bool = False) -> tuple[GymSpaces, list[str]]:
    """Check one environment: its observation and action space, and warnings.

    `squashed`: the policy reaches the bounds of its actions, so they must be finite. Raises ConfigError or
    UserCodeError with all faults found, ResourceError for an environment that takes its process down.
    """
    if runs_isolated(config):
        envs = ProcessVectorEnv(config, num_envs=1, squashed=squashed)
        with contextlib.closing(envs):
            return envs.inspect_env(seed=seed)
    env = env_factory(config).make_one()
    try:
        check_spaces(config.id, env.observation_space, env.action_space, squashed=squashed)
        notes = check_env(env_factory(config), seed=seed) if config.check else []
        return (env.observation_space, env.action_space), notes
    finally:
        env.close()


def open_world(
    config: GymConfig,
    *,
    steps: int,
    seed: int,
    squashed: bool = False,
    transport: BlockTransport | None = None,
    masks: bool = False,
    parts: PartsUse = "none",
) -> GymWorld:
    """Check, make and reset the environments, and test whether their state can be saved (`GymWorld.resume_exactness`).

    `transport` is where isolated ones run; `masks`: whoever acts takes legal actions only; `parts`: which spaces may
    have several parts. Raises as `inspect_world`, and ConfigError for masks and parts that nobody reads;
    `GymWorld.warnings` holds the warnings.
    """
    world = _open(config, steps=steps, seed=seed, squashed=squashed, transport=transport)
    world.warnings = [*config_warnings(config), *world.warnings]
    _require_parts_read(config, world, parts)
    if world.masks.now is not None and not masks:
        world.close()
        raise ConfigError(
            f"{config.id}: {world.notes[-1]}. This recipe takes illegal actions as well; train with ppo, a2c, dqn or "
            'discrete_sac, or set env.mask = "off" if the environment bears with them'
        )
    return world


def _require_parts_read(config: GymConfig, world: GymWorld, parts: PartsUse) -> None:
    """Raises ConfigError, and closes the world, where its spaces have parts that the recipe does not read."""
    seen, action = world.envs.single_observation_space, world.envs.single_action_space
    faults: list[str] = []
    if isinstance(seen, RowSpace) and parts == "none":
        names = ", ".join(leaf.path for leaf in seen.layout.leaves)
        faults.append(
            f"{config.id}: observations have several parts ({names}), and this recipe reads one box or one number; "
            "take ppo, a2c, dqn or sac, or wrap the environment in gymnasium.wrappers.FlattenObservation"
        )
    if isinstance(action, ActionRowSpace) and parts != "all":
        faults.append(
            f"{config.id}: actions have several factors ({len(action.leaves)} parts), and this recipe acts on one box "
            "or one number; take ppo, a2c, trpo, ppo_kl or reinforce_control, or wrap the environment in "
            "gymnasium.wrappers.TransformAction"
        )
    if faults:
        world.close()
        raise ConfigError(*faults)


def _open(config: GymConfig, *, steps: int, seed: int, squashed: bool, transport: BlockTransport | None) -> GymWorld:
    if runs_isolated(config):
        if config.isolation == "ray" and transport is None:
            raise ConfigError(
                'env.isolation = "ray" is for recipes that open one vector environment, such as ppo, dqn and sac; set '
                'it to "process" here'
            )
        envs = ProcessVectorEnv(config, num_envs=config.num_envs, squashed=squashed, transport=transport)
        return _open_processes(envs, config, steps=steps, seed=seed)
    making = env_factory(config)
    notes = inspect_world(config, seed=seed, squashed=squashed)[1] if config.check else []
    envs = making.make_many(config.num_envs)
    autoreset_mode(envs)
    check_spaces(config.id, envs.single_observation_space, envs.single_action_space, squashed=squashed)
    inexact = why_inexact_resume(making.make_many, seed=seed) if config.check else None
    world = world_from_envs(envs, steps=steps, seed=seed, clip=config.clip_actions)
    return _with_resume_check(world, config, inexact, notes)


def _open_processes(envs: ProcessVectorEnv, config: GymConfig, *, steps: int, seed: int) -> GymWorld:
    try:
        _, notes = envs.inspect_env(seed=seed)
        inexact = envs.inexact_reason(seed=seed) if config.check else None
        envs.start()
        world = world_from_envs(envs, steps=steps, seed=seed, clip=config.clip_actions)
        if inexact is None:
            envs.mark_baseline()
    except HoneError:
        envs.close()
        raise
    return _with_resume_check(world, config, inexact, notes)


def _with_resume_check(world: GymWorld, config: GymConfig, inexact: str | None, notes: list[str]) -> GymWorld:
    if inexact is not None:
        notes = [*notes, f"{config.id}: a resume will be approximate and start new episodes: {inexact}"]
    world.inexact_reason, world.warnings = inexact, notes
    world.step_limit = config.step_limit if time_limit(config) is None else None
    return world


def world_from_envs(envs: GymVectorEnv, *, steps: int, seed: int, clip: bool | None = None) -> GymWorld:
    """A `GymWorld` of these environments, reset by seeds of their own."""
    mode = autoreset_mode(envs)
    seen, masks = reset_seeded(envs, key(seed, "world") & 0xFFFFFFFF)
    masks.require_choice(np.ones(envs.num_envs, np.bool_), where="after the first reset")
    constant = {} if isinstance(envs, ProcessVectorEnv) else attribute_texts(envs)
    return GymWorld(
        envs=envs,
        autoreset_mode=mode,
        steps=steps,
        seed=seed,
        clip_actions=clip,
        seen=np.array(seen),
        masks=masks,
        constant_attributes=constant,
    )


__all__ = ["GymConfig", "GymWorld", "VectorActor", "inspect_world", "open_world", "world_from_envs"]
