"""Matches as episodes: each seat of a match is an episode of its own.

A decision is a row of the seat that took it. Its row is closed when the same seat is next to move, or has ended, and
its reward is all that the seat got in between. So turns may be uneven and agents may end at different times, without
rows that only fill a gap. A rollout ends when enough rows of the learner are closed; decisions whose consequences are
yet to come wait for the next one, with the log-probability of the policy that took them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from hone.control.environments.world import VectorActor
from hone.control.networks.mlp import Floats
from hone.control.seats.adapters import game_maker
from hone.control.seats.game import Array, SeatsConfig
from hone.control.seats.matches import RunningMatch, SeatLayout, Turn, next_turn, run_game_code
from hone.control.seats.players import Player, RandomPlayer
from hone.core.credit import Metrics
from hone.core.episodes import Episodes
from hone.core.errors import UserCodeError
from hone.core.ragged import Ints, offsets_of
from hone.core.random import generator, key
from hone.core.state import State, array, integer, substate

LEARNER: Final = -1
"""Number of the learner among players; those of others are 0 and more."""
_NOISE_BLOCK = 1024
_CHECKED_STEPS = 500
"""Steps of a match of random players before the run."""


class Seating(Protocol):
    """Who plays which seat of a match."""

    def draw(self, match: int) -> Sequence[int]:
        """Player of each seat of a match: `LEARNER`, or the number of another."""
        ...

    def player(self, number: int) -> Player:
        """A player that is not the learner."""
        ...

    def record(self, players: Sequence[int], returns: NDArray[np.float64]) -> None:
        """Take note of the returns `[S]` of a match that has ended."""
        ...

    def metrics(self) -> Metrics: ...

    def state(self) -> State: ...

    def restore(self, state: State) -> None: ...


@dataclass(frozen=True, slots=True)
class LearnerEverywhere:
    """The learner plays every seat."""

    seats: int

    def draw(self, match: int) -> Sequence[int]:
        del match
        return (LEARNER,) * self.seats

    def player(self, number: int) -> Player:
        raise AssertionError(f"player {number}: the learner plays every seat")

    def record(self, players: Sequence[int], returns: NDArray[np.float64]) -> None:
        del players, returns

    def metrics(self) -> Metrics:
        return {}

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None:
        del state


class NoiseBlocks:
    """Random numbers of a policy's decisions, one after another."""

    def __init__(self, actor: VectorActor, draws: np.random.Generator) -> None:
        self.actor, self.draws = actor, draws
        self.block, self.used = actor.noise(draws, (_NOISE_BLOCK,)), 0

    def take(self, count: int) -> Floats:
        """Numbers for `count` decisions."""
        if self.used + count > len(self.block):
            fresh = self.actor.noise(self.draws, (max(count, _NOISE_BLOCK),))
            self.block, self.used = np.concatenate([self.block[self.used :], fresh]), 0
        self.used += count
        return self.block[self.used - count : self.used]


@dataclass(frozen=True, slots=True, kw_only=True)
class _EndedEpisode:
    """End of a seat's episode."""

    terminated: bool
    truncated: bool
    final: Floats
    final_state: Floats | None
    score: float


class _Rows:
    """Decisions in the order in which they were taken, in columns that grow."""

    def __init__(self, layout: SeatLayout, state_size: int) -> None:
        actions = np.float32 if layout.action_shape else np.int64
        self.columns: dict[str, NDArray[Any]] = {
            "episode": np.empty(0, np.int64),
            "slot": np.empty(0, np.int64),
            "match": np.empty(0, np.int64),
            "player": np.empty(0, np.int32),
            "seen": np.empty((0, layout.row_size), np.float32),
            "chosen": np.empty((0, *layout.action_shape), actions),
            "logp": np.empty(0, np.float32),
            "version": np.empty(0, np.int32),
            "reward": np.empty(0, np.float64),
            "state": np.empty((0, state_size), np.float32),
            "mask": np.empty((0, layout.actions.count if layout.masked else 0), np.bool_),  # pyright: ignore[reportAttributeAccessIssue]
        }
        self.count = 0

    def append(self, count: int, values: Mapping[str, Array]) -> Ints:
        """Numbers of `count` new rows."""
        rows = np.arange(self.count, self.count + count)
        for name, column in self.columns.items():
            if self.count + count > len(column):
                grown = np.empty((2 * (self.count + count), *column.shape[1:]), column.dtype)
                grown[: self.count] = column[: self.count]
                self.columns[name] = column = grown
            column[rows] = values[name]
        self.count += count
        return rows

    def keep(self, rows: Ints) -> None:
        """Forget all rows but these, which move to the front."""
        for column in self.columns.values():
            column[: len(rows)] = column[rows]
        self.count = len(rows)

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self.columns[name][: self.count]


@dataclass(kw_only=True)
class MatchWorld:
    """Many matches of one game at a time."""

    name: str
    matches: Sequence[RunningMatch]
    layout: SeatLayout
    seed: int
    inexact_reason: str | None = None
    """Reason why a resumed run begins new matches; None where it replays those that were running."""
    warnings: list[str] = field(default_factory=list[str])
    rollouts: int = 0
    begun: int = 0
    """Matches begun."""
    started: bool = False
    pending_notices: list[str] = field(default_factory=list[str])

    def pop_notices(self) -> list[str]:
        """Notices for the user since the last call, one line each."""
        notices, self.pending_notices = self.pending_notices, []
        return notices

    def close(self) -> None:
        for match in self.matches:
            match.game.close()


@dataclass(kw_only=True)
class SeatWorld(MatchWorld):
    """Matches of a game whose seats are filled by `seating`. Make it with `open_seat_world`."""

    decisions: int
    """Rows of the learner per rollout, at least."""
    seating: Seating
    whole_state: bool = False
    """Whether the state of the whole match is recorded, for a critic that sees everything."""
    episodes: int = 0
    """Episodes begun."""

    def __post_init__(self) -> None:
        self.seat_count = len(self.layout.seats)
        slots = len(self.matches) * self.seat_count
        self.state_size = self.whole_state_rows(self.matches[0], [0]).shape[1] if self.whole_state else 0
        self.rows = _Rows(self.layout, self.state_size)
        self.open_row = np.full(slots, -1)
        """Row of the decision of each slot (match, seat) whose consequences are yet to come; -1: none."""
        self.episode_of = np.full(slots, -1)
        self.ended: dict[int, _EndedEpisode] = {}
        self.closed = 0
        """Closed rows of the learner."""
        self.tick = 0
        self.match_steps: list[int] = []
        """Lengths of the matches that ended."""

    def rollout(self, actor: VectorActor) -> Episodes:
        """Pieces of episodes of all seats with at least `decisions` rows of the learner; `played_by` tells its episodes
        from those of other players, and `match` which belong together.

        Raises UserCodeError where the game fails or breaks its contract.
        """
        return run_game_code(self.name, lambda: self._rollout(actor))

    def _rollout(self, actor: VectorActor) -> Episodes:
        if not self.started:  # not before the seating is complete: it draws the players of the first matches
            self.started = True
            for match in self.matches:
                self._begin(match)
        self.rollouts, self.tick = self.rollouts + 1, 0
        noise = NoiseBlocks(actor, generator(self.seed, "act", self.rollouts))
        while self.closed < self.decisions:
            self.tick += 1
            self._advance(actor, noise)
        return self._pieces()

    # ------------------------------------------------------------------------------------------------------ one tick

    def _begin(self, match: RunningMatch) -> None:
        number, self.begun = self.begun, self.begun + 1
        match.begin(number, key(self.seed, "match", number) & 0x3FFFFFFF, self.seating.draw(number))

    def _advance(self, actor: VectorActor, noise: NoiseBlocks) -> None:
        """One step of every match: one call of each policy, then the games."""
        turn, places = next_turn(self.matches)
        number = np.array([place[0] for place in places], np.int64)
        slots = number * self.seat_count + turn.seats
        player = np.array([self.matches[match].players[seat] for match, seat in places], np.int64)
        chosen, logp = self._decide(turn, player, actor, noise)
        fresh = np.flatnonzero(self.episode_of[slots] < 0)
        self.episode_of[slots[fresh]] = self.episodes + np.arange(len(fresh))
        self.episodes += len(fresh)
        states: Floats = np.zeros((len(slots), 0), np.float32)
        if self.whole_state:
            states = np.concatenate([self.whole_state_rows(match, match.movers) for match in self.matches])
        columns: dict[str, Array] = {
            "episode": self.episode_of[slots],
            "slot": slots,
            "match": np.array([match.number for match in self.matches])[number],
            "player": player,
            "seen": turn.seen,
            "chosen": chosen,
            "logp": logp,
            "version": np.where(player == LEARNER, actor.version, player),
            "reward": np.zeros(len(slots)),
            "state": states,
            "mask": np.zeros((len(slots), 0), np.bool_) if turn.mask is None else turn.mask,
        }
        self.open_row[slots] = self.rows.append(len(slots), columns)
        at = 0
        for place, match in enumerate(self.matches):
            count = len(match.movers)
            self._play(place, match, chosen[at : at + count])
            at += count

    def _decide(self, turn: Turn, player: Ints, actor: VectorActor, noise: NoiseBlocks) -> tuple[Array, Floats]:
        """Actions `[m, *action]`, and their log-probabilities `[m]` where the learner acts (NaN elsewhere)."""
        if (player == LEARNER).all():
            return actor.decide(turn.seen, noise.take(len(player)), turn.mask)
        chosen = np.zeros_like(self.rows.columns["chosen"], shape=(len(player), *self.layout.action_shape))
        logp = np.full(len(player), np.nan, np.float32)
        draws = generator(self.seed, "others", self.rollouts, self.tick)
        for who in np.unique(player).tolist():
            rows = np.flatnonzero(player == who)
            part = turn.take(rows)
            if who == LEARNER:
                chosen[rows], logp[rows] = actor.decide(part.seen, noise.take(len(rows)), part.mask)
            else:
                chosen[rows] = self.seating.player(who).choose(part, draws)
        return chosen, logp

    def _play(self, place: int, match: RunningMatch, chosen: Array) -> None:
        """Play a match's actions, credit their rewards and close the rows whose consequences are known."""
        step = match.play(dict(zip(match.movers, chosen, strict=True)))
        first, reward = place * self.seat_count, self.rows.columns["reward"]
        for seat, paid in step.rewards.items():
            if (row := self.open_row[first + seat]) >= 0:
                reward[row] += paid
        for seat in step.terminated:
            self._end(match, first, seat, terminated=True)
        for seat in step.truncated:
            self._end(match, first, seat, terminated=False)
        for seat in match.movers:
            self._close(first + seat)
        if not match.movers:
            for seat in range(self.seat_count):
                self._end(match, first, seat, terminated=True)  # a match that is over leaves no seat behind
            self.seating.record(match.players, match.returns)
            self.match_steps.append(len(match.moves))
            self._begin(match)

    def _close(self, slot: int) -> None:
        if (row := self.open_row[slot]) >= 0:
            self.closed += int(self.rows.columns["player"][row] == LEARNER)
            self.open_row[slot] = -1

    def _end(self, match: RunningMatch, first: int, seat: int, *, terminated: bool) -> None:
        """End the episode of a seat, if it has one."""
        slot = first + seat
        episode, self.episode_of[slot] = int(self.episode_of[slot]), -1
        if episode < 0:
            return
        self._close(slot)
        self.ended[episode] = _EndedEpisode(
            terminated=terminated,
            truncated=not terminated,
            final=self.layout.row(seat, match.game.observe(seat).seen),
            final_state=self.whole_state_rows(match, [seat])[0] if self.whole_state else None,
            score=float(match.returns[seat]),
        )

    def whole_state_rows(self, match: RunningMatch, seats: Sequence[int]) -> Floats:
        """`[seats, Z]` state of a whole match as the critic of each of `seats` reads it, with the seat, one-hot."""
        if not len(seats):
            return np.zeros((0, self.state_size), np.float32)
        marks = np.eye(len(self.layout.seats), dtype=np.float32)[list(seats)]
        own = match.whole_state()
        shared = np.broadcast_to(own, (len(seats), len(own)))
        return np.concatenate([shared, marks], axis=1)

    # ------------------------------------------------------------------------------------------------------ episodes

    def _pieces(self) -> Episodes:
        """The closed rows as pieces of episodes, in the order of their numbers; open rows stay."""
        rows, waiting = self.rows, self.open_row[self.open_row >= 0]
        closed = np.ones(rows.count, np.bool_)
        closed[waiting] = False
        which = np.flatnonzero(closed)
        which = which[np.argsort(rows["episode"][which], kind="stable")]
        numbers = rows["episode"][which]
        last = np.flatnonzero(np.append(numbers[1:] != numbers[:-1], True))
        ends = [self._end_of(int(numbers[row]), int(rows["slot"][which[row]])) for row in last]
        places = which[last]
        masks = rows["mask"][which] if self.layout.masked else None
        finals = [end.final_state for end in ends if end.final_state is not None]
        episodes = Episodes(
            offsets=offsets_of(np.diff(last, prepend=-1)),
            seen=rows["seen"][which],
            chosen=rows["chosen"][which],
            logp=rows["logp"][which],
            version=rows["version"][which],
            reward=rows["reward"][which].astype(np.float32),
            group=numbers[last],
            terminated=np.array([end.terminated for end in ends]),
            truncated=np.array([end.truncated for end in ends]),
            final=np.stack([end.final for end in ends]),
            score=np.array([end.score for end in ends]),
            mask=masks,
            final_mask=None if masks is None else np.ones((len(ends), masks.shape[1]), np.bool_),
            state=rows["state"][which] if self.whole_state else None,
            final_state=np.stack(finals) if finals else None,
            seat=(rows["slot"][places] % self.seat_count).astype(np.int16),
            match=rows["match"][places],
            played_by=rows["player"][places].astype(np.int32),
        )
        waiting = np.sort(waiting)
        self.open_row[rows["slot"][waiting]] = np.arange(len(waiting))
        rows.keep(waiting)
        self.ended, self.closed = {}, 0
        return episodes

    def _end_of(self, episode: int, slot: int) -> _EndedEpisode:
        """Where an episode stands: ended, or with the view of the decision that follows its last closed row."""
        if episode in self.ended:
            return self.ended[episode]
        place, seat = divmod(slot, self.seat_count)
        match, row = self.matches[place], int(self.open_row[slot])
        state: Floats | None = None
        if row >= 0:
            final = self.rows.columns["seen"][row].copy()
            state = self.rows.columns["state"][row].copy() if self.whole_state else None
        else:
            final = self.layout.row(seat, match.game.observe(seat).seen)
            state = self.whole_state_rows(match, [seat])[0] if self.whole_state else None
        return _EndedEpisode(
            terminated=False, truncated=False, final=final, final_state=state, score=float(match.returns[seat])
        )

    def metrics(self) -> Metrics:
        """Matches that ended since the last call and their mean length, and what the seating tells."""
        steps, self.match_steps = self.match_steps, []
        lengths = {"match/steps": float(np.mean(steps))} if steps else {}
        return {"match/ended": float(len(steps)), **lengths, **self.seating.metrics()}

    # --------------------------------------------------------------------------------------------------------- state

    def state(self) -> State:
        """Seeds and moves of the running matches, which are played again, and the rows that are open."""
        running: State = {str(place): match_state(match) for place, match in enumerate(self.matches)}
        waiting = np.sort(self.open_row[self.open_row >= 0])
        return {
            "rollouts": self.rollouts,
            "begun": self.begun,
            "episodes": self.episodes,
            "episode_of": self.episode_of.copy(),
            "running": running if self.started and self.inexact_reason is None else {},
            "rows": {name: column[waiting] for name, column in self.rows.columns.items()},
            "view": self._first_view(),
            "seating": self.seating.state(),
        }

    def _first_view(self) -> Floats:
        """What the seats of all matches see now, to tell whether a replayed match is the same."""
        if not self.started:
            return np.zeros((0, self.layout.row_size), np.float32)
        return next_turn(self.matches)[0].seen

    def restore(self, state: State) -> None:
        """Play the running matches again; where a game cannot be repeated, new ones begin, with a notice."""
        self.rollouts, self.begun = integer(state, "rollouts"), integer(state, "begun")
        self.episodes = integer(state, "episodes")
        self.seating.restore(substate(state, "seating"))
        running, saved = substate(state, "running"), substate(state, "rows")
        self.rows, self.ended, self.closed = _Rows(self.layout, self.state_size), {}, 0
        self.open_row[:], self.episode_of[:], self.started = -1, -1, False
        if not running or self.inexact_reason is not None:
            return
        self.started = replay_matches(self.matches, running)
        if not (self.started and np.array_equal(self._first_view(), array(state, "view"))):
            self.started = False
            self.pending_notices.append(f"{self.name}: replayed matches differ, so the resumed run begins new ones")
            return
        self.episode_of = array(state, "episode_of").astype(np.int64)
        columns = {name: array(saved, name) for name in self.rows.columns}
        rows = self.rows.append(len(columns["slot"]), columns)
        self.open_row[columns["slot"].astype(np.int64)] = rows


def match_state(match: RunningMatch) -> State:
    """Seed, players and moves of a running match."""
    steps = [len(actions) for actions in match.moves]
    moves = [(seat, action) for actions in match.moves for seat, action in actions.items()]
    shape = match.layout.action_shape
    return {
        "number": match.number,
        "seed": match.seed,
        "players": np.array(match.players, np.int64),
        "steps": np.array(steps, np.int64),
        "seats": np.array([seat for seat, _ in moves], np.int64),
        "actions": np.stack([action for _, action in moves]) if moves else np.zeros((0, *shape), np.int64),
    }


def replay_matches(matches: Sequence[RunningMatch], running: State) -> bool:
    """Play the saved moves of all matches again; False where a game does not take them any more."""
    try:
        for place, match in enumerate(matches):
            saved = substate(running, str(place))
            seats, actions = iter(array(saved, "seats").tolist()), iter(array(saved, "actions"))
            moves = [{next(seats): next(actions) for _ in range(count)} for count in array(saved, "steps").tolist()]
            number, seed, players = integer(saved, "number"), integer(saved, "seed"), array(saved, "players").tolist()
            run_game_code("a resume", partial(match.replay, number, seed, players, moves))
    except UserCodeError:
        return False
    return True


# -------------------------------------------------------------------------------------------------------------- opening


def open_seat_world(config: SeatsConfig, *, decisions: int, seed: int, whole_state: bool = False) -> SeatWorld:
    """Check and make the games. The learner plays every seat until the caller gives another `seating`. Raises as
    `open_matches`."""
    matches, reason = open_matches(config, seed)
    return SeatWorld(
        name=config.id,
        matches=matches,
        layout=matches[0].layout,
        decisions=decisions,
        seed=seed,
        seating=LearnerEverywhere(len(matches[0].layout.seats)),
        whole_state=whole_state,
        inexact_reason=reason,
        warnings=[] if reason is None else [f"{config.id}: a resume will begin new matches: {reason}"],
    )


def open_matches(config: SeatsConfig, seed: int) -> tuple[list[RunningMatch], str | None]:
    """Games that are checked and reset, and the reason why equal moves do not repeat a match; None where they do.

    Raises ConfigError and UserCodeError for a game that cannot be made or breaks its contract.
    """
    make = game_maker(config)

    def open_games() -> tuple[list[RunningMatch], str | None]:
        first = make()
        first.reset(seed)
        layout = SeatLayout.from_game(first, config.id)
        games = [first, *(make() for _ in range(config.num_envs - 1))]
        matches = [RunningMatch(game=game, layout=layout, max_steps=config.max_match_steps) for game in games]
        reason = _why_not_repeatable(matches[0], config, seed) if config.check else None
        for number, match in enumerate(matches):
            match.begin(number, seed, ())
        return matches, reason

    return run_game_code(config.id, open_games)


def _why_not_repeatable(match: RunningMatch, config: SeatsConfig, seed: int) -> str | None:
    """Play one match of random players twice -> the reason why its moves do not repeat it; None where they do."""
    trial = replace(match, max_steps=min(config.max_match_steps, _CHECKED_STEPS))
    first, again = list(_random_match(trial, seed)), list(_random_match(trial, seed))
    same = len(first) == len(again) and all(map(np.array_equal, first, again))
    return None if same else "the same seed and moves made another match"


def _random_match(match: RunningMatch, seed: int) -> Iterator[Array]:
    """Rows and returns of a match of random players."""
    player = RandomPlayer(match.layout)
    match.begin(0, seed, ())
    while match.movers:
        turn, _ = next_turn([match])
        if not np.isfinite(turn.seen).all():
            raise UserCodeError(f"step {len(match.moves)} of a match (seed {seed}): an observation is not finite")
        yield turn.seen
        chosen = player.choose(turn, generator(seed, "check", len(match.moves)))
        match.play(dict(zip(match.movers, chosen, strict=True)))
        yield match.returns.copy()
