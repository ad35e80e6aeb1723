"""Making Gymnasium vector environments: by registered id, or from a class in a file of the user's.

Belongs here: finding and building environments, and their config. Running them is `world.py`, checking them before a
run is `check.py`.
"""

import importlib
import importlib.util
import inspect
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from pydantic import Field, JsonValue, PositiveInt, model_validator

from hone.control.environments.layout import NativeRows, layout_of, with_rows
from hone.control.environments.masks import MASK, VectorMasks, as_mask, mask_size, with_mask_in_info
from hone.control.environments.padding import with_padding
from hone.control.environments.registration import OPTION_MEMORY_ID, register_builtin_envs
from hone.control.environments.space_advice import has_goals
from hone.core.config import Config
from hone.core.errors import ConfigError, HoneError, UserCodeError, did_you_mean
from hone.core.out_of_memory import out_of_memory
from hone.core.random import key
from hone.process.user_files import check_reference, load_module, load_reference

# ------------------------------------------------------------------------------------------------------------- boundary


class EnvBoundary(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose observations are copies, with nothing in `info` but the mask of legal actions, if it tells
    one and `masks` is on: hone reads no other entry.

    With `step_limit`, an episode that has not ended after so many steps is truncated. Raises UserCodeError for an
    observation of another shape than the space's, and for a mask that does not fit or comes at some steps only.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], *, number: int = 0, step_limit: int | None = None, masks: bool = True
    ) -> None:
        super().__init__(env)
        self.number, self.step_limit = number, step_limit
        self.masks = masks and mask_size(env.action_space) > 0
        self.masked = False
        """Whether the last reset told a mask."""
        self.steps = 0
        """Steps of the running episode, counted where there is a limit."""
        space = env.observation_space
        self._shape = space.shape if isinstance(space, spaces.Box) else ()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        seen, info = self.env.reset(seed=seed, options=options)
        self.steps = 0
        self.masked = self.masks and MASK in info
        return self._own(seen), self._mask_of(info)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:  # noqa: ANN401 - the user's
        seen, reward, terminated, truncated, info = self.env.step(action)
        if self.step_limit is not None:
            self.steps += 1
            truncated = truncated or (self.steps >= self.step_limit and not terminated)
        return self._own(seen), reward, terminated, truncated, self._mask_of(info)

    def _mask_of(self, info: dict[str, Any]) -> dict[str, Any]:
        if not self.masks or (MASK not in info and not self.masked):
            return {}
        if MASK not in info or not self.masked:
            first, then = ("a step", "the reset") if self.masked else ("the reset", "a step")
            raise UserCodeError(
                f"environment {self.number}: {first} told no action mask, and {then} did; tell it in "
                f'info["{MASK}"] of every reset and every step, or set env.mask = "off"'
            )
        return {MASK: as_mask(info[MASK], self.action_space, where=f"environment {self.number}")}

    def _own(self, seen: Any) -> Any:  # noqa: ANN401 - a number or an array
        copied = np.array(seen)
        if copied.shape != self._shape:
            raise UserCodeError(
                f"environment {self.number}: the observation has shape {list(copied.shape)}, and observation_space "
                f"has {list(self._shape)}; "
                "resize or pad it, for instance with gymnasium.wrappers.ResizeObservation"
            )
        return copied


# ----------------------------------------------------------------------------------------------------------------- make


GymVectorEnv: TypeAlias = VectorEnv[Any, Any, Any]
GymEnv: TypeAlias = gymnasium.Env[Any, Any]
FirstObservations: TypeAlias = tuple[Any, VectorMasks]
"""Observations `[B, *observation]` after a reset, and the masks of legal actions."""

DEFAULT_STEP_LIMIT = 100_000
"""Steps after which an episode without an end is truncated, unless the config says another number."""
RECORDED_STEPS = 2000
"""Largest number of steps of a recorded episode."""


class WrapperConfig(Config):
    """A wrapper and its arguments; in a list, a name alone stands for a wrapper without arguments."""

    name: str
    """Name in `gymnasium.wrappers` (`AtariPreprocessing`, `FrameStackObservation`), `file.py:Class` or
    `package.module:Class`."""
    kwargs: dict[str, JsonValue] = Field(default={})
    """Passed to the wrapper after the environment; a list becomes a tuple, as Gymnasium's wrappers want."""

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, given: object) -> object:
        return {"name": given} if isinstance(given, str) else given


def _with_wrappers(env: GymEnv, wrappers: Sequence[WrapperConfig]) -> GymEnv:
    """`env` in the wrappers, the first innermost. Raises ConfigError for an unknown name, UserCodeError for a file that
    cannot be imported, and what a constructor raises."""
    for place, wrapper in enumerate(wrappers):
        arguments = {name: tuple(value) if isinstance(value, list) else value for name, value in wrapper.kwargs.items()}
        env = _find_wrapper(wrapper, place)(env, **arguments)
    return env


def _find_wrapper(wrapper: WrapperConfig, place: int) -> Callable[..., GymEnv]:
    """The class of wrapper number `place`. Raises ConfigError for an unknown name, UserCodeError for a file that
    cannot be imported."""
    key = f"env.wrappers[{place}]"
    if ":" in wrapper.name:
        check_reference(wrapper.name, kind=f"{key} =")
        made = load_reference(wrapper.name, kind=f"{key} =", prefix="hone_user_")
        if not callable(made):
            raise ConfigError(f"{key} = {wrapper.name!r}: it is no class of a wrapper")
        return cast("Callable[..., GymEnv]", made)
    known = {
        name: made
        for name, made in vars(gymnasium.wrappers).items()
        if inspect.isclass(made) and issubclass(made, gymnasium.Wrapper)
    }
    if wrapper.name not in known:
        hint = did_you_mean(wrapper.name, sorted(known))
        raise ConfigError(
            f"{key} = {wrapper.name!r}: gymnasium.wrappers has no such wrapper{hint}; one of your own is file.py:Class"
        )
    return known[wrapper.name]


class GymConfig(Config):
    """A Gymnasium environment, many at a time."""

    id: str
    """Registered id (`CartPole-v1`, `hone/Maze-v0`, or `package:Name-v0` to import the package first), or a class or
    function that makes an environment: `file.py:Class`, `package.module:Class`."""
    num_envs: int = Field(default=1, ge=1, le=65536)
    """Environments stepped together."""
    kwargs: dict[str, JsonValue] = Field(default={})
    """Passed to the environment's constructor."""
    max_episode_steps: int | None = Field(default=None, ge=1)
    """Truncate episodes after this many steps; None keeps the limit that the id is registered with."""
    wrappers: list[WrapperConfig] = Field(default=[])
    """Wrappers of each environment, the first innermost: names of `gymnasium.wrappers`, such as `AtariPreprocessing`,
    or your own, `file.py:Class`; `{name = ..., kwargs = {...}}` for one with arguments."""
    clip_actions: bool | None = None
    """Clip actions to the bounds of the box: true, or None, which leaves actions inside as they are. false: an action
    outside is an error."""
    mask: Literal["auto", "off"] = "auto"
    """`auto`: where the environment tells a mask of legal actions (`info["action_mask"]`, a method `action_masks()`, a
    leaf `action_mask` of the observation), only legal actions are taken. `off`: its masks are not read."""
    ignore: list[str] = Field(default=[])
    """Parts of the observation to leave out, by their paths: `mission`, `cars.0.name`."""
    pad: dict[str, PositiveInt] = Field(default={})
    """Path of a `Sequence` in the observation -> the most items that it can have: it becomes so many `items`, zeros
    where there is none, and a bit `present` for each. `""`: the observation itself."""
    check: bool = True
    """Check the environment with a short rollout before the run."""
    isolation: Literal["auto", "process", "none", "ray"] = "auto"
    """`process`: each environment runs in a process of its own; a crash or hang does not end the run. `none`: in the
    trainer's process. `auto`: `none` for environments of Gymnasium and hone, `process` for others. `ray`: as `process`,
    on the machines of a Ray cluster."""
    workers: int = Field(default=2, ge=1)
    """Processes that the environments are spread over, at most one for each environment. A native vector form stays in
    one."""
    step_timeout_s: float = Field(default=60.0, gt=0)
    """Seconds that a step or a reset may take before the environment's process is killed."""
    faults_allowed: int = Field(default=10, ge=0)
    """Processes that may be lost within `fault_window` steps; one more stops the run."""
    fault_window: int = Field(default=10_000, ge=1)
    """Steps of each environment over which lost processes are counted."""
    step_limit: int = Field(default=DEFAULT_STEP_LIMIT, ge=1)
    """Steps after which an episode without an end is truncated, in training and in evaluation, with a note;
    `max_episode_steps` and the limit of a registered id come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvFactory:
    """Constructors of one environment, and of many."""

    name: str
    make_one: Callable[[], GymEnv]
    make_native: Callable[[int], GymVectorEnv] | None
    """Constructor of the environment's own vector form, where it has one."""
    has_time_limit: bool
    """True if episodes are known to end: a time limit is set."""
    step_limit: int | None = None
    """Steps after which an episode of a single environment is truncated; None where a time limit is set."""
    masks: bool = True
    """Whether masks of legal actions are read."""

    def make_many(self, count: int) -> GymVectorEnv:
        """Raises UserCodeError when they cannot be made."""
        return self.make_from([self.make_one] * count)

    def make_from(self, singles: Sequence[Callable[[], GymEnv]], *, first: int = 0) -> GymVectorEnv:
        """Constructor of a vector environment: from `singles`, unless a native vector form exists. `first` is the
        number of the first of them in messages."""
        native = self.make_native
        if native is not None:
            return call_user_code(self.name, lambda: native(len(singles)))
        return call_user_code(
            self.name,
            lambda: sync_vector_env(singles, first=first, step_limit=self.step_limit, masks=self.masks),
        )


def env_factory(config: GymConfig) -> EnvFactory:
    """Raises ConfigError for an unknown id, file or class."""
    maker = _find_maker(config.id)
    if maker is not None:
        return _from_class(config, maker)
    return _from_spec(config, find_spec(config.id))


def runs_isolated(config: GymConfig) -> bool:
    """True if the environments run in processes of their own. Raises ConfigError for an unknown id."""
    if config.isolation != "auto":
        return config.isolation != "none"
    if ":" in config.id or any(":" in wrapper.name for wrapper in config.wrappers):
        return True
    spec = find_spec(config.id)
    points = [spec.entry_point, spec.vector_entry_point, *(wrapper.entry_point for wrapper in spec.additional_wrappers)]
    own = ("gymnasium.", "hone.control.")
    known = all(point is None or (isinstance(point, str) and point.startswith(own)) for point in points)
    return not (known and spec.id != OPTION_MEMORY_ID) and not callable(spec.entry_point)


def export_registration(config: GymConfig) -> str | None:
    """The registration of an id as JSON, for another process; None where that process finds the id by itself.

    Raises ConfigError for an id whose class has no name that another process could import.
    """
    if ":" in config.id:
        return None
    spec = find_spec(config.id)
    if callable(spec.entry_point) or callable(spec.vector_entry_point):
        raise ConfigError(
            f"env.id = {config.id!r} was registered with a class, which another process cannot find; register it as "
            f"'module:Class', name it 'file.py:Class', or set env.isolation = \"none\""
        )
    return spec.to_json()


def describe_placement(config: GymConfig) -> str:
    """Description of the processes that run the environments."""
    if not runs_isolated(config):
        return "in the trainer's process"
    count = min(config.workers, config.num_envs)
    where = "as actors of a Ray cluster" if config.isolation == "ray" else "of their own"
    return f"in a process {where}" if count == 1 else f"in {count} processes {where}"


def evaluation_limit(config: GymConfig) -> int:
    """Steps after which an evaluation stops; a time limit ends its episodes before. Raises ConfigError for an unknown
    id."""
    own = time_limit(config)
    return config.step_limit if own is None else max(config.step_limit, own + 1)


def time_limit(config: GymConfig) -> int | None:
    """Steps after which the environment itself truncates: the limit of the config or of the registered id; None for a
    class of a file, or of a package not yet imported. Raises ConfigError for an unknown id."""
    if config.max_episode_steps is not None or ":" in config.id:
        return config.max_episode_steps
    return find_spec(config.id).max_episode_steps


def describe_envs(config: GymConfig) -> dict[str, str]:
    """Figures for `hone plan`: where the environments run, and when an episode is truncated."""
    own = time_limit(config)
    key = "env.max_episode_steps" if config.max_episode_steps is not None else "the id's limit"
    text = f"after {own} steps ({key})" if own is not None else f"after {config.step_limit} steps (env.step_limit)"
    if own is None and ":" in config.id and ".py:" not in config.id:
        text += ", or at the limit of the id, if it has one"
    return {
        "environments": describe_placement(config),
        "episodes are truncated": f"{text}; a recording shows at most {RECORDED_STEPS}",
    }


def config_warnings(config: GymConfig) -> list[str]:
    """Warnings about environments that are known to differ from expectation."""
    if config.id.startswith("ale_py:") and "reward_clipping" not in config.kwargs:
        return [
            f"{config.id}: ALE's vector form clips rewards to -1 .. 1, so that scores, in evaluations too, are not "
            "those of the game; set env.kwargs = { reward_clipping = false } for these, or true to keep them clipped"
        ]
    return []


def env_seeds(seed: int, count: int) -> list[int]:
    """A seed of 32 bits for each environment, unrelated for neighbouring run seeds (seed + i would share streams)."""
    return [key(seed, "env", number) & 0xFFFFFFFF for number in range(count)]


def reset_each(envs: GymVectorEnv, seeds: Sequence[int]) -> FirstObservations:
    """Reset with a seed for each environment."""
    if isinstance(envs, SyncVectorEnv):
        seen, info = envs.reset(seed=cast("list[int | None]", list(seeds)))
    else:
        seen, info = envs.reset(seed=_native_seed(envs, seeds[0]))  # it draws for all of its own
    masks = VectorMasks(envs.single_action_space)
    masks.begin(info, envs.num_envs)
    return seen, masks


def _native_seed(envs: GymVectorEnv, seed: int) -> int:
    """`seed`, below 2^30 for vector forms of other packages: they may hold it as a signed number of 32 bits, and add
    the number of each environment to it, as ALE's does."""
    own = type(envs.unwrapped).__module__.startswith(("gymnasium.", "hone."))
    return seed if own else seed & ((1 << 30) - 1)


def reset_all(envs: GymVectorEnv, seed: int) -> FirstObservations:
    """Reset with seeds made from `seed`."""
    return reset_each(envs, env_seeds(seed, envs.num_envs))


def autoreset_mode(envs: GymVectorEnv) -> AutoresetMode:
    """The mode of resetting. Raises ConfigError where the environment does not declare it: resets would be misread."""
    mode = envs.metadata.get("autoreset_mode")
    if isinstance(mode, AutoresetMode):
        return mode
    raise ConfigError(
        f"{type(envs).__name__}: metadata['autoreset_mode'] is {mode!r}; without it rows that are resets cannot be "
        "recognised. Set it to a gymnasium.vector.AutoresetMode."
    )


def describe_exception(fault: BaseException) -> str:
    """A user's exception, with its traceback below the first line."""
    return f"{type(fault).__name__}: {fault}\n{''.join(traceback.format_exception(fault)).rstrip()}"


def find_spec(name: str, *, key: str = "env.id") -> EnvSpec:
    """The spec that Gymnasium has under a name. Raises ConfigError naming the config key `key`."""
    register_builtin_envs()
    package, _, own = name.rpartition(":")
    try:
        if package:
            _import_registrations(package, own)
        return gymnasium.spec(own)
    except gymnasium.error.Error as error:
        hint = did_you_mean(own, sorted(gymnasium.registry))
        why = f"no such environment is registered{hint}" if "did you mean" in hint else str(error)
        remedy = "" if package else "; name the package that registers it as well: package:Name-v0"
        raise ConfigError(f"{key} = {name!r}: {why}{remedy}") from error
    except ImportError as error:
        raise ConfigError(f"{key} = {name!r}: {error}") from error


def _import_registrations(package: str, name: str) -> None:
    """Import a package that registers environments with Gymnasium, as `gymnasium.make("package:Name-v0")` does; where
    that is not enough, call its `register_envs()` (MinAtar). Raises ImportError."""
    module = importlib.import_module(package)
    for place in (package, f"{package}.gym"):
        if name in gymnasium.registry:
            return
        if place != package and importlib.util.find_spec(place) is None:
            return
        module = importlib.import_module(place)
        register = vars(module).get("register_envs")
        if callable(register):
            register()


def _from_spec(config: GymConfig, spec: EnvSpec) -> EnvFactory:
    limit = config.max_episode_steps if config.max_episode_steps is not None else spec.max_episode_steps
    limits = _native_limits(spec, config)
    is_native = limits is not None and not spec.additional_wrappers and "phys2d" not in spec.id
    is_native = is_native and not config.wrappers and not config.pad

    def single() -> GymEnv:
        made = gymnasium.make(
            spec.id, max_episode_steps=config.max_episode_steps, disable_env_checker=True, **dict(config.kwargs)
        )
        return _as_hone_reads_it(made, config)

    def native(count: int) -> GymVectorEnv:
        # Whatever limit the id is registered with holds for single environments only; a native one has its own.
        kwargs: dict[str, Any] = {**config.kwargs, **(limits or {})}
        made = gymnasium.make_vec(spec, count, vectorization_mode="vector_entry_point", **kwargs)
        return _native_as_hone_reads_it(cast("GymVectorEnv", made), config)

    return EnvFactory(
        name=config.id,
        make_one=lambda: call_user_code(config.id, single),
        make_native=native if is_native else None,
        has_time_limit=limit is not None,
        step_limit=config.step_limit if limit is None else None,
        masks=config.mask == "auto",
    )


def _native_limits(spec: EnvSpec, config: GymConfig) -> dict[str, Any] | None:
    """Arguments of the native vector form that truncate its episodes as the config says; None where there is no such
    form, or none that can: single environments are stepped instead. ALE's form counts frames."""
    entry, steps = spec.vector_entry_point, config.max_episode_steps
    if entry is None or steps is None:
        return None if entry is None else {}
    taken = inspect.signature(load_env_creator(entry) if isinstance(entry, str) else entry).parameters
    if "max_episode_steps" in taken or any(one.kind is inspect.Parameter.VAR_KEYWORD for one in taken.values()):
        return {"max_episode_steps": steps}
    if "max_num_frames_per_episode" in taken:
        skip = config.kwargs.get("frameskip", taken["frameskip"].default)
        return {"max_num_frames_per_episode": steps * skip} if isinstance(skip, int) else None
    return None


class _WithoutMasks(VectorWrapper):
    """A native vector environment whose masks are not read."""

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        seen, _ = self.env.reset(seed=seed, options=options)  # pyright: ignore[reportArgumentType] - seeds of each
        return seen, {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:  # noqa: ANN401 - Gymnasium's
        seen, reward, terminated, truncated, info = self.env.step(actions)
        return seen, reward, terminated, truncated, {key: value for key, value in info.items() if key == "final_obs"}


def _native_as_hone_reads_it(envs: GymVectorEnv, config: GymConfig) -> GymVectorEnv:
    """A native vector form without masks where the config says so, and with rows for observations of several parts."""
    kept = envs if config.mask == "auto" else cast("GymVectorEnv", _WithoutMasks(envs))
    layout = layout_of(kept.single_observation_space, ignore=config.ignore)
    return kept if layout is None else cast("GymVectorEnv", NativeRows(kept, layout))


def _as_hone_reads_it(env: GymEnv, config: GymConfig) -> GymEnv:
    """The environment in the wrappers of the config, with its mask in `info`, with sequences filled up, with goals in
    one row (achieved goal, desired goal, the rest of the observation), and with rows for observations and actions of
    several parts."""
    env = _with_wrappers(env, config.wrappers)
    env = with_mask_in_info(env) if config.mask == "auto" else env
    env = with_padding(env, config.pad) if config.pad else env
    if has_goals(env.observation_space) and not config.ignore:
        return gymnasium.wrappers.FlattenObservation(env)
    return with_rows(env, ignore=config.ignore)


def _from_class(config: GymConfig, made: Callable[..., GymEnv]) -> EnvFactory:
    limit = config.max_episode_steps
    is_vector = inspect.isclass(made) and issubclass(made, VectorEnv)
    if is_vector and config.pad:
        raise ConfigError(f"env.pad: {config.id} is a vector form; let it fill up its sequences itself")

    def single() -> GymEnv:
        if is_vector:
            env: Any = _SingleOfVector(
                _native_as_hone_reads_it(cast("GymVectorEnv", made(num_envs=1, **config.kwargs)), config)
            )
        else:
            made_one: Any = made(**config.kwargs)
            _require_gymnasium(config.id, made_one)
            env = _as_hone_reads_it(made_one, config)
        return env if limit is None else gymnasium.wrappers.TimeLimit(env, limit)

    def native(count: int) -> GymVectorEnv:
        limits = {} if limit is None else {"max_episode_steps": limit}
        envs = cast("GymVectorEnv", made(num_envs=count, **config.kwargs, **limits))
        return _native_as_hone_reads_it(envs, config)

    return EnvFactory(
        name=config.id,
        make_one=lambda: call_user_code(config.id, single),
        make_native=native if is_vector and not config.wrappers else None,
        has_time_limit=limit is not None,
        step_limit=config.step_limit if limit is None else None,
        masks=config.mask == "auto",
    )


class _SingleOfVector(gymnasium.Env[Any, Any]):
    """One environment, as a vector form of it with `num_envs=1` is: for checks, recordings and maps."""

    def __init__(self, envs: GymVectorEnv) -> None:
        self.envs = envs
        self.observation_space, self.action_space = envs.single_observation_space, envs.single_action_space
        self.metadata, self.render_mode = envs.metadata, envs.render_mode
        self.mode = autoreset_mode(envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        del options
        seen, info = self.envs.reset(seed=None if seed is None else _native_seed(self.envs, seed))
        return np.asarray(seen)[0], _first_of(info)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:  # noqa: ANN401 - the user's
        seen, reward, terminated, truncated, info = self.envs.step(np.asarray([action]))
        last, about = np.asarray(seen)[0], info
        if self.mode is AutoresetMode.SAME_STEP and (terminated[0] or truncated[0]):
            last, about = info["final_obs"][0], info.get("final_info", {})
        return last, reward[0], bool(terminated[0]), bool(truncated[0]), _first_of(about)

    def close(self) -> None:
        self.envs.close()


def _first_of(info: dict[str, Any]) -> dict[str, Any]:
    """The mask of the first environment in the `info` of a vector form."""
    return {MASK: np.asarray(info[MASK])[0]} if MASK in info else {}


def _require_gymnasium(name: str, env: object) -> None:
    """Raises ConfigError for an object that is no environment of Gymnasium: one of PettingZoo, or of the old Gym."""
    if isinstance(env, gymnasium.Env):
        return
    origins = {base.__module__.partition(".")[0] for base in type(env).__mro__}
    if isinstance(env, VectorEnv):
        why = "makes a gymnasium.vector.VectorEnv: name its class, whose constructor takes num_envs, not a function"
    elif "pettingzoo" in origins:
        why = (
            'makes a PettingZoo environment, in which several agents act: take recipe = "ippo" (or mappo, vdn, qmix), '
            "whose env.id it is, or write a gymnasium.Env in which the other agents are part of the environment"
        )
    elif "gym" in origins:
        why = "makes an environment of the old package gym; wrap it: shimmy.GymV26CompatibilityV0(env=...)"
    else:
        why = f"makes {type(env).__module__}.{type(env).__qualname__}, which is no gymnasium.Env"
    raise ConfigError(f"env.id = {name!r} {why}")


def sync_vector_env(
    makers: Sequence[Callable[[], GymEnv]],
    mode: AutoresetMode = AutoresetMode.SAME_STEP,
    *,
    first: int = 0,
    step_limit: int | None = None,
    masks: bool = True,
) -> GymVectorEnv:
    """Single environments `first`, `first` + 1 ... stepped one after another, each behind an `EnvBoundary`; SAME_STEP
    wastes no step on a reset."""

    def bounded(number: int, make: Callable[[], GymEnv]) -> GymEnv:
        return EnvBoundary(make(), number=number, step_limit=step_limit, masks=masks)

    singles = [partial(bounded, number, make) for number, make in enumerate(makers, start=first)]
    return SyncVectorEnv(singles, autoreset_mode=mode)


def call_user_code(name: str, make: Callable[[], Any]) -> Any:  # noqa: ANN401 - one or many environments
    """Run a constructor of the user's; whatever it raises becomes UserCodeError with the traceback."""
    try:
        return make()
    except HoneError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise
        raise UserCodeError(f"{name}: the environment cannot be made: {describe_exception(error)}") from error


def _find_maker(name: str) -> Callable[..., GymEnv] | None:
    """The class or function that makes an environment: `file.py:Class` or `package.module:Class`; None for an id.

    Raises ConfigError for a file without it, UserCodeError when the file cannot be imported.
    """
    place, _, attribute = name.rpartition(":")
    is_file = ".py:" in name
    try:  # of a file nothing is looked for: `find_spec` would import what is called as the file is
        is_importable = not is_file and bool(place) and importlib.util.find_spec(place) is not None
    except (ImportError, ValueError):  # a parent that is none, or a module without a spec
        is_importable = False
    if is_file:
        check_reference(name, kind="env.id =")
        # The prefix keeps a file named like a library from replacing it in the trainer.
        held = vars(load_module(name, kind="env.id =", prefix="hone_user_"))
    elif attribute.isidentifier() and is_importable:
        held = vars(load_module(name, kind="env.id ="))
        if attribute not in held:
            return None  # Gymnasium's `package:Name`, an id without a version
    else:
        return None
    maker = held.get(attribute)
    if not callable(maker):
        known = [key for key, value in held.items() if inspect.isclass(value) or inspect.isfunction(value)]
        raise ConfigError(
            f"env.id = {name!r}: {place} has no class or function {attribute!r}{did_you_mean(attribute, known)}"
        )
    return cast("Callable[..., GymEnv]", maker)
