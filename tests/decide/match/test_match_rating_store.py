"""The store of ratings: restarts, repeated games, clocks that are wrong, and players under a new name."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from hone.cli.main import main
from hone.core.errors import DataError, ResourceError
from hone.decide.match import rating_store
from hone.decide.match.rating_store import GameResult, RatedPlayer, RatingStore, suspected_smurfs
from hone.estimators.ratings import Elo, Glicko2, Rating, RatingSystem, WengLin, fit_ratings


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


# ----------------------------------------------------------------------------------------------------------------- fit


def filled(path: Path, system: RatingSystem, games: Sequence[GameResult]) -> RatingStore:
    store = RatingStore.open(path, system)
    store.record(games)
    return store


def test_a_fit_takes_duels_draws_teams_and_games_of_three_from_the_file(tmp_path: Path) -> None:
    system = WengLin()
    games = [
        game(0, "a", "b"), game(1, "b", "a", at_s=5.0), game(2, "a", "b", ranks=(3, 3), at_s=5.0),
        game(3, "ac", "b", ranks=(2, 1), at_s=6.0), game(4, "a", "b", "c", ranks=(2, 1, 1), at_s=7.0),
    ]  # fmt: skip
    with closing(filled(tmp_path / "r.db", system, games)) as store:
        before, fitted = store.players(), store.fitted()
        members = [[[0], [1]], [[1], [0]], [[0], [1]], [[0, 2], [1]], [[0], [1]], [[0], [2]], [[1], [2]]]
        padded = np.array([[side + [-1] * (2 - len(side)) for side in pair] for pair in members])
        rows = fit_ratings(system, 3, padded, np.array([1.0, 1.0, 0.5, 0.0, 0.0, 0.0, 0.5]))
        assert fitted == {name: pytest.approx(Rating(*row)) for name, row in zip("abc", rows.tolist(), strict=True)}
        assert store.fitted(since_s=5.0)["a"] == pytest.approx(Rating(*fit_ratings(
            system, 3, padded[1:], np.array([1.0, 0.5, 0.0, 0.0, 0.0, 0.5]))[0].tolist()))  # fmt: skip
        assert store.fitted(since_s=8.0) == {} and store.players() == before  # nothing was written
        store.replace(fitted)
        after = store.players()
    assert {one.name: one.rating for one in after} == fitted
    assert [one.games for one in after] == [one.games for one in before]
    with closing(RatingStore.reopen(tmp_path / "r.db")) as store:  # later games go on from there
        (a,), (b,) = system.rate([[fitted["a"]], [fitted["b"]]], [1, 2])
        store.record([game(5, "a", "b", at_s=9.0)])
        assert store.ratings(["a", "b"]) == {"a": a, "b": b}


def test_a_fit_has_the_model_of_weng_lin_and_a_bound_of_players(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, system in {"elo": Elo(), "glicko": Glicko2(), "normal": WengLin(form="normal")}.items():
        store = filled(tmp_path / f"{name}.db", system, [game(0, "a", "b")])
        with pytest.raises(DataError, match="a fit has the model of WengLin in its logistic form"):
            store.fitted()
        store.close()
    with closing(filled(tmp_path / "r.db", WengLin(), [game(0, "a", "b"), game(1, "a", "c", at_s=1.0)])) as store:
        monkeypatch.setattr(rating_store, "MOST_FITTED", 3)
        assert len(store.fitted()) == 3
        monkeypatch.setattr(rating_store, "MOST_FITTED", 2)
        with pytest.raises(DataError, match="3 players, at most 2 are fitted: name a later time"):
            store.fitted()
        assert set(store.fitted(since_s=1.0)) == {"a", "c"}


def test_a_store_is_opened_again_without_its_settings(tmp_path: Path) -> None:
    for name, system in {"e": Elo(k=16.5), "g": Glicko2(tau=0.3), "w": WengLin(form="normal", damped=False)}.items():
        RatingStore.open(tmp_path / f"{name}.db", system, period_s=86_400.5).close()
        with closing(RatingStore.reopen(tmp_path / f"{name}.db")) as again:
            assert again.system == system
    with pytest.raises(DataError, match="there are no ratings"):
        RatingStore.reopen(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()
    (tmp_path / "text.db").write_text("no ratings at all, but some text")
    with closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("create table songs (name)")
    for kept in ("", "Fide(k=1), period_s=0", "open('x'), period_s=0", "WengLin(x=1), period_s=0", "7, period_s=0",
                 "WengLin(), period_s=long"):  # fmt: skip
        place = tmp_path / "odd.db"
        RatingStore.open(place, Elo()).close()
        with closing(sqlite3.connect(place)) as connection:
            connection.execute("update settings set value = ?", (kept,))
            connection.commit()
        with pytest.raises(DataError, match=r"holds no ratings|was rated with"):
            RatingStore.reopen(place)
        place.unlink()
    for name in ("text.db", "other.db"):
        with pytest.raises(DataError, match="holds no ratings"):
            RatingStore.reopen(tmp_path / name)


def test_the_command_shows_fits_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "r.db"
    with closing(filled(place, WengLin(), [game(n, "a", "b", at_s=float(n)) for n in range(30)])) as store:
        store.record([game(100 + n, [f"p{n:02}"], "b", at_s=99.0) for n in range(25)])
        before, fitted = store.players(), store.fitted()
        late = store.fitted(since_s=99.0)
    assert main(["ratings", str(place)]) == 0
    shown = capsys.readouterr().out
    assert "27 players, rated by WengLin(form='logistic'" in shown and "and 7 more players" in shown
    assert "fitted" not in shown
    assert main(["ratings", str(place), "--fit", "--json", "--since", "99"]) == 0
    document = json.loads(capsys.readouterr().out)
    by_name = {one["player"]: one for one in document["players"]}
    assert by_name["b"]["fitted"]["mean"] == late["b"].mean and "fitted" not in by_name["a"]  # a played before
    assert by_name["b"]["games"] == 55 and document["written"] is False
    assert main(["ratings", str(place), "--fit"]) == 0
    shown = capsys.readouterr().out
    assert f"{fitted['a'].mean:.2f} ± {fitted['a'].deviation:.2f}" in shown and "--write puts them there" in shown
    with closing(RatingStore.reopen(place)) as store:
        assert store.players() == before
    assert main(["ratings", str(place), "--fit", "--write"]) == 0
    assert "fitted 27 ratings to all games at once; the file has them now" in capsys.readouterr().out
    with closing(RatingStore.reopen(place)) as store:
        assert store.ratings(["a", "b"]) == {name: fitted[name] for name in "ab"}
    stars = [game(200 + n, ["star"], "a", at_s=100.0) for n in range(10)]
    with closing(RatingStore.reopen(place)) as store:
        store.record([game(300 + n, "a", "b", at_s=100.0) for n in range(30)] + stars)
    assert main(["ratings", str(place)]) == 0
    assert "suspected of playing under a new name: star" in capsys.readouterr().out
    for options in (["--write"], ["--since", "9"]):
        assert main(["ratings", str(place), *options]) == 2
        assert f"{options[0]} goes with --fit" in capsys.readouterr().err
