"""Early experience on and off: demonstrations alone, own moves relabelled, and a model of the world that is asked."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hone.core.ragged import Ints
from hone.core.random import generator
from hone.lab.finding import BoundedClaim, Experiment, ExperimentResult, at_least, at_most, line_plot
from hone.lab.policies import NetworkPolicy, log_softmax, train_on_choices
from hone.text.games.doors import DOORS, END, LETTERS, PLACES, DoorQuestion, doors_of, split_questions

_DEMONSTRATIONS = 80
_CHANCE = 1 / DOORS
_IMITATION, _HINDSIGHT, _ASKED, _COVERED = (
    "demonstrations alone", "and own moves, relabelled", "a world model, asked", "met in the moves",
)  # fmt: skip


def _as_choices(questions: Sequence[DoorQuestion]) -> tuple[Ints, Ints]:
    """Start and goal of each question `[n, 2]`, and its door `[n]`."""
    pairs = np.array([(one.start, one.goal) for one in questions], np.int64)
    return pairs, np.array([LETTERS.index(one.door.removesuffix(END)) for one in questions], np.int64)


def _door_policy(seen: Ints, chosen: Ints, *, seed: int, steps: int) -> NetworkPolicy:
    """A policy from start and goal to a door, after imitation of these choices."""
    policy = NetworkPolicy((PLACES, PLACES), DOORS, seed=seed, width=128)
    train_on_choices(policy, torch.from_numpy(seen), torch.from_numpy(chosen), steps=steps)
    return policy


def _asked_doors(model: NetworkPolicy, pairs: Ints) -> Tensor:
    """`[n]` for each start and goal the door after which the model finds the goal likeliest."""
    seen = np.column_stack([np.repeat(pairs[:, 0], DOORS), np.tile(np.arange(DOORS), len(pairs))])
    goals = torch.from_numpy(np.repeat(pairs[:, 1], DOORS))
    with torch.no_grad():
        logp = log_softmax(model, torch.from_numpy(seen)).gather(1, goals[:, None])
    return logp.reshape(len(pairs), DOORS).argmax(dim=1)


def _shares(seed: int, moves: int, *, steps: int) -> dict[str, float]:
    """Share of the 240 held-out questions that each way answers right after so many own moves."""
    shown, held = split_questions(seed, demonstrated=_DEMONSTRATIONS, seed=seed)
    pairs, right = _as_choices(held)
    taught, doors = _as_choices(shown)
    random = generator(seed, "lab/moves")  # random doors from random places
    starts, opened = random.integers(PLACES, size=moves), random.integers(DOORS, size=moves)
    places = np.array(doors_of(seed), np.int64)[starts, opened]
    relabelled = np.unique(np.column_stack([starts, places, opened]), axis=0).reshape(-1, 3)
    both = np.concatenate([taught, relabelled[:, :2]]), np.concatenate([doors, relabelled[:, 2]])
    policies = {
        _IMITATION: _door_policy(taught, doors, seed=seed, steps=steps),
        _HINDSIGHT: _door_policy(*both, seed=seed, steps=steps),
    }
    with torch.no_grad():
        answers = {name: policy(torch.from_numpy(pairs)).argmax(dim=1) for name, policy in policies.items()}
    # A model of where each door leads.
    model = NetworkPolicy((PLACES, DOORS), PLACES, seed=seed, width=128)
    seen = torch.from_numpy(np.column_stack([starts, opened]))
    train_on_choices(model, seen, torch.from_numpy(places), steps=steps)
    answers[_ASKED] = _asked_doors(model, pairs)
    met = {tuple(move) for move in relabelled[:, :2].tolist()}
    measured = {name: float((answer.numpy() == right).mean()) for name, answer in answers.items()}
    return measured | {_COVERED: float(np.mean([tuple(pair) in met for pair in pairs.tolist()]))}


def claims_of(after: dict[str, float]) -> list[BoundedClaim]:
    """Claims on the shares after the largest number of moves."""
    return [
        at_most("held-out questions answered by demonstrations alone", after[_IMITATION], 2 * _CHANCE),
        at_least("the same with own moves, relabelled", after[_HINDSIGHT], 0.9),
        at_least("the same by asking a world model", after[_ASKED], 0.9),
    ]


def _run(seed: int, *, quick: bool = False) -> ExperimentResult:
    numbers, runs, steps = ((300, 2000), 1, 200) if quick else ((100, 300, 1000, 3000), 2, 200)
    names = (_IMITATION, _HINDSIGHT, _ASKED, _COVERED)
    paths: dict[str, list[list[float]]] = {name: [] for name in names}
    for run_seed in range(10 * seed, 10 * seed + runs):
        measured = [_shares(run_seed, count, steps=steps) for count in numbers]
        for name in names:
            paths[name].append([one[name] for one in measured])
    mean = {name: np.mean(each, axis=0) for name, each in paths.items()}
    after = {name: float(values[-1]) for name, values in mean.items()}
    return ExperimentResult(
        header=("early experience", *(f"{count:,} moves" for count in numbers)),
        rows=[(name, *(f"{share:.0%}" for share in mean[name].tolist())) for name in names],
        panels=[
            line_plot("held-out questions answered", "own moves", numbers, {n: np.array(p) for n, p in paths.items()})
        ],
        verdict=(
            f"{_DEMONSTRATIONS} demonstrations answer {after[_IMITATION]:.0%} of the 240 other questions, where chance "
            f"is {_CHANCE:.1%}. After {numbers[-1]:,} own moves without a reward, relabelled by where they led, "
            f"{after[_HINDSIGHT]:.0%} are answered, and {after[_ASKED]:.0%} by asking a model of the world about each "
            f"door. The moves had met {after[_COVERED]:.0%} of them: this is knowledge, not generalisation."
        ),
        claims=claims_of(after),
    )


EXPERIMENT = Experiment(
    title="Early experience",
    question="What are a policy's own moves worth before there is any reward?",
    run=_run,
    source="Zhang et al., 2025",
)
