"""The battery of 27 programs on every rung, as root, as a user and in a container; and what stays of a call."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hone.cli.commands import doctor_sandbox
from hone.cli.main import main
from hone.core.clock import listening
from hone.process import linux as landlock
from hone.process.linux import may_map_users
from hone.sandbox import battery, rungs
from hone.sandbox.battery import HOSTILE, ORDINARY, BatteryOutcome
from hone.sandbox.frames import SandboxPolicy
from hone.sandbox.run import CodeSandbox, SandboxReport

BATTERY = """
import json, os, sys
from hone.process.linux import PR_SET_NO_NEW_PRIVS, enter_namespaces, prctl, set_capabilities
from hone.process.linux import ALLOW, REFUSE, UNKNOWN, assemble, install_filter
from hone.sandbox.battery import run_battery

machine, rung = sys.argv[1:]
if machine == "user":
    enter_namespaces(0, {"uid_map": f"1000 {os.geteuid()} 1", "gid_map": f"1000 {os.getegid()} 1"})
    set_capabilities(0)
if machine == "container":
    unshare = {"unshare": ((272, 97), [REFUSE]), "clone3": ((435, 435), [UNKNOWN])}
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    install_filter(assemble(os.uname().machine, unshare, otherwise=ALLOW, foreign=ALLOW))
print(json.dumps([(one.name, one.good, one.explanation) for one in run_battery(rung, seconds=0.5)]))
"""
LANDLOCK = landlock.abi() >= landlock.TRUNCATE_ABI


@pytest.mark.parametrize(
    ("machine", "rung"),
    [("root", "namespaces"), ("user", "namespaces"), ("container", "best"), ("user", "landlock")],
)
def test_all_hostile_programs_are_held_and_ordinary_ones_run(best_rung: str, machine: str, rung: str) -> None:
    if rung != "namespaces" and not LANDLOCK:
        pytest.skip("no Landlock here")
    if best_rung != "namespaces" and (machine == "user" or rung == "namespaces"):
        pytest.skip("no namespaces here")
    result = subprocess.run([sys.executable, "-c", BATTERY, machine, rung], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    outcomes = json.loads(result.stdout)
    assert [(name, told) for name, good, told in outcomes if not good] == []
    assert (len(HOSTILE), len(ORDINARY), len(outcomes)) == (23, 4, 27)


@pytest.mark.parametrize(("good", "code"), [(True, 0), (False, 5)])
def test_the_doctor_tells_what_was_held(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], good: bool, code: int
) -> None:
    attack = BatteryOutcome(name="read a file", hostile=True, good=good, explanation="PermissionError")
    ordinary = BatteryOutcome(name="start threads", hostile=False, good=True, explanation="ok")
    monkeypatch.setattr(doctor_sandbox, "run_battery", lambda: [attack, ordinary])
    monkeypatch.setattr(
        CodeSandbox, "probe", lambda _: SandboxReport(rung="landlock", reasons=("namespaces: no",), missing=())
    )
    assert main(["doctor", "sandbox"]) == code
    out = capsys.readouterr().out
    assert f"{int(good)} of 1 hostile programs held, 1 of 1 ordinary ones ran" in out
    assert ("got through" in out) is not good
    monkeypatch.setattr(CodeSandbox, "probe", lambda _: SandboxReport(rung="", reasons=("landlock: no",), missing=()))
    assert main(["doctor", "sandbox"]) == 5
    assert "To run them as you, without any protection" in capsys.readouterr().out


def test_the_battery_tells_how_many_programs_were_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[str, int, int | None]] = []
    done = BatteryOutcome(name="", hostile=True, good=True, explanation="")
    monkeypatch.setattr(battery, "_attack", lambda *_: done)
    monkeypatch.setattr(battery, "_ordinary", lambda *_: done)
    with listening(lambda work: heard.append((work.title, work.done, work.total))):
        assert len(battery.run_battery()) == 27
    assert [*dict.fromkeys(heard)] == [("programs tried", count, 27) for count in range(28)]


def processes_of(user: str) -> list[str]:
    """Command lines that hold a text."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_text(errors="replace"))
        except OSError:
            continue
    return [line for line in lines if user in line]


DAEMONS = """
import os, subprocess, sys, time
made, refusals = 0, []
for _ in range(40):
    try:
        child = os.fork()
    except OSError as error:
        refusals.append(repr(error))
        continue
    if child == 0:  # it must not go on: at the limit its own fork fails, and it would report in its parent's place
        try:
            os.setsid()
            if os.fork() == 0:
                os.execv({python!r}, [{python!r}, "-c", "import time; time.sleep(60)", {name!r}])
        finally:
            os._exit(0)
    made += 1
time.sleep(0.1)
[made, *refusals[:1]]
"""


@pytest.mark.parametrize("rung", ["namespaces", "landlock"])
def test_a_program_that_may_have_processes_has_no_more_and_leaves_none(rung: str) -> None:
    if rung == "landlock" and not (LANDLOCK and may_map_users()):
        pytest.skip("needs Landlock and a user of its own")
    python = str(Path(sys.executable).resolve())
    policy = SandboxPolicy.model_validate({"rung": rung, "processes": 6, "readable": [str(Path(python).parents[1])]})
    with CodeSandbox(policy) as sandbox:
        if not sandbox.probe().rung:
            pytest.skip("this rung does not hold here")
        name = f"hone-left-behind-{rung}-{os.getpid()}"  # another worker of the tests may run the other rung
        result = sandbox.run(DAEMONS.format(python=python, name=name))
        assert result.verdict == "ok", result
        assert isinstance(result.value, list)
        assert 1 <= result.value[0] < 40, result.value
        assert sandbox.run("1").value == 1
        assert processes_of(name) == []


CALLER = """
import sys, threading, time
from hone.sandbox.frames import UNSAFE_WORDS, SandboxPolicy
from hone.sandbox.run import CodeSandbox
sandbox = CodeSandbox(SandboxPolicy.model_validate(__import__("json").loads(sys.argv[1])))
print(sandbox.probe().rung, flush=True)
threading.Thread(target=sandbox.run, args=("import time\\nprint('x', flush=True)\\ntime.sleep(600)",)).start()
print(sandbox._all[0]._child.pid, flush=True)
"""


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and theirs."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text(errors="replace").rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == pid:
            found += [int(path.parent.name), *descendants(int(path.parent.name))]
    return found


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("rung", ["namespaces", "landlock"])
def test_nothing_outlives_a_caller_that_is_killed(rung: str) -> None:
    policy = json.dumps({"rung": rung, "wall_s": 600.0})
    with subprocess.Popen([sys.executable, "-c", CALLER, policy], stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout is not None
        if not caller.stdout.readline().strip():
            caller.kill()
            pytest.skip("this rung does not hold here")
        zygote = int(caller.stdout.readline())
        limit_s = time.monotonic() + 300
        while len(family := [zygote, *descendants(zygote)]) < (4 if rung == "namespaces" else 3):
            assert time.monotonic() < limit_s, family
            time.sleep(0.05)
        caller.kill()
    while any(map(lives, family)):
        assert time.monotonic() < limit_s, [pid for pid in family if lives(pid)]
        time.sleep(0.05)


def test_several_processes_need_a_means_to_end_them() -> None:
    """Without namespaces and without a user of its own nobody could end what a program left."""
    code = (
        "import os\nfrom hone.process.linux import enter_namespaces, set_capabilities\n"
        'enter_namespaces(0, {"uid_map": f"1000 {os.geteuid()} 1", "gid_map": f"1000 {os.getegid()} 1"})\n'
        "set_capabilities(0)\nfrom hone.sandbox.frames import SandboxPolicy\nfrom hone.sandbox.run import run_python\n"
        "print(run_python('1', SandboxPolicy(rung='landlock', processes=2)).error)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if "unshare" in result.stderr:
        pytest.skip("no namespaces here")
    assert "what a program left would stay" in result.stdout


def test_readable_paths_are_readable_and_others_are_not(tmp_path: Path) -> None:
    for name in ("given", "kept"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    tmp_path.chmod(0o755)
    for rung in ("namespaces", "landlock"):
        policy = SandboxPolicy.model_validate({"rung": rung, "readable": [str(tmp_path / "given")]})
        with CodeSandbox(policy) as sandbox:
            if not sandbox.probe().rung:
                continue
            assert sandbox.run(f"open({str(tmp_path / 'given' / 'file')!r}).read()").value == "given"
            assert sandbox.run(f"open({str(tmp_path / 'given' / 'file')!r}, 'w')").verdict == "error"
            assert sandbox.run(f"open({str(tmp_path / 'kept' / 'file')!r}).read()").verdict == "error"
    assert (tmp_path / "given" / "file").read_text() == "given"


def test_memory_of_a_warm_process_holds_nothing_of_earlier_calls() -> None:
    """A program that reads all objects of its process does not find what an earlier call was sent."""
    mark = "a-mark-" + os.urandom(8).hex()
    search = (
        "import gc\ngc.unfreeze()\nbackwards, found = %r, []\nfor one in gc.get_objects():\n"
        "    try:\n        text = repr(one)[::-1]\n    except Exception:\n        continue\n"
        "    if backwards in text and one is not globals(): found.append(type(one).__name__)\nlen(found)"
    )
    with CodeSandbox(SandboxPolicy()) as sandbox:
        sandbox.run(f"x = {mark!r}", stdin=mark, files={"file": mark})
        assert sandbox.run(f"x = [{mark!r}]\n" + search % mark[::-1]).value != 0, "the search finds what is there"
        result = sandbox.run(search % mark[::-1])
    assert (result.verdict, result.value) == ("ok", 0)


def test_a_user_that_has_processes_is_not_given_to_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    if not may_map_users():
        pytest.skip("this process may not choose a user")
    taken, free = 20_000, 20_002
    draws = iter([0, 0, 1])
    monkeypatch.setattr(rungs, "_OWN_USERS", ((taken, 2),))
    monkeypatch.setattr(rungs.os, "urandom", lambda count: next(draws).to_bytes(count, "little"))
    with subprocess.Popen(["sleep", "60"], user=taken + 1) as process:
        try:
            assert rungs.own_users() == free
        finally:
            process.kill()
    assert next(draws, None) is None
