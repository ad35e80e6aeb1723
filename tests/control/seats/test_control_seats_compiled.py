"""Compiled games against OpenSpiel and against rules written anew; both searches against slow ones in Python."""

import math
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from published_worlds import SplitMix
from sanitizers import check_with_sanitizers

from hone.control.seats.compiled_games import (
    COMPILED_GAMES,
    CompiledGame,
    game_tree,
    require_searchable,
    rollout_search,
    tree_search,
)
from hone.control.seats.game import SeatsConfig
from hone.control.seats.world import open_matches
from hone.core.errors import ConfigError

FOURS = [
    [(row + step * down, column + step * right) for step in range(4)]
    for row, column, (down, right) in product(range(6), range(7), ((0, 1), (1, 0), (1, 1), (1, -1)))
    if row + 3 * down < 6 and 0 <= column + 3 * right < 7
]
Board = dict[tuple[int, int], int]


def opened(name: str, *moves: int) -> CompiledGame:
    """A game after outcomes of chance and actions."""
    game = CompiledGame(name)
    for move in moves:
        game.play(move)
    return game


def slow_winner(board: Board) -> int | None:
    """The seat with four in a line."""
    for line in FOURS:
        owners = {board.get(square) for square in line}
        if len(owners) == 1 and None not in owners:
            return owners.pop()
    return None


@pytest.mark.parametrize("name", COMPILED_GAMES)
def test_every_step_is_openspiel_s(name: str) -> None:
    pyspiel = pytest.importorskip("pyspiel", reason="OpenSpiel is not installed")
    from hone.control.seats.adapters import OpenSpielGame

    mine, theirs = CompiledGame(name), OpenSpielGame(pyspiel.load_game(name))
    assert (mine.seats, mine.hidden) == (theirs.seats, theirs.hidden)
    draws = np.random.default_rng(0)
    for match in range(60):
        mine.reset(match)
        theirs.reset(match)
        while theirs.to_move():
            assert list(mine.to_move()) == list(theirs.to_move())
            for seat in (0, 1):
                assert np.array_equal(mine.observe(seat).seen, theirs.observe(seat).seen)
            (seat,) = theirs.to_move()
            mask = theirs.observe(seat).mask
            assert mask is not None
            assert np.array_equal(mine.observe(seat).mask, mask)
            action = draws.choice(np.flatnonzero(mask))
            own, other = mine.step({seat: action}), theirs.step({seat: action})
            assert {0: 0.0, 1: 0.0, **own.rewards} == dict(other.rewards)
            assert list(own.terminated) == list(other.terminated)
        assert not mine.to_move()


def test_connect_four_ends_as_the_rules_say() -> None:
    draws = np.random.default_rng(1)
    ends: set[float] = set()
    for match in range(50):
        game, board = CompiledGame("connect_four"), Board()
        game.reset(match)
        while game.to_move():
            seat, legal = game.mover(), game.legal()
            heights = [sum((row, column) in board for row in range(6)) for column in range(7)]
            assert legal.tolist() == [height < 6 for height in heights]
            column = int(draws.choice(np.flatnonzero(legal)))
            board[heights[column], column] = seat
            game.step({seat: column})
            planes = game.seen(0).reshape(3, 6, 7)
            assert {(int(r), int(c)): int(p) for p, r, c in np.argwhere(planes) if p < 2} == board
            assert (not game.to_move()) == (slow_winner(board) is not None or len(board) == 42)
        winner = slow_winner(board)
        assert game.paid().tolist() == ([0, 0] if winner is None else [1 - 2 * winner, 2 * winner - 1])
        ends.add(game.paid()[0])
    assert ends >= {-1.0, 1.0}


def test_a_full_board_without_a_line_is_a_draw() -> None:
    game = opened("connect_four", *map(int, "555054466351352123041430222100021613443666"))
    assert game.mover() == -2
    board = {(int(r), int(c)): int(p) for p, r, c in np.argwhere(game.seen(0).reshape(3, 6, 7)) if p < 2}
    assert len(board) == 42
    assert slow_winner(board) is None
    assert game.paid().tolist() == [0, 0]


@pytest.mark.parametrize(
    ("moves", "paid"),
    [  # cards, then p: 0 and b: 1
        ((2, 0, 0, 0), 1), ((0, 2, 0, 0), -1), ((0, 2, 1, 0), 1), ((2, 0, 0, 1, 0), -1), ((2, 0, 0, 1, 1), 2),
        ((0, 2, 1, 1), -2),
    ],
)  # fmt: skip
def test_kuhn_poker_pays_by_hand(moves: tuple[int, ...], paid: int) -> None:
    game = opened("kuhn_poker", *moves)
    assert (game.mover(), game.paid().tolist()) == (-2, [paid, -paid])


@pytest.mark.parametrize(
    ("moves", "paid"),
    [  # two cards; fold 0, call 1, raise 2; the public card after a round
        ((0, 2, 2, 0), 1),  # a raise, and the other folds its ante
        ((0, 2, 1, 1, 4, 1, 1), -1),  # checks throughout: queen beats jack
        ((0, 2, 1, 1, 1, 1, 1), 1),  # the public card pairs the jack
        ((0, 1, 1, 1, 4, 2, 1), 0),  # equal ranks share
        ((4, 0, 2, 2, 1, 2, 2, 2, 1), 13),  # two raises a round: 1 + 2 + 2 + 4 + 4
        ((4, 0, 2, 2, 1, 2, 2, 2, 0), -9),  # the same, and the first folds
    ],
)
def test_leduc_poker_pays_by_hand(moves: tuple[int, ...], paid: int) -> None:
    game = opened("leduc_poker", *moves)
    assert (game.mover(), game.paid().tolist()) == (-2, [paid, -paid])


def test_at_most_two_raises_a_round_and_no_fold_without_a_bet() -> None:
    game = opened("leduc_poker", 0, 2)
    assert game.legal().tolist() == [False, True, True]
    game.play(2)
    game.play(2)
    assert game.legal().tolist() == [True, True, False]
    with pytest.raises(ConfigError, match=r"compiled:leduc_poker: 2 is not legal here, of \[0 1\]"):
        game.play(2)


def test_an_unknown_game_and_a_large_tree_are_refused() -> None:
    with pytest.raises(ConfigError, match="compiled:kuhn_pokre: no such game; did you mean kuhn_poker"):
        CompiledGame("kuhn_pokre")
    with pytest.raises(ConfigError, match="too large for its whole tree"):
        game_tree("connect_four")
    with pytest.raises(ConfigError, match="tree search with a network is for"):
        require_searchable(CompiledGame("kuhn_poker"))


def test_a_match_repeats_and_its_position_is_a_snapshot() -> None:
    matches, reason = open_matches(SeatsConfig(id="compiled:leduc_poker", num_envs=2), seed=4)
    assert reason is None
    game = matches[0].game
    assert isinstance(game, CompiledGame)
    held, seen = game.position.copy(), game.seen(0)
    game.play(1)
    game.position[:] = held
    assert np.array_equal(game.seen(0), seen)


def test_the_trees_have_the_sizes_of_the_literature() -> None:
    kuhn, leduc = game_tree("kuhn_poker"), game_tree("leduc_poker")
    assert (len(kuhn.seat), len(leduc.seat)) == (12, 936)
    assert (len(kuhn.parent), int((kuhn.mover == -2).sum())) == (58, 30)
    for tree in (kuhn, leduc):
        assert (tree.parent[1:] < np.arange(1, len(tree.parent))).all()
        assert np.allclose(tree.paid.sum(axis=1), 0)


# --------------------------------------------------------------------------------------------------------------- search


@dataclass
class SlowNode:
    """A node of the searches, as the papers describe them."""

    board: Board
    heights: list[int]
    parent: "SlowNode | None" = None
    action: int = -1
    prior: float = 1.0
    visits: int = 0
    total: float = 0.0
    solved: int | None = None
    """Proved payment for the seat that moved into the node."""
    children: "list[SlowNode]" = field(default_factory=list)

    @property
    def mover(self) -> int:
        return sum(self.heights) % 2

    @property
    def over(self) -> bool:
        return slow_winner(self.board) is not None or sum(self.heights) == 42

    def legal(self) -> list[int]:
        return [] if self.over else [column for column in range(7) if self.heights[column] < 6]

    def after(self, column: int) -> "SlowNode":
        heights = list(self.heights)
        heights[column] += 1
        board = {**self.board, (self.heights[column], column): self.mover}
        return SlowNode(board, heights, parent=self, action=column)

    def paid(self) -> list[float]:
        winner = slow_winner(self.board)
        return [0.0, 0.0] if winner is None else [1.0 - 2 * winner, 2 * winner - 1.0]

    def back_up(self, paid: list[float]) -> None:
        node: SlowNode | None = self
        while node is not None:
            node.visits += 1
            if node.parent is not None:
                node.total += paid[node.parent.mover]
            node = node.parent


def slow_root(game: CompiledGame) -> SlowNode:
    planes = game.seen(0).reshape(3, 6, 7)
    board = {(int(r), int(c)): int(p) for p, r, c in np.argwhere(planes) if p < 2}
    return SlowNode(board, [sum((row, column) in board for row in range(6)) for column in range(7)])


def slow_rollouts(root: SlowNode, simulations: int, explore: float, random: SplitMix) -> list[int]:  # noqa: C901 - as the paper has it
    """Visits of UCT with one playout a leaf and with proofs."""

    def below(count: int) -> int:
        return int(random.rand() * count)

    def pick(node: SlowNode) -> SlowNode:
        scores = []
        for child in node.children:
            if child.solved is not None:
                scores.append(float(child.solved))
            elif not child.visits:
                scores.append(1e300)
            else:
                scores.append(child.total / child.visits + explore * math.sqrt(math.log(node.visits) / child.visits))
        best, ties, most = node.children[0], 0, -1e301
        for child, score in zip(node.children, scores, strict=True):
            ties = 0 if score > most else ties
            most = max(most, score)
            if score == most:
                ties += 1
                best = child if below(ties) == 0 else best
        return best

    def prove(node: SlowNode | None) -> None:
        while node is not None:
            known = [child.solved for child in node.children if child.solved is not None]
            if max(known) != 1 and len(known) < len(node.children):
                return
            node.solved = -max(known)
            node = node.parent

    for _ in range(simulations):
        if root.solved is not None:
            break
        node = root
        while node.children and node.solved is None:
            node = pick(node)
        if node.solved is None and not node.over and (node.visits or node is root):
            node.children = [node.after(column) for column in node.legal()]
            node = pick(node)
        if node.solved is not None:
            assert node.parent is not None
            paid = [0.0, 0.0]
            paid[node.parent.mover] = float(node.solved)
            paid[1 - node.parent.mover] = -float(node.solved)
        else:
            end = node
            while not end.over:
                moves = end.legal()
                end = end.after(moves[below(len(moves))])
            paid = end.paid()
            if node.over and node.parent is not None:
                node.solved = int(paid[node.parent.mover])
                prove(node.parent)
        node.back_up(paid)
    visits = [0] * 7
    for child in root.children:
        visits[child.action] = child.visits
    return visits


def evaluate(seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Logits and values that depend on every number of a position."""
    weights = np.sin(np.arange(seen.shape[1] * 8).reshape(seen.shape[1], 8)).astype(np.float32)
    both = seen @ weights
    return both[:, :7], np.tanh(both[:, 7] / 3)


def slow_search(root: SlowNode, simulations: int, weight: float, noise: np.ndarray | None) -> tuple[list[int], float]:
    """Visits and value of PUCT."""

    def row(node: SlowNode) -> np.ndarray:
        planes = np.zeros((3, 6, 7), np.float32)
        planes[2] = 1
        for (r, c), seat in node.board.items():
            planes[seat, r, c], planes[2, r, c] = 1, 0
        return np.concatenate([planes.ravel(), np.eye(2, dtype=np.float32)[node.mover]])

    for _ in range(simulations):
        node = root
        while node.children:
            reach = math.sqrt(max(1, node.visits))
            node = max(
                node.children,
                key=lambda child: (
                    (child.total / child.visits if child.visits else 0.0)
                    + weight * reach * child.prior / (1 + child.visits)
                ),
            )
        if node.over:
            node.back_up(node.paid())
            continue
        logits, values = evaluate(row(node)[None])
        legal = node.legal()
        shares = np.exp(logits[0, legal] - logits[0, legal].max())
        shares /= shares.sum()
        node.children = [node.after(column) for column in legal]
        for child, share in zip(node.children, shares, strict=True):
            child.prior = float(share)
            if node is root and noise is not None:
                child.prior = 0.75 * child.prior + 0.25 * noise[child.action]
        paid = [0.0, 0.0]
        paid[node.mover], paid[1 - node.mover] = float(values[0]), -float(values[0])
        node.back_up(paid)
    visits = [0] * 7
    for child in root.children:
        visits[child.action] = child.visits
    total = sum(child.total for child in root.children)
    return visits, total / max(1, sum(visits))


POSITIONS = [(), (3, 3, 2), (0, 1, 0, 1, 0), (3, 2, 3, 2, 4, 4), (0, 0, 0, 0, 0, 0, 1, 1, 2)]


@pytest.mark.parametrize("moves", POSITIONS)
def test_the_search_with_playouts_is_the_slow_one(moves: tuple[int, ...]) -> None:
    game = opened("connect_four", *moves)
    for seed in (1, 2):
        expected = slow_rollouts(slow_root(game), 60, 2.0, SplitMix(seed))
        move, visits = rollout_search(game, simulations=60, seed=seed)
        assert visits.tolist() == expected
        assert game.legal()[move]


@pytest.mark.parametrize("moves", POSITIONS)
def test_the_search_with_a_network_is_the_slow_one(moves: tuple[int, ...]) -> None:
    game, noise = opened("connect_four", *moves), np.arange(1.0, 8.0) / 28
    for simulations, mixed in ((1, None), (2, None), (60, None), (60, noise)):
        both = None if mixed is None else np.stack([mixed] * 2)
        result = tree_search([game, game], evaluate, simulations=simulations, noise=both)
        visits, value = slow_search(slow_root(game), simulations, 1.5, mixed)
        assert result.visits.tolist() == [visits] * 2
        assert result.values.tolist() == pytest.approx([value] * 2, abs=1e-5)
        assert result.visits[0].sum() == simulations - 1  # the first line evaluates the root


def test_a_win_is_found_and_a_loss_is_blocked() -> None:
    won = opened("connect_four", 0, 1, 0, 1, 0, 1)
    assert rollout_search(won, simulations=60, seed=0)[0] in {0, 1}
    blocked = opened("connect_four", 0, 6, 0, 6, 0)
    assert rollout_search(blocked, simulations=400, seed=0)[0] == 0
    result = tree_search([blocked], lambda seen: (np.zeros((len(seen), 7)), np.zeros(len(seen))), simulations=400)
    assert result.visits[0].argmax() == 0


def test_a_position_that_is_over_has_no_visits() -> None:
    over = opened("connect_four", 0, 1, 0, 1, 0, 1, 0)
    result = tree_search([over, opened("connect_four")], evaluate, simulations=20)
    assert result.visits.sum(axis=1).tolist() == [0, 19]
    assert np.array_equal(result.policy[0], np.zeros(7))


def test_the_mirror_image_is_the_game_with_columns_turned() -> None:
    one, other = opened("connect_four", 0, 1, 4), opened("connect_four", 6, 5, 2)
    assert one.mirror is not None
    cells, actions = one.mirror
    row = np.concatenate([one.seen(0), [1.0, 0.0]])
    assert np.array_equal(row[cells], np.concatenate([other.seen(0), [1.0, 0.0]]))
    assert actions.tolist() == [6, 5, 4, 3, 2, 1, 0]
    assert opened("kuhn_poker").mirror is None


@pytest.mark.slow  # compiles with -O0, then runs under the sanitizers
def test_the_games_have_no_fault_that_sanitizers_see() -> None:
    check_with_sanitizers(Path(__file__).with_name("seats_compiled_checked.py"))
