"""The store of ratings: restarts, repeated games, clocks that are wrong, and players under a new name."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from hone.core.errors import DataError, ResourceError
from hone.decide.match.rating_store import GameResult, RatedPlayer, RatingStore, suspected_smurfs
from hone.estimators.ratings import Elo, Glicko2, Rating, WengLin


def game(number: int | str, *teams: Iterable[str], ranks: tuple[float, ...] = (1, 2), at_s: float = 0.0) -> GameResult:
    return GameResult(id=str(number), teams=tuple(tuple(team) for team in teams), ranks=ranks, at_s=at_s)


def test_a_store_rates_as_the_system_does_and_keeps_it_over_a_restart(tmp_path: Path) -> None:
    system = WengLin()
    store = RatingStore.open(tmp_path / "r.db", system)
    assert store.ratings(["a"]) == {"a": system.initial} and store.players() == []
    assert store.record([game(0, "a", "b"), game(1, "b", "a"), game(2, "abc", "def", ranks=(2, 1))]) == 3
    (a,), (b,) = system.rate([[system.initial], [system.initial]], [1, 2])
    (b,), (a,) = system.rate([[b], [a]], [1, 2])
    (team, _) = system.rate([[a, b, system.initial], [system.initial] * 3], [2, 1])
    assert store.ratings(["a", "b", "c"]) == dict(zip("abc", team, strict=True))
    before = store.players()
    store.close()
    again = RatingStore.open(tmp_path / "r.db", WengLin())
    assert again.players() == before
    assert [(player.name, player.games) for player in before[:3]] == [("a", 3), ("b", 3), ("c", 1)]


def test_a_game_that_comes_twice_counts_once_and_another_under_its_id_not_at_all(tmp_path: Path) -> None:
    store = RatingStore.open(tmp_path / "r.db", Elo())
    assert store.record([game(0, "a", "b"), game(0, "a", "b")]) == 1
    assert store.record([game(0, "a", "b", at_s=5.0)]) == 0
    before = store.players()
    with pytest.raises(DataError, match="give each game an id of its own; no game of this call was counted"):
        store.record([game(1, "a", "b"), game(0, "b", "a")])
    assert store.players() == before
    assert store.record([game(1, "a", "b")]) == 1


def test_games_that_are_none_are_refused_together(tmp_path: Path) -> None:
    store = RatingStore.open(tmp_path / "r.db", WengLin())
    with pytest.raises(DataError, match="player 'a' stands in it twice") as caught:
        store.record([game(0, "aa", "b"), game(1, "a"), game(2, "a", ""), game(3, "x", "y")])
    assert "game '1': 1 teams" in str(caught.value) and "game '2'" in str(caught.value)
    assert store.players() == []
    with pytest.raises(ValueError, match="WengLin rates teams"):
        RatingStore.open(tmp_path / "elo.db", Elo()).record([game(0, "ab", "c")])


def test_a_store_is_opened_as_it_was_made(tmp_path: Path) -> None:
    RatingStore.open(tmp_path / "r.db", WengLin(), period_s=60.0).close()
    with pytest.raises(DataError, match=r"was rated with WengLin\(.*period_s=60, not Elo"):
        RatingStore.open(tmp_path / "r.db", Elo(), period_s=60.0)
    with pytest.raises(DataError, match="period_s=60, not"):
        RatingStore.open(tmp_path / "r.db", WengLin())
    (tmp_path / "text").write_text("no database at all, only some text of more than a hundred bytes" * 9)
    with pytest.raises(DataError, match="holds no ratings"):
        RatingStore.open(tmp_path / "text", WengLin())
    with pytest.raises(ResourceError, match="name a folder that exists"):
        RatingStore.open(tmp_path / "none" / "r.db", WengLin())


def test_absence_widens_the_deviation_and_a_clock_that_is_wrong_does_no_harm(tmp_path: Path) -> None:
    system, day = Glicko2(), 86400.0
    store = RatingStore.open(tmp_path / "r.db", system, period_s=day)
    store.record([game(number, "a", "b", at_s=1000.0) for number in range(20)])
    now = store.ratings(["a"], now_s=1000.0)["a"]
    assert store.ratings(["a"])["a"] == now
    later = store.ratings(["a", "new"], now_s=1000.0 + 30 * day)
    assert later["a"] == system.after_absence(now, 30) and later["a"].deviation > now.deviation
    assert later["new"] == system.initial
    # A server an hour behind: as if no time had passed, and the players' clock does not go back
    store.record([game("behind", "a", "b", at_s=1000.0 - 3600)])
    (expected,), _ = system.rate([[now], [store.ratings(["b"])["b"]]], [1, 2])
    assert store.ratings(["a"])["a"].mean == pytest.approx(expected.mean, rel=0.01)
    assert store.ratings(["a"], now_s=1000.0)["a"] == store.ratings(["a"])["a"]


KILLED = """
import sys
from collections.abc import Iterable
from pathlib import Path
from hone.decide.match.rating_store import GameResult, RatingStore
from hone.estimators.ratings import WengLin
store = RatingStore.open(Path(sys.argv[1]), WengLin())
for number in range(100_000):
    teams = ((f"p{number % 7}",), (f"p{number % 5 + 7}",))
    store.record([GameResult(id=str(number), teams=teams, ranks=(number % 3, 1), at_s=float(number))])
    print(number, flush=True)
"""


def test_games_that_were_taken_survive_a_kill_and_the_ratings_are_those_of_the_games(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "r.db")], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert child.stdout is not None
    taken = -1
    for line in child.stdout:
        taken = int(line)
        if taken == 60:
            break
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    store = RatingStore.open(tmp_path / "r.db", WengLin())
    count = sum(player.games for player in store.players()) // 2
    assert count >= taken + 1
    fresh = RatingStore.open(tmp_path / "fresh.db", WengLin())
    for number in range(count):
        fresh.record([game(number, [f"p{number % 7}"], [f"p{number % 5 + 7}"], ranks=(number % 3, 1), at_s=number)])
    assert fresh.players() == store.players()


def test_a_strong_newcomer_is_suspected_and_a_settled_or_an_unsure_one_is_not() -> None:
    def player(name: str, mean: float, deviation: float, games: int) -> RatedPlayer:
        return RatedPlayer(name=name, rating=Rating(mean, deviation), games=games)

    settled = [player(f"s{number}", float(number), 1.0, 11) for number in range(20)]
    # The .85 quantile of 0 .. 19 is 17; P(skill > 17) >= .75 from 17 + .6745 on
    certain = player("certain", 17.6745, 1.0, 10)
    assert suspected_smurfs([*settled, certain]) == ["certain"]
    others = [player("unsure", 17.674, 1.0, 10), player("known", 30.0, 1.0, 11), player("none", 99.0, 1.0, 0)]
    assert suspected_smurfs([*settled, *others]) == []
    edge = player("edge", 17.0, 0.0, 1)
    assert suspected_smurfs([*settled, edge]) == ["edge"]
    assert suspected_smurfs([certain]) == []
