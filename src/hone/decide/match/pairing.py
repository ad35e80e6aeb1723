"""Pairing of waiting players: windows that widen with the wait, parties, and an assignment that weighs objectives.

Belongs here: `pair`, a pure function of parties, ratings and the time, and `MatchQueue`, the bookkeeping of a queue
around it. Skill, latency and wait are weighed in one cost, and the pool is matched by an assignment that
`scipy.optimize.linear_sum_assignment` solves. Does not: ratings after a game (`rating_store`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from pydantic import Field

from hone.core.clock import Clock
from hone.core.config import Config
from hone.core.decisions import Floats, Ints
from hone.core.errors import DataError, ErrorCollector, ResourceError
from hone.estimators.ratings import Rating, RatingSystem, WengLin

_STAY: Final = 1e3
"""Cost of a team that stays in the queue, above any cost of a match: as many teams are matched as the windows allow."""
_FORBIDDEN: Final = 1e9
_NO_GAIN: Final = 1e-9
"""Least gain of an exchange, above the rounding of sums of costs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingParty:
    """Players who wait together and will play on one side."""

    players: tuple[str, ...]
    """Their names; the first one names the party."""
    since_s: float
    """When they began to wait, by the clock that `pair` is asked with."""
    latency_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """Seconds of a round trip to each region that the party can reach; empty: any region is as good."""


class PairingRules(Config):
    """Limits of matches, and weights of the objectives.

    A match costs skill * |p - 1/2| + latency * seconds / max_latency_s. A team that stays behind costs wait * (waited /
    max_wait_s) more than one that has just come, so that the newest stay.
    """

    max_wait_s: float = Field(default=30.0, gt=0)
    """After this wait any opponent will do: the window has reached 1/2."""
    team_size: int = Field(default=1, ge=1)
    """Players on each side."""
    window: float = Field(default=0.1, ge=0, le=0.5)
    """Largest imbalance |p - 1/2| of a match for players who have just come; grows linearly with the longer wait."""
    max_latency_s: float = Field(default=0.15, gt=0)
    """Longest round trip to the region of a match; no wait makes it longer."""
    skill: float = Field(default=1.0, ge=0, le=100)
    """Weight of the imbalance."""
    latency: float = Field(default=0.1, ge=0, le=100)
    """Weight of the round trip."""
    wait: float = Field(default=0.5, ge=0, le=100)
    """Weight of the time that those who stay behind have waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Two teams of parties that are to play."""

    teams: tuple[tuple[WaitingParty, ...], tuple[WaitingParty, ...]]
    expected_score: float
    """Expected score of the first team."""
    region: str
    """Region of the least latency for the worse team; empty: any."""

    @property
    def imbalance(self) -> float:
        """|p - 1/2|: 0 for equals."""
        return abs(self.expected_score - 0.5)

    @property
    def players(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of both teams."""
        first, second = (tuple(name for party in team for name in party.players) for team in self.teams)
        return first, second


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """Matches of a pool, and the parties that go on waiting."""

    matches: tuple[Match, ...]
    waiting: tuple[WaitingParty, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Team:
    parties: tuple[WaitingParty, ...]
    ratings: tuple[Rating, ...]
    waited_s: float
    latency_s: Floats
    """Latency of the farthest party to each region `[R]`."""


def pair(
    waiting: Sequence[WaitingParty],
    ratings: Mapping[str, Rating],
    *,
    now_s: float,
    rules: PairingRules | None = None,
    system: RatingSystem | None = None,
) -> Pairing:
    """The best matches of the parties that wait, and who is left. Pure.

    Players without a rating have the system's initial one. A wait that began in the future, by a clock that was set
    back, counts as none. Raises DataError for a player who waits twice, and for a party that no team can hold.
    """
    rules, system = rules or PairingRules(), system or WengLin()
    _check_parties(waiting, rules.team_size)
    regions = sorted({region for party in waiting for region in party.latency_s})
    made, alone = _teams(waiting, ratings, now_s, rules, system.initial, regions)
    if len(made) < 2:
        return Pairing(matches=(), waiting=(*alone, *(party for team in made for party in team.parties)))
    expected = system.expected_scores([team.ratings for team in made])
    cost, stay, region = _costs(made, expected, rules)
    pairs = best_matching(cost, stay)
    matches = tuple(
        Match(
            teams=(made[one].parties, made[other].parties), expected_score=float(expected[one, other]),
            region=regions[region[one, other]] if regions else "",
        )
        for one, other in pairs
    )  # fmt: skip
    matched = {number for both in pairs for number in both}
    left = (party for number, team in enumerate(made) if number not in matched for party in team.parties)
    return Pairing(matches=matches, waiting=(*alone, *left))


def _check_parties(waiting: Sequence[WaitingParty], team_size: int) -> None:
    faults, seen = ErrorCollector(DataError), dict[str, str]()
    for party in waiting:
        if not 1 <= len(party.players) <= team_size:
            faults.add(f"party {party.players} has {len(party.players)} players, and a team has {team_size}")
        for name in party.players:
            if name in seen:
                faults.add(f"player {name!r} waits twice, in the parties of {seen[name]!r} and {party.players[0]!r}")
            seen[name] = party.players[0]
    faults.raise_if_any()


def _teams(
    waiting: Sequence[WaitingParty],
    ratings: Mapping[str, Rating],
    now_s: float,
    rules: PairingRules,
    initial: Rating,
    regions: Sequence[str],
) -> tuple[list[_Team], list[WaitingParty]]:
    """Full teams, and parties for which no team-mates were left.

    Large parties choose first, those of one size by their wait: each takes the parties nearest in mean rating that fit
    and that share a region.
    """

    def distances(party: WaitingParty) -> Floats:
        reached = [party.latency_s.get(region, np.inf) for region in regions]
        return np.array(reached) if party.latency_s else np.zeros(len(regions))

    free = dict(enumerate(sorted(waiting, key=lambda party: (-len(party.players), party.since_s))))
    strength = {
        number: sum(ratings.get(name, initial).mean for name in party.players) / len(party.players)
        for number, party in free.items()
    }
    teams: list[_Team] = []
    alone: list[WaitingParty] = []
    while free:
        first, party = next(iter(free.items()))
        members, reach, room = [first], distances(party), rules.team_size - len(party.players)
        others = sorted(free, key=lambda number, about=strength[first]: abs(strength[number] - about)) if room else []
        for number in others:
            shared = np.maximum(reach, distances(free[number]))
            near = not regions or bool((shared <= rules.max_latency_s).any())
            if number != first and near and len(free[number].players) <= room:
                members.append(number)
                reach, room = shared, room - len(free[number].players)
        if room:
            alone.append(free.pop(first))
            continue
        parties = tuple(free.pop(number) for number in members)
        teams.append(
            _Team(
                parties=parties,
                ratings=tuple(ratings.get(name, initial) for party in parties for name in party.players),
                waited_s=max(0.0, now_s - min(party.since_s for party in parties)), latency_s=reach,
            )
        )  # fmt: skip
    return teams, alone


def _costs(teams: Sequence[_Team], expected: Floats, rules: PairingRules) -> tuple[Floats, Floats, Ints]:
    """Cost `[n, n]` of each match, prohibitive where it is not allowed; cost `[n]` of staying; region `[n, n]`."""
    waited = np.minimum(np.array([team.waited_s for team in teams]) / rules.max_wait_s, 1.0)
    imbalance = np.abs(expected - 0.5)
    window = rules.window + (0.5 - rules.window) * np.maximum.outer(waited, waited)
    allowed = imbalance <= window
    cost, region = rules.skill * imbalance, np.zeros(imbalance.shape, np.int64)
    reach = np.array([team.latency_s for team in teams])
    if reach.size:
        best = np.full(imbalance.shape, np.inf)
        for number, column in enumerate(reach.T):
            farther = np.maximum.outer(column, column)
            region = np.where(farther < best, number, region)
            best = np.minimum(best, farther)
        allowed &= best <= rules.max_latency_s
        cost = cost + np.where(allowed, rules.latency * best / rules.max_latency_s, 0.0)
    return np.where(allowed, cost, _FORBIDDEN), _STAY + rules.wait * waited, region


def best_matching(cost: Floats, stay: Floats) -> list[tuple[int, int]]:
    """Disjoint pairs of n with a least sum of symmetric costs `[n, n]` and of `stay` `[n]` for those left out.

    The relaxation is an assignment of everybody to a partner, oneself for staying. Its cycles of even length split into
    pairs without loss, so the result is optimal unless odd cycles occur. Those leave one out; exchanges of partners
    between two pairs repair what that costs, until none helps.
    """
    from scipy.optimize import linear_sum_assignment  # noqa: PLC0415 - an extra, only where somebody pairs

    table = cost.copy()
    np.fill_diagonal(table, stay)
    partner = np.asarray(linear_sum_assignment(table)[1], np.int64).tolist()
    pairs: list[tuple[int, int]] = []
    seen: set[int] = set()
    for begin in range(len(partner)):
        cycle: list[int] = []
        at = begin
        while at not in seen:
            seen.add(at)
            cycle.append(at)
            at = partner[at]
        turns = [[*cycle[start:], *cycle[:start]] for start in range(len(cycle) if len(cycle) % 2 else 2)]
        options = [list(zip(turn[len(cycle) % 2 :: 2], turn[len(cycle) % 2 + 1 :: 2], strict=True)) for turn in turns]
        pairs += min(options, key=lambda option: sum(float(table[both]) for both in option), default=[])
    return _exchanged(pairs, cost, stay)


def _exchanged(pairs: Sequence[tuple[int, int]], cost: Floats, stay: Floats) -> list[tuple[int, int]]:
    """Pairs after all exchanges of partners that lower the sum; one who stays is a pair with a number of n or above."""
    n = len(stay)
    alone = sorted(set(range(n)) - {one for both in pairs for one in both})
    size = n + len(alone)
    table = np.zeros((size, size))
    table[:n, :n], table[:n, n:], table[n:, :n] = cost, stay[:, None], stay
    both = np.array([*pairs, *zip(alone, range(n, size), strict=True)], np.int64).reshape(-1, 2)
    while len(both):
        left, right = both.T
        now = table[left, right]
        swaps = np.stack(
            [
                table[np.ix_(left, left)] + table[np.ix_(right, right)],
                table[np.ix_(left, right)] + table[np.ix_(right, left)],
            ]
        )
        gains = now[:, None] + now - swaps.min(axis=0)
        np.fill_diagonal(gains, 0.0)
        best, changed = gains.argmax(axis=1), set[int]()
        for one in np.argsort(-gains.max(axis=1)).tolist():
            other = int(best[one])
            if gains[one, other] > _NO_GAIN and not {one, other} & changed:
                (a, b), (c, d) = both[one].tolist(), both[other].tolist()
                straight = swaps[0, one, other] <= swaps[1, one, other]
                both[one], both[other] = ((a, c), (b, d)) if straight else ((a, d), (b, c))
                changed |= {one, other}
        if not changed:
            break
    return [(min(one, other), max(one, other)) for one, other in both.tolist() if max(one, other) < n]


@dataclass(slots=True, kw_only=True)
class MatchQueue:
    """Queue of waiting parties: who joined, which matches are offered, who left meanwhile.

    The wait is measured on the queue's own monotonic clock, so no player's clock, and no step of the machine's, moves
    anybody forward. An offered match stands until it is started; if somebody leaves before, the others wait on, with
    the time that they have waited.
    """

    clock: Clock
    rules: PairingRules = field(default_factory=PairingRules)
    system: RatingSystem = field(default_factory=WengLin)
    capacity: int = 10_000
    """Parties that may wait."""
    _waiting: dict[str, WaitingParty] = field(default_factory=dict[str, WaitingParty])
    """By the party's name."""
    _party: dict[str, str] = field(default_factory=dict[str, str])
    """Party of every player who waits or is offered a match."""
    _offers: dict[int, Match] = field(default_factory=dict[int, Match])
    _offered: dict[str, int] = field(default_factory=dict[str, int])
    """Offer of a party."""
    _count: int = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def join(self, players: Sequence[str], latency_s: Mapping[str, float] | None = None) -> WaitingParty:
        """Let a party wait. Raises DataError for one that no team holds and for players who wait already, ResourceError
        for a full queue."""
        party = WaitingParty(players=tuple(players), since_s=self.clock.monotonic_s(), latency_s=dict(latency_s or {}))
        _check_parties([party], self.rules.team_size)
        again = [name for name in players if name in self._party]
        if again:
            raise DataError(f"players {again} wait already; they leave first, or wait as they do")
        if len(self._waiting) >= self.capacity:
            raise ResourceError(f"{self.capacity} parties wait already; this one was not added: try again later")
        self._waiting[players[0]] = party
        self._party.update(dict.fromkeys(players, players[0]))
        return party

    def leave(self, player: str) -> list[str]:
        """Take a player's whole party out -> names of the parties whose offered match is off and who wait on."""
        name = self._party.get(player)
        if name is None:
            return []
        back: list[str] = []
        if (number := self._offered.get(name)) is not None:
            for party in self._close_offer(number):
                self._waiting[party.players[0]] = party
                back.append(party.players[0])
            back.remove(name)
        for member in self._waiting.pop(name).players:
            del self._party[member]
        return back

    def offer(self, ratings: Mapping[str, Rating]) -> dict[int, Match]:
        """Pair those who wait -> the new offers by number."""
        result = pair(
            list(self._waiting.values()), ratings, now_s=self.clock.monotonic_s(), rules=self.rules, system=self.system
        )
        self._waiting = {party.players[0]: party for party in result.waiting}
        made: dict[int, Match] = {}
        for match in result.matches:
            made[self._count] = self._offers[self._count] = match
            for team in match.teams:
                self._offered.update({party.players[0]: self._count for party in team})
            self._count += 1
        return made

    def start(self, number: int) -> Match:
        """Take an offered match as begun: its players are free to wait again. Raises DataError for one that is off."""
        if number not in self._offers:
            raise DataError(f"match {number} is not offered: it has begun, or a player left; its others wait on")
        match = self._offers[number]
        for party in self._close_offer(number):
            for member in party.players:
                del self._party[member]
        return match

    def _close_offer(self, number: int) -> list[WaitingParty]:
        parties = [party for team in self._offers.pop(number).teams for party in team]
        for party in parties:
            del self._offered[party.players[0]]
        return parties
