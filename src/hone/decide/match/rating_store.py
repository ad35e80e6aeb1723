"""Ratings that survive a restart: a SQLite file of players and of the games that were counted.

A game is one transaction: its ratings are read, updated and written together with its identity, so that a game that is
sent twice counts once and a kill in the middle leaves it uncounted. The rating system's settings are in the file, and a
store is opened with the same ones or not at all.
"""

import ast
import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import NormalDist
from typing import Final, cast

import numpy as np

from hone.core.errors import DataError, ErrorCollector, ResourceError
from hone.estimators.ratings import Elo, Glicko2, Rating, RatingSystem, WengLin, fit_ratings

_TABLES: Final = """
create table if not exists settings (name text primary key, value text not null) without rowid;
create table if not exists players (
    name text primary key, mean real not null, deviation real not null, volatility real not null,
    games integer not null, last_s real not null) without rowid;
create table if not exists games (id text primary key, at_s real not null, result text not null) without rowid;
"""
_WAIT_S: Final = 30.0
_ROWS: Final = 500
"""Players asked for in one statement."""
_SYSTEMS: Final[dict[str, Callable[..., RatingSystem]]] = {"WengLin": WengLin, "Elo": Elo, "Glicko2": Glicko2}
MOST_FITTED: Final = 4000
"""Players that are fitted together: a table of their pairs is inverted, of 128 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GameResult:
    """A game that ended."""

    id: str
    """Identity: a result that is sent again is the same."""
    teams: tuple[tuple[str, ...], ...]
    ranks: tuple[float, ...]
    """Place of each team, the lowest the best; equal ones are a draw."""
    at_s: float
    """Seconds since the epoch, by the game server's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RatedPlayer:
    """A player as the store knows them."""

    name: str
    rating: Rating
    games: int


class RatingStore:
    """An open store; `RatingStore.open` makes it. Calls from several threads and processes follow one another."""

    def __init__(self, connection: sqlite3.Connection, path: Path, system: RatingSystem, period_s: float) -> None:
        self.path = path
        self.system = system
        self._period_s = period_s
        self._connection = connection
        self._lock = threading.Lock()

    @classmethod
    def open(cls, path: Path, system: RatingSystem, *, period_s: float = 0.0) -> "RatingStore":
        """Open or make a store; `period_s` seconds without a game are a rating period (0: absence changes nothing).

        Raises DataError for a file that is none and for other settings than the file's, ResourceError for a place
        where no file can be written.
        """
        try:
            connection = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise ResourceError(f"{path}: the ratings cannot be opened: {error}; name a folder that exists") from None
        own = f"{system!r}, period_s={period_s:g}"
        try:
            connection.execute("pragma journal_mode = wal")
            connection.execute("pragma synchronous = normal")
            connection.executescript(_TABLES)
            connection.execute("insert or ignore into settings values ('system', ?)", (own,))
            (kept,) = connection.execute("select value from settings where name = 'system'").fetchone()
        except sqlite3.DatabaseError as error:
            connection.close()
            raise DataError(f"{path} holds no ratings: {error}; name another file, or a copy from before") from None
        if kept != own:
            connection.close()
            raise DataError(f"{path} was rated with {kept}, not {own}: open it as it was, or rate the games anew")
        return cls(connection, path, system, period_s)

    @classmethod
    def reopen(cls, path: Path) -> "RatingStore":
        """Open a store with the settings that it was made with. Raises DataError for a file that holds no ratings."""
        if not path.is_file():
            raise DataError(f"{path}: there are no ratings; they are made by the program that records games")
        try:
            with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
                (kept,) = connection.execute("select value from settings where name = 'system'").fetchone()
            call, _, period = str(kept).rpartition(", period_s=")
            made = ast.parse(call, mode="eval").body
            if not isinstance(made, ast.Call) or not isinstance(made.func, ast.Name):
                raise ValueError(f"{call!r:.60} is no rating system")
            settings = {str(one.arg): ast.literal_eval(one.value) for one in made.keywords}
            system, period_s = _SYSTEMS[made.func.id](**settings), float(period)
        except (sqlite3.DatabaseError, SyntaxError, ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path} holds no ratings: {error}; name another file, or a copy from before") from None
        return cls.open(path, system, period_s=period_s)

    def record(self, games: Iterable[GameResult]) -> int:
        """Rate games in one transaction, in their order -> how many were new.

        Raises DataError with every game that is none; then nothing was counted. A game with a clock behind that of the
        players' last one counts as if no time had passed.
        """
        games = list(games)
        _check_games(games)
        with self._lock, self._connection:  # commits, or rolls back
            self._connection.execute("begin immediate")
            return sum(map(self._record_one, games))

    def _record_one(self, game: GameResult) -> bool:
        result = json.dumps([game.teams, game.ranks])
        fresh = self._connection.execute(
            "insert or ignore into games values (?, ?, ?)", (game.id, game.at_s, result)
        ).rowcount
        if not fresh:
            (kept,) = self._connection.execute("select result from games where id = ?", (game.id,)).fetchone()
            if kept != result:
                message = f"game {game.id!r} was counted as {kept}, and comes as {result}"
                raise DataError(f"{message}: give each game an id of its own; no game of this call was counted")
            return False
        names = [name for team in game.teams for name in team]
        before = self._rows(names)
        teams: list[list[Rating]] = []
        for team in game.teams:
            teams.append([])
            for name in team:
                rating, _, last_s = before.get(name, (self.system.initial, 0, game.at_s))
                if self._period_s:
                    rating = self.system.after_absence(rating, (game.at_s - last_s) / self._period_s)
                teams[-1].append(rating)
        after = [rating for team in self.system.rate(teams, game.ranks) for rating in team]
        rows: list[tuple[str, float, float, float, int, float]] = []
        for name, rating in zip(names, after, strict=True):
            _, count, last_s = before.get(name, (rating, 0, game.at_s))
            mean, deviation, volatility = rating
            rows.append((name, mean, deviation, volatility, count + 1, max(last_s, game.at_s)))
        self._connection.executemany("insert or replace into players values (?, ?, ?, ?, ?, ?)", rows)
        return True

    def _rows(self, names: Sequence[str]) -> dict[str, tuple[Rating, int, float]]:
        rows: dict[str, tuple[Rating, int, float]] = {}
        for start in range(0, len(names), _ROWS):
            page = names[start : start + _ROWS]
            marks = ",".join("?" * len(page))
            for name, mean, deviation, volatility, games, last_s in self._connection.execute(
                f"select * from players where name in ({marks})",
                page,
            ):
                rows[name] = Rating(mean, deviation, volatility), games, last_s
        return rows

    def ratings(self, names: Sequence[str], *, now_s: float | None = None) -> dict[str, Rating]:
        """Ratings of players, the initial one for those without a game; at `now_s`, after their absence until then."""
        with self._lock:
            rows = self._rows(names)
        result: dict[str, Rating] = {}
        for name in names:
            rating, _, last_s = rows.get(name, (self.system.initial, 0, 0.0))
            if now_s is not None and self._period_s and name in rows:
                rating = self.system.after_absence(rating, (now_s - last_s) / self._period_s)
            result[name] = rating
        return result

    def players(self) -> list[RatedPlayer]:
        """All players who have played, by name."""
        with self._lock:
            rows = self._connection.execute(
                "select name, mean, deviation, volatility, games from players order by name"
            )
            return [RatedPlayer(name=name, rating=Rating(*rating), games=games) for name, *rating, games in rows]

    def fitted(self, *, since_s: float = 0.0) -> dict[str, Rating]:
        """Ratings of all players of the counted games since a time, fitted to all of them at once.

        A game of more than two teams is one of each against each, as if they did not depend on each other: its players'
        deviations are too small. Raises DataError for another system than the logistic Weng-Lin, whose model it is, and
        for more than `MOST_FITTED` players.
        """
        if not isinstance(self.system, WengLin) or self.system.form != "logistic":
            raise DataError(
                f"{self.path} is rated by {self.system!r}: a fit has the model of WengLin in its logistic form; open "
                "another file with that system, and record the games there"
            )
        with self._lock:
            games = self._connection.execute("select result from games where at_s >= ?", (since_s,)).fetchall()
        duels: list[tuple[Sequence[str], Sequence[str], float]] = []
        for (result,) in games:
            teams, ranks = cast("tuple[list[list[str]], list[float]]", json.loads(result))
            for (one, rank), (other, others) in combinations(zip(teams, ranks, strict=True), 2):
                duels.append((one, other, 0.5 * (1 + (rank < others) - (rank > others))))
        names = sorted({name for duel in duels for side in duel[:2] for name in side})
        if len(names) > MOST_FITTED:
            raise DataError(f"{self.path}: {len(names)} players, at most {MOST_FITTED} are fitted: name a later time")
        numbers = {name: number for number, name in enumerate(names)}
        largest = max((len(side) for duel in duels for side in duel[:2]), default=1)
        members = np.full((len(duels), 2, largest), -1, np.int64)
        for row, duel in enumerate(duels):
            for place, side in enumerate(duel[:2]):
                members[row, place, : len(side)] = [numbers[name] for name in side]
        rows = fit_ratings(self.system, len(names), members, np.array([score for *_, score in duels], np.float64))
        return {name: Rating(*row) for name, row in zip(names, rows.tolist(), strict=True)}

    def replace(self, ratings: Mapping[str, Rating]) -> None:
        """Set ratings of players who have played, in one transaction; later games move them as any. Their numbers of
        games, and the times of their last ones, stay."""
        with self._lock, self._connection:
            self._connection.execute("begin immediate")
            self._connection.executemany(
                "update players set mean = ?, deviation = ?, volatility = ? where name = ?",
                [(*rating, name) for name, rating in ratings.items()],
            )

    def close(self) -> None:
        """Close the file."""
        with self._lock, closing(self._connection):
            pass


def _check_games(games: Sequence[GameResult]) -> None:
    faults = ErrorCollector(DataError)
    for game in games:
        names = [name for team in game.teams for name in team]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            faults.add(f"game {game.id!r}: player {twice[0]!r} stands in it twice; nothing of this call was counted")
        if len(game.teams) < 2 or len(game.teams) != len(game.ranks) or not all(game.teams):
            faults.add(
                f"game {game.id!r}: {len(game.teams)} teams, {len(game.ranks)} ranks; two teams or more, none empty, "
                "and a rank for each; nothing of this call was counted"
            )
    faults.raise_if_any()


def suspected_smurfs(
    players: Iterable[RatedPlayer], *, most_games: int = 10, quantile: float = 0.85, certainty: float = 0.75
) -> list[str]:
    """New players who are stronger than they should be: strong ones under a new name.

    A player of at most `most_games` games is suspected if P(skill > the `quantile` of the settled players' means) is at
    least `certainty`, with a normal skill about the mean. Settled are those with more games. Empty without any.
    """
    everybody = list(players)
    settled = sorted(player.rating.mean for player in everybody if player.games > most_games)
    if not settled:
        return []
    bar = settled[min(int(quantile * len(settled)), len(settled) - 1)]
    needed = NormalDist().inv_cdf(certainty)
    return [
        player.name
        for player in everybody
        if 0 < player.games <= most_games and player.rating.mean - needed * player.rating.deviation >= bar
    ]
