"""Matchmaking and difficulty from Python: `from hone.api import match`.

`match.pair(waiting, ratings)` pairs those who wait, `match.open_ratings(file)` opens ratings that survive a restart,
and `match.Difficulty(target=0.65)` chooses the next level of each player.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from hone.core.clock import SystemClock
from hone.decide.match.difficulty import Difficulty
from hone.decide.match.page import write_match_page
from hone.decide.match.pairing import Match, MatchQueue, Pairing, PairingRules, WaitingParty
from hone.decide.match.pairing import pair as pair_parties
from hone.decide.match.rating_store import GameResult, RatingStore, suspected_smurfs
from hone.estimators.ratings import Elo, Glicko2, Rating, RatingSystem, WengLin

__all__ = [
    "Difficulty",
    "Elo",
    "GameResult",
    "Glicko2",
    "Match",
    "MatchQueue",
    "Pairing",
    "PairingRules",
    "Rating",
    "RatingStore",
    "WaitingParty",
    "WengLin",
    "open_ratings",
    "pair",
    "suspected_smurfs",
    "write_match_page",
]


def pair(
    waiting: Mapping[str, float] | Sequence[WaitingParty],
    ratings: Mapping[str, Rating] | RatingStore,
    *,
    max_wait_s: float = 30.0,
    rules: PairingRules | None = None,
    now_s: float | None = None,
) -> Pairing:
    """The best matches of those who wait, and who is left.

    `waiting`: seconds that each player has waited, or parties whose waits began by the clock of `now_s` (None: seconds
    since the epoch). `ratings`: those of the players, or an open store. `rules` replaces `max_wait_s` by more: team
    size, latency, weights. Raises DataError for a player who waits twice, and for a party that no team can hold.

    >>> tonight = pair({"ada": 2.0, "bob": 9.0, "eve": 4.0}, {"ada": Rating(31, 2), "bob": Rating(19, 2)})
    >>> [match.players for match in tonight.matches], [party.players for party in tonight.waiting]
    ([(('bob',), ('eve',))], [('ada',)])
    """
    now_s = SystemClock().now_s() if now_s is None else now_s
    if isinstance(waiting, Mapping):
        waiting = [WaitingParty(players=(name,), since_s=now_s - waited) for name, waited in waiting.items()]
    system: RatingSystem = WengLin()
    if isinstance(ratings, RatingStore):
        system = ratings.system
        ratings = ratings.ratings([name for party in waiting for name in party.players])
    chosen = rules or PairingRules(max_wait_s=max_wait_s)
    return pair_parties(waiting, ratings, now_s=now_s, rules=chosen, system=system)


def open_ratings(file: str | Path, system: RatingSystem | None = None, *, period_s: float = 0.0) -> RatingStore:
    """Open or make a file of ratings; `system` (Weng-Lin unless given) and `period_s` must be those that it was made
    with. Raises DataError otherwise, ResourceError where no file can be written."""
    return RatingStore.open(Path(file), system or WengLin(), period_s=period_s)
