"""Pairing: values by hand, the optimum by enumeration, windows at equality, parties, and players who leave."""

import itertools
import math

import numpy as np
import pytest
from manual_clock import ManualClock
from pydantic import ValidationError

from hone.core.decisions import Floats
from hone.core.errors import DataError, ResourceError
from hone.core.random import generator
from hone.decide.match.pairing import MatchQueue, PairingRules, WaitingParty, best_matching, pair
from hone.estimators.ratings import Elo, Glicko2, Rating, WengLin

CERTAIN = WengLin(beta=1 / math.sqrt(2), drift=0.0)
"""For players without deviation: p = sigmoid(difference of means)."""


def singles(**means: float) -> tuple[list[WaitingParty], dict[str, Rating]]:
    return [WaitingParty(players=(name,), since_s=0.0) for name in means], {n: Rating(m) for n, m in means.items()}


def test_neighbours_in_skill_play_each_other() -> None:
    waiting, ratings = singles(a=0.0, b=3.0, c=0.2, d=3.1)
    result = pair(waiting, ratings, now_s=0.0, system=CERTAIN)
    assert sorted(match.players for match in result.matches) == [(("a",), ("c",)), (("b",), ("d",))]
    by_name = {match.players[0][0]: match for match in result.matches}
    assert by_name["a"].expected_score == pytest.approx(1 / (1 + math.exp(0.2)))
    assert by_name["a"].imbalance == pytest.approx(0.5 - 1 / (1 + math.exp(0.2)))
    assert result.waiting == ()


def test_a_window_opens_with_the_wait_and_holds_at_equality() -> None:
    # |p - 1/2| = 1/4 for a difference of log 3; the window is .1 + .4 * t / 30, and .25 at 11.25 s
    waiting, ratings = singles(a=0.0, b=math.log(3) - 1e-12)
    assert pair(waiting, ratings, now_s=11.24, system=CERTAIN).matches == ()
    assert len(pair(waiting, ratings, now_s=11.25, system=CERTAIN).matches) == 1
    rules = PairingRules(window=0.25)
    assert len(pair(waiting, ratings, now_s=-1e9, rules=rules, system=CERTAIN).matches) == 1  # a clock set back
    even, same = singles(a=1.0, b=1.0)
    assert len(pair(even, same, now_s=0.0, rules=PairingRules(window=0.0), system=CERTAIN).matches) == 1
    # After the longest wait anybody will do, and the longer wait of the two counts
    far, means = singles(a=0.0, b=50.0)
    assert (
        len(pair([far[0], WaitingParty(players=("b",), since_s=30.0)], means, now_s=30.0, system=CERTAIN).matches) == 1
    )
    assert pair(far, means, now_s=29.9, system=CERTAIN).matches == ()


def test_who_waited_longest_is_not_the_one_who_stays() -> None:
    ratings = {name: Rating(0.0) for name in "abc"}
    waits = {"a": 20.0, "b": 5.0, "c": 10.0}
    waiting = [WaitingParty(players=(name,), since_s=-wait) for name, wait in waits.items()]
    result = pair(waiting, ratings, now_s=0.0, system=CERTAIN)
    assert [party.players for party in result.waiting] == [("b",)]


def test_latency_chooses_the_region_and_is_a_bound() -> None:
    ratings = {name: Rating(0.0) for name in "abcd"}
    west, east = {"west": 0.02, "east": 0.14}, {"west": 0.15, "east": 0.03}
    waiting = [WaitingParty(players=(name,), since_s=0.0, latency_s=west if name in "ab" else east) for name in "acbd"]
    result = pair(waiting, ratings, now_s=0.0, system=CERTAIN)
    chosen = {tuple(sorted(name for team in match.players for name in team)): match.region for match in result.matches}
    assert chosen == {("a", "b"): "west", ("c", "d"): "east"}
    two = [waiting[0], waiting[1]]
    assert pair(two, ratings, now_s=0.0, system=CERTAIN).matches[0].region == "east"  # .14 < .15
    limited = PairingRules(max_latency_s=0.14)
    assert len(pair(two, ratings, now_s=0.0, rules=limited, system=CERTAIN).matches) == 1
    limited = PairingRules(max_latency_s=0.139)
    assert pair(two, ratings, now_s=1e6, rules=limited, system=CERTAIN).matches == ()
    apart = [WaitingParty(players=(name,), since_s=0.0, latency_s={name: 0.01}) for name in "ab"]
    assert pair(apart, ratings, now_s=1e6, system=CERTAIN).matches == ()
    anywhere = [apart[0], WaitingParty(players=("b",), since_s=0.0)]
    assert pair(anywhere, ratings, now_s=0.0, system=CERTAIN).matches[0].region == "a"


def slow_cost(cost: Floats, stay: Floats, people: tuple[int, ...]) -> float:
    """Least cost over all sets of disjoint pairs, by recursion."""
    if not people:
        return 0.0
    first, *rest = people
    options = [float(stay[first]) + slow_cost(cost, stay, tuple(rest))]
    for other in rest:
        left = tuple(one for one in rest if one != other)
        options.append(float(cost[first, other]) + slow_cost(cost, stay, left))
    return min(options)


def test_the_matching_is_mostly_the_best_of_all_and_near_it_elsewhere() -> None:
    losses: list[float] = []
    for number in range(60):
        random, n = generator(3, "matching", number), 4 + number % 5
        cost = random.uniform(0, 1, (n, n))
        cost, stay = (cost + cost.T) / 2, random.uniform(0.2, 0.6, n)
        pairs = best_matching(cost, stay)
        people = [one for both in pairs for one in both]
        assert len(people) == len(set(people))
        total = sum(float(cost[both]) for both in pairs) + sum(float(stay[i]) for i in set(range(n)) - set(people))
        best = slow_cost(cost, stay, tuple(range(n)))
        assert total >= best - 1e-12
        losses.append(total - best)
    assert np.mean(np.array(losses) < 1e-9) >= 0.75
    assert np.mean(losses) < 0.04


def test_skills_on_a_line_are_matched_nearly_as_well_as_by_enumeration() -> None:
    total = least = 0.0
    for number in range(30):
        random, n = generator(4, "line", number), 4 + 2 * (number % 3)
        skills = random.normal(size=n)
        waiting, ratings = singles(**{f"p{i}": float(skill) for i, skill in enumerate(skills)})
        rules = PairingRules(window=0.5)
        result = pair(waiting, ratings, now_s=0.0, rules=rules, system=CERTAIN)
        assert len(result.matches) == n // 2
        cost = np.abs(1 / (1 + np.exp(np.subtract.outer(skills, skills))) - 0.5)
        best = slow_cost(cost, np.full(n, 1e3), tuple(range(n)))
        total, least = total + sum(match.imbalance for match in result.matches), least + best
        assert total >= least - 1e-9
    assert total <= 1.05 * least
    # Many of them: neighbours in the order of skill are the optimum
    skills = np.sort(generator(4, "line").normal(size=200))
    waiting, ratings = singles(**{f"p{i}": float(skill) for i, skill in enumerate(skills)})
    matches = pair(waiting, ratings, now_s=0.0, rules=PairingRules(window=0.5), system=CERTAIN).matches
    neighbours = np.abs(1 / (1 + np.exp(skills[::2] - skills[1::2])) - 0.5)
    assert sum(match.imbalance for match in matches) == pytest.approx(neighbours.sum(), rel=0.02)


def test_parties_stay_together_and_are_filled_up_to_teams() -> None:
    rules = PairingRules(team_size=3, window=0.5)
    sizes = [("a1", "a2", "a3"), ("b1", "b2"), ("c",), ("d",), ("e",), ("f1", "f2")]
    waiting = [WaitingParty(players=players, since_s=0.0) for players in sizes]
    result = pair(waiting, {}, now_s=0.0, rules=rules)
    assert len(result.matches) == 1 and len(result.waiting) == 2
    for match in result.matches:
        assert [len(team) for team in match.players] == [3, 3]
        for team in match.teams:
            assert sum(len(party.players) for party in team) == 3
    everyone = [name for match in result.matches for team in match.players for name in team]
    everyone += [name for party in result.waiting for name in party.players]
    assert sorted(everyone) == sorted(name for players in sizes for name in players)
    lonely = pair(waiting[1:2], {}, now_s=0.0, rules=rules)
    assert lonely.matches == () and lonely.waiting == (waiting[1],)


def test_team_mates_share_a_region() -> None:
    rules = PairingRules(team_size=2, window=0.5)
    waiting = [
        WaitingParty(players=(f"{region}{number}",), since_s=0.0, latency_s={region: 0.05})
        for number in range(4)
        for region in ("x", "y")
    ]
    result = pair(waiting, {}, now_s=0.0, rules=rules)
    assert sorted(match.region for match in result.matches) == ["x", "y"]
    for match in result.matches:
        assert {name[0] for team in match.players for name in team} == {match.region}


def test_all_systems_pair_and_new_players_have_the_initial_rating() -> None:
    for system in (WengLin(form="normal"), Elo(), Glicko2()):
        waiting, _ = singles(a=0.0, b=0.0)
        (match,) = pair(waiting, {}, now_s=0.0, system=system).matches
        assert match.expected_score == 0.5
    assert pair([], {}, now_s=0.0).matches == ()


def test_wrong_pools_are_refused_with_every_fault() -> None:
    twice = [WaitingParty(players=("a", "b"), since_s=0.0), WaitingParty(players=("c",), since_s=0.0)]
    twice.append(WaitingParty(players=("c",), since_s=0.0))
    with pytest.raises(DataError, match="has 2 players, and a team has 1") as caught:
        pair(twice, {}, now_s=0.0)
    assert "player 'c' waits twice" in str(caught.value)
    with pytest.raises(DataError, match="has 0 players"):
        pair([WaitingParty(players=(), since_s=0.0)], {}, now_s=0.0)
    for wrong in ({"max_wait_s": 0}, {"window": 0.6}, {"team_size": 0}, {"skill": -1}):
        with pytest.raises(ValidationError):
            PairingRules.model_validate(wrong)


def queue(**rules: float) -> tuple[MatchQueue, ManualClock]:
    clock = ManualClock(100.0)
    return MatchQueue(clock=clock, rules=PairingRules.model_validate(rules)), clock


def test_a_player_who_leaves_an_offered_match_costs_the_others_no_wait() -> None:
    line, clock = queue(team_size=2)
    line.join(["a", "b"])
    line.join(["c"])
    line.join(["d"])
    clock.advance(7)
    ((number, match),) = line.offer({}).items()
    assert len(line) == 0 and {len(team) for team in match.players} == {2}
    assert sorted(line.leave("c")) == ["a", "d"]
    with pytest.raises(DataError, match="a player left"):
        line.start(number)
    assert len(line) == 2 and line.leave("c") == []
    line.join(["c"])  # comes back, as a newcomer
    ((again, match),) = line.offer({}).items()
    waits = {party.players[0]: party.since_s for team in match.teams for party in team}
    assert waits == {"a": 100.0, "d": 100.0, "c": 107.0}
    assert line.start(again) == match
    with pytest.raises(DataError, match="it has begun"):
        line.start(again)
    line.join(["a"])  # free again after the start


def test_a_whole_party_leaves_with_one_of_it() -> None:
    line, _ = queue(team_size=3)
    line.join(["a", "b", "c"])
    assert line.leave("b") == [] and len(line) == 0
    line.join(["c", "a"])


def test_a_queue_refuses_who_waits_already_and_more_than_it_holds() -> None:
    line = MatchQueue(clock=ManualClock(), capacity=2)
    line.join(["a"])
    line.join(["b"])
    with pytest.raises(DataError, match=r"players \['b'\] wait already"):
        line.join(["b"])
    with pytest.raises(ResourceError, match="2 parties wait already"):
        line.join(["c"])
    line.offer({})
    with pytest.raises(DataError, match="wait already"):
        line.join(["a"])
    with pytest.raises(DataError, match="has 2 players"):
        line.join(["x", "y"])


def test_every_order_of_arrival_gives_the_same_matches() -> None:
    waiting, ratings = singles(a=0.0, b=1.0, c=2.0, d=2.9)
    results = {
        frozenset(frozenset(name for team in match.players for name in team) for match in result.matches)
        for order in itertools.permutations(waiting)
        if (result := pair(order, ratings, now_s=9.0, rules=PairingRules(window=0.5), system=CERTAIN))
    }
    assert results == {frozenset({frozenset("ab"), frozenset("cd")})}
