"""Profiling: stacks below a root, shares by hand, the slope of memory, the page, and the command on a tiny run."""

import gc
import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from hone.api import train
from hone.cli.main import main
from hone.run.callbacks import StepEvent
from hone.run.profiling import MemorySlope, StackSampler, StackSamples, function_times, memory_slope
from hone.run.report.profile_page import flame_graph, slope_line

BANDIT = 'recipe = "thompson"\nname = "arms"\nsteps = 9\n[arms]\nkind = "bernoulli"\nrates = [0.2, 0.8]\n'


def outer(seen: StackSamples, depth: int) -> None:
    inner(seen) if not depth else outer(seen, depth - 1)


def inner(seen: StackSamples) -> None:
    seen.take(sys._getframe())


def test_a_stack_begins_at_the_root_and_ends_at_the_function() -> None:
    seen = StackSamples(root=outer.__code__)
    outer(seen, 0)
    outer(seen, 0)
    ((stack, count),) = seen.counts.items()
    assert ([name.rpartition(":")[2] for name in stack], count) == (["outer", "inner"], 2)
    inner(seen)
    seen.take(None)
    assert seen.counts.total() == 2, "what is not below the root is not counted"


def test_a_sampler_sees_the_thread_that_made_it() -> None:
    class Once(StackSamples):
        def take(self, frame: FrameType | None) -> None:
            assert frame is not None
            names.add(frame.f_code.co_name)
            went.set()

    names: set[str] = set()
    went = threading.Event()
    with StackSampler(Once(), every_s=0.001):
        assert went.wait(300)
    assert names & {"wait", test_a_sampler_sees_the_thread_that_made_it.__name__}


def test_shares_by_hand() -> None:
    counts = Counter({("a",): 1, ("a", "b"): 2, ("a", "b", "b"): 4, ("a", "c"): 1})
    times = {one.name: (one.own, one.whole) for one in function_times(counts)}
    assert times == {"b": (0.75, 0.75), "a": (0.125, 1.0), "c": (0.125, 0.125)}
    assert [one.name for one in function_times(counts)] == ["b", "a", "c"]


def test_a_slope_by_hand_and_by_least_squares() -> None:
    assert memory_slope([9, 9, 9, 1, 2, 3]) == MemorySlope(1.0, 0.0)
    assert memory_slope([1, 2, 3, 4]) is None, "two points of the second half"
    values = np.random.default_rng(0).standard_normal(40) + 0.01 * np.arange(40)
    made = memory_slope(values.tolist())
    assert made is not None
    (slope, _), covariance = np.polyfit(np.arange(20), values[20:], 1, cov=True)
    assert made.bytes_per_step == pytest.approx(slope)
    assert made.half_width == pytest.approx(1.96 * np.sqrt(covariance[0, 0]))
    jump = memory_slope([0] * 8 + [1, 1, 1, 1, 1, 9, 9, 9])
    assert jump is not None
    assert (jump.bytes_per_step > 1, jump.is_steady, jump.grows) == (True, False, False), "one import is no leak"
    assert [MemorySlope(2.0, one).grows for one in (1.0, 2.0, 3.0)] == [True, False, False]
    assert "grows by 3.0 KiB" in slope_line(MemorySlope(3072.0, 10.0))
    assert "does not grow steadily" in slope_line(MemorySlope(-3072.0, 10.0))


def test_blocks_of_a_flame_graph_stand_below_their_callers() -> None:
    html = flame_graph(Counter({("m:a", "m:b"): 3, ("m:a", "m:<c>"): 1}))
    assert html.count("<rect") == 3
    assert "m:a: 100.0%" in html
    assert "m:b: 75.0%" in html
    assert "m:&lt;c&gt;: 25.0%" in html
    assert 'x="720" y="18"' in html, "the second child begins where the first one ends"
    assert flame_graph(Counter()) == ""


def test_a_config_and_a_run_are_profiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("arms.toml").write_text(BANDIT, encoding="utf-8")
    assert main(["profile", "arms.toml", "--steps", "30", "seed=3"]) == 0
    page = Path("runs/arms_profile/profile.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "http" not in page.replace("http-equiv", "")
    assert "Resident memory" in page
    files = {path.name for path in Path("runs/arms_profile").iterdir()}
    assert main(["profile", "arms_profile", "--steps", "5"]) == 0
    assert "5 steps" in Path("runs/arms_profile/profile.html").read_text(encoding="utf-8")
    assert {path.name for path in Path("runs/arms_profile").iterdir()} == files, "it is trained elsewhere"
    assert main(["profile", "arms_profile", "seed=4"]) == 2
    assert main(["profile", "arms.toml", "--steps", "1"]) == 2


def test_steps_leave_no_objects_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The short form of benchmarks/leaks.py: what 150 more steps leave is a constant, not a count of the steps."""
    monkeypatch.chdir(tmp_path)
    counted: dict[int, int] = {}

    def look(event: StepEvent) -> None:
        if event.step in (150, 300):
            gc.collect()
            counted[event.step] = len(gc.get_objects())

    arms = {"kind": "bernoulli", "rates": [0.2, 0.8]}
    run = {"threads": 1, "certify": False, "checkpoint_every": 0, "log_every": 10, "rollouts_every": 0}
    train({"recipe": "thompson", "name": "arms", "steps": 310, "arms": arms, "run": run}, on_step=look)
    assert counted[300] - counted[150] < 100
