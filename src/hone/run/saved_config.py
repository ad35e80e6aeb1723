"""A saved run: its config as nested tables, and the folder of its policy.

Belongs here: nothing that imports torch: the commands read it before they load a model.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from hone.core.clock import SystemClock
from hone.core.strict_json import Json
from hone.process.hub import hub_folder, is_hub_name
from hone.run.store.checkpoints import verify_policy
from hone.run.store.folder import open_run


def is_control(policy: Path) -> bool:
    """True if a folder contains a control policy (a language model has a `config.json` instead)."""
    return (policy / "policy.json").is_file()


def config_tree(run: Path) -> dict[str, Json]:
    """Config of a run as nested tables."""
    tree: dict[str, Json] = {}
    for key, setting in open_run(run, clock=SystemClock()).config().items():
        _insert_nested(tree, key.split("."), setting.value)
    return {name: _lists(value) for name, value in tree.items()}


def _insert_nested(tree: dict[str, Json], path: Sequence[str], value: Json) -> None:
    head, *rest = path
    if not rest:
        tree[head] = value
        return
    branch = tree.setdefault(head, {})
    if isinstance(branch, dict):
        _insert_nested(branch, rest, value)


def _lists(value: Json) -> Json:
    """Convert tables with the keys 0, 1, 2 ... back to lists, which dotted keys had replaced."""
    if not isinstance(value, dict):
        return value
    inner = {key: _lists(child) for key, child in value.items()}
    if inner and list(inner) == [str(number) for number in range(len(inner))]:
        return list(inner.values())
    return inner


def table_of(tree: Mapping[str, Json], name: str) -> dict[str, Json]:
    """A table of a config; {} where there is none."""
    value = tree.get(name)
    return cast("dict[str, Json]", value) if isinstance(value, dict) else {}


# -------------------------------------------------------------------------------------------------------- policy folder


def policy_folder(path: Path) -> Path:
    """Folder of weights for `path`: itself, a checkpoint's, that of a run's newest intact checkpoint, or the cache of a
    model on the Hub.

    Files of a checkpoint are verified. Raises DataError for damaged ones, and issues a CheckpointWarning for a newer
    checkpoint of a run that is damaged.
    """
    if is_hub_name(str(path)):
        return hub_folder(str(path))
    verify_policy(path)
    if (path / "policy").is_dir():
        return path / "policy"
    if (path / "checkpoints").is_dir():
        return open_run(path, clock=SystemClock()).checkpoints().newest_policy().policy_folder
    return path
