"""Whole matches, played from their tickets: episodes of the seats that learn, and the results of all.

A ticket is the number of a match and the player of each seat. What is played is a function of the tickets of a block,
the players and the seed, so that it does not matter which process plays a block, or how often it is begun again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hone.control.seats.game import SeatGame, SeatStep
from hone.control.seats.matches import RunningMatch, SeatLayout, next_turn, run_game_code
from hone.control.seats.players import Player
from hone.core.episodes import Episodes
from hone.core.ragged import offsets_of
from hone.core.random import generator, key


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchTicket:
    """A match that is to be played."""

    number: int
    players: tuple[int, ...]
    """Number of the player of each seat."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedMatch:
    """A match that was played."""

    number: int
    players: tuple[int, ...]
    returns: tuple[float, ...]
    steps: int


@dataclass(slots=True)
class _SeatRecord:
    """Decisions of one seat of a match, row by row."""

    rows: list[tuple[Any, ...]] = field(default_factory=list[tuple[Any, ...]])
    rewards: list[float] = field(default_factory=list[float])
    final: NDArray[np.float32] | None = None
    """What it saw at its end."""
    truncated: bool = False


@dataclass(frozen=True, kw_only=True)
class MatchTable:
    """Games that are played side by side, for blocks of matches."""

    name: str
    games: Sequence[SeatGame]
    layout: SeatLayout
    max_steps: int
    seed: int

    def play(
        self, tickets: Sequence[MatchTicket], players: Mapping[int, Player], learners: Mapping[int, int]
    ) -> tuple[Episodes | None, list[PlayedMatch]]:
        """Play a block of at most as many matches as there are games. Episodes are those of the seats whose player is
        in `learners` (player -> version of its policy), in the order of matches and seats, with `played_by`; None
        without any. Raises UserCodeError where the game fails."""
        return run_game_code(self.name, lambda: self._play(tickets, players, learners))

    def _play(
        self, tickets: Sequence[MatchTicket], players: Mapping[int, Player], learners: Mapping[int, int]
    ) -> tuple[Episodes | None, list[PlayedMatch]]:
        running: list[RunningMatch] = []
        for game, ticket in zip(self.games, tickets, strict=False):
            match = RunningMatch(game=game, layout=self.layout, max_steps=self.max_steps)
            match.begin(ticket.number, key(self.seed, "match", ticket.number) & 0x3FFFFFFF, ticket.players)
            running.append(match)
        records = {
            (match.number, seat): _SeatRecord()
            for match in running
            for seat, player in enumerate(match.players)
            if player in learners
        }
        waiting, tick = list(running), 0
        while waiting:
            tick += 1
            moves = iter(self._decide(waiting, tick, players, records))
            for match in waiting:
                step = match.play({seat: next(moves) for seat in match.movers})
                self._note_step(match, step, records)
            waiting = [match for match in waiting if match.movers]
        played = [
            PlayedMatch(
                number=match.number,
                players=match.players,
                returns=tuple(match.returns.tolist()),
                steps=len(match.moves),
            )
            for match in running
        ]
        return self._episodes(running, {place: one for place, one in records.items() if one.rows}, learners), played

    def _decide(
        self,
        waiting: Sequence[RunningMatch],
        tick: int,
        players: Mapping[int, Player],
        records: Mapping[tuple[int, int], _SeatRecord],
    ) -> list[Any]:
        """The actions of all seats that are to move, by one call of each player."""
        turn, places = next_turn(waiting)
        who = np.array([waiting[match].players[seat] for match, seat in places])
        chosen: list[Any] = [None] * len(who)
        for player in np.unique(who).tolist():
            rows = np.flatnonzero(who == player)
            draws = generator(self.seed, "moves", waiting[0].number, tick, player)
            part = turn.take(rows)
            decided = players[player].decide(part, draws)
            for place, row in enumerate(rows.tolist()):
                chosen[row] = decided.chosen[place]
                match, seat = places[row]
                if (record := records.get((waiting[match].number, seat))) is not None:
                    search = None if decided.search_policy is None else decided.search_policy[place]
                    mask = None if part.mask is None else part.mask[place]
                    record.rows.append((part.seen[place], chosen[row], decided.logp[place], mask, search))
                    record.rewards.append(0.0)
        return chosen

    def _note_step(self, match: RunningMatch, step: SeatStep, records: Mapping[tuple[int, int], _SeatRecord]) -> None:
        """Credit rewards to the last decision of each seat, and note the seats that have ended."""
        for seat, reward in step.rewards.items():
            record = records.get((match.number, seat))
            if record is not None and record.rewards:
                record.rewards[-1] += reward
        for seat in range(len(self.layout.seats)) if not match.movers else [*step.terminated, *step.truncated]:
            record = records.get((match.number, seat))
            if record is not None and record.final is None:
                record.final = self.layout.row(seat, match.game.observe(seat).seen)
                record.truncated = seat in step.truncated

    def _episodes(
        self,
        running: Sequence[RunningMatch],
        records: Mapping[tuple[int, int], _SeatRecord],
        learners: Mapping[int, int],
    ) -> Episodes | None:
        if not records:
            return None
        matches = {match.number: match for match in running}
        order = sorted(records)
        kept = [records[place] for place in order]
        seen, chosen, logp, masks, searches = zip(*(row for record in kept for row in record.rows), strict=True)
        lengths = np.array([len(record.rows) for record in kept])
        players = np.array([matches[number].players[seat] for number, seat in order])
        numbers, seats = np.array(order).T
        truncated = np.array([record.truncated for record in kept])
        mask = None if masks[0] is None else np.stack(masks)
        return Episodes(
            offsets=offsets_of(lengths),
            seen=np.stack(seen),
            chosen=np.array(chosen),
            logp=np.array(logp, np.float32),
            version=np.repeat([learners[player] for player in players.tolist()], lengths).astype(np.int32),
            reward=np.array([reward for record in kept for reward in record.rewards], np.float32),
            group=numbers * len(self.layout.seats) + seats,
            terminated=~truncated,
            truncated=truncated,
            final=np.stack([record.final for record in kept if record.final is not None]),
            score=np.array([matches[number].returns[seat] for number, seat in order]),
            mask=mask,
            final_mask=None if mask is None else np.ones((len(order), mask.shape[1]), np.bool_),
            search_policy=None if searches[0] is None else np.stack(searches),
            seat=seats.astype(np.int16),
            match=numbers,
            played_by=players.astype(np.int32),
        )
