"""Killed at each step, the registry holds the state before the step or the state after it."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from hone.decide.registry import JournalEntry, StageMove, VersionOrigin, VersionRegistry, open_registry
from hone.run.store.durable import FAILPOINT_VARIABLE


def killed_at(place: str, work: Callable[[], object]) -> None:
    """Do the work in a child that is killed at the failpoint."""
    child = os.fork()
    if child == 0:
        os.environ[FAILPOINT_VARIABLE] = f"{place}:kill"
        work()
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def versions(registry: VersionRegistry, tmp_path: Path) -> tuple[str, str]:
    numbers = []
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.json").write_text(name)
        numbers.append(registry.add(tmp_path / name, VersionOrigin(), at_s=1.0, made_by="t").id)
    registry.move("shop", StageMove(version=numbers[0], stage="live"), at_s=1.0, made_by="t")
    return numbers[0], numbers[1]


@pytest.mark.parametrize("place", ["before_rename", "before_rows", "before_commit"])
def test_an_addition_is_whole_or_not_there(place: str, tmp_path: Path) -> None:
    registry = open_registry(tmp_path / "registry", create=True)
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "weights").write_bytes(b"w" * 1000)
    policy = tmp_path / "policy"
    killed_at(f"registry.{place}", lambda: registry.add(policy, VersionOrigin(), at_s=2.0, made_by="killed"))
    assert registry.versions() == ()
    added = registry.add(policy, VersionOrigin(), at_s=3.0, made_by="again")
    assert (registry.policy_folder(added.id) / "weights").read_bytes() == b"w" * 1000
    assert len(registry.versions()) == 1


@pytest.mark.parametrize(
    ("what", "place", "after"),
    [
        ("move", "before_commit", False),
        ("append", "after_entry", False),
        ("append", "before_commit", False),
        ("append", "after_commit", True),
    ],
)
def test_a_move_leaves_the_old_or_the_new(what: str, place: str, after: bool, tmp_path: Path) -> None:
    registry = open_registry(tmp_path / "registry", create=True)
    old, new = versions(registry, tmp_path)
    move = StageMove(version=new, stage="live")
    entry = JournalEntry(service="shop", rollout="r", seq=0, content={"to": "100%"}, moves=(move,))
    work = {
        "move": lambda: registry.move("shop", move, at_s=2.0, made_by="killed"),
        "append": lambda: registry.append(entry, at_s=2.0, made_by="killed"),
    }
    killed_at(f"registry.{place}", work[what])
    assert registry.live("shop") == (new if after else old)
    assert registry.stage("shop", old) == ("retired" if after else "live")
    assert registry.stage("shop", new) == ("live" if after else "candidate")
    assert len(registry.moves("shop")) == (2 if after else 1)
    assert len(registry.entries("shop", "r")) == (1 if after else 0)
