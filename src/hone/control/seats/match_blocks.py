"""Blocks of matches, and who plays them: this process, child processes, or tasks of a Ray cluster.

A block names its matches and the policy folder of every player. It is played from files alone, so that any worker plays
it to the same bits, and a lost worker's block is begun again by another. `BlockLedger` decides what counts: each block
once, and only with the versions that were asked for.
"""

import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from hone.control.environments.protocol import MessageParser, WorkerMessage, encode
from hone.control.networks.checkpoint import load_policy
from hone.control.networks.seats import NumpyPolicyValue
from hone.control.seats.adapters import game_maker
from hone.control.seats.game import SeatsConfig
from hone.control.seats.matches import SeatLayout
from hone.control.seats.players import Player, PolicyPlayer, SearchPlayer, TreeSearchConfig
from hone.control.seats.whole_matches import MatchTable, MatchTicket, PlayedMatch
from hone.core.clock import Clock, SystemClock
from hone.core.episodes import Episodes, pack_episodes, unpack_episodes
from hone.core.errors import DataError, HoneError, ResourceError, UserCodeError
from hone.core.state import array
from hone.process.child import TICK_S, ChildProcess, pump_children
from hone.process.parent import connect_to_parent
from hone.run.store.durable import sha256

WEIGHTS: Final = "model.safetensors"
_MODULE: Final = "hone.control.seats.match_blocks"
_MOST_LOSSES: Final = 10
"""Lost workers that a run replaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayerSpec:
    """A player that a worker can open: a policy folder, the digest of its weights, and a search."""

    folder: str
    sha256: str
    search: TreeSearchConfig | None = None

    def open(self) -> Player:
        """Raises DataError for weights that are missing or are not those of the digest."""
        return _open_player(self)


@lru_cache(maxsize=64)
def _open_player(spec: PlayerSpec) -> Player:
    weights = Path(spec.folder) / WEIGHTS
    policy = load_policy(Path(spec.folder)).numpy_policy()
    if sha256(weights) != spec.sha256:
        raise DataError(f"{weights}: these weights are not those that the run saved")
    if spec.search is None:
        return PolicyPlayer(policy)
    assert isinstance(policy, NumpyPolicyValue), "a search needs a network with a value"
    return SearchPlayer(policy=policy, search=spec.search, explores=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchBlock:
    """Matches that a worker plays together."""

    number: int
    tickets: Sequence[MatchTicket]
    players: Mapping[int, PlayerSpec]
    learners: Mapping[int, int]
    """Players whose decisions are wanted, and the versions of their policies."""

    def encoded(self) -> bytes:
        """The block as a message."""
        return encode(
            {
                "number": self.number,
                "tickets": [[ticket.number, *ticket.players] for ticket in self.tickets],
                "players": {
                    str(number): [spec.folder, spec.sha256, spec.search and spec.search.model_dump()]
                    for number, spec in self.players.items()
                },
                "learners": {str(number): version for number, version in self.learners.items()},
            }
        )

    @classmethod
    def decoded(cls, head: Mapping[str, Any]) -> "MatchBlock":
        """Inverse of `encoded`."""
        players = {
            int(number): PlayerSpec(
                folder=folder, sha256=digest, search=None if search is None else TreeSearchConfig.model_validate(search)
            )
            for number, (folder, digest, search) in head["players"].items()
        }
        return cls(
            number=head["number"],
            tickets=[MatchTicket(number=first, players=tuple(rest)) for first, *rest in head["tickets"]],
            players=players,
            learners={int(number): version for number, version in head["learners"].items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockResult:
    """A block that was played, or the player whose folder could not be read."""

    number: int
    learners: Mapping[int, int]
    played: Sequence[PlayedMatch] = ()
    episodes: Episodes | None = None
    unreadable: int | None = None
    fault: str = ""
    """What was wrong with that player's folder, or with the game (`unreadable` None)."""

    def encoded(self) -> bytes:
        """The result as a message."""
        head = {
            "number": self.number,
            "learners": {str(number): version for number, version in self.learners.items()},
            "played": [asdict(match) for match in self.played],
            "unreadable": self.unreadable,
            "fault": self.fault,
        }
        packed = {} if self.episodes is None else pack_episodes(self.episodes)
        return encode(head, {name: array(packed, name) for name in packed})

    @classmethod
    def decoded(cls, message: WorkerMessage) -> "BlockResult":
        """Inverse of `encoded`. Raises KeyError and TypeError for another message."""
        head = message.head
        played = [
            PlayedMatch(
                number=one["number"], players=tuple(one["players"]), returns=tuple(one["returns"]), steps=one["steps"]
            )
            for one in head["played"]
        ]
        return cls(
            number=head["number"],
            learners={int(number): version for number, version in head["learners"].items()},
            played=played,
            episodes=unpack_episodes(dict(message.arrays)) if message.arrays else None,
            unreadable=head["unreadable"],
            fault=head["fault"],
        )


@dataclass(kw_only=True)
class BlockPlayer:
    """Plays blocks of one game."""

    env: SeatsConfig
    seed: int
    table: MatchTable | None = None

    def play(self, block: MatchBlock) -> BlockResult:
        """Play a block. A policy folder that cannot be read, or a game that fails, is told in the result."""
        players: dict[int, Player] = {}
        for number, spec in block.players.items():
            try:
                players[number] = spec.open()
            except DataError as error:
                words = "; ".join(error.messages)
                return BlockResult(number=block.number, learners=block.learners, unreadable=number, fault=words)
        try:
            episodes, played = self._table(len(block.tickets)).play(block.tickets, players, block.learners)
        except UserCodeError as error:
            return BlockResult(number=block.number, learners=block.learners, fault=str(error))
        return BlockResult(number=block.number, learners=block.learners, played=played, episodes=episodes)

    def _table(self, games: int) -> MatchTable:
        if self.table is None or len(self.table.games) < games:
            make = game_maker(self.env)
            made = [make() for _ in range(games)]
            made[0].reset(self.seed)
            layout = SeatLayout.from_game(made[0], self.env.id)
            self.table = MatchTable(
                name=self.env.id, games=made, layout=layout, max_steps=self.env.max_match_steps, seed=self.seed
            )
        return self.table


# ---------------------------------------------------------------------------------------------------------- bookkeeping


@dataclass(kw_only=True)
class BlockLedger:
    """Blocks that are to be played, and the results that count."""

    blocks: Sequence[MatchBlock]
    waiting: deque[MatchBlock] = field(init=False)
    results: dict[int, BlockResult] = field(default_factory=dict[int, BlockResult])
    duplicates: int = 0
    """Results of blocks that had one, which were dropped."""
    refused: int = 0
    """Results of other versions than those that were asked for, which were dropped and asked for again."""
    lost: int = 0
    """Blocks whose worker was lost, which were begun again."""

    def __post_init__(self) -> None:
        self.waiting = deque(self.blocks)
        self._by_number = {block.number: block for block in self.blocks}

    @property
    def done(self) -> bool:
        """True if every block has its result."""
        return len(self.results) == len(self._by_number)

    def accept(self, result: BlockResult) -> bool:
        """Whether a result counts. One of an old version is asked for again."""
        block = self._by_number.get(result.number)
        if block is None or result.number in self.results:
            self.duplicates += 1
            return False
        if result.learners != block.learners:
            self.refused += 1
            self.waiting.appendleft(block)
            return False
        self.results[result.number] = result
        return True

    def lose(self, block: MatchBlock) -> None:
        """A block's worker was lost: another begins it again."""
        self.lost += 1
        self.waiting.appendleft(block)

    def in_order(self) -> list[BlockResult]:
        """The results in the order of the blocks."""
        return [self.results[block.number] for block in self.blocks]


@dataclass(kw_only=True)
class BlockRunner(ABC):
    """Where blocks are played."""

    notices: list[str] = field(default_factory=list[str])
    """Notices for the user since they were told."""

    @abstractmethod
    def run(self, ledger: BlockLedger) -> None:
        """Play the blocks of `ledger` until every one has its result. Raises ResourceError if no worker can."""

    @abstractmethod
    def close(self) -> None:
        """End the workers."""


@dataclass(kw_only=True)
class InlineBlocks(BlockRunner):
    """Plays blocks in this process."""

    player: BlockPlayer

    def run(self, ledger: BlockLedger) -> None:
        while ledger.waiting:
            ledger.accept(self.player.play(ledger.waiting.popleft()))

    def close(self) -> None:
        self.player.table = None


# ------------------------------------------------------------------------------------------------------------ processes


@dataclass(kw_only=True)
class _Worker:
    """A child process, and the block that it plays."""

    child: ChildProcess[WorkerMessage]
    block: MatchBlock | None = None
    since_s: float = 0.0


@dataclass(kw_only=True)
class _WorkerBlocks(BlockRunner):
    """Base of workers that may be lost."""

    env: SeatsConfig
    seed: int
    count: int
    """Workers."""
    losses: int = 0


@dataclass(kw_only=True)
class ProcessBlocks(_WorkerBlocks):
    """Plays blocks in child processes. A lost one is replaced, and its block is begun again."""

    patience_s: float = 300.0
    """Longest time for a block."""
    clock: Clock = field(default_factory=SystemClock)
    workers: list[_Worker] = field(default_factory=list[_Worker])

    def run(self, ledger: BlockLedger) -> None:
        while len(self.workers) < self.count:
            self.workers.append(self._started())
        while not ledger.done:
            for worker in self.workers:
                if worker.block is None and ledger.waiting:
                    worker.block, worker.since_s = ledger.waiting.popleft(), self.clock.monotonic_s()
                    worker.child.send(worker.block.encoded())
            pump_children([worker.child for worker in self.workers], TICK_S)
            for place, worker in enumerate(self.workers):
                self._look_at(place, worker, ledger)

    def _look_at(self, place: int, worker: _Worker, ledger: BlockLedger) -> None:
        reply = worker.child.take_reply()
        if reply is None and worker.block is not None:
            if self.clock.monotonic_s() - worker.since_s < self.patience_s:
                return
            reply = worker.child.timeout_error(f"no result within {self.patience_s:g} s")
        if isinstance(reply, WorkerMessage):
            worker.block = None
            ledger.accept(BlockResult.decoded(reply))
        elif reply is not None:
            self.losses += 1
            self.notices.append(f"worker {place} of {self.count} was lost: {reply}; its matches are begun again")
            worker.child.kill()
            if worker.block is not None:
                ledger.lose(worker.block)
            if self.losses > _MOST_LOSSES:
                raise ResourceError(f"{self.losses} workers of matches were lost, the last one because {reply}")
            self.workers[place] = self._started()

    def _started(self) -> _Worker:
        child = ChildProcess(_MODULE, MessageParser(), clock=self.clock)
        child.start()
        child.send(encode({"env": self.env.model_dump(mode="json"), "seed": self.seed}))
        return _Worker(child=child)

    def close(self) -> None:
        for worker in self.workers:
            worker.child.kill()
        self.workers.clear()


def _requests(chunks: Iterator[bytes]) -> Iterator[WorkerMessage]:
    parser = MessageParser()
    for chunk in chunks:
        yield from parser.feed(chunk)


def _serve_blocks() -> None:
    """The child's loop: the game first, then one result for each block."""
    channel = connect_to_parent()
    requests = _requests(channel.chunks())
    first = next(requests, None)
    if first is None:
        return
    player = BlockPlayer(env=SeatsConfig.model_validate(first.head["env"]), seed=first.head["seed"])
    for request in requests:
        channel.reply(player.play(MatchBlock.decoded(request.head)).encoded())


# ------------------------------------------------------------------------------------------------------------------ ray


_RAY_PLAYERS: dict[tuple[str, int], BlockPlayer] = {}
"""Games that this process has open for tasks, by config and seed."""


def _play_encoded(env: str, seed: int, block: bytes) -> bytes:
    """A Ray task: play a block. The process keeps the game and the policies that it opened, for the next task.

    `env` is the game's config and `block` the message of a block; returns the message of its result.
    """
    player = _RAY_PLAYERS.get((env, seed))
    if player is None:
        player = _RAY_PLAYERS[env, seed] = BlockPlayer(env=SeatsConfig.model_validate_json(env), seed=seed)
    (request,) = MessageParser().feed(block)
    return player.play(MatchBlock.decoded(request.head)).encoded()


@dataclass(kw_only=True)
class RayBlocks(_WorkerBlocks):
    """Plays blocks as tasks of a Ray cluster, whose machines see the run's folder. A lost task is begun again."""

    connect: Callable[[int], object]
    """Connects to the cluster, with so many cores."""

    def run(self, ledger: BlockLedger) -> None:
        import ray  # noqa: PLC0415 - an extra

        self.connect(self.count)
        task = ray.remote(_play_encoded).options(num_cpus=1, max_retries=0)
        pending: dict[Any, MatchBlock] = {}
        env = self.env.model_dump_json()
        while not ledger.done:
            while ledger.waiting and len(pending) < self.count:
                block = ledger.waiting.popleft()
                pending[task.remote(env, self.seed, block.encoded())] = block
            for one in ray.wait(list(pending), num_returns=1)[0]:
                self._take(one, pending.pop(one), ledger)

    def _take(self, task: Any, block: MatchBlock, ledger: BlockLedger) -> None:  # noqa: ANN401 - a reference of Ray's
        import ray  # noqa: PLC0415 - an extra
        from ray import exceptions  # noqa: PLC0415 - an extra

        try:
            (reply,) = MessageParser().feed(ray.get(task))
        except exceptions.RayError as error:
            self.losses += 1
            self.notices.append(f"a task of matches was lost ({type(error).__name__}); they are begun again")
            ledger.lose(block)
            if self.losses > _MOST_LOSSES:
                raise ResourceError(f"{self.losses} tasks of matches were lost") from error
            return
        ledger.accept(BlockResult.decoded(reply))

    def close(self) -> None:
        """The cluster is not this run's."""


if __name__ == "__main__":
    try:
        _serve_blocks()
    except HoneError as error:
        sys.exit(str(error))
