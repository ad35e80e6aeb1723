"""The pool against functions that hang, crash, lie and breed: each is run for real, and only the culprit pays."""

import math
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
from ended_processes import gone
from manual_clock import ManualClock

from hone.core.episodes import ScoreStatus
from hone.core.errors import ConfigError, UserCodeError
from hone.rewards.config import RewardsConfig, UserCodeConfig
from hone.rewards.workers import RewardBatch, RewardWorkerPool, origin_fault, parse_logged

HOSTILE = Path(__file__).with_name("hostile_functions.py")


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """In a folder of its own: what a function writes beside itself is not found here."""
    return Path(shutil.copy(HOSTILE, tmp_path / "hostile.py"))


def pool_of(module: Path, *names: str, functions: object = None, **limits: object) -> RewardWorkerPool:
    functions = functions or [{"use": f"{module}:{name}"} for name in names]
    return RewardWorkerPool(
        RewardsConfig.model_validate({"functions": functions}), UserCodeConfig.model_validate({"workers": 1, **limits})
    )


def batch_of(*completions: object, **columns: list[object]) -> RewardBatch:
    return RewardBatch(prompts=["?"] * len(completions), completions=list(completions), columns=columns)


def troubled(*completions: str) -> RewardBatch:
    return batch_of(*completions, flag=[1.0] * len(completions))


@pytest.mark.parametrize("name", ["trouble", "batch_trouble"])
@pytest.mark.parametrize(
    ("act", "status", "reason"),
    [
        ("loop", ScoreStatus.TIMEOUT, "no answer within"),
        ("gil", ScoreStatus.TIMEOUT, "no answer within"),
        ("exit", ScoreStatus.ERROR, "sys.exit(3)"),
        ("_exit", ScoreStatus.ERROR, "exited with code 0"),
        ("segfault", ScoreStatus.ERROR, "killed by SIGSEGV"),
        ("raise", ScoreStatus.ERROR, "ValueError: no digits"),
        ("none", ScoreStatus.UNSCORABLE, "returned None"),
        ("nan", ScoreStatus.UNSCORABLE, "returned nan"),
        ("inf", ScoreStatus.UNSCORABLE, "returned inf"),
    ],
)
def test_only_the_culprit_is_without_a_score(
    module: Path, name: str, act: str, status: ScoreStatus, reason: str
) -> None:
    with pool_of(module, name, deadline_s=0.5 if act in ("loop", "gil") else 60.0) as pool:
        pool.score(troubled("fine"))
        scores = pool.score(troubled("a", "b", act, "c", "d"))
        assert scores.status.tolist() == [0, 0, status, 0, 0]
        assert scores.score[[0, 1, 3, 4]].tolist() == [1.0] * 4
        assert math.isnan(scores.score[2])
        assert reason in scores.reasons[2]
        assert pool.score(troubled("e", "f")).score.tolist() == [1.0, 1.0]


def test_what_a_function_prints_and_reads_cannot_touch_the_channel(module: Path) -> None:
    with pool_of(module, "trouble") as pool:
        scores = pool.score(troubled("flood", "read", "fine"))
    assert scores.score.tolist() == [1.0, 0.0, 1.0]


def test_memory_is_limited_where_asked(module: Path) -> None:
    with pool_of(module, "trouble", memory_bytes=2 << 30) as pool:
        scores = pool.score(troubled("fine", "memory", "fine"))
    assert scores.status.tolist() == [0, ScoreStatus.ERROR, 0]
    assert "MemoryError" in scores.reasons[1]


def test_the_trainers_chance_folder_and_environment_stay_its_own(module: Path) -> None:
    state, here = np.random.get_state()[1].tolist(), Path.cwd()  # noqa: NPY002 - the global state is the point
    with pool_of(module, "trouble") as pool:
        pool.score(troubled("reseed"))
    assert np.random.get_state()[1].tolist() == state  # noqa: NPY002
    assert Path.cwd() == here
    assert "HONE_SPOILED" not in os.environ


def test_inputs_are_copies_with_their_types(module: Path) -> None:
    mine: list[object] = []
    with pool_of(module, "sees") as pool:
        assert pool.score(batch_of("a", "b", mine=[mine, mine])).score.tolist() == [1.0, 1.0]
    assert mine == []
    with pool_of(module, "kinds") as pool:
        assert pool.score(batch_of("a", odd=[{1: (2, 3)}])).score.tolist() == [1.0]


@pytest.mark.usefixtures("new_interpreters")
@pytest.mark.parametrize("act", ["return", "hang", "leave"])
def test_daemons_are_gone_after_the_pool(module: Path, tmp_path: Path, act: str) -> None:
    path = tmp_path / "pid"
    with pool_of(module, "daemon", deadline_s=1.0) as pool:
        if act == "return":
            pool.score(batch_of(act, path=[str(path)]))
        else:
            with pytest.raises(UserCodeError, match="failed on all 1 answers"):
                pool.score(batch_of(act, path=[str(path)]))
    assert gone(int(path.read_text()))


def test_no_worker_and_no_zombie_is_left(module: Path) -> None:
    with pool_of(module, "pid", workers=2) as pool:
        pids = {int(pid) for pid in pool.score(batch_of(*["a"] * 40)).score}
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(ConfigError, match="closed"):
        pool.score(batch_of("a"))


def test_busy_workers_die_with_a_killed_trainer(module: Path, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    program = f"""
        import os, pathlib, signal, time
        from hone.rewards.config import UserCodeConfig
        from hone.rewards.config import RewardsConfig
        from hone.rewards.workers import RewardBatch, RewardWorkerPool
        config = RewardsConfig.model_validate({{"functions": [{{"use": "{module}:busy"}}]}})
        batch = RewardBatch(prompts=["?"], completions=["a"], columns={{"path": ["{path}"]}})
        RewardWorkerPool(config, UserCodeConfig(workers=1)).submit(batch)
        while not (pathlib.Path("{path}").exists() and pathlib.Path("{path}").read_text()):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    source = str(Path(__file__).parents[2] / "src")
    environment = {**os.environ, "PYTHONPATH": source}
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=environment, check=False)
    assert gone(int(path.read_text()))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("short", "returned 1 values for 4 completions"),
        ("scalar", "returned a float for 4 completions"),
        ("text", "returned a str for 4 completions"),
        ("mapping", "returned a dict for 4 completions"),
        ("words", r"returned a str \(good\) where a number or None"),
    ],
)
def test_a_broken_contract_stops(module: Path, name: str, message: str) -> None:
    with pool_of(module, name) as pool, pytest.raises(UserCodeError, match=message) as caught:
        pool.score(batch_of("a", "b", "c", "d"))
    assert caught.value.exit_code == 4


def test_arrays_tensors_and_booleans_are_numbers(module: Path) -> None:
    with pool_of(module, "array", "zero_d") as pool:
        scores = pool.score(batch_of("a", "b", "c", "d"))
    assert scores.functions["array"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert scores.functions["zero_d"].tolist() == [0.5, 0.25, 1.0, 1.0]
    assert scores.score.tolist() == [0.5, 1.25, 3.0, 4.0]


def test_weights_and_asynchronous_functions(module: Path) -> None:
    functions = [{"use": f"{module}:later", "weight": 0.5}, {"use": f"{module}:by_length", "weight": -1.0}]
    with pool_of(module, functions=functions) as pool:
        scores = pool.score(batch_of("a", "bcd"))
    assert tuple(scores.functions) == ("later", "by_length")
    assert scores.score.tolist() == [-0.5, -2.5]


def test_verls_form(module: Path) -> None:
    with pool_of(module, "compute_score") as pool:
        scores = pool.score(batch_of("4", "5", ground_truth=["4", "4"], data_source=["dict", "plain"]))
    assert scores.score.tolist() == [1.0, 0.0]
    assert scores.reasons == ("compared", "")


def test_conversations_and_trls_hooks(module: Path) -> None:
    said = [{"role": "user", "content": "hi"}]
    batch = RewardBatch(
        prompts=[said, said], completions=[[{"role": "assistant", "content": w}] for w in ("hi", "ho")], columns={}
    )
    with pool_of(module, "chatty") as pool:
        assert pool.score(batch).score.tolist() == [1.0, 0.0]
        assert pool.pop_logged() == {"logged/words": 1.0, "logged/x": 1.0}
        assert pool.pop_logged() == {}


@pytest.mark.parametrize("workers", [1, 3])
def test_recorded_values_are_means_over_answers_however_they_are_cut(module: Path, workers: int) -> None:
    texts = ["a" * (1 + place % 7) for place in range(60)]
    with pool_of(module, "recorded", workers=workers) as pool:
        for piece in (texts[:1], texts[1:40], texts[40:]):
            pool.score(batch_of(*piece))
        figures = pool.pop_logged()
        assert figures.keys() == {"logged/length", "logged/mean"}, "texts are no numbers"
        assert list(figures.values()) == pytest.approx([sum(map(len, texts)) / 60] * 2)
        pool.score(batch_of("fail", "nan", "ok"))
        assert pool.pop_logged() == pytest.approx({"logged/length": 3.0, "logged/mean": 3.0}), "a call that raised"


def test_other_keys_beside_a_score_are_recorded(module: Path) -> None:
    with pool_of(module, "facts") as pool:
        pool.score(batch_of("a", "abc"))
        assert pool.pop_logged() == {"logged/even": 0.0, "logged/size": 2.0}


@pytest.mark.parametrize(
    ("logged", "kept"),
    [
        ({"a": [1.0, 2]}, {"a": (1.0, 2.0)}),
        ({"a": [math.inf, 2], "b": [1, 0], "c": [1], "d": "x", "": [1, 1], "e\n": [1, 1], "f" * 81: [1, 1]}, {}),
        ([1], {}),
        (None, {}),
    ],
)
def test_what_a_worker_says_it_recorded_is_checked(logged: object, kept: object) -> None:
    assert parse_logged({"logged": logged}) == kept
    assert len(parse_logged({"logged": {str(name): [1, 1] for name in range(99)}})) == 64


def test_a_group_is_never_cut(module: Path) -> None:
    groups = [group for group in range(20) for _ in range(4)]
    batch = RewardBatch(prompts=["?"] * 80, completions=[str(i % 4) for i in range(80)], columns={}, groups=groups)
    functions = [{"use": f"{module}:within_group", "unit": "group"}]
    with pool_of(module, functions=functions, workers=2) as pool:
        assert pool.score(batch).score.tolist() == [4.0] * 80


def test_a_batch_is_scored_while_others_are_submitted(module: Path) -> None:
    place = module.parent / "meeting"
    place.mkdir()
    with pool_of(module, "together", workers=2, deadline_s=100.0) as pool:
        first, second = (pool.submit(batch_of(*text, folder=[str(place)] * len(text))) for text in ("ab", "cde"))
        (place / "go").touch()  # whoever submits waits for no score
        (results,), _ = pool.results([first, second])
        assert [result.score for result in results] == [1.0] * 5
    assert len(list(place.glob("*.pid"))) == 2, "two at a time"


def test_a_function_that_never_works_stops_at_once(module: Path) -> None:
    with pool_of(module, "always") as pool, pytest.raises(UserCodeError) as caught:
        pool.score(batch_of("a", "b"))
    text = str(caught.value)
    assert "'always' failed on all 2 answers of its first batch" in text
    assert "KeyError: 'gold'" in text
    assert "hostile.py" in text
    assert "worker.py" not in text  # only the user's frames


def test_a_function_that_always_hangs_is_given_up_soon(module: Path) -> None:
    gives_up = pytest.raises(UserCodeError, match="never gave a score and took down 8 workers")
    with pool_of(module, "trouble", deadline_s=0.1, workers=2) as pool, gives_up:
        pool.score(troubled(*["gil"] * 100))


def test_distinct_errors_are_shown_once(module: Path) -> None:
    with pool_of(module, "trouble") as pool:
        first = pool.score(troubled("fine", "raise", "raise"))
        second = pool.score(troubled("raise", "fine"))
    assert len(first.tracebacks) == 1
    assert 'raise ValueError("no digits")' in first.tracebacks[0]
    assert second.tracebacks == ()


def test_a_column_that_the_dataset_lacks(module: Path) -> None:
    with pool_of(module, "asks", "trouble") as pool, pytest.raises(UserCodeError) as caught:
        pool.check(["answer", "flags"])
    assert "asks for a column 'anwser' that the dataset does not have; did you mean answer?" in str(caught.value)
    assert "did you mean flags?" in str(caught.value)


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("{module}:by_lenght", "did you mean by_length?"),
        ("{module}:unlike", r"takes \(x, y\); name its parameters"),
        ("{broken}:f", r"failed with ZeroDivisionError"),
        ("{leaving}:f", r"failed with sys.exit\(5\)"),
        ("no_such_package.module:f", "ModuleNotFoundError"),
        ("json:detect_encoding", r"takes \(b\); name its parameters"),
        ("builtins:max", "has no signature"),
    ],
)
def test_functions_that_cannot_be_loaded(module: Path, tmp_path: Path, use: str, message: str) -> None:
    broken, leaving = tmp_path / "broken.py", tmp_path / "leaving.py"
    broken.write_text("1 / 0\n")
    leaving.write_text("import sys\nsys.exit(5)\n")
    use = use.format(module=module, broken=broken, leaving=leaving)
    with pool_of(module, functions=[{"use": use}]) as pool, pytest.raises(UserCodeError, match=message):
        pool.check([])


@pytest.mark.parametrize(
    ("use", "message"),
    [
        ("exact_mach", "did you mean exact_match?"),
        ("something", "known: code_tests, exact_match, math_answer, reasoning_gym, visible_code_tests"),
        ("hostil.py:f", "no such file"),
        ("module:not a name", "write path/to/file.py:name"),
    ],
)
def test_references_that_are_none(module: Path, use: str, message: str) -> None:
    with pool_of(module, functions=[{"use": use}]) as pool, pytest.raises(ConfigError, match=message):
        pool.check([])


def test_an_unknown_option(module: Path) -> None:
    functions = [{"use": "exact_match", "options": {"patern": "x"}}]
    with pool_of(module, functions=functions) as pool, pytest.raises(UserCodeError, match="did you mean pattern"):
        pool.check(["answer"])


def test_a_slow_import_is_told(module: Path, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(100)\n")
    functions = [{"use": f"{tmp_path / 'slow.py'}:f"}]
    pool = pool_of(module, functions=functions, start_deadline_s=0.3)
    with pool, pytest.raises(UserCodeError, match=r"longer than user_code.start_deadline_s = 0.3 s"):
        pool.check([])


def test_columns_that_cannot_be_sent(module: Path) -> None:
    with pool_of(module, "trouble") as pool, pytest.raises(UserCodeError, match="type object cannot be handed"):
        pool.score(batch_of("a", flag=[object()]))


def test_a_huge_integer_is_told_and_does_not_hang_the_pool(module: Path) -> None:
    with pool_of(module, "trouble") as pool, pytest.raises(UserCodeError, match="cannot be called: Exceeds the limit"):
        pool.score(batch_of("a", flag=[10**5000]))


def test_a_batch_whose_parts_differ_in_length(module: Path) -> None:
    with pool_of(module, "trouble") as pool, pytest.raises(ValueError, match=r"2 completions .* flag has 1"):
        pool.submit(batch_of("a", "b", flag=[1.0]))


def test_scores_outside_the_declared_bounds_stop(module: Path) -> None:
    functions = [{"use": f"{module}:by_length", "bounds": [0.0, 2.0]}]
    with pool_of(module, functions=functions) as pool:
        assert pool.score(batch_of("", "ab")).score.tolist() == [0.0, 2.0]
        with pytest.raises(UserCodeError, match=r"'by_length' gave 3, outside its bounds \[0.0, 2.0\]"):
            pool.score(batch_of("abc"))


def test_closing_does_not_wait_for_a_hang(module: Path) -> None:
    with pool_of(module, "trouble", deadline_s=1000.0, workers=2) as pool:
        ticket = pool.submit(troubled("gil", "loop"))
        time.sleep(0.2)
    # It came here: a wait would have ended the test run.
    with pytest.raises(ConfigError, match="closed before these scores were ready"):
        pool.results([ticket])


def test_an_empty_batch(module: Path) -> None:
    with pool_of(module, "by_length") as pool:
        assert len(pool.score(batch_of())) == 0


def test_cheap_functions_are_not_held_up(module: Path) -> None:
    """Few messages for many answers, once it is known how cheap they are."""
    completions, calls = ["a" * (i % 7) for i in range(4096)], module.with_name("calls")
    batch = batch_of(*completions, path=[str(calls)] * len(completions))
    functions = [{"use": f"{module}:told_length"}]
    config = RewardsConfig.model_validate({"functions": functions})
    with RewardWorkerPool(config, UserCodeConfig(workers=1), clock=ManualClock()) as pool:
        pool.score(batch)
        calls.unlink()
        scores = pool.score(batch)
    assert scores.score.tolist() == [float(len(c)) for c in completions]
    sizes = [int(line) for line in calls.read_text().splitlines()]
    assert sum(sizes) == 4096
    assert len(sizes) <= 32


def test_a_function_that_forks_and_returns_twice_is_a_fault(module: Path) -> None:
    fault = pytest.raises(UserCodeError, match=r"was answered by process \d+ instead of its worker")
    with pool_of(module, "forks", workers=1) as pool, fault:
        pool.score(batch_of(*"abcd"))


def test_a_late_copy_of_a_worker_is_found_by_a_later_call(module: Path) -> None:
    fault = pytest.raises(UserCodeError, match=r"end the forked one with os\._exit")
    with pool_of(module, "forks_late", workers=1) as pool, fault:
        for _ in range(1000):
            assert pool.score(batch_of("a", "bcd")).score.tolist() == [1.0, 3.0]
            time.sleep(0.01)


def test_a_function_that_forks_and_ends_its_copy_is_served(module: Path) -> None:
    with pool_of(module, "forks_and_ends", workers=2) as pool:
        for _ in range(3):
            assert pool.score(batch_of("a", "bcd", "ef")).score.tolist() == [1.0, 3.0, 2.0]


def test_a_reply_names_its_job_its_call_and_its_process() -> None:
    assert origin_fault({"pid": 7, "job": 3, "piece": 1}, 3, 1, 7) == ""
    assert "process 8 instead of its worker 7" in origin_fault({"pid": 8, "job": 3, "piece": 1}, 3, 1, 7)
    assert "process None" in origin_fault({"scores": [1.0], "reasons": [""]}, 3, 1, 7)
    assert "call 0 of job 3 instead of 1 of 3" in origin_fault({"pid": 7, "job": 3, "piece": 0}, 3, 1, 7)
    assert "call 1 of job 2 instead of 1 of 3" in origin_fault({"pid": 7, "job": 2, "piece": 1}, 3, 1, 7)
