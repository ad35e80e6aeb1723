"""A run's folder: made once, never overwritten, resumed only as itself, locked by one process."""

import json
import os
import signal
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock

from hone.core.config import ConfigSetting
from hone.core.errors import ConfigError, DataError, ResourceError
from hone.run.store import durable
from hone.run.store.folder import check_name, create_run, list_runs, open_run, resume_run
from hone.run.store.manifest import AllowedChanges, RunChange, RunMetadata, config_diff, config_hash

CONFIG = {
    "steps": ConfigSetting(value=100, origin="run.toml:3"),
    "grpo.lr": ConfigSetting(value=1e-5, origin="command line"),
    "env.names": ConfigSetting(value=["chain_sum"]),
}
FACTS = RunMetadata(
    hone_version="0.1.0", dataset_fingerprint="abc", versions={"numpy": "2.4"}, machine="toy", recipe="grpo"
)
CLOCK = ManualClock(1_769_860_800.0)  # 2026-01-31T12:00:00Z


def snapshot(folder):
    return {
        path.relative_to(folder).as_posix(): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    }


def create(root, name="run", config=CONFIG, facts=FACTS, **more):
    return create_run(root, name, config=config, metadata=facts, clock=CLOCK, **more)


def resume(root, name="run", config=CONFIG, facts=FACTS, **more):
    return resume_run(root, name, config=config, metadata=facts, clock=CLOCK, **more)


def changed(key, value):
    return {**CONFIG, key: ConfigSetting(value=value)}


def test_what_is_written_comes_back(tmp_path):
    with create(tmp_path / "deep" / "runs") as run:
        assert run.config() == CONFIG
        assert list(run.config()) == list(CONFIG)
        manifest = run.manifest()
        assert manifest.metadata == FACTS
        assert manifest.created_at == "2026-01-31T12:00:00Z"
        assert manifest.config_hash == config_hash(CONFIG)
        run.log("low memory", level="WARNING")
        assert run.log_path.read_text() == "2026-01-31T12:00:00Z WARNING low memory\n"
    assert list_runs(tmp_path / "deep" / "runs") == [run.path]
    assert open_run(run.path, clock=CLOCK).name == "run"
    stored = json.loads(run.config_path.read_text())
    assert stored["grpo.lr"] == {"value": 1e-5, "origin": "command line"}


@pytest.mark.parametrize("name", ["../../etc/x", "", "a" * 300, "a\0b", ".hidden", "..", "a b", "a/b", "a\n", "ü"])
def test_bad_names_name_the_rule(tmp_path, name):
    with pytest.raises(ConfigError, match="1 to 128 letters"):
        create(tmp_path, name)
    assert not list(tmp_path.iterdir())


@given(st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}", fullmatch=True))
def test_good_names(name):
    check_name(name)


def test_an_existing_run_with_another_config_is_refused_with_the_difference(tmp_path):
    create(tmp_path).close()
    before = snapshot(tmp_path)
    other = {key: setting for key, setting in changed("grpo.lr", 3e-4).items() if key != "steps"} | {
        "kl": ConfigSetting(value=0.1)
    }
    with pytest.raises(ConfigError) as caught:
        create(tmp_path, config=other)
    text = str(caught.value)
    for part in ("--resume", "--name", "grpo.lr: 1e-05 -> 0.0003", "steps: 100 -> (absent)", "kl: (absent) -> 0.1"):
        assert part in text
    assert "env.names" not in text
    assert snapshot(tmp_path) == before


def test_an_existing_run_with_the_same_config_asks_for_resume(tmp_path):
    create(tmp_path).close()
    before = snapshot(tmp_path)
    with pytest.raises(ConfigError, match="--resume continues it"):
        create(tmp_path)
    assert snapshot(tmp_path) == before


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("years of work")
    before = snapshot(tmp_path)
    with pytest.raises(ConfigError, match=r"thesis\.txt"):
        create(tmp_path)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("left", [[], ["lock"], ["lock", "config.json"], ["lock", "config.json", ".manifest.json.tmp"]])
def test_what_a_kill_during_creation_left_is_taken_over(tmp_path, left):
    (tmp_path / "run").mkdir()
    for name in left:
        (tmp_path / "run" / name).write_text("{")
    create(tmp_path).close()
    assert open_run(tmp_path / "run", clock=CLOCK).config() == CONFIG


def test_resume_takes_the_same_config_and_listed_changes_only(tmp_path):
    create(tmp_path).close()
    resume(tmp_path).close()
    before = snapshot(tmp_path)
    with pytest.raises(ConfigError, match=r"grpo\.lr: 1e-05 -> 1"):
        resume(tmp_path, config=changed("grpo.lr", 1.0), allowed=AllowedChanges(keys=("steps",)))
    with pytest.raises(ConfigError, match="dataset: abc -> xyz"):
        resume(tmp_path, facts=RunMetadata(hone_version="0.1.0", dataset_fingerprint="xyz"))
    assert {key: value[1] for key, value in snapshot(tmp_path).items()} == {k: v[1] for k, v in before.items()}
    with resume(tmp_path, config=changed("steps", 200), allowed=AllowedChanges(keys=("steps",))) as run:
        assert run.config() == CONFIG, "a resume that fails before its first step changes nothing"
        lines = run.record_resume(config=changed("steps", 200), metadata=FACTS, after_step=7)
        assert run.config()["steps"] == ConfigSetting(value=200)
    assert lines == ["steps: 100 -> 200"]
    manifest = run.manifest()
    assert manifest.changes == (RunChange(after_step=7, change="steps: 100 -> 200"),)
    assert manifest.config_hash == config_hash(changed("steps", 200))
    assert resume(tmp_path, config=changed("steps", 200)).record_resume(
        config=changed("steps", 200), metadata=FACTS, after_step=9
    ) == []  # fmt: skip


def test_keys_on_request_need_the_request_and_the_message_says_so(tmp_path):
    create(tmp_path).close()
    rules = AllowedChanges(keys=("steps",), keys_on_request=("grpo.",), otherwise="start a new run")
    with pytest.raises(ConfigError) as caught:
        resume(tmp_path, config=changed("grpo.lr", 1.0), allowed=rules)
    assert "--allow-changed-config accepts grpo.lr" in str(caught.value)
    assert "start a new run" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        resume(tmp_path, config=changed("env.names", []), allowed=replace(rules, config=True))
    assert "start a new run" in str(caught.value)
    assert "--allow-changed-config" not in str(caught.value)
    resume(tmp_path, config=changed("grpo.lr", 1.0), allowed=replace(rules, config=True)).close()


def test_changed_new_and_lost_source_files_are_named_together(tmp_path):
    facts = replace(FACTS, code={"a.py": "1" * 64, "b.py": "2" * 64})
    create(tmp_path, facts=facts).close()
    other = replace(FACTS, code={"a.py": "3" * 64, "c.py": "4" * 64})
    with pytest.raises(ConfigError) as caught:
        resume(tmp_path, facts=other)
    text = str(caught.value)
    for part in ("a.py has changed (sha256 111111111111 -> 333333333333)", "b.py is no longer", "c.py is new", "-code"):
        assert part in text
    with resume(tmp_path, facts=other, allowed=AllowedChanges(code=True)) as run:
        run.record_resume(config=CONFIG, metadata=other, after_step=3)
    assert [change.after_step for change in run.manifest().changes] == [3, 3, 3]
    resume(tmp_path, facts=other).close()
    with pytest.raises(ConfigError, match=r"a\.py has changed"):
        resume(tmp_path, facts=facts)


def test_a_run_from_before_there_were_fingerprints_of_code_takes_them_up(tmp_path):
    create(tmp_path).close()
    facts = replace(FACTS, code={"a.py": "1" * 64})
    with resume(tmp_path, facts=facts) as run:
        assert run.record_resume(config=CONFIG, metadata=facts, after_step=3) == []
    with pytest.raises(ConfigError, match=r"a\.py has changed"):
        resume(tmp_path, facts=replace(FACTS, code={"a.py": "2" * 64}))


def test_nothing_to_resume_or_open(tmp_path):
    with pytest.raises(DataError, match="omit --resume"):
        resume(tmp_path)
    with pytest.raises(DataError, match="is not a run"):
        open_run(tmp_path / "run", clock=CLOCK)
    assert not list(tmp_path.iterdir())


def test_newer_or_damaged_run_is_refused_by_name(tmp_path):
    with create(tmp_path) as run:
        whole = run.manifest_path.read_text()
    run.manifest_path.write_text(whole.replace('"format": 1', '"format": 7'))
    with pytest.raises(DataError, match=r"format 7.*up to 1"):
        open_run(run.path, clock=CLOCK)
    run.manifest_path.write_text("{}")
    with pytest.raises(DataError, match="not the manifest"):
        resume(tmp_path)
    run.manifest_path.write_text(whole)
    run.config_path.write_text('{"steps": 3}')
    with pytest.raises(DataError, match="steps"):
        run.config()


def test_places_that_cannot_hold_a_run(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("x")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "run").symlink_to(tmp_path / "real")
    before = snapshot(tmp_path)
    for root, part in [("file", "not a folder"), ("file/deeper", "not a folder"), ("link", "symbolic link")]:
        with pytest.raises(ResourceError, match=part):
            create(tmp_path / root)
    for root in ("dangling", "runs"):
        with pytest.raises(ResourceError, match="symbolic link"):
            create(tmp_path / root)
    with pytest.raises(ResourceError, match="cannot write"):
        create(Path("/proc/hone_runs"))  # the kernel refuses this one, even to root
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(ResourceError, match="not writable"):
        create(tmp_path / "fresh")
    assert snapshot(tmp_path) == before


def test_too_little_space_is_said_before_anything_is_written(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")(10, 9, 3 << 20)
    monkeypatch.setattr(durable.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(ResourceError, match=r"5\.0 MiB needed, 3\.0 MiB free"):
        create(tmp_path / "runs", need_bytes=5 << 20)
    assert not list(tmp_path.iterdir())
    create(tmp_path / "runs", need_bytes=1 << 20).close()


def test_the_second_holder_is_told_about_the_first(tmp_path):
    run = create(tmp_path)
    for attempt in (create, resume):
        with pytest.raises(ResourceError, match=rf"run run is in use by pid {os.getpid()} on .* since 2026-01-31T12"):
            attempt(tmp_path)
    open_run(run.path, clock=CLOCK)  # reading needs no lock
    run.close()
    run.close()
    resume(tmp_path).close()


def test_config_diff_and_hash():
    assert config_diff(CONFIG, dict(reversed(CONFIG.items()))) == []
    moved = {key: ConfigSetting(value=setting.value, origin="elsewhere") for key, setting in CONFIG.items()}
    assert config_hash(CONFIG) == config_hash(dict(reversed(moved.items())))
    assert config_hash(CONFIG) != config_hash(changed("steps", 101))


HOLDER = """
import multiprocessing, os, sys, time
from pathlib import Path
from hone.core.clock import SystemClock
from hone.run.store.folder import create_run
from hone.run.store.manifest import RunMetadata
run = create_run(Path(sys.argv[1]), "run", config={}, metadata=RunMetadata(hone_version="0"), clock=SystemClock())
def work():
    print(os.getpid(), flush=True)  # by itself: until it runs, it has not let go of what it inherited
    time.sleep(60)
multiprocessing.get_context("fork").Process(target=work).start()
time.sleep(60)
"""


def test_a_killed_holder_gives_the_lock_back_though_its_forked_worker_lives_on(tmp_path):
    environment = os.environ | {"PYTHONPATH": str(Path(durable.__file__).parents[3])}
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as holder:
        assert holder.stdout is not None
        worker = int(holder.stdout.readline())
        with pytest.raises(ResourceError, match=f"pid {holder.pid}"):
            create(tmp_path, config={})
        holder.kill()
        holder.wait()
        try:
            resume(tmp_path, config={}, facts=RunMetadata(hone_version="0")).close()
        finally:
            os.kill(worker, signal.SIGKILL)
