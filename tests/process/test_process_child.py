"""Child processes that hang, crash, flood and fork: each is started for real, and nothing of it is left."""

import gc
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from ended_processes import gone
from hypothesis import given
from hypothesis import strategies as st
from manual_clock import ManualClock

from hone.core.clock import Clock, SystemClock
from hone.process.child import ChildLostError, ChildProcess, LineParser, RestartingChild

HERE = str(Path(__file__).parent)
SOON_S = 60.0
started: list[ChildProcess[bytes] | RestartingChild] = []


@pytest.fixture(autouse=True)
def _closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(HERE)
    yield
    while started:
        child = started.pop()
        child.close() if isinstance(child, RestartingChild) else child.kill()


def child_of(*arguments: str, clock: Clock | None = None, max_bytes: int = 1 << 20) -> ChildProcess[bytes]:
    child = ChildProcess("child_acts", LineParser(max_bytes), clock=clock or SystemClock(), arguments=arguments)
    started.append(child)
    child.start()
    return child


def call(child: ChildProcess[bytes], word: str, deadline_s: float = SOON_S) -> str:
    child.send(f"{word}\n".encode())
    return child.receive(deadline_s).decode()


def open_descriptors() -> int:
    gc.collect()  # files that an earlier test left in circles would be closed between two counts
    return len(list(Path("/proc/self/fd").iterdir()))


@given(st.lists(st.binary().map(lambda data: data.replace(b"\n", b"")), max_size=8), st.integers(1, 9))
def test_lines_are_the_same_however_the_stream_is_cut(lines: list[bytes], size: int) -> None:
    stream, parser = b"".join(line + b"\n" for line in lines), LineParser()
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert [line for piece in pieces for line in parser.feed(piece)] == lines


def test_a_child_answers_in_order_and_leaves_no_descriptor_and_no_zombie() -> None:
    before = open_descriptors()
    child = child_of()
    for word in ("one", "two", "x" * 300_000):  # the last is longer than a pipe holds
        child.send(f"{word}\n".encode())
    assert [len(child.receive(SOON_S)) for _ in range(3)] == [3, 3, 300_000]
    pid = child.pid
    child.kill()
    assert not Path(f"/proc/{pid}").exists()
    assert open_descriptors() == before
    with pytest.raises(ChildLostError, match="its process was killed"):
        call(child, "late")


@pytest.mark.parametrize("word", ["hang", "stubborn", "endless"])
def test_a_deadline_holds_on_the_injected_clock(word: str) -> None:
    clock = ManualClock()
    child = child_of(clock=clock)
    assert call(child, "ready") == "ready"
    timer = threading.Timer(0.3, clock.advance, [61.0])
    timer.start()
    with pytest.raises(ChildLostError, match="no answer within 60 s") as caught:
        call(child, word, deadline_s=60.0)
    assert caught.value.timeout
    pid = child.pid
    child.kill()
    assert gone(pid)


def test_printing_neither_blocks_the_child_nor_grows_the_parent() -> None:
    child = child_of()
    assert call(child, "flood") == "flood"
    assert len(child._tail) <= 4000


def test_a_line_without_end_is_cut_off_while_it_is_read() -> None:
    child = child_of(max_bytes=100_000)
    child.send(b"unending line\n")
    with pytest.raises(ChildLostError, match=r"invalid reply .a line of more than 100000 bytes"):
        child.receive(SOON_S)


@pytest.mark.parametrize(
    ("arguments", "word", "reason"),
    [
        (["crash at start"], "any", "exited with code 1; it printed: cannot begin"),
        ([], "crash", "exited with code 7; it printed: no licence"),
    ],
)
def test_a_crash_is_told_with_the_last_output(arguments: list[str], word: str, reason: str) -> None:
    with pytest.raises(ChildLostError, match=reason) as caught:
        call(child_of(*arguments), word)
    assert not caught.value.timeout


def test_a_signal_is_told_by_its_name() -> None:
    child = child_of()
    os.kill(int(call(child, "pid")), signal.SIGKILL)
    with pytest.raises(ChildLostError, match="killed by SIGKILL"):
        call(child, "late")


@pytest.mark.parametrize("ending", ["", "crash", "exit"])
def test_descendants_end_with_the_child(ending: str) -> None:
    child = child_of()
    pids = [int(word) for word in call(child, "breed").split()]
    if ending == "crash":
        with pytest.raises(ChildLostError):
            call(child, "crash")
    if ending == "exit":
        child.shut_down(SOON_S)
    child.kill()
    assert len(pids) == 2 and all(gone(pid) for pid in pids)


def test_a_lost_child_is_replaced_by_the_next_call() -> None:
    caller = RestartingChild("child_acts", clock=SystemClock())
    started.append(caller)
    first = caller.call(b"pid\n", deadline_s=SOON_S)
    assert caller.call(b"pid\n", deadline_s=SOON_S) == first
    with pytest.raises(ChildLostError, match="no licence"):
        caller.call(b"crash\n", deadline_s=SOON_S)
    assert gone(int(first))
    assert caller.call(b"pid\n", deadline_s=SOON_S) != first
    caller.close()
    assert caller.call(b"again\n", deadline_s=SOON_S) == b"again"


def test_two_threads_get_their_own_answers() -> None:
    caller = RestartingChild("child_acts", clock=SystemClock())
    started.append(caller)
    wrong: list[bytes] = []

    def ask(name: str) -> None:
        for number in range(50):
            word = f"{name}{number}".encode()
            wrong.extend([answer] if (answer := caller.call(word + b"\n", deadline_s=SOON_S)) != word else [])

    threads = [threading.Thread(target=ask, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_nobody_waiting_ends_a_wait() -> None:
    child = ChildProcess("child_acts", LineParser(), clock=SystemClock(), abandoned=lambda: True)
    started.append(child)
    child.start()
    with pytest.raises(ChildLostError, match="the request was abandoned"):
        call(child, "hang")


def test_a_forked_copy_of_a_child_does_not_answer() -> None:
    child = child_of()
    assert [call(child, "fork") for _ in range(3)] == ["fork"] * 3
    assert call(child, "pid") == str(child.pid)
