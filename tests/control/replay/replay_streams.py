"""A stream of episodes whose every number says where it belongs, cut into pieces as a vector environment would.

Episode e at step t is seen as (e, t); its reward is 100 e + t; after its last step L - 1 comes (e, L). A reset shows
(e + something, 0), so a mistaken boundary shows in the numbers.
"""

import numpy as np

from hone.core.episodes import Episodes, concatenate


def piece(episode: int, first: int, length: int, *, terminated: bool = False, truncated: bool = False) -> Episodes:
    steps = np.arange(first, first + length)
    return Episodes(
        offsets=np.array([0, length]),
        seen=np.stack([np.full(length, episode), steps], axis=1).astype(np.float32),
        chosen=(steps + episode) % 3,
        logp=-steps.astype(np.float32),
        version=steps.astype(np.int32),
        reward=(100.0 * episode + steps).astype(np.float32),
        group=np.array([episode]),
        terminated=np.array([terminated]),
        truncated=np.array([truncated]),
        final=np.array([[episode, first + length]], np.float32),
        score=np.array([float(episode)]),
        status=np.zeros(1, np.uint8),
    )


def stream(seed: int, *, envs: int, rollouts: int, steps: int) -> tuple[list[Episodes], dict[int, tuple[int, str]]]:
    """Rollouts, and the length and kind of end of every episode (`open` where it goes on)."""
    rng = np.random.default_rng(seed)
    length, kind = rng.integers(1, 9, 10_000), rng.integers(0, 2, 10_000)
    numbers = iter(range(10_000))
    running = [(next(numbers), 0) for _ in range(envs)]
    told: dict[int, tuple[int, str]] = {}
    collected: list[Episodes] = []
    for _ in range(rollouts):
        pieces: list[Episodes] = []
        for env in range(envs):
            left = steps
            while left:
                number, at = running[env]
                take = min(left, int(length[number]) - at)
                end = "open" if at + take < length[number] else "terminated" if kind[number] else "truncated"
                ended = {"terminated": end == "terminated", "truncated": end == "truncated"}
                pieces.append(piece(number, at, take, **ended))
                told[number] = (at + take, end)
                running[env] = (number, at + take) if end == "open" else (next(numbers), 0)
                left -= take
        collected.append(concatenate(pieces))
    return collected, told
