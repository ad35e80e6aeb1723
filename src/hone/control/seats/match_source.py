"""A source of whole matches: draws who plays, has blocks of matches played, and keeps their record.

The policies that learn are published as folders, which workers read. A worker may be lost, slow or wrong: the step's
matches are the same, because a match is a function of its ticket.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from hone.control.environments.ray_blocks import ADDRESS_VARIABLE
from hone.control.networks.actor_critic import ControlPolicy
from hone.control.networks.checkpoint import save_policy
from hone.control.seats.match_blocks import (
    WEIGHTS,
    BlockLedger,
    BlockPlayer,
    BlockRunner,
    InlineBlocks,
    MatchBlock,
    PlayerSpec,
    ProcessBlocks,
    RayBlocks,
)
from hone.control.seats.match_log import FILE, MatchLog
from hone.control.seats.opponents import OpponentPool
from hone.control.seats.players import TreeSearchConfig
from hone.control.seats.whole_matches import MatchTicket
from hone.control.seats.world import LEARNER, Seating
from hone.core.config import Config
from hone.core.credit import Metrics
from hone.core.episodes import Episodes, concatenate
from hone.core.errors import DataError, UserCodeError
from hone.core.state import State, integer, substate
from hone.parallel.connect import connect_to_ray
from hone.run.store.durable import sha256
from hone.sources.live import EpisodeStats

_KEPT_VERSIONS = 2


class WorkersConfig(Config):
    """Who plays the matches."""

    count: int = Field(default=0, ge=0, le=1024)
    """Workers; 0: the trainer plays them."""
    on_ray: bool = False
    """Tasks of a Ray cluster (`RAY_ADDRESS`, or one started here) instead of processes on this machine."""
    patience_s: float = Field(default=300.0, gt=0)
    """Longest time for a block of matches; a worker that takes longer is replaced."""


@dataclass(kw_only=True)
class MatchSource:
    """Plays `matches` whole matches a step, in blocks."""

    runner: BlockRunner
    seating: Seating
    learners: Mapping[int, ControlPolicy]
    """Policies that learn, by their number as players; -1 is the one that is released."""
    matches: int
    block: int
    """Matches that are played together."""
    search: TreeSearchConfig | None = None
    """Search of the players that learn."""
    pool: OpponentPool | None = None
    """The seating, where there are players beside the learners."""
    folder: Path | None = None
    """The run's folder; named before the first publication."""
    log: MatchLog | None = None
    version: int = -1
    begun: int = 0
    """Matches begun."""
    specs: dict[int, PlayerSpec] = field(default_factory=dict[int, PlayerSpec])
    stats: EpisodeStats = field(default_factory=EpisodeStats)
    counts: dict[str, float] = field(default_factory=dict[str, float])

    def open_folder(self, folder: Path) -> None:
        """Keep policies and the record in a run's folder."""
        self.folder, self.log = folder, MatchLog(path=folder / FILE)
        if self.pool is not None:
            self.pool.folder = folder / "opponents"

    def publish(self, policy: ControlPolicy) -> None:
        """Write the weights of every policy that learns, for whoever plays."""
        del policy  # one of `learners`
        assert self.folder is not None, "the folder of the run was not named (TrainingJob.open_folder)"
        self.version += 1
        place = self.folder / "versions" / f"{self.version:08d}"
        if self.pool is not None:
            self.pool.consider(self.learners[LEARNER], self.version)
        for number, one in self.learners.items():
            own = place / str(-number)
            save_policy(one, own)
            self.specs[number] = PlayerSpec(folder=str(own), sha256=sha256(own / WEIGHTS), search=self.search)
        for old in place.parent.iterdir():  # later ones too: an interrupted run may have left some
            if not self.version - _KEPT_VERSIONS < int(old.name) <= self.version:
                shutil.rmtree(old)

    def collect(self) -> Episodes:
        """The episodes of the learners in the next matches. Raises UserCodeError where the game fails, DataError for a
        learner's folder that cannot be read, ResourceError without workers."""
        numbers = range(self.begun, self.begun + self.matches)
        tickets = [MatchTicket(number=number, players=tuple(self.seating.draw(number))) for number in numbers]
        self.begun += self.matches
        waiting = [tickets[first : first + self.block] for first in range(0, len(tickets), self.block)]
        pieces: list[Episodes] = []
        ledger = BlockLedger(blocks=[self._block(part) for part in waiting])
        self.runner.run(ledger)
        results = ledger.in_order()
        for place, block in enumerate(ledger.blocks):
            while (unreadable := results[place].unreadable) is not None:
                again = BlockLedger(blocks=[self._without(block, unreadable, results[place].fault)])
                self.runner.run(again)
                block, results[place] = again.blocks[0], again.results[block.number]
            if results[place].fault:
                raise UserCodeError(results[place].fault)
        for result in results:
            for match in result.played:
                self.seating.record(match.players, np.array(match.returns))
            if result.episodes is not None:
                pieces.append(result.episodes)
        played = [match for result in results for match in result.played]
        if self.log is not None:
            self.log.add_matches(self.version, played)
        self.counts = {
            "match/ended": float(len(played)),
            "match/steps": float(np.mean([match.steps for match in played])),
            "match/blocks_lost": float(ledger.lost),
            "match/blocks_duplicate": float(ledger.duplicates),
            "match/blocks_refused": float(ledger.refused),
        }
        episodes = concatenate(pieces)
        assert episodes.played_by is not None
        self.stats.add(episodes.take(np.flatnonzero(episodes.played_by == LEARNER)))
        return episodes

    def _block(self, tickets: Sequence[MatchTicket]) -> MatchBlock:
        numbers = sorted({player for ticket in tickets for player in ticket.players})
        specs = {one: self.specs[one] for one in numbers if one in self.specs}
        if self.pool is not None:
            specs |= {one: self.pool.spec(one) for one in numbers if one not in specs}
        learners = {one: self.version for one in numbers if one in self.learners}
        return MatchBlock(number=tickets[0].number, tickets=tickets, players=specs, learners=learners)

    def _without(self, block: MatchBlock, player: int, fault: str) -> MatchBlock:
        """The block with other opponents in the place of one that cannot be read."""
        if self.pool is None or player in self.learners:
            raise DataError(fault)
        self.pool.retire(player, fault)
        tickets = [
            MatchTicket(number=one.number, players=tuple(self.pool.draw(one.number))) if player in one.players else one
            for one in block.tickets
        ]
        return self._block(tickets)

    def metrics(self) -> Metrics:
        return {**self.stats.pop_metrics(), **self.counts, **self.seating.metrics()}

    def state(self) -> State:
        return {"version": self.version, "begun": self.begun, "seating": self.seating.state()}

    def restore(self, state: State) -> None:
        self.version, self.begun = integer(state, "version") - 1, integer(state, "begun")
        self.seating.restore(substate(state, "seating"))
        if self.log is not None:
            self.log.forget_after(self.version + 1, first_match=self.begun)

    def close(self) -> None:
        """End the workers, and close the record."""
        self.runner.close()
        if self.log is not None:
            self.log.close()


def open_runner(env: Any, seed: int, workers: WorkersConfig) -> BlockRunner:  # noqa: ANN401 - SeatsConfig
    """The runner that a config asks for; nothing is started before the first block."""
    if not workers.count:
        return InlineBlocks(player=BlockPlayer(env=env, seed=seed))
    if workers.on_ray:
        return RayBlocks(
            env=env,
            seed=seed,
            count=workers.count,
            connect=lambda cores: connect_to_ray(os.environ.get(ADDRESS_VARIABLE) or "local", cpus=cores),
        )
    return ProcessBlocks(env=env, seed=seed, count=workers.count, patience_s=workers.patience_s)
