"""Tasks of reasoning-gym by name: as many examples as asked for, made on the spot.

Belongs here: names and configs checked at the edge, distinct prompts, training and evaluation sets kept apart.
Does not: scoring, which runs in a worker process (`rewards`); the columns carry all that the task's scorer needs.

reasoning-gym draws item k of seed s from `Random(s + k)`: two sets whose seeds are nearer than their sizes share items.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

from hone.core.errors import ConfigError, DataError, ErrorCollector, did_you_mean
from hone.text.tasks.dataset import Example, ExampleDataset, build_examples, prompt_key

PREFIX = "reasoning_gym:"
_SEEDS = 2**32
_MAX_REPEATS = 50
"""Items drawn per item wanted before a search for distinct ones is given up."""


class _ReasoningGymDataset(Protocol):
    def __getitem__(self, idx: int) -> dict[str, object]: ...


def reasoning_gym_examples(
    task: str,
    *,
    size: int,
    seed: int,
    config: Mapping[str, object] | None = None,
    distinct: bool = False,
    exclude: Sequence[ExampleDataset] = (),
) -> ExampleDataset:
    """`size` examples of a task, e.g. chain_sum or reasoning_gym:chain_sum.

    Args:
        config: the task's own settings, passed through.
        distinct: leave out items whose question stands earlier in this set; more are drawn until there are `size`.
        exclude: leave out items whose question stands in one of these sets, likewise.

    Columns: `question`, `answer`, `metadata`, `task`, `task_config`. The id is `task:seed:index`.
    Raises ConfigError (unknown task, key or value), DataError (the task has fewer distinct items than asked for).
    """
    name = task.removeprefix(PREFIX)
    settings = checked_config(name, config or {}, size=size, seed=seed)
    taken = {prompt_key(example.prompt) for other in exclude for example in other}
    rows: list[Example] = []
    drawn = 0
    filtered = distinct or bool(exclude)
    for index, entry in enumerate(islice(_entries(name, settings, size=size, seed=seed), size * _MAX_REPEATS)):
        drawn = index + 1
        key = prompt_key(str(entry["question"]))
        if filtered and key in taken:
            continue
        if distinct:
            taken.add(key)
        rows.append(_example(name, settings, entry, seed=seed, index=index))
        if len(rows) == size:
            break
    if len(rows) < size:
        raise DataError(
            f"{PREFIX}{name}: only {len(rows)} distinct items in {drawn} samples, {size} are required; "
            "ask for fewer, or widen the task's config"
        )
    return build_examples(rows, source=f"{PREFIX}{name}")


def checked_config(task: str, config: Mapping[str, object], *, size: int, seed: int) -> dict[str, object]:
    """The task's settings, ready to be passed on; raises ConfigError with all faults at once."""
    from reasoning_gym.factory import DATASETS  # noqa: PLC0415 - takes 2 s to import

    if task not in DATASETS or task == "composite":
        names = [name for name in DATASETS if name != "composite"]
        raise ConfigError(f"unknown task {PREFIX}{task}{did_you_mean(task, names)}")
    fields = {field.name: field for field in dataclasses.fields(DATASETS[task][1])}
    own = [name for name in fields if name not in ("seed", "size")]
    faults = ErrorCollector(ConfigError)
    if size < 1:
        faults.add(f"{PREFIX}{task}: size must be at least 1, got {size}")
    if not 0 <= seed < _SEEDS - size * _MAX_REPEATS:
        faults.add(f"{PREFIX}{task}: seed must be in 0 .. {_SEEDS - size * _MAX_REPEATS - 1}, got {seed}")
    for name in config:
        if name in ("seed", "size"):
            faults.add(f"{PREFIX}{task}: give {name} beside the task's config, not in it")
        elif name not in own:
            faults.add(f"{PREFIX}{task}: unknown key {name}{did_you_mean(name, own)}")
    faults.raise_if_any()
    # Config files have lists only; some tasks want tuples.
    return {
        name: tuple(value) if isinstance(value, list) and isinstance(fields[name].default, tuple) else value
        for name, value in config.items()
    }


def _entries(task: str, settings: Mapping[str, object], *, size: int, seed: int) -> Iterator[dict[str, object]]:
    """Items without end: block after block of `size`, each with the seed that continues the one before."""
    while True:
        dataset = _dataset(task, {**settings, "seed": seed, "size": size})
        for index in range(size):
            yield dataset[index]
        seed += size


def _dataset(task: str, settings: Mapping[str, object]) -> _ReasoningGymDataset:
    from reasoning_gym.factory import create_dataset  # noqa: PLC0415 - takes 2 s to import

    try:
        return create_dataset(task, **settings)
    except (AssertionError, TypeError, ValueError) as error:  # how the tasks say that a setting does not fit
        raise ConfigError(f"{PREFIX}{task}: the task rejects its config: {error or type(error).__name__}") from None


def _example(
    task: str, settings: Mapping[str, object], entry: Mapping[str, object], *, seed: int, index: int
) -> Example:
    return Example(
        id=f"{task}:{seed}:{index}",
        prompt=str(entry["question"]),
        completion=None,
        columns={
            "question": entry["question"],
            "answer": entry["answer"],
            "metadata": entry["metadata"],
            "task": task,
            "task_config": settings,
        },
        row=index + 1,
        source=f"{PREFIX}{task}",
    )
