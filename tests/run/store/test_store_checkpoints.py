"""A checkpoint is whole or it is not there: kills at every boundary, full disks, damage, pruning."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hone.core.errors import DataError, ResourceError
from hone.run.store import checkpoints as module
from hone.run.store import codec, durable
from hone.run.store.checkpoints import CheckpointFolder

# Version v of a run: state and policy both say v, so that a mix of two versions would show.
WRITER = """
import sys
from pathlib import Path
import numpy as np
from hone.run.store.checkpoints import CheckpointFolder


def state_of(v):
    return {"v": v, "m": np.full(500, v, dtype=np.float32), "nested": {"rng": np.array(v)}}


def save(folder, step, v, **more):
    def write_policy(place):
        (place / "model.safetensors").write_bytes(bytes([v]) * 3000)
        (place / "shards").mkdir()
        (place / "shards" / "config.json").write_text(str(v))
    more.setdefault("keep_last", 1)
    return CheckpointFolder(folder=Path(folder), keep_last=more["keep_last"], keep_best=0).save(
        step, state_of(v), write_policy=write_policy)
"""
scope: dict = {}
exec(compile(WRITER, "writer", "exec"), scope)
save = scope["save"]


def version_of(checkpoint):
    """The one version that every part of a checkpoint agrees on."""
    state = checkpoint.state()
    versions = {
        state["v"],
        *state["m"].tolist(),
        int(state["nested"]["rng"]),
        *(checkpoint.policy_folder / "model.safetensors").read_bytes(),
        int((checkpoint.policy_folder / "shards" / "config.json").read_text()),
    }
    assert len(versions) == 1, f"a mix: {versions}"
    return versions.pop()


def recovered(folder):
    """What a resumer does: clean, then load."""
    checkpoints = CheckpointFolder(folder=folder, keep_last=1, keep_best=0)
    checkpoints.remove_leftovers()
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    return checkpoints.newest_intact()


def failpoints():
    names = [
        name
        for source in (module, codec)
        for name in re.findall(r'failpoint\("([a-z_.]+)"\)', Path(source.__file__).read_text())
    ]
    assert len(names) >= 12
    return names


def in_child(code, *arguments, failpoint=None):
    source = str(Path(module.__file__).parents[3])
    environment = os.environ | {"PYTHONPATH": source} | ({"HONE_FAILPOINT": failpoint} if failpoint else {})
    return subprocess.run([sys.executable, "-c", WRITER + code, *map(str, arguments)], env=environment, check=False)


@pytest.mark.parametrize("name", failpoints())
def test_killed_at_each_named_boundary(tmp_path, name):
    """Version 1 is there, version 2 is being saved at a later step, and version 3 over the same step after it."""
    action = "exit" if len(name) % 2 else "kill"
    save(tmp_path, 1, 1)
    code = "save(sys.argv[1], 2, 2)"
    if name == "ckpt.replacing":
        save(tmp_path, 2, 1)
    done = in_child(code, tmp_path, failpoint=f"{name}:{action}")
    assert done.returncode == (86 if action == "exit" else -9)
    checkpoint = recovered(tmp_path)
    late = {"ckpt.after_rename", "ckpt.before_prune", "ckpt.prune_renamed", "ckpt.pruned"}
    assert version_of(checkpoint) == (2 if name in late else 1)
    assert checkpoint.warnings == ()
    save(tmp_path, 3, 3)  # and the run goes on
    assert version_of(recovered(tmp_path)) == 3
    assert CheckpointFolder(folder=tmp_path).steps() == [3]


# Every file-system call of a save raises an audit event: die before the k-th one, for all k.
SWEEP = """
import os, shutil
base, step = Path(sys.argv[1]), int(sys.argv[2])
WATCHED = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}
k = 0
while True:
    k += 1
    work = base.parent / f"kill_{k}"
    shutil.copytree(base, work)
    child = os.fork()
    if child == 0:
        left = k
        def hook(event, arguments):
            global left
            if event in WATCHED:
                left -= 1
                if left == 0:
                    os._exit(86)
        sys.addaudithook(hook)
        save(work, step, 2)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if os.waitstatus_to_exitcode(status) == 0:
        break
    assert os.waitstatus_to_exitcode(status) == 86
"""


@pytest.mark.parametrize(("step", "least"), [(2, 30), (1, 30)], ids=["next step", "same step"])
def test_killed_before_each_file_system_call(tmp_path, step, least):
    base = tmp_path / "base"
    save(base, 1, 1)
    assert in_child(SWEEP, base, step).returncode == 0
    seen = [version_of(recovered(folder)) for folder in sorted(tmp_path.glob("kill_*"), key=lambda p: int(p.name[5:]))]
    assert len(seen) > least
    assert seen == sorted(seen), "version 1 until the rename, version 2 from then on"
    assert (seen[0], seen[-1]) == (1, 2)


def test_full_disk_at_each_write_keeps_the_previous_checkpoint(tmp_path, monkeypatch):
    save(tmp_path, 1, 1)
    real_write, real_save = durable.write_all, codec.save_file
    calls = {"count": 0, "fail_at": 0}

    def counted(real):
        def call(*arguments):
            calls["count"] += 1
            if calls["count"] == calls["fail_at"]:
                raise OSError(28, "No space left on device")
            return real(*arguments)

        return call

    monkeypatch.setattr(durable, "write_all", counted(real_write))
    monkeypatch.setattr(codec, "save_file", counted(real_save))
    monkeypatch.setattr(Path, "write_bytes", counted(Path.write_bytes))
    messages = []
    while True:
        calls |= {"count": 0, "fail_at": calls["fail_at"] + 1}
        try:
            save(tmp_path, 2, 2)
        except ResourceError as error:
            messages.append(str(error))
            assert error.exit_code == 5
            assert [path.name for path in tmp_path.iterdir()] == ["step_00000001"]
            assert version_of(CheckpointFolder(folder=tmp_path).newest_intact()) == 1
        else:
            break
    assert len(messages) == 4  # tensors, tree, policy, manifest
    for message, name in zip(messages, ["state.safetensors", "state.json", "policy", "manifest.json"], strict=True):
        assert "no space left for" in message
        assert name in message
        assert "to write" in message or name == "policy"  # only the caller knows the size of its policy
    assert version_of(recovered(tmp_path)) == 2


LIMITED = """
import resource
from hone.core.errors import ResourceError
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    save(sys.argv[1], 2, 2)
except ResourceError as error:
    assert "state.safetensors" in str(error) and "KiB to write" in str(error), error
    sys.exit(5)
"""


def test_a_file_that_the_kernel_refuses_is_a_resource_error(tmp_path):
    save(tmp_path, 1, 1)
    assert in_child(LIMITED, tmp_path).returncode == 5
    assert [path.name for path in tmp_path.iterdir()] == ["step_00000001"]
    assert version_of(recovered(tmp_path)) == 1


def test_a_callback_that_fails_leaves_nothing(tmp_path):
    def broken(folder):
        (folder / "half").write_text("x")
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        CheckpointFolder(folder=tmp_path / "checkpoints").save(1, {}, write_policy=broken)
    assert not list(tmp_path.iterdir())  # nor an empty folder, which would mean that somebody took its checkpoints away
    save(tmp_path / "checkpoints", 1, 1)
    with pytest.raises(RuntimeError, match="out of memory"):
        CheckpointFolder(folder=tmp_path / "checkpoints").save(2, {}, write_policy=broken)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step_00000001"]


def files_of(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_every_kind_of_damage_to_every_file_falls_back_and_says_so(tmp_path):
    save(tmp_path, 1, 1, keep_last=2)
    newest = save(tmp_path, 2, 2, keep_last=2)
    names = files_of(newest)
    assert len(names) == 5
    for name in names:
        path = newest / name
        whole = path.read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 1
        for damage in (whole[:-2], bytes(flipped), b"", None):
            path.unlink() if damage is None else path.write_bytes(damage)
            checkpoint = CheckpointFolder(folder=tmp_path).newest_intact()
            assert version_of(checkpoint) == 1
            assert len(checkpoint.warnings) == 1
            assert name in checkpoint.warnings[0]
            path.write_bytes(whole)
    assert version_of(CheckpointFolder(folder=tmp_path).newest_intact()) == 2


def test_a_flipped_bit_is_named_with_both_hashes(tmp_path):
    path = save(tmp_path, 1, 1) / "policy" / "model.safetensors"
    written = durable.sha256(path)
    path.write_bytes(b"\0" * 3000)
    with pytest.raises(DataError) as caught:
        CheckpointFolder(folder=tmp_path).at(1)
    assert str(path) in str(caught.value)
    assert written in str(caught.value)
    assert durable.sha256(path) in str(caught.value)


def test_any_single_flipped_bit_of_the_manifest_is_noticed(tmp_path):
    manifest = save(tmp_path, 1, 1) / "manifest.json"
    whole = manifest.read_bytes()
    for position in range(0, len(whole) - 1, 7):
        flipped = bytearray(whole)
        flipped[position] ^= 1
        manifest.write_bytes(flipped)
        with pytest.raises(DataError):
            CheckpointFolder(folder=tmp_path).newest_intact()


def test_never_from_scratch_silently(tmp_path):
    with pytest.raises(DataError, match="no checkpoint in"):
        CheckpointFolder(folder=tmp_path / "absent").newest_intact()
    (tmp_path / "step_00000005").mkdir()
    with pytest.raises(DataError, match="no intact checkpoint") as caught:
        CheckpointFolder(folder=tmp_path).newest_intact()
    assert "step_00000005" in str(caught.value)
    with pytest.raises(DataError, match=r"no checkpoint of step 4.*\[5\]"):
        CheckpointFolder(folder=tmp_path).at(4)


def test_a_newer_format_is_refused_by_number(tmp_path):
    save(tmp_path, 1, 1, keep_last=2)
    manifest = save(tmp_path, 2, 2, keep_last=2) / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"format": 9}))
    with pytest.raises(DataError, match=r"format 9.*up to 1; upgrade"):
        CheckpointFolder(folder=tmp_path).newest_intact()


def test_pruning_keeps_the_last_and_the_best(tmp_path):
    kept = CheckpointFolder(folder=tmp_path, keep_last=2, keep_best=1)
    scores = [0.1, 0.9, float("nan"), 0.9, 0.3, None, 0.2]
    expected = [[1], [1, 2], [2, 3], [3, 4], [4, 5], [4, 5, 6], [4, 6, 7]]  # of two equal scores, the later
    for step, (score, steps) in enumerate(zip(scores, expected, strict=True), start=1):
        kept.save(step, {}, score=score)
        assert kept.steps() == steps
    assert kept.at(4).score == 0.9
    assert kept.newest_intact().score == 0.2


def test_pruning_after_a_fallback_does_not_take_the_damaged_future_for_the_newest(tmp_path):
    for step in (1, 2):
        save(tmp_path, step, step, keep_last=2)
    (tmp_path / "step_00000002" / "manifest.json").write_text("{")
    kept = CheckpointFolder(folder=tmp_path, keep_last=1, keep_best=0)
    checkpoint = kept.newest_intact()
    assert checkpoint.step == 1
    assert "aside_step_00000002" in kept.set_aside_after(checkpoint.step)[0]
    save(tmp_path, 2, 7)
    assert version_of(kept.newest_intact()) == 7
    assert kept.newest_intact().warnings == ()
    save(tmp_path, 1, 5)
    assert kept.steps() == [1, 2]  # a save of step 1 prunes nothing that is later
    assert kept.set_aside_after(1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "aside_step_00000002",
        "aside_step_00000002_2",
        "step_00000001",
    ]


def test_clean_says_what_it_removed(tmp_path):
    assert CheckpointFolder(folder=tmp_path / "absent").remove_leftovers() == []
    save(tmp_path, 1, 1)
    (tmp_path / ".tmp_step_00000002").mkdir()
    (tmp_path / ".trash_step_00000000").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    done = CheckpointFolder(folder=tmp_path).remove_leftovers()
    assert len(done) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "step_00000001"]


def test_everything_is_synced_before_the_rename_and_the_parent_after(tmp_path, monkeypatch):
    """Stands in for a power cut: fsync(each file and folder) < rename < fsync(parent)."""
    events = []
    real_sync, real_rename = os.fsync, Path.rename

    def fsync(descriptor):
        events.append(("fsync", str(Path(f"/proc/self/fd/{descriptor}").readlink())))
        real_sync(descriptor)

    def rename(source, target):
        events.append(("rename", Path(target).name))
        return real_rename(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    folder = save(tmp_path, 1, 1)
    renamed = events.index(("rename", "step_00000001"))
    before = {path for kind, path in events[:renamed] if kind == "fsync"}
    temporary = tmp_path / ".tmp_step_00000001"
    assert {str(temporary / name) for name in files_of(folder)} <= before
    assert {str(temporary / name) for name in ("", "state", "policy", "policy/shards")} <= before
    assert ("fsync", str(tmp_path)) in events[renamed + 1 :]


def test_failpoint_actions(monkeypatch):
    durable.failpoint("anywhere")
    monkeypatch.setenv("HONE_FAILPOINT", "here:raise,there:explode")
    durable.failpoint("elsewhere")
    with pytest.raises(OSError, match="failpoint here"):
        durable.failpoint("here")
    with pytest.raises(ValueError, match="explode"):
        durable.failpoint("there")


def test_large_steps_sort_by_number(tmp_path):
    kept = CheckpointFolder(folder=tmp_path, keep_last=3)
    for step in (99_999_999, 100_000_000):
        kept.save(step, {"x": np.zeros(0)})
    assert kept.newest_intact().step == 100_000_000
