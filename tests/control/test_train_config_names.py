"""Config classes of control recipes: two that hold the same keys are one class, and what is alike is called alike."""

from collections import defaultdict
from collections.abc import Iterator
from typing import get_args

import pytest

from hone.core.config import Config
from hone.recipes.registry import load_recipe, recipe_names

REPLAYING = ("dqn", "rainbow", "discrete_sac", "sac", "td3", "ddpg", "her_dqn", "her_sac")
OTHER_NAMES = {
    "batch_size",
    "buffer_size",
    "learning_starts",
    "target_rate",
    "polyak",
    "gamma",
    "lam",
    "judge",
    "explore",
}
"""Other names of `batch`, `capacity`, `warmup`, `tau`, `discount`, `gae_lambda`, `evaluation` and `exploration`."""


def nested(kind: object) -> Iterator[type[Config]]:
    """The config classes that an annotation speaks of."""
    if isinstance(kind, type) and issubclass(kind, Config):
        yield kind
        for field in kind.model_fields.values():
            yield from nested(field.annotation)
    for argument in get_args(kind):
        yield from nested(argument)


def classes() -> set[type[Config]]:
    return {kind for name in recipe_names() for kind in nested(load_recipe(name).config)}


def test_memories_of_the_same_keys_are_one_class() -> None:
    memories: dict[frozenset[str], set[type[Config]]] = defaultdict(set)
    for kind in classes():
        if {"batch", "capacity", "warmup"} <= set(kind.model_fields):
            memories[frozenset(kind.model_fields)].add(kind)
    assert memories, "no recipe replays any more"
    assert [kinds for kinds in memories.values() if len(kinds) > 1] == []


@pytest.mark.parametrize("recipe", REPLAYING)
def test_every_memory_has_the_same_keys(recipe: str) -> None:
    replay = load_recipe(recipe).config.model_fields["replay"].annotation
    assert isinstance(replay, type)
    assert issubclass(replay, Config)
    assert {"batch", "capacity", "warmup"} <= set(replay.model_fields)


def test_nothing_goes_by_two_names() -> None:
    found = {(kind.__name__, name) for kind in classes() for name in kind.model_fields if name in OTHER_NAMES}
    assert found == set()


def test_a_rate_says_of_which_share_and_a_count_of_what() -> None:
    """Target networks: `tau` is a share, `target_every` counts; both mean the same in every recipe."""
    for kind in classes():
        for name in ("tau", "average_rate"):
            if name in kind.model_fields:
                assert any("<=" in repr(one) or "Le(le=1)" in repr(one) for one in kind.model_fields[name].metadata)
