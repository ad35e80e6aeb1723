"""Two policies for small problems, a table and a network, with exact statistics.

Softmax policies, their exact accuracy, their exact KL divergence, supervised steps.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hone.core.ragged import Ints
from hone.core.random import generator
from hone.lab.puzzles import Floats, Puzzle
from hone.learner.adam import Adam
from hone.learner.flat_parameters import FlatParameters
from hone.objectives.offline import behaviour_cloning


class TablePolicy(nn.Module):
    """A softmax for every row: `logits` `[rows, V]`, called with rows `[n]` or `[n, 1]`."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.clone())

    def forward(self, seen: Tensor) -> Tensor:
        return self.logits[seen.reshape(len(seen))]


class NetworkPolicy(nn.Module):
    """One-hot features -> tanh -> logits `[n, V]`: about 10,000 shared parameters."""

    def __init__(self, sizes: Sequence[int], tokens: int, *, seed: int, width: int = 64) -> None:
        super().__init__()
        self.starts = nn.Buffer(torch.tensor([0, *np.cumsum(sizes)[:-1].tolist()]), persistent=False)
        draws = generator(seed, "lab/init")

        def normal(*shape: int, std: float) -> nn.Parameter:
            return nn.Parameter(torch.from_numpy(draws.standard_normal(shape, dtype=np.float32) * np.float32(std)))

        self.features = normal(sum(sizes), width, std=0.5)
        self.mixing = normal(width, width, std=width**-0.5)
        self.out = normal(tokens, width, std=width**-0.5)

    def forward(self, seen: Tensor) -> Tensor:
        hidden = torch.tanh(self.features[seen + self.starts].sum(dim=1))
        return torch.tanh(hidden @ self.mixing) @ self.out.T


class LowRankNetwork(nn.Module):
    """A network whose weights stay as they are, plus `alpha / rank` times a trained product of rank `rank` for each:
    W = W0 + (alpha / rank) B A. A is uniform within fan_in^-1/2 and B is 0 at the start (LoRA)."""

    def __init__(self, base: NetworkPolicy, *, rank: int, alpha: float, seed: int) -> None:
        super().__init__()
        self.base, self.scale = base.requires_grad_(requires_grad=False), alpha / rank
        draws = generator(seed, "lab/lora")

        def uniform(columns: int) -> nn.Parameter:
            numbers = draws.uniform(-(columns**-0.5), columns**-0.5, (rank, columns))
            return nn.Parameter(torch.from_numpy(numbers.astype(np.float32)))

        weights = (base.features, base.mixing, base.out)
        self.a = nn.ParameterList([uniform(weight.shape[1]) for weight in weights])
        self.b = nn.ParameterList([nn.Parameter(torch.zeros(len(weight), rank)) for weight in weights])

    def weights(self) -> list[Tensor]:
        """W of features, mixing and output, differentiable."""
        base = (self.base.features, self.base.mixing, self.base.out)
        return [weight + self.scale * (b @ a) for weight, a, b in zip(base, self.a, self.b, strict=True)]

    def forward(self, seen: Tensor) -> Tensor:
        features, mixing, out = self.weights()
        return torch.tanh(torch.tanh(features[seen + self.base.starts].sum(dim=1)) @ mixing) @ out.T


def make_network(puzzle: Puzzle, *, seed: int, width: int = 64) -> NetworkPolicy:
    """A network for a puzzle's features and tokens."""
    return NetworkPolicy(puzzle.feature_sizes, puzzle.vocab_size, seed=seed, width=width)


def log_softmax(policy: nn.Module, seen: Tensor) -> Tensor:
    """`[n, V]` nats."""
    return torch.log_softmax(policy(seen), dim=1)


def sample_rows(table: NDArray[np.floating], uniforms: Floats) -> Ints:
    """Sample of each row of probabilities `[n, V]` by its uniform number `[n]` -> `[n]`."""
    edges = np.cumsum(table, axis=1)
    return (uniforms[:, None] * edges[:, -1:] >= edges).sum(axis=1).clip(max=table.shape[1] - 1)


def success_probabilities(policy: nn.Module, puzzle: Puzzle) -> Floats:
    """Probability of the right answer to each question `[Q]`, exactly: the product of its tokens' probabilities."""
    count, length = puzzle.answers.shape
    every = np.arange(count)
    total = torch.zeros(count)
    with torch.no_grad():
        for position in range(length):
            before = puzzle.answers[:, position - 1] if position else np.full(count, puzzle.vocab_size)
            table = log_softmax(policy, torch.from_numpy(puzzle.observation(every, position, before)))
            total += table.gather(1, torch.from_numpy(puzzle.answers[:, position : position + 1])).squeeze(1)
    return total.exp().double().numpy()


def kl_between(policy: nn.Module, other: nn.Module, seen: Tensor) -> float:
    """Mean of KL(policy || other) over `seen` `[n, F]`, exactly, in nats."""
    with torch.no_grad():
        mine, theirs = log_softmax(policy, seen), log_softmax(other, seen)
        return float((mine.exp() * (mine - theirs)).sum(dim=1).mean())


def answer_paths(puzzle: Puzzle) -> tuple[Tensor, Tensor]:
    """Observations along every right answer `[Q * L, F]`, and the right tokens `[Q * L]`."""
    count, length = puzzle.answers.shape
    every = np.arange(count)
    seen = [
        puzzle.observation(every, k, puzzle.answers[:, k - 1] if k else np.full(count, puzzle.vocab_size))
        for k in range(length)
    ]
    return torch.from_numpy(np.concatenate(seen)), torch.from_numpy(puzzle.answers.T.reshape(-1))


def train_supervised(
    policy: nn.Module, puzzle: Puzzle, *, steps: int, rate: float = 0.01, questions: Ints | None = None
) -> None:
    """Supervised steps on the right answers to `questions` (all of them by default), every one in each step."""
    seen, chosen = answer_paths(puzzle)
    if questions is not None:
        count, length = puzzle.answers.shape
        kept = torch.from_numpy((np.arange(length)[:, None] * count + questions).reshape(-1))
        seen, chosen = seen[kept], chosen[kept]
    train_on_choices(policy, seen, chosen, steps=steps, rate=rate)


def train_on_choices(policy: nn.Module, seen: Tensor, chosen: Tensor, *, steps: int, rate: float = 0.01) -> None:
    """Supervised steps on what was chosen `[n]` for observations `[n, F]`, every one in each step."""
    parameters = FlatParameters(policy.parameters())
    optimizer = Adam(parameters)
    for _ in range(steps):
        parameters.zero_grad()
        logp = log_softmax(policy, seen).gather(1, chosen[:, None]).squeeze(1)
        behaviour_cloning(logp).loss.mean().backward()
        optimizer.step(rate)


def frozen_copy(policy: nn.Module) -> nn.Module:
    """A frozen copy."""
    twin = trainable_copy(policy)
    return twin.requires_grad_(False)


def trainable_copy(policy: nn.Module) -> nn.Module:
    """A copy with separate parameters; of a low-rank network, the network that it amounts to."""
    match policy:
        case TablePolicy():
            return TablePolicy(policy.logits.detach())
        case NetworkPolicy():
            twin = NetworkPolicy([1], 1, seed=0, width=1)
            twin.starts = policy.starts
            twin.features = nn.Parameter(policy.features.detach().clone())
            twin.mixing = nn.Parameter(policy.mixing.detach().clone())
            twin.out = nn.Parameter(policy.out.detach().clone())
            return twin
        case LowRankNetwork():
            twin = trainable_copy(policy.base)
            assert isinstance(twin, NetworkPolicy)
            twin.features, twin.mixing, twin.out = (nn.Parameter(weight.detach()) for weight in policy.weights())
            return twin
        case _:
            raise TypeError(f"the lab has no copy of a {type(policy).__name__}")


def pretrained_network(puzzle: Puzzle, *, seed: int, steps: int = 15) -> NetworkPolicy:
    """A network after a few supervised steps: on addition about 4 of 10 answers are right."""
    policy = make_network(puzzle, seed=seed)
    train_supervised(policy, puzzle, steps=steps)
    return policy


def puzzle_metrics(policy: nn.Module, puzzle: Puzzle) -> dict[str, float]:
    """Exact metrics of a policy: mean accuracy, and mean entropy along the right answers in nats."""
    with torch.no_grad():
        table = log_softmax(policy, answer_paths(puzzle)[0])
    return {
        "solved": float(success_probabilities(policy, puzzle).mean()),
        "entropy_nats": float(-(table.exp() * table).sum(dim=1).mean()),
    }
