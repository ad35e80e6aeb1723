"""Wrappers of an environment by name: Gymnasium's, such as AtariPreprocessing, and classes of the user's."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import gymnasium
from pydantic import Field, JsonValue, model_validator

from hone.core.config import Config
from hone.core.errors import ConfigError, did_you_mean
from hone.process.user_files import check_reference, load_reference

WrapperMaker: TypeAlias = Callable[..., gymnasium.Env[Any, Any]]


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


def with_wrappers(env: gymnasium.Env[Any, Any], wrappers: Sequence[WrapperConfig]) -> gymnasium.Env[Any, Any]:
    """`env` in the wrappers, the first innermost. Raises as `find_wrapper`, and what a constructor raises."""
    for place, wrapper in enumerate(wrappers):
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in wrapper.kwargs.items()}
        env = find_wrapper(wrapper, place)(env, **given)
    return env


def find_wrapper(wrapper: WrapperConfig, place: int) -> WrapperMaker:
    """The class of wrapper number `place`. Raises ConfigError for an unknown name, UserCodeError for a file that
    cannot be imported."""
    key = f"env.wrappers[{place}]"
    if ":" in wrapper.name:
        check_reference(wrapper.name, kind=f"{key} =")
        made = load_reference(wrapper.name, kind=f"{key} =", prefix="hone_user_")
        if not callable(made):
            raise ConfigError(f"{key} = {wrapper.name!r}: it is no class of a wrapper")
        return cast("WrapperMaker", made)
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
