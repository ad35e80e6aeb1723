"""The peers' side of replay.py: run by a peer's own Python, with its name; answers `work times` lines by medians.

Each line of the answer is one JSON number: the median CPU time of one call in microseconds. The process lives as long
as its input, so that its blocks stand between hone's.
"""

import json
import sys
import time

import numpy as np

CAPACITY, BATCH, ADDED, LINES = 1_000_000, 256, 64, 64
RNG = np.random.default_rng(0)
ERRORS = RNG.random((100, BATCH))


def columns(count):  # noqa: ANN001, ANN201
    """Four numbers seen, one chosen."""
    return {
        "obs": RNG.standard_normal((count, 4), dtype=np.float32),
        "act": RNG.integers(0, 2, count),
        "rew": np.ones(count, np.float32),
        "obs_next": RNG.standard_normal((count, 4), dtype=np.float32),
    }


def tianshou():  # noqa: ANN201
    """Transitions enter one from each of 64 lines: its buffers take no two of one line at once."""
    import torch  # noqa: PLC0415 - the peer's own environment
    from tianshou.data import Batch, PrioritizedReplayBuffer, PrioritizedVectorReplayBuffer, SegmentTree  # noqa: PLC0415

    torch.set_num_threads(1)
    tree = SegmentTree(CAPACITY)
    tree[np.arange(CAPACITY)] = RNG.random(CAPACITY)

    def turn(k):  # noqa: ANN001, ANN202
        found = tree.get_prefix_sum_idx((np.arange(BATCH) + RNG.random(BATCH)) * (tree.reduce() / BATCH))
        tree[found] = ERRORS[k % 100]

    over = np.zeros(ADDED, bool)
    lines = PrioritizedVectorReplayBuffer(CAPACITY, LINES, alpha=0.6, beta=0.4)
    fresh = Batch(**columns(ADDED), terminated=~over, truncated=over)
    for _ in range(CAPACITY // ADDED):
        lines.add(fresh)
    memory = PrioritizedReplayBuffer(CAPACITY, alpha=0.6, beta=0.4)
    memory.update(lines)

    def cycle(k):  # noqa: ANN001, ANN202
        _, rows = memory.sample(BATCH)
        memory.update_weight(rows, ERRORS[k % 100])

    return {"tree": turn, "sample": cycle, "add": lambda _: lines.add(fresh)}


def cpprb():  # noqa: ANN201
    """Its tree cannot be had by itself."""
    from cpprb import PrioritizedReplayBuffer  # noqa: PLC0415 - the peer's own environment

    shape = {"obs": {"shape": 4}, "act": {"dtype": np.int64}, "rew": {}, "obs_next": {"shape": 4}, "done": {}}
    memory = PrioritizedReplayBuffer(CAPACITY, shape, alpha=0.6)
    memory.add(**columns(CAPACITY), done=np.zeros(CAPACITY, np.float32))
    fresh, done = columns(ADDED), np.zeros(ADDED, np.float32)

    def cycle(k):  # noqa: ANN001, ANN202
        memory.update_priorities(memory.sample(BATCH, 0.4)["indexes"], ERRORS[k % 100])

    return {"sample": cycle, "add": lambda _: memory.add(**fresh, done=done)}


def main() -> None:
    works = {"tianshou": tianshou, "cpprb": cpprb}[sys.argv[1]]()
    print(json.dumps(sorted(works)), flush=True)
    for line in sys.stdin:
        name, times = line.split()
        taken = []
        for k in range(int(times)):
            begin = time.thread_time_ns()
            works[name](k)
            taken.append((time.thread_time_ns() - begin) / 1000)
        print(json.dumps(float(np.median(taken))), flush=True)


if __name__ == "__main__":
    main()
