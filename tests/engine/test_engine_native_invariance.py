"""A token's result depends on its own sequence and the weights alone: bit for bit, however a pass is put together."""

import os
import threading
import time
import warnings
from collections import defaultdict
from pathlib import Path

import engine_native_cases as cases
import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from hone.engine.native.runner import NativeRunner
from hone.engine.work import DRAW, ForwardBatch

MODELS = {
    "grouped": {},
    "one key head": {"family": "mistral", "heads": 3, "kv_heads": 1, "head_dim": 20, "vocab_size": 17},
    "no groups": {"family": "qwen2", "kv_heads": 4, "head_dim": 64},
}

KINDS = [("float32", None), ("float32", "bfloat16"), ("bfloat16", None), ("int8", None), ("int8", "int8")]


def in_pieces(runner: NativeRunner, sequences, order, rng) -> dict[int, list[float]]:
    """Log-probabilities of each sequence, from passes of pieces of several sequences in any order."""
    lengths = [len(tokens) for tokens in sequences]
    pages = cases.pages_for(lengths, runner.page_tokens, order)
    runner.reserve(len(order))
    done = dict.fromkeys(range(len(sequences)), 0)
    found: dict[int, list[float]] = defaultdict(list)
    while waiting := [b for b in done if done[b] < lengths[b]]:
        mates = rng.permutation(waiting)[: rng.integers(1, len(waiting) + 1)].tolist()
        pieces = [(b, done[b], min(lengths[b], done[b] + int(rng.integers(1, 20)))) for b in mates]
        done.update({b: end for b, _, end in pieces})
        places = [(b, position) for b, start, end in pieces for position in range(start, end)]
        asked = [at for at, (b, position) in enumerate(places) if position + 1 < lengths[b]]
        asked = [asked[i] for i in rng.permutation(len(asked))]
        work = ForwardBatch(
            tokens=np.asarray([sequences[b][position] for b, position in places], np.int32),
            positions=np.asarray([position for _, position in places], np.int32),
            sequence=np.asarray([b for b, _ in places], np.int32),
            pages=pages,
            draws=cases.draws_of(asked, [sequences[places[at][0]][places[at][1] + 1] for at in asked]),
        )
        answer = dict(zip(asked, runner.run(work).logp.tolist(), strict=True))
        for at in sorted(asked):
            found[places[at][0]].append(answer[at])
    return found


@pytest.mark.parametrize(("dtype", "cache"), KINDS)
@pytest.mark.parametrize("kind", sorted(MODELS))
@examples(5)
@given(seed=st.integers(0, 2**32), threads=st.sampled_from([1, 2, 3]))
def test_any_batch_order_cut_page_and_thread(dtype, cache, kind, seed, threads):
    model = cases.model_of(**MODELS[kind])
    rng = np.random.default_rng(seed)
    sequences = cases.texts(model.config.vocab_size, rng.integers(2, 60, 4), seed)
    for isa in cases.sets(dtype):
        alone = cases.runner_of(model, isa=isa, threads=1, dtype=dtype, cache=cache)
        expected = [cases.scored(alone, [tokens]).logp.tolist() for tokens in sequences]
        runner = cases.runner_of(model, isa=isa, threads=threads, dtype=dtype, cache=cache)
        found = in_pieces(runner, sequences, rng.permutation(40), rng)
        assert [found[b] for b in range(len(sequences))] == expected, isa


@pytest.mark.parametrize(("dtype", "cache"), KINDS)
def test_what_was_recorded_is_what_scoring_says(dtype, cache):
    """Drawn one token at a time, 40 sequences together; scored in one pass, each alone."""
    model = cases.model_of()
    rng = np.random.default_rng(3)
    for isa in cases.sets(dtype):
        runner = cases.runner_of(model, isa=isa, dtype=dtype, cache=cache)
        rows, steps = 40, 20
        pages = cases.pages_for([steps + 1] * rows, runner.page_tokens, rng.permutation(rows * 2))
        runner.reserve(pages.size)
        tokens = [rng.integers(0, 33, rows).astype(np.int32)]
        logp = []
        every = np.arange(rows, dtype=np.int32)
        for step in range(steps):
            draws = cases.draws_of(every, uniform=rng.random(rows), temperature=0.8)
            positions = np.full(rows, step, np.int32)
            drawn = runner.run(
                ForwardBatch(tokens=tokens[-1], positions=positions, sequence=every, pages=pages, draws=draws)
            )
            tokens.append(drawn.token)
            logp.append(drawn.logp)
        for row in range(0, rows, 7):
            text = np.stack(tokens)[:, row]
            assert np.array_equal(cases.scored(runner, [text], temperature=0.8).logp, np.stack(logp)[:, row]), isa


def test_a_copied_page_holds_the_same_keys():
    """A prompt's unfinished page, copied for a second sample, continues as the first does."""
    model = cases.model_of()
    runner = cases.runner_of(model)
    prompt, size = cases.texts(33, [21])[0], runner.page_tokens
    runner.reserve(4)
    pages = np.asarray([[2, 0], [2, 3]], np.int32)
    first = ForwardBatch(
        tokens=prompt,
        positions=np.arange(21, dtype=np.int32),
        sequence=np.zeros(21, np.int32),
        pages=pages,
        draws=cases.draws_of([20, 20], uniform=[0.3, 0.3]),
    )
    token = runner.run(first).token
    assert size < 21 < 2 * size
    runner.copy(np.asarray([0], np.int32), np.asarray([3], np.int32))
    step = ForwardBatch(
        tokens=token,
        positions=np.full(2, 21, np.int32),
        sequence=np.arange(2, dtype=np.int32),
        pages=pages,
        draws=cases.draws_of([0, 1], given=[5, 5]),
    )
    logp = runner.run(step).logp
    assert logp[0] == logp[1] == cases.scored(runner, [np.append(prompt, [token[0], 5])]).logp[-1]


def test_a_pass_that_does_not_hold_together_is_refused():
    runner = cases.runner_of(cases.model_of())
    runner.reserve(2)
    good = {
        "tokens": np.asarray([1, 2], np.int32),
        "positions": np.asarray([0, 1], np.int32),
        "sequence": np.zeros(2, np.int32),
        "pages": np.asarray([[1]], np.int32),
        "draws": cases.draws_of([1]),
    }
    runner.run(ForwardBatch(**good))
    bad = {
        "id 33": {"tokens": np.asarray([1, 33], np.int32)},
        "position 16": {"positions": np.asarray([0, 16], np.int32)},
        "sequence 1": {"sequence": np.asarray([0, 1], np.int32)},
        "page 2": {"pages": np.asarray([[2]], np.int32)},
        "at 2": {"draws": cases.draws_of([2])},
        "given token 40": {"draws": cases.draws_of([1], given=[40])},
        "temperature 0": {"draws": cases.draws_of([1], temperature=0.0)},
        "uniform 1": {"draws": cases.draws_of([1], uniform=[1.0])},
        "positions has 3": {"positions": np.asarray([0, 1, 2], np.int32)},
    }
    for message, change in bad.items():
        with pytest.raises(ValueError, match=message):
            runner.run(ForwardBatch(**{**good, **change}))


def test_nothing_spins_while_nothing_runs():
    """A thread that spins is running or ready to run whenever one looks."""
    before = set(Path("/proc/self/task").iterdir())
    runner = cases.runner_of(cases.model_of(), threads=4)
    cases.scored(runner, cases.texts(33, [30]))
    theirs = set(Path("/proc/self/task").iterdir()) - before
    assert len(theirs) >= 3
    time.sleep(0.3)
    states = [(one / "stat").read_text().rpartition(")")[2].split()[0] for _ in range(20) for one in theirs]
    assert "R" not in states


def test_a_forked_child_works_alone():
    runner = cases.runner_of(cases.model_of(), threads=3)
    sequences = cases.texts(33, [30, 12])
    expected = cases.scored(runner, sequences).logp
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of every fork of a process with threads
        child = os.fork()
    if child == 0:
        os._exit(0 if np.array_equal(cases.scored(runner, sequences).logp, expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert np.array_equal(cases.scored(runner, sequences).logp, expected)


def test_callers_on_several_threads_take_turns():
    runner = cases.runner_of(cases.model_of(), threads=2)
    sequences = cases.texts(33, [30, 12, 50])
    pages = cases.pages_for([30, 12, 50], runner.page_tokens)
    runner.reserve(pages.size)
    work = cases.whole(sequences, pages)
    expected = runner.run(work).logp
    wrong: list[int] = []

    def ask() -> None:
        for _ in range(10):
            if not np.array_equal(runner.run(work).logp, expected):
                wrong.append(DRAW)

    callers = [threading.Thread(target=ask) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []
